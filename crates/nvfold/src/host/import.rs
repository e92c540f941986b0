//! Imports a tree of the host into a file system on a device.
//!
//! The thread that walks makes everything except the content of files with one name. So a directory exists before its
//! entries, and a file with several names before its second name. Directories get their times after everything in
//! them was made.

use super::tally::Tally;
use super::walk::walk;
use super::{Error, Report, Result, Watch, crew, files};
use crate::{FileKind, FileSystem, InodeNumber, NewInode, SetAttr, XattrMode};
use std::collections::HashMap;
use std::fs::Metadata;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// Says what to import, where to, and how.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Files and directories of the host to import.
    pub sources: Vec<PathBuf>,
    /// Destination of the copy, a path from the root of the device. With one source it is the new path, with several
    /// the directory that they go into. `None`: each goes into the root under its own name. Missing directories are
    /// made.
    pub to: Option<PathBuf>,
    /// Number of threads that copy; 0 for one per processor.
    pub threads: usize,
    /// Stays on the file system of each source.
    pub one_file_system: bool,
    /// File of the host that is the device itself. It is skipped, because it cannot contain itself.
    pub device: Option<PathBuf>,
}

impl ImportOptions {
    /// Returns the bytes of content of all sources as reported by the host, for a progress bar. Walks all of them.
    pub fn total_bytes(&self) -> u64 {
        let mut bytes = 0;
        for source in &self.sources {
            let _ = walk(source, self.one_file_system, &mut |found| {
                bytes += found
                    .ok()
                    .filter(|(_, metadata)| metadata.is_file())
                    .map_or(0, |(_, metadata)| metadata.len().min(metadata.blocks().saturating_mul(512)));
                ControlFlow::Continue(())
            });
        }
        bytes
    }
}

/// Copies files and directories of the host, with everything below them, to the device: content with its holes, hard
/// links, owners, modes, times and extended attributes. The content of a directory that exists already is merged.
///
/// A file that cannot be copied (because its name is taken, or it cannot be read) is a problem in the report; sockets
/// are skipped. The call fails if a source has no name, if a destination cannot be made, if the device is full, or if
/// `progress` stops it. Files copied by then stay.
pub fn import(fs: &FileSystem, options: &ImportOptions, progress: &mut Watch<'_>) -> Result<Report> {
    let sources = places(fs, options)?;
    let device = options.device.as_ref().and_then(|device| std::fs::metadata(device).ok());
    let tally = Tally::default();
    let import = Import {
        fs,
        tally: &tally,
        one_file_system: options.one_file_system,
        device_file: device.map(|metadata| (metadata.dev(), metadata.ino())),
    };
    import.run(sources, options.threads, progress);
    tally.finish("import", progress)
}

/// Returns the destination of each source.
fn places(fs: &FileSystem, options: &ImportOptions) -> Result<Vec<Source>> {
    let ImportOptions { sources, to, .. } = options;
    let place = |source: &PathBuf| {
        let path = match to {
            Some(to) if sources.len() == 1 => to.clone(),
            to => to.clone().unwrap_or_default().join(base_name(source)?),
        };
        let mut names = names_of(&path)?;
        let name = names.pop().unwrap_or_default();
        Ok(Source { path: source.clone(), parent: directories(fs, &names)?, name })
    };
    sources.iter().map(place).collect()
}

/// Returns the last name of a path; paths such as `.` are resolved by the host. The root has none, so its content is
/// imported.
fn base_name(source: &Path) -> Result<PathBuf> {
    if let Some(name) = source.file_name() {
        return Ok(name.into());
    }
    let resolved = source.canonicalize();
    let resolved = resolved.map_err(|error| Error::Host { doing: "import", path: source.to_owned(), source: error })?;
    Ok(resolved.file_name().map(PathBuf::from).unwrap_or_default())
}

/// Returns the names on a path on the device.
fn names_of(path: &Path) -> Result<Vec<Vec<u8>>> {
    let name = |component: Component| match component {
        Component::Normal(name) => Some(Ok(name.as_bytes().to_vec())),
        Component::ParentDir => Some(Err(Error::ParentInPath { path: path.to_owned() })),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

/// Returns the directory that `names` lead to from the root; makes missing directories.
fn directories(fs: &FileSystem, names: &[Vec<u8>]) -> Result<InodeNumber> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let new = NewInode { kind: FileKind::Directory, mode: 0o755, uid, gid, rdev: 0 };
    let (mut at, mut path) = (InodeNumber::ROOT, PathBuf::from("/"));
    for name in names {
        path.push(std::ffi::OsStr::from_bytes(name));
        let next = match fs.lookup(at, name) {
            Err(crate::Error::NotFound { .. }) => fs.mkdir(at, name, &new),
            found => found,
        };
        at = next.map_err(|source| Error::FileSystem { doing: "import to", path: path.clone(), source })?.ino;
    }
    Ok(at)
}

/// The state of an import, shared by all threads.
struct Import<'a> {
    fs: &'a FileSystem,
    tally: &'a Tally,
    one_file_system: bool,
    /// Device and inode number of the file that is the device.
    device_file: Option<(u64, u64)>,
}

