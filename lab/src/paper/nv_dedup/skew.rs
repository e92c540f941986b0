//! The blocks that duplicates repeat: the last new one as with fio, a few sets as with vdbench, or any stored block, drawn
//! uniformly or by Zipf's law. The paper does not say which blocks its duplicates repeat.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Figure, Row};
use super::super::number::number;
use super::super::system::{Kind, System};
use super::super::workload::Draw;
use super::Run;
use super::passes::{Cell, Passes, Pattern, cells};
use crate::Result;

const PERCENTS: [u64; 3] = [10, 50, 70];
const DRAWS: [(Draw, &str); 4] =
    [(Draw::LastBuffer, "the last buffer"), (Draw::Sets, "a few sets"), (Draw::Evenly, "evenly"), (Draw::Zipf, "Zipf")];

/// Measures, and makes the figures.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let kinds = [Kind::NoDedup, Kind::AsInPaper, Kind::Ours];
    let systems = kinds.map(System::of);
    let settings = format!(
        "Random overwrites of a file of {} MiB, 4 KiB per request, one thread; duplicates repeat the last new \
         buffer (fio), one of a few sets (vdbench), or stored blocks, drawn uniformly or by Zipf's law (exponent \
         1); {} timed passes of {} requests.",
        run.file_blocks >> 8,
        run.repeats,
        run.requests
    );
    let mut figure =
        run.turn.figure("skew", "What duplicates repeat: the last buffer, a few sets, or any block", settings);
    let mut columns: Vec<(String, Vec<Cell>)> = Vec::new();
    for (draw, name) in DRAWS {
        run.turn.say(&format!("duplicates drawn: {name}"));
        let (profile, pattern) = (&run.turn.profile, Pattern::Fio);
        let passes = Passes {
            profile,
            systems: &systems,
            pattern,
            percents: &PERCENTS,
            draw,
            file_blocks: run.file_blocks,
            requests: run.requests,
        };
        let names = PERCENTS.iter().map(|percent| format!("{percent} %, {name}"));
        columns.extend(names.zip(cells(run, passes)?));
    }
    let chart = |drawn, title: &str, unit: &str, kinds: &[Kind], what: &dyn Fn(&[Cell], usize) -> f64| {
        let chart = Chart::new(drawn, title, "duplicates", unit, columns.iter().map(|(name, _)| name.clone()));
        let place = |kind: &Kind| systems.iter().position(|system| system.kind == *kind).expect("it is measured");
        let add = |chart: Chart, kind: &Kind| {
            chart.with(kind.name(), columns.iter().map(|(_, cells)| what(cells, place(kind))))
        };
        kinds.iter().fold(chart, add)
    };
    let to_none = |cells: &[Cell], at: usize| cells[0].cost_us / cells[at].cost_us;
    figure.charts = vec![
        chart(Drawn::Bars, "What duplicates repeat", "times No_dedup, by cost", &kinds[1..], &to_none),
        chart(Drawn::Table, "cost of a request, us", "us", &kinds, &|cells, at| cells[at].cost_us),
        chart(Drawn::Table, "requests/s by the wall clock", "requests/s", &kinds, &|cells, at| cells[at].rate),
    ];
    let last = kinds.len() - 1;
    for (name, cells) in &columns {
        figure.rows.push(Row::own(format!("NV-Dedup (ours) to No_dedup, {name}"), to_none(cells, last), "x"));
    }
    // The columns of the highest share.
    let at = |draw: usize| number(to_none(&columns[PERCENTS.len() * draw + PERCENTS.len() - 1].1, last));
    figure.reading = format!(
        "By cost, at {} % duplicates NV-Dedup (ours) runs at {} times the speed of No_dedup if duplicates repeat the last \
         buffer, which is in the cache, and at {} if they repeat all blocks with equal probability.",
        PERCENTS[PERCENTS.len() - 1],
        at(0),
        at(2)
    );
    Ok(vec![figure])
}
