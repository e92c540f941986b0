//! The inode table: where inode slots are, and which of them are free.
//!
//! The table grows by whole segments of 4096 slots. A segment's entry in the segment table holds its ordinal, so a
//! slot is found from its inode number with one division. The lowest free number is used first, so that segments at the
//! end become free.
//!
//! A segment without used slots is given back, wherever it is: one late file does not hold the whole table. Its part of
//! the table is then **absent**, and is made again when all others are full. After a crash, an absent part must be told
//! from one whose entry in the segment table was lost. So the entry of the next part says how many parts directly before
//! it may be absent, durably before the first of them is given back:
//!
//! ```text
//! part       0    1    2    3    4           5
//! segment    7    -    -    9    -           12
//! its entry  0              2                1          a crash may leave a part there that is said to be absent
//! ```
//!
//! **Log areas** ([`crate::media::log_area`]) are slots too: a used number belongs to an inode or to an area. The
//! table never grows for an area, because a log can use a page instead; so the space promised to operations on a full
//! device does not depend on areas. After a crash, areas that no log references are found in the same way as inodes
//! without a name.

use crate::error::{Error, Result, errno};
use crate::media::inode::{COMMIT_WORD, INLINE_LOG, INODE_BYTES, INODES_PER_SEGMENT, InodeHead, USE_WORD};
use crate::media::log_area::AreaHead;
use crate::media::log_entry::PAGE_LINES;
use crate::media::segment::{SegmentEntry, SegmentUse};
use crate::media::superblock::Geometry;
use crate::media::{SEGMENT_BLOCKS, SEGMENT_BYTES, inode};
use crate::space::{KEPT_BLOCKS, Space, clear_segment};
use nvfold_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use nvfold_sync::{Mutex, RwLock};
use pmem::{Dirty, Flight, Pm, Region};
use std::collections::BTreeSet;
use std::ops::Range;
use zerocopy::IntoBytes;

/// Blocks of a log with a line for each inode of a segment of the table: with their names, or with their removals.
const LINES_BLOCKS: u64 = INODES_PER_SEGMENT.div_ceil(PAGE_LINES);

/// The number of words with the used bits of a part.
const WORDS_PER_PART: usize = (INODES_PER_SEGMENT / 64) as usize;

/// A part of the table, as its entry in the segment table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TablePart {
    /// Its segment.
    pub segment: u64,
    /// How many parts directly before it may be absent.
    pub absent_before: u16,
}

/// The parts of a table by ordinal: `None` for an absent one.
pub(crate) type Parts = Vec<Option<TablePart>>;

/// The inode table of one device.
pub(crate) struct InodeTable {
    region: Region,
    parts: RwLock<Parts>,
    used: Mutex<UsedSlots>,
    /// After a crash: inodes for which no name has been found yet, one bit each. Empty when no search is under way.
    unnamed: Mutex<Vec<u64>>,
    looking: AtomicBool,
    /// During the search, numbers in words below this one are not handed out. A slot that looks free may be damaged,
    /// and its name may not have been found yet.
    barred_words: AtomicUsize,
}

#[derive(Default)]
struct UsedSlots {
    words: Vec<u64>,
    count: u64,
    /// The number of these that are log areas.
    areas: u64,
    /// Words before this one have no free bit, or belong to absent parts.
    search_from: usize,
    /// The ordinals of absent parts. Their words are zero.
    absent: BTreeSet<usize>,
}

impl UsedSlots {
    /// Returns the words of a part.
    fn of_part(&self, ordinal: usize) -> &[u64] {
        &self.words[ordinal * WORDS_PER_PART..(ordinal + 1) * WORDS_PER_PART]
    }

    fn is_empty(&self, ordinal: usize) -> bool {
        self.of_part(ordinal).iter().all(|word| *word == 0)
    }

    fn is_absent(&self, word: usize) -> bool {
        !self.absent.is_empty() && self.absent.contains(&(word / WORDS_PER_PART))
    }
}

