//! Work in the background, for front ends.

use super::FileSystem;
use crate::dedup::denova::schedule::{Schedule, Worksite};
use crate::error::Result;
use std::time::Duration;

/// What works in the background on what policies put off. Front ends run it on a thread of their own:
///
/// ```text
/// while !stopped { park_timeout(daemon.turn()?) }
/// ```
pub struct Daemon {
    fs: FileSystem,
    schedule: Schedule,
}

impl Daemon {
    /// Of this file system.
    pub fn new(fs: FileSystem) -> Daemon {
        let schedule = Schedule::new(fs.dedup_mode());
        Daemon { fs, schedule }
    }

    /// Works for a moment, as mode and limits allow; how long to wait until the next turn. Waiting shorter loses
    /// nothing: in mode `delayed` a change of the mode, or space that becomes scarce, is heeded sooner then. Also fills
    /// in fingerprints ([`FileSystem::fill_step`]).
    ///
    /// What cannot be read is left out and counted ([`FileSystem::skipped`]); the next turn goes on behind it.
    ///
    /// # Errors
    /// Only such as end all work ([`Error::is_of_device`](crate::Error::is_of_device)): EROFS, a lost device.
    pub fn turn(&mut self) -> Result<Duration> {
        let policies = &self.fs.core().policies;
        policies.daemon_works();
        self.schedule.turn(&policies.denova, &self.fs)
    }
}

impl Worksite for FileSystem {
    fn step(&self) -> Result<bool> {
        let core = self.core();
        core.step_of(&*core.policies.denova)
    }

    fn reorder_step(&self) -> Result<bool> {
        FileSystem::reorder_step(self)
    }

    fn other_step(&self) -> Result<bool> {
        self.fill_step()
    }

    fn operations(&self) -> u64 {
        self.core().gate.entered()
    }

    fn free_percent(&self) -> u64 {
        let space = &self.core().space;
        space.free_blocks() * 100 / space.total_blocks().max(1)
    }
}
