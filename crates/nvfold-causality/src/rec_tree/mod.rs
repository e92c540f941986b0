//! The rec-tree: records which bytes of a process's memory were copied from which file (ICID 4.1-4.3).
//!
//! The problem: a program reads a file into memory, assembles pieces of it and writes them to another file. The file
//! system sees only new bytes.
//!
//! The idea is the paper's: record the copies. A write looks its buffer up and learns from which ranges of which
//! files its bytes came. The bytes are compared before anything is shared, so an answer of the tree is a **hint**: a
//! stale record costs a compare, and never makes the content of a file wrong. Each process has one tree, which lives
//! as long as the process. The tree is pure data: addresses are numbers to it, and it never reads the memory
//! there.
//!
//! ```text
//! record_read(buffer, 4096, A, 8192)      buffer came from file A          map_area: what is read there is the file's
//! record_copy(out + 40, buffer + 100, 80) so did these 80 bytes of out       copies of copies name the file
//! origins(out, 4096)                      -> at 40: 80 bytes, A at 8292      what a write of out asks
//! ```
//!
//! **Parts and locks.** The paper has a readers-writer lock for each node and does not say what protects the tree
//! above the nodes. Here memory is divided into groups of 16 pages, and a hash of the group number assigns each group
//! to one of up to 64 parts. Each part is a B-tree with its nodes under one readers-writer lock. So an operation on a
//! page takes one lock, where a lock for the tree and one for the node would be two. Threads that copy within their
//! own memory contend only when their groups fall into the same part. A look-up of memory to which nothing was copied
//! takes no lock at all (`reserve::Presence`); most look-ups are of this kind.
//!
//! **Lock order.** A thread holds one lock of a tree at a time, with one exception: a thread that changes the areas
//! takes the lock for changes first, and then that of each copy of the list. A caller may hold any lock that is not
//! taken below an operation of the tree, since the tree calls nothing back.
//!
//! **Calls that never wait.** [`RecTree::try_record_read`], [`RecTree::try_record_copy`] and [`RecTree::try_origins`]
//! neither wait for a lock nor allocate memory; they drop what they cannot record under these limits. The only system
//! call that they may make wakes a thread that waits for the lock that they release. Where all records come from
//! these calls, create the tree with [`RecTree::reserved`].
//!
//! **Bounds.** The tree takes at most [`TreeOptions::memory_bytes_max`] for records, plus the memory of the tables of
//! files and areas, however much is recorded. The time of an operation is proportional to the pages of its range, or
//! to the pages of the tree if those are fewer. Ranges that wrap around are cut at the end of the address space;
//! copies that are longer than all records could describe are cut after as many pages as the memory could hold; files
//! are cut at 2^64 bytes.

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

use crate::areas::MappedAreas;
use crate::files::{Closed, FILES_MAX, FileToken, FollowedFiles};
use crate::pages::{RecordPages, SLOT_BYTES, Variant};
use crate::record::{CopyRecord, PAGE_BYTES};
use crate::reserve::{Budget, GROUP_BYTES, Presence, Reserve, part_of};
use crate::sources::{CopySource, Few, FoundSources, SourceSlots, SourceStore};
use nvfold_sync::atomic::{AtomicU64, Ordering};
use nvfold_sync::{Padded, RwLock, RwLockReadGuard, RwLockWriteGuard, thread_number};

/// The largest number of parts.
const PARTS_MAX: usize = 64;
/// The least memory for which a part is created.
const PART_BYTES_MIN: usize = 64 << 10;
/// For a range of more groups than this, an operation walks the existing pages of the tree instead.
const GROUPS_WALKED_MAX: u64 = 16 << 10;
/// Number of counters of look-ups: enough that threads rarely share one.
const COUNTERS: usize = 16;

/// Options of a tree.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// Which records an insertion deletes.
    pub variant: Variant,
    /// The largest memory of the records, bytes.
    pub memory_bytes_max: usize,
    /// The largest number of files that are followed at once, up to 65,536. Each takes four bytes when it is used.
    pub files_max: u32,
}

