//! Why going through a tree ended early, or never began. A problem with one file is none: it is in the report.

use super::Report;
use crate::errno::{EINVAL, EIO, EISDIR};
use std::io;
use std::path::PathBuf;

/// Result of going through a tree.
pub type Result<T> = std::result::Result<T, Error>;

/// Why it ended early. [`Error::errno`] gives the POSIX number.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path that the caller named cannot be used on the host.
    #[error("{doing} {}: {source}", path.display())]
    Host {
        /// The operation.
        doing: &'static str,
        /// Path on the host.
        path: PathBuf,
        /// The host's answer.
        source: io::Error,
    },
    /// A path that the caller named cannot be used in our file system.
    #[error("{doing} {} of the device: {source}", path.display())]
    FileSystem {
        /// The operation.
        doing: &'static str,
        /// Path in our file system.
        path: PathBuf,
        /// Our answer.
        source: crate::Error,
    },
    /// EINVAL: `..` in a path of ours.
    #[error("import to {}: a path on the device has no .. in it; name the place itself", path.display())]
    ParentInPath {
        /// Path in our file system.
        path: PathBuf,
    },
    /// EISDIR: one file is to be exported to a directory.
    #[error("export to {}: is a directory; name the new file", path.display())]
    IsDirectory {
        /// Path on the host.
        path: PathBuf,
    },
    /// EINTR: the callback said so.
    #[error("{doing}: stopped by the caller; what was done so far stays")]
    Stopped {
        /// The operation.
        doing: &'static str,
        /// What was done until then.
        done: Box<Report>,
    },
    /// ENOSPC: the device is full.
    #[error("{doing} {}: {source}; what was done so far stays", path.display())]
    Full {
        /// The operation.
        doing: &'static str,
        /// The file that found no space, on the host.
        path: PathBuf,
        /// Our answer.
        source: crate::Error,
        /// What was done until then.
        done: Box<Report>,
    },
}

impl Error {
    /// The POSIX error number of this failure.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Host { source, .. } => source.raw_os_error().unwrap_or(EIO),
            Error::FileSystem { source, .. } | Error::Full { source, .. } => source.errno(),
            Error::ParentInPath { .. } => EINVAL,
            Error::IsDirectory { .. } => EISDIR,
            Error::Stopped { .. } => rustix::io::Errno::INTR.raw_os_error(),
        }
    }
}
