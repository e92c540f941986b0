//! Progress and results that a caller gets.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The amount of work done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of file content copied, compared or surveyed so far.
    pub bytes: u64,
    /// Regular files done so far.
    pub files: u64,
}

/// Called with the progress, on the thread of the caller: once before the work begins, about ten times a second while
/// it runs, and once at the end. `Break` stops the work with [`TreeError::Stopped`](super::TreeError::Stopped): each thread
/// finishes its present piece of a file (1 MiB), and completed work stays. The answer to the last call is ignored.
pub type Watch<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// Longest path of a problem, in bytes: Linux's PATH_MAX.
const PATH_BYTES_MAX: usize = 4096;

/// Returns a path as problems have it: one of more than 4096 bytes is given by its two ends, with `...` between. The
/// tree of a device may be so deep that a path takes megabytes, and a report has up to 1,000 of them.
pub fn shortened(path: &Path) -> Cow<'_, Path> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() <= PATH_BYTES_MAX {
        return Cow::Borrowed(path);
    }
    let kept = PATH_BYTES_MAX / 2 - 2;
    let ends = [&bytes[..kept], b"...", &bytes[bytes.len() - kept..]].concat();
    Cow::Owned(PathBuf::from(OsStr::from_bytes(&ends)))
}

/// A problem with one file, or the reason why it was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path on the host, or a substitute for a file that has no path there; [`shortened`].
    pub path: PathBuf,
    /// Description of the problem, or why the file was skipped: part of a sentence.
    pub problem: String,
}

/// The result of working through a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeReport {
    /// Regular files; a file with several names counts once.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Additional names of files.
    pub hard_links: u64,
    /// Fifos and device nodes.
    pub specials: u64,
    /// Bytes of file content that were copied or compared. Holes are not copied.
    pub bytes: u64,
    /// Number of problems with single files; when trees are compared, also of differences.
    pub problem_count: u64,
    /// The first 1,000 problems.
    pub problems: Vec<Problem>,
    /// The first 1,000 files that were skipped on purpose: sockets, other file systems, the device itself.
    pub skipped: Vec<Problem>,
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn only_paths_beyond_the_maximum_length_are_shortened_in_reports() {
        let path = |bytes: usize| PathBuf::from("a".repeat(bytes - 1) + "z");
        assert_eq!(shortened(&path(4096)), path(4096));
        let short = shortened(&path(100_000)).into_owned();
        assert!(short.as_os_str().len() <= 4096 && short.to_string_lossy().contains("a...a"));
        assert!(short.as_os_str().as_bytes().ends_with(b"az"));
    }
}
