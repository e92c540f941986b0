//! Figures 9, 10, 12 and 13, and Table 6: LevelDB with values of each size; savings and cost of each method.

use super::Run;
use super::chunks::{Chunked, Per, Scheme, Steps};
use super::lab::{Done, FILL, LIST, Load, Stored, Variant, Wishes};
use crate::paper::chart::{Chart, Kind};
use crate::paper::figure::{Aim, Figure, Measure, Row};
use crate::rec_tree::{insertion_ns, look_up_ns};
use crate::{Result, bounds};
use nvfold_bench::device::Device;
use nvfold_bench::samples::median;

const BLOCK_BYTES: f64 = 4096.0;
/// Passes that are timed: each runs the whole list three times.
const REPEATS: usize = 3;
/// Bytes of an extent, as the paper counts them: address, length and file offset.
const EXTENT_BYTES: f64 = 16.0;
/// Table 6: ICID and FastCDC, percent.
const TABLE_6: [(u64, f64, f64); 7] = [
    (128, 25.1, 28.5),
    (256, 12.9, 28.4),
    (512, 6.8, 23.9),
    (1024, 3.7, 18.2),
    (2048, 2.2, 16.3),
    (4096, 1.2, 5.7),
    (8192, 0.9, 2.8),
];

/// Everything that was measured with values of one size.
struct Of {
    value_bytes: u64,
    icid: Done,
    /// Its bytes by kind of file: after the whole list, and after its first phase alone.
    stored: Stored,
    filled: Stored,
    deletes_overlapping: Done,
    /// ICID, followed by inline sharing of blocks.
    with_blocks: Done,
    /// Chunking of the writes without compression, per call, then per stream.
    chunked: Vec<Chunked>,
    /// Bytes written with LevelDB's own compression, and how many remain after each of the paper's four schemes.
    compressed: f64,
    behind_compression: Vec<f64>,
    /// Processor seconds of ICID and of its variant, beyond those without deduplication.
    icid_seconds: f64,
    variant_seconds: f64,
}

/// Makes the figures.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let all = run.value_sizes().iter().map(|bytes| measure(run, *bytes)).collect::<Result<Vec<Of>>>()?;
    Ok(vec![ratio(run, &all)?, traffic(run, &all)?, time(run, &all), steps(run, &all)?, metadata(run, &all)?])
}

/// Returns the processor seconds of LevelDB beyond those without deduplication: medians of interleaved runs.
pub(super) fn seconds_beyond<const N: usize>(run: &Run, load: Load, variants: [Variant; N]) -> Result<[f64; N]> {
    let mebibytes = load.device_mebibytes();
    let mut seconds = [const { Vec::new() }; N];
    for _ in 0..run.repeats.min(REPEATS) {
        let plain = run.lab.leveldb(&Wishes::in_memory("off", mebibytes), load)?.get("processor_seconds")?;
        for (variant, seconds) in variants.iter().zip(&mut seconds) {
            let wishes = Wishes::in_memory("icid", mebibytes).with(*variant);
            seconds.push(run.lab.leveldb(&wishes, load)?.get("processor_seconds")? - plain);
        }
    }
    let seconds = seconds.map(|seconds| median(&seconds));
    if !run.turn.smoke {
        variants.iter().zip(seconds).try_for_each(|(variant, seconds)| check_seconds(*variant, load, seconds))?;
    }
    Ok(seconds)
}

/// Refuses a time of deduplication that is not above 0: then the runs differ by more than what is measured.
fn check_seconds(variant: Variant, load: Load, seconds: f64) -> Result<()> {
    let what = format!("{variant:?}, values of {} bytes: processor time beyond that with policy off", load.value_bytes);
    bounds::at_least(what, seconds, f64::MIN_POSITIVE, "s", "following copies takes time")
}

