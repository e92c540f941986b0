//! The sampling periods of a directory, or of the whole device: what was seen becomes a ratio, estimates, a choice.
//!
//! A period is a number of blocks. The first one is short and looks for all blocks, for nothing is known. So is one that
//! follows a period in which too few watched pieces came to tell anything. A period ends early when what is seen refutes
//! the choice, and where nothing that may be seen would refute it, nothing is looked at ([`super::outlook`]).

use super::choice::Choice;
use super::common::{Common, PARTS};
use super::model::{self, Workload};
use super::options::{Chosen, Estimate, Reason};
use super::outlook::{Outlook, Range};
use super::seen::{Figures, Seen};
use crate::dedup::Ground;
use crate::dedup::policy::Policy;
use crate::media::BLOCK_BYTES;
use crate::padded::Padded;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::Arc;

/// A short period is this part of a period: about as many blocks are looked at as watching sees in a whole one.
const SHORT: u64 = 64;
/// Fewer blocks than this tell nothing.
const BLOCKS_MIN: u64 = 12;
/// Fewer checks of compressibility than this do not either.
const CHECKS_MIN: u64 = 4;
/// What is seen inside a period is forgotten when it is so many times what tells something: new data soon stands out.
const WINDOW: u64 = 4;

/// Bits of [`Directory::attention`]: duplicates matter for the choice, and compressibility does. Above them is how many bits
/// choose the contents that are watched.
const WATCHES: u8 = 1;
const CHECKS: u8 = 2;
const BITS_SHIFT: u32 = 4;
/// Of 32 contents one is watched, and of as few as 4 where all looks together take no more than a 256th of the time.
const WATCHED_BITS_MIN: u32 = 2;
const WATCHED_BITS_MAX: u32 = 5;
const LOOKS_BITS: u32 = 8;
/// Periods of the device in which nothing is written to a directory until it loses its place in the table.
const IDLE_MAX: u32 = 16;

/// What is looked at while nothing is known.
const EVERYTHING: u8 = WATCHES | CHECKS | (WATCHED_BITS_MAX as u8) << BITS_SHIFT;

/// See the module.
pub(super) struct Directory {
    /// Number of its inode; 0: the whole device, or a free place of the table.
    pub(super) ino: AtomicU64,
    /// Number of the policy that requests go to now.
    policy: AtomicU8,
    /// What has to be looked at for the sake of the choice.
    attention: AtomicU8,
    seen: Seen,
    /// Bytes of the period under way, and how many it takes.
    progress: Padded<AtomicU64>,
    length: AtomicU64,
    state: Mutex<State>,
    /// The whole device; `None`: it is that.
    device: Option<Arc<Directory>>,
    common: Arc<Common>,
}

struct State {
    choice: Choice,
    /// What was seen when the period under way began, when what may refute the choice was forgotten last, and when the
    /// directory came into the table.
    before: Figures,
    window: Figures,
    first: Figures,
    /// What the daemon of `denova` had looked at and shared by then.
    shared_later: (u64, u64),
    ratio: Option<f64>,
    compressible: Option<f64>,
    request_blocks: f64,
    estimates: Vec<Estimate>,
    periods: u64,
    switches: u64,
    /// The period under way may end early: the choice has lasted for a whole one. Otherwise two policies that make one another
    /// look better (what one stores, the other does not find) would take turns all the time.
    may_end_early: bool,
    idle: u32,
    idle_since: u64,
}

impl State {
    fn new(choice: Choice, seen: Figures) -> State {
        State {
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

    /// What is known of it; what is not counts as none.
    fn workload(&self) -> Workload {
        Workload {
            ratio: self.ratio.unwrap_or(0.0),
            compressible: self.compressible.unwrap_or(0.0),
            request_blocks: self.request_blocks,
        }
    }

    /// Takes in what was seen in a period; whether that tells the ratio.
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
            // Its pieces are not looked for while they are written.
            Policy::DeNova if period.looked_for == 0 => later,
            _ => (period.looked_for, period.found),
        };
        let is_known = looked_for >= enough;
        if is_known {
            self.ratio = Some((found as f64 / looked_for as f64).min(1.0));
        }
        is_known || self.choice.policy == Policy::DeNova && self.ratio.is_some()
    }

