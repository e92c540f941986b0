//! The layout of libc's streams, and which streams are ours.

use crate::numbers;
use std::ffi::{c_char, c_int, c_void};

/// The first fields of glibc's `struct _IO_FILE`.
#[repr(C)]
pub(super) struct Front {
    flags: c_int,
    pub read_at: *mut c_char,
    pub read_end: *mut c_char,
    read_base: *mut c_char,
    pub write_base: *mut c_char,
    pub write_at: *mut c_char,
    pub write_end: *mut c_char,
    pub buffer: [*mut c_char; 2],
    saved: [*mut c_char; 3],
    markers: *mut c_void,
    chain: *mut c_void,
    pub number: c_int,
}

const _: () = assert!(std::mem::offset_of!(Front, write_at) == 40 && std::mem::offset_of!(Front, number) == 112);

/// `FILE *`.
pub(super) type Stream = *mut libc::FILE;

/// Returns the descriptor number of any stream.
///
/// # Safety
///
/// The stream is open.
pub(super) unsafe fn number_of(stream: Stream) -> c_int {
    // SAFETY: the caller's contract; every stream of libc begins with these fields.
    unsafe { (*stream.cast::<Front>()).number }
}

/// Returns whether a stream is on a file of ours.
///
/// # Safety
///
/// The stream is open, or NULL.
pub(super) unsafe fn is_ours(stream: Stream) -> bool {
    // SAFETY: the caller's contract.
    !stream.is_null() && numbers::is_ours(unsafe { number_of(stream) })
}

/// Asks whether a stream is on a file of ours (`calls::asks`).
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_asks_stream(stream: Stream) -> bool {
    // SAFETY: the argument is the program's, under the contract of the libc function.
    unsafe { is_ours(stream) }
}