fn measure(run: &Run, value_bytes: u64) -> Result<Of> {
    let load = Load::of(LIST, run.pairs, value_bytes);
    let mebibytes = load.device_mebibytes();
    run.turn.say(&format!("LevelDB, {} pairs with values of {value_bytes} bytes", load.pairs));
    let memory = Wishes::in_memory("icid", mebibytes);
    let (icid, of_icid) = run.lab.leveldb_chunked(&memory, load, Scheme::calls_and_streams())?;
    let filled = run.lab.leveldb(&memory, Load { phases: FILL, ..load })?.stored()?;
    let wishes = Wishes::in_memory("icid", mebibytes).with(Variant::DeleteOverlapping);
    let deletes_overlapping = run.lab.leveldb(&wishes, load)?;
    let with_blocks = run.lab.leveldb(&Wishes::in_memory("icid+inline", mebibytes), load)?;
    let compressing = Load { compresses: true, ..load };
    let schemes = Scheme::papers(4096, Per::Call);
    let (compressed, behind) = run.lab.leveldb_chunked(&Wishes::in_memory("off", mebibytes), compressing, schemes)?;
    let written = compressed.get("written_bytes")?;
    let [icid_seconds, variant_seconds] = seconds_beyond(run, load, [Variant::Icid, Variant::DeleteOverlapping])?;
    Ok(Of {
        value_bytes,
        stored: icid.stored()?,
        filled,
        icid,
        deletes_overlapping,
        with_blocks,
        chunked: of_icid,
        compressed: written,
        behind_compression: behind.iter().map(|chunked| written - chunked.found_bytes as f64).collect(),
        icid_seconds,
        variant_seconds,
    })
}

fn sizes(all: &[Of]) -> impl Iterator<Item = String> + '_ {
    all.iter().map(|of| of.value_bytes.to_string())
}

/// Returns a value of each size, or the error if one is missing.
fn each(all: &[Of], value: impl Fn(&Of) -> Result<f64>) -> Result<Vec<f64>> {
    all.iter().map(value).collect()
}

fn settings(run: &Run) -> String {
    format!(
        "{} pairs with random keys of 16 bytes in each phase of {LIST}, for every size of values. Values are taken from a \
         pool of 1 MiB, as in db_bench. One pair in ten is read back and compared.",
        run.pairs
    )
}

fn ratio(run: &Run, all: &[Of]) -> Result<Figure> {
    let mut figure = run.turn.figure("figure-9", "Figure 9: what is found of LevelDB's writes", settings(run));
    let mut chart =
        Chart::new(Kind::Lines, "Figure 9: share of the written bytes", "bytes of a value", "%", sizes(all));
    for at in 0..all[0].chunked.len() {
        let name = all[0].chunked[at].scheme.name();
        chart = chart.with(&name, all.iter().map(|of| of.chunked[at].percent()));
    }
    chart = chart.with("ICID_DO", each(all, |of| of.deletes_overlapping.percent_shared())?);
    let with_blocks = each(all, |of| {
        let found = of.with_blocks.get("shared_bytes")? + of.with_blocks.get("pieces_shared")? * BLOCK_BYTES;
        let written = of.with_blocks.get("written_bytes")?;
        bounds::at_most("ICID + inline: bytes found", found, written, "", "a byte is found once, when it is written")?;
        Ok(100.0 * found / written)
    })?;
    let icid = each(all, |of| of.icid.percent_shared())?;
    let tables: Vec<f64> = all.iter().map(|of| of.stored.percent_of_tables()).collect();
    let chart = chart.with("ICID + inline", with_blocks.clone()).with("ICID", icid.clone());
    figure.charts.push(chart.with("ICID, of the tables", tables.clone()));
    let possible = |of: &Of| 100.0 * of.stored.compacted() / of.stored.written;
    let of_compactions = |of: &Of| 100.0 * of.stored.tables_shared / of.stored.compacted().max(1.0);
    let parts = Chart::new(Kind::Table, "Tables and logs", "bytes of a value", "%", sizes(all))
        .with("written to logs, of all", all.iter().map(|of| 100.0 * of.stored.logs / of.stored.written))
        .with("written to tables, of all", all.iter().map(|of| 100.0 * of.stored.tables / of.stored.written))
        .with("written by compactions, of all", all.iter().map(possible))
        .with("ICID's share of what compactions write", all.iter().map(of_compactions))
        .with("ICID's share of the tables", tables.iter().copied())
        .with("the same after fillrandom alone", all.iter().map(|of| of.filled.percent_of_tables()));
    figure.charts.push(parts);
    let best = |of: &Of| of.chunked[..4].iter().map(Chunked::percent).fold(0.1, f64::max);
    let ratios = |shares: &[f64]| all.iter().zip(shares).map(|(of, share)| share / best(of)).collect::<Vec<f64>>();
    let (least, most) = extremes(&ratios(&icid));
    let row = Row::value("ICID to the best of the competitors, at the size where it gains most", 16.0, most, "x");
    let aim = row.reach(Measure::Count).with_floor(
        "the competitors find each value that repeats in db_bench's pool of 1 MiB, if it is longer than a chunk",
    );
    figure.claim(row, aim);
    let aim = Aim::at_least("ICID finds more than each competitor (calls) at every size: ratio 1", least, 1.0);
    figure.aims.push(aim.with_floor(
        "db_bench's pool of 1 MiB has only 128 values of 8 KiB, so most puts repeat an earlier value: chunking finds \
         it, ICID does not, because it was not copied from a file",
    ));
    let (least, _) = extremes(&ratios(&with_blocks));
    let aim = "ICID + inline finds more than each competitor (calls) at every size: ratio 1";
    figure.aims.push(Aim::at_least(aim, least, 1.0));
    figure.reading = "ICID shares nearly all data that LevelDB's compactions write, at every value size. The log and \
                      the first tables are not copied from a file. Chunking finds a value only if it is longer than a \
                      chunk."
        .into();
    Ok(figure)
}

