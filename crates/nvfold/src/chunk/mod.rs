//! The chunk table: how often each block is named, and the index that finds a block by its fingerprint.
//!
//! The problem: a count must never be lower on the media than the extents that can be reached
//! (invariant 1), must be exact after recovery (invariant 2), and must cost nothing for data that
//! nobody shares.
//!
//! The idea: three states of a block, told by its one-line entry.
//!
//! ```text
//! entry empty    free, or private: named by exactly one extent, no fingerprint
//! count >= 1     tracked: named by exactly `count` extents
//!
//!  private --share--> 2        n --share--> n+1       n --release--> n-1     1 --release--> free
//!  private --release--> free
//! ```
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
//! | `counts.rs` | a reference more, a reference less |
//! | `update.rs` | the same of the update count |
//! | `fingerprints.rs` | fingerprints that are added to entries that count |
//! | `presence.rs` | which blocks have an entry: bits and totals in DRAM |
//! | `scan.rs` | what a mount learns of the table |
//! | `exact.rs` | what reconcile asks of it and makes of it |

mod counts;
pub mod dram;
mod exact;
pub mod fact;
mod fingerprints;
pub mod index;
mod presence;
pub mod recount;
pub mod reference;
mod scan;
pub mod transaction;
mod update;

use crate::fingerprint::{StrongFunction, WeakFunction};
use crate::media::chunk_entry::{ChunkEntry, LINKS_WORD};
use crate::media::superblock::Geometry;
use crate::media::{BLOCK_BYTES, BlockNumber, SEGMENT_BLOCKS};
use crate::padded::Padded;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, RwLock, zeroed};
use index::Index;
use pmem::{PmemError, Region};
use recount::Recount;
use transaction::{GeneratorLines, Generators, Transaction};

/// Where delete pointer, flags and functions lie in an entry: one word.
const FLAGS_WORD: u64 = LINKS_WORD + 8;

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
    /// Its entry lies in bad memory.
    Bad(PmemError),
}

/// Locks of what is changed in an entry beside its counts, which is seldom.
#[derive(Default)]
struct Lines {
    locks: [Padded<Mutex<()>>; 16],
}

impl Lines {
    fn lock(&self, block: BlockNumber) -> MutexGuard<'_, ()> {
        self.locks[block.0 as usize % self.locks.len()].lock()
    }
}

/// The table and its index.
pub struct Chunks {
    region: Region,
    geometry: Geometry,
    /// Finds tracked blocks by weak fingerprint.
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
    tracked: Padded<AtomicU64>,
    extra_references: Padded<AtomicU64>,
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
        index: Index,
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
            index,
            has_entry: zeroed((geometry.segments() * words).div_ceil(64)),
            tracked: Padded::default(),
            extra_references: Padded::default(),
            lines: Lines::default(),
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
        self.extra_references.load(Ordering::Relaxed)
    }

    /// A block's entry, copied.
    #[inline]
    pub fn entry(&self, block: BlockNumber) -> ChunkEntry {
        self.region.read(self.geometry.chunk_entry_offset(block))
    }

    /// Extents that touch a block that is in use.
    #[inline]
    pub(crate) fn count(&self, block: BlockNumber) -> u32 {
        if self.has_entry(block) { self.entry(block).count.max(1) } else { 1 }
    }

    /// Device offset of a block's entry.
    #[inline]
    pub(crate) fn entry_offset(&self, block: BlockNumber) -> u64 {
        self.geometry.chunk_entry_offset(block)
    }

    /// Whether a referenced block holds these bytes.
    #[inline]
    pub fn equal(&self, block: BlockNumber, piece: &[u8]) -> bool {
        let equal = piece.len() as u64 == BLOCK_BYTES && self.region.equal(block.address(), piece);
        // Bad memory equals nothing, and is no failure of who compares with it.
        self.region.sound_or_forget(block.address(), BLOCK_BYTES) && equal
    }

    /// Asks for the first bytes of a block, so that comparing it soon after need not wait for them: the processor sees
    /// where that leads and asks for the rest.
    #[inline]
    pub(crate) fn prefetch(&self, block: BlockNumber) {
        self.region.prefetch(block.address());
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

    /// Asserts that a block can have an entry that counts. Extents are verified when they are read from the media, so
    /// any other block is a mistake of ours.
    #[inline]
    fn assert_is_data(&self, block: BlockNumber) {
        let is_data = self.geometry.holds_data(block.address(), BLOCK_BYTES);
        debug_assert!(is_data, "block {} belongs to the tables or lies beyond the device: nobody counts it", block.0);
    }

    /// A transaction; it begins with its first entry operation.
    #[inline]
    pub fn begin(&self) -> Transaction<'_> {
        Transaction::new(self)
    }
}