    /// Takes in what was seen since the window began, and forgets it when it is old. The policy that is certainly better
    /// than the chosen one, if there is one.
    fn refute(&mut self, seen: &Figures, outlook: impl Fn() -> Outlook) -> Option<Policy> {
        let known = (self.ratio?, self.compressible.unwrap_or(0.0));
        let window = seen.since(&self.window);
        let (blocks, found) = (window.looked_for / BLOCK_BYTES, window.found / BLOCK_BYTES);
        let ratio = Range::of(found, blocks).filter(|_| blocks >= BLOCKS_MIN);
        let compressible =
            Range::of_checks(window.compressible, window.checked).filter(|_| window.checked >= CHECKS_MIN);
        // What fits is forgotten, and what does not is watched on, until it is certain or old.
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

impl Directory {
    /// The whole device, of which nothing is known.
    pub(super) fn of_device(common: Arc<Common>) -> Directory {
        Directory::with(Choice::new(Policy::Inline, Reason::Unknown), None, common)
    }

    /// A free place of the table.
    pub(super) fn free(device: &Arc<Directory>, common: Arc<Common>) -> Directory {
        Directory::with(Choice::new(Policy::Inline, Reason::AsDevice), Some(device.clone()), common)
    }

    fn with(choice: Choice, device: Option<Arc<Directory>>, common: Arc<Common>) -> Directory {
        let directory = Directory {
            ino: AtomicU64::new(0),
            policy: AtomicU8::new(choice.policy.number()),
            attention: AtomicU8::new(EVERYTHING),
            seen: Seen::new(),
            progress: Padded::default(),
            length: AtomicU64::new(0),
            state: Mutex::new(State::new(choice, Figures::default())),
            device,
            common,
        };
        directory.begin(SHORT);
        directory
    }

    /// The policy that requests go to now.
    #[inline]
    pub(super) fn policy(&self) -> Policy {
        Policy::numbered(self.policy.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Whether duplicates are looked for although everything is stored.
    #[inline]
    pub(super) fn watches(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & WATCHES != 0
    }

    /// One content of so many bits is watched.
    #[inline]
    pub(super) fn watched_bits(&self) -> u32 {
        u32::from(self.attention.load(Ordering::Relaxed) >> BITS_SHIFT)
    }

    /// Whether it is of interest what is compressible.
    #[inline]
    pub(super) fn checks(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & CHECKS != 0
    }

    /// Mount, after costs were measured: chooses if no data has to be seen for it.
    pub(super) fn begin_unseen(&self, ground: &Ground<'_>) {
        let outlook = self.outlook(ground);
        self.settle(&mut self.state.lock(), &outlook);
    }

    /// A place of the table gets a directory, which begins with what is chosen on the whole device.
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
        let new = State::new(Choice::new(policy, reason), seen);
        *state = State { idle_since: seen.bytes, ratio, compressible, ..new };
        state.shared_later = self.common.shared_later();
        self.policy.store(policy.number(), Ordering::Relaxed);
        self.attention.store(device.attention.load(Ordering::Relaxed), Ordering::Relaxed);
        self.begin(divisor);
    }

    /// A period of the device is over: a directory that nobody writes to leaves the table.
    pub(super) fn age(&self) {
        let Some(mut state) = self.state.try_lock() else { return };
        let bytes = self.seen.figures().bytes;
        state.idle = if bytes == state.idle_since { state.idle + 1 } else { 0 };
        state.idle_since = bytes;
        if state.idle > IDLE_MAX {
            self.ino.store(0, Ordering::Relaxed);
        }
    }

    /// Counts here and on the whole device.
    pub(super) fn each_seen(&self, count: impl Fn(&Seen)) {
        count(&self.seen);
        if let Some(device) = &self.device {
            count(&device.seen);
        }
    }

    /// Places of the blocks, one of `one_of`, that are checked among the next `blocks` of this thread.
    pub(super) fn next_checked(&self, blocks: usize, one_of: u64) -> impl Iterator<Item = usize> {
        let before = self.seen.count_offered(blocks as u64);
        let first = (before.next_multiple_of(one_of) - before) as usize;
        (first..blocks).step_by(one_of as usize)
    }

    /// A request is done and no lock is held: ends a period that has had its bytes. One thread does; the others go on. The
    /// whole device is told once a part.
    pub(super) fn request_done(&self, bytes: u64, ground: &Ground<'_>) {
        let before = self.seen.count_request(bytes);
        let part = self.common.part_bytes();
        // Bytes of this thread: they cross the border of a part once a part.
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

    fn part_done(&self, bytes: u64, ground: &Ground<'_>) {
        let progress = self.progress.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match progress >= self.length.load(Ordering::Relaxed) {
            true => self.end_period(ground),
            false if self.watches() => self.end_if_refuted(ground),
            false => {}
        }
    }

    /// Blocks that were written here and the whole device does not know of yet.
    pub(super) fn untold_blocks(&self) -> u64 {
        self.seen.untold(self.common.part_bytes()) / BLOCK_BYTES
    }

    /// Ends the period under way if what is seen refutes the choice.
    fn end_if_refuted(&self, ground: &Ground<'_>) {
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

    fn end_period(&self, ground: &Ground<'_>) {
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
            // Nothing can be told: the next period is short and looks for all.
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

    /// If one policy is the best whatever is written, it is chosen, and nothing is looked at.
    fn settle(&self, state: &mut State, outlook: &Outlook) -> bool {
        let Some(policy) = outlook.best_at_any_ratio(state.choice.policy) else { return false };
        state.switches += u64::from(state.choice.settle(policy) && state.periods > 0);
        self.go_on(state, outlook);
        true
    }

    /// Begins a period under the policy that is chosen now.
    fn go_on(&self, state: &mut State, outlook: &Outlook) {
        state.estimates = outlook.estimates(&state.workload());
        let asks = outlook.asks_for_compressibility(state.choice.policy, state.request_blocks);
        let attention = match state.choice.reason {
            Reason::AtAnyRatio => 0,
            _ => attention(&outlook.ground, asks),
        };
        self.policy.store(state.choice.policy.number(), Ordering::Relaxed);
        self.attention.store(attention, Ordering::Relaxed);
        self.common.changed();
        self.begin(1);
    }

    fn outlook(&self, ground: &Ground<'_>) -> Outlook {
        Outlook { ground: self.common.model_ground(ground), prefer: self.common.prefer() }
    }

    fn begin(&self, divisor: u64) {
        self.length.store((self.common.part_bytes() * PARTS / divisor).max(1), Ordering::Relaxed);
        self.progress.store(0, Ordering::Relaxed);
    }

    /// What is done here, and why.
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

/// What has to be looked at on a device where duplicates matter; `checks`: what is compressible does, too.
fn attention(ground: &model::Ground, checks: bool) -> u8 {
    let look_ns = ground.costs.weak_ns.saturating_add(ground.costs.lookup_ns);
    let is_cheap = |bits: &u32| look_ns.saturating_mul(1 << (LOOKS_BITS - bits)) <= ground.run_write_ns;
    let bits = (WATCHED_BITS_MIN..WATCHED_BITS_MAX).find(is_cheap).unwrap_or(WATCHED_BITS_MAX);
    WATCHES | if checks { CHECKS } else { 0 } | (bits as u8) << BITS_SHIFT
}
