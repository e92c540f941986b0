//! The chunk entry: one cache line with the reference count and the fingerprints of a block.
//!
//! One table serves every policy: it is the union of NV-Dedup's metadata entry (4.2, Fig. 5) and DeNOVA's FACT entry
//! (IV-C). An entry whose count and update count are 0 is empty, whatever the other fields hold. It means that the
//! block is free, or *private*: referenced by exactly one extent and not fingerprinted. So unshared data needs no
//! entry.
//!
//! The entry of a **packed chunk** has the same layout and a table of its own
//! ([`super::segment::SegmentUse::Entries`]). It is not empty as long as the chunk is in use, and holds the address
//! and the length of the bytes. Empty means free, never private.
//!
//! Both counts together say how many references a block has: `count` (RFC, the paper's reference count) extents
//! reference it, and `update_count` (UC) references belong to dedup transactions under way.

use super::generator::parts;
use super::packed::PackedBytes;
use super::{ChunkRef, SEGMENT_BYTES};
use crate::fingerprint::{Strong, StrongFunction, WeakFunction};
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `flags`: the weak fingerprint is valid.
pub(crate) const WEAK_VALID: u8 = 1;
/// `flags`: the strong fingerprint is valid.
pub const STRONG_VALID: u8 = 2;

/// `flags`: bits 4-7 are the class of a packed chunk, by the method that cut it (DeEXT III-B); 0 for a block.
const CLASS_SHIFT: u8 = 4;

/// Class of a packed chunk whose compressed content is unreadable, and has been reported by fsck.
pub const CLASS_LOST: u8 = 13;
/// Class of a packed chunk that is the end of a file, under a policy that stores blocks.
pub const CLASS_END: u8 = 14;
/// Class of a packed chunk whose cutting method is unknown, because fsck rebuilt its entry.
pub(crate) const CLASS_UNKNOWN: u8 = 15;

/// Entry operations of NV-Dedup (Table 2), kept in the tag.
pub mod tag {
    /// add_entry.
    pub const ADD: u8 = 0x10;
    /// increase_RC.
    pub const INCREASE: u8 = 0x20;
    /// decrease_RC.
    pub const DECREASE: u8 = 0x40;
    /// null_entry. The rest of the line stays until the entry is reused.
    pub const NULL: u8 = 0x80;
    /// Bit next to the operation: recovery has corrected the count, so nothing must be rolled back (4.3.2).
    pub const RECOVERED: u8 = 0x01;
}

/// One line of the chunk table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChunkEntry {
    /// `tag:8 | tx_id:56` of the last dedup transaction (NV-Dedup).
    pub tag_tx: u64,
    /// Number of extents that touch the block; 0 in an empty entry.
    pub count: u32,
    /// Number of references that dedup transactions under way hold (DeNOVA).
    pub update_count: u32,
    /// `length:20 | address:44`; a whole block has the length 4096. Changes by an 8-byte store.
    pub address_length: u64,
    /// 160 bits of a strong fingerprint.
    pub strong: [u8; 20],
    /// Weak fingerprint.
    pub weak: u32,
    /// pm index: the previous block in the list of its chain, or 0 (DeNOVA's IAA).
    pub previous: u32,
    /// pm index: the next block in the list, or 0.
    pub next: u32,
    /// pm index: number of the chain, which gives the position of its head in the direct area (DeNOVA's delete
    /// pointer).
    pub delete_pointer: u32,
    /// [`WEAK_VALID`], [`STRONG_VALID`], and the class of a packed chunk in bits 4-7.
    pub flags: u8,
    /// Which functions made the fingerprints: the weak one in bits 0-3, the strong one in bits 4-7.
    pub functions: u8,
    /// Packed chunks: bytes of the content minus one, if the content is compressed. 0 if it is not compressed, and
    /// for a block.
    pub content_bytes_less_one: u16,
}

/// Bytes of one entry.
pub const ENTRY_BYTES: u64 = 64;
/// Offset of the address word in an entry.
pub(crate) const ADDRESS_WORD: u64 = 16;
/// Offset of the word with `previous` and `next`, which only the pm index changes.
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

/// Bytes 0-15 of an entry: everything that a count change touches, changed by one 16-byte atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountWord {
    /// Last entry operation.
    pub tag: u8,
    /// Transaction of that operation, 56 bits.
    pub tx: u64,
    /// Reference count.
    pub count: u32,
    /// References that transactions under way hold.
    pub update_count: u32,
}

impl CountWord {
    /// Returns true if the entry is empty: there is no counted reference to the block.
    pub fn is_empty(self) -> bool {
        self.count == 0 && self.update_count == 0
    }

    /// Decodes the 16 bytes as loaded.
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

