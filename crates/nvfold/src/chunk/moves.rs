//! Moving a packed chunk. Extents reference its entry, so only the entry changes (DeEXT III-B, III-D).
//!
//! The problem: while the bytes are copied, the chunk may lose its last reference, and its entry may be reused for
//! another chunk. And a crash may come at any moment.
//!
//! The idea: the mover holds the chunk by its update count ([`super::update`]), so the entry stays that of the chunk.
//! The word with the media address changes at once, after the copy is durable; the bytes at the old place stay until
//! that change is durable too.
//!
//! ```text
//! hold          (n, u) -> (n, u + 1)     it is where the header says, and stays in use
//! copy, fence                            two places hold its bytes
//! address word  from -> to               compare and exchange
//! give back     (n, u + 1) -> (n, u)     n = 0: it lost its last name meanwhile, and is free
//! flush, fence                           the old bytes are nobody's: reused when the epochs have passed
//! ```
//!
//! A crash leaves the chunk at one of the two places, and possibly an update count, which recovery removes.

use super::{Chunks, Released};
use crate::media::chunk_entry::{ADDRESS_WORD, address_word};
use crate::media::packed::PackedBytes;
use crate::media::{ChunkRef, PackedNumber};
use pmem::Flight;

/// A packed chunk that is held for a move.
#[must_use = "a hold is given back, or its chunk stays in use until the next reconcile"]
pub(crate) struct Moving {
    /// The number of the chunk.
    pub(crate) chunk: PackedNumber,
    /// Media address of its bytes before the move.
    pub(crate) from: u64,
    /// Its content and stored lengths.
    pub(crate) bytes: PackedBytes,
    /// The class of the method that cut it.
    pub(crate) class: u8,
}

impl Chunks {
    /// Holds a packed chunk if its bytes begin at this address. `None` if they do not, or if the chunk cannot be held
    /// because it is free or its entry is damaged. Between the check and the hold the entry may have been reused for
    /// another chunk: the caller checks the result.
    pub(crate) fn begin_move(&self, chunk: PackedNumber, from: u64, flight: &mut Flight) -> Option<Moving> {
        let of = ChunkRef::Packed(chunk);
        // In a segment worth emptying, most headers are of chunks that are gone.
        let lies_there = self.entries.exists(of) && self.place_of(of).is_some_and(|(address, _)| address == from);
        if !lies_there || !self.try_hold(of, flight) {
            return None;
        }
        let entry = self.entry(of);
        Some(Moving { chunk, from: entry.address(), bytes: entry.packed_bytes(), class: entry.class() })
    }

    /// Sets the media address of a held chunk to the place of its durable copy. Returns false if damage changed its
    /// entry: then the chunk stays where it was.
    pub(crate) fn set_place(&self, moving: &Moving, to: u64) -> bool {
        let at = self.entry_offset(moving.chunk) + ADDRESS_WORD;
        let word = |address| address_word(address, moving.bytes.stored);
        // Flushed together with the count, which is in the same line.
        self.region.compare_exchange_u64(at, word(moving.from), word(to)).is_ok()
    }

    /// Gives the hold back. A chunk that lost its last reference meanwhile is freed and leaves the index. The caller
    /// must fence `flight` before the entry is reused.
    pub(crate) fn end_move(&self, moving: Moving, flight: &mut Flight) -> Released {
        self.give_back(moving.chunk, flight)
    }
}
