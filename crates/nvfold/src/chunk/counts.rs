//! Reference counts: taking one, dropping one, and emptying the entry of a block that is no longer shared.
//!
//! The problem: many threads change the count of one block at once, each change must become durable in the right
//! order (invariant 1), and a block must not be freed while another thread takes a reference on it.
//!
//! The idea: tag, transaction and counts are 16 bytes that change by one compare-and-exchange. A thread that reads a
//! count of 0 cannot take a reference, and the thread that makes it 0 frees the block. Only the first entry of a
//! block needs a lock: one thread stores the other words of the line before its count.
//!
//! ```text
//! share              0 -> 1+m    n -> n+m    flushed; durable before the extent can be reached
//! clear_if_unshared  1 -> 0                  flushed; durable with the commit word that drops the extent
//! release            1 -> 0                  flushed; durable before the block gets another user
//!                    n -> n-1                not flushed until the unmount
//! ```

use super::labels::{Labels, TakenOff};
use super::{Chunks, FLAGS_WORD, Released, Unshareable};
use crate::media::chunk_entry::{ADDRESS_WORD, ChunkEntry, CountWord, ENTRY_BYTES, LINKS_WORD, address_word, tag};
use crate::media::{BlockNumber, ChunkRef, PackedNumber, SEGMENT_BLOCKS};
use crate::space::{BlockRun, Runs, add_run};
use pmem::{Flight, InFlight, Pm};
use zerocopy::IntoBytes;

impl Chunks {
    /// Takes `more` references, at least one, on a chunk that the caller knows to be in use (it holds the lock of an
    /// inode that references it).
    ///
    /// # Errors
    /// The chunk can have no further reference; see [`Unshareable`].
    pub(super) fn share(&self, chunk: ChunkRef, more: u32, tx: u64, flight: &mut Flight) -> Result<(), Unshareable> {
        self.assert_is_data(chunk);
        let offset = self.entry_offset(chunk);
        loop {
            let seen = CountWord::decode(self.region.load_u128(offset));
            self.region.check_writable(offset, ENTRY_BYTES).map_err(Unshareable::Bad)?;
            if seen.count > 0 {
                match self.increase(chunk, more, tx, flight) {
                    Some(result) => return result,
                    None => continue,
                }
            }
            if chunk.packed().is_some() {
                return Err(Unshareable::Lost);
            }
            let Some(count) = more.checked_add(1) else { return Err(Unshareable::Saturated) };
            // The block is private: its implicit reference becomes explicit together with the new ones.
            let word = CountWord { tag: tag::ADD, tx, count, update_count: 0 };
            let _alone = self.lines.lock(chunk);
            if self.enter_private(chunk, seen, word, flight) {
                return Ok(());
            }
        }
    }

    /// Writes the first entry of a private block that cannot be freed now, if its count word is still `seen`. The
    /// rest of the line is stored before the count, so that no thread sees the count with the words of an earlier
    /// block. The caller holds the lock of the entry, because an entry that counts may get its fingerprints at once.
    fn enter_private(&self, chunk: ChunkRef, seen: CountWord, word: CountWord, flight: &mut Flight) -> bool {
        let offset = self.entry_offset(chunk);
        let is_writable = self.region.check_writable(offset, ENTRY_BYTES).is_ok();
        if !is_writable || self.region.load_u128(offset) != seen.encode() {
            return false;
        }
        let entry = ChunkEntry::bare(chunk, &ChunkEntry::default(), word);
        let _ = self.region.write(offset + 16, &entry.as_bytes()[16..LINKS_WORD as usize]);
        // After a crash the block may still be linked in a chain, which must not break.
        let pointer = self.region.load_u64(offset + FLAGS_WORD) & u64::from(u32::MAX);
        let _ = self.region.store_u64(offset + FLAGS_WORD, pointer);
        // Set before the count, so that a thread that sees the count does not treat the entry as a new one.
        self.record_entry_present(chunk);
        match self.region.compare_exchange_u128(offset, seen.encode(), word.encode()) {
            Ok(line) => {
                flight.add(line.flush());
                self.record_counted(chunk, word.count);
                true
            }
            Err(_) => false,
        }
    }

