//! What fsck changes: names, parents and link counts.

use super::Core;
use super::names::{directory, show};
use crate::error::{Error, Result};
use crate::media::inode::{AttributeLine, INODE_BYTES, PARENT_WORD};
use crate::media::journal::WordStore;
use crate::media::log_entry::LogEntry;
use crate::space::Purpose;
use crate::store::change::Change;
use crate::words::FileKind;
use nvfold_sync::atomic::Ordering;
use pmem::Flight;

impl Core {
    /// Repair: removes a name that refers to no inode.
    pub(crate) fn remove_dangling_name(&self, dir: u64, cookie: u64) -> Result<()> {
        let inode = self.inode(dir)?;
        let mut state = inode.write()?;
        let entry = LogEntry::Unname { cookie, time: self.now() };
        self.change(&inode, &mut state, &[entry], None, Purpose::Promised, Flight::new())
    }

    /// Repair: gives an inode without a name one in a directory, in one commit.
    ///
    /// # Errors
    /// EEXIST, ENOSPC.
    pub(crate) fn adopt(&self, dir: u64, ino: u64, name: &[u8]) -> Result<()> {
        let (parent, child) = (self.inode(dir)?, self.inode(ino)?);
        let mut parent_state = parent.write()?;
        let names = directory("move to lost+found", &parent_state)?;
        if names.find(name, &self.region).is_some() {
            return Err(Error::Exists { what: show(name) });
        }
        let (cookie, time) = (names.next_cookie(), self.now());
        let mut state = child.write()?;
        let entry = [LogEntry::Name { name: name.to_vec(), ino, kind: child.kind, cookie, time }];
        let attributes = Some(AttributeLine { nlink: 1, ..state.attributes });
        let is_directory = child.kind == FileKind::Directory;
        let word = WordStore { offset: child.slot + PARENT_WORD, value: dir };
        let (entries, purpose) = (&entry, Purpose::Promised);
        self.change_all(
            &mut [
                Change { inode: &parent, state: &mut parent_state, entries, attributes: None, purpose },
                Change { inode: &child, state: &mut state, entries: &[], attributes, purpose },
            ],
            if is_directory { std::slice::from_ref(&word) } else { &[] },
            Flight::new(),
        )?;
        child.parent.store(if is_directory { dir } else { child.parent.load(Ordering::Relaxed) }, Ordering::Relaxed);
        Ok(())
    }

    /// Repair: corrects the parent of a directory.
    pub(crate) fn set_parent(&self, ino: u64, parent: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut state = inode.write()?;
        if inode.parent.load(Ordering::Relaxed) != parent {
            self.region.check_writable(inode.slot, INODE_BYTES)?;
            let _ = self.region.fence(self.region.store_u64(inode.slot + PARENT_WORD, parent).flush());
            inode.parent.store(parent, Ordering::Relaxed);
        }
        if state.attributes.nlink != 1 {
            self.set_nlink(&inode, &mut state, 1)?;
        }
        Ok(())
    }

    /// Repair: frees a removed inode that has no name.
    pub(crate) fn free_nameless_inode(&self, ino: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut state = inode.write()?;
        self.free_if_unused(&inode, &mut state);
        Ok(())
    }

    /// Repair: sets the link count of an inode that is not a directory to its number of names.
    pub(crate) fn set_link_count(&self, ino: u64, nlink: u32) -> Result<()> {
        let Ok(inode) = self.inode(ino) else { return Ok(()) };
        let mut state = inode.write()?;
        if inode.kind == FileKind::Directory {
            return Ok(());
        }
        self.set_nlink(&inode, &mut state, nlink)
    }
}
