//! Compression of packed chunks: what comes back, what it saves, how it goes with sharing, growth, crashes and damage.

use crate::deext::{Random, text};
use nvfold::check::{CheckOptions, CheckReport, check};
use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::chunk_entry::{CLASS_END, CLASS_LOST, ChunkEntry, ENTRY_BYTES};
use nvfold::internals::media::segment::{SegmentEntry, SegmentUse};
use nvfold::internals::media::superblock::COMPRESSED_CHUNKS;
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};

const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
const DIRECTORY: NewInode = NewInode { kind: FileKind::Directory, mode: 0o755, ..NEW };
const ROOT: InodeNumber = InodeNumber::ROOT;
const MIB: usize = 1 << 20;
const CODECS: [Compression; 2] = [Compression::Lz4, Compression::ZSTD];

fn device(index: IndexKind) -> Region {
    let region = Region::create(&DeviceSpec::Memory, 128 << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
    region
}

fn mount_with(region: &Region, policy: Policy, compression: Compression) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions { policy, compression, ..MountOptions::default() }).unwrap()
}

fn mount(region: &Region, compression: Compression) -> FileSystem {
    mount_with(region, Policy::DeExt, compression)
}

fn create(fs: &FileSystem, name: &str) -> File {
    fs.open(fs.create(ROOT, name.as_bytes(), &NEW).unwrap().ino).unwrap()
}

fn open(fs: &FileSystem, name: &str) -> File {
    fs.open(fs.lookup(ROOT, name.as_bytes()).unwrap().ino).unwrap()
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.attr().size as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn settle(fs: &FileSystem) {
    while !fs.fill_step().unwrap() {}
}

fn looked_at(region: &Region, repair: bool) -> CheckReport {
    check(region, &CheckOptions { repair, data: true }).unwrap()
}

/// Unmounts, and sees that fsck finds nothing.
fn unmount(region: &Region, fs: FileSystem) {
    fs.unmount().unwrap();
    let found = looked_at(region, false);
    assert!(found.findings.is_empty() && found.clean, "{found:#?}");
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..bytes).map(|_| random.below(1 << 40) as u8).collect()
}

/// What files map is stored, shared or compressed away, and no byte of a chunk is dead.
fn assert_adds_up(fs: &FileSystem) {
    let usage = fs.usage().unwrap().expect("nothing is being recovered");
    assert!(usage.adds_up() && usage.dead_bytes == 0, "{usage:?}");
}

/// All entries of packed chunks that count, and where they lie.
fn entries(region: &Region) -> Vec<(u64, ChunkEntry)> {
    let (_, geometry) = read_superblock(region).unwrap();
    let is_table = |segment: &u64| {
        let entry: SegmentEntry = region.read(geometry.segment_entry_offset(*segment));
        matches!(entry.usage(*segment), SegmentUse::Entries(_))
    };
    let tables = (geometry.first_segment()..geometry.segments()).filter(is_table);
    let lines = tables.flat_map(|segment| (segment * SEGMENT_BYTES..(segment + 1) * SEGMENT_BYTES).step_by(64));
    assert_eq!(ENTRY_BYTES, 64);
    lines.map(|at| (at, region.read::<ChunkEntry>(at))).filter(|(_, entry)| !entry.is_empty()).collect()
}

fn compressed(region: &Region) -> Vec<(u64, ChunkEntry)> {
    entries(region).into_iter().filter(|(_, entry)| entry.packed_bytes().is_compressed()).collect()
}

fn store(region: &Region, at: u64, bytes: &[u8]) {
    let _ = region.fence(region.write(at, bytes).flush());
}

