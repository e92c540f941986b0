//! SIGINT and SIGTERM end long work in order: the current piece is finished, finished work stays, and a device is
//! left clean.

use crate::failure::{Doing, Failure, Outcome};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the work must stop.
#[derive(Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Makes SIGINT and SIGTERM ask for a stop from now on.
    pub fn on_signals() -> Outcome<Stop> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, stop.0.clone()).doing("wait for signals")?;
        }
        Ok(stop)
    }

    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the state in the form that the library takes.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.is_asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Returns the failure that says why `what` ended, if it was stopped.
    pub fn reason(&self, what: &str) -> Option<Failure> {
        self.is_asked().then(|| Failure::new(what, "interrupted; what was done so far stays"))
    }
}
