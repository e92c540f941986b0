//! Background work: `fs` does in steps what policies ask for ([`Host`]); operations run between the steps.
//!
//! **Errors do not stop it.** Bad memory or damage in one place costs only that place. The error is recorded
//! ([`Skipped`]), the policy learns that nothing is left to do there, and the next step continues elsewhere. A reader
//! of that place gets EIO. A panic in a step costs as little ([`crate::panics`]).

use super::Core;
use super::cache::file_id;
use super::share_queued::{EntryAddress, token_of};
use crate::dedup::Dedup;
use crate::dedup::stream::Stream;
use crate::dedup::streams::Seam;
use crate::dedup::work::{Filled, Finder, Host, ShareRequest, Shared, Token};
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::inode::{INODE_BYTES, InodeHead};
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::panics::Job;
use crate::words::{FileId, Skipped};
use std::sync::Arc;

impl Host for Core {
    fn next_file(&self, from: u64) -> Option<FileId> {
        let number = Some(self.table.next_used(from)).filter(|number| *number < self.table.end())?;
        let slot = self.table.slot(number)?;
        let InodeHead { generation, .. } = self.region.read(slot);
        // If the slot is in bad memory, loading the inode reports it.
        self.region.sound_or_forget(slot, INODE_BYTES);
        Some(FileId { number, generation })
    }

    fn fill(&self, file: FileId, from: u64) -> Result<Filled> {
        self.leaving_out(self.contain(Job::Fill, Some(file), || self.fill_file(file, from)))
    }

    fn end_stream(&self, file: FileId, stream: Stream) -> Result<()> {
        self.leaving_out(self.end_stream_of(file, stream))
    }

    fn cut_seam(&self, seam: Seam) -> Result<()> {
        self.leaving_out(self.contain(Job::CutSeam, Some(seam.file), || self.cut_seam_of(seam)))
    }

    fn share(&self, work: ShareRequest<'_>, finder: &dyn Finder) -> Result<Shared> {
        let EntryAddress { ino: number, generation, .. } = EntryAddress::of(&work.entry);
        let file = Some(FileId { number, generation });
        self.leaving_out(self.contain(Job::Share, file, || self.share_queued(work, finder)))
    }
}

impl Core {
    /// Does one step of the background work of this policy. Returns true if it has nothing to do now. No step runs
    /// before reconcile is done, because until then counts are not exact and the queue is incomplete.
    ///
    /// # Errors
    /// EROFS, ENOSPC, those of the device.
    pub(crate) fn step_of(&self, job: Job, policy: &dyn Dedup) -> Result<bool> {
        let step = || if self.is_reconciling() { Ok(true) } else { policy.step(self) };
        self.in_background("share in the background", job, step)
    }

    /// Does one step of reordering a chain of the pm index. Returns true if no search has asked for a reorder.
    ///
    /// # Errors
    /// EROFS, those of the device.
    pub(crate) fn reorder_step(&self) -> Result<bool> {
        let step = || Ok(self.chunks.index.fact().is_none_or(|index| index.reorder_step()));
        self.in_background("reorder a chain", Job::Reorder, step)
    }

    /// Returns what background work skipped since mount.
    pub(crate) fn skipped(&self) -> Skipped {
        self.skipped.lock().clone()
    }

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

    /// Runs a step of a job for a file, and contains its panic: see [`Panics`](crate::panics::Panics).
    ///
    /// # Errors
    /// [`Error::Panicked`] if it panics or the job is stopped for this file; those of the step.
    pub(crate) fn contain<T>(&self, job: Job, file: Option<FileId>, step: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = self.panics.contain(job, file, step);
        if let (Err(Error::Panicked { .. }), Some(file)) = (&done, file) {
            self.keep_cut_off(file);
        }
        done
    }

    /// The same for a step that somebody has asked for: a panic is his error.
    ///
    /// # Errors
    /// EIO if it panics; those of the step.
    pub(crate) fn contain_request<T>(&self, inode: &Inode, step: impl FnOnce() -> Result<T>) -> Result<T> {
        self.contain(Job::Reshare, Some(file_id(inode)), step)
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
        let at_inode = |inode: Arc<Inode>| self.contain(job, Some(file_id(&inode)), || step(&inode));
        self.leaving_out(self.inode(ino).and_then(at_inode))
    }

    /// Keeps an inode that a panic has made unusable: read again from the media, it would be usable for some.
    #[cold]
    fn keep_cut_off(&self, file: FileId) {
        if let Ok(Some(inode)) = self.inode_of(file)
            && inode.is_cut_off()
        {
            let mut kept = self.cut_off.lock();
            // Each later visit of the stopped job ends here, too.
            if !kept.iter().any(|other| Arc::ptr_eq(other, &inode)) {
                kept.push(inode);
            }
        }
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

    pub(super) fn record_skipped(&self, error: &Error) {
        let mut skipped = self.skipped.lock();
        skipped.count += 1;
        skipped.last_error = Some(error.to_string());
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

    /// Returns what an unmount saves of the queue: the entries that are still to be shared, each once. A compacted
    /// log may reuse a page, so that a queued token refers to an entry that is gone and another entry is in its
    /// place. The token of the present entry is saved then.
    pub(crate) fn queue_to_save(&self) -> Vec<(Token, u32)> {
        let mut seen = hashbrown::HashSet::new();
        let entry_of = |token: Token| {
            let EntryAddress { ino, position, .. } = EntryAddress::of(&token);
            let inode = self.inode(ino).ok()?;
            let entry = self.queued_entry(&inode, &inode.peek(), &token)?.written()?;
            seen.insert(position).then(|| token_of(&inode, position, &entry))
        };
        self.policies.queued().into_iter().filter_map(entry_of).collect()
    }
}
