//! Descriptors: closing and duplicating them, positions, flags, locks, and other calls on an open file as a whole.

use super::serve::{host, on_number};
use crate::answer::{answer, errno};
use crate::numbers::{self, File};
use crate::{device, mounted, process};
use nvfold::FileKind;
use nvfold_c::failure::{Failure, Outcome, set_errno};
use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Flags that F_SETFL can change.
const CAN_CHANGE: c_int = libc::O_APPEND | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME | libc::O_NONBLOCK;

fn bad_number() -> c_int {
    nvfold_c::failure::set_errno(libc::EBADF);
    -1
}

/// Closes any number.
pub(crate) fn close(fd: c_int) -> c_int {
    if numbers::is_ours(fd) {
        // Not `answer`, which fails in a child: a child must be able to close the number.
        return match numbers::close(fd) {
            Ok(()) => 0,
            Err(failure) => {
                nvfold_c::failure::set_errno(failure.errno);
                -1
            }
        };
    }
    if numbers::is_reserved(fd) { bad_number() } else { host!(libc::close(fd)) }
}

/// close(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_close(fd: c_int) -> c_int {
    close(fd)
}

/// close_range(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;
    if first <= last && flags & CLOEXEC == 0 && device::has_prefix() && process::is_owner() {
        numbers::ours_in(first, last).into_iter().for_each(|fd| drop(numbers::close(fd)));
    }
    // Close around the library's own numbers.
    let mut from = first;
    let mut result = 0;
    let reserved = numbers::reserved().map(|fd| fd as c_uint).filter(|fd| (first..=last).contains(fd));
    for kept in reserved.collect::<Vec<_>>() {
        if from < kept {
            result = result.min(host!(close_range(from, kept - 1, flags)));
        }
        from = kept + 1;
    }
    if from <= last || first > last {
        result = result.min(host!(close_range(from, last, flags)));
    }
    result
}

unsafe extern "C" {
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
}

/// closefrom(3)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_closefrom(least: c_int) {
    nvfold_preload_close_range(least.max(0) as c_uint, c_uint::MAX, 0);
}

/// dup(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_dup(fd: c_int) -> c_int {
    if numbers::is_reserved(fd) {
        return bad_number();
    }
    on_number("dup", fd, || host!(libc::dup(fd)), |file| copy(fd, file, 0, false))
}

/// Forgets a number that the kernel has just given to another file: if it was ours, it was closed past this library.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_forgotten(fd: c_int) -> c_int {
    numbers::forget(fd);
    fd
}

/// As `forgotten`, after fcntl.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_forgotten_copy(answer: c_int, _fd: c_int, command: c_int) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        numbers::forget(answer);
    }
    answer
}

/// Makes another number for a file; in a child of vfork, only in the kernel.
fn copy(fd: c_int, file: &Arc<File>, least: c_int, closes_on_exec: bool) -> Outcome<c_int> {
    if process::is_owner() {
        return numbers::insert(file.clone(), least, closes_on_exec);
    }
    let how = if closes_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    crate::answer::checked("dup", host!(libc::fcntl(fd, how, least)))
}

/// Implements dup2 and dup3; `dup` is the call of libc.
pub(crate) fn duplicate(fd: c_int, to: c_int, dup: impl FnOnce() -> c_int) -> c_int {
    if numbers::is_reserved(fd) || numbers::is_reserved(to) {
        return bad_number();
    }
    if !numbers::is_ours(fd) && !numbers::is_ours(to) {
        return dup();
    }
    if process::is_not_owner() {
        return dup();
    }
    answer("dup2", || numbers::duplicate(fd, to, dup))
}

