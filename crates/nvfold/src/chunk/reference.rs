//! References that an operation has taken and not used yet.
//!
//! The problem: a reference that is taken and forgotten keeps its block in use for ever, unnoticed until the device
//! is full. One that is used without having been taken loses data.
//!
//! The idea: taking a reference returns a value, and only that value yields the block's number to code that builds an
//! extent. Publishing it or giving it back consumes the value, and the compiler warns if it is ignored. In builds
//! with assertions, dropping it in any other way panics.

use crate::media::{BlockNumber, ChunkRef};

/// Permission for one more extent of this chunk: the count is raised already. The chunk's bytes do not change.
///
/// [`Dedup::place`](crate::dedup::Dedup::place) hands it to `fs`, which publishes it;
/// [`Transaction::give_back`](super::transaction::Transaction::give_back) gives it back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reference is published or given back, or its chunk stays in use for ever"]
pub struct Reference {
    chunk: ChunkRef,
}

/// A reference by update count (DeNOVA IV-D): an extent is about to reference the block. Its bytes do not change.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a hold becomes a reference or is given back, or its chunk stays in use until the next reconcile"]
pub struct Hold {
    chunk: BlockNumber,
}

macro_rules! used_up {
    ($kind:ident, $of:ty, $name:ident) => {
        impl $kind {
            pub(super) fn new(chunk: $of) -> $kind {
                $kind { chunk }
            }

            /// Returns its chunk, for reading the bytes.
            pub fn $name(&self) -> $of {
                self.chunk
            }

            /// Consumes it: from here on the number stands for the reference.
            pub(crate) fn take(self) -> $of {
                let chunk = self.chunk;
                std::mem::forget(self);
                chunk
            }
        }

        impl Drop for $kind {
            fn drop(&mut self) {
                let is_failing = std::thread::panicking();
                debug_assert!(is_failing, "a reference on {:?} was forgotten", self.chunk);
            }
        }
    };
}

used_up!(Reference, ChunkRef, chunk);
used_up!(Hold, BlockNumber, block);
