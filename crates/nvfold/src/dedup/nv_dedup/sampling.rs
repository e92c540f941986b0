//! What is the workload's duplicate ratio now? Periodical sampling, NV-Dedup 4.4.2.
//!
//! The problem: the method depends on the ratio, the ratio changes, and Non_Fin does not look for duplicates.
//!
//! The idea: *periodical sampling*. A period is a number of pieces. The policy counts the pieces that it looks up and
//! those that it finds; at the end of the period their quotient chooses the next method. While Non_Fin stores
//! everything:
//!
//! - `Paper` looks all pieces up in every other period. So it takes up to two periods to notice a change, and
//!   watching costs half of what w_s_Fin does.
//! - `Auto` always looks up the pieces of one *content* in 32. Two words of the piece decide whether it is watched,
//!   so all copies of a content are watched or none, and the ratio among the watched pieces is that of the workload.
//!   Watching costs a 32nd, and one period suffices. Where contents do not differ in those words, too few pieces are
//!   watched to tell the ratio; then the next period looks all pieces up, as with `Paper`. A ratio among watched pieces
//!   counts two standard deviations lower, so that chance alone hardly ever ends a method. After a change to a method
//!   that looks pieces up, the filler adds the fingerprints that are missing. Until it is done, such a method stays, for
//!   what is not found yet hides duplicates.
//!
//! Each thread has its own counters, which are summed at the end of a period; threads add to the length of the period
//! in batches. So a period is longer than its nominal length by up to one batch for each thread, and pieces that
//! other threads are placing at its end count in the next one. That does not distort the ratio.

use super::model;
use super::options::{Costs, Method, MethodChoice, NvDedupOptions, NvDedupStats};
use crate::dedup::policy::Verify;
use nvfold_sync::Padded;
use nvfold_sync::atomic::{AtomicU8, AtomicU64, Ordering};
use nvfold_sync::{Mutex, thread_number};

/// In Non_Fin, one content in this many is watched. The 1,562 watched pieces of a period give the ratio to about a
/// percent.
const WATCHED_OF: u64 = 1 << WATCHED_BITS;
const WATCHED_BITS: u32 = 5;
/// The fewest watched pieces that tell the ratio.
const WATCHED_MIN: u64 = 16;
/// So many periods in a row keep their method while fingerprints are filled in.
const HELD_MOST: u32 = 32;
/// Threads beyond this many share counters.
const STRIPES: usize = 16;
const BATCH_MAX: u64 = 64;

/// True if Non_Fin watches pieces of this content. Blocks of zeros, where a policy is offered any, are never
/// watched: one content that is a large part of a workload must not stand for all the others.
pub(crate) fn is_watched(piece: &[u8]) -> bool {
    is_one_of(piece, WATCHED_BITS)
}

/// True for the pieces of one content in `1 << bits`, 1 to 63 bits. A content that is selected with more bits is also
/// selected with fewer.
pub(crate) fn is_one_of(piece: &[u8], bits: u32) -> bool {
    let word = |at: usize| {
        let bytes = piece.get(at..at + 8).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    // The search for zeros reads the first line, too. Many contents may share a header, and many others may be
    // empty in the middle.
    let both = word(32) ^ word(2088).rotate_left(23);
    // The top bits of a product depend on all others.
    let mixed = (both ^ both >> 32).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ mixed >> 29).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - bits) == (1 << bits) - 1
}

/// Counters of one thread since mount.
#[derive(Default)]
struct PieceCounters {
    pieces: AtomicU64,
    looked_for: AtomicU64,
    found: AtomicU64,
}

/// Sums over all threads.
#[derive(Clone, Copy, Default)]
struct Counts {
    pieces: u64,
    looked_for: u64,
    found: u64,
}

/// What a period has told about the duplicate ratio.
#[derive(Clone, Copy)]
struct Ratio {
    found: f64,
    /// What the real one exceeds almost surely, if the pieces are a sample: two standard deviations less. The same as
    /// `found` if all pieces were looked up.
    surely: f64,
}

