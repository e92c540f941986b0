//! Exports a tree of the device to the host.
//!
//! The thread that walks creates the files, so that names that are taken are reported in order; the other threads
//! fill them.
//!
//! The device is input, and others may use the destination. So a file is made in the open directory that it goes to,
//! under one name, and no symbolic link is followed below the destination ([`super::dir`]). It belongs to this process
//! alone until it is complete: files are made with mode 0600 and directories with 0700, and get owner, extended
//! attributes, mode and times last, in this order. A directory that was exported is not entered again.

use super::dir::{Dir, Levels, MOVED};
use super::files::{self, HostFile, identity};
use super::tally::Tally;
use super::{TreeError, TreeReport, TreeResult, Watch, crew, entries, note_damaged_names};
use crate::{Attr, DirEntry, FileKind, FileSystem, InodeNumber, Whence, errno};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Says what to export, where to, and how.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// File or directory on the device, by its path from the root.
    pub from: PathBuf,
    /// New path of the copy on the host. If it is an existing directory, or a symbolic link to one, the content of the
    /// exported directory is merged.
    pub to: PathBuf,
    /// Number of threads that copy; 0 for one per processor.
    pub threads: usize,
}

/// Copies a file or a directory of the device, with everything below it, to the host: content with its holes, hard
/// links, owners (as far as this process may set them), modes, times and extended attributes.
///
/// No existing file is overwritten: a name that is taken is a problem in the report, as is any other file that cannot
/// be made. Below the destination, symbolic links are names that are taken. A file whose owner cannot be set loses its
/// set-user-ID and set-group-ID bits. The call fails if `from` does not exist, if a single file would go to a
/// directory, or if `progress` stops it.
pub fn export(fs: &FileSystem, options: &ExportOptions, progress: &mut Watch<'_>) -> TreeResult<TreeReport> {
    export_with(fs, options, progress, &|_| {})
}

/// The same; calls `filled` with the path of each file and directory that is complete, before it gets its attributes.
/// Tests look at it there.
pub(super) fn export_with(
    fs: &FileSystem,
    options: &ExportOptions,
    progress: &mut Watch<'_>,
    filled: &(dyn Fn(&Path) + Sync),
) -> TreeResult<TreeReport> {
    let ExportOptions { from, to, threads } = options;
    let attr = fs.resolve(from.as_os_str().as_bytes()).map_err(|source| TreeError::FileSystem {
        doing: "export",
        path: from.clone(),
        source,
    })?;
    if attr.kind != FileKind::Directory && to.is_dir() {
        return Err(TreeError::IsDirectory { path: to.clone() });
    }
    let tally = Tally::default();
    Export { fs, tally: &tally, filled }.run(attr, to, *threads, progress);
    tally.finish("export", progress)
}

struct Export<'a> {
    fs: &'a FileSystem,
    tally: &'a Tally,
    filled: &'a (dyn Fn(&Path) + Sync),
}

/// A regular file to copy; `file` is the new file at `path`, open.
struct FileToExport {
    attr: Attr,
    path: PathBuf,
    file: File,
}

/// A directory that is being exported.
struct ExportedDirectory {
    attr: Attr,
    entries: std::vec::IntoIter<DirEntry>,
}

/// The first copy of a file with several names.
struct First {
    /// Its path below the destination.
    path: PathBuf,
    identity: (u64, u64),
}

struct ExportWalk<'a, 'b> {
    export: &'a Export<'b>,
    give: &'a mut dyn FnMut(FileToExport),
    /// Where the walk stands.
    path: PathBuf,
    levels: Levels<ExportedDirectory>,
    /// The directory of the destination, with its path.
    top: Option<(Arc<Dir>, PathBuf)>,
    linked: HashMap<InodeNumber, First>,
    /// Where the last hard link was found: most have neighbours in the same directory.
    last_linked: Option<(PathBuf, Arc<Dir>)>,
    /// Directories that were entered.
    met: HashSet<InodeNumber>,
}

