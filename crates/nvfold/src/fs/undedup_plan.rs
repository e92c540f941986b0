//! How much space undedup takes: what it would do, done on a copy of the extents.

use super::share::wants_copy;
use crate::inode::extents::{Extent, Extents};
use crate::media::BLOCK_BYTES;
use crate::media::log_entry::PAGE_LINES;
use crate::words::MappedExtent;
use hashbrown::HashMap;

/// How much space undedup of a set of files takes: what it would do, done on a copy of their extents.
///
/// Memory: 16 bytes or so for each block that is shared.
#[derive(Default)]
pub struct UndedupPlan {
    /// References of shared blocks that would be left.
    left: HashMap<u64, u32>,
    blocks_copied: u64,
    in_use: i64,
    in_use_most: i64,
    log_blocks: u64,
}

impl UndedupPlan {
    /// Of no file.
    pub fn new() -> UndedupPlan {
        UndedupPlan::default()
    }

    /// Adds a file with all its extents ([`crate::File::extents`]). Each file once, in the order in which they will be
    /// worked on.
    pub fn add(&mut self, mapped: &[MappedExtent]) {
        let mut extents = Extents::default();
        for part in mapped {
            let MappedExtent { offset, length, address, unwritten, references } = *part;
            if length == 0 {
                continue;
            }
            let extent = Extent { length, address, unwritten };
            extents.insert(offset, extent);
            if references > 1 {
                extent.blocks().blocks().for_each(|block| _ = self.left.entry(block.0).or_insert(references));
            }
        }
        let copied_before = self.blocks_copied;
        let mut seen = None;
        for part in mapped.iter().filter(|part| part.references > 1 && !part.unwritten && part.length > 0) {
            let blocks = part.offset / BLOCK_BYTES..=(part.offset + part.length - 1) / BLOCK_BYTES;
            for number in blocks.filter(|number| seen.is_none_or(|seen| *number > seen)) {
                self.copy(&mut extents, number * BLOCK_BYTES);
            }
            seen = seen.max(Some((part.offset + part.length - 1) / BLOCK_BYTES));
        }
        // A line of the log for each block at most, and as much again while the log is written anew.
        let lines = self.blocks_copied - copied_before;
        self.log_blocks += if lines > 0 { 2 * (lines.div_ceil(PAGE_LINES) + 1) } else { 0 };
    }

    fn copy(&mut self, extents: &mut Extents, at: u64) {
        let left = &self.left;
        if !wants_copy(extents, at, |block| left.get(&block.0).copied().unwrap_or(1)) {
            return;
        }
        self.in_use += 1;
        self.in_use_most = self.in_use_most.max(self.in_use);
        let plan = extents.plan(at, at + BLOCK_BYTES);
        plan.split.iter().for_each(|block| *self.left.entry(block.0).or_insert(1) += 1);
        for block in plan.dropped.iter().flat_map(|run| run.blocks()) {
            let left = self.left.entry(block.0).or_insert(1);
            *left = left.saturating_sub(1);
            self.in_use -= i64::from(*left == 0);
        }
        // Its own place: behind all that a device can have.
        let address = NOWHERE + self.blocks_copied * BLOCK_BYTES;
        extents.insert(at, Extent { length: BLOCK_BYTES, address, unwritten: false });
        self.blocks_copied += 1;
    }

    /// Bytes that would be copied.
    pub fn copied_bytes(&self) -> u64 {
        self.blocks_copied * BLOCK_BYTES
    }

    /// Bytes of data blocks that it takes while it runs: the copies, without what they free before.
    pub fn data_bytes(&self) -> u64 {
        self.in_use_most as u64 * BLOCK_BYTES
    }

    /// Bytes that the logs of the files may take beside that, at most.
    pub fn log_bytes(&self) -> u64 {
        self.log_blocks * BLOCK_BYTES
    }
}

/// Address of the first block that no device has.
const NOWHERE: u64 = 1 << 60;
