//! Imports a tree of the host into a file system on a device.
//!
//! The thread that walks makes everything except the content of files with one name. So a directory exists before its
//! entries, and a file with several names before its second name. Directories get their times after everything in
//! them was made.
//!
//! The tree may belong to a user who changes it meanwhile. What is stored is what was opened: its attributes are those
//! of the descriptor, and a file or directory that was replaced after it was listed ([`super::dir`]) is a problem in
//! the report, of which nothing is stored.

use super::dir::{Dir, Levels, MOVED};
use super::files::{HostFile, identity};
use super::tally::Tally;
use super::walk::walk;
use super::{TreeError, TreeReport, TreeResult, Watch, crew, files};
use crate::{FileKind, FileSystem, InodeNumber, NewInode, SetAttr, XattrMode};
use rustix::fs::Stat;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

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
                let file = found.ok().filter(|found| found.kind() == Some(FileKind::Regular));
                bytes += file.map_or(0, |file| files::size(&file.stat).min(files::allocated_bytes(&file.stat)));
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
pub fn import(fs: &FileSystem, options: &ImportOptions, progress: &mut Watch<'_>) -> TreeResult<TreeReport> {
    import_with(fs, options, progress, &|_| {})
}

/// The same; calls `looked` with the path of each file and directory after it was looked at, before it is opened. Tests
/// change the tree there.
pub(super) fn import_with(
    fs: &FileSystem,
    options: &ImportOptions,
    progress: &mut Watch<'_>,
    looked: &(dyn Fn(&Path) + Sync),
) -> TreeResult<TreeReport> {
    let sources = places(fs, options)?;
    let device = options.device.as_ref().and_then(|device| std::fs::metadata(device).ok());
    let tally = Tally::default();
    let import = Import {
        fs,
        tally: &tally,
        one_file_system: options.one_file_system,
        device_file: device.map(|metadata| (metadata.dev(), metadata.ino())),
        looked,
    };
    import.run(sources, options.threads, progress);
    tally.finish("import", progress)
}

/// Returns the destination of each source.
fn places(fs: &FileSystem, options: &ImportOptions) -> TreeResult<Vec<ImportSource>> {
    let ImportOptions { sources, to, .. } = options;
    let place = |source: &PathBuf| {
        let path = match to {
            Some(to) if sources.len() == 1 => to.clone(),
            to => to.clone().unwrap_or_default().join(base_name(source)?),
        };
        let mut names = names_of(&path)?;
        let name = names.pop().unwrap_or_default();
        Ok(ImportSource { path: source.clone(), to: Destination { parent: directories(fs, &names)?, name } })
    };
    sources.iter().map(place).collect()
}

/// Returns the last name of a path; paths such as `.` are resolved by the host. The root has none, so its content is
/// imported.
fn base_name(source: &Path) -> TreeResult<PathBuf> {
    if let Some(name) = source.file_name() {
        return Ok(name.into());
    }
    let resolved = source.canonicalize();
    let resolved =
        resolved.map_err(|error| TreeError::Host { doing: "import", path: source.to_owned(), source: error })?;
    Ok(resolved.file_name().map(PathBuf::from).unwrap_or_default())
}

