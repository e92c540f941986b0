//! Policy `inline`: shares equal 4 KiB blocks as they are written.
//!
//! The problem: sharing while writing needs a fast way to find equal blocks, and a strong fingerprint costs more than
//! reading a candidate.
//!
//! The idea: NV-Dedup's method w_s_Fin (4.4.1) with a byte compare in place of the strong fingerprint. A weak
//! fingerprint finds candidates. The policy takes a reference on a candidate first, so that its bytes cannot change,
//! and then compares them.
//!
//! With a dram index, a stored block has no chunk entry until it is shared. A crash loses the fingerprints of such
//! blocks; the filler computes them again.

use super::batch::{PolicyCounters, Search, enter, is_block, share_all};
use super::filler::Filler;
use super::work::{Host, Unfingerprinted};
use super::{Dedup, NewChunk, Piece};
use crate::chunk::Chunks;
use crate::chunk::transaction::Transaction;
use crate::error::Result;
use crate::fingerprint::{Fingerprint, Keys};
use crate::media::ChunkRef;
use crate::words::FileId;
use std::sync::Arc;

/// Policy `inline`; see the module.
pub(super) struct Inline {
    keys: Keys,
    filler: Arc<Filler>,
    pub(super) tally: PolicyCounters,
}

impl Inline {
    /// Creates the policy, which uses the device's index.
    pub(super) fn new(keys: Keys, filler: Arc<Filler>) -> Inline {
        Inline { keys, filler, tally: PolicyCounters::default() }
    }
}

impl Dedup for Inline {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        Fingerprint { weak: Some(self.keys.first(piece)), strong: None }
    }

    fn prefetch(&self, block: &[u8]) {
        self.keys.prefetch(block);
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

    fn published(&self, new: &[NewChunk], known: &[ChunkRef], chunks: &Chunks) -> Vec<ChunkRef> {
        enter(new, known, chunks)
    }

    fn unfingerprinted(&self) -> Unfingerprinted {
        Unfingerprinted::Filed
    }

    fn record_unfingerprinted_file(&self, file: FileId) {
        self.filler.add(file);
    }

    fn step(&self, host: &dyn Host) -> Result<bool> {
        self.filler.step(host)
    }
}
