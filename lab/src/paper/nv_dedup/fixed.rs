//! Figures 1 and 6 to 9 and Table 4: fixed shares of duplicates, one thread, random overwrites (fio) and new files
//! (vdbench).

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Aim, Figure, Measure, Row};
use super::super::number::number;
use super::super::system::{Kind, System};
use super::super::workload::Draw;
use super::Run;
use super::passes::{Cell, Passes, Pattern, counted_cells};
use crate::Result;
use nvfold_bench::samples::{largest, smallest};

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
        let (profile, percents) = (&run.turn.profile, &run.percents[..]);
        let draw = Draw::Evenly;
        let passes = Passes { profile, systems: &systems, pattern, percents, draw, file_blocks: run.file_blocks };
        let cells = counted_cells(run, passes)?;
        Ok(Grid { percents: run.percents.clone(), cells, systems })
    }

    /// Returns one number of a system at each share.
    fn of(&self, kind: Kind, what: impl Fn(&Cell) -> f64) -> Vec<f64> {
        let place = self.systems.iter().position(|system| system.kind == kind).expect("every kind is measured");
        self.cells.iter().map(|cells| what(&cells[place])).collect()
    }

    /// Returns the cost of a request at each share, microseconds.
    fn costs(&self, kind: Kind) -> Vec<f64> {
        self.of(kind, |cell| cell.cost_us)
    }

    fn metadata(&self, kind: Kind) -> Vec<f64> {
        self.of(kind, |cell| cell.metadata)
    }

    /// Returns the throughput of one system relative to another by cost, share by share.
    fn ratios(&self, of: Kind, to: Kind) -> Vec<f64> {
        self.costs(of).iter().zip(self.costs(to)).map(|(of, to)| to / of).collect()
    }

    /// Returns the tables behind a picture: costs, and the wall clock.
    fn tables(&self, title: &str, kinds: &[Kind]) -> Vec<Chart> {
        let wall = Chart::new(
            Drawn::Table,
            "times No_dedup by the wall clock",
            "duplicates",
            "times No_dedup by the wall clock",
            self.x(),
        );
        let rates = |kind| self.of(kind, |cell| cell.rate);
        let to_none =
            |kind| rates(kind).into_iter().zip(rates(Kind::NoDedup)).map(|(of, base)| of / base).collect::<Vec<f64>>();
        let wall = kinds.iter().fold(wall, |chart, kind| chart.with(kind.name(), to_none(*kind)));
        let spread = "the middle half of the passes by the wall clock, % of the median";
        vec![
            self.chart(Drawn::Table, "cost of a request, us", "cost of a request, us", kinds, |cell| cell.cost_us),
            wall,
            self.chart(Drawn::Table, title, "requests/s", kinds, |cell| cell.rate),
            self.chart(Drawn::Table, spread, spread, kinds, |cell| cell.spread),
        ]
    }

    /// Returns the limit of a system at a share of duplicates: sharing that saves the write of the block and costs
    /// nothing.
    fn free_sharing(&self, percent: u64) -> (f64, String) {
        let at = self.at(percent);
        let place = self.systems.iter().position(|system| system.kind == Kind::Ours).expect("every kind is measured");
        let block_us = self.cells[at][place].model.as_ref().map_or(f64::NAN, |model| model.costs.write_ns as f64 / 1e3);
        let none_us = self.costs(Kind::NoDedup)[at];
        let bound = none_us / (none_us - percent as f64 / 100.0 * block_us);
        let text = format!(
            "a request costs {} us with No_dedup, of which writing the block takes {} us; if sharing cost nothing, {}x \
             would be reached at {percent} %",
            number(none_us),
            number(block_us),
            number(bound)
        );
        (bound, text)
    }

    /// Describes the cost of a request of ours and of another system at the share where ours gains least.
    fn least_gain(&self, base: Kind) -> String {
        let ratios = self.ratios(Kind::Ours, base);
        let at = (0..ratios.len()).min_by(|a, b| ratios[*a].total_cmp(&ratios[*b])).expect("a share at least");
        let mut kinds = vec![Kind::Ours, base];
        kinds.extend((base != Kind::NoDedup).then_some(Kind::NoDedup));
        let costs = kinds.iter().map(|kind| format!("{} {} us", kind.name(), number(self.costs(*kind)[at])));
        format!("cost of a request at {} %: {}", self.percents[at], costs.collect::<Vec<String>>().join(", "))
    }

    fn x(&self) -> Vec<String> {
        self.percents.iter().map(|percent| format!("{percent} %")).collect()
    }

    fn chart(&self, kind: Drawn, title: &str, unit: &str, kinds: &[Kind], what: impl Fn(&Cell) -> f64) -> Chart {
        let chart = Chart::new(kind, title, "duplicates", unit, self.x());
        kinds.iter().fold(chart, |chart, kind| chart.with(kind.name(), self.of(*kind, &what)))
    }

    /// Returns a chart of the throughput of systems relative to another one.
    fn times(&self, title: &str, base: Kind, kinds: &[Kind]) -> Chart {
        let chart = Chart::new(Drawn::Lines, title, "duplicates", &format!("times {}", base.name()), self.x());
        kinds.iter().fold(chart, |chart, kind| chart.with(kind.name(), self.ratios(*kind, base)))
    }

    /// Returns the position of a share of duplicates.
    fn at(&self, percent: u64) -> usize {
        self.percents.iter().position(|known| *known == percent).expect("a share that is measured")
    }
}

