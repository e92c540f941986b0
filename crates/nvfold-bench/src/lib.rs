//! Workloads, baselines and plots: the cost of nvfold, compared with the raw limit and with the alternatives.
//!
//! The problem: machines are shared and noisy, so an absolute figure says little. The idea: everything that is
//! compared runs in turn in one process, several times, on data made before the clock starts. The report gives the
//! median and its ratio to the raw limit of the same run.
//!
//! Dependencies go down the table, never up (`tests/tests/rooms.rs` checks them):
//!
//! | module | content |
//! |---|---|
//! | `throughput` | `bench write`, `bench read`: bytes per second |
//! | `meta` | `bench meta`: operations on names per second |
//! | `tree` | `bench tree`: `cp -a`, `rm -r` and many creates, on mounts with different options and on tmpfs |
//! | `origins` | `bench origins`: sharing and cost of following copies |
//! | [`cost`] | `bench cost`: fences, lines, locks and instructions of each operation |
//! | `paper` | `bench paper`: the figures of the papers that nvfold is made from |
//! | `recovery` | `bench recovery`: time until a device serves, after a kill and after an unmount |
//! | `chunkers` | `bench chunkers`: speed and saving of each chunker, and the compressible check compared with lz4 |
//! | `lookups` | `bench lookups`: finding a chunk by its fingerprint, compared with a red-black tree |
//! | `rec_tree` | `bench rec-tree`: cost, hits and memory of following copies in memory |
//! | `profiles` | `bench profiles`: charges of emulated devices, compared with published figures |
//! | `wear` | `bench wear`: how evenly lines and segments are worn, with wear levelling and without |
//! | `reclaim` | `bench reclaim`: random overwrites on a device that is nearly full |
//! | `auto` | `bench auto`: policy `auto` compared with those that it chooses from |
//! | `summary` | the ratios of a report as Markdown, for docs/benchmarks.md |
//! | `report` | the reports of `write`, `read` and `meta`: table, JSON, bar chart |
//! | `lanes` | the targets that are compared: raw memory, nvfold embedded, a file on any mount |
//! | `mounts` | nvfold, the FUSE ceiling, ext4, xfs and btrfs, mounted for the duration of a run |
//! | `scratch` | folders of a run, which go away with all that is mounted in them, however the run ends |
//! | `place` | proof that a row was measured on the file system that it names |
//! | `ceiling` | a minimal FUSE file system in memory: the limit of FUSE itself |
//! | `device` | emulated devices in memory, formatted and mounted |
//! | `process` | programs that a benchmark runs |
//! | `data` | blocks with an exact share of duplicates |
//! | `samples` | statistics of the times of a few passes |
//! | `origin` | the command and the commit that made the figures |
//! | `font` | the font of all pictures |
//! | `options`, `error` | options of a measurement; errors |
//! | `rivals` | the systems with which the papers compare NV-Dedup |
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod auto;
mod ceiling;
mod chunkers;
pub mod cost;
mod data;
mod device;
mod error;
mod font;
mod lanes;
mod lookups;
mod meta;
mod mounts;
mod options;
mod origin;
mod origins;
mod paper;
mod place;
mod process;
mod profiles;
mod rec_tree;
mod reclaim;
mod recovery;
mod report;
mod rivals;
mod samples;
mod scratch;
mod summary;
mod throughput;
mod tree;
mod wear;

