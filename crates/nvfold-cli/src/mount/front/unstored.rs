//! Files of which the kernel has taken more than could be stored.
//!
//! With its writeback cache the kernel takes what programs write, lets their file grow, and hands it down later. On a
//! full device that fails when nobody is there to be told: the kernel tells `fsync` and `close`, goes on to take what is
//! written, and keeps the size that the file would have. So it is made to ask first, and to forget that size:
//!
//! ```text
//! pages cannot be stored  -> the file is noted; the kernel drops what it knows of its attributes, and its names
//! pages behind them come  -> ENOSPC too, though a smaller piece might fit: a file that is written in order has no holes
//! the next write(2) to it -> before the kernel takes it, it asks for the attributes: ENOSPC, unless space came free
//! a name is looked up     -> it is told, and dropped again once the kernel has it
//! its last close          -> without a name that is kept, the kernel forgets the inode, and with it the size
//! the next lookup         -> the size that is stored
//! ```
//!
//! Nothing is truncated: what was stored stays, wherever it lies, and a file that others still have open is not touched.
//! A name that the kernel has dropped works on for whoever uses it.

use super::{Answer, Front};
use crate::mount::notices::Notice;
use nvfold::InodeNumber;
use nvfold_fuse::Errno;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What could not be stored of a file.
#[derive(Clone, Copy)]
struct Lost {
    /// Blocks that were available then.
    blocks_available: u64,
    /// Where the first of it would lie.
    offset: u64,
}

/// See the module.
#[derive(Default)]
pub struct Unstored {
    /// By inode number.
    files: Mutex<HashMap<u64, Lost>>,
    /// How many there are, for who asks and finds none.
    count: AtomicUsize,
}

impl Unstored {
    /// Notes a file; true if it was not.
    fn note(&self, ino: InodeNumber, lost: Lost) -> bool {
        let mut files = self.files.lock();
        let before = files.insert(ino.0, lost);
        if let (Some(before), Some(now)) = (before, files.get_mut(&ino.0)) {
            now.offset = now.offset.min(before.offset);
        }
        self.count.store(files.len(), Ordering::Release);
        before.is_none()
    }

    /// What could not be stored of a file; `None` for one that is not noted.
    fn of(&self, ino: InodeNumber) -> Option<Lost> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.files.lock().get(&ino.0).copied()
    }

    /// Whether the kernel has a size of this file that is not stored.
    fn is_noted(&self, ino: InodeNumber) -> bool {
        self.of(ino).is_some()
    }

    /// The kernel knows nothing of this file any more.
    pub fn forgotten(&self, ino: InodeNumber) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut files = self.files.lock();
            files.remove(&ino.0);
            self.count.store(files.len(), Ordering::Release);
        }
    }
}

impl Front {
    /// Pages that the kernel wrote back found no space.
    pub fn could_not_store(&self, ino: InodeNumber, offset: u64) {
        let is_new = self.unstored.note(ino, Lost { blocks_available: self.fs.statfs().blocks_available, offset });
        let names = if is_new { self.names_of(ino) } else { Vec::new() };
        // Fails when the mount is ending: nobody will write then.
        let _ = self.notices.send(Notice::NotStored(ino, names));
    }

    /// The kernel is being told of a name. It holds its lock of the directory until it has the name, so the notice comes
    /// after that.
    pub fn keep_no_name_of_unstored(&self, ino: InodeNumber, dir: InodeNumber, name: &OsStr) {
        if self.unstored.is_noted(ino) {
            let _ = self.notices.send(Notice::NotStored(ino, vec![(dir, name.to_owned())]));
        }
    }

    /// ENOSPC for what lies behind bytes that could not be stored, while there is no more space than there was then.
    pub fn check_may_write(&self, ino: InodeNumber, offset: u64) -> Answer<()> {
        let Some(lost) = self.unstored.of(ino).filter(|lost| lost.offset <= offset) else { return Ok(()) };
        loop {
            let freed = self.lookups.freed();
            if self.fs.statfs().blocks_available > lost.blocks_available {
                return Ok(());
            }
            if !self.lookups.wait_for_a_freed(freed) {
                return Err(Errno::ENOSPC);
            }
        }
    }

    /// The names of a file in the directory by which the kernel was told of it last.
    fn names_of(&self, ino: InodeNumber) -> Vec<(InodeNumber, OsString)> {
        let mut names = Vec::new();
        let Some(dir) = self.lookups.parent(ino) else { return names };
        let mut cookie = 0;
        // A directory that is gone has no name of it.
        while let Ok(entries) = self.names_after(dir, cookie) {
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            let of_file = entries.into_iter().filter(|entry| entry.ino == ino);
            names.extend(of_file.map(|entry| (dir, OsString::from_vec(entry.name))));
        }
        names
    }
}
