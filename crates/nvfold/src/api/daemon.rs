//! The dedup daemon of policy `denova`, for front ends to run.

use super::FileSystem;
use crate::dedup::denova::schedule::{Schedule, Worksite};
use crate::error::Result;
use crate::panics::Job;
use std::time::Duration;

/// How long the daemon waits while nothing may change.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Runs the deferred work of policies in the background. Front ends run it on a thread of their own:
///
/// ```text
/// while !stopped { park_timeout(daemon.turn()?) }
/// ```
pub struct Daemon {
    fs: FileSystem,
    schedule: Schedule,
}

impl Daemon {
    /// Returns a daemon for this file system.
    pub fn new(fs: FileSystem) -> Daemon {
        let schedule = Schedule::new(fs.dedup_mode());
        Daemon { fs, schedule }
    }

    /// Works for a moment, as mode and limits allow; returns how long to wait until the next turn. A shorter wait is
    /// harmless: in mode `delayed` the daemon then reacts sooner to a change of the mode or to scarce space. It also
    /// computes missing fingerprints ([`FileSystem::fill_step`]).
    ///
    /// Data that cannot be read is skipped and counted ([`FileSystem::skipped`]); the next turn continues after it.
    ///
    /// # Errors
    /// Only errors that end all work ([`Error::is_of_device`](crate::Error::is_of_device)): EROFS, a lost device.
    pub fn turn(&mut self) -> Result<Duration> {
        let core = self.fs.core();
        if core.region.admit().is_err() {
            // The disk does not take what is there. The error is told by `Region::sync_errors`, and may end.
            return Ok(LOOK_AGAIN);
        }
        core.release_in_background();
        let policies = &core.policies;
        policies.daemon_works();
        self.schedule.turn(&policies.denova, &self.fs)
    }
}

impl Worksite for FileSystem {
    fn step(&self) -> Result<bool> {
        let jobs = self.jobs();
        jobs.step_of(Job::Share, &*jobs.policies.denova)
    }

    fn reorder_step(&self) -> Result<bool> {
        FileSystem::reorder_step(self)
    }

    fn other_step(&self) -> Result<bool> {
        self.fill_step()
    }

    fn operations(&self) -> u64 {
        self.core().freeze_lock.entered()
    }

    fn free_percent(&self) -> u64 {
        let space = &self.core().space;
        space.free_blocks() * 100 / space.total_blocks().max(1)
    }
}
