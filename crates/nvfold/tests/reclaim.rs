//! Emptying segments of packed chunks: what lives moves and reads as before, what is dead becomes free, and a device that is
//! nearly full goes on for ever.

use crate::deext::*;
use nvfold::check::{CheckOptions, check};
use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::chunk_entry::{ChunkEntry, ENTRY_BYTES};
use nvfold::internals::media::packed::{HEADERS_MAX, PackedHeader, header_offset};
use nvfold::internals::media::segment::SegmentUse;
use nvfold::*;
use pmem::Region;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Empties segments until none is worth it; how many.
fn reclaim(fs: &FileSystem, victims: Victims) -> u64 {
    let before = fs.stats().reclaim.segments;
    while !fs.reclaim_step(victims).unwrap() {}
    fs.stats().reclaim.segments - before
}

fn name(at: u64) -> String {
    format!("file {at}")
}

fn remove(fs: &FileSystem, at: u64) {
    fs.unlink(ROOT, name(at).as_bytes()).unwrap();
}

/// Files of 100 kB of text, without equal parts.
fn write_files(fs: &FileSystem, files: std::ops::Range<u64>) {
    files.for_each(|at| write(&create(fs, &name(at)), &text(100_000, at + 1), 100_000, in_order));
    settle(fs);
}

fn assert_whole(fs: &FileSystem, files: impl Iterator<Item = u64>) {
    files.for_each(|at| assert!(read(&open(fs, &name(at))) == text(100_000, at + 1), "file {at}"));
}

#[test]
fn reclamation_moves_live_chunks_and_frees_dead_ones() {
    for index in [IndexKind::Dram, IndexKind::Pm] {
        let region = device(96, index);
        let fs = mount(&region);
        write_files(&fs, 0..200);
        (0..200).filter(|at| at % 5 != 0).for_each(|at| remove(&fs, at));
        let before = fs.stats();
        assert!(before.reclaim.dead_bytes > 10 << 20, "{before:?}");
        let emptied = reclaim(&fs, Victims::Worthwhile);
        let after = fs.stats();
        assert!(emptied >= 6, "{emptied} segments");
        assert_eq!(
            (after.stored_bytes, after.saved_bytes, after.chunks),
            (before.stored_bytes, before.saved_bytes, before.chunks)
        );
        assert!(after.free_bytes >= before.free_bytes + (emptied - 2) * SEGMENT_BYTES, "{before:?} {after:?}");
        assert!(after.reclaim.dead_bytes < after.stored_bytes, "{:?}", after.reclaim);
        assert!(after.reclaim.moved_bytes < after.reclaim.freed_bytes, "{:?}", after.reclaim);
        assert_whole(&fs, (0..200).step_by(5));
        // It is found where it lies now.
        let stored = fs.stats().stored_bytes;
        write(&create(&fs, "twin"), &text(100_000, 6), 100_000, in_order);
        settle(&fs);
        assert!(fs.stats().stored_bytes < stored + 20_000, "a chunk that moved is shared");
        unmount(&region, fs);
        let fs = mount(&region);
        assert_whole(&fs, (0..200).step_by(5));
        // What the mount found closed can be emptied too, and files go away as ever.
        (0..200).step_by(10).for_each(|at| remove(&fs, at));
        reclaim(&fs, Victims::All);
        assert!(fs.stats().reclaim.dead_bytes < 1 << 20, "{:?}", fs.stats().reclaim);
        assert_whole(&fs, (5..200).step_by(10));
        (5..200).step_by(10).for_each(|at| remove(&fs, at));
        fs.unlink(ROOT, b"twin").unwrap();
        fs.trim().unwrap();
        assert_eq!(fs.stats().stored_bytes, 0);
        unmount(&region, fs);
    }
}

