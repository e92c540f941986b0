//! The one way in which a file comes to name other data: write, truncate, clone, dedup, undedup and the daemon's work all
//! go through [`Core::publish`].
//!
//! ```text
//! stage      log entries beyond the tail, a line of attributes if any      flushed, unreachable
//! fence      end of the dedup transaction: data, entries, generator and staged lines are durable
//! commit     the commit word; with it, emptied chunk entries of what is named no more
//! fence      it happened
//! install    the extents in DRAM
//! release    the references that the old extents held
//! ```
//!
//! Until the commit word nothing can be reached, and dropping the [`Claims`] undoes all of it.
//!
//! **The fast path.** Most changes are one extent whose entry fits behind the log and that splits nothing inside a
//! block. Nothing can fail then, so nothing is planned, and DRAM follows while the data is on its way: the lock keeps
//! readers out until the commit word is fenced.
//!
//! **The daemon** holds the inode's lock upgradable, so that readers never wait for its fences: DRAM changes under the
//! exclusive lock for as long as that takes ([`Locked`]), and chunk entries of what it gives up are emptied only after
//! that: a reader may clone what the file still names. Between commit word and install, what it holds by update count
//! is counted (DeNOVA IV-D, step 6): a reader who clones what it finds in DRAM finds it counted.

use super::Core;
use super::claims::{Claims, Concurrent};
use super::commit::commit_word;
use super::release::Emptied;
use crate::dedup::{Dedup, Piece, Place};
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::inode::extents::{Dropped, Extent};
use crate::inode::{Body, Inode, State};
use crate::media::inode::AttributeLine;
use crate::media::location_word::LocationWord;
use crate::media::log_entry::{ExtentEntry, LogEntry, Written, dedupe};
use crate::media::superblock::VECTOR_ENTRIES;
use crate::media::vector_entry::{Named, RECORDS_MAX, VectorEntry, lines_of};
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location, PackedNumber};
use crate::space::Purpose;
use crate::sync::{RwLockUpgradableReadGuard, RwLockWriteGuard};
use crate::words::TimeNs;
use pmem::Flight;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use zerocopy::IntoBytes;

/// Extents by file offset.
pub(super) type Mapped = SmallVec<[(u64, Extent); 1]>;

/// Adds an extent; one that goes on where the last one ends, in the file and on the media, makes that longer. Not so in
/// a packed chunk: each extent has a reference of its own, and [`Extents::plan`](crate::inode::extents::Extents::plan)
/// drops what merging makes too many.
pub(super) fn push_mapped(mapped: &mut Mapped, offset: u64, extent: Extent) {
    if let Some((start, last)) = mapped.last_mut()
        && *start + last.length == offset
        && let (Location::Media(before), Location::Media(address)) = (last.location, extent.location)
        && before + last.length == address
    {
        last.length += extent.length;
        return;
    }
    mapped.push((offset, extent));
}

/// One whole block.
pub(super) fn block_extent(block: BlockNumber) -> Extent {
    Extent::media(BLOCK_BYTES, block.address(), false)
}

/// What a change of extents does to times and size.
#[derive(Clone, Copy)]
pub(super) enum Stamp<'c> {
    /// The content changed: when, and the size after it.
    Changed(TimeNs, u64),
    /// These are the attributes from now on; the log entries change extended attributes in the same commit.
    Given(&'c AttributeLine, &'c [LogEntry]),
    /// The same content lies elsewhere: nothing that anybody can see.
    Kept,
}

/// A change of what a file names: `ranges` name `mapped` and nothing else.
pub(super) struct Remap<'c> {
    /// What is replaced. No block is touched by two of them.
    pub(super) ranges: &'c [Range<u64>],
    pub(super) mapped: &'c [(u64, Extent)],
    /// `mapped` leaves holes in the one range.
    pub(super) has_holes: bool,
    pub(super) stamp: Stamp<'c>,
}

