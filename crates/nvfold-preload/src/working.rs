//! The working directory, which may be on the device.
//!
//! The problem: the kernel can have no working directory on the device. The idea: when a program goes there, the
//! library keeps the directory open and remembers its path. Relative paths start from it, and `getcwd` returns its
//! path. The kernel's working directory becomes one that exists, is empty, and takes no files from anybody:
//! `/proc/tty/ldisc`, which Linux keeps for programs that look for it. So a relative path that reaches the kernel past
//! this library, or in a program that a child executes, fails with ENOENT instead of leading to the program's
//! previous directory, and there is nothing that would have to be removed later.

use crate::numbers::File;
use crate::process;
use parking_lot::RwLock;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The working directory on the device; `None`: that of the kernel counts.
static CURRENT: RwLock<Option<Arc<File>>> = RwLock::new(None);
/// Whether `CURRENT` is set, for the lock-free check.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// Returns whether the working directory is one of ours. Takes no lock.
pub(crate) fn is_ours() -> bool {
    IS_OURS.load(Ordering::Relaxed)
}

/// Returns our working directory, if the program is in one. A child of fork gets `None`.
pub(crate) fn working_directory() -> Option<Arc<File>> {
    if !is_ours() || process::is_not_owner() { None } else { CURRENT.read().clone() }
}

/// An empty directory in which nobody can make anything, root included.
const EMPTY: &CStr = c"/proc/tty/ldisc";

fn is_empty(directory: &CStr) -> bool {
    let path = Path::new(OsStr::from_bytes(directory.to_bytes()));
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Makes a directory of ours the working directory; `None`: the kernel's counts.
pub(crate) fn go_to(directory: Option<Arc<File>>) {
    // A child of vfork has a kernel's working directory of its own, and shares what is kept here with its parent.
    let is_owner = process::is_owner();
    if directory.is_some() && (!is_ours() || !is_owner) {
        leave_the_host();
    }
    if !is_owner {
        return;
    }
    IS_OURS.store(directory.is_some(), Ordering::Relaxed);
    let before = std::mem::replace(&mut *CURRENT.write(), directory);
    drop(before);
}

/// Drops our working directory when the device is closed.
pub(crate) fn leave() {
    go_to(None);
}

/// Makes the kernel's working directory the empty one, or where there is none a removed one. If that fails it stays.
fn leave_the_host() {
    if is_empty(EMPTY) {
        // SAFETY: a string of ours.
        let went = unsafe { libc::chdir(EMPTY.as_ptr()) };
        if went == 0 {
            return;
        }
    }
    for template in [c"/tmp/nvfold-XXXXXX", c"/dev/shm/nvfold-XXXXXX"] {
        let mut path = template.to_bytes_with_nul().to_vec();
        let path: *mut c_char = path.as_mut_ptr().cast();
        // SAFETY: the string is ours and writable.
        unsafe {
            if !libc::mkdtemp(path).is_null() {
                libc::chdir(path);
                libc::rmdir(path);
                return;
            }
        }
    }
}
