//! Access to stored files in two ways: through a mount, by [`requests`] to its server, or on
//! a device that this process has mounted itself.

use crate::dedup_options::DedupOptions;
use crate::descent::{Descent, OnDevice, OnHost, Step, Tree};
use crate::device::{self, DeviceOptions, mount_embedded};
use crate::failure::{Doing, Failure, Outcome, eprint_line};
use crate::mount::requests::{self, Left, ReclaimLeft, Request};
use crate::mounts;
use crate::problems::Problems;
use crate::statistics::{self, Statistics};
use nvfold::host;
use nvfold::{
    Attr, Compression, FileKind, FileSystem, InodeNumber, MappedExtent, POLICY_ATTRIBUTE, Policy, Reshared, Stats,
    Whence, XattrMode, errno,
};
use rustix::fs::{Mode, OFlags, SeekFrom, XattrFlags};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file system, mounted by another process or by this one (`fs`).
pub(crate) struct Stored {
    fs: Option<FileSystem>,
    /// The first path or the device, for messages.
    name: String,
    /// The device number of files on the mount. Files with another number belong to a file system mounted below it.
    number: u64,
}

/// A file or directory of the file system.
pub(crate) struct Found<'p> {
    pub path: &'p Path,
    pub kind: FileKind,
    pub size_bytes: u64,
    ino: InodeNumber,
    links: u64,
}

/// Settings that apply to files without their own.
#[derive(Default)]
pub(crate) struct Defaults {
    pub policy: Option<String>,
    pub compression: Option<String>,
}

/// Why work on one file was refused.
#[derive(Debug)]
pub(crate) struct Refused {
    pub errno: i32,
    why: String,
}

impl Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl From<nvfold::Error> for Refused {
    fn from(error: nvfold::Error) -> Refused {
        // The name is that of the file at hand, which the message names.
        let why = match &error {
            nvfold::Error::NotFound { .. } => "no such file or directory".to_owned(),
            error => error.to_string(),
        };
        Refused { errno: error.errno(), why }
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        Refused { errno: error.raw_os_error().unwrap_or_default(), why: error.to_string() }
    }
}

impl From<rustix::io::Errno> for Refused {
    fn from(error: rustix::io::Errno) -> Refused {
        io::Error::from(error).into()
    }
}

impl Stored {
    /// Opens the file system that holds `targets`: paths on one mount, or one unmounted device, on which `at` names
    /// the paths. `dedup` holds the policy options for a device; a mount has its own. Returns the paths too.
    pub(crate) fn open(
        targets: &[PathBuf],
        at: &[PathBuf],
        dedup: Option<&DedupOptions>,
        options: &DeviceOptions,
        read_only: bool,
    ) -> Outcome<(Stored, Vec<PathBuf>)> {
        let first = &targets[0];
        let is_mount = requests::answers(first).doing(mounts::show(first))?;
        let metadata = std::fs::metadata(first).doing(mounts::show(first))?;
        if is_mount {
            for target in targets {
                let on = std::fs::metadata(target).doing(mounts::show(target))?.dev();
                if on != metadata.dev() {
                    return Err(Failure::usage(
                        mounts::show(target),
                        "it is not on the same mount as the paths before it",
                    ));
                }
            }
            if !at.is_empty() {
                return Err(Failure::usage(
                    "--at",
                    "it is for an unmounted device; on a mount, give the paths themselves",
                ));
            }
            if dedup.is_some() {
                return Err(Failure::usage("-o", "it is for an unmounted device; a mount has its own options"));
            }
            return Ok((Stored { fs: None, name: mounts::show(first), number: metadata.dev() }, targets.to_vec()));
        }
        if metadata.is_dir() {
            let why = "no nvfold is mounted there";
            return Err(Failure::new(mounts::show(first), why).hint("give paths on a mount of nvfold, or a device"));
        }
        if targets.len() > 1 {
            return Err(Failure::usage(mounts::show(first), "a device must be the only argument")
                .hint("--at gives paths on it"));
        }
        let dedup = dedup.cloned().unwrap_or_default();
        let fs = mount_embedded(first, options, &dedup, read_only, device::processors())?;
        let paths = if at.is_empty() { vec![PathBuf::from("/")] } else { at.to_vec() };
        let missing = |path: &PathBuf| fs.resolve(path.as_os_str().as_bytes()).doing(mounts::show(path)).err();
        // One that exists is enough to begin; the others are problems in the report.
        if let Some(failure) = paths.iter().map(missing).reduce(Option::and).flatten() {
            fs.unmount().doing(mounts::show(first))?;
            return Err(failure);
        }
        Ok((Stored { fs: Some(fs), name: mounts::show(first), number: 0 }, paths))
    }

