//! fsck sees every invariant broken: each test breaks one thing on purpose and looks for the finding with its
//! number; where repair is possible without a guess, the device is clean afterwards.

use nvfold::check::{CheckOptions, CheckReport, check};
use nvfold::internals::media::chunk_entry::{ChunkEntry, STRONG_VALID, tag};
use nvfold::internals::media::generator::{SEQUENCE_END, tx_id};
use nvfold::internals::media::inode::{
    ATTRIBUTE_LINES, AttributeLine, IN_USE, INODE_BYTES, INODES_PER_SEGMENT, InodeHead, OVERFLOW_WORD, PARENT_WORD,
    USE_WORD,
};
use nvfold::internals::media::journal::{JournalSlot, WordStore};
use nvfold::internals::media::limits::{TREE_LIMITS, TreeLimits};
use nvfold::internals::media::log_area::{AREA_LOG, AreaHead, NEXT_WORD};
use nvfold::internals::media::log_entry::{ENTRY_BYTES_MAX, ExtentEntry, LogEntry, SYMLINK_TARGET, XattrValue};
use nvfold::internals::media::saved_state::SavedState;
use nvfold::internals::media::segment::{SegmentEntry, SegmentUse};
use nvfold::internals::media::superblock::{
    COPIES, Geometry, LIMITS, LOG_AREAS, STATE_CLEAN, STATE_IN_USE, TABLE_GAPS, TREES,
};
use nvfold::internals::media::{BlockNumber, Location, SEGMENT_BYTES};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};
use zerocopy::{Immutable, IntoBytes};

const DEVICE_BYTES: u64 = 16 << 20;
const ROOT: u64 = InodeNumber::ROOT.0;

/// An unmounted device with one of everything, and the inode numbers to break it by.
struct Device {
    region: Region,
    geometry: Geometry,
    /// Two extents: private blocks; a log in the slot.
    plain: u64,
    /// Four equal blocks: one stored, counted four times.
    repeated: u64,
    /// One reserved block.
    reserved: u64,
    /// A long xattr in blocks of its own.
    labelled: u64,
    /// A directory with 151 names: a log with areas and pages.
    crowded: u64,
    /// A directory in `crowded`.
    inner: u64,
    /// A file with two names.
    linked: u64,
}

fn new(kind: FileKind) -> NewInode {
    NewInode { kind, mode: 0o644, uid: 1, gid: 2, rdev: 0 }
}

fn mount(region: &Region, policy: Policy) -> Result<FileSystem> {
    FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() })
}

/// Bytes that nothing compresses.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

impl Device {
    fn make() -> Device {
        let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions { label: "check".into(), ..MkfsOptions::default() }).unwrap();
        let root = InodeNumber::ROOT;
        let fs = mount(&region, Policy::Off).unwrap();
        let file = |name: &[u8]| fs.open(fs.create(root, name, &new(FileKind::Regular)).unwrap().ino).unwrap();
        let plain = file(b"plain");
        plain.write_at(0, &noise(1, 8192)).unwrap();
        plain.write_at(1 << 20, &noise(2, 4096)).unwrap();
        let reserved = file(b"reserved");
        reserved.allocate(0, 4096, AllocateMode::Reserve).unwrap();
        let labelled = file(b"labelled");
        fs.set_xattr(labelled.ino(), b"user.long", &noise(3, 20_000), XattrMode::Set).unwrap();
        let linked = file(b"linked").ino();
        let crowded = fs.mkdir(root, b"crowded", &new(FileKind::Directory)).unwrap().ino;
        let inner = fs.mkdir(crowded, b"inner", &new(FileKind::Directory)).unwrap().ino;
        fs.link(linked, inner, b"other").unwrap();
        fs.symlink(root, b"symlink", b"plain", &new(FileKind::Symlink)).unwrap();
        fs.create(root, b"fifo", &new(FileKind::Fifo)).unwrap();
        for at in 0..150 {
            fs.create(crowded, format!("name {at}").as_bytes(), &new(FileKind::Regular)).unwrap();
        }
        let numbers = [plain.ino(), reserved.ino(), labelled.ino()].map(|ino| ino.0);
        drop((plain, reserved, labelled));
        fs.unmount().unwrap();
        let fs = mount(&region, Policy::Inline).unwrap();
        let repeated = fs.open(fs.create(root, b"repeated", &new(FileKind::Regular)).unwrap().ino).unwrap();
        repeated.write_at(0, &[7; 4 * 4096]).unwrap();
        repeated.write_at(1 << 20, &noise(4, 4096)).unwrap();
        let shifted = fs.open(fs.create(root, b"shifted", &new(FileKind::Regular)).unwrap().ino).unwrap();
        shifted.clone_from(&repeated, 1 << 20, 100, 3000).unwrap();
        let repeated_ino = repeated.ino().0;
        drop((repeated, shifted));
        fs.unmount().unwrap();
        let [plain, reserved, labelled] = numbers;
        let geometry = Geometry::of(DEVICE_BYTES).unwrap().with_last_copy();
        let (crowded, inner, linked) = (crowded.0, inner.0, linked.0);
        Device { region, geometry, plain, repeated: repeated_ino, reserved, labelled, crowded, inner, linked }
    }

    fn slot(&self, ino: u64) -> u64 {
        let is_table = |segment: &u64| {
            let entry: SegmentEntry = self.region.read(self.geometry.segment_entry_offset(*segment));
            entry.usage(*segment) == SegmentUse::Inodes(0)
        };
        let segment = (0..self.geometry.segments()).find(is_table).unwrap();
        segment * SEGMENT_BYTES + ino * INODE_BYTES
    }

    fn entry(&self, segment: u64) -> SegmentEntry {
        self.region.read(self.geometry.segment_entry_offset(segment))
    }

    /// Slots of the log areas of an inode's log.
    fn areas(&self, ino: u64) -> Vec<u64> {
        let mut next = self.head(ino).overflow;
        let mut slots = Vec::new();
        while next % INODE_BYTES == AREA_LOG {
            slots.push(next - AREA_LOG);
            next = self.region.load_u64(next - AREA_LOG + NEXT_WORD);
        }
        slots
    }

    /// The first log page behind them.
    fn first_page(&self, ino: u64) -> u64 {
        self.region.load_u64(self.areas(ino).last().unwrap() + NEXT_WORD)
    }

    fn head(&self, ino: u64) -> InodeHead {
        self.region.read(self.slot(ino))
    }

    fn write<T: IntoBytes + Immutable + ?Sized>(&self, offset: u64, value: &T) {
        let written = self.region.write(offset, value).flush();
        let _ = self.region.fence(written);
    }

    fn flip(&self, offset: u64) {
        let byte: u8 = self.region.read(offset);
        self.write(offset, &(byte ^ 0x40));
    }

    /// Adds whole entries with right checksums to an inode's log, as no operation would.
    fn append(&self, ino: u64, entries: &[LogEntry]) {
        let head = self.head(ino);
        let mut lines = Vec::new();
        for entry in entries {
            entry.encode(ino, &mut lines);
        }
        let slot = self.slot(ino);
        let inline = (slot..=slot + INODE_BYTES).contains(&head.tail());
        let end =
            if inline { slot + INODE_BYTES } else { head.tail() / BLOCK_BYTES * BLOCK_BYTES + ENTRY_BYTES_MAX as u64 };
        assert!(head.tail() + lines.len() as u64 <= end, "the log of inode {ino} has no room left");
        self.write(head.tail(), &lines[..]);
        self.write(slot, &(head.commit + lines.len() as u64));
    }

    fn attributes(&self, ino: u64) -> (u64, AttributeLine) {
        let offset = self.slot(ino) + ATTRIBUTE_LINES[self.head(ino).selector() as usize];
        (offset, self.region.read(offset))
    }

    /// Entries of the inline part of an inode's log.
    fn inline_entries(&self, ino: u64) -> Vec<LogEntry> {
        let head = self.head(ino);
        let mut entries = Vec::new();
        let mut at = self.slot(ino) + 192;
        while at < head.tail().min(self.slot(ino) + INODE_BYTES) {
            let mut bytes = vec![0; (self.slot(ino) + INODE_BYTES - at) as usize];
            self.region.read_into(at, &mut bytes);
            let (entry, lines) = LogEntry::decode(ino, &bytes).unwrap();
            entries.push(entry);
            at += lines * 64;
        }
        entries
    }

    /// First media address that a file names.
    fn address(&self, ino: u64) -> u64 {
        let maps = |entry: &LogEntry| match entry.location_at(entry.written()?.file_offset)? {
            Location::Media(address) => Some(address),
            Location::Packed(..) => None,
        };
        self.inline_entries(ino).iter().find_map(maps).unwrap()
    }

    fn extent(&self, file_offset: u64, address: u64) -> LogEntry {
        LogEntry::Extent(ExtentEntry::write(file_offset, 4096, Location::Media(address), false, 0, 2 << 20))
    }

    fn name(&self, name: &[u8], ino: u64, kind: FileKind, cookie: u64) -> LogEntry {
        LogEntry::Name { name: name.to_vec(), ino, kind, cookie, time: 0 }
    }

    /// The cookie of the root's name for an inode.
    fn cookie_in_root(&self, target: u64) -> u64 {
        let cookie = |entry| match entry {
            LogEntry::Name { ino, cookie, .. } if ino == target => Some(cookie),
            _ => None,
        };
        self.inline_entries(ROOT).into_iter().find_map(cookie).unwrap()
    }

    /// Takes the name that an inode has in the root.
    fn unname(&self, ino: u64) {
        self.append(ROOT, &[LogEntry::Unname { cookie: self.cookie_in_root(ino), time: 0 }]);
    }

    fn entry_of(&self, address: u64) -> (u64, ChunkEntry) {
        let offset = self.geometry.chunk_entry_offset(BlockNumber::containing(address));
        (offset, self.region.read(offset))
    }

    /// The number of the next transaction of a generator.
    fn next_of(&self, generator: u64) -> u64 {
        self.region.load_u64(self.geometry.generator_offset(generator)).max(1)
    }

    fn free_block(&self) -> u64 {
        // The last block in front of the third superblock: the device is nearly empty.
        DEVICE_BYTES - 2 * BLOCK_BYTES
    }

    fn in_use(&self) {
        for offset in self.geometry.copies() {
            let superblock: Superblock = self.region.read(offset);
            self.write(offset, &Superblock { state: STATE_IN_USE, ..superblock }.sealed());
        }
    }

    fn check(&self) -> CheckReport {
        check(&self.region, &CheckOptions::default()).unwrap()
    }

    /// fsck finds `invariant` broken in these words.
    #[track_caller]
    fn finds(&self, invariant: u8, words: &str) {
        let report = self.check();
        let found =
            report.findings.iter().any(|finding| finding.invariant == invariant && finding.what.contains(words));
        assert!(found, "no finding {invariant} `{words}` in {:#?}", report.findings);
        assert!(!report.is_consistent());
    }

    /// As `finds_and_repairs`; until then nobody mounts it to write, and everything can be read.
    #[track_caller]
    fn finds_and_rebuilds(&self, invariant: u8, words: &str) {
        self.finds(invariant, words);
        assert!(matches!(mount(&self.region, Policy::Inline).map(drop), Err(Error::Corrupt { .. })));
        let read_only = MountOptions { read_only: true, ..MountOptions::default() };
        let fs = FileSystem::mount(self.region.clone(), read_only).unwrap();
        let mut bytes = vec![0; 8192];
        fs.open(fs.resolve(b"plain").unwrap().ino).unwrap().read_at(0, &mut bytes).unwrap();
        assert!(bytes == noise(1, 8192));
        fs.unmount().unwrap();
        self.finds_and_repairs(invariant, words);
    }

    /// As `finds`; repair reports it as repaired, a second look finds nothing, and everything can be read.
    #[track_caller]
    fn finds_and_repairs(&self, invariant: u8, words: &str) {
        self.finds(invariant, words);
        let repaired = check(&self.region, &CheckOptions { repair: true, data: true }).unwrap();
        assert!(repaired.is_consistent(), "{:#?}", repaired.findings);
        assert!(repaired.findings.iter().any(|finding| finding.repaired && finding.what.contains(words)));
        let after = self.check();
        assert!(after.clean && after.findings.is_empty() && after.recoverable == 0, "{after:#?}");
        let fs = mount(&self.region, Policy::Inline).unwrap();
        let read = |path: &[u8], offset, length| {
            let mut bytes = vec![0; length];
            fs.open(fs.resolve(path).unwrap().ino).unwrap().read_at(offset, &mut bytes).unwrap();
            bytes
        };
        assert!(read(b"plain", 0, 8192) == noise(1, 8192) && read(b"repeated", 0, 16384) == [7; 16384]);
        assert!(read(b"shifted", 100, 3000) == noise(4, 4096)[..3000]);
        fs.unmount().unwrap();
    }

    /// As `finds`; fsck says that repair would give these inodes up, and it does. Until then the device can be mounted and
    /// used, and what is given up keeps what it named; afterwards nothing is found, and everything else is there.
    #[track_caller]
    fn finds_and_gives_up(&self, invariant: u8, words: &str, lost: &[u64]) {
        self.finds(invariant, words);
        let told: Vec<u64> = self.check().given_up.iter().map(|lost| lost.ino).collect();
        assert_eq!(told, lost, "what fsck says beforehand");
        if !lost.contains(&ROOT) {
            self.in_use();
            let fs = mount(&self.region, Policy::Inline).unwrap();
            fs.reconcile().unwrap();
            assert!(fs.stats().recovery.unreadable > 0 && fs.stats().recovery.reconciled);
            let new = fs.open(fs.create(InodeNumber::ROOT, b"new", &new(FileKind::Regular)).unwrap().ino).unwrap();
            new.write_at(0, &noise(77, 8192)).unwrap();
            drop(new);
            fs.unmount().unwrap();
            mount(&self.region, Policy::Inline).unwrap().unmount().unwrap();
        }
        let names = |fs: &FileSystem| {
            let mut names = Vec::new();
            fs.readdir(InodeNumber::ROOT, 0, &mut |entry| {
                names.push(entry.name);
                true
            })
            .unwrap();
            names
        };
        let report = check(&self.region, &CheckOptions { repair: true, data: true }).unwrap();
        assert!(report.is_consistent(), "{:#?}", report.findings);
        assert!(lost.iter().all(|ino| report.given_up.iter().any(|lost| lost.ino == *ino)), "{:?}", report.given_up);
        let after = self.check();
        assert!(after.clean && after.findings.is_empty() && after.recoverable == 0, "{after:#?}");
        let fs = mount(&self.region, Policy::Inline).unwrap();
        let files = [("plain", self.plain, noise(1, 8192)), ("repeated", self.repeated, vec![7; 16384])];
        for (name, ino, content) in files.iter().filter(|(_, ino, _)| !lost.contains(ino)) {
            let mut bytes = vec![0; content.len()];
            fs.open(InodeNumber(*ino)).unwrap().read_at(0, &mut bytes).unwrap();
            assert!(bytes == *content, "{name}");
            let path = if lost.contains(&ROOT) { format!("lost+found/#{ino}") } else { (*name).to_string() };
            assert_eq!(fs.resolve(path.as_bytes()).unwrap().ino.0, *ino, "{:?}", names(&fs));
        }
        fs.unmount().unwrap();
    }
}

