//! Sharing what is stored already, and the way back.
//!
//! The problem: data that came in while nobody looked for equals lies there as often as it was written, and data that
//! is shared has no copy of its own. Both can be changed without changing a byte of any file.
//!
//! The idea: both are a replacement of extents like any other ([`Core::publish`]), of a block or a run of them, so
//! each is atomic and survives a crash, and nothing needs to be remembered to go on after one. A step holds the
//! inode's lock for [`STEP_BLOCKS`] blocks at most; readers and writers of the file go between steps.
//!
//! **Sharing.** Every whole block that the file names gets a fingerprint, if it has none, and enters the index. Then
//! it is given up for an equal block if that frees it (nobody else names it), or if the other has the lower number.
//! So each step frees a block or lowers a number: it ends, and where nothing is left to do it changes nothing.
//!
//! **The way back.** A block of the file that is named elsewhere too is written again, for this file alone. The last
//! of those that shared keeps the old copy: nobody else names it any more. [`super::UndedupPlan`] does the same
//! on a copy of the extents, to tell how much space it takes.

use super::Core;
use super::claims::Claims;
use super::publish::{Mapped, Remap, Stamp, block_extent, push_mapped};
use crate::error::{Error, Result};
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::Purpose;
use crate::words::{MappedExtent, Reshared};
use smallvec::SmallVec;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Blocks that are hashed, compared or copied under one lock of the inode.
const STEP_BLOCKS: usize = 64;
/// Blocks that are only looked at under one lock of the inode.
const LOOK_BLOCKS: u64 = 16_384;

/// Where a step ended, and what it did.
pub(crate) struct Step {
    /// Where to go on; nothing is left behind the end of the range.
    pub(crate) next: u64,
    pub(crate) done: Reshared,
}

/// A whole block that a file names at this offset.
#[derive(Clone, Copy)]
pub(super) struct Named {
    pub(super) offset: u64,
    pub(super) block: BlockNumber,
}

impl Core {
    /// Shares blocks that begin in `from..end`, the next few of them.
    pub(crate) fn share_step(&self, inode: &Inode, from: u64, end: u64) -> Result<Step> {
        let mut state = inode.write()?;
        let (named, next) = whole_blocks_of(self.file_extents(&state, "dedup")?, from, end);
        self.enter_all(named.iter().map(|named| named.block));
        let mut done = Reshared { looked_at_bytes: named.len() as u64 * BLOCK_BYTES, changed_bytes: 0 };
        let mut at = 0;
        while at < named.len() {
            // Neighbours that are given up go in one commit.
            let mut claims = Claims::new(self);
            let mut mapped = Mapped::new();
            let (first, mut length) = (at, 0);
            while let Some(next) = named.get(at)
                && next.offset == named[first].offset + length
                && let Some(other) = self.take_equal(next.block, &named[first..at], &mut claims)
            {
                push_mapped(&mut mapped, next.offset, block_extent(other));
                (at, length) = (at + 1, length + BLOCK_BYTES);
            }
            if length == 0 {
                at += 1;
                continue;
            }
            let start = named[first].offset;
            self.region.check()?;
            let range = start..start + length;
            self.publish(inode, &mut *state, &Remap::new(&range, &mapped, Stamp::Kept), None, &mut claims)?;
            done.changed_bytes += length;
        }
        Ok(Step { next, done })
    }

    fn weak_of(&self, block: BlockNumber) -> Option<u32> {
        let function = self.chunks.weak_function();
        self.chunks.has_entry(block).then(|| self.chunks.entry(block)).and_then(|entry| entry.weak(function))
    }

    /// Takes a reference on a block that is as good as `own`, if it is worth naming that instead, and is none of those
    /// that are being given up.
    fn take_equal(&self, own: BlockNumber, given_up: &[Named], claims: &mut Claims<'_>) -> Option<BlockNumber> {
        let chunks = &self.chunks;
        let weak = self.weak_of(own)?;
        let is_better = |block: &BlockNumber| {
            *block != own
                && (*block < own || chunks.count(own) == 1)
                && given_up.iter().all(|other| other.block != *block)
        };
        let mut seen = BlockNumber(0);
        loop {
            // Most blocks find themselves alone, and take no reference for that.
            let taken = claims.tx.share_candidate_that(weak, seen, is_better)?;
            seen = taken.block();
            if is_better(&seen)
                && chunks.equal(seen, &self.region.read::<[u8; BLOCK]>(own.address()))
                && self.region.sound_or_forget(own.address(), BLOCK_BYTES)
            {
                return Some(claims.keep(taken));
            }
            claims.tx.give_back(taken);
        }
    }

