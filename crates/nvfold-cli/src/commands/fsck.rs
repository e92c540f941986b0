//! `nvfold fsck`: checks the numbered invariants on an unmounted device, and repairs what needs no guess.
//!
//! The options and exit codes are those of fsck(8), so that it works at boot.

use crate::device::{self, DeviceOptions};
use crate::failure::{Doing, Failure, Outcome};
use crate::mounts;
use crate::output::Output;
use crate::report;
use clap::Args;
use nvfold::check::{CheckOptions, Report as Checked, check};
use nvfold::media::superblock::STATE_CLEAN;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Exit code: everything is as it must be.
const CONSISTENT: u8 = 0;
/// Exit code: errors were corrected.
const CORRECTED: u8 = 1;
/// Exit code: errors are left.
const LEFT: u8 = 4;
/// Exit code: something went wrong that is no finding.
pub const OPERATIONAL: u8 = 8;
/// Exit code: called wrongly.
pub const USAGE: u8 = 16;

/// Check an unmounted device, and repair it if asked to (exit codes as fsck(8))
#[derive(Args, Debug)]
pub struct Fsck {
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Repair what can be repaired without a guess
    #[arg(short = 'y', long)]
    repair: bool,
    /// As at boot: repair; a device that was unmounted in order is not looked at unless -f is given
    #[arg(short = 'p', long, visible_short_alias = 'a')]
    preen: bool,
    /// Change nothing, whatever else is asked for
    #[arg(short = 'n', long)]
    no_changes: bool,
    /// Look at a device also when it was unmounted in order (only -p leaves it out)
    #[arg(short = 'f', long)]
    force: bool,
    /// Do not read file data: leave out fingerprints and the search for bad memory
    #[arg(long)]
    metadata_only: bool,
    #[command(flatten)]
    device_options: DeviceOptions,
    /// From fsck(8)
    #[arg(short = 'v', hide = true)]
    verbose: bool,
    #[arg(short = 'r', hide = true)]
    interactive: bool,
    #[arg(short = 'C', hide = true, num_args = 0..=1, require_equals = true)]
    progress_fd: Option<Option<i32>>,
}

#[derive(Serialize)]
struct Report {
    device: String,
    /// Nothing is left to repair.
    consistent: bool,
    /// It was unmounted in order.
    clean: bool,
    /// Traces of a crash that the next mount removes by itself.
    recoverable: u64,
    findings: Vec<Finding>,
    findings_unlisted: u64,
    inodes: u64,
    directories: u64,
    names: u64,
    extents: u64,
    blocks: u64,
    chunks: u64,
    metadata_blocks: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct Finding {
    /// Number of the invariant; 0: the format.
    invariant: u8,
    what: String,
    /// Device offset.
    at: u64,
    repaired: bool,
}

/// Runs it.
pub fn run(fsck: &Fsck, output: &Output) -> Outcome<u8> {
    let name = mounts::show(&fsck.device);
    let repair = (fsck.repair || fsck.preen) && !fsck.no_changes;
    let region = device::open(&fsck.device, &fsck.device_options, !repair)?;
    if fsck.preen && !fsck.force && nvfold::read_superblock(&region).is_ok_and(|(found, _)| found.state == STATE_CLEAN)
    {
        let report = Report::new(&name, Checked { clean: true, ..Checked::default() }, 0.0);
        report::emit(output.json, "fsck", &report, || format!("{name}: unmounted in order, not checked"))?;
        return Ok(CONSISTENT);
    }
    let started = Instant::now();
    let checked = match check(&region, &CheckOptions { repair, data: !fsck.metadata_only }) {
        Err(error @ nvfold::Error::Corrupt { .. }) => {
            // So damaged that nothing could be checked: errors are left, the operation did not fail.
            Failure::new(&name, error).report();
            return Ok(LEFT);
        }
        checked => checked.doing(&name)?,
    };
    let crash_recovered = repair && !checked.clean && checked.is_consistent();
    let any_repaired = checked.findings.iter().any(|finding| finding.repaired);
    let code = match checked.is_consistent() {
        false => LEFT,
        true if any_repaired || crash_recovered => CORRECTED,
        true => CONSISTENT,
    };
    let report = Report::new(&name, checked, started.elapsed().as_secs_f64());
    report::emit(output.json, "fsck", &report, || describe(&report, repair))?;
    Ok(code)
}

impl Report {
    fn new(device: &str, checked: Checked, seconds: f64) -> Report {
        let finding = |finding: &nvfold::check::Finding| Finding {
            invariant: finding.invariant,
            what: finding.what.clone(),
            at: finding.at,
            repaired: finding.repaired,
        };
        Report {
            device: device.to_owned(),
            consistent: checked.is_consistent(),
            clean: checked.clean,
            recoverable: checked.recoverable,
            findings: checked.findings.iter().map(finding).collect(),
            findings_unlisted: checked.findings_unlisted,
            inodes: checked.inodes,
            directories: checked.directories,
            names: checked.names,
            extents: checked.extents,
            blocks: checked.blocks,
            chunks: checked.chunks,
            metadata_blocks: checked.metadata_blocks,
            seconds,
        }
    }
}

fn describe(report: &Report, repair: bool) -> String {
    let mut lines = Vec::new();
    for finding in &report.findings {
        let state = if finding.repaired { "repaired" } else { "left" };
        let rule = if finding.invariant == 0 { "format".into() } else { format!("invariant {}", finding.invariant) };
        lines.push(format!("{rule}: {} (at {:#x}): {state}", finding.what, finding.at));
    }
    if report.findings_unlisted > 0 {
        lines.push(format!("and {} findings more", report.findings_unlisted));
    }
    let Report { inodes, directories, names, extents, blocks, .. } = report;
    lines.push(format!(
        "{}: {inodes} inodes ({directories} directories, {names} names), {extents} extents, {blocks} blocks in {:.2} s",
        report.device, report.seconds
    ));
    let left = report.findings.iter().filter(|finding| !finding.repaired).count() as u64 + report.findings_unlisted;
    lines.push(match (report.consistent, report.clean) {
        (false, _) if repair => format!("{left} errors are left; copy what can be read with `nvfold export`"),
        (false, _) => format!("{left} errors; `nvfold fsck --repair` corrects what needs no guess"),
        (true, false) if !repair => "consistent; not unmounted in order: the next mount recovers it".into(),
        (true, _) => "consistent".into(),
    });
    lines.join("\n")
}
