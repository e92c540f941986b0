//! Directories with all that is below them: clones, snapshots, removal, differences.

use super::{FileSystem, ROOM_BLOCKS};
use crate::error::{Error, Result};
use crate::trees::{CloneOptions, Cloned, Difference, Snapshot, SnapshotUsage, Trees};
use crate::words::{InodeNumber, Removed};
use std::ops::Range;
use std::sync::Arc;

impl FileSystem {
    /// Copies a directory with all that is below it to a new name in `parent`, as it is at one instant during this call,
    /// across all its files. No data is copied: all of it is shared until one side changes. Owners, times, extended
    /// attributes, holes, reserved space and hard links within the tree are kept ([`CloneOptions::caller`]). The copy is
    /// there whole or not at all, also after a crash. Writers go on meanwhile; one clone is made at a time.
    ///
    /// # Errors
    /// EEXIST, ENOENT, ENOTDIR; EINVAL into itself; EACCES or EPERM for what the caller may not copy; ENOSPC; ECANCELED;
    /// ENOMEM if too much changed while it was made; EMLINK if a chunk has too many references; EIO, EROFS.
    pub fn clone_tree(
        &self,
        source: InodeNumber,
        parent: InodeNumber,
        name: &[u8],
        options: &CloneOptions<'_>,
    ) -> Result<Cloned> {
        self.with_room(|trees| trees.clone_tree(source, parent, name, options))
    }

