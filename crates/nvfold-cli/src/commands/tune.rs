//! `nvfold tune`: changes how a mounted file system shares, and the index of an unmounted one.
//!
//! The server accepts a setting as the value of a virtual extended attribute, from root and from the user who mounted
//! the file system. An index must be rebuilt completely, so that is done without a mount. It is safe: a device whose
//! conversion was interrupted keeps its old index.

use crate::dedup_options::{parse_index, parse_method, parse_weak};
use crate::device::{self, DeviceOptions};
use crate::failure::{Doing, Failure, Outcome};
use crate::mount::{Setting, settings};
use crate::mounts;
use crate::option_list::RESEARCH;
use crate::output::Output;
use crate::progress::Progress;
use crate::report;
use crate::size;
use crate::statistics::{Index, Statistics, mount_point_of};
use clap::Args;
use nvfold::{BLOCK_BYTES, IndexKind, MethodChoice, NvDedupStats, WeakFunction};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Change how a file system shares data
///
/// --method works on a mounted file system, --index on an unmounted device.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold tune /tmp/fold --method auto")]
pub(crate) struct Tune {
    /// Mount point or mounted device; with --index, an unmounted device
    #[arg(value_name = "DIR|DEVICE")]
    target: PathBuf,
    #[command(flatten)]
    change: Change,
    /// Weak fingerprint of the pm index: xxh3, crc32, fletcher32, md5, sha1, sha256, blake3 [default: the one of
    /// the existing pm index, else xxh3]
    #[arg(long, value_name = "NAME", value_parser = parse_weak, requires = "index", help_heading = RESEARCH, hide = true)]
    weak: Option<WeakFunction>,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct Change {
    /// Method of policy nv-dedup: auto (by measured costs), paper (the paper's three methods and thresholds), non (no
    /// fingerprints), ws (weak, then strong), str (both), wb (weak, then compare bytes)
    #[arg(long, value_name = "NAME", value_parser = parse_method)]
    method: Option<MethodChoice>,
    /// Index for finding equal data: dram (a table in DRAM, fastest) or pm (on the device, no DRAM per block; takes 16
    /// bytes of free space per block, rounded up to a power of two). An interrupted conversion leaves the device
    /// unchanged
    #[arg(long, value_name = "KIND", value_parser = parse_index)]
    index: Option<IndexKind>,
}

/// Runs the command.
pub(crate) fn run(tune: &Tune, output: &Output) -> Outcome<u8> {
    match (tune.change.method, tune.change.index) {
        (Some(choice), _) => choose_method(&tune.target, choice, output),
        (_, Some(to)) => convert(tune, to, output),
        (None, None) => Err(Failure::usage("tune", "give what to change: --method or --index")),
    }
}

#[derive(Serialize)]
struct Chosen {
    device: String,
    choice: String,
    /// The present state of the policy; absent while no new data goes to it.
    nv_dedup: Option<NvDedupStats>,
}

fn choose_method(target: &Path, choice: MethodChoice, output: &Output) -> Outcome<u8> {
    let dir = mount_point_of(target)?;
    let choice = choice.name();
    settings::ask(&dir, Setting::Method, choice)?;
    let statistics = Statistics::of(&dir, &DeviceOptions::default())?;
    let report = Chosen { device: statistics.device.clone(), choice: choice.to_owned(), nv_dedup: statistics.nv_dedup };
    let policy = statistics.policy.unwrap_or_default();
    report::emit_done(output.json, output.quiet, "tune", &report, || match &report.nv_dedup {
        Some(now) => format!("{}: the method is chosen by {choice}, and is {} now", report.device, now.method.name()),
        None => format!(
            "{}: the method is chosen by {choice} once data goes to policy nv-dedup (the policy is {policy} now)",
            report.device
        ),
    })?;
    Ok(0)
}

#[derive(Serialize)]
struct Converted {
    device: String,
    device_bytes: u64,
    /// Absent if the device had to be recovered first.
    before: Option<Index>,
    after: Index,
    free_bytes_before: Option<u64>,
    free_bytes_after: u64,
    seconds: f64,
}

fn convert(tune: &Tune, to: IndexKind, output: &Output) -> Outcome<u8> {
    let Tune { target, weak, device_options, .. } = tune;
    let name = mounts::show(target);
    if weak.is_some() && to != IndexKind::Pm {
        return Err(Failure::usage(
            "--weak",
            "only a pm index has one fingerprint function; with a dram index each mount chooses",
        ));
    }
    if let Some(mounted) = mounts::of_device(target).or_else(|| mounts::at(target)) {
        let dir = mounted.dir.display();
        let why = format!("it is mounted on {dir}, and the index of a mounted device cannot change");
        return Err(Failure::new(&name, why).hint(format!("unmount it first: nvfold umount {dir}")));
    }
    let before = Statistics::of(target, device_options)?;
    let started = Instant::now();
    let region = device::open(target, device_options, false)?;
    let (mut progress, mut done_bytes) = (None, 0);
    let (superblock, _) = nvfold::read_superblock(&region).doing(&name)?;
    let (_, own) = superblock.index().unwrap_or_default();
    let done = nvfold::convert_index(&region, to, weak.unwrap_or(own), &mut |entries, of_entries| {
        // Progress is shown in bytes, so each entry counts as one block.
        done_bytes = entries * BLOCK_BYTES;
        let total_bytes = of_entries * BLOCK_BYTES;
        let progress = progress.get_or_insert_with(|| Progress::new(output.progress, "convert", total_bytes));
        progress.update(done_bytes, || format!("{entries} of {of_entries} entries"));
    });
    if let Some(progress) = &mut progress {
        progress.finish(done_bytes, || "of the entries' blocks".into());
    }
    drop(region);
    done.map_err(|error| convert_failure(&name, &before, to, error))?;
    let seconds = started.elapsed().as_secs_f64();
    let after = Statistics::of(target, device_options)?;
    let free_bytes_after = after.known_space()?.free_bytes;
    let converted = Converted {
        device: name,
        device_bytes: after.superblock.device_bytes,
        before: before.index,
        after: after.index.ok_or_else(|| Failure::new(&after.device, "its index is not known"))?,
        free_bytes_before: before.space.map(|space| space.free_bytes),
        free_bytes_after,
        seconds,
    };
    report::emit_done(output.json, output.quiet, "tune", &converted, || describe(&converted))?;
    Ok(0)
}

/// Explains why the conversion failed and the index is unchanged.
fn convert_failure(name: &str, device: &Statistics, to: IndexKind, error: nvfold::Error) -> Failure {
    let is_full = error.errno() == nvfold::errno::ENOSPC;
    let failure = Failure::of(name, error);
    if !is_full || to != IndexKind::Pm {
        return failure;
    }
    let blocks = device.superblock.device_bytes / u64::from(device.superblock.block_bytes);
    let bytes = size::show(blocks.next_power_of_two() * PM_NODE_BYTES);
    failure.hint(format!("a pm index takes {bytes} in whole segments; free as much, and try again"))
}

/// The size of a node of the pm index in bytes. It has a node for each block, rounded up to a power of two.
const PM_NODE_BYTES: u64 = 16;

fn describe(converted: &Converted) -> String {
    let Converted { device_bytes, before, after, free_bytes_before, free_bytes_after, seconds, .. } = converted;
    let show = |index: &Index| index.describe(*device_bytes);
    let free_before = free_bytes_before.map(|bytes| format!("{} before, ", size::show(bytes))).unwrap_or_default();
    report::facts(&[
        ("device", converted.device.clone()),
        ("index before", before.as_ref().map_or("unknown".into(), show)),
        ("index now", show(after)),
        ("free", format!("{free_before}{} now", size::show(*free_bytes_after))),
        ("in", format!("{seconds:.2} s")),
    ])
}
