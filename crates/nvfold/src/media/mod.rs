//! The bytes on the device, and nothing else.
//!
//! Every structure on the media is drawn once, here, next to the assertions that keep the drawing true. This module
//! knows no locks and no policies: it turns bytes into checked values and back. All integers are little-endian.
//!
//! ```text
//! 0        4096     8192      24576      28672            ...           data_offset (2 MiB aligned)
//! | super  | super  | journal | TX_ID     | segment table | chunk table | segments of 2 MiB ...
//! | block A| block B| 128x128 | generators| 16 B a segment| 64 B a block| data, logs, inode tables, index
//! ```
//!
//! | file | structure |
//! |---|---|
//! | `superblock` | the identity of the device, and where its tables are |
//! | `journal` | commit words of an operation over several inodes |
//! | `generator` | TX_ID generators |
//! | `segment` | the use and the wear of each segment |
//! | `chunk_entry` | count and fingerprints of a chunk |
//! | `direct` | the direct area of the pm index |
//! | `packed` | a segment of packed chunks |
//! | `inode` | the inode slot |
//! | `limits` | the limits of a tree |
//! | `log_area` | slots that continue a log |
//! | `log_entry`, `log_line`, `vector_entry` | log entries: what all share, and entries for many extents |
//! | `location_word` | what a range of a file references |
//! | `zone` | what a device gets each time that it is made longer |
//! | `layout` | the places on a device that is made longer while it is mounted |
//! | `saved_state` | what an orderly unmount leaves for the next mount |

pub(crate) mod chunk_entry;
pub(crate) mod direct;
pub(crate) mod generator;
pub(crate) mod inode;
pub(crate) mod journal;
pub(crate) mod layout;
pub(crate) mod limits;
pub(crate) mod location_word;
pub(crate) mod log_area;
pub(crate) mod log_entry;
mod log_line;
pub(crate) mod packed;
pub(crate) mod saved_state;
pub(crate) mod segment;
pub(crate) mod superblock;
pub(crate) mod vector_entry;
pub(crate) mod zone;

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
    /// Returns the block that holds a media byte address.
    pub fn containing(address: u64) -> BlockNumber {
        BlockNumber(address / BLOCK_BYTES)
    }

    /// Returns the media address of the block's first byte.
    pub fn address(self) -> u64 {
        self.0 * BLOCK_BYTES
    }
}

/// Largest device that can have packed chunks: in the 32-bit words of the indexes, bit 31 marks a packed chunk.
pub(crate) const PACKED_DEVICE_BYTES_MAX: u64 = 1 << 43;
/// Longest packed chunk, bytes.
pub(crate) const PACKED_BYTES_MAX: u64 = 1 << 16;

/// Number of a packed chunk, which is that of its entry. It stays the same when the bytes move. Below 0x7fff_ffff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackedNumber(pub u32);

/// Identifies a chunk: a block by its number, a packed chunk by that of its entry. Blocks come first in the ordering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChunkRef {
    /// A block of the device.
    Block(BlockNumber),
    /// A packed chunk.
    Packed(PackedNumber),
}

impl ChunkRef {
    /// No chunk: block 0 belongs to the tables. A search for chunks after it covers all chunks.
    pub const NONE: ChunkRef = ChunkRef::Block(BlockNumber(0));

    /// Returns the block number, or `None` for a packed chunk.
    #[inline]
    pub fn block(self) -> Option<BlockNumber> {
        match self {
            ChunkRef::Block(block) => Some(block),
            ChunkRef::Packed(_) => None,
        }
    }

    /// Returns the number of the packed chunk, or `None` for a block.
    #[inline]
    pub fn packed(self) -> Option<PackedNumber> {
        match self {
            ChunkRef::Block(_) => None,
            ChunkRef::Packed(packed) => Some(packed),
        }
    }
}

impl std::fmt::Display for ChunkRef {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ChunkRef::Block(block) => write!(to, "block {}", block.0),
            ChunkRef::Packed(packed) => write!(to, "packed chunk {}", packed.0),
        }
    }
}

impl From<BlockNumber> for ChunkRef {
    fn from(block: BlockNumber) -> ChunkRef {
        ChunkRef::Block(block)
    }
}

impl From<PackedNumber> for ChunkRef {
    fn from(packed: PackedNumber) -> ChunkRef {
        ChunkRef::Packed(packed)
    }
}

/// Where the bytes that an extent references begin: a media address in blocks, or an offset in a packed chunk. 47
/// bits:
///
/// ```text
/// blocks   0:3 | media address:44          packed   entry:31 | offset in the chunk:16, and the kind is told apart
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Media address of the first byte, in a segment of blocks.
    Media(u64),
    /// Offset of the first byte in a packed chunk.
    Packed(PackedNumber, u16),
}

impl Location {
    /// Returns the place `bytes` further on, or the last one that there can be. What lies behind that one never becomes
    /// a place in front, and no log entry with it is valid.
    #[inline]
    pub fn plus(self, bytes: u64) -> Location {
        match self {
            Location::Media(address) => Location::Media(address.saturating_add(bytes)),
            Location::Packed(chunk, offset) => {
                let plus = u64::from(offset).saturating_add(bytes);
                Location::Packed(chunk, u16::try_from(plus).unwrap_or(u16::MAX))
            }
        }
    }
}

/// Computes the CRC-32C of `bytes`, seeded with the owner of the bytes, so that a valid structure in the wrong place
/// is detected.
pub(crate) fn checksum(owner: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(folded(owner), bytes)
}

/// Computes the seed of a checksum.
fn folded(owner: u64) -> u32 {
    owner as u32 ^ (owner >> 32) as u32
}

/// Computes which seed gives `bytes` the checksum `check`: each step of a CRC can be inverted.
fn seed_of(check: u32, bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    let before_bit = |state: u32| match state >> 31 {
        1 => (state ^ POLYNOMIAL) << 1 | 1,
        _ => state << 1,
    };
    let before_byte = |state: u32, byte: &u8| (0..8).fold(state, |state, _| before_bit(state)) ^ u32::from(*byte);
    !bytes.iter().rev().fold(!check, before_byte)
}
