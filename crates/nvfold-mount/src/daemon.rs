//! The background thread of a mount: a loop over the library's bounded steps. It shares what policy `denova` has
//! queued, and gives blocks the fingerprints they lack.
//!
//! It has a lower priority than the threads that answer requests, but not the lowest. Between two turns it holds
//! nothing. But the scheduler may preempt it in the middle of a turn, and then a request that waits for the same
//! inode waits for every thread of higher priority as well.

use crate::access::Access;
use crate::background::{Background, Stop};
use crate::events::{Event, Events};
use nvfold::{Daemon, FileSystem};
use std::thread;
use std::time::Duration;

/// Nice value of the thread: about a tenth of a request thread's share, if both want the same processor.
const NICE: i32 = 10;

/// The longest wait. The thread looks this often for what may end a longer wait: another mode, scarce space, a mount
/// that is writable again. (An operation that finds too little space does the daemon's work itself.)
const REST_MOST: Duration = Duration::from_secs(1);

/// Starts the thread. The queue keeps its entries when it ends.
pub(crate) fn start(fs: FileSystem, access: Access, events: Events) -> Background {
    Background::start(move |stop| work(&fs, &access, &events, stop))
}

fn work(fs: &FileSystem, access: &Access, events: &Events, stop: &Stop) {
    // Linux applies 0, "this process", to the calling thread only. If the call fails, the work is done at normal
    // priority.
    let _ = rustix::process::setpriority_process(None, NICE);
    let mut daemon = Daemon::new(fs.clone());
    let (mut told, mut refusal_told, mut panics_told) = (false, false, 0);
    while !stop.is_asked() {
        if access.is_read_only() {
            stop.rest(REST_MOST);
            continue;
        }
        match daemon.turn() {
            Ok(rest) if rest.is_zero() => thread::yield_now(),
            Ok(rest) => stop.rest(rest.min(REST_MOST)),
            // The file system is unmounted.
            Err(nvfold::Error::ReadOnly { .. }) => return,
            Err(error) => return events(Event::DaemonEnded { error }),
        }
        if !told && let Some(error) = fs.skipped().last_error {
            events(Event::LeftOut { error });
            told = true;
        }
        if !refusal_told && let Some(error) = fs.refused().last_error {
            events(Event::Refused { error });
            refusal_told = true;
        }
        let panicked = fs.panicked();
        if let Some(what) = panicked.last.filter(|_| panicked.count > panics_told) {
            events(Event::Panicked { what });
            panics_told = panicked.count;
        }
    }
}
