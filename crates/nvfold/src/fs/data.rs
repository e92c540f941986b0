//! Bytes: reading, writing, and everything else that changes what a file range names.
//!
//! A write goes through five steps, and each does one thing:
//!
//! ```text
//! 1 fingerprint  the whole blocks, before any lock
//! 2 patch        the first and last block, if they are written in part, with what the file holds
//! 3 place        each block: shared (its count is raised) or new (allocated, streamed, entered in the table); the dedup
//!                transaction begins with the first entry that changes
//! 4 publish      write entries beyond the tail; end of the transaction: fence; the commit word, and null_entry of what
//!                it replaces; fence
//! 5 release      the references that the old extents held with others
//! ```
//!
//! Until step 4 nothing can be reached, and [`Claims`] undoes all of it when a step fails. Blocks that an
//! extent names are never written (invariant 5); reserved blocks are, for their bytes mean nothing yet.

use super::Core;
use super::commit::commit_word;
use super::inode::{Body, FILE_BYTES_MAX, Inode, State};
use crate::chunk::recount::Recount;
use crate::chunk::transaction::Transaction;
use crate::chunk::{Released, Unshareable};
use crate::dedup::{Dedup, Filling, Place};
use crate::error::{Error, Result, errno};
use crate::file::{Extent, Extents, Plan};
use crate::fingerprint::Fingerprint;
use crate::media::log_entry::{ExtentEntry, LogEntry, dedupe};
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::{BlockRun, Purpose, Runs};
use crate::sync::atomic::Ordering;
use crate::types::{AllocateMode, TimeNs, Whence};
use hashbrown::HashMap;
use pmem::Flight;
use smallvec::SmallVec;
use std::ops::Range;

const BLOCK: usize = BLOCK_BYTES as usize;

pub(super) type Pieces = SmallVec<[(u64, Extent); 1]>;

/// What an operation has taken and nobody can reach yet. Dropped before `commit`, it gives all of it back.
pub(super) struct Claims<'a> {
    core: &'a Core,
    /// Decides on new data.
    policy: &'a dyn Dedup,
    /// Reserved blocks of the file that now get their content.
    reserved: SmallVec<[BlockNumber; 1]>,
    pub(super) fresh: Runs,
    pub(super) shared: SmallVec<[BlockNumber; 1]>,
    /// Blocks with new chunk entries: block, count, fingerprint.
    entered: SmallVec<[(BlockNumber, u32, Fingerprint); 1]>,
    /// The dedup transaction, with everything that was flushed meanwhile.
    pub(super) tx: Transaction<'a>,
    /// Whether something was stored without a fingerprint.
    lacks_fingerprints: bool,
    /// Dedupe-flag of the log entries that publish it.
    dedupe: u8,
}

fn runs_of(blocks: &[BlockNumber]) -> Runs {
    blocks.iter().map(|start| BlockRun { start: *start, count: 1 }).collect()
}

impl<'a> Claims<'a> {
    /// Of an operation that stores no data of its own.
    pub(super) fn new(core: &'a Core) -> Claims<'a> {
        Claims::with_policy(core, core.policies.of(None))
    }

    fn with_policy(core: &'a Core, policy: &'a dyn Dedup) -> Claims<'a> {
        Claims {
            core,
            policy,
            reserved: SmallVec::new(),
            fresh: Runs::new(),
            shared: SmallVec::new(),
            entered: SmallVec::new(),
            tx: core.chunks.begin(),
            lacks_fingerprints: false,
            dedupe: dedupe::NONE,
        }
    }

    fn share(&mut self, block: BlockNumber) -> Result<()> {
        let refused = |refused| match refused {
            Unshareable::Saturated => Error::Posix {
                doing: "share a block",
                why: "it has as many references as can be counted",
                errno: errno::EMLINK,
            },
            Unshareable::Bad(error) => Error::Device(error),
        };
        self.tx.share(block).map_err(refused)?;
        self.shared.push(block);
        Ok(())
    }

    fn share_run(&mut self, run: BlockRun) -> Result<()> {
        run.blocks().try_for_each(|block| self.share(block))
    }

    /// Everything is reachable: others may find the new blocks, and `old` lost the references it had. Returns the new
    /// blocks that another writer may have stored first.
    fn commit(&mut self, ino: u64, old: &[BlockRun]) -> Twins {
        let core = self.core;
        if core.is_walked(ino) {
            core.chunks.with_recount(|recount| self.recount(recount, old));
        }
        let policy = self.policy;
        let entered = self.entered.iter().map(|(block, _, fingerprint)| (*block, *fingerprint));
        let known = &self.tx.let_go;
        let is_twin = |(block, of): &(BlockNumber, Fingerprint)| !policy.committed(*block, of, known, &core.chunks);
        let twins = entered.filter(is_twin).collect();
        let fresh: u64 = self.fresh.iter().map(|run| run.count).sum();
        self.reserved.sort_unstable();
        core.release(old, &self.reserved, fresh);
        self.entered.clear();
        self.shared.clear();
        self.fresh.clear();
        twins
    }
}

