//! What does a directory's data look like now? How policy `auto` observes it, and what that costs.
//!
//! The problem: a policy that stores everything never learns how many duplicates there are.
//!
//! The idea: each concrete policy of a directory is wrapped in an [`Observed`], which counts what the policy is
//! offered and what it shares. In place of `off` stands [`ObservedOff`]: it passes pieces of one *content* in 4 to 32 to
//! policy `inline`. All copies of a content are watched or none, so the ratio among them is that of the workload (see
//! [`is_watched`](crate::dedup::nv_dedup::sampling::is_watched)). Where the policy looks up all pieces, all of them
//! count.
//!
//! Where nothing that could be seen would change the choice of `off`, [`Unwatched`] stands in for it instead: `fs` treats
//! it like `off`, and only requests are counted.
//!
//! Where compressibility matters for the choice, one block in 16 is checked, whatever its content, and one piece in
//! four under policies that cut.

use super::directory::ObservedDirectory;
use crate::chunk::transaction::Transaction;
use crate::chunk::{Chunks, Released};
use crate::chunking::{Compressibility, Verdict};
use crate::dedup::inline::Inline;
use crate::dedup::nv_dedup::sampling::is_one_of;
use crate::dedup::streams::Streams;
use crate::dedup::work::{Host, Token, Unfingerprinted};
use crate::dedup::{Dedup, Looks, NewChunk, Piece, Place, PolicyDevice};
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::media::{BLOCK_BYTES, ChunkRef};
use crate::words::FileId;
use std::sync::Arc;

/// One block in this many is checked for compressibility, and one cut piece in this many.
const CHECKED_BLOCK_OF: u64 = 16;
const CHECKED_PIECE_OF: u32 = 4;
const BLOCK: usize = BLOCK_BYTES as usize;

/// Stands in for `off` where looking at data could not change the choice: stores everything.
pub(super) struct Unwatched {
    pub(super) inline: Arc<Inline>,
    pub(super) directory: Arc<ObservedDirectory>,
}

impl Dedup for Unwatched {
    fn stores_everything(&self) -> bool {
        true
    }

    fn stores_unseen(&self, _block: &[u8]) -> bool {
        true
    }

    fn fingerprint(&self, _piece: &[u8]) -> Fingerprint {
        Fingerprint::default()
    }

    fn place(&self, _pieces: &mut [Piece<'_>], _tx: &mut Transaction<'_>) {}

    fn published(&self, _: &[NewChunk], _: &[ChunkRef], _: &Chunks) -> Vec<ChunkRef> {
        Vec::new()
    }

    fn request_done(&self, bytes: u64, ground: &PolicyDevice<'_>) {
        self.directory.request_done(bytes, ground);
    }

    // Costs may change: another policy is chosen then, and looks for what is stored now.
    fn unfingerprinted(&self) -> Unfingerprinted {
        Unfingerprinted::Filed
    }

    fn record_unfingerprinted_file(&self, file: FileId) {
        self.inline.record_unfingerprinted_file(file);
    }
}

/// Stands in for `off` elsewhere: stores everything, and looks up one content in 4 to 32 where that may change the choice.
/// Blocks that it stores without a fingerprint get one in the background when some directory looks for them.
pub(super) struct ObservedOff {
    pub(super) inline: Arc<Inline>,
    pub(super) directory: Arc<ObservedDirectory>,
}

impl Dedup for ObservedOff {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        match is_one_of(piece, self.directory.watched_bits()) {
            true => self.inline.fingerprint(piece),
            false => Fingerprint::default(),
        }
    }

    fn stores_unseen(&self, block: &[u8]) -> bool {
        !is_one_of(block, self.directory.watched_bits())
    }

    fn looks_for(&self, blocks: &[u8]) -> Looks {
        let bits = self.directory.watched_bits();
        let blocks = blocks.chunks_exact(BLOCK).enumerate();
        Looks::Only(blocks.filter(|(_, block)| is_one_of(block, bits)).map(|(at, _)| at).collect())
    }

