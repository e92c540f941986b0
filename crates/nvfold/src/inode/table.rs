//! The inode table: where inode slots lie, and which are free.
//!
//! The table grows by whole segments of 4096 slots, marked in the segment table with their ordinal, so
//! inode number -> slot is one division. The lowest free number is used first: a table that emptied can
//! give its last segments back.
//!
//! **Log areas** ([`crate::media::log_area`]) are slots too: a number is an inode's or an area's, and both are in use. The
//! table never grows for an area, for a log can have a page instead: so what is promised to an operation on a full device
//! does not depend on them. After a crash an area that no log names is found as an inode without a name is.

use crate::error::{Error, Result, errno};
use crate::media::inode::{COMMIT_WORD, INLINE_LOG, INODE_BYTES, INODES_PER_SEGMENT, InodeHead, USE_WORD};
use crate::media::log_area::AreaHead;
use crate::media::segment::{KIND_INODES, SegmentEntry, SegmentUse};
use crate::media::superblock::Geometry;
use crate::media::{SEGMENT_BLOCKS, SEGMENT_BYTES, inode};
use crate::space::{Space, clear_segment};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, RwLock};
use pmem::{Dirty, Flight, Pm, Region};
use zerocopy::IntoBytes;

/// The table of one device.
pub struct InodeTable {
    region: Region,
    /// Segment numbers by ordinal.
    segments: RwLock<Vec<u64>>,
    used: Mutex<Used>,
    /// After a crash: inodes that no name is known to lead to, one bit each; empty when nobody looks for them.
    unnamed: Mutex<Vec<u64>>,
    looking: AtomicBool,
    /// While names are looked for: words of numbers below this one are not handed out. A slot that looks free may be one
    /// that was damaged, and whose name is still to be found.
    barred_words: AtomicUsize,
}

#[derive(Default)]
struct Used {
    words: Vec<u64>,
    count: u64,
    /// Of them log areas.
    areas: u64,
    /// No word before this one has a free bit.
    search_from: usize,
}

impl InodeTable {
    /// A table in these segments (by ordinal), all of it free but inode 0, which is never used.
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

    /// Device offset of the slot of an inode that stays in use; `None` past the end of the table.
    pub fn slot(&self, ino: u64) -> Option<u64> {
        slot_in(&self.segments.read(), ino)
    }

    /// What `read` makes of an inode's slot, which stays part of the table meanwhile; `None` past the end of the table.
    pub fn with_slot<T>(&self, ino: u64, read: impl FnOnce(u64) -> T) -> Option<T> {
        let segments = self.segments.read();
        Some(read(slot_in(&segments, ino)?))
    }

    /// Inode numbers that have a slot: `1..end`.
    pub fn end(&self) -> u64 {
        self.segments.read().len() as u64 * INODES_PER_SEGMENT
    }

    /// Whether an inode is in use.
    pub fn is_used(&self, ino: u64) -> bool {
        self.used.lock().words.get((ino / 64) as usize).is_some_and(|word| word & 1 << (ino % 64) != 0)
    }

    /// The first inode in use at or after `from`; [`InodeTable::end`] when there is none.
    pub fn next_used(&self, from: u64) -> u64 {
        let used = self.used.lock();
        let end = used.words.len() as u64 * 64;
        let Some(first) = used.words.get((from / 64) as usize) else { return end };
        // Of the first word the bits before `from` do not count.
        let words = std::iter::once(first >> (from % 64) << (from % 64));
        let words = words.chain(used.words[(from / 64) as usize + 1..].iter().copied());
        let found = (from / 64..).zip(words).find(|(_, word)| *word != 0);
        found.map_or(end, |(at, word)| at * 64 + u64::from(word.trailing_zeros()))
    }

    /// Segments of the table, by ordinal.
    pub fn segments(&self) -> Vec<u64> {
        self.segments.read().clone()
    }

    /// Inodes in use.
    pub fn in_use(&self) -> u64 {
        let used = self.used.lock();
        used.count.saturating_sub(used.areas)
    }

    /// Log areas in use.
    pub fn areas(&self) -> u64 {
        self.used.lock().areas
    }

    /// Mount: takes the used bits in, as [`InodeTable::used_words`] gave them, and how many of them are log areas.
    pub fn adopt(&self, words: &[u64], areas: u64) {
        let mut used = self.used.lock();
        used.words.copy_from_slice(words);
        used.words[0] |= 1;
        used.count = used.words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>() - 1;
        // What was saved may be damaged.
        used.areas = areas.min(used.count);
    }

    /// Begins to look for inodes without a name: all in use are suspected.
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

    /// The number is never handed out: its slot looks free, and a name leads to it. False when it was in use already, or
    /// the table does not reach so far.
    pub fn keep(&self, ino: u64) -> bool {
        let mut used = self.used.lock();
        let Some(word) = used.words.get_mut((ino / 64) as usize) else { return false };
        let is_new = *word & 1 << (ino % 64) == 0;
        *word |= 1 << (ino % 64);
        used.count += u64::from(is_new);
        is_new
    }

    /// Notes that a name leads to this inode, or that the operation which made it will give it one.
    pub fn note_name_found(&self, ino: u64) {
        if self.looking.load(Ordering::Acquire)
            && let Some(word) = self.unnamed.lock().get_mut((ino / 64) as usize)
        {
            *word &= !(1 << (ino % 64));
        }
    }

    /// Whether no name was found for an inode yet.
    pub fn is_unnamed(&self, ino: u64) -> bool {
        self.unnamed.lock().get((ino / 64) as usize).is_some_and(|word| word & 1 << (ino % 64) != 0)
    }

