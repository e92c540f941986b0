//! Unmounting: by unmount(2), or by fusermount3 for a user other than root.

use crate::utab;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Calls unmount(2), or fusermount3 if that needs root, and takes the mount out of umount(8)'s table.
pub fn unmount(dir: &Path, flags: UnmountFlags) -> rustix::io::Result<()> {
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => unmount_as_user(dir, flags.contains(UnmountFlags::DETACH)),
        result => result.inspect(|()| utab::forget(dir)),
    }
}

/// Unmounts with fusermount3, which allows it to the user who mounted.
fn unmount_as_user(dir: &Path, is_lazy: bool) -> rustix::io::Result<()> {
    let how = if is_lazy { "-uz" } else { "-u" };
    let arguments = [OsStr::new(how), OsStr::new("--"), dir.as_os_str()];
    // The message for EBUSY is that of the C library.
    let called = Command::new("fusermount3").args(arguments).env("LC_ALL", "C").output();
    match called {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains("busy") => Err(Errno::BUSY),
        Ok(_) | Err(_) => Err(Errno::PERM),
    }
}
