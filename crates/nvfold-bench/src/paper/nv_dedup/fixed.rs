//! Figures 1 and 6 to 9 and Table 4: fixed shares of duplicates, one thread, random overwrites (fio) and new files
//! (vdbench).

use super::super::figure::{Aim, Chart, Figure, Kind as Drawn, Row, number};
use super::super::system::{Kind, System};
use super::Run;
use super::passes::{Cell, Pattern, cells};
use crate::Result;

/// All systems at all shares of duplicates.
struct Grid {
    percents: Vec<u64>,
    /// In the order of `percents`, one for each system.
    cells: Vec<Vec<Cell>>,
    systems: Vec<System>,
}

impl Grid {
    fn measure(run: &Run, pattern: Pattern) -> Result<Grid> {
        let systems: Vec<System> = Kind::ALL.into_iter().map(System::of).collect();
        let mut grid = Grid { percents: run.percents.clone(), cells: Vec::new(), systems };
        for percent in &run.percents {
            run.say(&format!("{pattern:?}, {percent} % duplicates"));
            grid.cells.push(cells(run, &run.profile, &grid.systems, pattern, *percent)?);
        }
        Ok(grid)
    }

    /// One number of a system at each share.
    fn of(&self, kind: Kind, what: impl Fn(&Cell) -> f64) -> Vec<f64> {
        let place = self.systems.iter().position(|system| system.kind == kind).expect("every kind is measured");
        self.cells.iter().map(|cells| what(&cells[place])).collect()
    }

    fn rates(&self, kind: Kind) -> Vec<f64> {
        self.of(kind, |cell| cell.rate)
    }

    fn metadata(&self, kind: Kind) -> Vec<f64> {
        self.of(kind, |cell| cell.metadata.unwrap_or(f64::NAN))
    }

    /// Throughput of one system to that of another, share by share.
    fn ratios(&self, of: Kind, to: Kind) -> Vec<f64> {
        self.rates(of).iter().zip(self.rates(to)).map(|(of, to)| of / to).collect()
    }

    fn x(&self) -> Vec<String> {
        self.percents.iter().map(|percent| format!("{percent} %")).collect()
    }

    fn chart(&self, kind: Drawn, title: &str, unit: &str, kinds: &[Kind], what: impl Fn(&Cell) -> f64) -> Chart {
        let chart = Chart::new(kind, title, "duplicates", unit, self.x());
        kinds.iter().fold(chart, |chart, kind| chart.with(System::of(*kind).name.as_str(), self.of(*kind, &what)))
    }

    /// The place of a share of duplicates.
    fn at(&self, percent: u64) -> usize {
        self.percents.iter().position(|known| *known == percent).expect("a share that is measured")
    }
}

fn smallest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn settings(run: &Run, pattern: Pattern) -> String {
    let (requests, repeats, period) = (run.requests, run.repeats, run.period);
    let how = match pattern {
        Pattern::Fio => format!("Random overwrites of a file of {} MiB", run.file_blocks >> 8),
        Pattern::Vdbench => "New files, written from their start".into(),
    };
    format!(
        "{how}, 4 KiB a request, one thread; {repeats} timed passes of {requests} requests after one that is not timed; \
         sampling period {period} chunks."
    )
}

/// Figures 1, 6 and 7, Table 4.
pub fn fio(run: &Run) -> Result<Vec<Figure>> {
    let grid = Grid::measure(run, Pattern::Fio)?;
    let settings = settings(run, Pattern::Fio);
    Ok(vec![
        throughput(run, &grid, "figure-6", "Figure 6: throughput with fio", (1.0, 2.0), &settings),
        metadata(run, &grid, "figure-7", "Figure 7: metadata flushed a request with fio", &settings),
        stored(run, &grid, &settings),
    ])
}

/// Figures 8 and 9.
pub fn vdbench(run: &Run) -> Result<Vec<Figure>> {
    let grid = Grid::measure(run, Pattern::Vdbench)?;
    let settings = settings(run, Pattern::Vdbench);
    Ok(vec![
        throughput(run, &grid, "figure-8", "Figure 8: throughput with vdbench", (1.0, 2.1), &settings),
        metadata(run, &grid, "figure-9", "Figure 9: metadata flushed a request with vdbench", &settings),
    ])
}

