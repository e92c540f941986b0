//! The dram index: from a weak fingerprint to the blocks that have it, in eight bytes a block.
//!
//! The problem: NV-Dedup keeps 24 bytes of DRAM a chunk (4.2) - three tables of pointers.
//!
//! The idea: on a dram-indexed device the entry number is the block number, so one table is enough, and
//! its slot is one word: 32 bits of fingerprint, 32 bits of block number. Slots are kept *sorted* by
//! fingerprint in an array with gaps (linear probing from the fingerprint's proportional place), so a
//! search stops as soon as it passes its key and the table can be 90 % full. Growing copies the sorted
//! array with wider gaps and never looks at the media.
//!
//! ```text
//! shard = top 6 bits of the fingerprint
//! home  = fingerprint * capacity / 2^32          |..|f1 b|f1 b|f2 b|..|f7 b|..|   sorted, no wrap-around
//! ```

use crate::media::BlockNumber;
use crate::padded::Padded;
use crate::sync::Mutex;

const SHARD_BITS: u32 = 6;
const EMPTY: u64 = 0;
const CAPACITY_MIN: usize = 16;

/// The index: sharded by fingerprint, safe to use from any thread.
pub struct Index {
    shards: Vec<Padded<Mutex<Shard>>>,
}

impl Default for Index {
    fn default() -> Self {
        Index::new()
    }
}

impl Index {
    /// An empty index; takes no memory until used.
    pub fn new() -> Index {
        Index { shards: (0..1 << SHARD_BITS).map(|_| Padded::default()).collect() }
    }

    /// The first block behind `after` that has this fingerprint and that `take` takes. It is asked under the lock of
    /// the shard, so the block has not been removed yet; it may have lost its last reference: the count decides.
    pub fn find(&self, weak: u32, after: BlockNumber, take: impl FnMut(&BlockNumber) -> bool) -> Option<BlockNumber> {
        self.shard(weak).lock().find(weak, after).find(take)
    }

    /// Adds a block.
    pub fn insert(&self, weak: u32, block: BlockNumber) {
        debug_assert!(block.0 != 0 && block.0 <= u64::from(u32::MAX));
        self.shard(weak).lock().insert(slot(weak, block));
    }

    /// Removes a block; nothing happens when it is not there.
    pub fn remove(&self, weak: u32, block: BlockNumber) {
        self.shard(weak).lock().remove(slot(weak, block));
    }

    /// Fingerprints in the index.
    pub fn entries(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().len as u64).sum()
    }

    /// DRAM it takes, bytes.
    pub fn dram_bytes(&self) -> u64 {
        let slots: usize = self.shards.iter().map(|shard| shard.lock().slots.capacity()).sum();
        (slots * 8 + self.shards.len() * size_of::<Padded<Mutex<Shard>>>()) as u64
    }

    fn shard(&self, weak: u32) -> &Mutex<Shard> {
        &self.shards[(weak >> (32 - SHARD_BITS)) as usize]
    }
}

fn slot(weak: u32, block: BlockNumber) -> u64 {
    u64::from(weak) << 32 | block.0
}

#[derive(Default)]
struct Shard {
    /// `capacity` homes, then as many more slots as the last cluster needed.
    slots: Vec<u64>,
    capacity: usize,
    len: usize,
}

impl Shard {
    fn home(&self, slot: u64) -> usize {
        let in_shard = ((slot >> 32) as u32) << SHARD_BITS;
        ((u64::from(in_shard) * self.capacity as u64) >> 32) as usize
    }

    /// The blocks behind `after` with this fingerprint, in order.
    fn find(&self, weak: u32, after: BlockNumber) -> impl Iterator<Item = BlockNumber> {
        let (first, last) = (slot(weak, after) + 1, slot(weak, BlockNumber(u64::from(u32::MAX))));
        let from = self.home(first).min(self.slots.len());
        let sought = self.slots[from..].iter().take_while(move |slot| **slot != EMPTY && **slot <= last);
        sought.filter(move |slot| **slot >= first).map(|slot| BlockNumber(slot & u64::from(u32::MAX)))
    }

