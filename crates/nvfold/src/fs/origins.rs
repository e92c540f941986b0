//! Writing what was copied from files (ICID 4.1, 4.4): the bytes that are still as they were are shared, without a hash.
//!
//! The problem: who writes may know where the bytes come from, but not whether they were changed since, and a source may
//! be written to at the same time. Two files are locked in the order of their numbers, which a request with hundreds of
//! sources cannot wait for.
//!
//! The idea: an origin is a hint. Each source is locked shared only to learn what it names there; the bytes are compared
//! without any lock. Then the target alone is locked, and each source is asked, without waiting, whether it has dropped
//! anything since: if not, what it named stood still all the time, and references are taken. A source that has changed is
//! compared again, a few times, before its bytes are stored.
//!
//! ```text
//! request   |   new   |  equal  |n|   equal   |        new         |
//! stored    blocks,     extents   short pieces: together   blocks, and what does not
//!           by the      of the    in one packed chunk      fill one: as short pieces
//!           policy      source's chunks
//! ```
//!
//! What is published is exactly the range that was written, in one commit. So is a write over a part of a block that
//! others name too: its other bytes stay shared.

use super::Core;
use super::claims::Claims;
use super::packed::{Cut, ToPack};
use super::publish::{Mapped, Remap, Stamp};
use super::range::{range_end, whole_blocks};
use super::write::Pieces;
use crate::dedup::{Dedup, Piece};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::chunk_entry::CLASS_UNKNOWN;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location, PACKED_BYTES_MAX};
use crate::padded::Sum;
use crate::space::Purpose;
use crate::space::packed::Pool;
use crate::words::OriginStats;
use smallvec::SmallVec;
use std::ops::Range;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Equal bytes that are fewer are not worth an extent.
const EQUAL_BYTES_MIN: u64 = 64;
/// How often a request is compared before what has changed meanwhile is stored.
const COMPARES_MAX: u32 = 4;
/// Extents of one block of a file from which on a write into it puts the whole block together again.
const PARTS_OF_A_BLOCK_MAX: usize = 8;

/// A range of a request that was copied from a file.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'f> {
    /// First byte, counted from the beginning of the request.
    pub(crate) at: u64,
    pub(crate) length: u64,
    pub(crate) source: &'f Inode,
    pub(crate) source_offset: u64,
}

impl Origin<'_> {
    fn end(&self) -> u64 {
        self.at + self.length
    }

    /// With what lies before it from `at` on, in request and source, if that is too short for an extent of its own: the
    /// few bytes in front of a record are often made again, as they were.
    fn with_gap_from(self, at: u64) -> Self {
        if self.at - at >= EQUAL_BYTES_MIN {
            return self;
        }
        let gap = (self.at - at).min(self.source_offset);
        let (length, source_offset) = (self.length + gap, self.source_offset - gap);
        Origin { at: self.at - gap, length, source_offset, ..self }
    }

    /// What is left of it from `at` on.
    fn from(self, at: u64) -> Self {
        let skipped = at.saturating_sub(self.at).min(self.length);
        let (length, source_offset) = (self.length - skipped, self.source_offset.saturating_add(skipped));
        Origin { at: self.at + skipped, length, source_offset, ..self }
    }
}

/// Requests with origins since mount.
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

/// Bytes of a request that are equal to what a source named when it was looked at.
struct Equal {
    at: u64,
    extent: Extent,
    /// Which of the origins says so.
    origin: usize,
}

impl Equal {
    fn end(&self) -> u64 {
        self.at + self.extent.length
    }

    /// Whether `next` goes on with it, in the request and where it is stored.
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

/// What a comparison found.
#[derive(Default)]
struct Compared {
    /// In the order of the request.
    equal: Vec<Equal>,
    /// How often each source had dropped something when it was looked at.
    drops: Vec<u64>,
    /// End of the last bytes that are worth an extent.
    end: u64,
}

/// Why nothing can be shared with an origin.
enum Refused {
    /// The source was written to, or is at this moment.
    Changed,
    /// This one: its chunks cannot be counted any more.
    Unshareable(usize),
}

/// Where new bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Short pieces to packed chunks.
    Packed,
    /// Everything to blocks.
    Blocks,
}

