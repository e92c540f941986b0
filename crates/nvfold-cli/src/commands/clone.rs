//! `nvfold clone`: copies a tree on a mount as it is at one instant, by sharing all its data.

use crate::failure::{Doing, Failure, Outcome};
use crate::mount::clones::{self, Permit, Refusal};
use crate::mounts;
use crate::output::Output;
use crate::progress::Progress;
use crate::report;
use crate::size;
use crate::stop::Stop;
use crate::text::counted;
use clap::Args;
use nvfold::{CloneProgress, errno};
use rustix::io::Errno;
use serde::Serialize;
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
}

#[derive(Serialize)]
struct Report {
    source: String,
    target: String,
    /// The number of names below the copy.
    entries: u64,
    /// Bytes that its files share with those of the tree. A file with several names counts once.
    bytes: u64,
    seconds: f64,
}

/// Runs the command.
pub(crate) fn run(clone: &Clone, output: &Output) -> Outcome<u8> {
    let Clone { source, target } = clone;
    let stop = Stop::on_signals()?;
    let started = Instant::now();
    let (parent, name) = place_of(target)?;
    let directory = open_source(source)?;
    check_same_mount(source, &directory, target, parent)?;
    clones::source(&directory).map_err(|error| no_source(source, error))?;
    if target.symlink_metadata().is_ok() {
        return Err(exists(target));
    }
    let permit = Permit::to_make_names_in(parent).map_err(|error| no_permit(parent, error))?;
    let mut progress = Progress::new(output.progress, "clone", 0);
    let note = |so_far: CloneProgress| move || counted(so_far.entries, "entry", "entries");
    let cloned = permit.clone_tree(&directory, name, LOOK_EVERY, |so_far| {
        progress.update(so_far.bytes, note(so_far));
        !stop.is_asked()
    });
    let cloned = cloned.doing(mounts::show(source))?;
    let CloneProgress { entries, bytes } = cloned.map_err(|refusal| refused(source, target, refusal, &stop))?;
    progress.finish(bytes, note(CloneProgress { entries, bytes }));
    let seconds = started.elapsed().as_secs_f64();
    let report = Report { source: mounts::show(source), target: mounts::show(target), entries, bytes, seconds };
    report::emit(output.json, "clone", &report, || describe(&report))?;
    Ok(0)
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
    if let (errno::ECANCELED, Some(signal)) = (refusal.errno, stop.signal()) {
        return Failure::new(mounts::show(target), "interrupted; nothing was cloned").by_signal(signal);
    }
    let path = OsStr::from_bytes(&refusal.path);
    match refusal.errno {
        errno::EEXIST => exists(target),
        errno::EACCES | errno::EPERM if !path.is_empty() => {
            let failure = Failure::new(mounts::show(&source.join(path)), refusal.why);
            failure.hint("root can clone it, and `cp -a` copies the rest")
        }
        errno::EACCES => Failure::new(mounts::show(source), refusal.why),
        errno::EOPNOTSUPP => Failure::new(mounts::show(source), refusal.why),
        _ => Failure::new(mounts::show(target), refusal.why),
    }
}

fn describe(report: &Report) -> String {
    let Report { source, target, entries, bytes, seconds } = report;
    let shared = size::show(*bytes);
    report::facts(&[
        ("cloned", format!("{source} to {target}")),
        ("entries", entries.to_string()),
        ("shared", format!("{shared} in {seconds:.3} s")),
    ])
}
