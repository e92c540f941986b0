//! The background thread of a mount: a loop over the library's bounded steps. It shares what policy `denova` has
//! queued, and gives blocks the fingerprints they lack.
//!
//! It has a lower priority than the threads that answer requests, but not the lowest. Between two turns it holds
//! nothing. But the scheduler may preempt it in the middle of a turn, and then a request that waits for the same
//! inode waits for every thread of higher priority as well.

use super::access::Access;
use super::announce;
use nvfold::{Daemon, FileSystem};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Nice value of the thread: about a tenth of a request thread's share, if both want the same processor.
const NICE: i32 = 10;

/// The longest wait. The thread looks this often for what may end a longer wait: another mode, scarce space, a mount
/// that is writable again. (An operation that finds too little space does the daemon's work itself.)
const REST_MOST: Duration = Duration::from_secs(1);

/// The running thread. Dropping this stops the thread within a turn (about a millisecond); the queue keeps its
/// entries.
pub struct Background {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the thread, unless the file system is mounted read-only.
pub fn start(fs: FileSystem, access: Access) -> Background {
    let stop = Arc::new(AtomicBool::new(false));
    let thread = (!fs.is_read_only()).then(|| {
        let stop = stop.clone();
        thread::spawn(move || work(fs, &access, &stop))
    });
    Background { stop, thread }
}

fn work(fs: FileSystem, access: &Access, stop: &AtomicBool) {
    // Linux applies 0, "this process", to the calling thread only. If the call fails, the work is done at normal
    // priority.
    let _ = rustix::process::setpriority_process(None, NICE);
    let mut daemon = Daemon::new(fs.clone());
    let (mut told, mut refusal_told, mut panics_told) = (false, false, 0);
    while !stop.load(Ordering::Relaxed) {
        if access.is_read_only() {
            thread::park_timeout(REST_MOST);
            continue;
        }
        match daemon.turn() {
            Ok(rest) if rest.is_zero() => thread::yield_now(),
            Ok(rest) => thread::park_timeout(rest.min(REST_MOST)),
            // The file system is unmounted.
            Err(nvfold::Error::ReadOnly { .. }) => return,
            Err(error) => return announce(&format!("nvfold: work in the background ends: {error}")),
        }
        if !told && let Some(error) = fs.skipped().last_error {
            announce(&format!("nvfold: left out in the background: {error}; `nvfold stats` counts what else is"));
            told = true;
        }
        if !refusal_told && let Some(error) = fs.refused().last_error {
            announce(&format!("nvfold: refused a change: {error}; `nvfold stats` counts what else is"));
            refusal_told = true;
        }
        let panicked = fs.panicked();
        if let Some(what) = panicked.last.filter(|_| panicked.count > panics_told) {
            announce(&format!(
                "nvfold: {what} was ended by a panic: it is not tried again before the next mount, and all else goes on"
            ));
            panics_told = panicked.count;
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in the thread has already ended the process.
            let _ = thread.join();
        }
    }
}
