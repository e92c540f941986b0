//! `nvfold set` and `nvfold get`: limits of the tree below a directory.

use super::info::show_time;
use crate::dedup_options::DedupOptions;
use crate::device::{self, DeviceOptions, mount_embedded};
use crate::failure::{Doing, Failure, Outcome};
use crate::mount::clones::{self, Refusal};
use crate::mount::limits::{self, KnownLimits, LimitsChange};
use crate::mount::requests;
use crate::mounts;
use crate::output::Output;
use crate::report;
use crate::size;
use clap::Args;
use nvfold::{FileKind, FileSystem, InodeNumber, LimitedTree, Policy, TimeNs, errno};
use rustix::io::Errno;
use serde::Serialize;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Limit the tree below a directory: its data, its inodes, and how long it is kept
///
/// What is stored is charged to the nearest directory above it that has limits: the logical bytes of files, whether
/// they are shared or not, without holes, and each inode, that of the directory too. An operation that would exceed a
/// limit fails with EDQUOT; what is there already may be overwritten and removed. `df` of a directory below shows the
/// limit. Moves and hard links into another tree fail with EXDEV, so mv copies. A tree whose time has come is removed
/// with everything below it, and the mount logs that. Root may set limits, and the user who mounted the file system.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold set limit=8G,inodes=1M,expire=2d /tmp/fold/job")]
pub(crate) struct Set {
    /// What to change, separated by commas: limit=SIZE, inodes=COUNT, expire=TIME (30s, 20m, 12h, 2d or 1w from now).
    /// The value none removes a limit. What is not named stays
    #[arg(value_name = "LIMITS", value_parser = parse)]
    limits: Wanted,
    #[command(flatten)]
    place: Place,
}

/// Show the limits of a tree, and what it uses of them
///
/// They are those of the nearest directory above that has limits. For root and the user who mounted the file system,
/// `get` also looks at all files of the tree, and shows how much is stored for it alone: removing the tree would free
/// this.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold get /tmp/fold/job")]
pub(crate) struct Get {
    #[command(flatten)]
    place: Place,
}

#[derive(Args, Debug)]
struct Place {
    /// Directory on a mount
    dir: PathBuf,
    /// Unmounted device on which DIR is a path
    #[arg(long, value_name = "DEVICE")]
    device: Option<PathBuf>,
    #[command(flatten)]
    device_options: DeviceOptions,
}

/// The limits that a command line names. For each, `None` leaves it, `Some(None)` removes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    logical_bytes: Option<Option<u64>>,
    inodes: Option<Option<u64>>,
    /// From now on.
    expires_in_ns: Option<Option<u64>>,
}

impl Wanted {
    fn at(self, now: TimeNs) -> LimitsChange {
        let Wanted { logical_bytes, inodes, expires_in_ns } = self;
        let expires = expires_in_ns.map(|wanted| wanted.map(|after| now.saturating_add_unsigned(after)));
        LimitsChange { logical_bytes, inodes, expires }
    }
}

/// Parses limits. The error is a sentence, as clap needs it.
fn parse(text: &str) -> Result<Wanted, String> {
    const FORM: &str = "write limit=8G,inodes=1M,expire=2d, or some of them";
    let mut wanted = Wanted::default();
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is no limit; {FORM}"))?;
        let (place, parser): (_, fn(&str) -> Result<u64, String>) = match key {
            "limit" => (&mut wanted.logical_bytes, size::parse),
            "inodes" => (&mut wanted.inodes, size::parse),
            "expire" => (&mut wanted.expires_in_ns, parse_time),
            _ => return Err(format!("there is no limit `{key}`; {FORM}")),
        };
        let limit = if value == "none" { None } else { Some(parser(value).map_err(|why| format!("{key}: {why}"))?) };
        if place.replace(limit).is_some() {
            return Err(format!("{key} is there twice"));
        }
    }
    Ok(wanted)
}

/// Parses a length of time; returns it in nanoseconds.
fn parse_time(text: &str) -> Result<u64, String> {
    const FORM: &str = "write 30s, 20m, 12h, 2d or 1w";
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        "" => return Err(format!("a time needs a unit; {FORM}")),
        _ => return Err(format!("unknown unit `{unit}`; {FORM}")),
    };
    let number: u64 = number.parse().map_err(|_| format!("not a time; {FORM}"))?;
    match number.checked_mul(seconds * NS_PER_SECOND) {
        Some(0) => Err("a tree cannot expire at once; `nvfold remove` removes it".into()),
        Some(ns) => Ok(ns),
        None => Err("longer than 584 years; none is for ever".into()),
    }
}

