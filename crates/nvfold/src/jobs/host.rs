//! What policies ask for in the background ([`Host`]), and the steps in which it is done.

use super::Jobs;
use crate::dedup::Dedup;
use crate::dedup::stream::Stream;
use crate::dedup::streams::Seam;
use crate::dedup::work::{Filled, Finder, Host, ShareRequest, Shared, Token};
use crate::error::Result;
use crate::media::inode::{INODE_BYTES, InodeHead};
use crate::panics::Job;
use crate::store::queued::{EntryAddress, token_of};
use crate::words::FileId;

impl Host for Jobs<'_> {
    fn next_file(&self, from: u64) -> Option<FileId> {
        let number = Some(self.table.next_used(from)).filter(|number| *number < self.table.end())?;
        let slot = self.table.slot(number)?;
        let InodeHead { generation, .. } = self.region.read(slot);
        // If the slot is in bad memory, loading the inode reports it.
        self.region.sound_or_forget(slot, INODE_BYTES);
        Some(FileId { number, generation })
    }

    fn fill(&self, file: FileId, from: u64) -> Result<Filled> {
        self.leaving_out(self.panics.contain(Job::Fill, Some(file), || self.fill_file(file, from)))
    }

    fn end_stream(&self, file: FileId, stream: Stream) -> Result<()> {
        self.leaving_out(self.end_stream_of(file, stream))
    }

    fn cut_seam(&self, seam: Seam) -> Result<()> {
        self.leaving_out(self.panics.contain(Job::CutSeam, Some(seam.file), || self.cut_seam_of(seam)))
    }

    fn share(&self, work: ShareRequest<'_>, finder: &dyn Finder) -> Result<Shared> {
        let EntryAddress { ino: number, generation, .. } = EntryAddress::of(&work.entry);
        let file = Some(FileId { number, generation });
        self.leaving_out(self.panics.contain(Job::Share, file, || self.share_queued(work, finder)))
    }
}

impl Jobs<'_> {
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
