//! Times all systems at one share of duplicates. They take turns, pass by pass, on the same requests. The file is laid
//! out and one pass is run before the clock starts, so every system has allocated its memory and chosen its method.

use super::super::spent::Spent;
use super::super::system::{Mounted, Setup, System};
use super::super::workload::{BLOCK, Batch, Draw, Workload};
use super::Run;
use crate::{Result, bounds};
use nvfold::NvDedupStats;
use nvfold_bench::samples::{median, middle_half};
use pmem::Profile;

const LAID_OUT: &str = "file";
const NEW: &str = "new file";

/// The order of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Random overwrites of a file.
    Fio,
    /// New files, written from their start.
    Vdbench,
}

impl Pattern {
    /// Returns how the program that this is named for makes duplicates.
    pub(super) fn draw(self) -> Draw {
        match self {
            Pattern::Fio => Draw::LastBuffer,
            Pattern::Vdbench => Draw::Sets,
        }
    }
}

/// The result of one system at one share of duplicates.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// Requests per second by the wall clock: the median pass.
    pub rate: f64,
    /// Interquartile range of the passes by the wall clock, percent of their median.
    pub spread: f64,
    /// Cost of a request, including its share of the background thread's, microseconds: the median pass.
    pub cost_us: f64,
    /// Requests in all timed passes.
    pub requests: u64,
    /// How many of them were shared.
    pub shared: u64,
    /// Bytes of metadata flushed per request.
    pub metadata: f64,
    /// Statistics of policy `nv-dedup` at the end.
    pub model: Option<NvDedupStats>,
}

/// The passes to run.
#[derive(Clone, Copy)]
pub(super) struct Passes<'a> {
    /// Emulated device.
    pub profile: &'a Profile,
    /// The systems, which take turns.
    pub systems: &'a [System],
    /// The order of requests.
    pub pattern: Pattern,
    /// Shares of duplicates.
    pub percents: &'a [u64],
    /// How the blocks that duplicates repeat are drawn.
    pub draw: Draw,
    /// Blocks of the file that is laid out once: fio overwrites it, vdbench writes its files in addition.
    pub file_blocks: u64,
    /// Requests of a pass.
    pub requests: usize,
}

/// Runs all systems at each share of duplicates; returns a cell for each, without its metadata.
pub(super) fn cells(run: &Run, passes: Passes<'_>) -> Result<Vec<Vec<Cell>>> {
    measure(run, passes, run.repeats, false)
}

/// Does the same as [`cells`], with metadata. Counting lines takes time, so it has a separate pass.
pub(super) fn counted_cells(run: &Run, passes: Passes<'_>) -> Result<Vec<Vec<Cell>>> {
    let mut cells = cells(run, passes)?;
    let counted = measure(run, passes, 1, true)?;
    for (cell, counted) in cells.iter_mut().flatten().zip(counted.iter().flatten()) {
        cell.metadata = counted.metadata;
    }
    Ok(cells)
}

fn measure(run: &Run, passes: Passes<'_>, repeats: usize, counts_metadata: bool) -> Result<Vec<Vec<Cell>>> {
    let Passes { profile, systems, pattern, percents, draw, file_blocks, requests } = passes;
    let blocks = file_blocks.max(requests as u64) + if pattern == Pattern::Vdbench { requests as u64 } else { 0 };
    let setup = Setup { period: run.period, counts_metadata, ..Setup::new(profile, blocks, 2) };
    let mounted = Mounted::all(systems, &setup)?;
    let mut batch = Batch::default();
    let mut workload = Workload::fio(file_blocks, percents[0], 1).drawn(draw);
    workload.lay_out(&mut batch);
    for mounted in &mounted {
        mounted.write(&mounted.create(LAID_OUT)?, &batch)?;
    }
    if pattern == Pattern::Vdbench {
        workload = workload.beside();
    }
    let mut cells = Vec::new();
    for percent in percents {
        run.turn
            .say(&format!("{pattern:?}, {percent} % duplicates{}", if counts_metadata { ", counting" } else { "" }));
        workload.set_percent(*percent);
        let at_share = at_one_share((requests, repeats), &mounted, &mut workload, &mut batch, pattern)?;
        for (system, cell) in systems.iter().zip(&at_share) {
            check(&format!("{}, {percent} % duplicates", system.name), profile, *percent, cell)?;
        }
        cells.push(at_share);
    }
    mounted.into_iter().try_for_each(Mounted::close)?;
    Ok(cells)
}

