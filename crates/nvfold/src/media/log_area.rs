//! Log areas: slots of the inode table that continue a log which is too long for its own slot and too short for a
//! page.
//!
//! ```text
//!   0  head line: next area or page, number, owner
//!  64  seven log lines
//! ```
//!
//! The head line has the fields of an inode's head line at the same offsets: a reader of the slot finds number, kind
//! and use where an inode has them, and an empty log.

use super::checksum;
use super::inode::{IN_USE, INLINE_LOG, InodeHead};
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `kind` of a slot that is a log area; no inode has this kind.
pub(crate) const KIND_LOG_AREA: u8 = 8;
/// Offset of the first log line in the slot.
pub const AREA_LOG: u64 = 64;
/// Most areas of one log: together they are as large as a page.
pub const AREAS_MAX: usize = 8;

/// First line of a log area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AreaHead {
    /// Commit word of an empty inode, so that nothing of the slot's previous user reappears.
    pub empty_commit: u64,
    /// Head word of an empty inode.
    pub empty_head: u64,
    /// First line of the next area or page, or 0; changes by an 8-byte store.
    pub next: u64,
    /// Zero.
    pub spare0: u64,
    /// Number of the slot.
    pub number: u64,
    /// Inode whose log this is.
    pub owner: u64,
    /// [`KIND_LOG_AREA`].
    pub kind: u8,
    /// [`IN_USE`] or 0.
    pub in_use: u8,
    /// Zero.
    pub spare1: u16,
    /// Number of inodes that have used this slot.
    pub generation: u32,
    /// CRC-32C of number, owner and the word above, seeded with the slot's address.
    pub check: u32,
    /// Zero.
    pub spare2: u32,
}

const _: () = assert!(size_of::<AreaHead>() == 64);
const _: () = assert!(offset_of!(AreaHead, empty_commit) == offset_of!(InodeHead, commit));
const _: () = assert!(offset_of!(AreaHead, empty_head) == offset_of!(InodeHead, head));
const _: () = assert!(offset_of!(AreaHead, next) == offset_of!(InodeHead, overflow));
const _: () = assert!(offset_of!(AreaHead, number) == offset_of!(InodeHead, ino));
const _: () = assert!(offset_of!(AreaHead, kind) == offset_of!(InodeHead, kind));
const _: () = assert!(offset_of!(AreaHead, generation) == offset_of!(InodeHead, generation));
const _: () = assert!(offset_of!(AreaHead, check) == offset_of!(InodeHead, check));

/// Offset of [`AreaHead::next`] in the slot.
pub const NEXT_WORD: u64 = offset_of!(AreaHead, next) as u64;

impl AreaHead {
    /// Returns the head of a new area.
    pub fn new(slot: u64, number: u64, owner: u64, generation: u32) -> AreaHead {
        AreaHead {
            empty_commit: slot + INLINE_LOG,
            empty_head: slot + INLINE_LOG,
            number,
            owner,
            kind: KIND_LOG_AREA,
            in_use: IN_USE,
            generation,
            ..AreaHead::default()
        }
        .sealed(slot)
    }

    fn sealed(mut self, slot: u64) -> AreaHead {
        self.check = checksum(slot, &self.as_bytes()[32..56]);
        self
    }

    /// Returns true if the slot at this address is a valid log area.
    pub fn is_whole(&self, slot: u64) -> bool {
        self.kind == KIND_LOG_AREA && self.in_use == IN_USE && self.sealed(slot).check == self.check
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_area_is_not_taken_for_an_inode() {
        let area = AreaHead::new(512, 1, 9, 3);
        assert!(area.is_whole(512) && !area.is_whole(1024));
        let as_inode = InodeHead::read_from_bytes(area.as_bytes()).unwrap();
        assert_eq!(as_inode.live(1), None);
        assert_eq!((as_inode.commit, as_inode.head), (512 + INLINE_LOG, 512 + INLINE_LOG));
        assert_eq!(as_inode.freed_use_word(), 3 << 32);
        for byte in 32..60 {
            let mut damaged = area;
            damaged.as_mut_bytes()[byte] ^= 1;
            assert!(!damaged.is_whole(512), "byte {byte}");
        }
    }
}
