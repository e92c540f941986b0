//! The dram index: it maps a weak fingerprint to the chunks that have it, in eight bytes per chunk.
//!
//! The problem: NV-Dedup keeps 24 bytes of DRAM per chunk (4.2) in three tables of pointers.
//!
//! The idea: on a dram-indexed device the entry number is the block number, so one table is enough. A slot is one
//! word: 32 bits of fingerprint and 32 bits for the number of the chunk ([`super::entries`]). Slots are kept *sorted*
//! by fingerprint in an array with gaps (linear probing from the fingerprint's proportional place). So a search stops
//! as soon as it passes its key, and the table can be 90 % full. Growing copies the sorted array with wider gaps and
//! never reads the media. Recovery sorts the slots that its scan found and lays them out at once; a clean unmount
//! saves the shards as they are.
//!
//! A block's slot stays when the block is freed. Only its [label](super::labels) is cleared, and a slot whose block
//! does not have the matching label is a leftover. A search that passes a leftover removes it, and a shard that needs
//! room drops all its leftovers before it grows. So freeing a block does not need its fingerprint, which the media
//! may not even hold.
//!
//! ```text
//! shard = top 6 bits of the fingerprint
//! home  = fingerprint * capacity / 2^32          |..|f1 b|f1 b|f2 b|..|f7 b|..|   sorted, no wrap-around
//! ```

use super::entries::{Entries, word};
use super::insertion::Insertion;
use super::labels::{Labels, TakenOff};
use super::sight::Sight;
use crate::media::{BlockNumber, ChunkRef};
use crate::words::{IndexKind, IndexStats};
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicUsize, Ordering};
use nvfold_sync::{Padded, Sum};
use std::sync::Arc;

const SHARD_BITS: u32 = 6;
/// The number of shards; each has a separate lock.
pub(crate) const SHARDS: usize = 1 << SHARD_BITS;
const EMPTY: u64 = 0;
const CAPACITY_MIN: usize = 16;
/// Slots of address space that a shard reserves with its first slot. Only touched pages take memory. Allocators map
/// areas of this size separately, so growing one moves pages and leaves no holes in the heap.
const RESERVED_SLOTS: usize = (160 << 10) / 8;

/// The dram index: sharded by fingerprint, safe to use from any thread.
pub struct DramIndex {
    shards: Vec<Padded<LockedShard>>,
    /// Translates the words in the slots to chunks.
    entries: Arc<Entries>,
    /// The label of each block: whether it can be found, and by which fingerprints.
    pub(super) labels: Labels,
    /// The number of slots of packed chunks.
    packed: Sum,
}

/// A shard behind its lock.
#[derive(Default)]
struct LockedShard {
    shard: Mutex<Shard>,
    /// Address of the slots and number of homes, possibly out of date: good enough to prefetch a slot before the lock
    /// is taken.
    slots_at: AtomicUsize,
    homes: AtomicUsize,
}

impl LockedShard {
    /// Records where the slots are now, for prefetching.
    fn note(&self, shard: &Shard) {
        let slots_at = shard.slots.as_ptr() as usize;
        if self.slots_at.load(Ordering::Relaxed) != slots_at || self.homes.load(Ordering::Relaxed) != shard.capacity {
            self.slots_at.store(slots_at, Ordering::Relaxed);
            self.homes.store(shard.capacity, Ordering::Relaxed);
        }
    }
}

impl DramIndex {
    /// Creates an empty index, which takes no memory until it is used.
    pub fn new(entries: Arc<Entries>) -> DramIndex {
        let labels = Labels::new(entries.blocks_max());
        DramIndex::with_labels(entries, labels)
    }

    /// Does the same for a device on which owners have domains: no search finds a block by the fingerprint of an
    /// earlier content.
    pub fn for_owners(entries: Arc<Entries>) -> DramIndex {
        let labels = Labels::whole(entries.blocks_max());
        DramIndex::with_labels(entries, labels)
    }

    fn with_labels(entries: Arc<Entries>, labels: Labels) -> DramIndex {
        DramIndex { shards: (0..SHARDS).map(|_| Padded::default()).collect(), entries, labels, packed: Sum::default() }
    }

