//! Repair: what fsck writes.
//!
//! The problem: fsck and recovery must not disagree about the true state.
//!
//! The idea: a repair is a mount, a reconcile and a clean unmount, which recompute counts and allocation from the
//! logs. Before the mount, the repair fixes what a mount would refuse, and gives up what cannot be read. After it,
//! the repair fixes what a mount does not check. Every step can be repeated after a crash, and the superblock says
//! that a repair is under way until the undo file is complete.
//!
//! ```text
//! before    the journal is finished; the segment table is as it must have been, missing parts of the pm index are
//!           made; generators are whole; slots that are given up are empty; the root is there; entries that are wrong
//!           are empty
//! mount     scan and reconcile; the saved state is discarded
//! after     names that lead nowhere go, what has no name gets one in lost+found, link counts are what the names say;
//!           limits that are damaged go, and what is charged wrongly is charged to the tree of its directory
//! ```

use super::packed::Rebuilt;
use super::plan::RepairPlan;
use super::{Moved, ROOT, limits, lost_found};
use crate::error::{Error, Result};
use crate::inode::table::{TablePart, exact_parts};
use crate::media::chunk_entry::{CLASS_UNKNOWN, ChunkEntry, CountWord, tag};
use crate::media::direct::index_segments;
use crate::media::generator::{GENERATORS, Generator};
use crate::media::inode::{INODE_BYTES, InodeHead};
use crate::media::log_entry::LINE;
use crate::media::segment::{KIND_BLOCKS, KIND_ENTRIES, KIND_INDEX, KIND_INODES, SegmentEntry, SegmentUse};
use crate::media::superblock::{Geometry, STATE_CLEAN, STATE_IN_USE, STATE_REPAIR, Superblock, TABLE_GAPS};
use crate::media::{BlockNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::mount::{self, MountOptions, Tables};
use crate::space::clear_segment;
use crate::store::write_superblock;
use crate::words::{FileKind, IndexKind};
use hashbrown::HashSet;
use pmem::Region;

/// Recovers a device if a crash left only what a mount can finish; returns false if something prevents it.
pub(super) fn recover(region: &Region) -> Result<bool> {
    let recovered = mount::open(region.clone(), &MountOptions::default()).and_then(|mounted| {
        mounted.reconcile()?;
        mounted.trees().end_removing()?;
        mounted.trees().end_charging()?;
        mounted.core.space.trim()?;
        mounted.leave_clean()
    });
    match recovered {
        Ok(()) => Ok(true),
        Err(Error::Corrupt { .. } | Error::BadMemory { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Marks the device as under repair. This counts as a mount.
pub(super) fn begin(region: &Region) -> Result<()> {
    let (superblock, _) = mount::read_superblock(region)?;
    let mount_epoch = superblock.mount_epoch.wrapping_add(1);
    write_superblock(region, Superblock { state: STATE_REPAIR, saved_state: 0, mount_epoch, ..superblock });
    Ok(())
}

/// Ends the repair: marks the device as clean.
pub(super) fn finish(region: &Region) -> Result<()> {
    let (superblock, _) = mount::read_superblock(region)?;
    if superblock.state == STATE_REPAIR {
        write_superblock(region, Superblock { state: STATE_CLEAN, ..superblock });
        region.sync()?;
    }
    Ok(())
}

/// Abandons a repair that cannot be done: the device is left as after a crash.
pub(super) fn abandon_repair(region: &Region) -> Result<()> {
    let (superblock, _) = mount::read_superblock(region)?;
    write_superblock(region, Superblock { state: STATE_IN_USE, ..superblock });
    Ok(())
}

/// Carries out the plan of the survey; returns the inodes that got a name in `lost+found`.
pub(super) fn repair(region: &Region, plan: &RepairPlan) -> Result<Vec<Moved>> {
    let (superblock, geometry) = mount::read_superblock(region)?;
    write_superblock(region, Superblock { state: STATE_REPAIR, saved_state: 0, ..superblock });
    if let Some(tables) = &plan.tables {
        finish_journal(region, &geometry, plan, tables)?;
        write_segment_table(region, &geometry, plan, tables)?;
    }
    mend_generators(region, &geometry, plan);
    for (_, (slot, _)) in plan.condemned.iter() {
        if let Some(slot) = slot.filter(|slot| region.check_writable(*slot, INODE_BYTES).is_ok()) {
            let _ = region.fence(region.stream_zeros(slot, INODE_BYTES));
        }
    }
    for (slot, flags) in plan.flags.iter().filter(|(slot, _)| region.check_writable(**slot, INODE_BYTES).is_ok()) {
        let head: InodeHead = region.read(*slot);
        let _ = region.fence(region.write(*slot, &head.with_flags(*flags)).flush());
    }
    for block in &plan.entries {
        let entry = geometry.chunk_entry_offset(BlockNumber(*block));
        if region.check_writable(entry, LINE).is_ok() {
            let _ = region.fence(region.stream_zeros(entry, LINE));
        }
    }
    mend_packed_entries(region, plan);
    make_root(region, &superblock, plan)?;
    let mounted = mount::open_for_repair(region.clone())?;
    mounted.reconcile()?;
    mounted.trees().end_removing()?;
    mounted.trees().end_charging()?;
    let core = &mounted.core;
    let moved = lost_found::put_names_right(core, &mounted.take_nameless())?;
    limits::put_charges_right(core, &superblock)?;
    core.space.trim()?;
    if region.frozen_pages().is_empty() {
        mount::saved::leave(mounted.jobs(), STATE_REPAIR)?;
    } else {
        // Counts in bad memory could not be updated, so the next mount must scan everything.
        let (superblock, _) = mount::read_superblock(region)?;
        write_superblock(region, Superblock { state: STATE_IN_USE, ..superblock });
    }
    Ok(moved)
}

/// Repairs entries of packed chunks: rebuilds them from headers, or removes wrong fingerprints.
fn mend_packed_entries(region: &Region, plan: &RepairPlan) {
    let is_writable = |at: &&u64| region.check_writable(**at, LINE).is_ok();
    for at in plan.packed_fingerprints.iter().filter(is_writable) {
        let entry: ChunkEntry = region.read(*at);
        let _ = region.fence(region.write(*at, &entry.without_fingerprints()).flush());
    }
    for at in plan.packed_lost.iter().filter(is_writable) {
        // Reading such a chunk still gives EIO, and no new data is shared with it.
        let entry: ChunkEntry = region.read(*at);
        let _ = region.fence(region.write(*at, &entry.lost()).flush());
    }
    for Rebuilt { entry_offset, address, bytes, references } in &plan.rebuilt {
        let word = CountWord { tag: tag::ADD | tag::RECOVERED, tx: 0, count: *references, update_count: 0 };
        let entry = ChunkEntry::for_packed(*address, *bytes, CLASS_UNKNOWN, word);
        if region.check_writable(*entry_offset, LINE).is_ok() {
            let _ = region.fence(region.write(*entry_offset, &entry).flush());
        }
    }
}

/// Finishes the journal. This comes before inodes are given up, so that no journal word is stored in an emptied slot.
fn finish_journal(region: &Region, geometry: &Geometry, plan: &RepairPlan, tables: &Tables) -> Result<()> {
    if plan.clears_journal {
        mount::clear_journal(region, geometry);
        return Ok(());
    }
    let stores = mount::journal_stores(region, geometry, &tables.inode_segments())?;
    mount::replay_journal(region, geometry, &stores);
    Ok(())
}

fn write_use(region: &Region, geometry: &Geometry, segment: u64, kind: u8, ordinal: u32) {
    let entry: SegmentEntry = region.read(geometry.segment_entry_offset(segment));
    write_entry(region, geometry, segment, entry.used_for(segment, kind, ordinal));
}

fn write_entry(region: &Region, geometry: &Geometry, segment: u64, entry: SegmentEntry) {
    let offset = geometry.segment_entry_offset(segment);
    if entry != region.read(offset) {
        let _ = region.fence(region.write(offset, &entry).flush());
    }
}

fn write_segment_table(region: &Region, geometry: &Geometry, plan: &RepairPlan, tables: &Tables) -> Result<()> {
    for (segment, usage) in &tables.uses {
        match usage {
            SegmentUse::Index(ordinal) => write_use(region, geometry, *segment, KIND_INDEX, *ordinal),
            SegmentUse::Entries(ordinal) => write_use(region, geometry, *segment, KIND_ENTRIES, *ordinal),
            // `tables` also has the wear of the segment, computed from the checksums of its headers.
            SegmentUse::Packed => {
                let entry = tables.entry(*segment);
                entry.into_iter().for_each(|entry| write_entry(region, geometry, *segment, *entry));
            }
            SegmentUse::Blocks | SegmentUse::Torn => write_use(region, geometry, *segment, KIND_BLOCKS, 0),
            SegmentUse::Inodes(_) | SegmentUse::Free => {}
        }
    }
    let used: HashSet<u64> =
        tables.uses.iter().map(|(segment, _)| *segment).chain(plan.unmarked.iter().copied()).collect();
    for segment in &plan.unmarked {
        let is_table = !geometry.is_data_segment(*segment)
            || tables.uses.iter().any(|(other, usage)| other == segment && !matches!(usage, SegmentUse::Free));
        if is_table {
            // Blocks in table segments never have chunk entries.
            let entries = geometry.chunk_entry_offset(BlockNumber(segment * SEGMENT_BLOCKS));
            let _ = region.fence(region.stream_zeros(entries, geometry.blocks_in_segment(*segment) * LINE));
        } else {
            write_use(region, geometry, *segment, KIND_BLOCKS, 0);
        }
    }
    let whole = |segment: &u64| geometry.blocks_in_segment(*segment) == SEGMENT_BLOCKS && !used.contains(segment);
    let mut free = (geometry.first_segment()..geometry.segments()).filter(whole);
    write_inode_table(region, geometry, &tables.inodes, &mut free)?;
    complete_index(region, geometry, tables, &mut free)
}

/// Writes the entries of the inode table. The part with the root is made if it is lost; other lost parts stay absent.
fn write_inode_table(
    region: &Region,
    geometry: &Geometry,
    parts: &[Option<TablePart>],
    free: &mut dyn Iterator<Item = u64>,
) -> Result<()> {
    let mut parts = parts.to_vec();
    if parts.first().is_none_or(Option::is_none) {
        // If no part was found, nothing is known to be in use.
        let segment = free.next().unwrap_or(geometry.first_segment());
        clear_segment(region, segment)?;
        parts.resize(parts.len().max(1), None);
        parts[0] = Some(TablePart { segment, absent_before: 0 });
    }
    if parts.iter().any(Option::is_none) {
        let (superblock, _) = mount::read_superblock(region)?;
        let incompatible = superblock.incompatible | TABLE_GAPS;
        write_superblock(region, Superblock { incompatible, ..superblock });
    }
    for (ordinal, TablePart { segment, absent_before }) in exact_parts(&parts) {
        let entry: SegmentEntry = region.read(geometry.segment_entry_offset(segment));
        let entry = entry.used_for(segment, KIND_INODES, ordinal).with_absent_before(absent_before);
        write_entry(region, geometry, segment, entry);
    }
    Ok(())
}

/// Creates the missing segments of a pm index; reconcile puts the entries into their chains. If there is no room for
/// them, the device gets a dram index, which needs none.
fn complete_index(
    region: &Region,
    geometry: &Geometry,
    tables: &Tables,
    free: &mut dyn Iterator<Item = u64>,
) -> Result<()> {
    let (superblock, _) = mount::read_superblock(region)?;
    let Some((IndexKind::Pm, function)) = superblock.index() else { return Ok(()) };
    if mount::index_segments_in(geometry, &tables.uses).is_ok() {
        return Ok(());
    }
    let needed = index_segments(geometry.index_blocks());
    let mut found = vec![None; needed as usize];
    for (segment, usage) in &tables.uses {
        let SegmentUse::Index(ordinal) = usage else { continue };
        let is_whole = geometry.blocks_in_segment(*segment) == SEGMENT_BLOCKS;
        match found.get_mut(*ordinal as usize) {
            Some(place) if place.is_none() && is_whole => *place = Some(*segment),
            // A duplicate, or an ordinal that is too large.
            _ => write_use(region, geometry, *segment, KIND_BLOCKS, 0),
        }
    }
    for (ordinal, _) in (0..).zip(&found).filter(|(_, segment)| segment.is_none()) {
        let Some(segment) = free.next() else {
            write_superblock(region, superblock.with_index(IndexKind::Dram, function));
            return Ok(());
        };
        clear_segment(region, segment)?;
        write_use(region, geometry, segment, KIND_INDEX, ordinal);
    }
    Ok(())
}

fn mend_generators(region: &Region, geometry: &Geometry, plan: &RepairPlan) {
    for number in 0..GENERATORS {
        let offset = geometry.generator_offset(number);
        let seen: Generator = region.read(offset);
        let mended = seen.mended();
        let next = plan.generators.get(&number).copied().unwrap_or(mended.next);
        let mended = Generator { next, ..mended };
        if seen != mended && region.sound_or_forget(offset, LINE) {
            let _ = region.fence(region.write(offset, &mended).flush());
        }
    }
}

/// Makes a new, empty root directory if the root was given up or is not a directory. The inodes in the old root lose
/// their names.
fn make_root(region: &Region, superblock: &Superblock, plan: &RepairPlan) -> Result<()> {
    let (_, geometry) = mount::read_superblock(region)?;
    let tables = Tables::read(region, &geometry, superblock, None);
    let Some(Some(TablePart { segment: first, .. })) = tables.inodes.first() else { return Ok(()) };
    let slot = first * SEGMENT_BYTES + ROOT * INODE_BYTES;
    let is_there = region.read::<InodeHead>(slot).live(ROOT) == Some(FileKind::Directory);
    let is_lost = !is_there || plan.condemned.contains_key(&ROOT);
    if is_lost && region.check_writable(slot, INODE_BYTES).is_ok() {
        let _ = region.fence(region.stream_zeros(slot, INODE_BYTES));
        mount::write_root(region, *first, (0, 0), superblock.mounted);
    }
    Ok(())
}
