//! stdio on files of ours.
//!
//! The problem: stdio is within libc, and reads and writes by calls that no interposition sees. The idea: `fopencookie` makes a
//! stream of libc's own that calls us to read, write, seek and close, so every function of stdio works on it as it is. The
//! stream is told its number, a placeholder, so `fileno` tells it too, and C++ streams, which read and write by that, come to us.
//!
//! ```text
//! fopen   open our file -> number 5 -> fopencookie(5) -> the stream's number := 5
//! fread   libc: read(cookie 5) into the stream's buffer, from there to the program's: noted here, by the stream's position
//! fwrite  libc: from the program's memory to the stream's buffer: noted here as a copy, before the buffer is written
//! ```
//!
//! stdin, stdout and stderr are streams that libc makes on numbers 0 to 2, which it reads and writes by itself. When one of these
//! numbers becomes a file of ours (dup2, freopen) the variable gets a stream of ours, and the old one when it is host's again.
//!
//! The structure behind `FILE` is public (`bits/types/struct_FILE.h`), as macros of old programs look into it.

use crate::answer::answer_or;
use crate::calls::{self, close, host, open_path};
use crate::numbers;
use crate::prefix::{Place, look};
use crate::start;
use nvfold_c::causality;
use nvfold_c::failure::{Failure, Outcome, set_errno};
use parking_lot::Mutex;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// The front of glibc's `struct _IO_FILE`.
#[repr(C)]
struct Front {
    flags: c_int,
    read: [*mut c_char; 3],
    write_base: *mut c_char,
    write_at: *mut c_char,
    write_end: *mut c_char,
    buffer: [*mut c_char; 2],
    saved: [*mut c_char; 3],
    markers: *mut c_void,
    chain: *mut c_void,
    number: c_int,
}

const _: () = assert!(std::mem::offset_of!(Front, write_at) == 40 && std::mem::offset_of!(Front, number) == 112);

type Stream = *mut libc::FILE;

#[repr(C)]
struct CookieFunctions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize,
    seek: unsafe extern "C" fn(*mut c_void, *mut libc::off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> Stream;
    static mut stdin: Stream;
    static mut stdout: Stream;
    static mut stderr: Stream;
}

unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, length: usize) -> isize {
    // SAFETY: the stream's buffer.
    unsafe { calls::read(cookie.addr() as c_int, buffer.cast(), length) }
}

/// 0 for a failure, as fopencookie has it.
unsafe extern "C" fn write(cookie: *mut c_void, buffer: *const c_char, length: usize) -> isize {
    // SAFETY: the stream's buffer, or the program's.
    unsafe { calls::write(cookie.addr() as c_int, buffer.cast(), length) }.max(0)
}

