//! Finds out what each segment is used for: from the segment table, and where that is damaged, from the segments
//! themselves.
//!
//! The problem: a table entry takes 16 bytes, so one stray write of 4 KiB destroys the entries of 256 segments. If
//! the first segment of the inode table is among them, the whole file system would be lost.
//!
//! The idea: every kind of segment can be recognized by its content.
//!
//! - An inode slot describes itself. Its head has its number, under a checksum, and the address of its log, which
//!   begins in the slot or in a page that records the inode. So a segment of the inode table is recognized wherever
//!   it is.
//! - The pm index is rebuilt from the chunk table, and blocks that inodes reference are in use.
//! - A packed segment is recognized by its first header: the checksum yields how often the segment was opened, and
//!   the header counts if that is a likely number.
//! - A segment of packed entries is recognized by entries that agree with the headers of the chunks.
//!
//! The segments themselves are scanned only if the table cannot be whole: an entry is torn and its segment holds
//! inodes, the parts of a table are not consecutive, two segments claim the same part, or the saved state counts
//! other inodes. A half-written entry alone is a normal result of a crash. An entry that is torn in another way counts
//! as damage if its segment holds packed chunks.

use super::index::index_segments_in;
use super::saved::Saved;
use crate::chunk::entries::{ENTRIES_PER_SEGMENT, Entries};
use crate::inode::table::{Parts, TablePart, read_entries, table_parts, uses_of};
use crate::media::chunk_entry::{ChunkEntry, ENTRY_BYTES};
use crate::media::inode::{INLINE_LOG, INODE_BYTES, INODES_PER_SEGMENT, InodeHead};
use crate::media::log_area::{AREA_LOG, AreaHead};
use crate::media::log_entry::{ENTRY_BYTES_MAX, PageFooter};
use crate::media::packed::{PackedHeader, header_offset};
use crate::media::segment::{KIND_PACKED, SegmentEntry, SegmentUse};
use crate::media::superblock::{Geometry, Superblock};
use crate::media::{BLOCK_BYTES, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::space::packed::headers;
use crate::words::IndexKind;
use pmem::{PmemError, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

/// What is wrong with a segment table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TableDamage {
    /// Parts of the pm index are missing; another index replaces it.
    PmIndex,
    /// Anything else, in words.
    Other(&'static str),
}

impl Display for TableDamage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            TableDamage::PmIndex => "parts of the pm index are missing",
            TableDamage::Other(what) => what,
        })
    }
}

/// The tables of a device as they are, or as they must have been.
pub(crate) struct Tables {
    /// The entries of the segment table that are not zero, by segment; those of packed segments are reconstructed if
    /// damaged.
    pub(crate) entries: Vec<(u64, SegmentEntry)>,
    /// The use of each segment that is not free.
    pub(crate) uses: Vec<(u64, SegmentUse)>,
    /// The parts of the inode table; empty if none could be found. A part that was lost counts as absent.
    pub(crate) inodes: Parts,
    /// Why the segment table cannot be trusted.
    pub(crate) damage: Option<TableDamage>,
    /// The error if part of the segment table is in bad memory.
    pub(crate) bad: Option<PmemError>,
}

