//! Wrong input: devices, names, sizes, and callers. It must cause no panic and no hang, but an error that says what
//! is wrong and why.

use std::path::Path;

use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::superblock::COPIES;
use nvfold::{
    AllocateMode, DEVICE_BYTES_MIN, Error, FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions, Policy,
    RenameMode, SetAttr, Superblock, Whence, XattrMode, errno,
};
use nvfold_tests::device::{self, Device};
use nvfold_tests::mount::{self, Mount, nvfold};
use nvfold_tests::random::Seed;
use nvfold_tests::scratch::Scratch;
use nvfold_tests::{requires, run};
use zerocopy::{FromBytes, IntoBytes};

const ROOT: InodeNumber = InodeNumber::ROOT;

// --- devices -------------------------------------------------------------------------------------

/// A device with one file whose content is known.
fn device_with_a_file() -> Device {
    let device = Device::fresh(32);
    let fs = device.mount(Policy::Inline);
    let ino = fs.create(ROOT, b"file", &device::regular()).expect("create").ino;
    fs.open(ino).expect("open").write_at(0, &[5; 50_000]).expect("write");
    fs.unmount().expect("unmount");
    device
}

fn assert_file_is_whole(fs: &FileSystem) {
    let ino = fs.lookup(ROOT, b"file").expect("look up").ino;
    let mut content = vec![0; 60_000];
    assert_eq!(fs.open(ino).expect("open").read_at(0, &mut content).expect("read"), 50_000);
    assert!(content[..50_000].iter().all(|&byte| byte == 5));
}

fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).expect("read the device");
    change(&mut bytes);
    std::fs::write(path, bytes).expect("write the device");
}

fn edit_superblocks(path: &Path, copies: &[u64], change: impl Fn(&mut Superblock)) {
    edit(path, |bytes| {
        for &at in copies {
            let bytes = &mut bytes[at as usize..at as usize + size_of::<Superblock>()];
            let mut superblock = Superblock::read_from_bytes(&*bytes).expect("a superblock's bytes");
            change(&mut superblock);
            bytes.copy_from_slice(superblock.as_bytes());
        }
    });
}

fn refusal(device: &Device) -> Error {
    match device.try_mount(device::options()) {
        Ok(_) => panic!("mounted"),
        Err(error) => error,
    }
}

/// Checks that every command that opens a device refuses this one, with an error that names it.
fn assert_commands_refuse(path: &Path) {
    let scratch = Scratch::new();
    let dir = scratch.join("mnt");
    std::fs::create_dir(&dir).expect("mkdir");
    let refused = |outcome: run::Outcome| {
        assert!(!outcome.status.success(), "{}", outcome.report());
        assert!(outcome.status.code().is_some(), "ended by a signal: {}", outcome.report());
        assert!(!outcome.stderr.contains("panicked"), "{}", outcome.report());
        let name = path.file_name().expect("a file name").to_string_lossy();
        assert!(outcome.stderr.contains(&*name), "names the device: {}", outcome.report());
    };
    refused(nvfold(&["mount", "--foreground"], &[path, &dir]));
    refused(nvfold(&["info"], &[path]));
    let checked = nvfold(&["fsck"], &[path]);
    assert!([4, 8, 12].contains(&checked.code()), "{}", checked.report());
}

#[test]
fn mounting_a_file_that_is_no_device_is_refused() {
    let device = Device::blank(32 << 20);
    let mut random = vec![0; 32 << 20];
    Seed::new("noise").generator().fill(&mut random);
    let contents = [vec![0; 32 << 20], b"text\n".repeat((32 << 20) / 5 / 4096 * 4096), random];
    for mut content in contents {
        content.truncate(content.len() / 4096 * 4096);
        std::fs::write(device.path(), &content).expect("write");
        let error = refusal(&device);
        assert!(matches!(error, Error::NotNvfold { .. }), "{error}");
        assert_eq!(error.errno(), errno::EINVAL);
        assert!(device::check(device.path(), true).is_err() || !content.is_empty());
        assert!(std::fs::read(device.path()).expect("read") == content, "fsck changes no foreign file");
    }
    assert_commands_refuse(device.path());
}

