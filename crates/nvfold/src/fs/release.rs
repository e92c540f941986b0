//! Dropping references, and freeing what nobody names any more.

use super::Core;
use crate::chunk::Released;
use crate::chunk::reference::Hold;
use crate::inode::extents::Dropped;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::{BlockNumber, ChunkRef, PackedNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::space::{BlockRun, Runs};
use pmem::Flight;
use smallvec::SmallVec;

/// Blocks whose entries were emptied and that the index still has.
pub(super) type Emptied = SmallVec<[BlockNumber; 1]>;

impl Core {
    /// Empties the entries of the blocks that only these runs name: to be fenced with the commit word after which they
    /// are named no more. An empty entry says that one extent names the block, so it may reach the media first; and
    /// the fence comes before anybody else can have the block. What the index has of them is forgotten while the
    /// lines are on their way.
    pub(super) fn clear_unshared_entries(&self, runs: &[BlockRun], kept: &[BlockNumber]) -> (Flight, Emptied) {
        let mut flight = Flight::new();
        let mut emptied = Emptied::new();
        // Waiting for one entry takes as long as for one that was asked for just before.
        if !matches!(runs, [] | [BlockRun { count: 1, .. }]) {
            self.chunks.fetch_entries(runs);
        }
        for block in runs.iter().flat_map(|run| run.blocks()).filter(|block| !kept.contains(block)) {
            if self.chunks.clear_if_unshared(block, &mut flight) {
                emptied.push(block);
            }
        }
        (flight, emptied)
    }

    /// Takes blocks whose entries were emptied out of the index.
    pub(super) fn forget_all(&self, emptied: &[BlockNumber]) -> Flight {
        let mut flight = Flight::new();
        if emptied.len() > 1 {
            self.chunks.fetch_slots(emptied);
        }
        emptied.iter().for_each(|block| flight.extend(self.chunks.forget(*block)));
        flight
    }

    /// Drops one reference from each block and packed chunk, and frees those that nobody names any more, but for `kept` (sorted).
    /// `gained`: data blocks that came into use in the same operation.
    pub(super) fn release(&self, dropped: &Dropped, kept: &[BlockNumber], gained: u64) {
        if !dropped.packed.is_empty() {
            self.release_packed(&dropped.packed);
        }
        self.release_by(&dropped.blocks, kept, gained, |block, flight| self.chunks.release(block, flight));
    }

    /// Drops one reference from each packed chunk, and frees those that nobody names any more.
    /// One that is free leaves the index and the table of entries, durably, before anybody else gets its place.
    fn release_packed(&self, chunks: &[PackedNumber]) {
        let mut flight = Flight::new();
        let mut free: SmallVec<[(PackedNumber, Option<(u64, u64)>); 2]> = SmallVec::new();
        // What a damaged extent names may have no entry.
        for chunk in chunks.iter().filter(|chunk| self.chunks.entries.exists(ChunkRef::Packed(**chunk))) {
            // Once the reference is gone somebody else may have the entry, or its part of the table be gone.
            let entry = self.chunks.entry_offset(*chunk);
            if self.chunks.release(*chunk, &mut flight) == Released::Free {
                // Not before: until nobody names it, it may move. From then on the entry stays as it is until it is given back.
                free.push((*chunk, self.chunks.last_place_of(*chunk)));
            }
            // One in bad memory was kept, and that is no failure of who drops it.
            let _ = self.region.sound_or_forget(entry, ENTRY_BYTES);
        }
        if !free.is_empty() {
            let _ = self.region.fence(flight);
        }
        // The last one first: what was appended last gives its bytes back, and so does then what lies before it.
        for (chunk, place) in free.into_iter().rev() {
            self.chunks.packed.free(chunk);
            if let Some((address, bytes)) = place {
                self.space.drop_packed(address, bytes);
            }
        }
    }

    /// Gives segments back in which no packed chunk lives, and parts of the table of their entries that count nothing. How
    /// many segments.
    pub(crate) fn give_up_empty_packed(&self) -> usize {
        self.space.close_empty_packed() + self.chunks.packed.shrink(&self.space)
    }

    /// Free blocks, with those that an operation gets which finds too few: see [`Core::give_up_empty_packed`].
    pub(crate) fn free_blocks(&self) -> u64 {
        self.space.free_blocks() + (self.space.empty_packed() + self.chunks.packed.empty_parts()) * SEGMENT_BLOCKS
    }

    /// Of so many free blocks, those that new content cannot fill, by the policy of the mount.
    pub(crate) fn blocks_beside_content(&self, free: u64) -> u64 {
        if self.policies.of(None).streams().is_none() || !self.chunks.entries.may_pack() {
            return 0;
        }
        let packed = &self.chunks.packed;
        self.space.beside_packed(free, packed.entries_end() - packed.count())
    }

    /// A read-only mount: one more extent names a packed chunk, the first one that `is_first`.
    pub(crate) fn count_packed(&self, chunk: PackedNumber, is_first: bool) {
        let Some((address, stored)) = self.chunks.place_of(chunk.into()) else { return };
        let Some(bytes) = self.chunks.packed_bytes(chunk) else { return };
        if is_first {
            self.space.packed.adopt_chunk(address / SEGMENT_BYTES, stored);
            self.chunks.packed.record_compressed(bytes);
        } else {
            self.chunks.packed.record_saved(bytes.content);
        }
    }

    /// Gives references back that were taken by update count.
    pub(super) fn give_back(&self, holds: impl Iterator<Item = Hold>) {
        let runs: Runs = holds.map(|hold| BlockRun { start: hold.take(), count: 1 }).collect();
        self.release_by(&runs, &[], 0, |block, flight| self.chunks.give_back(block, flight));
        // A device that is clean has no update counts.
        let _ = self.region.fence(Flight::new());
    }

    /// As [`Core::release`], of references that `drop_one` drops.
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
            // Most runs: what policy `off` stored, and nobody cloned.
            if kept.is_empty() && self.chunks.are_private(*run) && !self.policies.needs_release_notices() {
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

    /// Drops a reference of each block of a run; what is free is added to `free`. Whether an entry was emptied.
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
                match free.last_mut() {
                    Some(last) if last.blocks_end() == block.0 => last.count += 1,
                    _ => free.push(BlockRun { start: block, count: 1 }),
                }
            }
        }
        emptied
    }

    /// Returns blocks that nothing names any more.
    pub(super) fn free(&self, run: BlockRun) {
        self.free_known(run);
    }

    /// As `free`; how many of the blocks were known to be in use: after a crash the others are in no total until
    /// reconcile has found out about them.
    fn free_known(&self, run: BlockRun) -> u64 {
        debug_assert!(
            !self.chunks.finds_private() || run.blocks().all(|block| !self.chunks.can_be_found(block)),
            "{run:?} is freed and can be found"
        );
        let known = self.chunks.with_recount(|recount| recount.freed(run));
        self.space.free(run);
        known.unwrap_or(run.count)
    }
}
