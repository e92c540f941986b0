//! The recovery journal: makes an operation over several inodes atomic.
//!
//! An operation on one inode commits with one 8-byte store. An operation on several inodes (rename between
//! directories, link, unlink) first makes all its log entries durable beyond the tails, where nothing reads them.
//! Then it writes its few commit words into one journal slot. It is committed once the slot is durable: recovery
//! stores the words again, which is harmless if they were stored already, and clears the slot.

use super::inode::{COMMIT_WORD, HEAD_WORD, INODE_BYTES, PARENT_WORD};
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Number of slots on a device, which limits the operations over several inodes that can run at once.
pub const JOURNAL_SLOTS: u64 = 128;
/// Most words that one operation can store.
pub const JOURNAL_WORDS: usize = 7;

/// A word to store, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WordStore {
    /// Device offset, a multiple of 8.
    pub offset: u64,
    /// New value.
    pub value: u64,
}

impl WordStore {
    /// Checks whether operations on several inodes store such a word: the commit word, the log head or the parent of an
    /// inode. Recovery asks before it stores the word again, and an operation before it writes it to the journal.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), &'static str> {
        match self.offset % INODE_BYTES {
            COMMIT_WORD | HEAD_WORD | PARENT_WORD => Ok(()),
            _ => Err("a word that no operation stores"),
        }
    }
}

/// One slot, two lines long. It is valid if `count` is 1..=7 and the checksum holds, so a torn slot counts as empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JournalSlot {
    /// CRC-32C of the slot with this field zero.
    pub check: u32,
    /// Number of words in use; storing 0 over the first 8 bytes clears the slot.
    pub count: u32,
    /// The words.
    pub stores: [WordStore; JOURNAL_WORDS],
    /// Zero.
    pub spare: u64,
}

const _: () = assert!(size_of::<JournalSlot>() == 128);
const _: () = assert!(offset_of!(JournalSlot, stores) == 8);

impl JournalSlot {
    /// Returns a sealed slot. `stores` has 1 to 7 words.
    pub fn new(stores: &[WordStore]) -> JournalSlot {
        assert!((1..=JOURNAL_WORDS).contains(&stores.len()), "an operation stores 1 to 7 words");
        let mut slot = JournalSlot { count: stores.len() as u32, ..JournalSlot::default() };
        slot.stores[..stores.len()].copy_from_slice(stores);
        slot.check = super::checksum(0, slot.as_bytes());
        slot
    }

    /// Returns the words of a whole slot; none if the slot is cleared or torn.
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
    fn a_torn_journal_slot_counts_as_empty() {
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