impl Export<'_> {
    /// Exports the content of a directory, or one file, to `path`; problems go to the tally.
    fn run(&self, from: Attr, path: &Path, threads: usize, progress: &mut Watch<'_>) {
        let walk = |give: &mut dyn FnMut(FileToExport)| {
            let mut walk = ExportWalk {
                export: self,
                give,
                path: path.to_owned(),
                levels: Levels::new(),
                top: None,
                linked: HashMap::new(),
                last_linked: None,
                met: HashSet::new(),
            };
            walk.run(from);
        };
        crew::run(self.tally, threads, progress, walk, |job, buffer| self.copy(job, buffer));
    }

    fn copy(&self, job: FileToExport, buffer: &mut [u8]) {
        match self.copy_data(&job, buffer) {
            Ok(true) => {
                (self.filled)(&job.path);
                Tally::count(&self.tally.files);
                self.finish(HostFile::Open(job.file.as_fd()), &job.path, &job.attr);
            }
            // Stopped: the part that is there stays for its owner alone.
            Ok(false) => {}
            Err(error) => self.tally.problem(&job.path, error),
        }
    }

    /// Copies the content. Returns false if the caller stopped it.
    fn copy_data(
        &self,
        job: &FileToExport,
        buffer: &mut [u8],
    ) -> std::result::Result<bool, Box<dyn std::error::Error>> {
        let source = self.fs.open(job.attr.ino)?;
        let size = job.attr.size;
        let mut at = 0;
        while at < size {
            let start = match source.seek(at, Whence::Data) {
                Ok(start) => start,
                Err(error) if error.errno() == errno::ENXIO => break,
                Err(error) => return Err(error.into()),
            };
            let end = source.seek(start, Whence::Hole)?.min(size);
            at = start;
            while at < end {
                if self.tally.is_stopped() {
                    return Ok(false);
                }
                let wanted = buffer.len().min((end - at) as usize);
                let length = source.read_at(at, &mut buffer[..wanted])?;
                job.file.write_all_at(&buffer[..length], at)?;
                at += length as u64;
                self.tally.add_bytes(length);
                if length == 0 {
                    return Ok(true);
                }
            }
        }
        job.file.set_len(size)?;
        Ok(true)
    }

    /// Sets owner, extended attributes, mode and times, in this order: a set-user-ID bit is for the owner that the file
    /// has by then, and each of the others may change the times.
    fn finish(&self, node: HostFile<'_>, path: &Path, attr: &Attr) {
        let set = node.set_owner(attr).and_then(|has_owner| {
            self.set_xattrs(node, path, attr);
            if attr.kind != FileKind::Symlink {
                let set_id = if has_owner || attr.kind == FileKind::Directory { 0 } else { 0o6000 };
                node.set_mode(attr.mode & 0o7777 & !set_id)?;
            }
            node.set_times(attr)
        });
        if let Err(error) = set {
            self.tally.problem(path, error);
        }
    }

    fn set_xattrs(&self, node: HostFile<'_>, path: &Path, attr: &Attr) {
        let names = self.fs.list_xattr(attr.ino).unwrap_or_default();
        let is_root = rustix::process::geteuid().is_root();
        let allowed = |name: &&Vec<u8>| is_root || name.starts_with(b"user.") || name.starts_with(b"system.posix_acl");
        for name in names.iter().filter(allowed) {
            let set = self.fs.get_xattr(attr.ino, name).map_err(|error| error.to_string());
            let set = set.and_then(|value| node.set_xattr(name, &value).map_err(|error| error.to_string()));
            if let Err(error) = set {
                self.tally.problem(path, format!("extended attribute {}: {error}", String::from_utf8_lossy(name)));
            }
        }
    }
}

impl ExportWalk<'_, '_> {
    fn run(&mut self, from: Attr) {
        let tally = self.export.tally;
        match Dir::holding(self.path.components().as_path()) {
            Ok((dir, name)) => drop(self.visit(&Arc::new(dir), &name, from)),
            Err(error) => tally.problem(&self.path, error),
        }
        while let Some((dir, level)) = self.levels.last() {
            let entry = level.entries.next().filter(|_| !tally.is_stopped());
            let (Some(entry), Some(dir)) = (entry, dir.cloned()) else {
                self.leave();
                continue;
            };
            let directory = level.attr.ino;
            self.path.push(OsStr::from_bytes(&entry.name));
            // By its name: one that is damaged gives an error.
            let is_entered = match self.export.fs.lookup(directory, &entry.name) {
                Ok(attr) => self.visit(&dir, OsStr::from_bytes(&entry.name), attr),
                Err(error) => {
                    tally.problem(&self.path, error);
                    false
                }
            };
            if !is_entered {
                self.path.pop();
            }
        }
    }

    /// Leaves the last directory, which is complete: only now may it lose its write permission.
    fn leave(&mut self) {
        if let Some((dir, level)) = self.levels.pop() {
            match dir {
                Some(dir) => {
                    (self.export.filled)(&self.path);
                    self.export.finish(HostFile::Open(dir.as_fd()), &self.path, &level.attr);
                }
                None => self.export.tally.problem(&self.path, MOVED),
            }
        }
        self.path.pop();
    }

    /// Makes a file or directory. Returns true if it is a directory, which is now the last level.
    fn visit(&mut self, dir: &Arc<Dir>, name: &OsStr, attr: Attr) -> bool {
        let tally = self.export.tally;
        if tally.is_stopped() {
            return false;
        }
        let made = match attr.kind {
            FileKind::Directory => self.directory(dir, name, attr),
            _ => self.file(dir, name, attr).map(|()| false),
        };
        made.unwrap_or_else(|error| {
            tally.problem(&self.path, error);
            false
        })
    }

