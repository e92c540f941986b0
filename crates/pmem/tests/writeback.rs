//! Level `file`: what a sync keeps, whatever a power cut, a failing disk or a killed process leaves.

use pmem::{DeviceSpec, HostEvent, HostImage, OpenOptions, PersistenceLevel, PmemError, PowerCut, Region, SyncErrors};
use proptest::prelude::*;
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: u64 = 4096;
const PAGES: u64 = 12;
const DEVICE_BYTES: u64 = PAGES * PAGE;
const OPTIONS: fn() -> OpenOptions =
    || OpenOptions { as_file: true, record_host: true, huge_pages: false, ..OpenOptions::default() };

fn spec(path: &Path) -> DeviceSpec {
    DeviceSpec::Path(path.into())
}

fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len_bytes() as usize];
    region.read_into(0, &mut bytes);
    bytes
}

fn open(image: &HostImage, path: &Path) -> Region {
    image.write_to(&File::create(path).unwrap()).unwrap();
    Region::open(&spec(path), &OPTIONS()).unwrap()
}

/// What is done to a device between looks at it.
#[derive(Clone, Debug)]
enum Op {
    Store {
        page: u64,
        at: u64,
        byte: u8,
    },
    Clear {
        page: u64,
    },
    Sync,
    /// The sync whose `nth` change of the file fails.
    FailingSync {
        nth: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..PAGES, 0..PAGE / 8, 1u8..).prop_map(|(page, at, byte)| Op::Store { page, at: at * 8, byte }),
        1 => (0..PAGES).prop_map(|page| Op::Clear { page }),
        2 => Just(Op::Sync),
        1 => (1u64..9).prop_map(|nth| Op::FailingSync { nth }),
    ]
}

/// A history: the file's changes, and the contents that a power cut behind each may leave of the device.
struct History {
    events: Vec<HostEvent>,
    /// Behind so many changes the device is one of these contents.
    allowed: Vec<(usize, Vec<Vec<u8>>)>,
}

fn run(ops: &[Op], path: &Path) -> History {
    let region = Region::create(&spec(path), DEVICE_BYTES, &OPTIONS()).unwrap();
    let mut events = region.take_host_events();
    events.push(HostEvent::Sync); // made, and the directory entry with it
    let mut durable = vec![content(&region)];
    let mut allowed = vec![(events.len(), durable.clone())];
    for op in ops {
        match *op {
            Op::Store { page, at, byte } => drop(region.write(page * PAGE + at, &[byte; 8])),
            Op::Clear { page } => region.punch(page * PAGE, PAGE).unwrap(),
            Op::Sync | Op::FailingSync { .. } => {
                let now = content(&region);
                durable.push(now.clone());
                if let Op::FailingSync { nth } = op {
                    region.fail_host(*nth);
                }
                let synced = region.sync();
                region.fail_host(0);
                events.extend(region.take_host_events());
                allowed.push((events.len(), durable.clone()));
                if synced.is_ok() {
                    durable = vec![now];
                }
                assert_eq!(content(&region), durable[durable.len() - 1], "a sync changes nothing that is seen");
            }
        }
        // The first store makes room for the journal, which is no content of the device.
        let between = region.take_host_events();
        let is_length = |event: &HostEvent| matches!(event, HostEvent::SetLength(_));
        assert!(between.iter().all(is_length), "between syncs nothing reaches the file: {between:?}");
        events.extend(between);
    }
    allowed.push((events.len(), durable));
    History { events, allowed }
}

fn name(event: &HostEvent) -> String {
    format!("{event:?}").chars().take(60).collect()
}

