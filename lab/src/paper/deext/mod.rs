//! `nvfold-lab paper deext`: the evaluation of DeEXT (section IV): space, access latency and energy, compared with
//! ext4.
//!
//! The paper simulates ext4 on PCM and counts bytes: 150 ns and 6 nJ per byte written, 50 ns and 1 nJ per byte read.
//! We count the same for a running file system: all traffic, including metadata, of writing a set of files and of
//! reading it back. Only processor time is measured with a clock, and it is reported separately.
//!
//! | module | what |
//! |---|---|
//! | `figures` | Figures 8 to 12, and real trees |
//! | `system` | the systems, and their cost |
//! | `ext4` | the baseline |
//! | `space` | bytes taken, by kind |
//! | `set` | the files that are written |

mod ext4;
mod figures;
mod set;
mod space;
mod system;

use super::page::Page;
use super::turn::{self, Group, Plan, Turn};
use crate::Result;
use clap::Args;
use std::path::PathBuf;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Figures to make: 8 .. 12, trees [default: all]
    #[arg(long = "figure", value_name = "ID", value_delimiter = ',',
        value_parser = |text: &str| turn::figure_id(text, &IDS))]
    figures: Vec<String>,
    /// Device profiles: pcm, rram
    #[arg(long = "profile", value_name = "NAME", value_delimiter = ',',
        value_parser = |text: &str| turn::profile_name(text, &PROFILES), default_values = ["pcm"])]
    profiles: Vec<String>,
    /// Folder for JSON, pictures and the page; other figures in it are kept
    #[arg(long, value_name = "DIR", default_value = "target/results/deext")]
    out: PathBuf,
    /// Size of each set of files in MiB
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    mebibytes: u64,
    /// Real trees; of each, at most three times the size of a set
    #[arg(long = "tree", value_name = "DIR", value_delimiter = ',', default_values = ["/usr/share", "/usr/lib"])]
    trees: Vec<PathBuf>,
    /// Keep the figures in the folder that were made from this commit (environment variable NVFOLD_COMMIT)
    #[arg(long)]
    resume: bool,
    /// Small sizes, to test that the benchmark runs; not for figures
    #[arg(long)]
    smoke: bool,
}

const PAPER: &str = "deext";
/// The paper's profile first.
const PROFILES: [&str; 2] = ["pcm", "rram"];

const PAGE: Page = Page {
    title: "DeEXT: the paper's figures, measured",
    introduction: &[
        "The command below writes this page and all files next to it, from the latest run of each figure. It \
         compares nvfold with *Boosting the Profitability of NVRAM-based Storage Devices via the Concept of \
         Dual-Chunking Data Deduplication*, section IV.",
        "**How to read it.** The paper shows its results as pictures. Where its text gives a value, the tables show \
         that value, ours, and ours divided by it. All figures are counted, not timed. The device is in memory. Each \
         64-byte line written to it or fetched from it is charged the time of the paper's Table II and the energy of \
         its Table I. For pcm the times are 150 ns per byte written and 50 ns per byte read. The figures are the \
         same in every run.",
        "**Latency** is the time charged by the device. Systems that check compressibility add 165 ns for each 4 \
         KiB written (Table II). Latency does not include processor time, which has its own tables: it depends on \
         this machine, and its order of magnitude is different.",
        "**Writing, and reading back.** The paper does not say what its accesses are. It saves 37.76 % of latency \
         with 41.84 % of space. Only writes can save that much, because reading back takes the same time with and \
         without deduplication. So the tables compare the paper's values with ours for *writing* all files. Our \
         values *with reading back* are shown in addition.",
        "**What is chosen and what is found.** We adjusted the share of duplicates in the generated sets until the \
         space saved came near the paper's (21.49 % of latency at 0 %, 41.84 % of space at 50 %). A first choice \
         gave 39.5 % at 50 %. So it is not a result that the space saved is close to the paper's. The results are: \
         how much of that saving carries over to latency and energy, the cost of metadata, and how the ways of \
         chunking differ on one set. Real trees were not chosen for what they save.",
        "**Aims** are only what arithmetic allows. A system that compares bytes reads each duplicate once, and no system \
         can save on reading back. What such reads make impossible is no aim; the rows say so.",
        "**Systems.** *ext4*: the same files in an image that `mke2fs -d` makes, without a journal. Every block in \
         use is written once and read once; unused parts of inode tables are left out. That is the minimum for ext4. \
         *DeEXT (as in the paper)*: pieces of 16 KiB on average, and a salted MD5 is trusted. *DeEXT (ours)*: \
         nvfold's defaults, which are content-defined pieces of 8 KiB on average and a comparison of bytes before \
         they are shared. *fixed-only*, *content-only*: as in the paper, but all data is cut in one way.",
    ],
    figures: &IDS,
    profiles: &PROFILES,
    papers: &[PROFILES[0]],
};

const IDS: [&str; 6] = ["figure-8", "figure-9", "figure-10", "figure-11", "figure-12", "trees"];

const GROUPS: [Group<Run>; 2] = [
    Group {
        ids: &["figure-8", "figure-9", "figure-10", "figure-11", "figure-12"],
        run: figures::of_made_up,
        once: false,
    },
    Group { ids: &["trees"], run: figures::of_trees, once: false },
];

/// The parameters of a run on one profile.
pub(super) struct Run {
    /// The parts that runs of all papers have in common.
    pub turn: Turn,
    /// Bytes of each set.
    pub bytes: u64,
    /// Shares of compressible data, percent, including 50.
    pub percents: Vec<usize>,
    /// Real trees.
    pub trees: Vec<PathBuf>,
}

impl Run {
    fn new(options: &Options, turn: Turn) -> Result<Run> {
        let smoke = options.smoke;
        Ok(Run {
            turn,
            bytes: if smoke { 4 << 20 } else { options.mebibytes << 20 },
            percents: if smoke { vec![0, 50] } else { vec![0, 25, 50, 75, 100] },
            trees: options.trees.clone(),
        })
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
    plan.make(&options.profiles, |turn| Run::new(options, turn), json)
}
