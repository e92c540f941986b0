//! The inode table: where inode slots are, and which of them are free.
//!
//! The table grows by whole segments of 4096 slots. A segment's entry in the segment table holds its ordinal, so a
//! slot is found from its inode number with one division. The lowest free number is used first, so that a table with
//! many free slots can give its last segments back.
//!
//! **Log areas** ([`crate::media::log_area`]) are slots too: a used number belongs to an inode or to an area. The
//! table never grows for an area, because a log can use a page instead; so the space promised to operations on a full
//! device does not depend on areas. After a crash, areas that no log references are found in the same way as inodes
//! without a name.

use crate::error::{Error, Result, errno};
use crate::media::inode::{COMMIT_WORD, INLINE_LOG, INODE_BYTES, INODES_PER_SEGMENT, InodeHead, USE_WORD};
use crate::media::log_area::AreaHead;
use crate::media::log_entry::PAGE_LINES;
use crate::media::segment::{KIND_INODES, SegmentEntry, SegmentUse};
use crate::media::superblock::Geometry;
use crate::media::{SEGMENT_BLOCKS, SEGMENT_BYTES, inode};
use crate::space::{KEPT_BLOCKS, Space, clear_segment};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, RwLock};
use pmem::{Dirty, Flight, Pm, Region};
use zerocopy::IntoBytes;

/// Blocks of a log with a line for each inode of a segment of the table: with their names, or with their removals.
const LINES_BLOCKS: u64 = INODES_PER_SEGMENT.div_ceil(PAGE_LINES);

/// The inode table of one device.
pub struct InodeTable {
    region: Region,
    /// Segment numbers by ordinal.
    segments: RwLock<Vec<u64>>,
    used: Mutex<Used>,
    /// After a crash: inodes for which no name has been found yet, one bit each. Empty when no search is under way.
    unnamed: Mutex<Vec<u64>>,
    looking: AtomicBool,
    /// During the search, numbers in words below this one are not handed out. A slot that looks free may be damaged,
    /// and its name may not have been found yet.
    barred_words: AtomicUsize,
}

#[derive(Default)]
struct Used {
    words: Vec<u64>,
    count: u64,
    /// The number of these that are log areas.
    areas: u64,
    /// Words before this one have no free bit.
    search_from: usize,
}

impl InodeTable {
    /// Makes a table in these segments (by ordinal). All of it is free except inode 0, which is never used.
    pub fn new(region: Region, segments: Vec<u64>) -> InodeTable {
        let mut used = Used { words: vec![0; segments.len() * (INODES_PER_SEGMENT / 64) as usize], ..Used::default() };
        if let Some(first) = used.words.first_mut() {
            *first = 1;
        }
        InodeTable {
            region,
            segments: RwLock::new(segments),
            used: Mutex::new(used),
            unnamed: Mutex::default(),
            looking: AtomicBool::new(false),
            barred_words: AtomicUsize::new(0),
        }
    }

    /// Returns the DRAM of the used bits, in bytes.
    pub fn dram_bytes(&self) -> u64 {
        self.used.lock().words.capacity() as u64 * 8
    }

    /// Returns the device offset of an inode's slot, for an inode that stays in use; `None` past the end of the
    /// table.
    pub fn slot(&self, ino: u64) -> Option<u64> {
        slot_in(&self.segments.read(), ino)
    }

    /// Calls `read` with an inode's slot, which stays part of the table meanwhile. Returns `None` past the end of the
    /// table.
    pub fn with_slot<T>(&self, ino: u64, read: impl FnOnce(u64) -> T) -> Option<T> {
        let segments = self.segments.read();
        Some(read(slot_in(&segments, ino)?))
    }

    /// Returns the end of the inode numbers that have a slot: `1..end`.
    pub fn end(&self) -> u64 {
        self.segments.read().len() as u64 * INODES_PER_SEGMENT
    }

    /// True if an inode number is in use.
    pub fn is_used(&self, ino: u64) -> bool {
        self.used.lock().words.get((ino / 64) as usize).is_some_and(|word| word & 1 << (ino % 64) != 0)
    }

