//! Policy `nv-dedup`: whatever method and functions, equal data is found and different data never shared.

use nvfold::check::{CheckOptions, check};
use nvfold::internals::media::chunk_entry::ChunkEntry;
use nvfold::internals::media::inode::INODE_BYTES;
use nvfold::internals::media::superblock::Geometry;
use nvfold::internals::media::{BlockNumber, SEGMENT_BYTES};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BLOCK: usize = 4096;
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
const LOOKING: [Method; 3] = [Method::WSFin, Method::StrFin, Method::WBFin];

fn device(mib: u64) -> Region {
    let region = Region::create(&DeviceSpec::Memory, mib << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    region
}

fn mount(region: &Region, nv_dedup: NvDedupOptions) -> FileSystem {
    let options = MountOptions { policy: Policy::NvDedup, nv_dedup, ..MountOptions::default() };
    FileSystem::mount(region.clone(), options).unwrap()
}

fn fixed(method: Method) -> NvDedupOptions {
    NvDedupOptions { method: MethodChoice::Fixed(method), ..NvDedupOptions::default() }
}

fn create(fs: &FileSystem, name: &str) -> File {
    fs.open(fs.create(InodeNumber::ROOT, name.as_bytes(), &NEW).unwrap().ino).unwrap()
}

fn read(file: &File, offset: u64) -> Vec<u8> {
    let mut content = vec![0; BLOCK];
    assert_eq!(file.read_at(offset, &mut content).unwrap(), BLOCK);
    content
}

/// A block that no other number has.
fn content(number: u64) -> Vec<u8> {
    let words = (1..=BLOCK as u64 / 8).map(|at| (number << 32 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    words.flat_map(u64::to_le_bytes).collect()
}

/// A block with the same Fletcher-32 as [`content`] of the same number: words 0x0000 and 0xffff are one to it.
fn colliding(number: u64) -> (Vec<u8>, Vec<u8>) {
    let (mut one, mut other) = (content(number), content(number));
    one[1000..1002].fill(0);
    other[1000..1002].fill(0xff);
    assert_eq!(WeakFunction::Fletcher32.of(&one), WeakFunction::Fletcher32.of(&other));
    (one, other)
}

fn stored_blocks(fs: &FileSystem) -> u64 {
    fs.stats().data_blocks
}

/// The entries that count, by block.
fn entries(region: &Region) -> Vec<(BlockNumber, ChunkEntry)> {
    let geometry = Geometry::of(region.len_bytes()).unwrap();
    let entry = |block| region.read::<ChunkEntry>(geometry.chunk_entry_offset(block));
    (0..geometry.blocks())
        .map(|block| (BlockNumber(block), entry(BlockNumber(block))))
        .filter(|(_, entry)| entry.count > 0)
        .collect()
}

fn unmount_clean(fs: FileSystem, region: &Region) {
    fs.unmount().unwrap();
    let found = check(region, &CheckOptions { data: true, ..CheckOptions::default() }).unwrap();
    assert!(found.clean && found.findings.is_empty(), "{found:?}");
}

#[test]
fn every_method_finds_equal_data_with_every_function() {
    let strongs = StrongFunction::ALL.into_iter().map(Some).chain([None]);
    let functions = strongs.flat_map(|strong| WeakFunction::ALL.map(|weak| (weak, strong)));
    for (weak, strong) in functions {
        let region = device(16);
        for (round, method) in LOOKING.into_iter().enumerate() {
            for verify in [Verify::Bytes, Verify::Strong] {
                let fs = mount(&region, NvDedupOptions { weak, strong, verify, ..fixed(method) });
                let what = format!("{weak:?} {strong:?} {method:?} {verify:?}");
                let file = create(&fs, &what);
                let before = stored_blocks(&fs);
                // By blocks, and in one write with a copy inside it.
                let first = 1000 * (round as u64 + 1) + 10 * verify as u64;
                (0..4).for_each(|block| file.write_at(block * 4096, &content(first + block)).unwrap());
                let many: Vec<u8> = [1, 2, 5, 5, 3].into_iter().flat_map(|block| content(first + block)).collect();
                file.write_at(1 << 20, &many).unwrap();
                assert_eq!(stored_blocks(&fs) - before, 5, "{what}");
                for (at, block) in [1, 2, 5, 5, 3].into_iter().enumerate() {
                    assert_eq!(read(&file, (1 << 20) + 4096 * at as u64), content(first + block), "{what}");
                }
                let stats = fs.stats();
                assert_eq!((stats.pieces_offered, stats.pieces_shared), (9, 4), "{what}");
                unmount_clean(fs, &region);
            }
        }
    }
}

#[test]
fn blocks_stored_by_one_method_are_found_by_the_others() {
    let region = device(16);
    let fs = mount(&region, fixed(Method::WBFin));
    let file = create(&fs, "file");
    for (round, storing) in LOOKING.into_iter().enumerate() {
        fs.set_method(MethodChoice::Fixed(storing));
        file.write_at(0, &content(round as u64)).unwrap();
        for (at, finding) in (1..).zip(LOOKING) {
            fs.set_method(MethodChoice::Fixed(finding));
            file.write_at(at * 4096, &content(round as u64)).unwrap();
            assert_eq!(stored_blocks(&fs), 1, "{storing:?} then {finding:?}");
        }
        file.set_len(0).unwrap();
    }
    drop(file);
    unmount_clean(fs, &region);
}

#[test]
fn colliding_blocks_are_never_shared_but_their_copies_are() {
    for method in LOOKING {
        for verify in [Verify::Bytes, Verify::Strong] {
            let region = device(16);
            let fs = mount(&region, NvDedupOptions { weak: WeakFunction::Fletcher32, verify, ..fixed(method) });
            let file = create(&fs, "file");
            let (one, other) = colliding(7);
            for (at, block) in [&one, &other, &one, &other, &other].into_iter().enumerate() {
                file.write_at(4096 * at as u64, block).unwrap();
            }
            let at_once = [one.clone(), other.clone(), one.clone(), other.clone()].concat();
            file.write_at(1 << 20, &at_once).unwrap();
            let what = format!("{method:?} {verify:?}");
            assert_eq!(stored_blocks(&fs), 2, "{what}");
            assert!(fs.stats().weak_collisions > 0, "{what}");
            assert!(read(&file, 0) == one && read(&file, 4096) == other, "{what}");
            assert!(read(&file, 1 << 20) == one && read(&file, (1 << 20) + 4096) == other, "{what}");
            drop(file);
            unmount_clean(fs, &region);
        }
    }
}

#[test]
fn on_a_weak_match_a_block_gets_an_entry_with_its_strong_fingerprint() {
    for strong in StrongFunction::ALL {
        let region = device(16);
        let fs = mount(&region, NvDedupOptions { strong: Some(strong), ..fixed(Method::WSFin) });
        let file = create(&fs, "file");
        file.write_at(0, &content(1)).unwrap();
        let only = |region: &Region| {
            let entries = entries(region);
            assert_eq!(entries.len(), 1, "{entries:?}");
            entries[0].1
        };
        assert_eq!(entries(&region), [], "nobody shares it yet");
        file.write_at(4096, &content(1)).unwrap();
        assert_eq!(only(&region).strong(strong), Some(strong.of(&content(1))));
        assert_eq!(only(&region).count, 2);
        drop(file);
        unmount_clean(fs, &region);
    }
}

#[test]
fn str_fin_stores_both_fingerprints_and_a_lone_weak_one_takes_no_entry() {
    for method in [Method::WSFin, Method::WBFin] {
        let region = device(16);
        let fs = mount(&region, fixed(method));
        create(&fs, "file").write_at(0, &content(1)).unwrap();
        assert_eq!((entries(&region), fs.stats().index.entries), (vec![], 1), "{method:?}");
    }
    let region = device(16);
    let fs = mount(&region, fixed(Method::StrFin));
    create(&fs, "file").write_at(0, &content(1)).unwrap();
    let [(_, entry)] = entries(&region)[..] else { panic!("one block is stored") };
    assert!(entry.weak(WeakFunction::Xxh3).is_some() && entry.strong(StrongFunction::Blake3).is_some());
}

#[test]
fn verify_strong_trusts_fingerprints_and_verify_bytes_compares() {
    for method in [Method::WSFin, Method::StrFin] {
        for verify in [Verify::Strong, Verify::Bytes] {
            let region = device(16);
            let fs = mount(&region, NvDedupOptions { weak: WeakFunction::Fletcher32, verify, ..fixed(method) });
            let file = create(&fs, "file");
            let (one, other) = colliding(3);
            file.write_at(0, &one).unwrap();
            file.write_at(1 << 20, &one).unwrap();
            // As if the strong function had collided too.
            let (block, entry) = entries(&region)[0];
            let forged = entry.with_strong(StrongFunction::Blake3, StrongFunction::Blake3.of(&other));
            let offset = Geometry::of(region.len_bytes()).unwrap().chunk_entry_offset(block);
            let _ = region.fence(region.write(offset, &forged).flush());
            file.write_at(4096, &other).unwrap();
            let trusted = verify == Verify::Strong;
            assert_eq!(stored_blocks(&fs), if trusted { 1 } else { 2 }, "{method:?} {verify:?}");
            assert_eq!(read(&file, 4096), if trusted { one } else { other });
        }
    }
}

#[test]
fn blocks_stored_by_non_fin_are_found_once_they_have_fingerprints() {
    let region = device(16);
    let fs = mount(&region, fixed(Method::NonFin));
    let file = create(&fs, "file");
    for block in 0..20 {
        file.write_at(block * 4096, &content(block % 10)).unwrap();
    }
    file.write_at(1 << 20, &(0..10).flat_map(content).collect::<Vec<u8>>()).unwrap();
    let stats = fs.stats();
    assert_eq!(
        (stats.data_blocks, stats.chunks, stats.pieces_shared),
        (30, 0, 0),
        "everything is stored, without entries"
    );
    assert_eq!(stats.nv_dedup.unwrap().pieces, [30, 0, 0, 0]);
    assert!(fs.fill_step().unwrap(), "nobody looks for fingerprints now");
    assert_eq!(fs.stats().chunks_filled, 0);

    fs.set_method(MethodChoice::Fixed(Method::WSFin));
    while !fs.fill_step().unwrap() {}
    assert_eq!(fs.stats().chunks_filled, 30);
    let copy = create(&fs, "copy");
    (0..10).for_each(|block| copy.write_at(block * 4096, &content(block)).unwrap());
    assert_eq!((fs.stats().data_blocks, fs.stats().pieces_shared), (30, 10));
    drop((file, copy));
    unmount_clean(fs, &region);
}

#[test]
fn bad_memory_costs_the_filler_one_file_or_block_and_it_continues() {
    for is_inode in [false, true] {
        let region = device(16);
        let fs = mount(&region, fixed(Method::NonFin));
        let create_apart = |name: &str| {
            (0..8).for_each(|at| drop(create(&fs, &format!("{name}.{at}"))));
            create(&fs, name)
        };
        let (first, victim, last) = (create_apart("first"), create_apart("victim"), create_apart("last"));
        for file in [&first, &victim, &last] {
            (0..4).for_each(|block| file.write_at(block * 4096, &content(file.ino().0 << 8 | block)).unwrap());
        }
        let slot = Geometry::of(16 << 20).unwrap().first_segment() * SEGMENT_BYTES + victim.ino().0 * INODE_BYTES;
        let (at, length, lost_blocks) = match is_inode {
            true => (slot, INODE_BYTES, 4),
            false => (victim.extents(0, 1).unwrap()[0].address, 64, 1),
        };
        drop((first, victim, last));
        fs.unmount().unwrap();
        region.poison(at, length);
        let fs = mount(&region, fixed(Method::WSFin));
        let mut daemon = Daemon::new(fs.clone());
        (0..200).for_each(|_| assert!(daemon.turn().is_ok()));
        assert_eq!(fs.stats().chunks_filled, 12 - lost_blocks, "{is_inode}");
        let skipped = fs.skipped();
        assert_eq!(skipped.count, 1, "{skipped:?}");
        assert!(skipped.last_error.unwrap().contains("bad memory"));
    }
}

/// Another mount, other functions: what was stored is found again once the filler has been over it.
#[test]
fn fingerprints_of_other_functions_are_replaced() {
    let region = device(32);
    let of = |weak, strong| NvDedupOptions { weak, strong: Some(strong), ..fixed(Method::WSFin) };
    let fs = mount(&region, of(WeakFunction::Crc32, StrongFunction::Md5));
    let file = create(&fs, "file");
    for at in 0..200 {
        file.write_at(at * BLOCK as u64, &content(at)).unwrap();
    }
    // Entries with a strong fingerprint too.
    create(&fs, "copies").write_at(0, &[content(3), content(4)].concat()).unwrap();
    drop(file);
    unmount_clean(fs, &region);
    let fs = mount(&region, of(WeakFunction::Xxh3, StrongFunction::Sha1));
    while !fs.fill_step().unwrap() {}
    assert_eq!(fs.stats().chunks_filled, 200);
    let before = stored_blocks(&fs);
    let again = create(&fs, "again");
    for at in 0..200 {
        again.write_at(at * BLOCK as u64, &content(at)).unwrap();
    }
    assert_eq!(stored_blocks(&fs), before);
    let is_new = |entry: &ChunkEntry| entry.strong(StrongFunction::Sha1).is_some();
    assert!(entries(&region).iter().all(|(_, entry)| is_new(entry)));
    drop(again);
    unmount_clean(fs, &region);
}

#[test]
fn method_auto_stores_unique_data_and_notices_duplicates_within_a_period() {
    const PERIOD: u64 = 1600;
    let region = device(64);
    let fs = mount(&region, NvDedupOptions { period: PERIOD, ..NvDedupOptions::default() });
    let file = create(&fs, "file");
    let method = || fs.stats().nv_dedup.unwrap().method;
    assert_eq!(method(), Method::WBFin, "to begin with");
    let unique = |range: std::ops::Range<u64>| range.for_each(|n| file.write_at(n % 64 * 4096, &content(n)).unwrap());
    unique(0..PERIOD);
    assert_eq!(method(), Method::NonFin);
    let looked_up = fs.stats().index.entries;
    assert!((1..64).contains(&looked_up), "{looked_up} fingerprints: contents are watched, not all");

    // Half of what comes was there before.
    for n in 0..2 * PERIOD {
        file.write_at((64 + n % 64) * 4096, &content(if n % 2 == 0 { 1 << 20 | n } else { 1 << 20 | (n - 1) }))
            .unwrap();
    }
    let stats = fs.stats().nv_dedup.unwrap();
    assert_eq!(stats.method, Method::WBFin, "{stats:?}");
    assert!((0.3..0.6).contains(&stats.ratio.unwrap()), "{stats:?}");
    assert_eq!(stats.switches, 2);
    let all: u64 = stats.pieces.iter().sum();
    assert_eq!((all, stats.pieces[Method::WSFin as usize], stats.pieces[Method::StrFin as usize]), (3 * PERIOD, 0, 0));
    drop(file);
    unmount_clean(fs, &region);
}

#[test]
fn method_paper_alternates_while_no_data_repeats() {
    const PERIOD: u64 = 64;
    let region = device(16);
    let options = NvDedupOptions { period: PERIOD, method: MethodChoice::Paper, ..NvDedupOptions::default() };
    let fs = mount(&region, options);
    let file = create(&fs, "file");
    let mut methods = Vec::new();
    for n in 0..6 * PERIOD {
        if n % PERIOD == 0 {
            methods.push(fs.stats().nv_dedup.unwrap().method);
        }
        file.write_at(n % 64 * 4096, &content(n)).unwrap();
    }
    use Method::{NonFin, WSFin};
    assert_eq!(methods, [WSFin, NonFin, WSFin, NonFin, WSFin, NonFin]);
}

#[test]
fn the_method_changes_while_two_threads_write() {
    let region = device(64);
    let fs = mount(&region, NvDedupOptions { period: 500, ..NvDedupOptions::default() });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2u64)
            .map(|thread| {
                let file = create(&fs, &format!("file{thread}"));
                scope.spawn(move || {
                    let mut last = [0; 32];
                    for round in 0..3000u64 {
                        let (place, number) = (round * 7 % 32, round * 11 % 60);
                        last[place as usize] = number;
                        // Alone, or with its neighbour, which is equal to it.
                        file.write_at(place * 4096, &content(number)).unwrap();
                        if round % 3 == 0 && place < 31 {
                            last[place as usize + 1] = number;
                            file.write_at(place * 4096, &content(number).repeat(2)).unwrap();
                        }
                    }
                    (0..32).for_each(|place| assert_eq!(read(&file, place * 4096), content(last[place as usize])));
                })
            })
            .collect();
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs.fill_step().unwrap();
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            for choice in MethodChoice::ALL.into_iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                fs.set_method(choice);
                std::thread::yield_now();
            }
        });
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    let pieces: u64 = fs.stats().nv_dedup.unwrap().pieces.iter().sum();
    let written = (0..3000u64).map(|round| if round % 3 == 0 && round * 7 % 32 < 31 { 3 } else { 1 }).sum::<u64>();
    assert_eq!(pieces, 2 * written);
    unmount_clean(fs, &region);
}