#[test]
fn a_device_with_one_of_everything_is_clean() {
    let report = Device::make().check();
    assert!(report.clean && report.findings.is_empty() && report.is_consistent(), "{report:#?}");
    assert_eq!(report.recoverable, 0);
    // root, plain, reserved, labelled, linked, crowded, inner, symlink, fifo, 150 files, repeated, shifted
    assert_eq!((report.inodes, report.directories, report.names), (161, 3, 161));
    assert_eq!(report.blocks, 3 + 1 + 2);
    assert_eq!(report.chunks, 2);
    // The long xattr, and 151 and 10 names of a line each: five lie in the slot, seven in each of eight areas at most, 63 in
    // a page.
    assert_eq!((report.metadata_blocks, report.log_areas), (5 + 2, 8 + 1));
}

/// What was never used is not read: the host would allocate memory for it.
#[test]
fn checking_a_fresh_device_takes_no_memory_of_the_host() {
    let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let read_only = MountOptions { read_only: true, ..MountOptions::default() };
    FileSystem::mount(region.clone(), read_only).unwrap().unmount().unwrap();
    check(&region, &CheckOptions::default()).unwrap();
    assert!(region.allocated_bytes() < 64 << 10, "{} bytes", region.allocated_bytes());
}

#[test]
fn fsck_of_a_file_that_is_no_device_is_an_error_and_not_a_finding() {
    let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
    assert!(matches!(check(&region, &CheckOptions::default()), Err(Error::NotNvfold { .. })));
}

#[test]
fn a_consistent_device_that_was_not_unmounted_counts_as_recoverable() {
    let device = Device::make();
    let fs = mount(&device.region, Policy::Inline).unwrap();
    let open = fs.open(fs.resolve(b"repeated").unwrap().ino).unwrap();
    open.write_at(8192, &noise(9, 20_000)).unwrap();
    fs.unlink(InodeNumber::ROOT, b"repeated").unwrap();
    drop((open.clone(), fs));
    let report = device.check();
    assert!(!report.clean && report.findings.is_empty(), "{report:#?}");
    assert!(report.recoverable > 0, "the unlinked file that was open has no name");
    std::mem::forget(open);
    let repaired = check(&device.region, &CheckOptions { repair: true, data: true }).unwrap();
    assert!(repaired.is_consistent());
    assert!(device.check().clean && device.check().recoverable == 0);
}

// --- 0: the format -----------------------------------------------------------------------------------

#[test]
fn a_damaged_superblock_is_restored_from_the_other_copy() {
    for copy in [COPIES[0], COPIES[1], DEVICE_BYTES - BLOCK_BYTES] {
        let device = Device::make();
        device.flip(copy + 60);
        device.finds_and_repairs(0, "superblock cannot be used");
    }
}

#[test]
fn copies_of_the_superblock_that_differ_are_made_equal() {
    let device = Device::make();
    let superblock: Superblock = device.region.read(COPIES[1]);
    for copy in [COPIES[1], DEVICE_BYTES - BLOCK_BYTES] {
        device.write(copy, &Superblock { mounted: 12345, ..superblock }.sealed());
        device.finds_and_repairs(0, "copies of the superblock differ");
    }
}

#[test]
fn half_a_segment_entry_is_cleared() {
    let device = Device::make();
    let last = device.geometry.segments() - 1;
    let torn = SegmentEntry { check: 0, ..SegmentEntry::inodes(last, 1) };
    device.write(device.geometry.segment_entry_offset(last), &torn);
    device.finds_and_repairs(0, "half an entry");
}