    /// Gives blocks of `from..end` copies of their own, the next few of them.
    pub(crate) fn undedup_step(&self, inode: &Inode, from: u64, end: u64) -> Result<Step> {
        let mut state = inode.write()?;
        let count = |block| self.chunks.count(block);
        let (blocks, looked_at, next) = touching_shared(self.file_extents(&state, "undedup")?, from, end, count);
        let mut done = Reshared { looked_at_bytes: looked_at * BLOCK_BYTES, changed_bytes: 0 };
        let mut run = Vec::new();
        let mut given_up: SmallVec<[BlockNumber; 8]> = SmallVec::new();
        for at in blocks {
            let extents = self.file_extents(&state, "undedup")?;
            let whole = whole_block(extents, at);
            let is_next = run.last().is_none_or(|last| last + BLOCK_BYTES == at);
            if whole.is_none() || !is_next {
                done.changed_bytes += self.copy_run(inode, &mut state, &mut run)?;
                given_up.clear();
            }
            match whole {
                // What the run gives up already counts no more.
                Some(block) => {
                    let gone = given_up.iter().filter(|other| **other == block).count();
                    if count(block) as usize > 1 + gone {
                        run.push(at);
                        given_up.push(block);
                    }
                }
                None if wants_copy(self.file_extents(&state, "undedup")?, at, count) => {
                    run.push(at);
                    done.changed_bytes += self.copy_run(inode, &mut state, &mut run)?;
                }
                None => {}
            }
        }
        done.changed_bytes += self.copy_run(inode, &mut state, &mut run)?;
        Ok(Step { next, done })
    }

    /// Writes neighbouring blocks of a file again, for this file alone; returns the bytes. Where there is no space for
    /// all of them at once, one after another: each may free what the next one needs.
    fn copy_run(&self, inode: &Inode, state: &mut State, run: &mut Vec<u64>) -> Result<u64> {
        let blocks = std::mem::take(run);
        let copied = self.copy_blocks(inode, state, &blocks);
        if matches!(copied, Err(Error::NoSpace { .. })) && blocks.len() > 1 {
            for at in &blocks {
                self.copy_blocks(inode, state, &[*at])?;
            }
            return Ok(blocks.len() as u64 * BLOCK_BYTES);
        }
        copied.map(|()| blocks.len() as u64 * BLOCK_BYTES)
    }

    fn copy_blocks(&self, inode: &Inode, state: &mut State, blocks: &[u64]) -> Result<()> {
        let Some(start) = blocks.first().copied() else { return Ok(()) };
        let length = blocks.len() as u64 * BLOCK_BYTES;
        let mut content = vec![0; blocks.len() * BLOCK];
        self.read_extents(self.file_extents(state, "undedup")?, start, &mut content);
        // Zeros that stand for what cannot be read must not become content.
        self.region.check()?;
        let mut claims = Claims::new(self);
        self.space.allocate("undedup", blocks.len() as u64, Purpose::Data, &mut claims.fresh)?;
        let mut mapped = Mapped::new();
        let mut at = 0;
        for run in &claims.fresh {
            let length = run.count * BLOCK_BYTES;
            let part = &content[at as usize..(at + length) as usize];
            claims.tx.flight.add(self.region.stream(run.start.address(), part));
            mapped.push((start + at, Extent { length, address: run.start.address(), unwritten: false }));
            at += length;
        }
        self.publish(inode, state, &Remap::new(&(start..start + length), &mapped, Stamp::Kept), None, &mut claims)
    }

