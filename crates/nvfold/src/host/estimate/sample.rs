//! Counts distinct pieces when their fingerprints do not fit in memory.
//!
//! The problem: how many distinct pieces are there, if memory holds only some of the fingerprints?
//!
//! The idea: keep the fingerprints that end in `k` zero bits, and raise `k` whenever the table is full. Whether a
//! fingerprint is kept depends only on its value, so the decision is the same for every occurrence of a piece. The
//! kept fingerprints are a fair sample of the *distinct* pieces, and `2^k` times their count is an unbiased estimate.
//! (Sampling occurrences instead would let one piece that occurs a million times dominate the result.)
//!
//! Raising `k` must not spoil earlier counts. So counts are kept in strata, one for each number of trailing zero
//! bits: a fingerprint with at least `k` of them was followed from the start, whenever `k` was raised. The estimate
//! sums the strata from `k` up.
//!
//! Pieces come in groups (the paths of a survey), one group after the other. Next to each fingerprint is the last
//! group that it was seen in, which is enough to count distinct pieces within each group and over all groups.

use std::collections::HashMap;

/// Memory of one fingerprint: a 16-byte slot and a control byte. The table is at most 7/8 full, and takes one and a
/// half times its size while it grows.
const SLOT_BYTES: u64 = 17;

/// One stratum for each number of trailing zero bits of a 64-bit fingerprint.
const STRATA: usize = 65;

/// Counts distinct pieces in bounded memory.
pub(super) struct DistinctSample {
    last_group_of: HashMap<u64, u32>,
    capacity: usize,
    /// Fingerprints with at least this many trailing zero bits are kept.
    zero_bits: u32,
    overall: Strata,
    by_group: Vec<Strata>,
}

/// A number of pieces and their bytes; exact if no fingerprint was left out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distinct {
    /// Number of pieces.
    pub pieces: u64,
    /// Bytes that they need.
    pub bytes: u64,
    /// Two standard deviations of `bytes`: 95 of 100 estimates have a smaller error. 0 if exact.
    pub bytes_error: u64,
}

#[derive(Clone)]
struct Strata([SampleSums; STRATA]);

#[derive(Clone, Copy, Default)]
struct SampleSums {
    pieces: u64,
    bytes: u64,
    squared_bytes: f64,
}

impl DistinctSample {
    /// Returns an empty sample that takes about `memory_bytes`, but at least the memory of 1,024 fingerprints.
    pub(super) fn new(memory_bytes: u64) -> DistinctSample {
        let slots = (memory_bytes * 2 / 3 / SLOT_BYTES).max(2048);
        let power_of_two = 1u64 << slots.ilog2();
        DistinctSample {
            last_group_of: HashMap::new(),
            capacity: (power_of_two / 8 * 7) as usize,
            zero_bits: 0,
            overall: Strata::default(),
            by_group: Vec::new(),
        }
    }

    /// Counts a piece that needs `bytes`. Groups are numbered from 0, and calls must be in their order.
    pub(super) fn see(&mut self, fingerprint: u64, bytes: u64, group: u32) {
        while self.by_group.len() <= group as usize {
            self.by_group.push(Strata::default());
        }
        if fingerprint.trailing_zeros() < self.zero_bits {
            return;
        }
        let last_group = self.last_group_of.insert(fingerprint, group);
        if last_group.is_none() {
            self.overall.add(fingerprint, bytes);
        }
        if last_group != Some(group) {
            self.by_group[group as usize].add(fingerprint, bytes);
        }
        while self.last_group_of.len() > self.capacity {
            self.zero_bits += 1;
            let zero_bits = self.zero_bits;
            self.last_group_of.retain(|held, _| held.trailing_zeros() >= zero_bits);
        }
    }

    /// Returns which part of the fingerprints was followed: one in this many. 1 means all, and exact counts.
    pub(super) fn one_in(&self) -> u64 {
        1 << self.zero_bits
    }

    /// Returns the number of distinct pieces over all groups.
    pub(super) fn overall(&self) -> Distinct {
        self.overall.scaled_up(self.zero_bits)
    }

    /// Returns the number of distinct pieces within one group, independently of other groups.
    pub(super) fn within(&self, group: u32) -> Distinct {
        self.by_group.get(group as usize).map(|strata| strata.scaled_up(self.zero_bits)).unwrap_or_default()
    }
}

