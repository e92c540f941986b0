//! Vector entries: many extents in one log entry. What they say survives everything that a write entry does, and what
//! damage makes of them costs their file.

use nvfold::check::{CheckOptions, CheckReport, check};
use nvfold::internals::media::chunk_entry::ChunkEntry;
use nvfold::internals::media::inode::{INLINE_LOG, INODE_BYTES, InodeHead};
use nvfold::internals::media::location_word::LocationWord;
use nvfold::internals::media::log_entry::{LogEntry, dedupe};
use nvfold::internals::media::superblock::{Geometry, VECTOR_ENTRIES};
use nvfold::internals::media::vector_entry::{Named, RECORDS_MAX, VectorEntry};
use nvfold::internals::media::{BlockNumber, Location};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};
use zerocopy::IntoBytes;

const BLOCK: u64 = 4096;
const DEVICE_BYTES: u64 = 32 << 20;
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
const ROOT: InodeNumber = InodeNumber::ROOT;

fn device() -> Region {
    let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    region
}

fn mount(region: &Region, policy: Policy) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap()
}

fn create(fs: &FileSystem, name: &[u8]) -> File {
    fs.open(fs.create(ROOT, name, &NEW).unwrap().ino).unwrap()
}

fn open(fs: &FileSystem, name: &[u8]) -> File {
    fs.open(fs.resolve(name).unwrap().ino).unwrap()
}

