//! Files whose cached writes could not be stored.
//!
//! The problem: with its writeback cache the kernel accepts writes, grows the file, and sends the data later. On a
//! full device that fails when no process waits for the result. The kernel reports the error to `fsync` and `close`,
//! but it continues to accept writes, and it keeps the size that the file would have.
//!
//! The idea: the kernel is made to ask before it accepts a write, and to forget that size:
//!
//! ```text
//! pages cannot be stored  -> the file is recorded; the kernel drops its attributes and its names
//! pages behind them come  -> ENOSPC too, though a smaller piece might fit: a file written in order gets no holes
//! the next write(2) to it -> before the kernel takes it, it asks for the attributes: ENOSPC, unless space came free;
//!                            EDQUOT if it was a limit, unless its tree has got room
//! a name is looked up     -> the reply names the file, and the kernel drops the name again once it has it
//! its last close          -> no name is cached, so the kernel forgets the inode and the size
//! the next lookup         -> the size that is stored
//! ```
//!
//! Nothing is truncated: stored data stays at any offset, and a file that other processes have open is not touched. A
//! process that uses a name that the kernel has dropped can go on using it.

use super::{Answer, Front};
use nvfold::InodeNumber;
use nvfold_fuse::Errno;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The data of a file that could not be stored.
#[derive(Clone, Copy)]
struct Lost {
    /// ENOSPC, or EDQUOT if the limit of its tree is the reason.
    errno: Errno,
    /// What was left at that time: blocks on the device, or bytes in the tree.
    room: u64,
    /// The lowest offset of such data.
    offset: u64,
}

/// The files whose cached writes could not be stored; see the module.
#[derive(Default)]
pub(crate) struct FailedWritebacks {
    /// By inode number.
    files: Mutex<HashMap<u64, Lost>>,
    /// The number of files, so that the usual case, none, needs no lock.
    count: AtomicUsize,
}

impl FailedWritebacks {
    /// Records a file; returns true if it was not recorded before. `lost` runs under the lock: of several requests that
    /// fail at the same time, each gives back what it had taken before, so the last one sees how much is left.
    fn note(&self, ino: InodeNumber, lost: impl FnOnce() -> Lost) -> bool {
        let mut files = self.files.lock();
        let before = files.insert(ino.0, lost());
        if let (Some(before), Some(now)) = (before, files.get_mut(&ino.0)) {
            now.offset = now.offset.min(before.offset);
        }
        self.count.store(files.len(), Ordering::Release);
        before.is_none()
    }

    /// Returns what could not be stored of a file; `None` if all is stored.
    fn of(&self, ino: InodeNumber) -> Option<Lost> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.files.lock().get(&ino.0).copied()
    }

    /// Returns true if the kernel may have a size of this file that is not stored.
    fn is_noted(&self, ino: InodeNumber) -> bool {
        self.of(ino).is_some()
    }

    /// Drops the record of a file that the kernel no longer knows.
    pub(crate) fn forgotten(&self, ino: InodeNumber) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut files = self.files.lock();
            files.remove(&ino.0);
            self.count.store(files.len(), Ordering::Release);
        }
    }
}

/// Returns the error for pages that the kernel hands on. Until `fsync` or `close` reports it, the kernel keeps two errors
/// apart, ENOSPC and all others, and `close` reports those as EIO.
pub(super) fn as_the_kernel_keeps_it(errno: Errno) -> Errno {
    if errno == Errno::EDQUOT { Errno::ENOSPC } else { errno }
}

impl Front {
    /// Records that there was no space for pages that the kernel wrote back: ENOSPC or EDQUOT.
    pub(crate) fn record_failed_writeback(&self, ino: InodeNumber, offset: u64, errno: Errno) {
        self.shortages.has_not_stored(ino, errno);
        let is_new = self.unstored.note(ino, || Lost { errno, room: self.room(ino, errno), offset });
        let names = if is_new { self.names_of(ino) } else { Vec::new() };
        self.notices.is_not_stored(ino, names);
    }

    /// Makes the kernel drop a name of a recorded file that a reply is about to give it. The kernel locks the
    /// directory until it has the name, so the notice takes effect after that.
    pub(crate) fn drop_cached_name(&self, ino: InodeNumber, dir: InodeNumber, name: &OsStr) {
        if self.unstored.is_noted(ino) {
            self.notices.is_not_stored(ino, vec![(dir, name.to_owned())]);
        }
    }

    /// Returns ENOSPC or EDQUOT for an offset behind data that could not be stored, unless more space is available than at
    /// that time.
    pub(crate) fn check_may_write(&self, ino: InodeNumber, offset: u64) -> Answer<()> {
        let Some(lost) = self.unstored.of(ino).filter(|lost| lost.offset <= offset) else { return Ok(()) };
        loop {
            let freed = self.lookups.freed();
            if self.room(ino, lost.errno) > lost.room {
                return Ok(());
            }
            if !self.lookups.wait_for_a_freed(freed) {
                return Err(lost.errno);
            }
        }
    }

    /// Returns how much may still be stored: blocks on the device, or for EDQUOT bytes in the tree of an inode.
    fn room(&self, ino: InodeNumber, errno: Errno) -> u64 {
        if errno != Errno::EDQUOT {
            return self.fs.statfs().blocks_available;
        }
        let tree = self.fs.limited_tree(ino).ok().flatten();
        tree.and_then(|tree| Some(tree.limits.logical_bytes?.saturating_sub(tree.logical_bytes))).unwrap_or(u64::MAX)
    }

    /// Returns the names of a file in the directory in which the kernel last learned of it.
    fn names_of(&self, ino: InodeNumber) -> Vec<(InodeNumber, OsString)> {
        let mut names = Vec::new();
        let Some(dir) = self.lookups.parent(ino) else { return names };
        let mut cookie = 0;
        // A directory that is gone has no names.
        while let Ok(entries) = self.names_after(dir, cookie) {
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            let of_file = entries.into_iter().filter(|entry| entry.ino == ino);
            names.extend(of_file.map(|entry| (dir, OsString::from_vec(entry.name))));
        }
        names
    }
}