unsafe extern "C" fn seek(cookie: *mut c_void, position: *mut libc::off64_t, whence: c_int) -> c_int {
    // SAFETY: libc passes a position, to be read and to be filled.
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

/// The number of a stream, of whatever kind.
///
/// # Safety
///
/// A stream that is open.
unsafe fn number_of(stream: Stream) -> c_int {
    // SAFETY: as the caller says; every stream of libc's begins so.
    unsafe { (*stream.cast::<Front>()).number }
}

/// Whether a stream is on a file of ours.
///
/// # Safety
///
/// A stream that is open, or NULL.
unsafe fn is_ours(stream: Stream) -> bool {
    // SAFETY: as the caller says.
    !stream.is_null() && numbers::is_ours(unsafe { number_of(stream) })
}

/// What a mode of fopen means: flags of open, and the mode without what only open must know. EINVAL.
fn parse(mode: &[u8]) -> Option<(c_int, &'static CStr)> {
    let rest = mode.get(1..)?;
    // What follows a comma is about wide characters.
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

/// A stream on a number of ours, which closes it.
fn stream_on(fd: c_int, mode: &CStr) -> Outcome<Stream> {
    let functions = CookieFunctions { read, write, seek, close: close_cookie };
    let cookie = ptr::without_provenance_mut(fd as usize);
    // SAFETY: a string, and functions that are there as long as this library.
    let stream = unsafe { fopencookie(cookie, mode.as_ptr(), functions) };
    if stream.is_null() {
        return Err(Failure::new(libc::ENOMEM, "memory for a stream"));
    }
    // SAFETY: it was just made, and nobody else has it. Nothing in libc uses the number of such a stream but fileno.
    unsafe { (*stream.cast::<Front>()).number = fd };
    Ok(stream)
}

/// fopen(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_fopen(path: *const c_char, mode: *const c_char) -> Stream {
    // SAFETY: what the program passed.
    match unsafe { look(libc::AT_FDCWD, path) } {
        Place::Host => host!(libc::fopen(path, mode)),
        Place::HostAt(path) => host!(libc::fopen(path.as_ptr(), mode)),
        Place::Nowhere => answer_or("fopen", ptr::null_mut(), || Err(start::no_device())),
        Place::Device(path) => answer_or("fopen", ptr::null_mut(), || {
            let (flags, mode) = checked(mode)?;
            let fd = open_path(&path, flags, 0o666)?;
            stream_on(fd, mode).inspect_err(|_| drop(numbers::close(fd)))
        }),
    }
}

fn checked(mode: *const c_char) -> Outcome<(c_int, &'static CStr)> {
    // SAFETY: not NULL, so it is the program's string.
    let parsed = (!mode.is_null()).then(|| parse(unsafe { CStr::from_ptr(mode) }.to_bytes())).flatten();
    parsed.ok_or_else(|| Failure::invalid("the mode is none of fopen"))
}

/// fdopen(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_fdopen(fd: c_int, mode: *const c_char) -> Stream {
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

/// freopen(3): where a file of ours comes or goes, another stream than the one that was passed, which is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_freopen(path: *const c_char, mode: *const c_char, stream: Stream) -> Stream {
    // SAFETY: what the program passed.
    unsafe {
        let leads_to_host = matches!(look(libc::AT_FDCWD, path), Place::Host | Place::HostAt(_));
        if leads_to_host && !is_ours(stream) {
            return libc::freopen(path, mode, stream);
        }
        if path.is_null() {
            set_errno(libc::EBADF);
            return ptr::null_mut();
        }
        let standard = if stream.is_null() { -1 } else { number_of(stream) };
        if !(0..=2).contains(&standard) {
            libc::fclose(stream);
            return nvfold_preload_fopen(path, mode);
        }
        libc::fflush(stream);
        let opened = nvfold_preload_fopen(path, mode);
        if opened.is_null() {
            return opened;
        }
        // The standard number becomes that file, and with it the variable.
        calls::dup2(number_of(opened), standard);
        libc::fclose(opened);
        *variable(standard)
    }
}

/// The variable of a standard stream.
fn variable(number: c_int) -> *mut Stream {
    match number {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        _ => &raw mut stderr,
    }
}

/// The streams that libc made, while others stand in their place; addresses.
static OF_LIBC: Mutex<[usize; 3]> = Mutex::new([0; 3]);

/// A number has become another file by dup2: those of the standard streams may need another stream.
pub fn number_changed(fd: c_int) {
    if !(0..=2).contains(&fd) {
        return;
    }
    let variable = variable(fd);
    let mut of_libc = OF_LIBC.lock();
    let kept = &mut of_libc[fd as usize];
    // SAFETY: libc's variables; a program that changes a standard number does not use its stream in another thread at that moment.
    unsafe {
        let before = *variable;
        if *kept != 0 {
            // What it holds goes where the number leads now, as from any stream.
            libc::fflush(before);
        }
        if numbers::is_ours(fd) && *kept == 0 {
            let mode = if fd == 0 { c"r" } else { c"w" };
            if let Ok(stream) = stream_on(fd, mode) {
                if fd == 2 {
                    libc::setvbuf(stream, ptr::null_mut(), libc::_IONBF, 0);
                }
                *kept = before.expose_provenance();
                *variable = stream;
            }
        } else if !numbers::is_ours(fd) && *kept != 0 {
            *variable = ptr::with_exposed_provenance_mut(*kept);
            *kept = 0;
        }
    }
}

