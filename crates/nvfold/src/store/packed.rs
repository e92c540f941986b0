//! Packed chunks: sharing or storing pieces of any length (DeEXT III-B).

use super::Store;
use super::blocks::fingerprint_of;
use super::claims::Claims;
use super::decide::{decide, mark_duplicates};
use super::remap::Mapped;
use super::zeros::becomes_hole;
use crate::chunk::packed::NewPacked;
use crate::chunking::Chunker;
use crate::dedup::Piece;
use crate::error::{Error, Offset, Result};
use crate::fingerprint::Fingerprint;
use crate::inode::State;
use crate::inode::extents::{Extent, Extents};
use crate::media::chunk_entry::{CLASS_END, CLASS_UNKNOWN, ENTRY_BYTES, check_length};
use crate::media::packed::PackedBytes;
use crate::media::superblock::{COMPRESSED_CHUNKS, PACKED_CHUNKS};
use crate::media::{BLOCK_BYTES, Location, PackedNumber};
use crate::space::packed::Pool;
use crate::words::TimeNs;
use smallvec::SmallVec;
use std::ops::Range;

/// A write within this time (in ns) after a truncation counts as an update of the truncated content.
const UPDATED_WITHIN: TimeNs = 60_000_000_000;

/// A piece that one extent will map.
pub(crate) struct ToPack<'d> {
    pub(crate) bytes: &'d [u8],
    pub(crate) pool: Pool,
    pub(crate) class: u8,
    /// If it is empty, the piece is not looked up and not indexed.
    pub(crate) fingerprint: Fingerprint,
    /// True if more bytes will be appended to the chunk in place.
    pub(crate) grows: bool,
}

impl Store {
    /// Returns the reference count of a chunk, or `None` if its entry is in bad memory.
    pub(super) fn sound_count(&self, chunk: PackedNumber) -> Option<u32> {
        let count = self.chunks.count(chunk);
        self.region.sound_or_forget(self.chunks.entry_offset(chunk), ENTRY_BYTES).then_some(count)
    }

    /// True if a write to this range is updated data (DeEXT III-C): it replaces existing extents, or it follows a
    /// truncation of the file within a minute.
    pub(crate) fn is_update(&self, state: &State, range: Range<u64>) -> bool {
        let is_named = |extents: &Extents| extents.within(range.start, range.end).next().is_some();
        let is_recent = |truncated: TimeNs| self.now().saturating_sub(truncated) <= UPDATED_WITHIN;
        state.extents().is_some_and(is_named) || state.truncated.is_some_and(is_recent)
    }

    /// Shares or stores pieces, each for a file offset, and adds the resulting extents to `mapped`.
    pub(crate) fn pack(
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
        match claims.policy().streams() {
            Some(_) => claims.place(asked),
            None => self.policies.place_ends(asked, claims.transaction()),
        }
    }

    /// Packs the end of a file of `size` bytes, which is what follows its last whole block. `part` is its new content
    /// from file offset `offset` on, the rest comes from the file. Zeros are not mapped.
    pub(crate) fn pack_end(
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
        if becomes_hole(claims.policy(), &bytes) {
            return Ok(());
        }
        let fingerprint = fingerprint_of(claims.policy(), &bytes);
        claims.set_update(extents.within(start, size).next().is_some());
        let pool = Pool::ContentDefined;
        let piece = ToPack { bytes: &bytes, pool, class: CLASS_END, fingerprint, grows: false };
        self.pack(&[(start, piece)], mapped, claims)
    }

    /// Stores a new packed chunk that `count` extents will map, compressed if that is worth it.
    pub(crate) fn store_packed(&self, piece: &ToPack<'_>, count: u32, claims: &mut Claims<'_>) -> Result<PackedNumber> {
        // A chunk that grows in place is stored uncompressed.
        let is_tried = !piece.grows && may_compress(piece.class);
        let frame = if is_tried { claims.compression().compress(piece.bytes) } else { None };
        self.store_packed_as(piece, frame.as_deref().unwrap_or(piece.bytes), count, claims)
    }

    /// Stores a new packed chunk. `stored` is what goes to the media: the content, or its compressed frame.
    pub(crate) fn store_packed_as(
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
        let pool = if claims.is_update() { piece.pool.updated() } else { piece.pool };
        claims.pin();
        let address = self.space.append(pool, number, bytes, claims.flight()).inspect_err(free)?;
        self.check_place(address, bytes.stored).inspect_err(free)?;
        // The entry goes first: an atomic operation after the non-temporal stores would wait until they have drained.
        claims.enter_packed(&NewPacked { number, address, bytes, class: piece.class }, count, &piece.fingerprint);
        claims.stream(address, stored);
        Ok(number)
    }
}

/// True if chunks of this class are worth compressing: those that were cut by content because the data looked
/// compressible, and ends of files.
pub(crate) fn may_compress(class: u8) -> bool {
    let chunker = || Chunker::from_number(class.checked_sub(1)?);
    matches!(class, CLASS_END | CLASS_UNKNOWN) || chunker().is_some_and(|chunker| chunker.is_content_defined())
}

/// Returns the extent that maps all of a packed chunk.
pub(crate) fn whole_extent(chunk: PackedNumber, bytes: &[u8]) -> Extent {
    Extent { length: bytes.len() as u64, location: Location::Packed(chunk, 0), unwritten: false }
}
