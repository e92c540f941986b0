//! Walks all files below a path of the host, without copying them.

use super::Problem;
use super::dir::{Dir, Levels, MOVED};
use super::files::kind_of_mode;
use crate::FileKind;
use rustix::fs::Stat;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::vec::IntoIter;

/// A file or directory that a walk has found.
pub(super) struct HostEntry<'f> {
    /// Its path.
    pub path: &'f Path,
    /// What was seen of it.
    pub stat: Stat,
    dir: &'f Dir,
    name: &'f OsStr,
}

impl HostEntry<'_> {
    /// Returns its kind; `None` if nvfold does not know it.
    pub(super) fn kind(&self) -> Option<FileKind> {
        kind_of_mode(self.stat.st_mode)
    }

    /// Opens a regular file for reading, if it is still there.
    pub(super) fn open(&self) -> io::Result<(File, Stat)> {
        self.dir.open(self.name, &self.stat)
    }
}

/// Called with each file found, or with the reason why one could not be read.
pub(super) type Visit<'a> = dyn FnMut(Result<HostEntry<'_>, Problem>) -> ControlFlow<()> + 'a;

/// Calls `each` for `root` and everything below it, until it returns `Break`. It is called with a problem for a file
/// or directory that cannot be read. Symbolic links are not followed.
pub(super) fn walk(root: &Path, one_file_system: bool, each: &mut Visit<'_>) -> ControlFlow<()> {
    let (dir, name) = match Dir::holding(root) {
        Ok(found) => found,
        Err(error) => return each(Err(problem(root.to_owned(), &error))),
    };
    let device = dir.look(&name).ok().map(|stat| stat.st_dev).filter(|_| one_file_system);
    let mut walk = HostWalk { path: root.to_owned(), device, levels: Levels::new() };
    walk.visit(&dir, &name, each)?;
    while let Some((dir, names)) = walk.levels.last() {
        let (Some(name), dir) = (names.next(), dir.cloned()) else {
            walk.leave();
            continue;
        };
        let Some(dir) = dir else {
            each(Err(Problem { path: walk.path.clone(), problem: MOVED.into() }))?;
            walk.leave();
            continue;
        };
        walk.path.push(&name);
        if !walk.visit(&dir, &name, each)? {
            walk.path.pop();
        }
    }
    ControlFlow::Continue(())
}

struct HostWalk {
    path: PathBuf,
    /// The only device to walk on, if there is one.
    device: Option<u64>,
    levels: Levels<IntoIter<OsString>>,
}

impl HostWalk {
    /// Reports what has a name. Returns true if it is a directory that was entered.
    fn visit(&mut self, dir: &Dir, name: &OsStr, each: &mut Visit<'_>) -> ControlFlow<(), bool> {
        let stat = match dir.look(name) {
            Ok(stat) => stat,
            Err(error) => {
                each(Err(problem(self.path.clone(), &error)))?;
                return ControlFlow::Continue(false);
            }
        };
        let found = HostEntry { path: &self.path, stat, dir, name };
        let is_entered =
            found.kind() == Some(FileKind::Directory) && self.device.is_none_or(|device| device == stat.st_dev);
        each(Ok(found))?;
        if !is_entered {
            return ControlFlow::Continue(false);
        }
        let entered = dir.enter(name, &stat).and_then(|(dir, stat)| Ok((dir.names()?, dir, stat)));
        match entered {
            Ok((names, dir, stat)) => self.levels.push(Arc::new(dir), &stat, names.into_iter()),
            Err(error) => {
                each(Err(problem(self.path.clone(), &error)))?;
                return ControlFlow::Continue(false);
            }
        }
        ControlFlow::Continue(true)
    }

    fn leave(&mut self) {
        self.levels.pop();
        self.path.pop();
    }
}

/// Makes a problem of the host's error about a path.
pub(super) fn problem(path: PathBuf, error: &io::Error) -> Problem {
    Problem { path, problem: error.to_string() }
}
