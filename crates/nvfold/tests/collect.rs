//! Collecting byte ranges: what lives of blocks and packed chunks of which files name only parts is kept, and the rest of them
//! becomes free.

use crate::deext::*;
use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::*;
use pmem::Region;
use std::sync::atomic::{AtomicBool, Ordering};

const FILE: usize = 100_000;

fn mount_with(region: &Region, policy: Policy, compression: Compression) -> FileSystem {
    let options = MountOptions { policy, compression, ..MountOptions::default() };
    FileSystem::mount(region.clone(), options).unwrap()
}

/// Reclaims all that there is.
fn reclaim(fs: &FileSystem) {
    while !fs.reclaim_step(Victims::All).unwrap() {}
}

/// Files of which each is text of its own, and their content.
fn write_sources(fs: &FileSystem, count: u64) -> Vec<Vec<u8>> {
    let sources: Vec<Vec<u8>> = (0..count).map(|at| text(FILE, at + 1)).collect();
    for (at, content) in sources.iter().enumerate() {
        create(fs, &format!("source {at}")).write_at(0, content).unwrap();
    }
    settle(fs);
    sources
}

/// Clones of ranges of the sources at odd places, one file behind the other, and what they hold.
fn clone_ranges(fs: &FileSystem, sources: &[Vec<u8>], count: u64, most_bytes: u64) -> Vec<Vec<u8>> {
    let mut random = Random(5);
    let clone_one = |at| {
        let file = create(fs, &format!("clone {at}"));
        let mut content: Vec<u8> = Vec::new();
        for _ in 0..6 {
            let from = random.below(sources.len() as u64) as usize;
            let start = random.below(FILE as u64 - most_bytes);
            let length = 1 + random.below(most_bytes);
            let source = open(fs, &format!("source {from}"));
            assert_eq!(file.clone_from(&source, start, content.len() as u64, length).unwrap(), length);
            content.extend_from_slice(&sources[from][start as usize..(start + length) as usize]);
        }
        content
    };
    (0..count).map(clone_one).collect()
}

fn assert_clones(fs: &FileSystem, clones: &[Vec<u8>]) {
    for (at, content) in clones.iter().enumerate() {
        assert!(read(&open(fs, &format!("clone {at}"))) == *content, "clone {at}");
    }
}

fn remove_sources(fs: &FileSystem, which: impl Iterator<Item = u64>) {
    which.for_each(|at| fs.unlink(ROOT, format!("source {at}").as_bytes()).unwrap());
}

/// Bytes that data takes: what is stored, and what lies dead in segments.
fn data_bytes(fs: &FileSystem) -> u64 {
    let stats = fs.stats();
    stats.stored_bytes + stats.reclaim.dead_bytes
}

/// Half of the sources of a tree of clones go: what is left takes little more than the bytes that live.
#[test]
fn live_parts_of_deleted_sources_take_little_more_than_their_bytes() {
    for (policy, index) in
        [(Policy::Inline, IndexKind::Dram), (Policy::DeExt, IndexKind::Dram), (Policy::DeExt, IndexKind::Pm)]
    {
        let region = device(192, index);
        let fs = mount_with(&region, policy, Compression::Off);
        let sources = write_sources(&fs, 400);
        // Each byte of a source is live if a clone names it, or if the source stays.
        let mut live = vec![[false; FILE]; sources.len()];
        (0..400).step_by(2).for_each(|at| live[at].fill(true));
        let mut random = Random(5);
        let mut clones: Vec<(u64, Vec<u8>)> = Vec::new();
        for at in 0..2000 {
            let (from, start) = (random.below(400) as usize, random.below(FILE as u64 - 6000));
            let (length, head) = (200 + random.below(5000), random.below(300));
            let file = create(&fs, &format!("clone {at}"));
            assert_eq!(file.clone_from(&open(&fs, &format!("source {from}")), start, head, length).unwrap(), length);
            let (start, end) = (start as usize, (start + length) as usize);
            clones.push((head, sources[from][start..end].to_vec()));
            live[from][start..end].fill(true);
        }
        remove_sources(&fs, (0..400).filter(|at| at % 2 == 1));
        let live_bytes: u64 = live.iter().map(|bytes| bytes.iter().filter(|is| **is).count() as u64).sum();
        let before = data_bytes(&fs);
        reclaim(&fs);
        let (after, stats) = (data_bytes(&fs), fs.stats());
        println!(
            "{policy:?} on {index:?}: live {live_bytes}, before {before} ({:.3}), after {after} ({:.3}), {:?}",
            before as f64 / live_bytes as f64,
            after as f64 / live_bytes as f64,
            stats.reclaim
        );
        assert!(stats.reclaim.collected_chunks > 1000, "{:?}", stats.reclaim);
        assert!(after * 10 <= live_bytes * 11, "{after} bytes for {live_bytes} that live, {before} before");
        assert!(after < before);
        let all_is_there = |fs: &FileSystem| {
            for (at, (head, content)) in clones.iter().enumerate() {
                let whole = [vec![0; *head as usize], content.clone()].concat();
                assert!(read(&open(fs, &format!("clone {at}"))) == whole, "clone {at}");
            }
            for at in (0..400).step_by(2) {
                assert!(read(&open(fs, &format!("source {at}"))) == sources[at], "source {at}");
            }
        };
        all_is_there(&fs);
        unmount(&region, fs);
        let fs = mount_with(&region, policy, Compression::Off);
        all_is_there(&fs);
        // Nothing is left of it when all are gone.
        remove_sources(&fs, (0..400).step_by(2));
        (0..2000).for_each(|at| fs.unlink(ROOT, format!("clone {at}").as_bytes()).unwrap());
        reclaim(&fs);
        fs.trim().unwrap();
        assert_eq!(fs.stats().stored_bytes, 0);
        unmount(&region, fs);
    }
}

