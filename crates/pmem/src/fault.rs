//! A device that fails under its mapping: SIGBUS is recorded, and the process continues.
//!
//! The problem: the kernel answers an access that it cannot serve with the signal SIGBUS, which ends the process. It does
//! so if another process truncated the device, if the host has no memory for a hole of it, and if the memory itself is
//! bad (poisoned: a line whose error correction failed). An embedding program must survive that, and a mount must
//! return EIO.
//!
//! The idea: a signal handler maps a private page in place of the failing one, records which page it was, and lets the
//! access continue. What the host still reads of the page is copied into the new one, sector by sector (512 bytes);
//! the other sectors are **bad** and read as zeros. The page is **frozen**: what is stored there never reaches the
//! device. From then on [`Region`](crate::Region) looks at every access:
//!
//! ```text
//! load of a bad sector         noted for the thread; Region::check tells it after the fact
//! store to a frozen page       the device is lost: a store went astray that somebody may rely on
//! access behind the end        the device is lost; everything from there on is replaced at once
//! ```
//!
//! Callers that know of frozen pages in time ([`Region::check_writable`](crate::Region::check_writable)) keep their
//! stores away from them, and the device lives.
//!
//! **What the handler may do.** It may interrupt anything, so it takes no lock, allocates nothing, and calls nothing
//! but mmap, mremap, munmap and pread. It finds the mapping by a list of [`Faults`] that are never freed, only used
//! again. Addresses that are none of ours, and signals that somebody sent, go to the handler that was there before.

use crate::BLOCK_BYTES;
use rustix::fd::RawFd;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

/// What is salvaged or lost as a whole: what block devices, and with them the drivers of PM, report errors by.
pub(crate) const SECTOR_BYTES: u64 = 512;
/// Frozen pages that a device can have; with one more it is lost.
const PAGES_MAX: usize = 256;
/// Marks a note, so that page 0 without bad sectors has one.
const NOTED: u64 = 1 << 8;

/// What is known of one mapping: where it lies, and what became of it.
pub(crate) struct Faults {
    taken: AtomicBool,
    next: AtomicPtr<Faults>,
    base: AtomicUsize,
    /// 0 while no mapping uses this.
    length: AtomicUsize,
    file: AtomicI32,
    /// What the host maps, and the handler replaces, as a whole.
    page_bytes: AtomicU64,
    watched: AtomicBool,
    lost: AtomicBool,
    /// Frozen pages: offset, [`NOTED`], and one bit for each bad sector. 0 behind the last.
    pages: [AtomicU64; PAGES_MAX],
}

static ALL: AtomicPtr<Faults> = AtomicPtr::new(std::ptr::null_mut());

/// All there ever were, the used and the free.
fn all() -> impl Iterator<Item = &'static Faults> {
    let of = |at: *mut Faults| {
        // SAFETY: null, or a record that was leaked before it was put into the list.
        unsafe { at.as_ref() }
    };
    std::iter::successors(of(ALL.load(Ordering::Acquire)), move |faults| of(faults.next.load(Ordering::Acquire)))
}

