//! What becomes of the pieces of a request: blocks and packed chunks alike.
//!
//! A policy answers for each piece by itself. Here its answers become chunks that an extent may name: all references go
//! to the claims, pieces that are equal to each other are stored once, and those that nobody has are listed, to be
//! stored together.

use super::claims::Claims;
use crate::chunk::reference::Reference;
use crate::dedup::{Piece, Place};
use crate::media::ChunkRef;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use smallvec::SmallVec;

/// A piece that is stored.
pub(super) struct Fresh<C> {
    /// Its place in the request.
    pub(super) at: usize,
    /// How many pieces of the request are equal to it, itself included.
    pub(super) count: u32,
    /// Where it is stored, once it is.
    pub(super) chunk: Option<C>,
}

/// What becomes of one piece.
#[derive(Clone, Copy)]
pub(super) enum Decision<C> {
    Shared(C),
    /// Stored as the n-th new piece, alone or with its equals.
    Stored(usize),
}

impl<C: Copy> Decision<C> {
    /// The chunk to name, after all new pieces were stored.
    pub(super) fn chunk(self, fresh: &[Fresh<C>]) -> C {
        match self {
            Decision::Shared(chunk) => chunk,
            Decision::Stored(nth) => fresh[nth].chunk.expect("each new piece was stored"),
        }
    }
}

/// Marks pieces that are equal to an earlier one of the request.
pub(super) fn mark_twins(pieces: &mut [Piece<'_>]) {
    let mut seen: HashMap<u32, usize> = HashMap::with_capacity(pieces.len());
    for at in 0..pieces.len() {
        let Some(weak) = pieces[at].fingerprint.weak else { continue };
        match seen.entry(weak) {
            Entry::Occupied(other) if pieces[*other.get()].bytes == pieces[at].bytes => {
                pieces[at].place = Place::Twin(*other.get());
            }
            entry => _ = entry.insert(at),
        }
    }
}

/// What becomes of each piece; those that are to be stored are added to `fresh`. `keep` gives a reference to the claims,
/// which have all of them from here on.
pub(super) fn decide<'a, C: Copy + Into<ChunkRef>>(
    pieces: &mut [Piece<'_>],
    fresh: &mut SmallVec<[Fresh<C>; 1]>,
    claims: &mut Claims<'a>,
    keep: impl Fn(&mut Claims<'a>, Reference) -> C,
) -> SmallVec<[Decision<C>; 1]> {
    let mut decisions: SmallVec<[Decision<C>; 1]> = SmallVec::with_capacity(pieces.len());
    for (at, piece) in pieces.iter_mut().enumerate() {
        let decision = match std::mem::replace(&mut piece.place, Place::Store) {
            Place::Shared(reference) => Some(Decision::Shared(keep(claims, reference))),
            Place::Twin(other) => match decisions[other] {
                Decision::Stored(nth) => {
                    fresh[nth].count += 1;
                    Some(Decision::Stored(nth))
                }
                // As many references as can be counted: it is stored anew.
                Decision::Shared(chunk) => {
                    claims.tx.share_known(chunk).map(|reference| Decision::Shared(keep(claims, reference)))
                }
            },
            Place::Store => None,
        };
        decisions.push(decision.unwrap_or_else(|| {
            fresh.push(Fresh { at, count: 1, chunk: None });
            Decision::Stored(fresh.len() - 1)
        }));
    }
    decisions
}