impl TreeOptions {
    /// Returns options for this variant with the memory of the paper's Table 5: 5.7 MB, and 2 GB for
    /// [`Variant::KeepAll`].
    pub fn of(variant: Variant) -> TreeOptions {
        let memory_bytes_max = if variant == Variant::KeepAll { 2_000_000_000 } else { 5_700_000 };
        TreeOptions { variant, memory_bytes_max, files_max: FILES_MAX }
    }
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        TreeOptions::of(Variant::Icid)
    }
}

/// Statistics of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    /// Number of records, including those of forgotten files.
    pub records: u64,
    /// Number of pages with records.
    pub pages: u64,
    /// Memory that is reserved for records, areas and files, bytes.
    pub memory_bytes: u64,
    /// Number of records that were to be inserted; a copy over several pages counts once per page.
    pub insertions: u64,
    /// Number of look-ups, of origins and of the source of each copy. A few are missed when threads look up at once.
    pub lookups: u64,
    /// Number of records that were deleted because a newer one replaced them or because their memory or file is gone.
    pub deletions: u64,
    /// Number of records that were dropped for lack of memory.
    pub given_up: u64,
}

struct TreePart {
    presence: Presence,
    pages: Padded<RwLock<RecordPages>>,
}

/// Whether an operation may wait and allocate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Waits,
    Tries,
}

/// The rec-tree of a process.
pub struct RecTree {
    parts: Box<[TreePart]>,
    budget: Budget,
    files: FollowedFiles,
    areas: MappedAreas,
    lookups: [Padded<AtomicU64>; COUNTERS],
    /// The largest number of pages of one copy whose records the memory can hold.
    pages_max: u64,
    variant: Variant,
}

impl Default for RecTree {
    fn default() -> RecTree {
        RecTree::new(TreeOptions::default())
    }
}

impl RecTree {
    /// Creates an empty tree.
    pub fn new(options: TreeOptions) -> RecTree {
        let TreeOptions { variant, memory_bytes_max, files_max } = options;
        let parts = (memory_bytes_max / PART_BYTES_MIN).clamp(1, PARTS_MAX);
        let parts = 1 << parts.ilog2();
        let part = || TreePart { presence: Presence::new(), pages: Padded(RwLock::new(RecordPages::new(variant))) };
        RecTree {
            parts: (0..parts).map(|_| part()).collect(),
            budget: Budget::new(memory_bytes_max, parts),
            files: FollowedFiles::new(files_max),
            areas: MappedAreas::new(),
            lookups: std::array::from_fn(|_| Padded::default()),
            pages_max: (memory_bytes_max / SLOT_BYTES) as u64,
            variant,
        }
    }

    /// Creates an empty tree that has all its memory from the beginning, divided evenly. It is for callers that
    /// record by the calls that never allocate, which could not grow it. Where the system backs memory only when it
    /// is used, this tree costs no more than another one.
    pub fn reserved(options: TreeOptions) -> RecTree {
        let tree = RecTree::new(options);
        let bytes = options.memory_bytes_max / tree.parts.len();
        for part in &tree.parts {
            part.pages.write().reserve_evenly(bytes, &tree.reserve(part, Patience::Waits));
        }
        tree
    }

    // --- files and areas ---------------------------------------------------------------------------------------------

    /// Returns a token that represents an opened file in records. `None` when the largest number of files is
    /// open; then the file is not followed.
    #[must_use]
    pub fn open_file(&self) -> Option<FileToken> {
        self.files.open()
    }

    /// Forgets a closed file: bytes that were copied from it have no origin any longer. The token is invalid from now
    /// on, including all copies of it.
    pub fn forget_file(&self, file: FileToken) {
        let closed = self.files.close(file);
        if closed == Closed::Not {
            return;
        }
        self.areas.forget(file);
        if closed == Closed::AfterAWalk {
            self.remove_forgotten();
        }
        self.files.release(file);
    }

    /// True if the token stands for an open file.
    pub fn is_open(&self, file: FileToken) -> bool {
        self.files.is_open(file)
    }

