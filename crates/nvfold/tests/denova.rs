//! Policy `denova`: what is written is stored at once and shared later, and nothing that was put off is lost.

use nvfold::check::{CheckOptions, check};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};
use std::time::Duration;

const BLOCK: usize = 4096;
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
const ROOT: InodeNumber = InodeNumber::ROOT;

fn device(mib: u64) -> Region {
    let region = Region::create(&DeviceSpec::Memory, mib << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    region
}

fn options() -> MountOptions {
    MountOptions { policy: Policy::DeNova, ..MountOptions::default() }
}

fn mount(region: &Region) -> FileSystem {
    FileSystem::mount(region.clone(), options()).unwrap()
}

fn create(fs: &FileSystem, name: &str) -> File {
    fs.open(fs.create(ROOT, name.as_bytes(), &NEW).unwrap().ino).unwrap()
}

/// A block that no other number has.
fn content(number: u64) -> Vec<u8> {
    let words = (1..=BLOCK as u64 / 8).map(|at| (number << 32 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    words.flat_map(u64::to_le_bytes).collect()
}

fn contents(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(content).collect()
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.attr().size as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn drain(fs: &FileSystem) {
    while !fs.drain_step().unwrap() {}
    assert_eq!(denova(fs).queue_entries, 0);
}

fn denova(fs: &FileSystem) -> DeNovaStats {
    fs.stats().denova.expect("the policy of the mount")
}

fn unmount_clean(fs: FileSystem, region: &Region) {
    fs.unmount().unwrap();
    let found = check(region, &CheckOptions { data: true, ..CheckOptions::default() }).unwrap();
    assert!(found.clean && found.findings.is_empty(), "{found:?}");
}

#[test]
fn what_is_written_is_stored_at_once_and_shared_by_the_drain() {
    let region = device(16);
    let fs = mount(&region);
    let (one, other) = (create(&fs, "one"), create(&fs, "other"));
    one.write_at(0, &contents([1, 2, 3, 2])).unwrap();
    other.write_at(0, &contents([9, 3, 2])).unwrap();
    let before = fs.stats();
    assert_eq!((before.data_blocks, before.chunks, before.index.entries), (7, 0, 0), "nothing was looked at");
    assert_eq!((denova(&fs).queue_entries, denova(&fs).queue_bytes), (2, 7 * 4096));
    drain(&fs);
    let after = fs.stats();
    assert_eq!((after.data_blocks, after.saved_bytes, after.index.entries), (4, 3 * 4096, 4));
    let stats = denova(&fs);
    assert_eq!((stats.dequeued, stats.looked_at_bytes, stats.shared_bytes), (2, 7 * 4096, 3 * 4096));
    assert_eq!(read(&one), contents([1, 2, 3, 2]));
    assert_eq!(read(&other), contents([9, 3, 2]));
    drop((one, other));
    unmount_clean(fs, &region);
}

#[test]
fn the_queue_is_saved_by_an_unmount_and_restored() {
    let region = device(16);
    let fs = mount(&region);
    for name in ["one", "two", "three"] {
        create(&fs, name).write_at(0, &contents([1, 2])).unwrap();
    }
    unmount_clean(fs, &region);
    let fs = mount(&region);
    assert!(fs.stats().recovery.loaded);
    assert_eq!((denova(&fs).queue_entries, fs.stats().data_blocks), (3, 6));
    drain(&fs);
    assert_eq!(fs.stats().data_blocks, 2);
    unmount_clean(fs, &region);
    let fs = mount(&region);
    assert_eq!(denova(&fs).queue_entries, 0, "nothing is queued twice");
}

#[test]
fn the_queue_is_rebuilt_after_a_crash() {
    let region = device(16);
    let fs = mount(&region);
    for name in ["one", "two", "three"] {
        create(&fs, name).write_at(0, &contents([1, 2])).unwrap();
    }
    fs.drain_step().unwrap();
    drop(fs);
    let fs = mount(&region);
    let four = create(&fs, "four");
    four.write_at(0, &contents([2, 1])).unwrap();
    fs.reconcile().unwrap();
    assert_eq!(denova(&fs).queue_entries, 3, "two of before, one of now");
    drain(&fs);
    assert_eq!(fs.stats().data_blocks, 2);
    drop(four);
    unmount_clean(fs, &region);
}

#[test]
fn another_mode_does_not_wait_for_the_interval_of_the_one_before() {
    let region = device(64);
    let start = std::time::Instant::now();
    let stopwatch: nvfold::Stopwatch = std::sync::Arc::new(move || start.elapsed().as_nanos() as u64);
    let a_day = DedupMode::Delayed { interval_ms: 86_400_000, entries: 1 };
    let mut options = MountOptions { stopwatch: Some(stopwatch), ..options() };
    options.denova.mode = a_day;
    let fs = FileSystem::mount(region.clone(), options).unwrap();
    let mut daemon = Daemon::new(fs.clone());
    // The time of today is used up, for one entry at most.
    daemon.turn().unwrap();
    for name in ["a", "b", "c"] {
        create(&fs, name).write_at(0, &contents(0..8)).unwrap();
    }
    let wait = daemon.turn().unwrap();
    assert!(wait > Duration::from_secs(3600), "{wait:?}");
    assert_eq!(denova(&fs).queue_entries, 3);
    fs.set_dedup_mode(DedupMode::Delayed { interval_ms: 1, entries: 1000 });
    while denova(&fs).queue_entries > 0 {
        let wait = daemon.turn().unwrap();
        assert!(wait < Duration::from_secs(3600), "{wait:?}");
        std::thread::sleep(wait);
    }
    unmount_clean(fs, &region);
}