impl Tables {
    /// Reads the segment table. `saved` is the state that the last unmount left, if it is usable.
    pub(crate) fn read(region: &Region, geometry: &Geometry, superblock: &Superblock, saved: Option<&Saved>) -> Tables {
        let entries = read_entries(region, geometry);
        let bad = region.check().err();
        let uses = uses_of(&entries);
        let inodes = table_parts(geometry, &entries);
        let has_pm_index = matches!(superblock.index(), Some((IndexKind::Pm, _)));
        let torn = || entries.iter().filter(|(segment, entry)| entry.usage(*segment) == SegmentUse::Torn);
        let holds_inodes = |(segment, _): &(u64, _)| part_of_inode_table(region, geometry, *segment).is_some();
        let holds_packed = |(segment, entry): &(u64, SegmentEntry)| {
            !entry.is_half(*segment) && times_opened(region, geometry, *segment).is_some()
        };
        let damage = match &inodes {
            Err(_) => Some(TableDamage::Other("the parts of the inode table do not follow one another")),
            Ok(_) if has_pm_index && index_segments_in(geometry, &uses).is_err() => Some(TableDamage::PmIndex),
            Ok(found) if saved.is_some_and(|saved| !knew_of(saved, found)) => {
                Some(TableDamage::Other("the last unmount knew of another inode table"))
            }
            Ok(_) if torn().any(holds_inodes) => Some(TableDamage::Other("a segment without an entry holds inodes")),
            Ok(_) if torn().any(holds_packed) => {
                Some(TableDamage::Other("a segment without an entry holds packed chunks"))
            }
            Ok(_) if !too_small(geometry, &uses).is_empty() => {
                Some(TableDamage::Other("a segment without room for them holds packed chunks or their entries"))
            }
            Ok(_) if !contested(geometry, uses.iter().copied()).is_empty() => Some(TableDamage::Other(
                "two segments are one part of the packed entries, or one is a part that there cannot be",
            )),
            Ok(_) => None,
        };
        match damage {
            None => Tables { entries, uses, inodes: inodes.unwrap_or_default(), damage, bad },
            Some(_) => Tables { damage, bad, ..Tables::found(region, geometry, entries) },
        }
    }

    /// Returns the segments of the inode table.
    pub(crate) fn inode_segments(&self) -> Vec<u64> {
        self.inodes.iter().flatten().map(|part| part.segment).collect()
    }

    /// Returns the entry of a segment, if it is not zero.
    pub(crate) fn entry(&self, segment: u64) -> Option<&SegmentEntry> {
        let at = self.entries.binary_search_by_key(&segment, |(segment, _)| *segment).ok()?;
        Some(&self.entries[at].1)
    }

    /// Finds the tables by the content of the segments; all other entries count if they are whole.
    fn found(region: &Region, geometry: &Geometry, entries: Vec<(u64, SegmentEntry)>) -> Tables {
        let told = uses_of(&entries);
        let mut uses: BTreeMap<u64, SegmentUse> = told.iter().copied().collect();
        uses.extend(too_small(geometry, &told).into_iter().map(|segment| (segment, SegmentUse::Torn)));
        let mut entries: BTreeMap<u64, SegmentEntry> = entries.into_iter().collect();
        // Several segments may claim to be, or look like, the same part: the one with the most inodes wins.
        let mut parts: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for segment in geometry.data_ranges().flatten() {
            let is_whole = geometry.blocks_in_segment(segment) == SEGMENT_BLOCKS;
            let told = match uses.get(&segment) {
                Some(SegmentUse::Inodes(ordinal)) if is_whole => Some((*ordinal, 0)),
                _ => None,
            };
            let part = part_of_inode_table(region, geometry, segment).or(told);
            if let Some((ordinal, inodes)) = part.filter(|(ordinal, _)| u64::from(*ordinal) < geometry.segments()) {
                keep_best(&mut parts, ordinal, (inodes, segment));
            }
        }
        // Behind the last part with inodes, only parts that follow one another count.
        let end =
            parts.iter().filter(|(_, (inodes, _))| *inodes > 0).map(|(ordinal, _)| ordinal + 1).max().unwrap_or(0);
        let segment_of = |ordinal| parts.get(&ordinal).map(|(_, segment)| *segment);
        let is_in_table = |ordinal: &u32| *ordinal < end || segment_of(*ordinal).is_some();
        let segments = (0..).take_while(is_in_table).map(segment_of);
        let inodes: Parts = segments.map(|segment| Some(TablePart { segment: segment?, absent_before: 0 })).collect();
        let is_part: BTreeSet<u64> = inodes.iter().flatten().map(|part| part.segment).collect();
        for (segment, usage) in &mut uses {
            if matches!(usage, SegmentUse::Inodes(_)) && !is_part.contains(segment) {
                *usage = SegmentUse::Torn;
            }
        }
        let parts =
            (0..).zip(&inodes).filter_map(|(ordinal, part)| Some(((*part)?.segment, SegmentUse::Inodes(ordinal))));
        uses.extend(parts);
        let claims = uses.iter().map(|(segment, usage)| (*segment, *usage));
        uses.extend(contested(geometry, claims).into_iter().map(|segment| (segment, SegmentUse::Torn)));
        find_packed(region, geometry, &mut uses, &mut entries);
        let (entries, uses) = (entries.into_iter().collect(), uses.into_iter().collect());
        Tables { entries, uses, inodes, damage: None, bad: None }
    }
}

