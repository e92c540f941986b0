//! Recording of what stdio copies between the program and its buffers, where no memcpy is seen.

use super::front::{Front, Stream, is_ours, number_of};
use crate::calls::host;
use crate::{mounted, numbers};
use nvfold_c::causality;
use nvfold_c::failure::set_errno;
use std::ffi::{c_char, c_int, c_void};

/// Bytes of a buffer that libc has not allocated yet.
const USUAL_BUFFER_BYTES: usize = 4096;

/// Records that bytes a stream gave to the program came from the file, from the stream's previous position on.
///
/// # Safety
///
/// The stream is open, and has filled the buffer.
unsafe fn note_read(stream: Stream, buffer: *const c_void, length: usize) {
    if mounted::is_active() {
        // SAFETY: the caller's contract; every stream of libc begins with these fields. Only addresses are read.
        let (fd, at, end) = unsafe {
            let front = stream.cast::<Front>();
            (number_of(stream), (*front).read_at.addr(), (*front).read_end.addr())
        };
        return mounted::stream_read(fd, buffer, length, end.saturating_sub(at));
    }
    let before = crate::answer::errno();
    // SAFETY: the caller's contract.
    let (fd, position) = unsafe { (number_of(stream), libc::ftello(stream)) };
    if let Ok(file) = numbers::get(fd)
        && file.open.followed.is_some()
        && let Ok(start) = u64::try_from(position.saturating_sub(length as libc::off_t))
    {
        causality::note_read(buffer.addr(), length, file.open.followed.as_deref(), start);
    }
    set_errno(before);
}

/// Returns whether the bytes that a stream returns are to be recorded.
///
/// # Safety
///
/// The stream is open, or NULL.
unsafe fn is_read_from(stream: Stream) -> bool {
    // SAFETY: the caller's contract.
    let is_ours = || causality::has_sources() && unsafe { is_ours(stream) } && !crate::process::is_not_owner();
    (mounted::is_active() && !stream.is_null()) || is_ours()
}

/// Returns the unwritten content of a stream: the address of its buffer, how much of it is used, and how many bytes
/// are free.
///
/// # Safety
///
/// The stream is open.
unsafe fn written_buffer(stream: Stream) -> (usize, usize, usize) {
    let front = stream.cast::<Front>();
    // SAFETY: the caller's contract; every stream of libc begins with these fields. Only addresses are read.
    let (base, at, end) = unsafe { ((*front).write_base.addr(), (*front).write_at.addr(), (*front).write_end.addr()) };
    (base, at.saturating_sub(base), end.saturating_sub(at))
}

/// Returns how many of `length` bytes libc writes at once when the buffer has no room for them all. It fills the
/// buffer, and writes what follows in whole buffers; the rest stays in the buffer. (Of two hints that overlap the
/// newer one counts.)
///
/// # Safety
///
/// The stream is open.
unsafe fn written_at_once(stream: Stream, room: usize, length: usize) -> usize {
    let front = stream.cast::<Front>();
    // SAFETY: the caller's contract; every stream of libc begins with these fields. Only addresses are read.
    let [start, end] = unsafe { (*front).buffer }.map(|address| address.addr());
    let block = if start == 0 { USUAL_BUFFER_BYTES } else { end.saturating_sub(start).max(1) };
    let left = length - room;
    // For short buffers libc writes no whole blocks.
    room + if block >= 128 { left - left % block } else { left }
}

/// Sends hints before the buffer of a stream on a mount is written, and then `length` bytes of the program.
///
/// # Safety
///
/// The stream is open, or NULL.
unsafe fn hint(stream: Stream, buffer: usize, length: usize) {
    if mounted::is_active() && !stream.is_null() {
        // SAFETY: the caller's contract.
        let (fd, (base, held, _)) = unsafe { (number_of(stream), written_buffer(stream)) };
        mounted::stream_writing(fd, (base, held), (buffer, length));
    }
}

/// As `noting_write`, for a stream on a mount. The bytes that stay in its buffer are recorded as copied there. A hint
/// is sent if the buffer is full or absent, because libc then writes.
///
/// # Safety
///
/// As for `noting_write`.
unsafe fn noting_mounted_write<T>(
    stream: Stream,
    buffer: *const c_void,
    length: usize,
    write: impl FnOnce() -> T,
) -> T {
    // SAFETY: the caller's contract.
    let (base, held, room) = unsafe { written_buffer(stream) };
    if length <= room {
        causality::try_note_copy(base + held, buffer.addr(), length);
        return write();
    }
    // SAFETY: the caller's contract.
    unsafe { hint(stream, buffer.addr(), written_at_once(stream, room, length)) };
    let answer = write();
    // SAFETY: the caller's contract.
    let (base, held, _) = unsafe { written_buffer(stream) };
    let tail = held.min(length);
    causality::try_note_copy(base, buffer.addr() + length - tail, tail);
    answer
}

