//! Code shared by `import`, `export` and `verify`: watching the library's work, and reporting its results.

use crate::failure::{Failure, Outcome, eprint_line};
use crate::mounts;
use crate::problems::{self, Problem};
use crate::progress::Progress;
use crate::size;
use crate::stop::Stop;
use crate::text::{counted, escaped};
use nvfold::host;
use serde::Serialize;

/// Parses a number of threads.
pub(super) fn threads(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|threads| (1..=256).contains(threads))
        .ok_or_else(|| "must be a number from 1 to 256".to_owned())
}

/// Runs `work` in the library, shows its progress, and stops it if a signal asks for that. `note` describes the
/// progress after so many files.
pub(super) fn watched(
    mut progress: Progress,
    stop: &Stop,
    note: impl Fn(u64) -> String,
    work: impl FnOnce(&mut host::Watch<'_>) -> host::TreeResult<host::TreeReport>,
) -> host::TreeResult<host::TreeReport> {
    let mut last = None;
    let done = work(&mut |so_far| {
        last = Some(so_far);
        progress.update(so_far.bytes, || note(so_far.files));
        stop.flow()
    });
    if let Some(host::Progress { bytes, files }) = last {
        progress.finish(bytes, || note(files));
    }
    done
}

/// Counts for a report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Counts {
    pub files: u64,
    pub directories: u64,
    pub symlinks: u64,
    pub hard_links: u64,
    pub specials: u64,
    pub bytes: u64,
    pub problem_count: u64,
    pub problems: Vec<Problem>,
    /// Files left out on purpose.
    pub skipped: Vec<Problem>,
}

impl Counts {
    fn of(report: host::TreeReport) -> Counts {
        let problem = |of: host::Problem| Problem::of(&of.path, of.problem);
        Counts {
            files: report.files,
            directories: report.directories,
            symlinks: report.symlinks,
            hard_links: report.hard_links,
            specials: report.specials,
            bytes: report.bytes,
            problem_count: report.problem_count,
            problems: report.problems.into_iter().map(problem).collect(),
            skipped: report.skipped.into_iter().map(problem).collect(),
        }
    }

    /// Prints on stderr what was left out and what failed.
    fn tell_problems(&self) {
        for skipped in &self.skipped {
            eprint_line(&format!("nvfold: {}: left out: {}", escaped(&skipped.path), skipped.problem));
        }
        problems::tell(&self.problems, self.problem_count);
    }

    /// Formats the counts: `12 files, 3 directories, ...`, without zeros except for files.
    pub(super) fn words(&self) -> String {
        let others = [
            (self.directories, "directory", "directories"),
            (self.symlinks, "symlink", "symlinks"),
            (self.hard_links, "hard link", "hard links"),
            (self.specials, "special file", "special files"),
        ];
        let others = others.iter().filter(|(count, ..)| *count > 0);
        let others = others.map(|(count, one, many)| format!(", {}", counted(*count, one, many)));
        let files = counted(self.files, "file", "files");
        format!("{files} ({}){}", size::show(self.bytes), others.collect::<String>())
    }
}

/// Ends `command` on `device`: prints problems on stderr, also if the work ended early.
pub(super) fn finish(
    command: &str,
    device: &str,
    done: host::TreeResult<host::TreeReport>,
    stop: &Stop,
) -> Outcome<Counts> {
    let (report, reason) = match done {
        Ok(report) => (report, None),
        Err(host::TreeError::Full { path, source, done, .. }) => (*done, Some(Failure::of(path.display(), source))),
        Err(host::TreeError::Stopped { done, .. }) => (*done, None),
        Err(error) => return Err(failure_before_start(device, error)),
    };
    let counts = Counts::of(report);
    counts.tell_problems();
    match reason.or_else(|| stop.reason(command)) {
        Some(reason) => Err(reason),
        None => Ok(counts),
    }
}

/// Makes the failure for work that never began.
fn failure_before_start(device: &str, error: host::TreeError) -> Failure {
    match error {
        host::TreeError::Host { path, source, .. } => Failure::of(mounts::show(&path), source),
        host::TreeError::FileSystem { path, source, .. } => {
            Failure::of(format!("{device}: {}", mounts::show(&path)), source)
        }
        host::TreeError::ParentInPath { path } => {
            Failure::usage(mounts::show(&path), "a path on the device has no .. in it")
        }
        host::TreeError::IsDirectory { path } => Failure::new(mounts::show(&path), "is a directory; name the new file"),
        error => Failure::of(device, error),
    }
}
