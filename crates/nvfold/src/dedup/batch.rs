//! The pieces of one request, and how a policy that goes by the index places them.
//!
//! The problem: looking one block up is a chain of cache misses, slot of the index, chunk entry, candidate, and a
//! request of 32 blocks that goes through the chain block by block waits for each of them.
//!
//! The idea: the pieces are placed together, in rounds, so that the misses of each overlap (Light-Dedup's speculative
//! prefetch does this for one block). The slots of all pieces are asked for. Then the first candidate of each piece is
//! looked up without a reference, and all entries and bytes of these are asked for at once: a wrong guess costs nothing
//! else. Then each piece takes a reference on its candidate, and then they are compared, which the references make safe.
//! A candidate that differs is given back and the next one is looked for. All but the first round take a few pieces at a
//! time, whose candidates fit into the processor's caches: what one round touched is there for the next.

use super::policy::{Policy, PolicyStats};
use crate::chunk::Chunks;
use crate::chunk::reference::Reference;
use crate::chunk::sight::Sight;
use crate::chunk::transaction::Transaction;
use crate::fingerprint::Fingerprint;
use crate::media::ChunkRef;
use crate::padded::Sum;
use crate::sync::atomic::{AtomicU64, Ordering};
use smallvec::SmallVec;

/// Pieces whose candidates are fetched and compared together: 32 KiB of them.
const GROUP: usize = 8;

/// How a policy searches the index.
pub(super) struct Search<'s> {
    /// Counts candidates that differed.
    pub(super) collisions: &'s AtomicU64,
    /// Which chunks are candidates.
    pub(super) fits: fn(&ChunkRef) -> bool,
    /// Whether the bytes of a candidate are read, and not its strong fingerprint alone.
    pub(super) reads_bytes: bool,
}

/// Answer to "share or store?".
#[derive(Debug, PartialEq, Eq)]
pub enum Place {
    /// Store these bytes.
    Store,
    /// These bytes are there: the caller's extent may name this block.
    Shared(Reference),
    /// As the piece of this place in the request.
    Twin(usize),
}

/// Which blocks of a request a policy looks at. All others are stored as policy `off` stores them: in runs.
#[derive(Debug, PartialEq, Eq)]
pub enum Looks {
    /// All of them.
    All,
    /// The blocks at these places of the request, in ascending order. None: it stores everything.
    Only(Places),
}

/// Places of blocks in a request, in blocks from its first whole block.
pub type Places = SmallVec<[usize; 4]>;

/// One block of a request.
#[derive(Debug)]
pub struct Piece<'p> {
    /// What is written: 4 KiB.
    pub bytes: &'p [u8],
    /// What is known of it.
    pub fingerprint: Fingerprint,
    /// What becomes of it.
    pub place: Place,
    /// Its place among the blocks of the request, where only some of them are looked at ([`Looks::Only`]).
    pub(crate) at: usize,
}