#[test]
fn compressed_text_takes_less_space_and_reads_back_unchanged() {
    for compression in CODECS {
        let region = device(IndexKind::Dram);
        let fs = mount(&region, compression);
        let data = text(4 * MIB + 123, 1);
        let file = create(&fs, "text");
        file.write_at(0, &data).unwrap();
        let stored = fs.stats().stored_bytes;
        println!("{compression}: {} bytes take {stored}", data.len());
        assert!(stored < data.len() as u64 * 3 / 4, "{compression}: {stored}");
        assert!(read(&file) == data);
        // Small requests, in order and at random.
        let mut random = Random(5);
        let small = |at: u64, length: usize| {
            let mut bytes = vec![0; length];
            let read = file.read_at(at, &mut bytes).unwrap();
            assert!(bytes[..read] == data[at as usize..at as usize + read], "{at}");
        };
        (0..200).for_each(|at| small(at * 1000, 1000));
        (0..500).for_each(|_| small(random.below(4 << 20), 1 + random.below(100_000) as usize));
        assert_adds_up(&fs);
        let stats = fs.stats();
        drop(file);
        unmount(&region, fs);
        // What was saved, and what a crash leaves to be scanned, say the same.
        for is_orderly in [true, false] {
            let fs = mount(&region, Compression::Off);
            fs.reconcile().unwrap();
            assert!(read(&open(&fs, "text")) == data);
            assert_eq!(fs.stats().compressed_away_bytes, stats.compressed_away_bytes);
            assert_adds_up(&fs);
            if is_orderly {
                unmount(&region, fs);
            }
        }
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let fs = FileSystem::mount(region.clone(), options).unwrap();
        assert_eq!(fs.stats().compressed_away_bytes, stats.compressed_away_bytes);
        assert!(read(&open(&fs, "text")) == data);
        drop(fs);
        let fs = mount(&region, compression);
        fs.reconcile().unwrap();
        fs.unlink(ROOT, b"text").unwrap();
        assert_eq!((fs.stats().stored_bytes, fs.stats().compressed_away_bytes), (0, 0));
        unmount(&region, fs);
    }
}

#[test]
fn equal_content_is_shared_whether_it_is_compressed_or_not() {
    for index in IndexKind::ALL {
        for (first, second) in [(Compression::ZSTD, Compression::Off), (Compression::Off, Compression::Lz4)] {
            let region = device(index);
            let fs = mount(&region, first);
            let data = text(MIB, 2);
            create(&fs, "first").write_at(0, &data).unwrap();
            unmount(&region, fs);
            let fs = mount(&region, second);
            let before = fs.stats().stored_bytes;
            let copy = create(&fs, "copy");
            copy.write_at(0, &data).unwrap();
            assert_eq!(fs.stats().stored_bytes, before, "{first}, then {second}");
            assert!(read(&copy) == data);
            assert_adds_up(&fs);
            // Shifted, it is shared too, but for its first piece.
            create(&fs, "shifted").write_at(0, &[b"some more".as_slice(), &data].concat()).unwrap();
            assert!(fs.stats().stored_bytes - before < 130_000);
            drop(copy);
            unmount(&region, fs);
        }
    }
}

/// Also by the bit that refuses older versions.
#[test]
fn data_that_does_not_shrink_is_stored_uncompressed() {
    let has_feature = |region: &Region| read_superblock(region).unwrap().0.incompatible & COMPRESSED_CHUNKS != 0;
    let region = device(IndexKind::Dram);
    let fs = mount(&region, Compression::Off);
    create(&fs, "text").write_at(0, &text(100_000, 3)).unwrap();
    unmount(&region, fs);
    let fs = mount(&region, Compression::ZSTD);
    let data = noise(MIB, 4);
    create(&fs, "noise").write_at(0, &data).unwrap();
    assert_eq!(fs.stats().stored_bytes, data.len() as u64 + 100_000);
    assert!(!has_feature(&region), "nothing is compressed yet");
    create(&fs, "more text").write_at(0, &text(100_000, 4)).unwrap();
    assert!(has_feature(&region));
    assert!(read(&open(&fs, "noise")) == data);
    assert_adds_up(&fs);
    unmount(&region, fs);
}