    /// Encodes the word as stored.
    pub fn encode(self) -> u128 {
        let low = u64::from(self.tag) << 56 | self.tx & ((1 << 56) - 1);
        let high = u64::from(self.update_count) << 32 | u64::from(self.count);
        u128::from(high) << 64 | u128::from(low)
    }
}

impl ChunkEntry {
    /// Returns an entry for a whole block, without fingerprints.
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

    /// Returns an entry for a packed chunk of this length at a media address, without fingerprints. `class` is 1 to
    /// 15.
    pub fn for_packed(address: u64, bytes: PackedBytes, class: u8, count: CountWord) -> ChunkEntry {
        ChunkEntry {
            address_length: address_word(address, bytes.stored),
            flags: class << CLASS_SHIFT,
            content_bytes_less_one: if bytes.is_compressed() { bytes.content.wrapping_sub(1) as u16 } else { 0 },
            ..ChunkEntry::for_block(super::BlockNumber(0), count)
        }
    }

    /// Returns an entry for `chunk` without fingerprints. `old` is the chunk's present entry, which has the address
    /// of a packed chunk.
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

    /// Returns the entry with a weak fingerprint and the function that made it.
    pub fn with_weak(self, function: WeakFunction, weak: u32) -> ChunkEntry {
        let functions = self.functions & 0xf0 | function as u8;
        ChunkEntry { weak, functions, flags: self.flags | WEAK_VALID, ..self }
    }

    /// Returns the entry with a strong fingerprint and the function that made it.
    pub fn with_strong(self, function: StrongFunction, strong: Strong) -> ChunkEntry {
        let functions = self.functions & 0x0f | (function as u8) << 4;
        ChunkEntry { strong, functions, flags: self.flags | STRONG_VALID, ..self }
    }

    /// Returns the entry with the fingerprints, and the place in the index, of another entry of the same block.
    pub fn with_fingerprints_of(self, other: &ChunkEntry) -> ChunkEntry {
        let ChunkEntry { tag_tx, count, update_count, address_length, .. } = self;
        ChunkEntry { tag_tx, count, update_count, address_length, ..*other }
    }

    /// Returns the entry without fingerprints, and in no chain.
    pub fn without_fingerprints(self) -> ChunkEntry {
        let flags = self.class() << CLASS_SHIFT;
        ChunkEntry { strong: [0; 20], weak: 0, previous: 0, next: 0, delete_pointer: 0, flags, functions: 0, ..self }
    }

    /// Returns the entry of a packed chunk whose content has become unreadable.
    pub fn lost(self) -> ChunkEntry {
        ChunkEntry { flags: CLASS_LOST << CLASS_SHIFT, ..self.without_fingerprints() }
    }

    /// Returns true if the block is free or private.
    pub fn is_empty(&self) -> bool {
        self.word().is_empty()
    }

    /// Returns the number of references to the block: those of extents, and those of dedup transactions under way.
    pub fn taken(&self) -> u64 {
        u64::from(self.count) + u64::from(self.update_count)
    }

    /// Returns true if the tag is that of a completed add or count change. A crash during add_entry may leave a count
    /// without such a tag.
    pub fn is_whole(&self) -> bool {
        matches!(self.word().tag & !tag::RECOVERED, tag::ADD | tag::INCREASE | tag::DECREASE)
    }

    /// Returns true if the entry is not empty and belongs to this chunk.
    pub fn is_of(&self, chunk: impl Into<ChunkRef>) -> bool {
        let is_of = match chunk.into() {
            ChunkRef::Block(block) => self.address() == block.address() && self.class() == 0,
            ChunkRef::Packed(_) => self.is_packed(),
        };
        is_of && !self.is_empty()
    }

    /// Returns true if the entry can be a packed chunk's, empty or not.
    pub fn is_packed(&self) -> bool {
        check_length(self.class(), self.packed_bytes()).is_ok()
    }

