//! The index, from a weak fingerprint to the chunks that have it: two kinds over the same chunk table.
//!
//! The kind is chosen when a device is formatted. [`dram`](super::dram) is the faster one; [`fact`](super::fact) is
//! stored on the device and takes no DRAM for each chunk. Searches use both in the same way.

use super::dram::DramIndex;
use super::fact::Fact;
use super::insertion::Insertion;
use super::sight::Sight;
use crate::media::ChunkRef;
use crate::words::IndexStats;
use pmem::Flight;
use smallvec::SmallVec;

/// The index of a device; safe to use from any thread.
pub enum Index {
    /// In DRAM.
    Dram(Box<DramIndex>),
    /// On the device.
    Pm(Box<Fact>),
}

impl Index {
    /// Finds the first chunk after `after` ([`ChunkRef::NONE`]: of all) that has this fingerprint and that `take`
    /// accepts. `take` is called while no thread can remove the chunk from the index. The chunk may have lost its
    /// last reference: its count decides. A search can resume after a chunk on which the caller holds a reference,
    /// because that chunk stays in the index.
    pub fn find(&self, weak: u32, after: ChunkRef, take: impl FnMut(&ChunkRef) -> bool) -> Option<ChunkRef> {
        match self {
            Index::Dram(index) => index.find(weak, after, take),
            Index::Pm(index) => index.find(weak, after, take),
        }
    }

    /// Prefetches the memory where searches for these fingerprints begin.
    pub fn fetch(&self, weak: impl Iterator<Item = u32>) {
        match self {
            Index::Dram(index) => weak.for_each(|weak| index.prefetch(weak)),
            Index::Pm(index) => index.fetch(weak),
        }
    }

    /// Returns the chunk that a search for this fingerprint is likely to find first. This may change at any time: it
    /// only says what is worth fetching.
    pub fn peek(&self, weak: u32) -> Sight {
        match self {
            Index::Dram(index) => index.peek(weak),
            Index::Pm(index) => index.peek(weak),
        }
    }

    /// Adds a chunk whose entry is durable, unless it is there. The addition is durable on return.
    pub fn insert(&self, weak: u32, chunk: ChunkRef) {
        match self {
            Index::Dram(index) => index.insert(weak, chunk),
            Index::Pm(index) => index.insert(weak, chunk),
        }
    }

    /// Adds chunks in their order, durably, unless they are there or refused. Returns those that were refused. All
    /// chunks of a request belong in one call: the pm index then makes them durable together.
    pub fn insert_all<'k>(&self, new: impl Iterator<Item = Insertion<'k>>) -> Vec<ChunkRef> {
        match self {
            Index::Dram(index) => new.filter(|new| !index.admit(new)).map(|new| new.chunk).collect(),
            Index::Pm(index) => index.insert_all(&new.collect::<SmallVec<[_; 32]>>()),
        }
    }

    /// Removes a chunk, if it is there. The caller must fence the returned flight before the chunk gets another user.
    pub fn remove(&self, weak: u32, chunk: ChunkRef) -> Flight {
        match self {
            Index::Dram(index) => {
                index.remove(weak, chunk);
                Flight::new()
            }
            Index::Pm(index) => index.remove(weak, chunk),
        }
    }

    /// Removes a chunk durably, also during reconcile, so that no search finds it by its weak fingerprint.
    pub(super) fn remove_durably(&self, weak: u32, chunk: ChunkRef) {
        match self {
            Index::Dram(index) => index.remove(weak, chunk),
            Index::Pm(index) => index.remove_lost(weak, chunk),
        }
    }

    /// Returns the pm index, if this is one.
    pub fn fact(&self) -> Option<&Fact> {
        match self {
            Index::Dram(_) => None,
            Index::Pm(index) => Some(index),
        }
    }

    /// Returns the dram index, if this is one.
    pub fn dram(&self) -> Option<&DramIndex> {
        match self {
            Index::Dram(index) => Some(index),
            Index::Pm(_) => None,
        }
    }

    /// Returns the memory and the work of the index.
    pub fn stats(&self) -> IndexStats {
        match self {
            Index::Dram(index) => index.stats(),
            Index::Pm(index) => index.stats(),
        }
    }
}
