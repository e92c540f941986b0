//! A device that fails under its mapping: SIGBUS is recorded, and the process continues.
//!
//! The problem: the kernel answers an access that it cannot serve with the signal SIGBUS, which ends the process. It
//! does so if another process truncated the device, if the host has no memory for a hole of it, and if the memory
//! itself is bad (poisoned: a line whose error correction failed). An embedding program must survive that, and a
//! mount must return EIO.
//!
//! The idea: a signal handler maps a private page in place of the failing one, records which page it was, and lets
//! the access continue. It copies the sectors (512 bytes) of the page that the host can still read into the new page;
//! the other sectors are **bad** and read as zeros. The page is **frozen**: stores to it never reach the device. From
//! then on [`Region`](crate::Region) looks at every access:
//!
//! ```text
//! load of a bad sector         recorded for the thread; Region::check reports it afterwards
//! store to a frozen page       the device is lost: a store that someone may rely on did not reach it
//! access past the end          the device is lost; everything from there on is replaced at once
//! ```
//!
//! A caller that learns of frozen pages in time ([`Region::check_writable`](crate::Region::check_writable)) keeps its
//! stores away from them, and the device stays usable.
//!
//! **What the handler may do.** It may interrupt any code, so it takes no lock, allocates nothing, and calls only
//! fstat, madvise, mmap, mremap, munmap and pread. It finds the mapping in a list of [`Faults`] that are never freed,
//! only reused. Addresses outside our mappings, and signals sent by a process, go to the handler that was installed
//! before.

use crate::BLOCK_BYTES;
use crate::descriptor::Descriptor;
use rustix::fd::AsRawFd;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock};

/// The unit that is salvaged or lost as a whole: block devices, and so the drivers of PM, report errors per sector.
pub(crate) const SECTOR_BYTES: u64 = 512;
/// Maximum number of frozen pages of a device; one more and the device is lost.
const PAGES_MAX: usize = 256;
/// Marks an entry as used, so that page 0 without bad sectors is not 0.
const NOTED: u64 = 1 << 8;

/// The record of one mapping: its place and its failures.
pub(crate) struct Faults {
    taken: AtomicBool,
    next: AtomicPtr<Faults>,
    base: AtomicUsize,
    /// 0 while no mapping uses this record.
    length: AtomicUsize,
    file: AtomicPtr<Descriptor>,
    /// The unit that the host maps, and the handler replaces, as a whole.
    page_bytes: AtomicU64,
    watched: AtomicBool,
    /// Whether it is watched from the beginning to the end.
    always_watched: AtomicBool,
    lost: AtomicBool,
    /// Whether it is lost because the program has closed the descriptor.
    lost_descriptor: AtomicBool,
    /// Frozen pages: offset, [`NOTED`], and one bit for each bad sector. 0 behind the last one.
    pages: [AtomicU64; PAGES_MAX],
}

static ALL: AtomicPtr<Faults> = AtomicPtr::new(std::ptr::null_mut());

/// Iterates over all records that ever existed, used and free.
fn all() -> impl Iterator<Item = &'static Faults> {
    let of = |at: *mut Faults| {
        // SAFETY: null, or a record that was leaked before it was put into the list.
        unsafe { at.as_ref() }
    };
    std::iter::successors(of(ALL.load(Ordering::Acquire)), move |faults| of(faults.next.load(Ordering::Acquire)))
}

