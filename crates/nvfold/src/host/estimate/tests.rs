use super::*;
use crate::host::Error;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

/// Memory that nothing here fills.
const ENOUGH: u64 = 16 << 20;

/// Random-looking bytes, the same for the same seed.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next_byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next_byte()).collect()
}

fn options(memory_bytes: u64, paths: &[&Path]) -> EstimateOptions {
    let paths = paths.iter().map(|path| path.to_path_buf()).collect();
    EstimateOptions { paths, memory_bytes, ..EstimateOptions::default() }
}

fn estimate(memory_bytes: u64, paths: &[&Path]) -> Estimate {
    super::estimate(&options(memory_bytes, paths), &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_known_tree_is_counted_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    fs::create_dir_all(one.join("sub")).unwrap();
    fs::create_dir(&two).unwrap();
    let data = noise(5 * 4096, 1);
    fs::write(one.join("data"), &data).unwrap();
    fs::write(one.join("sub/copy"), &data).unwrap(); // 5 blocks within `one`
    fs::hard_link(one.join("data"), one.join("sub/linked")).unwrap();
    fs::hard_link(one.join("data"), two.join("linked")).unwrap();
    symlink("data", one.join("symlink")).unwrap();
    fs::write(one.join("zeros"), vec![0; 3 * 4096]).unwrap(); // 3 equal blocks
    fs::write(one.join("empty"), b"").unwrap();
    fs::write(two.join("tail"), [&data[..2 * 4096], b"tail"].concat()).unwrap(); // 2 blocks across, 1 new
    let sparse = fs::File::create(two.join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    sparse.write_all_at(&noise(4096, 2), 512 << 10).unwrap();
    drop(sparse);

    let report = estimate(ENOUGH, &[&one, &two]);
    let (first, second, total) = (&report.by_path[0].1, &report.by_path[1].1, &report.total);
    assert_eq!((first.counts.files, first.counts.directories, first.counts.others), (4, 2, 1));
    assert_eq!((first.counts.hard_links, second.counts.hard_links), (1, 1));
    assert_eq!((second.counts.files, second.counts.file_bytes), (2, 2 * 4096 + 4 + (1 << 20)));
    assert_eq!((first.counts.zero_bytes, first.counts.data_bytes), (3 * 4096, 13 * 4096));
    assert_eq!((first.blocks.pieces, first.blocks.distinct.pieces), (13, 6));
    assert_eq!(first.blocks.saved_bytes(), 7 * 4096);
    // Not every file system tells holes; then the sparse file is zeros.
    let hole_blocks = second.counts.hole_bytes / 4096;
    let zeros_in_sparse = 255 - hole_blocks;
    assert_eq!(second.blocks.pieces, 3 + 1 + zeros_in_sparse);
    assert_eq!(second.counts.data_bytes + second.counts.hole_bytes, second.counts.file_bytes);
    assert_eq!(total.blocks.distinct.pieces, 6 + 1 + 1);
    assert_eq!(report.saved_across().0, (2 + u64::from(zeros_in_sparse > 0)) * 4096);
    // `data` and its copy are the same pieces; nothing else repeats within `one` but zeros.
    assert_eq!(first.pieces.saved_bytes(), 5 * 4096);
    assert_eq!((report.one_in, report.problem_count), ((1, 1), 0));
    assert_eq!(report.needs.chunk_entries, 8);
    assert_eq!(report.needs.chunk_table_bytes, 8 * 64);
}

#[test]
fn data_found_at_another_offset_is_saved_by_content_only() {
    let dir = tempfile::tempdir().unwrap();
    let data = noise(1 << 20, 3);
    fs::write(dir.path().join("plain"), &data).unwrap();
    fs::write(dir.path().join("shifted"), [b"a few bytes", &data[..]].concat()).unwrap();
    let report = estimate(ENOUGH, &[dir.path()]);
    assert_eq!(report.total.blocks.saved_bytes(), 0);
    assert!(report.total.pieces.saved_bytes() > 900 << 10, "{:?}", report.total.pieces);
}

#[test]
fn files_longer_than_the_buffer_are_cut_as_one_stream() {
    let dir = tempfile::tempdir().unwrap();
    let data = noise((5 << 20) + 77, 4);
    fs::write(dir.path().join("long"), &data).unwrap();
    let report = estimate(ENOUGH, &[dir.path()]);
    let whole = crate::chunking::content_defined(&data, PieceLengths::default()).count() as u64;
    assert_eq!(report.total.pieces.pieces, whole);
    assert_eq!(report.total.pieces.distinct.bytes, data.len() as u64);
    assert_eq!(report.total.blocks.pieces, data.len().div_ceil(4096) as u64);
}

#[test]
fn a_sample_stays_within_the_error_it_states() {
    let dir = tempfile::tempdir().unwrap();
    // 6,000 distinct blocks, the first 2,000 of them twice: 24 MB against a sample of under 2,000.
    for file in 0..8u64 {
        let blocks = (0..1000).flat_map(|block| noise(4096, 1 + (file * 1000 + block) % 6000));
        fs::write(dir.path().join(file.to_string()), blocks.collect::<Vec<u8>>()).unwrap();
    }
    let report = estimate(0, &[dir.path()]);
    let blocks = &report.total.blocks;
    let (truth, error) = (2000 * 4096, blocks.distinct.bytes_error);
    assert!(report.one_in.0 > 1);
    // The seeds are fixed, so this holds or fails for good; 3 standard deviations.
    assert!(blocks.saved_bytes().abs_diff(truth) <= error * 3 / 2, "{blocks:?}");
    assert!(error < 6000 * 4096 / 5, "an error of {error} says nothing");
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_counted() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), noise(4096, 5)).unwrap();
    let missing = dir.path().join("missing");
    let report = estimate(ENOUGH, &[&missing, dir.path()]);
    assert_eq!((report.problem_count, report.total.counts.files), (1, 1));
    assert_eq!(report.problems[0].path, missing);
}