impl<'c> Remap<'c> {
    /// Of one range that `mapped` fills.
    pub(super) fn new(range: &'c Range<u64>, mapped: &'c [(u64, Extent)], stamp: Stamp<'c>) -> Remap<'c> {
        Remap { ranges: std::slice::from_ref(range), mapped, has_holes: false, stamp }
    }

    /// Of one range that becomes a hole where `mapped` names nothing.
    pub(super) fn with_holes(range: &'c Range<u64>, mapped: &'c [(u64, Extent)], stamp: Stamp<'c>) -> Remap<'c> {
        Remap { has_holes: true, ..Remap::new(range, mapped, stamp) }
    }

    /// Entries that change extended attributes in the same commit.
    fn xattrs(&self) -> &'c [LogEntry] {
        match self.stamp {
            Stamp::Given(_, xattrs) => xattrs,
            Stamp::Changed(..) | Stamp::Kept => &[],
        }
    }
}

/// A write or vector entry of the log: where it lies, and what it says.
pub(super) type Logged = (u64, Written);

/// The state of an inode that only the caller may change.
pub(super) trait Locked {
    /// Whether nobody reads it either. Only the daemon lets readers in.
    const IS_EXCLUSIVE: bool;

    fn state(&self) -> &State;

    /// Changes it, with readers kept out meanwhile.
    fn exclusively<T>(&mut self, change: impl FnOnce(&mut State) -> T) -> T;
}

impl Locked for &mut State {
    const IS_EXCLUSIVE: bool = true;

    fn state(&self) -> &State {
        self
    }

    fn exclusively<T>(&mut self, change: impl FnOnce(&mut State) -> T) -> T {
        change(self)
    }
}

/// Writers are kept out, readers are not.
pub(super) struct Upgradable<'s>(Option<RwLockUpgradableReadGuard<'s, State>>);

impl<'s> Upgradable<'s> {
    pub(super) fn new(guard: RwLockUpgradableReadGuard<'s, State>) -> Upgradable<'s> {
        Upgradable(Some(guard))
    }
}

impl Locked for Upgradable<'_> {
    const IS_EXCLUSIVE: bool = false;

    fn state(&self) -> &State {
        self.0.as_ref().expect("only `exclusively` is without it")
    }

    fn exclusively<T>(&mut self, change: impl FnOnce(&mut State) -> T) -> T {
        let guard = self.0.take().expect("only `exclusively` is without it");
        let mut locked = RwLockUpgradableReadGuard::upgrade(guard);
        let changed = change(&mut locked);
        self.0 = Some(RwLockWriteGuard::downgrade_to_upgradable(locked));
        changed
    }
}

impl Core {
    /// Publishes a change, then releases what the ranges named before. `queued`: the queued entry of which this is the
    /// last part, if it is one's.
    pub(super) fn publish<L: Locked>(
        &self,
        inode: &Inode,
        mut locked: L,
        remap: &Remap<'_>,
        queued: Option<Logged>,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let concurrent = match self.simple_entry::<L>(inode, locked.state(), remap, claims) {
            Some(entry) => locked.exclusively(|state| self.publish_one(inode, state, &entry, claims)),
            None => self.publish_all(inode, &mut locked, remap, queued, claims)?,
        };
        if !concurrent.is_empty() {
            locked.exclusively(|state| self.merge_concurrent(inode, state, remap.mapped, &concurrent, claims.policy));
        }
        if self.is_worth_compacting(locked.state()) {
            locked.exclusively(|state| self.compact_if_worth_it(inode, state));
        }
        Ok(())
    }

    /// The entry of a change that can take the fast path.
    fn simple_entry<L: Locked>(
        &self,
        inode: &Inode,
        state: &State,
        remap: &Remap<'_>,
        claims: &Claims<'_>,
    ) -> Option<ExtentEntry> {
        let (&[(offset, extent)], Stamp::Changed(time, size)) = (remap.mapped, remap.stamp) else { return None };
        let is_simple = L::IS_EXCLUSIVE && !remap.has_holes && !extent.unwritten;
        let is_all = matches!(remap.ranges, [range] if *range == (offset..offset + extent.length))
            && extent.is_whole_blocks(offset);
        if !is_simple
            || !is_all
            || !self.has_room_for_one_entry(inode, state)
            || !state.extents()?.splits_only_between_blocks()
        {
            return None;
        }
        let entry = ExtentEntry::write(offset, extent.length, extent.location, false, time, size);
        Some(entry.flagged(claims.dedupe).sealed(inode.ino))
    }

