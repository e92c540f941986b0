//! Which blocks have an entry, and how many: bits and totals in DRAM.
//!
//! The problem: most blocks of most devices are private. To look into the table for each block that is released would
//! make the host hold memory for a table that is otherwise a hole, and wait for the media each time.
//!
//! The idea: one bit a block says whether there is an entry. A pm index promises to take no DRAM that grows with the
//! device, so there it is one bit a segment, for "may have", and the entry itself says the rest.
//!
//! ```text
//! dram index   has_entry[block]        set before the count can be seen, cleared after it is 0
//! pm index     has_entry[segment]      set with the first entry, cleared by no one; entries are counted in `tracked`
//! ```

use super::Chunks;
use crate::media::chunk_entry::{ChunkEntry, CountWord};
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, SEGMENT_BLOCKS};
use crate::space::{BlockRun, WORDS_PER_SEGMENT};
use crate::sync::atomic::Ordering;

impl Chunks {
    /// Entries in use.
    pub fn tracked(&self) -> u64 {
        if self.index.fact().is_some() {
            return self.tracked.get();
        }
        self.has_entry.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Whether a block has an entry: is tracked.
    #[inline]
    pub fn has_entry(&self, chunk: impl Into<ChunkRef>) -> bool {
        let count = |chunk| CountWord::decode(self.region.load_u128(self.entry_offset(chunk)));
        let block = match chunk.into() {
            ChunkRef::Block(block) => block,
            packed => return !count(packed).is_empty(),
        };
        self.may_have_entry(block) && (self.index.fact().is_none() || !count(block.into()).is_empty())
    }

    /// Whether a block has an entry, as far as DRAM tells. With a pm index that is whether any block of its segment has
    /// had one.
    #[inline]
    fn may_have_entry(&self, block: BlockNumber) -> bool {
        let at = if self.index.fact().is_none() { block.0 } else { block.0 / SEGMENT_BLOCKS };
        self.has_entry[(at / 64) as usize].load(Ordering::Relaxed) & 1 << (at % 64) != 0
    }

    /// Whether a block of a run may have an entry: whether any near them has one, for the bits are not told apart.
    pub(super) fn may_have_entries(&self, run: BlockRun) -> bool {
        let blocks_a_word = if self.index.fact().is_none() { 64 } else { 64 * SEGMENT_BLOCKS };
        let words = run.start.0 / blocks_a_word..run.blocks_end().div_ceil(blocks_a_word);
        words.into_iter().any(|word| self.has_entry[word as usize].load(Ordering::Relaxed) != 0)
    }

    /// Whether the one extent that names each of these blocks is all that is known of them: they have no entry, nobody can
    /// find them, and no crash left it open how often they are named. False if that takes a look at each of them.
    #[inline]
    pub(crate) fn are_private(&self, run: BlockRun) -> bool {
        let cannot_be_found = self.index.dram().is_some_and(|index| index.labels.has_none(run));
        cannot_be_found && !self.may_have_entries(run) && !self.is_recounting()
    }

    /// Which blocks of a segment have an entry, one bit each.
    pub fn entries_in(&self, segment: u64) -> [u64; WORDS_PER_SEGMENT] {
        if self.index.fact().is_none() {
            let word = |at| segment as usize * WORDS_PER_SEGMENT + at;
            return std::array::from_fn(|at| self.has_entry[word(at)].load(Ordering::Relaxed));
        }
        let mut bits = [0; WORDS_PER_SEGMENT];
        let first = segment * SEGMENT_BLOCKS;
        if self.may_have_entry(BlockNumber(first)) {
            for at in 0..self.geometry.blocks_in_segment(segment) {
                bits[(at / 64) as usize] |= u64::from(self.has_entry(BlockNumber(first + at))) << (at % 64);
            }
        }
        bits
    }

    /// Takes an entry that came into bits and totals.
    #[inline]
    pub(super) fn record_entry(&self, chunk: ChunkRef, count: u32) {
        self.record_entry_present(chunk);
        self.record_counted(chunk, count);
    }

    /// Takes an entry whose bit is set into the totals.
    #[inline]
    pub(super) fn record_counted(&self, chunk: ChunkRef, count: u32) {
        if chunk.packed().is_some() {
            self.packed.record_compressed(self.entry(chunk).packed_bytes());
        } else if self.index.fact().is_some() {
            self.tracked.add(1);
        }
        if count > 1 {
            self.record_extra(chunk, u64::from(count) - 1);
        }
    }

    /// References beyond the first one come or, with two's complement, go.
    #[inline]
    pub(super) fn record_extra(&self, chunk: ChunkRef, references: u64) {
        self.record_extra_of(chunk, self.content_bytes(chunk), references);
    }

    /// Does the same for a chunk with so much content. Who has dropped its own reference must have asked before: the entry may
    /// be that of another chunk by then, or gone with its part of the table.
    #[inline]
    pub(super) fn record_extra_of(&self, chunk: ChunkRef, bytes: u64, references: u64) {
        match chunk {
            ChunkRef::Block(_) => self.extra_references.add(references),
            ChunkRef::Packed(_) => self.packed.saved_bytes.add(references.wrapping_mul(bytes)),
        };
    }

    /// Bytes of the content of a chunk that the caller has a reference on.
    #[inline]
    pub(super) fn content_bytes(&self, chunk: ChunkRef) -> u64 {
        if chunk.block().is_some() { BLOCK_BYTES } else { self.entry(chunk).content_bytes() }
    }

    /// Records an entry that is in use now.
    #[inline]
    pub(super) fn record_entry_present(&self, chunk: ChunkRef) {
        let ChunkRef::Block(block) = chunk else { return };
        if self.index.fact().is_some() {
            self.record_may_have_entry(block);
        } else {
            self.has_entry[(block.0 / 64) as usize].fetch_or(1 << (block.0 % 64), Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn record_may_have_entry(&self, block: BlockNumber) {
        let segment = block.0 / SEGMENT_BLOCKS;
        if !self.may_have_entry(block) {
            self.has_entry[(segment / 64) as usize].fetch_or(1 << (segment % 64), Ordering::Relaxed);
        }
    }

    /// A read-only mount: one more extent touches a block, whatever its entry says.
    pub fn record_extra_reference(&self) {
        self.extra_references.add(1);
    }

    /// Takes an entry that is gone out of bits and totals, and if it `loses` its fingerprint out of the index: durably,
    /// for what is written in its place leads nowhere.
    pub(super) fn record_entry_gone(&self, chunk: ChunkRef, entry: &ChunkEntry, loses: bool) {
        if !entry.is_empty() {
            self.record_no_entry(chunk);
        }
        self.record_extra(chunk, u64::from(entry.count.saturating_sub(1)).wrapping_neg());
        if let Some(weak) = entry.weak(self.weak).filter(|_| loses) {
            self.hide_from_index(weak, chunk);
        }
    }

    #[inline]
    pub(super) fn record_no_entry(&self, chunk: ChunkRef) {
        let ChunkRef::Block(block) = chunk else {
            // Empty, it still says how long the chunk was: nobody has it before its number is given back.
            let saved = self.entry(chunk).packed_bytes().saved();
            self.packed.compressed_away.subtract(saved);
            return;
        };
        if self.index.fact().is_some() {
            self.tracked.subtract(1);
        } else {
            let bit = 1 << (block.0 % 64);
            let before = self.has_entry[(block.0 / 64) as usize].fetch_and(!bit, Ordering::Relaxed);
            debug_assert!(before & bit != 0, "block {} loses an entry that it does not have", block.0);
        }
    }
}