impl Default for Strata {
    fn default() -> Strata {
        Strata([SampleSums::default(); STRATA])
    }
}

impl Strata {
    fn add(&mut self, fingerprint: u64, bytes: u64) {
        let tally = &mut self.0[fingerprint.trailing_zeros() as usize];
        tally.pieces += 1;
        tally.bytes += bytes;
        tally.squared_bytes += (bytes as f64).powi(2);
    }

    /// Returns the estimate, from the strata that were followed throughout. Each piece was in the sample with
    /// probability 1/scale, so a piece of `n` bytes adds `n^2 * (scale - 1)` to the variance. The sum over all pieces
    /// is estimated by `scale` times the sum over the sample.
    fn scaled_up(&self, zero_bits: u32) -> Distinct {
        let followed = &self.0[zero_bits as usize..];
        let scale = 1u64 << zero_bits;
        let squared_bytes: f64 = followed.iter().map(|tally| tally.squared_bytes).sum();
        let variance = squared_bytes * scale as f64 * (scale - 1) as f64;
        Distinct {
            pieces: followed.iter().map(|tally| tally.pieces).sum::<u64>() * scale,
            bytes: followed.iter().map(|tally| tally.bytes).sum::<u64>() * scale,
            bytes_error: (2.0 * variance.sqrt()).round() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::weak64;

    fn fingerprint(number: u64) -> u64 {
        weak64(&number.to_le_bytes())
    }

    #[test]
    fn small_sets_are_counted_exactly_for_each_group_and_in_total() {
        let mut sample = DistinctSample::new(1 << 20);
        for number in [1, 2, 3, 3, 3] {
            sample.see(fingerprint(number), 4096, 0);
        }
        for number in [3, 4, 4] {
            sample.see(fingerprint(number), 4096, 1);
        }
        sample.see(fingerprint(1), 4096, 2);
        assert_eq!(sample.one_in(), 1);
        assert_eq!(sample.overall(), Distinct { pieces: 4, bytes: 4 * 4096, bytes_error: 0 });
        assert_eq!(sample.within(0).pieces, 3);
        assert_eq!(sample.within(1).pieces, 2);
        assert_eq!(sample.within(2).pieces, 1);
        assert_eq!(sample.within(3), Distinct::default());
    }

    #[test]
    fn a_full_table_of_fingerprints_samples_within_the_stated_error() {
        let mut sample = DistinctSample::new(0);
        let capacity = sample.capacity;
        let (mut distinct_bytes, mut within_second) = (0, 0);
        for number in 0..100_000u64 {
            let len = 2048 + number % 7 * 1024;
            distinct_bytes += len;
            sample.see(fingerprint(number), len, 0);
            sample.see(fingerprint(number / 2), 2048 + number / 2 % 7 * 1024, 0);
            // One piece that occurs as often as all others together must not matter.
            sample.see(fingerprint(u64::MAX), 1, 0);
        }
        for number in 50_000..150_000u64 {
            let len = 2048 + number % 7 * 1024;
            within_second += len;
            distinct_bytes += if number < 100_000 { 0 } else { len };
            sample.see(fingerprint(number), len, 1);
        }
        assert!(sample.one_in() > 1, "the table must have been too small");
        assert!(sample.last_group_of.len() <= capacity && sample.last_group_of.capacity() <= 4 * capacity);
        for (name, estimate, truth) in
            [("overall", sample.overall(), distinct_bytes), ("second group", sample.within(1), within_second)]
        {
            let off = estimate.bytes.abs_diff(truth);
            // Three standard deviations; the numbers are fixed, so this never changes by itself.
            assert!(off <= estimate.bytes_error * 3 / 2, "{name}: {} for {truth}", estimate.bytes);
            assert!(estimate.bytes_error < truth / 5, "{name}: an error of {} says nothing", estimate.bytes_error);
        }
    }

    #[test]
    fn the_estimate_is_unbiased() {
        let truth = 20_000u64;
        let rounds = 200;
        let mean = (0..rounds)
            .map(|round| {
                let mut sample = DistinctSample::new(0);
                (0..truth).for_each(|number| sample.see(fingerprint(round * truth + number), 1, 0));
                sample.overall().pieces as f64
            })
            .sum::<f64>()
            / rounds as f64;
        assert!((mean / truth as f64 - 1.0).abs() < 0.01, "mean {mean} for {truth}");
    }
}
