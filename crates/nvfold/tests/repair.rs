//! Repair and its undo file: cut off anywhere and done again, put back bit by bit, and never on the wrong device.

use nvfold::check::{CheckOptions, CheckReport, UndoFile, check, check_and_keep, restore};
use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::inode::{INODE_BYTES, InodeHead, USE_WORD};
use nvfold::internals::media::superblock::{Geometry, LAST_COPY, STATE_REPAIR, VERSION};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};
use std::io;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use zerocopy::{Immutable, IntoBytes};

const DEVICE_BYTES: u64 = 16 << 20;
const ROOT: InodeNumber = InodeNumber::ROOT;
const REPAIR: CheckOptions = CheckOptions { repair: true, data: true };
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };

fn blank(bytes: u64) -> Region {
    Region::create(&DeviceSpec::Memory, bytes, &OpenOptions::default()).unwrap()
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len_bytes() as usize];
    region.read_into(0, &mut bytes);
    bytes
}

fn device_of(bytes: &[u8]) -> Region {
    let region = blank(bytes.len() as u64);
    for (at, block) in (0..).step_by(BLOCK_BYTES as usize).zip(bytes.chunks(BLOCK_BYTES as usize)) {
        if block.iter().any(|byte| *byte != 0) {
            put(&region, at, block);
        }
    }
    region
}

fn put<T: IntoBytes + Immutable + ?Sized>(region: &Region, at: u64, value: &T) {
    let _ = region.fence(region.write(at, value).flush());
}

