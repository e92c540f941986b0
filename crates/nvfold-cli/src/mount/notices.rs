//! What the kernel must be told because it cannot know: how many blocks a file takes after pages were written back,
//! that pages must be written back before holes are looked for, that pages are old after a direct write, and that what
//! it took for a file could not be stored.
//!
//! The kernel caches attributes, and keeps size and times of a file it writes itself; the number of blocks only we
//! know. And it passes SEEK_DATA and SEEK_HOLE on while it holds pages that we have never seen.
//!
//! All of it is said from a thread of its own: the kernel may answer a notice only after it has got an answer to some
//! other request. Threads that answer requests may wait for a notice, because there is always another one that answers.

use fuser::{INodeNo, Notifier};
use nvfold::InodeNumber;
use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// A file that grows is told of this often at most: each notice costs the writer one more request.
const GROWTH_TOLD_EVERY: Duration = Duration::from_millis(50);

/// Something to tell the kernel.
pub enum Notice {
    /// A file has got its first blocks. Told at once: no blocks and a size would mean a file of holes.
    FirstBlocks(InodeNumber),
    /// The number of its blocks has changed.
    OtherBlocks(InodeNumber),
    /// Have all its pages written back, then say so.
    WriteBack(InodeNumber, Sender<()>),
    /// Drop its pages of a range (offset, length), then say so to whoever waits for it.
    DropPages(InodeNumber, (u64, u64), Option<Sender<()>>),
    /// What was written to it is not stored: ask before more is taken, and keep none of these names (directory, name) of
    /// it, so that it is forgotten when its last user closes it.
    NotStored(InodeNumber, Vec<(InodeNumber, OsString)>),
}

/// Tells the kernel until nobody is left who could send a notice.
pub fn start(notifier: Notifier, notices: Receiver<Notice>) {
    thread::spawn(move || {
        let mut grown = HashSet::new();
        let mut told = Instant::now();
        loop {
            let notice = if grown.is_empty() {
                notices.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                notices.recv_timeout(GROWTH_TOLD_EVERY.saturating_sub(told.elapsed()))
            };
            // A notice about an inode that the kernel has forgotten meanwhile fails, and is not needed.
            match notice {
                Ok(Notice::FirstBlocks(ino)) => drop(notifier.inval_inode(known(ino), -1, 0)),
                Ok(Notice::OtherBlocks(ino)) => {
                    if grown.is_empty() {
                        told = Instant::now();
                    }
                    grown.insert(ino.0);
                }
                Ok(Notice::WriteBack(ino, done)) => {
                    let _ = notifier.inval_inode(known(ino), 0, 0);
                    let _ = done.send(());
                }
                Ok(Notice::DropPages(ino, (offset, length), done)) => {
                    let _ = notifier.inval_inode(known(ino), offset as i64, length as i64);
                    done.map(|done| done.send(()));
                }
                Ok(Notice::NotStored(ino, names)) => {
                    let _ = notifier.inval_inode(known(ino), -1, 0);
                    names.iter().for_each(|(dir, name)| drop(notifier.inval_entry(known(*dir), name)));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !grown.is_empty() && told.elapsed() >= GROWTH_TOLD_EVERY {
                grown.drain().for_each(|ino| drop(notifier.inval_inode(INodeNo(ino), -1, 0)));
            }
        }
    });
}

/// An inode in the words of the kernel.
fn known(ino: InodeNumber) -> INodeNo {
    INodeNo(ino.0)
}
