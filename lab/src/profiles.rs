//! `nvfold-lab profiles`: the calibration table of the emulated devices.
//!
//! The problem: with a profile that charges the wrong time, every figure describes a device that does not exist. An
//! earlier profile wrote 15 GB/s and read 1.2, where the real device does the opposite.
//!
//! The idea: repeat on each profile the measurement of its sources, and print the charge next to the published value.
//! For devices that threads wait for, the table also has the wall clock: accesses of microseconds take as long as
//! their charge. For single lines the wall clock shows only the time of the host and of two clock reads, because no
//! processor can wait for 19 ns.

use crate::Result;
use crate::experiment::{Common, Head, Publish};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use nvfold_bench::device::Device;
use nvfold_bench::samples::median;
use pmem::{Counters, Profile, Region};
use serde::Serialize;
use std::fmt::Write;
use std::time::Instant;

const LINE: u64 = 64;
const BLOCK: u64 = 4096;
const DEVICE_BYTES: u64 = 32 << 20;
const ROUNDS: usize = 5;
/// Number of accesses in a round.
const ACCESSES: u64 = 200;
/// Allowed deviation from the published value, percent.
const ALLOWED_PERCENT: f64 = 5.0;

/// Where the table goes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    common: Common,
}

/// The kind of measurement of a source.
#[derive(Clone, Copy)]
enum Measure {
    /// Nanoseconds of a streaming store of so many bytes and a fence.
    Persist(u64),
    /// Nanoseconds of a read of so many bytes that are in no cache.
    Read(u64),
    /// Joules to write a gigabyte.
    WriteEnergy,
    /// Joules to read a gigabyte.
    ReadEnergy,
}

/// A published value: profile, measurement, least and most, source.
type Published = (&'static str, Measure, f64, f64, &'static str);

const PUBLISHED: [Published; 18] = [
    ("nvdimm-8x", Measure::Persist(BLOCK), 9700.0, 9700.0, "NV-Dedup 5.2"),
    ("nvdimm-8x", Measure::Persist(LINE), 600.0, 600.0, "NV-Dedup 5.1"),
    ("nvdimm-8x", Measure::Read(LINE), 300.0, 300.0, "NV-Dedup 5.1"),
    (
        "nvdimm-600",
        Measure::Persist(BLOCK),
        38_400.0,
        40_500.0,
        "NV-Dedup 5.1: 64 lines; Table 4: 40.5 us with metadata",
    ),
    ("nvdimm-600", Measure::Persist(LINE), 600.0, 600.0, "NV-Dedup 5.1"),
    ("optane", Measure::Persist(32 * BLOCK), 39_860.0, 39_860.0, "DeNOVA Table IV"),
    ("optane", Measure::Persist(LINE), 90.0, 90.0, "Izraelevitz et al. 2019"),
    ("optane", Measure::Read(LINE), 305.0, 305.0, "Izraelevitz et al. 2019"),
    ("pcm", Measure::Persist(BLOCK), 614_400.0, 614_400.0, "DeEXT Table II: 150 ns a byte"),
    ("pcm", Measure::Read(BLOCK), 204_800.0, 204_800.0, "DeEXT Table II: 50 ns a byte"),
    ("pcm", Measure::WriteEnergy, 6.0, 6.0, "DeEXT Table I"),
    ("pcm", Measure::ReadEnergy, 1.0, 1.0, "DeEXT Table I"),
    ("rram", Measure::Persist(LINE), 100.0, 100.0, "DeEXT Table I: an access of 64 bytes"),
    ("rram", Measure::Read(LINE), 1.9, 1.9, "DeEXT Table I: an access of 64 bytes"),
    ("rram", Measure::WriteEnergy, 14.02, 14.02, "DeEXT Table I"),
    ("rram", Measure::ReadEnergy, 0.25, 0.25, "DeEXT Table I"),
    ("stt-ram", Measure::Persist(LINE), 10.0, 100.0, "NV-Dedup Table 1"),
    ("stt-ram", Measure::Read(LINE), 5.0, 30.0, "NV-Dedup Table 1"),
];

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    profile: &'static str,
    what: String,
    unit: &'static str,
    published: (f64, f64),
    source: &'static str,
    /// The charge of the profile, or the energy that its counters give.
    emulated: f64,
    /// Deviation from the nearer end of the published range, percent.
    deviation_percent: f64,
    /// Wall clock, median of rounds; absent if threads do not wait for the device.
    wall: Option<f64>,
}

/// The table as it is stored.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
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
        table(self)
    }
}

/// Measures all profiles and prints the table.
pub(crate) fn run(options: &Options, json: bool) -> Result<()> {
    let published = if options.common.smoke { &PUBLISHED[..2] } else { &PUBLISHED[..] };
    let rows = published.iter().map(row).collect::<Result<Vec<Row>>>()?;
    let report = Report { head: Head::new("profiles", 1), rows };
    options.common.publish(&report, json)
}

fn row(published: &Published) -> Result<Row> {
    let (name, measure, least, most, source) = *published;
    let profile: Profile = name.parse().expect("a named profile");
    let rounds = (0..ROUNDS).map(|_| round(&profile, measure)).collect::<Result<Vec<(f64, f64)>>>()?;
    let emulated = rounds[0].0;
    let wall: Vec<f64> = rounds.iter().map(|(_, wall)| *wall).collect();
    let (what, unit, is_time) = match measure {
        Measure::Persist(bytes) => (format!("write {} and fence", size(bytes)), "ns", true),
        Measure::Read(bytes) => (format!("read {}", size(bytes)), "ns", true),
        Measure::WriteEnergy => ("energy to write".into(), "J/GB", false),
        Measure::ReadEnergy => ("energy to read".into(), "J/GB", false),
    };
    Ok(Row {
        profile: name,
        what,
        unit,
        published: (least, most),
        source,
        emulated,
        deviation_percent: 100.0 * (emulated / emulated.clamp(least, most) - 1.0),
        wall: (is_time && profile.waits()).then(|| median(&wall)),
    })
}

