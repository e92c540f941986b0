//! Writing with origins (ICID): what was copied from files and is still equal is shared to the byte, what origins say
//! wrongly costs nothing but time, and whatever happens to sources meanwhile every file holds what was written.

use crate::deext::{NEW, ROOT, Random, create, device, noise, open, read, settle, text, unmount};
use nvfold::check::{CheckOptions, check};
use nvfold::*;
use pmem::Region;
use std::sync::Barrier;

const BLOCK: usize = BLOCK_BYTES as usize;
const FOLLOWING: [Policy; 3] = [Policy::Icid, Policy::IcidInline, Policy::IcidDeExt];

fn mount(region: &Region, policy: Policy) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap()
}

fn origin(at: u64, length: usize, source: &File, source_offset: u64) -> Origin<'_> {
    Origin { at, length: length as u64, source, source_offset }
}

/// Every policy that follows origins, with either index.
fn each_system(test: impl Fn(Policy, &Region, FileSystem)) {
    for policy in FOLLOWING {
        for index in [IndexKind::Dram, IndexKind::Pm] {
            let region = device(64, index);
            test(policy, &region, mount(&region, policy));
        }
    }
}

/// The paper's Fig. 4: a part of a file is appended to another one.
#[test]
fn an_unchanged_copy_takes_no_space() {
    each_system(|policy, region, fs| {
        let (a, b) = (create(&fs, "a"), create(&fs, "b"));
        let (of_a, of_b) = (noise(100_000, 1), noise(5_000, 2));
        a.write_at(0, &of_a).unwrap();
        b.write_at(0, &of_b).unwrap();
        settle(&fs);
        let before = fs.stats();
        let part = &of_a[1_234..91_234];
        assert_eq!(b.append_from(part, &[origin(0, part.len(), &a, 1_234)]).unwrap(), (5_000, 90_000), "{policy:?}");
        assert_eq!(fs.stats().stored_bytes, before.stored_bytes, "{policy:?}");
        assert_eq!(fs.stats().origins.shared_bytes, 90_000);
        drop((a, b));
        fs.unlink(ROOT, b"a").unwrap();
        assert!(read(&open(&fs, "b")) == [&of_b, part].concat());
        unmount(region, fs);
    });
}

/// The paper's Fig. 3: blocks A and D of a file were changed, B and C were not. Its compare stops at the first
/// difference; ours goes on.
#[test]
fn bytes_after_a_changed_byte_are_shared_too() {
    each_system(|policy, region, fs| {
        let source = create(&fs, "source");
        let content = noise(4 * BLOCK_BYTES as usize, 3);
        source.write_at(0, &content).unwrap();
        settle(&fs);
        let mut changed = content.clone();
        changed[100] ^= 1;
        changed[3 * 4096 + 7..3 * 4096 + 10].fill(0);
        let before = fs.stats().stored_bytes;
        let target = create(&fs, "target");
        let shared = target.write_at_from(0, &changed, &[origin(0, changed.len(), &source, 0)]).unwrap();
        assert_eq!(shared, 4 * BLOCK_BYTES - 4, "{policy:?}");
        assert!(fs.stats().stored_bytes - before <= BLOCK_BYTES, "{policy:?}: {before}, {:?}", fs.stats());
        assert!(read(&target) == changed && read(&source) == content);
        unmount(region, fs);
    });
}