#[test]
fn paths_below_other_paths_are_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("file"), noise(4096, 6)).unwrap();
    for order in [[dir.path(), &inner], [&inner, dir.path()], [dir.path(), dir.path()]] {
        let report = estimate(ENOUGH, &order);
        assert_eq!((report.by_path.len(), report.total.counts.files), (1, 1));
    }
}

#[test]
fn the_advised_device_holds_what_was_surveyed() {
    for content in [0, 1 << 20, 300 << 20, 5 << 30] {
        let device = needs::device_for(content).unwrap();
        let geometry = crate::media::superblock::Geometry::of(device).expect("a size mkfs takes");
        assert!(device - geometry.data_offset >= content);
    }
    assert_eq!(needs::device_for(1 << 44), None);
}

/// Half of the blocks of a long file repeat, every other one, so that each extent is one block long; beside it
/// many small files, which cost a slot and a name each.
#[test]
fn the_advised_device_takes_what_was_surveyed() {
    let dir = tempfile::tempdir().unwrap();
    let shared = noise(4096, 7);
    let long: Vec<u8> = (0..2000).flat_map(|block| [shared.clone(), noise(4096, 10 + block)].concat()).collect();
    fs::write(dir.path().join("long"), &long).unwrap();
    for file in 0..8000u64 {
        let name = format!("{file:0>150}");
        fs::write(dir.path().join(name), noise(1 + file as usize % 5000, 10_000 + file)).unwrap();
    }
    let answer = estimate(ENOUGH, &[dir.path()]);
    let device_bytes = answer.needs.device_bytes.unwrap();

    let region = pmem::Region::create(&pmem::DeviceSpec::Memory, device_bytes, &Default::default()).unwrap();
    crate::FileSystem::mkfs(&region, &Default::default()).unwrap();
    let device = crate::FileSystem::mount(region, Default::default()).unwrap();
    let new = crate::NewInode { kind: crate::FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    for entry in fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        let inode = device.create(crate::InodeNumber::ROOT, entry.file_name().as_encoded_bytes(), &new).unwrap();
        device.open(inode.ino).unwrap().write_at(0, &fs::read(entry.path()).unwrap()).unwrap();
    }
    let stats = device.stats();
    assert_eq!(stats.data_blocks, answer.needs.chunk_entries);
    assert!(stats.free_bytes > 0);
    assert!(device_bytes < 3 * stats.stored_bytes, "{device_bytes} bytes are too generous for {stats:?}");
}

#[test]
fn a_stop_ends_it_with_what_was_read() {
    let dir = tempfile::tempdir().unwrap();
    for file in 0..3 {
        fs::write(dir.path().join(file.to_string()), noise(2 << 20, file)).unwrap();
    }
    let options = options(ENOUGH, &[dir.path()]);
    assert_eq!(options.total_bytes(), 6 << 20);
    let mut told = Vec::new();
    let stopped = super::estimate(&options, &mut |so_far| {
        told.push(so_far.bytes);
        if so_far.bytes < 3 << 20 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let Err(Error::Stopped { done, .. }) = stopped else { panic!("{stopped:?}") };
    assert_eq!((done.files, done.bytes), (1, 3 << 20));
    assert_eq!(told, [0, 1 << 20, 2 << 20, 2 << 20, 3 << 20]);
}
