//! Compares a tree of the host with one on the device: every name, every byte, and every attribute except the times
//! of last access and of last inode change.

use super::tally::Tally;
use super::{Error, Report, Result, Watch, crew, entries, files};
use crate::{Attr, FileKind, FileSystem, InodeNumber, Whence, errno};
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

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
pub fn verify(fs: &FileSystem, options: &VerifyOptions, progress: &mut Watch<'_>) -> Result<Report> {
    let VerifyOptions { source, threads, one_file_system, .. } = options;
    let at = place_of_copy(options)?;
    let copy = fs.resolve(at.as_os_str().as_bytes()).map_err(|source| Error::FileSystem {
        doing: "verify",
        path: at,
        source,
    })?;
    let tally = Tally::default();
    let verify = Verify { fs, tally: &tally, one_file_system: *one_file_system };
    verify.run(source, copy, *threads, progress);
    tally.finish("verify", progress)
}

fn place_of_copy(options: &VerifyOptions) -> Result<PathBuf> {
    let VerifyOptions { source, at, .. } = options;
    if let Some(at) = at {
        return Ok(at.clone());
    }
    let resolved =
        source.canonicalize().map_err(|error| Error::Host { doing: "verify", path: source.clone(), source: error })?;
    Ok(resolved.file_name().map(PathBuf::from).unwrap_or_default())
}

struct Verify<'a> {
    fs: &'a FileSystem,
    tally: &'a Tally,
    one_file_system: bool,
}

/// Two regular files of the same size.
struct Job {
    path: PathBuf,
    ino: InodeNumber,
    size: u64,
}

struct Walk<'a, 'b> {
    verify: &'a Verify<'b>,
    give: &'a mut dyn FnMut(Job),
    /// Files with several names: the inode on the device for each inode of the host.
    linked: HashMap<(u64, u64), InodeNumber>,
}

