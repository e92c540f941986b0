//! Comparing what a rewrite publishes with what it replaces: in tests, in debug builds, and where a mount asks for it.
//!
//! The problem: work in the background and on request moves the content of files: it cuts, shares, copies and packs
//! data that nobody writes. A mistake there destroys files that were stored long ago, and is noticed long after.
//!
//! The idea: such work does not change what a file says. Every rewrite of extents goes through [`Store::publish`] with
//! a stamp that says so ([`Stamp::Kept`](super::remap::Stamp)), and there, before the commit, the bytes of the new
//! extents are read and compared with those of the old ones. Compaction replays the new log, emptying a segment
//! compares the copies, and the filler hashes once more. A rewrite that differs is refused: nothing was committed, the
//! claims give back what they hold, and the job skips the inode and continues elsewhere. In tests it is a panic.

use super::Store;
use super::remap::{Remap, within};
use crate::chunking::is_zero;
use crate::error::{Error, Result};
use crate::inode::directory::NameSlot;
use crate::inode::extents::{Extent, Extents};
use crate::inode::log::Log;
use crate::inode::{Body, HeldValue, Inode, State, log};
use crate::media::inode::InodeHead;
use crate::media::{BLOCK_BYTES, BlockNumber};
use std::ops::Range;

impl Store {
    /// Compares the content of the extents that are about to be published with that of the file, if the change only
    /// moves it.
    ///
    /// # Errors
    /// [`Error::Refused`] if they differ.
    #[inline]
    pub(super) fn check_rewrite(&self, inode: &Inode, state: &State, remap: &Remap<'_>) -> Result<()> {
        if !remap.stamp.keeps_content() || !self.compares_rewrites {
            Ok(())
        } else {
            self.compare_extents(inode, state, remap)
        }
    }

    #[cold]
    #[inline(never)]
    fn compare_extents(&self, inode: &Inode, state: &State, remap: &Remap<'_>) -> Result<()> {
        if !self.may_compare() {
            return Ok(());
        }
        let extents = self.file_extents(state, "compare")?;
        if remap.has_holes {
            remap.ranges.iter().try_for_each(|range| self.compare_holes(inode, extents, range, remap.mapped))?;
        } else {
            let replaced: u64 = remap.ranges.iter().map(|range| range.end - range.start).sum();
            let published: u64 = remap.mapped.iter().map(|(_, extent)| extent.length).sum();
            if replaced != published {
                return Err(self.refuse_rewrite(format!("inode {}: {published} bytes for {replaced}", inode.ino)));
            }
        }
        for (offset, extent) in remap.mapped {
            self.compare_extent(inode, extents, *offset, extent)?;
        }
        Ok(())
    }

    /// Checks that a file has zeros where a range is not mapped.
    fn compare_holes(
        &self,
        inode: &Inode,
        extents: &Extents,
        range: &Range<u64>,
        mapped: &[(u64, Extent)],
    ) -> Result<()> {
        let mapped = within(mapped, range);
        let starts = std::iter::once(range.start).chain(mapped.iter().map(|(at, extent)| at + extent.length));
        let ends = mapped.iter().map(|(at, _)| *at).chain(std::iter::once(range.end));
        for (start, end) in starts.zip(ends) {
            let mut bytes = vec![0; (end - start) as usize];
            if self.read_extents(extents, start, &mut bytes).is_ok() && !is_zero(&bytes) {
                return Err(self.refuse_rewrite(format!("inode {}: a hole at file offset {start}", inode.ino)));
            }
        }
        Ok(())
    }

