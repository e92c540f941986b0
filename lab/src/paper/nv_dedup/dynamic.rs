//! Figure 10: a workload whose share of duplicates changes thirty times.
//!
//! An interval is two sampling periods long and begins with one, so "within one sampling period" can be checked. At
//! the end of an interval's first period NV-Dedup knows the new share, and from then on it should use the method that
//! it has at the end of the interval.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Aim, Figure, Row};
use super::super::number::number;
use super::super::spent::Spent;
use super::super::system::{Kind, Mounted, Setup, System};
use super::super::workload::{Batch, Workload};
use super::Run;
use super::passes::{Pattern, check_shared};
use crate::Result;
use nvfold::Method;
use nvfold_bench::data::Random;

const INTERVALS: u64 = 30;
const PERIODS: u64 = 2;
/// Number of times per period that the method is read.
const LOOKS: usize = 20;

/// The result of one system in one interval.
struct Interval {
    percent: u64,
    /// Requests per second by the wall clock.
    rate: f64,
    /// Cost of a request, microseconds.
    cost_us: f64,
    shared: u64,
    /// Duplicate ratio detected by the end, percent.
    detected: f64,
    /// Method at each reading.
    methods: Vec<Method>,
}

/// Returns shares of duplicates: four of five are at most 50 %, as in most systems. (The paper gives its own shares
/// only in a plot.)
fn percents(intervals: u64) -> Vec<u64> {
    let mut random = Random(30);
    (0..intervals)
        .map(|_| if random.next_u64() % 5 < 4 { random.next_u64() % 51 } else { 50 + random.next_u64() % 31 })
        .collect()
}

/// Measures, and makes the figures.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let intervals = if run.turn.smoke { 4 } else { INTERVALS };
    let percents = percents(intervals);
    let kinds = [Kind::AsInPaper, Kind::Ours];
    let mut lines = Vec::new();
    for kind in kinds {
        run.turn.say(&format!("{intervals} intervals, {}", kind.name()));
        lines.push(measure(run, kind, &percents)?);
    }
    Ok(vec![figure(run, &kinds, &lines)])
}

fn measure(run: &Run, kind: Kind, percents: &[u64]) -> Result<Vec<Interval>> {
    let period = run.dynamic_period;
    // The layout and the rest before the first interval are a whole number of periods.
    let file_blocks = run.file_blocks.min(period);
    let setup = Setup { period, ..Setup::new(&run.turn.profile, file_blocks, 2) };
    let mounted = Mounted::all(&[System::of(kind)], &setup)?.remove(0);
    let mut workload = Workload::fio(file_blocks, percents[0], 10).drawn(Pattern::Fio.draw());
    let mut batch = Batch::default();
    workload.lay_out(&mut batch);
    let file = mounted.create("file")?;
    mounted.write(&file, &batch)?;
    workload.next((period - file_blocks) as usize, &mut batch);
    mounted.write(&file, &batch)?;
    let look = (period as usize / LOOKS).max(1);
    let mut intervals = Vec::new();
    for percent in percents {
        workload.set_percent(*percent);
        let (before, mut spent, mut methods) = (mounted.shared(), Spent::default(), Vec::new());
        let mut left = (PERIODS * period) as usize;
        while left > 0 {
            workload.next(look.min(left), &mut batch);
            left -= batch.at.len();
            spent += mounted.write(&file, &batch)?;
            methods.push(model(&mounted).method);
        }
        mounted.verify(&file, &batch)?;
        let shared = mounted.shared() - before;
        check_shared(&format!("{}, {percent} % duplicates", kind.name()), *percent, PERIODS * period, shared)?;
        let detected = 100.0 * model(&mounted).ratio.unwrap_or(0.0);
        intervals.push(Interval {
            percent: *percent,
            cost_us: spent.cost_ns / 1e3 / (PERIODS * period) as f64,
            rate: (PERIODS * period) as f64 * 1e9 / spent.wall_ns,
            shared,
            detected,
            methods,
        });
    }
    Ok(intervals)
}

fn model(mounted: &Mounted) -> nvfold::NvDedupStats {
    mounted.fs.stats().nv_dedup.expect("nv-dedup has a model")
}

