//! `bench recovery`: the time until a device serves, after a kill and after a clean unmount.
//!
//! The problem: "recovery is fast" can mean three things (the first byte, the scan behind it, the exact counts), and
//! a warm process would make all of them look better.
//!
//! The idea: another process fills the device and kills itself with SIGKILL, without an unmount. Then this process
//! opens, mounts and reads one byte, several times, each time from a new mapping. It then scans the data of the
//! mount's scan once more as plain memory; the ratio of the two shows the efficiency of the code.
//!
//! A kill also loses the fingerprints of unshared blocks, which the background makes again. The benchmark measures
//! how long that takes alone, and how much it slows down a writer of new data.

use crate::data;
use crate::device::remount;
use crate::origin;
use crate::process::own_program;
use crate::samples::median;
use crate::scratch::Scratch;
use crate::{BenchError, Doing, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use nvfold::internals::media::chunk_entry::ChunkEntry;
use nvfold::internals::media::{BlockNumber, SEGMENT_BLOCKS};
use nvfold::{Daemon, FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions, NewInode, Policy};
use pmem::{DeviceSpec, OpenOptions, Profile, Region};
use serde::Serialize;
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const WRITE_BYTES: usize = 128 << 10;
const WRITER_WARMS_UP_SECONDS: f64 = 0.05;
const WRITER_ALONE_SECONDS: f64 = 0.3;
/// Steps of the daemon between two checks whether it is done.
const TURNS_A_LOOK: u64 = 32;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct RecoveryOptions {
    /// Sizes of the data to write to a device, in MiB
    #[arg(long, value_delimiter = ',', default_values_t = [1024, 4096, 8192], value_name = "MIB")]
    mebibytes: Vec<u64>,
    /// Percentages of duplicate 4 KiB chunks
    #[arg(long, value_delimiter = ',', default_values_t = [30, 50, 60, 70], value_name = "PERCENT")]
    duplicates: Vec<u64>,
    /// Size of the files in MiB; one additional row has files of 16 KiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1024))]
    file_mebibytes: u64,
    /// Number of mounts; the report gives their median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Folder for the device, on tmpfs
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    dir: PathBuf,
    /// Small sizes, to test that the benchmark runs; not for figures
    #[arg(long)]
    smoke: bool,
}

/// A device to fill: hands over to the process that does it.
#[derive(Args, Clone, Debug)]
pub struct FillOptions {
    device: PathBuf,
    data_bytes: u64,
    duplicates_percent: u64,
    file_bytes: u64,
    #[arg(value_parser = parse_policy)]
    policy: Policy,
}

fn parse_policy(text: &str) -> std::result::Result<Policy, String> {
    Policy::named(text.as_bytes()).ok_or_else(|| format!("there are {}", Policy::names()))
}

/// A device to fill, to leave by a kill and to mount again.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Data written, bytes.
    pub data_bytes: u64,
    /// Share of duplicate chunks, percent.
    pub percent: u64,
    /// Size of its files, bytes.
    pub file_bytes: u64,
    /// Policy of all mounts.
    pub policy: Policy,
    /// Profile of the mounts after the kill; the device is filled at full speed.
    pub profile: Profile,
    /// Mounts of which the median is taken.
    pub repeats: u32,
}

/// One device.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Data written, bytes.
    pub data_bytes: u64,
    /// Share of duplicate chunks, percent.
    pub duplicates_percent: u64,
    /// Number of files that hold the data.
    pub files: u64,
    /// Chunk entries that the mount after the kill read.
    pub entries_scanned: u64,
    /// Inode slots that it read.
    pub inodes_scanned: u64,
    /// Open, mount and read one byte, after a clean unmount: median seconds.
    pub clean_first_byte_seconds: f64,
    /// The same after the kill.
    pub crash_first_byte_seconds: f64,
    /// From the mount after the kill until all counts are exact.
    pub reconciled_seconds: f64,
    /// Making the lost fingerprints again, with no other load.
    pub fill_seconds: f64,
    /// Writes of new 4 KiB blocks per second during that, relative to writes without it.
    pub writes_while_filling: f64,
    /// Time of the mount after the kill per chunk entry.
    pub ns_per_entry: f64,
    /// Reading the same entries as plain memory, from a fresh mapping.
    pub plain_scan_ns_per_entry: f64,
    /// Ratio of the plain scan to the mount.
    pub ratio_to_plain_scan: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    benchmark: &'static str,
    command: String,
    commit: Option<String>,
    left_out: Vec<String>,
    rows: Vec<Row>,
}

