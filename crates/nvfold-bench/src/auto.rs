//! `bench auto`: policy `auto` beside every policy that it chooses from, while the workload changes.
//!
//! The problem: a chooser is worth what it loses against whoever knew the best policy from the beginning. The idea: the same
//! phases, each with its share of duplicates and its length of requests, on a device for each policy; of each phase the
//! cost (charged time and processor time of the writer) and the space it took, and the ratio of `auto` to the best fixed
//! policy of that phase. Data is made before a phase is timed.

use crate::data::fill;
use crate::device::Device;
use crate::origin::{command, commit, save};
use crate::{Doing, Result};
use clap::Args;
use nvfold::{AutoOptions, FileKind, InodeNumber, MkfsOptions, MountOptions, NewInode, Policy, Prefer};
use pmem::Profile;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

const BLOCK: usize = 4096;
/// Share of duplicates in percent and bytes of a request.
const PHASES: [(u64, usize); 6] =
    [(0, BLOCK), (50, BLOCK), (75, BLOCK), (0, 32 * BLOCK), (50, 32 * BLOCK), (75, 32 * BLOCK)];
const FIXED: [Policy; 2] = [Policy::Off, Policy::Inline];

/// How to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Emulated devices
    #[arg(long, num_args = 1.., default_values = ["native", "nvdimm-8x", "optane", "pcm"], value_name = "PROFILE")]
    profile: Vec<Profile>,
    /// MiB written in a phase; a sampling period has 32
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=4096))]
    mebibytes: u64,
    /// What auto saves
    #[arg(long, default_value = "balanced", value_parser = prefer)]
    prefer: Prefer,
    /// Folder for README.md and auto.json
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Sizes for a test that it runs at all, not for figures
    #[arg(long)]
    smoke: bool,
}

fn prefer(text: &str) -> std::result::Result<Prefer, String> {
    Prefer::from_name(text).ok_or_else(|| format!("use one of {}", Prefer::ALL.map(Prefer::name).join(", ")))
}

#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    benchmark: &'static str,
    command: String,
    commit: Option<String>,
    prefer: &'static str,
    rows: Vec<Row>,
}

/// One phase on one device.
#[derive(Debug, Serialize)]
struct Row {
    profile: String,
    duplicates_percent: u64,
    request_bytes: usize,
    /// Nanoseconds a block and bytes stored a byte: `off`, `inline`.
    fixed_ns: Vec<f64>,
    fixed_stored: Vec<f64>,
    auto_ns: f64,
    auto_stored: f64,
    /// Speed of auto to that of the fastest fixed policy, and its space to the least.
    speed_ratio: f64,
    space_ratio: f64,
    /// Chosen at the end of the phase.
    chosen: &'static str,
}

/// What a policy did in a phase.
struct Done {
    ns: f64,
    stored: f64,
    chosen: &'static str,
}

/// Measures, and prints the report.
pub fn run(options: &Options, json: bool) -> Result<()> {
    let bytes = if options.smoke { 1 } else { options.mebibytes } << 20;
    let mut rows = Vec::new();
    for profile in &options.profile {
        let fixed = FIXED.map(|policy| phases(profile, policy, options.prefer, bytes));
        let fixed = fixed.into_iter().collect::<Result<Vec<_>>>()?;
        let auto = phases(profile, Policy::Auto, options.prefer, bytes)?;
        for (at, (done, (duplicates_percent, request_bytes))) in auto.iter().zip(PHASES).enumerate() {
            let of_fixed = |figure: fn(&Done) -> f64| fixed.iter().map(|done| figure(&done[at])).collect::<Vec<f64>>();
            let (fixed_ns, fixed_stored) = (of_fixed(|done| done.ns), of_fixed(|done| done.stored));
            let least = |figures: &[f64]| figures.iter().copied().fold(f64::INFINITY, f64::min);
            rows.push(Row {
                profile: profile.to_string(),
                duplicates_percent,
                request_bytes,
                speed_ratio: least(&fixed_ns) / done.ns,
                space_ratio: done.stored / least(&fixed_stored),
                fixed_ns,
                fixed_stored,
                auto_ns: done.ns,
                auto_stored: done.stored,
                chosen: done.chosen,
            });
        }
    }
    let prefer = options.prefer.name();
    let report = Report { version: 1, benchmark: "auto", command: command(), commit: commit(), prefer, rows };
    let text = serde_json::to_string_pretty(&report).expect("numbers and strings have a JSON form");
    if let Some(dir) = &options.out {
        save(dir, [("auto.json", format!("{text}\n")), ("README.md", table(&report))])?;
    }
    println!("{}", if json { text } else { table(&report) });
    Ok(())
}

/// Writes all phases on a device of their own, each into a new file that replaces the one before.
fn phases(profile: &Profile, policy: Policy, prefer: Prefer, bytes: u64) -> Result<Vec<Done>> {
    let device = Device::new(profile, 3 * bytes + (64 << 20));
    let auto = AutoOptions { prefer, ..AutoOptions::default() };
    let mount = MountOptions { policy, auto, cores: 1, ..MountOptions::default() };
    let fs = device.mount(&MkfsOptions::default(), mount)?;
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    let mut data = vec![0; bytes as usize];
    let mut done = Vec::new();
    for (seed, (percent, request)) in (1u64..).zip(PHASES) {
        fill(&mut data, percent, seed << 32);
        let ino = fs.create(InodeNumber::ROOT, b"file", &new).doing("create")?.ino;
        let file = fs.open(ino).doing("open")?;
        let cost = pmem::clock::cost_ns();
        for (at, request) in data.chunks(request).enumerate() {
            file.write_at((at * request.len()) as u64, request).doing("write")?;
        }
        let ns = (pmem::clock::cost_ns() - cost) / (bytes / BLOCK as u64) as f64;
        let stored = fs.stats().stored_bytes as f64 / bytes as f64;
        let chosen = fs.chosen_policy_of(ino).doing("ask for the policy")?.name();
        done.push(Done { ns, stored, chosen });
        drop(file);
        fs.unlink(InodeNumber::ROOT, b"file").doing("unlink")?;
    }
    fs.unmount().doing("unmount")?;
    Ok(done)
}

fn table(report: &Report) -> String {
    let mut text = format!(
        "`{}`, prefer={}: cost of a block in ns, space as a part of what was written.\n\n\
         | device | duplicates | request | off | inline | auto | chosen | speed, auto/best | space, auto/best |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        report.command, report.prefer
    );
    for row in &report.rows {
        let _ = writeln!(
            text,
            "| {} | {} % | {} KiB | {:.0} | {:.0} | {:.0}, {:.2} | {} | {:.3} | {:.3} |",
            row.profile,
            row.duplicates_percent,
            row.request_bytes >> 10,
            row.fixed_ns[0],
            row.fixed_ns[1],
            row.auto_ns,
            row.auto_stored,
            row.chosen,
            row.speed_ratio,
            row.space_ratio,
        );
    }
    text
}
