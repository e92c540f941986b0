//! Files of the host: converts their metadata to nvfold's types, and back.
//!
//! All functions work on the file itself: symbolic links are never followed.

use crate::{Attr, FileKind, TimeNs};
use rustix::fs::{AtFlags, CWD, FileType as HostType, Mode, Stat, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes that one call for an extended attribute, or for the list of them, gets in most cases.
const XATTR_BYTES_MOST: usize = 1024;
/// Bytes of the longest value, and of the longest list (Linux: XATTR_SIZE_MAX).
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Returns the kind of a file of the host; `None` if nvfold does not know it.
pub fn kind(metadata: &Metadata) -> Option<FileKind> {
    kind_of_mode(metadata.mode())
}

/// Returns the kind of a file of the host by the bits of its mode.
pub(super) fn kind_of_mode(mode: u32) -> Option<FileKind> {
    Some(match HostType::from_raw_mode(mode) {
        HostType::RegularFile => FileKind::Regular,
        HostType::Directory => FileKind::Directory,
        HostType::Symlink => FileKind::Symlink,
        HostType::Fifo => FileKind::Fifo,
        HostType::Socket => FileKind::Socket,
        HostType::CharacterDevice => FileKind::CharDevice,
        HostType::BlockDevice => FileKind::BlockDevice,
        _ => return None,
    })
}

/// Returns the device and the inode number, which no other file has while this one is there.
pub(super) fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Returns the size in bytes.
pub(super) fn size(stat: &Stat) -> u64 {
    stat.st_size.max(0) as u64
}

/// Returns the bytes that the content takes on the host.
pub(super) fn allocated_bytes(stat: &Stat) -> u64 {
    (stat.st_blocks.max(0) as u64).saturating_mul(512)
}

/// Encodes a device number as nvfold stores it, which is as the kernel passes it to FUSE: 12 bits major, 20 bits
/// minor.
pub(super) fn encode_rdev(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// Decodes a device number to the host's encoding.
pub(super) fn decode_rdev(rdev: u32) -> u64 {
    rustix::fs::makedev(rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00)
}

/// Returns the times of last access and of last modification, ns.
pub(super) fn times(stat: &Stat) -> (TimeNs, TimeNs) {
    let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
    (ns(stat.st_atime, stat.st_atime_nsec), ns(stat.st_mtime, stat.st_mtime_nsec))
}

/// Returns a path by which the kernel finds what a descriptor has open, for calls that have no other way.
pub(super) fn path_of(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// A file of the host by a descriptor, to read and set its attributes.
#[derive(Clone, Copy)]
pub(super) enum HostFile<'f> {
    /// Open for reading or writing.
    Open(BorrowedFd<'f>),
    /// A handle: for symbolic links, fifos and device nodes, which are not to be opened.
    Handle(BorrowedFd<'f>),
}

impl HostFile<'_> {
    /// Returns the extended attributes that this process may read, with their values.
    pub(super) fn xattrs(self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let list = |buffer: &mut [u8]| match self {
            HostFile::Open(fd) => rustix::fs::flistxattr(fd, buffer),
            HostFile::Handle(fd) => rustix::fs::listxattr(path_of(fd), buffer),
        };
        // A file system without extended attributes counts as having none.
        let names = filled(list).unwrap_or_default();
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let with_value = |name: &[u8]| {
            let get = |buffer: &mut [u8]| match self {
                HostFile::Open(fd) => rustix::fs::fgetxattr(fd, OsStr::from_bytes(name), buffer),
                HostFile::Handle(fd) => rustix::fs::getxattr(path_of(fd), OsStr::from_bytes(name), buffer),
            };
            Some((name.to_vec(), filled(get).ok()?))
        };
        names.filter_map(with_value).collect()
    }

    /// Sets an extended attribute.
    pub(super) fn set_xattr(self, name: &[u8], value: &[u8]) -> io::Result<()> {
        let (name, flags) = (OsStr::from_bytes(name), XattrFlags::empty());
        let set = match self {
            HostFile::Open(fd) => rustix::fs::fsetxattr(fd, name, value, flags),
            HostFile::Handle(fd) => rustix::fs::setxattr(path_of(fd), name, value, flags),
        };
        set.map_err(io::Error::from)
    }

    /// Sets owner and group. Returns false if they cannot be set: without root privileges, or to numbers that the host
    /// does not have.
    pub(super) fn set_owner(self, attr: &Attr) -> io::Result<bool> {
        if attr.uid == u32::MAX || attr.gid == u32::MAX {
            return Ok(false);
        }
        let (HostFile::Open(fd) | HostFile::Handle(fd)) = self;
        let (uid, gid) = (Uid::from_raw(attr.uid), Gid::from_raw(attr.gid));
        match rustix::fs::chownat(fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH) {
            Err(Errno::PERM) if !rustix::process::geteuid().is_root() => Ok(false),
            result => Ok(result.map(|()| true)?),
        }
    }

    /// Sets the permission bits; not of a symbolic link.
    pub(super) fn set_mode(self, mode: u32) -> io::Result<()> {
        let mode = Mode::from_raw_mode(mode);
        let set = match self {
            HostFile::Open(fd) => rustix::fs::fchmod(fd, mode),
            HostFile::Handle(fd) => rustix::fs::chmodat(CWD, path_of(fd), mode, AtFlags::empty()),
        };
        set.map_err(io::Error::from)
    }

    /// Sets the times.
    pub(super) fn set_times(self, attr: &Attr) -> io::Result<()> {
        let time =
            |ns: TimeNs| Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) };
        let times = Timestamps { last_access: time(attr.atime), last_modification: time(attr.mtime) };
        let set = match self {
            HostFile::Open(fd) => rustix::fs::futimens(fd, &times),
            HostFile::Handle(fd) => match rustix::fs::utimensat(fd, "", &times, AtFlags::EMPTY_PATH) {
                // Before Linux 5.8.
                Err(Errno::INVAL) => rustix::fs::utimensat(CWD, path_of(fd), &times, AtFlags::empty()),
                done => done,
            },
        };
        set.map_err(io::Error::from)
    }
}

/// Returns what `get` puts into a buffer: first into one that is long enough in most cases.
fn filled(get: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut short = [0; XATTR_BYTES_MOST];
    match get(&mut short) {
        Ok(length) => Ok(short[..length].to_vec()),
        Err(Errno::RANGE) => {
            let mut long = vec![0; XATTR_BYTES_MAX];
            let length = get(&mut long)?;
            long.truncate(length);
            Ok(long)
        }
        Err(error) => Err(error),
    }
}

/// Calls `each` with the ranges of a file that hold data; with the whole file unless it is sparse.
pub(super) fn data_ranges(
    file: &File,
    stat: &Stat,
    mut each: impl FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    let size = size(stat);
    if allocated_bytes(stat) >= size {
        return if size > 0 { each(0, size) } else { Ok(()) };
    }
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            // This file system cannot report holes, so everything counts as data.
            Err(_) => return each(at, size),
        };
        let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start))?.min(size);
        if start >= end {
            break;
        }
        each(start, end)?;
        at = end;
    }
    Ok(())
}

/// Makes a fifo, socket or device node in a directory, for its owner alone.
pub(super) fn make_node(dir: BorrowedFd<'_>, name: &OsStr, attr: &Attr) -> io::Result<()> {
    let kind = match attr.kind {
        FileKind::Fifo => HostType::Fifo,
        FileKind::Socket => HostType::Socket,
        FileKind::CharDevice => HostType::CharacterDevice,
        FileKind::BlockDevice => HostType::BlockDevice,
        _ => return Err(io::Error::from(io::ErrorKind::InvalidInput)),
    };
    Ok(rustix::fs::mknodat(dir, name, kind, Mode::RUSR | Mode::WUSR, decode_rdev(attr.rdev))?)
}

/// Returns the names in a directory of the host, sorted, without `.` and `..`.
pub fn names(dir: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    let mut names =
        std::fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_encoding() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (259, 0xf_ffff), (4095, 256)] {
            let rdev = rustix::fs::makedev(major, minor);
            assert_eq!(decode_rdev(encode_rdev(rdev)), rdev);
        }
        // The encoding of FUSE for /dev/null.
        assert_eq!(encode_rdev(rustix::fs::makedev(1, 3)), 0x103);
    }
}
