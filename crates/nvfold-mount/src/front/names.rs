//! Names: creating, linking, renaming and removing files.
//!
//! The directory decides what a new inode gets: its default ACL, if there is one, replaces the umask. A file that
//! loses its last name lives on while the kernel knows it.

use super::attributes::SET_GROUP_ID;
use super::{Answer, Front};
use crate::acl::{self, Acl};
use crate::convert;
use nvfold::{
    Attr, COMPRESSION_ATTRIBUTE, FileKind, InodeNumber, NewInode, POLICY_ATTRIBUTE, RenameMode, SetAttr, XattrChange,
};
use nvfold_fuse::{Caller, Entry, Errno};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// Flags of renameat2(2).
const NO_REPLACE: u32 = 1 << 0;
const EXCHANGE: u32 = 1 << 1;
const WHITEOUT: u32 = 1 << 2;

/// The attributes that a file without a name takes from its directory.
const INHERITED: [&[u8]; 2] = [POLICY_ATTRIBUTE, COMPRESSION_ATTRIBUTE];

/// The inode to make.
pub(crate) struct Wanted {
    pub kind: FileKind,
    pub mode: u32,
    pub umask: u32,
    pub rdev: u32,
}

impl Front {
    /// Makes an inode with the owner of the process, and with the mode that the umask or the directory's default ACL
    /// gives.
    pub(crate) fn make(&self, who: &Caller, parent: InodeNumber, name: &OsStr, wanted: &Wanted) -> Answer<Attr> {
        check_has_owner(who)?;
        let Wanted { kind, mode, umask, rdev } = *wanted;
        let default = self.default_acl(parent);
        let (mode, access) = inherited(default.as_ref(), mode, umask);
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

    /// Makes a file without a name in a directory, from which it inherits what one with a name does (O_TMPFILE).
    pub(crate) fn make_nameless(&self, who: &Caller, parent: InodeNumber, mode: u32, umask: u32) -> Answer<Attr> {
        check_has_owner(who)?;
        let directory = self.fs.getattr(parent).map_err(convert::errno)?;
        let (mode, access) = inherited(self.default_acl(parent).as_ref(), mode, umask);
        let gid = if directory.mode & SET_GROUP_ID != 0 { directory.gid } else { who.gid };
        let new = NewInode { kind: FileKind::Regular, mode, uid: who.uid, gid, rdev: 0 };
        let file = self.with_room(|| self.fs.tmpfile_in(parent, &new)).map_err(convert::errno)?;
        let of_parent = |name| Some((name, self.fs.get_xattr(parent, name).ok()?));
        let mut values: Vec<(&[u8], Vec<u8>)> = INHERITED.into_iter().filter_map(of_parent).collect();
        values.extend(access.map(|access| (acl::ACCESS, access.encode())));
        if !values.is_empty() {
            let changes = values.iter().map(|(name, value)| XattrChange { name, value: Some(value) });
            self.set_together(file.ino(), &SetAttr::default(), &changes.collect::<Vec<_>>())?;
        }
        self.counters.change();
        let attr = file.attr();
        self.lookups.count_lookup(attr.ino, parent);
        self.lookups.made_nameless(attr.ino, parent);
        self.lookups.name_removed(file);
        Ok(attr)
    }

    /// Returns the ACL that new files of a directory inherit.
    fn default_acl(&self, parent: InodeNumber) -> Option<Acl> {
        Acl::decode(&self.fs.get_xattr(parent, acl::DEFAULT).ok()?)
    }

    /// Makes a symbolic link.
    pub(crate) fn make_symlink(&self, who: &Caller, parent: InodeNumber, name: &OsStr, target: &OsStr) -> Answer<Attr> {
        check_has_owner(who)?;
        let new = NewInode { kind: FileKind::Symlink, mode: 0o777, uid: who.uid, gid: who.gid, rdev: 0 };
        let made = self.with_room(|| self.fs.symlink(parent, name.as_bytes(), target.as_bytes(), &new));
        self.counters.change();
        made.map_err(convert::errno)
    }

    /// Gives an inode another name.
    pub(crate) fn make_link(&self, ino: InodeNumber, parent: InodeNumber, name: &OsStr) -> Answer<Attr> {
        let linked = self.with_room(|| self.fs.link(ino, parent, name.as_bytes()));
        self.lookups.named(ino);
        self.counters.change();
        linked.map_err(convert::errno)
    }

    /// Returns the reply for a name whose inode cannot be read. The kernel removes only names that it knows, so it
    /// must learn this one, but it may cache nothing; operations on the file itself give EIO. For a directory the
    /// reply is the error, so its name stays.
    pub(crate) fn tell_unreadable(&self, parent: InodeNumber, name: &OsStr, error: nvfold::Error) -> Answer<Entry> {
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
    pub(crate) fn removing(
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

    /// Renames. A file that had the new name before loses that name. A whiteout belongs to the process. Any process may
    /// make one, and the default ACL of the directory does not apply to it.
    pub(crate) fn move_name(
        &self,
        who: &Caller,
        (from, name): (InodeNumber, &OsStr),
        (to, new_name): (InodeNumber, &OsStr),
        flags: u32,
    ) -> Answer<()> {
        let mode = rename_mode(who, flags)?;
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

/// Returns what the flags of renameat2(2) ask for. EINVAL for those that Linux refuses too: a whiteout cannot take the place
/// of a name that another file gets.
fn rename_mode(who: &Caller, flags: u32) -> Answer<RenameMode> {
    match flags {
        0 => Ok(RenameMode::Replace),
        NO_REPLACE => Ok(RenameMode::NoReplace),
        EXCHANGE => Ok(RenameMode::Exchange),
        _ if flags & !NO_REPLACE == WHITEOUT => {
            check_has_owner(who)?;
            Ok(RenameMode::Whiteout { uid: who.uid, gid: who.gid, replaces: flags & NO_REPLACE == 0 })
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the mode of a new inode and, unless the mode says all, its ACL. A default ACL takes the place of the umask.
fn inherited(default: Option<&Acl>, mode: u32, umask: u32) -> (u32, Option<Acl>) {
    match default {
        Some(default) => default.inherited(mode & 0o7777),
        None => (mode & 0o7777 & !umask, None),
    }
}

/// Refuses to make an inode for a user whom the mapping of an idmapped mount does not contain (EOVERFLOW).
fn check_has_owner(who: &Caller) -> Answer<()> {
    if who.is_known() { Ok(()) } else { Err(Errno::EOVERFLOW) }
}