/// Returns the number of periods until the method settled on the interval's final one; the maximum over all intervals.
/// With the paper's choice Non_Fin and w_s_Fin alternate at low ratios, so these two count as one.
fn slowest_switch(intervals: &[Interval], kind: Kind) -> f64 {
    let class = |method: &Method| match method {
        Method::WSFin if kind == Kind::AsInPaper => Method::NonFin,
        method => *method,
    };
    let looks = |interval: &Interval| {
        let last = interval.methods.last().map(class);
        let wrong = interval.methods.iter().rposition(|method| Some(class(method)) != last);
        wrong.map_or(0, |at| at + 1) as f64 * PERIODS as f64 / interval.methods.len() as f64
    };
    intervals.iter().map(looks).fold(0.0, f64::max)
}

/// Makes the figure.
fn figure(run: &Run, kinds: &[Kind], lines: &[Vec<Interval>]) -> Figure {
    let period = run.dynamic_period;
    let chunks = PERIODS * period;
    let title = "Figure 10: a workload with changing shares of duplicates";
    let settings = format!(
        "Random overwrites, one thread; {} intervals of {chunks} requests ({PERIODS} sampling periods), each with its \
         own random share of duplicates (on average, four of five shares are at most 50 %). {}",
        lines[0].len(),
        run.about_period(period)
    );
    let mut figure = run.turn.figure("figure-10", title, settings);
    let x = || (1..=lines[0].len()).map(|interval| interval.to_string());
    let chart = |title: &str, unit: &str, kind| Chart::new(kind, title, "interval", unit, x());
    let of = |at: usize, what: fn(&Interval) -> f64| lines[at].iter().map(what).collect::<Vec<f64>>();
    let mut costs = chart("Figure 10 (a): cost of a request", "us", Drawn::Lines);
    let mut rates = chart("throughput by the wall clock", "requests/s", Drawn::Table);
    let mut ratios = chart("Figure 10 (b): duplicates issued and detected", "%", Drawn::Lines)
        .with("issued", of(0, |interval| interval.percent as f64));
    let mut written = chart("Figure 10 (c): chunks written", "chunks", Drawn::Bars)
        .with("issued", lines[0].iter().map(|_| chunks as f64));
    let mut method = chart("method at the end: 0 Non_Fin, 1 w_s_Fin, 2 Str_Fin, 3 w_b_Fin", "method", Drawn::Table);
    for (at, kind) in kinds.iter().enumerate() {
        let name = kind.name();
        costs = costs.with(name, of(at, |interval| interval.cost_us));
        rates = rates.with(name, of(at, |interval| interval.rate));
        ratios = ratios.with(&format!("detected: {name}"), of(at, |interval| interval.detected));
        written = written.with(name, lines[at].iter().map(|interval| (chunks - interval.shared) as f64));
        let last = |interval: &Interval| interval.methods.last().map_or(f64::NAN, |method| f64::from(*method as u8));
        method = method.with(name, of(at, last));
        let off = |interval: &Interval| (interval.detected - interval.percent as f64).abs();
        let largest = lines[at].iter().map(off).fold(0.0, f64::max);
        figure.rows.push(Row::own(format!("{name}: largest error of the detected share"), largest, "points"));
        let slowest = slowest_switch(&lines[at], *kind);
        figure.rows.push(Row::own(format!("{name}: slowest switch"), slowest, "periods"));
    }
    figure.charts = vec![costs, ratios, written, method, rates];
    let slowest = slowest_switch(&lines[1], Kind::Ours);
    if run.turn.is_the_papers {
        let floor =
            "a period ends with its last chunk; the benchmark reads the method 20 times a period, so up to 1/20 late";
        figure.aims =
            vec![Aim::at_most("the method adapts within one sampling period", slowest, 1.0).with_floor(floor)];
    }
    let issued =
        |line: &[Interval]| line.iter().map(|interval| interval.percent as f64).sum::<f64>() / line.len() as f64;
    let removed = |line: &[Interval]| {
        let shared: u64 = line.iter().map(|interval| interval.shared).sum();
        100.0 * shared as f64 / (chunks * line.len() as u64) as f64
    };
    figure.reading = format!(
        "NV-Dedup (ours) removes {} % of the duplicates, and settles on the right method within {} periods.",
        number(100.0 * removed(&lines[1]) / issued(&lines[1])),
        number(slowest)
    );
    figure
}
