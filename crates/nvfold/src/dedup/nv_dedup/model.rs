//! Which method is the cheapest for a workload? The cost model of NV-Dedup 4.4.1.
//!
//! The problem: at a low duplicate ratio, fingerprints cost more than the writes that they save; at a high one, less.
//! The threshold depends on the device, the functions and the CPU.
//!
//! The idea: the mean time of a chunk follows from five measured costs and the duplicate ratio r (equations 2, 3, 5):
//!
//! ```text
//! Non_Fin   c
//! w_s_Fin   w + lambda + (1-r) c + r s             in the worst case: every duplicate is checked by a strong one
//! Str_Fin   w + s + lambda + (1-r) c
//! w_b_Fin   w + lambda + (1-r) c + r v             ours
//! ```
//!
//! Equation 3 leaves out the w of Str_Fin, which computes both fingerprints (4.4.2 (2b)); it is counted here. With
//! `verify=bytes`, each duplicate of w_s_Fin and Str_Fin costs v more.
//!
//! `Paper` compares r with the paper's two thresholds, at which a method is as fast as storing everything. That does
//! not give the fastest method: at the paper's own costs and r = 70 %, it chooses Str_Fin with 9.2 us a chunk, where
//! w_s_Fin needs 8.2.
//!
//! `Auto` chooses the method with the least time. That is never Str_Fin, because w_s_Fin computes strong fingerprints
//! of duplicates only. `Auto` stores everything unless another method promises to save a twelfth, because the costs
//! above leave out two effects: fingerprints and entries evict other data from the CPU's caches, and the filler must
//! add what Non_Fin left out.

use super::options::{Costs, Method, MethodChoice, Thresholds};
use crate::dedup::policy::Verify;

/// `Auto` looks for duplicates if that takes at most this part of the time for storing everything.
const WORTH_IT: f64 = 0.92;

/// Returns the mean time of a chunk in nanoseconds at duplicate ratio `ratio` (0 to 1), by equations 2, 3 and 5.
pub(crate) fn service_ns(method: Method, costs: &Costs, verify: Verify, ratio: f64) -> f64 {
    // The paper's letters.
    let Costs { write_ns, weak_ns, strong_ns, lookup_ns, compare_ns } = *costs;
    let [c, w, s, lambda, v] = [write_ns, weak_ns, strong_ns, lookup_ns, compare_ns].map(|cost| cost as f64);
    let compare = if verify == Verify::Bytes { v } else { 0.0 };
    let stored = (1.0 - ratio) * c;
    match method {
        Method::NonFin => c,
        Method::WSFin => w + lambda + stored + ratio * (s + compare),
        Method::StrFin => w + s + lambda + stored + ratio * compare,
        Method::WBFin => w + lambda + stored + ratio * v,
    }
}

/// Returns the thresholds of equations 4 and 6, and the corresponding one for w_b_Fin.
pub(crate) fn thresholds(costs: &Costs) -> Thresholds {
    // A method without a saving has no threshold, nor has one that would need a ratio above 1.
    let border = |spent: u64, saved: u64| {
        let border = spent as f64 / saved as f64;
        (saved > 0 && border <= 1.0).then_some(border)
    };
    Thresholds {
        w_s: border(costs.weak_ns + costs.lookup_ns, costs.write_ns.saturating_sub(costs.strong_ns)),
        strong: border(costs.strong_ns + costs.lookup_ns, costs.write_ns),
        w_b: border(costs.weak_ns + costs.lookup_ns, costs.write_ns.saturating_sub(costs.compare_ns)),
    }
}