#[test]
fn a_gap_in_the_inode_table_is_found() {
    let device = Device::make();
    let last = device.geometry.segments() - 2;
    device.write(device.geometry.segment_entry_offset(last), &SegmentEntry::inodes(last, 5));
    device.finds_and_rebuilds(0, "segment table");
}

/// A device whose inode table has a part that is absent, and what the part after it holds.
fn device_with_an_absent_part() -> (Device, u64) {
    let device = Device::make();
    let fs = mount(&device.region, Policy::Inline).unwrap();
    fs.grow_inode_table(InodeNumber(2 * INODES_PER_SEGMENT)).unwrap();
    let late = fs.create(InodeNumber::ROOT, b"late", &new(FileKind::Regular)).unwrap();
    assert_eq!(late.ino.0, 2 * INODES_PER_SEGMENT);
    fs.unmount().unwrap();
    let is_last = |segment: &u64| device.entry(*segment).usage(*segment) == SegmentUse::Inodes(2);
    let last = (0..device.geometry.segments()).find(is_last).unwrap();
    assert_eq!(device.entry(last).absent_before, 1);
    let report = check(&device.region, &CheckOptions::default()).unwrap();
    assert!(report.clean && report.findings.is_empty(), "{report:?}");
    (device, last)
}

#[test]
fn a_segment_entry_that_omits_an_absent_part_is_found() {
    let (device, last) = device_with_an_absent_part();
    let entry = device.entry(last);
    device.write(device.geometry.segment_entry_offset(last), &entry.with_absent_before(0));
    device.finds_and_rebuilds(0, "segment table");
    assert_eq!(device.entry(last), entry);
}

#[test]
fn a_segment_entry_with_too_many_absent_parts_is_found() {
    let (device, last) = device_with_an_absent_part();
    let entry = device.entry(last);
    for told in [2, 3, u16::MAX] {
        device.write(device.geometry.segment_entry_offset(last), &entry.with_absent_before(told));
        device.finds_and_repairs(0, "absent parts");
        assert_eq!(device.entry(last), entry);
    }
}

#[test]
fn absent_parts_without_their_feature_are_found() {
    let (device, _) = device_with_an_absent_part();
    let superblock: Superblock = device.region.read(COPIES[0]);
    assert_ne!(superblock.incompatible & TABLE_GAPS, 0);
    let without = Superblock { incompatible: superblock.incompatible & !TABLE_GAPS, ..superblock }.sealed();
    device.geometry.copies().for_each(|copy| device.write(copy, &without));
    device.finds_and_repairs(0, "superblock does not have the feature flag");
    assert_ne!(device.region.read::<Superblock>(COPIES[0]).incompatible & TABLE_GAPS, 0);
}

/// The entry of the part before is lost: what is absent is told from what is missing.
#[test]
fn a_lost_part_of_the_inode_table_next_to_an_absent_one_is_found() {
    let (device, last) = device_with_an_absent_part();
    let fs = mount(&device.region, Policy::Inline).unwrap();
    // Part 1 is made again, and tells of nothing.
    fs.grow_inode_table(InodeNumber(INODES_PER_SEGMENT)).unwrap();
    fs.create(InodeNumber::ROOT, b"middle", &new(FileKind::Regular)).unwrap();
    fs.unmount().unwrap();
    assert_eq!(device.entry(last).absent_before, 0);
    let is_middle = |segment: &u64| device.entry(*segment).usage(*segment) == SegmentUse::Inodes(1);
    let middle = (0..device.geometry.segments()).find(is_middle).unwrap();
    device.write(device.geometry.segment_entry_offset(middle), &SegmentEntry::default());
    device.finds_and_rebuilds(0, "segment table");
    let fs = mount(&device.region, Policy::Inline).unwrap();
    assert!(fs.lookup(InodeNumber::ROOT, b"middle").is_ok() && fs.lookup(InodeNumber::ROOT, b"late").is_ok());
}

#[test]
fn a_torn_inode_head_is_found() {
    let device = Device::make();
    device.write(device.slot(4000) + USE_WORD, &(u64::from(IN_USE) << 8 | 1));
    device.finds(0, "head is torn");
}

#[test]
fn a_damaged_attribute_line_is_found() {
    let device = Device::make();
    device.flip(device.attributes(device.plain).0 + 8);
    device.finds_and_gives_up(0, "attributes", &[device.plain]);
}

#[test]
fn a_damaged_log_entry_is_found() {
    let device = Device::make();
    device.flip(device.slot(device.plain) + 192 + 20);
    device.finds_and_gives_up(0, "log entry checksum", &[device.plain]);
}

#[test]
fn a_log_tail_at_an_impossible_address_is_found() {
    for tail in [0, 64, !63, DEVICE_BYTES, DEVICE_BYTES - 64] {
        let device = Device::make();
        device.write(device.slot(device.plain), &tail);
        device.finds_and_gives_up(0, "inode", &[device.plain]);
    }
}

#[test]
fn a_loop_of_log_pages_is_found() {
    let device = Device::make();
    let page = device.first_page(device.crowded);
    assert_ne!(device.region.load_u64(page + ENTRY_BYTES_MAX as u64), 0, "the log has several pages");
    device.write(page + ENTRY_BYTES_MAX as u64, &page);
    device.finds_and_gives_up(0, "loop", &[device.crowded]);
}

#[test]
fn a_log_page_of_another_inode_is_found() {
    let device = Device::make();
    let page = device.first_page(device.crowded);
    device.flip(page + ENTRY_BYTES_MAX as u64 + 8);
    device.finds_and_gives_up(0, "log page of another inode", &[device.crowded]);
}

#[test]
fn a_log_area_of_another_inode_is_found() {
    let device = Device::make();
    let slot = device.areas(device.crowded)[3];
    device.flip(slot + 40);
    device.finds_and_gives_up(0, "log area of another inode", &[device.crowded]);
}

#[test]
fn a_loop_of_log_areas_is_found() {
    let device = Device::make();
    let slots = device.areas(device.crowded);
    device.write(slots[5] + NEXT_WORD, &(slots[5] + AREA_LOG));
    device.finds_and_gives_up(0, "loop", &[device.crowded]);
}

#[test]
fn a_log_that_leads_to_a_free_log_area_is_found() {
    let device = Device::make();
    device.write(device.areas(device.crowded)[0] + USE_WORD, &0u64);
    device.finds_and_gives_up(0, "log area of another inode", &[device.crowded]);
}

#[test]
fn a_log_area_outside_of_the_inode_table_is_found() {
    let device = Device::make();
    let (slot, elsewhere) = (device.areas(device.crowded)[0], device.free_block());
    let area: AreaHead = device.region.read(slot);
    device.write(elsewhere, &device.region.to_vec(slot, INODE_BYTES)[..]);
    device.write(elsewhere, &AreaHead { next: area.next, ..AreaHead::new(elsewhere, area.number, area.owner, 1) });
    device.write(device.slot(device.crowded) + OVERFLOW_WORD, &(elsewhere + AREA_LOG));
    device.finds_and_gives_up(4, "not a slot of the inode table", &[device.crowded]);
}

#[test]
fn a_log_area_in_no_log_is_found_and_freed() {
    let device = Device::make();
    let free = device.slot(1000);
    device.write(free, &AreaHead::new(free, 1000, device.plain, 1));
    device.finds_and_repairs(2, "log area 1000 is marked as");
    assert!(!device.region.read::<AreaHead>(free).is_whole(free));
}

#[test]
fn log_areas_without_their_feature_bit_are_found() {
    let device = Device::make();
    for offset in device.geometry.copies() {
        let copy: Superblock = device.region.read(offset);
        device.write(offset, &Superblock { incompatible: copy.incompatible & !LOG_AREAS, ..copy }.sealed());
    }
    device.finds(0, "the superblock does not have their feature flag");
}

#[test]
fn an_extent_outside_the_data_is_found() {
    for address in [0, DEVICE_BYTES - 4095, 1 << 43, u64::MAX - 100] {
        let device = Device::make();
        device.append(device.plain, &[device.extent(0, address)]);
        device.finds_and_gives_up(0, "extent address", &[device.plain]);
    }
}

#[test]
fn a_missing_root_is_found() {
    let device = Device::make();
    device.write(device.slot(ROOT) + USE_WORD, &0u64);
    device.finds_and_gives_up(0, "root directory", &[ROOT]);
}

#[test]
fn a_chunk_entry_of_another_address_is_rewritten() {
    let device = Device::make();
    let (offset, entry) = device.entry_of(device.address(device.repeated));
    device.write(offset, &ChunkEntry { address_length: entry.address_length + 4096, ..entry });
    device.finds_and_repairs(0, "chunk entry is damaged");
}

#[test]
fn a_damaged_generator_is_repaired() {
    for (at, value) in [(0u64, SEQUENCE_END), (8, 1), (56, 1 << 63)] {
        let device = Device::make();
        device.write(device.geometry.generator_offset(7) + at, &value);
        device.finds_and_repairs(0, "TX_ID generator 7 is damaged");
    }
}