    /// Finds the first chunk after `after` that has this fingerprint and that `take` accepts. `take` is called under
    /// the shard's lock, so a packed chunk has not been removed yet. The chunk may have lost its last reference: its
    /// count decides.
    pub fn find(&self, weak: u32, after: ChunkRef, mut take: impl FnMut(&ChunkRef) -> bool) -> Option<ChunkRef> {
        let mut shard = self.locked(weak).shard.lock();
        let mut leftover = None;
        let found = shard.find(weak, word(after)).map(|word| self.entries.chunk(word)).find(|chunk| {
            let is_there = self.is_there(weak, *chunk);
            if !is_there {
                leftover = Some(*chunk);
            }
            is_there && take(chunk)
        });
        // One removal per search is enough: storing a content leaves at most one leftover, and a search comes before
        // it.
        leftover.into_iter().for_each(|chunk| _ = shard.remove(slot(weak, chunk)));
        found
    }

    /// Returns whether a slot is live, that is, not a leftover.
    fn is_there(&self, weak: u32, chunk: ChunkRef) -> bool {
        chunk.block().is_none_or(|block| self.labels.fits(block, weak))
    }

    /// Prefetches the slot of a fingerprint for a search that follows soon. Takes no lock.
    pub fn prefetch(&self, weak: u32) {
        let locked = self.locked(weak);
        let home = home_of(slot(weak, ChunkRef::NONE), locked.homes.load(Ordering::Relaxed));
        pmem::prefetch(locked.slots_at.load(Ordering::Relaxed).wrapping_add(home * size_of::<u64>()));
    }

    /// See [`super::index::Index::peek`].
    pub fn peek(&self, weak: u32) -> Sight {
        self.find(weak, ChunkRef::NONE, |_| true).map_or(Sight::Nothing, Sight::Chunk)
    }

    /// Adds a chunk.
    pub fn insert(&self, weak: u32, chunk: ChunkRef) {
        let locked = self.locked(weak);
        self.insert_into(&mut locked.shard.lock(), locked, weak, chunk);
    }

    /// Adds a chunk unless it is refused. Returns whether it was admitted.
    pub fn admit(&self, new: &Insertion<'_>) -> bool {
        match new.known {
            Some(known) => self.insert_first(new.weak, new.chunk, known),
            None => {
                self.insert(new.weak, new.chunk);
                true
            }
        }
    }

    /// Adds a chunk unless the index has another one with the same fingerprint that is not in `known`. Returns
    /// whether it added the chunk.
    pub fn insert_first(&self, weak: u32, chunk: ChunkRef, known: &[ChunkRef]) -> bool {
        let locked = self.locked(weak);
        let mut shard = locked.shard.lock();
        let mut others = shard.find(weak, 0).map(|other| self.entries.chunk(other));
        let is_first = others.all(|other| known.contains(&other) || !self.is_there(weak, other));
        drop(others);
        if is_first {
            self.insert_into(&mut shard, locked, weak, chunk);
        }
        is_first
    }

    fn insert_into(&self, shard: &mut Shard, locked: &LockedShard, weak: u32, chunk: ChunkRef) {
        debug_assert!(chunk != ChunkRef::NONE);
        let is_live = |slot: u64| self.is_live(slot);
        let is_new = shard.insert(slot(weak, chunk), is_live);
        match chunk {
            ChunkRef::Block(block) => self.labels.put(block, weak),
            ChunkRef::Packed(_) => self.packed.add(u64::from(is_new)),
        }
        locked.note(shard);
    }

    fn is_live(&self, slot: u64) -> bool {
        self.is_there((slot >> 32) as u32, self.entries.chunk(slot as u32))
    }

    /// Removes a chunk, if it is there.
    pub fn remove(&self, weak: u32, chunk: ChunkRef) {
        let locked = self.locked(weak);
        let mut shard = locked.shard.lock();
        let was_there = shard.remove(slot(weak, chunk));
        match chunk {
            ChunkRef::Block(block) => self.remove_block(block),
            ChunkRef::Packed(_) => self.packed.subtract(u64::from(was_there)),
        }
        locked.note(&shard);
    }

