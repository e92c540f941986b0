//! Errors that end the work on a tree early. A problem with a single file is not an error: it is in the report.

use super::TreeReport;
use crate::errno::{EINVAL, EIO, EISDIR};
use std::io;
use std::path::PathBuf;

/// Result of working through a tree.
pub type TreeResult<T> = std::result::Result<T, TreeError>;

/// The reason why the work ended early. [`TreeError::errno`] gives the POSIX number.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A path given by the caller cannot be used on the host.
    #[error("{doing} {}: {source}", path.display())]
    Host {
        /// The operation.
        doing: &'static str,
        /// Path on the host.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// A path given by the caller cannot be used on the device.
    #[error("{doing} {} of the device: {source}", path.display())]
    FileSystem {
        /// The operation.
        doing: &'static str,
        /// Path on the device.
        path: PathBuf,
        /// Error of nvfold.
        source: crate::Error,
    },
    /// EINVAL: there is a `..` in a path on the device.
    #[error("import to {}: a path on the device has no .. in it; name the place itself", path.display())]
    ParentInPath {
        /// Path on the device.
        path: PathBuf,
    },
    /// EISDIR: a single file cannot be exported to a directory.
    #[error("export to {}: is a directory; name the new file", path.display())]
    IsDirectory {
        /// Path on the host.
        path: PathBuf,
    },
    /// EINTR: the callback stopped the work.
    #[error("{doing}: stopped by the caller; what was done so far stays")]
    Stopped {
        /// The operation.
        doing: &'static str,
        /// Work done until then.
        done: Box<TreeReport>,
    },
    /// ENOSPC: the device is full.
    #[error("{doing} {}: {source}; what was done so far stays", path.display())]
    Full {
        /// The operation.
        doing: &'static str,
        /// Path on the host of the file that found no space.
        path: PathBuf,
        /// Error of nvfold.
        source: crate::Error,
        /// Work done until then.
        done: Box<TreeReport>,
    },
}

impl TreeError {
    /// Returns the POSIX error number of this failure.
    pub fn errno(&self) -> i32 {
        match self {
            TreeError::Host { source, .. } => source.raw_os_error().unwrap_or(EIO),
            TreeError::FileSystem { source, .. } | TreeError::Full { source, .. } => source.errno(),
            TreeError::ParentInPath { .. } => EINVAL,
            TreeError::IsDirectory { .. } => EISDIR,
            TreeError::Stopped { .. } => rustix::io::Errno::INTR.raw_os_error(),
        }
    }
}
