//! What goes on beside the calls on an open device, as a mount has it: after a crash counts are reconciled; fingerprints
//! are filled in, and what policy `denova` queued is shared; every second dead space is made free, freed memory is given
//! back, and the device is looked at. (Syncs every 5 s at level `file` are pmem's own.)
//!
//! One thread a device. It is nicer than those of the program, works in steps of about a millisecond, and ends within one.
#![forbid(unsafe_code)]

use nvfold::{Daemon, FileSystem, Victims};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Nice value of the thread.
const NICE: i32 = 10;
/// How often house is kept, and the longest wait: so often the thread looks for what may end a longer one.
const HOUSE_EVERY: Duration = Duration::from_secs(1);

/// The running thread. Dropped, it stops.
pub struct Background {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Starts it; a device that is only read has nothing to do. `broken` is set if the work ends with a panic.
pub fn start(fs: FileSystem, broken: Arc<AtomicBool>) -> std::io::Result<Background> {
    let stop = Arc::new(AtomicBool::new(false));
    if fs.is_read_only() {
        return Ok(Background { stop, thread: None });
    }
    let stopped = stop.clone();
    let work = move || {
        if catch_unwind(AssertUnwindSafe(|| work(&fs, &stopped))).is_err() {
            broken.store(true, Ordering::SeqCst);
        }
    };
    let thread = Some(thread::Builder::new().name("nvfold".into()).spawn(work)?);
    Ok(Background { stop, thread })
}

fn work(fs: &FileSystem, stop: &AtomicBool) {
    // Linux takes 0, here "this process", as the calling thread. Without it the work is done all the same.
    let _ = rustix::process::setpriority_process(None, NICE);
    let goes_on = || !stop.load(Ordering::Relaxed);
    // One that fails leaves what the device held before the crash in use; everything else goes on.
    while goes_on() && matches!(fs.reconcile_step(), Ok(false)) {
        thread::yield_now();
    }
    let mut daemon = Daemon::new(fs.clone());
    let mut house_kept = Instant::now();
    let mut daemon_works = true;
    while goes_on() {
        let mut rest = HOUSE_EVERY;
        if daemon_works {
            match daemon.turn() {
                Ok(until) => rest = until.min(HOUSE_EVERY),
                // The device is lost, and calls say so.
                Err(_) => daemon_works = false,
            }
        }
        if house_kept.elapsed() >= HOUSE_EVERY {
            // A lost device answers EIO from then on.
            if fs.region().probe() {
                // A failure costs space or memory, not data; the next round tries again.
                while goes_on() && !fs.reclaim_step(Victims::Worthwhile).unwrap_or(true) {}
                while goes_on() && !fs.trim_step().unwrap_or(true) {}
            }
            house_kept = Instant::now();
        }
        if rest.is_zero() { thread::yield_now() } else { thread::park_timeout(rest) }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in it has been caught there.
            let _ = thread.join();
        }
    }
}
