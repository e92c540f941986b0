//! Times systems against the baseline.
//!
//! All systems run in turn, pass by pass, on the same files. Each has its own run of the baseline right before it or,
//! every other pass, right after it, **on the same device**. A system's value is the median of its passes, and its
//! drop is the median of the drops of its pairs. So slow drift of a shared machine affects both sides of a pair.
//!
//! The pair shares a device because memory of one device takes up to a third longer to write than that of another,
//! depending on where the host places it, for as long as both exist. Compared with itself on two devices, off once
//! differed by 33 to 38 % with large files. Each pass mounts the device again; all devices get the same mix of the
//! host's memory ([`populate`]).
//!
//! A pass first makes a few files that are not timed. It then makes the timed files while the daemon runs, drains the
//! queue, and reads the savings. It may then overwrite the files. Last, it reads the data back and removes the files.
//! The first pass is a warm-up and is not timed.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::spent::Spent;
use super::Run;
use super::files::{Lane, Size, Think};
use super::volume::{BLOCK, System, Volume, When};
use crate::{Doing, Result, bounds};
use nvfold::{FileSystem, InodeNumber};
use nvfold_bench::device::populate;
use nvfold_bench::samples::{median, middle_half};
use pmem::{Profile, Region};
use std::sync::Barrier;
use std::time::Instant;

/// The workload of the passes.
#[derive(Clone, Copy)]
pub(super) struct Shape<'a> {
    /// The first is the baseline.
    pub systems: &'a [System],
    /// Small files or large ones.
    pub size: Size,
    /// Whether writers have think time.
    pub think: Think,
    /// Threads, each with its own directory and files.
    pub threads: usize,
    /// Whether the files are overwritten.
    pub overwrites: bool,
    /// Timed passes.
    pub repeats: usize,
}

/// The speed of a system, with its drop against the baseline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    /// By cost.
    pub cost: Drop,
    /// By the wall clock.
    pub wall: Drop,
    /// Cost of a file, microseconds, median.
    pub cost_us: f64,
    /// MB/s by the wall clock, median.
    pub rate: f64,
}

impl Speed {
    /// Returns the added cost per file over the baseline, by pairs, microseconds.
    pub(super) fn more_us(&self) -> f64 {
        self.cost_us * self.cost.percent / 100.0
    }

    /// Returns the baseline's cost per file, by pairs, microseconds.
    pub(super) fn base_us(&self) -> f64 {
        self.cost_us - self.more_us()
    }
}

/// How much slower a system is than the baseline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drop {
    /// Percent of the throughput: median of pairs.
    pub percent: f64,
    /// Interquartile range of the pairs, percentage points.
    pub spread: f64,
}

/// The result of one system at one share of duplicates.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// New files.
    pub new: Speed,
    /// Overwritten files.
    pub over: Option<Speed>,
    /// Blocks saved once everything was shared.
    pub saved_blocks: u64,
    /// Blocks that repeat another one.
    pub duplicates: u64,
}

/// Measures all systems at each share of duplicates; returns a cell for each.
pub(super) fn cells(run: &Run, shape: Shape<'_>, percents: &[u64]) -> Result<Vec<Vec<Cell>>> {
    let mut work = Work::new(run, shape);
    let (bytes, files) = work.written();
    let (base, others) = shape.systems.split_first().expect("there is a baseline");
    let device = Volume::device(&run.turn.profile, bytes, files, shape.threads);
    let place = |system: &System| -> Result<Place> {
        let region = device.create()?;
        FileSystem::mkfs(&region, &system.mkfs()).doing("format")?;
        Ok(Place { region, base: base.clone(), system: system.clone() })
    };
    let places = others.iter().map(place).collect::<Result<Vec<Place>>>()?;
    populate(&places.iter().map(|place| &place.region).collect::<Vec<&Region>>());
    let limits = Limits { profile: &run.turn.profile, size: shape.size, is_smoke: run.turn.smoke };
    let cells = percents.iter().map(|percent| {
        run.turn.say(&format!(
            "{}, {percent} % duplicates, {} thread(s){}",
            shape.size.name(),
            shape.threads,
            if shape.think == Think::Never { ", no think time" } else { "" }
        ));
        let cells = at_one_share(&places, &mut work, *percent, shape.repeats)?;
        limits.check(shape.systems, &cells, files)?;
        Ok(cells)
    });
    cells.collect()
}