    /// Returns the first used inode number at or after `from`, or [`InodeTable::end`] if there is none.
    pub fn next_used(&self, from: u64) -> u64 {
        let used = self.used.lock();
        let end = used.words.len() as u64 * 64;
        let Some(first) = used.words.get((from / 64) as usize) else { return end };
        // In the first word, bits before `from` do not count.
        let words = std::iter::once(first >> (from % 64) << (from % 64));
        let words = words.chain(used.words[(from / 64) as usize + 1..].iter().copied());
        let found = (from / 64..).zip(words).find(|(_, word)| *word != 0);
        found.map_or(end, |(at, word)| at * 64 + u64::from(word.trailing_zeros()))
    }

    /// Iterates over the used inode numbers from 1 on, as they are when it comes to them.
    pub fn used(&self) -> impl Iterator<Item = u64> + '_ {
        let numbers = std::iter::successors(Some(self.next_used(1)), |ino| Some(self.next_used(ino + 1)));
        numbers.take_while(|ino| *ino < self.end())
    }

    /// Returns the segments of the table by ordinal.
    pub fn segments(&self) -> Vec<u64> {
        self.segments.read().clone()
    }

    /// Returns the number of inodes in use.
    pub fn in_use(&self) -> u64 {
        let used = self.used.lock();
        used.count.saturating_sub(used.areas)
    }

    /// Returns the number of log areas in use.
    pub fn areas(&self) -> u64 {
        self.used.lock().areas
    }

    /// Mount: adopts the used bits, as [`InodeTable::used_words`] returned them, and the number of log areas among
    /// them.
    pub fn adopt(&self, words: &[u64], areas: u64) {
        let mut used = self.used.lock();
        used.words.copy_from_slice(words);
        used.words[0] |= 1;
        used.count = used.words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>() - 1;
        // The saved number may be damaged.
        used.areas = areas.min(used.count);
    }

    /// Begins the search for inodes without a name, with all used inodes as candidates.
    pub fn look_for_unnamed(&self) {
        let words = self.used_words();
        let barred = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        self.barred_words.store(barred, Ordering::Release);
        *self.unnamed.lock() = words;
        self.looking.store(true, Ordering::Release);
    }

    /// Ends the search and returns the inodes for which no name was found.
    pub fn take_unnamed_inodes(&self) -> Vec<u64> {
        let mut unnamed = self.unnamed.lock();
        let is_set = |ino: &u64| unnamed[(ino / 64) as usize] & 1 << (ino % 64) != 0;
        let found = (1..unnamed.len() as u64 * 64).filter(is_set).collect();
        self.looking.store(false, Ordering::Release);
        self.barred_words.store(0, Ordering::Release);
        *unnamed = Vec::new();
        found
    }

    /// Marks a number as used forever, because a name refers to it although its slot looks free. Returns false if it
    /// was in use already or is past the end of the table.
    pub fn keep(&self, ino: u64) -> bool {
        let mut used = self.used.lock();
        let Some(word) = used.words.get_mut((ino / 64) as usize) else { return false };
        let is_new = *word & 1 << (ino % 64) == 0;
        *word |= 1 << (ino % 64);
        used.count += u64::from(is_new);
        is_new
    }

    /// Records that an inode has a name, or that the operation which made it will give it one.
    pub fn note_name_found(&self, ino: u64) {
        if self.looking.load(Ordering::Acquire)
            && let Some(word) = self.unnamed.lock().get_mut((ino / 64) as usize)
        {
            *word &= !(1 << (ino % 64));
        }
    }

    /// True if no name has been found for an inode yet.
    pub fn is_unnamed(&self, ino: u64) -> bool {
        self.unnamed.lock().get((ino / 64) as usize).is_some_and(|word| word & 1 << (ino % 64) != 0)
    }

    /// Returns the first inode at or after `from` for which no name has been found. The search stays open.
    pub fn first_unnamed(&self, from: u64) -> Option<u64> {
        let unnamed = self.unnamed.lock();
        (from..unnamed.len() as u64 * 64).find(|ino| unnamed[(ino / 64) as usize] & 1 << (ino % 64) != 0)
    }

    /// The same, but ends the search if it returns `None`.
    pub fn next_unnamed(&self, from: u64) -> Option<u64> {
        let mut unnamed = self.unnamed.lock();
        let is_set = |words: &[u64], ino: u64| words[(ino / 64) as usize] & 1 << (ino % 64) != 0;
        let found = (from..unnamed.len() as u64 * 64).find(|ino| is_set(&unnamed, *ino));
        if found.is_none() {
            self.looking.store(false, Ordering::Release);
            self.barred_words.store(0, Ordering::Release);
            *unnamed = Vec::new();
        }
        found
    }

    /// Returns the used bits, one for each inode number. Bit 0 is always set.
    pub fn used_words(&self) -> Vec<u64> {
        self.used.lock().words.clone()
    }

    /// Takes the lowest free inode number, and grows the table if there is none. During the search after a crash it
    /// takes the lowest number above all that were in use.
    ///
    /// # Errors
    /// ENOSPC if the table cannot grow, or if the names of its inodes could then not be removed any more.
    pub fn allocate(&self, space: &Space) -> Result<u64> {
        let mut used = self.used.lock();
        loop {
            if let Some(number) = self.take_free(&mut used) {
                return Ok(number);
            }
            self.grow(space)?;
            let words = used.words.len() + (INODES_PER_SEGMENT / 64) as usize;
            used.words.resize(words, 0);
        }
    }

    fn take_free(&self, used: &mut Used) -> Option<u64> {
        let barred = self.barred_words.load(Ordering::Acquire);
        let from = used.search_from.max(barred);
        let found = (from..used.words.len()).find(|word| used.words[*word] != !0);
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
    pub fn allocate_area(&self, owner: u64) -> Option<(u64, AreaHead)> {
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
    pub fn area_in(&self, slot: u64) -> Option<AreaHead> {
        let area: AreaHead = self.region.read(slot);
        (area.is_whole(slot) && self.slot(area.number) == Some(slot)).then_some(area)
    }

    /// Returns the log area with this number, if it is one.
    pub fn area(&self, number: u64) -> Option<AreaHead> {
        self.area_in(self.slot(number)?)
    }

    /// Frees log areas that no log references any more. They are durably free on the media before their numbers get
    /// other users. A slot that is no area of this table, or that is in bad memory, stays as it is.
    pub fn free_areas(&self, slots: impl Iterator<Item = u64>) {
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
    pub fn free(&self, ino: u64) {
        let mut used = self.used.lock();
        let word = (ino / 64) as usize;
        used.words[word] &= !(1 << (ino % 64));
        used.count -= 1;
        used.search_from = used.search_from.min(word);
    }

    /// Gives free segments at the end of the table back to the allocator, except the first one. Must not run before
    /// reconcile is done, because reconcile relies on the segments that the table had when it began.
    ///
    /// No inode there can be in use or about to be: numbers are taken under `used`, which is held here, and a number
    /// is freed last, when its slot is free on the media and the inode is no longer in the cache. A lookup by number
    /// reads the slot under `segments`.
    pub fn shrink(&self, space: &Space) {
        let mut used = self.used.lock();
        let per_segment = (INODES_PER_SEGMENT / 64) as usize;
        let mut segments = self.segments.write();
        while segments.len() > 1 && used.words[used.words.len() - per_segment..].iter().all(|word| *word == 0) {
            let segment = segments.pop().expect("more than one");
            let words = used.words.len() - per_segment;
            used.words.truncate(words);
            used.search_from = used.search_from.min(words);
            space.free_segment(segment);
        }
    }

    /// Returns how many inodes the table could have if all of these free blocks were for it and for the names.
    pub fn possible(&self, free_blocks: u64) -> u64 {
        let segments = self.segments.read().len() as u64;
        let more = free_blocks.saturating_sub(blocks_left(segments)) / (SEGMENT_BLOCKS + 2 * LINES_BLOCKS);
        // Number 0 is not used.
        (segments + more) * INODES_PER_SEGMENT - 1
    }

    fn grow(&self, space: &Space) -> Result<()> {
        let ordinal = self.segments.read().len();
        let ordinal32 = u32::try_from(ordinal).map_err(|_| Error::Posix {
            doing: "create an inode",
            why: "the inode table is as large as it can be",
            errno: errno::ENOSPC,
        })?;
        if !space.has_free(SEGMENT_BLOCKS + blocks_left(ordinal as u64 + 1)) {
            return Err(space.no_space_for_segment("create an inode"));
        }
        let segment = space.allocate_segment("create an inode")?;
        clear_segment(&self.region, segment).inspect_err(|_| space.free_segment(segment))?;
        space.write_use(segment, KIND_INODES, ordinal32);
        self.segments.write().push(segment);
        Ok(())
    }
}

/// Returns how many blocks a table leaves free when it grows to so many segments, so that all of its inodes can be
/// removed again.
fn blocks_left(segments: u64) -> u64 {
    KEPT_BLOCKS + segments * LINES_BLOCKS
}

fn slot_in(segments: &[u64], ino: u64) -> Option<u64> {
    let segment = segments.get(usize::try_from(ino / INODES_PER_SEGMENT).ok()?)?;
    (ino != 0).then(|| segment * SEGMENT_BYTES + ino % INODES_PER_SEGMENT * INODE_BYTES)
}

/// Marks an inode slot free on the media, and empties its log in the same line. Until the head of the next user is
/// complete, a crash may combine the new identity with the old commit word; the old log must not come back then.
pub fn free_slot(region: &Region, slot: u64) {
    let head: InodeHead = region.read(slot);
    let _ = empty_log(region, slot);
    let line = region.store_u64(slot + USE_WORD, head.freed_use_word()).flush();
    let _ = region.fence(line);
}

/// Empties the log of a free slot, in case a crash cut off the freeing of its last user.
pub fn empty_old_log(region: &Region, slot: u64, old: &InodeHead) {
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
pub fn write_segment(region: &Region, geometry: &Geometry, segment: u64, entry: &SegmentEntry) -> Result<()> {
    clear_segment(region, segment)?;
    let _ = region.fence(region.write(geometry.segment_entry_offset(segment), entry).flush());
    Ok(())
}

/// Returns the use of each segment that is not free.
pub fn uses_of(entries: &[(u64, SegmentEntry)]) -> Vec<(u64, SegmentUse)> {
    let uses = entries.iter().map(|(segment, entry)| (*segment, entry.usage(*segment)));
    uses.filter(|(_, usage)| *usage != SegmentUse::Free).collect()
}

/// Returns the segment table without entries that are all zeros.
pub fn read_entries(region: &Region, geometry: &Geometry) -> Vec<(u64, SegmentEntry)> {
    const AT_ONCE: usize = 4096;
    let segments = (geometry.segments() - geometry.first_segment()) as usize;
    let mut entries = vec![SegmentEntry::default(); segments.min(AT_ONCE)];
    let mut found = Vec::new();
    for first in (geometry.first_segment()..geometry.segments()).step_by(AT_ONCE) {
        let entries = &mut entries[..(geometry.segments() - first).min(AT_ONCE as u64) as usize];
        region.scan_into(geometry.segment_entry_offset(first), entries.as_mut_bytes());
        found.extend((first..).zip(entries.iter().copied()).filter(|(_, entry)| *entry != SegmentEntry::default()));
    }
    found
}

/// Returns the segments of the inode table by ordinal.
///
/// # Errors
/// EIO if segments of the table are missing or damaged.
pub fn table_segments(geometry: &Geometry, uses: &[(u64, SegmentUse)]) -> Result<Vec<u64>> {
    let part = |(segment, usage): &(u64, SegmentUse)| match usage {
        SegmentUse::Inodes(ordinal) => Some((*ordinal, *segment)),
        _ => None,
    };
    let mut found: Vec<(u32, u64)> = uses.iter().filter_map(part).collect();
    found.sort_unstable();
    // A crash may leave the last segments partly given back, but never a gap before a used segment.
    let contiguous = found.iter().enumerate().take_while(|(at, (ordinal, _))| *at as u32 == *ordinal).count();
    let is_short = |segment: u64| geometry.blocks_in_segment(segment) != SEGMENT_BLOCKS;
    if contiguous == 0 || contiguous != found.len() || found.iter().any(|(_, segment)| is_short(*segment)) {
        let at = geometry.segment_table_offset;
        return Err(Error::Corrupt {
            what: "segment table: segments of the inode table are missing or damaged".into(),
            at,
        });
    }
    Ok(found.into_iter().map(|(_, segment)| segment).collect())
}

const _: () = assert!(inode::INODE_BYTES == 512);