impl InodeTable {
    /// Makes a table of these parts. All of it is free except inode 0, which is never used.
    pub(crate) fn new(region: Region, parts: Parts) -> InodeTable {
        let absent = (0..).zip(&parts).filter(|(_, part)| part.is_none()).map(|(ordinal, _)| ordinal).collect();
        let mut used = UsedSlots { words: vec![0; parts.len() * WORDS_PER_PART], absent, ..UsedSlots::default() };
        if let Some(first) = used.words.first_mut() {
            *first = 1;
        }
        InodeTable {
            region,
            parts: RwLock::new(parts),
            used: Mutex::new(used),
            unnamed: Mutex::default(),
            looking: AtomicBool::new(false),
            barred_words: AtomicUsize::new(0),
        }
    }

    /// Returns the DRAM of the used bits, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        self.used.lock().words.capacity() as u64 * 8
    }

    /// Returns the device offset of an inode's slot, for an inode that stays in use; `None` in an absent part and past
    /// the end of the table.
    pub(crate) fn slot(&self, ino: u64) -> Option<u64> {
        slot_in(&self.parts.read(), ino)
    }

    /// Calls `read` with an inode's slot, which stays part of the table meanwhile. Returns `None` in an absent part and
    /// past the end of the table.
    pub(crate) fn with_slot<T>(&self, ino: u64, read: impl FnOnce(u64) -> T) -> Option<T> {
        let parts = self.parts.read();
        Some(read(slot_in(&parts, ino)?))
    }

    /// Returns the end of the inode numbers of the table: `1..end`. Those of absent parts have no slot.
    pub(crate) fn end(&self) -> u64 {
        self.parts.read().len() as u64 * INODES_PER_SEGMENT
    }

    /// True if an inode number is in use.
    pub(crate) fn is_used(&self, ino: u64) -> bool {
        self.used.lock().words.get((ino / 64) as usize).is_some_and(|word| word & 1 << (ino % 64) != 0)
    }

    /// Returns the first used inode number at or after `from`, or [`InodeTable::end`] if there is none.
    pub(crate) fn next_used(&self, from: u64) -> u64 {
        let used = self.used.lock();
        first_set(&used.words, from).unwrap_or(used.words.len() as u64 * 64)
    }

    /// Iterates over the used inode numbers from 1 on, as they are when it comes to them.
    pub(crate) fn used(&self) -> impl Iterator<Item = u64> + '_ {
        let numbers = std::iter::successors(Some(self.next_used(1)), |ino| Some(self.next_used(ino + 1)));
        numbers.take_while(|ino| *ino < self.end())
    }

    /// Returns the segments of the table, with their ordinals.
    pub(crate) fn segments(&self) -> Vec<(u64, u64)> {
        let parts = self.parts.read();
        (0..).zip(parts.iter()).filter_map(|(ordinal, part)| Some((ordinal, (*part)?.segment))).collect()
    }

    /// Returns the number of inodes in use.
    pub(crate) fn in_use(&self) -> u64 {
        let used = self.used.lock();
        used.count.saturating_sub(used.areas)
    }

    /// Returns the number of log areas in use.
    pub(crate) fn areas(&self) -> u64 {
        self.used.lock().areas
    }

    /// Mount: adopts the used bits, as [`InodeTable::used_words`] returned them, and the number of log areas among
    /// them.
    pub(crate) fn adopt(&self, words: &[u64], areas: u64) {
        let mut used = self.used.lock();
        used.words.copy_from_slice(words);
        used.words[0] |= 1;
        used.count = used.words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>() - 1;
        // The saved number may be damaged.
        used.areas = areas.min(used.count);
    }

    /// Begins the search for inodes without a name, with all used inodes as candidates.
    pub(crate) fn look_for_unnamed(&self) {
        let words = self.used_words();
        let barred = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        self.barred_words.store(barred, Ordering::Release);
        *self.unnamed.lock() = words;
        self.looking.store(true, Ordering::Release);
    }

    /// Ends the search and returns the inodes for which no name was found.
    pub(crate) fn take_unnamed_inodes(&self) -> Vec<u64> {
        let mut unnamed = self.unnamed.lock();
        let is_set = |ino: &u64| unnamed[(ino / 64) as usize] & 1 << (ino % 64) != 0;
        let found = (1..unnamed.len() as u64 * 64).filter(is_set).collect();
        self.looking.store(false, Ordering::Release);
        self.barred_words.store(0, Ordering::Release);
        *unnamed = Vec::new();
        found
    }

    /// Marks a number as used forever, because a name refers to it although its slot looks free. Returns false if it
    /// was in use already or has no slot.
    pub(crate) fn keep(&self, ino: u64) -> bool {
        let mut used = self.used.lock();
        if used.is_absent((ino / 64) as usize) {
            return false;
        }
        let Some(word) = used.words.get_mut((ino / 64) as usize) else { return false };
        let is_new = *word & 1 << (ino % 64) == 0;
        *word |= 1 << (ino % 64);
        used.count += u64::from(is_new);
        is_new
    }

    /// Records that an inode has a name, or that the operation which made it will give it one.
    pub(crate) fn note_name_found(&self, ino: u64) {
        if self.looking.load(Ordering::Acquire)
            && let Some(word) = self.unnamed.lock().get_mut((ino / 64) as usize)
        {
            *word &= !(1 << (ino % 64));
        }
    }

    /// True if no name has been found for an inode yet.
    pub(crate) fn is_unnamed(&self, ino: u64) -> bool {
        self.unnamed.lock().get((ino / 64) as usize).is_some_and(|word| word & 1 << (ino % 64) != 0)
    }

    /// Returns the first inode at or after `from` for which no name has been found. The search stays open.
    pub(crate) fn first_unnamed(&self, from: u64) -> Option<u64> {
        first_set(&self.unnamed.lock(), from)
    }

    /// The same, but ends the search if it returns `None`.
    pub(crate) fn next_unnamed(&self, from: u64) -> Option<u64> {
        let mut unnamed = self.unnamed.lock();
        let found = first_set(&unnamed, from);
        if found.is_none() {
            self.looking.store(false, Ordering::Release);
            self.barred_words.store(0, Ordering::Release);
            *unnamed = Vec::new();
        }
        found
    }

    /// Returns the used bits, one for each inode number. Bit 0 is always set.
    pub(crate) fn used_words(&self) -> Vec<u64> {
        self.used.lock().words.clone()
    }

    /// Takes the lowest free inode number, and grows the table if there is none. During the search after a crash it
    /// takes the lowest number above all that were in use.
    ///
    /// # Errors
    /// ENOSPC if the table cannot grow, or if the names of its inodes could then not be removed any more.
    pub(crate) fn allocate(&self, space: &Space) -> Result<u64> {
        let mut used = self.used.lock();
        loop {
            if let Some(number) = self.take_free(&mut used) {
                return Ok(number);
            }
            self.grow(space, &mut used)?;
        }
    }

    /// For tests: makes all parts up to that of this number, and gives new inodes the numbers from there on.
    pub(crate) fn grow_to(&self, ino: u64, space: &Space) -> Result<()> {
        let mut used = self.used.lock();
        while self.slot(ino).is_none() {
            self.grow(space, &mut used)?;
        }
        used.search_from = (ino / 64) as usize;
        Ok(())
    }

    fn take_free(&self, used: &mut UsedSlots) -> Option<u64> {
        let barred = self.barred_words.load(Ordering::Acquire);
        let from = used.search_from.max(barred);
        let found = (from..used.words.len()).find(|word| used.words[*word] != !0 && !used.is_absent(*word));
        if barred <= used.search_from {
            used.search_from = found.unwrap_or(used.words.len());
        }
        let word = found?;
        let bit = used.words[word].trailing_ones();
        used.words[word] |= 1 << bit;
        used.count += 1;
        Some(word as u64 * 64 + u64::from(bit))
    }

    /// Takes the lowest free number for a log area of `owner`. Returns the slot and the head to write to it, or
    /// `None` if the table is full. A number whose slot is in bad memory is never used again.
    pub(crate) fn allocate_area(&self, owner: u64) -> Option<(u64, AreaHead)> {
        loop {
            let number = self.take_free(&mut self.used.lock())?;
            let slot = self.slot(number).expect("a number that is taken has a slot");
            let old: InodeHead = self.region.read(slot);
            if self.region.sound_or_forget(slot, INODE_BYTES) {
                self.used.lock().areas += 1;
                self.note_name_found(number);
                empty_old_log(&self.region, slot, &old);
                return Some((slot, AreaHead::new(slot, number, owner, old.generation)));
            }
        }
    }

    /// Returns the log area in this slot, if there is one and the slot belongs to this table.
    pub(crate) fn area_in(&self, slot: u64) -> Option<AreaHead> {
        let area: AreaHead = self.region.read(slot);
        (area.is_whole(slot) && self.slot(area.number) == Some(slot)).then_some(area)
    }

    /// Returns the log area with this number, if it is one.
    pub(crate) fn area(&self, number: u64) -> Option<AreaHead> {
        self.area_in(self.slot(number)?)
    }

    /// Frees log areas that no log references any more. They are durably free on the media before their numbers get
    /// other users. A slot that is no area of this table, or that is in bad memory, stays as it is.
    pub(crate) fn free_areas(&self, slots: impl Iterator<Item = u64>) {
        let mut flight = Flight::new();
        let mut freed = Vec::new();
        for slot in slots {
            let area = self.area_in(slot);
            if let Some(area) = area.filter(|_| self.region.sound_or_forget(slot, INODE_BYTES)) {
                let use_word = u64::from(area.generation) << 32;
                flight.add(self.region.store_u64(slot + USE_WORD, use_word).flush());
                freed.push(area.number);
            }
        }
        if freed.is_empty() {
            return;
        }
        let _ = self.region.fence(flight);
        for number in freed {
            self.free(number);
            let areas = &mut self.used.lock().areas;
            *areas = areas.saturating_sub(1);
        }
    }

    /// Frees an inode number whose slot is already marked free on the media.
    pub(crate) fn free(&self, ino: u64) {
        let mut used = self.used.lock();
        let word = (ino / 64) as usize;
        used.words[word] &= !(1 << (ino % 64));
        used.count -= 1;
        used.search_from = used.search_from.min(word);
    }

    /// Gives free segments of the table back to the allocator, except the first one; those with a part after them only
    /// if `may_leave_gaps`. Must not run before reconcile is done, because reconcile relies on the segments that the
    /// table had when it began.
    ///
    /// No inode there can be in use or about to be: numbers are taken under `used`, which is held here, and a number
    /// is freed last, when its slot is free on the media and the inode is no longer in the cache. A lookup by number
    /// reads the slot under `parts`.
    pub(crate) fn shrink(&self, space: &Space, may_leave_gaps: impl FnOnce() -> bool) {
        let mut used = self.used.lock();
        let mut parts = self.parts.write();
        while let last @ 1.. = parts.len().saturating_sub(1)
            && used.is_empty(last)
        {
            let part = parts.pop().expect("more than one");
            used.absent.remove(&last);
            used.words.truncate(last * WORDS_PER_PART);
            used.search_from = used.search_from.min(used.words.len());
            part.into_iter().for_each(|part| space.free_segment(part.segment));
        }
        let empty: Vec<usize> = (1..parts.len()).filter(|at| parts[*at].is_some() && used.is_empty(*at)).collect();
        if empty.is_empty() || !may_leave_gaps() {
            return;
        }
        let mut freed = Vec::new();
        for ordinal in empty {
            if fits_in_note(&parts, ordinal) {
                freed.extend(parts[ordinal].take());
                used.absent.insert(ordinal);
            }
        }
        note_absent(&mut parts, space);
        freed.into_iter().for_each(|part| space.free_segment(part.segment));
    }

    /// After a crash: makes the parts say what is absent, and no more.
    pub(crate) fn settle_absent(&self, space: &Space) {
        let _used = self.used.lock();
        note_absent(&mut self.parts.write(), space);
    }

    /// Returns how many inodes the table could have if all of these free blocks were for it and for the names.
    pub(crate) fn possible(&self, free_blocks: u64) -> u64 {
        let segments = self.segment_count();
        // The names of inodes in slots that are free now take blocks, too.
        let free_slots = (segments * INODES_PER_SEGMENT).saturating_sub(self.used.lock().count);
        let taken = blocks_left(segments) + free_slots.div_ceil(PAGE_LINES);
        let more = free_blocks.saturating_sub(taken) / (SEGMENT_BLOCKS + 2 * LINES_BLOCKS);
        // Number 0 is not used.
        (segments + more) * INODES_PER_SEGMENT - 1
    }

    fn segment_count(&self) -> u64 {
        self.parts.read().iter().flatten().count() as u64
    }

    /// Makes the first absent part, or a new last one. During the search after a crash, a part in which numbers are not
    /// handed out is of no use.
    fn grow(&self, space: &Space, used: &mut UsedSlots) -> Result<()> {
        let barred = self.barred_words.load(Ordering::Acquire).div_ceil(WORDS_PER_PART);
        let end = used.words.len() / WORDS_PER_PART;
        let ordinal = used.absent.range(barred..).next().copied().unwrap_or(end);
        if ordinal as u64 >= space.geometry().segments() {
            return Err(Error::Posix {
                doing: "create an inode",
                why: "the inode table is as large as it can be",
                errno: errno::ENOSPC,
            });
        }
        if !space.has_free(SEGMENT_BLOCKS + blocks_left(self.segment_count() + 1)) {
            return Err(space.no_space_for_segment("create an inode"));
        }
        let segment = space.allocate_segment("create an inode")?;
        clear_segment(&self.region, segment).inspect_err(|_| space.free_segment(segment))?;
        let mut parts = self.parts.write();
        let absent_before = leading_absent(parts[..ordinal].iter().rev()) as u16;
        space.write_table_part(segment, ordinal as u32, absent_before);
        if ordinal == end {
            parts.push(None);
            used.words.resize((end + 1) * WORDS_PER_PART, 0);
        }
        parts[ordinal] = Some(TablePart { segment, absent_before });
        used.absent.remove(&ordinal);
        used.search_from = used.search_from.min(ordinal * WORDS_PER_PART);
        note_absent(&mut parts, space);
        Ok(())
    }
}