    fn compare_extent(&self, inode: &Inode, old: &Extents, offset: u64, extent: &Extent) -> Result<()> {
        let mut new = Extents::default();
        new.insert(offset, *extent);
        let mut bytes = [vec![0; extent.length as usize], vec![0; extent.length as usize]];
        for (extents, bytes) in [old, &new].into_iter().zip(&mut bytes) {
            if self.read_extents(extents, offset, bytes).is_err() {
                // A damaged chunk has no content to compare with; whoever reads it gets EIO, as before.
                return Ok(());
            }
        }
        match bytes[0] == bytes[1] {
            true => Ok(()),
            false => Err(self.refuse_rewrite(format!("inode {}: at file offset {offset}", inode.ino))),
        }
    }

    /// Replays the rewritten log of an inode, which begins at `head` and is not committed yet, and compares the result
    /// with the inode.
    ///
    /// # Errors
    /// As [`Store::check_rewrite`].
    #[inline]
    pub(crate) fn check_compacted(&self, inode: &Inode, state: &State, head: u64, tail: u64) -> Result<()> {
        if !self.may_compare() {
            return Ok(());
        }
        let head = InodeHead { head, commit: tail, ino: inode.ino, ..InodeHead::default() };
        let mut replayed = State::new(inode.kind, state.attributes, Log::default());
        let walked = log::walk(&self.region, &self.geometry, inode.slot, &head, |position, _, entry| {
            let applied = replayed.apply(position, &entry, false);
            applied.map_err(|why| self.refuse_rewrite(format!("inode {}: its compacted log ({why})", inode.ino)))
        });
        match walked {
            Ok(_) if self.are_equal(state, &replayed) => Ok(()),
            Ok(_) => Err(self.refuse_rewrite(format!("inode {}: its compacted log", inode.ino))),
            Err(error) => Err(self.refuse_rewrite(format!("inode {}: its compacted log ({error})", inode.ino))),
        }
    }

    fn are_equal(&self, one: &State, other: &State) -> bool {
        let are_bodies = match (&one.body, &other.body) {
            (Body::File(one), Body::File(other)) => one.iter().eq(other.iter()),
            (Body::Directory(one), Body::Directory(other)) => {
                let names = |slot: &NameSlot| (slot.cookie, slot.ino, slot.kind(), slot.name(&self.region));
                one.after(0).map(names).eq(other.after(0).map(names))
            }
            (Body::Other, Body::Other) => true,
            _ => false,
        };
        let value = |(name, value): (_, &HeldValue)| (name, value.in_entry(&self.region));
        are_bodies && one.xattrs.iter().map(value).eq(other.xattrs.iter().map(value))
    }

    /// True if the copy of a packed chunk at `to` is the same as the chunk at `from`; both are device offsets.
    #[inline]
    pub(crate) fn is_copy(&self, from: u64, to: u64, bytes: u64) -> bool {
        let is_same = !self.may_compare() || self.region.to_vec(from, bytes) == self.region.to_vec(to, bytes);
        if !is_same {
            self.refuse_rewrite(format!("a packed chunk at device offset {from:#x}"));
        }
        is_same
    }

    /// True if a key of a block is still the one that was computed for it, as `is_weak` says.
    #[inline]
    pub(crate) fn has_weak(&self, block: BlockNumber, is_weak: impl FnMut(u32) -> bool) -> bool {
        let now = || self.chunks.keys().all(&self.region.read::<[u8; BLOCK_BYTES as usize]>(block.address()));
        let is_same = !self.may_compare() || now().into_iter().any(is_weak);
        if !is_same {
            self.refuse_rewrite(format!("the fingerprint of the block at device offset {:#x}", block.address()));
        }
        is_same
    }

    /// True if this mount compares, and reading cannot fail: with bad memory, a comparison would report errors that its
    /// operation would not.
    fn may_compare(&self) -> bool {
        self.compares_rewrites && self.region.frozen_pages().is_empty() && !self.region.is_lost()
    }

    /// Refuses a rewrite; what it would have changed is named.
    #[cold]
    fn refuse_rewrite(&self, what: String) -> Error {
        self.refusals.refuse_rewrite(format!("{what}: a rewrite was refused, because it has other content"))
    }
}
