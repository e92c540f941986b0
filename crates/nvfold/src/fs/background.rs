//! Work in the background: `fs` does what policies ask for ([`Host`]), in steps that operations come in between.

use super::Core;
use super::share_queued::{EntryAddress, token_of};
use crate::dedup::Dedup;
use crate::dedup::work::{Filled, Finder, Host, Share, Shared, Token};
use crate::error::Result;

impl Host for Core {
    fn next_file(&self, from: u64) -> Option<u64> {
        Some(self.table.next_used(from)).filter(|file| *file < self.table.end())
    }

    fn fill(&self, file: u64, from: u64) -> Result<Filled> {
        self.fill_file(file, from)
    }

    fn share(&self, work: Share<'_>, finder: &dyn Finder) -> Result<Shared> {
        self.share_queued(work, finder)
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
        self.change_in_background("share in the background", step)
    }

    /// What an unmount saves: the queued entries that still wait to be shared, each once. A page of a log that was
    /// written anew may be one of it again, with another entry where a token has been waiting for the one before: what
    /// is saved is the token of the entry that is there.
    pub(crate) fn queued_to_save(&self) -> Vec<(Token, u32)> {
        let mut seen = hashbrown::HashSet::new();
        let entry_of = |token: Token| {
            let EntryAddress { ino, position, .. } = EntryAddress::of(&token);
            let inode = self.inode(ino).ok()?;
            let entry = self.queued_entry(&inode, &inode.peek(), &token)?;
            seen.insert(position).then(|| token_of(&inode, position, &entry))
        };
        self.policies.queued().into_iter().filter_map(entry_of).collect()
    }
}
