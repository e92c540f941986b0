//! `nvfold-lab auto`: policy `auto` compared with every policy that it chooses from, while the workload changes.
//!
//! The problem: a policy that chooses is judged by its loss against the best policy of each phase. The idea: run the
//! same phases, each with its share of duplicates, its length of requests and its compressibility, on one device per
//! policy. Report for each phase the cost (charged time and processor time of the writer), the space, and the
//! *regret*: the ratio of `auto` to the best fixed policy of that phase, which is not known beforehand. The figures
//! of `auto` include the cost until it has noticed a new phase. Policies take turns, and data is made before a phase
//! is timed.

use crate::experiment::{Common, Head, Publish};
use crate::font::font;
use crate::{Doing, LabError, Result, bounds};
use clap::Args;
use nvfold::{AutoOptions, Compression, FileKind, InodeNumber, MkfsOptions, MountOptions, NewInode, Policy, Prefer};
use nvfold_bench::data::{Unshared, fill};
use nvfold_bench::device::Device;
use nvfold_bench::samples::median;
use plotters::prelude::*;
use pmem::Profile;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

const BLOCK: usize = 4096;
const LONG: usize = 32 * BLOCK;
const PHASES: [Phase; 8] = [
    phase(0, BLOCK, false),
    phase(50, BLOCK, false),
    phase(75, BLOCK, false),
    phase(0, LONG, false),
    phase(50, LONG, false),
    phase(75, LONG, false),
    phase(0, LONG, true),
    phase(0, BLOCK, false),
];
const FIXED: [Policy; 4] = [Policy::Off, Policy::Inline, Policy::NvDedup, Policy::DeExt];
const PREFERENCES: [Prefer; 3] = [Prefer::Speed, Prefer::Space, Prefer::Balanced];
/// Bytes of a piece of compressible content.
const COMPRESSIBLE_BYTES: usize = 64 << 10;

/// A workload.
#[derive(Clone, Copy, Debug)]
struct Phase {
    duplicates_percent: u64,
    request_bytes: usize,
    is_compressible: bool,
}

const fn phase(duplicates_percent: u64, request_bytes: usize, is_compressible: bool) -> Phase {
    Phase { duplicates_percent, request_bytes, is_compressible }
}

/// How to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Emulated devices
    #[arg(long, value_delimiter = ',', default_values = ["native", "nvdimm-8x", "optane", "pcm"], value_name = "PROFILE")]
    profile: Vec<Profile>,
    /// MiB written in each phase; a sampling period has 32 MiB
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=4096))]
    mebibytes: u64,
    /// Number of passes; the report gives their median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    mebibytes: u64,
    rows: Vec<Row>,
}

impl Publish for Report {
    fn head(&self) -> &Head {
        &self.head
    }

    fn page(&self) -> String {
        page(self)
    }

    fn table(&self) -> String {
        page(self)
    }

    fn draw(&self, folder: &Path) -> Result<()> {
        let mut profiles: Vec<&str> = self.rows.iter().map(|row| row.profile.as_str()).collect();
        profiles.dedup();
        profiles.into_iter().try_for_each(|profile| {
            let drawn = self.draw_profile(profile, &folder.join(format!("{profile}.svg")));
            drawn.map_err(|error| LabError::Plot(error.to_string()))
        })
    }
}

/// One phase on one device under one policy.
#[derive(Debug, Serialize)]
struct Row {
    profile: String,
    /// Number of the phase, from 1.
    phase: usize,
    duplicates_percent: u64,
    request_bytes: usize,
    compressible: bool,
    /// The policy, or `auto` with its preference.
    policy: String,
    /// Median cost of a block.
    ns: f64,
    /// Median of the bytes stored for a byte written.
    stored: f64,
    /// Speed relative to the fastest fixed policy of the phase, and space relative to the smallest.
    speed_ratio: f64,
    space_ratio: f64,
    /// The choice at the end of the phase, in the last pass.
    chosen: &'static str,
}

/// The result of a policy in a phase.
struct Done {
    ns: f64,
    stored: f64,
    chosen: &'static str,
}

/// A policy, and the preference of `auto`.
type Runner = (Policy, Prefer);

