//! Background work: `fs` does what policies ask for ([`Host`]), in steps; operations run between the steps.
//!
//! **It survives errors.** Bad memory or damage in one place costs only that place. It is recorded ([`Skipped`]), the
//! policy is told that nothing is left there, and the next step continues elsewhere. A reader of that place gets EIO.

use super::Core;
use super::share_queued::{EntryAddress, token_of};
use crate::dedup::Dedup;
use crate::dedup::stream::Stream;
use crate::dedup::work::{Filled, Finder, Host, Share, Shared, Token};
use crate::error::{Error, Result};
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::words::Skipped;

impl Host for Core {
    fn next_file(&self, from: u64) -> Option<u64> {
        Some(self.table.next_used(from)).filter(|file| *file < self.table.end())
    }

    fn fill(&self, file: u64, from: u64) -> Result<Filled> {
        self.leaving_out(self.fill_file(file, from))
    }

    fn end_stream(&self, file: u64, stream: Stream) -> Result<()> {
        self.leaving_out(self.end_stream_of(file, stream))
    }

    fn cut_seam(&self, file: u64, seam: u64) -> Result<()> {
        self.leaving_out(self.cut_seam_of(file, seam))
    }

    fn share(&self, work: Share<'_>, finder: &dyn Finder) -> Result<Shared> {
        self.leaving_out(self.share_queued(work, finder))
    }
}

impl Core {
    /// A step of this policy's work; true when it has nothing to do now. Until reconcile is done counts are not known,
    /// and what it finds is still to be queued.
    ///
    /// # Errors
    /// EROFS, ENOSPC, those of the device.
    pub(crate) fn step_of(&self, policy: &dyn Dedup) -> Result<bool> {
        let step = || if self.is_reconciling() { Ok(true) } else { policy.step(self) };
        self.in_background("share in the background", step)
    }

    /// A step of bringing a chain of the pm index into order; true when no search asked for it.
    ///
    /// # Errors
    /// EROFS, those of the device.
    pub(crate) fn reorder_step(&self) -> Result<bool> {
        let step = || Ok(self.chunks.index.fact().is_none_or(|index| index.reorder_step()));
        self.in_background("reorder a chain", step)
    }

    /// What was left out since mount.
    pub(crate) fn skipped(&self) -> Skipped {
        self.skipped.lock().clone()
    }

    /// Runs a step that reads what its own errors do not tell of.
    fn in_background(&self, doing: &'static str, step: impl FnOnce() -> Result<bool>) -> Result<bool> {
        self.change_in_background(doing, || {
            let done = step();
            self.leaving_out(Ok(()))?;
            done
        })
    }

    /// What cannot be read, or not be changed, costs the file or entry at hand: it is recorded, and the work goes on with
    /// what comes next. A full device and errors of the whole device end a step.
    pub(super) fn leaving_out<T: Default>(&self, done: Result<T>) -> Result<T> {
        let of_work = Error::of(|| "what work in the background has read".into());
        self.left_out(self.region.check().map_err(of_work))?;
        self.left_out(done)
    }

    fn left_out<T: Default>(&self, done: Result<T>) -> Result<T> {
        match done {
            // Removed meanwhile: nothing was left out.
            Err(Error::NotFound { .. }) => Ok(T::default()),
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

    /// Records those of a file's blocks that were left out: they, or their chunk entries, lie in bad memory.
    pub(super) fn record_bad_blocks(&self, ino: u64, blocks: impl Iterator<Item = BlockNumber>) {
        let is_writable = |at, length| self.region.check_writable(at, length);
        for block in blocks {
            let (address, entry) = (block.address(), self.chunks.entry_offset(block));
            let checked = is_writable(address, BLOCK_BYTES).and_then(|()| is_writable(entry, ENTRY_BYTES));
            let of_block = Error::of(|| format!("a block of inode {ino} or its chunk entry"));
            checked.map_err(of_block).unwrap_or_else(|error| self.record_skipped(&error));
        }
    }

    /// Returns what an unmount saves of the queue: the entries that still wait to be shared, each once. A page of a log that was
    /// written anew may be one of it again, with another entry where a token has been waiting for the one before: what
    /// is saved is the token of the entry that is there.
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