    fn insert(&mut self, slot: u64) {
        if self.len * 10 >= self.capacity * 9 {
            self.grow();
        }
        let mut at = self.home(slot);
        while at < self.slots.len() && self.slots[at] != EMPTY && self.slots[at] < slot {
            at += 1;
        }
        let gap = (at..self.slots.len()).find(|at| self.slots[*at] == EMPTY).unwrap_or_else(|| {
            self.slots.reserve_exact(16);
            self.slots.push(EMPTY);
            self.slots.len() - 1
        });
        self.slots.copy_within(at..gap, at + 1);
        self.slots[at] = slot;
        self.len += 1;
    }

    fn remove(&mut self, slot: u64) {
        if self.capacity == 0 {
            return;
        }
        let mut at = self.home(slot);
        while at < self.slots.len() && self.slots[at] != EMPTY && self.slots[at] < slot {
            at += 1;
        }
        if self.slots.get(at) != Some(&slot) {
            return;
        }
        // Close the gap: whoever follows and is not at home moves one down.
        while at + 1 < self.slots.len() && self.slots[at + 1] != EMPTY && self.home(self.slots[at + 1]) <= at {
            self.slots[at] = self.slots[at + 1];
            at += 1;
        }
        self.slots[at] = EMPTY;
        self.len -= 1;
        if self.len == 0 {
            *self = Shard::default();
        }
    }

    /// A quarter more homes: between 8.9 and 11.1 bytes a block at 72 to 90 % load.
    fn grow(&mut self) {
        let capacity = (self.capacity + self.capacity / 4).max(CAPACITY_MIN);
        let mut wider = Shard { slots: Vec::with_capacity(capacity + 16), capacity, len: self.len };
        for slot in self.slots.iter().copied().filter(|slot| *slot != EMPTY) {
            let at = wider.home(slot).max(wider.slots.len());
            wider.slots.resize(at, EMPTY);
            wider.slots.push(slot);
        }
        let homes = capacity.max(wider.slots.len());
        wider.slots.resize(homes, EMPTY);
        *self = wider;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn all(index: &Index, weak: u32) -> Vec<BlockNumber> {
        let mut blocks = Vec::new();
        while let Some(block) = index.find(weak, *blocks.last().unwrap_or(&BlockNumber(0)), |_| true) {
            blocks.push(block);
        }
        blocks
    }

    #[test]
    fn behaves_like_a_set_of_pairs() {
        let index = Index::new();
        let mut model = BTreeSet::new();
        let mut state = 1u64;
        for step in 0..200_000u64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Few distinct fingerprints at both ends of the range, so that clusters and collisions are common.
            let weak = match state >> 61 {
                0 => u32::MAX - (state >> 40) as u32 % 50,
                1 => (state >> 40) as u32 % 50,
                _ => (state >> 32) as u32,
            };
            let block = BlockNumber(1 + (state >> 20) % 1000);
            if step % 3 == 2 {
                let old = model.range((weak, BlockNumber(0))..).next().copied().unwrap_or((weak, block));
                index.remove(old.0, old.1);
                model.remove(&old);
            } else if model.insert((weak, block)) {
                index.insert(weak, block);
            }
            if step % 64 == 0 {
                let expected: Vec<_> = model.iter().filter(|pair| pair.0 == weak).map(|pair| pair.1).collect();
                assert_eq!(all(&index, weak), expected, "step {step}");
            }
        }
        assert_eq!(index.entries(), model.len() as u64);
        for (weak, block) in &model {
            assert!(all(&index, *weak).contains(block));
            index.remove(*weak, *block);
        }
        assert_eq!(index.entries(), 0);
    }

    #[test]
    fn takes_at_most_twelve_bytes_a_block() {
        let index = Index::new();
        for block in 1..=1_000_000u64 {
            index.insert((block.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32, BlockNumber(block));
            if block >= 10_000 && block % 10_000 == 0 {
                assert!(index.dram_bytes() <= 12 * block, "{} bytes for {block} blocks", index.dram_bytes());
            }
        }
    }
}