/// Each has one transaction under way: a number far behind says that the generator is wrong, and nothing is taken back.
#[test]
fn a_generator_with_an_old_number_is_found_and_rolls_nothing_back() {
    for operation in [tag::ADD, tag::INCREASE] {
        let device = Device::make();
        let (offset, entry) = device.entry_of(device.address(device.repeated));
        let tag_tx = u64::from(operation) << 56 | tx_id(3, device.next_of(3) + 7);
        device.write(offset, &ChunkEntry { tag_tx, ..entry });
        let next = device.next_of(3);
        device.finds_and_repairs(0, "TX_ID generator 3 gives");
        assert_eq!(device.next_of(3), next + 8);

        device.write(device.geometry.generator_offset(3), &0u64);
        device.in_use();
        mount(&device.region, Policy::Inline).unwrap().unmount().unwrap();
        assert_eq!(device.entry_of(device.address(device.repeated)).1, ChunkEntry { tag_tx, ..entry });
        assert!(device.check().is_consistent() && device.next_of(3) > next + 7);
    }
}

/// On a device that was unmounted in order every transaction has ended.
#[test]
fn an_unfinished_transaction_is_found_and_its_count_corrected() {
    for operation in [tag::ADD, tag::INCREASE] {
        let device = Device::make();
        let (offset, entry) = device.entry_of(device.address(device.repeated));
        let tag_tx = u64::from(operation) << 56 | tx_id(3, device.next_of(3));
        device.write(offset, &ChunkEntry { tag_tx, ..entry });
        device.finds_and_repairs(1, "block");
        assert_eq!(device.entry_of(device.address(device.repeated)).1.count, entry.count);
    }
}

/// After a crash a transaction that did not end is a trace, if its count can be one.
#[test]
fn an_unfinished_increase_of_a_count_is_rolled_back() {
    let device = Device::make();
    let (offset, entry) = device.entry_of(device.address(device.repeated));
    let next = device.next_of(3);
    let tag_tx = u64::from(tag::INCREASE) << 56 | tx_id(3, next);
    device.write(offset, &ChunkEntry { tag_tx, count: entry.count + 1, ..entry });
    device.in_use();
    let report = device.check();
    assert!(report.is_consistent() && report.recoverable > 0, "{report:?}");
    let fs = mount(&device.region, Policy::Inline).unwrap();
    let taken_back = device.entry_of(device.address(device.repeated)).1;
    assert_eq!((taken_back.count, taken_back.word().tag), (entry.count, tag::INCREASE | tag::RECOVERED));
    assert_eq!(device.next_of(3), next + 1);
    fs.unmount().unwrap();
    assert!(device.check().is_consistent());
}

#[test]
fn wrong_fingerprints_and_unknown_functions_are_found() {
    let device = Device::make();
    let (offset, entry) = device.entry_of(device.address(device.repeated));
    let wrong = [
        entry.with_strong(StrongFunction::Sha256, [3; 20]),
        ChunkEntry { functions: 0x0e, ..entry },
        ChunkEntry { functions: 0xd0, flags: entry.flags | STRONG_VALID, ..entry },
    ];
    for entry in wrong {
        device.write(offset, &entry);
        let options = CheckOptions { data: true, ..CheckOptions::default() };
        let report = check(&device.region, &options).unwrap();
        assert!(report.findings.iter().any(|finding| finding.what.contains("fingerprint")), "{report:?}");
    }
}

// --- 1 and 2: counts ---------------------------------------------------------------------------------

#[test]
fn a_count_that_is_too_low_is_made_exact() {
    let device = Device::make();
    let (offset, entry) = device.entry_of(device.address(device.repeated));
    assert!(entry.count > 1);
    device.write(offset, &ChunkEntry { count: entry.count - 1, ..entry });
    device.finds_and_repairs(1, "counted");
    assert_eq!(device.entry_of(device.address(device.repeated)).1.count, entry.count);
}

#[test]
fn a_shared_block_without_an_entry_gets_one() {
    let device = Device::make();
    let (offset, entry) = device.entry_of(device.address(device.repeated));
    device.write(offset, &ChunkEntry::default());
    device.finds_and_repairs(1, "not counted");
    assert_eq!(device.entry_of(device.address(device.repeated)).1.count, entry.count);
}

#[test]
fn a_count_that_is_too_low_is_a_finding_even_after_a_crash() {
    let device = Device::make();
    let (offset, entry) = device.entry_of(device.address(device.repeated));
    device.write(offset, &ChunkEntry { count: entry.count - 1, ..entry });
    device.in_use();
    device.finds(1, "counted");
}

#[test]
fn a_count_that_is_too_high_is_made_exact() {
    let device = Device::make();
    let (offset, entry) = device.entry_of(device.address(device.repeated));
    device.write(offset, &ChunkEntry { count: entry.count + 1, ..entry });
    device.in_use();
    assert_eq!((device.check().findings.len(), device.check().recoverable), (0, 1), "a crash may leave that");
    let device = Device::make();
    device.write(offset, &ChunkEntry { count: entry.count + 1, ..entry });
    device.finds_and_repairs(2, "counted");
}

#[test]
fn an_entry_of_a_free_block_is_cleared() {
    let device = Device::make();
    let (_, entry) = device.entry_of(device.address(device.repeated));
    let (offset, _) = device.entry_of(device.free_block());
    device.write(offset, &entry);
    device.finds_and_repairs(2, "is free and its chunk entry is not");
}

#[test]
fn an_entry_of_a_reserved_block_is_cleared() {
    let device = Device::make();
    let address = device.address(device.reserved);
    let (_, entry) = device.entry_of(device.address(device.repeated));
    let (offset, _) = device.entry_of(address);
    let address_length = entry.address_length >> 44 << 44 | address;
    device.write(offset, &ChunkEntry { count: 1, address_length, ..entry });
    device.finds_and_repairs(2, "is reserved and has a chunk entry");
    assert_eq!(device.entry_of(address).1, ChunkEntry::default());
}

#[test]
fn an_inode_without_a_name_is_freed() {
    let device = Device::make();
    device.unname(device.reserved);
    device.finds_and_repairs(2, "has no name");
}

#[test]
fn a_wrong_link_count_is_made_exact() {
    let device = Device::make();
    let (offset, attributes) = device.attributes(device.linked);
    assert_eq!(attributes.nlink, 2);
    device.write(offset, &AttributeLine { nlink: 3, ..attributes }.sealed(device.linked));
    device.finds_and_repairs(2, "has 2 names, and its link count is 3");
    assert_eq!(device.attributes(device.linked).1.nlink, 2);
}

// --- 3: wholly or not at all -------------------------------------------------------------------------

#[test]
fn an_operation_left_in_the_journal_is_finished() {
    let device = Device::make();
    let slot = device.slot(device.plain);
    let word = WordStore { offset: slot, value: device.head(device.plain).commit };
    device.write(device.geometry.journal_slot_offset(3), &JournalSlot::new(&[word]));
    device.finds_and_repairs(3, "not finished");
}

#[test]
fn a_journal_word_with_a_foreign_address_is_found() {
    let device = Device::make();
    let word = WordStore { offset: 8192, value: 1 };
    device.write(device.geometry.journal_slot_offset(0), &JournalSlot::new(&[word]));
    device.finds_and_repairs(3, "a word that no operation stores");
}

#[test]
fn a_directory_that_lost_its_name_is_found_and_keeps_what_it_names() {
    let device = Device::make();
    device.unname(device.crowded);
    device.in_use();
    device.finds(3, "has no name, and is not empty");
    assert_eq!(device.check().unfinished, 0);
    let repaired = check(&device.region, &CheckOptions { repair: true, data: true }).unwrap();
    assert!(repaired.is_consistent() && repaired.moved.len() == 1, "{repaired:#?}");
    let fs = mount(&device.region, Policy::Inline).unwrap();
    let lost = fs.resolve(format!("lost+found/#{}", device.crowded).as_bytes()).unwrap();
    assert_eq!((lost.ino.0, names(&fs, lost.ino).len()), (device.crowded, 151));
    fs.unmount().unwrap();
}

/// Parents that form a loop lead to no top.
#[test]
fn directories_without_names_whose_parents_form_a_loop_are_found() {
    let device = Device::make();
    device.unname(device.crowded);
    device.write(device.slot(device.crowded) + PARENT_WORD, &device.inner);
    let (offset, attributes) = device.attributes(device.plain);
    device.unname(device.plain);
    device.write(offset, &AttributeLine { nlink: 0, ..attributes }.sealed(device.plain));
    device.in_use();
    device.finds(3, "has no name, and is not empty");
    let fs = mount(&device.region, Policy::Inline).unwrap();
    fs.reconcile().unwrap();
    assert!(fs.remove_step().unwrap() && fs.stats().recovery.unreadable == 1, "{:?}", fs.stats().recovery);
    drop(fs);
    let repaired = check(&device.region, &CheckOptions { repair: true, data: true }).unwrap();
    assert!(repaired.is_consistent() && !repaired.moved.is_empty(), "{repaired:#?}");
}

/// `crowded` is the top of a tree, and a directory below it that has a name of its own has none that leads to it.
fn device_with_an_unfinished_tree() -> Device {
    let device = Device::make();
    let fs = mount(&device.region, Policy::Inline).unwrap();
    let below = fs.mkdir(InodeNumber(device.inner), b"below", &new(FileKind::Directory)).unwrap().ino;
    let last = fs.mkdir(below, b"last", &new(FileKind::Directory)).unwrap().ino.0;
    fs.create(InodeNumber(last), b"leaf", &new(FileKind::Regular)).unwrap();
    fs.unmount().unwrap();
    let cookie = |entry: &LogEntry| match entry {
        LogEntry::Name { ino, cookie, .. } if *ino == last => Some(*cookie),
        _ => None,
    };
    let cookie = device.inline_entries(below.0).iter().find_map(cookie).unwrap();
    device.append(below.0, &[LogEntry::Unname { cookie, time: 0 }]);
    device.unname(device.crowded);
    let (offset, attributes) = device.attributes(device.crowded);
    device.write(offset, &AttributeLine { nlink: 0, ..attributes }.sealed(device.crowded));
    device.in_use();
    device
}

