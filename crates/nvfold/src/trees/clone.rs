//! Copying a tree as it was at one instant, by sharing all its data.
//!
//! The problem: a copy of a tree takes time, and programs go on writing to it meanwhile. A database and its log, copied one
//! after the other, do not fit together.
//!
//! The idea: at the instant the copy is announced, with the freeze lock closed for a moment. From then on every operation
//! keeps what it changes as it was ([`crate::store::pending`]), so the copy is made of the tree of the instant, at leisure
//! ([`super::instant`]). It is made below a directory that no name leads to and whose link count is 0 ([`super::births`]),
//! and one commit gives it its name: it is there whole or not at all.
//!
//! ```text
//! instant   closed freeze lock, announced
//! walk      directory by directory: its names, its files; files with several names at the end
//! show      all directories get their names
//! withdraw  operations keep nothing any more; what was kept is released
//! link      the name of the copy, and the link count of its top
//! ```
//!
//! Whatever ends it before the link (an error, a request, an unmount) frees everything that was made; after a crash,
//! recovery does.

use super::Trees;
use super::births::{Births, Born, NewDirectory};
use super::instant::At;
use crate::error::{Error, Result, errno};
use crate::fs::check_name;
use crate::inode::extents::{Dropped, Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::inode::{AttributeLine, READ_ONLY_COPY};
use crate::media::limits::{TREE_LIMITS, TreeLimits};
use crate::media::superblock::TREES;
use crate::store::limits::limits_of;
use crate::store::pending::{KeptName, Pending, Then};
use crate::words::{Attr, FileKind, InodeNumber, Limits};
use nvfold_sync::RwLockReadGuard;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use zerocopy::IntoBytes;

const DOING: &str = "clone a tree";

/// The names that one step takes of a directory.
const NAMES_STEP: usize = 256;

const SET_IDS: u16 = 0o6000;

/// How a tree is cloned.
#[derive(Clone, Copy, Default)]
pub struct CloneOptions<'a> {
    /// Who clones. `None` may read everything, and owners stay as they are (root).
    pub caller: Option<CloneCaller<'a>>,
    /// Called after each step; `Break` ends the clone with ECANCELED, and nothing is left of it.
    pub progress: Option<&'a dyn Fn(CloneProgress) -> ControlFlow<()>>,
}

/// A user who clones a tree: the copy belongs to him, without setuid and setgid bits and without attributes that only root
/// may set.
#[derive(Clone, Copy)]
pub struct CloneCaller<'a> {
    /// Owner of the copy.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// True if he may read a file with these attributes and this access ACL (`system.posix_acl_access`), or list and
    /// search a directory.
    pub may_read: &'a dyn Fn(&Attr, Option<&[u8]>) -> bool,
}

/// How far the clone of a tree has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloneProgress {
    /// Number of names that were copied.
    pub entries: u64,
    /// Number of bytes that these files map.
    pub bytes: u64,
}

/// A tree that was cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cloned {
    /// The copy of the directory.
    pub attr: Attr,
    /// What it holds.
    pub copied: CloneProgress,
}

/// What kind of copy is made.
#[derive(Clone, Copy, Default)]
pub(super) struct CopyKind {
    /// Flags of all inodes of the copy.
    pub(super) flags: u16,
    /// A directory in the top that is left out.
    pub(super) without: Option<u64>,
    /// True if the copy takes the place of the directory that has its name, in one commit.
    pub(super) replaces: bool,
}

/// The limited tree that a copy is charged to.
#[derive(Clone, Copy)]
struct ChargedTo {
    /// Its number; 0: none.
    tree: u16,
    /// The limits that the top of the copy takes over from the directory that it replaces.
    limits: Option<Limits>,
}

/// A directory of the tree: where it stands, and the next name to copy.
struct CopiedDirectory {
    source: u64,
    parent: usize,
    name: Vec<u8>,
    cookie: u64,
}

/// A file that has several names: it is made when all of them are known.
struct Linked {
    number: u64,
    names: u32,
    directory: usize,
    name: Vec<u8>,
}

/// What a new file has taken so far.
#[derive(Default)]
struct TakenExtents {
    extents: Extents,
    /// References, and blocks that are reserved.
    chunks: Dropped,
    last: Option<(u64, Extent)>,
}

/// An announced copy. If a panic ends it, operations keep nothing any more; what they kept stays in use until the next mount
/// finds its counts too high.
struct Announced<'c>(&'c Pending);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let _released_before = self.0.withdraw();
    }
}

