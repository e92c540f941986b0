//! Names: looking up, creating, linking and removing them. `rename` renames, `birth` makes and frees inodes.
//!
//! Locks, in this order: the tree lock (every operation that involves two directories), directories, then other
//! inodes in the order of their numbers. An operation without the tree lock holds one directory at most.

use super::Core;
use super::birth::Birth;
use super::policy::INHERITED;
use super::xattr::check_changes;
use crate::error::{Error, Result, errno};
use crate::inode::directory::{Directory, NameSlot, shown};
use crate::inode::{Body, Inode, SYMLINK_TARGET, State};
use crate::media::inode::{AttributeLine, INODE_BYTES};
use crate::media::log_entry::{LogEntry, NAME_BYTES_MAX, TARGET_BYTES_MAX};
use crate::space::Purpose;
use crate::store::change::Change;
use crate::words::{Attr, DirEntry, FileKind, InodeNumber, NewInode, SNAPSHOTS, TimeNs, XattrChange};
use nvfold_sync::atomic::Ordering;
use pmem::Flight;
use smallvec::SmallVec;
use std::sync::Arc;

impl Core {
    /// Returns the attributes of the inode that a name in `parent` refers to, including `.` and `..`.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENAMETOOLONG; EIO for damage: the inode cannot be read, the name is there twice, or it leads to a
    /// directory that has its place elsewhere.
    pub(crate) fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Attr> {
        if name.len() > NAME_BYTES_MAX {
            check_name("lookup", name)?;
        }
        let parent = self.inode(parent.0)?;
        loop {
            let child = if name == b"." { parent.clone() } else { self.child(&parent, name)? };
            match child.read() {
                Ok(state) => return Ok(child.attr(&state)),
                // The directory was moved and its old parent removed in the meantime, so look up the new parent.
                Err(_) if name == b".." => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn entry(&self, parent: InodeNumber, name: &[u8]) -> Result<DirEntry> {
        let parent = self.inode(parent.0)?;
        let state = parent.read()?;
        let slot = self.find("look up a name", &state, name)?;
        Ok(DirEntry { ino: InodeNumber(slot.ino), kind: slot.kind(), cookie: slot.cookie, name: name.to_vec() })
    }

    /// Returns the inode that a name refers to. The directory stays locked until the inode is found, because the
    /// number alone may be reused.
    fn child(&self, parent: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        let state = parent.read()?;
        if name == b".." {
            directory("lookup", &state)?;
            return self.inode(parent.parent.load(Ordering::Relaxed));
        }
        let child = self.named_inode(&self.find("lookup", &state, name)?)?;
        check_place(&child, parent)?;
        Ok(child)
    }

    pub(crate) fn find(&self, doing: &'static str, parent: &State, name: &[u8]) -> Result<NameSlot> {
        let names = directory(doing, parent)?;
        match names.find(name, &self.region) {
            Some(slot) if names.is_repeated(&slot) => Err(is_there_twice(name, &slot)),
            Some(slot) => Ok(slot),
            None => Err(Error::NotFound { what: show(name) }),
        }
    }

    /// Returns the slot of a name, if it is there.
    ///
    /// # Errors
    /// EIO if it is there twice: which one was meant is for fsck to decide.
    #[inline]
    pub(super) fn find_in(&self, names: &Directory, name: &[u8]) -> Result<Option<NameSlot>> {
        match names.find(name, &self.region) {
            Some(slot) if names.is_repeated(&slot) => Err(is_there_twice(name, &slot)),
            found => Ok(found),
        }
    }

    /// Makes an inode of any kind with extended attributes, and gives it a name.
    pub(crate) fn create(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new: &NewInode,
        xattrs: &[(&[u8], &[u8])],
    ) -> Result<Attr> {
        check_name("create", name)?;
        let parent = self.inode(parent.0)?;
        parent.check_changeable("create")?;
        let mut parent_state = parent.write()?;
        let names = directory("create", &parent_state)?;
        if names.find(name, &self.region).is_some() {
            return Err(Error::Exists { what: show(name) });
        }
        let (cookie, time) = (names.next_cookie(), self.now());
        let ino = self.allocate_inode()?;
        let entry = LogEntry::Name { name: name.to_vec(), ino, kind: new.kind, cookie, time };
        let mut parent_attributes = parent_state.attributes;
        if is_reserved(&parent, name) {
            // Snapshots are never charged.
            parent_attributes.tree = 0;
        }
        let inherited = inherited_attributes(&parent_state, new.kind, xattrs);
        let mut xattrs: SmallVec<[(&[u8], &[u8]); 2]> = SmallVec::from_slice(xattrs);
        inherited.iter().for_each(|(name, value)| xattrs.push((name, value)));
        let birth =
            Birth { ino, parent: &parent, parent_attributes: &parent_attributes, xattrs: &xattrs, new, nlink: 1 };
        let inode = self.with_new_inode(&birth, |flight| {
            self.change(&parent, &mut parent_state, &[entry], None, Purpose::Log, flight)
        })?;
        Ok(inode.attr(&inode.peek()))
    }

    /// The same as `create`, with extended attributes from the caller, which are checked.
    pub(crate) fn create_with_xattrs(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new: &NewInode,
        xattrs: &[(&[u8], &[u8])],
    ) -> Result<Attr> {
        if !xattrs.is_empty() {
            let changes = xattrs.iter().map(|(name, value)| XattrChange { name, value: Some(value) });
            check_changes("create", new.kind, &changes.collect::<SmallVec<[XattrChange<'_>; 2]>>())?;
        }
        self.create(parent, name, new, xattrs)
    }

    /// Makes a symlink to `target`, 1 to 4095 bytes without NUL.
    ///
    /// # Errors
    /// ENOENT for an empty target, ENAMETOOLONG for a long one, EINVAL for NUL; those of `create`.
    pub(crate) fn symlink(&self, parent: InodeNumber, name: &[u8], target: &[u8], new: &NewInode) -> Result<Attr> {
        match target.len() {
            0 => Err(posix("symlink", "the target is empty", errno::ENOENT)),
            length if length > TARGET_BYTES_MAX => Err(posix("symlink", "the target is too long", errno::ENAMETOOLONG)),
            _ if target.contains(&0) => Err(posix("symlink", "the target has a NUL in it", errno::EINVAL)),
            _ => {
                let new = NewInode { kind: FileKind::Symlink, ..*new };
                self.create(parent, name, &new, &[(SYMLINK_TARGET, target)])
            }
        }
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    /// EEXIST, EPERM for a directory, EMLINK, ENOENT, ENOTDIR, ENOSPC, EXDEV into another limited tree.
    pub(crate) fn link(&self, ino: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Attr> {
        check_name("link", name)?;
        let (parent, child) = (self.inode(parent.0)?, self.inode(ino.0)?);
        [&parent, &child].iter().try_for_each(|inode| inode.check_changeable("link"))?;
        let mut parent_state = parent.write()?;
        let names = directory("link", &parent_state)?;
        if names.find(name, &self.region).is_some() {
            return Err(Error::Exists { what: show(name) });
        }
        if child.kind == FileKind::Directory {
            return Err(posix("link", "a directory has one name only", errno::EPERM));
        }
        let (cookie, time) = (names.next_cookie(), self.now());
        self.table.note_name_found(child.ino);
        let mut state = child.write()?;
        self.doomed.check(child.ino)?;
        let nlink = state.attributes.nlink.checked_add(1);
        let nlink = nlink.ok_or(posix("link", "it has as many links as can be counted", errno::EMLINK))?;
        let tree = parent_state.attributes.tree;
        self.check_same_tree("link", &child, &state, tree)?;
        let tree_before = state.attributes.tree;
        let entry = [LogEntry::Name { name: name.to_vec(), ino: child.ino, kind: child.kind, cookie, time }];
        let attributes = Some(AttributeLine { nlink, tree, ctime: time, ..state.attributes });
        self.change_all(
            &mut [
                Change {
                    inode: &parent,
                    state: &mut parent_state,
                    entries: &entry,
                    attributes: None,
                    purpose: Purpose::Log,
                },
                Change { inode: &child, state: &mut state, entries: &[], attributes, purpose: Purpose::Log },
            ],
            &[],
            Flight::new(),
        )?;
        self.move_charge(child.ino, &state, tree_before);
        Ok(child.attr(&state))
    }

    /// Removes a name of an inode that is not a directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EISDIR; EIO for damage.
    pub(crate) fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        check_name("unlink", name)?;
        let parent = self.inode(parent.0)?;
        let mut parent_state = parent.write()?;
        let slot = self.find("unlink", &parent_state, name)?;
        if slot.kind() == FileKind::Directory {
            return Err(posix("unlink", "it is a directory", errno::EISDIR));
        }
        self.remove_name(&parent, &mut parent_state, slot)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, EINVAL for `.`; EIO for damage.
    pub(crate) fn rmdir(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(posix("rmdir", "the name is .", errno::EINVAL)),
            b".." => return Err(posix("rmdir", "the name is ..", errno::ENOTEMPTY)),
            _ => check_name("rmdir", name)?,
        }
        let _tree = self.tree.lock();
        let parent = self.inode(parent.0)?;
        let mut parent_state = parent.write()?;
        let slot = self.find("rmdir", &parent_state, name)?;
        if slot.kind() != FileKind::Directory {
            return Err(posix("rmdir", "it is not a directory", errno::ENOTDIR));
        }
        self.remove_name(&parent, &mut parent_state, slot)
    }

    /// Removes a name. The inode is freed too if this was its last name and it is not open.
    fn remove_name(&self, parent: &Inode, parent_state: &mut State, slot: NameSlot) -> Result<()> {
        let time = self.now();
        parent.check_changeable("remove a name")?;
        check_no_self(&slot, parent)?;
        let entry = [LogEntry::Unname { cookie: slot.cookie, time }];
        let purpose = Purpose::Promised;
        let Some(child) = self.removable_inode(&slot)? else {
            return self.change(parent, parent_state, &entry, None, purpose, Flight::new());
        };
        child.check_changeable("remove a name")?;
        check_place(&child, parent)?;
        let mut state = child.write()?;
        check_empty("rmdir", &state)?;
        self.region.check_writable(child.slot, INODE_BYTES)?;
        if last_name(&child, &state) && !child.is_pinned() {
            // One commit suffices, because recovery frees an inode without a name.
            self.change(parent, parent_state, &entry, None, purpose, Flight::new())?;
            state.attributes.nlink = 0;
            self.free_inode(&child, &mut state);
            return Ok(());
        }
        let attributes = Some(without_a_name(&child, &state, time));
        self.change_all(
            &mut [
                Change { inode: parent, state: parent_state, entries: &entry, attributes: None, purpose },
                Change { inode: &child, state: &mut state, entries: &[], attributes, purpose },
            ],
            &[],
            Flight::new(),
        )?;
        self.free_if_unused(&child, &mut state);
        Ok(())
    }

    /// Calls `each` for the names of a directory after `cookie`, in order, until it returns false. Names that are damage
    /// are left out.
    ///
    /// # Errors
    /// ENOTDIR, ENOENT; EIO for damage.
    pub(crate) fn readdir(&self, dir: InodeNumber, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let inode = self.inode(dir.0)?;
        let state = inode.read()?;
        let names = match &state.body {
            // It was removed with all its names.
            Body::Directory(_) if state.attributes.nlink == 0 => return Ok(()),
            Body::Directory(names) => names,
            _ => return Err(posix("readdir", "it is not a directory", errno::ENOTDIR)),
        };
        for slot in names.listed_after(cookie) {
            let ino = InodeNumber(slot.ino);
            if !each(DirEntry { ino, kind: slot.kind(), cookie: slot.cookie, name: slot.name(&self.region) }) {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn damaged_names(&self, dir: InodeNumber) -> Result<usize> {
        let inode = self.inode(dir.0)?;
        let state = inode.read()?;
        directory("count damaged names", &state).map(Directory::damaged_names)
    }

    pub(crate) fn last_cookie(&self, dir: InodeNumber) -> Result<u64> {
        let inode = self.inode(dir.0)?;
        let state = inode.read()?;
        match &state.body {
            Body::Directory(names) => Ok(names.next_cookie() - 1),
            _ => Err(posix("readdir", "it is not a directory", errno::ENOTDIR)),
        }
    }

    /// Returns the directory of the snapshots, if it is there.
    pub(crate) fn snapshots_directory(&self) -> Result<Option<InodeNumber>> {
        let mut at = InodeNumber::ROOT;
        for name in SNAPSHOTS {
            at = match self.entry(at, name) {
                Ok(entry) => entry.ino,
                Err(Error::NotFound { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
        }
        Ok(Some(at))
    }

    /// Returns the inode that a name refers to. The caller holds the directory's lock, so the inode cannot have been
    /// removed: if it is missing or of another kind, it is damaged.
    ///
    /// # Errors
    /// EIO if it cannot be read.
    #[inline]
    pub(super) fn named_inode(&self, name: &NameSlot) -> Result<Arc<Inode>> {
        match self.inode(name.ino) {
            Ok(inode) if inode.kind == name.kind() => Ok(inode),
            found => Err(self.damaged_inode_error(name, found)),
        }
    }

    #[cold]
    #[inline(never)]
    fn damaged_inode_error(&self, name: &NameSlot, found: Result<Arc<Inode>>) -> Error {
        let at = self.table.slot(name.ino).unwrap_or(self.geometry.segment_table_offset);
        let what = |what| Error::Corrupt { what: format!("inode {}: {what}", name.ino), at };
        let error = match found {
            Ok(_) => what("it is of another kind than its name records"),
            Err(Error::NotFound { .. }) => what("a name leads to it, and its slot is damaged"),
            Err(error) => error,
        };
        if matches!(error, Error::Corrupt { .. } | Error::BadMemory { .. }) {
            self.damaged.add(name.ino, at);
        }
        error
    }

    /// The same for an operation that removes the name; `None` if the inode cannot be read. The inode stays in use,
    /// with everything that it references, until fsck has decided. A directory that cannot be read keeps its name,
    /// because its content would become unreachable.
    pub(super) fn removable_inode(&self, name: &NameSlot) -> Result<Option<Arc<Inode>>> {
        match self.named_inode(name) {
            Err(Error::Corrupt { .. } | Error::BadMemory { .. }) if name.kind() != FileKind::Directory => Ok(None),
            found => found.map(Some),
        }
    }
}

pub(super) fn posix(doing: &'static str, why: &'static str, errno: i32) -> Error {
    Error::Posix { doing, why, errno }
}

pub(super) fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Checks a name that an operation will create or remove.
///
/// # Errors
/// ENOENT if it is empty, EINVAL for `.`, `..`, `/` and NUL, ENAMETOOLONG for more than 255 bytes.
pub(crate) fn check_name(doing: &'static str, name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(posix(doing, "the name is empty", errno::ENOENT)),
        b"." | b".." => Err(posix(doing, "the name is . or ..", errno::EINVAL)),
        _ if name.len() > NAME_BYTES_MAX => Err(posix(doing, "the name is longer than 255 bytes", errno::ENAMETOOLONG)),
        _ if name.iter().any(|byte| matches!(byte, b'/' | 0)) => {
            Err(posix(doing, "the name has a / or NUL in it", errno::EINVAL))
        }
        _ => Ok(()),
    }
}

/// Returns an error for the directory of the snapshots, which stays where it is.
///
/// # Errors
/// EBUSY.
pub(super) fn check_not_reserved(doing: &'static str, parent: &Inode, name: &[u8]) -> Result<()> {
    match is_reserved(parent, name) {
        true => Err(posix(doing, "it holds the snapshots of the file system", errno::EBUSY)),
        false => Ok(()),
    }
}

/// True if this is the place of the directory that holds the snapshots.
#[inline]
pub(super) fn is_reserved(parent: &Inode, name: &[u8]) -> bool {
    parent.ino == InodeNumber::ROOT.0 && name == SNAPSHOTS[0]
}

/// Returns the names of a directory.
///
/// # Errors
/// ENOENT if the directory was removed, ENOTDIR if it is not a directory.
pub(crate) fn directory<'s>(doing: &'static str, state: &'s State) -> Result<&'s Directory> {
    match &state.body {
        _ if state.attributes.nlink == 0 => Err(posix(doing, "the directory was removed", errno::ENOENT)),
        Body::Directory(directory) => Ok(directory),
        _ => Err(posix(doing, "it is not a directory", errno::ENOTDIR)),
    }
}

/// Returns the attributes that a new inode inherits from its directory. Only files and directories inherit, and only
/// attributes that the caller does not give.
fn inherited_attributes(parent: &State, kind: FileKind, given: &[(&[u8], &[u8])]) -> Vec<(&'static [u8], Vec<u8>)> {
    if parent.xattrs.is_empty() || !matches!(kind, FileKind::Regular | FileKind::Directory) {
        return Vec::new();
    }
    let is_given = |of: &[u8]| given.iter().any(|(name, _)| *name == of);
    let names = INHERITED.into_iter().filter(|name| !is_given(name));
    names.filter_map(|name| Some((name, parent.short_attribute(name)?.to_vec()))).collect()
}

pub(super) fn check_empty(doing: &'static str, state: &State) -> Result<()> {
    match &state.body {
        Body::Directory(directory) if !directory.is_empty() => {
            Err(posix(doing, "the directory is not empty", errno::ENOTEMPTY))
        }
        _ => Ok(()),
    }
}

/// Returns an error if a name refers to its own directory, which a damaged directory may contain. The directory is
/// already locked.
pub(super) fn check_no_self(slot: &NameSlot, directory: &Inode) -> Result<()> {
    if slot.ino != directory.ino {
        return Ok(());
    }
    Err(Error::Corrupt {
        what: format!("directory {}: it holds a name that leads to itself", slot.ino),
        at: directory.slot,
    })
}

/// Returns an error if a name leads to a directory that has its place elsewhere, which only a damaged device has. So
/// no path from the root meets a directory twice, even if names form a loop.
#[inline]
pub(crate) fn check_place(child: &Inode, parent: &Inode) -> Result<()> {
    let is_elsewhere = || child.parent.load(Ordering::Relaxed) != parent.ino || child.ino == InodeNumber::ROOT.0;
    if child.kind == FileKind::Directory && is_elsewhere() { Err(leads_elsewhere(child, parent)) } else { Ok(()) }
}

#[cold]
fn leads_elsewhere(child: &Inode, parent: &Inode) -> Error {
    let what = format!("directory {}: a name in directory {} leads to it, and it is elsewhere", child.ino, parent.ino);
    Error::Corrupt { what, at: child.slot }
}

#[cold]
fn is_there_twice(name: &[u8], slot: &NameSlot) -> Error {
    Error::Corrupt { what: format!("the name `{}` is there twice", shown(name)), at: slot.position() }
}

fn last_name(inode: &Inode, state: &State) -> bool {
    inode.kind == FileKind::Directory || state.attributes.nlink <= 1
}

pub(super) fn without_a_name(inode: &Inode, state: &State, time: TimeNs) -> AttributeLine {
    let nlink = if last_name(inode, state) { 0 } else { state.attributes.nlink - 1 };
    AttributeLine { nlink, ctime: time, ..state.attributes }
}
