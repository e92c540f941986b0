//! File handles, as an NFS server gives them to its clients: `name_to_handle_at` and `open_by_handle_at` on the
//! mount. A handle leads to its file although the file is renamed, the kernel drops the file from its caches, or the
//! device is unmounted or crashes. It never leads to another file: it is ESTALE once the file is gone.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use nvfold::{FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions, NewInode};
use nvfold_tests::mount::Mount;
use nvfold_tests::probe::compiled;
use nvfold_tests::{requires, run};
use pmem::{DeviceSpec, OpenOptions, Region};

const ESTALE: i32 = 116;

/// The program that makes and opens handles.
struct Handles {
    program: PathBuf,
}

impl Handles {
    fn new(mount: &Mount) -> Handles {
        Handles { program: compiled("handles", mount.scratch()) }
    }

    #[track_caller]
    fn of(&self, path: &Path) -> String {
        run::ok(Command::new(&self.program).arg("make").arg(path)).stdout.trim().to_owned()
    }

    /// Makes a handle that includes the directory, so that the opened file gets its name. `None` on kernels without
    /// such handles.
    fn connectable(&self, path: &Path) -> Option<String> {
        let made = run::run(Command::new(&self.program).arg("make").arg(path).arg("connectable"));
        made.status.success().then(|| made.stdout.trim().to_owned())
    }

    /// Returns the content of the file that a handle leads to.
    #[track_caller]
    fn open(&self, mount: &Mount, handle: &str) -> String {
        run::ok(Command::new(&self.program).arg("open").arg(mount.path()).arg(handle)).stdout.trim().to_owned()
    }

    #[track_caller]
    fn assert_stale(&self, mount: &Mount, handle: &str) {
        let opened = run::run(Command::new(&self.program).arg("open").arg(mount.path()).arg(handle));
        assert_eq!(opened.code(), ESTALE, "{}", opened.report());
    }
}

/// Makes the kernel drop unused names and inodes from its caches.
fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "2").expect("drop names and inodes");
}

fn fill(dir: &Path, files: usize) -> Vec<PathBuf> {
    fs::create_dir_all(dir).unwrap();
    let paths: Vec<PathBuf> = (0..files).map(|file| dir.join(format!("file {file}"))).collect();
    paths.iter().enumerate().for_each(|(file, path)| fs::write(path, format!("content {file}")).unwrap());
    paths
}

#[test]
fn a_file_handle_survives_rename_and_removal_of_the_name() {
    requires!(root, fuse, tool("cc"));
    let mount = Mount::fresh(128, "inline");
    let handles = Handles::new(&mount);
    let dir = mount.join("dir");
    let paths = fill(&dir, 10);
    let of_files: Vec<String> = paths.iter().map(|path| handles.of(path)).collect();
    let (of_dir, of_root) = (handles.of(&dir), handles.of(mount.path()));
    let assert_all = |when: &str| {
        for cached in [true, false] {
            if !cached {
                drop_caches();
            }
            for (file, handle) in of_files.iter().enumerate() {
                assert_eq!(handles.open(&mount, handle), format!("file: content {file}"), "{when}, cached: {cached}");
            }
            assert_eq!(handles.open(&mount, &of_dir), "directory", "{when}");
            assert_eq!(handles.open(&mount, &of_root), "directory", "{when}");
        }
    };
    assert_all("as made");
    for path in &paths {
        fs::hard_link(path, path.with_extension("linked")).unwrap();
        fs::remove_file(path).unwrap();
    }
    assert_all("linked, and the first name removed");
    for path in &paths {
        fs::rename(path.with_extension("linked"), path.with_extension("renamed")).unwrap();
    }
    assert_all("renamed");
    fs::rename(&dir, mount.join("other name")).unwrap();
    assert_all("with another name of the directory");
    fs::create_dir(mount.join("new")).unwrap();
    for path in &paths {
        let name = path.with_extension("renamed");
        let name = name.file_name().unwrap();
        fs::rename(mount.join("other name").join(name), mount.join("new").join(name)).unwrap();
    }
    assert_all("moved to another directory");
    fs::rename(mount.join("other name"), mount.join("new/below")).unwrap();
    assert_all("with the directory moved");
}

