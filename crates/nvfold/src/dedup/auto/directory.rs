//! Sampling periods of a directory or of the whole device: how observations become a ratio, estimates and a choice.
//!
//! A period is a number of blocks. The first one is short and looks all blocks up, because nothing is known. So is a
//! period after one that saw too few watched pieces to tell the ratio. A period ends early when the observations
//! refute the choice. Where no observation could refute it, nothing is looked at ([`super::outlook`]).

use super::choice::Choice;
use super::common::{Common, PARTS};
use super::model::{self, Workload};
use super::options::{Chosen, PolicyEstimate, Reason};
use super::outlook::{Outlook, Range};
use super::seen::{Figures, Seen};
use crate::dedup::PolicyDevice;
use crate::dedup::policy::Policy;
use crate::media::BLOCK_BYTES;
use nvfold_sync::Mutex;
use nvfold_sync::Padded;
use nvfold_sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::Arc;

/// A short period is this part of a whole one, so it looks up about as many blocks as watching does in a whole one.
const SHORT: u64 = 64;
/// The fewest blocks that tell a duplicate ratio.
const BLOCKS_MIN: u64 = 12;
/// The fewest checks that tell the compressibility.
const CHECKS_MIN: u64 = 4;
/// Observations inside a period are forgotten once there are this many times the fewest that tell something. So new
/// data soon stands out.
const WINDOW: u64 = 4;

/// Bits of [`ObservedDirectory::attention`]: duplicates matter for the choice; compressibility does. The bits above them hold
/// the number of bits that select the watched contents.
const WATCHES: u8 = 1;
const CHECKS: u8 = 2;
const BITS_SHIFT: u32 = 4;
/// One content in 32 is watched, or as many as one in 4 where all look-ups together take at most a 256th of the time.
const WATCHED_BITS_MIN: u32 = 2;
const WATCHED_BITS_MAX: u32 = 5;
const LOOKS_BITS: u32 = 8;
/// A directory leaves the table after more than this many periods of the device without a write to it.
const IDLE_MAX: u32 = 16;

/// The attention while nothing is known.
const EVERYTHING: u8 = WATCHES | CHECKS | (WATCHED_BITS_MAX as u8) << BITS_SHIFT;

/// The attention where nothing matters. Its bits are valid, because a request that began to watch may still ask for them.
const NOTHING: u8 = (WATCHED_BITS_MAX as u8) << BITS_SHIFT;

/// A directory, or the whole device; see the module.
pub(super) struct ObservedDirectory {
    /// Its inode number; 0 for the whole device and for a free place of the table.
    pub(super) ino: AtomicU64,
    /// Number of the policy that new requests use.
    policy: AtomicU8,
    /// What must be looked at for the sake of the choice.
    attention: AtomicU8,
    seen: Seen,
    /// Bytes written in the current period, and the length of the period in bytes.
    progress: Padded<AtomicU64>,
    length: AtomicU64,
    state: Mutex<ChoiceState>,
    /// The whole device; `None` if this is the whole device itself.
    device: Option<Arc<ObservedDirectory>>,
    common: Arc<Common>,
}

struct ChoiceState {
    choice: Choice,
    /// The counters when the current period began, when the evidence against the choice was last forgotten, and when
    /// the directory entered the table.
    before: Figures,
    window: Figures,
    first: Figures,
    /// The bytes that the daemon of `denova` had looked at and shared when the current period began.
    shared_later: (u64, u64),
    ratio: Option<f64>,
    compressible: Option<f64>,
    request_blocks: f64,
    estimates: Vec<PolicyEstimate>,
    periods: u64,
    switches: u64,
    /// True if the current period may end early: the choice has lasted for a whole period. Without this rule, two
    /// policies that make one another look better would alternate for ever: one does not find what the other stores.
    may_end_early: bool,
    idle: u32,
    idle_since: u64,
}

impl ChoiceState {
    fn new(choice: Choice, seen: Figures) -> ChoiceState {
        ChoiceState {
            choice,
            before: seen,
            window: seen,
            first: seen,
            shared_later: (0, 0),
            ratio: None,
            compressible: None,
            request_blocks: 1.0,
            estimates: Vec::new(),
            periods: 0,
            switches: 0,
            may_end_early: false,
            idle: 0,
            idle_since: 0,
        }
    }

    /// Returns the known workload; unknown ratios count as 0.
    fn workload(&self) -> Workload {
        Workload {
            ratio: self.ratio.unwrap_or(0.0),
            compressible: self.compressible.unwrap_or(0.0),
            request_blocks: self.request_blocks,
        }
    }

