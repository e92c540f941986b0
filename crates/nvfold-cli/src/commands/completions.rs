//! `nvfold completions`: prints shell completions on stdout.

use crate::failure::Outcome;
use crate::report;
use clap::{Args, Command};
use clap_complete::{Shell, generate};

/// Print completions for a shell
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold completions bash > /etc/bash_completion.d/nvfold")]
pub(crate) struct Completions {
    shell: Shell,
}

/// Runs the command; `cli` is the definition of the whole command line.
pub(crate) fn run(completions: &Completions, mut cli: Command) -> Outcome<u8> {
    let mut script = Vec::new();
    generate(completions.shell, &mut cli, "nvfold", &mut script);
    report::print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(0)
}
