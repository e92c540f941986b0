//! Compares a tree of the host with one on the device: every name, every byte, and every attribute except the times
//! of last access and of last inode change.
//!
//! As in an import, a file or directory of the host that is replaced after it was listed is a problem, and is not read.

use super::dir::{Dir, Levels, MOVED};
use super::files::{HostFile, identity};
use super::tally::Tally;
use super::{TreeError, TreeReport, TreeResult, Watch, crew, entries, files, note_damaged_names};
use crate::{Attr, FileKind, FileSystem, InodeNumber, Whence, errno};
use rustix::fs::Stat;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Says what to compare, and how.
#[derive(Clone, Debug, Default)]
pub struct VerifyOptions {
    /// File or directory of the host.
    pub source: PathBuf,
    /// Path of its copy from the root of the device; `None` for the name of `source`.
    pub at: Option<PathBuf>,
    /// Number of threads that compare; 0 for one per processor.
    pub threads: usize,
    /// True if the copy was made with [`ImportOptions::one_file_system`](super::ImportOptions::one_file_system).
    pub one_file_system: bool,
}

/// Compares a file or a directory of the host, with everything below it, with its copy on the device. Every
/// difference is a problem in the report; the trees are equal if there is none.
///
/// The call fails if `source` or its copy does not exist, or if `progress` stops it.
pub fn verify(fs: &FileSystem, options: &VerifyOptions, progress: &mut Watch<'_>) -> TreeResult<TreeReport> {
    let VerifyOptions { source, threads, one_file_system, .. } = options;
    let at = place_of_copy(options)?;
    let copy = fs.resolve(at.as_os_str().as_bytes()).map_err(|source| TreeError::FileSystem {
        doing: "verify",
        path: at,
        source,
    })?;
    let tally = Tally::default();
    let verify = TreeComparison { fs, tally: &tally, one_file_system: *one_file_system };
    verify.run(source, copy, *threads, progress);
    tally.finish("verify", progress)
}

fn place_of_copy(options: &VerifyOptions) -> TreeResult<PathBuf> {
    let VerifyOptions { source, at, .. } = options;
    if let Some(at) = at {
        return Ok(at.clone());
    }
    let resolved = source.canonicalize().map_err(|error| TreeError::Host {
        doing: "verify",
        path: source.clone(),
        source: error,
    })?;
    Ok(resolved.file_name().map(PathBuf::from).unwrap_or_default())
}

struct TreeComparison<'a> {
    fs: &'a FileSystem,
    tally: &'a Tally,
    one_file_system: bool,
}

/// Two regular files of the same size.
struct FilesToCompare {
    path: PathBuf,
    dir: Arc<Dir>,
    name: OsString,
    seen: Stat,
    ino: InodeNumber,
}

/// A directory that is being compared.
struct ComparedDirectory {
    ino: InodeNumber,
    names: std::vec::IntoIter<OsString>,
    /// The names on the device that the tree has not had so far.
    ours: BTreeMap<Vec<u8>, InodeNumber>,
}

struct ComparisonWalk<'a, 'b> {
    verify: &'a TreeComparison<'b>,
    give: &'a mut dyn FnMut(FilesToCompare),
    /// Where the walk stands.
    path: PathBuf,
    levels: Levels<ComparedDirectory>,
    /// The host's device number of the tree, if the walk stays on it.
    device: Option<u64>,
    /// Files with several names: the inode on the device for each inode of the host.
    linked: HashMap<(u64, u64), InodeNumber>,
    /// Directories on the device that were entered.
    met: HashSet<InodeNumber>,
}

