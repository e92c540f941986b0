//! The rec-tree: which bytes of a process's memory were copied from which file (ICID, 4.1-4.3).
//!
//! The problem: a program reads a file into memory, copies pieces of it together and writes them to another file. The
//! file system sees only new bytes. The idea is the paper's: the copies are recorded; a write looks its buffer up, and
//! learns which ranges of which files its bytes came from. They are compared before anything is shared, so what the tree
//! says is a **hint**: a stale record costs a compare, and is never wrong in what the file then holds. A process has one tree,
//! and it is gone with the process. It is pure data: it sees addresses as numbers, and never looks at what is there.
//!
//! ```text
//! record_read(buffer, 4096, A, 8192)      buffer came from file A            map_area: what is read there is the file's
//! record_copy(out + 40, buffer + 100, 80) so did these 80 bytes of out       copies of copies name the file
//! origins(out, 4096)                      -> at 40: 80 bytes, A at 8292      what a write of out asks
//! ```
//!
//! | file | what |
//! |---|---|
//! | `mod` | the tree: operations cut into pages, parts and their locks |
//! | `pages` | the pages of a part and their records; the three variants; what is given up |
//! | `tree` | B-tree from a page to its node |
//! | `record` | the 16 bytes of a record |
//! | `reserve` | the memory of all parts; where there are no pages |
//! | `files` | tokens that files have in records |
//! | `areas` | mapped memory |
//! | `sources` | the answer to a look-up |
//! | `anchors` | copies that nobody records, found by samples of their content |
//! | `hint` | what a process tells the server of a mount of a write to come |
//!
//! **Parts and locks.** The paper has a readers-writer lock for each node and does not say what guards the tree above them.
//! Here memory is divided into groups of 16 pages, groups by a hash of their number into up to 64 parts, and each part is a
//! B-tree with its nodes under one readers-writer lock: an operation on a page takes one lock, where a lock for the tree and
//! one for the node would be two. Threads that copy in memory of their own meet only when their groups fall into one part.
//! A look-up of memory where nothing was copied to takes no lock at all (`reserve::Presence`), and these are most.
//!
//! **Lock order.** A thread holds one lock of a tree at a time. The exceptions: the lock of those who change areas comes before
//! that of each copy of their list. A caller may hold any lock that is not taken below an operation of the tree: it
//! calls nothing back.
//!
//! **What never waits.** [`RecTree::try_record_read`], [`RecTree::try_record_copy`] and [`RecTree::try_origins`]
//! neither wait for a lock nor allocate, and drop what they cannot record so. (That a thread which waits elsewhere is
//! woken when they unlock is the one call of the system that they may make.) Where nothing else records, the tree is
//! made by [`RecTree::reserved`].
//!
//! **Bounds.** Memory is at most [`Options::memory_bytes_max`] and what the tables below it take, whatever is recorded. An
//! operation takes time in proportion to the pages of its range, or of the tree if those are fewer. Ranges that wrap are cut at
//! the end of the address space, copies longer than all records could tell of after as many pages as the memory could hold,
//! files at 2^64.

pub mod anchors;
mod areas;
mod files;
pub mod hint;
mod pages;
mod record;
mod reserve;
mod sources;
mod tree;

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

pub use files::FileToken;
pub use pages::Variant;
pub use record::PAGE_BYTES;
pub use sources::Source;

use crate::padded::Padded;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, thread_number};
use areas::Areas;
use files::{Closed, FILES_MAX, Files};
use pages::{Pages, SLOT_BYTES};
use record::Record;
use reserve::{Budget, GROUP_BYTES, Presence, Reserve, part_of};
use sources::{Few, Found, Slots, Store};

/// Parts, if there is memory for so many.
const PARTS_MAX: usize = 64;
/// A part is not made for less.
const PART_BYTES_MIN: usize = 64 << 10;
/// Of more groups the pages that there are are walked, and not those that there could be.
const GROUPS_WALKED_MAX: u64 = 16 << 10;
/// Counters of look-ups, so that threads rarely share one.
const COUNTERS: usize = 16;