/// Bytes that a stream gave to the program came from the file, from where the stream was before.
///
/// # Safety
///
/// A stream that is open, and what it filled.
unsafe fn note_read(stream: Stream, buffer: *const c_void, length: usize) {
    let before = crate::answer::errno();
    // SAFETY: as the caller says.
    let (fd, position) = unsafe { (number_of(stream), libc::ftello(stream)) };
    if let Ok(file) = numbers::get(fd)
        && file.open.followed.is_some()
        && let Ok(start) = u64::try_from(position.saturating_sub(length as libc::off_t))
    {
        causality::note_read(buffer.addr(), length, file.open.followed.as_deref(), start);
    }
    set_errno(before);
}

/// Whether what a stream gives is to be noted.
///
/// # Safety
///
/// A stream that is open, or NULL.
unsafe fn is_read_from(stream: Stream) -> bool {
    // SAFETY: as the caller says.
    causality::has_sources() && unsafe { is_ours(stream) } && !crate::process::is_stranger()
}

/// Lets libc write bytes to a stream, and notes them as copied to its buffer: before, those that there is room for, since the buffer
/// may be written meanwhile; afterwards, those that lie in it since.
///
/// # Safety
///
/// A stream that is open, and bytes that can be read.
unsafe fn noting_write<T>(stream: Stream, buffer: *const c_void, length: usize, write: impl FnOnce() -> T) -> T {
    // SAFETY: as the caller says.
    if !causality::has_sources() || unsafe { !is_ours(stream) } || crate::process::is_stranger() {
        return write();
    }
    let front = stream.cast::<Front>();
    // SAFETY: as the caller says; every stream of libc's begins so. What is read are addresses alone.
    let (at, end) = unsafe { ((*front).write_at.addr(), (*front).write_end.addr()) };
    let fits = end.saturating_sub(at).min(length);
    causality::note_copy(at, buffer.addr(), fits);
    let answer = write();
    // SAFETY: as above.
    let (base, now) = unsafe { ((*front).write_base.addr(), (*front).write_at.addr()) };
    if now.wrapping_sub(at) != length {
        let tail = now.saturating_sub(base).min(length);
        causality::note_copy(base, buffer.addr() + length - tail, tail);
    }
    answer
}

macro_rules! reads {
    ($($name:ident $checked:ident = $real:ident;)*) => {$(
        #[doc = concat!(stringify!($real), "(3)")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(buffer: *mut c_void, size: usize, count: usize, stream: Stream) -> usize {
            // SAFETY: what the program passed.
            unsafe {
                let read = $real(buffer, size, count, stream);
                if read > 0 && is_read_from(stream) {
                    note_read(stream, buffer, read * size);
                }
                read
            }
        }

        #[doc = concat!("`", stringify!($real), "` of programs that were compiled with checks.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $checked(
            buffer: *mut c_void, room: usize, size: usize, count: usize, stream: Stream,
        ) -> usize {
            calls::check_room(size.saturating_mul(count), room);
            // SAFETY: what the program passed.
            unsafe { $name(buffer, size, count, stream) }
        }
    )*};
}

