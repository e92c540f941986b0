//! Zeros in the data of a write: they become holes.
//!
//! The problem: equal blocks are shared, but each one still takes an extent, a place in the log and a reference, all of
//! one chunk. Files have long runs of zeros: disk images, preallocated files, sparse files that a program copied.
//!
//! The idea: a hole reads as zeros, and costs nothing. So blocks of zeros are neither fingerprinted nor stored, and the
//! extents of a write leave them out. What the file had there is dropped in the same commit ([`super::gaps`]).

use super::placer::Placer;
use crate::chunking::{is_zero, may_have_zero_block, zero_blocks};
use smallvec::SmallVec;
use std::ops::Range;

/// The file ranges of a request that become holes, in order. No two of them meet.
pub(crate) type Zeros = SmallVec<[Range<u64>; 1]>;

/// Adds the ranges of `blocks`, which are whole blocks of the file from `offset` on, that become holes. Returns true if
/// there are any.
#[inline]
pub(crate) fn add_zeros(policy: Placer<'_>, offset: u64, blocks: &[u8], zeros: &mut Zeros) -> bool {
    may_have_zero_block(blocks) && add_found(policy, offset, blocks, zeros)
}

#[inline(never)]
fn add_found(policy: Placer<'_>, offset: u64, blocks: &[u8], zeros: &mut Zeros) -> bool {
    if policy.keeps_zeros() {
        return false;
    }
    let found = zero_blocks(blocks);
    let of_file = |range: &Range<usize>| offset + range.start as u64..offset + range.end as u64;
    zeros.extend(found.iter().map(of_file));
    !found.is_empty()
}

/// True if these bytes, one block or a part of one, become a hole.
#[inline]
pub(crate) fn becomes_hole(policy: Placer<'_>, bytes: &[u8]) -> bool {
    is_zero(bytes) && !policy.keeps_zeros()
}

/// Returns the parts of a file range between the holes, in order.
pub(crate) fn between(zeros: &[Range<u64>], range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = std::iter::once(range.start).chain(zeros.iter().map(|zeros| zeros.end));
    let ends = zeros.iter().map(|zeros| zeros.start).chain(std::iter::once(range.end));
    let part = move |(start, end): (u64, u64)| start.max(range.start)..end.min(range.end);
    starts.zip(ends).map(part).filter(|part| !part.is_empty())
}

/// Returns the number of bytes of a file range that become holes.
#[inline]
pub(crate) fn bytes_within(zeros: &[Range<u64>], range: Range<u64>) -> u64 {
    let within = |zeros: &Range<u64>| zeros.end.min(range.end).saturating_sub(zeros.start.max(range.start));
    zeros.iter().map(within).sum()
}

#[cfg(test)]
// Lists of ranges, some of which have one.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use crate::media::BLOCK_BYTES;

    const B: u64 = BLOCK_BYTES;

    #[test]
    fn the_parts_between_holes_cover_the_rest_of_the_range() {
        let zeros = [2 * B..3 * B, 5 * B..8 * B];
        let parts = |range| between(&zeros, range).collect::<Vec<_>>();
        assert_eq!(parts(0..9 * B), [0..2 * B, 3 * B..5 * B, 8 * B..9 * B]);
        assert_eq!(parts(2 * B..6 * B), [3 * B..5 * B]);
        assert_eq!(parts(6 * B..7 * B), []);
        assert_eq!(parts(8 * B..9 * B), [8 * B..9 * B]);
        assert_eq!(between(&[], B..2 * B).collect::<Vec<_>>(), [B..2 * B]);
        assert_eq!((bytes_within(&zeros, 0..9 * B), bytes_within(&zeros, 6 * B..7 * B)), (4 * B, B));
        assert_eq!((bytes_within(&zeros, 3 * B..5 * B), bytes_within(&[], 0..B)), (0, 0));
    }
}
