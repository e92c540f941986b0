//! What all directories of a mount share: options, measured costs, and what the device allows.

use super::model;
use super::options::{AutoOptions, Prefer};
use crate::compression::Compression;
use crate::dedup::PolicyDevice;
use crate::dedup::denova::DeNova;
use crate::dedup::nv_dedup::costs;
use crate::dedup::nv_dedup::options::{Costs, smooth};
use crate::media::BLOCK_BYTES;
use crate::words::Stopwatch;
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// Threads report their bytes in parts of a period, this many to a period.
pub(super) const PARTS: u64 = 128;
/// At most one nanosecond in this many is spent on measuring costs.
const MEASURED_OF: u64 = 512;

/// State that all directories share; see the module.
pub(super) struct Common {
    options: AutoOptions,
    part_bytes: u64,
    /// Clock for measuring costs; `None` when the costs were given.
    stopwatch: Option<Stopwatch>,
    measured: Mutex<Measured>,
    denova: Arc<DeNova>,
    /// True once a dedup daemon runs, so that data may be stored now and shared later.
    has_daemon: AtomicBool,
    /// How packed chunks are compressed.
    compression: Compression,
    /// Number of periods that ended, over all directories.
    changes: AtomicU64,
}

/// The costs, and whether they were measured.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    pub(super) costs: Costs,
    pub(super) run_write_ns: u64,
    pub(super) compress_ns: u64,
    pub(super) measured: bool,
    /// Time of the stopwatch before which costs are not measured again, nanoseconds.
    not_before_ns: u64,
}

impl Common {
    pub(super) fn new(
        options: AutoOptions,
        given: Option<Costs>,
        stopwatch: Option<Stopwatch>,
        denova: Arc<DeNova>,
        compression: Compression,
    ) -> Common {
        let costs = given.unwrap_or(Costs::PAPER);
        let measured = Measured {
            costs,
            run_write_ns: costs.write_ns,
            compress_ns: model::COMPRESS_NS,
            measured: false,
            not_before_ns: 0,
        };
        Common {
            options,
            part_bytes: part_bytes(options.period),
            stopwatch: stopwatch.filter(|_| given.is_none()),
            measured: Mutex::new(measured),
            denova,
            has_daemon: AtomicBool::new(false),
            compression,
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

    /// Records that a dedup daemon works on the queue.
    pub(super) fn daemon_works(&self) {
        if !self.has_daemon.load(Ordering::Relaxed) {
            self.has_daemon.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the bytes that the daemon of `denova` has looked at and those that it has shared since mount.
    pub(super) fn shared_later(&self) -> (u64, u64) {
        self.denova.looked_at_and_shared()
    }

    /// Returns the number of periods that ended so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Counts the end of a period.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Measures the costs of a block now, unless they were measured a short time ago. On a full device, or without a
    /// stopwatch, the costs stay as they are.
    pub(super) fn measure(&self, ground: &PolicyDevice<'_>) {
        let Some(stopwatch) = &self.stopwatch else { return };
        let begun = stopwatch();
        if begun < self.costs().not_before_ns {
            return;
        }
        let with_entries = !ground.chunks.finds_private();
        let Some(mut new) = costs::measure(ground, stopwatch, with_entries) else { return };
        let run = costs::measure_run(ground, stopwatch).unwrap_or(new.write_ns);
        // The one block that `costs` measures with is in the CPU cache, where the medium is cached.
        new.write_ns = new.write_ns.max(run);
        let known = self.costs();
        let compress_ns = match known.measured || self.compression == Compression::Off {
            true => known.compress_ns,
            false => measure_compression(self.compression, stopwatch),
        };
        let (costs, run_write_ns) = match known.measured {
            true => (known.costs.smoothed(&new), smooth(known.run_write_ns, run)),
            false => (new, run),
        };
        let ended = stopwatch();
        let not_before_ns = ended.saturating_add(ended.saturating_sub(begun).saturating_mul(MEASURED_OF));
        *self.measured.lock() = Measured { costs, run_write_ns, compress_ns, measured: true, not_before_ns };
    }

    /// Returns what the model knows of the device.
    pub(super) fn model_ground(&self, ground: &PolicyDevice<'_>) -> model::DeviceCosts {
        let Measured { costs, run_write_ns, compress_ns, .. } = self.costs();
        let is_pm = ground.chunks.index.fact().is_some();
        model::DeviceCosts {
            costs,
            run_write_ns,
            compress_ns,
            shares_later: is_pm && self.has_daemon.load(Ordering::Relaxed) && !self.denova.is_inline(),
            packs: self.compression != Compression::Off && ground.chunks.entries.may_pack(),
        }
    }
}

/// Returns the time to compress a block, nanoseconds: the median of three runs over 16 KiB that shrink to about a half.
fn measure_compression(compression: Compression, stopwatch: &Stopwatch) -> u64 {
    const BLOCKS: u64 = 4;
    let mix = |at: u64| at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    // Eight-byte words drawn from a small set, in an order that does not repeat.
    let word = |at: u64| (mix(mix(at) % 256) << 32 | mix(mix(at) % 256 + 1)).to_le_bytes();
    let content: Vec<u8> = (0..BLOCKS * BLOCK_BYTES / 8).flat_map(word).collect();
    let mut samples = [0; 3].map(|_: u64| {
        let begun = stopwatch();
        std::hint::black_box(compression.compress(std::hint::black_box(&content)));
        stopwatch().saturating_sub(begun) / BLOCKS
    });
    samples.sort_unstable();
    samples[1]
}

/// Returns the bytes in a part of a period of `period` blocks.
fn part_bytes(period: u64) -> u64 {
    (period.max(1).saturating_mul(BLOCK_BYTES) / PARTS).max(1)
}