/// Power cuts to look at behind the same changes.
fn cuts(cut: &PowerCut, random: &mut impl FnMut(usize) -> usize) -> Vec<HostImage> {
    let mut images = vec![cut.leaves(false, |_| 0), cut.leaves(false, |contents| contents - 1)];
    for alone in 0..cut.choices() {
        for others_reached in [false, true] {
            let mut at = 0;
            images.push(cut.leaves(false, |contents| {
                at += 1;
                if (at - 1 == alone) != others_reached { contents - 1 } else { 0 }
            }));
        }
    }
    for torn in [false, false, true] {
        images.push(cut.leaves(torn, &mut *random));
    }
    images
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn after_a_power_cut_the_device_is_at_the_last_sync(ops in prop::collection::vec(op(), 1..24), seed: u64) {
        // In memory: a sync is a model here, and none should wait for a disk.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let history = run(&ops, &dir.path().join("device"));
        let mut state = seed | 1;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        let mut cut = PowerCut::new(HostImage::default());
        let mut behind = history.allowed.iter().peekable();
        let left = dir.path().join("left");
        for (count, event) in history.events.iter().enumerate() {
            cut.play(event);
            while behind.next_if(|(events, _)| *events < count + 1).is_some() {}
            let Some((first, _)) = history.allowed.first() else { break };
            if count + 1 < *first {
                continue;
            }
            let (_, allowed) = behind.peek().unwrap();
            for image in cuts(&cut, &mut random) {
                let region = open(&image, &left);
                let found = content(&region);
                prop_assert!(allowed.contains(&found), "behind change {count} of {}: {}", history.events.len(), name(event));
                // The power is cut again while that is repaired.
                let replayed = region.take_host_events();
                drop(region);
                let mut again = PowerCut::new(image);
                for event in &replayed {
                    again.play(event);
                    let region = open(&again.leaves(false, &mut random), &left);
                    prop_assert!(content(&region) == found, "behind change {count}, cut again behind {}", name(event));
                }
            }
        }
    }
}

/// After a failed wait the host may have forgotten what it had not written, of the sync before too: that is put in place
/// once more, before its slot is used again.
#[test]
fn pages_that_the_host_dropped_after_a_failed_sync_are_written_again() {
    let store = |page| Op::Store { page, at: 8, byte: page as u8 + 1 };
    for nth in 1..9 {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let failing = Op::FailingSync { nth };
        let ops = [store(0), Op::Sync, store(1), failing, store(2), Op::Sync, store(3), Op::Sync, store(4), Op::Sync];
        let history = run(&ops, &dir.path().join("device"));
        let mut cut = PowerCut::new(HostImage::default());
        history.events.iter().for_each(|event| cut.play(event));
        let (_, allowed) = history.allowed.last().unwrap();
        let found = content(&open(&cut.leaves(false, |_| 0), &dir.path().join("left")));
        assert!(found == allowed[allowed.len() - 1], "the {nth}th change of a sync failed");
    }
}

/// A region whose sync was cut off behind the journal: what the file holds then.
fn cut_off_behind_the_journal(dir: &Path) -> HostImage {
    let region = Region::create(&spec(&dir.join("device")), DEVICE_BYTES, &OPTIONS()).unwrap();
    let mut cut = PowerCut::new(HostImage::default());
    region.take_host_events().iter().for_each(|event| cut.play(event));
    let _ = region.write(5 * PAGE + 16, &[7u8; 100]);
    let _ = region.write(9 * PAGE, &[8u8; 4096]);
    region.sync().unwrap();
    for event in region.take_host_events() {
        cut.play(&event);
        if event == HostEvent::Sync {
            break;
        }
    }
    cut.leaves(false, |_| 0)
}

