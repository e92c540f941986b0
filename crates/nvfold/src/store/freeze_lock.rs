//! The freeze lock: operations that change something hold it shared; unmount, reconcile and the beginning of a backup take
//! it exclusively, and so does the moment in which a device becomes longer.
//!
//! The problem: unmount saves the allocator as it is, and reconcile compares two tables; neither may see half an
//! operation. Operations must not pay for that by writing to one cache line from every core.
//!
//! The idea: one lock per stripe. A thread takes the lock of its own stripe; freezing takes all of them. Operations are
//! counted in the same line, so background work sees whether operations are running.

use nvfold_sync::Padded;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use nvfold_sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, thread_number};

const STRIPES: usize = 16;

#[derive(Default)]
struct FreezeStripe {
    lock: RwLock<()>,
    entered: AtomicU64,
}

/// The freeze lock: see the module.
pub(crate) struct FreezeLock {
    stripes: [Padded<FreezeStripe>; STRIPES],
}

impl FreezeLock {
    pub(crate) fn new() -> FreezeLock {
        FreezeLock { stripes: std::array::from_fn(|_| Padded::default()) }
    }

    /// Takes the freeze lock shared until the guard is dropped. A thread must not take it twice at once.
    #[inline]
    pub(crate) fn enter(&self) -> RwLockReadGuard<'_, ()> {
        let stripe = &self.stripes[thread_number() % STRIPES];
        // Not an atomic addition: it does no harm if threads of one stripe lose a count.
        stripe.entered.store(stripe.entered.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        stripe.lock.read()
    }

    /// The same as `enter` for background work, which is not counted.
    pub(crate) fn enter_background(&self) -> RwLockReadGuard<'_, ()> {
        self.stripes[thread_number() % STRIPES].lock.read()
    }

    /// Returns the approximate number of operations so far. It changes whenever an operation runs.
    pub(crate) fn entered(&self) -> u64 {
        let entered = self.stripes.iter().map(|stripe| stripe.entered.load(Ordering::Relaxed));
        entered.fold(0, u64::wrapping_add)
    }

    /// Takes the freeze lock exclusively: waits for all operations, and keeps new ones out until the guards are
    /// dropped.
    pub(crate) fn close(&self) -> Vec<RwLockWriteGuard<'_, ()>> {
        self.stripes.iter().map(|stripe| stripe.lock.write()).collect()
    }
}
