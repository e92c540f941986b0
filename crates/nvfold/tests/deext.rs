//! Policy `deext`: pieces of any length, shared wherever they lie, through any order of writes, full devices and damage.

use nvfold::check::{CheckOptions, check};
use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::chunk_entry::ENTRY_BYTES;
use nvfold::internals::media::segment::{KIND_ENTRIES, KIND_FREE, SegmentEntry, SegmentUse};
use nvfold::internals::media::superblock::PACKED_CHUNKS;
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};
use std::sync::Barrier;
use zerocopy::IntoBytes;

pub(crate) const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
pub(crate) const ROOT: InodeNumber = InodeNumber::ROOT;
const MIB: usize = 1 << 20;

pub(crate) fn device(mib: u64, index: IndexKind) -> Region {
    let region = Region::create(&DeviceSpec::Memory, mib << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
    region
}

pub(crate) fn mount(region: &Region) -> FileSystem {
    let options = MountOptions { policy: Policy::DeExt, ..MountOptions::default() };
    FileSystem::mount(region.clone(), options).unwrap()
}

pub(crate) fn create(fs: &FileSystem, name: &str) -> File {
    fs.open(fs.create(ROOT, name.as_bytes(), &NEW).unwrap().ino).unwrap()
}

pub(crate) fn open(fs: &FileSystem, name: &str) -> File {
    fs.open(fs.lookup(ROOT, name.as_bytes()).unwrap().ino).unwrap()
}

pub(crate) fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.attr().size as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

pub(crate) fn settle(fs: &FileSystem) {
    while !fs.fill_step().unwrap() {}
}

/// Unmounts, and sees that fsck finds nothing.
pub(crate) fn unmount(region: &Region, fs: FileSystem) {
    fs.unmount().unwrap();
    let found = check(region, &CheckOptions::default()).unwrap();
    assert!(found.findings.is_empty() && found.clean, "{found:#?}");
}

pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Words in random order: compressible, and no 4 KiB of it like any other.
pub(crate) fn text(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let words: Vec<Vec<u8>> =
        (0..500).map(|_| (0..2 + random.below(8)).map(|_| b'a' + random.below(26) as u8).collect()).collect();
    let mut text = Vec::with_capacity(bytes + 16);
    while text.len() < bytes {
        text.extend_from_slice(&words[random.below(500) as usize]);
        text.push(b' ');
    }
    text.truncate(bytes);
    text
}

/// Bytes that nothing compresses.
pub(crate) fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..bytes).map(|_| random.below(1 << 40) as u8).collect()
}

/// Writes in requests of `step` bytes, in this order.
pub(crate) fn write(file: &File, data: &[u8], step: usize, order: impl Fn(&mut [usize])) {
    let mut starts: Vec<usize> = (0..data.len()).step_by(step).collect();
    order(&mut starts);
    for start in starts {
        file.write_at(start as u64, &data[start..data.len().min(start + step)]).unwrap();
    }
}

pub(crate) fn in_order(_: &mut [usize]) {}

fn shuffled(starts: &mut [usize]) {
    let mut random = Random(99);
    for at in (1..starts.len()).rev() {
        starts.swap(at, random.below(at as u64 + 1) as usize);
    }
}

/// What a second copy adds, in thousandths of its size.
fn added(data: &[u8], copy: &[u8], step: usize, order: fn(&mut [usize])) -> u64 {
    let region = device(128, IndexKind::Dram);
    let fs = mount(&region);
    let first = create(&fs, "first");
    first.write_at(0, data).unwrap();
    drop(first);
    settle(&fs);
    let before = fs.stats().stored_bytes;
    let second = create(&fs, "second");
    write(&second, copy, step, order);
    assert!(read(&second) == copy);
    drop(second);
    settle(&fs);
    let after = fs.stats().stored_bytes;
    assert!(read(&open(&fs, "second")) == copy && read(&open(&fs, "first")) == data);
    unmount(&region, fs);
    println!("{step}: {before} -> {after} bytes of {}", copy.len());
    (after - before) * 1000 / copy.len() as u64
}

#[test]
fn a_second_copy_is_shared_for_any_sizes_of_requests() {
    let data = text(16 * MIB, 1);
    assert!(added(&data, &data, 512, in_order) <= 5);
    assert!(added(&data, &data, 4096, in_order) <= 5);
    assert!(added(&data, &data, MIB, in_order) <= 5);
    assert!(added(&data, &data, 128 << 10, shuffled) <= 5);
}