    /// The fast path.
    fn publish_one(
        &self,
        inode: &Inode,
        state: &mut State,
        entry: &ExtentEntry,
        claims: &mut Claims<'_>,
    ) -> Concurrent {
        let position = state.log.tail;
        let line = self.region.write(position, entry).flush();
        let before = state.mapped_bytes();
        let mut dropped = Dropped::default();
        let Body::File(extents) = &mut state.body else { unreachable!("the caller looked at its extents") };
        let extent = Extent { length: entry.length, location: entry.location(), unwritten: false };
        extents.exchange(entry.file_offset, extent, &mut dropped);
        let (landed, line) = claims.tx.end(line);
        let (flight, emptied) = self.clear_unshared_entries(&dropped.blocks, &claims.reserved);
        self.commit_line(inode, state, line, landed, flight, || self.forget_all(&emptied));
        (state.attributes.size, state.attributes.mtime, state.attributes.ctime) = (entry.size, entry.time, entry.time);
        if entry.dedupe == dedupe::NEEDED {
            state.add_waiting(entry.file_offset, entry.length);
            self.queue_entry(inode, position, &entry.written().expect("it is a write entry"));
        }
        self.installed(inode, state, before, &dropped);
        claims.published(inode.ino, &dropped)
    }

    fn publish_all<L: Locked>(
        &self,
        inode: &Inode,
        locked: &mut L,
        remap: &Remap<'_>,
        queued: Option<Logged>,
        claims: &mut Claims<'_>,
    ) -> Result<Concurrent> {
        let state = locked.state();
        let dropped = self.plan(state, remap, claims)?;
        let (mut entries, kept) = entries_of(inode, state, remap, claims.dedupe);
        if entries.iter().any(|entry| matches!(entry, LogEntry::Vector(_))) {
            self.require_feature(VECTOR_ENTRIES)?;
        }
        let xattrs = remap.xattrs();
        let of_xattrs = encode_each(inode, xattrs);
        let of_extents = entries.iter().map(|entry| match entry {
            LogEntry::Extent(entry) => entry.as_bytes(),
            LogEntry::Vector(entry) => entry.as_bytes(),
            _ => unreachable!("`entries_of` makes no others"),
        });
        let lines: SmallVec<[&[u8]; 2]> = of_extents.chain(of_xattrs.iter().map(Vec::as_slice)).collect();
        let needs_no_more = kept.is_some() && claims.stores_nothing();
        let frees = remap.mapped.is_empty() || !claims.reserved.is_empty() || needs_no_more;
        let purpose = if frees { Purpose::Promised } else { Purpose::Log };
        let (mut staged, positions) = self.stage_lines(inode, state, &lines, kept, purpose, &mut claims.tx.flight)?;
        drop(lines);
        let (landed, named) = claims.tx.end(staged.take_named());
        let is_daemons = !L::IS_EXCLUSIVE;
        // Somebody who reads the file could clone what it still names: its entries stay until it names them no more.
        let (flight, emptied) = match is_daemons {
            true => (Flight::new(), Emptied::new()),
            false => self.clear_unshared_entries(&dropped.blocks, &claims.reserved),
        };
        let word = commit_word(inode.slot, &state.log, state.selector, named);
        self.store_commit_word(word, landed, flight, || self.forget_all(&emptied));
        if is_daemons {
            self.count_holds(queued, claims);
        }
        let of_xattrs = positions[entries.len()..].iter().zip(xattrs);
        let written = |(position, entry): (&u64, &LogEntry)| Some((*position, entry.written()?));
        let logged: SmallVec<[Logged; 2]> = positions.iter().zip(&entries).filter_map(written).collect();
        if is_daemons {
            // What the daemon publishes is complete once it is counted.
            entries.iter_mut().for_each(|entry| entry.flag(dedupe::COMPLETE));
        }
        locked.exclusively(|state| {
            staged.install(state);
            let before = state.mapped_bytes();
            for (position, entry) in positions.iter().zip(&entries) {
                state.apply(*position, entry, kept.is_none()).expect("the inode is a regular file");
            }
            for (position, written) in logged.iter().filter(|(_, written)| written.dedupe == dedupe::NEEDED) {
                self.queue_entry(inode, *position, written);
            }
            for (position, entry) in of_xattrs {
                state.apply(*position, entry, false).expect("every inode may have extended attributes");
            }
            self.installed(inode, state, before, &dropped);
        });
        if is_daemons {
            self.complete(locked.state(), queued, &logged);
        }
        Ok(claims.published(inode.ino, &dropped))
    }

