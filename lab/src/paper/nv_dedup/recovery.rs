//! Table 5: duration of a mount after a crash, by the number of entries that it scans. It is measured as in
//! `nvfold bench recovery`.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Figure, Measure, Row};
use super::super::number::number;
use super::Run;
use crate::{Result, program};
use nvfold::Policy;
use nvfold_bench::recovery::{Plan, measure};

/// Share of duplicates, thousands of entries, milliseconds.
const PAPER: [(u64, f64, f64); 4] = [(30, 734.0, 220.2), (50, 524.3, 157.3), (60, 414.2, 124.3), (70, 325.1, 97.5)];

/// Measures, and makes the figures.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    // As much data as in the paper on its profile, a quarter on the others.
    let (data_bytes, file_bytes) = match (run.turn.smoke, run.turn.is_the_papers) {
        (true, _) => (8 << 20, 2 << 20),
        (false, true) => (4 << 30, 64 << 20),
        (false, false) => (1 << 30, 64 << 20),
    };
    let repeats = if run.turn.smoke { 2 } else { 5 };
    let settings = format!(
        "A process writes {} MiB (policy nv-dedup) and is killed with SIGKILL; then the device is mounted {repeats} \
         times, each time from a new mapping, and the median is reported. It is filled at full speed and mounted with \
         profile {}.",
        data_bytes >> 20,
        run.turn.name
    );
    let title = "Table 5: recovery after a crash";
    let mut figure = run.turn.figure("table-5", title, settings);
    let mut rows = Vec::new();
    for (percent, ..) in PAPER {
        run.turn.say(&format!("recovery at {percent} % duplicates"));
        let profile = run.turn.profile.clone();
        let plan = Plan { data_bytes, percent, file_bytes, policy: Policy::NvDedup, profile, repeats };
        rows.push(measure(&program::nvfold()?, &run.dir, &plan)?);
    }
    for ((percent, entries, ms), row) in PAPER.into_iter().zip(&rows) {
        let scanned = row.entries_scanned as f64 / 1000.0;
        let took = row.ns_per_entry * scanned / 1000.0;
        let entry_ns = 1000.0 * ms / entries;
        figure.rows.push(
            Row::value(format!("entries scanned at {percent} %"), entries, scanned, "thousand")
                .not_comparable("it follows from the size of the file and of the chunks"),
        );
        for row in [
            Row::value(format!("mount at {percent} %"), ms, took, "ms"),
            Row::value(format!("an entry at {percent} %"), entry_ns, row.ns_per_entry, "ns"),
        ] {
            match run.turn.is_the_papers {
                true => {
                    let aim = row.stay_below(Measure::Wall);
                    figure.claim(row, aim);
                }
                false => figure.rows.push(row),
            }
        }
    }
    let x = || PAPER.iter().map(|(percent, ..)| format!("{percent} %"));
    let ours = "NV-Dedup (ours)";
    let each = Chart::new(Drawn::Bars, &format!("{title}: the time of an entry"), "duplicates", "ns an entry", x())
        .with(ours, rows.iter().map(|row| row.ns_per_entry));
    let each = PAPER.iter().fold(each, |chart, (percent, entries, ms)| {
        chart.with_paper(Some(ours), &format!("{percent} %"), 1000.0 * ms / entries, 1000.0 * ms / entries)
    });
    let chart = Chart::new(Drawn::Table, title, "duplicates", "ms", x())
        .with("mount after the kill, and one byte read", rows.iter().map(|row| 1e3 * row.crash_first_byte_seconds))
        .with("until all counts are exact", rows.iter().map(|row| 1e3 * row.reconciled_seconds))
        .with(
            "mount after an orderly unmount, and one byte",
            rows.iter().map(|row| 1e3 * row.clean_first_byte_seconds),
        );
    figure.charts = vec![each, chart];
    let slowest = rows.iter().map(|row| row.ns_per_entry).fold(0.0, f64::max);
    figure.reading = format!(
        "A mount takes at most {} ns for each entry that it scans, including the time to build the index; the paper's \
         takes 300.",
        number(slowest)
    );
    Ok(vec![figure])
}
