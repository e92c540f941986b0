//! Zeros that are written are holes under every policy that looks for equal data: however large the file, in whatever
//! requests, and whatever was there before.

use crate::deext::{Random, create, device, noise, open, read, settle, text, unmount};
use nvfold::*;
use pmem::Region;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const BLOCK: usize = 4 * KIB;
/// Sizes of requests: a part of a block, a block, no number of blocks, many blocks.
const REQUESTS: [usize; 4] = [512, BLOCK, 100_000, MIB];
/// What a few pages of a log take.
const LOG_BYTES: u64 = 16 << 10;

fn mount(region: &Region, policy: Policy) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap()
}

/// Every policy under which zeros are holes.
fn each_policy(test: impl Fn(Policy)) {
    Policy::ALL.into_iter().filter(|policy| *policy != Policy::Off).for_each(test);
}

/// Writes all of `data`, from `offset` on, in requests of `request` bytes.
fn write(file: &File, offset: usize, data: &[u8], request: usize) {
    for (at, part) in data.chunks(request).enumerate() {
        file.write_at((offset + at * request) as u64, part).unwrap();
    }
}

/// Lets everything that policies put off be done.
fn let_all_be_done(fs: &FileSystem) {
    while !fs.drain_step().unwrap() {}
    settle(fs);
}

fn extents(file: &File) -> Vec<MappedExtent> {
    file.extents(0, usize::MAX >> 1).unwrap()
}

/// The bytes of a file that are not in holes, as SEEK_DATA and SEEK_HOLE tell.
fn data_bytes(file: &File) -> u64 {
    let (mut at, mut bytes) = (0, 0);
    while let Ok(start) = file.seek(at, Whence::Data) {
        at = file.seek(start, Whence::Hole).unwrap();
        bytes += at - start;
    }
    bytes
}

fn assert_all_zeros(file: &File, from: u64, end: u64) {
    let mut bytes = vec![1; MIB];
    for at in (from..end).step_by(MIB) {
        let length = file.read_at(at, &mut bytes).unwrap();
        assert_eq!(length as u64, (end - at).min(MIB as u64));
        assert!(bytes[..length].iter().all(|byte| *byte == 0), "at {at}");
        bytes.fill(1);
    }
}

/// The device has 64 MiB.
#[test]
fn a_file_of_zeros_takes_only_its_inode() {
    each_policy(|policy| {
        let region = device(64, IndexKind::Dram);
        let fs = mount(&region, policy);
        let sizes = REQUESTS.map(|request| if request < 100_000 { 64 * MIB } else { 1 << 30 });
        for (request, size) in REQUESTS.into_iter().zip(sizes) {
            let file = create(&fs, &format!("file {request}"));
            let before = fs.stats();
            let zeros = vec![0; request];
            for at in (0..size).step_by(request) {
                file.write_at(at as u64, &zeros[..request.min(size - at)]).unwrap();
            }
            let_all_be_done(&fs);
            let after = fs.stats();
            assert_eq!((after.stored_bytes, after.logical_bytes), (0, 0), "{policy:?}, {request}");
            assert_eq!(after.metadata_bytes, before.metadata_bytes, "{policy:?}, {request}");
            assert_eq!((file.attr().size, file.attr().blocks), (size as u64, 0), "{policy:?}, {request}");
            assert_eq!((extents(&file), data_bytes(&file)), (vec![], 0), "{policy:?}, {request}");
            assert_all_zeros(&file, (size - 3 * MIB) as u64, size as u64);
        }
        unmount(&region, fs);
        let fs = mount(&region, policy);
        for (request, size) in REQUESTS.into_iter().zip(sizes) {
            let file = open(&fs, &format!("file {request}"));
            assert_eq!((file.attr().size, extents(&file)), (size as u64, vec![]), "{policy:?}, {request}");
            assert_all_zeros(&file, 0, 2 * MIB as u64);
        }
    });
}