#[test]
fn a_grown_tail_is_compressed_on_request() {
    for index in IndexKind::ALL {
        let region = device(index);
        let fs = mount(&region, Compression::ZSTD);
        let data = text(300_000, 5);
        let file = create(&fs, "grows");
        for part in data.chunks(777) {
            file.append(part).unwrap();
        }
        assert!(read(&file) == data);
        drop(file);
        settle(&fs);
        let grown = fs.stats().stored_bytes;
        let file = open(&fs, "grows");
        let times = file.attr().mtime;
        let done = file.compress_range(0, u64::MAX, Compression::ZSTD).unwrap();
        let stored = fs.stats().stored_bytes;
        println!("{} bytes: {grown} grown, {stored} compressed", data.len());
        assert!(stored < data.len() as u64 * 3 / 4 && stored < grown, "{grown}, {stored}");
        assert!(done.changed_bytes > 0 && file.attr().mtime == times);
        assert!(read(&file) == data);
        let again = file.compress_range(0, u64::MAX, Compression::ZSTD).unwrap();
        assert_eq!((again.changed_bytes, fs.stats().stored_bytes), (0, stored), "done again it changes nothing");
        assert_eq!(file.dedup_range(0, u64::MAX).unwrap().changed_bytes, 0, "and sharing does not undo it");
        // It goes on to grow.
        file.append(&text(5000, 6)).unwrap();
        assert!(read(&file) == [data, text(5000, 6)].concat());
        assert_adds_up(&fs);
        drop(file);
        unmount(&region, fs);
    }
}

#[test]
fn a_shared_chunk_is_compressed_once_and_stays_shared() {
    for index in IndexKind::ALL {
        let region = device(index);
        let fs = mount(&region, Compression::Off);
        let data = text(MIB, 7);
        ["one", "two"].iter().for_each(|name| create(&fs, name).write_at(0, &data).unwrap());
        settle(&fs);
        let raw = fs.stats().stored_bytes;
        open(&fs, "one").compress_range(0, u64::MAX, Compression::Lz4).unwrap();
        let both = fs.stats().stored_bytes;
        assert!(both > raw, "the other file still names what is not compressed");
        open(&fs, "one").dedup_range(0, u64::MAX).unwrap();
        assert_eq!(fs.stats().stored_bytes, both, "what is compressed is not given up for what is not");
        open(&fs, "two").compress_range(0, u64::MAX, Compression::Lz4).unwrap();
        let stored = fs.stats().stored_bytes;
        println!("{raw} as it is, {stored} compressed");
        assert!(stored < raw * 3 / 4 && fs.stats().saved_bytes == data.len() as u64);
        for name in ["one", "two"] {
            open(&fs, name).compress_range(0, u64::MAX, Compression::Zstd(9)).unwrap();
        }
        assert!(fs.stats().stored_bytes < stored, "zstd saves more than lz4");
        for name in ["one", "two"] {
            let file = open(&fs, name);
            assert_eq!(file.compress_range(0, u64::MAX, Compression::Lz4).unwrap().changed_bytes, 0);
            assert!(read(&file) == data);
        }
        assert_adds_up(&fs);
        unmount(&region, fs);
        // A crash: what is stored is found again.
        let fs = mount(&region, Compression::Off);
        create(&fs, "after").write_at(0, &data).unwrap();
        drop(fs);
        let fs = mount(&region, Compression::Off);
        fs.reconcile().unwrap();
        assert!(read(&open(&fs, "after")) == data);
        assert_adds_up(&fs);
        unmount(&region, fs);
    }
}

#[test]
fn dedup_turns_blocks_into_compressed_pieces_under_a_cutting_policy() {
    let region = device(IndexKind::Dram);
    let data = text(MIB, 8);
    let fs = mount_with(&region, Policy::Inline, Compression::ZSTD);
    let file = create(&fs, "file");
    file.write_at(0, &data).unwrap();
    assert_eq!(file.compress_range(0, u64::MAX, Compression::ZSTD).unwrap().changed_bytes, 0, "blocks stay blocks");
    drop(file);
    unmount(&region, fs);
    let fs = mount(&region, Compression::Off);
    open(&fs, "file").compress_range(0, u64::MAX, Compression::ZSTD).unwrap();
    let stored = fs.stats().stored_bytes;
    assert!(stored < MIB as u64 * 3 / 4, "{stored}");
    assert!(read(&open(&fs, "file")) == data);
    // The way back.
    let mut plan = UndedupPlan::new();
    let file = open(&fs, "file");
    plan.add(&file.extents(0, 10_000).unwrap());
    file.undedup_range(0, u64::MAX).unwrap();
    assert_eq!(fs.stats().stored_bytes, MIB as u64);
    assert!(fs.stats().stored_bytes <= plan.data_bytes() + stored);
    assert_eq!(fs.stats().compressed_away_bytes, 0);
    assert!(read(&file) == data);
    drop(file);
    unmount(&region, fs);
}

