//! `nvfold bench paper nv-dedup`: the evaluation of NV-Dedup (IEEE TC 2018, sections 3, 4.2 and 5).
//!
//! A fraction of the paper's requests is enough. Its runs of five minutes average over a noisy machine; ours run all
//! systems in turn and take the median. The sampling period must not shrink relative to a run. So every timed pass is
//! a whole number of periods, and the first period is over before the clock starts.
//!
//! | module | figures |
//! |---|---|
//! | `fixed` | 1, 6 to 9, Table 4, the costs of 5.2: fixed shares of duplicates |
//! | `passes` | how their cells are timed and counted |
//! | `dynamic` | 10: a share that changes |
//! | `threads` | 11 |
//! | `variations` | 2, 12, 13: other media, latencies, hash functions |
//! | `skew` | the blocks that duplicates repeat |
//! | `recovery` | Table 5 |
//! | `dram` | DRAM per chunk (4.2) |
//! | `fio` | a cross-check with the real fio |

mod dram;
mod dynamic;
mod fio;
mod fixed;
mod passes;
mod recovery;
mod skew;
mod threads;
mod variations;

use super::page::Page;
use super::turn::{self, Group, Plan, Turn};
use crate::Result;
use clap::Args;
use std::path::PathBuf;
use std::time::Instant;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Figures to make: 1, 2, 6 .. 13, table-4, table-5, costs, skew, dram, fio [default: all]
    #[arg(long = "figure", value_name = "ID", value_delimiter = ',', value_parser = parse_figure)]
    figures: Vec<String>,
    /// Device profiles: nvdimm-8x, native, optane, pcm
    #[arg(long = "profile", value_name = "NAME", value_delimiter = ',', value_parser = parse_profile,
        default_values = PROFILES)]
    profiles: Vec<String>,
    /// Folder for JSON, pictures and the page; other figures in it are kept
    #[arg(long, value_name = "DIR", default_value = "target/results/nv-dedup")]
    out: PathBuf,
    /// Folder for the devices of table-5, on tmpfs
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// Number of timed passes; the report gives their median
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: Option<u32>,
    /// Number of requests in a timed pass
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..=10_000_000))]
    requests: Option<u64>,
    /// Keep the figures in the folder that were made from this commit (environment variable NVFOLD_COMMIT)
    #[arg(long)]
    resume: bool,
    /// Small sizes, to test that the benchmark runs; not for figures
    #[arg(long)]
    smoke: bool,
}

const PAPER: &str = "nv-dedup";
/// The paper's first.
const PROFILES: [&str; 4] = ["nvdimm-8x", "native", "optane", "pcm"];

const PAGE: Page = Page {
    title: "NV-Dedup: the paper's figures, measured",
    introduction: &[
        "This page and everything beside it is written by the command below, from the figures that were run last. It \
         holds nvfold against *NV-Dedup: High-Performance Inline Deduplication for Non-Volatile Memory* (IEEE \
         Transactions on Computers, 2018).",
        "**How to read it.** The paper gives most results as pictures; where its text or tables give a value it stands \
         beside ours, with ours divided by it (by the nearer end of a range, 1.00 within it). Persistent memory is \
         emulated: the device lies in memory, and a profile charges time for lines, fences and reads (see \
         docs/results/profiles). nvdimm-8x is the paper's setting; pcm is counted, never waited for. All systems of a \
         figure run in one process, in turn, on the same requests; a figure is the median of its passes.",
        "**Cost and wall clock.** Ratios are by *cost*: what the emulated device charged the thread, the same in every run, \
         and the processor time of the thread and of the system's background thread. What the wall clock said stands \
         in the tables, with the width of the middle half of its passes: on a shared machine it moves by a tenth.",
        "**Pictures.** A system has one colour in all of them; dashed, hollow or pale is *as in the paper*, solid is \
         *ours*. A hollow diamond is a value that the paper's text gives, a bar with ends a range; what the paper shows in \
         a picture only is not drawn in.",
        "**What is not the paper's.** nvfold runs in the program's own process, not in the kernel, and writes by copy \
         on write with a commit a request; a device in memory is emulated by waiting. The requests are ours, with an \
         exact share of duplicates, each of a block that is stored when it comes, drawn evenly from all that is stored \
         (the figure *skew* draws by Zipf's law too); runs are shorter. The real fio is a cross-check at the end.",
        "**Systems.** *No_dedup* is nvfold with policy `off`. *Dedup_block* and *Dedup_fine_grained* are the paper's \
         competitors on nvfold: copy-on-write B-trees of MD5 fingerprints, one of blocks that is written every 1,000 \
         blocks, one fine-grained that is durable with every change; what they are and how they were tuned stands in \
         `crates/nvfold-bench/src/paper/rivals`. *NV-Dedup (as in the paper)* is policy `nv-dedup` with \
         the paper's three methods and thresholds, MD5, CRC32, one generator of transaction numbers, and strong \
         fingerprints trusted. *NV-Dedup (ours)* is \
         the policy's default: four methods in the cost model, XXH3, bytes compared before anything is shared.",
    ],
    figures: &IDS,
    profiles: &PROFILES,
};

