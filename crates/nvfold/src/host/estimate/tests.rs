use super::*;
use crate::chunking::tests::noise;
use crate::host::TreeError;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

/// More memory than any test here fills.
const ENOUGH: u64 = 16 << 20;

/// Random text of a small set of words, so that it is compressible and no part of it repeats.
fn text(len: usize, seed: u64) -> Vec<u8> {
    let words: Vec<Vec<u8>> =
        (0..200).map(|word| noise(6, word).iter().map(|byte| b'a' + byte % 26).collect()).collect();
    let chosen = noise(len / 7 + 1, seed);
    let spaced = chosen.iter().flat_map(|word| [&words[usize::from(*word) % words.len()], &b" "[..]].concat());
    spaced.take(len).collect()
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
    fs::write(one.join("zeros"), vec![0; 3 * 4096]).unwrap(); // 3 blocks that only `off` stores
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
    assert_eq!((first.inline.pieces, first.inline.distinct.pieces), (13, 5));
    assert_eq!(first.inline.saved_bytes(), 13 * 4096 - 5 * (4096 + 64));
    assert_eq!(first.off.distinct.bytes, 13 * 4096);
    assert_eq!((second.counts.tails, second.counts.tail_bytes), (1, 4));
    // Not every file system reports holes; without them the sparse file reads as zeros.
    let hole_blocks = second.counts.hole_bytes / 4096;
    let zeros_in_sparse = 255 - hole_blocks;
    assert_eq!(second.inline.pieces, 3 + 1 + zeros_in_sparse);
    assert_eq!(second.counts.data_bytes + second.counts.hole_bytes, second.counts.file_bytes);
    assert_eq!(total.inline.distinct.pieces, 5 + 1 + 1);
    assert_eq!(report.saved_across().0, 2 * (4096 + 64));
    // `data` and its copy are the same pieces; nothing else repeats within `one`, and zeros are not stored.
    assert_eq!(first.deext.distinct.bytes, 5 * 4096 + 80 * first.deext.distinct.pieces);
    assert_eq!((report.one_in, report.problem_count), ((1, 1), 0));
    assert_eq!(report.needs.chunk_entries, 7);
    assert_eq!(report.needs.chunk_table_bytes, 7 * 64);
}

#[test]
fn shifted_data_is_saved_only_by_content_defined_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let data = text(1 << 20, 3);
    fs::write(dir.path().join("plain"), &data).unwrap();
    fs::write(dir.path().join("shifted"), [b"a few bytes", &data[..]].concat()).unwrap();
    let report = estimate(ENOUGH, &[dir.path()]);
    // Only the packed tail is saved, minus the bytes of all chunk entries.
    assert_eq!(report.total.inline.saved_bytes(), 4096 - (11 + 80) - 512 * 64);
    assert!(report.total.deext.saved_bytes() > 900 << 10, "{:?}", report.total.deext);
    assert_eq!(report.total.best().0, "deext");
}

#[test]
fn incompressible_data_is_cut_every_16_kib() {
    let dir = tempfile::tempdir().unwrap();
    let data = noise(1 << 20, 4);
    fs::write(dir.path().join("plain"), &data).unwrap();
    fs::write(dir.path().join("copy"), &data).unwrap();
    fs::write(dir.path().join("shifted"), [b"a few bytes", &data[..]].concat()).unwrap();
    let deext = estimate(ENOUGH, &[dir.path()]).total.deext;
    assert_eq!((deext.pieces, deext.distinct.pieces), (64 + 64 + 65, 64 + 65), "a shifted copy is not found");
}

#[test]
fn all_policies_are_counted_from_whole_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let lengths = [1, 100, 3072, 100, 3073, 4095];
    for (file, len) in lengths.into_iter().enumerate() {
        // The two of 100 bytes are equal.
        fs::write(dir.path().join(file.to_string()), noise(len, len as u64)).unwrap();
    }
    let total = estimate(ENOUGH, &[dir.path()]).total;
    let packed = |lengths: &[u64]| lengths.iter().map(|len| len + 80).sum::<u64>();
    for (name, savings) in total.policies() {
        assert_eq!(savings.whole_block_bytes, 6 * 4096, "{name}");
    }
    assert_eq!(total.off.distinct.bytes, packed(&[1, 100, 3072, 100]) + 2 * 4096);
    assert_eq!(total.inline.distinct.bytes, packed(&[1, 100, 3072]) + 2 * (4096 + 64));
    assert_eq!(total.deext.distinct.bytes, packed(&[1, 100, 3072, 3073, 4095]));
}

#[test]
fn the_recommended_policy_is_the_one_that_saves_most() {
    let best_of = |content: Vec<u8>| {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), content).unwrap();
        estimate(ENOUGH, &[dir.path()]).total.best().0
    };
    assert_eq!(best_of(noise(1 << 20, 1)), "off");
    // Every other block is the same: no content-defined piece is.
    assert_eq!(
        best_of((0..64).flat_map(|block| [noise(4096, 1), noise(4096, 2 + block)].concat()).collect()),
        "inline"
    );
    assert_eq!(best_of([text(1 << 20, 1), noise(5, 2), text(1 << 20, 1)].concat()), "deext");
    assert_eq!(best_of(Vec::new()), "off");
}

