//! Figure 12: reading a file that shares all blocks with another file, while another thread reads or overwrites that
//! other file.
//!
//! With policy off, both files have their own blocks. A pass reads file B several times; the other thread runs until
//! B has been read. After a pass with a writer, file A gets B's content again and the queue is drained.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Figure, Row};
use super::super::number::number;
use super::super::spent::Spent;
use super::Run;
use super::volume::{BLOCK, Hash, System, Volume};
use super::write::claim_drop;
use crate::{Doing, LabError, Result, bounds};
use nvfold::{DedupMode, File, FileSystem};
use nvfold_bench::data::Random;
use nvfold_bench::device::populate;
use nvfold_bench::samples::median;
use pmem::{LINE_BYTES, Profile, Region};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of the paper's files.
const FILE_BYTES: u64 = 4 << 30;
const REQUEST_BYTES: usize = 128 << 10;
const ROUNDS: u64 = 4;

/// The work of the other thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Reads,
    Overwrites,
}

const BESIDE: [(Beside, &str); 2] = [(Beside::Reads, "reads alone"), (Beside::Overwrites, "reads beside a writer")];

/// Two files with the same content.
struct Pair {
    volume: Volume,
    a: File,
    b: File,
}

/// Measures, and makes the figures.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let file_bytes = run.scaled(FILE_BYTES).next_multiple_of(REQUEST_BYTES as u64).max(1 << 20);
    let mut systems = vec![System::off(), System::off_again()];
    systems.extend(Hash::ALL.map(|hash| System::denova(DedupMode::Immediate, hash)));
    let title = "Figure 12: reading a file whose blocks are shared";
    let settings = format!(
        "Files A and B of {} MiB with the same content; a pass reads B {ROUNDS} times, {} KiB a request, while another \
         thread reads A or overwrites it with other data. {} passes after one warm-up pass; differences are medians \
         over pairs of passes.",
        file_bytes >> 20,
        REQUEST_BYTES >> 10,
        run.fewer
    );
    let content = content(file_bytes, 1);
    let device = Volume::device(&run.turn.profile, 2 * file_bytes, 2, 2);
    let format = |system: &System| {
        let region = device.create()?;
        FileSystem::mkfs(&region, &system.mkfs()).doing("format")?;
        Ok(region)
    };
    let regions = systems.iter().map(format).collect::<Result<Vec<Region>>>()?;
    populate(&regions.iter().collect::<Vec<&Region>>());
    let pairs = systems.iter().zip(regions).map(|(system, region)| Pair::new(system, region, &content));
    let pairs = pairs.collect::<Result<Vec<Pair>>>()?;
    let mut figure = run.turn.figure("figure-12", title, settings);
    let x = || BESIDE.map(|(_, name)| name.to_string());
    let mut chart = Chart::new(Drawn::Table, title, "", "MB/s", x());
    let mut rates = vec![Vec::new(); systems.len()];
    let mut drops = vec![Vec::new(); systems.len()];
    let mut wall_drops = drops.clone();
    let (mut worst, mut noise): (f64, f64) = (f64::NEG_INFINITY, 0.0);
    for (beside, name) in BESIDE {
        run.turn.say(name);
        let passes = passes(run, &pairs, beside, &content)?;
        for (system, passes) in systems.iter().zip(&passes) {
            let cost_ns = median(&passes.iter().map(|spent| spent.cost_ns).collect::<Vec<f64>>());
            check(&format!("{}, {name}", system.name), &run.turn.profile, ROUNDS * file_bytes, cost_ns)?;
        }
        let drop = |at: usize, clock: fn(&Spent) -> f64| {
            let pairs = passes[at].iter().zip(&passes[0]);
            median(&pairs.map(|(of, base)| 100.0 * (1.0 - clock(base) / clock(of))).collect::<Vec<f64>>())
        };
        for (at, system) in systems.iter().enumerate() {
            let wall_ns: Vec<f64> = passes[at].iter().map(|spent| spent.wall_ns).collect();
            rates[at].push((ROUNDS * file_bytes) as f64 * 1e3 / median(&wall_ns));
            let (by_cost, by_wall) = (drop(at, |spent| spent.cost_ns), drop(at, |spent| spent.wall_ns));
            drops[at].push(by_cost);
            wall_drops[at].push(by_wall);
            match at {
                0 => {}
                1 => {
                    noise = noise.max(by_cost.abs());
                    figure.rows.push(Row::own(format!("off to itself: {name}, difference"), by_cost.abs(), "%"));
                }
                _ => {
                    worst = worst.max(by_cost);
                    let row = Row::range(format!("{}: drop of {name}", system.name), 0.0, 1.0, by_cost, "%");
                    claim_drop(
                        &mut figure,
                        row,
                        noise,
                        "a read of a shared block looks up nothing more than of a private one",
                    );
                }
            }
        }
    }
    for (system, rates) in systems.iter().zip(rates) {
        chart = chart.with(&system.name, rates);
    }
    let add = |chart: Chart, (system, drops): (&System, &Vec<f64>)| chart.with(&system.name, drops.iter().copied());
    let drawn = Chart::new(Drawn::Bars, &format!("{title}: drop"), "", "drop by cost, % of off", x());
    let drawn = systems.iter().zip(&drops).skip(1).fold(drawn, add).with_paper_everywhere(None, 0.0, 1.0);
    let by_wall = Chart::new(Drawn::Table, "drop by the wall clock, %", "", "drop by the wall clock, %", x());
    let by_wall = systems.iter().zip(&wall_drops).skip(1).fold(by_wall, add);
    figure.charts = vec![drawn, by_wall, chart];
    let best = drops.iter().skip(2).flatten().copied().fold(f64::INFINITY, f64::min);
    figure.reading = reading(worst, best, noise);
    pairs.into_iter().try_for_each(|pair| {
        let Pair { volume, a, b } = pair;
        drop((a, b));
        volume.close()
    })?;
    Ok(vec![figure])
}

