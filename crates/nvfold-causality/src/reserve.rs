//! The memory budget of the records, and which memory has no records.
//!
//! The problem: the parts of the tree share one limit, but no part may be left without memory.
//!
//! The idea: two thirds of the memory go to the parts that ask first; a third is divided evenly, so that each part
//! always has some. A part keeps the memory that it has reserved: that is the paper's reserved pool (4.2).

use crate::record::PAGE_BYTES;
use nvfold_sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Bytes of memory whose pages are under one lock. The pages are neighbours, so that a copy of some KiB takes one lock.
pub(crate) const GROUP_BYTES: u64 = 16 * PAGE_BYTES;

/// Number of counters of a part that tell where it has pages.
const PRESENCE: usize = 64;

/// The memory budget of a tree.
pub(crate) struct Budget {
    reserved_bytes: AtomicUsize,
    shared_bytes_max: usize,
    bytes_of_each: usize,
}

impl Budget {
    /// Creates a budget of `bytes_max` bytes for `parts` parts.
    pub(crate) fn new(bytes_max: usize, parts: usize) -> Budget {
        let divided = bytes_max / 3;
        let (shared_bytes_max, bytes_of_each) = (bytes_max - divided, divided / parts);
        Budget { reserved_bytes: AtomicUsize::new(0), shared_bytes_max, bytes_of_each }
    }

    /// Returns the number of reserved bytes.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.reserved_bytes.load(Ordering::Relaxed)
    }

    /// Takes memory for a part that already has `own` bytes. Returns false if the budget has none.
    fn take(&self, bytes: usize, own: usize) -> bool {
        let is_its_own = own.saturating_add(bytes) <= self.bytes_of_each;
        let taken = self.reserved_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
            let after = reserved.checked_add(bytes)?;
            (is_its_own || after <= self.shared_bytes_max).then_some(after)
        });
        taken.is_ok()
    }
}

/// The number of pages in each of 64 classes of a part's groups. A look-up in a class without pages takes no lock.
pub(crate) struct Presence([AtomicU32; PRESENCE]);

impl Presence {
    /// Creates the counters of a part without pages.
    pub(crate) fn new() -> Presence {
        Presence(std::array::from_fn(|_| AtomicU32::new(0)))
    }

    /// True if there may be pages of this group.
    #[inline]
    pub(crate) fn may_have(&self, group: u64) -> bool {
        self.0[class_of(group)].load(Ordering::Relaxed) != 0
    }
}

/// Mixes the number of a group: the highest bits give its part, the next ones its class.
#[inline]
fn mixed(group: u64) -> u64 {
    group.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Returns the part of a group; `parts` is a power of two, at most 2^16.
#[inline]
pub(crate) fn part_of(group: u64, parts: usize) -> usize {
    (mixed(group) >> 48) as usize & (parts - 1)
}

#[inline]
fn class_of(group: u64) -> usize {
    (mixed(group) >> 32) as usize & (PRESENCE - 1)
}

/// The memory and counters that a part of the tree uses, for one operation.
pub(crate) struct Reserve<'t> {
    /// The memory budget of the tree.
    pub budget: &'t Budget,
    /// The counters that tell where the part has pages.
    pub presence: &'t Presence,
    /// True if the operation may allocate; otherwise it must do with the reserved memory.
    pub may_allocate: bool,
}

impl Reserve<'_> {
    /// Takes memory for a part that already has `own` bytes. Returns false if there is none.
    pub(crate) fn take(&self, bytes: usize, own: usize) -> bool {
        self.may_allocate && self.budget.take(bytes, own)
    }

    /// Takes memory for a part that gets the same share as all others.
    pub(crate) fn take_evenly(&self, bytes: usize) -> bool {
        self.budget.reserved_bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Gives back memory that the system could not allocate.
    pub(crate) fn give(&self, bytes: usize) {
        self.budget.reserved_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts a new page.
    pub(crate) fn page_added(&self, page: u64) {
        self.change(page, 1);
    }

    /// Counts a removed page.
    pub(crate) fn page_removed(&self, page: u64) {
        self.change(page, u32::MAX);
    }

    fn change(&self, page: u64, by: u32) {
        // The caller holds the exclusive lock of the part, so a plain store suffices. A program sees the count if it
        // asks for its own records, or for those of a thread with which it has synchronised.
        let count = &self.presence.0[class_of(page / (GROUP_BYTES / PAGE_BYTES))];
        count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }
}
