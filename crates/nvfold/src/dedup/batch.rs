//! The pieces of one request, and how policies that use the index place them.
//!
//! The problem: looking up one block is a chain of cache misses: index slot, chunk entry, candidate. A request of 32
//! blocks that follows the chain block by block waits for each miss.
//!
//! The idea: place the pieces together, in rounds, so that their misses overlap (Light-Dedup's speculative prefetch
//! does this for one block):
//!
//! 1. Prefetch the index slots of all pieces.
//! 2. Look up the first candidate of each piece without a reference, and prefetch the entries and bytes of these
//!    candidates together. A wrong guess costs nothing but the prefetch.
//! 3. Take a reference on the candidate of each piece.
//! 4. Compare, which the references make safe. If a candidate differs, give it back and look up the next one.
//!
//! All rounds but the first take a few pieces at a time, so that their candidates still are in the CPU's caches in
//! the next round.

use super::policy::{Policy, PolicyStats};
use crate::chunk::Chunks;
use crate::chunk::insertion::Insertion;
use crate::chunk::reference::Reference;
use crate::chunk::sight::Sight;
use crate::chunk::transaction::Transaction;
use crate::fingerprint::{FIRST_KEY_MAX, Fingerprint};
use crate::media::ChunkRef;
use nvfold_sync::Sum;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use smallvec::SmallVec;

/// Number of pieces whose candidates are fetched and compared together: 32 KiB.
const GROUP: usize = 8;

/// How a policy searches the index.
pub(super) struct Search<'s> {
    /// Counts candidates whose bytes differed.
    pub(super) collisions: &'s AtomicU64,
    /// Tells which chunks are candidates.
    pub(super) fits: fn(&ChunkRef) -> bool,
    /// True if the bytes of a candidate are read, false if only its strong fingerprint is.
    pub(super) reads_bytes: bool,
}

/// The answer to "share or store?".
#[derive(Debug, PartialEq, Eq)]
pub enum Place {
    /// Store these bytes.
    Store,
    /// These bytes are stored already: the caller's extent may refer to this chunk.
    Shared(Reference),
    /// The bytes equal those of the piece at this position of the request and are handled like it.
    Duplicate(usize),
}

/// Which blocks of a request a policy looks at. The others are stored as under policy `off`: in runs.
#[derive(Debug, PartialEq, Eq)]
pub enum Looks {
    /// All of them.
    All,
    /// The blocks at these positions of the request, in ascending order. If empty, everything is stored.
    Only(Places),
}

/// Positions of blocks in a request, in blocks from its first whole block.
pub type Places = SmallVec<[usize; 4]>;

/// One piece of a request.
#[derive(Debug)]
pub struct Piece<'p> {
    /// The bytes to write: 4 KiB, or any length up to 64 KiB for a packed chunk.
    pub bytes: &'p [u8],
    /// The fingerprint, as far as it is computed.
    pub fingerprint: Fingerprint,
    /// The decision.
    pub place: Place,
    /// The number of different earlier pieces of the request with this fingerprint.
    pub(crate) namesakes: usize,
    /// Its position among the whole blocks of the request: some may be zeros, or not looked at ([`Looks::Only`]).
    pub(crate) at: usize,
}

