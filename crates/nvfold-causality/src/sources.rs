//! The answer to a look-up: the parts of a range that came from files.

use crate::files::FileToken;
use smallvec::SmallVec;

/// A part of a range that was copied from a file, as far as was recorded. Its bytes may have changed since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopySource {
    /// Offset of the first byte from the beginning of the range.
    pub at: u64,
    /// Number of bytes, at least one.
    pub length: u64,
    /// The file from which they were copied.
    pub file: FileToken,
    /// Offset of the first byte in that file.
    pub file_offset: u64,
}

impl CopySource {
    /// No bytes of no file, to fill memory for answers.
    pub const NONE: CopySource = CopySource { at: 0, length: 0, file: FileToken::NONE, file_offset: 0 };

    fn end(&self) -> u64 {
        self.at + self.length
    }

    fn continues_as(&self, next: &CopySource) -> bool {
        self.end() == next.at
            && self.file == next.file
            && self.file_offset.wrapping_add(self.length) == next.file_offset
    }
}

/// Holds the parts of an answer.
pub(crate) trait SourceStore {
    /// Adds a part, if there is room.
    fn push(&mut self, part: CopySource);
    /// True if the heap may be used.
    fn may_allocate(&self) -> bool;
    /// Returns the parts that were added.
    fn parts(&mut self) -> &mut [CopySource];
    /// Keeps the first `length` parts.
    fn truncate(&mut self, length: usize);
}

impl SourceStore for &mut Vec<CopySource> {
    #[inline]
    fn push(&mut self, part: CopySource) {
        Vec::push(self, part);
    }

    fn may_allocate(&self) -> bool {
        true
    }

    #[inline]
    fn parts(&mut self) -> &mut [CopySource] {
        self
    }

    fn truncate(&mut self, length: usize) {
        Vec::truncate(self, length);
    }
}

/// Memory of a caller that must not allocate; parts beyond its room are dropped.
pub(crate) struct SourceSlots<'s> {
    slots: &'s mut [CopySource],
    length: usize,
}

impl SourceSlots<'_> {
    /// Creates an empty store.
    pub(crate) fn new(slots: &mut [CopySource]) -> SourceSlots<'_> {
        SourceSlots { slots, length: 0 }
    }
}

impl SourceStore for SourceSlots<'_> {
    #[inline]
    fn push(&mut self, part: CopySource) {
        if let Some(slot) = self.slots.get_mut(self.length) {
            *slot = part;
            self.length += 1;
        }
    }

    fn may_allocate(&self) -> bool {
        false
    }

    #[inline]
    fn parts(&mut self) -> &mut [CopySource] {
        &mut self.slots[..self.length]
    }

    fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

/// The usual number of parts of a copy: a page of records of 64 bytes, which takes 2 KiB of stack. Further parts are
/// on the heap, or are dropped for callers that must not allocate.
const FEW: usize = 64;

/// The parts of a copy.
pub(crate) struct Few {
    parts: SmallVec<[CopySource; FEW]>,
    may_allocate: bool,
    is_cut: bool,
}

impl Few {
    /// Creates an empty store.
    pub(crate) fn new(may_allocate: bool) -> Few {
        Few { parts: SmallVec::new(), may_allocate, is_cut: false }
    }
}

impl SourceStore for Few {
    #[inline]
    fn push(&mut self, part: CopySource) {
        if self.parts.len() < FEW || self.may_allocate {
            self.parts.push(part);
        } else {
            self.is_cut = true;
        }
    }

    fn may_allocate(&self) -> bool {
        self.may_allocate
    }

    #[inline]
    fn parts(&mut self) -> &mut [CopySource] {
        &mut self.parts
    }

    fn truncate(&mut self, length: usize) {
        self.parts.truncate(length);
    }
}

/// The parts found so far: sorted, without overlaps, and each as long as possible.
pub(crate) struct FoundSources<S> {
    store: S,
    /// Parts from this position on belong to the current page, in any order.
    page_start: usize,
}

impl FoundSources<Few> {
    /// True if parts were dropped for lack of room.
    pub(crate) fn is_cut(&self) -> bool {
        self.store.is_cut
    }
}

impl<S: SourceStore> FoundSources<S> {
    /// Creates an empty answer; `store` must be empty.
    pub(crate) fn new(store: S) -> FoundSources<S> {
        FoundSources { store, page_start: 0 }
    }

    /// True if the heap may be used.
    pub(crate) fn may_allocate(&self) -> bool {
        self.store.may_allocate()
    }

    /// Returns the parts that were found.
    pub(crate) fn parts(&mut self) -> &[CopySource] {
        self.store.parts()
    }

    /// Adds a part that overlaps no other.
    #[inline]
    pub(crate) fn add(&mut self, part: CopySource) {
        self.store.push(part);
    }

    /// Adds a part that is after all others.
    #[inline]
    pub(crate) fn add_next(&mut self, part: CopySource) {
        match self.store.parts().last_mut() {
            Some(last) if last.continues_as(&part) => last.length += part.length,
            _ => {
                self.store.push(part);
                self.page_start = self.store.parts().len();
            }
        }
    }

    /// Sorts the parts of a page, after all of them were added. Those of later pages must be after them.
    #[inline]
    pub(crate) fn end_page(&mut self) {
        let page = &mut self.store.parts()[self.page_start..];
        if page.len() > 1 {
            // A page is walked from its end, so its parts are usually in descending order.
            page.reverse();
            if !page.is_sorted_by_key(|part| part.at) {
                page.sort_unstable_by_key(|part| part.at);
            }
        }
        self.merge(self.page_start.saturating_sub(1));
    }

    /// Sorts all parts, whose pages may have come in any order.
    pub(crate) fn sort(&mut self) {
        self.store.parts().sort_unstable_by_key(|part| part.at);
        self.merge(0);
    }

    /// Joins parts that continue each other, starting at position `first`.
    #[inline]
    fn merge(&mut self, first: usize) {
        let parts = self.store.parts();
        let mut kept = first;
        for at in first + 1..parts.len() {
            let part = parts[at];
            if parts[kept].continues_as(&part) {
                parts[kept].length += part.length;
            } else {
                kept += 1;
                if kept < at {
                    parts[kept] = part;
                }
            }
        }
        let length = parts.len().min(kept + 1);
        self.store.truncate(length);
        self.page_start = length;
    }

    /// Calls `fill` with the beginning and end of each part of `0..length` of which nothing is known.
    #[inline]
    pub(crate) fn each_gap(&mut self, length: u64, mut fill: impl FnMut(u64, u64)) {
        let mut known = 0;
        for part in self.store.parts() {
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
