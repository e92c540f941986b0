//! The laboratory: the evaluation of the papers that nvfold is made from, and what each of its operations costs.
//!
//! The problem: a paper's claims are worth checking on every commit, which takes plots, rivals, a red-black tree, old
//! hash functions and more chunkers than one would use; but nobody who wants a file system should compile them. The
//! idea: they are here, in a command of their own (`nvfold-lab`) that is never published. It takes what it shares with
//! `nvfold bench` from `nvfold-bench`, and starts the `nvfold` command ([`program`]) for what is mounted.
//!
//! Dependencies go down the table, never up (`tests/tests/rooms.rs` checks them):
//!
//! | module | content |
//! |---|---|
//! | `origins` | `nvfold-lab origins`: sharing and cost of following copies |
//! | [`cost`] | `nvfold-lab cost`: fences, lines, locks and instructions of each operation |
//! | `paper` | `nvfold-lab paper`: the figures of the papers that nvfold is made from |
//! | `chunkers` | `nvfold-lab chunkers`: speed and saving of each chunker, and the compressible check compared with lz4 |
//! | `lookups` | `nvfold-lab lookups`: finding a chunk by its fingerprint, compared with a red-black tree |
//! | `rec_tree` | `nvfold-lab rec-tree`: cost, hits and memory of following copies in memory |
//! | `profiles` | `nvfold-lab profiles`: charges of emulated devices, compared with published figures |
//! | `wear` | `nvfold-lab wear`: how evenly lines and segments are worn, with wear levelling and without |
//! | `reclaim` | `nvfold-lab reclaim`: random overwrites on a device that is nearly full |
//! | `auto` | `nvfold-lab auto`: policy `auto` compared with those that it chooses from |
//! | `bounds` | what a benchmark refuses because it cannot be |
//! | `experiment` | what all of these have in common: options, the head of a report, where it goes |
//! | `program` | the `nvfold` command that is measured |
//! | `font` | the font of all pictures |
//! | `error` | errors |
//! | `rivals` | the systems with which the papers compare NV-Dedup |
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod auto;
mod bounds;
mod chunkers;
pub mod cost;
mod error;
mod experiment;
mod font;
mod lookups;
mod origins;
mod paper;
mod profiles;
mod program;
mod rec_tree;
mod reclaim;
mod rivals;
mod wear;

pub(crate) use error::Doing;
pub use error::{LabError, Result};

use clap::{Args, Subcommand};

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct LabArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Clone, Debug)]
enum What {
    /// Figures and tables of a paper, measured on this machine
    #[command(before_help = "Example: nvfold-lab paper icid")]
    Paper(paper::PaperArgs),
    /// Cost of each operation, as counts: fences, lines written and read, locked instructions, instructions
    #[command(before_help = "Example: nvfold-lab cost")]
    Cost(cost::CostOptions),
    /// Charges of emulated devices, compared with published figures of the real ones
    #[command(before_help = "Example: nvfold-lab profiles")]
    Profiles(profiles::Options),
    /// Speed and saving of each chunker, and how often the compressible check is right
    #[command(before_help = "Example: nvfold-lab chunkers")]
    Chunkers(chunkers::Options),
    /// Cost of a look-up by fingerprint, in a red-black tree as in DeEXT and in the indexes of nvfold
    #[command(before_help = "Example: nvfold-lab lookups")]
    Lookups(lookups::Options),
    /// Bytes copied from files: what a compaction shares, and the cost of a write with an origin and without
    #[command(before_help = "Example: nvfold-lab origins")]
    Origins(origins::Options),
    /// Following copies in memory (ICID): cost of look-ups, insertions and copies, hits, and memory
    #[command(before_help = "Example: nvfold-lab rec-tree")]
    RecTree(rec_tree::Options),
    /// How evenly overwritten files wear a device, with wear levelling and without, and its lifetime
    #[command(before_help = "Example: nvfold-lab wear")]
    Wear(wear::Options),
    /// Random overwrites on a device that is nearly full: throughput, latency, and bytes moved by reclamation
    #[command(before_help = "Example: nvfold-lab reclaim")]
    Reclaim(reclaim::Options),
    /// Policy auto compared with fixed policies, while the workload changes
    #[command(before_help = "Example: nvfold-lab auto")]
    Auto(auto::Options),
    /// Run the measured calls of `cost`, for callgrind
    #[command(hide = true)]
    CostCalls(cost::CallsOptions),
    /// Write to a device and report how much memory that took, for `paper`
    #[command(hide = true)]
    Dram(paper::DramOptions),
}

/// Measures, and prints the report: a table, or JSON.
///
/// # Errors
/// If the machine refuses something that the measurement itself needs. What only some rows need (a tool, root) is left
/// out and named in the report.
pub fn run(args: &LabArgs, json: bool) -> Result<()> {
    match &args.what {
        What::Paper(args) => paper::run(args, json),
        What::Cost(options) => cost::run(options, json),
        What::Profiles(options) => profiles::run(options, json),
        What::Chunkers(options) => chunkers::run(options, json),
        What::Lookups(options) => lookups::run(options, json),
        What::Origins(options) => origins::run(options, json),
        What::RecTree(options) => rec_tree::run(options, json),
        What::Wear(options) => wear::run(options, json),
        What::Reclaim(options) => reclaim::run(options, json),
        What::Auto(options) => auto::run(options, json),
        What::CostCalls(options) => cost::run_calls(options),
        What::Dram(options) => paper::dram(options),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Command;

    /// Returns the examples in the help of a command and of all below it.
    fn examples(command: &Command) -> Vec<String> {
        let own = command.get_before_help().map(ToString::to_string);
        own.into_iter().chain(command.get_subcommands().flat_map(examples)).collect()
    }

    #[test]
    fn every_example_in_the_help_is_a_valid_call() {
        let lab = LabArgs::augment_args(Command::new("nvfold-lab"));
        let examples = examples(&lab);
        assert_eq!(examples.len(), 14, "ten experiments and four papers: {examples:?}");
        for example in examples {
            let call = example.strip_prefix("Example: ").expect("it begins so");
            assert!(lab.clone().try_get_matches_from(call.split(' ')).is_ok(), "{call}");
        }
    }
}
