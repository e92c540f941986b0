//! Giving a tree that was made without a name its name, by one commit.

use super::Core;
use super::names::{check_no_self, check_not_reserved, check_place, directory, show};
use crate::error::{Error, Result, errno};
use crate::inode::{Inode, State};
use crate::media::inode::AttributeLine;
use crate::media::log_entry::LogEntry;
use crate::space::Purpose;
use crate::store::change::Change;
use crate::store::limits::limits_of;
use crate::words::{Attr, FileId, FileKind, InodeNumber};
use pmem::Flight;

const DOING: &str = "link a tree";

impl Core {
    /// Gives a directory that no name leads to its first name.
    ///
    /// # Errors
    /// EEXIST, ENOENT, ENOTDIR, EROFS below a snapshot, EBUSY if the limits of its place were changed, ENOSPC, EIO.
    pub(crate) fn link_tree(&self, top: u64, parent: InodeNumber, name: &[u8]) -> Result<Attr> {
        let (parent, top) = (self.inode(parent.0)?, self.inode(top)?);
        parent.check_changeable(DOING)?;
        let mut parent_state = parent.write()?;
        let names = directory(DOING, &parent_state)?;
        if names.find(name, &self.region).is_some() {
            return Err(Error::Exists { what: show(name) });
        }
        let (cookie, time) = (names.next_cookie(), self.now());
        let entries = [LogEntry::Name { name: name.to_vec(), ino: top.ino, kind: top.kind, cookie, time }];
        let mut state = top.write()?;
        check_charged_right(&state, parent_state.attributes.tree)?;
        self.change_all(
            &mut [
                Change::of_entries(&parent, &mut parent_state, &entries),
                Change::of_attributes(&top, &mut state, linked),
            ],
            &[],
            Flight::new(),
        )?;
        Ok(top.attr(&state))
    }

    /// The same, in place of another directory, which becomes the top of a tree that is to be freed.
    ///
    /// # Errors
    /// Those of [`Core::link_tree`], but for EEXIST; ENOTDIR if the name is not that of a directory.
    pub(crate) fn replace_tree(&self, top: u64, parent: InodeNumber, name: &[u8]) -> Result<(Attr, FileId)> {
        let _tree = self.tree.lock();
        let (parent, top) = (self.inode(parent.0)?, self.inode(top)?);
        parent.check_changeable(DOING)?;
        check_not_reserved(DOING, &parent, name)?;
        let mut parent_state = parent.write()?;
        let slot = self.find(DOING, &parent_state, name)?;
        if slot.kind() != FileKind::Directory {
            let why = "what has the name is not a directory";
            return Err(Error::Posix { doing: DOING, why, errno: errno::ENOTDIR });
        }
        check_no_self(&slot, &parent)?;
        let old = self.named_inode(&slot)?;
        old.check_changeable(DOING)?;
        check_place(&old, &parent)?;
        let (cookie, time) = (directory(DOING, &parent_state)?.next_cookie(), self.now());
        let entries = [
            LogEntry::Unname { cookie: slot.cookie, time },
            LogEntry::Name { name: name.to_vec(), ino: top.ino, kind: top.kind, cookie, time },
        ];
        let old_first = old.ino < top.ino;
        let early = old_first.then(|| old.write()).transpose()?;
        let mut state = top.write()?;
        let mut old_state = early.map_or_else(|| old.write(), Ok)?;
        match (limits_of(&state), limits_of(&old_state)) {
            (None, None) => check_charged_right(&state, parent_state.attributes.tree)?,
            (Some(own), Some(old)) if own.limits() == old.limits() && !old.is_being_charged() => {}
            _ => return Err(limits_changed()),
        }
        self.change_all(
            &mut [
                Change::of_entries(&parent, &mut parent_state, &entries),
                Change::of_attributes(&top, &mut state, linked),
                Change::of_attributes(&old, &mut old_state, |old| AttributeLine { nlink: 0, ctime: time, ..*old }),
            ],
            &[],
            Flight::new(),
        )?;
        Ok((top.attr(&state), old.file_id()))
    }
}

/// Checks that a copy was charged to the limited tree that its new place is in, for that may have changed meanwhile.
///
/// # Errors
/// EBUSY.
fn check_charged_right(copy: &State, tree: u16) -> Result<()> {
    if copy.attributes.tree == tree { Ok(()) } else { Err(limits_changed()) }
}

fn limits_changed() -> Error {
    let why = "the limits of its new place were changed meanwhile; nothing was copied, try again";
    Error::Posix { doing: DOING, why, errno: errno::EBUSY }
}

fn linked(before: &AttributeLine) -> AttributeLine {
    AttributeLine { nlink: 1, ..*before }
}

impl<'i, 's> Change<'i, 's> {
    fn of_entries(inode: &'i Inode, state: &'s mut State, entries: &'i [LogEntry]) -> Change<'i, 's> {
        Change { inode, state, entries, attributes: None, purpose: Purpose::Log }
    }

    fn of_attributes(
        inode: &'i Inode,
        state: &'s mut State,
        after: impl Fn(&AttributeLine) -> AttributeLine,
    ) -> Change<'i, 's> {
        let attributes = Some(after(&state.attributes));
        Change { inode, state, entries: &[], attributes, purpose: Purpose::Log }
    }
}
