//! `nvfold import`: copies trees of the host onto an unmounted device, without a mount.

use super::dedup::drain_all;
use crate::cli::Output;
use crate::dedup_options::{self, DedupOptions, parse_policy};
use crate::device::{self, DeviceOptions, mount_embedded};
use crate::failure::{Doing, Failure, Outcome};
use crate::mount::requests;
use crate::mounts;
use crate::progress::Progress;
use crate::report;
use crate::size;
use crate::tree::import::{Import as Importer, Source};
use crate::tree::{Counts, Tally};
use clap::Args;
use nvfold::{FileKind, FileSystem, InodeNumber, NewInode, Policy};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

/// Copy files and directories of the host onto an unmounted device
#[derive(Args, Debug)]
pub struct Import {
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Files and directories to copy, with all their metadata
    #[arg(value_name = "SRC", required = true)]
    sources: Vec<PathBuf>,
    /// Where the copy goes: with one SRC its new path, with several the directory to put them into
    /// [default: /NAME for each SRC]
    #[arg(long, value_name = "PATH")]
    to: Option<PathBuf>,
    /// Threads that copy
    #[arg(long, default_value_t = device::processors(), value_parser = threads)]
    threads: usize,
    /// Policy: inline shares equal blocks, nv-dedup as far as it pays, denova copies first and shares then, off stores
    /// everything
    #[arg(long, default_value = "inline", value_parser = parse_policy)]
    policy: Policy,
    /// Options of the policy, as for a mount, for example weak=crc32,strong=bytes,method=wb
    #[arg(short = 'o', value_name = "OPTIONS", long_help = options_help())]
    options: Vec<String>,
    /// Stay on the file system of each SRC
    #[arg(short = 'x', long)]
    one_file_system: bool,
    #[command(flatten)]
    device_options: DeviceOptions,
}

/// Reads a number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|threads| (1..=256).contains(threads)).ok_or_else(|| format!("`{text}` is not 1 to 256"))
}

fn options_help() -> String {
    format!("Options of the policy, as for a mount: {}", dedup_options::help())
}

/// What --policy and -o say.
fn dedup_options(import: &Import) -> Outcome<DedupOptions> {
    let mut dedup = DedupOptions::of(import.policy);
    let taken = import.options.iter().try_for_each(|list| dedup.take_list(list));
    taken.and_then(|()| dedup.check()).map_err(|why| Failure::usage("import -o", why))?;
    Ok(dedup)
}

#[derive(Serialize)]
struct Report {
    device: String,
    #[serde(flatten)]
    counts: Counts,
    /// Time of the copying.
    seconds: f64,
    /// Time in which queued data was shared after that; 0 when none was queued.
    sharing_seconds: f64,
    bytes_per_second: f64,
    /// What the device holds more than before.
    logical_bytes_added: u64,
    stored_bytes_added: u64,
    /// Logical bytes that needed no block of their own.
    saved_bytes_added: u64,
    host_bytes: u64,
}

