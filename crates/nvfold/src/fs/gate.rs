//! The gate: operations that change something pass through it, and it can be closed.
//!
//! The problem: unmount saves the allocator as it is, and reconcile compares two tables; neither may see half an
//! operation. Operations must not pay for that by writing to one line from every core.
//!
//! The idea: one lock a stripe, a thread enters at its own, closing locks all of them.

use crate::padded::Padded;
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, thread_number};

const STRIPES: usize = 16;

/// See the module.
pub(crate) struct Gate {
    stripes: [Padded<RwLock<()>>; STRIPES],
}

impl Gate {
    pub(super) fn new() -> Gate {
        Gate { stripes: std::array::from_fn(|_| Padded(RwLock::new(()))) }
    }

    /// Passes; the gate cannot close until the guard is dropped. A thread passes once at a time.
    pub(super) fn enter(&self) -> RwLockReadGuard<'_, ()> {
        self.stripes[thread_number() % STRIPES].read()
    }

    /// Waits for everyone inside, and keeps others out until the guards are dropped.
    pub(crate) fn close(&self) -> Vec<RwLockWriteGuard<'_, ()>> {
        self.stripes.iter().map(|stripe| stripe.write()).collect()
    }
}