impl TreeComparison<'_> {
    /// Compares the trees; differences go to the tally as problems.
    fn run(&self, source: &Path, attr: Attr, threads: usize, progress: &mut Watch<'_>) {
        let walk = |give: &mut dyn FnMut(FilesToCompare)| {
            let mut walk = ComparisonWalk {
                verify: self,
                give,
                path: source.to_owned(),
                levels: Levels::new(),
                device: None,
                linked: HashMap::new(),
                met: HashSet::new(),
            };
            walk.run(attr);
        };
        crew::run(self.tally, threads, progress, walk, |job, buffer| self.compare_file(job, buffer));
    }

    fn compare_file(&self, job: FilesToCompare, buffer: &mut [u8]) {
        match self.first_difference(&job, buffer) {
            Ok(None) => Tally::count(&self.tally.files),
            Ok(Some(offset)) => self.tally.problem(&job.path, format!("content differs at byte {offset}")),
            Err(error) => self.tally.problem(&job.path, error),
        }
    }

    fn first_difference(
        &self,
        job: &FilesToCompare,
        buffer: &mut [u8],
    ) -> std::result::Result<Option<u64>, Box<dyn std::error::Error>> {
        let ((theirs, stat), ours) = (job.dir.open(&job.name, &job.seen)?, self.fs.open(job.ino)?);
        self.compare_xattrs(&job.path, HostFile::Open(theirs.as_fd()), job.ino);
        let (left, right) = buffer.split_at_mut(crew::BUFFER_BYTES / 2);
        let size = files::size(&stat);
        let mut at = next_data(&theirs, &ours, 0, size);
        while at < size && !self.tally.is_stopped() {
            let wanted = left.len().min((size - at) as usize);
            theirs.read_exact_at(&mut left[..wanted], at)?;
            let length = ours.read_at(at, &mut right[..wanted])?;
            if left[..wanted] != right[..length] {
                let equal = left.iter().zip(&right[..length]).take_while(|(left, right)| left == right).count();
                return Ok(Some(at + equal as u64));
            }
            self.tally.add_bytes(wanted);
            at = next_data(&theirs, &ours, at + wanted as u64, size);
        }
        Ok(None)
    }

    fn compare_xattrs(&self, path: &Path, node: HostFile<'_>, ino: InodeNumber) {
        for (name, value) in node.xattrs() {
            if self.fs.get_xattr(ino, &name).ok() != Some(value) {
                self.tally.problem(path, format!("extended attribute {} differs", String::from_utf8_lossy(&name)));
            }
        }
    }
}

/// Returns the first offset from `at` on at which one of two files has data; `size` if both have only a hole there. A
/// file may have 2^63 - 1 bytes.
fn next_data(theirs: &File, ours: &crate::File, at: u64, size: u64) -> u64 {
    let theirs = match rustix::fs::seek(theirs, rustix::fs::SeekFrom::Data(at)) {
        Err(rustix::io::Errno::NXIO) => size,
        // This file system cannot report holes, so everything counts as data.
        found => found.unwrap_or(at),
    };
    let ours = match ours.seek(at, Whence::Data) {
        Err(error) if error.errno() == errno::ENXIO => size,
        found => found.unwrap_or(at),
    };
    theirs.min(ours).clamp(at, size.max(at))
}

impl ComparisonWalk<'_, '_> {
    fn run(&mut self, attr: Attr) {
        let tally = self.verify.tally;
        let top = Dir::holding(&self.path).and_then(|(dir, name)| Ok((dir.look(&name)?, dir, name)));
        match top {
            Ok((seen, dir, name)) => {
                self.device = self.verify.one_file_system.then_some(seen.st_dev);
                self.visit(&Arc::new(dir), &name, seen, attr);
            }
            Err(error) => tally.problem(&self.path, error),
        }
        while let Some((dir, level)) = self.levels.last() {
            let name = level.names.next().filter(|_| !tally.is_stopped());
            let (Some(name), Some(dir)) = (&name, dir.cloned()) else {
                if name.is_some() {
                    tally.problem(&self.path, MOVED);
                }
                self.leave();
                continue;
            };
            self.path.push(name);
            if !self.visit_name(&dir, name) {
                self.path.pop();
            }
        }
    }

    /// Ends the last directory: reports what only the device has.
    fn leave(&mut self) {
        let tally = self.verify.tally;
        if let Some((_, level)) = self.levels.pop().filter(|_| !tally.is_stopped()) {
            for name in level.ours.keys() {
                let path = self.path.join(OsStr::from_bytes(name));
                tally.problem(&path, "is on the device and not in the tree");
            }
        }
        self.path.pop();
    }

    /// Compares what has a name in the last directory. Returns true if it is a directory that was entered.
    fn visit_name(&mut self, dir: &Arc<Dir>, name: &OsStr) -> bool {
        let TreeComparison { fs, tally, .. } = self.verify;
        let seen = dir.look(name);
        if seen.as_ref().is_ok_and(|seen| !self.is_imported(seen)) {
            return false;
        }
        let Some((_, level)) = self.levels.last() else { return false };
        if level.ours.remove(name.as_bytes()).is_none() {
            tally.problem(&self.path, "is not on the device");
            return false;
        }
        match (seen, fs.lookup(level.ino, name.as_bytes())) {
            (Ok(seen), Ok(attr)) => return self.visit(dir, name, seen, attr),
            (Err(error), _) => tally.problem(&self.path, error),
            (_, Err(error)) => tally.problem(&self.path, error),
        }
        false
    }

    /// Returns true if `import` copies the file: what it skips is not expected on the device.
    fn is_imported(&self, seen: &Stat) -> bool {
        let here = self.device.is_none_or(|device| device == seen.st_dev);
        here && !matches!(files::kind_of_mode(seen.st_mode), None | Some(FileKind::Socket))
    }

