//! The pages of one part of the tree, and the records of each (4.2, 4.3).
//!
//! The problem: a page has no record, one, or hundreds, and most pages come and go while a program copies.
//!
//! The idea is the paper's list of small arrays from a reserve. Here the arrays are linked from the last to the
//! first, because all work is at the end. A node *is* its last array, and the arrays before it have the same size, so
//! one reserve serves both.
//!
//! ```text
//! B-tree: page -> node    [ page, count, previous | r12 r13 ... ]        the node: records 12 and 13, the newest
//!                                       |
//!                                       v
//!                                [ r6 r7 r8 r9 r10 r11 ] -> [ r0 ... r5 ]     always full
//! ```
//!
//! **Icid.** An insertion deletes all records of the page that begin at its own address or higher (optimisation 1).
//! So the records are in ascending order of address, which is also that of time, and a deletion never moves a record
//! (optimisation 2). A record with a higher address than the last one is appended without a search. Where two
//! overlap, the later one is right. Two things differ from the paper:
//!
//! - A record that continues the last one, in the page and in the file, makes it longer. So a file that is read byte
//!   by byte takes no more records than one that is read at once.
//! - Inference 1 is about a single continuous memory region. A copy of a page or more fills its region at once, and
//!   the memory above its end belongs to another buffer. So at its end such a copy deletes only the records that it
//!   overlaps. Small copies that continue page by page delete all records above, as in the paper.
//!
//! **Eviction.** When the memory is used up, a page is evicted: approximately the one that was neither written nor
//! looked up for the longest time. A clock hand goes around the slots. It evicts a page at its second visit, or at
//! its third if the page was looked up or written again. (Evicting at the first visit would often hit a page that has
//! just come, because new pages take free slots anywhere.)

use crate::files::{FileToken, FollowedFiles};
use crate::record::{CopyRecord, PAGE_BYTES};
use crate::reserve::Reserve;
use crate::sources::{CopySource, FoundSources, SourceStore};
use crate::tree::{BRANCH_BYTES, PageTree};
use nvfold_sync::atomic::{AtomicU32, Ordering};
use smallvec::SmallVec;

/// Number of records in an array, as in the paper's example. With its links an array takes two cache lines.
const ARRAY_RECORDS: usize = 6;
const NONE: u32 = u32::MAX;
/// The page number in a slot that is not a node.
const NO_PAGE: u64 = u64::MAX;
/// Two bits in the count of a node: how many visits of the clock hand the page survives. A new page survives one, a
/// page that was looked up or written again two.
const AGE: u32 = 3 << AGE_SHIFT;
const AGE_SHIFT: u32 = 30;
const NEW: u32 = 1 << AGE_SHIFT;
const TOUCHED: u32 = 2 << AGE_SHIFT;
/// Flag in the count of a node: a record may overlap the next one.
const OVERLAPS: u32 = 1 << 29;
/// The largest number of arrays of a page that a look-up walks from the first to the last. With more it begins at the
/// last.
const ARRAYS_IN_ORDER: usize = 32;
/// The least number of slots that are reserved together.
const SLOTS_AT_ONCE: usize = 16;
/// One branch is reserved for this many slots.
const SLOTS_A_BRANCH: usize = 12;
/// Number of records of a page that a look-up walks back in [`Variant::KeepAll`].
const LOOKED_AT_MAX: u32 = 4096;

/// Which records an insertion deletes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Variant {
    /// Those of the page that begin at the address of the new record or higher: the paper's ICID.
    #[default]
    Icid,
    /// Those that overlap the new record: ICID_DO (5.1), for comparison.
    DeleteOverlapping,
    /// None: ICID_KA (5.1), for comparison. Look-ups walk back over the last 4096 records of a page.
    KeepAll,
}

/// A node, an earlier array of a node, or a free slot.
struct RecordSlot {
    records: [CopyRecord; ARRAY_RECORDS],
    /// The page number of a node; [`NO_PAGE`] in other slots.
    page: u64,
    /// In a node: the number of records of its page, [`AGE`] and [`OVERLAPS`]. It is atomic because look-ups change
    /// the age under a shared lock.
    count: AtomicU32,
    /// The array before this one; in a free slot, the next free slot.
    previous: u32,
}