#[test]
fn a_device_opened_read_only_shows_and_keeps_its_journal() {
    let dir = tempfile::tempdir().unwrap();
    let image = cut_off_behind_the_journal(dir.path());
    let path = dir.path().join("left");
    image.write_to(&File::create(&path).unwrap()).unwrap();
    let look = || Region::open(&spec(&path), &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let (region, other) = (look(), look());
    for region in [&region, &other] {
        assert_eq!(region.len_bytes(), DEVICE_BYTES);
        assert!(region.equal(5 * PAGE + 16, &[7; 100]) && region.equal(9 * PAGE, &[8; 4096]));
        assert_eq!(region.allocated_ranges(0, DEVICE_BYTES), [5 * PAGE..6 * PAGE, 9 * PAGE..10 * PAGE]);
        assert!(!region.is_hole(5 * PAGE, 1) && region.is_hole(0, 5 * PAGE));
        let mut scanned = [0; 100];
        region.scan_into(5 * PAGE + 16, &mut scanned);
        assert_eq!(scanned, [7; 100]);
    }
    drop((region, other));
    assert_eq!(HostImage::of(&mut File::open(&path).unwrap()).unwrap(), image);
    let region = Region::open(&spec(&path), &OpenOptions::default()).unwrap();
    assert!(region.equal(5 * PAGE + 16, &[7; 100]));
    drop(region);
    assert_eq!(fs::metadata(&path).unwrap().len(), DEVICE_BYTES, "a writer puts it in place and cuts it off");
}

#[test]
fn a_device_opened_with_another_size_keeps_its_synced_content() {
    let dir = tempfile::tempdir().unwrap();
    let image = cut_off_behind_the_journal(dir.path());
    let path = dir.path().join("left");
    image.write_to(&File::create(&path).unwrap()).unwrap();
    let region = Region::create(&spec(&path), 2 * DEVICE_BYTES, &OPTIONS()).unwrap();
    assert!(region.equal(9 * PAGE, &[8; 4096]) && region.is_hole(DEVICE_BYTES, DEVICE_BYTES));
}

#[test]
fn the_file_has_exactly_the_content_of_the_last_sync() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let region = Region::create(&spec(&path), DEVICE_BYTES, &OPTIONS()).unwrap();
    assert_eq!(region.level(), PersistenceLevel::File);
    let _ = region.fence(region.write(100, &[1u8; 8]).flush());
    region.sync().unwrap();
    let _ = region.fence(region.write(100, &[2u8; 8]).flush());
    let device = |path| fs::read(path).unwrap()[..DEVICE_BYTES as usize].to_vec();
    assert_eq!(device(&path)[100..108], [1; 8]);
    assert!(region.equal(100, &[2; 8]));
    drop(region);
    assert_eq!(device(&path)[100..108], [2; 8], "who goes in order loses nothing");
    assert_eq!(fs::metadata(&path).unwrap().len(), DEVICE_BYTES);
}

#[test]
fn holes_are_reported_before_and_after_a_sync() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::create(&spec(&dir.path().join("device")), 1 << 30, &OPTIONS()).unwrap();
    let expected = [PAGE..2 * PAGE, 1 << 20..(1 << 20) + 3 * PAGE, (1 << 30) - PAGE..1 << 30];
    for range in &expected {
        let _ = region.stream(range.start, &vec![3; (range.end - range.start) as usize]);
    }
    for _ in 0..2 {
        assert_eq!(region.allocated_ranges(0, 1 << 30), expected);
        assert_eq!(region.next_allocated(2 * PAGE, 1 << 30), 1 << 20);
        assert!(region.is_hole(2 * PAGE, 1 << 19) && !region.is_hole(0, 1 << 30));
        region.sync().unwrap();
    }
    region.punch(1 << 20, 3 * PAGE).unwrap();
    assert!(region.equal(1 << 20, &[0; 4096]));
    region.sync().unwrap();
    assert_eq!(region.allocated_ranges(0, 1 << 30), [expected[0].clone(), expected[2].clone()], "a hole in the file");
}

