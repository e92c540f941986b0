//! Random input that can be reproduced.
//!
//! Every random test takes its seeds from here. `make test` uses the same ones each time, so that a result depends
//! only on the change under test; `make soak` uses new ones; `NVFOLD_SEED` replays one. The seed is part of every
//! failure's message, because [`Seed`] prints itself if the test panics while it is alive.
//!
//! Property tests (proptest) use `PROPTEST_RNG_SEED`, which the Makefile sets in the same way.

use std::thread;

/// A seed that prints itself when the test that holds it fails.
pub struct Seed {
    value: u64,
    of: &'static str,
}

impl Seed {
    /// Takes `NVFOLD_SEED`, else a seed computed from `of`, which says what it seeds; in `make soak` a new one.
    pub fn new(of: &'static str) -> Seed {
        // FNV-1a.
        let of_its_name = of
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        Seed::known(of, of_its_name)
    }

    /// Takes `NVFOLD_SEED`, else this seed, such as one that found a bug; in `make soak` a new one.
    pub fn known(of: &'static str, value: u64) -> Seed {
        let value = if soak_factor() == 1 { value } else { fastrand::u64(..) };
        Seed::or_else(of, value)
    }

    /// Takes `NVFOLD_SEED`, else this seed: for a test whose outcome is recorded in a file.
    pub fn or_else(of: &'static str, value: u64) -> Seed {
        let replayed = std::env::var("NVFOLD_SEED").ok();
        Seed { value: replayed.map_or(value, |text| text.parse().expect("NVFOLD_SEED is a number")), of }
    }

    /// Returns the number.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Returns a generator that gives the same numbers each time.
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

/// Returns how much longer than usual the random tests run (`NVFOLD_SOAK`, 1 if unset).
pub fn soak_factor() -> u64 {
    std::env::var("NVFOLD_SOAK").map_or(1, |text| text.parse().expect("NVFOLD_SOAK is a number"))
}

/// Fills `bytes` in a way that finds sharing bugs: each 4 KiB piece is new, or one of a few that repeat, or zeros.
pub fn fill(random: &mut fastrand::Rng, bytes: &mut [u8]) {
    for piece in bytes.chunks_mut(4096) {
        match random.u8(0..8) {
            0 => piece.fill(0),
            1..4 => fastrand::Rng::with_seed(random.u64(0..6)).fill(piece),
            _ => random.fill(piece),
        }
    }
}
