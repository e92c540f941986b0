//! Shared mappings of our files: which memory maps which pages (nvfold-c's `shared`), and when stores are written back.
//!
//! The kernel maps the memory file of the pages, so stores, faults, signals and children of fork are its own affair. What is
//! ours is to know which addresses these are, so that the calls about memory write back, and give pages that grow their
//! content.
//!
//! ```text
//! mmap, mremap    pages of the file -> the kernel maps their memory file -> TABLE
//! munmap, or another mapping in its place     out of TABLE -> stores written back -> pages dropped with their last mapping
//! msync, fsync, close, stat, exec, exit       stores written back
//! every second    the same, by a thread that lives while a program may store; one that needs long does so less often
//! ```
//!
//! Lock order: `TABLE`, then what is in `shared`. No store is written back under `TABLE`.

use crate::answer::checked;
use crate::{numbers, process};
use nvfold_c::causality::{self, Followed};
use nvfold_c::failure::{Failure, Outcome};
use nvfold_c::files::Open;
use nvfold_c::shared::{self, Pages};
use parking_lot::Mutex;
use pmem::with_signals_blocked;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 4096;
/// How often stores are written back.
const EVERY: Duration = Duration::from_secs(1);
/// Most of its time that the thread works: one part in so many.
const WORKS_ONE_IN: u32 = 20;

/// A mapping, or what is left of one.
#[derive(Clone)]
struct Mapping {
    bytes: usize,
    /// Where in the file it begins.
    offset: u64,
    pages: Arc<Pages>,
    /// Whether PROT_WRITE is allowed.
    may_write: bool,
    _followed: Option<Arc<Followed>>,
}

impl Mapping {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes as u64
    }

    fn part(&self, skipped: usize, bytes: usize) -> Mapping {
        Mapping { bytes, offset: self.offset + skipped as u64, ..self.clone() }
    }
}

/// Mappings by their first address; they do not overlap.
static TABLE: Mutex<BTreeMap<usize, Mapping>> = Mutex::new(BTreeMap::new());
/// Whether there was ever one.
static IS_USED: AtomicBool = AtomicBool::new(false);
/// The thread that writes back, and whether it is to end.
static THREAD: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);
static ENDS: AtomicBool = AtomicBool::new(false);

type Table = BTreeMap<usize, Mapping>;
type Taken = Vec<(usize, Mapping)>;

/// Returns whether there may be shared mappings. Takes no lock.
pub(crate) fn is_used() -> bool {
    IS_USED.load(Ordering::Acquire) && !process::is_not_owner()
}

fn pages_of(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES
}

/// Returns the parts of mappings that lie in a range of memory.
fn within(table: &Table, range: &Range<usize>) -> Taken {
    let before = table.range(..range.start).next_back();
    let parts = before.into_iter().chain(table.range(range.clone())).filter_map(|(start, mapping)| {
        let (from, to) = ((*start).max(range.start), (start + mapping.bytes).min(range.end));
        (from < to).then(|| (from, mapping.part(from - start, to - from)))
    });
    parts.collect()
}

/// Takes a range of memory out of the table; what is left of mappings on either side stays.
fn take(table: &mut Table, range: &Range<usize>) -> Taken {
    let taken = within(table, range);
    for (start, _) in &taken {
        let (first, whole) = table.range(..=start).next_back().map(|(a, b)| (*a, b.clone())).expect("it was found");
        table.remove(&first);
        if first < range.start {
            table.insert(first, whole.part(0, range.start - first));
        }
        if first + whole.bytes > range.end {
            table.insert(range.end, whole.part(range.end - first, first + whole.bytes - range.end));
        }
    }
    taken
}

/// Makes a call that replaces what a range of memory maps. If it answers `failed`, the table stays as it is.
fn replace<T: PartialEq>(table: &mut Table, range: Range<usize>, failed: T, call: impl FnOnce() -> T) -> (T, Taken) {
    let before = table.clone();
    let taken = take(table, &range);
    let answer = call();
    if answer == failed {
        *table = before;
        return (answer, Vec::new());
    }
    (answer, taken)
}

