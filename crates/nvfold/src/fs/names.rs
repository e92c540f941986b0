//! Names: creating, linking, renaming and removing them.
//!
//! Locks, in this order: the tree lock (every operation that involves two directories), directories, then
//! other inodes in the order of their numbers. An operation without the tree lock holds one directory at most.

use super::Core;
use super::commit::Change;
use super::inode::{Body, Inode, SYMLINK_TARGET, State};
use crate::error::{Error, Result, errno};
use crate::media::inode::{
    ATTRIBUTE_LINES, AttributeLine, COMMIT_WORD, INLINE_LOG, INODE_BYTES, InodeHead, OVERFLOW_WORD, PARENT_WORD,
    USE_WORD,
};
use crate::media::journal::WordStore;
use crate::media::log_entry::LogEntry;
use crate::namespace::directory::{Directory, NameSlot};
use crate::namespace::log::{Addition, Log};
use crate::space::{BlockRun, Purpose};
use crate::sync::atomic::Ordering;
use crate::types::{Attr, DirEntry, FileKind, InodeNumber, NewInode, POLICY_ATTRIBUTE, RenameMode, TimeNs};
use pmem::{Dirty, Flight, Pm};
use std::sync::Arc;

/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest symlink target in bytes (PATH_MAX without the NUL).
const TARGET_BYTES_MAX: usize = 4095;
const SETGID: u32 = 0o2000;
/// Permission bits an inode keeps.
pub const MODE_BITS: u32 = 0o7777;

fn posix(doing: &'static str, why: &'static str, errno: i32) -> Error {
    Error::Posix { doing, why, errno }
}

fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn check_name(doing: &'static str, name: &[u8]) -> Result<()> {
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

/// The names of a live directory.
fn directory<'s>(doing: &'static str, state: &'s State) -> Result<&'s Directory> {
    match &state.body {
        _ if state.freed || state.attributes.nlink == 0 => {
            Err(posix(doing, "the directory was removed", errno::ENOENT))
        }
        Body::Directory(directory) => Ok(directory),
        _ => Err(posix(doing, "it is not a directory", errno::ENOTDIR)),
    }
}

impl Core {
    pub(super) fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Attr> {
        if name.len() > NAME_BYTES_MAX {
            check_name("lookup", name)?;
        }
        let parent = self.inode(parent.0)?;
        loop {
            let child = if name == b"." { parent.clone() } else { self.child(&parent, name)? };
            match child.read() {
                Ok(state) => return Ok(child.attr(&state)),
                // The directory moved and its old parent went: it has another.
                Err(_) if name == b".." => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The inode that a name leads to. The directory stays locked until it is found: the number alone could be
    /// another inode's by then.
    fn child(&self, parent: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        let state = parent.state.read();
        if name == b".." {
            directory("lookup", &state)?;
            return self.inode(parent.parent.load(Ordering::Relaxed));
        }
        self.inode(self.find("lookup", &state, name)?.ino)
    }

    fn find(&self, doing: &'static str, parent: &State, name: &[u8]) -> Result<NameSlot> {
        let found = directory(doing, parent)?.find(name, &self.region);
        found.ok_or_else(|| Error::NotFound { what: show(name) })
    }

    /// Makes an inode of any kind and gives it a name.
    pub(super) fn create(
        &self,
        parent: InodeNumber,
        name: &[u8],
        target: Option<&[u8]>,
        new: &NewInode,
    ) -> Result<Attr> {
        check_name("create", name)?;
        let parent = self.inode(parent.0)?;
        let mut parent_state = parent.state.write();
        let names = directory("create", &parent_state)?;
        if names.find(name, &self.region).is_some() {
            return Err(Error::Exists { what: show(name) });
        }
        let (cookie, time) = (names.next_cookie(), self.now());
        let ino = self.allocate_inode()?;
        let entry = LogEntry::Name { name: name.to_vec(), ino, kind: new.kind, cookie, time };
        let parent_attributes = parent_state.attributes;
        let first = match (target, new.kind) {
            (Some(target), _) => Some((SYMLINK_TARGET, target.to_vec())),
            (None, FileKind::Regular | FileKind::Directory) => {
                parent_state.policy_value().map(|value| (POLICY_ATTRIBUTE, value.to_vec()))
            }
            _ => None,
        };
        let first = first.as_ref().map(|(name, value)| (*name, &value[..]));
        let inode = self.with_new_inode(ino, &parent, &parent_attributes, first, new, 1, |flight| {
            self.change(&parent, &mut parent_state, &[entry], None, Purpose::Log, flight)
        })?;
        let state = inode.state.read();
        Ok(inode.attr(&state))
    }

    /// A free inode number. One whose slot lies in bad memory is never given back.
    fn allocate_inode(&self) -> Result<u64> {
        loop {
            let ino = self.table.allocate(&self.space)?;
            let slot = self.table.slot(ino).expect("an allocated inode has a slot");
            let _: InodeHead = self.region.read(slot);
            if self.region.is_sound(slot, INODE_BYTES) {
                return Ok(ino);
            }
        }
    }

    /// Writes a new inode's slot, runs `publish` (which fences), and takes the inode into the cache. `first`: the
    /// attribute that it is born with, the target of a symlink or the policy of its directory.
    #[allow(clippy::too_many_arguments)]
    fn with_new_inode(
        &self,
        ino: u64,
        parent: &Inode,
        parent_attributes: &AttributeLine,
        first: Option<(&[u8], &[u8])>,
        new: &NewInode,
        nlink: u32,
        publish: impl FnOnce(Flight) -> Result<()>,
    ) -> Result<Arc<Inode>> {
        let time = self.now();
        self.table.found_name(ino);
        let slot = self.table.slot(ino).expect("an allocated inode has a slot");
        let old: InodeHead = self.region.read(slot);
        self.empty_old_log(slot, &old);
        let mut head = InodeHead::new(slot, ino, new.kind, old.generation.wrapping_add(1), parent.ino, time);
        let mut flight = Flight::new();
        let mut log = Log { head: head.head, tail: head.head, ..Log::default() };
        let mut xattr = None;
        if let Some((name, value)) = first {
            let value = self.store_value(value, &mut flight).inspect_err(|_| self.table.free(ino))?;
            let entry = LogEntry::XattrSet { name: name.to_vec(), value: value.value().clone(), time };
            let mut lines = Vec::new();
            entry.encode(ino, &mut lines);
            let mut addition = Addition::new(&self.region, &self.space, slot, ino, &log, Purpose::Log);
            addition.push(&lines, &mut flight).inspect_err(|_| self.table.free(ino))?;
            // The tail is in the head already: what makes the head reachable is the name.
            addition.take_newest().into_iter().for_each(|newest| flight.add(newest));
            if old.generation != 0 || addition.has_pages() {
                // Where these lines go an earlier user of the number may have left valid ones. They must be gone before
                // the head says that the log has lines: a crash would give the new inode blocks that are others' now.
                let _ = self.region.fence(std::mem::take(&mut flight));
            }
            xattr = Some((name, value, addition));
        }
        head.commit = xattr.as_ref().map_or(log.tail, |(_, _, addition)| addition.tail);
        if xattr.as_ref().is_some_and(|(_, _, addition)| addition.has_pages()) {
            // The overflow word was stored by the addition; the head is written after it and must agree.
            head.overflow = self.region.load_u64(slot + OVERFLOW_WORD);
        }
        let inherits = parent_attributes.mode & SETGID != 0;
        let directory_bit = if inherits && new.kind == FileKind::Directory { SETGID } else { 0 };
        let attributes = AttributeLine {
            mode: new.mode & MODE_BITS | directory_bit,
            uid: new.uid,
            gid: if inherits { parent_attributes.gid } else { new.gid },
            size: first.filter(|(name, _)| *name == SYMLINK_TARGET).map_or(0, |(_, target)| target.len() as u64),
            atime: time,
            mtime: time,
            ctime: time,
            nlink,
            rdev: new.rdev,
            as_of: head.commit,
            check: 0,
        }
        .sealed(ino);
        let mut state = State::new(new.kind, attributes, Log::default());
        if let Some((name, value, addition)) = xattr {
            addition.keep(&mut log);
            state.xattrs.insert(name.to_vec(), value.keep());
        }
        state.log = log;
        let inode = Arc::new(Inode::new(ino, slot, &head, new.kind, state));
        // Without a name it is born pinned: somebody who still has the number from its last user may open and close it.
        inode.pins.store(usize::from(nlink == 0), Ordering::SeqCst);
        // Into the cache before the slot is live: whoever looks this number up meanwhile must find this object, and
        // wait at its lock, rather than read a second one from the media.
        let mut created = inode.state.write();
        self.cache(inode.clone());
        flight.add(self.region.write(slot, &head).flush());
        flight.add(self.region.write(slot + ATTRIBUTE_LINES[0], &attributes).flush());
        if let Err(error) = publish(flight) {
            self.free_inode(&inode, &mut created);
            return Err(error);
        }
        drop(created);
        Ok(inode)
    }

    /// A file without a name, pinned once for the caller.
    pub(super) fn tmpfile(&self, new: &NewInode) -> Result<Arc<Inode>> {
        let root = self.inode(InodeNumber::ROOT.0)?;
        let ino = self.allocate_inode()?;
        let no_parent = AttributeLine::default();
        self.with_new_inode(ino, &root, &no_parent, None, new, 0, |flight| {
            let _ = self.region.fence(flight);
            Ok(())
        })
    }

    pub(super) fn symlink(&self, parent: InodeNumber, name: &[u8], target: &[u8], new: &NewInode) -> Result<Attr> {
        match target.len() {
            0 => Err(posix("symlink", "the target is empty", errno::ENOENT)),
            length if length > TARGET_BYTES_MAX => Err(posix("symlink", "the target is too long", errno::ENAMETOOLONG)),
            _ => self.create(parent, name, Some(target), &NewInode { kind: FileKind::Symlink, ..*new }),
        }
    }

    pub(super) fn link(&self, ino: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Attr> {
        check_name("link", name)?;
        let (parent, child) = (self.inode(parent.0)?, self.inode(ino.0)?);
        let mut parent_state = parent.state.write();
        let names = directory("link", &parent_state)?;
        if names.find(name, &self.region).is_some() {
            return Err(Error::Exists { what: show(name) });
        }
        if child.kind == FileKind::Directory {
            return Err(posix("link", "a directory has one name only", errno::EPERM));
        }
        let (cookie, time) = (names.next_cookie(), self.now());
        self.table.found_name(child.ino);
        let mut state = child.write()?;
        let nlink = state.attributes.nlink.checked_add(1);
        let nlink = nlink.ok_or(posix("link", "it has as many links as can be counted", errno::EMLINK))?;
        let entry = [LogEntry::Name { name: name.to_vec(), ino: child.ino, kind: child.kind, cookie, time }];
        let attributes = Some(AttributeLine { nlink, ctime: time, ..state.attributes });
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
        Ok(child.attr(&state))
    }

    pub(super) fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        check_name("unlink", name)?;
        let parent = self.inode(parent.0)?;
        let mut parent_state = parent.state.write();
        let slot = self.find("unlink", &parent_state, name)?;
        if slot.kind() == FileKind::Directory {
            return Err(posix("unlink", "it is a directory", errno::EISDIR));
        }
        self.remove_name(&parent, &mut parent_state, slot)
    }

    pub(super) fn rmdir(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(posix("rmdir", "the name is .", errno::EINVAL)),
            b".." => return Err(posix("rmdir", "the name is ..", errno::ENOTEMPTY)),
            _ => check_name("rmdir", name)?,
        }
        let _tree = self.tree.lock();
        let parent = self.inode(parent.0)?;
        let mut parent_state = parent.state.write();
        let slot = self.find("rmdir", &parent_state, name)?;
        if slot.kind() != FileKind::Directory {
            return Err(posix("rmdir", "it is not a directory", errno::ENOTDIR));
        }
        self.remove_name(&parent, &mut parent_state, slot)
    }

    /// Removes a name; the inode goes too when it was the last one and nobody holds it open.
    fn remove_name(&self, parent: &Inode, parent_state: &mut State, slot: NameSlot) -> Result<()> {
        let time = self.now();
        check_no_self(&slot, parent)?;
        let child = self.inode(slot.ino)?;
        let mut state = child.state.write();
        check_empty("rmdir", &state)?;
        let entry = [LogEntry::Unname { cookie: slot.cookie, time }];
        let purpose = Purpose::Promised;
        self.region.check_writable(child.slot, INODE_BYTES)?;
        if last_name(&child, &state) && !child.is_pinned() {
            // One commit suffices: an inode that no name leads to is freed by recovery.
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

    pub(super) fn rename(
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
        let from = self.inode(parent.0)?;
        let to = self.inode(new_parent.0)?;
        let mut from_state = from.state.write();
        let mut to_guard = (from.ino != to.ino).then(|| to.state.write());
        let source = self.find("rename", &from_state, name)?;
        let to_names = directory("rename", to_guard.as_deref().unwrap_or(&from_state))?;
        let target = to_names.find(new_name, &self.region);
        match (mode, &target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists { what: show(new_name) }),
            (RenameMode::Exchange, None) => return Err(Error::NotFound { what: show(new_name) }),
            (RenameMode::Replace, Some(target)) if target.ino == source.ino => return Ok(()),
            (RenameMode::Exchange, Some(target)) if target.ino == source.ino => return Ok(()),
            _ => {}
        }
        self.check_no_loop(&source, &to)?;
        let exchanged = target.filter(|_| mode == RenameMode::Exchange);
        if let Some(target) = &exchanged {
            self.check_no_loop(target, &from)?;
        }
        let replaced = target.filter(|_| mode != RenameMode::Exchange);
        check_kinds(&source, replaced.as_ref())?;
        if replaced.is_some_and(|target| target.ino == from.ino) {
            return Err(posix("rename", "the directory is not empty", errno::ENOTEMPTY));
        }

        for slot in std::iter::once(&source).chain(&target) {
            check_no_self(slot, &from)?;
            check_no_self(slot, &to)?;
        }
        let time = self.now();
        let moved = self.inode(source.ino)?;
        let other = target.map(|target| self.inode(target.ino)).transpose()?;
        std::iter::once(&moved).chain(&other).for_each(|inode| self.table.found_name(inode.ino));
        // Children in the order of their numbers; a victim directory is nobody's parent here.
        let moved_first = other.as_ref().is_none_or(|other| moved.ino < other.ino);
        let early = moved_first.then(|| moved.state.write());
        let mut other_state = other.as_ref().map(|other| other.state.write());
        let mut moved_state = early.unwrap_or_else(|| moved.state.write());
        if let (Some(_), Some(state)) = (&replaced, &other_state) {
            check_empty("rename", state)?;
        }

        let next_cookie = |state: &State| directory("rename", state).map(Directory::next_cookie);
        let (mut from_entries, mut to_entries) = (vec![LogEntry::Unname { cookie: source.cookie, time }], Vec::new());
        to_entries.extend(target.map(|target| LogEntry::Unname { cookie: target.cookie, time }));
        let mut cookie = next_cookie(to_guard.as_deref().unwrap_or(&from_state))?;
        to_entries.push(LogEntry::Name { name: new_name.to_vec(), ino: moved.ino, kind: moved.kind, cookie, time });
        if let (Some(_), Some(other)) = (&exchanged, &other) {
            cookie = if to_guard.is_none() { cookie + 1 } else { next_cookie(&from_state)? };
            from_entries.push(LogEntry::Name { name: name.to_vec(), ino: other.ino, kind: other.kind, cookie, time });
        }
        if to_guard.is_none() {
            // One directory: removals first, additions in the order of their cookies.
            let unnamed = |entry: &LogEntry| matches!(entry, LogEntry::Unname { .. });
            let (mut removed, mut added): (Vec<_>, Vec<_>) =
                from_entries.into_iter().chain(to_entries).partition(unnamed);
            added.sort_by_key(|entry| if let LogEntry::Name { cookie, .. } = entry { *cookie } else { 0 });
            removed.extend(added);
            (from_entries, to_entries) = (removed, Vec::new());
        }

        let mut words = Vec::new();
        let moves_between = from.ino != to.ino;
        if moves_between && moved.kind == FileKind::Directory {
            words.push(WordStore { offset: moved.slot + PARENT_WORD, value: to.ino });
        }
        if let Some(other) =
            other.as_ref().filter(|other| moves_between && exchanged.is_some() && other.kind == FileKind::Directory)
        {
            words.push(WordStore { offset: other.slot + PARENT_WORD, value: from.ino });
        }
        let moved_attributes = Some(AttributeLine { ctime: time, ..moved_state.attributes });
        let purpose = Purpose::Promised;
        let mut changes = vec![
            Change { inode: &from, state: &mut from_state, entries: &from_entries, attributes: None, purpose },
            Change { inode: &moved, state: &mut moved_state, entries: &[], attributes: moved_attributes, purpose },
        ];
        if let Some(state) = to_guard.as_deref_mut() {
            changes.push(Change { inode: &to, state, entries: &to_entries, attributes: None, purpose });
        }
        if let (Some(other), Some(state)) = (&other, other_state.as_deref_mut()) {
            let attributes = match replaced {
                Some(_) => without_a_name(other, state, time),
                None => AttributeLine { ctime: time, ..state.attributes },
            };
            changes.push(Change { inode: other, state, entries: &[], attributes: Some(attributes), purpose });
        }
        self.change_all(&mut changes, &words, Flight::new())?;
        for word in words {
            let (inode, parent) = if word.offset == moved.slot + PARENT_WORD {
                (&moved, to.ino)
            } else {
                (other.as_ref().expect("exchanged"), from.ino)
            };
            inode.parent.store(parent, Ordering::Relaxed);
        }
        if let (Some(other), Some(state)) = (&other, other_state.as_deref_mut()) {
            self.free_if_unused(other, state);
        }
        Ok(())
    }

    /// A directory must not move below itself.
    fn check_no_loop(&self, source: &NameSlot, new_parent: &Inode) -> Result<()> {
        if source.kind() != FileKind::Directory {
            return Ok(());
        }
        let mut at = new_parent.ino;
        // As many steps as there are inodes: a damaged parent chain cannot hang us.
        for _ in 0..=self.table.end() {
            if at == source.ino {
                return Err(posix("rename", "a directory cannot move into itself", errno::EINVAL));
            }
            if at == InodeNumber::ROOT.0 {
                return Ok(());
            }
            at = if at == new_parent.ino {
                new_parent.parent.load(Ordering::Relaxed)
            } else {
                self.inode(at)?.parent.load(Ordering::Relaxed)
            };
        }
        Err(Error::Corrupt { what: format!("inode {}: parents form a loop", new_parent.ino), at: new_parent.slot })
    }

    pub(super) fn readdir(&self, dir: InodeNumber, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let inode = self.inode(dir.0)?;
        let state = inode.state.read();
        let names = match &state.body {
            Body::Directory(names) => names,
            _ => return Err(posix("readdir", "it is not a directory", errno::ENOTDIR)),
        };
        for slot in names.after(cookie) {
            let ino = InodeNumber(slot.ino);
            if !each(DirEntry { ino, kind: slot.kind(), cookie: slot.cookie, name: slot.name(&self.region) }) {
                break;
            }
        }
        Ok(())
    }

    /// Repair: removes a name that leads nowhere.
    pub(crate) fn drop_name(&self, dir: u64, cookie: u64) -> Result<()> {
        let inode = self.inode(dir)?;
        let mut state = inode.state.write();
        let entry = LogEntry::Unname { cookie, time: self.now() };
        self.change(&inode, &mut state, &[entry], None, Purpose::Promised, Flight::new())
    }

    /// Repair: makes the link count of what is no directory say how many names it has.
    pub(crate) fn set_link_count(&self, ino: u64, nlink: u32) -> Result<()> {
        let Ok(inode) = self.inode(ino) else { return Ok(()) };
        let mut state = inode.state.write();
        if inode.kind == FileKind::Directory {
            return Ok(());
        }
        self.set_nlink(&inode, &mut state, nlink)
    }

    /// Changes how many names an inode has, and nothing else of it.
    pub(crate) fn set_nlink(&self, inode: &Inode, state: &mut State, nlink: u32) -> Result<()> {
        if state.attributes.nlink == nlink {
            return Ok(());
        }
        let attributes = AttributeLine { nlink, ..state.attributes };
        self.change(inode, state, &[], Some(attributes), Purpose::Promised, Flight::new())
    }

    pub(super) fn last_cookie(&self, dir: InodeNumber) -> Result<u64> {
        let inode = self.inode(dir.0)?;
        let state = inode.state.read();
        match &state.body {
            Body::Directory(names) => Ok(names.next_cookie() - 1),
            _ => Err(posix("readdir", "it is not a directory", errno::ENOTDIR)),
        }
    }

    /// Frees the inode when no name leads to it and nobody holds it open.
    pub(crate) fn free_if_unused(&self, inode: &Inode, state: &mut State) {
        if state.attributes.nlink == 0 && !state.freed && !inode.is_pinned() {
            self.free_inode(inode, state);
        }
    }

    /// Unmount: frees inodes that are open and have no name.
    pub(super) fn free_nameless(&self) {
        for shard in &self.cached {
            let inodes: Vec<Arc<Inode>> = shard.lock().values().cloned().collect();
            for inode in inodes {
                let mut state = inode.state.write();
                if state.attributes.nlink == 0 && !state.freed {
                    self.free_inode(&inode, &mut state);
                }
            }
        }
    }

    /// Frees an inode and all that only it names: first the slot, so that nothing of it can be reached.
    fn free_inode(&self, inode: &Inode, state: &mut State) {
        let _: InodeHead = self.region.read(inode.slot);
        state.freed = true;
        if !self.region.is_sound(inode.slot, INODE_BYTES) {
            // It cannot be freed on the media: all that it names stays in use.
            return self.forget(inode.ino);
        }
        self.free_slot(inode.slot);
        let mut mapped = 0;
        if let Body::File(extents) = &state.body {
            mapped = extents.bytes();
            let runs: Vec<BlockRun> = extents.iter().map(|(_, extent)| extent.blocks()).collect();
            if self.is_walked(inode.ino) {
                let blocks = runs.iter().flat_map(|run| run.blocks());
                self.chunks.with_recount(|recount| blocks.for_each(|block| recount.uncount(block)));
            }
            self.release(&runs, &[], 0);
        }
        self.account_mapped(inode.ino, mapped, 0);
        state.xattr_blocks().for_each(|start| self.free(BlockRun { start, count: 1 }));
        for page in state.log.pages.drain(..) {
            self.free(BlockRun { start: crate::media::BlockNumber::containing(page), count: 1 });
        }
        state.body = Body::Other;
        state.xattrs.clear();
        self.forget(inode.ino);
        self.table.free(inode.ino);
    }

    /// Marks an inode slot free on the media. Its log is emptied in the same line: until the next user's head is whole, a
    /// crash may leave the new identity beside the old commit word, and nothing of the old log must come back.
    pub(crate) fn free_slot(&self, slot: u64) {
        let head: InodeHead = self.region.read(slot);
        let _ = self.empty_log(slot);
        let line = self.region.store_u64(slot + USE_WORD, head.freed_use_word()).flush();
        let _ = self.region.fence(line);
    }

    /// Empties the log of a free slot if a crash cut off the freeing of its last user.
    fn empty_old_log(&self, slot: u64, old: &InodeHead) {
        if old.commit != 0 && old.commit != slot + INLINE_LOG {
            let _ = self.region.fence(self.empty_log(slot).flush());
        }
    }

    /// Commit word and head of an empty log, to be flushed with what else is stored in the line.
    fn empty_log(&self, slot: u64) -> Pm<'_, u128, Dirty> {
        let start = u128::from(slot + INLINE_LOG);
        self.region.store_u128(slot + COMMIT_WORD, start << 64 | start)
    }
}

fn check_empty(doing: &'static str, state: &State) -> Result<()> {
    match &state.body {
        Body::Directory(directory) if !directory.is_empty() => {
            Err(posix(doing, "the directory is not empty", errno::ENOTEMPTY))
        }
        _ => Ok(()),
    }
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

/// In a damaged directory a name may lead back to the directory, which is locked already.
fn check_no_self(slot: &NameSlot, directory: &Inode) -> Result<()> {
    if slot.ino != directory.ino {
        return Ok(());
    }
    Err(Error::Corrupt { what: format!("directory {}: a name that leads to itself; it", slot.ino), at: directory.slot })
}

fn last_name(inode: &Inode, state: &State) -> bool {
    inode.kind == FileKind::Directory || state.attributes.nlink <= 1
}

fn without_a_name(inode: &Inode, state: &State, time: TimeNs) -> AttributeLine {
    let nlink = if last_name(inode, state) { 0 } else { state.attributes.nlink - 1 };
    AttributeLine { nlink, ctime: time, ..state.attributes }
}
