//! Random input that can be had again.
//!
//! Every random test draws its seeds here: from `NVFOLD_SEED` when set, else from the machine's
//! entropy. The seed is part of every failure's message, because [`Seed`] prints itself when the
//! test panics while it is alive.

use std::thread;

/// A seed that prints itself when the test that holds it fails.
pub struct Seed {
    value: u64,
    of: &'static str,
}

impl Seed {
    /// `NVFOLD_SEED`, or a new one. `of` says what it seeds.
    pub fn new(of: &'static str) -> Seed {
        let value = match std::env::var("NVFOLD_SEED") {
            Ok(text) => text.parse().expect("NVFOLD_SEED is a number"),
            Err(_) => fastrand::u64(..),
        };
        Seed { value, of }
    }

    /// `NVFOLD_SEED`, or this one: for a test whose outcome is written down somewhere.
    pub fn or_else(of: &'static str, value: u64) -> Seed {
        if std::env::var_os("NVFOLD_SEED").is_some() { Seed::new(of) } else { Seed { value, of } }
    }

    /// The number.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// A generator that gives the same numbers each time.
    pub fn generator(&self) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.value)
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{} failed; replay with NVFOLD_SEED={}", self.of, self.value);
        }
    }
}

/// How much longer than usual the random tests run (`NVFOLD_SOAK`, 1 when unset).
pub fn soak_factor() -> u64 {
    std::env::var("NVFOLD_SOAK").map_or(1, |text| text.parse().expect("NVFOLD_SOAK is a number"))
}

/// Fills `bytes` in the way that finds sharing bugs: each 4 KiB piece is new, or one of a few that
/// come again and again, or zeros.
pub fn fill(random: &mut fastrand::Rng, bytes: &mut [u8]) {
    for piece in bytes.chunks_mut(4096) {
        match random.u8(0..8) {
            0 => piece.fill(0),
            1..4 => fastrand::Rng::with_seed(random.u64(0..6)).fill(piece),
            _ => random.fill(piece),
        }
    }
}