    /// Removes the records of forgotten files now. Otherwise they are removed when their memory is needed.
    pub fn remove_forgotten(&self) {
        for part in &self.parts {
            part.pages.write().remove_forgotten(&self.files, &self.reserve(part, Patience::Waits));
        }
    }

    /// Records that memory is mapped from a file, read-only or private. Its bytes come from the file, except where
    /// later records say otherwise. Replaces earlier areas there. Returns false if the area is not followed, because
    /// the file is forgotten or more than 4096 areas are mapped.
    pub fn map_area(&self, address: u64, length: u64, file: FileToken, file_offset: u64) -> bool {
        let length = length.min(u64::MAX - file_offset);
        let end = address.saturating_add(length);
        self.forget_range(address, length);
        self.areas.map(address, end, file, file_offset, &self.files)
    }

    /// Records that memory is unmapped: forgets the areas there, or parts of them, and the records.
    pub fn unmap_area(&self, address: u64, length: u64) {
        self.areas.unmap(address, address.saturating_add(length));
        self.forget_range(address, length);
    }

    /// Forgets the records of this memory where that is cheap: those of whole pages, and the last ones of pages that
    /// are covered in part. For memory that is freed or filled with other data.
    pub fn forget_range(&self, address: u64, length: u64) {
        let end = address.saturating_add(length);
        if let Some(pieces) = pieces(address, end) {
            for piece in pieces {
                let part = self.part(piece.group);
                if part.presence.may_have(piece.group) {
                    let mut pages = part.pages.write();
                    let reserve = self.reserve(part, Patience::Waits);
                    piece.each_page(|page, from, to, _| pages.unmapped(page, from, to, &reserve));
                }
            }
        } else {
            for part in &self.parts {
                let bytes = |page| bytes_of(page, address, end);
                part.pages.write().unmapped_where(bytes, &self.reserve(part, Patience::Waits));
            }
        }
    }

    // --- recording ---------------------------------------------------------------------------------------------------

    /// Records that `length` bytes of a file, from `file_offset` on, were read to `destination`.
    #[inline]
    pub fn record_read(&self, destination: u64, length: u64, file: FileToken, file_offset: u64) {
        self.insert(destination, length, file, file_offset, Patience::Waits);
    }

    /// As [`record_read`](RecTree::record_read), but never waits or allocates; records that would need it are
    /// dropped. Returns false if any was.
    #[inline]
    pub fn try_record_read(&self, destination: u64, length: u64, file: FileToken, file_offset: u64) -> bool {
        self.insert(destination, length, file, file_offset, Patience::Tries)
    }

    /// Records that `length` bytes were copied from `source` to `destination`; the two may overlap. The destination
    /// gets the origins of the source. Must be called when the copy is done, or before any other thread can see the
    /// destination.
    #[inline]
    pub fn record_copy(&self, destination: u64, source: u64, length: u64) {
        self.copy(destination, source, length, Patience::Waits);
    }

    /// As [`record_copy`](RecTree::record_copy), but never waits or allocates; look-ups and records that would need
    /// it are dropped. Returns false if any was.
    #[inline]
    pub fn try_record_copy(&self, destination: u64, source: u64, length: u64) -> bool {
        self.copy(destination, source, length, Patience::Tries)
    }

    // --- asking ------------------------------------------------------------------------------------------------------

    /// Finds which parts of this memory were copied from which files, as far as is known: sorted, without overlaps,
    /// and each as long as possible. `sources` is cleared first.
    pub fn origins(&self, address: u64, length: u64, sources: &mut Vec<CopySource>) {
        sources.clear();
        self.look_up(address, length, Patience::Waits, &mut FoundSources::new(sources));
    }

    /// As [`origins`](RecTree::origins), but never waits or allocates. Leaves out parts whose look-up would need it,
    /// and parts for which `sources` has no room. Returns the number of parts.
    pub fn try_origins(&self, address: u64, length: u64, sources: &mut [CopySource]) -> usize {
        let mut found = FoundSources::new(SourceSlots::new(sources));
        self.look_up(address, length, Patience::Tries, &mut found);
        found.parts().len()
    }