impl Claims<'_> {
    /// The extents of a walked inode name what was claimed, and no longer `old`.
    fn recount(&self, recount: &Recount, old: &[BlockRun]) {
        let fresh = self.fresh.iter().flat_map(|run| run.blocks());
        fresh.chain(self.shared.iter().copied()).for_each(|block| recount.count(block, false));
        for block in &self.reserved {
            recount.count(*block, false);
            recount.written(*block);
        }
        for (block, count, _) in &self.entered {
            (1..*count).for_each(|_| recount.count(*block, false));
        }
        old.iter().flat_map(|run| run.blocks()).for_each(|block| recount.uncount(block));
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        if !self.tx.let_go.is_empty() {
            self.core.release(&runs_of(&self.tx.let_go), &[], 0);
        }
        if self.shared.is_empty() && self.entered.is_empty() && self.fresh.is_empty() {
            return;
        }
        // Not committed. What was shared may have lost all its other references meanwhile.
        self.core.release(&runs_of(&self.shared), &[], 0);
        let mut flight = Flight::new();
        for (block, count, _) in &self.entered {
            for _ in 0..*count {
                self.core.chunks.release(*block, &mut flight);
            }
        }
        let _ = self.core.region.fence(flight);
        self.fresh.iter().for_each(|run| self.core.free(*run));
    }
}

/// Blocks whose entries were emptied and that the index still has.
type Nulled = SmallVec<[BlockNumber; 1]>;

/// New blocks, with their fingerprints, that another writer may have stored and published at the same time.
type Twins = SmallVec<[(BlockNumber, Fingerprint); 0]>;

/// Fingerprints of the whole blocks of a write, made before the inode is locked.
type Fingerprints = SmallVec<[Fingerprint; 1]>;

/// What a change of extents does to times and size.
#[derive(Clone, Copy)]
pub(super) enum Stamp {
    /// The content changed: when, and the size after it.
    Changed(TimeNs, u64),
    /// The same content lies elsewhere: nothing that anybody can see.
    Kept,
}

/// The fingerprints that a policy wants before the inode is locked.
fn fingerprint_whole_blocks(policy: &dyn Dedup, offset: u64, data: &[u8], of: &mut Fingerprints) -> Result<()> {
    range_end("write", offset, data.len() as u64)?;
    of.clear();
    let (first, end) = whole_blocks(offset, data.len() as u64);
    if policy.stores_everything() || first == end {
        return Ok(());
    }
    let whole = &data[(first - offset) as usize..(end - offset) as usize];
    of.extend(whole.chunks_exact(BLOCK).map(|block| policy.fingerprint(block)));
    Ok(())
}

/// The whole blocks inside `offset..offset + length`, as offsets.
fn whole_blocks(offset: u64, length: u64) -> (u64, u64) {
    let first = offset.next_multiple_of(BLOCK_BYTES);
    let end = (offset + length) / BLOCK_BYTES * BLOCK_BYTES;
    if first < end { (first, end) } else { (first, first) }
}

impl Core {
    pub(super) fn read(&self, inode: &Inode, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let state = inode.state.read();
        let extents = self.file_extents(&state, "read")?;
        let length = state.attributes.size.saturating_sub(offset).min(buffer.len() as u64);
        self.read_extents(extents, offset, &mut buffer[..length as usize]);
        Ok(length as usize)
    }

    pub(super) fn write(&self, inode: &Inode, at: Option<u64>, data: &[u8]) -> Result<u64> {
        // An append does not know its offset yet; a guess that turns out wrong only costs the hashing again.
        let guess = at.unwrap_or_else(|| inode.state.read().attributes.size);
        let policy = self.policies.of(inode.own_policy());
        let mut fingerprints = Fingerprints::new();
        fingerprint_whole_blocks(policy, guess, data, &mut fingerprints)?;
        let mut state = inode.state.write();
        self.file_extents(&state, "write")?;
        let offset = at.unwrap_or(state.attributes.size);
        if offset != guess {
            fingerprint_whole_blocks(policy, offset, data, &mut fingerprints)?;
        }
        if !data.is_empty() {
            let claims = Claims::with_policy(self, policy);
            self.write_locked(inode, &mut state, offset, data, &mut fingerprints, claims)?;
        }
        drop(state);
        self.end_sampling_period();
        Ok(offset)
    }

