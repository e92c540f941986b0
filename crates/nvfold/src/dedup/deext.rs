//! Policy `deext`: dual chunking by compressibility, and packed chunks (DeEXT, Chen et al.).
//!
//! The problem: fixed-size chunks miss duplicates after an inserted byte, and cutting all data by content costs more
//! than it saves for encoded data.
//!
//! The idea: sample the data. Compressible data is cut by content, other data every 16 KiB (III-A); the unit of the
//! check is a piece. A piece is shared if an equal one is stored, and otherwise stored as a packed chunk. The class
//! of its entry records how it was cut (III-B).
//!
//! [`super::stream`] cuts a file that is written in several requests; [`super::streams`] holds the open streams.
//!
//! The table of packed entries stands in for the paper's hidden dedupe file, and the device's index for its RB-tree
//! (docs/papers.md).

use super::batch::{PolicyCounters, Search, enter, is_packed, share_all};
use super::stream::DeExtOptions;
use super::streams::Streams;
use super::work::Host;
use super::{Dedup, NewChunk, Piece, Place};
use crate::chunk::Chunks;
use crate::chunk::transaction::Transaction;
use crate::dedup::policy::Verify;
use crate::error::Result;
use crate::fingerprint::{Fingerprint, StrongFunction, WeakFunction};
use crate::media::ChunkRef;
use crate::words::Stopwatch;

/// Policy `deext`.
pub(crate) struct DeExt {
    weak: WeakFunction,
    /// The strong function that decides, where fingerprints are trusted.
    strong: Option<StrongFunction>,
    /// The open streams.
    pub(crate) streams: Streams,
    pub(super) tally: PolicyCounters,
}

impl DeExt {
    /// Creates the policy, which uses the device's index. Bytes are compared, unless `verify` trusts strong
    /// fingerprints as the paper does (IV-A).
    pub(crate) fn new(
        weak: WeakFunction,
        strong: Option<StrongFunction>,
        verify: Verify,
        options: DeExtOptions,
        stopwatch: Option<Stopwatch>,
    ) -> DeExt {
        let strong = (verify == Verify::Strong).then(|| strong.unwrap_or_default());
        DeExt { weak, strong, streams: Streams::new(options, stopwatch), tally: PolicyCounters::default() }
    }
}

impl Dedup for DeExt {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        Fingerprint { weak: Some(self.weak.of(piece)), strong: self.strong.map(|function| function.of(piece)) }
    }

    fn streams(&self) -> Option<&Streams> {
        Some(&self.streams)
    }

    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        let is_equal = |piece: &mut Piece<'_>, chunk, tx: &mut Transaction<'_>| match piece.fingerprint.strong {
            Some(strong) => tx.chunks().has_length(chunk, piece.bytes.len()) && tx.strong_of(chunk) == Some(strong),
            None => tx.chunks().equal(chunk, piece.bytes),
        };
        let search = Search { collisions: &self.tally.collisions, fits: is_packed, reads_bytes: self.strong.is_none() };
        let (offered, shared) = share_all(pieces, tx, &search, is_equal);
        self.tally.count(offered, shared);
        debug_assert!(
            pieces.iter().all(|piece| !matches!(&piece.place, Place::Shared(of) if of.chunk().block().is_some()))
        );
    }

    fn published(&self, new: &[NewChunk], known: &[ChunkRef], chunks: &Chunks) -> Vec<ChunkRef> {
        enter(new, known, chunks)
    }

    /// Ends a stream that was not written to for a while, or cuts a seam again.
    fn step(&self, host: &dyn Host) -> Result<bool> {
        if let Some((file, stream)) = self.streams.take_idle() {
            host.end_stream(file, stream)?;
            return Ok(false);
        }
        let Some(seam) = self.streams.take_seam() else { return Ok(true) };
        host.cut_seam(seam)?;
        Ok(false)
    }
}