    /// The first inode at or after `from` that no name was found for; the search goes on.
    pub fn first_unnamed(&self, from: u64) -> Option<u64> {
        let unnamed = self.unnamed.lock();
        (from..unnamed.len() as u64 * 64).find(|ino| unnamed[(ino / 64) as usize] & 1 << (ino % 64) != 0)
    }

    /// The first inode at or after `from` that no name was found for. `None` ends the search.
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

    /// Returns one bit for each inode: in use. Bit 0 is always set.
    pub fn used_words(&self) -> Vec<u64> {
        self.used.lock().words.clone()
    }

    /// Takes the lowest free inode number (while names are looked for after a crash: the lowest behind all that were in
    /// use); the table grows when there is none.
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

    /// Takes the lowest free number for a log area of `owner`: its head, and the slot to write it to. `None` when the table
    /// is full. One whose slot lies in bad memory is never given back.
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

    /// The log area in this slot, if there is one and the slot is of this table.
    pub fn area_in(&self, slot: u64) -> Option<AreaHead> {
        let area: AreaHead = self.region.read(slot);
        (area.is_whole(slot) && self.slot(area.number) == Some(slot)).then_some(area)
    }

    /// The log area of this number, if it is one's.
    pub fn area(&self, number: u64) -> Option<AreaHead> {
        self.area_in(self.slot(number)?)
    }

    /// Frees log areas that no log names any more: on the media, before their numbers have other users. What is no area of
    /// this table, or lies in bad memory, stays as it is.
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

    /// Returns an inode number whose slot is marked free on the media.
    pub fn free(&self, ino: u64) {
        let mut used = self.used.lock();
        let word = (ino / 64) as usize;
        used.words[word] &= !(1 << (ino % 64));
        used.count -= 1;
        used.search_from = used.search_from.min(word);
    }

    /// Gives segments at the end of the table that hold no inode back to the allocator. The first stays. Not before
    /// reconcile is done: it knows which segments were the table's when it began.
    ///
    /// No inode can be in use there, or about to be: its number was taken under `used`, which is held meanwhile, and is
    /// returned last, when its slot is free on the media and nobody gets it from the cache any more. Who looks for an
    /// inode by number reads its slot under `segments`.
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

    fn grow(&self, space: &Space) -> Result<()> {
        let ordinal = self.segments.read().len();
        let ordinal32 = u32::try_from(ordinal).map_err(|_| Error::Posix {
            doing: "create an inode",
            why: "the inode table is as large as it can be",
            errno: errno::ENOSPC,
        })?;
        let segment = space.allocate_segment("create an inode")?;
        clear_segment(&self.region, segment).inspect_err(|_| space.free_segment(segment))?;
        space.write_use(segment, KIND_INODES, ordinal32);
        self.segments.write().push(segment);
        Ok(())
    }
}

fn slot_in(segments: &[u64], ino: u64) -> Option<u64> {
    let segment = segments.get(usize::try_from(ino / INODES_PER_SEGMENT).ok()?)?;
    (ino != 0).then(|| segment * SEGMENT_BYTES + ino % INODES_PER_SEGMENT * INODE_BYTES)
}

/// Marks an inode slot free on the media. Its log is emptied in the same line: until the next user's head is whole, a
/// crash may leave the new identity beside the old commit word, and nothing of the old log must come back.
pub fn free_slot(region: &Region, slot: u64) {
    let head: InodeHead = region.read(slot);
    let _ = empty_log(region, slot);
    let line = region.store_u64(slot + USE_WORD, head.freed_use_word()).flush();
    let _ = region.fence(line);
}

/// Empties the log of a free slot if a crash cut off the freeing of its last user.
pub fn empty_old_log(region: &Region, slot: u64, old: &InodeHead) {
    if old.commit != 0 && old.commit != slot + INLINE_LOG {
        let _ = region.fence(empty_log(region, slot).flush());
    }
}

/// Commit word and head of an empty log, to be flushed with what else is stored in the line.
fn empty_log(region: &Region, slot: u64) -> Pm<'_, u128, Dirty> {
    let start = u128::from(slot + INLINE_LOG);
    region.store_u128(slot + COMMIT_WORD, start << 64 | start)
}

/// Makes a segment of a device that nobody has mounted part of a table, as `entry` says: old bytes are cleared, a hole
/// stays a hole.
pub fn write_segment(region: &Region, geometry: &Geometry, segment: u64, entry: &SegmentEntry) -> Result<()> {
    clear_segment(region, segment)?;
    let _ = region.fence(region.write(geometry.segment_entry_offset(segment), entry).flush());
    Ok(())
}

/// What each segment is used for, of those that are used for anything.
pub fn uses_of(entries: &[(u64, SegmentEntry)]) -> Vec<(u64, SegmentUse)> {
    let uses = entries.iter().map(|(segment, entry)| (*segment, entry.usage(*segment)));
    uses.filter(|(_, usage)| *usage != SegmentUse::Free).collect()
}

/// The segment table, but for entries that are zero.
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

/// The segments of the inode table by ordinal, of those in use; what is wrong with it otherwise.
pub fn table_segments(geometry: &Geometry, uses: &[(u64, SegmentUse)]) -> Result<Vec<u64>> {
    let part = |(segment, usage): &(u64, SegmentUse)| match usage {
        SegmentUse::Inodes(ordinal) => Some((*ordinal, *segment)),
        _ => None,
    };
    let mut found: Vec<(u32, u64)> = uses.iter().filter_map(part).collect();
    found.sort_unstable();
    // A crash may leave the last segments half given back, never a hole before a segment in use.
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
