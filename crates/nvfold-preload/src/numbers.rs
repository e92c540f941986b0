//! The table from descriptors to open files.
//!
//! The problem: a program's descriptors are the kernel's. The program closes 3 and expects the next open to return 3,
//! it selects on descriptors, counts them against its limit, and passes on descriptors that were open before. Numbers
//! of our own would collide sooner or later. The idea: each of our open files has a real descriptor, a
//! **placeholder**, so the kernel assigns the numbers; the table says which of them are ours.
//!
//! A placeholder is a duplicate of one empty, sealed memory file that is open only for writing. A call that reaches
//! the kernel past this library (a program that a child executes writes to it) fails with EPERM or EBADF instead of
//! losing data silently. It is always ready to select and poll, as files are.
//!
//! ```text
//! OURS   a bit per number, all that most calls look at. Lock-free: also right in a signal handler and after fork
//! TABLE  number -> file, under a lock; numbers made by dup share the file
//! ```
//!
//! The library's own descriptors (the device, the empty file, the memory of shared mappings) are just below the limit,
//! or above; to the program they look closed.

use crate::answer::checked;
use crate::process;
use nvfold_c::failure::{Failure, Outcome};
use nvfold_c::files::Open;
use nvfold_c::listing::Listing;
use nvfold_c::shared::{self, Memory};
use parking_lot::{Mutex, RwLock};
use std::ffi::{CStr, c_int};
use std::os::fd::FromRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Numbers that can be ours: the limit of Linux for a process, unless root has raised it.
const NUMBERS_MAX: usize = 1 << 20;
/// Maximum number of the library's own descriptors: they start that far below the limit.
const RESERVED_MAX: c_int = 16;

/// An open file.
pub(crate) struct File {
    pub open: Open,
    /// Of a directory, the absolute path by which it was opened, with the prefix: where it is looked for first when a
    /// program asks for its path.
    pub path: Vec<u8>,
    /// Flags that F_GETFL returns.
    pub flags: AtomicI32,
    /// The listing of a directory stream on this file.
    pub listing: Mutex<Option<Arc<Listing>>>,
}

static OURS: [AtomicU64; NUMBERS_MAX / 64] = [const { AtomicU64::new(0) }; NUMBERS_MAX / 64];
static TABLE: RwLock<Vec<Option<Arc<File>>>> = RwLock::new(Vec::new());
/// The empty file that placeholders duplicate.
static EMPTY: AtomicI32 = AtomicI32::new(-1);
/// The numbers that the library keeps for itself: where they begin, the highest one ever, and a bit for each.
static FIRST_RESERVED: AtomicI32 = AtomicI32::new(0);
static LAST_RESERVED: AtomicI32 = AtomicI32::new(-1);
static RESERVED: [AtomicU64; NUMBERS_MAX / 64] = [const { AtomicU64::new(0) }; NUMBERS_MAX / 64];

/// Returns whether this number is a file of ours.
#[inline]
pub(crate) fn is_ours(fd: c_int) -> bool {
    is_marked(&OURS, fd)
}

#[inline]
fn is_marked(bits: &[AtomicU64], fd: c_int) -> bool {
    let Some(word) = usize::try_from(fd).ok().and_then(|number| bits.get(number / 64)) else { return false };
    word.load(Ordering::Acquire) & (1 << (fd % 64)) != 0
}

fn mark(bits: &[AtomicU64], fd: c_int, marked: bool) {
    let word = &bits[fd as usize / 64];
    let bit = 1 << (fd % 64);
    if marked {
        word.fetch_or(bit, Ordering::Release)
    } else {
        word.fetch_and(!bit, Ordering::Release)
    };
}

/// Returns whether this number is the library's own, which is hidden from the program.
pub(crate) fn is_reserved(fd: c_int) -> bool {
    is_marked(&RESERVED, fd)
}

/// Returns the numbers that the library keeps for itself.
pub(crate) fn reserved() -> impl Iterator<Item = c_int> {
    let words = (LAST_RESERVED.load(Ordering::Relaxed) + 1) as usize;
    marked(&RESERVED[..words.div_ceil(64)]).map(|number| number as c_int)
}

fn reserve(fd: c_int) {
    LAST_RESERVED.fetch_max(fd, Ordering::Relaxed);
    mark(&RESERVED, fd, true);
}

