//! What would each policy cost and save for this workload on this device? The formulae of policy `auto`.
//!
//! The problem: looking for duplicates before writing pays on slow media and not on fast ones, and how much it saves
//! depends on the workload. That is why the papers come to opposite conclusions.
//!
//! The idea: estimate three numbers for each policy: the mean time that the writer of a block waits, the part of its
//! bytes that takes space, and the part that is written. They follow from the measured costs (c, w, lambda, v as in
//! NV-Dedup, see [`Costs`]) and from three observations: the duplicate ratio r, the part k of the blocks that is
//! compressible, and the mean request length of n blocks.
//!
//! ```text
//! c(n)     c + (c1 - c) / n        c1 one block with its fence, c a block of a long request
//! f(n)     f / n                   f what a request costs besides its blocks; added to each time below
//!
//!          time                                     stored              written
//! off      c(n)                                     1                   1
//! inline   w + lambda + (1-r) c(n) + r v + c(n)/12  1 - r               1 - r
//! denova   c(n) + q                                 1 - r               1
//! deext    w + lambda + (1-r)(1 - k/2) c(n) + r v   (1-r)(1 - k/2)      (1-r)(1 - k/2)
//!          + c(n)/12 + cut(n) + (1-r) k z
//! ```
//!
//! The term c(n)/12 is the cost of CPU cache lines that fingerprinting evicts, as in the model of `nv-dedup`.
//! `denova` looks for duplicates later, so its time does not depend on r; q is the cost of queueing.
//!
//! `deext` is considered only where packed chunks are compressed. The model assumes that compressible data shrinks to
//! a half, and that r is the duplicate ratio of blocks. The cost z of a compressible block is that of compressing it,
//! which is measured, plus a constant for cutting it by content. The term cut(n) is the cost of cutting: a constant
//! for each block, and more for each request, whose last piece is written again when the next request continues it.
//! Where less than a fiftieth of the data is compressible, `deext` is not considered: it would save a percent at
//! most, and its pieces are longer than blocks, so it finds fewer duplicates.
//!
//! A preference combines the three numbers into a *score*; the policy with the least score is the best:
//!
//! ```text
//! balanced   time * stored             a percent of space is worth a percent of time
//! speed      time
//! space      stored  + time / (time + c(n)) / 50
//! wear       written + time / (time + c(n)) / 50
//! ```
//!
//! So with the last two, a policy that takes longer than storing everything costs the equivalent of less than a
//! percent of space.
//!
//! Policy `nv-dedup` is not considered, because it chooses between `off` and `inline` itself. Nor are `icid` and its
//! variants: copies are followed only where the user names one of these policies.

use super::options::{PolicyEstimate, Prefer};
use crate::dedup::nv_dedup::options::Costs;
use crate::dedup::policy::Policy;

/// Cost of a request besides its blocks, whatever the policy: locks, the log entry, the inode.
const REQUEST_NS: f64 = 400.0;
/// Cost of queueing a log entry and taking it from the queue, nanoseconds a block.
const QUEUE_NS: f64 = 50.0;
/// Cost of cutting a block, with its share of the entries and headers of packed chunks.
const CUT_NS: f64 = 800.0;
/// Cost of cutting for each request, and the part of a block's write cost that is paid twice.
const CUT_REQUEST_NS: f64 = 1_500.0;
const CUT_REQUEST_WRITES: f64 = 1.0 / 3.0;
/// Cost of cutting a compressible block by its content, which gives more and shorter pieces than other data.
const CUT_CONTENT_NS: f64 = 2_500.0;
/// Cost of compressing a block, nanoseconds, where it was not measured.
pub(super) const COMPRESS_NS: u64 = 1_500;
/// The least part of compressible blocks that makes packing worthwhile.
const COMPRESSIBLE_MIN: f64 = 0.02;
/// Weight of time in the scores for space and wear.
const TIME_WEIGHT: f64 = 0.02;

/// What was observed of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Workload {
    /// Duplicate ratio, 0 to 1.
    pub ratio: f64,
    /// The part of the blocks that is compressible.
    pub compressible: f64,
    /// Mean number of blocks in a request, at least 1.
    pub request_blocks: f64,
}

/// What the model knows of the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeviceCosts {
    /// Costs of a single block, nanoseconds.
    pub costs: Costs,
    /// Time to write a block of a long request, nanoseconds.
    pub run_write_ns: u64,
    /// Time to compress a compressible block, nanoseconds.
    pub compress_ns: u64,
    /// True if `denova` can share later: the index is on the device and a daemon runs.
    pub shares_later: bool,
    /// True if packed chunks can be stored and are compressed.
    pub packs: bool,
}

