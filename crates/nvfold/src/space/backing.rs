//! Which free blocks have their disk: a device in a sparse file (level `file`) may be larger than the disk below it, and
//! a device in memory larger than the memory that its process may use.
//!
//! The problem: what a write accepts must be stored later, when the sync comes. If the disk is full then, it is too late
//! for an error. In memory it is too late when the page is stored to: at the limit the kernel kills a process. What is
//! said of disk here holds for memory too; `Region` knows which of them it reserves.
//!
//! The idea: a segment is *backed* while the host has reserved the disk of its blocks, of their chunk entries and of its
//! entry in the segment table. Only the free blocks of backed segments are counted as free blocks that can be taken;
//! the others are counted beside them. An allocation that finds too few blocks backs another segment first. If the
//! host refuses, the device is full: the caller gets ENOSPC before anything has changed, as on a device without a free
//! block, and what such a device does to find space happens here too (`reserve.rs`).
//!
//! ```text
//! free blocks     of backed segments     taken by allocations        (free)
//!                 of the others          taken when one is backed    (unbacked)
//! ```
//!
//! A segment that is partly in use is no longer backed once the disk of its free blocks was given back. Blocks of it that
//! become free after that still have their disk: they are *loose*. What a removal frees must be of use at once, so a
//! segment with loose blocks is backed before others, and if the holes in it find no disk either, its loose blocks are
//! given back, and a whole segment is backed with their disk.
//!
//! Where nothing limits the memory of the process, at level `dax`, and on hosts that cannot reserve disk, every segment
//! counts as backed.
//!
//! What is written outside of free blocks has its disk reserved by the mount: superblocks, journal, generators, segments
//! of tables. After a mount, segments that hold data are not backed. Their blocks in use, and the entries of these,
//! have their disk: they were written in a backed segment, and a sync makes holes only of what was punched.