/// Runs the benchmark and prints the report.
pub fn run(options: &RecoveryOptions, json: bool) -> Result<()> {
    let mut plans = Vec::new();
    let (sizes, shares, file_mib) = match options.smoke {
        true => (vec![8], vec![50], 2),
        false => (options.mebibytes.clone(), options.duplicates.clone(), options.file_mebibytes),
    };
    for size in &sizes {
        plans.extend(shares.iter().map(|share| (size << 20, *share, file_mib << 20)));
    }
    plans.extend(sizes.first().map(|size| (size << 20, shares[0], 16 << 10)));
    let (command, commit, left_out) = (origin::command("nvfold"), origin::commit(), Vec::new());
    let mut report = Report { version: 1, benchmark: "recovery", command, commit, left_out, rows: Vec::new() };
    for (data_bytes, percent, file_bytes) in plans {
        let needed = data_bytes + data_bytes / 8 + (64 << 20);
        let free = free_bytes(&options.dir)?;
        if free < needed {
            let (data, free) = (data_bytes >> 20, free >> 20);
            report
                .left_out
                .push(format!("{data} MiB at {percent} %: {free} MiB are free in {}", options.dir.display()));
            continue;
        }
        let repeats = if options.smoke { 2 } else { options.repeats };
        let (policy, profile) = (Policy::Inline, Profile::NATIVE);
        report.rows.push(measure(
            &own_program()?,
            &options.dir,
            &Plan { data_bytes, percent, file_bytes, policy, profile, repeats },
        )?);
    }
    let text = if json {
        serde_json::to_string_pretty(&report).expect("numbers and strings have a JSON form")
    } else {
        report.table()
    };
    println!("{text}");
    Ok(())
}

fn free_bytes(dir: &Path) -> Result<u64> {
    let status = rustix::fs::statvfs(dir).map_err(std::io::Error::from).doing(format!("look at {}", dir.display()))?;
    Ok(status.f_bavail * status.f_frsize)
}

/// Has `nvfold`, the command, fill a device in a new folder in `dir` and be killed, and mounts the device.
pub fn measure(nvfold: &Path, dir: &Path, plan: &Plan) -> Result<Row> {
    let Plan { data_bytes, percent, file_bytes, repeats, .. } = *plan;
    let mount = |device: &Path| mount(device, plan);
    let scratch = Scratch::new_in(dir)?;
    let device = scratch.path().join("device");
    fill_and_die(nvfold, &device, plan)?;
    let (mut first_byte, mut mounted, mut reconciled, mut plain) = (vec![], vec![], vec![], vec![]);
    let mut scanned = (0, 0);
    for pass in 0..repeats {
        // Every pass finds the device as after the kill: nothing has been unmounted or reconciled before.
        let clock = Instant::now();
        let fs = mount(&device)?;
        mounted.push(clock.elapsed().as_secs_f64());
        read_one_byte(&fs)?;
        first_byte.push(clock.elapsed().as_secs_f64());
        let recovery = fs.stats().recovery;
        scanned = (recovery.entries_scanned, recovery.inodes_scanned);
        if pass + 1 == repeats {
            let clock = Instant::now();
            fs.reconcile().doing("reconcile")?;
            reconciled.push(mounted[mounted.len() - 1] + clock.elapsed().as_secs_f64());
        }
        drop(fs);
        plain.push(plain_scan(&device, scanned.0)?);
    }
    let writes_while_filling = write_while_filling(&device, plan)?;
    let fill_seconds = fill_alone(mount(&device)?)?;
    let mut clean = Vec::new();
    for _ in 0..repeats {
        let clock = Instant::now();
        let fs = mount(&device)?;
        read_one_byte(&fs)?;
        clean.push(clock.elapsed().as_secs_f64());
        if !fs.stats().recovery.loaded {
            return Err(BenchError::Wrong("the unmount".into()));
        }
        fs.unmount().doing("unmount")?;
    }
    let entries = scanned.0.max(1) as f64;
    let (mount_seconds, plain_seconds) = (median(&mounted), median(&plain));
    Ok(Row {
        data_bytes,
        duplicates_percent: percent,
        files: data_bytes / file_bytes,
        entries_scanned: scanned.0,
        inodes_scanned: scanned.1,
        clean_first_byte_seconds: median(&clean),
        crash_first_byte_seconds: median(&first_byte),
        reconciled_seconds: median(&reconciled),
        fill_seconds,
        writes_while_filling,
        ns_per_entry: mount_seconds * 1e9 / entries,
        plain_scan_ns_per_entry: plain_seconds * 1e9 / entries,
        ratio_to_plain_scan: plain_seconds / mount_seconds,
    })
}

