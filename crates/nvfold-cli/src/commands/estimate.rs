//! `nvfold estimate PATH...`: what would sharing save here, and what device would hold it?
//!
//! Reads everything once and changes nothing. `survey` reads and cuts, `sample` counts distinct pieces in
//! bounded memory, and this file turns the counts into an answer: bytes saved by 4 KiB blocks (what nvfold
//! shares) and by content-defined pieces, within each path and across all of them, and the sizes of the
//! tables and of the device.

mod answer;
mod sample;
mod survey;

use crate::cli::Output;
use crate::failure::{Outcome, eprint_line};
use crate::progress::Progress;
use crate::{report, size};
use answer::Answer;
use clap::Args;
use nvfold::chunking::PieceLengths;
use std::path::PathBuf;
use survey::{Failure, Options, Survey, walk};

/// Estimate what sharing would save on files anywhere, and the device to make for them; reads only
#[derive(Args, Debug)]
pub struct Estimate {
    /// Files and directories to read; symbolic links below them are not followed
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Memory to take at most; when fingerprints do not fit, a sample of them is kept
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_memory)]
    memory: u64,
    /// Average length of content-defined pieces, a power of two
    #[arg(long, value_name = "SIZE", default_value = "8K", value_parser = parse_average)]
    average: PieceLengths,
    /// Stay on the file system of each PATH
    #[arg(short = 'x', long)]
    one_file_system: bool,
}

/// Runs the command. The exit code is 1 when something could not be read, as with du(1).
pub fn run(estimate: &Estimate, output: &Output) -> Outcome<u8> {
    let total_bytes = if Progress::wanted(output.progress) { bytes_below(estimate) } else { 0 };
    let mut progress = Progress::new(output.progress, "estimate", total_bytes);
    let (mut done_bytes, mut done_files) = (0, 0);
    let answer = survey(estimate, |bytes, files| {
        done_bytes += bytes;
        done_files += files;
        progress.update(done_bytes, || format!("{done_files} files"));
    });
    progress.finish(done_bytes, || format!("{done_files} files"));
    for failure in &answer.failures {
        eprint_line(&format!("nvfold: estimate: {}: {}", failure.path.display(), failure.error));
    }
    let unnamed = answer.failure_count - answer.failures.len() as u64;
    if unnamed > 0 {
        eprint_line(&format!("nvfold: estimate: {unnamed} more could not be read"));
    }
    report::emit(output.json, "estimate", &answer.to_json(), || answer.to_text())?;
    Ok(u8::from(answer.failure_count > 0))
}

/// Sizes of all files, for the progress bar only: hard links and holes count here.
fn bytes_below(estimate: &Estimate) -> u64 {
    let mut bytes = 0;
    for root in distinct_roots(&estimate.paths, &mut |_| {}) {
        walk(&root, estimate.one_file_system, &mut |found| {
            bytes += found.ok().filter(|(_, metadata)| metadata.is_file()).map_or(0, |(_, metadata)| metadata.len());
        });
    }
    bytes
}

/// Least memory that makes sense: the buffers take a few MiB.
const MEMORY_MIN: u64 = 16 << 20;

/// Reads everything; `on_progress` is told the bytes and files done since it was last called.
fn survey(estimate: &Estimate, on_progress: impl FnMut(u64, u64)) -> Answer {
    let options =
        Options { memory_bytes: estimate.memory, one_file_system: estimate.one_file_system, lengths: estimate.average };
    let mut survey = Survey::new(options, on_progress);
    let roots = distinct_roots(&estimate.paths, &mut |failure| survey.add_failure(failure));
    roots.iter().for_each(|root| survey.add_path(root));
    Answer::new(&roots, survey)
}

/// The paths to read: resolved, without those that lie below another one (they would be read twice).
fn distinct_roots(paths: &[PathBuf], on_failure: &mut dyn FnMut(Failure)) -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = Vec::new();
    for path in paths {
        match path.canonicalize() {
            Ok(root) if roots.iter().any(|other| root.starts_with(other)) => {}
            Ok(root) => {
                roots.retain(|other| !other.starts_with(&root));
                roots.push(root);
            }
            Err(error) => on_failure(Failure { path: path.clone(), error }),
        }
    }
    roots
}

fn parse_average(text: &str) -> Result<PieceLengths, String> {
    let average = size::parse(text)? as usize;
    PieceLengths::new(average / 4, average, average.saturating_mul(8))
        .ok_or_else(|| "must be a power of two from 256 to 2M".into())
}

