//! Policy `denova`: store now, share later (DeNOVA).
//!
//! The problem: on fast memory a fingerprint takes longer than the write that it might save (III, equations 1 to 5). So
//! whoever writes must not wait for one.
//!
//! The idea: a write stores everything and leaves a note; a daemon comes later and shares. The note is on the device, a
//! flag in the log entry of the write, and in DRAM, a node in the work queue. Which of them is lost does not matter:
//! the queue is saved by an orderly unmount, and after a crash the flags tell.
//!
//! ```text
//! write          data, log entry with dedupe_needed, commit; node into the queue              `fs/data.rs`
//! daemon   1     takes a node                                                                 `fs/daemon.rs`
//!          2     fingerprints, looks up                                      no lock          the index
//!          3     UC + 1 on what is equal; unique blocks are entered                           `chunk/update.rs`
//!          4, 5  log entries with in_process that name what is equal; tail
//!          6     UC - 1 and RFC + 1 at once; dedupe_complete; the old blocks are free
//! ```
//!
//! What the paper has the daemon do under the inode's lock, fingerprints and look-ups, is done without any lock here:
//! what was read is held against the file again when it is locked, for the few stores of steps 3 to 6.
//!
//! | module | what |
//! |---|---|
//! | [`queue`] | the work queue (IV-B1) |
//! | [`linger`] | how long nodes stay in it (V-B2) |
//!
//! In mode `inline` it shares as it writes, with the same functions: the paper's DeNOVA-Inline.

pub mod linger;
pub mod queue;

use super::{Dedup, Filling, Place, Tally, enter, share_first};
use crate::chunk::Chunks;
use crate::chunk::transaction::Transaction;
use crate::fingerprint::{Fingerprint, Strong, StrongFunction, WeakFunction};
use crate::media::BlockNumber;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::types::{DedupMode, MountOptions, Verify};

/// See the module.
pub struct DeNova {
    weak: WeakFunction,
    strong: Option<StrongFunction>,
    verify: Verify,
    mode: Mutex<DedupMode>,
    /// Whether the mode is `inline`: what a write asks.
    is_inline: AtomicBool,
    pub(crate) tally: Tally,
}

impl DeNova {
    /// As the options say.
    pub fn new(options: &MountOptions) -> DeNova {
        let (nv_dedup, mode) = (&options.nv_dedup, options.denova.mode);
        DeNova {
            weak: nv_dedup.weak,
            strong: nv_dedup
                .strong
                .filter(|strong| nv_dedup.verify == Verify::Strong || nv_dedup.weak.prefix_of() == Some(*strong)),
            verify: nv_dedup.verify,
            mode: Mutex::new(mode),
            is_inline: AtomicBool::new(mode == DedupMode::Inline),
            tally: Tally::default(),
        }
    }

    /// When it shares.
    pub fn mode(&self) -> DedupMode {
        *self.mode.lock()
    }

    /// When it shares from now on.
    pub fn set_mode(&self, mode: DedupMode) {
        *self.mode.lock() = mode;
        self.is_inline.store(mode == DedupMode::Inline, Ordering::Relaxed);
    }

    fn is_inline(&self) -> bool {
        self.is_inline.load(Ordering::Relaxed)
    }

    /// All that is to be known of a piece. A strong fingerprint is made where it decides, or where the weak one is its
    /// beginning and it costs nothing.
    pub(crate) fn fingerprint_of(&self, piece: &[u8]) -> Fingerprint {
        Fingerprint::of(piece, self.weak, self.strong)
    }

    /// Whether two pieces with these fingerprints are equal.
    pub(crate) fn are_equal(&self, one: (&[u8], &Fingerprint), other: (&[u8], &Fingerprint)) -> bool {
        one.1.weak == other.1.weak
            && match (one.1.strong, other.1.strong) {
                (Some(one), Some(other)) if self.verify == Verify::Strong => one == other,
                _ => one.0 == other.0,
            }
    }

    /// Whether a block whose bytes stand still holds the piece.
    pub(crate) fn is_equal(
        &self,
        block: BlockNumber,
        piece: &[u8],
        strong: Option<Strong>,
        tx: &mut Transaction<'_>,
    ) -> bool {
        match strong.filter(|_| self.verify == Verify::Strong) {
            Some(strong) => tx.strong_of(block) == Some(strong),
            None => tx.chunks().equal(block, piece),
        }
    }
}

impl Dedup for DeNova {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        if self.is_inline() { self.fingerprint_of(piece) } else { Fingerprint::default() }
    }

    fn stores_everything(&self) -> bool {
        !self.is_inline()
    }

    /// The mode may change between a piece's fingerprint and its placing: what has none is stored, and queued.
    fn place(&self, piece: &[u8], fingerprint: &mut Fingerprint, tx: &mut Transaction<'_>) -> Place {
        let Some(weak) = fingerprint.weak else { return Place::New };
        Tally::count(&self.tally.offered);
        let strong = fingerprint.strong;
        let is_equal = |block, tx: &mut Transaction<'_>| self.is_equal(block, piece, strong, tx);
        let placed = share_first(weak, tx, &self.tally.collisions, is_equal);
        if placed != Place::New {
            Tally::count(&self.tally.shared);
        }
        placed
    }

    fn found_twin(&self) {
        Tally::count(&self.tally.offered);
        Tally::count(&self.tally.shared);
    }

    fn committed(&self, block: BlockNumber, fingerprint: &Fingerprint, known: &[BlockNumber], chunks: &Chunks) -> bool {
        enter(block, fingerprint, known, chunks)
    }

    fn filling(&self) -> Filling {
        Filling::Queued
    }
}
