//! Sharing data that is already stored, on request. Undoing it: [`super::undedup`].
//!
//! The problem: data that was written without a search for duplicates is stored once for each write, and a file that
//! shares data has no private copy of it. Both can be changed without changing a byte of any file.
//!
//! The idea: sharing and undoing it replace extents, a block or a run of blocks at a time, and publish the change as
//! usual (`store::publish`). So each step is atomic and survives a crash, and no state is needed to continue after one.
//! A step holds the inode's lock for [`STEP_BLOCKS`] blocks at most; readers and writers of the file run between steps.
//!
//! **Sharing.** Every whole block that the file maps gets a fingerprint, if it has none, and enters the index. Then
//! it is replaced by an equal block if that frees it (it has no other reference), or if the other block has the lower
//! number. So each step frees a block or lowers a number: the procedure ends, and a second run changes nothing.
//! Blocks of zeros become holes first, as they do in a write (see [`crate::store::zeros`]).
//! Packed chunks are treated in the same way, and they may be compressed. Under a policy that cuts, blocks become
//! pieces first ([`super::cut_again`]).

use super::Jobs;
use super::steps::{ReshareStep, STEP_BLOCKS};
use crate::chunk::reference::Reference;
use crate::compression::Compression;
use crate::dedup::work::Unfingerprinted;
use crate::error::{Error, Result};
use crate::fingerprint::{Domain, Fingerprint};
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location, PACKED_BYTES_MAX, PackedNumber};
use crate::space::packed::Pool;
use crate::store::BLOCK;
use crate::store::claims::Claims;
use crate::store::packed::{ToPack, may_compress};
use crate::store::remap::{Mapped, Remap, Stamp, block_extent, push_mapped};
use crate::words::Reshared;
use smallvec::SmallVec;

/// Packed chunks that are compared under one lock of the inode.
const STEP_PACKED: usize = 64;

/// A whole block, and the file offset at which the file maps it.
#[derive(Clone, Copy)]
pub(super) struct WholeBlock {
    pub(crate) offset: u64,
    pub(crate) block: BlockNumber,
}

