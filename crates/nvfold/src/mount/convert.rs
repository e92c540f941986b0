//! Changing the index of an unmounted device (`nvfold tune --index`).
//!
//! Both indexes use the same chunk table, so no entry moves. A pm index additionally takes free segments for its
//! direct area, and two words of each entry that a dram index ignores. So it can be built next to the dram index, and
//! a single store, of the index kind in the superblock, switches over. The next mount frees whatever a crash left of
//! the unused index.

use super::Mounted;
use super::mkfs::check_index;
use super::open::open;
use super::options::MountOptions;
use super::superblock::read_superblock;
use crate::chunk::dram::SHARDS;
use crate::chunk::fact::Fact;
use crate::chunk::insertion::Insertion;
use crate::dedup::nv_dedup::options::NvDedupOptions;
use crate::dedup::policy::Policy;
use crate::error::Result;
use crate::fingerprint::WeakFunction;
use crate::fs::Core;
use crate::media::chunk_entry::{ChunkEntry, LINKS_WORD};
use crate::media::direct::index_segments;
use crate::media::segment::KIND_INDEX;
use crate::media::superblock::Superblock;
use crate::media::{BlockNumber, ChunkRef, PackedNumber, SEGMENT_BLOCKS};
use crate::space::clear_segment;
use crate::store::write_superblock;
use crate::words::IndexKind;
use pmem::{Flight, Region};
use zerocopy::IntoBytes;

/// Number of blocks whose entries are made with shared fences.
const BLOCKS_AT_ONCE: usize = 64;

/// Gives an unmounted device another index. It is crash-safe at every moment: until the one store that changes the
/// kind, the old index counts, and from then on the new one. `weak` is the function that a pm index is built on; the
/// index holds no fingerprints of other functions until they are recomputed in the background. `progress` receives
/// the number of chunk entries done and their total.
///
/// # Errors
/// A function that a pm index cannot be built on; ENOSPC if there are not enough free segments for a pm index; errors
/// of a mount. The device is unchanged then.
pub fn convert_index(
    region: &Region,
    to: IndexKind,
    weak: WeakFunction,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    check_index(to, weak)?;
    let (superblock, geometry) = read_superblock(region)?;
    let of_now = superblock.index().expect("a superblock that was verified");
    // A device that was made longer keeps the number of chains that it had.
    if to == of_now.0 && (to == IndexKind::Dram || weak == of_now.1 && !geometry.index_is_small()) {
        return Ok(());
    }
    if of_now.0 == IndexKind::Pm {
        switch(region, superblock, IndexKind::Dram, weak)?;
    }
    let device = mounted(region, weak)?;
    if to == IndexKind::Dram {
        return device.leave_clean();
    }
    build(&device, weak, superblock.secret().is_some(), progress)?;
    device.leave_clean()?;
    let (superblock, _) = read_superblock(region)?;
    switch(region, superblock, IndexKind::Pm, weak)?;
    // The saved state belongs to the old index.
    mounted(region, weak)?.leave_clean()
}

/// Mounts a device that no other process uses, and completes recovery.
fn mounted(region: &Region, weak: WeakFunction) -> Result<Mounted> {
    let nv_dedup = NvDedupOptions { weak, ..NvDedupOptions::default() };
    let mounted = open(region.clone(), &MountOptions { policy: Policy::Off, nv_dedup, ..MountOptions::default() })?;
    mounted.reconcile()?;
    mounted.jobs().end_reclaiming();
    Ok(mounted)
}

/// Makes the superblock select another index, and drops the saved state, which does not fit it.
fn switch(region: &Region, superblock: Superblock, to: IndexKind, weak: WeakFunction) -> Result<()> {
    write_superblock(region, Superblock { saved_state: 0, ..superblock.with_index(to, weak) });
    Ok(region.sync()?)
}

