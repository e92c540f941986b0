//! How long nodes stay in the work queue (DeNOVA V-B2, Fig. 10).
//!
//! The problem: waiting times span many orders of magnitude, and every node must be counted without much memory.
//!
//! The idea: a histogram with eight classes for each power of two. It knows each time to an eighth, from nanoseconds
//! to centuries, in 4 KiB.

use nvfold_sync::atomic::{AtomicU64, Ordering};

/// Logarithm of the number of classes for each power of two.
const FINE_BITS: u32 = 3;
const CLASSES: usize = (65 - FINE_BITS as usize) << FINE_BITS;

/// A histogram of waiting times.
pub(crate) struct WaitTimes {
    counts: [AtomicU64; CLASSES],
}

impl Default for WaitTimes {
    fn default() -> Self {
        WaitTimes { counts: [const { AtomicU64::new(0) }; CLASSES] }
    }
}

/// Returns the class of a time: the position of its highest bit, and the three bits after it.
fn class_of(ns: u64) -> usize {
    if ns < 1 << FINE_BITS {
        return ns as usize;
    }
    let shift = ns.ilog2() - FINE_BITS;
    ((shift as usize) << FINE_BITS) + (ns >> shift) as usize
}

/// Returns the longest time of a class, nanoseconds.
fn longest_of(class: usize) -> u64 {
    let fine = 1 << FINE_BITS;
    if class < 2 * fine {
        return class as u64;
    }
    let shift = (class >> FINE_BITS) - 1;
    let first = (class % fine + fine) as u128;
    (((first + 1) << shift) - 1).min(u128::from(u64::MAX)) as u64
}

impl WaitTimes {
    /// Counts a node that waited `ns` nanoseconds.
    pub(crate) fn count(&self, ns: u64) {
        self.counts[class_of(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the longest time of each class in nanoseconds, and the number of nodes in it; ascending, without empty
    /// classes.
    pub(crate) fn classes(&self) -> Vec<(u64, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        counts.enumerate().filter(|(_, count)| *count > 0).map(|(class, count)| (longest_of(class), count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_time_class_is_exact_to_an_eighth() {
        let mut times: Vec<u64> = (0..4096).chain((0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit])).collect();
        times.push(u64::MAX);
        for ns in times {
            let longest = longest_of(class_of(ns));
            assert!(longest >= ns && longest - ns <= ns / 8, "{ns} is told as {longest}");
            assert!(class_of(longest) == class_of(ns), "{ns}");
        }
    }

    #[test]
    fn wait_time_classes_are_sorted_and_counted() {
        let wait_times = WaitTimes::default();
        [900, 5, 5, 1 << 40].into_iter().for_each(|ns| wait_times.count(ns));
        let classes = wait_times.classes();
        assert!(classes.is_sorted() && classes.iter().map(|(_, count)| *count).eq([2, 1, 1]), "{classes:?}");
    }
}