/// A file or directory to import, and its destination.
struct Source {
    path: PathBuf,
    parent: InodeNumber,
    /// Name of the copy. If empty, the content goes into the parent itself.
    name: Vec<u8>,
}

/// A regular file to copy. `ino` is set if the file was created already.
struct Job {
    source: Source,
    metadata: Metadata,
    ino: Option<InodeNumber>,
}

struct Walk<'a, 'b> {
    import: &'a Import<'b>,
    give: &'a mut dyn FnMut(Job),
    /// Files with several names: inode of the first name's copy.
    linked: HashMap<(u64, u64), InodeNumber>,
    /// Directories, whose times are set after everything in them was made.
    directories: Vec<(InodeNumber, SetAttr)>,
}

impl Import<'_> {
    /// Imports all `sources`; problems go to the tally.
    fn run(&self, sources: Vec<Source>, threads: usize, progress: &mut Watch<'_>) {
        let mut directories = Vec::new();
        let walk = |give: &mut dyn FnMut(Job)| {
            let mut walk = Walk { import: self, give, linked: HashMap::new(), directories: Vec::new() };
            sources.into_iter().for_each(|source| walk.visit(source, None));
            directories = walk.directories;
        };
        crew::run(self.tally, threads, progress, walk, |job, buffer| self.copy(job, buffer));
        for (ino, times) in directories {
            if let Err(error) = self.fs.setattr(ino, &times) {
                self.tally.problem(Path::new(&format!("inode {}", ino.0)), error);
            }
        }
    }

    fn create(&self, source: &Source, metadata: &Metadata, kind: FileKind) -> crate::Result<InodeNumber> {
        let rdev = if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
            files::encode_rdev(metadata.rdev())
        } else {
            0
        };
        let mode = metadata.mode() & 0o7777;
        let new = NewInode { kind, mode, uid: metadata.uid(), gid: metadata.gid(), rdev };
        Ok(self.fs.create(source.parent, &source.name, &new)?.ino)
    }

    fn copy(&self, job: Job, buffer: &mut [u8]) {
        let path = &job.source.path;
        let created = match job.ino {
            Some(ino) => Ok(ino),
            None => self.create(&job.source, &job.metadata, FileKind::Regular),
        };
        match created.and_then(|ino| self.fs.open(ino)) {
            Ok(file) => self.fill(path, &job.metadata, &file, buffer),
            Err(error) => self.tally.failed(path, error),
        }
    }

    /// Copies extended attributes (one of which says how the content is stored), then content, then times.
    fn fill(&self, path: &Path, metadata: &Metadata, file: &crate::File, buffer: &mut [u8]) {
        let source = match files::open(path) {
            Ok(source) => source,
            Err(error) => return self.tally.problem(path, error),
        };
        self.copy_xattrs(path, file.ino());
        let mut failed = None;
        let copied = files::data_ranges(&source, metadata, |start, end| {
            let mut at = start;
            while at < end && failed.is_none() && !self.tally.is_stopped() {
                let wanted = buffer.len().min((end - at) as usize);
                let length = source.read_at(&mut buffer[..wanted], at)?;
                if length == 0 {
                    // The file became shorter while it was read.
                    break;
                }
                failed = file.write_at(at, &buffer[..length]).err();
                at += length as u64;
                self.tally.add_bytes(length);
            }
            Ok(())
        });
        match (failed, copied) {
            (Some(error), _) => return self.tally.failed(path, error),
            (None, Err(error)) => return self.tally.problem(path, error),
            (None, Ok(())) => {}
        }
        // The file ends in a hole.
        if file.attr().size < metadata.len()
            && let Err(error) = file.set_len(metadata.len())
        {
            return self.tally.failed(path, error);
        }
        Tally::count(&self.tally.files);
        self.set_attributes(path, metadata, file.ino());
    }

    fn finish(&self, path: &Path, metadata: &Metadata, ino: InodeNumber) {
        self.copy_xattrs(path, ino);
        self.set_attributes(path, metadata, ino);
    }

    fn set_attributes(&self, path: &Path, metadata: &Metadata, ino: InodeNumber) {
        if let Err(error) = self.fs.setattr(ino, &attributes(metadata)) {
            self.tally.failed(path, error);
        }
    }

    fn copy_xattrs(&self, path: &Path, ino: InodeNumber) {
        for (name, value) in files::xattrs(path) {
            if let Err(error) = self.fs.set_xattr(ino, &name, &value, XattrMode::Set) {
                self.tally.failed(path, error);
            }
        }
    }
}

