//! Directories of the host, by descriptor.
//!
//! The problem: a path is followed anew each time it is used. In a tree that another user may change, a directory of it
//! can meanwhile be a symbolic link to somewhere else, and a file a fifo, or another user's file. A tree may also be
//! deeper than a path can be long, and than a process may have descriptors.
//!
//! The idea: everything is reached from the descriptor of its directory, by one name, and no symbolic link is followed.
//! What was opened must be what was looked at before: device, inode number and type are compared. [`Levels`] are the
//! directories from the top of a walk to where it stands. Only the top and the last few keep their descriptors; on the
//! way back the others are opened again by `..`, and compared too.

use super::files::identity;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

/// Number of levels, beside the top, that keep their descriptors.
const HELD_LEVELS: usize = 32;
/// Bytes of directory entries that are read at a time.
const LISTING_BYTES: usize = 32 << 10;

/// Flags for everything that is opened below a directory.
const FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

/// A directory of the host, open.
pub(super) struct Dir(OwnedFd);

impl Dir {
    /// Opens the directory that holds a path given by the caller. Returns it with the name that the path has there: `.`
    /// for a path without one, and for a path that ends with `/`, which stands for the directory itself. Symbolic links
    /// in front of the name are followed.
    pub(super) fn holding(path: &Path) -> io::Result<(Dir, OsString)> {
        let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let (parent, name) = match name {
            Some(name) => (path.parent().unwrap_or(path), name),
            None => (path, OsStr::new(".")),
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        Ok((Dir(rustix::fs::openat(CWD, parent, DIRECTORY | OFlags::PATH, Mode::empty())?), name.to_owned()))
    }

    /// Looks at what has a name.
    pub(super) fn look(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Opens a regular file that was looked at, for reading, without changing its access time if that is permitted.
    /// Whatever has its name by now, this neither waits nor follows it.
    pub(super) fn open(&self, name: &OsStr, seen: &Stat) -> io::Result<(File, Stat)> {
        let flags = FLAGS | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = |flags| rustix::fs::openat(&self.0, name, flags, Mode::empty());
        let opened = open(flags | OFlags::NOATIME).or_else(|error| match error {
            Errno::PERM => open(flags),
            _ => Err(error),
        });
        let (fd, stat) = same(opened, seen)?;
        Ok((fd.into(), stat))
    }

    /// Opens a directory that was looked at.
    pub(super) fn enter(&self, name: &OsStr, seen: &Stat) -> io::Result<(Dir, Stat)> {
        let opened = rustix::fs::openat(&self.0, name, FLAGS | DIRECTORY | OFlags::RDONLY, Mode::empty());
        let (fd, stat) = same(opened, seen)?;
        Ok((Dir(fd), stat))
    }

    /// Opens a directory, without looking at it before.
    pub(super) fn enter_any(&self, name: &OsStr, flags: OFlags) -> io::Result<Dir> {
        Ok(Dir(rustix::fs::openat(&self.0, name, DIRECTORY | flags, Mode::empty())?))
    }

    /// Opens a file of any kind that was looked at, only as a handle to it: nothing can be read by it.
    pub(super) fn handle(&self, name: &OsStr, seen: &Stat) -> io::Result<(OwnedFd, Stat)> {
        same(self.any_handle(name), seen)
    }

    /// Opens a handle, without looking before.
    pub(super) fn any_handle(&self, name: &OsStr) -> rustix::io::Result<OwnedFd> {
        rustix::fs::openat(&self.0, name, FLAGS | OFlags::PATH, Mode::empty())
    }

    /// Opens the directory above this one, if it is the one with this device and inode number.
    fn above(&self, expected: (u64, u64)) -> Option<Dir> {
        let above = self.enter_any(OsStr::new(".."), OFlags::RDONLY).ok()?;
        let is_expected = rustix::fs::fstat(&above.0).is_ok_and(|stat| identity(&stat) == expected);
        is_expected.then_some(above)
    }

    /// Returns the names in it, sorted, without `.` and `..`.
    pub(super) fn names(&self) -> io::Result<Vec<OsString>> {
        let mut buffer = Vec::with_capacity(LISTING_BYTES);
        let mut listing = RawDir::new(&self.0, buffer.spare_capacity_mut());
        let mut names = Vec::new();
        while let Some(entry) = listing.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns what was opened with its attributes, if it is what was seen.
fn same(opened: rustix::io::Result<OwnedFd>, seen: &Stat) -> io::Result<(OwnedFd, Stat)> {
    let replaced = || io::Error::other("was replaced after it was listed");
    let fd = opened.map_err(|error| match error {
        // A symbolic link, no directory any more, a socket.
        Errno::LOOP | Errno::NOTDIR | Errno::NXIO => replaced(),
        error => error.into(),
    })?;
    let stat = rustix::fs::fstat(&fd)?;
    let kind = |stat: &Stat| FileType::from_raw_mode(stat.st_mode);
    let is_same = identity(&stat) == identity(seen) && kind(&stat) == kind(seen);
    if is_same { Ok((fd, stat)) } else { Err(replaced()) }
}

/// The directories from the top of a walk down to where it stands, with what the walk keeps of each.
pub(super) struct Levels<T>(Vec<OpenLevel<T>>);

struct OpenLevel<T> {
    dir: Option<Arc<Dir>>,
    identity: (u64, u64),
    kept: T,
}

impl<T> Levels<T> {
    /// Returns an empty list.
    pub(super) fn new() -> Levels<T> {
        Levels(Vec::new())
    }

    /// Adds a directory below the last one. It has the attributes `stat`.
    pub(super) fn push(&mut self, dir: Arc<Dir>, stat: &Stat, kept: T) {
        self.0.push(OpenLevel { dir: Some(dir), identity: identity(stat), kept });
        let last = self.0.len() - 1;
        if last > HELD_LEVELS {
            self.0[last - HELD_LEVELS].dir = None;
        }
    }

    /// Returns the last directory, and what is kept of it. The descriptor is `None` if the directory was moved while the
    /// walk was below it, and could not be opened again.
    pub(super) fn last(&mut self) -> Option<(Option<&Arc<Dir>>, &mut T)> {
        self.0.last_mut().map(|level| (level.dir.as_ref(), &mut level.kept))
    }

    /// Removes the last directory, and returns it with what was kept of it.
    pub(super) fn pop(&mut self) -> Option<(Option<Arc<Dir>>, T)> {
        let left = self.0.pop()?;
        if let Some(above) = self.0.last_mut().filter(|above| above.dir.is_none()) {
            let dir = left.dir.as_ref().and_then(|dir| dir.above(above.identity));
            above.dir = dir.map(Arc::new);
        }
        Some((left.dir, left.kept))
    }
}

/// The problem of a directory that could not be opened again.
pub(super) const MOVED: &str = "was moved while it was read";

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A directory with a file and a directory `x` and `d`, and its descriptor.
    fn tree() -> (tempfile::TempDir, Dir) {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("x"), b"mine").unwrap();
        fs::create_dir(scratch.path().join("d")).unwrap();
        let (parent, name) = Dir::holding(scratch.path()).unwrap();
        let dir = parent.enter_any(&name, OFlags::RDONLY).unwrap();
        (scratch, dir)
    }

    fn is_replaced<T>(result: io::Result<T>) -> bool {
        result.is_err_and(|error| error.to_string() == "was replaced after it was listed")
    }

    #[test]
    fn a_file_replaced_between_stat_and_open_is_refused() {
        let (x, d) = (OsStr::new("x"), OsStr::new("d"));
        let swaps: [(&str, fn(&Path)); 5] = [
            ("a link to a file", |path| symlink("/etc/hostname", path).unwrap()),
            ("a link to a directory", |path| symlink("/", path).unwrap()),
            ("a fifo", |path| {
                rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0).unwrap();
            }),
            ("another file", |path| fs::write(path, b"other").unwrap()),
            ("another directory", |path| fs::create_dir(path).unwrap()),
        ];
        for (what, swap) in swaps {
            let (scratch, dir) = tree();
            let (file, below) = (dir.look(x).unwrap(), dir.look(d).unwrap());
            assert!(dir.open(x, &file).is_ok() && dir.handle(x, &file).is_ok() && dir.enter(d, &below).is_ok());
            for name in ["x", "d"] {
                // What was there is kept, so that its inode number has no other user.
                fs::rename(scratch.path().join(name), scratch.path().join(format!("old {name}"))).unwrap();
                swap(&scratch.path().join(name));
            }
            assert!(is_replaced(dir.open(x, &file)), "{what} in place of a file");
            assert!(is_replaced(dir.handle(x, &file)), "{what} in place of a file");
            assert!(is_replaced(dir.enter(d, &below)), "{what} in place of a directory");
        }
    }

    #[test]
    fn a_walk_reopens_deep_directories_unless_they_were_moved() {
        const DEPTH: usize = HELD_LEVELS * 3;
        let (scratch, top) = tree();
        let enter = |dir: &Dir| {
            rustix::fs::mkdirat(dir, "e", Mode::RWXU).unwrap();
            let seen = dir.look(OsStr::new("e")).unwrap();
            let (below, stat) = dir.enter(OsStr::new("e"), &seen).unwrap();
            (Arc::new(below), stat)
        };
        let mut levels = Levels::new();
        let stat = rustix::fs::fstat(&top).unwrap();
        let mut dir = Arc::new(top);
        levels.push(dir.clone(), &stat, 0);
        for depth in 1..DEPTH {
            let (below, stat) = enter(&dir);
            levels.push(below.clone(), &stat, depth);
            dir = below;
        }
        drop(dir);
        let held = levels.0.iter().filter(|level| level.dir.is_some()).count();
        assert_eq!(held, HELD_LEVELS + 1, "the top and the last ones");
        for depth in (HELD_LEVELS + 1..DEPTH).rev() {
            let (left, kept) = levels.pop().unwrap();
            assert!(left.is_some() && kept == depth);
        }
        // Now the last level is one that was opened again. It is moved.
        let at = (1..HELD_LEVELS).map(|_| "e").collect::<std::path::PathBuf>();
        fs::rename(scratch.path().join(at).join("e"), scratch.path().join("moved")).unwrap();
        assert!(levels.pop().unwrap().0.is_some(), "it is open, wherever it is");
        assert!(levels.last().unwrap().0.is_none(), "the way up leads elsewhere");
        while let Some((left, depth)) = levels.pop() {
            assert_eq!(left.is_some(), depth == 0, "only the top is left: {depth}");
        }
    }
}
