//! `nvfold snapshot diff`: what differs between two directories of a mount.
//!
//! The command walks both trees itself, so the kernel checks each step against what its user may do. Of two directories
//! that he can read, the server names the files that are equal and that he may read; they are not looked at one by one. Of
//! two other files, the server says which ranges they do not share, and only these are read. So the server tells nobody
//! more than he could find out by reading, and no answer is longer than a few numbers.

use super::Root;
use crate::failure::{Doing, Failure, Outcome};
use crate::mount::snapshots;
use crate::mounts;
use crate::output::Output;
use crate::problems::{Problem, Problems};
use crate::report;
use crate::text::escaped;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The exit code if something could not be compared, as that of diff(1).
const TROUBLE: u8 = 2;
/// The bytes that are compared at a time.
const COMPARED_BYTES: u64 = 256 << 10;
/// The largest list of attributes, and value of one, in bytes (XATTR_SIZE_MAX).
const XATTR_BYTES_MAX: usize = 64 << 10;
const KIND: u32 = 0o170000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Differs {
    Added,
    Removed,
    Content,
    Attributes,
    Kind,
}

impl Differs {
    fn letter(self) -> char {
        match self {
            Differs::Added => '+',
            Differs::Removed => '-',
            Differs::Content => 'M',
            Differs::Attributes => 'a',
            Differs::Kind => 'T',
        }
    }
}

#[derive(Serialize)]
struct Row {
    differs: Differs,
    path: String,
    /// The bytes of the path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
}

#[derive(Serialize)]
struct Report {
    one: String,
    other: String,
    differences: Vec<Row>,
    problem_count: u64,
    problems: Vec<Problem>,
}

/// Runs the command.
pub(super) fn run(one: &OsStr, other: &OsStr, output: &Output) -> Outcome<u8> {
    compared(one, other, output).map_err(|failure| failure.exits_with(TROUBLE))
}

fn compared(one: &OsStr, other: &OsStr, output: &Output) -> Outcome<u8> {
    let (of_one, of_other) = (directory(one, other)?, directory(other, one)?);
    let of = |path: &Path| {
        let found = std::fs::metadata(path).doing(mounts::show(path))?;
        if found.is_dir() { Ok(found) } else { Err(Failure::new(mounts::show(path), "it is not a directory")) }
    };
    let (tops, device) = ([of(&of_one)?, of(&of_other)?], of(&of_one)?.dev());
    if tops[1].dev() != device {
        let why = format!("it is on another file system than {}", mounts::show(&of_one));
        return Err(Failure::new(mounts::show(&of_other), why).hint("`diff -r` compares directories anywhere"));
    }
    Root::of(&of_one)?;
    let mut comparison =
        Comparison { one: of_one, other: of_other, device, rows: Vec::new(), problems: Problems::default() };
    comparison.trees();
    let Comparison { one, other, rows, problems, .. } = comparison;
    let (problem_count, problems) = problems.told();
    let report =
        Report { one: mounts::show(&one), other: mounts::show(&other), differences: rows, problem_count, problems };
    if output.json || !report.differences.is_empty() {
        report::emit(output.json, "snapshot-diff", &report, || describe(&report))?;
    }
    match (problem_count, report.differences.is_empty()) {
        (0, true) => Ok(0),
        (0, false) => Ok(1),
        _ => Ok(TROUBLE),
    }
}

