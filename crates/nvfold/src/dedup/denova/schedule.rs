//! When the daemon works, and how much (DeNOVA IV-B2).
//!
//! The problem: deferred work must be done, but it was deferred for the sake of the writers. A daemon that works
//! whenever there is work takes memory bandwidth, locks and a processor from them.
//!
//! The idea: the daemon works in steps of a batch of blocks, well below a millisecond each, and decides between two
//! steps whether to continue.
//!
//! ```text
//! mode         immediate: whenever anything is queued; delayed(n, m): every n ms, m nodes at most
//! manners      an operation came in meanwhile: rest after a tenth of a millisecond, as long as it has worked
//!              CPU share: rest until it has worked no more than its percentage
//! no limits    free space below the guard; an operation that found too little; a drain
//! nothing      paused (except for an operation that found too little space, and for a drain)
//! ```
//!
//! A daemon with nothing to do looks again and again, at growing intervals: after a pause it sees new work no later
//! than that pause has lasted. No operation has to wake it, and on an idle file system it takes no processor time to
//! speak of.
//!
//! The schedule has neither a clock nor a thread: a front end calls [`Schedule::turn`] and waits as long as that
//! returns. Without a stopwatch, a turn is one step.

use super::DeNova;
use super::options::DedupMode;
use crate::error::{Error, Result};
use nvfold_sync::atomic::Ordering;
use std::time::Duration;

/// A turn ends after this many nanoseconds.
const TURN_NS: u64 = 1_000_000;
/// An idle daemon waits `IDLE_LEAST` first, and twice as long each time, up to `IDLE_MOST`; up to `BUSY_MOST` while
/// operations come in.
const IDLE_LEAST: Duration = Duration::from_micros(50);
const BUSY_MOST: Duration = Duration::from_millis(10);
const IDLE_MOST: Duration = Duration::from_secs(1);
/// A turn ends after this many nanoseconds if operations came in meanwhile.
const SLICE_NS: u64 = 100_000;
/// Steps of a reorder in a turn: enough for one chain.
const REORDER_STEPS: u64 = 4;

/// The work that the daemon can do.
pub(crate) trait Worksite {
    /// Does a step of the queued work. Returns true when nothing is queued.
    fn step(&self) -> Result<bool>;

    /// Does a step of reordering a chain of the pm index (DeNOVA IV-E). Returns true when there is nothing to do.
    fn reorder_step(&self) -> Result<bool>;

    /// Does a step of the background work of other policies. Returns true when there is nothing to do.
    fn other_step(&self) -> Result<bool>;

    /// Returns an approximate count of operations. It changes while there is work in the foreground.
    fn operations(&self) -> u64;

    /// Returns the free space in percent of the device.
    fn free_percent(&self) -> u64;
}

/// When the daemon works; see the module.
pub(crate) struct Schedule {
    /// How long to wait the next time that there is nothing to do, and the operations that had come in by the last
    /// time.
    idle: Duration,
    operations: u64,
    /// Mode `delayed`: when the next interval begins, by the stopwatch, and how many nodes are left to process in
    /// this one.
    due: u64,
    left: u64,
    /// The mode to which these two values belong.
    mode: DedupMode,
}

/// The result of a turn.
#[derive(Clone, Copy, Default)]
struct TurnResult {
    steps: u64,
    ns: u64,
    is_empty: bool,
    is_stuck: bool,
    /// True if operations came in meanwhile.
    saw_operations: bool,
}

impl Schedule {
    /// Creates the schedule of a daemon in this mode.
    pub(crate) fn new(mode: DedupMode) -> Schedule {
        Schedule { idle: IDLE_LEAST, operations: 0, due: 0, left: 0, mode }
    }

    /// Works for a moment, as mode and limits allow. Returns how long to wait until the next turn.
    ///
    /// # Errors
    /// Errors of the steps.
    pub(crate) fn turn(&mut self, denova: &DeNova, site: &dyn Worksite) -> Result<Duration> {
        if denova.paused.load(Ordering::Relaxed) {
            return Ok(self.idle(site));
        }
        let began = denova.queue.now();
        let hurries = site.free_percent() < u64::from(denova.options.guard_percent);
        let mode = denova.mode();
        if mode != self.mode {
            // The state of an interval has no meaning in another mode.
            (self.mode, self.due, self.left) = (mode, 0, 0);
        }
        if let DedupMode::Delayed { interval_ms, entries } = mode
            && !hurries
            && self.left == 0
        {
            if began < self.due {
                return Ok(Duration::from_nanos(self.due - began));
            }
            self.due = began + interval_ms * 1_000_000;
            self.left = entries;
        }
        let worked = self.work(denova, site, began, hurries)?;
        denova.busy_ns.fetch_add(worked.ns, Ordering::Relaxed);
        self.after(denova, site, began, hurries, worked)
    }

