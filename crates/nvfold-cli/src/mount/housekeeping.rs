//! Housekeeping of a mount, once a second: frees dead space in packed segments, gives freed memory back to the host,
//! and checks the device.
//!
//! A device that is lost (truncated under the mount, or on a host without memory for it) answers every request with
//! EIO and never recovers. So the mount ends: it is detached from the tree, and the process fails.

use super::access::Access;
use super::{GRACE, announce, unmount};
use crate::failure::FAILED;
use crate::statistics::SyncErrors;
use nvfold::{FileSystem, Victims};
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);

/// Starts housekeeping, which runs until the result is dropped.
pub fn start(fs: FileSystem, device: String, dir: PathBuf, access: Access) -> Sender<()> {
    let (stop, stopped) = mpsc::channel::<()>();
    thread::spawn(move || {
        let mut bad_ranges_told = 0;
        let mut unreadable_told = 0;
        let mut was_failing = false;
        while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
            if !fs.region().probe() {
                return leave_lost_device(&fs, &dir);
            }
            for bad in fs.region().bad_ranges().into_iter().skip(bad_ranges_told) {
                let (at, bytes) = (bad.start, bad.end - bad.start);
                announce(&format!(
                    "nvfold: {device}: {bytes} bytes at offset {at:#x} lie in bad memory; `nvfold fsck` lists the files"
                ));
                bad_ranges_told += 1;
            }
            let errors = SyncErrors::of(fs.region());
            let is_failing = errors.as_ref().is_some_and(|errors| errors.is_failing);
            if let Some(errors) = errors.filter(|_| is_failing != was_failing) {
                announce(&format!("nvfold: {device}: syncs: {}", errors.describe()));
            }
            was_failing = is_failing;
            let unreadable = fs.stats().recovery.unreadable;
            if unreadable > unreadable_told {
                announce(&format!(
                    "nvfold: {device}: {unreadable} inodes cannot be read and give EIO; what they may name is kept until \
                     `nvfold fsck --repair` has decided"
                ));
                unreadable_told = unreadable;
            }
            // A failure costs space or memory, never data. The next round tries again.
            let goes_on = || !access.is_read_only() && stopped.try_recv() == Err(TryRecvError::Empty);
            while goes_on() && !fs.reclaim_step(Victims::Worthwhile).unwrap_or(true) {}
            while goes_on() && !fs.trim_step().unwrap_or(true) {}
        }
    });
    stop
}

/// Detaches the mount from the tree and ends the process. `serve` ends with the session, when the last file is
/// closed; if that takes longer than the grace period, the process exits here.
fn leave_lost_device(fs: &FileSystem, dir: &Path) {
    if let Err(error) = fs.sync() {
        announce(&format!("nvfold: {error}; the mount on {} ends", dir.display()));
    }
    let _ = unmount(dir, UnmountFlags::DETACH);
    thread::sleep(GRACE);
    std::process::exit(i32::from(FAILED));
}