#[test]
fn a_handle_of_a_removed_file_is_stale_and_never_leads_to_another() {
    requires!(root, fuse, tool("cc"));
    let mount = Mount::fresh(128, "inline");
    let handles = Handles::new(&mount);
    let dir = mount.join("dir");
    let paths = fill(&dir, 40);
    let of_files: Vec<String> = paths.iter().map(|path| handles.of(path)).collect();
    let open = File::open(&paths[0]).unwrap();
    paths.iter().step_by(2).for_each(|path| fs::remove_file(path).unwrap());
    assert_eq!(handles.open(&mount, &of_files[0]), "file: content 0", "it is open still");
    drop(open);
    let assert_gone = |when: &str| {
        for (file, handle) in of_files.iter().enumerate() {
            if file % 2 == 0 {
                handles.assert_stale(&mount, handle);
            } else {
                assert_eq!(handles.open(&mount, handle), format!("file: content {file}"), "{when}");
            }
        }
    };
    assert_gone("removed");
    // The lowest free numbers are used first, so these files have the numbers of the removed ones.
    let numbers = |paths: &[PathBuf]| -> HashSet<String> {
        paths.iter().map(|path| handles.of(path)[8..24].to_owned()).collect()
    };
    let removed: HashSet<String> = of_files.iter().step_by(2).map(|handle| handle[8..24].to_owned()).collect();
    let new = fill(&mount.join("new"), 40);
    assert!(numbers(&new).intersection(&removed).count() > 10, "numbers are used again");
    assert_gone("used again");
    drop_caches();
    assert_gone("used again, and dropped from memory");
    let of_dir = handles.of(&mount.join("new"));
    fs::remove_dir_all(mount.join("new")).unwrap();
    handles.assert_stale(&mount, &of_dir);
}

#[test]
fn file_handles_stay_valid_across_mounts() {
    requires!(root, fuse, tool("cc"));
    let mut mount = Mount::fresh(128, "inline");
    let handles = Handles::new(&mount);
    let parent = mount.join("grandparent/parent");
    let paths = fill(&parent, 10);
    let mut all: Vec<(String, String)> = Vec::new();
    for (file, path) in paths.iter().enumerate() {
        all.push((handles.of(path), format!("file: content {file}")));
        all.extend(handles.connectable(path).map(|handle| (handle, format!("file: content {file}"))));
    }
    for dir in [&parent, mount.path()] {
        all.push((handles.of(dir), "directory".into()));
    }
    let removed = mount.join("removed");
    fs::write(&removed, "").unwrap();
    let of_removed = handles.of(&removed);
    fs::remove_file(&removed).unwrap();
    let assert_all = |mount: &Mount, when: &str| {
        for (handle, leads_to) in &all {
            assert_eq!(&handles.open(mount, handle), leads_to, "{when}");
        }
        handles.assert_stale(mount, &of_removed);
    };
    mount.remount();
    assert_all(&mount, "mounted again");
    fs::rename(&parent, mount.join("grandparent/renamed")).unwrap();
    mount.remount();
    assert_all(&mount, "with the parent renamed");
    fs::rename(mount.join("grandparent"), mount.join("moved")).unwrap();
    rustix::fs::syncfs(File::open(mount.path()).unwrap()).unwrap();
    mount.kill();
    mount.mount();
    assert_all(&mount, "with the grandparent renamed, after a crash");
}

/// The inode table gives its last segments back; when it grows again, their generations are gone.
#[test]
fn a_reused_inode_number_has_another_generation_even_if_the_table_shrank() {
    const FILES: usize = 10_000;
    let region = Region::create(&DeviceSpec::Memory, 128 << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let clock = std::sync::Arc::new(pmem::clock::coarse_now_ns);
    let fs = FileSystem::mount(region, MountOptions { clock, ..MountOptions::default() }).unwrap();
    let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
    let name = |file: usize| file.to_string().into_bytes();
    let make_all = || -> Vec<(u64, u32)> {
        let make = |file| fs.create(InodeNumber::ROOT, &name(file), &new).unwrap();
        (0..FILES).map(make).map(|attr| (attr.ino.0, attr.generation)).collect()
    };
    let mut met = HashSet::new();
    for round in 0..3 {
        let made = make_all();
        let again = made.iter().filter(|file| !met.insert(**file)).count();
        assert_eq!(again, 0, "round {round}: number and generation as a file had them that is gone");
        (0..FILES).for_each(|file| fs.unlink(InodeNumber::ROOT, &name(file)).unwrap());
        fs.trim().unwrap();
    }
}
