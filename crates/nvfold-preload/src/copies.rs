//! memcpy and related functions: they record the program's copies in the rec-tree.
//!
//! The problem: these are the most called functions of all, from anywhere: signal handlers, allocators, before any
//! constructor. So when nothing is tracked a copy costs one compare with the length, one relaxed load, and the copy.
//! Nothing here allocates or waits: a copy that cannot be recorded at once is not recorded, which costs sharing and
//! never bytes.
//!
//! The copy itself is made by the next library's function of the same name, `next`, whose address the stub passes:
//! libc's functions are tuned for the CPU, and another preloaded library sees what the program calls. Copies that are
//! too short to be recorded do not come here: the stub passes them on.

use nvfold_c::causality;
use std::ffi::{c_char, c_int, c_void};

/// Shorter copies are not recorded: they could save less than the record costs. (scripts/preload-library.sh knows it.)
const NOTED_MIN: usize = 32;

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
type CopyChecked = unsafe extern "C" fn(*mut c_void, *const c_void, usize, usize) -> *mut c_void;
type CopyBack = unsafe extern "C" fn(*const c_void, *mut c_void, usize);
type CopyUntil = unsafe extern "C" fn(*mut c_void, *const c_void, c_int, usize) -> *mut c_void;
type CopyString = unsafe extern "C" fn(*mut c_char, *const c_char) -> *mut c_char;
type CopyStringWith = unsafe extern "C" fn(*mut c_char, *const c_char, usize) -> *mut c_char;
type CopyStringChecked = unsafe extern "C" fn(*mut c_char, *const c_char, usize, usize) -> *mut c_char;
type CopyStringIn = unsafe extern "C" fn(*mut c_char, *const c_char, usize) -> usize;
type CopyStringInChecked = unsafe extern "C" fn(*mut c_char, *const c_char, usize, usize) -> usize;
type Duplicate = unsafe extern "C" fn(*const c_char) -> *mut c_char;
type DuplicateMost = unsafe extern "C" fn(*const c_char, usize) -> *mut c_char;

#[cold]
fn note(target: usize, source: usize, length: usize) {
    causality::try_note_copy(target, source, length);
}

/// Records a copy that was made.
#[inline(always)]
fn made<T, S>(target: *const T, source: *const S, length: usize) {
    if length >= NOTED_MIN {
        note(target.addr(), source.addr(), length);
    }
}

/// Lets `copy` copy, and records that. It is apart from its callers, so that they are a jump while nothing is tracked.
#[cold]
#[inline(never)]
fn copy_and_note(
    target: *mut c_void,
    source: *const c_void,
    length: usize,
    copy: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    let answer = copy();
    made(target, source, length);
    answer
}

/// memcpy(3), memmove(3) and mempcpy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_memcpy(
    target: *mut c_void,
    source: *const c_void,
    length: usize,
    next: Copy,
) -> *mut c_void {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    let copy = || unsafe { next(target, source, length) };
    if causality::has_sources() { copy_and_note(target, source, length, copy) } else { copy() }
}

/// Replaces `memcpy`, `memmove` and `mempcpy` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_memcpy_chk(
    target: *mut c_void,
    source: *const c_void,
    length: usize,
    room: usize,
    next: CopyChecked,
) -> *mut c_void {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    let copy = || unsafe { next(target, source, length, room) };
    if causality::has_sources() { copy_and_note(target, source, length, copy) } else { copy() }
}

/// bcopy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_bcopy(
    source: *const c_void,
    target: *mut c_void,
    length: usize,
    next: CopyBack,
) {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { next(source, target, length) };
    if causality::has_sources() {
        made(target, source, length);
    }
}

/// memccpy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_memccpy(
    target: *mut c_void,
    source: *const c_void,
    last: c_int,
    most: usize,
    next: CopyUntil,
) -> *mut c_void {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    let end = unsafe { next(target, source, last, most) };
    if causality::has_sources() {
        made(target, source, if end.is_null() { most } else { end.addr() - target.addr() });
    }
    end
}