/// Makes memory for a shared mapping, with a number that is hidden from the program.
pub(crate) fn memory() -> Outcome<Memory> {
    // SAFETY: the name ends in NUL, and the flags are valid.
    let made = unsafe { libc::memfd_create(c"nvfold-shared".as_ptr(), libc::MFD_CLOEXEC) };
    let made = checked("make memory for a shared mapping", made)?;
    let first = FIRST_RESERVED.load(Ordering::Relaxed);
    // SAFETY: a duplicate of a descriptor of ours.
    let from = |least: c_int| unsafe { libc::fcntl(made, libc::F_DUPFD_CLOEXEC, least) };
    // When the numbers below the limit are taken: among the program's own.
    let high = [first, first / 2].into_iter().map(from).find(|high| *high >= 0).unwrap_or(-1);
    let high = checked("move a descriptor", high);
    // SAFETY: no other code knows of it.
    unsafe { libc::close(made) };
    let high = high?;
    if high as usize >= NUMBERS_MAX {
        // SAFETY: no other code knows of it.
        unsafe { libc::close(high) };
        return Err(Failure::new(libc::EMFILE, format!("descriptor {high}: there can be {NUMBERS_MAX}")));
    }
    reserve(high);
    // SAFETY: it was made here, and nobody else closes it: it is hidden.
    let file = unsafe { std::fs::File::from_raw_fd(high) };
    Ok(Memory { file, closing: |fd| mark(&RESERVED, fd, false) })
}

/// Returns the open numbers from `first` on, as bits.
fn open_from(first: c_int) -> u64 {
    // SAFETY: F_GETFD changes nothing, for any number.
    let is_open = |at: &c_int| unsafe { libc::fcntl(first + at, libc::F_GETFD) } >= 0;
    (0..RESERVED_MAX).filter(is_open).map(|at| 1 << at).sum()
}

/// Makes the empty file, and lets `open` open the library's files with descriptors from the given number on.
pub(crate) fn prepare<T>(open: impl FnOnce(c_int) -> Outcome<T>) -> Outcome<T> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is ours, and of the type that getrlimit fills.
    checked("read the limit of descriptors", unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    // Not higher, whatever the limit: the kernel's table reaches up to the highest number, and fork copies it.
    let first = (limit.rlim_cur.min(1024) as c_int).saturating_sub(RESERVED_MAX).max(3);
    let before = open_from(first);
    let empty = empty_file()?;
    // SAFETY: a duplicate of a descriptor of ours.
    let high = checked("move a descriptor", unsafe { libc::fcntl(empty, libc::F_DUPFD_CLOEXEC, first) })?;
    // SAFETY: no other code knows of it.
    unsafe { libc::close(empty) };
    EMPTY.store(high, Ordering::Relaxed);
    let opened = open(first)?;
    FIRST_RESERVED.store(first, Ordering::Relaxed);
    let own = open_from(first) & !before;
    (0..RESERVED_MAX).filter(|at| own & (1 << at) != 0).for_each(|at| reserve(first + at));
    Ok(opened)
}

/// Returns an empty file without a name that refuses all writes.
fn empty_file() -> Outcome<c_int> {
    const NAME: &CStr = c"nvfold";
    // SAFETY: the name ends in NUL, and the flags are valid.
    let made = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    let made = checked("make an empty file", made)?;
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    // SAFETY: the descriptor is ours, and the seals are valid.
    checked("seal an empty file", unsafe { libc::fcntl(made, libc::F_ADD_SEALS, seals) })?;
    let path = format!("/proc/self/fd/{made}\0");
    // SAFETY: the path ends in NUL.
    let writes_alone = unsafe { libc::open(path.as_ptr().cast(), libc::O_WRONLY | libc::O_CLOEXEC) };
    if writes_alone < 0 {
        // Without /proc, a read returns end of file instead of failing; a write fails all the same.
        return Ok(made);
    }
    // SAFETY: no other code knows of it.
    unsafe { libc::close(made) };
    Ok(writes_alone)
}

/// Marks descriptors that a parent left open across exec and that refer to its files. Returns true if a standard one
/// is among them: libc uses those internally, where calls are not interposed.
pub(crate) fn mark_inherited() -> bool {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return false };
    for entry in entries.flatten() {
        let is_placeholder =
            std::fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == "/memfd:nvfold (deleted)");
        let number = entry.file_name().to_str().and_then(|name| name.parse::<c_int>().ok());
        if let Some(number) = number.filter(|number| is_placeholder && (*number as usize) < NUMBERS_MAX) {
            mark(&OURS, number, true);
        }
    }
    (0..=2).any(is_ours)
}

fn bad(fd: c_int) -> Failure {
    Failure::new(libc::EBADF, format!("{fd} is no open file of the device"))
}

