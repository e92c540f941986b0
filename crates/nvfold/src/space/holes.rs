//! Giving the memory of free blocks back to the host where other blocks of their segment are in use.
//!
//! The problem: [`Space::trim`] gives back whole segments. After two copies at once were shared, or half of the files
//! removed, few segments are wholly free, and the host holds memory for data that is gone.
//!
//! The idea: go round over all segments, in bounded steps of a thread in the background. What is free is seen from the
//! bits of the allocator, and which of it the host still holds memory for the host says itself: nothing is recorded
//! when blocks are allocated or freed, and nothing on the medium.
//!
//! ```text
//! bits of a segment   since the last round              what a round does
//! changed             noted: their digest               nothing yet: who frees blocks may use them again
//! the same            long runs not given back          punches runs of 16 aligned blocks (64 KiB) and more
//! the same            host above the aim                punches free blocks one by one
//! ```
//!
//! The promise is that the host holds 1.05 of the stored data plus 8 MiB at most. The **aim** is below that, for it is
//! about all blocks in use, logs among them. Long runs are cheap and are always given back; single blocks only while the
//! host holds more than the aim, as it does where files were overwritten at random.
//!
//! **A hole is safe.** While memory goes away no cursor may move in the segment or enter it, so its free blocks stay free.
//! A block that is used again is one whose content never counted: it is written, durably, before anything names it.
//! Whether the host has written the hole down by then does not matter; only a table takes a hole for zeros, and that
//! is made of a whole segment and waits for the host ([`Region::settle_holes`](pmem::Region::settle_holes)). The chunk
//! entries of 64 free blocks fill a page, which goes with them: an entry is emptied, durably, before its block is free.

use super::{BlockRun, Cursors, Space, WHOLE, WORDS_PER_SEGMENT};
use crate::error::Result;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::{BLOCK_BYTES, BlockNumber, SEGMENT_BLOCKS};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use smallvec::SmallVec;

/// A run that is always worth a hole: 64 KiB.
const LONG_RUN_BLOCKS: u64 = 16;
/// Holes that one step punches: some ten microseconds each on a disk, one in memory.
const HOLES_A_STEP: usize = 32;
/// Segments whose bits one step looks at: 256 KiB of DRAM.
const SEGMENTS_A_STEP: u64 = 4096;
/// The aim: blocks in use in hundredths, and so many bytes more.
const AIM_PERCENT: u64 = 102;
const AIM_BYTES: u64 = 4 << 20;
/// Chunk entries of so many blocks fill a page.
const ENTRIES_A_PAGE: u64 = BLOCK_BYTES / ENTRY_BYTES;

/// Which runs of a segment whose bits are those of the digest were given back: the low bits of what is noted.
const NOTHING: u32 = 0;
const LONG_RUNS: u32 = 1;
const ALL_RUNS: u32 = 2;
const LEVEL_BITS: u32 = 3;
/// In every digest: zero is noted of a segment that no round has come to.
const VISITED: u32 = 4;

/// Where the round is.
#[derive(Default)]
pub(super) struct Round {
    /// The next segment; 0: a round begins.
    next: u64,
    /// What this round gives back.
    level: u32,
}

/// Cursors that cannot move.
type Held<'s> = SmallVec<[MutexGuard<'s, Cursors>; 2]>;