/// Returns the estimates of all policies that can be chosen, the best first; there is at least one. With
/// `prefer=space`, `off` is left out. It would score as well where nothing can be saved now, but later copies of the
/// data that it stores would not be found.
pub(crate) fn estimates(ground: &DeviceCosts, workload: &Workload, prefer: Prefer) -> Vec<PolicyEstimate> {
    let Costs { write_ns, weak_ns, lookup_ns, compare_ns, .. } = ground.costs;
    let [one, long] = [write_ns, ground.run_write_ns.min(write_ns)].map(|cost| cost as f64);
    let requests = 1.0 / workload.request_blocks.max(1.0);
    let write = (long + (one - long) * requests).max(1.0);
    let ratio = workload.ratio.clamp(0.0, 1.0);
    let new = 1.0 - ratio;
    let compressible = new * workload.compressible.clamp(0.0, 1.0);
    let shrunk = new - compressible / 2.0;
    let looks = (weak_ns + lookup_ns) as f64 + ratio * compare_ns as f64 + write / 12.0;
    let cut = CUT_NS + (CUT_REQUEST_NS + CUT_REQUEST_WRITES * write) * requests;
    let packing = shrunk * write + cut + compressible * (CUT_CONTENT_NS + ground.compress_ns as f64);
    let packs = ground.packs && workload.compressible >= COMPRESSIBLE_MIN;
    let all = [
        (prefer != Prefer::Space, Policy::Off, write, 1.0, 1.0),
        (true, Policy::Inline, looks + new * write, new, new),
        (ground.shares_later, Policy::DeNova, write + QUEUE_NS, new, 1.0),
        (packs, Policy::DeExt, looks + packing, shrunk, shrunk),
    ];
    let request = REQUEST_NS * requests;
    let estimate = |(_, policy, time_ns, stored, written)| {
        let time_ns = time_ns + request;
        let beside = TIME_WEIGHT * time_ns / (time_ns + write + request);
        let score = match prefer {
            Prefer::Balanced => time_ns * stored,
            Prefer::Speed => time_ns,
            Prefer::Space => stored + beside,
            Prefer::Wear => written + beside,
        };
        PolicyEstimate { policy, time_ns, stored, written, score }
    };
    let mut estimates: Vec<PolicyEstimate> = all.into_iter().filter(|of| of.0).map(estimate).collect();
    // The sort is stable, so of equal scores the simpler policy comes first.
    estimates.sort_by(|a, b| a.score.total_cmp(&b.score));
    estimates
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FAST: Costs = Costs { write_ns: 500, weak_ns: 150, strong_ns: 3_000, lookup_ns: 150, compare_ns: 250 };

    fn ground(costs: Costs) -> DeviceCosts {
        DeviceCosts { costs, run_write_ns: costs.write_ns, compress_ns: COMPRESS_NS, shares_later: false, packs: false }
    }

    fn workload(ratio: f64) -> Workload {
        Workload { ratio, compressible: 0.0, request_blocks: 1.0 }
    }

    fn best(ground: &DeviceCosts, workload: &Workload, prefer: Prefer) -> Policy {
        estimates(ground, workload, prefer)[0].policy
    }

    #[test]
    fn the_formulae_give_the_expected_estimates_at_the_papers_costs() {
        let ground = DeviceCosts { shares_later: true, packs: true, ..ground(Costs::PAPER) };
        let estimates = estimates(&ground, &Workload { compressible: 1.0, ..workload(0.5) }, Prefer::Speed);
        let of = |policy| *estimates.iter().find(|of| of.policy == policy).unwrap();
        assert_eq!((of(Policy::Off).time_ns, of(Policy::Off).stored), (9_700.0 + REQUEST_NS, 1.0));
        let inline = 900.0 + 4_850.0 + 200.0 + 9_700.0 / 12.0 + REQUEST_NS;
        assert!((of(Policy::Inline).time_ns - inline).abs() < 1e-6);
        assert_eq!(
            (of(Policy::DeNova).time_ns, of(Policy::DeNova).stored, of(Policy::DeNova).written),
            (9_750.0 + REQUEST_NS, 0.5, 1.0)
        );
        let packing = -9_700.0 / 4.0 + CUT_NS + CUT_REQUEST_NS + 9_700.0 / 3.0 + 2_000.0;
        assert!((of(Policy::DeExt).time_ns - inline - packing).abs() < 1e-6);
        assert_eq!(of(Policy::DeExt).stored, 0.25);
        assert_eq!(estimates[0].policy, Policy::Inline);
    }

    #[test]
    fn on_a_fast_device_prefer_speed_stores_everything_and_prefer_space_shares() {
        let fast = ground(FAST);
        for ratio in [0.0, 0.3, 0.5] {
            assert_eq!(best(&fast, &workload(ratio), Prefer::Speed), Policy::Off, "ratio {ratio}");
        }
        for ratio in [0.02, 0.3, 0.9] {
            assert_eq!(best(&fast, &workload(ratio), Prefer::Space), Policy::Inline, "ratio {ratio}");
        }
        assert_eq!(best(&fast, &workload(0.0), Prefer::Space), Policy::Inline, "what comes next may be a copy");
    }

    #[test]
    fn prefer_balanced_shares_if_a_percent_of_space_costs_less_than_a_percent_of_time() {
        let fast = ground(FAST);
        // The scores are equal where (300 + 500 (1-r) + 250 r + 42 + 400) (1-r) = 500 + 400.
        assert_eq!(best(&fast, &workload(0.20), Prefer::Balanced), Policy::Off);
        assert_eq!(best(&fast, &workload(0.28), Prefer::Balanced), Policy::Inline);
        let slow = ground(Costs::PAPER);
        assert_eq!(best(&slow, &workload(0.05), Prefer::Balanced), Policy::Off);
        assert_eq!(best(&slow, &workload(0.15), Prefer::Balanced), Policy::Inline);
    }

    #[test]
    fn auto_shares_later_if_a_look_up_takes_longer_than_a_write() {
        let pm = |costs| DeviceCosts { shares_later: true, ..ground(costs) };
        assert_eq!(best(&pm(FAST), &workload(0.3), Prefer::Balanced), Policy::DeNova);
        assert_eq!(best(&pm(Costs::PAPER), &workload(0.3), Prefer::Balanced), Policy::Inline);
        assert_eq!(best(&pm(FAST), &workload(0.3), Prefer::Wear), Policy::Inline, "what is shared later was written");
    }

    #[test]
    fn a_long_request_makes_writing_cheaper() {
        let long = DeviceCosts { run_write_ns: 2_000, ..ground(Costs::PAPER) };
        let of = |request_blocks| {
            let workload = Workload { request_blocks, ..workload(0.2) };
            estimates(&long, &workload, Prefer::Speed).into_iter().find(|of| of.policy == Policy::Off).unwrap().time_ns
        };
        assert_eq!((of(1.0), of(77.0)), (9_700.0 + REQUEST_NS, 2_100.0 + REQUEST_NS / 77.0));
        assert_eq!(best(&long, &workload(0.2), Prefer::Speed), Policy::Inline);
        let workload = Workload { request_blocks: 256.0, ..workload(0.2) };
        assert_eq!(best(&long, &workload, Prefer::Speed), Policy::Off);
    }

    #[test]
    fn compressible_data_is_packed_to_save_space() {
        let packs = DeviceCosts { packs: true, ..ground(FAST) };
        let compressible = Workload { compressible: 0.9, ..workload(0.3) };
        assert_eq!(best(&packs, &compressible, Prefer::Space), Policy::DeExt);
        assert_eq!(best(&packs, &workload(0.3), Prefer::Space), Policy::Inline);
        assert_eq!(best(&packs, &compressible, Prefer::Speed), Policy::Off);
    }

    proptest! {
        #[test]
        fn estimates_are_finite_and_stay_within_their_bounds(
            costs in (0..20_000u64, 0..5_000u64, 0..2_000u64, 0..5_000u64),
            ratio in 0.0..=1.0f64, compressible in 0.0..=1.0f64, blocks in 1.0..1024.0f64,
            prefer in 0..Prefer::ALL.len(),
        ) {
            let (write_ns, weak_ns, lookup_ns, compare_ns) = costs;
            let costs = Costs { write_ns, weak_ns, strong_ns: 1, lookup_ns, compare_ns };
            let ground = DeviceCosts { shares_later: true, packs: true, ..ground(costs) };
            let workload = Workload { ratio, compressible, request_blocks: blocks };
            let estimates = estimates(&ground, &workload, Prefer::ALL[prefer]);
            let stores_all = usize::from(Prefer::ALL[prefer] != Prefer::Space);
            prop_assert_eq!(estimates.len(), 2 + stores_all + usize::from(compressible >= COMPRESSIBLE_MIN));
            prop_assert!(estimates.is_sorted_by(|a, b| a.score <= b.score));
            prop_assert!(estimates.iter().all(|of| of.score.is_finite() && of.time_ns >= 0.0));
            prop_assert!(estimates.iter().all(|of| (0.0..=1.0).contains(&of.stored) && of.stored <= of.written));
        }
    }
}
