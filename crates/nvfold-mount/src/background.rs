//! Threads beside those that answer requests. One ends when its [`Background`] is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A running thread. Dropping this stops it, and waits for its present step.
pub(crate) struct Background {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

/// Tells a thread whether it is to end.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits for this time, or until the thread is to end. May return early.
    pub(crate) fn rest(&self, time: Duration) {
        if !self.is_asked() {
            thread::park_timeout(time);
        }
    }
}

impl Background {
    /// Starts a thread. It receives no signals that are meant for the program.
    pub(crate) fn start(work: impl FnOnce(&Stop) + Send + 'static) -> Background {
        let stop = Stop::default();
        let asked = stop.clone();
        let thread = pmem::with_signals_blocked(|| thread::spawn(move || work(&asked)));
        Background { stop, thread: Some(thread) }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Its panic was printed where it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_that_rests_ends_at_once_when_it_is_dropped() {
        let (begins, has_begun) = mpsc::channel();
        let thread = Background::start(move |stop| {
            begins.send(()).unwrap();
            while !stop.is_asked() {
                stop.rest(Duration::MAX);
            }
        });
        has_begun.recv().unwrap();
        drop(thread);
        assert!(has_begun.recv().is_err(), "it has ended");
    }
}