    fn write_locked(
        &self,
        inode: &Inode,
        state: &mut State,
        offset: u64,
        data: &[u8],
        fingerprints: &mut [Fingerprint],
        mut claims: Claims<'_>,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        let mut pieces = Pieces::new();
        let extents = self.file_extents(state, "write")?;
        let (first, last) = whole_blocks(offset, data.len() as u64);
        let (range_start, range_end) = (offset / BLOCK_BYTES * BLOCK_BYTES, end.next_multiple_of(BLOCK_BYTES));
        if range_start < first {
            let part = &data[..(first.min(end) - offset) as usize];
            self.place_patched(extents, offset, part, &mut pieces, &mut claims)?;
        }
        if first < last {
            let whole = &data[(first - offset) as usize..(last - offset) as usize];
            self.place(extents, first, whole, fingerprints, &mut pieces, &mut claims)?;
        }
        if last < end {
            let part = &data[(last - offset) as usize..];
            self.place_patched(extents, last, part, &mut pieces, &mut claims)?;
        }
        let stamp = (self.now(), state.attributes.size.max(end));
        if claims.lacks_fingerprints {
            match claims.policy.filling() {
                Filling::Never => {}
                Filling::Later | Filling::Now => self.fill.note(inode),
                Filling::Queued => claims.dedupe = dedupe::NEEDED,
            }
        }
        if let [(offset, extent)] = &pieces[..]
            && self.has_room_for_one_entry(inode, state)
            && extents.splits_only_between_blocks()
        {
            let entry = ExtentEntry::write(*offset, extent.length, extent.address, false, stamp.0, stamp.1);
            let entry = entry.flagged(claims.dedupe).sealed(inode.ino);
            self.publish_extent(inode, state, &entry, *extent, &mut claims);
            return Ok(());
        }
        let stamp = Stamp::Changed(stamp.0, stamp.1);
        self.replace(inode, state, range_start..range_end, &pieces, false, stamp, claims)
    }

    /// Places a block of which `part`, at file offset `offset`, is new and the rest is as the file has it.
    fn place_patched(
        &self,
        extents: &Extents,
        offset: u64,
        part: &[u8],
        pieces: &mut Pieces,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let mut block = [0; BLOCK];
        let start = offset / BLOCK_BYTES * BLOCK_BYTES;
        self.read_extents(extents, start, &mut block);
        // Zeros that stand for what cannot be read must not become content.
        self.region.check()?;
        let at = (offset - start) as usize;
        block[at..at + part.len()].copy_from_slice(part);
        let policy = claims.policy;
        let none = policy.stores_everything();
        let mut fingerprint = if none { Fingerprint::default() } else { policy.fingerprint(&block) };
        self.place(extents, start, &block, std::slice::from_mut(&mut fingerprint), pieces, claims)
    }

    /// Decides for each block of `source` whether to share or store it, stores what is new, and adds what
    /// the file range at `offset` will name to `pieces`.
    #[allow(clippy::too_many_arguments)]
    fn place(
        &self,
        extents: &Extents,
        offset: u64,
        source: &[u8],
        fingerprints: &mut [Fingerprint],
        pieces: &mut Pieces,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let policy = claims.policy;
        let blocks = source.len() / BLOCK;
        let nothing_to_find = policy.stores_everything() || blocks > 1 && fingerprints.iter().all(|of| of.is_empty());
        if nothing_to_find && !extents.has_unwritten() {
            return self.store_run(offset, source, pieces, claims);
        }
        let mut no_fingerprint = Fingerprint::default();
        if blocks == 1 {
            let fingerprint = fingerprints.first_mut().unwrap_or(&mut no_fingerprint);
            let block = match policy.place(source, fingerprint, &mut claims.tx) {
                Place::Shared(block) => {
                    claims.shared.push(block);
                    block
                }
                Place::New => self.store_one(extents, offset, source, fingerprint, claims)?,
            };
            push_piece(pieces, offset, Extent { length: BLOCK_BYTES, address: block.address(), unwritten: false });
            return Ok(());
        }
        let mut fresh: SmallVec<[Fresh; 1]> = SmallVec::new();
        let mut decisions: SmallVec<[Decision; 1]> = SmallVec::with_capacity(blocks);
        let mut seen: HashMap<u32, usize> = HashMap::new();
        for (at, piece) in source.chunks_exact(BLOCK).enumerate() {
            let fingerprint = fingerprints.get_mut(at).unwrap_or(&mut no_fingerprint);
            let twin = fingerprint.weak.and_then(|weak| seen.get(&weak).copied());
            if let Some(twin) = twin.filter(|twin| block_of(source, fresh[*twin].at) == piece) {
                policy.found_twin();
                fresh[twin].count += 1;
                decisions.push(Decision::Twin(twin));
                continue;
            }
            match policy.place(piece, fingerprint, &mut claims.tx) {
                Place::Shared(block) => {
                    claims.shared.push(block);
                    decisions.push(Decision::Shared(block));
                }
                Place::New => {
                    if let Some(weak) = fingerprint.weak {
                        seen.insert(weak, fresh.len());
                    }
                    decisions.push(Decision::Twin(fresh.len()));
                    let block = self.reserved_place(extents, offset + (at * BLOCK) as u64);
                    fresh.push(Fresh { at, fingerprint: *fingerprint, count: 1, block });
                }
            }
        }
        self.store_fresh(source, &mut fresh, claims)?;
        for (at, decision) in decisions.iter().enumerate() {
            let block = match decision {
                Decision::Shared(block) => *block,
                Decision::Twin(twin) => fresh[*twin].block.expect("store_fresh gave every new piece a block"),
            };
            let extent = Extent { length: BLOCK_BYTES, address: block.address(), unwritten: false };
            push_piece(pieces, offset + (at * BLOCK) as u64, extent);
        }
        Ok(())
    }

