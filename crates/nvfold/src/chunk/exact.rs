//! Exact counts after a crash: the part of reconcile that works on the chunk table.
//!
//! The problem: until all logs are read, a count may be too high, and the content of a block may belong to a write
//! that never happened (invariant 2). Meanwhile the file system is in use.
//!
//! The idea: while a [`Recount`] is set, the table consults it before it trusts an entry. A block of unknown use is
//! not freed, and a block that no walked inode references is not shared. At the end each entry is set to its true
//! count; an entry that is already correct is not written.

use super::Chunks;
use super::index::Index;
use super::recount::Recount;
use crate::media::ChunkRef;
use crate::media::chunk_entry::{ChunkEntry, CountWord, ENTRY_BYTES, tag};
use crate::sync::atomic::Ordering;
use pmem::Flight;
use zerocopy::IntoBytes;

/// Length of the tag, transaction and counts, which change at once.
const WORD_BYTES: u64 = 16;

impl Chunks {
    /// Begins a recount, or ends it with `None`.
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

    /// Returns the result of `of` on the recount; `None` if there is no recount.
    #[inline]
    pub fn with_recount<T>(&self, of: impl FnOnce(&Recount) -> T) -> Option<T> {
        if !self.is_recounting() {
            return None;
        }
        self.recount.read().as_ref().map(of)
    }

    /// Returns whether a recount is in progress.
    #[inline]
    pub(super) fn is_recounting(&self) -> bool {
        self.recounting.load(Ordering::Acquire)
    }

    /// Returns true until the chunk's reference count has been reconciled after a crash.
    #[inline]
    pub(super) fn is_unknown(&self, chunk: ChunkRef) -> bool {
        self.with_recount(|recount| recount.is_unknown(chunk)) == Some(true)
    }

    /// Returns true if the content of a chunk can be trusted. After a crash, a walked inode must have referenced it
    /// first.
    #[inline]
    pub(super) fn is_content_confirmed(&self, chunk: ChunkRef) -> bool {
        let unvouched = |recount: &Recount| recount.is_unknown(chunk) && !recount.is_content_confirmed(chunk);
        self.with_recount(unvouched) != Some(true)
    }

    /// Corrects the entry of a chunk, and its record in DRAM, if they are wrong; for reconcile. With `count` 0 the
    /// chunk gets no entry. `keeps`: its fingerprints stay. An entry in bad memory is not changed.
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
        // An entry that counts may carry any transaction number.
        let is_right = match count {
            0 => old.is_empty(),
            _ => old.is_whole() && old == (ChunkEntry { tag_tx: old.tag_tx, ..new }),
        };
        if !is_right {
            self.record_entry_gone(chunk, &old, new.weak(self.weak).is_none());
            if count == 0 && chunk.packed().is_some() {
                // Half of the empty line could be an entry that counts and leads nowhere, so one word marks it as
                // empty.
                let empty = CountWord { tag: tag::NULL | tag::RECOVERED, count: 0, update_count: 0, ..old.word() };
                flight.add(self.region.store_u128(self.entry_offset(chunk), empty.encode()).flush());
                return;
            }
            // Tag and count change together: if an operation had failed and left its tag, the next mount would take
            // back the new count by the old tag.
            let offset = self.entry_offset(chunk);
            let _ = self.region.write(offset + WORD_BYTES, &new.as_bytes()[WORD_BYTES as usize..]);
            let written = self.region.store_u128(offset, new.word().encode()).flush();
            if count == 0 || old.delete_pointer == new.delete_pointer {
                flight.add(written);
            } else {
                // Damage: the delete pointer changes. It must be durable before a chain leads to the entry.
                let _ = self.region.fence(written);
            }
            if count > 0 {
                self.record_entry(chunk, count);
            }
        }
        // A crash may have left a counted entry out of the index.
        if let Some(weak) = new.weak(self.weak).filter(|_| !is_right || self.index.fact().is_some()) {
            self.index.insert(weak, chunk);
        }
    }

    /// Removes a block from the index, durably; for reconcile.
    pub(crate) fn hide(&self, chunk: impl Into<ChunkRef>) {
        let chunk = chunk.into();
        debug_assert!(self.is_recounting(), "{} is hidden while nobody finds its count anew", chunk);
        if let Some(weak) = self.entry(chunk).weak(self.weak) {
            self.hide_from_index(weak, chunk);
        }
    }

    /// Removes a chunk from the index durably, also during reconcile, so that no search finds it by its weak fingerprint.
    pub(super) fn hide_from_index(&self, weak: u32, chunk: ChunkRef) {
        match &self.index {
            Index::Dram(index) => index.remove(weak, chunk),
            Index::Pm(index) => index.remove_lost(weak, chunk),
        }
    }
}
