//! The working directory, which may be on the device.
//!
//! The kernel can have no working directory on the device. So when a program goes there, ours is remembered: an open directory,
//! held, and its path. What is relative starts from it, and `getcwd` tells it. The kernel's becomes a directory that was
//! removed: a relative path that reaches the kernel past us, or in a program that a child executes, leads nowhere (ENOENT)
//! instead of to where the program was before.

use crate::numbers::File;
use crate::{device, process};
use nvfold_c::paths::below;
use parking_lot::RwLock;
use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ours; `None`: that of the kernel counts.
static CURRENT: RwLock<Option<Arc<File>>> = RwLock::new(None);
/// The same, for the quick look.
static IS_OURS: AtomicBool = AtomicBool::new(false);
/// The prefix lies below the kernel's working directory: a relative path without `..` may lead to it.
static IS_ABOVE_PREFIX: AtomicBool = AtomicBool::new(true);

/// Whether the program is in a directory of ours. Takes no lock.
pub fn is_ours() -> bool {
    IS_OURS.load(Ordering::Relaxed)
}

/// Ours, if that is where the program is. In a child of fork: none.
pub fn working_directory() -> Option<Arc<File>> {
    if !is_ours() || process::is_stranger() { None } else { CURRENT.read().clone() }
}

/// Whether a path that is relative to the kernel's working directory may lead below the prefix.
pub fn may_lead_below(path: &[u8]) -> bool {
    IS_ABOVE_PREFIX.load(Ordering::Relaxed) || path.windows(2).any(|window| window == b"..")
}

/// Returns the kernel's working directory.
pub fn host_working_directory() -> Option<Vec<u8>> {
    let mut room = vec![0_u8; libc::PATH_MAX as usize];
    // SAFETY: `room` is ours and as long as is said.
    let got = unsafe { libc::getcwd(room.as_mut_ptr().cast(), room.len()) };
    if got.is_null() {
        return None;
    }
    room.truncate(room.iter().position(|byte| *byte == 0)?);
    Some(room)
}

/// The kernel's working directory has changed, or counts again.
pub fn look_again() {
    let directory = host_working_directory().unwrap_or_else(|| b"/".to_vec());
    let is_above = directory == b"/" || below(&directory, device::prefix()).is_some();
    IS_ABOVE_PREFIX.store(is_above, Ordering::Relaxed);
}

/// The program goes there; `None`: the kernel's counts.
pub fn go_to(directory: Option<Arc<File>>) {
    if directory.is_some() && !is_ours() {
        leave_the_host();
    }
    IS_OURS.store(directory.is_some(), Ordering::Relaxed);
    let before = std::mem::replace(&mut *CURRENT.write(), directory);
    drop(before);
}

/// Lets go of ours, when the device is closed.
pub fn leave() {
    go_to(None);
}

/// Makes the kernel's working directory one that is gone. If none can be made it stays.
fn leave_the_host() {
    for template in [c"/tmp/nvfold-XXXXXX", c"/dev/shm/nvfold-XXXXXX"] {
        let mut path = template.to_bytes_with_nul().to_vec();
        let path: *mut c_char = path.as_mut_ptr().cast();
        // SAFETY: a string of ours that may be written to.
        unsafe {
            if !libc::mkdtemp(path).is_null() {
                libc::chdir(path);
                libc::rmdir(path);
                return;
            }
        }
    }
}