/// How to make a tree.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Which records an insertion deletes.
    pub variant: Variant,
    /// Memory of the records in bytes, at most.
    pub memory_bytes_max: usize,
    /// Files that are followed at once, up to 65,536. Four bytes each, when they are used.
    pub files_max: u32,
}

impl Options {
    /// Of this variant with memory as in the paper's Table 5: 5.7 MB, and for [`Variant::KeepAll`] 2 GB.
    pub fn of(variant: Variant) -> Options {
        let memory_bytes_max = if variant == Variant::KeepAll { 2_000_000_000 } else { 5_700_000 };
        Options { variant, memory_bytes_max, files_max: FILES_MAX }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::of(Variant::Icid)
    }
}

/// What a tree has done, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records that there are, those of forgotten files included.
    pub records: u64,
    /// Pages that have any.
    pub pages: u64,
    /// Memory that is reserved, in bytes: for records, areas and files.
    pub memory_bytes: u64,
    /// Records that were to be inserted; a copy over several pages is one a page.
    pub insertions: u64,
    /// Look-ups: of origins, and of the source of each copy. A few are missed when threads look up at once.
    pub lookups: u64,
    /// Records that were deleted for newer ones, or because their memory or file was.
    pub deletions: u64,
    /// Records that were given up for want of memory.
    pub given_up: u64,
}

struct Part {
    presence: Presence,
    pages: Padded<RwLock<Pages>>,
}

/// Whether an operation may wait and allocate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Waits,
    Tries,
}

/// The rec-tree of a process.
pub struct RecTree {
    parts: Box<[Part]>,
    budget: Budget,
    files: Files,
    areas: Areas,
    lookups: [Padded<AtomicU64>; COUNTERS],
    /// Pages of one copy for whose records there could be memory.
    pages_max: u64,
    variant: Variant,
}

impl Default for RecTree {
    fn default() -> RecTree {
        RecTree::new(Options::default())
    }
}

impl RecTree {
    /// Makes an empty tree.
    pub fn new(options: Options) -> RecTree {
        let Options { variant, memory_bytes_max, files_max } = options;
        let parts = (memory_bytes_max / PART_BYTES_MIN).clamp(1, PARTS_MAX);
        let parts = 1 << parts.ilog2();
        let part = || Part { presence: Presence::new(), pages: Padded(RwLock::new(Pages::new(variant))) };
        RecTree {
            parts: (0..parts).map(|_| part()).collect(),
            budget: Budget::new(memory_bytes_max, parts),
            files: Files::new(files_max),
            areas: Areas::new(),
            lookups: std::array::from_fn(|_| Padded::default()),
            pages_max: (memory_bytes_max / SLOT_BYTES) as u64,
            variant,
        }
    }

    /// An empty tree that has all its memory from the beginning, evenly: for those who record by what never allocates, which
    /// could not grow it. Where the system backs memory when it is used, it costs no more than another tree.
    pub fn reserved(options: Options) -> RecTree {
        let tree = RecTree::new(options);
        let bytes = options.memory_bytes_max / tree.parts.len();
        for part in &tree.parts {
            part.pages.write().reserve_evenly(bytes, &tree.reserve(part, How::Waits));
        }
        tree
    }

    // --- files and areas ---------------------------------------------------------------------------------------------

    /// A token for a file that is opened, which records name it by. `None` when as many are open as may be: the file is
    /// not followed then.
    #[must_use]
    pub fn open_file(&self) -> Option<FileToken> {
        self.files.open()
    }

    /// The file is closed: what was copied from it has no origin any more. The token names nothing from now on, also when
    /// it is given to other calls, or when others have copies of it.
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

    /// Whether the token names a file that is open.
    pub fn is_open(&self, file: FileToken) -> bool {
        self.files.is_open(file)
    }

    /// Removes the records of forgotten files now. Without it they go when their memory is wanted.
    pub fn remove_forgotten(&self) {
        for part in &self.parts {
            part.pages.write().remove_forgotten(&self.files, &self.reserve(part, How::Waits));
        }
    }

