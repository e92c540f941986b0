//! The error of a command: what was being done, why it failed, and what to do about it.

use crate::remedy::Cause;
use crate::text::escaped;
use nvfold::Error;
use pmem::PmemError;
use std::any::Any;
use std::fmt::Display;

/// The exit code of a command that failed.
pub(crate) const FAILED: u8 = 1;
/// The exit code after a mistake on the command line.
pub(crate) const USAGE: u8 = 2;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Empty if `why` says it.
    what: String,
    why: String,
    hint: Option<String>,
    /// Chooses the hint, if there is no other.
    cause: Option<Cause>,
    /// The exit code.
    pub code: u8,
    /// The signal that stopped the work. It ends the process, too.
    pub signal: Option<i32>,
}

/// The result of a command or of a step of it.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// Makes a failure that prints as `nvfold COMMAND: what: why`.
    pub(crate) fn new(what: impl Display, why: impl Display) -> Failure {
        let (what, why) = (what.to_string(), why.to_string());
        Failure { what, why, hint: None, cause: None, code: FAILED, signal: None }
    }

    /// Makes a failure of an error. Its type chooses the hint. An error of a device names the device itself.
    pub(crate) fn of(what: impl Display, error: impl Display + 'static) -> Failure {
        let any: &dyn Any = &error;
        let names_device = any.is::<PmemError>() || matches!(any.downcast_ref(), Some(Error::Device(_)));
        let cause = Cause::of(any);
        let what = if names_device { String::new() } else { what.to_string() };
        let why = match any.downcast_ref() {
            Some(Error::NotFound { what: name }) if what.ends_with(name) => "no such file or directory".to_owned(),
            _ => error.to_string(),
        };
        Failure { cause, ..Failure::new(what, why) }
    }

    /// Makes a failure for a mistake on the command line.
    pub(crate) fn usage(what: impl Display, why: impl Display) -> Failure {
        Failure { code: USAGE, ..Failure::new(what, why) }
    }

    /// Says where the mistake is.
    pub(crate) fn within(mut self, place: impl Display) -> Failure {
        self.what = format!("{place}: {}", self.what);
        self
    }

    /// Replaces the exit code.
    pub(crate) fn exits_with(mut self, code: u8) -> Failure {
        self.code = code;
        self
    }

    /// Makes the process end by a signal.
    pub(crate) fn by_signal(mut self, signal: i32) -> Failure {
        self.signal = Some(signal);
        self
    }

    /// Adds a hint what to do.
    pub(crate) fn hint(mut self, hint: impl Display) -> Failure {
        self.hint = Some(hint.to_string());
        self
    }

    /// Prints the failure on stderr. `command` is the name of the command.
    pub(crate) fn report(&self, command: &str) {
        let hint = self.hint.clone().or_else(|| self.cause.as_ref()?.hint(command));
        let hint = hint.map(|hint| format!("\n  hint: {}", escaped(&hint))).unwrap_or_default();
        // `mem:` already ends in a colon.
        let what = match self.what.strip_suffix(':').unwrap_or(&self.what) {
            "" => String::new(),
            what => format!("{}: ", escaped(what)),
        };
        eprint_line(&format!("nvfold {command}: {what}{}{hint}", escaped(&without_number(&self.why))));
    }
}

#[cfg(test)]
impl Display for Failure {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hint = self.hint.as_ref().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default();
        write!(out, "{}: {}{hint}", self.what, self.why)
    }
}

/// Removes the number of a system error, which adds nothing to its name.
pub(crate) fn without_number(why: &str) -> String {
    let Some((before, after)) = why.split_once(" (os error ") else { return why.to_owned() };
    let after = after.split_once(')').map_or("", |(_, after)| after);
    format!("{before}{after}")
}

/// Prints a warning: what would be a failure, but was asked for.
pub(crate) fn warn(why: &impl Display) {
    eprint_line(&format!("nvfold: warning: {}", escaped(&without_number(&why.to_string()))));
}

/// Prints one line on stderr. Errors are ignored: a closed stderr is no reason to fail.
pub(crate) fn eprint_line(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Adds to an error what was being done.
pub(crate) trait Doing<T> {
    /// Turns an error into a [`Failure`] about `what`.
    fn doing(self, what: impl Display) -> Outcome<T>;
}

impl<T, E: Display + 'static> Doing<T> for Result<T, E> {
    fn doing(self, what: impl Display) -> Outcome<T> {
        self.map_err(|error| Failure::of(what, error))
    }
}