/// Keeps, for each part, the segment with the most evidence of being it. `claim` is the amount of evidence and the
/// segment.
fn keep_best(parts: &mut BTreeMap<u32, (u64, u64)>, part: u32, claim: (u64, u64)) {
    let best = parts.entry(part).or_insert(claim);
    if claim.0 > best.0 {
        *best = claim;
    }
}

/// Returns true if a table of these parts may have had the inodes in use that the last unmount saved.
fn knew_of(saved: &Saved, parts: &[Option<TablePart>]) -> bool {
    const WORDS_PER_PART: usize = (INODES_PER_SEGMENT / 64) as usize;
    let words = saved.inode_words.chunks(WORDS_PER_PART);
    let is_possible =
        |(words, part): (&[u64], &Option<TablePart>)| part.is_some() || words.iter().all(|word| *word == 0);
    saved.inode_words.len() == parts.len() * WORDS_PER_PART && words.zip(parts).all(is_possible)
}

/// Returns which part of the inode table a segment is, and how many inodes say so; `None` if none does.
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

/// Returns true if a slot holds an inode or a log area of this device. In a file that is a copy of another device,
/// the addresses differ.
fn describes_itself(region: &Region, geometry: &Geometry, slot: u64, head: &InodeHead) -> bool {
    let area: AreaHead = region.read(slot);
    if head.ino == 0 || head.live(head.ino).is_none() && !area.is_whole(slot) {
        return false;
    }
    // In a log area, the head word is that of an empty log.
    if head.head == slot + INLINE_LOG {
        return true;
    }
    if head.head % INODE_BYTES == AREA_LOG && geometry.holds_data(head.head - AREA_LOG, INODE_BYTES) {
        let first = head.head - AREA_LOG;
        let area: AreaHead = region.read(first);
        return region.check().is_ok() && area.is_whole(first) && area.owner == head.ino;
    }
    let is_page = head.head.is_multiple_of(BLOCK_BYTES) && geometry.holds_data(head.head, BLOCK_BYTES);
    is_page && {
        let footer: PageFooter = region.read(head.head + ENTRY_BYTES_MAX as u64);
        region.check().is_ok() && footer.belongs(head.head, head.ino)
    }
}

/// Returns the segments that claim to hold packed chunks or their entries, and lack blocks for that: those of a copy of
/// the superblock, or those behind the end of the device.
fn too_small(geometry: &Geometry, uses: &[(u64, SegmentUse)]) -> Vec<u64> {
    let needs_all = |usage: &SegmentUse| matches!(usage, SegmentUse::Packed | SegmentUse::Entries(_));
    let claims = uses.iter().filter(|(_, usage)| needs_all(usage)).map(|(segment, _)| *segment);
    claims.filter(|segment| geometry.blocks_in_segment(*segment) != SEGMENT_BLOCKS).collect()
}

/// Returns the segments that claim to be a part of the packed entries which another segment claims too, or which
/// cannot exist.
fn contested(geometry: &Geometry, uses: impl Iterator<Item = (u64, SegmentUse)>) -> Vec<u64> {
    let mut claims: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for (segment, usage) in uses {
        if let SegmentUse::Entries(part) = usage {
            claims.entry(part).or_default().push(segment);
        }
    }
    let is_wrong = |part: u32, claims: &[u64]| claims.len() > 1 || u64::from(part) >= Entries::parts_max_of(geometry);
    claims.into_iter().filter(|(part, claims)| is_wrong(*part, claims)).flat_map(|(_, claims)| claims).collect()
}

