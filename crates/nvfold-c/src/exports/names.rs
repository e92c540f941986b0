//! Names: everything that is asked of a path.

use super::DeviceHandle;
use super::changes::{changes_of, owners};
use crate::caller::{self, CText, InTimes, OutBytes, OutStat};
use crate::failure::{Failure, Outcome, call};
use crate::files::offset;
use crate::names::Name;
use crate::paths::LastLink;
use crate::status::{self, MODE_BITS};
use nvfold::{Attr, SetAttr};
use std::ffi::{c_int, c_uint};

/// Does something with a path, and answers 0.
fn on(
    function: &'static str,
    (device, path): (DeviceHandle, CText<'_>),
    operation: impl FnOnce(&Name<'_>) -> Outcome<()>,
) -> c_int {
    call(function, || operation(&Name::of_root(&device.device()?, path.bytes()?)).map(|()| 0))
}

/// Does something with two paths, and answers 0.
fn on_both(
    function: &'static str,
    (device, path, new_path): (DeviceHandle, CText<'_>, CText<'_>),
    operation: impl FnOnce(&Name<'_>, &Name<'_>) -> Outcome<()>,
) -> c_int {
    call(function, || {
        let (device, path, new_path) = (device.device()?, path.bytes()?, new_path.bytes()?);
        operation(&Name::of_root(&device, path), &Name::of_root(&device, new_path)).map(|()| 0)
    })
}

fn tell(stat: &mut OutStat<'_>, attr: &Attr, device: usize) -> Outcome<()> {
    let mut found = caller::empty_stat();
    status::fill(&mut found, attr, device);
    stat.put(found)
}

/// What is known of a file; a link at the end of the path is followed. See nvfold_fstat.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_stat(device: DeviceHandle, path: CText<'_>, mut stat: OutStat<'_>) -> c_int {
    on("nvfold_stat", (device, path), |name| tell(&mut stat, &name.attr(LastLink::Follow)?, name.device.handle))
}

/// As nvfold_stat; of a link at the end of the path it tells what the link is.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_lstat(device: DeviceHandle, path: CText<'_>, mut stat: OutStat<'_>) -> c_int {
    on("nvfold_lstat", (device, path), |name| tell(&mut stat, &name.attr(LastLink::Keep)?, name.device.handle))
}

/// Makes a directory, with the permission bits `mode` less the umask.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_mkdir(device: DeviceHandle, path: CText<'_>, mode: libc::mode_t) -> c_int {
    on("nvfold_mkdir", (device, path), |name| name.mkdir(mode))
}

/// Removes an empty directory. ENOTEMPTY, ENOTDIR, EINVAL for a path that ends in ".", EBUSY for the root.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_rmdir(device: DeviceHandle, path: CText<'_>) -> c_int {
    on("nvfold_rmdir", (device, path), |name| name.rmdir())
}

/// Removes a name of anything but a directory (EISDIR). A file lives on while it is open.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_unlink(device: DeviceHandle, path: CText<'_>) -> c_int {
    on("nvfold_unlink", (device, path), |name| name.unlink())
}

/// Gives a file another name, as link(2): a link at the end of `path` is not followed. EEXIST, EPERM for a directory, EMLINK.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_link(device: DeviceHandle, path: CText<'_>, new_path: CText<'_>) -> c_int {
    on_both("nvfold_link", (device, path, new_path), |name, new| name.link(LastLink::Keep, new))
}

/// Makes a symbolic link at `path` to `target`, which is taken as it is. EEXIST; ENOENT for an empty target.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_symlink(device: DeviceHandle, target: CText<'_>, path: CText<'_>) -> c_int {
    on("nvfold_symlink", (device, path), |name| name.symlink(target.bytes()?))
}

/// The target of a symbolic link: `size` bytes of it at most, without a NUL. Returns the bytes put there. EINVAL when it is no
/// link, or `size` is 0.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_readlink(
    device: DeviceHandle,
    path: CText<'_>,
    mut buffer: OutBytes<'_>,
    size: usize,
) -> libc::ssize_t {
    call("nvfold_readlink", || {
        let (device, path) = (device.device()?, path.bytes()?);
        let room = buffer.slice(size)?;
        if room.is_empty() {
            return Err(Failure::invalid("there is no room for the target"));
        }
        let target = Name::of_root(&device, path).readlink()?;
        let length = target.len().min(room.len());
        room[..length].copy_from_slice(&target[..length]);
        Ok(length as isize)
    })
}

/// Renames, in one step. `flags`: 0, RENAME_NOREPLACE (EEXIST when the new name is there) or RENAME_EXCHANGE (swap the two).
/// ENOENT, EEXIST, EISDIR, ENOTDIR, ENOTEMPTY, EINVAL for a directory into itself and for unknown flags, EBUSY for the root.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_rename(
    device: DeviceHandle,
    path: CText<'_>,
    new_path: CText<'_>,
    flags: c_uint,
) -> c_int {
    on_both("nvfold_rename", (device, path, new_path), |name, new| name.rename(new, flags))
}

/// Copies a directory with all that is below it to a new name, as it is at one instant of the call, whatever other threads
/// write meanwhile. No data is copied; it is shared until one of the two changes. Owners, times, attributes, holes and hard
/// links within the tree are kept. The copy is there whole or not at all. EEXIST, ENOENT, ENOTDIR, EINVAL into itself,
/// ENOSPC; ENOMEM when too much is changed meanwhile.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_clone_tree(device: DeviceHandle, path: CText<'_>, new_path: CText<'_>) -> c_int {
    on_both("nvfold_clone_tree", (device, path, new_path), |name, new| name.clone_tree(new))
}

/// Sets the size of a file; growing leaves a hole.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_truncate(device: DeviceHandle, path: CText<'_>, length: libc::off_t) -> c_int {
    on("nvfold_truncate", (device, path), |name| {
        let size = Some(offset(length)?);
        name.change(LastLink::Follow, &SetAttr { size, ..SetAttr::default() })
    })
}

/// Sets the permission bits.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_chmod(device: DeviceHandle, path: CText<'_>, mode: libc::mode_t) -> c_int {
    on("nvfold_chmod", (device, path), |name| {
        name.change(LastLink::Follow, &SetAttr { mode: Some(mode & MODE_BITS), ..SetAttr::default() })
    })
}

/// Sets owner and group; (uid_t)-1 and (gid_t)-1 leave them.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_chown(
    device: DeviceHandle,
    path: CText<'_>,
    owner: libc::uid_t,
    group: libc::gid_t,
) -> c_int {
    on("nvfold_chown", (device, path), |name| name.change(LastLink::Follow, &owners(owner, group)))
}

/// As nvfold_chown; a link at the end of the path is not followed.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_lchown(
    device: DeviceHandle,
    path: CText<'_>,
    owner: libc::uid_t,
    group: libc::gid_t,
) -> c_int {
    on("nvfold_lchown", (device, path), |name| name.change(LastLink::Keep, &owners(owner, group)))
}

/// Sets the times of access and modification: `times` as nvfold_futimens has them, `flags` 0 or AT_SYMLINK_NOFOLLOW.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_utimens(
    device: DeviceHandle,
    path: CText<'_>,
    times: InTimes<'_>,
    flags: c_int,
) -> c_int {
    let last_link = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { LastLink::Keep } else { LastLink::Follow };
    on("nvfold_utimens", (device, path), |name| {
        if flags & !libc::AT_SYMLINK_NOFOLLOW != 0 {
            return Err(Failure::invalid(format!("unknown flags {flags:#x}")));
        }
        name.change(last_link, &changes_of(&times)?)
    })
}
