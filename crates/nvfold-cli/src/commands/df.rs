//! `nvfold df`: logical and stored bytes, savings by sharing and compression, and free space.

use crate::device::DeviceOptions;
use crate::failure::{FAILED, Outcome};
use crate::mounts;
use crate::output::Output;
use crate::report;
use crate::size;
use crate::statistics::{InSnapshots, Statistics};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Show space: logical, stored, saved by sharing and compression, metadata, reserved, free, and allocated on the host
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold df")]
pub(crate) struct Df {
    /// Devices or mount points; by default all mounted ones
    #[arg(value_name = "DEVICE|DIR")]
    targets: Vec<PathBuf>,
    /// Also show how many snapshots there are, and what only they hold (for root and the user who mounted it). This looks
    /// at all files
    #[arg(short, long)]
    snapshots: bool,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Serialize)]
struct Report {
    file_systems: Vec<Row>,
}

/// One line of the report, in bytes.
#[derive(Serialize)]
struct Row {
    device: String,
    mount_point: Option<String>,
    /// The bytes of its path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    mount_point_hex: Option<String>,
    size_bytes: u64,
    logical_bytes: u64,
    stored_bytes: u64,
    saved_bytes: u64,
    compressed_away_bytes: u64,
    metadata_bytes: u64,
    reserved_bytes: u64,
    free_bytes: u64,
    available_bytes: u64,
    host_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshots: Option<InSnapshots>,
}

/// Runs the command.
pub(crate) fn run(df: &Df, output: &Output) -> Outcome<u8> {
    let targets = match df.targets.is_empty() {
        true => mounts::all().into_iter().map(|mounted| mounted.dir).collect(),
        false => df.targets.clone(),
    };
    // A target that does not answer must not hide the others. It is a failure only if the user named it.
    let statistics = if df.snapshots { Statistics::with_snapshots } else { Statistics::of };
    let row = |target: &PathBuf| statistics(target, &df.device_options).and_then(row);
    let told = |target: &PathBuf| row(target).inspect_err(|failure| failure.report("df")).ok();
    let file_systems: Vec<Row> = targets.iter().filter_map(told).collect();
    let has_failed = !df.targets.is_empty() && file_systems.len() < targets.len();
    let report = Report { file_systems };
    if !has_failed || !report.file_systems.is_empty() || output.json {
        report::emit(output.json, "df", &report, || describe(&report))?;
    }
    Ok(if has_failed { FAILED } else { 0 })
}

fn row(statistics: Statistics) -> Outcome<Row> {
    let space = statistics.known_space()?;
    Ok(Row {
        size_bytes: space.device_bytes,
        logical_bytes: space.logical_bytes,
        stored_bytes: space.stored_bytes,
        saved_bytes: space.saved_bytes,
        compressed_away_bytes: space.compressed_away_bytes,
        metadata_bytes: space.metadata_bytes,
        reserved_bytes: space.reserved_bytes,
        free_bytes: space.free_bytes,
        available_bytes: space.available_bytes,
        host_bytes: space.device_allocated_bytes,
        snapshots: statistics.snapshots,
        device: statistics.device.clone(),
        mount_point: statistics.mount_point.clone(),
        mount_point_hex: statistics.mount_point_hex.clone(),
    })
}

fn describe(report: &Report) -> String {
    let has_snapshots = report.file_systems.iter().any(|row| row.snapshots.is_some());
    let mut header = vec![
        "device",
        "size",
        "logical",
        "stored",
        "shared",
        "compressed",
        "metadata",
        "reserved",
        "free",
        "host",
        "mounted on",
    ];
    if has_snapshots {
        header.insert(header.len() - 1, "snapshots");
    }
    let row = |row: &Row| {
        let sizes = [
            row.size_bytes,
            row.logical_bytes,
            row.stored_bytes,
            row.saved_bytes,
            row.compressed_away_bytes,
            row.metadata_bytes,
            row.reserved_bytes,
            row.free_bytes,
            row.host_bytes,
        ];
        let mut cells = vec![row.device.clone()];
        cells.extend(sizes.map(size::show));
        if has_snapshots {
            cells.push(
                row.snapshots.map_or("-".into(), |held| format!("{} of {}", size::show(held.only_bytes), held.count)),
            );
        }
        cells.push(row.mount_point.clone().unwrap_or_else(|| "-".into()));
        cells
    };
    report::table(&header, report.file_systems.iter().map(row))
}
