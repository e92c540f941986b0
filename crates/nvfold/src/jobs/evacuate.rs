//! Emptying segments of blocks: what is in them moves to free blocks of other segments.
//!
//! The problem: the inode table and packed chunks grow by whole free segments. After files have come and gone, much of
//! a device may be free, and no segment of it.
//!
//! The idea: the emptiest segments, for which the others have room, are closed to new blocks, and one pass over the
//! inodes moves what lies there: log pages by a compaction, values of extended attributes by storing them again, and
//! blocks of files by a copy that the file then maps, in a commit like any other (`store::publish`).
//!
//! ```text
//! closed   no cursor enters the segments                             DRAM only
//! pass     inode after inode, locked    copy, count k; commit: k extents map it, the old block loses k
//!          a block that others map too  the pass holds a reference on both, until all others have followed
//! over     a segment without a block in use is free; any other one stays as it is
//! ```
//!
//! Nothing depends on completeness. A block that the pass does not find (of an inode that cannot be read, or one that an
//! operation has not published yet) keeps its segment, and that segment is not tried again before more of it is free.
//! A crash leaves counts too high, which reconcile corrects.
//!
//! It runs only when an operation needs a segment, in steps of at most a millisecond, for as long as the operation's
//! [`Effort`] lasts.

use super::Jobs;
use super::effort::{Effort, Worked};
use crate::chunk::insertion::Insertion;
use crate::error::{Error, Offset, Result};
use crate::fingerprint::{Domain, Fingerprint};
use crate::inode::extents::{Dropped, Extent};
use crate::inode::{Inode, State};
use crate::media::log_entry::dedupe;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location, SEGMENT_BYTES};
use crate::panics::Job;
use crate::space::evacuate::Emptied;
use crate::store::claims::Claims;
use crate::store::remap::{Mapped, Remap, Stamp};
use hashbrown::HashMap;
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::ops::Range;

/// Number of extents and inodes that a step looks at.
const STEP_LOOKS: usize = 2048;

/// Number of blocks that a step copies.
const STEP_BLOCKS: u64 = 64;

/// The pass under way, and how many segments were emptied since mount.
#[derive(Default)]
pub(super) struct Evacuation {
    pass: Mutex<Option<Pass>>,
    segments: AtomicU64,
}

struct Pass {
    emptied: Emptied,
    /// The next inode, and the file offset in it.
    next: (u64, u64),
    /// The copies of blocks that other extents map, too. The pass holds a reference on both.
    copied: HashMap<BlockNumber, BlockNumber>,
}

impl Pass {
    fn leaves(&self, block: BlockNumber) -> bool {
        self.emptied.contains(&(block.address() / SEGMENT_BYTES))
    }
}

impl Evacuation {
    /// Returns the blocks on which the pass under way holds a reference. Extents may map none of their bytes.
    pub(crate) fn held(&self) -> Vec<ChunkRef> {
        let pass = self.pass.lock();
        let copied = pass.iter().flat_map(|pass| &pass.copied);
        copied.flat_map(|(old, new)| [ChunkRef::Block(*old), ChunkRef::Block(*new)]).collect()
    }
}

/// What an inode has in the segments that are being emptied.
#[derive(Default)]
struct InSegments {
    has_pages: bool,
    has_values: bool,
    /// Parts of extents, in order of their file offset. They begin and end where the extent or a block does.
    parts: Vec<(u64, Extent)>,
    /// Number of extents that were looked at.
    looks: usize,
    /// File offset to continue at.
    next: Option<u64>,
}

impl InSegments {
    fn is_nothing(&self) -> bool {
        !self.has_pages && !self.has_values && self.parts.is_empty()
    }
}

/// Where blocks were copied to.
#[derive(Default)]
struct Copies {
    /// The copy of each block.
    places: BTreeMap<BlockNumber, BlockNumber>,
    /// New copies of blocks that other extents map, too.
    held: Vec<(BlockNumber, BlockNumber)>,
    /// New copies of blocks that can be found by their fingerprints.
    found: Vec<(u32, BlockNumber)>,
}

