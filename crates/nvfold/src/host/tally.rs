//! The tally of completed work: counted by several threads at once, and turned into a report at the end.

use super::{Problem, Progress, TreeError, TreeReport, TreeResult, Watch, shortened};
use parking_lot::Mutex;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of problems that are kept; further ones are only counted.
const PROBLEMS_KEPT: usize = 1000;

/// Counts and problems so far, and whether to stop.
#[derive(Default)]
pub(super) struct Tally {
    pub files: AtomicU64,
    pub directories: AtomicU64,
    pub symlinks: AtomicU64,
    pub hard_links: AtomicU64,
    pub specials: AtomicU64,
    pub bytes: AtomicU64,
    problem_count: AtomicU64,
    problems: Mutex<Vec<Problem>>,
    skipped: Mutex<Vec<Problem>>,
    stopped: AtomicBool,
    /// The first file that found no space.
    full: Mutex<Option<(PathBuf, crate::Error)>>,
}

impl Tally {
    /// Adds one to a counter.
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns true if the work must stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Reports the progress to the caller, who may stop all threads.
    pub(super) fn tell(&self, watch: &mut Watch<'_>) {
        let progress =
            Progress { bytes: self.bytes.load(Ordering::Relaxed), files: self.files.load(Ordering::Relaxed) };
        if watch(progress).is_break() {
            self.stopped.store(true, Ordering::Relaxed);
        }
    }

    /// Records an error of nvfold about a file. A full device, or limited tree, stops all threads.
    pub(super) fn failed(&self, path: &Path, error: crate::Error) {
        if matches!(error, crate::Error::NoSpace { .. } | crate::Error::OverLimit { .. }) {
            self.full.lock().get_or_insert((path.to_owned(), error));
            self.stopped.store(true, Ordering::Relaxed);
        } else {
            self.problem(path, error);
        }
    }

    /// Records a problem with a file.
    pub(super) fn problem(&self, path: &Path, problem: impl Display) {
        Tally::count(&self.problem_count);
        keep(&self.problems, path, problem);
    }

    /// Records a file that was skipped on purpose.
    pub(super) fn skip(&self, path: &Path, why: impl Display) {
        keep(&self.skipped, path, why);
    }

    /// Returns the report, or the error that ended the work early. The caller's last answer comes too late to stop
    /// anything.
    pub(super) fn finish(self, doing: &'static str, watch: &mut Watch<'_>) -> TreeResult<TreeReport> {
        let (is_stopped, full) = (self.is_stopped(), self.full.lock().take());
        if !is_stopped {
            self.tell(watch);
        }
        let done = self.into_report();
        match full {
            Some((path, source)) => Err(TreeError::Full { doing, path, source, done: Box::new(done) }),
            None if is_stopped => Err(TreeError::Stopped { doing, done: Box::new(done) }),
            None => Ok(done),
        }
    }

    fn into_report(self) -> TreeReport {
        TreeReport {
            files: self.files.into_inner(),
            directories: self.directories.into_inner(),
            symlinks: self.symlinks.into_inner(),
            hard_links: self.hard_links.into_inner(),
            specials: self.specials.into_inner(),
            bytes: self.bytes.into_inner(),
            problem_count: self.problem_count.into_inner(),
            problems: self.problems.into_inner(),
            skipped: self.skipped.into_inner(),
        }
    }
}

fn keep(list: &Mutex<Vec<Problem>>, path: &Path, problem: impl Display) {
    let mut list = list.lock();
    if list.len() < PROBLEMS_KEPT {
        list.push(Problem { path: shortened(path).into_owned(), problem: problem.to_string() });
    }
}
