//! Policy `inline`: share equal 4 KiB blocks as they are written.
//!
//! The simple ancestor of NV-Dedup (its w_s_Fin path of 4.4 with a byte compare in place of the strong
//! fingerprint): a weak fingerprint finds candidates, the reference is taken first so that the candidate
//! can no longer change, then the bytes decide.

use super::{Dedup, Place, Tally, enter, share_first};
use crate::chunk::Chunks;
use crate::chunk::transaction::Transaction;
use crate::fingerprint::{Fingerprint, WeakFunction};
use crate::media::BlockNumber;

/// See the module.
pub struct Inline {
    weak: WeakFunction,
    pub(super) tally: Tally,
}

impl Inline {
    /// With the device's index.
    pub fn new(weak: WeakFunction) -> Inline {
        Inline { weak, tally: Tally::default() }
    }
}

impl Dedup for Inline {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        Fingerprint { weak: Some(self.weak.of(piece)), strong: None }
    }

    fn place(&self, piece: &[u8], fingerprint: &mut Fingerprint, tx: &mut Transaction<'_>) -> Place {
        Tally::count(&self.tally.offered);
        let Some(weak) = fingerprint.weak else { return Place::New };
        let placed = share_first(weak, tx, &self.tally.collisions, |block, tx| tx.chunks().equal(block, piece));
        if placed != Place::New {
            Tally::count(&self.tally.shared);
        }
        placed
    }

    fn committed(&self, block: BlockNumber, fingerprint: &Fingerprint, known: &[BlockNumber], chunks: &Chunks) -> bool {
        enter(block, fingerprint, known, chunks)
    }
}
