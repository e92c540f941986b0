//! Feature `shuttle`: accesses to media as points at which shuttle's scheduler chooses the thread that runs next.
//!
//! The problem: media is shared memory, but it is not made of shuttle's atomics, so shuttle does not see the
//! accesses. The idea: every access asks the scheduler first, when a test has switched that on. It is off while a
//! test prepares and checks: thousands of reads by a single thread would hide the few points that matter.

use shuttle::sync::atomic::{AtomicBool, Ordering};
use std::cell::Cell;

// All threads of a schedule run on one thread of the system; other tests run at the same time on other threads.
thread_local!(static ON: Cell<bool> = const { Cell::new(false) });

/// Makes accesses to media points at which threads may be switched, or stops that.
pub fn switch_threads_at_media(on: bool) {
    ON.set(on);
}

/// Called before bytes on the media are touched.
pub(crate) fn point() {
    if ON.get() {
        // An access to any of shuttle's atomics asks its scheduler; the value is not used.
        AtomicBool::new(false).load(Ordering::SeqCst);
    }
}
