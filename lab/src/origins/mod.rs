//! `nvfold-lab origins`: benefit and cost of following copies (ICID): policy `icid` through the core's own interface.
//!
//! The problem: byte-granular sharing needs an extent for every run of bytes, and a write that shares reads the data
//! that it compares with. Whether that pays depends on the length of the runs and on the device.
//!
//! The idea: three measurements, each in one run. First, a compaction of a small key-value store, with values of 128
//! to 8192 bytes: the shared bytes, their metadata, and what is left without the inputs. Second, a write whose bytes
//! all have an origin compared with a plain one, counted, charged and timed. Third, the compare by itself, as in the
//! paper's Table 3.
//!
//! | file | content |
//! |---|---|
//! | `compaction` | the compaction's rows: tables written, merged, removed, collected |
//! | `merge` | the program that merges and reports its copies |
//! | `sstable` | the format of its files |
//! | `write` | writes with an origin and plain ones |
//! | `compare` | Table 3 |
//! | `aims` | the aims, and whether they are met |
//! | `page` | the report as tables and as Markdown |

mod aims;
mod compaction;
mod compare;
mod merge;
mod page;
mod sstable;
mod write;

use crate::Result;
use crate::experiment::{Common, Head, Publish};
use aims::Aim;
use clap::Args;
use serde::Serialize;

/// How to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// MiB of records that a compaction reads
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=4096))]
    mebibytes: u64,
    /// Number of timed passes; the report gives their median
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    #[command(flatten)]
    common: Common,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    mebibytes: u64,
    repeats: u32,
    aims: Vec<Aim>,
    compactions: Vec<compaction::Row>,
    writes: Vec<write::Row>,
    pays: Vec<Pays>,
    compares: Vec<compare::Row>,
}

impl Publish for Report {
    fn head(&self) -> &Head {
        &self.head
    }

    fn page(&self) -> String {
        page::markdown(self)
    }

    fn table(&self) -> String {
        page::terminal(self)
    }
}

/// The sizes for which a write with an origin costs less than a plain one under policy `off`.
#[derive(Debug, Serialize)]
struct Pays {
    lane: &'static str,
    profile: &'static str,
    /// The measured sizes for which it does.
    bytes: Vec<usize>,
}

/// Measures, and prints the report.
///
/// # Errors
/// If a file holds other bytes than were written, if a write did not share what its row says, and if fsck finds
/// something.
pub(crate) fn run(options: &Options, json: bool) -> Result<()> {
    let options = Options {
        mebibytes: if options.common.smoke { 1 } else { options.mebibytes },
        repeats: if options.common.smoke { 1 } else { options.repeats },
        ..options.clone()
    };
    let report = measure(&options)?;
    options.common.publish(&report, json)
}

fn measure(options: &Options) -> Result<Report> {
    let (values, sizes) = match options.common.smoke {
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
        head: Head::new("origins", 1),
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
