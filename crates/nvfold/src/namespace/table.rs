//! The inode table: where inode slots lie, and which are free.
//!
//! The table grows by whole segments of 4096 slots, marked in the segment table with their ordinal, so
//! inode number -> slot is one division. The lowest free number is used first: a table that emptied can
//! give its last segments back.

use crate::error::{Error, Result, errno};
use crate::media::inode::{INODE_BYTES, INODES_PER_SEGMENT};
use crate::media::segment::SegmentEntry;
use crate::media::superblock::Geometry;
use crate::media::{SEGMENT_BYTES, inode};
use crate::space::Space;
use parking_lot::{Mutex, RwLock};
use pmem::Region;

/// The table of one device.
pub struct InodeTable {
    region: Region,
    geometry: Geometry,
    /// Segment numbers by ordinal.
    segments: RwLock<Vec<u64>>,
    used: Mutex<Used>,
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
    pub fn new(region: Region, geometry: Geometry, segments: Vec<u64>) -> InodeTable {
        let mut used = Used { words: vec![0; segments.len() * (INODES_PER_SEGMENT / 64) as usize], ..Used::default() };
        if let Some(first) = used.words.first_mut() {
            *first = 1;
        }
        InodeTable { region, geometry, segments: RwLock::new(segments), used: Mutex::new(used) }
    }

    /// Device offset of an inode's slot; `None` past the end of the table.
    pub fn slot(&self, ino: u64) -> Option<u64> {
        let segment = *self.segments.read().get(usize::try_from(ino / INODES_PER_SEGMENT).ok()?)?;
        (ino != 0).then(|| segment * SEGMENT_BYTES + ino % INODES_PER_SEGMENT * INODE_BYTES)
    }

    /// Inode numbers that have a slot: `1..end`.
    pub fn end(&self) -> u64 {
        self.segments.read().len() as u64 * INODES_PER_SEGMENT
    }

    /// Inodes in use.
    pub fn in_use(&self) -> u64 {
        self.used.lock().count
    }

    /// Recovery: notes that an inode is in use.
    pub fn mark_used(&self, ino: u64) {
        let mut used = self.used.lock();
        let (word, bit) = ((ino / 64) as usize, 1 << (ino % 64));
        if used.words[word] & bit == 0 {
            used.words[word] |= bit;
            used.count += 1;
        }
    }

    /// Takes the lowest free inode number; the table grows when there is none.
    pub fn allocate(&self, space: &Space) -> Result<u64> {
        let mut used = self.used.lock();
        loop {
            let from = used.search_from;
            if let Some(word) = (from..used.words.len()).find(|word| used.words[*word] != !0) {
                let bit = used.words[word].trailing_ones();
                used.words[word] |= 1 << bit;
                used.count += 1;
                used.search_from = word;
                return Ok(word as u64 * 64 + u64::from(bit));
            }
            used.search_from = used.words.len();
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

    /// Gives segments at the end of the table that hold no inode back to the allocator. The first stays.
    pub fn shrink(&self, space: &Space) {
        let mut used = self.used.lock();
        let per_segment = (INODES_PER_SEGMENT / 64) as usize;
        let mut segments = self.segments.write();
        while segments.len() > 1 && used.words[used.words.len() - per_segment..].iter().all(|word| *word == 0) {
            let segment = segments.pop().expect("more than one");
            let words = used.words.len() - per_segment;
            used.words.truncate(words);
            used.search_from = used.search_from.min(words);
            let offset = self.geometry.segment_entry_offset(segment);
            let cleared = self.region.write(offset, &SegmentEntry::default()).flush();
            let _ = self.region.fence(cleared);
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
        write_segment(&self.region, &self.geometry, segment, ordinal32, space.is_backed(segment));
        space.note_backed(segment * SEGMENT_BYTES, SEGMENT_BYTES);
        self.segments.write().push(segment);
        Ok(())
    }
}

/// Makes a segment part of the inode table on the media. `backed`: it may hold old bytes.
pub fn write_segment(region: &Region, geometry: &Geometry, segment: u64, ordinal: u32, backed: bool) {
    if backed {
        let zeros = region.stream_zeros(segment * SEGMENT_BYTES, SEGMENT_BYTES);
        let _ = region.fence(zeros);
    }
    let entry = SegmentEntry::inodes(segment, ordinal);
    let written = region.write(geometry.segment_entry_offset(segment), &entry).flush();
    let _ = region.fence(written);
}

/// The segments of the inode table by ordinal, read from the media; what is wrong with it otherwise.
pub fn read_segments(region: &Region, geometry: &Geometry) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    let table = geometry.segment_entry_offset(0)..geometry.segment_entry_offset(geometry.segments());
    for range in region.allocated_ranges(table.start, table.end - table.start) {
        let first = (range.start.max(table.start) - table.start) / 16;
        let last = (range.end.min(table.end) - table.start).div_ceil(16);
        for segment in first.max(geometry.first_segment())..last {
            let entry: SegmentEntry = region.read(geometry.segment_entry_offset(segment));
            if let Some(ordinal) = entry.inode_ordinal(segment)
                && geometry.blocks_in_segment(segment) == crate::media::SEGMENT_BLOCKS
            {
                found.push((ordinal, segment));
            }
        }
    }
    found.sort_unstable();
    // A crash may leave the last segments half given back, never a hole before a segment in use.
    let contiguous = found.iter().enumerate().take_while(|(at, (ordinal, _))| *at as u32 == *ordinal).count();
    if contiguous == 0 || contiguous != found.len() {
        let at = geometry.segment_table_offset;
        return Err(Error::Corrupt { what: "segment table: the inode table's segments".into(), at });
    }
    Ok(found.into_iter().map(|(_, segment)| segment).collect())
}

/// Segments whose entry is neither empty nor whole: a crash cut off the growth of the inode table, and the entry
/// was never used.
pub fn torn_entries(region: &Region, geometry: &Geometry) -> Vec<u64> {
    let table = geometry.segment_entry_offset(0)..geometry.segment_entry_offset(geometry.segments());
    let mut torn = Vec::new();
    for range in region.allocated_ranges(table.start, table.end - table.start) {
        let first = (range.start.max(table.start) - table.start) / size_of::<SegmentEntry>() as u64;
        let last = (range.end.min(table.end) - table.start).div_ceil(size_of::<SegmentEntry>() as u64);
        torn.extend((first..last).filter(|segment| {
            let entry: SegmentEntry = region.read(geometry.segment_entry_offset(*segment));
            entry != SegmentEntry::default() && entry.inode_ordinal(*segment).is_none()
        }));
    }
    torn
}

/// Recovery: clears the torn entries.
pub fn clear_torn_entries(region: &Region, geometry: &Geometry) {
    for segment in torn_entries(region, geometry) {
        let entry = region.write(geometry.segment_entry_offset(segment), &SegmentEntry::default()).flush();
        let _ = region.fence(entry);
    }
}

const _: () = assert!(inode::INODE_BYTES == 512);
