//! Share or store? The one question the write path asks of each piece of data.
//!
//! A policy proposes, `fs` publishes: a policy sees bytes and blocks, never names or logs. It may take
//! references through the chunk table; `fs` commits the extent that uses them, or releases them again.

pub mod denova;
mod inline;
mod nv_dedup;

pub use denova::DeNova;
pub use inline::Inline;
pub use nv_dedup::NvDedup;

use crate::chunk::Chunks;
use crate::chunk::transaction::Transaction;
use crate::fingerprint::Fingerprint;
use crate::media::BlockNumber;
use crate::padded::Padded;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::{MountOptions, NvDedupStats, Policy, PolicyStats};
use std::sync::Arc;

/// Answer to "share or store?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// These bytes are there: the block's count was raised (in the transaction) for the caller's extent.
    Shared(BlockNumber),
    /// Store them.
    New,
}

/// Whether chunks that are stored without a weak fingerprint get theirs in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// No.
    Never,
    /// Not yet: nobody looks for fingerprints now.
    Later,
    /// Yes.
    Now,
    /// Yes, by the daemon: the log entry that names them is queued.
    Queued,
}

/// A dedup system. `fs` calls `fingerprint` outside every lock, `place` under the lock of the inode being
/// written, `committed` once the extent of a stored piece is durable.
///
/// A program can bring one of its own ([`crate::MountOptions::foreign`]): it may keep fingerprints wherever it likes;
/// the references are counted in the chunk table for every policy.
pub trait Dedup: Send + Sync {
    /// What is to be known of a piece of one block before it is placed. With an empty fingerprint it is not entered in
    /// the chunk table.
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint;

    /// Whether it never shares and never fingerprints, so that a write need not be looked at block by block.
    fn stores_everything(&self) -> bool {
        false
    }

    /// Shares the piece if an equal block is stored. Candidates whose bytes differed are let go
    /// ([`Transaction::let_go`]). What it learns of the piece on the way it adds to its fingerprint.
    fn place(&self, piece: &[u8], fingerprint: &mut Fingerprint, tx: &mut Transaction<'_>) -> Place;

    /// Two pieces of one write were equal, so one of them was not placed.
    fn found_twin(&self) {}

    /// A stored piece can be reached now: others may share it. False when another writer was first, since `place`
    /// looked, with a block that may be equal and is none of `known`: `fs` asks again then, and offers this block
    /// only if they differ.
    fn committed(&self, block: BlockNumber, fingerprint: &Fingerprint, known: &[BlockNumber], chunks: &Chunks) -> bool;

    /// One extent less names the block, and others still do.
    fn unshared(&self, _block: BlockNumber) {}

    /// Nobody names the block any more. It gets no other user before this returns.
    fn released(&self, _block: BlockNumber) {}

    /// Whether chunks without a weak fingerprint are to get theirs.
    fn filling(&self) -> Filling {
        Filling::Never
    }
}

/// `committed` of a policy that finds blocks by their weak fingerprints in the index.
fn enter(block: BlockNumber, fingerprint: &Fingerprint, known: &[BlockNumber], chunks: &Chunks) -> bool {
    fingerprint.weak.is_none_or(|weak| chunks.index.insert_first(weak, block, known))
}

/// `place` of such a policy: shares the first block with this weak fingerprint that `is_equal`, which is asked with a
/// reference taken, so that the block's bytes stand still. The others are let go, and count as `collisions`.
fn share_first(
    weak: u32,
    tx: &mut Transaction<'_>,
    collisions: &AtomicU64,
    is_equal: impl Fn(BlockNumber, &mut Transaction<'_>) -> bool,
) -> Place {
    let mut seen = BlockNumber(0);
    while let Some(block) = tx.share_candidate(weak, seen) {
        if is_equal(block, tx) {
            return Place::Shared(block);
        }
        Tally::count(collisions);
        tx.let_go(block);
        seen = block;
    }
    Place::New
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
    /// Policy `nv-dedup`, with what it has learnt.
    pub nv_dedup: NvDedup,
    /// Policy `denova`, without its queue.
    pub denova: DeNova,
    inline: Inline,
    off: Off,
    foreign: Option<Arc<dyn Dedup>>,
}

impl Policies {
    /// With `policy` for new data, or a foreign one.
    pub fn new(options: &MountOptions) -> Policies {
        let inline = Inline::new(options.nv_dedup.weak);
        let nv_dedup = NvDedup::new(&options.nv_dedup);
        let denova = DeNova::new(options);
        Policies { policy: options.policy, nv_dedup, denova, inline, off: Off, foreign: options.foreign.clone() }
    }

    /// The policy that places new data of a file: its own, or else that of the mount.
    pub fn of(&self, own: Option<Policy>) -> &dyn Dedup {
        match (own, &self.foreign) {
            (None, Some(foreign)) => &**foreign,
            (own, _) => match own.unwrap_or(self.policy) {
                Policy::Off => &self.off,
                Policy::Inline => &self.inline,
                Policy::NvDedup => &self.nv_dedup,
                Policy::DeNova => &self.denova,
            },
        }
    }

    /// One extent less names the block, and others still do.
    pub fn unshared(&self, block: BlockNumber) {
        if let Some(foreign) = &self.foreign {
            foreign.unshared(block);
        }
    }

    /// Nobody names the block any more.
    pub fn released(&self, block: BlockNumber) {
        if let Some(foreign) = &self.foreign {
            foreign.released(block);
        }
    }

    /// Whether new data goes to `denova` unless its file says otherwise.
    pub fn is_denova(&self) -> bool {
        self.policy == Policy::DeNova && self.foreign.is_none()
    }

    /// What `nv-dedup` does, if new data goes there.
    pub fn nv_dedup_stats(&self) -> Option<NvDedupStats> {
        let is_used = self.policy == Policy::NvDedup && self.foreign.is_none();
        (is_used || self.nv_dedup.sampling.totals().0 > 0).then(|| self.nv_dedup.sampling.stats())
    }

    /// Whether chunks without a weak fingerprint are to get theirs.
    pub fn filling(&self) -> Filling {
        self.of(None).filling()
    }

    /// What each of the sharing policies saw.
    pub fn stats(&self) -> Vec<PolicyStats> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of = |policy, tally: &Tally| PolicyStats {
            policy,
            offered: get(&tally.offered),
            shared: get(&tally.shared),
            collisions: get(&tally.collisions),
        };
        let (offered, shared) = self.nv_dedup.sampling.totals();
        let collisions = get(&self.nv_dedup.collisions);
        vec![
            of(Policy::Inline, &self.inline.tally),
            PolicyStats { policy: Policy::NvDedup, offered, shared, collisions },
            of(Policy::DeNova, &self.denova.tally),
        ]
    }
}

/// Policy `off`: everything is stored, nothing is fingerprinted, no chunk entry is written.
struct Off;

impl Dedup for Off {
    fn stores_everything(&self) -> bool {
        true
    }

    fn fingerprint(&self, _piece: &[u8]) -> Fingerprint {
        Fingerprint::default()
    }

    fn place(&self, _: &[u8], _: &mut Fingerprint, _: &mut Transaction<'_>) -> Place {
        Place::New
    }

    fn committed(&self, _: BlockNumber, _: &Fingerprint, _: &[BlockNumber], _: &Chunks) -> bool {
        true
    }
}
