//! Writing data that is cut into pieces and stored as packed chunks (DeEXT III-B).
//!
//! The problem: a piece has any length and begins anywhere in the file. The last piece of a request may not be
//! complete, and the device may have no room for another segment of packed chunks.
//!
//! The idea: the stream decides where pieces end ([`crate::dedup::stream`]). This module shares or stores the pieces
//! and publishes extents for exactly the bytes that were written. A piece that continues the tail of the previous
//! request replaces the tail in the same commit:
//!
//! ```text
//! the tail       the piece            what the file names then
//! grows          is new               the same chunk, longer, in its place; only the new bytes are written
//! any            is stored elsewhere  that chunk, from the first byte of the tail on; the tail's own is dropped
//! is found       is new               a new chunk, from the first byte of the tail on; the tail's own is dropped
//! ```
//!
//! A run of at least 4 KiB of zeros is not stored, nor is a request of zeros alone that continues nothing: they become
//! holes (see `zeros`).
//!
//! If no segment is free, the request is written to blocks, as under policy `inline`.

use super::Core;
use super::cache::file_id;
use super::claims::{Claims, Grown};
use super::decide::{decide, mark_duplicates};
use super::effort::Effort;
use super::policy::Placer;
use super::publish::{Mapped, Remap, Stamp};
use super::write::{Whole, fingerprint_of, look_at_whole};
use super::zeros::becomes_hole;
use crate::chunk::packed::NewPacked;
use crate::chunking::{Chunker, ZeroRanges, is_zero, trailing_zeros, zero_runs};
use crate::dedup::stream::{CutPiece, Stream, Tail};
use crate::dedup::streams::{Seam, Streams};
use crate::dedup::{Piece, Place};
use crate::error::{Error, Offset, Result};
use crate::fingerprint::Fingerprint;
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::chunk_entry::{CLASS_END, CLASS_UNKNOWN, ENTRY_BYTES, check_length};
use crate::media::packed::PackedBytes;
use crate::media::superblock::{COMPRESSED_CHUNKS, PACKED_CHUNKS};
use crate::media::{BLOCK_BYTES, Location, PackedNumber};
use crate::panics::Job;
use crate::space::packed::Pool;
use crate::words::{FileId, TimeNs, Times};
use pmem::Flight;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// A write within this time (in ns) after a truncation counts as an update of the truncated content.
const UPDATED_WITHIN: TimeNs = 60_000_000_000;

/// A piece that one extent will map.
pub(super) struct ToPack<'d> {
    pub(super) bytes: &'d [u8],
    pub(super) pool: Pool,
    pub(super) class: u8,
    /// If it is empty, the piece is not looked up and not indexed.
    pub(super) fingerprint: Fingerprint,
    /// True if more bytes will be appended to the chunk in place.
    pub(super) grows: bool,
}

/// A request that was cut into pieces.
pub(super) struct Cut<'d> {
    /// The stream, as it continues after this request.
    stream: Stream,
    /// The tail with which the first piece begins, if the stream continues.
    tail: Option<Tail>,
    /// The stream so far, if the request begins with a hole and does not continue it.
    ended: Option<Stream>,
    /// The pieces, in order. There may be holes between them.
    pub(super) pieces: Vec<CutPiece<'d>>,
    fingerprints: Vec<Fingerprint>,
    /// Number of bytes that become holes.
    zero_bytes: u64,
}