#[test]
fn ends_of_files_are_compressed_under_every_policy() {
    for policy in [Policy::Off, Policy::Inline, Policy::NvDedup, Policy::DeNova] {
        let region = device(IndexKind::Dram);
        let fs = mount_with(&region, policy, Compression::ZSTD);
        let data = text(4096 + 2000, 9);
        let file = create(&fs, "file");
        file.write_at(0, &data).unwrap();
        let stored = fs.stats().stored_bytes;
        assert!((4096 + 500..4096 + 1800).contains(&stored), "{policy:?}: {stored}");
        assert!(entries(&region).iter().all(|(_, entry)| entry.class() == CLASS_END));
        // It grows, is cut off, and becomes a block.
        file.write_at(data.len() as u64, b" and more").unwrap();
        assert!(read(&file) == [&data[..], b" and more"].concat());
        file.set_len(5000).unwrap();
        assert!(read(&file) == data[..5000]);
        file.write_at(5000, &data[..4000]).unwrap();
        assert!(read(&file) == [&data[..5000], &data[..4000]].concat());
        drop(file);
        unmount(&region, fs);
    }
}

#[test]
fn overwriting_a_part_of_a_compressed_chunk_keeps_the_rest_readable() {
    let region = device(IndexKind::Dram);
    let fs = mount(&region, Compression::ZSTD);
    let mut data = text(500_000, 10);
    let file = create(&fs, "file");
    file.write_at(0, &data).unwrap();
    let mut random = Random(11);
    for round in 0..60 {
        let at = random.below(data.len() as u64 - 20_000) as usize;
        let new = text(1 + random.below(20_000) as usize, 100 + round);
        match round % 3 {
            0 => {
                file.allocate(at as u64, new.len() as u64, AllocateMode::PunchHole).unwrap();
                data[at..at + new.len()].fill(0);
            }
            1 => {
                file.write_at(at as u64, &new).unwrap();
                data[at..at + new.len()].copy_from_slice(&new);
            }
            _ => {
                let to = random.below(data.len() as u64 - 20_000) as usize;
                file.clone_from(&file, at as u64, to as u64, new.len() as u64).unwrap();
                data.copy_within(at..at + new.len(), to);
            }
        }
        assert!(read(&file) == data, "round {round}");
    }
    drop(file);
    settle(&fs);
    assert!(read(&open(&fs, "file")) == data);
    open(&fs, "file").compress_range(0, u64::MAX, Compression::Zstd(12)).unwrap();
    assert!(read(&open(&fs, "file")) == data);
    unmount(&region, fs);
}

