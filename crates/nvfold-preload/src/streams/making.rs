//! Making streams on files of ours: fopen and fdopen.

use super::front::{Front, Stream, number_of};
use crate::answer::answer_or;
use crate::calls::{self, close, host, open_path};
use crate::numbers;
use crate::prefix::{Place, look_for};
use nvfold_c::failure::{Failure, Outcome};
use nvfold_c::paths::LastLink;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

#[repr(C)]
struct CookieFunctions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize,
    seek: unsafe extern "C" fn(*mut c_void, *mut libc::off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> Stream;
}

unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, length: usize) -> isize {
    // SAFETY: the stream's buffer.
    unsafe { calls::read(cookie.addr() as c_int, buffer.cast(), length) }
}

/// Writes for a stream; returns 0 for a failure, as fopencookie requires.
unsafe extern "C" fn write(cookie: *mut c_void, buffer: *const c_char, length: usize) -> isize {
    // SAFETY: the stream's buffer, or the program's.
    unsafe { calls::write(cookie.addr() as c_int, buffer.cast(), length) }.max(0)
}

unsafe extern "C" fn seek(cookie: *mut c_void, position: *mut libc::off64_t, whence: c_int) -> c_int {
    // SAFETY: libc passes a position that can be read and written.
    unsafe {
        let found = calls::lseek(cookie.addr() as c_int, *position, whence);
        if found < 0 {
            return -1;
        }
        *position = found;
    }
    0
}

unsafe extern "C" fn close_cookie(cookie: *mut c_void) -> c_int {
    close(cookie.addr() as c_int)
}

/// Parses a mode of fopen: returns flags of open, and the mode without the letters that only open needs. EINVAL.
fn parse(mode: &[u8]) -> Option<(c_int, &'static CStr)> {
    let rest = mode.get(1..)?;
    // The part behind a comma is about wide characters.
    let has = |letter: u8| rest.iter().take_while(|byte| **byte != b',').any(|byte| *byte == letter);
    let updates = has(b'+');
    let (make, plain) = match (mode[0], updates) {
        (b'r', false) => (0, c"r"),
        (b'r', true) => (0, c"r+"),
        (b'w', false) => (libc::O_CREAT | libc::O_TRUNC, c"w"),
        (b'w', true) => (libc::O_CREAT | libc::O_TRUNC, c"w+"),
        (b'a', false) => (libc::O_CREAT | libc::O_APPEND, c"a"),
        (b'a', true) => (libc::O_CREAT | libc::O_APPEND, c"a+"),
        _ => return None,
    };
    let access = match (mode[0], updates) {
        (_, true) => libc::O_RDWR,
        (b'r', _) => libc::O_RDONLY,
        _ => libc::O_WRONLY,
    };
    let (exclusive, closes) = (if has(b'x') { libc::O_EXCL } else { 0 }, if has(b'e') { libc::O_CLOEXEC } else { 0 });
    Some((access | make | exclusive | closes, plain))
}

/// Makes a stream on a number of ours; the stream closes the number.
pub(super) fn stream_on(fd: c_int, mode: &CStr) -> Outcome<Stream> {
    let functions = CookieFunctions { read, write, seek, close: close_cookie };
    let cookie = ptr::without_provenance_mut(fd as usize);
    // SAFETY: a C string, and functions that live as long as this library.
    let stream = unsafe { fopencookie(cookie, mode.as_ptr(), functions) };
    if stream.is_null() {
        return Err(Failure::new(libc::ENOMEM, "memory for a stream"));
    }
    // SAFETY: it was just made, and no other code has it. In libc only fileno uses the number of such a stream.
    unsafe { (*stream.cast::<Front>()).number = fd };
    if mode == c"a" {
        // A stream that only appends begins at the end, for ftell and C++'s tellp.
        let _ = calls::lseek(fd, 0, libc::SEEK_END);
    }
    Ok(stream)
}

/// setmntent(3): a stream; the functions of its family work on any.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_setmntent(path: *const c_char, mode: *const c_char) -> Stream {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    let stream = unsafe { nvfold_preload_fopen(path, mode) };
    if !stream.is_null() {
        // SAFETY: it was just made; F_SETFD takes any number.
        unsafe { libc::fcntl(number_of(stream), libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    stream
}

/// fopen(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fopen(path: *const c_char, mode: *const c_char) -> Stream {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    match unsafe { look_for((libc::AT_FDCWD, path, last_link(path, mode))) } {
        Place::Host => host!(libc::fopen(path, mode)),
        Place::HostAt(path) => host!(libc::fopen(path.as_ptr(), mode)),
        Place::Refused(failure) => answer_or("fopen", ptr::null_mut(), || Err(failure)),
        Place::Device(path) => answer_or("fopen", ptr::null_mut(), || {
            let (flags, mode) = checked(mode)?;
            let fd = open_path(&path, flags, 0o666)?;
            stream_on(fd, mode).inspect_err(|_| drop(numbers::close(fd)))
        }),
    }
}

/// Returns what `open` does with a link at the end of a path for a mode.
///
/// # Safety
///
/// Both are NULL or C strings.
unsafe fn last_link(path: *const c_char, mode: *const c_char) -> LastLink {
    // SAFETY: the caller's contract.
    unsafe { calls::last_link(path, checked(mode).map_or(0, |(flags, _)| flags)) }
}

fn checked(mode: *const c_char) -> Outcome<(c_int, &'static CStr)> {
    // SAFETY: not NULL, so it is the program's C string.
    let parsed = (!mode.is_null()).then(|| parse(unsafe { CStr::from_ptr(mode) }.to_bytes())).flatten();
    parsed.ok_or_else(|| Failure::invalid("the mode is none of fopen"))
}

/// fdopen(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fdopen(fd: c_int, mode: *const c_char) -> Stream {
    if !numbers::is_ours(fd) {
        return host!(libc::fdopen(fd, mode));
    }
    answer_or("fdopen", ptr::null_mut(), || {
        let (flags, mode) = checked(mode)?;
        let file = numbers::get(fd)?;
        if flags & libc::O_ACCMODE != libc::O_WRONLY {
            file.open.check_reads().map_err(|failure| Failure { errno: libc::EINVAL, ..failure })?;
        }
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            file.open.check_writes().map_err(|failure| Failure { errno: libc::EINVAL, ..failure })?;
        }
        if flags & libc::O_APPEND != 0 {
            file.open.set_appends(true);
        }
        stream_on(fd, mode)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fopen_mode_strings_give_the_right_open_flags() {
        assert_eq!(parse(b"r"), Some((libc::O_RDONLY, c"r")));
        assert_eq!(parse(b"rb+"), Some((libc::O_RDWR, c"r+")));
        assert_eq!(
            parse(b"wxe"),
            Some((libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL | libc::O_CLOEXEC, c"w"))
        );
        assert_eq!(parse(b"a+"), Some((libc::O_RDWR | libc::O_CREAT | libc::O_APPEND, c"a+")));
        assert_eq!(parse(b"r,ccs=+x"), Some((libc::O_RDONLY, c"r")));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"q"), None);
    }
}