    /// Returns tag, transaction and counts of an entry; `None` if the entry is in bad memory.
    pub(super) fn sound_word(&self, chunk: ChunkRef) -> Option<CountWord> {
        let offset = self.entry_offset(chunk);
        let word = CountWord::decode(self.region.load_u128(offset));
        self.region.sound_or_forget(offset, ENTRY_BYTES).then_some(word)
    }

    /// Takes a reference, or an update count, on a chunk that was found by its fingerprint. `more` adds to a count
    /// that is there; `first` becomes the count word of a private block. Returns false if the chunk is no longer
    /// there or its count cannot grow.
    pub(super) fn take_found(
        &self,
        weak: u32,
        chunk: ChunkRef,
        first: CountWord,
        flight: &mut Flight,
        mut more: impl FnMut(&mut Flight) -> bool,
    ) -> bool {
        if !self.is_content_confirmed(chunk) {
            return false;
        }
        let Some((block, labels)) = self.labelled(chunk) else { return more(flight) };
        let _its_owner_cannot_drop_it = self.lines.lock(chunk);
        labels.fits(block, weak)
            && (more(flight) || {
                let private = self.sound_word(chunk).filter(|seen| seen.is_empty());
                private.is_some_and(|seen| self.enter_private(chunk, seen, first, flight))
            })
    }

    /// Gives a private block an entry that counts its one reference; does nothing if the block is counted already.
    /// The caller has locked an inode that references the block, and other threads may find it.
    pub(super) fn count_one(&self, block: BlockNumber, tx: u64, flight: &mut Flight) {
        let chunk = ChunkRef::Block(block);
        let _nobody_takes_a_reference = self.lines.lock(chunk);
        if let Some(seen) = self.sound_word(chunk).filter(|seen| seen.is_empty()) {
            self.enter_private(chunk, seen, CountWord { tag: tag::ADD, tx, count: 1, update_count: 0 }, flight);
        }
    }

    /// Returns a block together with the labels that say whether it can be found. Packed chunks, and all chunks of a
    /// device with a pm index, have no labels: they leave the index when they are freed.
    fn labelled(&self, chunk: ChunkRef) -> Option<(BlockNumber, &Labels)> {
        chunk.block().zip(self.index.dram().map(|index| &index.labels))
    }

    /// Keeps a block from being found, before its only reference is dropped. References that other threads took
    /// before are visible afterwards.
    pub(crate) fn take_off(&self, chunk: ChunkRef) -> TakenOff {
        let Some((block, labels)) = self.labelled(chunk).filter(|(block, labels)| labels.has(*block)) else {
            return TakenOff::NOTHING;
        };
        let _nobody_takes_a_reference = self.lines.lock(chunk);
        labels.take_off(block)
    }

    /// Takes the private blocks out of runs that lose a reference each, keeps them from being found, and returns them:
    /// they can be freed. What is left in `runs` may have entries. It does nothing while counts are not exact, and where
    /// blocks have no labels.
    ///
    /// One lock for each block would cost more than the rest, so all are taken together.
    pub(crate) fn take_off_private(&self, runs: &mut Runs) -> Runs {
        let (mut private, mut left) = (Runs::new(), Runs::new());
        let Some(index) = self.index.dram().filter(|_| !self.is_recounting()) else { return private };
        let nobody_takes_a_reference = self.lines.lock_all();
        for run in runs.iter() {
            for block in run.blocks() {
                let to = if self.has_entry(block) { &mut left } else { &mut private };
                add_run(to, BlockRun { start: block, count: 1 });
            }
        }
        private.iter().for_each(|run| index.labels.take_off_all(*run));
        drop(nobody_takes_a_reference);
        *runs = left;
        private
    }

    /// Makes a block findable again, because it stays in use.
    pub(super) fn put_back(&self, chunk: ChunkRef, off: TakenOff) {
        if let Some((block, labels)) = self.labelled(chunk) {
            labels.put_back(block, off);
        }
    }