    /// Removes a block, whatever its fingerprint.
    pub fn remove_block(&self, block: BlockNumber) {
        let TakenOff { .. } = self.labels.take_off(block);
    }

    /// Fills an empty shard with these slots, in any order; for the mount.
    pub fn build(&self, shard: usize, mut slots: Vec<u64>) {
        sort(&mut slots);
        self.replace(shard, Shard::laid_out(&slots, slots.len() + slots.len() / 6));
    }

    /// Returns a shard for the saved state: capacity and slots, with gaps but without leftovers.
    pub fn save(&self, shard: usize) -> (u64, Vec<u64>) {
        let locked = &self.shards[shard];
        let mut shard = locked.shard.lock();
        shard.drop_leftovers(|slot| self.is_live(slot));
        locked.note(&shard);
        (shard.capacity as u64, shard.slots.clone())
    }

    /// Loads a saved shard; for the mount. Returns false if it does not fit this device, or if searches would miss a
    /// slot.
    pub fn load(&self, shard: usize, capacity: u64, slots: Vec<u64>, holds: impl Fn(ChunkRef) -> bool) -> bool {
        let live = || slots.iter().copied().filter(|slot| *slot != EMPTY);
        let in_shard = |slot: u64| slot >> (64 - SHARD_BITS) == shard as u64;
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        if capacity > slots.len() || !live().all(|slot| in_shard(slot) && holds(self.entries.chunk(slot as u32))) {
            return false;
        }
        let loaded = Shard { len: live().count(), slots, capacity };
        if !loaded.is_in_order() {
            return false;
        }
        self.replace(shard, loaded);
        true
    }

    /// Returns how many chunks can be found.
    pub fn entries(&self) -> u64 {
        self.labels.count() + self.packed.get()
    }

    /// Returns the entries and the DRAM of the index.
    pub fn stats(&self) -> IndexStats {
        IndexStats {
            kind: IndexKind::Dram,
            entries: self.entries(),
            dram_bytes: self.dram_bytes(),
            ..IndexStats::default()
        }
    }

    /// Returns the DRAM that the index takes, in bytes.
    pub fn dram_bytes(&self) -> u64 {
        let slots: usize = self.shards.iter().map(|locked| locked.shard.lock().slots.len()).sum();
        (slots * 8 + self.shards.len() * size_of::<Padded<LockedShard>>()) as u64 + self.labels.bytes()
    }

    fn replace(&self, at: usize, with: Shard) {
        let mut shard = self.shards[at].shard.lock();
        for slot in shard.live() {
            match self.entries.chunk(slot as u32) {
                ChunkRef::Block(block) => self.remove_block(block),
                ChunkRef::Packed(_) => self.packed.subtract(1),
            }
        }
        *shard = with;
        for slot in shard.live() {
            match self.entries.chunk(slot as u32) {
                ChunkRef::Block(block) => self.labels.put(block, (slot >> 32) as u32),
                ChunkRef::Packed(_) => self.packed.add(1),
            }
        }
        self.shards[at].note(&shard);
    }

    fn locked(&self, weak: u32) -> &LockedShard {
        &self.shards[(weak >> (32 - SHARD_BITS)) as usize]
    }
}

/// Returns the slot for a chunk with this fingerprint.
pub(crate) fn slot(weak: u32, chunk: ChunkRef) -> u64 {
    slot_of(weak, word(chunk))
}

fn slot_of(weak: u32, word: u32) -> u64 {
    u64::from(weak) << 32 | u64::from(word)
}

/// Returns the proportional place of a slot among the homes of its shard.
fn home_of(slot: u64, homes: usize) -> usize {
    let in_shard = ((slot >> 32) as u32) << SHARD_BITS;
    ((u64::from(in_shard) * homes as u64) >> 32) as usize
}

/// Returns the shard that a slot belongs to.
pub(crate) fn shard_of(slot: u64) -> usize {
    (slot >> (64 - SHARD_BITS)) as usize
}