#[test]
fn equal_files_that_are_written_at_the_same_time_are_stored_once() {
    let data = [text(4 * MIB, 3), noise(2 * MIB, 4), text(2 * MIB, 5)].concat();
    for index in [IndexKind::Dram, IndexKind::Pm] {
        for step in [MIB, 100_000] {
            let region = device(64, index);
            let fs = mount(&region);
            let together = Barrier::new(2);
            std::thread::scope(|scope| {
                for name in ["one", "other"] {
                    let file = create(&fs, name);
                    let (data, together) = (&data, &together);
                    scope.spawn(move || {
                        for (number, request) in data.chunks(step).enumerate() {
                            together.wait();
                            file.write_at((number * step) as u64, request).unwrap();
                        }
                    });
                }
            });
            settle(&fs);
            let stored = fs.stats().stored_bytes as usize;
            assert!(stored < data.len() + data.len() / 50, "{stored} bytes are stored of {} twice", data.len());
            assert!(["one", "other"].iter().all(|name| read(&open(&fs, name)) == data));
            unmount(&region, fs);
        }
    }
}

#[test]
fn inserting_a_byte_at_the_front_stores_one_more_piece() {
    let data = text(8 * MIB, 2);
    let moved: Vec<u8> = std::iter::once(b'!').chain(data.iter().copied()).collect();
    assert!(added(&data, &moved, 512, in_order) <= 10);
    assert!(added(&data, &moved, MIB, in_order) <= 10);
    assert!(added(&data, &moved, 128 << 10, shuffled) <= 10);
}

#[test]
fn incompressible_data_is_shared_in_fixed_pieces() {
    let data = noise(8 * MIB, 3);
    for (step, order) in [(512, in_order as fn(&mut [usize])), (MIB, in_order), (128 << 10, shuffled)] {
        assert!(added(&data, &data, step, order) <= 5);
    }
    let moved: Vec<u8> = std::iter::once(b'!').chain(data.iter().copied()).collect();
    assert!(added(&data, &moved, MIB, in_order) > 900, "fixed pieces do not follow the content");
}

#[test]
fn shifted_incompressible_data_is_shared_if_all_data_is_cut_by_content() {
    let data = noise(8 * MIB, 3);
    let moved: Vec<u8> = std::iter::once(b'!').chain(data.iter().copied()).collect();
    for index in [IndexKind::Dram, IndexKind::Pm] {
        let region = device(64, index);
        let deext = DeExtOptions { classes: Classes::ContentOnly, ..DeExtOptions::default() };
        let options = MountOptions { policy: Policy::DeExt, deext, ..MountOptions::default() };
        let fs = FileSystem::mount(region.clone(), options).unwrap();
        for (name, data) in [("one", &data), ("moved", &moved)] {
            let file = create(&fs, name);
            (0..data.len()).step_by(100_000).for_each(|at| {
                file.write_at(at as u64, &data[at..data.len().min(at + 100_000)]).unwrap();
            });
        }
        settle(&fs);
        let stored = fs.stats().stored_bytes as usize;
        assert!(stored < data.len() + data.len() / 50, "{stored} bytes are stored of {} twice", data.len());
        assert!(read(&open(&fs, "one")) == data && read(&open(&fs, "moved")) == moved);
        unmount(&region, fs);
    }
}

#[test]
fn pieces_of_all_lengths_are_stored_and_freed() {
    for index in IndexKind::ALL {
        let region = device(128, index);
        let fs = mount(&region);
        let free = fs.statfs().blocks_free;
        let mut contents = Vec::new();
        for (nth, length) in
            [1, 63, 64, 65, 4095, 4096, 4097, 16_384, 65_535, 65_536, 65_537, 300_000].into_iter().enumerate()
        {
            let data = if nth % 2 == 0 { text(length, nth as u64 + 10) } else { noise(length, nth as u64 + 10) };
            let name = format!("file-{nth}");
            create(&fs, &name).write_at(0, &data).unwrap();
            contents.push((name, data));
        }
        let bytes: usize = contents.iter().map(|(_, data)| data.len()).sum();
        assert_eq!(fs.stats().stored_bytes, bytes as u64, "no byte is padded");
        unmount(&region, fs);
        let fs = mount(&region);
        assert_eq!(fs.stats().stored_bytes, bytes as u64);
        for (name, data) in &contents {
            assert!(read(&open(&fs, name)) == *data, "{name}");
            fs.unlink(ROOT, name.as_bytes()).unwrap();
        }
        assert_eq!((fs.stats().stored_bytes, fs.stats().chunks, fs.stats().index.entries), (0, 0, 0));
        fs.trim().unwrap();
        let left = free - fs.statfs().blocks_free;
        assert!(left < 8, "{left} blocks are not given back");
        unmount(&region, fs);
    }
}

