//! Memory that is mapped from files: what is copied from there comes from the file, without a record.
//!
//! The problem: every copy asks whether its source is mapped, and threads that only ask must not write to a line that they
//! share, as all would with one lock. The idea: the lowest and the highest address that is mapped are two words that are
//! only read; what lies between is asked of one of eight copies of the list, each under a lock of its own.

use super::files::{FileToken, Files};
use super::sources::{Found, Source, Store};
use crate::padded::Padded;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock, thread_number};
use smallvec::SmallVec;

/// Areas that are known at once; more are not followed.
const AREAS_MAX: usize = 4096;
const COPIES: usize = 8;

#[derive(Clone, Copy)]
struct Area {
    start: u64,
    end: u64,
    file: FileToken,
    file_offset: u64,
}

impl Area {
    /// The part of it from one address to another, if it has any there.
    fn part(&self, start: u64, end: u64) -> Option<Area> {
        let (start, end) = (self.start.max(start), self.end.min(end));
        (start < end).then(|| Area { start, end, file_offset: self.file_offset + (start - self.start), ..*self })
    }
}

/// The mapped areas.
pub struct Areas {
    /// All areas lie from here ...
    lowest: AtomicU64,
    /// ... to here.
    highest: AtomicU64,
    /// Sorted, not overlapping, and but for a moment all the same.
    copies: [Padded<RwLock<Vec<Area>>>; COPIES],
    /// Held by the one who changes the copies.
    change: Mutex<()>,
}

impl Areas {
    /// Makes an empty one.
    pub fn new() -> Areas {
        Areas {
            lowest: AtomicU64::new(u64::MAX),
            highest: AtomicU64::new(0),
            copies: std::array::from_fn(|_| Padded(RwLock::new(Vec::new()))),
            change: Mutex::new(()),
        }
    }

    /// Memory from `start` to `end` is mapped from this file; what was mapped there is not any more. False when the file
    /// is closed, and when too many areas are known.
    pub fn map(&self, start: u64, end: u64, file: FileToken, file_offset: u64, files: &Files) -> bool {
        let _one_by_one = self.change.lock();
        self.change_all(|areas| cut(areas, start, end));
        // Who closes the file looks for its areas afterwards, under the same lock.
        if start >= end || !files.is_open(file) || self.copies[0].read().len() >= AREAS_MAX {
            self.set_span();
            return false;
        }
        self.change_all(|areas| {
            let at = areas.partition_point(|area| area.start < start);
            areas.insert(at, Area { start, end, file, file_offset });
        });
        self.set_span();
        true
    }

    /// Memory from `start` to `end` is mapped no more.
    pub fn unmap(&self, start: u64, end: u64) {
        if self.may_have(start, end) {
            let _one_by_one = self.change.lock();
            self.change_all(|areas| cut(areas, start, end));
            self.set_span();
        }
    }

    /// Forgets the areas of a file.
    pub fn forget(&self, file: FileToken) {
        let _one_by_one = self.change.lock();
        if self.copies[0].read().iter().any(|area| area.file == file) {
            self.change_all(|areas| areas.retain(|area| area.file != file));
            self.set_span();
        }
    }

    fn change_all(&self, change: impl Fn(&mut Vec<Area>)) {
        self.copies.iter().for_each(|copy| change(&mut copy.write()));
    }

    fn set_span(&self) {
        let areas = self.copies[0].read();
        let (lowest, highest) =
            (areas.first().map_or(u64::MAX, |area| area.start), areas.last().map_or(0, |area| area.end));
        self.lowest.store(lowest, Ordering::Relaxed);
        self.highest.store(highest, Ordering::Relaxed);
    }

    /// Whether some area may have memory between these addresses.
    #[inline]
    pub fn may_have(&self, start: u64, end: u64) -> bool {
        self.lowest.load(Ordering::Relaxed) < end && start < self.highest.load(Ordering::Relaxed)
    }

    /// Adds what is mapped of those parts of `start..end` of which nothing was found: what was copied into an area is newer
    /// than the mapping. False if the areas are changed just now, and `waits` is not set.
    pub fn fill_gaps<S: Store>(&self, start: u64, end: u64, files: &Files, waits: bool, found: &mut Found<S>) -> bool {
        let copy = &self.copies[thread_number() % COPIES];
        let areas = if waits { Some(copy.read()) } else { copy.try_read() };
        let Some(areas) = areas else { return false };
        let mut parts: SmallVec<[Source; 8]> = SmallVec::new();
        found.each_gap(end - start, |from, to| {
            let (from, to) = (start + from, start + to);
            let first = areas.partition_point(|area| area.end <= from);
            for part in areas[first..].iter().map_while(|area| area.part(from, to)) {
                let Area { file, file_offset, .. } = part;
                let is_room = waits || parts.len() < parts.inline_size();
                if files.is_open(file) && is_room {
                    parts.push(Source { at: part.start - start, length: part.end - part.start, file, file_offset });
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

    /// Bytes that the lists take.
    pub fn memory_bytes(&self) -> usize {
        self.copies.iter().map(|copy| copy.read().capacity() * size_of::<Area>()).sum()
    }
}

/// Takes memory out of the areas: what is left of one on either side stays.
fn cut(areas: &mut Vec<Area>, start: u64, end: u64) {
    let first = areas.partition_point(|area| area.end <= start);
    let behind = first + areas[first..].partition_point(|area| area.start < end);
    if start < end && first < behind {
        let (lowest, highest) = (areas[first], areas[behind - 1]);
        let left = [lowest.part(0, start), highest.part(end, u64::MAX)];
        areas.splice(first..behind, left.into_iter().flatten());
    }
}
