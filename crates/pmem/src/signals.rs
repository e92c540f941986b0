//! Threads that never run a program's signal handlers.
//!
//! The problem: a signal for a process is handled by any of its threads that does not block it. A library that starts
//! threads thereby runs handlers of the program on them, with small stacks, locks held, and thread-local data that the
//! program does not expect; and a program that blocks a signal everywhere, to wait for it, finds it gone.
//!
//! The idea: a new thread inherits the mask of the thread that starts it. So all signals are blocked while one is
//! started. The signals of a thread's own faults stay, because `fault` handles SIGBUS of a failing device.

use std::mem::MaybeUninit;
use std::ptr;

const OF_FAULTS: [libc::c_int; 5] = [libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// Runs `start`. The threads that it starts never receive a signal that is meant for the program.
pub fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    if cfg!(miri) {
        return start(); // Miri has no signals
    }
    let (mut all, mut before) = (MaybeUninit::<libc::sigset_t>::zeroed(), MaybeUninit::<libc::sigset_t>::zeroed());
    // SAFETY: both sets are ours; all zeros are an empty set, and sigfillset fills the first.
    let before = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        OF_FAULTS.iter().for_each(|fault| _ = libc::sigdelset(all.as_mut_ptr(), *fault));
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    };
    let _restored = Mask(before);
    start()
}

/// Sets the mask of the thread when it is dropped.
struct Mask(libc::sigset_t);

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: the mask is one that pthread_sigmask returned.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}
