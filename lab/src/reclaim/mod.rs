//! `nvfold-lab reclaim`: the cost of random overwrites on a device that is nearly full.
//!
//! The problem: packed chunks are appended, and overwritten ones are dead until their segment is emptied, which costs
//! as much as its live data. The fuller the device, the more live data in the best victim: throughput may collapse, a
//! write may wait for a long time, and a write may be refused although the live data would fit.
//!
//! The idea: fill a device to a share of its usable space, then overwrite pieces of files at random until many times
//! its bytes were written. Report the time and the bytes that were moved. In the end every file is read back, and
//! fsck must find nothing.
//!
//! | file | content |
//! |---|---|
//! | `load` | the files and the writes |
//! | `page` | the report as a table and as Markdown |

mod load;
mod page;

use crate::experiment::{Common, Head, Publish};
use crate::{Doing, LabError, Result, bounds};
use clap::Args;
use load::{Load, Part, Took, background};
use nvfold::check::{CheckOptions, check};
use nvfold::{MkfsOptions, MountOptions, Policy};
use nvfold_bench::device::Device;
use nvfold_bench::samples::{largest, median, middle_half, smallest};
use pmem::{LINE_BYTES, Profile};
use serde::Serialize;
use std::time::Duration;

/// Background rounds after the last write: the first still sees changes, the second sees idle files.
const ROUNDS_OF_REST: usize = 2;

/// How to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Bytes to overwrite, as a multiple of the size of the device
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    fulls: u64,
    /// Size of the device in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(64..=65_536))]
    mebibytes: u64,
    /// Percentages of the usable space that live data takes
    #[arg(long, value_name = "PERCENT", num_args = 1.., default_values_t = [50, 80, 90, 95],
        value_parser = clap::value_parser!(u64).range(1..=99))]
    live: Vec<u64>,
    /// Number of equal parts of a row; the report gives their median
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(5..=1000))]
    parts: u64,
    #[command(flatten)]
    common: Common,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    device_bytes: u64,
    fulls: u64,
    parts: u64,
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

/// One share of live data, with or without a background.
#[derive(Debug, Serialize)]
struct Run {
    /// Requested share, percent of the usable space.
    live_percent: u64,
    /// Whether the background ran; without it only writes that find no space make space.
    has_background: bool,
    live_bytes: u64,
    /// Available bytes of statfs after the files had been written.
    available_bytes: u64,
    written_bytes: u64,
    /// MB/s of processor time, of the writes and the background together: median of the parts, their middle half, and
    /// the slowest.
    megabytes_per_second: f64,
    megabytes_per_second_middle_half: f64,
    megabytes_per_second_slowest: f64,
    /// By the wall clock, median.
    megabytes_per_second_wall: f64,
    /// Of the writes alone, median.
    writes_megabytes_per_second: f64,
    /// Writes and background, last part relative to the first.
    last_to_first: f64,
    /// By processor time, and by the wall clock.
    large_write: Latency,
    small_write: Latency,
    large_write_wall: Latency,
    small_write_wall: Latency,
    /// Bytes of chunks that reclamation moved, and the same per written byte.
    moved_bytes: u64,
    moved_per_written: f64,
    /// The same for a log whose oldest segment is always emptied next.
    moved_per_written_by_theory: f64,
    segments_emptied: u64,
    /// Bytes of lines written to the device per byte written to files.
    media_per_written: f64,
    dead_bytes: u64,
    /// Dead bytes after two background rounds without writes; without a background as before.
    dead_after_rest_bytes: u64,
    in_blocks_max_bytes: u64,
    /// Writes that found no space.
    no_space: u64,
}