impl Verify<'_> {
    /// Compares the trees; differences go to the tally as problems.
    fn run(&self, source: &Path, attr: Attr, threads: usize, progress: &mut Watch<'_>) {
        let walk = |give: &mut dyn FnMut(Job)| {
            let mut walk = Walk { verify: self, give, linked: HashMap::new() };
            walk.visit(source.to_owned(), attr, None);
        };
        crew::run(self.tally, threads, progress, walk, |job, buffer| self.compare_content(job, buffer));
    }

    fn compare_content(&self, job: Job, buffer: &mut [u8]) {
        match self.first_difference(&job, buffer) {
            Ok(None) => Tally::count(&self.tally.files),
            Ok(Some(offset)) => self.tally.problem(&job.path, format!("content differs at byte {offset}")),
            Err(error) => self.tally.problem(&job.path, error),
        }
    }

    fn first_difference(
        &self,
        job: &Job,
        buffer: &mut [u8],
    ) -> std::result::Result<Option<u64>, Box<dyn std::error::Error>> {
        let (theirs, ours) = (files::open(&job.path)?, self.fs.open(job.ino)?);
        let (left, right) = buffer.split_at_mut(crew::BUFFER_BYTES / 2);
        let mut at = next_data(&theirs, &ours, 0, job.size);
        while at < job.size && !self.tally.is_stopped() {
            let wanted = left.len().min((job.size - at) as usize);
            theirs.read_exact_at(&mut left[..wanted], at)?;
            let length = ours.read_at(at, &mut right[..wanted])?;
            if left[..wanted] != right[..length] {
                let equal = left.iter().zip(&right[..length]).take_while(|(left, right)| left == right).count();
                return Ok(Some(at + equal as u64));
            }
            self.tally.add_bytes(wanted);
            at = next_data(&theirs, &ours, at + wanted as u64, job.size);
        }
        Ok(None)
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

impl Walk<'_, '_> {
    fn visit(&mut self, path: PathBuf, attr: Attr, device: Option<u64>) {
        let Verify { tally, one_file_system, .. } = self.verify;
        if tally.is_stopped() {
            return;
        }
        let metadata = match std::fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) => return tally.problem(&path, error),
        };
        let kind = files::kind(&metadata);
        if kind != Some(attr.kind) {
            return tally.problem(&path, format!("is {kind:?} in the tree and {:?} on the device", attr.kind));
        }
        self.compare_attributes(&path, &metadata, &attr);
        match attr.kind {
            FileKind::Directory => {
                Tally::count(&tally.directories);
                self.directory(&path, attr.ino, device.or(one_file_system.then(|| metadata.dev())));
            }
            FileKind::Regular if self.is_first_name(&path, &metadata, &attr) => {
                if metadata.len() == attr.size {
                    (self.give)(Job { path, ino: attr.ino, size: attr.size });
                } else {
                    tally.problem(
                        &path,
                        format!("has {} bytes in the tree and {} on the device", metadata.len(), attr.size),
                    );
                }
            }
            FileKind::Regular => Tally::count(&tally.hard_links),
            FileKind::Symlink => {
                let target = std::fs::read_link(&path).ok();
                let ours = self.verify.fs.readlink(attr.ino).ok();
                if target.as_ref().map(|target| target.as_os_str().as_bytes()) != ours.as_deref() {
                    tally.problem(&path, "points elsewhere on the device");
                }
                Tally::count(&tally.symlinks);
            }
            _ => Tally::count(&tally.specials),
        }
    }

    /// Returns true if no other name of the file was met before. Reports two names of one file on the host that
    /// belong to different files on the device.
    fn is_first_name(&mut self, path: &Path, metadata: &Metadata, attr: &Attr) -> bool {
        if metadata.nlink() == 1 {
            return true;
        }
        match self.linked.insert((metadata.dev(), metadata.ino()), attr.ino) {
            None => true,
            Some(first) => {
                if first != attr.ino {
                    self.verify.tally.problem(path, "is a hard link in the tree and a file of its own on the device");
                }
                false
            }
        }
    }

    fn compare_attributes(&self, path: &Path, metadata: &Metadata, attr: &Attr) {
        let tally = self.verify.tally;
        let differ = |what: &str, theirs: String, ours: String| {
            if theirs != ours {
                tally.problem(path, format!("{what} is {theirs} in the tree and {ours} on the device"));
            }
        };
        if attr.kind != FileKind::Symlink {
            differ("mode", format!("{:o}", metadata.mode() & 0o7777), format!("{:o}", attr.mode));
        }
        differ("owner", format!("{}:{}", metadata.uid(), metadata.gid()), format!("{}:{}", attr.uid, attr.gid));
        differ("time of change", files::times(metadata).1.to_string(), attr.mtime.to_string());
        if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            differ("device number", files::encode_rdev(metadata.rdev()).to_string(), attr.rdev.to_string());
        }
        for (name, value) in files::xattrs(path) {
            if self.verify.fs.get_xattr(attr.ino, &name).ok() != Some(value) {
                tally.problem(path, format!("extended attribute {} differs", String::from_utf8_lossy(&name)));
            }
        }
    }

    fn directory(&mut self, path: &Path, ino: InodeNumber, device: Option<u64>) {
        let Verify { fs, tally, .. } = self.verify;
        let (theirs, ours) = match (files::names(path), entries(fs, ino)) {
            (Ok(theirs), Ok(ours)) => (theirs, ours),
            (Err(error), _) => return tally.problem(path, error),
            (_, Err(error)) => return tally.problem(path, error),
        };
        let ours: HashMap<Vec<u8>, InodeNumber> = ours.into_iter().map(|entry| (entry.name, entry.ino)).collect();
        let mut expected = BTreeSet::new();
        for name in theirs {
            let below = path.join(&name);
            if !self.is_imported(&below, device) {
                continue;
            }
            match ours.get(name.as_bytes()).map(|ino| fs.getattr(*ino)) {
                None => tally.problem(&below, "is not on the device"),
                Some(Err(error)) => tally.problem(&below, error),
                Some(Ok(attr)) => self.visit(below, attr, device),
            }
            expected.insert(name.as_bytes().to_vec());
        }
        for name in ours.keys().filter(|name| !expected.contains(*name)) {
            tally.problem(&path.join(OsStr::from_bytes(name)), "is on the device and not in the tree");
        }
    }

    /// Returns true if `import` copies the file: what it skips is not expected on the device.
    fn is_imported(&self, path: &Path, device: Option<u64>) -> bool {
        let Ok(metadata) = std::fs::symlink_metadata(path) else { return true };
        let here = device.is_none_or(|device| device == metadata.dev());
        here && !matches!(files::kind(&metadata), None | Some(FileKind::Socket))
    }
}
