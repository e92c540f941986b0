//! The content of chunks: the one place where bytes of a packed chunk are read.
//!
//! The problem: an extent names a packed chunk by number. Where its bytes are, and whether they are compressed, is told by
//! its entry alone, which may be damaged. The idea: everybody else asks for content, by chunk and offset, and learns only
//! whether it can be had. The chunk may move at any time, so who looks up where it lies holds a [`Pin`] until the bytes are
//! read.

use super::Chunks;
use super::epochs::Pin;
use crate::compression::{FrameError, with_content};
use crate::media::chunk_entry::{CLASS_LOST, ChunkEntry};
use crate::media::packed::PackedBytes;
use crate::media::{BLOCK_BYTES, ChunkRef, Location, PackedNumber};
use pmem::Region;
use std::ops::Range;

impl Chunks {
    /// Keeps the bytes of a packed chunk from now on where they are found, until it is dropped.
    #[inline]
    fn pin(&self, chunk: ChunkRef) -> Option<Pin<'_>> {
        chunk.packed().map(|_| self.epochs.pin())
    }

    /// Media address of a chunk that the caller has a reference on, and the bytes that it takes there. Those of a packed one
    /// come from its entry, which may be damaged, or gone with its part of a damaged table: `None`. A packed one stays there
    /// as long as somebody who had a pin before has it.
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

    /// The entry of a packed chunk, if it is there and counts and can be one.
    #[inline]
    fn sound_entry(&self, chunk: PackedNumber) -> Option<ChunkEntry> {
        self.last_entry(chunk).filter(|entry| !entry.is_empty())
    }

    /// The same of a chunk that the caller has freed, and whose entry it has not given back.
    #[inline]
    fn last_entry(&self, chunk: PackedNumber) -> Option<ChunkEntry> {
        let entry: ChunkEntry = self.region.read(self.entries.packed_offset(chunk)?);
        let (address, bytes) = (entry.address(), entry.stored_bytes());
        (entry.is_packed() && self.geometry.holds_data(address, bytes)).then_some(entry)
    }

    /// Where a packed chunk lay that the caller has freed and whose entry it has not given back: it moves no more.
    pub(crate) fn last_place_of(&self, chunk: PackedNumber) -> Option<(u64, u64)> {
        self.last_entry(chunk).map(|entry| (entry.address(), entry.stored_bytes()))
    }

    /// Media address of the content of a packed chunk that is stored as it is; `None` of any other one. The caller has a pin.
    pub(crate) fn plain_address(&self, chunk: PackedNumber) -> Option<u64> {
        let entry = self.sound_entry(chunk)?;
        (!entry.packed_bytes().is_compressed()).then(|| entry.address())
    }

    /// How long a packed chunk is; `None` when its entry is damaged.
    pub(crate) fn packed_bytes(&self, chunk: PackedNumber) -> Option<PackedBytes> {
        self.sound_entry(chunk).map(|entry| entry.packed_bytes())
    }

    /// Reads a part of a packed chunk's content, from `offset` in it on, that an extent of a locked inode names. Bad memory
    /// is told by [`pmem::Region::check`].
    ///
    /// # Errors
    /// What of it is damaged. The buffer holds anything then.
    pub(crate) fn read_packed(&self, chunk: PackedNumber, offset: u64, buffer: &mut [u8]) -> Result<(), Unreadable> {
        let end = offset + buffer.len() as u64;
        let _pin = self.epochs.pin();
        let entry = Some(chunk).filter(|chunk| self.entries.exists((*chunk).into()));
        let entry = entry.and_then(|chunk| self.sound_entry(chunk)).filter(|entry| end <= entry.content_bytes());
        let entry = entry.ok_or(Unreadable::Entry)?;
        if entry.class() == CLASS_LOST {
            return Err(Unreadable::Lost);
        }
        if !entry.packed_bytes().is_compressed() {
            self.region.read_into(entry.address() + offset, buffer);
            return Ok(());
        }
        let read = |content: &[u8]| buffer.copy_from_slice(&content[offset as usize..end as usize]);
        decompressed(&self.region, &entry, read).map_err(|error| Unreadable::Frame(entry.address(), error))
    }

    /// All of a referenced chunk's content. `None` when it is damaged or lies in bad memory, which is no failure of who
    /// asks.
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

    /// Whether a referenced chunk has so many bytes.
    pub(crate) fn has_length(&self, chunk: ChunkRef, bytes: usize) -> bool {
        let length = match chunk {
            ChunkRef::Block(_) => Some(BLOCK_BYTES),
            ChunkRef::Packed(packed) => self.packed_bytes(packed).map(|bytes| bytes.content),
        };
        length == Some(bytes as u64)
    }

    /// Whether a referenced chunk holds these bytes.
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

    /// Appends to `found` which runs of `bytes` lie at a place that an extent named a moment ago: all of `least` bytes or
    /// more, and shorter ones at the beginning and at the end. Nobody vouches for the place: what lies there may be another
    /// chunk by now, or nothing that can be read, which equals nothing.
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
                let entry = Some(chunk).filter(|chunk| self.entries.exists((*chunk).into()));
                let entry = entry.and_then(|chunk| self.sound_entry(chunk));
                let Some(entry) = entry.filter(|entry| end <= entry.content_bytes() && entry.class() != CLASS_LOST)
                else {
                    return;
                };
                if entry.packed_bytes().is_compressed() {
                    let part = usize::from(offset)..end as usize;
                    let compare = |content: &[u8]| pmem::equal_runs(&content[part], bytes, least, found);
                    // What cannot be decompressed equals nothing.
                    let _ = decompressed(&self.region, &entry, compare);
                } else {
                    self.region.equal_runs(entry.address() + u64::from(offset), bytes, least, found);
                }
                (entry.address(), entry.stored_bytes())
            }
        };
        // Bad memory equals nothing, and is no failure of who compares with it.
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
        // Bad memory equals nothing, and is no failure of who compares with it.
        self.region.sound_or_forget(address, bytes.stored) && equal
    }
}

/// Why the content of a packed chunk cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Its entry does not say where it is.
    Entry,
    /// A repair has found that it is lost.
    Lost,
    /// It is compressed, and what lies at this media address cannot be decompressed.
    Frame(u64, FrameError),
}

/// All of the content that a packed chunk with this entry has.
pub(crate) fn content_of(region: &Region, entry: &ChunkEntry) -> Result<Vec<u8>, FrameError> {
    match entry.packed_bytes().is_compressed() {
        true => decompressed(region, entry, <[u8]>::to_vec),
        false => Ok(region.to_vec(entry.address(), entry.stored_bytes())),
    }
}

/// Calls `read` with the content of a compressed chunk.
fn decompressed<T>(region: &Region, entry: &ChunkEntry, read: impl FnOnce(&[u8]) -> T) -> Result<T, FrameError> {
    let frame = region.to_vec(entry.address(), entry.stored_bytes());
    with_content(frame, entry.content_bytes() as usize, read)
}
