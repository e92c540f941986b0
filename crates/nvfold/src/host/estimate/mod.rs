//! What would sharing save on files anywhere, and what device would hold them?
//!
//! The problem: to know it before there is a device. Everything must be read once, nothing may change, and fingerprints
//! of many files may be more than fits in memory.
//!
//! The idea: `survey` reads the files, `cut` says which pieces a policy makes of them and what it takes for each, `sample`
//! counts distinct pieces in bounded memory, and `needs` turns the counts into the sizes of tables and of a device. All of
//! it is counted within each path and across all of them.
//!
//! **One baseline.** What a policy saves is counted from what the data takes in whole 4 KiB blocks, as on tmpfs or any
//! file system of such blocks. What it takes is content, as it lies on the device, and the chunk entries and headers
//! that the policy needs for it; so a policy that finds nothing saves less than nothing. Inodes, names and logs are left
//! out on both sides: they are much the same for all policies, and `Needs` has them.

mod cut;
mod needs;
mod sample;
mod survey;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

pub use needs::Needs;
pub use sample::Distinct;
pub use survey::PathCounts;

use super::walk::{problem, walk};
use super::{Problem, Result, Watch};
use crate::chunking::{Chunker, PieceLengths};
use crate::compression::Compression;
use std::ops::ControlFlow;
use std::path::PathBuf;
use survey::Survey;

/// What to survey, and how.
#[derive(Clone, Debug)]
pub struct EstimateOptions {
    /// Files and directories of the host. Symbolic links below them are counted, not followed.
    pub paths: Vec<PathBuf>,
    /// Memory for fingerprints and hard links at most, bytes; buffers of a few MiB come on top. When fingerprints do
    /// not fit, a sample of them is kept, of 1,792 at least.
    pub memory_bytes: u64,
    /// Lengths of the pieces that policy `deext` cuts by content ([`Chunker::lengths_of_mean`]).
    pub lengths: PieceLengths,
    /// Stay on the file system of each path.
    pub one_file_system: bool,
    /// How the pieces of policy `deext` are compressed, for a figure more; it takes as long as that.
    pub compression: Compression,
}

impl Default for EstimateOptions {
    /// No path, 256 MiB of memory, pieces of 16 KiB on average.
    fn default() -> EstimateOptions {
        let lengths = Chunker::default().lengths();
        let compression = Compression::Off;
        EstimateOptions { paths: Vec::new(), memory_bytes: 256 << 20, lengths, one_file_system: false, compression }
    }
}

impl EstimateOptions {
    /// Sizes of all files, for a progress bar only: hard links and holes count here. Goes through all of them.
    pub fn total_bytes(&self) -> u64 {
        let mut bytes = 0;
        for root in distinct_roots(&self.paths, &mut |_| {}) {
            let _ = walk(&root, self.one_file_system, &mut |found| {
                let file = found.ok().filter(|(_, metadata)| metadata.is_file());
                bytes += file.map_or(0, |(_, metadata)| metadata.len());
                ControlFlow::Continue(())
            });
        }
        bytes
    }
}

/// What one policy would make of one path or of all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Savings {
    /// What the data takes in whole 4 KiB blocks, bytes: the baseline, the same for every policy.
    pub whole_block_bytes: u64,
    /// Blocks, tails or pieces there are.
    pub pieces: u64,
    /// Those that are stored, and what the policy takes for them: content, chunk entries and headers.
    pub distinct: Distinct,
}

impl Savings {
    /// `bytes_max`: what the policy takes if nothing is shared.
    fn new(whole_block_bytes: u64, pieces: u64, bytes_max: u64, distinct: Distinct) -> Savings {
        // An estimate may come out a little above what is there; the truth cannot.
        let distinct =
            Distinct { pieces: distinct.pieces.min(pieces), bytes: distinct.bytes.min(bytes_max), ..distinct };
        Savings { whole_block_bytes, pieces, distinct }
    }

    /// Bytes saved; fewer than none if what is shared does not pay for the metadata.
    pub fn saved_bytes(&self) -> i64 {
        self.whole_block_bytes as i64 - self.distinct.bytes as i64
    }

    /// Saved part of the baseline, 100 at most.
    pub fn saved_percent(&self) -> f64 {
        if self.whole_block_bytes == 0 {
            return 0.0;
        }
        100.0 * self.saved_bytes() as f64 / self.whole_block_bytes as f64
    }
}

