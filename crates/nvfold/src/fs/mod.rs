//! The operations of the file system. This is the only module that knows names, files and dedup, so it is where the
//! lock order is defined.
//!
//! Each operation is a method of [`Core`], the state of one mount. `api` calls these methods; when one needs space or
//! recovery first, `api` waits and retries.
//!
//! | file | contents |
//! |---|---|
//! | `cache` | the inodes that are in DRAM |
//! | `packed` | writing packed chunks: pieces, tails, seams |
//! | `read`, `write`, `watched`, `range` | bytes: reading, writing, size, reserved space, clones |
//! | `append` | the ends of files that grow |
//! | `origins` | writing data that was copied from files |
//! | `zeros` | zeros in what is written, which become holes |
//! | `decide` | turning a policy's answers for the pieces of a request into chunks |
//! | `claims`, `publish`, `commit`, `release` | how a change becomes durable and atomic; dropping old references |
//! | `share`, `undedup_plan` | sharing data that is already stored, and undoing it |
//! | `recut` | cutting stored data again |
//! | `owner` | changing the owner of a file, where each owner has a sharing domain |
//! | `names`, `rename`, `birth`, `attributes`, `xattr` | inodes and the names that lead to them |
//! | `compact` | rewriting a log |
//! | `compare` | comparing what a rewrite publishes with what it replaces |
//! | `superblock` | writing it, and its feature bits |
//! | `policy` | the policy and the compression of a file's new data |
//! | `background`, `share_queued`, `fill` | work that policies defer; where its errors and panics end |
//! | `reclaim` | emptying segments of packed chunks |
//! | `evacuate` | emptying segments of blocks |
//! | `effort` | how much an operation without space works for some |
//! | `collect`, `marks` | freeing chunks of which only a few bytes are live |
//! | `usage` | what every stored byte is for |
//! | `freeze_lock` | the freeze lock |
//!
//! **Lock order**, outermost first:
//!
//! 1. the freeze lock
//! 2. the lock of the work that a policy has under way
//! 3. the tree lock
//! 4. one directory inode (several under the tree lock)
//! 5. other inodes, in the order of their numbers
//! 6. a TX_ID generator; a set of open packed segments or the table of packed entries. The latter two are held while
//!    the allocator is asked for a segment, but never together.
//! 7. one of these, never two: inode cache shard, inode table, allocator cursor, allocator search, index shard,
//!    journal slot, superblock, work queue, the list of growing files
//!
//! The locks of the work that empties segments and of the collection round are taken before any inode. Operations
//! only try them and never wait for them. [`Core::usage`] takes them while it has closed the freeze lock, when nobody has
//! them.
//!
//! Readers take the inode's lock shared. A writer holds it exclusively until its commit word is fenced. So readers
//! see only fenced state, even where DRAM is changed earlier (`publish`).

mod append;
mod attributes;
mod background;
mod birth;
mod cache;
mod claims;
mod collect;
mod commit;
mod compact;
mod compare;
mod decide;
mod effort;
mod evacuate;
mod fill;
mod freeze_lock;
mod marks;
mod names;
mod origins;
mod owner;
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
#[cfg(test)]
mod tests;
mod undedup_plan;
mod usage;
mod watched;
mod write;
mod xattr;
mod zeros;

pub(crate) use commit::store_words;
pub(crate) use effort::{Effort, Worked};
pub(crate) use origins::Origin;
pub(crate) use share::Step;
pub(crate) use superblock::write_superblock;
pub use undedup_plan::UndedupPlan;

use crate::chunk::Chunks;
use crate::chunk::entries::Entries;
use crate::chunk::generators::Generators;
use crate::chunk::index::Index;
use crate::compression::Compression;
use crate::dedup::policy::Pack;
use crate::dedup::{Policies, PolicyDevice};
use crate::error::{Error, Result};
use crate::fingerprint::{Domains, StrongFunction, WeakFunction};
use crate::inode::table::{InodeTable, Parts};
use crate::inode::{Inode, log};
use crate::media::superblock::Geometry;
use crate::padded::{Padded, Sum};
use crate::panics::Panics;
use crate::refusals::Refusals;
use crate::space::Space;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::words::{Clock, Panicked, Refused, Skipped, TimeNs};
use append::Growing;
use cache::{Cache, Damaged};
use collect::Collector;
use commit::Journal;
use evacuate::Evacuation;
use freeze_lock::FreezeLock;
use origins::OriginTally;
use pmem::Region;
use reclaim::{Reclaimed, Victim};
use std::sync::Arc;
use superblock::Features;

/// Holds the whole state of a mount.
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
    /// The number of bytes that the extents of all files map.
    pub(crate) mapped_bytes: Sum,
    pub(crate) data_blocks: Sum,
    pub(crate) unmounted: AtomicBool,
    pub(crate) freeze_lock: FreezeLock,
    /// The longest end of a file, in bytes, that is packed under a policy that stores blocks.
    packed_ends_max: u64,
    /// How new packed chunks are stored.
    pub(crate) compression: Compression,
    features: Features,
    /// Counts what background work skipped.
    skipped: Mutex<Skipped>,
    /// Counts changes that were refused.
    refusals: Refusals,
    /// Contains panics in work beside the calls.
    pub(crate) panics: Panics,
    /// Inodes that a panic has made unusable. They stay in the cache.
    cut_off: Mutex<Vec<Arc<Inode>>>,
    compares_rewrites: bool,
    /// Whose data is shared with whose.
    pub(crate) domains: Domains,
    /// The segment that is being emptied.
    victim: Mutex<Option<Victim>>,
    reclaimed: Reclaimed,
    collector: Collector,
    growing: Growing,
    evacuation: Evacuation,
    origin_tally: OriginTally,
    /// Inodes below this number are already in the totals and in the recount. It is `u64::MAX` when no recount is
    /// under way.
    pub(crate) walked: Padded<AtomicU64>,
}

