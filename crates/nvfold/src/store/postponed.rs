//! References that a change has dropped, and that are released after its locks are left.
//!
//! The problem: a change of a large file drops any number of references in one commit. Releasing them takes time that
//! grows with their number, and meanwhile the lock of the inode and the freeze lock would be held: nobody reads the file,
//! and whoever closes the freeze lock waits, with all operations behind him.
//!
//! The idea: the change releases the first [`AT_ONCE`] itself. The rest goes on a list, and the call releases that in
//! steps before it returns, each under an entry of the freeze lock of its own. Until then counts are too high, which a
//! crash may leave at any time (invariant 1). A step is released as a batch: its runs are sorted, entries are fetched side
//! by side, and private blocks leave the dram index together, under one round of locks instead of one lock for each.
//!
//! While recovery counts references, nothing is postponed: what is counted and what is dropped would not agree.

use super::Store;
use crate::inode::extents::Dropped;
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicBool, Ordering};

/// The number of references that a change releases at once, and each step after it.
pub(crate) const AT_ONCE: u64 = 4096;

/// The references on the list.
#[derive(Default)]
pub(super) struct Postponed {
    any: AtomicBool,
    list: Mutex<Vec<Dropped>>,
    /// Held while the list is emptied, outside of the freeze lock: who waits for it finds everything released.
    releasing: Mutex<()>,
}

impl Postponed {
    /// Adds what a change has dropped. It is committed.
    pub(super) fn add(&self, dropped: Dropped) {
        if !dropped.is_empty() {
            self.list.lock().push(dropped);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Takes what one step releases.
    fn take(&self) -> Option<Dropped> {
        let mut list = self.list.lock();
        let mut step = list.pop();
        let rest = step.as_mut().map(|step| step.split_off(AT_ONCE)).unwrap_or_default();
        if !rest.is_empty() {
            list.push(rest);
        }
        self.any.store(!list.is_empty(), Ordering::Release);
        step
    }
}

impl Store {
    /// Splits off what a change may not release under its locks.
    pub(crate) fn split_postponed(&self, dropped: &mut Dropped) -> Dropped {
        let is_bounded = dropped.references() <= AT_ONCE || self.is_reconciling();
        if is_bounded { Dropped::default() } else { dropped.split_off(AT_ONCE) }
    }

    /// Releases later what was split off, once it is committed that nothing names it.
    pub(crate) fn postpone(&self, dropped: Dropped) {
        self.postponed.add(dropped);
    }

    /// Releases what was postponed, in steps. The caller holds no lock. Returns true if there was any.
    #[inline]
    pub(crate) fn release_postponed(&self) -> bool {
        self.postponed.any.load(Ordering::Acquire) && self.release_in_steps()
    }

    #[cold]
    fn release_in_steps(&self) -> bool {
        let _only = self.postponed.releasing.lock();
        loop {
            let _inside = self.freeze_lock.enter();
            if self.unmounted.load(Ordering::Relaxed) || self.region.is_lost() {
                return false;
            }
            let Some(step) = self.postponed.take() else { return true };
            self.release_batch(step);
        }
    }

    /// Releases all of it at once: nothing else runs, because the freeze lock is closed.
    pub(crate) fn release_all_postponed(&self) {
        while let Some(step) = self.postponed.take() {
            self.release_batch(step);
        }
    }
}
