//! Figure 11: new files and overwritten files. Overwriting releases blocks: a shared block loses a reference, and the
//! last reference removes its entry from the table.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Aim, Figure, Measure, Row};
use super::super::number::number;
use super::Run;
use super::files::{Size, Think};
use super::passes::{Cell, Grid, Shape, Speed, cells};
use super::volume::{BLOCK, Hash, System};
use super::write::{NO_THINK, noise, noise_rows};
use crate::Result;
use nvfold::DedupMode;

const PERCENT: u64 = 50;
const THINKS: [(Think, &str); 2] = [(Think::AsInPaper, "with think time"), (Think::Never, "without think time")];

/// Measures, and makes the figures.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let mut systems = vec![System::off(), System::off_again()];
    for mode in [DedupMode::Immediate, DedupMode::Inline] {
        systems.extend(Hash::ALL.map(|hash| System::denova(mode, hash)));
    }
    let title = "Figure 11: new files, and files written over";
    let settings = format!(
        "{PERCENT} % duplicates both in the new files and in the data that overwrites them; the queue is drained in \
         between. A drop is relative to off doing the same; without think time there are {} passes. {}",
        run.fewer,
        run.settings(Think::AsInPaper, run.repeats)
    );
    let mut figure = run.turn.figure("figure-11", title, settings);
    let mut grids = Vec::new();
    for (think, how) in THINKS {
        for size in Size::ALL {
            let shape =
                Shape { systems: &systems, size, think, threads: 1, overwrites: true, repeats: run.passes(think) };
            let cells = cells(run, shape, &[PERCENT])?;
            let grid = Grid { x_label: "", x: vec![how.into()], cells, systems: systems.clone() };
            figure.charts.push(normalized(&grid, size, &format!("{title}: {}, {how}", size.name())));
            figure.charts.push(table(&grid, &format!("{}, {how}", size.name())));
            claims(&mut figure, &grid, size, think, how);
            grids.push((size, how, grid));
        }
    }
    figure.charts.insert(0, drops(&grids));
    let most = |wanted: Size| {
        let grids = grids.iter().filter(|(size, how, _)| *size == wanted && *how == THINKS[0].1);
        let drops = grids.flat_map(|(.., grid)| Hash::ALL.map(|hash| drop(grid, hash)));
        number(drops.fold(f64::NEG_INFINITY, f64::max))
    };
    figure.reading = format!(
        "With think time, sharing later makes overwriting small files slower by up to {} %, and large files by up to \
         {} %.",
        most(Size::Small),
        most(Size::Large)
    );
    Ok(vec![figure])
}

/// Returns by how many percent sharing later makes overwriting slower.
fn drop(grid: &Grid, hash: Hash) -> f64 {
    grid.of(&System::denova(DedupMode::Immediate, hash), |cell| over(cell).cost.percent)[0]
}

fn over(cell: &Cell) -> Speed {
    cell.over.expect("files are written over")
}

/// Returns the paper's values: the speedup of off when it overwrites files, and the slowdown of immediate against it in
/// percent.
fn paper(size: Size) -> (f64, f64) {
    match size {
        Size::Small => (1.03, 5.0),
        Size::Large => (1.01, 18.0),
    }
}

/// Returns a chart of how much offline deduplication slows overwriting down.
fn drops(grids: &[(Size, &str, Grid)]) -> Chart {
    let place = |size: Size, how: &str| format!("{} {how}", size.name());
    let x = grids.iter().map(|(size, how, _)| place(*size, how));
    let chart =
        Chart::new(Drawn::Bars, "Figure 11: files written over: sharing later", "", "drop by cost, % of off", x);
    let paper_system = System::denova(DedupMode::Immediate, Hash::AsInPaper);
    let systems = [System::off_again(), paper_system.clone(), System::denova(DedupMode::Immediate, Hash::Ours)];
    let add = |chart: Chart, system: &System| {
        chart.with(&system.name, grids.iter().map(|(.., grid)| grid.of(system, |cell| over(cell).cost.percent)[0]))
    };
    Size::ALL.into_iter().fold(systems.iter().fold(chart, add), |chart, size| {
        let (_, slower) = paper(size);
        chart.with_paper(Some(&paper_system.name), &place(size, THINKS[0].1), slower, slower)
    })
}

/// Returns all costs relative to that of off's new files, as speeds.
fn normalized(grid: &Grid, size: Size, title: &str) -> Chart {
    let base = grid.of(&System::off(), |cell| cell.new.cost_us)[0];
    let chart = Chart::new(Drawn::Bars, title, "", "times off's new files, by cost", ["new".into(), "over".into()]);
    let add = |chart: Chart, system: &System| {
        let costs = [grid.of(system, |cell| cell.new.cost_us)[0], grid.of(system, |cell| over(cell).cost_us)[0]];
        chart.with(&system.name, costs.map(|cost| base / cost))
    };
    let (faster, _) = paper(size);
    grid.systems.iter().fold(chart, add).with_paper(Some(&System::off().name), "over", faster, faster)
}

/// Returns the drops of all systems, by cost and by the wall clock with its spread, and the costs of a file.
fn table(grid: &Grid, title: &str) -> Chart {
    let x = ["by cost, %", "by the wall clock, %", "its spread, points", "cost of a new file, us", "of one over, us"];
    let chart =
        Chart::new(Drawn::Table, title, "", &format!("{title}: drop of files written over"), x.map(String::from));
    let add = |chart: Chart, system: &System| {
        let of = |what: fn(&Cell) -> f64| grid.of(system, what)[0];
        chart.with(
            &system.name,
            [
                of(|cell| over(cell).cost.percent),
                of(|cell| over(cell).wall.percent),
                of(|cell| over(cell).wall.spread),
                of(|cell| cell.new.cost_us),
                of(|cell| over(cell).cost_us),
            ],
        )
    };
    grid.systems.iter().fold(chart, add)
}

/// Adds the paper's statements next to our values.
fn claims(figure: &mut Figure, grid: &Grid, size: Size, think: Think, how: &str) {
    let (faster, slower) = paper(size);
    let name = size.name();
    let gain = grid.of(&System::off(), |cell| cell.new.cost_us / over(cell).cost_us)[0];
    let row = Row::value(format!("off: {name} over to new, {how}"), faster, gain, "x");
    figure.rows.push(row.not_comparable("it is what making a file costs in another file system"));
    noise_rows(figure, &format!("{name} over, {how}"), noise(grid, over));
    for hash in Hash::ALL {
        let system = System::denova(DedupMode::Immediate, hash);
        let drop = drop(grid, hash);
        let what = format!("immediate, {}: drop of {name} over, {how}", hash.name());
        let row = Row::value(what, slower, drop, "%");
        if think == Think::Never {
            figure.rows.push(row.not_comparable(NO_THINK));
            continue;
        }
        let blocks = size.bytes() / BLOCK;
        let floor = format!(
            "overwriting a file of private blocks costs {} us; releasing {blocks} shared block(s) and queueing the \
             file add {} us",
            number(grid.of(&system, |cell| over(cell).base_us())[0]),
            number(grid.of(&system, |cell| over(cell).more_us())[0])
        );
        let aim = |aim: String, most| Aim::at_most(aim, drop, most).by(Measure::Cost).with_floor(floor.clone());
        let most =
            aim(format!("immediate, {}: overwriting {name} at most {} % slower", hash.name(), number(slower)), slower);
        figure.claim(row, most);
        if hash == Hash::Ours {
            figure
                .aims
                .push(aim(format!("immediate, ours: overwriting {name} at most half the paper's drop"), slower / 2.0));
        }
    }
}
