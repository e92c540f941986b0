//! Sharing what a queued log entry names: steps 2 to 6 of Algorithm 1 (DeNOVA IV-D).
//!
//! The problem: to find out whether a block is stored elsewhere takes longer than to write it, and nobody who reads or
//! writes the file should wait for that. The paper fingerprints and looks up under the inode's lock.
//!
//! The idea: find out first, without any lock, and be ready to be wrong. What was read is a copy; when the file is locked
//! for the change, a block that is not what it was - the file says whether any may be - is left alone. A batch of
//! blocks at a time, each batch one commit, so nothing is noted about how far it came.
//!
//! ```text
//!                                                              file's lock     what a crash leaves
//! look         which blocks the entry still names              shared
//! find         copy, fingerprint, look up; UC + 1, compare     -               update counts: discarded
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
use super::daemon::Task;
use super::data::{Pieces, push_piece};
use super::inode::{Inode, State};
use super::share::{Named, whole_blocks};
use crate::chunk::transaction::Transaction;
use crate::dedup::denova::queue::Node;
use crate::error::Result;
use crate::file::Extent;
use crate::fingerprint::Fingerprint;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::inode::InodeHead;
use crate::media::log_entry::{ExtentEntry, LINE, LogEntry, dedupe};
use crate::media::superblock::Geometry;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::namespace::log;
use crate::space::{BlockRun, Purpose, Runs};
use crate::sync::atomic::Ordering;
use crate::sync::{RwLockUpgradableReadGuard, RwLockWriteGuard};
use pmem::{Flight, Region};
use smallvec::SmallVec;

const BLOCK: usize = BLOCK_BYTES as usize;
/// After so many tries a batch is left as it is: somebody else stores the same all the time.
const TRIES_MAX: u32 = 4;

type Upgradable<'s> = RwLockUpgradableReadGuard<'s, State>;

/// What becomes of a block that the entry names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It stays: nothing is known of it, or all is done.
    Stays,
    /// Nobody else has it. It can be found from now on.
    Unique,
    /// As a unique one of this batch, by its place.
    Twin(usize),
    /// This one is equal; a reference on it is taken by update count.
    Equal(BlockNumber),
}

struct Piece {
    offset: u64,
    block: BlockNumber,
    fingerprint: Fingerprint,
    /// Blocks with the same weak fingerprint that differ, those of the batch among them, and its own.
    known: SmallVec<[BlockNumber; 2]>,
    fate: Fate,
}

/// Some blocks of an entry. Dropped, it gives back the references that it still has.
struct Batch<'a> {
    core: &'a Core,
    pieces: Vec<Piece>,
    /// Copies of their bytes, one behind the other.
    bytes: &'a mut Vec<u8>,
    tx: Transaction<'a>,
    /// [`State::drops`] when it was looked at.
    drops: u64,
    /// Where to go on; nothing is left when it is `None`.
    next: Option<u64>,
    /// Another writer came in between: what is left alone now is worth another look.
    again: bool,
}

impl Core {
    /// The entry that a node stands for, if it is there and still needs somebody.
    pub(crate) fn queued_entry(&self, inode: &Inode, state: &State, node: &Node) -> Option<ExtentEntry> {
        let is_there = !state.freed && inode.generation == node.generation;
        if !is_there || !state.log.holds(inode.slot, node.position) {
            return None;
        }
        let mut line = [0; LINE as usize];
        self.region.read_into(node.position, &mut line);
        if !self.region.is_sound(node.position, LINE) {
            return None;
        }
        let Ok((LogEntry::Extent(entry), _)) = LogEntry::decode(inode.ino, &line) else { return None };
        let is_meant = entry.maps() && entry.file_offset == node.file_offset;
        (is_meant && dedupe::is_pending(entry.dedupe)).then_some(entry)
    }

    /// Notes an entry for the daemon. One of an inode that reconcile has still to walk is found there.
    pub(super) fn queue_entry(&self, inode: &Inode, position: u64, entry: &ExtentEntry) {
        if self.is_walked(inode.ino) {
            self.work.queue.push(node_of(inode, position, entry), entry.time);
        }
    }