impl Faults {
    /// A record for a mapping, which the handler knows from now on. `watched`: every access is looked at anyway.
    pub(crate) fn register(base: *mut u8, length: u64, file: RawFd, page_bytes: u64, watched: bool) -> &'static Faults {
        install_handler();
        let free = |faults: &&Faults| !faults.taken.swap(true, Ordering::AcqRel);
        let faults = all().find(free).unwrap_or_else(Faults::add);
        faults.lost.store(false, Ordering::Relaxed);
        faults.pages.iter().for_each(|page| page.store(0, Ordering::Relaxed));
        faults.watched.store(watched, Ordering::Relaxed);
        faults.file.store(file, Ordering::Relaxed);
        faults.page_bytes.store(page_bytes, Ordering::Relaxed);
        faults.base.store(base.expose_provenance(), Ordering::Relaxed);
        // Last: only with a length does the handler take the rest for true.
        faults.length.store(length as usize, Ordering::Release);
        faults
    }

    /// The mapping is about to go.
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
            file: AtomicI32::new(-1),
            page_bytes: AtomicU64::new(BLOCK_BYTES),
            watched: AtomicBool::new(false),
            lost: AtomicBool::new(false),
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

    /// Whether every access must be looked at.
    #[inline]
    pub(crate) fn watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    pub(crate) fn watch(&self) {
        self.watched.store(true, Ordering::Release);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// From now on nothing counts that is stored.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.watch();
    }

    /// Offsets of the frozen pages and their bad sectors as bits.
    pub(crate) fn frozen(&self) -> impl Iterator<Item = (u64, u64)> {
        let notes = self.pages.iter().map(|page| page.load(Ordering::Acquire)).take_while(|note| *note != 0);
        notes.map(|note| (note / BLOCK_BYTES * BLOCK_BYTES, note & (NOTED - 1)))
    }

    /// The first frozen page that a range touches.
    pub(crate) fn frozen_in(&self, offset: u64, length: u64) -> Option<u64> {
        let touches = |page: u64| length > 0 && page < offset + length && offset < page + BLOCK_BYTES;
        self.frozen().map(|(page, _)| page).find(|page| touches(*page))
    }

    /// The bad ranges, in the order they were met.
    pub(crate) fn bad(&self) -> impl Iterator<Item = Range<u64>> {
        let sectors = |(page, bits): (u64, u64)| {
            let bad = (0..BLOCK_BYTES / SECTOR_BYTES).filter(move |sector| bits >> sector & 1 != 0);
            bad.map(move |sector| page + sector * SECTOR_BYTES..page + (sector + 1) * SECTOR_BYTES)
        };
        self.frozen().flat_map(sectors)
    }

    /// The first bad sector that a range touches.
    pub(crate) fn bad_in(&self, offset: u64, length: u64) -> Option<u64> {
        let touches = |sector: &Range<u64>| length > 0 && sector.start < offset + length && offset < sector.end;
        self.bad().find(touches).map(|sector| sector.start)
    }

    /// Puts a private page in the place of the one at `offset`, with all that the host still reads of it and that is
    /// not `bad` (asked with the offset of a sector). False when the host gives no page. May be called by the
    /// handler: see the module.
    pub(crate) fn replace_page(&self, offset: u64, bad: &dyn Fn(u64) -> bool) -> bool {
        let page_bytes = self.page_bytes.load(Ordering::Relaxed);
        let page = offset / page_bytes * page_bytes;
        let Some(fresh) = map_private(std::ptr::null_mut(), page_bytes as usize) else { return false };
        let mut bad_sectors = 0;
        let mut is_past_end = false;
        for sector in 0..page_bytes / SECTOR_BYTES {
            let at = page + sector * SECTOR_BYTES;
            // SAFETY: the sector lies in the fresh page, which nobody else knows.
            let to = unsafe { fresh.add((sector * SECTOR_BYTES) as usize) };
            match if bad(at) { Sector::Bad } else { self.read_sector(at, to) } {
                Sector::Read => {}
                Sector::Bad => bad_sectors |= 1 << (sector % 8),
                Sector::PastEnd => is_past_end = true,
            }
        }
        // Noted before the page is replaced: who finds the new page must find the note.
        if is_past_end || page_bytes != BLOCK_BYTES || !self.note(page, bad_sectors) {
            self.lose();
        }
        self.watch();
        let base = std::ptr::with_exposed_provenance_mut::<u8>(self.base.load(Ordering::Relaxed));
        // SAFETY: the page lies in the mapping.
        let target = unsafe { base.add(page as usize) };
        if self.is_lost() {
            // Nothing that lies behind will be believed: one mapping for all of it, not one for each page.
            unmap(fresh, page_bytes as usize);
            return map_private(target, self.length.load(Ordering::Relaxed) - page as usize).is_some();
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: moves our fresh page over a page of our mapping, in one step for all other threads: the mapping stays
        // mapped memory of the size that it had, and accesses to the page go on in the new one. Nobody else knows the
        // place that the fresh page leaves.
        let moved = unsafe { libc::mremap(fresh.cast(), page_bytes as usize, page_bytes as usize, flags, target) };
        if moved == libc::MAP_FAILED {
            unmap(fresh, page_bytes as usize);
        }
        moved != libc::MAP_FAILED
    }

    fn read_sector(&self, offset: u64, to: *mut u8) -> Sector {
        let file = self.file.load(Ordering::Relaxed);
        loop {
            // SAFETY: `to` is writable for a sector. The descriptor is open as long as the mapping is registered.
            let read = unsafe { libc::pread(file, to.cast(), SECTOR_BYTES as usize, offset as libc::off_t) };
            match u64::try_from(read) {
                Ok(SECTOR_BYTES) => return Sector::Read,
                // A device-dax node cannot be read but through its mapping: what was there is not known.
                Err(_) if errno() == libc::EINTR => {}
                Err(_) => return Sector::Bad,
                Ok(_) => return Sector::PastEnd,
            }
        }
    }

    /// Notes a frozen page; false when there is no room.
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

    /// Where an address lies in this mapping.
    fn offset_of(&self, address: usize) -> Option<u64> {
        let length = self.length.load(Ordering::Acquire);
        let base = self.base.load(Ordering::Acquire);
        let offset = address.wrapping_sub(base);
        // Looked at twice: the record may have got another mapping in between, perhaps of the same length.
        let is_same = length == self.length.load(Ordering::Acquire) && base == self.base.load(Ordering::Acquire);
        (offset < length && is_same).then_some(offset as u64)
    }
}

enum Sector {
    Read,
    Bad,
    PastEnd,
}

/// Zeros at `target` (null: anywhere), private to this process.
fn map_private(target: *mut u8, length: usize) -> Option<*mut u8> {
    let fixed = if target.is_null() { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: at a place of the kernel's choice it overlaps nothing; with a target it replaces pages of our own
    // mapping, which stay mapped memory.
    let at = unsafe { libc::mmap(target.cast(), length, protection, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at.cast())
}

fn unmap(fresh: *mut u8, length: usize) {
    // SAFETY: mapped by `map_private`, and nobody else knows of it.
    unsafe { libc::munmap(fresh.cast(), length) };
}

fn errno() -> c_int {
    // SAFETY: the location of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Once a process. What was installed before is asked about all that is not ours.
fn install_handler() {
    if cfg!(miri) {
        return; // there are no signals
    }
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: all zeros is a valid sigaction, the default action.
        let (mut previous, mut ours): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        ours.sa_sigaction = handler as libc::sighandler_t;
        // On the alternate stack where a thread has one: runtimes with small stacks (Go) demand it.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: only asks.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) } == 0 {
            let _ = PREVIOUS.set(previous);
            // SAFETY: the handler does only what a signal handler may (see the module).
            unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) };
        }
    });
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a valid siginfo; of one that the kernel itself made (code > 0) SIGBUS has an address.
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

/// Does what would have been done without us.
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
