//! Share or store? The one question the write path asks of each piece of data.
//!
//! A policy proposes, `fs` publishes: a policy sees bytes and blocks, never names or logs. It may take
//! references through the chunk table; `fs` commits the extent that uses them, or releases them again.

mod inline;
mod nv_dedup;

pub use inline::Inline;

use crate::chunk::Chunks;
use crate::media::BlockNumber;
use crate::padded::Padded;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::Policy;
use pmem::Flight;

/// Answer to "share or store?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// These bytes are there: the block's count was raised (in the flight) for the caller's extent.
    Shared(BlockNumber),
    /// Store them.
    New,
}

/// A dedup system. `fs` calls `fingerprint` outside every lock, `place` under the lock of the inode being
/// written, `committed` once the extent of a stored piece is durable.
pub trait Dedup: Send + Sync {
    /// Weak fingerprint of a piece of one block, if this policy wants its blocks found again.
    fn fingerprint(&self, piece: &[u8]) -> Option<u32>;

    /// Whether it never shares and never fingerprints, so that a write need not be looked at block by block.
    fn stores_everything(&self) -> bool {
        false
    }

    /// Shares the piece if an equal block is stored. Candidates whose bytes differed go to `let_go`, with the
    /// reference that the comparison needed: `fs` releases them, for by then it may be their last.
    fn place(
        &self,
        piece: &[u8],
        weak: Option<u32>,
        chunks: &Chunks,
        flight: &mut Flight,
        let_go: &mut Vec<BlockNumber>,
    ) -> Place;

    /// A stored piece can be reached now: others may share it. False when another writer was first, since `place`
    /// looked, with a block that may be equal and is none of `known`: `fs` asks again then, and offers this block
    /// only if they differ.
    fn committed(&self, block: BlockNumber, weak: Option<u32>, known: &[BlockNumber], chunks: &Chunks) -> bool;
}

/// What the policy saw since mount.
#[derive(Default)]
pub struct Tally {
    /// Pieces it was asked about.
    pub offered: Padded<AtomicU64>,
    /// Pieces it shared.
    pub shared: Padded<AtomicU64>,
    /// Weak fingerprints that matched where bytes did not.
    pub collisions: AtomicU64,
}

impl Tally {
    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The policies of a mount.
pub struct Policies {
    /// Default policy.
    pub policy: Policy,
    inline: Inline,
    off: Off,
}

impl Policies {
    /// With `policy` for new data.
    pub fn new(policy: Policy) -> Policies {
        Policies { policy, inline: Inline::default(), off: Off }
    }

    /// The policy that places new data now.
    pub fn current(&self) -> &dyn Dedup {
        match self.policy {
            Policy::Off => &self.off,
            Policy::Inline => &self.inline,
        }
    }

    /// What the sharing policies saw.
    pub fn tally(&self) -> &Tally {
        &self.inline.tally
    }
}

/// Policy `off`: everything is stored, nothing is fingerprinted, no chunk entry is written.
struct Off;

impl Dedup for Off {
    fn stores_everything(&self) -> bool {
        true
    }

    fn fingerprint(&self, _piece: &[u8]) -> Option<u32> {
        None
    }

    fn place(&self, _: &[u8], _: Option<u32>, _: &Chunks, _: &mut Flight, _: &mut Vec<BlockNumber>) -> Place {
        Place::New
    }

    fn committed(&self, _: BlockNumber, _: Option<u32>, _: &[BlockNumber], _: &Chunks) -> bool {
        true
    }
}