/// A walk through the tree of the instant, which makes its copy.
struct Walk<'c, 'o> {
    core: Trees<'c>,
    options: &'o CloneOptions<'o>,
    births: Births<'c>,
    directories: Vec<NewDirectory<'c>>,
    /// The same directories in the original.
    places: Vec<CopiedDirectory>,
    unfilled: Vec<usize>,
    linked: BTreeMap<u64, Linked>,
    pieces: Vec<(u64, Extent)>,
    copied: CloneProgress,
    copy: CopyKind,
    charged_to: ChargedTo,
}

impl<'c> Trees<'c> {
    /// Copies directory `source` with all that is below it to a new name in `parent`, as it is at one instant during this
    /// call.
    ///
    /// # Errors
    /// EEXIST, ENOENT, ENOTDIR; EINVAL into itself; EACCES and EPERM for what the caller may not read; ENOSPC, EDQUOT;
    /// ECANCELED; EBUSY if limits of its place changed meanwhile; ENOMEM if too much changed meanwhile; EMLINK, EIO, EROFS.
    /// Nothing is left of the copy then.
    pub(crate) fn clone_tree(
        self,
        source: InodeNumber,
        parent: InodeNumber,
        name: &[u8],
        options: &CloneOptions<'_>,
    ) -> Result<Cloned> {
        self.copy_tree(source, parent, name, options, CopyKind::default())
    }

    /// The same, of other kinds of copies.
    pub(super) fn copy_tree(
        self,
        source: InodeNumber,
        parent: InodeNumber,
        name: &[u8],
        options: &CloneOptions<'_>,
        copy: CopyKind,
    ) -> Result<Cloned> {
        let _alone = self.pending.begin();
        self.check_target(source, parent, name, copy)?;
        self.core.change_in_background(DOING, || self.require_feature(TREES))?;
        let charged_to = self.charged_to(parent, name, copy)?;
        {
            let _closed = self.freeze_lock.close();
            self.check_changeable(DOING)?;
            self.pending.announce(self.table.end());
        }
        let announced = Announced(&self.pending);
        let mut walk = Walk {
            core: self,
            options,
            births: Births::new(self.core),
            directories: Vec::new(),
            places: Vec::new(),
            unfilled: Vec::new(),
            linked: BTreeMap::new(),
            pieces: Vec::new(),
            copied: CloneProgress::default(),
            copy,
            charged_to,
        };
        let made = walk.walk(source, parent, name);
        walk.births.end_turn();
        self.postpone(self.pending.withdraw());
        self.release_postponed();
        drop(announced);
        let Walk { mut births, mut directories, linked: not_made, copied, .. } = walk;
        let top = match made {
            Ok(top) => top,
            Err(error) => {
                self.limits.give_up_number(charged_to.tree);
                not_made.values().for_each(|linked| self.table.free(linked.number));
                births.undo(directories);
                return Err(error);
            }
        };
        births.show_names(&mut directories);
        let linked = self.core.change_by(DOING, || match copy.replaces {
            false => self.link_tree(top, parent, name),
            true => self.replace_tree(top, parent, name).map(|(attr, old)| {
                self.add_tops([old]);
                attr
            }),
        });
        let waiting = births.end();
        match linked {
            Ok(attr) => {
                waiting.into_iter().try_for_each(|number| self.queue_waiting(number))?;
                Ok(Cloned { attr, copied })
            }
            Err(error) => {
                // It is a removed tree from now on.
                self.add_tops(self.inode(top).map(|top| top.file_id()));
                Err(error)
            }
        }
    }

