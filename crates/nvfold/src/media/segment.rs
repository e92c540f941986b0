//! The segment table: 16 bytes per segment, which say what it is used for and how worn it is.
//!
//! A segment is marked, durably, before its first block is used, and unmarked after its last block was freed. So
//! after a crash, only marked segments need a scan: all others are known to be free.
//!
//! ```text
//! 0     1            2               4          8      12     16
//! | kind | wear_class | absent_before | ordinal  | wear | check |   an entry is stored at once; a crash may leave
//! |<-- what it is used for: checked, but absent_before ->|         either half, and `check` lies in the other one
//! ```
//!
//! The use of a segment changes often, and its wear must not be lost when it does. So every change goes through
//! [`SegmentEntry::used_for`], which keeps class and wear. The use never depends on them: any value of `wear` is
//! valid.
//!
//! `absent_before` changes while the segment is in use. `check` leaves it out, so that a crash in that store leaves a
//! whole entry. What it says is compared with the parts that are there ([`crate::inode::table`]).

use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `kind` of a segment without blocks in use.
pub const KIND_FREE: u8 = 0;
/// `kind` of a segment that holds part of the inode table.
pub(crate) const KIND_INODES: u8 = 1;
/// `kind` of a segment in which blocks may be in use.
pub const KIND_BLOCKS: u8 = 2;
/// `kind` of a segment that holds part of the pm index.
pub(crate) const KIND_INDEX: u8 = 3;
/// `kind` of a segment that holds part of the table of packed entries.
pub const KIND_ENTRIES: u8 = 4;
/// `kind` of a segment that holds packed chunks.
pub const KIND_PACKED: u8 = 5;

/// The use and the wear of one 2 MiB segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentEntry {
    /// [`KIND_FREE`], [`KIND_INODES`], [`KIND_BLOCKS`], [`KIND_INDEX`], [`KIND_ENTRIES`] or [`KIND_PACKED`].
    pub kind: u8,
    /// Wear class (DeEXT): currently 0, reserved for a coarser measure. Kept when the use changes.
    pub wear_class: u8,
    /// Inode table: how many parts directly before this one may be absent. Zero otherwise.
    pub absent_before: u16,
    /// Which part of a table the segment is. Inode table: inodes `ordinal * 4096 ..`; index: prefixes `ordinal *
    /// 131072 ..`; table of packed entries: chunks `ordinal * 32768 ..`; 0 for blocks and packed chunks.
    pub ordinal: u32,
    /// How often it was opened for packed chunks (DeEXT III-C). Kept when the use changes; not covered by `check`.
    pub wear: u32,
    /// CRC-32C of the first 8 bytes with `absent_before` as 0, seeded with the segment number; 0 in the entry of a free
    /// segment.
    pub check: u32,
}

const _: () = assert!(size_of::<SegmentEntry>() == 16);
const _: () = assert!(offset_of!(SegmentEntry, absent_before) == 2);
const _: () = assert!(offset_of!(SegmentEntry, ordinal) == 4);
const _: () = assert!(offset_of!(SegmentEntry, check) == 12);

/// The use of a segment, as its entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentUse {
    /// No block of the segment is in use.
    Free,
    /// Blocks of the segment may be in use.
    Blocks,
    /// The segment is this part of the inode table.
    Inodes(u32),
    /// The segment is this part of the pm index's direct area.
    Index(u32),
    /// The segment is this part of the table of packed entries.
    Entries(u32),
    /// The segment holds packed chunks.
    Packed,
    /// Half an entry: a crash interrupted the store, or the entry is damaged. Blocks of the segment may be in use.
    Torn,
}

impl SegmentEntry {
    /// Returns an entry that gives `segment` to the inode table, with no wear.
    pub fn inodes(segment: u64, ordinal: u32) -> SegmentEntry {
        SegmentEntry::default().used_for(segment, KIND_INODES, ordinal)
    }

    /// Returns an entry that says that blocks of `segment` may be in use, with no wear.
    pub fn blocks(segment: u64) -> SegmentEntry {
        SegmentEntry::default().used_for(segment, KIND_BLOCKS, 0)
    }

    /// Returns an entry that gives `segment` to the pm index, with no wear.
    pub fn index(segment: u64, ordinal: u32) -> SegmentEntry {
        SegmentEntry::default().used_for(segment, KIND_INDEX, ordinal)
    }