const IDS: [&str; 16] = [
    "costs",
    "figure-1",
    "figure-2",
    "table-4",
    "figure-6",
    "figure-7",
    "figure-8",
    "figure-9",
    "figure-10",
    "figure-11",
    "figure-12",
    "figure-13",
    "skew",
    "table-5",
    "dram",
    "fio",
];

const GROUPS: [Group<Run>; 11] = [
    Group { ids: &["costs", "figure-1", "figure-6", "figure-7", "table-4"], run: fixed::fio, once: false },
    Group { ids: &["figure-8", "figure-9"], run: fixed::vdbench, once: false },
    Group { ids: &["figure-10"], run: dynamic::figures, once: false },
    Group { ids: &["figure-11"], run: threads::figures, once: false },
    Group { ids: &["figure-13"], run: variations::hashes, once: false },
    Group { ids: &["skew"], run: skew::figures, once: false },
    Group { ids: &["table-5"], run: recovery::figures, once: false },
    Group { ids: &["figure-2"], run: variations::media, once: false },
    Group { ids: &["figure-12"], run: variations::latencies, once: false },
    Group { ids: &["dram"], run: dram::figures, once: true },
    Group { ids: &["fio"], run: fio::figures, once: true },
];

fn parse_figure(text: &str) -> std::result::Result<String, String> {
    turn::figure_id(text, &IDS)
}

fn parse_profile(text: &str) -> std::result::Result<String, String> {
    turn::profile_name(text, &PROFILES)
}

/// One profile's turn: its sizes.
pub struct Run {
    /// The common parts of all papers' turns.
    pub turn: Turn,
    /// Requests of a timed pass.
    pub requests: usize,
    /// Blocks of the file that fio overwrites.
    pub file_blocks: u64,
    /// Chunks of a sampling period.
    pub period: u64,
    /// Chunks of a sampling period if the workload changes: the paper's 50,000 where the device is fast enough.
    pub dynamic_period: u64,
    /// Timed passes.
    pub repeats: usize,
    /// Shares of duplicates, percent.
    pub percents: Vec<u64>,
    /// Folder for devices that outlive a process.
    pub dir: PathBuf,
}

impl Run {
    fn new(options: &Options, name: &str, began: Instant) -> Result<Run> {
        let is_the_papers = name == PROFILES[0];
        let (requests, file_blocks) = match options.smoke {
            true => (400, 128),
            // A competitor's tree is as deep as the paper's only with a file of similar size.
            false if is_the_papers => (30_000, 262_144),
            false => (30_000, 16_384),
        };
        let requests = options.requests.unwrap_or(requests);
        let repeats = options.repeats.unwrap_or(if options.smoke { 2 } else { 5 }) as usize;
        let percents = match is_the_papers && !options.smoke {
            true => vec![10, 20, 30, 40, 50, 60, 70],
            false => vec![10, 30, 50, 70],
        };
        Ok(Run {
            turn: Turn::new(PAPER, name, options.smoke, began)?,
            requests: requests as usize,
            file_blocks,
            period: requests / 2,
            dynamic_period: if options.smoke { requests / 2 } else { 50_000 },
            repeats,
            percents,
            dir: options.dir.clone(),
        })
    }

    /// Returns whether the paper's values apply to this profile.
    pub fn is_the_papers(&self) -> bool {
        self.turn.name == PROFILES[0]
    }

    /// Describes a sampling period of `chunks` chunks.
    pub fn about_period(&self, chunks: u64) -> String {
        let mut text = format!("Sampling period {chunks} chunks");
        // Measuring the costs writes some twenty blocks.
        let cost = 2000 / chunks.max(1);
        if cost > 0 {
            text.push_str(&format!("; measuring the costs at its end takes NV-Dedup {cost} % as many writes again"));
        }
        text + "."
    }
}

impl AsRef<Turn> for Run {
    fn as_ref(&self) -> &Turn {
        &self.turn
    }
}

/// Makes the requested figures, and the page.
pub fn run(options: &Options, json: bool) -> Result<()> {
    let began = Instant::now();
    let Options { figures, out, resume, .. } = options;
    let plan = Plan { paper: PAPER, page: &PAGE, groups: &GROUPS, figures, out, resume: *resume };
    plan.make(options.profiles.iter().map(|name| Run::new(options, name, began)), json)
}
