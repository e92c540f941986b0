//! Errors of the laboratory: those of the benchmarks, and what only an evaluation can find wrong.

use crate::rivals::RivalError;
use nvfold_bench::BenchError;

/// The reason why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// nvfold or the system refused, or gave back other bytes.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// Data that should be shared is not, or the reverse.
    #[error("{system} has shared {shared} bytes, not {expected}: the figure would be of something else")]
    Unshared {
        /// Which system.
        system: String,
        /// Bytes shared.
        shared: u64,
        /// Bytes to share.
        expected: u64,
    },
    /// What was measured cannot be, so it is no result.
    #[error(
        "{what}: {measured} was measured, which cannot be: {why}; measure again, and if it stays, the benchmark is wrong"
    )]
    Impossible {
        /// What was measured.
        what: String,
        /// The value.
        measured: String,
        /// Why it cannot be, with the bound.
        why: String,
    },
    /// A figure shows a value of its paper, and does not say how it is judged.
    #[error("{figure}: `{row}` has a value of the paper that is neither an aim nor said to be not comparable")]
    Unjudged {
        /// Which figure.
        figure: String,
        /// Its row.
        row: String,
    },
    /// The counts cannot be right.
    #[error("the counts are wrong: {0}")]
    Miscounted(String),
    /// A device reported that it is full while it was not.
    #[error("{times} writes found no space although what lives fits: the device is at {percent} % live")]
    NoRoom {
        /// Writes that failed.
        times: u64,
        /// Share of the usable space that lives.
        percent: u64,
    },
    /// fsck found something on a measured device.
    #[error("fsck finds {count} faults on the device that was measured; the first: {first}")]
    Unsound {
        /// How many.
        count: usize,
        /// What the first one is.
        first: String,
    },
    /// Callgrind failed.
    #[error("callgrind: {0}; --no-instructions leaves it out")]
    Callgrind(String),
    /// The metadata of a competitor.
    #[error(transparent)]
    Rival(#[from] RivalError),
    /// A file of an earlier run cannot be used.
    #[error("{file}: {why}; remove it, or make that figure again")]
    Stale {
        /// Which.
        file: String,
        /// Why not.
        why: String,
    },
    /// The commit of this program is unknown, so a run cannot be resumed.
    #[error("resume a run: the commit of this program is not known: give it in NVFOLD_COMMIT")]
    NoCommit,
    /// The plot could not be drawn.
    #[error("draw the plot: {0}")]
    Plot(String),
}

/// Result of a function of the laboratory.
pub type Result<T> = std::result::Result<T, LabError>;

impl LabError {
    /// Returns the error for what gave back other bytes, or another answer, than it must.
    pub fn wrong(what: String) -> LabError {
        BenchError::Wrong(what).into()
    }
}

/// Adds to a failure what was being done.
pub(crate) trait Doing<T> {
    /// Adds what was being done to the error.
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T, R: nvfold_bench::Doing<T>> Doing<T> for R {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        Ok(nvfold_bench::Doing::doing(self, what)?)
    }
}