    /// Memory is mapped from a file, read-only or private: what lies there comes from the file, but for what is recorded of
    /// it later. Replaces what was mapped there. False when that is not followed: the file is forgotten, or more than
    /// 4096 areas are mapped.
    pub fn map_area(&self, address: u64, length: u64, file: FileToken, file_offset: u64) -> bool {
        let length = length.min(u64::MAX - file_offset);
        let end = address.saturating_add(length);
        self.forget_range(address, length);
        self.areas.map(address, end, file, file_offset, &self.files)
    }

    /// Memory is mapped no more: forgets the areas there, or parts of them, and the records.
    pub fn unmap_area(&self, address: u64, length: u64) {
        self.areas.unmap(address, address.saturating_add(length));
        self.forget_range(address, length);
    }

    /// Forgets what was copied to this memory, where that is cheap: whole pages, and of others the last records. For memory that
    /// is given back, or filled with something else.
    pub fn forget_range(&self, address: u64, length: u64) {
        let end = address.saturating_add(length);
        if let Some(pieces) = pieces(address, end) {
            for piece in pieces {
                let part = self.part(piece.group);
                if part.presence.may_have(piece.group) {
                    let mut pages = part.pages.write();
                    let reserve = self.reserve(part, How::Waits);
                    piece.each_page(|page, from, to, _| pages.unmapped(page, from, to, &reserve));
                }
            }
        } else {
            for part in &self.parts {
                let bytes = |page| bytes_of(page, address, end);
                part.pages.write().unmapped_where(bytes, &self.reserve(part, How::Waits));
            }
        }
    }

    // --- recording ---------------------------------------------------------------------------------------------------

    /// `length` bytes of a file from `file_offset` on were read to `destination`.
    #[inline]
    pub fn record_read(&self, destination: u64, length: u64, file: FileToken, file_offset: u64) {
        self.insert(destination, length, file, file_offset, How::Waits);
    }

    /// As [`record_read`](RecTree::record_read), but never waits or allocates: what cannot be recorded so is dropped. False
    /// if any was.
    #[inline]
    pub fn try_record_read(&self, destination: u64, length: u64, file: FileToken, file_offset: u64) -> bool {
        self.insert(destination, length, file, file_offset, How::Tries)
    }

    /// `length` bytes were copied from `source` to `destination`, which may overlap: what the source came from, the
    /// destination comes from too. Must be called with the copy done, or before any other thread can see the destination.
    #[inline]
    pub fn record_copy(&self, destination: u64, source: u64, length: u64) {
        self.copy(destination, source, length, How::Waits);
    }

    /// As [`record_copy`](RecTree::record_copy), but never waits or allocates: what cannot be looked up or recorded so is
    /// dropped. False if any was.
    #[inline]
    pub fn try_record_copy(&self, destination: u64, source: u64, length: u64) -> bool {
        self.copy(destination, source, length, How::Tries)
    }

    // --- asking ------------------------------------------------------------------------------------------------------

    /// Which parts of this memory were copied from which files, as far as is known: sorted, not overlapping, and each
    /// as long as it can be. `sources` is emptied first.
    pub fn origins(&self, address: u64, length: u64, sources: &mut Vec<Source>) {
        sources.clear();
        self.look_up(address, length, How::Waits, &mut Found::new(sources));
    }

    /// As [`origins`](RecTree::origins), but never waits or allocates: parts that cannot be looked up so, and those that
    /// `sources` has no room for, are left out. How many parts there are.
    pub fn try_origins(&self, address: u64, length: u64, sources: &mut [Source]) -> usize {
        let mut found = Found::new(Slots::new(sources));
        self.look_up(address, length, How::Tries, &mut found);
        found.parts().len()
    }

