//! Workloads, baselines and plots: what nvfold costs, beside the raw limit and beside what one would use instead.
//!
//! The problem: machines are shared and noisy, so an absolute figure says little. The idea: everything that is
//! compared runs in turn in one process, several times, on data made before the clock starts; what is reported is
//! the median and its ratio to the raw limit of the same run.
//!
//! | module | what |
//! |---|---|
//! | `throughput` | `bench write`, `bench read`: bytes a second |
//! | `meta` | `bench meta`: operations on names a second |
//! | [`cost`] | `bench cost`: fences, lines, locks and instructions of each operation |
//! | `recovery` | `bench recovery`: time until a device serves, after a kill and after an unmount |
//! | `paper` | `bench paper`: the figures of the papers that nvfold is made from |
//! | `lanes` | what is compared: raw memory, nvfold embedded, a file on any mount |
//! | `mounts` | nvfold, the FUSE ceiling, ext4, xfs and btrfs mounted for a run, and gone after it |
//! | `profiles` | `bench profiles`: what emulated devices charge, beside what is published |
//! | `place` | proof that a row was measured on the file system that it names |
//! | `ceiling` | the simplest FUSE file system in memory: what FUSE itself allows |
//! | `data` | blocks with an exact share of duplicates |
//! | `report` | table, JSON, SVG |
//! | `summary` | the ratios as Markdown, for docs/benchmarks.md |
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod ceiling;
pub mod cost;
mod data;
mod lanes;
mod meta;
mod mounts;
mod paper;
mod place;
mod profiles;
mod recovery;
mod report;
mod summary;
mod throughput;

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Clone, Debug)]
enum What {
    /// Bytes written a second, beside the raw limit and other file systems
    Write(Options),
    /// Bytes read a second, likewise
    Read(Options),
    /// Files made, looked up, listed, renamed and removed a second
    Meta(Options),
    /// What each operation costs, counted: fences, lines written and read, locked instructions, instructions
    Cost(cost::CostOptions),
    /// Time to the first byte and to exact counts, after a kill and after an orderly unmount
    Recovery(recovery::RecoveryOptions),
    /// The figures and tables of a paper, measured here
    Paper(paper::PaperArgs),
    /// What emulated devices charge, beside what is published of the real ones
    Profiles(profiles::Options),
    /// Run the measured calls of `cost`, for callgrind
    #[command(hide = true)]
    CostCalls(cost::CallsOptions),
    /// Fill a device and die, for `recovery`
    #[command(hide = true)]
    Fill(recovery::FillOptions),
    /// Write to a device and say how much memory that took, for `paper`
    #[command(hide = true)]
    Dram(paper::DramOptions),
    /// Serve the in-memory FUSE file system that mounts are compared with
    #[command(hide = true)]
    Ceiling {
        /// Where to mount it
        dir: PathBuf,
    },
}

/// How to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// MiB that a thread group writes in one pass
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=16384))]
    mebibytes: u64,
    /// Passes of which the median is taken
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Files that `meta` makes
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(10..=10_000_000))]
    files: u64,
    /// Folder for the mounts, on tmpfs
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    dir: PathBuf,
    /// Leave out everything that is mounted
    #[arg(long)]
    embedded_only: bool,
    /// Sizes for a test that it runs at all, not for figures
    #[arg(long)]
    smoke: bool,
    /// Write a bar chart of the ratios
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Write the ratios as Markdown tables
    #[arg(long, value_name = "FILE.md")]
    summary: Option<PathBuf>,
}

impl Options {
    fn settled(mut self) -> Options {
        if self.smoke {
            (self.mebibytes, self.repeats, self.files) = (4, 2, 200);
        }
        self
    }
}

/// Why a benchmark could not run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// nvfold refused.
    #[error("{doing}: {source}")]
    Nvfold {
        /// What was being done.
        doing: String,
        /// Why not.
        source: nvfold::Error,
    },
    /// The system refused.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// Why not.
        source: std::io::Error,
    },
    /// What was read back is not what was written: no figure of it is worth anything.
    #[error("{0} gave back other bytes than were written")]
    Wrong(String),
    /// What was to be measured is not on the file system that its row names.
    #[error("{path} is on {found}, not on {expected}: the figure would be of something else")]
    Elsewhere {
        /// File or directory.
        path: String,
        /// Where it must be.
        expected: String,
        /// Where it is.
        found: String,
    },
    /// What was to be shared is not, or what was not is.
    #[error("{system} has shared {shared} bytes, not {expected}: the figure would be of something else")]
    Unshared {
        /// Which system.
        system: String,
        /// Bytes shared.
        shared: u64,
        /// Bytes to share.
        expected: u64,
    },
    /// What was counted cannot be right.
    #[error("the counts are wrong: {0}")]
    Miscounted(String),
    /// Callgrind failed.
    #[error("callgrind: {0}; --no-instructions leaves it out")]
    Callgrind(String),
    /// The metadata of a competitor.
    #[error(transparent)]
    Rival(#[from] paper::RivalError),
    /// A file of an earlier run cannot be used.
    #[error("{file}: {why}; remove it, or make that figure again")]
    Stale {
        /// Which.
        file: String,
        /// Why not.
        why: String,
    },
    /// What was made from this commit cannot be told.
    #[error("resume a run: the commit of this program is not known: give it in NVFOLD_COMMIT")]
    NoCommit,
    /// The plot could not be drawn.
    #[error("draw the plot: {0}")]
    Plot(String),
}

/// What a benchmark gives.
pub type Result<T> = std::result::Result<T, BenchError>;

pub(crate) trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| BenchError::Io { doing: what.into(), source })
    }
}

impl<T> Doing<T> for nvfold::Result<T> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| BenchError::Nvfold { doing: what.into(), source })
    }
}

/// Runs a benchmark and prints its report: a table, or JSON.
///
/// # Errors
/// When the machine refuses something that the benchmark itself needs; what only some rows need (a tool, root) is
/// left out and named in the report.
pub fn run(args: &BenchArgs, json: bool) -> Result<()> {
    let report = match &args.what {
        What::Write(options) => throughput::run(&options.clone().settled(), throughput::Direction::Write)?,
        What::Read(options) => throughput::run(&options.clone().settled(), throughput::Direction::Read)?,
        What::Meta(options) => meta::run(&options.clone().settled())?,
        What::Cost(options) => return cost::run(options, json),
        What::CostCalls(options) => return cost::run_calls(options),
        What::Recovery(options) => return recovery::run(options, json),
        What::Paper(args) => return paper::run(args, json),
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