impl Faults {
    /// Takes a record for a mapping; the handler knows the mapping from now on. With `watched` every access is looked
    /// at anyway.
    pub(crate) fn register(
        base: *mut u8,
        length: u64,
        file: &Arc<Descriptor>,
        page_bytes: u64,
        watched: bool,
    ) -> &'static Faults {
        install_handler();
        let free = |faults: &&Faults| !faults.taken.swap(true, Ordering::AcqRel);
        let faults = all().find(free).unwrap_or_else(Faults::add);
        faults.lost.store(false, Ordering::Relaxed);
        faults.lost_descriptor.store(false, Ordering::Relaxed);
        faults.pages.iter().for_each(|page| page.store(0, Ordering::Relaxed));
        faults.watched.store(watched, Ordering::Relaxed);
        faults.always_watched.store(watched, Ordering::Relaxed);
        faults.file.store(Arc::as_ptr(file).cast_mut(), Ordering::Relaxed);
        faults.page_bytes.store(page_bytes, Ordering::Relaxed);
        faults.base.store(base.expose_provenance(), Ordering::Relaxed);
        // Last, because the handler trusts the other fields once there is a length.
        faults.length.store(length as usize, Ordering::Release);
        faults
    }

    /// Records another length of the mapping.
    pub(crate) fn lengthen(&self, length: u64) {
        self.length.store(length as usize, Ordering::Release);
    }

    /// Frees the record before the mapping is unmapped.
    pub(crate) fn unregister(&self) {
        self.length.store(0, Ordering::Release);
        self.taken.store(false, Ordering::Release);
    }

    fn add() -> &'static Faults {
        let faults: &'static Faults = Box::leak(Box::new(Faults {
            taken: AtomicBool::new(true),
            next: AtomicPtr::new(std::ptr::null_mut()),
            base: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            file: AtomicPtr::new(std::ptr::null_mut()),
            page_bytes: AtomicU64::new(BLOCK_BYTES),
            watched: AtomicBool::new(false),
            always_watched: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            lost_descriptor: AtomicBool::new(false),
            pages: [const { AtomicU64::new(0) }; PAGES_MAX],
        }));
        let this = std::ptr::from_ref(faults).cast_mut();
        let mut first = ALL.load(Ordering::Acquire);
        loop {
            faults.next.store(first, Ordering::Relaxed);
            match ALL.compare_exchange_weak(first, this, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return faults,
                Err(now) => first = now,
            }
        }
    }

    /// Returns whether every access must be looked at.
    #[inline]
    pub(crate) fn watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    pub(crate) fn watch(&self) {
        self.watched.store(true, Ordering::Release);
    }

    /// Ends what [`Faults::watch`] began, if no failure and nothing else needs that every access is looked at.
    pub(crate) fn end_watching(&self) {
        if self.always_watched.load(Ordering::Relaxed) {
            return;
        }
        // An exchange, so that a failure is either seen below, or noted after it and watched from then on.
        self.watched.swap(false, Ordering::AcqRel);
        if self.is_lost() || self.frozen().next().is_some() {
            self.watch();
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Marks the device lost: stores to it no longer count.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.watch();
    }

    /// Marks the device lost because the descriptor is not ours any more.
    pub(crate) fn lose_descriptor(&self) {
        self.lost_descriptor.store(true, Ordering::Release);
        self.lose();
    }

    /// Returns whether the descriptor was lost, and the lock with it: then no store may be done.
    pub(crate) fn is_descriptor_lost(&self) -> bool {
        self.lost_descriptor.load(Ordering::Acquire)
    }

    /// Iterates over the frozen pages: their offsets, and their bad sectors as bits.
    pub(crate) fn frozen(&self) -> impl Iterator<Item = (u64, u64)> {
        let notes = self.pages.iter().map(|page| page.load(Ordering::Acquire)).take_while(|note| *note != 0);
        notes.map(|note| (note / BLOCK_BYTES * BLOCK_BYTES, note & (NOTED - 1)))
    }

    /// Returns the first frozen page that a range touches.
    pub(crate) fn frozen_in(&self, offset: u64, length: u64) -> Option<u64> {
        let touches = |page: u64| length > 0 && page < offset + length && offset < page + BLOCK_BYTES;
        self.frozen().map(|(page, _)| page).find(|page| touches(*page))
    }

    /// Iterates over the bad ranges, in the order in which they were found.
    pub(crate) fn bad(&self) -> impl Iterator<Item = Range<u64>> {
        let sectors = |(page, bits): (u64, u64)| {
            let bad = (0..BLOCK_BYTES / SECTOR_BYTES).filter(move |sector| bits >> sector & 1 != 0);
            bad.map(move |sector| page + sector * SECTOR_BYTES..page + (sector + 1) * SECTOR_BYTES)
        };
        self.frozen().flat_map(sectors)
    }

    /// Returns the first bad sector that a range touches.
    pub(crate) fn bad_in(&self, offset: u64, length: u64) -> Option<u64> {
        let touches = |sector: &Range<u64>| length > 0 && sector.start < offset + length && offset < sector.end;
        self.bad().find(touches).map(|sector| sector.start)
    }

    /// Replaces the page at `offset` by a private page, with the sectors that the host can still read and that are
    /// not `bad` (a predicate on the offset of a sector). Returns false if the host gives no page. The handler may
    /// call it: see the module.
    pub(crate) fn replace_page(&self, offset: u64, bad: &dyn Fn(u64) -> bool) -> bool {
        let page_bytes = self.page_bytes.load(Ordering::Relaxed);
        let page = offset / page_bytes * page_bytes;
        let Some(fresh) = map_private(std::ptr::null_mut(), page_bytes as usize) else { return false };
        let mut bad_sectors = 0;
        let mut is_past_end = false;
        for sector in 0..page_bytes / SECTOR_BYTES {
            let at = page + sector * SECTOR_BYTES;
            // SAFETY: the sector lies in the fresh page, which no other code knows.
            let to = unsafe { fresh.add((sector * SECTOR_BYTES) as usize) };
            match if bad(at) { Sector::Bad } else { self.read_sector(at, to) } {
                Sector::Read => {}
                Sector::Bad => bad_sectors |= 1 << (sector % 8),
                Sector::PastEnd => is_past_end = true,
            }
        }
        // The record comes before the replacement: a reader that finds the new page must find the record.
        if is_past_end || page_bytes != BLOCK_BYTES || !self.note(page, bad_sectors) {
            self.lose();
        }
        self.watch();
        let base = std::ptr::with_exposed_provenance_mut::<u8>(self.base.load(Ordering::Relaxed));
        // SAFETY: the page lies in the mapping.
        let target = unsafe { base.add(page as usize) };
        if self.is_lost() {
            // Nothing behind this page is trusted any more, so one mapping replaces all of it, not one per page.
            unmap(fresh, page_bytes as usize);
            return map_private(target, self.length.load(Ordering::Relaxed) - page as usize).is_some();
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: moves our fresh page over a page of our mapping, in one step for all other threads. The mapping
        // stays mapped memory of the same size, and accesses to the page go on in the new one. No other code knows
        // the address that the fresh page leaves.
        let moved = unsafe { libc::mremap(fresh.cast(), page_bytes as usize, page_bytes as usize, flags, target) };
        if moved == libc::MAP_FAILED {
            unmap(fresh, page_bytes as usize);
        }
        moved != libc::MAP_FAILED
    }

    fn read_sector(&self, offset: u64, to: *mut u8) -> Sector {
        // SAFETY: the mapping keeps its descriptor as long as it is registered, and it is, because it is being accessed.
        let descriptor = unsafe { &*self.file.load(Ordering::Relaxed) };
        let Ok(file) = descriptor.get() else { return Sector::Bad };
        loop {
            // SAFETY: `to` is writable for a sector.
            let read =
                unsafe { libc::pread(file.as_raw_fd(), to.cast(), SECTOR_BYTES as usize, offset as libc::off_t) };
            match u64::try_from(read) {
                Ok(SECTOR_BYTES) => return Sector::Read,
                // A device-dax node can only be read through its mapping, so the content of the sector is unknown.
                Err(_) if errno() == libc::EINTR => {}
                Err(_) => return Sector::Bad,
                Ok(_) => return Sector::PastEnd,
            }
        }
    }

    /// Records a frozen page; returns false if there is no room.
    fn note(&self, page: u64, bad_sectors: u64) -> bool {
        for slot in &self.pages {
            let note = page | NOTED | bad_sectors;
            match slot.compare_exchange(0, note, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(noted) if noted / BLOCK_BYTES * BLOCK_BYTES == page => {
                    slot.fetch_or(bad_sectors, Ordering::AcqRel);
                    return true;
                }
                Err(_) => {}
            }
        }
        false
    }

    /// Returns the offset of an address in this mapping.
    fn offset_of(&self, address: usize) -> Option<u64> {
        let length = self.length.load(Ordering::Acquire);
        let base = self.base.load(Ordering::Acquire);
        let offset = address.wrapping_sub(base);
        // Both are loaded twice, because the record may have been given to another mapping in between, perhaps one of
        // the same length. A mapping that has grown meanwhile has its base still, and a length.
        let later = self.length.load(Ordering::Acquire);
        let is_same = length > 0 && later > 0 && base == self.base.load(Ordering::Acquire);
        (offset < later && is_same).then_some(offset as u64)
    }
}

enum Sector {
    Read,
    Bad,
    PastEnd,
}

/// Maps private zeros at `target` (null: anywhere).
fn map_private(target: *mut u8, length: usize) -> Option<*mut u8> {
    let fixed = if target.is_null() { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: at an address that the kernel chooses the mapping overlaps nothing; with a target it replaces pages of
    // our own mapping, which stay mapped memory.
    let at = unsafe { libc::mmap(target.cast(), length, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // It gets bytes of files, which no core dump shall hold.
    // SAFETY: advice on a mapping of ours changes no content.
    unsafe { libc::madvise(at, length, libc::MADV_DONTDUMP) };
    Some(at.cast())
}

fn unmap(fresh: *mut u8, length: usize) {
    // SAFETY: mapped by `map_private`, and no other code knows of it.
    unsafe { libc::munmap(fresh.cast(), length) };
}

fn errno() -> c_int {
    // SAFETY: the location of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler once per process. The handler that was installed before gets all signals that are not ours.
fn install_handler() {
    if cfg!(miri) {
        return; // Miri has no signals
    }
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: all zeros is a valid sigaction, the default action.
        let (mut previous, mut ours): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        ours.sa_sigaction = handler as libc::sighandler_t;
        // The handler runs on the alternate stack where a thread has one: runtimes with small stacks (Go) require it.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: only reads the present action.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) } == 0 {
            let _ = PREVIOUS.set(previous);
            // SAFETY: the handler does only what a signal handler may (see the module).
            unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) };
        }
    });
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a valid siginfo; a SIGBUS that the kernel itself raised (code > 0) has an address in
    // it.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    let interrupted_errno = errno();
    let ours = if code > 0 { all().find_map(|faults| Some((faults, faults.offset_of(address)?))) } else { None };
    let replaced = ours.is_some_and(|(faults, offset)| faults.replace_page(offset, &|_| false));
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = interrupted_errno };
    if !replaced {
        ask_previous(signal, code, info, context);
    }
}

/// Does what would happen without our handler.
fn ask_previous(signal: c_int, code: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.get().filter(|previous| !matches!(previous.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN));
    let Some(previous) = previous else {
        if code <= 0 && PREVIOUS.get().is_some_and(|previous| previous.sa_sigaction == libc::SIG_IGN) {
            return;
        }
        // SAFETY: the default action, then the access (or the signal) once more: the process ends as it would have.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            if code <= 0 {
                libc::raise(signal);
            }
        }
        return;
    };
    if previous.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: installed with SA_SIGINFO, so it is a function of these arguments.
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(previous.sa_sigaction) };
        handler(signal, info, context);
    } else {
        // SAFETY: installed without SA_SIGINFO, so it is a function of the signal alone.
        let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(previous.sa_sigaction) };
        handler(signal);
    }
}
