//! Policy `auto`: it follows the workload, in each directory by itself, and whatever it chooses data stays what it is.

use nvfold::check::{CheckOptions, check};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};
use std::sync::Arc;

pub(crate) const BLOCK: usize = 4096;
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
/// Blocks in a period: as many are watched as tell something.
pub(crate) const PERIOD: u64 = 1024;
/// A device that is fast, so that looking for duplicates pays only where there are many.
const FAST: Costs = Costs { write_ns: 1_000, weak_ns: 150, strong_ns: 3_000, lookup_ns: 150, compare_ns: 250 };

pub(crate) fn device(mib: u64, index: IndexKind) -> Region {
    let region = Region::create(&DeviceSpec::Memory, mib << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
    region
}

pub(crate) fn options(prefer: Prefer) -> MountOptions {
    MountOptions {
        policy: Policy::Auto,
        auto: AutoOptions { prefer, period: PERIOD },
        nv_dedup: NvDedupOptions { costs: Some(FAST), ..NvDedupOptions::default() },
        ..MountOptions::default()
    }
}

pub(crate) fn mount(region: &Region, prefer: Prefer) -> FileSystem {
    FileSystem::mount(region.clone(), options(prefer)).unwrap()
}

pub(crate) fn create(fs: &FileSystem, parent: InodeNumber, name: &str) -> File {
    fs.open(fs.create(parent, name.as_bytes(), &NEW).unwrap().ino).unwrap()
}

fn make_dir(fs: &FileSystem, name: &str) -> InodeNumber {
    fs.mkdir(InodeNumber::ROOT, name.as_bytes(), &NewInode { kind: FileKind::Directory, mode: 0o755, ..NEW })
        .unwrap()
        .ino
}

/// A block that no other number has.
pub(crate) fn content(number: u64) -> Vec<u8> {
    let words = (1..=BLOCK as u64 / 8).map(|at| {
        let word = (number << 32 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (word ^ word >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    });
    words.flat_map(u64::to_le_bytes).collect()
}

/// Numbers of the blocks of a phase: so many of a hundred are copies of any one before.
pub(crate) fn numbers(first: u64, count: u64, percent: u64) -> impl Iterator<Item = u64> {
    let (mut random, mut unique) = (first | 1, 0);
    (0..count).map(move |_| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let is_copy = (random >> 33) % 100 < percent && unique > 0;
        unique += u64::from(!is_copy);
        first + if is_copy { (random >> 40) % unique } else { unique - 1 }
    })
}

/// Writes a phase from a file offset on, in requests of so many blocks.
pub(crate) fn write(file: &File, numbers: &[u64], from: u64, request: usize) {
    let mut offset = from;
    for request in numbers.chunks(request) {
        let data: Vec<u8> = request.iter().flat_map(|number| content(*number)).collect();
        file.write_at(offset, &data).unwrap();
        offset += data.len() as u64;
    }
}

pub(crate) fn read_equals(file: &File, numbers: &[u64], from: u64) {
    let mut bytes = vec![0; BLOCK];
    for (at, number) in (0u64..).zip(numbers) {
        assert_eq!(file.read_at(from + at * BLOCK as u64, &mut bytes).unwrap(), BLOCK);
        assert_eq!(bytes, content(*number), "block {at}");
    }
}

pub(crate) fn unmount_clean(fs: FileSystem, region: &Region) {
    fs.unmount().unwrap();
    let report = check(region, &CheckOptions::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn the_choice_of_auto_follows_a_workload_that_changes_and_changes_back() {
    for request in [1, 32] {
        let region = device(256, IndexKind::Dram);
        let fs = mount(&region, Prefer::Speed);
        let file = create(&fs, InodeNumber::ROOT, "file");
        let chosen = || fs.chosen_policy_of(file.ino()).unwrap();
        assert_eq!(chosen(), Policy::Inline, "nothing is known yet");
        let mut all = Vec::new();
        for (phase, (percent, expected)) in
            [(0, Policy::Off), (95, Policy::Inline), (0, Policy::Off), (95, Policy::Inline)].into_iter().enumerate()
        {
            let phase: Vec<u64> = numbers(phase as u64 * 100_000, 8 * PERIOD, percent).collect();
            write(&file, &phase, (all.len() * BLOCK) as u64, request);
            all.extend(phase);
            let stats = fs.stats().auto.unwrap();
            assert_eq!(chosen(), expected, "requests of {request}, {percent} %: {stats:?}");
        }
        let stats = fs.stats().auto.unwrap();
        assert_eq!(stats.directories[0].directory, InodeNumber::ROOT.0);
        assert_eq!(stats.directories[0].policy, Policy::Inline);
        assert!(stats.directories[0].switches >= 3, "{stats:?}");
        assert!((stats.directories[0].ratio.unwrap() - 0.95).abs() < 0.05, "{stats:?}");
        assert_eq!(stats.directories[0].estimates[0].policy, Policy::Inline, "the best first");
        read_equals(&file, &all, 0);
        drop(file);
        unmount_clean(fs, &region);
        let fs = mount(&region, Prefer::Speed);
        let file = fs.open(fs.lookup(InodeNumber::ROOT, b"file").unwrap().ino).unwrap();
        read_equals(&file, &all, 0);
        drop(file);
        unmount_clean(fs, &region);
    }
}

/// The first blocks of new data are enough where they leave no doubt.
#[test]
fn a_refuted_choice_ends_its_period() {
    const LONG: u64 = 8 * PERIOD;
    let region = device(256, IndexKind::Dram);
    let slow = Costs { write_ns: 10_000, ..FAST };
    let auto = AutoOptions { prefer: Prefer::Speed, period: LONG };
    let nv_dedup = NvDedupOptions { costs: Some(slow), ..NvDedupOptions::default() };
    let fs = FileSystem::mount(region.clone(), MountOptions { auto, nv_dedup, ..options(Prefer::Speed) }).unwrap();
    let file = create(&fs, InodeNumber::ROOT, "file");
    let unique: Vec<u64> = numbers(0, LONG + LONG / 2, 0).collect();
    write(&file, &unique, 0, 8);
    assert_eq!(fs.chosen_policy_of(file.ino()).unwrap(), Policy::Off);
    let copies: Vec<u64> = numbers(1_000_000, LONG / 8, 95).collect();
    write(&file, &copies, (unique.len() * BLOCK) as u64, 8);
    let stats = fs.stats().auto.unwrap();
    assert_eq!(fs.chosen_policy_of(file.ino()).unwrap(), Policy::Inline, "{stats:?}");
    read_equals(&file, &[unique, copies].concat(), 0);
    drop(file);
    unmount_clean(fs, &region);
}

/// What refutes a choice may follow from it: what is stored unlooked-at is not found later.
#[test]
fn two_choices_that_refute_each_other_do_not_alternate_forever() {
    let region = device(512, IndexKind::Dram);
    let fs = mount(&region, Prefer::Speed);
    let file = create(&fs, InodeNumber::ROOT, "file");
    let unique: Vec<u64> = numbers(0, 8 * PERIOD, 0).collect();
    for copy in 0..4 {
        write(&file, &unique, copy * (unique.len() * BLOCK) as u64, 8);
    }
    let stats = fs.stats().auto.unwrap();
    assert!(stats.directories[0].switches <= 32, "one a period at most: {stats:?}");
    drop(file);
    unmount_clean(fs, &region);
}

#[test]
fn auto_watches_no_data_if_none_could_change_its_choice() {
    let region = device(64, IndexKind::Dram);
    let costs = Some(Costs { write_ns: 300, ..FAST });
    let nv_dedup = NvDedupOptions { costs, ..NvDedupOptions::default() };
    let fs = FileSystem::mount(region.clone(), MountOptions { nv_dedup, ..options(Prefer::Speed) }).unwrap();
    let device_wide = || fs.stats().auto.unwrap().device;
    assert_eq!((device_wide().policy, device_wide().reason), (Policy::Off, Reason::AtAnyRatio));
    let file = create(&fs, InodeNumber::ROOT, "file");
    let written = vec![7; 2 * PERIOD as usize];
    write(&file, &written, 0, 8);
    assert_eq!(fs.stats().data_blocks, 2 * PERIOD, "not one of them is shared");
    let directory = &fs.stats().auto.unwrap().directories[0];
    assert_eq!((directory.reason, directory.ratio, directory.blocks), (Reason::AtAnyRatio, None, 2 * PERIOD));
    read_equals(&file, &written, 0);
    drop(file);
    unmount_clean(fs, &region);
}

#[test]
fn directories_choose_by_themselves_and_inherit_the_attribute() {
    let region = device(256, IndexKind::Dram);
    let mount_options = MountOptions { policy: Policy::Inline, ..options(Prefer::Speed) };
    let fs = FileSystem::mount(region.clone(), mount_options).unwrap();
    let dirs = ["unique", "copies"].map(|name| make_dir(&fs, name));
    dirs.iter().for_each(|dir| fs.set_xattr(*dir, POLICY_ATTRIBUTE, b"auto", XattrMode::Set).unwrap());
    let files = dirs.map(|dir| create(&fs, dir, "file"));
    assert_eq!(fs.policy_of(files[0].ino()).unwrap(), PolicyOf::Own(Policy::Auto));
    for part in 0..16 {
        let from = part * PERIOD * BLOCK as u64;
        write(&files[0], &numbers(part * 10_000, PERIOD, 0).collect::<Vec<_>>(), from, 8);
        write(&files[1], &numbers(1_000_000, PERIOD, 95).collect::<Vec<_>>(), from, 8);
    }
    assert_eq!(files.each_ref().map(|file| fs.chosen_policy_of(file.ino()).unwrap()), [Policy::Off, Policy::Inline]);
    let stats = fs.stats().auto.unwrap();
    assert_eq!(stats.directories.len(), 2, "{stats:?}");
    drop(files);
    unmount_clean(fs, &region);
}

#[test]
fn directories_beyond_the_table_use_the_choice_of_the_device() {
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region, Prefer::Balanced);
    for number in 0..300 {
        let dir = make_dir(&fs, &format!("{number}"));
        let file = create(&fs, dir, "file");
        file.write_at(0, &content(number % 7)).unwrap();
        read_equals(&file, &[number % 7], 0);
    }
    assert_eq!(fs.stats().data_blocks, 7, "while nothing is known all is shared");
    assert_eq!(fs.stats().auto.unwrap().directories.len(), AutoStats::DIRECTORIES_MAX);
    unmount_clean(fs, &region);
}

#[test]
fn sixteen_kibibytes_are_shared_and_are_too_few_for_an_estimate() {
    let region = device(16, IndexKind::Dram);
    let fs = mount(&region, Prefer::Balanced);
    let file = create(&fs, InodeNumber::ROOT, "file");
    write(&file, &[1, 2, 1, 2], 0, 1);
    let stats = fs.stats();
    assert_eq!(stats.data_blocks, 2);
    let auto = stats.auto.unwrap();
    assert_eq!((auto.device.reason, auto.device.ratio, auto.device.blocks), (Reason::Unknown, None, 4));
    drop(file);
    unmount_clean(fs, &region);
}

#[test]
fn two_threads_write_while_auto_switches() {
    let region = device(512, IndexKind::Dram);
    let fs = mount(&region, Prefer::Speed);
    let files: Vec<File> = (0..2).map(|at| create(&fs, InodeNumber::ROOT, &format!("{at}"))).collect();
    let phases: Vec<Vec<u64>> = (0..8)
        .map(|phase| numbers(phase * 100_000, 3 * PERIOD, if phase % 2 == 0 { 0 } else { 95 }).collect())
        .collect();
    let all: Vec<u64> = phases.iter().flatten().copied().collect();
    std::thread::scope(|scope| {
        for (at, file) in files.iter().enumerate() {
            let all = &all;
            // One thread writes block by block, the other in long requests.
            scope.spawn(move || write(file, all, 0, [1, 16][at]));
        }
    });
    files.iter().for_each(|file| read_equals(file, &all, 0));
    assert!(fs.stats().auto.unwrap().device.periods > 8);
    drop(files);
    unmount_clean(fs, &region);
}

#[test]
fn auto_on_a_full_device_gives_exact_enospc_and_keeps_its_costs() {
    let looks = std::sync::atomic::AtomicU64::new(0);
    let stopwatch: Stopwatch = Arc::new(move || looks.fetch_add(100, std::sync::atomic::Ordering::Relaxed));
    let nv_dedup = NvDedupOptions::default();
    let auto = AutoOptions { prefer: Prefer::Speed, period: 64 };
    let with_clock = || MountOptions { stopwatch: Some(stopwatch.clone()), nv_dedup, auto, ..options(Prefer::Speed) };
    let fill = |options: MountOptions| {
        let region = device(16, IndexKind::Dram);
        let fs = FileSystem::mount(region.clone(), options).unwrap();
        let file = create(&fs, InodeNumber::ROOT, "file");
        let mut blocks = 0;
        let error = loop {
            match file.write_at(blocks * BLOCK as u64, &content(blocks)) {
                Ok(_) => blocks += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno(), errno::ENOSPC);
        read_equals(&file, &(0..blocks).collect::<Vec<_>>(), 0);
        drop(file);
        let measured = fs.stats().auto.is_some_and(|auto| auto.measured);
        fs.unlink(InodeNumber::ROOT, b"file").unwrap();
        fs.unmount().unwrap();
        assert!(check(&region, &CheckOptions::default()).unwrap().findings.is_empty());
        (blocks, measured)
    };
    let (inline, _) = fill(MountOptions { policy: Policy::Inline, ..with_clock() });
    assert_eq!(fill(MountOptions { stopwatch: None, ..with_clock() }), (inline, false));
    // What is measured with a block of its own makes holes between the extents of the file, and its log longer.
    let (blocks, measured) = fill(with_clock());
    assert!(measured && blocks.abs_diff(inline) < 16, "{blocks} of {inline}");
}

#[test]
fn auto_on_a_read_only_mount_measures_nothing_and_all_files_are_readable() {
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region, Prefer::Balanced);
    let file = create(&fs, InodeNumber::ROOT, "file");
    let written: Vec<u64> = numbers(0, 2 * PERIOD, 50).collect();
    write(&file, &written, 0, 4);
    drop(file);
    unmount_clean(fs, &region);
    let stopwatch: Stopwatch = Arc::new(|| 0);
    let nv_dedup = NvDedupOptions::default();
    let read_only = MountOptions { read_only: true, nv_dedup, stopwatch: Some(stopwatch), ..options(Prefer::Balanced) };
    let fs = FileSystem::mount(region.clone(), read_only).unwrap();
    let file = fs.open(fs.lookup(InodeNumber::ROOT, b"file").unwrap().ino).unwrap();
    read_equals(&file, &written, 0);
    assert!(matches!(file.write_at(0, &content(1)), Err(Error::ReadOnly { .. })));
    assert!(!fs.stats().auto.unwrap().measured);
    drop(file);
    fs.unmount().unwrap();
}

#[test]
fn data_stored_without_fingerprints_is_found_once_sharing_pays() {
    let region = device(256, IndexKind::Dram);
    let fs = mount(&region, Prefer::Wear);
    let file = create(&fs, InodeNumber::ROOT, "file");
    let unique: Vec<u64> = (0..8 * PERIOD).collect();
    write(&file, &unique, 0, 8);
    assert_eq!(fs.chosen_policy_of(file.ino()).unwrap(), Policy::Off, "nothing to save");
    assert!(fs.fill_step().unwrap(), "nobody looks for it");
    // Copies: those that are watched are found at once, and the choice follows.
    write(&file, &unique, 8 * PERIOD * BLOCK as u64, 8);
    assert_eq!(fs.chosen_policy_of(file.ino()).unwrap(), Policy::Inline, "{:?}", fs.stats().auto);
    while !fs.fill_step().unwrap() {}
    write(&file, &unique, 16 * PERIOD * BLOCK as u64, 8);
    let stored = fs.stats().data_blocks;
    write(&file, &unique, 24 * PERIOD * BLOCK as u64, 8);
    assert_eq!(fs.stats().data_blocks, stored, "everything is found");
    drop(file);
    unmount_clean(fs, &region);
}

#[test]
fn with_a_pm_index_and_a_daemon_auto_shares_later() {
    let region = device(256, IndexKind::Pm);
    let fs = mount(&region, Prefer::Balanced);
    let mut daemon = Daemon::new(fs.clone());
    daemon.turn().unwrap();
    let file = create(&fs, InodeNumber::ROOT, "file");
    let mut all = Vec::new();
    for phase in 0..8 {
        let phase: Vec<u64> = numbers(phase * 100_000, 2 * PERIOD, 30).collect();
        write(&file, &phase, (all.len() * BLOCK) as u64, 8);
        all.extend(phase);
        while !fs.drain_step().unwrap() {}
    }
    let stats = fs.stats();
    let auto = stats.auto.unwrap();
    assert_eq!(auto.directories[0].policy, Policy::DeNova, "{auto:?}");
    let unique = all.iter().collect::<std::collections::HashSet<_>>().len() as u64;
    assert_eq!(stats.data_blocks, unique, "nothing is stored twice in the end");
    read_equals(&file, &all, 0);
    drop((file, daemon));
    unmount_clean(fs, &region);
}

/// Where the mount compresses, data that shrinks is packed, and other data is not.
#[test]
fn compressible_data_is_packed_to_save_space_and_other_data_is_not() {
    let region = device(256, IndexKind::Dram);
    let compressing = MountOptions { compression: Compression::Lz4, ..options(Prefer::Space) };
    let fs = FileSystem::mount(region.clone(), compressing).unwrap();
    let file = create(&fs, InodeNumber::ROOT, "file");
    let line = |number: u64| format!("line {number} of a log in which every line is nearly the same as the next\n");
    let text: Vec<u8> = (0..).flat_map(|number| line(number).into_bytes()).take(4 * PERIOD as usize * BLOCK).collect();
    for (at, request) in (0u64..).zip(text.chunks(32 * BLOCK)) {
        file.write_at(at * 32 * BLOCK as u64, request).unwrap();
    }
    let chosen = || fs.chosen_policy_of(file.ino()).unwrap();
    assert_eq!(chosen(), Policy::DeExt, "{:?}", fs.stats().auto);
    let unique: Vec<u64> = numbers(1, 12 * PERIOD, 0).collect();
    write(&file, &unique, text.len() as u64, 32);
    assert_ne!(chosen(), Policy::DeExt, "{:?}", fs.stats().auto);
    let mut bytes = vec![0; text.len()];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), text.len());
    assert!(bytes == text);
    read_equals(&file, &unique, text.len() as u64);
    drop(file);
    unmount_clean(fs, &region);
}

/// An unmount that never came: the choice and what it saw are lost, and no data.
#[test]
fn a_crash_while_auto_switches_loses_nothing_and_restarts_the_choice() {
    for index in [IndexKind::Dram, IndexKind::Pm] {
        let region = device(256, index);
        let fs = mount(&region, Prefer::Speed);
        let file = create(&fs, InodeNumber::ROOT, "file");
        let mut all = Vec::new();
        for phase in 0..4 {
            let phase: Vec<u64> = numbers(phase * 100_000, 2 * PERIOD, [0, 95][phase as usize % 2]).collect();
            write(&file, &phase, (all.len() * BLOCK) as u64, 8);
            all.extend(phase);
        }
        assert!(fs.stats().auto.unwrap().device.switches > 1);
        drop((file, fs));
        let fs = mount(&region, Prefer::Speed);
        assert_eq!(fs.stats().auto.unwrap().device.reason, Reason::Unknown);
        let file = fs.open(fs.lookup(InodeNumber::ROOT, b"file").unwrap().ino).unwrap();
        read_equals(&file, &all, 0);
        drop(file);
        unmount_clean(fs, &region);
    }
}