/// Runs it.
pub fn run(import: &Import, output: &Output) -> Outcome<u8> {
    let name = mounts::show(&import.device);
    let dedup = dedup_options(import)?;
    for source in &import.sources {
        std::fs::symlink_metadata(source).doing(mounts::show(source))?;
    }
    let tally = Tally::new()?;
    let total_bytes = if Progress::wanted(output.progress) { bytes_below(import) } else { 0 };
    let fs = mount_embedded(&import.device, &import.device_options, &dedup, false, import.threads)?;
    let before = fs.stats();
    let started = Instant::now();
    let sources = places(&fs, import);
    let mut progress = Progress::new(output.progress, "import", total_bytes);
    let sources = sources.map(|sources| {
        let device_file = std::fs::metadata(&import.device).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        let Import { threads, one_file_system, .. } = *import;
        Importer { fs: &fs, tally: &tally, threads, one_file_system, device_file }.run(sources, &mut progress);
    });
    let seconds = started.elapsed().as_secs_f64();
    // Nobody works on the queue of a device that is not mounted, so savings would be told that are not there yet.
    let (sharing, queued) = (Instant::now(), requests::queued(&fs, false));
    let is_shared = match queued.entries > 0 && sources.is_ok() && !tally.is_stopped() {
        true => drain_all(queued.bytes, &tally, output, || requests::drain_some(&fs).doing(&name)),
        false => Ok(()),
    };
    let sharing_seconds = if queued.entries > 0 { sharing.elapsed().as_secs_f64() } else { 0.0 };
    let after = fs.stats();
    // Clean whatever happened: what was copied stays.
    fs.unmount().doing(&name)?;
    sources?;
    is_shared?;
    let counts = tally.counts();
    counts.tell_problems();
    if let Some(reason) = tally.stop_reason("import") {
        return Err(reason);
    }
    let logical_bytes_added = after.logical_bytes.saturating_sub(before.logical_bytes);
    let stored_bytes_added = after.stored_bytes.saturating_sub(before.stored_bytes);
    let report = Report {
        device: name,
        bytes_per_second: counts.bytes as f64 / seconds.max(1e-9),
        seconds,
        sharing_seconds,
        logical_bytes_added,
        stored_bytes_added,
        saved_bytes_added: logical_bytes_added.saturating_sub(stored_bytes_added),
        host_bytes: after.device_allocated_bytes,
        counts,
    };
    report::emit(output.json, "import", &report, || describe(&report))?;
    Ok(u8::from(report.counts.problem_count > 0))
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

/// Where each source goes.
fn places(fs: &FileSystem, import: &Import) -> Outcome<Vec<Source>> {
    let one_with_path = import.sources.len() == 1 && import.to.is_some();
    let to = import.to.clone().unwrap_or_default();
    let place = |source: &PathBuf| {
        let path = if one_with_path { to.clone() } else { to.join(base_name(source)?) };
        let mut names = names_of(&path)?;
        let name = names.pop().unwrap_or_default();
        Ok(Source { path: source.clone(), parent: directories(fs, &names)?, name })
    };
    import.sources.iter().map(place).collect()
}

/// The last name of a path, looked up in the file system for `.` and the like. The root has none: its content goes.
fn base_name(source: &Path) -> Outcome<PathBuf> {
    let resolved;
    let named = match source.file_name() {
        Some(name) => Some(name),
        None => {
            resolved = source.canonicalize().doing(mounts::show(source))?;
            resolved.file_name()
        }
    };
    Ok(named.map(PathBuf::from).unwrap_or_default())
}

/// The names on a path of ours.
fn names_of(path: &Path) -> Outcome<Vec<Vec<u8>>> {
    let name = |component: Component| match component {
        Component::Normal(name) => Some(Ok(name.as_bytes().to_vec())),
        Component::ParentDir => Some(Err(Failure::usage(mounts::show(path), "a path on the device has no .. in it"))),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

/// The directory that `names` lead to from the root, made where it is not there.
fn directories(fs: &FileSystem, names: &[Vec<u8>]) -> Outcome<InodeNumber> {
    let mut at = InodeNumber::ROOT;
    for name in names {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let new = NewInode { kind: FileKind::Directory, mode: 0o755, uid, gid, rdev: 0 };
        let next = match fs.lookup(at, name) {
            Err(nvfold::Error::NotFound { .. }) => fs.mkdir(at, name, &new),
            found => found,
        };
        at = next.doing(String::from_utf8_lossy(name))?.ino;
    }
    Ok(at)
}

/// Sizes of all regular files, for the progress bar.
fn bytes_below(import: &Import) -> u64 {
    let mut bytes = 0;
    let mut left: Vec<(PathBuf, Option<u64>)> = import.sources.iter().map(|source| (source.clone(), None)).collect();
    while let Some((path, device)) = left.pop() {
        let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
        if device.is_some_and(|device| device != metadata.dev()) {
            continue;
        }
        if metadata.is_dir() {
            let device = import.one_file_system.then(|| metadata.dev());
            left.extend(std::fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| (entry.path(), device)));
        } else if metadata.is_file() {
            bytes += metadata.len().min(metadata.blocks().saturating_mul(512));
        }
    }
    bytes
}