/// The copies of the superblock get or lose the feature.
fn set_trees_feature(device: &Device, feature: u64) {
    let superblock: Superblock = device.region.read(COPIES[0]);
    let with = Superblock { incompatible: superblock.incompatible & !TREES | feature, ..superblock }.sealed();
    device.geometry.copies().for_each(|copy| device.write(copy, &with));
}

#[test]
fn directories_whose_parents_lead_up_to_a_removed_one_are_freed_and_are_no_damage() {
    for repairs in [false, true] {
        let device = device_with_an_unfinished_tree();
        set_trees_feature(&device, TREES);
        let report = device.check();
        assert!(report.findings.is_empty() && report.unfinished == 4, "{report:#?}");
        if repairs {
            let repaired = check(&device.region, &CheckOptions { repair: true, data: true }).unwrap();
            assert!(repaired.is_consistent() && repaired.moved.is_empty(), "{repaired:#?}");
        } else {
            let fs = mount(&device.region, Policy::Inline).unwrap();
            fs.reconcile().unwrap();
            assert_eq!((fs.stats().removing.directories, fs.stats().recovery.unreadable), (2, 0));
            fs.unmount().unwrap();
        }
        let after = device.check();
        assert!(after.clean && after.findings.is_empty() && after.unfinished == 0, "{after:#?}");
        let fs = mount(&device.region, Policy::Inline).unwrap();
        assert_eq!((fs.resolve(b"linked").unwrap().nlink, fs.stats().inodes), (1, 9));
        fs.unmount().unwrap();
    }
}

#[test]
fn a_tree_that_is_being_removed_without_the_feature_of_that_is_found() {
    let device = device_with_an_unfinished_tree();
    set_trees_feature(&device, 0);
    device.finds_and_repairs(0, "does not have the feature flag of that");
}

#[test]
fn a_tree_that_is_being_removed_on_a_clean_device_is_found() {
    let device = device_with_an_unfinished_tree();
    set_trees_feature(&device, TREES);
    for offset in device.geometry.copies() {
        let superblock: Superblock = device.region.read(offset);
        device.write(offset, &Superblock { state: STATE_CLEAN, saved_state: 0, ..superblock }.sealed());
    }
    device.finds_and_repairs(2, "is in a tree that is being made or removed");
}

#[test]
fn a_name_without_an_inode_is_removed() {
    for target in [3000, 5000, u64::MAX] {
        let device = Device::make();
        device.append(device.inner, &[device.name(b"ghost", target, FileKind::Regular, 99)]);
        device.finds_and_repairs(3, "not there");
    }
}

#[test]
fn a_name_that_exists_twice_in_a_directory_is_found() {
    let device = Device::make();
    device.append(device.inner, &[device.name(b"other", device.plain, FileKind::Regular, 99)]);
    device.finds(3, "the name `other` is there twice");
    let inner = InodeNumber(device.inner);
    let fs = mount(&device.region, Policy::Inline).unwrap();
    assert_eq!(names(&fs, inner), [b"other"]);
    let corrupt = |result: Result<()>| assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
    corrupt(fs.lookup(inner, b"other").map(drop));
    corrupt(fs.unlink(inner, b"other"));
    corrupt(fs.rename(inner, b"other", inner, b"third", RenameMode::Replace));
    corrupt(fs.rename(InodeNumber::ROOT, b"plain", inner, b"other", RenameMode::Replace));
    assert_eq!(fs.create(inner, b"other", &new(FileKind::Regular)).unwrap_err().errno(), errno::EEXIST);
    works(&fs, inner);
    fs.unmount().unwrap();
    device.finds_and_repairs(3, "the name `other` is there twice");
    let fs = mount(&device.region, Policy::Inline).unwrap();
    assert_eq!(fs.lookup(inner, b"other").unwrap().ino.0, device.linked, "the first one stays");
    fs.unmount().unwrap();
}

/// Whichever entry of a name goes, the others are what they would be without it.
#[test]
fn removing_either_of_two_equal_names_leaves_the_other_intact() {
    for removed in [[0, 1], [1, 0], [0, 2], [2, 0], [1, 2], [2, 1]] {
        let device = Device::make();
        let targets = [device.linked, device.plain, device.reserved];
        let cookies = [device.inline_entries(device.inner)[0].clone()].map(|entry| match entry {
            LogEntry::Name { cookie, .. } => cookie,
            entry => panic!("{entry:?}"),
        });
        let cookies = [cookies[0], 99, 100];
        let twice = [1, 2].map(|at| device.name(b"other", targets[at], FileKind::Regular, cookies[at]));
        device.append(device.inner, &twice);
        device.append(device.inner, &[LogEntry::Unname { cookie: cookies[removed[0]], time: 0 }]);
        device.finds(3, "the name `other` is there twice");
        device.append(device.inner, &[LogEntry::Unname { cookie: cookies[removed[1]], time: 0 }]);
        let left = targets[3 - removed[0] - removed[1]];
        assert!(device.check().findings.iter().all(|finding| finding.invariant == 2), "{removed:?}: link counts alone");
        let fs = mount(&device.region, Policy::Inline).unwrap();
        let inner = InodeNumber(device.inner);
        assert_eq!(fs.lookup(inner, b"other").unwrap().ino.0, left, "{removed:?}");
        assert_eq!((names(&fs, inner), fs.damaged_names(inner).unwrap()), (vec![b"other".to_vec()], 0));
        fs.unlink(inner, b"other").unwrap();
        assert!(fs.lookup(inner, b"other").is_err());
        fs.unmount().unwrap();
    }
}

/// Names in the order of the listing.
fn names(fs: &FileSystem, dir: InodeNumber) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name);
        true
    })
    .unwrap();
    names
}

/// All but the damaged name of a directory works, also beyond the length at which a log is rewritten.
#[track_caller]
fn works(fs: &FileSystem, dir: InodeNumber) {
    let before = names(fs, dir);
    for round in 0..200 {
        fs.create(dir, b"new", &new(FileKind::Regular)).unwrap();
        let moved = format!("moved {round}").into_bytes();
        fs.rename(dir, b"new", dir, &moved, RenameMode::Replace).unwrap();
        fs.lookup(dir, &moved).unwrap();
        fs.unlink(dir, &moved).unwrap();
    }
    assert_eq!(names(fs, dir), before);
}

#[test]
fn an_impossible_name_costs_only_that_name() {
    let bad: [(&[u8], &str); 7] = [
        (b"", "no name can be ``"),
        (b".", "no name can be `.`"),
        (b"..", "no name can be `..`"),
        (b"/etc/cron.d/x", "no name can be `/etc/cron.d/x`"),
        (b"../../up", "no name can be `../../up`"),
        (b"a\0b", "no name can be `a\\0b`"),
        (b"\x1b[2J/", "no name can be `\\u{1b}[2J/`"),
    ];
    for (bad, words) in bad {
        let device = Device::make();
        let inner = InodeNumber(device.inner);
        device.unname(device.reserved);
        let (dir, file) = (FileKind::Directory, FileKind::Regular);
        let names_of_inner =
            [device.name(bad, device.reserved, file, 99), device.name(b"after", device.linked, file, 100)];
        device.append(device.inner, &names_of_inner);
        let (offset, attributes) = device.attributes(device.linked);
        device.write(offset, &AttributeLine { nlink: 3, ..attributes }.sealed(device.linked));
        device.finds(0, words);
        assert_eq!(device.check().findings.len(), 1, "nothing else is damaged: {:#?}", device.check().findings);
        let fs = mount(&device.region, Policy::Inline).unwrap();
        assert_eq!(names(&fs, inner), [&b"other"[..], b"after"]);
        assert!(fs.lookup(inner, bad).is_err() || matches!(bad, b"." | b".."));
        assert_eq!(fs.getattr(InodeNumber(device.reserved)).unwrap().nlink, 1, "its inode is kept");
        works(&fs, inner);
        let not_empty = fs.rmdir(InodeNumber(device.crowded), b"inner").unwrap_err();
        assert_eq!(not_empty.errno(), errno::ENOTEMPTY);
        fs.mkdir(inner, b"below", &new(dir)).unwrap();
        fs.unmount().unwrap();

        // A crash frees nothing that the name leads to.
        device.in_use();
        let fs = mount(&device.region, Policy::Inline).unwrap();
        fs.reconcile().unwrap();
        fs.unmount().unwrap();
        device.finds_and_repairs(0, words);
        let fs = mount(&device.region, Policy::Inline).unwrap();
        let kept = fs.resolve(format!("lost+found/#{}", device.reserved).as_bytes()).unwrap();
        assert_eq!(kept.ino.0, device.reserved);
        fs.unmount().unwrap();
    }
}

