//! How much an operation that found too little space works for more of it before it fails.
//!
//! The problem: emptying segments and collecting byte ranges can look at the whole device, and a device that is full
//! stays full. If each operation that fails did all of that first, it would take seconds, again and again.
//!
//! The idea: an operation has a limited number of steps, over all its attempts and all kinds of work ([`Effort`]). The
//! work keeps its place between steps, so the next operation that fails goes on where this one stopped. And work that
//! ended without any gain is not begun again before something was freed ([`Vain`]).

use super::Jobs;
use crate::error::Result;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use nvfold_sync::spin_loop;
use std::cell::Cell;

/// The number of steps that one operation does. A step takes a fifth of a millisecond on average and at most one, so
/// together they take about 50 ms.
const STEPS: u32 = if cfg!(feature = "shuttle") { 100 } else { 250 };

/// How often an operation may look whether readers have left a segment, or another thread its work, instead of a step.
const WAITS_PER_STEP: u32 = if cfg!(feature = "shuttle") { 1 } else { 4096 };

/// What an operation may still do for space.
pub(crate) struct Effort {
    waits: Cell<u32>,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { waits: Cell::new(STEPS * WAITS_PER_STEP) }
    }
}

impl Effort {
    #[cfg(test)]
    pub(crate) fn of(steps: u32) -> Effort {
        Effort { waits: Cell::new(steps * WAITS_PER_STEP) }
    }

    /// Returns how many steps are left.
    #[cfg(test)]
    pub(super) fn steps_left(&self) -> u32 {
        self.waits.get() / WAITS_PER_STEP
    }

    /// Returns true if no step is left.
    pub(crate) fn is_spent(&self) -> bool {
        self.waits.get() == 0
    }

    /// Records a step of work.
    pub(crate) fn worked(&self) {
        self.waits.set(self.waits.get().saturating_sub(WAITS_PER_STEP));
    }

    /// Records a step that could only wait, and waits.
    pub(super) fn waited(&self) {
        self.waits.set(self.waits.get().saturating_sub(1));
        spin_loop();
    }
}

/// The outcome of a step of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worked {
    /// There is more to do.
    GoesOn,
    /// A reader may still use what has moved, or another thread does this work.
    Waits,
    /// Nothing is left that is worth the work.
    Nothing,
}

/// The number of bytes that were free, or may have been dead, when work for space last ended without gain; `u64::MAX`
/// before.
pub(super) struct Vain(AtomicU64);

impl Default for Vain {
    fn default() -> Vain {
        Vain(AtomicU64::new(u64::MAX))
    }
}

impl Vain {
    /// Returns true if work without gain would be repeated: if not even `least` bytes have come to those of that time.
    pub(super) fn would_repeat(&self, bytes: u64, least: u64) -> bool {
        let then = self.0.load(Ordering::Relaxed);
        if bytes < then && then != u64::MAX {
            // What was used since and is freed again counts as freed.
            self.record(bytes);
        }
        then != u64::MAX && bytes < then.saturating_add(least)
    }

    /// Records that the work has gained something. What was freed is in use again sooner or later, so that bytes of that
    /// time and of now cannot be compared.
    pub(crate) fn gained(&self) {
        self.0.store(u64::MAX, Ordering::Relaxed);
    }

    /// Records that the work has ended without gain.
    pub(crate) fn record(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

impl Jobs<'_> {
    /// Does steps of work for an operation that found too little space and holds no lock now: until it `is_enough`, or
    /// nothing is left to do, or no effort.
    pub(super) fn work_for_space(
        &self,
        effort: &Effort,
        is_enough: impl Fn() -> bool,
        step: impl Fn() -> Result<Worked>,
    ) {
        while !effort.is_spent() && !is_enough() {
            let _inside = self.freeze_lock.enter_background();
            let may_work = !self.read_only && !self.region.is_lost();
            match may_work.then(&step) {
                Some(Ok(Worked::GoesOn)) => effort.worked(),
                Some(Ok(Worked::Waits)) => effort.waited(),
                _ => break,
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn futile_work_for_space_is_repeated_once_enough_was_freed() {
        let vain = Vain::default();
        assert!(!vain.would_repeat(0, 100), "it was never in vain");
        vain.record(5000);
        assert!(vain.would_repeat(5000, 1) && vain.would_repeat(5099, 100));
        assert!(!vain.would_repeat(5100, 100) && !vain.would_repeat(5001, 1));
        assert!(vain.would_repeat(300, 100), "more was used, and nothing freed");
        assert!(!vain.would_repeat(400, 100), "and some of that was freed");
        vain.gained();
        assert!(!vain.would_repeat(100, 100), "less is left because work has gained something");
    }

    #[test]
    fn the_work_for_space_of_an_operation_ends_after_its_last_step_or_wait() {
        let effort = Effort::of(2);
        effort.waited();
        effort.worked();
        assert!(!effort.is_spent());
        effort.worked();
        assert!(effort.is_spent());
        let effort = Effort::of(1);
        (0..WAITS_PER_STEP).for_each(|_| effort.waited());
        assert!(effort.is_spent());
    }
}
