//! Writing data that is cut into pieces and stored as packed chunks (DeEXT III-B).
//!
//! The problem: a piece has any length and begins anywhere in the file. The last piece of a request may not be
//! complete, and the device may have no room for another segment of packed chunks.
//!
//! The idea: the stream decides where pieces end ([`crate::dedup::stream`]). This plan shares or stores the pieces
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
//! If no segment is free, the request is written to blocks, as under policy `inline` ([`InBlocks`]).

use super::blocks::InBlocks;
use super::plan::Plan;
use crate::dedup::stream::{CutPiece, Stream, Tail};
use crate::dedup::streams::{Seam, Streams};
use crate::dedup::{Piece, Place};
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::inode::extents::Extents;
use crate::inode::{Inode, State};
use crate::media::PackedNumber;
use crate::store::Store;
use crate::store::claims::{Claims, Grown};
use crate::store::cut::{Cut, to_pack};
use crate::store::packed::{ToPack, whole_extent};
use crate::store::placer::{Placer, Rung};
use crate::store::remap::Mapped;
use crate::store::tails::{names_tail, packed_at};
use crate::words::FileId;
use smallvec::SmallVec;
use std::convert::Infallible;
use std::ops::Range;

/// Cuts a request into pieces, by the streams of its policy.
pub(super) struct InPieces<'d, 's> {
    data: &'d [u8],
    streams: &'s Streams,
    /// The stream of the file, until the request is cut first.
    before: Option<Stream>,
    /// The file offset for which the request is cut.
    offset: u64,
    cut: Option<Cut<'d>>,
    /// True if the request begins a stream, so that two parts of the file meet that were cut independently.
    is_seam: bool,
    /// The chunk of the tail, if the request extended it.
    grown: Option<Grown>,
    /// True if the request continued a tail.
    had_tail: bool,
    /// Number of bytes that become holes.
    zero_bytes: u64,
    /// Streams of the file that end with this request.
    over: SmallVec<[Stream; 1]>,
    /// Streams that must end because too many are open.
    others_over: Vec<(FileId, Stream)>,
    /// Where there is no room for packed chunks.
    blocks: InBlocks<'d>,
}

impl<'d, 's> InPieces<'d, 's> {
    /// Takes over the stream of a file, if it has one.
    pub(super) fn new(inode: &Inode, data: &'d [u8], streams: &'s Streams) -> InPieces<'d, 's> {
        InPieces {
            data,
            streams,
            before: streams.take(inode.file_id()),
            offset: 0,
            cut: None,
            is_seam: false,
            grown: None,
            had_tail: false,
            zero_bytes: 0,
            over: SmallVec::new(),
            others_over: Vec::new(),
            blocks: InBlocks::new(data),
        }
    }

    /// Returns the streams that have ended, for the caller to end when the file is not locked any more.
    pub(super) fn into_ended(self, inode: &Inode) -> impl Iterator<Item = (FileId, Stream)> {
        let own = inode.file_id();
        self.over.into_iter().map(move |stream| (own, stream)).chain(self.others_over)
    }