/// Differences that no cost on a shared machine resolves, percentage points.
const RESOLUTION: f64 = 1.0;

/// What cannot be measured with files of a size on a device.
struct Limits<'a> {
    profile: &'a Profile,
    size: Size,
    /// Passes of a smoke test are too short to compare times.
    is_smoke: bool,
}

impl Limits<'_> {
    /// Refuses cells with more blocks saved than there are duplicates, with files that cost less than the device charges
    /// for the blocks that must be stored, and with a system that does more than off in less time. `files` is the
    /// number of files of a pass.
    fn check(&self, systems: &[System], cells: &[Cell], files: u64) -> Result<()> {
        let itself = systems.iter().position(|system| system.when == When::NeverAgain);
        let blocks = files * (self.size.bytes() / BLOCK) as u64;
        for (system, cell) in systems.iter().zip(cells) {
            let of = |what: &str| format!("{}, {}: {what}", system.name, self.size.name());
            let (saved, duplicates) = (cell.saved_blocks as f64, cell.duplicates as f64);
            bounds::at_most(of("blocks saved"), saved, duplicates, "", "only blocks that repeat another are shared")?;
            let is_inline = !system.is_offline() && matches!(system.when, When::Mode(_));
            let stored = blocks - if is_inline { cell.duplicates } else { 0 };
            let charge_us = bounds::write_charge_ns(self.profile, (stored * BLOCK as u64) as f64 / files as f64) / 1e3;
            let part: [(&str, fn(&Cell) -> Option<Speed>); 2] =
                [("new", |cell| Some(cell.new)), ("written over", |cell| cell.over)];
            for (what, speed_of) in part {
                let Some(speed) = speed_of(cell) else { continue };
                let what = of(&format!("a file {what}"));
                let why = "the device charges the lines of the blocks that are stored";
                bounds::at_least(format!("{what}, cost"), speed.cost_us, charge_us, "us", why)?;
                if system.is_offline() && !self.is_smoke {
                    let itself = itself.and_then(|at| speed_of(&cells[at]));
                    let noise = itself.map_or(0.0, |itself| itself.cost.percent.abs());
                    let least = -(noise + speed.cost.spread + RESOLUTION);
                    let why = "it does all that off does; the noise is off's difference from itself and the spread of \
                               the pairs";
                    bounds::at_least(format!("{what}, drop by cost"), speed.cost.percent, least, "%", why)?;
                }
            }
        }
        Ok(())
    }
}

/// A device, and the two systems that use it in turn.
struct Place {
    region: Region,
    base: System,
    system: System,
}

/// The work of a pass.
struct Work {
    /// The first content, a lane per thread.
    first: Vec<Lane>,
    /// The content that overwrites it.
    second: Vec<Lane>,
    think: Think,
    overwrites: bool,
}

/// The duration of one pass of one system.
#[derive(Clone, Copy)]
struct Took {
    new: Spent,
    over: Spent,
    saved_blocks: u64,
}

impl Work {
    fn new(run: &Run, shape: Shape<'_>) -> Work {
        let files = run.files(shape.size) / shape.threads;
        let lanes = |from: usize| -> Vec<Lane> {
            (0..shape.threads).map(|lane| Lane::new(shape.size, files, 0, (from + lane) as u64)).collect()
        };
        let second = if shape.overwrites { lanes(1 + shape.threads) } else { Vec::new() };
        Work { first: lanes(1), second, think: shape.think, overwrites: shape.overwrites }
    }

    /// Returns the bytes and the number of files that exist at once, without the overwritten ones.
    fn written(&self) -> (u64, u64) {
        self.first.iter().fold((0, 0), |(bytes, files), lane| (bytes + lane.bytes(), files + lane.files()))
    }

    fn refill(&mut self, percent: u64) {
        self.first.iter_mut().chain(&mut self.second).for_each(|lane| lane.refill(percent));
    }

