//! One way to fail: what was being done, why it did not work, and what to do about it.

use crate::text::escaped;
use std::fmt::Display;

/// Exit code of a command that failed.
pub const FAILED: u8 = 1;
/// Exit code of a command that was called wrongly.
pub const USAGE: u8 = 2;

/// Why a command stops.
#[derive(Debug)]
pub struct Failure {
    what: String,
    why: String,
    hint: Option<String>,
    /// Exit code.
    pub code: u8,
}

/// Result of a command or a step of it.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// Makes a failure that reads `nvfold: what: why`.
    pub fn new(what: impl Display, why: impl Display) -> Failure {
        Failure { what: what.to_string(), why: why.to_string(), hint: None, code: FAILED }
    }

    /// Makes a failure as `new` does, for a mistake on the command line.
    pub fn usage(what: impl Display, why: impl Display) -> Failure {
        Failure { code: USAGE, ..Failure::new(what, why) }
    }

    /// Sets another exit code.
    pub fn exits_with(mut self, code: u8) -> Failure {
        self.code = code;
        self
    }

    /// Adds what to do about it.
    pub fn hint(mut self, hint: impl Display) -> Failure {
        self.hint = Some(hint.to_string());
        self
    }

    /// Says it on stderr, for the command of this name: what was being done.
    pub fn report(&self, command: &str) {
        let hint = self.hint.as_deref().map(|hint| format!("\n  hint: {}", escaped(hint))).unwrap_or_default();
        // `mem:` ends in a colon of its own.
        let what = self.what.strip_suffix(':').unwrap_or(&self.what);
        eprint_line(&format!("nvfold {command}: {}: {}{hint}", escaped(what), escaped(&without_number(&self.why))));
    }
}

/// An error of the system without its number, which says no more than its name.
pub fn without_number(why: &str) -> String {
    let Some((before, after)) = why.split_once(" (os error ") else { return why.to_owned() };
    let after = after.split_once(')').map_or("", |(_, after)| after);
    format!("{before}{after}")
}

/// Prints one line on stderr. A closed stderr is no reason to fail.
pub fn eprint_line(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Names what failed.
pub trait Doing<T> {
    /// Turns an error into a [`Failure`] about `what`.
    fn doing(self, what: impl Display) -> Outcome<T>;
}

impl<T, E: Display> Doing<T> for Result<T, E> {
    fn doing(self, what: impl Display) -> Outcome<T> {
        self.map_err(|error| Failure::new(what, error))
    }
}
