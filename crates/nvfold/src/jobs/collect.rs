//! Collecting byte ranges: a chunk of which only a few bytes are live is replaced by a new chunk with just those
//! bytes.
//!
//! The problem: clones of ranges and writes over parts of packed chunks leave blocks and packed chunks of which
//! extents map only a few bytes. Reference counts do not tell which bytes, so the dead bytes cannot be used.
//!
//! The idea: passes over the inodes, for a window of chunks ([`Marks`]). The first pass records which bytes are
//! live in the chunks that extents map in part. A chunk is worth collecting if all its references were seen and
//! enough of it is dead. In the last pass, the first inode that references such a chunk copies its live bytes to a
//! new packed chunk. Each inode then maps the new chunk in a commit like any other (`store::publish`). Between them,
//! what one file alone maps is written anew in the order of that file ([`super::gather`]).
//!
//! ```text
//! mark      inode after inode, read locked       chunk -> names, ranges that live         DRAM only
//! choose    count of the entry = names seen, and dead enough
//! gather    inode after inode, locked            chunks of one user: their bytes, in the file's order
//! re-point  inode after inode, locked            new chunk, count k + 1; a reference on the old one
//!                                                commit: k extents name the new one, the old one loses k
//! let go    nobody else names the old chunk      both lose the collection's reference: the old one is free
//! ```
//!
//! Anything may happen between steps. A mark is only a guess, and only the amount of saved space depends on it. The
//! bytes of a chunk do not change while it is referenced, and the collection holds a reference from the copy on; an
//! extent is re-pointed only if the new chunk has all of its bytes. A crash leaves counts too high, which reconcile
//! corrects.
//!
//! A collection runs on request, and before an operation fails for lack of space. It also runs in the background when
//! much may have died since the last one: on a device that is nearly full, and under a policy that shares byte ranges
//! with their origins. There it begins while no other operation runs (ICID 4.6), and at any time once much more is stored
//! than files map ([`crate::fs`]`::growth`).

use super::Jobs;
use super::effort::{Effort, Vain, Worked};
use super::marks::{ChunkPart, Marked, Marks, Way};
use super::parts::{Ended, NamedPart, saves_enough};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::inode::extents::{Dropped, Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::chunk_entry::CLASS_UNKNOWN;
use crate::media::packed::PackedBytes;
use crate::media::{BLOCK_BYTES, ChunkRef, Location, PackedNumber};
use crate::panics::Job;
use crate::space::packed::Pool;
use crate::space::reclaim::Victims;
use crate::store::claims::Claims;
use crate::store::packed::{ToPack, may_compress};
use crate::store::placer::Placer;
use crate::store::remap::{Mapped, Remap, Stamp};
use hashbrown::HashMap;
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicU64, Ordering};

/// Number of extents and inodes that a step looks at.
const STEP_LOOKS: usize = 2048;

/// Number of parts that one commit re-points.
const STEP_PARTS: usize = 64;

/// Approximate number of chunk bytes that a step reads.
const STEP_BYTES: u64 = 256 << 10;

/// Number of bits that record which inodes reference a collected chunk, by inode number modulo this. An inode that
/// only shares a bit is looked at in vain.
const INODE_BITS: u64 = 1 << 20;

/// While the file system is idle, a round is worth it if this part of the used space (a sixteenth) may be dead, and
/// at least `LEAVINGS_BYTES_MIN` bytes.
const LEAVINGS_PART: u64 = 16;

const LEAVINGS_BYTES_MIN: u64 = 1 << 20;

/// How many steps of emptying segments a round without room waits for; about ten steps empty a segment.
const STEPS_WITHOUT_ROOM_MAX: u32 = 64;

/// After a round in vain, an operation without space begins another one if this part of the device (a thousandth) was
/// freed or may have died since.
const VAIN_PART: u64 = 1024;

/// The collection under way, and the totals since mount.
#[derive(Default)]
pub(super) struct Collector {
    round: Mutex<Option<CollectRound>>,
    /// When an operation last collected in vain.
    vain: Vain,
    /// Value of the freeze lock's counter of operations when it was last read.
    passed: AtomicU64,
    chunks: AtomicU64,
    saved_bytes: AtomicU64,
}

impl Collector {
    /// Returns the chunks on which the round under way holds a reference. Extents may map none of their bytes.
    pub(crate) fn held(&self) -> Vec<ChunkRef> {
        let round = self.round.lock();
        let copied = round.iter().flat_map(|round| &round.copied);
        copied.flat_map(|(from, copied)| [*from, copied.to.into()]).collect()
    }

