//! TX_ID generators: the source of the numbers of dedup transactions (NV-Dedup 4.3.1).
//!
//! The paper has one global generator, and every dedup transaction of the machine waits for it. Here every core uses
//! one of its own, in a separate cache line. A TX_ID includes its generator, so transactions on different cores share
//! nothing:
//!
//! ```text
//! TX_ID   | generator, 4 bits | sequence, 52 bits |      counts from 1; 0: no transaction
//! ```
//!
//! A generator stores the sequence of its next transaction, and has at most one transaction under way. So an entry
//! with exactly that sequence belongs to an unfinished transaction. An entry with a later sequence shows that the
//! generator is damaged, and says nothing about the transaction.

use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Generators on a device.
pub(crate) const GENERATORS: u64 = 16;
/// Sequences are less than this: at a million transactions per second it is reached after a century.
pub const SEQUENCE_END: u64 = 1 << 52;

/// One generator, in a cache line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Generator {
    /// Sequence of the next transaction; 0 (a fresh device) stands for 1. Changes by an 8-byte store.
    pub next: u64,
    /// Zero.
    pub spare: [u8; 56],
}

const _: () = assert!(size_of::<Generator>() == 64);
const _: () = assert!(offset_of!(Generator, next) == 0);

impl Generator {
    /// Returns a valid generator. A damaged one continues after every sequence that it can have given out.
    pub(crate) fn mended(self) -> Generator {
        const UPPER_HALF: u64 = SEQUENCE_END / 2;
        let is_whole = self.next < SEQUENCE_END && self.spare == [0; 56];
        let next = if is_whole || (UPPER_HALF..SEQUENCE_END).contains(&self.next) { self.next } else { UPPER_HALF };
        Generator { next, spare: [0; 56] }
    }
}

/// Returns the TX_ID of a generator's transaction. Sequences wrap around, which only happens on a damaged device.
pub fn tx_id(generator: u64, sequence: u64) -> u64 {
    ((generator % GENERATORS) << 52) | (sequence % SEQUENCE_END)
}

/// Returns the generator and sequence of a TX_ID.
pub(crate) fn parts(tx_id: u64) -> (u64, u64) {
    (tx_id >> 52 & (GENERATORS - 1), tx_id & (SEQUENCE_END - 1))
}
