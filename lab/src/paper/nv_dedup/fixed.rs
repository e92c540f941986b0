//! Figures 1 and 6 to 9 and Table 4: fixed shares of duplicates, one thread, random overwrites (fio) and new files
//! (vdbench).

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Aim, Figure, Measure, Row};
use super::super::number::number;
use super::super::system::{Kind, System};
use super::Run;
use super::passes::{Cell, Passes, Pattern, counted_cells};
use crate::Result;
use nvfold_bench::samples::{largest, smallest};

/// The systems and shares of Figure 1, and the blocks of its file.
const NEW_FILE_KINDS: [Kind; 2] = [Kind::NoDedup, Kind::DedupBlock];
const NEW_FILE_PERCENTS: [u64; 4] = [10, 30, 50, 70];
const NEW_FILE_BLOCKS: u64 = 65_536;

fn new_file_blocks(run: &Run) -> usize {
    run.file_blocks.min(NEW_FILE_BLOCKS) as usize
}

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
        let (draw, file_blocks, requests) = (pattern.draw(), run.file_blocks, run.requests);
        let passes = Passes { profile, systems: &systems, pattern, percents, draw, file_blocks, requests };
        let cells = counted_cells(run, passes)?;
        Ok(Grid { percents: run.percents.clone(), cells, systems })
    }

    /// Measures a file that fio makes, on an empty device, with the systems of Figure 1.
    fn of_new_file(run: &Run) -> Result<Grid> {
        let systems: Vec<System> = NEW_FILE_KINDS.into_iter().map(System::of).collect();
        let (pattern, draw, requests) = (Pattern::Vdbench, Pattern::Fio.draw(), new_file_blocks(run));
        let percents = NEW_FILE_PERCENTS;
        let passes = Passes {
            profile: &run.turn.profile,
            systems: &systems,
            pattern,
            percents: &percents,
            draw,
            file_blocks: 0,
            requests,
        };
        Ok(Grid { percents: percents.to_vec(), cells: counted_cells(run, passes)?, systems })
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
    let duplicates = match pattern {
        Pattern::Fio => "Duplicates repeat the last new buffer",
        Pattern::Vdbench => "Duplicates repeat one of a few sets",
    };
    format!(
        "{how}, 4 KiB per request, one thread; {repeats} timed passes of {requests} requests after one warm-up pass. \
         {duplicates}. {}",
        run.about_period(run.period)
    )
}

/// Makes Figure 1.
pub(super) fn new_file(run: &Run) -> Result<Vec<Figure>> {
    let grid = Grid::of_new_file(run)?;
    let settings = format!(
        "A new file of {} MiB on an empty device, written from its start, 4 KiB per request, one thread; duplicates \
         repeat the last new buffer, as fio's do. {} timed passes after one warm-up pass.",
        new_file_blocks(run) >> 8,
        run.repeats
    );
    Ok(vec![degradation(run, &grid, &settings)])
}

