//! Giving the memory of free blocks back to the host where other blocks of their segment are in use.
//!
//! The problem: [`Space::trim`] gives back whole segments. After two concurrent copies were shared, or half of the
//! files removed, few segments are completely free, and the host holds memory for data that is gone.
//!
//! The idea: a background thread goes around all segments in bounded steps. The bits of the allocator say which
//! blocks are free, and the host itself says for which of them it holds memory. So allocating and freeing records
//! nothing, neither in DRAM nor on the media.
//!
//! ```text
//! bits of a segment   since the last round              what a round does
//! changed             noted: their digest               nothing yet: who frees blocks may use them again
//! the same            long runs not given back          punches runs of 16 aligned blocks (64 KiB) and more
//! the same            host above the aim                punches free blocks one by one
//! ```
//!
//! The promise is that the host holds at most 1.05 of the stored data plus 8 MiB. The **aim** is below that, because
//! it covers all blocks in use, including logs. Long runs are cheap and are always given back. Single blocks are
//! given back only while the host holds more than the aim, as happens when files are overwritten at random.
//!
//! **A hole is safe.** While memory is given back, no cursor may move in the segment or enter it, so its free blocks
//! stay free. The old content of a block that is allocated again never counts: the block is written, durably, before
//! an extent references it. So it does not matter whether the host has made the hole durable by then. Only a table
//! relies on a hole to read as zeros, and a table is made of a whole segment and waits for the host
//! ([`Region::settle_holes`](pmem::Region::settle_holes)). The chunk entries of 64 free blocks fill a page, which is
//! given back with them: an entry is emptied, durably, before its block is free.

use super::{BlockRun, Cursors, Space, WHOLE, WORDS_PER_SEGMENT};
use crate::error::Result;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::{BLOCK_BYTES, BlockNumber, SEGMENT_BLOCKS};
use nvfold_sync::MutexGuard;
use nvfold_sync::atomic::Ordering;
use smallvec::SmallVec;

/// The length of a run that is always worth a hole: 64 KiB.
const LONG_RUN_BLOCKS: u64 = 16;
/// The most holes that one step punches: each takes about ten microseconds on a disk, one microsecond in memory.
const HOLES_A_STEP: usize = 32;
/// The most segments whose bits one step reads: 256 KiB of DRAM.
const SEGMENTS_A_STEP: u64 = 4096;
/// The aim: this percentage of the blocks in use, plus `AIM_BYTES`.
const AIM_PERCENT: u64 = 102;
const AIM_BYTES: u64 = 4 << 20;
/// Too much: this percentage of the blocks in use, plus `TOO_MUCH_BYTES`.
const TOO_MUCH_PERCENT: u64 = 120;
const TOO_MUCH_BYTES: u64 = 8 << 20;
/// The number of blocks whose chunk entries fill a page.
const ENTRIES_A_PAGE: u64 = BLOCK_BYTES / ENTRY_BYTES;

/// Which free runs of a segment were given back since its bits match the digest: the low bits of `noted`.
const NOTHING: u32 = 0;
const LONG_RUNS: u32 = 1;
const ALL_RUNS: u32 = 2;
const LEVEL_BITS: u32 = 3;
/// Set in every digest, because 0 stands for a segment that no round has visited.
const VISITED: u32 = 4;

/// Position of the current round.
#[derive(Default)]
pub(super) struct Round {
    /// The next segment; 0: a round begins.
    next: u64,
    /// The runs that this round gives back.
    level: u32,
}

/// Cursors that are locked, so they cannot move.
type PinnedCursors<'s> = SmallVec<[MutexGuard<'s, Cursors>; 2]>;

impl Space {
    /// Does a bounded part of a round over all segments; returns true at the end of the round. A segment is given
    /// back, as a whole or in parts, if two consecutive rounds find the same blocks in use. Front ends wait a second
    /// between two rounds.
    pub(crate) fn give_back_step(&self) -> Result<bool> {
        let mut round = self.round.lock();
        if !self.gives_back() {
            return Ok(true);
        }
        if round.next == 0 {
            *round = Round { next: self.geometry.first_segment(), level: self.wanted_level() };
            self.abandon_empty_cursors();
        }
        let end = (round.next + SEGMENTS_A_STEP).min(self.geometry.segments());
        while round.next < end {
            let punched = self.visit(round.next, round.level)?;
            if punched == HOLES_A_STEP {
                return Ok(false);
            }
            round.next += 1;
            if punched > 0 {
                break;
            }
        }
        let is_over = round.next == self.geometry.segments();
        if is_over {
            round.next = 0;
        }
        Ok(is_over)
    }

