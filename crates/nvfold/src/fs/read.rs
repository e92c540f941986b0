//! Reading.

use super::Core;
use crate::chunk::content::Unreadable;
use crate::compression::FrameError;
use crate::error::{Error, Result, errno};
use crate::inode::extents::Extents;
use crate::inode::{Body, Inode, State};
use crate::media::{ChunkRef, Location, PackedNumber};
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

    /// Reads `buffer.len()` bytes that the extents map from a file offset on. Holes read as zeros.
    ///
    /// # Errors
    /// EIO if a packed chunk is damaged. Bad memory is reported by [`Core::answer`].
    pub(super) fn read_extents(&self, extents: &Extents, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(buffer.len() as u64).ok_or_else(|| disordered(offset))?;
        // The part of the buffer that is not filled yet, and its file offset.
        let (mut left, mut at) = (buffer, offset);
        for (start, extent) in extents.within(offset, end).filter(|(_, extent)| !extent.unwritten) {
            let hole = start.checked_sub(at).and_then(|hole| left.split_at_mut_checked(hole as usize));
            let (hole, rest) = hole.ok_or_else(|| disordered(start))?;
            let parts = rest.split_at_mut_checked(extent.length as usize);
            let (part, rest) = parts.ok_or_else(|| disordered(start))?;
            hole.fill(0);
            (left, at) = (rest, start + extent.length);
            match extent.location {
                Location::Media(address) => self.region.read_into(address, part),
                Location::Packed(chunk, offset) => {
                    let read = self.chunks.read_packed(chunk, u64::from(offset), part);
                    read.map_err(|why| self.unreadable(chunk, why))?;
                }
            }
        }
        left.fill(0);
        Ok(())
    }

    /// Makes the error for a packed chunk whose content cannot be read.
    #[cold]
    fn unreadable(&self, chunk: PackedNumber, why: Unreadable) -> Error {
        match why {
            Unreadable::Entry => self.lost_chunk(chunk.into()),
            Unreadable::Lost => Error::Posix {
                doing: "read",
                why: "the compressed content of this range was damaged, and fsck has given it up; write it anew",
                errno: errno::EIO,
            },
            Unreadable::Frame(at, FrameError::Damaged) => {
                Error::Corrupt { what: format!("packed chunk {}: its compressed content is damaged", chunk.0), at }
            }
            Unreadable::Frame(_, FrameError::UnknownCodec(_)) => Error::Posix {
                doing: "read",
                why: "it is compressed with a codec that this nvfold does not know; use a newer nvfold",
                errno: errno::EIO,
            },
        }
    }

    /// Makes the error for a chunk whose entry is damaged.
    #[cold]
    pub(super) fn lost_chunk(&self, chunk: ChunkRef) -> Error {
        let at = chunk.packed().and_then(|packed| self.chunks.entries.packed_offset(packed)).unwrap_or(0);
        Error::Corrupt { what: format!("{chunk}: its entry is damaged"), at }
    }

    /// Returns the extents of a regular file.
    ///
    /// # Errors
    /// EISDIR for a directory, EINVAL for other inodes that are not regular files.
    #[inline]
    pub(super) fn file_extents<'s>(&self, state: &'s State, doing: &'static str) -> Result<&'s Extents> {
        let (why, errno) = match &state.body {
            Body::File(extents) => return Ok(extents),
            Body::Directory(_) => ("it is a directory", errno::EISDIR),
            Body::Other => ("it is not a regular file", errno::EINVAL),
        };
        Err(Error::Posix { doing, why, errno })
    }
}

/// Makes the error for extents that overlap or are not in order at a file offset: a mistake of an earlier change.
#[cold]
fn disordered(offset: u64) -> Error {
    Error::Corrupt { what: format!("the extents of a file overlap or are out of order at file offset {offset}"), at: 0 }
}
