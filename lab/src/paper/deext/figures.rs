//! Figures 8 to 12, and real trees.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Aim, Figure, Row};
use super::super::number::number;
use super::super::tree::Tree;
use super::Run;
use super::set::Set;
use super::space::KINDS;
use super::system::{Outcome, Spent, System, measure};
use crate::{LabError, Result, bounds};
use nvfold_bench::BenchError;
use pmem::Profile;

const MIB: f64 = (1 << 20) as f64;
/// The share of compressible data of Figures 8 to 10.
const HALF: &str = "50 %";
/// The paper's saving at 50 % (IV-B), percent.
const SPACE_SAVED: f64 = 41.84;

/// Why space saved in a generated set is no aim.
const CHOSEN: &str = "the set was made to come near it";

/// A measure with its savings over ext4, and the paper's values for them, percent.
#[derive(Clone, Copy)]
struct Measure {
    what: &'static str,
    unit: &'static str,
    of: fn(&Spent) -> f64,
    /// The measure for these numbers of bytes written and read.
    of_bytes: fn(&Profile, f64, f64) -> f64,
    at_half: f64,
    at_none: f64,
    /// The paper's ratio of this saving to the space saving.
    aim: f64,
}

const LATENCY: Measure = Measure {
    what: "access latency",
    unit: "s",
    of: |spent| spent.latency_s,
    of_bytes: |profile, written, read| {
        (written * profile.write_line_ns + read * profile.read_line_ns) / pmem::LINE_BYTES as f64 / 1e9
    },
    at_half: 37.76,
    at_none: 21.49,
    aim: 0.90,
};

const ENERGY: Measure = Measure {
    what: "energy",
    unit: "mJ",
    of: |spent| 1e3 * spent.joules,
    of_bytes: |profile, written, read| 1e3 * profile.joules_of(written as u64, read as u64).unwrap_or(f64::NAN),
    at_half: 40.47,
    at_none: 19.21,
    aim: 0.97,
};

/// The results of all systems for all sets.
struct Grid {
    /// Names of the sets, and their bytes.
    sets: Vec<(String, u64)>,
    /// A row per set; `None` if a system cannot be measured here.
    cells: Vec<Vec<Option<Outcome>>>,
    left_out: Option<String>,
}

impl Grid {
    fn measure(run: &Run, sets: impl Iterator<Item = Set>) -> Result<Grid> {
        let mut grid = Grid { sets: Vec::new(), cells: Vec::new(), left_out: None };
        for set in sets {
            let mut row = Vec::new();
            for system in System::ALL {
                run.turn.say(&format!("{}, {}", set.name, system.name()));
                row.push(match measure(system, &set, &run.turn.profile) {
                    // Without the programs of e2fsprogs there is no baseline; everything else is still measured.
                    Err(error @ LabError::Bench(BenchError::Io { .. })) if system == System::Ext4 => {
                        grid.left_out = Some(format!("ext4, and the savings over it ({error})"));
                        None
                    }
                    outcome => Some(outcome?),
                });
            }
            grid.sets.push((set.name.clone(), set.bytes()));
            grid.cells.push(row);
        }
        Ok(grid)
    }

    fn x(&self) -> Vec<String> {
        self.sets.iter().map(|(name, _)| name.clone()).collect()
    }

    fn at(&self, set: &str) -> usize {
        self.sets.iter().position(|(name, _)| name == set).expect("a set that was measured")
    }

    /// Returns a number of a system for a set; NaN if there is none.
    fn of(&self, set: usize, system: System, what: impl Fn(&Outcome) -> f64) -> f64 {
        let at = System::ALL.iter().position(|known| *known == system).expect("every system is measured");
        self.cells[set][at].as_ref().map_or(f64::NAN, what)
    }

    /// Returns the saving of a system over ext4, percent.
    fn saved(&self, set: usize, system: System, what: impl Fn(&Outcome) -> f64) -> f64 {
        100.0 * (1.0 - self.of(set, system, &what) / self.of(set, System::Ext4, &what))
    }

