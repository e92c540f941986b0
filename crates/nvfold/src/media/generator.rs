//! TX_ID generators: where the numbers of dedup transactions come from (NV-Dedup 4.3.1).
//!
//! The paper has one global generator, and every dedup transaction of the machine waits for it. Here every core
//! takes one of its own, a line each, and a TX_ID names its generator, so transactions on different cores share
//! nothing:
//!
//! ```text
//! TX_ID   | generator, 4 bits | sequence, 52 bits |      counts from 1; 0: no transaction
//! ```
//!
//! A generator stores the sequence of its next transaction, and has one transaction under way. So an entry with just that
//! sequence belongs to a transaction that did not come to its end. A later one says that the generator is damaged, and
//! nothing of the transaction.

use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Generators on a device.
pub const GENERATORS: u64 = 16;
/// First sequence that is none: with a million transactions a second it is reached after a century.
pub const SEQUENCE_END: u64 = 1 << 52;

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Generator {
    /// Sequence of the next transaction; 0 (a fresh device) stands for 1. Changes by 8-byte store.
    pub next: u64,
    /// Zero.
    pub spare: [u8; 56],
}

const _: () = assert!(size_of::<Generator>() == 64);
const _: () = assert!(offset_of!(Generator, next) == 0);

impl Generator {
    /// As it is when it is whole: one that is damaged goes on behind everything that it can have given out.
    pub fn mended(self) -> Generator {
        const UPPER_HALF: u64 = SEQUENCE_END / 2;
        let is_whole = self.next < SEQUENCE_END && self.spare == [0; 56];
        let next = if is_whole || (UPPER_HALF..SEQUENCE_END).contains(&self.next) { self.next } else { UPPER_HALF };
        Generator { next, spare: [0; 56] }
    }
}

/// Returns the TX_ID of a generator's transaction. A sequence that only a damaged device can have begins anew.
pub fn tx_id(generator: u64, sequence: u64) -> u64 {
    ((generator % GENERATORS) << 52) | (sequence % SEQUENCE_END)
}

/// Returns the generator and sequence of a TX_ID.
pub fn parts(tx_id: u64) -> (u64, u64) {
    (tx_id >> 52 & (GENERATORS - 1), tx_id & (SEQUENCE_END - 1))
}
