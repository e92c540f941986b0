//! Sharing what a queued log entry names: steps 2 to 6 of Algorithm 1 (DeNOVA IV-D). The policy proposes, by
//! [`Finder`]; what it keeps of the entry is a [`Token`].
//!
//! The problem: to find out whether a block is stored elsewhere takes longer than to write it, and nobody who reads or
//! writes the file should wait for that. The paper fingerprints and looks up under the inode's lock.
//!
//! The idea: find out first, without any lock, and be ready to be wrong. What was read is a copy; when the file is locked
//! for the change, a block that is not what it was - the file says whether any may be - is left alone. A batch of
//! blocks at a time, each batch one commit, so nothing records how far it came.
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
//! An upgradable lock keeps writers of the file out and lets readers in, so they wait for stores to DRAM and to lines
//! in the cache, never for a fence.
//!
//! An entry is dedupe_needed until its last batch, and in_process only from that one's commit to its end. Whatever a
//! crash leaves of either is queued again, and finds what was done as it is.

use super::Core;
use super::claims::Claims;
use super::publish::{Locked, Logged, Mapped, Remap, Stamp, Upgradable, block_extent, push_mapped};
use super::share::{Named, whole_blocks_of};
use crate::dedup::work::{Batch, Fate, Finder, Left, Share, Shared, Stored, Token};
use crate::error::{Error, Result};
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

/// What a [`Token`] says.
pub(super) struct EntryAddress {
    pub(super) ino: u64,
    /// Tells that inode from others with its number.
    generation: u32,
    /// Media address of the entry.
    pub(super) position: u64,
    /// Where its range begins.
    file_offset: u64,
}

impl EntryAddress {
    pub(super) fn of(token: &Token) -> EntryAddress {
        let [ino, position, file_offset] = token.words;
        EntryAddress { ino, generation: token.tail, position, file_offset }
    }
}

/// The token of an entry, and how many blocks that has. A vector entry is one, with all its extents.
pub(crate) fn token_of(inode: &Inode, position: u64, entry: &Written) -> (Token, u32) {
    let blocks = entry.length.div_ceil(BLOCK_BYTES).min(u64::from(u32::MAX)) as u32;
    (Token { words: [inode.ino, position, entry.file_offset], tail: inode.generation }, blocks)
}

/// Calls `each` for the entries of an inode's log that still wait to be shared, with their places.
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

/// Some blocks of an entry. Dropped, it gives back the holds that it still has.
struct Looked<'a> {
    core: &'a Core,
    batch: Batch<'a>,
    /// [`State::drops`] when it was looked at.
    drops: u64,
    /// Where to go on; nothing is left when it is `None`.
    next: Option<u64>,
    /// Another writer came in between: what is left alone now is worth another look.
    again: bool,
}

