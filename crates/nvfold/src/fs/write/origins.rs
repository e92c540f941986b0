//! Writing data that was copied from files (ICID 4.1, 4.4): bytes that are still equal to their source are shared,
//! without a hash.
//!
//! The problem: a caller may know where the bytes come from, but not whether they were changed since, and the source
//! may be written to at the same time. Two inodes are locked in the order of their numbers, and a request with
//! hundreds of sources cannot wait for all of those locks.
//!
//! The idea: an origin is a hint. Each source is locked shared only to learn which chunks it maps; the bytes are
//! compared without any lock. Then only the target is locked. Each source is asked, without waiting, whether it has
//! dropped any reference since. If not, its chunks have not changed in the meantime, and the write takes references
//! on them. If a source has changed, the request is compared again, up to `COMPARES_MAX` times; after that the bytes
//! are stored.
//!
//! ```text
//! request   |   new   |  equal  |n|   equal   |        new         |
//! stored    blocks,     extents   short pieces: together   blocks, and what does not
//!           by the      of the    in one packed chunk      fill one: as short pieces
//!           policy      source's chunks
//! ```
//!
//! One commit publishes exactly the range that was written. A write to a part of a shared block goes the same way, so
//! that the other bytes of the block stay shared.

use super::plan::Plan;
use crate::dedup::{ORIGIN_BYTES_LEAST, Piece};
use crate::error::Result;
use crate::inode::extents::Extent;
use crate::inode::{Inode, State};
use crate::media::{BLOCK_BYTES, ChunkRef, Location};
use crate::store::BLOCK;
use crate::store::Store;
use crate::store::blocks::{Whole, whole_blocks};
use crate::store::claims::Claims;
use crate::store::placer::{Placer, Rung};
use crate::store::remap::Mapped;
use crate::store::zeros::{Zeros, add_zeros, between, bytes_within};
use crate::words::OriginStats;
use nvfold_sync::Sum;
use smallvec::SmallVec;
use std::ops::Range;

/// What a run of equal bytes must have to be shared.
#[derive(Clone, Copy)]
pub(super) struct Worth {
    /// The number of bytes at least. A shorter run is not worth an extent.
    pub(super) bytes_min: u64,
    /// Only whole blocks and packed chunks are shared, because too much is kept for parts of them already.
    pub(super) only_whole: bool,
}

impl Worth {
    /// True if this part of a request of `length` bytes can be a run, or a part of one: at an end of the request a run may
    /// go on in the request before it or after it.
    fn is_enough(self, run: Range<u64>, length: u64) -> bool {
        run.end - run.start >= self.bytes_min || run.start == 0 || run.end == length
    }

    /// Returns the part of an extent of equal bytes that can be shared, and how far it begins behind the beginning.
    fn part_of(self, store: &Store, extent: Extent) -> (u64, Extent) {
        match extent.location {
            _ if !self.only_whole => (0, extent),
            Location::Media(address) => {
                let first = address.next_multiple_of(BLOCK_BYTES);
                let end = (address + extent.length) / BLOCK_BYTES * BLOCK_BYTES;
                let length = end.saturating_sub(first);
                (first - address, Extent { length, location: Location::Media(first), ..extent })
            }
            Location::Packed(chunk, _) => {
                let is_whole = store.chunks.packed_bytes(chunk).is_some_and(|bytes| bytes.content == extent.length);
                (0, Extent { length: if is_whole { extent.length } else { 0 }, ..extent })
            }
        }
    }
}

/// A range of a request that was copied from a file.
#[derive(Clone, Copy)]
pub(crate) struct InodeOrigin<'f> {
    /// Offset of the first byte in the request.
    pub(crate) at: u64,
    pub(crate) length: u64,
    pub(crate) source: &'f Inode,
    pub(crate) source_offset: u64,
}

impl InodeOrigin<'_> {
    fn end(&self) -> u64 {
        self.at + self.length
    }

    /// Extends the origin backwards to `at`, in request and source, if that gap is too short for an extent. The few
    /// bytes in front of a record are often written again with the same content.
    fn with_gap_from(self, at: u64) -> Self {
        if self.at - at >= ORIGIN_BYTES_LEAST {
            return self;
        }
        let gap = (self.at - at).min(self.source_offset);
        let (length, source_offset) = (self.length + gap, self.source_offset - gap);
        InodeOrigin { at: self.at - gap, length, source_offset, ..self }
    }

    /// True if `next` continues this origin, in the request and in the source.
    fn continues(&self, next: &InodeOrigin<'_>) -> bool {
        self.end() == next.at
            && self.source.ino == next.source.ino
            && self.source_offset.checked_add(self.length) == Some(next.source_offset)
    }

    /// Returns the part of the origin from `at` on.
    fn from(self, at: u64) -> Self {
        let skipped = at.saturating_sub(self.at).min(self.length);
        let (length, source_offset) = (self.length - skipped, self.source_offset.saturating_add(skipped));
        InodeOrigin { at: self.at + skipped, length, source_offset, ..self }
    }
}

