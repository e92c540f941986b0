//! A value with cache lines of its own: what one thread writes all the time must not share a line with what others
//! only read, or every read waits for the writer.

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
