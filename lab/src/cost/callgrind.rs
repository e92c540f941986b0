//! Instructions, counted by callgrind.
//!
//! The command runs itself under valgrind, once for each operation. Callgrind counts only inside
//! [`super::operation::run_measured_calls`], and writes a file each time that function returns. So a process gives
//! one file for each system, in order, and the process itself need not control valgrind.
//!
//! Valgrind emulates a processor with AVX2 but without AVX-512, SHA extensions and `clwb`. The counts are those of
//! the code that run-time detection selects there.
//!
//! Two runs of one program give the same count. The data below the stack (environment, path of the program) is the
//! same in each run. That matters because the hash tables of a write of several blocks are seeded with a stack
//! address.

use super::measure::all_cells;
use super::operation::Operation;
use crate::{Doing, LabError, Result};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Name of the hidden subcommand that runs the measured calls of the cells.
pub(super) const SUBCOMMAND: &str = "cost-calls";
/// Its name in valgrind; `--dump-after` accepts no pattern that begins with a star.
const FUNCTION: &str = "nvfold_lab::cost::operation::run_measured_calls";
/// The folder of its files: a path of the same length in every run.
const FOLDER: &str = "/tmp";
/// Where valgrind is searched for.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Returns the name and version of the counter; `None` if it is not installed.
pub(super) fn version() -> Option<String> {
    let output = Command::new("valgrind")
        .arg("--version")
        .env("PATH", PATH)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(format!("callgrind of {}", String::from_utf8_lossy(&output.stdout).trim()))
}

/// Returns the instructions of the measured calls of every cell of these operations, in the order of [`all_cells`].
/// It runs one process per operation, as many at once as there are processors.
pub(super) fn instructions(wanted: &[Operation]) -> Result<Vec<u64>> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, Vec<u64>)>> {
        let mine = std::iter::from_fn(|| {
            let at = next.fetch_add(1, Ordering::Relaxed);
            wanted.get(at).map(|operation| (at, *operation))
        });
        mine.map(|(at, operation)| Ok((at, of_operation(operation)?))).collect()
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut counts = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            counts.extend(worker.join().expect("it does not panic")?);
            Ok::<(), LabError>(())
        })
    })?;
    counts.sort_unstable();
    Ok(counts.into_iter().flat_map(|(_, of_systems)| of_systems).collect())
}

/// Returns the instructions of the measured calls of an operation, one number for each system that supports it.
fn of_operation(operation: Operation) -> Result<Vec<u64>> {
    let folder = tempfile::tempdir_in(FOLDER).doing("make a folder for callgrind's files")?;
    let here = std::env::current_exe().doing("find this program")?;
    std::os::unix::fs::symlink(here, folder.path().join("nvfold-lab")).doing("link this program")?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet", "--collect-atstart=no"]);
    command.arg(format!("--toggle-collect={FUNCTION}")).arg(format!("--dump-after={FUNCTION}"));
    command.args(["--callgrind-out-file=calls", "./nvfold-lab", SUBCOMMAND, &operation.name()]);
    command.current_dir(folder.path()).env_clear().env("PATH", PATH);
    let output = command.output().doing("run valgrind")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(LabError::Callgrind(format!("{}: {said}", output.status)));
    }
    let cells = all_cells().into_iter().filter(|(other, _)| *other == operation).count();
    (1..=cells).map(|number| total_in(&folder.path().join(format!("calls.{number}")))).collect()
}

/// Returns the instructions in a file of callgrind.
fn total_in(file: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(file).doing(format!("read {}", file.display()))?;
    parse_total(&text).ok_or_else(|| LabError::Callgrind(format!("{} has no total", file.display())))
}

fn parse_total(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("totals:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instruction_total_is_parsed_from_callgrind_output() {
        assert_eq!(parse_total("version: 1\nevents: Ir\n\nfn=(1) x\n3 4\n\ntotals: 8123\n"), Some(8123));
        assert_eq!(parse_total("version: 1\n"), None);
    }
}