impl Jobs<'_> {
    /// Shares the next blocks and packed chunks that begin in `from..end` (file offsets in bytes). With
    /// `compression`, packed chunks are also compressed where that makes them smaller.
    pub(crate) fn share_step(
        &self,
        inode: &Inode,
        from: u64,
        end: u64,
        compression: Option<Compression>,
    ) -> Result<ReshareStep> {
        let mut state = inode.write()?;
        let policy = self.policy_for(inode);
        if policy.domain() == Domain::NOBODY {
            // The owner changes: what the file references is in no domain until it is filled again.
            return Ok(ReshareStep { next: end, done: Reshared::default() });
        }
        let (named, _) = whole_blocks_of(self.file_extents(&state, "dedup")?, from, end);
        let blocks = named.iter().map(|named| (named.offset, named.block));
        let bytes = self.drop_stored_zeros(inode, &mut state, blocks)?;
        if bytes > 0 {
            return Ok(ReshareStep { next: from, done: Reshared { looked_at_bytes: bytes, changed_bytes: bytes } });
        }
        let mut cuts = policy.streams().is_some() && self.chunks.entries.may_pack();
        if cuts {
            let compression = compression.unwrap_or_else(|| self.compression_for(inode));
            match self.recut_step(inode, &mut state, from, end, policy, compression) {
                Ok(Some(step)) => return Ok(step),
                Ok(None) => {}
                Err(Error::NoSpace { .. }) => {
                    // There is no room for packed chunks, so the data stays in blocks.
                    self.give_up_empty_packed();
                    cuts = false;
                }
                Err(error) => return Err(error),
            }
        }
        let (packed, end) = packed_chunks_of(self.file_extents(&state, "dedup")?, from, end, cuts);
        let (named, next) = whole_blocks_of(self.file_extents(&state, "dedup")?, from, end);
        let keep = self.policy_for(inode).unfingerprinted() != Unfingerprinted::Filed;
        let domain = policy.domain();
        self.enter_all(named.iter().map(|named| named.block), domain, keep);
        let mut done = Reshared { looked_at_bytes: named.len() as u64 * BLOCK_BYTES, changed_bytes: 0 };
        for (offset, extent) in packed.into_iter().filter(|(offset, _)| *offset < next) {
            done.looked_at_bytes += extent.length;
            let compressed = match compression {
                Some(compression) => self.compress_packed(inode, &mut state, offset, &extent, compression)?,
                None => 0,
            };
            done.changed_bytes += match compressed {
                0 => self.share_packed(inode, &mut state, offset, &extent)?,
                bytes => bytes,
            };
        }
        let mut at = 0;
        while at < named.len() {
            // Adjacent blocks that are replaced go in one commit.
            let mut claims = Claims::new(self);
            let mut mapped = Mapped::new();
            let (first, mut length) = (at, 0);
            while let Some(next) = named.get(at)
                && next.offset == named[first].offset + length
                && let Some(other) = self.take_equal(next.block.into(), domain, &named[first..at], &mut claims)
            {
                push_mapped(&mut mapped, next.offset, block_extent(claims.keep(other)));
                (at, length) = (at + 1, length + BLOCK_BYTES);
            }
            if length == 0 {
                at += 1;
                continue;
            }
            let start = named[first].offset;
            self.region.check()?;
            let range = start..start + length;
            self.publish(inode, &mut *state, &Remap::new(&range, &mapped, Stamp::Kept), None, &mut claims)?;
            done.changed_bytes += length;
        }
        Ok(ReshareStep { next, done })
    }

    /// Takes a reference on a chunk with the same content as `own` in this domain, if replacing `own` by it is worth it
    /// and it is not in `given_up`. Blocks are only replaced by blocks, packed chunks by packed chunks.
    fn take_equal(
        &self,
        own: ChunkRef,
        domain: Domain,
        given_up: &[WholeBlock],
        claims: &mut Claims<'_>,
    ) -> Option<Reference> {
        let chunks = &self.chunks;
        // A chunk that was cloned from another owner's file is in his domain. If blocks have two keys, an equal one may
        // have the other.
        let keys = match domain == Domain::ALL && !chunks.keys().are_sampled() {
            true => self.weak_of(own, domain).into_iter().collect(),
            false => self.keys_in(own, domain),
        };
        // A compressed chunk is not replaced by an uncompressed one.
        let own_stored = chunks.place_of(own)?.1;
        let takes_more = |chunk: ChunkRef| chunks.place_of(chunk).is_none_or(|(_, stored)| stored > own_stored);
        let is_better = |chunk: &ChunkRef, must_be_lower: bool| {
            let is_of_its_kind = chunk.block().is_some() == own.block().is_some() && !takes_more(*chunk);
            let is_worth_it = *chunk < own || !must_be_lower && chunks.count(own) == 1;
            let is_given_up = given_up.iter().any(|other| *chunk == other.block.into());
            is_of_its_kind && *chunk != own && is_worth_it && !is_given_up
        };
        // A lower one first: an index may find the newest first, and equal blocks have to meet in one.
        let may_be_higher = chunks.count(own) == 1;
        let searches = keys.iter().flat_map(|key| [(*key, true), (*key, false)]);
        for (key, must_be_lower) in searches.filter(|(_, must_be_lower)| *must_be_lower || may_be_higher) {
            let is_better = |chunk: &ChunkRef| is_better(chunk, must_be_lower);
            let mut seen = ChunkRef::NONE;
            // Most chunks are the only candidate by their key; the filter then rejects them before a reference is taken.
            while let Some(taken) = claims.transaction().share_candidate_that(key, seen, is_better) {
                seen = taken.chunk();
                if is_better(&seen)
                    && let Some(content) = chunks.content(own)
                    && chunks.equal(seen, &content)
                {
                    return Some(taken);
                }
                claims.transaction().give_back(taken);
            }
        }
        None
    }

    /// Replaces a packed chunk that one extent of a file maps completely by an equal one. Returns its length in
    /// bytes, or 0 if there is none.
    fn share_packed(&self, inode: &Inode, state: &mut State, offset: u64, extent: &Extent) -> Result<u64> {
        let Location::Packed(own, 0) = extent.location else { return Ok(0) };
        let own = ChunkRef::Packed(own);
        if !self.chunks.entries.exists(own) || !self.chunks.has_length(own, extent.length as usize) {
            return Ok(0);
        }
        let domain = inode.domain();
        self.enter_end(own, domain);
        let mut claims = Claims::new(self);
        let Some(other) = self.take_equal(own, domain, &[], &mut claims) else { return Ok(0) };
        let location = Location::Packed(claims.keep_packed(other), 0);
        let range = offset..offset + extent.length;
        let mapped = [(offset, Extent { location, ..*extent })];
        self.publish(inode, state, &Remap::new(&range, &mapped, Stamp::Kept), None, &mut claims)?;
        Ok(extent.length)
    }

    /// Replaces a packed chunk that one extent of a file maps completely by a compressed one with the same content,
    /// which must be smaller by at least a sixteenth. Uses a stored chunk, or stores a new one. Returns the number of
    /// bytes of content, or 0 if nothing was replaced.
    fn compress_packed(
        &self,
        inode: &Inode,
        state: &mut State,
        offset: u64,
        extent: &Extent,
        compression: Compression,
    ) -> Result<u64> {
        let Location::Packed(own, 0) = extent.location else { return Ok(0) };
        let chunk = ChunkRef::Packed(own);
        if !self.chunks.entries.exists(chunk) || !self.chunks.has_length(chunk, extent.length as usize) {
            return Ok(0);
        }
        let domain = inode.domain();
        self.enter_end(chunk, domain);
        let entry = self.chunks.entry(chunk);
        let most = entry.stored_bytes() - entry.stored_bytes() / 16;
        let Some(bytes) =
            Some(chunk).filter(|_| may_compress(entry.class())).and_then(|chunk| self.chunks.content(chunk))
        else {
            return Ok(0);
        };
        let function = self.chunks.weak_function();
        let is_of_domain = |weak: &u32| domain == Domain::ALL || *weak == domain.salted(function.of(&bytes));
        let weak = entry.weak(function).filter(is_of_domain);
        // This policy indexes what it publishes, whatever policy stored the chunk.
        let policy = self.policy_for(inode).with(self.policies.of_blocks());
        let mut claims = Claims::with_compression(self, policy, compression);
        let packed = match weak.and_then(|weak| self.take_compressed(own, weak, &bytes, most, &mut claims)) {
            Some(reference) => claims.keep_packed(reference),
            None => {
                let frame = compression.compress(&bytes).filter(|frame| frame.len() as u64 <= most);
                let Some(frame) = frame else { return Ok(0) };
                let strong = entry.strong(self.chunks.strong_function());
                let fingerprint = Fingerprint { weak, strong };
                let (pool, class) = (Pool::ContentDefined, entry.class());
                let piece = ToPack { bytes: &bytes, pool, class, fingerprint, grows: false };
                let packed = self.store_packed_as(&piece, &frame, 1, &mut claims)?;
                weak.into_iter().for_each(|weak| know_all(weak, &mut claims));
                packed
            }
        };
        debug_assert!(packed != own, "a chunk takes less than itself");
        let mapped = [(offset, Extent { location: Location::Packed(packed, 0), ..*extent })];
        let range = offset..offset + extent.length;
        self.publish(inode, state, &Remap::new(&range, &mapped, Stamp::Kept), None, &mut claims)?;
        Ok(extent.length)
    }

    /// Takes a reference on a packed chunk other than `own` that has this content and is stored in at most `most`
    /// bytes.
    fn take_compressed(
        &self,
        own: PackedNumber,
        weak: u32,
        bytes: &[u8],
        most: u64,
        claims: &mut Claims<'_>,
    ) -> Option<Reference> {
        let is_small = |chunk: ChunkRef| self.chunks.place_of(chunk).is_some_and(|(_, stored)| stored <= most);
        let fits = |chunk: &ChunkRef| chunk.packed().is_some_and(|packed| packed != own) && is_small(*chunk);
        let mut seen = ChunkRef::NONE;
        loop {
            let taken = claims.transaction().share_candidate_that(weak, seen, fits)?;
            seen = taken.chunk();
            if fits(&seen) && self.chunks.equal(seen, bytes) {
                return Some(taken);
            }
            claims.transaction().give_back(taken);
        }
    }
}

