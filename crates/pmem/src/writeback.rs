//! Level `file`: a device in a plain file, whose every sync is atomic.
//!
//! The problem: stores to a file that is mapped shared reach the disk page by page, in any order, at any time. A
//! power cut then leaves a state that the device never had, for example an old log page with a new table.
//!
//! The idea: at this level alone the file is mapped **privately**, so a store stays in memory. Every store goes
//! through `Region`, so the pages that were stored to are known. A sync takes all of them as they are at one moment,
//! and the [`journal`](crate::journal) brings them to the disk, all or none. So the disk always holds the device as
//! it was at some moment between two stores. A killed process leaves such a state at the other levels, and everything
//! above `pmem` is made for it.
//!
//! ```text
//!          first store                 sync: the moment              the page is in its place
//! clean --------------------> dirty -----------------------> frozen --------------------------> clean
//!                               ^                               |
//!                               +---- a store: copied first ----+
//! ```
//!
//! **The moment.** A store holds its thread's stripe of [`Writeback::storing`] shared; the sync takes all stripes,
//! and so comes between two stores. While it holds them it only marks the dirty pages as frozen. They are copied
//! later, in batches; a thread that stores to a frozen page copies it first.
//!
//! **Memory** is bounded. At most [`PAGES_MAX`] pages (256 MiB) are dirty: a store that would make one more syncs
//! first. A page that is in its place goes back to the host's page cache. So memory holds at most three times that
//! amount during a sync.
//!
//! **When.** A sync runs when it is asked for ([`Region::sync`](crate::Region::sync)); in the background when no page has
//! become dirty for a second, 5 s after the first unsynced store, and when half of the pages are dirty. A killed process
//! loses what it had not synced.

use crate::fault::Faults;
use crate::host_file::HostFile;
use crate::journal::{Journal, PAGES_MAX};
use crate::{BLOCK_BYTES, host};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::io::{Errno, Result};
use rustix::mm::Advice;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};
use zerocopy::FromZeros;

const PAGE: usize = BLOCK_BYTES as usize;
const STRIPES: usize = 16;
/// Pages that go back to the host's page cache in one step, during which all stores wait.
const RELEASED_AT_ONCE: usize = 1024;
const SYNC_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_secs(1);

type Page = Box<[u8; PAGE]>;

/// The dirty pages of a mapping, and their way to the disk. See the module.
pub(crate) struct Writeback {
    base: *mut u8,
    device_bytes: u64,
    file: HostFile,
    faults: &'static Faults,
    /// The process that stores. The pages of a forked child are copies, which must not be synced.
    owner: u32,
    storing: [Stripe; STRIPES],
    /// Pages stored to since the last sync began.
    dirty: PageSet,
    /// Pages of the sync under way that are not copied yet.
    frozen: PageSet,
    /// Pages of which memory holds another content than the file, or its own copy.
    private: PageSet,
    pages: Mutex<Pages>,
    journal: Mutex<Journal>,
    background: Mutex<Option<JoinHandle<()>>>,
    /// The handle of the background thread, to wake it.
    waker: Mutex<Option<Thread>>,
    stops: AtomicBool,
}

#[derive(Default)]
#[repr(align(128))]
struct Stripe(RwLock<()>);

#[derive(Default)]
struct Pages {
    /// Those in `Writeback::dirty`, in the order of their first stores.
    dirty: Vec<u64>,
    /// When the first of them was stored to.
    dirty_since: Option<Instant>,
    /// Old contents of frozen pages that were stored to before the sync had copied them.
    copies: HashMap<u64, Page>,
}

// SAFETY: `base` points to a mapping that outlives this (`Mapping` stops the background and drops this first). The
// bytes behind it are touched only in `copy_page`, when no thread stores to the page, and by madvise.
unsafe impl Send for Writeback {}
// SAFETY: as for Send; all other fields are locks and atomics.
unsafe impl Sync for Writeback {}

/// A store under way: no sync can freeze pages while it lives.
pub(crate) type Storing<'w> = RwLockReadGuard<'w, ()>;

