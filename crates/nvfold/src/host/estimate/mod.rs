//! Estimates what sharing would save on any files, and the size of a device to hold them.
//!
//! The problem: the answer is needed before there is a device. Everything must be read exactly once, nothing may
//! change, and the fingerprints of many files may not fit in memory.
//!
//! The idea: `survey` reads the files, `cut` determines the pieces that a policy makes of them and the space for
//! each, `sample` counts distinct pieces in bounded memory, and `needs` turns the counts into the sizes of tables and
//! of a device. Everything is counted within each path and across all of them.
//!
//! **One baseline.** Savings are relative to the space of the data in whole 4 KiB blocks, as on tmpfs or any file
//! system with such blocks. The space that a policy needs is the content, as stored on the device, and the chunk
//! entries and headers for it; so a policy that finds nothing has negative savings. Inodes, names and logs are left
//! out on both sides: they are almost the same for all policies, and `Needs` includes them.

mod cut;
mod needs;
mod sample;
mod survey;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

pub use needs::Needs;
pub use sample::Distinct;
pub use survey::PathCounts;

use super::files::size;
use super::walk::{problem, walk};
use super::{Problem, TreeResult, Watch};
use crate::FileKind;
use crate::chunking::{Chunker, PieceLengths};
use crate::compression::Compression;
use std::ops::ControlFlow;
use std::path::PathBuf;
use survey::EstimateSurvey;

/// Says what to survey, and how.
#[derive(Clone, Debug)]
pub struct EstimateOptions {
    /// Files and directories of the host. Symbolic links below them are counted, not followed.
    pub paths: Vec<PathBuf>,
    /// Most memory for fingerprints and hard links, in bytes; buffers of a few MiB come on top. If the fingerprints
    /// do not fit, a sample of at least 1,792 is kept.
    pub memory_bytes: u64,
    /// Lengths of the pieces that policy `deext` cuts by content ([`Chunker::lengths_of_mean`]).
    pub lengths: PieceLengths,
    /// Stays on the file system of each path.
    pub one_file_system: bool,
    /// How the pieces of policy `deext` are compressed, for an additional estimate; it takes the time of the
    /// compression.
    pub compression: Compression,
}

impl Default for EstimateOptions {
    /// Returns options with no path, 256 MiB of memory, and pieces of 16 KiB on average.
    fn default() -> EstimateOptions {
        let lengths = Chunker::default().lengths();
        let compression = Compression::Off;
        EstimateOptions { paths: Vec::new(), memory_bytes: 256 << 20, lengths, one_file_system: false, compression }
    }
}

impl EstimateOptions {
    /// Returns the total size of all files, for a progress bar only: it includes holes, and counts hard links again.
    /// Walks all of them.
    pub fn total_bytes(&self) -> u64 {
        let mut bytes = 0;
        for root in distinct_roots(&self.paths, &mut |_| {}) {
            let _ = walk(&root, self.one_file_system, &mut |found| {
                let file = found.ok().filter(|found| found.kind() == Some(FileKind::Regular));
                bytes += file.map_or(0, |file| size(&file.stat));
                ControlFlow::Continue(())
            });
        }
        bytes
    }
}

/// The result of one policy for one path, or for all paths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Savings {
    /// Bytes of the data in whole 4 KiB blocks: the baseline, which is the same for every policy.
    pub whole_block_bytes: u64,
    /// Number of all blocks, tails or pieces.
    pub pieces: u64,
    /// Pieces that are stored, and the bytes that the policy needs for them: content, chunk entries and headers.
    pub distinct: Distinct,
}

impl Savings {
    /// Returns the savings. `bytes_max` is the space that the policy needs if nothing is shared.
    fn new(whole_block_bytes: u64, pieces: u64, bytes_max: u64, distinct: Distinct) -> Savings {
        // An estimate may be slightly higher than the total; the true value cannot.
        let distinct =
            Distinct { pieces: distinct.pieces.min(pieces), bytes: distinct.bytes.min(bytes_max), ..distinct };
        Savings { whole_block_bytes, pieces, distinct }
    }

    /// Returns the bytes saved; negative if sharing saves less than the metadata costs.
    pub fn saved_bytes(&self) -> i64 {
        self.whole_block_bytes as i64 - self.distinct.bytes as i64
    }

    /// Returns the savings as a percentage of the baseline, at most 100.
    pub fn saved_percent(&self) -> f64 {
        if self.whole_block_bytes == 0 {
            return 0.0;
        }
        100.0 * self.saved_bytes() as f64 / self.whole_block_bytes as f64
    }
}

/// Counts and savings of one path, or of all paths.
#[derive(Clone, Debug)]
pub struct PathEstimate {
    /// Counts of the files.
    pub counts: PathCounts,
    /// Policy `off`: nothing is shared, zeros are stored, short tails are packed.
    pub off: Savings,
    /// Policy `inline`, and eventually also `denova` and `nv-dedup`: equal 4 KiB blocks and equal tails are shared, and
    /// zeros are not stored.
    pub inline: Savings,
    /// Policy `deext`: equal pieces are shared, cut by content where the data is compressible.
    pub deext: Savings,
    /// Policy `deext` with compression of compressible pieces, if requested.
    pub compressed: Option<Savings>,
}