#[test]
fn new_files_inherit_the_compression_of_their_directory() {
    let region = device(IndexKind::Dram);
    let fs = mount(&region, Compression::Off);
    let dir = fs.mkdir(ROOT, b"dir", &DIRECTORY).unwrap().ino;
    let set = |ino, value: &[u8]| fs.set_xattr(ino, COMPRESSION_ATTRIBUTE, value, XattrMode::Set);
    assert_eq!(fs.compression(), Compression::Off);
    for wrong in [&b"gzip"[..], b"", b"zstd:23"] {
        assert_eq!(set(dir, wrong).unwrap_err().errno(), errno::EINVAL);
    }
    set(dir, b"zstd:5").unwrap();
    fs.set_xattr(dir, POLICY_ATTRIBUTE, b"deext", XattrMode::Set).unwrap();
    let sub = fs.mkdir(dir, b"sub", &DIRECTORY).unwrap().ino;
    let inside = fs.create(sub, b"inside", &NEW).unwrap().ino;
    let outside = fs.create(ROOT, b"outside", &NEW).unwrap().ino;
    for (ino, expected) in [(sub, Compression::Zstd(5)), (inside, Compression::Zstd(5)), (outside, Compression::Off)] {
        assert_eq!(fs.compression_of(ino).unwrap(), expected);
    }
    assert_eq!(fs.get_xattr(inside, COMPRESSION_ATTRIBUTE).unwrap(), b"zstd:5");
    assert_eq!(fs.get_xattr(inside, POLICY_ATTRIBUTE).unwrap(), b"deext");
    fs.open(outside).unwrap().write_at(0, &text(100_000, 12)).unwrap();
    assert_eq!(fs.stats().stored_bytes, 100_000);
    fs.open(inside).unwrap().write_at(0, &text(100_000, 13)).unwrap();
    assert!(fs.stats().stored_bytes < 175_000);
    unmount(&region, fs);
    let fs = mount(&region, Compression::Lz4);
    assert_eq!(fs.compression_of(inside).unwrap(), Compression::Zstd(5));
    assert_eq!(fs.compression_of(outside).unwrap(), Compression::Lz4);
    fs.remove_xattr(inside, COMPRESSION_ATTRIBUTE).unwrap();
    assert_eq!(fs.compression_of(inside).unwrap(), Compression::Lz4);
    unmount(&region, fs);
}

/// A device with a file of compressed pieces, what it holds, and another file.
fn compressed_file() -> (Region, Vec<u8>) {
    let region = device(IndexKind::Dram);
    let fs = mount(&region, Compression::ZSTD);
    let data = text(100_000, 14);
    create(&fs, "file").write_at(0, &data).unwrap();
    create(&fs, "other").write_at(0, &text(50_000, 15)).unwrap();
    unmount(&region, fs);
    (region, data)
}

#[test]
fn a_damaged_frame_gives_eio_to_its_readers_and_is_found_by_fsck() {
    for (at, damage) in [(0, &[0xEEu8][..]), (3, &[0xEE]), (40, &[0xEE; 8]), (5, &[0xFF; 300])] {
        let (region, data) = compressed_file();
        let (_, entry) = compressed(&region)[1];
        store(&region, entry.address() + at, damage);
        let fs = mount(&region, Compression::ZSTD);
        let file = open(&fs, "file");
        let mut bytes = vec![0; data.len()];
        let error = file.read_at(0, &mut bytes).unwrap_err();
        assert_eq!(error.errno(), errno::EIO);
        assert!(error.to_string().contains("packed chunk 1: its compressed content"), "{error}");
        assert_eq!(file.read_at(0, &mut bytes[..100]).unwrap(), 100, "the rest can be read");
        assert!(bytes[..100] == data[..100]);
        // An equal chunk is stored anew, not shared with what cannot be read.
        let copy = create(&fs, "copy");
        copy.write_at(0, &data).unwrap();
        assert!(read(&copy) == data);
        assert_eq!(file.compress_range(0, u64::MAX, Compression::Lz4).unwrap().changed_bytes, 0);
        drop((file, copy));
        fs.unmount().unwrap();
        let found = looked_at(&region, false).findings;
        let told = |what: &str| found.iter().any(|finding| finding.what.contains(what));
        assert!(told("packed chunk 1: its compressed content is damaged") && told("inode 2 (/file)"), "{found:?}");
        looked_at(&region, true);
        let left = looked_at(&region, false);
        assert!(left.findings.is_empty(), "{left:#?}");
        assert_eq!(entries(&region)[1].1.class(), CLASS_LOST);
        let fs = mount(&region, Compression::ZSTD);
        let file = open(&fs, "file");
        assert_eq!(file.read_at(0, &mut bytes).unwrap_err().errno(), errno::EIO, "it is no other content");
        assert!(read(&open(&fs, "other")) == text(50_000, 15) && read(&open(&fs, "copy")) == data);
        file.write_at(0, &data).unwrap();
        assert!(read(&file) == data, "it can be written anew");
        drop(file);
        unmount(&region, fs);
    }
}

