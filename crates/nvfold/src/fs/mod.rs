//! The operations: the only room that knows names, files and dedup.
//!
//! Each operation is a method of [`Core`], what is behind a mount; `api` calls them and waits for space or recovery where
//! one asks for it.
//!
//! | file | what |
//! |---|---|
//! | `cache` | the inodes that are in DRAM |
//! | `packed` | writing packed chunks: pieces, tails, seams |
//! | `read`, `write`, `watched`, `range` | bytes: reading, writing, size, reserved space, clones |
//! | `claims`, `publish`, `commit`, `release` | how a change becomes durable and whole, and what it lets go |
//! | `share`, `undedup_plan` | sharing what is stored already, and the way back |
//! | `names`, `rename`, `birth`, `attributes`, `xattr` | inodes and what leads to them |
//! | `compact` | rewriting a log |
//! | `superblock` | writing it, and its feature bits |
//! | `policy` | which policy and which compression new data of a file gets |
//! | `background`, `share_queued`, `fill` | what policies put off |
//! | `reclaim` | emptying segments of packed chunks |
//! | `collect`, `marks` | freeing chunks of which only a few bytes live |
//! | `gate` | keeping operations out for a moment |
//!
//! **Lock order**: gate; a policy's lock of its work under way; tree lock; one directory (several under the tree lock);
//! other inodes by number; then, never held together: inode cache shard, inode table, allocator cursor, allocator search,
//! index shard, journal slot, superblock, work queue. A TX_ID generator is taken before any of these and after the inodes;
//! so is a set of open packed segments, or the table of packed entries, which are held while the allocator is asked for a
//! segment, and never together. The segment that is being emptied, and what is collected, are locked before all of these,
//! and never waited for.
//! Readers take the inode's lock shared, and a writer keeps it to itself until its commit word is fenced. So readers see
//! only what is fenced, also where DRAM is changed earlier (`publish`).

mod attributes;
mod background;
mod birth;
mod cache;
mod claims;
mod collect;
mod commit;
mod compact;
mod decide;
mod fill;
mod gate;
mod marks;
mod names;
mod origins;
mod packed;
mod policy;
mod publish;
mod range;
mod read;
mod reclaim;
mod recut;
mod release;
mod rename;
mod share;
pub(crate) mod share_queued;
mod superblock;
mod undedup_plan;
mod watched;
mod write;
mod xattr;

pub(crate) use commit::store_words;
pub(crate) use names::NAME_BYTES_MAX;
pub(crate) use origins::Origin;
pub(crate) use reclaim::Worked;
pub(crate) use share::Step;
pub(crate) use superblock::write_superblock;
pub use undedup_plan::UndedupPlan;

use crate::chunk::Chunks;
use crate::chunk::entries::Entries;
use crate::chunk::index::Index;
use crate::chunk::transaction::Generators;
use crate::compression::Compression;
use crate::dedup::policy::Pack;
use crate::dedup::{Ground, Policies};
use crate::error::{Error, Result};
use crate::fingerprint::{StrongFunction, WeakFunction};
use crate::inode::log;
use crate::inode::table::InodeTable;
use crate::media::superblock::Geometry;
use crate::padded::{Padded, Sum};
use crate::space::Space;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::words::{Clock, Skipped, TimeNs};
use cache::{Cache, Damaged};
use collect::Collector;
use commit::Journal;
use gate::Gate;
use origins::OriginTally;
use pmem::Region;
use reclaim::{Reclaimed, Victim};
use std::sync::Arc;
use superblock::Features;

/// Everything behind a mount.
pub(crate) struct Core {
    pub(crate) region: Region,
    pub(crate) geometry: Geometry,
    pub(crate) read_only: bool,
    clock: Clock,
    pub(crate) space: Space,
    pub(crate) chunks: Chunks,
    pub(crate) policies: Policies,
    pub(crate) table: InodeTable,
    journal: Journal,
    /// Held by operations that involve two directories.
    tree: Mutex<()>,
    pub(crate) cache: Cache,
    pub(crate) damaged: Damaged,
    /// Bytes that all extents of all files name.
    pub(crate) mapped_bytes: Sum,
    pub(crate) data_blocks: Sum,
    pub(crate) unmounted: AtomicBool,
    pub(crate) gate: Gate,
    /// The longest end of a file that is packed under a policy that stores blocks.
    packed_ends_max: u64,
    /// How new packed chunks are stored.
    pub(crate) compression: Compression,
    features: Features,
    /// What work in the background left out.
    skipped: Mutex<Skipped>,
    /// The segment that is being emptied.
    victim: Mutex<Option<Victim>>,
    reclaimed: Reclaimed,
    collector: Collector,
    origin_tally: OriginTally,
    /// Inodes below this number count in the totals and in the recount; all of them when nothing is recounted.
    pub(crate) walked: Padded<AtomicU64>,
}

