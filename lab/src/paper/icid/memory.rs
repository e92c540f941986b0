//! Table 5: memory of the rec-tree, and of the competitors' fingerprints.

use super::Run;
use super::chunks::{Chunked, Per, Scheme};
use super::lab::{FILL, Load, Variant, Wishes};
use crate::Result;
use crate::paper::chart::{Chart, Kind};
use crate::paper::figure::{Aim, Figure, Row};

/// Bytes of a record (section 4.2).
const RECORD_BYTES: f64 = 16.0;
/// Millions of pairs, and the MB of ICID, ICID_DO, ICID_KA and FastCDC in the paper's Table 5.
const PAPER: [(u64, [f64; 4]); 2] = [(2, [5.7, 0.1623, 211.1, 1.1]), (4, [5.7, 0.164, 583.7, 2.4])];

/// Makes the table.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let millions: &[f64] = if run.turn.smoke { &[0.02] } else { &[0.5, 1.0, 2.0, 4.0] };
    let mut figure = run.turn.figure(
        "table-5",
        "Table 5: memory",
        "LevelDB, keys of 16 bytes and values of 100 bytes. ICID: all memory reserved at the end. ICID_DO, ICID_KA: 16 \
         bytes for each record that exists at the end; KA may use up to 2 GB. FastCDC: 64 bytes per fingerprint, each \
         write cut on its own."
            .into(),
    );
    let mut rows: [Vec<f64>; 4] = Default::default();
    for millions in millions {
        run.turn.say(&format!("LevelDB, {millions} million pairs, the variants of the rec-tree"));
        let load = Load { reads: 1000, ..Load::of(FILL, (millions * 1e6) as u64, 100) };
        let memory = Wishes::in_memory("icid", load.device_mebibytes());
        let (icid, fastcdc) = run.lab.leveldb_chunked(&memory, load, [Scheme::papers(4096, Per::Call)[3]])?;
        let records = |variant| {
            let done = run.lab.leveldb(&memory.clone().with(variant), load)?;
            Ok::<f64, crate::LabError>(done.get("tree_records")? * RECORD_BYTES / 1e6)
        };
        rows[0].push(icid.get("tree_bytes")? / 1e6);
        rows[1].push(records(Variant::DeleteOverlapping)?);
        rows[2].push(records(Variant::KeepAll)?);
        rows[3].push(fastcdc.iter().map(Chunked::index_bytes).sum::<u64>() as f64 / 1e6);
    }
    let places = millions.iter().map(ToString::to_string);
    let names = ["ICID", "ICID_DO", "ICID_KA", "FastCDC"];
    let mut chart = Chart::new(Kind::Table, "Memory", "million pairs", "MB", places);
    for (name, row) in names.iter().zip(&rows) {
        chart = chart.with(name, row.iter().copied());
    }
    let most = rows[0].iter().copied().fold(0.0, f64::max);
    let aim =
        Aim::at_most("ICID's memory for any number of pairs, MB: the paper's 5.7", (most * 10.0).round() / 10.0, 5.7);
    for (count, papers) in PAPER {
        let Some(at) = millions.iter().position(|millions| *millions == count as f64) else { continue };
        for ((name, paper), row) in names.iter().zip(papers).zip(&rows) {
            let row = Row::value(format!("{name}, {count} million pairs"), paper, row[at], "MB");
            figure.rows.push(match *name {
                "ICID" => row.judged_by(&aim),
                "FastCDC" => row.not_comparable("the paper does not say what its table of fingerprints holds for each"),
                _ => row
                    .not_comparable("it is a variant that the paper rejects; how many records exist depends on reads"),
            });
        }
    }
    figure.charts.push(chart);
    figure.aims.push(aim);
    figure.reading =
        "ICID keeps its memory within a fixed limit. A tree that keeps every record grows with the bytes read.".into();
    Ok(vec![figure])
}
