//! The chunk table: how often each block is named, and the index that finds a block by its fingerprint.
//!
//! The problem: a count must never be lower on the media than the extents that can be reached
//! (invariant 1), must be exact after recovery (invariant 2), and must cost nothing for data that
//! nobody shares.
//!
//! The idea: three states of a block, told by its one-line entry.
//!
//! ```text
//! entry empty    free, or private: named by exactly one extent; the dram index may know its fingerprint
//! count >= 1     tracked: named by exactly `count` extents
//!
//!  private --share--> 2        n --share--> n+1       n --release--> n-1     1 --release--> free
//!  private --release--> free
//! ```
//!
//! A packed chunk has no private state: its entry counts as long as it is named, and is empty when it is free.
//!
//! Counts change by one 16-byte compare-and-exchange of tag, transaction and counts, then one line flush.
//! An increase is durable before the commit word that publishes the extent, a decrease comes after it. So a crash
//! leaves counts too high, never too low. What a [`transaction`] left unfinished is taken back at the mount, and
//! [`recount`] finds the true counts while the file system is in use. Beside the count an entry has an update count:
//! references of those who are about to name the block.
//!
//! The door is [`Chunks`]; its duties have a file each:
//!
//! | file | duty |
//! |---|---|
//! | `entries.rs` | where entries lie, and their numbers in the indexes |
//! | `packed.rs` | which entries of packed chunks are free, and what they take |
//! | `content.rs` | where a chunk's bytes are, reading and comparing them |
//! | `counts.rs` | a reference more, a reference less |
//! | `update.rs` | the same of the update count |
//! | `fingerprints.rs` | fingerprints that are added to entries that count |
//! | `presence.rs` | which blocks have an entry: bits and totals in DRAM |
//! | `scan.rs` | what a mount learns of the table |
//! | `exact.rs` | what reconcile asks of it and makes of it |
//! | `epochs.rs` | who may still look where a packed chunk lay |
//! | `labels.rs` | whether the dram index may find a block, and the argument why a block that it finds is not freed |
//! | `moves.rs` | a packed chunk gets another place |
//! | `sight.rs` | what a look into an index tells before a search |

pub(crate) mod content;
mod counts;
pub mod dram;
pub mod entries;
pub mod epochs;
mod exact;
pub mod fact;
mod fingerprints;
pub mod index;
pub mod labels;
mod moves;
pub mod packed;
mod presence;
pub mod recount;
pub mod reference;
mod scan;
pub mod sight;
pub mod transaction;
mod update;

pub(crate) use moves::Moving;

use crate::fingerprint::{StrongFunction, WeakFunction};
use crate::media::chunk_entry::{ChunkEntry, ENTRY_BYTES, LINKS_WORD};
use crate::media::superblock::Geometry;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, SEGMENT_BLOCKS};
use crate::padded::{Padded, Sum};
use crate::space::BlockRun;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Mutex, MutexGuard, RwLock, zeroed};
use entries::{Entries, word};
use epochs::Epochs;
use index::Index;
use packed::Packed;
use pmem::{PmemError, Region};
use recount::Recount;
use smallvec::SmallVec;
use std::sync::Arc;
use transaction::{GeneratorLines, Generators, Transaction};

/// Where delete pointer, flags and functions lie in an entry: one word.
const FLAGS_WORD: u64 = LINKS_WORD + 8;

/// Most blocks whose entries are fetched at once: 16 KiB of the table, which the first-level cache holds.
const FETCHED_BLOCKS: u64 = 256;

/// What became of a block when one extent let go of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Nobody names it any more.
    Free,
    /// Others still do.
    Kept,
}

/// Why a block gets no further reference.
#[derive(Debug)]
pub enum Unshareable {
    /// Its count cannot grow further.
    Saturated,
    /// It is a packed chunk whose entry counts nothing: damage.
    Lost,
    /// Its entry lies in bad memory.
    Bad(PmemError),
}

/// Locks of what is changed in an entry beside its counts, which is seldom, and of its block's label. Neighbours have
/// different ones.
struct Lines {
    locks: Vec<Padded<Mutex<()>>>,
}

impl Lines {
    fn new() -> Lines {
        Lines { locks: (0..64).map(|_| Padded::default()).collect() }
    }

    fn lock(&self, chunk: ChunkRef) -> MutexGuard<'_, ()> {
        self.locks[word(chunk) as usize % self.locks.len()].lock()
    }
}

/// The table and its index.
pub struct Chunks {
    region: Region,
    geometry: Geometry,
    /// Where entries lie.
    pub(crate) entries: Arc<Entries>,
    /// Packed chunks: their entries, and what they take.
    pub(crate) packed: Packed,
    /// Who looks up where packed chunks lie.
    pub(crate) epochs: Epochs,
    /// Finds tracked chunks by weak fingerprint.
    pub index: Index,
    /// What makes the fingerprints; the index holds the weak ones. Those of other functions count as missing.
    weak: WeakFunction,
    strong: StrongFunction,
    generators: GeneratorLines,
    /// Dram index: one bit a block, has an entry. A private block is released without a look at the media, so the
    /// table of a device that shares nothing stays a hole. With a pm index there is one bit a segment, has had an
    /// entry since the mount, and the table itself tells the rest.
    has_entry: Box<[AtomicU64]>,
    /// Entries in use, with a pm index.
    tracked: Sum,
    extra_references: Sum,
    lines: Lines,
    /// Whether `recount` holds anything: looked at without its lock.
    recounting: AtomicBool,
    recount: RwLock<Option<Recount>>,
}