/// Looks at all packed chunks with this fingerprint, so that they are known candidates when a new chunk is published,
/// and the new chunk is not replaced by one of them.
fn know_all(weak: u32, claims: &mut Claims<'_>) {
    let mut seen = ChunkRef::NONE;
    while let Some(taken) = claims.transaction().share_candidate_that(weak, seen, |chunk| chunk.packed().is_some()) {
        seen = taken.chunk();
        claims.transaction().give_back(taken);
    }
}

/// Returns the whole blocks that begin in `from..end`, as many as fit in a step, and the offset to continue at.
pub(super) fn whole_blocks_of(extents: &Extents, from: u64, end: u64) -> (SmallVec<[WholeBlock; STEP_BLOCKS]>, u64) {
    let mut named = SmallVec::new();
    for (offset, extent) in extents.within(from, end.saturating_add(BLOCK_BYTES - 1)) {
        let Some(start) = extent.media_address() else { continue };
        let first = start.next_multiple_of(BLOCK_BYTES);
        let last = (start + extent.length) / BLOCK_BYTES * BLOCK_BYTES;
        for address in (first..last).step_by(BLOCK).filter(|_| !extent.unwritten) {
            let offset = offset + (address - start);
            if offset >= end {
                return (named, end);
            }
            if named.len() == STEP_BLOCKS {
                return (named, offset);
            }
            named.push(WholeBlock { offset, block: BlockNumber::containing(address) });
        }
    }
    (named, end)
}

/// Returns the extents of packed chunks that begin in `from..end`, as many as fit in a step, and the offset to
/// continue at. With `stops` it ends at the first extent of blocks.
fn packed_chunks_of(extents: &Extents, from: u64, end: u64, stops: bool) -> (SmallVec<[(u64, Extent); 4]>, u64) {
    let mut packed = SmallVec::new();
    for (offset, extent) in extents.within(from, end.saturating_add(PACKED_BYTES_MAX)) {
        let is_packed = extent.packed().is_some();
        if offset >= end {
            break;
        }
        if packed.len() == STEP_PACKED || stops && !is_packed && !extent.unwritten {
            return (packed, offset);
        }
        if is_packed {
            packed.push((offset, extent));
        }
    }
    (packed, end)
}
