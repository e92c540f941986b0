//! Which parts of chunks files map: what the passes of a collection ([`super::collect`], [`super::gather`]) have in common.

use super::Jobs;
use super::marks::ChunkPart;
use crate::inode::extents::Extent;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::packed::PackedBytes;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location};
use smallvec::SmallVec;

/// Approximate cost of a new chunk, in bytes: entry, header and the like.
const CHUNK_COSTS: u64 = 128;

/// Cost of one more extent in a log, in bytes.
const NAME_COSTS: u64 = 64;

/// True if replacing a chunk of `stored` bytes by one of `needed` bytes saves more than the new chunk and its `names`
/// extents cost.
pub(super) fn saves_enough(stored: u64, needed: u64, names: u32) -> bool {
    let costs = CHUNK_COSTS + NAME_COSTS * u64::from(names);
    stored.saturating_sub(needed) >= costs.max(stored / 16)
}

/// A file offset, and the part of a chunk that the file maps there.
pub(super) struct NamedPart {
    pub(super) offset: u64,
    pub(super) part: ChunkPart,
}

impl NamedPart {
    /// Returns the file offset behind it.
    pub(super) fn end(&self) -> u64 {
        self.offset + self.part.range.len() as u64
    }
}

/// How far a step came in a file.
#[derive(Default)]
pub(super) struct Ended {
    /// Number of extents that were looked at.
    pub(super) looks: usize,
    /// File offset to continue at, if the file has more extents.
    pub(super) next: Option<u64>,
    /// True if the extents of the file were changed.
    pub(super) changed: bool,
    /// Numbers of bytes that were saved, one for each chunk that is no longer used.
    pub(super) saved_bytes: Vec<u64>,
}

impl Jobs<'_> {
    /// Returns the chunks of which an extent maps only a part: its packed chunk, or its first and last block.
    pub(super) fn parts_of(&self, offset: u64, extent: &Extent) -> SmallVec<[NamedPart; 2]> {
        let mut named = SmallVec::new();
        let mut add = |offset, chunk, start: u64, end: u64| {
            // No chunk is that long; an extent that says so stays as it is.
            if let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(end)) {
                named.push(NamedPart { offset, part: ChunkPart { chunk, range: start..end } });
            }
        };
        match extent.location {
            _ if extent.unwritten => {}
            Location::Packed(chunk, start) => {
                let (of, start) = (ChunkRef::Packed(chunk), u64::from(start));
                if self.bytes_of(of).is_some_and(|bytes| bytes.content != extent.length) {
                    add(offset, of, start, start + extent.length);
                }
            }
            Location::Media(address) => {
                let end = address + extent.length;
                let (first, last) = (address / BLOCK_BYTES * BLOCK_BYTES, end / BLOCK_BYTES * BLOCK_BYTES);
                let block = |address| ChunkRef::Block(BlockNumber::containing(address));
                if first < address {
                    add(offset, block(first), address - first, BLOCK_BYTES.min(end - first));
                }
                if last < end && last >= address {
                    add(offset + (last - address), block(last), 0, end - last);
                }
            }
        }
        named
    }

    /// Returns the lengths of a chunk; `None` if its entry cannot be read, which is not an error of the caller.
    pub(super) fn bytes_of(&self, chunk: ChunkRef) -> Option<PackedBytes> {
        let bytes = match chunk {
            ChunkRef::Block(_) => Some(PackedBytes { stored: BLOCK_BYTES, content: BLOCK_BYTES }),
            ChunkRef::Packed(packed) => self.chunks.packed_bytes(packed),
        };
        bytes.filter(|_| self.region.sound_or_forget(self.chunks.entry_offset(chunk), ENTRY_BYTES))
    }
}