fn parse_memory(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        bytes if bytes < MEMORY_MIN => Err(format!("must be {}M or more", MEMORY_MIN >> 20)),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{FileExt, symlink};
    use std::path::Path;

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

    fn estimate(memory: u64, paths: &[&Path]) -> Answer {
        let paths = paths.iter().map(|path| path.to_path_buf()).collect();
        let args = Estimate { paths, memory, average: PieceLengths::default(), one_file_system: false };
        survey(&args, |_, _| {})
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

        let report = estimate(MEMORY_MIN, &[&one, &two]);
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
        assert_eq!((report.one_in, report.failure_count), ((1, 1), 0));
        assert_eq!(report.needs.chunk_entries, 8);
        assert_eq!(report.needs.chunk_table_bytes, 8 * 64);
    }

    #[test]
    fn data_found_at_another_offset_is_saved_by_content_only() {
        let dir = tempfile::tempdir().unwrap();
        let data = noise(1 << 20, 3);
        fs::write(dir.path().join("plain"), &data).unwrap();
        fs::write(dir.path().join("shifted"), [b"a few bytes", &data[..]].concat()).unwrap();
        let report = estimate(MEMORY_MIN, &[dir.path()]);
        assert_eq!(report.total.blocks.saved_bytes(), 0);
        assert!(report.total.pieces.saved_bytes() > 900 << 10, "{:?}", report.total.pieces);
    }

    #[test]
    fn files_longer_than_the_buffer_are_cut_as_one_stream() {
        let dir = tempfile::tempdir().unwrap();
        let data = noise((5 << 20) + 77, 4);
        fs::write(dir.path().join("long"), &data).unwrap();
        let report = estimate(MEMORY_MIN, &[dir.path()]);
        let whole = nvfold::chunking::content_defined(&data, PieceLengths::default()).count() as u64;
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
        assert!(report.to_json()["sampling"]["is_estimate"].as_bool().unwrap());
    }

    #[test]
    fn what_cannot_be_read_is_named_and_the_rest_counted() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), noise(4096, 5)).unwrap();
        let missing = dir.path().join("missing");
        let report = estimate(MEMORY_MIN, &[&missing, dir.path()]);
        assert_eq!((report.failure_count, report.total.counts.files), (1, 1));
        assert_eq!(report.failures[0].path, missing);
        let json = report.to_json();
        assert_eq!(json["errors"]["first"][0]["path"].as_str(), missing.to_str());
    }

    #[test]
    fn paths_below_other_paths_are_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), noise(4096, 6)).unwrap();
        for order in [[dir.path(), &inner], [&inner, dir.path()], [dir.path(), dir.path()]] {
            let report = estimate(MEMORY_MIN, &order);
            assert_eq!((report.by_path.len(), report.total.counts.files), (1, 1));
        }
    }

    #[test]
    fn the_advised_device_holds_what_was_surveyed() {
        for content in [0, 1 << 20, 300 << 20, 5 << 30] {
            let device = answer::device_for(content).unwrap();
            let geometry = nvfold::media::superblock::Geometry::of(device).expect("a size mkfs takes");
            assert!(device - geometry.data_offset >= content);
        }
        assert_eq!(answer::device_for(1 << 44), None);
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
        let answer = estimate(MEMORY_MIN, &[dir.path()]);
        let device_bytes = answer.needs.device_bytes.unwrap();

        let region = pmem::Region::create(&pmem::DeviceSpec::Memory, device_bytes, &Default::default()).unwrap();
        nvfold::FileSystem::mkfs(&region, &Default::default()).unwrap();
        let device = nvfold::FileSystem::mount(region, Default::default()).unwrap();
        let new = nvfold::NewInode { kind: nvfold::FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
        for entry in fs::read_dir(dir.path()).unwrap() {
            let entry = entry.unwrap();
            let inode = device.create(nvfold::InodeNumber::ROOT, entry.file_name().as_encoded_bytes(), &new).unwrap();
            device.open(inode.ino).unwrap().write_at(0, &fs::read(entry.path()).unwrap()).unwrap();
        }
        let stats = device.stats();
        assert_eq!(stats.data_blocks, answer.needs.chunk_entries);
        assert!(stats.free_bytes > 0);
        assert!(device_bytes < 3 * stats.stored_bytes, "{device_bytes} bytes are too generous for {stats:?}");
    }
}