/// Measures, and prints the report.
pub(crate) fn run(options: &Options, json: bool) -> Result<()> {
    let (mebibytes, repeats) = if options.common.smoke { (1, 1) } else { (options.mebibytes, options.repeats) };
    let runners: Vec<Runner> = FIXED
        .map(|policy| (policy, Prefer::default()))
        .into_iter()
        .chain(PREFERENCES.map(|prefer| (Policy::Auto, prefer)))
        .collect();
    let mut rows = Vec::new();
    for profile in &options.profile {
        let mut passes: Vec<Vec<Vec<Done>>> = runners.iter().map(|_| Vec::new()).collect();
        for pass in 0..repeats {
            for (runner, passes) in runners.iter().zip(&mut passes) {
                passes.push(phases(profile, *runner, mebibytes << 20, u64::from(pass))?);
            }
        }
        for (at, phase) in PHASES.iter().enumerate() {
            rows.extend(rows_of(profile, at, phase, &runners, &passes));
        }
    }
    let report = Report { head: Head::new("auto", 1), mebibytes, rows };
    options.common.publish(&report, json)
}

/// Returns the rows of one phase, compared with its best fixed policies.
fn rows_of(profile: &Profile, at: usize, phase: &Phase, runners: &[Runner], passes: &[Vec<Vec<Done>>]) -> Vec<Row> {
    let figure = |runner: usize, of: fn(&Done) -> f64| {
        median(&passes[runner].iter().map(|phases| of(&phases[at])).collect::<Vec<_>>())
    };
    let least = |of: fn(&Done) -> f64| (0..FIXED.len()).map(|runner| figure(runner, of)).fold(f64::INFINITY, f64::min);
    let (fastest, smallest) = (least(|done| done.ns), least(|done| done.stored));
    let row = |(runner, (policy, prefer)): (usize, &Runner)| {
        let (ns, stored) = (figure(runner, |done| done.ns), figure(runner, |done| done.stored));
        Row {
            profile: profile.to_string(),
            phase: at + 1,
            duplicates_percent: phase.duplicates_percent,
            request_bytes: phase.request_bytes,
            compressible: phase.is_compressible,
            policy: match policy {
                Policy::Auto => format!("auto, {}", prefer.name()),
                policy => policy.name().to_owned(),
            },
            ns,
            stored,
            speed_ratio: fastest / ns,
            space_ratio: stored / smallest,
            chosen: passes[runner].last().map_or("", |phases| phases[at].chosen),
        }
    };
    runners.iter().enumerate().map(row).collect()
}

/// Refuses less stored than is neither a duplicate nor compressible, in bytes a byte written.
fn check(what: &str, phase: &Phase, stored: f64) -> Result<()> {
    let unique = if phase.is_compressible { 0.0 } else { 1.0 - phase.duplicates_percent as f64 / 100.0 };
    let why = "only duplicates are shared, and the data does not compress";
    bounds::at_least(format!("{what}: bytes stored a byte written"), stored, unique, "", why)
}

/// Writes all phases on a new device, each into a new file that replaces the previous one.
fn phases(profile: &Profile, (policy, prefer): Runner, bytes: u64, pass: u64) -> Result<Vec<Done>> {
    let device = Device::new(profile, 3 * bytes + (64 << 20));
    let auto = AutoOptions { prefer, ..AutoOptions::default() };
    let mount = MountOptions { policy, auto, compression: Compression::Lz4, cores: 1, ..MountOptions::default() };
    let fs = device.mount(&MkfsOptions::default(), mount)?;
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    let mut data = vec![0; bytes as usize];
    let mut done = Vec::new();
    for (seed, phase) in (1 + 100 * pass..).zip(PHASES) {
        match phase.is_compressible {
            true => fill_compressible(&mut data, seed << 32),
            false => fill(&mut data, phase.duplicates_percent, seed << 32),
        }
        let before = fs.stats().stored_bytes;
        let ino = fs.create(InodeNumber::ROOT, b"file", &new).doing("create")?.ino;
        let file = fs.open(ino).doing("open")?;
        let cost = pmem::clock::cost_ns();
        for (at, request) in data.chunks(phase.request_bytes).enumerate() {
            file.write_at((at * phase.request_bytes) as u64, request).doing("write")?;
        }
        let ns = (pmem::clock::cost_ns() - cost) / (bytes / BLOCK as u64) as f64;
        let stored = fs.stats().stored_bytes.saturating_sub(before) as f64 / bytes as f64;
        check(&format!("auto, {}, phase {}", policy.name(), done.len() + 1), &phase, stored)?;
        let chosen = fs.chosen_policy_of(ino).doing("ask for the policy")?.name();
        done.push(Done { ns, stored, chosen });
        drop(file);
        fs.unlink(InodeNumber::ROOT, b"file").doing("unlink")?;
    }
    fs.unmount().doing("unmount")?;
    Ok(done)
}