/// Returns the open file of a number, or EBADF.
pub(crate) fn get(fd: c_int) -> Outcome<Arc<File>> {
    let table = TABLE.read();
    usize::try_from(fd).ok().and_then(|number| table.get(number)?.clone()).ok_or_else(|| bad(fd))
}

fn put(table: &mut Vec<Option<Arc<File>>>, fd: c_int, file: Arc<File>) -> Option<Arc<File>> {
    let number = fd as usize;
    if table.len() <= number {
        table.resize(number + 1, None);
    }
    let before = table[number].replace(file);
    mark(&OURS, fd, true);
    before
}

fn take(table: &mut [Option<Arc<File>>], fd: c_int) -> Option<Arc<File>> {
    mark(&OURS, fd, false);
    table.get_mut(fd as usize)?.take()
}

/// Gives a file the lowest free number from `least` on, or returns EMFILE.
pub(crate) fn insert(file: Arc<File>, least: c_int, closes_on_exec: bool) -> Outcome<c_int> {
    let how = if closes_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    let mut table = TABLE.write();
    // SAFETY: a duplicate of a descriptor of ours.
    let fd = checked("take a descriptor", unsafe { libc::fcntl(EMPTY.load(Ordering::Relaxed), how, least) })?;
    if fd as usize >= NUMBERS_MAX {
        // SAFETY: it has just been made, and no other code knows of it.
        unsafe { libc::close(fd) };
        return Err(Failure::new(libc::EMFILE, format!("descriptor {fd}: there can be {NUMBERS_MAX}")));
    }
    let stale = put(&mut table, fd, file);
    drop(table);
    stale.map_or(Ok(()), end)?;
    Ok(fd)
}

/// Drops a file, and writes the stores to its shared mappings back. Dropping the last user may change the device: a
/// file without a name is freed.
fn end(file: Arc<File>) -> Outcome<()> {
    let device = file.open.device.clone();
    let written_back = shared::write_back(&device, file.open.file.ino());
    device.run(|_| {
        drop(file);
        Ok(())
    })?;
    written_back.map(drop)
}

/// Closes a number of ours; in a child, only the kernel's descriptor.
pub(crate) fn close(fd: c_int) -> Outcome<()> {
    if !process::is_owner() {
        if process::is_not_owner() {
            mark(&OURS, fd, false);
        }
        // SAFETY: close takes any number.
        return checked("close", unsafe { libc::close(fd) }).map(drop);
    }
    let mut table = TABLE.write();
    let file = take(&mut table, fd);
    // The lock is held until the number is closed, so no other thread gets the number before. SAFETY: the number is a
    // placeholder, which the table had.
    unsafe { libc::close(fd) };
    drop(table);
    file.map_or_else(|| Err(bad(fd)), end)
}

/// Forgets a number that the kernel has closed, or given to another file.
pub(crate) fn forget(fd: c_int) {
    if is_ours(fd) && process::is_owner() {
        let file = take(&mut TABLE.write(), fd);
        // No caller could receive the error.
        let _ = file.map(end);
    }
}

/// Makes `to` the same as `from` by the kernel's dup2 or dup3, of which at least one is ours.
pub(crate) fn duplicate(from: c_int, to: c_int, dup: impl FnOnce() -> c_int) -> Outcome<c_int> {
    if !process::is_owner() {
        return checked("dup", dup());
    }
    let mut table = TABLE.write();
    let file = if is_ours(from) { table.get(from as usize).cloned().flatten() } else { None };
    let made = checked("dup", dup())?;
    if from == to {
        return Ok(made);
    }
    let before = match file {
        Some(file) => put(&mut table, to, file),
        None => take(&mut table, to),
    };
    drop(table);
    before.map_or(Ok(()), end)?;
    Ok(made)
}

/// Returns our numbers in a range.
pub(crate) fn ours_in(first: u32, last: u32) -> Vec<c_int> {
    marked(&OURS).filter(|number| (first..=last).contains(number)).map(|number| number as c_int).collect()
}

/// Returns the numbers whose bits are set.
fn marked(bits: &'static [AtomicU64]) -> impl Iterator<Item = u32> {
    let numbers = |(at, word): (usize, &AtomicU64)| {
        let word = word.load(Ordering::Acquire);
        (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| (at * 64 + bit) as u32)
    };
    bits.iter().enumerate().filter(|(_, word)| word.load(Ordering::Relaxed) != 0).flat_map(numbers)
}

/// Drops all files when the device is closed; their numbers are then EBADF.
pub(crate) fn clear() {
    let files: Vec<_> = std::mem::take(&mut *TABLE.write());
    drop(files);
}
