//! A tree of a file system that this process has mounted, out to the host.

use super::host;
use super::{Tally, run_parallel};
use crate::progress::Progress;
use nvfold::{Attr, DirEntry, FileKind, FileSystem, InodeNumber, Whence};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// What to export, and how.
pub struct Export<'a> {
    pub fs: &'a FileSystem,
    pub tally: &'a Tally,
    pub threads: usize,
}

/// A regular file to copy to a path; `file` is its content there, open.
struct Job {
    attr: Attr,
    path: PathBuf,
    file: File,
}

struct Walk<'a, 'b> {
    export: &'a Export<'b>,
    give: &'a mut dyn FnMut(Job),
    /// Files with several names: the path of the first one.
    linked: HashMap<InodeNumber, PathBuf>,
    directories: Vec<(PathBuf, Attr)>,
}

impl Export<'_> {
    /// Exports the content of a directory, or one file, to `path`; problems are in the tally.
    pub fn run(&self, from: Attr, path: &Path, progress: &mut Progress) {
        let mut directories = Vec::new();
        let files = || format!("{} files", self.tally.files.load(Ordering::Relaxed));
        let walk = |give: &mut dyn FnMut(Job)| {
            let mut walk = Walk { export: self, give, linked: HashMap::new(), directories: Vec::new() };
            walk.visit(from, path.to_owned());
            directories = walk.directories;
        };
        run_parallel(self.tally, self.threads, progress, files, walk, |job, buffer| self.copy(job, buffer));
        // Deepest first: a directory that may not be written to must be complete.
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

    fn copy_data(&self, job: &Job, buffer: &mut [u8]) -> Result<(), Box<dyn std::error::Error>> {
        let source = self.fs.open(job.attr.ino)?;
        let size = job.attr.size;
        let mut at = 0;
        while at < size && !self.tally.is_stopped() {
            let start = match source.seek(at, Whence::Data) {
                Ok(start) => start,
                Err(error) if error.errno() == nvfold::errno::ENXIO => break,
                Err(error) => return Err(error.into()),
            };
            let end = source.seek(start, Whence::Hole)?.min(size);
            at = start;
            while at < end && !self.tally.is_stopped() {
                let wanted = buffer.len().min((end - at) as usize);
                let length = source.read_at(at, &mut buffer[..wanted])?;
                job.file.write_all_at(&buffer[..length], at)?;
                at += length as u64;
                self.tally.bytes.fetch_add(length as u64, Ordering::Relaxed);
                if length == 0 {
                    return Ok(());
                }
            }
        }
        Ok(job.file.set_len(size)?)
    }

    /// Extended attributes, owner, mode, times.
    fn finish(&self, path: &Path, attr: &Attr) {
        if let Err(error) = host::set_attributes(path, attr) {
            self.tally.problem(path, error);
        }
        let names = self.fs.list_xattr(attr.ino).unwrap_or_default();
        let is_root = rustix::process::geteuid().is_root();
        let allowed = |name: &&Vec<u8>| is_root || name.starts_with(b"user.") || name.starts_with(b"system.posix_acl");
        for name in names.iter().filter(allowed) {
            let set = self.fs.get_xattr(attr.ino, name).map_err(|error| error.to_string());
            let set = set.and_then(|value| host::set_xattr(path, name, &value).map_err(|error| error.to_string()));
            if let Err(error) = set {
                self.tally.problem(path, format!("extended attribute {}: {error}", String::from_utf8_lossy(name)));
            }
        }
        if !names.is_empty() && attr.kind != FileKind::Symlink {
            // An ACL may have changed nothing but the time of change; content times stay as they were.
            let _ = host::set_times(path, attr);
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
            _ => host::make_node(&path, &attr).map(|()| Tally::count(&tally.specials)),
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
        let Export { fs, tally, .. } = self.export;
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

/// All entries of a directory, by name.
pub fn entries(fs: &FileSystem, dir: InodeNumber) -> nvfold::Result<Vec<DirEntry>> {
    let mut entries = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        entries.push(entry);
        true
    })?;
    entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}
