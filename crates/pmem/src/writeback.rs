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
//! **Room.** A sync that fails makes its frozen pages dirty again. So all that is dirty or frozen must fit a sync: at
//! most as many pages as the journal has disk reserved for, [`PAGES_MAX`] (256 MiB) at most. A store that would make
//! one more first asks the host for a larger journal, as long as that takes a small part of its free disk, and else
//! syncs. A page that is in its place goes back to the host's page cache. So memory holds at most twice that amount.
//!
//! **A full disk.** What was accepted must be stored, so its disk is reserved before: the journal's as above, that of
//! the places by [`Region::reserve`](crate::Region::reserve). Pages of zeros keep the disk of their places, except
//! those of a punched range. A caller asks [`Region::admit`](crate::Region::admit) before each change: the answer is an
//! error if there is no journal, or if the disk has not taken the last syncs and memory fills. Changes that are under
//! way then, and callers that do not ask, still find memory for [`PAGES_MAX`] pages; beyond that the device is lost.
//!
//! **When.** A sync runs when it is asked for ([`Region::sync`](crate::Region::sync)); in the background when no page has
//! become dirty for a second, 5 s after the first unsynced store, and when half of the room is used. A killed process
//! loses what it had not synced.

use crate::fault::Faults;
use crate::host_file::HostFile;
use crate::journal::{Journal, PAGES_LEAST, PAGES_MAX, PAGES_MIN, Page, slot_bytes};
use crate::signals::with_signals_blocked;
use crate::{BLOCK_BYTES, host};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::io::{Errno, Result};
use rustix::mm::Advice;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};
use zerocopy::FromZeros;

const PAGE: usize = BLOCK_BYTES as usize;
const STRIPES: usize = 16;
/// Pages that go back to the host's page cache in one step, during which all stores wait.
const RELEASED_AT_ONCE: usize = 1024;
const SYNC_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The journal grows only while it takes less than this part of the disk that is free.
const JOURNAL_PART: u64 = 8;
/// The most bytes of one store. It has room in the smallest journal.
pub(crate) const STORE_BYTES_MAX: usize = PAGES_LEAST / 4 * PAGE;

type Bytes = Box<[u8; PAGE]>;

/// The dirty pages of a mapping, and their way to the disk. See the module.
pub(crate) struct Writeback {
    base: *mut u8,
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
    /// Dirty pages that were punched and not stored to since.
    punched: PageSet,
    pages: Mutex<Pages>,
    /// How many pages may be dirty or frozen: the room of the journal.
    room: AtomicUsize,
    /// Whether the host can reserve disk, as far as it was asked.
    reserves: AtomicBool,
    journal: Mutex<Journal>,
    errors: Mutex<SyncErrors>,
    /// As in `errors`, for a look without a lock.
    is_failing: AtomicBool,
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
    /// How many pages the sync under way has. If it fails, they are dirty again.
    frozen: usize,
    /// When the first of them was stored to.
    dirty_since: Option<Instant>,
    /// Old contents of frozen pages that were stored to before the sync had copied them.
    copies: HashMap<u64, Bytes>,
}

/// Syncs that failed since a device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncErrors {
    /// How many failed.
    pub count: u64,
    /// The error number of the last one; 0 if none failed.
    pub last_errno: i32,
    /// Whether none has succeeded since: then what was stored since the last good one is in memory only. The next sync
    /// tries again.
    pub is_failing: bool,
}

// SAFETY: `base` points to a mapping that outlives this (`Mapping` stops the background and drops this first). The
// bytes behind it are touched only in `copy_page`, when no thread stores to the page, and by madvise.
unsafe impl Send for Writeback {}
// SAFETY: as for Send; all other fields are locks and atomics.
unsafe impl Sync for Writeback {}

/// A store under way: no sync can freeze pages while it lives.
pub(crate) type Storing<'w> = RwLockReadGuard<'w, ()>;

