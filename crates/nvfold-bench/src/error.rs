//! Errors of benchmarks: each says what was being done, and to what.
//!
//! nvfold and the system report why something failed but not what it was for, so each call adds that ([`Doing`]).

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
    /// A copy of a tree lacks entries, or has others.
    #[error("{copy} has {found} entries, and its tree has {expected}: it is no copy of it")]
    NotWhole {
        /// The copy.
        copy: String,
        /// Its entries.
        found: u64,
        /// Those of the tree.
        expected: u64,
    },
    /// A figure that cannot be, so something else was measured.
    #[error("{0}: something else was measured")]
    Impossible(String),
    /// The host has too little memory for a run.
    #[error("this run needs {needed} MiB, and {free} MiB are free for {dir}: measure less at once (--only, --entries)")]
    NoRoom {
        /// Folder of the run.
        dir: String,
        /// MiB that it takes.
        needed: u64,
        /// MiB that are free.
        free: u64,
    },
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