macro_rules! lines {
    ($($name:ident $checked:ident = $real:ident;)*) => {$(
        #[doc = concat!(stringify!($real), "(3)")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(buffer: *mut c_char, size: c_int, stream: Stream) -> *mut c_char {
            // SAFETY: what the program passed.
            unsafe {
                let line = $real(buffer, size, stream);
                if !line.is_null() && is_read_from(stream) {
                    note_read(stream, buffer.cast(), libc::strlen(buffer));
                }
                line
            }
        }

        #[doc = concat!("`", stringify!($real), "` of programs that were compiled with checks.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $checked(
            buffer: *mut c_char, room: usize, size: c_int, stream: Stream,
        ) -> *mut c_char {
            calls::check_room(size.max(0) as usize, room);
            // SAFETY: what the program passed.
            unsafe { $name(buffer, size, stream) }
        }
    )*};
}

macro_rules! writes {
    ($($name:ident = $real:ident;)*) => {$(
        #[doc = concat!(stringify!($real), "(3)")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(buffer: *const c_void, size: usize, count: usize, stream: Stream) -> usize {
            let length = size.saturating_mul(count);
            // SAFETY: what the program passed.
            unsafe { noting_write(stream, buffer, length, || $real(buffer, size, count, stream)) }
        }
    )*};
}

macro_rules! puts {
    ($($name:ident = $real:ident;)*) => {$(
        #[doc = concat!(stringify!($real), "(3)")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(text: *const c_char, stream: Stream) -> c_int {
            // SAFETY: what the program passed.
            unsafe {
                let length = if causality::has_sources() { libc::strlen(text) } else { 0 };
                noting_write(stream, text.cast(), length, || $real(text, stream))
            }
        }
    )*};
}

use libc::{fgets, fputs, fread, fwrite};

unsafe extern "C" {
    fn fread_unlocked(buffer: *mut c_void, size: usize, count: usize, stream: Stream) -> usize;
    fn fgets_unlocked(buffer: *mut c_char, size: c_int, stream: Stream) -> *mut c_char;
    fn fwrite_unlocked(buffer: *const c_void, size: usize, count: usize, stream: Stream) -> usize;
    fn fputs_unlocked(text: *const c_char, stream: Stream) -> c_int;
    fn getdelim(line: *mut *mut c_char, room: *mut usize, delimiter: c_int, stream: Stream) -> isize;
}

reads! {
    nvfold_preload_fread nvfold_preload_fread_chk = fread;
    nvfold_preload_fread_unlocked nvfold_preload_fread_unlocked_chk = fread_unlocked;
}
lines! {
    nvfold_preload_fgets nvfold_preload_fgets_chk = fgets;
    nvfold_preload_fgets_unlocked nvfold_preload_fgets_unlocked_chk = fgets_unlocked;
}
writes! {
    nvfold_preload_fwrite = fwrite;
    nvfold_preload_fwrite_unlocked = fwrite_unlocked;
}
puts! {
    nvfold_preload_fputs = fputs;
    nvfold_preload_fputs_unlocked = fputs_unlocked;
}

/// getdelim(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_getdelim(
    line: *mut *mut c_char,
    room: *mut usize,
    delimiter: c_int,
    stream: Stream,
) -> isize {
    // SAFETY: what the program passed.
    unsafe {
        let length = getdelim(line, room, delimiter, stream);
        if length > 0 && is_read_from(stream) {
            note_read(stream, (*line).cast(), length as usize);
        }
        length
    }
}

/// getline(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_getline(line: *mut *mut c_char, room: *mut usize, stream: Stream) -> isize {
    // SAFETY: what the program passed.
    unsafe { nvfold_preload_getdelim(line, room, b'\n'.into(), stream) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_what_fopen_says() {
        assert_eq!(parse(b"r"), Some((libc::O_RDONLY, c"r")));
        assert_eq!(parse(b"rb+"), Some((libc::O_RDWR, c"r+")));
        assert_eq!(parse(b"wxe"), Some((libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL | libc::O_CLOEXEC, c"w")));
        assert_eq!(parse(b"a+"), Some((libc::O_RDWR | libc::O_CREAT | libc::O_APPEND, c"a+")));
        assert_eq!(parse(b"r,ccs=+x"), Some((libc::O_RDONLY, c"r")));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"q"), None);
    }
}
