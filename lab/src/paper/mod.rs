//! `nvfold-lab paper`: the figures and tables of the papers that nvfold is made from, measured here.
//!
//! The problem: a paper's figures show another machine. The idea: rebuild the workload, run every system of the
//! figure in turn on the same emulated device, and print the ratios next to the paper's statements.
//!
//! | module | what |
//! |---|---|
//! | `nv_dedup` | the figures of NV-Dedup |
//! | `denova` | the figures of DeNOVA |
//! | `deext` | the figures of DeEXT |
//! | `icid` | the figures of ICID |
//! | `turn` | the common parts of the runs of all papers |
//! | `page` | the page of all figures of a paper |
//! | `folder` | the figures in a folder of results |
//! | `picture`, `pen` | the picture of a figure; the shapes on it |
//! | `axis`, `look` | its y axis; colours and markers of systems |
//! | `figure`, `chart` | the content of a figure; the charts in it |
//! | `number` | numbers in text and in JSON |
//! | `machine` | the class of machine |
//! | `system` | the systems that NV-Dedup is compared with, mounted |
//! | `workload` | the requests |
//! | `tree` | the files of a folder |
//! | `dram` | the memory of a process that writes |
//! | `spent` | duration of work: its cost, and wall time |

mod axis;
mod chart;
mod deext;
mod denova;
mod dram;
mod figure;
mod folder;
mod icid;
mod look;
mod machine;
mod number;
mod nv_dedup;
mod page;
mod pen;
mod picture;
mod spent;
mod system;
mod tree;
mod turn;
mod workload;

pub(crate) use dram::{ChildOptions as DramOptions, child as dram};

use crate::Result;
use clap::{Args, Subcommand};

/// Which paper.
#[derive(Args, Clone, Debug)]
pub(crate) struct PaperArgs {
    #[command(subcommand)]
    paper: Paper,
}

#[derive(Subcommand, Clone, Debug)]
enum Paper {
    /// NV-Dedup: Figures 1, 2, 6 to 13, Tables 4 and 5, DRAM per chunk, and real fio on a mount
    #[command(before_help = "Example: nvfold-lab paper nv-dedup")]
    NvDedup(nv_dedup::Options),
    /// DeNOVA: Figures 2 and 8 to 12, Table IV, its equations, savings, DRAM and the table on the device
    #[command(name = "denova")]
    #[command(before_help = "Example: nvfold-lab paper denova")]
    DeNova(denova::Options),
    /// DeEXT: Figures 8 to 12, and real trees: space, access latency and energy compared with ext4
    #[command(name = "deext")]
    #[command(before_help = "Example: nvfold-lab paper deext")]
    DeExt(deext::Options),
    /// ICID: Tables 4 to 6, Figures 9 to 15 and section 6, with unmodified programs under `nvfold run`
    #[command(before_help = "Example: nvfold-lab paper icid")]
    Icid(icid::Options),
}

/// Makes the figures of a paper; prints where they are, or their JSON.
pub(crate) fn run(args: &PaperArgs, json: bool) -> Result<()> {
    match &args.paper {
        Paper::NvDedup(options) => nv_dedup::run(options, json),
        Paper::DeNova(options) => denova::run(options, json),
        Paper::DeExt(options) => deext::run(options, json),
        Paper::Icid(options) => icid::run(options, json),
    }
}