/// The parts that a [`Core`] is made from.
pub(crate) struct CoreOptions {
    pub(crate) policies: Policies,
    /// The functions that make fingerprints.
    pub(crate) fingerprints: (WeakFunction, StrongFunction),
    pub(crate) generators: Generators,
    /// Whether ends of files are packed under policies that store blocks.
    pub(crate) pack: Pack,
    /// How new packed chunks are stored.
    pub(crate) compression: Compression,
    /// The number of threads that write concurrently.
    pub(crate) cores: usize,
    /// Whether freed segments are given back to the host.
    pub(crate) discard: bool,
    /// Whether free segments are chosen by their wear.
    pub(crate) levels_wear: bool,
    /// See [`MountOptions`](crate::MountOptions).
    pub(crate) compares_rewrites: bool,
    /// Whose data is shared with whose.
    pub(crate) domains: Domains,
    pub(crate) read_only: bool,
    pub(crate) clock: Clock,
}

impl Core {
    /// Makes a core in which nothing is in use yet. `parts` are those of the inode table.
    pub(crate) fn new(
        region: Region,
        geometry: Geometry,
        options: CoreOptions,
        parts: Parts,
        index: (Arc<Entries>, Index),
    ) -> Core {
        let CoreOptions { policies, fingerprints, generators, pack, compression, cores, .. } = options;
        let CoreOptions { discard, levels_wear, compares_rewrites, domains, read_only, clock, .. } = options;
        let packed_ends_max = pack.bytes_max(geometry.device_bytes);
        Core {
            space: Space::new(region.clone(), geometry, cores, discard).with_wear_levelling(levels_wear),
            chunks: Chunks::new(region.clone(), geometry, index, fingerprints, generators),
            policies,
            table: InodeTable::new(region.clone(), parts),
            journal: Journal::new(),
            tree: Mutex::new(()),
            cache: Cache::new(),
            damaged: Damaged::default(),
            mapped_bytes: Sum::default(),
            data_blocks: Sum::default(),
            unmounted: AtomicBool::new(false),
            freeze_lock: FreezeLock::new(),
            packed_ends_max,
            compression,
            features: Features::default(),
            skipped: Mutex::default(),
            refusals: Refusals::default(),
            panics: Panics::default(),
            cut_off: Mutex::default(),
            compares_rewrites,
            domains,
            victim: Mutex::default(),
            reclaimed: Reclaimed::default(),
            collector: Collector::default(),
            growing: Growing::default(),
            evacuation: Evacuation::default(),
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

    /// Returns the changes that were refused since mount.
    pub(crate) fn refused(&self) -> Refused {
        self.refusals.total()
    }

    /// Returns the panics since mount in work beside the calls.
    pub(crate) fn panicked(&self) -> Panicked {
        self.panics.total()
    }

    /// Returns the parts of the core that logs need.
    #[inline]
    fn log_ground(&self) -> log::LogDevice<'_> {
        log::LogDevice { region: &self.region, space: &self.space, table: &self.table, panics: &self.panics }
    }

    /// Returns the parts of the core that policies need.
    #[inline]
    pub(crate) fn ground(&self) -> PolicyDevice<'_> {
        PolicyDevice { region: &self.region, space: &self.space, chunks: &self.chunks }
    }

    /// Runs an operation that changes the file system, with the freeze lock held shared.
    ///
    /// # Errors
    /// EROFS if the mount is read-only, EIO if the operation read bad memory or the device is lost; also those of the
    /// operation.
    #[inline]
    pub(crate) fn change_by<T>(&self, doing: &'static str, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        let _inside = self.freeze_lock.enter();
        self.check_changeable(doing)?;
        self.answer(operation())
    }

    /// The same for background work, which the freeze lock does not count as an operation.
    fn change_in_background<T>(&self, doing: &'static str, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        let _inside = self.freeze_lock.enter_background();
        self.check_changeable(doing)?;
        self.answer(operation())
    }

    #[inline]
    fn check_changeable(&self, doing: &'static str) -> Result<()> {
        if self.read_only || self.unmounted.load(Ordering::Relaxed) {
            return Err(Error::ReadOnly { doing });
        }
        self.check_lost()?;
        Ok(self.region.admit()?)
    }

    /// Returns EIO if the device is lost, so that nothing is written to it.
    pub(crate) fn check_lost(&self) -> Result<()> {
        if self.region.is_lost() {
            self.region.check()?;
        }
        Ok(())
    }

    /// Returns the result of an operation, or EIO if it read bad memory or the device is lost.
    #[inline]
    pub(crate) fn answer<T>(&self, result: Result<T>) -> Result<T> {
        self.region.check()?;
        result
    }

    /// True while reconcile has not finished, so that counts and free space are not exact yet.
    #[inline]
    pub(crate) fn is_reconciling(&self) -> bool {
        self.walked.load(Ordering::Acquire) != u64::MAX
    }

    /// True if a change of this inode must be applied to the totals and to the recount.
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
