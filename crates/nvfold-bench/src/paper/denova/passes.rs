//! Timing systems against the baseline: all of them in turn, pass by pass, on the same files, each with a baseline of
//! its own run right before it or, every other pass, right behind it. A system's figure is the median of its passes, and
//! its drop the median of the passes' own: so what moves slowly on a shared machine moves both. The baselines are many
//! so that each lies as long untouched as what it is held against: a device that was written a moment ago is faster, for
//! its page tables are in the cache. One pass before all is not timed.
//!
//! A pass makes the files with the daemon at work, lets everything be shared, and asks what that saved. Then it may
//! write the files over with others. In the end what is stored is read back and the files are removed.

use super::super::figure::{Chart, Kind as Drawn};
use super::Run;
use super::files::{Lane, Size, Think};
use super::volume::{BLOCK, System, Volume, When};
use crate::Result;
use crate::throughput::median;
use nvfold::InodeNumber;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// What is written, and how.
#[derive(Clone, Copy)]
pub struct Shape<'a> {
    /// The first is the baseline.
    pub systems: &'a [System],
    /// Small files or large ones.
    pub size: Size,
    /// Whether writers think.
    pub think: Think,
    /// Threads, each with a directory and files of its own.
    pub threads: usize,
    /// Whether the files are written over.
    pub overwrites: bool,
    /// Timed passes.
    pub repeats: usize,
}

/// How fast something was.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// MB/s, median.
    pub rate: f64,
    /// To the baseline, percent less: median of pairs.
    pub drop: f64,
    /// The middle half of the pairs lies within so many points of percent.
    pub spread: f64,
}

/// What one system did at one share of duplicates.
#[derive(Clone, Debug)]
pub struct Cell {
    /// New files.
    pub new: Speed,
    /// Files written over.
    pub over: Option<Speed>,
    /// Blocks saved once everything was shared.
    pub saved_blocks: u64,
    /// Blocks that repeat another.
    pub duplicates: u64,
}

/// Measures all systems at a share of duplicates; a cell each.
pub fn cells(run: &Run, shape: Shape<'_>, percents: &[u64]) -> Result<Vec<Vec<Cell>>> {
    let mut pair = Pair::new(run, shape);
    let (bytes, files) = pair.written();
    let place = |system: &System| -> Result<Place> {
        let volume = Volume::new(system, &run.turn.profile, bytes, files, shape.threads)?;
        let directories = (0..shape.threads).map(|lane| volume.directory(&format!("lane{lane}")));
        let directories = directories.collect::<Result<Vec<InodeNumber>>>()?;
        Ok(Place { volume, directories })
    };
    let (base, others) = shape.systems.split_first().expect("there is a baseline");
    let places = others.iter().map(|system| Ok([place(base)?, place(system)?]));
    let places = places.collect::<Result<Vec<[Place; 2]>>>()?;
    let cells = percents.iter().map(|percent| {
        run.turn.say(&format!(
            "{}, {percent} % duplicates, {} thread(s){}",
            shape.size.name(),
            shape.threads,
            if shape.think == Think::Never { ", no think time" } else { "" }
        ));
        at_one_share(&places, &mut pair, *percent, shape.repeats)
    });
    let cells = cells.collect::<Result<Vec<_>>>()?;
    places.into_iter().flatten().try_for_each(|place| place.volume.close())?;
    Ok(cells)
}

/// A system, and where each thread's files are.
struct Place {
    volume: Volume,
    directories: Vec<InodeNumber>,
}

/// What is written first, and what it is written over with.
struct Pair {
    first: Vec<Lane>,
    second: Vec<Lane>,
    think: Think,
    overwrites: bool,
}

/// What one pass of one system took, seconds.
#[derive(Clone, Copy)]
struct Took {
    new: f64,
    over: f64,
    saved_blocks: u64,
}

impl Pair {
    fn new(run: &Run, shape: Shape<'_>) -> Pair {
        let files = run.files(shape.size) / shape.threads;
        let lanes = |from: usize| -> Vec<Lane> {
            (0..shape.threads).map(|lane| Lane::new(shape.size, files, 0, (from + lane) as u64)).collect()
        };
        let second = if shape.overwrites { lanes(1 + shape.threads) } else { Vec::new() };
        Pair { first: lanes(1), second, think: shape.think, overwrites: shape.overwrites }
    }

    /// Bytes and files that are there at once, the overwritten ones aside.
    fn written(&self) -> (u64, u64) {
        self.first.iter().fold((0, 0), |(bytes, files), lane| (bytes + lane.bytes(), files + lane.files()))
    }

    fn refill(&mut self, percent: u64) {
        self.first.iter_mut().chain(&mut self.second).for_each(|lane| lane.refill(percent));
    }

    /// One pass of one system.
    fn pass(&self, place: &Place) -> Result<Took> {
        let volume = &place.volume;
        let new = volume.with_daemon(|| {
            timed(place, &self.first, |lane, volume, directory| lane.write(volume, directory, self.think))
        })?;
        volume.drain()?;
        let saved_blocks = volume.saved_bytes() / BLOCK as u64;
        let mut over = 0.0;
        let mut last = &self.first;
        if self.overwrites {
            last = &self.second;
            over = volume.with_daemon(|| {
                timed(place, last, |lane, volume, directory| lane.overwrite(volume, directory, self.think))
            })?;
            volume.drain()?;
        }
        for (lane, directory) in last.iter().zip(&place.directories) {
            lane.verify(volume, *directory)?;
            lane.remove(volume, *directory)?;
        }
        Ok(Took { new, over, saved_blocks })
    }
}

