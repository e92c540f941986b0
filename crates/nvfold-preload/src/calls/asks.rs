//! The questions that come before a call: does it concern us? (`interposed.txt` says which one is asked of which name.)
//!
//! If the answer is no, the next library's function of the same name gets the call as the program made it. So a library
//! that is preloaded after this one sees the calls that it would see without it, and none that it does not expect.
//! Nothing here changes errno.

use super::directories;
use crate::answer::keeping_errno;
use crate::prefix::{Place, look};
use crate::{device, host, mounted, numbers, working};
use std::ffi::{CStr, c_char, c_int, c_void};

/// Offset of the path in the address of a local socket.
const SOCKET_PATH_AT: usize = 2;

/// # Safety
///
/// `path` is NULL or a C string.
unsafe fn leads_to_us(dirfd: c_int, path: *const c_char) -> bool {
    if !device::has_prefix() {
        return false;
    }
    // SAFETY: the caller's contract.
    keeping_errno(|| !matches!(unsafe { look(dirfd, path) }, Place::Host))
}

/// Asks whether a path leads to the device, or to the host by another path.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_asks_path(path: *const c_char) -> bool {
    // SAFETY: the argument is the program's, under the contract of the libc function.
    unsafe { leads_to_us(libc::AT_FDCWD, path) }
}

/// As for a path, which starts from a directory. Without a path the directory itself is meant.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_asks_at(dirfd: c_int, path: *const c_char) -> bool {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    if path.is_null() { numbers::is_ours(dirfd) } else { unsafe { leads_to_us(dirfd, path) } }
}

/// As for a path, of a pattern of names that may stand for names below the prefix.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_asks_pattern(pattern: *const c_char) -> bool {
    if pattern.is_null() || !device::has_prefix() {
        return false;
    }
    // SAFETY: the argument is the program's, under the contract of the libc function.
    unsafe { may_match(device::prefix(), CStr::from_ptr(pattern).to_bytes()) || leads_to_us(libc::AT_FDCWD, pattern) }
}

/// Returns whether a pattern may stand for a path through the prefix by a name that is no plain text.
fn may_match(prefix: &[u8], pattern: &[u8]) -> bool {
    let plain = pattern.split(|byte| b"*?[\\".contains(byte)).next().unwrap_or_default();
    // Braces, a home, `.` and `..` may lead anywhere.
    let has = |part: &[u8]| plain.windows(part.len()).any(|window| window == part);
    if pattern.contains(&b'{') || pattern.starts_with(b"~") || plain.starts_with(b".") || has(b"/.") {
        return true;
    }
    let path = match plain.starts_with(b"/") {
        true => plain.to_vec(),
        false => {
            [&keeping_errno(|| host::real_path(libc::AT_FDCWD)).unwrap_or_default(), b"/".as_slice(), plain].concat()
        }
    };
    plain.len() < pattern.len() && prefix.starts_with(&path)
}

/// As for a path, of each in an array that ends in NULL.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_asks_paths(paths: *const *const c_char) -> bool {
    if paths.is_null() || !device::has_prefix() {
        return false;
    }
    // SAFETY: the program's array, which ends in NULL.
    let mut each = (0..).map(|at| unsafe { *paths.add(at) }).take_while(|path| !path.is_null());
    // SAFETY: a string of the array.
    each.any(|path| unsafe { leads_to_us(libc::AT_FDCWD, path) })
}

/// As for a path, of the one in the address of a local socket.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_asks_unix(address: *const libc::sockaddr) -> bool {
    // SAFETY: NULL, or the program's address, whose path ends in NUL.
    unsafe {
        let is_local = !address.is_null() && c_int::from((*address).sa_family) == libc::AF_UNIX;
        is_local && leads_to_us(libc::AT_FDCWD, address.cast::<c_char>().add(SOCKET_PATH_AT))
    }
}

/// Asks whether a descriptor is ours.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_asks_fd(fd: c_int) -> bool {
    numbers::is_ours(fd)
}

/// Asks whether a descriptor is ours, or one that the library keeps for itself.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_asks_kept(fd: c_int) -> bool {
    numbers::is_ours(fd) || numbers::is_reserved(fd)
}

/// Asks whether a descriptor is a standard one, whose stream may have to change.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_asks_standard(fd: c_int) -> bool {
    (0..=2).contains(&fd) && device::has_prefix()
}

/// Asks whether the bytes of a descriptor are looked at.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_asks_data(fd: c_int) -> bool {
    numbers::is_ours(fd) || mounted::is_active()
}

/// Asks whether a mapping takes the place of what is mapped there.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_asks_fixed(flags: c_int) -> bool {
    flags & libc::MAP_FIXED != 0
}

/// Asks whether a directory stream is ours.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_asks_dir(stream: *mut c_void) -> bool {
    // SAFETY: the argument is the program's, under the contract of the libc function.
    unsafe { directories::is_ours(stream) }
}

/// Asks whether a request of asynchronous I/O is on a file of ours.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_asks_request(request: *const libc::aiocb) -> bool {
    // SAFETY: NULL, or a request of the program.
    unsafe { request.as_ref() }.is_some_and(|request| numbers::is_ours(request.aio_fildes))
}

/// Asks whether there is a prefix.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_asks_prefix() -> bool {
    device::has_prefix()
}

/// Asks whether the working directory is ours.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_asks_here() -> bool {
    working::is_ours()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_patterns_that_may_match_the_prefix_are_recognised() {
        for ours in ["/nv*", "/n?fold/x", "/[a-z]*/*", "{/nvfold/a,/b}*", "~/x", "/tmp/../n*", "../*", "/nv\\fold/x"] {
            assert!(may_match(b"/nvfold", ours.as_bytes()), "{ours}");
        }
        for host in ["/tmp/*", "/nx*", "many/1*", "/nvfold", "x", "*.txt"] {
            assert!(!may_match(b"/nvfold", host.as_bytes()), "{host}");
        }
    }
}
