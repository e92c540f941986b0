//! References that a change has dropped, and that are released after its locks are left.
//!
//! The problem: a change of a large file drops any number of references in one commit. Releasing them takes time that
//! grows with their number, and meanwhile the lock of the inode and the freeze lock would be held: nobody reads the file,
//! and whoever closes the freeze lock waits, with all operations behind him. With a pm index, a released block that no
//! other extent references also leaves a chain on the media: stores, flushes and a fence for each such change, which the
//! caller would wait for.
//!
//! The idea: what was dropped goes on a list, in steps that are each released under an entry of the freeze lock of its
//! own. Until then counts are too high, which a crash may leave at any time (invariant 1). A search may find a block on the
//! list and take a reference; then the release leaves one. A step is released as a batch: entries are fetched side by
//! side, many of them share a fence, and private blocks leave the dram index together, under one round of locks.
//!
//! ```text
//!              on the list                       released
//! dram index   all but the first AT_ONCE         before the call returns
//! pm index     what may have entries             by the daemon, each job, and the call that finds more than LATE_MOST
//! both                                           when space is short, and before anyone asks what is free or stored
//! ```
//!
//! With a dram index, a release of one reference is one compare-and-exchange: the list would cost more than it saves.
//!
//! While recovery counts references, nothing is postponed: what is counted and what is dropped would not agree.

use super::Store;
use crate::inode::extents::Dropped;
use crate::panics::Job;
use crate::space::BlockRun;
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicU64, Ordering};

/// The number of references that a change releases at once, and each step after it.
pub(crate) const AT_ONCE: u64 = 4096;

/// With a pm index: the number of references that may stay on the list when a call returns, and that a step releases. A
/// call that finds the list full waits for one step, about a tenth of a millisecond.
pub(crate) const LATE_MOST: u64 = 4096;
const LATE_STEP: u64 = 512;

/// How many references may stay on the list when a call returns, and how many a step releases.
struct Bounds {
    left: u64,
    step: u64,
}

/// The references on the list.
#[derive(Default)]
pub(super) struct Postponed {
    /// The number of references on the list. It changes under the lock of the list.
    waiting: AtomicU64,
    /// What was dropped, with its number of references. What changes have dropped one after the other is together.
    list: Mutex<Vec<(u64, Dropped)>>,
    /// Held while the list is emptied, outside of the freeze lock: who waits for it finds everything released.
    releasing: Mutex<()>,
}

impl Postponed {
    /// Adds what a change has dropped. It is committed.
    fn add(&self, dropped: Dropped) {
        let references = dropped.references();
        if references == 0 {
            return;
        }
        let mut list = self.list.lock();
        match list.last_mut().filter(|(others, _)| others + references <= AT_ONCE) {
            Some((others, last)) => {
                *others += references;
                last.append(dropped);
            }
            None => list.push((references, dropped)),
        }
        self.waiting.store(self.waiting.load(Ordering::Relaxed) + references, Ordering::Release);
    }

    /// Takes at most `most` references.
    fn take(&self, most: u64) -> Option<Dropped> {
        let mut list = self.list.lock();
        let (references, mut taken) = list.pop()?;
        if references > most {
            list.push((references - most, taken.split_off(most)));
        }
        self.waiting.store(self.waiting.load(Ordering::Relaxed) - references.min(most), Ordering::Release);
        Some(taken)
    }
}

impl Store {
    /// Splits off what a change may not release under its locks, or need not. What was `moved` has equal data elsewhere by
    /// now, which searches must find instead, so it waits only if it must.
    #[inline]
    pub(crate) fn split_postponed(&self, dropped: &mut Dropped, moved: bool) -> Option<Dropped> {
        if dropped.is_empty() {
            return None;
        }
        if !moved && self.is_released_late(dropped) {
            return Some(std::mem::take(dropped));
        }
        let is_bounded = dropped.references() <= AT_ONCE || self.is_reconciling();
        (!is_bounded).then(|| dropped.split_off(AT_ONCE))
    }

    /// True if all of it may wait on the list, because a release would store to the index on the media.
    #[inline]
    fn is_released_late(&self, dropped: &Dropped) -> bool {
        let stores_to_index = |run: &BlockRun| self.chunks.may_have_entries(*run);
        self.chunks.index.fact().is_some()
            && (!dropped.packed.is_empty() || dropped.blocks.iter().any(stores_to_index))
            && !self.is_reconciling()
    }

    /// Releases later what was split off, once it is committed that nothing names it.
    #[inline]
    pub(crate) fn postpone(&self, dropped: Dropped) {
        self.postponed.add(dropped);
    }

    /// Releases what a call may not leave behind. The caller holds no lock.
    #[inline]
    pub(crate) fn release_postponed(&self) {
        let bounds = self.bounds();
        if self.postponed.waiting.load(Ordering::Acquire) > bounds.left {
            self.release_in_steps(bounds);
        }
    }

    /// Releases all that was postponed. The caller holds no lock. Returns true if there was any.
    #[inline]
    pub(crate) fn release_waiting(&self) -> bool {
        self.postponed.waiting.load(Ordering::Acquire) > 0 && self.release_in_steps(Bounds { left: 0, ..self.bounds() })
    }

    /// The same for work beside the calls: a panic ends the work that it interrupts, and no thread.
    pub(crate) fn release_in_background(&self) {
        if self.postponed.waiting.load(Ordering::Acquire) > 0 {
            let _panicked = self.panics.contain(Job::Release, None, || Ok(self.release_waiting()));
        }
    }

    #[inline]
    fn bounds(&self) -> Bounds {
        match self.chunks.index.fact() {
            Some(_) => Bounds { left: LATE_MOST, step: LATE_STEP },
            None => Bounds { left: 0, step: AT_ONCE },
        }
    }

    /// Releases until at most `left` references are on the list. Returns false on a device that may not change.
    #[cold]
    fn release_in_steps(&self, Bounds { left, step }: Bounds) -> bool {
        let _only = self.postponed.releasing.lock();
        while self.postponed.waiting.load(Ordering::Acquire) > left {
            let _inside = self.freeze_lock.enter();
            if self.unmounted.load(Ordering::Relaxed) || self.region.is_lost() {
                return false;
            }
            self.postponed.take(step).into_iter().for_each(|step| self.release_batch(step));
        }
        true
    }

    /// Releases all of it at once: nothing else runs, because the freeze lock is closed.
    pub(crate) fn release_all_postponed(&self) {
        while let Some(step) = self.postponed.take(AT_ONCE) {
            self.release_batch(step);
        }
    }
}