/// Requests a second of all systems, and what the paper says of NV-Dedup to No_dedup at the lowest and highest share.
fn throughput(run: &Run, grid: &Grid, id: &str, title: &str, ends: (f64, f64), settings: &str) -> Figure {
    let mut figure = run.figure(id, title, settings.into());
    figure.charts.push(grid.chart(Drawn::Lines, title, "requests/s", &Kind::ALL, |cell| cell.rate));
    let bound = grid.percents.iter().map(|percent| 100.0 / (100 - percent) as f64);
    let times = Chart::new(Drawn::Table, "times No_dedup", "duplicates", "times No_dedup", grid.x());
    let times = Kind::ALL[1..]
        .iter()
        .fold(times, |chart, kind| chart.with(&System::of(*kind).name, grid.ratios(*kind, Kind::NoDedup)));
    figure.charts.push(times.with("1 / (1 - r)", bound));
    for kind in [Kind::AsInPaper, Kind::Ours] {
        let name = System::of(kind).name;
        let ratios = grid.ratios(kind, Kind::NoDedup);
        figure.rows.push(Row::value(format!("{name} to No_dedup at 10 %"), ends.0, ratios[grid.at(10)], "x"));
        figure.rows.push(Row::value(format!("{name} to No_dedup at 70 %"), ends.1, ratios[grid.at(70)], "x"));
    }
    let ours = grid.ratios(Kind::Ours, Kind::NoDedup);
    let (least, most) = (smallest(&ours), largest(&ours));
    if run.is_the_papers() {
        figure.aims.push(Aim::at_least(
            "at 10 % no slower than the paper's 1.0x of No_dedup",
            ours[grid.at(10)],
            ends.0,
        ));
        let aim = format!("at 70 % no slower than the paper's {:.1}x of No_dedup", ends.1);
        figure.aims.push(Aim::at_least(aim, ours[grid.at(70)], ends.1));
        figure.aims.push(Aim::at_least("at 70 % at least 2.6x No_dedup", ours[grid.at(70)], 2.6));
        figure.aims.push(Aim::at_least("nowhere slower than 0.98 of No_dedup", least, 0.98));
    }
    figure.reading = format!(
        "NV-Dedup runs at {} to {} times the speed of No_dedup, where storing every block once could give {} at most.",
        number(least),
        number(most),
        number(100.0 / (100 - grid.percents[grid.percents.len() - 1]) as f64)
    );
    figure
}

/// Bytes of metadata a request.
fn metadata(run: &Run, grid: &Grid, id: &str, title: &str, settings: &str) -> Figure {
    let mut figure = run.figure(id, title, settings.into());
    let what = |cell: &Cell| cell.metadata.unwrap_or(f64::NAN);
    figure.charts.push(grid.chart(Drawn::Bars, title, "bytes/request", &Kind::ALL[1..], what));
    let ours = grid.metadata(Kind::Ours);
    figure.reading = format!(
        "NV-Dedup flushes {} to {} bytes of metadata a request.",
        number(smallest(&ours)),
        number(largest(&ours))
    );
    figure
}

/// Table 4: what was issued and what was stored.
fn stored(run: &Run, grid: &Grid, settings: &str) -> Figure {
    let title = "Table 4: data issued and stored with fio";
    let mut figure = run.figure("table-4", title, settings.into());
    let mib = |requests: u64| requests as f64 / 256.0;
    let chart = Chart::new(Drawn::Table, title, "duplicates", "MiB", grid.x())
        .with("issued", grid.of(Kind::Ours, |cell| mib(cell.requests)))
        .with("stored, ours", grid.of(Kind::Ours, |cell| mib(cell.requests - cell.shared)))
        .with("stored, as in the paper", grid.of(Kind::AsInPaper, |cell| mib(cell.requests - cell.shared)));
    figure.charts.push(chart);
    let found = |cell: &Cell| 100.0 * cell.shared as f64 / cell.requests as f64;
    for (percent, paper) in [(10, 5.0), (30, 30.0), (50, 50.0), (70, 69.0)] {
        for kind in [Kind::AsInPaper, Kind::Ours] {
            let ours = grid.of(kind, found)[grid.at(percent)];
            let what = format!("{}: removed at {percent} %", System::of(kind).name);
            figure.rows.push(Row::value(what, paper, ours, "%"));
            if kind == Kind::Ours && percent > 10 && run.is_the_papers() {
                let aim = format!("at {percent} % duplicates at least {paper} % found");
                figure.aims.push(Aim::at_least(aim, ours, paper));
            }
        }
    }
    let ours = grid.of(Kind::Ours, found);
    figure.reading = format!(
        "Of 10, 30, 50 and 70 % duplicates NV-Dedup removes {}.",
        [10, 30, 50, 70].map(|percent| number(ours[grid.at(percent)])).join(", ")
    );
    figure
}
