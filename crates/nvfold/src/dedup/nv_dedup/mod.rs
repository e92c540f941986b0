//! Policy `nv-dedup`: as much fingerprinting as pays for this workload on this device (NV-Dedup 4.4).
//!
//! The problem: on fast memory a strong hash of a block takes as long as writing it. Whether looking for duplicates
//! is worth its time depends on how many there are.
//!
//! The idea: four methods, a cost model that says which is the cheapest at a duplicate ratio ([`model`]), and
//! sampling that tells the ratio ([`sampling`]). The costs are measured on the device, at mount and at the end of
//! every sampling period (`fs::calibrate`).
//!
//! ```text
//!             before any lock       a stored block has the same weak fingerprint        stored with
//! Non_Fin     -                     -                                                   nothing: its entry is empty
//! w_s_Fin     weak                  strong of both; equal: shared                       weak, strong if there is one
//! Str_Fin     weak, strong          strong of the stored one; equal: shared             weak, strong
//! w_b_Fin     weak                  bytes compared; equal: shared                       weak
//! ```
//!
//! A strong fingerprint of the stored block that was missing is added to its entry on the way (4.4.2 (3)). Missing
//! weak ones are filled in the background ([`crate::FileSystem::dedup_step`]; 4.4.2 (2)). What Non_Fin watches goes
//! the way of w_b_Fin. With `verify=bytes` the bytes are compared last whatever the method, so no collision, made on
//! purpose or not, ever shares different data; with `verify=strong` a strong fingerprint is trusted, as in the paper.
//!
//! The method may change between a piece's fingerprint and its placing: what the fingerprint has decides then.

pub mod model;
pub mod sampling;

use super::{Dedup, Filling, Place, enter, share_first};
use crate::chunk::Chunks;
use crate::chunk::transaction::Transaction;
use crate::fingerprint::{Fingerprint, Strong, StrongFunction, WeakFunction};
use crate::media::BlockNumber;
use crate::sync::atomic::AtomicU64;
use crate::types::{Method, NvDedupOptions, Verify};
use sampling::{Sampling, is_watched};

/// See the module.
pub struct NvDedup {
    weak: WeakFunction,
    strong: Option<StrongFunction>,
    verify: Verify,
    /// What chooses the method.
    pub(crate) sampling: Sampling,
    /// Weak fingerprints that matched where the data did not.
    pub(super) collisions: AtomicU64,
}

impl NvDedup {
    /// As the options say.
    pub fn new(options: &NvDedupOptions) -> NvDedup {
        NvDedup {
            weak: options.weak,
            strong: options.strong,
            verify: options.verify,
            sampling: Sampling::new(options),
            collisions: AtomicU64::new(0),
        }
    }

    /// The piece's strong fingerprint, if strong ones are to decide. Made before a reference is taken, and only if
    /// there is anything to decide.
    fn strong_of_piece(
        &self,
        piece: &[u8],
        weak: u32,
        fingerprint: &mut Fingerprint,
        chunks: &Chunks,
    ) -> Option<Strong> {
        let decides = matches!(self.sampling.mode().0, Method::WSFin | Method::StrFin);
        let function = self.strong.filter(|_| decides)?;
        if fingerprint.strong.is_none() && chunks.index.find(weak, BlockNumber(0), |_| true).is_some() {
            fingerprint.strong = Some(function.of(piece));
        }
        fingerprint.strong
    }

    /// Whether a block whose bytes stand still holds the piece.
    fn is_equal(&self, block: BlockNumber, piece: &[u8], strong: Option<Strong>, tx: &mut Transaction<'_>) -> bool {
        match strong {
            Some(strong) if tx.strong_of(block) != Some(strong) => false,
            Some(_) if self.verify == Verify::Strong => true,
            _ => tx.chunks().equal(block, piece),
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
        Fingerprint::of(piece, self.weak, self.strong.filter(|_| method == Method::StrFin))
    }

    fn place(&self, piece: &[u8], fingerprint: &mut Fingerprint, tx: &mut Transaction<'_>) -> Place {
        let Some(weak) = fingerprint.weak else { return Place::New };
        let strong = self.strong_of_piece(piece, weak, fingerprint, tx.chunks());
        let placed = share_first(weak, tx, &self.collisions, |block, tx| self.is_equal(block, piece, strong, tx));
        if placed != Place::New {
            self.sampling.found();
        }
        placed
    }

    fn found_twin(&self) {
        self.sampling.found();
    }

    fn committed(&self, block: BlockNumber, fingerprint: &Fingerprint, known: &[BlockNumber], chunks: &Chunks) -> bool {
        enter(block, fingerprint, known, chunks)
    }

    /// While Non_Fin stores everything nobody looks for what it stored.
    fn filling(&self) -> Filling {
        match self.sampling.mode().0 {
            Method::NonFin => Filling::Later,
            Method::WSFin | Method::StrFin | Method::WBFin => Filling::Now,
        }
    }
}
