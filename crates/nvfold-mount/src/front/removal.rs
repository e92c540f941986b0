//! Removing trees: who may, and what the kernel has to learn.
//!
//! The directory leaves the name space in one commit, and the library frees what is below in the background. The kernel
//! drops the names that it knows at once, and then forgets most of the inodes below. What it knows still when its turn
//! comes (files that are open, working directories) is kept until it is forgotten, as after an unlink.

use super::{Answer, Front};
use crate::convert;
use crate::lookups::Lookups;
use crate::notices::Notices;
use crate::rights::{Rights, SEARCH, WRITE};
use nvfold::{Attr, FileKind, FileSystem, InodeNumber, Removed};
use nvfold_fuse::{Caller, Errno};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

const STICKY: u32 = 0o1000;
/// What is needed to make and remove names in a directory.
const WRITE_AND_SEARCH: u32 = WRITE | SEARCH;

/// Makes the library keep the inodes of removed trees that the kernel knows, and the kernel learn of lost names.
pub(super) fn keep_what_is_known(fs: &FileSystem, lookups: &Arc<Lookups>, notices: &Arc<Notices>) {
    let (lookups, notices) = (Arc::downgrade(lookups), Arc::downgrade(notices));
    fs.on_removed(move |fs, ino, what| {
        let Some(lookups) = lookups.upgrade().filter(|lookups| lookups.is_known(ino)) else { return };
        match (what, notices.upgrade()) {
            (Removed::Freed, _) => fs.open(ino).into_iter().for_each(|file| lookups.keep(file)),
            // The kernel would keep what was in use by this name, and the number of the other ones.
            (Removed::Name { directory, name }, Some(notices)) => {
                notices.has_lost_a_name(ino, directory, OsStr::from_bytes(name));
            }
            (Removed::Name { .. }, None) => {}
        }
    });
}

impl Front {
    /// Removes a directory with all that is below it.
    pub(crate) fn remove_tree(&self, who: &Caller, dir: InodeNumber) -> Answer<()> {
        self.check_not_read_only()?;
        let _turn = self.turns.take(who.uid).ok_or(Errno::EAGAIN)?;
        if who.uid != 0 {
            self.check_may_remove(who, dir)?;
        }
        let (parent, name) = self.fs.remove_directory(dir).map_err(convert::errno)?;
        self.counters.change();
        // Whoever asked may use the name again at once, so the kernel must know.
        self.notices.has_other_attributes(parent);
        self.notices.drop_name_now(parent, OsStr::from_bytes(&name));
        Ok(())
    }

    /// Allows what `rm -r` of this user could do: he may remove the name, and each directory below that is not empty is
    /// his own, or he may write to it and search it.
    pub(super) fn check_may_remove(&self, who: &Caller, dir: InodeNumber) -> Answer<()> {
        let attr = |ino| self.fs.getattr(ino).map_err(convert::errno);
        let parent = attr(self.fs.parent(dir).map_err(convert::errno)?)?;
        let top = attr(dir)?;
        let rights = Rights::of(who, who.uid);
        if !self.is_allowed(&rights, parent.ino, WRITE_AND_SEARCH) {
            return Err(Errno::EACCES);
        }
        if !may_take(who, &parent, &top) {
            return Err(Errno::EPERM);
        }
        let mut directories = vec![dir];
        while let Some(dir) = directories.pop() {
            let directory = attr(dir)?;
            let (mut is_empty, mut is_his) = (true, true);
            let is_sticky = directory.mode & STICKY != 0 && directory.uid != who.uid;
            let mut look = |entry: nvfold::DirEntry| {
                is_empty = false;
                if entry.kind == FileKind::Directory {
                    directories.push(entry.ino);
                }
                is_his &= !is_sticky || self.fs.getattr(entry.ino).is_ok_and(|entry| entry.uid == who.uid);
                is_his
            };
            self.fs.readdir(dir, 0, &mut look).map_err(convert::errno)?;
            let may_empty = directory.uid == who.uid || self.is_allowed(&rights, dir, WRITE_AND_SEARCH);
            if !is_empty && !may_empty {
                return Err(Errno::EACCES);
            }
            if !is_his {
                return Err(Errno::EPERM);
            }
        }
        Ok(())
    }
}

/// Returns true if the sticky bit of a directory does not keep a user from removing a name of an inode.
fn may_take(who: &Caller, parent: &Attr, child: &Attr) -> bool {
    parent.mode & STICKY == 0 || [parent.uid, child.uid].contains(&who.uid)
}
