//! Modes, owners and sizes.

use super::serve::{host, on_number, on_path};
use super::status::last_link;
use crate::numbers::File;
use crate::prefix::DevicePath;
use crate::{device, process};
use nvfold::SetAttr;
use nvfold_c::failure::{Outcome, set_errno};
use nvfold_c::files::offset;
use nvfold_c::paths::LastLink;
use nvfold_c::shared;
use nvfold_c::status::MODE_BITS;
use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;

const HERE: c_int = libc::AT_FDCWD;

/// Changes the attributes of an open file.
pub(super) fn change_open(file: &File, change: &SetAttr) -> Outcome<c_int> {
    // A later write back of stores to its mappings would change the times again.
    let _ = shared::write_back(&file.open.device, file.open.file.ino());
    file.open.run(|fs| Ok(fs.setattr(file.open.file.ino(), change).map(|_| 0)?))
}

/// Changes the attributes of the file that a path leads to; with AT_EMPTY_PATH and no path, of the descriptor's file.
pub(super) fn change_at(path: &DevicePath, flags: c_int, change: &SetAttr) -> Outcome<c_int> {
    match path.open_file().filter(|_| flags & libc::AT_EMPTY_PATH != 0) {
        Some(file) => change_open(file, change),
        None => path.name().change(last_link(flags), change).map(|()| 0),
    }
}

fn mode_change(mode: libc::mode_t) -> SetAttr {
    SetAttr { mode: Some(mode & MODE_BITS), ..SetAttr::default() }
}

/// Makes a change of owner and group; -1 leaves one unchanged.
fn owner_change(owner: libc::uid_t, group: libc::gid_t) -> SetAttr {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    SetAttr { uid: given(owner), gid: given(group), ..SetAttr::default() }
}

/// fchmodat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fchmodat(
    dirfd: c_int,
    path: *const c_char,
    mode: libc::mode_t,
    flags: c_int,
) -> c_int {
    let from_host = |dirfd, path| host!(libc::fchmodat(dirfd, path, mode, flags));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        on_path("chmod", (dirfd, path, last_link(flags)), from_host, |path| change_at(path, flags, &mode_change(mode)))
    }
}

/// chmod(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_chmod(path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_fchmodat(HERE, path, mode, 0) }
}

/// lchmod(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_lchmod(path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_fchmodat(HERE, path, mode, libc::AT_SYMLINK_NOFOLLOW) }
}

/// fchmod(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_fchmod(fd: c_int, mode: libc::mode_t) -> c_int {
    on_number("fchmod", fd, || host!(libc::fchmod(fd, mode)), |file| change_open(file, &mode_change(mode)))
}

/// fchownat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fchownat(
    dirfd: c_int,
    path: *const c_char,
    owner: libc::uid_t,
    group: libc::gid_t,
    flags: c_int,
) -> c_int {
    let from_host = |dirfd, path| host!(libc::fchownat(dirfd, path, owner, group, flags));
    let change = owner_change(owner, group);
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { on_path("chown", (dirfd, path, last_link(flags)), from_host, |path| change_at(path, flags, &change)) }
}

/// chown(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_chown(
    path: *const c_char,
    owner: libc::uid_t,
    group: libc::gid_t,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_fchownat(HERE, path, owner, group, 0) }
}

/// lchown(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_lchown(
    path: *const c_char,
    owner: libc::uid_t,
    group: libc::gid_t,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_fchownat(HERE, path, owner, group, libc::AT_SYMLINK_NOFOLLOW) }
}

/// fchown(2)
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_fchown(fd: c_int, owner: libc::uid_t, group: libc::gid_t) -> c_int {
    let from_host = || host!(libc::fchown(fd, owner, group));
    on_number("fchown", fd, from_host, |file| change_open(file, &owner_change(owner, group)))
}

/// truncate(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_truncate(path: *const c_char, length: libc::off_t) -> c_int {
    if length < 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    let ours = |path: &DevicePath| {
        let change = SetAttr { size: Some(offset(length)?), ..SetAttr::default() };
        path.name().change(LastLink::Follow, &change).map(|()| 0)
    };
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { on_path("truncate", (HERE, path, LastLink::Follow), |_, path| host!(libc::truncate(path, length)), ours) }
}

/// umask(2): it also applies to new files on the device.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_umask(mask: libc::mode_t) -> libc::mode_t {
    // A child of vfork sets its own alone.
    if let Some(of) = device::device().filter(|_| process::is_owner()) {
        of.umask.store(mask & MODE_BITS, Ordering::Relaxed);
    }
    host!(libc::umask(mask))
}
