//! `bench write` and `bench read`: every target runs in turn, pass by pass, so that drift affects all equally.

use crate::data::fill;
use crate::lanes::{self, Access, Lane, Target};
use crate::mounts::Mounts;
use crate::report::{Report, Row};
use crate::samples::median;
use crate::{BenchError, Options, Result};
use nvfold::Policy;
use pmem::FlushMode;
use std::sync::Barrier;
use std::time::Instant;

const BLOCKS: [usize; 2] = [4 << 10, 128 << 10];
const PERCENTS: [u64; 4] = [0, 25, 50, 75];
const PAGE: usize = 4096;

/// The direction of the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To the target.
    Write,
    /// From the target.
    Read,
}

/// A buffer whose start is a multiple of the page size, as O_DIRECT requires.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Aligned {
        let bytes = vec![0; length + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        Aligned { bytes, start, length }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// Runs the benchmark of one direction.
pub(crate) fn run(options: &Options, direction: Direction) -> Result<Report> {
    let title = if direction == Direction::Write { "write" } else { "read" };
    let mut report = Report::new(title, "ratio to the raw limit");
    for threads in [1, 2] {
        let bytes_a_lane = (options.mebibytes << 20) / threads;
        let mounts = Mounts::set_up(options, 3 * (options.mebibytes << 20))?;
        report.leave_out(&mounts.left_out);
        for block in BLOCKS {
            let targets = targets(&mounts, direction, threads, bytes_a_lane)?;
            measure(options, direction, &targets, block, bytes_a_lane as usize, &mut report)?;
        }
    }
    Ok(report)
}

fn targets(mounts: &Mounts, direction: Direction, threads: u64, bytes_a_lane: u64) -> Result<Vec<Target>> {
    let embedded = |policy, percent, flush| lanes::embedded(policy, percent, flush, threads, bytes_a_lane);
    let mut targets = vec![lanes::raw(threads, bytes_a_lane)?, embedded(Policy::Off, 0, FlushMode::Auto)?];
    for percent in PERCENTS {
        targets.push(embedded(Policy::Inline, percent, FlushMode::Auto)?);
    }
    if direction == Direction::Write {
        targets.push(embedded(Policy::Off, 0, FlushMode::Always)?);
        targets.push(embedded(Policy::Inline, 0, FlushMode::Always)?);
    }
    targets.push(lanes::files("tmpfs", &mounts.tmpfs, Access::Plain, threads)?);
    for mounted in &mounts.mounted {
        targets.push(lanes::files(&mounted.name, &mounted.place, Access::Synced, threads)?);
        if mounted.place.fs_type.is_fuse() {
            targets.push(lanes::files(&mounted.name, &mounted.place, Access::Direct, threads)?);
        }
    }
    Ok(targets)
}

/// Times all targets `repeats` times and adds their rows.
fn measure(
    options: &Options,
    direction: Direction,
    targets: &[Target],
    block: usize,
    bytes_a_lane: usize,
    report: &mut Report,
) -> Result<()> {
    let threads = targets[0].lanes.len();
    let mut buffer = Aligned::new(bytes_a_lane * threads);
    let mut seconds: Vec<Vec<f64>> = vec![Vec::new(); targets.len()];
    // Passes 0 and 1 are not timed: in them every target gets its memory, for the old and the new version.
    for pass in 0..options.repeats as u64 + 2 {
        for percent in PERCENTS {
            fill(buffer.get_mut(), percent, (pass * 100 + percent) << 32 | block as u64);
            for (at, target) in targets.iter().enumerate().filter(|(_, target)| target.percent == percent) {
                let took = one_pass(target, buffer.get(), block, bytes_a_lane, direction)?;
                if pass >= 2 {
                    seconds[at].push(took);
                }
            }
        }
    }
    let bytes = (bytes_a_lane * threads) as f64;
    let raw = median(&seconds[0]);
    for (target, seconds) in targets.iter().zip(&seconds) {
        if direction == Direction::Write && bytes >= JUDGED_FROM_BYTES {
            check(&target.name, target.percent, raw / median(seconds))?;
        }
        report.rows.push(Row::new(&target.name, block as u64, threads as u64, target.percent, bytes, seconds, raw));
    }
    Ok(())
}

/// On a shared machine, ratios of one run move by a quarter, and those of short passes by more. Above this it is no noise.
const NOISE: f64 = 1.5;
const JUDGED_FROM_BYTES: f64 = (64u64 << 20) as f64;

/// Refuses a write that is faster than a copy of the same bytes to the same memory: `ratio` is to that limit. Duplicates
/// and mounts need not store each byte before the clock stops.
fn check(name: &str, percent: u64, ratio: f64) -> Result<()> {
    let stores_all = name.starts_with("embedded") && percent == 0;
    match stores_all && ratio > NOISE {
        true => {
            Err(BenchError::Impossible(format!("{name} runs at {ratio:.2} of the raw limit, which it cannot exceed")))
        }
        false => Ok(()),
    }
}

/// Returns the seconds of one pass over the buffer. Before and after it every lane proves its target; written data is
/// compared afterwards.
fn one_pass(target: &Target, data: &[u8], block: usize, bytes_a_lane: usize, direction: Direction) -> Result<f64> {
    let parts: Vec<&[u8]> = data.chunks(bytes_a_lane).collect();
    let write = |lane: &dyn Lane, part: &[u8]| -> Result<()> {
        for (at, piece) in part.chunks(block).enumerate() {
            lane.write((at * block) as u64, piece)?;
        }
        lane.finish()
    };
    let read = |lane: &dyn Lane, part: &[u8]| -> Result<()> {
        let mut buffer = Aligned::new(block);
        (0..part.len() / block).try_for_each(|at| lane.read((at * block) as u64, buffer.get_mut()))
    };
    let prove = || target.lanes.iter().try_for_each(|lane| lane.prove());
    prove()?;
    let seconds = match direction {
        Direction::Write => timed(target, &parts, write)?,
        Direction::Read => {
            timed(target, &parts, write)?;
            timed(target, &parts, read)?
        }
    };
    for (lane, part) in target.lanes.iter().zip(&parts) {
        if !lanes::holds(&**lane, part, block)? {
            return Err(BenchError::Wrong(target.name.clone()));
        }
    }
    prove()?;
    Ok(seconds)
}

/// Runs `work` on every lane at once; returns the seconds from the first start to the last end. The lanes read the
/// clock themselves: with as many lanes as processors, a waiting thread may wake long after they began.
fn timed(target: &Target, parts: &[&[u8]], work: impl Fn(&dyn Lane, &[u8]) -> Result<()> + Sync) -> Result<f64> {
    let start = Barrier::new(parts.len());
    let run = |lane: &dyn Lane, part: &[u8]| -> Result<(Instant, Instant)> {
        start.wait();
        let began = Instant::now();
        work(lane, part)?;
        Ok((began, Instant::now()))
    };
    std::thread::scope(|scope| {
        let run = &run;
        let lanes = target.lanes.iter().zip(parts);
        let workers: Vec<_> = lanes.map(|(lane, part)| scope.spawn(move || run(&**lane, part))).collect();
        let ends = workers.into_iter().map(|worker| worker.join().expect("a lane does not panic"));
        let ends: Vec<(Instant, Instant)> = ends.collect::<Result<_>>()?;
        let began = ends.iter().map(|(began, _)| *began).min().expect("one lane at least");
        let ended = ends.iter().map(|(_, ended)| *ended).max().expect("one lane at least");
        Ok((ended - began).as_secs_f64())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_above_the_raw_limit_is_refused() {
        check("embedded off", 0, 1.25).unwrap();
        check("embedded inline 75 %", 75, 1.6).unwrap();
        check("mounted nvfold off", 0, 1.6).unwrap();
        let error = check("embedded off", 0, 1.6).unwrap_err().to_string();
        assert!(error.contains("embedded off runs at 1.60 of the raw limit"), "{error}");
    }
}
