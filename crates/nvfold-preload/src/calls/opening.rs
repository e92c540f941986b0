//! Opening files.
//!
//! The problem: `open` takes a variable number of arguments, and stable Rust cannot define such a function. It need
//! not: on x86-64 the third argument is in the same register as for a function with three arguments. If the program
//! passed none, the register holds an arbitrary value, so it is used only with O_CREAT and O_TMPFILE, as in libc.

use super::serve::{host, on_path};
use crate::numbers::{self, File};
use crate::prefix::DevicePath;
use nvfold::FileKind;
use nvfold_c::failure::{Failure, Outcome};
use nvfold_c::files::{self, Open};
use nvfold_c::paths::LastLink;
use parking_lot::Mutex;
use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::AtomicI32;

/// Flags that say how to open, and that F_GETFL does not return.
const ONLY_TO_OPEN: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY | libc::O_TRUNC | libc::O_CLOEXEC;
/// O_LARGEFILE as the kernel has it, which sets it for every file; to libc it is 0.
const LARGE_FILE: c_int = 0o100_000;
/// Flags that O_PATH keeps.
const WITH_PATH: c_int = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;

/// Opens a file of ours; returns its number.
pub(crate) fn open_path(path: &DevicePath, flags: c_int, mode: libc::mode_t) -> Outcome<c_int> {
    // A descriptor of O_PATH allows fewer operations than this one; the difference does no harm.
    let flags = if flags & libc::O_PATH != 0 { flags & WITH_PATH } else { flags };
    if path.is_root() && path.path().len() > 1 && flags & libc::O_CREAT != 0 {
        return Err(Failure::new(libc::EISDIR, "it is the prefix and ends in /"));
    }
    // Linux truncates also what it opens for reading alone; nvfold-c refuses to.
    let truncates = flags & (libc::O_ACCMODE | libc::O_TRUNC) == libc::O_RDONLY | libc::O_TRUNC;
    let how = if truncates { flags & !libc::O_TRUNC } else { flags };
    let open = files::open(path.device(), path.start(), path.path(), how, mode);
    let open = open.map_err(|failure| failure.at(path.path()))?;
    if truncates {
        truncate(&open)?;
    }
    let file = File {
        path: if open.kind == FileKind::Directory { path.written() } else { Vec::new() },
        open,
        flags: AtomicI32::new(flags & !ONLY_TO_OPEN | LARGE_FILE),
        listing: Mutex::new(None),
    };
    numbers::insert(Arc::new(file), 0, flags & libc::O_CLOEXEC != 0)
}

/// Returns what `open` does with a link at the end of a path.
///
/// # Safety
///
/// `path` is NULL or a C string.
pub(crate) unsafe fn last_link(path: *const c_char, flags: c_int) -> LastLink {
    if flags & (libc::O_CREAT | libc::O_NOFOLLOW) == 0 || path.is_null() {
        return LastLink::Follow;
    }
    // SAFETY: the caller guarantees a C string.
    files::last_link(unsafe { CStr::from_ptr(path) }.to_bytes(), flags)
}

/// Makes a file empty that is open for reading. EISDIR, EROFS.
fn truncate(open: &Open) -> Outcome<()> {
    if open.kind == FileKind::Directory {
        return Err(Failure::new(libc::EISDIR, "it is a directory"));
    }
    if open.run(|fs| Ok(fs.is_read_only()))? {
        return Err(Failure::new(libc::EROFS, "the device is open for reading alone"));
    }
    open.make_empty()
}

/// Opens the file that a path leads to, on the device or on the host.
///
/// # Safety
///
/// `path` is NULL or a C string.
pub(super) unsafe fn open_at(dirfd: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    let from_host = |dirfd, path| {
        let fd = host!(libc::openat(dirfd, path, flags, mode));
        // If the number was one of ours, the kernel closed it past this library.
        numbers::forget(fd);
        fd
    };
    // SAFETY: the caller guarantees a C string.
    unsafe {
        let path = (dirfd, path, last_link(path, flags));
        on_path("open", path, from_host, |path| open_path(path, flags, mode))
    }
}

/// open(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the program passes a string.
    unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
}

/// openat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_openat(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    // SAFETY: the program passes a string.
    unsafe { open_at(dirfd, path, flags, mode) }
}

/// Replaces `open` of programs compiled with checks, without a mode.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program passes a string.
    unsafe { open_at(libc::AT_FDCWD, path, flags, 0) }
}

/// Replaces `openat` of programs compiled with checks, without a mode.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_openat_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program passes a string.
    unsafe { open_at(dirfd, path, flags, 0) }
}

/// creat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_creat(path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: the program passes a string.
    unsafe { open_at(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
}
