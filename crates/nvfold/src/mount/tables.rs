//! What each segment is used for: from the segment table, and where that is damaged from what lies in the segments.
//!
//! The problem: an entry takes 16 bytes, so one stray write of 4 KiB takes what is known of 256 segments, and with the
//! first of the inode table everything. The idea: an inode slot describes itself. Its head has its number, under a
//! checksum, and the address of its log, which begins in the slot or in a page that names the inode. So a segment of the
//! inode table is known by what lies in it, wherever that is; the pm index is made again from the chunk table; and what
//! inodes name is in use.
//!
//! All segments are looked at only when the table cannot be whole: an entry is torn and its segment holds inodes, the
//! parts of a table do not follow one another, or the saved state knows of more inodes. A torn entry by itself is what a
//! crash leaves.

use super::index::index_segments_in;
use super::saved::Saved;
use crate::inode::table::{read_entries, table_segments, uses_of};
use crate::media::inode::{INLINE_LOG, INODE_BYTES, INODES_PER_SEGMENT, InodeHead};
use crate::media::log_entry::{ENTRY_BYTES_MAX, PageFooter};
use crate::media::segment::{SegmentEntry, SegmentUse};
use crate::media::superblock::{Geometry, Superblock};
use crate::media::{BLOCK_BYTES, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::words::IndexKind;
use pmem::{PmemError, Region};
use std::collections::{BTreeMap, BTreeSet};

/// The tables of a device as they are, or as they must have been.
pub(crate) struct Tables {
    /// The segment table as it lies there, but for entries that are zero.
    pub(crate) entries: Vec<(u64, SegmentEntry)>,
    /// What each segment is used for, of those that are used for anything.
    pub(crate) uses: Vec<(u64, SegmentUse)>,
    /// Segments of the inode table by ordinal; empty when none could be found.
    pub(crate) inodes: Vec<u64>,
    /// Those of them that take the place of a part of which nothing is left. What lies there means nothing.
    pub(crate) fresh: Vec<u64>,
    /// Why the segment table cannot be believed.
    pub(crate) damage: Option<&'static str>,
    /// What of it lies in bad memory.
    pub(crate) bad: Option<PmemError>,
}

impl Tables {
    /// Reads the segment table; `saved`: what the last unmount left, if it can be used.
    pub(crate) fn read(region: &Region, geometry: &Geometry, superblock: &Superblock, saved: Option<&Saved>) -> Tables {
        let entries = read_entries(region, geometry);
        let bad = region.check().err();
        let uses = uses_of(&entries);
        let inodes = table_segments(geometry, &uses);
        let has_pm_index = matches!(superblock.index(), Some((IndexKind::Pm, _)));
        let is_torn = |(_, usage): &&(u64, SegmentUse)| *usage == SegmentUse::Torn;
        let mut torn = uses.iter().filter(is_torn);
        let damage = match &inodes {
            Err(_) => Some("the parts of the inode table do not follow one another"),
            Ok(_) if has_pm_index && index_segments_in(geometry, &uses).is_err() => {
                Some("the parts of the pm index are not all there (`nvfold tune --index dram` does without)")
            }
            Ok(found) if saved.is_some_and(|saved| saved.inode_words.len() as u64 * 64 != inodes_in(found)) => {
                Some("the last unmount knew of an inode table of another size")
            }
            Ok(_) if torn.any(|(segment, _)| part_of_inode_table(region, geometry, *segment).is_some()) => {
                Some("a segment without an entry holds inodes")
            }
            Ok(_) => None,
        };
        match damage {
            None => Tables { entries, uses, inodes: inodes.unwrap_or_default(), fresh: Vec::new(), damage, bad },
            Some(_) => Tables { damage, bad, ..Tables::found(region, geometry, entries) },
        }
    }

    /// Finds the inode table in the segments themselves; all other entries count as far as they are whole.
    fn found(region: &Region, geometry: &Geometry, entries: Vec<(u64, SegmentEntry)>) -> Tables {
        let mut uses: BTreeMap<u64, SegmentUse> = uses_of(&entries).into_iter().collect();
        // The best of all segments that claim to be, or look like, the same part: the one with the most inodes.
        let mut parts: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for segment in geometry.first_segment()..geometry.segments() {
            let is_whole = geometry.blocks_in_segment(segment) == SEGMENT_BLOCKS;
            let told = match uses.get(&segment) {
                Some(SegmentUse::Inodes(ordinal)) if is_whole => Some((*ordinal, 0)),
                _ => None,
            };
            let Some((ordinal, inodes)) = part_of_inode_table(region, geometry, segment).or(told) else { continue };
            let best = parts.entry(ordinal).or_insert((inodes, segment));
            if inodes > best.0 {
                *best = (inodes, segment);
            }
        }
        let whole = |segment: &u64| geometry.blocks_in_segment(*segment) == SEGMENT_BLOCKS;
        let free = (geometry.first_segment()..geometry.segments()).rev().filter(whole);
        let mut free =
            free.filter(|segment| !uses.contains_key(segment) && !parts.values().any(|part| part.1 == *segment));
        // Where a part is missing, and inodes are known behind it, another segment takes its place.
        let end =
            parts.iter().filter(|(_, (inodes, _))| *inodes > 0).map(|(ordinal, _)| ordinal + 1).max().unwrap_or(0);
        let (mut inodes, mut fresh) = (Vec::new(), Vec::new());
        for ordinal in 0.. {
            let next = match parts.get(&ordinal) {
                Some((_, segment)) => Some(*segment),
                None if ordinal < end => free.next().inspect(|segment| fresh.push(*segment)),
                None => None,
            };
            let Some(segment) = next else { break };
            inodes.push(segment);
        }
        drop(free);
        let is_part: BTreeSet<u64> = inodes.iter().copied().collect();
        for (segment, usage) in &mut uses {
            if matches!(usage, SegmentUse::Inodes(_)) && !is_part.contains(segment) {
                *usage = SegmentUse::Torn;
            }
        }
        let parts = (0..).zip(&inodes).map(|(ordinal, segment)| (*segment, SegmentUse::Inodes(ordinal)));
        uses.extend(parts);
        Tables { entries, uses: uses.into_iter().collect(), inodes, fresh, damage: None, bad: None }
    }
}

fn inodes_in(segments: &[u64]) -> u64 {
    segments.len() as u64 * INODES_PER_SEGMENT
}

/// Which part of the inode table a segment is, and how many inodes say so; `None` when none does.
fn part_of_inode_table(region: &Region, geometry: &Geometry, segment: u64) -> Option<(u32, u64)> {
    if geometry.blocks_in_segment(segment) != SEGMENT_BLOCKS {
        return None;
    }
    let (start, end) = (segment * SEGMENT_BYTES, (segment + 1) * SEGMENT_BYTES);
    let mut inodes: BTreeMap<u32, u64> = BTreeMap::new();
    let mut page = region.next_allocated(start, end) / BLOCK_BYTES * BLOCK_BYTES;
    while page < end {
        for slot in (page..page + BLOCK_BYTES).step_by(INODE_BYTES as usize) {
            let head: InodeHead = region.read(slot);
            let is_sound = region.check().is_ok();
            let place = (slot - start) / INODE_BYTES;
            if is_sound && head.ino % INODES_PER_SEGMENT == place && describes_itself(region, geometry, slot, &head) {
                let ordinal = u32::try_from(head.ino / INODES_PER_SEGMENT).ok()?;
                *inodes.entry(ordinal).or_default() += 1;
            }
        }
        page = region.next_allocated(page + BLOCK_BYTES, end) / BLOCK_BYTES * BLOCK_BYTES;
    }
    inodes.into_iter().max_by_key(|(_, count)| *count)
}

/// Whether a slot holds an inode that was made here: in a file's copy of another device the addresses differ.
fn describes_itself(region: &Region, geometry: &Geometry, slot: u64, head: &InodeHead) -> bool {
    if head.ino == 0 || head.live(head.ino).is_none() {
        return false;
    }
    if head.head == slot + INLINE_LOG {
        return true;
    }
    let is_page = head.head.is_multiple_of(BLOCK_BYTES) && geometry.holds_data(head.head, BLOCK_BYTES);
    is_page && {
        let footer: PageFooter = region.read(head.head + ENTRY_BYTES_MAX as u64);
        region.check().is_ok() && footer.belongs(head.head, head.ino)
    }
}
