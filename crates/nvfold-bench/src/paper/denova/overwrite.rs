//! Figure 11: new files and files written over. What is overwritten is released: of a shared block that is a count, of
//! the last one its entry leaves the table.

use super::super::figure::{Aim, Chart, Figure, Kind as Drawn, Row, number};
use super::Run;
use super::files::{Size, Think};
use super::passes::{Cell, Grid, Shape, Speed, cells};
use super::volume::{Hash, System};
use crate::Result;
use nvfold::DedupMode;

const PERCENT: u64 = 50;
const THINKS: [(Think, &str); 2] = [(Think::AsInPaper, "with think time"), (Think::Never, "without think time")];

/// Runs it.
pub fn figures(run: &Run) -> Result<Vec<Figure>> {
    let mut systems = vec![System::off(), System::off_again()];
    for mode in [DedupMode::Immediate, DedupMode::Inline] {
        systems.extend(Hash::ALL.map(|hash| System::denova(mode, hash)));
    }
    let title = "Figure 11: new files, and files written over";
    let settings = format!(
        "{PERCENT} % duplicates in both; the queue is drained between. A drop is to off doing the same; without think time there are {} \
         passes. {}",
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
            claims(&mut figure, &grid, size, think, how);
            grids.push((size, how, grid));
        }
    }
    figure.charts.insert(0, drops(&grids));
    let drops: Vec<String> = figure.aims.iter().map(|aim| aim.ours.clone()).collect();
    figure.reading = format!(
        "With think time sharing later slows overwriting down by {} % (in the order of the aims).",
        drops.join(", ")
    );
    Ok(vec![figure])
}

fn over(cell: &Cell) -> Speed {
    cell.over.expect("files are written over")
}

/// What the paper says: how much faster off is at overwriting, and by how many percent immediate is slower than that.
fn paper(size: Size) -> (f64, f64) {
    match size {
        Size::Small => (1.03, 5.0),
        Size::Large => (1.01, 18.0),
    }
}

/// How much slower sharing later makes overwriting.
fn drops(grids: &[(Size, &str, Grid)]) -> Chart {
    let place = |size: Size, how: &str| format!("{} {how}", size.name());
    let x = grids.iter().map(|(size, how, _)| place(*size, how));
    let chart = Chart::new(Drawn::Bars, "Figure 11: files written over: sharing later", "", "drop, % of off", x);
    let paper_system = System::denova(DedupMode::Immediate, Hash::AsInPaper);
    let systems = [System::off_again(), paper_system.clone(), System::denova(DedupMode::Immediate, Hash::Ours)];
    let add = |chart: Chart, system: &System| {
        chart.with(&system.name, grids.iter().map(|(.., grid)| grid.of(system, |cell| over(cell).drop)[0]))
    };
    Size::ALL.into_iter().fold(systems.iter().fold(chart, add), |chart, size| {
        let (_, slower) = paper(size);
        chart.with_paper(Some(&paper_system.name), &place(size, THINKS[0].1), slower, slower)
    })
}

/// All rates to that of off's new files.
fn normalized(grid: &Grid, size: Size, title: &str) -> Chart {
    let base = grid.of(&System::off(), |cell| cell.new.rate)[0];
    let chart = Chart::new(Drawn::Bars, title, "", "times off's new files", ["new".into(), "over".into()]);
    let add = |chart: Chart, system: &System| {
        let rates = [grid.of(system, |cell| cell.new.rate)[0], grid.of(system, |cell| over(cell).rate)[0]];
        chart.with(&system.name, rates.map(|rate| rate / base))
    };
    let (faster, _) = paper(size);
    grid.systems.iter().fold(chart, add).with_paper(Some(&System::off().name), "over", faster, faster)
}

/// The paper's words beside ours.
fn claims(figure: &mut Figure, grid: &Grid, size: Size, think: Think, how: &str) {
    let (faster, slower) = paper(size);
    let name = size.name();
    let gain = grid.of(&System::off(), |cell| over(cell).rate / cell.new.rate)[0];
    figure.rows.push(Row::value(format!("off: {name} over to new, {how}"), faster, gain, "x"));
    let noise = grid.of(&System::off_again(), |cell| over(cell).drop.abs())[0];
    figure.rows.push(Row::own(format!("off to itself: {name} over, difference, {how}"), noise, "%"));
    for hash in Hash::ALL {
        let drop = grid.of(&System::denova(DedupMode::Immediate, hash), |cell| over(cell).drop)[0];
        let what = format!("immediate, {}: drop of {name} over, {how}", hash.name());
        figure.rows.push(Row::value(what, slower, drop, "%"));
        if think == Think::AsInPaper {
            let aim = format!("immediate, {}: {name} over at most {} % slower", hash.name(), number(slower));
            figure.aims.push(Aim::at_most(aim, drop, slower));
            if hash == Hash::Ours {
                let aim = format!("immediate, ours: {name} over at most half the paper's drop");
                figure.aims.push(Aim::at_most(aim, drop, slower / 2.0));
            }
        }
    }
}