struct End<'e>(&'e AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_sync_comes_between_the_stores_of_every_thread() {
    const ROUNDS: u64 = 300;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let region = Region::create(&spec(&path), DEVICE_BYTES, &OPTIONS()).unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also when something below fails.
        let _end = End(&ends);
        for thread in 0..2 {
            let (region, ends) = (region.clone(), &ends);
            scope.spawn(move || {
                // The first word, then the second, on another page: never the second before the first.
                for count in 1.. {
                    let _ = region.store_u64(thread * 8, count);
                    let _ = region.store_u64(PAGE * (1 + thread) + 64, count);
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let mut last = [0; 2];
        let mut cut = PowerCut::new(HostImage::default());
        let other = dir.path().join("other");
        for _ in 0..ROUNDS {
            region.sync().unwrap();
            region.take_host_events().iter().for_each(|event| cut.play(event));
            cut.leaves(false, |contents| contents - 1).write_to(&File::create(&other).unwrap()).unwrap();
            let synced = Region::open(&spec(&other), &OPTIONS()).unwrap();
            for thread in 0..2 {
                let first = synced.load_u64(thread * 8);
                let second = synced.load_u64(PAGE * (1 + thread) + 64);
                assert!(second <= first && first <= second + 1, "{first} {second}");
                assert!(first >= last[thread as usize]);
                last[thread as usize] = first;
            }
        }
        assert!(last.iter().all(|count| *count > 0));
    });
}

#[test]
fn dirty_memory_is_bounded_and_freed_by_a_sync() {
    const BYTES: u64 = 320 << 20;
    let dir = tempfile::tempdir().unwrap();
    let region = Region::create(&spec(&dir.path().join("device")), 1 << 30, &OpenOptions::default()).unwrap();
    if region.level() != PersistenceLevel::File {
        println!("skipped: the temporary directory is in memory");
        return;
    }
    let part: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
    for at in (0..BYTES).step_by(part.len()) {
        let _ = region.fence(region.stream(at, &part));
    }
    assert!(region.allocated_bytes() > 0, "a store that makes one page too many syncs first");
    region.sync().unwrap();
    assert!(anonymous_bytes("device") < 1 << 20, "{} bytes stay in memory", anonymous_bytes("device"));
    assert!((0..BYTES).step_by(part.len()).all(|at| region.equal(at, &part)));
}

/// Bytes of memory that are this process's own in its mapping of a file.
fn anonymous_bytes(name: &str) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let of_file = maps.lines().skip_while(|line| !line.ends_with(name));
    let kib = of_file.clone().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_device_file_truncated_by_another_process_is_lost_and_not_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let region = Region::create(&spec(&path), DEVICE_BYTES, &OPTIONS()).unwrap();
    let _ = region.write(5 * PAGE, &[1u8; 8]);
    File::options().write(true).open(&path).unwrap().set_len(PAGE).unwrap();
    let error = region.sync().unwrap_err();
    assert!(matches!(error, PmemError::Lost { .. }), "{error}");
    assert!(region.is_lost());
    drop(region);
    assert_eq!(fs::metadata(&path).unwrap().len(), PAGE);
}

#[test]
fn a_disk_that_fails_temporarily_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let region = Region::create(&spec(&path), DEVICE_BYTES, &OPTIONS()).unwrap();
    for nth in 1..10 {
        let _ = region.write(nth * PAGE, &[nth as u8; 8]);
        region.fail_host(nth);
        let failed = region.sync();
        region.fail_host(0);
        if let Err(error) = failed {
            assert_eq!(error.errno(), 5);
        }
        assert!(region.equal(nth * PAGE, &[nth as u8; 8]) && !region.is_lost());
    }
    region.sync().unwrap();
    drop(region);
    let region = Region::open(&spec(&path), &OpenOptions::default()).unwrap();
    assert!((1..10).all(|nth| region.equal(nth * PAGE, &[nth as u8; 8])));
}

const MIB: u64 = 1 << 20;

fn fill(region: &Region, range: std::ops::Range<u64>, byte: u8) {
    let _ = region.fence(region.stream(range.start, &vec![byte; (range.end - range.start) as usize]));
}

/// A device of 64 MiB on a disk that has room for 12 of them.
fn on_a_small_disk(dir: &Path) -> Region {
    let region = Region::create(&spec(&dir.join("device")), 64 * MIB, &OPTIONS()).unwrap();
    region.limit_host(12 * MIB);
    region.admit().unwrap();
    region
}

