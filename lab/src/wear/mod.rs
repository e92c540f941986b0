//! `nvfold-lab wear`: how evenly overwritten files wear a device, with wear levelling and without.
//!
//! The problem: cells of NVRAM endure a limited number of writes, so the most written line decides how long a device
//! lives. A mean does not show that line, and neither does the wear of segments, because structures at fixed places
//! are in none.
//!
//! The idea: count the writes of every line of a small device while files are overwritten, until the device has been
//! written hundreds of times over. Report the mean and the maximum for each kind of structure. Everything runs twice,
//! the second time with the first free segment as the next pool, whatever its wear.
//!
//! | file | content |
//! |---|---|
//! | `load` | the files and the writes |
//! | `tally` | write counts of lines by kind of structure |
//! | `page` | the report as a table and as Markdown |

mod load;
mod page;
mod tally;

use crate::experiment::{Common, Head, Publish};
use crate::{Doing, Result, bounds};
use clap::Args;
use load::{Load, Pattern};
use nvfold::{FileSystem, MkfsOptions, MountOptions, Policy, SegmentWear};
use nvfold_bench::device::Device;
use pmem::Profile;
use serde::Serialize;
use tally::{Kind, Pools, Tally};

/// How to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Bytes to overwrite, as a multiple of the size of the device; 100 take about a minute per row
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    fulls: u64,
    /// Size of the device in MiB; from 128 MiB on, updated data has separate pools
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(128..=16_384))]
    mebibytes: u64,
    /// Percentage of the device that the files take
    #[arg(long, default_value_t = 65, value_parser = clap::value_parser!(u64).range(1..=80))]
    fill: u64,
    /// Emulated device; its endurance gives the lifetime
    #[arg(long, default_value = "pcm", value_name = "PROFILE")]
    profile: Profile,
    #[command(flatten)]
    common: Common,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    profile: String,
    device_bytes: u64,
    file_bytes: u64,
    files: usize,
    fulls: u64,
    runs: Vec<Run>,
}

impl Publish for Report {
    fn head(&self) -> &Head {
        &self.head
    }

    fn page(&self) -> String {
        page::markdown(self)
    }

    fn table(&self) -> String {
        page::table(self)
    }
}

/// One pattern, with wear levelling or without.
#[derive(Debug, Serialize)]
struct Run {
    pattern: Pattern,
    levelled: bool,
    /// Bytes written to files, including the first time.
    written_bytes: u64,
    /// Maximum bytes of files in blocks, for lack of a free segment.
    in_blocks_max_bytes: u64,
    /// Lines that reached the media.
    lines_written: u64,
    /// Seconds and energy charged by the profile.
    charged_seconds: f64,
    joules: Option<f64>,
    /// How often segments were opened, as `nvfold stats` reports it.
    opened_max: u32,
    opened_mean: f64,
    /// Writes of data segments, per line.
    pools: Pools,
    /// Each kind of structure.
    kinds: Vec<Kind>,
    /// Times that the device can be written over until a line of the data segments, and until any line, reaches its
    /// endurance.
    lifetime_fulls_data: Option<f64>,
    lifetime_fulls: Option<f64>,
}

/// Measures, and prints the report.
pub(crate) fn run(options: &Options, json: bool) -> Result<()> {
    let options = Options { fulls: if options.common.smoke { 1 } else { options.fulls }, ..options.clone() };
    let device_bytes = options.mebibytes << 20;
    let load = Load::new(device_bytes * options.fill / 100);
    let mut runs = Vec::new();
    for pattern in Pattern::ALL {
        for levelled in [true, false] {
            runs.push(overwrite(&options, &load, pattern, levelled)?);
        }
    }
    let report = Report {
        head: Head::new("wear", 1),
        profile: options.profile.to_string(),
        device_bytes,
        file_bytes: load::FILE_BYTES as u64,
        files: load.files(),
        fulls: options.fulls,
        runs,
    };
    options.common.publish(&report, json)
}

/// Writes all files and overwrites them one after the other, in the order of the pattern.
fn overwrite(options: &Options, load: &Load, pattern: Pattern, levelled: bool) -> Result<Run> {
    let device = Device { counts_lines: true, ..Device::new(&options.profile, options.mebibytes << 20) };
    let region = device.create()?;
    FileSystem::mkfs(&region, &MkfsOptions::default()).doing("format")?;
    let mount = MountOptions {
        policy: Policy::DeExt,
        levels_wear: levelled,
        cores: 1,
        discard: Some(false),
        ..MountOptions::default()
    };
    let fs = FileSystem::mount(region, mount).doing("mount")?;
    let done = load.write(&fs, pattern, options.fulls * device.bytes)?;
    let SegmentWear { opened_max, .. } = fs.stats().wear;
    let opened_mean = fs.stats().wear.opened_mean();
    let (_, geometry) = nvfold::read_superblock(fs.region()).doing("read the superblock")?;
    let tally = Tally::of(fs.region(), &geometry);
    let counters = fs.region().counters();
    check(done.written_bytes, counters.lines_written(), tally.pools.most_to_mean)?;
    let fulls = done.written_bytes as f64 / device.bytes as f64;
    let lifetime = |hottest: u32| {
        let endurance = options.profile.endurance_writes.filter(|_| hottest > 0);
        endurance.map(|writes| writes / f64::from(hottest) * fulls)
    };
    let hottest = tally.kinds.iter().map(|kind| kind.hottest).max().unwrap_or(0);
    Ok(Run {
        pattern,
        levelled,
        written_bytes: done.written_bytes,
        in_blocks_max_bytes: done.in_blocks_max_bytes,
        lines_written: counters.lines_written(),
        charged_seconds: counters.charged_ps as f64 / 1e12,
        joules: options.profile.joules(&counters),
        opened_max,
        opened_mean,
        lifetime_fulls_data: lifetime(tally.pools.hottest_line),
        lifetime_fulls: lifetime(hottest),
        pools: tally.pools,
        kinds: tally.kinds,
    })
}

/// Refuses fewer lines on the device than the files take, and a most worn segment below the mean.
fn check(written_bytes: u64, lines: u64, most_to_mean: f64) -> Result<()> {
    let least = (written_bytes / pmem::LINE_BYTES) as f64;
    let why = "all that is written to files differs, so it is stored";
    bounds::at_least("lines written to the device", lines as f64, least, "", why)?;
    let why = "no mean is above all of its values";
    bounds::at_least("wear of the most worn segment to the mean", most_to_mean, 1.0, "x", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_lines_than_were_written_and_a_maximum_below_the_mean_are_refused() {
        check(64_000, 1200, 1.1).unwrap();
        let error = check(64_000, 900, 1.1).unwrap_err().to_string();
        assert!(error.contains("lines written to the device: 900 was measured"), "{error}");
        assert!(check(64_000, 1200, 0.9).is_err());
    }
}