#[test]
fn policy_off_stores_zeros_as_data() {
    for request in REQUESTS {
        let region = device(64, IndexKind::Dram);
        let fs = mount(&region, Policy::Off);
        let file = create(&fs, "file");
        write(&file, 0, &vec![0; 4 * MIB], request);
        let stats = fs.stats();
        assert_eq!((stats.stored_bytes, stats.logical_bytes), (4 << 20, 4 << 20), "{request}");
        assert_eq!((data_bytes(&file), file.attr().blocks), (4 << 20, 8 << 10));
        drop(file);
        unmount(&region, fs);
    }
}

#[test]
fn writing_zeros_over_data_frees_it_and_data_over_zeros_is_stored() {
    each_policy(|policy| {
        for request in REQUESTS {
            let region = device(64, IndexKind::Dram);
            let fs = mount(&region, policy);
            let (file, data) = (create(&fs, "file"), [noise(MIB, 1), text(MIB, 2)].concat());
            let metadata = fs.stats().metadata_bytes;
            for _ in 0..2 {
                write(&file, 0, &data, 128 * KIB);
                let_all_be_done(&fs);
                assert!(fs.stats().stored_bytes >= MIB as u64 && read(&file) == data, "{policy:?}, {request}");
                write(&file, 0, &vec![0; data.len()], request);
                let_all_be_done(&fs);
                let stats = fs.stats();
                assert_eq!((stats.stored_bytes, stats.logical_bytes), (0, 0), "{policy:?}, {request}: {stats:?}");
                assert_eq!((extents(&file), data_bytes(&file)), (vec![], 0), "{policy:?}, {request}");
                assert_all_zeros(&file, 0, data.len() as u64);
            }
            assert!(fs.stats().free_bytes > 0);
            let log = fs.stats().metadata_bytes.saturating_sub(metadata);
            // Policies that pack have segments that are empty and not given up yet.
            let is_packed = policy.without_origins() == Policy::DeExt || policy.follows_origins();
            assert!(log <= LOG_BYTES || is_packed, "{policy:?}, {request}: {log} bytes of metadata");
            drop(file);
            unmount(&region, fs);
            assert_all_zeros(&open(&mount(&region, policy), "file"), 0, data.len() as u64);
        }
    });
}

#[test]
fn writing_zeros_over_a_clone_does_not_change_its_source() {
    each_policy(|policy| {
        for request in REQUESTS {
            let region = device(64, IndexKind::Dram);
            let fs = mount(&region, policy);
            let data = noise(MIB / 2 + 1234, 3);
            let [one, other] = ["one", "other"].map(|name| create(&fs, name));
            write(&one, 0, &data, 128 * KIB);
            other.clone_from(&one, 0, 0, data.len() as u64).unwrap();
            let_all_be_done(&fs);
            let stored = fs.stats().stored_bytes;
            write(&other, 0, &vec![0; data.len()], request);
            assert!(read(&one) == data, "{policy:?}, {request}");
            assert_all_zeros(&other, 0, data.len() as u64);
            assert_eq!((extents(&other), fs.stats().stored_bytes), (vec![], stored), "{policy:?}, {request}");
            drop((one, other));
            unmount(&region, fs);
        }
    });
}

#[test]
fn reserved_space_stays_reserved_if_zeros_are_written() {
    each_policy(|policy| {
        for request in REQUESTS {
            let region = device(64, IndexKind::Dram);
            let fs = mount(&region, policy);
            let file = create(&fs, "file");
            file.allocate(0, 2 * MIB as u64, AllocateMode::Reserve).unwrap();
            let before = (fs.stats().stored_bytes, file.attr().blocks);
            write(&file, 0, &vec![0; 2 * MIB], request);
            assert_eq!((fs.stats().stored_bytes, file.attr().blocks), before, "{policy:?}, {request}");
            assert!(extents(&file).iter().all(|extent| extent.unwritten), "{policy:?}, {request}");
            assert_eq!(data_bytes(&file), 0, "{policy:?}, {request}");
            // Data and zeros in one request: the data goes to its reserved blocks, if it goes to blocks.
            let mixed = [&noise(8 * BLOCK, 4)[..], &vec![0; 8 * BLOCK], &noise(8 * BLOCK, 5)].concat();
            file.write_at(0, &mixed).unwrap();
            let all = [&mixed[..], &vec![0; 2 * MIB - mixed.len()]].concat();
            assert!(read(&file) == all, "{policy:?}, {request}");
            let reserved: u64 =
                extents(&file).iter().filter(|extent| extent.unwritten).map(|extent| extent.length).sum();
            assert_eq!(reserved, (2 * MIB - 16 * BLOCK) as u64, "{policy:?}, {request}");
            assert_eq!(data_bytes(&file), 16 * BLOCK as u64, "{policy:?}, {request}");
            let_all_be_done(&fs);
            assert!(read(&file) == all, "{policy:?}, {request}");
            drop(file);
            unmount(&region, fs);
        }
    });
}