/// Lets libc write bytes to a stream, and records them as copied to its buffer. The bytes that fit are recorded
/// before, because the buffer may be written meanwhile; the bytes that are in it afterwards are recorded then.
///
/// # Safety
///
/// The stream is open, and the bytes are readable.
unsafe fn noting_write<T>(stream: Stream, buffer: *const c_void, length: usize, write: impl FnOnce() -> T) -> T {
    if mounted::is_active() && causality::has_sources() && !stream.is_null() {
        // SAFETY: the caller's contract.
        return unsafe { noting_mounted_write(stream, buffer, length, write) };
    }
    // SAFETY: the caller's contract.
    if !causality::has_sources() || unsafe { !is_ours(stream) } || crate::process::is_not_owner() {
        return write();
    }
    let front = stream.cast::<Front>();
    // SAFETY: the caller's contract; every stream of libc begins with these fields. Only addresses are read.
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

/// Lets the next library read, and records what came.
///
/// # Safety
///
/// The stream is open, and `read` fills the buffer with as many elements of `size` bytes as it returns.
unsafe fn reading(buffer: *mut c_void, size: usize, stream: Stream, read: impl FnOnce() -> usize) -> usize {
    let read = read();
    // SAFETY: the caller's contract.
    unsafe {
        if read > 0 && is_read_from(stream) {
            note_read(stream, buffer, read * size);
        }
    }
    read
}

/// As `reading`, of a line.
///
/// # Safety
///
/// The stream is open, and `read` puts a string into the buffer, or returns NULL.
unsafe fn reading_line(buffer: *mut c_char, stream: Stream, read: impl FnOnce() -> *mut c_char) -> *mut c_char {
    let line = read();
    // SAFETY: the caller's contract.
    unsafe {
        if !line.is_null() && is_read_from(stream) {
            note_read(stream, buffer.cast(), libc::strlen(buffer));
        }
    }
    line
}

macro_rules! reads {
    ($($name:ident $checked:ident = $real:ident $real_checked:ident;)*) => {$(
        #[doc = concat!(stringify!($real), "(3)")]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(buffer: *mut c_void, size: usize, count: usize, stream: Stream) -> usize {
            // SAFETY: the arguments are the program's, under the contract of the libc function.
            unsafe {
                reading(buffer, size, stream, || host!($real(buffer, size, count, stream)))
            }
        }

        #[doc = concat!("`", stringify!($real), "` of programs that were compiled with checks.")]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $checked(
            buffer: *mut c_void, room: usize, size: usize, count: usize, stream: Stream,
        ) -> usize {
            // SAFETY: the arguments are the program's, under the contract of the libc function.
            unsafe {
                reading(buffer, size, stream, || host!($real_checked(buffer, room, size, count, stream)))
            }
        }
    )*};
}

macro_rules! lines {
    ($($name:ident $checked:ident = $real:ident $real_checked:ident;)*) => {$(
        #[doc = concat!(stringify!($real), "(3)")]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(buffer: *mut c_char, size: c_int, stream: Stream) -> *mut c_char {
            // SAFETY: the arguments are the program's, under the contract of the libc function.
            unsafe {
                reading_line(buffer, stream, || host!($real(buffer, size, stream)))
            }
        }

        #[doc = concat!("`", stringify!($real), "` of programs that were compiled with checks.")]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $checked(
            buffer: *mut c_char, room: usize, size: c_int, stream: Stream,
        ) -> *mut c_char {
            // SAFETY: the arguments are the program's, under the contract of the libc function.
            unsafe { reading_line(buffer, stream, || host!($real_checked(buffer, room, size, stream))) }
        }
    )*};
}

macro_rules! writes {
    ($($name:ident = $real:ident;)*) => {$(
        #[doc = concat!(stringify!($real), "(3)")]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(buffer: *const c_void, size: usize, count: usize, stream: Stream) -> usize {
            let length = size.saturating_mul(count);
            // SAFETY: the arguments are the program's, under the contract of the libc function.
            unsafe { noting_write(stream, buffer, length, || host!($real(buffer, size, count, stream))) }
        }
    )*};
}