    /// Unmounts a device and leaves it clean.
    pub(crate) fn close(self) -> Outcome<()> {
        self.fs.map_or(Ok(()), |fs| fs.unmount().doing(self.name))
    }

    /// Looks up a path.
    pub(crate) fn find<'p>(&self, path: &'p Path) -> Result<Found<'p>, Refused> {
        match &self.fs {
            Some(fs) => on_device(path, &fs.resolve(path.as_os_str().as_bytes())?),
            None => on_host(path, &std::fs::metadata(path)?),
        }
    }

    /// Looks up a path, and does not follow it if it is a symbolic link.
    pub(crate) fn find_itself<'p>(&self, path: &'p Path) -> Result<Found<'p>, Refused> {
        let (Some(fs), Some(name)) = (&self.fs, path.file_name()) else {
            return match &self.fs {
                Some(_) => self.find(path),
                None => on_host(path, &std::fs::symlink_metadata(path)?),
            };
        };
        let parent = path.parent().unwrap_or(Path::new("/"));
        let parent = fs.resolve(parent.as_os_str().as_bytes())?;
        on_device(path, &fs.lookup(parent.ino, name.as_bytes())?)
    }

    /// Removes a directory with all that is below it.
    pub(crate) fn remove_tree(&self, found: &Found<'_>) -> Result<(), Refused> {
        match &self.fs {
            Some(fs) => fs.remove_directory(found.ino).map(drop).map_err(Refused::from),
            None => requests::ask_to_remove(found.path).map_err(Refused::from),
        }
    }

    /// Calls `each` for the regular files and directories at and below the paths. A file with several names is
    /// visited once. Files that cannot be read are recorded as problems, files that disappear meanwhile are counted.
    pub(crate) fn walk(&self, paths: &[PathBuf], problems: &Problems, each: &mut dyn FnMut(&Found<'_>)) {
        let mut walk = Walk { stored: self, problems, each, several_paths: paths.len() > 1, met: HashSet::new() };
        for path in paths {
            let walked = match &self.fs {
                Some(fs) => fs
                    .resolve(path.as_os_str().as_bytes())
                    .map_err(Refused::from)
                    .map(|attr| walk.tree(OnDevice(fs), path, &attr, on_device)),
                None => std::fs::metadata(path)
                    .map_err(Refused::from)
                    .map(|metadata| walk.tree(OnHost { number: Some(self.number) }, path, &metadata, on_host)),
            };
            if let Err(error) = walked {
                problems.note(path, error);
            }
        }
    }

    /// Records why work on a file failed. On a mount the file may have disappeared, which is counted; anything else
    /// is a problem.
    pub(crate) fn note(&self, path: &Path, refused: &Refused, problems: &Problems) {
        match refused.errno {
            errno::ENOENT | errno::ESTALE if self.fs.is_none() => problems.note_vanished(),
            _ => problems.note(path, refused),
        }
    }

    /// Makes the kernel write back cached data, so that it is stored. If a program wrote more than there is space for, the
    /// kernel tells that program too, and here it is only a note.
    pub(crate) fn settle(&self, path: &Path) -> Outcome<()> {
        if self.fs.is_some() {
            return Ok(());
        }
        if let Err(error) = requests::ask_to_write_back(path) {
            let name = mounts::show(path);
            eprint_line(&format!("nvfold: {name}: not all data that programs had written could be stored: {error}"));
        }
        Ok(())
    }

    /// Returns the present sizes and space.
    pub(crate) fn space(&self, path: &Path) -> Outcome<Stats> {
        match &self.fs {
            Some(fs) => Ok(fs.stats()),
            None => match statistics::ask(path)? {
                // Free space is what every user may know.
                statistics if statistics.is_in_part => space_of_statfs(path),
                statistics => statistics.known_space().cloned(),
            },
        }
    }

    /// Returns the length of policy denova's queue.
    pub(crate) fn queued(&self, path: &Path) -> Outcome<Left> {
        match &self.fs {
            Some(fs) => Ok(requests::queued(fs, false)),
            None => {
                let denova = statistics::ask(path)?.denova;
                let (entries, bytes) = denova.map_or((0, 0), |denova| (denova.queue_entries, denova.queue_bytes));
                Ok(Left { is_done: false, entries, bytes })
            }
        }
    }

    /// Shares a part of the queue, and returns what is left.
    pub(crate) fn drain_some(&self, path: &Path) -> Result<Left, Refused> {
        match &self.fs {
            Some(fs) => Ok(requests::drain_some(fs)?),
            None => Ok(requests::ask_to_drain(path)?),
        }
    }

    /// Frees a part of the dead space in packed segments, and returns what is left.
    pub(crate) fn reclaim_some(&self, path: &Path) -> Result<ReclaimLeft, Refused> {
        match &self.fs {
            Some(fs) => Ok(requests::reclaim_some(fs)?),
            None => Ok(requests::ask_to_reclaim(path)?),
        }
    }

    /// Returns the defaults for new data. They belong to a mount, so they are unknown for an unmounted device.
    pub(crate) fn mount_defaults(&self, path: &Path) -> Outcome<Defaults> {
        match &self.fs {
            Some(_) => Ok(Defaults::default()),
            None => {
                let Statistics { policy, compress, .. } = statistics::ask(path)?;
                Ok(Defaults { policy, compression: compress })
            }
        }
    }

    /// Returns the value of an attribute that sets the policy or compression of a file; `None` if it has none.
    pub(crate) fn own_attribute(&self, found: &Found<'_>, name: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
        let value = match &self.fs {
            Some(fs) => fs.get_xattr(found.ino, name).map_err(Refused::from),
            None => {
                let mut value = vec![0; 4096];
                let length = rustix::fs::getxattr(found.path, OsStr::from_bytes(name), &mut value);
                length.map(|length| value[..length].to_vec()).map_err(Refused::from)
            }
        };
        match value {
            Err(refused) if refused.errno == errno::ENODATA => Ok(None),
            value => value.map(Some),
        }
    }

    /// Gives a file or directory its own policy; `None` removes it.
    pub(crate) fn set_own_policy(&self, found: &Found<'_>, policy: Option<Policy>) -> Result<(), Refused> {
        let name = OsStr::from_bytes(POLICY_ATTRIBUTE);
        let set: Result<(), Refused> = match (&self.fs, policy) {
            (Some(fs), Some(policy)) => {
                fs.set_xattr(found.ino, POLICY_ATTRIBUTE, policy.name().as_bytes(), XattrMode::Set).map_err(Into::into)
            }
            (Some(fs), None) => fs.remove_xattr(found.ino, POLICY_ATTRIBUTE).map_err(Into::into),
            (None, Some(policy)) => {
                let value = policy.name().as_bytes();
                rustix::fs::setxattr(found.path, name, value, XattrFlags::empty()).map_err(Into::into)
            }
            (None, None) => rustix::fs::removexattr(found.path, name).map_err(Into::into),
        };
        match set {
            Err(refused) if policy.is_none() && refused.errno == errno::ENODATA => Ok(()),
            set => set,
        }
    }

    /// Returns the extents of a file from a byte offset on; see [`nvfold::File::extents`].
    pub(crate) fn extents(&self, found: &Found<'_>, from: u64) -> Result<Vec<MappedExtent>, Refused> {
        match &self.fs {
            Some(fs) => Ok(fs.open(found.ino)?.extents(from, requests::EXTENTS_MAX)?),
            None => Ok(requests::extents(found.path, from)?),
        }
    }

    /// Returns the ranges of a file that hold data, in bytes, from an offset on, at most [`requests::EXTENTS_MAX`].
    pub(crate) fn data(&self, found: &Found<'_>, from: u64) -> Result<Vec<Range<u64>>, Refused> {
        match &self.fs {
            Some(fs) => {
                let file = fs.open(found.ino)?;
                data_from(from, |at, whence| file.seek(at, whence).map_err(Refused::from))
            }
            None => {
                // The path may have become another file meanwhile: a link, or a FIFO.
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = rustix::fs::open(found.path, flags, Mode::empty())?;
                data_from(from, |at, whence| {
                    let to = if whence == Whence::Data { SeekFrom::Data(at) } else { SeekFrom::Hole(at) };
                    Ok(rustix::fs::seek(&file, to)?)
                })
            }
        }
    }

    /// Shares the blocks of a range of a file with equal blocks.
    pub(crate) fn dedup(&self, found: &Found<'_>, range: Range<u64>) -> Result<Reshared, Refused> {
        let length = range.end - range.start;
        match &self.fs {
            Some(fs) => Ok(fs.open(found.ino)?.dedup_range(range.start, length)?),
            None => Ok(requests::ask(found.path, &Request::Dedup { offset: range.start, length })?),
        }
    }

    /// Does the same, and compresses packed chunks.
    pub(crate) fn compress(
        &self,
        found: &Found<'_>,
        range: Range<u64>,
        compression: Compression,
    ) -> Result<Reshared, Refused> {
        let (offset, length) = (range.start, range.end - range.start);
        match &self.fs {
            Some(fs) => Ok(fs.open(found.ino)?.compress_range(offset, length, compression)?),
            None => Ok(requests::ask(found.path, &Request::Compress { compression, offset, length })?),
        }
    }

    /// Gives each block of a range of a file its own copy.
    pub(crate) fn undedup(&self, found: &Found<'_>, range: Range<u64>) -> Result<Reshared, Refused> {
        let length = range.end - range.start;
        match &self.fs {
            Some(fs) => Ok(fs.open(found.ino)?.undedup_range(range.start, length)?),
            None => Ok(requests::ask(found.path, &Request::Undedup { offset: range.start, length })?),
        }
    }
}

