//! Growth: a file system on a longer device keeps its files, uses the new part, and is checked there; what cannot be is
//! refused, and lists of zones that nvfold does not make are damage.

use nvfold::check::{CheckOptions, CheckReport, check};
use nvfold::internals::media::chunk_entry::ChunkEntry;
use nvfold::internals::media::segment::{KIND_BLOCKS, SegmentEntry};
use nvfold::internals::media::superblock::{COPIES, Geometry, STATE_CLEAN, STATE_IN_USE, ZONES};
use nvfold::internals::media::zone::ZONES_MAX;
use nvfold::internals::media::{BlockNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};

const MIB: u64 = 1 << 20;
/// Neither ends where a segment ends.
const SMALL_BYTES: u64 = 17 * MIB + 3 * BLOCK_BYTES;
const LARGE_BYTES: u64 = 43 * MIB + 5 * BLOCK_BYTES;
const ROOT: InodeNumber = InodeNumber::ROOT;
const POLICIES: [Policy; 9] = [
    Policy::Off,
    Policy::Inline,
    Policy::NvDedup,
    Policy::DeNova,
    Policy::DeExt,
    Policy::Icid,
    Policy::IcidInline,
    Policy::IcidDeExt,
    Policy::Auto,
];

/// Bytes that nothing compresses; other ones for each seed.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut made = vec![0; bytes];
    for word in made.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    made
}

fn memory(bytes: u64) -> Region {
    Region::create(&DeviceSpec::Memory, bytes, &OpenOptions::default()).unwrap()
}

/// Returns a longer device with the same content. What follows it is not zero.
fn longer(region: &Region, bytes: u64) -> Region {
    let longer = memory(bytes);
    for range in region.allocated_ranges(0, region.len_bytes()) {
        let _ = longer.fence(longer.stream(range.start, &region.to_vec(range.start, range.end - range.start)));
    }
    let end = region.len_bytes();
    let _ = longer.fence(longer.stream(end, &[0xA5; 1 << 20][..(bytes - end).min(1 << 20) as usize]));
    longer
}

fn formatted(bytes: u64, index: IndexKind) -> Region {
    let region = memory(bytes);
    FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
    region
}

fn mount(region: &Region, policy: Policy) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap()
}

