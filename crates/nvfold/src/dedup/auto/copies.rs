//! Does following copies pay? Where it does, policy `auto` shares data with the file that it was copied from (ICID).
//!
//! The problem: finding the copies of a program again costs compares, and often more than writing them. Whether it pays
//! depends on the program, and changes with it.
//!
//! The idea: requests whose source is known are judged together, by the same score as policies ([`super::model`]): the
//! time that they took and the bytes that were left to store, beside storing all of them. Where that is no better,
//! copies are not followed while the next [`PAUSE_PERIODS`] sampling periods of the mount last. Then they are watched again.
//!
//! What a process spends on its records, and the mount on its samples, is not part of this time; both pause by
//! themselves where they find little (`nvfold_causality`).

use super::model;
use super::options::{FollowedCopies, JudgedCopies, Prefer};
use crate::media::BLOCK_BYTES;
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicU64, Ordering};

/// So many bytes of requests with a known source are judged together.
const JUDGED_BYTES: u64 = 4 << 20;

/// For so many sampling periods, copies are not followed after it did not pay.
const PAUSE_PERIODS: u64 = 4;

/// What was seen of requests with a known source.
#[derive(Clone, Copy, Default)]
struct SeenCopies {
    bytes: u64,
    shared_bytes: u64,
    /// Time that the requests took, nanoseconds.
    took_ns: u64,
}

/// What requests are judged by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) prefer: Prefer,
    /// Time to write a block of a long request, and to compare and share one, nanoseconds.
    pub(super) write_ns: u64,
    pub(super) share_ns: u64,
    /// The number of sampling periods that ended on the mount.
    pub(super) periods: u64,
}

/// Whether copies are followed now; see the module.
#[derive(Default)]
pub(super) struct CopiesChoice {
    /// The number of ended periods from which on copies are followed; 0 at first.
    from: AtomicU64,
    seen: Mutex<SeenCopies>,
    last: Mutex<Option<JudgedCopies>>,
}

impl CopiesChoice {
    /// True if copies are followed after so many ended periods.
    pub(super) fn follows(&self, periods: u64) -> bool {
        periods >= self.from.load(Ordering::Relaxed)
    }

    /// Counts a request of `bytes` bytes with a known source, of which so many bytes are shared with it. It took this
    /// time; `None` if nobody can tell, then it follows from the costs.
    pub(super) fn count(&self, bytes: u64, shared_bytes: u64, took_ns: Option<u64>, scale: &Scale) {
        let by_costs = || (bytes * scale.share_ns + (bytes - shared_bytes) * scale.write_ns) / BLOCK_BYTES;
        let took_ns = took_ns.unwrap_or_else(by_costs);
        let mut seen = self.seen.lock();
        seen.bytes += bytes;
        seen.shared_bytes += shared_bytes;
        seen.took_ns += took_ns;
        if seen.bytes < JUDGED_BYTES {
            return;
        }
        let copies = std::mem::take(&mut *seen).judged(scale);
        if !copies.pays {
            self.from.store(scale.periods + PAUSE_PERIODS, Ordering::Relaxed);
        }
        *self.last.lock() = Some(copies);
    }

    pub(super) fn stats(&self, periods: u64) -> FollowedCopies {
        FollowedCopies { followed: self.follows(periods), last: *self.last.lock() }
    }
}

impl SeenCopies {
    fn judged(self, scale: &Scale) -> JudgedCopies {
        let write_ns = scale.write_ns.max(1) as f64;
        let stored = 1.0 - self.shared_bytes as f64 / self.bytes as f64;
        let took_ns = self.took_ns as f64 * BLOCK_BYTES as f64 / self.bytes as f64;
        let score = |time_ns: f64, stored: f64| model::score(scale.prefer, time_ns, stored, stored, write_ns);
        let pays = score(took_ns, stored) < score(write_ns, 1.0);
        JudgedCopies { pays, shared: 1.0 - stored, took_ns, write_ns }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn scale(prefer: Prefer, periods: u64) -> Scale {
        Scale { prefer, write_ns: 1_000, share_ns: 400, periods }
    }

    #[test]
    fn copies_are_followed_while_that_pays_and_watched_again_later() {
        // Preference, shared of 4,096 bytes, time, whether it pays.
        for (prefer, shared, took_ns, pays) in [
            (Prefer::Speed, 4096, 900, true),
            (Prefer::Speed, 4096, 1_100, false),
            (Prefer::Speed, 1024, 990, true),
            (Prefer::Balanced, 2048, 1_900, true),
            (Prefer::Balanced, 409, 1_200, false),
            (Prefer::Space, 409, 3_000, true),
            (Prefer::Space, 0, 1_100, false),
            (Prefer::Wear, 409, 3_000, true),
        ] {
            let (scale, choice) = (scale(prefer, 7), CopiesChoice::default());
            assert_eq!(choice.stats(7), FollowedCopies { followed: true, last: None });
            let requests = JUDGED_BYTES / BLOCK_BYTES;
            (1..requests).for_each(|_| choice.count(BLOCK_BYTES, shared, Some(took_ns), &scale));
            assert!(choice.follows(7), "too little was seen");
            choice.count(BLOCK_BYTES, shared, Some(took_ns), &scale);
            assert_eq!(choice.follows(7), pays, "{prefer:?}: {shared} bytes, {took_ns} ns");
            assert_eq!(choice.stats(7).last.map(|copies| copies.pays), Some(pays));
            assert_eq!(choice.follows(7 + PAUSE_PERIODS - 1), pays);
            assert!(choice.follows(7 + PAUSE_PERIODS));
        }
    }

    #[test]
    fn without_a_clock_the_measured_costs_count() {
        let choice = CopiesChoice::default();
        choice.count(JUDGED_BYTES, JUDGED_BYTES / 2, None, &scale(Prefer::Speed, 0));
        let JudgedCopies { took_ns, pays, .. } = choice.stats(0).last.unwrap();
        assert!((took_ns - 900.0).abs() < 0.01 && pays, "{took_ns}");
    }
}