    /// The change is in DRAM.
    fn installed(&self, inode: &Inode, state: &mut State, mapped_before: u64, dropped: &Dropped) {
        state.drops += u64::from(!dropped.is_empty());
        self.account_mapped(inode.ino, mapped_before, state.mapped_bytes());
    }

    /// What a change drops, with the references that splitting an extent needs already taken.
    fn plan(&self, state: &State, remap: &Remap<'_>, claims: &mut Claims<'_>) -> Result<Dropped> {
        let extents = self.file_extents(state, "change")?;
        let mut dropped = Dropped::default();
        for ranges in remap.ranges.chunk_by(|range, next| range.end == next.start) {
            let plan = extents.plan(ranges[0].start, ranges[ranges.len() - 1].end, remap.mapped);
            self.collector.may_have_died(plan.may_be_dead);
            for chunk in &plan.split {
                match chunk {
                    ChunkRef::Block(block) => claims.share(*block)?,
                    ChunkRef::Packed(chunk) => claims.share_packed(*chunk)?,
                }
            }
            match dropped.is_empty() {
                true => dropped = plan.dropped,
                false => {
                    dropped.blocks.extend(plan.dropped.blocks);
                    dropped.packed.extend(plan.dropped.packed);
                }
            }
        }
        Ok(dropped)
    }

    /// Two writers that store equal chunks at the same time do not see one another. The second to publish does: it
    /// shares the chunk of the first in a commit of its own, and lets its own go. One that cannot is kept. `mapped`: what
    /// was published.
    pub(super) fn merge_concurrent(
        &self,
        inode: &Inode,
        state: &mut State,
        mapped: &[(u64, Extent)],
        stored: &[(ChunkRef, Fingerprint)],
        policy: &dyn Dedup,
    ) {
        let fingerprint_of = |(_, extent): &(u64, Extent)| {
            let chunk = ChunkRef::Packed(extent.packed()?);
            stored.iter().find(|(other, _)| *other == chunk).map(|(_, fingerprint)| *fingerprint)
        };
        let mut given_up: SmallVec<[ChunkRef; 0]> = SmallVec::new();
        let goes_on = |one: &(u64, Extent), next: &(u64, Extent)| one.0 + one.1.length == next.0;
        let packed: SmallVec<[(u64, Extent); 1]> =
            mapped.iter().copied().filter(|named| fingerprint_of(named).is_some()).collect();
        for run in packed.chunk_by(goes_on) {
            let fingerprints: SmallVec<[Fingerprint; 1]> = run.iter().filter_map(fingerprint_of).collect();
            given_up.extend(self.share_packed_instead(inode, state, run, &fingerprints, policy).unwrap_or_default());
        }
        for (chunk, fingerprint) in stored {
            let is_shared = match chunk {
                ChunkRef::Block(block) => {
                    self.share_instead(inode, state, *block, *fingerprint, policy).unwrap_or(false)
                }
                ChunkRef::Packed(_) => given_up.contains(chunk),
            };
            if let Some(weak) = fingerprint.weak.filter(|_| !is_shared) {
                self.chunks.index.insert(weak, *chunk);
            }
        }
    }

