//! Limits of a tree: setting and removing them, and removing the trees whose time has come.
//!
//! The problem: a directory that gets limits may have any number of inodes below it, and all of them must be charged.
//!
//! The idea: one commit gives the directory its limits and its number, and says that the inodes below are still being
//! charged. Steps charge them, a directory before what it names ([`crate::fs`]); a last commit says that it is done. To
//! remove the limits is the same: the first commit charges the top to the tree that its parent is charged to, and the last
//! one removes what is left of the limits. After a crash between the two, or an error, the steps begin anew at the top.
//!
//! ```text
//! set       top: limits, number, being charged        steps: those below        top: charged
//! removed   top: no limits, number of the parent,     steps: those below        top: nothing
//!                being charged
//! ```

use super::Trees;
use crate::error::{Error, Result, errno};
use crate::inode::{Body, Inode, State};
use crate::media::limits::TreeLimits;
use crate::media::superblock::LIMITS;
use crate::store::limits::{TreeUse, limits_of};
use crate::words::{ExpiredTree, FileId, FileKind, InodeNumber, LimitedTree, Limits, SNAPSHOTS};
use nvfold_sync::atomic::Ordering;
use nvfold_sync::{Mutex, MutexGuard};

const DOING: &str = "change the limits of a tree";

/// The work of charging the inodes of one tree.
#[derive(Default)]
pub(crate) struct Charging {
    /// Held by the one change of limits that is being made, outside of the freeze lock.
    changing: Mutex<()>,
    walk: Mutex<Option<ChargeWalk>>,
}

/// How far the charging of a tree has come.
struct ChargeWalk {
    /// Number of the tree whose limits were set or removed.
    number: u16,
    top: FileId,
    /// Directories whose names are still to be looked at, each after a cookie. The list is a stack, so it holds at most the
    /// directories beside one path.
    left: Vec<(FileId, u64)>,
}