    fn visit(&mut self, dir: &Arc<Dir>, name: &OsStr, seen: Stat, attr: Attr) -> bool {
        let tally = self.verify.tally;
        if tally.is_stopped() {
            return false;
        }
        let kind = files::kind_of_mode(seen.st_mode);
        if kind != Some(attr.kind) {
            tally.problem(&self.path, format!("is {kind:?} in the tree and {:?} on the device", attr.kind));
            return false;
        }
        self.compare_attributes(&seen, &attr);
        let compared = match attr.kind {
            FileKind::Directory => return self.directory(dir, name, &seen, &attr),
            FileKind::Regular => {
                self.regular(dir, name, seen, &attr);
                Ok(())
            }
            _ => self.special(dir, name, &seen, &attr),
        };
        if let Err(error) = compared {
            tally.problem(&self.path, error);
        }
        false
    }

    fn regular(&mut self, dir: &Arc<Dir>, name: &OsStr, seen: Stat, attr: &Attr) {
        let tally = self.verify.tally;
        let (theirs, ours) = (files::size(&seen), attr.size);
        if !self.is_first_name(&seen, attr) {
            Tally::count(&tally.hard_links);
        } else if theirs == ours {
            let (path, dir, name) = (self.path.clone(), dir.clone(), name.to_owned());
            (self.give)(FilesToCompare { path, dir, name, seen, ino: attr.ino });
        } else {
            tally.problem(&self.path, format!("has {theirs} bytes in the tree and {ours} on the device"));
        }
    }

    /// Compares symbolic links, fifos and device nodes.
    fn special(&self, dir: &Dir, name: &OsStr, seen: &Stat, attr: &Attr) -> io::Result<()> {
        let TreeComparison { fs, tally, .. } = self.verify;
        let (handle, _) = dir.handle(name, seen)?;
        self.verify.compare_xattrs(&self.path, HostFile::Handle(handle.as_fd()), attr.ino);
        if attr.kind != FileKind::Symlink {
            Tally::count(&tally.specials);
            return Ok(());
        }
        let target = rustix::fs::readlinkat(&handle, "", Vec::new())?;
        if fs.readlink(attr.ino).ok().as_deref() != Some(target.as_bytes()) {
            tally.problem(&self.path, "points elsewhere on the device");
        }
        Tally::count(&tally.symlinks);
        Ok(())
    }

    /// Returns true if no other name of the file was met before. Reports two names of one file on the host that
    /// belong to different files on the device.
    fn is_first_name(&mut self, seen: &Stat, attr: &Attr) -> bool {
        if seen.st_nlink == 1 {
            return true;
        }
        match self.linked.insert(identity(seen), attr.ino) {
            None => true,
            Some(first) => {
                if first != attr.ino {
                    let problem = "is a hard link in the tree and a file of its own on the device";
                    self.verify.tally.problem(&self.path, problem);
                }
                false
            }
        }
    }

    fn compare_attributes(&self, seen: &Stat, attr: &Attr) {
        let differ = |what: &str, theirs: String, ours: String| {
            if theirs != ours {
                let problem = format!("{what} is {theirs} in the tree and {ours} on the device");
                self.verify.tally.problem(&self.path, problem);
            }
        };
        if attr.kind != FileKind::Symlink {
            differ("mode", format!("{:o}", seen.st_mode & 0o7777), format!("{:o}", attr.mode));
        }
        differ("owner", format!("{}:{}", seen.st_uid, seen.st_gid), format!("{}:{}", attr.uid, attr.gid));
        differ("time of change", files::times(seen).1.to_string(), attr.mtime.to_string());
        if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            differ("device number", files::encode_rdev(seen.st_rdev).to_string(), attr.rdev.to_string());
        }
    }

    /// Begins a directory. Returns false if one of the two cannot be read.
    fn directory(&mut self, dir: &Dir, name: &OsStr, seen: &Stat, attr: &Attr) -> bool {
        let TreeComparison { fs, tally, .. } = self.verify;
        Tally::count(&tally.directories);
        if !self.met.insert(attr.ino) {
            tally.problem(&self.path, "damage: names on the device lead to this directory twice");
            return false;
        }
        note_damaged_names(fs, attr.ino, &self.path, tally);
        let theirs = dir.enter(name, seen).and_then(|(dir, stat)| Ok((dir.names()?, dir, stat)));
        match (theirs, entries(fs, attr.ino)) {
            (Ok((names, dir, stat)), Ok(ours)) => {
                self.verify.compare_xattrs(&self.path, HostFile::Open(dir.as_fd()), attr.ino);
                let ours = ours.into_iter().map(|entry| (entry.name, entry.ino)).collect();
                self.levels.push(
                    Arc::new(dir),
                    &stat,
                    ComparedDirectory { ino: attr.ino, names: names.into_iter(), ours },
                );
                return true;
            }
            (Err(error), _) => tally.problem(&self.path, error),
            (_, Err(error)) => tally.problem(&self.path, error),
        }
        false
    }
}
