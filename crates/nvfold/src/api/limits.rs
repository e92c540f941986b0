//! Limits of trees.

use super::{FileSystem, change};
use crate::error::{Error, Result};
use crate::media::BLOCK_BYTES;
use crate::panics::Job;
use crate::words::{ExpiredTree, InodeNumber, LimitedTree, Limits, StatFs};

const DOING: &str = "change the limits of a tree";

impl FileSystem {
    /// Changes the limits of a directory with all that is below it, down to directories with limits of their own: `change`
    /// gets those that it has. All `None` removes them. If it had none before, or has none any more, this charges all
    /// inodes below in steps, while operations go on; after a crash in between, they are charged after the next mount.
    /// Limits may be below what is used already: then nothing can be added.
    ///
    /// # Errors
    /// ENOENT; ENOTDIR; EROFS for a snapshot; EINVAL for the directory of the snapshots, and if the root is to expire;
    /// ENOSPC, also if 65,535 directories have limits already; EIO.
    pub fn change_limits(&self, directory: InodeNumber, change: impl FnOnce(&mut Limits)) -> Result<()> {
        self.core().check_changeable(DOING)?;
        // Numbers of trees must be known, and what they use.
        self.mounted.reconcile()?;
        let trees = self.mounted.trees();
        let _alone = trees.begin_limits();
        self.charge_all()?;
        let before = trees.limits_of(directory)?;
        let mut limits = before;
        change(&mut limits);
        if limits == before {
            return Ok(());
        }
        self.change(DOING, || trees.set_limits(directory, &limits))?;
        self.charge_all()
    }

    /// Does all steps of charging. The caller has begun a change of limits.
    pub(super) fn charge_all(&self) -> Result<()> {
        while !change(&self.mounted, DOING, || self.mounted.trees().charge_step())? {}
        Ok(())
    }

    /// Charges what a crash, or an error, has left to be charged; true if that was nothing.
    pub(super) fn charge_left(&self) -> Result<bool> {
        let trees = self.mounted.trees();
        if self.core().is_reconciling() || !trees.is_charging() {
            return Ok(true);
        }
        let Some(_alone) = trees.try_begin_limits() else { return Ok(true) };
        let core = self.core();
        let step = || core.panics.contain(Job::Remove, None, || trees.charge_step());
        match core.change_in_background(DOING, step) {
            // Nothing may make room for it now.
            Err(Error::NoSpace { .. } | Error::Panicked { .. }) => Ok(true),
            is_done => is_done,
        }
    }

    /// Returns the limited tree that an inode is charged to, if it is charged to one.
    ///
    /// # Errors
    /// ENOENT, EIO.
    pub fn limited_tree(&self, of: InodeNumber) -> Result<Option<LimitedTree>> {
        self.count_trees()?;
        self.core().answer(self.mounted.trees().limited_tree(of))
    }

    /// Returns all limited trees, by the numbers of their directories.
    ///
    /// # Errors
    /// EIO.
    pub fn limited_trees(&self) -> Result<Vec<LimitedTree>> {
        self.count_trees()?;
        self.core().answer(Ok(self.mounted.trees().limited_trees()))
    }

    /// Returns the path of a directory from the root, without a slash before it: empty for the root. It looks at the names
    /// of all directories on the way.
    ///
    /// # Errors
    /// ENOENT, also for a directory of a removed tree; EIO.
    pub fn directory_path(&self, directory: InodeNumber) -> Result<Vec<u8>> {
        self.core().answer(self.mounted.trees().path_of(directory))
    }

    /// After a crash, only recovery knows what trees use.
    fn count_trees(&self) -> Result<()> {
        if self.core().is_reconciling() { self.mounted.reconcile() } else { Ok(()) }
    }

    /// Returns the bytes of blocks and packed chunks that only files below this directory reference: removing it frees
    /// them. It looks at all of its files, and any directory will do.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EIO.
    pub fn stored_alone_bytes(&self, directory: InodeNumber) -> Result<u64> {
        self.core().answer(self.mounted.trees().stored_alone_bytes(directory))
    }

    /// Removes the limited trees whose time has come, each by one commit, as [`FileSystem::remove_directory`] does.
    /// [`FileSystem::remove_step`] frees them. Front ends call it at mount and then each minute or so.
    ///
    /// # Errors
    /// EROFS; errors of the device. Another error leaves a tree where it is, and counts as skipped.
    pub fn remove_expired(&self) -> Result<Vec<ExpiredTree>> {
        self.core().check_changeable("remove expired trees")?;
        self.count_trees()?;
        self.change("remove expired trees", || self.mounted.trees().remove_expired())
    }

    /// Returns what [`FileSystem::statfs`] does, as an inode sees it: the limits of the tree that it is charged to, where
    /// they leave less than the device has.
    ///
    /// # Errors
    /// ENOENT, EIO.
    pub fn statfs_at(&self, ino: InodeNumber) -> Result<StatFs> {
        let of_device = self.statfs();
        let Some(LimitedTree { limits, logical_bytes, inodes, .. }) = self.limited_tree_of(ino)? else {
            return Ok(of_device);
        };
        let mut seen = of_device;
        if let Some(most) = limits.logical_bytes {
            let left = most.saturating_sub(logical_bytes) / BLOCK_BYTES;
            seen.blocks = seen.blocks.min(most / BLOCK_BYTES);
            seen.blocks_free = seen.blocks_free.min(left);
            seen.blocks_available = seen.blocks_available.min(left);
        }
        if let Some(most) = limits.inodes {
            seen.inodes = seen.inodes.min(most);
            seen.inodes_free = seen.inodes_free.min(most.saturating_sub(inodes));
        }
        Ok(seen)
    }

    /// The same as `limited_tree`, which waits for recovery only if the inode is charged to a tree.
    fn limited_tree_of(&self, ino: InodeNumber) -> Result<Option<LimitedTree>> {
        let inode = self.core().answer(self.core().inode(ino.0))?;
        let tree = inode.read()?.attributes.tree;
        if tree == 0 { Ok(None) } else { self.limited_tree(ino) }
    }
}
