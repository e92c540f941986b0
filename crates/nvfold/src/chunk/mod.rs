//! The chunk table: the reference count of each chunk, and the index that finds a chunk by its fingerprint.
//!
//! The problem: a count on the media must never be lower than the number of reachable extents (invariant 1) and must
//! be exact after recovery (invariant 2). Data that is not shared must cost nothing.
//!
//! The idea: a block has one of three states, which its one-line entry shows.
//!
//! ```text
//! entry empty    free, or private: named by exactly one extent; the dram index may know its fingerprint
//! count >= 1     tracked: named by exactly `count` extents
//!
//!  private --share--> 2        n --share--> n+1       n --release--> n-1     1 --release--> free
//!  private --release--> free
//! ```
//!
//! A packed chunk has no private state: its entry counts as long as an extent references it, and is empty when it is
//! free.
//!
//! A count changes by one 16-byte compare-and-exchange of tag, transaction and counts, followed by one line flush. An
//! increase is durable before the commit word that publishes the extent; a decrease comes after it. So a crash leaves
//! counts too high, never too low. The mount takes back what an unfinished [`transaction`] did, and [`recount`] finds
//! the true counts while the file system is in use. Next to the count, an entry has an update count: references held
//! by operations that are about to write an extent for the block.
//!
//! The interface is [`Chunks`]; each of its duties has a file:
//!
//! | file | duty |
//! |---|---|
//! | `entries.rs` | the place of each entry, and its number in the indexes |
//! | `packed.rs` | which entries of packed chunks are free, and how many bytes packed chunks save |
//! | `index.rs`, `dram.rs`, `fact.rs` | from a weak fingerprint to the chunks that have it: the two kinds of index |
//! | `generators.rs` | the numbers of transactions |
//! | `transaction.rs` | changes of several entries, of which a crash leaves all or none |
//! | `reference.rs` | references that an operation has taken and not used yet |
//! | `recount.rs` | the counts that reconcile has found so far |
//! | `content.rs` | finding, reading and comparing the bytes of a chunk |
//! | `counts.rs` | taking and dropping references |
//! | `update.rs` | taking and dropping update counts |
//! | `fingerprints.rs` | adding fingerprints to entries that count |
//! | `presence.rs` | which blocks have an entry: bits and totals in DRAM |
//! | `scan.rs` | what a mount reads from the table |
//! | `exact.rs` | what reconcile reads from the table, and how it corrects entries |
//! | `epochs.rs` | when no reader uses the old place of a moved chunk |
//! | `labels.rs` | whether the dram index may find a block, and why a block that it finds is not freed |
//! | `moves.rs` | moving a packed chunk |
//! | `insertion.rs` | what enters an index |
//! | `sight.rs` | the result of a quick look into an index |

pub(crate) mod content;
mod counts;
pub(crate) mod dram;
pub(crate) mod entries;
pub(crate) mod epochs;
mod exact;
pub(crate) mod fact;
mod fingerprints;
pub(crate) mod generators;
pub(crate) mod index;
pub(crate) mod insertion;
pub(crate) mod labels;
mod moves;
pub(crate) mod packed;
mod presence;
pub(crate) mod recount;
pub(crate) mod reference;
mod scan;
pub(crate) mod sight;
pub(crate) mod transaction;
mod update;

pub(crate) use moves::Moving;

use crate::fingerprint::{Keys, StrongFunction, WeakFunction};
use crate::media::chunk_entry::{ChunkEntry, ENTRY_BYTES, LINKS_WORD};
use crate::media::layout::Layout;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef};
use crate::space::BlockRun;
use entries::{Entries, word};
use epochs::Epochs;
use generators::{GeneratorLines, Generators};
use index::Index;
use nvfold_sync::atomic::{AtomicBool, AtomicU64};
use nvfold_sync::{Mutex, MutexGuard, RwLock, zeroed};
use nvfold_sync::{Padded, Sum};
use packed::PackedEntries;
use pmem::{PmemError, Region};
use recount::Recount;
use smallvec::SmallVec;
use std::sync::Arc;
use transaction::Transaction;

/// Offset in an entry of the word with the delete pointer, the flags and the function numbers.
const FLAGS_WORD: u64 = LINKS_WORD + 8;

/// The most blocks whose entries are fetched at once: 16 KiB of the table, which the first-level cache holds.
pub(crate) const FETCHED_BLOCKS: u64 = 256;

/// State of a chunk after one extent dropped its reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// No reference is left.
    Free,
    /// Other references remain.
    Kept,
}

/// Why no further reference on a chunk can be taken.
#[derive(Debug)]
pub(crate) enum Unshareable {
    /// Its count is at its maximum.
    Saturated,
    /// It is a packed chunk whose entry counts nothing, which is damage.
    Lost,
    /// Its entry is in bad memory.
    Bad(PmemError),
}

/// Locks for rare changes: the words of an entry other than its counts, and the label of its block. Neighbouring
/// entries have different locks.
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

    /// Takes all locks, always in the same order. Nobody else waits for a second one.
    fn lock_all(&self) -> Vec<MutexGuard<'_, ()>> {
        self.locks.iter().map(|lock| lock.lock()).collect()
    }
}

