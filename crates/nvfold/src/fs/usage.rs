//! Usage: what every stored byte is for, exactly.
//!
//! The problem: the counters that each operation keeps up to date say what is stored and what files map, and so how
//! many bytes are saved all in all. They cannot say how much of that is sharing and how much of what is stored no file
//! maps any more; see [`Coverage`].
//!
//! The idea: whoever wants to know pays for it. One walk over the logs of all inodes, while nothing changes, tells what
//! is mapped of each chunk; the counters tell what is stored. Both together must add up.

use super::Core;
use crate::error::Result;
use crate::inode::Inode;
use crate::inode::coverage::Coverage;
use crate::media::{BLOCK_BYTES, ChunkRef};
use crate::words::Usage;

impl Core {
    /// Returns the usage; `None` while recovery is under way, or if an inode is damaged. `held`: the chunks that work beside
    /// the calls holds references on. Operations that change
    /// something wait until it has returned.
    ///
    /// # Errors
    /// EIO if a log cannot be read.
    pub(crate) fn usage(&self, held: impl FnOnce() -> Vec<ChunkRef>) -> Result<Option<Usage>> {
        let _closed = self.freeze_lock.close();
        if self.is_reconciling() || self.damaged.count() > 0 {
            return Ok(None);
        }
        self.release_all_postponed();
        let mut coverage = Coverage::default();
        for ino in self.table.used() {
            let slot = self.table.slot(ino).expect("in the table");
            // A slot in use without an inode is a log area.
            if let Some(inode) = Inode::load(&self.region, &self.geometry, slot, ino)? {
                let state = inode.into_state();
                let extents = state.extents().into_iter().flat_map(|extents| extents.iter());
                extents.for_each(|(_, extent)| coverage.add(&extent));
            }
        }
        // What a collection or an evacuation has copied may lose its files before the references are given back.
        held().into_iter().for_each(|chunk| coverage.add_held(chunk));
        let compressed_away = self.chunks.packed.compressed_away_bytes();
        let content_bytes = |number| self.chunks.entry(number).content_bytes();
        let usage = coverage.usage(self.stored_bytes_total(), compressed_away, content_bytes);
        self.answer(Ok(Some(usage)))
    }

    /// Returns the number of bytes of data blocks and packed chunks in use. The totals may come from a saved state,
    /// which is untrusted input: fsck checks them against the logs, a mount does not.
    pub(crate) fn stored_bytes_total(&self) -> u64 {
        let of_blocks = self.data_blocks.get().saturating_mul(BLOCK_BYTES);
        of_blocks.saturating_add(self.space.packed.live_bytes())
    }
}