/// Returns the bytes that were written and not shared.
fn rest(done: &Done) -> Result<f64> {
    Ok(done.get("written_bytes")? - done.get("shared_bytes")?)
}

fn traffic(run: &Run, all: &[Of]) -> Result<Figure> {
    let mut figure = run.turn.figure(
        "figure-10",
        "Figure 10: write traffic beside LevelDB's own compression, and lifetime",
        settings(run)
            + " Traffic: bytes written minus bytes found. As in the paper, the competitors process what LevelDB writes \
               with its compression on, and ICID runs with compression off.",
    );
    let icid = each(all, |of| Ok(rest(&of.icid)? / of.compressed))?;
    let variant = each(all, |of| Ok(rest(&of.deletes_overlapping)? / of.compressed))?;
    let title = "Figure 10: bytes written to those of LevelDB with compression";
    let mut chart = Chart::new(Kind::Lines, title, "bytes of a value", "ratio", sizes(all));
    for (at, scheme) in Scheme::papers(4096, Per::Call).iter().enumerate() {
        chart = chart.with(&scheme.name(), all.iter().map(|of| of.behind_compression[at] / of.compressed));
    }
    figure.charts.push(chart.with("ICID_DO", variant).with("ICID", icid.clone()));
    // The paper's C / (D (1 - R)), relative to LevelDB without deduplication and without compression.
    let lifetimes = each(all, |of| Ok(of.icid.get("written_bytes")? / rest(&of.icid)?))?;
    let lifetime = Chart::new(Kind::Table, "Lifetime", "bytes of a value", "times that without", sizes(all));
    figure.charts.push(lifetime.with("ICID", lifetimes.clone()));
    let mean = icid.iter().sum::<f64>() / icid.len() as f64;
    let floor = "Only a part of all writes is copied from a file (Figure 9); ICID writes the rest unchanged";
    let (least, most) = extremes(&lifetimes);
    for row in [
        Row::value("ICID: traffic less than with compression, mean", 60.0, 100.0 * (1.0 - mean), "%"),
        Row::value("lifetime, at the size where it gains least", 2.1, least, "x"),
        Row::value("lifetime, at the size where it gains most", 4.1, most, "x"),
    ] {
        let aim = row.reach(Measure::Count).with_floor(floor);
        figure.claim(row, aim);
    }
    figure.reading = "ICID shares only what compactions copy, but compression shrinks all writes. So the log and the \
                      first tables determine which of them writes less."
        .into();
    Ok(figure)
}

fn extremes(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, 0.0), |(least, most), value| (value.min(least), value.max(most)))
}

