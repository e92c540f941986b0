//! The segment table: 16 bytes a segment, zero for one that holds (or may hold) blocks.
//! Only inode-table segments are marked; they are found by scanning this table at mount.

use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `kind` of a segment that holds part of the inode table.
pub const KIND_INODES: u8 = 1;

/// What one 2 MiB segment is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentEntry {
    /// 0: blocks (data, log pages, or free); [`KIND_INODES`].
    pub kind: u8,
    /// Wear class (DeEXT), 0 until wear-aware pools exist.
    pub wear_class: u8,
    /// Zero.
    pub spare: u16,
    /// Which part of the inode table: inodes `ordinal * 4096 ..`.
    pub ordinal: u32,
    /// Zero (wear count, DeEXT).
    pub wear: u32,
    /// CRC-32C of the first 8 bytes, seeded with the segment number; 0 in an all-zero entry.
    pub check: u32,
}

const _: () = assert!(size_of::<SegmentEntry>() == 16);
const _: () = assert!(offset_of!(SegmentEntry, ordinal) == 4);
const _: () = assert!(offset_of!(SegmentEntry, check) == 12);

impl SegmentEntry {
    /// An entry that gives `segment` to the inode table.
    pub fn inodes(segment: u64, ordinal: u32) -> SegmentEntry {
        let mut entry = SegmentEntry { kind: KIND_INODES, ordinal, ..Default::default() };
        entry.check = super::checksum(segment, &entry.as_bytes()[..8]);
        entry
    }

    /// The ordinal, if this is a whole inode-table entry; a torn one was never used.
    pub fn inode_ordinal(&self, segment: u64) -> Option<u32> {
        (self.kind == KIND_INODES && *self == SegmentEntry { wear: self.wear, ..Self::inodes(segment, self.ordinal) })
            .then_some(self.ordinal)
    }
}