#[test]
fn paths_that_cannot_be_a_device_are_refused() {
    let scratch = Scratch::new();
    for path in [scratch.path().to_owned(), scratch.join("absent"), "/dev/null".into(), "/dev/zero".into()] {
        assert!(device::region_of(&path).is_err(), "{} is no device", path.display());
        assert_commands_refuse(&path);
    }
    std::fs::write(scratch.join("empty"), b"").expect("write");
    assert!(device::region_of(&scratch.join("empty")).is_err(), "an empty file is no device");
    assert_commands_refuse(&scratch.join("empty"));
}

#[test]
fn a_truncated_device_is_refused() {
    let whole = device_with_a_file();
    let bytes = std::fs::read(whole.path()).expect("read");
    for len in [512, 4096, 8192, 100_000, 1 << 20, SEGMENT_BYTES as usize, 16 << 20, (32 << 20) - 4096] {
        let device = Device::blank(0);
        std::fs::write(device.path(), &bytes[..len]).expect("write");
        let error = refusal(&device);
        assert!(error.errno() == errno::EINVAL || error.errno() == errno::EIO, "{len} bytes: {error}");
        assert!(!matches!(device::check(device.path(), false), Ok(findings) if findings.is_empty()));
    }
    edit(whole.path(), |bytes| bytes.truncate(20 << 20));
    assert_commands_refuse(whole.path());
}

#[test]
fn a_device_with_one_corrupt_superblock_mounts_and_is_repaired() {
    for at in COPIES {
        for damage in [0..512usize, 0..4096, 100..101] {
            let device = device_with_a_file();
            edit(device.path(), |bytes| {
                bytes[damage.start + at as usize..damage.end + at as usize].iter_mut().for_each(|byte| *byte ^= 0x5A);
            });
            let found = device::check(device.path(), false).expect("fsck");
            assert_eq!(found.is_empty(), damage.start >= 512, "fsck sees the damaged copy at {at}: {found:?}");
            let fs = device.mount(Policy::Inline);
            assert_file_is_whole(&fs);
            fs.unmount().expect("unmount");
            device::check(device.path(), true).expect("repair");
            device.check();
        }
    }
}

#[test]
fn three_corrupt_superblocks_are_refused_and_two_are_not() {
    let device = device_with_a_file();
    let last = std::fs::metadata(device.path()).expect("the device").len() - 4096;
    let spoil =
        |copies: &[u64]| edit_superblocks(device.path(), copies, |superblock| superblock.device_bytes ^= 1 << 13);
    spoil(&COPIES);
    device.try_mount(device::options()).expect("the third is whole").unmount().expect("unmount");
    spoil(&[COPIES[0], COPIES[1], last]);
    let error = refusal(&device);
    assert!(matches!(error, Error::NoSuperblock { .. } | Error::Truncated { .. } | Error::NotNvfold { .. }), "{error}");
    assert_commands_refuse(device.path());
}

#[test]
fn a_newer_feature_or_format_version_is_refused_as_newer() {
    for change in
        [(|superblock: &mut Superblock| superblock.incompatible |= 1 << 40) as fn(&mut Superblock), |superblock| {
            superblock.version += 1
        }]
    {
        let device = device_with_a_file();
        edit_superblocks(device.path(), &COPIES, |superblock| {
            change(superblock);
            *superblock = superblock.sealed();
        });
        let error = refusal(&device);
        assert!(matches!(error, Error::Newer { .. }), "{error}");
        assert!(error.to_string().contains("newer"), "{error}");
        assert_commands_refuse(device.path());
    }
}

