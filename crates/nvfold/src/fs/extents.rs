//! Listing the extents of a file.

use super::Core;
use crate::error::Result;
use crate::inode::Inode;
use crate::media::{BLOCK_BYTES, BlockNumber, Location, PackedNumber};
use crate::words::MappedExtent;

/// Blocks that are only looked at under one lock of the inode.
const LOOK_BLOCKS: u64 = 16_384;

impl Core {
    /// Returns the media address of a part of a packed chunk, and the bytes that it takes there. For a compressed
    /// chunk these are the address of the chunk, and the part's share of its stored bytes.
    fn part_of_packed(&self, chunk: PackedNumber, offset: u64, length: u64) -> Result<(u64, u64)> {
        let bytes = self.chunks.packed_bytes(chunk).filter(|bytes| offset + length <= bytes.content);
        let lost = || self.lost_chunk(chunk.into());
        let (bytes, (address, _)) = bytes.zip(self.chunks.place_of(chunk.into())).ok_or_else(lost)?;
        Ok(match bytes.is_compressed() {
            true => (address, (bytes.stored * length).div_ceil(bytes.content)),
            false => (address + offset, length),
        })
    }

    /// Returns at most `most` extents of a file from offset `from` on, split where the reference count changes.
    pub(crate) fn mapped_extents(&self, inode: &Inode, from: u64, most: usize) -> Result<Vec<MappedExtent>> {
        let state = inode.read()?;
        let extents = self.file_extents(&state, "list extents")?;
        let mut mapped: Vec<MappedExtent> = Vec::new();
        let mut looked_at = 0;
        for (offset, extent) in extents.within(from, u64::MAX) {
            let first = match extent.location {
                Location::Media(address) => address,
                Location::Packed(_, _) if mapped.len() == most => return Ok(mapped),
                Location::Packed(chunk, at) => {
                    let (address, stored_bytes) = self.part_of_packed(chunk, u64::from(at), extent.length)?;
                    let (class, references) = (self.chunks.entry(chunk).class(), self.chunks.count(chunk));
                    let length = extent.length;
                    let unwritten = false;
                    mapped.push(MappedExtent { offset, length, address, stored_bytes, unwritten, references, class });
                    continue;
                }
            };
            let mut at = 0;
            while at < extent.length {
                let address = first + at;
                let length = (BLOCK_BYTES - address % BLOCK_BYTES).min(extent.length - at);
                let references = self.chunks.count(BlockNumber::containing(address));
                let unwritten = extent.unwritten;
                let (offset, stored_bytes) = (offset + at, length);
                let next = MappedExtent { offset, length, address, stored_bytes, unwritten, references, class: 0 };
                let is_full = mapped.len() == most;
                match mapped.last_mut().filter(|last| at > 0 && last.references == references) {
                    _ if looked_at == LOOK_BLOCKS => return Ok(mapped),
                    Some(last) => {
                        last.length += length;
                        last.stored_bytes += length;
                    }
                    None if is_full => return Ok(mapped),
                    None => mapped.push(next),
                }
                at += length;
                looked_at += 1;
            }
        }
        Ok(mapped)
    }
}
