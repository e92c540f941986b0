//! The limited tree that an inode is charged to, and what names do to it.
//!
//! A directory and its files are charged to one tree, or to none. So a name can be given only in the same tree: a file with
//! names in two trees would be charged to one of them, and moving a directory would be a walk over all below it with all
//! names locked. `rename` and `link` refuse that with EXDEV, as XFS does, and `mv` copies: the blocks are shared.

use super::Core;
use crate::error::{Error, Result, errno};
use crate::inode::{Inode, State};
use crate::media::inode::AttributeLine;
use crate::media::limits::{TREE_LIMITS, TreeLimits};
use crate::media::log_entry::{LogEntry, XattrValue};
use crate::space::Purpose;
use crate::words::FileKind;
use pmem::Flight;
use zerocopy::IntoBytes;

impl Core {
    /// Checks that a locked inode may get a name in a directory that is charged to this tree.
    ///
    /// # Errors
    /// EXDEV; also those of [`Store::check_counted`](crate::store::Store::check_counted).
    #[inline]
    pub(super) fn check_same_tree(&self, doing: &'static str, inode: &Inode, state: &State, tree: u16) -> Result<()> {
        let own = state.attributes.tree;
        if own == tree { Ok(()) } else { self.check_other_tree(doing, inode, own, tree) }
    }

    /// The top of a limited tree keeps its limits wherever it goes, and a file whose tree is no more belongs to any place
    /// without limits.
    #[cold]
    fn check_other_tree(&self, doing: &'static str, inode: &Inode, own: u16, tree: u16) -> Result<()> {
        self.check_counted(doing)?;
        let may_change = match inode.kind {
            FileKind::Directory => self.limits.is_top(own, inode.ino),
            _ => self.limits.known(own) == self.limits.known(tree),
        };
        if may_change {
            return Ok(());
        }
        let why = "its new place is in another limited tree; copy it instead, as mv does: its blocks are shared";
        Err(Error::Posix { doing, why, errno: errno::EXDEV })
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
}