/// Builds a pm index of all entries that have a fingerprint of this function. With `are_salted` they may be in
/// the domains of owners.
fn build(mounted: &Mounted, weak: WeakFunction, are_salted: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let core = &mounted.core;
    let geometry = core.geometry.with_whole_index();
    let mut segments = Vec::new();
    for ordinal in 0..index_segments(geometry.index_blocks()) {
        match core.space.allocate_segment("make a pm index") {
            Ok(segment) => {
                clear_segment(&core.region, segment)?;
                core.space.write_use(segment, KIND_INDEX, ordinal as u32);
                segments.push(segment);
            }
            Err(error) => {
                segments.into_iter().for_each(|segment| core.space.free_segment(segment));
                core.space.trim()?;
                mounted.leave_clean()?;
                return Err(error);
            }
        }
    }
    enter_private(core, are_salted);
    let options = MountOptions::default().denova.reorder;
    let index = Fact::new(core.region.clone(), &geometry, core.chunks.entries.clone(), weak, segments, options);
    let total = core.chunks.tracked() + core.chunks.packed.count();
    let mut done = 0;
    let enter = |entries: Vec<FingerprintedChunk>| {
        clear_links(core, &index, &entries);
        let new: Vec<Insertion<'_>> = entries.iter().map(|(chunk, weak, _)| Insertion::always(*weak, *chunk)).collect();
        index.insert_all(&new);
    };
    for segment in core.space.marked_segments() {
        progress(done, total);
        enter(entries_of(core, segment, weak));
        done += core.chunks.entries_in(segment).iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
    }
    let packed: Vec<PackedNumber> = core.chunks.packed.used().collect();
    for some in packed.chunks(SEGMENT_BLOCKS as usize) {
        progress(done, total);
        let with_weak = |chunk: &PackedNumber| {
            let entry = core.chunks.entry(*chunk);
            Some((ChunkRef::Packed(*chunk), entry.weak(weak)?, entry))
        };
        enter(some.iter().filter_map(with_weak).collect());
        done += some.len() as u64;
    }
    progress(total, total);
    Ok(())
}

/// Creates chunk entries for blocks that only the dram index can find, because a pm index links chunk entries.
fn enter_private(core: &Core, are_salted: bool) {
    let Some(index) = core.chunks.index.dram() else { return };
    for shard in 0..SHARDS {
        let (_, slots) = index.save(shard);
        let block_of = |slot: u64| Some((core.chunks.entries.chunk(slot as u32).block()?, (slot >> 32) as u32));
        let blocks: Vec<(BlockNumber, u32)> =
            slots.into_iter().filter(|slot| *slot != 0).filter_map(block_of).collect();
        for some in blocks.chunks(BLOCKS_AT_ONCE) {
            // A slot has the fingerprint in the block's domain.
            let salted = |block, weak| match some.iter().find(|(other, _)| *other == block && are_salted) {
                Some((_, salted)) => *salted,
                None => weak,
            };
            core.enter_each(some.iter().map(|(block, _)| *block), true, salted);
        }
    }
}

/// A chunk that has a weak fingerprint, the fingerprint, and the chunk's entry.
type FingerprintedChunk = (ChunkRef, u32, ChunkEntry);

/// Returns the blocks of a segment that have a fingerprint of this function, and their entries.
fn entries_of(core: &Core, segment: u64, function: WeakFunction) -> Vec<FingerprintedChunk> {
    let first = BlockNumber(segment * SEGMENT_BLOCKS);
    let mut entries = vec![ChunkEntry::default(); core.geometry.blocks_in_segment(segment) as usize];
    core.region.scan_into(core.geometry.chunk_entry_offset(first), entries.as_mut_bytes());
    let blocks = (first.0..).map(BlockNumber).zip(entries);
    let with_weak = blocks.filter_map(|(block, entry)| Some((ChunkRef::Block(block), entry.weak(function)?, entry)));
    with_weak.filter(|(chunk, _, entry)| entry.is_of(*chunk)).collect()
}

/// Prepares entries for the index, durably: sets their chain and clears their links.
fn clear_links(core: &Core, index: &Fact, entries: &[FingerprintedChunk]) {
    let mut flight = Flight::new();
    for (chunk, weak, entry) in entries {
        let delete_pointer = index.chain_of(*weak) as u32;
        let entry = ChunkEntry { previous: 0, next: 0, delete_pointer, ..*entry };
        let links = &entry.as_bytes()[LINKS_WORD as usize..];
        flight.add(core.region.write(core.chunks.entry_offset(*chunk) + LINKS_WORD, links).flush());
    }
    let _ = core.region.fence(flight);
}