    /// Returns a chart of the savings of each system for each set.
    fn savings(&self, kind: Drawn, title: &str, x_label: &str, unit: &str, what: impl Fn(&Outcome) -> f64) -> Chart {
        let chart = Chart::new(kind, title, x_label, unit, self.x());
        System::ALL[1..].iter().fold(chart, |chart, system| {
            let values: Vec<f64> = (0..self.sets.len()).map(|set| self.saved(set, *system, &what)).collect();
            chart.with(system.name(), values)
        })
    }

    /// Returns a number of each system for one set.
    fn each(&self, set: usize, what: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        System::ALL.iter().map(|system| self.of(set, *system, &what)).collect()
    }
}

fn names() -> impl Iterator<Item = String> {
    System::ALL.iter().map(|system| system.name().to_string())
}

/// Figures 8 to 12.
pub(super) fn of_made_up(run: &Run) -> Result<Vec<Figure>> {
    let sets = run.percents.iter().map(|percent| Set::made_up(run.bytes as usize, *percent));
    let grid = Grid::measure(run, sets)?;
    let settings = Set::about(run.bytes);
    let [figure_9, figure_10] =
        [("figure-9", LATENCY), ("figure-10", ENERGY)].map(|(id, measure)| at_half(run, &grid, id, measure, &settings));
    let (figure_9, figure_10) = (figure_9?, figure_10?);
    let [figure_11, figure_12] = [("figure-11", LATENCY), ("figure-12", ENERGY)]
        .map(|(id, measure)| by_share(run, &grid, id, measure, &settings));
    let mut figures = vec![space(run, &grid, &settings), figure_9, figure_10, figure_11, figure_12];
    figures.iter_mut().for_each(|figure| figure.left_out.extend(grid.left_out.clone()));
    Ok(figures)
}

/// Figure 8: space, with metadata shown separately.
fn space(run: &Run, grid: &Grid, settings: &str) -> Figure {
    let title = "Figure 8: storage space with 50 % compressible data";
    let mut figure = run.turn.figure("figure-8", title, settings.into());
    let half = grid.at(HALF);
    figure.charts = vec![
        taken(grid, half, title),
        grid.savings(
            Drawn::Table,
            "space saved beside ext4, %",
            "compressible",
            "space saved beside ext4, %",
            Outcome::space_bytes,
        ),
    ];
    for system in &System::ALL[1..] {
        let what = format!("{}: space saved beside ext4", system.name());
        let row = of_paper(*system, what, SPACE_SAVED, grid.saved(half, *system, Outcome::space_bytes), "%");
        figure.rows.push(row.not_comparable(CHOSEN));
    }
    let [paper, ours] = [System::AsInPaper, System::Ours].map(|system| grid.saved(half, system, Outcome::space_bytes));
    let metadata = |outcome: &Outcome| 100.0 * (1.0 - outcome.space[0] as f64 / outcome.space_bytes());
    figure.reading = format!(
        "DeEXT (as in the paper) saves {} % of ext4's space, DeEXT (ours) {} %. Metadata is {} and {} % of their \
         space.",
        number(paper),
        number(ours),
        number(grid.of(half, System::AsInPaper, metadata)),
        number(grid.of(half, System::Ours, metadata)),
    );
    figure
}

/// Makes a row, with the paper's value for both DeEXT systems. The paper gives none for systems that chunk in only one
/// way.
fn of_paper(system: System, what: String, paper: f64, ours: f64, unit: &str) -> Row {
    match system {
        System::AsInPaper | System::Ours => Row::value(what, paper, ours, unit),
        System::Ext4 | System::FixedOnly | System::ContentOnly => Row::own(what, ours, unit),
    }
}