fn settings(run: &Run, pattern: Pattern) -> String {
    let (requests, repeats) = (run.requests, run.repeats);
    let how = match pattern {
        Pattern::Fio => format!("Random overwrites of a file of {} MiB", run.file_blocks >> 8),
        Pattern::Vdbench => {
            format!("New files, written sequentially, next to an existing file of {} MiB", run.file_blocks >> 8)
        }
    };
    format!(
        "{how}, 4 KiB per request, one thread; {repeats} timed passes of {requests} requests after one warm-up pass. \
         {}",
        run.about_period(run.period)
    )
}

/// Figures 1, 6 and 7, Table 4, and the costs of 5.2.
pub(super) fn fio(run: &Run) -> Result<Vec<Figure>> {
    let grid = Grid::measure(run, Pattern::Fio)?;
    let settings = settings(run, Pattern::Fio);
    let mut metadata = metadata(run, &grid, "figure-7", "Figure 7: metadata flushed a request with fio", &settings);
    against_rivals(run, &grid, &mut metadata);
    Ok(vec![
        degradation(run, &grid, &settings),
        throughput(run, &grid, "figure-6", "Figure 6: throughput with fio", (1.0, 2.0), &settings),
        metadata,
        stored(run, &grid, &settings),
        costs(run, &grid, &settings),
    ])
}

/// Figures 8 and 9.
pub(super) fn vdbench(run: &Run) -> Result<Vec<Figure>> {
    let grid = Grid::measure(run, Pattern::Vdbench)?;
    let settings = settings(run, Pattern::Vdbench);
    Ok(vec![
        throughput(run, &grid, "figure-8", "Figure 8: throughput with vdbench", (1.0, 2.1), &settings),
        metadata(run, &grid, "figure-9", "Figure 9: metadata flushed a request with vdbench", &settings),
    ])
}

/// Figure 1: the cost of block-based deduplication, as for disks, and the metadata it writes.
fn degradation(run: &Run, grid: &Grid, settings: &str) -> Figure {
    let title = "Figure 1: deduplication as on block devices";
    let mut figure = run.turn.figure("figure-1", title, settings.into());
    let kinds = [Kind::NoDedup, Kind::DedupBlock];
    let times = grid.times(title, Kind::NoDedup, &kinds).with_paper(Some(Kind::DedupBlock.name()), "50 %", 0.42, 0.42);
    figure.charts.push(times);
    figure.charts.extend(grid.tables(title, &kinds));
    let half = grid.at(50);
    let slower = grid.ratios(Kind::DedupBlock, Kind::NoDedup)[half];
    // Bytes per block of 4 KiB become MB for 2048 MB of data.
    let written = grid.metadata(Kind::DedupBlock)[half] / 4096.0 * 2048.0;
    figure.rows = vec![
        Row::value("Dedup_block to No_dedup at 50 %", 0.42, slower, "x"),
        Row::value("metadata written for 2048 MB of data at 50 %", 598.4, written, "MB"),
    ];
    figure.reading = format!(
        "With its metadata in blocks, synchronised every 1,000 blocks, Dedup_block reaches {} of No_dedup's throughput \
         at 50 % duplicates.",
        number(slower)
    );
    figure
}

