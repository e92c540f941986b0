//! How much space undedup takes: it is simulated on a copy of the extents.

use super::undedup::wants_copy;
use crate::inode::extents::{Extent, Extents};
use crate::media::chunk_entry::CLASS_END;
use crate::media::log_entry::PAGE_LINES;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef};
use crate::words::MappedExtent;
use hashbrown::HashMap;

/// Computes how much space undedup of a set of files takes, by simulating it on a copy of their extents.
///
/// It takes about 16 bytes of memory for each shared block.
#[derive(Default)]
pub struct UndedupPlan {
    /// The references that would be left, for each shared block.
    left: HashMap<u64, u32>,
    /// The same for packed ends of files, by their addresses.
    ends_left: HashMap<u64, u32>,
    blocks_copied: u64,
    in_use: i64,
    in_use_most: i64,
    log_blocks: u64,
}

impl UndedupPlan {
    /// Makes an empty plan.
    pub fn new() -> UndedupPlan {
        UndedupPlan::default()
    }

    /// Adds a file with all its extents ([`crate::File::extents`]). Add each file once, in the order in which undedup
    /// will process them.
    pub fn add(&mut self, mapped: &[MappedExtent]) {
        let mut extents = Extents::default();
        for part in mapped {
            let MappedExtent { offset, length, address, unwritten, references, class, .. } = *part;
            if length == 0 || class != 0 {
                // Packed extents take no block and free none.
                continue;
            }
            let extent = Extent::media(length, address, unwritten);
            extents.insert(offset, extent);
            if references > 1 {
                extent.blocks().blocks().for_each(|block| _ = self.left.entry(block.0).or_insert(references));
            }
        }
        let copied_before = self.blocks_copied;
        let mut last_copied = None;
        for part in mapped.iter().filter(|part| !part.unwritten && part.length > 0) {
            let unpacks = match part.class {
                0 => false,
                CLASS_END => self.leaves_end(part),
                _ => true,
            };
            if !unpacks && (part.class != 0 || part.references < 2) {
                continue;
            }
            for number in part.offset / BLOCK_BYTES..=(part.offset + part.length - 1) / BLOCK_BYTES {
                let at = number * BLOCK_BYTES;
                let left = &self.left;
                let count = |block: BlockNumber| left.get(&block.0).copied().unwrap_or(1);
                if last_copied != Some(number) && (unpacks || wants_copy(&extents, at, count, |_| false)) {
                    self.copy(&mut extents, at);
                    last_copied = Some(number);
                }
            }
        }
        // At most one log line for each block, and the same again while the log is compacted.
        let lines = self.blocks_copied - copied_before;
        self.log_blocks += if lines > 0 { 2 * (lines.div_ceil(PAGE_LINES) + 1) } else { 0 };
    }

    /// True if undedup unpacks a packed end of a file, because it has another reference.
    fn leaves_end(&mut self, part: &MappedExtent) -> bool {
        let left = self.ends_left.entry(part.address).or_insert(part.references);
        let is_shared = *left > 1;
        *left -= u32::from(is_shared);
        is_shared
    }

    fn copy(&mut self, extents: &mut Extents, at: u64) {
        self.in_use += 1;
        self.in_use_most = self.in_use_most.max(self.in_use);
        let plan = extents.plan(at, at + BLOCK_BYTES, &[]);
        for chunk in plan.split {
            if let ChunkRef::Block(block) = chunk {
                *self.left.entry(block.0).or_insert(1) += 1;
            }
        }
        for block in plan.dropped.blocks.iter().flat_map(|run| run.blocks()) {
            let left = self.left.entry(block.0).or_insert(1);
            *left = left.saturating_sub(1);
            self.in_use -= i64::from(*left == 0);
        }
        // The copy gets an address of its own beyond any possible device.
        let address = NOWHERE + self.blocks_copied * BLOCK_BYTES;
        extents.insert(at, Extent::media(BLOCK_BYTES, address, false));
        self.blocks_copied += 1;
    }

    /// Returns the number of bytes that would be copied.
    pub fn copied_bytes(&self) -> u64 {
        self.blocks_copied * BLOCK_BYTES
    }

    /// Returns the peak of additional data bytes while undedup runs: the copies, less what they have freed by then.
    pub fn data_bytes(&self) -> u64 {
        self.in_use_most as u64 * BLOCK_BYTES
    }

    /// Returns the bytes that the logs of the files may take in addition, at most.
    pub fn log_bytes(&self) -> u64 {
        self.log_blocks * BLOCK_BYTES
    }
}

/// First address beyond any possible device.
const NOWHERE: u64 = 1 << 46;