impl Counts {
    /// Returns the duplicate ratio. `is_sample` says whether only some of the pieces were looked up.
    fn ratio(&self, is_sample: bool) -> Ratio {
        let pieces = self.looked_for as f64;
        let found = (self.found as f64 / pieces).min(1.0);
        let deviation = (found * (1.0 - found) / pieces).sqrt();
        Ratio { found, surely: if is_sample { (found - 2.0 * deviation).max(0.0) } else { found } }
    }
}

/// The current method, and the state that chooses the next one.
pub(crate) struct Sampling {
    /// Number of the method, and the flag [`WATCHES`].
    mode: AtomicU8,
    period: u64,
    batch: u64,
    stripes: Box<[Padded<PieceCounters>]>,
    /// Pieces in the current period, in batches, and the length of the period in pieces.
    seen: Padded<AtomicU64>,
    length: AtomicU64,
    state: Mutex<MethodState>,
}

/// Flag in `mode`: contents are watched although everything is stored.
const WATCHES: u8 = 0x80;

struct MethodState {
    choice: MethodChoice,
    costs: Costs,
    measured: bool,
    /// All counters when the current period began.
    before: Counts,
    /// How many periods in a row have kept their method because fingerprints were being filled in.
    held: u32,
    ratio: Option<Ratio>,
    periods: u64,
    switches: u64,
    pieces: [u64; Method::ALL.len()],
    verify: Verify,
    hashes: bool,
}

impl Sampling {
    /// Creates the state and begins the first period.
    pub(crate) fn new(options: &NvDedupOptions) -> Sampling {
        let period = options.period.max(1);
        let state = MethodState {
            choice: options.method,
            costs: options.costs.unwrap_or(Costs::PAPER),
            measured: false,
            before: Counts::default(),
            held: 0,
            ratio: None,
            periods: 0,
            switches: 0,
            pieces: [0; Method::ALL.len()],
            verify: options.verify,
            hashes: options.strong.is_some(),
        };
        let sampling = Sampling {
            mode: AtomicU8::new(0),
            period,
            batch: (period / 16).clamp(1, BATCH_MAX),
            stripes: (0..STRIPES).map(|_| Padded::default()).collect(),
            seen: Padded::default(),
            length: AtomicU64::new(0),
            state: Mutex::new(state),
        };
        sampling.begin(&sampling.state.lock(), false);
        sampling
    }

    /// Returns the method of the current period, and whether it watches contents although it stores everything.
    #[inline]
    pub(crate) fn mode(&self) -> (Method, bool) {
        let mode = self.mode.load(Ordering::Relaxed);
        (Method::ALL[usize::from(mode) % Method::ALL.len()], mode & WATCHES != 0)
    }

    /// Counts a piece, which is looked up or not.
    #[inline]
    pub(crate) fn count(&self, looked_for: bool) {
        let stripe = self.stripe();
        if looked_for {
            stripe.looked_for.fetch_add(1, Ordering::Relaxed);
        }
        let pieces = stripe.pieces.fetch_add(1, Ordering::Relaxed) + 1;
        if pieces.is_multiple_of(self.batch) {
            self.seen.fetch_add(self.batch, Ordering::Relaxed);
        }
    }

    /// Counts a duplicate among the pieces that were looked up.
    #[inline]
    pub(crate) fn found(&self) {
        self.stripe().found.fetch_add(1, Ordering::Relaxed);
    }

