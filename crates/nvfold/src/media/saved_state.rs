//! The saved state: the DRAM state that a clean unmount leaves, so that the next mount need not scan.
//!
//! It is stored in free blocks and never needed: a mount that cannot use it builds the same state from tables and
//! logs.
//!
//! ```text
//! superblock.saved_state -> | SavedState | run | run | ...      one block
//!                                           \_ payload: 64-bit words, in the order of the runs
//! payload: segment records   number, 8 words of used bits, 8 words of has-entry bits    17 words each
//!          inode table       used bits, `inode_words`
//!          dram index        64 x (capacity, slots, slot ...); a pm index saves empty ones
//!          work queue        `queue_nodes` x 4 words, the oldest first
//!          packed chunks     bytes saved; used bits of `packed_parts` x 512 words; `packed_segments` x (segment,
//!                            live bytes, pool + 1 of an open one or 0, front, headers); bytes that compression saves,
//!                            if any, or if what follows is there
//!          limited trees     if any: their number; for each number + 65536 while it is being charged, inode of its top
//!                            or 0, bytes, inodes, its limits as in [`super::limits`]               7 words each
//! ```

use super::BLOCK_BYTES;
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First eight bytes of a saved state. An older nvfold, which assumes a chunk entry for each block in the index,
/// knows only `NVFSAVED`: it ignores this state and scans instead.
pub(crate) const MAGIC: [u8; 8] = *b"NVFSAVE2";
/// [`SavedState::filled`]: all files are filled.
pub(crate) const FILLED_ALL: u64 = 1;
/// [`SavedState::filled`]: files with their own policy that wants fingerprints are filled.
pub(crate) const FILLED_OWN: u64 = 2;
/// Most runs of blocks that a state can be stored in.
pub const SAVED_RUNS: usize = 248;
/// Words of a segment record in the payload.
pub const SEGMENT_RECORD_WORDS: usize = 17;

/// Words of a limited tree's record in the payload.
pub(crate) const TREE_RECORD_WORDS: usize = 7;

/// Words of a packed segment's record in the payload.
pub(crate) const PACKED_RECORD_WORDS: usize = 5;

/// Adjacent blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SavedRun {
    /// Number of the first block.
    pub start: u64,
    /// Number of blocks.
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
    /// `mount_epoch` of the superblock when the state was saved.
    pub mount_epoch: u64,
    /// Length of the payload in words.
    pub payload_words: u64,
    /// Segment records in the payload.
    pub segments: u64,
    /// Words of the inode table's used bits.
    pub inode_words: u64,
    /// Bytes that all extents reference.
    pub mapped_bytes: u64,
    /// Data blocks in use.
    pub data_blocks: u64,
    /// References beyond the first, of all blocks.
    pub extra_references: u64,
    /// Number of the weak fingerprint function of the index.
    pub weak_function: u64,
    /// Runs in use.
    pub runs_used: u64,
    /// Which files are known to have no block without a fingerprint ([`FILLED_ALL`], [`FILLED_OWN`]); 0 for none.
    pub filled: u64,
    /// Fingerprints in the index.
    pub index_entries: u64,
    /// Nodes of the work queue in the payload.
    pub queue_nodes: u64,
    /// Slots of the inode table that are log areas.
    pub log_areas: u64,
    /// Parts of the table of packed entries.
    pub packed_parts: u32,
    /// Records of packed segments in the payload.
    pub packed_segments: u32,
    /// Runs of blocks with the payload.
    pub runs: [SavedRun; SAVED_RUNS],
}

const _: () = assert!(size_of::<SavedState>() == BLOCK_BYTES as usize);
const _: () = assert!(offset_of!(SavedState, mount_epoch) == 16);
const _: () = assert!(offset_of!(SavedState, runs_used) == 80);
const _: () = assert!(offset_of!(SavedState, packed_parts) == 120);
const _: () = assert!(offset_of!(SavedState, runs) == 128);

impl SavedState {
    /// Returns the header with a valid checksum, for a block at `address`.
    pub fn sealed(mut self, address: u64) -> SavedState {
        self.check = 0;
        self.check = super::checksum(address, self.as_bytes());
        self
    }

    /// Returns true if this is a whole saved state.
    pub fn is_whole(&self, address: u64) -> bool {
        self.magic == MAGIC && self.sealed(address).check == self.check
    }
}