    /// Returns the entry after a change of the use of `segment`: class and wear stay.
    #[must_use]
    pub fn used_for(self, segment: u64, kind: u8, ordinal: u32) -> SegmentEntry {
        let mut entry = SegmentEntry { kind, absent_before: 0, ordinal, check: 0, ..self };
        if kind != KIND_FREE {
            entry.check = entry.checksum(segment);
        }
        entry
    }

    /// Returns the entry of a part of the inode table before which so many parts are absent.
    #[must_use]
    pub fn with_absent_before(self, absent_before: u16) -> SegmentEntry {
        SegmentEntry { absent_before, ..self }
    }

    /// Returns the use of `segment`. `wear` does not matter; `wear_class` is covered by the checksum.
    pub fn usage(&self, segment: u64) -> SegmentUse {
        let is_whole = || self.check == self.checksum(segment);
        match (self.kind, self.absent_before, self.ordinal) {
            (KIND_FREE, 0, 0) if self.check == 0 => SegmentUse::Free,
            (KIND_BLOCKS, 0, 0) if is_whole() => SegmentUse::Blocks,
            (KIND_INODES, _, ordinal) if is_whole() => SegmentUse::Inodes(ordinal),
            (KIND_INDEX, 0, ordinal) if is_whole() => SegmentUse::Index(ordinal),
            (KIND_ENTRIES, 0, ordinal) if is_whole() => SegmentUse::Entries(ordinal),
            (KIND_PACKED, 0, 0) if is_whole() => SegmentUse::Packed,
            _ => SegmentUse::Torn,
        }
    }

    /// Returns true if the entry is torn as a crash may tear a store. A segment is always free, or holds blocks,
    /// before and after any other use. So half an entry with another use has the check of a free segment or of one
    /// with blocks.
    pub fn is_half(&self, segment: u64) -> bool {
        let may_be_half = match self.kind {
            KIND_FREE | KIND_BLOCKS => true,
            KIND_INODES..=KIND_PACKED => {
                let blocks = self.used_for(segment, KIND_BLOCKS, 0);
                [0, blocks.check].contains(&self.check)
            }
            _ => false,
        };
        let is_part = self.kind == KIND_INODES;
        may_be_half && (is_part || self.absent_before == 0) && self.usage(segment) == SegmentUse::Torn
    }