fn noise(seed: u32, bytes: u32) -> Vec<u8> {
    (1..=bytes).map(|at| ((at ^ seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn mount(region: &Region) -> Result<FileSystem> {
    // One allocation cursor: where files lie does not depend on the thread that a test runs on.
    FileSystem::mount(region.clone(), MountOptions { cores: 1, ..MountOptions::default() })
}

/// Files in directories, the device unmounted.
fn populated(uuid: u8) -> Region {
    let region = blank(DEVICE_BYTES);
    FileSystem::mkfs(&region, &MkfsOptions { uuid: [uuid; 16], ..MkfsOptions::default() }).unwrap();
    let fs = mount(&region).unwrap();
    for dir in 0..3 {
        let dir_ino = fs.mkdir(ROOT, format!("dir {dir}").as_bytes(), &NEW).unwrap().ino;
        for number in 0..8 {
            let file = fs.open(fs.create(dir_ino, format!("file {number}").as_bytes(), &NEW).unwrap().ino).unwrap();
            file.write_at(0, &noise(dir * 8 + number, 9000)).unwrap();
            file.write_at(20_000, &noise(7, 8192)).unwrap();
        }
    }
    fs.unmount().unwrap();
    region
}

/// Damages a directory's slot, a page of the chunk table and the segment table.
fn damage(region: &Region) {
    let geometry = Geometry::of(DEVICE_BYTES).unwrap();
    let slots = geometry.first_segment() * SEGMENT_BYTES;
    put(region, slots + 2 * INODE_BYTES, &noise(1, 512)[..]);
    put(region, slots + 14 * INODE_BYTES, &noise(2, 512)[..]);
    put(region, geometry.segment_table_offset, &noise(3, 4096)[..]);
    let entries = geometry
        .chunk_entry_offset(nvfold::internals::media::BlockNumber(2 * nvfold::internals::media::SEGMENT_BLOCKS));
    put(region, entries, &noise(4, 4096)[..]);
}

/// All files by content: what is there, wherever it is.
fn contents(region: &Region) -> Vec<(String, Vec<u8>)> {
    let fs = mount(region).unwrap();
    let mut found = Vec::new();
    let mut dirs = vec![(ROOT, String::new())];
    while let Some((dir, path)) = dirs.pop() {
        let mut entries = Vec::new();
        fs.readdir(dir, 0, &mut |entry| {
            entries.push(entry);
            true
        })
        .unwrap();
        for entry in entries {
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            if entry.kind == FileKind::Directory {
                dirs.push((entry.ino, path));
                continue;
            }
            let file = fs.open(fs.lookup(dir, &entry.name).unwrap().ino).unwrap();
            let mut bytes = vec![0; file.attr().size as usize];
            file.read_at(0, &mut bytes).unwrap();
            found.push((path, bytes));
        }
    }
    fs.unmount().unwrap();
    found.sort();
    found
}

/// Keeps in memory; after so many pieces the process is killed, before the next one is written or in the middle of it.
#[derive(Clone)]
struct Kept {
    file: Arc<Mutex<Vec<u8>>>,
    pieces_left: Arc<Mutex<usize>>,
    tears_the_last: bool,
    fails: bool,
}

impl Kept {
    fn new(pieces: usize, tears_the_last: bool) -> Kept {
        let (file, pieces_left) = (Arc::default(), Arc::new(Mutex::new(pieces)));
        Kept { file, pieces_left, tears_the_last, fails: false }
    }

    fn bytes(&self) -> Vec<u8> {
        self.file.lock().unwrap().clone()
    }
}

struct Killed;

impl UndoFile for Kept {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let is_last = {
            let mut left = self.pieces_left.lock().unwrap();
            *left = left.saturating_sub(1);
            *left == 0
        };
        let mut file = self.file.lock().unwrap();
        if is_last {
            file.extend_from_slice(if self.tears_the_last { &bytes[..bytes.len() / 2] } else { &[] });
            drop(file);
            if self.fails {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            std::panic::resume_unwind(Box::new(Killed));
        }
        file.extend_from_slice(bytes);
        Ok(())
    }
}

fn repair_into(region: &Region, undo: &Kept) -> Result<CheckReport> {
    check_and_keep(region, &REPAIR, || Ok(Box::new(undo.clone()) as Box<dyn UndoFile>))
}

#[test]
fn an_interrupted_repair_can_be_repeated_and_undone() {
    let region = populated(1);
    damage(&region);
    let damaged = bytes_of(&region);
    let whole = Kept::new(usize::MAX, false);
    let report = repair_into(&region, &whole).unwrap();
    assert!(report.is_consistent() && !report.given_up.is_empty() && !report.moved.is_empty(), "{report:#?}");
    let expected = contents(&device_of(&bytes_of(&region)));
    // One of the directories was lost, and with a second slot one file.
    assert_eq!(expected.len(), 23);
    assert_eq!(expected.iter().filter(|(path, _)| path.starts_with("/lost+found/")).count(), 8);
    restore(&region, &whole.bytes()).unwrap();
    assert!(bytes_of(&region) == damaged);

    let mut cut = 0;
    for pieces in 2.. {
        let region = device_of(&damaged);
        let first = Kept::new(pieces, pieces % 2 == 0);
        let killed = catch_unwind(AssertUnwindSafe(|| repair_into(&region, &first)));
        if let Ok(done) = killed {
            done.unwrap();
            break;
        }
        cut += 1;
        if pieces > 12 && pieces % 3 != 0 {
            continue;
        }
        let state = region.read::<Superblock>(0).state;
        let has_begun = bytes_of(&region) != damaged;
        assert!(
            !has_begun || state == STATE_REPAIR || pieces == 2 || first.bytes().len() < 2000,
            "piece {pieces}: {state}"
        );
        if state == STATE_REPAIR {
            assert!(matches!(mount(&region).map(drop), Err(Error::RepairInterrupted)), "half a repair is not mounted");
        }
        let half = bytes_of(&region);
        // Taken back at once.
        restore(&region, &first.bytes()).unwrap();
        assert!(bytes_of(&region) == damaged, "piece {pieces}");
        // Or done again, and taken back from the newest to the oldest.
        let region = device_of(&half);
        let second = Kept::new(usize::MAX, false);
        let report = repair_into(&region, &second).unwrap();
        assert!(report.is_consistent(), "piece {pieces}: {:#?}", report.findings);
        let after = bytes_of(&region);
        assert!(contents(&device_of(&after)) == expected, "piece {pieces}");
        restore(&region, &second.bytes()).unwrap();
        assert!(bytes_of(&region) == half, "piece {pieces}");
        restore(&region, &first.bytes()).unwrap();
        assert!(bytes_of(&region) == damaged, "piece {pieces}");
    }
    assert!(cut > 20, "{cut} places to be cut off at");
}

#[test]
fn a_repair_stops_before_overwriting_if_the_undo_file_cannot_be_written() {
    for pieces in 1..30 {
        let region = populated(1);
        damage(&region);
        let damaged = bytes_of(&region);
        let undo = Kept { fails: true, ..Kept::new(pieces, true) };
        let Err(error) = repair_into(&region, &undo) else { break };
        assert!(matches!(error, Error::Undo { .. }), "{error}");
        assert!(error.to_string().contains("cannot be written"), "{error}");
        // The device counts as lost for this process; the next one finds it as it is.
        let left = device_of(&bytes_of(&region));
        if pieces == 1 {
            assert!(bytes_of(&left) == damaged);
        } else {
            restore(&left, &undo.bytes()).unwrap();
            assert!(bytes_of(&left) == damaged, "piece {pieces}");
        }
    }
}

#[test]
fn an_undo_file_of_another_device_or_time_is_refused() {
    let region = populated(1);
    damage(&region);
    let undo = Kept::new(usize::MAX, false);
    repair_into(&region, &undo).unwrap();
    let kept = undo.bytes();
    let other = populated(2);
    let before = bytes_of(&other);
    let refused = |region: &Region, file: &[u8], words: &str| match restore(region, file) {
        Err(error @ Error::Undo { .. }) => assert!(error.to_string().contains(words), "{error}"),
        other => panic!("{words}: {other:?}"),
    };
    refused(&other, &kept, "another device");
    assert!(bytes_of(&other) == before);
    let after = bytes_of(&region);
    for length in [0, 63, 64, 70, 200, kept.len() - 16, kept.len() - 1] {
        refused(&region, &kept[..length], if length < 64 { "shorter" } else { "truncated" });
    }
    for at in (0..kept.len()).step_by(97) {
        let mut flipped = kept.clone();
        flipped[at] ^= 0x10;
        assert!(restore(&region, &flipped).is_err(), "byte {at}");
    }
    assert!(bytes_of(&region) == after, "nothing was written");
    mount(&region).unwrap().unmount().unwrap();
    refused(&region, &kept, "mounted");
}

#[test]
fn a_crash_without_damage_is_recovered_without_an_undo_file() {
    let region = populated(1);
    let fs = mount(&region).unwrap();
    fs.create(ROOT, b"new", &NEW).unwrap();
    drop(fs);
    let asked = Mutex::new(false);
    let report = check_and_keep(&region, &REPAIR, || {
        *asked.lock().unwrap() = true;
        Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem))
    });
    assert!(report.unwrap().is_consistent());
    assert!(!*asked.lock().unwrap());
}

#[test]
fn repairing_a_zeroed_device_with_one_superblock_creates_an_empty_root() {
    let region = populated(1);
    let geometry = nvfold::read_superblock(&region).unwrap().1;
    for copy in geometry.copies() {
        let superblock: Superblock = region.read(copy);
        let zeros = blank(DEVICE_BYTES);
        put(&zeros, copy, &superblock);
        assert!(mount(&zeros).is_err());
        let report = check(&zeros, &REPAIR).unwrap();
        assert!(report.is_consistent(), "{:#?}", report.findings);
        let after = check(&zeros, &CheckOptions::default()).unwrap();
        assert!(after.clean && after.findings.is_empty() && after.inodes == 1, "{after:#?}");
        let fs = mount(&zeros).unwrap();
        fs.create(ROOT, b"new", &NEW).unwrap();
        fs.unmount().unwrap();
    }
}

#[test]
fn a_truncated_device_is_refused_until_its_size_is_restored() {
    let region = populated(1);
    let expected = contents(&region);
    let whole = bytes_of(&region);
    for kept in [15 << 20, 8 << 20] {
        let short = device_of(&whole[..kept]);
        let before = bytes_of(&short);
        for result in [check(&short, &REPAIR).map(drop), mount(&short).map(drop)] {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Truncated { .. }) && error.to_string().contains("truncated to"), "{error}");
        }
        assert!(bytes_of(&short) == before);
        // As `truncate` makes it: zeros behind what is there.
        let long = device_of(&[&whole[..kept], &vec![0; DEVICE_BYTES as usize - kept]].concat());
        assert!(check(&long, &REPAIR).unwrap().is_consistent());
        assert!(contents(&long) == expected, "the files lie in front of what was cut off");
    }
}

