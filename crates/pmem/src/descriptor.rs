//! The descriptor of a device's file, which is looked at before each use.
//!
//! The problem: a descriptor is a number, and any code of the process can close it. A daemon calls `closefrom(3)` when
//! it starts, and the next file that it opens gets the number. What the library then does with the number hits that
//! file: it makes holes in it, writes to it, truncates it, unlocks it, and closes it.
//!
//! The idea: before each use, one fstat compares device, inode and type with those of the file that was opened. The
//! inode cannot be another file's meanwhile, because the mapping keeps it. If they differ, the number is not ours any
//! more. It is never used again, not even to be closed, and the device is **lost**: no later store is done, and every
//! call fails ([`PmemError::DescriptorClosed`](crate::PmemError::DescriptorClosed)). It must be lost even where the
//! mapping alone would do, because the lock went with the descriptor: another process may own the device by now.
//!
//! ```text
//! get, stat --> same file -----> the host call
//!          \--> another, none -> lost: EIO, from then on always
//! ```
//!
//! To be hit more seldom, descriptors get high numbers ([`HIGH`]), away from `close(3)` to `close(20)` of simple programs
//! and from the lowest free number that `open` gives.
//!
//! **What is not seen.** Another thread that replaces the descriptor between the fstat and the use. The same file, opened
//! again under the same number: then changes reach the right file, but without the lock. And a loss is seen at the next
//! use, not at once; background work looks once a second.

use crate::fault::Faults;
use crate::host;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Stat};
use rustix::io::{Errno, Result};
use std::mem::ManuallyDrop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Smallest numbers that a descriptor is moved to, the first that the limit of the process (RLIMIT_NOFILE) allows.
const HIGH: [i32; 3] = [1000, 200, 50];

/// What tells a file from all others that exist at the same time.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    kind: FileType,
}

impl Identity {
    fn of(stat: &Stat) -> Identity {
        Identity { device: stat.st_dev, inode: stat.st_ino, kind: FileType::from_raw_mode(stat.st_mode) }
    }
}

/// The descriptor of a device's file.
pub(crate) struct Descriptor {
    file: ManuallyDrop<OwnedFd>,
    /// What was opened. `None` under Miri, which has no fstat.
    identity: Option<Identity>,
    is_lost: AtomicBool,
    /// The record of the mapping, once the device is mapped.
    faults: OnceLock<&'static Faults>,
}

impl Descriptor {
    /// Takes a file that was just opened, and moves it to a high number: `least` or above, or one of [`HIGH`] if that is
    /// 0. A lock on the file stays.
    ///
    /// # Errors
    /// The host's. That it has no high number is none.
    pub(crate) fn new(file: OwnedFd, least: i32) -> Result<Descriptor> {
        let file = match least {
            0 => HIGH.iter().find_map(|high| rustix::io::fcntl_dupfd_cloexec(&file, *high).ok()).unwrap_or(file),
            least => rustix::io::fcntl_dupfd_cloexec(&file, least)?,
        };
        let identity = if cfg!(miri) { None } else { Some(Identity::of(&host::fstat(&file)?)) };
        let is_lost = AtomicBool::new(false);
        Ok(Descriptor { file: ManuallyDrop::new(file), identity, is_lost, faults: OnceLock::new() })
    }

    /// From now on a loss is told to the record of the mapping.
    pub(crate) fn tell(&self, faults: &'static Faults) {
        let _ = self.faults.set(faults);
    }

    /// Returns the descriptor for one call of the host.
    ///
    /// # Errors
    /// EIO if it is not that of the device any more; those of fstat.
    pub(crate) fn get(&self) -> Result<BorrowedFd<'_>> {
        if self.identity.is_some() {
            self.stat()?;
        }
        Ok(self.file.as_fd())
    }

    /// Returns what the host says of the file.
    ///
    /// # Errors
    /// As [`Descriptor::get`].
    pub(crate) fn stat(&self) -> Result<Stat> {
        let stat = self.compared();
        if self.is_lost.load(Ordering::Acquire)
            && let Some(faults) = self.faults.get()
        {
            faults.lose_descriptor();
        }
        stat
    }

    fn compared(&self) -> Result<Stat> {
        if self.is_lost.load(Ordering::Acquire) {
            return Err(Errno::IO);
        }
        match host::fstat(&*self.file) {
            Ok(stat) if self.identity.is_none_or(|opened| opened == Identity::of(&stat)) => Ok(stat),
            Ok(_) | Err(Errno::BADF) => {
                self.is_lost.store(true, Ordering::Release);
                Err(Errno::IO)
            }
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // A number that is not ours any more is somebody else's to close. The record may be another mapping's by now.
        if self.identity.is_none() || self.compared().is_ok() {
            // SAFETY: it is not used again.
            drop(unsafe { ManuallyDrop::take(&mut self.file) });
        }
    }
}