/// Counters of the requests with origins since mount.
#[derive(Default)]
pub(in crate::fs) struct OriginTally {
    pub(super) requests: Sum,
    pub(super) offered_bytes: Sum,
    pub(super) shared_bytes: Sum,
    pub(super) shared_extents: Sum,
    pub(super) changed: Sum,
}

impl OriginTally {
    pub(super) fn stats(&self) -> OriginStats {
        OriginStats {
            requests: self.requests.get(),
            offered_bytes: self.offered_bytes.get(),
            shared_bytes: self.shared_bytes.get(),
            shared_extents: self.shared_extents.get(),
            changed: self.changed.get(),
        }
    }
}

/// Bytes of a request that were equal to an extent of a source when they were compared.
struct Equal {
    at: u64,
    extent: Extent,
    /// Index of the origin that they match.
    origin: usize,
}

impl Equal {
    fn end(&self) -> u64 {
        self.at + self.extent.length
    }

    /// True if `next` continues this range, both in the request and in its chunk.
    fn continues(&self, next: &Equal) -> bool {
        let length = self.extent.length;
        self.end() == next.at
            && match (self.extent.location, next.extent.location) {
                (Location::Media(address), Location::Media(other)) => address + length == other,
                (Location::Packed(chunk, offset), Location::Packed(other, from)) => {
                    chunk == other && u64::from(offset) + length == u64::from(from)
                }
                _ => false,
            }
    }
}

/// The result of a comparison.
#[derive(Default)]
struct Compared {
    /// In the order of the request.
    equal: Vec<Equal>,
    /// For each origin, the source's count of dropped references when it was read.
    drops: Vec<u64>,
    /// End of the last equal run that is long enough for an extent.
    end: u64,
}

impl Compared {
    /// Adds an equal run. A run that continues the last one, from the same source, is merged with it.
    fn add(&mut self, next: Equal, origins: &[InodeOrigin<'_>]) {
        if let Some(last) = self.equal.last_mut()
            && last.continues(&next)
            && origins[last.origin].source.ino == origins[next.origin].source.ino
            && self.drops[last.origin] == self.drops[next.origin]
        {
            last.extent.length += next.extent.length;
        } else {
            self.equal.push(next);
        }
        if let Some(last) = self.equal.last().filter(|last| last.extent.length >= ORIGIN_BYTES_LEAST) {
            self.end = last.end();
        }
    }
}

/// Why a request cannot share with its origins.
pub(super) enum CannotShare {
    /// The source was written to, or is locked by a writer at the moment.
    Changed,
    /// A chunk of the origin with this index cannot take more references.
    Unshareable(usize),
}

/// Shares what is equal to its origins, and stores the rest.
pub(super) struct WithOrigins<'d, 'o> {
    data: &'d [u8],
    origins: &'o [InodeOrigin<'o>],
    compared: Compared,
    /// The parts of `data` that are not equal to any origin.
    new: SmallVec<[Range<u64>; 4]>,
    /// The file offset for which it is prepared.
    offset: u64,
    /// What is known of the whole blocks of the new parts.
    whole: Whole<'d>,
}