    /// Stores all of `source` in new blocks: the whole of policy `off`.
    fn store_run(&self, offset: u64, source: &[u8], pieces: &mut Pieces, claims: &mut Claims<'_>) -> Result<()> {
        let first = claims.fresh.len();
        claims.lacks_fingerprints = true;
        self.space.allocate("write", source.len() as u64 / BLOCK_BYTES, Purpose::Data, &mut claims.fresh)?;
        let mut at = 0;
        for run in &claims.fresh[first..] {
            let length = run.count * BLOCK_BYTES;
            let part = &source[at as usize..(at + length) as usize];
            claims.tx.flight.add(self.region.stream(run.start.address(), part));
            push_piece(pieces, offset + at, Extent { length, address: run.start.address(), unwritten: false });
            at += length;
        }
        Ok(())
    }

    /// The block that is reserved for a whole block of the file. One that is counted is not the file's alone (an
    /// extent was damaged, or split) and is never written.
    fn reserved_place(&self, extents: &Extents, offset: u64) -> Option<BlockNumber> {
        if !extents.has_unwritten() {
            return None;
        }
        let block = BlockNumber::containing(extents.reserved_block(offset)?);
        let is_sound = self.region.is_sound(block.address(), BLOCK_BYTES);
        (is_sound && !self.chunks.has_entry(block)).then_some(block)
    }

    /// Stores one new block, in its reserved place if the file has one.
    fn store_one(
        &self,
        extents: &Extents,
        offset: u64,
        source: &[u8],
        fingerprint: &Fingerprint,
        claims: &mut Claims<'_>,
    ) -> Result<BlockNumber> {
        let block = match self.reserved_place(extents, offset) {
            Some(block) => {
                claims.reserved.push(block);
                block
            }
            None => {
                self.space.allocate("write", 1, Purpose::Data, &mut claims.fresh)?;
                claims.fresh[claims.fresh.len() - 1].start
            }
        };
        // The entry first: an atomic operation behind the stream would wait until it has drained.
        if !fingerprint.is_empty() {
            claims.tx.add(block, 1, fingerprint);
            claims.entered.push((block, 1, *fingerprint));
        }
        claims.lacks_fingerprints |= fingerprint.weak.is_none();
        claims.tx.flight.add(self.region.stream(block.address(), source));
        Ok(block)
    }

    /// Gives every new piece a block, streams it there, and enters it in the chunk table if it can be found
    /// or is named more than once.
    fn store_fresh(&self, source: &[u8], fresh: &mut [Fresh], claims: &mut Claims<'_>) -> Result<()> {
        let missing = fresh.iter().filter(|piece| piece.block.is_none()).count() as u64;
        let first = claims.fresh.len();
        if missing > 0 {
            self.space.allocate("write", missing, Purpose::Data, &mut claims.fresh)?;
        }
        let mut blocks = claims.fresh[first..].iter().copied();
        let mut run: Option<BlockRun> = None;
        for piece in fresh.iter_mut() {
            match piece.block {
                Some(block) => claims.reserved.push(block),
                None => {
                    let current = match run.take().filter(|run| run.count > 0) {
                        Some(run) => run,
                        None => blocks.next().expect("exactly as many blocks as missing pieces"),
                    };
                    piece.block = Some(current.start);
                    run = Some(BlockRun { start: BlockNumber(current.start.0 + 1), count: current.count - 1 });
                }
            }
        }
        for piece in fresh.iter().filter(|piece| !piece.fingerprint.is_empty() || piece.count > 1) {
            let block = BlockNumber::containing(piece.address());
            claims.tx.add(block, piece.count, &piece.fingerprint);
            claims.entered.push((block, piece.count, piece.fingerprint));
        }
        claims.lacks_fingerprints |= fresh.iter().any(|piece| piece.fingerprint.weak.is_none());
        let mut at = 0;
        while at < fresh.len() {
            // Neighbours in the source that are neighbours on the media go out in one stream.
            let mut end = at + 1;
            while end < fresh.len() && fresh[end].follows(&fresh[end - 1]) {
                end += 1;
            }
            let part = &source[fresh[at].at * BLOCK..fresh[end - 1].at * BLOCK + BLOCK];
            claims.tx.flight.add(self.region.stream(fresh[at].address(), part));
            at = end;
        }
        Ok(())
    }

