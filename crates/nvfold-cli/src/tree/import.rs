//! A tree of the host into a file system that this process has mounted.

use super::host;
use super::{Tally, run_parallel};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::size;
use nvfold::{Error, FileKind, FileSystem, InodeNumber, NewInode, SetAttr, XattrMode};
use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// What to import, and how.
pub struct Import<'a> {
    pub fs: &'a FileSystem,
    pub tally: &'a Tally,
    pub threads: usize,
    pub one_file_system: bool,
    /// Device and inode of the file that we import into: it cannot hold itself.
    pub device_file: Option<(u64, u64)>,
}

/// One thing to import to one place.
pub struct Source {
    pub path: PathBuf,
    pub parent: InodeNumber,
    pub name: Vec<u8>,
}

/// A regular file to copy. `ino` is set when it was created already.
struct Job {
    source: Source,
    metadata: Metadata,
    ino: Option<InodeNumber>,
}

struct Walk<'a, 'b> {
    import: &'a Import<'b>,
    give: &'a mut dyn FnMut(Job),
    /// Files with several names: where the first one went.
    linked: HashMap<(u64, u64), InodeNumber>,
    /// Directories get their times when everything is in them.
    directories: Vec<(InodeNumber, SetAttr)>,
}

impl Import<'_> {
    /// Imports everything in `sources`; problems are in the tally.
    pub fn run(&self, sources: Vec<Source>, progress: &mut Progress) {
        let mut directories = Vec::new();
        let saved = || {
            let stats = self.fs.stats();
            let files = self.tally.files.load(Ordering::Relaxed);
            format!("{files} files, {} saved", size::show(stats.saved_bytes))
        };
        let walk = |give: &mut dyn FnMut(Job)| {
            let mut walk = Walk { import: self, give, linked: HashMap::new(), directories: Vec::new() };
            sources.into_iter().for_each(|source| walk.visit(source, None));
            directories = walk.directories;
        };
        run_parallel(self.tally, self.threads, progress, saved, walk, |job, buffer| self.copy(job, buffer));
        for (ino, times) in directories {
            if let Err(error) = self.fs.setattr(ino, &times) {
                self.tally.problem(Path::new(&format!("inode {}", ino.0)), error);
            }
        }
    }

    /// Notes a problem; a full device ends the import.
    fn note(&self, path: &Path, error: Error) {
        if matches!(error, Error::NoSpace { .. }) {
            self.tally.stop(Failure::new(path.display(), error));
        } else {
            self.tally.problem(path, error);
        }
    }

    fn create(&self, source: &Source, metadata: &Metadata, kind: FileKind) -> nvfold::Result<InodeNumber> {
        let rdev = if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
            host::encode_rdev(metadata.rdev())
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
            Err(error) => self.note(path, error),
        }
    }

    /// Extended attributes (one of them says how the content is stored), then content, then times.
    fn fill(&self, path: &Path, metadata: &Metadata, file: &nvfold::File, buffer: &mut [u8]) {
        let source = match host::open(path) {
            Ok(source) => source,
            Err(error) => return self.tally.problem(path, error),
        };
        self.copy_xattrs(path, file.ino());
        let mut failed = None;
        let copied = host::data_ranges(&source, metadata, |start, end| {
            let mut at = start;
            while at < end && failed.is_none() && !self.tally.is_stopped() {
                let wanted = buffer.len().min((end - at) as usize);
                let length = source.read_at(&mut buffer[..wanted], at)?;
                if length == 0 {
                    // It became shorter while we read it.
                    break;
                }
                failed = file.write_at(at, &buffer[..length]).err();
                at += length as u64;
                self.tally.bytes.fetch_add(length as u64, Ordering::Relaxed);
            }
            Ok(())
        });
        match (failed, copied) {
            (Some(error), _) => return self.note(path, error),
            (None, Err(error)) => return self.tally.problem(path, error),
            (None, Ok(())) => {}
        }
        // A hole at the end.
        if file.attr().size < metadata.len()
            && let Err(error) = file.set_len(metadata.len())
        {
            return self.note(path, error);
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
            self.note(path, error);
        }
    }

    fn copy_xattrs(&self, path: &Path, ino: InodeNumber) {
        for (name, value) in host::xattrs(path) {
            if let Err(error) = self.fs.set_xattr(ino, &name, &value, XattrMode::Set) {
                self.note(path, error);
            }
        }
    }
}

fn attributes(metadata: &Metadata) -> SetAttr {
    let (atime, mtime) = host::times(metadata);
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
    /// Imports one name and what is below it. `device` is the host's device of the tree when it must not be left.
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
        match host::kind(&metadata) {
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
            Err(error) => return import.note(&source.path, error),
        };
        Tally::count(&import.tally.directories);
        import.copy_xattrs(&source.path, ino);
        self.directories.push((ino, attributes(metadata)));
        match host::names(&source.path) {
            Ok(names) => {
                for name in names {
                    let below = Source { path: source.path.join(&name), parent: ino, name: name.as_bytes().to_vec() };
                    self.visit(below, device);
                }
            }
            Err(error) => import.tally.problem(&source.path, error),
        }
    }

    /// A directory that is there already takes the new content in. An empty name is the root.
    fn make_directory(&self, source: &Source, metadata: &Metadata) -> nvfold::Result<InodeNumber> {
        let fs = self.import.fs;
        if source.name.is_empty() {
            return Ok(source.parent);
        }
        let mode = metadata.mode() & 0o7777;
        let new = NewInode { kind: FileKind::Directory, mode, uid: metadata.uid(), gid: metadata.gid(), rdev: 0 };
        match fs.mkdir(source.parent, &source.name, &new) {
            Err(Error::Exists { what }) => {
                let there = fs.lookup(source.parent, &source.name)?;
                if there.kind == FileKind::Directory { Ok(there.ino) } else { Err(Error::Exists { what }) }
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
                Err(error) => import.note(&source.path, error),
            };
        }
        if kind == FileKind::Regular && !has_links {
            return (self.give)(Job { source, metadata, ino: None });
        }
        // Its number must be known before another name of it is met.
        let made = match kind {
            FileKind::Symlink => self.symlink(&source, &metadata),
            _ => import.create(&source, &metadata, kind).map_err(Some),
        };
        let ino = match made {
            Ok(ino) => ino,
            Err(Some(error)) => return import.note(&source.path, error),
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

    /// `Err(None)`: the problem is noted.
    fn symlink(&self, source: &Source, metadata: &Metadata) -> Result<InodeNumber, Option<Error>> {
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