impl Writeback {
    /// Makes the writeback of a private mapping of `file`, which may grow to `capacity_bytes`. `None` if the host has no
    /// address space for the page sets.
    pub(crate) fn new(
        base: *mut u8,
        device_bytes: u64,
        capacity_bytes: u64,
        file: HostFile,
        faults: &'static Faults,
    ) -> Option<Arc<Writeback>> {
        let set = || PageSet::new(capacity_bytes / BLOCK_BYTES);
        let writeback = Arc::new(Writeback {
            base,
            faults,
            owner: std::process::id(),
            storing: Default::default(),
            dirty: set()?,
            frozen: set()?,
            private: set()?,
            punched: set()?,
            pages: Mutex::default(),
            room: AtomicUsize::new(0),
            reserves: AtomicBool::new(true),
            errors: Mutex::default(),
            is_failing: AtomicBool::new(false),
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

    /// Returns a guard to hold during a store to a range, of at most [`STORE_BYTES_MAX`]. It may sync first.
    pub(crate) fn store(self: &Arc<Self>, offset: u64, length: u64) -> Storing<'_> {
        let pages = offset / BLOCK_BYTES..(offset + length).div_ceil(BLOCK_BYTES);
        debug_assert!(length <= STORE_BYTES_MAX as u64, "{length} bytes in one store");
        let is_ready = |page| self.dirty.contains(page) && !self.punched.contains(page);
        let mut limit = self.room.load(Ordering::Relaxed);
        let mut is_last_try = false;
        loop {
            let storing = self.storing[crate::thread::number() % STRIPES].0.read();
            if pages.clone().all(is_ready) || self.make_dirty(pages.clone(), limit) {
                return storing;
            }
            if is_last_try {
                // Memory has no room for pages that the disk does not take, so later stores no longer count.
                self.faults.lose();
                return storing;
            }
            drop(storing);
            // The disk may take the pages later, so a store that cannot wait for that goes on in memory.
            is_last_try = !self.grow() && self.sync().is_err();
            limit = if is_last_try { PAGES_MAX } else { self.room.load(Ordering::Relaxed) };
        }
    }

    /// Marks pages as dirty. Returns false if more than `limit` would be dirty or frozen.
    fn make_dirty(self: &Arc<Self>, pages: Range<u64>, limit: usize) -> bool {
        let mut state = self.pages.lock();
        let fresh = pages.clone().filter(|page| !self.dirty.contains(*page)).count();
        if fresh > 0 && state.dirty.len() + state.frozen + fresh > limit {
            return false;
        }
        for page in pages {
            self.punched.take(page);
            if self.dirty.contains(page) {
                continue;
            }
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
        if state.dirty.len() > self.room.load(Ordering::Relaxed) / 2 {
            self.wake();
        }
        true
    }

    /// Records that the whole pages of a range were punched. The caller has just stored zeros there, and still holds
    /// the guard of that store.
    pub(crate) fn punch(&self, range: Range<u64>) {
        let pages = range.start.div_ceil(BLOCK_BYTES)..range.end / BLOCK_BYTES;
        pages.for_each(|page| _ = self.punched.insert(page));
    }

    /// Makes the journal larger. Returns false if it has its full size, or if it would take too much of the disk.
    fn grow(&self) -> bool {
        let room = self.room.load(Ordering::Relaxed);
        let wanted = (room * 2).clamp(PAGES_MIN, PAGES_MAX);
        let is_small = || 2 * slot_bytes(wanted) <= self.file.free_bytes() / JOURNAL_PART;
        if room == wanted || (room > 0 && !is_small()) {
            return false;
        }
        self.with_journal(|journal| if room == 0 { journal.make_some_room(0) } else { journal.make_room(wanted) })
            .is_ok()
    }

    /// Gives the file another length, durably, with the journal behind it. Nothing is stored behind the shorter one.
    ///
    /// # Errors
    /// Those of [`Writeback::sync`], and those of the change. The file has its old length then, or a part of the journal
    /// that a later sync makes again.
    pub(crate) fn set_device_bytes(&self, device_bytes: u64) -> Result<()> {
        self.sync()?;
        self.with_journal(|journal| journal.set_device_bytes(device_bytes))
    }

    /// Works on the journal, which may change its room.
    fn with_journal(&self, work: impl FnOnce(&mut Journal) -> Result<()>) -> Result<()> {
        let mut journal = self.journal.lock();
        let done = work(&mut journal);
        self.room.store(journal.room(), Ordering::Relaxed);
        self.reserves.store(journal.reserves(), Ordering::Relaxed);
        done
    }

    /// Returns whether the host can reserve disk; known once there is a journal.
    pub(crate) fn reserves(&self) -> bool {
        self.reserves.load(Ordering::Relaxed)
    }

    /// Returns whether a change may begin: see the module.
    ///
    /// # Errors
    /// With what was being done: ENOSPC if the disk has no room for a journal; those of [`Writeback::sync`].
    pub(crate) fn admit(&self) -> std::result::Result<(), (Errno, &'static str)> {
        let room = self.room.load(Ordering::Relaxed);
        if room == 0 {
            let made = self.with_journal(|journal| journal.make_some_room(0));
            return made.map_err(|errno| (errno, "reserve disk for the journal of"));
        }
        if !self.is_failing.load(Ordering::Relaxed) {
            return Ok(());
        }
        let held = {
            let state = self.pages.lock();
            state.dirty.len() + state.frozen
        };
        if held <= room / 4 * 3 {
            return Ok(());
        }
        self.sync().map_err(|errno| (errno, "write back"))
    }

    /// Reserves disk for a range of the device. If the disk is full, the journal gives way, for it can be smaller.
    ///
    /// # Errors
    /// The disk's, ENOSPC above all. A part may have been reserved then.
    pub(crate) fn reserve(&self, offset: u64, length: u64) -> Result<()> {
        let reserved = self.file.reserve(offset, length);
        let is_full = matches!(reserved, Err(Errno::NOSPC | Errno::DQUOT));
        if !is_full || self.room.load(Ordering::Relaxed) <= PAGES_MIN {
            return reserved;
        }
        self.shrink_journal()?;
        self.file.reserve(offset, length)
    }

    /// Syncs, and gives the disk of the journal back, except for the least that it needs.
    fn shrink_journal(&self) -> Result<()> {
        self.sync()?;
        self.with_journal(Journal::shrink)
    }

    /// Returns the syncs that failed.
    pub(crate) fn errors(&self) -> SyncErrors {
        *self.errors.lock()
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
        self.with_journal(|journal| {
            let synced = self.sync_by(journal);
            self.note(synced);
            synced
        })
    }

    fn sync_by(&self, journal: &mut Journal) -> Result<()> {
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

    fn note(&self, synced: Result<()>) {
        if synced.is_ok() && !self.is_failing.load(Ordering::Relaxed) {
            return;
        }
        let mut errors = self.errors.lock();
        errors.is_failing = synced.is_err();
        if let Err(errno) = synced {
            errors.count += 1;
            errors.last_errno = errno.raw_os_error();
        }
        self.is_failing.store(errors.is_failing, Ordering::Relaxed);
    }

    /// Makes the dirty pages frozen: the moment of the sync.
    fn freeze(&self) -> Vec<Page> {
        let stores = self.stop_stores();
        let mut state = self.pages.lock();
        let dirty = std::mem::take(&mut state.dirty);
        state.dirty_since = None;
        state.frozen = dirty.len();
        let frozen = |number| {
            self.dirty.take(number);
            self.frozen.insert(number);
            Page { number, is_hole: self.punched.take(number) }
        };
        let mut pages: Vec<Page> = dirty.into_iter().map(frozen).collect();
        drop(state);
        drop(stores);
        pages.sort_unstable();
        pages
    }

    /// Undoes `freeze` after a failed sync: its pages become part of the next one.
    fn thaw(&self, pages: &[Page]) {
        let _stores = self.stop_stores();
        let mut state = self.pages.lock();
        for page in pages {
            self.frozen.take(page.number);
            if self.dirty.insert(page.number) {
                state.dirty.push(page.number);
                if page.is_hole {
                    self.punched.insert(page.number);
                }
            }
        }
        state.frozen = 0;
        state.copies.clear();
        state.dirty_since = Some(Instant::now());
    }

    /// Copies pages as they were at the moment of the sync.
    fn copy_frozen(&self, pages: &[Page], bytes: &mut [u8]) -> Result<()> {
        let mut state = self.pages.lock();
        for (page, to) in pages.iter().zip(bytes.as_chunks_mut().0) {
            if self.frozen.take(page.number) {
                self.copy_page(page.number, to);
            } else {
                *to = *state.copies.remove(&page.number).expect("a page that is not frozen any more was copied");
            }
        }
        drop(state);
        // A page that the host took away reads as zeros.
        self.check_lost()
    }

    fn copy_page(&self, page: u64, to: &mut [u8; PAGE]) {
        debug_assert!(page / 64 < self.dirty.0.len() as u64);
        // SAFETY: the page lies in the mapping. No thread stores to it meanwhile: it was frozen when no store was
        // under way, is not dirty, and becomes dirty only under the lock of `pages`, which the caller holds.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(page as usize * PAGE), to.as_mut_ptr(), PAGE) }
    }

    /// Drops the private copies of pages that the file now has, unless a thread has stored to them since.
    fn release(&self, pages: &[Page]) {
        self.pages.lock().frozen = 0;
        for some in pages.chunks(RELEASED_AT_ONCE) {
            let _stores = self.stop_stores();
            let numbers = some.iter().map(|page| page.number);
            let clean: Vec<u64> = numbers.filter(|page| self.is_released(*page)).collect();
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
            let builder = std::thread::Builder::new().name("nvfold-sync".into());
            let thread = with_signals_blocked(|| builder.spawn(move || this.sync_now_and_then()));
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
            let is_filling = count > self.room.load(Ordering::Relaxed) / 2 && !self.grow();
            if since.is_some_and(|since| is_filling || is_due(since.elapsed(), before, count)) {
                // Counted in `errors`, which others ask for. The background only tries again later.
                let _ = self.sync();
                synced_at = Instant::now();
            } else if since.is_none() && synced_at.elapsed() >= SYNC_EVERY && !self.faults.is_lost() {
                self.shrink_unused_journal();
                synced_at = Instant::now();
            }
        }
    }

    fn shrink_unused_journal(&self) {
        if self.room.load(Ordering::Relaxed) > PAGES_MIN {
            // If it fails, the journal stays as it is.
            let _ = self.shrink_journal();
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
        self.with_journal(Journal::close)
    }
}

/// Returns whether the background syncs: `count` pages are dirty, the first for `age`, and `before` were dirty a
/// [`LOOK_EVERY`] ago. If none was added meanwhile, a burst of stores has ended.
fn is_due(age: Duration, before: usize, count: usize) -> bool {
    age >= SYNC_EVERY || count == before
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
    fn a_background_sync_runs_after_a_burst_and_at_the_latest_after_its_time_limit() {
        let moment = Duration::from_millis(1100);
        assert!(is_due(moment, 3, 3), "the burst has ended");
        assert!(!is_due(moment, 3, 4) && !is_due(moment, 0, 4), "it goes on");
        assert!(is_due(SYNC_EVERY, 3, 4), "it goes on for too long");
    }

    /// The panic "a sync fits its slot": a sync failed while other threads made more pages dirty.
    #[test]
    #[cfg_attr(miri, ignore = "it writes a file")]
    fn pages_of_a_failed_sync_and_later_dirty_pages_fit_one_sync() {
        let options = crate::OpenOptions { as_file: true, record_host: true, ..crate::OpenOptions::default() };
        let device = crate::DeviceSpec::Memory;
        let region = crate::Region::create(&device, 4 * PAGES_MIN as u64 * BLOCK_BYTES, &options).unwrap();
        let writeback = region.writeback().unwrap();
        writeback.admit().unwrap();
        // No background: it syncs when half of the room is dirty.
        writeback.stops.store(true, Ordering::Relaxed);
        let store = |page: u64| region.write(page * BLOCK_BYTES, &[1u8; 8]);
        (0..300).for_each(|page| drop(store(page)));
        let pages = writeback.freeze();
        let more = (300..).take_while(|page| writeback.make_dirty(*page..*page + 1, PAGES_MIN)).count();
        assert_eq!(more, PAGES_MIN - 300);
        writeback.thaw(&pages);
        assert_eq!(writeback.pages.lock().dirty.len(), PAGES_MIN);
        region.sync().unwrap();
        assert_eq!(writeback.room.load(Ordering::Relaxed), PAGES_MIN);
    }
}
