//! Reading directories.

use super::{DeviceHandle, DirectoryHandle, OutDirent};
use crate::caller::CText;
use crate::failure::{Failure, call};
use crate::listing;
use crate::paths::{self, LastLink};
use crate::status::entry_type;
use nvfold::InodeNumber;
use std::ffi::{c_char, c_int};
use std::ptr;

/// Longest name and its NUL: `d_name`.
const NAME_ROOM: usize = 256;

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Dirent {
    /// Number of the inode.
    pub d_ino: u64,
    /// For nvfold_seekdir: to go on behind this entry. Stable as long as the entry is there.
    pub d_off: i64,
    /// Bytes of the name.
    pub d_namlen: u16,
    /// DT_REG, DT_DIR, DT_LNK, ...
    pub d_type: u8,
    /// The name, which ends in NUL.
    pub d_name: [c_char; 256],
}

/// Begins to read a directory. Returns a handle for nvfold_readdir, or NULL: ENOENT, ENOTDIR, ...
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_opendir(device: DeviceHandle, path: CText<'_>) -> DirectoryHandle {
    call("nvfold_opendir", || {
        let (device, path) = (device.device()?, path.bytes()?);
        let directory = device.run(|fs| {
            let attr = paths::resolve(fs, InodeNumber::ROOT, path, LastLink::Follow)?;
            Ok(fs.open(attr.ino)?)
        });
        let handle = directory.and_then(|directory| listing::open(&device, directory));
        Ok(DirectoryHandle(ptr::without_provenance_mut(handle.map_err(|failure| failure.at(path))?)))
    })
}

/// Puts the next entry into `entry`; returns 1, or 0 at the end, or -1 (EBADF, EFAULT, EIO). The entries "." and ".." are not
/// among them. While others make and remove names, a name that stays is listed exactly once, and what is made after
/// nvfold_opendir is not listed. Threads that read one handle get each entry once among them.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_readdir(directory: DirectoryHandle, mut entry: OutDirent<'_>) -> c_int {
    call("nvfold_readdir", || {
        let listing = listing::of(directory.0.addr())?;
        entry.check()?;
        let Some(found) = listing.next()? else { return Ok(0) };
        let mut name = [0; NAME_ROOM];
        let length = found.name.len().min(NAME_ROOM - 1);
        name.iter_mut().zip(&found.name[..length]).for_each(|(to, from)| *to = *from as c_char);
        entry.put(Dirent {
            d_ino: found.ino.0,
            d_off: found.cookie as i64,
            d_namlen: length as u16,
            d_type: entry_type(found.kind),
            d_name: name,
        })?;
        Ok(1)
    })
}

/// Goes on behind the entry of which `position` is the d_off; 0: from the start, with what is there now.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_seekdir(directory: DirectoryHandle, position: i64) -> c_int {
    call("nvfold_seekdir", || {
        let position = u64::try_from(position).map_err(|_| Failure::invalid("a position is not below 0"))?;
        listing::of(directory.0.addr())?.seek(position);
        Ok(0)
    })
}

/// The position: d_off of the entry that was read last, 0 at the start. -1: EBADF.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_telldir(directory: DirectoryHandle) -> i64 {
    call("nvfold_telldir", || Ok(listing::of(directory.0.addr())?.tell() as i64))
}

/// Ends reading a directory. EBADF.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_closedir(directory: DirectoryHandle) -> c_int {
    call("nvfold_closedir", || {
        let handle = directory.0.addr();
        // Its last user may free a directory that was removed.
        let device = listing::of(handle)?.device();
        device.run(|_| listing::close(handle)).map(|()| 0)
    })
}
