//! Renaming: moves a name, replaces another one, or exchanges two, in one commit of up to four inodes.
//!
//! A whiteout is a new inode, so it is not one of the four: it is written before, and the commit that moves the name
//! makes it reachable by the old name. A crash leaves both or neither.

use super::Core;
use super::birth::Birth;
use super::names::without_a_name;
use super::names::{check_empty, check_name, check_no_self, check_not_reserved, check_place, directory, posix, show};
use crate::error::{Error, Result, errno};
use crate::inode::directory::{Directory, NameSlot};
use crate::inode::{Inode, State};
use crate::media::inode::{AttributeLine, PARENT_WORD};
use crate::media::journal::WordStore;
use crate::media::log_entry::LogEntry;
use crate::space::Purpose;
use crate::store::change::Change;
use crate::words::{FileKind, InodeNumber, NewInode, RenameMode, TimeNs};
use nvfold_sync::atomic::Ordering;
use pmem::Flight;
use std::sync::Arc;

/// A rename that is under way.
struct Move<'n> {
    source: NameSlot,
    /// The entry that already has the new name.
    target: Option<NameSlot>,
    /// True if the target gets the old name instead of being removed.
    exchanges: bool,
    name: &'n [u8],
    new_name: &'n [u8],
}

/// The whiteout that a rename leaves at the old name.
struct Whiteout {
    ino: u64,
    new: NewInode,
}

