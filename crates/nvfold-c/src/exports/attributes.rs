//! Extended attributes, by path and by descriptor.

use super::DeviceHandle;
use crate::caller::{CText, InBytes, OutBytes};
use crate::failure::{Failure, Outcome, call};
use crate::paths::{self, LastLink};
use crate::table;
use nvfold::{FileSystem, InodeNumber, XattrMode};
use std::ffi::c_int;

/// The file that a call is about.
enum About<'c> {
    Path(DeviceHandle, CText<'c>),
    Descriptor(c_int),
}

impl About<'_> {
    /// Does something with it.
    fn run<T>(&self, operation: impl FnOnce(&FileSystem, InodeNumber) -> Outcome<T>) -> Outcome<T> {
        match self {
            About::Descriptor(fd) => {
                let open = table::get(*fd)?;
                open.run(|fs| operation(fs, open.file.ino()))
            }
            About::Path(device, path) => {
                let (device, path) = (device.device()?, path.bytes()?);
                let found = device.run(|fs| {
                    let attr = paths::resolve(fs, InodeNumber::ROOT, path, LastLink::Follow)?;
                    operation(fs, attr.ino)
                });
                found.map_err(|failure| failure.at(path))
            }
        }
    }
}

/// Puts a value into the room that there is; with no room tells how much is needed. ERANGE.
fn give(value: &[u8], buffer: &mut OutBytes<'_>, size: usize) -> Outcome<isize> {
    if size == 0 {
        return Ok(value.len() as isize);
    }
    let room = buffer.slice(size)?;
    let needed = value.len();
    let room = room.get_mut(..needed);
    let room =
        room.ok_or_else(|| Failure::new(libc::ERANGE, format!("it has {needed} bytes, and there is room for {size}")))?;
    room.copy_from_slice(value);
    Ok(needed as isize)
}

fn get(about: &About<'_>, name: &CText<'_>, buffer: &mut OutBytes<'_>, size: usize) -> Outcome<isize> {
    let name = name.bytes()?;
    buffer.check(size)?;
    let value = about.run(|fs, ino| {
        panic_if_asked(name);
        Ok(fs.get_xattr(ino, name)?)
    })?;
    give(&value, buffer, size)
}

/// For the tests of this library, in a build with debug assertions alone: an attribute whose reading panics.
fn panic_if_asked(name: &[u8]) {
    if cfg!(debug_assertions) && name == b"user.nvfold.test-panic" {
        panic!("a test asked for it");
    }
}

fn set(about: &About<'_>, name: &CText<'_>, (value, size): (&InBytes<'_>, usize), flags: c_int) -> Outcome<c_int> {
    let (name, value) = (name.bytes()?, value.slice(size)?);
    let mode = match flags {
        0 => XattrMode::Set,
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        _ => return Err(Failure::invalid(format!("unknown flags {flags:#x}"))),
    };
    about.run(|fs, ino| Ok(fs.set_xattr(ino, name, value, mode)?)).map(|()| 0)
}

fn list(about: &About<'_>, buffer: &mut OutBytes<'_>, size: usize) -> Outcome<isize> {
    buffer.check(size)?;
    let names = about.run(|fs, ino| Ok(fs.list_xattr(ino)?))?;
    let names: Vec<u8> = names.into_iter().flat_map(|name| [name, vec![0]].concat()).collect();
    give(&names, buffer, size)
}

fn remove(about: &About<'_>, name: &CText<'_>) -> Outcome<c_int> {
    let name = name.bytes()?;
    about.run(|fs, ino| Ok(fs.remove_xattr(ino, name)?)).map(|()| 0)
}

/// The value of an extended attribute; returns its bytes. With `size` 0 nothing but that. ENODATA, ERANGE.
///
/// Two mean something to nvfold, as on a mount: "user.nvfold.dedup" (the policy for new data of a file, or of what is made in
/// a directory) and "user.nvfold.compress".
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_getxattr(
    device: DeviceHandle,
    path: CText<'_>,
    name: CText<'_>,
    mut value: OutBytes<'_>,
    size: usize,
) -> libc::ssize_t {
    call("nvfold_getxattr", || get(&About::Path(device, path), &name, &mut value, size))
}

/// Sets an extended attribute: any name of 1 to 255 bytes, `size` bytes of value, 65536 at most. `flags`: 0, XATTR_CREATE
/// (EEXIST when it is there), XATTR_REPLACE (ENODATA when it is not). E2BIG, ERANGE, ENOSPC, EINVAL.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_setxattr(
    device: DeviceHandle,
    path: CText<'_>,
    name: CText<'_>,
    value: InBytes<'_>,
    size: usize,
    flags: c_int,
) -> c_int {
    call("nvfold_setxattr", || set(&About::Path(device, path), &name, (&value, size), flags))
}

/// The names of all extended attributes, each with a NUL behind it; returns the bytes of all. With `size` 0 nothing but
/// that. ERANGE.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_listxattr(
    device: DeviceHandle,
    path: CText<'_>,
    mut names: OutBytes<'_>,
    size: usize,
) -> libc::ssize_t {
    call("nvfold_listxattr", || list(&About::Path(device, path), &mut names, size))
}

/// Removes an extended attribute. ENODATA.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_removexattr(device: DeviceHandle, path: CText<'_>, name: CText<'_>) -> c_int {
    call("nvfold_removexattr", || remove(&About::Path(device, path), &name))
}

/// As nvfold_getxattr, of an open file.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_fgetxattr(
    fd: c_int,
    name: CText<'_>,
    mut value: OutBytes<'_>,
    size: usize,
) -> libc::ssize_t {
    call("nvfold_fgetxattr", || get(&About::Descriptor(fd), &name, &mut value, size))
}

/// As nvfold_setxattr, of an open file.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_fsetxattr(
    fd: c_int,
    name: CText<'_>,
    value: InBytes<'_>,
    size: usize,
    flags: c_int,
) -> c_int {
    call("nvfold_fsetxattr", || set(&About::Descriptor(fd), &name, (&value, size), flags))
}

/// As nvfold_listxattr, of an open file.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_flistxattr(fd: c_int, mut names: OutBytes<'_>, size: usize) -> libc::ssize_t {
    call("nvfold_flistxattr", || list(&About::Descriptor(fd), &mut names, size))
}

/// As nvfold_removexattr, of an open file.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_fremovexattr(fd: c_int, name: CText<'_>) -> c_int {
    call("nvfold_fremovexattr", || remove(&About::Descriptor(fd), &name))
}
