//! Coverage: which bytes of the chunks the extents of all files map.
//!
//! The problem: what sharing saves, and what is stored although no file maps it, cannot be derived from reference counts.
//! An extent may map any part of a chunk, and two extents may map the same part of it, different ones, or overlapping
//! ones.
//!
//! The idea: add all extents. Most map whole blocks, which take one bit each. The rest is a list of ranges per chunk,
//! in order and disjoint.
//!
//! ```text
//! a block         |  mapped  |  dead  |  mapped  |  padding  |
//! a packed chunk  |  mapped  |  dead  |  mapped  |   dead    |
//! ```

use super::extents::Extent;
use super::ranges::Ranges;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location, PackedNumber, SEGMENT_BLOCKS};
use crate::space::WORDS_PER_SEGMENT;
use crate::words::Usage;
use hashbrown::HashMap;
use std::ops::Range;

/// The bytes that the extents added so far map.
#[derive(Default)]
pub(crate) struct Coverage {
    /// Bytes that the extents map, each counted once per extent.
    logical_bytes: u64,
    /// Blocks that one extent maps as a whole, by segment, one bit each.
    whole: HashMap<u64, [u64; WORDS_PER_SEGMENT]>,
    /// The mapped ranges of all other chunks. A block may also be in `whole`.
    parts: HashMap<ChunkRef, Ranges>,
}

impl Coverage {
    /// Adds an extent.
    pub(crate) fn add(&mut self, extent: &Extent) {
        self.logical_bytes += extent.length;
        match extent.location {
            Location::Media(address) => self.add_blocks(address..address + extent.length),
            Location::Packed(chunk, offset) => {
                let start = u32::from(offset);
                self.parts.entry(chunk.into()).or_default().add(start..start + extent.length as u32);
            }
        }
    }

    /// Adds a chunk that is stored, although extents may map none of its bytes: then all of them are dead.
    pub(crate) fn add_held(&mut self, chunk: ChunkRef) {
        self.parts.entry(chunk).or_default();
    }

    fn add_blocks(&mut self, mapped: Range<u64>) {
        let mut at = mapped.start;
        while at < mapped.end {
            let block = BlockNumber::containing(at);
            let end = mapped.end.min(block.address() + BLOCK_BYTES);
            if end - at == BLOCK_BYTES {
                let (word, bit) = place(block);
                self.whole.entry(block.0 / SEGMENT_BLOCKS).or_default()[word] |= bit;
            } else {
                let part = (at - block.address()) as u32..(end - block.address()) as u32;
                self.parts.entry(block.into()).or_default().add(part);
            }
            at = end;
        }
    }

    /// Returns what the bytes of all chunks are, given what is stored of them and how many bytes compression saves.
    /// `content_bytes` returns the length of the content of a packed chunk.
    pub(crate) fn usage(
        &self,
        stored_bytes: u64,
        compressed_away_bytes: u64,
        content_bytes: impl Fn(PackedNumber) -> u64,
    ) -> Usage {
        let whole = self.whole.values().flatten().map(|word| u64::from(word.count_ones())).sum::<u64>();
        let mut mapped_bytes = whole * BLOCK_BYTES;
        let (mut dead_bytes, mut padding_bytes) = (0, 0);
        for (chunk, ranges) in &self.parts {
            let mapped = ranges.bytes();
            match *chunk {
                ChunkRef::Block(block) if self.is_whole(block) => continue,
                ChunkRef::Block(_) if mapped == 0 => dead_bytes += BLOCK_BYTES,
                ChunkRef::Block(_) => {
                    padding_bytes += BLOCK_BYTES - ranges.end();
                    dead_bytes += ranges.end() - mapped;
                }
                ChunkRef::Packed(number) => dead_bytes += content_bytes(number).saturating_sub(mapped),
            }
            mapped_bytes += mapped;
        }
        Usage {
            logical_bytes: self.logical_bytes,
            stored_bytes,
            saved_bytes: self.logical_bytes - mapped_bytes,
            compressed_away_bytes,
            dead_bytes,
            padding_bytes,
        }
    }