/// Sorts the slots of one shard. Fingerprints are spread evenly, so one pass puts nearly every slot close to its
/// place, and an insertion sort does the rest.
fn sort(slots: &mut Vec<u64>) {
    const SMALL: usize = 64;
    if slots.len() < SMALL {
        return slots.sort_unstable();
    }
    let buckets = slots.len() as u64;
    let bucket = |slot: &u64| ((u64::from(((slot >> 32) as u32) << SHARD_BITS) * buckets) >> 32) as usize;
    let mut ends = vec![0u32; slots.len() + 1];
    slots.iter().for_each(|slot| ends[bucket(slot) + 1] += 1);
    (1..ends.len()).for_each(|at| ends[at] += ends[at - 1]);
    let mut spread = vec![0; slots.len()];
    for slot in slots.iter() {
        let place = &mut ends[bucket(slot)];
        spread[*place as usize] = *slot;
        *place += 1;
    }
    // Many equal fingerprints would make the insertion sort quadratic, so the general sort takes over then.
    let mut moves_left = 16 * spread.len();
    for at in 1..spread.len() {
        let (slot, mut to) = (spread[at], at);
        while to > 0 && spread[to - 1] > slot && moves_left > 0 {
            spread[to] = spread[to - 1];
            to -= 1;
            moves_left -= 1;
        }
        spread[to] = slot;
    }
    if moves_left == 0 {
        spread.sort_unstable();
    }
    *slots = spread;
}

#[derive(Default)]
struct Shard {
    /// `capacity` homes, then the extra slots that the last cluster needed.
    slots: Vec<u64>,
    capacity: usize,
    len: usize,
}

impl Shard {
    fn home(&self, slot: u64) -> usize {
        home_of(slot, self.capacity)
    }

    fn live(&self) -> impl Iterator<Item = u64> {
        self.slots.iter().copied().filter(|slot| *slot != EMPTY)
    }

    /// Returns whether the slots ascend, and each is reached from its home without a gap.
    fn is_in_order(&self) -> bool {
        let (mut cluster, mut last) = (0, EMPTY);
        self.slots.iter().enumerate().all(|(at, slot)| {
            if *slot == EMPTY {
                cluster = at + 1;
                return true;
            }
            let ascends = std::mem::replace(&mut last, *slot) < *slot;
            ascends && self.capacity > 0 && (cluster..=at).contains(&self.home(*slot))
        })
    }

    /// Iterates in order over the words after `after` that have this fingerprint.
    fn find(&self, weak: u32, after: u32) -> impl Iterator<Item = u32> {
        let (first, last) = (slot_of(weak, after) + 1, slot_of(weak, u32::MAX));
        let from = self.home(first).min(self.slots.len());
        let sought = self.slots[from..].iter().take_while(move |slot| **slot != EMPTY && **slot <= last);
        sought.filter(move |slot| **slot >= first).map(|slot| *slot as u32)
    }

    /// Adds a slot; returns false if it is there already.
    fn insert(&mut self, slot: u64, is_live: impl Fn(u64) -> bool) -> bool {
        if self.len * 10 >= self.capacity * 9 {
            self.make_room(is_live);
        }
        let mut at = self.home(slot);
        while at < self.slots.len() && self.slots[at] != EMPTY && self.slots[at] < slot {
            at += 1;
        }
        if self.slots.get(at) == Some(&slot) {
            return false;
        }
        let gap = (at..self.slots.len()).find(|at| self.slots[*at] == EMPTY).unwrap_or_else(|| {
            self.slots.reserve_exact(16);
            self.slots.push(EMPTY);
            self.slots.len() - 1
        });
        self.slots.copy_within(at..gap, at + 1);
        self.slots[at] = slot;
        self.len += 1;
        true
    }

