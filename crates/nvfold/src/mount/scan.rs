//! The scan of a mount without a saved state: finds out which inodes and which entries there are.
//!
//! The idea: read only two tables, each once and by several threads, and nothing they point to. All blocks of marked
//! segments count as in use; [`super::reconcile`] later finds out which really are.

use super::reconcile::Reconcile;
use super::{Mounted, Recovery};
use crate::chunk::recount::Recount;
use crate::error::Result;
use crate::fs::Core;
use crate::inode::Inode;
use crate::media::SEGMENT_BYTES;
use crate::media::inode::{INODE_BYTES, INODES_PER_SEGMENT, USE_WORD, is_free};
use crate::media::log_area::{AreaHead, KIND_LOG_AREA};
use crate::media::segment::{KIND_BLOCKS, SegmentUse};
use crate::parallel;
use crate::space::WORDS_PER_SEGMENT;
use hashbrown::HashSet;
use nvfold_sync::atomic::Ordering;

/// A table segment has 256 KiB of inode heads, which is enough work for a thread.
const TABLE_SEGMENTS_PER_THREAD_MIN: usize = 1;
const WORDS_PER_TABLE_SEGMENT: usize = (INODES_PER_SEGMENT / 64) as usize;

/// Scans the tables, and leaves the rest to reconcile. A device without blocks in use leaves almost nothing to do, so
/// a fresh device is reconciled at once.
pub(super) fn after_crash(mounted: &Mounted, uses: &[(u64, SegmentUse)]) -> Result<()> {
    let core = &mounted.core;
    let inodes = scan_inodes(core);
    core.table.look_for_unnamed();
    let marked = marked_segments(core, uses);
    let recount = Recount::new(core.geometry.segments());
    for &segment in &marked {
        let before = core.space.used_in(segment);
        core.space.adopt_segment(segment, &[!0; WORDS_PER_SEGMENT]);
        // Blocks beyond the end of a shorter last segment do not exist, so their use is not unknown.
        recount.set_unknown(segment, &before.map(|used| !used));
    }
    core.table.segments().into_iter().for_each(|(_, segment)| recount.claim_segment(segment));
    core.chunks.index.fact().into_iter().for_each(|index| {
        index.segments().iter().for_each(|segment| recount.claim_segment(*segment));
    });
    let entries = core.chunks.scan(&marked, &core.space);
    core.chunks.packed.used().for_each(|chunk| recount.set_unknown_packed(chunk));
    core.chunks.set_recount(Some(recount));
    core.walked.store(0, Ordering::SeqCst);
    let is_fresh = marked.is_empty() && core.chunks.packed.count() == 0;
    *mounted.reconcile.lock() = Reconcile::begin(marked);
    *mounted.recovery.lock() = Recovery { entries_scanned: entries, inodes_scanned: inodes, ..Recovery::default() };
    if is_fresh { mounted.reconcile() } else { Ok(()) }
}

/// Returns the segments in which blocks may be in use, and completes torn entries of the segment table.
fn marked_segments(core: &Core, uses: &[(u64, SegmentUse)]) -> Vec<u64> {
    for (segment, _) in uses.iter().filter(|(_, usage)| *usage == SegmentUse::Torn) {
        core.space.write_use(*segment, KIND_BLOCKS, 0);
    }
    let marked = uses.iter().filter(|(_, usage)| matches!(usage, SegmentUse::Blocks | SegmentUse::Torn));
    marked.map(|(segment, _)| *segment).collect()
}

/// Bytes of the inode table that are read at once; few enough to stay in the CPU's cache.
const READ_AT_ONCE: usize = 64 << 10;

