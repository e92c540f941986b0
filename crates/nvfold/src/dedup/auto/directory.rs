//! The sampling periods of a directory, or of the whole device: what was seen becomes a ratio, estimates, a choice.
//!
//! A period is a number of blocks. The first one is short and looks for all blocks, for nothing is known. So is one that
//! follows a period in which too few watched pieces came to tell anything.

use super::choice::Choice;
use super::common::{Common, PARTS};
use super::model::{Workload, estimates};
use super::options::{Chosen, Estimate, Reason};
use super::seen::{Figures, Seen};
use crate::dedup::Ground;
use crate::dedup::policy::Policy;
use crate::media::BLOCK_BYTES;
use crate::padded::Padded;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::Arc;

/// A short period is this part of a period: about as many blocks are looked at as watching sees in a whole one.
const SHORT: u64 = 32;
/// Fewer blocks than this tell nothing.
const BLOCKS_MIN: u64 = 16;
/// Periods of the device in which nothing is written to a directory until it loses its place in the table.
const IDLE_MAX: u32 = 16;

/// See the module.
pub(super) struct Directory {
    /// Number of its inode; 0: the whole device, or a free place of the table.
    pub(super) ino: AtomicU64,
    /// Number of the policy that requests go to now.
    policy: AtomicU8,
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
    /// What was seen when the period under way began, and when the directory came into the table.
    before: Figures,
    first: Figures,
    /// What the daemon of `denova` had looked at and shared by then.
    shared_later: (u64, u64),
    ratio: Option<f64>,
    compressible: Option<f64>,
    request_blocks: f64,
    estimates: Vec<Estimate>,
    periods: u64,
    switches: u64,
    idle: u32,
    idle_since: u64,
}

impl State {
    fn new(choice: Choice, seen: Figures) -> State {
        State {
            choice,
            before: seen,
            first: seen,
            shared_later: (0, 0),
            ratio: None,
            compressible: None,
            request_blocks: 1.0,
            estimates: Vec::new(),
            periods: 0,
            switches: 0,
            idle: 0,
            idle_since: 0,
        }
    }

    /// Takes in what was seen in a period; whether that tells the ratio.
    fn learn(&mut self, period: &Figures, shared_later: (u64, u64)) -> bool {
        self.request_blocks = (period.bytes as f64 / BLOCK_BYTES as f64 / period.requests.max(1) as f64).max(1.0);
        if period.checked > 0 {
            let new = period.compressible as f64 / period.checked as f64;
            self.compressible = Some(self.compressible.map_or(new, |old| (old + new) / 2.0));
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

    /// A place of the table gets a directory, which begins with what is chosen on the whole device.
    pub(super) fn adopt(&self) {
        let policy = self.device.as_ref().map_or(Policy::Inline, |device| device.policy());
        let seen = self.seen.figures();
        let mut state = self.state.lock();
        *state = State { idle_since: seen.bytes, ..State::new(Choice::new(policy, Reason::AsDevice), seen) };
        state.shared_later = self.common.shared_later();
        self.policy.store(policy.number(), Ordering::Relaxed);
        self.begin(1);
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

    /// A request is done and no lock is held: ends a period that has had its bytes. One thread does; the others go on.
    pub(super) fn request_done(&self, bytes: u64, ground: &Ground<'_>) {
        self.count_request(bytes, ground);
        if let Some(device) = &self.device {
            device.count_request(bytes, ground);
        }
    }

    fn count_request(&self, bytes: u64, ground: &Ground<'_>) {
        let before = self.seen.count_request(bytes);
        let part = self.common.part_bytes();
        // Bytes of this thread: they cross the border of a part once a part.
        let parts = (before + bytes) / part - before / part;
        if parts > 0 {
            let progress = self.progress.fetch_add(parts * part, Ordering::Relaxed) + parts * part;
            if progress >= self.length.load(Ordering::Relaxed) {
                self.end_period(ground);
            }
        }
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
        state.before = seen;
        state.periods += 1;
        let is_known = state.learn(&period, self.common.shared_later());
        let Some(ratio) = state.ratio.filter(|_| is_known) else {
            // Nothing can be told: the next period is short and looks for all.
            self.policy.store(Policy::Inline.number(), Ordering::Relaxed);
            self.common.changed();
            return self.begin(SHORT);
        };
        let compressible = state.compressible.unwrap_or(0.0);
        let workload = Workload { ratio, compressible, request_blocks: state.request_blocks };
        let prefer = self.common.prefer();
        state.estimates = estimates(&self.common.model_ground(ground), &workload, prefer);
        let State { choice, estimates, .. } = &mut *state;
        let changes = choice.compare(estimates, prefer);
        state.switches += u64::from(changes);
        self.policy.store(state.choice.policy.number(), Ordering::Relaxed);
        self.common.changed();
        self.begin(1);
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
