//! Cutting anew what is stored already: seams, and what a policy that stores blocks has written.
//!
//! The problem: where a request did not go on with a stream, two parts of a file meet that were cut each by itself; and a
//! file that was written as blocks shares nothing with pieces, whatever its policy is now.
//!
//! The idea: read a bounded part of the file, cut it as a stream that begins there, and put the pieces in place of what
//! the file names. What follows was cut too, so it ends as soon as a cut falls where there is one already. The bytes of
//! the file stay what they are.

use super::Core;
use super::claims::Claims;
use super::packed::{Cut, if_there_is_room};
use super::publish::{Mapped, Remap, Stamp};
use super::share::Step;
use crate::compression::Compression;
use crate::dedup::Dedup;
use crate::dedup::stream::CutPiece;
use crate::error::Result;
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::Location;
use crate::words::Reshared;
use std::ops::Range;

/// Bytes that are cut anew at once, at most: four of the longest pieces.
const RECUT_BYTES: u64 = 256 << 10;
/// Bytes around a seam that are cut first: a cut mostly falls where there is one already within two pieces.
const FIRST_BYTES: u64 = 64 << 10;

impl Core {
    /// Cuts a seam of a file anew: from the piece before it on, until a cut falls where there is one already.
    pub(super) fn cut_seam_of(&self, ino: u64, seam: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        let (policy, compression) = (self.policy_for(&inode), self.compression_for(&inode));
        let Some(streams) = policy.streams() else { return Ok(()) };
        let mut state = inode.write()?;
        let extents = self.file_extents(&state, "cut a seam")?;
        let Some(all) = around(extents, seam) else { return Ok(()) };
        for length in [FIRST_BYTES, RECUT_BYTES] {
            let range = all.start..all.end.min(all.start + length);
            let is_cut_off = range.end < all.end;
            let bytes = self.stored_bytes(extents, &range)?;
            let cut = Cut::new(streams.begin(range.start), &bytes, policy);
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

    /// Cuts blocks that a locked file names at `from` into the pieces of its policy, a few of them. `None` if there are
    /// none there.
    pub(super) fn recut_step(
        &self,
        inode: &Inode,
        state: &mut State,
        from: u64,
        end: u64,
        policy: &dyn Dedup,
        compression: Compression,
    ) -> Result<Option<Step>> {
        let extents = self.file_extents(state, "dedup")?;
        let Some((blocks, streams)) = next_blocks(extents, from, end).zip(policy.streams()) else { return Ok(None) };
        let bytes = self.stored_bytes(extents, &blocks.all)?;
        let cut = Cut::new(streams.begin(blocks.all.start), &bytes, policy);
        let (count, end) = blocks.replaced_by(extents, &cut.pieces);
        let range = blocks.all.start..end;
        let bytes = end - range.start;
        self.put_in_place(inode, state, range, &cut, count, policy, compression)?;
        Ok(Some(Step { next: end, done: Reshared { looked_at_bytes: bytes, changed_bytes: bytes } }))
    }

    fn stored_bytes(&self, extents: &Extents, range: &Range<u64>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.read_extents(extents, range.start, &mut bytes)?;
        // Zeros that stand for what cannot be read must not become content.
        self.region.check()?;
        Ok(bytes)
    }

    /// Makes a range of a file name the first pieces of a cut, which are what it holds.
    fn put_in_place(
        &self,
        inode: &Inode,
        state: &mut State,
        range: Range<u64>,
        cut: &Cut<'_>,
        count: usize,
        policy: &dyn Dedup,
        compression: Compression,
    ) -> Result<()> {
        let mut claims = Claims::with_compression(self, policy, compression);
        let mut mapped = Mapped::new();
        self.pack(range.start, &cut.first(count), &mut mapped, &mut claims)?;
        self.publish(inode, state, &Remap::new(&range, &mapped, Stamp::Kept), None, &mut claims)
    }
}

/// A part of a file that begins in a block and has no hole.
struct Blocks {
    all: Range<u64>,
    /// Where its last byte in a block ends.
    blocks_end: u64,
    /// It may go on behind `all`.
    is_cut_off: bool,
}

impl Blocks {
    /// How many pieces to put in place of what is there, and where they end: at the first end behind the blocks that is
    /// one of an extent too, or else before a piece that may go on.
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

/// The data that a file names from `from` on, if it begins in a block before `end`, as far as it has no hole.
fn next_blocks(extents: &Extents, from: u64, end: u64) -> Option<Blocks> {
    let is_data = |(_, extent): &(u64, Extent)| !extent.unwritten;
    let (start, _) = extents.within(from, end).find(is_data).filter(|(_, extent)| extent.packed().is_none())?;
    let (mut all, mut blocks_end) = (start..start, start);
    let limit = start + RECUT_BYTES;
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
    Some(Blocks { all, blocks_end, is_cut_off })
}

/// Whether an extent ends at this offset, which is not 0.
fn is_end(extents: &Extents, at: u64) -> bool {
    extents.within(at - 1, at + 1).next().is_some_and(|(from, extent)| from + extent.length == at)
}

/// The bytes that may have to be cut anew around a seam: from the packed chunk that ends there, for some pieces of packed
/// chunks without a hole.
fn around(extents: &Extents, seam: u64) -> Option<Range<u64>> {
    let before = seam.checked_sub(1)?;
    let (at, last) = extents.within(before, seam).next()?;
    let Location::Packed(_, offset) = last.location else { return None };
    let start = at - u64::from(offset);
    let mut end = start;
    for (at, extent) in extents.within(start, start + RECUT_BYTES) {
        if at != end || extent.packed().is_none() {
            break;
        }
        end = at + extent.length;
    }
    (end > seam).then_some(start..end)
}

/// Where pieces that were cut anew meet those that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resync {
    /// So many pieces are to be put in place of what is there; they end at this file offset, where an extent ends too.
    At(usize, u64),
    /// The pieces are those that are there.
    AsItIs,
    /// Not within these bytes.
    NotYet,
}

/// Looks for the first end behind the seam that is one of an extent too. `is_cut_off`: more follows the last piece, which
/// may go on.
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
