//! Standard error: messages for operators as sentences, others with the time since the mount, their level and target.

use super::{Line, MOUNT, is_for_operators};
use crate::failure::eprint_line;
use std::time::Instant;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Writes to standard error.
pub(super) struct Terminal {
    began: Instant,
    /// The user has said what to log. If not, that it was mounted is not repeated: the command has said it.
    is_given: bool,
}

impl Terminal {
    pub(super) fn new(is_given: bool) -> Terminal {
        Terminal { began: Instant::now(), is_given }
    }
}

impl<S: Subscriber> Layer<S> for Terminal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        let Line { text, fields } = Line::of(event);
        if !is_for_operators(event) {
            let seconds = self.began.elapsed().as_secs_f64();
            let target = target.strip_prefix("nvfold::").unwrap_or(target);
            eprint_line(&format!("nvfold: [{seconds:12.6}] {level} {target}: {text}{fields}"));
        } else if self.is_given || target != MOUNT || level < Level::INFO {
            eprint_line(&format!("nvfold: {text}"));
        }
    }
}