/// Blocks of which no two numbers have equal ones.
fn content(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let block = |number: u64| (1..=BLOCK / 8).map(move |at| (number << 32 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    numbers.into_iter().flat_map(block).flat_map(u64::to_le_bytes).collect()
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.attr().size as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// A file whose blocks lie in the reverse order on the device, none beside the one that follows it in the file.
fn scattered(fs: &FileSystem, name: &[u8], blocks: u64) -> File {
    let file = create(fs, name);
    for at in (0..blocks).rev() {
        file.write_at(at * BLOCK, &content([at])).unwrap();
    }
    file
}

fn found(region: &Region) -> CheckReport {
    check(region, &CheckOptions { data: true, ..CheckOptions::default() }).unwrap()
}

fn assert_consistent(region: &Region) {
    let report = found(region);
    assert!(report.is_consistent(), "{report:?}");
}

/// Feature bits in each copy of the superblock.
fn features(region: &Region) -> Vec<u64> {
    let geometry = Geometry::of(DEVICE_BYTES).unwrap().with_last_copy();
    geometry.copies().map(|offset| region.read::<Superblock>(offset).incompatible).collect()
}

/// Where the slot of an inode lies: the first segment behind the tables holds the first 4096.
fn slot(ino: InodeNumber) -> u64 {
    Geometry::of(DEVICE_BYTES).unwrap().first_segment() * (2 << 20) + ino.0 * INODE_BYTES
}

/// Entries in the inline part of a file's log, with their places.
fn entries(region: &Region, ino: InodeNumber) -> Vec<(u64, LogEntry)> {
    let head: InodeHead = region.read(slot(ino));
    let (mut at, end) = (slot(ino) + INLINE_LOG, slot(ino) + INODE_BYTES);
    let mut entries = Vec::new();
    while at < end && at != head.tail() {
        let (entry, lines) = LogEntry::decode(ino.0, &region.to_vec(at, end - at)).unwrap();
        entries.push((at, entry));
        at += lines * 64;
    }
    entries
}

fn write(region: &Region, at: u64, bytes: &[u8]) {
    let _ = region.fence(region.write(at, bytes).flush());
}

/// Lines of the log that an operation writes to a file, which has none before: those of whole entries.
fn log_lines(region: &Region, file: &File) -> u64 {
    let head: InodeHead = region.read(slot(file.ino()));
    let start = slot(file.ino()) + INLINE_LOG;
    match (start..=start + 320).contains(&head.tail()) {
        true => (head.tail() - start) / 64,
        // What is left of the inline lines is skipped.
        false => head.tail() % BLOCK / 64,
    }
}

#[test]
fn a_write_that_is_shared_with_32_scattered_blocks_takes_7_lines_of_the_log() {
    let region = device();
    let fs = mount(&region, Policy::Inline);
    let source = scattered(&fs, b"source", 32);
    assert!(features(&region).iter().all(|bits| bits & VECTOR_ENTRIES == 0), "one extent at a time needs none");
    let target = create(&fs, b"target");
    target.write_at(0, &content(0..32)).unwrap();
    assert_eq!(target.extents(0, 100).unwrap().len(), 32);
    assert_eq!(fs.stats().stored_bytes, 32 * BLOCK, "all of it is shared");
    // 32 write entries would take 32.
    assert_eq!(log_lines(&region, &target), 7);
    assert!(features(&region).iter().all(|bits| bits & VECTOR_ENTRIES != 0), "in all copies");
    assert_eq!((read(&source), read(&target)), (content(0..32), content(0..32)));
    drop((source, target));
    fs.unmount().unwrap();
    assert_consistent(&region);
    assert!(features(&region).iter().all(|bits| bits & VECTOR_ENTRIES != 0), "they outlive the unmount");
    let fs = mount(&region, Policy::Inline);
    assert_eq!(read(&open(&fs, b"target")), content(0..32));
}

#[test]
fn a_clone_of_fragments_and_holes_survives_a_crash_and_a_compaction() {
    let region = device();
    let fs = mount(&region, Policy::Off);
    let source = create(&fs, b"source");
    // 400 fragments of odd lengths at odd offsets: more than one entry holds.
    for at in (0..400u64).rev() {
        source.write_at(at * 10_000 + 77, &content([at])[..1000]).unwrap();
    }
    let target = create(&fs, b"target");
    target.write_at(0, &content(500..600)).unwrap();
    target.clone_from(&source, 33, 123, 390 * 10_000).unwrap();
    let expected = read(&target);
    assert_eq!(expected[..123], content([500])[..123]);
    assert_eq!(expected[123 + 44..123 + 1044], content([0])[..1000]);
    let references = |fs: &FileSystem| (fs.stats().saved_bytes, fs.stats().stored_bytes, fs.stats().logical_bytes);
    let before = references(&fs);
    drop((source, target));
    std::mem::forget(fs);

    let fs = mount(&region, Policy::Off);
    fs.reconcile().unwrap();
    assert_eq!(references(&fs), before);
    let target = open(&fs, b"target");
    assert!(read(&target) == expected);
    // Enough changes for the log to be written anew.
    for time in 0..6000 {
        target.write_at(0, &[time as u8; 10]).unwrap();
    }
    target.write_at(0, &expected[..10]).unwrap();
    drop(target);
    fs.unmount().unwrap();
    assert_consistent(&region);
    let fs = mount(&region, Policy::Off);
    assert!(read(&open(&fs, b"target")) == expected);
    assert_eq!(references(&fs), before);
}

#[test]
fn a_vector_entry_is_one_queue_node_and_all_its_extents_are_shared() {
    for index in [IndexKind::Dram, IndexKind::Pm] {
        let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
        let fs = mount(&region, Policy::DeNova);
        let source = create(&fs, b"source");
        source.write_at(0, &content(0..16)).unwrap();
        while !fs.drain_step().unwrap() {}
        let target = create(&fs, b"target");
        // Reserved blocks are written in place, so every second block lies elsewhere.
        for at in (0..16).step_by(2) {
            target.allocate(at * BLOCK, BLOCK, AllocateMode::Reserve).unwrap();
        }
        let queued = |fs: &FileSystem| fs.stats().denova.unwrap().queue_entries;
        target.write_at(0, &content(0..16)).unwrap();
        assert_eq!(queued(&fs), 1, "one node");
        let (source_ino, target_ino) = (source.ino(), target.ino());
        drop((source, target));
        fs.unmount().unwrap();
        assert_consistent(&region);

        // The node outlives the unmount.
        let fs = mount(&region, Policy::DeNova);
        assert_eq!(queued(&fs), 1);
        while !fs.drain_step().unwrap() {}
        assert_eq!(queued(&fs), 0);
        assert_eq!(fs.stats().stored_bytes, 16 * BLOCK, "all 16 blocks are shared");
        let [source, target] = [source_ino, target_ino].map(|ino| fs.open(ino).unwrap());
        assert_eq!(read(&target), content(0..16));
        assert_eq!(source.extents(0, 100).unwrap()[0].references, 2);
        drop((source, target));
        fs.unmount().unwrap();
        assert_consistent(&region);
    }
}

#[test]
fn after_a_crash_waiting_vector_entries_are_queued_again() {
    let region = device();
    let fs = mount(&region, Policy::DeNova);
    let target = create(&fs, b"target");
    for at in 0..4 {
        target.allocate(at * 2 * BLOCK, BLOCK, AllocateMode::Reserve).unwrap();
    }
    target.write_at(0, &content([1, 2, 1, 2, 1, 2, 1, 2])).unwrap();
    let ino = target.ino();
    drop(target);
    std::mem::forget(fs);
    let log = region.to_vec(slot(ino), 512);
    let fs = mount(&region, Policy::DeNova);
    fs.reconcile().unwrap();
    assert_eq!(fs.stats().denova.unwrap().queue_entries, 1, "{log:?}");
    while !fs.drain_step().unwrap() {}
    assert_eq!(fs.stats().stored_bytes, 2 * BLOCK);
    fs.unmount().unwrap();
    assert_consistent(&region);
}

/// A device with a file `many` of eight extents, in one vector entry, and a file `other`.
fn with_vector() -> (Region, InodeNumber, u64) {
    let region = device();
    let fs = mount(&region, Policy::Inline);
    drop(scattered(&fs, b"other", 8));
    let file = create(&fs, b"many");
    file.write_at(0, &content(0..8)).unwrap();
    let ino = file.ino();
    drop(file);
    fs.unmount().unwrap();
    let entries = entries(&region, ino);
    let [(at, LogEntry::Vector(entry))] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!(entry.named().count(), 8);
    (region, ino, *at)
}

/// The file gives EIO, fsck names it, everything else is as it was, and a repair gives up that file alone.
fn costs_the_file(region: &Region, ino: InodeNumber, what: &str) {
    let report = found(region);
    let named = format!("inode {}: ", ino.0);
    assert!(report.findings.iter().any(|finding| finding.what.contains(&named)), "{what}: {report:?}");
    let fs = mount(region, Policy::Inline);
    let error = fs.resolve(b"many").and_then(|attr| fs.open(attr.ino)).and_then(|file| file.read_at(0, &mut [0; 9]));
    assert_eq!(error.expect_err(what).errno(), errno::EIO, "{what}");
    assert_eq!(read(&open(&fs, b"other")), content(0..8), "{what}");
    drop(fs);
    check(region, &CheckOptions { repair: true, data: true }).unwrap();
    assert_consistent(region);
    let fs = mount(region, Policy::Inline);
    assert_eq!(read(&open(&fs, b"other")), content(0..8), "{what}");
}

#[test]
fn a_damaged_vector_entry_costs_its_file_and_fsck_reports_it() {
    // Each byte of the entry but its dedupe-flag is under the checksum.
    for byte in [0, 1, 2, 4, 8, 16, 24, 32, 40, 44, 63, 64, 67, 70, 100, 191] {
        let (region, ino, at) = with_vector();
        let old: u8 = region.read(at + byte);
        write(&region, at + byte, &[old ^ 0x41]);
        costs_the_file(&region, ino, &format!("byte {byte}"));
    }
}

/// Puts an entry with a right checksum in place of the one in the log.
fn forge(region: &Region, ino: InodeNumber, at: u64, named: &[Named], change: impl Fn(&mut Vec<u8>)) {
    let entry = VectorEntry::new(named, 0, 8 * BLOCK).sealed(ino.0);
    let mut lines = entry.as_bytes().to_vec();
    change(&mut lines);
    // The checksum of the changed entry: CRC-32C seeded with the inode's number, over the lines with the check zero.
    lines[4..8].fill(0);
    let seed = crc32c::crc32c(&ino.0.to_le_bytes());
    let check = crc32c::crc32c_append(seed, &lines);
    lines[4..8].copy_from_slice(&check.to_le_bytes());
    write(region, at, &lines);
}

#[test]
fn an_impossible_vector_entry_costs_its_file() {
    let media = |file_offset, address| {
        let word = LocationWord::new(Location::Media(address), false);
        Named { file_offset, length: BLOCK, word }
    };
    let (region, _, _) = with_vector();
    let address = open(&mount(&region, Policy::Inline), b"other").extents(0, 1).unwrap()[0].address;
    let sound: Vec<Named> = (0..8).map(|at| media(at * BLOCK, address)).collect();
    type Change = fn(&mut Vec<u8>);
    let changes: [(&str, Change); 6] = [
        ("no records", |lines| lines[40..44].fill(0)),
        ("more records than lines", |lines| lines[40] = 200),
        ("a length of zero", |lines| lines[64..68].fill(0)),
        ("lengths whose sum is another", |lines| lines[64..68].fill(0xff)),
        ("an end beyond all numbers", |lines| lines[8..16].fill(0xff)),
        ("a size that no file has", |lines| lines[32..40].fill(0xff)),
    ];
    for (what, change) in changes {
        let (region, ino, at) = with_vector();
        forge(&region, ino, at, &sound, change);
        costs_the_file(&region, ino, what);
    }
    for (what, address) in
        [("in front of the data", 4096), ("behind the device", DEVICE_BYTES), ("at its end", DEVICE_BYTES - 100)]
    {
        let (region, ino, at) = with_vector();
        let mut named = sound.clone();
        named[3] = media(3 * BLOCK, address);
        forge(&region, ino, at, &named, |_| {});
        costs_the_file(&region, ino, what);
    }
}

#[test]
fn a_device_with_an_unknown_feature_is_refused() {
    let region = device();
    let geometry = Geometry::of(DEVICE_BYTES).unwrap().with_last_copy();
    for offset in geometry.copies() {
        let superblock: Superblock = region.read(offset);
        let newer = Superblock { incompatible: superblock.incompatible | 1 << 60, ..superblock };
        write(&region, offset, newer.sealed().as_bytes());
    }
    let refused = FileSystem::mount(region, MountOptions::default()).err().expect("it is newer");
    assert!(matches!(refused, Error::Newer { .. }), "{refused}");
}

#[test]
fn counts_match_the_extents_after_a_clone_over_a_clone() {
    let region = device();
    let fs = mount(&region, Policy::Off);
    let source = scattered(&fs, b"source", 8);
    let target = create(&fs, b"target");
    target.clone_from(&source, 0, 0, 8 * BLOCK).unwrap();
    target.clone_from(&source, 0, 0, 8 * BLOCK).unwrap();
    target.clone_from(&source, 100, 0, 8 * BLOCK - 100).unwrap();
    assert_eq!(fs.stats().stored_bytes, 8 * BLOCK);
    let geometry = Geometry::of(DEVICE_BYTES).unwrap();
    for extent in source.extents(0, 100).unwrap() {
        let entry: ChunkEntry = region.read(geometry.chunk_entry_offset(BlockNumber::containing(extent.address)));
        assert!((2..=3).contains(&entry.count), "{entry:?}");
    }
    drop((source, target));
    fs.unmount().unwrap();
    assert_consistent(&region);
}

#[test]
fn changing_the_dedupe_flag_keeps_the_checksum_valid() {
    let word = LocationWord::new(Location::Media(8 << 20), false);
    let named = |at: u64| Named { file_offset: at * BLOCK, length: BLOCK, word };
    let named: Vec<Named> = (0..RECORDS_MAX as u64).map(named).collect();
    let entry = VectorEntry::new(&named, 1, 2).flagged(dedupe::NEEDED).sealed(7);
    let mut lines = entry.as_bytes().to_vec();
    let first_word = entry.written().first_word(dedupe::COMPLETE);
    lines[..8].copy_from_slice(&first_word.to_le_bytes());
    let (decoded, length) = LogEntry::decode(7, &lines).unwrap();
    assert_eq!((decoded.written().unwrap().dedupe, length), (dedupe::COMPLETE, 63));
}