    fn is_whole(&self, block: BlockNumber) -> bool {
        let (word, bit) = place(block);
        self.whole.get(&(block.0 / SEGMENT_BLOCKS)).is_some_and(|words| words[word] & bit != 0)
    }
}

/// Returns the word and the bit of a block in its segment.
fn place(block: BlockNumber) -> (usize, u64) {
    let at = block.0 % SEGMENT_BLOCKS;
    ((at / 64) as usize, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 100 * SEGMENT_BLOCKS * BLOCK_BYTES;

    fn media(address: u64, length: u64) -> Extent {
        Extent::media(length, address, false)
    }

    fn packed(number: u32, offset: u16, length: u64) -> Extent {
        Extent { length, location: Location::Packed(PackedNumber(number), offset), unwritten: false }
    }

    /// The usage of these extents, if the chunks are stored as they are and packed ones have 10,000 bytes.
    fn usage(extents: &[Extent], stored_bytes: u64) -> Usage {
        let mut coverage = Coverage::default();
        extents.iter().for_each(|extent| coverage.add(extent));
        let usage = coverage.usage(stored_bytes, 0, |_| 10_000);
        assert!(usage.adds_up(), "{usage:?}");
        usage
    }

    fn figures(usage: Usage) -> [u64; 4] {
        [usage.logical_bytes, usage.saved_bytes, usage.dead_bytes, usage.padding_bytes]
    }

    #[test]
    fn whole_blocks_count_as_mapped_or_shared() {
        let extents = [media(BLOCK, 3 * 4096), media(BLOCK + 4096, 4096), media(BLOCK + 4096, 2 * 4096)];
        assert_eq!(figures(usage(&extents, 3 * 4096)), [6 * 4096, 3 * 4096, 0, 0]);
    }

    #[test]
    fn unmapped_bytes_of_a_block_are_padding_at_its_end_and_else_dead() {
        let extents = [media(BLOCK + 100, 100), media(BLOCK + 1000, 96)];
        assert_eq!(figures(usage(&extents, 4096)), [196, 0, 900, 3000]);
    }

    #[test]
    fn overlapping_mappings_save_their_common_bytes() {
        let extents = [media(BLOCK, 100), media(BLOCK + 50, 100), media(BLOCK + 4000, 100), media(BLOCK + 10, 20)];
        let dead = 4000 - 150;
        assert_eq!(figures(usage(&extents, 2 * 4096)), [320, 50 + 20, dead, 4096 - 4]);
    }

    #[test]
    fn a_second_mapping_of_a_part_of_a_block_counts_as_saved() {
        let extents = [media(BLOCK + 10, 100), media(BLOCK, 4096), media(BLOCK, 1)];
        assert_eq!(figures(usage(&extents, 4096)), [4197, 101, 0, 0]);
    }

    #[test]
    fn unmapped_bytes_of_held_chunks_count_as_dead() {
        let mut coverage = Coverage::default();
        coverage.add(&media(BLOCK, BLOCK_BYTES));
        coverage.add(&media(BLOCK + BLOCK_BYTES, 1000));
        let blocks = (0..3).map(|nth| BlockNumber::containing(BLOCK + nth * BLOCK_BYTES).into());
        blocks.chain([PackedNumber(7).into()]).for_each(|chunk| coverage.add_held(chunk));
        let usage = coverage.usage(3 * BLOCK_BYTES + 10_000, 0, |_| 10_000);
        assert!(usage.adds_up(), "{usage:?}");
        assert_eq!((usage.dead_bytes, usage.padding_bytes), (BLOCK_BYTES + 10_000, BLOCK_BYTES - 1000));
    }

    #[test]
    fn the_end_of_a_packed_chunk_is_dead_and_not_padding() {
        let extents = [packed(3, 0, 4000), packed(3, 2000, 4000), packed(7, 0, 10_000)];
        assert_eq!(figures(usage(&extents, 20_000)), [18_000, 2000, 4000, 0]);
    }
}
