//! Whether a mount is read-only now. It begins as it was mounted, and `mount -o remount,ro|rw` changes that in the kernel,
//! which then lets nobody write and tells the serving process nothing. The mount table tells it; so it is watched.
//!
//! While the mount is read-only the serving process changes nothing by itself either: no sharing in the background, no
//! memory given back, no work that a command asks for. What was written before is made durable first.

use crate::mounts;
use nvfold::FileSystem;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The table is looked at this often although nothing is said to have changed: of mounts that are made in another
/// namespace nothing is said.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// See the module.
#[derive(Clone, Default)]
pub struct Access {
    read_only: Arc<AtomicBool>,
}

impl Access {
    /// As it is mounted.
    pub fn new(read_only: bool) -> Access {
        Access { read_only: Arc::new(AtomicBool::new(read_only)) }
    }

    /// Whether nothing may be changed now.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Follows the mount on `dir` until the process ends.
    pub fn watch(&self, fs: FileSystem, dir: &Path) {
        // Without a table nothing is seen, and the kernel lets nobody write all the same.
        let (Some(mounted), Ok(table)) = (mounts::at(dir), File::open("/proc/self/mountinfo")) else { return };
        let access = self.clone();
        thread::spawn(move || {
            loop {
                access.look(&fs, &mounted.number);
                let _ = poll(&mut [PollFd::new(&table, PollFlags::PRI)], Some(&LOOK_EVERY));
            }
        });
    }

    fn look(&self, fs: &FileSystem, number: &str) {
        // Where it is not in the tree any more it stays as it was.
        let Some(read_only) = mounts::is_read_only(number) else { return };
        let was = self.read_only.swap(read_only, Ordering::AcqRel);
        if read_only && !was {
            // A device that fails is told by `house`.
            let _ = fs.sync();
        }
    }
}