    /// True if the period has had its pieces, so that [`Sampling::end_period`] is due.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.seen.load(Ordering::Relaxed) >= self.length.load(Ordering::Relaxed)
    }

    /// Chooses the method of the next period, if this one is over and no other thread is doing so. `measure` returns
    /// the current costs, if they can be measured; `fills` whether fingerprints are missing that a background thread adds
    /// while new data is looked up.
    pub(crate) fn end_period(&self, measure: impl FnOnce() -> Option<Costs>, fills: impl FnOnce() -> bool) {
        let Some(mut state) = self.state.try_lock() else { return };
        if !self.is_over() {
            return;
        }
        if let Some(measured) = measure() {
            state.take_costs(measured);
        }
        let (method, watched) = self.mode();
        let period = self.close(&mut state);
        state.periods += 1;
        // With too few of them, the next period looks all pieces up.
        let known = period.looked_for >= (period.pieces / WATCHED_OF / 4).max(WATCHED_MIN).min(period.pieces).max(1);
        // Fingerprints that are still missing hide duplicates, so such a period tells too low a ratio. The ratio that led
        // to this method counts.
        let pays = state.choice == MethodChoice::Auto && state.ratio.is_some() && state.next(true) != Method::NonFin;
        let hides = pays && method != Method::NonFin && state.held < HELD_MOST && fills();
        state.held = if hides { state.held + 1 } else { 0 };
        if hides {
            return self.seen.store(0, Ordering::Relaxed);
        }
        if known {
            state.ratio = Some(period.ratio(watched));
        }
        self.switch(&mut state, known);
    }

    /// Takes a new measurement of the costs into account.
    pub(crate) fn take_costs(&self, measured: Costs) {
        self.state.lock().take_costs(measured);
    }

    /// Returns what chooses the method.
    pub(crate) fn choice(&self) -> MethodChoice {
        self.state.lock().choice
    }

    /// Changes what chooses the method from now on, and begins a new period.
    pub(crate) fn set_choice(&self, choice: MethodChoice) {
        let mut state = self.state.lock();
        self.close(&mut state);
        state.choice = choice;
        let known = state.ratio.is_some();
        self.switch(&mut state, known);
    }

    /// Returns the number of pieces since mount, and of the duplicates among them.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let counts = self.counts();
        (counts.pieces, counts.found)
    }

    /// Returns the statistics of the policy.
    pub(crate) fn stats(&self) -> NvDedupStats {
        let state = self.state.lock();
        let (method, _) = self.mode();
        let mut pieces = state.pieces;
        pieces[method as usize] += self.counts().pieces.saturating_sub(state.before.pieces);
        NvDedupStats {
            choice: state.choice,
            method,
            ratio: state.ratio.map(|ratio| ratio.found),
            costs: state.costs,
            measured: state.measured,
            thresholds: model::thresholds(&state.model_costs()),
            periods: state.periods,
            switches: state.switches,
            pieces,
        }
    }

    /// Ends the counting of a period and returns what it counted.
    fn close(&self, state: &mut MethodState) -> Counts {
        let now = self.counts();
        let before = std::mem::replace(&mut state.before, now);
        let pieces = now.pieces - before.pieces;
        state.pieces[self.mode().0 as usize] += pieces;
        Counts { pieces, looked_for: now.looked_for - before.looked_for, found: now.found - before.found }
    }

    fn switch(&self, state: &mut MethodState, known: bool) {
        let (before, _) = self.mode();
        let method = self.begin(state, known);
        state.switches += u64::from(method != before);
    }

    /// Begins a period; `known` says whether the last one told the ratio. Returns the method.
    fn begin(&self, state: &MethodState, known: bool) -> Method {
        let method = state.next(known);
        let auto = state.choice == MethodChoice::Auto;
        let watches = auto && method == Method::NonFin;
        self.mode.store(method as u8 | if watches { WATCHES } else { 0 }, Ordering::Relaxed);
        // Before anything is known, look up as many pieces as a period of Non_Fin watches.
        let length = if auto && state.ratio.is_none() { self.period / WATCHED_OF } else { self.period };
        self.seen.store(0, Ordering::Relaxed);
        self.length.store(length.max(1), Ordering::Relaxed);
        method
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for stripe in &self.stripes {
            sum.pieces += stripe.pieces.load(Ordering::Relaxed);
            sum.looked_for += stripe.looked_for.load(Ordering::Relaxed);
            sum.found += stripe.found.load(Ordering::Relaxed);
        }
        sum
    }

    fn stripe(&self) -> &PieceCounters {
        &self.stripes[thread_number() % STRIPES]
    }
}