/// Returns charts of all systems relative to No_dedup and of NV-Dedup relative to each competitor, with the paper's
/// values; by requests per second.
fn ratios(grid: &Grid, title: &str, ends: (f64, f64), rivals: [(Kind, (f64, f64)); 2]) -> Vec<Chart> {
    let bound = grid.percents.iter().map(|percent| 100.0 / (100 - percent) as f64);
    let of_paper = Some(Kind::AsInPaper.name());
    let to_none = grid
        .times(title, Kind::NoDedup, &Kind::ALL)
        .with("1 / (1 - r)", bound)
        .with_paper(of_paper, "10 %", ends.0, ends.0)
        .with_paper(of_paper, "70 %", ends.1, ends.1);
    let to_rival = |(base, (low, high)): (Kind, (f64, f64))| {
        grid.times(title, base, &[Kind::AsInPaper, Kind::Ours]).with_paper_everywhere(of_paper, low, high)
    };
    [to_none].into_iter().chain(rivals.map(to_rival)).chain(grid.tables(title, &Kind::ALL)).collect()
}

/// Figures 6 and 8; `ends` are the paper's values for NV-Dedup relative to No_dedup at the lowest and highest share.
fn throughput(run: &Run, grid: &Grid, id: &str, title: &str, ends: (f64, f64), settings: &str) -> Figure {
    let mut figure = run.turn.figure(id, title, settings.into());
    // The paper's statement about Figure 8 fits the opposite order of the two: 2.0 for Dedup_block, 1.3 for the
    // other.
    let (block, fine) = if id == "figure-6" { ((3.0, 3.9), (1.3, 1.4)) } else { ((1.0, 2.0), (1.0, 1.3)) };
    let rivals = [(Kind::DedupBlock, block), (Kind::DedupFineGrained, fine)];
    figure.charts = ratios(grid, title, ends, rivals);
    for kind in [Kind::AsInPaper, Kind::Ours] {
        let to = |base| grid.ratios(kind, base);
        let name = kind.name();
        figure.rows.push(Row::value(
            format!("{name} to No_dedup at 10 %"),
            ends.0,
            to(Kind::NoDedup)[grid.at(10)],
            "x",
        ));
        figure.rows.push(Row::value(
            format!("{name} to No_dedup at 70 %"),
            ends.1,
            to(Kind::NoDedup)[grid.at(70)],
            "x",
        ));
        for (base, paper) in rivals {
            for (which, ours) in [("least", smallest(&to(base))), ("most", largest(&to(base)))] {
                let what = format!("{name} to {}, {which}", base.name());
                figure.rows.push(Row::range(what, paper.0, paper.1, ours, "x"));
            }
        }
    }
    let ours = grid.ratios(Kind::Ours, Kind::NoDedup);
    let (least, most) = (smallest(&ours), largest(&ours));
    if run.turn.is_the_papers {
        let [least_block, least_fine] =
            [Kind::DedupBlock, Kind::DedupFineGrained].map(|base| smallest(&grid.ratios(Kind::Ours, base)));
        let [(_, free_at_10), (_, free_at_70)] = [10, 70].map(|percent| grid.free_sharing(percent));
        let aim = |aim: &str, ours, least| Aim::at_least(aim, ours, least).by(Measure::Cost);
        let no_slower = format!("at 70 % no slower than the paper's {:.1}x", ends.1);
        figure.aims = vec![
            aim("at 10 % no slower than the paper's 1.0x of No_dedup", ours[grid.at(10)], ends.0)
                .with_floor(free_at_10),
            aim(&no_slower, ours[grid.at(70)], ends.1).with_floor(free_at_70.clone()),
            aim("at 70 % at least 2.6x No_dedup", ours[grid.at(70)], 2.6).with_floor(free_at_70),
            aim("at least 0.98x No_dedup everywhere", least, 0.98).with_floor(grid.least_gain(Kind::NoDedup)),
            aim("at least 3.0x Dedup_block everywhere", least_block, 3.0).with_floor(grid.least_gain(Kind::DedupBlock)),
            aim("at least 1.3x Dedup_fine_grained everywhere", least_fine, 1.3)
                .with_floor(grid.least_gain(Kind::DedupFineGrained)),
        ];
    }
    let highest = grid.percents[grid.percents.len() - 1];
    figure.reading = format!(
        "By cost, NV-Dedup (ours) runs at {} to {} times the speed of No_dedup, depending on the share of duplicates; \
         if sharing cost nothing, it would reach {} at {highest} %. NV-Dedup (as in the paper) reaches {} to {}.",
        number(least),
        number(most),
        number(grid.free_sharing(highest).0),
        number(smallest(&grid.ratios(Kind::AsInPaper, Kind::NoDedup))),
        number(largest(&grid.ratios(Kind::AsInPaper, Kind::NoDedup)))
    );
    figure
}

