//! Adding fingerprints to entries that count already.
//!
//! The problem: a fingerprint takes several words of an entry that is in use. Other threads change the entry's
//! counts, and a crash may come between two words. A mix of two fingerprints would find the wrong block.
//!
//! The idea: a separate word holds the flag that a fingerprint is valid, and the number of its function. The words of
//! the fingerprint are made durable first, then the flag. When a fingerprint replaces that of another function, it is
//! invalid in between. Words that are shared with other fields change by compare-and-exchange; a lock keeps two
//! threads from adding fingerprints to one entry at once.
//!
//! ```text
//! (flag off, fence)   words, fence   flag and function on
//! ```

use super::labels::TakenOff;
use super::{Chunks, FLAGS_WORD};
use crate::fingerprint::{FIRST_KEY_MAX, Fingerprint, Strong};
use crate::media::chunk_entry::{ENTRY_BYTES, STRONG_VALID, WEAK_VALID};
use crate::media::{BlockNumber, ChunkRef};
use pmem::Flight;

impl Chunks {
    /// Returns whether an entry already has each of the given fingerprints, computed by this device's functions.
    pub(crate) fn has_fingerprint(&self, chunk: impl Into<ChunkRef>, fingerprint: &Fingerprint) -> bool {
        let chunk = chunk.into();
        self.has_entry(chunk) && {
            let entry = self.entry(chunk);
            entry.weak(self.weak_function()).is_some()
                && (fingerprint.strong.is_none() || entry.strong(self.strong).is_some())
        }
    }

    /// Returns whether an entry has a weak fingerprint that is none of these: it is in another domain.
    pub(crate) fn has_other_weak(&self, chunk: impl Into<ChunkRef>, keys: &[u32]) -> bool {
        let chunk = chunk.into();
        let stored = self.has_entry(chunk).then(|| self.entry(chunk).weak(self.weak_function())).flatten();
        stored.is_some_and(|weak| !keys.contains(&weak))
    }

    /// Returns the key by which to enter a block of a stored file: the first of `keys`, unless as many other blocks as
    /// are looked at have it. `entered` of them are not in the index yet.
    pub(crate) fn key_to_enter(&self, block: BlockNumber, keys: &[u32], entered: usize) -> u32 {
        let (first, last) = (keys[0], keys[keys.len() - 1]);
        let mut others = entered;
        let is_one_too_many = |chunk: &ChunkRef| {
            others += usize::from(*chunk != block.into());
            others >= FIRST_KEY_MAX
        };
        let is_crowded = first != last
            && (entered >= FIRST_KEY_MAX || self.index.find(first, ChunkRef::NONE, is_one_too_many).is_some());
        if is_crowded { last } else { first }
    }

    /// Adds the missing fingerprints to an entry that counts and whose chunk cannot lose its last reference now.
    pub(crate) fn set_fingerprint(&self, chunk: impl Into<ChunkRef>, fingerprint: &Fingerprint, flight: &mut Flight) {
        let chunk = chunk.into();
        if let Some(strong) = fingerprint.strong.filter(|_| self.entry(chunk).strong(self.strong).is_none()) {
            self.set_strong(chunk, strong, flight);
        }
        if let Some(weak) = fingerprint.weak.filter(|_| self.entry(chunk).weak(self.weak_function()).is_none()) {
            self.set_weak(chunk, weak, flight);
        }
    }

    /// Adds the weak fingerprint to an entry that counts and whose chunk cannot lose its last reference now.
    pub(crate) fn set_weak(&self, chunk: impl Into<ChunkRef>, weak: u32, flight: &mut Flight) {
        let chunk = chunk.into();
        let _alone = self.lines.lock(chunk);
        let offset = self.entry_offset(chunk);
        if self.entry(chunk).any_weak().is_some() {
            self.make_invalid(offset, WEAK_VALID);
        }
        let mut words = self.set_word(offset + 40, |word| word & u64::from(u32::MAX) | u64::from(weak) << 32);
        if let Some(index) = self.index.fact() {
            let chain = index.chain_of(weak);
            words.extend(self.set_word(offset + FLAGS_WORD, |word| word & !u64::from(u32::MAX) | chain));
        }
        self.make_valid(offset, words, WEAK_VALID, |functions| functions & 0xf0 | self.weak_function() as u8, flight);
    }

