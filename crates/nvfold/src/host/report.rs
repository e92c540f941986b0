//! What a caller is told: how far it is, and what came of it.

use std::ops::ControlFlow;
use std::path::PathBuf;

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of file content copied, compared or surveyed so far.
    pub bytes: u64,
    /// Regular files done so far.
    pub files: u64,
}

/// Called with what is done so far, on the thread of the caller: once before anything is done, about ten times a second
/// meanwhile, and once when all is done. `Break` stops the work with [`Error::Stopped`](super::Error::Stopped): each
/// thread finishes its piece of a file (1 MiB), and what was done stays. The answer to the last call is ignored.
pub type Watch<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// Something about one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path on the host, or what stands for one where there is none.
    pub path: PathBuf,
    /// What is wrong with it, or why it was left out: a part of a sentence.
    pub problem: String,
}

/// What came of going through a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Regular files, each once however many names it has.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Fifos and device nodes.
    pub specials: u64,
    /// Bytes of file content that were copied or compared. Holes are not copied.
    pub bytes: u64,
    /// Problems with single files; differences, where trees are compared.
    pub problem_count: u64,
    /// The first 1,000 of them.
    pub problems: Vec<Problem>,
    /// What was left out on purpose, the first 1,000: sockets, other file systems, the device itself.
    pub skipped: Vec<Problem>,
}
