//! Policy `zeros`: blocks of zeros are stored once, all other data unchanged. This one file outside of the crate is a
//! complete policy of a program.
//!
//! It does not use the index: it remembers the one block itself, from the moment when the block is reachable until it
//! is free. The lock is held while a reference is taken, so that the block cannot be freed and get another content in
//! between: `released` waits.

use nvfold::StrongFunction;
use nvfold::custom_policy::{ChunkRef, Chunks, Dedup, Fingerprint, NewChunk, Piece, Place, Released, Transaction};
use std::sync::Mutex;

/// See the module.
#[derive(Default)]
pub(super) struct Zeros {
    block: Mutex<Option<ChunkRef>>,
}

impl Zeros {
    /// Takes a reference on the block of zeros, if there is one.
    fn shared(&self, tx: &mut Transaction<'_>) -> Place {
        // Before the lock, so that a thread that waits for a generator blocks no other thread.
        tx.begin();
        let mut block = self.block.lock().expect("nobody panics with it");
        match block.and_then(|block| tx.share_known(block)) {
            Some(reference) => Place::Shared(reference),
            None => {
                // The block is about to be freed, or has the maximum number of references: the next block of zeros
                // takes its place.
                *block = None;
                Place::Store
            }
        }
    }
}

impl Dedup for Zeros {
    /// Without this, zeros would become holes, and no policy would see them.
    fn keeps_zeros(&self) -> bool {
        true
    }

    /// Gives zeros a fingerprint, so that they get an entry in the chunk table and a count; other data gets none.
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        let is_zero = piece.iter().all(|byte| *byte == 0);
        Fingerprint { weak: None, strong: is_zero.then(|| StrongFunction::default().of(piece)) }
    }

    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        let undecided = pieces.iter_mut().filter(|piece| piece.place == Place::Store);
        undecided.filter(|piece| !piece.fingerprint.is_empty()).for_each(|piece| piece.place = self.shared(tx));
    }

    fn published(&self, new: &[NewChunk], known: &[ChunkRef], _: &Chunks) -> Vec<ChunkRef> {
        let mut first = self.block.lock().expect("nobody panics with it");
        let mut refused = Vec::new();
        for new in new {
            let first = *first.get_or_insert(new.chunk);
            if first != new.chunk && !known.contains(&first) {
                refused.push(new.chunk);
            }
        }
        refused
    }

    fn released(&self, chunk: ChunkRef, left: Released) {
        let mut first = self.block.lock().expect("nobody panics with it");
        if left == Released::Free && *first == Some(chunk) {
            *first = None;
        }
    }
}
