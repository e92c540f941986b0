//! What a clean unmount leaves for the next mount: the DRAM state, so that nothing needs to be looked for.
//!
//! It lies in free blocks and is never needed: a mount that cannot use it builds the same from the logs.
//!
//! ```text
//! superblock.saved_state -> | SavedState | run | run | ...      one block
//!                                           \_ payload: 64-bit words, in the order of the runs
//! payload: segment records   number, 8 words of used bits, 8 words of has-entry bits    17 words each
//!          inode table       used bits, `inode_words`
//!          dram index        64 x (capacity, slots, slot ...); a pm index saves empty ones
//!          work queue        `queue_nodes` x 4 words, the oldest first
//!          packed chunks     bytes saved; used bits of `packed_parts` x 512 words; `packed_segments` x (segment, live bytes,
//!                            pool + 1 of an open one or 0, front, headers); bytes that compression saves, if any
//! ```

use super::BLOCK_BYTES;
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First eight bytes of a saved state. An nvfold that takes each block of the index for one with a chunk entry knows
/// another one, `NVFSAVED`, and finds out by itself what this one says.
pub const MAGIC: [u8; 8] = *b"NVFSAVE2";
/// [`SavedState::filled`]: those of all files.
pub const FILLED_ALL: u64 = 1;
/// [`SavedState::filled`]: those of files with a policy of their own that wants them.
pub const FILLED_OWN: u64 = 2;
/// Runs of blocks that one can lie in.
pub const SAVED_RUNS: usize = 248;
/// Words of a segment record in the payload.
pub const SEGMENT_RECORD_WORDS: usize = 17;

/// Words of a segment of packed chunks in the payload.
pub const PACKED_RECORD_WORDS: usize = 5;

/// Blocks next to one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SavedRun {
    /// Number of the first block.
    pub start: u64,
    /// How many.
    pub count: u64,
}

/// Header of the saved state: one block.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SavedState {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// CRC-32C of this block with this field zero, seeded with its address.
    pub check: u32,
    /// CRC-32C of the payload.
    pub payload_check: u32,
    /// `mount_epoch` of the superblock when it was written.
    pub mount_epoch: u64,
    /// Length of the payload in words.
    pub payload_words: u64,
    /// Segment records in the payload.
    pub segments: u64,
    /// Words of the inode table's used bits.
    pub inode_words: u64,
    /// Bytes that all extents name.
    pub mapped_bytes: u64,
    /// Data blocks in use.
    pub data_blocks: u64,
    /// References beyond the first of every block.
    pub extra_references: u64,
    /// Number of the function whose fingerprints the index holds.
    pub weak_function: u64,
    /// Runs in use.
    pub runs_used: u64,
    /// Whose blocks are known not to lack fingerprints ([`FILLED_ALL`], [`FILLED_OWN`]); 0: nobody's.
    pub filled: u64,
    /// Fingerprints in the index.
    pub index_entries: u64,
    /// Nodes of the work queue in the payload.
    pub queue_nodes: u64,
    /// Slots of the inode table that are log areas.
    pub log_areas: u64,
    /// Parts of the table of packed entries.
    pub packed_parts: u32,
    /// Segments of packed chunks in the payload.
    pub packed_segments: u32,
    /// Where the payload lies.
    pub runs: [SavedRun; SAVED_RUNS],
}

const _: () = assert!(size_of::<SavedState>() == BLOCK_BYTES as usize);
const _: () = assert!(offset_of!(SavedState, mount_epoch) == 16);
const _: () = assert!(offset_of!(SavedState, runs_used) == 80);
const _: () = assert!(offset_of!(SavedState, packed_parts) == 120);
const _: () = assert!(offset_of!(SavedState, runs) == 128);

impl SavedState {
    /// Returns it with a valid checksum, for a block at `address`.
    pub fn sealed(mut self, address: u64) -> SavedState {
        self.check = 0;
        self.check = super::checksum(address, self.as_bytes());
        self
    }

    /// Whether this is a whole saved state.
    pub fn is_whole(&self, address: u64) -> bool {
        self.magic == MAGIC && self.sealed(address).check == self.check
    }
}
