//! What does a directory's data look like now? What policy `auto` sees of it, and what that costs.
//!
//! The problem: policies that store everything never learn how many duplicates there are.
//!
//! The idea: each concrete policy of a directory is wrapped in an [`Observed`], which counts what it is offered and what it
//! shares. In place of `off` stands [`Watch`]: pieces of one *content* in 32 go the way of policy `inline`, so all copies of
//! a content are watched or none, and the ratio among them is that of the workload (see
//! [`is_watched`](crate::dedup::nv_dedup::sampling::is_watched)). Where all pieces are looked at, watched or not, all
//! count. Of the watched pieces one in four is checked for compressibility.

use super::directory::Directory;
use crate::chunk::transaction::Transaction;
use crate::chunk::{Chunks, Released};
use crate::chunking::{Compressibility, Verdict};
use crate::dedup::inline::Inline;
use crate::dedup::nv_dedup::sampling::is_watched;
use crate::dedup::streams::Streams;
use crate::dedup::work::{Host, Token, Unfingerprinted};
use crate::dedup::{Dedup, Ground, Piece, Place};
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::media::{BLOCK_BYTES, ChunkRef};
use std::sync::Arc;

/// One watched piece of so many is checked for compressibility.
const CHECKED_OF: u64 = 4;

/// In place of `off`: stores everything, and looks for one content in 32. What it stores without a fingerprint gets one in
/// the background when anybody looks for it.
pub(super) struct Watch {
    pub(super) inline: Arc<Inline>,
}

impl Dedup for Watch {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        if is_watched(piece) { self.inline.fingerprint(piece) } else { Fingerprint::default() }
    }

    fn goes_by_index(&self) -> bool {
        true
    }

    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        self.inline.place(pieces, tx);
    }

    fn published(&self, chunk: ChunkRef, fingerprint: &Fingerprint, known: &[ChunkRef], chunks: &Chunks) -> bool {
        self.inline.published(chunk, fingerprint, known, chunks)
    }

    fn unfingerprinted(&self) -> Unfingerprinted {
        Unfingerprinted::Filed
    }

    fn file_lacks(&self, file: u64) {
        self.inline.file_lacks(file);
    }
}

/// A concrete policy in a directory. A request keeps the one that it began with, so a change of the choice never meets a
/// request half way.
pub(super) struct Observed {
    pub(super) inner: Arc<dyn Dedup>,
    pub(super) directory: Arc<Directory>,
}

impl Dedup for Observed {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        self.inner.fingerprint(piece)
    }

    fn stores_everything(&self) -> bool {
        self.inner.stores_everything()
    }

    fn goes_by_index(&self) -> bool {
        self.inner.goes_by_index()
    }

    fn streams(&self) -> Option<&Streams> {
        self.inner.streams()
    }

    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        self.inner.place(pieces, tx);
        let (mut looked_for, mut found) = (0, 0);
        for piece in pieces.iter().filter(|piece| !piece.fingerprint.is_empty()) {
            looked_for += piece.bytes.len() as u64;
            found += if piece.place == Place::Store { 0 } else { piece.bytes.len() as u64 };
        }
        if looked_for == 0 {
            return;
        }
        let is_checked = |piece: &&Piece<'_>| {
            let weak = u64::from(piece.fingerprint.weak.unwrap_or(1));
            weak.is_multiple_of(CHECKED_OF) && piece.bytes.len() as u64 >= BLOCK_BYTES && is_watched(piece.bytes)
        };
        let checked = pieces.iter().find(is_checked);
        let is_compressible =
            checked.map(|piece| Compressibility::default().check(piece.bytes) == Verdict::Compressible);
        self.directory.each_seen(|seen| {
            seen.count_looks(looked_for, found);
            is_compressible.into_iter().for_each(|is_compressible| seen.count_check(is_compressible));
        });
    }

    fn published(&self, chunk: ChunkRef, fingerprint: &Fingerprint, known: &[ChunkRef], chunks: &Chunks) -> bool {
        self.inner.published(chunk, fingerprint, known, chunks)
    }

    fn released(&self, chunk: ChunkRef, left: Released) {
        self.inner.released(chunk, left);
    }

    fn request_done(&self, bytes: u64, ground: &Ground<'_>) {
        self.inner.request_done(bytes, ground);
        self.directory.request_done(bytes, ground);
    }

    fn unfingerprinted(&self) -> Unfingerprinted {
        self.inner.unfingerprinted()
    }

    fn file_lacks(&self, file: u64) {
        self.inner.file_lacks(file);
    }

    fn entry_lacks(&self, entry: Token, blocks: u32, time: i64) {
        self.inner.entry_lacks(entry, blocks, time);
    }

    fn step(&self, host: &dyn Host) -> Result<bool> {
        self.inner.step(host)
    }

    fn may_free_space(&self) -> bool {
        self.inner.may_free_space()
    }
}