/// Figures 6 and 7, Table 4, and the costs of 5.2.
pub(super) fn fio(run: &Run) -> Result<Vec<Figure>> {
    let grid = Grid::measure(run, Pattern::Fio)?;
    let settings = settings(run, Pattern::Fio);
    let mut metadata = metadata(run, &grid, "figure-7", "Figure 7: metadata flushed a request with fio", &settings);
    against_rivals(run, &grid, &mut metadata);
    Ok(vec![
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
    let row = Row::value("Dedup_block to No_dedup at 50 %, as slow as in the paper", 0.42, slower, "x");
    if run.turn.is_the_papers {
        let aim = row
            .stay_below(Measure::Cost)
            .with_floor("the competitor is tuned, and writes its blocks of metadata to this device as fast as data");
        figure.claim(row, aim);
    } else {
        figure.rows.push(row);
    }
    let row = Row::value("metadata written for 2048 MB of data at 50 %", 598.4, written, "MB");
    figure
        .rows
        .push(row.not_comparable("it grows with the depth of the competitor's tree, and the file is smaller here"));
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

/// Our own aim at 70 % duplicates, times No_dedup.
const OWN_GAIN: f64 = 2.6;

/// What a statement of the paper is about.
#[derive(Clone, Copy)]
enum Of {
    /// NV-Dedup relative to No_dedup at a share of duplicates.
    Share(u64),
    /// NV-Dedup relative to a competitor.
    Rival(Kind),
}

/// Returns the paper's statements, each for NV-Dedup as in the paper and for ours.
fn statements(grid: &Grid, ends: (f64, f64), rivals: [(Kind, (f64, f64)); 2]) -> Vec<(Of, [Row; 2])> {
    let kinds = [Kind::AsInPaper, Kind::Ours];
    let mut all = Vec::new();
    for (percent, paper) in [(10, ends.0), (70, ends.1)] {
        let row = |kind: Kind| {
            let ours = grid.ratios(kind, Kind::NoDedup)[grid.at(percent)];
            Row::value(format!("{} to No_dedup at {percent} %", kind.name()), paper, ours, "x")
        };
        all.push((Of::Share(percent), kinds.map(row)));
    }
    for (base, (low, high)) in rivals {
        for (which, paper, of) in [("least", low, smallest as fn(&[f64]) -> f64), ("most", high, largest)] {
            let row = |kind: Kind| {
                let what = format!("{} to {}, {which}", kind.name(), base.name());
                Row::value(what, paper, of(&grid.ratios(kind, base)), "x")
            };
            all.push((Of::Rival(base), kinds.map(row)));
        }
    }
    all
}

/// Figures 6 and 8; `ends` are the paper's values for NV-Dedup relative to No_dedup at the lowest and highest share.
fn throughput(run: &Run, grid: &Grid, id: &str, title: &str, ends: (f64, f64), settings: &str) -> Figure {
    let mut figure = run.turn.figure(id, title, settings.into());
    // The paper's statement about Figure 8 fits the opposite order of the two: 2.0 for Dedup_block, 1.3 for the
    // other.
    let (block, fine) = if id == "figure-6" { ((3.0, 3.9), (1.3, 1.4)) } else { ((1.0, 2.0), (1.0, 1.3)) };
    let rivals = [(Kind::DedupBlock, block), (Kind::DedupFineGrained, fine)];
    figure.charts = ratios(grid, title, ends, rivals);
    let ours = grid.ratios(Kind::Ours, Kind::NoDedup);
    let (least, most) = (smallest(&ours), largest(&ours));
    for (of, [as_in_paper, ours]) in statements(grid, ends, rivals) {
        let floor = match of {
            Of::Share(percent) => grid.free_sharing(percent).1,
            Of::Rival(base) => grid.least_gain(base),
        };
        let aim = ours.reach(Measure::Cost).with_floor(floor);
        figure.rows.push(as_in_paper.judged_by(&aim));
        match run.turn.is_the_papers {
            true => figure.claim(ours, aim),
            false => figure.rows.push(ours),
        }
    }
    if run.turn.is_the_papers {
        let aim = |aim: &str, ours, least| Aim::at_least(aim, ours, least).by(Measure::Cost);
        let (bound, free) = grid.free_sharing(70);
        // An aim above what sharing for nothing would give is none.
        if bound >= OWN_GAIN {
            figure.aims.push(aim("at 70 % at least 2.6x No_dedup", ours[grid.at(70)], OWN_GAIN).with_floor(free));
        }
        let floor = grid.least_gain(Kind::NoDedup);
        figure.aims.push(aim("at least 0.98x No_dedup everywhere", least, 0.98).with_floor(floor));
    }
    let highest = grid.percents[grid.percents.len() - 1];
    let from = grid.percents.iter().zip(&ours).find(|(_, ratio)| **ratio > 1.0);
    figure.reading = match from {
        None => "By cost, NV-Dedup (ours) is not faster than No_dedup at any share of duplicates.".into(),
        Some((percent, _)) => format!(
            "By cost, NV-Dedup (ours) is faster than No_dedup from {percent} % duplicates on. At {highest} % it is {} times as \
             fast, where sharing that costs nothing would be {} times as fast.",
            number(most),
            number(grid.free_sharing(highest).0)
        ),
    };
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
    let least = |kind: Kind| {
        let to_ours = grid.metadata(kind).into_iter().zip(grid.metadata(Kind::Ours)).map(|(of, ours)| of / ours);
        to_ours.fold(f64::INFINITY, f64::min)
    };
    figure.reading = format!(
        "Dedup_fine_grained flushes at least {} times as much metadata per request as NV-Dedup (ours), and Dedup_block at \
         least {} times as much.",
        number(least(Kind::DedupFineGrained)),
        number(least(Kind::DedupBlock))
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
    let of = |kind: Kind| {
        let (block, fine) = (share(kind, Kind::DedupBlock), share(kind, Kind::DedupFineGrained));
        let name = kind.name();
        [
            Row::range(format!("{name}, least share of Dedup_block's"), 3.2, 5.8, smallest(&block), "%"),
            Row::range(format!("{name}, largest share of Dedup_block's"), 3.2, 5.8, largest(&block), "%"),
            Row::value(format!("{name}, largest share of Dedup_fine_grained's"), 50.0, largest(&fine), "%"),
        ]
    };
    let [paper, ours] = [Kind::AsInPaper, Kind::Ours].map(of);
    let [_, block, fine] = ours.each_ref().map(|row| row.stay_below(Measure::Count));
    for [least, most, to_fine] in [paper, ours] {
        figure.rows.extend([least.judged_by(&block), most.judged_by(&block), to_fine.judged_by(&fine)]);
    }
    if run.turn.is_the_papers {
        figure.aims = vec![block, fine];
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
    const MACHINE: &str = "it is the paper's processor and memory, of which the profile is made";
    let row = |(what, paper, ours): &(&str, f64, f64)| Row::value(*what, *paper, *ours, "us").not_comparable(MACHINE);
    figure.rows = times.iter().map(row).collect();
    figure.rows.extend([
        Row::own("w, XXH3 (ours)", us(ours.costs.weak_ns), "us"),
        Row::own("v, comparing bytes (ours)", us(ours.costs.compare_ns), "us"),
        Row::value("w_s_Fin pays from", 25.7, percent(paper.thresholds.w_s), "%").not_comparable(MACHINE),
        Row::value("Str_Fin pays from", 64.9, percent(paper.thresholds.strong), "%").not_comparable(MACHINE),
        Row::own("w_b_Fin (ours) pays from", percent(ours.thresholds.w_b), "%"),
    ]);
    let of_write = |ns: u64| number(ns as f64 / paper.costs.write_ns as f64);
    figure.reading = format!(
        "MD5 takes {} of the time to write a chunk; a weak fingerprint and a byte comparison (ours) take {} of it.",
        of_write(paper.costs.strong_ns),
        of_write(ours.costs.weak_ns + ours.costs.compare_ns)
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
        let row = |kind: Kind| {
            let ours = grid.of(kind, found)[grid.at(percent)];
            Row::value(format!("{}: removed at {percent} %", kind.name()), paper, ours, "%")
        };
        let [as_in_paper, ours] = [Kind::AsInPaper, Kind::Ours].map(row);
        if percent == 10 {
            let because = "it is what sampling finds while nothing is deduplicated: more is no gain";
            figure.rows.extend([as_in_paper, ours].map(|row| row.not_comparable(because)));
            continue;
        }
        let model = grid.cells[grid.at(percent)].last().and_then(|cell| cell.model.as_ref());
        let from = model.and_then(|model| model.thresholds.w_b).map_or(f64::NAN, |share| 100.0 * share);
        let floor = format!(
            "fingerprinting pays off from {} % duplicates here; it is used only where it is expected to save a twelfth of \
             the time, and other blocks are stored directly",
            number(from)
        );
        let aim = ours.reach(Measure::Count).with_floor(floor);
        figure.rows.push(as_in_paper.judged_by(&aim));
        match run.turn.is_the_papers {
            true => figure.claim(ours, aim),
            false => figure.rows.push(ours),
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
