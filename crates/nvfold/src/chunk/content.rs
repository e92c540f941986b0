//! The content of chunks: the one place where bytes of a packed chunk are read.
//!
//! The problem: an extent names a packed chunk by number. Where its bytes are, and how they lie there, is told by its entry
//! alone, which may be damaged. The idea: everybody else asks for content, by chunk and offset, and learns only whether it
//! can be had. The chunk may move at any time, so who looks up where it lies holds a [`Pin`] until the bytes are read.

use super::Chunks;
use super::epochs::Pin;
use crate::media::chunk_entry::ChunkEntry;
use crate::media::{BLOCK_BYTES, ChunkRef, PACKED_BYTES_MAX, PackedNumber};

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
        let is_sound = entry.class() != 0 && (1..=PACKED_BYTES_MAX).contains(&bytes);
        (is_sound && self.geometry.holds_data(address, bytes)).then_some(entry)
    }

    /// Where a packed chunk lay that the caller has freed and whose entry it has not given back: it moves no more.
    pub(crate) fn last_place_of(&self, chunk: PackedNumber) -> Option<(u64, u64)> {
        self.last_entry(chunk).map(|entry| (entry.address(), entry.stored_bytes()))
    }

    /// Reads a part of a packed chunk's content, from `offset` in it on, that an extent of a locked inode names. False when
    /// its entry does not say where that is. Bad memory is told by [`pmem::Region::check`].
    #[must_use = "what could not be read is not in the buffer"]
    pub(crate) fn read_packed(&self, chunk: PackedNumber, offset: u64, buffer: &mut [u8]) -> bool {
        let chunk = ChunkRef::Packed(chunk);
        let _pin = self.pin(chunk);
        let place = Some(chunk).filter(|chunk| self.entries.exists(*chunk)).and_then(|chunk| self.place_of(chunk));
        let is_there = |(_, bytes): &(u64, u64)| offset + buffer.len() as u64 <= *bytes;
        let Some((address, _)) = place.filter(is_there) else { return false };
        self.region.read_into(address + offset, buffer);
        true
    }

    /// All of a referenced chunk's content. `None` when its entry is damaged or it lies in bad memory, which is no failure
    /// of who asks.
    pub(crate) fn content(&self, chunk: ChunkRef) -> Option<Vec<u8>> {
        let _pin = self.pin(chunk);
        let (address, bytes) = self.place_of(chunk)?;
        let content = self.region.to_vec(address, bytes);
        self.region.sound_or_forget(address, bytes).then_some(content)
    }

    /// Whether a referenced chunk has so many bytes.
    pub(crate) fn has_length(&self, chunk: ChunkRef, bytes: usize) -> bool {
        self.place_of(chunk).is_some_and(|(_, length)| length == bytes as u64)
    }

    /// Whether a referenced chunk holds these bytes.
    #[inline]
    pub fn equal(&self, chunk: impl Into<ChunkRef>, piece: &[u8]) -> bool {
        let chunk = chunk.into();
        let _pin = self.pin(chunk);
        let Some((address, bytes)) = self.place_of(chunk) else { return false };
        let equal = piece.len() as u64 == bytes && self.region.equal(address, piece);
        // Bad memory equals nothing, and is no failure of who compares with it.
        self.region.sound_or_forget(address, bytes) && equal
    }
}
