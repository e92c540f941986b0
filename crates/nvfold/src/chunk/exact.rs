//! Exact counts after a crash: what reconcile asks of the table, and what it makes of it.
//!
//! The problem: until the logs were read, a count may be too high and a block's content may be that of a write that
//! never happened (invariant 2). Operations go on meanwhile.
//!
//! The idea: while a [`Recount`] is set, the table asks it before it believes its own entries: a block whose use is not
//! known is not freed, and one that nobody vouches for is not shared. At the end each entry is made to say what was
//! counted; one that says so already is not written.

use super::Chunks;
use super::index::Index;
use super::recount::Recount;
use crate::media::BlockNumber;
use crate::media::chunk_entry::{ChunkEntry, CountWord, ENTRY_BYTES, tag};
use crate::sync::atomic::Ordering;
use pmem::Flight;

impl Chunks {
    /// Begins or ends counting anew.
    pub fn set_recount(&self, recount: Option<Recount>) {
        let mut current = self.recount.write();
        debug_assert_ne!(
            current.is_some(),
            recount.is_some(),
            "a recount begins while one runs, or ends while none does"
        );
        self.recounting.store(recount.is_some(), Ordering::Release);
        *current = recount;
    }

    /// What `of` says of the recount; `None` when there is none.
    #[inline]
    pub fn with_recount<T>(&self, of: impl FnOnce(&Recount) -> T) -> Option<T> {
        if !self.is_recounting() {
            return None;
        }
        self.recount.read().as_ref().map(of)
    }

    /// Whether the counts are being found anew.
    #[inline]
    pub(super) fn is_recounting(&self) -> bool {
        self.recounting.load(Ordering::Acquire)
    }

    /// Whether a crash left it open how often the block is named.
    #[inline]
    pub(super) fn is_unknown(&self, block: BlockNumber) -> bool {
        self.with_recount(|recount| recount.is_unknown(block)) == Some(true)
    }

    /// Whether the content of a block can be trusted: after a crash somebody must vouch for it first.
    #[inline]
    pub(super) fn is_vouched(&self, block: BlockNumber) -> bool {
        let unvouched = |recount: &Recount| recount.is_unknown(block) && !recount.is_vouched(block);
        self.with_recount(unvouched) != Some(true)
    }

    /// Reconcile: makes the entry of a block, and what is known of it in DRAM, say what is true, if it does not.
    /// `count` 0: no entry. Its fingerprints stay if `keeps` them. One in bad memory stays as it is.
    pub(crate) fn set_exact(&self, block: BlockNumber, count: u32, keeps: bool, flight: &mut Flight) {
        debug_assert!(
            self.is_recounting(),
            "block {}: an exact count is set while operations count for themselves",
            block.0
        );
        if self.region.check_writable(self.geometry.chunk_entry_offset(block), ENTRY_BYTES).is_err() {
            return;
        }
        let old = if self.has_entry(block) { self.entry(block) } else { ChunkEntry::default() };
        let word = CountWord { tag: tag::ADD | tag::RECOVERED, tx: 0, count, update_count: 0 };
        let mut new = match count {
            0 => ChunkEntry::default(),
            _ if keeps && old.is_of(block) => ChunkEntry::for_block(block, word).with_fingerprints_of(&old),
            _ => ChunkEntry::for_block(block, word),
        };
        if let Some((index, weak)) = self.index.fact().zip(new.weak(self.weak)) {
            new.delete_pointer = index.chain_of(weak) as u32;
        }
        // The transaction of an entry that counts may be any.
        let is_right = match count {
            0 => old.is_empty(),
            _ => old.is_whole() && old == (ChunkEntry { tag_tx: old.tag_tx, ..new }),
        };
        if !is_right {
            self.record_gone(block, &old, new.weak(self.weak).is_none());
            let written = self.region.write(self.geometry.chunk_entry_offset(block), &new).flush();
            if count == 0 || old.delete_pointer == new.delete_pointer {
                flight.add(written);
            } else {
                // Damage. Where it belongs must be there before it is led to.
                let _ = self.region.fence(written);
            }
            if count > 0 {
                self.record_entry(block, count);
            }
        }
        // A crash may have left an entry that counts out of the index.
        if let Some(weak) = new.weak(self.weak).filter(|_| !is_right || self.index.fact().is_some()) {
            self.index.insert(weak, block);
        }
    }

    /// Reconcile: keeps anybody from finding a block, durably.
    pub(crate) fn hide(&self, block: BlockNumber) {
        debug_assert!(self.is_recounting(), "block {} is hidden while nobody finds its count anew", block.0);
        if let Some(weak) = self.entry(block).weak(self.weak) {
            self.hide_by(weak, block);
        }
    }

    /// Reconcile: keeps anybody from finding a block by its weak fingerprint, durably.
    pub(super) fn hide_by(&self, weak: u32, block: BlockNumber) {
        match &self.index {
            Index::Dram(index) => index.remove(weak, block),
            Index::Pm(index) => index.remove_lost(weak, block),
        }
    }
}
