//! Times: who sets mtime and ctime, the kernel or the server.
//!
//! The problem: with its writeback cache the kernel itself keeps mtime and ctime of a regular file that it knows, ignores
//! those in replies, and tells its own later. If the server stamped the time at which data arrives, a file would have
//! another time once the kernel has dropped the inode. Without that cache the kernel keeps no times, and tells the server
//! nothing of a store to a shared mapping before it writes the page back.
//!
//! The idea: each time has one owner.
//!
//! ```text
//!                               regular files, writeback=on            all others, writeback=off, cache=none
//! new inode                     the server; the kernel takes it over   the server
//! write, mapping, fallocate,    the kernel: told when the inode is     the server, when it answers; for a mapping,
//!   clone, truncate               written back; the server keeps what    when its pages are written back
//!                                 it has ([`Times::Kept`])
//! chmod, chown, utimensat       the kernel, in the same request        the server
//! xattr, link, rename, unlink   the kernel, before the call returns    the server
//! atime, btime                  the server; only utimensat changes an atime
//! ```
//!
//! The kernel writes an inode back before `fsync` and `close` return, with `sync`, and together with its pages in the
//! background. If the server is killed before, the file has the times that were told last: those of its making or of an
//! earlier change, beside content that may be newer.
//!
//! A page of a mapping that is written back late must not take the place of a time that was set after the store. So
//! before the server sets an mtime that it owns, the kernel writes back the pages of the file.

use super::{Answer, Front};
use crate::convert;
use nvfold::{Attr, File, FileKind, InodeNumber, SetAttr, Times};
use nvfold_fuse::Caller;

impl Front {
    /// Opens a regular file to change its content.
    pub(crate) fn open_to_change(&self, ino: InodeNumber) -> nvfold::Result<File> {
        let times = if self.has_writeback { Times::Kept } else { Times::Stamped };
        Ok(self.fs.open(ino)?.with_times(times))
    }

    /// Returns what a change of attributes does to times that it does not give.
    pub(crate) fn times_of_change(&self, ino: InodeNumber, change: &SetAttr) -> Answer<Times> {
        let may_be_kept = self.has_writeback && change.ctime.is_none();
        let is_regular = |attr: Attr| attr.kind == FileKind::Regular;
        let is_kept = may_be_kept && self.fs.getattr(ino).map(is_regular).map_err(convert::errno)?;
        Ok(if is_kept { Times::Kept } else { Times::Stamped })
    }

    /// Makes the kernel write back the pages of a file whose mtime is about to be set, if the server owns it. Not with a
    /// new size: the kernel then writes back only after the reply.
    pub(crate) fn write_back_before(&self, who: &Caller, ino: InodeNumber, change: &SetAttr) {
        let sets_own = !self.has_writeback && change.mtime.is_some() && change.size.is_none();
        if sets_own && self.lookups.may_have_pages(ino) {
            who.while_waiting(ino.0, || self.notices.write_back(ino));
        }
    }
}
