//! Tracks whether a mount is read-only now.
//!
//! The problem: `mount -o remount,ro|rw` changes the mount in the kernel only. The kernel then refuses writes, but
//! does not tell the server.
//!
//! The idea: the server watches the mount table. While the mount is read-only the server changes nothing by itself
//! either: it does not share in the background, gives no memory back, and refuses work that a command asks for. When
//! the mount becomes read-only, everything written before is made durable first.

use crate::mounts;
use nvfold::FileSystem;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// How often the table is read even if no change is reported. The kernel reports nothing about mounts in another
/// namespace.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// Shared read-only state of a mount; see the module.
#[derive(Clone, Default)]
pub struct Access {
    read_only: Arc<AtomicBool>,
}

impl Access {
    /// Starts with the state in which the file system is mounted.
    pub fn new(read_only: bool) -> Access {
        Access { read_only: Arc::new(AtomicBool::new(read_only)) }
    }

    /// Returns true if nothing may be changed now.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Watches the mount on `dir` until the process ends.
    pub fn watch(&self, fs: FileSystem, dir: &Path) {
        // Without a mount table no change is noticed. The kernel still refuses writes.
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
        // A mount that is no longer in the tree keeps its state.
        let Some(read_only) = mounts::is_read_only(number) else { return };
        let was = self.read_only.swap(read_only, Ordering::AcqRel);
        if read_only && !was {
            // `housekeeping` reports a device that fails.
            let _ = fs.sync();
        }
    }
}
