//! Counters of stores, flushes and fences. Every claim about traffic and energy is based on them.
//!
//! The problem: counting must cost next to nothing on the write path. The idea: each thread adds to its own slot
//! without atomic read-modify-write (see `thread`), and a snapshot sums the slots.

use crate::LINE_BYTES;
use crate::thread::{SHARED_SLOT, SLOTS, slot};
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

/// Totals since the region was opened; subtract two snapshots to measure between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes stored through the cache.
    pub bytes_stored: u64,
    /// Lines flushed (also counted where no instruction is issued, see `FlushMode`).
    pub lines_flushed: u64,
    /// Bytes stored past the cache, in whole lines.
    pub bytes_streamed: u64,
    /// Number of fences.
    pub fences: u64,
    /// Lines fetched from the media according to the model of the cache (module `cache`). Counted with a profile
    /// other than `native`, or if wear is tracked.
    pub lines_read: u64,
    /// Attempts to replace a word or a pair by compare-and-exchange, a locked instruction.
    pub exchanges: u64,
    /// Picoseconds that the profile charged.
    pub charged_ps: u64,
}

impl Counters {
    /// Returns the lines stored past the cache.
    pub fn lines_streamed(&self) -> u64 {
        self.bytes_streamed / LINE_BYTES
    }

    /// Returns the lines that reached the media: flushed ones and streamed ones.
    pub fn lines_written(&self) -> u64 {
        self.lines_flushed + self.lines_streamed()
    }

    /// Returns the bytes of the lines fetched.
    pub fn bytes_read(&self) -> u64 {
        self.lines_read * LINE_BYTES
    }

    /// Returns the nanoseconds that the profile charged.
    pub fn charged_ns(&self) -> u64 {
        self.charged_ps / 1000
    }
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            bytes_stored: self.bytes_stored - earlier.bytes_stored,
            lines_flushed: self.lines_flushed - earlier.lines_flushed,
            bytes_streamed: self.bytes_streamed - earlier.bytes_streamed,
            fences: self.fences - earlier.fences,
            lines_read: self.lines_read - earlier.lines_read,
            exchanges: self.exchanges - earlier.exchanges,
            charged_ps: self.charged_ps - earlier.charged_ps,
        }
    }
}

/// Names one counter of a slot.
#[derive(Clone, Copy)]
pub(crate) enum Counter {
    BytesStored,
    LinesFlushed,
    BytesStreamed,
    Fences,
    LinesRead,
    Exchanges,
    ChargedPs,
}

/// The counters of one slot, in two lines, because the hardware prefetches lines in pairs.
#[repr(align(128))]
struct Slot([AtomicU64; 7]);

/// The counters of one region.
pub(crate) struct Tally([Slot; SLOTS]);

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally([const { Slot([const { AtomicU64::new(0) }; 7]) }; SLOTS])
    }

    #[inline]
    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        let slot = slot();
        let cell = &self.0[slot % SLOTS].0[counter as usize];
        if slot == SHARED_SLOT {
            cell.fetch_add(amount, Ordering::Relaxed);
        } else {
            // Only this thread uses the slot, so nothing is lost between load and store.
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> Counters {
        let sum = |counter: Counter| self.0.iter().map(|slot| slot.0[counter as usize].load(Ordering::Relaxed)).sum();
        Counters {
            bytes_stored: sum(Counter::BytesStored),
            lines_flushed: sum(Counter::LinesFlushed),
            bytes_streamed: sum(Counter::BytesStreamed),
            fences: sum(Counter::Fences),
            lines_read: sum(Counter::LinesRead),
            exchanges: sum(Counter::Exchanges),
            charged_ps: sum(Counter::ChargedPs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_is_lost_with_more_threads_than_slots() {
        const ROUNDS: u64 = if cfg!(miri) { 10 } else { 1000 };
        let tally = Tally::new();
        std::thread::scope(|scope| {
            for _ in 0..SLOTS + 20 {
                scope.spawn(|| (0..ROUNDS).for_each(|_| tally.add(Counter::Fences, 3)));
            }
        });
        assert_eq!(tally.snapshot().fences, (SLOTS as u64 + 20) * 3 * ROUNDS);
    }

    #[test]
    fn the_difference_of_two_counter_snapshots_is_the_traffic_between_them() {
        let tally = Tally::new();
        tally.add(Counter::BytesStreamed, 4096);
        let before = tally.snapshot();
        tally.add(Counter::BytesStreamed, 128);
        tally.add(Counter::LinesFlushed, 1);
        let between = tally.snapshot() - before;
        assert_eq!(between, Counters { bytes_streamed: 128, lines_flushed: 1, ..Counters::default() });
        assert_eq!(between.lines_written(), 3);
    }
}