/// Two fifths live: as long as more of it dies in each round a segment is left alone, then emptied, and so is one of which
/// a fifth lives at once.
#[test]
fn a_half_dead_segment_is_emptied_once_its_chunks_stop_dying() {
    let region = device(96, IndexKind::Dram);
    let fs = mount(&region);
    write_files(&fs, 0..200);
    let remove_where =
        |is_removed: fn(u64) -> bool| (0..200).filter(|at| is_removed(*at)).for_each(|at| remove(&fs, at));
    remove_where(|at| at % 5 < 3);
    assert_eq!(reclaim(&fs, Victims::Worthwhile), 0, "it may soon cost less");
    remove_where(|at| at % 20 == 3);
    assert_eq!(reclaim(&fs, Victims::Worthwhile), 0, "it did");
    let emptied = reclaim(&fs, Victims::Worthwhile);
    assert!(emptied >= 6, "{emptied} segments rest");
    assert!(fs.stats().reclaim.dead_bytes < 3 << 20, "{:?}", fs.stats().reclaim);
    assert_whole(&fs, (0..200).filter(|at| at % 5 >= 3 && at % 20 != 3));
    unmount(&region, fs);
}

/// Without a free segment what lives goes to the one that is kept for it.
#[test]
fn a_full_device_frees_dead_bytes_for_new_writes() {
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region);
    let mut files = 0;
    while write_all(&fs, files) {
        files += 1;
    }
    remove_if_there(&fs, files);
    assert!(files > 400, "{files} files of 100 kB");
    // Every segment keeps some of them.
    (0..files).filter(|at| at % 3 != 0).for_each(|at| remove(&fs, at));
    let again = files..files + files / 2;
    again.clone().for_each(|at| assert!(write_all(&fs, at), "file {at}"));
    assert!(fs.stats().reclaim.segments > 5, "{:?}", fs.stats().reclaim);
    assert_whole(&fs, (0..files).step_by(3).chain(again));
    unmount(&region, fs);
}

/// A device of less than 32 MiB keeps no segment: what lives moves to the open one as far as that has room, nothing is lost
/// where it has none, and what is dead is free again at the latest when a whole segment of it is.
#[test]
fn a_small_device_without_a_spare_segment_loses_nothing_and_can_be_emptied() {
    let region = device(24, IndexKind::Dram);
    let fs = mount(&region);
    let mut files = 0;
    while write_all(&fs, files) {
        files += 1;
    }
    remove_if_there(&fs, files);
    assert_eq!(fs.stats().reclaim.kept_bytes, 0);
    assert!(files > 100, "{files} files of 100 kB");
    (0..files).filter(|at| at % 3 != 0).for_each(|at| remove(&fs, at));
    let again = (files..2 * files).take_while(|at| write_all(&fs, *at)).count() as u64;
    remove_if_there(&fs, files + again);
    assert_whole(&fs, (0..files).step_by(3).chain(files..files + again));
    reclaim(&fs, Victims::All);
    (0..files).step_by(3).chain(files..files + again).for_each(|at| remove(&fs, at));
    assert!(write_all(&fs, 2 * files));
    unmount(&region, fs);
}

/// Of chunks of 80 bytes a sixth of a segment is headers: it looks as if much of it were dead, and nothing is.
#[test]
fn reclaiming_segments_of_short_live_chunks_terminates() {
    let region = device(64, IndexKind::Dram);
    let options = MountOptions { policy: Policy::Off, pack: Pack::On, ..MountOptions::default() };
    let fs = FileSystem::mount(region.clone(), options).unwrap();
    for at in 0..50_000 {
        let file = fs.open(fs.create(ROOT, name(at).as_bytes(), &NEW).unwrap().ino).unwrap();
        file.write_at(0, &text(80, at)).unwrap();
    }
    let segments = fs.stats().reclaim.segments;
    let mut steps = 0;
    while !fs.reclaim_step(Victims::All).unwrap() {
        steps += 1;
        assert!(steps < 10_000, "{:?}", fs.stats().reclaim);
    }
    assert_eq!(fs.stats().reclaim.segments, segments, "nothing is dead");
    drop(fs);
}

/// A file of 100 kB; false when there is no room for it.
fn write_all(fs: &FileSystem, at: u64) -> bool {
    let Ok(new) = fs.create(ROOT, name(at).as_bytes(), &NEW) else { return false };
    let file = fs.open(new.ino).unwrap();
    file.write_at(0, &text(100_000, at + 1)).is_ok()
}

fn remove_if_there(fs: &FileSystem, at: u64) {
    let _ = fs.unlink(ROOT, name(at).as_bytes());
}