#[test]
fn a_device_of_the_other_byte_order_is_recognised_and_never_written() {
    let region = populated(1);
    for copy in nvfold::read_superblock(&region).unwrap().1.copies() {
        put(&region, copy + 8, &VERSION.swap_bytes().to_le_bytes());
    }
    let before = bytes_of(&region);
    for result in [
        mount(&region).map(drop),
        check(&region, &REPAIR).map(drop),
        FileSystem::mkfs(&region, &MkfsOptions::default()).and(Err(Error::OtherByteOrder)),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::OtherByteOrder | Error::Format { .. }), "{error}");
    }
    assert!(bytes_of(&region) == before);
}

/// A device as it was made before there was a third superblock: its last block may be a file's.
#[test]
fn a_device_without_a_third_superblock_keeps_its_last_block() {
    let region = populated(1);
    let fs = mount(&region).unwrap();
    let blocks = fs.statfs().blocks;
    fs.unmount().unwrap();
    let superblock = nvfold::read_superblock(&region).unwrap().0;
    assert_eq!(superblock.read_only_compatible & LAST_COPY, LAST_COPY);
    let last = DEVICE_BYTES - BLOCK_BYTES;
    for copy in [0, BLOCK_BYTES] {
        put(&region, copy, &Superblock { read_only_compatible: 0, saved_state: 0, state: 2, ..superblock }.sealed());
    }
    put(&region, last, &noise(9, 4096)[..]);
    for _ in 0..2 {
        let fs = mount(&region).unwrap();
        fs.reconcile().unwrap();
        assert_eq!(fs.statfs().blocks, blocks + 1, "the last block is like any other");
        fs.create(ROOT, format!("new {}", fs.stats().inodes).as_bytes(), &NEW).unwrap();
        fs.unmount().unwrap();
        let report = check(&region, &CheckOptions::default()).unwrap();
        assert!(report.clean && report.findings.is_empty(), "{:#?}", report.findings);
        assert!(bytes_of(&region)[last as usize..] == noise(9, 4096), "no superblock is written there");
    }
    // Without its two copies it has none.
    put(&region, 60, &[1u8]);
    put(&region, BLOCK_BYTES + 60, &[1u8]);
    assert!(mount(&region).is_err());
}

