//! `nvfold remove`: removes directories with all that is below them, at once.

use crate::device::DeviceOptions;
use crate::failure::{Doing, Failure, Outcome};
use crate::mounts;
use crate::output::Output;
use crate::report;
use crate::stored::{Refused, Stored};
use crate::text::{counted, escaped};
use clap::Args;
use nvfold::{FileKind, errno};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Remove directories with everything below them at once
///
/// Each directory leaves the name space by one commit: after a crash it is there whole or not at all. The mount frees what
/// is below in the background, and whoever needs space gets it first; `nvfold stats` shows what is left. Files that are
/// open live on until they are closed, and files with names elsewhere keep those. Whoever may do it by `rm -r` may do it
/// so. A symbolic link or a file is not removed.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold remove /tmp/fold/old")]
pub(crate) struct Remove {
    /// Directories on a mount, or an unmounted device
    #[arg(value_name = "DIR|DEVICE", required = true)]
    targets: Vec<PathBuf>,
    /// On a device: the directories
    #[arg(long, value_name = "PATH")]
    at: Vec<PathBuf>,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Serialize)]
struct Report {
    /// The directories that were removed.
    removed: Vec<String>,
    /// For each of them the bytes of its path in hexadecimal, if it is not UTF-8. Absent if all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed_hex: Option<Vec<Option<String>>>,
}

/// Runs the command.
pub(crate) fn run(remove: &Remove, output: &Output) -> Outcome<u8> {
    let Remove { targets, at, device_options } = remove;
    // A link may lead to a mount; it is not removed, and neither is what it leads to.
    let (stored, paths) = Stored::open(targets, at, None, device_options, false)?;
    let (mut removed, mut hex) = (Vec::new(), Vec::new());
    let done = paths.iter().try_for_each(|path| {
        remove_one(&stored, path)?;
        removed.push(mounts::show(path));
        hex.push(mounts::hex(path));
        Ok(())
    });
    stored.close()?;
    done?;
    let report = Report { removed, removed_hex: hex.iter().any(Option::is_some).then_some(hex) };
    report::emit_done(output.json, output.quiet, "remove", &report, || {
        let count = counted(report.removed.len() as u64, "directory", "directories");
        format!("removed {count}: {}", report.removed.iter().map(|path| escaped(path)).collect::<Vec<_>>().join(", "))
    })?;
    Ok(0)
}

fn remove_one(stored: &Stored, path: &Path) -> Outcome<()> {
    let what = || mounts::show(path);
    let found = stored.find_itself(path).doing(what())?;
    match found.kind {
        FileKind::Directory => {}
        FileKind::Symlink => return Err(Failure::new(what(), "is a symbolic link; only directories are removed")),
        _ => return Err(Failure::new(what(), "is no directory").hint("rm removes files")),
    }
    stored.remove_tree(&found).map_err(|refused| explained(path, refused))
}

/// Explains why a directory was not removed.
fn explained(path: &Path, refused: Refused) -> Failure {
    let hint = match refused.errno {
        errno::EBUSY => "remove what is in it",
        errno::EACCES => "as for rm -r, write permission is needed in its parent and in each directory below",
        errno::EPERM => "the sticky bit of a directory keeps entries that are not yours",
        _ => return Failure::of(mounts::show(path), refused),
    };
    Failure::of(mounts::show(path), refused).hint(hint)
}
