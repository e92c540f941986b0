//! Copying and comparing memory, where it is known which bytes came from a file.

use crate::caller::{InBytes, OutBytes};
use crate::failure::{answer, call};
use crate::transfers;
use std::ffi::{c_int, c_void};

/// Copies memory, as memmove(3): the two may overlap, or be the same. Returns `target`; NULL for NULL (EFAULT) and for more
/// than SSIZE_MAX bytes (EINVAL), when nothing is copied.
///
/// On a device that follows origins (policy=icid, icid+inline or icid+deext) it is known then that the copy comes from where
/// its source came from: nvfold_read and nvfold_mmap, and copies of that. When it is written by nvfold_write or one of its
/// kind, bytes that are still those of the file are shared with it instead of stored. What the program changes by other means
/// is found by comparing. What was read through a descriptor is followed until that is closed, what was mapped until it
/// is unmapped.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_memcpy(mut target: OutBytes<'_>, source: InBytes<'_>, length: usize) -> *mut c_void {
    call("nvfold_memcpy", || transfers::copy(&mut target, &source, length).map(|()| target.pointer()))
}

/// The same as nvfold_memcpy.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_memmove(mut target: OutBytes<'_>, source: InBytes<'_>, length: usize) -> *mut c_void {
    call("nvfold_memmove", || transfers::copy(&mut target, &source, length).map(|()| target.pointer()))
}

/// Compares memory, as memcmp(3): below, equal to or above 0. INT_MIN, with errno, for NULL (EFAULT) and for more than
/// SSIZE_MAX bytes (EINVAL): what cannot be compared is not equal.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_memcmp(one: InBytes<'_>, other: InBytes<'_>, length: usize) -> c_int {
    compare("nvfold_memcmp", &one, &other, length)
}

pub(super) fn compare(function: &'static str, one: &InBytes<'_>, other: &InBytes<'_>, length: usize) -> c_int {
    answer(function, c_int::MIN, || Ok(one.slice(length)?.cmp(other.slice(length)?) as c_int))
}