    /// Gives back at once what two rounds would, except in segments in which a cursor is moving. Returns how many
    /// bytes it gave back.
    pub(crate) fn give_back_all(&self) -> Result<u64> {
        if !self.gives_back() {
            return Ok(0);
        }
        let level = self.wanted_level();
        let mut bytes = 0;
        for segment in self.marked_segments() {
            bytes += self.punch_all_runs(segment, level)?;
        }
        Ok(bytes)
    }

    /// Returns whether memory of free blocks is given back.
    pub(super) fn gives_back(&self) -> bool {
        self.discard && self.region.can_punch()
    }

    /// Gives back what the host holds for free blocks of a segment that is not backed. Returns how many bytes that were
    /// at most; 0 if a cursor is moving there.
    pub(super) fn give_back_in(&self, segment: u64) -> Result<u64> {
        // Also if nothing can be given back now, so that it is not tried again.
        self.backing.forget_loose(segment);
        self.punch_all_runs(segment, ALL_RUNS)
    }

    fn punch_all_runs(&self, segment: u64, level: u32) -> Result<u64> {
        let mut bytes = 0;
        loop {
            let (punched, given) = self.punch_free_runs(segment, level)?.unwrap_or_default();
            bytes += given;
            if punched < HOLES_A_STEP {
                return Ok(bytes);
            }
        }
    }

    /// Returns what to give back now: single blocks only if the host holds more than the aim.
    fn wanted_level(&self) -> u32 {
        if self.holds_more_than(AIM_PERCENT, AIM_BYTES) { ALL_RUNS } else { LONG_RUNS }
    }

    /// True if the host holds so much for free blocks that these are to be used before further segments, although they lie
    /// scattered: a program that replaces its files faster than rounds give memory back would take any amount.
    pub(super) fn holds_too_much(&self) -> bool {
        self.gives_back() && self.holds_more_than(TOO_MUCH_PERCENT, TOO_MUCH_BYTES)
    }

    fn holds_more_than(&self, percent: u64, bytes: u64) -> bool {
        let used_bytes = self.total_blocks().saturating_sub(self.free_blocks()) * BLOCK_BYTES;
        self.region.allocated_bytes() > used_bytes / 100 * percent + bytes
    }

    /// Visits a segment in a round; returns how many holes it punched.
    fn visit(&self, segment: u64, level: u32) -> Result<usize> {
        if self.marked[segment as usize].load(Ordering::Relaxed) == 0 {
            return Ok(0);
        }
        let noted = &self.noted[segment as usize];
        let digest = digest(&self.used_in(segment));
        let before = noted.load(Ordering::Relaxed);
        if before & !LEVEL_BITS != digest {
            noted.store(digest | NOTHING, Ordering::Relaxed);
            return Ok(0);
        }
        if before & LEVEL_BITS >= level {
            return Ok(0);
        }
        if self.is_empty(segment) {
            self.trim_segment(segment)?;
            return Ok(1);
        }
        let Some((punched, _)) = self.punch_free_runs(segment, level)? else { return Ok(0) };
        if punched < HOLES_A_STEP {
            noted.store(digest | level, Ordering::Relaxed);
        }
        Ok(punched)
    }

    /// Punches a bounded number of holes for free blocks of a segment. Returns their number and their bytes; `None`
    /// if a cursor is moving in the segment, or if the segment belongs to a table.
    fn punch_free_runs(&self, segment: u64, level: u32) -> Result<Option<(usize, u64)>> {
        let Some(held) = self.pin_cursors_in(segment) else { return Ok(None) };
        // No cursor enters the segment meanwhile, and the ones in it cannot move: free blocks stay free.
        let _search = self.search_from.lock();
        let walkers = usize::from(self.walkers[segment as usize].load(Ordering::Acquire));
        let is_marked = self.marked[segment as usize].load(Ordering::Relaxed) != 0;
        let here: usize = held.iter().map(|cursors| cursors.count_in(segment)).sum();
        if !is_marked || walkers != here {
            return Ok(None);
        }
        let had_disk = self.backing.is_needed() && self.is_backed(segment);
        if had_disk && (here > 0 || !self.end_backing(segment)) {
            return Ok(None);
        }
        self.backing.forget_loose(segment);
        let used = self.used_in(segment);
        let least = if level == ALL_RUNS { 1 } else { LONG_RUN_BLOCKS };
        let (mut punched, mut bytes) = (0, 0);
        let first = segment * SEGMENT_BLOCKS;
        let blocks = free_runs(&used, least).map(|(at, count)| BlockRun { start: BlockNumber(first + at), count });
        let of_blocks = blocks.map(|run| (run.start.address(), run.count * BLOCK_BYTES));
        let pages = free_runs(&used, ENTRIES_A_PAGE).map(|(at, count)| (BlockNumber(first + at), count * ENTRY_BYTES));
        let of_entries = pages.map(|(block, length)| (self.geometry.chunk_entry_offset(block), length));
        for (offset, length) in of_blocks.chain(of_entries) {
            // Disk that is reserved and not stored to looks like a hole. It is given back once, in one step.
            if !had_disk && self.region.next_allocated(offset, offset + length) == offset + length {
                continue;
            }
            self.region.punch(offset, length)?;
            punched += 1;
            bytes += length;
            if punched == HOLES_A_STEP && !had_disk {
                break;
            }
        }
        Ok(Some((punched.min(if had_disk { HOLES_A_STEP - 1 } else { HOLES_A_STEP }), bytes)))
    }

