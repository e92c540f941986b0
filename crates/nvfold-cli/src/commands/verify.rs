//! `nvfold verify`: compares a tree of the host with its copy on an unmounted device, byte by byte.

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
use crate::text::counted;
use clap::Args;
use nvfold::Policy;
use nvfold::host::{self, VerifyOptions};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Compare a tree of the host with its copy on an unmounted device: contents and metadata
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold verify /dev/shm/pool /usr/share")]
pub(crate) struct Verify {
    /// Unmounted device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// File or directory of the host
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Path of its copy on the device [default: /NAME of SRC]
    #[arg(long, value_name = "PATH")]
    at: Option<PathBuf>,
    /// Number of threads that compare [default: one for each processor]
    #[arg(long, default_value_t = device::processors(), hide_default_value = true, value_parser = trees::threads)]
    threads: usize,
    /// The copy was made with --one-file-system
    #[arg(short = 'x', long)]
    one_file_system: bool,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Serialize)]
struct Report {
    device: String,
    equal: bool,
    #[serde(flatten)]
    counts: Counts,
    seconds: f64,
    bytes_per_second: f64,
}

/// Runs the command. The exit code is 1 if there are differences.
pub(crate) fn run(verify: &Verify, output: &Output) -> Outcome<u8> {
    let name = mounts::show(&verify.device);
    std::fs::symlink_metadata(&verify.source).doing(mounts::show(&verify.source))?;
    let stop = Stop::on_signals()?;
    let fs =
        mount_embedded(&verify.device, &verify.device_options, &DedupOptions::of(Policy::Off), true, verify.threads)?;
    let options = VerifyOptions {
        source: verify.source.clone(),
        at: verify.at.clone(),
        threads: verify.threads,
        one_file_system: verify.one_file_system,
    };
    let started = Instant::now();
    let progress = Progress::new(output.progress, "verify", 0);
    let files = |files| format!("{files} files");
    let done = trees::watched(progress, &stop, files, |watch| host::verify(&fs, &options, watch));
    let seconds = started.elapsed().as_secs_f64();
    let counts = trees::finish("verify", &name, done, &stop)?;
    let equal = counts.problem_count == 0;
    let report =
        Report { device: name, equal, bytes_per_second: counts.bytes as f64 / seconds.max(1e-9), seconds, counts };
    report::emit(output.json, "verify", &report, || {
        let rate = size::show(report.bytes_per_second as u64);
        let verdict =
            if equal { "all equal".into() } else { counted(report.counts.problem_count, "difference", "differences") };
        format!("compared {} in {seconds:.2} s, {rate}/s: {verdict}", report.counts.words())
    })?;
    Ok(u8::from(!equal))
}
