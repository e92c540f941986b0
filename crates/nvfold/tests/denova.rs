//! Policy `denova`: what is written is stored at once and shared later, and nothing that was put off is lost.

use nvfold::check::{CheckOptions, CheckReport, check};
use nvfold::internals::media::chunk_entry::{ChunkEntry, CountWord};
use nvfold::internals::media::inode::{INLINE_LOG, INODE_BYTES};
use nvfold::internals::media::log_entry::dedupe;
use nvfold::internals::media::saved_state::SavedState;
use nvfold::internals::media::superblock::Geometry;
use nvfold::internals::media::{BlockNumber, SEGMENT_BYTES};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BLOCK: usize = 4096;
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
const ROOT: InodeNumber = InodeNumber::ROOT;

fn device(mib: u64) -> Region {
    device_with(mib, &MkfsOptions::default())
}

fn device_with(mib: u64, mkfs: &MkfsOptions) -> Region {
    let region = Region::create(&DeviceSpec::Memory, mib << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, mkfs).unwrap();
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
fn denova_stores_at_once_and_shares_during_a_drain() {
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

/// The dedupe-flags of the first entries of a file's log, which lie in its slot.
fn flags(region: &Region, file: &File, entries: u64) -> Vec<u8> {
    (0..entries).map(|at| region.read::<[u8; 64]>(line(region, file.ino(), at))[3]).collect()
}

/// Where the n-th line of a log lies.
fn line(region: &Region, ino: InodeNumber, at: u64) -> u64 {
    let geometry = Geometry::of(region.len_bytes()).unwrap();
    geometry.first_segment() * SEGMENT_BYTES + ino.0 * INODE_BYTES + INLINE_LOG + 64 * at
}

fn store_u64(region: &Region, offset: u64, value: u64) {
    let _ = region.fence(region.store_u64(offset, value).flush());
}

fn set_flag(region: &Region, offset: u64, flag: u8) {
    let word = region.load_u64(offset) & !0xFF00_0000;
    store_u64(region, offset, word | u64::from(flag) << 24);
}

fn survey(region: &Region, repair: bool) -> CheckReport {
    check(region, &CheckOptions { repair, data: true }).unwrap()
}

/// fsck finds this, repairs it, and then nothing.
fn found_and_repaired(region: &Region, what: &str) {
    let found = survey(region, false);
    assert!(found.findings.iter().any(|finding| finding.what.contains(what)), "{what}: {:?}", found.findings);
    assert!(survey(region, true).is_consistent(), "{what}");
    let after = survey(region, false);
    assert!(after.clean && after.findings.is_empty(), "{what}: {:?}", after.findings);
}

/// A small generator of numbers, the same every time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

/// Writes, overwrites, clones, truncates and removes files of few contents; what a file holds does not depend on `fs`.
fn scramble(fs: &FileSystem, seed: u64, mut now_and_then: impl FnMut(&FileSystem)) {
    let mut numbers = Numbers(seed);
    let mut files: Vec<File> = (0..6).map(|at| create(fs, &format!("{seed}-{at}"))).collect();
    for step in 0..300 {
        let at = numbers.below(6) as usize;
        let offset = numbers.below(24) * 4096;
        match numbers.below(10) {
            0 => files[at].set_len(offset).unwrap(),
            1 => {
                let source = files[numbers.below(6) as usize].clone();
                let (from, bytes) = (numbers.below(12) * 4096, (1 + numbers.below(8)) * 4096);
                // Ranges of one file may overlap: then nothing happens.
                let _ = files[at].clone_from(&source, from, offset, bytes);
            }
            2 => {
                fs.unlink(ROOT, format!("{seed}-{at}").as_bytes()).unwrap();
                files[at] = create(fs, &format!("{seed}-{at}"));
            }
            3 => files[at].write_at(offset + 100, &content(numbers.below(40))[..700]).unwrap(),
            _ => {
                let blocks = 1 + numbers.below(6);
                let data = contents((0..blocks).map(|_| numbers.below(40)));
                files[at].write_at(offset, &data).unwrap();
            }
        }
        if step % 13 == 0 {
            now_and_then(fs);
        }
    }
}

#[test]
fn a_drain_saves_as_much_as_policy_inline() {
    let paper = NvDedupOptions {
        weak: WeakFunction::Sha1,
        strong: Some(StrongFunction::Sha1),
        verify: Verify::Strong,
        ..NvDedupOptions::default()
    };
    for (index, nv_dedup) in [
        (IndexKind::Dram, NvDedupOptions::default()),
        (IndexKind::Pm, NvDedupOptions::default()),
        (IndexKind::Pm, paper),
        (IndexKind::Dram, NvDedupOptions { verify: Verify::Strong, ..NvDedupOptions::default() }),
    ] {
        let mkfs = MkfsOptions { index, weak: nv_dedup.weak, ..MkfsOptions::default() };
        for seed in 1..=3 {
            let regions = [device(32), device_with(32, &mkfs), device_with(32, &mkfs)];
            let inline = FileSystem::mount(regions[0].clone(), MountOptions::default()).unwrap();
            let at_end = FileSystem::mount(regions[1].clone(), MountOptions { nv_dedup, ..options() }).unwrap();
            let between = FileSystem::mount(regions[2].clone(), MountOptions { nv_dedup, ..options() }).unwrap();
            scramble(&inline, seed, |_| {});
            scramble(&at_end, seed, |_| {});
            scramble(&between, seed, |fs| _ = fs.drain_step().unwrap());
            for fs in [&at_end, &between] {
                drain(fs);
                let (ours, theirs) = (fs.stats(), inline.stats());
                assert_eq!(ours.logical_bytes, theirs.logical_bytes);
                assert_eq!(ours.stored_bytes, distinct_blocks(fs, seed) * 4096, "{index:?} {seed}");
                assert!(ours.stored_bytes <= theirs.stored_bytes, "{index:?} {seed}: {ours:?} {theirs:?}");
                for at in 0..6 {
                    let name = format!("{seed}-{at}");
                    assert_eq!(read(&open(fs, &name)), read(&open(&inline, &name)), "{name}");
                }
            }
            for (fs, region) in [inline, at_end, between].into_iter().zip(&regions) {
                unmount_clean(fs, region);
            }
        }
    }
}

fn open(fs: &FileSystem, name: &str) -> File {
    fs.open(fs.lookup(ROOT, name.as_bytes()).unwrap().ino).unwrap()
}

/// Contents of blocks that the files name, holes left out: what a perfect deduplication would store.
fn distinct_blocks(fs: &FileSystem, seed: u64) -> u64 {
    let mut seen = std::collections::HashSet::new();
    for at in 0..6 {
        let file = open(fs, &format!("{seed}-{at}"));
        let bytes = read(&file);
        for part in file.extents(0, 1000).unwrap() {
            for offset in (part.offset..part.offset + part.length).step_by(BLOCK) {
                // Behind the end a block holds zeros.
                let mut block = bytes.get(offset as usize..).unwrap_or_default().to_vec();
                block.resize(BLOCK, 0);
                seen.insert(block);
            }
        }
    }
    seen.len() as u64
}

fn with_denova(denova: DeNovaOptions, stopwatch: Option<Stopwatch>) -> MountOptions {
    MountOptions { denova, stopwatch, ..options() }
}

/// A stopwatch that is set by hand.
fn stopwatch() -> (Arc<AtomicU64>, Stopwatch) {
    let ns = Arc::new(AtomicU64::new(1));
    let told = ns.clone();
    (ns, Arc::new(move || told.load(Ordering::Relaxed)))
}

/// Files of one block each, all equal.
fn write_equal(fs: &FileSystem, names: std::ops::Range<u64>) {
    names.for_each(|name| create(fs, &name.to_string()).write_at(0, &content(1)).unwrap());
}

#[test]
fn the_daemon_follows_its_mode_and_changes_of_it() {
    let region = device(16);
    let (ns, watch) = stopwatch();
    let delayed = DedupMode::Delayed { interval_ms: 100, entries: 2 };
    let mode = |mode| DeNovaOptions { mode, ..DeNovaOptions::default() };
    let fs = FileSystem::mount(region.clone(), with_denova(mode(delayed), Some(watch))).unwrap();
    let mut daemon = Daemon::new(fs.clone());
    write_equal(&fs, 0..5);
    let left = |daemon: &mut Daemon| (daemon.turn().unwrap(), denova(&fs).queue_entries);
    assert_eq!(left(&mut daemon), (Duration::from_millis(100), 3));
    ns.fetch_add(99_000_000, Ordering::Relaxed);
    assert_eq!(left(&mut daemon), (Duration::from_millis(1), 3));
    ns.fetch_add(1_000_000, Ordering::Relaxed);
    assert_eq!(left(&mut daemon), (Duration::from_millis(100), 1));
    assert_eq!(denova(&fs).lag_ns, 100_000_000);

    fs.set_dedup_mode(DedupMode::Inline);
    assert_eq!(fs.dedup_mode(), DedupMode::Inline);
    write_equal(&fs, 5..7);
    assert_eq!((denova(&fs).queue_entries, fs.stats().data_blocks), (1, 2), "shared at once; what was queued stays");
    assert_eq!(left(&mut daemon).1, 0, "and is dealt with");
    assert_eq!(fs.stats().data_blocks, 1);

    fs.set_dedup_mode(DedupMode::Immediate);
    write_equal(&fs, 7..9);
    assert_eq!((denova(&fs).queue_entries, fs.stats().data_blocks), (2, 3));
    while !fs.fill_step().unwrap() {}
    let mut waits = vec![left(&mut daemon).0];
    assert_eq!(denova(&fs).queue_entries, 0);
    waits.extend((0..16).map(|_| daemon.turn().unwrap()));
    assert!(waits.is_sorted() && waits[0] < waits[4] && waits[16] == Duration::from_secs(1), "{waits:?}");
    write_equal(&fs, 9..10);
    let first = (0..20).map(|_| daemon.turn().unwrap()).find(|wait| !wait.is_zero());
    assert!(first < Some(Duration::from_millis(1)), "after work it looks again soon: {first:?}");
    waits = vec![];
    fs.pause_dedup(true);
    for number in 10..40 {
        write_equal(&fs, number..number + 1);
        waits.push(daemon.turn().unwrap());
    }
    assert_eq!(waits.iter().max(), Some(&Duration::from_millis(10)), "while operations come in: {waits:?}");
    fs.pause_dedup(false);
    while denova(&fs).queue_entries > 0 {
        daemon.turn().unwrap();
    }
    let entries: u64 = denova(&fs).queue_wait_histogram.iter().map(|(_, nodes)| nodes).sum();
    assert_eq!(entries, denova(&fs).dequeued, "each node that came and went was timed");
    assert!(denova(&fs).queue_wait_histogram.iter().any(|(ns, _)| (100_000_000..113_000_000).contains(ns)));
    unmount_clean(fs, &region);
}

#[test]
fn without_a_stopwatch_each_turn_of_the_daemon_is_one_step() {
    let region = device(16);
    let mode = DedupMode::Delayed { interval_ms: 7, entries: 2 };
    let fs = FileSystem::mount(region, with_denova(DeNovaOptions { mode, ..DeNovaOptions::default() }, None)).unwrap();
    write_equal(&fs, 0..4);
    let mut daemon = Daemon::new(fs.clone());
    let turns: Vec<_> = (0..4).map(|_| (daemon.turn().unwrap().as_millis(), denova(&fs).queue_entries)).collect();
    assert_eq!(turns, [(0, 3), (7, 2), (0, 1), (7, 0)]);
    assert!(denova(&fs).queue_wait_histogram.is_empty() && denova(&fs).busy_ns == 0);
}

#[test]
fn a_paused_daemon_waits_and_a_drain_does_not() {
    let region = device(16);
    let fs = mount(&region);
    write_equal(&fs, 0..3);
    let mut daemon = Daemon::new(fs.clone());
    fs.pause_dedup(true);
    assert_eq!((daemon.turn().unwrap(), denova(&fs).queue_entries), (Duration::from_micros(50), 3));
    assert!(denova(&fs).paused);
    fs.drain_step().unwrap();
    assert_eq!(denova(&fs).queue_entries, 2);
    fs.pause_dedup(false);
    daemon.turn().unwrap();
    assert_eq!((denova(&fs).queue_entries, denova(&fs).paused), (1, false));
}

#[test]
fn the_daemon_keeps_to_its_share_of_a_processor() {
    let region = device(16);
    let ns = AtomicU64::new(0);
    // Every look takes as long as a few blocks.
    let watch: Stopwatch = Arc::new(move || ns.fetch_add(150_000, Ordering::Relaxed));
    let denova_options = DeNovaOptions { cpu_percent: 20, ..DeNovaOptions::default() };
    let fs = FileSystem::mount(region, with_denova(denova_options, Some(watch))).unwrap();
    write_equal(&fs, 0..100);
    let mut daemon = Daemon::new(fs.clone());
    for _ in 0..5 {
        let before = denova(&fs).busy_ns;
        let waits = daemon.turn().unwrap();
        let worked = denova(&fs).busy_ns - before;
        assert!((1_000_000..2_000_000).contains(&worked), "a turn is over after a millisecond: {worked}");
        assert_eq!(waits.as_nanos() as u64, 4 * worked);
    }
}

#[test]
fn the_daemon_yields_to_writers() {
    let region = device(16);
    let (ns, told) = stopwatch();
    // Looks at the stopwatch until somebody writes, and where.
    let in_front: Arc<(AtomicU64, std::sync::Mutex<Option<File>>)> = Arc::default();
    let hook = in_front.clone();
    let watch: Stopwatch = Arc::new(move || {
        ns.fetch_add(100_000, Ordering::Relaxed);
        if hook.0.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(file) = hook.1.lock().unwrap().take()
        {
            file.write_at(0, b"in front").unwrap();
        }
        told()
    });
    let fs = FileSystem::mount(region, with_denova(DeNovaOptions::default(), Some(watch))).unwrap();
    let file = create(&fs, "in front");
    write_equal(&fs, 0..50);
    let mut daemon = Daemon::new(fs.clone());
    let mut turn = || {
        let before = denova(&fs);
        let waits = daemon.turn().unwrap();
        (denova(&fs).dequeued - before.dequeued, denova(&fs).busy_ns - before.busy_ns, waits)
    };
    let (nodes, _, waits) = turn();
    assert!(nodes > 1 && waits == Duration::ZERO, "alone it goes on until the turn is over: {nodes} {waits:?}");
    // This test looks, the turn begins, the first node is done: then somebody writes.
    *in_front.1.lock().unwrap() = Some(file);
    in_front.0.store(3, Ordering::Relaxed);
    let (nodes, worked, waits) = turn();
    assert_eq!(nodes, 1, "it stops after the step");
    assert_eq!(waits.as_nanos() as u64, worked, "and rests as long as it worked");
}

#[test]
fn the_daemon_ignores_its_limits_when_space_is_short() {
    let region = device(16);
    let hour = DedupMode::Delayed { interval_ms: 3_600_000, entries: 1 };
    let guarded = DeNovaOptions { mode: hour, cpu_percent: 1, guard_percent: 50, ..DeNovaOptions::default() };
    let (_, watch) = stopwatch();
    let fs = FileSystem::mount(region.clone(), with_denova(guarded, Some(watch))).unwrap();
    let mut daemon = Daemon::new(fs.clone());
    write_equal(&fs, 0..5);
    assert!(daemon.turn().unwrap() >= Duration::from_secs(3600) && denova(&fs).queue_entries == 4);
    let file = create(&fs, "large");
    while fs.statfs().blocks_free * 2 > fs.statfs().blocks {
        file.append(&content(file.attr().size).repeat(64)).unwrap();
    }
    daemon.turn().unwrap();
    assert_eq!(denova(&fs).queue_entries, 0);
    drop(file);
    unmount_clean(fs, &region);
}

#[test]
fn a_write_without_space_first_shares_queued_entries() {
    for index in IndexKind::ALL {
        let region = device_with(16, &MkfsOptions { index, ..MkfsOptions::default() });
        let fs = mount(&region);
        fs.pause_dedup(true);
        let data = contents(0..256);
        for name in 0..32 {
            create(&fs, &name.to_string()).write_at(0, &data).unwrap();
        }
        assert!(fs.stats().logical_bytes >= 2 * fs.stats().device_bytes && denova(&fs).dequeued > 0);
        let unique = create(&fs, "unique");
        let refused = (1..).find_map(|at| unique.append(&contents(at * 1000..at * 1000 + 64)).err()).unwrap();
        assert!(matches!(refused, Error::NoSpace { .. }), "{refused}");
        assert_eq!(denova(&fs).queue_entries, 0, "nothing more could be shared");
        (0..32).for_each(|name| assert_eq!(read(&open(&fs, &name.to_string())), data));
        drop(unique);
        unmount_clean(fs, &region);
    }
}

#[test]
fn the_daemon_takes_large_entries_first_from_a_long_queue() {
    let region = device(64);
    let fs = mount(&region);
    let small = create(&fs, "small");
    // Every other block, so that each is an entry.
    (0..4200).for_each(|at| small.write_at(at * 8192, &content(at)).unwrap());
    create(&fs, "large").write_at(0, &contents(0..200)).unwrap();
    fs.drain_step().unwrap();
    assert_eq!(denova(&fs).looked_at_bytes, 64 * 4096, "a batch of the large one");
    drop(small);
    unmount_clean(fs, &region);
}

#[test]
fn queued_entries_stay_queued_when_their_log_is_compacted() {
    for crashes in [false, true] {
        let region = device(16);
        let fs = mount(&region);
        let (a, b) = (create(&fs, "a"), create(&fs, "b"));
        // Most entries are dead, and the log is long: it is written anew on the way.
        (0..400).for_each(|at| a.write_at(at % 8 * 4096, &content(at)).unwrap());
        b.write_at(0, &contents(392..400)).unwrap();
        assert!(denova(&fs).queue_entries > 100, "notes of entries that are gone are still there");
        (0..3).for_each(|_| _ = fs.drain_step().unwrap());
        drop((a, b));
        match crashes {
            true => drop(fs),
            false => unmount_clean(fs, &region),
        }
        let fs = mount(&region);
        fs.reconcile().unwrap();
        assert!((1..300).contains(&denova(&fs).queue_entries), "{}", denova(&fs).queue_entries);
        drain(&fs);
        assert_eq!(fs.stats().data_blocks, 8);
        assert_eq!(read(&open(&fs, "a")), contents(392..400));
        unmount_clean(fs, &region);
    }
}

#[test]
fn the_daemon_skips_removed_files_even_if_their_numbers_are_reused() {
    let region = device(16);
    let fs = mount(&region);
    let first = create(&fs, "first").ino();
    open(&fs, "first").write_at(0, &contents([1, 2])).unwrap();
    fs.unlink(ROOT, b"first").unwrap();
    let second = create(&fs, "second");
    assert_eq!(second.ino(), first, "the number is used again");
    second.write_at(0, &contents([3, 4, 3])).unwrap();
    assert_eq!(denova(&fs).queue_entries, 2);
    drain(&fs);
    assert_eq!((denova(&fs).dequeued, denova(&fs).looked_at_bytes), (2, 3 * 4096));
    assert_eq!((read(&second), fs.stats().data_blocks), (contents([3, 4, 3]), 2));
    let third = create(&fs, "third");
    third.write_at(0, &content(3)).unwrap();
    fs.unlink(ROOT, b"third").unwrap();
    drop((second, third));
    // The saved queue leaves out what nobody waits for.
    unmount_clean(fs, &region);
    assert_eq!(denova(&mount(&region)).queue_entries, 0);
}

#[test]
fn the_dedupe_flag_follows_the_progress_of_an_entry() {
    use dedupe::{COMPLETE, NEEDED, NONE};
    let region = device(16);
    let fs = mount(&region);
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    a.write_at(0, &contents([1, 2])).unwrap();
    b.write_at(0, &contents([3, 2])).unwrap();
    assert_eq!((flags(&region, &a, 1), flags(&region, &b, 1)), (vec![NEEDED], vec![NEEDED]));
    fs.drain_step().unwrap();
    assert_eq!((flags(&region, &a, 1), flags(&region, &b, 1)), (vec![COMPLETE], vec![NEEDED]));
    fs.drain_step().unwrap();
    assert_eq!(flags(&region, &b, 2), [COMPLETE, COMPLETE], "its own, and the one that names what is shared");
    let c = create(&fs, "c");
    c.clone_from(&b, 0, 0, 8192).unwrap();
    assert_eq!(flags(&region, &c, 2), [NONE, NONE], "all that it names was looked at");
    a.write_at(0, &content(5)).unwrap();
    c.clone_from(&a, 0, 0, 4096).unwrap();
    assert_eq!(flags(&region, &c, 3)[2..], [NEEDED], "cloned over what was there");
    fs.set_dedup_mode(DedupMode::Inline);
    let d = create(&fs, "d");
    d.write_at(0, &content(6)).unwrap();
    assert_eq!(flags(&region, &d, 1), [NONE]);
    drain(&fs);
    assert_eq!(flags(&region, &c, 3)[2..], [COMPLETE]);
    drop((a, b, c, d));
    unmount_clean(fs, &region);
}

/// A device with two files that share a block, both looked at; the entry of that block, and the files' numbers.
fn shared() -> (Region, u64, InodeNumber) {
    let region = device(16);
    let fs = mount(&region);
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    a.write_at(0, &content(1)).unwrap();
    b.write_at(0, &content(1)).unwrap();
    drain(&fs);
    let ino = b.ino();
    let geometry = Geometry::of(region.len_bytes()).unwrap();
    let block = BlockNumber(a.extents(0, 1).unwrap()[0].address / 4096);
    drop((a, b));
    unmount_clean(fs, &region);
    (region, geometry.chunk_entry_offset(block), ino)
}

fn counts(region: &Region, entry: u64) -> (u32, u32) {
    let entry: ChunkEntry = region.read(entry);
    (entry.count, entry.update_count)
}

fn set_counts(region: &Region, entry: u64, count: u32, update_count: u32) {
    let word = CountWord { count, update_count, ..CountWord::decode(region.load_u128(entry)) };
    let _ = region.fence(region.store_u128(entry, word.encode()).flush());
}

/// What a crash leaves between the steps of Algorithm 1 is counted anew and looked at again (V-C1).
#[test]
fn a_crash_between_any_two_steps_is_recovered() {
    use dedupe::{COMPLETE, IN_PROCESS, NEEDED};
    // The flags of the target and of the entry that was added, and the counts of the block that both files name.
    let left = [
        ("between the tail and the target's flag (III)", NEEDED, IN_PROCESS, (1, 1)),
        ("before RFC and UC (II)", IN_PROCESS, IN_PROCESS, (1, 1)),
        ("behind RFC and UC", IN_PROCESS, IN_PROCESS, (2, 0)),
        ("between the flags", COMPLETE, IN_PROCESS, (2, 0)),
        ("an update that came to nothing (II)", NEEDED, COMPLETE, (2, 1)),
    ];
    for (what, target, added, (count, update_count)) in left {
        let (region, entry, b) = shared();
        let fs = mount(&region);
        set_flag(&region, line(&region, b, 0), target);
        set_flag(&region, line(&region, b, 1), added);
        set_counts(&region, entry, count, update_count);
        drop(fs);
        let crashed = survey(&region, false);
        assert!(crashed.findings.is_empty() && crashed.recoverable > 0, "{what}: {crashed:?}");
        let fs = mount(&region);
        // A release in front of reconcile must not free what the lower count leaves.
        fs.unlink(ROOT, b"a").unwrap();
        fs.reconcile().unwrap();
        let (stats, pending) = (denova(&fs), u64::from(target != COMPLETE) + u64::from(added != COMPLETE));
        assert_eq!((counts(&region, entry), stats.queue_entries), ((1, 0), pending), "{what}");
        drain(&fs);
        assert_eq!(flags(&region, &open(&fs, "b"), 2), [COMPLETE, COMPLETE], "{what}");
        assert_eq!((read(&open(&fs, "b")), fs.stats().data_blocks), (content(1), 1), "{what}");
        unmount_clean(fs, &region);
    }
}

#[test]
fn fsck_finds_wrong_flags_update_counts_and_queues() {
    let (region, entry, b) = shared();
    set_counts(&region, entry, 2, 1);
    found_and_repaired(&region, "with 1 updates under way");
    assert_eq!(counts(&region, entry), (2, 0));
    let (region, entry, _) = shared();
    set_counts(&region, entry, 1, 1);
    found_and_repaired(&region, "with 1 updates under way");
    assert_eq!(counts(&region, entry), (2, 0));
    for (flag, what) in [
        (dedupe::IN_PROCESS, "in process of being shared"),
        (0x77, "a dedupe-flag that is none"),
        (dedupe::NEEDED, "the saved work queue has 0 nodes"),
    ] {
        let (region, ..) = shared();
        set_flag(&region, line(&region, b, 1), flag);
        found_and_repaired(&region, what);
        let fs = mount(&region);
        assert_eq!(denova(&fs).queue_entries, 1, "{what}: looked at again");
        drain(&fs);
        unmount_clean(fs, &region);
    }
}

#[test]
fn fsck_finds_a_saved_queue_that_contradicts_the_logs() {
    let region = device(16);
    let fs = mount(&region);
    let file = create(&fs, "file");
    file.write_at(0, &content(1)).unwrap();
    let ino = file.ino();
    drop(file);
    unmount_clean(fs, &region);
    let (superblock, _) = read_superblock(&region).unwrap();
    let saved: SavedState = region.read(superblock.saved_state);
    assert_eq!(saved.queue_nodes, 1);
    set_flag(&region, line(&region, ino, 0), dedupe::COMPLETE);
    found_and_repaired(&region, "the saved work queue has 1 nodes");
    assert_eq!(denova(&mount(&region)).queue_entries, 0);
}

#[test]
fn other_policies_set_no_flags_but_drain_the_queue() {
    let region = device(16);
    let fs = mount(&region);
    create(&fs, "a").write_at(0, &content(1)).unwrap();
    fs.unmount().unwrap();
    let fs = FileSystem::mount(region.clone(), MountOptions { policy: Policy::Off, ..options() }).unwrap();
    let b = create(&fs, "b");
    b.write_at(0, &content(1)).unwrap();
    assert_eq!(flags(&region, &b, 1), [dedupe::NONE]);
    assert_eq!(denova(&fs).queue_entries, 1);
    // A file may have the policy for itself.
    let c = create(&fs, "c");
    fs.set_xattr(c.ino(), POLICY_ATTRIBUTE, b"denova", XattrMode::Set).unwrap();
    c.write_at(0, &content(1)).unwrap();
    drain(&fs);
    assert_eq!((fs.stats().data_blocks, denova(&fs).shared_bytes), (2, 4096), "what `off` wrote stays its own");
    drop((b, c));
    unmount_clean(fs, &region);
}

#[test]
fn a_new_mode_does_not_wait_for_the_interval_of_the_old_one() {
    let region = device(64);
    let start = std::time::Instant::now();
    let stopwatch: Stopwatch = Arc::new(move || start.elapsed().as_nanos() as u64);
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

/// A page of a log that is freed by writing the log anew may become one of it again: a node then stands for an entry
/// that another one stands for too.
#[test]
fn each_queue_entry_is_saved_once_and_unchanged() {
    for seed in 1..=6 {
        let region = device(16);
        let fs = mount(&region);
        let file = create(&fs, "file");
        let mut numbers = Numbers(seed);
        for _ in 0..3000 {
            let (offset, blocks) = (numbers.below(4) * 4096, 1 + numbers.below(3));
            file.write_at(offset, &contents(0..blocks)).unwrap();
        }
        drop(file);
        unmount_clean(fs, &region);
    }
}

/// What of a queued entry lies in bad memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bad {
    Data,
    Inode,
    LogPage,
    ChunkEntry,
    EqualData,
    EqualChunkEntry,
}

#[test]
fn bad_memory_in_one_entry_costs_only_that_entry_and_the_daemon_continues() {
    use Bad::*;
    let all = [Data, Inode, LogPage, ChunkEntry, EqualData, EqualChunkEntry];
    for (bad, is_known) in all.iter().flat_map(|bad| [(*bad, false), (*bad, true)]) {
        let region = device(16);
        let geometry = Geometry::of(16 << 20).unwrap();
        let fs = mount(&region);
        let stored = create(&fs, "stored");
        stored.write_at(0, &contents([1, 2])).unwrap();
        drain(&fs);
        // Each in a page of the inode table, and with its chunk entries in a page, of its own.
        let apart = |from: u64| {
            (0..8).for_each(|at| drop(create(&fs, &format!("{from}.{at}"))));
            create(&fs, &format!("{from}, that stays out of the way")).write_at(0, &contents(from..from + 64)).unwrap();
            drain(&fs);
        };
        apart(1000);
        let victim = create(&fs, "victim");
        if bad == LogPage {
            (0..6).for_each(|at| victim.write_at(at * 2 * BLOCK as u64, &[1]).unwrap());
            drain(&fs);
        }
        victim.write_at(0, &contents([1, 2])).unwrap();
        let queued = victim.extents(0, 1).unwrap()[0].address;
        apart_without_drain(&fs);
        let last = create(&fs, "last");
        last.write_at(0, &contents([8, 8, 8])).unwrap();
        let equal = stored.extents(0, 1).unwrap()[0].address;
        let entry = |address| geometry.chunk_entry_offset(BlockNumber::containing(address));
        let slot = geometry.first_segment() * SEGMENT_BYTES + victim.ino().0 * INODE_BYTES;
        let (at, length) = match bad {
            Data => (queued, 64),
            Inode => (slot, INODE_BYTES),
            LogPage => (region.load_u64(slot + nvfold::internals::media::inode::OVERFLOW_WORD), 4096),
            ChunkEntry => (entry(queued), 64),
            EqualData => (equal, 64),
            EqualChunkEntry => (entry(equal), 64),
        };
        region.poison(at, length);
        if is_known {
            region.scrub(at, length).unwrap_err();
        }
        let mut daemon = Daemon::new(fs.clone());
        for turn in 0.. {
            daemon.turn().unwrap_or_else(|error| panic!("{bad:?}: {error} ends the daemon"));
            if denova(&fs).queue_entries == 0 {
                break;
            }
            assert!(turn < 1000, "{bad:?}: {} entries are left", denova(&fs).queue_entries);
        }
        let skipped = fs.stats().skipped;
        // Of what is equal to a block only that is lost: the entry is done, and its block unique. And a chunk entry that
        // nobody has read is written anew.
        let least = u64::from(!matches!(bad, EqualData | EqualChunkEntry) && (is_known || bad != ChunkEntry));
        assert!((least..=64).contains(&skipped.count), "{bad:?}, {is_known}: {skipped:?}");
        let tells = |error: &String| error.contains("bad memory");
        assert!(
            skipped.last_error.iter().all(tells) && skipped.last_error.is_some() == (skipped.count > 0),
            "{skipped:?}"
        );
        let shared = last.extents(0, 9).unwrap();
        assert_eq!(shared[0].references, 3, "{bad:?}: what came after it was shared: {shared:?}");
        // And goes on with what comes.
        create(&fs, "later").write_at(0, &contents([8])).unwrap();
        while denova(&fs).queue_entries > 0 {
            daemon.turn().unwrap();
        }
        assert_eq!(last.extents(0, 9).unwrap()[0].references, 4, "{bad:?}");
        assert_eq!(read(&last), contents([8, 8, 8]));
    }
}

/// Inodes and blocks between two files, in the queue.
fn apart_without_drain(fs: &FileSystem) {
    (0..8).for_each(|at| drop(create(fs, &format!("between.{at}"))));
    create(fs, "between").write_at(0, &contents(2000..2064)).unwrap();
}

#[test]
fn a_lost_device_ends_the_daemon() {
    let region = device(16);
    let fs = mount(&region);
    create(&fs, "file").write_at(0, &contents([1, 1])).unwrap();
    let mut daemon = Daemon::new(fs.clone());
    // A store to memory that is bad.
    region.poison(0, 64);
    let _: u64 = region.load_u64(0);
    let _ = region.store_u64(0, 1);
    let error = daemon.turn().unwrap_err();
    assert!(error.is_of_device(), "{error}");
    assert_eq!(fs.stats().skipped.count, 0);
}

/// Bad memory in any page of the device: what the daemon cannot read costs it that. Only a store to bad memory, which
/// loses the device, ends it.
#[test]
fn bad_memory_in_any_page_does_not_end_the_daemon() {
    for index in IndexKind::ALL {
        let fresh = || device_with(16, &MkfsOptions { index, ..MkfsOptions::default() });
        let region = fresh();
        drop(with_queue(&region));
        let ranges = region.allocated_ranges(0, 16 << 20);
        let pages: Vec<u64> = ranges.into_iter().flat_map(|range| range.step_by(BLOCK)).collect();
        let mut skipped = 0;
        for (number, page) in pages.iter().enumerate() {
            let region = fresh();
            let mut fs = with_queue(&region);
            if number % 3 == 0 {
                fs.unmount().unwrap();
                region.poison(*page, BLOCK as u64);
                let Ok(again) = FileSystem::mount(region.clone(), options()) else { continue };
                fs = again;
            } else {
                region.poison(*page, BLOCK as u64);
                if number % 2 == 0 {
                    region.scrub(*page, BLOCK as u64).unwrap_err();
                }
            }
            let mut daemon = Daemon::new(fs.clone());
            for _ in 0..400 {
                let Err(error) = daemon.turn() else { continue };
                assert!(error.is_of_device() && region.is_lost(), "{index:?}, page {page:#x}: {error} ends the daemon");
                break;
            }
            assert!(region.is_lost() || denova(&fs).queue_entries == 0, "{index:?}, page {page:#x}: something is left");
            skipped += u64::from(fs.skipped().count > 0);
        }
        assert!(skipped > 100, "{index:?}: something was left out with {skipped} of {} bad pages", pages.len());
    }
}

/// Files that were shared, and files whose entries are queued.
fn with_queue(region: &Region) -> FileSystem {
    let fs = mount(region);
    for name in 0..12u64 {
        let file = create(&fs, &format!("stored {name}"));
        (0..name).for_each(|at| file.write_at(at * 2 * BLOCK as u64, &contents([name, at, 7])).unwrap());
    }
    drain(&fs);
    for name in 0..12u64 {
        let file = create(&fs, &format!("queued {name}"));
        (0..name).for_each(|at| file.write_at(at * 3 * BLOCK as u64, &contents([at, 100 + name, 7])).unwrap());
    }
    fs
}