#[test]
fn a_symlink_without_a_valid_target_is_given_up() {
    let target = |value: &[u8]| LogEntry::XattrSet {
        name: SYMLINK_TARGET.to_vec(),
        value: XattrValue::Inline(value.to_vec()),
        time: 0,
    };
    for bad in [target(b""), target(b"a\0b"), LogEntry::XattrRemove { name: SYMLINK_TARGET.to_vec(), time: 0 }] {
        let device = Device::make();
        let fs = mount(&device.region, Policy::Inline).unwrap();
        let link = fs.lookup(InodeNumber::ROOT, b"symlink").unwrap().ino;
        fs.unmount().unwrap();
        device.append(link.0, &[bad]);
        let fs = mount(&device.region, Policy::Inline).unwrap();
        assert!(matches!(fs.readlink(link), Err(Error::Corrupt { .. })));
        fs.unmount().unwrap();
        device.finds_and_gives_up(0, "symlink", &[link.0]);
    }
    // A long target lies in blocks, where only reading it shows what it is.
    let device = Device::make();
    let fs = mount(&device.region, Policy::Inline).unwrap();
    let long = fs.symlink(InodeNumber::ROOT, b"long", &[b'l'; 3000], &new(FileKind::Symlink)).unwrap().ino;
    assert_eq!(
        fs.symlink(InodeNumber::ROOT, b"nul", b"a\0", &new(FileKind::Symlink)).unwrap_err().errno(),
        errno::EINVAL
    );
    fs.unmount().unwrap();
    let entry = device.inline_entries(long.0).into_iter().next().unwrap();
    let LogEntry::XattrSet { value: XattrValue::Blocks { blocks, .. }, .. } = entry else { panic!("{entry:?}") };
    device.write(blocks[0] + 100, &0u8);
    let fs = mount(&device.region, Policy::Inline).unwrap();
    assert!(matches!(fs.readlink(long), Err(Error::Corrupt { .. })));
    fs.unmount().unwrap();
    device.finds(0, "its target is none that a symlink can have");
    device.finds_and_repairs(0, "its target is none that a symlink can have");
}

#[test]
fn an_attribute_without_a_valid_name_is_found() {
    for name in [&b""[..], b"user.\0x", b"\0"] {
        let device = Device::make();
        let value = XattrValue::Inline(vec![1]);
        device.append(device.reserved, &[LogEntry::XattrSet { name: name.to_vec(), value, time: 0 }]);
        device.finds_and_gives_up(0, "xattr entry name", &[device.reserved]);
    }
}

#[test]
fn names_without_ascending_cookies_are_found() {
    let device = Device::make();
    let twins = [b"x", b"y"].map(|name| device.name(name, device.linked, FileKind::Regular, 99));
    device.append(device.inner, &twins);
    device.finds_and_gives_up(0, "name out of order", &[device.inner]);
}

#[test]
fn a_name_whose_kind_differs_from_its_inode_is_found() {
    let device = Device::make();
    device.append(device.inner, &[device.name(b"pipe", device.plain, FileKind::Fifo, 99)]);
    device.finds(3, "is not a Fifo");
}

#[test]
fn a_directory_with_two_names_is_found() {
    let device = Device::make();
    device.append(device.inner, &[device.name(b"again", device.crowded, FileKind::Directory, 99)]);
    let fs = mount(&device.region, Policy::Inline).unwrap();
    let (inner, corrupt) = (InodeNumber(device.inner), |error| matches!(error, Error::Corrupt { .. }));
    assert!(fs.lookup(inner, b"again").is_err_and(corrupt), "it has its place elsewhere");
    assert!(fs.rmdir(inner, b"again").is_err_and(corrupt));
    assert!(fs.rename(inner, b"again", InodeNumber::ROOT, b"out", RenameMode::Replace).is_err());
    fs.resolve(b"crowded/inner").unwrap();
    fs.unmount().unwrap();
    device.finds_and_repairs(3, "has 2 names");
}

#[test]
fn a_wrong_parent_is_found() {
    let device = Device::make();
    device.write(device.slot(device.inner) + PARENT_WORD, &ROOT);
    device.finds(3, "its own entry has 1");
}

#[test]
fn a_loop_of_directories_is_found_and_does_not_hang() {
    let device = Device::make();
    device.unname(device.crowded);
    device.append(device.inner, &[device.name(b"up", device.crowded, FileKind::Directory, 99)]);
    device.write(device.slot(device.crowded) + PARENT_WORD, &device.inner);
    device.finds_and_repairs(3, "cannot be reached");
}

#[test]
fn a_directory_entry_for_the_root_is_found_and_not_followed() {
    let device = Device::make();
    device.append(device.inner, &[device.name(b"loop", ROOT, FileKind::Directory, 99)]);
    let fs = mount(&device.region, Policy::Inline).unwrap();
    assert!(matches!(fs.lookup(InodeNumber(device.inner), b"loop"), Err(Error::Corrupt { .. })));
    assert!(matches!(fs.resolve(b"crowded/inner/loop/plain"), Err(Error::Corrupt { .. })));
    fs.unmount().unwrap();
    device.finds_and_repairs(3, "a name leads to the root directory");
}

#[test]
fn a_directory_that_contains_itself_is_refused_without_hanging() {
    let device = Device::make();
    device.append(device.inner, &[device.name(b"self", device.inner, FileKind::Directory, 99)]);
    device.finds(3, "has 2 names");
    let fs = mount(&device.region, Policy::Inline).unwrap();
    let inner = InodeNumber(device.inner);
    let corrupt = |result: Result<()>| assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
    corrupt(fs.rmdir(inner, b"self"));
    corrupt(fs.rename(inner, b"self", InodeNumber::ROOT, b"out", RenameMode::Replace));
    assert!(fs.rename(inner, b"self", inner, b"in", RenameMode::Replace).is_err());
}

// --- limits of trees -----------------------------------------------------------------------------------

/// `inner`, which is in `crowded`, has limits, and so has `other` in the root. Returns the latter. A file in `inner` has
/// another name in the root.
fn device_with_limits() -> (Device, u64) {
    let device = Device::make();
    let fs = mount(&device.region, Policy::Inline).unwrap();
    let inner = InodeNumber(device.inner);
    let other = fs.mkdir(InodeNumber::ROOT, b"other", &new(FileKind::Directory)).unwrap().ino;
    for top in [inner, other] {
        fs.change_limits(top, |limits| limits.inodes = Some(9)).unwrap();
        let below = fs.mkdir(top, b"below", &new(FileKind::Directory)).unwrap().ino;
        let file = fs.open(fs.create(below, b"file", &new(FileKind::Regular)).unwrap().ino).unwrap();
        file.write_at(0, &noise(8, 5000)).unwrap();
    }
    fs.unmount().unwrap();
    assert!(device.check().findings.is_empty());
    (device, other.0)
}

/// Returns what the trees of a device use once a mount has counted it, by the names of their tops; each inode below has
/// the number of its top.
fn trees_of(device: &Device) -> Vec<(u64, u64, u64)> {
    let fs = mount(&device.region, Policy::Inline).unwrap();
    fs.reconcile().unwrap();
    let all = fs.limited_trees().unwrap();
    for tree in &all {
        for name in [&b"below"[..], b"below/file"] {
            let mut at = tree.top;
            for part in name.split(|byte| *byte == b'/') {
                at = fs.lookup(at, part).unwrap().ino;
            }
            assert_eq!(fs.limited_tree(at).unwrap().unwrap().top, tree.top);
        }
    }
    fs.unmount().unwrap();
    all.iter().map(|tree| (tree.top.0, tree.logical_bytes, tree.inodes)).collect()
}

/// Writes the limits of a directory anew, as no operation would.
fn write_limits_of(device: &Device, ino: u64, value: &[u8]) {
    let value = XattrValue::Inline(value.to_vec());
    device.append(ino, &[LogEntry::XattrSet { name: TREE_LIMITS.to_vec(), value, time: 0 }]);
}

#[test]
fn a_directory_that_is_charged_to_another_tree_than_the_one_above_it_is_put_right() {
    for (nth, tree) in [(0, 0), (1, 2), (2, 77)] {
        let (device, other) = device_with_limits();
        let fs = mount(&device.region, Policy::Inline).unwrap();
        let below = fs.lookup(InodeNumber(device.inner), b"below").unwrap().ino.0;
        fs.unmount().unwrap();
        let (offset, attributes) = device.attributes(below);
        assert_eq!(attributes.tree, 1, "the first number");
        device.write(offset, &AttributeLine { tree, ..attributes }.sealed(below));
        if nth == 0 {
            // A mount after a crash counts what it finds.
            device.in_use();
        }
        device.finds_and_repairs(3, "is charged to tree");
        assert_eq!(trees_of(&device), [(device.inner, 8192, 4), (other, 8192, 3)]);
    }
}

#[test]
fn limits_that_are_damaged_are_none_to_a_mount_and_a_repair_removes_them() {
    let whole = TreeLimits::new(1, &Limits::default(), false);
    let mut newer = whole.as_bytes().to_vec();
    newer[0] = 2;
    for damaged in [&b"short"[..], &newer, &[0; 32], &[9; 33]] {
        let (device, other) = device_with_limits();
        write_limits_of(&device, device.inner, damaged);
        device.in_use();
        device.finds(0, "the limits that stand on it are damaged");
        let fs = mount(&device.region, Policy::Inline).unwrap();
        fs.reconcile().unwrap();
        let (inner, tops) = (InodeNumber(device.inner), fs.limited_trees().unwrap());
        assert_eq!((tops.len(), tops[0].top.0, fs.limited_tree(inner).unwrap()), (1, other, None));
        for nth in 0..10 {
            fs.create(inner, format!("more{nth}").as_bytes(), &new(FileKind::Regular)).unwrap();
        }
        fs.unmount().unwrap();
        device.finds_and_repairs(0, "the limits that stand on it are damaged");
        assert_eq!(trees_of(&device), [(other, 8192, 3)]);
        let fs = mount(&device.region, Policy::Inline).unwrap();
        fs.change_limits(inner, |limits| limits.inodes = Some(14)).unwrap();
        assert_eq!(fs.limited_tree(inner).unwrap().unwrap().inodes, 14);
        fs.unmount().unwrap();
    }
    // Only a directory can have limits.
    let (device, other) = device_with_limits();
    write_limits_of(&device, device.linked, whole.as_bytes());
    device.in_use();
    device.finds_and_repairs(0, "the limits that stand on it are damaged");
    assert_eq!(trees_of(&device), [(device.inner, 8192, 4), (other, 8192, 3)]);
}