/// Returns the method for a workload with this duplicate ratio (0 to 1).
pub(crate) fn choose(choice: MethodChoice, costs: &Costs, verify: Verify, ratio: f64) -> Method {
    let thresholds = thresholds(costs);
    let exceeds = |border: Option<f64>| border.is_some_and(|border| ratio > border);
    match choice {
        MethodChoice::Fixed(method) => method,
        MethodChoice::Paper if exceeds(thresholds.strong) => Method::StrFin,
        MethodChoice::Paper if exceeds(thresholds.w_s) => Method::WSFin,
        MethodChoice::Paper => Method::NonFin,
        MethodChoice::Auto => {
            let time = |method: &Method| match method {
                Method::NonFin => WORTH_IT * costs.write_ns as f64,
                method => service_ns(*method, costs, verify, ratio),
            };
            let faster = |a: &Method, b: &Method| time(a).total_cmp(&time(b));
            // `min_by` returns the first of equal methods: Non_Fin.
            Method::ALL.into_iter().min_by(faster).expect("there are methods")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Method::*;
    use proptest::prelude::*;

    const RATIOS: [f64; 7] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7];

    fn chosen(choice: MethodChoice, verify: Verify) -> Vec<Method> {
        RATIOS.iter().map(|ratio| choose(choice, &Costs::PAPER, verify, *ratio)).collect()
    }

    #[test]
    fn the_papers_costs_give_the_papers_thresholds_and_methods() {
        let thresholds = thresholds(&Costs::PAPER);
        assert!((thresholds.w_s.unwrap() - 0.257).abs() < 0.0005, "{thresholds:?}");
        assert!((thresholds.strong.unwrap() - 0.649).abs() < 0.0005, "{thresholds:?}");
        assert!((thresholds.w_b.unwrap() - 900.0 / 9300.0).abs() < 1e-9, "{thresholds:?}");
        let methods = chosen(MethodChoice::Paper, Verify::Strong);
        assert_eq!(methods, [NonFin, NonFin, WSFin, WSFin, WSFin, WSFin, StrFin]);
    }

    #[test]
    fn the_equations_give_the_expected_times_at_the_papers_costs() {
        let at = |method, ratio| service_ns(method, &Costs::PAPER, Verify::Strong, ratio);
        assert_eq!(at(NonFin, 0.7), 9700.0);
        assert!((at(WSFin, 0.7) - (900.0 + 2910.0 + 4340.0)).abs() < 1e-6);
        assert!((at(StrFin, 0.7) - (7100.0 + 2910.0)).abs() < 1e-6);
        assert!((at(WBFin, 0.7) - (900.0 + 2910.0 + 280.0)).abs() < 1e-6);
        let compared = |method| service_ns(method, &Costs::PAPER, Verify::Bytes, 0.5) - at(method, 0.5);
        assert_eq!([NonFin, WSFin, StrFin, WBFin].map(compared), [0.0, 200.0, 200.0, 0.0]);
    }

    #[test]
    fn method_auto_shares_from_twenty_percent_duplicates_on_and_compares_bytes() {
        let expected = [NonFin, WBFin, WBFin, WBFin, WBFin, WBFin, WBFin];
        assert_eq!(chosen(MethodChoice::Auto, Verify::Bytes), expected);
        assert_eq!(chosen(MethodChoice::Auto, Verify::Strong), expected);
        let slow_compare = Costs { compare_ns: 8_000, ..Costs::PAPER };
        assert_eq!(choose(MethodChoice::Auto, &slow_compare, Verify::Strong, 0.7), WSFin);
    }

    #[test]
    fn a_method_that_costs_more_than_a_write_never_pays() {
        for s in [9_700, 9_701, 50_000] {
            let costs = Costs { strong_ns: s, ..Costs::PAPER };
            assert_eq!((thresholds(&costs).w_s, thresholds(&costs).strong), (None, None), "s {s}");
            assert_eq!(choose(MethodChoice::Paper, &costs, Verify::Strong, 1.0), NonFin);
        }
        let fast_device = Costs { write_ns: 500, ..Costs::PAPER };
        assert_eq!(thresholds(&fast_device), Thresholds::default());
        for ratio in [0.0, 0.5, 1.0] {
            assert_eq!(choose(MethodChoice::Auto, &fast_device, Verify::Bytes, ratio), NonFin);
        }
        let free = Costs { write_ns: 0, weak_ns: 0, strong_ns: 0, lookup_ns: 0, compare_ns: 0 };
        assert_eq!(choose(MethodChoice::Auto, &free, Verify::Bytes, 0.5), NonFin);
        assert_eq!(choose(MethodChoice::Paper, &free, Verify::Bytes, 0.5), NonFin);
    }

    fn costs() -> impl Strategy<Value = Costs> {
        (0..20_000u64, 0..5_000u64, 0..20_000u64, 0..2_000u64, 0..5_000u64).prop_map(
            |(write_ns, weak_ns, strong_ns, lookup_ns, compare_ns)| Costs {
                write_ns,
                weak_ns,
                strong_ns,
                lookup_ns,
                compare_ns,
            },
        )
    }

    fn verify() -> impl Strategy<Value = Verify> {
        prop_oneof![Just(Verify::Bytes), Just(Verify::Strong)]
    }

    proptest! {
        #[test]
        fn method_auto_takes_nearly_the_least_time(costs in costs(), verify in verify(), ratio in 0.0..=1.0f64) {
            let best = service_ns(choose(MethodChoice::Auto, &costs, verify, ratio), &costs, verify, ratio);
            for method in Method::ALL {
                prop_assert!(WORTH_IT * best <= service_ns(method, &costs, verify, ratio));
            }
        }

        #[test]
        fn a_higher_duplicate_ratio_never_leads_back_to_storing_everything(
            costs in costs(), verify in verify(), low in 0.0..=1.0f64, more in 0.0..=1.0f64,
        ) {
            let high = low + (1.0 - low) * more;
            for choice in [MethodChoice::Auto, MethodChoice::Paper] {
                let shares = |ratio| choose(choice, &costs, verify, ratio) != NonFin;
                prop_assert!(!shares(low) || shares(high), "{choice:?} at {low} and {high}");
            }
        }

        #[test]
        fn at_each_threshold_a_method_takes_as_long_as_storing_everything(costs in costs()) {
            let Thresholds { w_s, strong, w_b } = thresholds(&costs);
            let time = |method, ratio| service_ns(method, &costs, Verify::Strong, ratio);
            for (method, border, paper_leaves_out) in [(WSFin, w_s, 0), (StrFin, strong, costs.weak_ns), (WBFin, w_b, 0)] {
                if let Some(border) = border {
                    prop_assert!((time(method, border) - paper_leaves_out as f64 - costs.write_ns as f64).abs() < 1e-6);
                }
            }
        }
    }
}
