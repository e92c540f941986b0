//! How long requests take, as histograms.
//!
//! The problem: the answer to a request takes a microsecond, and threads on all processors answer them. A counter that all
//! of them write would move between their caches with each request. The idea: a thread adds to the counters of its own
//! stripe, which lie apart from those of the others; a reader adds up the stripes. Classes are powers of two of a
//! microsecond, so that the class of a time is found by counting bits.
//!
//! Every request is measured, not a sample: what an operator looks for are the few that are slow. It costs two looks at
//! the clock and three additions to lines that the thread has in its cache.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The number of classes: up to 1, 2, 4, .. microseconds, the last one up to 8.4 s; and longer ones.
const CLASSES: usize = 25;
/// The number of stripes.
const STRIPES: usize = 8;

/// Histograms of `N` kinds of requests.
pub(crate) struct Latencies<const N: usize> {
    stripes: [Box<Stripe<N>>; STRIPES],
}

/// Apart from other stripes by two lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct Stripe<const N: usize>([OfKind; N]);

struct OfKind {
    total_ns: AtomicU64,
    failed: AtomicU64,
    by_class: [AtomicU64; CLASSES],
}

/// How long the requests of one kind took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Latency {
    /// All of them together, in nanoseconds.
    pub total_ns: u64,
    /// Requests that were answered with an error. Some errors are usual: that there is no such attribute, for example.
    pub failed: u64,
    /// The number of requests by class: those that took at most 1 microsecond, then at most 2, 4, 8 and so on; the last
    /// class has those that took longer than 8.4 s ([`Latency::bounds_ns`]).
    pub by_class: Vec<u64>,
}

impl Latency {
    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.by_class.iter().sum()
    }

    /// Returns the upper bounds of all classes but the last one, which has none, in nanoseconds.
    pub fn bounds_ns() -> impl Iterator<Item = u64> {
        (0..CLASSES - 1).map(|class| 1000 << class)
    }
}

impl<const N: usize> Default for Latencies<N> {
    fn default() -> Latencies<N> {
        let none = || AtomicU64::new(0);
        let of_kind = || OfKind { total_ns: none(), failed: none(), by_class: std::array::from_fn(|_| none()) };
        let stripe = || Box::new(Stripe(std::array::from_fn(|_| of_kind())));
        Latencies { stripes: std::array::from_fn(|_| stripe()) }
    }
}

impl<const N: usize> Latencies<N> {
    /// Adds a request of a kind.
    #[inline]
    pub(crate) fn add(&self, kind: usize, time: Duration, failed: bool) {
        let ns = time.as_nanos() as u64;
        let of_kind = &self.stripes[stripe_of_this_thread()].0[kind];
        of_kind.total_ns.fetch_add(ns, Ordering::Relaxed);
        of_kind.by_class[class_of(ns)].fetch_add(1, Ordering::Relaxed);
        if failed {
            of_kind.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns what is known of a kind.
    pub(crate) fn of(&self, kind: usize) -> Latency {
        let sum = |figure: &dyn Fn(&OfKind) -> &AtomicU64| {
            self.stripes.iter().map(|stripe| figure(&stripe.0[kind]).load(Ordering::Relaxed)).sum()
        };
        Latency {
            total_ns: sum(&|of| &of.total_ns),
            failed: sum(&|of| &of.failed),
            by_class: (0..CLASSES).map(|class| sum(&|of| &of.by_class[class])).collect(),
        }
    }
}

/// Returns the class of a time: 0 up to 1 microsecond, 1 up to 2, and so on.
fn class_of(ns: u64) -> usize {
    let begun_us = ns.saturating_sub(1) / 1000;
    ((u64::BITS - begun_us.leading_zeros()) as usize).min(CLASSES - 1)
}

/// Returns the stripe of the calling thread. Threads get them in turn.
fn stripe_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static STRIPE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    }
    STRIPE.with(|stripe| *stripe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_time_is_in_the_first_class_whose_bound_it_does_not_exceed() {
        let bounds: Vec<u64> = Latency::bounds_ns().collect();
        for (class, bound) in bounds.iter().enumerate() {
            assert_eq!((class_of(*bound), class_of(bound + 1)), (class, class + 1), "{bound} ns");
        }
        assert_eq!((class_of(0), class_of(1), class_of(u64::MAX)), (0, 0, CLASSES - 1));
        assert_eq!(bounds.len() + 1, CLASSES);
    }

    #[test]
    fn requests_of_all_threads_are_counted_and_kinds_stay_apart() {
        let latencies = Latencies::<3>::default();
        thread::scope(|scope| {
            for _ in 0..2 * STRIPES {
                scope.spawn(|| {
                    for us in 1..=100 {
                        latencies.add(1, Duration::from_micros(us), us % 2 == 0);
                    }
                });
            }
        });
        let (none, some) = (latencies.of(0), latencies.of(1));
        let threads = 2 * STRIPES as u64;
        assert_eq!(none, Latency { by_class: vec![0; CLASSES], ..Latency::default() });
        assert_eq!((some.requests(), some.failed), (100 * threads, 50 * threads));
        assert_eq!(some.total_ns, 5_050_000 * threads);
        assert_eq!(some.by_class[..8], [1, 1, 2, 4, 8, 16, 32, 36].map(|count| count * threads));
    }
}
