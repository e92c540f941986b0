//! What keeps snapshots as they are on a mount.
//!
//! The problem: the library refuses every change of a snapshot, but the kernel takes some on its own. It opens files without
//! a request, and accepts written data into its cache.
//!
//! The idea: a mount of a device with snapshots lets the kernel ask before it opens a file, and refuses to open one for
//! writing. A mount that had none when it began has told the kernel already that it need not ask. There, what is written
//! to a file of a snapshot made since is refused when the kernel hands it on, and dropped from its cache.
//!
//! The two directories above the snapshots belong to the mount: no name in them is made, moved or removed otherwise.

use super::{Answer, Front};
use crate::convert;
use nvfold::{FileSystem, InodeNumber, SNAPSHOTS};
use nvfold_fuse::{Errno, Operation};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The inode numbers of `.nvfold` and `.nvfold/snapshots`, which never change; 0 while there are none.
pub(super) struct SnapshotPlaces([AtomicU64; 2]);

impl SnapshotPlaces {
    pub(super) fn of(fs: &FileSystem) -> SnapshotPlaces {
        let places = SnapshotPlaces([AtomicU64::new(0), AtomicU64::new(0)]);
        places.look(fs);
        places
    }

    /// Looks for directories that were made meanwhile. Returns the one that holds the snapshots.
    pub(super) fn look(&self, fs: &FileSystem) -> Option<InodeNumber> {
        let mut at = InodeNumber::ROOT;
        for (place, name) in self.0.iter().zip(SNAPSHOTS) {
            at = fs.entry(at, name).ok()?.ino;
            place.store(at.0, Ordering::Relaxed);
        }
        Some(at)
    }

    /// Returns true if there is a directory of snapshots.
    pub(super) fn are_known(&self) -> bool {
        self.0[1].load(Ordering::Relaxed) != 0
    }

    fn contain(&self, ino: u64) -> bool {
        self.0.iter().any(|place| place.load(Ordering::Relaxed) == ino)
    }
}

impl Front {
    /// Refuses requests that would change the directories above the snapshots (EROFS), a name of the first one (EPERM), or
    /// make a file without a name in a snapshot.
    pub(super) fn check_place(&self, operation: &Operation<'_>) -> Answer<()> {
        match operation {
            Operation::MkNod { parent, name, .. }
            | Operation::MkDir { parent, name, .. }
            | Operation::SymLink { parent, name, .. }
            | Operation::Link { parent, name, .. }
            | Operation::Unlink { parent, name }
            | Operation::RmDir { parent, name }
            | Operation::Create { parent, name, .. } => self.check_name_place(*parent, name),
            Operation::Rename { parent, name, new_parent, new_name, .. } => {
                self.check_name_place(*parent, name)?;
                self.check_name_place(*new_parent, new_name)
            }
            Operation::TmpFile { parent, .. } => {
                self.check_inode_place(*parent)?;
                self.check_not_in_snapshot(InodeNumber(*parent))
            }
            Operation::SetAttr { ino, .. } | Operation::SetXattr { ino, .. } | Operation::RemoveXattr { ino, .. } => {
                self.check_inode_place(*ino)
            }
            _ => Ok(()),
        }
    }

    /// Refuses to make, move or remove a name of what holds the snapshots.
    pub(super) fn check_name_place(&self, parent: u64, name: &OsStr) -> Answer<()> {
        if parent == InodeNumber::ROOT.0 && name.as_bytes() == SNAPSHOTS[0] {
            return Err(Errno::EPERM);
        }
        self.check_inode_place(parent)
    }

    fn check_inode_place(&self, ino: u64) -> Answer<()> {
        if self.snapshots.contain(ino) { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Returns EROFS for a file or directory of a snapshot.
    pub(super) fn check_not_in_snapshot(&self, ino: InodeNumber) -> Answer<()> {
        if self.fs.is_in_snapshot(ino).map_err(convert::errno)? { Err(Errno::EROFS) } else { Ok(()) }
    }
}
