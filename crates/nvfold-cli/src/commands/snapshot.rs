//! `nvfold snapshot`: trees as they were at one instant, which nothing can change.

mod diff;

use super::info::show_time;
use crate::dedup_options::DedupOptions;
use crate::device::{self, DeviceOptions, mount_embedded};
use crate::failure::{Doing, Failure, Outcome};
use crate::mount::clones::{self, Permit, Refusal};
use crate::mount::requests;
use crate::mount::snapshots::{self, Figures, SnapshotQuestion};
use crate::mounts;
use crate::output::Output;
use crate::progress::Progress;
use crate::report;
use crate::size;
use crate::stop::Stop;
use crate::text::{counted, escaped};
use clap::{Args, Subcommand};
use nvfold::{CloneProgress, FileSystem, InodeNumber, Policy, SNAPSHOTS, errno};
use rustix::io::Errno;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often progress is asked for, and a signal noticed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Keep trees as they were at one instant: make, list, delete, restore and compare snapshots
///
/// A snapshot is a copy of a directory that shares all its data, and that nobody can change, not even root. It stands at
/// .nvfold/snapshots/NAME in the root of the mount. Listings of the root leave .nvfold out, but it can be entered:
/// whoever could read a file can read it in the snapshot.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold snapshot create before-upgrade", disable_help_subcommand = true)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a snapshot of a directory with all that is below it, as it is at one instant
    ///
    /// Programs may go on writing; what a write(2) had returned before the command began is in it. It is there whole or not
    /// at all. Owners, modes and times stay as they are. Root may do this, and the owner of the root directory of the
    /// mount. A signal cancels it.
    #[command(before_help = "Example: nvfold snapshot create before-upgrade /tmp/fold/work")]
    Create {
        /// Name of the snapshot
        name: OsString,
        /// Directory on a mount [default: the root of the mount that holds the working directory]
        dir: Option<PathBuf>,
    },
    /// List the snapshots of a mount or a device, the oldest first
    ///
    /// For root and the owner of the root directory it shows what each holds, and how much of that is stored for it alone:
    /// deleting it would free this. That takes a look at all of its files. What only several snapshots hold together is in
    /// `nvfold stats`.
    #[command(before_help = "Example: nvfold snapshot list /tmp/fold")]
    List {
        /// Directory on a mount, or an unmounted device
        #[arg(value_name = "DIR|DEVICE", default_value = ".")]
        target: PathBuf,
    },
    /// Delete a snapshot
    ///
    /// It is gone at once; the mount frees what it held in the background, and whoever needs space gets it first. Root may do
    /// this, and the owner of the root directory of the mount.
    #[command(before_help = "Example: nvfold snapshot delete before-upgrade /tmp/fold")]
    Delete {
        /// Name of the snapshot
        name: OsString,
        /// Directory on a mount, or an unmounted device
        #[arg(value_name = "DIR|DEVICE", default_value = ".")]
        target: PathBuf,
    },
    /// Make a directory what a snapshot is, at a new name or in place of a directory
    ///
    /// A directory that is there is replaced by one commit, with all that is below it. Programs that have files of it open
    /// keep these until they close them. Whoever may read all of the snapshot, make the name, and remove the old directory
    /// may do this; for others than root, all of the copy is theirs, as with `nvfold clone`. A signal cancels it.
    #[command(before_help = "Example: nvfold snapshot restore before-upgrade /tmp/fold/work")]
    Restore {
        /// Name of the snapshot
        name: OsString,
        /// Directory on the same mount: a new name, or the directory to replace
        dir: PathBuf,
    },
    /// Show what differs between two directories of a mount, or snapshots
    ///
    /// Prints a line for each difference: `+` only B has it, `-` only A has it, `M` other content, `a` other mode, owner,
    /// times or extended attributes, `T` another kind. Below a directory that only one of them has, nothing is listed.
    /// Data that both share is not read. The exit code is 0 if they are equal, 1 if they differ, and 2 if something could not
    /// be compared.
    #[command(before_help = "Example: nvfold snapshot diff snapshot:before-upgrade /tmp/fold/work")]
    Diff {
        /// Directory, or snapshot:NAME, or snapshot:NAME/PATH
        #[arg(value_name = "A")]
        one: OsString,
        /// The same. If both are snapshots, they are of the mount that holds the working directory
        #[arg(value_name = "B")]
        other: OsString,
    },
}