#[test]
fn runs_that_are_too_short_for_the_device_are_stored() {
    for policy in FOLLOWING {
        let region = device(64, IndexKind::Dram);
        let origin_bytes_min = Some(2048);
        let fs =
            FileSystem::mount(region.clone(), MountOptions { policy, origin_bytes_min, ..MountOptions::default() });
        let fs = fs.unwrap();
        assert_eq!(fs.origin_bytes_min(), 2048);
        let source = create(&fs, "source");
        let content = noise(100_000, 41);
        source.write_at(0, &content).unwrap();
        settle(&fs);
        // A record that is too short, two halves of one that is long enough, and two that are not neighbours in the source.
        let parts = [0..2047, 10_000..11_000, 11_000..12_048, 20_000..21_500, 40_000..41_500];
        let data: Vec<u8> =
            parts.iter().flat_map(|part| [&noise(100, part.start as u64), &content[part.clone()]].concat()).collect();
        let data = [data, noise(100, 44)].concat();
        let mut at = 0;
        let mut origins = Vec::new();
        for part in &parts {
            at += 100;
            origins.push(origin(at, part.len(), &source, part.start as u64));
            at += part.len() as u64;
        }
        let target = create(&fs, "target");
        assert_eq!(target.write_at_from(0, &data, &origins).unwrap(), 0, "{policy:?}: noise lies between the halves");
        let noises = [noise(100, 42), noise(100, 43)];
        let pieces = [&noises[0], &content[10_000..11_000], &content[11_000..12_048], &content[..2_047], &noises[1]];
        let joined = pieces.concat();
        let halves = [
            origin(100, 1_000, &source, 10_000),
            origin(1_100, 1_048, &source, 11_000),
            origin(2_148, 2_047, &source, 0),
        ];
        let other = create(&fs, "other");
        assert_eq!(other.write_at_from(0, &joined, &halves).unwrap(), 2_048, "{policy:?}: the halves are one run");
        let all = create(&fs, "all");
        for at in (0..10_000).step_by(1_000) {
            let part = &content[at..at + 1_000];
            let shared = all.write_at_from(at as u64, part, &[origin(0, 1_000, &source, at as u64)]).unwrap();
            assert_eq!(shared, 1_000, "{policy:?}: a run that goes on in the next request");
        }
        assert!(read(&target) == data && read(&other) == joined && read(&all) == content[..10_000]);
        drop((source, target, other, all));
        unmount(&region, fs);
    }
}

/// Files that are made of the others' blocks, a part of each, and the others then go: of the blocks, half is dead.
#[test]
fn sharing_parts_of_blocks_does_not_make_the_store_grow_without_bound() {
    const FILE_BYTES: usize = 1 << 20;
    const PART: usize = 2048;
    let halves =
        |content: &[u8]| -> Vec<u8> { content.chunks(BLOCK).flat_map(|block| &block[..PART]).copied().collect() };
    for (origin_bytes_min, most) in [(None, 120), (Some(64), 210)] {
        for policy in FOLLOWING {
            let region = device(256, IndexKind::Dram);
            let fs =
                FileSystem::mount(region.clone(), MountOptions { policy, origin_bytes_min, ..MountOptions::default() });
            let fs = fs.unwrap();
            let mut expected = Vec::new();
            for number in 0..64 {
                let source = create(&fs, "source");
                let content = noise(FILE_BYTES, 1000 + number);
                source.write_at(0, &content).unwrap();
                settle(&fs);
                let target = create(&fs, &format!("target {number}"));
                let data = halves(&content);
                let origins: Vec<Origin<'_>> = (0..FILE_BYTES / BLOCK)
                    .map(|block| origin((block * PART) as u64, PART, &source, (block * BLOCK) as u64))
                    .collect();
                target.write_at_from(0, &data, &origins).unwrap();
                drop(source);
                fs.unlink(ROOT, b"source").unwrap();
                expected.push(data);
                settle(&fs);
            }
            let stats = fs.stats();
            // Up to 4 MiB beyond what files map are no growth.
            let beyond = stats.stored_bytes.saturating_sub(4 << 20);
            assert!(beyond * 100 <= stats.logical_bytes * most, "{policy:?} {origin_bytes_min:?}: {stats:?}");
            assert!(origin_bytes_min.is_none() || beyond * 100 > stats.logical_bytes * 170, "{policy:?}: no limits");
            while !fs.reclaim_step(Victims::All).unwrap() {}
            let stats = fs.stats();
            assert!(
                stats.stored_bytes * 100 <= stats.logical_bytes * 105,
                "{policy:?} {origin_bytes_min:?}: {stats:?}"
            );
            let moved_bytes = stats.reclaim.moved_bytes;
            assert!(
                moved_bytes <= stats.stored_bytes,
                "segments are emptied after the collection: {moved_bytes} moved"
            );
            for (number, data) in expected.iter().enumerate() {
                assert!(read(&open(&fs, &format!("target {number}"))) == *data, "{policy:?}: target {number}");
            }
            unmount(&region, fs);
        }
    }
}