/// Collects ranges of data by a look for the next data or hole.
fn data_from(from: u64, seek: impl Fn(u64, Whence) -> Result<u64, Refused>) -> Result<Vec<Range<u64>>, Refused> {
    let (mut ranges, mut at) = (Vec::new(), from);
    while ranges.len() < requests::EXTENTS_MAX {
        let start = match seek(at, Whence::Data) {
            Err(refused) if refused.errno == errno::ENXIO => break,
            start => start?,
        };
        at = seek(start, Whence::Hole)?;
        ranges.push(start..at);
    }
    Ok(ranges)
}

/// Returns the space of a mount by statfs(2): its size, and what is free.
fn space_of_statfs(path: &Path) -> Outcome<Stats> {
    let told = rustix::fs::statvfs(path).doing(mounts::show(path))?;
    let [device_bytes, free_bytes, available_bytes] =
        [told.f_blocks, told.f_bfree, told.f_bavail].map(|blocks| blocks * told.f_frsize);
    let stored_bytes = device_bytes.saturating_sub(free_bytes);
    Ok(Stats { device_bytes, stored_bytes, free_bytes, available_bytes, ..Stats::default() })
}

fn on_host<'p>(path: &'p Path, metadata: &std::fs::Metadata) -> Result<Found<'p>, Refused> {
    let unknown = || Refused { errno: 0, why: "of an unknown kind".into() };
    let kind = host::kind(metadata).ok_or_else(unknown)?;
    let (ino, links) = (InodeNumber(metadata.ino()), metadata.nlink());
    Ok(Found { path, kind, size_bytes: metadata.len(), ino, links })
}