    /// Removes a slot; returns false if it is not there.
    fn remove(&mut self, slot: u64) -> bool {
        if self.capacity == 0 {
            return false;
        }
        let mut at = self.home(slot);
        while at < self.slots.len() && self.slots[at] != EMPTY && self.slots[at] < slot {
            at += 1;
        }
        if self.slots.get(at) != Some(&slot) {
            return false;
        }
        // Close the gap: the slots that follow move down by one, up to the first that is at home.
        while at + 1 < self.slots.len() && self.slots[at + 1] != EMPTY && self.home(self.slots[at + 1]) <= at {
            self.slots[at] = self.slots[at + 1];
            at += 1;
        }
        self.slots[at] = EMPTY;
        self.len -= 1;
        if self.len == 0 {
            *self = Shard::default();
        }
        true
    }

    fn drop_leftovers(&mut self, is_live: impl Fn(u64) -> bool) {
        if !self.live().all(&is_live) {
            self.make_room(is_live);
        }
        if self.len == 0 {
            *self = Shard::default();
        }
    }

    /// Drops leftovers, and adds homes if that is not enough: at most four for three live slots, so between 8.9 and
    /// 10.7 bytes per block. The array grows in place: all shards grow at about the same time, and copying them would
    /// leave holes in the heap as large as the index.
    fn make_room(&mut self, is_live: impl Fn(u64) -> bool) {
        self.slots.retain(|slot| *slot != EMPTY && is_live(*slot));
        let live = self.slots.len();
        self.len = live;
        self.capacity = self.capacity.max(live + live / 3).max(CAPACITY_MIN);
        let end = self.slots.iter().fold(0, |at, slot| self.home(*slot).max(at) + 1);
        let slots = self.capacity.max(end);
        self.slots.reserve_exact((slots + 16).max(RESERVED_SLOTS) - live);
        self.slots.resize(slots, EMPTY);
        // Each slot moves from the end of the array to its place, in order. That place is never past the slot's
        // waiting position, because the slots that follow need room too.
        self.slots.copy_within(..live, slots - live);
        let mut at = 0;
        for waiting in slots - live..slots {
            let slot = self.slots[waiting];
            let to = self.home(slot).max(at);
            self.slots[at..to].fill(EMPTY);
            self.slots[to] = slot;
            at = to + 1;
        }
        self.slots[at..].fill(EMPTY);
    }

    /// Lays out sorted slots, each at its home or in the first free place after it.
    fn laid_out(sorted: &[u64], capacity: usize) -> Shard {
        if sorted.is_empty() && capacity == 0 {
            return Shard::default();
        }
        let capacity = capacity.max(CAPACITY_MIN);
        let mut shard = Shard { slots: Vec::with_capacity(capacity + 16), capacity, len: sorted.len() };
        for slot in sorted {
            let at = shard.home(*slot).max(shard.slots.len());
            shard.slots.resize(at, EMPTY);
            shard.slots.push(*slot);
        }
        let homes = capacity.max(shard.slots.len());
        shard.slots.resize(homes, EMPTY);
        shard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::BlockNumber;
    use crate::media::superblock::Geometry;

    fn entries() -> Arc<Entries> {
        Arc::new(Entries::new(Geometry::of(1 << 44).unwrap()))
    }

    fn block(number: u64) -> ChunkRef {
        BlockNumber(number).into()
    }
    use std::collections::{BTreeMap, BTreeSet};

    fn all(index: &DramIndex, weak: u32) -> Vec<ChunkRef> {
        let mut blocks = Vec::new();
        while let Some(block) = index.find(weak, *blocks.last().unwrap_or(&ChunkRef::NONE), |_| true) {
            blocks.push(block);
        }
        blocks
    }

    /// Blocks that are freed leave their slots behind, and come back with other fingerprints. A search may match the
    /// few bits of a label by chance; the file system then compares the content, here the model does.
    #[test]
    fn the_dram_index_behaves_like_a_set_of_pairs() {
        let index = DramIndex::new(entries());
        let mut model = BTreeSet::new();
        let mut weak_of = BTreeMap::new();
        let mut state = 1u64;
        for step in 0..200_000u64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Few distinct fingerprints at both ends of the range, so that clusters and collisions are common.
            let weak = match state >> 61 {
                0 => u32::MAX - (state >> 40) as u32 % 50,
                1 => (state >> 40) as u32 % 50,
                _ => (state >> 32) as u32,
            };
            let block = block(1 + (state >> 20) % 1000);
            if step % 3 == 2 {
                let old = model.range((weak, ChunkRef::NONE)..).next().copied().unwrap_or((weak, block));
                index.remove(old.0, old.1);
                model.remove(&old);
                weak_of.remove(&old.1);
            } else {
                if let Some(old) = weak_of.insert(block, weak).filter(|old| *old != weak) {
                    index.remove_block(block.block().unwrap());
                    model.remove(&(old, block));
                }
                index.insert(weak, block);
                model.insert((weak, block));
            }
            if step % 64 == 0 {
                let expected: Vec<_> = model.iter().filter(|pair| pair.0 == weak).map(|pair| pair.1).collect();
                let mut found = all(&index, weak);
                found.retain(|block| weak_of[block] == weak);
                assert_eq!(found, expected, "step {step}");
            }
        }
        assert_eq!(index.entries(), model.len() as u64);
        assert!(index.dram_bytes() < 40_000, "leftovers go: {} bytes for 1000 blocks", index.dram_bytes());
        for (weak, block) in &model {
            assert!(all(&index, *weak).contains(block));
            index.remove(*weak, *block);
        }
        assert_eq!(index.entries(), 0);
    }

