//! `nvfold export`: copies a tree of an unmounted device out to the host.

use crate::cli::Output;
use crate::commands::import::threads;
use crate::dedup_options::DedupOptions;
use crate::device::{self, DeviceOptions, mount_embedded};
use crate::failure::{Doing, Failure, Outcome};
use crate::mounts;
use crate::progress::Progress;
use crate::report;
use crate::size;
use crate::tree::export::Export as Exporter;
use crate::tree::{Counts, Tally};
use clap::Args;
use nvfold::{FileKind, Policy};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Instant;

/// Copy files and directories of an unmounted device out to the host
#[derive(Args, Debug)]
pub struct Export {
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// New path of the copy; an existing directory takes the content in
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// What to copy, a path on the device
    #[arg(long, value_name = "PATH", default_value = "/")]
    from: PathBuf,
    /// Threads that copy
    #[arg(long, default_value_t = device::processors(), value_parser = threads)]
    threads: usize,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Serialize)]
struct Report {
    device: String,
    #[serde(flatten)]
    counts: Counts,
    seconds: f64,
    bytes_per_second: f64,
}

/// Runs it.
pub fn run(export: &Export, output: &Output) -> Outcome<u8> {
    let name = mounts::show(&export.device);
    let tally = Tally::new()?;
    let fs =
        mount_embedded(&export.device, &export.device_options, &DedupOptions::of(Policy::Off), true, export.threads)?;
    let from =
        fs.resolve(export.from.as_os_str().as_bytes()).doing(format!("{name}: {}", mounts::show(&export.from)))?;
    if from.kind != FileKind::Directory && export.dest.is_dir() {
        return Err(Failure::new(mounts::show(&export.dest), "is a directory; name the new file"));
    }
    let started = Instant::now();
    let whole = from.ino == nvfold::InodeNumber::ROOT;
    let mut progress = Progress::new(output.progress, "export", if whole { fs.stats().logical_bytes } else { 0 });
    Exporter { fs: &fs, tally: &tally, threads: export.threads }.run(from, &export.dest, &mut progress);
    let seconds = started.elapsed().as_secs_f64();
    let counts = tally.counts();
    counts.tell_problems();
    if let Some(reason) = tally.stop_reason("export") {
        return Err(reason);
    }
    let report = Report { device: name, bytes_per_second: counts.bytes as f64 / seconds.max(1e-9), seconds, counts };
    report::emit(output.json, "export", &report, || {
        format!(
            "exported {} in {:.2} s, {}/s",
            report.counts.words(),
            seconds,
            size::show(report.bytes_per_second as u64)
        )
    })?;
    Ok(u8::from(report.counts.problem_count > 0))
}
