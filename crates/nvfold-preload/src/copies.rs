//! memcpy and related functions: they record the program's copies in the rec-tree.
//!
//! The problem: these are the most called functions of all, from anywhere: signal handlers, allocators, before any
//! constructor. So when nothing is tracked a copy costs one compare with the length, one relaxed load, and the copy.
//! Nothing here allocates or waits: a copy that cannot be recorded at once is not recorded, which costs sharing and
//! never bytes.
//!
//! Short copies are done here. They load everything before they store anything, so source and target may overlap.
//! Long copies go to libc, whose functions are tuned for the CPU. (`libc::memmove` here is libc's: see the crate's
//! page.)

use nvfold_c::causality;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// Shorter copies are not recorded: they could save less than the record costs.
const NOTED_MIN: usize = 32;
/// Longer copies go to libc.
const SHORT_MAX: usize = 128;

unsafe extern "C" {
    fn __chk_fail() -> !;
}

/// Loads one value from the start and one from the end of the source, and stores both: for all lengths from one to
/// two values.
///
/// # Safety
///
/// `length` bytes can be read and written there, at least one `T`, at most two.
#[inline(always)]
unsafe fn both_ends<T: Copy>(target: *mut u8, source: *const u8, length: usize) {
    let behind = length - size_of::<T>();
    // SAFETY: the caller's contract; both values are loaded before one is stored.
    unsafe {
        let (first, last) = (source.cast::<T>().read_unaligned(), source.add(behind).cast::<T>().read_unaligned());
        target.cast::<T>().write_unaligned(first);
        target.add(behind).cast::<T>().write_unaligned(last);
    }
}

type Sixteen = [u64; 2];

/// Copies bytes; the ranges may overlap.
///
/// # Safety
///
/// As for memmove.
#[inline(always)]
unsafe fn copy(target: *mut u8, source: *const u8, length: usize) {
    // SAFETY: the caller's contract; each arm has the length that it needs.
    unsafe {
        if length >= 16 {
            match length {
                16..=32 => both_ends::<Sixteen>(target, source, length),
                33..=64 => both_ends::<[Sixteen; 2]>(target, source, length),
                65..=SHORT_MAX => both_ends::<[Sixteen; 4]>(target, source, length),
                _ => drop(libc::memmove(target.cast(), source.cast(), length)),
            }
            return;
        }
        match length {
            8..16 => both_ends::<u64>(target, source, length),
            4..8 => both_ends::<u32>(target, source, length),
            2..4 => both_ends::<u16>(target, source, length),
            1 => target.write(source.read()),
            _ => {}
        }
    }
}

/// Copies bytes and records the copy.
///
/// # Safety
///
/// As for memmove.
#[cold]
#[inline(never)]
unsafe fn copy_and_note(target: *mut c_void, source: *const c_void, length: usize) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { copy(target.cast(), source.cast(), length) };
    note(target.addr(), source.addr(), length);
    target
}

#[cold]
fn note(target: usize, source: usize, length: usize) {
    causality::try_note_copy(target, source, length);
}

/// Records a copy that was made.
#[inline(always)]
fn made<T, S>(target: *const T, source: *const S, length: usize) {
    if length >= NOTED_MIN && causality::has_sources() {
        note(target.addr(), source.addr(), length);
    }
}

#[inline(always)]
fn check_room(needed: usize, room: usize) {
    if needed > room {
        // SAFETY: it ends the program.
        unsafe { __chk_fail() };
    }
}

/// memcpy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_memcpy(
    target: *mut c_void,
    source: *const c_void,
    length: usize,
) -> *mut c_void {
    if length >= NOTED_MIN && causality::has_sources() {
        // SAFETY: the arguments are the program's, under the contract of the libc function.
        return unsafe { copy_and_note(target, source, length) };
    }
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { copy(target.cast(), source.cast(), length) };
    target
}

/// mempcpy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_mempcpy(
    target: *mut c_void,
    source: *const c_void,
    length: usize,
) -> *mut c_void {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_memcpy(target, source, length) };
    target.wrapping_byte_add(length)
}

/// bcopy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_bcopy(source: *const c_void, target: *mut c_void, length: usize) {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_memcpy(target, source, length) };
}

/// Replaces `memcpy` and `memmove` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_memcpy_chk(
    target: *mut c_void,
    source: *const c_void,
    length: usize,
    room: usize,
) -> *mut c_void {
    check_room(length, room);
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_memcpy(target, source, length) }
}

/// Replaces `mempcpy` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_mempcpy_chk(
    target: *mut c_void,
    source: *const c_void,
    length: usize,
    room: usize,
) -> *mut c_void {
    check_room(length, room);
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_mempcpy(target, source, length) }
}

