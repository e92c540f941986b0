//! Writing what is cut into pieces and stored as packed chunks (DeEXT III-B).
//!
//! The problem: a piece has any length and begins anywhere in the file, the last one of a request is not known to be whole,
//! and a device may have no room for another segment of packed chunks.
//!
//! The idea: the stream says where the pieces end ([`crate::dedup::stream`]); here they are shared or stored, and
//! published as the extents of exactly the bytes that were written. A piece that goes on with the tail of the request
//! before is put in its place in the same commit:
//!
//! ```text
//! the tail       the piece            what the file names then
//! grows          is new               the same chunk, longer, in its place; only the new bytes are written
//! any            is stored elsewhere  that chunk, from the first byte of the tail on; the tail's own is dropped
//! is found       is new               a new chunk, from the first byte of the tail on; the tail's own is dropped
//! ```
//!
//! Where no segment is free the request is written to blocks, as under policy `inline`.

use super::Core;
use super::claims::{Claims, Grown};
use super::decide::{decide, mark_twins};
use super::publish::{Mapped, Remap, Stamp};
use super::write::whole_pieces;
use crate::chunk::packed::NewPacked;
use crate::chunking::Chunker;
use crate::dedup::stream::{CutPiece, Stream, Tail};
use crate::dedup::streams::{Seam, Streams};
use crate::dedup::{Dedup, Piece, Place};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::chunk_entry::{CLASS_END, CLASS_UNKNOWN, ENTRY_BYTES};
use crate::media::packed::PackedBytes;
use crate::media::superblock::{COMPRESSED_CHUNKS, PACKED_CHUNKS};
use crate::media::{BLOCK_BYTES, Location, PackedNumber};
use crate::space::packed::Pool;
use crate::words::TimeNs;
use pmem::Flight;
use smallvec::SmallVec;
use std::ops::Range;

/// Nanoseconds within which the content that follows a truncation takes the place of what was there.
const UPDATED_WITHIN: TimeNs = 60_000_000_000;

/// A piece of bytes that is to be named by one extent.
pub(super) struct ToPack<'d> {
    pub(super) bytes: &'d [u8],
    pub(super) pool: Pool,
    pub(super) class: u8,
    /// Empty: it is not looked for, and not found.
    pub(super) fingerprint: Fingerprint,
    /// More bytes will be put behind it, in its place.
    pub(super) grows: bool,
}

/// A request, cut.
pub(super) struct Cut<'d> {
    /// Goes on behind it.
    stream: Stream,
    /// What the first piece begins with, if the stream went on.
    tail: Option<Tail>,
    pub(super) pieces: Vec<CutPiece<'d>>,
    fingerprints: Vec<Fingerprint>,
}

impl<'d> Cut<'d> {
    pub(super) fn new(mut stream: Stream, data: &'d [u8], policy: &dyn Dedup) -> Cut<'d> {
        let tail = stream.tail.take();
        let pieces = stream.cut(data, tail.as_ref());
        // A stream that goes on will do so again: its tail is not looked for before its piece ends.
        let grows = |piece: &CutPiece<'_>| !piece.is_whole && tail.is_some();
        let fingerprint = |piece: &CutPiece<'_>| match grows(piece) {
            true => Fingerprint::default(),
            false => policy.fingerprint(&piece.bytes),
        };
        let fingerprints = pieces.iter().map(fingerprint).collect();
        Cut { stream, tail, pieces, fingerprints }
    }

    /// Its first pieces.
    pub(super) fn first(&self, count: usize) -> Vec<ToPack<'_>> {
        let pieces = self.pieces.iter().zip(&self.fingerprints).take(count);
        pieces.map(|(piece, fingerprint)| to_pack(piece, *fingerprint)).collect()
    }
}

