//! The segment table: what a segment is used for does not depend on how worn it is, wear outlives every change of the
//! use, and no segment changes hands while somebody stands on it.

use crate::deext::{create, device, noise, open, read, unmount};
use nvfold::check::{CheckOptions, check};
use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::segment::{KIND_BLOCKS, SegmentEntry, SegmentUse};
use nvfold::internals::media::superblock::Geometry;
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};

const DEVICE_BYTES: u64 = 32 << 20;
const ROOT: InodeNumber = InodeNumber::ROOT;
/// Inodes in a segment of the table.
const TABLE_INODES: u64 = 4096;

struct Device {
    region: Region,
    geometry: Geometry,
}

impl Device {
    fn new(index: IndexKind) -> Device {
        let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
        Device { region, geometry: Geometry::of(DEVICE_BYTES).unwrap() }
    }

    fn mount(&self) -> FileSystem {
        let options = MountOptions { policy: Policy::Inline, discard: Some(true), ..MountOptions::default() };
        FileSystem::mount(self.region.clone(), options).unwrap()
    }

    fn segments(&self) -> std::ops::Range<u64> {
        self.geometry.first_segment()..self.geometry.segments()
    }

    fn entry(&self, segment: u64) -> SegmentEntry {
        self.region.read(self.geometry.segment_entry_offset(segment))
    }

    fn set_entry(&self, segment: u64, entry: SegmentEntry) {
        let _ = self.region.fence(self.region.write(self.geometry.segment_entry_offset(segment), &entry).flush());
    }

    /// The parts of the inode table, by ordinal: how many directly before each may be absent.
    fn parts(&self) -> Vec<(u32, u16)> {
        let part = |segment: u64| match self.entry(segment).usage(segment) {
            SegmentUse::Inodes(ordinal) => Some((ordinal, self.entry(segment).absent_before)),
            _ => None,
        };
        let mut parts: Vec<_> = self.segments().filter_map(part).collect();
        parts.sort_unstable();
        parts
    }

    fn uses(&self) -> Vec<SegmentUse> {
        self.segments().map(|segment| self.entry(segment).usage(segment)).collect()
    }

    /// Class and wear of a segment in these tests.
    fn worn(segment: u64) -> (u8, u32) {
        (segment as u8 % 4, if segment.is_multiple_of(3) { u32::MAX } else { segment as u32 })
    }

    /// Gives every segment class and wear, as a version that counts wear leaves them.
    fn wear_out(&self) {
        for segment in self.segments() {
            let (wear_class, wear) = Device::worn(segment);
            let SegmentEntry { kind, ordinal, .. } = self.entry(segment);
            let worn = SegmentEntry { wear_class, wear, ..SegmentEntry::default() };
            self.set_entry(segment, worn.used_for(segment, kind, ordinal));
        }
    }

    #[track_caller]
    fn assert_worn(&self, when: &str) {
        for segment in self.segments() {
            let entry = self.entry(segment);
            assert_eq!((entry.wear_class, entry.wear), Device::worn(segment), "{when}: segment {segment}, {entry:?}");
        }
    }

    #[track_caller]
    fn assert_clean(&self, when: &str) {
        let report = check(&self.region, &CheckOptions::default()).unwrap();
        assert!(report.findings.is_empty(), "{when}: {:?}", report.findings);
    }
}

const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };

fn file(fs: &FileSystem, name: &str) -> File {
    fs.open(fs.create(ROOT, name.as_bytes(), &NEW).unwrap().ino).unwrap()
}

fn directory(fs: &FileSystem, name: &str) -> InodeNumber {
    fs.mkdir(ROOT, name.as_bytes(), &NewInode { kind: FileKind::Directory, ..NEW }).unwrap().ino
}

/// Blocks of which no two are equal.
fn distinct(first: u64, blocks: u64) -> Vec<u8> {
    (first..first + blocks).flat_map(|number| number.to_le_bytes().repeat(BLOCK_BYTES as usize / 8)).collect()
}

