//! The limited tree that an inode is charged to: what names do to it, and charging what is there already.
//!
//! A directory and its files are charged to one tree, or to none. So a name can be given only in the same tree: a file with
//! names in two trees would be charged to one of them, and moving a directory would be a walk over all below it with all
//! names locked. `rename` and `link` refuse that with EXDEV, as XFS does, and `mv` copies: the blocks are shared.
//!
//! When a directory with content gets limits, or loses them, a walk charges what is below in steps. A directory is charged
//! before its names are listed, so what is made in it later has the right number, and what was made before is listed.

use super::Core;
use super::names::{check_no_self, directory, is_reserved, posix};
use super::remove::TREE_STEP;
use crate::error::{Error, Result, errno};
use crate::inode::directory::NameSlot;
use crate::inode::{Body, Inode, State};
use crate::media::inode::AttributeLine;
use crate::media::limits::{TREE_LIMITS, TreeLimits};
use crate::media::log_entry::{LogEntry, XattrValue};
use crate::space::Purpose;
use crate::words::{FileId, FileKind, InodeNumber};
use nvfold_sync::atomic::Ordering;
use pmem::Flight;
use smallvec::SmallVec;
use zerocopy::IntoBytes;

impl Core {
    /// Checks that a locked inode may get a name in a directory that is charged to this tree.
    ///
    /// # Errors
    /// EXDEV.
    #[inline]
    pub(super) fn check_same_tree(&self, doing: &'static str, inode: &Inode, state: &State, tree: u16) -> Result<()> {
        let own = state.attributes.tree;
        if own == tree || self.may_change_tree(inode, own, tree) {
            return Ok(());
        }
        let why = "its new place is in another limited tree; copy it instead, as mv does: its blocks are shared";
        Err(posix(doing, why, errno::EXDEV))
    }

    /// True if this is the top of a limited tree, which keeps its limits, or a file whose tree is no more.
    #[cold]
    fn may_change_tree(&self, inode: &Inode, own: u16, tree: u16) -> bool {
        match inode.kind {
            FileKind::Directory => self.limits.is_top(own, inode.ino),
            _ => self.limits.known(own) == self.limits.known(tree),
        }
    }

    /// Returns the tree that a locked inode is charged to when it is moved into a directory that is charged to `tree`;
    /// `None`: it stays in its directory.
    ///
    /// # Errors
    /// EXDEV.
    pub(super) fn tree_after(
        &self,
        doing: &'static str,
        inode: &Inode,
        state: &State,
        tree: Option<u16>,
    ) -> Result<u16> {
        let own = state.attributes.tree;
        let Some(tree) = tree.filter(|tree| *tree != own) else { return Ok(own) };
        self.check_same_tree(doing, inode, state, tree)?;
        Ok(if inode.kind == FileKind::Directory { own } else { tree })
    }

    /// Charges a locked inode to a tree, by one commit. Its limits do not refuse that.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn charge_inode(&self, inode: &Inode, state: &mut State, tree: u16) -> Result<()> {
        let before = state.attributes.tree;
        if before == tree {
            return Ok(());
        }
        let attributes = Some(AttributeLine { tree, ..state.attributes });
        self.change(inode, state, &[], attributes, Purpose::Promised, Flight::new())?;
        self.move_charge(inode.ino, state, before);
        Ok(())
    }

    /// Changes the limits that stand on a locked directory and the tree that it is charged to, by one commit. `None`
    /// removes the limits.
    ///
    /// # Errors
    /// ENOSPC, EIO.
    pub(crate) fn write_limits(
        &self,
        top: &Inode,
        state: &mut State,
        limits: Option<&TreeLimits>,
        tree: u16,
    ) -> Result<()> {
        let (name, time, before) = (TREE_LIMITS.to_vec(), state.attributes.ctime, state.attributes.tree);
        let entry = match limits {
            Some(limits) => LogEntry::XattrSet { name, value: XattrValue::Inline(limits.as_bytes().to_vec()), time },
            None => LogEntry::XattrRemove { name, time },
        };
        let attributes = Some(AttributeLine { tree, ..state.attributes });
        self.change(top, state, &[entry], attributes, Purpose::Log, Flight::new())?;
        self.move_charge(top.ino, state, before);
        Ok(())
    }

    /// Charges some of what a directory names after `cookie` to the tree that the directory is charged to: its files, and
    /// its directories, which are added to `below`. Returns the cookie to go on after, or `None` if those were the last.
    /// A directory with limits of its own is left out, and so are the snapshots, and what cannot be read.
    ///
    /// # Errors
    /// ENOSPC, EIO.
    pub(crate) fn charge_names(&self, at: &Inode, cookie: u64, below: &mut Vec<FileId>) -> Result<Option<u64>> {
        let _tree = self.tree.lock();
        let Ok(state) = at.read() else { return Ok(None) };
        let (tree, Body::Directory(names)) = (state.attributes.tree, &state.body) else { return Ok(None) };
        let names: SmallVec<[NameSlot; TREE_STEP]> = names.after(cookie).take(TREE_STEP).copied().collect();
        for name in &names {
            if check_no_self(name, at).is_err() || is_reserved(at, &name.name(&self.region)) {
                continue;
            }
            match self.named_inode(name).and_then(|child| self.charge_child(&child, tree, below)) {
                Ok(()) => {}
                Err(error @ Error::NoSpace { .. }) => return Err(error),
                Err(error) if error.is_of_device() => return Err(error),
                Err(error) => self.record_skipped(&error),
            }
        }
        Ok(names.last().map(|last| last.cookie).filter(|_| names.len() == TREE_STEP))
    }

    fn charge_child(&self, child: &Inode, tree: u16, below: &mut Vec<FileId>) -> Result<()> {
        // What belongs to a snapshot is charged to nobody, and what a panic has made unusable stays as it is.
        if child.is_read_only {
            return Ok(());
        }
        let Ok(mut state) = child.write() else { return Ok(()) };
        if child.kind == FileKind::Directory {
            if self.limits.is_top(state.attributes.tree, child.ino) {
                return Ok(());
            }
            below.push(child.file_id());
        }
        self.charge_inode(child, &mut state, tree)
    }

    /// Changes a directory, with the tree that the directory above it is charged to. The caller holds no lock of one.
    ///
    /// # Errors
    /// ENOENT, EIO.
    pub(crate) fn with_tree_above<T>(
        &self,
        top: &Inode,
        doing: &'static str,
        change: impl FnOnce(&mut State, u16) -> Result<T>,
    ) -> Result<T> {
        // Nobody moves it meanwhile.
        let _tree = self.tree.lock();
        let above = match top.ino == InodeNumber::ROOT.0 {
            true => 0,
            false => self.inode(top.parent.load(Ordering::Relaxed))?.read()?.attributes.tree,
        };
        let mut state = top.write()?;
        directory(doing, &state)?;
        change(&mut state, above)
    }
}