/// A single block of data behind zeros must not take the block that is reserved for the zeros.
#[test]
fn reserved_space_is_used_only_at_its_own_file_offset() {
    each_policy(|policy| {
        let region = device(64, IndexKind::Dram);
        let fs = mount(&region, policy);
        let file = create(&fs, "file");
        file.allocate(0, BLOCK as u64, AllocateMode::Reserve).unwrap();
        let data = [&vec![0; 5 * BLOCK][..], &noise(BLOCK, 1), &vec![0; 3 * BLOCK]].concat();
        file.write_at(0, &data).unwrap();
        assert!(read(&file) == data, "{policy:?}");
        let reserved: Vec<MappedExtent> = extents(&file).into_iter().filter(|extent| extent.unwritten).collect();
        assert_eq!((reserved.len(), reserved[0].offset, data_bytes(&file)), (1, 0, BLOCK as u64), "{policy:?}");
        file.write_at(0, &noise(BLOCK, 2)).unwrap();
        let_all_be_done(&fs);
        assert!(read(&file) == [&noise(BLOCK, 2), &data[BLOCK..]].concat(), "{policy:?}");
        drop(file);
        unmount(&region, fs);
    });
}

/// A block that occurs on both sides of zeros in one request is stored once.
#[test]
fn zeros_between_equal_data_do_not_prevent_sharing() {
    each_policy(|policy| {
        let region = device(64, IndexKind::Dram);
        let fs = mount(&region, policy);
        let (one, other) = (noise(16 * BLOCK, 6), noise(16 * BLOCK, 7));
        let zeros = vec![0; 5 * BLOCK];
        let data = [&zeros[..], &one, &zeros, &other, &one, &zeros, &one, &zeros].concat();
        let file = create(&fs, "file");
        file.write_at(0, &data).unwrap();
        let_all_be_done(&fs);
        assert!(read(&file) == data, "{policy:?}");
        let stored = if policy == Policy::Icid { 4 } else { 2 } * 16 * BLOCK as u64;
        // Pieces of 16 KiB end at multiples of 16 KiB in the file, and the zeros move the copies.
        let is_cut = policy.without_origins() == Policy::DeExt;
        assert!(fs.stats().stored_bytes == stored || is_cut, "{policy:?}: {}", fs.stats().stored_bytes);
        assert_eq!(fs.stats().logical_bytes, 4 * 16 * BLOCK as u64, "{policy:?}");
        assert_eq!(data_bytes(&file), 4 * 16 * BLOCK as u64, "{policy:?}");
        drop(file);
        unmount(&region, fs);
    });
}

/// Runs of text between zeros, each run at another place than in the first file: pieces of text begin where zeros end.
#[test]
fn pieces_between_zeros_are_found_at_any_offset() {
    for policy in [Policy::DeExt, Policy::IcidDeExt] {
        let region = device(64, IndexKind::Dram);
        let fs = mount(&region, policy);
        let runs: Vec<Vec<u8>> = (0..20).map(|seed| text(50_000, seed + 10)).collect();
        let with_zeros =
            |zeros: usize| -> Vec<u8> { runs.iter().flat_map(|run| [&vec![0; zeros][..], run].concat()).collect() };
        for (name, zeros) in [("one", 5_000), ("other", 7_001), ("third", 100_000)] {
            let file = create(&fs, name);
            let before = fs.stats().stored_bytes;
            write(&file, 0, &with_zeros(zeros), MIB);
            let_all_be_done(&fs);
            assert!(read(&file) == with_zeros(zeros), "{policy:?}");
            let added = fs.stats().stored_bytes - before;
            let all = (runs.len() * 50_000) as u64;
            // The seams of the requests are somewhere else in each file.
            let most = if name == "one" { all + 4 * KIB as u64 } else { all / 5 };
            assert!(added <= most, "{policy:?}, {name}: {added} bytes");
        }
        unmount(&region, fs);
    }
}