macro_rules! puts {
    ($($name:ident = $real:ident;)*) => {$(
        #[doc = concat!(stringify!($real), "(3)")]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(text: *const c_char, stream: Stream) -> c_int {
            // SAFETY: the arguments are the program's, under the contract of the libc function.
            unsafe {
                let length = if causality::has_sources() { libc::strlen(text) } else { 0 };
                noting_write(stream, text.cast(), length, || host!($real(text, stream)))
            }
        }
    )*};
}

use libc::{fgets, fputs, fread, fwrite};

unsafe extern "C" {
    fn __fread_chk(buffer: *mut c_void, room: usize, size: usize, count: usize, stream: Stream) -> usize;
    fn __fread_unlocked_chk(buffer: *mut c_void, room: usize, size: usize, count: usize, stream: Stream) -> usize;
    fn __fgets_chk(buffer: *mut c_char, room: usize, size: c_int, stream: Stream) -> *mut c_char;
    fn __fgets_unlocked_chk(buffer: *mut c_char, room: usize, size: c_int, stream: Stream) -> *mut c_char;
    fn getline(line: *mut *mut c_char, room: *mut usize, stream: Stream) -> isize;
    fn __getdelim(line: *mut *mut c_char, room: *mut usize, delimiter: c_int, stream: Stream) -> isize;
    fn fread_unlocked(buffer: *mut c_void, size: usize, count: usize, stream: Stream) -> usize;
    fn fgets_unlocked(buffer: *mut c_char, size: c_int, stream: Stream) -> *mut c_char;
    fn fwrite_unlocked(buffer: *const c_void, size: usize, count: usize, stream: Stream) -> usize;
    fn fputs_unlocked(text: *const c_char, stream: Stream) -> c_int;
    fn fflush_unlocked(stream: Stream) -> c_int;
    fn getdelim(line: *mut *mut c_char, room: *mut usize, delimiter: c_int, stream: Stream) -> isize;
}

reads! {
    nvfold_preload_fread nvfold_preload_fread_chk = fread __fread_chk;
    nvfold_preload_fread_unlocked nvfold_preload_fread_unlocked_chk = fread_unlocked __fread_unlocked_chk;
}
lines! {
    nvfold_preload_fgets nvfold_preload_fgets_chk = fgets __fgets_chk;
    nvfold_preload_fgets_unlocked nvfold_preload_fgets_unlocked_chk = fgets_unlocked __fgets_unlocked_chk;
}
writes! {
    nvfold_preload_fwrite = fwrite;
    nvfold_preload_fwrite_unlocked = fwrite_unlocked;
}
puts! {
    nvfold_preload_fputs = fputs;
    nvfold_preload_fputs_unlocked = fputs_unlocked;
}

/// As `reading`, of a line for which memory is allocated.
///
/// # Safety
///
/// The stream is open, and `read` puts as many bytes at `line` as it returns.
unsafe fn allocated(line: *mut *mut c_char, stream: Stream, read: impl FnOnce() -> isize) -> isize {
    let length = read();
    // SAFETY: the caller's contract.
    unsafe {
        if length > 0 && is_read_from(stream) {
            note_read(stream, (*line).cast(), length as usize);
        }
    }
    length
}

/// getdelim(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_getdelim(
    line: *mut *mut c_char,
    room: *mut usize,
    delimiter: c_int,
    stream: Stream,
) -> isize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { allocated(line, stream, || host!(getdelim(line, room, delimiter, stream))) }
}

/// getdelim(3) by its other name
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_other_getdelim(
    line: *mut *mut c_char,
    room: *mut usize,
    delimiter: c_int,
    stream: Stream,
) -> isize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { allocated(line, stream, || host!(__getdelim(line, room, delimiter, stream))) }
}

/// getline(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_getline(
    line: *mut *mut c_char,
    room: *mut usize,
    stream: Stream,
) -> isize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { allocated(line, stream, || host!(getline(line, room, stream))) }
}

/// fflush(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fflush(stream: Stream) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        hint(stream, 0, 0);
        host!(libc::fflush(stream))
    }
}

/// fflush_unlocked(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fflush_unlocked(stream: Stream) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        hint(stream, 0, 0);
        host!(fflush_unlocked(stream))
    }
}

/// fclose(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fclose(stream: Stream) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        hint(stream, 0, 0);
        host!(libc::fclose(stream))
    }
}
