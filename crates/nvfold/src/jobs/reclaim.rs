//! Emptying segments of packed chunks (DeEXT III-D): the live chunks of a victim segment are appended to the tail of
//! its list.
//!
//! The problem: readers and writers continue meanwhile, no thread may wait for background work longer than a
//! millisecond, and a crash may come at any moment.
//!
//! The idea: one segment at a time, in steps, and each chunk moves by itself ([`crate::chunk`], `moves.rs`). The only
//! lock is that of the work itself. Two epochs make sure that no other thread still uses the old bytes:
//!
//! ```text
//! chosen    ..an epoch..> moving    threads that had a place in it before it was closed are done with it:
//!                                   no chunk grows, and none is being written
//! all moved ..an epoch..> free      threads that looked up a place before it changed have read it
//! ```
//!
//! The headers of the segment tell which chunks are in it, and the chunk entries tell which of them are live. A chunk
//! that cannot be moved (a damaged header, bad memory) keeps its segment from being freed, and has no other effect.

use super::Jobs;
use super::effort::{Effort, Vain, Worked};
use crate::chunk::{Moving, Released};
use crate::dedup::stream::pool_of;
use crate::error::Result;
use crate::media::packed::{HEADERS_MAX, header_offset};
use crate::media::{PackedNumber, SEGMENT_BYTES};
use crate::panics::{Job, Moment};
use crate::space::reclaim::Victims;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use pmem::Flight;

/// Number of headers that a step looks at.
const STEP_HEADERS: u64 = 1024;

/// Approximate number of bytes that a step copies; they take about a tenth of a millisecond.
const STEP_BYTES: u64 = 256 << 10;

/// The segment that is being emptied.
pub(super) struct Victim {
    pub(super) segment: u64,
    /// Work continues only when no thread is pinned in this epoch or an older one.
    since: u64,
    /// The next header to look at; `None` when everything that can move has moved.
    next: Option<u64>,
    /// End of the data that the headers so far describe. Headers are never below it.
    data_end: u64,
    /// True if there was no room for all live chunks of the segment.
    is_given_up: bool,
}

/// Counters since mount.
#[derive(Default)]
pub(super) struct Reclaimed {
    pub(super) segments: AtomicU64,
    /// The dead bytes when an operation last found no segment to empty.
    vain: Vain,
    /// The free blocks at that time.
    vain_room: Vain,
    pub(super) moved_chunks: AtomicU64,
    pub(super) moved_bytes: AtomicU64,
}

/// Chunks that move together and so share two fences.
struct Moves<'c> {
    jobs: Jobs<'c>,
    segment: u64,
    /// The chunks that are held for a move, with the addresses that their bytes are copied to.
    copies: Vec<(Moving, u64)>,
    bytes: u64,
    flight: Flight,
}

impl Moves<'_> {
    /// Copies a live chunk at this offset of the segment.
    ///
    /// # Errors
    /// ENOSPC; the chunk stays where it is.
    fn copy(&mut self, chunk: PackedNumber, offset: u64) -> Result<()> {
        let Moves { jobs, .. } = self;
        let from = self.segment * SEGMENT_BYTES + offset;
        let Some(moving) = jobs.chunks.begin_move(chunk, from, &mut self.flight) else { return Ok(()) };
        if moving.from != from {
            self.drop_move(moving);
            return Ok(());
        }
        let bytes = jobs.region.to_vec(from, moving.bytes.stored);
        if !jobs.region.sound_or_forget(from, moving.bytes.stored) {
            self.drop_move(moving);
            return Ok(());
        }
        let pool = jobs.space.packed.list_of(self.segment).unwrap_or_else(|| pool_of(moving.class));
        match jobs.space.append_moved(pool, chunk, moving.bytes, &mut self.flight) {
            Ok(to) => {
                self.flight.add(jobs.region.stream(to, &bytes));
                self.bytes += moving.bytes.stored;
                self.copies.push((moving, to));
                Ok(())
            }
            Err(error) => {
                self.drop_move(moving);
                Err(error)
            }
        }
    }

    /// Abandons a move: the chunk stays where it is.
    fn drop_move(&mut self, moving: Moving) {
        let (chunk, place) = (moving.chunk, (moving.from, moving.bytes.stored));
        if self.jobs.chunks.end_move(moving, &mut self.flight) == Released::Free {
            let _ = self.jobs.region.fence(std::mem::take(&mut self.flight));
            self.jobs.chunks.packed.free(chunk);
            self.jobs.space.drop_packed(place.0, place.1);
        }
    }

    /// Makes the copies durable, then changes the addresses in the chunk entries.
    fn finish(self) {
        let Moves { jobs, copies, flight, .. } = self;
        if copies.is_empty() {
            // No bytes are in flight, and a crash forgets update counts.
            return;
        }
        let _ = jobs.region.fence(flight);
        jobs.panics.may_panic(Moment::Staged);
        let mut flight = Flight::new();
        let mut done = Vec::new();
        for (moving, to) in copies {
            let is_copy = jobs.is_copy(moving.from, to, moving.bytes.stored);
            let may_lie_there = || jobs.check_place(to, moving.bytes.stored).is_ok();
            let has_moved = is_copy && may_lie_there() && jobs.chunks.set_place(&moving, to);
            let (chunk, from, bytes) = (moving.chunk, moving.from, moving.bytes.stored);
            let left = jobs.chunks.end_move(moving, &mut flight);
            done.push((chunk, from, to, bytes, has_moved, left));
        }
        let _ = jobs.region.fence(flight);
        jobs.panics.may_panic(Moment::Committed);
        for (chunk, from, to, bytes, has_moved, left) in done {
            let (old, new) = if has_moved { (from, to) } else { (to, from) };
            if left == Released::Free {
                jobs.chunks.packed.free(chunk);
                jobs.space.drop_packed(new, bytes);
            }
            jobs.space.leave_behind(old, bytes);
            jobs.under_way.reclaimed.moved_chunks.fetch_add(u64::from(has_moved), Ordering::Relaxed);
            jobs.under_way.reclaimed.moved_bytes.fetch_add(if has_moved { bytes } else { 0 }, Ordering::Relaxed);
        }
    }
}

