//! The content of chunks: the only code that reads the bytes of a packed chunk.
//!
//! The problem: an extent references a packed chunk by number. Only the chunk's entry, which may be damaged, says
//! where its bytes are and whether they are compressed.
//!
//! The idea: other modules ask for content by chunk and offset, and learn only whether it is readable. The chunk may
//! move at any time, so code that looks up its place holds a [`Pin`] until it has read the bytes.

use super::Chunks;
use super::epochs::Pin;
use crate::compression::{FrameError, with_content};
use crate::media::chunk_entry::{CLASS_LOST, ChunkEntry};
use crate::media::packed::PackedBytes;
use crate::media::{BLOCK_BYTES, ChunkRef, Location, PackedNumber};
use pmem::Region;
use std::ops::Range;

impl Chunks {
    /// Pins a packed chunk: until the pin is dropped, bytes at a place that was looked up under it are not reused.
    #[inline]
    fn pin(&self, chunk: ChunkRef) -> Option<Pin<'_>> {
        chunk.packed().map(|_| self.epochs.pin())
    }

    /// Returns the media address and the stored length, in bytes, of a chunk on which the caller holds a reference.
    /// `None` if a packed chunk's entry is damaged or its part of the table is missing. A packed chunk may move, but
    /// the bytes at the address stay valid for a caller that pinned it before.
    #[inline]
    pub(crate) fn place_of(&self, chunk: ChunkRef) -> Option<(u64, u64)> {
        match chunk {
            ChunkRef::Block(block) => Some((block.address(), BLOCK_BYTES)),
            ChunkRef::Packed(packed) => {
                let entry = self.sound_entry(packed)?;
                Some((entry.address(), entry.stored_bytes()))
            }
        }
    }

    /// Returns the entry of a packed chunk if it is there, counts, and is plausible.
    #[inline]
    fn sound_entry(&self, chunk: PackedNumber) -> Option<ChunkEntry> {
        self.last_entry(chunk).filter(|entry| !entry.is_empty())
    }

    /// Does the same for a chunk that the caller has freed and whose entry it has not given back.
    #[inline]
    fn last_entry(&self, chunk: PackedNumber) -> Option<ChunkEntry> {
        let entry: ChunkEntry = self.region.read(self.entries.packed_offset(chunk)?);
        entry.check(chunk.into(), |at, bytes| self.geometry.holds_data(at, bytes)).is_ok().then_some(entry)
    }

    /// Returns the last place of a packed chunk that the caller has freed and whose entry it has not given back. Such
    /// a chunk no longer moves.
    pub(crate) fn last_place_of(&self, chunk: PackedNumber) -> Option<(u64, u64)> {
        self.last_entry(chunk).map(|entry| (entry.address(), entry.stored_bytes()))
    }

    /// Returns the media address of a packed chunk's content; `None` if it is compressed. The caller holds a pin.
    pub(crate) fn plain_address(&self, chunk: PackedNumber) -> Option<u64> {
        let entry = self.sound_entry(chunk)?;
        (!entry.packed_bytes().is_compressed()).then(|| entry.address())
    }

    /// Returns the content and stored lengths of a packed chunk; `None` if its entry is damaged.
    pub(crate) fn packed_bytes(&self, chunk: PackedNumber) -> Option<PackedBytes> {
        self.sound_entry(chunk).map(|entry| entry.packed_bytes())
    }

    /// Begins to read parts of packed chunks for one request.
    #[inline]
    pub(crate) fn packed_parts(&self) -> PackedParts<'_> {
        PackedParts { chunks: self, pin: None, last: None }
    }

    /// Returns the whole content of a referenced chunk. `None` if it is damaged or in bad memory; the caller's
    /// operation does not fail.
    pub(crate) fn content(&self, chunk: ChunkRef) -> Option<Vec<u8>> {
        let _pin = self.pin(chunk);
        let ChunkRef::Packed(packed) = chunk else {
            let (address, bytes) = self.place_of(chunk)?;
            let content = self.region.to_vec(address, bytes);
            return self.region.sound_or_forget(address, bytes).then_some(content);
        };
        let entry = self.sound_entry(packed).filter(|entry| entry.class() != CLASS_LOST)?;
        let content = content_of(&self.region, &entry).ok();
        content.filter(|_| self.region.sound_or_forget(entry.address(), entry.stored_bytes()))
    }

    /// Returns whether a referenced chunk has a content of `bytes` bytes.
    pub(crate) fn has_length(&self, chunk: ChunkRef, bytes: usize) -> bool {
        let length = match chunk {
            ChunkRef::Block(_) => Some(BLOCK_BYTES),
            ChunkRef::Packed(packed) => self.packed_bytes(packed).map(|bytes| bytes.content),
        };
        length == Some(bytes as u64)
    }

    /// Returns whether the content of a referenced chunk equals `piece`.
    #[inline]
    pub fn equal(&self, chunk: impl Into<ChunkRef>, piece: &[u8]) -> bool {
        match chunk.into() {
            ChunkRef::Block(block) => {
                let equal = piece.len() as u64 == BLOCK_BYTES && self.region.equal(block.address(), piece);
                self.region.sound_or_forget(block.address(), BLOCK_BYTES) && equal
            }
            ChunkRef::Packed(packed) => {
                let _pin = self.epochs.pin();
                self.sound_entry(packed).is_some_and(|entry| self.equal_packed(&entry, piece))
            }
        }
    }

    /// Compares `bytes` with the content at a place that an extent referenced a moment ago, and appends the equal
    /// runs to `found`. Runs of fewer than `least` bytes count only at the beginning and at the end. The place is not
    /// protected: it may hold another chunk by now, or nothing readable, which equals nothing.
    pub(crate) fn equal_runs(&self, place: Location, bytes: &[u8], least: usize, found: &mut Vec<Range<usize>>) {
        let before = found.len();
        let (address, length) = match place {
            Location::Media(address) => {
                self.region.equal_runs(address, bytes, least, found);
                (address, bytes.len() as u64)
            }
            Location::Packed(chunk, offset) => {
                let end = u64::from(offset) + bytes.len() as u64;
                let _pin = self.epochs.pin();
                let entry = self.sound_entry(chunk);
                let Some(entry) = entry.filter(|entry| end <= entry.content_bytes() && entry.class() != CLASS_LOST)
                else {
                    return;
                };
                if entry.packed_bytes().is_compressed() {
                    let part = usize::from(offset)..end as usize;
                    let compare = |content: &[u8]| pmem::equal_runs(&content[part], bytes, least, found);
                    // Content that cannot be decompressed equals nothing.
                    let _ = decompressed(&self.region, &entry, compare);
                } else {
                    self.region.equal_runs(entry.address() + u64::from(offset), bytes, least, found);
                }
                (entry.address(), entry.stored_bytes())
            }
        };
        // Bad memory equals nothing, and does not fail the comparing operation.
        if !self.region.sound_or_forget(address, length) {
            found.truncate(before);
        }
    }

    fn equal_packed(&self, entry: &ChunkEntry, piece: &[u8]) -> bool {
        let (address, bytes) = (entry.address(), entry.packed_bytes());
        let equal = bytes.content == piece.len() as u64
            && entry.class() != CLASS_LOST
            && match bytes.is_compressed() {
                true => decompressed(&self.region, entry, |content| content == piece) == Ok(true),
                false => self.region.equal(address, piece),
            };
        // Bad memory equals nothing, and does not fail the comparing operation.
        self.region.sound_or_forget(address, bytes.stored) && equal
    }
}