/// Finds packed segments, and segments of packed entries, among those with no valid entry in the segment table.
fn find_packed(
    region: &Region,
    geometry: &Geometry,
    uses: &mut BTreeMap<u64, SegmentUse>,
    entries: &mut BTreeMap<u64, SegmentEntry>,
) {
    let is_open = |segment: &u64| matches!(uses.get(segment), None | Some(SegmentUse::Torn));
    let unknown: Vec<u64> = geometry.data_ranges().flatten().filter(is_open).collect();
    for segment in &unknown {
        if let Some(wear) = times_opened(region, geometry, *segment) {
            uses.insert(*segment, SegmentUse::Packed);
            let opened = SegmentEntry { wear, ..SegmentEntry::default() };
            entries.insert(*segment, opened.used_for(*segment, KIND_PACKED, 0));
        }
    }
    let mut places: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for (segment, _) in uses.iter().filter(|(_, usage)| **usage == SegmentUse::Packed) {
        for (_, header) in headers(region, *segment, entries[segment].wear) {
            places.entry(segment * SEGMENT_BYTES + u64::from(header.offset)).or_default().push(header.chunk);
        }
    }
    let _ = region.check();
    // Several segments may look like the same part: the one with the most entries wins.
    let mut parts: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for segment in unknown.into_iter().filter(|segment| !matches!(uses.get(segment), Some(SegmentUse::Packed))) {
        if let Some((part, count)) = part_of_packed_entries(region, geometry, segment, &places) {
            keep_best(&mut parts, part, (count, segment));
        }
    }
    let is_told = |part: u32| uses.values().any(|usage| *usage == SegmentUse::Entries(part));
    parts.retain(|part, _| !is_told(*part));
    uses.extend(parts.into_iter().map(|(part, (_, segment))| (segment, SegmentUse::Entries(part))));
}

/// Limit for the number of times that a segment can have been opened: so many writes would wear out any medium.
const OPENED_MAX: u32 = 1 << 20;

/// Returns how often a packed segment was opened, by its first header; `None` if the segment holds no packed chunks.
fn times_opened(region: &Region, geometry: &Geometry, segment: u64) -> Option<u32> {
    if geometry.blocks_in_segment(segment) != SEGMENT_BLOCKS {
        return None;
    }
    let header: PackedHeader = region.read(segment * SEGMENT_BYTES + header_offset(0));
    let is_sound = region.check().is_ok();
    let opened = header.opened(segment);
    (is_sound && header != PackedHeader::default() && header.offset == 0 && opened <= OPENED_MAX).then_some(opened)
}

/// Returns which part of the table of packed entries a segment is, and how many of its entries agree with a header
/// about that. `places` maps the address of a chunk's first byte to the numbers that headers give for it.
fn part_of_packed_entries(
    region: &Region,
    geometry: &Geometry,
    segment: u64,
    places: &BTreeMap<u64, Vec<u32>>,
) -> Option<(u32, u64)> {
    if geometry.blocks_in_segment(segment) != SEGMENT_BLOCKS {
        return None;
    }
    let mut parts: BTreeMap<u32, u64> = BTreeMap::new();
    for range in region.allocated_ranges(segment * SEGMENT_BYTES, SEGMENT_BYTES) {
        for at in (range.start..range.end).step_by(ENTRY_BYTES as usize) {
            let entry: ChunkEntry = region.read(at);
            let in_part = ((at - segment * SEGMENT_BYTES) / ENTRY_BYTES) as u32;
            if region.check().is_err() || entry.class() == 0 || entry.is_empty() {
                continue;
            }
            let numbers = places.get(&entry.address()).into_iter().flatten();
            for number in numbers.filter(|number| **number % ENTRIES_PER_SEGMENT == in_part) {
                *parts.entry(number / ENTRIES_PER_SEGMENT).or_default() += 1;
            }
        }
    }
    parts.into_iter().max_by_key(|(_, count)| *count)
}