    /// Reconcile has walked this inode: what its log still needs the daemon for is queued. An entry that a crash left in
    /// process needs it again.
    pub(crate) fn queue_after_crash(&self, inode: &Inode) -> Result<()> {
        if inode.state.read().needed.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut nodes = Vec::new();
        let mut flight = Flight::new();
        each_pending(&self.region, &self.geometry, inode, |position, entry| {
            if entry.dedupe != dedupe::NEEDED {
                self.set_flag(position, entry, dedupe::NEEDED, &mut flight);
            }
            nodes.push(node_of(inode, position, entry));
        })?;
        let _ = self.region.fence(flight);
        self.work.queue.restore(nodes);
        Ok(())
    }

    /// Whether blocks that an extent touches cannot be found by their fingerprints.
    pub(super) fn lacks_fingerprints(&self, extent: &Extent) -> bool {
        !extent.unwritten && extent.blocks().blocks().any(|block| !self.can_be_found(block))
    }

    /// Shares a batch of blocks of an entry; what is left to do of it, if anything is. Counts what it did.
    pub(super) fn share_queued(&self, task: &Task, bytes: &mut Vec<u8>) -> Result<Option<Task>> {
        let inode = self.inode(task.node.ino)?;
        let Some(mut batch) = Batch::look(self, &inode, task, bytes) else { return Ok(None) };
        batch.find();
        let state = inode.state.upgradable_read();
        // Gone, or written anew by a compaction: then others stand for it.
        let Some(entry) = self.queued_entry(&inode, &state, &task.node) else { return Ok(None) };
        batch.leave_changed(&state);
        let state = batch.enter(state);
        let is_last = batch.next.is_none() && !(batch.again && task.tries < TRIES_MAX);
        let target = is_last.then_some((task.node.position, entry));
        let mut state = batch.remap(&inode, state, target)?;
        if self.is_worth_compacting(&state) {
            let mut locked = RwLockUpgradableReadGuard::upgrade(state);
            self.compact_if_worth_it(&inode, &mut locked);
            state = RwLockWriteGuard::downgrade_to_upgradable(locked);
        }
        drop(state);
        self.work.looked_at(batch.pieces.len() as u64 * BLOCK_BYTES);
        self.policies.denova.tally.offered.fetch_add(batch.pieces.len() as u64, Ordering::Relaxed);
        Ok(match batch.next {
            _ if is_last => None,
            Some(next) if !batch.again || task.tries >= TRIES_MAX => Some(Task { next, tries: 0, ..*task }),
            _ => Some(Task { tries: task.tries + 1, ..*task }),
        })
    }
}

/// Calls `each` for the entries of an inode's log that still need the daemon, with their places.
pub(crate) fn each_pending(
    region: &Region,
    geometry: &Geometry,
    inode: &Inode,
    mut each: impl FnMut(u64, &ExtentEntry),
) -> Result<()> {
    let state = inode.state.read();
    let head = InodeHead { head: state.log.head, commit: state.log.tail, ..region.read(inode.slot) };
    log::walk(region, geometry, inode.slot, &head, |position, _, entry| {
        if let LogEntry::Extent(entry) = entry
            && dedupe::is_pending(entry.dedupe)
        {
            each(position, &entry);
        }
        Ok(())
    })?;
    Ok(())
}

/// The node that stands for an entry.
pub(crate) fn node_of(inode: &Inode, position: u64, entry: &ExtentEntry) -> Node {
    let blocks = entry.length.div_ceil(BLOCK_BYTES).min(u64::from(u32::MAX)) as u32;
    let (ino, generation) = (inode.ino, inode.generation);
    Node { ino, generation, blocks, position, file_offset: entry.file_offset, queued_at: 0 }
}