impl MethodState {
    /// Returns the method of a new period; `known` says whether the last one told the ratio.
    fn next(&self, known: bool) -> Method {
        let method = match (self.choice, self.ratio.filter(|_| known)) {
            (MethodChoice::Fixed(method), _) => method,
            (choice, Some(Ratio { found, surely })) => {
                let ratio = if choice == MethodChoice::Auto { surely } else { found };
                model::choose(choice, &self.model_costs(), self.verify, ratio)
            }
            (MethodChoice::Paper, None) => Method::WSFin,
            (MethodChoice::Auto, None) => Method::WBFin,
        };
        match method {
            Method::WSFin | Method::StrFin if !self.hashes => Method::WBFin,
            method => method,
        }
    }

    /// Returns the costs for the model. Where bytes are compared in place of strong fingerprints, s is the cost of a
    /// compare.
    fn model_costs(&self) -> Costs {
        if self.hashes { self.costs } else { Costs { strong_ns: self.costs.compare_ns, ..self.costs } }
    }

    /// Takes a new measurement of the costs into account.
    fn take_costs(&mut self, new: Costs) {
        self.costs = if self.measured { self.costs.smoothed(&new) } else { new };
        self.measured = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: u64 = 50_000;

    fn sampling(method: MethodChoice) -> Sampling {
        let options = NvDedupOptions { method, verify: Verify::Strong, ..NvDedupOptions::default() };
        Sampling::new(&options)
    }

    /// Counts pieces until the period is over; `ratio` of those that are looked up are found. Non_Fin looks some of
    /// them up if it watches. Returns the method of the period.
    fn one_period(sampling: &Sampling, ratio: f64) -> Method {
        period_with(sampling, ratio, || false)
    }

    /// The same; `fills` says whether fingerprints are missing.
    fn period_with(sampling: &Sampling, ratio: f64, fills: impl FnOnce() -> bool) -> Method {
        let (method, watches) = sampling.mode();
        let (mut looked_for, mut found) = (0u64, 0u64);
        for piece in 0u64.. {
            if sampling.is_over() {
                break;
            }
            let looks = if method == Method::NonFin { watches && piece % WATCHED_OF == 5 } else { true };
            sampling.count(looks);
            looked_for += u64::from(looks);
            if looks && (found as f64) < ratio * looked_for as f64 {
                sampling.found();
                found += 1;
            }
        }
        sampling.end_period(|| None, fills);
        method
    }

    /// A first period, and one of Non_Fin in which no content had the words that select it.
    fn period_without_watched(sampling: &Sampling) {
        one_period(sampling, 0.0);
        assert_eq!(sampling.mode(), (Method::NonFin, true));
        while !sampling.is_over() {
            sampling.count(false);
        }
        sampling.end_period(|| None, || false);
        assert_eq!(sampling.mode().0, Method::WBFin);
    }

    fn periods(sampling: &Sampling, ratios: &[f64]) -> Vec<Method> {
        ratios.iter().map(|ratio| one_period(sampling, *ratio)).collect()
    }

    #[test]
    fn method_paper_alternates_at_low_ratios_and_else_follows_the_thresholds() {
        use Method::*;
        let sampling = sampling(MethodChoice::Paper);
        let methods = periods(&sampling, &[0.1, 0.1, 0.1, 0.1, 0.3, 0.3, 0.7, 0.7, 0.5, 0.1]);
        assert_eq!(methods, [WSFin, NonFin, WSFin, NonFin, WSFin, WSFin, WSFin, StrFin, StrFin, WSFin]);
        assert_eq!(sampling.mode(), (NonFin, false));
        let stats = sampling.stats();
        assert_eq!(stats.pieces.iter().sum::<u64>(), 10 * PERIOD.next_multiple_of(BATCH_MAX));
        assert_eq!((stats.periods, stats.switches), (10, 7));
        assert!((stats.ratio.unwrap() - 0.1).abs() < 0.001);
    }

    #[test]
    fn method_auto_notices_duplicates_within_one_period_while_it_stores_everything() {
        use Method::*;
        let sampling = sampling(MethodChoice::Auto);
        let methods = periods(&sampling, &[0.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0]);
        assert_eq!(methods, [WBFin, NonFin, NonFin, NonFin, WBFin, WBFin, NonFin]);
        assert_eq!(sampling.mode(), (NonFin, true));
        let stats = sampling.stats();
        let first = (PERIOD / WATCHED_OF).next_multiple_of(BATCH_MAX);
        assert_eq!(stats.pieces.iter().sum::<u64>(), first + 6 * PERIOD.next_multiple_of(BATCH_MAX), "{stats:?}");
    }

    #[test]
    fn a_period_with_too_few_watched_pieces_is_followed_by_a_full_one() {
        let sampling = sampling(MethodChoice::Auto);
        period_without_watched(&sampling);
        assert_eq!(sampling.stats().ratio, Some(0.0), "nothing new is known");
        one_period(&sampling, 0.9);
        assert_eq!((sampling.mode().0, sampling.stats().periods), (Method::WBFin, 3));
    }

    #[test]
    fn while_fingerprints_are_missing_the_method_is_kept_for_a_while() {
        let sampling = Sampling::new(&NvDedupOptions { period: 500, ..NvDedupOptions::default() });
        let fills = || true;
        assert_eq!(period_with(&sampling, 0.5, fills), Method::WBFin);
        let known = sampling.stats().ratio;
        for _ in 0..HELD_MOST {
            assert_eq!(period_with(&sampling, 0.0, fills), Method::WBFin);
            assert_eq!(sampling.stats().ratio, known, "duplicates of what is not found yet are hidden");
        }
        assert_eq!(period_with(&sampling, 0.0, fills), Method::WBFin);
        assert_eq!((sampling.mode().0, sampling.stats().ratio), (Method::NonFin, Some(0.0)), "it takes too long");
        period_with(&sampling, 0.5, fills);
        assert_eq!(sampling.mode().0, Method::WBFin, "nothing is filled in while everything is stored");
    }

    #[test]
    fn a_period_that_only_finds_out_the_ratio_is_not_kept() {
        let sampling = sampling(MethodChoice::Auto);
        period_without_watched(&sampling);
        assert_eq!(period_with(&sampling, 0.0, || true), Method::WBFin);
        assert_eq!(sampling.mode().0, Method::NonFin);
    }

    /// By the model w_b_Fin pays from 17 % on; 20 % of 16 pieces may be chance.
    #[test]
    fn a_ratio_of_few_watched_pieces_must_be_clear() {
        for (looked_for, next) in [(20, Method::NonFin), (2000, Method::WBFin)] {
            let sampling = sampling(MethodChoice::Auto);
            one_period(&sampling, 0.0);
            (0..looked_for).for_each(|_| sampling.count(true));
            (0..looked_for / 5).for_each(|_| sampling.found());
            let stored = if looked_for == 20 { 500 } else { PERIOD };
            sampling.length.store(stored, Ordering::Relaxed);
            while !sampling.is_over() {
                sampling.count(false);
            }
            sampling.end_period(|| None, || false);
            assert_eq!((sampling.mode().0, sampling.stats().ratio), (next, Some(0.2)), "{looked_for}");
        }
    }

    #[test]
    fn a_fixed_method_is_kept_and_no_content_is_watched() {
        for method in Method::ALL {
            let sampling = sampling(MethodChoice::Fixed(method));
            assert_eq!(periods(&sampling, &[0.0, 0.9, 0.3]), [method; 3]);
            assert_eq!((sampling.mode(), sampling.stats().switches), ((method, false), 0));
        }
    }

    #[test]
    fn without_a_strong_function_hashing_methods_compare_bytes() {
        for choice in [MethodChoice::Paper, MethodChoice::Fixed(Method::WSFin), MethodChoice::Fixed(Method::StrFin)] {
            let options = NvDedupOptions { method: choice, strong: None, ..NvDedupOptions::default() };
            let sampling = Sampling::new(&options);
            assert_eq!(periods(&sampling, &[0.5, 0.9]), [Method::WBFin; 2], "{choice:?}");
            let thresholds = sampling.stats().thresholds;
            assert_eq!(thresholds.w_s, thresholds.w_b);
        }
    }

    #[test]
    fn the_chosen_method_can_change_at_any_time() {
        let sampling = sampling(MethodChoice::Auto);
        (0..1000).for_each(|_| sampling.count(true));
        sampling.set_choice(MethodChoice::Fixed(Method::StrFin));
        (0..10).for_each(|_| sampling.count(true));
        sampling.set_choice(MethodChoice::Auto);
        assert_eq!(sampling.mode().0, Method::WBFin, "no period has ended: nothing is known");
        let stats = sampling.stats();
        assert_eq!((stats.pieces, stats.switches, stats.periods), ([0, 0, 10, 1000], 2, 0));
        one_period(&sampling, 0.0);
        assert_eq!(sampling.mode(), (Method::NonFin, true));
        sampling.set_choice(MethodChoice::Paper);
        assert_eq!(sampling.mode(), (Method::NonFin, false), "the ratio is known");
    }

    #[test]
    fn measured_costs_replace_the_initial_ones_and_are_smoothed_afterwards() {
        let sampling = sampling(MethodChoice::Auto);
        assert_eq!((sampling.stats().costs, sampling.stats().measured), (Costs::PAPER, false));
        let costs = |write_ns| Costs { write_ns, weak_ns: 200, strong_ns: 3000, lookup_ns: 150, compare_ns: 300 };
        sampling.take_costs(costs(1000));
        assert_eq!((sampling.stats().costs, sampling.stats().measured), (costs(1000), true));
        sampling.take_costs(costs(2000));
        assert_eq!(sampling.stats().costs, costs(1250));
        (0..60).for_each(|_| sampling.take_costs(costs(2000)));
        assert_eq!(sampling.stats().costs, costs(2000), "a lasting change is taken in whole");
    }

    #[test]
    fn one_content_in_32_is_watched_and_zeros_are_not() {
        let mut state = 7u64;
        let mut watched = 0;
        for _ in 0..16_000 {
            let mut piece = [0; 4096];
            for word in piece.as_chunks_mut::<8>().0 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *word = (state >> 20).to_le_bytes();
            }
            watched += u64::from(is_watched(&piece));
        }
        assert!((430..570).contains(&watched), "{watched} of 16000");
        assert!(!is_watched(&[0; 4096]));
    }