#[test]
fn an_unknown_feature_for_writers_allows_reading() {
    let device = device_with_a_file();
    edit_superblocks(device.path(), &COPIES, |superblock| {
        superblock.read_only_compatible |= 1 << 40;
        *superblock = superblock.sealed();
    });
    assert!(matches!(refusal(&device), Error::Newer { .. }));
    let fs = device.try_mount(MountOptions { read_only: true, ..device::options() }).expect("mount for reading");
    assert_file_is_whole(&fs);
}

#[test]
fn device_sizes_that_cannot_be_formatted_are_refused() {
    let mkfs = |device: &Device| {
        device.region().map_err(Error::from).and_then(|region| FileSystem::mkfs(&region, &MkfsOptions::default()))
    };
    for bytes in [0, 1, 4095, 4096, 1 << 20, DEVICE_BYTES_MIN - 4096, DEVICE_BYTES_MIN + 1, (64 << 20) + 512] {
        let device = Device::blank(bytes);
        let error = mkfs(&device).expect_err("refused");
        assert_eq!(error.errno(), errno::EINVAL, "{bytes} bytes: {error}");
    }
    mkfs(&Device::blank(DEVICE_BYTES_MIN)).expect("the smallest device");
    let scratch = Scratch::new();
    let path = scratch.join("small");
    for size in ["0", "4096", "1M", "nonsense", "-5", "99999999999999999999", "17T"] {
        let outcome = nvfold(&["mkfs", "--size", size], &[&path]);
        assert!(!outcome.status.success() && !outcome.stderr.contains("panicked"), "{}", outcome.report());
    }
}

#[test]
fn a_formatted_device_is_not_formatted_again_by_mistake() {
    let device = device_with_a_file();
    assert!(device.mkfs().is_err(), "mkfs without force");
    assert!(!nvfold(&["mkfs"], &[device.path()]).status.success());
    assert_file_is_whole(&device.mount(Policy::Off));
    let options = MkfsOptions { force: true, now: device::now(), ..MkfsOptions::default() };
    FileSystem::mkfs(&device.region().expect("map"), &options).expect("mkfs with force");
    let fs = device.mount(Policy::Off);
    assert_eq!(fs.lookup(ROOT, b"file").expect_err("it is gone").errno(), errno::ENOENT);
    fs.unmount().expect("unmount");
    device.check();
}

#[test]
fn a_device_has_one_owner() {
    let device = device_with_a_file();
    let fs = device.mount(Policy::Inline);
    let error = refusal(&device);
    assert_eq!(error.errno(), errno::EBUSY, "{error}");
    let owner = std::process::id().to_string();
    assert!(error.to_string().contains(&owner), "names the owner {owner}: {error}");
    for words in [&["mkfs", "--force"][..], &["fsck"], &["fsck", "--repair"]] {
        let outcome = nvfold(words, &[device.path()]);
        assert!(!outcome.status.success() && outcome.stderr.contains(&owner), "{}", outcome.report());
    }
    assert_file_is_whole(&fs);
    fs.unmount().expect("unmount");
    device.check();
}

