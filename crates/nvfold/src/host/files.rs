//! Files of the host: converts their metadata to nvfold's types, and back.
//!
//! All functions work on the file itself: symbolic links are never followed.

use crate::{Attr, FileKind, TimeNs};
use rustix::fs::{AtFlags, CWD, FileType as HostType, Mode, Timespec, Timestamps, XattrFlags};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Returns the kind of a file of the host; `None` if nvfold does not know it.
pub fn kind(metadata: &Metadata) -> Option<FileKind> {
    Some(match HostType::from_raw_mode(metadata.mode()) {
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

/// Encodes a device number as nvfold stores it, which is as the kernel passes it to FUSE: 12 bits major, 20 bits
/// minor.
pub fn encode_rdev(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// Decodes a device number to the host's encoding.
pub fn decode_rdev(rdev: u32) -> u64 {
    rustix::fs::makedev(rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00)
}

/// Returns the times of last access and of last modification, ns.
pub fn times(metadata: &Metadata) -> (TimeNs, TimeNs) {
    let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
    (ns(metadata.atime(), metadata.atime_nsec()), ns(metadata.mtime(), metadata.mtime_nsec()))
}

/// Returns the extended attributes of the file itself that this process may read, with their values.
pub fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; 64 << 10];
    // A file system without extended attributes counts as having none.
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let with_value = |name: &[u8]| {
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::lgetxattr(path, std::ffi::OsStr::from_bytes(name), &mut value[..]).ok()?;
        value.truncate(length);
        Some((name.to_vec(), value))
    };
    names.filter_map(with_value).collect()
}

/// Opens a file for reading, without changing its access time if that is permitted. Symbolic links are refused.
pub fn open(path: &Path) -> io::Result<File> {
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let no_atime = rustix::fs::OFlags::NOATIME.bits() as i32;
    let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open(path);
    open(no_follow | no_atime).or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => open(no_follow),
        _ => Err(error),
    })
}

/// Calls `each` with the ranges of a file that hold data; with the whole file unless it is sparse.
pub fn data_ranges(
    file: &File,
    metadata: &Metadata,
    mut each: impl FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    let size = metadata.len();
    if metadata.blocks().saturating_mul(512) >= size {
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

/// Makes a fifo, socket or device node.
pub fn make_node(path: &Path, attr: &Attr) -> io::Result<()> {
    let kind = match attr.kind {
        FileKind::Fifo => HostType::Fifo,
        FileKind::Socket => HostType::Socket,
        FileKind::CharDevice => HostType::CharacterDevice,
        FileKind::BlockDevice => HostType::BlockDevice,
        _ => return Err(io::Error::from(io::ErrorKind::InvalidInput)),
    };
    Ok(rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(attr.mode), decode_rdev(attr.rdev))?)
}

/// Sets an extended attribute of the file itself.
pub fn set_xattr(path: &Path, name: &[u8], value: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::lsetxattr(path, std::ffi::OsStr::from_bytes(name), value, XattrFlags::empty())?)
}

/// Sets owner, mode and times of a file. Without root privileges the owner stays.
pub fn set_attributes(path: &Path, attr: &Attr) -> io::Result<()> {
    match std::os::unix::fs::lchown(path, Some(attr.uid), Some(attr.gid)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !rustix::process::geteuid().is_root() => {}
        result => result?,
    }
    if attr.kind != FileKind::Symlink {
        rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(attr.mode), AtFlags::empty())?;
    }
    set_times(path, attr)
}

/// Sets the times of a file.
pub fn set_times(path: &Path, attr: &Attr) -> io::Result<()> {
    let time = |ns: TimeNs| Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) };
    let times = Timestamps { last_access: time(attr.atime), last_modification: time(attr.mtime) };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
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
    fn device_numbers_survive() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (259, 0xf_ffff), (4095, 256)] {
            let rdev = rustix::fs::makedev(major, minor);
            assert_eq!(decode_rdev(encode_rdev(rdev)), rdev);
        }
        // The encoding of FUSE for /dev/null.
        assert_eq!(encode_rdev(rustix::fs::makedev(1, 3)), 0x103);
    }
}
