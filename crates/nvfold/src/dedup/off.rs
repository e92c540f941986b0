//! Policy `off`: stores everything, fingerprints nothing and writes no chunk entry.

use super::{Dedup, NewChunk, Piece};
use crate::chunk::Chunks;
use crate::chunk::transaction::Transaction;
use crate::fingerprint::Fingerprint;
use crate::media::ChunkRef;

/// Policy `off`. It also stores the data that policy `icid` found no origin for.
pub(super) struct Off {
    pub(super) keeps_zeros: bool,
}

impl Dedup for Off {
    fn stores_everything(&self) -> bool {
        true
    }

    fn keeps_zeros(&self) -> bool {
        self.keeps_zeros
    }

    fn fingerprint(&self, _piece: &[u8]) -> Fingerprint {
        Fingerprint::default()
    }

    fn place(&self, _pieces: &mut [Piece<'_>], _tx: &mut Transaction<'_>) {}

    fn published(&self, _: &[NewChunk], _: &[ChunkRef], _: &Chunks) -> Vec<ChunkRef> {
        Vec::new()
    }
}
