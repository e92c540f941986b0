//! Zeros in the data of a write: they become holes.
//!
//! The problem: equal blocks are shared, but each one still takes an extent, a place in the log and a reference, all of
//! one chunk. Files have long runs of zeros: disk images, preallocated files, sparse files that a program copied.
//!
//! The idea: a hole reads as zeros, and costs nothing. So blocks of zeros are neither fingerprinted nor stored, and the
//! extents of a write leave them out. What the file had there is dropped in the same commit:
//!
//! ```text
//! request    | data |   zeros   |     zeros      | data |   zeros    |
//! the file   | data |           |reserved| data  | data |            |      before
//!            | data |           |reserved|       | data |                   after; the size is the end of the request
//! changed    |------|                    |--------------|
//! ```
//!
//! Reserved space reads as zeros and stays reserved. Where nothing changes, nothing is logged: zeros over a hole, such
//! as a file of zeros that is written in order, change size and times alone, in the inode's attributes.

use super::Core;
use super::claims::Claims;
use super::policy::Placer;
use super::publish::{Remap, Stamp, covers, within};
use crate::chunking::{is_zero, may_have_zero_block, zero_blocks};
use crate::error::Result;
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::Purpose;
use pmem::Flight;
use smallvec::SmallVec;
use std::ops::Range;

/// The file ranges of a request that become holes, in order. No two of them meet.
pub(super) type Zeros = SmallVec<[Range<u64>; 1]>;