    /// Shares or stores the pieces, of which the first may continue a tail.
    fn place_pieces(
        &mut self,
        store: &Store,
        state: &State,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<Range<u64>> {
        let cut = self.cut.as_mut().expect("it was prepared");
        let (offset, end) = (self.offset, self.offset + self.data.len() as u64);
        claims.set_update(store.is_update(state, offset..end));
        let tail = cut.tail.take();
        let mut start = tail.as_ref().map_or(offset, |tail| tail.start);
        let mut pieces = cut.pieces.iter().zip(&cut.fingerprints);
        (self.grown, self.had_tail) = (None, tail.is_some());
        if let Some(tail) = tail.as_ref().filter(|tail| tail.is_growing) {
            let (piece, fingerprint) = pieces.next().expect("a request that goes on begins with a piece");
            match go_on(store, tail, piece, fingerprint, claims)? {
                GoesOn::Elsewhere(chunk) => mapped.push((start, whole_extent(chunk, &piece.bytes))),
                GoesOn::Grown(longer) => {
                    mapped.push((offset, longer.new_extent()));
                    (start, self.grown) = (offset, Some(longer));
                }
            }
        }
        let rest: Vec<(u64, ToPack<'_>)> =
            pieces.map(|(piece, fingerprint)| (piece.start, to_pack(piece, *fingerprint))).collect();
        store.pack(&rest, mapped, claims)?;
        Ok(start..end)
    }

    /// Keeps the stream with its new tail, for the next request.
    fn keep_stream(&mut self, store: &Store, inode: &Inode, state: &mut State, policy: Placer<'_>) {
        let mut cut = self.cut.take().expect("it was prepared");
        if let Some(grown) = self.grown.filter(|_| cut.pieces[0].is_whole) {
            let start = self.offset - grown.length;
            let whole = whole_extent(grown.chunk, &cut.pieces[0].bytes);
            store.index_grown_chunk(inode, state, (start, whole), &cut.fingerprints[0], policy);
        }
        if let Some(piece) = cut.pieces.last().filter(|piece| !piece.is_whole) {
            let start = self.offset + self.data.len() as u64 - piece.bytes.len() as u64;
            // Read the chunk from the extents: it is not the mapped one if another writer stored an equal chunk first.
            if let Some(chunk) = packed_at(state, start) {
                // A stream that continued once is expected to continue: see `Cut::around`.
                let (bytes, is_growing) = (piece.bytes.to_vec(), self.had_tail);
                cut.stream.tail = Some(Tail { start, bytes, chunk, is_growing, drops: state.drops });
            }
        }
        self.others_over = self.streams.keep(inode.file_id(), cut.stream);
    }
}

impl Plan for InPieces<'_, '_> {
    type Declined = Infallible;

    fn prepare(&mut self, store: &Store, offset: u64, policy: Placer<'_>) -> Result<()> {
        if policy.streams().is_none() {
            return self.blocks.prepare(store, offset, policy);
        }
        let before = self.before.take();
        let goes_on = before.as_ref().is_some_and(|stream| stream.end() == offset);
        let (stream, ended) = if goes_on { (before, None) } else { (None, before) };
        let mut cut = Cut::of_request(stream.unwrap_or_else(|| self.streams.begin(offset)), self.data, policy);
        self.over.extend(ended.or_else(|| cut.ended.take()));
        (self.offset, self.is_seam, self.zero_bytes, self.cut) = (offset, !goes_on, cut.zero_bytes, Some(cut));
        Ok(())
    }

    fn still_holds(&self, state: &State) -> bool {
        let tail = self.cut.as_ref().and_then(|cut| cut.tail.as_ref());
        tail.is_none_or(|tail| names_tail(state, tail))
    }

    fn place(
        &mut self,
        store: &Store,
        _inode: &Inode,
        state: &State,
        rung: Rung,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<std::result::Result<Range<u64>, Infallible>> {
        match rung {
            Rung::Packed => self.place_pieces(store, state, mapped, claims).map(Ok),
            Rung::Blocks => {
                let extents = store.file_extents(state, "write")?;
                self.blocks.place_whole(store, state, extents, mapped, claims).map(Ok)
            }
        }
    }

    fn published(&mut self, store: &Store, inode: &Inode, state: &mut State, rung: Rung, policy: Placer<'_>) {
        match rung {
            Rung::Packed => self.keep_stream(store, inode, state, policy),
            Rung::Blocks => self.blocks.published_whole(store, inode, state, policy),
        }
        if self.is_seam {
            let extents = state.extents();
            let is_inside = |seam: &u64| extents.is_some_and(|extents| is_inside(extents, *seam));
            let seams = [self.offset, self.offset + self.length()].into_iter().filter(is_inside);
            seams.for_each(|offset| self.streams.add_seam(Seam { file: inode.file_id(), offset }));
        }
    }

    fn length(&self) -> u64 {
        self.data.len() as u64
    }

    fn hole_bytes(&self) -> u64 {
        self.zero_bytes
    }
}

/// How the first piece of a request that continues a tail was placed.
enum GoesOn {
    /// The chunk of the tail was extended.
    Grown(Grown),
    /// This other chunk holds the piece, from the first byte of the tail on.
    Elsewhere(PackedNumber),
}

/// Places the first piece of a request, which continues a tail.
fn go_on(
    store: &Store,
    tail: &Tail,
    piece: &CutPiece<'_>,
    fingerprint: &Fingerprint,
    claims: &mut Claims<'_>,
) -> Result<GoesOn> {
    if piece.is_whole {
        let mut own = [Piece::new(&piece.bytes, *fingerprint)];
        claims.place(&mut own);
        let [Piece { place, .. }] = own;
        if let Place::Shared(reference) = place {
            return Ok(GoesOn::Elsewhere(claims.keep_packed(reference)));
        }
    }
    match store.grow_tail(tail, &piece.bytes, claims)? {
        Some(grown) => Ok(GoesOn::Grown(grown)),
        None => store.store_packed(&to_pack(piece, *fingerprint), 1, claims).map(GoesOn::Elsewhere),
    }
}

/// True if the file maps the bytes on both sides of `offset`.
fn is_inside(extents: &Extents, offset: u64) -> bool {
    offset > 0
        && extents.within(offset - 1, offset).next().is_some()
        && extents.within(offset, offset + 1).next().is_some()
}