/// Size of a slot in bytes; a page takes one or more.
pub(crate) const SLOT_BYTES: usize = size_of::<RecordSlot>();
#[cfg(not(feature = "shuttle"))]
const _: () = assert!(SLOT_BYTES == 16 * ARRAY_RECORDS + 16);

impl RecordSlot {
    fn count(&self) -> usize {
        (self.count.load(Ordering::Relaxed) & !(AGE | OVERLAPS)) as usize
    }

    fn overlaps(&self) -> bool {
        self.count.load(Ordering::Relaxed) & OVERLAPS != 0
    }

    /// Returns the number of records in the last array.
    fn count_in_last(&self) -> usize {
        match self.count() {
            0 => 0,
            count => (count - 1) % ARRAY_RECORDS + 1,
        }
    }

    fn last(&self) -> Option<&CopyRecord> {
        self.records[..self.count_in_last()].last()
    }

    /// Sets the count of a page that is new or was written again.
    fn set_count(&mut self, count: usize) {
        let age = if count > 1 { TOUCHED } else { NEW };
        let overlaps = if count > 1 { self.count.load(Ordering::Relaxed) & OVERLAPS } else { 0 };
        self.count.store(count as u32 | age | overlaps, Ordering::Relaxed);
    }

    fn set_overlaps(&mut self) {
        self.count.store(self.count.load(Ordering::Relaxed) | OVERLAPS, Ordering::Relaxed);
    }

    fn touch(&self) {
        let count = self.count.load(Ordering::Relaxed);
        if count & AGE != TOUCHED {
            // The count itself changes only under the exclusive lock.
            self.count.store(count & !AGE | TOUCHED, Ordering::Relaxed);
        }
    }
}

/// Statistics of a part of the tree.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartCounts {
    /// Number of records.
    pub records: u64,
    /// Number of pages with records.
    pub pages: u64,
    /// Number of records that were inserted, merged into the last one, or dropped for lack of memory.
    pub insertions: u64,
    /// Number of records that were deleted because a newer one replaced them or because their memory is gone.
    pub deletions: u64,
    /// Number of records that were dropped for lack of memory.
    pub given_up: u64,
}

/// The pages of a part.
pub(crate) struct RecordPages {
    variant: Variant,
    tree: PageTree,
    slots: Vec<RecordSlot>,
    free: u32,
    /// Position of the clock hand that finds pages to evict.
    hand: usize,
    counts: PartCounts,
}

impl RecordPages {
    /// Creates an empty part.
    pub(crate) fn new(variant: Variant) -> RecordPages {
        RecordPages {
            variant,
            tree: PageTree::new(),
            slots: Vec::new(),
            free: NONE,
            hand: 0,
            counts: PartCounts::default(),
        }
    }

    /// Returns the statistics so far.
    pub(crate) fn counts(&self) -> PartCounts {
        self.counts
    }

    // --- insertion ---------------------------------------------------------------------------------------------------

    /// Adds the record of a copy to this page, and deletes the records that the variant says. Returns false when
    /// there is no memory for it. `ends_region` says that it is the last page of a long copy and begins at the
    /// beginning of the page.
    #[inline]
    pub(crate) fn insert(&mut self, page: u64, record: CopyRecord, ends_region: bool, reserve: &Reserve<'_>) -> bool {
        let node = match self.tree.find(page) {
            Some(node) => node,
            None => match self.add_page(page, reserve) {
                Some(node) => node,
                None => return self.no_memory(),
            },
        };
        match self.variant {
            Variant::Icid => {
                if let Some(last) = self.slots[node as usize].last() {
                    if last.page_offset >= record.page_offset {
                        if ends_region && last.page_offset >= record.end() {
                            return self.insert_first(node, record, reserve);
                        }
                        self.delete_from(node, record.page_offset);
                    } else if last.continues_as(&record) {
                        self.lengthen_last(node, record.length);
                        return true;
                    }
                }
            }
            Variant::DeleteOverlapping => {
                self.retain(node, |old| old.end() <= record.page_offset || old.page_offset >= record.end());
            }
            Variant::KeepAll => {}
        }
        self.append(node, record, reserve)
    }

    fn no_memory(&mut self) -> bool {
        self.counts.insertions += 1;
        self.counts.given_up += 1;
        false
    }

    #[inline]
    fn lengthen_last(&mut self, node: u32, bytes: u16) {
        let slot = &mut self.slots[node as usize];
        let last = slot.count_in_last() - 1;
        slot.records[last].length += bytes;
        slot.touch();
        self.counts.insertions += 1;
    }

