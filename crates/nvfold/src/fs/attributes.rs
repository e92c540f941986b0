//! Attributes of inodes: what `stat` tells and `chmod`, `chown` and `utimes` change.

use super::Core;
use super::birth::MODE_BITS;
use crate::error::Result;
use crate::inode::{Inode, State};
use crate::media::inode::AttributeLine;
use crate::space::Purpose;
use crate::words::{Attr, InodeNumber, SetAttr};
use pmem::Flight;

impl Core {
    pub(crate) fn setattr(&self, ino: InodeNumber, change: &SetAttr) -> Result<Attr> {
        let inode = self.inode(ino.0)?;
        let mut state = inode.write()?;
        let now = self.now();
        if let Some(size) = change.size {
            self.resize(&inode, &mut state, size, now)?;
        }
        let old = state.attributes;
        let attributes = AttributeLine {
            mode: change.mode.map_or(old.mode, |mode| mode & MODE_BITS),
            uid: change.uid.unwrap_or(old.uid),
            gid: change.gid.unwrap_or(old.gid),
            atime: change.atime.unwrap_or(old.atime),
            mtime: change.mtime.unwrap_or(old.mtime),
            ctime: change.ctime.unwrap_or(now),
            ..old
        };
        if change.size.is_none() || attributes != old {
            self.change(&inode, &mut state, &[], Some(attributes), Purpose::Promised, Flight::new())?;
        }
        Ok(inode.attr(&state))
    }

    /// Changes how many names an inode has, and nothing else of it.
    pub(crate) fn set_nlink(&self, inode: &Inode, state: &mut State, nlink: u32) -> Result<()> {
        if state.attributes.nlink == nlink {
            return Ok(());
        }
        let attributes = AttributeLine { nlink, ..state.attributes };
        self.change(inode, state, &[], Some(attributes), Purpose::Promised, Flight::new())
    }
}
