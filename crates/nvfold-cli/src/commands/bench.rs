//! `nvfold bench`: passes the arguments to the benchmark crate.

use crate::failure::{Doing, Outcome};
use crate::output::Output;
use crate::stop;
use nvfold_bench::BenchArgs;
use signal_hook::iterator::Signals;
use std::thread;

/// Runs a benchmark; its report goes to standard output. A signal takes down what it has put up, at whatever it is.
pub(crate) fn run(bench: &BenchArgs, output: &Output) -> Outcome<u8> {
    let mut signals = Signals::new(stop::signals()).doing("wait for signals")?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            nvfold_bench::take_down();
            stop::end_by(signal);
        }
    });
    nvfold_bench::run(bench, output.json).doing("bench")?;
    Ok(0)
}
