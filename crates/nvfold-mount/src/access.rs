//! Tracks whether a mount is read-only now.
//!
//! The problem: `mount -o remount,ro|rw` changes the mount in the kernel only. The kernel then refuses writes, but
//! does not tell the server.
//!
//! The idea: the server watches the mount table. While the mount is read-only the server changes nothing by itself
//! either: it does not share in the background, gives no memory back, and refuses work that a command asks for. When
//! the mount becomes read-only, everything written before is made durable first.

use crate::background::{Background, Stop};
use crate::mounts::{self, Mounted};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{PipeReader, PipeWriter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
pub(crate) struct Access {
    read_only: Arc<AtomicBool>,
}

/// A thread that watches a mount. Its end is first the end of the pipe, which wakes it.
pub(crate) struct Watching {
    _end: PipeWriter,
    _thread: Background,
}

impl Access {
    /// Starts with the state in which the file system is mounted.
    pub(crate) fn new(read_only: bool) -> Access {
        Access { read_only: Arc::new(AtomicBool::new(read_only)) }
    }

    /// Returns true if nothing may be changed now.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Watches a mount until the result is dropped, and calls `changed` when it has become read-only (`true`) or writable;
    /// `None` if there is no mount table. Then no change is noticed, but the kernel still refuses writes.
    pub(crate) fn watch(&self, mounted: &Mounted, changed: impl Fn(bool) + Send + 'static) -> Option<Watching> {
        let table = File::open("/proc/self/mountinfo").ok()?;
        let (over, end) = std::io::pipe().ok()?;
        let (access, number) = (self.clone(), mounted.number.clone());
        let thread = Background::start(move |stop| access.work(&changed, &number, &table, &over, stop));
        Some(Watching { _end: end, _thread: thread })
    }

    fn work(&self, changed: &dyn Fn(bool), number: &str, table: &File, over: &PipeReader, stop: &Stop) {
        while !stop.is_asked() {
            let mounts = mounts::all();
            if let Some(read_only) = self.change(&mounts, number) {
                changed(read_only);
            }
            let count = mounts.len() as u32;
            stop.rest(REST_PER_PAIR * count.saturating_mul(count));
            let changes = PollFd::new(table, PollFlags::PRI);
            let _ = poll(&mut [changes, PollFd::new(over, PollFlags::IN)], Some(&LOOK_EVERY));
        }
    }

    /// Takes note of the state of the mount; returns it if it is another one than before.
    fn change(&self, mounts: &[Mounted], number: &str) -> Option<bool> {
        // A mount that is no longer in the tree keeps its state.
        let Mounted { read_only, .. } = mounts.iter().find(|mounted| mounted.number == number)?;
        let before = self.read_only.swap(*read_only, Ordering::AcqRel);
        (before != *read_only).then_some(*read_only)
    }
}
