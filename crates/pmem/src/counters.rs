//! What was written, flushed and fenced: the figures behind every claim about traffic, wear and energy.
//!
//! Counting must cost next to nothing on the write path, so each thread adds to a slot of its own without
//! atomic read-modify-write; threads beyond the slots share the last one with real atomic additions.

use std::cell::Cell;
use std::ops::Sub;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

const SLOTS: usize = 64;

/// Totals since the region was opened; subtract two snapshots to measure between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes stored through the cache.
    pub bytes_stored: u64,
    /// Lines flushed (counted also where the instruction is not issued, see `FlushMode`).
    pub lines_flushed: u64,
    /// Bytes stored past the cache.
    pub bytes_streamed: u64,
    /// Fences.
    pub fences: u64,
    /// Bytes read; counted with a profile other than `native` only.
    pub bytes_read: u64,
    /// Nanoseconds that the profile charged.
    pub charged_ns: u64,
}

impl Sub for Counters {
    type Output = Counters;
    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            bytes_stored: self.bytes_stored - earlier.bytes_stored,
            lines_flushed: self.lines_flushed - earlier.lines_flushed,
            bytes_streamed: self.bytes_streamed - earlier.bytes_streamed,
            fences: self.fences - earlier.fences,
            bytes_read: self.bytes_read - earlier.bytes_read,
            charged_ns: self.charged_ns - earlier.charged_ns,
        }
    }
}

impl Counters {
    /// Lines that reached the media: flushed ones and streamed ones.
    pub fn lines_written(&self) -> u64 {
        self.lines_flushed + self.bytes_streamed.div_ceil(64)
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Counter {
    BytesStored,
    LinesFlushed,
    BytesStreamed,
    Fences,
    BytesRead,
    ChargedNs,
}

#[repr(align(64))]
#[derive(Default)]
struct Slot([AtomicU64; 6]);

pub(crate) struct Tally(Box<[Slot]>);

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally((0..SLOTS).map(|_| Slot::default()).collect())
    }

    #[inline]
    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        let thread = thread_number();
        let cell = &self.0[thread.min(SLOTS - 1)].0[counter as usize];
        if thread < SLOTS - 1 {
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
        } else {
            cell.fetch_add(amount, Ordering::Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> Counters {
        let sum = |counter: Counter| self.0.iter().map(|slot| slot.0[counter as usize].load(Ordering::Relaxed)).sum();
        Counters {
            bytes_stored: sum(Counter::BytesStored),
            lines_flushed: sum(Counter::LinesFlushed),
            bytes_streamed: sum(Counter::BytesStreamed),
            fences: sum(Counter::Fences),
            bytes_read: sum(Counter::BytesRead),
            charged_ns: sum(Counter::ChargedNs),
        }
    }
}

/// Small number of the calling thread; each thread has its own and keeps it.
#[inline]
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// Line writes per 4 KiB block, with `OpenOptions::track_wear`.
pub(crate) struct Wear(Vec<AtomicU32>);

impl Wear {
    pub(crate) fn new(device_bytes: u64) -> Wear {
        Wear((0..device_bytes.div_ceil(crate::BLOCK_BYTES)).map(|_| AtomicU32::new(0)).collect())
    }

    pub(crate) fn add(&self, offset: u64, length: u64) {
        let first = offset / 64;
        let last = (offset + length).div_ceil(64);
        for line in first..last {
            self.0[(line / 64) as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn summary(&self) -> WearSummary {
        let counts = || self.0.iter().map(|count| count.load(Ordering::Relaxed));
        let written = counts().filter(|count| *count > 0).count() as u64;
        let mut histogram = [0; 33];
        counts().for_each(|count| histogram[(32 - count.leading_zeros()) as usize] += 1);
        WearSummary {
            lines_written: counts().map(u64::from).sum(),
            blocks_written: written,
            lines_written_max: counts().max().unwrap_or(0),
            histogram,
        }
    }
}

/// How evenly a device is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WearSummary {
    /// Line writes in all.
    pub lines_written: u64,
    /// Blocks written at least once.
    pub blocks_written: u64,
    /// Line writes to the block that had most.
    pub lines_written_max: u32,
    /// Blocks by line writes: element 0 has those with none, element n those with 2^(n-1) to 2^n - 1.
    pub histogram: [u64; 33],
}
