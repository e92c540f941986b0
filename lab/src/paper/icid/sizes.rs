//! Figure 14: chunks of several sizes, with LevelDB's values of 1 KiB.

use super::Run;
use super::chunks::{Per, Scheme};
use super::lab::{LIST, Load, Variant, Wishes};
use super::values::seconds_beyond;
use crate::Result;
use crate::paper::chart::{Chart, Kind};
use crate::paper::figure::{Aim, Figure, Measure};

const VALUE_BYTES: u64 = 1024;
/// Mean bytes of a chunk.
const MEANS: [usize; 4] = [2048, 4096, 8192, 16384];

/// Makes the figure.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let load = Load::of(LIST, run.pairs, VALUE_BYTES);
    run.turn.say(&format!("LevelDB, {} pairs with values of 1 KiB, chunks of {} sizes", load.pairs, MEANS.len()));
    let mut figure = run.turn.figure(
        "figure-14",
        "Figure 14: sizes of chunks",
        format!(
            "LevelDB, {LIST}, {} pairs with keys of 16 bytes and values of 1024 bytes. Each write is cut on its own; \
             times as in Figure 12: the competitors cut and hash only. ICID has no chunks, so its values are the same \
             for all sizes.",
            load.pairs
        ),
    );
    let wishes = Wishes::in_memory("icid", load.device_mebibytes());
    let schemes = MEANS.into_iter().flat_map(|mean| Scheme::papers(mean, Per::Call));
    let (done, all) = run.lab.leveldb_chunked(&wishes, load, schemes)?;
    done.stored()?;
    let [seconds] = seconds_beyond(run, load, [Variant::Icid])?;
    let places = || MEANS.iter().map(ToString::to_string);
    let mut shares =
        Chart::new(Kind::Lines, "Figure 14a: share of the written bytes", "bytes of a chunk", "%", places());
    let mut times =
        Chart::new(Kind::Lines, "Figure 14b: processor time of deduplication", "bytes of a chunk", "s", places());
    for (at, scheme) in Scheme::papers(MEANS[0], Per::Call).iter().enumerate() {
        let of_scheme = || all.iter().skip(at).step_by(4);
        shares = shares.with(&scheme.name(), of_scheme().map(|chunked| chunked.percent()));
        times = times.with(&scheme.name(), of_scheme().map(|chunked| chunked.steps.sum() / 1e9));
    }
    let icid = done.percent_shared()?;
    figure.charts.extend([shares.with("ICID", MEANS.map(|_| icid)), times.with("ICID", MEANS.map(|_| seconds))]);
    let best = all.iter().map(|chunked| chunked.percent()).fold(0.0, f64::max);
    figure.aims.push(Aim::at_least("ICID finds more than chunks of any size: ratio 1", icid / best.max(0.1), 1.0));
    let least = all.iter().map(|chunked| chunked.steps.sum() / 1e9).fold(f64::INFINITY, f64::min);
    figure.aims.push(
        Aim::at_most(
            "ICID's time relative to the fastest competitor, which cuts and hashes only: 1",
            seconds / least,
            1.0,
        )
        .by(Measure::Cost)
        .with_floor("Fixed-size chunking does not search for cuts, and XXH3 takes 0.1 ns per byte"),
    );
    figure.reading = "Smaller chunks find more and take longer.".into();
    Ok(vec![figure])
}
