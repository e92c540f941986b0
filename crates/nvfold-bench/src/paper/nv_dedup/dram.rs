//! Section 4.2: DRAM for each chunk, measured from the process.
//!
//! Two processes of this program write the same unique chunks to a device in memory, one with policy `off` and one with
//! `nv-dedup`. How much their own memory grows (RssAnon: the device is shared memory and not in it) differs by what
//! deduplication needs: its index and what the allocator of the process keeps for it. The paper calculates 24 bytes.

use super::super::figure::{Aim, Figure, Row, number};
use super::Run;
use crate::mounts::{output, own_program};
use crate::{BenchError, Doing, Result, data};
use clap::Args;
use nvfold::NvDedupOptions;
use nvfold::{FileKind, FileSystem, InodeNumber, Method, MethodChoice, MkfsOptions, MountOptions, NewInode, Policy};
use pmem::{DeviceSpec, OpenOptions, Region};
use std::process::Command;
use std::sync::Arc;

const FILE_BYTES: usize = 64 << 20;
const WRITE_BYTES: usize = 128 << 10;

/// What the process that is measured does.
#[derive(Args, Clone, Debug)]
pub struct ChildOptions {
    /// Unique data to write, MiB
    mebibytes: u64,
    /// Deduplicate it
    #[arg(long)]
    dedup: bool,
}

/// Runs it.
pub fn figures(run: &Run) -> Result<Vec<Figure>> {
    run.say("DRAM a chunk");
    let mebibytes: u64 = if run.smoke { 64 } else { 4096 };
    let chunks = (mebibytes * 256) as f64;
    let child = |dedup: bool| -> Result<(f64, f64)> {
        let mut command = Command::new(own_program()?);
        command.args(["bench", "dram", &mebibytes.to_string()]);
        let said = output(if dedup { command.arg("--dedup") } else { &mut command })?;
        let numbers = said.trim().split_once(' ');
        let numbers = numbers.and_then(|(grown, index)| Some((grown.parse().ok()?, index.parse().ok()?)));
        numbers.ok_or_else(|| BenchError::Wrong(format!("the process that is measured (it said {said:?})")))
    };
    let ((without, _), (with, index)) = (child(false)?, child(true)?);
    let a_chunk = (with - without) / chunks;
    let settings = format!(
        "Two processes write {mebibytes} MiB of unique chunks to a device in memory, one with policy off and one with \
         nv-dedup (every chunk fingerprinted); what is compared is by how much their RssAnon grows."
    );
    let mut figure = run.figure("dram", "DRAM (4.2): bytes a chunk", settings);
    figure.rows = vec![
        Row::value("DRAM for deduplication", 24.0, a_chunk, "B/chunk"),
        Row::own("what the index takes by its own account", index / chunks, "B/chunk"),
        Row::own("process with policy off", without / chunks, "B/chunk"),
        Row::own("process with policy nv-dedup", with / chunks, "B/chunk"),
    ];
    if run.is_the_papers() {
        figure.aims = vec![Aim::at_most("DRAM at most 12 bytes a chunk", a_chunk, 12.0)];
    }
    figure.reading =
        format!("Deduplication takes {} bytes of DRAM a chunk; the paper's three structures take 24.", number(a_chunk));
    Ok(vec![figure])
}

/// Writes, and prints by how many bytes this process has grown, and how many its index says that it takes.
pub fn child(options: &ChildOptions) -> Result<()> {
    let data_bytes = options.mebibytes << 20;
    let size = (data_bytes + data_bytes / 8 + (64 << 20)).next_multiple_of(2 << 20);
    let region = Region::create(&DeviceSpec::Memory, size, &OpenOptions::default()).map_err(nvfold::Error::from);
    let region = region.doing("make a memory device")?;
    FileSystem::mkfs(&region, &MkfsOptions::default()).doing("format")?;
    let mount = MountOptions {
        policy: if options.dedup { Policy::NvDedup } else { Policy::Off },
        nv_dedup: NvDedupOptions { method: MethodChoice::Fixed(Method::WBFin), ..NvDedupOptions::default() },
        clock: Arc::new(pmem::clock::coarse_now_ns),
        ..MountOptions::default()
    };
    let fs = FileSystem::mount(region, mount).doing("mount")?;
    let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
    let mut content = vec![1; FILE_BYTES];
    let before = own_bytes()?;
    for file in 0..data_bytes / FILE_BYTES as u64 {
        data::fill(&mut content, 0, file + 1);
        let ino = fs.create(InodeNumber::ROOT, format!("file{file}").as_bytes(), &new).doing("create")?.ino;
        let file = fs.open(ino).doing("open")?;
        for (part, bytes) in (0..).zip(content.chunks(WRITE_BYTES)) {
            file.write_at(part * WRITE_BYTES as u64, bytes).doing("write")?;
        }
    }
    println!("{} {}", own_bytes()?.saturating_sub(before), fs.stats().index.dram_bytes);
    Ok(())
}

/// Memory of this process that is no file's and no device's.
fn own_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").doing("read /proc/self/status")?;
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"));
    let kib = kib.and_then(|kib| kib.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| BenchError::Wrong("/proc/self/status (no RssAnon)".into()))
}