    #[inline]
    fn append(&mut self, node: u32, record: CopyRecord, reserve: &Reserve<'_>) -> bool {
        let count = self.slots[node as usize].count();
        let place = count % ARRAY_RECORDS;
        let reaches_over = self.slots[node as usize].last().is_some_and(|last| last.end() > record.page_offset);
        if place == 0 && count > 0 && !self.push_array(node, reserve) {
            return self.no_memory();
        }
        let slot = &mut self.slots[node as usize];
        slot.records[place] = record;
        slot.set_count(count + 1);
        if reaches_over {
            slot.set_overlaps();
        }
        self.counts.records += 1;
        self.counts.insertions += 1;
        true
    }

    /// Inserts a record before those that begin at its end or higher, and deletes the lower ones.
    fn insert_first(&mut self, node: u32, record: CopyRecord, reserve: &Reserve<'_>) -> bool {
        let is_above = |old: &&CopyRecord| old.page_offset >= record.end();
        let above: SmallVec<[CopyRecord; 64]> = self.newest_first(node).take_while(is_above).copied().collect();
        self.delete_last_while(node, |_| true);
        let is_whole = self.append(node, record, reserve);
        let moved = above.iter().rev().take_while(|old| self.append(node, **old, reserve)).count();
        // They were counted when they were first inserted. A record for which there is no memory now counts as deleted.
        let is_one_lost = moved < above.len();
        self.counts.insertions -= moved as u64 + u64::from(is_one_lost);
        self.counts.given_up -= u64::from(is_one_lost);
        self.counts.deletions -= moved as u64;
        is_whole && !is_one_lost
    }

    /// Moves the full array of a node to another slot.
    fn push_array(&mut self, node: u32, reserve: &Reserve<'_>) -> bool {
        let Some(array) = self.take_slot(Some(node), reserve) else { return false };
        let RecordSlot { records, previous, .. } = self.slots[node as usize];
        let slot = &mut self.slots[array as usize];
        (slot.records, slot.previous) = (records, previous);
        self.slots[node as usize].previous = array;
        true
    }

    /// Moves the previous array back into its node, whose own records are gone.
    fn pull_array(&mut self, node: u32) {
        let array = self.slots[node as usize].previous;
        let RecordSlot { records, previous, .. } = self.slots[array as usize];
        let slot = &mut self.slots[node as usize];
        (slot.records, slot.previous) = (records, previous);
        self.give_slot(array);
    }

    /// Deletes the records of a page that begin at this offset or higher, starting with the last one. The first
    /// record of each array tells whether the whole array is deleted (optimisation 2).
    fn delete_from(&mut self, node: u32, page_offset: u16) {
        self.delete_last_while(node, |record| record.page_offset >= page_offset);
    }

    /// Deletes the last record of a page as long as `goes` is true for it. If `goes` is true for a record, it must be
    /// true for all records after it.
    fn delete_last_while(&mut self, node: u32, goes: impl Fn(&CopyRecord) -> bool) {
        let before = self.slots[node as usize].count();
        let mut count = before;
        loop {
            let slot = &self.slots[node as usize];
            let in_last = if count == 0 { 0 } else { (count - 1) % ARRAY_RECORDS + 1 };
            if in_last > 0 && goes(&slot.records[0]) {
                count -= in_last;
                if count > 0 {
                    self.pull_array(node);
                }
                continue;
            }
            count -= slot.records[..in_last].iter().rev().take_while(|record| goes(record)).count();
            break;
        }
        self.slots[node as usize].set_count(count);
        self.counts.records -= (before - count) as u64;
        self.counts.deletions += (before - count) as u64;
    }