/// Data that takes the place of other data goes to segments of its own (III-C), and finds them again after a mount.
#[test]
fn updated_data_and_new_data_are_in_different_segments() {
    // One set of pools, whichever thread the test runs on.
    let mount_for_one_core = |region: &Region| {
        let options = MountOptions { policy: Policy::DeExt, cores: 1, ..MountOptions::default() };
        FileSystem::mount(region.clone(), options).unwrap()
    };
    let region = device(192, IndexKind::Dram);
    let packed = || segments(&region, |usage| *usage == SegmentUse::Packed).len();
    let fs = mount_for_one_core(&region);
    let file = create(&fs, "file");
    write(&file, &text(300_000, 1), 100_000, in_order);
    assert_eq!(packed(), 1);
    file.write_at(0, &text(100_000, 2)).unwrap();
    assert_eq!(packed(), 2, "overwritten");
    drop(file);
    unmount(&region, fs);
    let fs = mount_for_one_core(&region);
    let file = open(&fs, "file");
    file.set_len(0).unwrap();
    write(&file, &text(300_000, 3), 100_000, in_order);
    write(&create(&fs, "new"), &text(300_000, 4), 100_000, in_order);
    assert_eq!(packed(), 2, "truncated and written anew, and a new one");
    drop(file);
    unmount(&region, fs);
}

/// On a small device an open segment for each kind of data would be too much of it.
#[test]
fn updated_data_of_a_small_device_has_no_segments_of_its_own() {
    let region = device(96, IndexKind::Dram);
    let fs = mount(&region);
    let file = create(&fs, "file");
    write(&file, &text(300_000, 1), 100_000, in_order);
    file.write_at(0, &text(100_000, 2)).unwrap();
    assert_eq!(segments(&region, |usage| *usage == SegmentUse::Packed).len(), 1);
    drop(file);
    unmount(&region, fs);
}

#[test]
fn without_free_segments_pieces_go_to_blocks_until_enospc() {
    let region = device(32, IndexKind::Dram);
    let fs = mount(&region);
    let mut written = Vec::new();
    let file = create(&fs, "file");
    let error = loop {
        let data = noise(100_000, written.len() as u64 + 1);
        match file.append(&data) {
            Ok(_) => written.extend_from_slice(&data),
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), errno::ENOSPC, "{error}");
    assert!(written.len() > 20 * MIB, "{} bytes", written.len());
    assert!(fs.statfs().blocks_available < 32, "what was free could be written to");
    assert!(read(&file) == written);
    drop(file);
    unmount(&region, fs);
    let fs = mount(&region);
    assert!(read(&open(&fs, "file")) == written);
    fs.unlink(ROOT, b"file").unwrap();
    assert_eq!(fs.stats().stored_bytes, 0);
    unmount(&region, fs);
}

/// Cutting seams anew failed for want of room, and with it the step of whoever was doing something else in the background.
#[test]
fn a_seam_is_left_unchanged_if_there_is_no_space() {
    let region = device(32, IndexKind::Dram);
    let fs = mount(&region);
    let data = noise(6000, 1);
    for part in [&data[..3000], &data[3000..]] {
        let file = fs.lookup(ROOT, b"file").map_or_else(|_| create(&fs, "file"), |attr| fs.open(attr.ino).unwrap());
        file.append(part).unwrap();
    }
    let filler = create(&fs, "filler");
    let free = fs.statfs().blocks_available - 16;
    filler.allocate(0, free * 4096, AllocateMode::Reserve).unwrap();
    settle(&fs);
    assert!(read(&open(&fs, "file")) == data);
    drop(filler);
    unmount(&region, fs);
}