fn time(run: &Run, all: &[Of]) -> Figure {
    let mut figure = run.turn.figure(
        "figure-12",
        "Figure 12: time of deduplication",
        settings(run)
            + " ICID: processor time of the whole process minus that with policy off, median of interleaved runs; this \
               credits ICID for writing less. Competitors: processor time to cut, hash and look up the same writes, \
               call by call. They cut and hash only: ICID also stores, and makes durable what it shares.",
    );
    let seconds = |at: usize| all.iter().map(move |of| of.chunked[at].steps.sum() / 1e9);
    let title = "Figure 12: processor time of deduplication";
    let mut chart = Chart::new(Kind::Lines, title, "bytes of a value", "s", sizes(all));
    for at in 0..4 {
        chart = chart.with(&all[0].chunked[at].scheme.name(), seconds(at));
    }
    chart = chart.with("ICID_DO", all.iter().map(|of| of.variant_seconds));
    figure.charts.push(chart.with("ICID", all.iter().map(|of| of.icid_seconds)));
    let ratios: Vec<f64> = all
        .iter()
        .map(|of| {
            of.icid_seconds / (of.chunked[..4].iter().map(|chunked| chunked.steps.sum() / 1e9).sum::<f64>() / 4.0)
        })
        .collect();
    let table = Chart::new(Kind::Table, "ICID to the mean of the competitors", "bytes of a value", "ratio", sizes(all));
    figure.charts.push(table.with("ICID", ratios.clone()));
    let saved = 100.0 * (1.0 - ratios.iter().sum::<f64>() / ratios.len() as f64);
    let row = Row::value("ICID takes less than the mean of the competitors, which cut and hash only", 47.0, saved, "%");
    let aim = row.reach(Measure::Cost).with_floor(
        "Each copy of a small value needs a record, a look-up, a compare and an extent, about 100 ns each, and is made \
         durable; cutting and hashing 100 bytes takes less",
    );
    figure.claim(row, aim);
    let to_variant = all.iter().map(|of| of.icid_seconds / of.variant_seconds).sum::<f64>() / all.len() as f64;
    let row = Row::value("ICID takes less than ICID_DO, mean", 22.0, 100.0 * (1.0 - to_variant), "%");
    let aim = row.reach(Measure::Cost);
    figure.claim(row, aim);
    figure.reading =
        "With fewer, larger values ICID's time falls steeply; the competitors' falls less, as they read every byte."
            .into();
    figure
}

/// Returns the nanoseconds to compare 4 KiB in memory with 4 KiB of a device.
fn compare_ns(run: &Run) -> Result<f64> {
    let region = Device::new(&run.turn.profile, 16 << 20).create()?;
    let bytes = [7; 4096];
    (0..4096).for_each(|block| drop(region.write(block * 4096, &bytes)));
    let pass = || {
        let start = pmem::clock::cost_ns();
        (0..4096).for_each(|block| assert!(std::hint::black_box(region.equal(block * 4096, &bytes))));
        (pmem::clock::cost_ns() - start) / 4096.0
    };
    Ok(median(&(0..=run.repeats).map(|_| pass()).collect::<Vec<f64>>()))
}

fn steps(run: &Run, all: &[Of]) -> Result<Figure> {
    let of = all.iter().find(|of| of.value_bytes == 4096).expect("values of 4 KiB are in every set");
    let mut figure = run.turn.figure(
        "figure-13",
        "Figure 13: steps of deduplication, values of 4 KiB",
        "Competitors: the mean of the four. ICID: the number of insertions, look-ups and compares, each multiplied by \
         its time in a loop (bench rec-tree). The rest of the time in Figure 12 is for extents and reference counts."
            .into(),
    );
    let steps: Vec<Steps> = of.chunked[..4].iter().map(|chunked| chunked.steps).collect();
    let mean = |part: fn(&Steps) -> f64| steps.iter().map(part).sum::<f64>() / 4e9;
    let (insertion, look_up, compare) = (insertion_ns(), look_up_ns(), compare_ns(run)?);
    let records = of.icid.get("tree_insertions")? * insertion / 1e9;
    let look_ups = of.icid.get("tree_lookups")? * look_up / 1e9;
    let compares = of.icid.get("offered_bytes")? / 4096.0 * compare / 1e9;
    let rest = of.icid_seconds - records - look_ups - compares;
    if !run.turn.smoke {
        check_steps(of.icid_seconds, records + look_ups + compares)?;
    }
    let places = ["chunks", "ICID"].map(String::from);
    let chart = Chart::new(Kind::Stacked, "Figure 13: processor time of each step", "", "s", places)
        .with("cutting", [mean(|steps| steps.cutting), 0.0])
        .with("hashing", [mean(|steps| steps.hashing), 0.0])
        .with("index", [mean(|steps| steps.indexing), 0.0])
        .with("records", [0.0, records])
        .with("look-ups", [0.0, look_ups])
        .with("compare", [0.0, compares])
        .with("extents and counts", [0.0, rest]);
    figure.charts.push(chart);
    let whole = records + look_ups + compares;
    let because = "it is how one program's time divides, and no claim";
    for (step, paper, ours) in [("records", 82.4, records), ("look-ups", 15.3, look_ups), ("compare", 2.3, compares)] {
        let row = Row::value(format!("ICID: {step}, of the paper's three steps"), paper, 100.0 * ours / whole, "%");
        figure.rows.push(row.not_comparable(because));
    }
    let chunks = mean(Steps::sum);
    let more = 100.0 * (chunks / of.icid_seconds.max(1e-9) - 1.0);
    let row = Row::value("chunks, which are cut and hashed only, take more than ICID", 66.0, more, "%");
    let aim = row.reach(Measure::Cost).with_floor(
        "XXH3 and cutting run at several bytes per cycle here. Extents and reference counts are made durable, which the \
         paper does not time",
    );
    figure.claim(row, aim);
    let most = [("Records", records), ("Look-ups", look_ups), ("Compares", compares)];
    let (most, _) = most.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("three steps");
    figure.reading = format!(
        "Of the paper's three steps, {} take most of ICID's time here; in the paper, records do.",
        most.to_lowercase()
    );
    Ok(figure)
}