    /// Keeps only the records for which `stays` is true; deletes the others and closes the gaps.
    fn retain(&mut self, node: u32, stays: impl Fn(&CopyRecord) -> bool) {
        if self.newest_first(node).all(&stays) {
            return;
        }
        let kept: SmallVec<[CopyRecord; 64]> =
            self.newest_first(node).filter(|record| stays(record)).copied().collect();
        let before = self.slots[node as usize].count();
        self.delete_last_while(node, |_| true);
        // There are fewer records than before, so there are enough free slots.
        for record in kept.iter().rev() {
            let count = self.slots[node as usize].count();
            if count > 0 && count.is_multiple_of(ARRAY_RECORDS) {
                let array = self.take_free().expect("the slots of the records before");
                let RecordSlot { records, previous, .. } = self.slots[node as usize];
                let slot = &mut self.slots[array as usize];
                (slot.records, slot.previous) = (records, previous);
                self.slots[node as usize].previous = array;
            }
            let slot = &mut self.slots[node as usize];
            let reaches_over = slot.last().is_some_and(|last| last.end() > record.page_offset);
            slot.records[count % ARRAY_RECORDS] = *record;
            slot.set_count(count + 1);
            if reaches_over {
                slot.set_overlaps();
            }
        }
        self.counts.records += kept.len() as u64;
        self.counts.deletions -= kept.len() as u64;
        debug_assert!(kept.len() < before);
    }

    // --- what is no longer true --------------------------------------------------------------------------------------

    /// Handles bytes `from..to` of a page that were overwritten with bytes of unknown origin: deletes the last
    /// records as long as they describe no other bytes. Other stale records stay, and a compare finds them wrong.
    pub(crate) fn overwritten(&mut self, page: u64, from: u16, to: u16, reserve: &Reserve<'_>) {
        let Some(node) = self.tree.find(page) else { return };
        if self.variant != Variant::KeepAll {
            self.drop_last_within(node, from, to, reserve);
        }
    }

    /// True if [`overwritten`](RecordPages::overwritten) would delete a record.
    pub(crate) fn is_worth_overwriting(&self, page: u64, from: u16, to: u16) -> bool {
        let last = self.tree.find(page).and_then(|node| self.slots[node as usize].last());
        self.variant != Variant::KeepAll && last.is_some_and(|last| from <= last.page_offset && last.end() <= to)
    }

    /// Handles bytes `from..to` of a page that are no longer memory of the program.
    pub(crate) fn unmapped(&mut self, page: u64, from: u16, to: u16, reserve: &Reserve<'_>) {
        let Some(node) = self.tree.find(page) else { return };
        if (from, u64::from(to)) == (0, PAGE_BYTES) {
            self.counts.deletions += self.slots[node as usize].count() as u64;
            self.remove_page(node, reserve);
        } else {
            self.drop_last_within(node, from, to, reserve);
        }
    }

    /// As [`unmapped`](RecordPages::unmapped), for all pages for which `range` returns bytes.
    pub(crate) fn unmapped_where(&mut self, range: impl Fn(u64) -> Option<(u16, u16)>, reserve: &Reserve<'_>) {
        for at in 0..self.slots.len() {
            let page = self.slots[at].page;
            if let Some((from, to)) = Some(page).filter(|page| *page != NO_PAGE).and_then(&range) {
                self.unmapped(page, from, to, reserve);
            }
        }
    }

    /// Removes the records of forgotten files.
    pub(crate) fn remove_forgotten(&mut self, files: &FollowedFiles, reserve: &Reserve<'_>) {
        for node in 0..self.slots.len() as u32 {
            if self.slots[node as usize].page != NO_PAGE {
                self.retain(node, |record| files.is_open(record.file));
                if self.slots[node as usize].count() == 0 {
                    self.remove_page(node, reserve);
                }
            }
        }
    }

    fn drop_last_within(&mut self, node: u32, from: u16, to: u16, reserve: &Reserve<'_>) {
        let is_within = |record: &CopyRecord| from <= record.page_offset && record.end() <= to;
        while self.slots[node as usize].last().is_some_and(is_within) {
            self.delete_one(node);
        }
        if self.slots[node as usize].count() == 0 {
            self.remove_page(node, reserve);
        }
    }

    fn delete_one(&mut self, node: u32) {
        let count = self.slots[node as usize].count() - 1;
        if count > 0 && count.is_multiple_of(ARRAY_RECORDS) {
            self.pull_array(node);
        }
        self.slots[node as usize].set_count(count);
        self.counts.records -= 1;
        self.counts.deletions += 1;
    }

    // --- look-up -----------------------------------------------------------------------------------------------------

