//! What the extents of a file map: reading it.

use super::Store;
use crate::chunk::content::{PackedParts, Unreadable};
use crate::compression::FrameError;
use crate::error::{Error, Result, errno};
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Body, State};
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::{BLOCK_BYTES, ChunkRef, Location, PackedNumber};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// How many short extents are prefetched together.
const FETCHED_TOGETHER: usize = 16;
/// Extents of so many bytes are not prefetched: the CPU's own prefetcher finds their lines.
const FETCHED_BYTES: u64 = 1024;

/// The part of a buffer that is not filled yet, and its file offset.
struct Unread<'b> {
    buffer: &'b mut [u8],
    at: u64,
}

impl<'b> Unread<'b> {
    /// Fills what lies before file offset `start` with zeros, and returns the `length` bytes from there on. `None` if
    /// they do not lie in the buffer.
    #[inline]
    fn take(&mut self, start: u64, length: u64) -> Option<&'b mut [u8]> {
        let hole_bytes = start.checked_sub(self.at)? as usize;
        let (hole, rest) = std::mem::take(&mut self.buffer).split_at_mut_checked(hole_bytes)?;
        let (part, rest) = rest.split_at_mut_checked(length as usize)?;
        hole.fill(0);
        (self.buffer, self.at) = (rest, start + length);
        Some(part)
    }
}

impl Store {
    /// Reads `buffer.len()` bytes that the extents map from a file offset on. Holes read as zeros.
    ///
    /// # Errors
    /// EIO if a packed chunk is damaged. Bad memory is reported by [`Store::answer`].
    #[inline]
    pub(crate) fn read_extents(&self, extents: &Extents, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(buffer.len() as u64).ok_or_else(|| disordered(offset))?;
        // Most reads find one extent of blocks.
        if let Some((start, Extent { length, location: Location::Media(address), unwritten: false })) =
            extents.within(offset, end).next()
            && start == offset
            && length == end - offset
        {
            self.region.read_into(address, buffer);
            return Ok(());
        }
        self.read_parts(extents, offset..end, buffer)
    }

    /// Reads any number of extents, and the holes between them.
    fn read_parts(&self, extents: &Extents, range: Range<u64>, buffer: &mut [u8]) -> Result<()> {
        let mut unread = Unread { buffer, at: range.start };
        let mut extents = extents.within(range.start, range.end).filter(|(_, extent)| !extent.unwritten);
        let mut packed = self.chunks.packed_parts();
        let mut next = extents.next();
        while let Some(first) = next {
            next = extents.next();
            if next.is_none() || first.1.length >= FETCHED_BYTES {
                self.read_extent(first, &mut unread, &mut packed)?;
                continue;
            }
            let mut group: SmallVec<[(u64, Extent); FETCHED_TOGETHER]> = smallvec![first];
            group.extend(next.into_iter().chain(extents.by_ref().take(FETCHED_TOGETHER - 2)));
            next = extents.next();
            self.fetch_short(&group);
            group.into_iter().try_for_each(|extent| self.read_extent(extent, &mut unread, &mut packed))?;
        }
        unread.buffer.fill(0);
        Ok(())
    }

    /// Reads one extent, after the hole before it.
    #[inline]
    fn read_extent(
        &self,
        (start, extent): (u64, Extent),
        unread: &mut Unread<'_>,
        packed: &mut PackedParts<'_>,
    ) -> Result<()> {
        let part = unread.take(start, extent.length).ok_or_else(|| disordered(start))?;
        match extent.location {
            Location::Media(address) => {
                self.region.read_into(address, part);
                Ok(())
            }
            Location::Packed(chunk, offset) => {
                packed.read(chunk, u64::from(offset), part).map_err(|why| self.unreadable(chunk, why))
            }
        }
    }

    /// Prefetches the lines of short extents, which lie far from each other, so that they arrive together.
    fn fetch_short(&self, extents: &[(u64, Extent)]) {
        let short = extents.iter().filter(|(_, extent)| extent.length < FETCHED_BYTES);
        let lines = short.filter_map(|(_, extent)| match extent.location {
            Location::Media(address) => Some((address, extent.length)),
            Location::Packed(chunk, _) => Some((self.chunks.entries.packed_offset(chunk)?, ENTRY_BYTES)),
        });
        self.region.fetch(&lines.collect::<SmallVec<[_; FETCHED_TOGETHER]>>());
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
