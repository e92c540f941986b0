//! What one thread keeps for itself: a counter slot, and whether it has streamed since its last fence.
//!
//! A slot has one owner at a time, so the owner counts without atomic read-modify-write. It goes back when the
//! thread ends; threads beyond the slots share the last one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counter slots of a region, the shared one included.
pub(crate) const SLOTS: usize = 64;
/// The slot that any number of threads may use at once.
pub(crate) const SHARED_SLOT: usize = SLOTS - 1;

const UNASSIGNED: usize = usize::MAX;

/// One bit a slot: set while a thread owns it. The shared slot is never free.
static OWNED: AtomicU64 = AtomicU64::new(1 << SHARED_SLOT);

thread_local! {
    static STREAMED: Cell<bool> = const { Cell::new(false) };
    static SLOT: Cell<usize> = const { Cell::new(UNASSIGNED) };
    static LEASE: Lease = Lease::take();
}

/// Notes that this thread stores past the cache.
#[inline]
pub(crate) fn note_stream() {
    STREAMED.set(true);
}

/// Whether this thread has stored past the cache since it was last asked.
#[inline]
pub(crate) fn take_streamed() -> bool {
    STREAMED.replace(false)
}

/// Slot of the calling thread.
#[inline]
pub(crate) fn slot() -> usize {
    match SLOT.get() {
        UNASSIGNED => assign_slot(),
        slot => slot,
    }
}

#[cold]
fn assign_slot() -> usize {
    // No lease can be had while the thread is being torn down: it shares.
    let slot = LEASE.try_with(|lease| lease.slot).unwrap_or(SHARED_SLOT);
    SLOT.set(slot);
    slot
}

struct Lease {
    slot: usize,
}

impl Lease {
    fn take() -> Lease {
        // Acquire pairs with the release below: the new owner sees what the old one counted.
        let before = OWNED.fetch_update(Ordering::Acquire, Ordering::Relaxed, |owned| {
            (owned != u64::MAX).then(|| owned | (owned + 1))
        });
        Lease { slot: before.map_or(SHARED_SLOT, |owned| owned.trailing_ones() as usize) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        SLOT.set(SHARED_SLOT);
        if self.slot != SHARED_SLOT {
            OWNED.fetch_and(!(1 << self.slot), Ordering::Release);
        }
    }
}

/// Number of the calling thread, never used again by another: what the recorder tells threads apart by.
pub(crate) fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_threads_never_share_an_owned_slot_and_dead_ones_give_it_back() {
        for _ in 0..20 {
            let barrier = std::sync::Barrier::new(10);
            let mut slots: Vec<usize> = std::thread::scope(|scope| {
                let work = || {
                    let mine = slot();
                    barrier.wait();
                    mine
                };
                let threads: Vec<_> = (0..10).map(|_| scope.spawn(work)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            slots.retain(|slot| *slot != SHARED_SLOT);
            // 200 threads came and went: without giving back, the later rounds would all share.
            assert!(!slots.is_empty());
            slots.sort_unstable();
            assert!(slots.windows(2).all(|pair| pair[0] != pair[1]), "{slots:?}");
        }
    }

    #[test]
    fn more_threads_than_slots_share_the_last() {
        let barrier = std::sync::Barrier::new(SLOTS + 6);
        let sharing = std::thread::scope(|scope| {
            let work = || {
                let mine = slot();
                barrier.wait();
                mine
            };
            let threads: Vec<_> = (0..SLOTS + 6).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).filter(|slot| *slot == SHARED_SLOT).count()
        });
        assert!(sharing >= 7, "{sharing}");
    }
}