/// With much growth, a collection begins in the background although operations go on.
#[test]
fn much_growth_is_collected_while_operations_run() {
    let region = device(256, IndexKind::Dram);
    let fs = mount(&region, Policy::Icid);
    let mut expected = Vec::new();
    let small = create(&fs, "small");
    // Whole blocks are shared, and are then overwritten in part: no limit of what is shared holds that back.
    for number in 0..32 {
        let source = create(&fs, "source");
        let content = noise(1 << 20, 2000 + number);
        source.write_at(0, &content).unwrap();
        let target = create(&fs, &format!("target {number}"));
        target.write_at_from(0, &content, &[origin(0, content.len(), &source, 0)]).unwrap();
        let mut data = content;
        for block in 0..256 {
            let over = noise(3000, block);
            target.write_at(block * BLOCK_BYTES + 500, &over).unwrap();
            data[block as usize * BLOCK + 500..][..3000].copy_from_slice(&over);
        }
        drop(source);
        fs.unlink(ROOT, b"source").unwrap();
        expected.push(data);
        // Something changes before each step, so the device is never at rest.
        let mut is_done = false;
        while !is_done {
            small.write_at(0, &[number as u8; 100]).unwrap();
            is_done = fs.reclaim_step(Victims::Worthwhile).unwrap();
        }
    }
    let stats = fs.stats();
    assert!(stats.reclaim.collected_chunks > 1000, "{:?}", stats.reclaim);
    assert!(stats.stored_bytes * 100 <= stats.logical_bytes * 140, "{stats:?}");
    for (number, data) in expected.iter().enumerate() {
        assert!(read(&open(&fs, &format!("target {number}"))) == *data, "target {number}");
    }
    drop(small);
    unmount(&region, fs);
}

#[test]
fn adjacent_short_records_become_one_extent() {
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region, Policy::Icid);
    let source = create(&fs, "source");
    let content = noise(40_000, 4);
    source.write_at(0, &content).unwrap();
    let target = create(&fs, "target");
    // Keys of 16 bytes and values of 24, copied one by one: none is worth an extent by itself.
    let origins: Vec<Origin<'_>> = (0..2000).map(|at| origin(at * 20, 20, &source, at * 20)).collect();
    assert_eq!(target.write_at_from(0, &content, &origins).unwrap(), 40_000);
    assert_eq!(target.extents(0, 100).unwrap().iter().map(|extent| extent.length).max(), Some(40_000));
    let alone = create(&fs, "alone");
    let other = [&noise(50, 5), &content[..63], &noise(50, 6)].concat();
    assert_eq!(alone.write_at_from(0, &other, &[origin(50, 63, &source, 0)]).unwrap(), 0, "too short by itself");
    assert!(read(&target) == content && read(&alone) == other);
    unmount(&region, fs);
}

/// Records of 100 bytes, of which the program makes the first four anew.
#[test]
fn short_gaps_before_origins_are_shared_as_far_as_they_are_equal() {
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region, Policy::Icid);
    let source = create(&fs, "source");
    let content = noise(40_000, 21);
    source.write_at(0, &content).unwrap();
    let origins: Vec<Origin<'_>> = (0..400).map(|at| origin(at * 100 + 4, 96, &source, at * 100 + 4)).collect();
    let as_they_were = create(&fs, "as they were");
    assert_eq!(as_they_were.write_at_from(0, &content, &origins).unwrap(), 40_000);
    let mut changed = content.clone();
    (0..400).for_each(|at| changed[at * 100 + 1] ^= 1);
    let others = create(&fs, "others");
    // The first byte of a gap goes on with the record before it; in front of the first record there is none.
    assert_eq!(others.write_at_from(0, &changed, &origins).unwrap(), 400 * 98 + 399);
    let begins_early = create(&fs, "begins early");
    let more = [&noise(10, 22), &content[..100]].concat();
    assert_eq!(begins_early.write_at_from(0, &more, &[origin(12, 98, &source, 2)]).unwrap(), 100);
    assert!(read(&as_they_were) == content && read(&others) == changed && read(&begins_early) == more);
    drop((source, as_they_were, others, begins_early));
    unmount(&region, fs);
}

/// Who finds sources by samples knows that two follow one another, and not where one ends.
#[test]
fn each_byte_with_overlapping_origins_is_shared_with_the_equal_one() {
    each_system(|policy, region, fs| {
        let (a, b) = (create(&fs, "a"), create(&fs, "b"));
        let (of_a, of_b) = (noise(50_000, 31), noise(50_000, 32));
        a.write_at(0, &of_a).unwrap();
        b.write_at(0, &of_b).unwrap();
        settle(&fs);
        // The first 20,001 bytes of a, then others of b; what lies between 19,000 and 22,000 may be of either.
        let data = [&of_a[..20_001], &of_b[5_000..35_000]].concat();
        let origins = [origin(0, 22_000, &a, 0), origin(19_000, data.len() - 19_000, &b, 3_999)];
        let target = create(&fs, "target");
        let shared = target.write_at_from(0, &data, &origins).unwrap();
        assert_eq!(shared, data.len() as u64, "{policy:?}");
        assert_eq!(fs.stats().origins.offered_bytes, data.len() as u64);
        drop((a, b));
        assert!(read(&target) == data);
        drop(target);
        unmount(region, fs);
    });
}