fn whole(region: &Region) -> CheckReport {
    let report = check(region, &CheckOptions::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    report
}

fn write(fs: &FileSystem, name: &str, data: &[u8]) -> Result<()> {
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    let ino = fs.create(ROOT, name.as_bytes(), &new)?.ino;
    fs.open(ino)?.write_at(0, data)
}

fn read(fs: &FileSystem, name: &str) -> Vec<u8> {
    let attr = fs.lookup(ROOT, name.as_bytes()).unwrap();
    let mut bytes = vec![0; attr.size as usize];
    assert_eq!(fs.open(attr.ino).unwrap().read_at(0, &mut bytes).unwrap() as u64, attr.size);
    bytes
}

/// Writes files of half a MiB until there is no room; returns how many there are.
fn fill(fs: &FileSystem, from: u64) -> u64 {
    let mut number = from;
    loop {
        let name = format!("{number}");
        match write(fs, &name, &noise(number, 1 << 19)) {
            Ok(()) => number += 1,
            Err(error) => {
                assert_eq!(error.errno(), errno::ENOSPC, "{error}");
                fs.unlink(ROOT, name.as_bytes()).unwrap();
                return number;
            }
        }
    }
}

fn compare(fs: &FileSystem, files: u64, what: &str) {
    compare_some(fs, 0..files, what);
}

fn compare_some(fs: &FileSystem, files: impl Iterator<Item = u64>, what: &str) {
    files.for_each(|file| assert!(read(fs, &format!("{file}")) == noise(file, 1 << 19), "{what}: file {file}"));
}

#[test]
fn a_full_file_system_grows_under_every_policy_and_takes_more() {
    let with_pm = [Policy::Inline, Policy::DeNova, Policy::DeExt].map(|policy| (policy, IndexKind::Pm));
    for (policy, index) in POLICIES.map(|policy| (policy, IndexKind::Dram)).into_iter().chain(with_pm) {
        let what = format!("{policy:?}, {index:?}");
        let small = formatted(SMALL_BYTES, index);
        let fs = mount(&small, policy);
        let before = fill(&fs, 0);
        let used = fs.statfs();
        fs.unmount().unwrap();
        let region = longer(&small, LARGE_BYTES);
        assert!(before > 10, "{what}");

        let grown = grow(&region).unwrap();
        assert_eq!(grown, Resized { before_bytes: SMALL_BYTES, after_bytes: LARGE_BYTES });
        assert_eq!(grow(&region).unwrap(), Resized { before_bytes: LARGE_BYTES, after_bytes: LARGE_BYTES });
        assert!(whole(&region).clean, "{what}");
        let (superblock, geometry) = read_superblock(&region).unwrap();
        assert_eq!((superblock.device_bytes, geometry.growths()), (LARGE_BYTES, 1));
        assert!(superblock.incompatible & ZONES != 0, "older versions refuse it");

        let fs = mount(&region, policy);
        assert_eq!(fs.stats().device_bytes, LARGE_BYTES);
        assert!(fs.statfs().blocks_free > used.blocks_free + 5000, "{what}: {:?} {:?}", used, fs.statfs());
        compare(&fs, before, &what);
        let after = fill(&fs, before);
        assert!(after > before + 40, "{what}: {before} {after}");
        compare(&fs, after, &what);
        // Frees blocks in both zones, of which the host gets the memory back.
        (0..after).step_by(3).for_each(|file| fs.unlink(ROOT, format!("{file}").as_bytes()).unwrap());
        fs.trim().unwrap();
        (0..after).step_by(6).for_each(|file| write(&fs, &format!("{file}"), &noise(file, 1 << 19)).unwrap());
        fs.unmount().unwrap();
        assert!(whole(&region).clean, "{what}");
        let fs = mount(&region, policy);
        let is_there = |file: &u64| !file.is_multiple_of(3) || file.is_multiple_of(6);
        compare_some(&fs, (0..after).filter(is_there), &what);
        // As after a crash.
        let crashed = longer(&region, LARGE_BYTES + MIB);
        drop(fs);
        let (superblock, _) = read_superblock(&crashed).unwrap();
        assert_eq!(superblock.state, STATE_IN_USE);
        let fs = mount(&crashed, policy);
        assert!(!fs.stats().recovery.loaded);
        fs.reconcile().unwrap();
        compare_some(&fs, (0..after).filter(is_there), &what);
        fs.unmount().unwrap();
        whole(&crashed);
    }
}

#[test]
fn a_device_grows_as_often_as_it_can_and_not_more_often() {
    let mut region = formatted(16 * MIB, IndexKind::Dram);
    let mut bytes = 16 * MIB;
    let mut files = 0;
    for number in 0..ZONES_MAX as u64 {
        bytes += 5 * MIB + (number * 7 % 512) * BLOCK_BYTES;
        region = longer(&region, bytes);
        assert_eq!(grow(&region).unwrap().after_bytes, bytes);
        let fs = mount(&region, Policy::Inline);
        files = fill(&fs, files);
        fs.unmount().unwrap();
        whole(&region);
    }
    compare(&mount(&region, Policy::Off), files, "inline");
    let (_, geometry) = read_superblock(&region).unwrap();
    assert_eq!((geometry.growths(), geometry.growths_left()), (ZONES_MAX, 0));
    let region = longer(&region, bytes + 64 * MIB);
    let refused = grow(&region).unwrap_err();
    assert!(refused.to_string().contains("longer 32 times, which is the limit"), "{refused}");
    assert_eq!(read_superblock(&region).unwrap().0.device_bytes, bytes);
    whole(&region);
}

/// Places of entries: none twice, none in data, and each found again from its page.
#[test]
fn the_tables_of_all_zones_have_room_for_all_entries_and_none_for_data() {
    for seed in 0..20 {
        let mut random = fastrand_like(seed);
        let mut bytes = 16 * MIB + random(600) * BLOCK_BYTES;
        let mut region = formatted(bytes, IndexKind::Dram);
        for _ in 0..4 {
            bytes += 4 * MIB + random(6000) * BLOCK_BYTES;
            region = longer(&region, bytes);
            grow(&region).unwrap();
        }
        let (_, geometry) = read_superblock(&region).unwrap();
        let (mut places, mut blocks) = (std::collections::BTreeSet::new(), 0);
        for segment in geometry.data_ranges().flatten() {
            assert!(geometry.is_data_segment(segment));
            let at = geometry.segment_entry_offset(segment);
            assert!(places.insert(at) && !geometry.holds_data(at, 1), "{seed}: segment {segment}");
            for block in (segment * SEGMENT_BLOCKS..).take(geometry.blocks_in_segment(segment) as usize) {
                let at = geometry.chunk_entry_offset(BlockNumber(block));
                assert!(places.insert(at) && !geometry.holds_data(at, 64), "{seed}: block {block}");
                assert!(geometry.chunk_tables().any(|table| table.contains(&at)), "{seed}: block {block}");
                assert!(geometry.blocks_of_page(at / BLOCK_BYTES * BLOCK_BYTES).contains(&block));
                assert!(geometry.holds_data(block * BLOCK_BYTES, BLOCK_BYTES), "{seed}: block {block}");
                blocks += 1;
            }
        }
        assert_eq!(blocks, geometry.data_blocks());
        let of_data = (0..bytes / BLOCK_BYTES).filter(|block| geometry.holds_data(block * BLOCK_BYTES, BLOCK_BYTES));
        assert_eq!(of_data.count() as u64, blocks, "no other block holds data");
        let is_copy = |at: u64| geometry.holds_data(at, BLOCK_BYTES);
        assert!(geometry.copies().all(|at| !is_copy(at)));
    }
}

fn fastrand_like(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut bytes = noise(seed + 1, 4096).into_iter();
    move |below| {
        let number = (0..4).fold(0, |number, _| number << 8 | u64::from(bytes.next().unwrap()));
        number % below
    }
}

#[test]
fn a_pm_index_keeps_its_chains_and_can_be_made_for_all_blocks() {
    let small = formatted(16 * MIB, IndexKind::Pm);
    let fs = mount(&small, Policy::Inline);
    (0..6).for_each(|file| write(&fs, &format!("{file}"), &noise(file, 1 << 19)).unwrap());
    fs.unmount().unwrap();
    let region = longer(&small, 80 * MIB);
    grow(&region).unwrap();
    whole(&region);
    assert!(read_superblock(&region).unwrap().1.index_is_small());
    let saved = |fs: &FileSystem| fs.stats().saved_bytes;
    let fs = mount(&region, Policy::Inline);
    (6..60).for_each(|file| write(&fs, &format!("{file}"), &noise(file, 1 << 19)).unwrap());
    let before = saved(&fs);
    (0..60).step_by(7).for_each(|file| write(&fs, &format!("{}", 100 + file), &noise(file, 1 << 19)).unwrap());
    assert_eq!(saved(&fs) - before, 9 << 19, "all of it is found, in both zones");
    fs.unmount().unwrap();
    whole(&region);

    convert_index(&region, IndexKind::Pm, WeakFunction::default(), &mut |_, _| {}).unwrap();
    whole(&region);
    let (superblock, geometry) = read_superblock(&region).unwrap();
    assert!(!geometry.index_is_small() && superblock.index_zones == 1);
    let fs = mount(&region, Policy::Inline);
    let before = saved(&fs);
    (0..60).step_by(7).for_each(|file| write(&fs, &format!("{}", 200 + file), &noise(file, 1 << 19)).unwrap());
    assert_eq!(saved(&fs) - before, 9 << 19);
    compare(&fs, 60, "pm");
    fs.unmount().unwrap();
    for to in [IndexKind::Dram, IndexKind::Pm] {
        convert_index(&region, to, WeakFunction::default(), &mut |_, _| {}).unwrap();
        whole(&region);
    }
}

#[test]
fn a_device_that_cannot_grow_stays_as_it_is() {
    let dir = std::env::temp_dir().join(format!("nvfold-grow-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let path = dir.join("device");
    let spec = DeviceSpec::Path(path.clone());
    let options = OpenOptions::default();
    let region = Region::create(&spec, 32 * MIB, &options).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    drop(region);
    let bytes = || std::fs::metadata(&path).unwrap().len();
    let refused = |size: Option<u64>, why: &str| {
        let told = resize(&spec, size, &options).unwrap_err().to_string();
        assert!(told.contains(why), "{told}");
        assert_eq!(read_superblock(&Region::open(&spec, &options).unwrap()).unwrap().0.device_bytes, 32 * MIB);
    };
    refused(Some(16 * MIB), "cannot make a file system shorter");
    refused(Some(32 * MIB + 5000), "not a multiple of 4096");
    refused(Some(32 * MIB + MIB), "too few more");
    refused(Some(1 << 45), "too many");
    assert_eq!(bytes(), 32 * MIB);
    assert_eq!(resize(&spec, None, &options).unwrap(), Resized { before_bytes: 32 * MIB, after_bytes: 32 * MIB });
    std::fs::File::options().write(true).open(&path).unwrap().set_len(64 * MIB).unwrap();
    refused(Some(48 * MIB), "leave the size out");
    assert_eq!(bytes(), 64 * MIB);
    assert_eq!(resize(&spec, None, &options).unwrap(), Resized { before_bytes: 32 * MIB, after_bytes: 64 * MIB });
    let grown = resize(&spec, Some(128 * MIB), &options).unwrap();
    assert_eq!((grown.after_bytes, bytes()), (128 * MIB, 128 * MIB));
    let region = Region::open(&spec, &options).unwrap();
    whole(&region);
    assert!(resize(&spec, Some(256 * MIB), &options).unwrap_err().to_string().contains("in use"));
    assert!(resize(&DeviceSpec::Memory, None, &options).is_err());
    drop(region);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// At level `file` all of it is one sync. A full disk is found there, and the old size stays.
#[test]
fn without_room_on_the_disk_the_old_size_stays() {
    let options = OpenOptions { as_file: true, record_host: true, ..OpenOptions::default() };
    let region = Region::create(&DeviceSpec::Memory, LARGE_BYTES, &options).unwrap();
    let small = formatted(SMALL_BYTES, IndexKind::Dram);
    for range in small.allocated_ranges(0, SMALL_BYTES) {
        let _ = region.fence(region.stream(range.start, &small.to_vec(range.start, range.end - range.start)));
    }
    region.sync().unwrap();
    region.limit_host(0);
    let full = grow(&region).unwrap_err();
    assert_eq!(full.errno(), errno::ENOSPC, "{full}");
    region.limit_host(u64::MAX);
    assert_eq!(read_superblock(&region).unwrap().0.device_bytes, SMALL_BYTES);
    grow(&region).unwrap();
    whole(&region);
}

fn growable(bytes: u64, index: IndexKind, as_file: bool) -> Region {
    let options = OpenOptions { can_grow: true, as_file, ..OpenOptions::default() };
    let region = Region::create(&DeviceSpec::Memory, bytes, &options).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
    region
}

/// The same at the levels `memory` and `file`: a file that is open stays open, and its data is there.
#[test]
fn a_full_file_system_grows_while_it_is_mounted_under_every_policy() {
    let with_pm = [Policy::Inline, Policy::DeNova, Policy::DeExt].map(|policy| (policy, IndexKind::Pm));
    let all = POLICIES.map(|policy| (policy, IndexKind::Dram)).into_iter().chain(with_pm);
    for (as_file, (policy, index)) in
        [false, true].into_iter().flat_map(|as_file| all.clone().map(move |of| (as_file, of)))
    {
        let what = format!("{policy:?}, {index:?}, {as_file}");
        let region = growable(SMALL_BYTES, index, as_file);
        let fs = mount(&region, policy);
        write(&fs, "open", &noise(1000, 5000)).unwrap();
        let open = fs.open(fs.lookup(ROOT, b"open").unwrap().ino).unwrap();
        let before = fill(&fs, 0);
        let (statfs, stats) = (fs.statfs(), fs.stats());
        assert_eq!(fs.grow(None).unwrap(), Resized { before_bytes: SMALL_BYTES, after_bytes: SMALL_BYTES });
        let grown = fs.grow(Some(LARGE_BYTES)).unwrap();
        assert_eq!(grown, Resized { before_bytes: SMALL_BYTES, after_bytes: LARGE_BYTES }, "{what}");
        assert_eq!(fs.grow(Some(LARGE_BYTES)).unwrap().before_bytes, LARGE_BYTES);
        let (now, large) = (fs.statfs(), fs.stats());
        assert_eq!((large.device_bytes, region.len_bytes()), (LARGE_BYTES, LARGE_BYTES), "{what}");
        assert!(now.blocks > statfs.blocks + 6000, "{what}: {now:?}");
        // The host of a device in memory does not tell how much disk it has.
        assert!(as_file || now.blocks_free > statfs.blocks_free + 6000, "{what}: {now:?}");
        assert_eq!(large.stored_bytes, stats.stored_bytes);
        assert_eq!(fs.growth(), (ZONES_MAX - 1, index == IndexKind::Pm), "{what}");
        open.write_at(2500, &noise(1001, 5000)).unwrap();
        compare(&fs, before, &what);
        let after = fill(&fs, before);
        assert!(after > before + 40, "{what}: {before} {after}");
        compare(&fs, after, &what);
        (0..after).step_by(3).for_each(|file| fs.unlink(ROOT, format!("{file}").as_bytes()).unwrap());
        fs.trim().unwrap();
        (0..after).step_by(6).for_each(|file| write(&fs, &format!("{file}"), &noise(file, 1 << 19)).unwrap());
        let is_there = |file: &u64| !file.is_multiple_of(3) || file.is_multiple_of(6);
        compare_some(&fs, (0..after).filter(is_there), &what);
        // As a crash now would leave it.
        region.sync().unwrap();
        let crashed = longer(&region, LARGE_BYTES + MIB);
        drop(open);
        fs.unmount().unwrap();
        assert!(whole(&region).clean, "{what}");
        for region in [region, crashed] {
            let fs = mount(&region, policy);
            fs.reconcile().unwrap();
            assert_eq!(fs.stats().device_bytes, LARGE_BYTES, "{what}");
            compare_some(&fs, (0..after).filter(is_there), &what);
            assert!(read(&fs, "open") == [&noise(1000, 5000)[..2500], &noise(1001, 5000)].concat());
            fs.unmount().unwrap();
            whole(&region);
        }
    }
}

#[test]
fn a_mounted_device_grows_as_often_as_it_can_and_not_more_often() {
    let region = growable(16 * MIB, IndexKind::Dram, false);
    let fs = mount(&region, Policy::Inline);
    let (mut bytes, mut files) = (16 * MIB, 0);
    for number in 0..ZONES_MAX as u64 {
        bytes += 5 * MIB + (number * 7 % 512) * BLOCK_BYTES;
        assert_eq!(fs.grow(Some(bytes)).unwrap().after_bytes, bytes);
        files = fill(&fs, files);
    }
    let refused = fs.grow(Some(bytes + 64 * MIB)).unwrap_err();
    assert!(refused.to_string().contains("longer 32 times, which is the limit"), "{refused}");
    assert_eq!((region.len_bytes(), fs.growth()), (bytes, (0, false)));
    compare(&fs, files, "mounted");
    fs.unmount().unwrap();
    whole(&region);
    compare(&mount(&region, Policy::Off), files, "mounted again");
}

/// Writers that find no space go on when there is some; meanwhile files are read, memory is given back, and background work
/// goes on.
#[test]
fn writers_without_space_go_on_when_the_device_grows() {
    const FILES: u64 = 40;
    for policy in POLICIES {
        let region = growable(SMALL_BYTES, IndexKind::Dram, false);
        let fs = mount(&region, policy);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|writer| {
                    let fs = fs.clone();
                    scope.spawn(move || {
                        for number in 0..FILES {
                            let name = format!("{}", writer * FILES + number);
                            while let Err(error) = write(&fs, &name, &noise(writer * FILES + number, 1 << 19)) {
                                assert_eq!(error.errno(), errno::ENOSPC, "{error}");
                                let _ = fs.unlink(ROOT, name.as_bytes());
                                std::thread::yield_now();
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    let _ = (
                        fs.fill_step().unwrap(),
                        fs.drain_step().unwrap(),
                        fs.trim_step().unwrap(),
                        fs.trim().unwrap(),
                    );
                    let _ = (fs.reclaim_step(Victims::Worthwhile).unwrap(), fs.stats());
                }
            });
            let mut bytes = SMALL_BYTES;
            while writers.iter().any(|writer| !writer.is_finished()) && bytes < 64 * MIB {
                bytes += 6 * MIB;
                fs.grow(Some(bytes)).unwrap();
            }
            let done: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            is_over.store(true, std::sync::atomic::Ordering::SeqCst);
            done.into_iter().for_each(|done| done.unwrap());
        });
        compare(&fs, 2 * FILES, &format!("{policy:?}"));
        fs.unmount().unwrap();
        whole(&region);
    }
}

#[test]
fn a_mounted_device_that_cannot_grow_stays_as_it_is() {
    let region = growable(32 * MIB, IndexKind::Dram, false);
    let fs = mount(&region, Policy::Inline);
    let refused = |fs: &FileSystem, size: u64, why: &str| {
        let told = fs.grow(Some(size)).unwrap_err().to_string();
        assert!(told.contains(why), "{told}");
        assert_eq!((fs.stats().device_bytes, fs.region().len_bytes()), (32 * MIB, 32 * MIB));
    };
    refused(&fs, 16 * MIB, "cannot make a file system shorter");
    refused(&fs, 32 * MIB + 5000, "not a multiple of 4096");
    refused(&fs, 32 * MIB + MIB, "too few more");
    refused(&fs, 1 << 45, "too many");
    refused(&fs, 1 << 44, "another kind of tables in memory: unmount it");
    refused(&fs, (1 << 43) - MIB, "are the most that this process has room for; a device in a file");
    write(&fs, "file", &noise(1, 5000)).unwrap();
    fs.clone().unmount().unwrap();
    assert_eq!(fs.grow(Some(64 * MIB)).unwrap_err().errno(), errno::EROFS);
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::mount(region.clone(), options).unwrap();
    assert_eq!(fs.grow(Some(64 * MIB)).unwrap_err().errno(), errno::EROFS);
    drop(fs);
    whole(&region);
    // Without address space behind it.
    let fs = mount(&formatted(32 * MIB, IndexKind::Dram), Policy::Off);
    refused(&fs, 64 * MIB, "33554432 bytes are the most");
}

/// A device that was longer than its file system when it was mounted needs no address space.
#[test]
fn a_mounted_file_system_takes_all_that_its_device_has() {
    let small = formatted(SMALL_BYTES, IndexKind::Dram);
    let region = longer(&small, LARGE_BYTES);
    let fs = mount(&region, Policy::Inline);
    let before = fill(&fs, 0);
    let told = fs.grow(Some(LARGE_BYTES - MIB)).unwrap_err().to_string();
    assert!(told.contains("leave the size out"), "{told}");
    assert_eq!(fs.grow(None).unwrap(), Resized { before_bytes: SMALL_BYTES, after_bytes: LARGE_BYTES });
    let after = fill(&fs, before);
    assert!(after > before + 40, "{before} {after}");
    compare(&fs, after, "mounted");
    fs.unmount().unwrap();
    whole(&region);
}

/// What another process adds to the file of a device is found too.
#[test]
fn a_mounted_file_system_takes_what_its_file_has() {
    let dir = std::env::temp_dir().join(format!("nvfold-grow-mounted-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let path = dir.join("device");
    let options = OpenOptions { can_grow: true, ..OpenOptions::default() };
    let region = Region::create(&DeviceSpec::Path(path.clone()), 32 * MIB, &options).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let is_file = region.level() == pmem::PersistenceLevel::File;
    let fs = mount(&region, Policy::Inline);
    if !is_file {
        std::fs::File::options().write(true).open(&path).unwrap().set_len(64 * MIB).unwrap();
        let told = fs.grow(Some(48 * MIB)).unwrap_err().to_string();
        assert!(told.contains("leave the size out"), "{told}");
        assert_eq!(fs.grow(None).unwrap().after_bytes, 64 * MIB);
    }
    assert_eq!(fs.grow(Some(128 * MIB)).unwrap().after_bytes, 128 * MIB);
    let files = fill(&fs, 0);
    assert!(files > 200, "{files}");
    fs.unmount().unwrap();
    drop(region);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 128 * MIB);
    let region = Region::open(&DeviceSpec::Path(path), &OpenOptions::default()).unwrap();
    whole(&region);
    compare(&mount(&region, Policy::Off), files, "mounted again");
    drop(region);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// At level `file`: each change of the disk fails once, and the disk is full. The old size counts then, or the new one, and
/// the mount goes on.
#[test]
fn a_mount_survives_a_disk_that_fails_while_it_grows() {
    let options = OpenOptions { as_file: true, record_host: true, can_grow: true, ..OpenOptions::default() };
    let mut is_through = false;
    for nth in 1..200 {
        let region = Region::create(&DeviceSpec::Memory, SMALL_BYTES, &options).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let fs = mount(&region, Policy::Inline);
        write(&fs, "0", &noise(0, 1 << 19)).unwrap();
        region.fail_host(nth);
        let grown = fs.grow(Some(LARGE_BYTES));
        region.fail_host(0);
        is_through = grown.is_ok();
        let size = fs.stats().device_bytes;
        assert!(if is_through { size == LARGE_BYTES } else { [SMALL_BYTES, LARGE_BYTES].contains(&size) }, "{nth}");
        write(&fs, "1", &noise(1, 1 << 19)).unwrap();
        fs.grow(Some(LARGE_BYTES)).unwrap();
        write(&fs, "2", &noise(2, 1 << 19)).unwrap();
        fs.unmount().unwrap();
        whole(&region);
        compare(&mount(&region, Policy::Off), 3, &format!("{nth}"));
        if is_through {
            break;
        }
    }
    assert!(is_through, "growth ends");

    let region = Region::create(&DeviceSpec::Memory, SMALL_BYTES, &options).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let fs = mount(&region, Policy::Inline);
    write(&fs, "0", &noise(0, 1 << 19)).unwrap();
    region.limit_host(0);
    let full = fs.grow(Some(LARGE_BYTES)).unwrap_err();
    assert_eq!(full.errno(), errno::ENOSPC, "{full}");
    assert_eq!((fs.stats().device_bytes, region.len_bytes()), (SMALL_BYTES, SMALL_BYTES));
    region.limit_host(u64::MAX);
    fs.grow(Some(LARGE_BYTES)).unwrap();
    assert!(fill(&fs, 1) > 70);
    fs.unmount().unwrap();
    whole(&region);
}

fn grown_device() -> (Region, Superblock, Geometry) {
    let small = formatted(SMALL_BYTES, IndexKind::Dram);
    let fs = mount(&small, Policy::Inline);
    fill(&fs, 0);
    fs.unmount().unwrap();
    let region = longer(&small, LARGE_BYTES);
    grow(&region).unwrap();
    let fs = mount(&region, Policy::Inline);
    (100..120).for_each(|file| write(&fs, &format!("{file}"), &noise(100 + file % 10, 1 << 19)).unwrap());
    fs.unmount().unwrap();
    let (superblock, geometry) = read_superblock(&region).unwrap();
    (region, superblock, geometry)
}

#[test]
fn a_list_of_zones_that_nvfold_does_not_make_is_damage() {
    let (region, superblock, geometry) = grown_device();
    let end = (LARGE_BYTES / BLOCK_BYTES) as u32;
    let start = superblock.zones[0];
    let with = |zones: &[u32]| {
        let mut list = [0; ZONES_MAX];
        list[..zones.len()].copy_from_slice(zones);
        Superblock { zones: list, ..superblock }
    };
    let mut full = [0; ZONES_MAX];
    (0..).zip(&mut full).for_each(|(at, zone)| *zone = start + at);
    let cases = [
        ("none, with the feature", with(&[])),
        ("the feature is missing", Superblock { incompatible: superblock.incompatible & !ZONES, ..superblock }),
        ("two the same", with(&[start, start])),
        ("not in order", with(&[start + 4096, start])),
        ("a gap", with(&[start, 0, start + 4096])),
        ("only after a gap", with(&[0, start])),
        ("one that begins in the tables", with(&[1])),
        ("one that is too early", with(&[start / 2])),
        ("one at the end", with(&[end])),
        ("one after the end", with(&[end + 1])),
        ("one at 2^32 - 1", with(&[u32::MAX])),
        ("the last is too short", with(&[start, end - 512])),
        ("one is too short", with(&[start, start + 600])),
        ("as many as can be, a block each", with(&full)),
        ("an index for more zones", Superblock { index_zones: 2, ..superblock }),
        ("an index for 2^32 - 1 zones", Superblock { index_zones: u32::MAX, ..superblock }),
        ("a device of 2^64 bytes", Superblock { device_bytes: u64::MAX, ..superblock }),
        ("a device as long as its first zone", Superblock { device_bytes: SMALL_BYTES, ..superblock }),
        ("a device without a whole block", Superblock { device_bytes: LARGE_BYTES - 1, ..superblock }),
    ];
    for (what, broken) in cases {
        assert!(broken.sealed().verify().is_err(), "{what}");
        let copies: Vec<u64> = geometry.copies().collect();
        // One broken copy is found and mended from the others; with three, nothing can be read.
        let _ = region.fence(region.write(copies[1], &broken.sealed()).flush());
        let found = check(&region, &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
        let told = &found.findings[0].what;
        assert!(told.contains("this copy of the superblock cannot be used"), "{what}: {told}");
        whole(&region);
        // A repair counts as a mount.
        let (now, _) = read_superblock(&region).unwrap();
        copies.iter().for_each(|copy| drop(region.fence(region.write(*copy, &broken.sealed()).flush())));
        let refused = FileSystem::mount(region.clone(), MountOptions::default()).map(drop).unwrap_err();
        assert!(matches!(refused, Error::NoSuperblock { .. }), "{what}: {refused}");
        assert!(check(&region, &CheckOptions::default()).is_err(), "{what}");
        assert!(grow(&region).is_err(), "{what}");
        copies.iter().for_each(|copy| drop(region.fence(region.write(*copy, &now.sealed()).flush())));
        whole(&region);
    }
}

#[test]
fn fsck_finds_and_mends_what_is_broken_in_the_tables_of_a_later_zone() {
    let broken = |what: &str, finding: &str, change: &dyn Fn(&Region, &Geometry)| {
        let (region, superblock, geometry) = grown_device();
        change(&region, &geometry);
        let found = check(&region, &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
        let told: Vec<&str> = found.findings.iter().map(|finding| &finding.what[..]).collect();
        assert!(told.iter().any(|told| told.contains(finding)), "{what}: {told:?}");
        assert_eq!(superblock.state, STATE_CLEAN);
        whole(&region);
        let fs = mount(&region, Policy::Inline);
        (100..120).for_each(|file| {
            assert!(read(&fs, &format!("{file}")) == noise(100 + file % 10, 1 << 19), "{what}: {file}")
        });
    };
    let entry_in_zone = |region: &Region, geometry: &Geometry, wanted: &dyn Fn(&ChunkEntry) -> bool| {
        let last = geometry.data_ranges().last().unwrap();
        let blocks = last.start * SEGMENT_BLOCKS..geometry.blocks();
        let places = blocks.map(|block| geometry.chunk_entry_offset(BlockNumber(block)));
        places.map(|at| (at, region.read::<ChunkEntry>(at))).find(|(_, entry)| wanted(entry)).unwrap()
    };
    broken("a count too low", "counted 1 times", &|region, geometry| {
        let (at, entry) = entry_in_zone(region, geometry, &|entry| entry.count > 1);
        let _ = region.fence(region.write(at, &ChunkEntry { count: 1, ..entry }).flush());
    });
    broken("an entry of a free block", "is free and its chunk entry is not", &|region, geometry| {
        let (_, entry) = entry_in_zone(region, geometry, &|entry| entry.count > 0);
        let at = geometry.chunk_entry_offset(BlockNumber(geometry.blocks() - 1));
        let _ = region.fence(region.write(at, &ChunkEntry { count: 3, ..entry }).flush());
    });
    let used_segment = |region: &Region, geometry: &Geometry| {
        let offsets = geometry.data_ranges().last().unwrap().map(|segment| geometry.segment_entry_offset(segment));
        let entries = offsets.map(|at| (at, region.read::<SegmentEntry>(at)));
        entries.into_iter().find(|(_, entry)| entry.kind == KIND_BLOCKS).unwrap()
    };
    broken("a damaged entry of a segment", "a crash left half an entry", &|region, geometry| {
        let (at, entry) = used_segment(region, geometry);
        let _ = region.fence(region.write(at, &SegmentEntry { check: entry.check ^ 1, ..entry }).flush());
    });
    broken("a segment that is not marked", "blocks of it are in use", &|region, geometry| {
        let (at, _) = used_segment(region, geometry);
        let _ = region.fence(region.write(at, &SegmentEntry::default()).flush());
    });
}

/// A copy of the superblock that an interrupted growth left behind the old end is not taken for that of a clean device.
#[test]
fn an_interrupted_growth_is_recovered_even_without_the_other_copies() {
    let small = formatted(SMALL_BYTES, IndexKind::Dram);
    let fs = mount(&small, Policy::Inline);
    (0..9).for_each(|file| write(&fs, &format!("{file}"), &noise(file, 1 << 19)).unwrap());
    fs.unmount().unwrap();
    let old = longer(&small, LARGE_BYTES);
    let grown = longer(&small, LARGE_BYTES);
    grow(&grown).unwrap();
    // The growth ended after it wrote the last copy, and the file system was used with its old size.
    let last = LARGE_BYTES - BLOCK_BYTES;
    let whole_copy: Superblock = grown.read(last);
    let left = Superblock { state: STATE_IN_USE, saved_state: 0, ..whole_copy }.sealed();
    let zone = geometry_start(&grown);
    old.punch(zone, LARGE_BYTES - zone).unwrap();
    let _ = old.fence(old.write(last, &left).flush());
    let fs = mount(&old, Policy::Inline);
    assert_eq!(fs.stats().device_bytes, SMALL_BYTES);
    (9..12).for_each(|file| write(&fs, &format!("{file}"), &noise(file, 1 << 19)).unwrap());
    fs.unmount().unwrap();
    whole(&old);
    COPIES.into_iter().for_each(|copy| drop(old.fence(old.write(copy, &[0u8; 512][..]).flush())));
    let fs = mount(&old, Policy::Inline);
    assert!(!fs.stats().recovery.loaded);
    fs.reconcile().unwrap();
    compare(&fs, 12, "recovered");
    fs.unmount().unwrap();
    whole(&old);
}

fn geometry_start(region: &Region) -> u64 {
    let (superblock, _) = read_superblock(region).unwrap();
    assert!(superblock.device_bytes.is_multiple_of(BLOCK_BYTES) && SEGMENT_BYTES > BLOCK_BYTES);
    u64::from(superblock.zones[0]) * BLOCK_BYTES
}