    /// Checks whether an entry, empty or not, can be that of this chunk. Whoever reads an entry asks before it is used,
    /// and whoever makes one before it is written: what could not be read back is never committed. It takes no lock and
    /// reads no media. `holds` tells whether a range of media addresses is one of data.
    ///
    /// # Errors
    /// What is wrong.
    #[inline]
    pub fn check(&self, chunk: ChunkRef, holds: impl Fn(u64, u64) -> bool) -> Result<(), &'static str> {
        match chunk {
            ChunkRef::Block(block) if self.class() != 0 || self.address() != block.address() => Err("another chunk"),
            ChunkRef::Block(_) => check_place(holds, self.address(), self.stored_bytes()),
            ChunkRef::Packed(_) => {
                check_length(self.class(), self.packed_bytes())?;
                check_place(holds, self.address(), self.stored_bytes())
            }
        }
    }

    /// Returns the generator and sequence of the transaction that added the entry or last increased its count; `None`
    /// if the last change is never rolled back.
    pub fn added_by(&self) -> Option<(u64, u64)> {
        let word = self.word();
        matches!(word.tag, tag::ADD | tag::INCREASE).then(|| parts(word.tx))
    }

    /// Returns the class of a packed chunk, or 0 for a block.
    pub fn class(&self) -> u8 {
        self.flags >> CLASS_SHIFT
    }

    /// Returns the number of bytes that the chunk takes on the media.
    pub fn stored_bytes(&self) -> u64 {
        self.address_length >> 44
    }

    /// Returns the number of bytes of a packed chunk's content.
    pub fn content_bytes(&self) -> u64 {
        match self.content_bytes_less_one {
            0 => self.stored_bytes(),
            less_one => u64::from(less_one) + 1,
        }
    }

    /// Returns the length of a packed chunk.
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

    /// Returns the number of the weak fingerprint's function, and the fingerprint, if there is one.
    pub fn any_weak(&self) -> Option<(u8, u32)> {
        (self.flags & WEAK_VALID != 0).then_some((self.functions & 0x0f, self.weak))
    }

    /// Returns the number of the strong fingerprint's function, and the fingerprint, if there is one.
    pub fn any_strong(&self) -> Option<(u8, Strong)> {
        (self.flags & STRONG_VALID != 0).then_some((self.functions >> 4, self.strong))
    }

    /// Returns the weak fingerprint, if this function made it.
    pub fn weak(&self, function: WeakFunction) -> Option<u32> {
        self.any_weak().filter(|(made_by, _)| *made_by == function as u8).map(|(_, weak)| weak)
    }

    /// Returns the strong fingerprint, if this function made it.
    pub fn strong(&self, function: StrongFunction) -> Option<Strong> {
        self.any_strong().filter(|(made_by, _)| *made_by == function as u8).map(|(_, strong)| strong)
    }
}

/// Checks the class and the length of a packed chunk: the part of [`ChunkEntry::check`] that is known before the chunk
/// has a place.
///
/// # Errors
/// What is wrong.
#[inline]
pub(crate) fn check_length(class: u8, bytes: PackedBytes) -> Result<(), &'static str> {
    let is_sound = (1..16).contains(&class) && bytes.is_sound();
    if is_sound { Ok(()) } else { Err("length of a packed chunk") }
}

/// Checks the place of a chunk: the part of [`ChunkEntry::check`] that may change while the chunk is in use. A chunk
/// lies in one segment.
///
/// # Errors
/// What is wrong.
#[inline]
pub(crate) fn check_place(
    holds: impl Fn(u64, u64) -> bool,
    address: u64,
    stored_bytes: u64,
) -> Result<(), &'static str> {
    let is_in_one_segment = address % SEGMENT_BYTES + stored_bytes <= SEGMENT_BYTES;
    let is_place = is_in_one_segment && holds(address, stored_bytes);
    if is_place { Ok(()) } else { Err("chunk address") }
}

/// Returns the word that encodes the address of a chunk and its length on the media.
pub fn address_word(address: u64, length: u64) -> u64 {
    length << 44 | address
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::BlockNumber;

    #[test]
    fn the_counts_of_a_chunk_entry_are_its_first_sixteen_bytes() {
        let word = CountWord { tag: tag::ADD, tx: (1 << 56) - 2, count: 7, update_count: 3 };
        let entry = ChunkEntry::for_block(BlockNumber(9), word).with_weak(WeakFunction::Xxh3, 5);
        let bytes: [u8; 16] = entry.as_bytes()[..16].try_into().unwrap();
        assert_eq!(CountWord::decode(u128::from_le_bytes(bytes)), word);
        assert_eq!(entry.address(), 9 * 4096);
        assert_eq!(entry.address_length >> 44, 4096);
    }

    #[test]
    fn a_chunk_entry_returns_a_fingerprint_with_its_function() {
        let word = CountWord { tag: tag::ADD, tx: 1, count: 1, update_count: 0 };
        let plain = ChunkEntry::for_block(BlockNumber(9), word);
        assert_eq!((plain.any_weak(), plain.any_strong()), (None, None));
        let entry = plain.with_strong(StrongFunction::Sha1, [3; 20]).with_weak(WeakFunction::Crc32, 7);
        assert_eq!((entry.weak(WeakFunction::Crc32), entry.strong(StrongFunction::Sha1)), (Some(7), Some([3; 20])));
        assert_eq!((entry.weak(WeakFunction::Xxh3), entry.strong(StrongFunction::Md5)), (None, None));
        assert_eq!(plain.with_fingerprints_of(&entry), entry);
    }
}
