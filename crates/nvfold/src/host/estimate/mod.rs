//! What would sharing save on files anywhere, and what device would hold them?
//!
//! The problem: to know it before there is a device. Everything must be read once, nothing may change, and fingerprints
//! of many files may be more than fits in memory.
//!
//! The idea: `survey` reads and cuts, `sample` counts distinct pieces in bounded memory, and `needs` turns the counts
//! into the sizes of tables and of a device. Pieces are counted both by 4 KiB blocks (what nvfold shares) and by
//! content, within each path and across all of them.

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
use crate::chunking::PieceLengths;
use crate::media::BLOCK_BYTES;
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
    /// How content-defined pieces are cut.
    pub lengths: PieceLengths,
    /// Stay on the file system of each path.
    pub one_file_system: bool,
}

impl Default for EstimateOptions {
    /// No path, 256 MiB of memory.
    fn default() -> EstimateOptions {
        let lengths = PieceLengths::default();
        EstimateOptions { paths: Vec::new(), memory_bytes: 256 << 20, lengths, one_file_system: false }
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

/// What one way of cutting finds in one path or in all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Savings {
    /// Pieces there are.
    pub pieces: u64,
    /// Bytes they take when everything is stored.
    pub bytes: u64,
    /// Pieces left when equal ones are shared.
    pub distinct: Distinct,
}

impl Savings {
    fn new(pieces: u64, bytes: u64, distinct: Distinct) -> Savings {
        // An estimate may come out a little above what is there; the truth cannot.
        let distinct = Distinct { pieces: distinct.pieces.min(pieces), bytes: distinct.bytes.min(bytes), ..distinct };
        Savings { pieces, bytes, distinct }
    }

    /// Bytes that need not be stored.
    pub fn saved_bytes(&self) -> u64 {
        self.bytes - self.distinct.bytes
    }

    /// Saved part of all bytes, 0 to 100.
    pub fn saved_percent(&self) -> f64 {
        if self.bytes == 0 { 0.0 } else { 100.0 * self.saved_bytes() as f64 / self.bytes as f64 }
    }
}

/// Counts and savings of one path, or of all.
#[derive(Clone, Debug)]
pub struct Part {
    /// What is there.
    pub counts: PathCounts,
    /// By 4 KiB blocks.
    pub blocks: Savings,
    /// By content-defined pieces.
    pub pieces: Savings,
}

impl Part {
    fn new(counts: PathCounts, blocks: Distinct, pieces: Distinct) -> Part {
        Part {
            blocks: Savings::new(counts.blocks, counts.blocks * BLOCK_BYTES, blocks),
            pieces: Savings::new(counts.pieces, counts.data_bytes, pieces),
            counts,
        }
    }
}

/// What a survey found, and what a device for it needs.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// The paths, each alone: resolved, without those that lie below another one.
    pub by_path: Vec<(PathBuf, Part)>,
    /// All paths together.
    pub total: Part,
    /// One fingerprint in this many was followed: 4 KiB blocks, content-defined pieces. (1, 1): the counts are exact.
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
            let part = Part::new(counts.clone(), survey.blocks.within(group), survey.pieces.within(group));
            by_path.push((path.clone(), part));
        }
        let total = Part::new(all, survey.blocks.overall(), survey.pieces.overall());
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

    /// Bytes saved only because a 4 KiB block, or a content-defined piece, of one path is also in another.
    pub fn saved_across(&self) -> (u64, u64) {
        let alone = |savings: fn(&Part) -> &Savings| -> u64 {
            self.by_path.iter().map(|(_, part)| savings(part).saved_bytes()).sum()
        };
        (
            self.total.blocks.saved_bytes().saturating_sub(alone(|part| &part.blocks)),
            self.total.pieces.saved_bytes().saturating_sub(alone(|part| &part.pieces)),
        )
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