/// Returns the first set bit at or after `from`.
fn first_set(words: &[u64], from: u64) -> Option<u64> {
    let (first, rest) = words.get((from / 64) as usize..)?.split_first()?;
    // In the first word, bits before `from` do not count.
    let words = std::iter::once(first >> (from % 64) << (from % 64)).chain(rest.iter().copied());
    let (at, word) = (from / 64..).zip(words).find(|(_, word)| *word != 0)?;
    Some(at * 64 + u64::from(word.trailing_zeros()))
}

/// Returns true if the entry of the next part can tell of all absent ones before it, this one included.
fn fits_in_note(parts: &[Option<TablePart>], ordinal: usize) -> bool {
    let (before, after) = (parts[..ordinal].iter().rev(), parts[ordinal + 1..].iter());
    leading_absent(before) + 1 + leading_absent(after) <= usize::from(u16::MAX)
}

fn leading_absent<'p>(parts: impl Iterator<Item = &'p Option<TablePart>>) -> usize {
    parts.take_while(|part| part.is_none()).count()
}

/// Iterates over the parts with their ordinals, and with what they should say of absent ones.
pub(crate) fn exact_parts(parts: &[Option<TablePart>]) -> impl Iterator<Item = (u32, TablePart)> {
    let mut absent = 0u16;
    (0..).zip(parts).filter_map(move |(ordinal, part)| {
        let absent_before = std::mem::take(&mut absent);
        match part {
            Some(part) => Some((ordinal, TablePart { absent_before, ..*part })),
            None => {
                absent = absent_before.saturating_add(1);
                None
            }
        }
    })
}

