//! A policy of a program's own that uses every reference once: the file that those in `fail/` differ from by one step.
#![deny(unused_must_use)]

use nvfold::WeakFunction;
use nvfold::custom_policy::{ChunkRef, Chunks, Dedup, Fingerprint, NewChunk, Piece, Place, Transaction};

struct Policy;

impl Dedup for Policy {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        Fingerprint::of(piece, WeakFunction::default(), None)
    }

    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        for piece in pieces.iter_mut().filter(|piece| piece.place == Place::Store) {
            let Some(weak) = piece.fingerprint.weak else { continue };
            let Some(reference) = tx.share_candidate(weak, ChunkRef::NONE) else { continue };
            if tx.chunks().equal(reference.chunk(), piece.bytes) {
                piece.place = Place::Shared(reference);
            } else {
                tx.give_back(reference);
            }
        }
    }

    fn published(&self, _: &[NewChunk], _: &[ChunkRef], _: &Chunks) -> Vec<ChunkRef> {
        Vec::new()
    }
}

pub(super) fn main() {
    let policy: &dyn Dedup = &Policy;
    assert!(policy.fingerprint(&[0; 4096]).weak.is_some());
}