impl Chunks {
    /// The table of a device, with its index as far as that is there.
    pub(crate) fn new(
        region: Region,
        geometry: Geometry,
        (entries, index): (Arc<Entries>, Index),
        (weak, strong): (WeakFunction, StrongFunction),
        generators: Generators,
    ) -> Chunks {
        let words = if index.fact().is_some() { 1 } else { SEGMENT_BLOCKS };
        Chunks {
            weak,
            strong,
            generators: GeneratorLines::new(generators),
            region,
            geometry,
            packed: Packed::new(entries.clone()),
            epochs: Epochs::default(),
            entries,
            index,
            has_entry: zeroed((geometry.segments() * words).div_ceil(64)),
            tracked: Sum::default(),
            extra_references: Sum::default(),
            lines: Lines::new(),
            recounting: AtomicBool::new(false),
            recount: RwLock::new(None),
        }
    }

    /// Dedup transactions that began since the device was formatted.
    pub fn transactions(&self) -> u64 {
        self.generators.begun()
    }

    /// References beyond the first of every block: blocks saved by sharing.
    pub fn extra_references(&self) -> u64 {
        self.extra_references.get()
    }

    /// A chunk's entry, copied.
    #[inline]
    pub fn entry(&self, chunk: impl Into<ChunkRef>) -> ChunkEntry {
        self.region.read(self.entry_offset(chunk))
    }

    /// Extents that touch a chunk that is in use.
    #[inline]
    pub(crate) fn count(&self, chunk: impl Into<ChunkRef>) -> u32 {
        let chunk = chunk.into();
        if self.has_entry(chunk) { self.entry(chunk).count.max(1) } else { 1 }
    }

    /// Returns the device offset of a chunk's entry.
    #[inline]
    pub(crate) fn entry_offset(&self, chunk: impl Into<ChunkRef>) -> u64 {
        self.entries.offset(chunk.into())
    }

    /// Asks for the entries of chunks, all at once, and for the bytes of the blocks among them if these are to be read: so
    /// who looks at them soon after waits once. Where the bytes of a packed chunk are is told by its entry alone.
    pub(crate) fn fetch(&self, chunks: &[ChunkRef], with_bytes: bool) {
        let mut ranges: SmallVec<[(u64, u64); 16]> = SmallVec::new();
        // Of what a damaged index names there may be no entry.
        for chunk in chunks.iter().filter(|chunk| self.entries.exists(**chunk)) {
            ranges.push((self.entry_offset(*chunk), ENTRY_BYTES));
            ranges.extend(chunk.block().filter(|_| with_bytes).map(|block| (block.address(), BLOCK_BYTES)));
        }
        self.region.fetch(&ranges);
    }

    /// Asks for the entries of blocks that are about to lose a reference, all at once, as far as they may have one: so
    /// that waiting for them is waiting once. Of many blocks for the first [`FETCHED_BLOCKS`].
    pub(crate) fn fetch_entries(&self, runs: &[BlockRun]) {
        let mut left = FETCHED_BLOCKS;
        let mut ranges: SmallVec<[(u64, u64); 32]> = SmallVec::new();
        for run in runs {
            let part = BlockRun { count: run.count.min(left), ..*run };
            if self.may_have_entries(part) {
                ranges.push((self.entry_offset(part.start), part.count * ENTRY_BYTES));
            }
            left -= part.count;
            if left == 0 {
                break;
            }
        }
        self.region.fetch(&ranges);
    }

    /// Asks for what a pm index has of blocks whose entries were emptied a moment ago, all at once.
    pub(crate) fn fetch_slots(&self, emptied: &[BlockNumber]) {
        if let Some(index) = self.index.fact() {
            index.fetch(emptied.iter().filter_map(|block| self.entry(*block).weak(self.weak)));
        }
    }

    /// Whether a block can be found by its fingerprint.
    #[inline]
    pub(crate) fn can_be_found(&self, block: BlockNumber) -> bool {
        match &self.index {
            Index::Dram(index) => index.labels.has(block),
            Index::Pm(_) => self.has_entry(block) && self.entry(block).weak(self.weak).is_some(),
        }
    }

    /// Whether the index names blocks that have no entry, so that one that nobody shares needs none.
    #[inline]
    pub(crate) fn finds_private(&self) -> bool {
        self.index.dram().is_some()
    }

    /// What makes the weak fingerprints.
    #[inline]
    pub fn weak_function(&self) -> WeakFunction {
        self.weak
    }

    /// What makes the strong fingerprints.
    #[inline]
    pub fn strong_function(&self) -> StrongFunction {
        self.strong
    }

    /// Asserts that a chunk can have an entry that counts. Extents are verified when they are read from the media, so
    /// any other one is a mistake of ours.
    #[inline]
    fn assert_is_data(&self, chunk: ChunkRef) {
        let exists = self.entries.exists(chunk);
        debug_assert!(exists, "{chunk} belongs to the tables or lies beyond the device: nobody counts it");
    }

    /// A transaction; it begins with its first entry operation.
    #[inline]
    pub fn begin(&self) -> Transaction<'_> {
        Transaction::new(self)
    }
}