    /// Does steps until the turn is over or the limits allow no more.
    fn work(&mut self, denova: &DeNova, site: &dyn Worksite, began: u64, hurries: bool) -> Result<TurnResult> {
        let is_delayed = matches!(denova.mode(), DedupMode::Delayed { .. }) && !hurries;
        let mut worked = TurnResult::default();
        let operations = site.operations();
        loop {
            let dequeued = denova.dequeued.load(Ordering::Relaxed);
            match site.step() {
                Ok(is_empty) => worked.is_empty = is_empty,
                // Other operations have to free space first.
                Err(Error::NoSpace { .. }) => worked.is_stuck = true,
                Err(error) => return Err(error),
            }
            worked.ns = denova.queue.now().saturating_sub(began);
            worked.steps += u64::from(!worked.is_empty);
            worked.saw_operations = site.operations() != operations;
            if is_delayed {
                let done = denova.dequeued.load(Ordering::Relaxed) - dequeued;
                self.left = if worked.is_empty { 0 } else { self.left.saturating_sub(done) };
            }
            let is_over = !denova.has_stopwatch || worked.ns >= TURN_NS || is_delayed && self.left == 0;
            let steps_back = worked.saw_operations && !hurries && worked.ns >= SLICE_NS;
            if is_over || worked.is_empty || worked.is_stuck || steps_back {
                return Ok(worked);
            }
        }
    }

    /// Returns how long to wait until the next turn.
    fn after(
        &mut self,
        denova: &DeNova,
        site: &dyn Worksite,
        began: u64,
        hurries: bool,
        worked: TurnResult,
    ) -> Result<Duration> {
        if worked.is_stuck {
            return Ok(self.idle(site));
        }
        // Reordering is the daemon's other task (IV-B2, IV-E). A step is a few stores.
        let mut is_in_order = false;
        for _ in 0..REORDER_STEPS {
            is_in_order = is_in_order || site.reorder_step()?;
        }
        if worked.is_empty && !is_in_order {
            return Ok(Duration::ZERO);
        }
        if worked.is_empty
            && let Some(rest) = Schedule::other_work(denova, site)?
        {
            return Ok(rest);
        }
        if worked.steps > 0 {
            self.idle = IDLE_LEAST;
        }
        let is_delayed = matches!(denova.mode(), DedupMode::Delayed { .. });
        if is_delayed && self.left == 0 && !hurries {
            // Without a stopwatch, the caller's waiting is the clock.
            let until = self.due.saturating_sub(began + worked.ns);
            self.due = if denova.has_stopwatch { self.due } else { 0 };
            return Ok(Duration::from_nanos(until));
        }
        if worked.is_empty {
            return Ok(self.idle(site));
        }
        if hurries {
            return Ok(Duration::ZERO);
        }
        Ok(rest_of(denova, worked.ns, worked.saw_operations))
    }

    /// Returns how long to wait when there is nothing to do.
    fn idle(&mut self, site: &dyn Worksite) -> Duration {
        let operations = site.operations();
        if operations != self.operations {
            (self.operations, self.idle) = (operations, self.idle.min(BUSY_MOST));
        }
        let idle = self.idle;
        self.idle = (idle * 2).min(IDLE_MOST);
        idle
    }

    /// Does the background work of other policies under the same limits. Returns how long to wait, or `None` when
    /// there is nothing to do.
    fn other_work(denova: &DeNova, site: &dyn Worksite) -> Result<Option<Duration>> {
        let (began, operations) = (denova.queue.now(), site.operations());
        loop {
            if site.other_step()? {
                return Ok(None);
            }
            let ns = denova.queue.now().saturating_sub(began);
            let saw_operations = site.operations() != operations;
            if !denova.has_stopwatch || ns >= TURN_NS || saw_operations && ns >= SLICE_NS {
                return Ok(Some(rest_of(denova, ns, saw_operations)));
            }
        }
    }
}

/// Returns how long to rest after `ns` nanoseconds of work.
fn rest_of(denova: &DeNova, ns: u64, saw_operations: bool) -> Duration {
    let percent = u64::from(denova.options.cpu_percent.clamp(1, 100));
    let share = ns * (100 - percent) / percent;
    let behind = if saw_operations { ns.max(IDLE_LEAST.as_nanos() as u64) } else { 0 };
    Duration::from_nanos(share.max(behind))
}
