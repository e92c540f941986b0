//! Policy `nv-dedup`: as much fingerprinting as pays off for this workload on this device (NV-Dedup 4.4).
//!
//! The problem: on fast memory, a strong hash of a block takes as long as writing it. Whether it pays to look for
//! duplicates depends on how many there are.
//!
//! The idea: four methods, a cost model that finds the cheapest at a duplicate ratio ([`model`]), and
//! sampling that measures the ratio ([`sampling`]). The costs are measured on the device, at mount and at the end of
//! every sampling period ([`costs`]).
//!
//! ```text
//!             before any lock       a stored block has the same weak fingerprint        stored with
//! Non_Fin     -                     -                                                   nothing: its entry is empty
//! w_s_Fin     weak                  strong of both; equal: shared                       weak, strong if there is one
//! Str_Fin     weak, strong          strong of the stored one; equal: shared             weak, strong
//! w_b_Fin     weak                  bytes compared; equal: shared                       weak
//! ```
//!
//! If a look-up needs the strong fingerprint of a stored block that has none, it computes it and adds it to the entry
//! (4.4.2 (3)). Missing weak ones are filled in the background ([`super::filler`]; 4.4.2 (2)). Pieces that Non_Fin
//! watches are handled as in w_b_Fin.
//!
//! With `verify=bytes`, every method compares the bytes last, so that no collision, forged or accidental, ever shares
//! different data. With `verify=strong`, a strong fingerprint is trusted, as in the paper.
//!
//! The method may change between fingerprinting and placing a piece. Then the fingerprints that the piece has decide.

pub(crate) mod costs;
pub(crate) mod model;
pub(crate) mod options;
pub(crate) mod sampling;

use super::batch::{Search, enter, is_block, share_all};
use super::filler::Filler;
use super::policy::{Policy, PolicyStats, Verify};
use super::work::{Host, Unfingerprinted};
use super::{Dedup, NewChunk, Piece, PolicyDevice};
use crate::chunk::Chunks;
use crate::chunk::transaction::Transaction;
use crate::error::Result;
use crate::fingerprint::{Fingerprint, Keys, StrongFunction};
use crate::media::ChunkRef;
use crate::words::FileId;
use crate::words::Stopwatch;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use options::{Method, NvDedupOptions};
use sampling::{Sampling, is_watched};
use std::sync::Arc;

/// Policy `nv-dedup`; see the module.
pub struct NvDedup {
    keys: Keys,
    strong: Option<StrongFunction>,
    verify: Verify,
    /// Clock for measuring costs; `None` when the costs were given.
    stopwatch: Option<Stopwatch>,
    /// Measures the ratio and chooses the method.
    pub(crate) sampling: Sampling,
    /// Adds the fingerprints that stored chunks lack.
    pub(super) filler: Arc<Filler>,
    /// Number of times that a weak fingerprint matched and the data did not.
    collisions: AtomicU64,
}

impl NvDedup {
    /// Creates the policy for a mount that has no other.
    pub fn new(options: &NvDedupOptions, stopwatch: Option<Stopwatch>) -> NvDedup {
        NvDedup::with_keys(options.weak.into(), options, stopwatch)
    }

    /// Creates the policy with the keys of its device.
    pub(super) fn with_keys(keys: Keys, options: &NvDedupOptions, stopwatch: Option<Stopwatch>) -> NvDedup {
        NvDedup {
            keys,
            strong: options.strong,
            verify: options.verify,
            stopwatch: stopwatch.filter(|_| options.costs.is_none()),
            sampling: Sampling::new(options),
            filler: Arc::new(Filler::new()),
            collisions: AtomicU64::new(0),
        }
    }

    /// Measures costs at mount, so that the first sampling period is judged by this device's costs.
    pub(super) fn measure(&self, ground: &PolicyDevice<'_>) {
        if let Some(costs) = self.measured(ground) {
            self.sampling.take_costs(costs);
        }
    }