impl Writeback {
    /// Makes the writeback of a private mapping of `file`. `None` if the host has no address space for the page sets.
    pub(crate) fn new(
        base: *mut u8,
        device_bytes: u64,
        file: HostFile,
        faults: &'static Faults,
    ) -> Option<Arc<Writeback>> {
        let set = || PageSet::new(device_bytes / BLOCK_BYTES);
        let writeback = Arc::new(Writeback {
            base,
            device_bytes,
            faults,
            owner: std::process::id(),
            storing: Default::default(),
            dirty: set()?,
            frozen: set()?,
            private: set()?,
            pages: Mutex::default(),
            journal: Mutex::new(Journal::new(file.clone(), device_bytes)),
            file,
            background: Mutex::default(),
            waker: Mutex::default(),
            stops: AtomicBool::new(false),
        });
        Some(writeback)
    }

    pub(crate) fn file(&self) -> &HostFile {
        &self.file
    }

    /// Returns a guard to hold during a store to a range. It may sync first.
    pub(crate) fn store(self: &Arc<Self>, offset: u64, length: u64) -> Storing<'_> {
        let pages = offset / BLOCK_BYTES..(offset + length).div_ceil(BLOCK_BYTES);
        assert!(pages.end - pages.start <= PAGES_MAX as u64, "one store is at most {PAGES_MAX} pages at level file");
        loop {
            let storing = self.storing[crate::thread::number() % STRIPES].0.read();
            if pages.clone().all(|page| self.dirty.contains(page)) || self.make_dirty(pages.clone()) {
                return storing;
            }
            drop(storing);
            if self.sync().is_err() {
                // Memory has no room for pages that the disk does not take, so later stores no longer count.
                self.faults.lose();
                return self.storing[crate::thread::number() % STRIPES].0.read();
            }
        }
    }

    /// Marks pages as dirty. Returns false if more than [`PAGES_MAX`] would be dirty.
    fn make_dirty(self: &Arc<Self>, pages: Range<u64>) -> bool {
        let mut state = self.pages.lock();
        let fresh = pages.clone().filter(|page| !self.dirty.contains(*page)).count();
        if state.dirty.len() + fresh > PAGES_MAX {
            return false;
        }
        for page in pages.filter(|page| !self.dirty.contains(*page)) {
            if self.frozen.take(page) {
                let mut copy = Box::new([0; PAGE]);
                self.copy_page(page, &mut copy);
                state.copies.insert(page, copy);
            }
            self.private.insert(page);
            self.dirty.insert(page);
            state.dirty.push(page);
        }
        if state.dirty_since.is_none() {
            state.dirty_since = Some(Instant::now());
            self.start_background();
        }
        if state.dirty.len() > PAGES_MAX / 2 {
            self.wake();
        }
        true
    }

    /// Makes everything stored before the call durable, all or none of it.
    ///
    /// # Errors
    /// The disk's; EIO if the device is lost. The device on the disk is then as the last good sync left it, and the
    /// next sync tries again.
    pub(crate) fn sync(&self) -> Result<()> {
        if std::process::id() != self.owner {
            return Ok(());
        }
        let mut journal = self.journal.lock();
        if self.file.length()? < journal.file_bytes() {
            self.faults.lose();
        }
        self.check_lost()?;
        let pages = self.freeze();
        if pages.is_empty() {
            return Ok(());
        }
        let synced = journal.sync(&pages, &mut |batch, bytes| self.copy_frozen(batch, bytes));
        match synced {
            Ok(()) => self.release(&pages),
            Err(_) => self.thaw(&pages),
        }
        synced
    }

    /// Makes the dirty pages frozen: the moment of the sync.
    fn freeze(&self) -> Vec<u64> {
        let stores = self.stop_stores();
        let mut state = self.pages.lock();
        let mut pages = std::mem::take(&mut state.dirty);
        state.dirty_since = None;
        for page in &pages {
            self.dirty.take(*page);
            self.frozen.insert(*page);
        }
        drop(state);
        drop(stores);
        pages.sort_unstable();
        pages
    }

    /// Undoes `freeze` after a failed sync: its pages become part of the next one.
    fn thaw(&self, pages: &[u64]) {
        let mut state = self.pages.lock();
        for page in pages {
            self.frozen.take(*page);
            if self.dirty.insert(*page) {
                state.dirty.push(*page);
            }
        }
        state.copies.clear();
        state.dirty_since = Some(Instant::now());
    }

    /// Copies pages as they were at the moment of the sync.
    fn copy_frozen(&self, pages: &[u64], bytes: &mut [u8]) -> Result<()> {
        let mut state = self.pages.lock();
        for (page, to) in pages.iter().zip(bytes.as_chunks_mut().0) {
            if self.frozen.take(*page) {
                self.copy_page(*page, to);
            } else {
                *to = *state.copies.remove(page).expect("a page that is not frozen any more was copied");
            }
        }
        drop(state);
        // A page that the host took away reads as zeros.
        self.check_lost()
    }

    fn copy_page(&self, page: u64, to: &mut [u8; PAGE]) {
        debug_assert!(page < self.device_bytes / BLOCK_BYTES);
        // SAFETY: the page lies in the mapping. No thread stores to it meanwhile: it was frozen when no store was
        // under way, is not dirty, and becomes dirty only under the lock of `pages`, which the caller holds.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(page as usize * PAGE), to.as_mut_ptr(), PAGE) }
    }

    /// Drops the private copies of pages that the file now has, unless a thread has stored to them since.
    fn release(&self, pages: &[u64]) {
        for some in pages.chunks(RELEASED_AT_ONCE) {
            let _stores = self.stop_stores();
            let clean: Vec<u64> = some.iter().copied().filter(|page| self.is_released(*page)).collect();
            for run in clean.chunk_by(|one, next| one + 1 == *next) {
                // SAFETY: pages of our private mapping whose content equals that of the file, so dropping them
                // changes no byte that a reader sees; and no store is under way.
                let dropped = unsafe {
                    let from = self.base.add(run[0] as usize * PAGE);
                    host::madvise(from.cast(), run.len() * PAGE, Advice::LinuxDontNeed)
                };
                if dropped.is_ok() {
                    run.iter().for_each(|page| _ = self.private.take(*page));
                }
            }
        }
    }

    /// Returns whether the private copy of a page in its place may be dropped: not if the page was stored to again,
    /// nor if the handler replaced it because of bad memory.
    fn is_released(&self, page: u64) -> bool {
        !self.dirty.contains(page) && self.faults.frozen_in(page * BLOCK_BYTES, BLOCK_BYTES).is_none()
    }

    fn stop_stores(&self) -> [RwLockWriteGuard<'_, ()>; STRIPES] {
        self.storing.each_ref().map(|stripe| stripe.0.write())
    }

    fn check_lost(&self) -> Result<()> {
        if self.faults.is_lost() { Err(Errno::IO) } else { Ok(()) }
    }

    /// Returns whether memory holds pages of a range that the file may not have yet.
    pub(crate) fn holds(&self, range: Range<u64>) -> bool {
        self.next_kept_page(&range).is_some()
    }

    /// Returns the first byte of the first page in a range that memory holds and the file may not have yet.
    pub(crate) fn next_kept_page(&self, range: &Range<u64>) -> Option<u64> {
        let page = self.private.next(range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES))?;
        Some(range.start.max(page * BLOCK_BYTES))
    }

    /// Records that memory of a read-only mapping holds a page from the journal.
    pub(crate) fn hold(&self, page: u64) {
        self.private.insert(page);
    }
}

