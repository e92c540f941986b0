//! `nvfold serve`: mounts and serves what a file describes, for a service manager.
//!
//! The units in packaging/systemd call it in [`Step`]s: the server runs in a sandbox, what needs rights runs before it and
//! after it. Without a step, and without a manager, one process does all.

use crate::failure::Outcome;
use crate::mount::{device_words, serve};
use crate::mounts;
use crate::output::Output;
use crate::report;
use crate::service::{self, Service, file_of};
use crate::size;
use crate::statistics::Statistics;
use crate::text::escaped;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Mount and serve what a file describes, as a service: systemctl start nvfold@NAME
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold serve worktrees --step check")]
#[command(after_long_help = HELP)]
pub(crate) struct Serve {
    /// Name of the service, described by /etc/nvfold/NAME.toml (for a user by ~/.config/nvfold/NAME.toml), or a file
    #[arg(value_name = "NAME|FILE")]
    named: PathBuf,
    /// Do one step of the service alone; the units call it so
    #[arg(long, value_enum)]
    step: Option<Step>,
}

const HELP: &str = "\
The file is TOML:

  device = \"mem:\"                     or the path of a device
  size = \"8G\"                         of a device in memory (mem:)
  mountpoint = \"/srv/worktrees\"       made if it is missing
  options = [\"compress=zstd\", \"ro\"]   as after -o of `nvfold mount`
  log = \"info\"                        as -o log=
  metrics = \"unix:/run/nvfold/worktrees/metrics\"   as -o metrics=

device and mountpoint are needed. Without --step this mounts, serves until it is unmounted or ended by a signal, and tells
the service manager when the mount answers. docs/operating/service.md describes the units.";

/// A step of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Check the file; change nothing
    Check,
    /// Mount, and hand the mount to the service manager for the server
    Mount,
    /// Change the mount to what the file says now: ro, nosuid, nodev, noexec, sync
    Reload,
    /// Unmount; a mount in use is detached and ended after 5 seconds
    Stop,
    /// Take away what a server that was killed has left
    Clear,
}

/// Runs the command.
pub(crate) fn run(command: &Serve, output: &Output) -> Outcome<u8> {
    let file = file_of(&command.named)?;
    if command.step.is_some_and(|step| step != Step::Check) {
        service::enter_its_namespace()?;
    }
    match command.step {
        None => serve_all(&file, output.json)?,
        Some(Step::Check) => check(&file, output.json)?,
        Some(Step::Mount) => service::mount(&Service::read(&file)?)?,
        Some(Step::Reload) => service::reload(&Service::read(&file)?)?,
        // These must work whatever has become of the file.
        Some(Step::Stop) => service::stop(mount_point_in(&file).as_deref())?,
        Some(Step::Clear) => service::clear(mount_point_in(&file).as_deref())?,
    }
    Ok(0)
}

fn mount_point_in(file: &Path) -> Option<PathBuf> {
    Service::read(file).ok().map(|service| service.mountpoint)
}

fn serve_all(file: &Path, json: bool) -> Outcome<()> {
    let described = Service::read(file)?;
    let handed = service::handed()?;
    let is_own = handed.is_none();
    if is_own {
        service::make_directory(&described.mountpoint)?;
    }
    service::starting("Reading what the device holds; after a crash this recovers it");
    serve(described.plan(handed, service::stopping), |statistics| {
        if is_own {
            let dir = statistics.mount_point.as_deref().unwrap_or_default();
            mounts::at(Path::new(dir)).as_ref().map_or(Ok(()), service::note)?;
        } else {
            service::forget_handed();
        }
        service::ready(&sentence(statistics));
        report::emit(json, "serve", statistics, || sentence(statistics))
    })
}

/// Describes a mount in a sentence, for `systemctl status`.
fn sentence(statistics: &Statistics) -> String {
    let dir = statistics.mount_point.as_deref().unwrap_or_default();
    let access = if statistics.read_only { "read-only" } else { "read-write" };
    escaped(&format!("Serving {} on {dir}, {access}", device_words(statistics)))
}

/// What a file describes.
#[derive(Serialize)]
struct Described {
    file: String,
    device: String,
    mount_point: String,
    size_bytes: Option<u64>,
    options: Vec<String>,
}

fn check(file: &Path, json: bool) -> Outcome<()> {
    let service = Service::read(file)?;
    let described = Described {
        file: mounts::show(file),
        device: mounts::show(&service.device),
        mount_point: mounts::show(&service.mountpoint),
        size_bytes: service.options.size_bytes,
        options: service.said,
    };
    report::emit(json, "serve", &described, || {
        let Described { file, device, mount_point, size_bytes, options } = &described;
        let size = size_bytes.map(|bytes| format!(" of {}", size::show(bytes))).unwrap_or_default();
        let options = if options.is_empty() { "no options".into() } else { format!("options {}", options.join(",")) };
        escaped(&format!("{file}: {device}{size} on {mount_point}, {options}"))
    })
}
