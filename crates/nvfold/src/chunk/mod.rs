//! The chunk table: how often each block is named, and the index that finds a block by its fingerprint.
//!
//! The problem: a count must never be lower on the media than the extents that can be reached
//! (invariant 1), must be exact after recovery (invariant 2), and must cost nothing for data that
//! nobody shares.
//!
//! The idea: three states of a block, told by its one-line entry.
//!
//! ```text
//! entry empty    free, or private: named by exactly one extent, no fingerprint
//! count >= 1     tracked: named by exactly `count` extents
//!
//!  private --share--> 2        n --share--> n+1       n --release--> n-1     1 --release--> free
//!  private --release--> free
//! ```
//!
//! Counts change by one 16-byte compare-and-exchange of tag, transaction and counts, then one line flush.
//! An increase is durable before the commit word that publishes the extent, a decrease comes after it.

pub mod index;

use crate::media::chunk_entry::{ChunkEntry, CountWord, tag};
use crate::media::superblock::Geometry;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::padded::Padded;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::zeroed;
use index::Index;
use pmem::{Flight, Region};

/// What became of a block when one extent let go of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Nobody names it any more.
    Free,
    /// Others still do.
    Kept,
}

/// The count of a block cannot grow further.
#[derive(Debug)]
pub struct Saturated;

/// The table and its index.
pub struct Chunks {
    region: Region,
    geometry: Geometry,
    /// Finds tracked blocks by weak fingerprint.
    pub index: Index,
    next_tx: Padded<AtomicU64>,
    /// One bit a block: has an entry. A private block is released without a look at the media, so the
    /// table of a device that shares nothing stays a hole.
    has_entry: Box<[AtomicU64]>,
    extra_references: Padded<AtomicU64>,
}

impl Chunks {
    /// The table of a device, with an empty index.
    pub fn new(region: Region, geometry: Geometry) -> Chunks {
        Chunks {
            region,
            geometry,
            index: Index::new(),
            next_tx: Padded(AtomicU64::new(1)),
            has_entry: zeroed(geometry.blocks().div_ceil(64)),
            extra_references: Padded::default(),
        }
    }