    /// Counts a chunk that is no longer used.
    fn count(&self, saved_bytes: u64) {
        self.chunks.fetch_add(1, Ordering::Relaxed);
        self.saved_bytes.fetch_add(saved_bytes, Ordering::Relaxed);
    }

    /// Returns how many chunks were replaced by smaller ones since mount, and how many bytes that saved.
    pub(crate) fn done(&self) -> (u64, u64) {
        (self.chunks.load(Ordering::Relaxed), self.saved_bytes.load(Ordering::Relaxed))
    }
}

/// The state of one round: the work on one window of chunks.
struct CollectRound {
    marks: Marks,
    /// See [`INODE_BITS`].
    inodes: Vec<u64>,
    phase: Phase,
    /// Chunks whose live bytes were copied to new ones. The round holds a reference on both.
    copied: HashMap<ChunkRef, CollectedCopy>,
    /// Steps since the last one that found room.
    steps_without_room: u32,
}

/// Where the live bytes of a chunk were copied to.
#[derive(Clone, Copy)]
struct CollectedCopy {
    to: PackedNumber,
    saved_bytes: u64,
}

/// How far a round has come, and where it continues.
#[derive(Clone, Copy)]
enum Phase {
    /// The first pass: the next inode, and the file offset in it.
    Mark(u64, u64),
    /// Choosing the chunks that are worth it, from this one on.
    Choose(ChunkRef),
    /// The passes that change files, first to gather, then to replace: the next inode, and the file offset in it.
    Change(Way, u64, u64),
}

impl CollectRound {
    fn from(first: ChunkRef) -> CollectRound {
        let inodes = vec![0; (INODE_BITS / 64) as usize];
        let marks = Marks::from(first);
        CollectRound { marks, inodes, phase: Phase::Mark(1, 0), copied: HashMap::new(), steps_without_room: 0 }
    }

    fn note_inode(&mut self, ino: u64) {
        let bit = ino % INODE_BITS;
        self.inodes[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    fn may_name_some(&self, ino: u64) -> bool {
        let bit = ino % INODE_BITS;
        self.inodes[(bit / 64) as usize] & 1 << (bit % 64) != 0
    }
}

impl Jobs<'_> {
    /// True if there is something to collect: a round is under way, or enough may have died since the last one.
    pub(super) fn may_collect(&self, victims: Victims) -> bool {
        let least = match victims {
            Victims::All => 1,
            Victims::Worthwhile if self.is_nearly_full() => self.geometry.device_bytes / 64,
            Victims::Worthwhile if !self.policies.follow_origins(None) => u64::MAX,
            Victims::Worthwhile if self.has_grown_much() => 1,
            Victims::Worthwhile if self.is_at_rest() => {
                let used = self.space.total_blocks().saturating_sub(self.space.free_blocks()) * BLOCK_BYTES;
                (used / LEAVINGS_PART).max(LEAVINGS_BYTES_MIN)
            }
            Victims::Worthwhile => u64::MAX,
        };
        let is_asked = self.may_be_dead.bytes() >= least;
        self.chunks.entries.may_pack() && (is_asked || self.is_collecting())
    }

    /// True if less than an eighth of the device is free.
    fn is_nearly_full(&self) -> bool {
        !self.space.has_free(self.space.total_blocks() / 8)
    }

    /// True if no operation has changed anything since the last call.
    fn is_at_rest(&self) -> bool {
        let passed = self.freeze_lock.entered();
        self.under_way.collector.passed.swap(passed, Ordering::Relaxed) == passed
    }

    /// Collects for an operation that found too little space and holds no lock now. Returns true if that saved space.
    /// If no effort is left, the next operation goes on with the round.
    pub(crate) fn collect_for_space(&self, effort: &Effort) -> bool {
        let in_vain = !self.is_collecting()
            && self.under_way.collector.vain.would_repeat(self.collectable_bytes(), self.least_for_round());
        if self.is_reconciling() || in_vain {
            return false;
        }
        let (before, _) = self.under_way.collector.done();
        self.work_for_space(effort, || false, || self.collect_any());
        let has_gained = self.under_way.collector.done().0 > before;
        if has_gained {
            self.under_way.collector.vain.gained();
        } else if !effort.is_spent() {
            self.under_way.collector.vain.record(self.collectable_bytes());
        }
        has_gained
    }

    /// Returns the bytes that are free, or may be dead in live chunks.
    fn collectable_bytes(&self) -> u64 {
        self.space.free_blocks() * BLOCK_BYTES + self.may_be_dead.bytes()
    }

    /// Returns how many more bytes must be free, or may be dead, before an operation begins a round after one in vain.
    fn least_for_round(&self) -> u64 {
        self.geometry.device_bytes / VAIN_PART
    }

    /// True if a round is under way.
    pub(crate) fn is_collecting(&self) -> bool {
        self.under_way.collector.round.try_lock().is_none_or(|round| round.is_some())
    }

    /// Does one step of collecting if anything may be dead.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn collect_any(&self) -> Result<Worked> {
        if self.may_collect(Victims::All) { self.collect_some() } else { Ok(Worked::Nothing) }
    }