impl<'d, 'o> WithOrigins<'d, 'o> {
    /// Compares a request with its origins. `None`: none of it is equal.
    pub(super) fn compared(
        store: &Store,
        data: &'d [u8],
        origins: &'o [InodeOrigin<'o>],
        worth: Worth,
    ) -> Option<WithOrigins<'d, 'o>> {
        let compared = compare(store, data, origins, worth);
        let new = new_ranges(&compared.equal, data.len() as u64);
        let has_equal = !compared.equal.is_empty();
        has_equal.then(|| WithOrigins { data, origins, compared, new, offset: 0, whole: Whole::default() })
    }

    /// Returns the number of extents, and of bytes, that are shared with origins.
    pub(super) fn shared(&self) -> (u64, u64) {
        let bytes = self.compared.equal.iter().map(|equal| equal.extent.length).sum();
        (self.compared.equal.len() as u64, bytes)
    }

    /// Takes references on all equal chunks, if no source has dropped a reference since. All references for one
    /// source are taken at once, so each chunk is counted once, however many short records come from it.
    fn share_equal(
        &self,
        inode: &Inode,
        state: &State,
        claims: &mut Claims<'_>,
    ) -> std::result::Result<(), CannotShare> {
        let WithOrigins { origins, compared, .. } = self;
        let source_of = |equal: &Equal| origins[equal.origin].source;
        let mut by_source: SmallVec<[&Equal; 4]> = compared.equal.iter().collect();
        by_source.sort_by_key(|equal| source_of(equal).ino);
        for equal in by_source.chunk_by(|equal, next| source_of(equal).ino == source_of(next).ino) {
            let source = source_of(equal[0]);
            if source.domain() != inode.domain() {
                // The owner of one of them has changed since the comparison.
                return Err(CannotShare::Unshareable(equal[0].origin));
            }
            // A thread that holds the lock of one inode must not wait for that of another.
            let locked =
                (source.ino != inode.ino).then(|| source.try_read().ok_or(CannotShare::Changed)).transpose()?;
            let drops = locked.as_deref().unwrap_or(state).drops;
            if equal.iter().any(|equal| compared.drops[equal.origin] != drops) {
                return Err(CannotShare::Changed);
            }
            share_chunks_of(equal, claims)?;
        }
        Ok(())
    }
}

impl Plan for WithOrigins<'_, '_> {
    type Declined = CannotShare;

    fn prepare(&mut self, _store: &Store, offset: u64, policy: Placer<'_>) -> Result<()> {
        self.offset = offset;
        self.whole = look_at_new(&self.new, offset, self.data, policy);
        Ok(())
    }

    fn place(
        &mut self,
        store: &Store,
        inode: &Inode,
        state: &State,
        rung: Rung,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<std::result::Result<Range<u64>, CannotShare>> {
        if let Err(refused) = self.share_equal(inode, state, claims) {
            return Ok(Err(refused));
        }
        let at_offset = |equal: &Equal| (self.offset + equal.at, equal.extent);
        mapped.extend(self.compared.equal.iter().map(at_offset));
        let WithOrigins { data, new, offset, whole, .. } = self;
        store.place_exactly(state, *offset, data, new, whole, rung, mapped, claims)?;
        Ok(Ok(*offset..*offset + data.len() as u64))
    }

    fn published(&mut self, _store: &Store, _inode: &Inode, _state: &mut State, _rung: Rung, _policy: Placer<'_>) {}

    fn length(&self) -> u64 {
        self.data.len() as u64
    }

    fn hole_bytes(&self) -> u64 {
        bytes_within(&self.whole.zeros, self.offset..self.offset + self.length())
    }
}

/// Finds the bytes of a request that are equal to their origins, in runs that are long enough for an extent.
fn compare(store: &Store, data: &[u8], origins: &[InodeOrigin<'_>], worth: Worth) -> Compared {
    let mut compared = Compared::default();
    let mut parts: SmallVec<[(u64, Extent); 4]> = SmallVec::new();
    let mut runs = Vec::new();
    for (number, origin) in origins.iter().enumerate() {
        compared.drops.push(parts_of(&origin.from(compared.end), &mut parts));
        for (at, extent) in parts.drain(..) {
            let (skipped, extent) = worth.part_of(store, extent);
            if extent.length == 0 {
                continue;
            }
            let at = at + skipped;
            let bytes = &data[at as usize..(at + extent.length) as usize];
            store.chunks.equal_runs(extent.location, bytes, ORIGIN_BYTES_LEAST as usize, &mut runs);
            for Range { start, end } in runs.drain(..) {
                let (start, length) = (start as u64, (end - start) as u64);
                let extent = Extent { length, location: extent.location.plus(start), unwritten: false };
                compared.add(Equal { at: at + start, extent, origin: number }, origins);
            }
        }
    }
    compared.equal.retain_mut(|equal| {
        let (skipped, extent) = worth.part_of(store, equal.extent);
        *equal = Equal { at: equal.at + skipped, extent, ..*equal };
        extent.length >= ORIGIN_BYTES_LEAST && worth.is_enough(equal.at..equal.end(), data.len() as u64)
    });
    compared
}

/// Takes a reference for each chunk of these extents; all references on one chunk are taken at once.
fn share_chunks_of(equal: &[&Equal], claims: &mut Claims<'_>) -> std::result::Result<(), CannotShare> {
    let mut named: SmallVec<[(ChunkRef, usize); 8]> = SmallVec::new();
    for Equal { extent, origin, .. } in equal {
        match extent.packed() {
            Some(chunk) => named.push((chunk.into(), *origin)),
            None => named.extend(extent.blocks().blocks().map(|block| (block.into(), *origin))),
        }
    }
    named.sort_unstable();
    for same in named.chunk_by(|(chunk, _), (next, _)| chunk == next) {
        let (chunk, origin) = same[0];
        claims.share_times(chunk, same.len() as u32).map_err(|_| CannotShare::Unshareable(origin))?;
    }
    Ok(())
}

/// Adds the extents of an origin's source to `parts`, with their offsets in the request. Returns the source's count
/// of dropped references.
fn parts_of(origin: &InodeOrigin<'_>, parts: &mut SmallVec<[(u64, Extent); 4]>) -> u64 {
    // A deleted source has no extents.
    let Ok(state) = origin.source.read() else { return 0 };
    if let Some(extents) = state.extents() {
        let end = origin.source_offset.saturating_add(origin.length).min(state.attributes.size);
        let named = extents.within(origin.source_offset, end).filter(|(_, extent)| !extent.unwritten);
        parts.extend(named.map(|(offset, extent)| (origin.at + (offset - origin.source_offset), extent)));
    }
    state.drops
}

/// Sorts origins by their offset in the request and clips them to it. An origin may overlap the one before it, whose
/// bytes are then compared first; no byte is in more than two origins. Short gaps between origins are closed.
pub(super) fn in_order<'f>(origins: &[InodeOrigin<'f>], length: u64) -> Vec<InodeOrigin<'f>> {
    let mut sorted: Vec<InodeOrigin<'f>> = origins.iter().copied().filter(|origin| origin.at < length).collect();
    sorted.sort_by_key(|origin| origin.at);
    // Ends of the last origin, and of all origins before it.
    let (mut end, mut end_before) = (0, 0);
    sorted.retain_mut(|origin| {
        *origin = origin.from(end_before);
        origin.length = origin.length.min(length - origin.at);
        if origin.length == 0 {
            return false;
        }
        *origin = origin.with_gap_from(end.min(origin.at));
        (end, end_before) = (end.max(origin.end()), end);
        true
    });
    sorted
}