/// Lets `copy` copy a string, at most `most` bytes of it, and records that; `behind` says whether it goes behind the
/// string that `target` holds.
///
/// # Safety
///
/// `source` is a string or has `most` bytes; `target` is a string if the copy goes behind it.
unsafe fn copy_string<T>(
    target: *mut c_char,
    source: *const c_char,
    most: usize,
    behind: bool,
    copy: impl FnOnce() -> T,
) -> T {
    if !causality::has_sources() {
        return copy();
    }
    // SAFETY: the caller's contract.
    let (start, length) = unsafe {
        let start = if behind { target.wrapping_add(libc::strlen(target)) } else { target };
        (start, libc::strnlen(source, most))
    };
    let answer = copy();
    made(start, source, length);
    answer
}

/// strcpy(3) and stpcpy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strcpy(
    target: *mut c_char,
    source: *const c_char,
    next: CopyString,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { copy_string(target, source, usize::MAX, false, || next(target, source)) }
}

/// strcat(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strcat(
    target: *mut c_char,
    source: *const c_char,
    next: CopyString,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { copy_string(target, source, usize::MAX, true, || next(target, source)) }
}

/// strncpy(3) and stpncpy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strncpy(
    target: *mut c_char,
    source: *const c_char,
    most: usize,
    next: CopyStringWith,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { copy_string(target, source, most, false, || next(target, source, most)) }
}

/// strncat(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strncat(
    target: *mut c_char,
    source: *const c_char,
    most: usize,
    next: CopyStringWith,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { copy_string(target, source, most, true, || next(target, source, most)) }
}

/// strlcpy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strlcpy(
    target: *mut c_char,
    source: *const c_char,
    room: usize,
    next: CopyStringIn,
) -> usize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { copy_string(target, source, room.saturating_sub(1), false, || next(target, source, room)) }
}

/// Replaces `strlcpy` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strlcpy_chk(
    target: *mut c_char,
    source: *const c_char,
    room: usize,
    size: usize,
    next: CopyStringInChecked,
) -> usize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { copy_string(target, source, room.saturating_sub(1), false, || next(target, source, room, size)) }
}

/// Copies a string behind the one in a buffer that has `room` bytes in all; `next` does it.
///
/// # Safety
///
/// The contract of strlcat(3).
unsafe fn append_string(
    target: *mut c_char,
    source: *const c_char,
    room: usize,
    next: impl FnOnce() -> usize,
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let most = room.saturating_sub(libc::strnlen(target, room) + 1);
        copy_string(target, source, most, most > 0, next)
    }
}

/// strlcat(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strlcat(
    target: *mut c_char,
    source: *const c_char,
    room: usize,
    next: CopyStringIn,
) -> usize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { append_string(target, source, room, || next(target, source, room)) }
}

/// Replaces `strlcat` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strlcat_chk(
    target: *mut c_char,
    source: *const c_char,
    room: usize,
    size: usize,
    next: CopyStringInChecked,
) -> usize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { append_string(target, source, room, || next(target, source, room, size)) }
}

/// Replaces `strcpy` and `stpcpy` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strcpy_chk(
    target: *mut c_char,
    source: *const c_char,
    room: usize,
    next: CopyStringWith,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { copy_string(target, source, usize::MAX, false, || next(target, source, room)) }
}

/// Replaces `strcat` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strcat_chk(
    target: *mut c_char,
    source: *const c_char,
    room: usize,
    next: CopyStringWith,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { copy_string(target, source, usize::MAX, true, || next(target, source, room)) }
}

/// Replaces `strncpy` and `stpncpy` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strncpy_chk(
    target: *mut c_char,
    source: *const c_char,
    most: usize,
    room: usize,
    next: CopyStringChecked,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { copy_string(target, source, most, false, || next(target, source, most, room)) }
}

/// Replaces `strncat` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strncat_chk(
    target: *mut c_char,
    source: *const c_char,
    most: usize,
    room: usize,
    next: CopyStringChecked,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { copy_string(target, source, most, true, || next(target, source, most, room)) }
}

/// Records the copy of a string in new memory.
///
/// # Safety
///
/// `copy` is NULL or a string, the beginning of `source`.
unsafe fn duplicated(copy: *mut c_char, source: *const c_char) -> *mut c_char {
    if causality::has_sources() && !copy.is_null() {
        // SAFETY: the caller's contract.
        made(copy, source, unsafe { libc::strlen(copy) });
    }
    copy
}

/// strdup(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strdup(source: *const c_char, next: Duplicate) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { duplicated(next(source), source) }
}

/// strndup(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strndup(
    source: *const c_char,
    most: usize,
    next: DuplicateMost,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { duplicated(next(source, most), source) }
}
