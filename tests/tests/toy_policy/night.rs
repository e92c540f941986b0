//! Policy `night`: by day everything is stored as it comes; by night copies are shared, also those of what was stored by day.
//! This one file outside of the crate is a complete policy of a program, with work in the background.
//!
//! What is stored by day has no fingerprints. The policy keeps a list of such files, and a step of its background work lets
//! the file system give some blocks of one of them the fingerprints that they lack ([`Host::fill`]).

use nvfold::custom_policy::{
    ChunkRef, Chunks, Dedup, Filled, Fingerprint, Host, NewChunk, Piece, Place, Transaction, Unfingerprinted,
};
use nvfold::{FileId, Result, WeakFunction};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the module.
#[derive(Default)]
pub(super) struct Night {
    /// Whether it is night.
    pub is_night: AtomicBool,
    /// Files with blocks that lack fingerprints, and the offset at which to go on.
    lacking: Mutex<VecDeque<(FileId, u64)>>,
    /// The number of blocks that got fingerprints in its steps.
    pub filled: AtomicU64,
}

impl Dedup for Night {
    fn stores_everything(&self) -> bool {
        !self.is_night.load(Ordering::Relaxed)
    }

    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        Fingerprint::of(piece, WeakFunction::default(), None)
    }

    /// Shares a block with the first one that has its fingerprint, if the bytes are equal.
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

    /// What is stored by night can be found in the next one only, when its file was looked through.
    fn published(&self, _: &[NewChunk], _: &[ChunkRef], _: &Chunks) -> Vec<ChunkRef> {
        Vec::new()
    }

    fn unfingerprinted(&self) -> Unfingerprinted {
        Unfingerprinted::Filed
    }

    fn record_unfingerprinted_file(&self, file: FileId) {
        self.lacking.lock().expect("nobody panics with it").push_back((file, 0));
    }

    fn step(&self, host: &dyn Host) -> Result<bool> {
        let Some((file, from)) = self.lacking.lock().expect("nobody panics with it").pop_front() else {
            return Ok(true);
        };
        let Filled { chunks, next } = host.fill(file, from)?;
        self.filled.fetch_add(chunks, Ordering::Relaxed);
        if let Some(next) = next {
            self.lacking.lock().expect("nobody panics with it").push_front((file, next));
        }
        Ok(false)
    }
}