/// Latency of one kind of write, microseconds.
#[derive(Debug, Serialize)]
struct Latency {
    writes: u64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// Measures, and prints the report.
///
/// # Errors
/// If a write finds no space although the live data fits, if a file holds other bytes than were written, and if fsck
/// finds something.
pub(crate) fn run(options: &Options, json: bool) -> Result<()> {
    let options = if options.common.smoke {
        Options { fulls: 1, mebibytes: 64, live: vec![80], parts: 5, ..options.clone() }
    } else {
        options.clone()
    };
    let mut runs = Vec::new();
    for live_percent in &options.live {
        for has_background in [true, false] {
            runs.push(overwrite(&options, *live_percent, has_background)?);
        }
    }
    let report = Report {
        head: Head::new("reclaim", 2),
        device_bytes: options.mebibytes << 20,
        fulls: options.fulls,
        parts: options.parts,
        runs,
    };
    options.common.publish(&report, json)?;
    match report.runs.iter().find(|run| run.no_space > 0) {
        Some(run) => Err(LabError::NoRoom { times: run.no_space, percent: run.live_percent }),
        None => Ok(()),
    }
}

fn overwrite(options: &Options, live_percent: u64, has_background: bool) -> Result<Run> {
    let device = Device::new(&Profile::NATIVE, options.mebibytes << 20);
    // One core, so that the number of open pools is the same on every machine.
    let mount = MountOptions { policy: Policy::DeExt, cores: 1, ..MountOptions::default() };
    let fs = device.mount(&MkfsOptions::default(), mount)?;
    let mut load = Load::fill(&fs, live_percent)?;
    // As long as there is space that was free from the beginning, nothing needs to be emptied.
    let warm_up = load.overwrite(&fs, device.bytes, has_background)?;
    let (moved_before, lines_before) = (fs.stats().reclaim, fs.region().counters().lines_written());
    let part_bytes = options.fulls * device.bytes / options.parts;
    let parts = (0..options.parts).map(|_| load.overwrite(&fs, part_bytes, has_background));
    let parts = parts.collect::<Result<Vec<Part>>>()?;
    let reclaimed = fs.stats().reclaim;
    let lines = fs.region().counters().lines_written() - lines_before;
    if has_background {
        (0..ROUNDS_OF_REST).try_for_each(|_| background(&fs).map(drop))?;
    }
    let dead_after_rest_bytes = fs.stats().reclaim.dead_bytes;
    load.verify()?;
    let (live_bytes, available_bytes) = (load.live_bytes, load.available_bytes);
    drop(load);
    let region = fs.region().clone();
    fs.unmount().doing("unmount")?;
    require_sound(&region)?;

    let written_bytes: u64 = parts.iter().map(|part| part.bytes).sum();
    let moved_bytes = reclaimed.moved_bytes - moved_before.moved_bytes;
    check_media(written_bytes, lines * LINE_BYTES)?;
    let speeds = |time: fn(&Part) -> Duration| -> Vec<f64> {
        parts.iter().map(|part| part.bytes as f64 / 1e6 / time(part).as_secs_f64()).collect()
    };
    let all = speeds(|part| (part.writes + part.background).processor);
    let (large, small) = (|| parts.iter().flat_map(|part| &part.large), || parts.iter().flat_map(|part| &part.small));
    Ok(Run {
        live_percent,
        has_background,
        live_bytes,
        available_bytes,
        written_bytes,
        megabytes_per_second: median(&all),
        megabytes_per_second_middle_half: middle_half(&all),
        megabytes_per_second_slowest: smallest(&all),
        megabytes_per_second_wall: median(&speeds(|part| (part.writes + part.background).wall)),
        writes_megabytes_per_second: median(&speeds(|part| part.writes.processor)),
        last_to_first: all[all.len() - 1] / all[0],
        large_write: Latency::of(large().map(processor)),
        small_write: Latency::of(small().map(processor)),
        large_write_wall: Latency::of(large().map(wall)),
        small_write_wall: Latency::of(small().map(wall)),
        moved_bytes,
        moved_per_written: moved_bytes as f64 / written_bytes as f64,
        moved_per_written_by_theory: moved_by_theory(live_bytes as f64 / (live_bytes + available_bytes) as f64),
        segments_emptied: reclaimed.segments - moved_before.segments,
        media_per_written: (lines * LINE_BYTES) as f64 / written_bytes as f64,
        dead_bytes: reclaimed.dead_bytes,
        dead_after_rest_bytes,
        in_blocks_max_bytes: parts.iter().map(|part| part.in_blocks_max_bytes).max().unwrap_or(0),
        no_space: warm_up.no_space + parts.iter().map(|part| part.no_space).sum::<u64>(),
    })
}

/// Refuses fewer bytes written to the device than to its files.
fn check_media(written_bytes: u64, media_bytes: u64) -> Result<()> {
    let why = "no two pieces are equal, so each is stored";
    bounds::at_least("bytes written to the device", media_bytes as f64, written_bytes as f64, "", why)
}

/// Returns the bytes moved per byte written at random if the oldest segment is emptied first. If a share `v` of that
/// segment is live, `v / (1 - v)` is moved, and the live share of all segments is `live = (v - 1) / ln v`.
fn moved_by_theory(live: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let share: f64 = (low + high) / 2.0;
        if (share - 1.0) / share.ln() < live { low = share } else { high = share }
    }
    low / (1.0 - low)
}

fn require_sound(region: &pmem::Region) -> Result<()> {
    let report = check(region, &CheckOptions::default()).doing("check the device")?;
    match report.findings.first() {
        Some(first) => Err(LabError::Unsound { count: report.findings.len(), first: first.what.clone() }),
        None => Ok(()),
    }
}

fn processor(took: &Took) -> Duration {
    took.processor
}

fn wall(took: &Took) -> Duration {
    took.wall
}

impl Latency {
    fn of(times: impl Iterator<Item = Duration>) -> Latency {
        let mut sorted: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e6).collect();
        sorted.sort_by(f64::total_cmp);
        let share = |percent: usize| sorted.get(sorted.len() * percent / 100).copied().unwrap_or(0.0);
        Latency { writes: sorted.len() as u64, p50_us: share(50), p99_us: share(99), max_us: largest(&sorted).max(0.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_theoretical_amount_moved_grows_with_the_fill_of_the_device() {
        for (live, moved) in [(0.5, 0.255), (0.8, 1.69), (0.9, 4.18), (0.95, 9.2)] {
            let found = moved_by_theory(live);
            assert!((found / moved - 1.0).abs() < 0.02, "{live}: {found}, not {moved}");
        }
    }

    #[test]
    fn latency_percentiles_do_not_depend_on_the_sequence_of_writes() {
        let Latency { writes, p50_us, p99_us, max_us } = Latency::of((0..1000).rev().map(Duration::from_micros));
        assert_eq!((writes, p50_us.round(), p99_us.round(), max_us.round()), (1000, 500.0, 990.0, 999.0));
        assert_eq!(Latency::of(std::iter::empty()).max_us, 0.0);
    }

    #[test]
    fn fewer_bytes_on_the_device_than_were_written_are_refused() {
        check_media(1000, 1500).unwrap();
        let error = check_media(1000, 900).unwrap_err().to_string();
        assert!(error.contains("bytes written to the device: 900 was measured"), "{error}");
    }
}
