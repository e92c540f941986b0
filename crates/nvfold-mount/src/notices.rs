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
//! A notice may take long. The kernel writes pages back before it drops them, and it locks a directory before it drops
//! a name. A user can hold that lock as long as he likes: he lists the directory into memory whose pages do not come.
//!
//! The idea: nobody waits for a notice about something else. Notices that nobody waits for go through queues, each with
//! a thread of its own:
//!
//! ```text
//! first_blocks  -> a file has got its first blocks                  never blocks
//! more_blocks   -> the blocks of a file have changed, every 50 ms   never blocks
//! pages         -> drop old pages                                   waits for writeback: requests that are answered
//! listings      -> drop the pages of directories                    waits for whoever is reading one
//! names         -> drop names of files with unstored data, and of   waits for the locks of directories
//!                  removed and expired trees
//! ```
//!
//! A queue holds equal notices once, and at most [`QUEUED_MAX`]. A request that must know that the kernel has acted
//! sends the notice itself ([`Notices::write_back`], [`Notices::drop_pages_now`], [`Notices::has_other_attributes`]). It
//! waits for its own file only. It says so to the threads that answer requests, because another one has to answer what
//! the kernel asks meanwhile.
//!
//! FUSE_EXPIRE_ONLY does not help: the kernel takes the directory's lock with it too, and the name stays.

use nvfold::InodeNumber;
use nvfold_fuse::Notifier;
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::hash::Hash;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The shortest interval between notices about the growth of files. Each notice costs the writer one more request.
const GROWTH_TOLD_EVERY: Duration = Duration::from_millis(50);
/// The largest number of notices in a queue. More are dropped: the kernel then shows an old number of blocks, or keeps
/// pages or a name, until it forgets the inode.
const QUEUED_MAX: usize = 1 << 14;

/// A range of a file: the inode number, and offset and length in bytes.
type Pages = (InodeNumber, (u64, u64));

/// Sends notices; see the module.
pub(crate) struct Notices {
    notifier: Notifier,
    first_blocks: Queue<InodeNumber>,
    more_blocks: Queue<InodeNumber>,
    pages: Queue<Pages>,
    listings: Queue<InodeNumber>,
    /// Directories and names.
    names: Queue<(InodeNumber, OsString)>,
}

impl Notices {
    /// Starts the threads.
    pub(crate) fn new(notifier: Notifier) -> Notices {
        // A notice fails if the kernel has forgotten the inode meanwhile; it is not needed then.
        let attributes = |notifier: Notifier| move |ino: InodeNumber| drop(notifier.forget_inode(ino.0, -1, 0));
        let of_pages = notifier.clone();
        let of_listings = notifier.clone();
        let of_names = notifier.clone();
        Notices {
            first_blocks: Queue::start(Duration::ZERO, attributes(notifier.clone())),
            more_blocks: Queue::start(GROWTH_TOLD_EVERY, attributes(notifier.clone())),
            pages: Queue::start(Duration::ZERO, move |pages| drop_pages(&of_pages, pages)),
            listings: Queue::start(Duration::ZERO, move |dir| drop_pages(&of_listings, (dir, (0, 0)))),
            names: Queue::start(Duration::ZERO, move |(dir, name): (InodeNumber, OsString)| {
                drop(of_names.forget_name(dir.0, &name));
            }),
            notifier,
        }
    }

    /// Tells the kernel that a file has got its first blocks. Sent at once, because a size without blocks would mean a
    /// file of holes.
    pub(crate) fn has_first_blocks(&self, ino: InodeNumber) {
        self.first_blocks.add(ino);
    }

    /// Tells the kernel that the number of blocks of a file has changed.
    pub(crate) fn has_other_blocks(&self, ino: InodeNumber) {
        self.more_blocks.add(ino);
    }

    /// Makes the kernel drop pages of a file.
    pub(crate) fn drop_pages(&self, pages: Pages) {
        self.pages.add(pages);
    }

    /// Makes the kernel drop its listing of a directory. The next one brings the attributes of the files again, which the
    /// kernel loses when it writes them back; without it, each would be a request.
    pub(crate) fn drop_listing(&self, dir: InodeNumber) {
        self.listings.add(dir);
    }

    /// Tells the kernel that data written to a file could not be stored. It must ask before it accepts more, and must
    /// drop these names (directory, name), so that it forgets the file at its last close.
    pub(crate) fn is_not_stored(&self, ino: InodeNumber, names: Vec<(InodeNumber, OsString)>) {
        self.first_blocks.add(ino);
        names.into_iter().for_each(|name| self.names.add(name));
    }

    /// Tells the kernel that a name of an inode is gone: it must drop it, and ask how many others there are.
    pub(crate) fn has_lost_a_name(&self, ino: InodeNumber, dir: InodeNumber, name: &OsStr) {
        self.more_blocks.add(ino);
        self.names.add((dir, name.to_owned()));
    }

