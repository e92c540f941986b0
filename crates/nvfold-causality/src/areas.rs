//! Memory that is mapped from files: bytes copied from there come from the file, without a record.
//!
//! The problem: every copy asks whether its source is mapped. With one lock, all threads that only ask would write to
//! the same cache line.
//!
//! The idea: the lowest and the highest mapped address are two words that are only read. A look-up between them reads
//! one of eight copies of the list, each under its own lock.

use crate::files::{FileToken, FollowedFiles};
use crate::sources::{CopySource, FoundSources, SourceStore};
use nvfold_sync::Padded;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use nvfold_sync::{Mutex, RwLock, thread_number};
use smallvec::SmallVec;

/// The largest number of areas; further ones are not followed.
const AREAS_MAX: usize = 4096;
const COPIES: usize = 8;

#[derive(Clone, Copy)]
struct MappedArea {
    start: u64,
    end: u64,
    file: FileToken,
    file_offset: u64,
}

impl MappedArea {
    /// Returns the part of the area that is between two addresses, if there is one.
    fn part(&self, start: u64, end: u64) -> Option<MappedArea> {
        let (start, end) = (self.start.max(start), self.end.min(end));
        (start < end).then(|| MappedArea { start, end, file_offset: self.file_offset + (start - self.start), ..*self })
    }
}

/// The mapped areas.
pub(crate) struct MappedAreas {
    /// No area begins below this address.
    lowest: AtomicU64,
    /// No area ends above this address.
    highest: AtomicU64,
    /// Copies of the list of areas, sorted and without overlaps. They are equal except during a change.
    copies: [Padded<RwLock<Vec<MappedArea>>>; COPIES],
    /// Held while the copies are changed.
    change: Mutex<()>,
}

impl MappedAreas {
    /// Creates an empty set.
    pub(crate) fn new() -> MappedAreas {
        MappedAreas {
            lowest: AtomicU64::new(u64::MAX),
            highest: AtomicU64::new(0),
            copies: std::array::from_fn(|_| Padded(RwLock::new(Vec::new()))),
            change: Mutex::new(()),
        }
    }

    /// Adds an area for memory from `start` to `end`, mapped from a file; earlier areas there are removed. Returns
    /// false when the file is closed or the largest number of areas is reached.
    pub(crate) fn map(&self, start: u64, end: u64, file: FileToken, file_offset: u64, files: &FollowedFiles) -> bool {
        let _one_by_one = self.change.lock();
        self.change_all(|areas| cut(areas, start, end));
        // A thread that closes the file removes its areas afterwards under the same lock, so no area of a closed file
        // stays.
        if start >= end || !files.is_open(file) || self.copies[0].read().len() >= AREAS_MAX {
            self.set_span();
            return false;
        }
        self.change_all(|areas| {
            let at = areas.partition_point(|area| area.start < start);
            areas.insert(at, MappedArea { start, end, file, file_offset });
        });
        self.set_span();
        true
    }

    /// Removes the areas from `start` to `end`.
    pub(crate) fn unmap(&self, start: u64, end: u64) {
        if self.may_have(start, end) {
            let _one_by_one = self.change.lock();
            self.change_all(|areas| cut(areas, start, end));
            self.set_span();
        }
    }

    /// Removes the areas of a file.
    pub(crate) fn forget(&self, file: FileToken) {
        let _one_by_one = self.change.lock();
        if self.copies[0].read().iter().any(|area| area.file == file) {
            self.change_all(|areas| areas.retain(|area| area.file != file));
            self.set_span();
        }
    }

    fn change_all(&self, change: impl Fn(&mut Vec<MappedArea>)) {
        self.copies.iter().for_each(|copy| change(&mut copy.write()));
    }

    fn set_span(&self) {
        let areas = self.copies[0].read();
        let (lowest, highest) =
            (areas.first().map_or(u64::MAX, |area| area.start), areas.last().map_or(0, |area| area.end));
        self.lowest.store(lowest, Ordering::Relaxed);
        self.highest.store(highest, Ordering::Relaxed);
    }

    /// True if an area may have memory between these addresses.
    #[inline]
    pub(crate) fn may_have(&self, start: u64, end: u64) -> bool {
        self.lowest.load(Ordering::Relaxed) < end && start < self.highest.load(Ordering::Relaxed)
    }

    /// Adds the mapped parts of `start..end` for which nothing was found: records of copies into an area are newer
    /// than the mapping. Returns false if the areas are being changed and `waits` is false.
    pub(crate) fn fill_gaps<S: SourceStore>(
        &self,
        start: u64,
        end: u64,
        files: &FollowedFiles,
        waits: bool,
        found: &mut FoundSources<S>,
    ) -> bool {
        let copy = &self.copies[thread_number() % COPIES];
        let areas = if waits { Some(copy.read()) } else { copy.try_read() };
        let Some(areas) = areas else { return false };
        let mut parts: SmallVec<[CopySource; 8]> = SmallVec::new();
        found.each_gap(end - start, |from, to| {
            let (from, to) = (start + from, start + to);
            let first = areas.partition_point(|area| area.end <= from);
            for part in areas[first..].iter().map_while(|area| area.part(from, to)) {
                let MappedArea { file, file_offset, .. } = part;
                let is_room = waits || parts.len() < parts.inline_size();
                if files.is_open(file) && is_room {
                    parts.push(CopySource { at: part.start - start, length: part.end - part.start, file, file_offset });
                }
            }
        });
        drop(areas);
        if !parts.is_empty() {
            parts.into_iter().for_each(|part| found.add(part));
            found.sort();
        }
        true
    }

    /// Returns the memory of the lists, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.copies.iter().map(|copy| copy.read().capacity() * size_of::<MappedArea>()).sum()
    }
}

/// Removes a range from the areas. The rest of an area on either side stays.
fn cut(areas: &mut Vec<MappedArea>, start: u64, end: u64) {
    let first = areas.partition_point(|area| area.end <= start);
    let behind = first + areas[first..].partition_point(|area| area.start < end);
    if start < end && first < behind {
        let (lowest, highest) = (areas[first], areas[behind - 1]);
        let left = [lowest.part(0, start), highest.part(end, u64::MAX)];
        areas.splice(first..behind, left.into_iter().flatten());
    }
}
