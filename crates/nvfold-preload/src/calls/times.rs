//! Times of access and modification, in the units of the different calls that set them.

use super::attributes::{change_at, change_open};
use super::serve::{host, on_number, on_path};
use super::status::last_link;
use crate::numbers;
use nvfold::SetAttr;
use nvfold_c::failure::Outcome;
use nvfold_c::status::time_to_set;
use std::ffi::{c_char, c_int};

const HERE: c_int = libc::AT_FDCWD;
/// Access and modification time; `None`: both are set to now.
type Times = Option<[libc::timespec; 2]>;

fn change_of(times: Times) -> Outcome<SetAttr> {
    let now = pmem::clock::coarse_now_ns();
    let (atime, mtime) = match times {
        None => (Some(now), Some(now)),
        Some([access, modification]) => (time_to_set(access, now)?, time_to_set(modification, now)?),
    };
    Ok(SetAttr { atime, mtime, ..SetAttr::default() })
}

/// # Safety
///
/// `times` is NULL or points to two values that the program passed.
unsafe fn read<T: Copy>(times: *const T) -> Option<[T; 2]> {
    // SAFETY: the caller's contract.
    (!times.is_null()).then(|| unsafe { times.cast::<[T; 2]>().read_unaligned() })
}

fn of_micro([access, modification]: [libc::timeval; 2]) -> [libc::timespec; 2] {
    let one = |time: libc::timeval| libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec.saturating_mul(1000) };
    [one(access), one(modification)]
}

/// Sets the times of a path, or of the descriptor if there is no path, as utimensat does.
///
/// # Safety
///
/// `path` is NULL or a string.
unsafe fn set(
    (dirfd, path): (c_int, *const c_char),
    flags: c_int,
    times: Times,
    from_host: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    if path.is_null() && numbers::is_ours(dirfd) {
        return on_number("futimens", dirfd, || -1, |file| change_open(file, &change_of(times)?));
    }
    // SAFETY: the caller's contract.
    unsafe {
        on_path("utimensat", (dirfd, path, last_link(flags)), from_host, |path| {
            change_at(path, flags, &change_of(times)?)
        })
    }
}

/// utimensat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_utimensat(
    dirfd: c_int,
    path: *const c_char,
    times: *const libc::timespec,
    flags: c_int,
) -> c_int {
    let from_host = |dirfd, path| host!(libc::utimensat(dirfd, path, times, flags));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { set((dirfd, path), flags, read(times), from_host) }
}

/// futimens(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_futimens(fd: c_int, times: *const libc::timespec) -> c_int {
    on_number(
        "futimens",
        fd,
        || host!(libc::futimens(fd, times)),
        |file| {
            // SAFETY: the arguments are the program's, under the contract of the libc function.
            change_open(file, &change_of(unsafe { read(times) })?)
        },
    )
}

/// utimes(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_utimes(path: *const c_char, times: *const libc::timeval) -> c_int {
    let from_host = |_, path| host!(libc::utimes(path, times));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { set((HERE, path), 0, read(times).map(of_micro), from_host) }
}

/// lutimes(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_lutimes(path: *const c_char, times: *const libc::timeval) -> c_int {
    let from_host = |_, path| host!(libc::lutimes(path, times));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { set((HERE, path), libc::AT_SYMLINK_NOFOLLOW, read(times).map(of_micro), from_host) }
}

/// futimes(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_futimes(fd: c_int, times: *const libc::timeval) -> c_int {
    on_number(
        "futimes",
        fd,
        || host!(libc::futimes(fd, times)),
        |file| {
            // SAFETY: the arguments are the program's, under the contract of the libc function.
            change_open(file, &change_of(unsafe { read(times) }.map(of_micro))?)
        },
    )
}

unsafe extern "C" {
    fn futimesat(dirfd: c_int, path: *const c_char, times: *const libc::timeval) -> c_int;
}

/// futimesat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_futimesat(
    dirfd: c_int,
    path: *const c_char,
    times: *const libc::timeval,
) -> c_int {
    let from_host = |dirfd, path| host!(futimesat(dirfd, path, times));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { set((dirfd, path), 0, read(times).map(of_micro), from_host) }
}

/// utime(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_utime(path: *const c_char, times: *const libc::utimbuf) -> c_int {
    let from_host = |_, path| host!(libc::utime(path, times));
    let whole = |tv_sec| libc::timespec { tv_sec, tv_nsec: 0 };
    // SAFETY: NULL, or a structure that the program passed.
    let given = unsafe { times.as_ref() }.map(|times| [whole(times.actime), whole(times.modtime)]);
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { set((HERE, path), 0, given, from_host) }
}
