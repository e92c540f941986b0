//! Other processes that a benchmark runs, including the nvfold command itself.
//!
//! A tool that fails has printed the reason on stderr; the error contains it, on one line.

use crate::{BenchError, Doing, Result};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns the path of the running program.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().doing("find the running program")
}

/// Runs a program whose output does not matter.
pub fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Returns the output of a command; if it fails, returns an error with its stderr.
pub fn output(command: &mut Command) -> Result<String> {
    let doing = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().doing(doing.clone())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(BenchError::Io { doing, source: std::io::Error::other(format!("{}: {said}", output.status)) })
}
