//! When nobody looks any more where a packed chunk lay before it moved.
//!
//! The problem: who reads a packed chunk learns from its entry where the bytes are, and reads them there. The chunk may
//! move between the two. Its old bytes stay as they are until the segment gets another use, which must wait for such a
//! reader; and readers must not pay for it by waiting for one another.
//!
//! The idea: epochs. Who looks a place up is counted in the epoch that it began in, until it has done with the bytes
//! ([`Epochs::pin`]). The next epoch begins when nobody of the one before the present is left. So two epochs later nobody is
//! left who was there when a chunk moved.
//!
//! ```text
//! epoch     4          5            6
//! reader    |---------------|                 began in 4
//! mover         moves                 6 = 4 + 2: the old bytes are nobody's
//! ```
//!
//! Who writes a packed chunk is counted too, from the moment it has a place until its bytes are durable: bytes that are
//! still on their way cannot be moved. With a pin nobody waits for the lock of another inode.

use crate::padded::Padded;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread_number;

const STRIPES: usize = 16;

/// Those who are pinned in even epochs, and in odd ones.
type Pinned = [AtomicU64; 2];

/// See the module.
#[derive(Default)]
pub struct Epochs {
    now: Padded<AtomicU64>,
    /// By thread, so that readers on different cores do not share a line.
    pinned: [Padded<Pinned>; STRIPES],
}

/// As long as it lives, no bytes of a packed chunk that were looked up under it get another use.
#[must_use]
pub struct Pin<'e> {
    pinned: &'e AtomicU64,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.pinned.fetch_sub(1, Ordering::Release);
    }
}

impl Epochs {
    /// Counts the caller in the present epoch.
    pub fn pin(&self) -> Pin<'_> {
        let stripe = &self.pinned[thread_number() % STRIPES];
        loop {
            let now = self.now.load(Ordering::SeqCst);
            let pinned = &stripe[(now % 2) as usize];
            // Sequentially consistent, as is what the mover does: either it sees this one, or this one sees its epoch.
            pinned.fetch_add(1, Ordering::SeqCst);
            let pin = Pin { pinned };
            if self.now.load(Ordering::SeqCst) == now {
                return pin;
            }
        }
    }

    /// Returns the present epoch.
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    /// Whether nobody is left who was pinned in the epoch `since` or before. Begins the next epoch if that can be; one
    /// thread at a time may ask.
    pub fn has_passed(&self, since: u64) -> bool {
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
    fn an_epoch_has_passed_when_all_have_left_who_were_there() {
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
    fn who_comes_later_is_not_waited_for() {
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
