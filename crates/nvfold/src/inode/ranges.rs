//! Ranges of the content of one chunk: sorted, and neither overlapping nor adjacent.

use smallvec::SmallVec;
use std::ops::Range;

/// The ranges of one chunk, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(SmallVec<[Range<u32>; 2]>);

impl Ranges {
    /// Adds a range, and merges it with those that it touches.
    pub(crate) fn add(&mut self, range: Range<u32>) {
        let first = self.0.partition_point(|other| other.end < range.start);
        let behind = self.0.partition_point(|other| other.start <= range.end);
        let touched = self.0.drain(first..behind);
        let joined = touched.fold(range, |all, other| all.start.min(other.start)..all.end.max(other.end));
        self.0.insert(first, joined);
    }

    /// Merges the two nearest ranges, together with the bytes between them. There must be two.
    pub(crate) fn join_nearest(&mut self) {
        let gap = |at: &usize| self.0[at + 1].start - self.0[*at].end;
        let nearest = (0..self.0.len() - 1).min_by_key(gap).expect("there are several");
        self.0[nearest].end = self.0.remove(nearest + 1).end;
    }

    /// Returns how many ranges there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the ranges in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range<u32>> {
        self.0.iter()
    }

    /// Returns the number of bytes in them.
    pub(crate) fn bytes(&self) -> u64 {
        self.iter().map(|range| u64::from(range.end - range.start)).sum()
    }

    /// Returns the end of the last one; 0 if there is none.
    pub(crate) fn end(&self) -> u64 {
        self.0.last().map_or(0, |range| u64::from(range.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_merges_with_adjacent_and_overlapping_ranges() {
        let mut ranges = Ranges::default();
        for range in [10..20, 40..50, 20..30, 60..70, 0..5, 29..41, 5..6] {
            ranges.add(range);
        }
        assert_eq!(ranges.0.to_vec(), [0..6, 10..50, 60..70]);
        assert_eq!((ranges.bytes(), ranges.end()), (56, 70));
    }
}
