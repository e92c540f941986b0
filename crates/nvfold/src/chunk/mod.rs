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
//! An increase is durable before the commit word that publishes the extent, a decrease comes after it. So a crash
//! leaves counts too high, never too low; [`recount`] finds the true ones while the file system is in use.

pub mod index;
pub mod recount;

use crate::media::chunk_entry::{ChunkEntry, CountWord, ENTRY_BYTES, tag};
use crate::media::superblock::Geometry;
use crate::media::{BLOCK_BYTES, BlockNumber, SEGMENT_BLOCKS};
use crate::padded::Padded;
use crate::parallel;
use crate::space::WORDS_PER_SEGMENT;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{RwLock, zeroed};
use index::Index;
use pmem::{Flight, PmemError, Region};
use recount::Recount;
use zerocopy::IntoBytes;

/// Fewer segments than this are not worth a thread: 64 of them are 2 MiB of table.
const SEGMENTS_PER_THREAD_MIN: usize = 64;

/// What became of a block when one extent let go of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Nobody names it any more.
    Free,
    /// Others still do.
    Kept,
}

/// Why a block gets no further reference.
#[derive(Debug)]
pub enum Unshareable {
    /// Its count cannot grow further.
    Saturated,
    /// Its entry lies in bad memory.
    Bad(PmemError),
}

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
    /// Whether `recount` holds anything: looked at without its lock.
    recounting: AtomicBool,
    recount: RwLock<Option<Recount>>,
}

