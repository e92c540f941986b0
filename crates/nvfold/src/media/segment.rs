//! The segment table: 16 bytes a segment, zero for one in which no block is in use.
//!
//! A segment is marked, durably, before its first block is used, and unmarked after its last one was freed. So
//! the table says which part of a device a crash can have left anything in: the rest is known to be free at
//! once, and nothing there needs to be looked at.

use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `kind` of a segment that holds part of the inode table.
pub const KIND_INODES: u8 = 1;
/// `kind` of a segment in which blocks may be in use.
pub const KIND_BLOCKS: u8 = 2;
/// `kind` of a segment that holds part of the pm index.
pub const KIND_INDEX: u8 = 3;

/// What one 2 MiB segment is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentEntry {
    /// 0: all free; [`KIND_INODES`]; [`KIND_BLOCKS`]; [`KIND_INDEX`].
    pub kind: u8,
    /// Wear class (DeEXT), 0 until wear-aware pools exist.
    pub wear_class: u8,
    /// Zero.
    pub spare: u16,
    /// Which part of the inode table: inodes `ordinal * 4096 ..`, or of the index: prefixes `ordinal * 131072 ..`;
    /// 0 for blocks.
    pub ordinal: u32,
    /// Zero (wear count, DeEXT).
    pub wear: u32,
    /// CRC-32C of the first 8 bytes, seeded with the segment number; 0 in an all-zero entry.
    pub check: u32,
}

const _: () = assert!(size_of::<SegmentEntry>() == 16);
const _: () = assert!(offset_of!(SegmentEntry, ordinal) == 4);
const _: () = assert!(offset_of!(SegmentEntry, check) == 12);

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentUse {
    /// No block of it is in use.
    Free,
    /// Blocks of it may be in use.
    Blocks,
    /// It is this part of the inode table.
    Inodes(u32),
    /// It is this part of the pm index's direct area.
    Index(u32),
    /// Half an entry: a crash cut off the marking, or it is damaged. Blocks of it may be in use.
    Torn,
}

impl SegmentEntry {
    /// An entry that gives `segment` to the inode table.
    pub fn inodes(segment: u64, ordinal: u32) -> SegmentEntry {
        SegmentEntry { kind: KIND_INODES, ordinal, ..Default::default() }.sealed(segment)
    }

    /// An entry that says that blocks of `segment` may be in use.
    pub fn blocks(segment: u64) -> SegmentEntry {
        SegmentEntry { kind: KIND_BLOCKS, ..Default::default() }.sealed(segment)
    }

    /// An entry that gives `segment` to the pm index.
    pub fn index(segment: u64, ordinal: u32) -> SegmentEntry {
        SegmentEntry { kind: KIND_INDEX, ordinal, ..Default::default() }.sealed(segment)
    }

    fn sealed(mut self, segment: u64) -> SegmentEntry {
        self.check = super::checksum(segment, &self.as_bytes()[..8]);
        self
    }

    /// What it says of `segment`.
    pub fn usage(&self, segment: u64) -> SegmentUse {
        if *self == SegmentEntry::default() {
            SegmentUse::Free
        } else if *self == SegmentEntry::blocks(segment) {
            SegmentUse::Blocks
        } else if *self == SegmentEntry::inodes(segment, self.ordinal) {
            SegmentUse::Inodes(self.ordinal)
        } else if *self == SegmentEntry::index(segment, self.ordinal) {
            SegmentUse::Index(self.ordinal)
        } else {
            SegmentUse::Torn
        }
    }
}