#[test]
fn a_block_is_counted_once_for_all_records_of_a_request() {
    each_system(|policy, region, fs| {
        let sources = [create(&fs, "one"), create(&fs, "other")];
        let contents = [noise(40_000, 23), noise(40_000, 24)];
        sources.iter().zip(&contents).for_each(|(file, content)| file.write_at(0, content).unwrap());
        settle(&fs);
        let (mut data, mut origins) = (Vec::new(), Vec::new());
        for record in 0..800 {
            let (of, at) = (record % 2, record / 2 * 100);
            origins.push(origin(data.len() as u64, 100, &sources[of], at as u64));
            data.extend_from_slice(&contents[of][at..at + 100]);
        }
        let target = create(&fs, "target");
        let before = fs.region().counters();
        let shared = target.write_at_from(0, &data, &origins).unwrap();
        let lines = (fs.region().counters() - before).lines_written();
        assert!(shared > 79_000, "{policy:?}: {shared}");
        // 800 extents are 150 lines of the log, two dozen blocks and packed chunks a line each.
        assert!(lines < 300, "{policy:?}: {lines} lines");
        assert!(read(&target) == data);
        drop((sources, target));
        unmount(region, fs);
    });
}

#[test]
fn wrong_origins_cost_nothing_but_time() {
    each_system(|policy, region, fs| {
        let other_region = device(64, IndexKind::Dram);
        let other_fs = mount(&other_region, policy);
        let (source, elsewhere) = (create(&fs, "source"), create(&other_fs, "elsewhere"));
        let content = noise(20_000, 7);
        source.write_at(0, &content).unwrap();
        elsewhere.write_at(0, &content).unwrap();
        let hole = create(&fs, "hole");
        hole.set_len(1 << 30).unwrap();
        hole.allocate(0, 1 << 20, AllocateMode::Reserve).unwrap();
        let directory = fs.open(ROOT).ok();
        let target = create(&fs, "target");
        let huge = u64::MAX;
        let wrong = [
            origin(0, 100, &source, 19_999),
            origin(0, 20_000, &source, 1),
            origin(huge, 1, &source, 0),
            Origin { at: 5, length: huge, source: &source, source_offset: huge },
            Origin { at: 0, length: 0, source: &source, source_offset: 0 },
            origin(30, 1_000, &hole, 0),
            origin(40, 1_000, &hole, 1 << 29),
            origin(0, 20_000, &elsewhere, 0),
            origin(0, 20_000, &target, 0),
        ];
        let also = directory.iter().map(|directory| origin(0, 10, directory, 0));
        let all: Vec<Origin<'_>> = wrong.iter().copied().chain(also).collect();
        for one in &all {
            assert_eq!(target.write_at_from(3, &content, &[*one]).unwrap(), 0, "{policy:?}: {}", one.source_offset);
        }
        assert_eq!(target.write_at_from(3, &content, &all).unwrap(), 0);
        assert_eq!(target.append_from(&[], &all).unwrap(), (20_003, 0));
        assert!(target.write_at_from(u64::MAX - 5, &content, &wrong).is_err());
        assert!(read(&target)[3..] == content);
        assert_eq!(hole.read_at(0, &mut [1; 100]).unwrap(), 100);
        drop((source, elsewhere, hole, target, directory));
        unmount(region, fs);
        unmount(&other_region, other_fs);
    });
}

#[test]
fn a_file_may_be_the_origin_of_its_own_bytes() {
    each_system(|policy, region, fs| {
        let file = create(&fs, "file");
        let mut content = noise(30_000, 8);
        file.write_at(0, &content).unwrap();
        settle(&fs);
        let stored = fs.stats().stored_bytes;
        // To its end, to a place that the source overlaps, and where it lies already.
        let mut copy = |from: usize, to: usize, length: usize| {
            let bytes = content[from..from + length].to_vec();
            let shared = file.write_at_from(to as u64, &bytes, &[origin(0, length, &file, from as u64)]).unwrap();
            assert_eq!(shared, length as u64, "{policy:?}: {from} to {to}");
            content.resize(content.len().max(to + length), 0);
            content[to..to + length].copy_from_slice(&bytes);
            assert!(read(&file) == content, "{policy:?}: {from} to {to}");
        };
        copy(100, 30_000, 20_000);
        copy(2_000, 2_500, 9_000);
        copy(5_000, 5_000, 12_000);
        copy(0, 0, 50_000);
        assert!(fs.stats().stored_bytes <= stored, "{policy:?}");
        drop(file);
        unmount(region, fs);
    });
}