    fn checksum(&self, segment: u64) -> u32 {
        let checked = SegmentEntry { absent_before: 0, ..*self };
        super::checksum(segment, &checked.as_bytes()[..offset_of!(SegmentEntry, wear)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 5;
    const USES: [(u8, u32, SegmentUse); 7] = [
        (KIND_FREE, 0, SegmentUse::Free),
        (KIND_BLOCKS, 0, SegmentUse::Blocks),
        (KIND_INODES, 0, SegmentUse::Inodes(0)),
        (KIND_INODES, 7, SegmentUse::Inodes(7)),
        (KIND_INDEX, 3, SegmentUse::Index(3)),
        (KIND_ENTRIES, 2, SegmentUse::Entries(2)),
        (KIND_PACKED, 0, SegmentUse::Packed),
    ];
    /// Wear counts and classes: fresh ones, and others.
    const WORN: [(u8, u32); 4] = [(0, 0), (0, 1), (3, 0), (u8::MAX, u32::MAX)];

    fn worn((wear_class, wear): (u8, u32)) -> SegmentEntry {
        SegmentEntry { wear_class, wear, ..SegmentEntry::default() }
    }

    #[test]
    fn the_use_of_a_segment_is_readable_for_any_wear_and_class() {
        for (kind, ordinal, usage) in USES {
            for old in WORN {
                let entry = worn(old).used_for(SEGMENT, kind, ordinal);
                assert_eq!(entry.usage(SEGMENT), usage, "{entry:?}");
                let older = SegmentEntry { wear: entry.wear.wrapping_add(1), ..entry };
                assert_eq!(older.usage(SEGMENT), usage, "the wear is outside the checksum");
            }
        }
    }

    #[test]
    fn class_and_wear_of_a_segment_survive_a_change_of_its_use() {
        for old in WORN {
            let mut entry = worn(old);
            for (kind, ordinal, _) in USES.into_iter().chain(USES.into_iter().rev()) {
                entry = entry.used_for(SEGMENT, kind, ordinal);
                assert_eq!((entry.wear_class, entry.wear), old);
            }
            assert_eq!(entry, worn(old), "free again");
        }
    }

    #[test]
    fn half_a_segment_entry_is_recognised_as_torn() {
        for (old, new) in USES.iter().flat_map(|old| USES.iter().map(move |new| (old, new))) {
            for (before, after) in WORN.into_iter().flat_map(|old| WORN.map(|new| (old, new))) {
                let old = worn(before).used_for(SEGMENT, old.0, old.1);
                // A caller that counts wear changes it in the same store.
                let new = worn((old.wear_class, after.1)).used_for(SEGMENT, new.0, new.1);
                for (first, second) in [(old, new), (new, old)] {
                    let SegmentEntry { wear, check, .. } = second;
                    let torn = SegmentEntry { wear, check, ..first };
                    let is_whole = first.used_for(SEGMENT, first.kind, first.ordinal).check == check;
                    let expected = if is_whole { first.usage(SEGMENT) } else { SegmentUse::Torn };
                    assert_eq!(torn.usage(SEGMENT), expected, "{torn:?}");
                    assert_eq!(is_whole, old.usage(SEGMENT) == new.usage(SEGMENT), "no two uses have one checksum");
                }
            }
        }
    }

    #[test]
    fn a_single_flipped_bit_of_a_segment_entry_is_detected() {
        for entry in [SegmentEntry::blocks(SEGMENT), worn((3, 9)).used_for(SEGMENT, KIND_INODES, 1)] {
            // All but `absent_before` of a part of the inode table, which fsck compares with the parts.
            let checked = |bit: &usize| entry.kind != KIND_INODES || !(16..32).contains(bit);
            for bit in (0..64).filter(checked) {
                let mut damaged = entry;
                damaged.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(damaged.usage(SEGMENT), SegmentUse::Torn, "bit {bit}");
            }
            assert_eq!(entry.usage(SEGMENT + 1), SegmentUse::Torn, "the entry of another segment");
        }
        assert_eq!(SegmentEntry { ordinal: 1, ..SegmentEntry::default() }.usage(SEGMENT), SegmentUse::Torn);
        assert_eq!(SegmentEntry { check: 1, ..SegmentEntry::default() }.usage(SEGMENT), SegmentUse::Torn);
    }

    #[test]
    fn a_segment_entry_stays_valid_while_its_count_of_absent_parts_changes() {
        let part = worn((3, 9)).used_for(SEGMENT, KIND_INODES, 7);
        for absent in [1, 6, u16::MAX] {
            let noted = part.with_absent_before(absent);
            assert_eq!((noted.usage(SEGMENT), noted.check), (SegmentUse::Inodes(7), part.check));
            // It is given back: half of the entry is that of a segment of blocks.
            let torn = SegmentEntry { check: part.used_for(SEGMENT, KIND_BLOCKS, 0).check, ..noted };
            assert!(torn.is_half(SEGMENT));
            assert_eq!(noted.used_for(SEGMENT, KIND_BLOCKS, 0).absent_before, 0);
            let blocks = SegmentEntry { absent_before: absent, ..SegmentEntry::blocks(SEGMENT) };
            assert!(blocks.usage(SEGMENT) == SegmentUse::Torn && !blocks.is_half(SEGMENT), "only parts have a note");
        }
    }

    /// An older nvfold compares whole entries with these.
    #[test]
    fn a_segment_entry_without_wear_has_its_original_encoding() {
        let sealed = |kind: u8, ordinal: u32| {
            let entry = SegmentEntry { kind, ordinal, ..SegmentEntry::default() };
            SegmentEntry { check: super::super::checksum(SEGMENT, &entry.as_bytes()[..8]), ..entry }
        };
        assert_eq!(SegmentEntry::blocks(SEGMENT), sealed(2, 0));
        assert_eq!(SegmentEntry::inodes(SEGMENT, 7), sealed(1, 7));
        assert_eq!(SegmentEntry::index(SEGMENT, 3), sealed(3, 3));
        assert_eq!(SegmentEntry::blocks(SEGMENT).used_for(SEGMENT, KIND_FREE, 0), SegmentEntry::default());
    }
}