impl Core {
    /// Moves a name to another directory or name, and replaces or exchanges what has the new name, as `mode` says.
    ///
    /// # Errors
    /// ENOENT, EEXIST, ENOTDIR, EISDIR, ENOTEMPTY, EBUSY for `.` and `..`, EINVAL for a move of a directory into
    /// itself, EXDEV into another limited tree, ENOSPC.
    pub(crate) fn rename(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new_parent: InodeNumber,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        for name in [name, new_name] {
            if matches!(name, b"." | b"..") {
                return Err(posix("rename", "the name is . or ..", errno::EBUSY));
            }
            check_name("rename", name)?;
        }
        let _tree = self.tree.lock();
        let (from, to) = (self.inode(parent.0)?, self.inode(new_parent.0)?);
        check_not_reserved("rename", &from, name)?;
        check_not_reserved("rename", &to, new_name)?;
        let mut from_state = from.write()?;
        let mut to_state = (from.ino != to.ino).then(|| to.write()).transpose()?;
        let source = self.find("rename", &from_state, name)?;
        let to_names = directory("rename", to_state.as_deref().unwrap_or(&from_state))?;
        let target = self.find_in(to_names, new_name)?;
        let moving = Move { source, target, exchanges: mode == RenameMode::Exchange, name, new_name };
        if !self.may_move(&moving, &from, &to, mode)? {
            return Ok(());
        }
        let moved = self.named_inode(&source)?;
        let other = match &target {
            Some(target) if moving.exchanges => Some(self.named_inode(target)?),
            Some(target) => self.removable_inode(target)?,
            None => None,
        };
        check_place(&moved, &from)?;
        other.as_ref().map_or(Ok(()), |other| check_place(other, &to))?;
        let mut all = [&from, &to, &moved].into_iter().chain(&other);
        all.try_for_each(|inode| inode.check_changeable("rename"))?;
        std::iter::once(&moved).chain(&other).for_each(|inode| self.table.note_name_found(inode.ino));
        // Lock the children in the order of their numbers. A directory that is replaced cannot be one of the two
        // parents.
        let moved_first = other.as_ref().is_none_or(|other| moved.ino < other.ino);
        let early = moved_first.then(|| moved.write()).transpose()?;
        let mut other_state = other.as_ref().map(|other| other.write()).transpose()?;
        let mut moved_state = early.map_or_else(|| moved.write(), Ok)?;
        if let Some(state) = other_state.as_ref().filter(|_| !moving.exchanges) {
            check_empty("rename", state)?;
        }

        let trees = (from_state.attributes.tree, to_state.as_ref().map(|to| to.attributes.tree));
        let moved_tree = self.tree_after("rename", &moved, &moved_state, trees.1)?;
        let other_tree = match (&other, other_state.as_deref()) {
            (Some(other), Some(state)) if moving.exchanges => {
                self.tree_after("rename", other, state, trees.1.map(|_| trees.0))?
            }
            _ => 0,
        };

        let whiteout = self.number_whiteout(mode)?;
        let time = self.now();
        let entries = entries_of(&moving, whiteout.as_ref(), time, &from_state, to_state.as_deref());
        let (from_entries, to_entries) =
            entries.inspect_err(|_| whiteout.iter().for_each(|it| self.table.free(it.ino)))?;
        let mut parents = Vec::new();
        if from.ino != to.ino {
            let exchanged = other.as_ref().filter(|_| moving.exchanges);
            let both = std::iter::once((&moved, to.ino)).chain(exchanged.map(|other| (other, from.ino)));
            parents.extend(both.filter(|(inode, _)| inode.kind == FileKind::Directory));
        }
        let word =
            |(inode, parent): &(&Arc<Inode>, u64)| WordStore { offset: inode.slot + PARENT_WORD, value: *parent };
        let words: Vec<WordStore> = parents.iter().map(word).collect();
        let before = (moved_state.attributes.tree, other_state.as_ref().map(|other| other.attributes.tree));
        let moved_attributes = Some(AttributeLine { ctime: time, tree: moved_tree, ..moved_state.attributes });
        let from_attributes = from_state.attributes;
        let purpose = if whiteout.is_some() { Purpose::Log } else { Purpose::Promised };
        let mut changes = vec![
            Change { inode: &from, state: &mut from_state, entries: &from_entries, attributes: None, purpose },
            Change { inode: &moved, state: &mut moved_state, entries: &[], attributes: moved_attributes, purpose },
        ];
        if let Some(state) = to_state.as_deref_mut() {
            changes.push(Change { inode: &to, state, entries: &to_entries, attributes: None, purpose });
        }
        if let (Some(other), Some(state)) = (&other, other_state.as_deref_mut()) {
            let attributes = match moving.exchanges {
                true => AttributeLine { ctime: time, tree: other_tree, ..state.attributes },
                false => without_a_name(other, state, time),
            };
            changes.push(Change { inode: other, state, entries: &[], attributes: Some(attributes), purpose });
        }
        let mut commit = |flight| self.change_all(&mut changes, &words, flight);
        match &whiteout {
            Some(Whiteout { ino, new }) => {
                let (parent, parent_attributes) = (&from, &from_attributes);
                let birth = Birth { ino: *ino, parent, parent_attributes, xattrs: &[], new, nlink: 1 };
                self.with_new_inode(&birth, commit).map(drop)?;
            }
            None => commit(Flight::new())?,
        }
        parents.iter().for_each(|(inode, parent)| inode.parent.store(*parent, Ordering::Relaxed));
        self.move_charge(moved.ino, &moved_state, before.0);
        if let (Some(other), Some(state), Some(before)) = (&other, other_state.as_deref(), before.1) {
            self.move_charge(other.ino, state, before);
        }
        if let (Some(other), Some(state)) = (&other, other_state.as_deref_mut()) {
            self.free_if_unused(other, state);
        }
        Ok(())
    }

    /// Finds an inode number for the whiteout, if `mode` asks for one.
    fn number_whiteout(&self, mode: RenameMode) -> Result<Option<Whiteout>> {
        let RenameMode::Whiteout { uid, gid, .. } = mode else { return Ok(None) };
        let new = NewInode { kind: FileKind::CharDevice, mode: 0, uid, gid, rdev: 0 };
        Ok(Some(Whiteout { ino: self.allocate_inode()?, new }))
    }

    /// Returns true if the rename changes anything, and an error if it is not allowed.
    fn may_move(&self, moving: &Move<'_>, from: &Inode, to: &Inode, mode: RenameMode) -> Result<bool> {
        let Move { source, target, .. } = moving;
        match (mode, target) {
            (_, Some(_)) if mode.refuses_target() => return Err(Error::Exists { what: show(moving.new_name) }),
            (RenameMode::Exchange, None) => return Err(Error::NotFound { what: show(moving.new_name) }),
            (_, Some(target)) if target.ino == source.ino => return Ok(false),
            _ => {}
        }
        self.check_no_loop(source, to)?;
        let replaced = target.as_ref().filter(|_| !moving.exchanges);
        if let Some(target) = target.as_ref().filter(|_| moving.exchanges) {
            self.check_no_loop(target, from)?;
        }
        check_kinds(source, replaced)?;
        if replaced.is_some_and(|target| target.ino == from.ino) {
            return Err(posix("rename", "the directory is not empty", errno::ENOTEMPTY));
        }
        for slot in std::iter::once(source).chain(target) {
            check_no_self(slot, from)?;
            check_no_self(slot, to)?;
        }
        Ok(true)
    }

