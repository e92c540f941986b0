//! `nvfold completions`: completions for a shell, on stdout.

use crate::cli::Cli;
use crate::failure::Outcome;
use crate::report;
use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

/// Print completions for a shell
#[derive(Args, Debug)]
pub struct Completions {
    shell: Shell,
}

/// Runs it.
pub fn run(completions: &Completions) -> Outcome<u8> {
    let mut script = Vec::new();
    generate(completions.shell, &mut Cli::command(), "nvfold", &mut script);
    report::print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(0)
}