    /// Makes the file name equal packed chunks of others instead of its own new ones, in a `run` without a gap; those that it
    /// gave up.
    fn share_packed_instead(
        &self,
        inode: &Inode,
        state: &mut State,
        run: &[(u64, Extent)],
        fingerprints: &[Fingerprint],
        policy: &dyn Dedup,
    ) -> Result<SmallVec<[ChunkRef; 0]>> {
        let range = run[0].0..run.last().map_or(0, |(offset, extent)| offset + extent.length);
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.read_extents(self.file_extents(state, "write")?, range.start, &mut bytes)?;
        self.region.check()?;
        let piece = |((offset, extent), fingerprint): (&(u64, Extent), &Fingerprint)| {
            let start = (offset - range.start) as usize;
            Piece::new(&bytes[start..start + extent.length as usize], *fingerprint)
        };
        let mut pieces: Vec<Piece<'_>> = run.iter().zip(fingerprints).map(piece).collect();
        let mut claims = Claims::with_policy(self, policy);
        self.place_packed(&mut pieces, &mut claims);
        let mut others: Vec<Option<PackedNumber>> = Vec::with_capacity(run.len());
        for piece in pieces {
            others.push(match piece.place {
                Place::Shared(reference) => Some(claims.keep_packed(reference)),
                Place::Store | Place::Twin(_) => None,
            });
        }
        let (mut mapped, mut given_up) = (Mapped::new(), SmallVec::new());
        for ((offset, extent), other) in run.iter().zip(others) {
            let own = extent.packed().expect("a packed chunk");
            match other {
                Some(_) => given_up.push(ChunkRef::Packed(own)),
                None => claims.share_packed(own)?,
            }
            let location = Location::Packed(other.unwrap_or(own), 0);
            mapped.push((*offset, Extent { location, ..*extent }));
        }
        if !given_up.is_empty() {
            let stamp = Stamp::Changed(state.attributes.mtime, state.attributes.size);
            self.publish(inode, &mut *state, &Remap::new(&range, &mapped, stamp), None, &mut claims)?;
        }
        Ok(given_up)
    }

    /// Makes the file name an equal block of another instead of its own new `block`. False when there is none.
    fn share_instead(
        &self,
        inode: &Inode,
        state: &mut State,
        block: BlockNumber,
        fingerprint: Fingerprint,
        policy: &dyn Dedup,
    ) -> Result<bool> {
        let extents = self.file_extents(state, "write")?.iter();
        let naming = extents.filter(|(_, extent)| extent.blocks().contains(block));
        let of_block = |(offset, extent): (u64, Extent)| Some(offset + (block.address() - extent.media_address()?));
        let offsets: SmallVec<[u64; 1]> = naming.filter_map(of_block).collect();
        let stamp = Stamp::Changed(state.attributes.mtime, state.attributes.size);
        for offset in offsets {
            let mut claims = Claims::with_policy(self, policy);
            let bytes: [u8; BLOCK_BYTES as usize] = self.region.read(block.address());
            let mut own = [Piece::new(&bytes, fingerprint)];
            policy.place(&mut own, &mut claims.tx);
            let [Piece { place: Place::Shared(other), .. }] = own else { return Ok(false) };
            let mapped = [(offset, block_extent(claims.keep(other)))];
            let range = offset..offset + BLOCK_BYTES;
            self.publish(inode, &mut *state, &Remap::new(&range, &mapped, stamp), None, &mut claims)?;
        }
        Ok(true)
    }
}

/// The lines of each entry.
fn encode_each(inode: &Inode, entries: &[LogEntry]) -> SmallVec<[Vec<u8>; 2]> {
    let lines = |entry: &LogEntry| {
        let mut lines = Vec::new();
        entry.encode(inode.ino, &mut lines);
        lines
    };
    entries.iter().map(lines).collect()
}

