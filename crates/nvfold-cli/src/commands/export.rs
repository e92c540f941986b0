//! `nvfold export`: copies a tree from an unmounted device to the host.

use super::trees::{self, Counts};
use crate::dedup_options::DedupOptions;
use crate::device::{self, DeviceOptions, mount_embedded};
use crate::failure::{Doing, Outcome};
use crate::mounts;
use crate::output::Output;
use crate::progress::Progress;
use crate::report;
use crate::size;
use crate::stop::Stop;
use clap::Args;
use nvfold::host::{self, ExportOptions};
use nvfold::{InodeNumber, Policy};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Instant;

/// Copy files and directories of an unmounted device to the host
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold export /dev/shm/pool restored")]
pub(crate) struct Export {
    /// Unmounted device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// New path for the copy; if it is an existing directory, the content of the exported directory goes into it
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Path on the device to copy
    #[arg(long, value_name = "PATH", default_value = "/")]
    from: PathBuf,
    /// Number of threads that copy [default: one for each processor]
    #[arg(long, default_value_t = device::processors(), hide_default_value = true, value_parser = trees::threads)]
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

/// Runs the command.
pub(crate) fn run(export: &Export, output: &Output) -> Outcome<u8> {
    let name = mounts::show(&export.device);
    if let Some(parent) = export.dest.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::metadata(parent).doing(mounts::show(parent))?;
    }
    let stop = Stop::on_signals()?;
    let fs =
        mount_embedded(&export.device, &export.device_options, &DedupOptions::of(Policy::Off), true, export.threads)?;
    let options = ExportOptions { from: export.from.clone(), to: export.dest.clone(), threads: export.threads };
    let started = Instant::now();
    let whole = fs.resolve(export.from.as_os_str().as_bytes()).is_ok_and(|from| from.ino == InodeNumber::ROOT);
    let progress = Progress::new(output.progress, "export", if whole { fs.stats().logical_bytes } else { 0 });
    let files = |files| format!("{files} files");
    let done = trees::watched(progress, &stop, files, |watch| host::export(&fs, &options, watch));
    let seconds = started.elapsed().as_secs_f64();
    let counts = trees::finish("export", &name, done, &stop)?;
    let report = Report { device: name, bytes_per_second: counts.bytes as f64 / seconds.max(1e-9), seconds, counts };
    report::emit_done(output.json, output.quiet, "export", &report, || {
        format!(
            "exported {} in {:.2} s, {}/s",
            report.counts.words(),
            seconds,
            size::show(report.bytes_per_second as u64)
        )
    })?;
    Ok(u8::from(report.counts.problem_count > 0))
}