    /// The common case of [`Core::replace`]: whole blocks get one extent, its entry fits behind the log, and nothing
    /// is split inside a block. It cannot fail any more, so nothing is planned.
    fn publish_extent(
        &self,
        inode: &Inode,
        state: &mut State,
        entry: &ExtentEntry,
        extent: Extent,
        claims: &mut Claims<'_>,
    ) {
        let position = state.log.tail;
        let line = self.region.write(position, entry).flush();
        // DRAM follows while the streamed data drains: the lock keeps readers out until all is fenced.
        let before = state.mapped_bytes();
        let mut dropped = Runs::new();
        let Body::File(extents) = &mut state.body else { unreachable!("the caller looked at its extents") };
        extents.exchange(entry.file_offset, extent, &mut dropped);
        let (landed, line) = claims.tx.end(line);
        let (emptied, nulled) = self.null_soles(&dropped, &claims.reserved);
        let forget = || self.forget_all(nulled);
        self.commit_line(inode, state, line, landed, emptied, forget);
        (state.attributes.size, state.attributes.mtime, state.attributes.ctime) = (entry.size, entry.time, entry.time);
        state.drops += u64::from(!dropped.is_empty());
        if entry.dedupe == dedupe::NEEDED {
            state.needed.fetch_add(1, Ordering::Relaxed);
            self.queue_entry(inode, position, entry);
        }
        self.account_mapped(inode.ino, before, state.mapped_bytes());
        let twins = claims.commit(inode.ino, &dropped);
        self.let_go_of_twins(inode, state, twins, claims.policy);
        self.compact_if_worth_it(inode, state);
    }

