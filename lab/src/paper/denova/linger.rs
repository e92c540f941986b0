//! Figure 10: the time that an entry waits in the queue before the daemon takes it, for delayed(n, 20000); n = 0 is
//! immediate.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Figure, Measure, Row};
use super::super::number::number;
use super::Run;
use super::files::{Lane, Size, Think};
use super::volume::{DELAYED, Hash, System, Volume};
use crate::{Result, bounds};
use nvfold::{DeNovaStats, DedupMode};
use std::time::Instant;

const INTERVALS_MS: [u64; 4] = [0, 250, 500, 750];
/// Places of the picture, milliseconds; they include the paper's values.
const PLACES_MS: [f64; 16] =
    [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 57.0, 100.0, 250.0, 500.0, 750.0, 1254.0, 3000.0, 12_000.0];
/// Number of files in the paper. Only a test has fewer, because n and m are not scaled.
const FILES: usize = 250_000;
/// Entries that a turn of the daemon may take beyond its limit, because it works in batches.
const BATCH_ENTRIES: u64 = 256;
/// Times are read from a clock that may be this late, milliseconds.
const CLOCK_MS: f64 = 10.0;
/// A waiting time is given as the upper bound of its bucket, which exceeds it by at most an eighth.
const BUCKET: f64 = 1.125;

/// Waiting times: upper bound of a bucket in ms, and the share of the entries that waited at most that long, percent.
struct Waits(Vec<(f64, f64)>);

impl Waits {
    fn new(stats: &DeNovaStats) -> Waits {
        let total: u64 = stats.queue_wait_histogram.iter().map(|(_, count)| count).sum();
        let mut below = 0;
        let share = |(bound, count): &(u64, u64)| {
            below += count;
            (*bound as f64 / 1e6, 100.0 * below as f64 / total as f64)
        };
        Waits(stats.queue_wait_histogram.iter().map(share).collect())
    }

    /// Returns the percentage of the entries that waited at most this long.
    fn within(&self, ms: f64) -> f64 {
        self.0.iter().take_while(|(bound, _)| *bound <= ms).last().map_or(0.0, |(_, share)| *share)
    }

    /// Returns the time within which `percent` % of the entries were taken, ms: the upper bound of the bucket.
    fn until(&self, percent: f64) -> f64 {
        self.0.iter().find(|(_, share)| *share >= percent).map_or(f64::NAN, |(bound, _)| *bound)
    }
}

/// The run whose waits were counted.
struct Lingered {
    stats: DeNovaStats,
    files: u64,
    /// Milliseconds from the start until the last file was written, and until the last entry was taken.
    written_ms: f64,
    taken_ms: f64,
}

impl Lingered {
    /// Returns the waits, unless they cannot be. The daemon takes at most `per_interval` entries every `interval_ms`, so
    /// it takes the entry of number k no earlier than in interval k / `per_interval`, and all entries had come by
    /// `written_ms`.
    fn waits(&self, interval_ms: u64, per_interval: u64) -> Result<Waits> {
        let counted: u64 = self.stats.queue_wait_histogram.iter().map(|(_, count)| count).sum();
        let of = |what: &str| format!("Figure 10, n = {interval_ms} ms: {what}");
        bounds::at_least(of("waits counted"), counted as f64, 1.0, "", "each file is queued")?;
        bounds::at_most(of("waits counted"), counted as f64, self.files as f64, "", "a file is queued once")?;
        let waits = Waits::new(&self.stats);
        for percent in [50.0, 90.0, 100.0] {
            let taken_before = (percent / 100.0 * counted as f64).ceil() as u64 - 1;
            let intervals = taken_before / (per_interval + BATCH_ENTRIES);
            let least = (intervals * interval_ms) as f64 - self.written_ms - CLOCK_MS;
            let why = format!(
                "{per_interval} entries at most are taken in an interval, and all had come after {:.0} ms",
                self.written_ms
            );
            let what = of(&format!("{percent} % of the entries taken within"));
            bounds::at_least(&what, waits.until(percent), least.max(0.0), "ms", &why)?;
            let most = BUCKET * self.taken_ms + CLOCK_MS;
            bounds::at_most(&what, waits.until(percent), most, "ms", "no entry waits longer than the whole run")?;
        }
        Ok(waits)
    }
}

fn mode(interval_ms: u64) -> DedupMode {
    match interval_ms {
        0 => DedupMode::Immediate,
        interval_ms => DedupMode::Delayed { interval_ms, entries: DELAYED.1 },
    }
}