impl Core {
    /// Writes all of `data` at an offset or at the end, cut by the streams of a policy; the offset.
    pub(super) fn write_stream(
        &self,
        inode: &Inode,
        at: Option<u64>,
        data: &[u8],
        policy: &dyn Dedup,
        streams: &Streams,
    ) -> Result<u64> {
        // An append does not know its offset yet; a guess that turns out wrong only costs the cutting again.
        let guess = at.unwrap_or_else(|| inode.peek().attributes.size);
        super::range::range_end("write", guess, data.len() as u64)?;
        let before = streams.take(inode.ino);
        let goes_on = before.as_ref().is_some_and(|stream| stream.end() == guess);
        let (stream, ended) = if goes_on { (before, None) } else { (None, before) };
        let mut cut = Cut::new(stream.unwrap_or_else(|| streams.begin(guess)), data, policy);
        let mut state = inode.write()?;
        let offset = at.unwrap_or(state.attributes.size);
        super::range::range_end("write", offset, data.len() as u64)?;
        let is_right = offset == guess && cut.tail.as_ref().is_none_or(|tail| names_tail(&state, tail));
        if !is_right {
            cut = Cut::new(streams.begin(offset), data, policy);
        }
        let is_seam = !goes_on || !is_right;
        let mut over = Vec::new();
        let mut written = self.write_cut(inode, &mut state, offset, data, &mut cut, policy);
        while matches!(written, Err(Error::NoSpace { .. })) && self.reclaim_segment() {
            cut = Cut::new(streams.begin(offset), data, policy);
            written = self.write_cut(inode, &mut state, offset, data, &mut cut, policy);
        }
        match written {
            Ok(()) => over = streams.keep(inode.ino, cut.stream),
            Err(Error::NoSpace { .. }) => {
                // What it had opened is empty again, and serves for blocks.
                self.give_up_empty_packed();
                self.write_to_blocks(inode, &mut state, offset, data)?;
            }
            Err(error) => return Err(error),
        }
        if is_seam {
            let end = offset + data.len() as u64;
            let extents = self.file_extents(&state, "write")?;
            let seams = [offset, end].into_iter().filter(|seam| is_inside(extents, *seam));
            seams.for_each(|offset| streams.add_seam(Seam { file: inode.ino, offset }));
        }
        drop(state);
        over.extend(ended.map(|stream| (inode.ino, stream)));
        over.into_iter().try_for_each(|(file, stream)| self.end_stream_of(file, stream))?;
        policy.request_done(data.len() as u64, &self.ground());
        Ok(offset)
    }

    fn write_cut(
        &self,
        inode: &Inode,
        state: &mut State,
        offset: u64,
        data: &[u8],
        cut: &mut Cut<'_>,
        policy: &dyn Dedup,
    ) -> Result<()> {
        self.file_extents(state, "write")?;
        let end = offset + data.len() as u64;
        let stamp = Stamp::Changed(self.now(), state.attributes.size.max(end));
        let mut claims = Claims::with_compression(self, policy, self.compression_for(inode));
        claims.is_update = self.is_update(state, offset..end);
        let tail = cut.tail.take();
        let mut start = tail.as_ref().map_or(offset, |tail| tail.start);
        let mut mapped = Mapped::new();
        let mut pieces = cut.pieces.iter().zip(&cut.fingerprints);
        let mut grown = None;
        if let Some(tail) = tail.as_ref().filter(|tail| tail.is_growing) {
            let (piece, fingerprint) = pieces.next().expect("a request that goes on has bytes");
            match self.go_on(tail, piece, fingerprint, &mut claims)? {
                GoesOn::Elsewhere(chunk) => mapped.push((start, whole_extent(chunk, &piece.bytes))),
                GoesOn::Grown(longer) => {
                    mapped.push((offset, longer.new_extent()));
                    (start, grown) = (offset, Some(longer));
                }
            }
        }
        let rest: Vec<ToPack<'_>> = pieces.map(|(piece, fingerprint)| to_pack(piece, *fingerprint)).collect();
        let rest_start = mapped.last().map_or(start, |(at, extent)| at + extent.length);
        self.pack(rest_start, &rest, &mut mapped, &mut claims)?;
        self.publish(inode, &mut *state, &Remap::new(&(start..end), &mapped, stamp), None, &mut claims)?;
        drop(claims);
        let piece = cut.pieces.last().expect("a request has bytes");
        if let Some(grown) = grown.filter(|_| cut.pieces[0].is_whole) {
            let start = offset - grown.length;
            let whole = whole_extent(grown.chunk, &cut.pieces[0].bytes);
            self.find_from_now_on(inode, state, (start, whole), &cut.fingerprints[0], policy);
        }
        if !piece.is_whole {
            let start = end - piece.bytes.len() as u64;
            // Not what was mapped: another writer may have stored an equal chunk first.
            let Some(chunk) = packed_at(state, start) else { return Ok(()) };
            // Who went on once goes on: see `Cut::new`.
            let is_growing = tail.is_some();
            let bytes = piece.bytes.to_vec();
            cut.stream.tail = Some(Tail { start, bytes, chunk, is_growing, drops: state.drops });
        }
        Ok(())
    }

