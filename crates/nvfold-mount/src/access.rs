//! Tracks whether a mount is read-only now.
//!
//! The problem: `mount -o remount,ro|rw` changes the mount in the kernel only. The kernel then refuses writes, but
//! does not tell the server.
//!
//! The idea: the server watches the mount table. While the mount is read-only the server changes nothing by itself
//! either: it does not share in the background, gives no memory back, and refuses work that a command asks for. When
//! the mount becomes read-only, everything written before is made durable first.

use crate::mounts::{self, Mounted};
use nvfold::FileSystem;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often the table is read even if no change is reported. The kernel reports nothing about mounts in another
/// namespace.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// How long the watcher rests after reading the table, for each pair of mounts of nvfold on this host: each change of the
/// table wakes the watchers of all mounts, and each of them reads the lines of all mounts. With one mount that is no
/// time, with a thousand 4 s.
const REST_PER_PAIR: Duration = Duration::from_micros(4);

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
                let mounts = mounts::all();
                access.look(&fs, &mounts, &mounted.number);
                let count = mounts.len() as u32;
                thread::sleep(REST_PER_PAIR * count.saturating_mul(count));
                let _ = poll(&mut [PollFd::new(&table, PollFlags::PRI)], Some(&LOOK_EVERY));
            }
        });
    }

    fn look(&self, fs: &FileSystem, mounts: &[Mounted], number: &str) {
        // A mount that is no longer in the tree keeps its state.
        let Some(Mounted { read_only, .. }) = mounts.iter().find(|mounted| mounted.number == number) else { return };
        let was = self.read_only.swap(*read_only, Ordering::AcqRel);
        if *read_only && !was {
            // `housekeeping` reports a device that fails.
            let _ = fs.sync();
        }
    }
}
