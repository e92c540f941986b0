//! Placing exactly the bytes that a request has, so that the rest of its first and last block stays where it is.
//!
//! ```text
//! request   |   new   |  equal  |n|   equal   |        new         |
//! stored    blocks,     not here  short pieces: together   blocks, and what does not
//!           by the                in one packed chunk      fill one: as short pieces
//!           policy
//! ```

use super::BLOCK;
use super::Store;
use super::blocks::{Whole, whole_blocks};
use super::claims::Claims;
use super::cut::Cut;
use super::packed::ToPack;
use super::placer::Rung;
use super::remap::Mapped;
use super::zeros::{becomes_hole, bytes_within};
use crate::dedup::Piece;
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::inode::State;
use crate::inode::extents::{Extent, Extents};
use crate::media::chunk_entry::CLASS_UNKNOWN;
use crate::media::{BLOCK_BYTES, BlockNumber, Location, PACKED_BYTES_MAX};
use crate::space::packed::Pool;
use smallvec::SmallVec;
use std::ops::Range;

/// Once a block of a file consists of this many extents, a write into it stores the whole block anew.
const PARTS_OF_A_BLOCK_MAX: usize = 8;

/// The result of [`Store::place_new`].
#[derive(Default)]
struct PlacedNew<'d> {
    /// Parts that do not fill a block: file offset and bytes.
    short: SmallVec<[(u64, &'d [u8]); 2]>,
    /// The number of pieces that were used.
    pieces: usize,
}

impl Store {
    /// Places the new parts of a request at a file offset, and adds their extents to `mapped`, which has those of the other
    /// parts. `whole` is what is known of their whole blocks. Short pieces go to packed chunks, or below that to blocks.
    ///
    /// # Errors
    /// ENOSPC, those of the device.
    pub(crate) fn place_exactly(
        &self,
        state: &State,
        offset: u64,
        data: &[u8],
        new: &[Range<u64>],
        whole: &mut Whole<'_>,
        rung: Rung,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        claims.set_update(self.is_update(state, offset..offset + data.len() as u64));
        let extents = self.file_extents(state, "write")?;
        let (mut short, mut pieces) = (Vec::new(), &mut whole.pieces[..]);
        for new in new {
            let bytes = &data[new.start as usize..new.end as usize];
            let placed = self.place_new(extents, offset + new.start, bytes, pieces, &whole.zeros, mapped, claims)?;
            short.extend(placed.short);
            pieces = &mut std::mem::take(&mut pieces)[placed.pieces..];
        }
        match rung {
            Rung::Packed => self.pack_short(&short, mapped, claims)?,
            Rung::Blocks => self.store_short(&short, mapped, claims)?,
        }
        mapped.sort_unstable_by_key(|(offset, _)| *offset);
        Ok(())
    }

    /// True if a write begins or ends inside a shared block that consists of few extents so far.
    pub(crate) fn begins_or_ends_in_shared(&self, extents: &Extents, offset: u64, end: u64) -> bool {
        let is_shared = |at: u64| {
            let start = at / BLOCK_BYTES * BLOCK_BYTES;
            let mut parts = 0;
            let mut is_shared = false;
            for (_, extent) in extents.within(start, start + BLOCK_BYTES).filter(|(_, extent)| !extent.unwritten) {
                parts += 1;
                is_shared |= match extent.location {
                    Location::Media(address) => self.chunks.count(BlockNumber::containing(address)) > 1,
                    Location::Packed(chunk, _) => self.chunks.count(chunk) > 1,
                };
            }
            is_shared && parts < PARTS_OF_A_BLOCK_MAX
        };
        [offset, end].into_iter().any(|at| !at.is_multiple_of(BLOCK_BYTES) && is_shared(at))
    }

    /// Places new bytes: whole blocks as the policy decides, or everything as pieces under a policy that cuts. Parts
    /// that do not fill a block are returned, to be stored together. Zeros are left out.
    fn place_new<'d>(
        &self,
        extents: &Extents,
        offset: u64,
        bytes: &'d [u8],
        pieces: &mut [Piece<'_>],
        zeros: &[Range<u64>],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<PlacedNew<'d>> {
        let length = bytes.len() as u64;
        if let Some(streams) = claims.policy().streams().filter(|_| length >= BLOCK_BYTES) {
            let cut = Cut::of_request(streams.begin(offset), bytes, claims.policy());
            self.pack(&cut.first(cut.pieces.len()), mapped, claims)?;
            return Ok(PlacedNew::default());
        }
        let (policy, (first, end)) = (claims.policy(), whole_blocks(offset, length));
        let is_kept = |(_, bytes): &(u64, &[u8])| !bytes.is_empty() && !becomes_hole(policy, bytes);
        if first == end {
            return Ok(PlacedNew { short: Some((offset, bytes)).into_iter().filter(is_kept).collect(), pieces: 0 });
        }
        let (before, rest) = bytes.split_at((first - offset) as usize);
        let (whole, behind) = rest.split_at((end - first) as usize);
        let blocks = ((end - first - bytes_within(zeros, first..end)) / BLOCK_BYTES) as usize;
        let count = if pieces.len() < blocks { 0 } else { blocks };
        self.place(extents, first, whole, &mut pieces[..count], zeros, mapped, claims)?;
        let short = [(offset, before), (end, behind)].into_iter().filter(is_kept).collect();
        Ok(PlacedNew { short, pieces: count })
    }

    /// Stores short pieces back to back, in as few packed chunks as possible.
    fn pack_short(&self, short: &[(u64, &[u8])], mapped: &mut Mapped, claims: &mut Claims<'_>) -> Result<()> {
        for group in groups_of(short, PACKED_BYTES_MAX as usize) {
            let bytes: Vec<u8> = group.iter().flat_map(|(_, bytes)| *bytes).copied().collect();
            let (pool, class, fingerprint) = (Pool::ContentDefined, CLASS_UNKNOWN, Fingerprint::default());
            let piece = ToPack { bytes: &bytes, pool, class, fingerprint, grows: false };
            let chunk = self.store_packed(&piece, group.len() as u32, claims)?;
            let mut location = Location::Packed(chunk, 0);
            for (offset, bytes) in group {
                let length = bytes.len() as u64;
                mapped.push((*offset, Extent { length, location, unwritten: false }));
                location = location.plus(length);
            }
        }
        Ok(())
    }

    /// Stores short pieces in as few blocks as possible; no piece is split between two blocks.
    fn store_short(&self, short: &[(u64, &[u8])], mapped: &mut Mapped, claims: &mut Claims<'_>) -> Result<()> {
        // A piece that crosses a block boundary and fills no block may be longer than a block.
        let in_blocks = short.iter().flat_map(|(offset, bytes)| (*offset..).step_by(BLOCK).zip(bytes.chunks(BLOCK)));
        let short: Vec<(u64, &[u8])> = in_blocks.collect();
        let groups = groups_of(&short, BLOCK);
        let runs = claims.allocate("write", groups.len() as u64)?;
        let blocks: SmallVec<[BlockNumber; 4]> = runs.iter().flat_map(|run| run.blocks()).collect();
        for (group, block) in groups.into_iter().zip(blocks) {
            let mut bytes = [0; BLOCK];
            let mut at = 0;
            for (offset, piece) in group {
                bytes[at..at + piece.len()].copy_from_slice(piece);
                mapped.push((*offset, Extent::media(piece.len() as u64, block.address() + at as u64, false)));
                at += piece.len();
            }
            if group.len() > 1 {
                claims.enter(block, group.len() as u32, &Fingerprint::default());
            }
            claims.stored_without_fingerprint();
            claims.stream(block.address(), &bytes);
        }
        Ok(())
    }
}

/// Splits consecutive pieces into groups of at most `most` bytes. No single piece may be longer.
fn groups_of<'p, 'd>(pieces: &'p [(u64, &'d [u8])], most: usize) -> Vec<&'p [(u64, &'d [u8])]> {
    let (mut groups, mut first, mut bytes) = (Vec::new(), 0, 0);
    for (at, (_, piece)) in pieces.iter().enumerate() {
        if bytes + piece.len() > most {
            groups.push(&pieces[first..at]);
            (first, bytes) = (at, 0);
        }
        bytes += piece.len();
    }
    groups.push(&pieces[first..]);
    groups.retain(|group| !group.is_empty());
    groups
}
