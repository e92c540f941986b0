//! Dispatch of a call: to libc, with the program's arguments, or to our code, with the path or the open file.

use crate::answer::answer;
use crate::prefix::{DevicePath, Place, look};
use crate::{device, numbers};
use nvfold_c::failure::{Answer, Failure, Outcome};
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// Calls libc.
macro_rules! host {
    ($call:expr) => {{
        // SAFETY: libc gets the program's arguments, or a string of ours in place of its path, for the function that
        // was called.
        #[allow(unused_unsafe)]
        let answer = unsafe { $call };
        answer
    }};
}
pub(crate) use host;

/// Serves a call on one path. `host` gets the directory where the path starts, and the path.
///
/// # Safety
///
/// `path` is NULL or a C string.
pub unsafe fn on_path<T: Answer>(
    function: &'static str,
    (dirfd, path): (c_int, *const c_char),
    host: impl FnOnce(c_int, *const c_char) -> T,
    ours: impl FnOnce(&DevicePath) -> Outcome<T>,
) -> T {
    // SAFETY: the caller guarantees a C string.
    match unsafe { look(dirfd, path) } {
        Place::Host => host(dirfd, path),
        Place::HostAt(path) => host(libc::AT_FDCWD, path.as_ptr()),
        Place::Nowhere => answer(function, || Err(device::no_device())),
        Place::Device(path) => answer(function, || ours(&path)),
    }
}

/// Serves a call on two paths, which must both be ours or both be the host's, else EXDEV.
///
/// # Safety
///
/// Each path is NULL or a C string.
pub unsafe fn on_paths(
    function: &'static str,
    (dirfd, path): (c_int, *const c_char),
    (new_dirfd, new_path): (c_int, *const c_char),
    host: impl FnOnce((c_int, *const c_char), (c_int, *const c_char)) -> c_int,
    ours: impl FnOnce(&DevicePath, &DevicePath) -> Outcome<c_int>,
) -> c_int {
    // SAFETY: the caller guarantees C strings.
    let (from, to) = unsafe { (look(dirfd, path), look(new_dirfd, new_path)) };
    let host_of = |place: &Place, dirfd, path| match place {
        Place::Host => Some((dirfd, path)),
        Place::HostAt(path) => Some((libc::AT_FDCWD, path.as_ptr())),
        _ => None,
    };
    if let (Some(from), Some(to)) = (host_of(&from, dirfd, path), host_of(&to, new_dirfd, new_path)) {
        return host(from, to);
    }
    answer(function, || match (&from, &to) {
        (Place::Device(from), Place::Device(to)) => ours(from, to),
        (Place::Nowhere, _) | (_, Place::Nowhere) => Err(device::no_device()),
        _ => Err(Failure::new(libc::EXDEV, "one of the paths is on the device, and the other is not")),
    })
}

/// Serves a call on one descriptor.
pub fn on_number<T: Answer>(
    function: &'static str,
    fd: c_int,
    host: impl FnOnce() -> T,
    ours: impl FnOnce(&Arc<numbers::File>) -> Outcome<T>,
) -> T {
    if numbers::is_ours(fd) { answer(function, || ours(&numbers::get(fd)?)) } else { host() }
}