    /// Publishes that `range` names `pieces` and nothing else, then releases what it named before.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn replace(
        &self,
        inode: &Inode,
        state: &mut State,
        range: Range<u64>,
        pieces: &[(u64, Extent)],
        unmap_first: bool,
        stamp: Stamp,
        mut claims: Claims<'_>,
    ) -> Result<()> {
        // An entry sets the time of change of the inode too; a line of attributes behind it says what stays.
        let (time, size, kept) = match stamp {
            Stamp::Changed(time, size) => (time, size, None),
            Stamp::Kept => (state.attributes.mtime, state.attributes.size, Some(state.attributes)),
        };
        let plan = self.plan_replacement(state, range.clone(), &mut claims)?;
        let unmap = unmap_first.then(|| ExtentEntry::unmap(range.start, range.end - range.start, time, size));
        let writes = pieces.iter().map(|(offset, extent)| {
            let flag = if extent.unwritten { dedupe::NONE } else { claims.dedupe };
            ExtentEntry::write(*offset, extent.length, extent.address, extent.unwritten, time, size).flagged(flag)
        });
        let entries: SmallVec<[ExtentEntry; 2]> =
            unmap.into_iter().chain(writes).map(|e| e.sealed(inode.ino)).collect();
        let lines: SmallVec<[&[u8]; 2]> = entries.iter().map(zerocopy::IntoBytes::as_bytes).collect();
        let needs_no_more = kept.is_some() && claims.fresh.is_empty();
        let freeing = pieces.is_empty() || !claims.reserved.is_empty() || needs_no_more;
        let purpose = if freeing { Purpose::Promised } else { Purpose::Log };
        let (mut staged, positions) = self.stage_lines(inode, state, &lines, kept, purpose, &mut claims.tx.flight)?;
        let (landed, named) = claims.tx.end(staged.take_named());
        let (emptied, nulled) = self.null_soles(&plan.dropped, &claims.reserved);
        let forget = || self.forget_all(nulled);
        self.publish_one(commit_word(inode.slot, &state.log, state.selector, named), landed, emptied, forget);
        staged.install(state);
        let before = state.mapped_bytes();
        for (entry, position) in entries.iter().zip(positions) {
            let newer = kept.is_none();
            state.apply(position, &LogEntry::Extent(*entry), newer).expect("the inode is a regular file");
            if entry.dedupe == dedupe::NEEDED {
                self.queue_entry(inode, position, entry);
            }
        }
        state.drops += u64::from(!plan.dropped.is_empty());
        self.account_mapped(inode.ino, before, state.mapped_bytes());
        let twins = claims.commit(inode.ino, &plan.dropped);
        self.let_go_of_twins(inode, state, twins, claims.policy);
        self.compact_if_worth_it(inode, state);
        Ok(())
    }

    /// Two writers that store equal blocks at the same time do not see one another. The second to publish does: it
    /// shares the block of the first in a commit of its own, and lets its own block go. One that cannot is kept.
    fn let_go_of_twins(&self, inode: &Inode, state: &mut State, twins: Twins, policy: &dyn Dedup) {
        for (block, fingerprint) in twins {
            if !self.share_twin(inode, state, block, fingerprint, policy).unwrap_or(false)
                && let Some(weak) = fingerprint.weak
            {
                self.chunks.index.insert(weak, block);
            }
        }
    }

    /// Makes the file name an equal block of another instead of its own new `block`. False when there is none.
    fn share_twin(
        &self,
        inode: &Inode,
        state: &mut State,
        block: BlockNumber,
        mut fingerprint: Fingerprint,
        policy: &dyn Dedup,
    ) -> Result<bool> {
        let extents = self.file_extents(state, "write")?.iter();
        let naming = extents.filter(|(_, extent)| extent.blocks().contains(block));
        let offsets: SmallVec<[u64; 1]> =
            naming.map(|(offset, extent)| offset + (block.address() - extent.address)).collect();
        let stamp = Stamp::Changed(state.attributes.mtime, state.attributes.size);
        for offset in offsets {
            let mut claims = Claims::with_policy(self, policy);
            let own = self.region.bytes(block.address(), BLOCK_BYTES);
            let placed = policy.place(own, &mut fingerprint, &mut claims.tx);
            let Place::Shared(twin) = placed else { return Ok(false) };
            claims.shared.push(twin);
            let extent = Extent { length: BLOCK_BYTES, address: twin.address(), unwritten: false };
            let range = offset..offset + BLOCK_BYTES;
            self.replace(inode, state, range, &[(offset, extent)], false, stamp, claims)?;
        }
        Ok(true)
    }

    /// What replacing a range drops, with the references that splitting an extent needs already taken.
    fn plan_replacement(&self, state: &State, range: Range<u64>, claims: &mut Claims<'_>) -> Result<Plan> {
        let plan = self.file_extents(state, "change")?.plan(range.start, range.end);
        for block in &plan.split {
            claims.share(*block)?;
        }
        Ok(plan)
    }

    /// Empties the entries of the blocks that only these runs name: to be fenced with the commit word after which they
    /// are named no more. An empty entry says that one extent names the block, so it may reach the media first; and
    /// the fence comes before anybody else can have the block. What the index has of them is forgotten while the
    /// lines are on their way.
    fn null_soles(&self, runs: &[BlockRun], kept: &[BlockNumber]) -> (Flight, Nulled) {
        let mut flight = Flight::new();
        let mut nulled = Nulled::new();
        for block in runs.iter().flat_map(|run| run.blocks()).filter(|block| !kept.contains(block)) {
            if self.chunks.null_if_sole(block, &mut flight) {
                nulled.push(block);
            }
        }
        (flight, nulled)
    }

    /// Takes blocks whose entries were emptied out of the index.
    fn forget_all(&self, nulled: Nulled) -> Flight {
        let mut flight = Flight::new();
        nulled.into_iter().for_each(|block| flight.extend(self.chunks.forget(block)));
        flight
    }

    /// Drops one reference from each block, and frees those that nobody names any more, but for `kept` (sorted).
    /// `gained`: data blocks that came into use in the same operation.
    pub(super) fn release(&self, runs: &[BlockRun], kept: &[BlockNumber], gained: u64) {
        self.release_by(runs, kept, gained, |block, flight| self.chunks.release(block, flight));
    }

    /// As [`Core::release`], of references that `drop_one` drops.
    pub(super) fn release_by(
        &self,
        runs: &[BlockRun],
        kept: &[BlockNumber],
        gained: u64,
        drop_one: impl Fn(BlockNumber, &mut Flight) -> Released,
    ) {
        let mut flight = Flight::new();
        let mut emptied = false;
        let mut lost = 0;
        let mut free = Runs::new();
        for block in runs.iter().flat_map(|run| run.blocks()) {
            if !kept.is_empty() && kept.binary_search(&block).is_ok() {
                continue;
            }
            let had_entry = self.chunks.has_entry(block);
            if drop_one(block, &mut flight) == Released::Free {
                emptied |= had_entry;
                self.policies.released(block);
                match free.last_mut() {
                    Some(last) if last.blocks_end() == block.0 => last.count += 1,
                    _ => free.push(BlockRun { start: block, count: 1 }),
                }
            } else {
                self.policies.unshared(block);
            }
        }
        if emptied {
            // An emptied entry must be durable before its block gets another user.
            let _ = self.region.fence(flight);
        }
        for run in &free {
            lost += self.free_known(*run);
        }
        if gained != lost {
            // Two's complement: a decrease is an addition too.
            self.data_blocks.fetch_add(gained.wrapping_sub(lost), Ordering::Relaxed);
        }
    }

    /// Returns blocks that nothing names any more.
    pub(super) fn free(&self, run: BlockRun) {
        self.free_known(run);
    }

    /// As `free`; how many of the blocks were known to be in use: after a crash the others are in no total until
    /// reconcile has found out about them.
    fn free_known(&self, run: BlockRun) -> u64 {
        let known = self.chunks.with_recount(|recount| recount.freed(run));
        self.space.free(run);
        known.unwrap_or(run.count)
    }

    /// Sets the size. Shrinking names nothing past it any more; growing leaves a hole.
    pub(super) fn resize(&self, inode: &Inode, state: &mut State, size: u64, time: TimeNs) -> Result<()> {
        range_end("truncate", size, 0)?;
        let extents = self.file_extents(state, "truncate")?;
        let shrinks = size < state.attributes.size;
        if shrinks && extents.within(size, u64::MAX).next().is_some() {
            let claims = Claims::new(self);
            let stamp = Stamp::Changed(time, size);
            return self.replace(inode, state, size..u64::MAX, &[], true, stamp, claims);
        }
        let attributes = crate::media::inode::AttributeLine { size, mtime: time, ctime: time, ..state.attributes };
        self.change(inode, state, &[], Some(attributes), Purpose::Promised, Flight::new())
    }

    pub(super) fn allocate(&self, inode: &Inode, offset: u64, length: u64, mode: AllocateMode) -> Result<()> {
        use AllocateMode::*;
        let end = range_end("fallocate", offset, length)?;
        if length == 0 {
            return Err(invalid("fallocate", "the length is zero"));
        }
        let mut state = inode.state.write();
        let state = &mut *state;
        self.file_extents(state, "fallocate")?;
        let size = match mode {
            Reserve | ZeroRange => state.attributes.size.max(end),
            ReserveKeepSize | ZeroRangeKeepSize | PunchHole => state.attributes.size,
        };
        let clear = matches!(mode, PunchHole | ZeroRange | ZeroRangeKeepSize);
        let reserve = mode != PunchHole;
        let mut claims = Claims::new(self);
        let mut pieces = Pieces::new();
        if reserve {
            self.reserve_holes(state, offset, end, clear, &mut pieces, &mut claims)?;
        }
        let stamp = (self.now(), size);
        if clear {
            let stamp = Stamp::Changed(stamp.0, stamp.1);
            return self.replace(inode, state, offset..end, &pieces, true, stamp, claims);
        }
        if pieces.is_empty() && size == state.attributes.size {
            return Ok(());
        }
        if pieces.is_empty() {
            let attributes =
                crate::media::inode::AttributeLine { size, mtime: stamp.0, ctime: stamp.0, ..state.attributes };
            return self.change(inode, state, &[], Some(attributes), Purpose::Log, Flight::new());
        }
        // The new extents fill holes only, so nothing is replaced and nothing released.
        self.replace(inode, state, 0..0, &pieces, false, Stamp::Changed(stamp.0, stamp.1), claims)
    }

    /// Allocates blocks for the holes of `start..end`: in whole blocks around it, or, when the range is
    /// cleared, for all whole blocks inside it.
    fn reserve_holes(
        &self,
        state: &State,
        start: u64,
        end: u64,
        cleared: bool,
        pieces: &mut Pieces,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let extents = self.file_extents(state, "fallocate")?;
        let mut holes: Vec<(u64, u64)> = Vec::new();
        if cleared {
            let (first, last) = whole_blocks(start, end - start);
            holes.push((first, last));
        } else {
            let mut at = start / BLOCK_BYTES * BLOCK_BYTES;
            let last = end.next_multiple_of(BLOCK_BYTES);
            for (offset, extent) in extents.within(at, last) {
                holes.push((at, offset / BLOCK_BYTES * BLOCK_BYTES));
                at = (offset + extent.length).next_multiple_of(BLOCK_BYTES);
            }
            holes.push((at, last));
        }
        for (from, to) in holes.into_iter().filter(|(from, to)| from < to) {
            let first = claims.fresh.len();
            self.space.allocate("fallocate", (to - from) / BLOCK_BYTES, Purpose::Data, &mut claims.fresh)?;
            let mut at = from;
            for run in &claims.fresh[first..] {
                let length = run.count * BLOCK_BYTES;
                pieces.push((at, Extent { length, address: run.start.address(), unwritten: true }));
                at += length;
            }
        }
        Ok(())
    }

    pub(super) fn seek(&self, inode: &Inode, offset: u64, whence: Whence) -> Result<u64> {
        let state = inode.state.read();
        let extents = self.file_extents(&state, "seek")?;
        let size = state.attributes.size;
        let none = Error::Posix { doing: "seek", why: "there is no data at or after the offset", errno: errno::ENXIO };
        if offset >= size {
            return Err(none);
        }
        match whence {
            Whence::Hole => Ok(extents.next_hole(offset).min(size)),
            Whence::Data => extents.next_data(offset).filter(|at| *at < size).ok_or(none),
        }
    }

    /// Makes `offset..` of `target` name the bytes that `source` names at `source_offset`.
    pub(super) fn clone_range(
        &self,
        source: &Inode,
        source_offset: u64,
        target: &Inode,
        offset: u64,
        length: u64,
    ) -> Result<u64> {
        range_end("clone", source_offset, length)?;
        range_end("clone", offset, length)?;
        if source.ino == target.ino {
            if offset < source_offset.saturating_add(length) && source_offset < offset.saturating_add(length) {
                return Err(invalid("clone", "the ranges overlap"));
            }
            let mut state = target.state.write();
            let (pieces, length) = self.clone_pieces(&state, source_offset, offset, length)?;
            return self.clone_into(target, &mut state, offset, length, &pieces);
        }
        // Files are locked in the order of their numbers.
        let early = (source.ino < target.ino).then(|| source.state.read());
        let mut state = target.state.write();
        let source_state = early.unwrap_or_else(|| source.state.read());
        let (pieces, length) = self.clone_pieces(&source_state, source_offset, offset, length)?;
        self.clone_into(target, &mut state, offset, length, &pieces)
    }

    fn clone_pieces(&self, source: &State, source_offset: u64, offset: u64, length: u64) -> Result<(Pieces, u64)> {
        let extents = self.file_extents(source, "clone")?;
        let length = source.attributes.size.saturating_sub(source_offset).min(length);
        let within = extents.within(source_offset, source_offset + length).filter(|(_, extent)| !extent.unwritten);
        Ok((within.map(|(at, extent)| (at - source_offset + offset, extent)).collect(), length))
    }

    fn clone_into(
        &self,
        target: &Inode,
        state: &mut State,
        offset: u64,
        length: u64,
        pieces: &[(u64, Extent)],
    ) -> Result<u64> {
        self.file_extents(state, "clone")?;
        if length == 0 {
            return Ok(0);
        }
        let mut claims = Claims::new(self);
        for (_, extent) in pieces {
            claims.share_run(extent.blocks())?;
        }
        if self.policies.of(target.own_policy()).filling() == Filling::Queued
            && pieces.iter().any(|(_, extent)| self.lacks_fingerprints(extent))
        {
            // The daemon has not looked at what is cloned: it comes to both files.
            claims.dedupe = dedupe::NEEDED;
        }
        let size = state.attributes.size.max(offset + length);
        let stamp = Stamp::Changed(self.now(), size);
        self.replace(target, state, offset..offset + length, pieces, true, stamp, claims)?;
        Ok(length)
    }

    pub(super) fn read_extents(&self, extents: &Extents, offset: u64, buffer: &mut [u8]) {
        let end = offset + buffer.len() as u64;
        let mut at = offset;
        for (start, extent) in extents.within(offset, end).filter(|(_, extent)| !extent.unwritten) {
            buffer[(at - offset) as usize..(start - offset) as usize].fill(0);
            at = start + extent.length;
            self.region.read_into(extent.address, &mut buffer[(start - offset) as usize..(at - offset) as usize]);
        }
        buffer[(at - offset) as usize..].fill(0);
    }

    pub(super) fn file_extents<'s>(&self, state: &'s State, doing: &'static str) -> Result<&'s Extents> {
        match &state.body {
            _ if state.freed => Err(Error::Posix { doing, why: "the file is gone", errno: errno::ESTALE }),
            Body::File(extents) => Ok(extents),
            Body::Directory(_) => Err(Error::Posix { doing, why: "it is a directory", errno: errno::EISDIR }),
            Body::Other => Err(invalid(doing, "it is not a regular file")),
        }
    }
}