/// Returns the seconds until no fingerprint is missing; then unmounts cleanly.
fn fill_alone(fs: FileSystem) -> Result<f64> {
    fs.reconcile().doing("reconcile")?;
    let clock = Instant::now();
    while !fs.fill_step().doing("fill in fingerprints")? {}
    let seconds = clock.elapsed().as_secs_f64();
    fs.unmount().doing("unmount")?;
    Ok(seconds)
}

/// Returns the rate of writes of new blocks while a daemon makes missing fingerprints, relative to the rate before it
/// began. The device is left as after a kill.
fn write_while_filling(device: &Path, plan: &Plan) -> Result<f64> {
    // The daemon limits its load by a stopwatch.
    let fs = remount(open(device, plan)?, MountOptions { policy: plan.policy, ..MountOptions::default() })?;
    fs.reconcile().doing("reconcile")?;
    let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
    let file = fs.create(InodeNumber::ROOT, b"writer", &new).and_then(|found| fs.open(found.ino)).doing("create")?;
    let mut block = [0; 4096];
    let mut written = 0u64;
    // Writes a file of 16 MiB over and over, each block with unique content.
    let mut rate_until = |is_over: &mut dyn FnMut(f64) -> bool| -> Result<f64> {
        let (clock, before) = (Instant::now(), written);
        loop {
            for _ in 0..64 {
                block[..8].copy_from_slice(&(written + 1).to_le_bytes());
                file.write_at(written % 4096 * 4096, &block).doing("write")?;
                written += 1;
            }
            let seconds = clock.elapsed().as_secs_f64();
            if is_over(seconds) {
                return Ok((written - before) as f64 / seconds);
            }
        }
    };
    rate_until(&mut |seconds| seconds > WRITER_WARMS_UP_SECONDS)?;
    let alone = rate_until(&mut |seconds| seconds > WRITER_ALONE_SECONDS)?;
    let is_over = AtomicBool::new(false);
    let beside = std::thread::scope(|threads| {
        let daemon = threads.spawn(|| {
            let mut daemon = Daemon::new(fs.clone());
            let filled = (1u64..).find_map(|turn| {
                match daemon.turn().doing("fill in fingerprints") {
                    Ok(wait) => std::thread::park_timeout(wait),
                    Err(error) => return Some(Err(error)),
                }
                // On a large device the statistics take longer than a step.
                (turn % TURNS_A_LOOK == 0 && fs.stats().fill_percent.is_none()).then_some(Ok(()))
            });
            is_over.store(true, Ordering::Relaxed);
            filled.unwrap_or(Ok(()))
        });
        let rate = rate_until(&mut |_| is_over.load(Ordering::Relaxed));
        daemon.join().expect("it does not panic").and(rate)
    })?;
    Ok(beside / alone)
}

/// Runs another process that fills the device and kills itself.
fn fill_and_die(nvfold: &Path, device: &Path, plan: &Plan) -> Result<()> {
    let numbers = [plan.data_bytes, plan.percent, plan.file_bytes].map(|number| number.to_string());
    let mut command = Command::new(nvfold);
    command.args(["bench", "fill"]).arg(device).args(numbers).arg(plan.policy.name());
    let status = command.status().doing("start a process")?;
    match status.signal() {
        Some(9) => Ok(()),
        _ => Err(BenchError::Wrong(format!("the process that fills the device ({status})"))),
    }
}

/// Fills a device, and ends this process as a crash does.
pub fn fill(options: &FillOptions) -> Result<()> {
    let (data_bytes, file_bytes) = (options.data_bytes, options.file_bytes);
    let size = (data_bytes + data_bytes / 4 + (64 << 20)).next_multiple_of(2 << 20);
    let spec = DeviceSpec::Path(options.device.clone());
    let region = Region::create(&spec, size, &OpenOptions::default()).map_err(nvfold::Error::from);
    let region = region.doing("make the device")?;
    FileSystem::mkfs(&region, &MkfsOptions::default()).doing("format")?;
    let fs = mount_region(region, options.policy)?;
    let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
    // Duplicates are within the same 64 MiB, whatever the size of the files.
    let mut batch = vec![0; file_bytes.max(64 << 20).min(data_bytes) as usize];
    for (seed, start) in (1..).zip((0..data_bytes).step_by(batch.len())) {
        data::fill(&mut batch, options.duplicates_percent, seed);
        for (at, content) in (0..).zip(batch.chunks(file_bytes as usize)) {
            let name = format!("file{}", start / file_bytes + at);
            let ino = fs.create(InodeNumber::ROOT, name.as_bytes(), &new).doing("create")?.ino;
            let file = fs.open(ino).doing("open")?;
            for (part, bytes) in (0..).zip(content.chunks(WRITE_BYTES)) {
                file.write_at(part * WRITE_BYTES as u64, bytes).doing("write")?;
            }
        }
    }
    let this = rustix::process::getpid();
    rustix::process::kill_process(this, rustix::process::Signal::KILL).map_err(std::io::Error::from).doing("die")
}

