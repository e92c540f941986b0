//! Problems with single files during work on many: each is recorded, the work continues, and the end reports them.

use crate::failure::{Failure, Outcome, eprint_line, without_number};
use crate::mounts;
use crate::stop::Stop;
use crate::text::{counted, escaped};
use nvfold::host::shortened;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::path::Path;

/// How many problems are kept in full. Further ones are only counted.
const PROBLEMS_KEPT: usize = 1000;

/// A problem with one file.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Problem {
    pub path: String,
    /// The bytes of the path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    pub problem: String,
}

impl Problem {
    /// Makes a problem with the file at `path`.
    pub(crate) fn of(path: &Path, problem: impl Display) -> Problem {
        let path = &*shortened(path);
        Problem { path: mounts::show(path), path_hex: mounts::hex(path), problem: problem.to_string() }
    }
}

/// Prints problems on stderr; `count` is the number of all problems, of which these are the first.
pub(crate) fn tell(problems: &[Problem], count: u64) {
    for problem in problems {
        eprint_line(&format!("nvfold: {}: {}", escaped(&problem.path), escaped(&without_number(&problem.problem))));
    }
    let unlisted = count - problems.len() as u64;
    if unlisted > 0 {
        eprint_line(&format!("nvfold: {} not listed here", counted(unlisted, "more problem is", "more problems are")));
    }
}

/// The problems recorded so far, and whether to stop.
#[derive(Default)]
pub(crate) struct Problems {
    kept: RefCell<Vec<Problem>>,
    count: Cell<u64>,
    vanished: Cell<u64>,
    stop: Stop,
    /// The failure that ended the work, if it was not a signal.
    reason: RefCell<Option<Failure>>,
}

impl Problems {
    /// Makes an empty list; signals stop the work.
    pub(crate) fn until_signal() -> Outcome<Problems> {
        Ok(Problems { stop: Stop::on_signals()?, ..Problems::default() })
    }

    /// Records a problem with a file.
    pub(crate) fn note(&self, path: &Path, problem: impl Display) {
        self.count.update(|count| count + 1);
        let mut kept = self.kept.borrow_mut();
        if kept.len() < PROBLEMS_KEPT {
            kept.push(Problem::of(path, problem));
        }
    }

    /// Counts a file that disappeared before its turn came. That is no problem: it was removed on purpose.
    pub(crate) fn note_vanished(&self) {
        self.vanished.update(|vanished| vanished + 1);
    }

    /// Returns how many files disappeared.
    pub(crate) fn vanished(&self) -> u64 {
        self.vanished.get()
    }

    /// Ends the work. If it is called again, the first reason is reported.
    pub(crate) fn end(&self, reason: Failure) {
        self.reason.borrow_mut().get_or_insert(reason);
    }

    /// Returns true if the work must stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_asked() || self.reason.borrow().is_some()
    }

    /// Returns why `what` ended early, if it did.
    pub(crate) fn stop_reason(&self, what: &str) -> Option<Failure> {
        self.reason.take().or_else(|| self.stop.reason(what))
    }

    /// Prints the problems on stderr, and returns their number and the kept ones for a report.
    pub(crate) fn told(&self) -> (u64, Vec<Problem>) {
        let (count, kept) = (self.count.get(), self.kept.borrow().clone());
        tell(&kept, count);
        (count, kept)
    }
}
