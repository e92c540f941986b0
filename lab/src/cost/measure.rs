//! One cell of the table: one operation on one system, measured once for the counts and once for each device.

use super::kinds::{Lines, Traffic};
use super::operation::{Calls, Operation, Stage, run_measured_calls};
use super::system::System;
use crate::{Doing, LabError, Result};
use pmem::{Counters, OpenOptions, Profile};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Measured calls: enough to fill a log page, so that its share of each call is included.
pub const CALLS: usize = 64;
/// Calls before the measured ones.
pub const WARM_UP: usize = 8;

/// The total cost of the measured calls of one operation on one system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Name of the operation.
    pub operation: String,
    /// Policy, with its options.
    pub policy: String,
    /// Index of the device.
    pub index: String,
    /// The divisor of the figures when shown: calls, or blocks that daemons handled.
    pub units: u64,
    /// Fences.
    pub fences: u64,
    /// Lines written: flushed or streamed.
    pub written: Lines,
    /// Lines read.
    pub read: Lines,
    /// Locked instructions: those of locks and atomics, and compare-and-exchanges on media.
    pub locked: u64,
    /// Instructions by callgrind; `None` without it.
    pub instructions: Option<u64>,
    /// Nanoseconds charged by each emulated device.
    pub charged_ns: BTreeMap<String, u64>,
}

impl Cell {
    /// Returns the lines written, of all kinds.
    pub fn lines_written(&self) -> u64 {
        self.written.values().sum()
    }

    /// Returns the lines read, of all kinds.
    pub fn lines_read(&self) -> u64 {
        self.read.values().sum()
    }
}

/// Returns every cell: operations in their order, systems in theirs.
pub fn all_cells() -> Vec<(Operation, System)> {
    let systems = System::all();
    let of = |operation: Operation| {
        let does = systems.iter().filter(move |system| operation.applies_to(system));
        does.map(|system| (operation, *system)).collect::<Vec<_>>()
    };
    Operation::all().into_iter().flat_map(of).collect()
}

/// Measures a cell, except its instructions.
///
/// # Errors
/// If sharing did not save the expected bytes, or if lines were written that no block accounts for.
pub(super) fn measure(operation: Operation, system: System) -> Result<Cell> {
    let mut cell = counted(operation, system)?;
    for profile in Profile::all().into_iter().filter(|profile| !profile.is_native()) {
        let name = profile.name().into();
        cell.charged_ns.insert(name, charged(operation, system, profile)?.charged_ns());
    }
    Ok(cell)
}

/// Runs the calls of a cell on native memory, for callgrind, which counts the instructions.
pub(super) fn run(operation: Operation, system: System) -> Result<()> {
    let (_stage, mut calls) = prepared(operation, system, &OpenOptions::default())?;
    run_measured_calls(&mut *calls.call, WARM_UP..WARM_UP + CALLS).doing(operation.name())
}

/// Counts fences, lines and locked instructions.
pub fn counted(operation: Operation, system: System) -> Result<Cell> {
    let device = OpenOptions { track_wear: true, ..OpenOptions::default() };
    let (stage, mut calls) = prepared(operation, system, &device)?;
    let region = stage.fs.region();
    let saved = stage.fs.stats().saved_bytes;
    let (counters, traffic) = (region.counters(), Traffic::of(region));
    let locked = nvfold::internals::locked_instructions();
    run_measured_calls(&mut *calls.call, WARM_UP..WARM_UP + CALLS).doing(operation.name())?;
    let locked = nvfold::internals::locked_instructions() - locked;
    let counters = region.counters() - counters;
    let (written, read) = traffic.until(&Traffic::of(region), region)?;
    prove(operation, system, &calls, stage.fs.stats().saved_bytes.wrapping_sub(saved))?;
    let cell = Cell {
        operation: operation.name(),
        policy: system.policy_name(),
        index: system.index.name().into(),
        units: CALLS as u64 * calls.units,
        fences: counters.fences,
        written,
        read,
        locked: locked + counters.exchanges,
        instructions: None,
        charged_ns: BTreeMap::new(),
    };
    let (of_blocks, of_device) =
        ((cell.lines_written(), cell.lines_read()), (counters.lines_written(), counters.lines_read));
    if of_blocks != of_device {
        let what = format!("{}: lines written and read by block: {of_blocks:?}, in all: {of_device:?}", cell.operation);
        return Err(LabError::Miscounted(what));
    }
    Ok(cell)
}

/// Returns the charge of a device with this profile.
fn charged(operation: Operation, system: System, profile: Profile) -> Result<Counters> {
    let device = OpenOptions { profile, counts_only: true, ..OpenOptions::default() };
    let (stage, mut calls) = prepared(operation, system, &device)?;
    let before = stage.fs.region().counters();
    run_measured_calls(&mut *calls.call, WARM_UP..WARM_UP + CALLS).doing(operation.name())?;
    Ok(stage.fs.region().counters() - before)
}

fn prepared(operation: Operation, system: System, device: &OpenOptions) -> Result<(Stage, Calls)> {
    let stage = Stage::new(system, device)?;
    let mut calls = operation.prepare(&stage, WARM_UP + CALLS)?;
    stage.forget_lines();
    calls.run_warm_up(WARM_UP)?;
    Ok((stage, calls))
}

/// Checks that the calls shared, or unshared, as many blocks as the name of the operation says.
fn prove(operation: Operation, system: System, calls: &Calls, gained: u64) -> Result<()> {
    let expected = calls.blocks_saved * CALLS as i64 * nvfold::BLOCK_BYTES as i64;
    if gained as i64 == expected {
        return Ok(());
    }
    let (policy, index) = (system.policy_name(), system.index.name());
    let what = format!("{}, policy {policy}, index {index}", operation.name());
    Err(LabError::Miscounted(format!("{what}: sharing saved {} more bytes, not {expected}", gained as i64)))
}