/// A log was rewritten when it had more than two pages, whatever it held: on a device that was nearly full the logs of small
/// files that were overwritten took what was left, until no write found any space.
#[test]
fn logs_of_overwritten_files_do_not_fill_a_device() {
    let region = device(48, IndexKind::Dram);
    let fs = mount(&region);
    let mut data = noise(16 << 10, 1);
    let mut files = Vec::new();
    let mut number = 0u64;
    let mut write = |file: &File| {
        number += 1;
        data[..8].copy_from_slice(&number.to_le_bytes());
        file.write_at(0, &data).map(|_| data.clone())
    };
    while fs.statfs().blocks_available > fs.statfs().blocks / 16 {
        files.push(create(&fs, &format!("{}", files.len())));
        write(files.last().unwrap()).unwrap();
    }
    let mut last = Vec::new();
    for round in 0..10 {
        last = files.iter().map(|file| write(file).unwrap_or_else(|error| panic!("round {round}: {error}"))).collect();
    }
    assert!(files.iter().zip(&last).all(|(file, data)| read(file) == *data));
    drop(files);
    unmount(&region, fs);
}

/// Content without a place to cut at is cut where pieces are longest, so two parts of it agree where the file ends, and not
/// within the first 64 KiB around their seam.
#[test]
fn a_seam_in_content_without_cuts_is_cut_again() {
    let region = device(128, IndexKind::Dram);
    let fs = mount(&region);
    let data = vec![b'a'; 200_000];
    let (one, two) = (create(&fs, "one"), create(&fs, "two"));
    one.write_at(0, &data).unwrap();
    two.write_at(100_000, &data[100_000..]).unwrap();
    two.write_at(0, &data[..100_000]).unwrap();
    let ends = |file: &File| extents(file).iter().map(|extent| extent.offset + extent.length).collect::<Vec<u64>>();
    assert!(ends(&two).contains(&100_000), "{:?}", ends(&two));
    settle(&fs);
    assert_eq!(ends(&two), ends(&one));
    assert!(read(&two) == data);
    drop((one, two));
    unmount(&region, fs);
}

#[test]
fn packed_data_is_unchanged_and_counted_exactly_after_a_crash() {
    for index in IndexKind::ALL {
        let region = device(128, index);
        let data = text(3 * MIB, 5);
        let fs = mount(&region);
        let (one, two) = (create(&fs, "one"), create(&fs, "two"));
        write(&one, &data, 5000, in_order);
        write(&two, &data, 70_000, shuffled);
        two.clone_from(&one, 1000, 200_000, 50_000).unwrap();
        one.set_len(2 * MIB as u64 + 77).unwrap();
        let (of_one, of_two) = (read(&one), read(&two));
        // Nobody unmounts.
        drop((one, two, fs));
        let fs = mount(&region);
        fs.reconcile().unwrap();
        assert!(read(&open(&fs, "one")) == of_one && read(&open(&fs, "two")) == of_two);
        settle(&fs);
        assert!(read(&open(&fs, "one")) == of_one && read(&open(&fs, "two")) == of_two);
        fs.unlink(ROOT, b"one").unwrap();
        fs.unlink(ROOT, b"two").unwrap();
        assert_eq!((fs.stats().stored_bytes, fs.stats().chunks, fs.stats().saved_bytes), (0, 0, 0));
        unmount(&region, fs);
    }
}

#[test]
fn under_deext_small_appends_are_written_once() {
    let region = device(128, IndexKind::Dram);
    let fs = mount(&region);
    let data = text(2 * MIB, 6);
    let file = create(&fs, "file");
    let stored = || region.counters().bytes_stored + region.counters().bytes_streamed;
    let before = stored();
    data.chunks(512).for_each(|part| _ = file.append(part).unwrap());
    let written = stored() - before;
    assert!(read(&file) == data);
    assert!(written > data.len() as u64, "{written} bytes: the test counts something else");
    assert!(written < data.len() as u64 * 18 / 10, "{written} bytes were stored for {}", data.len());
    drop(file);
    unmount(&region, fs);
}

/// A device with two files that share most of their pieces, and what they hold.
fn shared_files(index: IndexKind) -> (Region, Vec<u8>) {
    let region = device(128, index);
    let fs = mount(&region);
    let data = text(200_000, 7);
    create(&fs, "one").write_at(0, &data).unwrap();
    create(&fs, "two").write_at(0, &data).unwrap();
    unmount(&region, fs);
    (region, data)
}

