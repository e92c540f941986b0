//! What the extents of a file map: reading it.

use super::Store;
use crate::chunk::content::Unreadable;
use crate::compression::FrameError;
use crate::error::{Error, Result, errno};
use crate::inode::extents::Extents;
use crate::inode::{Body, State};
use crate::media::{BLOCK_BYTES, ChunkRef, Location, PackedNumber};

impl Store {
    /// Reads `buffer.len()` bytes that the extents map from a file offset on. Holes read as zeros.
    ///
    /// # Errors
    /// EIO if a packed chunk is damaged. Bad memory is reported by [`Store::answer`].
    pub(crate) fn read_extents(&self, extents: &Extents, offset: u64, buffer: &mut [u8]) -> Result<()> {
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
                why: "the compressed content of this range was damaged, and fsck has given it up; write it again",
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
    pub(crate) fn lost_chunk(&self, chunk: ChunkRef) -> Error {
        let at = chunk.packed().and_then(|packed| self.chunks.entries.packed_offset(packed)).unwrap_or(0);
        Error::Corrupt { what: format!("{chunk}: its entry is damaged"), at }
    }

    /// Returns the extents of a regular file.
    ///
    /// # Errors
    /// EISDIR for a directory, EINVAL for other inodes that are not regular files.
    #[inline]
    pub(crate) fn file_extents<'s>(&self, state: &'s State, doing: &'static str) -> Result<&'s Extents> {
        let (why, errno) = match &state.body {
            Body::File(extents) => return Ok(extents),
            Body::Directory(_) => ("it is a directory", errno::EISDIR),
            Body::Other => ("it is not a regular file", errno::EINVAL),
        };
        Err(Error::Posix { doing, why, errno })
    }

    /// Fills `bytes` with the content of the file from the start of the block that contains `offset`, and overwrites
    /// it with `part` at file offset `offset`. Returns the file offset of `bytes`.
    pub(super) fn patch(&self, extents: &Extents, offset: u64, part: &[u8], bytes: &mut [u8]) -> Result<u64> {
        let start = offset / BLOCK_BYTES * BLOCK_BYTES;
        self.read_extents(extents, start, bytes)?;
        // Unreadable memory reads as zeros; those must not become content of the file.
        self.region.check()?;
        let at = (offset - start) as usize;
        bytes[at..at + part.len()].copy_from_slice(part);
        Ok(start)
    }
}

/// Makes the error for extents that overlap or are not in order at a file offset: a mistake of an earlier change.
#[cold]
fn disordered(offset: u64) -> Error {
    Error::Corrupt { what: format!("the extents of a file overlap or are out of order at file offset {offset}"), at: 0 }
}