    /// Adds the origins of bytes `from..to` of a page to `found`. `page_at` is the position of the page in the range
    /// that is looked up; the range may begin inside the page.
    #[inline]
    pub(crate) fn sources<S: SourceStore>(
        &self,
        page: u64,
        from: u16,
        to: u16,
        page_at: u64,
        files: &FollowedFiles,
        found: &mut FoundSources<S>,
    ) {
        let Some(node) = self.tree.find(page) else { return };
        if self.variant != Variant::Icid || !self.sources_in_order(node, from, to, page_at, files, found) {
            self.sources_of(node, from, to, page_at, files, found);
            found.end_page();
        }
    }

    /// Handles the usual case: the records of a page do not overlap and are walked in ascending order. Returns false
    /// if they may overlap.
    #[inline]
    fn sources_in_order<S: SourceStore>(
        &self,
        node: u32,
        from: u16,
        to: u16,
        page_at: u64,
        files: &FollowedFiles,
        found: &mut FoundSources<S>,
    ) -> bool {
        let last = &self.slots[node as usize];
        if last.overlaps() || last.count() > ARRAYS_IN_ORDER * ARRAY_RECORDS {
            return false;
        }
        last.touch();
        // Walk from the last array back to the one in which the range begins, by their first records (optimisation 2).
        let (mut arrays, mut depth, mut at) = ([NONE; ARRAYS_IN_ORDER], 0, node);
        loop {
            let array = &self.slots[at as usize];
            arrays[depth] = at;
            depth += 1;
            if array.previous == NONE || array.records[0].page_offset <= from {
                break;
            }
            at = array.previous;
        }
        // Most records of a page are of one file, so the last open file is remembered.
        let mut open = FileToken::default();
        for at in arrays[..depth].iter().rev() {
            let array = &self.slots[*at as usize];
            let filled = if *at == node { last.count_in_last() } else { ARRAY_RECORDS };
            for record in &array.records[..filled] {
                if record.page_offset >= to {
                    return true;
                }
                let (first, end) = (record.page_offset.max(from), record.end().min(to));
                if first < end && (record.file == open || files.is_open(record.file)) {
                    open = record.file;
                    let file_offset = record.file_offset + u64::from(first - record.page_offset);
                    let at = page_at.wrapping_add(u64::from(first));
                    found.add_next(CopySource { at, length: u64::from(end - first), file: record.file, file_offset });
                }
            }
        }
        true
    }

    /// As [`sources`](RecordPages::sources), for all pages for which `range` returns bytes and a position.
    pub(crate) fn sources_where<S: SourceStore>(
        &self,
        range: impl Fn(u64) -> Option<(u16, u16, u64)>,
        files: &FollowedFiles,
        found: &mut FoundSources<S>,
    ) {
        for (node, slot) in self.slots.iter().enumerate() {
            if let Some((from, to, page_at)) = Some(slot.page).filter(|page| *page != NO_PAGE).and_then(&range) {
                self.sources_of(node as u32, from, to, page_at, files, found);
            }
        }
    }

    #[inline]
    fn sources_of<S: SourceStore>(
        &self,
        node: u32,
        from: u16,
        to: u16,
        page_at: u64,
        files: &FollowedFiles,
        found: &mut FoundSources<S>,
    ) {
        self.slots[node as usize].touch();
        let may_allocate = found.may_allocate();
        // Most records of a page are of one file, so the last open file is remembered.
        let mut open = FileToken::default();
        let mut add = |record: &CopyRecord, first: u16, end: u16| {
            if record.file == open || files.is_open(record.file) {
                open = record.file;
                let file_offset = record.file_offset + u64::from(first - record.page_offset);
                let at = page_at.wrapping_add(u64::from(first));
                found.add(CopySource { at, length: u64::from(end - first), file: record.file, file_offset });
            }
        };
        match self.variant {
            Variant::Icid => self.newest_of_ordered(node, from, to, may_allocate, &mut add),
            // No records overlap.
            Variant::DeleteOverlapping => {
                for record in self.newest_first(node) {
                    let (first, end) = (record.page_offset.max(from), record.end().min(to));
                    if first < end {
                        add(record, first, end);
                    }
                }
            }
            Variant::KeepAll => self.newest_of_any(node, from, to, &mut add),
        }
    }