impl Chunks {
    /// The table of a device, with an empty index.
    pub fn new(region: Region, geometry: Geometry) -> Chunks {
        Chunks {
            region,
            geometry,
            index: Index::new(),
            next_tx: Padded(AtomicU64::new(1)),
            has_entry: zeroed(geometry.segments() * WORDS_PER_SEGMENT as u64),
            extra_references: Padded::default(),
            recounting: AtomicBool::new(false),
            recount: RwLock::new(None),
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
        let equal = piece.len() as u64 == BLOCK_BYTES && self.region.equal(block.address(), piece);
        // Bad memory equals nothing, and is no failure of who compares with it.
        self.region.is_sound(block.address(), BLOCK_BYTES) && equal
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
    pub fn share(&self, block: BlockNumber, flight: &mut Flight) -> Result<(), Unshareable> {
        let offset = self.geometry.chunk_entry_offset(block);
        loop {
            let seen = CountWord::decode(self.region.load_u128(offset));
            self.region.check_writable(offset, ENTRY_BYTES).map_err(Unshareable::Bad)?;
            if seen.count > 0 {
                match self.increase(block, flight) {
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

    /// One more reference on a tracked block; `None` when it is not tracked (any more), or when after a crash nobody
    /// vouches for its content yet.
    fn try_share(&self, block: BlockNumber, flight: &mut Flight) -> Option<Result<(), Unshareable>> {
        let unvouched = |recount: &Recount| recount.is_unknown(block) && !recount.is_vouched(block);
        if self.with_recount(unvouched) == Some(true) {
            return None;
        }
        self.increase(block, flight)
    }

    /// One more reference on a block that is tracked and known not to be freed meanwhile; `None` when it is not
    /// tracked.
    fn increase(&self, block: BlockNumber, flight: &mut Flight) -> Option<Result<(), Unshareable>> {
        let offset = self.geometry.chunk_entry_offset(block);
        loop {
            let stored = self.region.load_u128(offset);
            let seen = CountWord::decode(stored);
            if !self.region.is_sound(offset, ENTRY_BYTES) || seen.count == 0 {
                return None;
            }
            if seen.count == u32::MAX {
                return Some(Err(Unshareable::Saturated));
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
                // How many name it is not known, or cannot be written: it stays until it is counted anew.
                _ if !self.region.is_sound(offset, ENTRY_BYTES) => return Released::Kept,
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

    /// Reconcile: makes the entry of a block, and what is known of it in DRAM, say what is true, if it does not.
    /// `count` 0: no entry. One in bad memory stays as it is.
    pub fn set_exact(&self, block: BlockNumber, count: u32, weak: Option<u32>, flight: &mut Flight) {
        if self.region.check_writable(self.geometry.chunk_entry_offset(block), ENTRY_BYTES).is_err() {
            return;
        }
        let old = if self.has_entry(block) { self.entry(block) } else { ChunkEntry::default() };
        let word = CountWord { tag: tag::ADD, tx: 0, count, update_count: 0 };
        let new = if count == 0 { ChunkEntry::default() } else { ChunkEntry::for_block(block, word, weak) };
        // The transaction of an entry that counts may be any; an emptied one that a crash tore may have no other word.
        let is_right = if count == 0 { old.is_empty() } else { old == (ChunkEntry { tag_tx: old.tag_tx, ..new }) };
        if is_right {
            return;
        }
        let new = if count == 0 { new } else { ChunkEntry { tag_tx: new.tag_tx | self.tx(), ..new } };
        flight.add(self.region.write(self.geometry.chunk_entry_offset(block), &new).flush());
        self.note_gone(block, &old);
        if count > 0 {
            self.note(block, &new);
        }
    }

    /// Mount: fills index and totals from the entries of these segments, read by several threads. Returns how many
    /// entries were looked at.
    pub fn scan(&self, segments: &[u64]) -> u64 {
        let threads = parallel::threads(segments.len(), SEGMENTS_PER_THREAD_MIN);
        let found = parallel::map(threads, segments, |part| {
            let mut shards: Vec<Vec<u64>> = vec![Vec::new(); index::SHARDS];
            let mut entries = vec![ChunkEntry::default(); SEGMENT_BLOCKS as usize];
            part.iter().for_each(|segment| self.scan_segment(*segment, &mut entries, &mut shards));
            shards
        });
        let shards: Vec<usize> = (0..index::SHARDS).collect();
        parallel::map(threads, &shards, |part| {
            for &shard in part {
                self.index.build(shard, found.iter().flat_map(|shards| shards[shard].iter().copied()).collect());
            }
        });
        segments.iter().map(|segment| self.geometry.blocks_in_segment(*segment)).sum()
    }

    /// Reads the entries of a segment: its bits, and for the index a slot of each fingerprint.
    fn scan_segment(&self, segment: u64, entries: &mut [ChunkEntry], shards: &mut [Vec<u64>]) {
        let (mut extra, mut tx) = (0, 0);
        let first = BlockNumber(segment * SEGMENT_BLOCKS);
        let entries = &mut entries[..self.geometry.blocks_in_segment(segment) as usize];
        self.region.scan_into(self.geometry.chunk_entry_offset(first), entries.as_mut_bytes());
        for (word, entries) in (first.0 / 64..).zip(entries.chunks(64)) {
            let mut has_entry = 0;
            for (at, entry) in (0..).zip(entries).filter(|(_, entry)| !entry.is_empty()) {
                let block = BlockNumber(word * 64 + at);
                has_entry |= 1 << at;
                extra += u64::from(entry.count.saturating_sub(1));
                tx = tx.max(entry.word().tx);
                if let Some(weak) = entry.weak_of(block) {
                    let slot = index::slot(weak, block);
                    shards[index::shard_of(slot)].push(slot);
                }
            }
            self.has_entry[word as usize].store(has_entry, Ordering::Relaxed);
        }
        self.extra_references.fetch_add(extra, Ordering::Relaxed);
        self.next_tx.fetch_max(tx + 1, Ordering::Relaxed);
    }

    /// Which blocks of a segment have an entry, one bit each.
    pub fn entries_in(&self, segment: u64) -> [u64; WORDS_PER_SEGMENT] {
        std::array::from_fn(|at| self.has_entry[segment as usize * WORDS_PER_SEGMENT + at].load(Ordering::Relaxed))
    }

    /// Mount: takes saved bits and totals in; the index is loaded by itself.
    pub fn adopt_entries(&self, segment: u64, has_entry: &[u64]) {
        let words = &self.has_entry[segment as usize * WORDS_PER_SEGMENT..];
        words.iter().zip(has_entry).for_each(|(word, bits)| word.store(*bits, Ordering::Relaxed));
    }

    /// Mount: see [`Chunks::adopt_entries`].
    pub fn adopt_totals(&self, extra_references: u64, next_tx: u64) {
        self.extra_references.store(extra_references, Ordering::Relaxed);
        self.next_tx.store(next_tx.max(1), Ordering::Relaxed);
    }

    /// Number of the next dedup transaction.
    pub fn next_tx(&self) -> u64 {
        self.next_tx.load(Ordering::Relaxed)
    }

    /// Begins or ends counting anew.
    pub fn set_recount(&self, recount: Option<Recount>) {
        let mut current = self.recount.write();
        self.recounting.store(recount.is_some(), Ordering::Release);
        *current = recount;
    }

    /// What `of` says of the recount; `None` when there is none.
    pub fn with_recount<T>(&self, of: impl FnOnce(&Recount) -> T) -> Option<T> {
        if !self.recounting.load(Ordering::Acquire) {
            return None;
        }
        self.recount.read().as_ref().map(of)
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

    /// Takes an entry into bits, totals and index.
    fn note(&self, block: BlockNumber, entry: &ChunkEntry) {
        self.note_entry(block, entry.count);
        if let Some(weak) = entry.weak_of(block) {
            self.index.insert(weak, block);
        }
    }

    /// Takes an entry that is gone out of bits, totals and index.
    fn note_gone(&self, block: BlockNumber, entry: &ChunkEntry) {
        self.has_entry[(block.0 / 64) as usize].fetch_and(!(1 << (block.0 % 64)), Ordering::Relaxed);
        self.extra_references.fetch_sub(u64::from(entry.count.saturating_sub(1)), Ordering::Relaxed);
        if let Some(weak) = entry.weak_of(block) {
            self.index.remove(weak, block);
        }
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