    /// Adds the strong fingerprint in the same way.
    pub(super) fn set_strong(&self, chunk: ChunkRef, strong: Strong, flight: &mut Flight) {
        let _alone = self.lines.lock(chunk);
        let offset = self.entry_offset(chunk);
        if self.entry(chunk).any_strong().is_some() {
            self.make_invalid(offset, STRONG_VALID);
        }
        let (words, tail) = strong.as_chunks::<8>();
        for (at, word) in (24..).step_by(8).zip(words) {
            // In the line that is flushed next.
            let _ = self.region.store_u64(offset + at, u64::from_le_bytes(*word));
        }
        let tail = u64::from(u32::from_le_bytes(tail.try_into().expect("20 bytes are two words and a half")));
        let written = self.set_word(offset + 40, |word| word & !u64::from(u32::MAX) | tail);
        self.make_valid(offset, written, STRONG_VALID, |of| of & 0x0f | (self.strong as u8) << 4, flight);
    }

    /// Takes the weak fingerprint off a chunk that stays in use: no search finds it until it gets another one. Durable on
    /// return. Returns false if it had none. The caller has locked an inode that references the chunk, and holds
    /// [`Chunks::fingerprinting`]. An entry in bad memory stays as it is.
    pub(crate) fn forget_weak(&self, chunk: ChunkRef) -> bool {
        let had_label = chunk.block().is_some_and(|block| self.finds_private() && self.can_be_found(block));
        if had_label {
            // Nobody puts it back: only a thread that is about to free a block takes its label off.
            let TakenOff { .. } = self.take_off(chunk);
        }
        let offset = self.entry_offset(chunk);
        let is_readable = self.has_entry(chunk) && self.region.check_writable(offset, ENTRY_BYTES).is_ok();
        if !is_readable || self.entry(chunk).any_weak().is_none() {
            return had_label;
        }
        if let Some(weak) = self.entry(chunk).weak(self.weak_function()).filter(|_| !had_label) {
            // Before the fingerprint is invalid: without it, nobody could take the entry out of its chain.
            self.index.remove_durably(weak, chunk);
        }
        let _alone = self.lines.lock(chunk);
        self.make_invalid(offset, WEAK_VALID);
        true
    }

    /// Returns whether a search for this fingerprint can find a block.
    pub(crate) fn can_be_found_by(&self, block: BlockNumber, weak: u32) -> bool {
        match self.index.dram() {
            Some(index) => index.labels.fits(block, weak),
            None => self.has_entry(block) && self.entry(block).weak(self.weak_function()) == Some(weak),
        }
    }

    /// Marks a fingerprint as invalid, durably, so that the new words are not taken for a fingerprint of the old
    /// function.
    fn make_invalid(&self, entry: u64, flag: u8) {
        let invalid = self.set_word(entry + FLAGS_WORD, |word| word & !(u64::from(flag) << 32));
        let _ = self.region.fence(invalid);
    }

    /// Marks a fingerprint as valid after its words are durable, since this one word may reach the media alone.
    fn make_valid(&self, entry: u64, words: Flight, flag: u8, functions: impl Fn(u8) -> u8, flight: &mut Flight) {
        let _ = self.region.fence(words);
        flight.extend(self.set_word(entry + FLAGS_WORD, |word| {
            let [a, b, c, d, flags, made_by, e, f] = word.to_le_bytes();
            u64::from_le_bytes([a, b, c, d, flags | flag, functions(made_by), e, f])
        }));
    }

    /// Changes a word that other threads may change too.
    fn set_word(&self, offset: u64, change: impl Fn(u64) -> u64) -> Flight {
        let mut flight = Flight::new();
        let mut seen = self.region.load_u64(offset);
        loop {
            match self.region.compare_exchange_u64(offset, seen, change(seen)) {
                Ok(word) => {
                    flight.add(word.flush());
                    return flight;
                }
                Err(other) => seen = other,
            }
        }
    }
}
