//! Other processes: programs that a benchmark runs, itself among them.
//!
//! A tool that fails has said why on stderr; the error carries that, on one line.

use crate::{BenchError, Doing, Result};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program that is running.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().doing("find the running program")
}

/// Runs a program whose output does not matter.
pub fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// What a command prints; an error that says what it complained of when it fails.
pub fn output(command: &mut Command) -> Result<String> {
    let doing = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().doing(doing.clone())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(BenchError::Io { doing, source: std::io::Error::other(format!("{}: {said}", output.status)) })
}