impl Jobs<'_> {
    /// Empties one segment for an operation that found too little space and holds no pin. Returns false if there is
    /// none to empty, or no effort is left; the next operation goes on with the segment then.
    pub(super) fn reclaim_segment(&self, effort: &Effort) -> bool {
        let is_emptying = self.under_way.victim.try_lock().is_none_or(|victim| victim.is_some());
        if self.is_reconciling() || !is_emptying && self.would_reclaim_in_vain() {
            return false;
        }
        let before = self.under_way.reclaimed.segments.load(Ordering::Relaxed);
        while self.under_way.reclaimed.segments.load(Ordering::Relaxed) == before {
            if effort.is_spent() {
                return false;
            }
            match self.reclaim_some(Victims::All) {
                Worked::GoesOn => effort.worked(),
                Worked::Waits => effort.waited(),
                Worked::Nothing => {
                    self.under_way.reclaimed.vain.record(self.space.packed.dead_bytes());
                    self.under_way.reclaimed.vain_room.record(self.space.free_blocks());
                    return false;
                }
            }
        }
        true
    }

    /// Returns true if nothing has died, and no block has become free, since no segment could be emptied. One alone is
    /// enough: what a file leaves dead may be what another one takes of the free blocks.
    fn would_reclaim_in_vain(&self) -> bool {
        let (dead, free) = (self.space.packed.dead_bytes(), self.space.free_blocks());
        let has_no_victim = self.under_way.reclaimed.vain.would_repeat(dead, 1);
        self.under_way.reclaimed.vain_room.would_repeat(free, 1) && has_no_victim
    }

    /// The same for a caller that is not inside an operation.
    pub(crate) fn make_segment(&self, effort: &Effort) -> bool {
        let _inside = self.freeze_lock.enter_background();
        !self.read_only && !self.region.is_lost() && self.reclaim_segment(effort)
    }

    /// Does one step of emptying segments. If a panic has stopped that, there is nothing to do.
    pub(super) fn reclaim_some(&self, victims: Victims) -> Worked {
        let step = || Ok(self.reclaim_now(victims));
        self.contain_all(Job::Reclaim, Worked::Nothing, step).unwrap_or(Worked::Nothing)
    }

    fn reclaim_now(&self, victims: Victims) -> Worked {
        if self.is_reconciling() {
            return Worked::Nothing;
        }
        let Some(mut at_work) = self.under_way.victim.try_lock() else { return Worked::Waits };
        if at_work.is_none() {
            *at_work = self.space.choose_victim(victims).map(|segment| self.new_victim(segment));
        }
        let Some(victim) = at_work.as_mut() else { return Worked::Nothing };
        if !self.chunks.epochs.has_passed(victim.since) {
            return Worked::Waits;
        }
        if let Some(first) = victim.next {
            self.move_some(victim, first);
            return Worked::GoesOn;
        }
        let Victim { segment, is_given_up, .. } = *victim;
        *at_work = None;
        if is_given_up {
            // It would be chosen again, although there is no more room than now.
            self.space.give_up_victim(segment);
            return Worked::Nothing;
        }
        let is_free = self.space.put_back(segment);
        if is_free {
            self.under_way.reclaimed.vain.gained();
            self.under_way.reclaimed.vain_room.gained();
        }
        self.under_way.reclaimed.segments.fetch_add(u64::from(is_free), Ordering::Relaxed);
        Worked::GoesOn
    }

    fn new_victim(&self, segment: u64) -> Victim {
        Victim { segment, since: self.chunks.epochs.now(), next: Some(0), data_end: 0, is_given_up: false }
    }

    /// Moves the chunks of some more headers, from header `first` on. If not even the spare segment has room, the
    /// chunks that have moved stay moved, and the others stay where they are.
    fn move_some(&self, victim: &mut Victim, first: u64) {
        let mut batch =
            Moves { jobs: *self, segment: victim.segment, copies: Vec::new(), bytes: 0, flight: Flight::new() };
        let mut next = first;
        let mut is_over = false;
        while next < first + STEP_HEADERS && batch.bytes < STEP_BYTES && !is_over {
            is_over = next == HEADERS_MAX
                || header_offset(next) < victim.data_end
                || self.space.packed.live_in(victim.segment) == 0;
            if let Some(header) = self.space.header(victim.segment, next).filter(|_| !is_over) {
                let offset = u64::from(header.offset);
                victim.data_end = victim.data_end.max(offset + header.bytes().stored);
                victim.is_given_up = batch.copy(PackedNumber(header.chunk), offset).is_err();
                is_over = victim.is_given_up;
            }
            next += 1;
        }
        batch.finish();
        // A chunk in bad memory stays where it is. Its readers get EIO, so the error is dropped here.
        let _ = self.region.check();
        victim.next = (!is_over).then_some(next);
        if is_over {
            victim.since = self.chunks.epochs.now();
        }
    }
}