impl<'p> Piece<'p> {
    /// One that is to be stored so far.
    pub fn new(bytes: &'p [u8], fingerprint: Fingerprint) -> Piece<'p> {
        Piece { bytes, fingerprint, place: Place::Store, at: 0 }
    }

    /// The same, at this place of a request of which only some blocks are looked at.
    pub(crate) fn new_at(at: usize, bytes: &'p [u8], fingerprint: Fingerprint) -> Piece<'p> {
        Piece { at, ..Piece::new(bytes, fingerprint) }
    }
}

/// What a policy saw since mount.
#[derive(Default)]
pub struct Tally {
    /// Pieces it was asked about.
    pub offered: Sum,
    /// Pieces it shared.
    pub shared: Sum,
    /// Weak fingerprints that matched where bytes did not.
    pub collisions: AtomicU64,
}

impl Tally {
    pub(super) fn count(&self, offered: u64, shared: u64) {
        if offered > 0 {
            self.offered.add(offered);
        }
        if shared > 0 {
            self.shared.add(shared);
        }
    }

    pub(super) fn stats(&self, policy: Policy) -> PolicyStats {
        PolicyStats {
            policy,
            offered: self.offered.get(),
            shared: self.shared.get(),
            collisions: self.collisions.load(Ordering::Relaxed),
        }
    }
}

/// [`Dedup::place`](super::Dedup::place) of a policy that finds chunks by their weak fingerprints in the index.
/// `is_equal` is asked with a reference taken. Returns how many pieces were offered and how many of them are shared,
/// twins among both.
pub(super) fn share_all<'t>(
    pieces: &mut [Piece<'_>],
    tx: &mut Transaction<'t>,
    search: &Search<'_>,
    is_equal: impl Fn(&mut Piece<'_>, ChunkRef, &mut Transaction<'t>) -> bool,
) -> (u64, u64) {
    let chunks = tx.chunks();
    let is_single = pieces.len() == 1;
    if !is_single {
        chunks.index.fetch(pieces.iter().filter_map(|piece| piece.fingerprint.weak));
    }
    let (mut offered, mut shared) = (0, 0);
    for group in pieces.chunks_mut(GROUP) {
        let promising = if is_single { 1 } else { fetch_candidates(group, chunks, search) };
        for (at, piece) in group.iter_mut().enumerate() {
            let Some(weak) = piece.fingerprint.weak else { continue };
            if promising & 1 << at != 0 && piece.place == Place::Store {
                piece.place = candidate(weak, ChunkRef::NONE, is_single, search, tx);
            }
        }
        for piece in group {
            let Some(weak) = piece.fingerprint.weak else { continue };
            first_equal(piece, weak, tx, search, &is_equal);
            offered += 1;
            shared += u64::from(piece.place != Place::Store);
        }
    }
    (offered, shared)
}

/// Asks for the first candidates of a group, all at once. Bit n: the n-th piece may have one.
fn fetch_candidates(group: &[Piece<'_>], chunks: &Chunks, search: &Search<'_>) -> u32 {
    let mut promising = 0;
    let mut seen: SmallVec<[ChunkRef; GROUP]> = SmallVec::new();
    for (at, piece) in group.iter().enumerate().filter(|(_, piece)| piece.place == Place::Store) {
        let Some(weak) = piece.fingerprint.weak else { continue };
        let sight = chunks.index.peek(weak);
        promising |= u32::from(sight != Sight::Nothing) << at;
        if let Sight::Chunk(chunk) = sight
            && (search.fits)(&chunk)
        {
            seen.push(chunk);
        }
    }
    chunks.fetch(&seen, search.reads_bytes);
    promising
}

/// Keeps the candidate of a piece if that is equal, or else the next one that is.
fn first_equal<'t>(
    piece: &mut Piece<'_>,
    weak: u32,
    tx: &mut Transaction<'t>,
    search: &Search<'_>,
    is_equal: &impl Fn(&mut Piece<'_>, ChunkRef, &mut Transaction<'t>) -> bool,
) {
    while let Place::Shared(reference) = &piece.place {
        let chunk = reference.chunk();
        if is_equal(piece, chunk, tx) {
            return;
        }
        search.collisions.fetch_add(1, Ordering::Relaxed);
        let next = candidate(weak, chunk, true, search, tx);
        if let Place::Shared(reference) = std::mem::replace(&mut piece.place, next) {
            tx.give_back(reference);
        }
    }
}

/// The next chunk behind `after` that may be equal. Its entry and its bytes are asked for if they were not before
/// (`fetches`): the bytes come while its count changes.
fn candidate(weak: u32, after: ChunkRef, fetches: bool, search: &Search<'_>, tx: &mut Transaction<'_>) -> Place {
    let chunks = tx.chunks();
    let fits = |chunk: &ChunkRef| {
        let fits = (search.fits)(chunk);
        if fits && fetches {
            chunks.fetch(&[*chunk], search.reads_bytes);
        }
        fits
    };
    tx.share_candidate_that(weak, after, fits).map_or(Place::Store, Place::Shared)
}

/// Does [`Dedup::published`](super::Dedup::published) for such a policy.
pub(super) fn enter(chunk: ChunkRef, fingerprint: &Fingerprint, known: &[ChunkRef], chunks: &Chunks) -> bool {
    fingerprint.weak.is_none_or(|weak| chunks.index.insert_first(weak, chunk, known))
}

/// Candidates of a policy that shares blocks.
pub(super) fn is_block(chunk: &ChunkRef) -> bool {
    chunk.block().is_some()
}

/// Candidates of a policy that shares packed chunks.
pub(super) fn is_packed(chunk: &ChunkRef) -> bool {
    chunk.packed().is_some()
}