/// Returns a chart of the space of each system for a set, by kind.
fn taken(grid: &Grid, set: usize, title: &str) -> Chart {
    let chart = Chart::new(Drawn::Stacked, title, "", "MiB", names());
    (0..KINDS.len())
        .fold(chart, |chart, kind| chart.with(KINDS[kind], grid.each(set, |outcome| outcome.space[kind] as f64 / MIB)))
}

/// What is measured: writing alone, or writing and reading back.
type Part = (&'static str, fn(&Outcome, fn(&Spent) -> f64) -> f64);
const PARTS: [Part; 2] =
    [("writing", |outcome, of| of(&outcome.write)), ("with reading back", |outcome, of| outcome.both(of))];

/// Figures 9 and 10: the cost of accesses at 50 % compressible data.
fn at_half(run: &Run, grid: &Grid, id: &str, measure: Measure, settings: &str) -> Result<Figure> {
    let title = format!("Figure {}: {} with 50 % compressible data", &id[7..], measure.what);
    let mut figure = run.turn.figure(id, &title, settings.into());
    let half = grid.at(HALF);
    let mut bars = Chart::new(Drawn::Bars, &title, "", measure.unit, names());
    for (name, part) in PARTS {
        bars = bars.with(name, grid.each(half, |outcome| part(outcome, measure.of)));
    }
    figure.charts = vec![bars, traffic(grid, half), cpu(grid, half)];
    for system in &System::ALL[1..] {
        for (name, part) in PARTS {
            let saved = grid.saved(half, *system, |outcome| part(outcome, measure.of));
            let what = format!("{}: {} saved, {name}", system.name(), measure.what);
            if name != PARTS[0].0 || grid.left_out.is_some() {
                figure.rows.push(Row::own(what, saved, "%"));
                continue;
            }
            let row = of_paper(*system, what, measure.at_half, saved, "%");
            if row.paper.is_none() || !run.turn.is_the_papers {
                figure.rows.push(row);
                continue;
            }
            figure.rows.push(match aim(run, grid, half, *system, measure)? {
                Verdict::Aim(aim) => {
                    let row = row.judged_by(&aim);
                    figure.aims.push(aim);
                    row
                }
                Verdict::OutOfReach(because) => row.not_comparable(because),
            });
        }
    }
    if grid.left_out.is_none() && run.turn.is_the_papers && id == "figure-9" {
        figure.aims.push(compared_once(grid, half));
    }
    let saved = |system| number(grid.saved(half, system, |outcome| (measure.of)(&outcome.write)));
    figure.reading = format!(
        "When writing, DeEXT (as in the paper) saves {} % of ext4's {}, DeEXT (ours) {} %.",
        saved(System::AsInPaper),
        measure.what,
        saved(System::Ours)
    );
    Ok(figure)
}

/// Whether a ratio of savings can be reached at all.
enum Verdict {
    Aim(Aim),
    OutOfReach(String),
}

/// Judges the saving of the measure when writing, relative to that of the space: the paper's ratio is an aim if
/// arithmetic allows it.
fn aim(run: &Run, grid: &Grid, half: usize, system: System, measure: Measure) -> Result<Verdict> {
    let Least { of_data, of_compares, ext4, space } = least(run, grid, half, system, measure);
    let ratio = grid.saved(half, system, |outcome| (measure.of)(&outcome.write)) / space;
    let bound = 100.0 * (1.0 - (of_data + of_compares) / ext4) / space;
    check_ratio(&format!("{}, writing: {} saved", system.name(), measure.what), ratio, bound)?;
    let (paper, unit) = (measure.aim, measure.unit);
    if bound < paper {
        return Ok(Verdict::OutOfReach(format!(
            "it compares the bytes of each duplicate, which the paper does not: with that reading and with the data alone, \
             the ratio to the space saved would be {}, and the paper's is {paper}",
            number(bound)
        )));
    }
    let aim =
        format!("{}, writing: {} saved, relative to the space saved: at least {paper}", system.name(), measure.what);
    Ok(Verdict::Aim(Aim::at_least(aim, ratio, paper).with_floor(format!(
        "ext4 takes {} {unit}, and the data alone {}: the ratio would be {}",
        number(ext4),
        number(of_data),
        number(bound)
    ))))
}

/// The least that a system can take of a measure when writing, in its unit.
struct Least {
    /// For storing its data, without any metadata.
    of_data: f64,
    /// For reading each byte that is shared once; 0 if fingerprints are trusted.
    of_compares: f64,
    /// What ext4 takes, and the space that the system saves beside it, percent.
    ext4: f64,
    space: f64,
}

fn least(run: &Run, grid: &Grid, half: usize, system: System, measure: Measure) -> Least {
    let of_bytes = |written: f64, read: f64| (measure.of_bytes)(&run.turn.profile, written, read);
    let data = grid.of(half, system, |outcome| outcome.space[0] as f64);
    let shared = if system == System::Ours { grid.sets[half].1 as f64 - data } else { 0.0 };
    Least {
        of_data: of_bytes(data, 0.0),
        of_compares: of_bytes(0.0, shared),
        ext4: grid.of(half, System::Ext4, |outcome| (measure.of)(&outcome.write)),
        space: grid.saved(half, system, Outcome::space_bytes),
    }
}

/// Refuses a ratio above what data alone would give.
fn check_ratio(what: &str, ratio: f64, bound: f64) -> Result<()> {
    let why = "the data that is stored must be written, and what is compared must be read";
    bounds::at_most(format!("{what}, relative to the space saved"), ratio, bound, "", why)
}

/// Returns our own aim for the reads of a compare.
fn compared_once(grid: &Grid, half: usize) -> Aim {
    let shared = grid.sets[half].1 as f64 - grid.of(half, System::Ours, |outcome| outcome.space[0] as f64);
    let read = grid.of(half, System::Ours, |outcome| outcome.write.bytes_read as f64);
    Aim::at_most("DeEXT (ours), writing: bytes read for each byte that is shared: at most 1.05", read / shared, 1.05)
}

/// Returns a chart of the bytes to and from the device.
fn traffic(grid: &Grid, set: usize) -> Chart {
    let title = "bytes to and from the device, MiB";
    let of = |what: fn(&Outcome) -> u64| grid.each(set, |outcome| what(outcome) as f64 / MIB);
    Chart::new(Drawn::Table, title, "", title, names())
        .with("written", of(|outcome| outcome.write.bytes_written))
        .with("read while writing", of(|outcome| outcome.write.bytes_read))
        .with("read back", of(|outcome| outcome.read.bytes_read))
}

/// Returns a chart of the processor time, which the latency does not include.
fn cpu(grid: &Grid, set: usize) -> Chart {
    let title = "processor time, s";
    Chart::new(Drawn::Table, title, "", title, names())
        .with("writing", grid.each(set, |outcome| outcome.write.cpu_s))
        .with("reading back", grid.each(set, |outcome| outcome.read.cpu_s))
}

/// Figures 11 and 12: savings by the share of compressible data.
fn by_share(run: &Run, grid: &Grid, id: &str, measure: Measure, settings: &str) -> Figure {
    let title = format!("Figure {}: {} saved, by the share of compressible data", &id[7..], measure.what);
    let mut figure = run.turn.figure(id, &title, settings.into());
    let unit = format!("% of ext4's {}", measure.what);
    for (name, part) in PARTS {
        let chart = grid.savings(Drawn::Lines, &format!("{title}: {name}"), "compressible", &unit, |outcome| {
            part(outcome, measure.of)
        });
        let of_paper = Some(System::AsInPaper.name());
        figure.charts.push(match name == PARTS[0].0 {
            true => chart.with_paper(of_paper, "0 %", measure.at_none, measure.at_none).with_paper(
                of_paper,
                HALF,
                measure.at_half,
                measure.at_half,
            ),
            false => chart,
        });
    }
    let space = "space saved beside ext4, %";
    figure.charts.push(grid.savings(Drawn::Table, space, "compressible", space, Outcome::space_bytes));
    let saved = |place, system| grid.saved(grid.at(place), system, |outcome| (measure.of)(&outcome.write));
    for (place, paper) in [("0 %", measure.at_none), (HALF, measure.at_half)] {
        for system in [System::AsInPaper, System::Ours] {
            let what = format!("{}: {} saved, writing, {place} compressible", system.name(), measure.what);
            figure.rows.push(Row::value(what, paper, saved(place, system), "%").not_comparable(CHOSEN));
        }
    }
    let last = grid.x().pop().expect("there are sets");
    figure.reading = format!(
        "When writing, DeEXT (as in the paper) saves {} % of ext4's {} without compressible data, and {} % with \
         {last}, where fixed-only saves {} %.",
        number(saved("0 %", System::AsInPaper)),
        measure.what,
        number(saved(&last, System::AsInPaper)),
        number(saved(&last, System::FixedOnly)),
    );
    figure
}

/// Makes a figure with the same measures for real trees.
pub(super) fn of_trees(run: &Run) -> Result<Vec<Figure>> {
    let most_bytes = if run.turn.smoke { run.bytes } else { 3 * run.bytes };
    let settings = format!("The files of each tree, sorted by name, up to {} MiB per tree.", most_bytes >> 20);
    let mut figure = run.turn.figure("trees", "Real trees", settings);
    let mut sets = Vec::new();
    for root in &run.trees {
        match Tree::read(root, most_bytes) {
            Ok(tree) if !tree.files.is_empty() => {
                sets.push(Set { name: tree.name, files: tree.files, unique_bytes: 0 })
            }
            Ok(_) => figure.left_out.push(format!("{} (it has no files)", root.display())),
            Err(error) => figure.left_out.push(format!("{} ({error})", root.display())),
        }
    }
    let grid = Grid::measure(run, sets.into_iter())?;
    figure.left_out.extend(grid.left_out.clone());
    if grid.sets.is_empty() {
        figure.reading = "No tree could be read.".into();
        return Ok(vec![figure]);
    }
    let unit = "% of ext4's space";
    figure.charts.push(grid.savings(Drawn::Bars, "Real trees: space saved", "", unit, Outcome::space_bytes));
    for measure in [LATENCY, ENERGY] {
        for (name, part) in PARTS {
            let title = format!("{} saved, {name}, %", measure.what);
            figure.charts.push(grid.savings(Drawn::Table, &title, "", &title, |outcome| part(outcome, measure.of)));
        }
    }
    for (set, (name, bytes)) in grid.sets.iter().enumerate() {
        let title = format!("space of {name} ({} MiB), MiB", bytes >> 20);
        figure.charts.push(Chart { kind: Drawn::Table, y_label: title.clone(), ..taken(&grid, set, &title) });
        for system in [System::AsInPaper, System::Ours] {
            let saved = grid.saved(set, system, Outcome::space_bytes);
            figure.rows.push(Row::own(format!("{name}, {}: space saved beside ext4", system.name()), saved, "%"));
        }
    }
    let ours = (0..grid.sets.len()).map(|set| number(grid.saved(set, System::Ours, Outcome::space_bytes)));
    let ours: Vec<String> = ours.collect();
    figure.reading = format!(
        "Of the space that ext4 takes for {}, DeEXT (ours) saves {} %.",
        grid.x().join(" and "),
        ours.join(" and ")
    );
    Ok(vec![figure])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_what_data_alone_gives_is_refused() {
        check_ratio("ours", 0.66, 0.67).unwrap();
        let error = check_ratio("ours", 0.7, 0.67).unwrap_err().to_string();
        assert!(error.contains("ours, relative to the space saved: 0.7 was measured"), "{error}");
    }
}
