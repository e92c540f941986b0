//! Where errors and panics of a step end.
//!
//! **Errors do not stop work beside the calls.** Bad memory or damage in one place costs only that place. The error is
//! recorded ([`Skipped`](crate::Skipped)), the policy learns that nothing is left to do there, and the next step continues
//! elsewhere. A reader of that place gets EIO. A panic in a step costs as little ([`crate::panics`]).

use super::Jobs;
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::panics::Job;
use std::sync::Arc;

impl Jobs<'_> {
    /// Runs a step, and records bad memory that the step has read without reporting an error. A job that a panic has
    /// stopped has nothing to do.
    pub(super) fn in_background(
        &self,
        doing: &'static str,
        job: Job,
        step: impl FnOnce() -> Result<bool>,
    ) -> Result<bool> {
        self.change_in_background(doing, || {
            let done = self.contain_all(job, true, step);
            self.leaving_out(Ok(()))?;
            done
        })
    }

    /// The same for a step that somebody has asked for: a panic is his error.
    ///
    /// # Errors
    /// EIO if it panics; those of the step.
    pub(crate) fn contain_request<T>(&self, inode: &Inode, step: impl FnOnce() -> Result<T>) -> Result<T> {
        self.panics.contain(Job::Reshare, Some(inode.file_id()), step)
    }

    /// Does the same for the whole step of a job. Returns `stopped` if the job is stopped.
    ///
    /// # Errors
    /// Those of the step.
    pub(crate) fn contain_all<T>(&self, job: Job, stopped: T, step: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.panics.contain(job, None, step) {
            Err(Error::Panicked { .. }) => Ok(stopped),
            done => done,
        }
    }

    /// The same for a step at the inode with this number.
    pub(super) fn contain_at<T: Default>(
        &self,
        job: Job,
        ino: u64,
        step: impl FnOnce(&Inode) -> Result<T>,
    ) -> Result<T> {
        let at_inode = |inode: Arc<Inode>| self.panics.contain(job, Some(inode.file_id()), || step(&inode));
        self.leaving_out(self.inode(ino).and_then(at_inode))
    }

    /// Records an error that concerns only the file or entry at hand, so that the work can continue elsewhere. A full
    /// device and errors of the whole device are returned, and end the step.
    pub(super) fn leaving_out<T: Default>(&self, done: Result<T>) -> Result<T> {
        let of_work = Error::of(|| "what work in the background has read".into());
        self.left_out(self.region.check().map_err(of_work))?;
        self.left_out(done)
    }

    fn left_out<T: Default>(&self, done: Result<T>) -> Result<T> {
        match done {
            // The file was removed in the meantime, or was counted where a panic has stopped work on it.
            Err(Error::NotFound { .. } | Error::Panicked { .. }) => Ok(T::default()),
            Err(error) if !error.is_of_device() && !matches!(error, Error::NoSpace { .. }) => {
                self.record_skipped(&error);
                Ok(T::default())
            }
            done => done,
        }
    }

    /// Records those of a file's blocks that were skipped because they or their chunk entries are in bad memory.
    pub(super) fn record_bad_blocks(&self, ino: u64, blocks: impl Iterator<Item = BlockNumber>) {
        let is_writable = |at, length| self.region.check_writable(at, length);
        for block in blocks {
            let (address, entry) = (block.address(), self.chunks.entry_offset(block));
            let checked = is_writable(address, BLOCK_BYTES).and_then(|()| is_writable(entry, ENTRY_BYTES));
            let of_block = Error::of(|| format!("a block of inode {ino} or its chunk entry"));
            checked.map_err(of_block).unwrap_or_else(|error| self.record_skipped(&error));
        }
    }
}