/// Segments that are used for this.
pub(crate) fn segments(region: &Region, usage: fn(&SegmentUse) -> bool) -> Vec<u64> {
    let (_, geometry) = read_superblock(region).unwrap();
    let is_used = |segment: &u64| {
        let entry: SegmentEntry = region.read(geometry.segment_entry_offset(*segment));
        usage(&entry.usage(*segment))
    };
    (geometry.first_segment()..geometry.segments()).filter(is_used).collect()
}

/// Where the entry of the first packed chunk lies.
pub(crate) fn first_entry(region: &Region) -> u64 {
    segments(region, |usage| *usage == SegmentUse::Entries(0))[0] * SEGMENT_BYTES
}

pub(crate) fn store(region: &Region, at: u64, bytes: &[u8]) {
    let _ = region.fence(region.write(at, bytes).flush());
}

/// What fsck finds, and what it leaves to find after a repair.
pub(crate) fn repaired(region: &Region) -> (Vec<String>, Vec<String>) {
    let told = |repair: bool| {
        let report = check(region, &CheckOptions { repair, data: true }).unwrap();
        report.findings.iter().map(|finding| finding.what.clone()).collect::<Vec<_>>()
    };
    let found = told(false);
    told(true);
    (found, told(false))
}

#[test]
fn a_lost_packed_entry_is_rebuilt_from_its_header() {
    for index in IndexKind::ALL {
        for damage in [&[0u8; 64][..], &[0xA5; 64], &[0xFF; 8]] {
            let (region, data) = shared_files(index);
            let at = first_entry(&region) + if damage.len() == 8 { 16 } else { 0 };
            store(&region, at, damage);
            if damage.len() == 8 {
                let fs = mount(&region);
                let mut bytes = vec![0; 100];
                let error = open(&fs, "one").read_at(0, &mut bytes).unwrap_err();
                assert_eq!(error.errno(), errno::EIO);
                let far = data.len() as u64 - 100;
                assert_eq!(open(&fs, "one").read_at(far, &mut bytes).unwrap(), 100, "the rest can be read");
                assert!(bytes[..] == data[data.len() - 100..]);
                fs.unmount().unwrap();
            }
            let (found, left) = repaired(&region);
            assert!(found.iter().any(|what| what.contains("packed chunk 0")), "{found:?}");
            assert!(left.is_empty(), "{left:?}");
            let fs = mount(&region);
            assert!(read(&open(&fs, "one")) == data && read(&open(&fs, "two")) == data, "nothing was lost");
            unmount(&region, fs);
        }
    }
}

#[test]
fn files_of_a_lost_chunk_without_a_header_are_given_up() {
    let (region, _) = shared_files(IndexKind::Dram);
    let fs = mount(&region);
    create(&fs, "other").write_at(0, b"something else").unwrap();
    unmount(&region, fs);
    store(&region, first_entry(&region), &[0; 64]);
    for segment in segments(&region, |usage| *usage == SegmentUse::Packed) {
        store(&region, (segment + 1) * SEGMENT_BYTES - 16, &[0x5A; 16]);
    }
    let report = check(&region, &CheckOptions::default()).unwrap();
    let given_up: Vec<_> = report.given_up.iter().map(|inode| inode.path.clone().unwrap()).collect();
    assert_eq!(given_up, ["/one", "/two"].map(std::path::PathBuf::from));
    let left = repaired(&region).1;
    assert!(left.is_empty(), "{left:?}");
    let fs = mount(&region);
    assert!(fs.lookup(ROOT, b"one").is_err());
    assert!(read(&open(&fs, "other")) == b"something else");
    unmount(&region, fs);
}

#[test]
fn wrong_counts_and_fingerprints_of_packed_chunks_are_found_and_repaired() {
    for (at, value, what) in [
        (8, 1u64, "counted 1 times"),
        (8, 9, "counted 9 times"),
        (44, 0x1234_5678_9abc_def0, "fingerprint"),
        (16, 100 << 44, "damaged"),
    ] {
        let (region, data) = shared_files(IndexKind::Dram);
        let offset = first_entry(&region) + at;
        let value = if at == 16 { value | region.load_u64(offset) & ((1 << 44) - 1) } else { value };
        store(&region, offset, &value.to_le_bytes()[..if at == 44 { 4 } else { 8 }]);
        let (found, left) = repaired(&region);
        assert!(found.iter().any(|found| found.contains(what)), "{what}: {found:?}");
        assert!(left.is_empty(), "{what}: {left:?}");
        let fs = mount(&region);
        assert!(read(&open(&fs, "one")) == data && read(&open(&fs, "two")) == data);
        unmount(&region, fs);
    }
}