/// Makes the parts say, durably, what is absent before them.
fn note_absent(parts: &mut Parts, space: &Space) {
    let exact: Vec<(u32, TablePart)> = exact_parts(parts).collect();
    for (ordinal, part) in exact {
        let known = parts[ordinal as usize].replace(part);
        if known != Some(part) {
            space.write_table_part(part.segment, ordinal, part.absent_before);
        }
    }
}

/// Returns how many blocks a table leaves free when it grows to so many segments, so that all of its inodes can be
/// removed again.
fn blocks_left(segments: u64) -> u64 {
    KEPT_BLOCKS + segments * LINES_BLOCKS
}

fn slot_in(parts: &[Option<TablePart>], ino: u64) -> Option<u64> {
    let TablePart { segment, .. } = (*parts.get(usize::try_from(ino / INODES_PER_SEGMENT).ok()?)?)?;
    (ino != 0).then(|| segment * SEGMENT_BYTES + ino % INODES_PER_SEGMENT * INODE_BYTES)
}

/// Marks an inode slot free on the media, and empties its log in the same line. Until the head of the next user is
/// complete, a crash may combine the new identity with the old commit word; the old log must not come back then.
pub(crate) fn free_slot(region: &Region, slot: u64) {
    let head: InodeHead = region.read(slot);
    let _ = empty_log(region, slot);
    let line = region.store_u64(slot + USE_WORD, head.freed_use_word()).flush();
    let _ = region.fence(line);
}

