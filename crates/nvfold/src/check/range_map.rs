//! Ranges of the media, and the packed chunks that take them.

use crate::media::PackedNumber;
use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that do not overlap, each taken by a packed chunk.
#[derive(Default)]
pub(super) struct Taken {
    /// By start: the end, and the chunk that takes the range.
    ranges: BTreeMap<u64, (u64, PackedNumber)>,
}

impl Taken {
    /// Takes a range for a chunk, unless it overlaps another; returns the chunk of the other range in that case.
    pub(super) fn insert(&mut self, range: Range<u64>, of: PackedNumber) -> Option<PackedNumber> {
        let other = self.overlapping(&range);
        if other.is_none() {
            self.ranges.insert(range.start, (range.end, of));
        }
        other
    }

    /// Returns true if any byte of a range is taken.
    pub(super) fn overlaps(&self, range: Range<u64>) -> bool {
        self.overlapping(&range).is_some()
    }

    fn overlapping(&self, range: &Range<u64>) -> Option<PackedNumber> {
        let before = self.ranges.range(..range.end).next_back();
        before.filter(|(_, (end, _))| *end > range.start).map(|(_, (_, of))| *of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_range_can_be_claimed_only_once() {
        let mut taken = Taken::default();
        assert_eq!(taken.insert(10..20, PackedNumber(1)), None);
        assert_eq!(taken.insert(20..21, PackedNumber(2)), None);
        assert_eq!(taken.insert(0..10, PackedNumber(3)), None);
        assert_eq!(taken.insert(19..25, PackedNumber(4)), Some(PackedNumber(2)));
        assert!(taken.overlaps(5..6) && taken.overlaps(0..100) && !taken.overlaps(21..100));
    }
}