#[test]
fn a_device_gets_the_feature_with_its_first_packed_chunk() {
    let region = device(128, IndexKind::Dram);
    let packed = |region: &Region| read_superblock(region).unwrap().0.incompatible & PACKED_CHUNKS != 0;
    let options = MountOptions { policy: Policy::Inline, pack: Pack::Off, ..MountOptions::default() };
    let fs = FileSystem::mount(region.clone(), options).unwrap();
    create(&fs, "blocks").write_at(0, &[7; 5000]).unwrap();
    unmount(&region, fs);
    assert!(!packed(&region), "an older version can still use it");
    let fs = mount(&region);
    create(&fs, "packed").write_at(0, &[8; 5000]).unwrap();
    assert!(packed(&region));
    unmount(&region, fs);
    assert!(packed(&region));
}

#[test]
fn short_ends_are_packed_under_every_policy_and_shared() {
    for policy in [Policy::Off, Policy::Inline, Policy::NvDedup, Policy::DeNova] {
        let region = device(128, IndexKind::Dram);
        let options = || MountOptions { policy, ..MountOptions::default() };
        let fs = FileSystem::mount(region.clone(), options()).unwrap();
        let data = text(10_000, 8);
        for name in ["one", "two"] {
            create(&fs, name).write_at(0, &data).unwrap();
            create(&fs, &format!("short {name}")).write_at(0, &data[..100]).unwrap();
        }
        let stored = fs.stats().stored_bytes;
        let expected = match policy {
            Policy::Inline => 2 * 4096 + 1808 + 100,
            _ => 2 * (2 * 4096 + 1808 + 100),
        };
        assert!(stored == expected || policy == Policy::NvDedup && stored < expected, "{policy:?}: {stored}");
        // An end grows, is cut, and becomes blocks.
        let file = open(&fs, "short one");
        for length in (100..9000).step_by(700) {
            file.write_at(100, &data[100..length + 100]).unwrap();
            assert!(read(&file) == data[..length + 100]);
        }
        file.set_len(5000).unwrap();
        file.write_at(4990, b"end").unwrap();
        let mut expected = data[..5000].to_vec();
        expected[4990..4993].copy_from_slice(b"end");
        assert!(read(&file) == expected);
        drop(file);
        unmount(&region, fs);
        let fs = FileSystem::mount(region.clone(), options()).unwrap();
        assert!(read(&open(&fs, "short one")) == expected && read(&open(&fs, "two")) == data);
        assert!(read(&open(&fs, "short two")) == data[..100]);
        // And after a crash.
        create(&fs, "late").write_at(0, &data[..50]).unwrap();
        drop(fs);
        let fs = FileSystem::mount(region.clone(), options()).unwrap();
        fs.reconcile().unwrap();
        assert!(read(&open(&fs, "late")) == data[..50] && read(&open(&fs, "short one")) == expected);
        unmount(&region, fs);
    }
}

/// Extents of a file, all of them.
fn extents(file: &File) -> Vec<MappedExtent> {
    let mut all: Vec<MappedExtent> = Vec::new();
    loop {
        let more = file.extents(all.last().map_or(0, |last| last.offset + last.length), 100).unwrap();
        if more.is_empty() {
            return all;
        }
        all.extend(more);
    }
}

