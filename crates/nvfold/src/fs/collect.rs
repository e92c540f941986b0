//! Collecting byte ranges: chunks of which only a few bytes live give way to new ones with just those.
//!
//! The problem: clones of ranges and writes over a part of what was packed leave blocks and packed chunks of which extents
//! name a few bytes. Their counts do not tell which, so the rest is space that nobody can use.
//!
//! The idea: two passes over the inodes, for a window of chunks ([`Marks`]). The first learns which bytes live of those
//! that are named by parts. Then it is known which chunks are worth it: all their names were seen, and enough of them is
//! dead. In the second pass the first inode that names one copies what lives of it to a new packed chunk, once, and each
//! inode names that in a commit like any other ([`Core::publish`]).
//!
//! ```text
//! mark      inode after inode, read locked       chunk -> names, ranges that live         DRAM only
//! choose    count of the entry = names seen, and dead enough
//! re-point  inode after inode, locked            new chunk, count k + 1; a reference on the old one
//!                                                commit: k extents name the new one, the old one loses k
//! let go    nobody else names the old chunk      both lose the collection's reference: the old one is free
//! ```
//!
//! Anything may happen between steps. What was marked is only a guess, so nothing depends on it but how much is saved: the
//! bytes of a chunk stand still as long as it is referenced, which the collection sees to from the copy on, and an extent
//! is re-pointed only if the new chunk has all of it. A crash leaves counts too high, which reconcile puts right.
//!
//! It is done on request, before an operation fails for want of space, and in the background when much may have died since
//! the last one: on a device that is nearly full, and, where the policy shares bytes with what they were copied from and so
//! leaves such parts all the time, while nobody is at work (ICID 4.6).

use super::Core;
use super::claims::Claims;
use super::marks::{Marked, Marks, Part};
use super::packed::{ToPack, may_compress};
use super::publish::{Mapped, Remap, Stamp};
use super::reclaim::Worked;
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::inode::extents::{Dropped, Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::chunk_entry::{CLASS_UNKNOWN, ENTRY_BYTES};
use crate::media::packed::PackedBytes;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location, PackedNumber};
use crate::space::packed::Pool;
use crate::space::reclaim::Victims;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, spin_loop};
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::ops::Range;

/// Extents and inodes that a step looks at.
const STEP_LOOKS: usize = 2048;
/// Parts that are re-pointed in one commit.
const STEP_PARTS: usize = 64;
/// Bytes of chunks that a step reads, about.
const STEP_BYTES: u64 = 256 << 10;
/// Bits that tell which inodes name what is collected, by their numbers: another inode with the same bit is looked at in
/// vain.
const INODE_BITS: u64 = 1 << 20;
/// What an entry, a header and the like of the new chunk take, about, bytes.
const CHUNK_COSTS: u64 = 128;
/// What an extent more takes in a log, bytes.
const NAME_COSTS: u64 = 64;
/// Of what is used, so much must be dead that a round is worth it while nobody is at work: a sixteenth, and some.
const LEAVINGS_PART: u64 = 16;
const LEAVINGS_BYTES_MIN: u64 = 1 << 20;
/// Steps of emptying segments that a round without room waits for: some ten empty one.
const STEPS_WITHOUT_ROOM_MAX: u32 = 64;
/// How often an operation that needs space asks again while another thread collects, before it does without.
const PATIENCE: u32 = if cfg!(feature = "shuttle") { 100 } else { 1 << 20 };

/// What is collected, and what was.
pub(super) struct Collector {
    round: Mutex<Option<Round>>,
    /// Bytes that may have died in chunks that live, since the last round began.
    may_be_dead: AtomicU64,
    /// How many operations had taken the freeze lock when this was last checked.
    passed: AtomicU64,
    chunks: AtomicU64,
    saved_bytes: AtomicU64,
}

impl Default for Collector {
    fn default() -> Collector {
        // Nobody knows what died before this mount, so there is something to look for.
        Collector {
            round: Mutex::default(),
            may_be_dead: AtomicU64::new(1),
            passed: AtomicU64::default(),
            chunks: AtomicU64::default(),
            saved_bytes: AtomicU64::default(),
        }
    }
}

