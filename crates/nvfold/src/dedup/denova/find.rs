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
use crate::fingerprint::{FIRST_KEY_MAX, Fingerprint};
use crate::media::{BLOCK_BYTES, ChunkRef};
use nvfold_sync::atomic::Ordering;
use smallvec::SmallVec;

const BLOCK: usize = BLOCK_BYTES as usize;

impl Finder for DeNova {
    /// A strong fingerprint is computed only where it decides, or where the weak one is its prefix, so that it costs
    /// nothing.
    fn fingerprint(&self, block: &[u8]) -> Fingerprint {
        Fingerprint::by_keys(block, self.keys, self.strong)
    }

    fn find(&self, batch: &mut Batch<'_>, chunks: &Chunks) {
        let mut by_second: SmallVec<[(usize, u32); 4]> = SmallVec::new();
        for at in 0..batch.pieces.len() {
            if let Some(weak) = batch.pieces[at].fingerprint.weak {
                let (fate, key) = self.fate(batch, at, weak, chunks);
                batch.pieces[at].fate = fate;
                by_second.extend(Some((at, key)).filter(|_| key != weak));
            }
        }
        // Only now: until here, equal pieces of the batch have equal fingerprints.
        by_second.into_iter().for_each(|(at, key)| batch.pieces[at].fingerprint.weak = Some(key));
    }
}

impl DeNova {
    /// Returns what is to happen to a block, and the key by which it is entered: `weak`, or its second key if too many
    /// other blocks have that.
    fn fate(&self, batch: &mut Batch<'_>, at: usize, weak: u32, chunks: &Chunks) -> (Fate, u32) {
        let own = batch.pieces[at].block;
        let is_duplicate = |other: &usize| {
            let of = |at: usize| (batch.bytes_of(at), &batch.pieces[at].fingerprint);
            batch.pieces[*other].fate != Fate::Stays && self.are_equal(of(*other), of(at))
        };
        if let Some(other) = (0..at).find(is_duplicate) {
            let fate = match &batch.pieces[other].fate {
                Fate::Unique if batch.pieces[other].block != own => Fate::Duplicate(other),
                Fate::Equal(hold) if hold.block() != own => {
                    chunks.hold(hold.block(), &mut batch.tx.flight).map_or(Fate::Stays, Fate::Equal)
                }
                _ => Fate::Stays,
            };
            return (fate, weak);
        }
        let is_namesake = |other: &&Stored| other.fate == Fate::Unique && other.fingerprint.weak == Some(weak);
        let namesakes: SmallVec<[ChunkRef; 2]> =
            batch.pieces[..at].iter().filter(is_namesake).map(|other| other.block.into()).collect();
        let namesakes_count = namesakes.len();
        batch.pieces[at].known.extend(namesakes);
        let (found, differed) = self.equal_by(batch, at, weak, chunks.keys().first_key_max(), chunks);
        if let Some(hold) = found {
            return (Fate::Equal(hold), weak);
        }
        let others = namesakes_count + differed;
        let second = if others > 0 { batch.tx.second_key(batch.bytes_of(at), weak) } else { None };
        let Some(second) = second else { return (Fate::Unique, weak) };
        let (found, _) = self.equal_by(batch, at, second, usize::MAX, chunks);
        let key = if others >= FIRST_KEY_MAX { second } else { weak };
        (found.map_or(Fate::Unique, Fate::Equal), key)
    }

    /// Holds the first block with this key that equals a piece. Looks at `most` blocks, and returns also how many
    /// differed.
    fn equal_by(
        &self,
        batch: &mut Batch<'_>,
        at: usize,
        key: u32,
        most: usize,
        chunks: &Chunks,
    ) -> (Option<Hold>, usize) {
        let (own, strong) = (batch.pieces[at].block, batch.pieces[at].fingerprint.strong);
        let mut differing: SmallVec<[Hold; 2]> = SmallVec::new();
        let found = loop {
            if differing.len() == most {
                break None;
            }
            // The search continues after the last differing block. A hold on that block keeps its place in the index.
            let seen = differing.last().map_or(ChunkRef::NONE, |hold| hold.block().into());
            let take = chunks.hold_candidate(key, seen, |block| block != own, &mut batch.tx.flight);
            let Some(hold) = take else { break None };
            let Batch { bytes, tx, .. } = batch;
            let piece = &bytes[at * BLOCK..(at + 1) * BLOCK];
            if self.is_equal(hold.block(), piece, strong, tx) {
                break Some(hold);
            }
            differing.push(hold);
        };
        let differed = differing.len();
        if differed > 0 {
            self.tally.collisions.fetch_add(differed as u64, Ordering::Relaxed);
            batch.pieces[at].known.extend(differing.iter().map(|hold| ChunkRef::Block(hold.block())));
            batch.given_back.extend(differing);
        }
        (found, differed)
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
