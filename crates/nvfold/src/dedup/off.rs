//! Policy `off`: everything is stored, nothing is fingerprinted, no chunk entry is written.

use super::{Dedup, Piece};
use crate::chunk::Chunks;
use crate::chunk::transaction::Transaction;
use crate::fingerprint::Fingerprint;
use crate::media::ChunkRef;

/// See the module.
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
