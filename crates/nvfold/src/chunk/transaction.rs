//! Dedup transactions: after a crash the entries hold all changes of a transaction or none (NV-Dedup 4.3).
//!
//! The problem: the counts that an operation changes are in many lines, and a crash may lose any of them. A log would
//! write everything twice.
//!
//! The idea: an entry records its last change (tag) and the transaction that made it (TX_ID), in the 16 bytes that
//! change together with its count. A transaction takes its number from a generator on the media and ends by
//! increasing the generator. An entry whose number the generator has not passed belongs to an unfinished transaction:
//! recovery takes the change back ([`Chunks::scan`]), without a log.
//!
//! ```text
//! fingerprint                                                     outside the transaction
//! begin      hold a generator, copy its number                    at the first entry operation: when there is a
//!                                                                 candidate to count, or an entry to write
//!            add_entry, increase_RC; stream the data              flushed
//! end        increase the generator, flush; ONE fence             entries, data and generator are durable
//! publish    the commit word of the inode; null_entry of what it named alone; fence
//!            decrease_RC of what it named with others; flushed by the unmount
//! ```
//!
//! Differences from the paper, and why:
//!
//! * The paper fences the entries, then increases the generator, then changes the inode. Here generator and entries
//!   share a fence. A crash may then leave the generator increased and an entry unwritten, which leaves nothing to
//!   undo.
//! * The paper decreases counts before the inode changes, and a crash in between leaves them too low. Here removals
//!   come after the extents that held the references have become unreachable, and they are never undone, so they need
//!   no generator. `null_entry` may share the fence of the commit word: if a crash keeps only the empty entry, it
//!   says that one extent references the block, which is true until the commit word is durable.
//! * There is a generator for each core ([`crate::media::generator`]), so threads do not wait for one another.
//! * One transaction covers all chunks of a write, since a write is atomic here.

use super::packed::NewPacked;
use super::reference::Reference;
use super::{Chunks, Unshareable};
use crate::fingerprint::{Domain, Fingerprint, Strong};
use crate::media::chunk_entry::{ChunkEntry, CountWord, tag};
use crate::media::generator::{parts, tx_id};
use crate::media::{BlockNumber, ChunkRef};
use nvfold_sync::MutexGuard;
use pmem::{Flight, Group, Landed};

/// One dedup transaction. If it is dropped before its end, it leaves the generator unchanged and gives its number
/// back. The operation that began it must have taken back its references by then.
pub struct Transaction<'a> {
    chunks: &'a Chunks,
    generator: Option<(usize, MutexGuard<'a, ()>)>,
    /// The TX_ID; set by the first entry operation.
    id: Option<u64>,
    /// Lines that are flushed and not fenced yet.
    pub(crate) flight: Flight,
    /// Where data of the operation is found.
    pub(crate) domain: Domain,
    /// References that were only taken to compare.
    given_back: Vec<ChunkRef>,
    counted: Counted,
    /// Why an entry was not written: it could not be read back.
    refused: Option<&'static str>,
}

/// Chunks that the transaction has counted: writing a new entry for one of them would lose references. Kept only in
/// builds with assertions.
#[derive(Default)]
struct Counted {
    #[cfg(debug_assertions)]
    chunks: std::collections::BTreeSet<ChunkRef>,
}

#[cfg(debug_assertions)]
impl Counted {
    /// Returns whether the chunk is counted for the first time.
    fn insert(&mut self, chunk: ChunkRef) -> bool {
        self.chunks.insert(chunk)
    }
}

#[cfg(not(debug_assertions))]
impl Counted {
    fn insert(&mut self, _: ChunkRef) -> bool {
        true
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // Recovery takes numbers that run ahead of their generator for damage. No other transaction took a number
        // since: the generator is still held.
        if let Some(((generator, _), id)) = self.generator.as_ref().zip(self.id) {
            self.chunks.generators.take_back(*generator, id);
        }
    }
}