#[test]
fn other_policies_ignore_origins() {
    for policy in [Policy::Off, Policy::Inline, Policy::NvDedup, Policy::DeNova, Policy::DeExt] {
        let region = device(64, IndexKind::Dram);
        let fs = mount(&region, policy);
        let (source, target) = (create(&fs, "source"), create(&fs, "target"));
        let content = noise(10_000, 9);
        source.write_at(0, &content).unwrap();
        assert_eq!(target.write_at_from(7, &content, &[origin(0, 10_000, &source, 0)]).unwrap(), 0);
        assert_eq!(fs.stats().origins, OriginStats::default(), "{policy:?}");
        // Unless the file has a policy of its own that does.
        let own = create(&fs, "own");
        fs.set_xattr(own.ino(), POLICY_ATTRIBUTE, b"icid+inline", XattrMode::Set).unwrap();
        assert_eq!(own.write_at_from(7, &content, &[origin(0, 10_000, &source, 0)]).unwrap(), 10_000);
        assert!(read(&target)[7..] == content && read(&own)[7..] == content);
        drop((source, target, own));
        while !fs.drain_step().unwrap() {}
        unmount(&region, fs);
    }
}

/// What has no cause goes the way of the other policy.
#[test]
fn data_without_an_origin_is_shared_by_the_second_policy() {
    for (policy, is_found) in [(Policy::Icid, false), (Policy::IcidInline, true), (Policy::IcidDeExt, true)] {
        let region = device(64, IndexKind::Dram);
        let fs = mount(&region, policy);
        let content = text(64 << 10, 10);
        let files = [create(&fs, "one"), create(&fs, "two"), create(&fs, "three")];
        files[0].write_at(0, &content).unwrap();
        settle(&fs);
        let stored = fs.stats().stored_bytes;
        files[1].write_at(0, &content).unwrap();
        settle(&fs);
        assert_eq!(fs.stats().stored_bytes == stored, is_found, "{policy:?}");
        // A request that was copied in part: 4 KiB of it come from a file, the rest from nowhere.
        let before = fs.stats().stored_bytes;
        assert_eq!(files[2].write_at_from(0, &content, &[origin(0, 4096, &files[0], 0)]).unwrap(), 4096);
        settle(&fs);
        let grown = fs.stats().stored_bytes - before;
        assert!(if is_found { grown < 24 << 10 } else { grown > 56 << 10 }, "{policy:?}: {grown}");
        assert!(files.iter().all(|file| read(file) == content));
        drop(files);
        unmount(&region, fs);
    }
}

#[test]
fn a_write_into_a_shared_block_leaves_its_other_bytes_shared() {
    each_system(|policy, region, fs| {
        let source = create(&fs, "source");
        let mut content = noise(64 << 10, 11);
        source.write_at(0, &content).unwrap();
        settle(&fs);
        let target = create(&fs, "target");
        assert_eq!(target.clone_from(&source, 0, 0, 64 << 10).unwrap(), 64 << 10);
        let stored = fs.stats().stored_bytes;
        for at in (0..16).map(|block| block * 4096 + 1000) {
            target.write_at(at, b"changed").unwrap();
            content[at as usize..at as usize + 7].copy_from_slice(b"changed");
        }
        settle(&fs);
        let grown = fs.stats().stored_bytes - stored;
        // Policy deext cuts the seams anew, and so makes larger pieces of what was short.
        let most = if policy == Policy::IcidDeExt { 128 << 10 } else { 16 * 7 };
        assert!(grown <= most, "{policy:?}: {grown} bytes for 16 times 7");
        // Not without end: a block that lies in many parts is put together again.
        for at in 0..1000 {
            target.write_at(at * 3, &[at as u8]).unwrap();
            content[at as usize * 3] = at as u8;
        }
        settle(&fs);
        let parts = target.extents(0, 4096).unwrap().iter().filter(|extent| extent.offset < 4096).count();
        assert!(parts <= 20, "{policy:?}: {parts} parts of one block");
        assert!(read(&target) == content);
        drop((source, target));
        unmount(region, fs);
    });
}

