//! The chunk entry: one cache line that says how often a block is named and what its bytes hash to.
//!
//! One table serves every policy: it is the union of NV-Dedup's metadata entry (4.2, Fig. 5) and
//! DeNOVA's FACT entry (IV-C). An entry whose count and update count are 0 is empty, whatever else is left of it, and
//! means: this block is free, or *private* - named by exactly one extent and not fingerprinted. So data that nobody
//! shares costs no entry.
//!
//! The entry of a **packed chunk** is the same line with a place of its own ([`super::segment::SegmentUse::Entries`]). It
//! counts as long as the chunk is in use, and says where the bytes are and how many. Empty means free, never private.
//!
//! How often a block is taken is told by both together: `count` (RFC, the paper's reference count) extents name it,
//! and `update_count` (UC) more are about to.

use super::ChunkRef;
use super::generator::parts;
use super::packed::PackedBytes;
use crate::fingerprint::{Strong, StrongFunction, WeakFunction};
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `flags`: the weak fingerprint is valid.
pub const WEAK_VALID: u8 = 1;
/// `flags`: the strong fingerprint is valid.
pub const STRONG_VALID: u8 = 2;

/// `flags`: bits 4-7 are the class of a packed chunk, by the method that cut it (DeEXT III-B); 0 in the entry of a block.
const CLASS_SHIFT: u8 = 4;

/// Class of a packed chunk whose compressed content cannot be read any more, and fsck has told so.
pub const CLASS_LOST: u8 = 13;
/// Class of a packed chunk that is the end of a file, under a policy that stores blocks.
pub const CLASS_END: u8 = 14;
/// Class of a packed chunk of which it is not known how it was cut: fsck made its entry again.
pub const CLASS_UNKNOWN: u8 = 15;

/// Entry operations of NV-Dedup (Table 2), kept in the tag.
pub mod tag {
    /// add_entry.
    pub const ADD: u8 = 0x10;
    /// increase_RC.
    pub const INCREASE: u8 = 0x20;
    /// decrease_RC.
    pub const DECREASE: u8 = 0x40;
    /// null_entry. The rest of the line stays as it is until the entry is used again.
    pub const NULL: u8 = 0x80;
    /// Bit beside the operation: recovery made the count right, so nothing is to be rolled back (4.3.2).
    pub const RECOVERED: u8 = 0x01;
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
    /// `length:20 | address:44`; the length of a whole block is stored as 4096. Changes by 8-byte store.
    pub address_length: u64,
    /// 160 bits of a strong fingerprint.
    pub strong: [u8; 20],
    /// Weak fingerprint.
    pub weak: u32,
    /// pm index: block before this one in the list of its chain, 0: none (DeNOVA's IAA).
    pub previous: u32,
    /// pm index: block behind it.
    pub next: u32,
    /// pm index: the chain, which is where its head lies in the direct area (DeNOVA's delete pointer).
    pub delete_pointer: u32,
    /// [`WEAK_VALID`], [`STRONG_VALID`], and the class of a packed chunk in bits 4-7.
    pub flags: u8,
    /// Which functions made the fingerprints: the weak one in bits 0-3, the strong one in bits 4-7.
    pub functions: u8,
    /// Packed chunks: bytes of the content less one, where that is compressed; 0: the content lies there as it is, and in
    /// the entry of a block.
    pub content_bytes_less_one: u16,
}

