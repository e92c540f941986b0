//! Publishing: the only sequence by which a file's extents change. Write, truncate, clone, dedup, undedup and the
//! dedup daemon all go through [`Store::publish`]. Only the overwrite of one whole block that nobody shares has a
//! shorter form of it ([`super::overwrite`]).
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
//! Nothing that is staged can be reached before the commit word is stored. Until then, dropping the [`Claims`] undoes
//! all of it.
//!
//! **The fast path.** Most changes are one extent whose log entry fits in the last part of the log and that splits
//! extents only at block boundaries. Such a change cannot fail, so no plan is made, and DRAM is updated while the
//! data is still being flushed. The inode's lock keeps readers out until the commit word is fenced.
//!
//! **The daemon** holds the inode's lock upgradable, so that readers never wait for its fences. It takes the lock
//! exclusively only while it changes DRAM ([`Locked`]). A reader may clone blocks that the file still maps; therefore
//! the daemon empties the chunk entries of the blocks it gives up only after that change. Between commit word and
//! install, it turns its update counts into reference counts (DeNOVA IV-D, step 6), so that a block a reader clones
//! from DRAM is already counted.

use super::Store;
use super::claims::{Claims, Concurrent};
use super::commit::commit_word;
use super::entries::{encode_each, entries_of};
use super::limits::Charge;
use super::locked::Locked;
use super::placer::Placer;
use super::queued::Logged;
use super::release::EmptiedEntries;
use super::remap::{Mapped, Remap, Stamp, block_extent};
use crate::dedup::{Piece, Place};
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::inode::extents::{Dropped, Extent};
use crate::inode::log::check_blocks;
use crate::inode::{Body, Changing, Inode, State};
use crate::media::log_entry::{ExtentEntry, LogEntry, dedupe};
use crate::media::superblock::VECTOR_ENTRIES;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location, PackedNumber};
use crate::panics::Moment;
use crate::space::Purpose;
use pmem::Flight;
use smallvec::SmallVec;
use zerocopy::IntoBytes;

impl Store {
    /// Publishes a change, then releases the references of the extents that it replaced. `queued` is the work-queue
    /// entry that is finished with this change, if there is one.
    ///
    /// # Errors
    /// EMLINK if a split would need more references than can be counted, ENOSPC if the log cannot grow, EDQUOT, EIO for
    /// damage and bad memory, and for a change that could not be read back or that changes content which it only moves.
    /// Nothing is published then.
    pub(crate) fn publish<L: Locked>(
        &self,
        inode: &Inode,
        mut locked: L,
        remap: &Remap<'_>,
        queued: Option<Logged>,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        self.check_entries(claims.transaction())?;
        self.check_rewrite(inode, locked.state(), remap)?;
        let charge = self.charge_growth(locked.state(), remap)?;
        let charged = charge.as_ref().map_or(0, Charge::bytes);
        let concurrent = match self.simple_entry::<L>(inode, locked.state(), remap, claims) {
            Some(entry) => locked.exclusively(|state| self.publish_one(inode, state, remap, &entry, charged, claims)),
            None => self.publish_all(inode, &mut locked, remap, queued, charged, claims)?,
        };
        charge.into_iter().for_each(Charge::keep);
        if !concurrent.is_empty() {
            locked.exclusively(|state| self.merge_concurrent(inode, state, remap.mapped, &concurrent, claims.policy()));
        }
        if self.is_worth_compacting(inode, locked.state()) {
            locked.exclusively(|state| self.compact_if_worth_it(inode, state));
        }
        Ok(())
    }

    /// Returns the log entry of a change that can take the fast path, or `None`.
    fn simple_entry<L: Locked>(
        &self,
        inode: &Inode,
        state: &State,
        remap: &Remap<'_>,
        claims: &Claims<'_>,
    ) -> Option<ExtentEntry> {
        let (&[(offset, extent)], Stamp::Changed(time, size) | Stamp::Moved(time, size)) = (remap.mapped, remap.stamp)
        else {
            return None;
        };
        let is_simple = L::IS_EXCLUSIVE && !remap.has_holes && !extent.unwritten;
        let is_all = matches!(remap.ranges, [range] if *range == (offset..offset + extent.length));
        if !is_simple
            || !is_all
            || !self.has_room_for_one_entry(inode, state)
            || !state.extents()?.are_exchanged_whole(offset, &extent)
        {
            return None;
        }
        if check_blocks(&self.geometry, offset, extent.length, extent.media_address()?, size).is_err() {
            // The other path refuses it.
            return None;
        }
        let entry = ExtentEntry::write(offset, extent.length, extent.location, false, time, size);
        Some(entry.flagged(claims.dedupe()).sealed(inode.ino))
    }

