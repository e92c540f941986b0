//! The transaction: what a change of a file stores, claims, publishes and releases.
//!
//! A [`Store`] knows inodes by their locked state, and blocks and packed chunks by their numbers. It knows no name, no
//! inode cache, and no work beside the calls: `fs` (names and files) and `jobs` stand above it, and a call that goes up
//! does not compile.
//!
//! | file | contents |
//! |---|---|
//! | `placer` | the policy and the compression of a file's new data |
//! | `blocks`, `runs`, `sampled` | placing whole blocks: shared or new, one by one or in runs |
//! | `exact` | placing exactly the bytes that a request has |
//! | `packed`, `cut`, `tails` | placing pieces as packed chunks; cutting a request into pieces; the last piece |
//! | `ends` | the ends of files, and ends that grow |
//! | `zeros`, `gaps` | zeros in what is written; publishing a write that leaves them out |
//! | `decide` | turning a policy's answers for the pieces of a request into chunks |
//! | `claims` | the blocks and references of one operation, and how they are undone |
//! | `remap`, `entries` | a change of a file's extents, and its log entries |
//! | `locked` | the state of a locked inode, with readers or without |
//! | `publish`, `change` | how a change becomes durable and atomic: of extents; of entries and attributes |
//! | `overwrite` | overwriting one whole block that nobody shares: the shortest way of a write |
//! | `commit` | staged lines, commit words, the journal |
//! | `compact` | rewriting a log |
//! | `compare` | comparing what a rewrite publishes with what it replaces |
//! | `release` | dropping references, and freeing what nothing references |
//! | `postponed` | dropping many of them in steps, after the locks of a change are left |
//! | `queued` | log entries that wait to be shared |
//! | `fingerprints` | fingerprints for chunks that are stored already |
//! | `content` | what extents map: reading it |
//! | `features` | the superblock's feature bits |
//! | `pending` | what operations keep of inodes while a copy of a tree is being made |
//! | `limits` | what limited trees use, and the check of their limits |
//! | `freeze_lock` | the freeze lock |
//!
//! **Lock order** of the whole crate, outermost first:
//!
//! 0. the lock of the one copy of a tree that is being made
//! 1. the freeze lock
//! 2. the lock of the work that a policy has under way
//! 3. the tree lock
//! 4. one directory inode (several under the tree lock)
//! 5. other inodes, in the order of their numbers
//! 6. a TX_ID generator; a set of open packed segments or the table of packed entries. The latter two are held while
//!    the allocator is asked for a segment, but never together.
//! 7. one of these, never two: inode cache shard, inode table, allocator cursor, allocator search, index shard,
//!    journal slot, superblock, work queue, the list of growing files, that of doomed files, what is kept for a copy of
//!    a tree, limited trees. Chunks that enter the pm index together lock all their chains, in the order of the locks.
//!    A search that holds an index shard tries to get a generator, and never waits for it.
//!
//! Four locks are outside of the freeze lock: that of growth, that of a change of limits, that of a step which frees
//! removed trees, then that under which dropped references are released later (`postponed`). The list of removed trees,
//! and that of the directories whose inodes are being charged, are taken after the freeze lock, before inodes.
//!
//! The locks of the work that empties segments and of the collection round are taken before any inode. Operations
//! only try them and never wait for them; `jobs` takes them for the usage while it has closed the freeze lock, when
//! nobody has them.
//!
//! Readers take the inode's lock shared. A writer holds it exclusively until its commit word is fenced. So readers
//! see only fenced state, even where DRAM is changed earlier (`publish`).

pub(crate) mod blocks;
pub(crate) mod change;
pub(crate) mod claims;
pub(crate) mod commit;
mod compact;
mod compare;
mod content;
pub(crate) mod cut;
mod decide;
pub(crate) mod ends;
mod entries;
mod exact;
mod features;
mod fingerprints;
mod freeze_lock;
mod gaps;
pub(crate) mod limits;
pub(crate) mod locked;
mod overwrite;
pub(crate) mod packed;
pub(crate) mod pending;
pub(crate) mod placer;
pub(crate) mod postponed;
mod publish;
pub(crate) mod queued;
mod release;
pub(crate) mod remap;
mod runs;
mod sampled;
pub(crate) mod tails;
pub(crate) mod zeros;

pub(crate) use commit::store_words;
pub(crate) use features::write_superblock;

use crate::chunk::Chunks;
use crate::chunk::entries::Entries;
use crate::chunk::generators::Generators;
use crate::chunk::index::Index;
use crate::compression::Compression;
use crate::dedup::policy::Pack;
use crate::dedup::{Policies, PolicyDevice};
use crate::error::{Error, Result};
use crate::fingerprint::{Domains, Keys, StrongFunction};
use crate::inode::log;
use crate::inode::table::{InodeTable, Parts};
use crate::media::layout::Layout;
use crate::panics::Panics;
use crate::refusals::Refusals;
use crate::space::Space;
use crate::words::{Clock, Panicked, Refused, Skipped, TimeNs};
use commit::Journal;
use ends::Growing;
use features::Features;
use freeze_lock::FreezeLock;
use limits::LimitedTrees;
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nvfold_sync::{Padded, RwLockReadGuard, Sum};
use pending::Pending;
use pmem::Region;
use postponed::Postponed;
use release::MayBeDead;
use std::sync::Arc;

/// [`BLOCK_BYTES`](crate::media::BLOCK_BYTES), for lengths in memory.
pub(crate) const BLOCK: usize = crate::media::BLOCK_BYTES as usize;