/// Returns the names on a path on the device.
fn names_of(path: &Path) -> TreeResult<Vec<Vec<u8>>> {
    let name = |component: Component| match component {
        Component::Normal(name) => Some(Ok(name.as_bytes().to_vec())),
        Component::ParentDir => Some(Err(TreeError::ParentInPath { path: path.to_owned() })),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

/// Returns the directory that `names` lead to from the root; makes missing directories.
fn directories(fs: &FileSystem, names: &[Vec<u8>]) -> TreeResult<InodeNumber> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let new = NewInode { kind: FileKind::Directory, mode: 0o755, uid, gid, rdev: 0 };
    let (mut at, mut path) = (InodeNumber::ROOT, PathBuf::from("/"));
    for name in names {
        path.push(std::ffi::OsStr::from_bytes(name));
        let next = match fs.lookup(at, name) {
            Err(crate::Error::NotFound { .. }) => fs.mkdir(at, name, &new),
            found => found,
        };
        at = next.map_err(|source| TreeError::FileSystem { doing: "import to", path: path.clone(), source })?.ino;
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
    looked: &'a (dyn Fn(&Path) + Sync),
}

/// A file or directory to import, and its destination.
struct ImportSource {
    path: PathBuf,
    to: Destination,
}

/// A name on the device. If it is empty, the content goes into the parent itself.
struct Destination {
    parent: InodeNumber,
    name: Vec<u8>,
}

/// A name of the host that was looked at.
struct SeenName<'f> {
    dir: &'f Arc<Dir>,
    name: &'f OsStr,
    seen: Stat,
}

/// A regular file to copy.
struct FileToImport {
    path: PathBuf,
    from: From,
}

enum From {
    /// Not opened yet.
    Name { dir: Arc<Dir>, name: OsString, seen: Stat, to: Destination },
    /// A file with several names, which was opened and created already.
    Open(OpenCopy),
}

/// A regular file that is open, and its copy.
struct OpenCopy {
    file: File,
    stat: Stat,
    ino: InodeNumber,
}

/// A directory that is being imported.
struct ImportedDirectory {
    ino: InodeNumber,
    names: std::vec::IntoIter<OsString>,
}

struct ImportWalk<'a, 'b> {
    import: &'a Import<'b>,
    give: &'a mut dyn FnMut(FileToImport),
    /// Where the walk stands.
    path: PathBuf,
    levels: Levels<ImportedDirectory>,
    /// The host's device number of the source, if the import must stay on it.
    device: Option<u64>,
    /// Files with several names: inode of the first name's copy.
    linked: HashMap<(u64, u64), InodeNumber>,
    /// Directories, whose times are set after everything in them was made.
    directories: Vec<(InodeNumber, SetAttr)>,
}

/// Why a file was not imported.
enum Failure {
    Host(io::Error),
    Device(crate::Error),
}

impl std::convert::From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Host(error)
    }
}

impl std::convert::From<crate::Error> for Failure {
    fn from(error: crate::Error) -> Failure {
        Failure::Device(error)
    }
}

type Imported<T> = std::result::Result<T, Failure>;

impl Import<'_> {
    /// Imports all `sources`; problems go to the tally.
    fn run(&self, sources: Vec<ImportSource>, threads: usize, progress: &mut Watch<'_>) {
        let mut directories = Vec::new();
        let walk = |give: &mut dyn FnMut(FileToImport)| {
            let mut walk = ImportWalk {
                import: self,
                give,
                path: PathBuf::new(),
                levels: Levels::new(),
                device: None,
                linked: HashMap::new(),
                directories: Vec::new(),
            };
            sources.into_iter().for_each(|source| walk.source(source));
            directories = walk.directories;
        };
        crew::run(self.tally, threads, progress, walk, |job, buffer| self.copy(job, buffer));
        for (ino, times) in directories {
            if let Err(error) = self.fs.setattr(ino, &times) {
                self.tally.problem(Path::new(&format!("inode {}", ino.0)), error);
            }
        }
    }

    fn note(&self, path: &Path, failure: Failure) {
        match failure {
            Failure::Host(error) => self.tally.problem(path, error),
            Failure::Device(error) => self.tally.failed(path, error),
        }
    }

    fn create(&self, to: &Destination, stat: &Stat, kind: FileKind) -> crate::Result<InodeNumber> {
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let rdev = if is_device { files::encode_rdev(stat.st_rdev) } else { 0 };
        Ok(self.fs.create(to.parent, &to.name, &NewInode { rdev, ..new_inode(stat, kind) })?.ino)
    }

    /// Opens a regular file, and then makes its copy.
    fn open(&self, found: &SeenName<'_>, to: &Destination) -> Imported<OpenCopy> {
        let (file, stat) = found.dir.open(found.name, &found.seen)?;
        let ino = self.create(to, &stat, FileKind::Regular)?;
        Ok(OpenCopy { file, stat, ino })
    }

    fn copy(&self, job: FileToImport, buffer: &mut [u8]) {
        let FileToImport { path, from } = job;
        let opened = match from {
            From::Open(opened) => Ok(opened),
            From::Name { dir, name, seen, to } => self.open(&SeenName { dir: &dir, name: &name, seen }, &to),
        };
        if let Err(failure) = opened.and_then(|opened| self.fill(&path, &opened, buffer)) {
            self.note(&path, failure);
        }
    }

    /// Copies extended attributes (one of which says how the content is stored), then content, then times.
    fn fill(&self, path: &Path, from: &OpenCopy, buffer: &mut [u8]) -> Imported<()> {
        let file = self.fs.open(from.ino)?;
        self.copy_xattrs(path, HostFile::Open(from.file.as_fd()), from.ino);
        let mut failed = None;
        files::data_ranges(&from.file, &from.stat, |start, end| {
            let mut at = start;
            while at < end && failed.is_none() && !self.tally.is_stopped() {
                let wanted = buffer.len().min((end - at) as usize);
                let length = from.file.read_at(&mut buffer[..wanted], at)?;
                if length == 0 {
                    // The file became shorter while it was read.
                    break;
                }
                failed = file.write_at(at, &buffer[..length]).err();
                at += length as u64;
                self.tally.add_bytes(length);
            }
            Ok(())
        })?;
        failed.map_or(Ok(()), Err)?;
        // The file ends in a hole.
        let size = files::size(&from.stat);
        if file.attr().size < size {
            file.set_len(size)?;
        }
        Tally::count(&self.tally.files);
        Ok(self.fs.setattr(from.ino, &attributes(&from.stat)).map(drop)?)
    }

    fn copy_xattrs(&self, path: &Path, node: HostFile<'_>, ino: InodeNumber) {
        for (name, value) in node.xattrs() {
            if let Err(error) = self.fs.set_xattr(ino, &name, &value, XattrMode::Set) {
                self.tally.failed(path, error);
            }
        }
    }
}