#[test]
fn data_with_reserved_disk_space_can_be_synced_to_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let region = on_a_small_disk(dir.path());
    assert!(region.reserves() && region.host_free_bytes().unwrap() < 8 * MIB);
    let mut reserved = 0;
    let full = loop {
        match region.reserve(reserved * MIB, MIB) {
            Ok(()) => fill(&region, reserved * MIB..(reserved + 1) * MIB, reserved as u8 + 1),
            Err(full) => break full,
        }
        reserved += 1;
    };
    assert_eq!((full.errno(), reserved), (28, 7), "all but the smallest journal: {full}");
    region.sync().unwrap();
    // Also with other bytes, with zeros, and with bytes in place of the zeros.
    for byte in [9, 0, 8] {
        fill(&region, 0..reserved * MIB, byte);
        region.sync().unwrap();
    }
    assert_eq!(region.sync_errors(), SyncErrors::default());
    drop(region);
    let region = Region::open(&spec(&dir.path().join("device")), &OPTIONS()).unwrap();
    assert!((0..reserved * MIB).step_by(4096).all(|at| region.equal(at, &[8; 4096])));
}

#[test]
fn a_large_journal_shrinks_if_data_needs_its_disk_space() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::create(&spec(&dir.path().join("device")), 64 * MIB, &OPTIONS()).unwrap();
    region.limit_host(96 * MIB);
    region.admit().unwrap();
    region.reserve(0, 4 * MIB).unwrap();
    fill(&region, 0..4 * MIB, 1);
    let before = region.host_free_bytes().unwrap();
    assert!(before < 88 * MIB, "the journal has grown: {before} bytes are free");
    region.limit_host(14 * MIB);
    region.reserve(4 * MIB, 4 * MIB).unwrap();
    region.sync().unwrap();
    assert!(region.equal(0, &[1; 4096]) && !region.is_lost());
}

#[test]
fn punching_a_range_frees_its_disk_space() {
    let dir = tempfile::tempdir().unwrap();
    let region = on_a_small_disk(dir.path());
    region.reserve(0, 6 * MIB).unwrap();
    fill(&region, 0..MIB, 1);
    region.sync().unwrap();
    assert_eq!(region.reserve(32 * MIB, 6 * MIB).unwrap_err().errno(), 28);
    region.punch(0, 6 * MIB).unwrap();
    region.sync().unwrap();
    region.reserve(32 * MIB, 6 * MIB).unwrap();
    assert!(region.equal(0, &[0; 4096]));
}

/// The disk is full under stores that nobody has reserved disk for, as those of mkfs.
#[test]
fn a_sync_that_fails_is_counted_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let region = on_a_small_disk(dir.path());
    fill(&region, 0..10 * MIB, 5);
    assert!(!region.is_lost(), "memory has room for more than the disk");
    let error = region.sync().unwrap_err();
    assert_eq!(error.errno(), 28, "{error}");
    let errors = region.sync_errors();
    assert!(errors.count > 0 && errors.is_failing && errors.last_errno == 28, "{errors:?}");
    assert_eq!(region.admit().unwrap_err().errno(), 28, "nothing more is accepted");
    assert!((0..10 * MIB).step_by(4096).all(|at| region.equal(at, &[5; 4096])));
    region.limit_host(u64::MAX);
    region.admit().unwrap();
    region.sync().unwrap();
    let after = region.sync_errors();
    assert!(after.count >= errors.count && !after.is_failing, "{after:?}");
    drop(region);
    let region = Region::open(&spec(&dir.path().join("device")), &OPTIONS()).unwrap();
    assert!((0..10 * MIB).step_by(4096).all(|at| region.equal(at, &[5; 4096])));
}

#[test]
fn changes_are_refused_without_disk_space_for_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::create(&spec(&dir.path().join("device")), 64 * MIB, &OPTIONS()).unwrap();
    region.limit_host(MIB / 2);
    assert_eq!(region.admit().unwrap_err().errno(), 28);
    // A small one will do: the disk of a device that was unmounted has room for no more than it had then.
    region.limit_host(3 * MIB);
    region.admit().unwrap();
    region.reserve(0, MIB / 2).unwrap();
    fill(&region, 0..MIB / 2, 1);
    region.sync().unwrap();
    assert_eq!(region.sync_errors(), SyncErrors::default());
}