    /// Publishes one extent by the fast path.
    fn publish_one(
        &self,
        inode: &Inode,
        state: &mut State,
        remap: &Remap<'_>,
        entry: &ExtentEntry,
        charged: u64,
        claims: &mut Claims<'_>,
    ) -> Concurrent {
        self.keep_replaced(inode, state, remap, claims.transaction());
        let changing = Changing::begin(inode, &self.panics);
        let position = state.log.tail;
        let line = self.region.write(position, entry).flush();
        let before = state.mapped_bytes();
        let mut dropped = Dropped::default();
        let Body::File(extents) = &mut state.body else { unreachable!("the caller looked at its extents") };
        let extent = Extent { length: entry.length, location: entry.location(), unwritten: false };
        extents.exchange(entry.file_offset, extent, &mut dropped);
        state.drops += u64::from(!dropped.is_empty());
        let later = self.split_later(&mut dropped, remap, claims);
        let (landed, line) = claims.transaction().end(line);
        let mut emptied = EmptiedEntries::new();
        let flight = self.clear_unshared_entries(&dropped.blocks, claims.reserved(), &mut emptied);
        self.commit_line(inode, state, line, landed, flight, || self.forget_all(&emptied));
        (state.attributes.size, state.attributes.mtime, state.attributes.ctime) = (entry.size, entry.time, entry.time);
        if entry.dedupe == dedupe::NEEDED {
            state.add_waiting(entry.file_offset, entry.length);
            self.queue_entry(inode, position, &entry.written().expect("it is a write entry"));
        }
        self.installed(inode, state, before, charged);
        changing.done();
        later.into_iter().for_each(|later| self.postpone(later));
        claims.published(inode.ino, &dropped)
    }

    fn publish_all<L: Locked>(
        &self,
        inode: &Inode,
        locked: &mut L,
        remap: &Remap<'_>,
        queued: Option<Logged>,
        charged: u64,
        claims: &mut Claims<'_>,
    ) -> Result<Concurrent> {
        let state = locked.state();
        let mut dropped = self.plan(state, remap, claims)?;
        let drops = !dropped.is_empty();
        // The daemon changes little at once.
        let later = if L::IS_EXCLUSIVE { self.split_later(&mut dropped, remap, claims) } else { None };
        let (mut entries, kept) = entries_of(inode, state, remap, claims.dedupe());
        if entries.iter().any(|entry| matches!(entry, LogEntry::Vector(_))) {
            self.require_feature(VECTOR_ENTRIES)?;
        }
        let xattrs = remap.xattrs();
        let of_xattrs = encode_each(inode, xattrs);
        let of_extents = entries.iter().map(|entry| match entry {
            LogEntry::Extent(extent) => (entry, extent.as_bytes()),
            LogEntry::Vector(vector) => (entry, vector.as_bytes()),
            _ => unreachable!("`entries_of` makes no others"),
        });
        let of_others = xattrs.iter().zip(of_xattrs.iter().map(Vec::as_slice));
        let lines: SmallVec<[(&LogEntry, &[u8]); 2]> = of_extents.chain(of_others).collect();
        let is_content = matches!(remap.stamp, Stamp::Untimed(_));
        let needs_no_more = kept.is_some() && !is_content && claims.stores_nothing();
        let fills_reserved = !claims.reserved().is_empty() && claims.grown_bytes() == 0;
        let frees = remap.mapped.is_empty() || fills_reserved || needs_no_more;
        let purpose = if frees { Purpose::Promised } else { Purpose::Log };
        let (mut staged, positions) = self.stage_lines(inode, state, &lines, kept, purpose, claims.flight())?;
        drop(lines);
        self.keep_replaced(inode, state, remap, claims.transaction());
        let (landed, named) = claims.transaction().end(staged.take_named());
        let is_daemons = !L::IS_EXCLUSIVE;
        // A reader could still clone a block that the file maps, so the daemon empties chunk entries only after
        // install.
        let mut emptied = EmptiedEntries::new();
        let flight = match is_daemons {
            true => Flight::new(),
            false => self.clear_unshared_entries(&dropped.blocks, claims.reserved(), &mut emptied),
        };
        let word = commit_word(inode.slot, &state.log, state.selector, named);
        self.panics.may_panic(Moment::Staged);
        let changing = Changing::begin(inode, &self.panics);
        self.store_commit_word(word, landed, flight, || self.forget_all(&emptied));
        self.panics.may_panic(Moment::Committed);
        if is_daemons {
            self.count_holds(queued, claims);
        }
        let of_xattrs = positions[entries.len()..].iter().zip(xattrs);
        let written = |(position, entry): (&u64, &LogEntry)| Some((*position, entry.written()?));
        let logged: SmallVec<[Logged; 2]> = positions.iter().zip(&entries).filter_map(written).collect();
        if is_daemons {
            // Whatever the daemon publishes is complete as soon as its references are counted.
            entries.iter_mut().for_each(|entry| entry.flag(dedupe::COMPLETE));
        }
        locked.exclusively(|state| {
            // Here it is dropped before the lock, even in a panic.
            let changing = changing;
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
            state.drops += u64::from(drops);
            self.installed(inode, state, before, charged);
            changing.done();
        });
        if is_daemons {
            self.complete(locked.state(), queued, &logged);
        }
        later.into_iter().for_each(|later| self.postpone(later));
        Ok(claims.published(inode.ino, &dropped))
    }

