//! When is another policy so much better, and for so long, that it pays to change to it?
//!
//! The problem: estimates vary with the load and with what the samples happen to contain. A choice that follows every
//! estimate changes all the time, and data stored under one policy lacks the fingerprints that the other looks for.
//!
//! The idea: hysteresis. The chosen policy is kept until another is better by a margin in two sampling periods in a
//! row, or by four margins in one. The margin depends on the preference: times are noisy, the duplicate ratio is not.

use super::options::{PolicyEstimate, Prefer, Reason};
use crate::dedup::policy::Policy;

/// A gain of this many margins changes the policy at once.
const CLEAR: f64 = 4.0;

/// The chosen policy, and the policy that was better in the last period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    /// The policy of new data.
    pub policy: Policy,
    /// Why it was chosen.
    pub reason: Reason,
    /// The policy that was better by a margin at the end of the last period.
    rising: Option<Policy>,
}

impl Choice {
    /// Returns a choice for a directory whose estimates have not been compared yet.
    pub(super) fn new(policy: Policy, reason: Reason) -> Choice {
        Choice { policy, reason, rising: None }
    }

    /// Changes to `better` at once, because observations contradict the last comparison.
    pub(super) fn change(&mut self, better: Policy) {
        *self = Choice::new(better, Reason::Best);
    }

    /// Chooses `policy`, which is the best whatever data may come. Returns true if the policy changes.
    pub(super) fn settle(&mut self, policy: Policy) -> bool {
        let changes = policy != self.policy;
        *self = Choice::new(policy, Reason::AtAnyRatio);
        changes
    }

    /// Compares the estimates at the end of a period; `estimates` has the best first. Returns true if the policy
    /// changes. The first comparison needs no margin, because the initial policy was not chosen for a reason.
    pub(super) fn compare(&mut self, estimates: &[PolicyEstimate], prefer: Prefer) -> bool {
        let Some(best) = estimates.first() else { return false };
        let is_first = matches!(self.reason, Reason::Unknown);
        let gain = gain(self.policy, estimates);
        let margin = margin(prefer);
        let rises = best.policy != self.policy && gain >= margin;
        let changes = best.policy != self.policy
            && (is_first || gain >= CLEAR * margin || rises && self.rising == Some(best.policy));
        self.rising = (rises && !changes).then_some(best.policy);
        if changes {
            self.policy = best.policy;
        }
        self.reason = match best.policy == self.policy {
            true => Reason::Best,
            false => Reason::Kept { better: best.policy, gain },
        };
        changes
    }
}

/// Returns by which part of the score of `policy` the best one is better, 0 to 1; `estimates` has the best first.
/// Returns 1 if `policy` is no longer available, so that it is left at once.
pub(super) fn gain(policy: Policy, estimates: &[PolicyEstimate]) -> f64 {
    let (Some(best), Some(own)) = (estimates.first(), estimates.iter().find(|of| of.policy == policy)) else {
        return 1.0;
    };
    1.0 - best.score / own.score.max(f64::MIN_POSITIVE)
}

/// Returns by which part of its score another policy must be better to be worth a change.
pub(super) fn margin(prefer: Prefer) -> f64 {
    match prefer {
        Prefer::Balanced | Prefer::Speed => 0.04,
        // A percent of space would be too much to lose.
        Prefer::Space | Prefer::Wear => 0.001,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(off: f64, inline: f64) -> Vec<PolicyEstimate> {
        let of = |policy, score| PolicyEstimate { policy, time_ns: score, stored: 1.0, written: 1.0, score };
        let mut estimates = vec![of(Policy::Off, off), of(Policy::Inline, inline)];
        estimates.sort_by(|a, b| a.score.total_cmp(&b.score));
        estimates
    }

    #[test]
    fn auto_changes_the_policy_at_once_for_a_large_gain_and_later_for_a_small_one() {
        let mut choice = Choice::new(Policy::Inline, Reason::Unknown);
        assert!(choice.compare(&scores(100.0, 101.0), Prefer::Speed), "nothing speaks for what it began with");
        assert_eq!((choice.policy, choice.reason), (Policy::Off, Reason::Best));
        assert!(!choice.compare(&scores(100.0, 98.0), Prefer::Speed), "below the margin");
        assert!(!choice.compare(&scores(100.0, 98.0), Prefer::Speed), "however long");
        assert!(!choice.compare(&scores(100.0, 94.0), Prefer::Speed), "once");
        assert!(matches!(choice.reason, Reason::Kept { better: Policy::Inline, gain } if (gain - 0.06).abs() < 1e-9));
        assert!(choice.compare(&scores(100.0, 94.0), Prefer::Speed), "twice");
        assert!(choice.compare(&scores(70.0, 100.0), Prefer::Speed), "clearly");
        assert_eq!(choice.policy, Policy::Off);
    }

    #[test]
    fn a_gain_in_alternating_periods_does_not_change_the_policy() {
        let mut choice = Choice::new(Policy::Off, Reason::AsDevice);
        for _ in 0..100 {
            assert!(!choice.compare(&scores(100.0, 92.0), Prefer::Balanced));
            assert!(!choice.compare(&scores(100.0, 104.0), Prefer::Balanced));
        }
    }

    #[test]
    fn auto_leaves_a_policy_that_is_no_longer_available() {
        let mut choice = Choice::new(Policy::DeNova, Reason::Best);
        assert!(choice.compare(&scores(100.0, 99.0), Prefer::Speed));
        assert_eq!(choice.policy, Policy::Inline);
        assert!(!choice.compare(&[], Prefer::Speed));
    }
}