    /// Returns the statistics of the tree.
    pub fn stats(&self) -> TreeStats {
        let other =
            self.areas.memory_bytes() + self.files.memory_bytes() + size_of_val(&*self.parts) + size_of::<RecTree>();
        let mut stats = TreeStats {
            memory_bytes: (self.budget.reserved_bytes() + other) as u64,
            lookups: self.lookups.iter().map(|count| count.load(Ordering::Relaxed)).sum(),
            ..TreeStats::default()
        };
        for part in &self.parts {
            let counts = part.pages.read().counts();
            stats.records += counts.records;
            stats.pages += counts.pages;
            stats.insertions += counts.insertions;
            stats.deletions += counts.deletions;
            stats.given_up += counts.given_up;
        }
        stats
    }

    // --- within ------------------------------------------------------------------------------------------------------

    #[inline]
    fn part(&self, group: u64) -> &TreePart {
        &self.parts[part_of(group, self.parts.len())]
    }

    #[inline]
    fn reserve<'t>(&'t self, part: &'t TreePart, how: Patience) -> Reserve<'t> {
        Reserve { budget: &self.budget, presence: &part.presence, may_allocate: how == Patience::Waits }
    }

    fn copy(&self, destination: u64, source: u64, length: u64, how: Patience) -> bool {
        if destination == source || length == 0 {
            return true;
        }
        // Ignore bytes whose source or destination is beyond the address space.
        let length = length.min(u64::MAX - source).min(u64::MAX - destination);
        let mut found = FoundSources::new(Few::new(how == Patience::Waits));
        let mut is_whole = self.look_up(source, length, how, &mut found) && !found.is_cut();
        found.each_gap(length, |from, to| self.overwrite(destination + from, destination + to, how));
        for part in found.parts() {
            is_whole &= self.insert(destination + part.at, part.length, part.file, part.file_offset, how);
        }
        is_whole
    }

    /// Inserts a record for each page of a copy. Returns false if any was dropped.
    #[inline]
    fn insert(&self, address: u64, length: u64, file: FileToken, file_offset: u64, how: Patience) -> bool {
        let length = length.min(u64::MAX - file_offset).min(self.pages_max.saturating_mul(PAGE_BYTES));
        let mut is_whole = true;
        let end = address.saturating_add(length);
        for piece in GroupRanges::new(address, end) {
            let part = self.part(piece.group);
            let Some(mut pages) = write(part, how) else {
                is_whole = false;
                continue;
            };
            // A thread that forgets the file closes it before it walks the records. So either it finds this record,
            // or the file is seen closed here.
            if !self.files.is_open(file) {
                return true;
            }
            let reserve = self.reserve(part, how);
            piece.each_page(|page, from, to, start| {
                let file_offset = file_offset + (start - address);
                let record = CopyRecord { file, page_offset: from, length: to - from, file_offset };
                let ends_region = length >= PAGE_BYTES && start != address && start + u64::from(to) == end;
                is_whole &= pages.insert(page, record, ends_region, &reserve);
            });
        }
        is_whole
    }

    /// Deletes stale records of memory that was filled with bytes of unknown origin.
    fn overwrite(&self, start: u64, end: u64, how: Patience) {
        let pieces = pieces(start, end).filter(|_| self.variant != Variant::KeepAll);
        for piece in pieces.into_iter().flatten() {
            let part = self.part(piece.group);
            if !part.presence.may_have(piece.group) {
                continue;
            }
            let Some(pages) = read(part, how) else { continue };
            let mut is_worth_it = false;
            piece.each_page(|page, from, to, _| is_worth_it |= pages.is_worth_overwriting(page, from, to));
            drop(pages);
            if is_worth_it && let Some(mut pages) = write(part, how) {
                let reserve = self.reserve(part, how);
                piece.each_page(|page, from, to, _| pages.overwritten(page, from, to, &reserve));
            }
        }
    }