impl PathEstimate {
    fn new(counts: PathCounts, blocks: Distinct, pieces: Distinct, compressed: Option<Distinct>) -> PathEstimate {
        let baseline = counts.whole_block_bytes();
        let all = Distinct { pieces: counts.blocks, bytes: counts.off_bytes(), bytes_error: 0 };
        PathEstimate {
            off: Savings::new(baseline, counts.blocks, all.bytes, all),
            inline: Savings::new(baseline, counts.blocks, counts.inline_bytes_max(), blocks),
            deext: Savings::new(baseline, counts.pieces, counts.deext_bytes_max(), pieces),
            compressed: compressed
                .map(|pieces| Savings::new(baseline, counts.pieces, counts.deext_bytes_max(), pieces)),
            counts,
        }
    }

    /// Returns each policy with its name, in the order of the costs for a writer, cheapest first.
    pub fn policies(&self) -> Vec<(&'static str, &Savings)> {
        let compressed = self.compressed.iter().map(|savings| ("deext, compressed", savings));
        [("off", &self.off), ("inline", &self.inline), ("deext", &self.deext)].into_iter().chain(compressed).collect()
    }

    /// Returns the policy that would save most; of equal ones, the one that is cheaper for a writer.
    pub fn best(&self) -> (&'static str, &Savings) {
        let better = |best: (&'static str, &Savings), next: &(&'static str, &Savings)| {
            next.1.saved_bytes() > best.1.saved_bytes()
        };
        let policies = self.policies();
        policies[1..].iter().fold(policies[0], |best, next| if better(best, next) { *next } else { best })
    }
}

/// The result of a survey, and the needs of a device for the files.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// Each path by itself: resolved, without paths below another one.
    pub by_path: Vec<(PathBuf, PathEstimate)>,
    /// All paths together.
    pub total: PathEstimate,
    /// One fingerprint in this many was followed, for `inline` and for `deext`. (1, 1) means exact counts.
    pub one_in: (u64, u64),
    /// Needs of a device for the files.
    pub needs: Needs,
    /// The first 100 files and directories that could not be read.
    pub problems: Vec<Problem>,
    /// Number of all files and directories that could not be read.
    pub problem_count: u64,
    /// Hard-linked inodes whose names were counted as separate files, because memory was short.
    pub links_forgotten: u64,
}

impl Estimate {
    fn new(paths: &[PathBuf], survey: EstimateSurvey<'_>) -> Estimate {
        let mut all = PathCounts::default();
        let mut by_path = Vec::new();
        for (group, (path, counts)) in paths.iter().zip(&survey.by_path).enumerate() {
            all.add(counts);
            let group = group as u32;
            let compressed = survey.compressed.as_ref().map(|pieces| pieces.within(group));
            let part =
                PathEstimate::new(counts.clone(), survey.blocks.within(group), survey.pieces.within(group), compressed);
            by_path.push((path.clone(), part));
        }
        let compressed = survey.compressed.as_ref().map(|pieces| pieces.overall());
        let total = PathEstimate::new(all, survey.blocks.overall(), survey.pieces.overall(), compressed);
        Estimate {
            by_path,
            one_in: (survey.blocks.one_in(), survey.pieces.one_in()),
            needs: Needs::new(&total),
            total,
            problems: survey.problems,
            problem_count: survey.problem_count,
            links_forgotten: survey.links_forgotten,
        }
    }

    /// Returns the bytes that `inline` and `deext` save only because the same data is in several paths.
    pub fn saved_across(&self) -> (u64, u64) {
        let across = |savings: fn(&PathEstimate) -> &Savings| {
            let alone: i64 = self.by_path.iter().map(|(_, part)| savings(part).saved_bytes()).sum();
            (savings(&self.total).saved_bytes() - alone).max(0) as u64
        };
        (across(|part| &part.inline), across(|part| &part.deext))
    }
}

/// Reads files and directories of the host once, without changing anything, and estimates what sharing would save.
///
/// A file that cannot be read is a problem in the result. The call fails if `progress` stops it. A single thread does
/// all the work, and calls `progress` after each MiB and each file.
pub fn estimate(options: &EstimateOptions, progress: &mut Watch<'_>) -> TreeResult<Estimate> {
    let mut survey = EstimateSurvey::new(options, progress);
    let roots = distinct_roots(&options.paths, &mut |problem| survey.add_problem(problem));
    survey.read(&roots)?;
    Ok(Estimate::new(&roots, survey))
}

/// Returns the paths to read: resolved, without paths below another one, which would be read twice.
fn distinct_roots(paths: &[PathBuf], on_problem: &mut dyn FnMut(Problem)) -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = Vec::new();
    for path in paths {
        match path.canonicalize() {
            Ok(root) if roots.iter().any(|other| root.starts_with(other)) => {}
            Ok(root) => {
                roots.retain(|other| !other.starts_with(&root));
                roots.push(root);
            }
            Err(error) => on_problem(problem(path.clone(), &error)),
        }
    }
    roots
}
