//! References by update count: what the daemon of policy `denova` takes while it works (DeNOVA IV-D).
//!
//! The problem: the daemon appends an extent for a block to a log and counts it in the chunk table. These are two
//! places, and a crash may come in between.
//!
//! The idea: a second count next to the first, in the same 16 bytes. It is raised before the log is changed, so the
//! block stays in use. Once the log references the block, one store moves it from the update count to the reference
//! count (Algorithm 1, step 6). The block's references are always the sum of both, so they are never counted too low
//! (invariant 1).
//!
//! ```text
//! (RFC, UC)   hold          (n, u)  -> (n, u + 1)     n > 0: somebody names it. Durable before the log names it too
//!             count         (n, u)  -> (n + 1, u - 1) the log names it, durably
//!             give back     (n, u)  -> (n, u - 1)     it is not to be named; (0, 1): the block is free
//!             release       (1, u)  -> (0, u)         u > 0: it is not free, somebody is about to name it
//! ```
//!
//! The tag does not change: these transactions are not undone by it. A crash leaves update counts behind. Until
//! reconcile has recounted they act as references that no operation gives back; then they are removed (V-C, II).

use super::reference::Hold;
use super::{Chunks, Released};
use crate::media::chunk_entry::{CountWord, ENTRY_BYTES, tag};
use crate::media::{BlockNumber, ChunkRef};
use pmem::Flight;

impl Chunks {
    /// Takes an update count on a block that is in use and in the index (called under the index's lock), or that the
    /// caller already holds. Its bytes do not change from then on. `None` if no hold can be taken.
    pub(crate) fn hold(&self, block: BlockNumber, flight: &mut Flight) -> Option<Hold> {
        self.assert_is_data(block.into());
        self.try_hold(block.into(), flight).then(|| Hold::new(block))
    }

    /// Holds the first block after `after` that has this fingerprint, that `fits`, and on which a hold can be taken.
    pub(crate) fn hold_candidate(
        &self,
        weak: u32,
        after: ChunkRef,
        fits: impl Fn(BlockNumber) -> bool,
        flight: &mut Flight,
    ) -> Option<Hold> {
        // It has no transaction: the log may reference the block before any transaction ends.
        let first = CountWord { tag: tag::ADD | tag::RECOVERED, tx: 0, count: 1, update_count: 1 };
        let is_taken = |chunk: &ChunkRef| {
            chunk.block().is_some_and(&fits)
                && self.take_found(weak, *chunk, first, flight, |flight| self.try_hold(*chunk, flight))
        };
        self.index.find(weak, after, is_taken).and_then(ChunkRef::block).map(Hold::new)
    }

    pub(super) fn try_hold(&self, chunk: ChunkRef, flight: &mut Flight) -> bool {
        if !self.is_content_confirmed(chunk) {
            return false;
        }
        let held = |seen: CountWord| {
            let is_counted =
                seen.count > 0 && u64::from(seen.count) + u64::from(seen.update_count) < u64::from(u32::MAX);
            is_counted.then(|| CountWord { update_count: seen.update_count + 1, ..seen })
        };
        self.change_word(chunk, flight, held).is_some()
    }

    /// Turns a hold into a reference at once, after an extent that references the block is durable.
    pub(crate) fn count_hold(&self, hold: Hold, flight: &mut Flight) {
        let chunk = ChunkRef::Block(hold.take());
        let counted = |seen: CountWord| {
            debug_assert!(seen.update_count > 0, "{} is counted for a hold that it does not have", chunk);
            let update_count = seen.update_count.checked_sub(1)?;
            Some(CountWord { count: seen.count + 1, update_count, ..seen })
        };
        if self.change_word(chunk, flight, counted).is_some_and(|before| before.count > 0) {
            self.record_extra(chunk, 1);
        }
    }

    /// Drops a hold on a chunk that gets no extent after all. The hold may be the last reference by then.
    pub(crate) fn give_back(&self, chunk: impl Into<ChunkRef>, flight: &mut Flight) -> Released {
        let chunk = chunk.into();
        self.assert_is_data(chunk);
        // Once this holds, no thread can take another reference.
        let is_last = |seen: CountWord| seen.count == 0 && seen.update_count == 1;
        loop {
            let frees = self.sound_word(chunk).is_some_and(is_last);
            if frees {
                let _gone = self.take_off(chunk);
            }
            let given_back = |seen: CountWord| {
                debug_assert!(seen.update_count > 0, "{} gets a hold back that it does not have", chunk);
                let update_count = seen.update_count.checked_sub(1)?;
                let tag = if frees { tag::NULL } else { seen.tag };
                (is_last(seen) == frees).then_some(CountWord { update_count, tag, ..seen })
            };
            match self.change_word(chunk, flight, given_back) {
                Some(_) if frees => {
                    flight.extend(self.forget_entry(chunk));
                    return Released::Free;
                }
                // The last extent was dropped meanwhile: try again.
                None if !frees && self.sound_word(chunk).is_some_and(is_last) => {}
                _ => return Released::Kept,
            }
        }
    }

    /// Changes tag and counts of an entry at once. Returns the word before the change, or `None` if `change` declines
    /// or the entry is in bad memory.
    fn change_word(
        &self,
        chunk: ChunkRef,
        flight: &mut Flight,
        change: impl Fn(CountWord) -> Option<CountWord>,
    ) -> Option<CountWord> {
        let offset = self.entry_offset(chunk);
        loop {
            let stored = self.region.load_u128(offset);
            let seen = CountWord::decode(stored);
            if !self.region.sound_or_forget(offset, ENTRY_BYTES) {
                return None;
            }
            let line = self.region.compare_exchange_u128(offset, stored, change(seen)?.encode());
            if let Ok(line) = line {
                flight.add(line.flush());
                return Some(seen);
            }
        }
    }
}