fn on_device<'p>(path: &'p Path, attr: &Attr) -> Result<Found<'p>, Refused> {
    Ok(Found { path, kind: attr.kind, size_bytes: attr.size, ino: attr.ino, links: u64::from(attr.nlink) })
}

struct Walk<'a> {
    stored: &'a Stored,
    problems: &'a Problems,
    each: &'a mut dyn FnMut(&Found<'_>),
    /// True if one path may be below another.
    several_paths: bool,
    /// The inodes that may be reached again.
    met: HashSet<InodeNumber>,
}

impl Walk<'_> {
    /// Visits `top`, whose path is `path`, and all that is below it. `found` makes what is visited of a node of the tree.
    fn tree<T: Tree>(
        &mut self,
        tree: T,
        path: &Path,
        top: &T::Node,
        found: impl for<'p> Fn(&'p Path, &T::Node) -> Result<Found<'p>, Refused>,
    ) where
        T::Identity: Clone,
        Refused: From<T::Why>,
    {
        self.visit(path, found(path, top), true);
        let mut descent = Descent::new(tree, path, top);
        while let Some(step) = descent.next().filter(|_| !self.problems.is_stopped()) {
            match step {
                Step::Found(node) => self.visit(descent.path(), found(descent.path(), &node), false),
                Step::Left => {}
                Step::Problem(why) => self.stored.note(descent.path(), &why.into(), self.problems),
            }
        }
    }

    /// Visits a regular file or a directory, unless it was visited before, under another name or through another path.
    fn visit(&mut self, path: &Path, found: Result<Found<'_>, Refused>, is_top: bool) {
        match found {
            Ok(found) if matches!(found.kind, FileKind::Directory | FileKind::Regular) => {
                let has_one_name = found.kind == FileKind::Directory || found.links == 1;
                let once = has_one_name && !is_top && !self.several_paths;
                if once || self.met.insert(found.ino) {
                    (self.each)(&found);
                }
            }
            Ok(_) => {}
            Err(error) => self.stored.note(path, &error, self.problems),
        }
    }
}
