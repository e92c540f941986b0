//! `nvfold fsck`: checks the numbered invariants of an unmounted device, shows what a repair would give up, repairs
//! the device, and undoes a repair.
//!
//! A repair first saves what it overwrites in an undo file with a new name: next to the device if that is a regular
//! file, else in /var/tmp.
//!
//! The options and exit codes are those of fsck(8), so that it works at boot.

use crate::device::{self, DeviceOptions};
use crate::failure::{Doing, Failure, Outcome};
use crate::mounts;
use crate::output::Output;
use crate::report;
use crate::size;
use crate::statistics::usage_words;
use crate::text::{counted, escaped};
use clap::Args;
use nvfold::Usage;
use nvfold::check::{CheckOptions, CheckReport as Checked, UndoFile, check_and_keep};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Exit code: the file system is consistent.
const CONSISTENT: u8 = 0;
/// Exit code: errors were corrected.
const CORRECTED: u8 = 1;
/// Exit code: errors are left.
const LEFT: u8 = 4;
/// Exit code: the check itself failed.
pub(crate) const OPERATIONAL: u8 = 8;
/// Exit code: mistake on the command line.
pub(crate) const USAGE: u8 = 16;

/// Check an unmounted device, and repair it with -y (exit codes as fsck(8))
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold fsck /dev/shm/pool")]
pub(crate) struct Fsck {
    /// Unmounted device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Repair: give up inodes that cannot be read, and move files and directories without a name to lost+found
    #[arg(short = 'y', long)]
    repair: bool,
    /// New file in which a repair saves what it overwrites [default: DEVICE.undo, next to a device that is a regular
    /// file, else in /var/tmp]
    #[arg(long, value_name = "FILE", conflicts_with = "restore")]
    undo: Option<PathBuf>,
    /// Undo the repair that wrote this file; undo the newest repair first
    #[arg(long, value_name = "FILE", conflicts_with_all = ["repair", "preen", "no_changes"])]
    restore: Option<PathBuf>,
    /// Repair as at boot; skip a cleanly unmounted device unless -f is given
    #[arg(short = 'p', long, visible_short_alias = 'a')]
    preen: bool,
    /// Change nothing, even if other options ask for it
    #[arg(short = 'n', long)]
    no_changes: bool,
    /// Check even a cleanly unmounted device (only -p skips it)
    #[arg(short = 'f', long)]
    force: bool,
    /// Do not read file data: no check of fingerprints, no search for bad memory
    #[arg(long)]
    metadata_only: bool,
    #[command(flatten)]
    device_options: DeviceOptions,
    /// From fsck(8)
    #[arg(short = 'v', hide = true)]
    verbose: bool,
    #[arg(short = 'r', hide = true)]
    interactive: bool,
    #[arg(short = 'C', hide = true, num_args = 0..=1, require_equals = true)]
    progress_fd: Option<Option<i32>>,
}

#[derive(Serialize)]
struct Report {
    device: String,
    /// True if nothing is left to repair.
    consistent: bool,
    /// True if the last unmount was clean.
    clean: bool,
    /// Traces of a crash that the next mount removes by itself.
    recoverable: u64,
    /// Directories of trees that were being made or removed, among them.
    unfinished: u64,
    findings: Vec<Finding>,
    findings_unlisted: u64,
    /// What a repair would give up, or has given up.
    given_up: Vec<GivenUp>,
    /// What a repair moved to lost+found.
    moved: Vec<Moved>,
    /// The undo file of a repair.
    undo: Option<String>,
    inodes: u64,
    directories: u64,
    names: u64,
    extents: u64,
    blocks: u64,
    chunks: u64,
    /// What every stored byte is for.
    usage: Usage,
    /// Bytes of file data that were not compared with a fingerprint.
    uncompared_bytes: u64,
    metadata_blocks: u64,
    log_areas: u64,
    log_lines: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct Finding {
    /// The number of the invariant; 0 means the format.
    invariant: u8,
    what: String,
    /// Offset on the device, in bytes.
    at: u64,
    repaired: bool,
}

#[derive(Serialize)]
struct GivenUp {
    inode: u64,
    path: Option<String>,
    /// The bytes of the path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    why: String,
}

#[derive(Serialize)]
struct Moved {
    inode: u64,
    path: String,
}

/// The result of undoing a repair.
#[derive(Serialize)]
struct Restored {
    device: String,
    undo: String,
    bytes: u64,
}

/// An undo file that is being written.
struct Appended(File);

impl UndoFile for Appended {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)?;
        self.0.sync_data()
    }
}

