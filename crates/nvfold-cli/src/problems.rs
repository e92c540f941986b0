//! What goes wrong with single files while many are gone through: it is noted, the rest goes on, and the end tells it.

use crate::failure::{Failure, Outcome, eprint_line, without_number};
use crate::mounts;
use crate::stop::Stop;
use crate::text::{counted, escaped};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::path::Path;

/// Problems that are kept word for word; more are only counted.
const PROBLEMS_KEPT: usize = 1000;

/// What went wrong with one file.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    pub path: String,
    /// Bytes of the path in hexadecimal, where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    pub problem: String,
}

impl Problem {
    /// Makes a problem with the file at `path`.
    pub fn of(path: &Path, problem: impl Display) -> Problem {
        Problem { path: mounts::show(path), path_hex: mounts::hex(path), problem: problem.to_string() }
    }
}

/// Says problems on stderr, the first of `count`.
pub fn tell(problems: &[Problem], count: u64) {
    for problem in problems {
        eprint_line(&format!("nvfold: {}: {}", escaped(&problem.path), escaped(&without_number(&problem.problem))));
    }
    let untold = count - problems.len() as u64;
    if untold > 0 {
        eprint_line(&format!("nvfold: {} not listed here", counted(untold, "more problem is", "more problems are")));
    }
}

/// Problems noted so far, and whether to stop.
#[derive(Default)]
pub struct Problems {
    kept: RefCell<Vec<Problem>>,
    count: Cell<u64>,
    vanished: Cell<u64>,
    stop: Stop,
    /// What ended it from within.
    reason: RefCell<Option<Failure>>,
}

impl Problems {
    /// Makes an empty list; SIGINT and SIGTERM stop the work.
    pub fn until_signal() -> Outcome<Problems> {
        Ok(Problems { stop: Stop::on_signals()?, ..Problems::default() })
    }

    /// Notes a problem with a file.
    pub fn note(&self, path: &Path, problem: impl Display) {
        self.count.update(|count| count + 1);
        let mut kept = self.kept.borrow_mut();
        if kept.len() < PROBLEMS_KEPT {
            kept.push(Problem::of(path, problem));
        }
    }

    /// Notes that a file went away before its turn came. That is no problem: it was removed on purpose.
    pub fn note_vanished(&self) {
        self.vanished.update(|vanished| vanished + 1);
    }

    /// How many files went away.
    pub fn vanished(&self) -> u64 {
        self.vanished.get()
    }

    /// Ends the work; the first reason given is told.
    pub fn end(&self, reason: Failure) {
        self.reason.borrow_mut().get_or_insert(reason);
    }

    /// Tells whether to stop now.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_asked() || self.reason.borrow().is_some()
    }

    /// Why `what` ended early, if it did.
    pub fn stop_reason(&self, what: &str) -> Option<Failure> {
        self.reason.take().or_else(|| self.stop.reason(what))
    }

    /// Says them on stderr, and gives them for a report, with how many there were.
    pub fn told(&self) -> (u64, Vec<Problem>) {
        let (count, kept) = (self.count.get(), self.kept.borrow().clone());
        tell(&kept, count);
        (count, kept)
    }
}