/// Writes back what was mapped there, which the kernel maps no more. What fails stays with the pages.
fn end(taken: Taken) {
    for (start, mapping) in taken {
        causality::note_unmap(start, mapping.bytes);
        let _ = mapping.pages.write_back(mapping.range());
        let Mapping { pages, .. } = mapping;
        shared::release(pages);
    }
}

/// Returns whether a mapping of a file is to be of its pages: where a program stores to it, or might.
pub(crate) fn shares(open: &Open, prot: c_int, flags: c_int) -> bool {
    let is_shared = matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    is_shared
        && (prot & libc::PROT_WRITE != 0
            || open.check_writes().is_ok()
            || shared::has_pages(&open.device, open.file.ino()))
}

/// mmap(2) of pages of a file. EACCES, EINVAL, and what the kernel says.
pub(crate) fn map(
    open: &Open,
    (address, length): (*mut c_void, usize),
    (prot, flags): (c_int, c_int),
    at: libc::off_t,
) -> Outcome<*mut c_void> {
    let may_write = open.check_writes().is_ok();
    if open.check_reads().is_err() || (prot & libc::PROT_WRITE != 0 && !may_write) {
        return Err(Failure::new(libc::EACCES, "the descriptor is not open for what the mapping is to do"));
    }
    let offset = u64::try_from(at).ok().filter(|at| at.is_multiple_of(PAGE_BYTES as u64));
    let offset = offset.ok_or_else(|| Failure::invalid(format!("offset {at} is not a multiple of {PAGE_BYTES}")))?;
    let is_length = length > 0 && length <= isize::MAX as usize - PAGE_BYTES;
    let end_offset = is_length.then(|| offset.checked_add(pages_of(length) as u64)).flatten();
    let range = offset..end_offset.ok_or_else(|| Failure::invalid(format!("no mapping has {length} bytes there")))?;
    let pages = shared::pages(&open.device, &open.file, range, numbers::memory)?;
    let mut table = TABLE.lock();
    let fixed = flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE == 0;
    let replaced = if fixed { address.addr()..address.addr().saturating_add(pages_of(length)) } else { 0..0 };
    let (start, taken) = replace(&mut table, replaced, libc::MAP_FAILED, || {
        // SAFETY: the program's own arguments, with the memory file in place of its descriptor.
        unsafe { libc::mmap(address, length, prot, flags, pages.descriptor(), at) }
    });
    if start == libc::MAP_FAILED {
        let failure = crate::answer::os_failure("map");
        drop(table);
        shared::release(pages);
        return Err(failure);
    }
    let followed = Followed::new(open.device.follows_origins, &open.file);
    if let Some(followed) = &followed {
        causality::note_map(start.addr(), length, followed, offset);
    }
    let mapping = Mapping { bytes: pages_of(length), offset, pages: pages.clone(), may_write, _followed: followed };
    table.insert(start.addr(), mapping);
    drop(table);
    end(taken);
    IS_USED.store(true, Ordering::Release);
    if prot & libc::PROT_WRITE != 0 {
        stores_begin(&pages);
    }
    Ok(start)
}

/// Makes a call of the kernel that maps something else over a range of memory, or nothing; it answers `failed` if it fails.
pub(crate) fn replacing<T: PartialEq>(address: usize, length: usize, failed: T, call: impl FnOnce() -> T) -> T {
    let mut table = TABLE.lock();
    let (answer, taken) = replace(&mut table, address..address.saturating_add(pages_of(length)), failed, call);
    drop(table);
    end(taken);
    answer
}

/// mprotect(2): EACCES if a mapping is to be written whose descriptor was not open for writing.
pub(crate) fn protect(address: usize, length: usize, prot: c_int, call: impl FnOnce() -> c_int) -> Outcome<c_int> {
    let found = within(&TABLE.lock(), &(address..address.saturating_add(length)));
    let writes = prot & libc::PROT_WRITE != 0;
    if writes && found.iter().any(|(_, mapping)| !mapping.may_write) {
        return Err(Failure::new(libc::EACCES, "the descriptor of the mapping was not open for writing"));
    }
    // Before the first store can be made.
    if writes {
        found.iter().for_each(|(_, mapping)| stores_begin(&mapping.pages));
    }
    checked("mprotect", call())
}

