//! The `nvfold-lab` command: measures what the papers measured, and what each operation costs.
#![forbid(unsafe_code)]

use clap::Parser;
use nvfold_lab::{LabArgs, run};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::process::ExitCode;

/// Measure nvfold as its papers were measured
#[derive(Parser)]
#[command(name = "nvfold-lab", version, before_help = "Example: nvfold-lab cost --no-instructions")]
struct Lab {
    /// Print the report as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    args: LabArgs,
}

fn main() -> ExitCode {
    let lab = Lab::parse();
    match take_down_on_signals().map_err(nvfold_lab::LabError::from).and_then(|()| run(&lab.args, lab.json)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvfold-lab: {error}");
            ExitCode::FAILURE
        }
    }
}

/// From now on a signal takes down what the run has put up, at whatever it is, and ends the process.
fn take_down_on_signals() -> nvfold_bench::Result<()> {
    use nvfold_bench::Doing;
    let mut signals = Signals::new(heard()).doing("wait for signals")?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            nvfold_bench::take_down();
            let _ = emulate_default_handler(signal);
        }
    });
    Ok(())
}

/// Returns the signals that end a run: without those that `nohup` or the shell has made it ignore.
fn heard() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    let is_heard = |signal: &i32| *signal == SIGTERM || ignored >> (signal - 1) & 1 == 0;
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(is_heard).collect()
}
