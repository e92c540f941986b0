//! Times all systems at one share of duplicates. They take turns, pass by pass, on the same requests. The file is laid
//! out and one pass is run before the clock starts, so every system has allocated its memory and chosen its method.

use super::super::spent::Spent;
use super::super::system::{Mounted, Setup, System};
use super::super::workload::{Batch, Draw, Workload};
use super::Run;
use crate::Result;
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
    let Passes { profile, systems, pattern, percents, draw, file_blocks } = passes;
    let blocks =
        file_blocks.max(run.requests as u64) + if pattern == Pattern::Vdbench { run.requests as u64 } else { 0 };
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
        cells.push(at_one_share(run, &mounted, &mut workload, &mut batch, pattern, repeats)?);
    }
    mounted.into_iter().try_for_each(Mounted::close)?;
    Ok(cells)
}

/// Runs all systems in turn, pass by pass, after one untimed pass.
fn at_one_share(
    run: &Run,
    mounted: &[Mounted],
    workload: &mut Workload,
    batch: &mut Batch,
    pattern: Pattern,
    repeats: usize,
) -> Result<Vec<Cell>> {
    let mut spent = vec![Vec::new(); mounted.len()];
    let mut before = vec![(0, None); mounted.len()];
    for pass in 0..=repeats {
        workload.next(run.requests, batch);
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
    let requests = (run.requests * repeats) as u64;
    let cell = |at: usize, mounted: &Mounted| {
        let metadata = mounted.metadata_bytes().zip(before[at].1);
        let wall_ns: Vec<f64> = spent[at].iter().map(|spent| spent.wall_ns).collect();
        let cost_ns: Vec<f64> = spent[at].iter().map(|spent| spent.cost_ns).collect();
        Cell {
            rate: run.requests as f64 * 1e9 / median(&wall_ns),
            spread: 100.0 * middle_half(&wall_ns) / median(&wall_ns),
            cost_us: median(&cost_ns) / 1e3 / run.requests as f64,
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
