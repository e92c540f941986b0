//! Names: everything that is asked of a path.

use super::DeviceHandle;
use super::changes::{changes_of, owners};
use crate::caller::{self, CText, InTimes, OutBytes, OutStat};
use crate::device::Device;
use crate::failure::{Failure, Outcome, call};
use crate::files::{new_inode, offset};
use crate::paths::{self, LastLink, Place};
use crate::status::{self, MODE_BITS};
use nvfold::{Attr, FileKind, FileSystem, InodeNumber, RenameMode, SetAttr};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// Does something with what a path leads to, and answers 0.
fn at(
    function: &'static str,
    (device, path): (DeviceHandle, CText<'_>),
    last_link: LastLink,
    operation: impl FnOnce(&FileSystem, &Attr) -> Outcome<()>,
) -> c_int {
    on_place(function, (device, path), last_link, |_, fs, place| operation(fs, &place.existing()?))
}

/// Does something with the place that a path leads to, and answers 0.
fn on_place(
    function: &'static str,
    (device, path): (DeviceHandle, CText<'_>),
    last_link: LastLink,
    operation: impl FnOnce(&Arc<Device>, &FileSystem, Place) -> Outcome<()>,
) -> c_int {
    call(function, || {
        let (device, path) = (device.device()?, path.bytes()?);
        let found = device.run(|fs| {
            let place = paths::locate(fs, InodeNumber::ROOT, path, last_link)?;
            operation(&device, fs, place)
        });
        found.map(|()| 0).map_err(|failure| failure.at(path))
    })
}

/// A place that something new is to have.
fn check_is_free(place: &Place) -> Outcome<()> {
    match place.attr {
        Some(_) => Err(Failure::new(libc::EEXIST, "it exists")),
        None => Ok(()),
    }
}

fn tell(stat: &mut OutStat<'_>, attr: &Attr, device: usize) -> Outcome<()> {
    let mut found = caller::empty_stat();
    status::fill(&mut found, attr, device);
    stat.put(found)
}

/// What is known of a file; a link at the end of the path is followed. See nvfold_fstat.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_stat(device: DeviceHandle, path: CText<'_>, mut stat: OutStat<'_>) -> c_int {
    on_place("nvfold_stat", (device, path), LastLink::Follow, |device, _, place| {
        tell(&mut stat, &place.existing()?, device.handle)
    })
}

/// As nvfold_stat; of a link at the end of the path it tells what the link is.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_lstat(device: DeviceHandle, path: CText<'_>, mut stat: OutStat<'_>) -> c_int {
    on_place("nvfold_lstat", (device, path), LastLink::Keep, |device, _, place| {
        tell(&mut stat, &place.existing()?, device.handle)
    })
}

/// Makes a directory, with the permission bits `mode` less the umask.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_mkdir(device: DeviceHandle, path: CText<'_>, mode: libc::mode_t) -> c_int {
    on_place("nvfold_mkdir", (device, path), LastLink::Keep, |device, fs, place| {
        check_is_free(&place)?;
        let new = new_inode(device, FileKind::Directory, mode);
        Ok(fs.mkdir(place.directory, &place.name, &new).map(drop)?)
    })
}

/// Removes an empty directory. ENOTEMPTY, ENOTDIR, EINVAL for a path that ends in ".", EBUSY for the root.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_rmdir(device: DeviceHandle, path: CText<'_>) -> c_int {
    on_place("nvfold_rmdir", (device, path), LastLink::Keep, |_, fs, place| {
        if place.existing()?.ino == InodeNumber::ROOT {
            return Err(Failure::new(libc::EBUSY, "it is the root of the device"));
        }
        Ok(fs.rmdir(place.directory, &place.name)?)
    })
}

/// Removes a name of anything but a directory (EISDIR). A file lives on while it is open.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_unlink(device: DeviceHandle, path: CText<'_>) -> c_int {
    on_place("nvfold_unlink", (device, path), LastLink::Keep, |_, fs, place| {
        if place.existing()?.kind == FileKind::Directory {
            return Err(Failure::new(libc::EISDIR, "it is a directory; use nvfold_rmdir"));
        }
        Ok(fs.unlink(place.directory, &place.name)?)
    })
}

/// Gives a file another name, as link(2): a link at the end of `path` is not followed. EEXIST, EPERM for a directory, EMLINK.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_link(device: DeviceHandle, path: CText<'_>, new_path: CText<'_>) -> c_int {
    call("nvfold_link", || {
        let (device, path, new_path) = (device.device()?, path.bytes()?, new_path.bytes()?);
        let find = |fs: &FileSystem| paths::resolve(fs, InodeNumber::ROOT, path, LastLink::Keep);
        let ino = device.run(find).map_err(|failure| failure.at(path))?.ino;
        let made = device.run(|fs| {
            let place = paths::locate(fs, InodeNumber::ROOT, new_path, LastLink::Keep)?;
            check_is_free(&place)?;
            if place.must_be_directory {
                return Err(Failure::new(libc::ENOENT, "it ends in / and is no directory"));
            }
            Ok(fs.link(ino, place.directory, &place.name).map(drop)?)
        });
        made.map(|()| 0).map_err(|failure| failure.at(new_path))
    })
}