fn attributes(metadata: &Metadata) -> SetAttr {
    let (atime, mtime) = files::times(metadata);
    SetAttr {
        mode: Some(metadata.mode() & 0o7777),
        uid: Some(metadata.uid()),
        gid: Some(metadata.gid()),
        atime: Some(atime),
        mtime: Some(mtime),
        ..SetAttr::default()
    }
}

impl Walk<'_, '_> {
    /// Imports one name and everything below it. `device` is the host's device number of the tree, if the import must
    /// stay on it.
    fn visit(&mut self, source: Source, device: Option<u64>) {
        let Import { tally, one_file_system, device_file, .. } = self.import;
        if tally.is_stopped() {
            return;
        }
        let metadata = match std::fs::symlink_metadata(&source.path) {
            Ok(metadata) => metadata,
            Err(error) => return tally.problem(&source.path, error),
        };
        if device.is_some_and(|device| device != metadata.dev()) {
            return tally.skip(&source.path, "on another file system");
        }
        if *device_file == Some((metadata.dev(), metadata.ino())) {
            return tally.skip(&source.path, "it is the device itself");
        }
        let device = one_file_system.then(|| metadata.dev());
        match files::kind(&metadata) {
            Some(FileKind::Socket) => tally.skip(&source.path, "a socket"),
            Some(FileKind::Directory) => self.directory(source, &metadata, device),
            Some(kind) => self.file(source, metadata, kind),
            None => tally.skip(&source.path, "of an unknown kind"),
        }
    }

    fn directory(&mut self, source: Source, metadata: &Metadata, device: Option<u64>) {
        let import = self.import;
        let ino = match self.make_directory(&source, metadata) {
            Ok(ino) => ino,
            Err(error) => return import.tally.failed(&source.path, error),
        };
        Tally::count(&import.tally.directories);
        import.copy_xattrs(&source.path, ino);
        self.directories.push((ino, attributes(metadata)));
        match files::names(&source.path) {
            Ok(names) => {
                for name in names {
                    let below = Source { path: source.path.join(&name), parent: ino, name: name.as_bytes().to_vec() };
                    self.visit(below, device);
                }
            }
            Err(error) => import.tally.problem(&source.path, error),
        }
    }

    /// Makes a directory, or returns the existing one, whose content is merged. An empty name stands for the parent
    /// itself.
    fn make_directory(&self, source: &Source, metadata: &Metadata) -> crate::Result<InodeNumber> {
        let fs = self.import.fs;
        if source.name.is_empty() {
            return Ok(source.parent);
        }
        let mode = metadata.mode() & 0o7777;
        let new = NewInode { kind: FileKind::Directory, mode, uid: metadata.uid(), gid: metadata.gid(), rdev: 0 };
        match fs.mkdir(source.parent, &source.name, &new) {
            Err(crate::Error::Exists { what }) => {
                let there = fs.lookup(source.parent, &source.name)?;
                if there.kind == FileKind::Directory { Ok(there.ino) } else { Err(crate::Error::Exists { what }) }
            }
            made => Ok(made?.ino),
        }
    }

    fn file(&mut self, source: Source, metadata: Metadata, kind: FileKind) {
        let import = self.import;
        let identity = (metadata.dev(), metadata.ino());
        let has_links = metadata.nlink() > 1;
        if let Some(first) = self.linked.get(&identity).filter(|_| has_links) {
            return match import.fs.link(*first, source.parent, &source.name) {
                Ok(_) => Tally::count(&import.tally.hard_links),
                Err(error) => import.tally.failed(&source.path, error),
            };
        }
        if kind == FileKind::Regular && !has_links {
            return (self.give)(Job { source, metadata, ino: None });
        }
        // The inode number must be known before another name of the file is met.
        let made = match kind {
            FileKind::Symlink => self.symlink(&source, &metadata),
            _ => import.create(&source, &metadata, kind).map_err(Some),
        };
        let ino = match made {
            Ok(ino) => ino,
            Err(Some(error)) => return import.tally.failed(&source.path, error),
            Err(None) => return,
        };
        if has_links {
            self.linked.insert(identity, ino);
        }
        match kind {
            FileKind::Regular => return (self.give)(Job { source, metadata, ino: Some(ino) }),
            FileKind::Symlink => Tally::count(&import.tally.symlinks),
            _ => Tally::count(&import.tally.specials),
        }
        import.finish(&source.path, &metadata, ino);
    }

    /// Makes a symbolic link. `Err(None)` means that the problem was recorded.
    fn symlink(&self, source: &Source, metadata: &Metadata) -> std::result::Result<InodeNumber, Option<crate::Error>> {
        let import = self.import;
        let target = std::fs::read_link(&source.path).map_err(|error| {
            import.tally.problem(&source.path, error);
            None
        })?;
        let new = NewInode { kind: FileKind::Symlink, mode: 0o777, uid: metadata.uid(), gid: metadata.gid(), rdev: 0 };
        let made = import.fs.symlink(source.parent, &source.name, target.as_os_str().as_bytes(), &new);
        made.map(|attr| attr.ino).map_err(Some)
    }
}
