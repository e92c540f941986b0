//! Sharing the blocks of a queued log entry: steps 2 to 6 of Algorithm 1 (DeNOVA IV-D). The policy proposes, through
//! a [`Finder`]; it keeps a [`Token`] for each entry.
//!
//! The problem: finding out whether a block is stored elsewhere takes longer than writing it, and readers and writers
//! of the file should not wait for that. The paper fingerprints and looks up under the inode's lock.
//!
//! The idea: look up first, without any lock, and verify afterwards. The lookup works on a copy of each block. When
//! the file is locked for the change, blocks that have changed since are skipped; a counter of the file tells whether
//! any may have. The work is done in batches of blocks, each in one commit, so no progress needs to be recorded.
//!
//! ```text
//!                                                              file's lock     what a crash leaves
//! look         which blocks the entry still names; copies      shared
//! find         fingerprint, look up; UC + 1, compare           -               update counts: discarded
//! enter        entries of unique blocks: RFC 1                 (exclusive      entries of named blocks: kept, or taken
//!              fence, TX_ID; into the index                     for stores)    back; both say what is true
//! remap        log entries with in_process; fence; tail        upgradable      it happened: counted anew
//!              UC - 1 and RFC + 1 at once; fence
//!              the extents in DRAM                             exclusive
//!              dedupe_complete; fence; the old blocks are free upgradable
//! ```
//!
//! An upgradable lock keeps writers of the file out and lets readers in. So readers wait only for stores to DRAM and
//! to cached lines, never for a fence.
//!
//! After a crash, an entry that is not complete is queued again; blocks that were already shared stay as they are.

use super::Jobs;
use super::share::{WholeBlock, whole_blocks_of};
use crate::chunk::insertion::Insertion;
use crate::dedup::work::{Batch, Fate, Finder, Left, ShareRequest, Shared, Stored, Token};
use crate::error::Result;
use crate::fingerprint::Domain;
use crate::inode::{Inode, State};
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::log_entry::{Written, dedupe};
use crate::media::{BLOCK_BYTES, Location};
use crate::store::BLOCK;
use crate::store::Store;
use crate::store::claims::Claims;
use crate::store::locked::{Locked, Upgradable};
use crate::store::queued::{EntryAddress, Logged};
use crate::store::remap::{Mapped, Remap, Stamp, block_extent, push_mapped};
use smallvec::SmallVec;

/// A batch of blocks of an entry. Dropping it gives back the references that it holds by update count.
struct Looked<'a> {
    store: &'a Store,
    batch: Batch<'a>,
    /// The domain of the file when the blocks were copied.
    domain: Domain,
    /// [`State::drops`] when the blocks were copied.
    drops: u64,
    /// The file offset to continue at, or `None` if the batch is the last one.
    next: Option<u64>,
    /// True if another writer interfered, so that the blocks that were skipped should be looked at again.
    again: bool,
}

