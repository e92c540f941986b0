//! `nvfold-lab chunkers`: the speed of each chunker, the saving of its pieces, and the accuracy of the compressible check.
//!
//! The problem: published speeds come from other machines, and published savings from data that is not public. The
//! idea: use data that anyone can download (`scripts/chunker-corpus.sh`). Run all chunkers in turn over the same
//! bytes, compare them with reading, and let lz4 decide what is compressible.
//!
//! | file | content |
//! |---|---|
//! | `corpus` | the data |
//! | `speed` | bytes per second |
//! | `saving` | bytes saved |
//! | `check` | the compressible check compared with lz4 |
//! | `page`, `picture` | the report as Markdown, and as a picture |

mod check;
mod corpus;
mod page;
mod picture;
mod saving;
mod speed;

use crate::Result;
use crate::experiment::{Common, Head, Publish};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What to measure with.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Folder filled by scripts/chunker-corpus.sh; without it, only synthetic data is cut
    #[arg(long, value_name = "DIR")]
    corpus: Option<PathBuf>,
    /// Trees of files for the compressible check, in addition to the packages of the corpus
    #[arg(long, value_name = "DIR", num_args = 1..)]
    files: Vec<PathBuf>,
    /// MiB to cut in one pass
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=4096))]
    mebibytes: u64,
    /// Number of passes; the report gives their median
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    #[command(flatten)]
    common: Common,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    speeds: Vec<speed::Speeds>,
    savings: Vec<saving::Savings>,
    savings_by_mean: Vec<saving::Savings>,
    check: Option<check::Check>,
}

impl Publish for Report {
    const PAGE: &'static str = "chunkers.md";

    fn head(&self) -> &Head {
        &self.head
    }

    fn page(&self) -> String {
        page::markdown(self)
    }

    fn table(&self) -> String {
        page::tables(self)
    }

    fn draw(&self, folder: &Path) -> Result<()> {
        picture::draw(self, &folder.join("chunkers.svg"))
    }
}

/// Measures, and prints the report.
pub(crate) fn run(options: &Options, json: bool) -> Result<()> {
    let (bytes, repeats) =
        if options.common.smoke { (4 << 20, 2) } else { ((options.mebibytes as usize) << 20, options.repeats) };
    let versions = match &options.corpus {
        Some(corpus) => corpus::versions(corpus)?,
        None => Vec::new(),
    };
    let report = Report {
        head: Head::new("chunkers", 1),
        speeds: speed::measure(&versions, bytes, repeats),
        savings: saving::measure(&versions, bytes / 4),
        savings_by_mean: saving::measure_means(&versions),
        check: check::measure(&corpus::files(options.corpus.as_deref(), &options.files)?)?,
    };
    options.common.publish(&report, json)
}
