//! The work queue of policy denova: draining it, and controlling when the daemon works.
//!
//! Draining goes in short requests, so that the command can show progress and can be stopped; the rest then stays
//! queued. The daemon's limits do not apply, because the user waits for the result.

use crate::dedup_options::parse_mode;
use crate::device::DeviceOptions;
use crate::failure::Outcome;
use crate::mount::requests::Left;
use crate::mount::{Setting, settings, yes_or_no};
use crate::mounts;
use crate::output::Output;
use crate::progress::Progress;
use crate::report;
use crate::size;
use crate::statistics::{Statistics, mount_point_of};
use crate::stop::Stop;
use crate::stored::Stored;
use crate::text::counted;
use clap::Args;
use nvfold::{DeNovaStats, DedupMode};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// What to do with the queue, instead of going through files.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub(super) struct Steer {
    /// Share everything that policy denova has queued, now and without its limits
    #[arg(long)]
    pub drain: bool,
    /// Pause the dedup daemon of a mount; new data is still queued
    #[arg(long)]
    pub pause: bool,
    /// Resume the dedup daemon of a mount
    #[arg(long)]
    pub resume: bool,
    /// Change when policy denova of a mount shares: inline, immediate, or delayed:MS:ENTRIES (at most ENTRIES queue
    /// entries every MS milliseconds)
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub mode: Option<DedupMode>,
}

impl Steer {
    /// Returns the setting to change, if there is one.
    pub(super) fn change(&self) -> Option<(Setting, String)> {
        let paused = |paused| (Setting::Paused, yes_or_no(paused).to_owned());
        match self {
            Steer { pause: true, .. } => Some(paused(true)),
            Steer { resume: true, .. } => Some(paused(false)),
            Steer { mode: Some(mode), .. } => Some((Setting::Mode, mode.to_string())),
            _ => None,
        }
    }
}

#[derive(Serialize)]
struct Changed {
    device: String,
    /// The present state of the policy; absent while no new data goes to it.
    denova: Option<DeNovaStats>,
}

/// Changes a setting of a mount.
pub(super) fn change(target: &Path, (setting, value): (Setting, String), output: &Output) -> Outcome<u8> {
    let dir =
        mount_point_of(target).map_err(|failure| failure.hint("a device has no daemon while it is not mounted"))?;
    settings::ask(&dir, setting, &value)?;
    let statistics = Statistics::of(&dir, &DeviceOptions::default())?;
    let changed = Changed { device: statistics.device, denova: statistics.denova };
    report::emit_done(output.json, output.quiet, "dedup", &changed, || match &changed.denova {
        Some(now) => format!("{}: {}", changed.device, describe_queue(now)),
        None => format!("{}: this is set for when data goes to policy denova", changed.device),
    })?;
    Ok(0)
}

/// Describes mode and queue in one line.
fn describe_queue(now: &DeNovaStats) -> String {
    let paused = if now.paused { ", paused" } else { "" };
    let entries = counted(now.queue_entries, "entry", "entries");
    format!("mode {}{paused}; {entries} queued ({})", now.mode, size::show(now.queue_bytes))
}

#[derive(Serialize)]
struct Drained {
    /// The queue at the start.
    queue_entries_before: u64,
    queue_bytes_before: u64,
    /// Bytes in data blocks in use, for the whole file system.
    stored_bytes_before: u64,
    stored_bytes_after: u64,
    /// Bytes saved by sharing, for the whole file system.
    saved_bytes_before: u64,
    saved_bytes_after: u64,
    seconds: f64,
}

/// Drains the queue of a mount, or of a device that this process has mounted.
pub(super) fn drain(stored: &Stored, path: &Path, output: &Output) -> Outcome<u8> {
    let stop = Stop::on_signals()?;
    stored.settle(path)?;
    let before = stored.space(path)?;
    let queued = stored.queued(path)?;
    let started = Instant::now();
    drain_all(queued.bytes, &stop, output, || {
        stored.drain_some(path).map_err(|refused| settings::refused(path, "drain the queue", refused.errno, &refused))
    })?;
    let after = stored.space(path)?;
    let drained = Drained {
        queue_entries_before: queued.entries,
        queue_bytes_before: queued.bytes,
        stored_bytes_before: before.stored_bytes,
        stored_bytes_after: after.stored_bytes,
        saved_bytes_before: before.saved_bytes,
        saved_bytes_after: after.saved_bytes,
        seconds: started.elapsed().as_secs_f64(),
    };
    report::emit_done(output.json, output.quiet, "dedup", &drained, || describe(&mounts::show(path), &drained))?;
    Ok(0)
}

/// Calls `drain_some` until nothing is left, and shows progress; `bytes` is the length of the queue at the start.
pub(crate) fn drain_all(
    bytes: u64,
    stop: &Stop,
    output: &Output,
    mut drain_some: impl FnMut() -> Outcome<Left>,
) -> Outcome<()> {
    let mut progress = Progress::new(output.progress, "share", bytes);
    loop {
        let left = drain_some()?;
        let note = || format!("{} left", counted(left.entries, "entry", "entries"));
        let done_bytes = bytes.saturating_sub(left.bytes);
        if left.is_done {
            progress.finish(done_bytes, note);
            return Ok(());
        }
        progress.update(done_bytes, note);
        if let Some(reason) = stop.reason("drain") {
            let why = format!("{} ({}) stay queued", counted(left.entries, "entry", "entries"), size::show(left.bytes));
            return Err(reason.hint(why));
        }
    }
}

fn describe(name: &str, drained: &Drained) -> String {
    let from_to = |before, after| format!("{} before, {} after", size::show(before), size::show(after));
    let Drained { queue_entries_before, queue_bytes_before, seconds, .. } = drained;
    let rate = size::show((*queue_bytes_before as f64 / seconds.max(1e-9)) as u64);
    let entries = counted(*queue_entries_before, "entry", "entries");
    report::facts(&[
        ("drained", format!("{name}: {entries}, {}", size::show(*queue_bytes_before))),
        ("in", format!("{seconds:.2} s, {rate}/s")),
        ("stored", from_to(drained.stored_bytes_before, drained.stored_bytes_after)),
        ("saved", from_to(drained.saved_bytes_before, drained.saved_bytes_after)),
    ])
}