/// Refuses a time to read these bytes that is shorter than what the device charges for their lines. The cache that the
/// profile models holds less than a file, so each line is fetched in each round.
fn check(what: &str, profile: &Profile, bytes: u64, cost_ns: f64) -> Result<()> {
    let charge_ns = (bytes / LINE_BYTES) as f64 * profile.read_line_ns;
    let why = "the device charges each line that is fetched";
    bounds::at_least(format!("{what}, cost of all rounds"), cost_ns / 1e3, charge_ns / 1e3, "us", why)
}

/// Describes the largest and the smallest drop, percent, where they exceed the difference of off from itself. A negative
/// drop is a gain.
fn reading(worst: f64, best: f64, noise: f64) -> String {
    let slower = match worst > noise {
        true => {
            format!("By cost, reading shared blocks is up to {} % slower than reading private blocks", number(worst))
        }
        false => format!(
            "By cost, reading shared blocks is nowhere slower than reading private blocks, by more than the {} % by which \
             off differs from itself",
            number(noise)
        ),
    };
    match best < -noise.max(1.0) {
        false => slower + ".",
        true => format!(
            "{slower}. It is up to {} % faster: two readers of the same blocks need half the room in the processor's \
             cache.",
            number(-best)
        ),
    }
}

fn content(bytes: u64, seed: u64) -> Vec<u8> {
    let mut content = vec![0; bytes as usize];
    let mut random = Random(seed << 40);
    content.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next_u64().to_le_bytes());
    content
}

impl Pair {
    fn new(system: &System, region: Region, content: &[u8]) -> Result<Pair> {
        let volume = Volume::mount(system, region, 2)?;
        let (a, b) = (volume.create("a")?, volume.create("b")?);
        let pair = Pair { volume, a, b };
        pair.write(&pair.b, content)?;
        pair.restore(content)?;
        Ok(pair)
    }

    fn write(&self, file: &File, content: &[u8]) -> Result<()> {
        let requests = (0..).step_by(REQUEST_BYTES).zip(content.chunks(REQUEST_BYTES));
        requests.into_iter().try_for_each(|(at, bytes)| file.write_at(at, bytes).doing("write a file"))
    }

