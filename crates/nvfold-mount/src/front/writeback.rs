//! What programs have written, and the kernel has cached: having all of it stored.
//!
//! The problem: `nvfold sync` must find stored what programs have written, and so must all who look at stored data. But no
//! system call waits for the pages of a whole FUSE file system: syncfs(2) only begins to write there (measured with
//! Linux 6.18.44). The kernel does not say which files it has such pages of either: with the writeback cache, a `write` to
//! a file that it knows is no request.
//!
//! The idea: a notice about each regular file that the kernel knows. It returns when the pages of the file were written
//! back, also those that the kernel was just handing down. What nobody knows has no pages.
//!
//! ```text
//! user.nvfold.write-back, .sync   a command asks (`xattrs`); whoever asks while one is under way shares the next one
//! the mount itself                before it is detached (`mount`), and when it has become read-only (`access`)
//! a clone                         the files of a tree alone (`trees`)
//! ```
//!
//! The kernel writes back one page after the other for a notice, and many at once for syncfs. So a command calls that first.

use super::{Answer, Front};
use nvfold::{FileKind, InodeNumber};
use nvfold_fuse::{Caller, Errno};

impl Front {
    /// Returns when all that was written to any file before the call is stored, or could not be. By no thread that answers
    /// requests: others must answer what the kernel sends.
    pub(crate) fn write_back_known(&self) {
        for ino in self.lookups.known() {
            match self.fs.getattr(ino).map(|attr| attr.kind) {
                Ok(FileKind::Regular) => self.notices.write_back(ino),
                Ok(FileKind::Directory) => self.notices.drop_listing(ino),
                _ => {}
            }
        }
    }

    /// Does that for a request. EAGAIN if its user has too many long ones.
    pub(crate) fn write_back_for(&self, who: &Caller<'_>) -> Answer<()> {
        let _turn = self.turns.take(who.uid).ok_or(Errno::EAGAIN)?;
        let is_regular = |ino: &InodeNumber| self.fs.getattr(*ino).is_ok_and(|attr| attr.kind == FileKind::Regular);
        let Some(any) = self.lookups.known().into_iter().find(is_regular) else { return Ok(()) };
        let write_back = || {
            self.write_back_known();
            Ok(())
        };
        who.while_waiting(any.0, || self.writebacks.sync(write_back))
    }
}
