//! Wear counters: writes per block, reads per block, and writes per line, because a block hides its hottest line.
//! Endurance claims come from these counts. All three tables have one type.
//!
//! A count saturates at its maximum: a line that was written 2^32 times must not look new.

use crate::{BLOCK_BYTES, LINE_BYTES};
use std::sync::atomic::{AtomicU32, Ordering};
use zerocopy::FromZeros;

/// Line writes (or reads) per unit, a block or a line: 4 bytes each. The allocator zeroes them lazily, so the table
/// takes memory only for the written part of a sparse device.
pub(crate) struct Wear {
    /// Logarithm of the bytes of a unit. Every written line is looked up, and a division would cost measurable time.
    unit_bits: u32,
    counts: Box<[AtomicU32]>,
}

impl Wear {
    /// Makes a count for each block (`OpenOptions::track_wear`). `None` if the host has no address space for the table.
    pub(crate) fn of_blocks(device_bytes: u64) -> Option<Wear> {
        Wear::new(device_bytes, BLOCK_BYTES)
    }

    /// Makes a count for each line (`OpenOptions::track_lines`).
    pub(crate) fn of_lines(device_bytes: u64) -> Option<Wear> {
        Wear::new(device_bytes, LINE_BYTES)
    }

    fn new(device_bytes: u64, unit_bytes: u64) -> Option<Wear> {
        let counts = <[AtomicU32]>::new_box_zeroed_with_elems((device_bytes / unit_bytes) as usize).ok()?;
        Some(Wear { unit_bits: unit_bytes.ilog2(), counts })
    }

    /// Counts the lines that a range touches, each in its unit.
    pub(crate) fn add(&self, offset: u64, length: u64) {
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let unit_end = ((at >> self.unit_bits) + 1) << self.unit_bits;
            let stop = end.min(unit_end);
            let lines = stop.div_ceil(LINE_BYTES) - at / LINE_BYTES;
            self.add_lines(at, lines);
            at = stop;
        }
    }

    /// Adds lines to the count of the unit at an offset; the count saturates.
    pub(crate) fn add_lines(&self, offset: u64, lines: u64) {
        let count = &self.counts[(offset >> self.unit_bits) as usize];
        let before = count.fetch_add(lines as u32, Ordering::Relaxed);
        if before.checked_add(lines as u32).is_none() {
            count.store(u32::MAX, Ordering::Relaxed);
        }
    }

    /// Returns the counts of the units that a range touches.
    fn within(&self, offset: u64, length: u64) -> &[AtomicU32] {
        let (first, end) = (offset >> self.unit_bits, (offset + length).div_ceil(1 << self.unit_bits));
        &self.counts[first as usize..end as usize]
    }

    /// Returns the line writes to the units that a range touches.
    pub(crate) fn lines_in(&self, offset: u64, length: u64) -> u64 {
        self.within(offset, length).iter().map(|count| u64::from(count.load(Ordering::Relaxed))).sum()
    }

    /// Returns how evenly the lines of a range were written, and the line that was written most.
    pub(crate) fn line_wear(&self, offset: u64, length: u64) -> LineWear {
        let counts = self.within(offset, length);
        let mut wear = LineWear { lines: counts.len() as u64, ..LineWear::default() };
        for (at, count) in counts.iter().enumerate() {
            let writes = count.load(Ordering::Relaxed);
            wear.lines_written += u64::from(writes > 0);
            wear.writes += u64::from(writes);
            if writes > wear.hottest_writes {
                (wear.hottest_writes, wear.hottest_at) = (writes, (offset / LINE_BYTES + at as u64) * LINE_BYTES);
            }
        }
        wear
    }

    /// Returns how evenly the units of the first `device_bytes` were written; the table may have room for more.
    pub(crate) fn summary(&self, device_bytes: u64) -> WearSummary {
        let counts = &self.counts[..(device_bytes >> self.unit_bits) as usize];
        let mut summary = WearSummary {
            blocks: counts.len() as u64,
            blocks_written: 0,
            lines_written: 0,
            lines_written_max: 0,
            histogram: [0; 33],
        };
        for count in counts {
            let lines = count.load(Ordering::Relaxed);
            summary.blocks_written += u64::from(lines > 0);
            summary.lines_written += u64::from(lines);
            summary.lines_written_max = summary.lines_written_max.max(lines);
            summary.histogram[(u32::BITS - lines.leading_zeros()) as usize] += 1;
        }
        summary
    }
}

