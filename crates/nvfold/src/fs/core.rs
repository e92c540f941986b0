//! What is behind a mount, and how an operation comes in.

use super::cache::Cache;
use super::commit::Journal;
use super::gate::Gate;
use super::options::MountOptions;
use crate::chunk::Chunks;
use crate::chunk::index::Index;
use crate::dedup::{Ground, Policies, PolicyOptions};
use crate::error::{Error, Result};
use crate::inode::table::InodeTable;
use crate::media::superblock::Geometry;
use crate::padded::Padded;
use crate::space::Space;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, RwLockReadGuard};
use crate::words::{Clock, TimeNs};
use pmem::Region;

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
    pub(super) journal: Journal,
    /// Held by operations that involve two directories.
    pub(super) tree: Mutex<()>,
    pub(crate) cache: Cache,
    /// Bytes that all extents of all files name.
    pub(crate) mapped_bytes: Padded<AtomicU64>,
    pub(crate) data_blocks: Padded<AtomicU64>,
    pub(crate) unmounted: AtomicBool,
    pub(crate) gate: Gate,
    /// Inodes below this number count in the totals and in the recount; all of them when nothing is recounted.
    pub(crate) walked: Padded<AtomicU64>,
}

impl Core {
    /// With nothing in use but what `segments` of the inode table say.
    pub(crate) fn new(
        region: Region,
        geometry: Geometry,
        options: &MountOptions,
        segments: Vec<u64>,
        index: Index,
    ) -> Core {
        let memory = region.level() == pmem::PersistenceLevel::Memory;
        let discard = options.discard.unwrap_or(memory);
        let fingerprints = (options.nv_dedup.weak, options.nv_dedup.strong.unwrap_or_default());
        Core {
            space: Space::new(region.clone(), geometry, options.cores, discard),
            chunks: Chunks::new(region.clone(), geometry, index, fingerprints, options.generators),
            policies: Policies::new(PolicyOptions {
                policy: options.policy,
                nv_dedup: &options.nv_dedup,
                denova: &options.denova,
                stopwatch: options.stopwatch.clone(),
                foreign: options.foreign.clone(),
            }),
            table: InodeTable::new(region.clone(), geometry, segments),
            journal: Journal::new(),
            tree: Mutex::new(()),
            cache: Cache::new(),
            mapped_bytes: Padded::default(),
            data_blocks: Padded::default(),
            unmounted: AtomicBool::new(false),
            gate: Gate::new(),
            walked: Padded(AtomicU64::new(u64::MAX)),
            read_only: options.read_only,
            clock: options.clock.clone(),
            region,
            geometry,
        }
    }

    pub(crate) fn now(&self) -> TimeNs {
        (self.clock)()
    }

    /// What policies stand on.
    pub(crate) fn ground(&self) -> Ground<'_> {
        Ground { region: &self.region, space: &self.space, chunks: &self.chunks }
    }

    /// Runs an operation that changes something: inside the gate, on a file system that may be changed.
    ///
    /// # Errors
    /// EROFS, EIO when it has read memory that is bad or the device is lost; those of the operation.
    pub(crate) fn change_by<T>(&self, doing: &'static str, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        let _inside = self.gate.enter();
        self.check_changeable(doing)?;
        self.answer(operation())
    }

    /// Likewise in the background: operations in the foreground do not see it as one of them.
    pub(super) fn change_in_background<T>(
        &self,
        doing: &'static str,
        operation: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let _inside: RwLockReadGuard<'_, ()> = self.gate.enter_behind();
        self.check_changeable(doing)?;
        self.answer(operation())
    }

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
    pub(crate) fn answer<T>(&self, result: Result<T>) -> Result<T> {
        self.region.check()?;
        result
    }

    /// Whether counts and free space are still to be found out.
    pub(crate) fn is_reconciling(&self) -> bool {
        self.walked.load(Ordering::Acquire) != u64::MAX
    }

    /// Whether an operation on this inode counts in the totals and the recount.
    pub(crate) fn is_walked(&self, ino: u64) -> bool {
        ino < self.walked.load(Ordering::Acquire)
    }

    pub(super) fn account_mapped(&self, ino: u64, before: u64, after: u64) {
        if before == after || !self.is_walked(ino) {
            return;
        }
        // Two's complement: a decrease is an addition too.
        self.mapped_bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }
}
