//! `nvfold dedup-stats`: space saved by sharing, and how often sharing was tried.

use crate::device::DeviceOptions;
use crate::failure::Outcome;
use crate::output::Output;
use crate::report;
use crate::size;
use crate::statistics::Statistics;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Show how much space sharing saves
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold dedup-stats /tmp/fold")]
pub(crate) struct DedupStats {
    /// Device or mount point
    #[arg(value_name = "DEVICE|DIR")]
    target: PathBuf,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Serialize)]
struct Report {
    device: String,
    policy: Option<String>,
    logical_bytes: u64,
    stored_bytes: u64,
    saved_bytes: u64,
    /// Bytes saved by compression.
    compressed_away_bytes: u64,
    /// Bytes of files in policy denova's queue, which may save more later. Absent without a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_bytes: Option<u64>,
    /// Logical bytes per stored byte; `None` if nothing is stored.
    ratio: Option<f64>,
    /// Since mount.
    pieces_offered: u64,
    pieces_shared: u64,
    weak_collisions: u64,
}

/// Runs the command.
pub(crate) fn run(stats: &DedupStats, output: &Output) -> Outcome<u8> {
    let statistics = Statistics::of(&stats.target, &stats.device_options)?;
    let space = statistics.known_space()?;
    let ratio = (space.stored_bytes > 0).then(|| space.logical_bytes as f64 / space.stored_bytes as f64);
    let report = Report {
        device: statistics.device.clone(),
        policy: statistics.policy.clone(),
        logical_bytes: space.logical_bytes,
        stored_bytes: space.stored_bytes,
        saved_bytes: space.saved_bytes,
        compressed_away_bytes: space.compressed_away_bytes,
        queue_bytes: statistics.denova.as_ref().map(|denova| denova.queue_bytes),
        ratio,
        pieces_offered: space.pieces_offered,
        pieces_shared: space.pieces_shared,
        weak_collisions: space.weak_collisions,
    };
    report::emit(output.json, "dedup-stats", &report, || describe(&report))?;
    Ok(0)
}

fn describe(report: &Report) -> String {
    let pieces =
        |pieces: u64| format!("{pieces} ({} of those offered)", report::percent(pieces, report.pieces_offered));
    let mut rows = vec![
        ("policy", report.policy.clone().unwrap_or_else(|| "not mounted".into())),
        ("logical", size::show(report.logical_bytes)),
        ("stored", size::show(report.stored_bytes)),
        (
            "saved",
            format!(
                "{} ({} of logical)",
                size::show(report.saved_bytes),
                report::percent(report.saved_bytes, report.logical_bytes)
            ),
        ),
        ("ratio", report.ratio.map_or("-".into(), |ratio| format!("{ratio:.2} : 1"))),
        ("pieces offered since mount", report.pieces_offered.to_string()),
        ("pieces shared", pieces(report.pieces_shared)),
        ("weak collisions", pieces(report.weak_collisions)),
    ];
    if report.compressed_away_bytes > 0 {
        rows.insert(4, ("saved by compression", size::show(report.compressed_away_bytes)));
    }
    if let Some(bytes) = report.queue_bytes {
        rows.insert(4, ("queued, to be looked at", size::show(bytes)));
    }
    report::facts(&rows)
}
