//! Names: creating, linking, renaming and removing files.
//!
//! The directory decides what a new inode gets: its default ACL, if there is one, replaces the umask. A file that
//! loses its last name lives on while the kernel knows it.

use super::{Answer, Front};
use crate::mount::acl::{self, Acl};
use crate::mount::convert;
use nvfold::{Attr, FileKind, InodeNumber, NewInode, RenameMode};
use nvfold_fuse::{Caller, Entry, Errno};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// Flags of renameat2(2).
const NO_REPLACE: u32 = 1 << 0;
const EXCHANGE: u32 = 1 << 1;

/// The inode to make.
pub struct Wanted {
    pub kind: FileKind,
    pub mode: u32,
    pub umask: u32,
    pub rdev: u32,
}

impl Front {
    /// Makes an inode with the owner of the process, and with the mode that the umask or the directory's default ACL
    /// gives.
    pub fn make(&self, who: &Caller, parent: InodeNumber, name: &OsStr, wanted: &Wanted) -> Answer<Attr> {
        let Wanted { kind, mode, umask, rdev } = *wanted;
        let default = self.fs.get_xattr(parent, acl::DEFAULT).ok();
        let default = default.as_deref().and_then(Acl::decode);
        let (mode, access) = match &default {
            Some(default) => default.inherited(mode & 0o7777),
            None => (mode & 0o7777 & !umask, None),
        };
        let new = NewInode { kind, mode, uid: who.uid, gid: who.gid, rdev };
        let default = default.filter(|_| kind == FileKind::Directory);
        let acls = [(acl::ACCESS, access), (acl::DEFAULT, default)];
        let acls = acls.iter().filter_map(|(name, acl)| Some((*name, acl.as_ref()?.encode()))).collect::<Vec<_>>();
        let xattrs: Vec<(&[u8], &[u8])> = acls.iter().map(|(name, value)| (*name, &value[..])).collect();
        let made = self.with_room(|| match kind {
            FileKind::Directory => self.fs.mkdir_with(parent, name.as_bytes(), &new, &xattrs),
            _ => self.fs.create_with(parent, name.as_bytes(), &new, &xattrs),
        });
        self.counters.change();
        made.map_err(convert::errno)
    }

    /// Makes a symbolic link.
    pub fn make_symlink(&self, who: &Caller, parent: InodeNumber, name: &OsStr, target: &OsStr) -> Answer<Attr> {
        let new = NewInode { kind: FileKind::Symlink, mode: 0o777, uid: who.uid, gid: who.gid, rdev: 0 };
        let made = self.with_room(|| self.fs.symlink(parent, name.as_bytes(), target.as_bytes(), &new));
        self.counters.change();
        made.map_err(convert::errno)
    }

    /// Gives an inode another name.
    pub fn make_link(&self, ino: InodeNumber, parent: InodeNumber, name: &OsStr) -> Answer<Attr> {
        let linked = self.with_room(|| self.fs.link(ino, parent, name.as_bytes()));
        self.counters.change();
        linked.map_err(convert::errno)
    }

    /// Returns the reply for a name whose inode cannot be read. The kernel removes only names that it knows, so it
    /// must learn this one, but it may cache nothing; operations on the file itself give EIO. For a directory the
    /// reply is the error, so its name stays.
    pub fn tell_unreadable(&self, parent: InodeNumber, name: &OsStr, error: nvfold::Error) -> Answer<Entry> {
        match self.fs.entry(parent, name.as_bytes()) {
            Ok(entry) if entry.kind != FileKind::Directory => {
                self.lookups.count_lookup(entry.ino, parent);
                let attr = convert::unreadable(entry.ino, entry.kind);
                Ok(Entry { attr, generation: 0, valid: Duration::ZERO })
            }
            _ => Err(convert::errno(error)),
        }
    }

    /// Runs `remove`, which removes a name, and keeps the file alive while the kernel knows it.
    pub fn removing(
        &self,
        parent: InodeNumber,
        name: &OsStr,
        remove: impl FnOnce() -> nvfold::Result<()>,
    ) -> Answer<()> {
        let victim = self.fs.lookup(parent, name.as_bytes()).and_then(|attr| self.fs.open(attr.ino));
        remove().map_err(convert::errno)?;
        self.counters.change();
        if let Ok(victim) = victim {
            self.lookups.name_removed(victim);
        }
        Ok(())
    }

    /// Records the new directory of a file that was moved to this name.
    fn moved(&self, parent: InodeNumber, name: &OsStr) {
        if let Ok(attr) = self.fs.lookup(parent, name.as_bytes()) {
            self.lookups.moved(attr.ino, parent);
        }
    }

    /// Renames. A file that had the new name before loses that name.
    pub fn move_name(
        &self,
        (from, name): (InodeNumber, &OsStr),
        (to, new_name): (InodeNumber, &OsStr),
        flags: u32,
    ) -> Answer<()> {
        let mode = match flags {
            0 => RenameMode::Replace,
            NO_REPLACE => RenameMode::NoReplace,
            EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::EINVAL),
        };
        let rename = || self.with_room(|| self.fs.rename(from, name.as_bytes(), to, new_name.as_bytes(), mode));
        self.removing(to, new_name, rename)?;
        if from != to {
            self.moved(to, new_name);
            if mode == RenameMode::Exchange {
                self.moved(from, name);
            }
        }
        Ok(())
    }
}
