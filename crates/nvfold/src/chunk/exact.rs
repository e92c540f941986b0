//! Exact counts after a crash: the part of reconcile that works on the chunk table.
//!
//! The problem: until the logs were read, a count may be too high, and the content of a block may belong to a write that
//! never happened (invariant 2). Operations run meanwhile.
//!
//! The idea: while a [`Recount`] is set, the table consults it before it trusts its own entries. A block of unknown use is
//! not freed, and a block that no walked inode names is not shared. At the end each entry is set to what was counted;
//! an entry that is correct already is not written.

use super::Chunks;
use super::index::Index;
use super::recount::Recount;
use crate::media::ChunkRef;
use crate::media::chunk_entry::{ChunkEntry, CountWord, ENTRY_BYTES, tag};
use crate::sync::atomic::Ordering;
use pmem::Flight;
use zerocopy::IntoBytes;

/// Tag, transaction and counts: what changes at once.
const WORD_BYTES: u64 = 16;

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
    pub(super) fn is_unknown(&self, chunk: ChunkRef) -> bool {
        self.with_recount(|recount| recount.is_unknown(chunk)) == Some(true)
    }

    /// True if the content of a block can be trusted. After a crash, a walked inode must have named the block first.
    #[inline]
    pub(super) fn is_content_confirmed(&self, chunk: ChunkRef) -> bool {
        let unvouched = |recount: &Recount| recount.is_unknown(chunk) && !recount.is_content_confirmed(chunk);
        self.with_recount(unvouched) != Some(true)
    }

    /// Reconcile: makes the entry of a block, and what is known of it in DRAM, say what is true, if it does not.
    /// `count` 0: no entry. Its fingerprints stay if `keeps` them. One in bad memory stays as it is.
    pub(crate) fn set_exact(&self, chunk: impl Into<ChunkRef>, count: u32, keeps: bool, flight: &mut Flight) {
        let chunk = chunk.into();
        debug_assert!(self.is_recounting(), "{}: an exact count is set while operations count for themselves", chunk);
        if self.region.check_writable(self.entry_offset(chunk), ENTRY_BYTES).is_err() {
            return;
        }
        let old = if self.has_entry(chunk) { self.entry(chunk) } else { ChunkEntry::default() };
        let word = CountWord { tag: tag::ADD | tag::RECOVERED, tx: 0, count, update_count: 0 };
        let mut new = match count {
            0 => ChunkEntry::default(),
            _ if keeps && old.is_of(chunk) => ChunkEntry::bare(chunk, &old, word).with_fingerprints_of(&old),
            _ => ChunkEntry::bare(chunk, &old, word),
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
            self.record_entry_gone(chunk, &old, new.weak(self.weak).is_none());
            if count == 0 && chunk.packed().is_some() {
                // Half of it would be an entry that counts and leads nowhere: one word says that it is empty.
                let empty = CountWord { tag: tag::NULL | tag::RECOVERED, count: 0, update_count: 0, ..old.word() };
                flight.add(self.region.store_u128(self.entry_offset(chunk), empty.encode()).flush());
                return;
            }
            // Tag and count together: a tag of before with a count of now would be taken back by the next mount, if the
            // operation that left the tag had failed.
            let offset = self.entry_offset(chunk);
            let _ = self.region.write(offset + WORD_BYTES, &new.as_bytes()[WORD_BYTES as usize..]);
            let written = self.region.store_u128(offset, new.word().encode()).flush();
            if count == 0 || old.delete_pointer == new.delete_pointer {
                flight.add(written);
            } else {
                // Damage. Where it belongs must be there before it is led to.
                let _ = self.region.fence(written);
            }
            if count > 0 {
                self.record_entry(chunk, count);
            }
        }
        // A crash may have left an entry that counts out of the index.
        if let Some(weak) = new.weak(self.weak).filter(|_| !is_right || self.index.fact().is_some()) {
            self.index.insert(weak, chunk);
        }
    }

    /// Reconcile: keeps anybody from finding a block, durably.
    pub(crate) fn hide(&self, chunk: impl Into<ChunkRef>) {
        let chunk = chunk.into();
        debug_assert!(self.is_recounting(), "{} is hidden while nobody finds its count anew", chunk);
        if let Some(weak) = self.entry(chunk).weak(self.weak) {
            self.hide_from_index(weak, chunk);
        }
    }

    /// Removes a block from the index during reconcile, durably, so that no search finds it by its weak fingerprint.
    pub(super) fn hide_from_index(&self, weak: u32, chunk: ChunkRef) {
        match &self.index {
            Index::Dram(index) => index.remove(weak, chunk),
            Index::Pm(index) => index.remove_lost(weak, chunk),
        }
    }
}