impl Core {
    /// Writes all of `data` at an offset or at the end, and shares what `origins` tell; the offset, and how many bytes
    /// are shared with origins.
    pub(crate) fn write_from(
        &self,
        inode: &Inode,
        at: Option<u64>,
        data: &[u8],
        origins: &[Origin<'_>],
    ) -> Result<(u64, u64)> {
        range_end("write", at.unwrap_or(0), data.len() as u64)?;
        let mut origins = match self.follows_origins(inode) {
            true => in_order(origins, data.len() as u64),
            false => Vec::new(),
        };
        let mut compares = 0;
        let (offset, shared) = loop {
            let compared = self.compare(data, &origins);
            if compared.equal.is_empty() {
                break (self.write(inode, at, data)?, 0);
            }
            compares += 1;
            let refused = match self.write_compared(inode, at, data, &origins, &compared)? {
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

    /// What is equal to what it was copied from, and long enough to be worth an extent.
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

    /// Writes a request of which some is equal to what its sources named.
    fn write_compared(
        &self,
        inode: &Inode,
        at: Option<u64>,
        data: &[u8],
        origins: &[Origin<'_>],
        compared: &Compared,
    ) -> Result<std::result::Result<u64, Refused>> {
        let policy = self.policy_for(inode);
        // An append does not know its offset yet; a guess that turns out wrong only costs the hashing again.
        let guess = at.unwrap_or_else(|| inode.peek().attributes.size);
        let new = new_ranges(&compared.equal, data.len() as u64);
        let mut pieces = pieces_of(&new, guess, data, policy);
        let mut state = inode.write()?;
        let offset = at.unwrap_or(state.attributes.size);
        range_end("write", offset, data.len() as u64)?;
        if offset != guess {
            pieces = pieces_of(&new, offset, data, policy);
        }
        let request = Request { offset, data, new: &new, origins, compared };
        if let Err(refused) = self.write_parts(inode, &mut state, &request, &mut pieces)? {
            return Ok(Err(refused));
        }
        drop(state);
        policy.request_done(data.len() as u64, &self.ground());
        Ok(Ok(offset))
    }

    /// Whether a write begins or ends inside a block that others name too, and its file names few parts of it yet.
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

    /// Writes exactly the bytes of a request that has no origins.
    pub(super) fn write_exactly(
        &self,
        inode: &Inode,
        state: &mut State,
        offset: u64,
        data: &[u8],
        pieces: &mut [Piece<'_>],
    ) -> Result<()> {
        let new = new_ranges(&[], data.len() as u64);
        let request = Request { offset, data, new: &new, origins: &[], compared: &Compared::default() };
        // Nobody can refuse what has no origin.
        self.write_parts(inode, state, &request, pieces).map(drop)
    }

    /// Publishes a request: with packed chunks if there is room for them, else in blocks.
    fn write_parts(
        &self,
        inode: &Inode,
        state: &mut State,
        request: &Request<'_>,
        pieces: &mut [Piece<'_>],
    ) -> Result<std::result::Result<(), Refused>> {
        let mut room = if self.chunks.entries.may_pack() { Room::Packed } else { Room::Blocks };
        loop {
            match self.write_parts_to(inode, state, request, pieces, room) {
                Err(Error::NoSpace { .. }) if room == Room::Packed && self.reclaim_segment() => {}
                Err(Error::NoSpace { .. }) if room == Room::Packed => {
                    // What it had opened is empty again, and serves for blocks.
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
        pieces: &mut [Piece<'_>],
        room: Room,
    ) -> Result<std::result::Result<(), Refused>> {
        let policy = self.policy_for(inode);
        let policy =
            if room == Room::Blocks && policy.streams().is_some() { self.policies.of_blocks() } else { policy };
        let mut claims = Claims::with_compression(self, policy, self.compression_for(inode));
        if let Err(refused) = self.share_equal(inode, state, request, &mut claims) {
            return Ok(Err(refused));
        }
        let range = request.offset..request.offset + request.data.len() as u64;
        claims.is_update = self.is_update(state, range.clone());
        let at_offset = |equal: &Equal| (request.offset + equal.at, equal.extent);
        let mut mapped: Mapped = request.compared.equal.iter().map(at_offset).collect();
        let extents = self.file_extents(state, "write")?;
        let (mut short, mut pieces) = (Vec::new(), pieces);
        for new in request.new {
            let bytes = &request.data[new.start as usize..new.end as usize];
            let placed =
                self.place_new(extents, request.offset + new.start, bytes, pieces, &mut mapped, &mut claims)?;
            short.extend(placed.short);
            pieces = &mut std::mem::take(&mut pieces)[placed.pieces..];
        }
        match room {
            Room::Packed => self.pack_short(&short, &mut mapped, &mut claims)?,
            Room::Blocks => self.store_short(&short, &mut mapped, &mut claims)?,
        }
        mapped.sort_unstable_by_key(|(offset, _)| *offset);
        if claims.lacks_fingerprints {
            self.record_lacking(inode, &mut claims);
        }
        let stamp = Stamp::Changed(self.now(), state.attributes.size.max(range.end));
        self.publish(inode, state, &Remap::new(&range, &mapped, stamp), None, &mut claims)?;
        Ok(Ok(()))
    }

    /// Takes the references of all that is equal, if its sources still name it: those of one source at once, and so each
    /// of its chunks is counted once, however many short records come from it.
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
            // A thread that holds the lock of one inode does not wait for another.
            let locked = (source.ino != inode.ino).then(|| source.try_read().ok_or(Refused::Changed)).transpose()?;
            let drops = locked.as_deref().unwrap_or(state).drops;
            if equal.iter().any(|equal| compared.drops[equal.origin] != drops) {
                return Err(Refused::Changed);
            }
            share_chunks_of(equal, claims)?;
        }
        Ok(())
    }

    /// Places new bytes: whole blocks as the policy wants them, or all as pieces of a policy that cuts. What does not fill
    /// a block is left to be stored with others of its kind.
    fn place_new<'d>(
        &self,
        extents: &Extents,
        offset: u64,
        bytes: &'d [u8],
        pieces: &mut [Piece<'_>],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<PlacedNew<'d>> {
        let length = bytes.len() as u64;
        if let Some(streams) = claims.policy.streams().filter(|_| length >= BLOCK_BYTES) {
            let cut = Cut::new(streams.begin(offset), bytes, claims.policy);
            self.pack(offset, &cut.first(cut.pieces.len()), mapped, claims)?;
            return Ok(PlacedNew::default());
        }
        let (first, end) = whole_blocks(offset, length);
        if first == end {
            return Ok(PlacedNew { short: smallvec::smallvec![(offset, bytes)], pieces: 0 });
        }
        let (before, rest) = bytes.split_at((first - offset) as usize);
        let (whole, behind) = rest.split_at((end - first) as usize);
        let blocks = whole.len() / BLOCK;
        let count = if pieces.len() < blocks { 0 } else { blocks };
        self.place(extents, first, whole, &mut pieces[..count], mapped, claims)?;
        let short = [(offset, before), (end, behind)].into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
        Ok(PlacedNew { short, pieces: count })
    }

    /// Stores short pieces one behind the other, in as few packed chunks as hold them.
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

    /// Stores short pieces in as few blocks as hold them, none of them in two.
    fn store_short(&self, short: &[(u64, &[u8])], mapped: &mut Mapped, claims: &mut Claims<'_>) -> Result<()> {
        // What crosses one end of a block and fills none may be longer than a block.
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
    /// Adds what is equal. What goes on with the last one, from the same source, is one with it.
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

/// Takes a reference for each chunk that an extent names, all of one chunk at once.
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

/// A request, and what of it is new.
struct Request<'r> {
    offset: u64,
    data: &'r [u8],
    /// Parts of `data`.
    new: &'r [Range<u64>],
    origins: &'r [Origin<'r>],
    compared: &'r Compared,
}

/// What [`Core::place_new`] has done.
#[derive(Default)]
struct PlacedNew<'d> {
    /// What does not fill a block: file offset, bytes.
    short: SmallVec<[(u64, &'d [u8]); 2]>,
    /// How many of the pieces it has used.
    pieces: usize,
}

/// What a source names where an origin says so, by place in the request; how often it had dropped something then.
fn parts_of(origin: &Origin<'_>, parts: &mut SmallVec<[(u64, Extent); 4]>) -> u64 {
    // One that is gone names nothing.
    let Ok(state) = origin.source.read() else { return 0 };
    if let Some(extents) = state.extents() {
        let end = origin.source_offset.saturating_add(origin.length).min(state.attributes.size);
        let named = extents.within(origin.source_offset, end).filter(|(_, extent)| !extent.unwritten);
        parts.extend(named.map(|(offset, extent)| (origin.at + (offset - origin.source_offset), extent)));
    }
    state.drops
}

/// Origins in the order of the request, as far as they lie in it. One may begin before the end of the one in front of it,
/// whose bytes are looked at first; no byte is in more than two. Short gaps between them are taken in.
fn in_order<'f>(origins: &[Origin<'f>], length: u64) -> Vec<Origin<'f>> {
    let mut sorted: Vec<Origin<'f>> = origins.iter().copied().filter(|origin| origin.at < length).collect();
    sorted.sort_by_key(|origin| origin.at);
    // Of the last one, and of those in front of that.
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

/// Bytes that origins in order speak of.
fn offered_bytes(origins: &[Origin<'_>]) -> u64 {
    let (mut bytes, mut end) = (0, 0);
    for origin in origins {
        bytes += origin.end().saturating_sub(end.max(origin.at));
        end = end.max(origin.end());
    }
    bytes
}

/// The parts of a request of so many bytes that are equal to nothing.
fn new_ranges(equal: &[Equal], length: u64) -> SmallVec<[Range<u64>; 4]> {
    let ends = std::iter::once(0).chain(equal.iter().map(Equal::end));
    let starts = equal.iter().map(|equal| equal.at).chain(std::iter::once(length));
    ends.zip(starts).map(|(start, end)| start..end).filter(|range| !range.is_empty()).collect()
}

/// The whole blocks of a file in new parts of a request at `offset`, with the fingerprints that the policy wants; none
/// where it stores everything, or cuts.
fn pieces_of<'d>(new: &[Range<u64>], offset: u64, data: &'d [u8], policy: &dyn Dedup) -> Pieces<'d> {
    if policy.stores_everything() || policy.streams().is_some() {
        return Pieces::new();
    }
    let blocks = new.iter().flat_map(|range| {
        let (first, end) = whole_blocks(offset + range.start, range.end - range.start);
        let whole = if first < end { (first - offset) as usize..(end - offset) as usize } else { 0..0 };
        data[whole].chunks_exact(BLOCK)
    });
    blocks.map(|block| Piece::new(block, policy.fingerprint(block))).collect()
}

/// Pieces that follow one another, in groups of at most so many bytes. None is longer than that.
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
