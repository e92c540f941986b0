//! `nvfold import`: copies trees of the host to an unmounted device, without a mount.

use super::dedup::drain_all;
use super::trees::{self, Counts};
use crate::dedup_options::{self, DedupOptions, parse_policy};
use crate::device::{self, DeviceOptions, mount_embedded};
use crate::failure::{Doing, Failure, Outcome};
use crate::mount::requests;
use crate::mounts;
use crate::output::Output;
use crate::progress::Progress;
use crate::report;
use crate::size;
use crate::stop::Stop;
use clap::Args;
use nvfold::host::{self, ImportOptions};
use nvfold::{Policy, Stats};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Copy files and directories of the host onto an unmounted device
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold import /dev/shm/pool /usr/share")]
#[command(after_long_help = dedup_options::help())]
pub(crate) struct Import {
    /// Unmounted device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Files and directories to copy, with all their metadata
    #[arg(value_name = "SRC", required = true)]
    sources: Vec<PathBuf>,
    /// New path of the copy on the device; with several SRC, the directory that they go into
    /// [default: /NAME for each SRC]
    #[arg(long, value_name = "PATH")]
    to: Option<PathBuf>,
    /// Number of threads that copy [default: one for each processor]
    #[arg(long, default_value_t = device::processors(), hide_default_value = true, value_parser = trees::threads)]
    threads: usize,
    /// Policy: inline shares equal blocks while copying, nv-dedup as far as that pays, denova after copying; off stores
    /// everything
    #[arg(long, default_value = "inline", value_parser = parse_policy)]
    policy: Policy,
    /// Options of the policy, as for a mount, for example compress=zstd
    #[arg(
        short = 'o',
        value_name = "OPTIONS",
        long_help = "Options of the policy, as for a mount, for example compress=zstd; listed below"
    )]
    options: Vec<String>,
    /// Stay on the file system of each SRC
    #[arg(short = 'x', long)]
    one_file_system: bool,
    #[command(flatten)]
    device_options: DeviceOptions,
}

/// Parses --policy and -o.
fn dedup_options(import: &Import) -> Outcome<DedupOptions> {
    let mut dedup = DedupOptions::of(import.policy);
    let taken = import.options.iter().try_for_each(|list| dedup.take_list(list));
    taken.and_then(|()| dedup.check()).map_err(|why| Failure::usage("-o", why))?;
    Ok(dedup)
}

#[derive(Serialize)]
struct Report {
    device: String,
    #[serde(flatten)]
    counts: Counts,
    /// Time to copy.
    seconds: f64,
    /// Time to share queued data after that; 0 if the queue was empty.
    sharing_seconds: f64,
    bytes_per_second: f64,
    /// Logical bytes added to the device.
    logical_bytes_added: u64,
    stored_bytes_added: u64,
    /// Logical bytes added that were shared instead of stored.
    saved_bytes_added: u64,
    host_bytes: u64,
}

/// Runs the command.
pub(crate) fn run(import: &Import, output: &Output) -> Outcome<u8> {
    let name = mounts::show(&import.device);
    let dedup = dedup_options(import)?;
    for source in &import.sources {
        std::fs::symlink_metadata(source).doing(mounts::show(source))?;
    }
    let stop = Stop::on_signals()?;
    let options = import_options(import);
    let total_bytes = if Progress::wanted(output.progress) { options.total_bytes() } else { 0 };
    let fs = mount_embedded(&import.device, &import.device_options, &dedup, false, import.threads)?;
    let before = fs.stats();
    let started = Instant::now();
    let saved = |files| format!("{files} files, {} saved", size::show(fs.stats().saved_bytes));
    let progress = Progress::new(output.progress, "import", total_bytes);
    let done = trees::watched(progress, &stop, saved, |watch| host::import(&fs, &options, watch));
    let seconds = started.elapsed().as_secs_f64();
    // No dedup daemon runs on an unmounted device, so the queue is drained here, before savings are reported.
    let (sharing, queued) = (Instant::now(), requests::queued(&fs, false));
    let is_shared = match queued.entries > 0 && done.is_ok() && !stop.is_asked() {
        true => drain_all(queued.bytes, &stop, output, || requests::drain_some(&fs).doing(&name)),
        false => Ok(()),
    };
    let sharing_seconds = if queued.entries > 0 { sharing.elapsed().as_secs_f64() } else { 0.0 };
    let after = fs.stats();
    // Unmounts also after a failure, so that the device is clean; copied files stay.
    fs.unmount().doing(&name)?;
    is_shared?;
    let counts = match done {
        Err(host::TreeError::FileSystem { path, source, .. }) => {
            return Err(Failure::of(mounts::show(path.file_name().unwrap_or_default()), source));
        }
        done => trees::finish("import", &name, done, &stop)?,
    };
    let report = Report { sharing_seconds, ..Report::new(name, counts, seconds, &before, &after) };
    report::emit(output.json, "import", &report, || describe(&report))?;
    Ok(u8::from(report.counts.problem_count > 0))
}

fn import_options(import: &Import) -> ImportOptions {
    ImportOptions {
        sources: import.sources.clone(),
        to: import.to.clone(),
        threads: import.threads,
        one_file_system: import.one_file_system,
        device: Some(import.device.clone()),
    }
}

impl Report {
    fn new(device: String, counts: Counts, seconds: f64, before: &Stats, after: &Stats) -> Report {
        let logical_bytes_added = after.logical_bytes.saturating_sub(before.logical_bytes);
        let stored_bytes_added = after.stored_bytes.saturating_sub(before.stored_bytes);
        Report {
            device,
            bytes_per_second: counts.bytes as f64 / seconds.max(1e-9),
            seconds,
            sharing_seconds: 0.0,
            logical_bytes_added,
            stored_bytes_added,
            saved_bytes_added: logical_bytes_added.saturating_sub(stored_bytes_added),
            host_bytes: after.device_allocated_bytes,
            counts,
        }
    }
}

fn describe(report: &Report) -> String {
    let saved = report::percent(report.saved_bytes_added, report.logical_bytes_added);
    let rate = size::show(report.bytes_per_second as u64);
    let sharing = match report.sharing_seconds {
        0.0 => String::new(),
        seconds => format!(", and {seconds:.2} s for sharing what was queued"),
    };
    report::facts(&[
        ("imported", report.counts.words()),
        ("in", format!("{:.2} s, {rate}/s{sharing}", report.seconds)),
        ("logical", size::show(report.logical_bytes_added)),
        ("stored", size::show(report.stored_bytes_added)),
        ("saved", format!("{} ({saved})", size::show(report.saved_bytes_added))),
    ])
}
