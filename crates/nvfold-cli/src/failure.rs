//! The error of a command: what was being done, why it failed, and what to do about it.

use crate::text::escaped;
use std::fmt::Display;

/// The exit code of a command that failed.
pub const FAILED: u8 = 1;
/// The exit code after a mistake on the command line.
pub const USAGE: u8 = 2;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    what: String,
    why: String,
    hint: Option<String>,
    /// The exit code.
    pub code: u8,
    /// The signal that stopped the work. It ends the process, too.
    pub signal: Option<i32>,
}

/// The result of a command or of a step of it.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// Makes a failure that prints as `nvfold COMMAND: what: why`.
    pub fn new(what: impl Display, why: impl Display) -> Failure {
        Failure { what: what.to_string(), why: why.to_string(), hint: None, code: FAILED, signal: None }
    }

    /// Makes a failure for a mistake on the command line.
    pub fn usage(what: impl Display, why: impl Display) -> Failure {
        Failure { code: USAGE, ..Failure::new(what, why) }
    }

    /// Replaces the exit code.
    pub fn exits_with(mut self, code: u8) -> Failure {
        self.code = code;
        self
    }

    /// Makes the process end by a signal.
    pub fn by_signal(mut self, signal: i32) -> Failure {
        self.signal = Some(signal);
        self
    }

    /// Adds a hint what to do.
    pub fn hint(mut self, hint: impl Display) -> Failure {
        self.hint = Some(hint.to_string());
        self
    }

    /// Prints the failure on stderr. `command` is the name of the command.
    pub fn report(&self, command: &str) {
        let hint = self.hint.as_deref().map(|hint| format!("\n  hint: {}", escaped(hint))).unwrap_or_default();
        // `mem:` already ends in a colon.
        let what = self.what.strip_suffix(':').unwrap_or(&self.what);
        eprint_line(&format!("nvfold {command}: {}: {}{hint}", escaped(what), escaped(&without_number(&self.why))));
    }
}

/// Removes the number of a system error, which adds nothing to its name.
pub fn without_number(why: &str) -> String {
    let Some((before, after)) = why.split_once(" (os error ") else { return why.to_owned() };
    let after = after.split_once(')').map_or("", |(_, after)| after);
    format!("{before}{after}")
}

/// Prints a warning: what would be a failure, but was asked for.
pub fn warn(why: &impl Display) {
    eprint_line(&format!("nvfold: warning: {}", escaped(&without_number(&why.to_string()))));
}

/// Prints one line on stderr. Errors are ignored: a closed stderr is no reason to fail.
pub fn eprint_line(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Adds to an error what was being done.
pub trait Doing<T> {
    /// Turns an error into a [`Failure`] about `what`.
    fn doing(self, what: impl Display) -> Outcome<T>;
}

impl<T, E: Display> Doing<T> for Result<T, E> {
    fn doing(self, what: impl Display) -> Outcome<T> {
        self.map_err(|error| Failure::new(what, error))
    }
}
