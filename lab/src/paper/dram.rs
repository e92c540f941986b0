//! DRAM of deduplication, measured from a process.
//!
//! A process of this program writes unique chunks to a device in memory, and reports by how much its own memory has
//! grown (RssAnon, which does not contain the device, because that is shared memory). Two processes that differ only
//! in the policy differ by the memory of deduplication: its index, its queue, and what the allocator keeps for them.

use crate::{Doing, LabError, Result};
use clap::Args;
use nvfold::{FileKind, IndexKind, InodeNumber, Method, MethodChoice, NewInode, Policy};
use nvfold::{MkfsOptions, MountOptions, NvDedupOptions};
use nvfold_bench::data;
use nvfold_bench::device::Device;
use nvfold_bench::process::{output, own_program};
use pmem::Profile;
use serde::{Deserialize, Serialize};
use std::process::Command;

const FILE_BYTES: usize = 64 << 20;
const WRITE_BYTES: usize = 128 << 10;

/// What the process that is measured does.
#[derive(Args, Clone, Debug)]
pub(crate) struct ChildOptions {
    /// Unique data to write, MiB
    pub mebibytes: u64,
    /// Policy
    #[arg(long, default_value = "off", value_parser = parse_policy)]
    pub policy: Policy,
    /// Index of the device
    #[arg(long, default_value = "dram", value_parser = parse_index)]
    pub index: IndexKind,
}

/// Growth of a process, bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Grown {
    /// The whole process.
    pub process_bytes: f64,
    /// The index, as it reports itself.
    pub index_bytes: f64,
    /// The queue of policy `denova` at its longest, as it reports itself.
    pub queue_bytes: f64,
    /// Number of entries in the queue then.
    pub queue_entries: f64,
}

fn parse_policy(text: &str) -> std::result::Result<Policy, String> {
    Policy::named(text.as_bytes()).ok_or_else(|| format!("use one of {}", Policy::names()))
}

fn parse_index(text: &str) -> std::result::Result<IndexKind, String> {
    IndexKind::from_name(text).ok_or_else(|| "use dram or pm".into())
}

/// Runs a process that writes, and returns its growth.
pub(super) fn grown(options: &ChildOptions) -> Result<Grown> {
    let mut command = Command::new(own_program()?);
    command.args(["dram", &options.mebibytes.to_string()]);
    command.args(["--policy", options.policy.name(), "--index", options.index.name()]);
    let said = output(&mut command)?;
    let wrong = |_| LabError::wrong(format!("the process that is measured (it said {said:?})"));
    serde_json::from_str(said.trim()).map_err(wrong)
}

/// Is that process: writes, and reports its growth.
pub(crate) fn child(options: &ChildOptions) -> Result<()> {
    let data_bytes = options.mebibytes << 20;
    let device = Device::new(&Profile::NATIVE, data_bytes + data_bytes / 8 + (64 << 20));
    let mkfs = MkfsOptions { index: options.index, ..MkfsOptions::default() };
    let mount = MountOptions {
        policy: options.policy,
        nv_dedup: NvDedupOptions { method: MethodChoice::Fixed(Method::WBFin), ..NvDedupOptions::default() },
        ..MountOptions::default()
    };
    let fs = device.mount(&mkfs, mount)?;
    let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
    let mut content = vec![1; FILE_BYTES];
    let before = own_bytes()?;
    let mut queue = (0, 0);
    for file in 0..data_bytes / FILE_BYTES as u64 {
        data::fill(&mut content, 0, file + 1);
        let ino = fs.create(InodeNumber::ROOT, format!("file{file}").as_bytes(), &new).doing("create")?.ino;
        let file = fs.open(ino).doing("open")?;
        for (part, bytes) in (0..).zip(content.chunks(WRITE_BYTES)) {
            file.write_at(part * WRITE_BYTES as u64, bytes).doing("write")?;
        }
        let denova = fs.stats().denova.unwrap_or_default();
        queue = queue.max((denova.queue_entries, denova.queue_dram_bytes));
        while !fs.drain_step().doing("drain the queue")? {}
    }
    let grown = Grown {
        process_bytes: own_bytes()?.saturating_sub(before) as f64,
        index_bytes: fs.stats().index.dram_bytes as f64,
        queue_bytes: queue.1 as f64,
        queue_entries: queue.0 as f64,
    };
    println!("{}", serde_json::to_string(&grown).expect("numbers have a JSON form"));
    Ok(())
}

/// Returns the memory of this process that belongs to no file and no device.
fn own_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").doing("read /proc/self/status")?;
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"));
    let kib = kib.and_then(|kib| kib.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| LabError::wrong("/proc/self/status (no RssAnon)".into()))
}
