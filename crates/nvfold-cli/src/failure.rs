//! The error of a command: what was being done, why it failed, and what to do about it. On stderr as text, or with --json
//! as one line of JSON.

use crate::errno_names;
use crate::remedy::Cause;
use crate::text::escaped;
use nvfold::Error;
use pmem::PmemError;
use serde::Serialize;
use std::any::Any;
use std::fmt::Display;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a command that failed.
pub(crate) const FAILED: u8 = 1;
/// The exit code after a mistake on the command line.
pub(crate) const USAGE: u8 = 2;

/// The version of errors as JSON. It changes if a field is removed or changes its meaning.
const JSON_VERSION: u32 = 1;

/// True if errors are to be printed as JSON.
static AS_JSON: AtomicBool = AtomicBool::new(false);

/// Makes all failures of this process print as JSON.
pub(crate) fn report_as_json() {
    AS_JSON.store(true, Ordering::Relaxed);
}

/// Returns whether they are.
pub(crate) fn is_as_json() -> bool {
    AS_JSON.load(Ordering::Relaxed)
}

/// An error as JSON.
#[derive(Serialize)]
struct Report<'f> {
    version: u32,
    command: &'f str,
    error: Told<'f>,
}

#[derive(Serialize)]
struct Told<'f> {
    /// What was being done, or to what; empty if `why` says it.
    what: &'f str,
    why: String,
    hint: Option<String>,
    /// The name of the system's error, if there is one behind it.
    errno: Option<String>,
    exit_code: u8,
    /// The signal that stopped the work.
    signal: Option<i32>,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Empty if `why` says it.
    what: String,
    why: String,
    hint: Option<String>,
    /// Chooses the hint, if there is no other.
    cause: Option<Cause>,
    /// The error of the system behind it.
    errno: Option<i32>,
    /// The exit code.
    pub code: u8,
    /// The signal that stopped the work. It ends the process, too.
    pub signal: Option<i32>,
}

/// The result of a command or of a step of it.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// Makes a failure that prints as `nvfold COMMAND: what: why`.
    pub(crate) fn new(what: impl Display, why: impl Display + 'static) -> Failure {
        let errno = errno_of(&why);
        let (what, why) = (what.to_string(), why.to_string());
        Failure { what, why, hint: None, cause: None, errno, code: FAILED, signal: None }
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
        Failure { cause, errno: errno_of(any), ..Failure::new(what, why) }
    }

    /// Makes a failure for a mistake on the command line.
    pub(crate) fn usage(what: impl Display, why: impl Display + 'static) -> Failure {
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

    /// Says what the error of the system is, where its type is not known.
    pub(crate) fn because_of(mut self, errno: i32) -> Failure {
        self.errno = Some(errno);
        self
    }

    /// Prints the failure on stderr. `command` is the name of the command.
    pub(crate) fn report(&self, command: &str) {
        let hint = self.hint.clone().or_else(|| self.cause.as_ref()?.hint(command));
        if is_as_json() {
            return self.report_json(command, hint);
        }
        let hint = hint.map(|hint| format!("\n  hint: {}", escaped(&hint))).unwrap_or_default();
        // `mem:` already ends in a colon.
        let what = match self.what.strip_suffix(':').unwrap_or(&self.what) {
            "" => String::new(),
            what => format!("{}: ", escaped(what)),
        };
        eprint_line(&format!("nvfold {command}: {what}{}{hint}", escaped(&without_number(&self.why))));
    }

    fn report_json(&self, command: &str, hint: Option<String>) {
        let error = Told {
            what: self.what.strip_suffix(':').unwrap_or(&self.what),
            why: without_number(&self.why),
            hint,
            errno: self.errno.map(errno_names::name),
            exit_code: self.code,
            signal: self.signal,
        };
        if let Ok(line) = serde_json::to_string(&Report { version: JSON_VERSION, command, error }) {
            eprint_line(&line);
        }
    }
}

#[cfg(test)]
impl Display for Failure {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hint = self.hint.as_ref().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default();
        write!(out, "{}: {}{hint}", self.what, self.why)
    }
}

/// Returns the number of the system's error that an error is, or comes from.
fn errno_of(error: &dyn Any) -> Option<i32> {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return error.raw_os_error();
    }
    let of_rustix = error.downcast_ref::<rustix::io::Errno>().map(|errno| errno.raw_os_error());
    let of_file_system = || error.downcast_ref::<Error>().map(Error::errno);
    let of_device = || error.downcast_ref::<PmemError>().map(PmemError::errno);
    of_rustix.or_else(of_file_system).or_else(of_device)
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
