//! Removed trees: gone at once, freed in steps, whatever they hold and whenever the machine stops.

use crate::check::noise;
use nvfold::check::{CheckOptions, check};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};

const DEVICE_BYTES: u64 = 32 << 20;
const ROOT: InodeNumber = InodeNumber::ROOT;

fn device() -> Region {
    let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    region
}

/// What a crash leaves now, if all that was stored is on the media.
fn crashed(region: &Region) -> Region {
    let copy = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
    let mut bytes = vec![0; DEVICE_BYTES as usize];
    region.read_into(0, &mut bytes);
    let _ = copy.fence(copy.write(0, &bytes[..]).flush());
    copy
}

fn mount(region: &Region) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions { policy: Policy::Inline, ..MountOptions::default() }).unwrap()
}

fn new(kind: FileKind) -> NewInode {
    NewInode { kind, mode: 0o755, uid: 0, gid: 0, rdev: 0 }
}

fn mkdir(fs: &FileSystem, parent: InodeNumber, name: &str) -> InodeNumber {
    fs.mkdir(parent, name.as_bytes(), &new(FileKind::Directory)).unwrap().ino
}

fn file(fs: &FileSystem, parent: InodeNumber, name: &str, content: &[u8]) -> File {
    let file = fs.open(fs.create(parent, name.as_bytes(), &new(FileKind::Regular)).unwrap().ino).unwrap();
    file.write_at(0, content).unwrap();
    file
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.attr().size as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn names(fs: &FileSystem, directory: InodeNumber) -> Vec<String> {
    let mut names = Vec::new();
    let mut add = |entry: DirEntry| {
        names.push(String::from_utf8(entry.name).unwrap());
        true
    };
    fs.readdir(directory, 0, &mut add).unwrap();
    names
}

fn free_all(fs: &FileSystem) {
    while !fs.remove_step().unwrap() {}
    assert_eq!(fs.stats().removing, Removing::default());
}

/// Unmounts; fsck finds nothing.
fn unmount(region: &Region, fs: FileSystem) {
    fs.unmount().unwrap();
    let report = check(region, &CheckOptions::default()).unwrap();
    assert!(report.clean && report.findings.is_empty() && report.recoverable == 0, "{report:#?}");
}

/// A tree `old` with files, subdirectories, attributes, a symlink, and hard links within and to `kept`.
fn plant(fs: &FileSystem) {
    let old = mkdir(fs, ROOT, "old");
    for at in 0..300 {
        drop(file(fs, old, &format!("file {at}"), &noise(at, 100 + 40 * at as usize)));
    }
    let within = file(fs, old, "one of two", b"within").ino();
    let mut parent = old;
    for at in 0..5 {
        parent = mkdir(fs, parent, &format!("deeper {at}"));
        drop(file(fs, parent, "leaf", &noise(at, 9000)));
        fs.link(within, parent, format!("another {at}").as_bytes()).unwrap();
    }
    fs.set_xattr(parent, b"user.long", &noise(3, 20_000), XattrMode::Set).unwrap();
    fs.symlink(parent, b"symlink", b"leaf", &new(FileKind::Symlink)).unwrap();
    let kept = file(fs, ROOT, "kept", b"kept").ino();
    fs.link(kept, old, b"a name of kept").unwrap();
    fs.link(kept, parent, b"another name of kept").unwrap();
}

#[test]
fn a_removed_tree_is_gone_at_once_and_its_space_comes_back_in_steps() {
    let region = device();
    let fs = mount(&region);
    let before = fs.stats();
    plant(&fs);
    let old = fs.lookup(ROOT, b"old").unwrap().ino;
    fs.remove_tree(ROOT, b"old").unwrap();
    assert_eq!(names(&fs, ROOT), ["kept"]);
    assert_eq!(names(&fs, old), [""; 0]);
    assert!(matches!(fs.lookup(old, b"leaf"), Err(Error::Posix { errno: errno::ENOENT, .. })));
    assert!(matches!(fs.create(old, b"new", &new(FileKind::Regular)), Err(Error::Posix { errno: errno::ENOENT, .. })));
    assert!(fs.stats().removing.directories > 0);
    let mut steps = 0;
    while !fs.remove_step().unwrap() {
        steps += 1;
    }
    assert!(steps > 10, "each step is bounded: {steps}");
    let (kept, after) = (fs.resolve(b"kept").unwrap(), fs.stats());
    assert_eq!((kept.nlink, content(&fs.open(kept.ino).unwrap())), (1, b"kept".to_vec()));
    assert_eq!((after.inodes, after.removing), (before.inodes + 1, Removing::default()));
    fs.unlink(ROOT, b"kept").unwrap();
    let end = fs.stats();
    assert_eq!((end.stored_bytes, end.logical_bytes, end.log_areas), (0, 0, before.log_areas));
    unmount(&region, fs);
}

#[test]
fn an_unmount_frees_the_removed_trees_that_are_left() {
    let region = device();
    let fs = mount(&region);
    plant(&fs);
    fs.remove_tree(ROOT, b"old").unwrap();
    unmount(&region, fs);
    let fs = mount(&region);
    assert_eq!((fs.stats().inodes, fs.stats().stored_bytes), (2, 4096));
    unmount(&region, fs);
}

/// After each step, and before the first.
#[test]
fn after_a_crash_at_any_step_of_a_removal_recovery_goes_on_with_it() {
    let region = device();
    let fs = mount(&region);
    plant(&fs);
    fs.remove_tree(ROOT, b"old").unwrap();
    let mut is_done = false;
    while !is_done {
        let copy = crashed(&region);
        is_done = fs.remove_step().unwrap();
        let report = check(&copy, &CheckOptions::default()).unwrap();
        assert!(report.findings.is_empty() && !report.clean, "{report:#?}");
        let recovered = mount(&copy);
        recovered.reconcile().unwrap();
        free_all(&recovered);
        let stats = recovered.stats();
        assert_eq!((stats.inodes, stats.stored_bytes, stats.recovery.unreadable), (2, 4096, 0));
        let kept = recovered.resolve(b"kept").unwrap();
        assert_eq!((kept.nlink, content(&recovered.open(kept.ino).unwrap())), (1, b"kept".to_vec()));
        unmount(&copy, recovered);
    }
    unmount(&region, fs);
}

#[test]
fn fsck_repairs_the_crash_of_a_removal_and_moves_nothing() {
    let region = device();
    let fs = mount(&region);
    plant(&fs);
    fs.remove_tree(ROOT, b"old").unwrap();
    assert!(!fs.remove_step().unwrap() && !fs.remove_step().unwrap());
    let copy = crashed(&region);
    let report = check(&copy, &CheckOptions::default()).unwrap();
    assert!(report.is_consistent() && report.unfinished == 6 && report.recoverable > 0, "{report:#?}");
    let repaired = check(&copy, &CheckOptions { repair: true, data: true }).unwrap();
    assert!(repaired.is_consistent() && repaired.moved.is_empty() && repaired.given_up.is_empty(), "{repaired:#?}");
    let recovered = mount(&copy);
    assert_eq!((names(&recovered, ROOT), recovered.stats().inodes), (vec!["kept".into()], 2));
    unmount(&copy, recovered);
    unmount(&region, fs);
}

#[test]
fn open_files_and_directories_of_a_removed_tree_live_on_until_they_are_closed() {
    let region = device();
    let fs = mount(&region);
    plant(&fs);
    let (old, leaf) = (fs.resolve(b"old").unwrap().ino, fs.resolve(b"old/deeper 0/leaf").unwrap().ino);
    let file_5 = fs.open(fs.resolve(b"old/file 5").unwrap().ino).unwrap();
    let (leaf, old) = (fs.open(leaf).unwrap(), fs.open(old).unwrap());
    fs.remove_tree(ROOT, b"old").unwrap();
    free_all(&fs);
    assert_eq!(fs.stats().inodes, 2 + 3);
    assert!(content(&leaf) == noise(0, 9000) && content(&file_5) == noise(5, 300));
    file_5.write_at(300, b"more").unwrap();
    assert_eq!((leaf.attr().nlink, file_5.attr().nlink, old.attr().nlink), (0, 0, 0));
    assert_eq!(names(&fs, old.ino()), [""; 0]);
    drop((leaf, file_5, old));
    assert_eq!((fs.stats().inodes, fs.stats().stored_bytes), (2, 4096));
    unmount(&region, fs);
}

/// A file of which only the removed directory has a name can get no other one once its turn has come.
#[test]
fn a_link_to_a_file_of_a_removed_tree_either_keeps_the_file_or_fails() {
    let region = device();
    let fs = mount(&region);
    plant(&fs);
    let (early, late) = (fs.resolve(b"old/file 1").unwrap().ino, fs.resolve(b"old/file 2").unwrap().ino);
    fs.remove_tree(ROOT, b"old").unwrap();
    fs.link(early, ROOT, b"saved").unwrap();
    assert!(!fs.remove_step().unwrap() && !fs.remove_step().unwrap());
    assert!(matches!(fs.link(late, ROOT, b"too late"), Err(Error::NotFound { .. })));
    free_all(&fs);
    let saved = fs.resolve(b"saved").unwrap();
    assert_eq!((saved.nlink, content(&fs.open(saved.ino).unwrap()) == noise(1, 140)), (1, true));
    unmount(&region, fs);
}

#[test]
fn a_write_without_space_gets_that_of_a_removed_tree() {
    let region = device();
    let fs = mount(&region);
    let old = mkdir(&fs, ROOT, "old");
    let mut at = 0;
    let full = loop {
        let file = fs.open(fs.create(old, format!("{at}").as_bytes(), &new(FileKind::Regular)).unwrap().ino).unwrap();
        if let Err(error) = file.write_at(0, &noise(at, 1 << 18)) {
            break error;
        }
        at += 1;
    };
    assert!(matches!(full, Error::NoSpace { .. }), "{full:?}");
    fs.remove_tree(ROOT, b"old").unwrap();
    let new = file(&fs, ROOT, "new", &noise(7, 1 << 20));
    assert!(content(&new) == noise(7, 1 << 20));
    drop(new);
    unmount(&region, fs);
}

#[test]
fn a_removal_fails_for_a_file_and_for_a_missing_name() {
    let region = device();
    let fs = mount(&region);
    drop(file(&fs, ROOT, "file", b"1"));
    let errno_of = |name: &[u8]| fs.remove_tree(ROOT, name).unwrap_err().errno();
    assert_eq!(errno_of(b"file"), errno::ENOTDIR);
    assert_eq!(errno_of(b"none"), errno::ENOENT);
    assert_eq!((errno_of(b"."), errno_of(b"..")), (errno::EINVAL, errno::EINVAL));
    mkdir(&fs, ROOT, "empty");
    fs.remove_tree(ROOT, b"empty").unwrap();
    assert_eq!((fs.stats().inodes, fs.stats().removing), (2, Removing::default()));
    let before = region.read::<Superblock>(0).incompatible;
    plant(&fs);
    fs.remove_tree(ROOT, b"old").unwrap();
    assert_eq!(region.read::<Superblock>(0).incompatible & !before & 128, 128, "an older nvfold must not mount it");
    unmount(&region, fs);
}