/// Does the same for several slots, with one fence for all of them.
pub(crate) fn free_slots(region: &Region, slots: &[u64]) {
    let mut flight = Flight::new();
    for slot in slots {
        let head: InodeHead = region.read(*slot);
        let _ = empty_log(region, *slot);
        flight.add(region.store_u64(*slot + USE_WORD, head.freed_use_word()).flush());
    }
    let _ = region.fence(flight);
}

/// Empties the log of a free slot, in case a crash cut off the freeing of its last user.
pub(crate) fn empty_old_log(region: &Region, slot: u64, old: &InodeHead) {
    if old.commit != 0 && old.commit != slot + INLINE_LOG {
        let _ = region.fence(empty_log(region, slot).flush());
    }
}

/// Stores commit word and head of an empty log, to be flushed together with other stores to the line.
fn empty_log(region: &Region, slot: u64) -> Pm<'_, u128, Dirty> {
    let start = u128::from(slot + INLINE_LOG);
    region.store_u128(slot + COMMIT_WORD, start << 64 | start)
}

/// Makes a segment of an unmounted device part of a table, as `entry` says. Old bytes are cleared; a hole stays a
/// hole.
pub(crate) fn write_segment(region: &Region, geometry: &Geometry, segment: u64, entry: &SegmentEntry) -> Result<()> {
    clear_segment(region, segment)?;
    let _ = region.fence(region.write(geometry.segment_entry_offset(segment), entry).flush());
    Ok(())
}

