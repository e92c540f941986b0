//! `nvfold clone`: copies a tree on a mount as it is at one instant, by sharing all its data.

use crate::dedup_options::DedupOptions;
use crate::device::{self, DeviceOptions, mount_embedded};
use crate::failure::{Doing, Failure, Outcome};
use crate::mount::clones::{self, Permit, Question, Refusal};
use crate::mounts;
use crate::output::Output;
use crate::progress::Progress;
use crate::report;
use crate::size;
use crate::stop::Stop;
use crate::text::counted;
use clap::Args;
use nvfold::{CloneOptions, CloneProgress, Error, FileKind, errno};
use rustix::io::Errno;
use serde::Serialize;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often progress is asked for, and a signal noticed.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Copy a directory with all that is below it, as it is at one instant, on the same mount
///
/// No data is copied: both trees share it until one of them changes. The copy is that of one instant, across all files,
/// while programs go on writing; what a write(2) had returned before the command began is in it. It is there whole or not
/// at all. Holes, hard links within the tree, times, extended attributes and ACLs are kept. For root, owners are kept too;
/// for others, all of the copy is theirs, and they must be able to read all of the tree. A signal cancels it.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold clone /tmp/fold/work /tmp/fold/copy")]
pub(crate) struct Clone {
    /// Directory on a mount
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Name of the copy, on the same mount; it must not exist
    #[arg(value_name = "DST")]
    target: PathBuf,
    /// Unmounted device on which SRC and DST are paths
    #[arg(long, value_name = "DEVICE")]
    device: Option<PathBuf>,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Serialize)]
struct Report {
    source: String,
    /// The bytes of a path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    source_hex: Option<String>,
    target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_hex: Option<String>,
    /// The number of names below the copy.
    entries: u64,
    /// Bytes that its files share with those of the tree. A file with several names counts once.
    bytes: u64,
    seconds: f64,
}

/// Runs the command.
pub(crate) fn run(clone: &Clone, output: &Output) -> Outcome<u8> {
    let Clone { source, target, device, device_options } = clone;
    let stop = Stop::on_signals()?;
    let started = Instant::now();
    let progress = Progress::new(output.progress, "clone", 0);
    let CloneProgress { entries, bytes } = match device {
        None => on_mount(source, target, progress, &stop)?,
        Some(device) => on_device(device, device_options, (source, target), progress, &stop)?,
    };
    let seconds = started.elapsed().as_secs_f64();
    let report = Report {
        source: mounts::show(source),
        source_hex: mounts::hex(source),
        target: mounts::show(target),
        target_hex: mounts::hex(target),
        entries,
        bytes,
        seconds,
    };
    report::emit_done(output.json, output.quiet, "clone", &report, || describe(&report))?;
    Ok(0)
}

fn on_mount(source: &Path, target: &Path, mut progress: Progress, stop: &Stop) -> Outcome<CloneProgress> {
    let (parent, name) = place_of(target)?;
    let directory = open_source(source)?;
    check_same_mount(source, &directory, target, parent)?;
    clones::source(&directory).map_err(|error| no_source(source, error))?;
    if target.symlink_metadata().is_ok() {
        return Err(exists(target));
    }
    let permit = Permit::to_make_names_in(parent).map_err(|error| no_permit(parent, error))?;
    let question = |source| Question::Clone { source, name: name.as_bytes() }.to_message();
    let cloned = permit.copy(&directory, question, LOOK_EVERY, |so_far| {
        progress.update(so_far.bytes, note(so_far));
        !stop.is_asked()
    });
    let cloned = cloned.doing(mounts::show(source))?;
    let copied = cloned.map_err(|refusal| refused(source, target, refusal, stop))?;
    progress.finish(copied.bytes, note(copied));
    Ok(copied)
}

