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
//! An entry is dedupe_needed until its last batch, and in_process only from the commit of that batch to its end.
//! After a crash, an entry in either state is queued again; blocks that were already shared stay as they are.

use super::Core;
use super::claims::Claims;
use super::publish::{Locked, Logged, Mapped, Remap, Stamp, Upgradable, block_extent, push_mapped};
use super::share::{Named, whole_blocks_of};
use crate::dedup::work::{Batch, Fate, Finder, Left, ShareRequest, Shared, Stored, Token};
use crate::error::{Error, Result};
use crate::fingerprint::Domain;
use crate::inode::log;
use crate::inode::{Inode, State};
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::inode::InodeHead;
use crate::media::log_entry::{LINE, LogEntry, Written, dedupe};
use crate::media::superblock::Geometry;
use crate::media::{BLOCK_BYTES, ChunkRef, Location};
use crate::sync::atomic::Ordering;
use pmem::{Flight, Region};
use smallvec::SmallVec;

const BLOCK: usize = BLOCK_BYTES as usize;

/// The content of a [`Token`]: where its log entry is.
pub(super) struct EntryAddress {
    pub(super) ino: u64,
    /// Distinguishes the inode from others that had its number.
    pub(super) generation: u32,
    /// Media address of the entry.
    pub(super) position: u64,
    /// File offset at which the range of the entry begins.
    file_offset: u64,
}

impl EntryAddress {
    pub(super) fn of(token: &Token) -> EntryAddress {
        let [ino, position, file_offset] = token.words;
        EntryAddress { ino, generation: token.tail, position, file_offset }
    }
}

/// Returns the token of an entry, and the length of its range in blocks. A vector entry gets one token for all its
/// extents.
pub(crate) fn token_of(inode: &Inode, position: u64, entry: &Written) -> (Token, u32) {
    let blocks = entry.length.div_ceil(BLOCK_BYTES).min(u64::from(u32::MAX)) as u32;
    (Token { words: [inode.ino, position, entry.file_offset], tail: inode.generation }, blocks)
}

/// Calls `each` for the log entries of an inode that are still to be shared, with their media addresses.
pub(crate) fn each_pending(
    region: &Region,
    geometry: &Geometry,
    inode: &Inode,
    mut each: impl FnMut(u64, &Written),
) -> Result<()> {
    let state = inode.peek();
    let head = InodeHead { head: state.log.head, commit: state.log.tail, ..region.read(inode.slot) };
    log::walk(region, geometry, inode.slot, &head, |position, _, entry| {
        if let Some(entry) = entry.written()
            && dedupe::is_pending(entry.dedupe)
        {
            each(position, &entry);
        }
        Ok(())
    })?;
    Ok(())
}

/// A batch of blocks of an entry. Dropping it gives back the references that it holds by update count.
struct Looked<'a> {
    core: &'a Core,
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

impl Core {
    /// Returns the log entry of a token, if it still exists and is still to be shared.
    pub(crate) fn queued_entry(&self, inode: &Inode, state: &State, token: &Token) -> Option<LogEntry> {
        let EntryAddress { generation, position, file_offset, .. } = EntryAddress::of(token);
        let is_there = inode.is_usable() && inode.generation == generation;
        if !is_there || !state.log.holds(inode.slot, position) {
            return None;
        }
        let (entry, length) = log::entry_at(&self.region, inode.slot, inode.ino, &state.log, position);
        if !self.region.sound_or_forget(position, length) {
            let what = format!("a queued log entry of inode {}", inode.ino);
            self.record_skipped(&Error::BadMemory { what, at: position, length });
            return None;
        }
        let is_meant = |entry: &Written| entry.file_offset == file_offset && dedupe::is_pending(entry.dedupe);
        entry.filter(|entry| entry.written().is_some_and(|entry| is_meant(&entry)))
    }

    /// Queues an entry that is to be shared. Entries of an inode that reconcile has not walked yet are queued by
    /// reconcile.
    pub(super) fn queue_entry(&self, inode: &Inode, position: u64, entry: &Written) {
        if self.is_walked(inode.ino) {
            let (token, blocks) = token_of(inode, position, entry);
            self.policies.queue(token, blocks, entry.time);
        }
    }

