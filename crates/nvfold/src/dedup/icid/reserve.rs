//! How much memory the records may take, and where there are none.
//!
//! Two thirds of the memory go to whichever part of the tree asks first; a third is divided evenly, so that no part is
//! ever without. Memory that a part has reserved it keeps: it is the paper's reserved pool.

use super::record::PAGE_BYTES;
use crate::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Bytes of memory whose pages are under one lock: neighbours, so that a copy of some KiB takes one lock.
pub const GROUP_BYTES: u64 = 16 * PAGE_BYTES;

/// Counters of a part that say where it has pages.
const PRESENCE: usize = 64;

/// The memory of a tree.
pub struct Budget {
    reserved_bytes: AtomicUsize,
    shared_bytes_max: usize,
    bytes_of_each: usize,
}

impl Budget {
    /// So many bytes for so many parts.
    pub fn new(bytes_max: usize, parts: usize) -> Budget {
        let divided = bytes_max / 3;
        let (shared_bytes_max, bytes_of_each) = (bytes_max - divided, divided / parts);
        Budget { reserved_bytes: AtomicUsize::new(0), shared_bytes_max, bytes_of_each }
    }

    /// Bytes that are reserved.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes.load(Ordering::Relaxed)
    }

    /// Takes memory for a part that has `own` bytes.
    fn take(&self, bytes: usize, own: usize) -> bool {
        let is_its_own = own.saturating_add(bytes) <= self.bytes_of_each;
        let taken = self.reserved_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
            let after = reserved.checked_add(bytes)?;
            (is_its_own || after <= self.shared_bytes_max).then_some(after)
        });
        taken.is_ok()
    }
}

/// For each of 64 classes of groups of a part, how many pages there are: a look-up where there is none takes no lock.
pub struct Presence([AtomicU32; PRESENCE]);

impl Presence {
    /// No pages.
    pub fn new() -> Presence {
        Presence(std::array::from_fn(|_| AtomicU32::new(0)))
    }

    /// Whether there may be pages of this group.
    #[inline]
    pub fn may_have(&self, group: u64) -> bool {
        self.0[class_of(group)].load(Ordering::Relaxed) != 0
    }
}

/// Mixes the number of a group: its part is told by the highest bits, its class by the next.
#[inline]
fn mixed(group: u64) -> u64 {
    group.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The part of a group, of a number of parts that is a power of two, at most 2^16.
#[inline]
pub fn part_of(group: u64, parts: usize) -> usize {
    (mixed(group) >> 48) as usize & (parts - 1)
}

#[inline]
fn class_of(group: u64) -> usize {
    (mixed(group) >> 32) as usize & (PRESENCE - 1)
}

/// What a part of the tree lives on, for one operation.
pub struct Reserve<'t> {
    /// The memory of the tree.
    pub budget: &'t Budget,
    /// Where the part has pages.
    pub presence: &'t Presence,
    /// False: what is reserved must do.
    pub may_allocate: bool,
}

impl Reserve<'_> {
    /// Takes memory, for a part that has `own` bytes.
    pub fn take(&self, bytes: usize, own: usize) -> bool {
        self.may_allocate && self.budget.take(bytes, own)
    }

    /// Takes memory for a part that gets no more than all others.
    pub fn take_evenly(&self, bytes: usize) -> bool {
        self.budget.reserved_bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Gives back memory that the system did not have.
    pub fn give(&self, bytes: usize) {
        self.budget.reserved_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// There is a page more.
    pub fn page_added(&self, page: u64) {
        self.change(page, 1);
    }

    /// There is a page less.
    pub fn page_removed(&self, page: u64) {
        self.change(page, u32::MAX);
    }

    fn change(&self, page: u64, by: u32) {
        // Under the exclusive lock of the part. A program that asks for what it recorded itself, or that another thread
        // has told it of, sees the count.
        let count = &self.presence.0[class_of(page / (GROUP_BYTES / PAGE_BYTES))];
        count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }
}
