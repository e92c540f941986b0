//! Computes, from counts, the tables and the device that hold the surveyed files.

use super::PathEstimate;
use crate::media::chunk_entry::ChunkEntry;
use crate::media::inode::INODE_BYTES;
use crate::media::superblock::Geometry;
use crate::media::{BLOCK_BYTES, DEVICE_BYTES_MAX, DEVICE_BYTES_MIN, SEGMENT_BYTES};

/// DRAM of the index per chunk, bytes: an 8-byte slot, at the highest and at the lowest load of its table.
const INDEX_BYTES_PER_CHUNK: (u64, u64) = (8, 12);

/// The advised device leaves one part in this many of its content free, because a log-structured file system that is
/// nearly full allocates poorly.
const SLACK: u64 = 10;

/// Advised device sizes are multiples of this.
const DEVICE_STEP: u64 = 16 << 20;

/// What a device needs to hold the surveyed files under policy `inline`.
#[derive(Clone, Debug, PartialEq)]
pub struct Needs {
    /// Chunk entries in use: one per distinct block or tail.
    pub chunk_entries: u64,
    /// Bytes of those entries on the device.
    pub chunk_table_bytes: u64,
    /// DRAM of the index while mounted, lowest and highest, in bytes.
    pub index_dram_bytes: (u64, u64),
    /// Bytes of inodes, names and logs.
    pub metadata_bytes: u64,
    /// Advised size of the device; `None` if it is larger than a device can be.
    pub device_bytes: Option<u64>,
}

impl Needs {
    pub(super) fn new(total: &PathEstimate) -> Needs {
        let counts = &total.counts;
        let blocks = &total.inline.distinct;
        let inodes = (counts.files + counts.directories + counts.others) * INODE_BYTES;
        // In the worst case every block is a separate extent, and each log ends in a page that is almost empty.
        let logs = (counts.blocks - counts.zero_blocks) * 64 + (counts.long_files + counts.directories) * BLOCK_BYTES;
        let metadata_bytes = inodes.next_multiple_of(SEGMENT_BYTES) + counts.name_bytes + logs;
        // A whole block for each tail, although tails are packed: this leaves room for packed segments that are not
        // full.
        let content = blocks.pieces * BLOCK_BYTES + blocks.bytes_error + metadata_bytes;
        Needs {
            chunk_entries: blocks.pieces,
            chunk_table_bytes: blocks.pieces * size_of::<ChunkEntry>() as u64,
            index_dram_bytes: (blocks.pieces * INDEX_BYTES_PER_CHUNK.0, blocks.pieces * INDEX_BYTES_PER_CHUNK.1),
            metadata_bytes,
            device_bytes: device_for(content + content / SLACK),
        }
    }
}

/// Returns the smallest advised device size with `content_bytes` outside its tables.
pub(super) fn device_for(content_bytes: u64) -> Option<u64> {
    let entry_bytes = size_of::<ChunkEntry>() as u64;
    let mut device_bytes =
        (content_bytes + content_bytes / BLOCK_BYTES * entry_bytes + DEVICE_BYTES_MIN).next_multiple_of(DEVICE_STEP);
    while device_bytes <= DEVICE_BYTES_MAX {
        let geometry = Geometry::of(device_bytes)?;
        if device_bytes - geometry.data_offset >= content_bytes {
            return Some(device_bytes);
        }
        device_bytes += DEVICE_STEP;
    }
    None
}