/// A slot that looks free and has a name: its number must not become another's, and its name leads to EIO.
#[test]
fn an_inode_with_a_zeroed_slot_gives_eio_and_its_number_is_not_reused() {
    for is_clean in [true, false] {
        let region = populated(1);
        let fs = mount(&region).unwrap();
        let victim = fs.resolve(b"dir 0/file 3").unwrap().ino;
        let dir = fs.resolve(b"dir 0").unwrap().ino;
        if is_clean {
            fs.unmount().unwrap()
        } else {
            drop(fs)
        }
        let slot = Geometry::of(DEVICE_BYTES).unwrap().first_segment() * SEGMENT_BYTES + victim.0 * INODE_BYTES;
        put(&region, slot, &[0u8; INODE_BYTES as usize][..]);
        assert_eq!(region.load_u64(slot + USE_WORD), 0);
        let fs = mount(&region).unwrap();
        let made: Vec<u64> =
            (0..20).map(|n| fs.create(ROOT, format!("new {n}").as_bytes(), &NEW).unwrap().ino.0).collect();
        assert!(!made.contains(&victim.0));
        assert_eq!(fs.lookup(dir, b"file 3").unwrap_err().errno(), errno::EIO);
        assert_eq!(fs.entry(dir, b"file 3").unwrap().ino, victim);
        let free = fs.stats().free_bytes;
        fs.reconcile().unwrap();
        assert_eq!(fs.stats().recovery.unreadable, 1);
        assert!(is_clean || fs.stats().free_bytes <= free, "nothing is freed that it may name");
        fs.unlink(dir, b"file 3").unwrap();
        assert_eq!(fs.lookup(dir, b"file 3").unwrap_err().errno(), errno::ENOENT);
        fs.unmount().unwrap();
        let report = check(&region, &REPAIR).unwrap();
        assert!(report.is_consistent(), "{:#?}", report.findings);
        assert_eq!(contents(&region).len(), 23 + 20, "{is_clean}, {report:#?}");
    }
}

/// The directory with the name of a damaged slot is damaged too. Of the slot, the byte `in_use` is 0 by chance, or the
/// first two words, which say where its log lies, are whole.
#[test]
fn a_damaged_inode_slot_is_not_mistaken_for_a_free_or_half_created_one() {
    for (is_clean, has_log_words) in [(false, false), (false, true), (true, false), (true, true)] {
        let context = format!("unmounted before: {is_clean}, whole words: {has_log_words}");
        let region = populated(1);
        let fs = mount(&region).unwrap();
        let [dir, victim] = [&b"dir 0"[..], b"dir 0/file 3"].map(|path| fs.resolve(path).unwrap().ino.0);
        if is_clean {
            fs.unmount().unwrap()
        } else {
            drop(fs)
        }
        let slots = Geometry::of(DEVICE_BYTES).unwrap().first_segment() * SEGMENT_BYTES;
        let mut damaged = noise(2, 512);
        if has_log_words {
            region.read_into(slots + victim * INODE_BYTES, &mut damaged[..offset_of!(InodeHead, overflow)]);
        } else {
            damaged[offset_of!(InodeHead, in_use)] = 0;
        }
        put(&region, slots + dir * INODE_BYTES, &noise(1, 512)[..]);
        put(&region, slots + victim * INODE_BYTES, &damaged[..]);
        let fs = mount(&region).unwrap();
        fs.reconcile().unwrap();
        for number in 0..20 {
            let made = fs.create(ROOT, format!("new {number}").as_bytes(), &NEW).unwrap().ino.0;
            assert_ne!(made, victim, "{context}");
        }
        fs.unmount().unwrap();
        let report = check(&region, &REPAIR).unwrap();
        assert!(report.is_consistent(), "{:#?}", report.findings);
        let given_up: Vec<u64> = report.given_up.iter().map(|lost| lost.ino).collect();
        assert_eq!(given_up, [dir, victim], "{context}");
        assert_eq!(contents(&region).len(), 23 + 20, "{report:#?}");
    }
}