    fn measured(&self, ground: &PolicyDevice<'_>) -> Option<options::Costs> {
        let with_entries = !self.goes_by_index() || !ground.chunks.finds_private();
        costs::measure(ground, self.stopwatch.as_ref()?, with_entries)
    }

    /// True if new data is looked up. While Non_Fin stores everything, no look-up would use the fingerprints that the
    /// filler adds.
    pub(crate) fn looks_for_fingerprints(&self) -> bool {
        self.sampling.mode().0 != Method::NonFin
    }

    /// Returns the counters of the policy since mount.
    pub(super) fn policy_stats(&self) -> PolicyStats {
        let (offered, shared) = self.sampling.totals();
        let collisions = self.collisions.load(Ordering::Relaxed);
        PolicyStats { policy: Policy::NvDedup, offered, shared, collisions }
    }

    /// Returns the function of the strong fingerprints that decide now, if they do.
    fn deciding_function(&self) -> Option<StrongFunction> {
        self.strong.filter(|_| matches!(self.sampling.mode().0, Method::WSFin | Method::StrFin))
    }

    /// True if a block holds the bytes of the piece. The caller holds a reference, so that the block cannot change.
    /// If strong fingerprints decide, the piece's own is computed only now, when there is something to decide.
    fn is_equal(&self, piece: &mut Piece<'_>, block: ChunkRef, tx: &mut Transaction<'_>) -> bool {
        let Some(function) = self.deciding_function() else { return tx.chunks().equal(block, piece.bytes) };
        let strong = *piece.fingerprint.strong.get_or_insert_with(|| function.of(piece.bytes));
        match tx.strong_of(block) == Some(strong) {
            true if self.verify == Verify::Bytes => tx.chunks().equal(block, piece.bytes),
            is_equal => is_equal,
        }
    }
}

impl Dedup for NvDedup {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        let (method, watches) = self.sampling.mode();
        let looked_for = method != Method::NonFin || watches && is_watched(piece);
        self.sampling.count(looked_for);
        if !looked_for {
            return Fingerprint::default();
        }
        Fingerprint::by_keys(piece, self.keys, self.strong.filter(|_| method == Method::StrFin))
    }

    fn stores_unseen(&self, block: &[u8]) -> bool {
        let (method, watches) = self.sampling.mode();
        method == Method::NonFin && !(watches && is_watched(block))
    }

    fn stored_unseen(&self) {
        self.sampling.count(false);
    }

    fn prefetch(&self, block: &[u8]) {
        self.keys.prefetch(block);
    }

    /// Where strong fingerprints are trusted, each chunk has an entry from the beginning, as in the paper.
    fn goes_by_index(&self) -> bool {
        self.verify == Verify::Bytes
    }

    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        let is_equal = |piece: &mut Piece<'_>, block, tx: &mut Transaction<'_>| self.is_equal(piece, block, tx);
        let reads_bytes = self.verify == Verify::Bytes || self.deciding_function().is_none();
        let search = Search { collisions: &self.collisions, fits: is_block, reads_bytes };
        let (_, shared) = share_all(pieces, tx, &search, is_equal);
        (0..shared).for_each(|_| self.sampling.found());
    }

    fn published(&self, new: &[NewChunk], known: &[ChunkRef], chunks: &Chunks) -> Vec<ChunkRef> {
        enter(new, known, chunks)
    }

    /// Ends a sampling period that has had its chunks. One thread ends it while the others continue.
    fn request_done(&self, _bytes: u64, ground: &PolicyDevice<'_>) {
        if self.sampling.is_over() {
            self.sampling.end_period(|| self.measured(ground), || !self.filler.is_done());
        }
    }

    fn unfingerprinted(&self) -> Unfingerprinted {
        Unfingerprinted::Filed
    }

    fn record_unfingerprinted_file(&self, file: FileId) {
        self.filler.add(file);
    }

    fn step(&self, host: &dyn Host) -> Result<bool> {
        if self.looks_for_fingerprints() { self.filler.step(host) } else { Ok(true) }
    }
}