#[test]
fn two_directories_with_one_tree_are_found_and_the_first_keeps_it() {
    let (device, other) = device_with_limits();
    write_limits_of(
        &device,
        other,
        TreeLimits::new(1, &Limits { inodes: Some(3), ..Limits::default() }, false).as_bytes(),
    );
    device.in_use();
    device.finds(3, "have the limits of one tree, number 1");
    let fs = mount(&device.region, Policy::Inline).unwrap();
    fs.reconcile().unwrap();
    let tops: Vec<u64> = fs.limited_trees().unwrap().iter().map(|tree| tree.top.0).collect();
    assert_eq!(tops, [device.inner]);
    for nth in 0..10 {
        fs.create(InodeNumber(other), format!("{nth}").as_bytes(), &new(FileKind::Regular)).unwrap();
    }
    fs.unmount().unwrap();
    device.finds_and_repairs(3, "have the limits of one tree, number 1");
    assert_eq!(trees_of(&device), [(device.inner, 8192, 4)]);
}

#[test]
fn limits_without_the_feature_of_that_are_found() {
    let (device, _) = device_with_limits();
    let superblock: Superblock = device.region.read(COPIES[0]);
    assert_eq!(superblock.incompatible & LIMITS, LIMITS);
    let without = Superblock { incompatible: superblock.incompatible & !LIMITS, ..superblock }.sealed();
    device.geometry.copies().for_each(|copy| device.write(copy, &without));
    device.finds(0, "there are limits, and the superblock does not have the feature flag of that");
}

/// The walk that charges what is below a directory was cut off: the rest is still charged elsewhere.
#[test]
fn a_tree_that_is_still_being_charged_is_no_damage_and_recovery_goes_on() {
    for (limits, is_limited) in [(Limits { inodes: Some(9), ..Limits::default() }, true), (Limits::default(), false)] {
        for repairs in [false, true] {
            let (device, other) = device_with_limits();
            write_limits_of(&device, device.inner, TreeLimits::new(1, &limits, true).as_bytes());
            if !is_limited {
                let (offset, attributes) = device.attributes(device.inner);
                device.write(offset, &AttributeLine { tree: 0, ..attributes }.sealed(device.inner));
            } else {
                let fs = mount(&device.region, Policy::Inline).unwrap();
                let below = fs.lookup(InodeNumber(device.inner), b"below").unwrap().ino.0;
                drop(fs);
                let (offset, attributes) = device.attributes(below);
                device.write(offset, &AttributeLine { tree: 0, ..attributes }.sealed(below));
            }
            device.in_use();
            assert!(device.check().findings.is_empty(), "{:#?}", device.check().findings);
            if repairs {
                assert!(check(&device.region, &CheckOptions { repair: true, data: true }).unwrap().is_consistent());
            } else {
                let fs = mount(&device.region, Policy::Inline).unwrap();
                fs.reconcile().unwrap();
                let is_half = |fs: &FileSystem| fs.limited_trees().unwrap().iter().any(|tree| tree.is_being_charged);
                assert!(is_half(&fs));
                while !fs.remove_step().unwrap() {}
                assert!(!is_half(&fs));
                fs.unmount().unwrap();
            }
            assert!(device.check().findings.is_empty(), "{:#?}", device.check().findings);
            let of_inner = is_limited.then_some((device.inner, 8192, 4));
            let expected: Vec<_> = of_inner.into_iter().chain([(other, 8192, 3)]).collect();
            assert_eq!(trees_of(&device), expected);
        }
    }
}

#[test]
fn the_saved_use_of_limited_trees_is_compared_with_the_logs() {
    let (device, _) = device_with_limits();
    let superblock: Superblock = device.region.read(COPIES[0]);
    let at = superblock.saved_state;
    let mut header: SavedState = device.region.read(at);
    // The payload is read back, one word of the last record is changed, and all is sealed again.
    let runs = header.runs[..header.runs_used as usize].iter();
    let places: Vec<u64> = runs.flat_map(|run| (0..run.count * 512).map(|word| run.start * 4096 + word * 8)).collect();
    let places = &places[..header.payload_words as usize];
    let word = |place: &u64| device.region.load_u64(*place);
    for (back, changed) in [(4, 1), (5, 4096), (6, 1), (2, 2)] {
        let place = places[places.len() - back];
        let before = word(&place);
        device.write(place, &(before + changed));
        let payload: Vec<u8> = places.iter().flat_map(|place| word(place).to_le_bytes()).collect();
        header.payload_check = crc32c::crc32c(&payload);
        device.write(at, &header.sealed(at));
        device.finds(2, "the saved state has tree 2 as");
        device.write(place, &before);
    }
    device.write(places[places.len() - 1], &word(&places[places.len() - 1]));
    let payload: Vec<u8> = places.iter().flat_map(|place| word(place).to_le_bytes()).collect();
    header.payload_check = crc32c::crc32c(&payload);
    device.write(at, &header.sealed(at));
    assert!(device.check().findings.is_empty());
}

// --- 4: one use a block ------------------------------------------------------------------------------

#[test]
fn file_data_in_a_log_page_is_found() {
    let device = Device::make();
    device.append(device.plain, &[device.extent(0, device.first_page(device.crowded))]);
    device.finds_and_gives_up(4, "is file data too", &[device.plain]);
}

#[test]
fn file_data_in_an_xattr_block_is_found() {
    let device = Device::make();
    let blocks = device.inline_entries(device.labelled).into_iter().find_map(|entry| match entry {
        LogEntry::XattrSet {
            value: nvfold::internals::media::log_entry::XattrValue::Blocks { blocks, .. }, ..
        } => Some(blocks),
        _ => None,
    });
    device.append(device.plain, &[device.extent(0, blocks.unwrap()[2])]);
    device.finds_and_gives_up(4, "is file data too", &[device.plain]);
}

#[test]
fn file_data_in_the_inode_table_is_found() {
    let device = Device::make();
    device.append(device.plain, &[device.extent(0, device.slot(0))]);
    device.finds_and_gives_up(4, "part of a table", &[device.plain]);
}

#[test]
fn an_xattr_block_used_by_two_inodes_is_found() {
    let device = Device::make();
    let value = device.inline_entries(device.labelled).into_iter().find(|e| matches!(e, LogEntry::XattrSet { .. }));
    device.append(device.linked, &[value.unwrap()]);
    device.finds_and_gives_up(4, "belongs to inode", &[device.linked]);
}

#[test]
fn a_segment_in_use_that_is_not_marked_is_found() {
    let device = Device::make();
    let segment = device.address(device.plain) / SEGMENT_BYTES;
    device.write(device.geometry.segment_entry_offset(segment), &SegmentEntry::default());
    device.finds_and_repairs(4, "is not marked as used");
}

#[test]
fn half_a_segment_mark_counts_as_a_mark() {
    let device = Device::make();
    let segment = device.address(device.plain) / SEGMENT_BYTES;
    let offset = device.geometry.segment_entry_offset(segment);
    device.write(offset, &SegmentEntry { check: 0, ..SegmentEntry::blocks(segment) });
    device.finds_and_repairs(0, "half an entry");
}

// --- the saved state -----------------------------------------------------------------------------------

impl Device {
    fn saved_state(&self) -> (u64, SavedState) {
        let superblock: Superblock = self.region.read(COPIES[0]);
        assert_ne!(superblock.saved_state, 0, "the unmount saved its state");
        (superblock.saved_state, self.region.read(superblock.saved_state))
    }

    /// Changes the header of the saved state, with a right checksum.
    fn change_saved_state(&self, change: impl FnOnce(&mut SavedState)) {
        let (at, mut state) = self.saved_state();
        change(&mut state);
        self.write(at, &state.sealed(at));
    }

    /// Changes one word of its payload, with right checksums.
    fn change_payload(&self, word: u64, change: impl FnOnce(u64) -> u64) {
        let (_, state) = self.saved_state();
        let run = state.runs.iter().find(|run| run.count > 0).unwrap();
        assert!(state.payload_words * 8 <= run.count * BLOCK_BYTES, "the payload lies in one run");
        let start = run.start * BLOCK_BYTES;
        let old = self.region.load_u64(start + word * 8);
        self.write(start + word * 8, &change(old));
        let payload_check = crc32c::crc32c(&self.region.to_vec(start, state.payload_words * 8));
        self.change_saved_state(|state| state.payload_check = payload_check);
    }

    /// A mount does not trust it, and finds out the same by itself.
    #[track_caller]
    fn mounts_without_it(&self) {
        let fs = mount(&self.region, Policy::Inline).unwrap();
        assert!(!fs.stats().recovery.loaded);
        fs.reconcile().unwrap();
        fs.unmount().unwrap();
        let after = self.check();
        assert!(after.clean && after.findings.is_empty(), "{after:#?}");
    }
}

