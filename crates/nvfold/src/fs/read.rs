//! Reading, and looking for data and holes.

use super::Core;
use crate::error::{Error, Result, errno};
use crate::inode::Inode;
use crate::words::Whence;

impl Core {
    /// Reads up to `buffer.len()` bytes from `offset` on, and returns how many; fewer only at the end of the file.
    ///
    /// # Errors
    /// EISDIR, EINVAL; EIO for damage.
    pub(crate) fn read(&self, inode: &Inode, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let state = inode.read()?;
        let extents = self.file_extents(&state, "read")?;
        let length = state.attributes.size.saturating_sub(offset).min(buffer.len() as u64);
        self.read_extents(extents, offset, &mut buffer[..length as usize])?;
        Ok(length as usize)
    }

    /// Returns the first offset at or after `offset` that is data or a hole, as `whence` says.
    ///
    /// # Errors
    /// ENXIO if there is none or `offset` is at or after the end of the file.
    pub(crate) fn seek(&self, inode: &Inode, offset: u64, whence: Whence) -> Result<u64> {
        let state = inode.read()?;
        let extents = self.file_extents(&state, "seek")?;
        let size = state.attributes.size;
        let none = Error::Posix { doing: "seek", why: "there is no data at or after the offset", errno: errno::ENXIO };
        if offset >= size {
            return Err(none);
        }
        match whence {
            Whence::Hole => Ok(extents.next_hole(offset).min(size)),
            Whence::Data => extents.next_data(offset).filter(|at| *at < size).ok_or(none),
        }
    }
}
