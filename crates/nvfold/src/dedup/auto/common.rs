//! What all directories of a mount share: options, measured costs, what the device allows.

use super::model;
use super::options::{AutoOptions, Prefer};
use crate::dedup::Ground;
use crate::dedup::denova::DeNova;
use crate::dedup::nv_dedup::costs;
use crate::dedup::nv_dedup::options::{Costs, smooth};
use crate::media::BLOCK_BYTES;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::words::Stopwatch;
use std::sync::Arc;

/// Threads tell of their bytes in parts of a period.
pub(super) const PARTS: u64 = 16;

/// See the module.
pub(super) struct Common {
    options: AutoOptions,
    part_bytes: u64,
    /// What costs are measured with; absent when they were given.
    stopwatch: Option<Stopwatch>,
    measured: Mutex<Measured>,
    denova: Arc<DeNova>,
    /// A daemon shares later what is stored now.
    has_daemon: AtomicBool,
    /// Packed chunks are compressed.
    compresses: bool,
    /// Goes up with every end of a period.
    changes: AtomicU64,
}

/// Costs, and whether they were measured.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    pub(super) costs: Costs,
    pub(super) run_write_ns: u64,
    pub(super) measured: bool,
}

impl Common {
    pub(super) fn new(
        options: AutoOptions,
        given: Option<Costs>,
        stopwatch: Option<Stopwatch>,
        denova: Arc<DeNova>,
        compresses: bool,
    ) -> Common {
        let costs = given.unwrap_or(Costs::PAPER);
        Common {
            options,
            part_bytes: part_bytes(options.period),
            stopwatch: stopwatch.filter(|_| given.is_none()),
            measured: Mutex::new(Measured { costs, run_write_ns: costs.write_ns, measured: false }),
            denova,
            has_daemon: AtomicBool::new(false),
            compresses,
            changes: AtomicU64::new(0),
        }
    }

    pub(super) fn prefer(&self) -> Prefer {
        self.options.prefer
    }

    pub(super) fn part_bytes(&self) -> u64 {
        self.part_bytes
    }

    pub(super) fn costs(&self) -> Measured {
        *self.measured.lock()
    }

    /// A daemon works on what is queued.
    pub(super) fn daemon_works(&self) {
        if !self.has_daemon.load(Ordering::Relaxed) {
            self.has_daemon.store(true, Ordering::Relaxed);
        }
    }

    /// What the daemon of `denova` has looked at and shared since mount, bytes.
    pub(super) fn shared_later(&self) -> (u64, u64) {
        self.denova.looked_at_and_shared()
    }

    /// Ends of periods so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// A period is over.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Measures what blocks cost now. On a full device, or without a stopwatch, the costs stay as they are.
    pub(super) fn measure(&self, ground: &Ground<'_>) {
        let Some(stopwatch) = &self.stopwatch else { return };
        let with_entries = !ground.chunks.finds_private();
        let Some(new) = costs::measure(ground, stopwatch, with_entries) else { return };
        let run = costs::measure_run(ground, stopwatch).unwrap_or(new.write_ns).min(new.write_ns);
        let mut measured = self.measured.lock();
        let (costs, run_write_ns) = match measured.measured {
            true => (measured.costs.smoothed(&new), smooth(measured.run_write_ns, run)),
            false => (new, run),
        };
        *measured = Measured { costs, run_write_ns, measured: true };
    }

    /// What the model calculates with.
    pub(super) fn model_ground(&self, ground: &Ground<'_>) -> model::Ground {
        let Measured { costs, run_write_ns, .. } = self.costs();
        let is_pm = ground.chunks.index.fact().is_some();
        model::Ground {
            costs,
            run_write_ns,
            shares_later: is_pm && self.has_daemon.load(Ordering::Relaxed) && !self.denova.is_inline(),
            packs: self.compresses && ground.chunks.entries.may_pack(),
        }
    }
}

/// Bytes of a part of a period of so many blocks.
fn part_bytes(period: u64) -> u64 {
    (period.max(1).saturating_mul(BLOCK_BYTES) / PARTS).max(1)
}
