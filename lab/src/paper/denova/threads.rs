//! Figure 9: several threads, each with its own directory and files.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Figure, Row};
use super::super::number::number;
use super::Run;
use super::files::{Size, Think};
use super::passes::{Grid, Shape, cells};
use super::write::{above_off, claim_drop, drops, noise, noise_rows, systems, tables};
use crate::Result;
use nvfold_bench::samples::largest;

const PERCENT: u64 = 50;
const THREADS: [usize; 4] = [1, 2, 4, 8];
const FEW: [usize; 2] = [1, 2];

/// Measures, and makes the figures.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let systems = systems(run);
    let counts: &[usize] = if run.turn.smoke { &FEW } else { &THREADS };
    let title = "Figure 9: threads";
    let settings = format!(
        "{PERCENT} % duplicates; the files are divided among the threads; each thread has its own directory. With \
         several threads the rate is by the wall clock and includes think time. The daemon runs in a thread of its \
         own. {}",
        run.settings(Think::AsInPaper, run.fewer)
    );
    let mut figure = run.turn.figure("figure-9", title, settings);
    let mut most: f64 = 0.0;
    for size in Size::ALL {
        let mut columns = Vec::new();
        for threads in counts {
            let shape = Shape {
                systems: &systems,
                size,
                think: Think::AsInPaper,
                threads: *threads,
                overwrites: false,
                repeats: run.fewer,
            };
            columns.extend(cells(run, shape, &[PERCENT])?);
        }
        let x = counts.iter().map(usize::to_string).collect();
        let grid = Grid { x_label: "threads", x, cells: columns, systems: systems.clone() };
        figure.charts.push(rates(&grid, counts, &format!("{title}: {}", size.name())));
        let [at_once, later] = drops(&grid, size, title);
        figure.charts.extend([at_once, later.with_paper_everywhere(None, 0.0, 1.0)]);
        figure.charts.extend(tables(&grid, size));
        let noise = noise(&grid, |cell| cell.new);
        noise_rows(&mut figure, size.name(), noise);
        for system in systems.iter().filter(|system| system.is_offline()) {
            let drop = largest(&grid.of(system, |cell| cell.new.cost.percent));
            most = most.max(drop);
            let what = format!("{}: drop of {}, most over the threads", system.name, size.name());
            let row = Row::range(what, 0.0, 1.0, drop, "%");
            claim_drop(&mut figure, row, noise[0], above_off(&grid, system));
        }
    }
    figure.reading = format!(
        "By cost, with {} to {} threads on {} processors that the daemon also uses, sharing later reduces throughput \
         by at most {} % compared with off.",
        counts[0],
        counts[counts.len() - 1],
        std::thread::available_parallelism().map_or(1, usize::from),
        number(most)
    );
    Ok(vec![figure])
}

/// The rate of a single thread counts only its requests. It is halved to be comparable with the other rates, whose time
/// includes think time.
fn rates(grid: &Grid, counts: &[usize], title: &str) -> Chart {
    let mut chart = grid.chart(Drawn::Bars, title, "MB/s", true, |cell| cell.new.rate);
    for series in &mut chart.series {
        let alone = series.y.iter_mut().zip(counts).filter(|(_, threads)| **threads == 1);
        alone.for_each(|(rate, _)| *rate /= 2.0);
    }
    chart
}