    /// Locks the cursors that are in a segment. `None` if one is moving right now, or if the segment belongs to a
    /// table.
    fn pin_cursors_in(&self, segment: u64) -> Option<PinnedCursors<'_>> {
        let walkers = self.walkers[segment as usize].load(Ordering::Acquire);
        if walkers == WHOLE {
            return None;
        }
        let mut held = PinnedCursors::new();
        let mut missing = usize::from(walkers);
        for cursors in &self.cursors {
            if missing == 0 {
                break;
            }
            let Some(cursors) = cursors.try_lock() else { continue };
            let here = cursors.count_in(segment);
            if here > 0 {
                missing = missing.saturating_sub(here);
                held.push(cursors);
            }
        }
        (missing == 0).then_some(held)
    }
}

impl Cursors {
    fn count_in(&self, segment: u64) -> usize {
        [&self.data, &self.log].into_iter().filter(|cursor| cursor.segment == Some(segment)).count()
    }
}

/// Returns a digest of the bits of a segment, with the lowest bits free for a level.
fn digest(used: &[u64; WORDS_PER_SEGMENT]) -> u32 {
    let mix = |sum: u64, word: &u64| (sum.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((used.iter().fold(1, mix) >> 32) as u32 | VISITED) & !LEVEL_BITS
}

/// Iterates over runs of free blocks, in aligned groups of `least` blocks (a power of two): start in the segment and
/// length.
fn free_runs(used: &[u64; WORDS_PER_SEGMENT], least: u64) -> impl Iterator<Item = (u64, u64)> {
    let mask = !0 >> (64 - least);
    let is_free = move |at: &u64| used[(at / 64) as usize] >> (at % 64) & mask == 0;
    let groups = move |from: u64| (from..SEGMENT_BLOCKS).step_by(least as usize);
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = groups(from).find(is_free)?;
        from = groups(start).find(|at| !is_free(at)).unwrap_or(SEGMENT_BLOCKS);
        Some((start, from - start))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(free: &[std::ops::Range<u64>], least: u64) -> Vec<(u64, u64)> {
        let mut used = [!0; WORDS_PER_SEGMENT];
        let blocks = free.iter().cloned().flatten();
        blocks.for_each(|block| used[(block / 64) as usize] &= !(1 << (block % 64)));
        free_runs(&used, least).collect()
    }

    #[test]
    fn runs_of_free_blocks_are_aligned_and_maximal() {
        assert_eq!(runs(&[], 16), []);
        assert_eq!(runs(&[0..100, 100..512], 16), [(0, 512)]);
        assert_eq!(runs(&[1..40, 47..65, 100..160], 16), [(16, 16), (48, 16), (112, 48)]);
        assert_eq!(runs(&[1..16, 17..31], 16), [], "shorter than a group");
        assert_eq!(runs(&[1..16, 500..512], 1), [(1, 15), (500, 12)]);
        assert_eq!(runs(&[0..64, 65..300], 64), [(0, 64), (128, 128)]);
    }

    #[test]
    fn a_segment_digest_distinguishes_bits_and_leaves_room_for_a_level() {
        let one = |bit: u32| std::array::from_fn(|at| u64::from(at == 3) << bit);
        assert_ne!(digest(&one(5)), digest(&one(6)));
        assert_ne!(digest(&[0; WORDS_PER_SEGMENT]), 0);
        assert_eq!(digest(&one(9)) & LEVEL_BITS, 0);
    }
}