/// The chunk table and its index.
pub struct Chunks {
    region: Region,
    geometry: Layout,
    /// Maps a chunk to the place of its entry.
    pub(crate) entries: Arc<Entries>,
    /// Allocation of packed entries, and totals of packed chunks.
    pub(crate) packed: PackedEntries,
    /// Tracks the readers that use the place of a packed chunk.
    pub(crate) epochs: Epochs,
    /// Finds tracked chunks by weak fingerprint.
    pub index: Index,
    /// What the fingerprints are computed by; the index holds the weak ones. A fingerprint of another function counts as
    /// missing.
    keys: Keys,
    strong: StrongFunction,
    generators: GeneratorLines,
    /// With a dram index: one bit for each block that has an entry. So a private block is released without a look at
    /// the media, and the table of a device that shares nothing stays a hole. With a pm index: one bit for each
    /// segment that has had an entry since the mount; the table tells the rest.
    has_entry: Box<[AtomicU64]>,
    /// The number of entries in use; counted only with a pm index.
    tracked: Sum,
    extra_references: Sum,
    lines: Lines,
    /// Held by whoever gives a weak fingerprint to a chunk of a stored file, or takes it off, where owners have domains. It comes
    /// after the lock of the inode and before those of the index.
    pub(crate) fingerprinting: Mutex<()>,
    /// True while `recount` is set; read without its lock.
    recounting: AtomicBool,
    recount: RwLock<Option<Recount>>,
}

impl Chunks {
    /// Creates the table of a device. `index` may still be empty; the mount fills it.
    pub(crate) fn new(
        region: Region,
        geometry: impl Into<Layout>,
        (entries, index): (Arc<Entries>, Index),
        (keys, strong): (Keys, StrongFunction),
        generators: Generators,
    ) -> Chunks {
        let geometry = geometry.into();
        Chunks {
            keys,
            strong,
            generators: GeneratorLines::new(generators),
            region,
            packed: PackedEntries::new(entries.clone()),
            epochs: Epochs::default(),
            entries,
            has_entry: zeroed(presence::words(&index, geometry.segments_max())),
            index,
            geometry,
            tracked: Sum::default(),
            extra_references: Sum::default(),
            lines: Lines::new(),
            fingerprinting: Mutex::new(()),
            recounting: AtomicBool::new(false),
            recount: RwLock::new(None),
        }
    }

    /// Returns how many dedup transactions began since the device was formatted.
    pub fn transactions(&self) -> u64 {
        self.generators.begun()
    }

    /// Returns the number of references beyond the first of each block: blocks saved by sharing.
    pub fn extra_references(&self) -> u64 {
        self.extra_references.get()
    }

    /// Returns a copy of a chunk's entry.
    #[inline]
    pub fn entry(&self, chunk: impl Into<ChunkRef>) -> ChunkEntry {
        self.region.read(self.entry_offset(chunk))
    }

    /// Returns how many extents touch a chunk that is in use.
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

    /// Prefetches the entries of all these chunks at once, and with `with_bytes` also the bytes of the blocks among
    /// them. A caller that then reads them waits only once. The bytes of a packed chunk cannot be prefetched: only
    /// its entry says where they are.
    pub(crate) fn fetch(&self, chunks: &[ChunkRef], with_bytes: bool) {
        let mut ranges: SmallVec<[(u64, u64); 16]> = SmallVec::new();
        // A damaged index may reference chunks that have no entry.
        for chunk in chunks.iter().filter(|chunk| self.entries.exists(**chunk)) {
            ranges.push((self.entry_offset(*chunk), ENTRY_BYTES));
            ranges.extend(chunk.block().filter(|_| with_bytes).map(|block| (block.address(), BLOCK_BYTES)));
        }
        self.region.fetch(&ranges);
    }

    /// Prefetches the entries of blocks that are about to lose a reference, if they may have entries, so that the
    /// caller waits only once. Of a longer list only the first [`FETCHED_BLOCKS`] are fetched.
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

    /// Prefetches the heads of the pm index's chains for blocks whose entries were just emptied, all at once.
    pub(crate) fn fetch_slots(&self, emptied: &[BlockNumber]) {
        if let Some(index) = self.index.fact() {
            index.fetch(emptied.iter().filter_map(|block| self.entry(*block).weak(self.weak_function())));
        }
    }

    /// Returns whether the index can find a block by its fingerprint.
    #[inline]
    pub(crate) fn can_be_found(&self, block: BlockNumber) -> bool {
        match &self.index {
            Index::Dram(index) => index.labels.has(block),
            Index::Pm(_) => self.has_entry(block) && self.entry(block).weak(self.weak_function()).is_some(),
        }
    }

    /// Returns whether the index holds blocks without an entry, so that an unshared block needs none.
    #[inline]
    pub(crate) fn finds_private(&self) -> bool {
        self.index.dram().is_some()
    }

    /// Returns the function that computes weak fingerprints.
    #[inline]
    pub fn weak_function(&self) -> WeakFunction {
        self.keys.function()
    }

    /// Returns the keys by which blocks are found.
    #[inline]
    pub(crate) fn keys(&self) -> Keys {
        self.keys
    }

    /// Returns the function that computes strong fingerprints.
    #[inline]
    pub fn strong_function(&self) -> StrongFunction {
        self.strong
    }

    /// Asserts that a chunk can have an entry that counts. Extents are verified when they are read from the media, so
    /// any other chunk is a bug.
    #[inline]
    fn assert_is_data(&self, chunk: ChunkRef) {
        let exists = self.entries.exists(chunk);
        debug_assert!(exists, "{chunk} belongs to the tables or lies beyond the device: nobody counts it");
    }

    /// Returns a new transaction; it begins with its first entry operation.
    #[inline]
    pub fn begin(&self) -> Transaction<'_> {
        Transaction::new(self)
    }
}
