//! The recovery journal: makes one operation over several inodes atomic.
//!
//! An operation on one inode commits with one 8-byte store. One that touches several (rename between
//! directories, link, unlink) first makes all its log entries durable beyond the tails, where nothing
//! reads them, then writes the few commit words it wants to store into one slot. From the moment the
//! slot is durable the operation has happened: recovery stores the words again (which is harmless when
//! they were stored already) and clears the slot.

use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Slots on a device: operations over several inodes that can be under way at once.
pub const JOURNAL_SLOTS: u64 = 128;
/// Words one operation can store.
pub const JOURNAL_WORDS: usize = 7;

/// A word to store: where, and what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WordStore {
    /// Device offset, a multiple of 8.
    pub offset: u64,
    /// New value.
    pub value: u64,
}

/// Two lines; valid when `count` is 1..=7 and the checksum holds, so a torn slot is an empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JournalSlot {
    /// CRC-32C of the slot with this field zero.
    pub check: u32,
    /// Words in use; storing 0 over the first 8 bytes clears the slot.
    pub count: u32,
    /// The words.
    pub stores: [WordStore; JOURNAL_WORDS],
    /// Zero.
    pub spare: u64,
}

const _: () = assert!(size_of::<JournalSlot>() == 128);
const _: () = assert!(offset_of!(JournalSlot, stores) == 8);

impl JournalSlot {
    /// A sealed slot. `stores` has 1 to 7 words.
    pub fn new(stores: &[WordStore]) -> JournalSlot {
        assert!((1..=JOURNAL_WORDS).contains(&stores.len()), "an operation stores 1 to 7 words");
        let mut slot = JournalSlot { count: stores.len() as u32, ..JournalSlot::default() };
        slot.stores[..stores.len()].copy_from_slice(stores);
        slot.check = super::checksum(0, slot.as_bytes());
        slot
    }

    /// The words of a whole slot; empty for a cleared or torn one.
    pub fn words(&self) -> &[WordStore] {
        let count = self.count as usize;
        if !(1..=JOURNAL_WORDS).contains(&count) || JournalSlot::new(&self.stores[..count]) != *self {
            return &[];
        }
        &self.stores[..count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_slot_is_empty() {
        let whole = JournalSlot::new(&[WordStore { offset: 64, value: 1 }, WordStore { offset: 128, value: 2 }]);
        assert_eq!(whole.words().len(), 2);
        for word in 0..16 {
            let mut torn = whole;
            let bytes = &mut torn.as_mut_bytes()[word * 8..word * 8 + 8];
            if bytes.iter().any(|byte| *byte != 0) {
                bytes.fill(0);
                assert!(torn.words().is_empty(), "word {word}");
            }
        }
    }
}
