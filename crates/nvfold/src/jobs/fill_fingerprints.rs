//! The filler: computes fingerprints for stored blocks that have none (NV-Dedup 4.4.2).

use super::Jobs;
use crate::dedup::work::{Filled, Unfingerprinted};
use crate::error::Result;
use crate::fingerprint::Domain;
use crate::inode::Body;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::words::FileId;

/// Limits of one step under the lock of the file: blocks that it fingerprints, and blocks that it looks at (about 20
/// us).
const FILL_BLOCKS: usize = 64;

const LOOK_BLOCKS: usize = 4096;

impl Jobs<'_> {
    /// Computes missing fingerprints of a file: see [`crate::dedup::work::Host::fill`].
    pub(super) fn fill_file(&self, file: FileId, from: u64) -> Result<Filled> {
        let Some(inode) = self.inode_of(file)? else { return Ok(Filled::default()) };
        // The lock keeps other threads from writing, cloning or removing the file, so its blocks do not change.
        let state = inode.lock();
        if from == 0 {
            inode.clear_lacking();
        }
        let Body::File(extents) = &state.body else { return Ok(Filled::default()) };
        let policy = self.policy_for(&inode);
        let is_filled = match policy.unfingerprinted() {
            // A file whose policy keeps its data private is not shared with others.
            Unfingerprinted::Stays => false,
            Unfingerprinted::Filed => true,
            // What was shared already has lost its fingerprints if the owner has changed.
            Unfingerprinted::Queued => policy.domain() != Domain::ALL,
        };
        if !inode.is_usable() || !is_filled || policy.domain() == Domain::NOBODY {
            return Ok(Filled::default());
        }
        let mut lacking: Vec<BlockNumber> = Vec::new();
        let mut looked_at = 0;
        let mut next = None;
        'file: for (offset, extent) in extents.within(from, u64::MAX).filter(|(_, extent)| !extent.unwritten) {
            let Some(address) = extent.media_address() else { continue };
            for block in extent.blocks().blocks() {
                if lacking.len() == FILL_BLOCKS || looked_at == LOOK_BLOCKS {
                    next = Some(offset + block.address().saturating_sub(address));
                    break 'file;
                }
                looked_at += 1;
                // Of other blocks, bytes that nobody maps would be hashed: they change when the end of a file grows.
                let is_whole = address <= block.address() && block.address() + BLOCK_BYTES <= address + extent.length;
                if is_whole && !self.chunks.can_be_found(block) {
                    lacking.push(block);
                }
            }
        }
        let chunks = self.enter_all(lacking.iter().copied(), policy.domain(), false);
        if chunks < lacking.len() as u64 {
            self.record_bad_blocks(inode.ino, lacking.into_iter());
        }
        Ok(Filled { chunks, next })
    }
}