    /// Returns EINVAL if a directory would move below itself.
    fn check_no_loop(&self, source: &NameSlot, new_parent: &Inode) -> Result<()> {
        if source.kind() == FileKind::Directory && self.leads_up_to(new_parent, source.ino)? {
            return Err(posix("rename", "a directory cannot move into itself", errno::EINVAL));
        }
        Ok(())
    }

    /// True if directory `below` is the directory `top`, or is below it.
    ///
    /// # Errors
    /// ENOENT; EIO for damage.
    pub(crate) fn is_below(&self, below: u64, top: u64) -> Result<bool> {
        let _tree = self.tree.lock();
        self.leads_up_to(&*self.inode(below)?, top)
    }

    /// The same, for a caller that holds the tree lock and perhaps that of the directory.
    fn leads_up_to(&self, below: &Inode, top: u64) -> Result<bool> {
        let mut at = below.ino;
        // Limit the steps to the number of inodes, so that a damaged parent chain cannot loop forever.
        for _ in 0..=self.table.end() {
            if at == top {
                return Ok(true);
            }
            if at == InodeNumber::ROOT.0 {
                return Ok(false);
            }
            at = if at == below.ino {
                below.parent.load(Ordering::Relaxed)
            } else {
                self.inode(at)?.parent.load(Ordering::Relaxed)
            };
        }
        Err(Error::Corrupt { what: format!("inode {}: its parents form a loop", below.ino), at: below.slot })
    }
}

/// Returns the log entries of the old and of the new directory. `to` is the state of the new one if it is another
/// directory.
fn entries_of(
    moving: &Move<'_>,
    whiteout: Option<&Whiteout>,
    time: TimeNs,
    from: &State,
    to: Option<&State>,
) -> Result<(Vec<LogEntry>, Vec<LogEntry>)> {
    let next_cookie = |state: &State| directory("rename", state).map(Directory::next_cookie);
    let named = |name: &[u8], (ino, kind), cookie| LogEntry::Name { name: name.to_vec(), ino, kind, cookie, time };
    let inode = |slot: &NameSlot| (slot.ino, slot.kind());
    let unnamed = |slot: &NameSlot| LogEntry::Unname { cookie: slot.cookie, time };
    let cookie = next_cookie(to.unwrap_or(from))?;
    let mut from_entries = vec![unnamed(&moving.source)];
    let mut to_entries: Vec<LogEntry> = moving.target.iter().map(unnamed).collect();
    let arrives = named(moving.new_name, inode(&moving.source), cookie);
    let exchanged = moving.target.as_ref().filter(|_| moving.exchanges).map(inode);
    let returns = match whiteout.map(|whiteout| (whiteout.ino, whiteout.new.kind)).or(exchanged) {
        Some(inode) => {
            let cookie = if to.is_none() { cookie + 1 } else { next_cookie(from)? };
            Some(named(moving.name, inode, cookie))
        }
        None => None,
    };
    if to.is_none() {
        // In one directory: removals first, then additions in the order of their cookies.
        from_entries.append(&mut to_entries);
        from_entries.push(arrives);
    } else {
        to_entries.push(arrives);
    }
    from_entries.extend(returns);
    Ok((from_entries, to_entries))
}

fn check_kinds(source: &NameSlot, replaced: Option<&NameSlot>) -> Result<()> {
    let is_directory = |slot: &NameSlot| slot.kind() == FileKind::Directory;
    match replaced {
        Some(target) if is_directory(target) && !is_directory(source) => {
            Err(posix("rename", "the target is a directory", errno::EISDIR))
        }
        Some(target) if !is_directory(target) && is_directory(source) => {
            Err(posix("rename", "the target is not a directory", errno::ENOTDIR))
        }
        _ => Ok(()),
    }
}