    /// Extents from a byte on, cut where the number of references changes.
    pub(crate) fn mapped_extents(&self, inode: &Inode, from: u64, most: usize) -> Result<Vec<MappedExtent>> {
        let state = inode.read()?;
        let extents = self.file_extents(&state, "list extents")?;
        let mut mapped: Vec<MappedExtent> = Vec::new();
        let mut looked_at = 0;
        for (offset, extent) in extents.within(from, u64::MAX) {
            let mut at = 0;
            while at < extent.length {
                let address = extent.address + at;
                let length = (BLOCK_BYTES - address % BLOCK_BYTES).min(extent.length - at);
                let references = self.chunks.count(BlockNumber::containing(address));
                let unwritten = extent.unwritten;
                let next = MappedExtent { offset: offset + at, length, address, unwritten, references };
                let is_full = mapped.len() == most;
                match mapped.last_mut().filter(|last| at > 0 && last.references == references) {
                    _ if looked_at == LOOK_BLOCKS => return Ok(mapped),
                    Some(last) => last.length += length,
                    None if is_full => return Ok(mapped),
                    None => mapped.push(next),
                }
                at += length;
                looked_at += 1;
            }
        }
        Ok(mapped)
    }
}

/// The whole blocks that begin in `from..end`, a step of them, and where to go on.
pub(super) fn whole_blocks_of(extents: &Extents, from: u64, end: u64) -> (SmallVec<[Named; STEP_BLOCKS]>, u64) {
    let mut named = SmallVec::new();
    for (offset, extent) in extents.within(from, end.saturating_add(BLOCK_BYTES - 1)) {
        let first = extent.address.next_multiple_of(BLOCK_BYTES);
        let last = (extent.address + extent.length) / BLOCK_BYTES * BLOCK_BYTES;
        for address in (first..last).step_by(BLOCK).filter(|_| !extent.unwritten) {
            let offset = offset + (address - extent.address);
            if offset >= end {
                return (named, end);
            }
            if named.len() == STEP_BLOCKS {
                return (named, offset);
            }
            named.push(Named { offset, block: BlockNumber::containing(address) });
        }
    }
    (named, end)
}

/// The blocks of the file in `from..end` that touch a block with more than one reference, a step of them; how many
/// were looked at; where to go on.
fn touching_shared(
    extents: &Extents,
    from: u64,
    end: u64,
    count: impl Fn(BlockNumber) -> u32,
) -> (SmallVec<[u64; STEP_BLOCKS]>, u64, u64) {
    let mut found: SmallVec<[u64; STEP_BLOCKS]> = SmallVec::new();
    let from = from / BLOCK_BYTES * BLOCK_BYTES;
    let mut looked_at = 0;
    for (offset, extent) in extents.within(from, end).filter(|(_, extent)| !extent.unwritten) {
        for block in extent.blocks().blocks() {
            // The part of the file that the extent has in this block.
            let start = offset + block.address().saturating_sub(extent.address);
            let last =
                offset + (block.address() + BLOCK_BYTES).min(extent.address + extent.length) - extent.address - 1;
            if looked_at == LOOK_BLOCKS {
                return (found, looked_at, start / BLOCK_BYTES * BLOCK_BYTES);
            }
            looked_at += 1;
            if count(block) < 2 {
                continue;
            }
            for at in (start / BLOCK_BYTES..=last / BLOCK_BYTES).map(|number| number * BLOCK_BYTES) {
                if found.last().is_some_and(|last| *last >= at) {
                    continue;
                }
                if found.len() == STEP_BLOCKS {
                    return (found, looked_at, at);
                }
                found.push(at);
            }
        }
    }
    (found, looked_at, end)
}

/// The block of the media that holds all of a block of the file, and nothing else.
fn whole_block(extents: &Extents, at: u64) -> Option<BlockNumber> {
    let (start, extent) = extents.within(at, at + BLOCK_BYTES).next()?;
    let is_whole = start == at && extent.length == BLOCK_BYTES && extent.address.is_multiple_of(BLOCK_BYTES);
    (is_whole && !extent.unwritten).then(|| BlockNumber::containing(extent.address))
}

/// Whether data of a block of the file lies in a block that something else names too.
pub(super) fn wants_copy(extents: &Extents, at: u64, count: impl Fn(BlockNumber) -> u32) -> bool {
    // References of the block's own extents, and whether they hold data.
    let mut touched: SmallVec<[(BlockNumber, u32, bool); 4]> = SmallVec::new();
    for (_, extent) in extents.within(at, at + BLOCK_BYTES) {
        for block in extent.blocks().blocks() {
            match touched.iter_mut().find(|(other, ..)| *other == block) {
                Some((_, times, is_data)) => (*times, *is_data) = (*times + 1, *is_data || !extent.unwritten),
                None => touched.push((block, 1, !extent.unwritten)),
            }
        }
    }
    touched.iter().any(|(block, times, is_data)| *is_data && count(*block) > *times)
}
