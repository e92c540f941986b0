//! Removing a tree: what each step of the work does to names and inodes. `trees` decides which step comes next.
//!
//! The problem: a tree has any number of entries, and a removal of each by a commit of its own costs what `rm -r` costs.
//!
//! The idea: one commit takes the top out of the name space and says that its link count is 0. That is enough for
//! recovery: a directory without a name and with link count 0 is the top of a tree that is to be freed, with all that it
//! names. So the names below need no commits; a directory loses all of them when its slot is freed.
//!
//! ```text
//! unname_tree        the top loses its name; link count 0                     one commit
//! look_at_names      names of a top: a file with other names loses this one   one commit each
//!                    a file without is doomed: it can get no name any more    in DRAM
//!                    a directory is a top from now on: link count 0           two fences for all
//! end_directory      the top's slot is freed; the doomed files have no names  one fence
//! free_doomed        doomed files are freed; an open one when it is closed    one fence for all
//! ```
//!
//! Each step holds the lock of one top, or none. A crash between any two leaves tops, and files without a name.

use super::Core;
use super::free::has_names;
use super::names::{check_name, check_no_self, check_not_reserved, check_place, directory, posix};
use crate::error::{Error, Result, errno};
use crate::inode::directory::{Directory, NameSlot};
use crate::inode::extents::Dropped;
use crate::inode::{Body, Inode, State, table};
use crate::media::inode::{AttributeLine, INODE_BYTES, InodeHead};
use crate::media::log_entry::LogEntry;
use crate::media::superblock::TREES;
use crate::space::Purpose;
use crate::store::change::Change;
use crate::words::{FileId, FileKind, InodeNumber, TimeNs};
use nvfold_sync::atomic::Ordering;
use pmem::Flight;
use smallvec::SmallVec;
use std::sync::Arc;

/// The number of names, or of files, that one step works on: well below a millisecond of work.
pub(crate) const TREE_STEP: usize = 128;

const DOING: &str = "remove a tree";

/// What a look at the names of a top has found.
#[derive(Default)]
pub(crate) struct Below {
    /// Directories, which are tops from now on.
    pub(crate) tops: Vec<FileId>,
    /// The names, and the inodes that they lead to, if somebody wants to know.
    pub(crate) names: Option<Vec<(u64, Vec<u8>)>>,
}

impl Core {
    /// Takes a directory out of the name space, with all that is below it. Returns the top of the tree, which is to be
    /// freed; `None` if it was empty and is freed already.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR for a file, EINVAL for `.` and `..`; EIO for damage.
    pub(crate) fn unname_tree(&self, parent: InodeNumber, name: &[u8]) -> Result<Option<FileId>> {
        check_name(DOING, name)?;
        let _tree = self.tree.lock();
        let parent = self.inode(parent.0)?;
        parent.check_changeable(DOING)?;
        check_not_reserved(DOING, &parent, name)?;
        let mut parent_state = parent.write()?;
        let slot = self.find(DOING, &parent_state, name)?;
        self.unname_slot(&parent, &mut parent_state, slot)
    }

    /// Does the same with the directory that has this number. Returns the directory and the name that it had, too.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EBUSY for the root; EIO for damage.
    pub(crate) fn unname_directory(&self, dir: InodeNumber) -> Result<(Option<FileId>, InodeNumber, Vec<u8>)> {
        let _tree = self.tree.lock();
        let top = self.inode(dir.0)?;
        directory(DOING, &*top.read()?)?;
        if dir == InodeNumber::ROOT {
            return Err(posix(DOING, "the root stays", errno::EBUSY));
        }
        top.check_changeable(DOING)?;
        let parent = self.inode(top.parent.load(Ordering::Relaxed))?;
        let mut parent_state = parent.write()?;
        let names = directory(DOING, &parent_state)?;
        let slot = names.listed_after(0).find(|slot| slot.ino == dir.0).copied();
        let slot = slot.ok_or_else(|| Error::NotFound { what: format!("a name of inode {}", dir.0) })?;
        let name = slot.name(&self.region);
        check_not_reserved(DOING, &parent, &name)?;
        let top = self.unname_slot(&parent, &mut parent_state, slot)?;
        Ok((top, InodeNumber(parent.ino), name))
    }

    /// The caller holds the tree lock.
    fn unname_slot(&self, parent: &Inode, parent_state: &mut State, slot: NameSlot) -> Result<Option<FileId>> {
        if slot.kind() != FileKind::Directory {
            return Err(posix(DOING, "it is not a directory: unlink removes it", errno::ENOTDIR));
        }
        check_no_self(&slot, parent)?;
        let top = self.named_inode(&slot)?;
        check_place(&top, parent)?;
        let mut state = top.write()?;
        let is_tree = has_names(&state);
        if is_tree {
            self.require_feature(TREES)?;
        }
        self.table.note_name_found(top.ino);
        let time = self.now();
        let entry = [LogEntry::Unname { cookie: slot.cookie, time }];
        let (attributes, purpose) = (AttributeLine { nlink: 0, ctime: time, ..state.attributes }, Purpose::Promised);
        self.change_all(
            &mut [
                Change { inode: parent, state: parent_state, entries: &entry, attributes: None, purpose },
                Change { inode: &top, state: &mut state, entries: &[], attributes: Some(attributes), purpose },
            ],
            &[],
            Flight::new(),
        )?;
        self.free_if_unused(&top, &mut state);
        Ok(is_tree.then(|| top.file_id()))
    }

