//! Exports a tree of the device to the host.
//!
//! The thread that walks creates the files, so that names that are taken are reported in order; the other threads
//! fill them. Directories get their attributes when they are complete, deepest first.

use super::tally::Tally;
use super::{Error, Report, Result, Watch, crew, entries, files};
use crate::{Attr, FileKind, FileSystem, InodeNumber, Whence, errno};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Says what to export, where to, and how.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// File or directory on the device, by its path from the root.
    pub from: PathBuf,
    /// New path of the copy on the host. If it is an existing directory, the content of the exported directory is
    /// merged.
    pub to: PathBuf,
    /// Number of threads that copy; 0 for one per processor.
    pub threads: usize,
}

/// Copies a file or a directory of the device, with everything below it, to the host: content with its holes, hard
/// links, owners (as far as this process may set them), modes, times and extended attributes.
///
/// No existing file is overwritten: a name that is taken is a problem in the report, as is any other file that cannot
/// be made. The call fails if `from` does not exist, if a single file would go to a directory, or if `progress` stops
/// it.
pub fn export(fs: &FileSystem, options: &ExportOptions, progress: &mut Watch<'_>) -> Result<Report> {
    let ExportOptions { from, to, threads } = options;
    let attr = fs.resolve(from.as_os_str().as_bytes()).map_err(|source| Error::FileSystem {
        doing: "export",
        path: from.clone(),
        source,
    })?;
    if attr.kind != FileKind::Directory && to.is_dir() {
        return Err(Error::IsDirectory { path: to.clone() });
    }
    let tally = Tally::default();
    Export { fs, tally: &tally }.run(attr, to, *threads, progress);
    tally.finish("export", progress)
}

struct Export<'a> {
    fs: &'a FileSystem,
    tally: &'a Tally,
}

/// A regular file to copy; `file` is the new file at `path`, open.
struct Job {
    attr: Attr,
    path: PathBuf,
    file: File,
}

struct Walk<'a, 'b> {
    export: &'a Export<'b>,
    give: &'a mut dyn FnMut(Job),
    /// Files with several names: path of the first copy.
    linked: HashMap<InodeNumber, PathBuf>,
    directories: Vec<(PathBuf, Attr)>,
}

impl Export<'_> {
    /// Exports the content of a directory, or one file, to `path`; problems go to the tally.
    fn run(&self, from: Attr, path: &Path, threads: usize, progress: &mut Watch<'_>) {
        let mut directories = Vec::new();
        let walk = |give: &mut dyn FnMut(Job)| {
            let mut walk = Walk { export: self, give, linked: HashMap::new(), directories: Vec::new() };
            walk.visit(from, path.to_owned());
            directories = walk.directories;
        };
        crew::run(self.tally, threads, progress, walk, |job, buffer| self.copy(job, buffer));
        // Deepest first: a directory may lose its write permission only when it is complete.
        for (path, attr) in directories.into_iter().rev() {
            self.finish(&path, &attr);
        }
    }

    fn copy(&self, job: Job, buffer: &mut [u8]) {
        match self.copy_data(&job, buffer) {
            Ok(()) => {
                Tally::count(&self.tally.files);
                self.finish(&job.path, &job.attr);
            }
            Err(error) => self.tally.problem(&job.path, error),
        }
    }

    fn copy_data(&self, job: &Job, buffer: &mut [u8]) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let source = self.fs.open(job.attr.ino)?;
        let size = job.attr.size;
        let mut at = 0;
        while at < size && !self.tally.is_stopped() {
            let start = match source.seek(at, Whence::Data) {
                Ok(start) => start,
                Err(error) if error.errno() == errno::ENXIO => break,
                Err(error) => return Err(error.into()),
            };
            let end = source.seek(start, Whence::Hole)?.min(size);
            at = start;
            while at < end && !self.tally.is_stopped() {
                let wanted = buffer.len().min((end - at) as usize);
                let length = source.read_at(at, &mut buffer[..wanted])?;
                job.file.write_all_at(&buffer[..length], at)?;
                at += length as u64;
                self.tally.add_bytes(length);
                if length == 0 {
                    return Ok(());
                }
            }
        }
        Ok(job.file.set_len(size)?)
    }

    /// Sets owner, mode, times and extended attributes.
    fn finish(&self, path: &Path, attr: &Attr) {
        if let Err(error) = files::set_attributes(path, attr) {
            self.tally.problem(path, error);
        }
        let names = self.fs.list_xattr(attr.ino).unwrap_or_default();
        let is_root = rustix::process::geteuid().is_root();
        let allowed = |name: &&Vec<u8>| is_root || name.starts_with(b"user.") || name.starts_with(b"system.posix_acl");
        for name in names.iter().filter(allowed) {
            let set = self.fs.get_xattr(attr.ino, name).map_err(|error| error.to_string());
            let set = set.and_then(|value| files::set_xattr(path, name, &value).map_err(|error| error.to_string()));
            if let Err(error) = set {
                self.tally.problem(path, format!("extended attribute {}: {error}", String::from_utf8_lossy(name)));
            }
        }
        if !names.is_empty() && attr.kind != FileKind::Symlink {
            // Setting attributes may have changed the times.
            let _ = files::set_times(path, attr);
        }
    }
}

impl Walk<'_, '_> {
    fn visit(&mut self, attr: Attr, path: PathBuf) {
        let tally = self.export.tally;
        if tally.is_stopped() {
            return;
        }
        let has_links = attr.kind != FileKind::Directory && attr.nlink > 1;
        if let Some(first) = self.linked.get(&attr.ino).filter(|_| has_links) {
            match std::fs::hard_link(first, &path) {
                Ok(()) => Tally::count(&tally.hard_links),
                Err(error) => tally.problem(&path, error),
            }
            return;
        }
        let made = match attr.kind {
            FileKind::Directory => return self.directory(attr, path),
            FileKind::Regular => self.regular(attr, &path),
            FileKind::Symlink => self.symlink(&attr, &path),
            _ => files::make_node(&path, &attr).map(|()| Tally::count(&tally.specials)),
        };
        match made {
            Ok(()) if has_links => drop(self.linked.insert(attr.ino, path.clone())),
            Ok(()) => {}
            Err(error) => return tally.problem(&path, error),
        }
        if attr.kind != FileKind::Regular {
            self.export.finish(&path, &attr);
        }
    }

    fn regular(&mut self, attr: Attr, path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        (self.give)(Job { attr, path: path.to_owned(), file });
        Ok(())
    }

    fn symlink(&self, attr: &Attr, path: &Path) -> io::Result<()> {
        let target = self.export.fs.readlink(attr.ino).map_err(io::Error::other)?;
        std::os::unix::fs::symlink(OsStr::from_bytes(&target), path)?;
        Tally::count(&self.export.tally.symlinks);
        Ok(())
    }

    fn directory(&mut self, attr: Attr, path: PathBuf) {
        let Export { fs, tally } = self.export;
        if let Err(error) = std::fs::create_dir(&path)
            && !(error.kind() == io::ErrorKind::AlreadyExists && path.is_dir())
        {
            return tally.problem(&path, error);
        }
        Tally::count(&tally.directories);
        self.directories.push((path.clone(), attr));
        match entries(fs, attr.ino) {
            Ok(entries) => {
                for entry in entries {
                    let below = path.join(OsStr::from_bytes(&entry.name));
                    match fs.getattr(entry.ino) {
                        Ok(attr) => self.visit(attr, below),
                        Err(error) => tally.problem(&below, error),
                    }
                }
            }
            Err(error) => tally.problem(&path, error),
        }
    }
}