/// Copies a string and its NUL; returns its length.
///
/// # Safety
///
/// As for strcpy.
unsafe fn copy_string(target: *mut c_char, source: *const c_char) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let length = libc::strlen(source);
        nvfold_preload_memcpy(target.cast(), source.cast(), length + 1);
        length
    }
}

/// strcpy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strcpy(target: *mut c_char, source: *const c_char) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { copy_string(target, source) };
    target
}

/// stpcpy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_stpcpy(target: *mut c_char, source: *const c_char) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    target.wrapping_add(unsafe { copy_string(target, source) })
}

/// strncpy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strncpy(
    target: *mut c_char,
    source: *const c_char,
    most: usize,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        libc::strncpy(target, source, most);
        made(target, source, libc::strnlen(target, most));
    }
    target
}

/// stpncpy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_stpncpy(
    target: *mut c_char,
    source: *const c_char,
    most: usize,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        nvfold_preload_strncpy(target, source, most);
        target.wrapping_add(libc::strnlen(target, most))
    }
}

/// strcat(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strcat(target: *mut c_char, source: *const c_char) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { copy_string(target.add(libc::strlen(target)), source) };
    target
}

/// strncat(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strncat(
    target: *mut c_char,
    source: *const c_char,
    most: usize,
) -> *mut c_char {
    // SAFETY: the arguments are the program's; there is room for the NUL, as strncat asks.
    unsafe {
        let (end, length) = (target.add(libc::strlen(target)), libc::strnlen(source, most));
        nvfold_preload_memcpy(end.cast(), source.cast(), length);
        end.add(length).write(0);
    }
    target
}

/// strndup(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strndup(source: *const c_char, most: usize) -> *mut c_char {
    // SAFETY: the arguments are the program's; the new memory has room for the NUL.
    unsafe {
        let length = libc::strnlen(source, most);
        let made = libc::malloc(length + 1).cast::<c_char>();
        if made.is_null() {
            return ptr::null_mut();
        }
        nvfold_preload_memcpy(made.cast(), source.cast(), length);
        made.add(length).write(0);
        made
    }
}

/// strdup(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strdup(source: *const c_char) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_strndup(source, libc::strlen(source)) }
}

/// Replaces `strcpy` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strcpy_chk(
    target: *mut c_char,
    source: *const c_char,
    room: usize,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        check_room(libc::strlen(source) + 1, room);
        nvfold_preload_strcpy(target, source)
    }
}

/// Replaces `stpcpy` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_stpcpy_chk(
    target: *mut c_char,
    source: *const c_char,
    room: usize,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        check_room(libc::strlen(source) + 1, room);
        nvfold_preload_stpcpy(target, source)
    }
}

/// Replaces `strncpy` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strncpy_chk(
    target: *mut c_char,
    source: *const c_char,
    most: usize,
    room: usize,
) -> *mut c_char {
    check_room(most, room);
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_strncpy(target, source, most) }
}

/// Replaces `stpncpy` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_stpncpy_chk(
    target: *mut c_char,
    source: *const c_char,
    most: usize,
    room: usize,
) -> *mut c_char {
    check_room(most, room);
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_stpncpy(target, source, most) }
}

/// Replaces `strcat` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strcat_chk(
    target: *mut c_char,
    source: *const c_char,
    room: usize,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        check_room(libc::strlen(target) + libc::strlen(source) + 1, room);
        nvfold_preload_strcat(target, source)
    }
}

/// Replaces `strncat` of programs compiled with checks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_strncat_chk(
    target: *mut c_char,
    source: *const c_char,
    most: usize,
    room: usize,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        check_room(libc::strlen(target) + libc::strnlen(source, most) + 1, room);
        nvfold_preload_strncat(target, source, most)
    }
}

/// memccpy(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_memccpy(
    target: *mut c_void,
    source: *const c_void,
    last: c_int,
    most: usize,
) -> *mut c_void {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    let end = unsafe { libc::memccpy(target, source, last, most) };
    made(target, source, if end.is_null() { most } else { end.addr() - target.addr() });
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_whole_and_may_overlap() {
        let fresh: Vec<u8> = (0..600).map(|at| (at % 251) as u8).collect();
        for length in 0..=300 {
            for (from, to) in [(0, 300), (7, 20), (20, 7), (50, 50), (100, 101), (101, 100)] {
                let (mut ours, mut expected) = (fresh.clone(), fresh.clone());
                expected.copy_within(from..from + length, to);
                let memory = ours.as_mut_ptr();
                // SAFETY: both ranges lie within `ours`.
                unsafe { nvfold_preload_memcpy(memory.add(to).cast(), memory.add(from).cast(), length) };
                assert_eq!(ours, expected, "{length} bytes from {from} to {to}");
            }
        }
    }
}
