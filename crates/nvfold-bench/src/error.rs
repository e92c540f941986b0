//! Errors of benchmarks: each says what was being done, and to what.
//!
//! nvfold and the system report why something failed but not what it was for, so each call adds that ([`Doing`]).

use crate::rivals::RivalError;

/// The reason why a benchmark could not run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// nvfold refused.
    #[error("{doing}: {source}")]
    Nvfold {
        /// What was being done.
        doing: String,
        /// Why not.
        source: nvfold::Error,
    },
    /// The system refused.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The bytes read back differ from those written, so none of its figures is valid.
    #[error("{0} gave back other bytes than were written")]
    Wrong(String),
    /// The measured file is not on the file system that its row names.
    #[error("{path} is on {found}, not on {expected}: the figure would be of something else")]
    Elsewhere {
        /// File or directory.
        path: String,
        /// Where it must be.
        expected: String,
        /// Where it is.
        found: String,
    },
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

/// Result of a benchmark function.
pub type Result<T> = std::result::Result<T, BenchError>;

/// Adds to a failure what was being done.
pub trait Doing<T> {
    /// Adds what was being done to the error.
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| BenchError::Io { doing: what.into(), source })
    }
}

impl<T> Doing<T> for nvfold::Result<T> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| BenchError::Nvfold { doing: what.into(), source })
    }
}
