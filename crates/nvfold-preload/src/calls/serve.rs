//! Dispatch of a call: to libc, with the program's arguments, or to our code, with the path or the open file.

use crate::answer::answer;
use crate::prefix::{DevicePath, Place, look};
use crate::{device, numbers};
use nvfold_c::failure::{Answer, Failure, Outcome};
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// The next library's function of this name, as a pointer of the type that is expected: libc's, or that of another
/// library which is preloaded behind this one.
macro_rules! next {
    ($name:expr) => {{
        #[cfg(not(test))]
        unsafe extern "C" {
            // scripts/preload-library.sh makes it.
            #[link_name = concat!("nvfold_next_", $name)]
            fn next();
        }
        // A test of this crate is not linked by the script.
        #[cfg(test)]
        unsafe extern "C" fn next() {}
        // SAFETY: a function of libc's name has the type that libc's has, which the caller says.
        #[allow(unused_unsafe, clippy::missing_transmute_annotations, clippy::useless_transmute)]
        unsafe {
            std::mem::transmute(next as unsafe extern "C" fn())
        }
    }};
}
pub(crate) use next;

/// Calls the next library's function: `host!(libc::chmod(path, mode))`. The type is that of libc's.
macro_rules! host {
    (libc::fcntl($($argument:expr),*)) => {
        $crate::calls::host!(@variadic "fcntl", (c_int, c_int), c_int, $($argument),*)
    };
    (libc::ioctl($($argument:expr),*)) => {
        $crate::calls::host!(@variadic "ioctl", (c_int, std::ffi::c_ulong), c_int, $($argument),*)
    };
    (libc::openat($($argument:expr),*)) => {
        $crate::calls::host!(@variadic "openat", (c_int, *const c_char, c_int), c_int, $($argument),*)
    };
    (libc::mremap($($argument:expr),*)) => {
        $crate::calls::host!(@variadic "mremap", (*mut c_void, usize, usize, c_int), *mut c_void, $($argument),*)
    };
    (libc::syscall($($argument:expr),*)) => {
        $crate::calls::host!(@variadic "syscall", (c_long), c_long, $($argument),*)
    };
    (@variadic $name:expr, ($($type:ty),*), $answer:ty, $($argument:expr),*) => {{
        let call: unsafe extern "C" fn($($type,)* ...) -> $answer = $crate::calls::next!($name);
        // SAFETY: as below.
        #[allow(unused_unsafe)]
        let answer = unsafe { call($($argument),*) };
        answer
    }};
    // A function that the stub has passed.
    (=> $next:ident($($argument:expr),*)) => {{
        // SAFETY: as below.
        #[allow(unused_unsafe)]
        let answer = unsafe { $next($($argument),*) };
        answer
    }};
    (libc::$name:ident($($argument:expr),* $(,)?)) => {
        $crate::calls::host!(@call stringify!($name), libc::$name, $($argument),*)
    };
    ($name:ident($($argument:expr),* $(,)?)) => {
        $crate::calls::host!(@call stringify!($name), $name, $($argument),*)
    };
    (@call $name:expr, $type:expr, $($argument:expr),*) => {{
        #[allow(unused_assignments)]
        let call = {
            // It says which type the function has, and is not called.
            let mut call: unsafe extern "C" fn($($crate::calls::host!(@any $argument)),*) -> _ = $type;
            call = $crate::calls::next!($name);
            call
        };
        // SAFETY: the next library gets the program's arguments, or a string of ours in place of its path, for the
        // function that was called.
        #[allow(unused_unsafe)]
        let answer = unsafe { call($($argument),*) };
        answer
    }};
    (@any $argument:expr) => { _ };
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