fn content(fs: &FileSystem, name: &str) -> Vec<u8> {
    let file = fs.open(fs.lookup(ROOT, name.as_bytes()).unwrap().ino).unwrap();
    let mut bytes = vec![0; file.attr().size as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

#[test]
fn a_worn_device_mounts_and_keeps_its_wear_over_trims_and_crashes() {
    for index in [IndexKind::Dram, IndexKind::Pm] {
        let device = Device::new(index);
        let fresh = device.uses();
        device.wear_out();
        assert_eq!(device.uses(), fresh, "wear says nothing of the use");
        device.assert_clean("a worn device");
        // Filled, and emptied but for one file.
        let fs = device.mount();
        file(&fs, "kept").write_at(0, &distinct(1, 10)).unwrap();
        file(&fs, "big").write_at(0, &distinct(100, 2000)).unwrap();
        device.assert_worn("segments were marked");
        fs.unlink(ROOT, b"big").unwrap();
        assert!(fs.trim().unwrap() >= 3 * SEGMENT_BYTES);
        device.assert_worn("segments were given back");
        // A crash, with blocks in use in segments that were given back before.
        file(&fs, "big").write_at(0, &distinct(5000, 2000)).unwrap();
        drop(fs);
        let fs = device.mount();
        assert!(!fs.stats().recovery.reconciled);
        fs.reconcile().unwrap();
        assert_eq!(content(&fs, "kept"), distinct(1, 10));
        assert_eq!(content(&fs, "big"), distinct(5000, 2000));
        fs.unmount().unwrap();
        device.assert_worn("a crash and an unmount");
        device.assert_clean("a crash and an unmount");
        let fs = device.mount();
        fs.unlink(ROOT, b"big").unwrap();
        fs.unlink(ROOT, b"kept").unwrap();
        fs.unmount().unwrap();
        device.assert_worn("an unmount of an empty device");
        device.assert_clean("an unmount of an empty device");
        let marked = device.uses().iter().zip(&fresh).filter(|(now, before)| now != before).count();
        assert!(marked <= 1, "all is free again but the tables and a log: {:?}", device.uses());
    }
}

#[test]
fn wear_counts_survive_growth_and_shrinking_of_the_inode_table() {
    let device = Device::new(IndexKind::Dram);
    device.wear_out();
    let fs = device.mount();
    for number in 0..TABLE_INODES {
        drop(file(&fs, &format!("file {number}")));
    }
    let tables = |device: &Device| device.uses().iter().filter(|usage| matches!(usage, SegmentUse::Inodes(_))).count();
    assert_eq!(tables(&device), 2);
    drop(fs);
    let fs = device.mount();
    fs.reconcile().unwrap();
    device.assert_worn("the table has grown, and a crash came");
    (0..TABLE_INODES).for_each(|number| fs.unlink(ROOT, format!("file {number}").as_bytes()).unwrap());
    fs.trim().unwrap();
    assert_eq!(tables(&device), 1);
    fs.unmount().unwrap();
    device.assert_worn("the table has shrunk");
    device.assert_clean("the table has shrunk");
}

/// One file that was made last used to hold the whole inode table.
#[test]
fn one_late_file_does_not_keep_the_whole_inode_table_in_use() {
    const PARTS: u64 = 5;
    let device = Device::new(IndexKind::Dram);
    device.wear_out();
    let fs = device.mount();
    let (free, dir) = (fs.stats().free_bytes, directory(&fs, "dir"));
    let make = |fs: &FileSystem, name: &str| fs.create(dir, name.as_bytes(), &NEW).unwrap().ino;
    let numbers: Vec<u64> = (0..PARTS * TABLE_INODES).map(|at| make(&fs, &format!("file {at}")).0).collect();
    let late = fs.create(ROOT, b"late", &NEW).unwrap();
    assert_eq!(late.ino.0 / TABLE_INODES, PARTS);
    fs.open(late.ino).unwrap().write_at(0, &distinct(1, 10)).unwrap();
    assert_eq!(device.parts(), (0..=PARTS as u32).map(|ordinal| (ordinal, 0)).collect::<Vec<_>>());
    numbers.iter().enumerate().for_each(|(at, _)| fs.unlink(dir, format!("file {at}").as_bytes()).unwrap());
    fs.rmdir(ROOT, b"dir").unwrap();
    fs.trim().unwrap();
    let ends = vec![(0, 0), (PARTS as u32, PARTS as u16 - 1)];
    let assert_given_back = |fs: &FileSystem, when: &str| {
        assert_eq!(device.parts(), ends, "{when}");
        // Two segments of the table, one of blocks, one with logs.
        assert!(fs.stats().free_bytes >= free - SEGMENT_BYTES - (1 << 20), "{when}: {:?}", fs.stats());
        let StatFs { inodes, inodes_free, blocks_free, .. } = fs.statfs();
        assert_eq!(inodes - inodes_free, 2, "{when}: the root and the late file");
        let of_free_segments = blocks_free * BLOCK_BYTES / SEGMENT_BYTES * TABLE_INODES;
        assert!(
            inodes_free > TABLE_INODES && inodes_free < 2 * TABLE_INODES + of_free_segments,
            "{when}: {inodes_free}"
        );
        assert_eq!(content(fs, "late"), distinct(1, 10), "{when}");
        assert!(matches!(fs.getattr(InodeNumber(TABLE_INODES)), Err(Error::NotFound { .. })), "{when}");
    };
    assert_given_back(&fs, "trimmed");
    fs.unmount().unwrap();
    device.assert_clean("absent parts");
    let fs = device.mount();
    assert_given_back(&fs, "mounted again");
    drop(fs);
    let fs = device.mount();
    fs.reconcile().unwrap();
    assert_given_back(&fs, "after a crash");
    // As many as statfs promises can be made, the lowest absent part first.
    let dir = directory(&fs, "dir");
    let promised = fs.statfs().inodes_free;
    let made: Vec<u64> = (0..promised)
        .map(|at| {
            fs.create(dir, format!("n{at}").as_bytes(), &NEW).unwrap_or_else(|error| panic!("{at}: {error}")).ino.0
        })
        .collect();
    let used = |part: u64| made.iter().any(|ino| ino / TABLE_INODES == part);
    assert!((0..=PARTS).all(used) && made.iter().all(|ino| *ino != late.ino.0));
    assert!(device.parts().iter().all(|(_, absent)| *absent == 0), "{:?}", device.parts());
    device.assert_worn("the table has gaps, and none again");
    fs.unmount().unwrap();
    device.assert_clean("without gaps");
    assert_eq!(content(&device.mount(), "late"), distinct(1, 10));
}

/// Parts go and come in any order, and a crash comes after each.
#[test]
fn parts_of_the_inode_table_can_be_freed_and_made_in_any_sequence() {
    let device = Device::new(IndexKind::Dram);
    let name = |part: u64| format!("in {part}");
    let change = |work: &dyn Fn(&FileSystem)| {
        let fs = device.mount();
        fs.reconcile().unwrap();
        work(&fs);
        fs.trim().unwrap();
    };
    let make = |parts: &[u64]| {
        change(&|fs| {
            for part in parts {
                fs.grow_inode_table(InodeNumber(part * TABLE_INODES)).unwrap();
                assert_eq!(file(fs, &name(*part)).ino().0 / TABLE_INODES, *part);
            }
        });
        device.parts()
    };
    let remove = |parts: &[u64]| {
        change(&|fs| parts.iter().for_each(|part| fs.unlink(ROOT, name(*part).as_bytes()).unwrap()));
        device.parts()
    };
    assert_eq!(make(&[1, 3, 5]), [(0, 0), (1, 0), (3, 1), (5, 1)]);
    assert_eq!(remove(&[3]), [(0, 0), (1, 0), (5, 3)]);
    assert_eq!(make(&[3]), [(0, 0), (1, 0), (3, 1), (5, 1)]);
    assert_eq!(remove(&[1]), [(0, 0), (3, 2), (5, 1)]);
    assert_eq!(make(&[4]), [(0, 0), (3, 2), (4, 0), (5, 0)]);
    assert_eq!(remove(&[5, 3]), [(0, 0), (4, 3)]);
    assert_eq!(make(&[6]), [(0, 0), (4, 3), (6, 1)]);
    let fs = device.mount();
    fs.unmount().unwrap();
    device.assert_clean("parts have come and gone");
    assert_eq!(remove(&[4, 6]), [(0, 0)]);
}

#[test]
fn wear_counts_survive_a_conversion_of_the_index_and_back() {
    let device = Device::new(IndexKind::Dram);
    device.wear_out();
    let fs = device.mount();
    file(&fs, "a").write_at(0, &distinct(1, 50)).unwrap();
    fs.unmount().unwrap();
    for to in [IndexKind::Pm, IndexKind::Dram] {
        convert_index(&device.region, to, WeakFunction::default(), &mut |_, _| ()).unwrap();
        device.assert_worn("converted");
        device.assert_clean("converted");
        let is_index = |usage: &SegmentUse| matches!(usage, SegmentUse::Index(_));
        assert_eq!(device.uses().iter().any(is_index), to == IndexKind::Pm);
    }
    assert_eq!(content(&device.mount(), "a"), distinct(1, 50));
}

/// A crash while a worn segment was marked or unmarked: half of the entry is old.
#[test]
fn a_torn_entry_of_a_worn_segment_is_repaired_and_keeps_its_wear() {
    for half in 0..2 {
        let device = Device::new(IndexKind::Dram);
        device.wear_out();
        let fs = device.mount();
        file(&fs, "a").write_at(0, &distinct(1, 10)).unwrap();
        drop(fs);
        let segment = device.segments().end - 1;
        let free = device.entry(segment);
        assert_eq!(free.usage(segment), SegmentUse::Free);
        let marked = free.used_for(segment, KIND_BLOCKS, 0);
        let torn = match half {
            0 => SegmentEntry { check: free.check, ..marked },
            _ => SegmentEntry { check: marked.check, ..free },
        };
        assert_eq!(torn.usage(segment), SegmentUse::Torn);
        device.set_entry(segment, torn);
        let fs = device.mount();
        assert_eq!(device.entry(segment), marked, "blocks of it may be in use");
        fs.reconcile().unwrap();
        assert_eq!(content(&fs, "a"), distinct(1, 10));
        fs.unmount().unwrap();
        assert_eq!(device.entry(segment), free);
        device.assert_worn("mended");
        device.assert_clean("mended");
    }
}

/// What reconcile knows of the inode table's segments must not count for what is stored there later.
#[test]
fn a_segment_does_not_leave_the_inode_table_before_counts_are_exact() {
    let device = Device::new(IndexKind::Dram);
    // The table has a second segment without inodes in it, as a crash before the next trim leaves it.
    let second = device.segments().start + 1;
    device.set_entry(second, SegmentEntry::inodes(second, 1));
    let fs = device.mount();
    file(&fs, "a").write_at(0, &distinct(1, 10)).unwrap();
    drop(fs);
    let fs = device.mount();
    assert_eq!(device.entry(second).usage(second), SegmentUse::Inodes(1));
    assert!(!fs.stats().recovery.reconciled);
    fs.trim().unwrap();
    let a = fs.open(fs.lookup(ROOT, b"a").unwrap().ino).unwrap();
    a.write_at(0, &distinct(100, 1000)).unwrap();
    drop(a);
    fs.reconcile().unwrap();
    assert_eq!(content(&fs, "a"), distinct(100, 1000));
    fs.trim().unwrap();
    assert_ne!(device.entry(second).usage(second), SegmentUse::Inodes(1), "it is given back in the end");
    fs.unmount().unwrap();
    device.assert_clean("after a crash");
}

/// A segment whose wear is at its end is opened like any other, and its wear stays there.
#[test]
fn the_maximum_of_a_wear_count_does_not_overflow() {
    for levels_wear in [true, false] {
        let device = Device::new(IndexKind::Dram);
        for segment in device.segments() {
            let SegmentEntry { kind, ordinal, .. } = device.entry(segment);
            let worn_out = SegmentEntry { wear: u32::MAX, ..SegmentEntry::default() };
            device.set_entry(segment, worn_out.used_for(segment, kind, ordinal));
        }
        let options = || MountOptions { policy: Policy::DeExt, levels_wear, ..MountOptions::default() };
        let fs = FileSystem::mount(device.region.clone(), options()).unwrap();
        file(&fs, "a").write_at(0, &distinct(1, 1500)).unwrap();
        let SegmentWear { segments, opened, opened_max } = fs.stats().wear;
        assert_eq!((opened, opened_max), (segments * u64::from(u32::MAX), u32::MAX));
        assert_eq!(fs.stats().wear.opened_mean(), f64::from(u32::MAX));
        assert_eq!(segments, device.segments().end - device.segments().start);
        fs.unmount().unwrap();
        device.assert_clean("worn out");
        let fs = FileSystem::mount(device.region.clone(), options()).unwrap();
        assert_eq!((content(&fs, "a"), fs.stats().wear.opened_max), (distinct(1, 1500), u32::MAX));
    }
}

/// Wear counts openings, and without levelling the first free segment is taken each time.
#[test]
fn without_levelling_the_first_free_segment_wears_most() {
    let most = |levels_wear| {
        let device = Device::new(IndexKind::Dram);
        let options = MountOptions { policy: Policy::DeExt, levels_wear, ..MountOptions::default() };
        let fs = FileSystem::mount(device.region.clone(), options).unwrap();
        let file = file(&fs, "a");
        for round in 0..40 {
            file.write_at(0, &distinct(10_000 * round, 300)).unwrap();
        }
        let wear = fs.stats().wear;
        assert!(wear.opened > 20 && f64::from(wear.opened_max) >= wear.opened_mean(), "{wear:?}");
        wear.opened_max
    };
    let (with, without) = (most(true), most(false));
    assert!(2 * with < without, "{with} with levelling, {without} without");
}

/// A program that replaces its files faster than rounds give memory back leaves every segment half free.
#[test]
fn scattered_free_blocks_are_used_before_the_host_gives_more_memory() {
    let region = device(256, IndexKind::Dram);
    let options = MountOptions { policy: Policy::Off, discard: Some(true), ..MountOptions::default() };
    let fs = FileSystem::mount(region.clone(), options).unwrap();
    let part = noise(128 << 10, 1);
    let name = |what: &str, at: u64| format!("{what} {at}");
    for at in 0..256 {
        create(&fs, &name("kept", at)).write_at(0, &part).unwrap();
        create(&fs, &name("removed", at)).write_at(0, &part).unwrap();
    }
    (0..256).for_each(|at| fs.unlink(ROOT, name("removed", at).as_bytes()).unwrap());
    let before = region.allocated_bytes();
    (0..112).for_each(|at| {
        create(&fs, &name("new", at)).write_at(0, &part).unwrap();
    });
    let grown = region.allocated_bytes().saturating_sub(before);
    assert!(grown < 3 << 20, "14 MiB were written beside 32 MiB of free blocks, and the host gave {grown} bytes more");
    (0..256).for_each(|at| assert!(read(&open(&fs, &name("kept", at))) == part));
    (0..112).for_each(|at| assert!(read(&open(&fs, &name("new", at))) == part));
    unmount(&region, fs);
}
