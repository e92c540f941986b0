//! Requests of which only some blocks are looked at: whatever becomes of those, the data is right, and everything between
//! them is stored in runs. Policy `auto` looks at one content in 32 while it stores everything.

use crate::auto::{BLOCK, PERIOD, content, create, device, mount, numbers, read_equals, unmount_clean, write};
use nvfold::*;
use pmem::Region;

const REQUEST: usize = 32;

/// A mount that stores everything and watches.
fn watching(mib: u64) -> (Region, FileSystem) {
    let region = device(mib, IndexKind::Dram);
    let fs = mount(&region, Prefer::Speed);
    let file = create(&fs, InodeNumber::ROOT, "before");
    write(&file, &numbers(1 << 30, 2 * PERIOD, 0).collect::<Vec<_>>(), 0, REQUEST);
    assert_eq!(fs.chosen_policy_of(file.ino()).unwrap(), Policy::Off);
    assert_eq!(fs.stats().auto.unwrap().directories[0].reason, Reason::Best, "it watches");
    (region, fs)
}

fn extents(file: &File) -> usize {
    file.extents(0, usize::MAX >> 1).unwrap().len()
}

#[test]
fn new_blocks_are_stored_in_runs_and_watched_copies_are_shared() {
    let (region, fs) = watching(64);
    let unique: Vec<u64> = (0..PERIOD / 2).collect();
    let files = ["first", "second"].map(|name| create(&fs, InodeNumber::ROOT, name));
    let before = fs.stats().data_blocks;
    write(&files[0], &unique, 0, REQUEST);
    assert_eq!(fs.stats().data_blocks - before, PERIOD / 2);
    assert!(extents(&files[0]) <= 4, "{} extents of new blocks", extents(&files[0]));
    write(&files[1], &unique, 0, REQUEST);
    let shared = PERIOD - (fs.stats().data_blocks - before);
    assert!((4..64).contains(&shared), "one in 32 of {}: {shared}", PERIOD / 2);
    assert!(extents(&files[1]) <= 4 + 2 * shared as usize, "{} extents", extents(&files[1]));
    files.iter().for_each(|file| read_equals(file, &unique, 0));
    // What is shared is not written in place.
    write(&files[0], &(5_000..5_000 + PERIOD / 2).collect::<Vec<_>>(), 0, REQUEST);
    read_equals(&files[1], &unique, 0);
    drop(files);
    unmount_clean(fs, &region);
}

#[test]
fn watched_copies_within_one_request_are_stored_once() {
    let (region, fs) = watching(128);
    let file = create(&fs, InodeNumber::ROOT, "file");
    let (mut all, mut shared) = (Vec::new(), 0);
    for number in 0..64 {
        // Eight copies among others, and two of them at the ends.
        let request: Vec<u64> = (0..REQUEST as u64)
            .map(|at| if at % 5 == 0 || at == 31 { number } else { 1_000 + number * 100 + at })
            .collect();
        let before = fs.stats().data_blocks;
        write(&file, &request, (all.len() * BLOCK) as u64, REQUEST);
        let stored = fs.stats().data_blocks - before;
        assert!(stored == REQUEST as u64 || stored == REQUEST as u64 - 7, "all copies or none: {stored}");
        shared += u64::from(stored < REQUEST as u64);
        all.extend(request);
    }
    assert!(shared > 0, "one content in 32 is watched");
    read_equals(&file, &all, 0);
    drop(file);
    unmount_clean(fs, &region);
}

#[test]
fn writes_to_reserved_blocks_and_unaligned_writes_keep_their_bytes() {
    let (region, fs) = watching(128);
    let file = create(&fs, InodeNumber::ROOT, "file");
    let numbers: Vec<u64> = (0..PERIOD / 2).map(|at| at % 200).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| content(*number)).collect();
    file.allocate(0, (bytes.len() / 2) as u64, AllocateMode::Reserve).unwrap();
    for (at, request) in (0u64..).zip(bytes.chunks(REQUEST * BLOCK)) {
        file.write_at(at * (REQUEST * BLOCK) as u64, request).unwrap();
    }
    read_equals(&file, &numbers, 0);
    let shift = 1_000;
    for (at, request) in (0u64..).zip(bytes.chunks(REQUEST * BLOCK)) {
        file.write_at(shift + at * (REQUEST * BLOCK) as u64, request).unwrap();
    }
    read_equals(&file, &numbers, shift);
    drop(file);
    unmount_clean(fs, &region);
}

#[test]
fn a_watched_request_without_space_changes_nothing() {
    let (region, fs) = watching(24);
    let file = create(&fs, InodeNumber::ROOT, "file");
    let (mut requests, blocks) = (0, REQUEST as u64);
    let numbers_of = |request: u64| -> Vec<u64> { (request * blocks..(request + 1) * blocks).collect() };
    let error = loop {
        let bytes: Vec<u8> = numbers_of(requests).into_iter().flat_map(content).collect();
        match file.write_at(requests * (REQUEST * BLOCK) as u64, &bytes) {
            Ok(()) => requests += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), errno::ENOSPC);
    assert!(requests > 8, "{requests}");
    let stored = fs.stats().data_blocks;
    let bytes: Vec<u8> = numbers_of(requests).into_iter().flat_map(content).collect();
    assert_eq!(file.write_at(requests * (REQUEST * BLOCK) as u64, &bytes).unwrap_err().errno(), errno::ENOSPC);
    assert_eq!(fs.stats().data_blocks, stored);
    read_equals(&file, &(0..requests * blocks).collect::<Vec<_>>(), 0);
    // There is room again, also for what was tried.
    fs.unlink(InodeNumber::ROOT, b"before").unwrap();
    file.write_at(requests * (REQUEST * BLOCK) as u64, &bytes).unwrap();
    read_equals(&file, &(0..(requests + 1) * blocks).collect::<Vec<_>>(), 0);
    drop(file);
    unmount_clean(fs, &region);
}

/// Nothing of which the policy sees a block is lost or shared wrongly when the process ends in between.
#[test]
fn after_a_crash_watched_writes_are_complete() {
    for index in [IndexKind::Dram, IndexKind::Pm] {
        let region = device(128, index);
        let fs = mount(&region, Prefer::Speed);
        let file = create(&fs, InodeNumber::ROOT, "file");
        let unique: Vec<u64> = (0..2 * PERIOD).collect();
        let all = [&unique[..], &unique[..]].concat();
        write(&file, &all, 0, REQUEST);
        drop((file, fs));
        let fs = mount(&region, Prefer::Speed);
        fs.reconcile().unwrap();
        let file = fs.open(fs.lookup(InodeNumber::ROOT, b"file").unwrap().ino).unwrap();
        read_equals(&file, &all, 0);
        drop(file);
        unmount_clean(fs, &region);
    }
}
