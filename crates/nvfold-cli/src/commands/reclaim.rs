//! `nvfold reclaim`: frees dead space in packed segments, and in chunks that are in use only in part.
//!
//! A mount does this by itself when it frees more than it costs, and whenever an operation finds no space. This
//! command does all of it now, in short requests, so that it can show progress and can be stopped.

use super::stats::collected_words;
use crate::device::DeviceOptions;
use crate::failure::Outcome;
use crate::mount::{requests::ReclaimLeft, settings};
use crate::output::Output;
use crate::progress::Progress;
use crate::report;
use crate::size;
use crate::stop::Stop;
use crate::stored::Stored;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Free space that deleted data still occupies
///
/// Packed chunks are stored in segments of 2 MiB, and a segment becomes free only when nothing in it is in use. This
/// command moves chunks that are in use out of segments that are mostly dead. Some blocks and packed chunks are used
/// only in part, after clones of ranges or partial overwrites; smaller chunks with the used bytes replace them. A mount
/// does both by itself when that frees more than it costs, and when space runs out. If it is interrupted, the work done
/// so far stays. On a mount, root and the user who mounted it may use it.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold reclaim /tmp/fold")]
pub(crate) struct Reclaim {
    /// Mount point or device
    #[arg(value_name = "DIR|DEVICE")]
    target: PathBuf,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Serialize)]
struct Report {
    /// Dead bytes in packed segments.
    dead_bytes_before: u64,
    dead_bytes_after: u64,
    /// The number of segments emptied.
    segments: u64,
    /// Bytes moved to empty them.
    moved_bytes: u64,
    /// Bytes freed.
    freed_bytes: u64,
    /// Blocks and packed chunks replaced by smaller ones, and the bytes saved by that.
    collected_chunks: u64,
    collected_bytes: u64,
    available_bytes_before: u64,
    available_bytes_after: u64,
    seconds: f64,
}

/// Runs the command.
pub(crate) fn run(reclaim: &Reclaim, output: &Output) -> Outcome<u8> {
    let Reclaim { target, device_options } = reclaim;
    let (stored, paths) = Stored::open(std::slice::from_ref(target), &[], None, device_options, false)?;
    let done = reclaim_all(&stored, &paths[0], target, output);
    stored.close()?;
    let done = done?;
    report::emit_done(output.json, output.quiet, "reclaim", &done, || describe(&done))?;
    Ok(0)
}

fn reclaim_all(stored: &Stored, path: &Path, target: &Path, output: &Output) -> Outcome<Report> {
    let stop = Stop::on_signals()?;
    stored.settle(path)?;
    let (before, started) = (stored.space(path)?, Instant::now());
    let dead_bytes = before.reclaim.dead_bytes;
    let mut progress = Progress::new(output.progress, "reclaim", dead_bytes);
    loop {
        let asked = stored.reclaim_some(path);
        let left: ReclaimLeft =
            asked.map_err(|refused| settings::refused(target, "reclaim space", refused.errno, &refused))?;
        let note = || format!("{} dead", size::show(left.dead_bytes));
        let done_bytes = dead_bytes.saturating_sub(left.dead_bytes);
        if left.is_done {
            progress.finish(done_bytes, note);
            break;
        }
        progress.update(done_bytes, note);
        if let Some(reason) = stop.reason("reclaim") {
            return Err(reason.hint(format!("stopped with {} dead; what is done stays", size::show(left.dead_bytes))));
        }
    }
    let after = stored.space(path)?;
    Ok(Report {
        dead_bytes_before: dead_bytes,
        dead_bytes_after: after.reclaim.dead_bytes,
        segments: after.reclaim.segments - before.reclaim.segments,
        moved_bytes: after.reclaim.moved_bytes - before.reclaim.moved_bytes,
        freed_bytes: after.reclaim.freed_bytes - before.reclaim.freed_bytes,
        collected_chunks: after.reclaim.collected_chunks - before.reclaim.collected_chunks,
        collected_bytes: after.reclaim.collected_bytes - before.reclaim.collected_bytes,
        available_bytes_before: before.available_bytes,
        available_bytes_after: after.available_bytes,
        seconds: started.elapsed().as_secs_f64(),
    })
}

fn describe(report: &Report) -> String {
    let from_to = |before, after| format!("{} before, {} after", size::show(before), size::show(after));
    let per_freed = report.moved_bytes as f64 / report.freed_bytes.max(1) as f64;
    let moved = format!("{}, {per_freed:.2} bytes per byte freed", size::show(report.moved_bytes));
    report::facts(&[
        ("segments emptied", format!("{} in {:.2} s", report.segments, report.seconds)),
        ("moved", moved),
        ("collected", collected_words(report.collected_chunks, report.collected_bytes)),
        ("dead bytes", from_to(report.dead_bytes_before, report.dead_bytes_after)),
        ("available", from_to(report.available_bytes_before, report.available_bytes_after)),
    ])
}
