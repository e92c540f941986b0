//! The background thread of a mount: a loop over the library's bounded steps. It shares what policy `denova` queued
//! and gives blocks the fingerprints they lack.
//!
//! It is nicer than the threads that answer requests, and not the nicest: between two turns it holds nothing, but the
//! scheduler may take the processor away in the middle of one, and a thread that waits for an inode would wait for
//! everybody else too.

use super::access::Access;
use super::announce;
use nvfold::{Daemon, FileSystem};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Nice value of the thread: about a tenth of what a thread of requests gets, where both want the same processor.
const NICE: i32 = 10;

/// What may end a longer wait is looked at so often: another mode, space that becomes scarce, a mount that may be
/// changed again.
const REST_MOST: Duration = Duration::from_millis(50);

/// The running thread. Dropped, it stops within a turn (about a millisecond), and what is queued stays queued.
pub struct Background {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Starts it; a read-only mount has nothing to do.
pub fn start(fs: FileSystem, access: Access) -> Background {
    let stop = Arc::new(AtomicBool::new(false));
    let thread = (!fs.is_read_only()).then(|| {
        let stop = stop.clone();
        thread::spawn(move || work(fs, &access, &stop))
    });
    Background { stop, thread }
}

fn work(fs: FileSystem, access: &Access, stop: &AtomicBool) {
    // Linux takes 0, here "this process", as the calling thread. Without it the work is done all the same.
    let _ = rustix::process::setpriority_process(None, NICE);
    let mut daemon = Daemon::new(fs.clone());
    let mut told = false;
    while !stop.load(Ordering::Relaxed) {
        if access.is_read_only() {
            thread::park_timeout(REST_MOST);
            continue;
        }
        match daemon.turn() {
            Ok(rest) if rest.is_zero() => thread::yield_now(),
            Ok(rest) => thread::park_timeout(rest.min(REST_MOST)),
            // It is unmounted.
            Err(nvfold::Error::ReadOnly { .. }) => return,
            Err(error) => return announce(&format!("nvfold: work in the background ends: {error}")),
        }
        if !told && let Some(error) = fs.skipped().last_error {
            announce(&format!("nvfold: left out in the background: {error}; `nvfold stats` counts what else is"));
            told = true;
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in it has ended the process already.
            let _ = thread.join();
        }
    }
}
