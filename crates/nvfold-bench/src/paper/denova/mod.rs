//! `nvfold bench paper denova`: the evaluation of DeNOVA (IPDPS 2022, sections III and V), and our additional claims.
//!
//! The paper writes a million small files and a hundred thousand large ones on a quiet server, and derives
//! differences of one percent from that. A fraction of its files is enough if the systems take turns and a difference
//! is the median of pairs. The intervals of delayed(n, m) shrink with the files, so that a run has as many of them as
//! the paper's.
//!
//! | module | figures |
//! |---|---|
//! | `write` | 8, with think time and without; savings of generated data |
//! | `threads` | 9 |
//! | `linger` | 10 |
//! | `overwrite` | 11 |
//! | `read` | 12 |
//! | `times` | 2, Table IV |
//! | `equations` | equations (1) to (5): is inline worth it |
//! | `trees` | savings of real trees |
//! | `dram` | DRAM of deduplication |
//! | `fact` | the table on the device: its size, entries read per lookup |
//! | `passes` | how systems are timed in pairs |
//! | `files` | the paper's workload |
//! | `volume` | the systems, mounted |

mod dram;
mod equations;
mod fact;
mod files;
mod linger;
mod overwrite;
mod passes;
mod read;
mod threads;
mod times;
mod trees;
mod volume;
mod write;

use super::page::Page;
use super::turn::{self, Group, Plan, Turn};
use crate::Result;
use clap::Args;
use files::{Size, Think};
use nvfold::DedupMode;
use std::path::PathBuf;
use std::time::Instant;
use volume::DELAYED;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Figures to make: 2, 8 .. 12, table-4, equations, no-think, savings, trees, dram, fact [default: all]
    #[arg(long = "figure", value_name = "ID", value_delimiter = ',', value_parser = parse_figure)]
    figures: Vec<String>,
    /// Device profiles: optane, native
    #[arg(long = "profile", value_name = "NAME", value_delimiter = ',', value_parser = parse_profile,
        default_values = PROFILES)]
    profiles: Vec<String>,
    /// Folder for JSON, pictures and the page; other figures in it are kept
    #[arg(long, value_name = "DIR", default_value = "target/results/denova")]
    out: PathBuf,
    /// Fraction of the paper's files to write: 1 is a million small and a hundred thousand large ones
    #[arg(long, value_name = "SHARE", value_parser = parse_scale)]
    scale: Option<f64>,
    /// Number of timed passes; the report gives their median; at most five passes where a difference of one percent
    /// does not matter
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: Option<u32>,
    /// Real trees whose duplicates are shared
    #[arg(long = "tree", value_name = "DIR", value_delimiter = ',', default_values = ["/usr/share", "/usr/lib"])]
    trees: Vec<PathBuf>,
    /// Keep the figures in the folder that were made from this commit (environment variable NVFOLD_COMMIT)
    #[arg(long)]
    resume: bool,
    /// Small sizes, to test that the benchmark runs; not for figures
    #[arg(long)]
    smoke: bool,
}

const PAPER: &str = "denova";
/// The paper's first.
const PROFILES: [&str; 2] = ["optane", "native"];
/// Share of the paper's files.
const SCALE: f64 = 0.01;
const REPEATS: u32 = 9;
const FEWER: usize = 5;
const SMOKE_SCALE: f64 = 0.0003;

const PAGE: Page = Page {
    title: "DeNOVA: the paper's figures, measured",
    introduction: &[
        "This page and everything beside it is written by the command below, from the figures that were run last. It \
         holds nvfold against *DeNOVA: Deduplication Extended NOVA File System* (IPDPS 2022).",
        "**How to read it.** The paper gives most results as pictures; where its text or tables give a value it stands \
         beside ours, with ours divided by it (by the nearer end of a range, 1.00 within it). Persistent memory is \
         emulated: the device lies in memory, and a profile charges time for lines, fences and reads (see \
         docs/results/profiles); optane is the paper's setting, native is the memory as it is. All systems of a figure \
         run in one process, in turn.",
        "**Cost and wall clock.** A *drop* is by *cost*: what the emulated device charged the writer, the same in every \
         run, and the writer's processor time; the daemon's work is not in it. It is the median of the passes' own \
         differences to `off`, which runs on the same device right before or behind. What the wall clock said stands in \
         the tables, with the width of the middle half of its pairs. *off, again* is the baseline held against itself: \
         what it differs by, any difference is worth no more than. (It once differed by 33 to 38 % with large files: \
         each system had a device of its own, and memory of one device takes up to a third longer to write than that \
         of another, by where the host happens to have it.)",
        "**Pictures.** A system has one colour in all of them; dashed, hollow or pale is *as in the paper*, solid is \
         *ours*. A hollow diamond is a value that the paper's text gives, a bar with ends a range; what the paper shows in \
         a picture only is not drawn in.",
        "**What is not the paper's.** nvfold runs in the program's own process, not in the kernel. The files are ours, with \
         an exact share of duplicate blocks; there are fewer of them, and the intervals of delayed(750, 20000) are \
         shorter by as much (Figure 10 has them as they are). Think time is as long as the requests take, given for \
         every 0.1 ms of them.",
        "**Systems.** *off* stores everything: the baseline. *as in the paper*: policy `denova` with SHA-1 for \
         everything, trusted, on a device whose table is found by prefixes of SHA-1. *ours*: XXH3 finds, bytes are \
         compared. *inline* shares before it stores, *immediate* and *delayed* later, by the daemon on a thread of its \
         own.",
    ],
    figures: &IDS,
    profiles: &PROFILES,
};