impl<'a> Batch<'a> {
    /// The next blocks that the entry still names; `None` when it needs nobody any more.
    fn look(core: &'a Core, inode: &Inode, task: &Task, bytes: &'a mut Vec<u8>) -> Option<Batch<'a>> {
        let state = inode.state.read();
        let entry = core.queued_entry(inode, &state, &task.node)?;
        let end = entry.file_offset + entry.length;
        let (named, next) = whole_blocks(state.extents()?, task.next.max(entry.file_offset), end);
        // A range that was written again since is another entry's.
        let is_its_own = |named: &&Named| named.block.address() == entry.address + (named.offset - entry.file_offset);
        let piece = |named: &Named| Piece {
            offset: named.offset,
            block: named.block,
            fingerprint: Fingerprint::default(),
            known: SmallVec::from_slice(&[named.block]),
            fate: Fate::Stays,
        };
        let pieces: Vec<Piece> = named.iter().filter(is_its_own).map(piece).collect();
        let (drops, next) = (state.drops, (next < end).then_some(next));
        Some(Batch { core, pieces, bytes, tx: core.chunks.begin(), drops, next, again: false })
    }

    fn bytes_of(&self, at: usize) -> &[u8] {
        &self.bytes[at * BLOCK..(at + 1) * BLOCK]
    }

    /// Steps 2 and 3: what is equal to each block, without any lock. A block may get other content meanwhile; a copy
    /// does not.
    fn find(&mut self) {
        let core = self.core;
        self.bytes.resize(self.pieces.len() * BLOCK, 0);
        for (piece, copy) in self.pieces.iter_mut().zip(self.bytes.chunks_exact_mut(BLOCK)) {
            core.region.read_into(piece.block.address(), copy);
            if core.region.is_sound(piece.block.address(), BLOCK_BYTES) {
                piece.fingerprint = core.policies.denova.fingerprint_of(copy);
            }
        }
        for at in 0..self.pieces.len() {
            if let Some(weak) = self.pieces[at].fingerprint.weak {
                self.pieces[at].fate = self.fate(at, weak);
            }
        }
    }

    fn fate(&mut self, at: usize, weak: u32) -> Fate {
        let (core, denova) = (self.core, &self.core.policies.denova);
        let own = self.pieces[at].block;
        let is_twin = |other: &usize| {
            let of = |at: usize| (self.bytes_of(at), &self.pieces[at].fingerprint);
            self.pieces[*other].fate != Fate::Stays && denova.are_equal(of(*other), of(at))
        };
        if let Some(other) = (0..at).find(is_twin) {
            return match self.pieces[other].fate {
                Fate::Unique if self.pieces[other].block != own => Fate::Twin(other),
                Fate::Equal(block) if block != own && core.chunks.hold(block, &mut self.tx.flight) => {
                    Fate::Equal(block)
                }
                _ => Fate::Stays,
            };
        }
        let is_namesake = |other: &&Piece| other.fate == Fate::Unique && other.fingerprint.weak == Some(weak);
        let namesakes: SmallVec<[BlockNumber; 2]> =
            self.pieces[..at].iter().filter(is_namesake).map(|other| other.block).collect();
        self.pieces[at].known.extend(namesakes);
        let mut differing: SmallVec<[BlockNumber; 2]> = SmallVec::new();
        let fate = loop {
            // The search goes on behind a block that is held, so that one keeps its place.
            let seen = differing.last().copied().unwrap_or(BlockNumber(0));
            let take = |block: &BlockNumber| *block != own && core.chunks.hold(*block, &mut self.tx.flight);
            let Some(block) = core.chunks.index.find(weak, seen, take) else { break Fate::Unique };
            let piece = &self.bytes[at * BLOCK..(at + 1) * BLOCK];
            if denova.is_equal(block, piece, self.pieces[at].fingerprint.strong, &mut self.tx) {
                break Fate::Equal(block);
            }
            differing.push(block);
        };
        if !differing.is_empty() {
            denova.tally.collisions.fetch_add(differing.len() as u64, Ordering::Relaxed);
            core.give_back(&differing);
            self.pieces[at].known.extend(differing);
        }
        fate
    }

    /// The file is locked against changes. Where it changed since it was looked at, a block must still be named and hold
    /// what was copied; another one is left alone, for what came in its place has an entry of its own.
    fn leave_changed(&mut self, state: &State) {
        if state.drops == self.drops {
            return;
        }
        let core = self.core;
        for at in 0..self.pieces.len() {
            let Piece { offset, block, fate, .. } = self.pieces[at];
            let named = state.extents().map(|extents| whole_blocks(extents, offset, offset + 1).0);
            let is_named = named.is_some_and(|named| named.iter().any(|n| (n.offset, n.block) == (offset, block)));
            if is_named && core.region.equal(block.address(), self.bytes_of(at)) {
                continue;
            }
            if let Fate::Equal(other) = fate {
                core.give_back(&[other]);
            }
            self.pieces[at].fate = Fate::Stays;
        }
    }

    /// Enters the unique blocks, and lets the others of the batch have them. An empty entry says that one extent names
    /// the block, and so does a new one with RFC 1: no crash can leave it wrong, and it needs no update count.
    fn enter<'s>(&mut self, mut state: Upgradable<'s>) -> Upgradable<'s> {
        let (core, chunks) = (self.core, &self.core.chunks);
        let mut lacking: SmallVec<[usize; 64]> = SmallVec::new();
        for (at, piece) in self.pieces.iter_mut().enumerate().filter(|(_, piece)| piece.fate == Fate::Unique) {
            if core.region.check_writable(chunks.entry_offset(piece.block), ENTRY_BYTES).is_err() {
                piece.fate = Fate::Stays;
            } else if !chunks.has_fingerprint(piece.block, &piece.fingerprint) {
                lacking.push(at);
            }
        }
        if !lacking.is_empty() {
            // Nobody waits for the generator behind the lock.
            self.tx.begin();
            if lacking.iter().any(|at| !chunks.has_entry(self.pieces[*at].block)) {
                // Clones count what they share while they read the file: two must not make one entry.
                let locked = RwLockUpgradableReadGuard::upgrade(state);
                for piece in lacking.iter().map(|at| &self.pieces[*at]).filter(|p| !chunks.has_entry(p.block)) {
                    self.tx.add(piece.block, 1, &piece.fingerprint);
                }
                state = RwLockWriteGuard::downgrade_to_upgradable(locked);
            }
            for piece in lacking.iter().map(|at| &self.pieces[*at]) {
                chunks.set_fingerprint(piece.block, &piece.fingerprint, &mut self.tx.flight);
            }
            // These blocks are named already, unlike those of a write: no entry may count as done before it is whole.
            let _ = core.region.fence(std::mem::take(&mut self.tx.flight));
            let _ = self.tx.end(());
        }
        for at in 0..self.pieces.len() {
            let piece = &self.pieces[at];
            match piece.fate {
                Fate::Unique => self.offer(at),
                Fate::Twin(other) => {
                    let block = self.pieces[other].block;
                    let has = self.pieces[other].fate == Fate::Unique && chunks.hold(block, &mut self.tx.flight);
                    self.again |= !has;
                    self.pieces[at].fate = if has { Fate::Equal(block) } else { Fate::Stays };
                }
                Fate::Stays | Fate::Equal(_) => {}
            }
        }
        state
    }

    /// A unique block can be found from now on. If somebody was faster with one that may be equal, one of the two goes
    /// when the batch is looked at again.
    fn offer(&mut self, at: usize) {
        let index = &self.core.chunks.index;
        let Piece { block, fingerprint, known, .. } = &self.pieces[at];
        let Some(weak) = fingerprint.weak else { return };
        if !index.insert_first(weak, *block, known) {
            self.again = true;
            index.insert(weak, *block);
        }
    }

    /// Steps 4 to 6: the file names the equal blocks in place of its own, in one commit. `target`: the queued entry, when
    /// nothing is left to do of it.
    fn remap<'s>(
        &mut self,
        inode: &Inode,
        state: Upgradable<'s>,
        target: Option<(u64, ExtentEntry)>,
    ) -> Result<Upgradable<'s>> {
        let core = self.core;
        let (pieces, given_up) = self.replacements(&state);
        if pieces.is_empty() {
            // What was held and given back is on its way.
            let _ = core.region.fence(std::mem::take(&mut self.tx.flight));
            core.complete(&state, target, &[]);
            return Ok(state);
        }
        let (time, size) = (state.attributes.mtime, state.attributes.size);
        let entry = |(offset, extent): &(u64, Extent)| {
            let entry = ExtentEntry::write(*offset, extent.length, extent.address, false, time, size);
            entry.flagged(dedupe::IN_PROCESS).sealed(inode.ino)
        };
        let entries: SmallVec<[ExtentEntry; 2]> = pieces.iter().map(entry).collect();
        let lines: SmallVec<[&[u8]; 2]> = entries.iter().map(zerocopy::IntoBytes::as_bytes).collect();
        core.region.check()?;
        let (kept, purpose) = (Some(state.attributes), Purpose::Promised);
        let (mut staged, positions) = core.stage_lines(inode, &state, &lines, kept, purpose, &mut self.tx.flight)?;
        let (landed, named) = self.tx.end(staged.take_named());
        let word = super::commit::commit_word(inode.slot, &state.log, state.selector, named);
        core.publish_one(word, landed, Flight::new(), Flight::new);
        self.settle(target);
        let mut locked = RwLockUpgradableReadGuard::upgrade(state);
        staged.install(&mut locked);
        for (entry, position) in entries.iter().zip(&positions) {
            let done = LogEntry::Extent(entry.flagged(dedupe::COMPLETE));
            locked.apply(*position, &done, false).expect("the inode is a regular file");
        }
        locked.drops += 1;
        let state = RwLockWriteGuard::downgrade_to_upgradable(locked);
        let done: SmallVec<[(u64, ExtentEntry); 2]> = positions.into_iter().zip(entries.iter().copied()).collect();
        core.complete(&state, target, &done);
        core.release(&given_up, &[], 0);
        let shared_bytes: u64 = pieces.iter().map(|(_, extent)| extent.length).sum();
        core.work.shared(shared_bytes);
        core.policies.denova.tally.shared.fetch_add(shared_bytes.div_ceil(BLOCK_BYTES), Ordering::Relaxed);
        Ok(state)
    }

    /// What the file will name in place of blocks of its own, and those.
    fn replacements(&mut self, state: &State) -> (Pieces, Runs) {
        let (mut pieces, mut given_up) = (Pieces::new(), Runs::new());
        let Some(extents) = state.extents() else { return (pieces, given_up) };
        for piece in &mut self.pieces {
            let Fate::Equal(block) = piece.fate else { continue };
            let plan = extents.plan(piece.offset, piece.offset + BLOCK_BYTES);
            if !plan.split.is_empty() {
                // No whole block of an extent falls into two; a damaged log may say otherwise.
                self.core.give_back(&[block]);
                piece.fate = Fate::Stays;
                continue;
            }
            let extent = Extent { length: BLOCK_BYTES, address: block.address(), unwritten: false };
            push_piece(&mut pieces, piece.offset, extent);
            given_up.extend(plan.dropped);
        }
        (pieces, given_up)
    }

    /// Step 6, after the tail is durable: what was held is counted, and the queued entry is at its last steps. Before the
    /// file names the blocks in DRAM: who clones it finds them counted.
    fn settle(&mut self, target: Option<(u64, ExtentEntry)>) {
        let core = self.core;
        let mut flight = Flight::new();
        if let Some((position, entry)) = target {
            core.set_flag(position, &entry, dedupe::IN_PROCESS, &mut flight);
        }
        for piece in &mut self.pieces {
            if let Fate::Equal(block) = piece.fate {
                core.chunks.settle_hold(block, &mut flight);
                piece.fate = Fate::Stays;
            }
        }
        let _ = core.region.fence(flight);
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for piece in &self.pieces {
            if let Fate::Equal(block) = piece.fate {
                self.core.give_back(&[block]);
            }
        }
    }
}

