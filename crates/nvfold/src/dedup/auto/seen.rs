//! Counters of what was written in a directory: one cache line for each thread, summed at the end of a sampling period.

use nvfold_sync::Padded;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use nvfold_sync::thread_number;

/// Threads beyond this many share counters.
const STRIPES: usize = 16;

/// Counters of one thread. They only grow, so only differences between two readings have a meaning.
#[derive(Default)]
struct RequestCounters {
    bytes: AtomicU64,
    requests: AtomicU64,
    /// Requests that were already reported to the whole device.
    told: AtomicU64,
    offered: AtomicU64,
    looked_for: AtomicU64,
    found: AtomicU64,
    checked: AtomicU64,
    compressible: AtomicU64,
}

/// Counters of all threads.
pub(super) struct Seen {
    stripes: Box<[Padded<RequestCounters>]>,
}

/// Sums of the counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) bytes: u64,
    pub(super) requests: u64,
    /// Bytes of the pieces that were looked up, and of those that were found.
    pub(super) looked_for: u64,
    pub(super) found: u64,
    /// Pieces that were checked, and those of them that are compressible.
    pub(super) checked: u64,
    pub(super) compressible: u64,
}

impl Seen {
    pub(super) fn new() -> Seen {
        Seen { stripes: (0..STRIPES).map(|_| Padded::default()).collect() }
    }

    /// Counts a finished request of `bytes` bytes. Returns the bytes of this thread's requests before it.
    pub(super) fn count_request(&self, bytes: u64) -> u64 {
        let stripe = self.stripe();
        // Not atomic: threads that share a stripe may lose a few of the requests, of which only the mean length matters.
        stripe.requests.store(stripe.requests.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        stripe.bytes.fetch_add(bytes, Ordering::Relaxed)
    }

    /// Counts finished requests of a directory, `bytes` bytes together; for the counters of the whole device.
    pub(super) fn count_requests(&self, requests: u64, bytes: u64) {
        let stripe = self.stripe();
        stripe.requests.fetch_add(requests, Ordering::Relaxed);
        stripe.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes the number of this thread's requests that were not yet reported to the whole device.
    pub(super) fn take_requests(&self) -> u64 {
        let stripe = self.stripe();
        let requests = stripe.requests.load(Ordering::Relaxed);
        requests.saturating_sub(stripe.told.swap(requests, Ordering::Relaxed))
    }

    /// Counts blocks that are about to be placed. Returns the number of blocks that this thread counted before.
    pub(super) fn count_offered(&self, blocks: u64) -> u64 {
        self.stripe().offered.fetch_add(blocks, Ordering::Relaxed)
    }

    /// Returns the bytes that were not yet reported to the whole device, where each thread reports multiples of
    /// `part` bytes.
    pub(super) fn unreported_bytes(&self, part: u64) -> u64 {
        self.stripes.iter().map(|stripe| stripe.bytes.load(Ordering::Relaxed) % part).sum()
    }

    pub(super) fn count_looks(&self, looked_for: u64, found: u64) {
        let stripe = self.stripe();
        stripe.looked_for.fetch_add(looked_for, Ordering::Relaxed);
        if found > 0 {
            stripe.found.fetch_add(found, Ordering::Relaxed);
        }
    }

    pub(super) fn count_check(&self, is_compressible: bool) {
        let stripe = self.stripe();
        stripe.checked.fetch_add(1, Ordering::Relaxed);
        stripe.compressible.fetch_add(u64::from(is_compressible), Ordering::Relaxed);
    }

    pub(super) fn figures(&self) -> Figures {
        let sum = |of: fn(&RequestCounters) -> &AtomicU64| {
            self.stripes.iter().map(|stripe| of(stripe).load(Ordering::Relaxed)).sum()
        };
        Figures {
            bytes: sum(|of| &of.bytes),
            requests: sum(|of| &of.requests),
            looked_for: sum(|of| &of.looked_for),
            found: sum(|of| &of.found),
            checked: sum(|of| &of.checked),
            compressible: sum(|of| &of.compressible),
        }
    }

    fn stripe(&self) -> &RequestCounters {
        &self.stripes[thread_number() % STRIPES]
    }
}

impl Figures {
    /// Returns the differences to `before`.
    pub(super) fn since(&self, before: &Figures) -> Figures {
        let less = |figure: fn(&Figures) -> u64| figure(self).saturating_sub(figure(before));
        Figures {
            bytes: less(|of| of.bytes),
            requests: less(|of| of.requests),
            looked_for: less(|of| of.looked_for),
            found: less(|of| of.found),
            checked: less(|of| of.checked),
            compressible: less(|of| of.compressible),
        }
    }
}