    /// Entries in use.
    pub fn tracked(&self) -> u64 {
        self.has_entry.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// References beyond the first of every block: blocks saved by sharing.
    pub fn extra_references(&self) -> u64 {
        self.extra_references.load(Ordering::Relaxed)
    }

    /// A block's entry, copied.
    pub fn entry(&self, block: BlockNumber) -> ChunkEntry {
        self.region.read(self.geometry.chunk_entry_offset(block))
    }

    /// Whether a referenced block holds these bytes.
    pub fn equal(&self, block: BlockNumber, piece: &[u8]) -> bool {
        piece.len() as u64 == BLOCK_BYTES && self.region.equal(block.address(), piece)
    }

    /// Adds the entry of a block that nobody can reach yet, with as many references as the operation makes.
    pub fn add(&self, block: BlockNumber, count: u32, weak: Option<u32>, flight: &mut Flight) {
        let word = CountWord { tag: tag::ADD, tx: self.tx(), count, update_count: 0 };
        let entry = ChunkEntry::for_block(block, word, weak);
        flight.add(self.region.write(self.geometry.chunk_entry_offset(block), &entry).flush());
        self.note_entry(block, count);
    }

    /// One more reference on a block that the caller knows to be referenced (it holds the lock of an
    /// inode that names it).
    pub fn share(&self, block: BlockNumber, flight: &mut Flight) -> Result<(), Saturated> {
        let offset = self.geometry.chunk_entry_offset(block);
        loop {
            let seen = CountWord::decode(self.region.load_u128(offset));
            if seen.count > 0 {
                match self.try_share(block, flight) {
                    Some(result) => return result,
                    None => continue,
                }
            }
            // Private: its one reference becomes explicit together with the new one. The rest of the line
            // is stored first, so that the count is never seen with another block's address.
            let word = CountWord { tag: tag::ADD, tx: self.tx(), count: 2, update_count: 0 };
            let entry = ChunkEntry::for_block(block, word, None);
            let _ = self.region.store_u64(offset + 16, entry.address_length);
            if let Ok(line) = self.region.compare_exchange_u128(offset, seen.encode(), word.encode()) {
                flight.add(line.flush());
                self.note_entry(block, 2);
                return Ok(());
            }
        }
    }

    /// One more reference on a block that is tracked and known not to be freed meanwhile; `None` when it is not
    /// tracked.
    fn try_share(&self, block: BlockNumber, flight: &mut Flight) -> Option<Result<(), Saturated>> {
        let offset = self.geometry.chunk_entry_offset(block);
        loop {
            let stored = self.region.load_u128(offset);
            let seen = CountWord::decode(stored);
            if seen.count == 0 {
                return None;
            }
            if seen.count == u32::MAX {
                return Some(Err(Saturated));
            }
            let word = CountWord { tag: tag::INCREASE, tx: self.tx(), count: seen.count + 1, ..seen };
            if let Ok(line) = self.region.compare_exchange_u128(offset, stored, word.encode()) {
                flight.add(line.flush());
                self.extra_references.fetch_add(1, Ordering::Relaxed);
                return Some(Ok(()));
            }
        }
    }

    /// One more reference on a block with this fingerprint: the first behind `after` that has any. Its bytes stand
    /// still from then on.
    ///
    /// The reference is taken while the index still has the block. A block leaves the index before it is freed and
    /// enters it after its content was published, so a reference never falls on the next content of a block, which
    /// its writer may not have stored yet.
    pub fn share_candidate(&self, weak: u32, after: BlockNumber, flight: &mut Flight) -> Option<BlockNumber> {
        self.index.find(weak, after, |block| matches!(self.try_share(*block, flight), Some(Ok(()))))
    }

    /// One reference less. The extent that was the reference cannot be reached any more.
    pub fn release(&self, block: BlockNumber, flight: &mut Flight) -> Released {
        if !self.has_entry(block) {
            return Released::Free;
        }
        let offset = self.geometry.chunk_entry_offset(block);
        loop {
            let stored = self.region.load_u128(offset);
            let seen = CountWord::decode(stored);
            match seen.count {
                0 => return Released::Free,
                1 => {
                    let weak = self.entry(block).weak();
                    if self.region.compare_exchange_u128(offset, stored, 0).is_ok() {
                        self.clear(block, weak, flight);
                        return Released::Free;
                    }
                }
                count => {
                    let word = CountWord { tag: tag::DECREASE, tx: self.tx(), count: count - 1, ..seen };
                    if let Ok(line) = self.region.compare_exchange_u128(offset, stored, word.encode()) {
                        flight.add(line.flush());
                        self.extra_references.fetch_sub(1, Ordering::Relaxed);
                        return Released::Kept;
                    }
                }
            }
        }
    }

    /// Recovery and fsck: makes the entry say what is true. `count` 0 empties it.
    pub fn set_exact(&self, block: BlockNumber, count: u32, weak: Option<u32>, flight: &mut Flight) {
        let entry = match count {
            0 => ChunkEntry::default(),
            _ => {
                let word = CountWord { tag: tag::ADD, tx: self.tx(), count, update_count: 0 };
                ChunkEntry::for_block(block, word, weak)
            }
        };
        flight.add(self.region.write(self.geometry.chunk_entry_offset(block), &entry).flush());
    }

    /// Recovery: takes an entry that is right into the running totals and the index.
    pub fn adopt(&self, block: BlockNumber, count: u32, weak: Option<u32>) {
        self.note_entry(block, count);
        if let Some(weak) = weak {
            self.index.insert(weak, block);
        }
    }

    /// A read-only mount: one more extent touches a block, whatever its entry says.
    pub fn note_extra_reference(&self) {
        self.extra_references.fetch_add(1, Ordering::Relaxed);
    }

    /// The count word is 0 already, so nobody can take a reference; empties the rest of the line.
    fn clear(&self, block: BlockNumber, weak: Option<u32>, flight: &mut Flight) {
        if let Some(weak) = weak {
            self.index.remove(weak, block);
        }
        flight.add(self.region.write(self.geometry.chunk_entry_offset(block), &ChunkEntry::default()).flush());
        self.has_entry[(block.0 / 64) as usize].fetch_and(!(1 << (block.0 % 64)), Ordering::Relaxed);
    }

    /// Whether a block has an entry: is tracked.
    pub fn has_entry(&self, block: BlockNumber) -> bool {
        self.has_entry[(block.0 / 64) as usize].load(Ordering::Relaxed) & (1 << (block.0 % 64)) != 0
    }

    fn note_entry(&self, block: BlockNumber, count: u32) {
        self.has_entry[(block.0 / 64) as usize].fetch_or(1 << (block.0 % 64), Ordering::Relaxed);
        if count > 1 {
            self.extra_references.fetch_add(u64::from(count) - 1, Ordering::Relaxed);
        }
    }

    fn tx(&self) -> u64 {
        self.next_tx.fetch_add(1, Ordering::Relaxed)
    }
}
