//! Fingerprints for chunks that are stored already: giving them, and reading them.
//!
//! A write enters its chunks while nobody can reach them. These can be reached, so what is entered must be durable before it
//! can be found, and a chunk that two threads look at gets one entry.

use super::Store;
use crate::chunk::insertion::Insertion;
use crate::fingerprint::{Domain, Fingerprint};
use crate::inode::extents::Extent;
use crate::media::chunk_entry::{CLASS_END, ENTRY_BYTES};
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef};
use nvfold_sync::MutexGuard;
use pmem::Flight;
use smallvec::SmallVec;

impl Store {
    /// Gives blocks of a locked file the weak fingerprints that they lack, so that they can be found. Returns how
    /// many got one; blocks in bad memory get none. With a dram index a crash loses the fingerprints unless `keep`
    /// puts them in chunk entries, which is needed if no background work would compute them again.
    pub(crate) fn enter_all(&self, blocks: impl IntoIterator<Item = BlockNumber>, domain: Domain, keep: bool) -> u64 {
        let _alone = self.fingerprint_alone(domain);
        self.enter_each(blocks, keep, |_, weak| domain.salted(weak))
    }

    /// Where owners have domains, keeps other threads from giving a chunk of a stored file a fingerprint and from
    /// taking it off.
    pub(crate) fn fingerprint_alone(&self, domain: Domain) -> Option<MutexGuard<'_, ()>> {
        (domain != Domain::ALL).then(|| self.chunks.fingerprinting.lock())
    }

    /// Does the same with keys that `salted` makes from the block and a key of its content.
    pub(crate) fn enter_each(
        &self,
        blocks: impl IntoIterator<Item = BlockNumber>,
        keep: bool,
        salted: impl Fn(BlockNumber, u32) -> u32,
    ) -> u64 {
        let (chunks, region) = (&self.chunks, &self.region);
        let has_entries = keep || !chunks.finds_private();
        let mut tx = chunks.begin();
        let mut entered: Vec<(u32, BlockNumber)> = Vec::new();
        let lacks = |block: &BlockNumber| match has_entries {
            true => !chunks.has_entry(*block) || chunks.entry(*block).weak(chunks.weak_function()).is_none(),
            false => !chunks.can_be_found(*block),
        };
        for block in blocks.into_iter().filter(lacks) {
            let keys = chunks.keys().all(&region.read::<[u8; BLOCK_BYTES as usize]>(block.address()));
            let keys: SmallVec<[u32; 2]> = keys.into_iter().map(|key| salted(block, key)).collect();
            let with_it = entered.iter().filter(|(weak, _)| has_entries && *weak == keys[0]).count();
            let weak = chunks.key_to_enter(block, &keys, with_it);
            let is_writable = region.check_writable(chunks.entry_offset(block), ENTRY_BYTES).is_ok();
            if !region.sound_or_forget(block.address(), BLOCK_BYTES) || !is_writable {
                continue;
            }
            if !has_entries {
                chunks.index.insert(weak, block.into());
            } else if chunks.has_entry(block) {
                chunks.set_weak(block, weak, &mut tx.flight);
            } else if chunks.can_be_found(block) {
                // Another file may share the block at the same time.
                tx.count_one(block);
                chunks.set_weak(block, weak, &mut tx.flight);
            } else {
                tx.add(block, 1, &Fingerprint { weak: Some(weak), strong: None });
            }
            entered.push((weak, block));
        }
        if !entered.is_empty() && has_entries {
            // These blocks can be reached already, unlike those of a write, so no entry may count as done before all
            // of it is durable.
            let _ = region.fence(std::mem::take(&mut tx.flight));
            let refused = self.check_entries(&tx);
            let _ = tx.end(());
            if refused.is_err() {
                return 0;
            }
            entered.retain(|(weak, block)| self.has_weak(*block, |now| salted(*block, now) == *weak));
            let insertion = |(weak, block): &(u32, BlockNumber)| Insertion::always(*weak, *block);
            chunks.index.insert_all(entered.iter().map(insertion));
        }
        entered.len() as u64
    }

    /// The same for the packed end of a file. Other chunks are skipped: the tail of a stream has no fingerprint
    /// because it still grows.
    pub(crate) fn enter_end(&self, chunk: ChunkRef, domain: Domain) {
        let _alone = self.fingerprint_alone(domain);
        let (chunks, region) = (&self.chunks, &self.region);
        let entry = chunks.entry(chunk);
        if entry.class() != CLASS_END || entry.weak(chunks.weak_function()).is_some() {
            return;
        }
        let Some(content) = chunks.content(chunk) else { return };
        let weak = domain.salted(chunks.weak_function().of(&content));
        if region.check_writable(chunks.entry_offset(chunk), ENTRY_BYTES).is_ok() {
            let mut flight = Flight::new();
            chunks.set_weak(chunk, weak, &mut flight);
            let _ = region.fence(flight);
            chunks.index.insert(weak, chunk);
        }
    }

    /// True if an extent touches blocks that cannot be found by their fingerprints.
    pub(crate) fn lacks_fingerprints(&self, extent: &Extent) -> bool {
        !extent.unwritten && extent.blocks().blocks().any(|block| !self.chunks.can_be_found(block))
    }

    /// Returns the key by which the index can find a chunk of a file in this domain: from its entry, or computed again.
    /// `None` if a block is found in another domain, which its entry does not say.
    pub(crate) fn weak_of(&self, chunk: ChunkRef, domain: Domain) -> Option<u32> {
        let function = self.chunks.weak_function();
        let of_entry = || self.chunks.entry(chunk).weak(function);
        let stored = self.chunks.has_entry(chunk).then(of_entry).flatten();
        stored.or_else(|| {
            let block = chunk.block().filter(|block| self.chunks.can_be_found(*block))?;
            self.keys_in(chunk, domain).into_iter().find(|key| self.chunks.can_be_found_by(block, *key))
        })
    }

    /// Returns the keys that a chunk has in this domain; none if it cannot be read.
    pub(crate) fn keys_in(&self, chunk: ChunkRef, domain: Domain) -> SmallVec<[u32; 2]> {
        let content = self.chunks.content(chunk);
        content.map(|content| self.chunks.keys().all_in(domain, &content)).unwrap_or_default()
    }
}