impl<'p> Piece<'p> {
    /// Creates a piece that will be stored unless the policy decides otherwise.
    pub fn new(bytes: &'p [u8], fingerprint: Fingerprint) -> Piece<'p> {
        Piece { bytes, fingerprint, place: Place::Store, namesakes: 0, at: 0 }
    }

    /// Creates the same for a block of a longer request; `at` is its position.
    pub(crate) fn new_at(at: usize, bytes: &'p [u8], fingerprint: Fingerprint) -> Piece<'p> {
        Piece { at, ..Piece::new(bytes, fingerprint) }
    }
}

/// A chunk that a request has stored.
#[derive(Clone, Copy, Debug)]
pub struct NewChunk {
    /// The chunk.
    pub chunk: ChunkRef,
    /// The number of references that the request has made.
    pub count: u32,
    /// Its fingerprint, with what the policy learned when it placed the piece.
    pub fingerprint: Fingerprint,
}

/// Counters of a policy since mount.
#[derive(Default)]
pub(super) struct PolicyCounters {
    /// Number of pieces that it was asked about.
    pub offered: Sum,
    /// Number of pieces that it shared.
    pub shared: Sum,
    /// Number of times that a weak fingerprint matched and the bytes did not.
    pub collisions: AtomicU64,
}

impl PolicyCounters {
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

/// Implements [`Dedup::place`](super::Dedup::place) for policies that find chunks in the index by their weak
/// fingerprints. `is_equal` is called with a reference taken. Returns how many pieces were offered and how many of
/// them are shared. Pieces that equal another one of the request count in both.
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

/// Prefetches the first candidates of a group together. Bit n of the result says that the n-th piece may have one.
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
            if search.reads_bytes && chunks.keys().are_sampled() {
                // Its key was made from a part of it, and now all of it is compared.
                pmem::prefetch_lines(piece.bytes.as_ptr() as usize, piece.bytes.len());
            }
        }
    }
    chunks.fetch(&seen, search.reads_bytes);
    promising
}

/// Keeps the candidate of a piece if it is equal, or else finds the next one that is. A piece with a second key
/// ([`crate::fingerprint::Keys`]) is looked for by it if others have its first one, and is entered by it if too many have.
fn first_equal<'t>(
    piece: &mut Piece<'_>,
    weak: u32,
    tx: &mut Transaction<'t>,
    search: &Search<'_>,
    is_equal: &impl Fn(&mut Piece<'_>, ChunkRef, &mut Transaction<'t>) -> bool,
) {
    let most = tx.chunks().keys().first_key_max();
    let others = piece.namesakes + equal_by(piece, weak, most, tx, search, is_equal);
    if others == 0 || piece.place != Place::Store {
        return;
    }
    if let Some(second) = tx.second_key(piece.bytes, weak) {
        if others >= FIRST_KEY_MAX {
            piece.fingerprint.weak = Some(second);
        }
        piece.place = candidate(second, ChunkRef::NONE, true, search, tx);
        equal_by(piece, second, usize::MAX, tx, search, is_equal);
    }
}

/// Keeps the candidate of a piece if it is equal, or else finds the next one by this key that is. Looks at `most`
/// candidates, and returns how many differed.
fn equal_by<'t>(
    piece: &mut Piece<'_>,
    weak: u32,
    most: usize,
    tx: &mut Transaction<'t>,
    search: &Search<'_>,
    is_equal: &impl Fn(&mut Piece<'_>, ChunkRef, &mut Transaction<'t>) -> bool,
) -> usize {
    let mut differed = 0;
    while let Place::Shared(reference) = &piece.place {
        let chunk = reference.chunk();
        if is_equal(piece, chunk, tx) {
            break;
        }
        search.collisions.fetch_add(1, Ordering::Relaxed);
        differed += 1;
        let next = if differed < most { candidate(weak, chunk, true, search, tx) } else { Place::Store };
        if let Place::Shared(reference) = std::mem::replace(&mut piece.place, next) {
            tx.give_back(reference);
        }
    }
    differed
}

/// Takes a reference on the next chunk after `after` that may be equal. With `fetches`, prefetches its entry and
/// bytes, which arrive while its count changes; false if they were prefetched before.
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

/// Implements [`Dedup::published`](super::Dedup::published) for such policies.
pub(super) fn enter(new: &[NewChunk], known: &[ChunkRef], chunks: &Chunks) -> Vec<ChunkRef> {
    let insertion = |NewChunk { chunk, fingerprint, .. }: &NewChunk| {
        let (chunk, known) = (*chunk, Some(known));
        fingerprint.weak.map(|weak| Insertion { weak, chunk, known })
    };
    chunks.index.insert_all(new.iter().filter_map(insertion))
}

/// True for the candidates of policies that share blocks.
pub(super) fn is_block(chunk: &ChunkRef) -> bool {
    chunk.block().is_some()
}

/// True for the candidates of policies that share packed chunks.
pub(super) fn is_packed(chunk: &ChunkRef) -> bool {
    chunk.packed().is_some()
}