/// A piece that is stored.
struct Fresh {
    at: usize,
    fingerprint: Fingerprint,
    count: u32,
    block: Option<BlockNumber>,
}

impl Fresh {
    fn address(&self) -> u64 {
        self.block.expect("placed").address()
    }

    fn follows(&self, before: &Fresh) -> bool {
        self.at == before.at + 1 && self.address() == before.address() + BLOCK_BYTES
    }
}

/// What becomes of one block of a write.
enum Decision {
    Shared(BlockNumber),
    /// Stored as the n-th new piece, alone or with its equals.
    Twin(usize),
}

fn block_of(source: &[u8], at: usize) -> &[u8] {
    &source[at * BLOCK..(at + 1) * BLOCK]
}

pub(super) fn push_piece(pieces: &mut Pieces, offset: u64, extent: Extent) {
    if let Some((start, last)) = pieces.last_mut()
        && *start + last.length == offset
        && last.address + last.length == extent.address
    {
        last.length += extent.length;
        return;
    }
    pieces.push((offset, extent));
}

fn range_end(doing: &'static str, offset: u64, length: u64) -> Result<u64> {
    let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX);
    end.ok_or(Error::Posix { doing, why: "the range ends past the largest file size", errno: errno::EFBIG })
}

fn invalid(doing: &'static str, why: &'static str) -> Error {
    Error::Posix { doing, why, errno: errno::EINVAL }
}