/// The background thread.
impl Writeback {
    fn start_background(self: &Arc<Self>) {
        let mut background = self.background.lock();
        if background.is_none() && !self.stops.load(Ordering::Relaxed) {
            let this = Arc::clone(self);
            let thread = std::thread::Builder::new().name("nvfold-sync".into()).spawn(move || this.sync_now_and_then());
            // Without a thread, only the sync of a store that finds the memory full remains.
            if let Ok(thread) = thread {
                *self.waker.lock() = Some(thread.thread().clone());
                *background = Some(thread);
            }
        }
    }

    fn wake(&self) {
        if let Some(thread) = &*self.waker.lock() {
            thread.unpark();
        }
    }

    fn sync_now_and_then(&self) {
        let mut synced_at = Instant::now();
        let mut count_before = 0;
        while !self.stops.load(Ordering::Relaxed) {
            std::thread::park_timeout(LOOK_EVERY);
            let (since, count) = {
                let state = self.pages.lock();
                (state.dirty_since, state.dirty.len())
            };
            let before = std::mem::replace(&mut count_before, count);
            if since.is_some_and(|since| is_due(since.elapsed(), before, count)) {
                // A caller of `sync` learns of an error; the background only tries again later.
                let _ = self.sync();
                synced_at = Instant::now();
            } else if since.is_none() && synced_at.elapsed() >= SYNC_EVERY && !self.faults.is_lost() {
                let _ = self.journal.lock().close();
                synced_at = Instant::now();
            }
        }
    }

