//! How many requests a mount has answered: what `nvfold top` makes its rates of.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counted while they are served.
#[derive(Default)]
pub struct Counters {
    reads: AtomicU64,
    bytes_read: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
    changes: AtomicU64,
}

/// Requests of the kernel since mount. What its page cache answers is none.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Requests {
    pub reads: u64,
    pub bytes_read: u64,
    pub writes: u64,
    pub bytes_written: u64,
    /// Names made, changed and removed, and attributes changed.
    pub changes: u64,
}

impl Counters {
    /// One more read of so many bytes.
    pub fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// One more write of so many bytes.
    pub fn write(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// One more change of names or attributes.
    pub fn change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// As they are now.
    pub fn now(&self) -> Requests {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Requests {
            reads: get(&self.reads),
            bytes_read: get(&self.bytes_read),
            writes: get(&self.writes),
            bytes_written: get(&self.bytes_written),
            changes: get(&self.changes),
        }
    }
}
