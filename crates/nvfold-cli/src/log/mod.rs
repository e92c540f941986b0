//! What a serving process logs, and where it goes.
//!
//! ```text
//! tracing events -> filter: -o log=, else NVFOLD_LOG, else info
//!   standard error is the journal  -> the journal, with fields                (`tracing_journald`)
//!   else                           -> standard error, while there is one      (`terminal`)
//!                                  -> the kernel's log, if root: info and more (`kernel`)
//! ```
//!
//! systemd says by JOURNAL_STREAM that standard error leads to the journal. A process that goes to the background closes
//! its standard error, so that the kernel's log is what is left. There the kernel drops what comes too fast.

mod filter;
mod kernel;
mod terminal;

pub(crate) use filter::Filter;

use crate::failure::{Outcome, eprint_line};
use crate::text::escaped;
use kernel::Kernel;
use rustix::fs::fstat;
use std::fmt::{self, Write};
use std::path::Path;
use terminal::Terminal;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

/// The variable that says what to log if the mount does not.
pub(crate) const VARIABLE: &str = "NVFOLD_LOG";
/// What happens to a mount, and what an operator must know; see `mount::events`.
pub(crate) const MOUNT: &str = "nvfold::mount";
pub(crate) const EVENT: &str = "nvfold::event";

/// Begins to log, for a mount. Once in the life of a process.
///
/// # Errors
/// NVFOLD_LOG is wrong.
pub(crate) fn begin(given: Option<&Filter>, device: &str, dir: &Path) -> Outcome<()> {
    let of_environment = Filter::of_environment(VARIABLE)?;
    let filter = given.cloned().or(of_environment);
    let is_given = filter.is_some();
    let filter = filter.unwrap_or_default();
    // A second mount of one process, which only tests have, logs as the first one.
    let _ = match journal(device, dir) {
        Some(journal) => {
            tracing::subscriber::set_global_default(Registry::default().with(filter.targets()).with(journal))
        }
        None => {
            let local = Registry::default().with(filter.targets()).with(Terminal::new(is_given)).with(Kernel::open());
            tracing::subscriber::set_global_default(local)
        }
    };
    Ok(())
}

/// Returns what writes to the journal, if standard error leads there.
fn journal<S: Subscriber + for<'s> LookupSpan<'s>>(device: &str, dir: &Path) -> Option<impl Layer<S> + use<S>> {
    if !is_journal(&std::env::var("JOURNAL_STREAM").ok()?) {
        return None;
    }
    let fields = [("NVFOLD_DEVICE", device.to_owned()), ("NVFOLD_MOUNTPOINT", dir.display().to_string())];
    match tracing_journald::layer() {
        Ok(layer) => {
            let named = layer.with_field_prefix(Some("NVFOLD".into())).with_syslog_identifier("nvfold".into());
            Some(named.with_custom_fields(fields))
        }
        Err(error) => {
            eprint_line(&format!("nvfold: warning: the journal cannot be reached ({error}): messages go to stderr"));
            None
        }
    }
}

/// Returns true if standard error is the stream `DEVICE:INODE`, as systemd names it.
fn is_journal(stream: &str) -> bool {
    let Ok(stat) = fstat(std::io::stderr()) else { return false };
    stream
        .split_once(':')
        .is_some_and(|(device, inode)| device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino))
}

/// An event as a line of text: its message, and the fields that the message does not say.
struct Line {
    text: String,
    fields: String,
}

impl Line {
    /// Makes the line of an event. Events for operators say all in their message.
    fn of(event: &Event<'_>) -> Line {
        let mut line = Line { text: String::new(), fields: String::new() };
        event.record(&mut line);
        if is_for_operators(event) {
            line.fields.clear();
        }
        Line { text: escaped(&line.text), fields: escaped(&line.fields) }
    }
}

fn is_for_operators(event: &Event<'_>) -> bool {
    [EVENT, MOUNT].contains(&event.metadata().target())
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.text.push_str(value),
            name => drop(write!(self.fields, " {name}={value}")),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => drop(write!(self.text, "{value:?}")),
            name => drop(write!(self.fields, " {name}={value:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_error_is_the_journal_only_if_it_is_the_stream_that_systemd_names() {
        let stat = fstat(std::io::stderr()).unwrap();
        assert!(is_journal(&format!("{}:{}", stat.st_dev, stat.st_ino)));
        for other in [format!("{}:{}", stat.st_dev, stat.st_ino + 1), "".into(), "1".into(), "a:b".into(), ":".into()] {
            assert!(!is_journal(&other), "{other}");
        }
    }
}