/// Returns the charge of one access (or the joules per gigabyte), and its time by the wall clock.
fn round(profile: &Profile, measure: Measure) -> Result<(f64, f64)> {
    let region = Device::new(profile, DEVICE_BYTES).create()?;
    region.populate(0, DEVICE_BYTES);
    let bytes = match measure {
        Measure::Persist(bytes) | Measure::Read(bytes) => bytes,
        Measure::WriteEnergy | Measure::ReadEnergy => BLOCK,
    };
    let is_write = matches!(measure, Measure::Persist(_) | Measure::WriteEnergy);
    let mut buffer = vec![1; bytes as usize];
    let (before, clock) = (region.counters(), Instant::now());
    for access in 0..ACCESSES {
        // No two accesses touch the same line or neighbouring lines.
        let at = (access * 37 * bytes.max(2 * LINE)) % (DEVICE_BYTES - bytes) / LINE * LINE;
        access_once(&region, at, &mut buffer, is_write);
    }
    let wall = clock.elapsed().as_nanos() as f64 / ACCESSES as f64;
    let counted = region.counters() - before;
    let emulated = match measure {
        Measure::Persist(_) | Measure::Read(_) => counted.charged_ps as f64 / 1000.0 / ACCESSES as f64,
        Measure::WriteEnergy | Measure::ReadEnergy => joules_a_gb(profile, counted),
    };
    Ok((emulated, wall))
}

fn access_once(region: &Region, at: u64, buffer: &mut [u8], is_write: bool) {
    if is_write {
        let _ = region.fence(region.stream(at, buffer));
    } else {
        region.read_into(at, buffer);
    }
}

fn joules_a_gb(profile: &Profile, counted: Counters) -> f64 {
    let bytes = counted.lines_written() * LINE + counted.bytes_read();
    profile.joules(&counted).unwrap_or(f64::NAN) * 1e9 / bytes as f64
}

fn size(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} bytes") } else { format!("{} KiB", bytes / 1024) }
}

fn cells(row: &Row) -> [String; 7] {
    let (least, most) = row.published;
    let value = |value: f64| format!("{} {}", digits(value), row.unit);
    [
        row.profile.into(),
        row.what.clone(),
        if least == most { value(least) } else { format!("{} to {}", digits(least), value(most)) },
        value(row.emulated),
        format!("{:+.1} %", row.deviation_percent),
        row.wall.map_or("-".into(), value),
        row.source.into(),
    ]
}

fn digits(value: f64) -> String {
    if value < 100.0 { format!("{}", (value * 100.0).round() / 100.0) } else { format!("{value:.0}") }
}

const HEAD: [&str; 7] = ["profile", "what", "published", "emulated", "deviation", "wall clock", "source"];

fn table(report: &Report) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(HEAD);
    report.rows.iter().for_each(|row| {
        table.add_row(cells(row));
    });
    for column in 2..6 {
        table.column_mut(column).expect("seven columns").set_cell_alignment(CellAlignment::Right);
    }
    let text = format!("{}\n{table}", report.head.heading());
    text.lines().map(str::trim_end).collect::<Vec<&str>>().join("\n")
}

fn page(report: &Report) -> String {
    let right = report.rows.iter().filter(|row| row.deviation_percent.abs() <= ALLOWED_PERCENT).count();
    let mut text = format!(
        "# Emulated devices: published and emulated values\n\n\
         Made by {}.\n\
         {right} of {} values are within {ALLOWED_PERCENT} % of the published value.\n\n\
         *Emulated* is what a profile charges for one access. It is the same in every run. *Wall clock* is the median of\n\
         {ROUNDS} rounds of {ACCESSES} accesses on this machine. For accesses that are charged microseconds, the thread\n\
         waits until that time has passed. For single lines, the wall clock shows only the time of the host and of two\n\
         clock reads. `-`: not a time, or threads do not wait for this device.\n\n\
         `crates/pmem/src/profile.rs` describes the model and the sources of its figures. `crates/pmem/src/cache.rs`\n\
         decides which reads hit the processor's cache.\n\n\
         | {} |\n|---|---|--:|--:|--:|--:|---|\n",
        report.head.marked_heading(),
        report.rows.len(),
        HEAD.join(" | ")
    );
    for row in &report.rows {
        writeln!(text, "| {} |", cells(row).join(" | ")).expect("a string takes it");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_charges_the_published_figures() {
        for published in &PUBLISHED {
            let row = row(published).unwrap();
            assert!(row.deviation_percent.abs() <= ALLOWED_PERCENT, "{row:?}");
        }
    }

    #[test]
    fn every_named_profile_but_native_is_calibrated() {
        for profile in Profile::all().iter().filter(|profile| !profile.is_native()) {
            assert!(PUBLISHED.iter().any(|(name, ..)| *name == profile.name()), "{profile}");
        }
    }

    #[test]
    fn the_profiles_page_has_a_row_for_each_value() {
        let rows = PUBLISHED[..2].iter().map(|published| row(published).unwrap()).collect();
        let page = page(&Report { head: Head::new("profiles", 1), rows });
        assert!(page.contains("2 of 2 values"), "{page}");
        assert!(page.contains("| nvdimm-8x | write 4 KiB and fence | 9700 ns |"), "{page}");
    }
}
