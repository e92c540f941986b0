//! The inode table: where inode slots lie, and which are free.
//!
//! The table grows by whole segments of 4096 slots, marked in the segment table with their ordinal, so
//! inode number -> slot is one division. The lowest free number is used first: a table that emptied can
//! give its last segments back.

use crate::error::{Error, Result, errno};
use crate::media::inode::{INODE_BYTES, INODES_PER_SEGMENT};
use crate::media::segment::{KIND_INODES, SegmentEntry, SegmentUse};
use crate::media::superblock::Geometry;
use crate::media::{SEGMENT_BLOCKS, SEGMENT_BYTES, inode};
use crate::space::Space;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, RwLock};
use pmem::Region;
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
        self.used.lock().count
    }

    /// Mount: takes the used bits in, as [`InodeTable::used_words`] gave them.
    pub fn adopt(&self, words: &[u64]) {
        let mut used = self.used.lock();
        used.words.copy_from_slice(words);
        used.words[0] |= 1;
        used.count = used.words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>() - 1;
    }

    /// Begins to look for inodes without a name: all in use are suspected.
    pub fn look_for_unnamed(&self) {
        let words = self.used_words();
        let barred = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        self.barred_words.store(barred, Ordering::Release);
        *self.unnamed.lock() = words;
        self.looking.store(true, Ordering::Release);
    }

    /// Ends the search: the inodes that no name was found for.
    pub fn stop_looking(&self) -> Vec<u64> {
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

    /// A name leads to this inode, or its maker answers for it.
    pub fn found_name(&self, ino: u64) {
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

    /// One bit an inode: in use. Bit 0 is always set.
    pub fn used_words(&self) -> Vec<u64> {
        self.used.lock().words.clone()
    }

    /// Takes the lowest free inode number (while names are looked for after a crash: the lowest behind all that were in
    /// use); the table grows when there is none.
    pub fn allocate(&self, space: &Space) -> Result<u64> {
        let mut used = self.used.lock();
        loop {
            let barred = self.barred_words.load(Ordering::Acquire);
            let from = used.search_from.max(barred);
            if let Some(word) = (from..used.words.len()).find(|word| used.words[*word] != !0) {
                let bit = used.words[word].trailing_ones();
                used.words[word] |= 1 << bit;
                used.count += 1;
                if barred <= used.search_from {
                    used.search_from = word;
                }
                return Ok(word as u64 * 64 + u64::from(bit));
            }
            if barred <= used.search_from {
                used.search_from = used.words.len();
            }
            self.grow(space)?;
            let words = used.words.len() + (INODES_PER_SEGMENT / 64) as usize;
            used.words.resize(words, 0);
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

/// Makes a segment of a device that nobody has mounted part of a table, as `entry` says: old bytes are cleared, a hole
/// stays a hole.
pub fn write_segment(region: &Region, geometry: &Geometry, segment: u64, entry: &SegmentEntry) -> Result<()> {
    clear_segment(region, segment)?;
    let _ = region.fence(region.write(geometry.segment_entry_offset(segment), entry).flush());
    Ok(())
}

/// Makes a segment zero, durably; a hole stays a hole.
pub fn clear_segment(region: &Region, segment: u64) -> Result<()> {
    if region.is_hole(segment * SEGMENT_BYTES, SEGMENT_BYTES) {
        // Old content could come back with a power failure.
        return Ok(region.settle_holes()?);
    }
    let zeros = region.stream_zeros(segment * SEGMENT_BYTES, SEGMENT_BYTES);
    let _ = region.fence(zeros);
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
        return Err(Error::Corrupt { what: "segment table: the inode table's segments".into(), at });
    }
    Ok(found.into_iter().map(|(_, segment)| segment).collect())
}

const _: () = assert!(inode::INODE_BYTES == 512);