/// Why the content of a packed chunk cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Its entry does not say where the content is.
    Entry,
    /// A repair has marked it as lost.
    Lost,
    /// It is compressed, and the bytes at this media address cannot be decompressed.
    Frame(u64, FrameError),
}

/// Returns the whole content of the packed chunk with this entry.
pub(crate) fn content_of(region: &Region, entry: &ChunkEntry) -> Result<Vec<u8>, FrameError> {
    match entry.packed_bytes().is_compressed() {
        true => decompressed(region, entry, <[u8]>::to_vec),
        false => Ok(region.to_vec(entry.address(), entry.stored_bytes())),
    }
}

/// Reads parts of packed chunks for one request. It takes one pin, and remembers the entry of the last chunk, because a
/// file often maps several parts of one.
pub(crate) struct PackedParts<'c> {
    chunks: &'c Chunks,
    pin: Option<Pin<'c>>,
    last: Option<(PackedNumber, ChunkEntry)>,
}

impl PackedParts<'_> {
    /// Reads part of a packed chunk's content, starting at `offset`, for an extent of a locked inode. The caller
    /// detects bad memory with [`pmem::Region::check`].
    ///
    /// # Errors
    /// The part of the chunk that is damaged. The content of the buffer is undefined then.
    pub(crate) fn read(&mut self, chunk: PackedNumber, offset: u64, buffer: &mut [u8]) -> Result<(), Unreadable> {
        let (end, region) = (offset + buffer.len() as u64, &self.chunks.region);
        let entry = self.entry_of(chunk).filter(|entry| end <= entry.content_bytes()).ok_or(Unreadable::Entry)?;
        if entry.class() == CLASS_LOST {
            return Err(Unreadable::Lost);
        }
        if !entry.packed_bytes().is_compressed() {
            region.read_into(entry.address() + offset, buffer);
            return Ok(());
        }
        let read = |content: &[u8]| buffer.copy_from_slice(&content[offset as usize..end as usize]);
        decompressed(region, &entry, read).map_err(|error| Unreadable::Frame(entry.address(), error))
    }

    fn entry_of(&mut self, chunk: PackedNumber) -> Option<ChunkEntry> {
        if let Some((_, entry)) = self.last.filter(|(last, _)| *last == chunk) {
            // The chunk may have moved since. Its old bytes stay as they are while the pin is held.
            return Some(entry);
        }
        self.pin.get_or_insert_with(|| self.chunks.epochs.pin());
        let entry = self.chunks.sound_entry(chunk)?;
        self.last = Some((chunk, entry));
        Some(entry)
    }
}

/// Calls `read` with the content of a compressed chunk.
fn decompressed<T>(region: &Region, entry: &ChunkEntry, read: impl FnOnce(&[u8]) -> T) -> Result<T, FrameError> {
    let frame = region.to_vec(entry.address(), entry.stored_bytes());
    with_content(frame, entry.content_bytes() as usize, read)
}
