//! The chunk entry: one cache line that says how often a block is named and what its bytes hash to.
//!
//! One table serves every policy: it is the union of NV-Dedup's metadata entry (4.2, Fig. 5) and
//! DeNOVA's FACT entry (IV-C). An all-zero entry means: this block is free, or *private* - named by
//! exactly one extent and not fingerprinted. So data that nobody shares costs no entry.

use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `flags`: the weak fingerprint is valid.
pub const WEAK_VALID: u8 = 1;
/// `flags`: the strong fingerprint is valid.
pub const STRONG_VALID: u8 = 2;

/// Entry operations of NV-Dedup (Table 2), kept in the tag.
pub mod tag {
    /// The entry was added.
    pub const ADD: u8 = 0x10;
    /// Its count was increased.
    pub const INCREASE: u8 = 0x20;
    /// Its count was decreased.
    pub const DECREASE: u8 = 0x40;
}

/// One line of the chunk table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChunkEntry {
    /// `tag:8 | tx_id:56` of the last dedup transaction (NV-Dedup).
    pub tag_tx: u64,
    /// Extents that touch the block; 0 in an empty entry.
    pub count: u32,
    /// Dedup transactions under way (DeNOVA).
    pub update_count: u32,
    /// `length:20 | address:44`; the length of a whole block is stored as 4096.
    pub address_length: u64,
    /// 160 bits of a strong fingerprint.
    pub strong: [u8; 20],
    /// Weak fingerprint.
    pub weak: u32,
    /// Collision chain (DeNOVA's IAA).
    pub previous: u32,
    /// Collision chain.
    pub next: u32,
    /// Block number to entry number (DeNOVA's delete pointer).
    pub delete_pointer: u32,
    /// [`WEAK_VALID`], [`STRONG_VALID`].
    pub flags: u8,
    /// Zero.
    pub spare: [u8; 3],
}

/// Bytes of one entry.
pub const ENTRY_BYTES: u64 = 64;

const _: () = assert!(size_of::<ChunkEntry>() == ENTRY_BYTES as usize);
const _: () = assert!(offset_of!(ChunkEntry, count) == 8);
const _: () = assert!(offset_of!(ChunkEntry, update_count) == 12);
const _: () = assert!(offset_of!(ChunkEntry, address_length) == 16);
const _: () = assert!(offset_of!(ChunkEntry, strong) == 24);
const _: () = assert!(offset_of!(ChunkEntry, weak) == 44);
const _: () = assert!(offset_of!(ChunkEntry, previous) == 48);
const _: () = assert!(offset_of!(ChunkEntry, next) == 52);
const _: () = assert!(offset_of!(ChunkEntry, delete_pointer) == 56);
const _: () = assert!(offset_of!(ChunkEntry, flags) == 60);

/// Bytes 0-15 of an entry: all that a count change touches, in one 16-byte atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountWord {
    /// Last entry operation.
    pub tag: u8,
    /// Its transaction, 56 bits.
    pub tx: u64,
    /// Reference count.
    pub count: u32,
    /// Transactions under way.
    pub update_count: u32,
}

impl CountWord {
    /// From the two words as loaded.
    pub fn decode(word: u128) -> CountWord {
        let low = word as u64;
        let high = (word >> 64) as u64;
        CountWord {
            tag: (low >> 56) as u8,
            tx: low & ((1 << 56) - 1),
            count: high as u32,
            update_count: (high >> 32) as u32,
        }
    }

    /// As stored.
    pub fn encode(self) -> u128 {
        let low = u64::from(self.tag) << 56 | self.tx & ((1 << 56) - 1);
        let high = u64::from(self.update_count) << 32 | u64::from(self.count);
        u128::from(high) << 64 | u128::from(low)
    }
}

impl ChunkEntry {
    /// An entry for a whole block.
    pub fn for_block(block: super::BlockNumber, count: CountWord, weak: Option<u32>) -> ChunkEntry {
        let word = count.encode();
        ChunkEntry {
            tag_tx: word as u64,
            count: count.count,
            update_count: count.update_count,
            address_length: super::BLOCK_BYTES << 44 | block.address(),
            weak: weak.unwrap_or(0),
            flags: if weak.is_some() { WEAK_VALID } else { 0 },
            ..ChunkEntry::default()
        }
    }

    /// Whether the block is free or private. One comparison of what any entry has: a whole one has an address, and a
    /// torn one some word.
    pub fn is_empty(&self) -> bool {
        *self == ChunkEntry::default()
    }

    /// Count and transaction.
    pub fn word(&self) -> CountWord {
        let high = u64::from(self.update_count) << 32 | u64::from(self.count);
        CountWord::decode(u128::from(high) << 64 | u128::from(self.tag_tx))
    }

    /// The weak fingerprint of an entry that counts and is `block`'s.
    pub fn weak_of(&self, block: super::BlockNumber) -> Option<u32> {
        self.weak().filter(|_| self.count > 0 && self.address() == block.address())
    }

    /// Media address of the chunk.
    pub fn address(&self) -> u64 {
        self.address_length & ((1 << 44) - 1)
    }

    /// Weak fingerprint, if there is one.
    pub fn weak(&self) -> Option<u32> {
        (self.flags & WEAK_VALID != 0).then_some(self.weak)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::BlockNumber;

    #[test]
    fn the_count_word_is_the_first_sixteen_bytes() {
        let word = CountWord { tag: tag::ADD, tx: (1 << 56) - 2, count: 7, update_count: 3 };
        let entry = ChunkEntry::for_block(BlockNumber(9), word, Some(5));
        let bytes: [u8; 16] = entry.as_bytes()[..16].try_into().unwrap();
        assert_eq!(CountWord::decode(u128::from_le_bytes(bytes)), word);
        assert_eq!(entry.address(), 9 * 4096);
        assert_eq!(entry.address_length >> 44, 4096);
    }
}
