//! `nvfold sync`: makes durable what was written to a mount.

use crate::failure::{Failure, Outcome};
use crate::mount::requests;
use crate::mounts;
use crate::output::Output;
use crate::report;
use crate::statistics::mount_point_of;
use crate::text::escaped;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Make everything written to a mount durable now
///
/// A device in a plain file (level `file`) is synced by fsync(2), a second after a burst of writes has ended, and at
/// least every 5 seconds; this command does it now. At the other levels what was written is as durable as it gets once
/// the kernel has passed it on. This command waits for that first, also for files that programs have open or mapped;
/// data that could not be stored makes it fail. sync(1) and sync -f do neither: for file systems in user space the
/// kernel begins to pass on what it has cached, does not wait, and does not tell them, unless they are on a block device.
///
/// The kernel drops what it has cached of files meanwhile, and asks for it again.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold sync /tmp/fold")]
pub(crate) struct Sync {
    /// Mount points or mounted devices; by default all mounts
    #[arg(value_name = "DIR")]
    targets: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    mounts: Vec<Synced>,
}

#[derive(Serialize)]
struct Synced {
    mount_point: String,
    /// The bytes of the path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    mount_point_hex: Option<String>,
    /// `dax`, `memory` or `file`.
    persistence: String,
}

/// Runs the command.
pub(crate) fn run(sync: &Sync, output: &Output) -> Outcome<u8> {
    let dirs = match sync.targets.is_empty() {
        true => mounts::all().into_iter().map(|mounted| mounted.dir).collect(),
        false => sync.targets.iter().map(|target| mount_point_of(target)).collect::<Outcome<Vec<_>>>()?,
    };
    let report = Report { mounts: dirs.iter().map(|dir| synced(dir)).collect::<Outcome<_>>()? };
    if output.json {
        report::emit(true, "sync", &report, String::new)?;
    }
    Ok(0)
}

fn synced(dir: &Path) -> Outcome<Synced> {
    let name = mounts::show(dir);
    let persistence = requests::ask_to_sync(dir)
        .map_err(|error| Failure::new(escaped(&name), format!("what was written to it is not durable: {error}")))?;
    Ok(Synced { mount_point: name, mount_point_hex: mounts::hex(dir), persistence })
}