#[derive(Serialize)]
struct Report {
    directory: String,
    /// The bytes of its path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    directory_hex: Option<String>,
    /// Absent if no limits apply.
    #[serde(flatten)]
    tree: Option<Tree>,
    /// Bytes that only files of the tree, or else below the directory, reference. Absent if this user may not know, or
    /// it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_alone_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Tree {
    /// The directory that has the limits; null if it is above the mount point, or cannot be reached.
    top: Option<String>,
    /// The bytes of its path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_hex: Option<String>,
    top_inode: u64,
    limit_bytes: Option<u64>,
    used_bytes: u64,
    limit_inodes: Option<u64>,
    used_inodes: u64,
    /// In nanoseconds since 1970.
    expires_ns: Option<TimeNs>,
    /// True while files that were there before the limits are still being counted.
    is_being_charged: bool,
}

/// Runs `nvfold set`.
pub(crate) fn set(set: &Set, output: &Output) -> Outcome<u8> {
    let change = set.limits.at(pmem::clock::precise_now_ns());
    emit("set", &set.place, set.place.known(Some(change))?, output)
}

/// Runs `nvfold get`.
pub(crate) fn get(get: &Get, output: &Output) -> Outcome<u8> {
    emit("get", &get.place, get.place.known(None)?, output)
}

impl Place {
    /// Makes a change, if there is one. Returns the limits and the path of their directory; without a change, what the
    /// tree alone stores, too.
    fn known(&self, change: Option<LimitsChange>) -> Outcome<(KnownLimits, Option<PathBuf>)> {
        match &self.device {
            None => self.on_mount(change),
            Some(device) => self.on_device(device, change),
        }
    }

    fn on_mount(&self, change: Option<LimitsChange>) -> Outcome<(KnownLimits, Option<PathBuf>)> {
        let name = mounts::show(&self.dir);
        if !requests::answers(&self.dir).doing(&name)? {
            std::fs::metadata(&self.dir).doing(&name)?;
            let failure = Failure::new(name, "it is not on a mount of nvfold");
            return Err(failure.hint("give a directory on a mount; --device names an unmounted device"));
        }
        if !std::fs::metadata(&self.dir).doing(&name)?.is_dir() {
            return Err(Failure::new(name, NOT_A_DIRECTORY));
        }
        let directory = File::open(&self.dir).doing(&name)?;
        clones::source(&directory).map_err(|error| match error {
            Errno::NODATA | Errno::OPNOTSUPP => {
                Failure::new(&name, "its mount is of a version of nvfold without limits")
            }
            error => Failure::of(&name, io::Error::from(error)),
        })?;
        let asked = match change {
            Some(change) => limits::set(&directory, change),
            None => limits::get(&directory),
        };
        let known = asked.doing(&name)?.map_err(|refusal| refused(&name, refusal))?;
        let top = known.tree.and_then(|tree| path_on_mount(&self.dir, tree.top));
        Ok((known, top))
    }

    fn on_device(&self, device: &Path, change: Option<LimitsChange>) -> Outcome<(KnownLimits, Option<PathBuf>)> {
        let dedup = DedupOptions::of(Policy::Off);
        let fs = mount_embedded(device, &self.device_options, &dedup, change.is_none(), device::processors())?;
        let known = self.known_of(&fs, change);
        if change.is_some() {
            fs.unmount().doing(mounts::show(device))?;
        }
        known
    }

    fn known_of(&self, fs: &FileSystem, change: Option<LimitsChange>) -> Outcome<(KnownLimits, Option<PathBuf>)> {
        let name = mounts::show(&self.dir);
        let directory = fs.resolve(self.dir.as_os_str().as_bytes()).doing(&name)?;
        if directory.kind != FileKind::Directory {
            return Err(Failure::new(name, NOT_A_DIRECTORY));
        }
        let of = || -> nvfold::Result<KnownLimits> {
            if let Some(change) = change {
                fs.change_limits(directory.ino, |limits| change.apply(limits))?;
            }
            let tree = fs.limited_tree(directory.ino)?;
            let top = tree.map_or(directory.ino, |tree| tree.top);
            let stored_alone_bytes = change.is_none().then(|| fs.stored_alone_bytes(top)).transpose()?;
            Ok(KnownLimits { tree, stored_alone_bytes })
        };
        let known = of().map_err(|error| match error {
            nvfold::Error::Posix { why, .. } => Failure::new(&name, why),
            error => Failure::of(&name, error),
        })?;
        let top = known.tree.and_then(|tree| path_on_device(fs, &self.dir, tree.top));
        Ok((known, top))
    }
}

const NOT_A_DIRECTORY: &str = "it is not a directory, and limits are those of a directory";

/// Returns the path of a directory with this number at or above `dir`, as far as the mount point.
fn path_on_mount(dir: &Path, top: InodeNumber) -> Option<PathBuf> {
    let of = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let (device, ino) = of(dir)?;
    if ino == top.0 {
        return Some(dir.to_owned());
    }
    let found = dir.canonicalize().ok()?;
    let on_mount = found.ancestors().take_while(|path| of(path).is_some_and(|(number, _)| number == device));
    on_mount.map(Path::to_owned).find(|path| of(path) == Some((device, top.0)))
}