impl<'c> Trees<'c> {
    /// Waits until no other limits are being changed, and keeps others from that.
    pub(crate) fn begin_limits(self) -> MutexGuard<'c, ()> {
        self.under_way.charging.changing.lock()
    }

    /// The same, if no limits are being changed now.
    pub(crate) fn try_begin_limits(self) -> Option<MutexGuard<'c, ()>> {
        self.under_way.charging.changing.try_lock()
    }

    /// Returns the limits that a directory has.
    ///
    /// # Errors
    /// ENOENT; ENOTDIR for something else; EROFS for a snapshot, EINVAL for the directories of the snapshots.
    pub(crate) fn limits_of(self, directory: InodeNumber) -> Result<Limits> {
        let top = self.inode(directory.0)?;
        self.check_may_have_limits(&top)?;
        let state = top.read()?;
        Ok(self.top_use(&top, &state).map(|(_, used)| used.limits).unwrap_or_default())
    }

    /// The caller holds no lock of an inode.
    fn check_may_have_limits(self, top: &Inode) -> Result<()> {
        if top.kind != FileKind::Directory {
            return Err(posix("it is not a directory", errno::ENOTDIR));
        }
        top.check_changeable(DOING)?;
        let hidden = match self.entry(InodeNumber::ROOT, SNAPSHOTS[0]) {
            Ok(hidden) => Some(hidden.ino.0),
            Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        if hidden == Some(top.ino) || hidden == Some(top.parent.load(Ordering::Relaxed)) {
            return Err(posix("it holds the snapshots of the file system", errno::EINVAL));
        }
        match top.read()?.attributes.nlink {
            0 => Err(posix("the directory was removed", errno::ENOENT)),
            _ => Ok(()),
        }
    }

    /// Returns number and use of the tree whose limits stand on this directory, if it is whole.
    fn top_use(self, top: &Inode, state: &State) -> Option<(u16, TreeUse)> {
        let number = limits_of(state)?.tree;
        self.limits.get(number).filter(|used| used.top == Some(top.ino)).map(|used| (number, used))
    }

    /// Sets the limits of a directory by one commit. If it had none before, or has none after it, steps charge what is
    /// below.
    ///
    /// # Errors
    /// Those of [`Trees::limits_of`]; EINVAL for a root that expires; ENOSPC, also if 65,535 trees have limits.
    pub(crate) fn set_limits(self, directory: InodeNumber, limits: &Limits) -> Result<()> {
        if directory == InodeNumber::ROOT && limits.expires.is_some() {
            return Err(posix("the root of the file system stays, so it cannot expire", errno::EINVAL));
        }
        let top = self.inode(directory.0)?;
        self.check_may_have_limits(&top)?;
        self.require_feature(LIMITS)?;
        self.with_tree_above(&top, DOING, |state, above| {
            let before = self.top_use(&top, state);
            match (before, *limits == Limits::default()) {
                (None, true) => Ok(()),
                (None, false) => self.begin_to_limit(&top, state, limits),
                (Some((number, _)), true) => self.begin_to_free(&top, state, number, above),
                (Some((number, used)), false) => {
                    let value = TreeLimits::new(number, limits, used.is_being_charged);
                    self.write_limits(&top, state, Some(&value), state.attributes.tree)?;
                    self.limits.set(number, top.ino, limits, used.is_being_charged);
                    Ok(())
                }
            }
        })
    }

    fn begin_to_limit(self, top: &Inode, state: &mut State, limits: &Limits) -> Result<()> {
        let Some(number) = self.limits.take_number(Some(top.ino), limits) else {
            return Err(posix("65535 trees have limits, and no more can", errno::ENOSPC));
        };
        let is_being_charged = has_any_names(state);
        let value = TreeLimits::new(number, limits, is_being_charged);
        let written = self.write_limits(top, state, Some(&value), number);
        match written {
            Ok(()) => self.limits.set(number, top.ino, limits, is_being_charged),
            Err(_) => self.limits.lose_top(number, top.ino),
        }
        written
    }

    fn begin_to_free(self, top: &Inode, state: &mut State, number: u16, above: u16) -> Result<()> {
        let none = Limits::default();
        if !has_any_names(state) {
            self.write_limits(top, state, None, above)?;
            self.limits.lose_top(number, top.ino);
            return Ok(());
        }
        self.write_limits(top, state, Some(&TreeLimits::new(number, &none, true)), above)?;
        self.limits.set(number, top.ino, &none, true);
        Ok(())
    }

    /// Does one step of charging what is below a directory whose limits were set or removed; true if nothing is left to do.
    /// The caller has begun a change of limits.
    ///
    /// # Errors
    /// ENOSPC; errors of the device.
    pub(crate) fn charge_step(self) -> Result<bool> {
        let mut walk = self.under_way.charging.walk.lock();
        if walk.is_none() {
            let Some((number, used)) = self.limits.being_charged() else { return Ok(true) };
            match used.top.map(|top| self.inode(top)) {
                Some(Ok(top)) => {
                    *walk = Some(ChargeWalk { number, top: top.file_id(), left: vec![(top.file_id(), 0)] });
                }
                _ => used.top.iter().for_each(|top| self.limits.lose_top(number, *top)),
            }
            return Ok(false);
        }
        let at = walk.as_mut().expect("one is under way");
        let Some((directory, cookie)) = at.left.last().copied() else {
            self.end_walk(at)?;
            *walk = None;
            return Ok(false);
        };
        let mut below = Vec::new();
        let next = match self.inode_of(directory) {
            Ok(Some(inode)) => self.charge_names(&inode, cookie, &mut below)?,
            // It was removed.
            Ok(None) | Err(Error::NotFound { .. }) => None,
            Err(error) if error.is_of_device() => return Err(error),
            Err(error) => {
                self.record_skipped(&error);
                None
            }
        };
        self.region.check()?;
        match next {
            Some(cookie) => at.left.last_mut().expect("it is still there").1 = cookie,
            None => drop(at.left.pop()),
        }
        at.left.extend(below.into_iter().map(|directory| (directory, 0)));
        Ok(false)
    }

    /// Does all steps, as far as they can be done now.
    ///
    /// # Errors
    /// Those of the steps, but for ENOSPC: the next mount goes on.
    pub(crate) fn end_charging(self) -> Result<()> {
        let _alone = self.begin_limits();
        loop {
            match self.core.change_in_background(DOING, || self.charge_step()) {
                Ok(false) => {}
                Ok(true) | Err(Error::NoSpace { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Says that all below a top are charged, or that its limits are gone.
    fn end_walk(self, walk: &ChargeWalk) -> Result<()> {
        let ended = match self.inode_of(walk.top) {
            Ok(Some(top)) => top.write().map(|mut state| self.end_charging_top(&top, &mut state, walk.number)),
            Ok(None) => Err(Error::NotFound { what: format!("inode {}", walk.top.number) }),
            Err(error) => Err(error),
        };
        match ended {
            Ok(done) => done,
            Err(Error::NotFound { .. }) => {
                self.limits.lose_top(walk.number, walk.top.number);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn end_charging_top(self, top: &Inode, state: &mut State, number: u16) -> Result<()> {
        let Some((_, used)) = self.top_use(top, state).filter(|(found, _)| *found == number) else {
            self.limits.lose_top(number, top.ino);
            return Ok(());
        };
        let tree = state.attributes.tree;
        match tree == number {
            true => {
                self.write_limits(top, state, Some(&TreeLimits::new(number, &used.limits, false)), tree)?;
                self.limits.set(number, top.ino, &used.limits, false);
            }
            false => {
                self.write_limits(top, state, None, tree)?;
                self.limits.lose_top(number, top.ino);
            }
        }
        Ok(())
    }

    /// True if inodes are still to be charged.
    pub(crate) fn is_charging(self) -> bool {
        self.limits.being_charged().is_some()
    }

    /// Returns the limited tree that an inode is charged to.
    ///
    /// # Errors
    /// ENOENT, EIO.
    pub(crate) fn limited_tree(self, of: InodeNumber) -> Result<Option<LimitedTree>> {
        let tree = self.inode(of.0)?.read()?.attributes.tree;
        Ok(self.limits.get(tree).and_then(of_use))
    }

    /// Returns all limited trees whose directories have a name, by the numbers of these.
    pub(crate) fn limited_trees(self) -> Vec<LimitedTree> {
        let is_named = |tree: &LimitedTree| {
            self.inode(tree.top.0).is_ok_and(|top| top.read().is_ok_and(|state| state.attributes.nlink > 0))
        };
        let all = self.limits.all().into_iter().filter_map(|(_, used)| of_use(used));
        let mut all: Vec<LimitedTree> = all.filter(is_named).collect();
        all.sort_unstable_by_key(|tree| tree.top.0);
        all
    }

    /// Returns the bytes of blocks and packed chunks that only files below this directory reference, as far as nothing
    /// changes meanwhile.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EIO.
    pub(crate) fn stored_alone_bytes(self, directory: InodeNumber) -> Result<u64> {
        if self.inode(directory.0)?.kind != FileKind::Directory {
            let (doing, why) = ("find what a tree stores alone", "it is not a directory");
            return Err(Error::Posix { doing, why, errno: errno::ENOTDIR });
        }
        Ok(self.snapshot_usage(directory)?.alone_bytes)
    }

    /// Takes the trees out of the name space whose time has come. Steps free them.
    ///
    /// # Errors
    /// Errors of the device. Others leave a tree where it is, and are counted as skipped.
    pub(crate) fn remove_expired(self) -> Result<Vec<ExpiredTree>> {
        let now = self.now();
        let mut removed = Vec::new();
        let all = self.limits.all().into_iter().filter_map(|(_, used)| of_use(used));
        for tree in all.filter(|tree| tree.limits.expires.is_some_and(|time| time <= now)) {
            let gone = self.path_of(tree.top).and_then(|path| Ok((path, self.remove_directory(tree.top)?)));
            match gone {
                Ok((path, (parent, _))) => removed.push(ExpiredTree { path, parent, tree }),
                // It is in a removed tree, or was removed by somebody else.
                Err(Error::NotFound { .. }) => {}
                Err(error) if error.is_of_device() => return Err(error),
                Err(error) => self.record_skipped(&error),
            }
        }
        Ok(removed)
    }

    /// Returns the path of a directory from the root.
    pub(crate) fn path_of(self, directory: InodeNumber) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = directory.0;
        while at != InodeNumber::ROOT.0 {
            let absent = || Error::NotFound { what: format!("a path to inode {}", directory.0) };
            if names.len() as u64 > self.table.end() {
                return Err(absent());
            }
            let parent = self.inode(self.inode(at)?.parent.load(Ordering::Relaxed))?;
            let state = parent.read()?;
            let Body::Directory(all) = &state.body else { return Err(absent()) };
            let name = all.listed_after(0).find(|name| name.ino == at).ok_or_else(absent)?;
            names.push(name.name(&self.region));
            at = parent.ino;
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }
}

fn of_use(used: TreeUse) -> Option<LimitedTree> {
    let TreeUse { top, limits, logical_bytes, inodes, is_being_charged } = used;
    Some(LimitedTree { top: InodeNumber(top?), limits, logical_bytes, inodes, is_being_charged })
}

fn has_any_names(state: &State) -> bool {
    matches!(&state.body, Body::Directory(names) if !names.is_empty())
}

fn posix(why: &'static str, errno: i32) -> Error {
    Error::Posix { doing: DOING, why, errno }
}