    /// Adds the origins of a range to `found`. Returns false if parts are missing because a lock was not free and
    /// `how` forbids waiting.
    #[inline]
    fn look_up<S: SourceStore>(&self, address: u64, length: u64, how: Patience, found: &mut FoundSources<S>) -> bool {
        let end = address.saturating_add(length);
        let count = &self.lookups[thread_number() % COUNTERS];
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let mut is_whole = true;
        if let Some(pieces) = pieces(address, end) {
            for piece in pieces {
                let part = self.part(piece.group);
                if !part.presence.may_have(piece.group) {
                    continue;
                }
                let Some(pages) = read(part, how) else {
                    is_whole = false;
                    continue;
                };
                piece.each_page(|page, from, to, _| {
                    pages.sources(page, from, to, (page * PAGE_BYTES).wrapping_sub(address), &self.files, found);
                });
            }
        } else {
            for part in &self.parts {
                let Some(pages) = read(part, how) else {
                    is_whole = false;
                    continue;
                };
                let range = |page: u64| {
                    let (from, to) = bytes_of(page, address, end)?;
                    Some((from, to, (page * PAGE_BYTES).wrapping_sub(address)))
                };
                pages.sources_where(range, &self.files, found);
            }
            found.sort();
        }
        if self.areas.may_have(address, end) {
            is_whole &= self.areas.fill_gaps(address, end, &self.files, how == Patience::Waits, found);
        }
        is_whole
    }
}

#[inline]
fn read(part: &TreePart, how: Patience) -> Option<RwLockReadGuard<'_, RecordPages>> {
    match how {
        Patience::Waits => Some(part.pages.read()),
        Patience::Tries => part.pages.try_read(),
    }
}

#[inline]
fn write(part: &TreePart, how: Patience) -> Option<RwLockWriteGuard<'_, RecordPages>> {
    match how {
        Patience::Waits => Some(part.pages.write()),
        Patience::Tries => part.pages.try_write(),
    }
}

/// The part of a range that is in one group of pages.
struct GroupRange {
    group: u64,
    start: u64,
    end: u64,
}

impl GroupRange {
    /// Calls `visit` for each page with its number, the first and last offset of the piece in it, and the address at
    /// which the piece begins in it.
    #[inline]
    fn each_page(&self, mut visit: impl FnMut(u64, u16, u16, u64)) {
        let mut start = self.start;
        while start < self.end {
            let (page, from) = (start / PAGE_BYTES, start % PAGE_BYTES);
            let bytes = (PAGE_BYTES - from).min(self.end - start);
            visit(page, from as u16, (from + bytes) as u16, start);
            start += bytes;
        }
    }
}

/// Iterates over a range, group by group.
struct GroupRanges {
    start: u64,
    end: u64,
}

impl GroupRanges {
    #[inline]
    fn new(start: u64, end: u64) -> GroupRanges {
        GroupRanges { start, end }
    }
}

impl Iterator for GroupRanges {
    type Item = GroupRange;

    #[inline]
    fn next(&mut self) -> Option<GroupRange> {
        if self.start >= self.end {
            return None;
        }
        let (group, start) = (self.start / GROUP_BYTES, self.start);
        self.start = (start | (GROUP_BYTES - 1)).saturating_add(1);
        Some(GroupRange { group, start, end: self.start.min(self.end) })
    }
}

/// Returns the groups of a range; `None` if they are so many that walking the tree's pages is cheaper.
#[inline]
fn pieces(start: u64, end: u64) -> Option<GroupRanges> {
    (end.saturating_sub(start) / GROUP_BYTES <= GROUPS_WALKED_MAX).then(|| GroupRanges::new(start, end))
}

/// Returns the bytes of a page that are between two addresses, as offsets in the page.
fn bytes_of(page: u64, start: u64, end: u64) -> Option<(u16, u16)> {
    let first = page * PAGE_BYTES;
    let from = start.saturating_sub(first).min(PAGE_BYTES);
    let to = end.saturating_sub(first).min(PAGE_BYTES);
    (from < to).then_some((from as u16, to as u16))
}