#[test]
fn without_room_for_packed_chunks_short_pieces_share_blocks() {
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region, Policy::Icid);
    let source = create(&fs, "source");
    let content = noise(20 << 20, 12);
    source.write_at(0, &content).unwrap();
    // Blocks here and there, so that no segment is free.
    let filler = create(&fs, "filler");
    let mut at = 0;
    while filler.write_at(at, &noise(1 << 20, at + 13)).is_ok() {
        at += 1 << 20;
    }
    while filler.write_at(at, &noise(4096, at + 13)).is_ok() {
        at += 4096;
    }
    (0..at / 4096).step_by(20).for_each(|block| filler.allocate(block * 4096, 4096, AllocateMode::PunchHole).unwrap());
    let target = create(&fs, "target");
    let mut changed = content[..1 << 20].to_vec();
    (0..256).for_each(|at| changed[at * 4096 + 100..at * 4096 + 110].fill(at as u8));
    let before = fs.stats();
    let shared = target.write_at_from(0, &changed, &[origin(0, 1 << 20, &source, 0)]).unwrap();
    assert!(shared > (1 << 20) - 256 * 11, "{shared}");
    let blocks = fs.stats().data_blocks - before.data_blocks;
    assert_eq!((blocks, fs.stats().chunks > before.chunks), (1, true), "256 pieces of ten bytes");
    assert!(read(&target) == changed && read(&source) == content);
    // Longer than a block, and without a whole block of the file in it.
    let longer = create(&fs, "longer");
    changed[2_000..8_000].fill(7);
    longer.write_at_from(0, &changed, &[origin(0, 1 << 20, &source, 0)]).unwrap();
    assert!(read(&longer) == changed);
    drop((source, target, longer, filler));
    unmount(&region, fs);
}

#[test]
fn a_write_with_origins_to_a_full_device_changes_nothing() {
    for policy in FOLLOWING {
        let region = device(32, IndexKind::Dram);
        let fs = mount(&region, policy);
        let (source, target) = (create(&fs, "source"), create(&fs, "target"));
        let content = noise(1 << 20, 14);
        source.write_at(0, &content).unwrap();
        target.write_at(0, &content[..5000]).unwrap();
        let filler = create(&fs, "filler");
        let mut at = 0;
        for length in [1 << 20, 4096, 100] {
            while filler.write_at(at, &noise(length, at + 1)).is_ok() {
                at += length as u64;
            }
        }
        let before = fs.stats().stored_bytes;
        let mut mixed = content.clone();
        mixed[..900_000].copy_from_slice(&noise(900_000, 15));
        let error = target.write_at_from(100, &mixed, &[origin(0, mixed.len(), &source, 0)]).unwrap_err();
        assert_eq!(error.errno(), errno::ENOSPC, "{policy:?}");
        assert!(read(&target) == content[..5000] && fs.stats().stored_bytes <= before, "{policy:?}");
        fs.unlink(ROOT, b"filler").unwrap();
        drop(filler);
        target.write_at_from(100, &mixed, &[origin(0, mixed.len(), &source, 0)]).unwrap();
        assert!(read(&target)[100..] == mixed && read(&target)[..100] == content[..100]);
        drop((source, target));
        unmount(&region, fs);
    }
}

#[test]
fn a_damaged_source_is_not_shared_and_the_write_succeeds() {
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region, Policy::Icid);
    let (source, target) = (create(&fs, "source"), create(&fs, "target"));
    let content = noise(16 << 10, 16);
    source.write_at(0, &content).unwrap();
    let bad = source.extents(0, 1).unwrap()[0].address + 4096;
    region.poison(bad, 512);
    let shared = target.write_at_from(0, &content, &[origin(0, content.len(), &source, 0)]).unwrap();
    assert_eq!(shared, 0, "one compare met it");
    assert!(read(&target) == content);
    assert!(source.read_at(4096, &mut [0; 100]).is_err());
    drop(fs);
}