#[test]
fn a_second_collection_changes_nothing() {
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region);
    let sources = write_sources(&fs, 40);
    let clones = clone_ranges(&fs, &sources, 30, 3000);
    remove_sources(&fs, 0..40);
    reclaim(&fs);
    let once = fs.stats();
    assert!(once.reclaim.collected_chunks > 0, "{:?}", once.reclaim);
    // Mounted anew it does not know that, and looks.
    unmount(&region, fs);
    let fs = mount(&region);
    reclaim(&fs);
    let again = fs.stats();
    assert_eq!((again.reclaim.collected_chunks, again.stored_bytes), (0, once.stored_bytes));
    assert_clones(&fs, &clones);
    unmount(&region, fs);
}

/// What is compressed is decompressed for it, and what is kept is compressed again.
#[test]
fn collection_replaces_compressed_chunks_by_smaller_ones() {
    let region = device(64, IndexKind::Dram);
    let zstd = Compression::Zstd(3);
    let fs = mount_with(&region, Policy::DeExt, zstd);
    let sources = write_sources(&fs, 40);
    let clones = clone_ranges(&fs, &sources, 40, 3000);
    remove_sources(&fs, 0..40);
    let before = fs.stats().stored_bytes;
    reclaim(&fs);
    let after = fs.stats();
    let live: usize = clones.iter().map(Vec::len).sum();
    assert!(after.stored_bytes < before / 2 && after.stored_bytes < live as u64, "{before} {live} {after:?}");
    assert_clones(&fs, &clones);
    unmount(&region, fs);
    // Without compression they would get larger by it, and stay.
    let fs = mount_with(&region, Policy::DeExt, Compression::Off);
    (0..40).step_by(2).for_each(|at| fs.unlink(ROOT, format!("clone {at}").as_bytes()).unwrap());
    let before = fs.stats().stored_bytes;
    reclaim(&fs);
    assert!(fs.stats().stored_bytes <= before);
    for at in (1..40).step_by(2) {
        assert!(read(&open(&fs, &format!("clone {at}"))) == clones[at], "clone {at}");
    }
    unmount(&region, fs);
}

/// A chunk that anybody names as a whole has nothing dead, and stays.
#[test]
fn a_chunk_that_a_file_maps_completely_is_not_collected() {
    for policy in [Policy::Inline, Policy::DeExt] {
        let region = device(64, IndexKind::Dram);
        let fs = mount_with(&region, policy, Compression::Off);
        let sources = write_sources(&fs, 20);
        let clones = clone_ranges(&fs, &sources, 20, 3000);
        let before = fs.stats().stored_bytes;
        reclaim(&fs);
        assert_eq!((fs.stats().reclaim.collected_chunks, fs.stats().stored_bytes), (0, before));
        assert_clones(&fs, &clones);
        unmount(&region, fs);
    }
}