/// Bytes of one entry.
pub const ENTRY_BYTES: u64 = 64;
/// Where the address lies.
pub const ADDRESS_WORD: u64 = 16;
/// Where `previous` and `next` lie: one word, which only the pm index changes.
pub const LINKS_WORD: u64 = 48;

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
const _: () = assert!(offset_of!(ChunkEntry, functions) == 61);
const _: () = assert!(offset_of!(ChunkEntry, content_bytes_less_one) == 62);

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
    /// Whether the entry is: nothing counts the block.
    pub fn is_empty(self) -> bool {
        self.count == 0 && self.update_count == 0
    }

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
    /// An entry for a whole block, without fingerprints.
    pub fn for_block(block: super::BlockNumber, count: CountWord) -> ChunkEntry {
        let word = count.encode();
        ChunkEntry {
            tag_tx: word as u64,
            count: count.count,
            update_count: count.update_count,
            address_length: super::BLOCK_BYTES << 44 | block.address(),
            ..ChunkEntry::default()
        }
    }

    /// An entry for a packed chunk of so many bytes at a media address, without fingerprints. `class`: 1 to 15.
    pub fn for_packed(address: u64, bytes: PackedBytes, class: u8, count: CountWord) -> ChunkEntry {
        debug_assert!((1..16).contains(&class) && bytes.is_sound());
        ChunkEntry {
            address_length: address_word(address, bytes.stored),
            flags: class << CLASS_SHIFT,
            content_bytes_less_one: if bytes.is_compressed() { (bytes.content - 1) as u16 } else { 0 },
            ..ChunkEntry::for_block(super::BlockNumber(0), count)
        }
    }

    /// The entry of `chunk`, without fingerprints. Where a packed one lies is told by the entry that it has.
    pub fn bare(chunk: ChunkRef, old: &ChunkEntry, count: CountWord) -> ChunkEntry {
        match chunk {
            ChunkRef::Block(block) => ChunkEntry::for_block(block, count),
            ChunkRef::Packed(_) => ChunkEntry {
                address_length: old.address_length,
                flags: old.class() << CLASS_SHIFT,
                content_bytes_less_one: old.content_bytes_less_one,
                ..ChunkEntry::for_block(super::BlockNumber(0), count)
            },
        }
    }

    /// Makes the entry with a weak fingerprint and the function that made it.
    pub fn with_weak(self, function: WeakFunction, weak: u32) -> ChunkEntry {
        let functions = self.functions & 0xf0 | function as u8;
        ChunkEntry { weak, functions, flags: self.flags | WEAK_VALID, ..self }
    }

    /// Makes the entry with a strong fingerprint and the function that made it.
    pub fn with_strong(self, function: StrongFunction, strong: Strong) -> ChunkEntry {
        let functions = self.functions & 0x0f | (function as u8) << 4;
        ChunkEntry { strong, functions, flags: self.flags | STRONG_VALID, ..self }
    }

    /// With the fingerprints of another entry of the same block, and its place in the index.
    pub fn with_fingerprints_of(self, other: &ChunkEntry) -> ChunkEntry {
        let ChunkEntry { tag_tx, count, update_count, address_length, .. } = self;
        ChunkEntry { tag_tx, count, update_count, address_length, ..*other }
    }

    /// Without fingerprints, and in no chain.
    pub fn without_fingerprints(self) -> ChunkEntry {
        let flags = self.class() << CLASS_SHIFT;
        ChunkEntry { strong: [0; 20], weak: 0, previous: 0, next: 0, delete_pointer: 0, flags, functions: 0, ..self }
    }

    /// Of a packed chunk whose content cannot be read any more.
    pub fn lost(self) -> ChunkEntry {
        ChunkEntry { flags: CLASS_LOST << CLASS_SHIFT, ..self.without_fingerprints() }
    }

    /// Whether the block is free or private.
    pub fn is_empty(&self) -> bool {
        self.word().is_empty()
    }

    /// References taken on the block: those of extents, and those of dedup transactions under way.
    pub fn taken(&self) -> u64 {
        u64::from(self.count) + u64::from(self.update_count)
    }

    /// Whether its tag is that of an entry that counts. A crash in an add_entry may leave the count alone.
    pub fn is_whole(&self) -> bool {
        matches!(self.word().tag & !tag::RECOVERED, tag::ADD | tag::INCREASE | tag::DECREASE)
    }

    /// Whether it counts, and is this chunk's.
    pub fn is_of(&self, chunk: impl Into<ChunkRef>) -> bool {
        let is_of = match chunk.into() {
            ChunkRef::Block(block) => self.address() == block.address() && self.class() == 0,
            ChunkRef::Packed(_) => self.is_packed(),
        };
        is_of && !self.is_empty()
    }

    /// Whether it can be a packed chunk's, counting or not.
    pub fn is_packed(&self) -> bool {
        self.class() != 0 && self.packed_bytes().is_sound()
    }

    /// Generator and sequence of the transaction that added it or increased its count last; `None` of what is never taken
    /// back.
    pub fn added_by(&self) -> Option<(u64, u64)> {
        let word = self.word();
        matches!(word.tag, tag::ADD | tag::INCREASE).then(|| parts(word.tx))
    }

    /// Class of a packed chunk; 0: it is a block.
    pub fn class(&self) -> u8 {
        self.flags >> CLASS_SHIFT
    }

    /// Bytes that the chunk takes on the media.
    pub fn stored_bytes(&self) -> u64 {
        self.address_length >> 44
    }

    /// Bytes of a packed chunk's content.
    pub fn content_bytes(&self) -> u64 {
        match self.content_bytes_less_one {
            0 => self.stored_bytes(),
            less_one => u64::from(less_one) + 1,
        }
    }

    /// How long a packed chunk is.
    pub fn packed_bytes(&self) -> PackedBytes {
        PackedBytes { stored: self.stored_bytes(), content: self.content_bytes() }
    }

    /// Returns the count and transaction.
    pub fn word(&self) -> CountWord {
        let high = u64::from(self.update_count) << 32 | u64::from(self.count);
        CountWord::decode(u128::from(high) << 64 | u128::from(self.tag_tx))
    }

    /// Returns the media address of the chunk.
    pub fn address(&self) -> u64 {
        self.address_length & ((1 << 44) - 1)
    }

    /// Number of the weak fingerprint's function, and the fingerprint, if there is one.
    pub fn any_weak(&self) -> Option<(u8, u32)> {
        (self.flags & WEAK_VALID != 0).then_some((self.functions & 0x0f, self.weak))
    }

    /// Number of the strong fingerprint's function, and the fingerprint, if there is one.
    pub fn any_strong(&self) -> Option<(u8, Strong)> {
        (self.flags & STRONG_VALID != 0).then_some((self.functions >> 4, self.strong))
    }

    /// The weak fingerprint, if this function made it.
    pub fn weak(&self, function: WeakFunction) -> Option<u32> {
        self.any_weak().filter(|(made_by, _)| *made_by == function as u8).map(|(_, weak)| weak)
    }

    /// The strong fingerprint, if this function made it.
    pub fn strong(&self, function: StrongFunction) -> Option<Strong> {
        self.any_strong().filter(|(made_by, _)| *made_by == function as u8).map(|(_, strong)| strong)
    }
}

