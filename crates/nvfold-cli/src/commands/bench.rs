//! `nvfold bench`: passes the arguments to the benchmark crate.

use crate::failure::{Doing, Outcome};
use crate::output::Output;
use nvfold_bench::BenchArgs;

/// Runs a benchmark; its report goes to standard output.
pub fn run(bench: &BenchArgs, output: &Output) -> Outcome<u8> {
    nvfold_bench::run(bench, output.json).doing("bench")?;
    Ok(0)
}