/// What a mount keeps of its device below names and files: see the module.
pub struct Store {
    pub(crate) region: Region,
    pub(crate) geometry: Layout,
    pub(crate) read_only: bool,
    clock: Clock,
    pub(crate) space: Space,
    pub(crate) chunks: Chunks,
    pub(crate) policies: Policies,
    pub(crate) table: InodeTable,
    journal: Journal,
    /// The number of bytes that the extents of all files map.
    pub(crate) mapped_bytes: Sum,
    pub(crate) data_blocks: Sum,
    /// The bytes that may have died in chunks that are still referenced.
    pub(crate) may_be_dead: MayBeDead,
    pub(crate) unmounted: AtomicBool,
    pub(crate) freeze_lock: FreezeLock,
    /// The longest end of a file, in bytes, that is packed under a policy that stores blocks.
    pub(crate) packed_ends_max: u64,
    /// How new packed chunks are stored.
    pub(crate) compression: Compression,
    features: Features,
    postponed: Postponed,
    /// Counts what background work skipped.
    skipped: Mutex<Skipped>,
    /// Counts changes that were refused.
    pub(crate) refusals: Refusals,
    /// Contains panics in work beside the calls.
    pub(crate) panics: Panics,
    compares_rewrites: bool,
    /// Whose data is shared with whose.
    pub(crate) domains: Domains,
    pub(crate) growing: Growing,
    pub(crate) pending: Pending,
    pub(crate) limits: LimitedTrees,
    /// Inodes below this number are already in the totals and in the recount. It is `u64::MAX` when no recount is
    /// under way.
    pub(crate) walked: Padded<AtomicU64>,
}

/// The parts that a [`Store`] is made from.
pub(crate) struct StoreOptions {
    pub(crate) policies: Policies,
    /// The functions that make fingerprints.
    pub(crate) fingerprints: (Keys, StrongFunction),
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

impl Store {
    /// Makes a store in which nothing is in use yet. `parts` are those of the inode table.
    pub(crate) fn new(
        region: Region,
        geometry: Layout,
        options: StoreOptions,
        parts: Parts,
        index: (Arc<Entries>, Index),
    ) -> Store {
        let StoreOptions { policies, fingerprints, generators, pack, compression, cores, .. } = options;
        let StoreOptions { discard, levels_wear, compares_rewrites, domains, read_only, clock, .. } = options;
        let packed_ends_max = pack.bytes_max(geometry.device_bytes);
        Store {
            space: Space::new(region.clone(), geometry.clone(), cores, discard).with_wear_levelling(levels_wear),
            chunks: Chunks::new(region.clone(), geometry.clone(), index, fingerprints, generators),
            policies,
            table: InodeTable::new(region.clone(), parts),
            journal: Journal::new(),
            mapped_bytes: Sum::default(),
            data_blocks: Sum::default(),
            may_be_dead: MayBeDead::default(),
            unmounted: AtomicBool::new(false),
            freeze_lock: FreezeLock::new(),
            packed_ends_max,
            compression,
            features: Features::default(),
            postponed: Postponed::default(),
            skipped: Mutex::default(),
            refusals: Refusals::default(),
            panics: Panics::default(),
            compares_rewrites,
            domains,
            growing: Growing::default(),
            pending: Pending::default(),
            limits: LimitedTrees::default(),
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

    /// Returns the parts of the store that logs need.
    #[inline]
    fn log_ground(&self) -> log::LogDevice<'_> {
        log::LogDevice { region: &self.region, space: &self.space, table: &self.table, panics: &self.panics }
    }

    /// Returns the parts of the store that policies need.
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
        let inside = self.freeze_lock.enter();
        self.check_changeable(doing)?;
        let done = self.answer(operation());
        drop(inside);
        self.release_postponed();
        done
    }

    /// The same for background work, which the freeze lock does not count as an operation. What was postponed is released
    /// before and after it: the work finds true counts, and what it frees is free.
    pub(crate) fn change_in_background<T>(
        &self,
        doing: &'static str,
        operation: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.release_in_background();
        let inside = self.freeze_lock.enter_background();
        self.check_changeable(doing)?;
        let done = self.answer(operation());
        drop(inside);
        self.release_in_background();
        done
    }

    /// Enters the freeze lock for a step of the copy of a tree.
    ///
    /// # Errors
    /// EROFS, EIO for a lost device; why the copy has to end.
    pub(crate) fn enter_for_copy(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let inside = self.freeze_lock.enter_background();
        self.check_changeable("clone a tree")?;
        if self.pending.is_ending() {
            return Err(Error::ReadOnly { doing: "clone a tree" });
        }
        self.pending.take_failure().map_or(Ok(inside), Err)
    }

    #[inline]
    pub(crate) fn check_changeable(&self, doing: &'static str) -> Result<()> {
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

    /// Returns what background work skipped since mount.
    pub(crate) fn skipped(&self) -> Skipped {
        self.skipped.lock().clone()
    }

    pub(crate) fn record_skipped(&self, error: &Error) {
        let mut skipped = self.skipped.lock();
        skipped.count += 1;
        skipped.last_error = Some(error.to_string());
    }
}

/// Treats ENOSPC as success, for optional work after which nothing needs to have changed.
pub(crate) fn if_there_is_room(done: Result<()>) -> Result<()> {
    match done {
        Err(Error::NoSpace { .. }) => Ok(()),
        done => done,
    }
}
