//! A value with cache lines of its own: what one thread writes all the time must not share a line with what others
//! only read, or every read waits for the writer.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread_number;
use std::ops::{Deref, DerefMut};

/// Two lines, for processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

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

/// A sum that every operation adds to: each thread on a line of its own, for a line that all cores write moves from one
/// to the next with every addition. Who reads it adds the parts up, and may miss what is added meanwhile. A decrease is
/// an addition in two's complement.
#[derive(Default)]
pub struct Sum {
    parts: [Padded<AtomicU64>; STRIPES],
}

impl Sum {
    /// Adds to it.
    #[inline]
    pub fn add(&self, value: u64) {
        self.parts[thread_number() % STRIPES].fetch_add(value, Ordering::Relaxed);
    }

    /// Takes away from it.
    #[inline]
    pub fn subtract(&self, value: u64) {
        self.add(value.wrapping_neg());
    }

    /// What it is; never below 0, also when only the decrease is seen of two changes.
    pub fn get(&self) -> u64 {
        let sum = self.parts.iter().fold(0u64, |sum, part| sum.wrapping_add(part.load(Ordering::Relaxed)));
        sum.cast_signed().max(0).cast_unsigned()
    }

    /// Makes it this, while nobody adds to it.
    pub fn set(&self, value: u64) {
        self.parts.iter().for_each(|part| part.store(0, Ordering::Relaxed));
        self.parts[0].store(value, Ordering::Relaxed);
    }
}