impl Collector {
    /// Bytes of chunks that others may name are named no more.
    pub(super) fn may_have_died(&self, bytes: u64) {
        if bytes > 0 {
            self.may_be_dead.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Chunks that gave way to smaller ones since mount, and the bytes that this saved.
    pub(super) fn done(&self) -> (u64, u64) {
        (self.chunks.load(Ordering::Relaxed), self.saved_bytes.load(Ordering::Relaxed))
    }
}

/// The work on a window of chunks.
struct Round {
    marks: Marks,
    /// See [`INODE_BITS`].
    inodes: Vec<u64>,
    phase: Phase,
    /// Chunks whose live bytes lie in new ones. The round has a reference on both.
    copied: HashMap<ChunkRef, Copied>,
    /// Steps since the last one that found room.
    steps_without_room: u32,
}

/// Where the live bytes of a chunk lie now.
#[derive(Clone, Copy)]
struct Copied {
    to: PackedNumber,
    saved_bytes: u64,
}

/// What is done of a round, and where to go on.
#[derive(Clone, Copy)]
enum Phase {
    /// The first pass: the next inode, and where in it.
    Mark(u64, u64),
    /// Which chunks are worth it, from this one on.
    Choose(ChunkRef),
    /// The second pass.
    Repoint(u64, u64),
}

impl Round {
    fn from(first: ChunkRef) -> Round {
        let inodes = vec![0; (INODE_BITS / 64) as usize];
        let marks = Marks::from(first);
        Round { marks, inodes, phase: Phase::Mark(1, 0), copied: HashMap::new(), steps_without_room: 0 }
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

/// A part of a file that names a part of a chunk.
struct Named {
    offset: u64,
    part: Part,
}

impl Core {
    /// Whether byte ranges are to be collected: a round is under way, or enough may have died since the last one.
    pub(super) fn may_collect(&self, victims: Victims) -> bool {
        let is_nearly_full = || !self.space.has_free(self.space.total_blocks() / 8);
        let least = match victims {
            Victims::All => 1,
            Victims::Worthwhile if is_nearly_full() => self.geometry.device_bytes / 64,
            Victims::Worthwhile if self.policies.follow_origins(None) && self.is_at_rest() => {
                let used = (self.space.total_blocks() - self.space.free_blocks()) * BLOCK_BYTES;
                (used / LEAVINGS_PART).max(LEAVINGS_BYTES_MIN)
            }
            Victims::Worthwhile => u64::MAX,
        };
        let is_asked = self.collector.may_be_dead.load(Ordering::Relaxed) >= least;
        self.chunks.entries.may_pack()
            && (is_asked || self.collector.round.try_lock().is_none_or(|round| round.is_some()))
    }

    /// Whether nobody has changed anything since this was last asked.
    fn is_at_rest(&self) -> bool {
        let passed = self.gate.entered();
        self.collector.passed.swap(passed, Ordering::Relaxed) == passed
    }

    /// Collects for an operation that found too little space, and holds nothing now; whether it saved some.
    pub(crate) fn collect_for_space(&self) -> bool {
        let (before, _) = self.collector.done();
        let mut patience = PATIENCE;
        while patience > 0 {
            let _inside = self.gate.enter_background();
            let may_work = !self.read_only && !self.region.is_lost() && self.may_collect(Victims::All);
            match may_work.then(|| self.collect_some()) {
                Some(Ok(Worked::GoesOn)) => {}
                Some(Ok(Worked::Waits)) => {
                    patience -= 1;
                    spin_loop();
                }
                _ => break,
            }
        }
        self.collector.done().0 > before
    }

    /// Does a step of collecting, of a millisecond at most.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn collect_some(&self) -> Result<Worked> {
        if self.is_reconciling() {
            return Ok(Worked::Nothing);
        }
        let Some(mut at_work) = self.collector.round.try_lock() else { return Ok(Worked::Waits) };
        let round = at_work.get_or_insert_with(|| {
            self.collector.may_be_dead.store(0, Ordering::Relaxed);
            Round::from(ChunkRef::NONE)
        });
        let is_over = match round.phase {
            Phase::Mark(ino, from) => self.mark_some(round, ino, from).map(|()| false),
            Phase::Choose(from) => Ok(self.choose_some(round, from)),
            Phase::Repoint(ino, from) => self.repoint_some(round, ino, from),
        };
        let next = match is_over {
            Ok(false) => {
                round.steps_without_room = 0;
                return Ok(Worked::GoesOn);
            }
            Ok(true) => round.marks.next_window().map(Round::from),
            Err(Error::NoSpace { .. }) => match self.make_room_for(round) {
                // What was done stays. What is left out now is so until more has died.
                Worked::Nothing => None,
                worked => return Ok(worked),
            },
            Err(error) => {
                self.end_round(&mut at_work);
                return Err(error);
            }
        };
        self.end_round(&mut at_work);
        *at_work = next;
        Ok(Worked::GoesOn)
    }

    /// A step of emptying segments for a round that finds no room: what it has freed so far may be enough. Not without
    /// end, for what is emptied may fill others, or find no room either.
    fn make_room_for(&self, round: &mut Round) -> Worked {
        round.steps_without_room += 1;
        match round.steps_without_room {
            ..=STEPS_WITHOUT_ROOM_MAX => self.reclaim_some(Victims::All),
            _ => Worked::Nothing,
        }
    }

    fn end_round(&self, at_work: &mut Option<Round>) {
        if let Some(round) = at_work.take() {
            round.copied.into_iter().for_each(|(chunk, copied)| self.drop_collected(chunk, copied));
            // What a copy that found no room has opened serves for blocks again.
            self.give_up_empty_packed();
        }
    }

    /// Unmount: what is under way stays as it is.
    pub(super) fn end_collecting(&self) {
        self.end_round(&mut self.collector.round.lock());
    }

    /// Looks at some more extents.
    fn mark_some(&self, round: &mut Round, ino: u64, from: u64) -> Result<()> {
        let (mut ino, mut from, mut looks) = (ino, from, 0);
        while looks < STEP_LOOKS {
            let next = self.table.next_used(ino);
            if next >= self.table.end() {
                round.phase = Phase::Choose(ChunkRef::NONE);
                return Ok(());
            }
            from = if next == ino { from } else { 0 };
            let ended = self.leaving_out(self.mark_file(next, from, STEP_LOOKS - looks, round))?;
            looks += ended.looks + 1;
            (ino, from) = ended.next.map_or((next + 1, 0), |from| (next, from));
            round.phase = Phase::Mark(ino, from);
        }
        Ok(())
    }

    /// Looks at the entries of some more chunks; true when none is worth it.
    fn choose_some(&self, round: &mut Round, from: ChunkRef) -> bool {
        let is_worth_it = |chunk, marked: &Marked| self.is_worth_collecting(chunk, marked);
        let next = round.marks.retain_some(from, STEP_LOOKS, is_worth_it);
        round.phase = next.map_or(Phase::Repoint(1, 0), Phase::Choose);
        next.is_none() && round.marks.is_empty()
    }

    fn mark_file(&self, ino: u64, from: u64, most: usize, round: &mut Round) -> Result<Ended> {
        let inode = self.inode(ino)?;
        let state = inode.read()?;
        let Some(extents) = state.extents() else { return Ok(Ended::default()) };
        let mut ended = Ended::default();
        for (offset, extent) in extents.within(from, u64::MAX) {
            if ended.looks == most {
                ended.next = Some(offset);
                break;
            }
            ended.looks += 1;
            for named in self.parts_of(offset, &extent) {
                round.note_inode(ino);
                round.marks.add(named.part);
            }
        }
        Ok(ended)
    }

    /// What an extent names parts of: a packed chunk, or the first and the last block that it touches.
    fn parts_of(&self, offset: u64, extent: &Extent) -> SmallVec<[Named; 2]> {
        let mut named = SmallVec::new();
        let mut add = |offset, chunk, start: u64, end: u64| {
            named.push(Named { offset, part: Part { chunk, range: start as u32..end as u32 } });
        };
        match extent.location {
            _ if extent.unwritten => {}
            Location::Packed(chunk, start) => {
                let (of, start) = (ChunkRef::Packed(chunk), u64::from(start));
                if self.bytes_of(of).is_some_and(|bytes| bytes.content != extent.length) {
                    add(offset, of, start, start + extent.length);
                }
            }
            Location::Media(address) => {
                let end = address + extent.length;
                let (first, last) = (address / BLOCK_BYTES * BLOCK_BYTES, end / BLOCK_BYTES * BLOCK_BYTES);
                let block = |address| ChunkRef::Block(BlockNumber::containing(address));
                if first < address {
                    add(offset, block(first), address - first, BLOCK_BYTES.min(end - first));
                }
                if last < end && last >= address {
                    add(offset + (last - address), block(last), 0, end - last);
                }
            }
        }
        named
    }

    /// How many bytes a chunk has; `None` when its entry cannot be read, which is no failure of who asks.
    fn bytes_of(&self, chunk: ChunkRef) -> Option<PackedBytes> {
        let bytes = match chunk {
            ChunkRef::Block(_) => Some(PackedBytes { stored: BLOCK_BYTES, content: BLOCK_BYTES }),
            ChunkRef::Packed(packed) if self.chunks.entries.exists(chunk) => self.chunks.packed_bytes(packed),
            ChunkRef::Packed(_) => return None,
        };
        bytes.filter(|_| self.region.sound_or_forget(self.chunks.entry_offset(chunk), ENTRY_BYTES))
    }

    /// Whether enough of a chunk is dead, and all its names were seen. It may be another one by now, or none.
    fn is_worth_collecting(&self, chunk: ChunkRef, marked: &Marked) -> bool {
        let Some(PackedBytes { stored, content }) = self.bytes_of(chunk) else { return false };
        let needed = (marked.live_bytes() * stored).div_ceil(content);
        marked.end() <= content
            && saves_enough(stored, needed, marked.names)
            && self.chunks.count(chunk) == marked.names
    }

    /// Re-points some more extents; true when the round is over.
    fn repoint_some(&self, round: &mut Round, ino: u64, from: u64) -> Result<bool> {
        let (mut ino, mut from, mut looks) = (ino, from, 0);
        while looks < STEP_LOOKS {
            let next = self.table.next_used(ino);
            if next >= self.table.end() {
                return Ok(true);
            }
            from = if next == ino { from } else { 0 };
            let mut ended = Ended::default();
            if round.may_name_some(next) {
                ended = self.leaving_out(self.repoint_file(next, from, STEP_LOOKS - looks, round))?;
            }
            // A commit is enough for a step.
            looks += if ended.changed { STEP_LOOKS } else { ended.looks + 1 };
            (ino, from) = ended.next.map_or((next + 1, 0), |from| (next, from));
            round.phase = Phase::Repoint(ino, from);
        }
        Ok(false)
    }

    fn repoint_file(&self, ino: u64, from: u64, most: usize, round: &mut Round) -> Result<Ended> {
        let inode = self.inode(ino)?;
        let mut state = inode.write()?;
        let Some(extents) = state.extents() else { return Ok(Ended::default()) };
        let (named, mut ended) = self.collected_parts(extents, from, most, round);
        if !named.is_empty() {
            ended.changed = true;
            self.repoint(&inode, &mut state, &named, round)?;
        }
        Ok(ended)
    }

    /// The next parts of a file that are collected.
    fn collected_parts(&self, extents: &Extents, from: u64, most: usize, round: &Round) -> (Vec<Named>, Ended) {
        let mut ended = Ended::default();
        let mut parts: Vec<Named> = Vec::new();
        let mut bytes = 0;
        for (offset, extent) in extents.within(from, u64::MAX) {
            if ended.looks >= most || parts.len() >= STEP_PARTS || bytes >= STEP_BYTES {
                ended.next = Some(offset);
                break;
            }
            ended.looks += 1;
            for named in self.parts_of(offset, &extent) {
                let is_live = |marked: &Marked| marked.place_of(&named.part.range).is_some();
                if round.marks.of(named.part.chunk).is_some_and(is_live) {
                    bytes += named.part.chunk.block().map_or(1 << 16, |_| BLOCK_BYTES);
                    parts.push(named);
                }
            }
        }
        (parts, ended)
    }

    /// Makes these parts of a file name the new chunks.
    fn repoint(&self, inode: &Inode, state: &mut State, named: &[Named], round: &mut Round) -> Result<()> {
        let mut claims = Claims::with_compression(self, self.policies.of(None), self.compression_for(inode));
        let mut new: HashMap<ChunkRef, Copied> = HashMap::new();
        let (mut mapped, mut ranges) = (Mapped::new(), Vec::new());
        for Named { offset, part: Part { chunk, range } } in named {
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
            let location = Location::Packed(to, place as u16);
            mapped.push((*offset, Extent { length, location, unwritten: false }));
            ranges.push(*offset..offset + length);
        }
        if mapped.is_empty() {
            return Ok(());
        }
        let remap = Remap { ranges: &ranges, mapped: &mapped, has_holes: false, stamp: Stamp::Kept };
        self.publish(inode, &mut *state, &remap, None, &mut claims)?;
        self.collector.forget_dead(&ranges);
        round.copied.extend(new);
        for Named { part, .. } in named {
            // The collection is the last one that names it.
            if round.copied.contains_key(&part.chunk) && self.chunks.count(part.chunk) == 1 {
                let copied = round.copied.remove(&part.chunk).expect("it is there");
                round.marks.remove(part.chunk);
                self.drop_collected(part.chunk, copied);
            }
        }
        Ok(())
    }

    /// Copies what lives of a chunk that a locked inode names to a new one, for so many names of the inode and for the
    /// collection, which takes a reference on the old one too. `None`: it cannot be read, or nothing is saved.
    fn copy_live(
        &self,
        chunk: ChunkRef,
        marked: &Marked,
        names: u32,
        claims: &mut Claims<'_>,
    ) -> Result<Option<Copied>> {
        let Some(content) = self.chunks.content(chunk).filter(|content| marked.end() <= content.len() as u64) else {
            return Ok(None);
        };
        let (Some((_, stored)), live) = (self.chunks.place_of(chunk), marked.of_content(&content)) else {
            return Ok(None);
        };
        let class = if chunk.packed().is_some() { self.chunks.entry(chunk).class() } else { CLASS_UNKNOWN };
        let frame = if may_compress(class) { claims.compression.compress(&live) } else { None };
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
        Ok(Some(Copied { to, saved_bytes: stored - bytes.len() as u64 }))
    }

    /// Gives the collection's references back.
    fn drop_collected(&self, chunk: ChunkRef, Copied { to, saved_bytes }: Copied) {
        if self.chunks.count(chunk) == 1 {
            self.collector.chunks.fetch_add(1, Ordering::Relaxed);
            self.collector.saved_bytes.fetch_add(saved_bytes, Ordering::Relaxed);
        }
        let references: Dropped = [chunk, to.into()].into_iter().collect();
        self.release(&references, &[], 0);
    }
}

impl Collector {
    /// What a collection re-points has not died.
    fn forget_dead(&self, ranges: &[Range<u64>]) {
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let less = |dead: u64| Some(dead.saturating_sub(bytes));
        let _ = self.may_be_dead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// How far a step came in a file.
#[derive(Default)]
struct Ended {
    /// Extents that were looked at.
    looks: usize,
    /// Where to go on in it.
    next: Option<u64>,
    /// The file names something else.
    changed: bool,
}

/// Whether it is worth it that a chunk of `stored` bytes gives way to one of `needed` bytes.
fn saves_enough(stored: u64, needed: u64, names: u32) -> bool {
    let costs = CHUNK_COSTS + NAME_COSTS * u64::from(names);
    stored.saturating_sub(needed) >= costs.max(stored / 16)
}
