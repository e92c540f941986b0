//! Walks all files below a path of the host, without copying them.

use super::Problem;
use std::fs::Metadata;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Called with each file found, or with the reason why one could not be read.
pub type Visit<'a> = dyn FnMut(Result<(&Path, &Metadata), Problem>) -> ControlFlow<()> + 'a;

/// Calls `each` for `root` and everything below it, until it returns `Break`. It is called with a problem for a file
/// or directory that cannot be read. Symbolic links are not followed.
pub fn walk(root: &Path, one_file_system: bool, each: &mut Visit<'_>) -> ControlFlow<()> {
    let mut pending = vec![root.to_owned()];
    let mut device_number = None;
    while let Some(path) = pending.pop() {
        match walk_one(&path, one_file_system, &mut device_number, &mut pending, each) {
            Ok(flow) => flow?,
            Err(error) => each(Err(problem(path, &error)))?,
        }
    }
    ControlFlow::Continue(())
}

/// Reports `path`. If it is a directory, reports its entries, except that its directories are added to `pending`.
fn walk_one(
    path: &Path,
    one_file_system: bool,
    device_number: &mut Option<u64>,
    pending: &mut Vec<PathBuf>,
    each: &mut Visit<'_>,
) -> io::Result<ControlFlow<()>> {
    let metadata = path.symlink_metadata()?;
    let root_number = *device_number.get_or_insert(metadata.dev());
    let mut flow = each(Ok((path, &metadata)));
    if !metadata.is_dir() || (one_file_system && metadata.dev() != root_number) {
        return Ok(flow);
    }
    for entry in path.read_dir()? {
        if flow.is_break() {
            break;
        }
        let entry_path = entry?.path();
        flow = match entry_path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => {
                pending.push(entry_path);
                ControlFlow::Continue(())
            }
            Ok(metadata) => each(Ok((&entry_path, &metadata))),
            Err(error) => each(Err(problem(entry_path, &error))),
        };
    }
    Ok(flow)
}

/// Makes a problem of the host's error about a path.
pub fn problem(path: PathBuf, error: &io::Error) -> Problem {
    Problem { path, problem: error.to_string() }
}