#[test]
fn files_longer_than_the_buffer_are_cut_as_one_stream() {
    let dir = tempfile::tempdir().unwrap();
    let data = [text((3 << 20) + 77, 4), noise(2 << 20, 4)].concat();
    fs::write(dir.path().join("long"), &data).unwrap();
    let report = estimate(ENOUGH, &[dir.path()]);
    let mut whole = 0;
    let lengths = EstimateOptions::default().lengths;
    cut::DeextStream::new(lengths, 0).cut(&data, true, &mut |_, _| whole += 1);
    assert_eq!(report.total.deext.pieces, whole);
    assert_eq!(report.total.deext.distinct.bytes, data.len() as u64 + 80 * whole);
    assert_eq!(report.total.inline.pieces, data.len().div_ceil(4096) as u64);
}

#[test]
fn a_sample_stays_within_its_stated_error() {
    let dir = tempfile::tempdir().unwrap();
    // 6,000 distinct blocks, the first 2,000 of them twice: 24 MB against a sample of under 2,000.
    for file in 0..8u64 {
        let blocks = (0..1000).flat_map(|block| noise(4096, 1 + (file * 1000 + block) % 6000));
        fs::write(dir.path().join(file.to_string()), blocks.collect::<Vec<u8>>()).unwrap();
    }
    let report = estimate(0, &[dir.path()]);
    let blocks = &report.total.inline;
    let (truth, error) = (8000 * 4096 - 6000 * (4096 + 64), blocks.distinct.bytes_error);
    assert!(report.one_in.0 > 1);
    // The seeds are fixed, so this holds or fails for good; 3 standard deviations.
    assert!(blocks.saved_bytes().abs_diff(truth) <= error * 3 / 2, "{blocks:?}");
    assert!(error < 6000 * 4096 / 5, "an error of {error} says nothing");
}

#[test]
fn unreadable_files_are_listed_and_the_others_counted() {
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
fn the_advised_device_size_holds_the_surveyed_files_by_computation() {
    for content in [0, 1 << 20, 300 << 20, 5 << 30] {
        let device = needs::device_for(content).unwrap();
        let geometry = crate::media::superblock::Geometry::of(device).expect("a size mkfs takes");
        assert!(device - geometry.data_offset >= content);
    }
    assert_eq!(needs::device_for(1 << 44), None);
}

/// Half of the blocks of a long file repeat, every other one, so that each extent is one block long. There are
/// also many small files, which cost a slot and a name each.
#[test]
fn a_device_of_the_advised_size_stores_the_surveyed_files() {
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

/// Zeros in long runs, in single blocks, in runs that begin and end anywhere, and at the end of a file.
#[test]
fn files_with_zeros_take_the_estimated_space() {
    let dir = tempfile::tempdir().unwrap();
    let zeros = |bytes: usize| vec![0; bytes];
    let contents = [
        zeros(40 << 20),
        [noise(70_000, 1), zeros(9000), text(300_000, 2), zeros(3 << 20), text(100_000, 3)].concat(),
        [zeros(4096), noise(4096, 4), zeros(4096), noise(4096, 5), zeros(100_001)].concat(),
        [text(50_000, 6), zeros(5000)].concat(),
    ];
    for (number, content) in contents.iter().enumerate() {
        fs::write(dir.path().join(number.to_string()), content).unwrap();
    }
    let total = estimate(ENOUGH, &[dir.path()]).total;
    assert!(total.off.distinct.bytes > 43 << 20, "{:?}", total.off);
    for (policy, savings) in [(crate::Policy::Inline, total.inline), (crate::Policy::DeExt, total.deext)] {
        let region = pmem::Region::create(&pmem::DeviceSpec::Memory, 128 << 20, &Default::default()).unwrap();
        crate::FileSystem::mkfs(&region, &Default::default()).unwrap();
        let options = crate::MountOptions { policy, ..Default::default() };
        let device = crate::FileSystem::mount(region, options).unwrap();
        let import = crate::host::ImportOptions { sources: vec![dir.path().to_path_buf()], ..Default::default() };
        crate::host::import(&device, &import, &mut |_| ControlFlow::Continue(())).unwrap();
        let stored = device.stats().stored_bytes;
        // The rest is chunk entries, and headers of what is packed.
        let content = savings.distinct.bytes - savings.distinct.pieces * 80..=savings.distinct.bytes;
        assert!(content.contains(&stored), "{policy:?}: {stored} bytes for {savings:?}");
        assert!(stored < 800 << 10, "{policy:?}: {stored}");
    }
}

#[test]
fn an_interrupted_estimate_reports_the_files_read_so_far() {
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
    let Err(TreeError::Stopped { done, .. }) = stopped else { panic!("{stopped:?}") };
    assert_eq!((done.files, done.bytes), (1, 3 << 20));
    assert_eq!(told, [0, 1 << 20, 2 << 20, 2 << 20, 3 << 20]);
}
