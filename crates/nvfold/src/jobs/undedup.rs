//! Undoing sharing on request.
//!
//! A block that has another reference is copied to a new block for this file alone. The last file that shares a block keeps
//! it, since no other reference is left. Pieces of a policy that cuts become blocks, and so do shared packed chunks; the
//! packed end of a file stays packed if it is not shared. [`UndedupPlan`](super::UndedupPlan) does the same on a copy of the
//! extents, to compute how much space it takes.

use super::Jobs;
use super::steps::{ReshareStep, STEP_BLOCKS};
use crate::error::{Error, Result};
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::chunk_entry::CLASS_END;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location, PackedNumber};
use crate::store::BLOCK;
use crate::store::claims::Claims;
use crate::store::remap::{Mapped, Remap, Stamp};
use crate::words::Reshared;
use smallvec::SmallVec;

/// Blocks that are only looked at under one lock of the inode.
pub(crate) const LOOK_BLOCKS: u64 = 16_384;

impl Jobs<'_> {
    /// True if undedup moves the content of this packed chunk to blocks.
    fn unpacks(&self, chunk: PackedNumber) -> bool {
        let chunk = ChunkRef::Packed(chunk);
        !self.chunks.entries.exists(chunk)
            || self.chunks.entry(chunk).class() != CLASS_END
            || self.chunks.count(chunk) > 1
    }

    /// Gives the file private copies of the next shared blocks in `from..end` (file offsets in bytes).
    pub(crate) fn undedup_step(&self, inode: &Inode, from: u64, end: u64) -> Result<ReshareStep> {
        let mut state = inode.write()?;
        let count = |block| self.chunks.count(block);
        let unpacks = |chunk| self.unpacks(chunk);
        let (blocks, looked_at, next) =
            touching_shared(self.file_extents(&state, "undedup")?, from, end, count, unpacks);
        let mut done = Reshared { looked_at_bytes: looked_at * BLOCK_BYTES, changed_bytes: 0 };
        let mut run = Vec::new();
        let mut given_up: SmallVec<[BlockNumber; 8]> = SmallVec::new();
        for at in blocks {
            let extents = self.file_extents(&state, "undedup")?;
            let whole = whole_block(extents, at);
            let is_packed = extents.within(at, at + BLOCK_BYTES).all(|(_, extent)| extent.packed().is_some());
            let is_next = run.last().is_none_or(|last| last + BLOCK_BYTES == at);
            if whole.is_none() && !is_packed || !is_next {
                done.changed_bytes += self.copy_run(inode, &mut state, &mut run)?;
                given_up.clear();
            }
            match whole {
                // References that the pending run gives up no longer count.
                Some(block) => {
                    let gone = given_up.iter().filter(|other| **other == block).count();
                    if count(block) as usize > 1 + gone {
                        run.push(at);
                        given_up.push(block);
                    }
                }
                None if is_packed => run.push(at),
                None if wants_copy(self.file_extents(&state, "undedup")?, at, count, unpacks) => {
                    run.push(at);
                    done.changed_bytes += self.copy_run(inode, &mut state, &mut run)?;
                }
                None => {}
            }
        }
        done.changed_bytes += self.copy_run(inode, &mut state, &mut run)?;
        Ok(ReshareStep { next, done })
    }

    /// Copies adjacent blocks of a file for this file alone, and returns the number of bytes. If there is no space
    /// for all of them at once, they are copied one by one, since each may free the space that the next one needs.
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
        self.read_extents(self.file_extents(state, "undedup")?, start, &mut content)?;
        // Unreadable memory reads as zeros; those must not become content of the file.
        self.region.check()?;
        let mut claims = Claims::new(self);
        let mut mapped = Mapped::new();
        claims.store_new("undedup", &content, |at, run| {
            mapped.push((start + at, Extent::media(run.count * BLOCK_BYTES, run.start.address(), false)));
        })?;
        self.publish(inode, state, &Remap::new(&(start..start + length), &mapped, Stamp::Kept), None, &mut claims)
    }
}

/// Returns the file blocks in `from..end` that touch a block with more than one reference or a chunk that undedup
/// unpacks, as many as fit in a step. Also returns how many blocks were looked at, and the offset to continue at.
fn touching_shared(
    extents: &Extents,
    from: u64,
    end: u64,
    count: impl Fn(BlockNumber) -> u32,
    unpacks: impl Fn(PackedNumber) -> bool,
) -> (SmallVec<[u64; STEP_BLOCKS]>, u64, u64) {
    let mut found: SmallVec<[u64; STEP_BLOCKS]> = SmallVec::new();
    let from = from / BLOCK_BYTES * BLOCK_BYTES;
    let mut looked_at = 0;
    for (offset, extent) in extents.within(from, end).filter(|(_, extent)| !extent.unwritten) {
        let address = match extent.location {
            Location::Media(address) => address,
            Location::Packed(chunk, _) => {
                let last = offset + extent.length - 1;
                looked_at += extent.length.div_ceil(BLOCK_BYTES);
                if unpacks(chunk)
                    && let Some(next) = add_blocks(&mut found, offset, last)
                {
                    return (found, looked_at, next);
                }
                continue;
            }
        };
        for block in extent.blocks().blocks() {
            // The file range that the extent maps to this block.
            let start = offset + block.address().saturating_sub(address);
            let last = offset + (block.address() + BLOCK_BYTES).min(address + extent.length) - address - 1;
            if looked_at == LOOK_BLOCKS {
                return (found, looked_at, start / BLOCK_BYTES * BLOCK_BYTES);
            }
            looked_at += 1;
            if count(block) < 2 {
                continue;
            }
            if let Some(next) = add_blocks(&mut found, start, last) {
                return (found, looked_at, next);
            }
        }
    }
    (found, looked_at, end)
}

/// Adds the blocks of a file that `start..=last` touches. Returns the first one for which there is no room.
fn add_blocks(found: &mut SmallVec<[u64; STEP_BLOCKS]>, start: u64, last: u64) -> Option<u64> {
    for at in (start / BLOCK_BYTES..=last / BLOCK_BYTES).map(|number| number * BLOCK_BYTES) {
        if found.last().is_some_and(|last| *last >= at) {
            continue;
        }
        if found.len() == STEP_BLOCKS {
            return Some(at);
        }
        found.push(at);
    }
    None
}

/// Returns the media block that holds exactly one block of the file, and nothing else.
fn whole_block(extents: &Extents, at: u64) -> Option<BlockNumber> {
    let (start, extent) = extents.within(at, at + BLOCK_BYTES).next()?;
    let address = extent.media_address()?;
    let is_whole = start == at && extent.length == BLOCK_BYTES && address.is_multiple_of(BLOCK_BYTES);
    (is_whole && !extent.unwritten).then(|| BlockNumber::containing(address))
}

/// True if a block of the file has data in a block that another extent references, or in a chunk that undedup
/// unpacks.
pub(super) fn wants_copy(
    extents: &Extents,
    at: u64,
    count: impl Fn(BlockNumber) -> u32,
    unpacks: impl Fn(PackedNumber) -> bool,
) -> bool {
    if extents.within(at, at + BLOCK_BYTES).filter_map(|(_, extent)| extent.packed()).any(unpacks) {
        return true;
    }
    // For each media block: the number of extents of this file block, and whether they hold data.
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
