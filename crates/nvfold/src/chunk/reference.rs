//! References that an operation has taken and not used yet.
//!
//! The problem: a reference that is taken and forgotten keeps its block for ever, and nothing shows it until the device
//! is full. One that is used without having been taken loses data.
//!
//! The idea: taking one gives a value, and only that value gives the block's number to who builds an extent. The value
//! is used up by publishing or by giving it back, and the compiler warns of one that is ignored. In builds with
//! assertions, dropping one otherwise is a panic.

use crate::media::{BlockNumber, ChunkRef};

/// One more extent of the caller's may name this block: its count was raised. Its bytes stand still.
///
/// [`Dedup::place`](crate::dedup::Dedup::place) hands it to `fs`, which publishes it;
/// [`Transaction::give_back`](super::transaction::Transaction::give_back) gives it back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reference is published or given back, or its chunk stays in use for ever"]
pub struct Reference {
    chunk: ChunkRef,
}

/// A reference by update count (DeNOVA IV-D): the block is about to be named, and its bytes stand still.
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

            /// What it is on, for looking at its bytes.
            pub fn $name(&self) -> $of {
                self.chunk
            }

            /// Uses it up: from here on the number stands for it.
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
