//! The place of each chunk's entry, and the chunk's number in the 32-bit words of both indexes.
//!
//! The problem: the entry of a block has a fixed place, one for each block of the device. Packed chunks have any
//! length, so their number is not known when a device is formatted, and a chunk that moves must keep its entry.
//!
//! The idea: entries of packed chunks are kept in separate segments, allocated on demand, 32,768 entries in each.
//! Part `n` of that table holds the chunks from `n * 32768` on; the segment table says which segment holds it.
//!
//! ```text
//! Block(b)    chunk table + b * 64                       word: b
//! Packed(p)   segment of part p / 32768 + p % 32768 * 64 word: p with bit 31 set; 0x7fffffff is never used
//! ```

use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::layout::Layout;
use crate::media::superblock::Geometry;
use crate::media::{
    BLOCK_BYTES, BlockNumber, ChunkRef, PACKED_DEVICE_BYTES_MAX, PackedNumber, SEGMENT_BLOCKS, SEGMENT_BYTES,
};
use nvfold_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use nvfold_sync::zeroed;

/// Entries of packed chunks in one segment.
pub(crate) const ENTRIES_PER_SEGMENT: u32 = (SEGMENT_BYTES / ENTRY_BYTES) as u32;
/// The most parts that the table of packed entries can have. Some entries of the last one are never used.
pub(crate) const PARTS_MAX: u32 = (1 << 31) / ENTRIES_PER_SEGMENT;

/// The bit of a word that marks a packed chunk.
const PACKED: u32 = 1 << 31;
/// The end of the packed numbers, chosen so that no word is `u32::MAX`.
pub(crate) const PACKED_END: u32 = PACKED - 1;

/// The places of a device's entries.
pub struct Entries {
    geometry: Layout,
    may_pack: bool,
    /// The segment of each part of the table of packed entries; 0: none.
    parts: Box<[AtomicU32]>,
    /// One bit for each segment that holds a part.
    has_part: Box<[AtomicU64]>,
}

fn parts_max(may_pack: bool, segments: u64) -> u64 {
    if may_pack { segments.min(u64::from(PARTS_MAX)) } else { 0 }
}

impl Entries {
    /// Creates the map of a device without any part of the table of packed entries.
    pub fn new(geometry: impl Into<Layout>) -> Entries {
        let geometry = geometry.into();
        let may_pack = geometry.device_bytes <= PACKED_DEVICE_BYTES_MAX;
        let segments_max = geometry.segments_max();
        let parts = parts_max(may_pack, segments_max);
        Entries { geometry, may_pack, parts: zeroed(parts), has_part: zeroed(segments_max.div_ceil(64)) }
    }

    /// Returns the most parts that the table of a device can have.
    pub fn parts_max_of(geometry: &Geometry) -> u64 {
        let may_pack = geometry.device_bytes <= PACKED_DEVICE_BYTES_MAX;
        parts_max(may_pack, geometry.segments())
    }

    /// Returns how many blocks the device can have while it is mounted.
    pub fn blocks_max(&self) -> u64 {
        self.geometry.segments_max() * SEGMENT_BLOCKS
    }

    /// Returns whether the device can have packed chunks. Larger devices need all 32 bits of a word for blocks.
    pub fn may_pack(&self) -> bool {
        self.may_pack
    }

    /// Returns the most parts that the table can have.
    pub fn parts_max(&self) -> u32 {
        Entries::parts_max_of(&self.geometry) as u32
    }

    /// Returns the segment of a part; `None` if the part has none.
    pub fn part(&self, part: u32) -> Option<u64> {
        let segment = self.parts.get(part as usize)?.load(Ordering::Acquire);
        (segment != 0).then_some(u64::from(segment))
    }

    /// Returns whether a segment holds a part of the table.
    pub fn has_part_in(&self, segment: u64) -> bool {
        self.has_part[(segment / 64) as usize].load(Ordering::Relaxed) & 1 << (segment % 64) != 0
    }

