//! Changing the working directory, and real paths.

use super::serve::{host, on_path};
use super::status::nvfold_preload_stat as stat;
use crate::answer::{answer, answer_or};
use crate::device;
use crate::numbers::{self, File};
use crate::prefix::DevicePath;
use crate::working::{go_to, working_directory};
use nvfold::{FileKind, InodeNumber};
use nvfold_c::device::Device;
use nvfold_c::failure::{Failure, Outcome, set_errno};
use nvfold_c::paths::{self, LastLink, below};
use nvfold_c::{caller, files};
use parking_lot::Mutex;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;

/// Opens a directory to go there, and notes its real path.
fn directory(at: &DevicePath) -> Outcome<File> {
    let open = files::open(at.device(), at.start(), at.path(), libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let path = path_of(at.device(), open.file.ino(), &at.written())?;
    Ok(File { open, path, flags: AtomicI32::new(libc::O_RDONLY), listing: Mutex::new(None) })
}

/// Returns the path of a directory as the program sees it; `known` is where it was once. ENOENT if it was removed.
fn path_of(of: &Device, directory: InodeNumber, known: &[u8]) -> Outcome<Vec<u8>> {
    let known = below(device::prefix(), known).unwrap_or_default();
    Ok([device::prefix(), &of.run(|fs| paths::path_of(fs, directory, known))?].concat())
}

/// chdir(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_chdir(path: *const c_char) -> c_int {
    // SAFETY: the program passes a string, as for chdir(2).
    unsafe {
        on_path(
            "chdir",
            (libc::AT_FDCWD, path, LastLink::Follow),
            |_, path| host_chdir(path),
            |path| {
                go_to(Some(Arc::new(directory(path)?)));
                Ok(0)
            },
        )
    }
}

fn host_chdir(path: *const c_char) -> c_int {
    nvfold_preload_moved(host!(libc::chdir(path)))
}

/// Called after the host has answered chdir or fchdir.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_moved(answer: c_int) -> c_int {
    if answer == 0 && device::has_prefix() {
        go_to(None);
    }
    answer
}

/// fchdir(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fchdir(fd: c_int) -> c_int {
    if numbers::is_ours(fd) {
        return answer("fchdir", || {
            let file = numbers::get(fd)?;
            if file.open.kind != FileKind::Directory {
                return Err(Failure::new(libc::ENOTDIR, "it is no directory"));
            }
            go_to(Some(file));
            Ok(0)
        });
    }
    nvfold_preload_moved(host!(libc::fchdir(fd)))
}

/// getcwd(3): a NULL buffer asks for new memory, as much as is needed if `size` is 0.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_getcwd(buffer: *mut c_char, size: usize) -> *mut c_char {
    let Some(directory) = working_directory() else {
        return host!(libc::getcwd(buffer, size));
    };
    let file = &directory.open;
    let path = answer_or("getcwd", None, || path_of(&file.device, file.file.ino(), &directory.path).map(Some));
    let Some(path) = path else { return ptr::null_mut() };
    let needed = path.len() + 1;
    let errno = match (buffer.is_null(), size) {
        (false, 0) => libc::EINVAL,
        (_, 0) => 0,
        (_, size) if size < needed => libc::ERANGE,
        _ => 0,
    };
    if errno != 0 {
        set_errno(errno);
        return ptr::null_mut();
    }
    // SAFETY: malloc has no conditions; the program frees the memory.
    let into = if buffer.is_null() { unsafe { libc::malloc(needed.max(size)).cast() } } else { buffer };
    if !into.is_null() {
        // SAFETY: `needed` bytes fit into the program's buffer, whose size was checked, or into the new memory.
        unsafe { put_string(into, &path) };
    }
    into
}

/// Replaces `__getcwd_chk`; `room` is the size of the buffer as the compiler knows it.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_getcwd_chk(
    buffer: *mut c_char,
    size: usize,
    room: usize,
) -> *mut c_char {
    // SAFETY: the arguments are the program's; the size is at most that of the buffer.
    unsafe { nvfold_preload_getcwd(buffer, size.min(room)) }
}

