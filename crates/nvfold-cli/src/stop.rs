//! SIGINT, SIGTERM and SIGHUP end long work in order: the current piece is finished, finished work stays, and a device
//! is left clean. Then the signal ends the process, so that a shell sees what it was. A second signal ends it at once.

use crate::failure::{Doing, Failure, Outcome};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Returns the signals that ask this program to end: SIGTERM, and SIGINT and SIGHUP unless they are ignored, as `nohup`
/// and the shell want it for what runs in the background.
pub(crate) fn signals() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    let is_heard = |signal: &i32| *signal == SIGTERM || ignored >> (signal - 1) & 1 == 0;
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(is_heard).collect()
}

/// Whether the work must stop: the number of the signal that asked for it, or 0.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Makes the signals ask for a stop from now on.
    pub(crate) fn on_signals() -> Outcome<Stop> {
        let stop = Stop::default();
        let is_second = Arc::new(AtomicBool::new(false));
        for signal in signals() {
            flag::register_conditional_default(signal, is_second.clone())
                .and_then(|_| flag::register(signal, is_second.clone()))
                .and_then(|_| flag::register_usize(signal, stop.0.clone(), signal as usize))
                .doing("wait for signals")?;
        }
        Ok(stop)
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.signal().is_some()
    }

    /// Returns the signal that asked for a stop.
    pub(crate) fn signal(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed) as i32).filter(|signal| *signal != 0)
    }

    /// Returns the state in the form that the library takes.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        if self.is_asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Returns the failure that says why `what` ended, if it was stopped.
    pub(crate) fn reason(&self, what: &str) -> Option<Failure> {
        let failure = Failure::new(what, "interrupted; what was done so far stays");
        self.signal().map(|signal| failure.by_signal(signal))
    }

    /// Ends the process by the signal that asked for a stop, if one did. Everything must have been taken down.
    pub(crate) fn end_if_asked(&self) {
        if let Some(signal) = self.signal() {
            end_by(signal);
        }
    }
}

/// Does what a signal does by default: it ends the process.
pub(crate) fn end_by(signal: i32) {
    // Fails for signals without a default alone.
    let _ = low_level::emulate_default_handler(signal);
}
