//! Turning a policy's answers for the pieces of a request into chunks, for blocks and packed chunks alike.
//!
//! A policy answers for each piece by itself. This module gives all references to the claims, stores equal pieces of
//! a request only once, and lists the new pieces so that they can be stored together.

use super::claims::Claims;
use crate::chunk::reference::Reference;
use crate::dedup::{Piece, Place};
use crate::media::ChunkRef;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use smallvec::SmallVec;

/// A new piece, which is stored.
pub(super) struct Fresh<C> {
    /// Index of the piece in the request.
    pub(crate) at: usize,
    /// The number of pieces of the request with this content, including this one.
    pub(crate) count: u32,
    /// The chunk that holds it, once it is stored.
    pub(crate) chunk: Option<C>,
}

/// What was decided for one piece.
#[derive(Clone, Copy)]
pub(super) enum Decision<C> {
    Shared(C),
    /// Stored as the n-th new piece, alone or together with equal ones.
    Stored(usize),
}

impl<C: Copy> Decision<C> {
    /// Returns the chunk to map. All new pieces must have been stored.
    pub(crate) fn chunk(self, fresh: &[Fresh<C>]) -> C {
        match self {
            Decision::Shared(chunk) => chunk,
            Decision::Stored(nth) => fresh[nth].chunk.expect("each new piece was stored"),
        }
    }
}

/// Marks pieces that are equal to an earlier piece of the request, and counts the namesakes of the others: different
/// earlier pieces with the same fingerprint.
pub(super) fn mark_duplicates(pieces: &mut [Piece<'_>]) {
    let mut seen: HashMap<u32, usize> = HashMap::with_capacity(pieces.len());
    for at in 0..pieces.len() {
        let Some(weak) = pieces[at].fingerprint.weak else { continue };
        match seen.entry(weak) {
            Entry::Occupied(mut other) if pieces[*other.get()].bytes != pieces[at].bytes => {
                pieces[at].namesakes = pieces[other.insert(at)].namesakes + 1;
            }
            Entry::Occupied(other) => pieces[at].place = Place::Duplicate(*other.get()),
            Entry::Vacant(unseen) => _ = unseen.insert(at),
        }
    }
}

/// Decides about each piece, and adds those that must be stored to `fresh`. `keep` passes a reference to the claims,
/// which own all references afterwards.
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
            Place::Duplicate(other) => match decisions[other] {
                Decision::Stored(nth) => {
                    fresh[nth].count += 1;
                    Some(Decision::Stored(nth))
                }
                // The chunk may be at its maximum count; then the piece is stored again.
                Decision::Shared(chunk) => {
                    claims.transaction().share_known(chunk).map(|reference| Decision::Shared(keep(claims, reference)))
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
