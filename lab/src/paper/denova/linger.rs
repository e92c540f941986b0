//! Figure 10: the time that an entry waits in the queue before the daemon takes it, for delayed(n, 20000); n = 0 is
//! immediate.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Figure, Row};
use super::super::number::number;
use super::Run;
use super::files::{Lane, Size, Think};
use super::volume::{DELAYED, Hash, System, Volume};
use crate::Result;
use nvfold::{DeNovaStats, DedupMode};

const INTERVALS_MS: [u64; 4] = [0, 250, 500, 750];
/// Places of the picture, milliseconds; they include the paper's values.
const PLACES_MS: [f64; 16] =
    [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 57.0, 100.0, 250.0, 500.0, 750.0, 1254.0, 3000.0, 12_000.0];
/// Number of files in the paper. Only a test has fewer, because n and m are not scaled.
const FILES: usize = 250_000;

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
            let stats = measure(run, &System::denova(mode(interval_ms), hash), &lane)?;
            let waits = Waits::new(&stats);
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
        figure.rows.extend([
            // 1254 ms is 2,100 % more than this.
            Row::value(what(0), 57.0, longest[0], "ms"),
            Row::value(what(250), 1254.0, longest[1], "ms"),
            Row::picture(what(500), longest[2], "ms"),
            Row::picture(what(750), longest[3], "ms"),
        ]);
    }
    figure.reading = format!(
        "With n = 0, 90 % of the entries wait at most {} ms (as in the paper) and {} ms (ours); with n = 250 ms, at \
         most {} and {} ms.",
        number(ninety[0][0]),
        number(ninety[1][0]),
        number(ninety[0][1]),
        number(ninety[1][1])
    );
    Ok(vec![figure])
}

/// Writes the files and waits until the daemon has taken all.
fn measure(run: &Run, system: &System, lane: &Lane) -> Result<DeNovaStats> {
    let volume = Volume::new(system, &run.turn.profile, lane.bytes(), lane.files(), 1)?;
    let directory = volume.directory("files")?;
    volume.with_daemon(|| {
        lane.write(&volume, directory, Think::AsInPaper)?;
        volume.wait_for_daemon();
        Ok(())
    })?;
    lane.verify(&volume, directory)?;
    let stats = volume.denova();
    volume.close()?;
    Ok(stats)
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
}