    /// Learns from the counters of a period. Returns true if they tell the duplicate ratio.
    fn learn(&mut self, period: &Figures, shared_later: (u64, u64)) -> bool {
        self.request_blocks = (period.bytes as f64 / BLOCK_BYTES as f64 / period.requests.max(1) as f64).max(1.0);
        if period.checked > 0 {
            let new = period.compressible as f64 / period.checked as f64;
            let old = self.compressible.filter(|_| period.checked < WINDOW * CHECKS_MIN);
            self.compressible = Some(old.map_or(new, |old| (old + new) / 2.0));
        }
        let later = (shared_later.0 - self.shared_later.0, shared_later.1 - self.shared_later.1);
        self.shared_later = shared_later;
        let blocks = period.bytes / BLOCK_BYTES;
        let enough = (blocks / SHORT / 4).max(BLOCKS_MIN).min(blocks).max(1) * BLOCK_BYTES;
        let (looked_for, found) = match self.choice.policy {
            // The pieces of `denova` are not looked up while they are written, but by the daemon.
            Policy::DeNova if period.looked_for == 0 => later,
            _ => (period.looked_for, period.found),
        };
        let is_known = looked_for >= enough;
        if is_known {
            self.ratio = Some((found as f64 / looked_for as f64).min(1.0));
        }
        is_known || self.choice.policy == Policy::DeNova && self.ratio.is_some()
    }

    /// Compares the counters since the window began with what is known, and restarts the window when it is old.
    /// Returns the policy that is certainly better than the chosen one, if there is one.
    fn refute(&mut self, seen: &Figures, outlook: impl Fn() -> Outlook) -> Option<Policy> {
        let known = (self.ratio?, self.compressible.unwrap_or(0.0));
        let window = seen.since(&self.window);
        let (blocks, found) = (window.looked_for / BLOCK_BYTES, window.found / BLOCK_BYTES);
        let ratio = Range::of(found, blocks).filter(|_| blocks >= BLOCKS_MIN);
        let compressible =
            Range::of_checks(window.compressible, window.checked).filter(|_| window.checked >= CHECKS_MIN);
        // Observations that agree with what is known are forgotten. The others are kept until they are certain or old.
        let new_ratio = ratio.filter(|range| !range.contains(known.0));
        let new_part = compressible.filter(|range| !range.contains(known.1));
        if ratio != new_ratio || blocks >= WINDOW * BLOCKS_MIN {
            (self.window.looked_for, self.window.found) = (seen.looked_for, seen.found);
        }
        if compressible != new_part || window.checked >= WINDOW * CHECKS_MIN {
            (self.window.checked, self.window.compressible) = (seen.checked, seen.compressible);
        }
        if new_ratio.is_none() && new_part.is_none() {
            return None;
        }
        let [ratio, part] =
            [(new_ratio, known.0), (new_part, known.1)].map(|(new, known)| new.unwrap_or(Range::exactly(known)));
        let better = outlook().better_than(self.choice.policy, ratio, part, self.request_blocks)?;
        if new_ratio.is_some() {
            self.ratio = Some((found as f64 / blocks as f64).min(1.0));
        }
        if new_part.is_some() {
            self.compressible = Some(window.compressible as f64 / window.checked as f64);
        }
        Some(better)
    }
}

impl ObservedDirectory {
    /// Creates the whole device, about which nothing is known yet.
    pub(super) fn of_device(common: Arc<Common>) -> ObservedDirectory {
        ObservedDirectory::with(Choice::new(Policy::Inline, Reason::Unknown), None, common)
    }

    /// Creates a free place of the table.
    pub(super) fn free(device: &Arc<ObservedDirectory>, common: Arc<Common>) -> ObservedDirectory {
        ObservedDirectory::with(Choice::new(Policy::Inline, Reason::AsDevice), Some(device.clone()), common)
    }

    fn with(choice: Choice, device: Option<Arc<ObservedDirectory>>, common: Arc<Common>) -> ObservedDirectory {
        let directory = ObservedDirectory {
            ino: AtomicU64::new(0),
            policy: AtomicU8::new(choice.policy.number()),
            attention: AtomicU8::new(EVERYTHING),
            seen: Seen::new(),
            progress: Padded::default(),
            length: AtomicU64::new(0),
            state: Mutex::new(ChoiceState::new(choice, Figures::default())),
            device,
            common,
        };
        directory.begin(SHORT);
        directory
    }

