//! Wear: how often the lines of each block were written, so that endurance claims come from counts; and how often they
//! were read, counted by the same table.

use crate::{BLOCK_BYTES, LINE_BYTES};
use std::sync::atomic::{AtomicU32, Ordering};
use zerocopy::FromZeros;

/// Line writes (or reads) per block, with `OpenOptions::track_wear`: 4 bytes a block, zeroed lazily by the allocator, so
/// that a sparse device of any size costs what is written of it.
pub(crate) struct Wear(Box<[AtomicU32]>);

impl Wear {
    /// `None` when the host has no address space for the table.
    pub(crate) fn new(device_bytes: u64) -> Option<Wear> {
        <[AtomicU32]>::new_box_zeroed_with_elems((device_bytes / BLOCK_BYTES) as usize).ok().map(Wear)
    }

    /// Counts the lines that a range touches, each in its block.
    pub(crate) fn add(&self, offset: u64, length: u64) {
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let block_end = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
            let stop = end.min(block_end);
            let lines = stop.div_ceil(LINE_BYTES) - at / LINE_BYTES;
            self.add_lines(at, lines);
            at = stop;
        }
    }

    /// Counts lines in the block of an offset.
    pub(crate) fn add_lines(&self, offset: u64, lines: u64) {
        self.0[(offset / BLOCK_BYTES) as usize].fetch_add(lines as u32, Ordering::Relaxed);
    }

    /// Line writes to the blocks that a range touches.
    pub(crate) fn lines_in(&self, offset: u64, length: u64) -> u64 {
        let blocks = &self.0[(offset / BLOCK_BYTES) as usize..(offset + length).div_ceil(BLOCK_BYTES) as usize];
        blocks.iter().map(|count| u64::from(count.load(Ordering::Relaxed))).sum()
    }

    pub(crate) fn summary(&self) -> WearSummary {
        let mut summary = WearSummary {
            blocks: self.0.len() as u64,
            blocks_written: 0,
            lines_written: 0,
            lines_written_max: 0,
            histogram: [0; 33],
        };
        for count in &self.0 {
            let lines = count.load(Ordering::Relaxed);
            summary.blocks_written += u64::from(lines > 0);
            summary.lines_written += u64::from(lines);
            summary.lines_written_max = summary.lines_written_max.max(lines);
            summary.histogram[(u32::BITS - lines.leading_zeros()) as usize] += 1;
        }
        summary
    }
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
    /// Line writes per block, over all blocks of the device.
    pub fn lines_written_mean(&self) -> f64 {
        self.lines_written as f64 / self.blocks as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_in_the_block_they_lie_in() {
        let wear = Wear::new(4 * BLOCK_BYTES).unwrap();
        wear.add(BLOCK_BYTES - 1, 2); // one line on either side of a block boundary
        wear.add(BLOCK_BYTES, 64);
        wear.add(3 * BLOCK_BYTES, BLOCK_BYTES);
        wear.add(0, 0);
        let summary = wear.summary();
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
    fn the_table_of_a_huge_sparse_device_is_made_at_once() {
        assert!(Wear::new(crate::DEVICE_BYTES_MAX / 16).is_some());
    }
}
