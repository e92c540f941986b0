//! Calls that a device cannot serve, because they need the kernel: each has an answer, and none reaches a file of the
//! host that the prefix hides.

use nvfold_c::failure::set_errno;
use std::ffi::{c_int, c_void};
use std::ptr;

fn refuse(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Stands for a call that the file system does not have: EOPNOTSUPP.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_refused() -> c_int {
    refuse(libc::EOPNOTSUPP)
}

/// Stands for a call that needs a pipe: EINVAL, as for any regular file.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_refused_invalid() -> isize {
    refuse(libc::EINVAL) as isize
}

/// Stands for a call that programs do without where the kernel does not have it: ENOSYS.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_refused_missing() -> c_int {
    refuse(libc::ENOSYS)
}

/// Stands for a call that returns a pointer: NULL, EOPNOTSUPP.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_refused_pointer() -> *mut c_void {
    refuse(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// Stands for a call that returns the error number: EOPNOTSUPP.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_refused_number() -> c_int {
    libc::EOPNOTSUPP
}
