//! What the host has at a path: questions to the kernel for paths that may lead below the prefix.
//!
//! No plain path of the host comes here: see `prefix`.

use nvfold_c::caller;
use std::ffi::{CString, c_int};

/// Returns the real path of a directory of the host, that of a descriptor or the kernel's working directory; empty for
/// the root. `None`: it has none, or is no directory.
pub(crate) fn real_path(dirfd: c_int) -> Option<Vec<u8>> {
    let path = match dirfd {
        libc::AT_FDCWD => host_working_directory(),
        fd => target_of(format!("/proc/self/fd/{fd}").as_bytes()),
    };
    let path = path.filter(|path| kind_of(path) == Some(libc::S_IFDIR))?;
    Some(if path == b"/" { Vec::new() } else { path })
}

fn host_working_directory() -> Option<Vec<u8>> {
    let mut room = vec![0_u8; libc::PATH_MAX as usize];
    // SAFETY: `room` is ours and has the given length.
    let got = unsafe { libc::getcwd(room.as_mut_ptr().cast(), room.len()) };
    if got.is_null() {
        return None;
    }
    room.truncate(room.iter().position(|byte| *byte == 0)?);
    Some(room)
}

/// Returns the type of what the host has at a path, which is not followed; `None`: nothing.
pub(crate) fn kind_of(path: &[u8]) -> Option<libc::mode_t> {
    let path = CString::new(path).ok()?;
    let mut found = caller::empty_stat();
    // SAFETY: a C string, and a structure of ours.
    (unsafe { libc::lstat(path.as_ptr(), &raw mut found) } == 0).then_some(found.st_mode & libc::S_IFMT)
}

/// Returns the target of a link of the host.
pub(crate) fn target_of(link: &[u8]) -> Option<Vec<u8>> {
    let link = CString::new(link).ok()?;
    let mut room = vec![0_u8; libc::PATH_MAX as usize];
    // SAFETY: a C string, and memory of ours with its length.
    let length = unsafe { libc::readlink(link.as_ptr(), room.as_mut_ptr().cast(), room.len()) };
    room.truncate(usize::try_from(length).ok().filter(|length| *length > 0)?);
    Some(room)
}