/// Finds the slots in use of the inode table, including torn ones, which reconcile handles. Returns the number of
/// slots.
fn scan_inodes(core: &Core) -> u64 {
    let segments = core.table.segments();
    let threads = parallel::threads(segments.len(), TABLE_SEGMENTS_PER_THREAD_MIN);
    let found = parallel::map(threads, &segments, |part| {
        let mut words = vec![0; part.len() * WORDS_PER_TABLE_SEGMENT];
        let mut slots = vec![0; READ_AT_ONCE];
        let scanned = words.chunks_mut(WORDS_PER_TABLE_SEGMENT).zip(part);
        let areas: u64 = scanned.map(|(words, part)| scan_table_segment(core, *part, words, &mut slots)).sum();
        (words, areas)
    });
    let (found, areas): (Vec<Vec<u64>>, Vec<u64>) = found.into_iter().unzip();
    let mut words = core.table.used_words();
    for (found, (ordinal, _)) in found.concat().chunks(WORDS_PER_TABLE_SEGMENT).zip(&segments) {
        let first = *ordinal as usize * WORDS_PER_TABLE_SEGMENT;
        words[first..first + WORDS_PER_TABLE_SEGMENT].copy_from_slice(found);
    }
    core.table.adopt(&words, areas.iter().sum());
    core.table.end()
}

/// Sets a bit for each slot in use; returns how many of them are log areas. Slots in holes of the host file were
/// never used.
fn scan_table_segment(core: &Core, (ordinal, segment): (u64, u64), words: &mut [u64], slots: &mut [u8]) -> u64 {
    let mut areas = 0;
    let (start, end) = (segment * SEGMENT_BYTES, (segment + 1) * SEGMENT_BYTES);
    let mut at = core.region.next_allocated(start, end) / INODE_BYTES * INODE_BYTES;
    while at < end {
        let slots = &mut slots[..(end - at).min(READ_AT_ONCE as u64) as usize];
        core.region.scan_into(at, slots);
        let has_bad_memory = core.region.check().is_err();
        for (slot, bytes) in (at..).step_by(INODE_BYTES as usize).zip(slots.chunks_exact(INODE_BYTES as usize)) {
            // The content of a slot in bad memory is unknown, so its number must not be reused.
            let is_bad = || has_bad_memory && !core.region.sound_or_forget(slot, INODE_BYTES);
            let use_word = u64::from_le_bytes(*bytes[USE_WORD as usize..].first_chunk().expect("a slot is longer"));
            let is_used = !is_free(use_word) || is_bad();
            let index = (slot - start) / INODE_BYTES;
            words[(index / 64) as usize] |= u64::from(is_used) << (index % 64);
            let is_area = |area: AreaHead| area.is_whole(slot) && area.number == ordinal * INODES_PER_SEGMENT + index;
            areas += u64::from(bytes[USE_WORD as usize] == KIND_LOG_AREA && is_area(core.region.read(slot)));
        }
        at = core.region.next_allocated(at + slots.len() as u64, end) / INODE_BYTES * INODE_BYTES;
    }
    areas
}

/// Counts everything at once for a read-only mount after a crash, and repairs nothing. Damaged inodes give EIO when
/// they are used; the rest can be read.
pub(super) fn count_all(mounted: &Mounted) {
    let core = &mounted.core;
    mounted.recovery.lock().inodes_scanned = scan_inodes(core);
    let mut packed = HashSet::new();
    // Slots that were never used are not read: the host would allocate memory for their holes.
    for ino in core.table.used() {
        let Some(slot) = core.table.slot(ino) else { continue };
        let Ok(Some(inode)) = Inode::load(&core.region, &core.geometry, slot, ino) else { continue };
        let state = inode.into_state();
        core.mapped_bytes.add(state.mapped_bytes());
        core.count_charged(ino, &state);
        for block in state.log.pages().chain(state.xattr_blocks()) {
            core.space.mark_used(block);
        }
        let extents = state.extents().into_iter().flat_map(|extents| extents.iter());
        for (_, extent) in extents {
            for block in extent.blocks().blocks() {
                core.data_blocks.add(u64::from(core.space.mark_used(block)));
            }
            if let Some(chunk) = extent.packed().filter(|chunk| packed.insert(*chunk)) {
                core.count_packed(chunk);
            }
        }
    }
}