    /// What the tree holds, and has done.
    pub fn stats(&self) -> Stats {
        let other =
            self.areas.memory_bytes() + self.files.memory_bytes() + size_of_val(&*self.parts) + size_of::<RecTree>();
        let mut stats = Stats {
            memory_bytes: (self.budget.reserved_bytes() + other) as u64,
            lookups: self.lookups.iter().map(|count| count.load(Ordering::Relaxed)).sum(),
            ..Stats::default()
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
    fn part(&self, group: u64) -> &Part {
        &self.parts[part_of(group, self.parts.len())]
    }

    #[inline]
    fn reserve<'t>(&'t self, part: &'t Part, how: How) -> Reserve<'t> {
        Reserve { budget: &self.budget, presence: &part.presence, may_allocate: how == How::Waits }
    }

    fn copy(&self, destination: u64, source: u64, length: u64, how: How) -> bool {
        if destination == source || length == 0 {
            return true;
        }
        // Only what has both a source and a destination.
        let length = length.min(u64::MAX - source).min(u64::MAX - destination);
        let mut found = Found::new(Few::new(how == How::Waits));
        let mut is_whole = self.look_up(source, length, how, &mut found) && !found.is_cut();
        found.each_gap(length, |from, to| self.overwrite(destination + from, destination + to, how));
        for part in found.parts() {
            is_whole &= self.insert(destination + part.at, part.length, part.file, part.file_offset, how);
        }
        is_whole
    }

    /// False if something was dropped.
    #[inline]
    fn insert(&self, address: u64, length: u64, file: FileToken, file_offset: u64, how: How) -> bool {
        let length = length.min(u64::MAX - file_offset).min(self.pages_max.saturating_mul(PAGE_BYTES));
        let mut is_whole = true;
        let end = address.saturating_add(length);
        for piece in Pieces::new(address, end) {
            let part = self.part(piece.group);
            let Some(mut pages) = write(part, how) else {
                is_whole = false;
                continue;
            };
            // Who forgets the file, and then walks, finds this record or is seen here.
            if !self.files.is_open(file) {
                return true;
            }
            let reserve = self.reserve(part, how);
            piece.each_page(|page, from, to, start| {
                let file_offset = file_offset + (start - address);
                let record = Record { file, page_offset: from, length: to - from, file_offset };
                let ends_region = length >= PAGE_BYTES && start != address && start + u64::from(to) == end;
                is_whole &= pages.insert(page, record, ends_region, &reserve);
            });
        }
        is_whole
    }

    /// Memory was filled with what no file is known for.
    fn overwrite(&self, start: u64, end: u64, how: How) {
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

    /// False if a lock was held that is not waited for.
    #[inline]
    fn look_up<S: Store>(&self, address: u64, length: u64, how: How, found: &mut Found<S>) -> bool {
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
            is_whole &= self.areas.fill_gaps(address, end, &self.files, how == How::Waits, found);
        }
        is_whole
    }
}

#[inline]
fn read(part: &Part, how: How) -> Option<RwLockReadGuard<'_, Pages>> {
    match how {
        How::Waits => Some(part.pages.read()),
        How::Tries => part.pages.try_read(),
    }
}

#[inline]
fn write(part: &Part, how: How) -> Option<RwLockWriteGuard<'_, Pages>> {
    match how {
        How::Waits => Some(part.pages.write()),
        How::Tries => part.pages.try_write(),
    }
}

/// The part of a range that lies in one group of pages.
struct Piece {
    group: u64,
    start: u64,
    end: u64,
}

impl Piece {
    /// Calls `visit` with each page, where in it the piece begins and ends, and at which address it begins there.
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

/// A range, group by group.
struct Pieces {
    start: u64,
    end: u64,
}

impl Pieces {
    #[inline]
    fn new(start: u64, end: u64) -> Pieces {
        Pieces { start, end }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        if self.start >= self.end {
            return None;
        }
        let (group, start) = (self.start / GROUP_BYTES, self.start);
        self.start = (start | (GROUP_BYTES - 1)).saturating_add(1);
        Some(Piece { group, start, end: self.start.min(self.end) })
    }
}

/// The groups of a range; `None` if they are so many that the pages of the tree are fewer.
#[inline]
fn pieces(start: u64, end: u64) -> Option<Pieces> {
    (end.saturating_sub(start) / GROUP_BYTES <= GROUPS_WALKED_MAX).then(|| Pieces::new(start, end))
}

/// The bytes of a page that lie between two addresses.
fn bytes_of(page: u64, start: u64, end: u64) -> Option<(u16, u16)> {
    let first = page * PAGE_BYTES;
    let from = start.saturating_sub(first).min(PAGE_BYTES);
    let to = end.saturating_sub(first).min(PAGE_BYTES);
    (from < to).then_some((from as u16, to as u16))
}