impl<'a> Looked<'a> {
    /// Copies the next blocks that the entry still maps. Returns `None` if the entry is gone or needs no work any
    /// more.
    fn look(store: &'a Store, inode: &Inode, token: &Token, from: u64, bytes: &'a mut Vec<u8>) -> Option<Looked<'a>> {
        let state = inode.peek();
        let entry = store.queued_entry(inode, &state, token)?;
        let Written { file_offset, length, .. } = entry.written()?;
        let end = file_offset.checked_add(length)?;
        let (named, next) = whole_blocks_of(state.extents()?, from.max(file_offset), end);
        // A range that was rewritten since belongs to another entry.
        let is_its_own =
            |named: &&WholeBlock| entry.location_at(named.offset) == Some(Location::Media(named.block.address()));
        let stored = |named: &WholeBlock| Stored::new(named.offset, named.block);
        let pieces: Vec<Stored> = named.iter().filter(is_its_own).map(stored).collect();
        let (drops, next) = (state.drops, (next < end).then_some(next));
        bytes.resize(pieces.len() * BLOCK, 0);
        let mut tx = store.chunks.begin();
        tx.domain = inode.domain();
        let batch = Batch { pieces, bytes, tx, given_back: Vec::new() };
        Some(Looked { store, batch, domain: inode.domain(), drops, next, again: false })
    }

    /// Steps 2 and 3: fingerprints and looks up each block, without any lock. It works on copies, because a block may
    /// be overwritten in the meantime.
    fn find(&mut self, finder: &dyn Finder) {
        let region = &self.store.region;
        for (piece, copy) in self.batch.pieces.iter_mut().zip(self.batch.bytes.chunks_exact_mut(BLOCK)) {
            region.read_into(piece.block.address(), copy);
            if region.sound_or_forget(piece.block.address(), BLOCK_BYTES) {
                piece.fingerprint = self.domain.fingerprint(finder.fingerprint(copy));
            }
        }
        finder.find(&mut self.batch, &self.store.chunks);
        self.give_back();
    }

    fn give_back(&mut self) {
        if !self.batch.given_back.is_empty() {
            self.store.give_back(self.batch.given_back.drain(..));
        }
    }

    /// Skips a block: gives back the reference that is held for it.
    fn leave(&mut self, at: usize) {
        if let Fate::Equal(hold) = std::mem::replace(&mut self.batch.pieces[at].fate, Fate::Stays) {
            self.batch.given_back.push(hold);
        }
    }

    /// Skips the blocks that have changed, once the file is locked. If the file dropped anything since the copies
    /// were made, a block must still be mapped and still hold the copied bytes. Whatever replaced it has its own
    /// entry.
    fn leave_changed(&mut self, state: &State) {
        if state.drops == self.drops {
            return;
        }
        for at in 0..self.batch.pieces.len() {
            let Stored { offset, block, .. } = self.batch.pieces[at];
            let named = state.extents().map(|extents| whole_blocks_of(extents, offset, offset + 1).0);
            let is_named = named.is_some_and(|named| named.iter().any(|n| (n.offset, n.block) == (offset, block)));
            if !is_named || !self.store.region.equal(block.address(), self.batch.bytes_of(at)) {
                self.leave(at);
            }
        }
        self.give_back();
    }

    /// Skips all blocks if the owner of the file has changed since they were looked up, or is about to change.
    fn leave_if_owner_changed(&mut self, inode: &Inode) {
        if inode.domain() == self.domain && self.domain != Domain::NOBODY {
            return;
        }
        (0..self.batch.pieces.len()).for_each(|at| self.leave(at));
        self.give_back();
        self.again = true;
    }

    /// Adds the unique blocks to the chunk table and the index, where the rest of the batch can share them. An empty
    /// entry means that one extent references the block, and so does a new one with RFC 1. So no crash can leave a
    /// wrong count, and no update count is needed.
    fn enter(&mut self, locked: &mut Upgradable<'_>) {
        let (store, chunks) = (self.store, &self.store.chunks);
        let _alone = store.fingerprint_alone(self.domain);
        let mut lacking: SmallVec<[usize; 64]> = SmallVec::new();
        let Batch { pieces, bytes, tx, .. } = &mut self.batch;
        let all = pieces.iter_mut().zip(bytes.chunks_exact(BLOCK)).enumerate();
        for (at, (piece, copy)) in all.filter(|(_, (piece, _))| piece.fate == Fate::Unique) {
            let is_in_another_domain = || chunks.has_other_weak(piece.block, &chunks.keys().all_in(self.domain, copy));
            if store.region.check_writable(chunks.entry_offset(piece.block), ENTRY_BYTES).is_err() {
                piece.fate = Fate::Stays;
            } else if self.domain != Domain::ALL && is_in_another_domain() {
                // It was cloned from the file of another owner, and is found in his domain.
                piece.fate = Fate::Stays;
            } else if !chunks.has_fingerprint(piece.block, &piece.fingerprint) {
                lacking.push(at);
            }
        }
        if !lacking.is_empty() {
            // Take the TX_ID before the exclusive lock, so that readers never wait for the generator.
            tx.begin();
            if lacking.iter().any(|at| !chunks.has_entry(pieces[*at].block)) {
                // A reader that clones the file counts the blocks it shares; the exclusive lock keeps two threads
                // from making one entry.
                locked.exclusively(|_| {
                    for piece in lacking.iter().map(|at| &pieces[*at]).filter(|p| !chunks.has_entry(p.block)) {
                        match chunks.can_be_found(piece.block) {
                            true => tx.count_one(piece.block),
                            false => tx.add(piece.block, 1, &piece.fingerprint),
                        }
                    }
                });
            }
            for piece in lacking.iter().map(|at| &pieces[*at]) {
                chunks.set_fingerprint(piece.block, &piece.fingerprint, &mut tx.flight);
            }
            // These blocks can be reached already, unlike those of a write, so no entry may count as done before all
            // of it is durable.
            let _ = store.region.fence(std::mem::take(&mut tx.flight));
            let _ = tx.end(());
        }
        self.offer_unique();
        for at in 0..self.batch.pieces.len() {
            if let Fate::Duplicate(other) = self.batch.pieces[at].fate {
                self.batch.pieces[at].fate = self.hold_concurrent_duplicate(other);
            }
        }
    }

    /// Indexes the unique blocks. If another writer first indexed a block that may be equal, the batch is looked at
    /// again, and one of the two blocks is given up then.
    fn offer_unique(&mut self) {
        let index = &self.store.chunks.index;
        let unique = self.batch.pieces.iter().filter(|piece| piece.fate == Fate::Unique);
        let new = unique.filter_map(|piece| {
            let (chunk, known) = (piece.block.into(), Some(&piece.known[..]));
            piece.fingerprint.weak.map(|weak| Insertion { weak, chunk, known })
        });
        let refused = index.insert_all(new.clone());
        if !refused.is_empty() {
            self.again = true;
            let all_the_same = new.filter(|new| refused.contains(&new.chunk));
            index.insert_all(all_the_same.map(|new| Insertion { known: None, ..new }));
        }
    }

    /// Decides about a block that equals the unique block `other` of the same batch: takes a reference on that one.
    fn hold_concurrent_duplicate(&mut self, other: usize) -> Fate {
        let Stored { block, ref fate, .. } = self.batch.pieces[other];
        let is_entered = *fate == Fate::Unique;
        let hold = is_entered.then(|| self.store.chunks.hold(block, &mut self.batch.tx.flight)).flatten();
        self.again |= hold.is_none();
        hold.map_or(Fate::Stays, Fate::Equal)
    }

    /// Steps 4 to 6: maps the equal blocks in place of the file's own, in one commit. Returns the number of bytes
    /// that were shared. `last` is the queued entry if this batch completes it.
    fn remap(&mut self, inode: &Inode, locked: Upgradable<'_>, last: Option<Logged>) -> Result<u64> {
        let store = self.store;
        let mut claims = Claims::with_transaction(store, std::mem::replace(&mut self.batch.tx, store.chunks.begin()));
        let (mapped, ranges) = self.replacements(locked.state(), &mut claims);
        self.give_back();
        store.check_entries(claims.transaction())?;
        if mapped.is_empty() {
            // Fence the lines of references that were taken and given back.
            let _ = store.region.fence(std::mem::take(claims.flight()));
            store.complete(locked.state(), last, &[]);
            return Ok(0);
        }
        store.region.check()?;
        claims.set_dedupe(dedupe::IN_PROCESS);
        let remap = Remap { ranges: &ranges, mapped: &mapped, has_holes: false, stamp: Stamp::Kept };
        store.publish(inode, locked, &remap, last, &mut claims)?;
        Ok(mapped.iter().map(|(_, extent)| extent.length).sum())
    }

    /// Returns the extents that replace blocks of the file, and the file ranges that they replace.
    fn replacements(
        &mut self,
        state: &State,
        claims: &mut Claims<'_>,
    ) -> (Mapped, SmallVec<[std::ops::Range<u64>; 1]>) {
        let (mut mapped, mut ranges) = (Mapped::new(), SmallVec::new());
        let Some(extents) = state.extents() else { return (mapped, ranges) };
        let may_split = !extents.splits_only_between_blocks();
        for at in 0..self.batch.pieces.len() {
            let range = self.batch.pieces[at].offset..self.batch.pieces[at].offset + BLOCK_BYTES;
            if may_split && !extents.plan(range.start, range.end, &[]).split.is_empty() {
                // Replacing a whole block splits no extent in two, except in a damaged log.
                self.leave(at);
            }
            if let Fate::Equal(hold) = std::mem::replace(&mut self.batch.pieces[at].fate, Fate::Stays) {
                push_mapped(&mut mapped, range.start, block_extent(claims.keep_held(hold)));
                ranges.push(range);
            }
        }
        (mapped, ranges)
    }
}