#[test]
fn dedup_cuts_blocks_into_pieces_and_undedup_writes_pieces_to_blocks() {
    for index in IndexKind::ALL {
        let region = device(128, index);
        let fs = mount(&region);
        let data = [text(MIB, 20), noise(300_000, 21)].concat();
        let moved: Vec<u8> = std::iter::once(b'!').chain(data.iter().copied()).collect();
        let files = [("one", &data), ("two", &moved)].map(|(name, data)| {
            let file = create(&fs, name);
            fs.set_xattr(file.ino(), POLICY_ATTRIBUTE, b"off", XattrMode::Set).unwrap();
            file.write_at(0, data).unwrap();
            // A hole, and a part in the middle that was cut already.
            file.write_at(3 * MIB as u64, &data[..100_000]).unwrap();
            fs.remove_xattr(file.ino(), POLICY_ATTRIBUTE).unwrap();
            file.write_at(500_000, &data[500_000..600_000]).unwrap();
            file
        });
        let visible = |file: &File| (Attr { blocks: 0, ..file.attr() }, read(file));
        let before = files.each_ref().map(visible);
        let dedup = |fs: &FileSystem| {
            let changed = files.each_ref().map(|file| file.dedup_range(0, u64::MAX).unwrap().changed_bytes);
            assert_eq!(files.each_ref().map(visible), before);
            (changed[0] + changed[1], fs.stats().stored_bytes)
        };
        assert!(fs.stats().stored_bytes > 2 * data.len() as u64);
        let (changed, stored) = dedup(&fs);
        assert!(changed > 2 * MIB as u64, "{changed} bytes");
        // The noise is cut in fixed pieces, which a byte in front moves.
        let once = data.len() as u64 + 300_000;
        assert!(stored < once * 102 / 100, "{stored} bytes for {once} different ones");
        assert_eq!(dedup(&fs), (0, stored), "there is nothing left to do");

        let mut plan = UndedupPlan::new();
        files.iter().for_each(|file| plan.add(&extents(file)));
        let changed = files.each_ref().map(|file| file.undedup_range(0, u64::MAX).unwrap().changed_bytes);
        assert_eq!(files.each_ref().map(visible), before);
        assert_eq!(changed[0] + changed[1], plan.copied_bytes());
        assert_eq!(fs.stats().stored_bytes, plan.data_bytes());
        let in_blocks = |extent: &MappedExtent| extent.class == 0 && extent.references == 1;
        assert!(files.iter().all(|file| extents(file).iter().all(in_blocks)));
        assert_eq!((fs.stats().saved_bytes, fs.stats().chunks), (0, 0));
        drop(files);
        unmount(&region, fs);
        let fs = mount(&region);
        assert_eq!([open(&fs, "one"), open(&fs, "two")].each_ref().map(read), before.map(|(_, data)| data));
        unmount(&region, fs);
    }
}

#[test]
fn dedup_without_room_for_pieces_shares_blocks() {
    let region = device(32, IndexKind::Dram);
    let fs =
        FileSystem::mount(region.clone(), MountOptions { policy: Policy::Off, ..MountOptions::default() }).unwrap();
    let data = noise(10 * MIB, 22);
    for name in ["one", "two"] {
        create(&fs, name).write_at(0, &data).unwrap();
    }
    create(&fs, "rest").allocate(0, fs.statfs().blocks_available * 4096 - 40_000, AllocateMode::Reserve).unwrap();
    unmount(&region, fs);
    let fs = mount(&region);
    // What the first round frees has room for pieces in the second.
    for name in ["one", "two", "one", "two"] {
        open(&fs, name).dedup_range(0, u64::MAX).unwrap();
        assert!(read(&open(&fs, name)) == data);
    }
    assert!(fs.stats().saved_bytes > 5 * MIB as u64, "{} bytes saved", fs.stats().saved_bytes);
    unmount(&region, fs);
}

#[test]
fn dedup_shares_packed_ends_and_undedup_separates_them() {
    let region = device(128, IndexKind::Dram);
    let off = || MountOptions { policy: Policy::Off, ..MountOptions::default() };
    let fs = FileSystem::mount(region.clone(), off()).unwrap();
    let data = text(5000, 23);
    let files = ["one", "two", "three"].map(|name| {
        let file = create(&fs, name);
        file.write_at(0, &data).unwrap();
        file
    });
    let alone = create(&fs, "alone");
    alone.write_at(0, b"a short file").unwrap();
    let stored = |fs: &FileSystem| fs.stats().stored_bytes;
    assert_eq!(stored(&fs), 3 * 5000 + 12);
    files.iter().for_each(|file| _ = file.dedup_range(0, u64::MAX).unwrap());
    assert_eq!(stored(&fs), 5000 + 12);
    assert_eq!(files.each_ref().map(|file| file.dedup_range(0, u64::MAX).unwrap().changed_bytes), [0; 3]);
    let mut plan = UndedupPlan::new();
    files.iter().chain([&alone]).for_each(|file| plan.add(&extents(file)));
    assert_eq!(alone.undedup_range(0, u64::MAX).unwrap().changed_bytes, 0, "nobody else names it");
    let changed: u64 = files.iter().map(|file| file.undedup_range(0, u64::MAX).unwrap().changed_bytes).sum();
    // The last of them keeps what was shared.
    assert_eq!((changed, plan.copied_bytes()), (4 * 4096, 4 * 4096));
    assert_eq!(stored(&fs), 5 * 4096 + 904 + 12);
    assert!(files.iter().all(|file| read(file) == data) && read(&alone) == b"a short file");
    drop((files, alone));
    unmount(&region, fs);
}