    /// Copies a tree, and tries again when work has made room for it.
    fn with_room(&self, copy: impl Fn(Trees<'_>) -> Result<Cloned>) -> Result<Cloned> {
        // References are counted, so the counts must be exact.
        self.mounted.reconcile()?;
        let mut room = 0;
        loop {
            match copy(self.mounted.trees()) {
                // It is not known how much the whole copy needs, so each attempt gets twice as much.
                Err(error @ Error::NoSpace { blocks_needed, .. }) => {
                    room = blocks_needed.max(2 * room).max(ROOM_BLOCKS);
                    if self.make_room_for(room).is_err() {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }

    /// Makes this many blocks free, if work can.
    fn make_room_for(&self, blocks: u64) -> Result<()> {
        self.change("clone a tree", || self.core().space.check_free("clone a tree", blocks))
    }

    /// Removes a directory with all that is below it, by one commit: it has left the name space when this returns, and
    /// after a crash it is there whole or not at all. [`FileSystem::remove_step`] frees it, and so does whoever needs the
    /// space. A file below that has a name elsewhere keeps it; one that is open lives on until it is closed. Until their
    /// turn comes, directories below can still be used by number; what is made in them goes too.
    ///
    /// # Errors
    /// ENOENT, EINVAL for `.` and `..`; ENOTDIR for a file, which `unlink` removes.
    pub fn remove_tree(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.change("remove a tree", || self.mounted.trees().remove(parent, name))
    }

    /// Does the same with the directory that has this number, wherever it is now. Returns the directory and the name that
    /// it had.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR; EBUSY for the root.
    pub fn remove_directory(&self, dir: InodeNumber) -> Result<(InodeNumber, Vec<u8>)> {
        self.change("remove a tree", || self.mounted.trees().remove_directory(dir))
    }

    /// Has `witness` called for each file and directory of a removed tree that loses a name, or is about to be freed. It
    /// may open them; no lock is held. So a front end that hands out numbers keeps what is in use.
    pub fn on_removed(&self, witness: impl Fn(&FileSystem, InodeNumber, Removed<'_>) + Send + Sync + 'static) {
        let mounted = Arc::downgrade(&self.mounted);
        self.mounted.trees().set_witness(Arc::new(move |ino, what| {
            if let Some(mounted) = mounted.upgrade() {
                witness(&FileSystem { mounted }, ino, what);
            }
        }));
    }

    /// Does one step of freeing removed trees, of at most about a millisecond, or of charging the inodes of a tree whose
    /// limits a crash left half set ([`FileSystem::change_limits`]); returns true when there is nothing to do.
    /// Front ends call it in a loop on their own thread; otherwise it runs when space is needed, and in `unmount`.
    ///
    /// # Errors
    /// EROFS; errors of the device.
    pub fn remove_step(&self) -> Result<bool> {
        Ok(self.mounted.trees().remove_step()? && self.charge_left()?)
    }

    /// Makes a snapshot of a directory, or of all the file system: a clone that nothing can change, not even root. It
    /// stands at `.nvfold/snapshots/NAME` in the root; listings leave `.nvfold` out. Owners stay as they are.
    ///
    /// # Errors
    /// EEXIST; EINVAL for a part of a snapshot; those of [`FileSystem::clone_tree`].
    pub fn create_snapshot(&self, name: &[u8], source: InodeNumber, options: &CloneOptions<'_>) -> Result<Cloned> {
        self.with_room(|trees| trees.create_snapshot(name, source, options))
    }

    /// Returns the snapshots, in the order in which they were made.
    ///
    /// # Errors
    /// EIO.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        self.mounted.trees().snapshots()
    }

    /// Returns true if a file or directory belongs to a snapshot, so that nothing of it can be changed.
    ///
    /// # Errors
    /// ENOENT, EIO.
    pub fn is_in_snapshot(&self, ino: InodeNumber) -> Result<bool> {
        Ok(self.mounted.trees().inode(ino.0)?.is_read_only)
    }

    /// Returns a snapshot.
    ///
    /// # Errors
    /// ENOENT, EIO.
    pub fn snapshot(&self, name: &[u8]) -> Result<Snapshot> {
        self.mounted.trees().snapshot(name)
    }

    /// Returns what a snapshot holds, as far as nothing changes meanwhile. It looks at all of its files.
    ///
    /// # Errors
    /// ENOENT, EIO.
    pub fn snapshot_usage(&self, snapshot: &Snapshot) -> Result<SnapshotUsage> {
        self.core().release_waiting();
        self.mounted.trees().snapshot_usage(snapshot.attr.ino)
    }

    /// Returns the bytes of blocks and packed chunks that only snapshots reference, as far as nothing changes meanwhile. It
    /// looks at all files.
    ///
    /// # Errors
    /// EIO.
    pub fn only_in_snapshots(&self) -> Result<u64> {
        self.core().release_waiting();
        self.mounted.trees().only_in_snapshots()
    }

    /// Deletes a snapshot, by one commit. [`FileSystem::remove_step`] frees what it held.
    ///
    /// # Errors
    /// ENOENT, EIO, EROFS.
    pub fn delete_snapshot(&self, name: &[u8]) -> Result<()> {
        self.change("delete a snapshot", || self.mounted.trees().delete_snapshot(name))
    }

    /// Makes a directory what a snapshot is: at a new name, or in place of a directory. Then the old one is replaced by one
    /// commit and freed as a removed tree; whoever has it open keeps it until he closes it.
    ///
    /// # Errors
    /// ENOENT without such a snapshot; ENOTDIR; EBUSY for the root; those of [`FileSystem::clone_tree`].
    pub fn restore_snapshot(
        &self,
        name: &[u8],
        parent: InodeNumber,
        target: &[u8],
        options: &CloneOptions<'_>,
    ) -> Result<Cloned> {
        let snapshot = self.snapshot(name)?;
        self.with_room(|trees| trees.restore_snapshot(snapshot.attr.ino, parent, target, options))
    }

    /// Returns the ranges of two files, from a byte offset on, in which their bytes may differ: neither shares these. At most
    /// `most` of them; the second part of the answer is where to go on, at least the size of the longer file at the end.
    /// Nothing is read.
    ///
    /// # Errors
    /// ENOENT, EIO.
    pub fn unshared_ranges(
        &self,
        (one, other): (InodeNumber, InodeNumber),
        from: u64,
        most: usize,
    ) -> Result<(Vec<Range<u64>>, u64)> {
        self.mounted.trees().unshared_ranges((one, other), from, most)
    }

    /// Returns true if two regular files have equal attributes and share all their bytes. Nothing is read: false also says
    /// that only reading them can tell. Times of access and of the change of the inode do not count.
    ///
    /// # Errors
    /// ENOENT, EIO.
    pub fn are_equal_unread(&self, one: InodeNumber, other: InodeNumber) -> Result<bool> {
        self.mounted.trees().are_equal_unread(one, other)
    }

    /// Calls `each` for every path at which two directories differ, in the order of names, until it returns false. What
    /// both share is not read. Below a name that only one of them has, nothing is listed.
    ///
    /// # Errors
    /// ENOTDIR, ENOENT; EIO if bytes that have to be compared cannot be read.
    pub fn diff_trees(
        &self,
        one: InodeNumber,
        other: InodeNumber,
        each: &mut dyn FnMut(&[u8], Difference) -> bool,
    ) -> Result<()> {
        self.mounted.trees().diff(one, other, each)
    }
}
