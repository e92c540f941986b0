//! The command line.

use crate::commands::*;
use crate::output::Output;
use clap::{Parser, Subcommand};

/// Everything `nvfold` understands.
#[derive(Debug, Parser)]
#[command(name = "nvfold", version, propagate_version = true, arg_required_else_help = true)]
#[command(about = "A file system for persistent memory that stores equal data once")]
#[command(after_help = "Sizes: 4096, 64M, 1.5GiB. Exit codes: 0 done, 1 failed, 2 called wrongly; fsck: as fsck(8).")]
pub struct Cli {
    #[command(flatten)]
    pub output: Output,
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Mkfs(mkfs::Mkfs),
    Mount(mount::Mount),
    #[command(visible_alias = "unmount")]
    Umount(umount::Umount),
    Info(info::Info),
    Df(df::Df),
    Du(du::Du),
    Stats(stats::Stats),
    DedupStats(dedup_stats::DedupStats),
    Top(top::Top),
    Policy(policy::Policy),
    Dedup(dedup::Dedup),
    Undedup(dedup::Undedup),
    Reclaim(reclaim::Reclaim),
    Tune(tune::Tune),
    Fsck(fsck::Fsck),
    Import(import::Import),
    Export(export::Export),
    Verify(verify::Verify),
    /// Estimate what each policy would save on files and directories; changes nothing
    Estimate(estimate::Estimate),
    Run(run::Run),
    /// Measure this machine: writes, reads and names, beside the raw limit and other file systems
    Bench(nvfold_bench::BenchArgs),
    Completions(completions::Completions),
    Man(man::Man),
}