impl Space {
    /// A bounded part of a round over all segments; true when that is over. A segment is given back, as a whole or in
    /// parts, when two rounds have found the same blocks in use: front ends wait a second between two.
    pub fn give_back_step(&self) -> Result<bool> {
        let mut round = self.round.lock();
        if !self.discard || !self.region.can_punch() {
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

    /// Gives back what a round would, at once and without waiting for a second one. Segments in which a cursor moves are
    /// left out. Returns the bytes.
    pub fn give_back_all(&self) -> Result<u64> {
        if !self.discard || !self.region.can_punch() {
            return Ok(0);
        }
        let level = self.wanted_level();
        let mut bytes = 0;
        for segment in self.marked_segments() {
            let (mut punched, mut given) = self.punch_free_runs(segment, level)?.unwrap_or_default();
            bytes += given;
            while punched == HOLES_A_STEP {
                (punched, given) = self.punch_free_runs(segment, level)?.unwrap_or_default();
                bytes += given;
            }
        }
        Ok(bytes)
    }

    /// What is to be given back now: single blocks too if the host holds more than the aim.
    fn wanted_level(&self) -> u32 {
        let used_bytes = (self.total_blocks - self.free_blocks().min(self.total_blocks)) * BLOCK_BYTES;
        let aim = used_bytes / 100 * AIM_PERCENT + AIM_BYTES;
        if self.region.allocated_bytes() > aim { ALL_RUNS } else { LONG_RUNS }
    }

    /// A segment's turn in a round; how many holes were punched.
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

    /// Punches holes for free blocks of a segment, a bounded number of them; how many, and their bytes. `None` when a
    /// cursor in the segment moves, or it belongs to a table.
    fn punch_free_runs(&self, segment: u64, level: u32) -> Result<Option<(usize, u64)>> {
        let Some(held) = self.pin_cursors_in(segment) else { return Ok(None) };
        // Nobody enters the segment meanwhile, and the cursors in it cannot move: what is free stays free.
        let _search = self.search_from.lock();
        let walkers = usize::from(self.walkers[segment as usize].load(Ordering::Acquire));
        let is_marked = self.marked[segment as usize].load(Ordering::Relaxed) != 0;
        let here: usize = held.iter().map(|cursors| cursors.count_in(segment)).sum();
        if !is_marked || walkers != here {
            return Ok(None);
        }
        let used = self.used_in(segment);
        let least = if level == ALL_RUNS { 1 } else { LONG_RUN_BLOCKS };
        let (mut punched, mut bytes) = (0, 0);
        let first = segment * SEGMENT_BLOCKS;
        let blocks = free_runs(&used, least).map(|(at, count)| BlockRun { start: BlockNumber(first + at), count });
        let of_blocks = blocks.map(|run| (run.start.address(), run.count * BLOCK_BYTES));
        let pages = free_runs(&used, ENTRIES_A_PAGE).map(|(at, count)| (BlockNumber(first + at), count * ENTRY_BYTES));
        let of_entries = pages.map(|(block, length)| (self.geometry.chunk_entry_offset(block), length));
        for (offset, length) in of_blocks.chain(of_entries) {
            if self.region.next_allocated(offset, offset + length) == offset + length {
                continue;
            }
            self.region.punch(offset, length)?;
            punched += 1;
            bytes += length;
            if punched == HOLES_A_STEP {
                break;
            }
        }
        Ok(Some((punched, bytes)))
    }

    /// Keeps the cursors that are in a segment from moving. `None` when one moves right now, or a table has it.
    fn pin_cursors_in(&self, segment: u64) -> Option<Held<'_>> {
        let walkers = self.walkers[segment as usize].load(Ordering::Acquire);
        if walkers == WHOLE {
            return None;
        }
        let mut held = Held::new();
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

/// Tells the bits of a segment from others; the lowest bits are free for a level.
fn digest(used: &[u64; WORDS_PER_SEGMENT]) -> u32 {
    let mix = |sum: u64, word: &u64| (sum.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((used.iter().fold(1, mix) >> 32) as u32 | VISITED) & !LEVEL_BITS
}

/// Runs of groups of `least` blocks, a power of two, aligned and all free: where they begin in the segment, and blocks.
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
    fn runs_are_aligned_and_as_long_as_they_can_be() {
        assert_eq!(runs(&[], 16), []);
        assert_eq!(runs(&[0..100, 100..512], 16), [(0, 512)]);
        assert_eq!(runs(&[1..40, 47..65, 100..160], 16), [(16, 16), (48, 16), (112, 48)]);
        assert_eq!(runs(&[1..16, 17..31], 16), [], "shorter than a group");
        assert_eq!(runs(&[1..16, 500..512], 1), [(1, 15), (500, 12)]);
        assert_eq!(runs(&[0..64, 65..300], 64), [(0, 64), (128, 128)]);
    }

    #[test]
    fn a_digest_tells_bits_apart_and_leaves_room_for_a_level() {
        let one = |bit: u32| std::array::from_fn(|at| u64::from(at == 3) << bit);
        assert_ne!(digest(&one(5)), digest(&one(6)));
        assert_ne!(digest(&[0; WORDS_PER_SEGMENT]), 0);
        assert_eq!(digest(&one(9)) & LEVEL_BITS, 0);
    }
}