/// msync(2), after the kernel has said that the arguments are good.
pub(crate) fn sync(address: usize, length: usize, flags: c_int) -> Outcome<c_int> {
    let found = within(&TABLE.lock(), &(address..address.saturating_add(length)));
    for (_, mapping) in found {
        mapping.pages.write_back(mapping.range())?;
        if flags & libc::MS_SYNC != 0 {
            mapping.pages.sync()?;
        }
    }
    Ok(0)
}

/// Whether a range of memory has shared mappings of ours.
pub(crate) fn has(address: usize, length: usize) -> bool {
    !within(&TABLE.lock(), &(address..address.saturating_add(length.max(1)))).is_empty()
}

/// mremap(2) of a mapping of ours; `call` is the kernel's.
pub(crate) fn remap(
    (old, old_length): (usize, usize),
    (length, flags, fixed): (usize, c_int, usize),
    call: impl FnOnce() -> *mut c_void,
) -> Outcome<*mut c_void> {
    let old_bytes = pages_of(old_length);
    let found = within(&TABLE.lock(), &(old..old.saturating_add(old_bytes.max(1))));
    let [(first, mapping)] = &found[..] else {
        return Err(Failure::new(libc::EFAULT, "it is more than one mapping"));
    };
    if *first != old || (mapping.bytes < old_bytes) {
        return Err(Failure::new(libc::EFAULT, "it is not one mapping"));
    }
    let moved = Mapping { bytes: pages_of(length), ..mapping.clone() };
    drop(found);
    moved.pages.extend(moved.range())?;
    let mut table = TABLE.lock();
    let target = if flags & libc::MREMAP_FIXED != 0 { fixed..fixed.saturating_add(moved.bytes) } else { 0..0 };
    let before = table.clone();
    // Of these pages something stays mapped, so only those that were in the way end.
    if flags & libc::MREMAP_DONTUNMAP == 0 {
        take(&mut table, &(old..old + old_bytes));
    }
    let (start, taken) = replace(&mut table, target, libc::MAP_FAILED, call);
    if start == libc::MAP_FAILED {
        *table = before;
        return Err(crate::answer::os_failure("mremap"));
    }
    causality::note_unmap(old, old_bytes);
    table.insert(start.addr(), moved.clone());
    drop(table);
    // A mapping that has shrunk: what it had stays with the file.
    let _ = moved.pages.write_back(0..u64::MAX);
    end(taken);
    Ok(start)
}

/// From now on a program may store to pages: they are written back each second.
fn stores_begin(pages: &Pages) {
    pages.may_be_written();
    let mut thread = THREAD.lock();
    if thread.is_none() && !ENDS.load(Ordering::Relaxed) {
        let builder = thread::Builder::new().name("nvfold-maps".into());
        // Without the thread they are written back by calls alone.
        *thread = with_signals_blocked(|| builder.spawn(write_back_again_and_again)).ok();
    }
}

fn write_back_again_and_again() {
    let mut rest = EVERY;
    loop {
        thread::park_timeout(rest);
        if ENDS.load(Ordering::Relaxed) {
            return;
        }
        let began = Instant::now();
        // What fails is tried again, and who syncs or closes is told.
        let _ = shared::write_back_all();
        rest = EVERY.max(began.elapsed() * WORKS_ONE_IN);
        let mut thread = THREAD.lock();
        if !shared::are_written() {
            *thread = None;
            return;
        }
    }
}

/// The program ends: all stores are written back. Stores that other threads make later are lost.
pub(crate) fn leave(device: usize) {
    ENDS.store(true, Ordering::Relaxed);
    let thread = THREAD.lock().take();
    if let Some(thread) = thread {
        thread.thread().unpark();
        let _ = thread.join();
    }
    if let Err(failure) = shared::write_back_all() {
        process::say(&format!("stores to shared mappings are lost: {}", failure.message));
    }
    let all = std::mem::take(&mut *TABLE.lock());
    drop(all);
    shared::leave(device);
}
