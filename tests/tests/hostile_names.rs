//! Devices whose names lead out of their tree, to two places, or in a circle: what is given such a device writes
//! nowhere else, comes to an end, and says what is wrong; and a repair makes a whole device of it.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nvfold::{FileKind, FileSystem, InodeNumber, NewInode, Policy};
use nvfold_tests::device::{self, Device};
use nvfold_tests::hostile::forge::forge_name;
use nvfold_tests::mount::{Mount, nvfold};
use nvfold_tests::requires;
use nvfold_tests::run::{self, Outcome};

const ROOT: InodeNumber = InodeNumber::ROOT;

/// A hostile device: how it is made, and what is said of it.
struct Hostile {
    /// Makes what will be damaged, beside `good`, a file in the root.
    make: fn(&FileSystem),
    /// Changes it. The path is that of a file that nobody may make.
    damage: fn(&Path, &Path),
    /// What fsck says.
    finding: &'static str,
    /// What export says, and the name in the destination that it says it of.
    problem: (&'static str, &'static str),
}

fn file(fs: &FileSystem, dir: InodeNumber, name: &[u8], mode: u32) -> InodeNumber {
    let new = NewInode { mode, ..device::regular() };
    let ino = fs.create(dir, name, &new).expect("create").ino;
    fs.open(ino).expect("open").write_at(0, b"planted").expect("write");
    ino
}

fn mkdir(fs: &FileSystem, dir: InodeNumber, name: &[u8]) -> InodeNumber {
    fs.mkdir(dir, name, &device::directory()).expect("mkdir").ino
}

/// A name that has room for any path of a test.
const LONG: [u8; 200] = [b'n'; 200];
const LEFT_OUT: &str = "damaged names left out: 1";

fn hostile() -> Vec<Hostile> {
    let make_long: fn(&FileSystem) = |fs| {
        file(fs, ROOT, &LONG, 0o644);
    };
    let make_two: fn(&FileSystem) = |fs| {
        fs.symlink(ROOT, b"twin", b"../outside", &device::new_inode(FileKind::Symlink, 0o777)).expect("symlink");
        let dir = mkdir(fs, ROOT, b"twim");
        file(fs, dir, b"planted", 0o4755);
    };
    let make_circle: fn(&FileSystem) = |fs| {
        let above = mkdir(fs, ROOT, b"above");
        mkdir(fs, above, b"below");
    };
    vec![
        Hostile {
            make: make_long,
            damage: |device, planted| forge_name(device, ROOT, &LONG, planted.as_os_str().as_bytes(), None),
            finding: "/outside/planted`",
            problem: ("", LEFT_OUT),
        },
        Hostile {
            make: make_long,
            damage: |device, _| forge_name(device, ROOT, &LONG, b"../outside/planted", None),
            finding: "no name can be `../outside/planted`",
            problem: ("", LEFT_OUT),
        },
        Hostile {
            make: |fs| {
                mkdir(fs, ROOT, b"upwards");
            },
            damage: |device, _| forge_name(device, ROOT, b"upwards", b"..", None),
            finding: "no name can be `..`",
            problem: ("", LEFT_OUT),
        },
        Hostile {
            make: make_two,
            damage: |device, _| forge_name(device, ROOT, b"twim", b"twin", None),
            finding: "the name `twin` is there twice",
            problem: ("twin", "the name `twin` is there twice"),
        },
        Hostile {
            make: make_circle,
            damage: |device, _| forge_name(device, directory(device, b"above"), b"below", b"below", Some(ROOT)),
            finding: "a name leads to the root directory",
            problem: ("above/below", "a name in directory"),
        },
        Hostile {
            make: make_circle,
            damage: |device, _| {
                let above = directory(device, b"above");
                forge_name(device, above, b"below", b"below", Some(above));
            },
            finding: "has 2 names",
            problem: ("above/below", "a name in directory"),
        },
        Hostile {
            make: |fs| {
                let above = mkdir(fs, ROOT, b"above");
                mkdir(fs, above, b"left");
                mkdir(fs, above, b"right");
            },
            damage: |device, _| {
                let above = directory(device, b"above");
                let left = open(device).lookup(above, b"left").expect("look up").ino;
                forge_name(device, above, b"right", b"right", Some(left));
            },
            finding: "has 2 names",
            problem: ("above/right", "lead to this directory twice"),
        },
    ]
}

