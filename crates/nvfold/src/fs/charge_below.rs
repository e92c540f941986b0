//! Charging what is below a directory that gets limits, or loses them.
//!
//! The steps of `trees` call this for one directory after the other. A directory is charged before its names are listed, so
//! what is made in it later has the right number, and what was made before is listed. A file with several names is charged
//! where it is met last.

use super::Core;
use super::names::{check_no_self, check_place, directory, is_reserved};
use super::remove::TREE_STEP;
use crate::error::{Error, Result};
use crate::inode::directory::NameSlot;
use crate::inode::{Body, Inode, State};
use crate::media::limits::TreeLimits;
use crate::store::limits::limits_of;
use crate::words::{FileId, FileKind, InodeNumber};
use nvfold_sync::atomic::Ordering;
use smallvec::SmallVec;

impl Core {
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
            match self.named_inode(name).and_then(|child| self.charge_child(at, &child, tree, below)) {
                Ok(()) => {}
                Err(error @ Error::NoSpace { .. }) => return Err(error),
                Err(error) if error.is_of_device() => return Err(error),
                Err(error) => self.record_skipped(&error),
            }
        }
        Ok(names.last().map(|last| last.cookie).filter(|_| names.len() == TREE_STEP))
    }

    fn charge_child(&self, at: &Inode, child: &Inode, tree: u16, below: &mut Vec<FileId>) -> Result<()> {
        // What belongs to a snapshot is charged to nobody, and what a panic has made unusable stays as it is.
        if child.is_read_only {
            return Ok(());
        }
        let Ok(mut state) = child.write() else { return Ok(()) };
        if child.kind == FileKind::Directory {
            check_place(child, at)?;
            let has_own = |limits: TreeLimits| self.limits.is_top(limits.tree, child.ino);
            if limits_of(&state).is_some_and(has_own) {
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
