//! Policy `off`: stores everything, fingerprints nothing and writes no chunk entry.

use super::{Dedup, Piece};
use crate::chunk::Chunks;
use crate::chunk::transaction::Transaction;
use crate::fingerprint::Fingerprint;
use crate::media::ChunkRef;

/// Policy `off`.
pub struct Off;

impl Dedup for Off {
    fn stores_everything(&self) -> bool {
        true
    }

    fn fingerprint(&self, _piece: &[u8]) -> Fingerprint {
        Fingerprint::default()
    }

    fn place(&self, _pieces: &mut [Piece<'_>], _tx: &mut Transaction<'_>) {}

    fn published(&self, _: ChunkRef, _: &Fingerprint, _: &[ChunkRef], _: &Chunks) -> bool {
        true
    }
}