/// Seconds that lanes take: of one what its requests took, of several from the first start to the last end, think time
/// and all.
fn timed(
    place: &Place,
    lanes: &[Lane],
    work: impl Fn(&Lane, &Volume, InodeNumber) -> Result<Duration> + Sync,
) -> Result<f64> {
    if let [lane] = lanes {
        return Ok(work(lane, &place.volume, place.directories[0])?.as_secs_f64());
    }
    let start = Barrier::new(lanes.len());
    // The lanes read the clock themselves: who waits for them may be woken long after they began.
    let one = |lane: &Lane, directory: InodeNumber| -> Result<(Instant, Instant)> {
        start.wait();
        let began = Instant::now();
        let _ = work(lane, &place.volume, directory)?;
        Ok((began, Instant::now()))
    };
    let times = std::thread::scope(|scope| {
        let one = &one;
        let started = lanes.iter().zip(&place.directories);
        let started: Vec<_> = started.map(|(lane, directory)| scope.spawn(move || one(lane, *directory))).collect();
        let times = started.into_iter().map(|lane| lane.join().expect("a lane does not panic"));
        times.collect::<Result<Vec<(Instant, Instant)>>>()
    })?;
    let began = times.iter().map(|(began, _)| *began).min().expect("one lane at least");
    let ended = times.iter().map(|(_, ended)| *ended).max().expect("one lane at least");
    Ok((ended - began).as_secs_f64())
}

/// A cell of the baseline, and one of each other system: `places` has both for each.
fn at_one_share(places: &[[Place; 2]], pair: &mut Pair, percent: u64, repeats: usize) -> Result<Vec<Cell>> {
    let mut took: Vec<Vec<Paired>> = places.iter().map(|_| Vec::new()).collect();
    for pass in 0..=repeats {
        pair.refill(percent);
        for turn in 0..places.len() {
            let at = (turn + pass) % places.len();
            let [base, of] = &places[at];
            let paired = if pass % 2 == 0 {
                let base = pair.pass(base)?;
                Paired { of: pair.pass(of)?, base }
            } else {
                let of = pair.pass(of)?;
                Paired { of, base: pair.pass(base)? }
            };
            if pass > 0 {
                took[at].push(paired);
            }
        }
    }
    let duplicates = pair.first.iter().map(Lane::duplicates).sum();
    let bytes = pair.written().0 as f64;
    let cell = |of: &Vec<Paired>| Cell {
        new: speed(bytes, of, |took| took.new),
        over: pair.overwrites.then(|| speed(bytes, of, |took| took.over)),
        saved_blocks: of.last().map_or(0, |last| last.of.saved_blocks),
        duplicates,
    };
    let base = took.iter().flatten().map(|paired| Paired { of: paired.base, base: paired.base }).collect();
    Ok(std::iter::once(&base).chain(&took).map(cell).collect())
}

/// A pass, and the baseline's beside it.
#[derive(Clone, Copy)]
struct Paired {
    of: Took,
    base: Took,
}

fn speed(bytes: f64, pairs: &[Paired], what: impl Fn(&Took) -> f64) -> Speed {
    let seconds: Vec<f64> = pairs.iter().map(|pair| what(&pair.of)).collect();
    let drop = |pair: &Paired| 100.0 * (1.0 - what(&pair.base) / what(&pair.of));
    let mut drops: Vec<f64> = pairs.iter().map(drop).collect();
    drops.sort_by(f64::total_cmp);
    let quarter = drops.len() / 4;
    let spread = drops[drops.len() - 1 - quarter] - drops[quarter];
    Speed { rate: bytes / 1e6 / median(&seconds), drop: median(&drops), spread }
}

/// All systems at all places of an x axis.
pub struct Grid {
    /// What the places are.
    pub x_label: &'static str,
    /// Their names.
    pub x: Vec<String>,
    /// By place, then by system.
    pub cells: Vec<Vec<Cell>>,
    /// In the order of the cells.
    pub systems: Vec<System>,
}

impl Grid {
    /// One number of a system at each place.
    pub fn of(&self, system: &System, what: impl Fn(&Cell) -> f64) -> Vec<f64> {
        let place = self.systems.iter().position(|known| known.name == system.name).expect("a system that is measured");
        self.cells.iter().map(|cells| what(&cells[place])).collect()
    }

    /// A chart of one number of all systems, or of all but the baseline.
    pub fn chart(&self, kind: Drawn, title: &str, unit: &str, base: bool, what: impl Fn(&Cell) -> f64) -> Chart {
        let chart = Chart::new(kind, title, self.x_label, unit, self.x.iter().cloned());
        let shown = self.systems.iter().filter(|system| base || system.when != When::Never);
        shown.fold(chart, |chart, system| chart.with(&system.name, self.of(system, &what)))
    }
}