fn new_inode(stat: &Stat, kind: FileKind) -> NewInode {
    NewInode { kind, mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid, rdev: 0 }
}

fn attributes(stat: &Stat) -> SetAttr {
    let (atime, mtime) = files::times(stat);
    SetAttr {
        mode: Some(stat.st_mode & 0o7777),
        uid: Some(stat.st_uid),
        gid: Some(stat.st_gid),
        atime: Some(atime),
        mtime: Some(mtime),
        ..SetAttr::default()
    }
}

impl ImportWalk<'_, '_> {
    /// Imports a file or a directory, and everything below it.
    fn source(&mut self, source: ImportSource) {
        let ImportSource { path, to } = source;
        self.device = None;
        match Dir::holding(&path) {
            Ok((dir, name)) => {
                self.path = path;
                self.visit(&Arc::new(dir), &name, to);
            }
            Err(error) => self.import.tally.problem(&path, error),
        }
        while let Some((dir, level)) = self.levels.last() {
            let name = level.names.next().filter(|_| !self.import.tally.is_stopped());
            let (Some(name), Some(dir)) = (&name, dir.cloned()) else {
                if name.is_some() {
                    self.import.tally.problem(&self.path, MOVED);
                }
                self.levels.pop();
                self.path.pop();
                continue;
            };
            let to = Destination { parent: level.ino, name: name.as_bytes().to_vec() };
            self.path.push(name);
            if !self.visit(&dir, name, to) {
                self.path.pop();
            }
        }
    }

    /// Imports one name. Returns true if it is a directory, which is now the last level.
    fn visit(&mut self, dir: &Arc<Dir>, name: &OsStr, to: Destination) -> bool {
        let Import { tally, one_file_system, device_file, looked, .. } = self.import;
        if tally.is_stopped() {
            return false;
        }
        let found = match dir.look(name) {
            Ok(seen) => SeenName { dir, name, seen },
            Err(error) => {
                tally.problem(&self.path, error);
                return false;
            }
        };
        let device = found.seen.st_dev;
        if *one_file_system && device != *self.device.get_or_insert(device) {
            tally.skip(&self.path, "on another file system");
        } else if *device_file == Some(identity(&found.seen)) {
            tally.skip(&self.path, "it is the device itself");
        } else {
            looked(&self.path);
            let imported = self.import_kind(found, to);
            return imported.unwrap_or_else(|failure| {
                self.import.note(&self.path, failure);
                false
            });
        }
        false
    }

