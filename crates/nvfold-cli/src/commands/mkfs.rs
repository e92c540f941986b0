//! `nvfold mkfs`: makes an empty file system. That destroys the content of the device, so it looks before it writes.

use crate::dedup_options::{parse_index, parse_weak};
use crate::device::{self, DeviceOptions, level_words};
use crate::failure::{Doing, Failure, Outcome};
use crate::mounts;
use crate::option_list::RESEARCH;
use crate::output::Output;
use crate::report;
use crate::size;
use crate::statistics::{Statistics, parse_uuid};
use clap::Args;
use nvfold::{FileSystem, IndexKind, MkfsOptions, WeakFunction};
use pmem::{OpenOptions, PmemError, Region, Trust};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The action in messages about device errors; the error itself names the device.
const OPENING: &str = "open the device";
/// The longest label, in bytes.
const LABEL_BYTES_MAX: usize = 32;

/// Make an empty file system on a device (file, DAX file or device-dax node)
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold mkfs /dev/shm/pool --size 4G")]
pub(crate) struct Mkfs {
    /// Device; a file is created if it does not exist
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Size, for example 64M or 1.5GiB; needed for a new file
    #[arg(short, long, value_parser = size::parse, allow_negative_numbers = true)]
    size: Option<u64>,
    /// Name of the file system, at most 32 bytes
    #[arg(short = 'L', long, default_value = "")]
    label: String,
    /// UUID of the file system; random by default
    #[arg(short = 'U', long, value_parser = parse_uuid)]
    uuid: Option<[u8; 16]>,
    /// Index for finding equal data: dram (a table in DRAM, fastest) or pm (on the device, no DRAM per block). `nvfold
    /// tune` changes it later
    #[arg(long, value_name = "KIND", default_value = "dram", value_parser = parse_index)]
    index: IndexKind,
    /// Weak fingerprint of the pm index: xxh3 (default), crc32, fletcher32, md5, sha1, sha256, blake3
    #[arg(long, value_name = "NAME", value_parser = parse_weak, help_heading = RESEARCH, hide = true)]
    weak: Option<WeakFunction>,
    /// Format even if the device contains data, or belongs to another user
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Serialize)]
struct Formatted {
    #[serde(flatten)]
    statistics: Statistics,
    capacity_bytes: u64,
    table_bytes: u64,
    seconds: f64,
}

/// Runs the command.
pub(crate) fn run(mkfs: &Mkfs, output: &Output) -> Outcome<u8> {
    let name = mounts::show(&mkfs.device);
    if mkfs.device == Path::new("mem:") {
        return Err(Failure::usage("mem:", "a memory device needs no mkfs: it is made when it is mounted")
            .hint("nvfold mount mem: DIR -o size=8G"));
    }
    if mkfs.label.len() > LABEL_BYTES_MAX {
        return Err(Failure::usage(
            format!("label {}", mkfs.label),
            format!("it is longer than {LABEL_BYTES_MAX} bytes"),
        ));
    }
    if mkfs.weak.is_some() && mkfs.index != IndexKind::Pm {
        return Err(Failure::usage(
            "--weak",
            "only a pm index has one fingerprint function; with a dram index each mount chooses",
        )
        .hint("add --index pm, or mount with -o weak=NAME"));
    }
    let started = Instant::now();
    let region = claim(mkfs, &name)?;
    let options = MkfsOptions {
        uuid: mkfs.uuid.unwrap_or_else(pmem::random_bytes::<16>),
        label: mkfs.label.clone(),
        root_uid: rustix::process::geteuid().as_raw(),
        root_gid: rustix::process::getegid().as_raw(),
        force: mkfs.force,
        index: mkfs.index,
        weak: mkfs.weak.unwrap_or_default(),
        now: pmem::clock::precise_now_ns(),
    };
    FileSystem::mkfs(&region, &options).doing(&name)?;
    let level = level_words(region.level());
    drop(region);
    let seconds = started.elapsed().as_secs_f64();
    let statistics = Statistics::of(&mkfs.device, &mkfs.device_options)?;
    let capacity_bytes = statistics.known_space()?.available_bytes;
    let table_bytes = statistics.superblock.data_offset;
    let formatted = Formatted { statistics, capacity_bytes, table_bytes, seconds };
    report::emit(output.json, "mkfs", &formatted, || describe(&formatted, level))?;
    Ok(0)
}