/// Clones a tree of an unmounted device, which is left clean.
fn on_device(
    device: &Path,
    options: &DeviceOptions,
    (source, target): (&Path, &Path),
    progress: Progress,
    stop: &Stop,
) -> Outcome<CloneProgress> {
    let (parent, name) = place_of(target)?;
    let fs = mount_embedded(device, options, &DedupOptions::default(), false, device::processors())?;
    let progress = RefCell::new(progress);
    let tell = |so_far: CloneProgress| {
        progress.borrow_mut().update(so_far.bytes, note(so_far));
        stop.flow()
    };
    let cloned = || {
        let found = |path: &Path| fs.resolve(path.as_os_str().as_bytes()).doing(mounts::show(path));
        let (top, parent) = (found(source)?, found(parent)?.ino);
        if top.kind != FileKind::Directory {
            return Err(Failure::new(mounts::show(source), "it is not a directory"));
        }
        let options = CloneOptions { caller: None, progress: Some(&tell) };
        match fs.clone_tree(top.ino, parent, name.as_bytes(), &options) {
            Err(error) if error.errno() == errno::ECANCELED => Err(cancelled(target, stop)),
            Err(Error::Exists { .. }) => Err(exists(target)),
            Err(Error::Posix { why, .. }) => Err(Failure::new(mounts::show(target), why)),
            cloned => Ok(cloned.doing(mounts::show(source))?.copied),
        }
    };
    let copied = cloned();
    fs.unmount().doing(mounts::show(device))?;
    let copied = copied?;
    progress.into_inner().finish(copied.bytes, note(copied));
    Ok(copied)
}

fn note(so_far: CloneProgress) -> impl FnOnce() -> String {
    move || counted(so_far.entries, "entry", "entries")
}

/// Splits a new path into its directory and its name.
fn place_of(target: &Path) -> Outcome<(&Path, &OsStr)> {
    let name = target.file_name().ok_or_else(|| Failure::usage(mounts::show(target), "it must end in a new name"))?;
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((parent.unwrap_or(Path::new(".")), name))
}

fn open_source(source: &Path) -> Outcome<File> {
    let name = mounts::show(source);
    if !std::fs::metadata(source).doing(&name)?.is_dir() {
        let why = "it is not a directory";
        return Err(Failure::new(name, why).hint("`cp --reflink=auto` clones a file"));
    }
    File::open(source).doing(name)
}

/// A clone shares data, so both must be on one mount.
fn check_same_mount(source: &Path, directory: &File, target: &Path, parent: &Path) -> Outcome<()> {
    let of = std::fs::metadata(parent).doing(mounts::show(parent))?.dev();
    if of == directory.metadata().doing(mounts::show(source))?.dev() {
        return Ok(());
    }
    let why = format!("it is on another file system than {}, and only one can share data", mounts::show(source));
    Err(Failure::new(mounts::show(target), why).hint("`cp -a` copies to another file system"))
}

fn no_source(source: &Path, error: Errno) -> Failure {
    let name = mounts::show(source);
    match error {
        Errno::NODATA | Errno::OPNOTSUPP => Failure::new(name, "it is not on a mount of nvfold that clones trees")
            .hint(
                "give directories on a mount of this version of nvfold; elsewhere `cp -a --reflink=auto` copies a tree",
            ),
        error => Failure::of(name, io::Error::from(error)),
    }
}

fn exists(target: &Path) -> Failure {
    Failure::new(mounts::show(target), "it exists already").hint("a clone gets a new name: give another one")
}

fn cancelled(target: &Path, stop: &Stop) -> Failure {
    let failure = Failure::new(mounts::show(target), "interrupted; nothing was cloned");
    match stop.signal() {
        Some(signal) => failure.by_signal(signal),
        None => failure,
    }
}

fn no_permit(parent: &Path, error: Errno) -> Failure {
    let name = mounts::show(parent);
    match error {
        Errno::OPNOTSUPP => {
            Failure::new(name, "the kernel cannot make files without a name there, which needs Linux 6.1")
        }
        Errno::OVERFLOW => Failure::new(name, "the mapping of this idmapped mount does not contain the user"),
        error => Failure::of(name, io::Error::from(error)),
    }
}

/// Explains why the server has made no clone.
fn refused(source: &Path, target: &Path, refusal: Refusal, stop: &Stop) -> Failure {
    let path = OsStr::from_bytes(&refusal.path);
    match refusal.errno {
        errno::ECANCELED => cancelled(target, stop),
        errno::EEXIST => exists(target),
        errno::EACCES | errno::EPERM if !path.is_empty() => {
            let failure = Failure::new(mounts::show(&source.join(path)), refusal.why);
            failure.hint("root can clone it, and `cp -a` copies the rest")
        }
        errno::EACCES | errno::EOPNOTSUPP => Failure::new(mounts::show(source), refusal.why),
        _ => Failure::new(mounts::show(target), refusal.why),
    }
}

fn describe(report: &Report) -> String {
    let Report { source, target, entries, bytes, seconds, .. } = report;
    let shared = size::show(*bytes);
    report::facts(&[
        ("cloned", format!("{source} to {target}")),
        ("entries", entries.to_string()),
        ("shared", format!("{shared} in {seconds:.3} s")),
    ])
}
