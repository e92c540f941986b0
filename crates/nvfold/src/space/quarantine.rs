//! Blocks in bad memory: the allocator does not hand them out while mounted.
//!
//! A block cannot be used if it is in bad memory, or if its chunk entry is, because its references could not be
//! counted. The next allocation first takes such blocks out of the free ones; those in use are not returned when they
//! are freed. The next mount starts over, and finds them again if they are still bad.

use super::{BlockRun, Purpose, Space};
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::{BLOCK_BYTES, BlockNumber, SEGMENT_BLOCKS};
use nvfold_sync::atomic::Ordering;

impl Space {
    pub(super) fn has_bad_memory(&self) -> bool {
        self.region.check_writable(0, self.region.len_bytes()).is_err()
    }

    /// Frees the blocks of a run that can be used again.
    pub(super) fn free_sound(&self, run: BlockRun) {
        let sound = run.blocks().filter(|block| self.sound_or_forget(*block));
        sound.for_each(|start| self.free_run(BlockRun { start, count: 1 }));
    }

    /// Returns whether neither a block nor its chunk entry is in bad memory.
    fn sound_or_forget(&self, block: BlockNumber) -> bool {
        let is_writable = |offset, length| self.region.check_writable(offset, length).is_ok();
        is_writable(block.address(), BLOCK_BYTES) && is_writable(self.geometry.chunk_entry_offset(block), ENTRY_BYTES)
    }

    /// Takes the free blocks that became unusable since the last call out of use.
    pub(super) fn quarantine_bad_memory(&self) {
        let pages = self.region.frozen_pages();
        let bad = pages.len() as u64;
        // Read before it is written: a line that every allocation writes would move from core to core.
        if self.quarantined.load(Ordering::Relaxed) == bad || self.quarantined.swap(bad, Ordering::Relaxed) == bad {
            return;
        }
        for page in pages {
            // The block itself and, if it is a page of the chunk table, the blocks whose entries it holds.
            let blocks = std::iter::once(page / BLOCK_BYTES).chain(self.geometry.blocks_of_page(page));
            let holds_data = |block: &BlockNumber| self.geometry.holds_data(block.address(), BLOCK_BYTES);
            for block in blocks.map(BlockNumber).filter(holds_data) {
                if !self.sound_or_forget(block)
                    && self.back(block.0 / SEGMENT_BLOCKS).unwrap_or(false)
                    && self.reserve("keep bad memory from use", 1, Purpose::Promised).is_ok()
                {
                    match self.set_bit(block) {
                        true => drop(self.free_in[(block.0 / SEGMENT_BLOCKS) as usize].fetch_sub(1, Ordering::Relaxed)),
                        false => self.free_blocks.give(1),
                    }
                }
            }
        }
    }
}