/// Mounts a device read-only in this process, which changes nothing on it.
fn open(device: &Path) -> FileSystem {
    let options = nvfold::MountOptions { read_only: true, ..device::options() };
    FileSystem::mount(device::region_of(device).expect("map"), options).expect("mount")
}

fn directory(device: &Path, name: &[u8]) -> InodeNumber {
    open(device).lookup(ROOT, name).expect("look up").ino
}

/// All paths below a directory.
fn tree(dir: &Path) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(dir).expect("read a directory") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("its type").is_dir() {
                pending.push(entry.path());
            }
            paths.insert(entry.path());
        }
    }
    paths
}

fn assert_in_order(outcome: &Outcome, code: i32) {
    assert_eq!(outcome.code(), code, "{}", outcome.report());
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.report());
}

#[test]
fn export_writes_nothing_outside_its_destination() {
    for Hostile { make, damage, finding, problem: (at, problem) } in hostile() {
        let device = Device::fresh(16);
        let scratch = device.scratch();
        let fs = device.mount(Policy::Inline);
        file(&fs, ROOT, b"good", 0o640);
        make(&fs);
        fs.unmount().expect("unmount");
        std::fs::create_dir(scratch.join("outside")).expect("mkdir");
        damage(device.path(), &scratch.join("outside/planted"));

        let before = tree(scratch.path());
        let out = scratch.join("out");
        let exported = nvfold(&["export"], &[device.path(), &out]);
        assert_in_order(&exported, 1);
        let told = format!("{}: ", if at.is_empty() { out.clone() } else { out.join(at) }.display());
        let is_told = |line: &str| line.contains(&told) && line.contains(problem);
        assert!(exported.stderr.lines().any(is_told), "`{told}`, `{problem}` in {}", exported.report());
        let outside: BTreeSet<_> = tree(scratch.path()).into_iter().filter(|path| !path.starts_with(&out)).collect();
        assert_eq!(outside, before, "{finding}: {}", exported.report());
        assert_eq!(std::fs::read(out.join("good")).expect("read"), b"planted");
        assert_eq!(std::fs::metadata(out.join("good")).expect("stat").mode() & 0o7777, 0o640);

        let checked = nvfold(&["fsck"], &[device.path()]);
        assert_in_order(&checked, 4);
        assert!(checked.stdout.contains(finding), "`{finding}` in {}", checked.report());
        assert_in_order(&nvfold(&["fsck", "--repair"], &[device.path()]), 1);
        device.check();
        let again = scratch.join("again");
        assert_in_order(&nvfold(&["export"], &[device.path(), &again]), 0);
        assert_eq!(std::fs::read(again.join("good")).expect("read"), b"planted");
        assert_in_order(&nvfold(&["du"], &[device.path()]), 0);
    }
}

#[test]
fn a_mount_with_damaged_names_shows_the_other_names() {
    requires!(root, fuse);
    for Hostile { make, damage, finding, problem: (at, _) } in hostile() {
        let mut mount = Mount::fresh(16, "inline");
        if !mount.is_real() {
            return;
        }
        mount.unmount();
        let fs = FileSystem::mount(device::region_of(mount.device()).expect("map"), device::options()).expect("mount");
        file(&fs, ROOT, b"good", 0o640);
        make(&fs);
        fs.unmount().expect("unmount");
        let planted = mount.scratch().join("outside/planted");
        damage(mount.device(), &planted);
        mount.set_options("ro");
        mount.mount();
        let shown = names_in_root(mount.path());
        assert!(shown.contains("good"), "{finding}: {shown:?}");
        assert!(shown.iter().all(|name| !name.is_empty() && !name.contains("outside")), "{finding}: {shown:?}");
        assert_eq!(std::fs::read(mount.join("good")).expect("read"), b"planted");
        if !at.is_empty() && !at.ends_with("right") {
            let error = std::fs::symlink_metadata(mount.join(at)).expect_err("a damaged name");
            assert_eq!(error.raw_os_error(), Some(nvfold::errno::EIO), "{finding}");
        }
        // It comes to an end.
        let found = run::run(std::process::Command::new("find").arg(mount.path()));
        assert!(found.stdout.lines().any(|line| line.ends_with("/good")), "{}", found.report());
        mount.unmount();
    }
}

/// The names in the root of a mount.
fn names_in_root(dir: &Path) -> BTreeSet<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
    std::fs::read_dir(dir).expect("list").map(|entry| name(entry).to_string_lossy().into_owned()).collect()
}