/// A log, and what follows it is zeros in small requests: they end the last piece instead of making it longer for ever.
#[test]
fn zeros_after_data_become_a_hole_even_in_small_requests() {
    each_policy(|policy| {
        for request in [100, 512, 5000] {
            let region = device(64, IndexKind::Dram);
            let fs = mount(&region, policy);
            let (file, data) = (create(&fs, "file"), text(10_000, 8));
            write(&file, 0, &data, request);
            write(&file, data.len(), &vec![0; 4 * MIB], request);
            write(&file, data.len() + 4 * MIB, &data, request);
            let_all_be_done(&fs);
            let all = [&data[..], &vec![0; 4 * MIB], &data].concat();
            assert!(read(&file) == all, "{policy:?}, {request}");
            assert!(fs.stats().stored_bytes <= 48 * KIB as u64, "{policy:?}, {request}: {}", fs.stats().stored_bytes);
            assert!(data_bytes(&file) <= 48 * KIB as u64, "{policy:?}, {request}");
            drop(file);
            unmount(&region, fs);
        }
    });
}

#[test]
fn writing_zeros_changes_size_and_times_like_any_write() {
    each_policy(|policy| {
        let region = device(64, IndexKind::Dram);
        let now = Arc::new(AtomicI64::new(1));
        let clock: Clock = {
            let now = now.clone();
            Arc::new(move || now.load(Ordering::Relaxed))
        };
        let options = MountOptions { policy, clock, ..MountOptions::default() };
        let fs = FileSystem::mount(region.clone(), options).unwrap();
        let file = create(&fs, "file");
        let at = |time| now.store(time, Ordering::Relaxed);
        let seen = || (file.attr().size, file.attr().mtime, file.attr().ctime);
        at(10);
        file.write_at(100, &[0; 50]).unwrap();
        assert_eq!(seen(), (150, 10, 10), "{policy:?}: over a hole");
        at(20);
        assert_eq!(file.append(&vec![0; 3 * BLOCK]).unwrap(), 150);
        assert_eq!(seen(), (150 + 3 * BLOCK as u64, 20, 20), "{policy:?}: an append");
        file.write_at(0, &noise(2 * BLOCK, 9)).unwrap();
        at(30);
        file.write_at(0, &vec![0; BLOCK]).unwrap();
        assert_eq!(seen(), (150 + 3 * BLOCK as u64, 30, 30), "{policy:?}: over data");
        file.allocate(0, BLOCK as u64, AllocateMode::Reserve).unwrap();
        at(40);
        file.write_at(0, &vec![0; BLOCK]).unwrap();
        assert_eq!(seen(), (150 + 3 * BLOCK as u64, 40, 40), "{policy:?}: over reserved space");
        let last = seen();
        drop(file);
        unmount(&region, fs);
        let attr = open(&mount(&region, policy), "file").attr();
        assert_eq!((attr.size, attr.mtime, attr.ctime), last, "{policy:?}");
    });
}