/// Leaves out sorted origins that are too short to be shared, together with those that continue them.
pub(super) fn leave_short_out(origins: &mut Vec<InodeOrigin<'_>>, length: u64, worth: Worth) {
    let range = |run: &[InodeOrigin<'_>]| run[0].at..run[run.len() - 1].end();
    let runs = origins.chunk_by(InodeOrigin::continues).filter(|run| worth.is_enough(range(run), length));
    *origins = runs.flatten().copied().collect();
}

/// Returns the number of bytes that sorted origins cover.
pub(super) fn offered_bytes(origins: &[InodeOrigin<'_>]) -> u64 {
    let (mut bytes, mut end) = (0, 0);
    for origin in origins {
        bytes += origin.end().saturating_sub(end.max(origin.at));
        end = end.max(origin.end());
    }
    bytes
}

/// Returns the ranges of a request of `length` bytes that are not equal to any source.
fn new_ranges(equal: &[Equal], length: u64) -> SmallVec<[Range<u64>; 4]> {
    let ends = std::iter::once(0).chain(equal.iter().map(Equal::end));
    let starts = equal.iter().map(|equal| equal.at).chain(std::iter::once(length));
    ends.zip(starts).map(|(start, end)| start..end).filter(|range| !range.is_empty()).collect()
}

/// Looks for zeros in the whole blocks of the new parts of a request at `offset`, and makes the fingerprints of the other
/// blocks, unless the policy stores everything or cuts.
fn look_at_new<'d>(new: &[Range<u64>], offset: u64, data: &'d [u8], policy: Placer<'_>) -> Whole<'d> {
    let mut all = Whole::default();
    let has_pieces = !policy.stores_everything() && policy.streams().is_none();
    for range in new {
        let (first, end) = whole_blocks(offset + range.start, range.end - range.start);
        if first == end {
            continue;
        }
        let bytes = |part: &Range<u64>| &data[(part.start - offset) as usize..(part.end - offset) as usize];
        let mut zeros = Zeros::new();
        add_zeros(policy, first, bytes(&(first..end)), &mut zeros);
        for part in between(&zeros, first..end).filter(|_| has_pieces) {
            let position = ((part.start - first) / BLOCK_BYTES) as usize;
            let blocks = (position..).zip(bytes(&part).chunks_exact(BLOCK));
            all.pieces.extend(blocks.map(|(at, block)| Piece::new_at(at, block, policy.fingerprint(block))));
        }
        all.zeros.extend(zeros);
    }
    all
}
