//! Figure 11: LevelDB's operations per second, compared with those without deduplication.

use super::Run;
use super::lab::{FILL, Load, Wishes, text};
use crate::paper::chart::{Chart, Kind};
use crate::paper::figure::{Aim, Figure, Measure, Row};
use crate::{Result, program};
use nvfold_bench::samples::median;
use std::path::Path;

/// Passes: fewer than for other figures, because each runs six ways.
const REPEATS: usize = 3;

/// The systems that are compared.
const WAYS: [&str; 6] = [
    "tmpfs",
    "in the process, off",
    "in the process, icid",
    "mount, off",
    "mount, icid, by samples",
    "mount, icid, by hints",
];

/// What bounds a ratio to tmpfs.
const TMPFS: &str = "tmpfs is DRAM without flushes: compared with it, sharing saves only one copy in memory";

/// Makes the figure.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let mut figure = run.turn.figure(
        "figure-11",
        "Figure 11: LevelDB's operations a second",
        format!(
            "{} pairs, put in random order ({FILL}). Operations: puts per second of wall time, median of {} \
             interleaved runs. In the process: nvfold run --device. Mount: LevelDB alone, or under nvfold run --mount.",
            run.pairs,
            REPEATS.min(run.repeats)
        ),
    );
    let sizes = run.value_sizes();
    let rates = sizes.iter().map(|bytes| measure(run, *bytes)).collect::<Result<Vec<[f64; 6]>>>()?;
    let places = || sizes.iter().map(ToString::to_string);
    let mut absolute = Chart::new(Kind::Table, "Operations", "bytes of a value", "thousand a second", places());
    let mut chart = Chart::new(
        Kind::Lines,
        "Figure 11: operations a second to those on tmpfs",
        "bytes of a value",
        "ratio",
        places(),
    );
    for (at, way) in WAYS.iter().enumerate() {
        absolute = absolute.with(way, rates.iter().map(|rates| rates[at] / 1e3));
        chart = chart.with(way, rates.iter().map(|rates| rates[at] / rates[0]));
    }
    figure.charts.extend([chart, absolute]);
    let ratio = |at: usize, to: usize, of: usize| rates[at][of] / rates[at][to];
    let last = rates.len() - 1;
    let what = |at: usize| format!("ICID to no deduplication, {} bytes (tmpfs)", sizes[at]);
    for (at, paper) in [(0, 0.4), (last, 1.1)] {
        let row = Row::value(what(at), paper, ratio(at, 0, 2), "x");
        let aim = row.reach(Measure::Wall).with_floor(TMPFS);
        figure.claim(row, aim);
    }
    figure.rows.push(Row::own("in the process: icid to off, 128 bytes", ratio(0, 1, 2), "x"));
    figure.rows.push(Row::own(format!("in the process: icid to off, {} bytes", sizes[last]), ratio(last, 1, 2), "x"));
    figure.aims.push(
        Aim::at_least("icid in the process, relative to a mount with off, 128 bytes: 0.4", ratio(0, 3, 2), 0.4)
            .by(Measure::Wall),
    );
    let from_2k: Vec<usize> = (0..sizes.len()).filter(|at| sizes[*at] >= 2048).collect();
    let least = |to: usize| from_2k.iter().map(|at| ratio(*at, to, 2)).fold(f64::INFINITY, f64::min);
    figure.aims.push(
        Aim::at_least("icid in the process, relative to tmpfs, least from 2 KiB on: above 1", least(0), 1.0)
            .by(Measure::Wall)
            .with_floor(TMPFS),
    );
    figure.aims.push(
        Aim::at_least("icid in the process, relative to a mount with off, least from 2 KiB on: above 1", least(3), 1.0)
            .by(Measure::Wall),
    );
    figure.reading = "Compared with a mount, serving files inside the process avoids the kernel. Compared with tmpfs, \
                      it pays for durable metadata and for following copies."
        .into();
    Ok(vec![figure])
}

fn measure(run: &Run, value_bytes: u64) -> Result<[f64; 6]> {
    let load = Load { reads: 1000, ..Load::of(FILL, run.pairs, value_bytes) };
    run.turn.say(&format!("LevelDB, {} pairs with values of {value_bytes} bytes, {} ways", load.pairs, WAYS.len()));
    let mut rates: [Vec<f64>; 6] = Default::default();
    for _ in 0..REPEATS.min(run.repeats) {
        for (way, rates) in rates.iter_mut().enumerate() {
            rates.push(load.pairs as f64 / fill_seconds(run, way, load)?);
        }
    }
    Ok(rates.map(|rates| median(&rates)))
}

fn fill_seconds(run: &Run, way: usize, load: Load) -> Result<f64> {
    let mebibytes = load.device_mebibytes();
    let done = match way {
        0 => run.lab.leveldb_in(&run.lab.fresh("tmpfs")?, &[], load)?,
        1 => run.lab.leveldb(&Wishes::in_memory("off", mebibytes), load)?,
        2 => run.lab.leveldb(&Wishes::in_memory("icid", mebibytes), load)?,
        way => {
            let policy = if way == 3 { "off" } else { "icid" };
            let options = format!("size={mebibytes}M,policy={policy}");
            let mounted = run.lab.mount(policy, Path::new("mem:"), &options)?;
            let folder = mounted.place.dir.join("direct");
            mounted.place.prove(&folder)?;
            let nvfold = program::nvfold()?;
            let hints = [text(&nvfold), "run", "--mount", text(&mounted.place.dir), "--"];
            run.lab.leveldb_in(&folder, if way == 5 { &hints } else { &[] }, load)?
        }
    };
    done.get("fill_seconds")
}
