//! Fingerprints that are added to entries that count already.
//!
//! The problem: a fingerprint takes several words, and the entry is in use: others change its counts, and a crash may
//! come between two words. A fingerprint that is half of another one would find the wrong block.
//!
//! The idea: the flag that a fingerprint is valid lies in a word of its own with the number of the function that made it.
//! The words come first, durably, then the flag. One that replaces that of another function is invalid in between. Words
//! that hold something of others too change by compare-and-exchange; two fingerprints of one entry exclude each other
//! by a lock.
//!
//! ```text
//! (flag off, fence)   words, fence   flag and function on
//! ```

use super::{Chunks, FLAGS_WORD};
use crate::fingerprint::{Fingerprint, Strong};
use crate::media::ChunkRef;
use crate::media::chunk_entry::{STRONG_VALID, WEAK_VALID};
use pmem::Flight;

impl Chunks {
    /// Whether a block has all that `fingerprint` says of it, made by this device's functions.
    pub(crate) fn has_fingerprint(&self, chunk: impl Into<ChunkRef>, fingerprint: &Fingerprint) -> bool {
        let chunk = chunk.into();
        self.has_entry(chunk) && {
            let entry = self.entry(chunk);
            entry.weak(self.weak).is_some() && (fingerprint.strong.is_none() || entry.strong(self.strong).is_some())
        }
    }

    /// Adds what it lacks of `fingerprint` to an entry that counts, and whose block cannot lose its last reference now.
    pub(crate) fn set_fingerprint(&self, chunk: impl Into<ChunkRef>, fingerprint: &Fingerprint, flight: &mut Flight) {
        let chunk = chunk.into();
        if let Some(strong) = fingerprint.strong.filter(|_| self.entry(chunk).strong(self.strong).is_none()) {
            self.set_strong(chunk, strong, flight);
        }
        if let Some(weak) = fingerprint.weak.filter(|_| self.entry(chunk).weak(self.weak).is_none()) {
            self.set_weak(chunk, weak, flight);
        }
    }

    /// Gives an entry that counts, and whose block cannot lose its last reference now, its weak fingerprint.
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
        self.make_valid(offset, words, WEAK_VALID, |functions| functions & 0xf0 | self.weak as u8, flight);
    }

    /// Returns its strong fingerprint in the same way.
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

    /// Takes back, durably, that a fingerprint is valid: the new one must not be taken for one of the old function.
    fn make_invalid(&self, entry: u64, flag: u8) {
        let invalid = self.set_word(entry + FLAGS_WORD, |word| word & !(u64::from(flag) << 32));
        let _ = self.region.fence(invalid);
    }

    /// Says that a fingerprint is valid, once it is durable: this one word may reach the media alone.
    fn make_valid(&self, entry: u64, words: Flight, flag: u8, functions: impl Fn(u8) -> u8, flight: &mut Flight) {
        let _ = self.region.fence(words);
        flight.extend(self.set_word(entry + FLAGS_WORD, |word| {
            let [a, b, c, d, flags, made_by, e, f] = word.to_le_bytes();
            u64::from_le_bytes([a, b, c, d, flags | flag, functions(made_by), e, f])
        }));
    }

    /// Changes a word that others may change too.
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
