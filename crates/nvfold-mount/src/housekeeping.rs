//! Housekeeping of a mount, once a second: frees removed trees and dead space in packed segments, gives freed memory back
//! to the host, and checks the device.
//!
//! A device that is lost (truncated under the mount, or on a host without memory for it) answers every request with
//! EIO and never recovers. So the mount ends: it is detached from the tree.

use crate::access::Access;
use crate::background::{Background, Stop};
use crate::events::{Event, Events};
use nvfold::{FileSystem, Victims};
use nvfold_fuse::mount::unmount;
use rustix::mount::UnmountFlags;
use std::path::PathBuf;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);

/// Starts the thread.
pub(crate) fn start(fs: FileSystem, dir: PathBuf, access: Access, events: Events) -> Background {
    Background::start(move |stop| {
        let mut told = Told::default();
        stop.rest(EVERY);
        while !stop.is_asked() {
            if !fs.region().probe() {
                let error = fs.sync().err();
                let _ = unmount(&dir, UnmountFlags::DETACH);
                return events(Event::DeviceLost { error });
            }
            told.tell(&fs, &events);
            tidy_up(&fs, &access, stop);
            stop.rest(EVERY);
        }
    })
}

/// What the events so far have told.
#[derive(Default)]
struct Told {
    bad_ranges: usize,
    unreadable: u64,
    syncs_fail: bool,
}

impl Told {
    /// Reports what is new.
    fn tell(&mut self, fs: &FileSystem, events: &Events) {
        for bad in fs.region().bad_ranges().into_iter().skip(self.bad_ranges) {
            events(Event::BadMemory { offset: bad.start, bytes: bad.end - bad.start });
            self.bad_ranges += 1;
        }
        let errors = fs.region().sync_errors();
        if errors.is_failing != self.syncs_fail {
            self.syncs_fail = errors.is_failing;
            events(Event::Syncs(errors));
        }
        let unreadable = fs.stats().recovery.unreadable;
        if unreadable > self.unreadable {
            events(Event::Unreadable { inodes: unreadable });
            self.unreadable = unreadable;
        }
    }
}

/// Frees space and gives memory back. A failure costs space or memory, never data; the next round tries again.
fn tidy_up(fs: &FileSystem, access: &Access, stop: &Stop) {
    let goes_on = || !access.is_read_only() && !stop.is_asked();
    while goes_on() && !fs.remove_step().unwrap_or(true) {}
    while goes_on() && !fs.reclaim_step(Victims::Worthwhile).unwrap_or(true) {}
    while goes_on() && !fs.trim_step().unwrap_or(true) {}
}
