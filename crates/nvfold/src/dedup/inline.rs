//! Policy `inline`: share equal 4 KiB blocks as they are written.
//!
//! The simple ancestor of NV-Dedup (its w_s_Fin path of 4.4 with a byte compare in place of the strong
//! fingerprint): a weak fingerprint finds candidates, the reference is taken first so that the candidate
//! can no longer change, then the bytes decide.
//!
//! With a dram index what it stores has no chunk entry until it is shared, so a crash loses the fingerprints: the filler
//! makes them anew.

use super::batch::{Search, Tally, enter, is_block, share_all};
use super::filler::Filler;
use super::work::{Host, Unfingerprinted};
use super::{Dedup, Piece};
use crate::chunk::Chunks;
use crate::chunk::transaction::Transaction;
use crate::error::Result;
use crate::fingerprint::{Fingerprint, WeakFunction};
use crate::media::ChunkRef;
use std::sync::Arc;

/// See the module.
pub struct Inline {
    weak: WeakFunction,
    filler: Arc<Filler>,
    pub(super) tally: Tally,
}

impl Inline {
    /// Makes the policy with the device's index.
    pub(super) fn new(weak: WeakFunction, filler: Arc<Filler>) -> Inline {
        Inline { weak, filler, tally: Tally::default() }
    }
}

impl Dedup for Inline {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        Fingerprint { weak: Some(self.weak.of(piece)), strong: None }
    }

    fn goes_by_index(&self) -> bool {
        true
    }

    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        let is_equal = |piece: &mut Piece<'_>, block, tx: &mut Transaction<'_>| tx.chunks().equal(block, piece.bytes);
        let search = Search { collisions: &self.tally.collisions, fits: is_block, reads_bytes: true };
        let (offered, shared) = share_all(pieces, tx, &search, is_equal);
        self.tally.count(offered, shared);
    }

    fn published(&self, chunk: ChunkRef, fingerprint: &Fingerprint, known: &[ChunkRef], chunks: &Chunks) -> bool {
        enter(chunk, fingerprint, known, chunks)
    }

    fn unfingerprinted(&self) -> Unfingerprinted {
        Unfingerprinted::Filed
    }

    fn file_lacks(&self, file: u64) {
        self.filler.add(file);
    }

    fn step(&self, host: &dyn Host) -> Result<bool> {
        self.filler.step(host)
    }
}