    /// Stops the background, syncs everything, and cuts the journal off. After an error the journal stays for the
    /// next open; a caller that must know of errors has called `sync` before.
    pub(crate) fn close(&self) {
        if std::process::id() != self.owner {
            return;
        }
        self.stops.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.background.lock().take() {
            let _ = thread.join();
        }
        let _ = self.cut_journal_off();
    }

    /// Makes everything durable, and cuts the journal off. Later stores make it anew.
    ///
    /// # Errors
    /// Those of [`Writeback::sync`]. What was synced before is durable; the journal stays for the next open.
    pub(crate) fn cut_journal_off(&self) -> Result<()> {
        if std::process::id() != self.owner {
            return Ok(());
        }
        self.sync()?;
        self.journal.lock().close()
    }
}

/// Returns whether the background syncs: `count` pages are dirty, the first for `age`, and `before` were dirty a
/// [`LOOK_EVERY`] ago. If none was added meanwhile, a burst of stores has ended.
fn is_due(age: Duration, before: usize, count: usize) -> bool {
    age >= SYNC_EVERY || count == before || count > PAGES_MAX / 2
}

/// A set of pages: one bit each, zeroed lazily by the allocator.
struct PageSet(Box<[AtomicU64]>);

impl PageSet {
    fn new(pages: u64) -> Option<PageSet> {
        <[AtomicU64]>::new_box_zeroed_with_elems(pages.div_ceil(64) as usize).ok().map(PageSet)
    }

    fn contains(&self, page: u64) -> bool {
        self.0[(page / 64) as usize].load(Ordering::Acquire) >> (page % 64) & 1 != 0
    }

    /// Adds a page; returns true if it was not in the set.
    fn insert(&self, page: u64) -> bool {
        self.0[(page / 64) as usize].fetch_or(1 << (page % 64), Ordering::AcqRel) >> (page % 64) & 1 == 0
    }

    /// Removes a page; returns true if it was in the set.
    fn take(&self, page: u64) -> bool {
        self.0[(page / 64) as usize].fetch_and(!(1 << (page % 64)), Ordering::AcqRel) >> (page % 64) & 1 != 0
    }

    /// Returns the first page of a range that is in the set.
    fn next(&self, pages: Range<u64>) -> Option<u64> {
        let mut page = pages.start;
        while page < pages.end {
            let rest = self.0[(page / 64) as usize].load(Ordering::Acquire) >> (page % 64);
            if rest != 0 {
                return Some(page + u64::from(rest.trailing_zeros())).filter(|page| *page < pages.end);
            }
            page = (page / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_background_syncs_when_a_burst_has_ended_and_does_not_wait_for_ever() {
        let moment = Duration::from_millis(1100);
        assert!(is_due(moment, 3, 3), "the burst has ended");
        assert!(!is_due(moment, 3, 4) && !is_due(moment, 0, 4), "it goes on");
        assert!(is_due(SYNC_EVERY, 3, 4), "it goes on for too long");
        assert!(is_due(moment, 3, PAGES_MAX / 2 + 1), "memory fills");
    }
}
