//! Mounts made from Rust, used through the kernel. They need root and /dev/fuse; with CI=true they fail without.

#[allow(dead_code)] // `main`
#[path = "../examples/mount.rs"]
mod example;

use nvfold::{FileSystem, InodeNumber, MkfsOptions, MountOptions};
use nvfold_mount::{Error, Mount, MountFlags, Options, mounts};
use pmem::{DeviceSpec, OpenOptions, Region};
use rustix::mount::UnmountFlags;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::thread;

/// Returns whether this machine can mount. Says why not; under CI that is a failure.
fn can_mount() -> bool {
    let missing = match (Path::new("/dev/fuse").exists(), rustix::process::geteuid().is_root()) {
        (false, _) => "/dev/fuse is missing",
        (_, false) => "root is needed",
        _ => return true,
    };
    assert!(std::env::var_os("CI").is_none(), "cannot mount: {missing}");
    eprintln!("skipped: {missing}");
    false
}

fn file_system() -> FileSystem {
    let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    FileSystem::mount(region, MountOptions::default()).unwrap()
}

fn is_mounted(dir: &Path) -> bool {
    mounts::at(dir).is_some()
}

#[test]
fn the_example_stores_a_copy_once() {
    if can_mount() {
        let dir = tempfile::tempdir().unwrap();
        let told = example::share_a_copy(dir.path()).unwrap();
        assert_eq!(told, "2048 KiB in files, 1024 KiB stored, 1024 KiB saved");
        assert!(!is_mounted(dir.path()));
    }
}

#[test]
fn a_mount_in_use_refuses_to_unmount_and_ends_with_its_last_file_when_it_is_dropped() {
    if !can_mount() {
        return;
    }
    let (fs, dir) = (file_system(), tempfile::tempdir().unwrap());
    let mut mount = Mount::new(fs.clone(), dir.path(), Options::default()).unwrap();
    let mut file = File::create(dir.path().join("file")).unwrap();
    let Err(Error::Unmount { source, .. }) = mount.unmount() else { panic!("a file is open") };
    assert_eq!(source.kind(), ErrorKind::ResourceBusy);
    assert!(is_mounted(dir.path()));
    let dropping = thread::spawn(move || drop(mount));
    while is_mounted(dir.path()) {
        thread::yield_now();
    }
    file.write_all(b"written after it was detached").unwrap();
    drop(file);
    dropping.join().unwrap();
    let attr = fs.lookup(InodeNumber::ROOT, b"file").unwrap();
    assert_eq!(attr.size, 29, "what the kernel had cached is stored");
    fs.unmount().unwrap();
}

#[test]
fn a_mount_unmounted_by_others_ends_without_touching_the_next_one() {
    if !can_mount() {
        return;
    }
    let (fs, dir) = (file_system(), tempfile::tempdir().unwrap());
    let mut first = Mount::new(fs.clone(), dir.path(), Options::default()).unwrap();
    fs::write(dir.path().join("file"), "kept").unwrap();
    rustix::mount::unmount(dir.path(), UnmountFlags::empty()).unwrap();
    first.wait().unwrap();
    let read_only = Options { flags: MountFlags::RDONLY, source: "again".into(), ..Options::default() };
    let second = Mount::new(fs.clone(), dir.path(), read_only).unwrap();
    first.unmount().unwrap();
    drop(first);
    assert_eq!(mounts::at(dir.path()).unwrap().source, "again");
    assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "kept");
    let refused = fs::write(dir.path().join("file"), "").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    assert!(second.counters().now().reads > 0);
    drop(second);
    assert!(!is_mounted(dir.path()));
}

#[test]
fn mounting_on_a_missing_directory_fails_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let error = Mount::new(file_system(), &missing, Options::default()).err().unwrap();
    assert!(matches!(&error, Error::Mount { source, .. } if source.kind() == ErrorKind::NotFound), "{error}");
    assert!(error.to_string().starts_with(&format!("mount on {}: ", missing.display())), "{error}");
}