#[test]
fn a_mounted_device_is_not_mounted_again() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    if !mount.is_real() {
        return;
    }
    let other = mount.scratch().join("other");
    std::fs::create_dir(&other).expect("mkdir");
    for words in [&["mount"][..], &["mount", "--foreground"]] {
        let outcome = nvfold(words, &[mount.device(), &other]);
        assert!(!outcome.status.success(), "{}", outcome.report());
        assert!(outcome.stderr.contains("in use"), "{}", outcome.report());
    }
    std::fs::write(mount.join("still"), b"alive").expect("write");
    mount.check();
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let device = device_with_a_file();
    let before = std::fs::read(device.path()).expect("read");
    let fs = device.try_mount(MountOptions { read_only: true, ..device::options() }).expect("mount");
    assert!(fs.is_read_only());
    assert_file_is_whole(&fs);
    let ino = fs.lookup(ROOT, b"file").expect("look up").ino;
    let file = fs.open(ino).expect("open");
    let link = device::new_inode(FileKind::Symlink, 0o777);
    let attempts = [
        ("create", fs.create(ROOT, b"new", &device::regular()).err()),
        ("mkdir", fs.mkdir(ROOT, b"new", &device::directory()).err()),
        ("symlink", fs.symlink(ROOT, b"new", b"target", &link).err()),
        ("link", fs.link(ino, ROOT, b"new").err()),
        ("unlink", fs.unlink(ROOT, b"file").err()),
        ("rename", fs.rename(ROOT, b"file", ROOT, b"new", RenameMode::Replace).err()),
        ("setattr", fs.setattr(ino, &SetAttr { mode: Some(0), ..SetAttr::default() }).err()),
        ("set_xattr", fs.set_xattr(ino, b"user.a", b"b", XattrMode::Set).err()),
        ("remove_xattr", fs.remove_xattr(ino, b"user.a").err()),
        ("tmpfile", fs.tmpfile(&device::regular()).err()),
        ("write", file.write_at(0, b"x").err()),
        ("append", file.append(b"x").err()),
        ("set_len", file.set_len(1).err()),
        ("allocate", file.allocate(0, 10, AllocateMode::PunchHole).err()),
        ("clone", file.clone_from(&file, 0, 100_000, 10).err()),
    ];
    for (what, error) in attempts {
        let error = error.unwrap_or_else(|| panic!("{what} succeeded"));
        assert_eq!(error.errno(), errno::EROFS, "{what}: {error}");
    }
    drop(file);
    fs.unmount().expect("unmount");
    assert!(std::fs::read(device.path()).expect("read") == before, "the device is as it was");
}

#[test]
fn a_read_only_file_is_mounted_read_only() {
    requires!(root, fuse);
    let device = device_with_a_file();
    let (source, view, mnt) = (device.scratch().path().to_owned(), Scratch::new(), Scratch::new());
    // Only a read-only bind mount stops root from writing. The script mounts it in a separate mount namespace, so
    // nothing is left behind.
    let script = format!(
        r#"mount --bind "{source}" "{view}"
           mount -o remount,bind,ro "{view}"
           if "$NVFOLD" mount --foreground "{view}/device" "{mnt}"; then echo mounted for writing; fi
           "$NVFOLD" fsck "{view}/device" || echo "fsck failed with $?"
           if "$NVFOLD" mkfs --force "{view}/device"; then echo formatted; fi"#,
        source = source.display(),
        view = view.path().display(),
        mnt = mnt.path().display(),
    );
    let outcome = run::run(&mut mount::in_own_namespace(&source, &script));
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.report());
    for said in ["mounted for writing", "fsck failed", "formatted"] {
        assert!(!outcome.stdout.contains(said), "{}", outcome.report());
    }
    assert_file_is_whole(&device.mount(Policy::Off));
}

// --- names and paths -----------------------------------------------------------------------------

#[test]
fn invalid_names_are_refused_and_all_others_accepted() {
    let device = Device::fresh(32);
    let fs = device.mount(Policy::Off);
    let longest = vec![b'n'; 255];
    let long = vec![b'n'; 256];
    let ino = fs.create(ROOT, &longest, &device::regular()).expect("255 bytes").ino;
    let link = device::new_inode(FileKind::Symlink, 0o777);
    let errors = [
        fs.create(ROOT, &long, &device::regular()).err(),
        fs.mkdir(ROOT, &long, &device::directory()).err(),
        fs.symlink(ROOT, &long, b"target", &link).err(),
        fs.link(ino, ROOT, &long).err(),
        fs.rename(ROOT, &longest, ROOT, &long, RenameMode::Replace).err(),
    ];
    for error in errors {
        assert_eq!(error.expect("256 bytes are too many").errno(), errno::ENAMETOOLONG);
    }
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"nul\0", b"\0"] {
        assert!(fs.create(ROOT, name, &device::regular()).is_err(), "create {name:?}");
        assert!(fs.mkdir(ROOT, name, &device::directory()).is_err(), "mkdir {name:?}");
        assert!(fs.link(ino, ROOT, name).is_err(), "link {name:?}");
        assert!(fs.rename(ROOT, &longest, ROOT, name, RenameMode::Replace).is_err(), "rename {name:?}");
    }
    for name in [&b"\xff\xfe"[..], b" ", b"\n", b"-rf", b"...", "\u{1F980}".as_bytes(), b"\x80\x80"] {
        let attr = fs.create(ROOT, name, &device::regular()).expect("any other bytes are a name");
        assert_eq!(fs.lookup(ROOT, name).expect("look up").ino, attr.ino);
    }
    fs.unmount().expect("unmount");
    device.check();
}