/// Runs the command.
pub(crate) fn run(snapshot: &Snapshot, output: &Output) -> Outcome<u8> {
    match &snapshot.action {
        Action::Create { name, dir } => create(name, dir.as_deref(), output),
        Action::List { target } => list(target, output),
        Action::Delete { name, target } => delete(name, target, output),
        Action::Restore { name, dir } => restore(name, dir, output),
        Action::Diff { one, other } => diff::run(one, other, output),
    }
}

/// The root of the mount that holds a directory.
struct Root(PathBuf);

impl Root {
    fn of(dir: &Path) -> Outcome<Root> {
        if !requests::answers(dir).doing(mounts::show(dir))? {
            let why = "it is not on a mount of nvfold";
            return Err(Failure::new(mounts::show(dir), why).hint("give a directory on a mount"));
        }
        let found = dir.canonicalize().doing(mounts::show(dir))?;
        let of = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
        let (number, _) = of(&found).doing(mounts::show(&found))?;
        let on_mount = found.ancestors().take_while(|path| of(path).is_ok_and(|(device, _)| device == number));
        let top = on_mount.last().unwrap_or(&found).to_owned();
        match of(&top).doing(mounts::show(&top))? {
            (_, ino) if ino == InodeNumber::ROOT.0 => Ok(Root(top)),
            _ => Err(Failure::new(mounts::show(&top), "it is a part of a mount, and snapshots are in the root of it")
                .hint("give a directory below the mount point itself")),
        }
    }

    fn snapshots(&self) -> PathBuf {
        SNAPSHOTS.iter().fold(self.0.clone(), |path, name| path.join(OsStr::from_bytes(name)))
    }

    /// Returns the directory of a snapshot.
    fn snapshot(&self, name: &OsStr) -> Outcome<PathBuf> {
        let path = self.snapshots().join(name);
        let is_a_name = path.file_name() == Some(name) && !name.as_bytes().contains(&b'/');
        match path.symlink_metadata() {
            Ok(_) if is_a_name => Ok(path),
            Err(error) if is_a_name && error.kind() != ErrorKind::NotFound => {
                Err(Failure::of(mounts::show(&path), error))
            }
            _ => Err(absent(name)),
        }
    }
}

fn absent(name: &OsStr) -> Failure {
    Failure::new(mounts::show(name), "there is no such snapshot").hint("`nvfold snapshot list` shows those there are")
}

fn open_directory(dir: &Path) -> Outcome<File> {
    let name = mounts::show(dir);
    if !std::fs::metadata(dir).doing(&name)?.is_dir() {
        return Err(Failure::new(name, "it is not a directory"));
    }
    File::open(dir).doing(name)
}

fn check_has_token(dir: &Path, directory: &File) -> Outcome<()> {
    clones::source(directory).map(drop).map_err(|error| match error {
        Errno::NODATA | Errno::OPNOTSUPP => {
            Failure::new(mounts::show(dir), "its mount is of a version of nvfold without snapshots")
        }
        error => Failure::of(mounts::show(dir), io::Error::from(error)),
    })
}

#[derive(Serialize)]
struct Made {
    name: String,
    /// The bytes of a name or path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    directory: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    directory_hex: Option<String>,
    /// The number of names in it.
    entries: u64,
    /// Bytes that its files share. A file with several names counts once.
    bytes: u64,
    seconds: f64,
}

fn create(name: &OsStr, dir: Option<&Path>, output: &Output) -> Outcome<u8> {
    let stop = Stop::on_signals()?;
    let root = Root::of(dir.unwrap_or(Path::new(".")))?;
    let dir = dir.unwrap_or(&root.0);
    let directory = open_directory(dir)?;
    check_has_token(dir, &directory)?;
    let permit = Permit::to_make_names_in(&root.0).map_err(|error| match error {
        Errno::ACCESS | Errno::PERM => not_in_charge(name, "make"),
        error => Failure::of(mounts::show(&root.0), io::Error::from(error)),
    })?;
    let copy = Copy { permit: &permit, from: &directory, verb: "snapshot", stop: &stop };
    let made = copy.make(output, |source| SnapshotQuestion::Create { source, name: name.as_bytes() });
    let made = made.doing(mounts::show(dir))?.map_err(|refusal| refused(name, "make", refusal, &stop))?;
    made.emit("snapshot-create", name, dir, output)
}