fn describe(report: &Report) -> String {
    let line = |row: &Row| format!("{} {}", row.differs.letter(), escaped(&row.path));
    report.differences.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the directory that an argument names. A snapshot is one of the mount that the other argument is on.
fn directory(argument: &OsStr, beside: &OsStr) -> Outcome<PathBuf> {
    match snapshot_in(argument) {
        None => Ok(PathBuf::from(argument)),
        Some(path) => {
            let mount = if snapshot_in(beside).is_some() { OsStr::new(".") } else { beside };
            let mut parts = path.splitn(2, |byte| *byte == b'/');
            let (name, below) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            Ok(Root::of(Path::new(mount))?.snapshot(OsStr::from_bytes(name))?.join(OsStr::from_bytes(below)))
        }
    }
}

/// Returns the name of a snapshot, and perhaps a path in it.
fn snapshot_in(argument: &OsStr) -> Option<&[u8]> {
    argument.as_bytes().strip_prefix(b"snapshot:")
}

/// The comparison of two trees.
struct Comparison {
    one: PathBuf,
    other: PathBuf,
    /// The device number of their mount. What is mounted below is left out.
    device: u64,
    rows: Vec<Row>,
    problems: Problems,
}

impl Comparison {
    fn trees(&mut self) {
        let mut unseen = vec![PathBuf::new()];
        while let Some(path) = unseen.pop() {
            let [one, other] = [self.one.join(&path), self.other.join(&path)];
            let (Some(mut in_one), Some(mut in_other)) = (self.names(&one), self.names(&other)) else { continue };
            self.leave_out_equal((&one, &mut in_one), (&other, &mut in_other));
            let (of_one, of_other) = (self.look_at(&one, in_one), self.look_at(&other, in_other));
            let mut directories = Vec::new();
            for name in of_one.keys().chain(of_other.keys()).collect::<BTreeSet<_>>() {
                let path = path.join(name);
                match (of_one.get(name), of_other.get(name)) {
                    (Some(one), Some(other)) => {
                        self.files(&path, one, other);
                        if one.is_dir() && other.is_dir() && one.ino() != other.ino() {
                            directories.push(path);
                        }
                    }
                    (Some(_), None) => self.differs(&path, Differs::Removed),
                    (None, _) => self.differs(&path, Differs::Added),
                }
            }
            unseen.extend(directories.into_iter().rev());
        }
    }

    /// Returns the names in a directory, with their inode numbers; `None`, and a problem, if it cannot be read.
    fn names(&self, directory: &Path) -> Option<HashMap<OsString, u64>> {
        let read = || -> io::Result<HashMap<OsString, u64>> {
            let named = |entry: io::Result<DirEntry>| entry.map(|entry| (entry.file_name(), entry.ino()));
            std::fs::read_dir(directory)?.map(named).collect()
        };
        self.tried(directory, read())
    }

    /// Leaves out the files that are equal in both directories, as far as the server says so.
    fn leave_out_equal(
        &self,
        (one, in_one): (&Path, &mut HashMap<OsString, u64>),
        (other, in_other): (&Path, &mut HashMap<OsString, u64>),
    ) {
        let asked = || snapshots::equal_files(&File::open(one)?, &File::open(other)?);
        // Without an answer, each file is looked at.
        let Ok(equal) = asked() else { return };
        in_one.retain(|name, ino| {
            let is_equal = in_other.get(name).is_some_and(|other| equal.contains(&[*ino, *other]));
            if is_equal {
                in_other.remove(name);
            }
            !is_equal
        });
    }

    /// Returns the attributes of what a directory holds.
    fn look_at(&self, directory: &Path, names: HashMap<OsString, u64>) -> BTreeMap<OsString, Metadata> {
        let mut found = BTreeMap::new();
        for (name, _) in names {
            let path = directory.join(&name);
            match path.symlink_metadata() {
                Ok(metadata) if metadata.dev() == self.device => _ = found.insert(name, metadata),
                Ok(_) => {}
                // It was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => self.problems.note(&path, error),
            }
        }
        found
    }

    fn differs(&mut self, path: &Path, differs: Differs) {
        self.rows.push(Row { differs, path: mounts::show(path), path_hex: mounts::hex(path) });
    }

    /// Compares what has the same name in both trees.
    fn files(&mut self, path: &Path, one: &Metadata, other: &Metadata) {
        if one.ino() == other.ino() {
            return;
        }
        if one.mode() & KIND != other.mode() & KIND {
            return self.differs(path, Differs::Kind);
        }
        let (of_one, of_other) = (self.one.join(path), self.other.join(path));
        let has_equal_content = if one.is_file() {
            if one.len() == other.len() {
                self.have_equal_bytes((&of_one, one), (&of_other, other))
            } else {
                Some(false)
            }
        } else if one.is_symlink() {
            let target = |path| self.tried(path, std::fs::read_link(path));
            target(&of_one).zip(target(&of_other)).map(|(one, other)| one == other)
        } else {
            Some(true)
        };
        match has_equal_content {
            Some(false) => return self.differs(path, Differs::Content),
            Some(true) => {}
            None => return,
        }
        let has_equal_attributes = match attributes(one) == attributes(other) {
            true => self.have_equal_xattrs(&of_one, &of_other),
            false => Some(false),
        };
        if has_equal_attributes == Some(false) {
            self.differs(path, Differs::Attributes);
        }
    }

    /// Returns what was done to a file; `None`, and a problem, if that failed.
    fn tried<T>(&self, path: &Path, done: io::Result<T>) -> Option<T> {
        done.map_err(|error| self.problems.note(path, error)).ok()
    }

    fn have_equal_bytes(&self, one: (&Path, &Metadata), other: (&Path, &Metadata)) -> Option<bool> {
        let (of_one, of_other) = (self.tried(one.0, opened(one)), self.tried(other.0, opened(other)));
        let (of_one, of_other) = (of_one?, of_other?);
        let (size, mut at) = (one.1.len(), 0);
        while at < size {
            let (unshared, next) = self.tried(one.0, snapshots::unshared(&of_one, &of_other, at))?;
            for range in unshared {
                if !self.has_equal_range((one.0, &of_one), (other.0, &of_other), range)? {
                    return Some(false);
                }
            }
            at = next;
        }
        Some(true)
    }

    fn has_equal_range(&self, one: (&Path, &File), other: (&Path, &File), range: Range<u64>) -> Option<bool> {
        let mut at = range.start;
        while at < range.end {
            let length = COMPARED_BYTES.min(range.end - at);
            let of_one = self.tried(one.0, read(one.1, at, length))?;
            let of_other = self.tried(other.0, read(other.1, at, length))?;
            if of_one != of_other {
                return Some(false);
            }
            at += length;
        }
        Some(true)
    }

    fn have_equal_xattrs(&self, one: &Path, other: &Path) -> Option<bool> {
        let (of_one, of_other) = (self.tried(one, xattrs(one)), self.tried(other, xattrs(other)));
        Some(of_one? == of_other?)
    }
}

/// Opens a file for reading, if it is still the same.
fn opened((path, metadata): (&Path, &Metadata)) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    match file.metadata()?.ino() == metadata.ino() {
        true => Ok(file),
        false => Err(io::Error::other("it was replaced while it was compared")),
    }
}

/// Reads a range; less at the end of the file.
fn read(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            some => filled += some,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Returns the attributes that make a difference.
fn attributes(metadata: &Metadata) -> (u32, u32, u32, u64, (i64, i64)) {
    let mtime = if metadata.is_dir() { (0, 0) } else { (metadata.mtime(), metadata.mtime_nsec()) };
    (metadata.mode(), metadata.uid(), metadata.gid(), metadata.rdev(), mtime)
}

/// Returns the extended attributes that this process can see.
fn xattrs(path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut list = vec![0; XATTR_BYTES_MAX];
    let length = match rustix::fs::llistxattr(path, &mut list) {
        Err(Errno::OPNOTSUPP) => 0,
        length => length?,
    };
    let mut found = BTreeMap::new();
    for name in list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; XATTR_BYTES_MAX];
        match rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value) {
            Err(Errno::NODATA) => continue,
            length => value.truncate(length?),
        }
        found.insert(name.to_vec(), value);
    }
    Ok(found)
}