    fn file(&mut self, dir: &Dir, name: &OsStr, attr: Attr) -> io::Result<()> {
        let tally = self.export.tally;
        if attr.nlink > 1 && self.linked.contains_key(&attr.ino) {
            self.link(dir, name, attr.ino)?;
            Tally::count(&tally.hard_links);
            return Ok(());
        }
        if attr.kind == FileKind::Regular {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file: File = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?.into();
            self.note_first(&attr, &file)?;
            (self.give)(FileToExport { attr, path: self.path.clone(), file });
            return Ok(());
        }
        if attr.kind == FileKind::Symlink {
            let target = self.export.fs.readlink(attr.ino).map_err(io::Error::other)?;
            rustix::fs::symlinkat(OsStr::from_bytes(&target), dir, name)?;
        } else {
            files::make_node(dir.as_fd(), name, &attr)?;
        }
        let handle = made(dir, name, attr.kind)?;
        self.note_first(&attr, &handle)?;
        self.export.finish(HostFile::Handle(handle.as_fd()), &self.path, &attr);
        Tally::count(if attr.kind == FileKind::Symlink { &tally.symlinks } else { &tally.specials });
        Ok(())
    }

    /// Remembers the first copy of a file with several names.
    fn note_first(&mut self, attr: &Attr, copy: &impl AsFd) -> io::Result<()> {
        if attr.nlink > 1
            && let Some((_, top)) = &self.top
        {
            let path = self.path.strip_prefix(top).unwrap_or(&self.path).to_owned();
            let identity = identity(&rustix::fs::fstat(copy)?);
            self.linked.insert(attr.ino, First { path, identity });
        }
        Ok(())
    }

    /// Gives the first copy of a file another name, if it is still where it was made.
    fn link(&mut self, dir: &Dir, name: &OsStr, ino: InodeNumber) -> io::Result<()> {
        let First { path, identity: expected } = &self.linked[&ino];
        let replaced = || io::Error::other(format!("{}: was replaced meanwhile", path.display()));
        let (below, first) = (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default());
        let known = self.last_linked.take().filter(|(known, _)| known == below);
        let parent = match (known, &self.top) {
            (Some((_, dir)), _) => dir,
            (None, Some((top, _))) => reach(top, below)?,
            (None, None) => return Err(replaced()),
        };
        let handle = parent.any_handle(first)?;
        if identity(&rustix::fs::fstat(&handle)?) != *expected {
            return Err(replaced());
        }
        // By the handle, for the name may lead elsewhere by now.
        let handle_path = files::path_of(handle.as_fd());
        rustix::fs::linkat(CWD, handle_path, dir, name, AtFlags::SYMLINK_FOLLOW)?;
        self.last_linked = Some((below.to_owned(), parent));
        Ok(())
    }

    /// Makes a directory, or opens an existing one, and begins with its entries.
    fn directory(&mut self, dir: &Dir, name: &OsStr, attr: Attr) -> io::Result<bool> {
        let Export { fs, tally, .. } = self.export;
        if !self.met.insert(attr.ino) {
            return Err(io::Error::other("damage: names on the device lead to this directory twice"));
        }
        // The caller's own path may end in a symbolic link.
        let is_top = self.top.is_none();
        let made = rustix::fs::mkdirat(dir, name, Mode::RWXU);
        let follow = if is_top && made.is_err() { OFlags::empty() } else { OFlags::NOFOLLOW };
        let opened = match made {
            Err(error) if error != rustix::io::Errno::EXIST => return Err(error.into()),
            Err(error) => dir.enter_any(name, OFlags::RDONLY | follow).map_err(|_| io::Error::from(error))?,
            Ok(()) => dir.enter_any(name, OFlags::RDONLY | follow)?,
        };
        let stat = rustix::fs::fstat(&opened)?;
        let opened = Arc::new(opened);
        if is_top {
            self.top = Some((opened.clone(), self.path.clone()));
        }
        Tally::count(&tally.directories);
        note_damaged_names(fs, attr.ino, &self.path, tally);
        let entries = entries(fs, attr.ino).unwrap_or_else(|error| {
            tally.problem(&self.path, error);
            Vec::new()
        });
        self.levels.push(opened, &stat, ExportedDirectory { attr, entries: entries.into_iter() });
        Ok(true)
    }
}

/// Opens a handle to what was just made, if it is of this kind.
fn made(dir: &Dir, name: &OsStr, kind: FileKind) -> io::Result<OwnedFd> {
    let handle = dir.any_handle(name)?;
    let stat = rustix::fs::fstat(&handle)?;
    let is_it = files::kind_of_mode(stat.st_mode) == Some(kind) && stat.st_nlink == 1;
    if is_it { Ok(handle) } else { Err(io::Error::other("was replaced when it was made")) }
}

/// Opens a directory below another one, name by name.
fn reach(top: &Arc<Dir>, path: &Path) -> io::Result<Arc<Dir>> {
    let below = |dir: Arc<Dir>, name: &OsStr| dir.enter_any(name, OFlags::PATH | OFlags::NOFOLLOW).map(Arc::new);
    path.iter().try_fold(top.clone(), below)
}
