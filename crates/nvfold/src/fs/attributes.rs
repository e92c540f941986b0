//! Attributes of inodes: what `stat` returns and `chmod`, `chown` and `utimes` change.

use super::Core;
use super::birth::kept_mode;
use super::xattr::check_changes;
use crate::error::Result;
use crate::inode::{Inode, State};
use crate::media::inode::AttributeLine;
use crate::space::Purpose;
use crate::words::{Attr, InodeNumber, SetAttr, TimeNs, Times, XattrChange};
use pmem::Flight;

impl Core {
    /// Changes attributes and extended attributes in one commit. A new size truncates or extends the file.
    pub(crate) fn setattr(&self, ino: InodeNumber, change: &SetAttr, xattrs: &[XattrChange<'_>]) -> Result<Attr> {
        const DOING: &str = "change attributes";
        let inode = self.inode(ino.0)?;
        inode.check_changeable(DOING)?;
        check_changes(DOING, inode.kind, xattrs)?;
        let (leaves, mut state) = loop {
            let leaves = self.leave_domain(&inode, change.uid)?;
            let state = inode.write()?;
            // Another thread may have changed the owner in between.
            if leaves.is_some() || !self.leaves_domain(&inode, &state, change.uid) {
                break (leaves, state);
            }
        };
        if let Some(size) = change.size {
            self.check_size(&state, size)?;
        }
        let now = self.now();
        let attributes = changed(&state.attributes, change, now);
        let mut flight = Flight::new();
        let staged = self.stage_xattrs(&state, xattrs, now, &mut flight)?;
        self.set_attributes(&inode, &mut state, &attributes, change.size, staged.entries(), flight)?;
        staged.published(&inode, &state);
        let attr = inode.attr(&state);
        drop(state);
        drop(leaves);
        Ok(attr)
    }

    /// Changes the link count of an inode and nothing else.
    pub(crate) fn set_nlink(&self, inode: &Inode, state: &mut State, nlink: u32) -> Result<()> {
        if state.attributes.nlink == nlink {
            return Ok(());
        }
        let attributes = AttributeLine { nlink, ..state.attributes };
        self.change(inode, state, &[], Some(attributes), Purpose::Promised, Flight::new())
    }
}

/// Returns the attributes after a change. A size that is set changes mtime, whatever it was before.
fn changed(old: &AttributeLine, change: &SetAttr, now: TimeNs) -> AttributeLine {
    let (mtime, ctime) = match change.times {
        Times::Stamped => (if change.size.is_some() { now } else { old.mtime }, now),
        Times::Kept => (old.mtime, old.ctime),
    };
    AttributeLine {
        mode: change.mode.map_or(old.mode, kept_mode),
        uid: change.uid.unwrap_or(old.uid),
        gid: change.gid.unwrap_or(old.gid),
        size: change.size.unwrap_or(old.size),
        atime: change.atime.unwrap_or(old.atime),
        mtime: change.mtime.unwrap_or(mtime),
        ctime: change.ctime.unwrap_or(ctime),
        ..*old
    }
}