    fn goes_by_index(&self) -> bool {
        true
    }

    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        self.inline.place(pieces, tx);
    }

    fn published(&self, new: &[NewChunk], known: &[ChunkRef], chunks: &Chunks) -> Vec<ChunkRef> {
        self.inline.published(new, known, chunks)
    }

    fn unfingerprinted(&self) -> Unfingerprinted {
        Unfingerprinted::Filed
    }

    fn record_unfingerprinted_file(&self, file: FileId) {
        self.inline.record_unfingerprinted_file(file);
    }
}

/// A concrete policy in a directory, observed. A request keeps the policy that it began with, so a change of the
/// choice never affects a request under way.
pub(super) struct Observed {
    pub(super) inner: Arc<dyn Dedup>,
    pub(super) directory: Arc<ObservedDirectory>,
    /// True if the policy cuts pieces of any length.
    pub(super) cuts: bool,
}

impl Observed {
    /// Checks whether a block or a piece is compressible, and counts the result.
    fn check(&self, bytes: &[u8]) {
        let is_compressible = Compressibility::default().check(bytes) == Verdict::Compressible;
        self.directory.each_seen(|seen| seen.count_check(is_compressible));
    }

    fn check_blocks(&self, blocks: &[u8]) {
        if self.directory.checks() {
            let checked = self.directory.next_checked(blocks.len() / BLOCK, CHECKED_BLOCK_OF);
            checked.for_each(|at| self.check(&blocks[at * BLOCK..(at + 1) * BLOCK]));
        }
    }

    fn check_pieces(&self, pieces: &[Piece<'_>]) {
        let is_sample = |piece: &&Piece<'_>| {
            piece.fingerprint.weak.is_some_and(|weak| weak.is_multiple_of(CHECKED_PIECE_OF))
                && piece.bytes.len() >= BLOCK
        };
        pieces.iter().filter(is_sample).for_each(|piece| self.check(piece.bytes));
    }
}

impl Dedup for Observed {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        self.inner.fingerprint(piece)
    }

    fn prefetch(&self, block: &[u8]) {
        self.inner.prefetch(block);
    }

    fn stores_everything(&self) -> bool {
        self.inner.stores_everything()
    }

    fn stores_unseen(&self, block: &[u8]) -> bool {
        !self.directory.checks() && self.inner.stores_unseen(block)
    }

    fn stored_unseen(&self) {
        self.inner.stored_unseen();
    }

    fn keeps_zeros(&self) -> bool {
        self.inner.keeps_zeros()
    }

    fn observe_blocks(&self, blocks: &[u8]) {
        self.check_blocks(blocks);
        self.inner.observe_blocks(blocks);
    }

    fn looks_for(&self, blocks: &[u8]) -> Looks {
        self.check_blocks(blocks);
        self.inner.looks_for(blocks)
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
        if looked_for == 0 || !self.directory.watches() {
            return;
        }
        self.directory.each_seen(|seen| seen.count_looks(looked_for, found));
        if self.cuts && self.directory.checks() {
            self.check_pieces(pieces);
        }
    }

    fn published(&self, new: &[NewChunk], known: &[ChunkRef], chunks: &Chunks) -> Vec<ChunkRef> {
        self.inner.published(new, known, chunks)
    }

    fn released(&self, chunk: ChunkRef, left: Released) {
        self.inner.released(chunk, left);
    }

    fn request_done(&self, bytes: u64, ground: &PolicyDevice<'_>) {
        self.inner.request_done(bytes, ground);
        self.directory.request_done(bytes, ground);
    }

    fn unfingerprinted(&self) -> Unfingerprinted {
        self.inner.unfingerprinted()
    }

    fn record_unfingerprinted_file(&self, file: FileId) {
        self.inner.record_unfingerprinted_file(file);
    }

    fn record_unfingerprinted_entry(&self, entry: Token, blocks: u32, time: i64) {
        self.inner.record_unfingerprinted_entry(entry, blocks, time);
    }

    fn step(&self, host: &dyn Host) -> Result<bool> {
        self.inner.step(host)
    }

    fn may_free_space(&self) -> bool {
        self.inner.may_free_space()
    }
}