    /// True if exactly one extent touches a block and no other thread can take a reference on it: it has no entry, and
    /// no search can find it. This stays so while the caller has locked the inode with that extent.
    pub(crate) fn is_only_named(&self, block: BlockNumber) -> bool {
        let chunk = ChunkRef::Block(block);
        let Some(index) = self.index.dram() else {
            // A search finds only blocks with an entry. An entry in bad memory may count anything.
            return !self.has_entry(chunk) && self.region.sound_or_forget(self.entry_offset(chunk), ENTRY_BYTES);
        };
        if self.has_entry(chunk) || index.labels.has(block) {
            return false;
        }
        // A thread that found the block before its label was taken off has its reference now.
        let _nobody_takes_a_reference = self.lines.lock(chunk);
        !self.has_entry(chunk) && !index.labels.has(block)
    }

    /// Takes `more` references on a tracked chunk that cannot be freed meanwhile; `None` if it is not tracked.
    pub(super) fn increase(
        &self,
        chunk: ChunkRef,
        more: u32,
        tx: u64,
        flight: &mut Flight,
    ) -> Option<Result<(), Unshareable>> {
        let offset = self.entry_offset(chunk);
        loop {
            let stored = self.region.load_u128(offset);
            let seen = CountWord::decode(stored);
            if !self.region.sound_or_forget(offset, ENTRY_BYTES) || seen.count == 0 {
                return None;
            }
            let Some(count) = seen.count.checked_add(more) else { return Some(Err(Unshareable::Saturated)) };
            let word = CountWord { tag: tag::INCREASE, tx, count, ..seen };
            if let Ok(line) = self.region.compare_exchange_u128(offset, stored, word.encode()) {
                flight.add(line.flush());
                self.record_extra(chunk, u64::from(more));
                return Some(Ok(()));
            }
        }
    }

    /// null_entry: empties the entry of a block if the caller's extent holds the only reference. Returns whether it
    /// did. An empty entry also means one reference, so this may come before the extent is dropped. No thread can
    /// take a reference any longer; the index keeps the block until [`Chunks::forget`].
    pub(crate) fn clear_if_unshared(&self, block: BlockNumber, flight: &mut Flight) -> bool {
        let chunk = block.into();
        if !self.has_entry(chunk) || self.is_unknown(chunk) {
            return false;
        }
        let offset = self.entry_offset(chunk);
        let stored = self.region.load_u128(offset);
        let seen = CountWord::decode(stored);
        let is_unshared = seen.count == 1 && seen.update_count == 0 && self.region.sound_or_forget(offset, ENTRY_BYTES);
        is_unshared && self.clear(chunk, stored, flight)
    }

    /// Drops a reference: decrease_RC, or null_entry for the last one. The extent that held the reference must be
    /// unreachable already. An emptied entry must be durable before its block gets another user; a decrease need not
    /// be durable until the unmount ([`Chunks::flush_decreases`]).
    ///
    /// A packed chunk whose entry counts nothing is damaged, and is never freed for that reason.
    ///
    /// After a crash, a chunk from before the crash is kept until it has been counted anew: a count that may be wrong
    /// frees nothing.
    pub(crate) fn release(&self, chunk: impl Into<ChunkRef>, flight: &mut Flight) -> Released {
        let chunk = chunk.into();
        let uncounted = if chunk.block().is_some() { Released::Free } else { Released::Kept };
        self.assert_is_data(chunk);
        if self.is_unknown(chunk) {
            return Released::Kept;
        }
        let offset = self.entry_offset(chunk);
        let is_counted = || self.has_entry(chunk) && self.sound_word(chunk).is_none_or(|word| !word.is_empty());
        if !is_counted() {
            // Private, unless another thread shares it right now.
            let off = self.take_off(chunk);
            if !is_counted() {
                return uncounted;
            }
            self.put_back(chunk, off);
        }
        loop {
            let stored = self.region.load_u128(offset);
            let seen = CountWord::decode(stored);
            match seen.count {
                // The count is unknown or cannot be written: the chunk stays until it is counted anew.
                _ if !self.region.sound_or_forget(offset, ENTRY_BYTES) => return Released::Kept,
                0 if seen.update_count == 0 => return uncounted,
                0 => return Released::Kept,
                1 if seen.update_count == 0 => {
                    if self.clear(chunk, stored, flight) {
                        flight.extend(self.forget(chunk));
                        return Released::Free;
                    }
                }
                count => {
                    let tx = self.generators.passing_id();
                    let word = CountWord { tag: tag::DECREASE, tx, count: count - 1, ..seen };
                    let bytes = self.content_bytes(chunk);
                    // Not flushed: if a crash loses it, the count is too high, which reconcile corrects. Unmount
                    // flushes it.
                    if self.region.compare_exchange_u128(offset, stored, word.encode()).is_ok() {
                        // A last reference saved nothing, so the total stays. Update counts still keep the chunk in
                        // use.
                        if count > 1 {
                            self.record_extra_of(chunk, bytes, 1u64.wrapping_neg());
                        }
                        return Released::Kept;
                    }
                }
            }
        }
    }