/// Counts and savings of one path, or of all.
#[derive(Clone, Debug)]
pub struct Part {
    /// What is there.
    pub counts: PathCounts,
    /// Policy `off`: nothing is shared, short tails are packed.
    pub off: Savings,
    /// Policy `inline`, and in the end `denova` and `nv-dedup`: equal 4 KiB blocks and equal tails are shared.
    pub inline: Savings,
    /// Policy `deext`: equal pieces are shared, cut by content where the data is compressible.
    pub deext: Savings,
    /// The same, and what is compressible is compressed: if that was asked for.
    pub compressed: Option<Savings>,
}

impl Part {
    fn new(counts: PathCounts, blocks: Distinct, pieces: Distinct, compressed: Option<Distinct>) -> Part {
        let baseline = counts.whole_block_bytes();
        let all = Distinct { pieces: counts.blocks, bytes: counts.off_bytes(), bytes_error: 0 };
        Part {
            off: Savings::new(baseline, counts.blocks, all.bytes, all),
            inline: Savings::new(baseline, counts.blocks, counts.inline_bytes_max(), blocks),
            deext: Savings::new(baseline, counts.pieces, counts.deext_bytes_max(), pieces),
            compressed: compressed
                .map(|pieces| Savings::new(baseline, counts.pieces, counts.deext_bytes_max(), pieces)),
            counts,
        }
    }

    /// Each policy by its name, the one that costs a writer least first.
    pub fn policies(&self) -> Vec<(&'static str, &Savings)> {
        let compressed = self.compressed.iter().map(|savings| ("deext, compressed", savings));
        [("off", &self.off), ("inline", &self.inline), ("deext", &self.deext)].into_iter().chain(compressed).collect()
    }

    /// The policy that would save most; of equal ones the one that costs a writer least.
    pub fn best(&self) -> (&'static str, &Savings) {
        let better = |best: (&'static str, &Savings), next: &(&'static str, &Savings)| {
            next.1.saved_bytes() > best.1.saved_bytes()
        };
        let policies = self.policies();
        policies[1..].iter().fold(policies[0], |best, next| if better(best, next) { *next } else { best })
    }
}

/// What a survey found, and what a device for it needs.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// The paths, each alone: resolved, without those that lie below another one.
    pub by_path: Vec<(PathBuf, Part)>,
    /// All paths together.
    pub total: Part,
    /// One fingerprint in this many was followed: for `inline`, for `deext`. (1, 1): the counts are exact.
    pub one_in: (u64, u64),
    /// What a device needs.
    pub needs: Needs,
    /// The first 100 files and directories that could not be read.
    pub problems: Vec<Problem>,
    /// All of them.
    pub problem_count: u64,
    /// Hard-linked inodes that were counted once a name for want of memory.
    pub links_forgotten: u64,
}

impl Estimate {
    fn new(paths: &[PathBuf], survey: Survey<'_>) -> Estimate {
        let mut all = PathCounts::default();
        let mut by_path = Vec::new();
        for (group, (path, counts)) in paths.iter().zip(&survey.by_path).enumerate() {
            all.add(counts);
            let group = group as u32;
            let compressed = survey.compressed.as_ref().map(|pieces| pieces.within(group));
            let part = Part::new(counts.clone(), survey.blocks.within(group), survey.pieces.within(group), compressed);
            by_path.push((path.clone(), part));
        }
        let compressed = survey.compressed.as_ref().map(|pieces| pieces.overall());
        let total = Part::new(all, survey.blocks.overall(), survey.pieces.overall(), compressed);
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

    /// Bytes that `inline` and `deext` save only because something in one path is also in another.
    pub fn saved_across(&self) -> (u64, u64) {
        let across = |savings: fn(&Part) -> &Savings| {
            let alone: i64 = self.by_path.iter().map(|(_, part)| savings(part).saved_bytes()).sum();
            (savings(&self.total).saved_bytes() - alone).max(0) as u64
        };
        (across(|part| &part.inline), across(|part| &part.deext))
    }
}

/// Reads files and directories of the host once, changes nothing, and tells what sharing would save.
///
/// What cannot be read is a problem in the result. Fails when `progress` says so. It is told after each MiB and each
/// file here, for one thread does all.
pub fn estimate(options: &EstimateOptions, progress: &mut Watch<'_>) -> Result<Estimate> {
    let mut survey = Survey::new(options, progress);
    let roots = distinct_roots(&options.paths, &mut |problem| survey.add_problem(problem));
    survey.read(&roots)?;
    Ok(Estimate::new(&roots, survey))
}

/// The paths to read: resolved, without those that lie below another one (they would be read twice).
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
