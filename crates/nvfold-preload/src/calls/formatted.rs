//! dprintf and its relatives: text that libc makes and writes to a descriptor of ours, by a call that no interposition
//! sees. (`scripts/preload-library.sh` makes a `va_list` of a variable number of arguments.)

use super::transfers::write;
use nvfold_c::failure::set_errno;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// `va_list`: on x86-64 an array, which is passed as a pointer.
type Arguments = *mut c_void;

unsafe extern "C" {
    fn backtrace_symbols(addresses: *const *mut c_void, count: c_int) -> *mut *mut c_char;
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: Arguments) -> c_int;
    fn __vasprintf_chk(text: *mut *mut c_char, flag: c_int, format: *const c_char, arguments: Arguments) -> c_int;
}

/// Writes the text that `format` makes, as long as the device takes it.
///
/// # Safety
///
/// If `format` returns a number that is not below 0, it has made a text of that length by malloc.
unsafe fn print(fd: c_int, format: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = ptr::null_mut();
    let Ok(length) = usize::try_from(format(&raw mut text)) else { return -1 };
    let mut done = 0;
    while done < length {
        // SAFETY: the text has `length` bytes.
        let written = unsafe { write(fd, text.add(done).cast(), length - done) };
        match usize::try_from(written) {
            Ok(written) if written > 0 => done += written,
            _ => break,
        }
    }
    let errno = crate::answer::errno();
    // SAFETY: malloc made it.
    unsafe { libc::free(text.cast()) };
    set_errno(errno);
    if done == length { length as c_int } else { -1 }
}

/// vdprintf(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_vdprintf(
    fd: c_int,
    format: *const c_char,
    arguments: Arguments,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { print(fd, |text| vasprintf(text, format, arguments)) }
}

/// Replaces `vdprintf` of programs compiled with checks.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: Arguments,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { print(fd, |text| __vasprintf_chk(text, flag, format, arguments)) }
}

/// backtrace_symbols_fd(3): a line for each address.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_backtrace_symbols_fd(
    addresses: *const *mut c_void,
    count: c_int,
    fd: c_int,
) {
    // SAFETY: the addresses are the program's; libc returns as many strings, in memory to be freed.
    unsafe {
        let lines = backtrace_symbols(addresses, count);
        if lines.is_null() {
            return;
        }
        for at in 0..count.max(0) as usize {
            let line = [CStr::from_ptr(*lines.add(at)).to_bytes(), b"\n"].concat();
            write(fd, line.as_ptr().cast(), line.len());
        }
        libc::free(lines.cast());
    }
}