impl<'d> Cut<'d> {
    /// Cuts what is written, and leaves out zeros.
    pub(super) fn of_request(stream: Stream, data: &'d [u8], policy: Placer<'_>) -> Cut<'d> {
        let zeros: ZeroRanges = match &stream.tail {
            _ if policy.keeps_zeros() => ZeroRanges::new(),
            None if is_zero(data) => smallvec![0..data.len()],
            tail => zero_runs(data, tail.as_ref().map_or(0, |tail| trailing_zeros(&tail.bytes))),
        };
        Cut::around(&zeros, stream, data, policy)
    }

    /// Cuts all of some stored data.
    pub(super) fn of_stored(stream: Stream, data: &'d [u8], policy: Placer<'_>) -> Cut<'d> {
        Cut::around(&[], stream, data, policy)
    }

    /// Cuts the data between these runs of zeros.
    fn around(zeros: &[Range<usize>], mut stream: Stream, data: &'d [u8], policy: Placer<'_>) -> Cut<'d> {
        let start = stream.end();
        let mut ended = None;
        if zeros.first().is_some_and(|first| first.start == 0) {
            let begun = stream.begun_at(start);
            ended = Some(std::mem::replace(&mut stream, begun));
        }
        let tail = stream.tail.take();
        let (mut pieces, mut at): (Vec<CutPiece<'_>>, usize) = (Vec::new(), 0);
        for zeros in zeros {
            pieces.extend(stream.cut(&data[at..zeros.start], tail.as_ref().filter(|_| at == 0)));
            if let Some(last) = pieces.last_mut() {
                last.is_whole = true;
            }
            at = zeros.end;
            stream = stream.begun_at(start + at as u64);
        }
        pieces.extend(stream.cut(&data[at..], tail.as_ref().filter(|_| at == 0)));
        // A stream that continued once will probably do so again, so its tail is not looked up before its piece is
        // complete.
        let grows = |piece: &CutPiece<'_>| !piece.is_whole && tail.is_some();
        let fingerprint = |piece: &CutPiece<'_>| match grows(piece) {
            true => Fingerprint::default(),
            false => policy.fingerprint(&piece.bytes),
        };
        let fingerprints = pieces.iter().map(fingerprint).collect();
        let zero_bytes = zeros.iter().map(|zeros| zeros.len() as u64).sum();
        Cut { stream, tail, ended, pieces, fingerprints, zero_bytes }
    }

    /// Returns the first `count` pieces, with their file offsets.
    pub(super) fn first(&self, count: usize) -> Vec<(u64, ToPack<'_>)> {
        let pieces = self.pieces.iter().zip(&self.fingerprints).take(count);
        pieces.map(|(piece, fingerprint)| (piece.start, to_pack(piece, *fingerprint))).collect()
    }
}

impl Core {
    /// Writes all of `data` at offset `at`, or at the end of the file if it is `None`, cut by the streams of a
    /// policy. Returns the offset.
    pub(super) fn write_stream(
        &self,
        inode: &Inode,
        at: Option<u64>,
        data: &[u8],
        policy: Placer<'_>,
        streams: &Streams,
        times: Times,
        effort: &Effort,
    ) -> Result<u64> {
        // The offset of an append is only known under the lock. A wrong guess merely costs cutting the data again.
        let guess = at.unwrap_or_else(|| inode.peek().attributes.size);
        super::range::range_end("write", guess, data.len() as u64)?;
        let file = file_id(inode);
        let before = streams.take(file);
        let goes_on = before.as_ref().is_some_and(|stream| stream.end() == guess);
        let (stream, ended) = if goes_on { (before, None) } else { (None, before) };
        let mut cut = Cut::of_request(stream.unwrap_or_else(|| streams.begin(guess)), data, policy);
        let ended = ended.or_else(|| cut.ended.take());
        let mut state = inode.write()?;
        let offset = at.unwrap_or(state.attributes.size);
        super::range::range_end("write", offset, data.len() as u64)?;
        let is_right = offset == guess
            && policy.domain() == inode.domain()
            && cut.tail.as_ref().is_none_or(|tail| names_tail(&state, tail));
        let policy = policy.with_domain_of(inode);
        if !is_right {
            cut = Cut::of_request(streams.begin(offset), data, policy);
        }
        let is_seam = !goes_on || !is_right;
        let mut over = Vec::new();
        let mut written = self.write_cut(inode, &mut state, offset, data, &mut cut, policy, times);
        while matches!(written, Err(Error::NoSpace { .. })) && self.reclaim_segment(effort) {
            cut = Cut::of_request(streams.begin(offset), data, policy);
            written = self.write_cut(inode, &mut state, offset, data, &mut cut, policy, times);
        }
        let zero_bytes = cut.zero_bytes;
        match written {
            Ok(()) => over = streams.keep(file, cut.stream),
            Err(Error::NoSpace { .. }) => {
                // The packed segments that the attempt opened are empty again, so blocks can use them.
                self.give_up_empty_packed();
                self.write_to_blocks(inode, &mut state, offset, data, policy, times)?;
            }
            Err(error) => return Err(error),
        }
        if is_seam {
            let end = offset + data.len() as u64;
            let extents = self.file_extents(&state, "write")?;
            let seams = [offset, end].into_iter().filter(|seam| is_inside(extents, *seam));
            seams.for_each(|offset| streams.add_seam(Seam { file, offset }));
        }
        drop(state);
        over.extend(ended.map(|stream| (file, stream)));
        over.into_iter().try_for_each(|(file, stream)| self.end_stream_of(file, stream))?;
        policy.request_done(data.len() as u64 - zero_bytes, &self.ground());
        Ok(offset)
    }

