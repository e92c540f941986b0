//! The bytes on the device, and nothing else.
//!
//! Every structure that lives on the media is drawn once, here, next to the assertions that keep
//! the drawing true. This room knows no locks and no policies; it turns bytes into checked values
//! and back. All integers are little-endian.
//!
//! ```text
//! 0        4096     8192      24576      28672            ...           data_offset (2 MiB aligned)
//! | super  | super  | journal | TX_ID     | segment table | chunk table | segments of 2 MiB ...
//! | block A| block B| 128x128 | generators| 16 B a segment| 64 B a block| data, logs, inode tables, index
//! ```

pub mod chunk_entry;
pub mod direct;
pub mod generator;
pub mod inode;
pub mod journal;
pub mod log_entry;
pub mod saved_state;
pub mod segment;
pub mod superblock;

#[cfg(target_endian = "big")]
compile_error!("nvfold's media format is little-endian");

/// Bytes in one block.
pub const BLOCK_BYTES: u64 = 4096;
/// Bytes in one segment.
pub const SEGMENT_BYTES: u64 = 2 << 20;
/// Blocks in one segment.
pub const SEGMENT_BLOCKS: u64 = SEGMENT_BYTES / BLOCK_BYTES;
/// Largest device: media addresses have 44 bits.
pub const DEVICE_BYTES_MAX: u64 = 1 << 44;
/// Smallest device that leaves room for tables, inodes, logs and data.
pub const DEVICE_BYTES_MIN: u64 = 16 << 20;

/// Number of a block on the device: media address / 4096. On a dram-indexed device also its entry number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNumber(pub u64);

impl BlockNumber {
    /// The block that holds a media byte address.
    pub fn containing(address: u64) -> BlockNumber {
        BlockNumber(address / BLOCK_BYTES)
    }

    /// Media byte address of the block's first byte.
    pub fn address(self) -> u64 {
        self.0 * BLOCK_BYTES
    }
}

/// CRC-32C of `bytes`, seeded with what the bytes belong to, so that a valid structure in the
/// wrong place is seen.
pub(crate) fn checksum(owner: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(owner as u32 ^ (owner >> 32) as u32, bytes)
}