/// getwd(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_getwd(buffer: *mut c_char) -> *mut c_char {
    if buffer.is_null() {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    // SAFETY: the program passes a buffer of PATH_MAX bytes.
    unsafe { nvfold_preload_getcwd(buffer, libc::PATH_MAX as usize) }
}

/// Replaces `__getwd_chk`; `room` is the size of the buffer as the compiler knows it.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_getwd_chk(buffer: *mut c_char, room: usize) -> *mut c_char {
    // SAFETY: the buffer is the program's; the size is at most that of the buffer.
    unsafe { nvfold_preload_getcwd(buffer, room.min(libc::PATH_MAX as usize)) }
}

/// get_current_dir_name(3): the path in PWD, if it leads to the working directory.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_get_current_dir_name() -> *mut c_char {
    // SAFETY: C strings, structures of ours, and NULL, which asks for memory.
    unsafe {
        let pwd = libc::getenv(c"PWD".as_ptr());
        let (mut here, mut there) = (caller::empty_stat(), caller::empty_stat());
        let is_here = !pwd.is_null()
            && stat(c".".as_ptr(), &raw mut here) == 0
            && stat(pwd, &raw mut there) == 0
            && (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino);
        if is_here { libc::strdup(pwd) } else { nvfold_preload_getcwd(ptr::null_mut(), 0) }
    }
}

/// Copies a path to C memory and ends it with NUL.
///
/// # Safety
///
/// There is memory for the path and the NUL.
unsafe fn put_string(into: *mut c_char, path: &[u8]) {
    // SAFETY: the caller guarantees the memory.
    unsafe {
        ptr::copy_nonoverlapping(path.as_ptr(), into.cast(), path.len());
        into.add(path.len()).write(0);
    }
}

/// Returns the path of what a path leads to, without symbolic links, `.` and `..`. ENOENT.
fn real_path(path: &DevicePath) -> Outcome<Vec<u8>> {
    let place = path.name().on_place(LastLink::Follow, |_, place| {
        place.existing()?;
        Ok(place)
    })?;
    let known = path.written();
    if !place.has_own_name() {
        return path_of(path.device(), place.existing()?.ino, &known);
    }
    let known = known.iter().rposition(|byte| *byte == b'/').map_or(known.as_slice(), |at| &known[..at]);
    let directory = path_of(path.device(), place.directory, known)?;
    Ok([directory.as_slice(), b"/", &place.name].concat())
}

/// realpath(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    let put = |path: &DevicePath| {
        let real = real_path(path)?;
        if real.len() >= libc::PATH_MAX as usize {
            return Err(Failure::new(libc::ENAMETOOLONG, "the path is longer than PATH_MAX"));
        }
        // SAFETY: malloc has no conditions; the program frees it.
        let into = if resolved.is_null() { unsafe { libc::malloc(real.len() + 1).cast() } } else { resolved };
        if into.is_null() {
            return Err(Failure::new(libc::ENOMEM, "memory for the path"));
        }
        // SAFETY: the program's buffer has PATH_MAX bytes, as realpath requires; the new memory has enough.
        unsafe { put_string(into, &real) };
        Ok(into.cast::<c_void>())
    };
    let path = (libc::AT_FDCWD, path, LastLink::Follow);
    // SAFETY: the program passes a string, as for realpath(3).
    unsafe { on_path("realpath", path, |_, path| libc::realpath(path, resolved).cast(), put) }.cast()
}

/// canonicalize_file_name(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the arguments are the program's; NULL asks for memory.
    unsafe { nvfold_preload_realpath(path, ptr::null_mut()) }
}

/// Replaces `__realpath_chk`; the compiler knows the size of the buffer, which must be at least PATH_MAX.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_realpath_chk(
    path: *const c_char,
    into: *mut c_char,
    _room: usize,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_realpath(path, into) }
}