impl Core {
    /// The entry that a token stands for, if it is there and still waits to be shared.
    pub(crate) fn queued_entry(&self, inode: &Inode, state: &State, token: &Token) -> Option<LogEntry> {
        let EntryAddress { generation, position, file_offset, .. } = EntryAddress::of(token);
        let is_there = !state.freed && inode.generation == generation;
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

    /// Queues an entry that waits to be shared. One of an inode that reconcile has still to walk is found there.
    pub(super) fn queue_entry(&self, inode: &Inode, position: u64, entry: &Written) {
        if self.is_walked(inode.ino) {
            let (token, blocks) = token_of(inode, position, entry);
            self.policies.queue(token, blocks, entry.time);
        }
    }

    /// Reconcile has walked this inode: what its log still wants shared is queued. An entry that a crash left in process
    /// is dedupe_needed again.
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
    pub(super) fn share_queued(&self, work: Share<'_>, finder: &dyn Finder) -> Result<Shared> {
        let Share { entry: token, from, is_last_try, bytes } = work;
        let EntryAddress { ino, position, generation, .. } = EntryAddress::of(&token);
        let inode = self.inode(ino)?;
        let Some(mut looked) = Looked::look(self, &inode, &token, from, bytes) else { return Ok(Shared::default()) };
        looked.find(finder);
        let mut locked = Upgradable::new(inode.upgradable_read()?);
        // Gone when a compaction has written it anew: what was looked at is shared all the same, others stand for the rest.
        let entry = self.queued_entry(&inode, locked.state(), &token);
        if locked.state().freed || inode.generation != generation {
            return Ok(Shared::default());
        }
        looked.leave_changed(locked.state());
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

    /// Step 6, after the tail is durable: what was held is counted, and the queued entry is at its last steps. Before the
    /// file names the blocks in DRAM: who clones it finds them counted.
    pub(super) fn count_holds(&self, queued: Option<Logged>, claims: &mut Claims<'_>) {
        let mut flight = Flight::new();
        if let Some((position, entry)) = queued {
            self.set_flag(position, &entry, dedupe::IN_PROCESS, &mut flight);
        }
        claims.count_holds(&mut flight);
        let _ = self.region.fence(flight);
    }

    /// Nobody has to come to these entries any more.
    pub(super) fn complete(&self, state: &State, queued: Option<Logged>, added: &[Logged]) {
        let mut flight = Flight::new();
        for (position, entry) in queued.iter().chain(added) {
            self.set_flag(*position, entry, dedupe::COMPLETE, &mut flight);
        }
        let _ = self.region.fence(flight);
        state.needed.fetch_sub(u64::from(queued.is_some()), Ordering::Relaxed);
    }

    /// Changes the dedupe-flag of an entry in place. One in bad memory stays as it is.
    fn set_flag(&self, position: u64, entry: &Written, flag: u8, flight: &mut Flight) {
        if self.region.check_writable(position, LINE).is_ok() {
            flight.add(self.region.store_u64(position, entry.first_word(flag)).flush());
        }
    }
}

impl<'a> Looked<'a> {
    /// The next blocks that the entry still names; `None` when it needs nobody any more.
    fn look(core: &'a Core, inode: &Inode, token: &Token, from: u64, bytes: &'a mut Vec<u8>) -> Option<Looked<'a>> {
        let state = inode.peek();
        let entry = core.queued_entry(inode, &state, token)?;
        let Written { file_offset, length, .. } = entry.written()?;
        let end = file_offset + length;
        let (named, next) = whole_blocks_of(state.extents()?, from.max(file_offset), end);
        // A range that was written again since is another entry's.
        let is_its_own =
            |named: &&Named| entry.location_at(named.offset) == Some(Location::Media(named.block.address()));
        let stored = |named: &Named| Stored::new(named.offset, named.block);
        let pieces: Vec<Stored> = named.iter().filter(is_its_own).map(stored).collect();
        let (drops, next) = (state.drops, (next < end).then_some(next));
        bytes.resize(pieces.len() * BLOCK, 0);
        let batch = Batch { pieces, bytes, tx: core.chunks.begin(), given_back: Vec::new() };
        Some(Looked { core, batch, drops, next, again: false })
    }

    /// Steps 2 and 3: what is equal to each block, without any lock. A block may get other content meanwhile; a copy
    /// does not.
    fn find(&mut self, finder: &dyn Finder) {
        let region = &self.core.region;
        for (piece, copy) in self.batch.pieces.iter_mut().zip(self.batch.bytes.chunks_exact_mut(BLOCK)) {
            region.read_into(piece.block.address(), copy);
            if region.sound_or_forget(piece.block.address(), BLOCK_BYTES) {
                piece.fingerprint = finder.fingerprint(copy);
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

    /// Leaves a block alone.
    fn leave(&mut self, at: usize) {
        if let Fate::Equal(hold) = std::mem::replace(&mut self.batch.pieces[at].fate, Fate::Stays) {
            self.batch.given_back.push(hold);
        }
    }

    /// The file is locked against changes. Where it changed since it was looked at, a block must still be named and hold
    /// what was copied; another one is left alone, for what came in its place has an entry of its own.
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

    /// Enters the unique blocks, and lets the others of the batch have them. An empty entry says that one extent names
    /// the block, and so does a new one with RFC 1: no crash can leave it wrong, and it needs no update count.
    fn enter(&mut self, locked: &mut Upgradable<'_>) {
        let (core, chunks) = (self.core, &self.core.chunks);
        let mut lacking: SmallVec<[usize; 64]> = SmallVec::new();
        let Batch { pieces, tx, .. } = &mut self.batch;
        for (at, piece) in pieces.iter_mut().enumerate().filter(|(_, piece)| piece.fate == Fate::Unique) {
            if core.region.check_writable(chunks.entry_offset(piece.block), ENTRY_BYTES).is_err() {
                piece.fate = Fate::Stays;
            } else if !chunks.has_fingerprint(piece.block, &piece.fingerprint) {
                lacking.push(at);
            }
        }
        if !lacking.is_empty() {
            // Nobody waits for the generator behind the lock.
            tx.begin();
            if lacking.iter().any(|at| !chunks.has_entry(pieces[*at].block)) {
                // Clones count what they share while they read the file: two must not make one entry.
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
            // These blocks are named already, unlike those of a write: no entry may count as done before it is whole.
            let _ = core.region.fence(std::mem::take(&mut tx.flight));
            let _ = tx.end(());
        }
        for at in 0..self.batch.pieces.len() {
            match self.batch.pieces[at].fate {
                Fate::Unique => self.offer(at),
                Fate::Twin(other) => self.batch.pieces[at].fate = self.hold_concurrent_duplicate(other),
                Fate::Stays | Fate::Equal(_) => {}
            }
        }
    }

    /// A unique block can be found from now on. If somebody was faster with one that may be equal, one of the two goes
    /// when the batch is looked at again.
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

    /// Decides about a block that equals the unique block of this place, a concurrent duplicate.
    fn hold_concurrent_duplicate(&mut self, other: usize) -> Fate {
        let Stored { block, ref fate, .. } = self.batch.pieces[other];
        let is_entered = *fate == Fate::Unique;
        let hold = is_entered.then(|| self.core.chunks.hold(block, &mut self.batch.tx.flight)).flatten();
        self.again |= hold.is_none();
        hold.map_or(Fate::Stays, Fate::Equal)
    }

    /// Steps 4 to 6: the file names the equal blocks in place of its own, in one commit; the bytes that are shared then.
    /// `last`: the queued entry, when nothing is left to do of it.
    fn remap(&mut self, inode: &Inode, locked: Upgradable<'_>, last: Option<Logged>) -> Result<u64> {
        let core = self.core;
        let mut claims = Claims::with_transaction(core, std::mem::replace(&mut self.batch.tx, core.chunks.begin()));
        let (mapped, ranges) = self.replacements(locked.state(), &mut claims);
        self.give_back();
        if mapped.is_empty() {
            // What was held and given back is on its way.
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

    /// What the file will name in place of blocks of its own, and where.
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
                // No whole block of an extent falls into two; a damaged log may say otherwise.
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
        (0..self.batch.pieces.len()).for_each(|at| self.leave(at));
        self.give_back();
    }
}
