//! From a weak fingerprint to the blocks that have it: the two indexes over the one chunk table.
//!
//! Which one a device has is chosen when it is formatted. [`dram`](super::dram) is the faster one;
//! [`fact`](super::fact) lies on the device and takes no DRAM. Searches use both in the same way.

use super::dram::DramIndex;
use super::fact::Fact;
use super::sight::Sight;
use crate::media::ChunkRef;
use crate::words::IndexStats;
use pmem::Flight;

/// The index of a device; may be used from any thread.
pub enum Index {
    /// In DRAM.
    Dram(Box<DramIndex>),
    /// On the device.
    Pm(Box<Fact>),
}

impl Index {
    /// The first chunk behind `after` ([`ChunkRef::NONE`]: of all) that has this fingerprint and that `take` takes. It is asked while
    /// nobody can remove the block; the block may have lost its last reference: the count decides. What lies behind
    /// another stays so while the caller has a reference on it.
    pub fn find(&self, weak: u32, after: ChunkRef, take: impl FnMut(&ChunkRef) -> bool) -> Option<ChunkRef> {
        match self {
            Index::Dram(index) => index.find(weak, after, take),
            Index::Pm(index) => index.find(weak, after, take),
        }
    }

    /// Asks for where searches for these fingerprints begin, so that they need not wait for that.
    pub fn fetch(&self, weak: impl Iterator<Item = u32>) {
        match self {
            Index::Dram(index) => weak.for_each(|weak| index.prefetch(weak)),
            Index::Pm(index) => index.fetch(weak),
        }
    }

    /// What a search for this fingerprint is about to find first. Nobody keeps it so: it says what is worth fetching.
    pub fn peek(&self, weak: u32) -> Sight {
        match self {
            Index::Dram(index) => index.peek(weak),
            Index::Pm(index) => index.peek(weak),
        }
    }

    /// Adds a block whose entry is durable; nothing happens when it is there. Durable when it returns.
    pub fn insert(&self, weak: u32, chunk: ChunkRef) {
        match self {
            Index::Dram(index) => index.insert(weak, chunk),
            Index::Pm(index) => index.insert(weak, chunk),
        }
    }

    /// Adds a block unless there is one with the same fingerprint that is none of `known`; says whether it did.
    pub fn insert_first(&self, weak: u32, chunk: ChunkRef, known: &[ChunkRef]) -> bool {
        match self {
            Index::Dram(index) => index.insert_first(weak, chunk, known),
            Index::Pm(index) => index.insert_first(weak, chunk, known),
        }
    }

    /// Removes a block; nothing happens when it is not there. What is returned must be fenced before the block gets
    /// another user.
    pub fn remove(&self, weak: u32, chunk: ChunkRef) -> Flight {
        match self {
            Index::Dram(index) => {
                index.remove(weak, chunk);
                Flight::new()
            }
            Index::Pm(index) => index.remove(weak, chunk),
        }
    }

    /// The pm index, if that is what it is.
    pub fn fact(&self) -> Option<&Fact> {
        match self {
            Index::Dram(_) => None,
            Index::Pm(index) => Some(index),
        }
    }

    /// The dram index, if that is what it is.
    pub fn dram(&self) -> Option<&DramIndex> {
        match self {
            Index::Dram(index) => Some(index),
            Index::Pm(_) => None,
        }
    }

    /// What it costs.
    pub fn stats(&self) -> IndexStats {
        match self {
            Index::Dram(index) => index.stats(),
            Index::Pm(index) => index.stats(),
        }
    }
}