/// The word that says where a chunk lies and how many bytes it takes there.
pub fn address_word(address: u64, length: u64) -> u64 {
    length << 44 | address
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::BlockNumber;

    #[test]
    fn the_count_word_is_the_first_sixteen_bytes() {
        let word = CountWord { tag: tag::ADD, tx: (1 << 56) - 2, count: 7, update_count: 3 };
        let entry = ChunkEntry::for_block(BlockNumber(9), word).with_weak(WeakFunction::Xxh3, 5);
        let bytes: [u8; 16] = entry.as_bytes()[..16].try_into().unwrap();
        assert_eq!(CountWord::decode(u128::from_le_bytes(bytes)), word);
        assert_eq!(entry.address(), 9 * 4096);
        assert_eq!(entry.address_length >> 44, 4096);
    }

    #[test]
    fn a_fingerprint_is_told_with_the_function_that_made_it() {
        let word = CountWord { tag: tag::ADD, tx: 1, count: 1, update_count: 0 };
        let plain = ChunkEntry::for_block(BlockNumber(9), word);
        assert_eq!((plain.any_weak(), plain.any_strong()), (None, None));
        let entry = plain.with_strong(StrongFunction::Sha1, [3; 20]).with_weak(WeakFunction::Crc32, 7);
        assert_eq!((entry.weak(WeakFunction::Crc32), entry.strong(StrongFunction::Sha1)), (Some(7), Some([3; 20])));
        assert_eq!((entry.weak(WeakFunction::Xxh3), entry.strong(StrongFunction::Md5)), (None, None));
        assert_eq!(plain.with_fingerprints_of(&entry), entry);
    }
}
