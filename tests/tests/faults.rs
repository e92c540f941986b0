//! Devices that disappear under a process: a mount returns EIO and ends cleanly, an embedding program continues.
//!
//! `crates/nvfold/tests/faults.rs` tests the effects of bad memory, structure by structure.
//! `crates/pmem/tests/faults.rs` tests how the signal is recorded.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use nvfold::{Error, FileSystem, InodeNumber, MkfsOptions, Policy, errno};
use nvfold_tests::device::{self, Device};
use nvfold_tests::mount::{self, Mount};
use nvfold_tests::requires;
use nvfold_tests::scratch::Scratch;
use pmem::{DeviceSpec, OpenOptions, PmemError, Region};
use rustix::fs::OFlags;
use rustix::mount::{MountFlags, UnmountFlags};

const ROOT: InodeNumber = InodeNumber::ROOT;

fn truncate(device: &Path, bytes: u64) {
    File::options().write(true).open(device).expect("open the device").set_len(bytes).expect("truncate the device");
}

/// Opens a file past the page cache, so that every access reaches the file system.
fn open_direct(path: &Path) -> File {
    let direct = OFlags::DIRECT.bits() as i32;
    File::options().read(true).write(true).custom_flags(direct).open(path).expect("open")
}

#[track_caller]
fn assert_eio<T>(result: std::io::Result<T>) {
    let error = result.err().expect("EIO was expected");
    // After the mount has left the tree and its process is gone, the kernel returns other error numbers.
    assert_eq!(error.raw_os_error(), Some(errno::EIO), "{error}");
}

#[test]
fn the_mount_of_a_truncated_device_gives_eio_and_ends_cleanly() {
    requires!(root, fuse);
    // At the same time, because each mount waits some seconds for a file that stays open.
    std::thread::scope(|scope| {
        for policy in mount::POLICIES {
            scope.spawn(move || truncate_under_a_mount(policy));
        }
    });
}

fn truncate_under_a_mount(policy: &str) {
    let mut mount = Mount::fresh(64, policy);
    if !mount.is_real() {
        return;
    }
    std::fs::write(mount.join("file"), vec![7; 3 << 20]).expect("write");
    std::fs::create_dir(mount.join("dir")).expect("mkdir");
    rustix::fs::syncfs(File::open(mount.path()).expect("open")).expect("syncfs");
    let (one, two) = (open_direct(&mount.join("file")), open_direct(&mount.join("file")));
    truncate(mount.device(), 8192);
    assert_eio(one.read_exact_at(&mut [0; 4096], 1 << 20));
    assert_eio(one.write_all_at(&[1; 4096], 0));
    assert_eio(two.read_exact_at(&mut [0; 4096], 0));
    assert_eio(std::fs::create_dir(mount.join("new")));
    // A file that is still open must not keep the mount for ever.
    let status = mount.wait_until_ended();
    assert_eq!(status.code(), Some(1), "{status}\n{}", mount.log());
    assert!(!mount.is_in_tree(), "it left the tree");
    let log = mount.log();
    assert!(log.contains("is lost: it was truncated") && log.contains("ends"), "{log}");
    assert!(!log.contains("panicked") && !log.contains("internal error"), "{log}");
    assert!(one.read_exact_at(&mut [0; 4096], 0).is_err());
    assert_eq!(mount.device().metadata().expect("stat").len(), 8192, "nothing made it grow again");
    assert_eq!(mount.fsck().code(), 4, "and what is left of it is no file system");
}

#[test]
fn the_mount_of_a_truncated_device_ends_without_any_access() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    if !mount.is_real() {
        return;
    }
    truncate(mount.device(), 32 << 20);
    let status = mount.wait_until_ended();
    assert_eq!(status.code(), Some(1), "{status}\n{}", mount.log());
    assert!(!mount.is_in_tree());
    // The half that was cut off held nothing. With its size restored, the device is as after a crash.
    truncate(mount.device(), 64 << 20);
    mount.mount();
    std::fs::write(mount.join("file"), b"tea").expect("write");
    mount.check();
}

