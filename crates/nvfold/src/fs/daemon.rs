//! The daemon of policy `denova`, as a loop over bounded steps (DeNOVA IV-B).

use super::FileSystem;
use crate::error::Result;
use std::time::Duration;

/// What works on the queue. Front ends run it on a thread of their own:
///
/// ```text
/// while !stopped { park_timeout(daemon.turn()?) }
/// ```
pub struct Daemon {
    fs: FileSystem,
}

impl Daemon {
    /// Of this file system.
    pub fn new(fs: FileSystem) -> Daemon {
        Daemon { fs }
    }

    /// Works for a moment, as mode and limits allow; how long to wait until the next turn. Also fills in fingerprints
    /// ([`FileSystem::dedup_step`]).
    ///
    /// # Errors
    /// EROFS; those of the device.
    pub fn turn(&mut self) -> Result<Duration> {
        let is_done = self.fs.dedup_step()?;
        Ok(if is_done { Duration::from_millis(10) } else { Duration::ZERO })
    }
}