use super::Space;
use crate::error::Result;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::segment::SegmentEntry;
use crate::media::{BLOCK_BYTES, BlockNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use nvfold_sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use nvfold_sync::{Mutex, RwLock, zeroed};
use pmem::{PmemError, Region};

const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

/// The state; see the module.
pub(super) struct Backing {
    /// False if every segment counts as backed.
    is_needed: bool,
    backed: Box<[AtomicU8]>,
    /// The number of free blocks in segments that are not backed.
    unbacked: AtomicU64,
    /// The number of blocks that the host could reserve at the last look.
    host_free: AtomicU64,
    /// For each segment that is not backed: how many of its free blocks became free since, and still have their disk.
    /// Too many while they are being given back.
    loose_in: Box<[AtomicU16]>,
    /// Their sum.
    loose: AtomicU64,
    /// Held shared while blocks become free or used, and exclusively while a segment changes sides.
    moving: RwLock<()>,
    /// The segment at which the next search begins.
    search_from: Mutex<u64>,
}

impl Backing {
    pub(super) fn new(region: &Region, segments: u64, blocks: u64) -> Backing {
        let is_needed = region.reserves();
        Backing {
            is_needed,
            backed: zeroed(if is_needed { segments } else { 0 }),
            unbacked: AtomicU64::new(if is_needed { blocks } else { 0 }),
            host_free: AtomicU64::new(0),
            loose_in: zeroed(if is_needed { segments } else { 0 }),
            loose: AtomicU64::new(0),
            moving: RwLock::new(()),
            search_from: Mutex::new(0),
        }
    }

    #[inline]
    pub(super) fn is_needed(&self) -> bool {
        self.is_needed
    }

    /// Returns the number of free blocks in segments that are not backed.
    pub(super) fn unbacked(&self) -> u64 {
        self.unbacked.load(Ordering::Relaxed)
    }

    /// Adds free blocks of segments that are not backed.
    pub(super) fn add_unbacked(&self, blocks: u64) {
        self.unbacked.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Records that no free block of a segment is loose. To be called before they are given back: what becomes free
    /// meanwhile is loose, or was given back already.
    pub(super) fn forget_loose(&self, segment: u64) {
        if self.is_needed {
            let loose = self.loose_in[segment as usize].swap(0, Ordering::Relaxed);
            self.loose.fetch_sub(loose.into(), Ordering::Relaxed);
        }
    }

    pub(super) fn has_loose(&self) -> bool {
        self.loose.load(Ordering::Relaxed) > 0
    }

    pub(super) fn is_loose(&self, segment: u64) -> bool {
        self.loose_in[segment as usize].load(Ordering::Relaxed) > 0
    }
}

impl Space {
    /// Returns whether the free blocks of a segment have their disk.
    #[inline]
    pub(super) fn is_backed(&self, segment: u64) -> bool {
        !self.backing.is_needed || self.backing.backed[segment as usize].load(Ordering::Relaxed) != 0
    }

    /// Returns the number of free blocks that can be taken in a segment.
    #[inline]
    pub(super) fn takeable_in(&self, segment: u64) -> u64 {
        let free = u64::from(self.free_in[segment as usize].load(Ordering::Relaxed));
        if self.is_backed(segment) { free } else { 0 }
    }

    /// Changes the count of free blocks of a segment by `change`, which returns how many blocks became free.
    #[inline]
    pub(super) fn count_freed(&self, segment: u64, change: impl FnOnce() -> u64) {
        let _moving = self.backing.is_needed.then(|| self.backing.moving.read());
        let freed = change();
        if self.is_backed(segment) {
            self.free_blocks.give(freed);
        } else {
            self.backing.unbacked.fetch_add(freed, Ordering::Relaxed);
            self.backing.loose.fetch_add(freed, Ordering::Relaxed);
            self.backing.loose_in[segment as usize].fetch_add(freed as u16, Ordering::Relaxed);
        }
    }

    /// Does the same for blocks that were found to be in use, by the mount or by recovery.
    pub(super) fn count_used(&self, segment: u64, change: impl FnOnce() -> u64) {
        let _moving = self.backing.is_needed.then(|| self.backing.moving.read());
        let used = change();
        if self.is_backed(segment) {
            self.free_blocks.take(used, 0);
        } else {
            self.backing.unbacked.fetch_sub(used, Ordering::Relaxed);
        }
    }

    /// Returns how many blocks could be backed, as far as the host told.
    pub(super) fn backable_blocks(&self) -> u64 {
        match self.backing.is_needed {
            true => {
                let loose = self.backing.loose.load(Ordering::Relaxed) * BLOCK_BYTES / (BLOCK_BYTES + ENTRY_BYTES);
                self.backing.unbacked().min(self.backing.host_free.load(Ordering::Relaxed) + loose)
            }
            false => 0,
        }
    }

    /// Asks the host how much disk is free, for exact figures.
    pub(crate) fn look_at_host(&self) {
        if let Some(bytes) = self.region.host_free_bytes() {
            let bytes_per_block = BLOCK_BYTES + ENTRY_BYTES;
            self.backing.host_free.store(bytes / bytes_per_block, Ordering::Relaxed);
        }
    }

    /// Backs a segment that is free as a whole. The rest is as in [`Space::back_another`].
    pub(super) fn back_whole(&self) -> Result<bool> {
        if !self.backing.is_needed {
            return Ok(false);
        }
        let segment = self.next_unbacked(|_, free, blocks| free == blocks);
        segment.map_or(Ok(false), |segment| self.back(segment))
    }

    /// Finds the next segment that is not backed and that fits: its number, its free blocks, and its blocks.
    pub(super) fn next_unbacked(&self, fits: impl Fn(u64, u64, u64) -> bool) -> Option<u64> {
        let mut search_from = self.backing.search_from.lock();
        let (first, segments) = (self.geometry.first_segment(), self.geometry.segments());
        let from = (*search_from).clamp(first, segments);
        let mut order = (from..segments).chain(first..from);
        let found = order.find(|segment| {
            let free = u64::from(self.free_in[*segment as usize].load(Ordering::Relaxed));
            let blocks = self.geometry.blocks_in_segment(*segment);
            blocks > 0 && !self.is_backed(*segment) && fits(*segment, free, blocks)
        })?;
        *search_from = found + 1;
        Some(found)
    }

    /// Backs a segment. Returns false if the host has no disk for it.
    ///
    /// # Errors
    /// Those of the host, except that it is full.
    pub(crate) fn back(&self, segment: u64) -> Result<bool> {
        if self.is_backed(segment) {
            return Ok(true);
        }
        let reserved = self.reserve_disk(segment);
        self.look_at_host();
        match reserved {
            Ok(()) => {}
            Err(error) if matches!(error.errno(), ENOSPC | EDQUOT) => {
                self.backing.host_free.store(0, Ordering::Relaxed);
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
        let _moving = self.backing.moving.write();
        if self.backing.backed[segment as usize].swap(1, Ordering::Relaxed) == 0 {
            self.backing.forget_loose(segment);
            let free = u64::from(self.free_in[segment as usize].load(Ordering::Relaxed));
            self.backing.unbacked.fetch_sub(free, Ordering::Relaxed);
            self.free_blocks.give(free);
        }
        Ok(true)
    }

    fn reserve_disk(&self, segment: u64) -> std::result::Result<(), PmemError> {
        let blocks = self.geometry.blocks_in_segment(segment);
        let entries = self.geometry.chunk_entry_offset(BlockNumber(segment * SEGMENT_BLOCKS));
        self.region.reserve(segment * SEGMENT_BYTES, blocks * BLOCK_BYTES)?;
        self.reserve_pages(entries, blocks * ENTRY_BYTES)?;
        self.reserve_pages(self.geometry.segment_entry_offset(segment), size_of::<SegmentEntry>() as u64)
    }

    fn reserve_pages(&self, offset: u64, length: u64) -> std::result::Result<(), PmemError> {
        let first = offset / BLOCK_BYTES * BLOCK_BYTES;
        self.region.reserve(first, (offset + length).next_multiple_of(BLOCK_BYTES) - first)
    }

    /// Ends the backing of a segment whose disk is about to be given back. The caller keeps cursors from entering it.
    /// Returns false if its free blocks are promised already.
    pub(super) fn end_backing(&self, segment: u64) -> bool {
        if !self.backing.is_needed || !self.is_backed(segment) {
            return true;
        }
        let _moving = self.backing.moving.write();
        let free = u64::from(self.free_in[segment as usize].load(Ordering::Relaxed));
        let is_taken = self.free_blocks.take(free, 0);
        if is_taken {
            self.backing.unbacked.fetch_add(free, Ordering::Relaxed);
            self.backing.backed[segment as usize].store(0, Ordering::Relaxed);
        }
        is_taken
    }
}