impl<'a> Transaction<'a> {
    pub(super) fn new(chunks: &'a Chunks) -> Transaction<'a> {
        Transaction {
            chunks,
            generator: None,
            id: None,
            flight: Flight::new(),
            domain: Domain::ALL,
            given_back: Vec::new(),
            counted: Counted::default(),
            refused: None,
        }
    }

    /// Returns the chunk table.
    pub fn chunks(&self) -> &'a Chunks {
        self.chunks
    }

    /// Returns why an entry of the transaction was not written, if it could not be read back. The caller asks before
    /// the commit, and does not commit then.
    #[inline]
    pub(crate) fn refused(&self) -> Option<&'static str> {
        self.refused
    }

    /// Returns the second key of a piece in the domain of the operation, if the piece has one other than `first`.
    pub(crate) fn second_key(&self, piece: &[u8], first: u32) -> Option<u32> {
        let second = self.chunks.keys().second(piece).map(|key| self.domain.salted(key));
        second.filter(|second| *second != first)
    }

    fn id(&mut self) -> u64 {
        let generators = &self.chunks.generators;
        let (generator, _) = self.generator.get_or_insert_with(|| generators.acquire());
        *self.id.get_or_insert_with(|| tx_id(*generator as u64, generators.next_of(*generator)))
    }

    /// add_entry: writes the entry of a block that no extent can reach yet, with as many references as the operation
    /// makes.
    pub(crate) fn add(&mut self, block: BlockNumber, count: u32, fingerprint: &Fingerprint) {
        let word = CountWord { tag: tag::ADD, tx: self.id(), count, update_count: 0 };
        self.write_entry(block.into(), ChunkEntry::for_block(block, word), fingerprint);
    }

    /// add_entry: gives a private block an entry with one reference and no fingerprint, while others may find and
    /// share the block. The caller has locked an inode with an extent of the block.
    pub(crate) fn count_one(&mut self, block: BlockNumber) {
        let id = self.id();
        self.chunks.count_one(block, id, &mut self.flight);
        self.counted.insert(block.into());
    }

    /// Does the same as [`Transaction::add`] for a packed chunk; `new` holds its class, media address and length.
    pub(crate) fn add_packed(&mut self, new: &NewPacked, count: u32, fingerprint: &Fingerprint) {
        let word = CountWord { tag: tag::ADD, tx: self.id(), count, update_count: 0 };
        let entry = ChunkEntry::for_packed(new.address, new.bytes, new.class, word);
        self.write_entry(new.number.into(), entry, fingerprint);
    }

    fn write_entry(&mut self, chunk: ChunkRef, entry: ChunkEntry, fingerprint: &Fingerprint) {
        let chunks = self.chunks;
        let (mut entry, count) = (entry, entry.count);
        let of_count = || if count > 0 { Ok(()) } else { Err("an entry that counts nothing") };
        let holds = |at, bytes| chunks.geometry.holds_data(at, bytes);
        if let Err(why) = entry.check(chunk, holds).and_then(|()| of_count()) {
            self.refused = Some(why);
            return;
        }
        let is_first = self.counted.insert(chunk);
        debug_assert!(is_first, "{} gets a new entry in the transaction that counted it", chunk);
        if let Some(weak) = fingerprint.weak {
            entry = entry.with_weak(chunks.weak_function(), weak);
            entry.delete_pointer = chunks.index.fact().map_or(0, |index| index.chain_of(weak) as u32);
        }
        if let Some(strong) = fingerprint.strong {
            entry = entry.with_strong(chunks.strong_function(), strong);
        }
        self.flight.add(chunks.region.write(chunks.entry_offset(chunk), &entry).flush());
        chunks.record_entry(chunk, count);
    }

    /// increase_RC: takes one more reference on a block that the caller knows to be in use (it holds the lock of an
    /// inode that references it).
    ///
    /// # Errors
    /// The block can have no further reference; see [`Unshareable`].
    pub(crate) fn share(&mut self, chunk: impl Into<ChunkRef>) -> Result<Reference, Unshareable> {
        let chunk = chunk.into();
        self.count(chunk, 1)?;
        Ok(Reference::new(chunk))
    }

    /// Takes several references at once: the entry changes and is flushed once. The caller must use all of them;
    /// dropping the iterator early leaks the rest.
    #[must_use = "references are published or given back, or their chunk stays in use for ever"]
    pub(crate) fn share_times(
        &mut self,
        chunk: ChunkRef,
        times: u32,
    ) -> Result<impl ExactSizeIterator<Item = Reference> + use<>, Unshareable> {
        self.count(chunk, times)?;
        Ok((0..times).map(move |_| Reference::new(chunk)))
    }

    fn count(&mut self, chunk: ChunkRef, more: u32) -> Result<(), Unshareable> {
        let id = self.id();
        self.chunks.share(chunk, more, id, &mut self.flight)?;
        self.counted.insert(chunk);
        Ok(())
    }

    /// Takes a reference on the first chunk after `after` that has this fingerprint and can be shared. Its bytes do
    /// not change from then on.
    ///
    /// The reference is taken while the chunk can be found. A chunk can be found only after its content was
    /// published, and no longer once it is about to be freed. So the reference never falls on the next content of the
    /// block, which its writer may not have stored yet ([`super::labels`]).
    #[must_use = "a reference is published or given back, or its chunk stays in use for ever"]
    pub fn share_candidate(&mut self, weak: u32, after: ChunkRef) -> Option<Reference> {
        self.share_candidate_that(weak, after, |_| true)
    }

    /// Does the same for the first chunk that `fits`.
    #[must_use = "a reference is published or given back, or its chunk stays in use for ever"]
    pub(crate) fn share_candidate_that(
        &mut self,
        weak: u32,
        after: ChunkRef,
        fits: impl Fn(&ChunkRef) -> bool,
    ) -> Option<Reference> {
        let chunks = self.chunks;
        loop {
            let mut is_busy = false;
            let found = chunks.index.find(weak, after, |chunk| {
                // A thread that waits for a generator must not block the index, so the search ends here if none is
                // free, and is repeated.
                let takes = fits(chunk);
                is_busy = takes && !self.try_begin();
                takes && (is_busy || self.try_share_found(weak, *chunk))
            });
            if !is_busy {
                return found.map(Reference::new);
            }
            self.begin();
        }
    }

    /// Acquires the generator now, if that needs no waiting. Returns whether the transaction has one.
    fn try_begin(&mut self) -> bool {
        if self.generator.is_none() {
            self.generator = self.chunks.generators.try_acquire();
        }
        self.generator.is_some()
    }

    /// Acquires the generator now. A policy that has a lock calls this before it takes the lock, because a thread
    /// that waits for a generator must not block others.
    pub fn begin(&mut self) {
        let chunks = self.chunks;
        self.generator.get_or_insert_with(|| chunks.generators.acquire());
    }

    /// Takes a reference on a block that the policy found without the index. Its bytes do not change from then on.
    /// Returns `None` if the block has no entry, if its content is not confirmed yet after a crash, or if its count
    /// is at the maximum.
    ///
    /// The policy must have received the block in `published`, and must not have returned from a later `released` of
    /// it: until `released` returns, the block gets no other content.
    #[must_use = "a reference is published or given back, or its chunk stays in use for ever"]
    pub fn share_known(&mut self, chunk: impl Into<ChunkRef>) -> Option<Reference> {
        let chunk = chunk.into();
        self.try_share(chunk).then(|| Reference::new(chunk))
    }

    fn try_share(&mut self, chunk: ChunkRef) -> bool {
        if !self.chunks.is_content_confirmed(chunk) {
            return false;
        }
        let id = self.id();
        let is_shared = matches!(self.chunks.increase(chunk, 1, id, &mut self.flight), Some(Ok(())));
        if is_shared {
            self.counted.insert(chunk);
        }
        is_shared
    }

    fn try_share_found(&mut self, weak: u32, chunk: ChunkRef) -> bool {
        let (chunks, id) = (self.chunks, self.id());
        let first = CountWord { tag: tag::ADD, tx: id, count: 2, update_count: 0 };
        let more = |flight: &mut Flight| matches!(chunks.increase(chunk, 1, id, flight), Some(Ok(())));
        let is_shared = chunks.take_found(weak, chunk, first, &mut self.flight, more);
        if is_shared {
            self.counted.insert(chunk);
        }
        is_shared
    }

    /// Gives back a reference that was only taken to compare. It may be the chunk's last by now, so it is dropped
    /// when the operation ends.
    pub fn give_back(&mut self, reference: Reference) {
        self.given_back.push(reference.take());
    }

    /// Returns the chunks of references that were given back and not dropped yet.
    pub(crate) fn given_back(&self) -> &[ChunkRef] {
        &self.given_back
    }

    /// Returns the strong fingerprint of a chunk that cannot change, because the transaction holds a reference. Reads
    /// it from the entry, or computes it and adds it to the entry (4.4.2). `None` if the chunk's bytes are in bad
    /// memory.
    pub fn strong_of(&mut self, chunk: ChunkRef) -> Option<Strong> {
        let chunks = self.chunks;
        let function = chunks.strong_function();
        if let Some(stored) = chunks.entry(chunk).strong(function) {
            let (address, bytes) = chunks.place_of(chunk)?;
            return chunks.region.sound_or_forget(address, bytes).then_some(stored);
        }
        let strong = function.of(&chunks.content(chunk)?);
        chunks.set_strong(chunk, strong, &mut self.flight);
        Some(strong)
    }

    /// Ends the transaction: increases the generator, and makes everything that was flushed durable with one fence,
    /// including `also`.
    pub(crate) fn end<G: Group>(&mut self, also: G) -> (Landed, G::Clean) {
        debug_assert!(self.id.is_none() || self.generator.is_some(), "a number of a generator that is not held");
        if let Some(((generator, _), id)) = self.generator.as_ref().zip(self.id.take()) {
            let (_, sequence) = parts(id);
            let offset = self.chunks.geometry.generator_offset(*generator as u64);
            self.flight.add(self.chunks.region.store_u64(offset, sequence + 1).flush());
        }
        let fenced = self.chunks.region.fence((std::mem::take(&mut self.flight), also));
        self.generator = None;
        debug_assert!(self.id.is_none(), "a transaction that ended still has its number");
        self.counted = Counted::default();
        fenced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Generators;
    use crate::chunk::dram::DramIndex;
    use crate::chunk::entries::Entries;
    use crate::chunk::index::Index;
    use crate::fingerprint::{StrongFunction, WeakFunction};
    use crate::media::SEGMENT_BLOCKS;
    use crate::media::superblock::Geometry;
    use pmem::{DeviceSpec, OpenOptions, Region};
    use std::sync::Arc;

    const BYTES: u64 = 16 << 20;

    /// With one generator for all, a second transaction would wait for the first one for ever.
    #[test]
    fn a_search_takes_a_generator_only_for_a_candidate() {
        let region = Region::create(&DeviceSpec::Memory, BYTES, &OpenOptions::default()).unwrap();
        let geometry = Geometry::of(BYTES).unwrap();
        let functions = (WeakFunction::Xxh3.into(), StrongFunction::Blake3);
        let entries = Arc::new(Entries::new(geometry));
        let index = (entries.clone(), Index::Dram(Box::new(DramIndex::new(entries))));
        let chunks = Chunks::new(region, geometry, index, functions, Generators::Global);
        let block = BlockNumber(geometry.first_segment() * SEGMENT_BLOCKS);
        let mut other = chunks.begin();
        other.add(block, 1, &Fingerprint { weak: Some(7), strong: None });
        chunks.index.insert(7, block.into());
        let mut tx = chunks.begin();
        assert!(tx.share_candidate(8, ChunkRef::NONE).is_none());
        assert!(tx.share_candidate_that(7, ChunkRef::NONE, |_| false).is_none());
        assert!(tx.generator.is_none() && !tx.try_begin());
        let _ = other.end(());
        let found = tx.share_candidate(7, ChunkRef::NONE).map(Reference::take);
        assert_eq!((found, tx.generator.is_some()), (Some(block.into()), true));
        let _ = tx.end(());
    }
}