/// How evenly the lines of a range are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineWear {
    /// Lines of the range.
    pub lines: u64,
    /// Lines written at least once.
    pub lines_written: u64,
    /// Line writes in all.
    pub writes: u64,
    /// Writes of the line that had most.
    pub hottest_writes: u32,
    /// Device offset of that line in bytes.
    pub hottest_at: u64,
}

/// How evenly a device is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WearSummary {
    /// Blocks of the device.
    pub blocks: u64,
    /// Blocks written at least once.
    pub blocks_written: u64,
    /// Line writes in all.
    pub lines_written: u64,
    /// Line writes to the block that had most.
    pub lines_written_max: u32,
    /// Blocks by line writes: element 0 has those with none, element n those with 2^(n-1) to 2^n - 1.
    pub histogram: [u64; 33],
}

impl WearSummary {
    /// Returns the line writes per block, over all blocks of the device.
    pub fn lines_written_mean(&self) -> f64 {
        self.lines_written as f64 / self.blocks as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_in_the_block_they_lie_in() {
        let wear = Wear::of_blocks(4 * BLOCK_BYTES).unwrap();
        wear.add(BLOCK_BYTES - 1, 2); // one line on either side of a block boundary
        wear.add(BLOCK_BYTES, 64);
        wear.add(3 * BLOCK_BYTES, BLOCK_BYTES);
        wear.add(0, 0);
        let summary = wear.summary(4 * BLOCK_BYTES);
        assert_eq!((summary.blocks, summary.blocks_written), (4, 3));
        assert_eq!((summary.lines_written, summary.lines_written_max), (1 + 2 + 64, 64));
        assert_eq!(
            (summary.histogram[0], summary.histogram[1], summary.histogram[2], summary.histogram[7]),
            (1, 1, 1, 1)
        );
        assert_eq!(summary.lines_written_mean(), 67.0 / 4.0);
        assert_eq!((wear.lines_in(0, BLOCK_BYTES), wear.lines_in(BLOCK_BYTES, 1)), (1, 2));
        assert_eq!(wear.lines_in(BLOCK_BYTES, 3 * BLOCK_BYTES), 66);
    }

    #[test]
    fn each_line_has_a_count_of_its_own() {
        let wear = Wear::of_lines(BLOCK_BYTES).unwrap();
        wear.add(LINE_BYTES - 1, 2);
        wear.add(LINE_BYTES, 1);
        let expected = LineWear { lines: 4, lines_written: 2, writes: 3, hottest_writes: 2, hottest_at: LINE_BYTES };
        assert_eq!(wear.line_wear(0, 4 * LINE_BYTES), expected);
        let cold = LineWear { lines: 62, ..LineWear::default() };
        assert_eq!(wear.line_wear(2 * LINE_BYTES, 62 * LINE_BYTES), cold);
        assert_eq!(wear.lines_in(0, BLOCK_BYTES), 3);
    }

    #[test]
    fn a_wear_count_stays_at_its_maximum() {
        let wear = Wear::of_blocks(2 * BLOCK_BYTES).unwrap();
        for _ in 0..3 {
            wear.add_lines(0, u64::from(u32::MAX) - 5);
            wear.add_lines(BLOCK_BYTES, u64::from(u32::MAX) - 5);
        }
        let summary = wear.summary(2 * BLOCK_BYTES);
        assert_eq!((summary.lines_written_max, summary.histogram[32]), (u32::MAX, 2));
        assert_eq!(summary.lines_written, 2 * u64::from(u32::MAX));
    }

    #[test]
    fn the_table_of_a_huge_sparse_device_is_made_at_once() {
        assert!(Wear::of_blocks(crate::DEVICE_BYTES_MAX / 16).is_some());
    }
}
