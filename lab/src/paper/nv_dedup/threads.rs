//! Figure 11: several threads, each with its own files and requests, and with different TX_ID generators.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Aim, Figure, Measure, Row};
use super::super::number::number;
use super::super::system::{Kind, Mounted, Setup, System, write_all};
use super::super::workload::{Batch, Workload};
use super::Run;
use super::passes::Pattern;
use crate::{Result, bounds};
use nvfold::{File, Generators};
use nvfold_bench::samples::median;
use std::sync::Barrier;
use std::time::Instant;

/// Maximum blocks of all files: 64 MiB.
const FILE_BLOCKS: u64 = 16_384;
/// Must start with 1 and 2 and end with the maximum.
const THREADS: [usize; 5] = [1, 2, 4, 6, 8];
const FEW: [usize; 3] = [1, 2, 8];
const PERCENTS: [u64; 2] = [30, 50];

/// Measures, and makes the figures.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let systems = systems();
    let counts: &[usize] = if run.turn.smoke { &FEW } else { &THREADS };
    let mut charts = Vec::new();
    for percent in PERCENTS {
        run.turn.say(&format!("threads, {percent} % duplicates"));
        // By number of threads, then by system.
        let rates =
            counts.iter().map(|threads| measure(run, &systems, *threads, percent)).collect::<Result<Vec<_>>>()?;
        let title = format!("Figure 11: threads at {percent} % duplicates");
        let x = counts.iter().map(usize::to_string);
        let chart = Chart::new(Drawn::Table, &title, "threads", "requests/s", x);
        let add = |chart: Chart, (at, system): (usize, &System)| {
            chart.with(&system.name, rates.iter().map(|rates| rates[at]))
        };
        let chart = systems.iter().enumerate().fold(chart, add);
        if !run.turn.smoke {
            chart
                .series
                .iter()
                .try_for_each(|series| check(&format!("{title}, {}", series.name), counts, &series.y))?;
        }
        charts.push(chart);
    }
    Ok(vec![figure(run, charts)])
}

fn systems() -> Vec<System> {
    let ours = System::of(Kind::Ours);
    vec![
        System::of(Kind::NoDedup),
        System::of(Kind::AsInPaper),
        System { name: "NV-Dedup (ours, one generator)".into(), generators: Generators::Global, ..ours.clone() },
        System { name: "NV-Dedup (ours, one a core)".into(), ..ours },
    ]
}

/// One thread's file and its writes.
struct Lane {
    workload: Workload,
    batch: Batch,
}

/// Returns the requests per second of each system.
fn measure(run: &Run, systems: &[System], threads: usize, percent: u64) -> Result<Vec<f64>> {
    let file_blocks = run.file_blocks.min(FILE_BLOCKS);
    let (requests, blocks) = (run.requests / threads, file_blocks / threads as u64);
    let setup = Setup { period: run.period, ..Setup::new(&run.turn.profile, file_blocks, threads) };
    let mounted = Mounted::all(systems, &setup)?;
    let lane = |number| Lane {
        workload: Workload::fio(blocks, percent, 1 + number).drawn(Pattern::Fio.draw()),
        batch: Batch::default(),
    };
    let mut lanes: Vec<Lane> = (0..threads as u64).map(lane).collect();
    lanes.iter_mut().for_each(|lane| lane.workload.lay_out(&mut lane.batch));
    let mut files = Vec::new();
    for mounted in &mounted {
        let created = (0..threads).map(|lane| mounted.create(&format!("file{lane}")));
        let created = created.collect::<Result<Vec<File>>>()?;
        timed(mounted, &created, &lanes)?;
        files.push(created);
    }
    let mut seconds = vec![Vec::new(); mounted.len()];
    for pass in 0..=run.repeats {
        lanes.iter_mut().for_each(|lane| lane.workload.next(requests, &mut lane.batch));
        for (at, mounted) in mounted.iter().enumerate() {
            let took = timed(mounted, &files[at], &lanes)?;
            for (file, lane) in files[at].iter().zip(&lanes) {
                mounted.verify(file, &lane.batch)?;
            }
            if pass > 0 {
                seconds[at].push(took);
            }
        }
    }
    Ok(seconds.iter().map(|seconds| (requests * threads) as f64 / median(seconds)).collect())
}

