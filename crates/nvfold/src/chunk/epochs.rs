//! When the old place of a moved packed chunk has no readers any longer.
//!
//! The problem: a reader of a packed chunk takes the place of the bytes from its entry, and then reads them there.
//! The chunk may move in between. Its old bytes stay as they are until the segment is reused, which must wait for
//! such readers, but readers must not wait for one another.
//!
//! The idea: epochs. A thread that looks up a place is counted in the epoch in which it began, until it has finished
//! with the bytes ([`Epochs::pin`]). The next epoch begins when no thread of the epoch before the present one is
//! left. So two epochs after a move, no thread that could know the old place is left.
//!
//! ```text
//! epoch     4          5            6
//! reader    |---------------|                 began in 4
//! mover         moves                 6 = 4 + 2: the old bytes are nobody's
//! ```
//!
//! A writer of a packed chunk is counted too, from the moment when the chunk has a place until its bytes are durable:
//! unfinished bytes must not be moved. A thread that holds a pin never waits for the lock of another inode.

use nvfold_sync::Padded;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use nvfold_sync::thread_number;

const STRIPES: usize = 16;

/// The number of pins of even epochs, and of odd ones.
type Pinned = [AtomicU64; 2];

/// The present epoch and its pins; see the module.
#[derive(Default)]
pub(crate) struct Epochs {
    now: Padded<AtomicU64>,
    /// One stripe per group of threads, so that readers on different cores do not share a line.
    pinned: [Padded<Pinned>; STRIPES],
}

/// While it exists, no bytes of a packed chunk whose place was looked up under it are reused.
#[must_use]
pub(crate) struct Pin<'e> {
    pinned: &'e AtomicU64,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.pinned.fetch_sub(1, Ordering::Release);
    }
}

impl Epochs {
    /// Counts the caller in the present epoch.
    pub(crate) fn pin(&self) -> Pin<'_> {
        let stripe = &self.pinned[thread_number() % STRIPES];
        loop {
            let now = self.now.load(Ordering::SeqCst);
            let pinned = &stripe[(now % 2) as usize];
            // Sequentially consistent, as the mover's accesses are: either the mover sees this pin, or this thread
            // sees the new epoch.
            pinned.fetch_add(1, Ordering::SeqCst);
            let pin = Pin { pinned };
            if self.now.load(Ordering::SeqCst) == now {
                return pin;
            }
        }
    }

    /// Returns the present epoch.
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    /// Returns whether all pins of epoch `since` and before are gone. Begins the next epoch if possible. Only one
    /// thread may call this at a time.
    pub(crate) fn has_passed(&self, since: u64) -> bool {
        for now in self.now()..since + 2 {
            let before = ((now + 1) % 2) as usize;
            if self.pinned.iter().any(|stripe| stripe[before].load(Ordering::SeqCst) > 0) {
                return false;
            }
            self.now.store(now + 1, Ordering::SeqCst);
        }
        true
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_ends_when_all_threads_pinned_in_it_have_left() {
        let epochs = Epochs::default();
        assert!(epochs.has_passed(epochs.now()), "nobody is there");
        let since = epochs.now();
        let (first, second) = (epochs.pin(), epochs.pin());
        assert!(!epochs.has_passed(since));
        drop(first);
        assert!(!epochs.has_passed(since));
        drop(second);
        assert!(epochs.has_passed(since));
    }

    #[test]
    fn ending_an_epoch_does_not_wait_for_threads_that_pinned_later() {
        let epochs = Epochs::default();
        let since = epochs.now();
        let early = epochs.pin();
        assert!(!epochs.has_passed(since));
        let late = epochs.pin();
        assert_eq!(epochs.now(), since + 1, "one epoch went by");
        drop(early);
        assert!(epochs.has_passed(since), "the late one was not there");
        assert!(!epochs.has_passed(since + 1), "but in this one it is");
        drop(late);
        assert!(epochs.has_passed(since + 1));
    }
}
