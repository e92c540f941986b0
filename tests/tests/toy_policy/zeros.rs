//! Policy `zeros`: blocks of zeros are stored once, everything else as it comes. The whole of a policy of a program's own, in
//! one file outside of the crate.
//!
//! It has no use for the index: it remembers the one block itself, from the moment when the block can be reached until it
//! is free. The lock is held while a reference is taken, so that the block cannot be freed and get another content in
//! between: `released` waits.

use nvfold::chunk::transaction::Transaction;
use nvfold::chunk::{Chunks, Released};
use nvfold::dedup::{Dedup, Piece, Place};
use nvfold::fingerprint::{Fingerprint, StrongFunction};
use nvfold::media::ChunkRef;
use std::sync::Mutex;

/// See the module.
#[derive(Default)]
pub struct Zeros {
    block: Mutex<Option<ChunkRef>>,
}

impl Zeros {
    /// The block of zeros, if there is one.
    fn shared(&self, tx: &mut Transaction<'_>) -> Place {
        // Before the lock: whoever waits for a generator keeps nobody else waiting.
        tx.begin();
        let mut block = self.block.lock().expect("nobody panics with it");
        match block.and_then(|block| tx.share_known(block)) {
            Some(reference) => Place::Shared(reference),
            None => {
                // It is about to be freed, or has as many references as can be counted: the next one takes its place.
                *block = None;
                Place::Store
            }
        }
    }
}

impl Dedup for Zeros {
    /// Zeros have one, so that they get an entry in the chunk table and references can be counted; nothing else has.
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        let is_zero = piece.iter().all(|byte| *byte == 0);
        Fingerprint { weak: None, strong: is_zero.then(|| StrongFunction::default().of(piece)) }
    }

    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        let undecided = pieces.iter_mut().filter(|piece| piece.place == Place::Store);
        undecided.filter(|piece| !piece.fingerprint.is_empty()).for_each(|piece| piece.place = self.shared(tx));
    }

    fn published(&self, chunk: ChunkRef, _: &Fingerprint, known: &[ChunkRef], _: &Chunks) -> bool {
        let mut first = self.block.lock().expect("nobody panics with it");
        match *first {
            Some(first) => known.contains(&first),
            None => {
                *first = Some(chunk);
                true
            }
        }
    }

    fn released(&self, chunk: ChunkRef, left: Released) {
        let mut first = self.block.lock().expect("nobody panics with it");
        if left == Released::Free && *first == Some(chunk) {
            *first = None;
        }
    }
}
