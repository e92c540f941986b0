//! Which blocks have an entry, and how many: bits and totals in DRAM.
//!
//! The problem: most blocks of most devices are private. Reading the table for each released block would make the
//! host allocate memory for a table that is otherwise a hole, and would wait for the media each time.
//!
//! The idea: one bit per block says whether it has an entry. A pm index must not take DRAM that grows with the
//! device, so with it there is one bit per segment, which means "may have", and the entry itself has the answer.
//!
//! ```text
//! dram index   has_entry[block]        set before the count can be seen, cleared after it is 0
//! pm index     has_entry[segment]      set with the first entry, cleared by no one; entries are counted in `tracked`
//! ```

use super::Chunks;
use super::index::Index;
use crate::media::chunk_entry::{ChunkEntry, CountWord};
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, SEGMENT_BLOCKS};
use crate::space::{BlockRun, WORDS_PER_SEGMENT};
use nvfold_sync::atomic::Ordering;

/// Returns how many words `has_entry` needs for so many segments.
pub(super) fn words(index: &Index, segments: u64) -> u64 {
    let bits = if index.fact().is_some() { 1 } else { SEGMENT_BLOCKS };
    (segments * bits).div_ceil(64)
}

impl Chunks {
    /// Returns the DRAM of the bits that say which entries are in use, in bytes.
    pub fn dram_bytes(&self) -> u64 {
        self.words_in_use() as u64 * 8 + self.packed.entries_end() / 8
    }

    /// Returns the number of block entries in use.
    pub fn tracked(&self) -> u64 {
        if self.index.fact().is_some() {
            return self.tracked.get();
        }
        self.has_entry[..self.words_in_use()]
            .iter()
            .map(|word| u64::from(word.load(Ordering::Relaxed).count_ones()))
            .sum()
    }

    /// Returns how many words of `has_entry` the device needs at its present length.
    fn words_in_use(&self) -> usize {
        words(&self.index, self.geometry.segments()) as usize
    }

    /// Returns whether a chunk has an entry, that is, is tracked.
    #[inline]
    pub fn has_entry(&self, chunk: impl Into<ChunkRef>) -> bool {
        let count = |chunk| CountWord::decode(self.region.load_u128(self.entry_offset(chunk)));
        let block = match chunk.into() {
            ChunkRef::Block(block) => block,
            packed => return !count(packed).is_empty(),
        };
        self.may_have_entry(block) && (self.index.fact().is_none() || !count(block.into()).is_empty())
    }

    /// Returns whether a block has an entry according to DRAM. With a pm index: whether any block of its segment has
    /// had one since the mount.
    #[inline]
    fn may_have_entry(&self, block: BlockNumber) -> bool {
        let at = if self.index.fact().is_none() { block.0 } else { block.0 / SEGMENT_BLOCKS };
        self.has_entry[(at / 64) as usize].load(Ordering::Relaxed) & 1 << (at % 64) != 0
    }

    /// Returns whether a block of a run may have an entry. Checks whole words of bits, so neighbours of the run count
    /// too.
    pub(crate) fn may_have_entries(&self, run: BlockRun) -> bool {
        let blocks_a_word = if self.index.fact().is_none() { 64 } else { 64 * SEGMENT_BLOCKS };
        let words = run.start.0 / blocks_a_word..run.blocks_end().div_ceil(blocks_a_word);
        words.into_iter().any(|word| self.has_entry[word as usize].load(Ordering::Relaxed) != 0)
    }

    /// Returns true if all these blocks are private for sure: they have no entry, no search can find them, and their
    /// counts are not being recounted after a crash. Returns false if finding out would take a look at each block.
    #[inline]
    pub(crate) fn are_private(&self, run: BlockRun) -> bool {
        let cannot_be_found = self.index.dram().is_some_and(|index| index.labels.has_none(run));
        cannot_be_found && !self.may_have_entries(run) && !self.is_recounting()
    }

    /// Returns true if this block is private for sure, which takes a look at its bits. False with a pm index.
    #[inline]
    pub(crate) fn is_private(&self, block: BlockNumber) -> bool {
        let cannot_be_found = self.index.dram().is_some_and(|index| !index.labels.has(block));
        cannot_be_found && !self.has_entry(block) && !self.is_recounting()
    }

    /// Returns which blocks of a segment have an entry, one bit each.
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

    /// Records a new entry in the bits and totals.
    #[inline]
    pub(super) fn record_entry(&self, chunk: ChunkRef, count: u32) {
        self.record_entry_present(chunk);
        self.record_counted(chunk, count);
    }

    /// Records an entry whose bit is already set in the totals.
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

    /// Adds to the references beyond the first; two's complement for a decrease.
    #[inline]
    pub(super) fn record_extra(&self, chunk: ChunkRef, references: u64) {
        self.record_extra_of(chunk, self.content_bytes(chunk), references);
    }

    /// Does the same for a chunk with a content of `bytes` bytes. A caller that has dropped its reference must have
    /// read the length before: by then the entry may be that of another chunk, or gone with its part of the table.
    #[inline]
    pub(super) fn record_extra_of(&self, chunk: ChunkRef, bytes: u64, references: u64) {
        match chunk {
            ChunkRef::Block(_) => self.extra_references.add(references),
            ChunkRef::Packed(_) => self.packed.saved_bytes.add(references.wrapping_mul(bytes)),
        };
    }

    /// Returns the length in bytes of the content of a chunk on which the caller holds a reference.
    #[inline]
    pub(super) fn content_bytes(&self, chunk: ChunkRef) -> u64 {
        if chunk.block().is_some() { BLOCK_BYTES } else { self.entry(chunk).content_bytes() }
    }

    /// Records that an entry is now in use.
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

    /// Removes an entry that is gone from bits and totals. If the entry `loses` its fingerprint, also removes it from
    /// the index, durably: the entry that is written in its place does not lead on in the chain.
    pub(super) fn record_entry_gone(&self, chunk: ChunkRef, entry: &ChunkEntry, loses: bool) {
        if !entry.is_empty() {
            self.record_no_entry(chunk);
        }
        self.record_extra(chunk, u64::from(entry.count.saturating_sub(1)).wrapping_neg());
        if let Some(weak) = entry.weak(self.weak_function()).filter(|_| loses) {
            self.index.remove_durably(weak, chunk);
        }
    }

    #[inline]
    pub(super) fn record_no_entry(&self, chunk: ChunkRef) {
        let ChunkRef::Block(block) = chunk else {
            // The empty entry still holds the chunk's length: no chunk reuses it before its number is freed.
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