    /// Gives A the content of B, and shares it.
    fn restore(&self, content: &[u8]) -> Result<()> {
        self.write(&self.a, content)?;
        self.volume.drain()?;
        let shared = self.volume.saved_bytes();
        let expected = if self.volume.system.is_offline() { content.len() as u64 } else { 0 };
        match shared == expected {
            true => Ok(()),
            false => Err(LabError::Unshared { system: self.volume.system.name.clone(), shared, expected }),
        }
    }

    /// Reads a file from its start to its end.
    fn read(&self, file: &File, bytes: u64, buffer: &mut [u8]) -> Result<()> {
        for at in (0..bytes).step_by(buffer.len()) {
            file.read_at(at, buffer).doing("read a file")?;
            black_box(&buffer[0]);
        }
        Ok(())
    }

    /// Returns the duration of reading B; the other thread starts before that and ends after it.
    fn pass(&self, beside: Beside, content: &[u8], other: &[u8]) -> Result<Spent> {
        let bytes = content.len() as u64;
        let (over, start) = (AtomicBool::new(false), Barrier::new(2));
        let neighbour = || -> Result<()> {
            let mut buffer = vec![0; REQUEST_BYTES];
            start.wait();
            while !over.load(Ordering::Relaxed) {
                match beside {
                    Beside::Reads => self.read(&self.a, bytes, &mut buffer)?,
                    Beside::Overwrites => self.write(&self.a, other)?,
                }
            }
            Ok(())
        };
        let took = self.volume.with_daemon(|| {
            std::thread::scope(|scope| {
                let neighbour = scope.spawn(neighbour);
                let mut buffer = vec![0; REQUEST_BYTES];
                start.wait();
                let done = Spent::on(|| (0..ROUNDS).try_for_each(|_| self.read(&self.b, bytes, &mut buffer)));
                over.store(true, Ordering::Relaxed);
                neighbour.join().expect("the other thread does not panic")?;
                done.map(|((), spent)| spent)
            })
        })?;
        let mut buffer = vec![0; BLOCK];
        for at in (0..bytes).step_by(64 * BLOCK) {
            self.b.read_at(at, &mut buffer).doing("read back")?;
            if buffer != content[at as usize..at as usize + BLOCK] {
                return Err(LabError::wrong(self.volume.system.name.clone()));
            }
        }
        if beside == Beside::Overwrites {
            self.restore(content)?;
        }
        Ok(took)
    }
}

/// Returns the duration of every pass of every system.
fn passes(run: &Run, pairs: &[Pair], beside: Beside, content: &[u8]) -> Result<Vec<Vec<Spent>>> {
    let mut passes = vec![Vec::new(); pairs.len()];
    for pass in 0..=run.fewer {
        let other = self::content(content.len() as u64, 2 + pass as u64);
        for turn in 0..pairs.len() {
            let at = (turn + pass) % pairs.len();
            let took = pairs[at].pass(beside, content, &other)?;
            if pass > 0 {
                passes[at].push(took);
            }
        }
    }
    Ok(passes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_above_the_speed_of_the_device_is_refused() {
        let optane = "optane".parse().unwrap();
        // A MiB has 16,384 lines of 17 ns.
        check("off", &optane, 1 << 20, 280_000.0).unwrap();
        let error = check("off", &optane, 1 << 20, 270_000.0).unwrap_err().to_string();
        assert!(error.contains("off, cost of all rounds: 270 us"), "{error}");
        check("off", &Profile::NATIVE, 1 << 20, 1.0).unwrap();
    }

    #[test]
    fn the_caption_of_reads_claims_no_difference_within_the_noise() {
        assert!(reading(0.05, -0.3, 0.55).contains("nowhere slower"));
        let faster = reading(0.05, -25.8, 1.1);
        assert!(faster.contains("nowhere slower") && faster.contains("25.8 % faster"), "{faster}");
        assert!(reading(2.0, -0.3, 0.55).contains("up to 2.00 % slower"));
    }
}
