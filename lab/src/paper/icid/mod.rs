//! `nvfold-lab paper icid`: the evaluation of ICID (section 5), with unmodified programs under `nvfold run`.
//!
//! The paper changed LevelDB, patch and FFmpeg to call its library. Here they are Debian's unmodified programs, and
//! the preloaded library follows their copies. A record of their writes, made in the same run, goes through the
//! competitors.
//!
//! | module | what |
//! |---|---|
//! | `programs` | Table 4: LevelDB, patch, FFmpeg, a download |
//! | `values` | Figures 9, 10, 12 and 13, Table 6: LevelDB with values of each size |
//! | `speed` | Figure 11: operations per second compared with tmpfs and a mount |
//! | `sizes` | Figure 14: sizes of chunks |
//! | `memory` | Table 5: memory of the rec-tree |
//! | `collecting` | Figure 15: updates while space is collected |
//! | `reading` | section 6: reading shared data, before and after a collection |
//! | `mounted` | programs on a mount without `nvfold run`: cold and warm page cache |
//! | `chunks` | the competitors |
//! | `writes` | the record of a program's writes |
//! | `lab` | programs under `nvfold run` |

mod chunks;
mod collecting;
mod lab;
mod memory;
mod mounted;
mod programs;
mod reading;
mod sizes;
mod speed;
mod values;
mod writes;

use super::page::Page;
use super::turn::{self, Group, Plan, Turn};
use crate::Result;
use clap::Args;
use lab::Lab;
use std::path::PathBuf;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Figures to make: table-4, table-5, table-6, 9 .. 15, section-6, mount [default: all]
    #[arg(long = "figure", value_name = "ID", value_delimiter = ',',
        value_parser = |text: &str| turn::figure_id(text, &IDS))]
    figures: Vec<String>,
    /// Folder for JSON, pictures and the page; other figures in it are kept
    #[arg(long, value_name = "DIR", default_value = "target/results/icid")]
    out: PathBuf,
    /// Folder filled by scripts/chunker-corpus.sh: releases to patch, files to download
    #[arg(long, value_name = "DIR", default_value = "target/chunkers")]
    corpus: PathBuf,
    /// Number of key-value pairs in LevelDB, the same for every size of values
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    pairs: u64,
    /// MiB of key-value pairs in LevelDB, to measure how space is collected
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u64).range(1..=131_072))]
    collected_mebibytes: u64,
    /// Keep the figures in the folder that were made from this commit (environment variable NVFOLD_COMMIT)
    #[arg(long)]
    resume: bool,
    /// Small sizes, to test that the benchmark runs; not for figures
    #[arg(long)]
    smoke: bool,
}

const PAPER: &str = "icid";
/// Programs run on native memory.
const PROFILES: [&str; 1] = ["native"];

const PAGE: Page = Page {
    title: "ICID: the paper's figures, measured",
    introduction: &[
        "The command below writes this page and all files next to it, from the latest run of each figure. It \
         compares nvfold with *I/O Causality Based In-line Data Deduplication for Non-Volatile Memory Enabled \
         Storage Systems*, section 5.",
        "**The programs** are Debian's, neither changed nor recompiled: libleveldb, GNU patch on releases of Debian's \
         Linux sources, ffmpeg and wget. libleveldb runs under a driver that works like db_bench, with LevelDB's \
         checksums on, and checks every byte that it reads back. Its phases are those of db_bench's own list that \
         write: fillrandom, overwrite, compact. `nvfold run --device` serves the programs' files \
         inside their process and follows their copies. Where a program can also run without nvfold, its files are \
         compared with those of a run on the host.",
        "**Tables and logs** of LevelDB are told apart by the names of its files. A record goes to a log (`.log`), then to \
         a table (`.ldb`) that is made of the log, and then to the tables of compactions. Only the last ones are copied \
         from files. The paper does not say whether its ratios count the log.",
        "**Competitors** get exactly the writes of the same run, call by call. *FSC*, *RABIN*, *AE* and *FastCDC* \
         cut each write on its own, as in the paper, which intercepts `write`. *streams* cuts consecutive writes to \
         a file as one stream, which is fairer to the competitors. Chunks have 4 KiB on average unless stated \
         otherwise, and fingerprints are XXH3. **The competitors cut and hash only**: they store nothing and make \
         nothing durable, and ICID does both. So times beside theirs are not those of the same work. Their tables \
         already contain the data that was on the \
         device before the program started.",
        "**Counted and timed.** Shares, bytes and memory are counted. They are the same in every run, except that \
         LevelDB's second thread compacts at varying moments. Times are processor time of the process; operations \
         per second use wall time. The machine is shared, so each timed figure is the median of interleaved runs, and \
         only ratios are meaningful.",
        "**Table 3**, the cost of a compare relative to a write, is on the page of [bench \
         origins](../origins/README.md).",
    ],
    figures: &IDS,
    profiles: &PROFILES,
    papers: &PROFILES,
};

const IDS: [&str; 12] = [
    "table-4",
    "figure-9",
    "figure-10",
    "figure-11",
    "figure-12",
    "figure-13",
    "figure-14",
    "table-5",
    "table-6",
    "figure-15",
    "section-6",
    "mount",
];

const GROUPS: [Group<Run>; 8] = [
    Group { ids: &["table-4"], run: programs::figures, once: false },
    Group { ids: &["figure-9", "figure-10", "figure-12", "figure-13", "table-6"], run: values::figures, once: false },
    Group { ids: &["figure-11"], run: speed::figures, once: false },
    Group { ids: &["figure-14"], run: sizes::figures, once: false },
    Group { ids: &["table-5"], run: memory::figures, once: false },
    Group { ids: &["figure-15"], run: collecting::figures, once: false },
    Group { ids: &["section-6"], run: reading::figures, once: false },
    Group { ids: &["mount"], run: mounted::figures, once: false },
];

/// The parameters of a run, and its folders.
pub(super) struct Run {
    /// The parts that runs of all papers have in common.
    pub turn: Turn,
    /// The folder in which programs run.
    pub lab: Lab,
    /// Folder with the packages.
    pub corpus: PathBuf,
    /// Key-value pairs that a phase puts, for every size of values.
    pub pairs: u64,
    /// Bytes of key-value pairs in the runs that collect space.
    pub collected_bytes: u64,
    /// Number of passes; the figures are their median.
    pub repeats: usize,
}

impl Run {
    fn new(options: &Options, turn: Turn) -> Result<Run> {
        let Options { smoke, pairs, collected_mebibytes, .. } = *options;
        Ok(Run {
            turn,
            lab: Lab::new()?,
            corpus: options.corpus.clone(),
            pairs: if smoke { 5_000 } else { pairs },
            collected_bytes: if smoke { 24 << 20 } else { collected_mebibytes << 20 },
            repeats: if smoke { 1 } else { 5 },
        })
    }

    /// Returns the sizes of values, bytes.
    pub(super) fn value_sizes(&self) -> &'static [u64] {
        if self.turn.smoke { &[128, 4096] } else { &[128, 256, 512, 1024, 2048, 4096, 8192] }
    }
}

impl AsRef<Turn> for Run {
    fn as_ref(&self) -> &Turn {
        &self.turn
    }
}

/// Makes the requested figures, and the page.
pub(super) fn run(options: &Options, json: bool) -> Result<()> {
    let Options { figures, out, resume, smoke, .. } = options;
    let plan = Plan { paper: PAPER, page: &PAGE, groups: &GROUPS, figures, out, resume: *resume, smoke: *smoke };
    plan.make(&PROFILES, |turn| Run::new(options, turn), json)
}