/// Fills a buffer with compressible content, nothing of which can be shared.
fn fill_compressible(data: &mut [u8], seed: u64) {
    let mut content = Unshared::new(COMPRESSIBLE_BYTES, seed);
    for (number, piece) in (seed..).zip(data.chunks_mut(COMPRESSIBLE_BYTES)) {
        let length = piece.len();
        piece.copy_from_slice(&content.stamped(true, number)[..length]);
    }
}

impl Row {
    fn describe(&self) -> String {
        let kind = if self.compressible { ", compressible" } else { "" };
        format!("{} % of {} KiB{kind}", self.duplicates_percent, self.request_bytes >> 10)
    }
}

impl Report {
    /// Draws the picture of a device: over the phases, the speed of `auto, speed` and the space of `auto, space`
    /// relative to the best.
    fn draw_profile(&self, profile: &str, file: &Path) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::new(file, (900, 420)).into_drawing_area();
        root.fill(&WHITE)?;
        let title = format!("auto to the best fixed policy of each phase, {profile}");
        let phases = PHASES.len() as f64;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, font(18))
            .margin(12)
            .x_label_area_size(46)
            .y_label_area_size(56)
            .build_cartesian_2d(0.5..phases + 0.5, 0.0..1.25f64)?;
        let name = |phase: &f64| {
            let row = self.rows.iter().find(|row| row.phase as f64 == *phase);
            row.map_or(String::new(), |row| format!("{} %, {} KiB", row.duplicates_percent, row.request_bytes >> 10))
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(PHASES.len())
            .x_label_formatter(&name)
            .x_label_style(font(12))
            .y_label_style(font(12))
            .draw()?;
        let lines = [
            ("auto, speed", "speed of auto, prefer=speed", BLUE),
            ("auto, balanced", "speed of auto, prefer=balanced", GREEN),
            ("auto, space", "least space to that of auto, prefer=space", RED),
        ];
        for (policy, label, color) in lines {
            let of = self.rows.iter().filter(|row| row.profile == profile && row.policy == policy);
            let ratio = |row: &Row| if policy == "auto, space" { 1.0 / row.space_ratio } else { row.speed_ratio };
            let points: Vec<(f64, f64)> = of.map(|row| (row.phase as f64, ratio(row))).collect();
            chart
                .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?
                .label(label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
            chart.draw_series(points.into_iter().map(|point| Circle::new(point, 4, color.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerLeft)
            .background_style(WHITE.mix(0.8))
            .label_font(font(13))
            .draw()?;
        root.present()?;
        Ok(())
    }
}

fn page(report: &Report) -> String {
    let heading = report.head.heading();
    let mut text = format!(
        "# Policy auto beside each policy that it chooses from\n\n\
         `{heading}`\n\n\
         How much does policy `auto` lose against a user who knows the best policy of each phase? Each policy has its own\n\
         device, on which phases of {} MiB run one after the other. Figures are medians of the passes:\n\n\
         - *ns*: cost of a block, charged time plus processor time\n\
         - *stored*: bytes stored per byte written\n\
         - *speed*: time of the fastest fixed policy, divided by the time of this one\n\
         - *space*: bytes stored by this policy, divided by those of the fixed policy that stores least\n\
         - *chosen*: the policy that `auto` had chosen at the end of the phase, in the last pass\n\n\
         | device | phase | policy | ns | stored | speed | space | chosen |\n\
         |---|---|---|---|---|---|---|---|\n",
        report.mebibytes
    );
    for row in &report.rows {
        let Row { profile, phase, policy, ns, stored, speed_ratio, space_ratio, .. } = row;
        let chosen = if policy.starts_with("auto") { row.chosen } else { "" };
        let _ = writeln!(
            text,
            "| {profile} | {phase}: {} | {policy} | {ns:.0} | {stored:.3} | {speed_ratio:.3} | {space_ratio:.3} | {chosen} |",
            row.describe(),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_that_stores_less_than_its_unique_data_is_refused() {
        check("off", &phase(50, 4096, false), 0.5).unwrap();
        check("off", &phase(0, 4096, true), 0.4).unwrap();
        let error = check("inline", &phase(50, 4096, false), 0.49).unwrap_err().to_string();
        assert!(error.contains("inline: bytes stored a byte written: 0.49 was measured"), "{error}");
    }
}
