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
use crate::inode::extents::Extent;
use crate::inode::{Body, Inode, State};
use crate::media::inode::AttributeLine;
use crate::media::log_entry::{ExtentEntry, LogEntry, dedupe};
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::{BlockRun, Purpose, Runs};
use crate::sync::atomic::Ordering;
use crate::sync::{RwLockUpgradableReadGuard, RwLockWriteGuard};
use crate::words::TimeNs;
use pmem::Flight;
use smallvec::SmallVec;
use std::ops::Range;
use zerocopy::IntoBytes;

/// Extents by file offset.
pub(super) type Mapped = SmallVec<[(u64, Extent); 1]>;

/// Adds an extent; one that goes on where the last one ends makes that longer.
pub(super) fn push_mapped(mapped: &mut Mapped, offset: u64, extent: Extent) {
    if let Some((start, last)) = mapped.last_mut()
        && *start + last.length == offset
        && last.address + last.length == extent.address
    {
        last.length += extent.length;
        return;
    }
    mapped.push((offset, extent));
}

/// One whole block.
pub(super) fn block_extent(block: BlockNumber) -> Extent {
    Extent { length: BLOCK_BYTES, address: block.address(), unwritten: false }
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

/// An entry of the log and where it lies.
pub(super) type Logged = (u64, ExtentEntry);

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
            locked.exclusively(|state| self.merge_concurrent(inode, state, concurrent, claims.policy));
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
        let entry = ExtentEntry::write(offset, extent.length, extent.address, false, time, size);
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
        let mut dropped = Runs::new();
        let Body::File(extents) = &mut state.body else { unreachable!("the caller looked at its extents") };
        let extent = Extent { length: entry.length, address: entry.address, unwritten: false };
        extents.exchange(entry.file_offset, extent, &mut dropped);
        let (landed, line) = claims.tx.end(line);
        let (flight, emptied) = self.clear_unshared_entries(&dropped, &claims.reserved);
        self.commit_line(inode, state, line, landed, flight, || self.forget_all(emptied));
        (state.attributes.size, state.attributes.mtime, state.attributes.ctime) = (entry.size, entry.time, entry.time);
        if entry.dedupe == dedupe::NEEDED {
            state.needed.fetch_add(1, Ordering::Relaxed);
            self.queue_entry(inode, position, entry);
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
        let (entries, kept) = entries_of(inode, state, remap, claims.dedupe);
        let xattrs = remap.xattrs();
        let of_xattrs = encode_each(inode, xattrs);
        let of_extents = entries.iter().map(IntoBytes::as_bytes);
        let lines: SmallVec<[&[u8]; 2]> = of_extents.chain(of_xattrs.iter().map(Vec::as_slice)).collect();
        let needs_no_more = kept.is_some() && claims.stores_nothing();
        let frees = remap.mapped.is_empty() || !claims.reserved.is_empty() || needs_no_more;
        let purpose = if frees { Purpose::Promised } else { Purpose::Log };
        let (mut staged, positions) = self.stage_lines(inode, state, &lines, kept, purpose, &mut claims.tx.flight)?;
        let (landed, named) = claims.tx.end(staged.take_named());
        let is_daemons = !L::IS_EXCLUSIVE;
        // Somebody who reads the file could clone what it still names: its entries stay until it names them no more.
        let (flight, emptied) = match is_daemons {
            true => (Flight::new(), Emptied::new()),
            false => self.clear_unshared_entries(&dropped, &claims.reserved),
        };
        let word = commit_word(inode.slot, &state.log, state.selector, named);
        self.store_commit_word(word, landed, flight, || self.forget_all(emptied));
        if is_daemons {
            self.count_holds(queued, claims);
        }
        let of_xattrs = positions[entries.len()..].iter().zip(xattrs);
        let entries: SmallVec<[Logged; 2]> = positions.iter().copied().zip(entries.iter().copied()).collect();
        locked.exclusively(|state| {
            staged.install(state);
            let before = state.mapped_bytes();
            for (position, entry) in &entries {
                // What the daemon publishes is complete once it is counted.
                let entry = if is_daemons { entry.flagged(dedupe::COMPLETE) } else { *entry };
                let applied = state.apply(*position, &LogEntry::Extent(entry), kept.is_none());
                applied.expect("the inode is a regular file");
                if entry.dedupe == dedupe::NEEDED {
                    self.queue_entry(inode, *position, &entry);
                }
            }
            for (position, entry) in of_xattrs {
                state.apply(*position, entry, false).expect("every inode may have extended attributes");
            }
            self.installed(inode, state, before, &dropped);
        });
        if is_daemons {
            self.complete(locked.state(), queued, &entries);
        }
        Ok(claims.published(inode.ino, &dropped))
    }

    /// The change is in DRAM.
    fn installed(&self, inode: &Inode, state: &mut State, mapped_before: u64, dropped: &[BlockRun]) {
        state.drops += u64::from(!dropped.is_empty());
        self.account_mapped(inode.ino, mapped_before, state.mapped_bytes());
    }

    /// What a change drops, with the references that splitting an extent needs already taken.
    fn plan(&self, state: &State, remap: &Remap<'_>, claims: &mut Claims<'_>) -> Result<Runs> {
        let extents = self.file_extents(state, "change")?;
        let mut dropped = Runs::new();
        for range in remap.ranges {
            let plan = extents.plan(range.start, range.end);
            for block in &plan.split {
                claims.share(*block)?;
            }
            match dropped.is_empty() {
                true => dropped = plan.dropped,
                false => dropped.extend(plan.dropped),
            }
        }
        Ok(dropped)
    }

    /// Two writers that store equal blocks at the same time do not see one another. The second to publish does: it
    /// shares the block of the first in a commit of its own, and lets its own block go. One that cannot is kept.
    fn merge_concurrent(&self, inode: &Inode, state: &mut State, stored: Concurrent, policy: &dyn Dedup) {
        for (block, fingerprint) in stored {
            if !self.share_instead(inode, state, block, fingerprint, policy).unwrap_or(false)
                && let Some(weak) = fingerprint.weak
            {
                self.chunks.index.insert(weak, block);
            }
        }
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
        let offsets: SmallVec<[u64; 1]> =
            naming.map(|(offset, extent)| offset + (block.address() - extent.address)).collect();
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

/// The log entries of a change, and the attributes that a line behind them keeps as they are.
fn entries_of(
    inode: &Inode,
    state: &State,
    remap: &Remap<'_>,
    flag: u8,
) -> (SmallVec<[ExtentEntry; 2]>, Option<AttributeLine>) {
    // An entry sets the time of change of the inode too; a line of attributes behind it says what stays.
    let (time, size, kept) = match remap.stamp {
        Stamp::Changed(time, size) => (time, size, None),
        Stamp::Given(attributes, _) => (attributes.mtime, attributes.size, Some(*attributes)),
        Stamp::Kept => (state.attributes.mtime, state.attributes.size, Some(state.attributes)),
    };
    let holes = remap.ranges.iter().filter(|_| remap.has_holes);
    let unmaps = holes.map(|range| ExtentEntry::unmap(range.start, range.end - range.start, time, size));
    let writes = remap.mapped.iter().map(|(offset, extent)| {
        let flag = if extent.unwritten { dedupe::NONE } else { flag };
        ExtentEntry::write(*offset, extent.length, extent.address, extent.unwritten, time, size).flagged(flag)
    });
    (unmaps.chain(writes).map(|entry| entry.sealed(inode.ino)).collect(), kept)
}