/// Refuses more shared requests than there are duplicates, and requests that cost less than what the device charges for
/// the blocks that are stored.
fn check(what: &str, profile: &Profile, percent: u64, cell: &Cell) -> Result<()> {
    check_shared(what, percent, cell.requests, cell.shared)?;
    let stored = 1.0 - cell.shared as f64 / cell.requests as f64;
    let charge_us = stored * bounds::write_charge_ns(profile, BLOCK as f64) / 1e3;
    let why = "the device charges the lines of the blocks that are stored";
    bounds::at_least(format!("{what}: cost of a request"), cell.cost_us, charge_us, "us", why)
}

/// Refuses more shared requests than there are duplicates among them.
pub(super) fn check_shared(what: &str, percent: u64, requests: u64, shared: u64) -> Result<()> {
    // A part of a duplicate may be due from earlier requests.
    let duplicates = (requests * percent / 100 + 1) as f64;
    let why = "only a request that repeats a stored block is shared";
    bounds::at_most(format!("{what}: requests shared"), shared as f64, duplicates, "", why)
}

/// Runs all systems in turn, pass by pass, after one untimed pass.
fn at_one_share(
    (requests_of_pass, repeats): (usize, usize),
    mounted: &[Mounted],
    workload: &mut Workload,
    batch: &mut Batch,
    pattern: Pattern,
) -> Result<Vec<Cell>> {
    let mut spent = vec![Vec::new(); mounted.len()];
    let mut before = vec![(0, None); mounted.len()];
    for pass in 0..=repeats {
        workload.next(requests_of_pass, batch);
        for (at, mounted) in mounted.iter().enumerate() {
            if pass == 1 {
                before[at] = (mounted.shared(), mounted.metadata_bytes());
            }
            let took = one_pass(mounted, pattern, batch)?;
            if pass > 0 {
                spent[at].push(took);
            }
        }
    }
    let requests = (requests_of_pass * repeats) as u64;
    let cell = |at: usize, mounted: &Mounted| {
        let metadata = mounted.metadata_bytes().zip(before[at].1);
        let wall_ns: Vec<f64> = spent[at].iter().map(|spent| spent.wall_ns).collect();
        let cost_ns: Vec<f64> = spent[at].iter().map(|spent| spent.cost_ns).collect();
        Cell {
            rate: requests_of_pass as f64 * 1e9 / median(&wall_ns),
            spread: 100.0 * middle_half(&wall_ns) / median(&wall_ns),
            cost_us: median(&cost_ns) / 1e3 / requests_of_pass as f64,
            requests,
            shared: mounted.shared() - before[at].0,
            metadata: metadata.map_or(f64::NAN, |(after, before)| (after - before) as f64 / requests as f64),
            model: mounted.fs.stats().nv_dedup,
        }
    };
    Ok(mounted.iter().enumerate().map(|(at, mounted)| cell(at, mounted)).collect())
}

/// Returns the duration of a batch on a system; the written data is compared afterwards.
fn one_pass(mounted: &Mounted, pattern: Pattern, batch: &Batch) -> Result<Spent> {
    let file = match pattern {
        Pattern::Fio => mounted.open(LAID_OUT)?,
        Pattern::Vdbench => mounted.create(NEW)?,
    };
    let took = mounted.write(&file, batch)?;
    mounted.verify(&file, batch)?;
    if pattern == Pattern::Vdbench {
        drop(file);
        mounted.remove(NEW)?;
    }
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(shared: u64, cost_us: f64) -> Option<String> {
        let (rate, spread, metadata) = (1e5, 1.0, 1.0);
        let cell = Cell { rate, spread, cost_us, requests: 1000, shared, metadata, model: None };
        check("ours", &"nvdimm-8x".parse().unwrap(), 50, &cell).err().map(|error| error.to_string())
    }

    #[test]
    fn more_requests_shared_than_there_are_duplicates_are_refused() {
        assert_eq!(refusal(501, 12.0), None);
        let error = refusal(510, 12.0).unwrap();
        assert!(error.contains("ours: requests shared: 510 was measured"), "{error}");
    }

    #[test]
    fn a_request_that_costs_less_than_its_lines_on_the_device_is_refused() {
        // 64 lines of 144 ns are 9.2 us.
        assert!(refusal(0, 9.0).is_some_and(|error| error.contains("cost of a request: 9 us")));
        assert_eq!(refusal(500, 9.0), None, "half of the blocks are not stored");
    }
}