    /// Queues the entries of an inode that are still to be shared, once reconcile has walked it. An entry that a
    /// crash left in_process becomes dedupe_needed again.
    pub(crate) fn queue_after_crash(&self, inode: &Inode) -> Result<()> {
        if inode.peek().needed.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut entries = Vec::new();
        let mut flight = Flight::new();
        each_pending(&self.region, &self.geometry, inode, |position, entry| {
            if entry.dedupe != dedupe::NEEDED {
                self.set_flag(position, entry, dedupe::NEEDED, &mut flight);
            }
            entries.push(token_of(inode, position, entry));
        })?;
        let _ = self.region.fence(flight);
        self.policies.restore(entries);
        Ok(())
    }

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

    /// Step 6, after the tail is durable: turns the held update counts into reference counts, and marks the queued
    /// entry as in_process. This happens before DRAM maps the blocks, so that a block is already counted when a
    /// reader clones it.
    pub(super) fn count_holds(&self, queued: Option<Logged>, claims: &mut Claims<'_>) {
        let mut flight = Flight::new();
        if let Some((position, entry)) = queued {
            self.set_flag(position, &entry, dedupe::IN_PROCESS, &mut flight);
        }
        claims.count_holds(&mut flight);
        let _ = self.region.fence(flight);
    }

    /// Marks the queued entry and the added ones as dedupe_complete.
    pub(super) fn complete(&self, state: &State, queued: Option<Logged>, added: &[Logged]) {
        let mut flight = Flight::new();
        for (position, entry) in queued.iter().chain(added) {
            self.set_flag(*position, entry, dedupe::COMPLETE, &mut flight);
        }
        let _ = self.region.fence(flight);
        state.needed.fetch_sub(u64::from(queued.is_some()), Ordering::Relaxed);
    }

    /// Changes the dedupe-flag of an entry in place. An entry in bad memory stays as it is.
    fn set_flag(&self, position: u64, entry: &Written, flag: u8, flight: &mut Flight) {
        if self.region.check_writable(position, LINE).is_ok() {
            flight.add(self.region.store_u64(position, entry.first_word(flag)).flush());
        }
    }
}