/// Each request is lost or there as a whole, and nothing that was given back stays in use: `check` counts.
#[test]
fn random_writes_with_runs_of_zeros_read_back_unchanged_even_after_a_crash() {
    const FILE: usize = 600 * KIB;
    Policy::ALL.into_iter().for_each(|policy| {
        for seed in 1..=6 {
            let index = if seed % 2 == 0 { IndexKind::Dram } else { IndexKind::Pm };
            let region = device(64, index);
            let mut fs = mount(&region, policy);
            let mut random = Random(seed * 77);
            let mut expected = [vec![0; FILE], vec![0; FILE]];
            for number in 0..2 {
                create(&fs, &format!("file {number}")).set_len(FILE as u64).unwrap();
            }
            for step in 0..400 {
                let (which, other) = if random.below(2) == 0 { (0, 1) } else { (1, 0) };
                let [file, source] = [which, other].map(|number| open(&fs, &format!("file {number}")));
                let longest = [600, 5000, 40_000, 200_000][random.below(4) as usize];
                let length = 1 + random.below(longest) as usize;
                let mut at = random.below((FILE - length) as u64) as usize;
                if random.below(2) == 0 {
                    at = at / BLOCK * BLOCK;
                }
                match random.below(10) {
                    0 => file.allocate(at as u64, length as u64, AllocateMode::Reserve).unwrap(),
                    1 => {
                        file.clone_from(&source, at as u64, at as u64, length as u64).unwrap();
                        let from = expected[other][at..at + length].to_vec();
                        expected[which][at..at + length].copy_from_slice(&from);
                    }
                    2 => {
                        // Copied from the other file, which may have been written to in between.
                        let mut data = expected[other][at..at + length].to_vec();
                        data[length / 2] ^= 1;
                        let origin = Origin { at: 0, length: length as u64, source: &source, source_offset: at as u64 };
                        file.write_at_from(at as u64, &data, &[origin]).unwrap();
                        expected[which][at..at + length].copy_from_slice(&data);
                    }
                    3 => let_all_be_done(&fs),
                    4 if step % 3 == 0 => _ = file.dedup_range(at as u64, length as u64).unwrap(),
                    _ => {
                        let mut data = match random.below(3) {
                            0 => vec![0; length],
                            1 => noise(length, random.below(9) + 1),
                            _ => text(length, random.below(9) + 1),
                        };
                        for _ in 0..random.below(4) {
                            let start = random.below(length as u64) as usize;
                            let end = (start + random.below(20_000) as usize).min(length);
                            data[start..end].fill(0);
                        }
                        file.write_at(at as u64, &data).unwrap();
                        expected[which][at..at + length].copy_from_slice(&data);
                    }
                }
                assert!(read(&file) == expected[which], "{policy:?}, seed {seed}, step {step}: {at}, {length}");
                drop((file, source));
                if step % 100 == 99 {
                    // A crash: no unmount.
                    drop(fs);
                    fs = mount(&region, policy);
                    if step % 200 == 99 {
                        fs.reconcile().unwrap();
                    }
                    for (number, expected) in expected.iter().enumerate() {
                        assert!(read(&open(&fs, &format!("file {number}"))) == *expected, "{policy:?}, seed {seed}");
                    }
                }
            }
            fs.reconcile().unwrap();
            let_all_be_done(&fs);
            unmount(&region, fs);
        }
    });
}

#[test]
fn writing_zeros_succeeds_on_a_full_device_and_frees_space() {
    each_policy(|policy| {
        let region = device(32, IndexKind::Dram);
        let fs = mount(&region, policy);
        let (file, other) = (create(&fs, "file"), create(&fs, "other"));
        other.write_at(0, &[0; 5000]).unwrap();
        let mut size = 0;
        while file.write_at(size, &noise(64 * KIB, 1 + size)).is_ok() {
            size += 64 * KIB as u64;
        }
        let_all_be_done(&fs);
        while file.write_at(size, &noise(64, 1 + size)).is_ok() {
            size += 64;
        }
        let size = file.attr().size;
        other.write_at(5000, &vec![0; 8 * MIB]).unwrap();
        assert_eq!(other.attr().size, 5000 + 8 * MIB as u64, "{policy:?}: zeros need no space");
        let before = fs.stats().stored_bytes;
        for at in (0..size).step_by(MIB) {
            file.write_at(at, &vec![0; (size - at).min(MIB as u64) as usize]).unwrap();
        }
        assert!(before > 16 << 20 && fs.stats().stored_bytes == 0, "{policy:?}: {before}, {:?}", fs.stats());
        file.write_at(0, &noise(16 * MIB, 1)).unwrap();
        assert_all_zeros(&other, 0, 5000 + 8 * MIB as u64);
        drop((file, other));
        unmount(&region, fs);
    });
}

