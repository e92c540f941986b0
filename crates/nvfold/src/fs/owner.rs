//! Changing the owner of a file, where each owner has a sharing domain ([`Domain`](crate::fingerprint::Domain)).
//!
//! The problem: what the file references has weak fingerprints in the domain of the old owner. He would find the data, and so
//! learn whether the new owner still has it. A file may reference a million chunks, writes and queued work go on meanwhile,
//! and a crash may come at any time.
//!
//! The idea: the fingerprints go first, and the owner is changed last.
//!
//! ```text
//! begin     the file is in nobody's domain: what is written gets no fingerprints, work in the background skips it
//! forget    in steps, each under the file's lock: its chunks lose their weak fingerprints, durably
//! commit    the new owner
//! end       the file is in the domain of its owner, and waits for the filler
//! ```
//!
//! A crash before the commit costs fingerprints, which the filler makes anew; after it, nothing is left to do. A write that
//! made its fingerprints before the change compares the domain again when it has locked the file.
//!
//! What the old owner's files share with the file stays shared: it was his. A chunk loses its fingerprint whoever references
//! it too, so equal data of theirs is not found until the filler has been there.

use super::Core;
use crate::dedup::work::Unfingerprinted;
use crate::error::Result;
use crate::inode::{Inode, State};
use crate::media::ChunkRef;
use crate::words::FileKind;

/// Limits of one step under the lock of the file: chunks that lose their fingerprints, and chunks that are looked at.
const FORGET_CHUNKS: usize = 64;

const LOOK_CHUNKS: usize = 4096;

/// A change of the owner of a file that is under way. Dropped after the commit, or after an error.
#[must_use = "the file shares nothing until the change of its owner ends"]
pub(super) struct OwnerChange<'c> {
    core: &'c Core,
    inode: &'c Inode,
}

impl Drop for OwnerChange<'_> {
    fn drop(&mut self) {
        if self.core.panics.abandons() {
            return;
        }
        let state = self.inode.peek();
        self.inode.end_owner_change(self.core.domains.of(state.attributes.uid));
        drop(state);
        self.core.fill_again(self.inode);
    }
}

impl Core {
    /// True if the weak fingerprints of what a file references have to go before it gets this owner.
    pub(super) fn leaves_domain(&self, inode: &Inode, state: &State, uid: Option<u32>) -> bool {
        let is_changed = uid.is_some_and(|uid| uid != state.attributes.uid);
        is_changed && self.domains.are_by_owner() && inode.kind == FileKind::Regular
    }

    /// Takes the weak fingerprints off everything that a file references, if it is to get an owner in another domain.
    ///
    /// # Errors
    /// EIO for damage and bad memory.
    pub(super) fn leave_domain<'c>(&'c self, inode: &'c Inode, uid: Option<u32>) -> Result<Option<OwnerChange<'c>>> {
        if uid.is_none() || !self.domains.are_by_owner() {
            return Ok(None);
        }
        let state = inode.write()?;
        if !self.leaves_domain(inode, &state, uid) {
            return Ok(None);
        }
        inode.begin_owner_change();
        drop(state);
        let change = OwnerChange { core: self, inode };
        let mut from = Some(0);
        while let Some(offset) = from {
            from = self.forget_fingerprints(inode, offset)?;
        }
        Ok(Some(change))
    }

    /// Takes the weak fingerprints off some chunks of a file, from this file offset on. Returns the offset to continue at.
    fn forget_fingerprints(&self, inode: &Inode, from: u64) -> Result<Option<u64>> {
        let state = inode.write()?;
        let _alone = self.chunks.fingerprinting.lock();
        let extents = self.file_extents(&state, "change the owner")?;
        let (mut forgotten, mut looked_at) = (0, 0);
        for (offset, extent) in extents.within(from, u64::MAX).filter(|(_, extent)| !extent.unwritten) {
            let address = extent.media_address().unwrap_or(0);
            let blocks = extent.media_address().map(|_| extent.blocks());
            let blocks = blocks.iter().flat_map(|run| run.blocks()).map(ChunkRef::Block);
            for chunk in blocks.chain(extent.packed().map(ChunkRef::Packed)) {
                if forgotten == FORGET_CHUNKS || looked_at == LOOK_CHUNKS {
                    let skipped = chunk.block().map_or(0, |block| block.address().saturating_sub(address));
                    return Ok(Some(offset + skipped));
                }
                looked_at += 1;
                forgotten += usize::from(self.chunks.forget_weak(chunk));
            }
        }
        Ok(None)
    }

    /// Lists a file whose chunks have lost their fingerprints, unless its policy wants none.
    fn fill_again(&self, inode: &Inode) {
        if self.policy_for(inode).unfingerprinted() != Unfingerprinted::Stays && inode.mark_unfingerprinted() {
            self.policies.filler.add(inode.file_id());
        }
    }
}
