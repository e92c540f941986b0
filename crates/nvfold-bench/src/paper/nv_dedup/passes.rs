//! Timing systems against one another at one share of duplicates: all of them in turn, pass by pass, on the same
//! requests. The file is laid out and one pass is run before the clock starts, so every system has its memory and has
//! chosen its method.

use super::super::system::{Mounted, Setup, System};
use super::super::workload::{Batch, Workload};
use super::Run;
use crate::Result;
use crate::throughput::median;
use nvfold::NvDedupStats;
use pmem::Profile;

/// How requests follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Random overwrites of a file.
    Fio,
    /// New files, written from their start.
    Vdbench,
}

/// What one system did at one share of duplicates.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Requests a second: the median pass.
    pub rate: f64,
    /// Requests in all timed passes.
    pub requests: u64,
    /// How many of them were shared.
    pub shared: u64,
    /// Bytes of metadata flushed a request.
    pub metadata: f64,
    /// Share of the time that went into fingerprints; of competitors only.
    pub fingerprinting: f64,
    /// What policy `nv-dedup` says at the end.
    pub model: Option<NvDedupStats>,
}

/// Runs all systems; a cell each.
pub fn cells(run: &Run, profile: &Profile, systems: &[System], pattern: Pattern, percent: u64) -> Result<Vec<Cell>> {
    // Counting costs some nanoseconds a line: nothing beside an emulated device, too much beside the memory as it is.
    let counts_with_time = !profile.is_native();
    let mut cells = measure(run, profile, systems, pattern, percent, run.repeats, counts_with_time)?;
    if !counts_with_time {
        let counted = measure(run, profile, systems, pattern, percent, 1, true)?;
        cells.iter_mut().zip(counted).for_each(|(cell, counted)| cell.metadata = counted.metadata);
    }
    Ok(cells)
}

fn measure(
    run: &Run,
    profile: &Profile,
    systems: &[System],
    pattern: Pattern,
    percent: u64,
    repeats: usize,
    counts_metadata: bool,
) -> Result<Vec<Cell>> {
    let blocks = run.file_blocks.max(run.requests as u64);
    let setup = Setup { period: run.period, counts_metadata, ..Setup::new(profile, blocks, 2) };
    let mounted = systems.iter().map(|system| Mounted::new(system, &setup)).collect::<Result<Vec<Mounted>>>()?;
    let mut batch = Batch::default();
    let mut workload = match pattern {
        Pattern::Fio => {
            let mut workload = Workload::fio(run.file_blocks, percent, percent);
            workload.lay_out(&mut batch);
            for mounted in &mounted {
                mounted.write(&mounted.create("file")?, &batch)?;
            }
            workload
        }
        Pattern::Vdbench => Workload::vdbench(percent, percent),
    };
    let mut seconds = vec![Vec::new(); mounted.len()];
    let mut before = vec![(0, None, 0.0); mounted.len()];
    for pass in 0..=repeats {
        workload.next(run.requests, &mut batch);
        for (at, mounted) in mounted.iter().enumerate() {
            if pass == 1 {
                before[at] = (mounted.shared(), mounted.metadata_bytes(), mounted.fingerprint_seconds());
            }
            let took = one_pass(mounted, pattern, pass, &batch)?;
            if pass > 0 {
                seconds[at].push(took);
            }
        }
    }
    let requests = (run.requests * repeats) as u64;
    let cell = |at: usize, mounted: &Mounted| {
        let metadata = mounted.metadata_bytes().zip(before[at].1);
        Cell {
            rate: run.requests as f64 / median(&seconds[at]),
            requests,
            shared: mounted.shared() - before[at].0,
            metadata: metadata.map_or(f64::NAN, |(after, before)| (after - before) as f64 / requests as f64),
            fingerprinting: (mounted.fingerprint_seconds() - before[at].2) / seconds[at].iter().sum::<f64>(),
            model: mounted.fs.stats().nv_dedup,
        }
    };
    let cells = mounted.iter().enumerate().map(|(at, mounted)| cell(at, mounted)).collect();
    mounted.into_iter().try_for_each(Mounted::close)?;
    Ok(cells)
}

/// Seconds that a system takes for a batch; what it wrote is compared afterwards.
fn one_pass(mounted: &Mounted, pattern: Pattern, pass: usize, batch: &Batch) -> Result<f64> {
    let file = match pattern {
        Pattern::Fio => mounted.open("file")?,
        Pattern::Vdbench => mounted.create(&format!("file{pass}"))?,
    };
    let took = mounted.write(&file, batch)?;
    mounted.verify(&file, batch)?;
    if pattern == Pattern::Vdbench && pass > 0 {
        mounted.remove(&format!("file{}", pass - 1))?;
    }
    Ok(took)
}
