//! Exact counts after a crash: the part of reconcile that works on the chunk table.
//!
//! The problem: until all logs are read, a count may be too high, and the content of a block may belong to a write
//! that never happened (invariant 2). Meanwhile the file system is in use.
//!
//! The idea: while a [`Recount`](super::recount::Recount) is set, the table consults it before it trusts an entry. A
//! block of unknown use is not freed, and a block that no walked inode references is not shared. At the end each entry
//! is set to its true count; an entry that is already correct is not written.

use super::Chunks;
use crate::media::ChunkRef;
use crate::media::chunk_entry::{ChunkEntry, CountWord, ENTRY_BYTES, tag};
use pmem::Flight;
use zerocopy::IntoBytes;

/// Length of the tag, transaction and counts, which change at once.
const WORD_BYTES: u64 = 16;

impl Chunks {
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
        if let Some((index, weak)) = self.index.fact().zip(new.weak(self.weak_function())) {
            new.delete_pointer = index.chain_of(weak) as u32;
        }
        // An entry that counts may carry any transaction number.
        let is_right = match count {
            0 => old.is_empty(),
            _ => old.is_whole() && old == (ChunkEntry { tag_tx: old.tag_tx, ..new }),
        };
        if !is_right {
            self.record_entry_gone(chunk, &old, new.weak(self.weak_function()).is_none());
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
        if let Some(weak) = new.weak(self.weak_function()).filter(|_| !is_right || self.index.fact().is_some()) {
            self.index.insert(weak, chunk);
        }
    }

    /// Removes a block from the index, durably; for reconcile.
    pub(crate) fn hide(&self, chunk: impl Into<ChunkRef>) {
        let chunk = chunk.into();
        debug_assert!(self.is_recounting(), "{} is hidden while nobody finds its count anew", chunk);
        if let Some(weak) = self.entry(chunk).weak(self.weak_function()) {
            self.index.remove_durably(weak, chunk);
        }
    }
}