fn open(device: &Path, plan: &Plan) -> Result<Region> {
    let options = OpenOptions { profile: plan.profile.clone(), ..OpenOptions::default() };
    Region::open(&DeviceSpec::Path(device.to_owned()), &options).map_err(nvfold::Error::from).doing("open the device")
}

fn mount(device: &Path, plan: &Plan) -> Result<FileSystem> {
    mount_region(open(device, plan)?, plan.policy)
}

fn mount_region(region: Region, policy: Policy) -> Result<FileSystem> {
    let clock = Arc::new(pmem::clock::coarse_now_ns);
    // Without a stopwatch: nothing is calibrated while the clock runs, and `nv-dedup` uses the paper's costs.
    FileSystem::mount(region, MountOptions { policy, clock, ..MountOptions::default() }).doing("mount")
}

fn read_one_byte(fs: &FileSystem) -> Result<()> {
    let found = fs.lookup(InodeNumber::ROOT, b"file0").doing("look a file up")?;
    let mut byte = [0];
    let read = fs.open(found.ino).and_then(|file| file.read_at(0, &mut byte)).doing("read")?;
    black_box(byte);
    if read == 1 { Ok(()) } else { Err(BenchError::Wrong("the first file".into())) }
}

/// Returns the seconds to read as many chunk entries as plain memory, one word per line, from a new mapping.
fn plain_scan(device: &Path, entries: u64) -> Result<f64> {
    let clock = Instant::now();
    let region = Region::open(&DeviceSpec::Path(device.to_owned()), &OpenOptions::default());
    let region = region.map_err(nvfold::Error::from).doing("open the device")?;
    let (_, geometry) = nvfold::read_superblock(&region).doing("read the superblock")?;
    let first = BlockNumber(geometry.first_segment() * SEGMENT_BLOCKS);
    let entries = (0..entries).map(|entry| geometry.chunk_entry_offset(first) + entry * size_of::<ChunkEntry>() as u64);
    black_box(entries.fold(0, |sum, entry| sum ^ region.load_u64(entry + 8)));
    Ok(clock.elapsed().as_secs_f64())
}

impl Report {
    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header([
            "data",
            "duplicates",
            "files",
            "clean ms",
            "crash ms",
            "exact ms",
            "fill s",
            "writes",
            "entries",
            "ns/entry",
            "plain ns",
            "ratio",
        ]);
        for row in &self.rows {
            let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
            table.add_row([
                format!("{} MiB", row.data_bytes >> 20),
                format!("{} %", row.duplicates_percent),
                row.files.to_string(),
                ms(row.clean_first_byte_seconds),
                ms(row.crash_first_byte_seconds),
                ms(row.reconciled_seconds),
                format!("{:.2}", row.fill_seconds),
                format!("{:.2}", row.writes_while_filling),
                row.entries_scanned.to_string(),
                format!("{:.1}", row.ns_per_entry),
                format!("{:.1}", row.plain_scan_ns_per_entry),
                format!("{:.2}", row.ratio_to_plain_scan),
            ]);
        }
        for column in 0..12 {
            table.column_mut(column).expect("twelve columns").set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!(
            "{}\nclean, crash: open, mount and read one byte, after an orderly unmount and after a kill; exact: until \
             all\ncounts are exact; fill: until the fingerprints that the kill lost are made anew, alone; writes: of new \
             blocks\nwhile a daemon does that, to those without it; plain: the entries read as plain memory; ratio: plain \
             to the\nmount after the kill\n{table}",
            origin::heading(&self.command, self.commit.as_deref())
        );
        self.left_out.iter().for_each(|why| text.push_str(&format!("\nleft out: {why}")));
        text
    }
}