/// Creates a new undo file and returns it with its path.
fn create_undo(fsck: &Fsck) -> io::Result<(File, PathBuf)> {
    // It holds what files held. A name that is there already, a symbolic link too, is refused.
    let create = |path: &Path| File::options().write(true).create_new(true).mode(0o600).open(path);
    if let Some(path) = &fsck.undo {
        return Ok((create(path)?, path.clone()));
    }
    let name = fsck.device.file_name().unwrap_or_default().to_owned();
    let is_file = std::fs::metadata(&fsck.device)?.is_file();
    let dir = if is_file { fsck.device.parent().unwrap_or(Path::new("")) } else { Path::new("/var/tmp") };
    for number in 0.. {
        let mut name = name.clone();
        name.push(if number == 0 { ".undo".to_owned() } else { format!(".undo.{number}") });
        let path = dir.join(name);
        match create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return Ok((made?, path)),
        }
    }
    unreachable!("some number is free")
}

fn restore(fsck: &Fsck, undo: &Path, output: &Output) -> Outcome<u8> {
    let name = mounts::show(&fsck.device);
    let file = std::fs::read(undo).doing(mounts::show(undo))?;
    let region = device::open(&fsck.device, &fsck.device_options, false)?;
    let bytes = nvfold::check::restore(&region, &file).map_err(|error| match error {
        nvfold::Error::Undo { why } => Failure::new(mounts::show(undo), format!("the repair cannot be undone: {why}")),
        error => Failure::of(&name, error),
    })?;
    let report = Restored { device: name, undo: mounts::show(undo), bytes };
    report::emit(output.json, "fsck-restore", &report, || {
        format!(
            "{}: {bytes} bytes are put back from {}; the device is as it was before the repair",
            report.device, report.undo
        )
    })?;
    Ok(CONSISTENT)
}

/// Runs the command.
pub(crate) fn run(fsck: &Fsck, output: &Output) -> Outcome<u8> {
    if let Some(undo) = &fsck.restore {
        return restore(fsck, undo, output);
    }
    let name = mounts::show(&fsck.device);
    let repair = (fsck.repair || fsck.preen) && !fsck.no_changes;
    let region = device::open(&fsck.device, &fsck.device_options, !repair)?;
    if fsck.preen && !fsck.force && nvfold::read_superblock(&region).is_ok_and(|(found, _)| found.is_clean()) {
        let report = Report::new(&name, Checked { clean: true, ..Checked::default() }, 0.0);
        report::emit(output.json, "fsck", &report, || {
            format!("{name}: it was unmounted cleanly, so it is not checked (-f checks it all the same)")
        })?;
        return Ok(CONSISTENT);
    }
    let started = Instant::now();
    let mut undo = None;
    let keep = || {
        let (file, path) = create_undo(fsck)?;
        undo = Some(mounts::show(&path));
        Ok(Box::new(Appended(file)) as Box<dyn UndoFile>)
    };
    let checked = match check_and_keep(&region, &CheckOptions { repair, data: !fsck.metadata_only }, keep) {
        Err(
            error @ (nvfold::Error::Corrupt { .. }
            | nvfold::Error::NoSuperblock { .. }
            | nvfold::Error::Truncated { .. }),
        ) => {
            // The damage prevents any check. That leaves errors, but the command itself did not fail.
            Failure::of(&name, error).report("fsck");
            return Ok(LEFT);
        }
        checked => checked.doing(&name)?,
    };
    let crash_recovered = repair && !checked.clean && checked.is_consistent();
    let any_repaired = checked.findings.iter().any(|finding| finding.repaired);
    let code = match checked.is_consistent() {
        false => LEFT,
        true if any_repaired || crash_recovered => CORRECTED,
        true => CONSISTENT,
    };
    let report = Report { undo, ..Report::new(&name, checked, started.elapsed().as_secs_f64()) };
    report::emit(output.json, "fsck", &report, || describe(&report, repair, fsck.metadata_only))?;
    Ok(code)
}