/// Measures, and makes the figures.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let files = if run.turn.smoke { 500 } else { FILES };
    let title = "Figure 10: how long entries wait in the queue";
    let settings = format!(
        "{files} files of 4 KiB, 50 % duplicates, one thread with think time; delayed(n, {}), n = 0 is immediate. \
         Waiting times are counted in a histogram; a time is given as the upper bound of its bucket.",
        DELAYED.1
    );
    let mut figure = run.turn.figure("figure-10", title, settings);
    let mut lane = Lane::new(Size::Small, files, 50, 1);
    lane.refill(50);
    let mut ninety = Vec::new();
    for hash in Hash::ALL {
        let x = PLACES_MS.iter().map(|ms| format!("{ms}"));
        let chart_title = format!("{title}: {}", hash.name());
        let mut chart = Chart::new(Drawn::Lines, &chart_title, "ms in the queue", "% of the entries", x);
        let mut longest = Vec::new();
        for interval_ms in INTERVALS_MS {
            run.turn.say(&format!("queue, n = {interval_ms} ms, {}", hash.name()));
            let lingered = measure(run, &System::denova(mode(interval_ms), hash), &lane)?;
            let waits = lingered.waits(interval_ms, DELAYED.1)?;
            chart = chart.with(&format!("n = {interval_ms}"), PLACES_MS.iter().map(|ms| waits.within(*ms)));
            longest.push(waits.until(90.0));
        }
        figure.charts.push(chart.with_paper(Some("n = 0"), "57", 90.0, 90.0).with_paper(
            Some("n = 250"),
            "1254",
            90.0,
            90.0,
        ));
        ninety.push(longest);
    }
    for (hash, longest) in Hash::ALL.into_iter().zip(&ninety) {
        let what = |n: u64| format!("{}: 90 % taken within, n = {n}", hash.name());
        // 1254 ms is 2,100 % more than this.
        for (n, paper, ours) in [(0, 57.0, longest[0]), (250, 1254.0, longest[1])] {
            let row = Row::value(what(n), paper, ours, "ms");
            let aim = row.stay_below(Measure::Wall).with_floor(
                "the daemon rests for as long as it has worked while others write, so that writers lose less; the queue \
                 grows meanwhile",
            );
            figure.claim(row, aim);
        }
        figure.rows.extend([Row::picture(what(500), longest[2], "ms"), Row::picture(what(750), longest[3], "ms")]);
    }
    let ours = &ninety[1];
    figure.reading = format!(
        "The interval decides how long entries wait, because at most {} are taken in each: with n = 750 ms, 90 % of the \
         entries (ours) wait up to {} times as long as with n = 0.",
        DELAYED.1,
        number(ours[3] / ours[0])
    );
    Ok(vec![figure])
}

/// Writes the files and waits until the daemon has taken all.
fn measure(run: &Run, system: &System, lane: &Lane) -> Result<Lingered> {
    let volume = Volume::new(system, &run.turn.profile, lane.bytes(), lane.files(), 1)?;
    let directory = volume.directory("files")?;
    let start = Instant::now();
    let elapsed_ms = || start.elapsed().as_secs_f64() * 1e3;
    let (written_ms, taken_ms) = volume.with_daemon(|| {
        lane.write(&volume, directory, Think::AsInPaper)?;
        let written_ms = elapsed_ms();
        volume.wait_for_daemon();
        Ok((written_ms, elapsed_ms()))
    })?;
    lane.verify(&volume, directory)?;
    let stats = volume.denova();
    volume.close()?;
    Ok(Lingered { stats, files: lane.files(), written_ms, taken_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_waits_are_counted_in_classes_by_upper_bound() {
        let queue_wait_histogram = vec![(1_000_000, 6), (2_000_000, 3), (8_000_000, 1)];
        let waits = Waits::new(&DeNovaStats { queue_wait_histogram, ..DeNovaStats::default() });
        assert_eq!([0.5, 1.0, 3.0, 100.0].map(|ms| waits.within(ms)), [0.0, 60.0, 90.0, 100.0]);
        assert_eq!([50.0, 90.0, 91.0].map(|percent| waits.until(percent)), [1.0, 2.0, 8.0]);
    }

    /// Returns a run of 100,000 entries with these waits, all written in 100 ms and taken after two seconds.
    fn lingered(queue_wait_histogram: Vec<(u64, u64)>) -> Lingered {
        let stats = DeNovaStats { queue_wait_histogram, ..DeNovaStats::default() };
        Lingered { stats, files: 100_000, written_ms: 100.0, taken_ms: 2000.0 }
    }

    #[test]
    fn a_wait_below_the_interval_that_it_must_last_is_refused() {
        // At 20,000 in 250 ms, half of them are taken after the second interval, and 90 % after the fourth.
        let possible = lingered(vec![(500_000_000, 50_000), (1_250_000_000, 50_000)]);
        possible.waits(250, 20_000).unwrap();
        let too_short = lingered(vec![(500_000_000, 95_000), (1_250_000_000, 5_000)]);
        let error = too_short.waits(250, 20_000).err().expect("90 % cannot be taken within 500 ms").to_string();
        assert!(error.contains("n = 250 ms: 90 %") && error.contains("20000 entries at most"), "{error}");
        too_short.waits(0, 20_000).unwrap();
    }

    #[test]
    fn waits_that_are_longer_than_the_run_or_were_not_counted_are_refused() {
        assert!(lingered(vec![(3_000_000_000, 100_000)]).waits(0, 20_000).is_err(), "the run took two seconds");
        assert!(lingered(Vec::new()).waits(0, 20_000).is_err());
        assert!(lingered(vec![(1_000_000, 100_001)]).waits(0, 20_000).is_err(), "more than there are files");
    }
}
