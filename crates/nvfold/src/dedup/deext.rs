//! DeEXT: dual chunking by compressibility, packed chunks (Chen et al.).
//!
//! The problem: data that is cut every so many bytes is not found again behind an inserted byte, and to cut all data by its
//! content costs more than encoded data ever gives back.
//!
//! The idea: each stream is sampled. Compressible data is cut by content, the rest every 16 KiB (III-A). A piece is shared
//! if an equal one is stored, and stored as a packed chunk otherwise; the class of its entry says how it was cut (III-B).
//!
//! What cuts a file that is written piece by piece is [`super::stream`]; the streams under way are in [`super::streams`].
//!
//! The table of packed entries is the paper's hidden dedupe file, and the index of the device stands in for its RB-tree
//! (docs/papers.md).

use super::batch::{Search, Tally, enter, is_packed, share_all};
use super::stream::DeExtOptions;
use super::streams::Streams;
use super::work::Host;
use super::{Dedup, Piece, Place};
use crate::chunk::Chunks;
use crate::chunk::transaction::Transaction;
use crate::dedup::policy::Verify;
use crate::error::Result;
use crate::fingerprint::{Fingerprint, StrongFunction, WeakFunction};
use crate::media::ChunkRef;
use crate::words::Stopwatch;

/// Policy `deext`.
pub struct DeExt {
    weak: WeakFunction,
    /// What decides, where fingerprints are trusted.
    strong: Option<StrongFunction>,
    /// The streams under way.
    pub(crate) streams: Streams,
    pub(super) tally: Tally,
}

impl DeExt {
    /// Makes the policy with the device's index. Bytes are compared unless `verify` trusts strong fingerprints, as the paper does (IV-A).
    pub fn new(
        weak: WeakFunction,
        strong: Option<StrongFunction>,
        verify: Verify,
        options: DeExtOptions,
        stopwatch: Option<Stopwatch>,
    ) -> DeExt {
        let strong = (verify == Verify::Strong).then(|| strong.unwrap_or_default());
        DeExt { weak, strong, streams: Streams::new(options, stopwatch), tally: Tally::default() }
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

    fn published(&self, chunk: ChunkRef, fingerprint: &Fingerprint, known: &[ChunkRef], chunks: &Chunks) -> bool {
        enter(chunk, fingerprint, known, chunks)
    }

    /// Ends a stream that nobody has written to for a while, or cuts a seam anew.
    fn step(&self, host: &dyn Host) -> Result<bool> {
        if let Some((file, stream)) = self.streams.take_idle() {
            host.end_stream(file, stream)?;
            return Ok(false);
        }
        let Some(seam) = self.streams.take_seam() else { return Ok(true) };
        host.cut_seam(seam.file, seam.offset)?;
        Ok(false)
    }
}