    #[test]
    fn a_dram_index_built_in_bulk_or_loaded_equals_one_filled_step_by_step() {
        for count in [0u64, 1, 63, 64, 5000] {
            let weak =
                |at: u64| if at.is_multiple_of(7) { 77 } else { (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32 };
            let pairs: Vec<(u32, ChunkRef)> = (0..count).map(|at| (weak(at), block(1 + count - at))).collect();
            let (filled, built, loaded) =
                (DramIndex::new(entries()), DramIndex::new(entries()), DramIndex::new(entries()));
            let mut shards = vec![Vec::new(); SHARDS];
            for (weak, block) in &pairs {
                filled.insert(*weak, *block);
                shards[shard_of(slot(*weak, *block))].push(slot(*weak, *block));
            }
            for (shard, slots) in shards.into_iter().enumerate() {
                built.build(shard, slots);
                let (capacity, slots) = built.save(shard);
                assert!(loaded.load(shard, capacity, slots, |chunk| chunk <= block(count + 1)));
            }
            for (weak, block) in &pairs {
                let expected = all(&filled, *weak);
                assert!(expected.contains(block) && all(&built, *weak) == expected && all(&loaded, *weak) == expected);
            }
            pairs.iter().for_each(|(weak, block)| built.remove(*weak, *block));
            assert_eq!((built.entries(), loaded.entries()), (0, filled.entries()));
        }
        assert!(!DramIndex::new(entries()).load(1, 1, vec![slot(0, block(1))], |_| true), "of another shard");
        assert!(!DramIndex::new(entries()).load(0, 2, vec![slot(0, block(1))], |_| true), "fewer slots than homes");
        assert!(!DramIndex::new(entries()).load(0, 1, vec![slot(0, block(9))], |_| false), "a block that is not there");
        let far = slot(u32::MAX >> SHARD_BITS, block(2));
        let near = slot(0, block(1));
        assert!(DramIndex::new(entries()).load(0, 3, vec![near, EMPTY, far], |_| true));
        for (capacity, slots) in [(0, vec![near]), (3, vec![far, near, EMPTY]), (3, vec![EMPTY, near, far])] {
            assert!(!DramIndex::new(entries()).load(0, capacity, slots, |_| true), "slots that no search would find");
        }
    }

    #[test]
    fn the_dram_index_takes_at_most_twelve_bytes_for_each_block() {
        let index = DramIndex::new(entries());
        for number in 1..=1_000_000u64 {
            index.insert((number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32, block(number));
            if number >= 10_000 && number % 10_000 == 0 {
                assert!(index.dram_bytes() <= 12 * number, "{} bytes for {number} blocks", index.dram_bytes());
            }
        }
    }
}