const IDS: [&str; 13] = [
    "figure-2",
    "equations",
    "table-4",
    "figure-8",
    "no-think",
    "figure-9",
    "figure-10",
    "figure-11",
    "figure-12",
    "savings",
    "trees",
    "dram",
    "fact",
];

const GROUPS: [Group<Run>; 12] = [
    Group { ids: &["figure-2"], run: times::write_and_fingerprint, once: false },
    Group { ids: &["table-4"], run: times::latencies, once: false },
    Group { ids: &["figure-8", "savings"], run: write::with_think_time, once: false },
    Group { ids: &["no-think"], run: write::without_think_time, once: false },
    Group { ids: &["figure-9"], run: threads::figures, once: false },
    Group { ids: &["figure-10"], run: linger::figures, once: false },
    Group { ids: &["figure-11"], run: overwrite::figures, once: false },
    Group { ids: &["figure-12"], run: read::figures, once: false },
    Group { ids: &["equations"], run: equations::figures, once: true },
    Group { ids: &["fact"], run: fact::figures, once: true },
    Group { ids: &["trees"], run: trees::figures, once: true },
    Group { ids: &["dram"], run: dram::figures, once: true },
];

fn parse_figure(text: &str) -> std::result::Result<String, String> {
    turn::figure_id(text, &IDS)
}

fn parse_profile(text: &str) -> std::result::Result<String, String> {
    turn::profile_name(text, &PROFILES)
}

fn parse_scale(text: &str) -> std::result::Result<f64, String> {
    let scale = text.parse().ok().filter(|scale| (0.0001..=1.0).contains(scale));
    scale.ok_or_else(|| "give a share of the paper's files, 0.0001 to 1".into())
}

/// One profile's turn: its sizes.
pub struct Run {
    /// The common parts of all papers' turns.
    pub turn: Turn,
    /// Timed passes if a difference of one percent counts.
    pub repeats: usize,
    /// Timed passes otherwise.
    pub fewer: usize,
    /// Shares of duplicates, percent.
    pub percents: Vec<u64>,
    /// Real trees.
    pub trees: Vec<PathBuf>,
    scale: f64,
}

impl Run {
    fn new(options: &Options, name: &str, began: Instant) -> Result<Run> {
        let smoke = options.smoke;
        let repeats = options.repeats.unwrap_or(if smoke { 2 } else { REPEATS }) as usize;
        Ok(Run {
            turn: Turn::new(PAPER, name, smoke, began)?,
            repeats,
            fewer: repeats.min(FEWER),
            percents: if smoke { vec![0, 50] } else { vec![0, 25, 50, 75] },
            trees: options.trees.clone(),
            scale: options.scale.unwrap_or(if smoke { SMOKE_SCALE } else { SCALE }),
        })
    }

    /// Scales a number in the same way as the paper's files.
    pub fn scaled(&self, whole: u64) -> u64 {
        (whole as f64 * self.scale).round() as u64
    }

    /// Returns the number of files of this size in a pass.
    pub fn files(&self, size: Size) -> usize {
        let paper = match size {
            Size::Small => 1_000_000,
            Size::Large => 100_000,
        };
        self.scaled(paper).max(16) as usize
    }

    /// Returns the paper's delayed(n, m), with as many intervals in a pass as in the paper's run.
    pub fn delayed(&self) -> DedupMode {
        let interval_ms = self.scaled(DELAYED.0).max(1);
        DedupMode::Delayed { interval_ms, entries: (interval_ms * DELAYED.1 / DELAYED.0).max(1) }
    }

    /// Returns whether the paper's values apply to this profile.
    pub fn is_the_papers(&self) -> bool {
        self.turn.name == PROFILES[0]
    }

    /// Returns the timed passes: more with think time, where the paper claims a difference below one percent.
    pub fn passes(&self, think: Think) -> usize {
        if think == Think::AsInPaper { self.repeats } else { self.fewer }
    }

    /// Describes the writes of a pass, and the number of passes.
    pub fn settings(&self, think: Think, repeats: usize) -> String {
        let think = if think == Think::AsInPaper { "with" } else { "without" };
        format!(
            "{} small files of 4 KiB or {} large ones of 128 KiB a pass, {think} think time; {} timed passes after one \
             that is not timed, each beside one of off; delayed is {}.",
            self.files(Size::Small),
            self.files(Size::Large),
            repeats,
            self.delayed()
        )
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