impl Drop for Looked<'_> {
    fn drop(&mut self) {
        if self.store.panics.abandons() {
            return;
        }
        (0..self.batch.pieces.len()).for_each(|at| self.leave(at));
        self.give_back();
    }
}

impl Jobs<'_> {
    /// See [`crate::dedup::work::Host::share`].
    pub(super) fn share_queued(&self, work: ShareRequest<'_>, finder: &dyn Finder) -> Result<Shared> {
        let ShareRequest { entry: token, from, is_last_try, bytes } = work;
        let EntryAddress { ino, position, generation, .. } = EntryAddress::of(&token);
        let inode = self.inode(ino)?;
        let Some(mut looked) = Looked::look(self, &inode, &token, from, bytes) else { return Ok(Shared::default()) };
        looked.find(finder);
        let mut locked = Upgradable::new(inode.upgradable_read()?);
        // The entry is gone if a compaction rewrote the log. This batch is shared all the same; the rewritten entries
        // cover the rest.
        let entry = self.queued_entry(&inode, locked.state(), &token);
        if inode.generation != generation {
            return Ok(Shared::default());
        }
        looked.leave_changed(locked.state());
        looked.leave_if_owner_changed(&inode);
        looked.enter(&mut locked);
        let left = match looked.next {
            _ if entry.is_none() => Left::Nothing,
            _ if looked.again && !is_last_try => Left::Again,
            Some(next) => Left::From(next),
            None => Left::Nothing,
        };
        let last = entry.and_then(|entry| entry.written()).filter(|_| left == Left::Nothing);
        let last = last.map(|entry| (position, entry));
        let blocks = looked.batch.pieces.len() as u64;
        let shared_bytes = looked.remap(&inode, locked, last)?;
        if left != Left::Again {
            self.record_bad_blocks(ino, looked.batch.pieces.iter().map(|piece| piece.block));
        }
        Ok(Shared { blocks, shared_bytes, left })
    }
}