    fn import_kind(&mut self, found: SeenName<'_>, to: Destination) -> Imported<bool> {
        let tally = self.import.tally;
        match files::kind_of_mode(found.seen.st_mode) {
            Some(FileKind::Socket) => tally.skip(&self.path, "a socket"),
            Some(FileKind::Directory) => return self.directory(&found, &to).map(|()| true),
            Some(kind) => self.file(found, to, kind)?,
            None => tally.skip(&self.path, "of an unknown kind"),
        }
        Ok(false)
    }

    fn directory(&mut self, found: &SeenName<'_>, to: &Destination) -> Imported<()> {
        let import = self.import;
        let (dir, stat) = found.dir.enter(found.name, &found.seen)?;
        let names = dir.names()?.into_iter();
        let ino = self.make_directory(to, &stat)?;
        Tally::count(&import.tally.directories);
        import.copy_xattrs(&self.path, HostFile::Open(dir.as_fd()), ino);
        self.directories.push((ino, attributes(&stat)));
        self.levels.push(Arc::new(dir), &stat, ImportedDirectory { ino, names });
        Ok(())
    }

    /// Makes a directory, or returns the existing one, whose content is merged. An empty name stands for the parent
    /// itself.
    fn make_directory(&self, to: &Destination, stat: &Stat) -> crate::Result<InodeNumber> {
        let fs = self.import.fs;
        if to.name.is_empty() {
            return Ok(to.parent);
        }
        match fs.mkdir(to.parent, &to.name, &new_inode(stat, FileKind::Directory)) {
            Err(crate::Error::Exists { what }) => {
                let there = fs.lookup(to.parent, &to.name)?;
                if there.kind == FileKind::Directory { Ok(there.ino) } else { Err(crate::Error::Exists { what }) }
            }
            made => Ok(made?.ino),
        }
    }

    fn file(&mut self, found: SeenName<'_>, to: Destination, kind: FileKind) -> Imported<()> {
        let import = self.import;
        let identity = identity(&found.seen);
        let has_links = found.seen.st_nlink > 1;
        if let Some(first) = self.linked.get(&identity).filter(|_| has_links) {
            import.fs.link(*first, to.parent, &to.name)?;
            Tally::count(&import.tally.hard_links);
            return Ok(());
        }
        let path = self.path.clone();
        if kind == FileKind::Regular && !has_links {
            let (dir, name) = (found.dir.clone(), found.name.to_owned());
            (self.give)(FileToImport { path, from: From::Name { dir, name, seen: found.seen, to } });
            return Ok(());
        }
        // The inode number must be known before another name of the file is met.
        let ino = if kind == FileKind::Regular {
            let opened = import.open(&found, &to)?;
            let ino = opened.ino;
            (self.give)(FileToImport { path, from: From::Open(opened) });
            ino
        } else {
            self.special(&found, &to, kind)?
        };
        if has_links {
            self.linked.insert(identity, ino);
        }
        Ok(())
    }

    /// Imports a symbolic link, a fifo or a device node.
    fn special(&self, found: &SeenName<'_>, to: &Destination, kind: FileKind) -> Imported<InodeNumber> {
        let Import { fs, tally, .. } = self.import;
        let (handle, stat) = found.dir.handle(found.name, &found.seen)?;
        let ino = if kind == FileKind::Symlink {
            let target = rustix::fs::readlinkat(&handle, "", Vec::new()).map_err(io::Error::from)?;
            let new = NewInode { mode: 0o777, ..new_inode(&stat, kind) };
            let ino = fs.symlink(to.parent, &to.name, target.as_bytes(), &new)?.ino;
            Tally::count(&tally.symlinks);
            ino
        } else {
            let ino = self.import.create(to, &stat, kind)?;
            Tally::count(&tally.specials);
            ino
        };
        self.import.copy_xattrs(&self.path, HostFile::Handle(handle.as_fd()), ino);
        fs.setattr(ino, &attributes(&stat))?;
        Ok(ino)
    }
}
