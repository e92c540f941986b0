//! The plan of a policy that stores whole blocks.

use super::plan::Plan;
use crate::error::Result;
use crate::inode::extents::Extents;
use crate::inode::{Inode, State};
use crate::media::BLOCK_BYTES;
use crate::store::BLOCK;
use crate::store::Store;
use crate::store::blocks::{Whole, look_at_whole, whole_blocks, without_first};
use crate::store::claims::Claims;
use crate::store::ends::FileEnd;
use crate::store::placer::{Placer, Rung};
use crate::store::remap::Mapped;
use crate::store::zeros::bytes_within;
use std::convert::Infallible;
use std::ops::Range;
use std::slice;

/// Stores a request in blocks: each is shared, stored or left out as a hole. Parts of blocks are filled up with what the
/// file has, or go to the end of the file.
pub(super) struct InBlocks<'d> {
    data: &'d [u8],
    /// The file offset for which it is prepared.
    offset: u64,
    /// What is known of its whole blocks.
    whole: Whole<'d>,
    /// True if exactly its bytes are stored, so that the rest of the first and last block stays shared.
    is_exact: bool,
    /// The end of the file.
    end: FileEnd,
}

impl<'d> InBlocks<'d> {
    #[inline]
    pub(super) fn new(data: &'d [u8]) -> InBlocks<'d> {
        InBlocks { data, offset: 0, whole: Whole::default(), is_exact: false, end: FileEnd::default() }
    }

    /// A request for this offset of which the policy looks at nothing, so that it need not be prepared.
    #[inline]
    pub(super) fn unseen(data: &'d [u8], offset: u64) -> InBlocks<'d> {
        InBlocks { offset, ..InBlocks::new(data) }
    }

    #[inline]
    fn range_end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }

    /// Places the whole blocks, and fills up those of which the request has only a part.
    #[inline(always)]
    pub(super) fn place_whole(
        &mut self,
        store: &Store,
        state: &State,
        extents: &Extents,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<Range<u64>> {
        let (offset, data, end) = (self.offset, self.data, self.range_end());
        let (first, last) = whole_blocks(offset, data.len() as u64);
        let (range_start, range_end) = (offset / BLOCK_BYTES * BLOCK_BYTES, end.next_multiple_of(BLOCK_BYTES));
        if offset < state.attributes.size && store.region.is_slow_to_read() {
            store.fetch_replaced(extents, range_start..range_end, claims.policy());
        }
        self.end = FileEnd::of(state);
        let end_of_file = &mut self.end;
        if range_start < first {
            let part = &data[..(first.min(end) - offset) as usize];
            store.place_edge(extents, offset, part, end_of_file, mapped, claims)?;
        }
        let (mut first, mut pieces) = (first, &mut self.whole.pieces[..]);
        let begins_in_end = first == offset && first < last && end_of_file.grows_in(first);
        if begins_in_end
            && self.whole.zeros.first().is_none_or(|zeros| zeros.start != first)
            && store.place_append(extents, first, &data[..BLOCK], end_of_file, mapped, claims)?
        {
            // The kernel writes the page at the end of a file again when it is full.
            pieces = without_first(pieces);
            first += BLOCK_BYTES;
        }
        if first < last {
            let blocks = &data[(first - offset) as usize..(last - offset) as usize];
            store.place(extents, first, blocks, pieces, &self.whole.zeros, mapped, claims)?;
        }
        if last < end {
            let part = &data[(last - offset) as usize..];
            store.place_edge(extents, last, part, end_of_file, mapped, claims)?;
        }
        // What is not mapped reads as zeros: zeros, and what is behind an end that is packed or mapped exactly.
        Ok(match mapped[..] {
            // An end that grew in its block is all that changes: what is behind it was a hole.
            [(at, extent)] if claims.grown_bytes() > 0 && at + extent.length <= range_start + BLOCK_BYTES => {
                at..at + extent.length
            }
            _ => range_start..range_end,
        })
    }

    /// Completes what [`InBlocks::place_whole`] has placed.
    #[inline(always)]
    pub(super) fn published_whole(&self, store: &Store, inode: &Inode, state: &mut State, policy: Placer<'_>) {
        store.note_append(inode, state, &self.end, policy);
    }
}

impl Plan for InBlocks<'_> {
    type Declined = Infallible;

    #[inline(always)]
    fn prepare(&mut self, _store: &Store, offset: u64, policy: Placer<'_>) -> Result<()> {
        self.offset = offset;
        self.whole.clear();
        look_at_whole(policy, offset, self.data, &mut self.whole)
    }

    #[inline]
    fn place(
        &mut self,
        store: &Store,
        inode: &Inode,
        state: &State,
        rung: Rung,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<std::result::Result<Range<u64>, Infallible>> {
        let range = self.offset..self.range_end();
        let extents = store.file_extents(state, "write")?;
        self.is_exact = store.follows_origins(inode) && store.begins_or_ends_in_shared(extents, range.start, range.end);
        if !self.is_exact {
            return self.place_whole(store, state, extents, mapped, claims).map(Ok);
        }
        let all = 0..self.data.len() as u64;
        let (data, whole) = (self.data, &mut self.whole);
        store.place_exactly(state, range.start, data, slice::from_ref(&all), whole, rung, mapped, claims)?;
        Ok(Ok(range))
    }

    /// Whole blocks have no other place.
    #[inline]
    fn has_rung_below(&self, rung: Rung) -> bool {
        self.is_exact && rung == Rung::Packed
    }

    #[inline]
    fn published(&mut self, store: &Store, inode: &Inode, state: &mut State, _rung: Rung, policy: Placer<'_>) {
        self.published_whole(store, inode, state, policy);
    }

    #[inline]
    fn length(&self) -> u64 {
        self.data.len() as u64
    }

    #[inline(always)]
    fn hole_bytes(&self) -> u64 {
        if self.whole.zeros.is_empty() { 0 } else { bytes_within(&self.whole.zeros, self.offset..self.range_end()) }
    }
}