    /// Returns the policy that new requests use.
    #[inline]
    pub(super) fn policy(&self) -> Policy {
        Policy::numbered(self.policy.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// True if duplicates matter for the choice, so that some pieces are looked up even under a policy that stores
    /// everything.
    #[inline]
    pub(super) fn watches(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & WATCHES != 0
    }

    /// True if anything about the data matters for the choice.
    #[inline]
    pub(super) fn observes(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & (WATCHES | CHECKS) != 0
    }

    /// Returns the number of bits that select the watched contents: one content in 2 to that power is watched.
    #[inline]
    pub(super) fn watched_bits(&self) -> u32 {
        u32::from(self.attention.load(Ordering::Relaxed) >> BITS_SHIFT)
    }

    /// True if compressibility matters for the choice.
    #[inline]
    pub(super) fn checks(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & CHECKS != 0
    }

    /// Chooses at mount, after costs were measured, if the choice does not depend on the data.
    pub(super) fn begin_unseen(&self, ground: &PolicyDevice<'_>) {
        let outlook = self.outlook(ground);
        self.settle(&mut self.state.lock(), &outlook);
    }

    /// Prepares a place of the table for a new directory, which starts with the choice of the whole device.
    pub(super) fn adopt(&self) {
        let Some(device) = &self.device else { return };
        let seen = self.seen.figures();
        let (reason, ratio, compressible) = {
            let of = device.state.lock();
            (of.choice.reason, of.ratio, of.compressible)
        };
        let (reason, divisor) = match reason {
            Reason::Unknown => (Reason::Unknown, SHORT),
            _ => (Reason::AsDevice, 1),
        };
        let policy = device.policy();
        let mut state = self.state.lock();
        let new = ChoiceState::new(Choice::new(policy, reason), seen);
        *state = ChoiceState { idle_since: seen.bytes, ratio, compressible, ..new };
        state.shared_later = self.common.shared_later();
        self.policy.store(policy.number(), Ordering::Relaxed);
        self.attention.store(device.attention.load(Ordering::Relaxed), Ordering::Relaxed);
        self.begin(divisor);
    }

    /// Removes the directory from the table if it was not written to for too many periods. It is called at most once
    /// a period.
    pub(super) fn age(&self) {
        let Some(mut state) = self.state.try_lock() else { return };
        let bytes = self.seen.figures().bytes;
        state.idle = if bytes == state.idle_since { state.idle + 1 } else { 0 };
        state.idle_since = bytes;
        if state.idle > IDLE_MAX {
            self.ino.store(0, Ordering::Relaxed);
        }
    }

    /// Counts both for this directory and for the whole device.
    pub(super) fn each_seen(&self, count: impl Fn(&Seen)) {
        count(&self.seen);
        if let Some(device) = &self.device {
            count(&device.seen);
        }
    }

    /// Returns the positions of the blocks to check among the next `blocks` blocks of this thread: one in `one_of`.
    pub(super) fn next_checked(&self, blocks: usize, one_of: u64) -> impl Iterator<Item = usize> {
        let before = self.seen.count_offered(blocks as u64);
        let first = (before.next_multiple_of(one_of) - before) as usize;
        (first..blocks).step_by(one_of as usize)
    }

    /// Counts a finished request and ends the period when it has had its bytes; no lock may be held. One thread ends
    /// the period while the others go on. The whole device is told once per part.
    pub(super) fn request_done(&self, bytes: u64, ground: &PolicyDevice<'_>) {
        let before = self.seen.count_request(bytes);
        let part = self.common.part_bytes();
        // The counter is the thread's own, so it crosses the border of a part once per part.
        let parts = (before + bytes) / part - before / part;
        if parts == 0 {
            return;
        }
        self.part_done(parts * part, ground);
        if let Some(device) = &self.device {
            device.seen.count_requests(self.seen.take_requests(), parts * part);
            device.part_done(parts * part, ground);
        }
    }

    fn part_done(&self, bytes: u64, ground: &PolicyDevice<'_>) {
        let progress = self.progress.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match progress >= self.length.load(Ordering::Relaxed) {
            true => self.end_period(ground),
            false if self.watches() => self.end_if_refuted(ground),
            false => {}
        }
    }

    /// Returns the blocks that were written here and not yet reported to the whole device.
    pub(super) fn unreported_blocks(&self) -> u64 {
        self.seen.unreported_bytes(self.common.part_bytes()) / BLOCK_BYTES
    }

    /// Ends the current period if the observations refute the choice.
    fn end_if_refuted(&self, ground: &PolicyDevice<'_>) {
        let Some(mut state) = self.state.try_lock() else { return };
        if !state.may_end_early {
            return;
        }
        let seen = self.seen.figures();
        let Some(better) = state.refute(&seen, || self.outlook(ground)) else { return };
        (state.before, state.window) = (seen, seen);
        state.shared_later = self.common.shared_later();
        state.periods += 1;
        state.switches += 1;
        state.choice.change(better);
        self.go_on(&mut state, &self.outlook(ground));
        state.may_end_early = false;
    }

    fn end_period(&self, ground: &PolicyDevice<'_>) {
        let Some(mut state) = self.state.try_lock() else { return };
        if self.progress.load(Ordering::Relaxed) < self.length.load(Ordering::Relaxed) {
            return;
        }
        if self.device.is_none() {
            self.common.measure(ground);
        }
        let seen = self.seen.figures();
        let period = seen.since(&state.before);
        (state.before, state.window) = (seen, seen);
        state.periods += 1;
        let is_known = state.learn(&period, self.common.shared_later());
        let outlook = self.outlook(ground);
        if self.settle(&mut state, &outlook) {
            return;
        }
        if !is_known {
            // The ratio is unknown: the next period is short and looks everything up.
            self.policy.store(Policy::Inline.number(), Ordering::Relaxed);
            self.attention.store(EVERYTHING, Ordering::Relaxed);
            self.common.changed();
            return self.begin(SHORT);
        }
        let estimates = outlook.estimates(&state.workload());
        let changes = state.choice.compare(&estimates, outlook.prefer);
        state.switches += u64::from(changes);
        self.go_on(&mut state, &outlook);
        state.may_end_early = !changes;
    }

    /// Chooses the policy that is the best whatever data comes, if there is one; nothing is looked at then. Returns
    /// true if it has chosen.
    fn settle(&self, state: &mut ChoiceState, outlook: &Outlook) -> bool {
        let Some(policy) = outlook.best_at_any_ratio(state.choice.policy) else { return false };
        state.switches += u64::from(state.choice.settle(policy) && state.periods > 0);
        self.go_on(state, outlook);
        true
    }

    /// Begins a period under the chosen policy.
    fn go_on(&self, state: &mut ChoiceState, outlook: &Outlook) {
        state.estimates = outlook.estimates(&state.workload());
        let asks = outlook.asks_for_compressibility(state.choice.policy, state.request_blocks);
        let attention = match state.choice.reason {
            Reason::AtAnyRatio => NOTHING,
            _ => attention(&outlook.ground, asks),
        };
        self.policy.store(state.choice.policy.number(), Ordering::Relaxed);
        self.attention.store(attention, Ordering::Relaxed);
        self.common.changed();
        self.begin(1);
    }

    fn outlook(&self, ground: &PolicyDevice<'_>) -> Outlook {
        Outlook { ground: self.common.model_ground(ground), prefer: self.common.prefer() }
    }

    fn begin(&self, divisor: u64) {
        self.length.store((self.common.part_bytes() * PARTS / divisor).max(1), Ordering::Relaxed);
        self.progress.store(0, Ordering::Relaxed);
    }

    /// Returns the choice and the reason for it.
    pub(super) fn chosen(&self) -> Chosen {
        let state = self.state.lock();
        let seen = self.seen.figures();
        Chosen {
            directory: self.ino.load(Ordering::Relaxed),
            policy: self.policy(),
            reason: state.choice.reason,
            ratio: state.ratio,
            compressible: state.compressible,
            request_blocks: state.request_blocks,
            estimates: state.estimates.clone(),
            blocks: seen.since(&state.first).bytes / BLOCK_BYTES,
            periods: state.periods,
            switches: state.switches,
        }
    }
}

/// Returns what must be looked at on a device where duplicates matter; `checks` says whether compressibility matters,
/// too.
fn attention(ground: &model::DeviceCosts, checks: bool) -> u8 {
    let look_ns = ground.costs.weak_ns.saturating_add(ground.costs.lookup_ns);
    let is_cheap = |bits: &u32| look_ns.saturating_mul(1 << (LOOKS_BITS - bits)) <= ground.run_write_ns;
    let bits = (WATCHED_BITS_MIN..WATCHED_BITS_MAX).find(is_cheap).unwrap_or(WATCHED_BITS_MAX);
    WATCHES | if checks { CHECKS } else { 0 } | (bits as u8) << BITS_SHIFT
}
