//! Instructions, counted by callgrind.
//!
//! The command runs itself under valgrind. Callgrind counts only inside [`super::operation::run_measured_calls`], and
//! writes a file each time that function returns; so one process gives one file for each cell, in order, and nothing
//! needs to be told to valgrind from inside.
//!
//! Valgrind is a processor of its own: it has AVX2 and neither AVX-512 nor SHA extensions nor `clwb`. What is detected at
//! run time there is what is counted. The environment is empty, for what stands on the stack moves what lies above it.

use super::measure::all_cells;
use super::operation::Operation;
use crate::{BenchError, Doing, Result};
use std::path::Path;
use std::process::Command;

/// Name of the hidden subcommand that runs the measured calls of the cells.
pub const SUBCOMMAND: &str = "cost-calls";
const FUNCTION: &str = "*run_measured_calls*";

/// What counts, with its version; `None` when it is not installed.
pub fn version() -> Option<String> {
    let output = Command::new("valgrind").arg("--version").output().ok().filter(|output| output.status.success())?;
    Some(format!("callgrind of {}", String::from_utf8_lossy(&output.stdout).trim()))
}

/// Instructions of the measured calls of every cell of these operations, in the order of [`all_cells`].
pub fn instructions(wanted: &[Operation]) -> Result<Vec<u64>> {
    let folder = tempfile::tempdir().doing("make a folder for callgrind's files")?;
    let dumps = folder.path().join("calls");
    let program = std::env::current_exe().doing("find this program")?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet", "--collect-atstart=no"]);
    command.arg(format!("--toggle-collect={FUNCTION}")).arg(format!("--dump-after={FUNCTION}"));
    command.arg(format!("--callgrind-out-file={}", dumps.display()));
    command.arg(program).args(["bench", SUBCOMMAND]);
    command.args(wanted.iter().flat_map(|operation| ["--operation".into(), operation.name()]));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let output = command.env_clear().env("PATH", path).output().doing("run valgrind")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(BenchError::Callgrind(format!("{}: {said}", output.status)));
    }
    let cells = all_cells().into_iter().filter(|(operation, _)| wanted.contains(operation)).count();
    (1..=cells).map(|number| total_in(&dumps.with_extension(number.to_string()))).collect()
}

/// The instructions in a file of callgrind.
fn total_in(file: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(file).doing(format!("read {}", file.display()))?;
    parse_total(&text).ok_or_else(|| BenchError::Callgrind(format!("{} has no total", file.display())))
}

fn parse_total(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("totals:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_found() {
        assert_eq!(parse_total("version: 1\nevents: Ir\n\nfn=(1) x\n3 4\n\ntotals: 8123\n"), Some(8123));
        assert_eq!(parse_total("version: 1\n"), None);
    }
}
