//! The standard streams, when their numbers become files of ours or of the host.

use super::front::{Stream, is_ours, number_of};
use super::making::{nvfold_preload_fopen as fopen, stream_on};
use crate::calls::{self, host};
use crate::numbers;
use crate::prefix::{Place, look};
use nvfold_c::failure::set_errno;
use parking_lot::Mutex;
use std::ffi::{c_char, c_int};
use std::ptr;

unsafe extern "C" {
    static mut stdin: Stream;
    static mut stdout: Stream;
    static mut stderr: Stream;
}

/// dup2(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_dup2(fd: c_int, to: c_int) -> c_int {
    changing(to, calls::duplicate(fd, to, || host!(libc::dup2(fd, to))))
}

/// dup3(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    changing(to, calls::duplicate(fd, to, || host!(libc::dup3(fd, to, flags))))
}

/// Updates the standard streams after a number was made another file, if that succeeded.
fn changing(to: c_int, made: c_int) -> c_int {
    if made >= 0 && (0..=2).contains(&to) && crate::device::has_prefix() && crate::process::is_owner() {
        number_changed(to);
    }
    made
}

/// freopen(3): if the old or the new file is ours, returns another stream than the one passed, which is closed.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: Stream,
) -> Stream {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        let leads_to_host = matches!(look(libc::AT_FDCWD, path), Place::Host | Place::HostAt(_));
        if leads_to_host && !is_ours(stream) {
            return host!(libc::freopen(path, mode, stream));
        }
        if path.is_null() {
            set_errno(libc::EBADF);
            return ptr::null_mut();
        }
        let standard = if stream.is_null() { -1 } else { number_of(stream) };
        if !(0..=2).contains(&standard) {
            libc::fclose(stream);
            return fopen(path, mode);
        }
        libc::fflush(stream);
        let opened = fopen(path, mode);
        if opened.is_null() {
            return opened;
        }
        // The standard number becomes that file, and with it the variable.
        nvfold_preload_dup2(number_of(opened), standard);
        libc::fclose(opened);
        *variable(standard)
    }
}

/// Returns libc's variable for a standard stream.
fn variable(number: c_int) -> *mut Stream {
    match number {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        _ => &raw mut stderr,
    }
}

/// Addresses of libc's own streams, while streams of ours stand in their place.
static OF_LIBC: Mutex<[usize; 3]> = Mutex::new([0; 3]);

/// Called when dup2 has made a number another file: a standard stream may need another stream.
fn number_changed(fd: c_int) {
    let variable = variable(fd);
    let mut of_libc = OF_LIBC.lock();
    let kept = &mut of_libc[fd as usize];
    // SAFETY: libc's variables; a program that changes a standard number does not use its stream in another thread at
    // the same time.
    unsafe {
        let before = *variable;
        if *kept != 0 {
            // The buffered bytes go to the file that the number leads to now, as from any stream.
            libc::fflush(before);
        }
        if numbers::is_ours(fd) && *kept == 0 {
            let mode = if fd == 0 { c"r" } else { c"w" };
            if let Ok(stream) = stream_on(fd, mode) {
                if fd == 2 {
                    libc::setvbuf(stream, ptr::null_mut(), libc::_IONBF, 0);
                }
                *kept = before.expose_provenance();
                *variable = stream;
            }
        } else if !numbers::is_ours(fd) && *kept != 0 {
            *variable = ptr::with_exposed_provenance_mut(*kept);
            *kept = 0;
        }
    }
}