/// Makes the figure of metadata bytes per request.
fn metadata(run: &Run, grid: &Grid, id: &str, title: &str, settings: &str) -> Figure {
    let settings = format!(
        "{settings} The count includes the cache lines flushed to the chunk table and the transaction numbers; for the \
         competitors, those flushed to the region that holds only their tree."
    );
    let mut figure = run.turn.figure(id, title, settings);
    let what = |cell: &Cell| cell.metadata;
    figure.charts.push(grid.chart(Drawn::Bars, title, "bytes/request", &Kind::ALL[1..], what));
    let range = |kind| {
        let values = grid.metadata(kind);
        format!("{} to {}", number(smallest(&values)), number(largest(&values)))
    };
    figure.reading = format!(
        "NV-Dedup (ours) flushes {} bytes of metadata per request, NV-Dedup (as in the paper) {}, Dedup_fine_grained \
         {} and Dedup_block {}.",
        range(Kind::Ours),
        range(Kind::AsInPaper),
        range(Kind::DedupFineGrained),
        range(Kind::DedupBlock)
    );
    figure
}

/// Adds the paper's values for the metadata of NV-Dedup relative to the competitors.
fn against_rivals(run: &Run, grid: &Grid, figure: &mut Figure) {
    let share = |of, to| -> Vec<f64> {
        grid.metadata(of).iter().zip(grid.metadata(to)).map(|(of, to)| 100.0 * of / to).collect()
    };
    for (base, low, high) in [(Kind::DedupBlock, 3.2, 5.8), (Kind::DedupFineGrained, 50.0, 50.0)] {
        let unit = format!("% of {}'s bytes", base.name());
        let chart = Chart::new(Drawn::Lines, &figure.title, "duplicates", &unit, grid.x());
        let add = |chart: Chart, kind: Kind| chart.with(kind.name(), share(kind, base));
        let chart = [Kind::AsInPaper, Kind::Ours].into_iter().fold(chart, add);
        figure.charts.push(chart.with_paper_everywhere(Some(Kind::AsInPaper.name()), low, high));
    }
    for kind in [Kind::AsInPaper, Kind::Ours] {
        let (block, fine) = (share(kind, Kind::DedupBlock), share(kind, Kind::DedupFineGrained));
        let name = kind.name();
        let rows = [
            Row::range(format!("{name}, least share of Dedup_block's"), 3.2, 5.8, smallest(&block), "%"),
            Row::range(format!("{name}, largest share of Dedup_block's"), 3.2, 5.8, largest(&block), "%"),
            Row::value(format!("{name}, largest share of Dedup_fine_grained's"), 50.0, largest(&fine), "%"),
        ];
        figure.rows.extend(rows);
        if kind == Kind::Ours && run.turn.is_the_papers {
            figure.aims = vec![
                Aim::at_most("metadata per request at most 5.8 % of Dedup_block's", largest(&block), 5.8),
                Aim::at_most("metadata per request at most 50 % of Dedup_fine_grained's", largest(&fine), 50.0),
            ];
        }
    }
}