impl<'a> Looked<'a> {
    /// Copies the next blocks that the entry still maps. Returns `None` if the entry is gone or needs no work any
    /// more.
    fn look(core: &'a Core, inode: &Inode, token: &Token, from: u64, bytes: &'a mut Vec<u8>) -> Option<Looked<'a>> {
        let state = inode.peek();
        let entry = core.queued_entry(inode, &state, token)?;
        let Written { file_offset, length, .. } = entry.written()?;
        let end = file_offset.checked_add(length)?;
        let (named, next) = whole_blocks_of(state.extents()?, from.max(file_offset), end);
        // A range that was rewritten since belongs to another entry.
        let is_its_own =
            |named: &&Named| entry.location_at(named.offset) == Some(Location::Media(named.block.address()));
        let stored = |named: &Named| Stored::new(named.offset, named.block);
        let pieces: Vec<Stored> = named.iter().filter(is_its_own).map(stored).collect();
        let (drops, next) = (state.drops, (next < end).then_some(next));
        bytes.resize(pieces.len() * BLOCK, 0);
        let batch = Batch { pieces, bytes, tx: core.chunks.begin(), given_back: Vec::new() };
        Some(Looked { core, batch, domain: inode.domain(), drops, next, again: false })
    }

    /// Steps 2 and 3: fingerprints and looks up each block, without any lock. It works on copies, because a block may
    /// be overwritten in the meantime.
    fn find(&mut self, finder: &dyn Finder) {
        let region = &self.core.region;
        for (piece, copy) in self.batch.pieces.iter_mut().zip(self.batch.bytes.chunks_exact_mut(BLOCK)) {
            region.read_into(piece.block.address(), copy);
            if region.sound_or_forget(piece.block.address(), BLOCK_BYTES) {
                piece.fingerprint = self.domain.fingerprint(finder.fingerprint(copy));
            }
        }
        finder.find(&mut self.batch, &self.core.chunks);
        self.give_back();
    }

    fn give_back(&mut self) {
        if !self.batch.given_back.is_empty() {
            self.core.give_back(self.batch.given_back.drain(..));
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
            if !is_named || !self.core.region.equal(block.address(), self.batch.bytes_of(at)) {
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
        let (core, chunks) = (self.core, &self.core.chunks);
        let _alone = core.fingerprint_alone(self.domain);
        let mut lacking: SmallVec<[usize; 64]> = SmallVec::new();
        let Batch { pieces, tx, .. } = &mut self.batch;
        for (at, piece) in pieces.iter_mut().enumerate().filter(|(_, piece)| piece.fate == Fate::Unique) {
            if core.region.check_writable(chunks.entry_offset(piece.block), ENTRY_BYTES).is_err() {
                piece.fate = Fate::Stays;
            } else if self.domain != Domain::ALL && chunks.has_other_weak(piece.block, &piece.fingerprint) {
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
            let _ = core.region.fence(std::mem::take(&mut tx.flight));
            let _ = tx.end(());
        }
        for at in 0..self.batch.pieces.len() {
            match self.batch.pieces[at].fate {
                Fate::Unique => self.offer(at),
                Fate::Duplicate(other) => self.batch.pieces[at].fate = self.hold_concurrent_duplicate(other),
                Fate::Stays | Fate::Equal(_) => {}
            }
        }
    }

    /// Indexes a unique block. If another writer first indexed a block that may be equal, the batch is looked at
    /// again, and one of the two blocks is given up then.
    fn offer(&mut self, at: usize) {
        let index = &self.core.chunks.index;
        let Stored { block, fingerprint, known, .. } = &self.batch.pieces[at];
        let Some(weak) = fingerprint.weak else { return };
        let known: SmallVec<[ChunkRef; 2]> = known.iter().map(|block| ChunkRef::Block(*block)).collect();
        if !index.insert_first(weak, (*block).into(), &known) {
            self.again = true;
            index.insert(weak, (*block).into());
        }
    }

    /// Decides about a block that equals the unique block `other` of the same batch: takes a reference on that one.
    fn hold_concurrent_duplicate(&mut self, other: usize) -> Fate {
        let Stored { block, ref fate, .. } = self.batch.pieces[other];
        let is_entered = *fate == Fate::Unique;
        let hold = is_entered.then(|| self.core.chunks.hold(block, &mut self.batch.tx.flight)).flatten();
        self.again |= hold.is_none();
        hold.map_or(Fate::Stays, Fate::Equal)
    }

    /// Steps 4 to 6: maps the equal blocks in place of the file's own, in one commit. Returns the number of bytes
    /// that were shared. `last` is the queued entry if this batch completes it.
    fn remap(&mut self, inode: &Inode, locked: Upgradable<'_>, last: Option<Logged>) -> Result<u64> {
        let core = self.core;
        let mut claims = Claims::with_transaction(core, std::mem::replace(&mut self.batch.tx, core.chunks.begin()));
        let (mapped, ranges) = self.replacements(locked.state(), &mut claims);
        self.give_back();
        core.check_entries(&claims.tx)?;
        if mapped.is_empty() {
            // Fence the lines of references that were taken and given back.
            let _ = core.region.fence(std::mem::take(&mut claims.tx.flight));
            core.complete(locked.state(), last, &[]);
            return Ok(0);
        }
        core.region.check()?;
        claims.dedupe = dedupe::IN_PROCESS;
        let remap = Remap { ranges: &ranges, mapped: &mapped, has_holes: false, stamp: Stamp::Kept };
        core.publish(inode, locked, &remap, last, &mut claims)?;
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
        if self.core.panics.abandons() {
            return;
        }
        (0..self.batch.pieces.len()).for_each(|at| self.leave(at));
        self.give_back();
    }
}
