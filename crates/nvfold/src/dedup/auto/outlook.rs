//! Which data must be looked at to doubt a choice, and when has enough been seen to refute it?
//!
//! The problem: looking at data costs time, most of all where the fastest policy looks at none. But if a period keeps
//! a choice that the first blocks of new data have refuted, it loses what the better policy would have gained.
//!
//! The idea: ask the model what it would choose for other data. Where it chooses the same policy for all data,
//! nothing needs to be looked at ([`Outlook::is_best_at_any_ratio`]). Elsewhere the recent samples give a range that
//! contains the true ratio. When another policy is better by the margin everywhere in that range, the choice is
//! refuted ([`Outlook::better_than`]).

use super::choice::{gain, margin};
use super::model::{DeviceCosts, Workload, estimates};
use super::options::{PolicyEstimate, Prefer};
use crate::dedup::policy::Policy;

/// Duplicate ratios at which the model is asked, in place of all ratios.
const RATIOS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];
/// Request lengths in blocks at which the model is asked, in place of all lengths.
const REQUEST_BLOCKS: [f64; 2] = [1.0, 1024.0];
/// Data counts as incompressible when none of this many samples is compressible.
const NONE_OF: u64 = 16;

/// The model's predictions for one device and one preference.
pub(super) struct Outlook {
    /// What the model knows of the device.
    pub(super) ground: DeviceCosts,
    /// What the policy optimises for.
    pub(super) prefer: Prefer,
}

/// The confidence range of a ratio, as far as some samples tell; its bounds are 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    least: f64,
    most: f64,
}

impl Range {
    /// Returns the range that contains only `part`.
    pub(super) fn exactly(part: f64) -> Range {
        Range { least: part, most: part }
    }

    /// Returns the range for `hits` of `samples`: two standard deviations to both sides, so 19 of 20 ranges contain
    /// the true ratio. `None` without samples.
    pub(super) fn of(hits: u64, samples: u64) -> Option<Range> {
        if samples == 0 {
            return None;
        }
        let (samples, part) = (samples as f64, (hits as f64 / samples as f64).min(1.0));
        // Without the second term a few samples that agree would count as certain.
        let deviation = (part * (1.0 - part) / samples + 1.0 / (samples * samples)).sqrt();
        let [least, most] = [-2.0, 2.0].map(|times| (part + times * deviation).clamp(0.0, 1.0));
        Some(Range { least, most })
    }

    /// Returns the same range, except that no hit in [`NONE_OF`] samples or more counts as exactly 0.
    pub(super) fn of_checks(hits: u64, samples: u64) -> Option<Range> {
        match hits == 0 && samples >= NONE_OF {
            true => Some(Range::exactly(0.0)),
            false => Range::of(hits, samples),
        }
    }

    /// True if the true ratio may be `part`.
    pub(super) fn contains(&self, part: f64) -> bool {
        (self.least..=self.most).contains(&part)
    }
}

impl Outlook {
    /// Returns what each policy would do with a workload, the best one first.
    pub(super) fn estimates(&self, workload: &Workload) -> Vec<PolicyEstimate> {
        estimates(&self.ground, workload, self.prefer)
    }

    /// Returns a policy that the model would keep whatever data comes, if there is one. Prefers `own`.
    pub(super) fn best_at_any_ratio(&self, own: Policy) -> Option<Policy> {
        let incompressible = Workload { ratio: 0.0, compressible: 0.0, request_blocks: 1.0 };
        let other = self.estimates(&incompressible).first().map(|of| of.policy);
        [Some(own), other].into_iter().flatten().find(|policy| self.is_best_at_any_ratio(*policy))
    }

    fn is_best_at_any_ratio(&self, policy: Policy) -> bool {
        let stands = |ratio: f64, compressible: f64, request_blocks: f64| {
            let estimates = self.estimates(&Workload { ratio, compressible, request_blocks });
            gain(policy, &estimates) < margin(self.prefer)
        };
        RATIOS.into_iter().all(|ratio| {
            [0.0, 1.0].into_iter().all(|part| REQUEST_BLOCKS.into_iter().all(|blocks| stands(ratio, part, blocks)))
        })
    }

    /// True if compressible data would be a reason to pack it, or incompressible data a reason to stop packing.
    pub(super) fn asks_for_compressibility(&self, own: Policy, request_blocks: f64) -> bool {
        let packs = |ratio: f64| {
            let workload = Workload { ratio, compressible: 1.0, request_blocks };
            self.estimates(&workload).first().is_some_and(|best| best.policy == Policy::DeExt)
        };
        self.ground.packs && (own == Policy::DeExt || RATIOS.into_iter().any(packs))
    }

