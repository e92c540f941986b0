//! Signals of a program whose system calls are caught (`raw`): SIGSYS is never blocked, for the kernel would end the
//! program, and what the program wants to happen at SIGSYS is kept here.

use super::serve::host;
use crate::answer::as_the_kernel;
use crate::process;
use parking_lot::Mutex;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of the kernel's signal set, and SIGSYS in it.
pub(crate) const KERNEL_SET_BYTES: usize = 8;
pub(crate) const SIGSYS: u64 = 1 << (libc::SIGSYS - 1);

/// Whether system calls are caught.
static IS_ARMED: AtomicBool = AtomicBool::new(false);
/// What the program wants to happen at SIGSYS.
static PROGRAMS: Mutex<Option<libc::sigaction>> = Mutex::new(None);

/// Notes that system calls are caught from now on; `action` is what the program wants to happen at SIGSYS.
pub(crate) fn begin(action: libc::sigaction) {
    *PROGRAMS.lock() = Some(action);
    IS_ARMED.store(true, Ordering::Relaxed);
}

/// Returns whether system calls are caught.
pub(crate) fn is_armed() -> bool {
    IS_ARMED.load(Ordering::Relaxed)
}

/// Returns what the program wants to happen at SIGSYS.
pub(crate) fn of_the_program() -> Option<libc::sigaction> {
    *PROGRAMS.lock()
}

/// rt_sigaction for the program: no handler runs with SIGSYS blocked, and that of SIGSYS stays ours.
pub(crate) fn set_action(arguments: &[usize; 6]) -> isize {
    let [signal, action, before, bytes, ..] = *arguments;
    if signal == libc::SIGSYS as usize {
        return 0;
    }
    /// Handler, flags, restorer, mask.
    type Action = [u64; 4];
    let action: *const Action = ptr::with_exposed_provenance(action);
    // SAFETY: the program passes NULL or an action of the kernel's form, and room for another.
    unsafe {
        let copy =
            action.as_ref().map(|[handler, flags, restorer, mask]| [*handler, *flags, *restorer, mask & !SIGSYS]);
        let action: *const Action = copy.as_ref().map_or(ptr::null(), ptr::from_ref);
        as_the_kernel(|| libc::syscall(libc::SYS_rt_sigaction, signal, action, before, bytes) as isize)
    }
}

/// rt_sigprocmask by `syscall`: SIGSYS is not blocked.
pub(crate) fn set_mask(arguments: &[usize; 6]) -> isize {
    let [how, set, before, bytes, ..] = *arguments;
    let set: *const u64 = ptr::with_exposed_provenance(set);
    // SAFETY: the program passes NULL or a set of the kernel's form, and room for another.
    unsafe {
        let copy = set.as_ref().map(|set| if how as c_int == libc::SIG_UNBLOCK { *set } else { set & !SIGSYS });
        let set: *const u64 = copy.as_ref().map_or(ptr::null(), ptr::from_ref);
        as_the_kernel(|| libc::syscall(libc::SYS_rt_sigprocmask, how, set, before, bytes) as isize)
    }
}

/// sigaction(2)
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvfold_preload_sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    before: *mut libc::sigaction,
) -> c_int {
    // In a child of fork nothing is armed, and no lock may be taken.
    if !is_armed() || process::is_not_owner() {
        return host!(libc::sigaction(signal, action, before));
    }
    // SAFETY: the program passes NULL or actions.
    unsafe {
        let Some(action) = action.as_ref() else {
            if signal == libc::SIGSYS && !before.is_null() {
                before.write(PROGRAMS.lock().unwrap_or(std::mem::zeroed()));
                return 0;
            }
            return host!(libc::sigaction(signal, action, before));
        };
        let mut action = *action;
        if signal == libc::SIGSYS {
            let old = PROGRAMS.lock().replace(action);
            if let (false, Some(old)) = (before.is_null(), old) {
                before.write(old);
            }
            return 0;
        }
        libc::sigdelset(&raw mut action.sa_mask, libc::SIGSYS);
        host!(libc::sigaction(signal, &raw const action, before))
    }
}

/// signal(2)
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvfold_preload_signal(
    signal: c_int,
    handler: libc::sighandler_t,
) -> libc::sighandler_t {
    if signal != libc::SIGSYS || !is_armed() || process::is_not_owner() {
        return host!(libc::signal(signal, handler));
    }
    // SAFETY: all zeros are an action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    PROGRAMS.lock().replace(action).map_or(libc::SIG_DFL, |before| before.sa_sigaction)
}

/// Passes on a set of signals to be blocked without SIGSYS.
///
/// # Safety
///
/// `set` is NULL or a set.
unsafe fn without_sigsys(
    how: c_int,
    set: *const libc::sigset_t,
    call: impl FnOnce(*const libc::sigset_t) -> c_int,
) -> c_int {
    // SAFETY: the caller's contract.
    match unsafe { set.as_ref() } {
        Some(set) if how != libc::SIG_UNBLOCK && is_armed() => {
            let mut set = *set;
            // SAFETY: the set is ours.
            unsafe { libc::sigdelset(&raw mut set, libc::SIGSYS) };
            call(&raw const set)
        }
        _ => call(set),
    }
}

/// sigprocmask(2)
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvfold_preload_sigprocmask(
    how: c_int,
    set: *const libc::sigset_t,
    before: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { without_sigsys(how, set, |set| host!(libc::sigprocmask(how, set, before))) }
}

/// pthread_sigmask(3)
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvfold_preload_pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    before: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { without_sigsys(how, set, |set| host!(libc::pthread_sigmask(how, set, before))) }
}