/// Not a test: a program that embeds the library. It writes until it fails, prints the error, and goes on with other
/// work.
#[test]
#[ignore = "started by another test as its child"]
fn child_that_embeds_a_device() {
    let Some(path) = std::env::var_os("NVFOLD_TEST_DEVICE") else { return };
    let region = device::region_of(Path::new(&path)).expect("map");
    let fs = FileSystem::mount(region, device::options()).expect("mount");
    let file = fs.open(fs.create(ROOT, b"file", &device::regular()).expect("create").ino).expect("open");
    println!("\nworking");
    let mut at = 0;
    let error = loop {
        match file.write_at(at % (4 << 20), &at.to_le_bytes().repeat(1000)) {
            Ok(()) => at += 8000,
            Err(error) => break error,
        }
    };
    let mut buffer = [0; 4096];
    let errors = [error, file.read_at(0, &mut buffer).expect_err("lost"), fs.lookup(ROOT, b"file").expect_err("lost")];
    drop(file);
    let unmounted = fs.unmount().expect_err("lost");
    assert!(errors.iter().all(|error| error.errno() == errno::EIO) && unmounted.errno() == errno::EIO);
    let other = Device::fresh(32).mount(Policy::Inline);
    other.create(ROOT, b"other", &device::regular()).expect("another device is well");
    println!("\nlives: {unmounted}");
}

#[test]
fn a_program_survives_the_loss_of_its_embedded_device() {
    for bytes in [0, 4096, 20 << 20] {
        let device = Device::fresh(64);
        let mut child = Command::new(std::env::current_exe().expect("own path"))
            .args(["tests::faults::child_that_embeds_a_device", "--exact", "--ignored", "--nocapture"])
            .env("NVFOLD_TEST_DEVICE", device.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the child");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "working"));
        truncate(device.path(), bytes);
        let last = lines.find(|line| line.starts_with("lives: ")).expect("it lives");
        assert!(last.contains("is lost: it was truncated"), "{last}");
        lines.for_each(drop);
        assert!(child.wait().expect("wait for the child").success());
    }
}

/// A tmpfs with a size limit, mounted for this test.
struct SmallHost {
    scratch: Scratch,
}

impl SmallHost {
    fn of(bytes: u64) -> SmallHost {
        let scratch = Scratch::new();
        let options = std::ffi::CString::new(format!("size={bytes}")).expect("no NUL");
        rustix::mount::mount("nvfold-test", scratch.path(), "tmpfs", MountFlags::empty(), options.as_c_str())
            .expect("mount a tmpfs");
        SmallHost { scratch }
    }

    fn grow(&self, bytes: u64) {
        let options = std::ffi::CString::new(format!("size={bytes}")).expect("no NUL");
        rustix::mount::mount_remount(self.scratch.path(), MountFlags::empty(), options.as_c_str()).expect("remount");
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.scratch.path(), UnmountFlags::DETACH);
    }
}

#[test]
fn a_host_without_memory_gives_eio_and_no_acknowledged_data_is_lost() {
    requires!(root);
    for policy in device::POLICIES {
        let host = SmallHost::of(24 << 20);
        let path = host.scratch.join("device");
        let create = || Region::create(&DeviceSpec::Path(path.clone()), 64 << 20, &OpenOptions::default());
        let region = create().expect("a sparse device is larger than its host");
        FileSystem::mkfs(&region, &MkfsOptions { now: device::now(), ..MkfsOptions::default() }).expect("mkfs");
        let mount = |region| FileSystem::mount(region, nvfold::MountOptions { policy, ..device::options() });
        let fs = mount(region).expect("mount");
        let content =
            |number: u64| -> Vec<u8> { (0..50_000u64).flat_map(|at| (at ^ number << 32).to_le_bytes()).collect() };
        let write = |number: u64| -> nvfold::Result<()> {
            let made = fs.create(ROOT, number.to_string().as_bytes(), &device::regular())?;
            fs.open(made.ino)?.write_at(0, &content(number))
        };
        let (acknowledged, error) = (0..).find_map(|number| Some((number, write(number).err()?))).expect("some time");
        assert!(matches!(error, Error::Device(PmemError::Lost { .. })), "{error}");
        assert!(acknowledged > 10, "{acknowledged} files of 400 kB fitted into 24 MiB");
        assert!(fs.create(ROOT, b"more", &device::regular()).is_err());
        assert!(fs.unmount().is_err());
        host.grow(80 << 20);
        let fs = mount(create().expect("map")).expect("mount");
        for number in 0..acknowledged {
            let ino = fs.lookup(ROOT, number.to_string().as_bytes()).expect("look up").ino;
            let mut read = vec![0; 400_000];
            assert_eq!(fs.open(ino).expect("open").read_at(0, &mut read).expect("read"), read.len());
            assert!(read == content(number), "file {number}");
        }
        fs.unmount().expect("unmount");
        assert_eq!(device::check(&path, false).expect("fsck"), Vec::<String>::new());
        let _ = std::io::stdout().flush();
    }
}
