//! The background work of an open device, as on a mount. After a crash it reconciles the counts. Then it computes missing
//! fingerprints and shares what policy `denova` has queued. Once a second it frees removed trees and dead space, gives freed memory back to
//! the host, and checks the device. (At level `file`, pmem itself syncs a second after the changes stop, and every 5 s.)
//!
//! Each device has one thread. It has a lower priority than the program's threads and works in steps of about a
//! millisecond, so it also stops within one. It receives no signal of the program.
#![forbid(unsafe_code)]

use nvfold::{Daemon, FileSystem, Victims};
use pmem::with_signals_blocked;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Nice value of the thread.
const NICE: i32 = 10;
/// How often housekeeping runs. It is also the longest wait, so changes that would end a longer one are noticed in time.
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(1);

/// The running thread. Dropped, it stops.
pub(crate) struct Background {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Starts it; a device that is only read has nothing to do. `broken` is set if the work ends with a panic.
pub(crate) fn start(fs: FileSystem, broken: Arc<AtomicBool>) -> std::io::Result<Background> {
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
    let builder = thread::Builder::new().name("nvfold".into());
    let thread = with_signals_blocked(|| builder.spawn(work))?;
    Ok(Background { stop, thread: Some(thread) })
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
    let mut last_housekeeping = Instant::now();
    let mut daemon_works = true;
    while goes_on() {
        let mut rest = HOUSEKEEPING_EVERY;
        if daemon_works {
            match daemon.turn() {
                Ok(until) => rest = until.min(HOUSEKEEPING_EVERY),
                // The device is lost, and calls say so.
                Err(_) => daemon_works = false,
            }
        }
        if last_housekeeping.elapsed() >= HOUSEKEEPING_EVERY {
            // A lost device answers EIO from then on.
            if fs.region().probe() {
                // A failure costs space or memory, not data; the next round tries again.
                while goes_on() && !fs.remove_step().unwrap_or(true) {}
                while goes_on() && !fs.reclaim_step(Victims::Worthwhile).unwrap_or(true) {}
                while goes_on() && !fs.trim_step().unwrap_or(true) {}
            }
            last_housekeeping = Instant::now();
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
