//! The answer to a look-up: which parts of a range came from which files.

use super::files::FileToken;
use smallvec::SmallVec;

/// A part of a range that was copied from a file, as far as was recorded: its bytes may have been changed since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// First byte, counted from the beginning of the range.
    pub at: u64,
    /// Bytes, at least one.
    pub length: u64,
    /// What they were copied from.
    pub file: FileToken,
    /// First byte in that file.
    pub file_offset: u64,
}

impl Source {
    fn end(&self) -> u64 {
        self.at + self.length
    }

    fn continues_as(&self, next: &Source) -> bool {
        self.end() == next.at
            && self.file == next.file
            && self.file_offset.wrapping_add(self.length) == next.file_offset
    }
}

/// Parts that a copy usually has; more than these are looked up on the heap, or dropped by those who must not allocate.
const FEW: usize = 16;

/// The parts found so far, sorted, not overlapping, each as long as it can be.
pub struct Found {
    parts: SmallVec<[Source; FEW]>,
    may_allocate: bool,
    /// Those from here on are of the page that is looked at, in any order.
    page_start: usize,
}

impl Found {
    /// Nothing yet.
    pub fn new(may_allocate: bool) -> Found {
        Found { parts: SmallVec::new(), may_allocate, page_start: 0 }
    }

    /// What was found.
    pub fn parts(&self) -> &[Source] {
        &self.parts
    }

    /// Adds a part that overlaps none.
    #[inline]
    pub fn add(&mut self, part: Source) {
        if self.parts.len() < FEW || self.may_allocate {
            self.parts.push(part);
        }
    }

    /// All parts of a page were added, and those of later pages lie behind them.
    #[inline]
    pub fn end_page(&mut self) {
        if self.parts.len() > self.page_start + 1 {
            // A page is walked from its end.
            let page = &mut self.parts[self.page_start..];
            page.reverse();
            if !page.is_sorted_by_key(|part| part.at) {
                page.sort_unstable_by_key(|part| part.at);
            }
        }
        self.merge(self.page_start.saturating_sub(1));
    }

    /// Sorts all that was added, in whatever order its pages came.
    pub fn sort(&mut self) {
        self.parts.sort_unstable_by_key(|part| part.at);
        self.merge(0);
    }

    /// Joins parts that continue each other, from this one on.
    fn merge(&mut self, first: usize) {
        let mut kept = first;
        for at in first + 1..self.parts.len() {
            let part = self.parts[at];
            if self.parts[kept].continues_as(&part) {
                self.parts[kept].length += part.length;
            } else {
                kept += 1;
                self.parts[kept] = part;
            }
        }
        self.parts.truncate(kept + 1);
        self.page_start = self.parts.len();
    }

    /// Calls `fill` with each part of `0..length` of which nothing is known, as where it begins and ends.
    pub fn each_gap(&self, length: u64, mut fill: impl FnMut(u64, u64)) {
        let mut known = 0;
        for part in &self.parts {
            if known < part.at {
                fill(known, part.at);
            }
            known = part.end();
        }
        if known < length {
            fill(known, length);
        }
    }
}
