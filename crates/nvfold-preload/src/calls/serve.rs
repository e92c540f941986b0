//! Whose call is it? libc's, with what the program passed; or ours, with the path or the open file that it is about.

use crate::answer::answer;
use crate::prefix::{DevicePath, Place, look};
use crate::{device, numbers};
use nvfold_c::failure::{Answer, Failure, Outcome};
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// Calls libc.
macro_rules! host {
    ($call:expr) => {{
        // SAFETY: libc gets what the program passed, or a string of ours in place of its path, for what it asked for.
        #[allow(unused_unsafe)]
        let answer = unsafe { $call };
        answer
    }};
}
pub(crate) use host;

/// Serves a call that is about one path. `host` gets where the path starts from, and the path.
///
/// # Safety
///
/// `path` is NULL or a string of C.
pub unsafe fn on_path<T: Answer>(
    function: &'static str,
    (dirfd, path): (c_int, *const c_char),
    host: impl FnOnce(c_int, *const c_char) -> T,
    ours: impl FnOnce(&DevicePath) -> Outcome<T>,
) -> T {
    // SAFETY: the caller says that it is a string.
    match unsafe { look(dirfd, path) } {
        Place::Host => host(dirfd, path),
        Place::HostAt(path) => host(libc::AT_FDCWD, path.as_ptr()),
        Place::Nowhere => answer(function, || Err(device::no_device())),
        Place::Device(path) => answer(function, || ours(&path)),
    }
}

/// Serves a call that is about two paths, which must be on the same side: EXDEV.
///
/// # Safety
///
/// Each path is NULL or a string of C.
pub unsafe fn on_paths(
    function: &'static str,
    (dirfd, path): (c_int, *const c_char),
    (new_dirfd, new_path): (c_int, *const c_char),
    host: impl FnOnce((c_int, *const c_char), (c_int, *const c_char)) -> c_int,
    ours: impl FnOnce(&DevicePath, &DevicePath) -> Outcome<c_int>,
) -> c_int {
    // SAFETY: the caller says that they are strings.
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

/// Serves a call that is about one descriptor.
pub fn on_number<T: Answer>(
    function: &'static str,
    fd: c_int,
    host: impl FnOnce() -> T,
    ours: impl FnOnce(&Arc<numbers::File>) -> Outcome<T>,
) -> T {
    if numbers::is_ours(fd) { answer(function, || ours(&numbers::get(fd)?)) } else { host() }
}