#[test]
fn a_chunk_with_an_unknown_codec_is_refused_with_the_codec_number() {
    let (region, data) = compressed_file();
    let (_, entry) = compressed(&region)[0];
    let mut frame = region.to_vec(entry.address(), entry.stored_bytes());
    frame[0] = 77;
    let seeded = crc32c::crc32c_append(entry.content_bytes() as u32, &frame[..1]);
    let check = crc32c::crc32c_append(seeded, &frame[5..]);
    frame[1..5].copy_from_slice(&check.to_le_bytes());
    store(&region, entry.address(), &frame);
    let fs = mount(&region, Compression::ZSTD);
    let error = open(&fs, "file").read_at(0, &mut vec![0; data.len()]).unwrap_err();
    assert_eq!(error.errno(), errno::EIO);
    assert!(error.to_string().contains("use a newer nvfold"), "{error}");
    fs.unmount().unwrap();
    let found = looked_at(&region, false).findings;
    assert!(found.iter().any(|finding| finding.what.contains("codec 77")), "{found:?}");
}

#[test]
fn lost_entries_of_compressed_chunks_are_rebuilt_from_their_headers() {
    for damage in [&[0u8; 64][..], &[0xA5; 64]] {
        let (region, data) = compressed_file();
        let lost = compressed(&region);
        lost.iter().for_each(|(at, _)| store(&region, *at, damage));
        assert!(!looked_at(&region, true).findings.is_empty());
        let left = looked_at(&region, false);
        assert!(left.findings.is_empty(), "{left:#?}");
        for ((_, before), (_, after)) in lost.iter().zip(compressed(&region)) {
            assert_eq!((before.address(), before.packed_bytes()), (after.address(), after.packed_bytes()));
        }
        let fs = mount(&region, Compression::ZSTD);
        assert!(read(&open(&fs, "file")) == data && read(&open(&fs, "other")) == text(50_000, 15));
        assert_adds_up(&fs);
        unmount(&region, fs);
    }
}

/// The entry is damaged, not what it leads to.
#[test]
fn an_entry_with_a_wrong_length_is_rebuilt_from_its_header() {
    let (region, data) = compressed_file();
    let (at, entry) = compressed(&region)[0];
    let damaged = ChunkEntry { content_bytes_less_one: entry.content_bytes_less_one ^ 0x1000, ..entry };
    store(&region, at, zerocopy::IntoBytes::as_bytes(&damaged));
    assert!(!looked_at(&region, true).findings.is_empty());
    let left = looked_at(&region, false);
    assert!(left.findings.is_empty(), "{left:#?}");
    let fs = mount(&region, Compression::ZSTD);
    assert!(read(&open(&fs, "file")) == data);
    unmount(&region, fs);
}

/// The words of an entry that say how long a chunk is, as anything.
#[test]
fn damaged_lengths_of_compressed_chunks_give_errors() {
    let (region, data) = compressed_file();
    let (at, entry) = compressed(&region)[0];
    let mut random = Random(16);
    for _ in 0..300 {
        let (length, content) = (1 + random.below(70_000), random.below(1 << 16) as u16);
        let damaged =
            ChunkEntry { address_length: length << 44 | entry.address(), content_bytes_less_one: content, ..entry };
        store(&region, at, zerocopy::IntoBytes::as_bytes(&damaged));
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let Ok(fs) = FileSystem::mount(region.clone(), options) else { continue };
        let mut bytes = vec![0; 1000];
        match open(&fs, "file").read_at(0, &mut bytes) {
            Ok(read) => assert!(read == 1000 && (content == 0 || bytes[..] == data[..1000])),
            Err(error) => assert_eq!(error.errno(), errno::EIO),
        }
        let _ = check(&region, &CheckOptions { repair: false, data: true }).unwrap();
    }
}
