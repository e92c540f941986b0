//! Notices: messages that the server sends to the kernel on its own initiative.
//!
//! The problem: what the kernel caches and what the server knows can differ:
//!
//! - The number of blocks of a file after writeback: the kernel maintains size and times of a file that it writes,
//!   but not the blocks.
//! - Dirty pages before SEEK_DATA and SEEK_HOLE: the kernel passes these on while it holds pages that the server has
//!   never seen.
//! - Pages that are old after a direct write.
//! - Data that the kernel accepted for a file and that could not be stored.
//!
//! The idea: a separate thread sends notices, because the kernel may answer a notice only after it has got an answer
//! to some other request. A thread that answers requests may wait for a notice, because another one always answers
//! requests.

use fuser::{INodeNo, Notifier};
use nvfold::InodeNumber;
use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// The shortest interval between notices about the growth of files. Each notice costs the writer one more request.
const GROWTH_TOLD_EVERY: Duration = Duration::from_millis(50);

/// A message to the kernel.
pub enum Notice {
    /// A file has got its first blocks. Sent at once, because a size without blocks would mean a file of holes.
    FirstBlocks(InodeNumber),
    /// The number of blocks of a file has changed.
    OtherBlocks(InodeNumber),
    /// Write back all pages of the file, then signal the sender.
    WriteBack(InodeNumber, Sender<()>),
    /// Drop the pages of a range (offset, length), then signal the sender, if there is one.
    DropPages(InodeNumber, (u64, u64), Option<Sender<()>>),
    /// Data written to the file could not be stored. The kernel must ask before it accepts more, and must drop these
    /// names (directory, name), so that it forgets the file at its last close.
    NotStored(InodeNumber, Vec<(InodeNumber, OsString)>),
}

/// Starts the thread that sends notices, until all senders are dropped.
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
            // A notice fails if the kernel has forgotten the inode meanwhile; it is not needed then.
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

/// Converts an inode number to fuser's type.
fn known(ino: InodeNumber) -> INodeNo {
    INodeNo(ino.0)
}