    /// Runs one pass of one system.
    fn pass(&self, system: &System, region: &Region) -> Result<Took> {
        let mounted = Volume::mount(system, region.clone(), self.first.len())?;
        let volume = &mounted;
        let directories = (0..self.first.len()).map(|lane| volume.directory(&format!("lane{lane}")));
        let directories = directories.collect::<Result<Vec<InodeNumber>>>()?;
        self.first[0].warm_up(volume, directories[0])?;
        let think = self.think;
        let new = volume
            .with_daemon(|| timed(&self.first, &directories, |lane, directory| lane.write(volume, directory, think)))?;
        volume.drain()?;
        let saved_blocks = volume.saved_bytes() / BLOCK as u64;
        let mut over = Spent::default();
        let mut last = &self.first;
        if self.overwrites {
            last = &self.second;
            over = volume.with_daemon(|| {
                timed(last, &directories, |lane, directory| lane.overwrite(volume, directory, think))
            })?;
            volume.drain()?;
        }
        for (lane, directory) in last.iter().zip(&directories) {
            lane.verify(volume, *directory)?;
            lane.remove(volume, *directory)?;
        }
        mounted.close()?;
        Ok(Took { new, over, saved_blocks })
    }
}

/// Returns the duration of all lanes. For one lane it is the duration of its requests. For several, the cost is the sum
/// of their costs, and the wall-clock time runs from the first start to the last end, including think time.
fn timed(
    lanes: &[Lane],
    directories: &[InodeNumber],
    work: impl Fn(&Lane, InodeNumber) -> Result<Spent> + Sync,
) -> Result<Spent> {
    if let [lane] = lanes {
        return work(lane, directories[0]);
    }
    let start = Barrier::new(lanes.len());
    // The lanes read the clock themselves, because a waiting thread may wake long after they began.
    let one = |lane: &Lane, directory: InodeNumber| -> Result<(Instant, Spent, Instant)> {
        start.wait();
        let began = Instant::now();
        let spent = work(lane, directory)?;
        Ok((began, spent, Instant::now()))
    };
    let lanes = std::thread::scope(|scope| {
        let one = &one;
        let started = lanes.iter().zip(directories);
        let started: Vec<_> = started.map(|(lane, directory)| scope.spawn(move || one(lane, *directory))).collect();
        let times = started.into_iter().map(|lane| lane.join().expect("a lane does not panic"));
        times.collect::<Result<Vec<(Instant, Spent, Instant)>>>()
    })?;
    let began = lanes.iter().map(|(began, ..)| *began).min().expect("one lane at least");
    let ended = lanes.iter().map(|(.., ended)| *ended).max().expect("one lane at least");
    let spent: Spent = lanes.iter().map(|(_, spent, _)| *spent).sum();
    Ok(Spent { wall_ns: (ended - began).as_nanos() as f64, ..spent })
}

/// Returns a cell of the baseline, and one of each other system.
fn at_one_share(places: &[Place], work: &mut Work, percent: u64, repeats: usize) -> Result<Vec<Cell>> {
    let mut took: Vec<Vec<Paired>> = places.iter().map(|_| Vec::new()).collect();
    for pass in 0..=repeats {
        work.refill(percent);
        for turn in 0..places.len() {
            let at = (turn + pass) % places.len();
            let Place { region, base, system } = &places[at];
            let paired = if pass % 2 == 0 {
                let base = work.pass(base, region)?;
                Paired { of: work.pass(system, region)?, base }
            } else {
                let of = work.pass(system, region)?;
                Paired { of, base: work.pass(base, region)? }
            };
            if pass > 0 {
                took[at].push(paired);
            }
        }
    }
    let duplicates = work.first.iter().map(Lane::duplicates).sum();
    let written = work.written();
    let cell = |of: &Vec<Paired>| Cell {
        new: speed(written, of, |took| took.new),
        over: work.overwrites.then(|| speed(written, of, |took| took.over)),
        saved_blocks: of.last().map_or(0, |last| last.of.saved_blocks),
        duplicates,
    };
    let base = took.iter().flatten().map(|paired| Paired { of: paired.base, base: paired.base }).collect();
    Ok(std::iter::once(&base).chain(&took).map(cell).collect())
}

/// A pass, and the paired pass of the baseline.
#[derive(Clone, Copy)]
struct Paired {
    of: Took,
    base: Took,
}

fn speed((bytes, files): (u64, u64), pairs: &[Paired], what: impl Fn(&Took) -> Spent) -> Speed {
    let of = |clock: fn(Spent) -> f64| median(&pairs.iter().map(|pair| clock(what(&pair.of))).collect::<Vec<f64>>());
    let (cost, wall): (fn(Spent) -> f64, fn(Spent) -> f64) = (|spent| spent.cost_ns, |spent| spent.wall_ns);
    let drop = |clock: fn(Spent) -> f64| {
        let of_pair = |pair: &Paired| 100.0 * (1.0 - clock(what(&pair.base)) / clock(what(&pair.of)));
        let drops: Vec<f64> = pairs.iter().map(of_pair).collect();
        Drop { percent: median(&drops), spread: middle_half(&drops) }
    };
    Speed {
        cost: drop(cost),
        wall: drop(wall),
        cost_us: of(cost) / 1e3 / files as f64,
        rate: bytes as f64 * 1e3 / of(wall),
    }
}

