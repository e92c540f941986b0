//! The kernel's log, which root may write: one line for each message, with its level.

use super::Line;
use std::fs::File;
use std::io::Write;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The longest line that the kernel takes, less what it adds.
const LINE_BYTES_MAX: usize = 900;

/// Writes to the kernel's log, if this process may.
pub(super) struct Kernel(Option<File>);

impl Kernel {
    pub(super) fn open() -> Kernel {
        Kernel(File::options().write(true).open("/dev/kmsg").ok())
    }
}

impl<S: Subscriber> Layer<S> for Kernel {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // As in syslog(3).
        let level = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => return,
        };
        if let Some(mut log) = self.0.as_ref() {
            let Line { text, fields } = Line::of(event);
            let mut line = format!("<{level}>nvfold: {text}{fields}");
            line.truncate(line.floor_char_boundary(LINE_BYTES_MAX));
            // One write is one message. The kernel may refuse it: there is no other place to say so.
            let _ = log.write_all(line.as_bytes());
        }
    }
}
