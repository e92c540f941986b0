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

use super::Core;
use super::claims::Claims;
use super::effort::Effort;
use super::packed::{Cut, ToPack};
use super::policy::Placer;
use super::publish::Mapped;
use super::range::{range_end, whole_blocks};
use super::write::Whole;
use super::zeros::{Zeros, add_zeros, becomes_hole, between, bytes_within};
use crate::dedup::Piece;
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::chunk_entry::CLASS_UNKNOWN;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location, PACKED_BYTES_MAX};
use crate::padded::Sum;
use crate::space::Purpose;
use crate::space::packed::Pool;
use crate::words::{OriginStats, Times};
use smallvec::SmallVec;
use std::ops::Range;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Runs of equal bytes shorter than this are not worth an extent.
const EQUAL_BYTES_MIN: u64 = 64;
/// How often a request is compared before it is written without origins.
const COMPARES_MAX: u32 = 4;
/// Once a block of a file consists of this many extents, a write into it stores the whole block anew.
const PARTS_OF_A_BLOCK_MAX: usize = 8;

/// A range of a request that was copied from a file.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'f> {
    /// Offset of the first byte in the request.
    pub(crate) at: u64,
    pub(crate) length: u64,
    pub(crate) source: &'f Inode,
    pub(crate) source_offset: u64,
}

impl Origin<'_> {
    fn end(&self) -> u64 {
        self.at + self.length
    }

    /// Extends the origin backwards to `at`, in request and source, if that gap is too short for an extent. The few
    /// bytes in front of a record are often written again with the same content.
    fn with_gap_from(self, at: u64) -> Self {
        if self.at - at >= EQUAL_BYTES_MIN {
            return self;
        }
        let gap = (self.at - at).min(self.source_offset);
        let (length, source_offset) = (self.length + gap, self.source_offset - gap);
        Origin { at: self.at - gap, length, source_offset, ..self }
    }

    /// Returns the part of the origin from `at` on.
    fn from(self, at: u64) -> Self {
        let skipped = at.saturating_sub(self.at).min(self.length);
        let (length, source_offset) = (self.length - skipped, self.source_offset.saturating_add(skipped));
        Origin { at: self.at + skipped, length, source_offset, ..self }
    }
}

/// Counters of the requests with origins since mount.
#[derive(Default)]
pub(super) struct OriginTally {
    requests: Sum,
    offered_bytes: Sum,
    shared_bytes: Sum,
    shared_extents: Sum,
    changed: Sum,
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

/// Why a request cannot share with its origins.
enum Refused {
    /// The source was written to, or is locked by a writer at the moment.
    Changed,
    /// A chunk of the origin with this index cannot take more references.
    Unshareable(usize),
}

/// Where new bytes are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Short pieces go to packed chunks.
    Packed,
    /// Everything goes to blocks.
    Blocks,
}