/// Random copies among files, some changed, some told wrongly, with truncations, clones and removals between them.
fn random_copies(policy: Policy, index: IndexKind, compression: Compression, seed: u64) {
    let region = device(64, index);
    let options = MountOptions { policy, compression, ..MountOptions::default() };
    let mut fs = FileSystem::mount(region.clone(), options.clone()).unwrap();
    let mut random = Random(seed);
    let mut models: Vec<Vec<u8>> = (0..6).map(|at| text(30_000 + 1000 * at, seed + at as u64)).collect();
    for (at, content) in models.iter().enumerate() {
        create(&fs, &format!("{at}")).write_at(0, content).unwrap();
    }
    for step in 0..150 {
        let files: Vec<File> = (0..models.len()).map(|at| open(&fs, &format!("{at}"))).collect();
        let target = random.below(models.len() as u64) as usize;
        match random.below(10) {
            0 => {
                let size = random.below(60_000);
                files[target].set_len(size).unwrap();
                models[target].resize(size as usize, 0);
            }
            1 => {
                let (from, at) = (random.below(40_000), random.below(40_000));
                let content = noise(1 + random.below(6_000) as usize, seed + step);
                files[target].write_at(at, &content).unwrap();
                put(&mut models[target], at, &content);
                files[target].allocate(from, 1 + random.below(9_000), AllocateMode::PunchHole).unwrap_or_default();
                let size = models[target].len();
                let _ = size;
                models[target] = read(&files[target]);
            }
            2 => {
                drop(files);
                // As after a crash, or an orderly unmount.
                if random.below(2) == 0 {
                    fs.unmount().unwrap();
                } else {
                    drop(fs);
                }
                fs = FileSystem::mount(region.clone(), options.clone()).unwrap();
            }
            _ => {
                let mut data = Vec::new();
                let mut origins = Vec::new();
                for _ in 0..1 + random.below(12) {
                    if random.below(3) == 0 {
                        data.extend_from_slice(&noise(1 + random.below(5_000) as usize, seed + step));
                    }
                    let source = random.below(models.len() as u64) as usize;
                    let start = random.below(models[source].len().max(1) as u64) as usize;
                    let length = (1 + random.below(6_000) as usize).min(models[source].len() - start);
                    let wrong = if random.below(8) == 0 { 1 } else { 0 };
                    origins.push(origin(data.len() as u64, length, &files[source], start as u64 + wrong));
                    data.extend_from_slice(&models[source][start..start + length]);
                }
                for _ in 0..random.below(4) {
                    let at = random.below(data.len() as u64) as usize;
                    data[at] ^= 0x55;
                }
                if random.below(3) == 0 {
                    let (at, _) = files[target].append_from(&data, &origins).unwrap();
                    assert_eq!(at, models[target].len() as u64);
                    put(&mut models[target], at, &data);
                } else {
                    let at = random.below(50_000);
                    files[target].write_at_from(at, &data, &origins).unwrap();
                    put(&mut models[target], at, &data);
                }
                models[target].truncate(150_000);
                files[target].set_len(models[target].len() as u64).unwrap();
            }
        }
        if step % 10 == 0 {
            while !fs.reclaim_step(Victims::All).unwrap() {}
            settle(&fs);
        }
        for (at, content) in models.iter().enumerate() {
            assert!(read(&open(&fs, &format!("{at}"))) == *content, "{policy:?} seed {seed} step {step} file {at}");
        }
    }
    unmount(&region, fs);
}

fn put(content: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let end = at as usize + bytes.len();
    content.resize(content.len().max(end), 0);
    content[at as usize..end].copy_from_slice(bytes);
}

#[test]
fn random_writes_with_origins_read_back_unchanged() {
    for (seed, policy) in (1..).zip(FOLLOWING) {
        random_copies(policy, IndexKind::Dram, Compression::Off, seed);
        random_copies(policy, IndexKind::Pm, Compression::Off, seed + 10);
        random_copies(policy, IndexKind::Dram, Compression::ZSTD, seed + 20);
    }
}

#[test]
fn a_source_that_changes_during_a_write_never_changes_the_target() {
    for policy in FOLLOWING {
        let region = device(128, IndexKind::Dram);
        let fs = mount(&region, policy);
        let content = [noise(16_384, 17), noise(16_384, 18)];
        let (source, target) = (create(&fs, "source"), create(&fs, "target"));
        source.write_at(0, &content[0]).unwrap();
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                for round in 0..400 {
                    source.write_at(0, &content[round % 2]).unwrap();
                    if round % 7 == 0 {
                        source.set_len(0).unwrap();
                    }
                }
            });
            start.wait();
            for round in 0..400 {
                let bytes = &content[round / 2 % 2];
                target.write_at_from(round as u64 % 3, bytes, &[origin(0, bytes.len(), &source, 0)]).unwrap();
                assert!(read(&target)[round % 3..][..16_384] == *bytes, "{policy:?}, round {round}");
            }
        });
        drop((source, target));
        unmount(&region, fs);
    }
}