/// What an instance is made from.
pub(crate) struct CoreOptions {
    pub(crate) policies: Policies,
    /// What makes fingerprints.
    pub(crate) fingerprints: (WeakFunction, StrongFunction),
    pub(crate) generators: Generators,
    /// Whether ends of files are packed under policies that store blocks.
    pub(crate) pack: Pack,
    /// How new packed chunks are stored.
    pub(crate) compression: Compression,
    /// Threads that write at once.
    pub(crate) cores: usize,
    /// Give freed segments back to the host.
    pub(crate) discard: bool,
    /// Choose free segments by their wear.
    pub(crate) levels_wear: bool,
    pub(crate) read_only: bool,
    pub(crate) clock: Clock,
}

impl Core {
    /// Makes a core with nothing in use except what `segments` of the inode table say.
    pub(crate) fn new(
        region: Region,
        geometry: Geometry,
        options: CoreOptions,
        segments: Vec<u64>,
        index: (Arc<Entries>, Index),
    ) -> Core {
        let CoreOptions { policies, fingerprints, generators, pack, compression, cores, .. } = options;
        let CoreOptions { discard, levels_wear, read_only, clock, .. } = options;
        let packed_ends_max = pack.bytes_max(geometry.device_bytes);
        Core {
            space: Space::new(region.clone(), geometry, cores, discard).with_wear_levelling(levels_wear),
            chunks: Chunks::new(region.clone(), geometry, index, fingerprints, generators),
            policies,
            table: InodeTable::new(region.clone(), segments),
            journal: Journal::new(),
            tree: Mutex::new(()),
            cache: Cache::new(),
            damaged: Damaged::default(),
            mapped_bytes: Sum::default(),
            data_blocks: Sum::default(),
            unmounted: AtomicBool::new(false),
            gate: Gate::new(),
            packed_ends_max,
            compression,
            features: Features::default(),
            skipped: Mutex::default(),
            victim: Mutex::default(),
            reclaimed: Reclaimed::default(),
            collector: Collector::default(),
            origin_tally: OriginTally::default(),
            walked: Padded(AtomicU64::new(u64::MAX)),
            read_only,
            clock,
            region,
            geometry,
        }
    }

    pub(crate) fn now(&self) -> TimeNs {
        (self.clock)()
    }

    /// What logs are made of.
    #[inline]
    fn log_ground(&self) -> log::Ground<'_> {
        log::Ground { region: &self.region, space: &self.space, table: &self.table }
    }

    /// What policies stand on.
    #[inline]
    pub(crate) fn ground(&self) -> Ground<'_> {
        Ground { region: &self.region, space: &self.space, chunks: &self.chunks }
    }

    /// Runs an operation that changes something: with the freeze lock held shared, on a file system that may be changed.
    ///
    /// # Errors
    /// EROFS, EIO when it has read memory that is bad or the device is lost; those of the operation.
    #[inline]
    pub(crate) fn change_by<T>(&self, doing: &'static str, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        let _inside = self.gate.enter();
        self.check_changeable(doing)?;
        self.answer(operation())
    }

    /// Likewise in the background: operations in the foreground do not see it as one of them.
    fn change_in_background<T>(&self, doing: &'static str, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        let _inside = self.gate.enter_background();
        self.check_changeable(doing)?;
        self.answer(operation())
    }

    #[inline]
    fn check_changeable(&self, doing: &'static str) -> Result<()> {
        if self.read_only || self.unmounted.load(Ordering::Relaxed) {
            return Err(Error::ReadOnly { doing });
        }
        self.check_lost()
    }

    /// Nothing is written to a device that is lost.
    pub(crate) fn check_lost(&self) -> Result<()> {
        if self.region.is_lost() {
            self.region.check()?;
        }
        Ok(())
    }

    /// What an operation answers: its result, unless it has read memory that is bad or the device is lost.
    #[inline]
    pub(crate) fn answer<T>(&self, result: Result<T>) -> Result<T> {
        self.region.check()?;
        result
    }

    /// Whether counts and free space are still to be found out.
    #[inline]
    pub(crate) fn is_reconciling(&self) -> bool {
        self.walked.load(Ordering::Acquire) != u64::MAX
    }

    /// Whether an operation on this inode counts in the totals and the recount.
    #[inline]
    pub(crate) fn is_walked(&self, ino: u64) -> bool {
        ino < self.walked.load(Ordering::Acquire)
    }

    fn account_mapped(&self, ino: u64, before: u64, after: u64) {
        if before == after || !self.is_walked(ino) {
            return;
        }
        // Two's complement: a decrease is an addition too.
        self.mapped_bytes.add(after.wrapping_sub(before));
    }
}