    /// Recovery: makes a directory without a name the top of a tree that is freed.
    pub(crate) fn make_top(&self, inode: &Inode) -> Result<FileId> {
        self.set_nlink(inode, &mut *inode.write()?, 0)?;
        self.table.note_name_found(inode.ino);
        Ok(inode.file_id())
    }

    /// Looks at the names of a top after `cookie`, some at a time. Returns the cookie to go on after, or `None` if those
    /// were the last; adds what they lead to to `below`.
    ///
    /// # Errors
    /// EIO if a directory cannot be read: the top keeps its names. ENOSPC.
    pub(crate) fn look_at_names(&self, top: &Inode, cookie: u64, below: &mut Below) -> Result<Option<u64>> {
        let _tree = self.tree.lock();
        let mut state = top.write()?;
        let Body::Directory(names) = &state.body else { return Ok(None) };
        let names: SmallVec<[NameSlot; TREE_STEP]> = names.after(cookie).take(TREE_STEP).copied().collect();
        let mut directories: SmallVec<[Arc<Inode>; 8]> = SmallVec::new();
        for name in &names {
            check_no_self(name, top)?;
            // What cannot be read stays in use until fsck has decided.
            let Some(child) = self.removable_inode(name)? else { continue };
            if let Some(names) = &mut below.names {
                names.push((child.ino, name.name(&self.region)));
            }
            match child.kind {
                FileKind::Directory => {
                    check_place(&child, top)?;
                    directories.push(child);
                }
                _ => self.doom(top, &mut state, name, &child)?,
            }
        }
        self.make_tops(&directories, state.attributes.ctime)?;
        below.tops.extend(directories.iter().map(|directory| directory.file_id()));
        Ok(names.last().map(|last| last.cookie).filter(|_| names.len() == TREE_STEP))
    }

    /// Dooms a file; if it has other names, removes this one instead.
    fn doom(&self, top: &Inode, state: &mut State, name: &NameSlot, child: &Inode) -> Result<()> {
        // A file that a panic has made unusable stays in use.
        let Ok(mut child_state) = child.write() else { return Ok(()) };
        self.table.note_name_found(child.ino);
        if child_state.attributes.nlink <= 1 {
            self.doomed.add(child.ino);
            return Ok(());
        }
        // The name was lost when the tree was removed, also if recovery finds that.
        let (time, purpose) = (state.attributes.ctime, Purpose::Promised);
        let entry = [LogEntry::Unname { cookie: name.cookie, time }];
        let nlink = child_state.attributes.nlink - 1;
        let attributes = Some(AttributeLine { nlink, ctime: time, ..child_state.attributes });
        self.change_all(
            &mut [
                Change { inode: top, state, entries: &entry, attributes: None, purpose },
                Change { inode: child, state: &mut child_state, entries: &[], attributes, purpose },
            ],
            &[],
            Flight::new(),
        )
    }

    /// Sets the link counts of these directories to 0, as of the time of the removal. The caller holds the tree lock.
    fn make_tops(&self, directories: &[Arc<Inode>], ctime: TimeNs) -> Result<()> {
        let mut states = Vec::with_capacity(directories.len());
        for directory in directories {
            states.push((directory, directory.write()?));
        }
        let mut changes = Vec::with_capacity(states.len());
        for (directory, state) in &mut states {
            self.table.note_name_found(directory.ino);
            if state.attributes.nlink != 0 {
                let attributes = AttributeLine { nlink: 0, ctime, ..state.attributes };
                changes.push((&***directory, &mut **state, attributes));
            }
        }
        if changes.is_empty() { Ok(()) } else { self.change_each(&mut changes, Purpose::Promised) }
    }

    /// Frees a top whose names were all looked at. One that is open loses its names, and is freed when it is closed.
    ///
    /// # Errors
    /// ENOSPC if an open one has no room for a new log.
    pub(crate) fn end_directory(&self, top: &Inode) -> Result<()> {
        let mut state = top.lock();
        if !top.is_usable() {
            return Ok(());
        }
        let _: InodeHead = self.region.read(top.slot);
        self.region.check_writable(top.slot, INODE_BYTES)?;
        if !top.is_pinned() {
            self.free_inode(top, &mut state);
            return Ok(());
        }
        let names = std::mem::replace(&mut state.body, Body::Directory(Directory::default()));
        self.compact(top, &mut state).inspect_err(|_| state.body = names)
    }

    /// Frees some doomed files, which have no names any more.
    pub(crate) fn free_doomed(&self, doomed: &[u64]) {
        let (mut freed, mut dropped) = (Vec::new(), Dropped::default());
        let mut slots: SmallVec<[u64; TREE_STEP]> = SmallVec::new();
        for ino in doomed {
            // One that cannot be read stays in use until fsck has decided.
            let Ok(inode) = self.inode(*ino) else { continue };
            let mut state = inode.lock();
            if !inode.is_usable() {
                continue;
            }
            if inode.is_pinned() {
                // It is freed when it is closed; recovery frees it whatever its link count is.
                if self.set_nlink(&inode, &mut state, 0).is_err() {
                    state.attributes.nlink = 0;
                }
                continue;
            }
            state.attributes.nlink = 0;
            if let Some(parts) = self.take_apart(&inode, &mut state, &mut dropped) {
                freed.push(parts);
                slots.push(inode.slot);
            }
        }
        table::free_slots(&self.region, &slots);
        self.free_parts(freed, dropped);
        self.doomed.remove(doomed);
    }
}
