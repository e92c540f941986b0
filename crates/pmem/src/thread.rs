//! State of one thread: its counter slot, whether it has streamed since its last fence, whether it has read bad
//! memory, and the time that emulated devices charge it.
//!
//! A slot has one owner at a time, so the owner counts without atomic read-modify-write. The slot is free again when
//! the thread ends. Threads for which no slot is left share the last one.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counter slots of a region, the shared one included.
pub(crate) const SLOTS: usize = 64;
/// The slot that any number of threads may use at once.
pub(crate) const SHARED_SLOT: usize = SLOTS - 1;

const UNASSIGNED: usize = usize::MAX;

static OWNED: Owned = Owned::none();

thread_local! {
    static STREAMED: Cell<bool> = const { Cell::new(false) };
    /// Picoseconds that devices have charged.
    static CHARGED: Cell<u64> = const { Cell::new(0) };
    /// Of `CHARGED`: the part that the host did not take for the accesses themselves.
    static LEFT: Cell<u64> = const { Cell::new(0) };
    /// Of `LEFT`, and of the queues for the devices: the part that it has yet to wait for; negative after it waited
    /// too long.
    static OWED: Cell<i64> = const { Cell::new(0) };
    /// Of `LEFT`: the part that it never waits for.
    static COUNTED: Cell<u64> = const { Cell::new(0) };
    /// Nanoseconds of processor time that it has spent waiting.
    static SPUN: Cell<i64> = const { Cell::new(0) };
    /// `CHARGED` when it began to write its last line.
    static WRITE: Cell<Option<u64>> = const { Cell::new(None) };
    /// Value of `CHARGED` from which on all prefetched lines are there.
    static FETCHED_BY: Cell<u64> = const { Cell::new(0) };
    /// Mapping and offset of bad memory that was read.
    static BAD: Cell<Option<(usize, u64)>> = const { Cell::new(None) };
    static SLOT: Cell<usize> = const { Cell::new(UNASSIGNED) };
    static LEASE: Lease = Lease::take();
}

/// Records that this thread stores past the cache.
#[inline]
pub(crate) fn note_stream() {
    STREAMED.set(true);
}

/// Returns whether this thread has stored past the cache since the last call.
#[inline]
pub(crate) fn take_streamed() -> bool {
    STREAMED.replace(false)
}

/// Charges picoseconds to this thread; `left_ps` of them are left after the time that the host took.
pub(crate) fn charge(ps: u64, left_ps: u64) {
    CHARGED.set(CHARGED.get() + ps);
    LEFT.set(LEFT.get() + left_ps);
}

/// Returns the picoseconds charged to this thread that the host did not take.
pub(crate) fn left_ps() -> u64 {
    LEFT.get()
}

/// Adds processor time spent waiting, nanoseconds.
pub(crate) fn note_spun(ns: i64) {
    SPUN.set(SPUN.get() + ns);
}

/// Returns the nanoseconds of processor time spent waiting.
pub(crate) fn spun_ns() -> i64 {
    SPUN.get()
}

/// Changes the time that this thread has yet to wait for.
pub(crate) fn owe(ps: i64) {
    OWED.set(OWED.get() + ps);
}

/// Adds time that this thread never waits for.
pub(crate) fn count(ps: u64) {
    COUNTED.set(COUNTED.get() + ps);
}

/// Returns the picoseconds that this thread has yet to wait for.
pub(crate) fn owed_ps() -> i64 {
    OWED.get()
}

/// Returns the picoseconds charged to this thread that it has not waited for.
pub(crate) fn unpaid_ps() -> i64 {
    OWED.get() + COUNTED.get() as i64
}

/// Records that this thread begins to write a line once `from_now_ps` more picoseconds are charged.
pub(crate) fn note_write(from_now_ps: u64) {
    WRITE.set(Some(CHARGED.get() + from_now_ps));
}

/// Returns the picoseconds charged since this thread began to write its last line, or `None` if it wrote none since
/// the last call.
pub(crate) fn take_write() -> Option<u64> {
    WRITE.take().map(|began| CHARGED.get() - began)
}