/// Opens or creates the device, unless it holds something and --force is missing. Changes nothing if it refuses.
fn claim(mkfs: &Mkfs, name: &str) -> Outcome<Region> {
    let device = &mkfs.device;
    let metadata = std::fs::metadata(device).ok();
    let present_bytes = metadata.as_ref().map_or(0, |metadata| metadata.len());
    let is_dax = metadata.as_ref().is_some_and(|metadata| !metadata.is_file());
    if let Some(foreign) = device::foreign_signature(device).filter(|_| !mkfs.force) {
        return Err(Failure::new(name, format!("it holds {foreign}")).hint("--force erases it"));
    }
    if present_bytes > 0 && !mkfs.force && holds_nvfold(device)? {
        return Err(Failure::new(name, "it holds an nvfold file system already").hint("--force erases it"));
    }
    if let Some(at) = device::first_data(device).doing(name)?.filter(|_| !mkfs.force) {
        let why = format!("it holds data of an unknown kind, from byte {at} on");
        return Err(
            Failure::new(name, why).hint("--force erases it; a file that is empty or all zeros needs no --force")
        );
    }
    let open_options = mkfs.device_options.open_options(false);
    let spec = device::spec(device);
    let size = match mkfs.size {
        Some(size) => size,
        None if is_dax || present_bytes > 0 => return trusted(mkfs, &open_options, |open| Region::open(&spec, open)),
        None => {
            return Err(
                Failure::usage(name, "it does not exist, and a new device needs a size").hint("for example: --size 1G")
            );
        }
    };
    device::check_size(size).map_err(|why| Failure::new(name, why))?;
    trusted(mkfs, &open_options, |open| Region::create(&spec, size, open))
}

/// Opens a device of this user or root. If others may read or write the file, a mount for others refuses it; here that
/// is a warning.
fn trusted(
    mkfs: &Mkfs,
    options: &OpenOptions,
    open: impl Fn(&OpenOptions) -> Result<Region, PmemError>,
) -> Outcome<Region> {
    let is_tolerated = |error: &PmemError| mkfs.force || matches!(error, PmemError::OpenToOthers { .. });
    let open = |trust| open(&OpenOptions { trust, ..options.clone() });
    device::open_trusted(Trust::OwnerAlone, is_tolerated, open, OPENING)
}

/// Returns true if the device holds an nvfold file system of any version, intact or damaged. Fails if it is in use.
fn holds_nvfold(device: &Path) -> Outcome<bool> {
    match Region::open(&device::spec(device), &DeviceOptions::default().open_options(true)) {
        Ok(region) => Ok(!matches!(nvfold::read_superblock(&region), Err(nvfold::Error::NotNvfold { .. }))),
        Err(error @ PmemError::Busy { .. }) => Err(error).doing(mounts::show(device)),
        // What it is instead, the caller says.
        Err(_) => Ok(false),
    }
}

fn describe(formatted: &Formatted, level: &'static str) -> String {
    let Formatted { statistics, capacity_bytes, table_bytes, seconds } = formatted;
    let superblock = &statistics.superblock;
    let mut rows = vec![
        ("device", statistics.device.clone()),
        ("size", size::show(superblock.device_bytes)),
        ("capacity", size::show(*capacity_bytes)),
        ("tables", format!("{} (they take no memory until they are used)", size::show(*table_bytes))),
        (
            "blocks",
            format!("{} B in segments of {}", superblock.block_bytes, size::show(u64::from(superblock.segment_bytes))),
        ),
        ("persistence", level.to_owned()),
        ("uuid", superblock.uuid.clone()),
    ];
    rows.extend(statistics.index.as_ref().map(|index| ("index", index.describe(superblock.device_bytes))));
    if !superblock.label.is_empty() {
        rows.push(("label", superblock.label.clone()));
    }
    rows.push(("time", format!("{:.1} ms", seconds * 1e3)));
    report::facts(&rows)
}
