//! `bench origins`: what following copies gives and costs (ICID): policy `icid` under the core's own interface.
//!
//! The problem: bytes that are shared to the byte need an extent for every run of them, and a write that shares reads what
//! it is compared with. Whether either is worth it depends on how long the runs are and on the device.
//!
//! The idea: three measurements, each in one run. A compaction of a key-value store in miniature, with values of 128 to
//! 8192 bytes: what is shared, the metadata for it, and what is left when the inputs are gone. A write whose bytes all have
//! an origin beside a plain one, counted, charged and timed. And the compare by itself, as in the paper's Table 3.
//!
//! | file | what |
//! |---|---|
//! | `compaction` | the compaction's rows: tables written, merged, removed, collected |
//! | `merge` | the program that merges and tells what it copies |
//! | `sstable` | the format of its files |
//! | `write` | writes with an origin and plain ones |
//! | `compare` | Table 3 |
//! | `aims` | what was aimed at, and what came of it |
//! | `page` | the report as tables and as Markdown |

mod aims;
mod compaction;
mod compare;
mod merge;
mod page;
mod sstable;
mod write;

use crate::Result;
use crate::origin::{command, commit, save};
use aims::Aim;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// How to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// MiB of records that a compaction reads
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=4096))]
    mebibytes: u64,
    /// Timed passes of which the median is taken
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Folder for the tables, as README.md and as origins.json
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Sizes for a test that it runs at all, not for figures
    #[arg(long)]
    smoke: bool,
}

/// All that was measured.
#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    benchmark: &'static str,
    command: String,
    commit: Option<String>,
    mebibytes: u64,
    repeats: u32,
    aims: Vec<Aim>,
    compactions: Vec<compaction::Row>,
    writes: Vec<write::Row>,
    pays: Vec<Pays>,
    compares: Vec<compare::Row>,
}

/// Where a write with an origin costs less than a plain one under policy `off`.
#[derive(Debug, Serialize)]
struct Pays {
    lane: &'static str,
    profile: &'static str,
    /// Those of the sizes that were measured.
    bytes: Vec<usize>,
}

/// Measures, and prints the report.
///
/// # Errors
/// When a file holds other bytes than were written, when a write did not share what its row says, and when fsck finds
/// something.
pub fn run(options: &Options, json: bool) -> Result<()> {
    let options = Options {
        mebibytes: if options.smoke { 1 } else { options.mebibytes },
        repeats: if options.smoke { 1 } else { options.repeats },
        ..options.clone()
    };
    let report = measure(&options)?;
    let text = serde_json::to_string_pretty(&report).expect("numbers and strings have a JSON form");
    if let Some(dir) = &options.out {
        save(dir, [("origins.json", format!("{text}\n")), ("README.md", page::markdown(&report))])?;
    }
    println!("{}", if json { text } else { page::terminal(&report) });
    Ok(())
}

fn measure(options: &Options) -> Result<Report> {
    let (values, sizes) = match options.smoke {
        true => (&compaction::VALUES[1..2], &write::SIZES[..2]),
        false => (&compaction::VALUES[..], &write::SIZES[..]),
    };
    let mut compactions = Vec::new();
    for (value_bytes, _) in values {
        for (variant, _) in compaction::VARIANTS {
            compactions.push(compaction::measure(variant, *value_bytes, options.mebibytes << 20)?);
        }
    }
    let writes =
        sizes.iter().map(|bytes| write::measure(*bytes, options.repeats)).collect::<Result<Vec<_>>>()?.concat();
    let compares = compare::measure(options.repeats)?;
    Ok(Report {
        version: 1,
        benchmark: "origins",
        command: command(),
        commit: commit(),
        mebibytes: options.mebibytes,
        repeats: options.repeats,
        aims: aims::of(&compactions, &writes, &compares),
        pays: where_it_pays(&writes),
        compactions,
        writes,
        compares,
    })
}

fn where_it_pays(writes: &[write::Row]) -> Vec<Pays> {
    use write::Lane;
    let lanes = [Lane::Aligned, Lane::Unaligned, Lane::Cold];
    let of = |lane: Lane| {
        let profiles =
            pmem::Profile::all().into_iter().filter(move |profile| lane != Lane::Cold || !profile.is_native());
        profiles.map(move |profile| Pays {
            lane: lane.name(),
            profile: profile.name(),
            bytes: write::pays(writes, lane, profile.name()),
        })
    };
    lanes.into_iter().flat_map(of).collect()
}