    /// Adds the newest record of each byte, where newer records begin higher. Walking back, all bytes below `low` are
    /// still open, and above it those in `holes`.
    #[inline]
    fn newest_of_ordered(
        &self,
        node: u32,
        from: u16,
        to: u16,
        may_allocate: bool,
        add: &mut impl FnMut(&CopyRecord, u16, u16),
    ) {
        let mut low = to;
        // The lowest hole is the last one.
        let mut holes: SmallVec<[(u16, u16); 32]> = SmallVec::new();
        let mut array = &self.slots[node as usize];
        let mut filled = array.count_in_last();
        loop {
            // The first record of an array tells whether the array can contain the range.
            if filled > 0 && array.records[0].page_offset < to {
                for record in array.records[..filled].iter().rev() {
                    let (first, end) = (record.page_offset.max(from), record.end().min(to));
                    if first >= end {
                        continue;
                    }
                    while let Some((hole_first, hole_end)) = holes.last_mut() {
                        if *hole_first >= end {
                            break;
                        }
                        add(record, *hole_first, end.min(*hole_end));
                        if end < *hole_end {
                            *hole_first = end;
                            break;
                        }
                        holes.pop();
                    }
                    if first < low {
                        let end = end.min(low);
                        add(record, first, end);
                        // Without allocation, holes beyond the room count as closed.
                        if end < low && (may_allocate || holes.len() < holes.inline_size()) {
                            holes.push((end, low));
                        }
                        low = first;
                    }
                    if low == from && holes.is_empty() {
                        return;
                    }
                }
            }
            if array.previous == NONE {
                return;
            }
            (array, filled) = (&self.slots[array.previous as usize], ARRAY_RECORDS);
        }
    }

    /// Adds the newest record of each byte, whatever their order. `open` has a bit for each byte that is still open.
    fn newest_of_any(&self, node: u32, from: u16, to: u16, add: &mut impl FnMut(&CopyRecord, u16, u16)) {
        let mut open = [0u64; PAGE_BYTES as usize / 64];
        open[from as usize / 64..(to as usize).div_ceil(64)].fill(u64::MAX);
        let mut left = to - from;
        for record in self.newest_first(node).take(LOOKED_AT_MAX as usize) {
            let (mut at, end) = (record.page_offset.max(from), record.end().min(to));
            while at < end {
                // Find runs of open and closed bytes, word by word.
                let word = &mut open[at as usize / 64];
                let shifted = *word >> (at % 64);
                let in_word = (64 - at % 64).min(end - at);
                if shifted & 1 == 0 {
                    at += (shifted.trailing_zeros() as u16).min(in_word);
                    continue;
                }
                let run = (shifted.trailing_ones() as u16).min(in_word);
                *word &= !((u64::MAX >> (64 - run)) << (at % 64));
                left -= run;
                add(record, at, at + run);
                at += run;
            }
            if left == 0 {
                break;
            }
        }
    }

    #[inline]
    fn newest_first(&self, node: u32) -> impl Iterator<Item = &CopyRecord> {
        let first = &self.slots[node as usize];
        let mut records = first.records[..first.count_in_last()].iter();
        let mut previous = first.previous;
        std::iter::from_fn(move || {
            if let Some(record) = records.next_back() {
                return Some(record);
            }
            if previous == NONE {
                return None;
            }
            let array = &self.slots[previous as usize];
            (records, previous) = (array.records.iter(), array.previous);
            records.next_back()
        })
    }

    // --- memory ------------------------------------------------------------------------------------------------------

    fn add_page(&mut self, page: u64, reserve: &Reserve<'_>) -> Option<u32> {
        let node = self.take_slot(None, reserve)?;
        while !self.tree.has_room_for(page) {
            if !self.grow_tree(reserve) && !self.give_up_a_page(Some(node), reserve) {
                self.give_slot(node);
                return None;
            }
        }
        self.tree.insert(page, node);
        reserve.page_added(page);
        self.counts.pages += 1;
        let slot = &mut self.slots[node as usize];
        (slot.page, slot.previous) = (page, NONE);
        slot.set_count(0);
        Some(node)
    }

    /// Removes a page with all its records.
    fn remove_page(&mut self, node: u32, reserve: &Reserve<'_>) {
        let slot = &mut self.slots[node as usize];
        let (page, count) = (slot.page, slot.count());
        slot.page = NO_PAGE;
        self.counts.records -= count as u64;
        self.counts.pages -= 1;
        self.tree.remove(page);
        reserve.page_removed(page);
        let mut array = self.slots[node as usize].previous;
        self.give_slot(node);
        for _ in 0..count.saturating_sub(1) / ARRAY_RECORDS {
            let previous = self.slots[array as usize].previous;
            self.give_slot(array);
            array = previous;
        }
    }