fn restore(name: &OsStr, dir: &Path, output: &Output) -> Outcome<u8> {
    let stop = Stop::on_signals()?;
    // The name of the directory itself, not of what a link leads to.
    let target = dir.components().as_path();
    let target_name = target.file_name();
    let target_name = target_name.ok_or_else(|| Failure::usage(mounts::show(dir), "it must end in a name"))?;
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let root = Root::of(parent)?;
    let top = root.snapshot(name)?;
    let snapshot = open_directory(&top)?;
    check_has_token(&top, &snapshot)?;
    let permit =
        Permit::to_make_names_in(parent).map_err(|error| Failure::of(mounts::show(parent), io::Error::from(error)))?;
    let copy = Copy { permit: &permit, from: &snapshot, verb: "restore", stop: &stop };
    let made = copy.make(output, |source| SnapshotQuestion::Restore { snapshot: source, name: target_name.as_bytes() });
    let made = made.doing(mounts::show(&top))?.map_err(|refusal| not_restored(&top, dir, refusal, &stop))?;
    made.emit("snapshot-restore", name, dir, output)
}

/// A copy that the server makes.
struct Copy<'c> {
    permit: &'c Permit,
    from: &'c File,
    verb: &'static str,
    stop: &'c Stop,
}

/// What was copied, and in how many seconds.
struct Copied(CloneProgress, f64);

impl Copy<'_> {
    fn make<'n>(
        &self,
        output: &Output,
        question: impl Fn(clones::SourceToken) -> SnapshotQuestion<'n>,
    ) -> io::Result<Result<Copied, Refusal>> {
        let started = Instant::now();
        let mut progress = Progress::new(output.progress, self.verb, 0);
        let note = |so_far: CloneProgress| move || counted(so_far.entries, "entry", "entries");
        let question = |source| question(source).to_message();
        let copied = self.permit.copy(self.from, question, LOOK_EVERY, |so_far| {
            progress.update(so_far.bytes, note(so_far));
            !self.stop.is_asked()
        })?;
        Ok(copied.map(|copied| {
            progress.finish(copied.bytes, note(copied));
            Copied(copied, started.elapsed().as_secs_f64())
        }))
    }
}

impl Copied {
    fn emit(self, command: &str, name: &OsStr, directory: &Path, output: &Output) -> Outcome<u8> {
        let Copied(CloneProgress { entries, bytes }, seconds) = self;
        let made = Made {
            name: mounts::show(name),
            name_hex: mounts::hex(name),
            directory: mounts::show(directory),
            directory_hex: mounts::hex(directory),
            entries,
            bytes,
            seconds,
        };
        report::emit_done(output.json, output.quiet, command, &made, || {
            report::facts(&[
                ("snapshot", made.name.clone()),
                ("directory", made.directory.clone()),
                ("entries", entries.to_string()),
                ("shared", format!("{} in {seconds:.3} s", size::show(bytes))),
            ])
        })?;
        Ok(0)
    }
}

fn not_in_charge(name: &OsStr, verb: &str) -> Failure {
    let why = format!("only root and the owner of the root directory of the mount may {verb} snapshots");
    Failure::new(mounts::show(name), why)
}

fn interrupted(what: &OsStr, refusal: &Refusal, stop: &Stop) -> Option<Failure> {
    let signal = stop.signal().filter(|_| refusal.errno == errno::ECANCELED)?;
    Some(Failure::new(mounts::show(what), "interrupted; nothing was changed").by_signal(signal))
}

/// Explains why a snapshot was not made or deleted.
fn refused(name: &OsStr, verb: &str, refusal: Refusal, stop: &Stop) -> Failure {
    if let Some(failure) = interrupted(name, &refusal, stop) {
        return failure;
    }
    match refusal.errno {
        errno::EEXIST => Failure::new(mounts::show(name), "there is a snapshot of this name already")
            .hint("choose another name, or delete it with `nvfold snapshot delete`"),
        errno::ENOENT => absent(name),
        errno::EPERM => not_in_charge(name, verb),
        _ => Failure::new(mounts::show(name), refusal.why),
    }
}

fn not_restored(top: &Path, dir: &Path, refusal: Refusal, stop: &Stop) -> Failure {
    if let Some(failure) = interrupted(dir.as_os_str(), &refusal, stop) {
        return failure;
    }
    match OsStr::from_bytes(&refusal.path) {
        path if path.is_empty() => Failure::new(mounts::show(dir), refusal.why),
        path => Failure::new(mounts::show(&top.join(path)), refusal.why),
    }
}

#[derive(Serialize)]
struct Deleted {
    deleted: String,
    /// The bytes of the name in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted_hex: Option<String>,
}

