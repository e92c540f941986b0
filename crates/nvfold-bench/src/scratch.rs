//! Folders of a run, and the mounts in them, which are gone when the run is, however it ends.
//!
//! The problem: a benchmark that is ended by a signal runs no destructors. Its servers would go on serving, and its images
//! would keep their memory.
//!
//! The idea: everything that a run puts up lies in a [`Scratch`] folder. Dropping it takes it down, and so does
//! [`take_down`] after a signal. Servers end with the process that started them ([`end_with_parent`]). After a SIGKILL the
//! folder and what the kernel mounts are left: they are recognised by a lock that nobody holds, and the next run removes
//! them.

use crate::place;
use crate::{Doing, Result};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const PREFIX: &str = "nvfold-bench.";
/// How often removing a folder is tried again in which the run still makes files.
const TRIES: usize = 100;

/// What is up: folders, and for a server its mount point.
static UP: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A folder of this run.
pub struct Scratch {
    folder: TempDir,
    /// Held as long as the run: others leave the folder alone.
    _lock: File,
}

impl Scratch {
    /// Makes a folder in a directory, after it has removed those of runs that were killed.
    pub fn new_in(parent: &Path) -> Result<Scratch> {
        remove_left(parent);
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent).doing("make a folder")?;
        let lock = File::open(folder.path()).doing("open a folder")?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(std::io::Error::from).doing("lock a folder")?;
        UP.lock().push(folder.path().to_owned());
        Ok(Scratch { folder, _lock: lock })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        UP.lock().retain(|path| path != self.folder.path());
        unmount_below(self.folder.path());
    }
}

/// Makes this process, which serves a mount, take it down when the benchmark ends that started it.
pub fn end_with_parent(dir: &Path) -> Result<()> {
    UP.lock().push(dir.to_owned());
    let signal = Some(Signal::TERM);
    rustix::process::set_parent_process_death_signal(signal).map_err(std::io::Error::from).doing("watch the benchmark")
}

/// Takes down what this process has put up, while it may still be at work. It is about to end.
pub fn take_down() {
    let up = std::mem::take(&mut *UP.lock());
    for path in up.iter().rev() {
        unmount_below(path);
        let is_folder = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        if is_folder {
            // What was mounted meanwhile is unmounted, and what was made is removed.
            let is_gone = || unmount_below(path) == 0 && (fs::remove_dir_all(path).is_ok() || !path.exists());
            (0..TRIES).any(|_| is_gone());
        }
    }
}

/// Removes the folders of runs that were killed: nobody holds their locks.
fn remove_left(parent: &Path) {
    let folders = fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path());
    let ours = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    for path in folders.filter(ours) {
        let Ok(folder) = File::open(&path) else { continue };
        if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            unmount_below(&path);
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Unmounts, also what is in use, whatever is mounted on a directory and below it. Returns how much that was.
fn unmount_below(dir: &Path) -> usize {
    let mounted = place::mount_points_below(dir);
    for path in mounted.iter().rev() {
        let _ = Command::new("umount").arg("-l").arg(path).stdin(Stdio::null()).stderr(Stdio::null()).status();
    }
    mounted.len()
}