    /// Does one step of collecting, of at most a millisecond.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn collect_some(&self) -> Result<Worked> {
        self.contain_all(Job::Collect, Worked::Nothing, || self.collect_now())
    }

    fn collect_now(&self) -> Result<Worked> {
        if self.is_reconciling() {
            return Ok(Worked::Nothing);
        }
        let Some(mut at_work) = self.under_way.collector.round.try_lock() else { return Ok(Worked::Waits) };
        let round = at_work.get_or_insert_with(|| {
            self.may_be_dead.begin_collection();
            CollectRound::from(ChunkRef::NONE)
        });
        let is_over = match round.phase {
            Phase::Mark(ino, from) => self.mark_some(round, ino, from).map(|()| false),
            Phase::Choose(from) => Ok(self.choose_some(round, from)),
            Phase::Change(way, ino, from) => self.change_some(round, way, ino, from),
        };
        let next = match is_over {
            Ok(false) => {
                round.steps_without_room = 0;
                return Ok(Worked::GoesOn);
            }
            Ok(true) => round.marks.next_window().map(CollectRound::from),
            Err(Error::NoSpace { .. }) => match self.make_room_for(round) {
                // What was done stays. What is left waits until more has died.
                Worked::Nothing => None,
                worked => return Ok(worked),
            },
            Err(error) => {
                self.end_round(&mut at_work);
                self.may_be_dead.end_collection();
                return Err(error);
            }
        };
        self.end_round(&mut at_work);
        if next.is_none() {
            self.end_collection();
        }
        *at_work = next;
        Ok(Worked::GoesOn)
    }

    /// Does a step of emptying segments for a round that finds no room, since what it has freed so far may be enough.
    /// The number of steps is limited, because emptied chunks may fill other segments or find no room either.
    fn make_room_for(&self, round: &mut CollectRound) -> Worked {
        round.steps_without_room += 1;
        match round.steps_without_room {
            ..=STEPS_WITHOUT_ROOM_MAX => self.reclaim_some(Victims::All),
            _ => Worked::Nothing,
        }
    }

    fn end_round(&self, at_work: &mut Option<CollectRound>) {
        if let Some(round) = at_work.take() {
            round.copied.into_iter().for_each(|(chunk, copied)| self.drop_collected(chunk, copied));
            // The segments that a copy without room had opened are given back, so blocks can use them.
            self.give_up_empty_packed();
        }
    }

    /// Ends the round at unmount. Chunks that were not re-pointed yet stay as they are.
    pub(super) fn end_collecting(&self) {
        self.end_round(&mut self.under_way.collector.round.lock());
    }

    /// Marks the live bytes of some more extents.
    fn mark_some(&self, round: &mut CollectRound, ino: u64, from: u64) -> Result<()> {
        let (mut ino, mut from, mut looks) = (ino, from, 0);
        while looks < STEP_LOOKS {
            let next = self.table.next_used(ino);
            if next >= self.table.end() {
                round.phase = Phase::Choose(ChunkRef::NONE);
                return Ok(());
            }
            from = if next == ino { from } else { 0 };
            let ended =
                self.contain_at(Job::Collect, next, |inode| self.mark_file(inode, from, STEP_LOOKS - looks, round))?;
            looks += ended.looks + 1;
            (ino, from) = ended.next.map_or((next + 1, 0), |from| (next, from));
            round.phase = Phase::Mark(ino, from);
        }
        Ok(())
    }

    /// Checks some more marked chunks. Returns true if none of the window is worth collecting.
    fn choose_some(&self, round: &mut CollectRound, from: ChunkRef) -> bool {
        // On a nearly full device nothing is gathered, because the old chunk is free only after its last part.
        let gathers = !self.is_nearly_full();
        let way = |chunk, marked: &Marked| match gathers && self.is_worth_gathering(chunk, marked) {
            true => Some(Way::Gather),
            false => self.is_worth_collecting(chunk, marked).then_some(Way::Replace),
        };
        let next = round.marks.choose_some(from, STEP_LOOKS, way);
        round.phase = next.map_or(Phase::Change(Way::Gather, 1, 0), Phase::Choose);
        next.is_none() && round.marks.is_empty()
    }

    fn mark_file(&self, inode: &Inode, from: u64, most: usize, round: &mut CollectRound) -> Result<Ended> {
        let state = inode.read()?;
        let Some(extents) = state.extents() else { return Ok(Ended::default()) };
        let (mut ended, mut end_before) = (Ended::default(), None);
        for (offset, extent) in extents.within(from, u64::MAX) {
            if ended.looks == most {
                ended.next = Some(offset);
                break;
            }
            ended.looks += 1;
            for named in self.parts_of(offset, &extent) {
                round.note_inode(inode.ino);
                let (follows, end) = (end_before == Some(named.offset), named.end());
                round.marks.add(named.part, inode.ino, follows);
                end_before = Some(end);
            }
        }
        Ok(ended)
    }

    /// True if enough of a chunk is dead and all its references were seen. The chunk may have been freed or reused
    /// since.
    fn is_worth_collecting(&self, chunk: ChunkRef, marked: &Marked) -> bool {
        let Some(PackedBytes { stored, content }) = self.bytes_of(chunk) else { return false };
        let needed = (marked.live_bytes() * stored).div_ceil(content);
        marked.end() <= content
            && saves_enough(stored, needed, marked.names)
            && self.chunks.count(chunk) == marked.names
    }

    /// Changes some more files. Returns true when the round is over.
    fn change_some(&self, round: &mut CollectRound, way: Way, ino: u64, from: u64) -> Result<bool> {
        let (mut ino, mut from, mut looks) = (ino, from, 0);
        while looks < STEP_LOOKS {
            let next = self.table.next_used(ino);
            if next >= self.table.end() {
                round.phase = Phase::Change(Way::Replace, 1, 0);
                return Ok(way == Way::Replace);
            }
            from = if next == ino { from } else { 0 };
            let (mut ended, most) = (Ended::default(), STEP_LOOKS - looks);
            if round.may_name_some(next) {
                ended = self.contain_at(Job::Collect, next, |inode| match way {
                    Way::Gather => self.gather_file(inode, from, most, &mut round.marks),
                    Way::Replace => self.repoint_file(inode, from, most, round),
                })?;
            }
            ended.saved_bytes.drain(..).for_each(|saved| self.under_way.collector.count(saved));
            // One commit is enough work for a step.
            looks += if ended.changed { STEP_LOOKS } else { ended.looks + 1 };
            (ino, from) = ended.next.map_or((next + 1, 0), |from| (next, from));
            round.phase = Phase::Change(way, ino, from);
        }
        Ok(false)
    }

    fn repoint_file(&self, inode: &Inode, from: u64, most: usize, round: &mut CollectRound) -> Result<Ended> {
        let mut state = inode.write()?;
        let Some(extents) = state.extents() else { return Ok(Ended::default()) };
        let (named, mut ended) = self.collected_parts(extents, from, most, round);
        if !named.is_empty() {
            ended.changed = true;
            self.repoint(inode, &mut state, &named, round)?;
        }
        Ok(ended)
    }

    /// Returns the next parts of a file that map collected chunks.
    fn collected_parts(
        &self,
        extents: &Extents,
        from: u64,
        most: usize,
        round: &CollectRound,
    ) -> (Vec<NamedPart>, Ended) {
        let mut ended = Ended::default();
        let mut parts: Vec<NamedPart> = Vec::new();
        let mut bytes = 0;
        for (offset, extent) in extents.within(from, u64::MAX) {
            if ended.looks >= most || parts.len() >= STEP_PARTS || bytes >= STEP_BYTES {
                ended.next = Some(offset);
                break;
            }
            ended.looks += 1;
            for named in self.parts_of(offset, &extent) {
                let is_live = |marked: &Marked| marked.place_of(&named.part.range).is_some();
                if round.marks.to_treat(named.part.chunk, Way::Replace).is_some_and(is_live) {
                    bytes += named.part.chunk.block().map_or(1 << 16, |_| BLOCK_BYTES);
                    parts.push(named);
                }
            }
        }
        (parts, ended)
    }

    /// Makes these parts of a file map the new chunks.
    fn repoint(&self, inode: &Inode, state: &mut State, named: &[NamedPart], round: &mut CollectRound) -> Result<()> {
        let policy = Placer::of_no_file(self.policies.of(None));
        let mut claims = Claims::with_compression(self, policy, self.compression_for(inode));
        let mut new: HashMap<ChunkRef, CollectedCopy> = HashMap::new();
        let (mut mapped, mut ranges) = (Mapped::new(), Vec::new());
        for NamedPart { offset, part: ChunkPart { chunk, range } } in named {
            let Some(marked) = round.marks.of(*chunk) else { continue };
            let Some(place) = marked.place_of(range) else { continue };
            let to = match (new.get(chunk), round.copied.get(chunk)) {
                (Some(copied), _) => copied.to,
                (None, Some(copied)) => {
                    claims.share_packed(copied.to)?;
                    copied.to
                }
                (None, None) => {
                    let names = named.iter().filter(|other| other.part.chunk == *chunk).count() as u32;
                    let Some(copied) = self.copy_live(*chunk, marked, names, &mut claims)? else {
                        round.marks.remove(*chunk);
                        continue;
                    };
                    new.insert(*chunk, copied);
                    copied.to
                }
            };
            let length = u64::from(range.end - range.start);
            let location = Location::Packed(to, 0).plus(u64::from(place));
            mapped.push((*offset, Extent { length, location, unwritten: false }));
            ranges.push(*offset..offset + length);
        }
        if mapped.is_empty() {
            return Ok(());
        }
        let remap = Remap { ranges: &ranges, mapped: &mapped, has_holes: false, stamp: Stamp::Kept };
        self.publish(inode, &mut *state, &remap, None, &mut claims)?;
        self.may_be_dead.forget(&ranges);
        round.copied.extend(new);
        for NamedPart { part, .. } in named {
            // The collection holds the last reference.
            if round.copied.contains_key(&part.chunk) && self.chunks.count(part.chunk) == 1 {
                let copied = round.copied.remove(&part.chunk).expect("it is there");
                round.marks.remove(part.chunk);
                self.drop_collected(part.chunk, copied);
            }
        }
        Ok(())
    }

    /// Copies the live bytes of a chunk to a new packed chunk. The new chunk gets `names` references for the locked
    /// inode and one for the collection, which also takes a reference on the old chunk. Returns `None` if the chunk
    /// cannot be read or nothing is saved.
    fn copy_live(
        &self,
        chunk: ChunkRef,
        marked: &Marked,
        names: u32,
        claims: &mut Claims<'_>,
    ) -> Result<Option<CollectedCopy>> {
        let Some(content) = self.chunks.content(chunk).filter(|content| marked.end() <= content.len() as u64) else {
            return Ok(None);
        };
        let (Some((_, stored)), live) = (self.chunks.place_of(chunk), marked.of_content(&content)) else {
            return Ok(None);
        };
        let class = if chunk.packed().is_some() { self.chunks.entry(chunk).class() } else { CLASS_UNKNOWN };
        let frame = if may_compress(class) { claims.compression().compress(&live) } else { None };
        let bytes = frame.as_deref().unwrap_or(&live);
        if !saves_enough(stored, bytes.len() as u64, marked.names) {
            return Ok(None);
        }
        let (pool, fingerprint) = (Pool::ContentDefined, Fingerprint::default());
        let piece = ToPack { bytes: &live, pool, class, fingerprint, grows: false };
        let to = self.store_packed_as(&piece, bytes, names + 1, claims)?;
        match chunk {
            ChunkRef::Block(block) => claims.share(block)?,
            ChunkRef::Packed(packed) => claims.share_packed(packed)?,
        }
        Ok(Some(CollectedCopy { to, saved_bytes: stored - bytes.len() as u64 }))
    }

    /// Gives back the collection's references on the old and the new chunk.
    fn drop_collected(&self, chunk: ChunkRef, CollectedCopy { to, saved_bytes }: CollectedCopy) {
        if self.chunks.count(chunk) == 1 {
            self.under_way.collector.count(saved_bytes);
        }
        let references: Dropped = [chunk, to.into()].into_iter().collect();
        self.release(&references, &[], 0);
    }
}