    /// Splits off what a change drops and releases later: none where reserved blocks are filled, because they are kept.
    #[inline]
    fn split_later(&self, dropped: &mut Dropped, remap: &Remap<'_>, claims: &Claims<'_>) -> Option<Dropped> {
        match claims.reserved().is_empty() {
            true => self.split_postponed(dropped, remap.stamp.keeps_content()),
            false => None,
        }
    }

    /// Does the accounting after a change was installed in DRAM. `charged` of the bytes that it added are counted already.
    fn installed(&self, inode: &Inode, state: &State, before: u64, charged: u64) {
        self.account_mapped(inode.ino, state.attributes.tree, (before, state.mapped_bytes()), charged);
    }

    /// Plans a change: takes the references that splitting an extent needs, and returns the references that the
    /// change drops.
    fn plan(&self, state: &State, remap: &Remap<'_>, claims: &mut Claims<'_>) -> Result<Dropped> {
        let extents = self.file_extents(state, "change")?;
        let mut dropped = Dropped::default();
        for ranges in remap.ranges.chunk_by(|range, next| range.end == next.start) {
            let plan = extents.plan(ranges[0].start, ranges[ranges.len() - 1].end, remap.mapped);
            self.may_be_dead.add(plan.may_be_dead.saturating_sub(claims.grown_bytes()));
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

    /// Resolves concurrent duplicates. Two writers that store equal chunks at the same time do not see each other;
    /// the one that publishes second does. It shares the other's chunk in a second commit and gives up its own. A
    /// chunk for which that fails is kept and indexed. `mapped` holds the extents that were published, `stored` the
    /// new chunks.
    pub(super) fn merge_concurrent(
        &self,
        inode: &Inode,
        state: &mut State,
        mapped: &[(u64, Extent)],
        stored: &[(ChunkRef, Fingerprint)],
        policy: Placer<'_>,
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

    /// Replaces new packed chunks of a file by equal ones that are already stored, where there are any. `run` has no
    /// gaps. Returns the chunks that the file gave up.
    fn share_packed_instead(
        &self,
        inode: &Inode,
        state: &mut State,
        run: &[(u64, Extent)],
        fingerprints: &[Fingerprint],
        policy: Placer<'_>,
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
                Place::Store | Place::Duplicate(_) => None,
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
            let stamp = Stamp::moved(state);
            self.publish(inode, &mut *state, &Remap::new(&range, &mapped, stamp), None, &mut claims)?;
        }
        Ok(given_up)
    }

    /// Replaces the new `block` of a file by an equal one that is already stored. Returns false if there is none.
    fn share_instead(
        &self,
        inode: &Inode,
        state: &mut State,
        block: BlockNumber,
        fingerprint: Fingerprint,
        policy: Placer<'_>,
    ) -> Result<bool> {
        let extents = self.file_extents(state, "write")?.iter();
        let naming = extents.filter(|(_, extent)| extent.blocks().contains(block));
        let of_block = |(offset, extent): (u64, Extent)| Some(offset + (block.address() - extent.media_address()?));
        let offsets: SmallVec<[u64; 1]> = naming.filter_map(of_block).collect();
        let stamp = Stamp::moved(state);
        for offset in offsets {
            let mut claims = Claims::with_policy(self, policy);
            let bytes: [u8; BLOCK_BYTES as usize] = self.region.read(block.address());
            let mut own = [Piece::new(&bytes, fingerprint)];
            claims.place(&mut own);
            let [Piece { place: Place::Shared(other), .. }] = own else { return Ok(false) };
            let mapped = [(offset, block_extent(claims.keep(other)))];
            let range = offset..offset + BLOCK_BYTES;
            self.publish(inode, &mut *state, &Remap::new(&range, &mapped, stamp), None, &mut claims)?;
        }
        Ok(true)
    }
}