/// Makes a symbolic link at `path` to `target`, which is taken as it is. EEXIST; ENOENT for an empty target.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_symlink(device: DeviceHandle, target: CText<'_>, path: CText<'_>) -> c_int {
    on_place("nvfold_symlink", (device, path), LastLink::Keep, |device, fs, place| {
        let target = target.bytes()?;
        check_is_free(&place)?;
        if place.must_be_directory {
            return Err(Failure::new(libc::ENOENT, "it ends in / and is no directory"));
        }
        let new = new_inode(device, FileKind::Symlink, MODE_BITS);
        Ok(fs.symlink(place.directory, &place.name, target, &new).map(drop)?)
    })
}

/// The target of a symbolic link: `size` bytes of it at most, without a NUL. Returns the bytes put there. EINVAL when it is no
/// link, or `size` is 0.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_readlink(
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
        let target = device.run(|fs| {
            let attr = paths::resolve(fs, InodeNumber::ROOT, path, LastLink::Keep)?;
            Ok(fs.readlink(attr.ino)?)
        });
        let target = target.map_err(|failure| failure.at(path))?;
        let length = target.len().min(room.len());
        room[..length].copy_from_slice(&target[..length]);
        Ok(length as isize)
    })
}

/// Renames, in one step. `flags`: 0, RENAME_NOREPLACE (EEXIST when the new name is there) or RENAME_EXCHANGE (swap the two).
/// ENOENT, EEXIST, EISDIR, ENOTDIR, ENOTEMPTY, EINVAL for a directory into itself and for unknown flags, EBUSY for the root.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_rename(device: DeviceHandle, path: CText<'_>, new_path: CText<'_>, flags: c_uint) -> c_int {
    call("nvfold_rename", || {
        let (device, path, new_path) = (device.device()?, path.bytes()?, new_path.bytes()?);
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Failure::invalid(format!("there is no rename with flags {flags:#x}"))),
        };
        let place = |path: &[u8]| {
            let find = |fs: &FileSystem| paths::locate(fs, InodeNumber::ROOT, path, LastLink::Keep);
            device.run(find).map_err(|failure| failure.at(path))
        };
        let (old, new) = (place(path)?, place(new_path)?);
        let what = old.existing().map_err(|failure| failure.at(path))?;
        if !old.has_own_name() || !new.has_own_name() {
            return Err(Failure::new(libc::EBUSY, "neither the root nor . nor .. can be renamed"));
        }
        if new.must_be_directory && what.kind != FileKind::Directory {
            return Err(
                Failure::new(libc::ENOTDIR, "the new path ends in / and the old one is no directory").at(new_path)
            );
        }
        let renamed = device.run(|fs| Ok(fs.rename(old.directory, &old.name, new.directory, &new.name, mode)?));
        renamed.map(|()| 0).map_err(|failure| failure.at(path))
    })
}

/// Sets the size of a file; growing leaves a hole.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_truncate(device: DeviceHandle, path: CText<'_>, length: libc::off_t) -> c_int {
    at("nvfold_truncate", (device, path), LastLink::Follow, |fs, attr| {
        let size = Some(offset(length)?);
        Ok(fs.setattr(attr.ino, &SetAttr { size, ..SetAttr::default() }).map(drop)?)
    })
}

/// Sets the permission bits.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_chmod(device: DeviceHandle, path: CText<'_>, mode: libc::mode_t) -> c_int {
    at("nvfold_chmod", (device, path), LastLink::Follow, |fs, attr| {
        let mode = Some(mode & MODE_BITS);
        Ok(fs.setattr(attr.ino, &SetAttr { mode, ..SetAttr::default() }).map(drop)?)
    })
}

/// Sets owner and group; (uid_t)-1 and (gid_t)-1 leave them.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_chown(device: DeviceHandle, path: CText<'_>, owner: libc::uid_t, group: libc::gid_t) -> c_int {
    at("nvfold_chown", (device, path), LastLink::Follow, |fs, attr| {
        Ok(fs.setattr(attr.ino, &owners(owner, group)).map(drop)?)
    })
}

/// As nvfold_chown; a link at the end of the path is not followed.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_lchown(
    device: DeviceHandle,
    path: CText<'_>,
    owner: libc::uid_t,
    group: libc::gid_t,
) -> c_int {
    at("nvfold_lchown", (device, path), LastLink::Keep, |fs, attr| {
        Ok(fs.setattr(attr.ino, &owners(owner, group)).map(drop)?)
    })
}

/// Sets the times of access and modification: `times` as nvfold_futimens has them, `flags` 0 or AT_SYMLINK_NOFOLLOW.
#[unsafe(no_mangle)]
pub extern "C" fn nvfold_utimens(device: DeviceHandle, path: CText<'_>, times: InTimes<'_>, flags: c_int) -> c_int {
    let last_link = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { LastLink::Keep } else { LastLink::Follow };
    at("nvfold_utimens", (device, path), last_link, |fs, attr| {
        if flags & !libc::AT_SYMLINK_NOFOLLOW != 0 {
            return Err(Failure::invalid(format!("unknown flags {flags:#x}")));
        }
        Ok(fs.setattr(attr.ino, &changes_of(&times)?).map(drop)?)
    })
}