/// Refuses steps that take longer than the whole by more than a tenth: they are timed in loops of their own.
fn check_steps(whole_s: f64, steps_s: f64) -> Result<()> {
    let why = "no part is longer than the whole; steps are timed apart, to a tenth";
    bounds::at_most("Figure 13: records, look-ups and compares of ICID", steps_s, 1.1 * whole_s, "s", why)
}

fn metadata(run: &Run, all: &[Of]) -> Result<Figure> {
    let mut figure = run.turn.figure(
        "table-6",
        "Table 6: metadata for what is shared",
        settings(run)
            + " ICID: 16 bytes per extent of shared bytes. FastCDC: 64 bytes per chunk in the table, and 8 bytes per \
               chunk of a file.",
    );
    let icid = each(all, |of| {
        Ok(100.0 * of.icid.get("shared_extents")? * EXTENT_BYTES / of.icid.get("shared_bytes")?.max(1.0))
    })?;
    // A share of almost zero bytes has no meaning.
    let per_found = |chunked: &Chunked| match chunked.percent() {
        percent if percent < 0.01 => f64::NAN,
        _ => 100.0 * chunked.metadata_bytes() as f64 / chunked.found_bytes as f64,
    };
    let fastcdc: Vec<f64> = all.iter().map(|of| per_found(&of.chunked[3])).collect();
    let title = "Table 6: metadata to bytes that are shared";
    let chart = Chart::new(Kind::Lines, title, "bytes of a value", "%", sizes(all));
    figure.charts.push(chart.with("FastCDC", fastcdc.clone()).with("ICID", icid.clone()));
    let papers =
        |of: &Of| TABLE_6.iter().find(|(bytes, ..)| *bytes == of.value_bytes).map_or(f64::INFINITY, |row| row.1);
    let worst = all.iter().zip(&icid).map(|(of, icid)| icid / papers(of)).fold(0.0, f64::max);
    let aim = Aim::at_most("ICID's metadata to the paper's, at every size: at most 1", worst, 1.0);
    for ((of, icid), fastcdc) in all.iter().zip(&icid).zip(&fastcdc) {
        let Some((bytes, paper, papers)) = TABLE_6.iter().find(|(bytes, ..)| *bytes == of.value_bytes) else {
            continue;
        };
        figure.rows.push(Row::value(format!("ICID, {bytes} bytes"), *paper, *icid, "%").judged_by(&aim));
        let because = "the paper does not say which metadata of a chunk it counts";
        figure.rows.push(Row::value(format!("FastCDC, {bytes} bytes"), *papers, *fastcdc, "%").not_comparable(because));
    }
    figure.aims.push(aim);
    figure.reading = "One extent covers a whole run of bytes, so its relative cost falls as values get larger.".into();
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_deduplication_that_is_not_above_zero_is_refused() {
        let load = Load::of(LIST, 1000, 4096);
        check_seconds(Variant::Icid, load, 0.05).unwrap();
        let error = check_seconds(Variant::Icid, load, -0.05).unwrap_err().to_string();
        assert!(error.contains("values of 4096 bytes") && error.contains("-0.05 s"), "{error}");
    }

    #[test]
    fn steps_that_take_longer_than_the_whole_are_refused() {
        check_steps(0.053, 0.056).unwrap();
        let error = check_steps(0.053, 0.066).unwrap_err().to_string();
        assert!(error.contains("0.066 s was measured"), "{error}");
    }
}