/// The inputs of the cost model, as NV-Dedup measured them at 50 % duplicates.
fn costs(run: &Run, grid: &Grid, settings: &str) -> Figure {
    let mut figure = run.turn.figure("costs", "Costs (5.2): what the model calculates with", settings.into());
    let half = &grid.cells[grid.at(50)];
    let stats = |kind| {
        let place = grid.systems.iter().position(|system| system.kind == kind);
        half[place.expect("every kind is measured")].model.clone().expect("nv-dedup has a model")
    };
    let us = |ns: u64| ns as f64 / 1000.0;
    let percent = |ratio: Option<f64>| ratio.map_or(f64::NAN, |ratio| 100.0 * ratio);
    let (paper, ours) = (stats(Kind::AsInPaper), stats(Kind::Ours));
    let times = [
        ("c, writing a chunk", 9.7, us(paper.costs.write_ns)),
        ("w, CRC32", 0.8, us(paper.costs.weak_ns)),
        ("s, MD5", 6.2, us(paper.costs.strong_ns)),
        ("lambda, searching a fingerprint", 0.1, us(paper.costs.lookup_ns)),
    ];
    let name = Kind::AsInPaper.name();
    let x = times.iter().map(|(what, ..)| what.to_string());
    let chart = Chart::new(Drawn::Bars, &figure.title, "", "us", x).with(name, times.iter().map(|(.., ours)| *ours));
    let add = |chart: Chart, (what, paper, _): &(&str, f64, f64)| chart.with_paper(Some(name), what, *paper, *paper);
    figure.charts.push(times.iter().fold(chart, add));
    figure.rows = times.iter().map(|(what, paper, ours)| Row::value(*what, *paper, *ours, "us")).collect();
    figure.rows.extend([
        Row::own("w, XXH3 (ours)", us(ours.costs.weak_ns), "us"),
        Row::own("v, comparing bytes (ours)", us(ours.costs.compare_ns), "us"),
        Row::value("w_s_Fin pays from", 25.7, percent(paper.thresholds.w_s), "%"),
        Row::value("Str_Fin pays from", 64.9, percent(paper.thresholds.strong), "%"),
        Row::own("w_b_Fin (ours) pays from", percent(ours.thresholds.w_b), "%"),
    ]);
    figure.reading = format!(
        "Writing a chunk takes {} us, hashing it with MD5 takes {} us, and a weak fingerprint plus a byte comparison \
         takes {} us.",
        number(us(paper.costs.write_ns)),
        number(us(paper.costs.strong_ns)),
        number(us(ours.costs.weak_ns + ours.costs.compare_ns))
    );
    figure
}

/// Table 4: issued and stored data.
fn stored(run: &Run, grid: &Grid, settings: &str) -> Figure {
    let title = "Table 4: data issued and stored with fio";
    let mut figure = run.turn.figure("table-4", title, settings.into());
    let mib = |requests: u64| requests as f64 / 256.0;
    let chart = Chart::new(Drawn::Table, title, "duplicates", "MiB", grid.x())
        .with("issued", grid.of(Kind::Ours, |cell| mib(cell.requests)))
        .with("stored, ours", grid.of(Kind::Ours, |cell| mib(cell.requests - cell.shared)))
        .with("stored, as in the paper", grid.of(Kind::AsInPaper, |cell| mib(cell.requests - cell.shared)));
    let found = |cell: &Cell| 100.0 * cell.shared as f64 / cell.requests as f64;
    let removed = [(10, 5.0), (30, 30.0), (50, 50.0), (70, 69.0)];
    let kinds = [Kind::AsInPaper, Kind::Ours];
    let shares = grid.chart(Drawn::Bars, "Table 4: duplicates removed with fio", "% of the data issued", &kinds, found);
    let add = |chart: Chart, (percent, paper): &(u64, f64)| {
        chart.with_paper(Some(Kind::AsInPaper.name()), &format!("{percent} %"), *paper, *paper)
    };
    figure.charts = vec![removed.iter().fold(shares, add), chart];
    for (percent, paper) in removed {
        for kind in [Kind::AsInPaper, Kind::Ours] {
            let ours = grid.of(kind, found)[grid.at(percent)];
            let what = format!("{}: removed at {percent} %", kind.name());
            figure.rows.push(Row::value(what, paper, ours, "%"));
            if kind == Kind::Ours && percent > 10 && run.turn.is_the_papers {
                let aim = format!("at {percent} % duplicates at least {paper} % found");
                let model = grid.cells[grid.at(percent)].last().and_then(|cell| cell.model.as_ref());
                let from = model.and_then(|model| model.thresholds.w_b).map_or(f64::NAN, |share| 100.0 * share);
                let floor = format!(
                    "fingerprinting pays off from {} % duplicates here; it is used only where it is expected to save a \
                     twelfth of the time, and other blocks are stored directly",
                    number(from)
                );
                figure.aims.push(Aim::at_least(aim, ours, paper).with_floor(floor));
            }
        }
    }
    let ours = grid.of(Kind::Ours, found);
    figure.reading = format!(
        "NV-Dedup (ours) removes {} % of the requests if 10 % are duplicates, and {} % if 70 % are.",
        number(ours[grid.at(10)]),
        number(ours[grid.at(70)])
    );
    figure
}