#[test]
fn a_mount_loads_the_saved_state() {
    let device = Device::make();
    let fs = mount(&device.region, Policy::Inline).unwrap();
    let recovery = fs.stats().recovery;
    assert!(recovery.loaded && recovery.reconciled && recovery.entries_scanned == 0 && recovery.inodes_scanned == 0);
    assert!(device.region.read::<Superblock>(COPIES[0]).saved_state == 0, "it is used once");
    drop(fs);
    let fs = mount(&device.region, Policy::Inline).unwrap();
    let recovery = fs.stats().recovery;
    assert!(!recovery.loaded && !recovery.reconciled && recovery.entries_scanned > 0, "{recovery:?}");
}

#[test]
fn a_damaged_saved_state_is_found_and_not_used() {
    let breaks: [fn(&Device); 8] = [
        |device| device.flip(device.saved_state().0 + 100),
        |device| device.change_saved_state(|state| state.mount_epoch += 1),
        |device| device.change_saved_state(|state| state.payload_words += 1),
        |device| device.change_saved_state(|state| state.payload_words = u64::MAX / 8),
        |device| device.change_saved_state(|state| state.segments = u64::MAX),
        |device| device.change_saved_state(|state| state.runs[0].start = 1 << 40),
        |device| device.change_saved_state(|state| state.payload_check ^= 1),
        |device| device.change_payload(0, |_| 0),
    ];
    for (at, damage) in breaks.into_iter().enumerate() {
        let device = Device::make();
        damage(&device);
        device.finds(0, "the saved state is damaged");
        device.mounts_without_it();
        println!("break {at}");
    }
}

#[test]
fn a_saved_state_that_contradicts_the_logs_is_found() {
    let device = Device::make();
    device.change_payload(1, |used| used ^ 1 << 63);
    device.finds_and_repairs(4, "other blocks in use");
    let device = Device::make();
    device.change_payload(1 + 8, |has_entry| has_entry ^ 1 << 63);
    device.finds_and_repairs(2, "other entries");
    let device = Device::make();
    device.change_saved_state(|state| state.data_blocks += 1);
    device.finds_and_repairs(2, "saved totals are");
    let device = Device::make();
    device.change_saved_state(|state| state.mapped_bytes += 1);
    device.finds_and_repairs(2, "saved totals do not add up");
    let device = Device::make();
    let inode_words = device.saved_state().1.segments * 17;
    device.change_payload(inode_words + 3, |used| used ^ 1);
    device.finds_and_repairs(2, "other inodes in use");
}

#[test]
fn a_saved_index_without_a_counted_block_or_with_a_free_one_is_found() {
    let geometry = |device: &Device| Geometry::of(device.region.len_bytes()).unwrap();
    let is_counted = |device: &Device, slot: u64| {
        let block = BlockNumber(slot & u64::from(u32::MAX));
        let entry: ChunkEntry = device.region.read(geometry(device).chunk_entry_offset(block));
        entry.weak(WeakFunction::Xxh3) == Some((slot >> 32) as u32)
    };
    let slot_of = |device: &Device, is_counted_one: bool| {
        let (_, state) = device.saved_state();
        let start = state.runs.iter().find(|run| run.count > 0).unwrap().start * BLOCK_BYTES;
        let index = state.segments * 17 + state.inode_words;
        let slot = |word: &u64| device.region.load_u64(start + word * 8);
        let fits = |word: &u64| slot(word) > 1 << 32 && is_counted(device, slot(word)) == is_counted_one;
        (index..state.payload_words).find(fits).unwrap()
    };
    let device = Device::make();
    device.change_payload(slot_of(&device, true), |_| 0);
    device.finds_and_repairs(2, "the saved index misses 1 fingerprints of the chunk table");
    let device = Device::make();
    let free = geometry(&device).blocks() - 2;
    device.change_payload(slot_of(&device, false), |slot| slot >> 32 << 32 | free);
    device.finds_and_repairs(2, "the saved index has 1 chunks that no file references");
}

#[test]
fn a_full_device_is_clean_without_a_saved_state() {
    let device = Device::make();
    let fs = mount(&device.region, Policy::Off).unwrap();
    let file = fs.open(fs.create(InodeNumber::ROOT, b"fill", &new(FileKind::Regular)).unwrap().ino).unwrap();
    while file.append(&noise(9, 64 << 10)).is_ok() {}
    while file.append(&noise(9, 4096)).is_ok() {}
    let filled = fs.stats();
    drop(file);
    fs.unmount().unwrap();
    // The kept blocks are room enough for a small state; what matters is that a mount finds the same either way.
    device.in_use();
    device.write(COPIES[0], &{
        let superblock: Superblock = device.region.read(COPIES[0]);
        Superblock { state: STATE_CLEAN, saved_state: 0, ..superblock }.sealed()
    });
    let fs = mount(&device.region, Policy::Off).unwrap();
    assert!(!fs.stats().recovery.loaded);
    let more = fs.open(fs.create(InodeNumber::ROOT, b"more", &new(FileKind::Regular)).unwrap().ino).unwrap();
    assert!(matches!(more.write_at(0, &noise(1, 4096)), Err(Error::NoSpace { .. })), "after looking for space");
    assert!(fs.stats().recovery.reconciled, "the write that lacked space waited for it");
    assert_eq!((fs.stats().free_bytes, fs.stats().stored_bytes), (filled.free_bytes, filled.stored_bytes));
    fs.unlink(InodeNumber::ROOT, b"fill").unwrap();
    more.write_at(0, &noise(1, 4096)).unwrap();
}

// --- 5: shared bytes never change --------------------------------------------------------------------

#[test]
fn bytes_that_do_not_match_their_fingerprint_are_found() {
    let device = Device::make();
    device.flip(device.address(device.repeated) + 1000);
    device.finds(5, "do not match");
    let metadata_only = check(&device.region, &CheckOptions { repair: false, data: false }).unwrap();
    assert!(metadata_only.is_consistent());
}

#[test]
fn a_reserved_block_that_is_shared_is_found_and_never_written_in_place() {
    let device = Device::make();
    let address = device.address(device.reserved);
    device.append(device.plain, &[device.extent(0, address)]);
    device.finds(5, "reserved by one file");
    device.in_use();
    let fs = mount(&device.region, Policy::Inline).unwrap();
    fs.reconcile().unwrap();
    let open = |path: &[u8]| fs.open(fs.resolve(path).unwrap().ino).unwrap();
    let (plain, reserved) = (open(b"plain"), open(b"reserved"));
    let (mut before, mut after) = ([0; 4096], [0; 4096]);
    plain.read_at(0, &mut before).unwrap();
    reserved.write_at(0, &noise(20, 4096)).unwrap();
    plain.read_at(0, &mut after).unwrap();
    assert!(before == after, "one file's write changed the other");
    // Both let go of the block: it is freed once.
    reserved.set_len(0).unwrap();
    plain.set_len(0).unwrap();
}

// --- anything at all ---------------------------------------------------------------------------------

/// Walks everything a mount shows; what it returns does not matter, that it returns does.
fn walk(fs: &FileSystem) {
    let mut seen = std::collections::HashSet::new();
    let mut left = vec![InodeNumber::ROOT];
    while let Some(ino) = left.pop() {
        if !seen.insert(ino) {
            continue;
        }
        let _ = fs.getattr(ino).and_then(|_| fs.readlink(ino));
        for name in fs.list_xattr(ino).unwrap_or_default() {
            let _ = fs.get_xattr(ino, &name);
        }
        if let Ok(file) = fs.open(ino) {
            let _ = file.read_at(0, &mut [0; 50_000]);
            let _ = file.seek(0, Whence::Hole);
        }
        let _ = fs.readdir(ino, 0, &mut |entry| {
            left.push(entry.ino);
            true
        });
    }
}

#[test]
fn random_damage_to_metadata_never_panics_or_hangs() {
    use proptest::prelude::*;
    let device = Device::make();
    // Every line of metadata that holds anything: only there can damage matter.
    let data_lines = 0..DEVICE_BYTES / 64;
    let lines: Vec<u64> = data_lines.filter(|at| device.region.read::<[u8; 64]>(at * 64) != [0; 64]).collect();
    let snapshot: Vec<_> = lines.iter().map(|at| (*at, device.region.read::<[u8; 64]>(at * 64))).collect();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(300)
    });
    let damage = prop::collection::vec((any::<prop::sample::Index>(), 0u64..64, any::<u8>()), 1..12);
    let result = runner.run(&damage, |damage| {
        let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
        let copy = Device { region, ..Device { region: device.region.clone(), ..device } };
        snapshot.iter().for_each(|(at, line)| copy.write(at * 64, line));
        for (line, byte, value) in &damage {
            copy.write(line.get(&lines) * 64 + byte, value);
        }
        for read_only in [true, false] {
            let options = MountOptions { read_only, ..MountOptions::default() };
            if let Ok(fs) = FileSystem::mount(copy.region.clone(), options) {
                walk(&fs);
                let _ = fs.reconcile();
            }
        }
        if let Ok(report) = check(&copy.region, &CheckOptions { repair: true, data: true })
            && report.is_consistent()
        {
            // What repair calls consistent stays so.
            prop_assert!(copy.check().is_consistent());
            prop_assert!(mount(&copy.region, Policy::Inline).is_ok());
        }
        Ok(())
    });
    result.unwrap();
}