    /// Sets the segment of a part; `None` removes it.
    pub fn set_part(&self, part: u32, segment: Option<u64>) {
        if let Some(before) = self.part(part) {
            self.has_part[(before / 64) as usize].fetch_and(!(1 << (before % 64)), Ordering::Relaxed);
        }
        if let Some(segment) = segment {
            self.has_part[(segment / 64) as usize].fetch_or(1 << (segment % 64), Ordering::Relaxed);
        }
        self.parts[part as usize].store(segment.unwrap_or(0) as u32, Ordering::Release);
    }

    /// Returns the device offset of the entry of a chunk that [exists](Entries::exists).
    #[inline]
    pub fn offset(&self, chunk: ChunkRef) -> u64 {
        match chunk {
            ChunkRef::Block(block) => self.geometry.chunk_entry_offset(block),
            ChunkRef::Packed(packed) => self.packed_offset(packed).expect("an entry of a part that is there"),
        }
    }

    /// Returns the device offset of a packed chunk's entry; `None` if its part of the table does not exist.
    pub fn packed_offset(&self, PackedNumber(number): PackedNumber) -> Option<u64> {
        let segment = self.part(number / ENTRIES_PER_SEGMENT)?;
        (number < PACKED_END).then(|| segment * SEGMENT_BYTES + u64::from(number % ENTRIES_PER_SEGMENT) * ENTRY_BYTES)
    }

    /// Returns whether a chunk can have an entry that counts: it is a block of the data segments, or its part of the
    /// table of packed entries exists.
    #[inline]
    pub fn exists(&self, chunk: ChunkRef) -> bool {
        match chunk {
            ChunkRef::Block(block) => self.geometry.holds_data(block.address(), BLOCK_BYTES),
            ChunkRef::Packed(packed) => self.packed_offset(packed).is_some(),
        }
    }

    /// Returns the chunk that a word of an index stands for.
    #[inline]
    pub fn chunk(&self, word: u32) -> ChunkRef {
        if self.may_pack && word & PACKED != 0 {
            return ChunkRef::Packed(PackedNumber(word & !PACKED));
        }
        ChunkRef::Block(BlockNumber(u64::from(word)))
    }
}

/// Returns the word of an index that stands for a chunk.
#[inline]
pub(crate) fn word(chunk: ChunkRef) -> u32 {
    match chunk {
        ChunkRef::Block(block) => block.0 as u32,
        ChunkRef::Packed(packed) => PACKED | packed.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_word_encodes_exactly_one_chunk() {
        let entries = Entries::new(Geometry::of(1 << 30).unwrap());
        for chunk in
            [ChunkRef::NONE, BlockNumber(262_143).into(), PackedNumber(0).into(), PackedNumber(PACKED_END - 1).into()]
        {
            assert_eq!(entries.chunk(word(chunk)), chunk);
            assert_ne!(word(chunk), u32::MAX);
        }
        let large = Entries::new(Geometry::of(1 << 44).unwrap());
        assert!(!large.may_pack());
        let last = ChunkRef::Block(BlockNumber((1 << 32) - 1));
        assert_eq!(large.chunk(word(last)), last, "a large device has blocks only");
    }

    #[test]
    fn the_part_of_a_packed_entry_gives_its_device_offset() {
        let entries = Entries::new(Geometry::of(1 << 30).unwrap());
        assert!(!entries.exists(PackedNumber(32_768).into()));
        entries.set_part(1, Some(9));
        assert_eq!(entries.packed_offset(PackedNumber(32_769)), Some(9 * SEGMENT_BYTES + ENTRY_BYTES));
        assert_eq!(entries.packed_offset(PackedNumber(32_767)), None);
        assert!(entries.exists(PackedNumber(65_535).into()) && !entries.exists(PackedNumber(65_536).into()));
        assert!(entries.has_part_in(9) && !entries.has_part_in(8));
        entries.set_part(1, Some(70));
        assert!(entries.has_part_in(70) && !entries.has_part_in(9));
        entries.set_part(1, None);
        assert!(!entries.exists(PackedNumber(32_769).into()) && !entries.has_part_in(70));
    }
}