/// Nine tenths of a device live, and are overwritten three times over in random order.
#[test]
fn a_nearly_full_device_can_be_overwritten_forever() {
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region);
    let mut files = 0;
    while fs.statfs().blocks_available > fs.statfs().blocks / 10 {
        assert!(write_all(&fs, files));
        files += 1;
    }
    let mut seeds: Vec<u64> = (0..files).collect();
    let mut random = Random(7);
    for turn in 0..3 * files {
        let at = random.below(files);
        seeds[at as usize] = files + turn;
        let file = open(&fs, &name(at));
        let written = file.write_at(0, &text(100_000, seeds[at as usize] + 1));
        assert!(written.is_ok(), "turn {turn} of {files} files: {written:?}, {:?}", fs.stats());
    }
    for (at, seed) in seeds.into_iter().enumerate() {
        assert!(read(&open(&fs, &name(at as u64))) == text(100_000, seed + 1), "file {at}");
    }
    unmount(&region, fs);
}

#[test]
fn readers_and_writers_continue_while_segments_are_emptied() {
    let region = device(96, IndexKind::Dram);
    let fs = mount(&region);
    write_files(&fs, 0..120);
    (0..120).filter(|at| at % 4 != 0).for_each(|at| remove(&fs, at));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for first in [0, 60] {
            let (fs, is_over) = (&fs, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    assert_whole(fs, (first..first + 60).step_by(4));
                }
            });
        }
        for round in 0..40 {
            let number = 1000 + round;
            write_files(&fs, number..number + 1);
            (round > 0).then(|| remove(&fs, number - 1));
            reclaim(&fs, Victims::All);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(fs.stats().reclaim.segments > 5, "{:?}", fs.stats().reclaim);
    unmount(&region, fs);
}

/// A chunk whose header is damaged cannot be found by it: its segment stays, is not tried again, and nothing is lost.
#[test]
fn a_damaged_header_keeps_its_segment() {
    let region = device(96, IndexKind::Dram);
    let fs = mount(&region);
    write_files(&fs, 0..60);
    let kept = open(&fs, &name(0)).extents(0, 1).unwrap()[0].address / SEGMENT_BYTES;
    let first = kept * SEGMENT_BYTES + header_offset(0);
    let _ = region.fence(region.write(first, &[0xEEu8; 16]).flush());
    (1..60).for_each(|at| remove(&fs, at));
    reclaim(&fs, Victims::All);
    assert_eq!(reclaim(&fs, Victims::All), 0, "it is not tried again");
    assert_whole(&fs, 0..1);
    assert_eq!(open(&fs, &name(0)).extents(0, 1).unwrap()[0].address / SEGMENT_BYTES, kept);
    fs.unlink(ROOT, name(0).as_bytes()).unwrap();
    fs.trim().unwrap();
    assert_eq!(fs.stats().stored_bytes, 0);
    unmount(&region, fs);
}

/// Data that stays gives its segment up when the others are far more worn.
#[test]
fn static_data_moves_so_that_its_segment_is_worn_too() {
    let region = device(32, IndexKind::Dram);
    let fs = mount(&region);
    write_files(&fs, 0..60);
    let place = |fs: &FileSystem| open(fs, &name(0)).extents(0, 1).unwrap()[0].address / SEGMENT_BYTES;
    let before = place(&fs);
    let file = create(&fs, "hot");
    for round in 0..600 {
        file.set_len(0).unwrap();
        write(&file, &text(300_000, 5000 + round), 300_000, in_order);
        reclaim(&fs, Victims::Worthwhile);
    }
    assert_ne!(place(&fs), before);
    assert_whole(&fs, 0..60);
    drop(file);
    unmount(&region, fs);
}

/// A mount after a kill in the middle of it: both places of a chunk are there, one of them counts.
#[test]
fn a_crash_while_a_segment_is_emptied_loses_nothing() {
    let region = device(96, IndexKind::Dram);
    let fs = mount(&region);
    write_files(&fs, 0..80);
    (0..80).filter(|at| at % 4 != 0).for_each(|at| remove(&fs, at));
    std::mem::forget(fs);
    for steps in 1..6 {
        let fs = mount_again(&region);
        (0..steps).for_each(|_| _ = fs.reclaim_step(Victims::All).unwrap());
        assert_whole(&fs, (0..80).step_by(4));
        std::mem::forget(fs);
    }
    let fs = mount_again(&region);
    reclaim(&fs, Victims::All);
    assert_whole(&fs, (0..80).step_by(4));
    unmount(&region, fs);
}

