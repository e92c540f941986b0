//! `nvfold-lab cost`: the cost of each operation, in units that do not depend on the machine.
//!
//! The problem: a wasted flush or lock costs less than the noise of a shared machine, so no timing shows it; but many
//! of them make a slow file system.
//!
//! The idea: count. Every operation runs a fixed number of times on every policy and index, on one thread, with fixed
//! content and a fixed clock. Fences, lines written and read by purpose, and locked instructions are then the same on
//! every machine. They are committed (docs/results/cost), and a test fails if one changes. Instructions, counted by
//! callgrind, depend on the compiler, and charged times on the profile; they are committed too, but not tested.
//!
//! | module | content |
//! |---|---|
//! | `system` | rows: policy and index |
//! | `operation` | the measured operations and their preparation |
//! | `kinds` | lines by purpose |
//! | `measure` | one cell |
//! | `callgrind` | instructions |
//! | `report` | JSON, differences |
//! | `page` | tables |

mod callgrind;
mod kinds;
mod measure;
mod operation;
mod page;
mod report;
mod system;

pub(crate) use kinds::Traffic;
pub use kinds::{Kind, Lines};
pub use measure::{CALLS, Cell, WARM_UP, all_cells, counted};
pub use operation::{Calls, Operation, Stage, run_measured_calls};
pub use report::Report;
pub use system::System;

use crate::Result;
use clap::Args;
use nvfold_bench::origin::save;
use std::path::PathBuf;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct CostOptions {
    /// Measure only operations whose names contain TEXT
    #[arg(long = "operation", value_name = "TEXT")]
    operations: Vec<String>,
    /// Do not count instructions, which takes minutes under valgrind
    #[arg(long)]
    no_instructions: bool,
    /// Folder for cost.json and README.md; only with all operations
    #[arg(long, value_name = "DIR", conflicts_with = "operations")]
    out: Option<PathBuf>,
}

/// The cells that the process under callgrind runs.
#[derive(Args, Clone, Debug)]
pub struct CallsOptions {
    /// Name of an operation
    operation: String,
}

/// Measures, writes the requested files, and prints the report.
pub(crate) fn run(options: &CostOptions, json: bool) -> Result<()> {
    let wanted = |operation: &Operation| {
        options.operations.is_empty() || options.operations.iter().any(|text| operation.name().contains(text.as_str()))
    };
    let operations: Vec<Operation> = Operation::all().into_iter().filter(wanted).collect();
    let mut report = Report::new(cells_of(&operations, measure::measure)?);
    if options.no_instructions {
        report.left_out.push("instructions: --no-instructions".into());
    } else {
        add_instructions(&mut report, &operations)?;
    }
    if let Some(folder) = &options.out {
        save(folder, [(report::JSON, report.json()), ("README.md", page::markdown(&report))])?;
    }
    println!("{}", if json { report.json() } else { page::terminal(&report) });
    Ok(())
}

/// Counts fences, lines and locked instructions of every cell: the figures that are the same on every machine.
///
/// # Errors
/// If an operation fails, or does not do what its name says.
pub fn counts() -> Result<Report> {
    Ok(Report::new(cells_of(&Operation::all(), counted)?))
}

/// Runs the measured calls of an operation's cells, for callgrind.
pub(crate) fn run_calls(options: &CallsOptions) -> Result<()> {
    let operation: Vec<Operation> = Operation::named(&options.operation).into_iter().collect();
    cells_of(&operation, measure::run).map(drop)
}

fn cells_of<T>(operations: &[Operation], measure: impl Fn(Operation, System) -> Result<T>) -> Result<Vec<T>> {
    let cells = all_cells().into_iter().filter(|(operation, _)| operations.contains(operation));
    cells.map(|(operation, system)| measure(operation, system)).collect()
}

fn add_instructions(report: &mut Report, operations: &[Operation]) -> Result<()> {
    report.instructions_by = callgrind::version();
    if report.instructions_by.is_none() {
        report.left_out.push("instructions: valgrind is not installed (scripts/test-deps.sh installs it)".into());
        return Ok(());
    }
    let counts = callgrind::instructions(operations)?;
    report.cells.iter_mut().zip(counts).for_each(|(cell, count)| cell.instructions = Some(count));
    Ok(())
}
