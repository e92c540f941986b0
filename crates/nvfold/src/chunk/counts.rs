//! Reference counts: taking one, dropping one, and emptying the entry of a block that is no longer shared.
//!
//! The problem: many threads change the count of one block at once, each change must be durable in the right order
//! (invariant 1), and a block must not be freed while another thread takes a reference on it.
//!
//! The idea: tag, transaction and counts are 16 bytes that change by one compare-and-exchange, so a thread that finds 0 has
//! lost, and the thread that makes it 0 frees the block. Only the
//! first entry of a block needs a lock: one thread stores its other words before its count.
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
use pmem::{Flight, InFlight, Pm};
use zerocopy::IntoBytes;

impl Chunks {
    /// More references, at least one, on a block that the caller knows to be referenced (it holds the lock of an
    /// inode that names it).
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
            // Private: its one reference becomes explicit together with the new ones.
            let word = CountWord { tag: tag::ADD, tx, count, update_count: 0 };
            let _alone = self.lines.lock(chunk);
            if self.enter_private(chunk, seen, word, flight) {
                return Ok(());
            }
        }
    }

    /// The first entry of a private block that cannot be freed now: as its counts were `seen`, if they still are. The rest
    /// of the line is stored first, so that the count is never seen with what another block left there; by one alone, who
    /// has the lock of the entry, for as soon as it is counted it may get its fingerprints.
    fn enter_private(&self, chunk: ChunkRef, seen: CountWord, word: CountWord, flight: &mut Flight) -> bool {
        let offset = self.entry_offset(chunk);
        let is_writable = self.region.check_writable(offset, ENTRY_BYTES).is_ok();
        if !is_writable || self.region.load_u128(offset) != seen.encode() {
            return false;
        }
        let entry = ChunkEntry::bare(chunk, &ChunkEntry::default(), word);
        let _ = self.region.write(offset + 16, &entry.as_bytes()[16..LINKS_WORD as usize]);
        // After a crash the block may still hang in a chain, which must not break.
        let pointer = self.region.load_u64(offset + FLAGS_WORD) & u64::from(u32::MAX);
        let _ = self.region.store_u64(offset + FLAGS_WORD, pointer);
        // A thread that sees the count must not take the entry for a new one.
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

    /// Tag, transaction and counts of an entry; `None` if they lie in bad memory.
    pub(super) fn sound_word(&self, chunk: ChunkRef) -> Option<CountWord> {
        let offset = self.entry_offset(chunk);
        let word = CountWord::decode(self.region.load_u128(offset));
        self.region.sound_or_forget(offset, ENTRY_BYTES).then_some(word)
    }

    /// One more reference, or update count, on a chunk that was found by its fingerprint: `more` of what it counts, or
    /// `first` if it is a private block. False when it is not there any more, or cannot have one.
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

    /// A private block that an inode names which the caller has locked, and that others may find, counts its one reference
    /// from now on; nothing happens when it is counted already.
    pub(super) fn count_one(&self, block: BlockNumber, tx: u64, flight: &mut Flight) {
        let chunk = ChunkRef::Block(block);
        let _nobody_takes_a_reference = self.lines.lock(chunk);
        if let Some(seen) = self.sound_word(chunk).filter(|seen| seen.is_empty()) {
            self.enter_private(chunk, seen, CountWord { tag: tag::ADD, tx, count: 1, update_count: 0 }, flight);
        }
    }

    /// A block, with the labels that say whether it can be found. Packed chunks, and all chunks of a device with a pm
    /// index, have none: they leave the index when they are freed.
    fn labelled(&self, chunk: ChunkRef) -> Option<(BlockNumber, &Labels)> {
        chunk.block().zip(self.index.dram().map(|index| &index.labels))
    }

    /// Keeps a block from being found, before its only reference goes. What others have counted is seen from then on.
    pub(crate) fn take_off(&self, chunk: ChunkRef) -> TakenOff {
        let Some((block, labels)) = self.labelled(chunk).filter(|(block, labels)| labels.has(*block)) else {
            return TakenOff::NOTHING;
        };
        let _nobody_takes_a_reference = self.lines.lock(chunk);
        labels.take_off(block)
    }

    /// The block stays in use, and can be found again.
    pub(super) fn put_back(&self, chunk: ChunkRef, off: TakenOff) {
        if let Some((block, labels)) = self.labelled(chunk) {
            labels.put_back(block, off);
        }
    }

    /// More references on a block that is tracked and known not to be freed meanwhile; `None` when it is not tracked.
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

    /// null_entry, if the caller's extent is the only one that names the block. Its entry is empty then, which says
    /// that much too; so this may come before the extent goes. The index keeps the block until [`Chunks::forget`]:
    /// nobody can take a reference any more.
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

    /// decrease_RC, or null_entry for the last reference: the extent that was the reference cannot be reached any
    /// more. An entry that was emptied must be durable before its block gets another user; a decrease need not be until
    /// the unmount ([`Chunks::flush_decreases`]).
    ///
    /// A packed chunk whose entry counts nothing is damaged, and never freed by that.
    ///
    /// After a crash a block of before it stays as it is until it has been counted anew: nothing is freed by a count
    /// that may be wrong.
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
            // Private, unless somebody shares it right now.
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
                // How many name it is not known, or cannot be written: it stays until it is counted anew.
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
                    // Not flushed: lost, it leaves a count too high, which reconcile removes. Unmount flushes it.
                    if self.region.compare_exchange_u128(offset, stored, word.encode()).is_ok() {
                        // The last one goes, and somebody is about to name the block: nothing was saved by it.
                        if count > 1 {
                            self.record_extra_of(chunk, bytes, 1u64.wrapping_neg());
                        }
                        return Released::Kept;
                    }
                }
            }
        }
    }

    /// null_entry, by the only one who has a reference. False when the count is not what was stored any more.
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

    /// The entry of a block is empty now: out of bits and index with it. What is returned must be fenced before the block
    /// gets another user.
    pub(super) fn forget_entry(&self, chunk: ChunkRef) -> Flight {
        self.record_no_entry(chunk);
        self.forget(chunk)
    }

    /// Takes a chunk whose entry was emptied out of the index, before it gets another user: what is returned must be
    /// fenced before that. What has a label has lost it.
    #[inline]
    pub(crate) fn forget(&self, chunk: impl Into<ChunkRef>) -> Flight {
        let chunk = chunk.into();
        if chunk.block().is_some() && self.finds_private() {
            debug_assert!(chunk.block().is_none_or(|block| !self.can_be_found(block)), "{chunk} is freed and found");
            return Flight::new();
        }
        match self.entry(chunk).weak(self.weak) {
            Some(weak) => self.index.remove(weak, chunk),
            None => Flight::new(),
        }
    }

    /// A packed chunk at `address` has so many bytes from now on: one 8-byte store.
    pub(crate) fn set_length(&self, chunk: PackedNumber, address: u64, length: u64) -> Pm<'_, u64, InFlight> {
        let offset = self.entry_offset(chunk) + ADDRESS_WORD;
        self.region.store_u64(offset, address_word(address, length)).flush()
    }

    /// Unmount: makes the decreases of all threads durable, for a device that is clean has exact counts.
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
