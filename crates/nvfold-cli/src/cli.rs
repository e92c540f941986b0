//! The command line.

use crate::commands::*;
use crate::output::Output;
use crate::progress::When;
use clap::{Parser, Subcommand};

/// The version, and from which commit of what day this command was built (build.rs).
pub(crate) const VERSION: &str = env!("NVFOLD_VERSION");

/// Everything `nvfold` understands.
#[derive(Debug, Parser)]
#[command(name = "nvfold", version = VERSION, propagate_version = true)]
#[command(about = "A file system in memory or on persistent memory that stores equal data once")]
#[command(before_help = "Example: nvfold mount mem: /tmp/fold -o size=8G")]
#[command(
    after_help = "Sizes are written as 4096, 64M or 1.5GiB. Exit codes: 0 success, 1 failure, 2 wrong usage; fsck uses those \
                  of fsck(8). With --json errors are JSON on stderr, too."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub output: Output,
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Returns it without progress, if it is to be quiet.
    pub(crate) fn with_quiet(mut self) -> Cli {
        if self.output.quiet {
            self.output.progress = When::Never;
        }
        self
    }
}

/// What `nvfold` alone says: the commands that a newcomer needs.
pub(crate) const FIRST_STEPS: &str = "\
nvfold: a file system in memory or on persistent memory that stores equal data once

Start here:
  nvfold estimate DIR                what nvfold would save on files that you have; it only reads
  nvfold mount mem: DIR -o size=8G   mount a tmpfs that deduplicates
  nvfold mkfs FILE --size 4G         make a device that keeps its data; then: nvfold mount FILE DIR
  nvfold df                          show what is stored and what is saved
  nvfold umount DIR                  unmount

All commands: nvfold --help. One of them: nvfold mount --help. Manual pages: nvfold man --into DIR.";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Mkfs(mkfs::Mkfs),
    Mount(mount::Mount),
    #[command(visible_alias = "unmount")]
    Umount(umount::Umount),
    Serve(serve::Serve),
    Sync(sync::Sync),
    Info(info::Info),
    Df(df::Df),
    Du(du::Du),
    Stats(stats::Stats),
    DedupStats(dedup_stats::DedupStats),
    Top(top::Top),
    Metrics(metrics::Metrics),
    Clone(clone::Clone),
    Snapshot(snapshot::Snapshot),
    Policy(policy::Policy),
    Dedup(dedup::Dedup),
    Undedup(dedup::Undedup),
    Reclaim(reclaim::Reclaim),
    Remove(remove::Remove),
    Set(limits::Set),
    Get(limits::Get),
    Tune(tune::Tune),
    Resize(resize::Resize),
    Fsck(fsck::Fsck),
    Backup(backup::Backup),
    Import(import::Import),
    Export(export::Export),
    Verify(verify::Verify),
    Estimate(estimate::Estimate),
    Run(run::Run),
    /// Measure this machine: writes, reads and metadata, compared with the raw limit and other file systems
    Bench(nvfold_bench::BenchArgs),
    Completions(completions::Completions),
    Man(man::Man),
    /// For nvfold itself: a call that may hang, in a process of its own
    #[command(hide = true)]
    BoundedCall(crate::bounded::BoundedCall),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, CommandFactory};

    /// Checks the example of a command and of all its subcommands.
    fn check_examples(command: &Command) {
        let example = command.get_before_help().map(ToString::to_string).unwrap_or_default();
        let call = example.strip_prefix("Example: ").unwrap_or_else(|| panic!("{}: no example", command.get_name()));
        let words = call.split(" > ").flat_map(|part| part.split(" | ")).next().unwrap().split(' ');
        assert!(Cli::try_parse_from(words).is_ok(), "{call}");
        assert!(call.contains(command.get_name()), "{}: {call}", command.get_name());
        command.get_subcommands().filter(|below| !below.is_hide_set()).for_each(check_examples);
    }

    #[test]
    fn the_help_of_every_command_opens_with_an_example_that_works() {
        check_examples(&Cli::command());
    }
}
