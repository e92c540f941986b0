//! `nvfold bench`: hands over to the benchmark crate.

use crate::cli::Output;
use crate::failure::{Doing, Outcome};
use nvfold_bench::BenchArgs;

/// Runs a benchmark; its report goes to standard output.
pub fn run(bench: &BenchArgs, output: &Output) -> Outcome<u8> {
    nvfold_bench::run(bench, output.json).doing("bench")?;
    Ok(0)
}