/// The results of all systems at all places of an x axis.
pub(super) struct Grid {
    /// Label of the places.
    pub x_label: &'static str,
    /// Their names.
    pub x: Vec<String>,
    /// Cells by place, then by system.
    pub cells: Vec<Vec<Cell>>,
    /// In the order of the cells.
    pub systems: Vec<System>,
}

impl Grid {
    /// Returns one number of a system at each place.
    pub(super) fn of(&self, system: &System, what: impl Fn(&Cell) -> f64) -> Vec<f64> {
        let place = self.systems.iter().position(|known| known.name == system.name).expect("a system that is measured");
        self.cells.iter().map(|cells| what(&cells[place])).collect()
    }

    /// Returns a chart of one number of all systems, or of all except the baseline.
    pub(super) fn chart(&self, kind: Drawn, title: &str, unit: &str, base: bool, what: impl Fn(&Cell) -> f64) -> Chart {
        let chart = Chart::new(kind, title, self.x_label, unit, self.x.iter().cloned());
        let shown = self.systems.iter().filter(|system| base || system.when != When::Never);
        shown.fold(chart, |chart, system| chart.with(&system.name, self.of(system, &what)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::volume::Hash;
    use super::*;
    use nvfold::DedupMode;

    /// Returns off, off again with a difference of 0.5 %, and a system with this drop; 100 large files, half of whose
    /// blocks are duplicates.
    fn cells(mode: DedupMode, percent: f64, cost_us: f64, saved_blocks: u64) -> (Vec<System>, Vec<Cell>) {
        let cell = |percent: f64, cost_us: f64, saved_blocks: u64| {
            let drop = Drop { percent, spread: 0.5 };
            let new = Speed { cost: drop, wall: drop, cost_us, rate: 1.0 };
            Cell { new, over: Some(new), saved_blocks, duplicates: 1600 }
        };
        let systems = vec![System::off(), System::off_again(), System::denova(mode, Hash::Ours)];
        (systems, vec![cell(0.0, 50.0, 0), cell(0.5, 50.0, 0), cell(percent, cost_us, saved_blocks)])
    }

    fn refusal((systems, cells): (Vec<System>, Vec<Cell>)) -> Option<String> {
        let profile = "optane".parse().unwrap();
        let limits = Limits { profile: &profile, size: Size::Large, is_smoke: false };
        limits.check(&systems, &cells, 100).err().map(|error| error.to_string())
    }

    #[test]
    fn a_saved_share_above_the_share_of_duplicates_is_refused() {
        assert_eq!(refusal(cells(DedupMode::Immediate, 1.0, 50.0, 1600)), None);
        let error = refusal(cells(DedupMode::Immediate, 1.0, 50.0, 1610)).unwrap();
        assert!(error.contains("blocks saved: 1610 was measured") && error.contains("at most 1600"), "{error}");
    }

    #[test]
    fn a_gain_beyond_the_noise_by_a_system_that_does_more_is_refused() {
        assert_eq!(refusal(cells(DedupMode::Immediate, -1.9, 50.0, 1600)), None, "within the noise");
        let error = refusal(cells(DedupMode::Immediate, -2.1, 50.0, 1600)).unwrap();
        assert!(error.contains("a file new, drop by cost: -2.1 %"), "{error}");
        assert_eq!(refusal(cells(DedupMode::Inline, -20.0, 40.0, 1600)), None, "it writes less than off");
    }

    #[test]
    fn a_file_that_costs_less_than_its_lines_on_the_device_is_refused() {
        // 2,048 lines of 19 ns are 38.9 us; inline stores half of them.
        let error = refusal(cells(DedupMode::Immediate, 1.0, 38.0, 1600)).unwrap();
        assert!(error.contains("a file new, cost: 38 us"), "{error}");
        assert_eq!(refusal(cells(DedupMode::Inline, -20.0, 20.0, 1600)), None);
        assert!(refusal(cells(DedupMode::Inline, -20.0, 19.0, 1600)).is_some());
    }
}