impl Report {
    fn new(device: &str, checked: Checked, seconds: f64) -> Report {
        let finding = |finding: &nvfold::check::Finding| Finding {
            invariant: finding.invariant,
            what: finding.what.clone(),
            at: finding.at,
            repaired: finding.repaired,
        };
        Report {
            device: device.to_owned(),
            consistent: checked.is_consistent(),
            clean: checked.clean,
            recoverable: checked.recoverable,
            unfinished: checked.unfinished,
            findings: checked.findings.iter().map(finding).collect(),
            findings_unlisted: checked.findings_unlisted,
            given_up: checked
                .given_up
                .into_iter()
                .map(|lost| GivenUp {
                    inode: lost.ino,
                    path: lost.path.as_ref().map(mounts::show),
                    path_hex: lost.path.as_ref().and_then(mounts::hex),
                    why: lost.why,
                })
                .collect(),
            moved: checked.moved.into_iter().map(|moved| Moved { inode: moved.ino, path: moved.path }).collect(),
            undo: None,
            inodes: checked.inodes,
            directories: checked.directories,
            names: checked.names,
            extents: checked.extents,
            blocks: checked.blocks,
            chunks: checked.chunks,
            usage: checked.usage,
            uncompared_bytes: checked.uncompared_bytes,
            metadata_blocks: checked.metadata_blocks,
            log_areas: checked.log_areas,
            log_lines: checked.log_lines,
            seconds,
        }
    }
}

fn describe(report: &Report, repair: bool, metadata_only: bool) -> String {
    let mut lines = Vec::new();
    for finding in &report.findings {
        let state = if finding.repaired { "repaired" } else { "left" };
        let rule = if finding.invariant == 0 { "format".into() } else { format!("invariant {}", finding.invariant) };
        lines.push(format!("{rule}: {} (at {:#x}): {state}", finding.what, finding.at));
    }
    if report.findings_unlisted > 0 {
        let more = counted(report.findings_unlisted, "more finding is", "more findings are");
        lines.push(format!("{more} not listed"));
    }
    for GivenUp { inode, path, why, .. } in &report.given_up {
        let what = if repair { "given up" } else { "a repair would give up" };
        let path = path.as_deref().unwrap_or("no name leads to it");
        lines.push(format!("{what}: inode {inode} ({path}): {why}"));
    }
    lines.extend(report.moved.iter().map(|Moved { inode, path }| format!("lost its name: inode {inode}, now {path}")));
    lines.push(format!(
        "{}: {} ({}, {}), {}, {} in {:.2} s",
        report.device,
        counted(report.inodes, "inode", "inodes"),
        counted(report.directories, "directory", "directories"),
        counted(report.names, "name", "names"),
        counted(report.extents, "extent", "extents"),
        counted(report.blocks, "block", "blocks"),
        report.seconds
    ));
    if report.unfinished > 0 {
        let directories = counted(report.unfinished, "directory", "directories");
        lines.push(format!(
            "unfinished: {directories} of trees that were being made or removed; the next mount frees them"
        ));
    }
    lines.push(usage_words(&report.usage));
    let left = report.findings.iter().filter(|finding| !finding.repaired).count() as u64 + report.findings_unlisted;
    let errors = counted(left, "error is", "errors are");
    let given_up = counted(report.given_up.len() as u64, "inode", "inodes");
    lines.push(match (report.consistent, report.clean) {
        (false, _) if repair => format!("{errors} left; copy what can be read with `nvfold export`"),
        (false, _) if report.given_up.is_empty() => {
            format!("{errors} found; -y repairs the device")
        }
        (false, _) => format!(
            "{errors} found; copy what can be read with `nvfold export`, then -y repairs the device and gives up the \
             {given_up} above"
        ),
        (true, false) if !repair => {
            "the device is consistent, but was not unmounted: the next mount recovers it".into()
        }
        (true, _) => "the device is consistent".into(),
    });
    if report.uncompared_bytes > 0 {
        let why = if metadata_only { "--metadata-only" } else { "nothing to compare it with is stored" };
        let bytes = size::show(report.uncompared_bytes);
        lines.push(format!("not compared: {bytes} of file data ({why}); damage there is not found"));
    }
    if let Some(undo) = &report.undo {
        lines.push(format!(
            "what was overwritten is in {undo}; `nvfold fsck --restore {undo} {}` puts it back",
            report.device
        ));
    }
    lines.iter().map(|line| escaped(line)).collect::<Vec<_>>().join("\n")
}
