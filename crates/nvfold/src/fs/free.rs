//! Freeing inodes. The slot goes first, so that nothing of the inode can be reached; then everything that only it
//! references. After a crash in between, reconcile frees what no name refers to.

use super::Core;
use crate::inode::extents::Dropped;
use crate::inode::log::LogPart;
use crate::inode::{Body, Inode, State, table};
use crate::media::BlockNumber;
use crate::media::inode::{INODE_BYTES, InodeHead};
use crate::media::superblock::TABLE_GAPS;
use crate::space::BlockRun;
use smallvec::SmallVec;

impl Core {
    /// Gives back the segments of the inode table without used slots, wherever they are. Not before reconcile is done.
    pub(crate) fn shrink_inode_table(&self) {
        // Without the feature, which needs a readable superblock, only those at the end are given back.
        self.table.shrink(&self.space, || self.require_feature(TABLE_GAPS).is_ok());
    }

    /// Frees the inode if it has no name and is not open. A directory that still has names is a removed tree's: that
    /// work frees it.
    pub(crate) fn free_if_unused(&self, inode: &Inode, state: &mut State) {
        if state.attributes.nlink == 0 && inode.is_usable() && !inode.is_pinned() && !has_names(state) {
            self.free_inode(inode, state);
        }
    }

    /// Frees an inode that no name leads to and that nobody has opened. One that cannot be read stays.
    pub(crate) fn free_unlinked(&self, number: u64) {
        if let Ok(inode) = self.inode(number) {
            let mut state = inode.lock();
            state.attributes.nlink = 0;
            self.free_if_unused(&inode, &mut state);
        }
    }

    /// Unmount: frees inodes that are open and have no name.
    pub(crate) fn free_nameless(&self) {
        for inodes in self.cache.inodes() {
            for inode in inodes {
                let mut state = inode.lock();
                if state.attributes.nlink == 0 && inode.is_usable() && !has_names(&state) {
                    self.free_inode(&inode, &mut state);
                }
            }
        }
    }

    /// Frees an inode and everything that only it references. The slot goes first, so that nothing of it can be
    /// reached.
    pub(super) fn free_inode(&self, inode: &Inode, state: &mut State) {
        let mut dropped = Dropped::default();
        if let Some(freed) = self.take_apart(inode, state, &mut dropped) {
            table::free_slot(&self.region, inode.slot);
            self.free_parts([freed], dropped);
        }
    }

    /// Takes from an inode what it references: nobody can use it any more. Its slot is freed next, then what it
    /// referenced; its references go to `dropped`. Returns `None` if the slot cannot be freed on the media, so that
    /// everything stays in use.
    pub(super) fn take_apart(&self, inode: &Inode, state: &mut State, dropped: &mut Dropped) -> Option<FreedInode> {
        self.keep_freed(inode, state);
        let _: InodeHead = self.region.read(inode.slot);
        inode.set_freed();
        if !self.region.sound_or_forget(inode.slot, INODE_BYTES) {
            self.cache.remove(inode.ino);
            return None;
        }
        if let Body::File(extents) = &state.body {
            // Other files may reference parts of these chunks.
            if !extents.splits_only_between_blocks() || self.policies.follow_origins(None) {
                self.may_be_dead.add(extents.bytes());
            }
            extents.iter().for_each(|(_, extent)| dropped.push(&extent));
            if self.is_walked(inode.ino) {
                let chunks = || extents.iter().flat_map(|(_, extent)| extent.chunks());
                self.chunks.with_recount(|recount| recount.uncount_all(chunks()));
            }
        }
        let (ino, tree, mapped) = (inode.ino, state.attributes.tree, state.mapped_bytes());
        let (xattr_blocks, log) = (state.xattr_blocks().collect(), std::mem::take(&mut state.log.parts));
        state.body = Body::Other;
        state.clear_xattrs();
        Some(FreedInode { ino, tree, mapped, xattr_blocks, log })
    }

    /// Frees what these inodes referenced, and their numbers. Their slots are durably free.
    pub(super) fn free_parts(&self, freed: impl IntoIterator<Item = FreedInode>, mut dropped: Dropped) {
        self.split_postponed(&mut dropped, false).into_iter().for_each(|later| self.postpone(later));
        self.chunks.fetch_entries(&dropped.blocks);
        self.release(&dropped, &[], 0);
        for FreedInode { ino, tree, mapped, xattr_blocks, log } in freed {
            self.account_mapped(ino, tree, (mapped, 0), 0);
            self.uncount_inode(ino, tree);
            xattr_blocks.into_iter().for_each(|start| self.free(BlockRun { start, count: 1 }));
            self.free_log(log);
            self.cache.remove(ino);
            self.table.free(ino);
        }
    }
}

pub(super) fn has_names(state: &State) -> bool {
    matches!(&state.body, Body::Directory(directory) if !directory.is_empty())
}

/// What an inode had, apart from its references, whose slot is freed.
pub(super) struct FreedInode {
    ino: u64,
    tree: u16,
    mapped: u64,
    xattr_blocks: SmallVec<[BlockNumber; 0]>,
    log: Vec<LogPart>,
}
