//! The freeze lock: operations that change something hold it shared; unmount and reconcile take it exclusively.
//!
//! The problem: unmount saves the allocator as it is, and reconcile compares two tables; neither may see half an
//! operation. Operations must not pay for that by writing to one cache line from every core.
//!
//! The idea: one lock per stripe. A thread takes the lock of its own stripe; freezing takes all of them. Operations are
//! counted in the same line, so background work sees whether operations are running.

use crate::padded::Padded;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, thread_number};

const STRIPES: usize = 16;

#[derive(Default)]
struct Stripe {
    lock: RwLock<()>,
    entered: AtomicU64,
}

/// See the module.
pub(crate) struct Gate {
    stripes: [Padded<Stripe>; STRIPES],
}

impl Gate {
    pub(super) fn new() -> Gate {
        Gate { stripes: std::array::from_fn(|_| Padded::default()) }
    }

    /// Takes the freeze lock shared until the guard is dropped. A thread must not take it twice at once.
    pub(crate) fn enter(&self) -> RwLockReadGuard<'_, ()> {
        let stripe = &self.stripes[thread_number() % STRIPES];
        // No atomic addition: one that is lost among threads of one stripe is not missed.
        stripe.entered.store(stripe.entered.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        stripe.lock.read()
    }

    /// As `enter`, for work in the background: it is not counted.
    pub(crate) fn enter_background(&self) -> RwLockReadGuard<'_, ()> {
        self.stripes[thread_number() % STRIPES].lock.read()
    }

    /// How often somebody has entered, about: it moves when anybody is at work.
    pub(crate) fn entered(&self) -> u64 {
        let entered = self.stripes.iter().map(|stripe| stripe.entered.load(Ordering::Relaxed));
        entered.fold(0, u64::wrapping_add)
    }

    /// Waits for everyone inside, and keeps others out until the guards are dropped.
    pub(crate) fn close(&self) -> Vec<RwLockWriteGuard<'_, ()>> {
        self.stripes.iter().map(|stripe| stripe.lock.write()).collect()
    }
}