impl Jobs<'_> {
    /// Empties segments of blocks for an operation that needs a whole one and holds no lock. Returns true if that made
    /// any free. If no effort is left, the next operation goes on with the pass.
    pub(crate) fn make_segment_of_blocks(&self, effort: &Effort) -> bool {
        // What moves would go to a free one.
        !self.space.has_whole_segment() && self.empty_segments_of_blocks(effort)
    }

    /// Does one pass, or ends the one under way. Returns true if a segment became free meanwhile.
    pub(crate) fn empty_segments_of_blocks(&self, effort: &Effort) -> bool {
        let done = || self.under_way.evacuation.segments.load(Ordering::Relaxed);
        let before = done();
        self.work_for_space(effort, || done() > before, || self.evacuate_some());
        done() > before
    }

    /// Does one step of emptying segments of blocks.
    fn evacuate_some(&self) -> Result<Worked> {
        self.contain_all(Job::Evacuate, Worked::Nothing, || self.evacuate_now())
    }

    fn evacuate_now(&self) -> Result<Worked> {
        if self.is_reconciling() {
            return Ok(Worked::Nothing);
        }
        let Some(mut at_work) = self.under_way.evacuation.pass.try_lock() else { return Ok(Worked::Waits) };
        if at_work.is_none() {
            let begun = self.space.begin_evacuating();
            *at_work = begun.map(|emptied| Pass { emptied, next: (1, 0), copied: HashMap::new() });
        }
        let Some(pass) = at_work.as_mut() else { return Ok(Worked::Nothing) };
        let walked = self.walk_some(pass);
        if matches!(walked, Ok(false)) {
            return Ok(Worked::GoesOn);
        }
        self.end_pass(&mut at_work);
        match walked {
            Ok(_) | Err(Error::NoSpace { .. }) => Ok(Worked::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Ends the pass at unmount.
    pub(crate) fn end_evacuating(&self) {
        self.end_pass(&mut self.under_way.evacuation.pass.lock());
    }

    fn end_pass(&self, at_work: &mut Option<Pass>) {
        let Some(pass) = at_work.take() else { return };
        pass.copied.into_iter().for_each(|(old, new)| self.let_go(old, new));
        let is_free = |segment: &u64| self.space.end_evacuating(*segment);
        let freed = pass.emptied.iter().filter(|segment| is_free(segment)).count() as u64;
        self.under_way.evacuation.segments.fetch_add(freed, Ordering::Relaxed);
    }

    /// Gives back the references of the pass on a block and its copy.
    fn let_go(&self, old: BlockNumber, new: BlockNumber) {
        let references: Dropped = [old, new].into_iter().map(ChunkRef::Block).collect();
        self.release(&references, &[], 0);
    }

    /// Moves out what some more inodes have in the segments. Returns true after the last inode.
    fn walk_some(&self, pass: &mut Pass) -> Result<bool> {
        let mut looks = 0;
        while looks < STEP_LOOKS {
            let (ino, from) = pass.next;
            let next = self.table.next_used(ino);
            if next >= self.table.end() {
                return Ok(true);
            }
            let from = if next == ino { from } else { 0 };
            let found =
                self.contain_at(Job::Evacuate, next, |inode| self.move_out(inode, from, STEP_LOOKS - looks, pass))?;
            // One commit is enough work for a step.
            looks += if found.is_nothing() { found.looks + 1 } else { STEP_LOOKS };
            pass.next = found.next.map_or((next + 1, 0), |from| (next, from));
        }
        Ok(false)
    }

    fn move_out(&self, inode: &Inode, from: u64, most: usize, pass: &mut Pass) -> Result<InSegments> {
        let found = find(&*inode.read()?, from, most, pass)?;
        if found.is_nothing() {
            return Ok(found);
        }
        let mut state = inode.write()?;
        let found = find(&state, from, most, pass)?;
        if found.has_pages {
            match self.compact(inode, &mut state) {
                // Its pages stay, and so does their segment.
                Err(Error::Corrupt { .. }) => {}
                compacted => compacted?,
            }
        }
        if found.has_values {
            self.store_values_again(inode, &mut state, |block| pass.leaves(block))?;
        }
        if !found.parts.is_empty() {
            self.move_parts(inode, &mut state, &found.parts, pass)?;
        }
        Ok(found)
    }

    /// Copies the blocks of these parts, and makes the file map the copies.
    fn move_parts(&self, inode: &Inode, state: &mut State, parts: &[(u64, Extent)], pass: &mut Pass) -> Result<()> {
        let policy = self.policy_for(inode).with(self.policies.of_blocks());
        let mut claims = Claims::with_policy(self, policy);
        let is_waiting = |(offset, extent): &(u64, Extent)| {
            *offset < state.waiting.end && state.waiting.start < offset + extent.length
        };
        if state.needed.load(Ordering::Relaxed) > 0 && parts.iter().any(is_waiting) {
            claims.set_dedupe(dedupe::NEEDED);
        }
        let Copies { places, held, found } = self.copy_blocks_of(parts, pass, &mut claims)?;
        let (mut mapped, mut ranges) = (Mapped::new(), Vec::new());
        for (offset, extent) in parts {
            map_copies(*offset, extent, &places, &mut mapped);
            ranges.push(*offset..offset + extent.length);
        }
        self.region.check()?;
        let remap = Remap { ranges: &ranges, mapped: &mapped, has_holes: false, stamp: Stamp::Kept };
        self.publish(inode, &mut *state, &remap, None, &mut claims)?;
        self.may_be_dead.forget(&ranges);
        self.chunks.index.insert_all(found.into_iter().map(|(weak, copy)| Insertion::always(weak, copy)));
        pass.copied.extend(held);
        for old in places.keys() {
            // The pass has the last reference.
            if self.chunks.count(*old) == 1
                && let Some(new) = pass.copied.remove(old)
            {
                self.let_go(*old, new);
            }
        }
        Ok(())
    }

    /// Copies the blocks of these parts that have no copy yet.
    fn copy_blocks_of(&self, parts: &[(u64, Extent)], pass: &Pass, claims: &mut Claims<'_>) -> Result<Copies> {
        // The number of extents that map each block, and whether it holds data.
        let mut named: BTreeMap<BlockNumber, (u32, bool)> = BTreeMap::new();
        for (_, extent) in parts {
            for block in extent.blocks().blocks() {
                let (names, is_data) = named.entry(block).or_default();
                (*names, *is_data) = (*names + 1, *is_data || !extent.unwritten);
            }
        }
        let new = named.keys().filter(|block| !pass.copied.contains_key(*block)).count() as u64;
        let runs = if new > 0 { claims.allocate("empty a segment", new)? } else { &[] };
        let fresh: Vec<BlockNumber> = runs.iter().flat_map(|run| run.blocks()).collect();
        let mut fresh = fresh.into_iter();
        let mut copies = Copies::default();
        for (old, (names, is_data)) in named {
            if let Some(copy) = pass.copied.get(&old) {
                claims.share_times(ChunkRef::Block(*copy), names)?;
                copies.places.insert(old, *copy);
                continue;
            }
            let copy = fresh.next().expect("one for each block without a copy");
            let is_shared = self.chunks.count(old) > names;
            if is_data || is_shared {
                let bytes: [u8; BLOCK_BYTES as usize] = self.region.read(old.address());
                claims.stream(copy.address(), &bytes);
            }
            if is_shared {
                claims.share(old)?;
                copies.held.push((old, copy));
            }
            let count = names + u32::from(is_shared);
            let fingerprint =
                if is_data { self.fingerprint_of(old, claims.policy().domain()) } else { Fingerprint::default() };
            if count > 1 || !fingerprint.is_empty() {
                claims.enter_copy(copy, count, &fingerprint);
            }
            copies.found.extend(fingerprint.weak.map(|weak| (weak, copy)));
            copies.places.insert(old, copy);
        }
        Ok(copies)
    }

    /// Returns the fingerprint by which a block can be found, so that its copy can be found instead.
    fn fingerprint_of(&self, block: BlockNumber, domain: Domain) -> Fingerprint {
        let chunk = ChunkRef::Block(block);
        let Some(weak) = self.weak_of(chunk, domain) else { return Fingerprint::default() };
        let of_entry = || self.chunks.entry(chunk).strong(self.chunks.strong_function());
        Fingerprint { weak: Some(weak), strong: self.chunks.has_entry(block).then(of_entry).flatten() }
    }
}

/// Returns what an inode has in the segments that are being emptied: of its extents from `from` on, as much as fits in a
/// step.
fn find(state: &State, from: u64, most: usize, pass: &Pass) -> Result<InSegments> {
    let mut found = InSegments {
        has_pages: from == 0 && state.log.pages().any(|page| pass.leaves(page)),
        has_values: from == 0 && state.xattr_blocks().any(|block| pass.leaves(block)),
        ..InSegments::default()
    };
    let mut left = STEP_BLOCKS * BLOCK_BYTES;
    for (offset, extent) in state.extents().into_iter().flat_map(|extents| extents.within(from, u64::MAX)) {
        if found.looks == most {
            found.next = Some(offset);
            break;
        }
        found.looks += 1;
        let Some(address) = extent.media_address() else { continue };
        for media in overlaps(address..address.after(extent.length)?, &pass.emptied) {
            let end = media.end.min(block_start(media.start) + left);
            if media.start < end {
                let part = Extent::media(end - media.start, media.start, extent.unwritten);
                found.parts.push((offset.after(media.start.since(address)?)?, part));
                left = left.saturating_sub(end.next_multiple_of(BLOCK_BYTES) - block_start(media.start));
            }
            if end < media.end {
                found.next = Some(offset.after(end.max(media.start).since(address)?)?);
                return Ok(found);
            }
        }
    }
    Ok(found)
}

fn block_start(address: u64) -> u64 {
    address / BLOCK_BYTES * BLOCK_BYTES
}

/// Returns the parts of a range of media addresses that lie in these segments, which are sorted.
fn overlaps(media: Range<u64>, segments: &[u64]) -> impl Iterator<Item = Range<u64>> + '_ {
    let overlap = move |segment: &u64| {
        let start = media.start.max(segment * SEGMENT_BYTES);
        start..media.end.min((segment + 1) * SEGMENT_BYTES)
    };
    segments.iter().map(overlap).filter(|overlap| overlap.start < overlap.end)
}

/// Adds the extents that map the copies of a part's blocks.
fn map_copies(offset: u64, part: &Extent, places: &BTreeMap<BlockNumber, BlockNumber>, mapped: &mut Mapped) {
    let address = part.media_address().expect("a part of an extent of blocks");
    let mut at = 0;
    let first = mapped.len();
    while at < part.length {
        let inside = (address + at) % BLOCK_BYTES;
        let length = (BLOCK_BYTES - inside).min(part.length - at);
        let copy = places[&BlockNumber::containing(address + at)].address() + inside;
        match mapped[first..].last_mut() {
            Some((_, last)) if last.location == Location::Media(copy - last.length) => last.length += length,
            _ => mapped.push((offset + at, Extent::media(length, copy, part.unwritten))),
        }
        at += length;
    }
}