/// Returns the seconds from the first start to the last end. The lanes read the clock themselves: with as many lanes
/// as processors, a waiting thread may wake long after they began.
fn timed(mounted: &Mounted, files: &[File], lanes: &[Lane]) -> Result<f64> {
    let start = Barrier::new(lanes.len());
    let work = |file: &File, lane: &Lane| -> Result<(Instant, Instant)> {
        start.wait();
        let began = Instant::now();
        let _ = write_all(file, &lane.batch)?;
        Ok((began, Instant::now()))
    };
    let (seconds, _) = mounted.with_background(|| {
        std::thread::scope(|scope| {
            let work = &work;
            let started = files.iter().zip(lanes).map(|(file, lane)| scope.spawn(move || work(file, lane)));
            let started: Vec<_> = started.collect();
            let times = started.into_iter().map(|lane| lane.join().expect("a lane does not panic"));
            let times: Vec<(Instant, Instant)> = times.collect::<Result<_>>()?;
            let began = times.iter().map(|(began, _)| *began).min().expect("one lane at least");
            let ended = times.iter().map(|(_, ended)| *ended).max().expect("one lane at least");
            Ok((ended - began).as_secs_f64())
        })
    })?;
    Ok(seconds)
}

/// What two rates by the wall clock of a shared machine may differ by although nothing differs.
const NOISE: f64 = 1.25;

/// Refuses rates that grow faster than the number of threads.
fn check(what: &str, counts: &[usize], rates: &[f64]) -> Result<()> {
    for (threads, rate) in counts.iter().zip(rates) {
        let most = *threads as f64 / counts[0] as f64 * NOISE;
        let why = "threads do no more in all than each of them does alone, but for a quarter that is noise";
        bounds::at_most(format!("{what}: {threads} threads to one"), rate / rates[0], most, "x", why)?;
    }
    Ok(())
}

/// Returns the gain of two threads over one, and of the most over two.
fn gains(rates: &[f64]) -> (f64, f64) {
    (rates[1] / rates[0], rates[rates.len() - 1] / rates[1])
}

/// Returns the throughput of each system relative to its one thread; the paper's doubles whenever the threads do.
fn times_one_thread(rates: &Chart) -> Chart {
    let chart = Chart::new(Drawn::Lines, &rates.title, "threads", "times one thread", rates.x.iter().cloned());
    let chart = rates.series.iter().fold(chart, |chart, series| {
        let one = series.y[0];
        chart.with(&series.name, series.y.iter().map(|rate| rate / one))
    });
    [2.0, 4.0, 8.0].into_iter().fold(chart, |chart, threads| {
        chart.with_paper(Some(Kind::AsInPaper.name()), &threads.to_string(), threads, threads)
    })
}

fn figure(run: &Run, charts: Vec<Chart>) -> Figure {
    let settings = format!(
        "Random overwrites, {} requests per pass, divided among the threads; each thread has its own file. The \
         background filler runs in a thread of its own. {}",
        run.requests,
        run.about_period(run.period)
    );
    let mut figure = run.turn.figure("figure-11", "Figure 11: threads", settings);
    let mut least = (f64::INFINITY, f64::INFINITY);
    for chart in &charts {
        let (twice, eight) = gains(&chart.series[chart.series.len() - 1].y);
        least = (least.0.min(twice), least.1.min(eight));
    }
    let doubles = Aim::at_least("2 threads at least 1.8x one thread (the paper's 2.0 less a tenth)", least.0, 1.8)
        .by(Measure::Wall);
    for (chart, percent) in charts.iter().zip(PERCENTS) {
        for (at, series) in chart.series.iter().enumerate() {
            let (twice, eight) = gains(&series.y);
            let row = Row::value(format!("{}: 2 threads to 1, {percent} %", series.name), 2.0, twice, "x");
            figure.rows.push(match at + 1 == chart.series.len() {
                true => row.judged_by(&doubles),
                false => row.not_comparable("it is said of NV-Dedup in the kernel; ours has a generator for each core"),
            });
            figure.rows.push(Row::picture(format!("{}: 8 threads to 2, {percent} %", series.name), eight, "x"));
        }
    }
    if run.turn.is_the_papers {
        figure.aims = vec![
            doubles,
            Aim::at_least("8 threads on 2 processors at least 0.9x 2 threads", least.1, 0.9).by(Measure::Wall),
        ];
    }
    figure.reading = format!(
        "With one generator of transaction numbers per core, two threads write at least {} times as fast as one, and \
         eight threads at least {} times as fast as two, on {} processors.",
        number(least.0),
        number(least.1),
        std::thread::available_parallelism().map_or(1, usize::from)
    );
    // The pictures first.
    figure.charts = charts.iter().map(times_one_thread).chain(charts.iter().cloned()).collect();
    figure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_grows_faster_than_the_threads_is_refused() {
        check("ours", &[1, 2, 4], &[100.0, 225.0, 400.0]).unwrap();
        let error = check("ours", &[1, 2, 4], &[100.0, 260.0, 400.0]).unwrap_err().to_string();
        assert!(error.contains("ours: 2 threads to one: 2.6 x was measured"), "{error}");
    }
}
