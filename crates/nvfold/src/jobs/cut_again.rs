//! Cutting stored data again: at seams, and where a policy that stores blocks has written.
//!
//! The problem: where a request did not continue a stream, two parts of a file meet that were cut independently. And
//! a file that was written as blocks shares nothing with pieces, whatever its policy is now.
//!
//! The idea: read a bounded part of the file, cut it as a stream that begins there, and replace the file's extents by
//! the new pieces. The data after the part was cut too, so the work ends as soon as a new cut coincides with an old
//! one. The content of the file does not change.

use super::Jobs;
use super::steps::ReshareStep;
use crate::compression::Compression;
use crate::dedup::stream::CutPiece;
use crate::dedup::streams::Seam;
use crate::error::{Offset, Result};
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::Location;
use crate::store::claims::Claims;
use crate::store::cut::Cut;
use crate::store::if_there_is_room;
use crate::store::placer::Placer;
use crate::store::remap::{Mapped, Remap, Stamp};
use crate::words::Reshared;
use std::ops::Range;

/// The largest number of bytes that are cut at once: four of the longest pieces.
const RECUT_BYTES: u64 = 256 << 10;

/// The number of bytes that are tried first, since a new cut mostly coincides with an old one within two pieces.
const FIRST_BYTES: u64 = 64 << 10;

/// A range of a file that begins in a block and has no hole.
struct BlocksToCut {
    all: Range<u64>,
    /// End of the last extent of blocks in it.
    blocks_end: u64,
    /// True if the data continues after `all`.
    is_cut_off: bool,
}

impl BlocksToCut {
    /// Returns how many pieces replace the old extents, and where they end: at the first piece end after the blocks
    /// that is also the end of an extent, or else before a piece that may be incomplete.
    fn replaced_by(&self, extents: &Extents, pieces: &[CutPiece<'_>]) -> (usize, u64) {
        let mut end = self.all.start;
        for (count, piece) in (0..).zip(pieces) {
            if !piece.is_whole && self.is_cut_off && count > 0 {
                return (count, end);
            }
            end += piece.bytes.len() as u64;
            if end >= self.blocks_end && is_end(extents, end) {
                return (count + 1, end);
            }
        }
        (pieces.len(), end)
    }
}

/// Where new pieces coincide with old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resync {
    /// This many pieces replace the old ones. They end at this file offset, where an extent ends too.
    At(usize, u64),
    /// The new pieces are the same as the old ones.
    AsItIs,
    /// They do not coincide within these bytes.
    NotYet,
}

impl Jobs<'_> {
    /// Cuts the data around a seam of a file again, from the piece before it on, until a new cut coincides with an
    /// old one.
    pub(super) fn cut_seam_of(&self, seam: Seam) -> Result<()> {
        let Some(inode) = self.inode_of(seam.file)? else { return Ok(()) };
        let seam = seam.offset;
        let (policy, compression) = (self.policy_for(&inode), self.compression_for(&inode));
        let Some(streams) = policy.streams() else { return Ok(()) };
        let mut state = inode.write()?;
        let policy = policy.with_domain_of(&inode);
        let extents = self.file_extents(&state, "cut a seam")?;
        let Some(all) = around(extents, seam) else { return Ok(()) };
        for length in [FIRST_BYTES, RECUT_BYTES] {
            let range = all.start..all.end.min(all.start.saturating_add(length));
            let is_cut_off = range.end < all.end;
            let bytes = self.stored_bytes(extents, &range)?;
            let cut = Cut::of_stored(streams.begin(range.start), &bytes, policy);
            match resynchronized(extents, range.start, seam, &cut.pieces, is_cut_off) {
                Resync::At(count, end) => {
                    let range = range.start..end;
                    let done = self.put_in_place(&inode, &mut state, range, &cut, count, policy, compression);
                    return if_there_is_room(done);
                }
                Resync::NotYet if is_cut_off => {}
                Resync::NotYet | Resync::AsItIs => break,
            }
        }
        Ok(())
    }

    /// Cuts some blocks of a locked file, from offset `from` on, into pieces of its policy. Returns `None` if there
    /// are no blocks.
    pub(super) fn recut_step(
        &self,
        inode: &Inode,
        state: &mut State,
        from: u64,
        end: u64,
        policy: Placer<'_>,
        compression: Compression,
    ) -> Result<Option<ReshareStep>> {
        let extents = self.file_extents(state, "dedup")?;
        let Some((blocks, streams)) = next_blocks(extents, from, end).zip(policy.streams()) else { return Ok(None) };
        let bytes = self.stored_bytes(extents, &blocks.all)?;
        let cut = Cut::of_stored(streams.begin(blocks.all.start), &bytes, policy);
        let (count, end) = blocks.replaced_by(extents, &cut.pieces);
        let range = blocks.all.start..end;
        let bytes = end.since(range.start)?;
        self.put_in_place(inode, state, range, &cut, count, policy, compression)?;
        Ok(Some(ReshareStep { next: end, done: Reshared { looked_at_bytes: bytes, changed_bytes: bytes } }))
    }

    fn stored_bytes(&self, extents: &Extents, range: &Range<u64>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.end.since(range.start)? as usize];
        self.read_extents(extents, range.start, &mut bytes)?;
        // Unreadable memory reads as zeros; those must not become content of the file.
        self.region.check()?;
        Ok(bytes)
    }

    /// Replaces a range of a file by the first `count` pieces of a cut, which have the same content.
    fn put_in_place(
        &self,
        inode: &Inode,
        state: &mut State,
        range: Range<u64>,
        cut: &Cut<'_>,
        count: usize,
        policy: Placer<'_>,
        compression: Compression,
    ) -> Result<()> {
        let mut claims = Claims::with_compression(self, policy, compression);
        let mut mapped = Mapped::new();
        self.pack(&cut.first(count), &mut mapped, &mut claims)?;
        self.publish(inode, state, &Remap::new(&range, &mapped, Stamp::Kept), None, &mut claims)
    }
}

