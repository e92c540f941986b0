//! Feature `shuttle`: accesses to media as points at which shuttle's scheduler chooses who runs next.
//!
//! Media is shared memory like any other, but not made of shuttle's atomics. So every access asks the scheduler
//! first, when a test has switched that on. It is off while a test prepares and checks: thousands of reads of one
//! thread alone would only hide the few places that matter among them.

use shuttle::sync::atomic::{AtomicBool, Ordering};
use std::cell::Cell;

// All threads of a schedule run on one thread of the system, and tests beside it on others.
thread_local!(static ON: Cell<bool> = const { Cell::new(false) });

/// Makes accesses to media points at which threads may be switched, or stops that.
pub fn switch_threads_at_media(on: bool) {
    ON.set(on);
}

/// Bytes on the media are about to be touched.
pub(crate) fn point() {
    if ON.get() {
        // Any atomic of shuttle's asks its scheduler; the value is nobody's.
        AtomicBool::new(false).load(Ordering::SeqCst);
    }
}
