//! A packed chunk gets another place: extents name its entry, so nobody else hears of it (DeEXT III-B, III-D).
//!
//! The problem: while its bytes are copied the chunk may lose its last name, and its entry may become that of another one.
//! And a crash may come at any moment.
//!
//! The idea: who moves it holds it by update count ([`super::update`]), so it stays what it is. The word that says where it
//! lies changes at once, after the copy is durable; until that change is durable too, the bytes at the old place stay.
//!
//! ```text
//! hold          (n, u) -> (n, u + 1)     it is where the header says, and stays in use
//! copy, fence                            two places hold its bytes
//! address word  from -> to               compare and exchange
//! give back     (n, u + 1) -> (n, u)     n = 0: it lost its last name meanwhile, and is free
//! flush, fence                           the old bytes are nobody's: reused when the epochs have passed
//! ```
//!
//! A crash leaves the chunk at one of the two places, and an update count that recovery takes away.

use super::{Chunks, Released};
use crate::media::chunk_entry::{ADDRESS_WORD, address_word};
use crate::media::packed::PackedBytes;
use crate::media::{ChunkRef, PackedNumber};
use pmem::Flight;

/// A packed chunk that is held while it moves.
#[must_use = "a hold is given back, or its chunk stays in use until the next reconcile"]
pub(crate) struct Moving {
    /// The chunk.
    pub(crate) chunk: PackedNumber,
    /// Media address of its bytes.
    pub(crate) from: u64,
    /// How many lie there, and of how many they are the content.
    pub(crate) bytes: PackedBytes,
    /// By the method that cut it.
    pub(crate) class: u8,
}

impl Chunks {
    /// Holds a packed chunk if its bytes begin at this address; `None` if not, or if it cannot be held: it is free, or its
    /// entry is damaged. Between the look and the hold the entry may have become another chunk's: the caller looks again.
    pub(crate) fn begin_move(&self, chunk: PackedNumber, from: u64, flight: &mut Flight) -> Option<Moving> {
        let of = ChunkRef::Packed(chunk);
        // Most headers of a segment that is worth emptying are of chunks that are gone.
        let lies_there = self.entries.exists(of) && self.place_of(of).is_some_and(|(address, _)| address == from);
        if !lies_there || !self.is_held(of, flight) {
            return None;
        }
        let entry = self.entry(of);
        Some(Moving { chunk, from: entry.address(), bytes: entry.packed_bytes(), class: entry.class() })
    }

    /// The bytes of a held chunk lie at another address from now on, where they are durable. False when its entry was
    /// changed by damage: then it stays where it was.
    pub(crate) fn set_place(&self, moving: &Moving, to: u64) -> bool {
        let at = self.entry_offset(moving.chunk) + ADDRESS_WORD;
        let word = |address| address_word(address, moving.bytes.stored);
        // Flushed with the count, which lies in the same line.
        self.region.compare_exchange_u64(at, word(moving.from), word(to)).is_ok()
    }

    /// Gives the hold back. A chunk that lost its last name meanwhile is free: it leaves the index, and what is in flight must
    /// be fenced before anybody else gets its entry.
    pub(crate) fn end_move(&self, moving: Moving, flight: &mut Flight) -> Released {
        self.give_back(moving.chunk, flight)
    }
}