/// fcntl(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    if numbers::is_reserved(fd) {
        return bad_number();
    }
    on_number(
        "fcntl",
        fd,
        || host!(libc::fcntl(fd, command, argument)),
        |file| match command {
            libc::F_DUPFD => copy(fd, file, argument as c_int, false),
            libc::F_DUPFD_CLOEXEC => copy(fd, file, argument as c_int, true),
            libc::F_GETFD | libc::F_SETFD => crate::answer::checked("fcntl", host!(libc::fcntl(fd, command, argument))),
            libc::F_GETFL => Ok(file.flags.load(Ordering::Relaxed)),
            libc::F_SETFL => {
                let flags = file.flags.load(Ordering::Relaxed) & !CAN_CHANGE | argument as c_int & CAN_CHANGE;
                file.flags.store(flags, Ordering::Relaxed);
                file.open.set_appends(flags & libc::O_APPEND != 0);
                Ok(0)
            }
            // There is only one process, so no other process ever holds a lock.
            libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => Ok(0),
            libc::F_GETLK | libc::F_OFD_GETLK => {
                let lock = std::ptr::with_exposed_provenance_mut::<libc::flock>(argument as usize);
                if lock.is_null() || !lock.is_aligned() {
                    return Err(Failure::new(libc::EFAULT, "the lock is a bad address"));
                }
                // SAFETY: the program passes a structure for this command, as fcntl requires.
                unsafe { (*lock).l_type = libc::F_UNLCK as _ };
                Ok(0)
            }
            _ => Err(Failure::invalid(format!("there is no fcntl {command} for files of the device"))),
        },
    )
}

/// Arguments of FICLONERANGE.
#[repr(C)]
#[derive(Clone, Copy)]
struct CloneRange {
    source: i64,
    source_at: u64,
    length: u64,
    target_at: u64,
}

const FICLONE: c_ulong = 0x4004_9409;
const FICLONERANGE: c_ulong = 0x4020_940d;
const FIONBIO: c_ulong = 0x5421;
const FIONCLEX: c_ulong = 0x5450;
const FIOCLEX: c_ulong = 0x5451;

impl CloneRange {
    /// Reads the arguments of a clone; `None` for other requests.
    ///
    /// # Safety
    ///
    /// The argument is what the request needs.
    unsafe fn of(request: c_ulong, argument: *mut c_void) -> Option<CloneRange> {
        match request {
            FICLONE => Some(CloneRange { source: argument.addr() as i64, source_at: 0, length: 0, target_at: 0 }),
            // SAFETY: the caller's contract.
            FICLONERANGE if !argument.is_null() => Some(unsafe { argument.cast::<CloneRange>().read_unaligned() }),
            _ => None,
        }
    }
}

/// Lets the kernel do an ioctl on a file of the host. Clones that it refuses on a mount are done here.
///
/// # Safety
///
/// The argument is what the request needs.
unsafe fn ioctl_on_host(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let before = errno();
    let answer = host!(libc::ioctl(fd, request, argument));
    if answer != -1 || !mounted::is_active() || errno() != libc::EOPNOTSUPP {
        return answer;
    }
    // SAFETY: the kernel has just read the argument of a clone.
    let Some(range) = (unsafe { CloneRange::of(request, argument) }) else { return answer };
    let source = c_int::try_from(range.source).unwrap_or(-1);
    let cloned = mounted::clone_range((source, range.source_at), (fd, range.target_at), range.length);
    set_errno(cloned.err().unwrap_or(before));
    if cloned.is_ok() { 0 } else { -1 }
}

/// ioctl(2): clones, and the requests that every file answers.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    on_number(
        "ioctl",
        fd,
        // SAFETY: the arguments are the program's, under the contract of the libc function.
        || unsafe { ioctl_on_host(fd, request, argument) },
        // SAFETY: as above.
        |file| match unsafe { CloneRange::of(request, argument) } {
            Some(range) => clone_range(file, range),
            None => other_request(fd, request),
        },
    )
}

/// The requests that every file answers.
fn other_request(fd: c_int, request: c_ulong) -> Outcome<c_int> {
    match request {
        FIONBIO => Ok(0),
        FIOCLEX | FIONCLEX => crate::answer::checked("ioctl", host!(libc::ioctl(fd, request))),
        _ => Err(Failure::new(libc::ENOTTY, format!("there is no ioctl {request:#x} for files of the device"))),
    }
}

