//! The segment table: what a segment is used for does not depend on how worn it is, wear outlives every change of the
//! use, and no segment changes hands while somebody stands on it.

use nvfold::check::{CheckOptions, check};
use nvfold::media::segment::{KIND_BLOCKS, SegmentEntry, SegmentUse};
use nvfold::media::superblock::Geometry;
use nvfold::media::{BLOCK_BYTES, SEGMENT_BYTES};
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

fn file(fs: &FileSystem, name: &str) -> File {
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    fs.open(fs.create(ROOT, name.as_bytes(), &new).unwrap().ino).unwrap()
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
fn wear_stays_when_the_inode_table_grows_and_shrinks() {
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

#[test]
fn wear_stays_when_the_index_is_converted_there_and_back() {
    let device = Device::new(IndexKind::Dram);
    device.wear_out();
    let fs = device.mount();
    file(&fs, "a").write_at(0, &distinct(1, 50)).unwrap();
    fs.unmount().unwrap();
    for to in [IndexKind::Pm, IndexKind::Dram] {
        convert_index(&device.region, to, fingerprint::WeakFunction::default(), &mut |_, _| ()).unwrap();
        device.assert_worn("converted");
        device.assert_clean("converted");
        let is_index = |usage: &SegmentUse| matches!(usage, SegmentUse::Index(_));
        assert_eq!(device.uses().iter().any(is_index), to == IndexKind::Pm);
    }
    assert_eq!(content(&device.mount(), "a"), distinct(1, 50));
}

/// A crash while a worn segment was marked or unmarked: half of the entry is old.
#[test]
fn a_torn_entry_of_a_worn_segment_is_mended_and_keeps_the_wear() {
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
fn wear_at_its_end_overflows_nothing() {
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
fn the_first_free_segment_is_worn_most_without_levelling() {
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