    /// null_entry: empties the entry for the owner of the only reference. Returns false if the count word is no
    /// longer `stored`.
    #[inline]
    fn clear(&self, chunk: ChunkRef, stored: u128, flight: &mut Flight) -> bool {
        let offset = self.entry_offset(chunk);
        let seen = CountWord::decode(stored);
        debug_assert_eq!((seen.count, seen.update_count), (1, 0), "{}: cleared while others name it", chunk);
        let tx = self.generators.passing_id();
        let cleared = CountWord { tag: tag::NULL, tx, count: 0, ..seen };
        let off = self.take_off(chunk);
        let Ok(line) = self.region.compare_exchange_u128(offset, stored, cleared.encode()) else {
            self.put_back(chunk, off);
            return false;
        };
        flight.add(line.flush());
        self.record_no_entry(chunk);
        true
    }

    /// Updates bits and index after the entry of a chunk was emptied. The caller must fence the returned flight
    /// before the chunk gets another user.
    pub(super) fn forget_entry(&self, chunk: ChunkRef) -> Flight {
        self.record_no_entry(chunk);
        self.forget(chunk)
    }

    /// Removes a chunk whose entry was emptied from the index. The caller must fence the returned flight before the
    /// chunk gets another user. A block that had a label has lost it already.
    #[inline]
    pub(crate) fn forget(&self, chunk: impl Into<ChunkRef>) -> Flight {
        let chunk = chunk.into();
        if chunk.block().is_some() && self.finds_private() {
            debug_assert!(chunk.block().is_none_or(|block| !self.can_be_found(block)), "{chunk} is freed and found");
            return Flight::new();
        }
        match self.entry(chunk).weak(self.weak_function()) {
            Some(weak) => self.index.remove(weak, chunk),
            None => Flight::new(),
        }
    }

    /// Sets the length of a packed chunk at `address`, in bytes, with one 8-byte store.
    pub(crate) fn set_length(&self, chunk: PackedNumber, address: u64, length: u64) -> Pm<'_, u64, InFlight> {
        let offset = self.entry_offset(chunk) + ADDRESS_WORD;
        self.region.store_u64(offset, address_word(address, length)).flush()
    }

    /// Makes the decreases of all threads durable; for the unmount, since a clean device has exact counts.
    pub(crate) fn flush_decreases(&self, segments: impl Iterator<Item = u64>) {
        debug_assert!(!self.is_recounting(), "a device is left clean before its counts are exact");
        let mut flight = Flight::new();
        let mut entries = vec![ChunkEntry::default(); SEGMENT_BLOCKS as usize];
        for segment in segments.filter(|segment| self.entries_in(*segment).iter().any(|word| *word != 0)) {
            let first = BlockNumber(segment * SEGMENT_BLOCKS);
            let entries = &mut entries[..self.geometry.blocks_in_segment(segment) as usize];
            self.region.scan_into(self.entry_offset(first), entries.as_mut_bytes());
            for (block, _) in (first.0..).zip(entries).filter(|(_, entry)| entry.word().tag == tag::DECREASE) {
                flight.add(self.region.flush(self.entry_offset(BlockNumber(block)), ENTRY_BYTES));
            }
        }
        for chunk in self.packed.used().filter(|chunk| self.entry(*chunk).word().tag == tag::DECREASE) {
            flight.add(self.region.flush(self.entry_offset(chunk), ENTRY_BYTES));
        }
        let _ = self.region.fence(flight);
    }
}