/// Damage that no checksum of an entry tells of; whether files survive it.
#[test]
fn contradictions_about_packed_segments_are_found_and_repaired() {
    let entries = |region: &Region| first_entry(region) / SEGMENT_BYTES;
    let free = |region: &Region| segments(region, |usage| *usage == SegmentUse::Free)[0];
    let second = |region: &Region| first_entry(region) + ENTRY_BYTES;
    let cases: [(&str, bool, &dyn Fn(&Region)); 4] = [
        ("two segments are one part", true, &|region| set_use(region, free(region), KIND_ENTRIES, 0)),
        ("a part that there cannot be", true, &|region| set_use(region, free(region), KIND_ENTRIES, 99_999)),
        ("and has no entry", false, &|region| set_use(region, entries(region), KIND_FREE, 0)),
        ("packed chunks 0 and 1 have bytes in common", false, &|region| {
            let address = region.load_u64(first_entry(region) + 16) & ((1 << 44) - 1);
            let length = region.load_u64(second(region) + 16) >> 44;
            store(region, second(region) + 16, &(length << 44 | address).to_le_bytes());
        }),
    ];
    for (what, survives, damage) in cases {
        let (region, data) = shared_files(IndexKind::Dram);
        damage(&region);
        let (found, left) = repaired(&region);
        assert!(found.iter().any(|found| found.contains(what)), "{what}: {found:?}");
        assert!(left.is_empty(), "{what}: {left:?}");
        let fs = mount(&region);
        let is_whole = |name: &str| fs.lookup(ROOT, name.as_bytes()).is_ok() && read(&open(&fs, name)) == data;
        assert_eq!((is_whole("one"), is_whole("two")), (survives, survives), "{what}");
        unmount(&region, fs);
    }
}

/// Says of a segment that it is used for something else.
fn set_use(region: &Region, segment: u64, kind: u8, ordinal: u32) {
    let at = read_superblock(region).unwrap().1.segment_entry_offset(segment);
    let entry = region.read::<SegmentEntry>(at).used_for(segment, kind, ordinal);
    store(region, at, entry.as_bytes());
}

#[test]
fn a_file_that_begins_with_a_part_of_a_chunk_is_cut_correctly() {
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region);
    let (source, target) = (create(&fs, "source"), create(&fs, "target"));
    let data = noise(1 << 20, 1);
    source.write_at(0, &data).unwrap();
    // The range begins inside a chunk of the source, and the target begins with it.
    let from = 237_568;
    assert_eq!(target.clone_from(&source, from, 0, 4096).unwrap(), 4096);
    let more = noise(53_248, 2);
    target.append(&more).unwrap();
    let expected = [&data[from as usize..from as usize + 4096], &more[..]].concat();
    settle(&fs);
    assert_eq!(fs.skipped().count, 0, "{:?}", fs.skipped());
    assert!(read(&target) == expected && read(&source) == data);
    drop((source, target));
    unmount(&region, fs);
    assert!(read(&open(&mount(&region), "target")) == expected);
}

#[test]
fn a_seam_is_dropped_with_its_file() {
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region);
    let file = create(&fs, "file");
    file.write_at(0, &noise(30_000, 1)).unwrap();
    file.write_at(10_000, &noise(9000, 2)).unwrap();
    let number = file.attr().ino;
    drop(file);
    fs.unlink(ROOT, b"file").unwrap();
    let directory = fs.mkdir(ROOT, b"directory", &NEW).unwrap();
    assert_eq!(directory.ino, number, "the number is used again");
    settle(&fs);
    assert_eq!(fs.skipped().count, 0, "{:?}", fs.skipped());
    unmount(&region, fs);
}
