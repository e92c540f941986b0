//! Dropping references, and freeing what is no longer referenced.

use super::Store;
use crate::chunk::reference::Hold;
use crate::chunk::{FETCHED_BLOCKS, Released};
use crate::inode::extents::Dropped;
use crate::inode::log::LogPart;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::{BlockNumber, ChunkRef, PackedNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::space::{BlockRun, Runs, add_run};
use nvfold_sync::atomic::{AtomicU64, Ordering};
use pmem::Flight;
use smallvec::SmallVec;
use std::ops::Range;

/// Blocks whose entries were emptied and that are still in the index.
pub(super) type EmptiedEntries = SmallVec<[BlockNumber; 1]>;

/// The number of bytes that may have died in chunks that are still referenced, since they were last collected.
pub(crate) struct MayBeDead {
    bytes: AtomicU64,
    /// Those that the collection under way looks for.
    under_collection: AtomicU64,
}

impl Default for MayBeDead {
    fn default() -> MayBeDead {
        // Bytes may have died before this mount, so the first collection has something to look for.
        MayBeDead { bytes: AtomicU64::new(1), under_collection: AtomicU64::new(0) }
    }
}

impl MayBeDead {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the same together with those that a collection under way looks for.
    pub(crate) fn bytes_in_all(&self) -> u64 {
        self.bytes().saturating_add(self.under_collection.load(Ordering::Relaxed))
    }

    /// Records that extents dropped `bytes` bytes of chunks that may have other references.
    pub(crate) fn add(&self, bytes: u64) {
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Subtracts file ranges that were made to map other chunks, which publishing counted as dead.
    pub(crate) fn forget(&self, ranges: &[Range<u64>]) {
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let less = |dead: u64| Some(dead.saturating_sub(bytes));
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// A collection begins to look for them; those that die from now on are counted anew.
    pub(crate) fn begin_collection(&self) {
        self.under_collection.store(self.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The collection has ended.
    pub(crate) fn end_collection(&self) {
        self.under_collection.store(0, Ordering::Relaxed);
    }
}

/// The least number of references for which it pays to lock all entries at once.
const BATCH_LEAST: u64 = 64;

/// Sorts runs by their place, and joins neighbours. A block may be in several runs.
fn sort(runs: &mut Runs) {
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|next, run| {
        let are_neighbours = run.blocks_end() == next.start.0;
        run.count += if are_neighbours { next.count } else { 0 };
        are_neighbours
    });
}

impl Store {
    /// Empties the entries of blocks that only these runs reference. The result is fenced together with the commit
    /// word that drops the last reference. The order of the two does not matter: an empty entry means that one extent
    /// references the block, so it may reach the media first; and the block gets no other user before the fence. The
    /// index forgets the blocks while the lines are being written back.
    ///
    /// `emptied` gets those blocks. It is the caller's: a list that is returned is copied in words that are wider than
    /// those just stored, and such a load waits until all stores before it have left the processor, the data too.
    pub(super) fn clear_unshared_entries(
        &self,
        runs: &[BlockRun],
        kept: &[BlockNumber],
        emptied: &mut EmptiedEntries,
    ) -> Flight {
        let mut flight = Flight::new();
        // Prefetch only for several entries: for a single one, the access would follow at once and gain nothing.
        if !matches!(runs, [] | [BlockRun { count: 1, .. }]) {
            self.chunks.fetch_entries(runs);
        }
        for block in runs.iter().flat_map(|run| run.blocks()).filter(|block| !kept.contains(block)) {
            if self.chunks.clear_if_unshared(block, &mut flight) {
                emptied.push(block);
            }
        }
        flight
    }

    /// Removes blocks whose entries were emptied from the index.
    pub(super) fn forget_all(&self, emptied: &[BlockNumber]) -> Flight {
        let mut flight = Flight::new();
        if emptied.len() > 1 {
            self.chunks.fetch_slots(emptied);
        }
        emptied.iter().for_each(|block| flight.extend(self.chunks.forget(*block)));
        flight
    }

    /// Drops one reference from each block and packed chunk, and frees those that lost the last one, except `kept`
    /// (sorted). `gained` is the number of data blocks that came into use in the same operation.
    pub(crate) fn release(&self, dropped: &Dropped, kept: &[BlockNumber], gained: u64) {
        if !dropped.packed.is_empty() {
            self.release_packed(&dropped.packed);
        }
        self.release_by(&dropped.blocks, kept, gained, |block, flight| self.chunks.release(block, flight));
    }

    /// True if these blocks are private, no search can find them, and no policy has to know: then they are freed without
    /// a look at each.
    #[inline]
    pub(super) fn is_released_at_once(&self, run: BlockRun) -> bool {
        self.chunks.are_private(run) && !self.policies.needs_release_notices()
    }

    /// Does the same as [`Store::release`] for many references. Blocks that only the dram index knows leave it together.
    /// The entries of the others are fetched side by side, in the order of their places, and so are the heads of their
    /// chains.
    pub(super) fn release_batch(&self, mut dropped: Dropped) {
        if dropped.references() >= BATCH_LEAST && !self.policies.needs_release_notices() {
            sort(&mut dropped.blocks);
            let private = self.chunks.take_off_private(&mut dropped.blocks);
            let lost: u64 = private.iter().map(|run| self.free_known(*run)).sum();
            self.data_blocks.subtract(lost);
        }
        while !dropped.is_empty() {
            let rest = dropped.split_off(FETCHED_BLOCKS);
            self.chunks.fetch_entries(&dropped.blocks);
            if !self.chunks.finds_private() {
                let blocks = dropped.blocks.iter().flat_map(|run| run.blocks());
                let leaving: Vec<BlockNumber> = blocks.filter(|block| self.chunks.count(*block) == 1).collect();
                self.chunks.fetch_slots(&leaving);
            }
            self.release(&dropped, &[], 0);
            dropped = rest;
        }
    }

    /// Drops one reference from each packed chunk, and frees those that lost the last one. A free chunk leaves the
    /// index and the table of entries durably before its place gets another user.
    fn release_packed(&self, chunks: &[PackedNumber]) {
        let mut flight = Flight::new();
        let mut free: SmallVec<[(PackedNumber, Option<(u64, u64)>); 2]> = SmallVec::new();
        // A damaged extent may reference a chunk without an entry.
        for chunk in chunks.iter().filter(|chunk| self.chunks.entries.exists(ChunkRef::Packed(**chunk))) {
            // Read the entry's offset now: after the release, the entry may be reused or its part of the table freed.
            let entry = self.chunks.entry_offset(*chunk);
            if self.chunks.release(*chunk, &mut flight) == Released::Free {
                // Read the place only now: a chunk may move until its last reference is gone. From here on the entry
                // stays unchanged until it is freed.
                free.push((*chunk, self.chunks.last_place_of(*chunk)));
            }
            // An entry in bad memory was kept, which is not an error of the caller.
            let _ = self.region.sound_or_forget(entry, ENTRY_BYTES);
        }
        if !free.is_empty() {
            let _ = self.region.fence(flight);
        }
        // Free the last chunk first: if it is the end of its segment, its bytes can be used again, and then those of
        // the chunk before it.
        for (chunk, place) in free.into_iter().rev() {
            self.chunks.packed.free(chunk);
            if let Some((address, bytes)) = place {
                self.space.drop_packed(address, bytes);
            }
        }
    }

    /// Frees segments without live packed chunks, and parts of the table of packed entries that are empty. Returns
    /// the number of segments.
    pub(crate) fn give_up_empty_packed(&self) -> usize {
        self.space.close_empty_packed() + self.chunks.packed.shrink(&self.space)
    }

    /// Returns the number of free blocks, including those that [`Store::give_up_empty_packed`] would free.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.space.free_blocks() + (self.space.empty_packed() + self.chunks.packed.empty_parts()) * SEGMENT_BLOCKS
    }

    /// Returns how many of `free` blocks new content cannot fill under the policy of the mount.
    pub(crate) fn blocks_beside_content(&self, free: u64) -> u64 {
        if self.policies.of(None).streams().is_none() || !self.chunks.entries.may_pack() {
            return 0;
        }
        let packed = &self.chunks.packed;
        self.space.packed_overhead_blocks(free, packed.entries_end() - packed.count())
    }

    /// Counts a packed chunk of which an extent was found, on a read-only mount.
    pub(crate) fn count_packed(&self, chunk: PackedNumber) {
        let Some((address, stored)) = self.chunks.place_of(chunk.into()) else { return };
        let Some(bytes) = self.chunks.packed_bytes(chunk) else { return };
        self.space.packed.adopt_chunk(address / SEGMENT_BYTES, stored);
        self.chunks.packed.record_compressed(bytes);
    }

    /// Gives back references that were held by update count.
    pub(crate) fn give_back(&self, holds: impl Iterator<Item = Hold>) {
        let runs: Runs = holds.map(|hold| BlockRun { start: hold.take(), count: 1 }).collect();
        self.release_by(&runs, &[], 0, |block, flight| self.chunks.give_back(block, flight));
        // A cleanly unmounted device must have no update counts, so they are fenced here.
        let _ = self.region.fence(Flight::new());
    }

    /// The same as [`Store::release`], but `drop_one` drops each reference.
    fn release_by(
        &self,
        runs: &[BlockRun],
        kept: &[BlockNumber],
        gained: u64,
        drop_one: impl Fn(BlockNumber, &mut Flight) -> Released,
    ) {
        let mut flight = Flight::new();
        let mut emptied = false;
        let mut lost = 0;
        let mut free = Runs::new();
        for run in runs {
            // Most runs were stored by policy `off` and never cloned, so they are freed without looking at each
            // block.
            if kept.is_empty() && self.is_released_at_once(*run) {
                free.push(*run);
                continue;
            }
            emptied |= self.release_each(*run, kept, &drop_one, &mut flight, &mut free);
        }
        if emptied {
            // An emptied entry must be durable before its block gets another user.
            let _ = self.region.fence(flight);
        }
        for run in &free {
            lost += self.free_known(*run);
        }
        if gained != lost {
            // Two's complement: a decrease is an addition too.
            self.data_blocks.add(gained.wrapping_sub(lost));
        }
    }

    /// Drops one reference from each block of a run, and adds the free ones to `free`. Returns true if an entry was
    /// emptied.
    fn release_each(
        &self,
        run: BlockRun,
        kept: &[BlockNumber],
        drop_one: &impl Fn(BlockNumber, &mut Flight) -> Released,
        flight: &mut Flight,
        free: &mut Runs,
    ) -> bool {
        let mut emptied = false;
        for block in run.blocks().filter(|block| kept.is_empty() || kept.binary_search(block).is_err()) {
            let had_entry = self.chunks.has_entry(block);
            let left = drop_one(block, flight);
            self.policies.released(block.into(), left);
            if left == Released::Free {
                emptied |= had_entry;
                add_run(free, BlockRun { start: block, count: 1 });
            }
        }
        emptied
    }

    /// Frees blocks that no extent references any more.
    pub(crate) fn free(&self, run: BlockRun) {
        self.free_known(run);
    }

    /// Frees blocks, and returns how many of them were counted as used. After a crash, blocks that reconcile has not
    /// reached yet are in no total.
    fn free_known(&self, run: BlockRun) -> u64 {
        debug_assert!(
            !self.chunks.finds_private() || run.blocks().all(|block| !self.chunks.can_be_found(block)),
            "{run:?} is freed and can be found"
        );
        let known = self.chunks.with_recount(|recount| recount.freed(run));
        self.space.free(run);
        known.unwrap_or(run.count)
    }

    /// Frees the parts of a log that is no longer reachable.
    pub(crate) fn free_log(&self, parts: Vec<LogPart>) {
        for start in parts.iter().filter_map(|part| part.page()) {
            self.free(BlockRun { start, count: 1 });
        }
        self.table.free_areas(parts.iter().filter_map(|part| part.area()));
    }
}
