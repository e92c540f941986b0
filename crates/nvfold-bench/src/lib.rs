//! The benchmarks of the command: the cost of nvfold, compared with the raw limit and with the alternatives.
//!
//! The problem: machines are shared and noisy, so an absolute figure says little. The idea: everything that is
//! compared runs in turn in one process, several times, on data made before the clock starts. The report gives the
//! median and its ratio to the raw limit of the same run.
//!
//! The papers' evaluation, counted costs and everything with a picture are in `lab/` (`nvfold-lab`), which no user of
//! nvfold compiles. It uses the modules here that are public.
//!
//! Dependencies go down the table, never up (`tests/tests/rooms.rs` checks them):
//!
//! | module | content |
//! |---|---|
//! | `throughput` | `bench write`, `bench read`: bytes per second |
//! | `meta` | `bench meta`: operations on names per second |
//! | `tree` | `bench tree`: `cp -a`, `rm -r` and many creates, on mounts with different options and on tmpfs |
//! | `clone` | `bench clone`: copies of a tree that share its data: time, memory, and a writer's waits meanwhile |
//! | [`recovery`] | `bench recovery`: time until a device serves, after a kill and after an unmount |
//! | `summary` | the ratios of a report as Markdown, for docs/benchmarks.md |
//! | `report` | the reports of `write`, `read` and `meta`: table, JSON |
//! | `copies` | ways to copy a tree: clones of nvfold, `cp -a`, reflinks, btrfs snapshots, overlays |
//! | `made` | a tree that is made, and recognised in its copies |
//! | `waits` | how long the operations of a writer take while something else is at work |
//! | `lanes` | the targets that are compared: raw memory, nvfold embedded, a file on any mount |
//! | [`mounts`] | nvfold, the FUSE ceiling, ext4, xfs and btrfs, mounted for the duration of a run |
//! | [`scratch`] | folders of a run, which go away with all that is mounted in them, however the run ends |
//! | [`place`] | proof that a row was measured on the file system that it names |
//! | `ceiling` | a minimal FUSE file system in memory: the limit of FUSE itself |
//! | [`device`] | emulated devices in memory, formatted and mounted |
//! | [`process`] | programs that a benchmark runs |
//! | [`data`] | blocks with an exact share of duplicates |
//! | [`samples`] | statistics of the times of a few passes |
//! | [`origin`] | the command and the commit that made the figures |
//! | `options`, `error` | options of a measurement; errors |
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod ceiling;
mod clone;
mod copies;
pub mod data;
pub mod device;
mod error;
mod lanes;
mod made;
mod meta;
pub mod mounts;
mod options;
pub mod origin;
pub mod place;
pub mod process;
pub mod recovery;
mod report;
pub mod samples;
pub mod scratch;
mod summary;
mod throughput;
mod tree;
mod waits;

pub use error::{BenchError, Doing, Result};
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
    /// Clones of a tree beside copies, reflinks, btrfs snapshots and overlays: time, memory, and a writer's waits
    #[command(before_help = "Example: nvfold bench clone")]
    Clone(clone::Options),
    /// Time to the first byte and to exact counts, after a kill and after a clean unmount
    #[command(before_help = "Example: nvfold bench recovery")]
    Recovery(recovery::RecoveryOptions),
    /// Fill a device and exit by SIGKILL, for `recovery`
    #[command(hide = true)]
    Fill(recovery::FillOptions),
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
    let (options, report) = match &args.what {
        What::Write(options) => (options, throughput::run(&options.clone().settled(), throughput::Direction::Write)?),
        What::Read(options) => (options, throughput::run(&options.clone().settled(), throughput::Direction::Read)?),
        What::Meta(options) => (options, meta::run(&options.clone().settled())?),
        What::Tree(options) => return tree::run(options, json),
        What::Clone(options) => return clone::run(options, json),
        What::Recovery(options) => return recovery::run(options, json),
        What::Fill(options) => return recovery::fill(options),
        What::Ceiling { dir } => return ceiling::serve(dir),
    };
    if let Some(file) = &options.summary {
        std::fs::write(file, summary::markdown(&report)).doing(format!("write {}", file.display()))?;
    }
    println!("{}", if json { report.json() } else { report.table() });
    Ok(())
}
