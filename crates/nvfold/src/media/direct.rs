//! The direct area of the pm index: 16 bytes for each prefix of a fingerprint (DeNOVA IV-C, Fig. 4).
//!
//! It is stored in segments of its own ([`super::segment::SegmentUse::Index`]), 131,072 entries in each, so that a
//! device can gain or lose it without moving data. Entry `p` is the head of the chain of all chunk entries whose weak
//! fingerprint begins with the bits `p`: it references one of them, and the others are linked after it.

use super::SEGMENT_BYTES;
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Head of one chain. All zeros: the chain is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DirectEntry {
    /// Weak fingerprint of `block`.
    pub weak: u32,
    /// Block of the first chunk; 0 if there is none.
    pub block: u32,
    /// Block of the first chunk in the list behind it; 0 if there is none.
    pub next: u32,
    /// Commit flag of a reorder (Fig. 7): 0, [`BEGUN`], or the last block of the list in the new order.
    pub order: u32,
}

/// `order`: a reorder has begun and is not committed, so the new order does not count. No block has this number.
pub const BEGUN: u32 = u32::MAX;

/// Bytes of one entry.
pub const DIRECT_BYTES: u64 = 16;
/// Entries in one segment.
pub(crate) const DIRECT_PER_SEGMENT: u64 = SEGMENT_BYTES / DIRECT_BYTES;
/// Offset of the word with `next` and `order`.
pub(crate) const LIST_WORD: u64 = 8;

const _: () = assert!(size_of::<DirectEntry>() as u64 == DIRECT_BYTES);
const _: () = assert!(offset_of!(DirectEntry, next) as u64 == LIST_WORD);

impl DirectEntry {
    /// Decodes the result of one 16-byte load.
    pub fn decode(stored: u128) -> DirectEntry {
        zerocopy::transmute!(stored)
    }

    /// Encodes the entry for one 16-byte store.
    pub fn encode(self) -> u128 {
        zerocopy::transmute!(self)
    }

    /// Encodes weak fingerprint and block for one 8-byte store.
    pub fn first_word(self) -> u64 {
        u64::from(self.block) << 32 | u64::from(self.weak)
    }

    /// Encodes list and order for one 8-byte store.
    pub fn list_word(self) -> u64 {
        u64::from(self.order) << 32 | u64::from(self.next)
    }
}

/// Returns the number of fingerprint bits that select the chain: ceil(log2(blocks)).
pub fn prefix_bits(blocks: u64) -> u32 {
    blocks.next_power_of_two().trailing_zeros()
}

/// Returns the chain of a fingerprint, which is given by its first `bits` bits.
pub(crate) fn chain_of(weak: u32, bits: u32) -> u64 {
    u64::from(weak) >> (32 - bits)
}

/// Returns the number of segments that the direct area of a device takes.
pub fn index_segments(blocks: u64) -> u64 {
    (1u64 << prefix_bits(blocks)).div_ceil(DIRECT_PER_SEGMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_direct_entry_are_its_halves() {
        let entry = DirectEntry { weak: 1, block: 2, next: 3, order: BEGUN };
        assert_eq!(DirectEntry::decode(entry.encode()), entry);
        assert_eq!((entry.encode() as u64, (entry.encode() >> 64) as u64), (entry.first_word(), entry.list_word()));
    }

    #[test]
    fn the_direct_area_has_an_entry_for_each_block() {
        for (blocks, bits, segments) in [(4096, 12, 1), (4097, 13, 1), (1 << 17, 17, 1), ((1 << 17) + 1, 18, 2)] {
            assert_eq!((prefix_bits(blocks), index_segments(blocks)), (bits, segments));
        }
        assert_eq!(prefix_bits(1 << 32), 32);
    }
}