    /// Returns the policy that is better than `own` by the margin everywhere in both ranges, if one policy is.
    pub(super) fn better_than(
        &self,
        own: Policy,
        ratio: Range,
        compressible: Range,
        request_blocks: f64,
    ) -> Option<Policy> {
        let better = |ratio: f64, compressible: f64| {
            let estimates = self.estimates(&Workload { ratio, compressible, request_blocks });
            let is_better = gain(own, &estimates) >= margin(self.prefer);
            estimates.first().map(|best| best.policy).filter(|best| is_better && *best != own)
        };
        let first = better(ratio.least, compressible.least)?;
        let others =
            [(ratio.least, compressible.most), (ratio.most, compressible.least), (ratio.most, compressible.most)];
        others.into_iter().all(|(ratio, part)| better(ratio, part) == Some(first)).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::COMPRESS_NS;
    use super::*;
    use crate::dedup::nv_dedup::options::Costs;

    fn outlook(write_ns: u64, prefer: Prefer, packs: bool) -> Outlook {
        let costs = Costs { write_ns, weak_ns: 150, strong_ns: 3_000, lookup_ns: 150, compare_ns: 250 };
        let ground =
            DeviceCosts { costs, run_write_ns: write_ns, compress_ns: COMPRESS_NS, shares_later: false, packs };
        Outlook { ground, prefer }
    }

    #[test]
    fn on_a_fast_device_no_data_is_watched() {
        let fast = outlook(400, Prefer::Speed, true);
        assert_eq!(fast.best_at_any_ratio(Policy::Inline), Some(Policy::Off));
        assert!(!fast.asks_for_compressibility(Policy::Off, 1.0));
        assert_eq!(outlook(400, Prefer::Balanced, false).best_at_any_ratio(Policy::Off), None);
        assert_eq!(outlook(9_000, Prefer::Speed, false).best_at_any_ratio(Policy::Off), None);
        assert_eq!(outlook(400, Prefer::Space, false).best_at_any_ratio(Policy::Off), Some(Policy::Inline));
    }

    #[test]
    fn compressibility_is_checked_only_if_packing_may_win() {
        for (write_ns, prefer, packs, expected) in [
            (400, Prefer::Speed, true, false),
            (600_000, Prefer::Speed, true, true),
            (400, Prefer::Space, true, true),
            (400, Prefer::Space, false, false),
        ] {
            let outlook = outlook(write_ns, prefer, packs);
            assert_eq!(outlook.asks_for_compressibility(Policy::Off, 32.0), expected, "{write_ns} {prefer:?} {packs}");
        }
    }

    #[test]
    fn samples_give_a_confidence_range() {
        assert_eq!(Range::of(0, 0), None);
        assert_eq!((Range::of_checks(0, 16), Range::of_checks(0, 15)), (Some(Range::exactly(0.0)), Range::of(0, 15)));
        assert!(Range::of(0, 64).unwrap().contains(0.03) && !Range::of(0, 64).unwrap().contains(0.04));
        let half = Range::of(8, 16).unwrap();
        assert!(half.contains(0.5) && half.contains(0.3) && !half.contains(0.2) && !half.contains(0.8));
        let all_of_four = Range::of(4, 4).unwrap();
        assert!(all_of_four.contains(1.0) && all_of_four.contains(0.5) && !all_of_four.contains(0.4));
    }

    #[test]
    fn a_choice_is_refuted_only_if_the_confidence_range_excludes_it() {
        let slow = outlook(9_000, Prefer::Speed, false);
        let unknown = Range::exactly(0.0);
        let better = |own, hits, samples| slow.better_than(own, Range::of(hits, samples).unwrap(), unknown, 1.0);
        assert_eq!(better(Policy::Off, 8, 16), Some(Policy::Inline));
        assert_eq!(better(Policy::Off, 1, 16), None, "it may be none");
        assert_eq!(better(Policy::Off, 0, 16), None);
        assert_eq!(better(Policy::Inline, 8, 16), None, "it is the best");
        assert_eq!(better(Policy::Inline, 0, 128), Some(Policy::Off));
    }

    #[test]
    fn four_compressible_checks_start_packing_and_sixteen_incompressible_ones_stop_it() {
        let space = outlook(1_000, Prefer::Space, true);
        let better = |own, hits, checks| {
            space.better_than(own, Range::exactly(0.0), Range::of_checks(hits, checks).unwrap(), 32.0)
        };
        assert_eq!(better(Policy::Inline, 4, 4), Some(Policy::DeExt));
        assert_eq!(better(Policy::Inline, 1, 4), None);
        assert_eq!(better(Policy::DeExt, 0, 4), None, "some of it may save space still");
        assert_eq!(better(Policy::DeExt, 0, 16), Some(Policy::Inline));
    }
}
