//! Finding blocks that equal stored blocks: steps 2 and 3 of Algorithm 1 (DeNOVA IV-D).
//!
//! The problem: without a lock, a candidate may change or be freed while its bytes are compared.
//!
//! The idea: hold the candidate by an update count first, so that its bytes cannot change, and compare then. A unique
//! block of the same batch counts as found, too: the two blocks will be merged.

use super::DeNova;
use crate::chunk::Chunks;
use crate::chunk::reference::Hold;
use crate::dedup::policy::Verify;
use crate::dedup::work::{Batch, Fate, Finder, Stored};
use crate::fingerprint::Fingerprint;
use crate::media::{BLOCK_BYTES, ChunkRef};
use nvfold_sync::atomic::Ordering;
use smallvec::SmallVec;

const BLOCK: usize = BLOCK_BYTES as usize;

impl Finder for DeNova {
    /// A strong fingerprint is computed only where it decides, or where the weak one is its prefix, so that it costs
    /// nothing.
    fn fingerprint(&self, block: &[u8]) -> Fingerprint {
        Fingerprint::of(block, self.weak, self.strong)
    }

    fn find(&self, batch: &mut Batch<'_>, chunks: &Chunks) {
        for at in 0..batch.pieces.len() {
            if let Some(weak) = batch.pieces[at].fingerprint.weak {
                batch.pieces[at].fate = self.fate(batch, at, weak, chunks);
            }
        }
    }
}

impl DeNova {
    fn fate(&self, batch: &mut Batch<'_>, at: usize, weak: u32, chunks: &Chunks) -> Fate {
        let own = batch.pieces[at].block;
        let is_duplicate = |other: &usize| {
            let of = |at: usize| (batch.bytes_of(at), &batch.pieces[at].fingerprint);
            batch.pieces[*other].fate != Fate::Stays && self.are_equal(of(*other), of(at))
        };
        if let Some(other) = (0..at).find(is_duplicate) {
            return match &batch.pieces[other].fate {
                Fate::Unique if batch.pieces[other].block != own => Fate::Duplicate(other),
                Fate::Equal(hold) if hold.block() != own => {
                    chunks.hold(hold.block(), &mut batch.tx.flight).map_or(Fate::Stays, Fate::Equal)
                }
                _ => Fate::Stays,
            };
        }
        let is_namesake = |other: &&Stored| other.fate == Fate::Unique && other.fingerprint.weak == Some(weak);
        let namesakes: SmallVec<[ChunkRef; 2]> =
            batch.pieces[..at].iter().filter(is_namesake).map(|other| other.block.into()).collect();
        batch.pieces[at].known.extend(namesakes);
        let strong = batch.pieces[at].fingerprint.strong;
        let mut differing: SmallVec<[Hold; 2]> = SmallVec::new();
        let fate = loop {
            // The search continues after the last differing block. A hold on that block keeps its place in the index.
            let seen = differing.last().map_or(ChunkRef::NONE, |hold| hold.block().into());
            let take = chunks.hold_candidate(weak, seen, |block| block != own, &mut batch.tx.flight);
            let Some(hold) = take else { break Fate::Unique };
            let Batch { bytes, tx, .. } = batch;
            let piece = &bytes[at * BLOCK..(at + 1) * BLOCK];
            if self.is_equal(hold.block(), piece, strong, tx) {
                break Fate::Equal(hold);
            }
            differing.push(hold);
        };
        if !differing.is_empty() {
            self.tally.collisions.fetch_add(differing.len() as u64, Ordering::Relaxed);
            batch.pieces[at].known.extend(differing.iter().map(|hold| ChunkRef::Block(hold.block())));
            batch.given_back.extend(differing);
        }
        fate
    }

    /// True if two pieces with these fingerprints are equal.
    fn are_equal(&self, one: (&[u8], &Fingerprint), other: (&[u8], &Fingerprint)) -> bool {
        one.1.weak == other.1.weak
            && match (one.1.strong, other.1.strong) {
                (Some(one), Some(other)) if self.verify == Verify::Strong => one == other,
                _ => one.0 == other.0,
            }
    }
}