/// Extents of one operation from which on it makes vector entries.
const VECTOR_EXTENTS_MIN: usize = 4;

/// The log entries of a change, write, unmap and vector ones, and the attributes that a line behind them keeps as they
/// are.
fn entries_of(
    inode: &Inode,
    state: &State,
    remap: &Remap<'_>,
    flag: u8,
) -> (SmallVec<[LogEntry; 2]>, Option<AttributeLine>) {
    // An entry sets the time of change of the inode too; a line of attributes behind it says what stays.
    let (time, size, kept) = match remap.stamp {
        Stamp::Changed(time, size) => (time, size, None),
        Stamp::Given(attributes, _) => (attributes.mtime, attributes.size, Some(*attributes)),
        Stamp::Kept => (state.attributes.mtime, state.attributes.size, Some(state.attributes)),
    };
    if remap.mapped.len() >= VECTOR_EXTENTS_MIN {
        let named = named_of(remap);
        let runs = named.chunk_by(|named, next| named.file_offset + named.length == next.file_offset);
        let entry = |named: &[Named]| entries_for(named, flag, time, size, inode.ino);
        return (runs.flat_map(|run| run.chunks(RECORDS_MAX)).flat_map(entry).collect(), kept);
    }
    let holes = remap.ranges.iter().filter(|_| remap.has_holes);
    let unmaps = holes.map(|range| ExtentEntry::unmap(range.start, range.end - range.start, time, size));
    let writes = remap.mapped.iter().map(|(offset, extent)| {
        // Packed chunks are never queued: they are shared as they are written.
        let flag = if extent.unwritten || extent.packed().is_some() { dedupe::NONE } else { flag };
        ExtentEntry::write(*offset, extent.length, extent.location, extent.unwritten, time, size).flagged(flag)
    });
    (unmaps.chain(writes).map(|entry| LogEntry::Extent(entry.sealed(inode.ino))).collect(), kept)
}

/// What the ranges of a change name, in pieces that fit a record; holes too, if it makes some.
fn named_of(remap: &Remap<'_>) -> Vec<Named> {
    let mut named = Vec::with_capacity(remap.mapped.len());
    let mut at = remap.ranges.first().map_or(0, |range| range.start);
    let hole_until = |named: &mut Vec<Named>, at: u64, end: u64| {
        if remap.has_holes && at < end {
            named.extend(Named { file_offset: at, length: end - at, word: LocationWord::HOLE }.in_pieces());
        }
    };
    for (offset, extent) in remap.mapped {
        hole_until(&mut named, at, *offset);
        let word = LocationWord::new(extent.location, extent.unwritten);
        named.extend(Named { file_offset: *offset, length: extent.length, word }.in_pieces());
        at = offset + extent.length;
    }
    hole_until(&mut named, at, remap.ranges.last().map_or(0, |range| range.end));
    named
}

/// The entries for ranges that lie one behind the other: one for all, or, where that takes no fewer lines, one for each.
pub(super) fn entries_for(named: &[Named], flag: u8, time: TimeNs, size: u64, ino: u64) -> SmallVec<[LogEntry; 2]> {
    let is_data = |named: &Named| named.word.location().is_some_and(|(_, unwritten)| !unwritten);
    let flag_of = |named: &Named| if is_data(named) { flag } else { dedupe::NONE };
    if lines_of(named.len()) < named.len() as u64 {
        let flag = if named.iter().any(is_data) { flag } else { dedupe::NONE };
        return smallvec![LogEntry::Vector(VectorEntry::new(named, time, size).flagged(flag).sealed(ino))];
    }
    let entry = |named: &Named| {
        let entry = match named.word.location() {
            None => ExtentEntry::unmap(named.file_offset, named.length, time, size),
            Some((location, unwritten)) => {
                ExtentEntry::write(named.file_offset, named.length, location, unwritten, time, size)
            }
        };
        LogEntry::Extent(entry.flagged(flag_of(named)).sealed(ino))
    };
    named.iter().map(entry).collect()
}