    /// Takes a slot: a free one, a new one, or one of a page that is evicted for it. `not_of` is a page that is not
    /// evicted.
    fn take_slot(&mut self, not_of: Option<u32>, reserve: &Reserve<'_>) -> Option<u32> {
        loop {
            if let Some(slot) = self.take_free() {
                return Some(slot);
            }
            if !self.grow(reserve) && !self.give_up_a_page(not_of, reserve) {
                return None;
            }
        }
    }

    fn take_free(&mut self) -> Option<u32> {
        if self.free != NONE {
            let slot = self.free;
            self.free = self.slots[slot as usize].previous;
            return Some(slot);
        }
        if self.slots.len() == self.slots.capacity() || self.slots.len() >= NONE as usize {
            return None;
        }
        let (records, count) = ([CopyRecord::default(); ARRAY_RECORDS], AtomicU32::new(0));
        self.slots.push(RecordSlot { records, page: NO_PAGE, count, previous: NONE });
        Some((self.slots.len() - 1) as u32)
    }

    fn give_slot(&mut self, slot: u32) {
        self.slots[slot as usize].previous = self.free;
        self.free = slot;
    }

    /// Reserves a quarter more slots, with branches for them.
    fn grow(&mut self, reserve: &Reserve<'_>) -> bool {
        self.grow_by((self.slots.capacity() / 4).max(SLOTS_AT_ONCE), |bytes, own| reserve.take(bytes, own), reserve)
    }

    /// Reserves `bytes` bytes, or slightly fewer, for slots and branches of a part that has none yet.
    pub(crate) fn reserve_evenly(&mut self, bytes: usize, reserve: &Reserve<'_>) {
        let slots = bytes.saturating_sub(BRANCH_BYTES) / (SLOT_BYTES + BRANCH_BYTES.div_ceil(SLOTS_A_BRANCH));
        self.grow_by(slots, |bytes, _| reserve.take_evenly(bytes), reserve);
    }

    fn grow_by(&mut self, slots: usize, take: impl Fn(usize, usize) -> bool, reserve: &Reserve<'_>) -> bool {
        let branches = (self.slots.capacity() + slots).div_ceil(SLOTS_A_BRANCH).saturating_sub(self.tree.capacity());
        let bytes = slots * SLOT_BYTES + branches * BRANCH_BYTES;
        if !take(bytes, self.memory_bytes()) {
            return false;
        }
        let before = self.memory_bytes();
        let is_there = self.slots.try_reserve_exact(self.slots.capacity() - self.slots.len() + slots).is_ok()
            && self.tree.reserve(branches);
        if !is_there {
            reserve.give(bytes - (self.memory_bytes() - before).min(bytes));
        }
        is_there
    }

    fn grow_tree(&mut self, reserve: &Reserve<'_>) -> bool {
        if !reserve.take(BRANCH_BYTES, self.memory_bytes()) {
            return false;
        }
        let is_there = self.tree.reserve(1);
        if !is_there {
            reserve.give(BRANCH_BYTES);
        }
        is_there
    }

    /// Returns the memory that is reserved, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * SLOT_BYTES + self.tree.capacity() * BRANCH_BYTES
    }

    /// Returns the number of slots that are nodes or arrays.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn slots_in_use(&self) -> usize {
        let mut free = 0;
        let mut next = self.free;
        while next != NONE {
            (free, next) = (free + 1, self.slots[next as usize].previous);
        }
        self.slots.len() - free
    }

    /// Evicts the page that the clock hand finds, except `keep`. Returns false when there is none.
    fn give_up_a_page(&mut self, keep: Option<u32>, reserve: &Reserve<'_>) -> bool {
        for _ in 0..3 * self.slots.len() {
            self.hand = if self.hand + 1 < self.slots.len() { self.hand + 1 } else { 0 };
            let slot = &mut self.slots[self.hand];
            if slot.page == NO_PAGE || Some(self.hand as u32) == keep {
                continue;
            }
            let count = slot.count.load(Ordering::Relaxed);
            if count & AGE != 0 {
                slot.count.store(count - NEW, Ordering::Relaxed);
                continue;
            }
            self.counts.given_up += self.slots[self.hand].count() as u64;
            self.remove_page(self.hand as u32, reserve);
            return true;
        }
        false
    }
}