    /// Whether what is written to this range is updated data (DeEXT III-C): it takes the place of what the file names there,
    /// or of what it named before it was truncated, a minute ago at most.
    pub(super) fn is_update(&self, state: &State, range: Range<u64>) -> bool {
        let is_named = |extents: &Extents| extents.within(range.start, range.end).next().is_some();
        let is_recent = |truncated: TimeNs| self.now().saturating_sub(truncated) <= UPDATED_WITHIN;
        state.extents().is_some_and(is_named) || state.truncated.is_some_and(is_recent)
    }

    /// Writes as policy `inline` does, where packed chunks have no room.
    fn write_to_blocks(&self, inode: &Inode, state: &mut State, offset: u64, data: &[u8]) -> Result<()> {
        let policy = self.policies.of_blocks();
        let mut pieces = whole_pieces(policy, offset, data)?;
        let mut claims = Claims::with_compression(self, policy, self.compression_for(inode));
        self.write_locked(inode, state, offset, data, &mut pieces, &mut claims)
    }

    /// Places the first piece of a request, which goes on with a tail.
    fn go_on(
        &self,
        tail: &Tail,
        piece: &CutPiece<'_>,
        fingerprint: &Fingerprint,
        claims: &mut Claims<'_>,
    ) -> Result<GoesOn> {
        if piece.is_whole {
            let mut own = [Piece::new(&piece.bytes, *fingerprint)];
            claims.policy.place(&mut own, &mut claims.tx);
            let [Piece { place, .. }] = own;
            if let Place::Shared(reference) = place {
                return Ok(GoesOn::Elsewhere(claims.keep_packed(reference)));
            }
        }
        match self.grow_tail(tail, &piece.bytes, claims)? {
            Some(grown) => Ok(GoesOn::Grown(grown)),
            None => self.store_packed(&to_pack(piece, *fingerprint), 1, claims).map(GoesOn::Elsewhere),
        }
    }

    /// Makes the chunk of a tail hold all of its piece. `None` if it cannot: another chunk lies behind it, or a clone
    /// names it too. A chunk that the file has alone stays so: no index knows it.
    fn grow_tail(&self, tail: &Tail, piece: &[u8], claims: &mut Claims<'_>) -> Result<Option<Grown>> {
        if self.sound_count(tail.chunk) != Some(1) {
            return Ok(None);
        }
        let (length, longer) = (tail.bytes.len() as u64, piece.len() as u64);
        claims.pin();
        let Some(address) = self.chunks.plain_address(tail.chunk) else { return Ok(None) };
        let is_last = self.space.grow_packed(tail.chunk, address, length, longer, &mut claims.tx.flight);
        if !is_last {
            return Ok(None);
        }
        let grown = Grown { chunk: tail.chunk, address, length, longer };
        claims.grow(grown);
        // The plan takes this one back: the extent is merged with that of the tail.
        claims.share_packed(tail.chunk)?;
        claims.tx.flight.add(self.region.stream(address + length, &piece[length as usize..]));
        Ok(Some(grown))
    }

    /// How often a chunk is named, as far as its entry can be read and changed.
    fn sound_count(&self, chunk: PackedNumber) -> Option<u32> {
        let count = self.chunks.count(chunk);
        self.region.sound_or_forget(self.chunks.entry_offset(chunk), ENTRY_BYTES).then_some(count)
    }