    fn write_cut(
        &self,
        inode: &Inode,
        state: &mut State,
        offset: u64,
        data: &[u8],
        cut: &mut Cut<'_>,
        policy: Placer<'_>,
        times: Times,
    ) -> Result<()> {
        self.file_extents(state, "write")?;
        let end = offset + data.len() as u64;
        let size = state.attributes.size.max(end);
        let mut claims = Claims::of_write(self, inode, policy, times);
        claims.is_update = self.is_update(state, offset..end);
        let tail = cut.tail.take();
        let mut start = tail.as_ref().map_or(offset, |tail| tail.start);
        let mut mapped = Mapped::new();
        let mut pieces = cut.pieces.iter().zip(&cut.fingerprints);
        let mut grown = None;
        if let Some(tail) = tail.as_ref().filter(|tail| tail.is_growing) {
            let (piece, fingerprint) = pieces.next().expect("a request that goes on begins with a piece");
            match self.go_on(tail, piece, fingerprint, &mut claims)? {
                GoesOn::Elsewhere(chunk) => mapped.push((start, whole_extent(chunk, &piece.bytes))),
                GoesOn::Grown(longer) => {
                    mapped.push((offset, longer.new_extent()));
                    (start, grown) = (offset, Some(longer));
                }
            }
        }
        let rest: Vec<(u64, ToPack<'_>)> =
            pieces.map(|(piece, fingerprint)| (piece.start, to_pack(piece, *fingerprint))).collect();
        self.pack(&rest, &mut mapped, &mut claims)?;
        self.publish_written(inode, state, start..end, &mapped, size, &mut claims)?;
        drop(claims);
        let Some(piece) = cut.pieces.last() else { return Ok(()) };
        if let Some(grown) = grown.filter(|_| cut.pieces[0].is_whole) {
            let start = offset - grown.length;
            let whole = whole_extent(grown.chunk, &cut.pieces[0].bytes);
            self.index_grown_chunk(inode, state, (start, whole), &cut.fingerprints[0], policy);
        }
        if !piece.is_whole {
            let start = end - piece.bytes.len() as u64;
            // Read the chunk from the extents: it is not the mapped one if another writer stored an equal chunk
            // first.
            let Some(chunk) = packed_at(state, start) else { return Ok(()) };
            // A stream that continued once is expected to continue: see `Cut::around`.
            let is_growing = tail.is_some();
            let bytes = piece.bytes.to_vec();
            cut.stream.tail = Some(Tail { start, bytes, chunk, is_growing, drops: state.drops });
        }
        Ok(())
    }

    /// True if a write to this range is updated data (DeEXT III-C): it replaces existing extents, or it follows a
    /// truncation of the file within a minute.
    pub(super) fn is_update(&self, state: &State, range: Range<u64>) -> bool {
        let is_named = |extents: &Extents| extents.within(range.start, range.end).next().is_some();
        let is_recent = |truncated: TimeNs| self.now().saturating_sub(truncated) <= UPDATED_WITHIN;
        state.extents().is_some_and(is_named) || state.truncated.is_some_and(is_recent)
    }

    /// Writes a request to blocks, as policy `inline` does, when there is no room for packed chunks.
    fn write_to_blocks(
        &self,
        inode: &Inode,
        state: &mut State,
        offset: u64,
        data: &[u8],
        policy: Placer<'_>,
        times: Times,
    ) -> Result<()> {
        let policy = policy.with(self.policies.of_blocks());
        let mut whole = Whole::default();
        look_at_whole(policy, offset, data, &mut whole)?;
        let mut claims = Claims::of_write(self, inode, policy, times);
        self.write_locked(inode, state, offset, data, &mut whole, &mut claims)
    }

    /// Places the first piece of a request, which continues a tail.
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

    /// Extends the chunk of a tail in place so that it holds the whole piece. Returns `None` if another chunk follows
    /// it in the segment, or if a clone references it too. A growing chunk stays private, because it is in no index.
    pub(super) fn grow_tail(&self, tail: &Tail, piece: &[u8], claims: &mut Claims<'_>) -> Result<Option<Grown>> {
        if self.sound_count(tail.chunk) != Some(1) {
            return Ok(None);
        }
        let (length, longer) = (tail.bytes.len() as u64, piece.len() as u64);
        claims.pin();
        let Some(address) = self.chunks.plain_address(tail.chunk) else { return Ok(None) };
        self.check_entry(|| check_length(CLASS_UNKNOWN, PackedBytes::plain(longer)))?;
        if !self.geometry.holds_data(address, longer) {
            // The last segment ends before that.
            return Ok(None);
        }
        let is_last = self.space.grow_packed(tail.chunk, address, length, longer, &mut claims.tx.flight);
        if !is_last {
            return Ok(None);
        }
        let grown = Grown { chunk: tail.chunk, address, length, longer };
        claims.grow(grown);
        // The plan drops this reference again when it merges the new extent with that of the tail.
        claims.share_packed(tail.chunk)?;
        claims.tx.flight.add(self.region.stream(address + length, &piece[length as usize..]));
        Ok(Some(grown))
    }

    /// Returns the reference count of a chunk, or `None` if its entry is in bad memory.
    fn sound_count(&self, chunk: PackedNumber) -> Option<u32> {
        let count = self.chunks.count(chunk);
        self.region.sound_or_forget(self.chunks.entry_offset(chunk), ENTRY_BYTES).then_some(count)
    }

    /// Shares or stores pieces, each for a file offset, and adds the resulting extents to `mapped`.
    pub(super) fn pack(
        &self,
        pieces: &[(u64, ToPack<'_>)],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let asked = pieces.iter().map(|(_, piece)| Piece::new(piece.bytes, piece.fingerprint));
        let mut asked: Vec<Piece<'_>> = asked.collect();
        mark_duplicates(&mut asked);
        self.place_packed(&mut asked, claims);
        let mut fresh = SmallVec::new();
        let decisions = decide(&mut asked, &mut fresh, claims, Claims::keep_packed);
        for fresh in &mut fresh {
            fresh.chunk = Some(self.store_packed(&pieces[fresh.at].1, fresh.count, claims)?);
        }
        for ((offset, piece), decision) in pieces.iter().zip(decisions) {
            mapped.push((*offset, whole_extent(decision.chunk(&fresh), piece.bytes)));
        }
        Ok(())
    }

    /// Looks up pieces, each of which one extent will map.
    pub(super) fn place_packed(&self, asked: &mut [Piece<'_>], claims: &mut Claims<'_>) {
        match claims.policy.streams() {
            Some(_) => claims.policy.place(asked, &mut claims.tx),
            None => self.policies.place_ends(asked, &mut claims.tx),
        }
    }

    /// Packs the end of a file of `size` bytes, which is what follows its last whole block. `part` is its new content
    /// from file offset `offset` on, the rest comes from the file. Zeros are not mapped.
    pub(super) fn pack_end(
        &self,
        extents: &Extents,
        offset: u64,
        part: &[u8],
        size: u64,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let mut bytes = vec![0; size.since(offset / BLOCK_BYTES * BLOCK_BYTES)? as usize];
        let start = self.patch(extents, offset, part, &mut bytes)?;
        if becomes_hole(claims.policy, &bytes) {
            return Ok(());
        }
        let fingerprint = fingerprint_of(claims.policy, &bytes);
        claims.is_update = extents.within(start, size).next().is_some();
        let pool = Pool::ContentDefined;
        let piece = ToPack { bytes: &bytes, pool, class: CLASS_END, fingerprint, grows: false };
        self.pack(&[(start, piece)], mapped, claims)
    }

    /// Stores a new packed chunk that `count` extents will map, compressed if that is worth it.
    pub(super) fn store_packed(&self, piece: &ToPack<'_>, count: u32, claims: &mut Claims<'_>) -> Result<PackedNumber> {
        // A chunk that grows in place is stored uncompressed.
        let is_tried = !piece.grows && may_compress(piece.class);
        let frame = if is_tried { claims.compression.compress(piece.bytes) } else { None };
        self.store_packed_as(piece, frame.as_deref().unwrap_or(piece.bytes), count, claims)
    }

    /// Stores a new packed chunk. `stored` is what goes to the media: the content, or its compressed frame.
    pub(super) fn store_packed_as(
        &self,
        piece: &ToPack<'_>,
        stored: &[u8],
        count: u32,
        claims: &mut Claims<'_>,
    ) -> Result<PackedNumber> {
        let bytes = PackedBytes { stored: stored.len() as u64, content: piece.bytes.len() as u64 };
        self.check_entry(|| check_length(piece.class, bytes))?;
        let compressed = if bytes.is_compressed() { COMPRESSED_CHUNKS } else { 0 };
        self.require_feature(PACKED_CHUNKS | compressed)?;
        let number = self.chunks.packed.take(&self.region, &self.space)?;
        let free = |_: &Error| self.chunks.packed.free(number);
        let pool = if claims.is_update { piece.pool.updated() } else { piece.pool };
        claims.pin();
        let address = self.space.append(pool, number, bytes, &mut claims.tx.flight).inspect_err(free)?;
        self.check_place(address, bytes.stored).inspect_err(free)?;
        // The entry goes first: an atomic operation after the non-temporal stores would wait until they have drained.
        claims.enter_packed(&NewPacked { number, address, bytes, class: piece.class }, count, &piece.fingerprint);
        claims.tx.flight.add(self.region.stream(address, stored));
        Ok(number)
    }

    /// Gives a complete grown chunk its fingerprint and indexes it, so that other writers can share it. The chunk is
    /// durable, and `at` is the extent that maps all of it.
    fn index_grown_chunk(
        &self,
        inode: &Inode,
        state: &mut State,
        at: (u64, Extent),
        fingerprint: &Fingerprint,
        policy: Placer<'_>,
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

    /// Ends a stream: indexes its tail, or replaces it by an equal piece that is already stored.
    pub(crate) fn end_stream_of(&self, file: FileId, stream: Stream) -> Result<()> {
        match self.contain(Job::EndStream, Some(file), || self.end_stream_now(file, stream)) {
            Err(Error::Panicked { .. }) => Ok(()),
            done => done,
        }
    }

    fn end_stream_now(&self, file: FileId, stream: Stream) -> Result<()> {
        let Some(tail) = stream.tail.filter(|tail| tail.is_growing) else { return Ok(()) };
        let Ok(Some(inode)) = self.inode_of(file) else { return Ok(()) };
        let policy = self.policy_for(&inode);
        let fingerprint = policy.fingerprint(&tail.bytes);
        let Ok(mut state) = inode.write() else { return Ok(()) };
        if policy.domain() != inode.domain() {
            // The owner has changed: the tail stays as it is.
            return Ok(());
        }
        if !names_tail(&state, &tail) || policy.streams().is_none() {
            return Ok(());
        }
        if !self.chunks.equal(tail.chunk, &tail.bytes) {
            // The file was closed, so the chunk number may have been reused.
            return Ok(());
        }
        let mut claims = Claims::with_policy(self, policy);
        let mut own = [Piece::new(&tail.bytes, fingerprint)];
        policy.place(&mut own, &mut claims.tx);
        let [Piece { place, .. }] = own;
        let Place::Shared(reference) = place else {
            drop(claims);
            let at = (tail.start, whole_extent(tail.chunk, &tail.bytes));
            self.index_grown_chunk(&inode, &mut state, at, &fingerprint, policy);
            return Ok(());
        };
        let mapped = [(tail.start, whole_extent(claims.keep_packed(reference), &tail.bytes))];
        let range = tail.start..tail.start.after(tail.bytes.len() as u64)?;
        let remap = Remap::new(&range, &mapped, Stamp::Kept);
        if_there_is_room(self.publish(&inode, &mut *state, &remap, None, &mut claims))
    }

    /// Ends the streams of all files, for an unmount.
    pub(crate) fn end_streams(&self) {
        let Some(streams) = self.policies.streams() else { return };
        while let Some((file, stream)) = streams.take_any() {
            // A tail that cannot be shared now stays as it is; no data is lost.
            let _ = self.end_stream_of(file, stream);
        }
    }

    /// Ends the stream of a file that was closed.
    pub(crate) fn end_stream_of_file(&self, inode: &Inode) -> Result<()> {
        let file = file_id(inode);
        let stream = self.policies.streams().and_then(|streams| streams.take(file));
        stream.map_or(Ok(()), |stream| self.end_stream_of(file, stream))
    }
}

/// Treats ENOSPC as success, for optional work after which nothing needs to have changed.
pub(super) fn if_there_is_room(done: Result<()>) -> Result<()> {
    match done {
        Err(Error::NoSpace { .. }) => Ok(()),
        done => done,
    }
}

/// How the first piece of a request that continues a tail was placed.
enum GoesOn {
    /// The chunk of the tail was extended.
    Grown(Grown),
    /// This other chunk holds the piece, from the first byte of the tail on.
    Elsewhere(PackedNumber),
}

/// True if chunks of this class are worth compressing: those that were cut by content because the data looked
/// compressible, and ends of files.
pub(super) fn may_compress(class: u8) -> bool {
    let chunker = || Chunker::ALL.get(usize::from(class).checked_sub(1)?);
    matches!(class, CLASS_END | CLASS_UNKNOWN) || chunker().is_some_and(|chunker| chunker.is_content_defined())
}

/// Returns the extent that maps all of a packed chunk.
fn whole_extent(chunk: PackedNumber, bytes: &[u8]) -> Extent {
    Extent { length: bytes.len() as u64, location: Location::Packed(chunk, 0), unwritten: false }
}

fn to_pack<'p>(piece: &'p CutPiece<'_>, fingerprint: Fingerprint) -> ToPack<'p> {
    // A piece that will grow is not looked up: see `Cut::around`.
    let grows = fingerprint.is_empty();
    ToPack { bytes: &piece.bytes, pool: piece.pool(), class: piece.class(), fingerprint, grows }
}

/// True if the file still maps the tail of a stream as it was published.
fn names_tail(state: &State, tail: &Tail) -> bool {
    let end = tail.start + tail.bytes.len() as u64;
    let first = |extents: &Extents| extents.within(tail.start, end).next();
    let whole = (tail.start, whole_extent(tail.chunk, &tail.bytes));
    state.drops == tail.drops && state.extents().and_then(first) == Some(whole)
}

/// Returns the packed chunk whose first byte the file maps at `offset`.
fn packed_at(state: &State, offset: u64) -> Option<PackedNumber> {
    match state.extents()?.within(offset, offset + 1).next()? {
        (at, Extent { location: Location::Packed(chunk, 0), .. }) if at == offset => Some(chunk),
        _ => None,
    }
}

/// True if the file maps the bytes on both sides of `offset`.
fn is_inside(extents: &Extents, offset: u64) -> bool {
    offset > 0
        && extents.within(offset - 1, offset).next().is_some()
        && extents.within(offset, offset + 1).next().is_some()
}