impl Core {
    /// Gives references back that were taken by update count.
    fn give_back(&self, blocks: &[BlockNumber]) {
        let runs: Runs = blocks.iter().map(|start| BlockRun { start: *start, count: 1 }).collect();
        self.release_by(&runs, &[], 0, |block, flight| self.chunks.give_back(block, flight));
        // A device that is clean has no update counts.
        let _ = self.region.fence(Flight::new());
    }

    /// Nobody has to come to these entries any more.
    fn complete(&self, state: &State, target: Option<(u64, ExtentEntry)>, added: &[(u64, ExtentEntry)]) {
        let mut flight = Flight::new();
        for (position, entry) in target.iter().chain(added) {
            self.set_flag(*position, entry, dedupe::COMPLETE, &mut flight);
        }
        let _ = self.region.fence(flight);
        state.needed.fetch_sub(u64::from(target.is_some()), Ordering::Relaxed);
    }

    /// Changes the dedupe-flag of an entry in place. One in bad memory stays as it is.
    pub(crate) fn set_flag(&self, position: u64, entry: &ExtentEntry, flag: u8, flight: &mut Flight) {
        if self.region.check_writable(position, LINE).is_ok() {
            flight.add(self.region.store_u64(position, entry.first_word(flag)).flush());
        }
    }
}
