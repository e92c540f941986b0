//! Changing the working directory, and real paths.

use super::serve::host;
use crate::answer::answer;
use crate::device;
use crate::numbers::{self, File};
use crate::prefix::{self, Place, normalized};
use crate::working::{go_to, look_again, working_directory};
use nvfold::{FileKind, InodeNumber};
use nvfold_c::device::Device;
use nvfold_c::failure::{Failure, Outcome};
use nvfold_c::files;
use nvfold_c::paths::below;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;

/// Maximum number of symbolic links on the way to a real path.
const LINKS_MAX: u32 = 40;

/// Opens a directory by an absolute path below the prefix.
fn directory(of: &Arc<Device>, path: Vec<u8>) -> Outcome<File> {
    let below = below(device::prefix(), &path).unwrap_or(b"/");
    let below = if below.is_empty() { b"/" } else { below };
    let open = files::open(of, device::root(), below, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    Ok(File { open, path, flags: AtomicI32::new(libc::O_RDONLY), listing: Mutex::new(None) })
}

/// chdir(2)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_chdir(path: *const c_char) -> c_int {
    // SAFETY: the program passes a string, as for chdir(2).
    match unsafe { prefix::look(libc::AT_FDCWD, path) } {
        Place::Host => host_chdir(path),
        Place::HostAt(path) => host_chdir(path.as_ptr()),
        Place::Nowhere => answer("chdir", || Err(device::no_device())),
        Place::Device(path) => answer("chdir", || {
            let real = real_path(path.device(), &path.absolute())?;
            go_to(Some(Arc::new(directory(path.device(), real)?)));
            Ok(0)
        }),
    }
}

fn host_chdir(path: *const c_char) -> c_int {
    nvfold_preload_moved(host!(libc::chdir(path)))
}

/// Called after the host has answered chdir or fchdir.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_preload_moved(answer: c_int) -> c_int {
    if answer == 0 && device::has_prefix() {
        go_to(None);
        look_again();
    }
    answer
}

/// fchdir(2)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_fchdir(fd: c_int) -> c_int {
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
pub unsafe extern "C" fn nvfold_preload_getcwd(buffer: *mut c_char, size: usize) -> *mut c_char {
    let Some(directory) = working_directory() else {
        return host!(libc::getcwd(buffer, size));
    };
    let path = &directory.path;
    let needed = path.len() + 1;
    let errno = match (buffer.is_null(), size) {
        (false, 0) => libc::EINVAL,
        (_, 0) => 0,
        (_, size) if size < needed => libc::ERANGE,
        _ => 0,
    };
    if errno != 0 {
        nvfold_c::failure::set_errno(errno);
        return ptr::null_mut();
    }
    // SAFETY: malloc has no conditions; the program frees the memory.
    let into = if buffer.is_null() { unsafe { libc::malloc(needed.max(size)).cast() } } else { buffer };
    if !into.is_null() {
        // SAFETY: `needed` bytes fit into the program's buffer, whose size was checked, or into the new memory.
        unsafe { put_string(into, path) };
    }
    into
}

/// Replaces `__getcwd_chk`; `room` is the size of the buffer as the compiler knows it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_getcwd_chk(buffer: *mut c_char, size: usize, room: usize) -> *mut c_char {
    // SAFETY: the arguments are the program's; the size is at most that of the buffer.
    unsafe { nvfold_preload_getcwd(buffer, size.min(room)) }
}

/// getwd(3): the buffer has PATH_MAX bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_getwd(buffer: *mut c_char) -> *mut c_char {
    // SAFETY: the buffer is the program's, as long as getwd requires.
    unsafe { nvfold_preload_getcwd(buffer, libc::PATH_MAX as usize) }
}

/// Replaces `__getwd_chk`; `room` is the size of the buffer as the compiler knows it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_getwd_chk(buffer: *mut c_char, room: usize) -> *mut c_char {
    // SAFETY: the buffer is the program's; the size is at most that of the buffer.
    unsafe { nvfold_preload_getcwd(buffer, room.min(libc::PATH_MAX as usize)) }
}

/// get_current_dir_name(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_get_current_dir_name() -> *mut c_char {
    // SAFETY: NULL asks for memory.
    unsafe { nvfold_preload_getcwd(ptr::null_mut(), 0) }
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

/// Returns the path of the file that a path leads to, without symbolic links. ENOENT, ENOTDIR, ELOOP; EXDEV if a link
/// leads to the host.
fn real_path(of: &Arc<Device>, path: &[u8]) -> Outcome<Vec<u8>> {
    let names = |path: &[u8]| -> Vec<Vec<u8>> { path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect() };
    let prefix = device::prefix();
    let rest = below(prefix, path).ok_or_else(|| Failure::new(libc::EXDEV, "it is not on the device"))?;
    let mut pending: VecDeque<Vec<u8>> = names(rest).into();
    // Names from the root on, and the directories passed on the way.
    let (mut found, mut inodes) = (Vec::<Vec<u8>>::new(), vec![InodeNumber::ROOT]);
    let mut links_left = LINKS_MAX;
    of.run(|fs| {
        while let Some(name) = pending.pop_front() {
            match name.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    if found.pop().is_some() {
                        inodes.pop();
                    }
                    continue;
                }
                _ => {}
            }
            let attr = fs.lookup(*inodes.last().expect("the root is never taken"), &name)?;
            if attr.kind != FileKind::Symlink {
                found.push(name);
                inodes.push(attr.ino);
                continue;
            }
            links_left =
                links_left.checked_sub(1).ok_or_else(|| Failure::new(libc::ELOOP, "too many symbolic links"))?;
            let target = fs.readlink(attr.ino)?;
            let mut rest = target.as_slice();
            if target.first() == Some(&b'/') {
                rest = below(prefix, &target).ok_or_else(|| Failure::new(libc::EXDEV, "a link leads to the host"))?;
                (found, inodes) = (Vec::new(), vec![InodeNumber::ROOT]);
            }
            names(rest).into_iter().rev().for_each(|name| pending.push_front(name));
        }
        Ok(())
    })?;
    Ok(normalized(&[prefix, b"/", &found.join(b"/".as_slice())].concat()))
}

/// realpath(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    // SAFETY: the program passes a string, as for realpath(3).
    match unsafe { prefix::look(libc::AT_FDCWD, path) } {
        Place::Host => host!(libc::realpath(path, resolved)),
        Place::HostAt(path) => host!(libc::realpath(path.as_ptr(), resolved)),
        Place::Nowhere => answer::<*mut c_void>("realpath", || Err(device::no_device())).cast(),
        Place::Device(path) => {
            let put = || {
                let real = real_path(path.device(), &path.absolute())?;
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
                Ok(into.cast())
            };
            answer::<*mut c_void>("realpath", put).cast()
        }
    }
}

/// canonicalize_file_name(3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the arguments are the program's; NULL asks for memory.
    unsafe { nvfold_preload_realpath(path, ptr::null_mut()) }
}

/// Replaces `__realpath_chk`; the compiler knows the size of the buffer, which must be at least PATH_MAX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_realpath_chk(
    path: *const c_char,
    into: *mut c_char,
    _room: usize,
) -> *mut c_char {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_realpath(path, into) }
}
