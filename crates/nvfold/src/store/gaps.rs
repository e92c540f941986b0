//! Publishing a write that leaves something out: what it does not map becomes a hole, or stays reserved.
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

use super::Store;
use super::claims::Claims;
use super::remap::{Remap, Stamp, covers, within};
use super::zeros::Zeros;
use crate::chunking::is_zero;
use crate::error::Result;
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::Purpose;
use pmem::Flight;
use std::ops::Range;

impl Store {
    /// Publishes what a write to `range` has made of it; afterwards the file has at least `size` bytes. What `mapped`
    /// leaves out reads as zeros: it becomes a hole, or stays reserved.
    #[inline(always)]
    pub(crate) fn publish_written(
        &self,
        inode: &Inode,
        state: &mut State,
        range: Range<u64>,
        mapped: &[(u64, Extent)],
        size: u64,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let stamp = self.stamp(state, size, claims.times());
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
    pub(crate) fn drop_stored_zeros(
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
    fn over_unmapped_space_only_data_is_published() {
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
}