/// Returns the path of a directory with this number at or above `dir`.
fn path_on_device(fs: &FileSystem, dir: &Path, top: InodeNumber) -> Option<PathBuf> {
    let from_root = Path::new("/").join(dir);
    let is_top = |path: &&Path| fs.resolve(path.as_os_str().as_bytes()).is_ok_and(|found| found.ino == top);
    from_root.ancestors().find(is_top).map(Path::to_owned)
}

/// Explains why the server has not answered.
fn refused(name: &str, refusal: Refusal) -> Failure {
    let failure = Failure::new(name, refusal.why).because_of(refusal.errno);
    if refusal.errno == errno::EPERM { failure.hint("`nvfold get` shows them to everybody") } else { failure }
}

fn emit(command: &str, place: &Place, (known, top): (KnownLimits, Option<PathBuf>), output: &Output) -> Outcome<u8> {
    let tree = known.tree.map(|LimitedTree { top: ino, limits, logical_bytes, inodes, is_being_charged }| Tree {
        top_hex: top.as_ref().and_then(mounts::hex),
        top: top.map(|path| mounts::show(&path)),
        top_inode: ino.0,
        limit_bytes: limits.logical_bytes,
        used_bytes: logical_bytes,
        limit_inodes: limits.inodes,
        used_inodes: inodes,
        expires_ns: limits.expires,
        is_being_charged,
    });
    let directory = mounts::show(&place.dir);
    let directory_hex = mounts::hex(&place.dir);
    let report = Report { directory, directory_hex, tree, stored_alone_bytes: known.stored_alone_bytes };
    let is_quiet = output.quiet && command == "set";
    report::emit_done(output.json, is_quiet, command, &report, || describe(&report))?;
    Ok(0)
}

fn describe(report: &Report) -> String {
    let mut facts = vec![("directory", report.directory.clone())];
    match &report.tree {
        None => facts.push(("limits", "none".into())),
        Some(tree) => {
            let above = || format!("inode {}, above the mount point", tree.top_inode);
            facts.push(("limits", format!("of {}", tree.top.clone().unwrap_or_else(above))));
            let of = |used: String, limit: Option<String>| match limit {
                Some(limit) => format!("{used} of {limit}"),
                None => format!("{used}, no limit"),
            };
            facts.push(("data", of(size::show(tree.used_bytes), tree.limit_bytes.map(size::show))));
            facts.push(("inodes", of(tree.used_inodes.to_string(), tree.limit_inodes.map(|limit| limit.to_string()))));
            facts.push(("expires", tree.expires_ns.map_or_else(|| "never".into(), show_time)));
        }
    }
    if let Some(bytes) = report.stored_alone_bytes {
        facts.push(("stored alone", size::show(bytes)));
    }
    if report.tree.as_ref().is_some_and(|tree| tree.is_being_charged) {
        facts.push(("charging", "goes on: not all that was there before is counted yet".into()));
    }
    report::facts(&facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed_in_any_order_and_leave_what_they_do_not_name() {
        let all = Wanted { logical_bytes: Some(Some(8 << 30)), inodes: Some(Some(1 << 20)), expires_in_ns: Some(None) };
        assert_eq!(parse("limit=8G,inodes=1M,expire=none"), Ok(all));
        assert_eq!(parse("expire=none,inodes=1M,limit=8G"), Ok(all));
        let removed = Wanted { inodes: Some(None), ..Wanted::default() };
        assert_eq!(parse("inodes=none"), Ok(removed));
        let times = ["90s", "90m", "36h", "2d", "3w"].map(|text| parse_time(text).map(|ns| ns / NS_PER_SECOND));
        assert_eq!(times, [90, 5400, 129_600, 172_800, 1_814_400].map(Ok));
        let after = Wanted { expires_in_ns: Some(Some(5)), ..Wanted::default() };
        assert_eq!(after.at(7).expires, Some(Some(12)));
        assert_eq!(after.at(TimeNs::MAX).expires, Some(Some(TimeNs::MAX)));
    }

    #[test]
    fn malformed_limits_are_refused_with_a_reason() {
        for (text, why) in [
            ("", "`` is no limit"),
            ("limit", "`limit` is no limit"),
            ("limit=", "limit: not a size"),
            ("limit=-1", "cannot be negative"),
            ("size=8G", "no limit `size`"),
            ("limit=8G,", "`` is no limit"),
            ("limit=8G,limit=9G", "limit is there twice"),
            ("expire=2", "needs a unit"),
            ("expire=d", "not a time"),
            ("expire=2y", "unknown unit `y`"),
            ("expire=0s", "cannot expire at once"),
            ("expire=99999999999w", "longer than"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