impl Core {
    /// Writes all of `data` at offset `at`, or at the end of the file if it is `None`, and shares what is equal to
    /// `origins`. Returns the offset, and the number of bytes that are shared with origins.
    pub(crate) fn write_from(
        &self,
        inode: &Inode,
        at: Option<u64>,
        data: &[u8],
        origins: &[Origin<'_>],
        times: Times,
        effort: &Effort,
    ) -> Result<(u64, u64)> {
        range_end("write", at.unwrap_or(0), data.len() as u64)?;
        let mut origins = match self.follows_origins(inode) {
            true => in_order(origins, data.len() as u64),
            false => Vec::new(),
        };
        // Not even compared: the time that a comparison takes tells how much is equal.
        origins.retain(|origin| origin.source.domain() == inode.domain());
        let mut compares = 0;
        let (offset, shared) = loop {
            let compared = self.compare(data, &origins);
            if compared.equal.is_empty() {
                break (self.write(inode, at, data, times, effort)?, 0);
            }
            compares += 1;
            let refused = match self.write_compared(inode, at, data, &origins, &compared, times, effort)? {
                Ok(offset) => {
                    self.origin_tally.shared_extents.add(compared.equal.len() as u64);
                    break (offset, compared.equal.iter().map(|equal| equal.extent.length).sum());
                }
                Err(refused) => refused,
            };
            match refused {
                Refused::Changed => {
                    self.origin_tally.changed.add(1);
                    if compares == COMPARES_MAX {
                        origins.clear();
                    }
                }
                Refused::Unshareable(origin) => _ = origins.remove(origin),
            }
        };
        if !origins.is_empty() {
            let offered = offered_bytes(&origins);
            self.origin_tally.requests.add(1);
            self.origin_tally.offered_bytes.add(offered);
            self.origin_tally.shared_bytes.add(shared);
        }
        Ok((offset, shared))
    }

    pub(crate) fn origin_stats(&self) -> OriginStats {
        self.origin_tally.stats()
    }

    /// Finds the bytes of a request that are equal to their origins, in runs that are long enough for an extent.
    fn compare(&self, data: &[u8], origins: &[Origin<'_>]) -> Compared {
        let mut compared = Compared::default();
        let mut parts: SmallVec<[(u64, Extent); 4]> = SmallVec::new();
        let mut runs = Vec::new();
        for (number, origin) in origins.iter().enumerate() {
            compared.drops.push(parts_of(&origin.from(compared.end), &mut parts));
            for (at, extent) in parts.drain(..) {
                let bytes = &data[at as usize..(at + extent.length) as usize];
                self.chunks.equal_runs(extent.location, bytes, EQUAL_BYTES_MIN as usize, &mut runs);
                for Range { start, end } in runs.drain(..) {
                    let (start, length) = (start as u64, (end - start) as u64);
                    let extent = Extent { length, location: extent.location.plus(start), unwritten: false };
                    compared.add(Equal { at: at + start, extent, origin: number }, origins);
                }
            }
        }
        compared.equal.retain(|equal| equal.extent.length >= EQUAL_BYTES_MIN);
        compared
    }

    /// Writes a request of which `compared` describes the equal parts. Fails with `Refused` if a source has changed
    /// since.
    fn write_compared(
        &self,
        inode: &Inode,
        at: Option<u64>,
        data: &[u8],
        origins: &[Origin<'_>],
        compared: &Compared,
        times: Times,
        effort: &Effort,
    ) -> Result<std::result::Result<u64, Refused>> {
        let policy = self.policy_for(inode);
        // The offset of an append is only known under the lock. A wrong guess merely costs hashing the data again.
        let guess = at.unwrap_or_else(|| inode.peek().attributes.size);
        let new = new_ranges(&compared.equal, data.len() as u64);
        let mut whole = look_at_new(&new, guess, data, policy);
        let mut state = inode.write()?;
        let offset = at.unwrap_or(state.attributes.size);
        range_end("write", offset, data.len() as u64)?;
        if offset != guess || policy.domain() != inode.domain() {
            whole = look_at_new(&new, offset, data, policy.with_domain_of(inode));
        }
        let request = Request { offset, data, new: &new, origins, compared, times };
        if let Err(refused) = self.write_parts(inode, &mut state, &request, &mut whole, effort)? {
            return Ok(Err(refused));
        }
        drop(state);
        let zeros = bytes_within(&whole.zeros, offset..offset + data.len() as u64);
        policy.request_done(data.len() as u64 - zeros, &self.ground());
        Ok(Ok(offset))
    }

    /// True if a write begins or ends inside a shared block that consists of few extents so far.
    pub(super) fn begins_or_ends_in_shared(&self, extents: &Extents, offset: u64, end: u64) -> bool {
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

    /// Writes exactly the bytes of a request without origins, and leaves the rest of its first and last block shared.
    pub(super) fn write_exactly(
        &self,
        inode: &Inode,
        state: &mut State,
        offset: u64,
        data: &[u8],
        whole: &mut Whole<'_>,
        times: Times,
        effort: &Effort,
    ) -> Result<()> {
        let new = new_ranges(&[], data.len() as u64);
        let request = Request { offset, data, new: &new, origins: &[], compared: &Compared::default(), times };
        // Without origins there is no source that could have changed.
        self.write_parts(inode, state, &request, whole, effort).map(drop)
    }

    /// Publishes a request: short pieces go to packed chunks if there is room, or else to blocks.
    fn write_parts(
        &self,
        inode: &Inode,
        state: &mut State,
        request: &Request<'_>,
        whole: &mut Whole<'_>,
        effort: &Effort,
    ) -> Result<std::result::Result<(), Refused>> {
        let mut room = if self.chunks.entries.may_pack() { Room::Packed } else { Room::Blocks };
        loop {
            match self.write_parts_to(inode, state, request, whole, room) {
                Err(Error::NoSpace { .. }) if room == Room::Packed && self.reclaim_segment(effort) => {}
                Err(Error::NoSpace { .. }) if room == Room::Packed => {
                    // The packed segments that the attempt opened are empty again, so blocks can use them.
                    self.give_up_empty_packed();
                    room = Room::Blocks;
                }
                written => return written,
            }
        }
    }

    fn write_parts_to(
        &self,
        inode: &Inode,
        state: &mut State,
        request: &Request<'_>,
        whole: &mut Whole<'_>,
        room: Room,
    ) -> Result<std::result::Result<(), Refused>> {
        let policy = self.policy_for(inode);
        let policy = match room {
            Room::Blocks if policy.streams().is_some() => policy.with(self.policies.of_blocks()),
            Room::Packed | Room::Blocks => policy,
        };
        let mut claims = Claims::of_write(self, inode, policy, request.times);
        if let Err(refused) = self.share_equal(inode, state, request, &mut claims) {
            return Ok(Err(refused));
        }
        let range = request.offset..request.offset + request.data.len() as u64;
        claims.is_update = self.is_update(state, range.clone());
        let at_offset = |equal: &Equal| (request.offset + equal.at, equal.extent);
        let mut mapped: Mapped = request.compared.equal.iter().map(at_offset).collect();
        let extents = self.file_extents(state, "write")?;
        let (mut short, mut pieces) = (Vec::new(), &mut whole.pieces[..]);
        for new in request.new {
            let bytes = &request.data[new.start as usize..new.end as usize];
            let offset = request.offset + new.start;
            let placed = self.place_new(extents, offset, bytes, pieces, &whole.zeros, &mut mapped, &mut claims)?;
            short.extend(placed.short);
            pieces = &mut std::mem::take(&mut pieces)[placed.pieces..];
        }
        match room {
            Room::Packed => self.pack_short(&short, &mut mapped, &mut claims)?,
            Room::Blocks => self.store_short(&short, &mut mapped, &mut claims)?,
        }
        mapped.sort_unstable_by_key(|(offset, _)| *offset);
        if claims.lacks_fingerprints {
            self.notify_unfingerprinted(inode, &mut claims);
        }
        let size = state.attributes.size.max(range.end);
        self.publish_written(inode, state, range, &mapped, size, &mut claims)?;
        Ok(Ok(()))
    }

    /// Takes references on all equal chunks, if no source has dropped a reference since. All references for one
    /// source are taken at once, so each chunk is counted once, however many short records come from it.
    fn share_equal(
        &self,
        inode: &Inode,
        state: &State,
        request: &Request<'_>,
        claims: &mut Claims<'_>,
    ) -> std::result::Result<(), Refused> {
        let Request { origins, compared, .. } = request;
        let source_of = |equal: &Equal| origins[equal.origin].source;
        let mut by_source: SmallVec<[&Equal; 4]> = compared.equal.iter().collect();
        by_source.sort_by_key(|equal| source_of(equal).ino);
        for equal in by_source.chunk_by(|equal, next| source_of(equal).ino == source_of(next).ino) {
            let source = source_of(equal[0]);
            if source.domain() != inode.domain() {
                // The owner of one of them has changed since the comparison.
                return Err(Refused::Unshareable(equal[0].origin));
            }
            // A thread that holds the lock of one inode must not wait for that of another.
            let locked = (source.ino != inode.ino).then(|| source.try_read().ok_or(Refused::Changed)).transpose()?;
            let drops = locked.as_deref().unwrap_or(state).drops;
            if equal.iter().any(|equal| compared.drops[equal.origin] != drops) {
                return Err(Refused::Changed);
            }
            share_chunks_of(equal, claims)?;
        }
        Ok(())
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
        if let Some(streams) = claims.policy.streams().filter(|_| length >= BLOCK_BYTES) {
            let cut = Cut::of_request(streams.begin(offset), bytes, claims.policy);
            self.pack(&cut.first(cut.pieces.len()), mapped, claims)?;
            return Ok(PlacedNew::default());
        }
        let (policy, (first, end)) = (claims.policy, whole_blocks(offset, length));
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
        let first = claims.fresh.len();
        self.space.allocate("write", groups.len() as u64, Purpose::Data, &mut claims.fresh)?;
        let blocks: SmallVec<[BlockNumber; 4]> = claims.fresh[first..].iter().flat_map(|run| run.blocks()).collect();
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
            claims.lacks_fingerprints = true;
            claims.tx.flight.add(self.region.stream(block.address(), &bytes));
        }
        Ok(())
    }
}

impl Compared {
    /// Adds an equal run. A run that continues the last one, from the same source, is merged with it.
    fn add(&mut self, next: Equal, origins: &[Origin<'_>]) {
        if let Some(last) = self.equal.last_mut()
            && last.continues(&next)
            && origins[last.origin].source.ino == origins[next.origin].source.ino
            && self.drops[last.origin] == self.drops[next.origin]
        {
            last.extent.length += next.extent.length;
        } else {
            self.equal.push(next);
        }
        if let Some(last) = self.equal.last().filter(|last| last.extent.length >= EQUAL_BYTES_MIN) {
            self.end = last.end();
        }
    }
}

/// Takes a reference for each chunk of these extents; all references on one chunk are taken at once.
fn share_chunks_of(equal: &[&Equal], claims: &mut Claims<'_>) -> std::result::Result<(), Refused> {
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
        claims.share_times(chunk, same.len() as u32).map_err(|_| Refused::Unshareable(origin))?;
    }
    Ok(())
}

/// A request, and which parts of it are new.
struct Request<'r> {
    offset: u64,
    data: &'r [u8],
    /// Parts of `data`.
    new: &'r [Range<u64>],
    origins: &'r [Origin<'r>],
    compared: &'r Compared,
    times: Times,
}

/// The result of [`Core::place_new`].
#[derive(Default)]
struct PlacedNew<'d> {
    /// Parts that do not fill a block: file offset and bytes.
    short: SmallVec<[(u64, &'d [u8]); 2]>,
    /// The number of pieces that were used.
    pieces: usize,
}

/// Adds the extents of an origin's source to `parts`, with their offsets in the request. Returns the source's count
/// of dropped references.
fn parts_of(origin: &Origin<'_>, parts: &mut SmallVec<[(u64, Extent); 4]>) -> u64 {
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
fn in_order<'f>(origins: &[Origin<'f>], length: u64) -> Vec<Origin<'f>> {
    let mut sorted: Vec<Origin<'f>> = origins.iter().copied().filter(|origin| origin.at < length).collect();
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

/// Returns the number of bytes that sorted origins cover.
fn offered_bytes(origins: &[Origin<'_>]) -> u64 {
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
