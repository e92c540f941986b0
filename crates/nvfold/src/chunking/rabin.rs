//! Rabin's fingerprint of the last 48 bytes (LBFS, SOSP 2001).
//!
//! The bytes are the coefficients of a polynomial over GF(2), and the fingerprint is its remainder modulo an
//! irreducible polynomial of degree 53, the one that restic and others use. A byte enters by a shift, and the oldest
//! leaves by subtracting its current remainder, so two tables suffice.

use std::array;

/// The number of bytes that a fingerprint covers.
pub(super) const WINDOW_BYTES: usize = 48;

const POLYNOMIAL: u64 = 0x3D_A335_8B4D_C173;
const DEGREE: u32 = 53;

/// For the eight bits that a shift moves to x^53 and above: their remainder, together with the bits themselves, so
/// that one addition also clears them.
static ENTERING: [u64; 256] = entering();
/// For each byte: its remainder when it is the oldest of the window.
static LEAVING: [u64; 256] = leaving();

const fn remainder(mut value: u64) -> u64 {
    while value >> DEGREE != 0 {
        value ^= POLYNOMIAL << (value.ilog2() - DEGREE);
    }
    value
}

const fn entering() -> [u64; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let high = (byte as u64) << DEGREE;
        table[byte] = remainder(high) | high;
        byte += 1;
    }
    table
}

const fn leaving() -> [u64; 256] {
    let mut table = [0; 256];
    let mut bit = 0;
    while bit < 8 {
        let mut value = 1 << bit;
        let mut shifted = 1;
        while shifted < WINDOW_BYTES {
            value = remainder(value << 8);
            shifted += 1;
        }
        // Addition is exclusive or, so a byte is the sum of its bits.
        let mut byte = 0;
        while byte < 256 {
            if byte >> bit & 1 == 1 {
                table[byte] ^= value;
            }
            byte += 1;
        }
        bit += 1;
    }
    table
}

/// The fingerprint, and the bytes of its window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rabin {
    fingerprint: u64,
    /// The oldest first.
    window: [u8; WINDOW_BYTES],
}

impl Rabin {
    /// Creates the published initial state: a window of zeros and a 1, so that zeros at the start of a piece have an
    /// effect.
    pub(super) fn new() -> Rabin {
        let mut window = [0; WINDOW_BYTES];
        window[WINDOW_BYTES - 1] = 1;
        Rabin { fingerprint: 1, window }
    }

    /// Continues with `data`. Returns `Some(n)` if the bits of `mask` are 0 after the n-th byte, and n > `unjudged`.
    pub(super) fn find(&mut self, mask: u64, unjudged: usize, data: &[u8]) -> Option<usize> {
        let from_window = data.len().min(WINDOW_BYTES);
        let window = self.window;
        let leaving = window[..from_window].iter().chain(data);
        for (at, (entered, left)) in data.iter().zip(leaving).enumerate() {
            self.roll(*left, *entered);
            if self.fingerprint & mask == 0 && at >= unjudged {
                return Some(at + 1);
            }
        }
        self.window = array::from_fn(|at| match (at + data.len()).checked_sub(WINDOW_BYTES) {
            Some(in_data) => data[in_data],
            None => window[at + data.len()],
        });
        None
    }

    fn roll(&mut self, left: u8, entered: u8) {
        let rest = self.fingerprint ^ LEAVING[usize::from(left)];
        let high = (rest >> (DEGREE - 8)) as u8;
        self.fingerprint = (rest << 8 | u64::from(entered)) ^ ENTERING[usize::from(high)];
    }
}
