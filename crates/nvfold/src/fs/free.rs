//! Freeing inodes. The slot goes first, so that nothing of the inode can be reached; then everything that only it
//! references. After a crash in between, reconcile frees what no name refers to.

use super::Core;
use crate::inode::extents::Dropped;
use crate::inode::{Body, Inode, State, table};
use crate::media::inode::{INODE_BYTES, InodeHead};
use crate::media::superblock::TABLE_GAPS;
use crate::space::BlockRun;

impl Core {
    /// Gives back the segments of the inode table without used slots, wherever they are. Not before reconcile is done.
    pub(crate) fn shrink_inode_table(&self) {
        // Without the feature, which needs a readable superblock, only those at the end are given back.
        self.table.shrink(&self.space, || self.require_feature(TABLE_GAPS).is_ok());
    }

    /// Frees the inode if it has no name and is not open.
    pub(crate) fn free_if_unused(&self, inode: &Inode, state: &mut State) {
        if state.attributes.nlink == 0 && inode.is_usable() && !inode.is_pinned() {
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
                if state.attributes.nlink == 0 && inode.is_usable() {
                    self.free_inode(&inode, &mut state);
                }
            }
        }
    }

    /// Frees an inode and everything that only it references. The slot goes first, so that nothing of it can be
    /// reached.
    pub(super) fn free_inode(&self, inode: &Inode, state: &mut State) {
        self.keep_freed(inode, state);
        let _: InodeHead = self.region.read(inode.slot);
        inode.set_freed();
        if !self.region.sound_or_forget(inode.slot, INODE_BYTES) {
            // The slot cannot be freed on the media, so everything that the inode references stays in use.
            return self.cache.remove(inode.ino);
        }
        table::free_slot(&self.region, inode.slot);
        let mut mapped = 0;
        if let Body::File(extents) = &state.body {
            mapped = extents.bytes();
            // Other files may reference parts of these chunks.
            if !extents.splits_only_between_blocks() || self.policies.follow_origins(None) {
                self.may_be_dead.add(mapped);
            }
            let mut dropped = Dropped::default();
            extents.iter().for_each(|(_, extent)| dropped.push(&extent));
            if self.is_walked(inode.ino) {
                self.chunks.with_recount(|recount| recount.uncount_all(dropped.chunks()));
            }
            self.chunks.fetch_entries(&dropped.blocks);
            self.release(&dropped, &[], 0);
        }
        self.account_mapped(inode.ino, mapped, 0);
        state.xattr_blocks().for_each(|start| self.free(BlockRun { start, count: 1 }));
        self.free_log(std::mem::take(&mut state.log.parts));
        state.body = Body::Other;
        state.clear_xattrs();
        self.cache.remove(inode.ino);
        self.table.free(inode.ino);
    }
}
