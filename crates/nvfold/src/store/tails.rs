//! The tail of a stream: the last piece of a request, which the next request may continue.

use super::Store;
use super::claims::{Claims, Grown};
use super::packed::whole_extent;
use super::placer::Placer;
use crate::dedup::NewChunk;
use crate::dedup::stream::Tail;
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::chunk_entry::{CLASS_UNKNOWN, check_length};
use crate::media::packed::PackedBytes;
use crate::media::{Location, PackedNumber};
use pmem::Flight;

impl Store {
    /// Extends the chunk of a tail in place so that it holds the whole piece. Returns `None` if another chunk follows
    /// it in the segment, or if a clone references it too. A growing chunk stays private, because it is in no index.
    pub(crate) fn grow_tail(&self, tail: &Tail, piece: &[u8], claims: &mut Claims<'_>) -> Result<Option<Grown>> {
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
        let is_last = self.space.grow_packed(tail.chunk, address, length, longer, claims.flight());
        if !is_last {
            return Ok(None);
        }
        let grown = Grown { chunk: tail.chunk, address, length, longer };
        claims.grow(grown);
        // The plan drops this reference again when it merges the new extent with that of the tail.
        claims.share_packed(tail.chunk)?;
        claims.stream(address + length, &piece[length as usize..]);
        Ok(Some(grown))
    }

    /// Gives a complete grown chunk its fingerprint and indexes it, so that other writers can share it. The chunk is
    /// durable, and `at` is the extent that maps all of it.
    pub(crate) fn index_grown_chunk(
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
        let new = NewChunk { chunk: chunk.into(), count: 1, fingerprint: *fingerprint };
        if !policy.published(&[new], &[], &self.chunks).is_empty() {
            self.merge_concurrent(inode, state, &[at], &[(chunk.into(), *fingerprint)], policy);
        }
    }
}

/// True if the file still maps the tail of a stream as it was published.
pub(crate) fn names_tail(state: &State, tail: &Tail) -> bool {
    let end = tail.start + tail.bytes.len() as u64;
    let first = |extents: &Extents| extents.within(tail.start, end).next();
    let whole = (tail.start, whole_extent(tail.chunk, &tail.bytes));
    state.drops == tail.drops && state.extents().and_then(first) == Some(whole)
}

/// Returns the packed chunk whose first byte the file maps at `offset`.
pub(crate) fn packed_at(state: &State, offset: u64) -> Option<PackedNumber> {
    match state.extents()?.within(offset, offset + 1).next()? {
        (at, Extent { location: Location::Packed(chunk, 0), .. }) if at == offset => Some(chunk),
        _ => None,
    }
}