#[test]
fn a_directory_is_not_moved_into_itself() {
    let device = Device::fresh(32);
    let fs = device.mount(Policy::Off);
    let mut dirs = vec![ROOT];
    for depth in 0..20 {
        let parent = dirs[depth];
        dirs.push(fs.mkdir(parent, b"d", &device::directory()).expect("mkdir").ino);
    }
    #[expect(clippy::needless_range_loop, reason = "the depth is what is tested")]
    for depth in 1..20 {
        let error = fs.rename(ROOT, b"d", dirs[depth], b"x", RenameMode::Replace).expect_err("into its own child");
        assert_eq!(error.errno(), errno::EINVAL);
    }
    fs.create(ROOT, b"file", &device::regular()).expect("create");
    let error = fs.rename(dirs[5], b"d", ROOT, b"d", RenameMode::Exchange).expect_err("swapped with its ancestor");
    assert_eq!(error.errno(), errno::EINVAL);
    let error = fs.rename(dirs[5], b"d", ROOT, b"d", RenameMode::Replace).expect_err("over its ancestor");
    assert_eq!(error.errno(), errno::ENOTEMPTY);
    assert_eq!(fs.parent(dirs[7]).expect("parent"), dirs[6]);
    fs.unmount().expect("unmount");
    device.check();
}

#[test]
fn unused_inode_numbers_are_refused() {
    let device = Device::fresh(32);
    let fs = device.mount(Policy::Off);
    for number in [0, 2, 3, 4096, 1 << 20, 1 << 40, 1 << 63, u64::MAX] {
        let ino = InodeNumber(number);
        assert!(fs.getattr(ino).is_err(), "{number}");
        assert!(fs.open(ino).is_err(), "{number}");
        assert!(fs.lookup(ino, b"x").is_err(), "{number}");
        assert!(fs.readlink(ino).is_err(), "{number}");
        assert!(fs.link(ino, ROOT, b"x").is_err(), "{number}");
        assert!(fs.create(ino, b"x", &device::regular()).is_err(), "{number}");
        assert!(fs.readdir(ino, 0, &mut |_| true).is_err(), "{number}");
        assert!(fs.set_xattr(ino, b"user.x", b"", XattrMode::Set).is_err(), "{number}");
    }
}

// --- sizes ---------------------------------------------------------------------------------------

