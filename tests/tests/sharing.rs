//! Eight writers and eight readers on the same files: no reader ever sees half of a write.
//!
//! Writers replace groups of four self-verifying blocks, all four of one version. Through the library and through
//! direct I/O on the mount every read must be complete. A read through the kernel's page cache may meet a copy under
//! way (the kernel reads cached pages without a lock), so a torn block there must be intact when it is read again.
//!
//! Each thread does a fixed number of reads or writes, so what is tried does not depend on the machine's speed.

use std::fs::File as OsFile;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use nvfold::{File, InodeNumber};
use nvfold_tests::block::{self, Label};
use nvfold_tests::device::{self, Device, POLICIES};
use nvfold_tests::mount::{self, Mount};
use nvfold_tests::random::{Seed, soak_factor};
use nvfold_tests::requires;
use rustix::fs::OFlags;

const WRITERS: usize = 8;
const READERS: usize = 8;
const FILES: u64 = 4;
const GROUPS: u64 = 64;
const GROUP_BLOCKS: usize = 4;
const GROUP_BYTES: usize = GROUP_BLOCKS * block::BYTES;
/// Reads or writes of one thread, in the library and on the mount, where one costs several times as much.
const OPS: u64 = 2000;
const OPS_MOUNTED: u64 = 500;

/// A file that many threads read and write.
trait Shared: Sync {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> usize;
    fn write(&self, offset: u64, data: &[u8]);
    /// Returns how often a torn block may be read again before it counts.
    fn second_looks(&self) -> usize;
    /// Returns whether a read of a whole group is one operation.
    fn groups_are_atomic(&self) -> bool;
}

impl Shared for File {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        self.read_at(offset, buffer).expect("read")
    }
    fn write(&self, offset: u64, data: &[u8]) {
        self.write_at(offset, data).expect("write");
    }
    fn second_looks(&self) -> usize {
        0
    }
    fn groups_are_atomic(&self) -> bool {
        true
    }
}

/// A file of the mount.
struct Mounted {
    file: OsFile,
    second_looks: usize,
}

impl Shared for Mounted {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        self.file.read_at(buffer, offset).expect("read")
    }
    fn write(&self, offset: u64, data: &[u8]) {
        self.file.write_all_at(data, offset).expect("write");
    }
    fn second_looks(&self) -> usize {
        self.second_looks
    }
    fn groups_are_atomic(&self) -> bool {
        false
    }
}

#[test]
fn a_reader_of_the_library_never_sees_half_of_a_write() {
    for policy in POLICIES {
        let device = Device::of(256, policy);
        let fs = device.mount(policy);
        let files: Vec<File> = (0..FILES)
            .map(|number| {
                let name = format!("shared{number}");
                let attr = fs.create(InodeNumber::ROOT, name.as_bytes(), &device::regular());
                fs.open(attr.expect("create").ino).expect("open")
            })
            .collect();
        hammer(&files, OPS * soak_factor());
        drop(files);
        fs.unmount().expect("unmount");
        device.check();
    }
}

#[test]
fn a_reader_of_the_mount_never_sees_half_of_a_write() {
    requires!(root, fuse);
    for policy in mount::POLICIES {
        let mut mount = Mount::fresh(256, policy);
        let open = |number: u64| {
            let direct = number.is_multiple_of(2);
            let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
            let file = OsFile::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .custom_flags(flags.bits() as i32)
                .open(mount.join(format!("shared{number}")))
                .expect("open");
            // A plain directory (NVFOLD_TEST_DIR) promises less than nvfold.
            let second_looks = if direct && mount.is_real() { 0 } else { 1000 };
            Mounted { file, second_looks }
        };
        let files: Vec<Mounted> = (0..FILES).map(open).collect();
        hammer(&files, OPS_MOUNTED * soak_factor());
        drop(files);
        mount.check();
    }
}

/// Runs all threads, each for so many operations, then verifies every block.
fn hammer(files: &[impl Shared], ops: u64) {
    let over = AtomicBool::new(false);
    let versions = AtomicU64::new(1);
    let seed = Seed::new("who reads and writes what");
    let work = |thread: usize, one: &dyn Fn(u64, u64)| {
        let mut random = fastrand::Rng::with_seed(seed.value().wrapping_add(thread as u64));
        // A thread that fails ends the others too.
        let guard = EndOnPanic(&over);
        for _ in 0..ops {
            if guard.0.load(Ordering::Relaxed) {
                return;
            }
            one(random.u64(0..FILES), random.u64(0..GROUPS));
        }
    };
    let write = |number: u64, group: u64| {
        let version = versions.fetch_add(1, Ordering::Relaxed);
        let data = group_of(number, group, version);
        files[number as usize].write(group * GROUP_BYTES as u64, &data);
    };
    let read = |number: u64, group: u64| verify(&files[number as usize], number, group);
    thread::scope(|scope| {
        let (work, write, read) = (&work, &write, &read);
        for thread in 0..WRITERS {
            scope.spawn(move || work(thread, write));
        }
        for thread in WRITERS..WRITERS + READERS {
            scope.spawn(move || work(thread, read));
        }
    });
    for number in 0..FILES {
        (0..GROUPS).for_each(|group| verify(&files[number as usize], number, group));
    }
}

struct EndOnPanic<'a>(&'a AtomicBool);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

fn group_of(file: u64, group: u64, version: u64) -> Vec<u8> {
    let start = group * GROUP_BYTES as u64;
    let offsets = (0..GROUP_BLOCKS).map(|index| start + (index * block::BYTES) as u64);
    offsets.flat_map(|offset| block::make(Label { file, offset, version })).collect()
}

fn verify(shared: &impl Shared, number: u64, group: u64) {
    for looks_left in (0..=shared.second_looks()).rev() {
        match look(shared, number, group) {
            Ok(()) => return,
            Err(why) if looks_left == 0 => panic!("{why}"),
            Err(_) => thread::yield_now(),
        }
    }
}

fn look(shared: &impl Shared, number: u64, group: u64) -> Result<(), String> {
    let mut buffer = vec![0; GROUP_BYTES];
    let start = group * GROUP_BYTES as u64;
    let count = shared.read(start, &mut buffer);
    let mut seen = Vec::new();
    for (index, bytes) in buffer[..count].chunks_exact(block::BYTES).enumerate() {
        let offset = start + (index * block::BYTES) as u64;
        seen.push(block::verify(bytes, number, offset)?.version);
    }
    if shared.groups_are_atomic() && (!count.is_multiple_of(GROUP_BYTES) || seen.iter().any(|&one| one != seen[0])) {
        return Err(format!("group {group} of file {number} is half written: versions {seen:?}"));
    }
    Ok(())
}