    /// Tells the kernel that a directory with all below it has lost its name.
    pub(crate) fn has_lost_a_tree(&self, top: InodeNumber, dir: InodeNumber, name: &OsStr) {
        self.has_other_attributes(dir);
        self.has_lost_a_name(top, dir, name);
    }

    /// Tells the kernel that attributes of a file have changed; returns when it knows.
    pub(crate) fn has_other_attributes(&self, ino: InodeNumber) {
        let _ = self.notifier.forget_inode(ino.0, -1, 0);
    }

    /// Makes the kernel drop a name, and what it knows below it; returns when it has. It waits for the directory's lock.
    pub(crate) fn drop_name_now(&self, dir: InodeNumber, name: &OsStr) {
        let _ = self.notifier.forget_name(dir.0, name);
    }

    /// Makes the kernel write back all pages of a file; returns when they were.
    pub(crate) fn write_back(&self, ino: InodeNumber) {
        let _ = self.notifier.forget_inode(ino.0, 0, 0);
    }

    /// Makes the kernel drop pages of a file; returns when they are dropped.
    pub(crate) fn drop_pages_now(&self, pages: Pages) {
        drop_pages(&self.notifier, pages);
    }
}

fn drop_pages(notifier: &Notifier, (ino, (offset, length)): Pages) {
    let _ = notifier.forget_inode(ino.0, offset as i64, length as i64);
}

/// What waits for the thread of a queue.
struct Waiting<N> {
    notices: HashSet<N>,
    is_over: bool,
}

struct Shared<N> {
    waiting: Mutex<Waiting<N>>,
    changed: Condvar,
}

/// A queue of notices, and the thread that sends them. Whoever adds one never waits.
struct Queue<N>(Arc<Shared<N>>);

impl<N: Hash + Eq + Send + 'static> Queue<N> {
    /// Starts the thread. It collects notices for the time `collect_for` before it sends them.
    fn start(collect_for: Duration, send: impl Fn(N) + Send + 'static) -> Queue<N> {
        let waiting = Mutex::new(Waiting { notices: HashSet::new(), is_over: false });
        let shared = Arc::new(Shared { waiting, changed: Condvar::new() });
        let queue = Queue(shared.clone());
        let work = move || {
            while shared.wait_for_some() {
                thread::sleep(collect_for);
                let notices = std::mem::take(&mut shared.waiting.lock().notices);
                notices.into_iter().for_each(&send);
            }
        };
        pmem::with_signals_blocked(|| thread::spawn(work));
        queue
    }

    fn add(&self, notice: N) {
        let mut waiting = self.0.waiting.lock();
        if waiting.notices.len() < QUEUED_MAX && waiting.notices.insert(notice) {
            self.0.changed.notify_one();
        }
    }
}

impl<N> Shared<N> {
    /// Waits until there are notices; returns false if none will come any more.
    fn wait_for_some(&self) -> bool {
        let mut waiting = self.waiting.lock();
        while waiting.notices.is_empty() && !waiting.is_over {
            self.changed.wait(&mut waiting);
        }
        !waiting.is_over
    }
}

impl<N> Drop for Queue<N> {
    /// Ends the thread, unless it is stuck in the kernel.
    fn drop(&mut self) {
        self.0.waiting.lock().is_over = true;
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A queue whose thread sends into a channel and waits for a word before it goes on, as in the kernel.
    fn queue() -> (Queue<u64>, mpsc::Receiver<u64>, mpsc::Sender<()>) {
        let ((sent, is_sent), (goes_on, may_go_on)) = (mpsc::channel(), mpsc::channel::<()>());
        let send = move |notice| {
            let _ = sent.send(notice);
            let _ = may_go_on.recv();
        };
        (Queue::start(Duration::ZERO, send), is_sent, goes_on)
    }

    #[test]
    fn notices_for_a_stuck_thread_are_merged_and_bounded() {
        let (queue, is_sent, goes_on) = queue();
        queue.add(0);
        assert_eq!(is_sent.recv(), Ok(0));
        // The thread is stuck now, and whoever adds a notice does not wait.
        for notice in 1..=3 * QUEUED_MAX as u64 {
            queue.add(notice);
            queue.add(1);
        }
        assert_eq!(queue.0.waiting.lock().notices.len(), QUEUED_MAX);
        drop(goes_on);
        let sent: HashSet<u64> = (0..QUEUED_MAX).map(|_| is_sent.recv().expect("it is sent")).collect();
        assert_eq!(sent, (1..=QUEUED_MAX as u64).collect());
    }

    #[test]
    fn the_thread_that_sends_notices_ends_with_its_queue() {
        let (queue, is_sent, goes_on) = queue();
        queue.add(7);
        assert_eq!(is_sent.recv(), Ok(7));
        queue.add(8);
        drop(queue);
        drop(goes_on);
        assert!(is_sent.recv().is_err(), "what nobody waits for is not sent after the end");
    }
}
