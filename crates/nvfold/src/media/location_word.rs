//! A location word: what a range of a file references. It is used in the records of vector entries, and in DRAM.
//!
//! ```text
//! bits 62-63  kind: 0 nothing (reads as zeros), 1 blocks, 2 reserved blocks (read as zeros), 3 a packed chunk
//!      47-61  0
//!      0-46   blocks: media address of the first byte      packed: number of the chunk in 16-46, offset in it in 0-15
//! ```
//!
//! So the location `n` bytes further on is the word plus `n`.

use super::{Location, PackedNumber};

const KIND_SHIFT: u32 = 62;
const HOLE: u64 = 0;
const BLOCKS: u64 = 1;
const RESERVED: u64 = 2;
const PACKED: u64 = 3;
const LOCATION_END: u64 = 1 << 47;
/// Bits of the offset in a packed chunk.
const OFFSET_BITS: u32 = 16;

/// A location in one word; the layout is in the module's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct LocationWord(u64);

impl LocationWord {
    /// References nothing.
    pub const HOLE: LocationWord = LocationWord(HOLE);

    /// Returns the word for bytes that begin at `location`. `unwritten` marks blocks as reserved.
    #[inline]
    pub fn new(location: Location, unwritten: bool) -> LocationWord {
        match location {
            Location::Media(address) => {
                debug_assert!(address < LOCATION_END);
                LocationWord(if unwritten { RESERVED } else { BLOCKS } << KIND_SHIFT | address)
            }
            Location::Packed(chunk, offset) => {
                LocationWord(PACKED << KIND_SHIFT | u64::from(chunk.0) << OFFSET_BITS | u64::from(offset))
            }
        }
    }

    /// Decodes a word that was read from the media; `None` if it is not valid.
    pub fn from_media(word: u64) -> Option<LocationWord> {
        let location = word & !(3 << KIND_SHIFT);
        let is_valid = location < if word >> KIND_SHIFT == HOLE { 1 } else { LOCATION_END };
        is_valid.then_some(LocationWord(word))
    }

    /// Returns the word as stored on the media.
    pub fn to_media(self) -> u64 {
        self.0
    }

    /// Returns the location, and whether the blocks are reserved; `None` for a hole.
    #[inline]
    pub fn location(self) -> Option<(Location, bool)> {
        let location = self.address();
        match self.0 >> KIND_SHIFT {
            HOLE => None,
            PACKED => Some((Location::Packed(PackedNumber((location >> OFFSET_BITS) as u32), location as u16), false)),
            kind => Some((Location::Media(location), kind == RESERVED)),
        }
    }

    /// Returns the media address of the first byte; meaningless for a packed chunk.
    #[inline]
    pub fn address(self) -> u64 {
        self.0 & (LOCATION_END - 1)
    }

    /// Returns true if both reference a part of a packed chunk, or blocks of the same kind at the same offset within
    /// a block.
    #[inline]
    pub fn is_like(self, other: LocationWord) -> bool {
        let differs = self.0 ^ other.0;
        differs >> KIND_SHIFT == 0 && (self.is_packed() || differs.is_multiple_of(super::BLOCK_BYTES))
    }

    /// Returns true if it references a part of a packed chunk.
    #[inline]
    pub fn is_packed(self) -> bool {
        self.0 >> KIND_SHIFT == PACKED
    }

    /// Returns true if it references reserved blocks.
    #[inline]
    pub fn is_reserved(self) -> bool {
        self.0 >> KIND_SHIFT == RESERVED
    }

    /// Returns the word for the location `bytes` further on, in the same blocks or the same packed chunk: at most the
    /// last one of its kind or of its chunk, and never one of another kind or chunk.
    #[inline]
    pub fn plus(self, bytes: u64) -> LocationWord {
        let last = self.0 | if self.is_packed() { (1 << OFFSET_BITS) - 1 } else { LOCATION_END - 1 };
        LocationWord(self.0.saturating_add(bytes).min(last))
    }

    /// Returns the offset from the start of a block, in bytes; meaningless for a packed chunk.
    #[inline]
    pub fn offset_in_block(self) -> u64 {
        self.0 % super::BLOCK_BYTES
    }

    /// Returns true if `next` is the location `bytes` further on, in the same packed chunk or in blocks of the same
    /// kind.
    #[inline]
    pub fn is_continued_by(self, bytes: u64, next: LocationWord) -> bool {
        let is_in_chunk = |word: LocationWord| word.0 >> OFFSET_BITS == self.0 >> OFFSET_BITS;
        self.0.checked_add(bytes) == Some(next.0) && (!self.is_packed() || is_in_chunk(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_word_decodes_to_the_encoded_location() {
        let last = PackedNumber(0x7fff_fffe);
        for (location, unwritten) in [
            (Location::Media(0), false),
            (Location::Media((1 << 44) - 1), true),
            (Location::Packed(PackedNumber(0), 0), false),
            (Location::Packed(last, u16::MAX), false),
        ] {
            let word = LocationWord::new(location, unwritten);
            assert_eq!(word.location(), Some((location, unwritten)));
            assert_eq!(LocationWord::from_media(word.to_media()), Some(word));
        }
        assert_eq!(LocationWord::HOLE.location(), None);
        assert_eq!(LocationWord::from_media(0), Some(LocationWord::HOLE));
        for bad in [1, 1 << 62 | 1 << 47, 3 << 62 | 1 << 61, 2 << 62 | 1 << 50] {
            assert_eq!(LocationWord::from_media(bad), None, "{bad:#x}");
        }
    }

    #[test]
    fn advancing_a_location_keeps_its_kind_and_chunk() {
        let packed = |offset| Location::Packed(PackedNumber(7), offset);
        let media = Location::Media;
        let end = LOCATION_END - 1;
        for (location, bytes, further) in [
            (packed(10), 5, packed(15)),
            (packed(10), u64::from(u16::MAX) - 10, packed(u16::MAX)),
            (packed(10), u64::from(u16::MAX) - 9, packed(u16::MAX)),
            (packed(10), u64::MAX, packed(u16::MAX)),
            (media(4096), 100, media(4196)),
            (media(4096), end - 4096, media(end)),
            (media(4096), end, media(end)),
            (media(4096), u64::MAX, media(end)),
        ] {
            let word = LocationWord::new(location, false).plus(bytes);
            assert_eq!(word.location(), Some((further, false)), "{location:?} and {bytes}");
            let is_media = matches!(location, Location::Media(_));
            assert!(location.plus(bytes) == further || is_media && bytes > end - 4096, "{location:?} and {bytes}");
        }
        assert_eq!(media(4096).plus(u64::MAX), media(u64::MAX), "no data lies there");
    }

    #[test]
    fn the_end_of_a_packed_chunk_is_not_the_start_of_the_next() {
        let word = |chunk, offset| LocationWord::new(Location::Packed(PackedNumber(chunk), offset), false);
        assert!(word(7, 10).is_continued_by(5, word(7, 15)));
        assert!(!word(7, u16::MAX).is_continued_by(1, word(8, 0)));
    }
}