fn delete(name: &OsStr, target: &Path, output: &Output) -> Outcome<u8> {
    if std::fs::metadata(target).doing(mounts::show(target))?.is_dir() {
        Root::of(target)?;
        let directory = open_directory(target)?;
        check_has_token(target, &directory)?;
        let done = snapshots::delete(&directory, name).doing(mounts::show(target))?;
        done.map_err(|refusal| refused(name, "delete", refusal, &Stop::default()))?;
    } else {
        let dedup = DedupOptions::of(Policy::Off);
        let fs = mount_embedded(target, &DeviceOptions::default(), &dedup, false, device::processors())?;
        let done = fs.delete_snapshot(name.as_bytes());
        fs.unmount().doing(mounts::show(target))?;
        done.map_err(|error| match error.errno() {
            errno::ENOENT => absent(name),
            _ => Failure::of(mounts::show(name), error),
        })?;
    }
    let report = Deleted { deleted: mounts::show(name), deleted_hex: mounts::hex(name) };
    report::emit_done(output.json, output.quiet, "snapshot-delete", &report, || {
        format!("deleted {}", escaped(&report.deleted))
    })?;
    Ok(0)
}

#[derive(Serialize)]
struct Listed {
    snapshots: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    /// The bytes of the name in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    /// In nanoseconds since 1970; absent if this user cannot read it.
    created_ns: Option<i64>,
    /// Absent if this user may not know.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    holds: Option<Holds>,
}

#[derive(Serialize)]
struct Holds {
    entries: u64,
    logical_bytes: u64,
    /// Bytes that deleting it would free.
    alone_bytes: u64,
}

fn list(target: &Path, output: &Output) -> Outcome<u8> {
    let is_mount = std::fs::metadata(target).doing(mounts::show(target))?.is_dir();
    let mut snapshots = if is_mount { on_mount(&Root::of(target)?)? } else { on_device(target)? };
    snapshots.sort_by(|one, other| (one.created_ns, &one.name).cmp(&(other.created_ns, &other.name)));
    let report = Listed { snapshots };
    report::emit(output.json, "snapshot-list", &report, || describe(&report))?;
    Ok(0)
}

fn on_mount(root: &Root) -> Outcome<Vec<Row>> {
    let home = root.snapshots();
    let names = match std::fs::read_dir(&home) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        names => names.doing(mounts::show(&home))?,
    };
    let mut rows = Vec::new();
    for name in names {
        let name = name.doing(mounts::show(&home))?.file_name();
        let top = home.join(&name);
        let figures = match File::open(&top) {
            // It was deleted meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(_) => None,
            Ok(open) => match snapshots::figures(&open).doing(mounts::show(&top))? {
                Ok(figures) => Some(figures),
                Err(refusal) if refusal.errno == errno::EINVAL => continue,
                Err(refusal) => return Err(Failure::new(mounts::show(&top), refusal.why)),
            },
        };
        rows.push(row(&name, figures));
    }
    Ok(rows)
}

fn on_device(device: &Path) -> Outcome<Vec<Row>> {
    let fs = mount_embedded(device, &DeviceOptions::default(), &DedupOptions::of(Policy::Off), true, 1)?;
    let of = |fs: &FileSystem| -> nvfold::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for snapshot in fs.snapshots()? {
            let figures = Figures { created_ns: snapshot.attr.btime, usage: Some(fs.snapshot_usage(&snapshot)?) };
            rows.push(row(OsStr::from_bytes(&snapshot.name), Some(figures)));
        }
        Ok(rows)
    };
    of(&fs).doing(mounts::show(device))
}

fn row(name: &OsStr, figures: Option<Figures>) -> Row {
    let holds = figures.and_then(|figures| figures.usage).map(|usage| {
        let nvfold::SnapshotUsage { entries, logical_bytes, alone_bytes } = usage;
        Holds { entries, logical_bytes, alone_bytes }
    });
    let created_ns = figures.map(|figures| figures.created_ns);
    Row { name: mounts::show(name), name_hex: mounts::hex(name), created_ns, holds }
}

fn describe(report: &Listed) -> String {
    let unknown = || "-".to_owned();
    let row = |row: &Row| {
        let mut cells = vec![row.name.clone(), row.created_ns.map_or_else(unknown, show_time)];
        match &row.holds {
            Some(holds) => cells.extend([
                holds.entries.to_string(),
                size::show(holds.logical_bytes),
                size::show(holds.alone_bytes),
            ]),
            None => cells.extend([unknown(), unknown(), unknown()]),
        }
        cells
    };
    report::table(&["snapshot", "created", "entries", "logical", "alone"], report.snapshots.iter().map(row))
}