/// Returns the use of each segment that is not free.
pub(crate) fn uses_of(entries: &[(u64, SegmentEntry)]) -> Vec<(u64, SegmentUse)> {
    let uses = entries.iter().map(|(segment, entry)| (*segment, entry.usage(*segment)));
    uses.filter(|(_, usage)| *usage != SegmentUse::Free).collect()
}

/// Returns the segment table without entries that are all zeros.
pub(crate) fn read_entries(region: &Region, geometry: &Geometry) -> Vec<(u64, SegmentEntry)> {
    const AT_ONCE: usize = 4096;
    let segments = (geometry.segments() - geometry.first_segment()) as usize;
    let mut entries = vec![SegmentEntry::default(); segments.min(AT_ONCE)];
    let mut found = Vec::new();
    let parts = geometry.data_ranges().flat_map(|range| range.clone().step_by(AT_ONCE).map(move |at| at..range.end));
    for Range { start: first, end } in parts {
        let entries = &mut entries[..(end - first).min(AT_ONCE as u64) as usize];
        region.scan_into(geometry.segment_entry_offset(first), entries.as_mut_bytes());
        found.extend((first..).zip(entries.iter().copied()).filter(|(_, entry)| *entry != SegmentEntry::default()));
    }
    found
}

/// Returns the parts of the inode table by ordinal.
///
/// # Errors
/// EIO if segments of the table are missing or damaged.
pub(crate) fn table_parts(geometry: &Geometry, entries: &[(u64, SegmentEntry)]) -> Result<Parts> {
    let part = |(segment, entry): &(u64, SegmentEntry)| match entry.usage(*segment) {
        SegmentUse::Inodes(ordinal) => {
            Some((ordinal, TablePart { segment: *segment, absent_before: entry.absent_before }))
        }
        _ => None,
    };
    let mut found: Vec<(u32, TablePart)> = entries.iter().filter_map(part).collect();
    found.sort_unstable_by_key(|(ordinal, _)| *ordinal);
    let parts = || {
        let mut parts = Parts::new();
        for (ordinal, part) in found {
            let is_whole = geometry.blocks_in_segment(part.segment) == SEGMENT_BLOCKS;
            let absent = (ordinal as usize).checked_sub(parts.len())?;
            // A crash may leave the last parts partly given back, and parts that are said to be absent; but before a part
            // only those are absent of which it says so. The first one always is there.
            let is_told = absent == 0 || absent <= usize::from(part.absent_before) && !parts.is_empty();
            if !is_whole || !is_told || u64::from(ordinal) >= geometry.segments() {
                return None;
            }
            parts.resize(ordinal as usize, None);
            parts.push(Some(part));
        }
        (!parts.is_empty()).then_some(parts)
    };
    parts().ok_or_else(|| Error::Corrupt {
        what: "segment table: segments of the inode table are missing or damaged".into(),
        at: geometry.segment_table_offset,
    })
}

const _: () = assert!(inode::INODE_BYTES == 512);
