//! Children, and other programs in place of this one: what a process does for the device before it leaves it, and what a
//! child of fork drops.

use super::serve::host;
use crate::{device, numbers};
use nvfold_c::failure;

/// Runs in a child of fork: closes the library's descriptors, so that the child does not keep the device.
pub(crate) extern "C" fn in_child() {
    for fd in numbers::reserved() {
        // SAFETY: the descriptors are the library's, and the child does not use them.
        unsafe { libc::close(fd) };
    }
}

/// Replaces `_Fork`, which calls no handlers.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvfold_preload_fork_without_handlers() -> libc::pid_t {
    unsafe extern "C" {
        fn _Fork() -> libc::pid_t;
    }
    let child = host!(_Fork());
    if child == 0 {
        in_child_without_handlers();
    }
    child
}

/// What handlers of fork do, in a child that was made without them.
pub(crate) fn in_child_without_handlers() {
    failure::mark_as_forked_child();
    in_child();
}

/// Called before the program leaves without exit, by exec or `_exit`. Makes acknowledged data durable.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvfold_preload_leaving() {
    device::sync();
}