#[test]
fn sizes_near_the_integer_limits_are_refused_or_served() {
    let device = Device::fresh(32);
    let fs = device.mount(Policy::Inline);
    let ino = fs.create(ROOT, b"file", &device::regular()).expect("create").ino;
    let file = fs.open(ino).expect("open");
    let edges = [63u32, 62, 56, 52, 48, 44, 43, 40].map(|bit| 1u64 << bit);
    let offsets = edges.iter().flat_map(|&edge| [edge - 4096, edge - 1, edge, edge + 1]);
    for offset in offsets.chain([u64::MAX - 4096, u64::MAX - 1, u64::MAX]) {
        let too_far = offset > i64::MAX as u64;
        let expect = |what: &str, result: nvfold::Result<()>, refused: bool| match result {
            Ok(()) => assert!(!refused, "{what} at {offset:#x} succeeded"),
            Err(error) => {
                let number = error.errno();
                assert!([errno::EFBIG, errno::EINVAL].contains(&number), "{what} at {offset:#x}: {error}");
            }
        };
        expect("write", file.write_at(offset, b"0123456789"), offset > i64::MAX as u64 - 10);
        expect("set the length", file.set_len(offset), too_far);
        expect("punch", file.allocate(offset, 4096, AllocateMode::PunchHole), offset > i64::MAX as u64 - 4096);
        expect("zero", file.allocate(offset, 10, AllocateMode::ZeroRange), offset > i64::MAX as u64 - 10);
        expect("punch it all", file.allocate(0, offset, AllocateMode::PunchHole), too_far);
        expect("clone", file.clone_from(&file, 0, offset, 4096).map(drop), offset > i64::MAX as u64 - 4096);
        expect("clone from", file.clone_from(&file, offset, 0, 4096).map(drop), false);
        let mut buffer = [0; 100];
        let count = file.read_at(offset, &mut buffer).unwrap_or(0);
        assert!(count as u64 <= file.attr().size.saturating_sub(offset));
        if let Ok(data) = file.seek(offset, Whence::Data) {
            assert!(offset <= data && data < file.attr().size);
        }
        let _ = file.seek(offset, Whence::Hole);
    }
    for (offset, len) in [(u64::MAX, u64::MAX), (1, u64::MAX), (1 << 62, 1 << 62), (0, 0), (5, 0)] {
        for mode in [AllocateMode::Reserve, AllocateMode::PunchHole, AllocateMode::ZeroRangeKeepSize] {
            if let Err(error) = file.allocate(offset, len, mode) {
                let fair = [errno::EFBIG, errno::EINVAL, errno::ENOSPC];
                assert!(fair.contains(&error.errno()), "{mode:?} {offset:#x}+{len:#x}: {error}");
            }
        }
        let _ = file.clone_from(&file, offset, len, offset);
    }
    let reserve = file.allocate(0, 1 << 50, AllocateMode::Reserve).expect_err("a pebibyte");
    assert!([errno::ENOSPC, errno::EFBIG].contains(&reserve.errno()), "{reserve}");
    file.set_len(0).expect("truncate");
    file.write_at(0, b"still well").expect("write");
    drop(file);
    fs.unmount().expect("unmount");
    device.check();
}

#[test]
fn calls_on_the_wrong_kind_of_inode_are_refused() {
    let device = Device::fresh(32);
    let fs = device.mount(Policy::Off);
    let file = fs.create(ROOT, b"file", &device::regular()).expect("create").ino;
    let dir = fs.mkdir(ROOT, b"dir", &device::directory()).expect("mkdir").ino;
    let number = |result: nvfold::Result<()>| result.expect_err("refused").errno();
    assert_eq!(number(fs.lookup(file, b"x").map(drop)), errno::ENOTDIR);
    assert_eq!(number(fs.create(file, b"x", &device::regular()).map(drop)), errno::ENOTDIR);
    assert_eq!(number(fs.readdir(file, 0, &mut |_| true)), errno::ENOTDIR);
    assert_eq!(number(fs.readlink(file).map(drop)), errno::EINVAL);
    assert_eq!(number(fs.unlink(ROOT, b"dir")), errno::EISDIR);
    assert_eq!(number(fs.rmdir(ROOT, b"file")), errno::ENOTDIR);
    assert_eq!(number(fs.link(dir, ROOT, b"x").map(drop)), errno::EPERM);
    let opened = fs.open(dir).and_then(|dir| dir.write_at(0, b"x"));
    assert!([errno::EISDIR, errno::EINVAL].contains(&number(opened)));
    let opened = fs.open(dir).and_then(|dir| dir.read_at(0, &mut [0; 10]).map(drop));
    assert!([errno::EISDIR, errno::EINVAL].contains(&number(opened)));
    let sized = fs.setattr(dir, &SetAttr { size: Some(0), ..SetAttr::default() }).map(drop);
    assert!([errno::EISDIR, errno::EINVAL].contains(&number(sized)));
}