/// Returns the data from `from` on up to the next hole, if it begins in a block before `end`.
fn next_blocks(extents: &Extents, from: u64, end: u64) -> Option<BlocksToCut> {
    let is_data = |(_, extent): &(u64, Extent)| !extent.unwritten;
    let (start, _) = extents.within(from, end).find(is_data).filter(|(_, extent)| extent.packed().is_none())?;
    let (mut all, mut blocks_end) = (start..start, start);
    let limit = start.saturating_add(RECUT_BYTES);
    for (at, extent) in extents.within(start, limit) {
        if at != all.end || extent.unwritten {
            break;
        }
        all.end += extent.length;
        if extent.packed().is_none() {
            blocks_end = all.end;
        }
    }
    let is_cut_off = all.end == limit;
    Some(BlocksToCut { all, blocks_end, is_cut_off })
}

/// True if an extent ends at this offset.
fn is_end(extents: &Extents, at: u64) -> bool {
    let Some(last) = at.checked_sub(1) else { return false };
    extents.within(last, at.saturating_add(1)).next().is_some_and(|(from, extent)| from + extent.length == at)
}

/// Returns the bytes that may have to be cut again around a seam: from the extent of a packed chunk that ends there on,
/// as far as packed chunks follow without a hole, up to a limit. After a clone of a range, the extent may begin
/// anywhere in its chunk.
fn around(extents: &Extents, seam: u64) -> Option<Range<u64>> {
    let before = seam.checked_sub(1)?;
    let (_, last) = extents.within(before, seam).next()?;
    let Location::Packed(_, offset) = last.location else { return None };
    // No part of this chunk that continues to the seam begins earlier.
    let earliest = before.saturating_sub(u64::from(offset));
    let (start, _) = extents.within(earliest, seam).last()?;
    let mut end = start;
    for (at, extent) in extents.within(start, start.saturating_add(RECUT_BYTES)) {
        if at != end || extent.packed().is_none() {
            break;
        }
        end = at + extent.length;
    }
    (end > seam).then_some(start..end)
}

/// Looks for the first piece end after the seam that is also the end of an extent. `is_cut_off` says that more data
/// follows the last piece, which may be incomplete then.
fn resynchronized(extents: &Extents, start: u64, seam: u64, pieces: &[CutPiece<'_>], is_cut_off: bool) -> Resync {
    let mut end = start;
    let mut is_new = false;
    for (count, piece) in (1..).zip(pieces) {
        end += piece.bytes.len() as u64;
        let ends_there = is_end(extents, end);
        is_new |= !ends_there || end > seam && count == 1;
        let is_last = count == pieces.len() && !is_cut_off;
        if end > seam && ends_there && (piece.is_whole || is_last) {
            return if is_new { Resync::At(count, end) } else { Resync::AsItIs };
        }
    }
    Resync::NotYet
}