/// A write over a part of a packed chunk leaves the rest of it; before the device is full for that, it is collected.
#[test]
fn an_operation_without_space_collects_before_it_fails() {
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region);
    let mut sources: Vec<Vec<u8>> = Vec::new();
    while fs.statfs().blocks_available * BLOCK_BYTES > 6 * SEGMENT_BYTES {
        let at = sources.len();
        sources.push(text(FILE, at as u64 + 1));
        create(&fs, &format!("source {at}")).write_at(0, &sources[at]).unwrap();
    }
    // A few hundred bytes of each chunk stay.
    let clones: Vec<Vec<u8>> = (0..sources.len())
        .map(|at| {
            let (source, clone) = (open(&fs, &format!("source {at}")), create(&fs, &format!("clone {at}")));
            (0..FILE as u64 / 4096).for_each(|of| {
                assert_eq!(clone.clone_from(&source, of * 4096 + 100, of * 200, 200).unwrap(), 200);
            });
            (0..FILE / 4096).flat_map(|of| sources[at][of * 4096 + 100..of * 4096 + 300].to_vec()).collect()
        })
        .collect();
    remove_sources(&fs, 0..sources.len() as u64);
    for at in 0..sources.len() / 2 {
        let file = create(&fs, &format!("new {at}"));
        file.write_at(0, &text(FILE, 10_000 + at as u64))
            .unwrap_or_else(|error| panic!("{at}: {error} {:?}", fs.stats()));
    }
    assert!(fs.stats().reclaim.collected_bytes > 4 * SEGMENT_BYTES, "{:?}", fs.stats().reclaim);
    assert_clones(&fs, &clones);
    for at in 0..sources.len() / 2 {
        assert!(read(&open(&fs, &format!("new {at}"))) == text(FILE, 10_000 + at as u64));
    }
    unmount(&region, fs);
}

#[test]
fn readers_writers_and_clones_continue_during_a_collection() {
    for policy in [Policy::Inline, Policy::DeExt] {
        let region = device(96, IndexKind::Dram);
        let fs = mount_with(&region, policy, Compression::Off);
        let sources = write_sources(&fs, 60);
        let clones = clone_ranges(&fs, &sources, 60, 4000);
        remove_sources(&fs, (0..60).filter(|at| at % 3 != 0));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (fs, is_over, clones, sources) = (&fs, &is_over, &clones, &sources);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    assert_clones(fs, clones);
                }
            });
            scope.spawn(move || {
                let mut random = Random(11);
                while !is_over.load(Ordering::Relaxed) {
                    let at = random.below(60) as usize;
                    let (source, copy) = (open(fs, &format!("clone {at}")), create(fs, "copy"));
                    let length = clones[at].len() as u64;
                    assert_eq!(copy.clone_from(&source, 7, 0, length).unwrap(), length - 7);
                    assert!(read(&copy) == clones[at][7..]);
                    let file = create(fs, "scratch");
                    file.write_at(0, &sources[at]).unwrap();
                    file.write_at(random.below(50_000), &text(3000, at as u64 + 500)).unwrap();
                    fs.unlink(ROOT, b"copy").unwrap();
                    fs.unlink(ROOT, b"scratch").unwrap();
                }
            });
            // The others hold the work up, and name what is collected.
            (0..20_000).take_while(|_| fs.stats().reclaim.collected_chunks <= 50).for_each(|_| reclaim(fs));
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(fs.stats().reclaim.collected_chunks > 50, "{:?}", fs.stats().reclaim);
        assert_clones(&fs, &clones);
        unmount(&region, fs);
    }
}

/// A file of parts of 128 bytes of two others, in turn, as the compaction of an LSM tree makes it; and its content.
fn merge(fs: &FileSystem, name: &str, seed: u64) -> Vec<u8> {
    const PART: usize = 128;
    let contents = [seed, seed + 1].map(|seed| noise(256 << 10, seed));
    let sources = [0, 1].map(|at| create(fs, &format!("source {at} of {name}")));
    sources.iter().zip(&contents).for_each(|(source, content)| source.write_at(0, content).unwrap());
    settle(fs);
    let parts = contents[0].chunks(PART).zip(contents[1].chunks(PART));
    let data: Vec<u8> = parts.flat_map(|(a, b)| [a, b]).flatten().copied().collect();
    let origin = |at: usize| Origin {
        at: (at * PART) as u64,
        length: PART as u64,
        source: &sources[at % 2],
        source_offset: (at / 2 * PART) as u64,
    };
    let origins: Vec<Origin<'_>> = (0..data.len() / PART).map(origin).collect();
    let shared = create(fs, name).write_at_from(0, &data, &origins).unwrap();
    assert_eq!(shared, data.len() as u64, "{name}");
    drop(origins);
    drop(sources);
    (0..2).for_each(|at| fs.unlink(ROOT, format!("source {at} of {name}").as_bytes()).unwrap());
    data
}

fn extents_of(fs: &FileSystem, name: &str) -> usize {
    open(fs, name).extents(0, 100_000).unwrap().len()
}

/// Each policy that follows copies, with either index, and any run shared.
fn each_follower(test: impl Fn(Policy, &Region, FileSystem)) {
    for policy in [Policy::Icid, Policy::IcidInline, Policy::IcidDeExt] {
        for index in [IndexKind::Dram, IndexKind::Pm] {
            let region = device(96, index);
            let options = MountOptions { policy, origin_bytes_min: Some(64), ..MountOptions::default() };
            test(policy, &region, FileSystem::mount(region.clone(), options).unwrap());
        }
    }
}

