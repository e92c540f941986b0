//! Policy `inline`: share equal 4 KiB blocks as they are written.
//!
//! The simple ancestor of NV-Dedup (its w_s_Fin path of 4.4 with a byte compare in place of the strong
//! fingerprint): a weak fingerprint finds candidates, the reference is taken first so that the candidate
//! can no longer change, then the bytes decide.

use super::{Dedup, Place, Tally};
use crate::chunk::Chunks;
use crate::fingerprint;
use crate::media::BlockNumber;
use pmem::Flight;

/// See the module.
#[derive(Default)]
pub struct Inline {
    pub(super) tally: Tally,
}

impl Dedup for Inline {
    fn fingerprint(&self, piece: &[u8]) -> Option<u32> {
        Some(fingerprint::weak(piece))
    }

    fn place(
        &self,
        piece: &[u8],
        weak: Option<u32>,
        chunks: &Chunks,
        flight: &mut Flight,
        let_go: &mut Vec<BlockNumber>,
    ) -> Place {
        Tally::count(&self.tally.offered);
        let Some(weak) = weak else { return Place::New };
        let mut seen = BlockNumber(0);
        while let Some(block) = chunks.share_candidate(weak, seen, flight) {
            // With the reference taken its bytes stand still, and they decide.
            if chunks.equal(block, piece) {
                Tally::count(&self.tally.shared);
                return Place::Shared(block);
            }
            Tally::count(&self.tally.collisions);
            let_go.push(block);
            seen = block;
        }
        Place::New
    }

    fn committed(&self, block: BlockNumber, weak: Option<u32>, known: &[BlockNumber], chunks: &Chunks) -> bool {
        weak.is_none_or(|weak| chunks.index.insert_first(weak, block, known))
    }
}