/// Adds the ranges of `blocks`, which are whole blocks of the file from `offset` on, that become holes. Returns true if
/// there are any.
#[inline]
pub(super) fn add_zeros(policy: Placer<'_>, offset: u64, blocks: &[u8], zeros: &mut Zeros) -> bool {
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

/// True if these bytes, which are no whole block of a request, become a hole.
#[inline]
pub(super) fn becomes_hole(policy: Placer<'_>, bytes: &[u8]) -> bool {
    is_zero(bytes) && !policy.keeps_zeros()
}

/// Returns the parts of a file range between the holes, in order.
pub(super) fn between(zeros: &[Range<u64>], range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = std::iter::once(range.start).chain(zeros.iter().map(|zeros| zeros.end));
    let ends = zeros.iter().map(|zeros| zeros.start).chain(std::iter::once(range.end));
    let part = move |(start, end): (u64, u64)| start.max(range.start)..end.min(range.end);
    starts.zip(ends).map(part).filter(|part| !part.is_empty())
}

/// Returns the number of bytes of a file range that become holes.
#[inline]
pub(super) fn bytes_within(zeros: &[Range<u64>], range: Range<u64>) -> u64 {
    let within = |zeros: &Range<u64>| zeros.end.min(range.end).saturating_sub(zeros.start.max(range.start));
    zeros.iter().map(within).sum()
}

impl Core {
    /// Publishes what a write to `range` has made of it; afterwards the file has at least `size` bytes. What `mapped`
    /// leaves out reads as zeros: it becomes a hole, or stays reserved.
    #[inline]
    pub(super) fn publish_written(
        &self,
        inode: &Inode,
        state: &mut State,
        range: Range<u64>,
        mapped: &[(u64, Extent)],
        size: u64,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let stamp = self.stamp(state, size, claims.times);
        match covers(mapped, &range) {
            true => self.publish(inode, state, &Remap::new(&range, mapped, stamp), None, claims),
            false => self.publish_with_gaps(inode, state, range, mapped, stamp, claims),
        }
    }

    /// Publishes a write of which `mapped` leaves something out.
    #[inline(never)]
    fn publish_with_gaps(
        &self,
        inode: &Inode,
        state: &mut State,
        range: Range<u64>,
        mapped: &[(u64, Extent)],
        stamp: Stamp<'_>,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let ranges = changed(self.file_extents(state, "write")?, range, mapped);
        if ranges.is_empty() {
            let attributes = stamp.attributes(&state.attributes);
            return self.change(inode, state, &[], Some(attributes), Purpose::Promised, Flight::new());
        }
        let has_holes = ranges.iter().any(|range| !covers(within(mapped, range), range));
        self.publish(inode, state, &Remap { ranges: &ranges, mapped, has_holes, stamp }, None, claims)
    }

    /// Turns those of the blocks at these file offsets into holes that are zeros. The content of the file does not
    /// change. Returns the number of bytes.
    pub(super) fn drop_stored_zeros(
        &self,
        inode: &Inode,
        state: &mut State,
        blocks: impl Iterator<Item = (u64, BlockNumber)>,
    ) -> Result<u64> {
        let mut ranges = Zeros::new();
        for (offset, _) in blocks.filter(|(_, block)| self.is_stored_zero(*block)) {
            match ranges.last_mut() {
                Some(last) if last.end == offset => last.end += BLOCK_BYTES,
                _ => ranges.push(offset..offset + BLOCK_BYTES),
            }
        }
        if !ranges.is_empty() {
            let remap = Remap { ranges: &ranges, mapped: &[], has_holes: true, stamp: Stamp::Kept };
            self.publish(inode, state, &remap, None, &mut Claims::new(self))?;
        }
        Ok(ranges.iter().map(|range| range.end - range.start).sum())
    }

    /// True if a block is zeros. Bad memory reads as zeros and is not.
    fn is_stored_zero(&self, block: BlockNumber) -> bool {
        let address = block.address();
        self.region.load_u64(address) == 0
            && is_zero(&self.region.read::<[u8; BLOCK_BYTES as usize]>(address))
            && self.region.sound_or_forget(address, BLOCK_BYTES)
    }
}

/// Returns the parts of a range that change if it is mapped to exactly these extents: the extents, and data in between.
/// Reserved space in between stays, but not in a block that gets content. No two parts meet, or are in the same block.
fn changed(extents: &Extents, range: Range<u64>, mapped: &[(u64, Extent)]) -> Zeros {
    let mut ranges = Zeros::new();
    let add = |ranges: &mut Zeros, part: Range<u64>| match ranges.last_mut() {
        Some(last) if part.start == last.end || part.start < last.end.next_multiple_of(BLOCK_BYTES) => {
            last.end = part.end;
        }
        _ => ranges.push(part),
    };
    let gap = |ranges: &mut Zeros, start: u64, kept_from: u64, end: u64| {
        let replaced = extents.within(start, kept_from.min(end));
        let dropped = extents.within(kept_from.min(end), end).filter(|(_, extent)| !extent.unwritten);
        for (offset, extent) in replaced.chain(dropped) {
            add(ranges, offset..offset + extent.length);
        }
    };
    let (mut at, mut kept_from) = (range.start, range.start);
    for (offset, extent) in mapped {
        gap(&mut ranges, at, kept_from, *offset);
        at = offset + extent.length;
        kept_from = if extent.media_address().is_some() { at.next_multiple_of(BLOCK_BYTES) } else { at };
        add(&mut ranges, *offset..at);
    }
    gap(&mut ranges, at, kept_from, range.end);
    ranges
}

#[cfg(test)]
// Lists of ranges, some of which have one.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::super::publish::Mapped;
    use super::*;

    const B: u64 = BLOCK_BYTES;

    fn data(block: u64, blocks: u64) -> Extent {
        Extent::media(blocks * B, block * B, false)
    }

    fn file() -> Extents {
        let mut extents = Extents::default();
        extents.insert(2 * B, data(100, 2));
        extents.insert(4 * B, Extent::media(3 * B, 200 * B, true));
        extents.insert(7 * B, data(300, 1));
        extents
    }

    #[test]
    fn parts_between_holes_are_all_of_the_rest() {
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

    #[test]
    fn only_data_changes_where_nothing_is_mapped() {
        let extents = file();
        let changed = |range, mapped: &[(u64, Extent)]| changed(&extents, range, mapped).into_vec();
        assert_eq!(changed(0..2 * B, &[]), [], "a hole stays one");
        assert_eq!(changed(4 * B..7 * B, &[]), [], "reserved space stays reserved");
        assert_eq!(changed(8 * B..99 * B, &[]), [], "what is behind the end was a hole");
        assert_eq!(changed(0..10 * B, &[]), [2 * B..4 * B, 7 * B..8 * B]);
        assert_eq!(changed(B..3 * B, &[(B, data(9, 1))]), [B..3 * B], "data beside zeros over data is one part");
        assert_eq!(changed(0..6 * B, &[(0, data(9, 1)), (5 * B, data(10, 1))]), [0..B, 2 * B..4 * B, 5 * B..6 * B]);
        let grows = [(4 * B, Extent::media(100, 200 * B, false))];
        assert_eq!(changed(4 * B..7 * B, &grows), [4 * B..5 * B], "a block with content is not reserved");
        let unaligned = [(100, Extent::media(200, 9 * B, false))];
        assert_eq!(changed(100..2 * B + 50, &unaligned), [100..300, 2 * B..2 * B + 50]);
        let mut parts = Extents::default();
        let part = |offset| (offset, Extent::media(50, 9 * B + offset, false));
        [part(0), part(100), part(B)].into_iter().for_each(|(offset, extent)| parts.insert(offset, extent));
        assert_eq!(
            super::changed(&parts, 0..3 * B, &[]).into_vec(),
            [0..150, B..B + 50],
            "two in one block are one part"
        );
    }

    #[test]
    fn extents_that_leave_no_gap_cover_a_range() {
        let mapped: Mapped = [(B, data(1, 2)), (3 * B, data(9, 1))].into_iter().collect();
        assert!(covers(&mapped, &(B..4 * B)) && covers(&[], &(B..B)));
        assert!(!covers(&mapped, &(B..5 * B)) && !covers(&mapped, &(0..4 * B)) && !covers(&[], &(B..2 * B)));
        assert!(!covers(&[mapped[0], (4 * B, data(9, 1))], &(B..5 * B)));
        assert_eq!(within(&mapped, &(2 * B..9 * B)), &mapped[1..]);
        assert_eq!(within(&mapped, &(0..3 * B)), &mapped[..1]);
    }
}