/// Records that the lines that this thread has prefetched arrive once `in_ps` more picoseconds are charged.
pub(crate) fn note_fetch(in_ps: u64) {
    FETCHED_BY.set(FETCHED_BY.get().max(CHARGED.get() + in_ps));
}

/// Returns the picoseconds that this thread waits for prefetched lines if it reads now.
pub(crate) fn fetch_left_ps() -> u64 {
    FETCHED_BY.get().saturating_sub(CHARGED.get())
}

/// Records that this thread has read bad memory of a mapping. The first offset is kept.
pub(crate) fn note_bad(mapping: usize, offset: u64) {
    if BAD.get().is_none_or(|(noted, _)| noted != mapping) {
        BAD.set(Some((mapping, offset)));
    }
}

/// Drops a record of bad memory in `range`.
pub(crate) fn forget_bad(mapping: usize, range: Range<u64>) {
    if BAD.get().is_some_and(|(noted, offset)| noted == mapping && range.contains(&offset)) {
        BAD.set(None);
    }
}

/// Returns the offset at which this thread has read bad memory of a mapping since the last call.
pub(crate) fn take_bad(mapping: usize) -> Option<u64> {
    let (_, offset) = BAD.get().filter(|(noted, _)| *noted == mapping)?;
    BAD.set(None);
    Some(offset)
}

/// Returns the slot of the calling thread.
#[inline]
pub(crate) fn slot() -> usize {
    match SLOT.get() {
        UNASSIGNED => assign_slot(),
        slot => slot,
    }
}

#[cold]
fn assign_slot() -> usize {
    // A thread that is being torn down cannot take a lease, so it uses the shared slot.
    let slot = LEASE.try_with(|lease| lease.slot).unwrap_or(SHARED_SLOT);
    SLOT.set(slot);
    slot
}

struct Lease {
    slot: usize,
}

impl Lease {
    fn take() -> Lease {
        Lease { slot: OWNED.take() }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        SLOT.set(SHARED_SLOT);
        OWNED.give_back(self.slot);
    }
}

/// One bit per slot: set while a thread owns it. The shared slot is never free.
struct Owned(AtomicU64);

impl Owned {
    const fn none() -> Owned {
        Owned(AtomicU64::new(1 << SHARED_SLOT))
    }

    /// Takes the lowest free slot; returns the shared one if none is free.
    fn take(&self) -> usize {
        // Acquire pairs with the release below: the new owner sees what the old one counted.
        let before = self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, |owned| {
            (owned != u64::MAX).then(|| owned | (owned + 1))
        });
        before.map_or(SHARED_SLOT, |owned| owned.trailing_ones() as usize)
    }

    fn give_back(&self, slot: usize) {
        if slot != SHARED_SLOT {
            self.0.fetch_and(!(1 << slot), Ordering::Release);
        }
    }
}

/// Returns the number of the calling thread, which no other thread ever gets. The recorder identifies threads by it.
pub(crate) fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_slot_has_one_thread_until_it_is_released() {
        let owned = Owned::none();
        let taken: Vec<usize> = (0..SLOTS - 1).map(|_| owned.take()).collect();
        assert_eq!(taken, (0..SHARED_SLOT).collect::<Vec<_>>());
        assert_eq!((owned.take(), owned.take()), (SHARED_SLOT, SHARED_SLOT));
        owned.give_back(SHARED_SLOT);
        assert_eq!(owned.take(), SHARED_SLOT, "the shared one is never owned");
        owned.give_back(17);
        assert_eq!((owned.take(), owned.take()), (17, SHARED_SLOT));
    }

    #[test]
    fn a_thread_keeps_its_counter_slot_until_it_ends() {
        for _ in 0..if cfg!(miri) { SLOTS + 1 } else { 3 * SLOTS } {
            let (first, second) = std::thread::spawn(|| (slot(), slot())).join().unwrap();
            assert_eq!(first, second);
        }
        // If threads kept their slots, all would be owned by now, also after the tests that run at the same time are
        // done.
        let has_own = || std::thread::spawn(|| slot() != SHARED_SLOT).join().unwrap();
        while !has_own() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_beyond_the_number_of_counter_slots_share_the_last() {
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