/// A stopwatch by which everything takes longer than what was done before it.
fn stopwatch() -> Stopwatch {
    let looks = AtomicU64::new(0);
    Arc::new(move || looks.fetch_add(1, Ordering::Relaxed).pow(2))
}

#[test]
fn costs_are_measured_at_mount_and_kept_current() {
    let region = device(16);
    let options = |costs| MountOptions {
        policy: Policy::NvDedup,
        nv_dedup: NvDedupOptions { period: 16, costs, ..NvDedupOptions::default() },
        stopwatch: Some(stopwatch()),
        ..MountOptions::default()
    };
    let fs = FileSystem::mount(region.clone(), options(None)).unwrap();
    let stats = fs.stats().nv_dedup.unwrap();
    let Costs { write_ns: c, weak_ns: w, strong_ns: s, lookup_ns: lambda, compare_ns: v } = stats.costs;
    assert!(stats.measured && stats.costs != Costs::PAPER);
    assert!(c > 0 && s > c && lambda > s && v > lambda && w > 0, "in the order in which they were measured: {stats:?}");
    assert_eq!(stats.thresholds, Thresholds::default(), "s and v take longer than c");
    assert_eq!(stored_blocks(&fs), 0, "the block it was measured with is free");
    let free = fs.stats().free_bytes;
    let file = create(&fs, "file");
    (0..40).for_each(|n| file.write_at(0, &content(n)).unwrap());
    assert!(fs.stats().nv_dedup.unwrap().periods >= 2);
    assert!(fs.stats().free_bytes < free);
    drop(file);
    fs.unlink(InodeNumber::ROOT, b"file").unwrap();
    unmount_clean(fs, &region);

    let given = Costs { write_ns: 1, weak_ns: 2, strong_ns: 3, lookup_ns: 4, compare_ns: 5 };
    let fs = FileSystem::mount(region.clone(), options(Some(given))).unwrap();
    let stats = fs.stats().nv_dedup.unwrap();
    assert_eq!((stats.costs, stats.measured), (given, false), "what is given is not measured");
    fs.unmount().unwrap();
    let fs = FileSystem::mount(region, MountOptions { read_only: true, ..options(None) }).unwrap();
    let stats = fs.stats().nv_dedup.unwrap();
    assert_eq!((stats.costs, stats.measured), (Costs::PAPER, false), "a read-only mount writes nothing");
}

#[test]
fn a_full_device_does_not_change_the_measured_costs() {
    let region = device(16);
    let fs = mount(&region, NvDedupOptions::default());
    let file = create(&fs, "file");
    let mut n = 0;
    while file.write_at(n * 4096, &content(n)).is_ok() {
        n += 1;
    }
    drop(file);
    fs.unmount().unwrap();
    let options = MountOptions { policy: Policy::NvDedup, stopwatch: Some(stopwatch()), ..MountOptions::default() };
    let fs = FileSystem::mount(region.clone(), options).unwrap();
    let stats = fs.stats().nv_dedup.unwrap();
    assert_eq!((stats.costs, stats.measured), (Costs::PAPER, false));
    unmount_clean(fs, &region);
}

#[test]
fn other_policies_report_no_fingerprint_methods() {
    let region = device(16);
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    create(&fs, "file").write_at(0, &content(0)).unwrap();
    assert_eq!(fs.stats().nv_dedup, None);
}