pub(crate) use error::Doing;
pub use error::{BenchError, Result};
pub use options::Options;
pub use scratch::take_down;

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// What to measure.
#[derive(Args, Clone, Debug)]
#[command(before_help = "Example: nvfold bench write --mebibytes 64")]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Clone, Debug)]
enum What {
    /// Bytes written per second, compared with the raw limit and other file systems
    #[command(before_help = "Example: nvfold bench write")]
    Write(Options),
    /// Bytes read per second, compared with the raw limit and other file systems
    #[command(before_help = "Example: nvfold bench read")]
    Read(Options),
    /// Files made, looked up, listed, renamed and removed per second
    #[command(before_help = "Example: nvfold bench meta --embedded-only")]
    Meta(Options),
    /// Copying, reading and removing a tree, and making many files, on mounts with different options and on tmpfs
    #[command(before_help = "Example: nvfold bench tree")]
    Tree(tree::Options),
    /// Cost of each operation, as counts: fences, lines written and read, locked instructions, instructions
    #[command(before_help = "Example: nvfold bench cost")]
    Cost(cost::CostOptions),
    /// Time to the first byte and to exact counts, after a kill and after a clean unmount
    #[command(before_help = "Example: nvfold bench recovery")]
    Recovery(recovery::RecoveryOptions),
    /// Figures and tables of a paper, measured on this machine
    #[command(before_help = "Example: nvfold bench paper icid")]
    Paper(paper::PaperArgs),
    /// Charges of emulated devices, compared with published figures of the real ones
    #[command(before_help = "Example: nvfold bench profiles")]
    Profiles(profiles::Options),
    /// Speed and saving of each chunker, and how often the compressible check is right
    #[command(before_help = "Example: nvfold bench chunkers")]
    Chunkers(chunkers::Options),
    /// Cost of a look-up by fingerprint, in a red-black tree as in DeEXT and in the indexes of nvfold
    #[command(before_help = "Example: nvfold bench lookups")]
    Lookups(lookups::Options),
    /// Bytes copied from files: what a compaction shares, and the cost of a write with an origin and without
    #[command(before_help = "Example: nvfold bench origins")]
    Origins(origins::Options),
    /// Following copies in memory (ICID): cost of look-ups, insertions and copies, hits, and memory
    #[command(before_help = "Example: nvfold bench rec-tree")]
    RecTree(rec_tree::Options),
    /// How evenly overwritten files wear a device, with wear levelling and without, and its lifetime
    #[command(before_help = "Example: nvfold bench wear")]
    Wear(wear::Options),
    /// Random overwrites on a device that is nearly full: throughput, latency, and bytes moved by reclamation
    #[command(before_help = "Example: nvfold bench reclaim")]
    Reclaim(reclaim::Options),
    /// Policy auto compared with fixed policies, while the workload changes
    #[command(before_help = "Example: nvfold bench auto")]
    Auto(auto::Options),
    /// Run the measured calls of `cost`, for callgrind
    #[command(hide = true)]
    CostCalls(cost::CallsOptions),
    /// Fill a device and exit by SIGKILL, for `recovery`
    #[command(hide = true)]
    Fill(recovery::FillOptions),
    /// Write to a device and report how much memory that took, for `paper`
    #[command(hide = true)]
    Dram(paper::DramOptions),
    /// Serve the in-memory FUSE file system that mounts are compared with
    #[command(hide = true)]
    Ceiling {
        /// Mount point
        dir: PathBuf,
    },
}

/// Runs a benchmark and prints its report: a table, or JSON.
///
/// # Errors
/// If the machine refuses something that the benchmark itself needs. What only some rows need (a tool, root) is left
/// out and named in the report.
pub fn run(args: &BenchArgs, json: bool) -> Result<()> {
    let report = match &args.what {
        What::Write(options) => throughput::run(&options.clone().settled(), throughput::Direction::Write)?,
        What::Read(options) => throughput::run(&options.clone().settled(), throughput::Direction::Read)?,
        What::Meta(options) => meta::run(&options.clone().settled())?,
        What::Tree(options) => return tree::run(options, json),
        What::Cost(options) => return cost::run(options, json),
        What::CostCalls(options) => return cost::run_calls(options),
        What::Recovery(options) => return recovery::run(options, json),
        What::Paper(args) => return paper::run(args, json),
        What::Chunkers(options) => return chunkers::run(options, json),
        What::Lookups(options) => return lookups::run(options, json),
        What::Origins(options) => return origins::run(options, json),
        What::RecTree(options) => return rec_tree::run(options, json),
        What::Wear(options) => return wear::run(options, json),
        What::Auto(options) => return auto::run(options, json),
        What::Reclaim(options) => return reclaim::run(options, json),
        What::Profiles(options) => return profiles::run(options, json),
        What::Fill(options) => return recovery::fill(options),
        What::Dram(options) => return paper::dram(options),
        What::Ceiling { dir } => return ceiling::serve(dir),
    };
    let (What::Write(options) | What::Read(options) | What::Meta(options)) = &args.what else {
        unreachable!("returned")
    };
    if let Some(file) = &options.plot {
        report.plot(file)?;
    }
    if let Some(file) = &options.summary {
        std::fs::write(file, summary::markdown(&report)).doing(format!("write {}", file.display()))?;
    }
    println!("{}", if json { report.json() } else { report.table() });
    Ok(())
}