/// ICID 4.6: of a source that was removed what copies name stays, and the rest of its bytes become free while nobody is at
/// work, as a mount asks every second.
#[test]
fn dead_bytes_of_removed_sources_are_collected_while_idle() {
    for policy in FOLLOWING {
        let region = device(64, IndexKind::Dram);
        let fs = mount(&region, policy);
        let step = || while !fs.reclaim_step(Victims::Worthwhile).unwrap() {};
        let content = noise(8 << 20, 20);
        create(&fs, "source").write_at(0, &content).unwrap();
        settle(&fs);
        let source = open(&fs, "source");
        let target = create(&fs, "target");
        let mut copied = Vec::new();
        for start in (0..content.len()).step_by(16 << 10) {
            let part = &content[start + 100..start + 1100];
            assert_eq!(target.append_from(part, &[origin(0, 1000, &source, start as u64 + 100)]).unwrap().1, 1000);
            copied.extend_from_slice(part);
        }
        step();
        drop(source);
        fs.unlink(ROOT, b"source").unwrap();
        step();
        let before = fs.stats().stored_bytes;
        assert!(before >= 2 << 20, "{policy:?}: {before}: at work until now");
        step();
        step();
        let after = fs.stats();
        assert!(after.reclaim.collected_chunks > 0 && after.stored_bytes < 600 << 10, "{policy:?}: {after:?}");
        assert!(read(&target) == copied);
        drop(target);
        unmount(&region, fs);
    }
}

#[test]
fn a_crash_right_after_a_write_with_origins_keeps_it() {
    each_system(|policy, region, fs| {
        let (source, target) = (create(&fs, "source"), create(&fs, "target"));
        let content = noise(50_000, 19);
        source.write_at(0, &content).unwrap();
        target.write_at_from(9, &content, &[origin(0, content.len(), &source, 0)]).unwrap();
        drop((source, target));
        drop(fs);
        let found = check(region, &CheckOptions::default()).unwrap();
        assert!(found.findings.is_empty(), "{policy:?}: {found:#?}");
        let fs = mount(region, policy);
        assert!(read(&open(&fs, "target"))[9..] == content);
        fs.create(ROOT, b"more", &NEW).unwrap();
        unmount(region, fs);
    });
}

/// A collection that finds much dead and nothing worth moving ends, and does not begin again before as much has died anew,
/// although more is stored than files map.
#[test]
fn a_collection_in_vain_does_not_begin_again_while_operations_run() {
    const PARTS: usize = 32;
    const PART: usize = 64;
    const BLOCKS: usize = 5000;
    let region = device(256, IndexKind::Dram);
    let fs = mount(&region, Policy::Icid);
    let (source, target) = (create(&fs, "source"), create(&fs, "target"));
    let content = noise(BLOCKS * BLOCK, 77);
    source.write_at(0, &content).unwrap();
    // Half of each block stays in use, in so many parts that new extents would cost as much as they save.
    let mut copied = Vec::new();
    for blocks in content.chunks(16 * BLOCK) {
        let at = copied.len() * 2;
        let parts: Vec<usize> = (0..blocks.len()).step_by(BLOCK / PARTS).collect();
        let data: Vec<u8> = parts.iter().flat_map(|part| &blocks[*part..][..PART]).copied().collect();
        let part_of =
            |(number, part): (usize, &usize)| origin((number * PART) as u64, PART, &source, (at + part) as u64);
        let origins: Vec<Origin<'_>> = parts.iter().enumerate().map(part_of).collect();
        target.write_at_from(copied.len() as u64, &data, &origins).unwrap();
        copied.extend(data);
    }
    assert_eq!(fs.stats().origins.shared_bytes, copied.len() as u64);
    // Parts of one file alone would be gathered, so another one has the first part of each block.
    let copy = create(&fs, "copy");
    for block in 0..BLOCKS as u64 {
        let part = PART as u64;
        assert_eq!(copy.clone_from(&target, block * part * PARTS as u64, block * part, part).unwrap(), part);
    }
    drop((source, copy));
    fs.unlink(ROOT, b"source").unwrap();
    // A part of a block dies before each step, so the device is never at rest, and something can be looked for.
    let mut blocks = 0..BLOCKS;
    let mut step = || {
        let at = blocks.next().expect("it ends before") * PARTS * PART;
        target.write_at(at as u64, &[7; PART / 2]).unwrap();
        fs.reclaim_step(Victims::Worthwhile).unwrap()
    };
    // To mark the extents takes some 80 steps, and each of the passes that change files as many: they move what the writes
    // have left. A second round, which the growth that is left must not begin, would take as many again.
    let steps = (0..).take_while(|_| !step()).count();
    assert!((200..300).contains(&steps), "{steps} steps are not one collection");
    let again = (0..100).filter(|_| !step()).count();
    assert_eq!(again, 0, "after {steps} steps");
    drop(target);
    unmount(&region, fs);
}
