//! Figure 15: LevelDB's operations per second while space is collected.
//!
//! The paper starts collection by hand after each 16 GB of updates. Here it starts by itself. A store is filled and
//! then gets as many updates, on two devices. One has space for all dead data. The other does not, so space must be
//! collected while LevelDB writes.

use super::Run;
use super::lab::{Done, Load, Wishes};
use crate::Result;
use crate::paper::chart::{Chart, Kind};
use crate::paper::figure::{Aim, Figure, Measure, Row};
use nvfold_bench::samples::{median, smallest};

/// Bytes of a value; the divisor of the set, because short values take longer; and the size of the small device in
/// percent of the set. That size covers the live data, the current compaction of LevelDB, and the dead bytes of
/// blocks that are not worth collecting.
const SIZES: [(u64, u64, u64); 2] = [(1024, 8, 260), (8192, 1, 175)];

/// Makes Figure 15.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let updated = SIZES.iter().map(|size| updates(run, *size)).collect::<Result<Vec<Updated>>>()?;
    Ok(vec![updating(run, &updated)])
}

/// A store that was filled and updated.
struct Updated {
    value_bytes: u64,
    load: Load,
    /// With ample space, and with little: operations per second of each part of the updates, and the final state of
    /// the device.
    roomy: Done,
    tight: Done,
    tight_mebibytes: u64,
}

fn updates(run: &Run, (value_bytes, part, percent): (u64, u64, u64)) -> Result<Updated> {
    let bytes = run.collected_bytes / part;
    let pairs = bytes / (value_bytes + 16);
    let load = Load { reads: pairs / 100, ..Load::of("fillrandom,overwrite", pairs, value_bytes) };
    let mebibytes = bytes >> 20;
    run.turn.say(&format!("LevelDB, {mebibytes} MiB with values of {value_bytes} bytes, updated with room"));
    let roomy = run.lab.leveldb(&Wishes::in_memory("icid", 256 + mebibytes * 4), load)?;
    let tight_mebibytes = (64 + mebibytes * percent / 100).next_multiple_of(2);
    run.turn.say(&format!("LevelDB, the same on a device of {tight_mebibytes} MiB"));
    let tight = run.lab.leveldb(&Wishes::in_memory("icid", tight_mebibytes), load)?;
    Ok(Updated { value_bytes, load, roomy, tight, tight_mebibytes })
}

/// Returns the rate of each part of the updates, without the parts of the fill.
fn rates(done: &Done) -> Vec<f64> {
    let all = done.all("window_rate");
    all[all.len() / 2..].to_vec()
}

fn updating(run: &Run, updated: &[Updated]) -> Figure {
    let of = |updated: &Updated| {
        let Updated { value_bytes, load, tight_mebibytes, .. } = updated;
        format!("{tight_mebibytes} MiB for {} pairs with values of {value_bytes} bytes", load.pairs)
    };
    let mut figure = run.turn.figure(
        "figure-15",
        "Figure 15: updates while space is collected",
        format!(
            "LevelDB without compression: pairs put in random order, then the same number of updates. With room: a \
             device four times as large as the pairs. Collecting: a device of {}. Operations per second of wall time, \
             in each sixteenth of the updates.",
            updated.iter().map(of).collect::<Vec<String>>().join(", and one of ")
        ),
    );
    let parts = updated.first().map_or(0, |updated| rates(&updated.roomy).len());
    let places = (1..=parts).map(|part| format!("{}", part * 100 / parts.max(1)));
    let mut chart = Chart::new(
        Kind::Lines,
        "Figure 15: operations a second while pairs are updated",
        "% of the pairs updated",
        "thousand a second",
        places,
    );
    for of in updated {
        let thousands = |done: &Done| rates(done).into_iter().map(|rate| rate / 1e3).collect::<Vec<f64>>();
        chart = chart.with(&format!("{} bytes, room", of.value_bytes), thousands(&of.roomy));
        chart = chart.with(&format!("{} bytes, collecting", of.value_bytes), thousands(&of.tight));
        let (roomy, tight) = (rates(&of.roomy), rates(&of.tight));
        let ratio = median(&tight) / median(&roomy);
        let what = |what: &str| format!("{} bytes: {what}", of.value_bytes);
        figure.rows.push(Row::own(what("pairs"), of.load.pairs as f64, ""));
        figure.rows.push(Row::own(what("collecting to room, median of the parts"), ratio, "x"));
        figure.rows.push(Row::own(
            what("slowest part to the median, with room"),
            smallest(&roomy) / median(&roomy),
            "x",
        ));
        figure.rows.push(Row::own(
            what("slowest part to the median, collecting"),
            smallest(&tight) / median(&tight),
            "x",
        ));
        for (name, done) in [("with room", &of.roomy), ("collecting", &of.tight)] {
            let stored = done.get("stored_bytes").and_then(|stored| Ok(stored / done.get("logical_bytes")?));
            let name = format!("stored to logical bytes at the end, {name}");
            figure.rows.push(Row::own(what(&name), stored.unwrap_or(f64::NAN), "x"));
        }
        figure.aims.push(
            Aim::at_least(
                format!("{} bytes: rate while collecting to that with room: 0.9", of.value_bytes),
                ratio,
                0.9,
            )
            .by(Measure::Wall),
        );
    }
    figure.charts.push(chart);
    figure.reading =
        "The paper states that \"GC has only a slight impact on the throughput of LevelDB\", and shows it \
                      in a picture."
            .into();
    figure
}