    /// Shares or stores pieces, and adds what the file names from `offset` on to `mapped`.
    pub(super) fn pack(
        &self,
        offset: u64,
        pieces: &[ToPack<'_>],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let mut asked: Vec<Piece<'_>> = pieces.iter().map(|piece| Piece::new(piece.bytes, piece.fingerprint)).collect();
        mark_twins(&mut asked);
        self.place_packed(&mut asked, claims);
        let mut fresh = SmallVec::new();
        let decisions = decide(&mut asked, &mut fresh, claims, Claims::keep_packed);
        for fresh in &mut fresh {
            fresh.chunk = Some(self.store_packed(&pieces[fresh.at], fresh.count, claims)?);
        }
        let mut at = offset;
        for (piece, decision) in pieces.iter().zip(decisions) {
            mapped.push((at, whole_extent(decision.chunk(&fresh), piece.bytes)));
            at += piece.bytes.len() as u64;
        }
        Ok(())
    }

    /// Asks for pieces that are to be named by one extent each.
    pub(super) fn place_packed(&self, asked: &mut [Piece<'_>], claims: &mut Claims<'_>) {
        match claims.policy.streams() {
            Some(_) => claims.policy.place(asked, &mut claims.tx),
            None => self.policies.place_ends(asked, &mut claims.tx),
        }
    }

    /// Packs the last bytes of a file of `size` bytes, those behind its last whole block: `part`, at file offset `offset`,
    /// is new and the rest is as the file has it.
    pub(super) fn pack_end(
        &self,
        extents: &Extents,
        offset: u64,
        part: &[u8],
        size: u64,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let mut bytes = vec![0; (size - offset / BLOCK_BYTES * BLOCK_BYTES) as usize];
        let (start, fingerprint) = self.patch(extents, offset, part, &mut bytes, claims.policy)?;
        claims.is_update = extents.within(start, size).next().is_some();
        let pool = Pool::ContentDefined;
        let piece = ToPack { bytes: &bytes, pool, class: CLASS_END, fingerprint, grows: false };
        self.pack(start, &[piece], mapped, claims)
    }

    /// Stores a new packed chunk that `count` extents will name.
    pub(super) fn store_packed(&self, piece: &ToPack<'_>, count: u32, claims: &mut Claims<'_>) -> Result<PackedNumber> {
        // What grows in its place is stored as it is.
        let is_tried = !piece.grows && may_compress(piece.class);
        let frame = if is_tried { claims.compression.compress(piece.bytes) } else { None };
        self.store_packed_as(piece, frame.as_deref().unwrap_or(piece.bytes), count, claims)
    }

    /// Stores a new packed chunk whose bytes on the media are its content or the frame of that.
    pub(super) fn store_packed_as(
        &self,
        piece: &ToPack<'_>,
        stored: &[u8],
        count: u32,
        claims: &mut Claims<'_>,
    ) -> Result<PackedNumber> {
        let bytes = PackedBytes { stored: stored.len() as u64, content: piece.bytes.len() as u64 };
        let compressed = if bytes.is_compressed() { COMPRESSED_CHUNKS } else { 0 };
        self.require_feature(PACKED_CHUNKS | compressed)?;
        let number = self.chunks.packed.take(&self.region, &self.space)?;
        let free = |_: &Error| self.chunks.packed.free(number);
        let pool = if claims.is_update { piece.pool.updated() } else { piece.pool };
        claims.pin();
        let address = self.space.append(pool, number, bytes, &mut claims.tx.flight).inspect_err(free)?;
        // The entry first: an atomic operation behind the stream would wait until it has drained.
        claims.enter_packed(&NewPacked { number, address, bytes, class: piece.class }, count, &piece.fingerprint);
        claims.tx.flight.add(self.region.stream(address, stored));
        Ok(number)
    }

    /// A chunk that grew is whole, and the file names all of it `at` an offset: gives it its fingerprint, for it is durable
    /// now, and others may share it.
    fn find_from_now_on(
        &self,
        inode: &Inode,
        state: &mut State,
        at: (u64, Extent),
        fingerprint: &Fingerprint,
        policy: &dyn Dedup,
    ) {
        let chunk = at.1.packed().expect("a packed chunk");
        if self.sound_count(chunk).is_none() {
            return;
        }
        let mut flight = Flight::new();
        self.chunks.set_fingerprint(chunk, fingerprint, &mut flight);
        let _ = self.region.fence(flight);
        if !policy.published(chunk.into(), fingerprint, &[], &self.chunks) {
            self.merge_concurrent(inode, state, &[at], &[(chunk.into(), *fingerprint)], policy);
        }
    }

    /// A stream is over: nobody goes on with its tail, so others may find it, or it is given up for an equal piece.
    pub(crate) fn end_stream_of(&self, ino: u64, stream: Stream) -> Result<()> {
        let Some(tail) = stream.tail.filter(|tail| tail.is_growing) else { return Ok(()) };
        let Ok(inode) = self.inode(ino) else { return Ok(()) };
        let policy = self.policy_for(&inode);
        let fingerprint = policy.fingerprint(&tail.bytes);
        let Ok(mut state) = inode.write() else { return Ok(()) };
        if !names_tail(&state, &tail) || policy.streams().is_none() {
            return Ok(());
        }
        if !self.chunks.equal(tail.chunk, &tail.bytes) {
            // Nobody had it open: the number may be another file's by now, and the chunk another one too.
            return Ok(());
        }
        let mut claims = Claims::with_policy(self, policy);
        let mut own = [Piece::new(&tail.bytes, fingerprint)];
        policy.place(&mut own, &mut claims.tx);
        let [Piece { place, .. }] = own;
        let Place::Shared(reference) = place else {
            drop(claims);
            let at = (tail.start, whole_extent(tail.chunk, &tail.bytes));
            self.find_from_now_on(&inode, &mut state, at, &fingerprint, policy);
            return Ok(());
        };
        let mapped = [(tail.start, whole_extent(claims.keep_packed(reference), &tail.bytes))];
        let range = tail.start..tail.start + tail.bytes.len() as u64;
        let remap = Remap::new(&range, &mapped, Stamp::Kept);
        if_there_is_room(self.publish(&inode, &mut *state, &remap, None, &mut claims))
    }

    /// Ends all streams of a policy, for an unmount.
    pub(crate) fn end_streams(&self) {
        let Some(streams) = self.policies.streams() else { return };
        while let Some((file, stream)) = streams.take_any() {
            // What is not shared now stays as it is: nothing is lost.
            let _ = self.end_stream_of(file, stream);
        }
    }

    /// Ends the stream of a file: nobody has it open any more.
    pub(crate) fn end_stream_of_file(&self, ino: u64) -> Result<()> {
        let stream = self.policies.streams().and_then(|streams| streams.take(ino));
        stream.map_or(Ok(()), |stream| self.end_stream_of(ino, stream))
    }
}

/// Work that nobody waits for: without room for it everything stays as it is.
pub(super) fn if_there_is_room(done: Result<()>) -> Result<()> {
    match done {
        Err(Error::NoSpace { .. }) => Ok(()),
        done => done,
    }
}

/// What became of the first piece of a request that goes on with a tail.
enum GoesOn {
    /// The chunk of the tail holds it.
    Grown(Grown),
    /// This chunk does, from the first byte of the tail on.
    Elsewhere(PackedNumber),
}

/// Whether chunks of a class are worth compressing: those that were cut by their content since they looked compressible,
/// and ends of files.
pub(super) fn may_compress(class: u8) -> bool {
    let chunker = || Chunker::ALL.get(usize::from(class).checked_sub(1)?);
    matches!(class, CLASS_END | CLASS_UNKNOWN) || chunker().is_some_and(|chunker| chunker.is_content_defined())
}

/// What names all of a packed chunk.
fn whole_extent(chunk: PackedNumber, bytes: &[u8]) -> Extent {
    Extent { length: bytes.len() as u64, location: Location::Packed(chunk, 0), unwritten: false }
}

fn to_pack<'p>(piece: &'p CutPiece<'_>, fingerprint: Fingerprint) -> ToPack<'p> {
    // What grows is not looked for: see `Cut::new`.
    let grows = fingerprint.is_empty();
    ToPack { bytes: &piece.bytes, pool: piece.pool(), class: piece.class(), fingerprint, grows }
}

/// Whether the file still names the tail of a stream, and nothing else there.
fn names_tail(state: &State, tail: &Tail) -> bool {
    let end = tail.start + tail.bytes.len() as u64;
    let first = |extents: &Extents| extents.within(tail.start, end).next();
    let whole = (tail.start, whole_extent(tail.chunk, &tail.bytes));
    state.drops == tail.drops && state.extents().and_then(first) == Some(whole)
}

/// The packed chunk whose first byte the file names at an offset.
fn packed_at(state: &State, offset: u64) -> Option<PackedNumber> {
    match state.extents()?.within(offset, offset + 1).next()? {
        (at, Extent { location: Location::Packed(chunk, 0), .. }) if at == offset => Some(chunk),
        _ => None,
    }
}

/// Whether the file names bytes on both sides of an offset.
fn is_inside(extents: &Extents, offset: u64) -> bool {
    offset > 0
        && extents.within(offset - 1, offset).next().is_some()
        && extents.within(offset, offset + 1).next().is_some()
}