    proptest! {
        #[test]
        fn sampling_counts_every_piece_and_its_ratio_is_between_0_and_1(
            period in 1..3000u64,
            choice in 0..MethodChoice::ALL.len(),
            script in prop::collection::vec((0.0..=1.0f64, 0..MethodChoice::ALL.len()), 1..8),
        ) {
            let options = NvDedupOptions { period, method: MethodChoice::ALL[choice], ..NvDedupOptions::default() };
            let sampling = Sampling::new(&options);
            let mut counted = 0;
            for (ratio, choice) in script {
                let before = sampling.stats();
                one_period(&sampling, ratio);
                let after = sampling.stats();
                let came = after.pieces.iter().sum::<u64>() - before.pieces.iter().sum::<u64>();
                prop_assert!((1..=period.next_multiple_of(sampling.batch)).contains(&came), "{came} pieces");
                prop_assert_eq!(after.periods, before.periods + 1);
                prop_assert!(after.ratio.is_none_or(|ratio| (0.0..=1.0).contains(&ratio)));
                counted += came;
                sampling.set_choice(MethodChoice::ALL[choice]);
            }
            prop_assert_eq!(sampling.stats().pieces.iter().sum::<u64>(), counted);
        }

        #[test]
        fn all_copies_of_a_content_are_watched_or_none(content in prop::collection::vec(any::<u8>(), 4096), shift in 0..64usize) {
            let moved = [vec![0; shift], content.clone()].concat();
            prop_assert_eq!(is_watched(&moved[shift..]), is_watched(&content));
        }
    }
}