    fn check_target(&self, source: InodeNumber, parent: InodeNumber, name: &[u8], copy: CopyKind) -> Result<()> {
        check_name(DOING, name)?;
        let top = self.inode(source.0)?;
        if top.kind != FileKind::Directory {
            return Err(posix("it is not a directory; clone a file with cp --reflink=auto", errno::ENOTDIR));
        }
        if self.inode(parent.0)?.kind != FileKind::Directory {
            return Err(posix("its new place is not a directory", errno::ENOTDIR));
        }
        if copy.without.is_none() && self.is_below(parent.0, source.0)? {
            return Err(posix("a directory cannot be cloned into itself", errno::EINVAL));
        }
        match self.entry(parent, name) {
            Ok(_) if copy.replaces => Ok(()),
            Ok(_) => Err(Error::Exists { what: String::from_utf8_lossy(name).into_owned() }),
            Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the limited tree that a copy is charged to: that of its place. A copy that replaces a directory with limits
    /// takes these over, with a number of its own: the old tree is charged to the old one until it is freed.
    fn charged_to(&self, parent: InodeNumber, name: &[u8], copy: CopyKind) -> Result<ChargedTo> {
        if copy.flags & READ_ONLY_COPY != 0 {
            return Ok(ChargedTo { tree: 0, limits: None });
        }
        if copy.replaces {
            let old = self.inode(self.entry(parent, name)?.ino.0)?;
            if let Some(limits) = limits_of(&*old.read()?) {
                return self.with_limits_of(limits);
            }
        }
        Ok(ChargedTo { tree: self.inode(parent.0)?.read()?.attributes.tree, limits: None })
    }

    fn with_limits_of(&self, old: TreeLimits) -> Result<ChargedTo> {
        if old.is_being_charged() {
            return Err(posix(
                "the limits of the directory that it replaces are being changed; try again",
                errno::EBUSY,
            ));
        }
        let limits = old.limits();
        let number = self.limits.take_number(None, &limits);
        let tree = number.ok_or(posix("65535 trees have limits, and no more can", errno::ENOSPC))?;
        Ok(ChargedTo { tree, limits: Some(limits) })
    }

    /// Queues what is still to be shared of a file of the copy.
    fn queue_waiting(&self, number: u64) -> Result<()> {
        let _inside = self.freeze_lock.enter_background();
        match self.inode(number) {
            Ok(inode) => self.queue_after_crash(&inode),
            Err(_) => Ok(()),
        }
    }
}

impl Walk<'_, '_> {
    /// Copies the tree; returns the number of the copy of its top, to which no name leads yet.
    fn walk(&mut self, source: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<u64> {
        self.births.enter()?;
        let top = self.make_directory(source.0, usize::MAX, parent.0, name)?;
        while let Some(at) = self.unfilled.pop() {
            self.fill(at)?;
        }
        while let Some((source, linked)) = self.linked.pop_first() {
            let Linked { number, names, directory, name } = linked;
            let made = self.copy_file(source, number, directory, &name, Some(names));
            made.inspect_err(|_| self.core.table.free(number))?;
            self.core.pending.settle(source);
            self.breathe()?;
        }
        self.core.region.check()?;
        Ok(top)
    }

    /// Copies the names of a directory, and its files.
    fn fill(&mut self, at: usize) -> Result<()> {
        let source = self.places[at].source;
        loop {
            let (core, cookie) = (self.core, self.places[at].cookie);
            let names = |then: At<'_>| then.names(cookie, NAMES_STEP, &core.region);
            let names = self.at_instant(source, names, |_, names| Ok(names))?;
            let Some((last, _)) = names.last() else { break };
            self.places[at].cookie = *last;
            let without = self.copy.without.filter(|_| at == 0);
            for (_, name) in names.into_iter().filter(|(_, name)| Some(name.ino) != without) {
                let number = self.copy_named(&name, at)?;
                self.births.add_name(&mut self.directories[at], name.name, number, name.kind)?;
                self.copied.entries += 1;
                self.breathe()?;
            }
        }
        self.core.region.check()?;
        self.births.end_names(&mut self.directories[at]);
        self.core.pending.settle(source);
        Ok(())
    }

    /// Makes the copy of what a name leads to, or counts the name; returns its number.
    fn copy_named(&mut self, name: &KeptName, at: usize) -> Result<u64> {
        if name.kind == FileKind::Directory {
            return self.make_directory(name.ino, at, self.directories[at].number, &name.name);
        }
        if let Some(linked) = self.linked.get_mut(&name.ino) {
            linked.names += 1;
            return Ok(linked.number);
        }
        let number = self.core.allocate_inode()?;
        match self.copy_file(name.ino, number, at, &name.name, None) {
            Ok(true) => self.core.pending.settle(name.ino),
            Ok(false) => {
                let linked = Linked { number, names: 1, directory: at, name: name.name.clone() };
                self.linked.insert(name.ino, linked);
            }
            Err(error) => {
                self.core.table.free(number);
                return Err(error);
            }
        }
        Ok(number)
    }

    fn make_directory(&mut self, source: u64, parent: usize, parent_number: u64, name: &[u8]) -> Result<u64> {
        let mut then = self.then(source)?;
        if then.kind != FileKind::Directory {
            return Err(self.vanished(source));
        }
        self.check_access(source, &then, parent, name)?;
        // A link count of 0 says that the tree is not there yet.
        let nlink = u32::from(parent != usize::MAX);
        let number = self.core.allocate_inode()?;
        let attributes = self.attributes(&then, nlink);
        self.leave_out_xattrs(&mut then);
        if let Some(limits) = self.charged_to.limits.filter(|_| parent == usize::MAX) {
            let value = TreeLimits::new(attributes.tree, &limits, false);
            then.xattrs.push((TREE_LIMITS.to_vec(), value.as_bytes().to_vec()));
            self.core.limits.set(attributes.tree, number, &limits, false);
        }
        let born = Born {
            number,
            kind: then.kind,
            parent: parent_number,
            attributes,
            xattrs: &then.xattrs,
            flags: self.copy.flags,
        };
        let made = self.births.make_directory(&born);
        let made = made.inspect_err(|_| self.core.limits.lose_top(attributes.tree, number))?;
        self.unfilled.push(self.directories.len());
        self.directories.push(made);
        self.places.push(CopiedDirectory { source, parent, name: name.to_vec(), cookie: 0 });
        self.breathe()?;
        Ok(number)
    }

    /// Makes the copy of something that is no directory. `names`: how many names it has in the tree; if that is not known
    /// yet and it has several, it is not made, and the answer is false.
    fn copy_file(
        &mut self,
        source: u64,
        number: u64,
        directory: usize,
        name: &[u8],
        names: Option<u32>,
    ) -> Result<bool> {
        let mut then = self.then(source)?;
        if names.is_none() {
            self.check_access(source, &then, directory, name)?;
            if then.attributes.nlink > 1 {
                return Ok(false);
            }
        }
        let attributes = self.attributes(&then, names.unwrap_or(1));
        self.leave_out_xattrs(&mut then);
        let parent = self.directories[directory].number;
        let (kind, flags) = (then.kind, self.copy.flags);
        let born = Born { number, kind, parent, attributes, xattrs: &then.xattrs, flags };
        let mut taken = TakenExtents::default();
        let done = match then.kind {
            FileKind::Regular => self.take_extents(source, &mut taken),
            _ => Ok(()),
        };
        let bytes = taken.extents.bytes();
        let made = done.and_then(|()| self.births.make(&born, std::mem::take(&mut taken.extents), then.waiting));
        if let Err(error) = made {
            self.births.make_live();
            self.core.release(&taken.chunks, &[], 0);
            return Err(error);
        }
        self.copied.bytes += bytes;
        Ok(true)
    }

    /// Takes references on all that a file mapped, in steps.
    fn take_extents(&mut self, source: u64, taken: &mut TakenExtents) -> Result<()> {
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.take_some_extents(source, from, taken)?;
            if next.is_some() {
                self.births.end_turn();
                self.births.enter()?;
            }
        }
        Ok(())
    }

    /// Takes references on some of what a file mapped, from this offset on; returns the offset to go on at.
    fn take_some_extents(&mut self, source: u64, from: u64, taken: &mut TakenExtents) -> Result<Option<u64>> {
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        let read = |at: At<'_>| (at.extents(from, &mut pieces), pieces);
        self.at_instant(source, read, |walk, (next, pieces)| {
            let done = pieces.iter().try_for_each(|(offset, extent)| walk.take(*offset, extent, taken));
            walk.pieces = pieces;
            done.map(|()| next)
        })
    }

    fn take(&mut self, offset: u64, extent: &Extent, taken: &mut TakenExtents) -> Result<()> {
        if extent.unwritten {
            return self.births.reserve(offset, extent, &mut taken.extents, &mut taken.chunks);
        }
        if !taken.last.is_some_and(|(start, last)| last.is_one_with(start, offset, extent)) {
            self.births.refer(extent, &mut taken.chunks)?;
        }
        taken.extents.insert(offset, *extent);
        taken.last = Some((offset, *extent));
        Ok(())
    }

    /// Reads an inode as it was at the instant, and passes what was read to `then`, with the inode still locked: what it
    /// maps, and what is kept, stays in use meanwhile.
    fn at_instant<T, U>(
        &mut self,
        ino: u64,
        read: impl FnOnce(At<'_>) -> T,
        then: impl FnOnce(&mut Self, T) -> Result<U>,
    ) -> Result<U> {
        let core = self.core;
        let (inode, error) = match core.inode(ino) {
            Ok(inode) => (Some(inode), None),
            Err(error) => (None, Some(error)),
        };
        let live = inode.as_deref().and_then(|inode| self.lock(inode));
        let generation = inode.as_deref().map(|inode| inode.generation);
        let found = core.pending.at_instant(ino, |kept| {
            let live = live.as_deref().filter(|_| kept.is_none_or(|kept| Some(kept.generation) == generation));
            let kind = kept.map(|kept| kept.then.kind).or(inode.as_deref().map(|inode| inode.kind))?;
            (live.is_some() || kept.is_some()).then(|| read(At { kind, live, kept }))
        });
        then(self, found.ok_or_else(|| error.unwrap_or_else(|| self.vanished(ino)))?)
    }

    /// Returns what an inode was at the instant, apart from its extents or names.
    fn then(&mut self, ino: u64) -> Result<Then> {
        let core = self.core;
        self.at_instant(ino, |at| at.then(&core.region), |walk, then| then.ok_or_else(|| walk.vanished(ino)))
    }

    /// Locks an inode for reading. `None` if it was freed. Whoever waits for an inode holds no generator of transaction
    /// numbers.
    fn lock<'i>(&mut self, inode: &'i Inode) -> Option<RwLockReadGuard<'i, State>> {
        inode.try_read().or_else(|| {
            self.births.make_live();
            inode.read().ok()
        })
    }

    fn vanished(&self, ino: u64) -> Error {
        let at = self.core.table.slot(ino).unwrap_or(0);
        Error::Corrupt { what: format!("inode {ino}: a name leads to it, and it is not there"), at }
    }

    /// Ends the turn if it has done enough, tells how far the copy is, and begins the next one.
    fn breathe(&mut self) -> Result<()> {
        if !self.births.is_long() {
            return Ok(());
        }
        self.births.end_turn();
        if self.options.progress.is_some_and(|progress| progress(self.copied).is_break()) {
            return Err(posix("it was cancelled, and nothing was cloned", errno::ECANCELED));
        }
        self.births.enter()
    }

    /// Returns the attributes of a copy.
    fn attributes(&self, then: &Then, nlink: u32) -> AttributeLine {
        let attributes = AttributeLine { nlink, tree: self.charged_to.tree, as_of: 0, check: 0, ..then.attributes };
        match &self.options.caller {
            None => attributes,
            Some(CloneCaller { uid, gid, .. }) => {
                let is_own = *uid == attributes.uid && *gid == attributes.gid;
                let mode = if is_own { attributes.mode } else { attributes.mode & !SET_IDS };
                AttributeLine { uid: *uid, gid: *gid, mode, ..attributes }
            }
        }
    }

    /// Leaves out limits, and the extended attributes that only root may set, for others.
    fn leave_out_xattrs(&self, then: &mut Then) {
        then.xattrs.retain(|(name, _)| name != TREE_LIMITS);
        if self.options.caller.is_some() {
            then.xattrs.retain(|(name, _)| !(name.starts_with(b"security.") || name.starts_with(b"trusted.")));
        }
    }

    /// Checks that the caller may copy an inode.
    fn check_access(&self, ino: u64, then: &Then, directory: usize, name: &[u8]) -> Result<()> {
        let Some(caller) = &self.options.caller else { return Ok(()) };
        let acl = then.xattrs.iter().find(|(name, _)| name == b"system.posix_acl_access");
        let denied = |why, errno| Err(Error::Denied { what: self.path_of(directory, name), why, errno });
        match then.kind {
            FileKind::Symlink => Ok(()),
            FileKind::CharDevice | FileKind::BlockDevice if then.attributes.rdev != 0 => {
                denied("only root may make a device node, so nothing was cloned", errno::EPERM)
            }
            _ if !(caller.may_read)(&attr_of(ino, then), acl.map(|(_, value)| &value[..])) => {
                denied("no permission to read it, so nothing was cloned", errno::EACCES)
            }
            _ => Ok(()),
        }
    }

    /// Returns the path of a name in a directory of the tree, from the directory above the tree.
    fn path_of(&self, directory: usize, name: &[u8]) -> String {
        let mut names = vec![name];
        let mut at = directory;
        while let Some(place) = self.places.get(at) {
            names.push(&place.name);
            at = place.parent;
        }
        names.reverse();
        String::from_utf8_lossy(&names.join(&b'/')).into_owned()
    }
}

fn attr_of(ino: u64, then: &Then) -> Attr {
    let AttributeLine { mode, uid, gid, nlink, rdev, size, atime, mtime, ctime, .. } = then.attributes;
    let (kind, ino, mode) = (then.kind, InodeNumber(ino), mode.into());
    Attr { ino, generation: 0, kind, mode, uid, gid, nlink, rdev, size, blocks: 0, atime, mtime, ctime, btime: 0 }
}

fn posix(why: &'static str, errno: i32) -> Error {
    Error::Posix { doing: DOING, why, errno }
}