/// A mount of what a crash leaves at level `memory`: all that was stored.
fn mount_again(region: &pmem::Region) -> FileSystem {
    let fs = mount(region);
    fs.reconcile().unwrap();
    fs
}

/// A crash while a segment is emptied, and the chunks that had moved by then: where their entries lie, where they lie, and
/// where they lay before, which a header says of them too.
fn moved_by_a_crash(index: IndexKind) -> (Region, Vec<(u64, ChunkEntry, u64)>) {
    let region = device(96, index);
    let fs = mount(&region);
    write_files(&fs, 0..80);
    (0..80).filter(|at| at % 4 != 0).for_each(|at| remove(&fs, at));
    let entries = first_entry(&region);
    let entry_offset = |header: &PackedHeader| entries + u64::from(header.chunk) * ENTRY_BYTES;
    let mut before = BTreeMap::new();
    for segment in segments(&region, |usage| *usage == SegmentUse::Packed) {
        let header = |nth| region.read::<PackedHeader>(segment * SEGMENT_BYTES + header_offset(nth));
        for header in (0..HEADERS_MAX).map(header).take_while(|header| header.check != 0) {
            let entry: ChunkEntry = region.read(entry_offset(&header));
            let is_live = !entry.is_empty() && entry.address() == segment * SEGMENT_BYTES + u64::from(header.offset);
            is_live.then(|| before.insert(entry_offset(&header), entry.address()));
        }
    }
    while fs.stats().reclaim.moved_chunks == 0 {
        assert!(!fs.reclaim_step(Victims::All).unwrap());
    }
    std::mem::forget(fs);
    let moved = before.into_iter().map(|(at, address)| (at, region.read::<ChunkEntry>(at), address));
    let moved: Vec<_> = moved.filter(|(_, entry, address)| entry.address() != *address).collect();
    assert!(moved.len() > 3, "{} chunks have moved", moved.len());
    (region, moved)
}

#[test]
fn a_lost_entry_of_a_moved_chunk_is_rebuilt_from_either_header() {
    for index in IndexKind::ALL {
        for damage in [[0u8; 64], [0xA5; 64]] {
            let (region, moved) = moved_by_a_crash(index);
            moved.iter().for_each(|(at, ..)| store(&region, *at, &damage));
            let (found, left) = repaired(&region);
            assert!(found.len() >= moved.len(), "{found:?}");
            assert!(left.is_empty(), "{left:?}");
            for (at, entry, _) in moved {
                let again: ChunkEntry = region.read(at);
                assert_eq!((again.address(), again.packed_bytes()), (entry.address(), entry.packed_bytes()));
            }
            let fs = mount(&region);
            assert_whole(&fs, (0..80).step_by(4));
            reclaim(&fs, Victims::All);
            assert_whole(&fs, (0..80).step_by(4));
            unmount(&region, fs);
        }
    }
}

/// A header of an earlier chunk of the same number looks the same: nothing says whose bytes are right.
#[test]
fn a_lost_chunk_with_contradictory_headers_is_given_up() {
    let (region, moved) = moved_by_a_crash(IndexKind::Dram);
    let (at, entry, before) = moved[0];
    let last = before + entry.stored_bytes() - 1;
    store(&region, last, &[!region.read::<u8>(last)]);
    moved.iter().for_each(|(at, ..)| store(&region, *at, &[0; 64]));
    let report = check(&region, &CheckOptions::default()).unwrap();
    let given_up: Vec<_> = report.given_up.iter().map(|inode| inode.path.clone().unwrap()).collect();
    assert_eq!(given_up.len(), 1, "{report:#?}");
    let left = repaired(&region).1;
    assert!(left.is_empty(), "{left:?}");
    assert!(region.read::<ChunkEntry>(at).is_empty());
    let fs = mount(&region);
    assert_whole(&fs, (0..80).step_by(4).filter(|at| std::path::Path::new(&format!("/{}", name(*at))) != given_up[0]));
    unmount(&region, fs);
}
