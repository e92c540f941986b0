//! `nvfold df`: where the space is: what files name, what is stored, what sharing and compression save.

use crate::device::DeviceOptions;
use crate::failure::{Failure, Outcome};
use crate::mounts;
use crate::output::Output;
use crate::report;
use crate::size;
use crate::snapshot::Snapshot;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Show space: logical, stored, saved by sharing and by compression, metadata, free, and what the device takes of the host
#[derive(Args, Debug)]
pub struct Df {
    /// Devices or mount points; all mounted ones unless given
    #[arg(value_name = "DEVICE|DIR")]
    targets: Vec<PathBuf>,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Serialize)]
struct Report {
    file_systems: Vec<Row>,
}

/// Bytes.
#[derive(Serialize)]
struct Row {
    device: String,
    mount_point: Option<String>,
    size_bytes: u64,
    logical_bytes: u64,
    stored_bytes: u64,
    saved_bytes: u64,
    compressed_away_bytes: u64,
    metadata_bytes: u64,
    free_bytes: u64,
    available_bytes: u64,
    host_bytes: u64,
}

/// Runs it.
pub fn run(df: &Df, output: &Output) -> Outcome<u8> {
    let row = |target: &PathBuf| Snapshot::of(target, &df.device_options).and_then(row);
    let file_systems = if df.targets.is_empty() {
        // One mount that does not answer must not hide the others.
        let told = |row: Outcome<Row>| row.inspect_err(Failure::report).ok();
        mounts::all().iter().filter_map(|mounted| told(row(&mounted.dir))).collect()
    } else {
        df.targets.iter().map(row).collect::<Outcome<_>>()?
    };
    let report = Report { file_systems };
    report::emit(output.json, "df", &report, || describe(&report))?;
    Ok(0)
}

fn row(snapshot: Snapshot) -> Outcome<Row> {
    let space = snapshot.known_space()?;
    Ok(Row {
        size_bytes: space.device_bytes,
        logical_bytes: space.logical_bytes,
        stored_bytes: space.stored_bytes,
        saved_bytes: space.saved_bytes,
        compressed_away_bytes: space.compressed_away_bytes,
        metadata_bytes: space.metadata_bytes,
        free_bytes: space.free_bytes,
        available_bytes: space.available_bytes,
        host_bytes: space.device_allocated_bytes,
        device: snapshot.device.clone(),
        mount_point: snapshot.mount_point.clone(),
    })
}

fn describe(report: &Report) -> String {
    let header =
        ["device", "size", "logical", "stored", "shared", "compressed", "metadata", "free", "host", "mounted on"];
    let row = |row: &Row| {
        let sizes = [
            row.size_bytes,
            row.logical_bytes,
            row.stored_bytes,
            row.saved_bytes,
            row.compressed_away_bytes,
            row.metadata_bytes,
            row.free_bytes,
            row.host_bytes,
        ];
        let mut cells = vec![row.device.clone()];
        cells.extend(sizes.map(size::show));
        cells.push(row.mount_point.clone().unwrap_or_else(|| "-".into()));
        cells
    };
    report::table(&header, report.file_systems.iter().map(row))
}