#[test]
fn short_parts_that_one_file_alone_maps_are_joined() {
    each_follower(|policy, region, fs| {
        let merged = [merge(&fs, "merged", 10), merge(&fs, "another", 20)];
        let bytes: usize = merged.iter().map(Vec::len).sum();
        assert_eq!(extents_of(&fs, "merged"), 4096, "{policy:?}");
        let before = fs.stats();
        reclaim(&fs);
        let after = fs.stats();
        assert!(extents_of(&fs, "merged") <= 32, "{policy:?}: {} extents", extents_of(&fs, "merged"));
        // Those of blocks, or of pieces of 16 KiB.
        assert!(after.reclaim.collected_chunks >= 64, "{policy:?}: {:?}", after.reclaim);
        assert!(
            after.stored_bytes <= before.stored_bytes && after.stored_bytes >= bytes as u64,
            "{policy:?}: {after:?}"
        );
        let is_whole = |fs: &FileSystem| {
            assert!(read(&open(fs, "merged")) == merged[0] && read(&open(fs, "another")) == merged[1], "{policy:?}");
        };
        is_whole(&fs);
        // What was joined stays as it is, also when a part of it is written over.
        open(&fs, "another").write_at(1000, &merged[1][1000..1100]).unwrap();
        reclaim(&fs);
        let again = fs.stats().reclaim.collected_chunks;
        assert!(again <= after.reclaim.collected_chunks + 1, "{policy:?}: {again}, {:?}", after.reclaim);
        is_whole(&fs);
        unmount(region, fs);
        let fs = mount_with(region, policy, Compression::Off);
        is_whole(&fs);
        unmount(region, fs);
    });
}

#[test]
fn parts_that_two_files_map_stay_shared() {
    each_follower(|policy, region, fs| {
        let merged = merge(&fs, "merged", 30);
        let (source, copy) = (open(&fs, "merged"), create(&fs, "copy"));
        assert_eq!(copy.clone_from(&source, 0, 0, merged.len() as u64).unwrap(), merged.len() as u64);
        drop((source, copy));
        let before = fs.stats();
        reclaim(&fs);
        assert_eq!((fs.stats().stored_bytes, extents_of(&fs, "copy")), (before.stored_bytes, 4096), "{policy:?}");
        assert!(read(&open(&fs, "merged")) == merged && read(&open(&fs, "copy")) == merged, "{policy:?}");
        // Once one of them is gone, they are the other's alone.
        fs.unlink(ROOT, b"copy").unwrap();
        open(&fs, "merged").write_at(0, &merged[..100]).unwrap();
        reclaim(&fs);
        assert!(extents_of(&fs, "merged") <= 34, "{policy:?}: {} extents", extents_of(&fs, "merged"));
        assert!(read(&open(&fs, "merged")) == merged, "{policy:?}");
        unmount(region, fs);
    });
}

/// Parts of pieces of 64 KiB: two of them are longer than a chunk can be.
#[test]
fn long_parts_of_pieces_are_gathered_into_chunks_that_hold_them() {
    const PARTS: [u64; 4] = [30_000, 45_000, 31_000, 40_000];
    let region = device(64, IndexKind::Dram);
    let options = MountOptions { policy: Policy::IcidDeExt, origin_bytes_min: Some(64), ..MountOptions::default() };
    let fs = FileSystem::mount(region.clone(), options).unwrap();
    let (target, mut content) = (create(&fs, "target"), Vec::new());
    for (number, length) in (0u16..).zip(PARTS) {
        // It repeats, so there is no place to cut.
        let line: Vec<u8> = (0..61u16).map(|at| b'a' + ((at * 7 + number) % 25) as u8).collect();
        let data: Vec<u8> = line.iter().copied().cycle().take(65_536).collect();
        let source = create(&fs, "source");
        source.write_at(0, &data).unwrap();
        settle(&fs);
        assert_eq!(target.clone_from(&source, 0, content.len() as u64, length).unwrap(), length);
        content.extend_from_slice(&data[..length as usize]);
        drop(source);
        fs.unlink(ROOT, b"source").unwrap();
    }
    let before = fs.stats();
    assert!(before.stored_bytes > content.len() as u64 * 5 / 4, "{before:?}");
    reclaim(&fs);
    let after = fs.stats();
    assert_eq!(after.reclaim.collected_chunks, 4, "{:?}", after.reclaim);
    assert_eq!(after.stored_bytes, content.len() as u64);
    assert!(read(&target) == content);
    drop(target);
    unmount(&region, fs);
}