/// As devices have them that were written by an older version, or under policy `off`.
#[test]
fn stored_zeros_become_holes_on_request() {
    each_policy(|policy| {
        let region = device(64, IndexKind::Dram);
        let data = [&noise(10 * BLOCK, 1)[..], &vec![0; 300 * BLOCK], &text(20 * BLOCK, 2), &vec![0; BLOCK]].concat();
        let fs = mount(&region, Policy::Off);
        let file = create(&fs, "file");
        file.write_at(0, &data).unwrap();
        // At another offset in the file than in its blocks.
        let clone = create(&fs, "clone");
        clone.write_at(0, &[7; 100]).unwrap();
        clone.clone_from(&file, 0, 100, data.len() as u64).unwrap();
        assert_eq!(fs.stats().stored_bytes, (data.len() + BLOCK) as u64);
        drop((file, clone));
        unmount(&region, fs);
        let fs = mount(&region, policy);
        let (file, clone) = (open(&fs, "file"), open(&fs, "clone"));
        let before = file.attr();
        let done = [&file, &clone].map(|file| file.dedup_range(0, u64::MAX).unwrap());
        assert!(done.iter().all(|done| done.changed_bytes >= 301 * BLOCK as u64), "{policy:?}: {done:?}");
        assert!(read(&file) == data && read(&clone) == [&[7; 100], &data[..]].concat(), "{policy:?}");
        assert_eq!(Attr { blocks: before.blocks, ..file.attr() }, before, "{policy:?}: no other attribute changes");
        assert_eq!((data_bytes(&file), data_bytes(&clone)), (30 * BLOCK as u64, (30 * BLOCK + 100) as u64));
        assert!(fs.stats().stored_bytes <= 2 * 31 * BLOCK as u64, "{policy:?}: {}", fs.stats().stored_bytes);
        assert!((0..5).any(|_| file.dedup_range(0, u64::MAX).unwrap().changed_bytes == 0), "{policy:?}: it ends");
        drop((file, clone));
        unmount(&region, fs);
        assert!(read(&open(&mount(&region, policy), "file")) == data);
    });
}

#[test]
fn a_copy_of_zeros_becomes_a_hole_with_any_origin() {
    for policy in [Policy::Icid, Policy::IcidInline, Policy::IcidDeExt] {
        let region = device(64, IndexKind::Dram);
        let fs = mount(&region, policy);
        let (source, target) = (create(&fs, "source"), create(&fs, "target"));
        let data = [&noise(50_000, 1)[..], &vec![0; 200_000], &noise(50_000, 2)].concat();
        source.write_at(0, &data).unwrap();
        let stored = fs.stats().stored_bytes;
        let origin = Origin { at: 0, length: data.len() as u64, source: &source, source_offset: 0 };
        let shared = target.write_at_from(0, &data, &[origin]).unwrap();
        assert!(shared >= 99_000, "{policy:?}: {shared}");
        assert!(fs.stats().stored_bytes <= stored + BLOCK as u64, "{policy:?}");
        assert!(data_bytes(&target) <= 100_000 + 2 * BLOCK as u64 && read(&target) == data, "{policy:?}");
        // Bytes of a record that became zeros, in a block that is shared.
        target.write_at(300, &[0; 77]).unwrap();
        assert!(fs.stats().stored_bytes <= stored + BLOCK as u64, "{policy:?}");
        let changed = [&data[..300], &[0; 77], &data[377..]].concat();
        assert!(read(&target) == changed && read(&source) == data, "{policy:?}");
        drop((source, target));
        unmount(&region, fs);
    }
}

/// What a policy learns of a workload does not depend on how many zeros there are: they cost the same under each method.
#[test]
fn zeros_do_not_count_in_the_duplicate_ratio() {
    let region = device(256, IndexKind::Dram);
    let options = MountOptions {
        policy: Policy::NvDedup,
        nv_dedup: NvDedupOptions { period: 2000, ..NvDedupOptions::default() },
        ..MountOptions::default()
    };
    let fs = FileSystem::mount(region.clone(), options).unwrap();
    let file = create(&fs, "file");
    for number in 0..400u64 {
        let data = [&noise(16 * BLOCK, number + 1)[..], &vec![0; 48 * BLOCK]].concat();
        file.write_at(number * data.len() as u64, &data).unwrap();
    }
    let stats = fs.stats().nv_dedup.unwrap();
    assert_eq!(stats.pieces.iter().sum::<u64>(), 400 * 16, "{stats:?}");
    assert_eq!((stats.ratio, fs.stats().pieces_shared), (Some(0.0), 0), "{stats:?}");
    drop(file);
    unmount(&region, fs);
}
