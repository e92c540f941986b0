//! A value on separate cache lines. A value that one thread writes all the time must not share a line with values
//! that others only read, or every read waits for the writer.

use crate::atomic::{AtomicU64, Ordering};
use crate::thread_number;
use std::ops::{Deref, DerefMut};

/// A value aligned to two lines, because processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
pub struct Padded<T>(
    /// The value.
    pub T,
);

impl<T> Deref for Padded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Padded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

const STRIPES: usize = 16;

/// A sum that every operation adds to. Each thread adds to its own line, because a line that all cores write moves
/// between them with every addition. A reader adds up the parts, and may miss concurrent additions. A decrease is an
/// addition in two's complement.
#[derive(Default)]
pub struct Sum {
    parts: [Padded<AtomicU64>; STRIPES],
}

impl Sum {
    /// Adds `value`.
    #[inline]
    pub fn add(&self, value: u64) {
        self.parts[thread_number() % STRIPES].fetch_add(value, Ordering::Relaxed);
    }

    /// Subtracts `value`.
    #[inline]
    pub fn subtract(&self, value: u64) {
        self.add(value.wrapping_neg());
    }

    /// Returns the sum; never below 0, even if it sees a decrease without an earlier increase.
    pub fn get(&self) -> u64 {
        let sum = self.parts.iter().fold(0u64, |sum, part| sum.wrapping_add(part.load(Ordering::Relaxed)));
        sum.cast_signed().max(0).cast_unsigned()
    }

    /// Sets the sum, while no thread adds to it.
    pub fn set(&self, value: u64) {
        self.parts.iter().for_each(|part| part.store(0, Ordering::Relaxed));
        self.parts[0].store(value, Ordering::Relaxed);
    }
}