/// FICLONERANGE; length 0 means up to the end of the source.
fn clone_range(target: &File, range: CloneRange) -> Outcome<c_int> {
    let source = c_int::try_from(range.source).unwrap_or(-1);
    if !numbers::is_ours(source) {
        return Err(Failure::new(libc::EXDEV, "the source is not on the device"));
    }
    let source = numbers::get(source)?;
    source.open.check_reads()?;
    target.open.check_writes()?;
    target.open.check_not_appends()?;
    let length =
        if range.length == 0 { source.open.attr()?.size.saturating_sub(range.source_at) } else { range.length };
    if length > 0 {
        target.open.clone_range(&source.open, range.source_at, range.target_at, length)?;
    }
    Ok(0)
}

/// lseek(2)
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvfold_preload_lseek(fd: c_int, offset: libc::off_t, whence: c_int) -> libc::off_t {
    on_number(
        "lseek",
        fd,
        || host!(libc::lseek(fd, offset, whence)),
        |file| {
            // getdents64 begins again at the start of a directory; telldir's positions are another matter.
            match file.open.kind == FileKind::Directory && (offset, whence) == (0, libc::SEEK_SET) {
                true => file.open.rewind(),
                false => file.open.seek(offset, whence),
            }
        },
    )
}

/// ftruncate(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_ftruncate(fd: c_int, length: libc::off_t) -> c_int {
    on_number("ftruncate", fd, || host!(libc::ftruncate(fd, length)), |file| file.open.truncate(length).map(|()| 0))
}

/// fallocate(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_fallocate(
    fd: c_int,
    mode: c_int,
    at: libc::off_t,
    length: libc::off_t,
) -> c_int {
    let from_host = || host!(libc::fallocate(fd, mode, at, length));
    on_number("fallocate", fd, from_host, |file| file.open.allocate(mode, at, length).map(|()| 0))
}

/// posix_fallocate(3), which returns the error number.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_posix_fallocate(fd: c_int, at: libc::off_t, length: libc::off_t) -> c_int {
    if !numbers::is_ours(fd) {
        return host!(libc::posix_fallocate(fd, at, length));
    }
    match answer("posix_fallocate", || numbers::get(fd)?.open.allocate(0, at, length).map(|()| 0)) {
        0 => 0,
        _ => crate::answer::errno(),
    }
}

/// posix_fadvise(2), which returns the error number; advice has no effect.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_posix_fadvise(
    fd: c_int,
    at: libc::off_t,
    length: libc::off_t,
    advice: c_int,
) -> c_int {
    if numbers::is_ours(fd) { 0 } else { host!(libc::posix_fadvise(fd, at, length, advice)) }
}

/// readahead(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_readahead(fd: c_int, at: libc::off64_t, length: usize) -> libc::ssize_t {
    if numbers::is_ours(fd) { 0 } else { host!(libc::readahead(fd, at, length)) }
}

fn sync(file: &Arc<File>) -> Outcome<c_int> {
    file.open.sync().map(|()| 0)
}

/// fsync(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_fsync(fd: c_int) -> c_int {
    on_number("fsync", fd, || host!(libc::fsync(fd)), sync)
}

/// fdatasync(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_fdatasync(fd: c_int) -> c_int {
    on_number("fdatasync", fd, || host!(libc::fdatasync(fd)), sync)
}

/// syncfs(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_syncfs(fd: c_int) -> c_int {
    on_number("syncfs", fd, || host!(libc::syncfs(fd)), sync)
}

/// sync_file_range(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_sync_file_range(
    fd: c_int,
    at: libc::off64_t,
    length: libc::off64_t,
    flags: c_uint,
) -> c_int {
    on_number("sync_file_range", fd, || host!(libc::sync_file_range(fd, at, length, flags)), sync)
}

/// sync(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_sync() {
    device::sync();
    host!(libc::sync());
}

/// flock(2): there is only one process, so no other process ever holds a lock.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_flock(fd: c_int, operation: c_int) -> c_int {
    on_number("flock", fd, || host!(libc::flock(fd, operation)), |_| Ok(0))
}

/// lockf(3)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_lockf(fd: c_int, command: c_int, length: libc::off_t) -> c_int {
    on_number("lockf", fd, || host!(libc::lockf(fd, command, length)), |_| Ok(0))
}
