//! Between the words of the library and the structures of C.
#![forbid(unsafe_code)]

use crate::failure::{Failure, Outcome};
use nvfold::{Attr, FileKind, StatFs, TimeNs};

const NS_PER_SECOND: i64 = 1_000_000_000;
/// Bytes that a program should read and write at a time.
const PREFERRED_BYTES: i64 = 4096;
/// Permission bits.
pub const MODE_BITS: u32 = 0o7777;

/// The type bits of a mode.
fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

/// `d_type` of an entry: the type bits, as `IFTODT` makes them.
pub fn entry_type(kind: FileKind) -> u8 {
    (type_bits(kind) >> 12) as u8
}

/// Fills what `stat` tells into a structure that is all zeros. `device` tells devices of this process apart.
pub fn fill(stat: &mut libc::stat, attr: &Attr, device: usize) {
    let (atime, mtime, ctime) = (timespec(attr.atime), timespec(attr.mtime), timespec(attr.ctime));
    stat.st_dev = device as u64;
    stat.st_ino = attr.ino.0;
    stat.st_mode = type_bits(attr.kind) | attr.mode & MODE_BITS;
    stat.st_nlink = attr.nlink.into();
    stat.st_uid = attr.uid;
    stat.st_gid = attr.gid;
    stat.st_rdev = attr.rdev.into();
    stat.st_size = attr.size.min(i64::MAX as u64) as i64;
    stat.st_blksize = PREFERRED_BYTES as _;
    stat.st_blocks = attr.blocks.min(i64::MAX as u64) as i64;
    (stat.st_atime, stat.st_atime_nsec) = (atime.tv_sec, atime.tv_nsec);
    (stat.st_mtime, stat.st_mtime_nsec) = (mtime.tv_sec, mtime.tv_nsec);
    (stat.st_ctime, stat.st_ctime_nsec) = (ctime.tv_sec, ctime.tv_nsec);
}

/// Fills what `statvfs` tells into a structure that is all zeros.
pub fn fill_space(space: &mut libc::statvfs, of: &StatFs, is_read_only: bool, device: usize) {
    space.f_bsize = of.block_bytes.into();
    space.f_frsize = of.block_bytes.into();
    space.f_blocks = of.blocks;
    space.f_bfree = of.blocks_free;
    space.f_bavail = of.blocks_available;
    space.f_files = of.inodes;
    space.f_ffree = of.inodes_free;
    space.f_favail = of.inodes_free;
    space.f_fsid = device as u64;
    space.f_flag = if is_read_only { libc::ST_RDONLY } else { 0 };
    space.f_namemax = of.name_bytes_max.into();
}

fn timespec(ns: TimeNs) -> libc::timespec {
    libc::timespec { tv_sec: ns.div_euclid(NS_PER_SECOND), tv_nsec: ns.rem_euclid(NS_PER_SECOND) }
}

/// The time that a `timespec` of `utimensat` stands for; `None`: leave it. EINVAL.
pub fn time_to_set(time: libc::timespec, now: TimeNs) -> Outcome<Option<TimeNs>> {
    match time.tv_nsec {
        libc::UTIME_NOW => Ok(Some(now)),
        libc::UTIME_OMIT => Ok(None),
        ns if (0..NS_PER_SECOND).contains(&ns) => {
            // As on other file systems with a range of their own: the nearest time that can be kept.
            let time = i128::from(time.tv_sec) * i128::from(NS_PER_SECOND) + i128::from(ns);
            Ok(Some(time.clamp(TimeNs::MIN.into(), TimeNs::MAX.into()) as TimeNs))
        }
        ns => Err(Failure::invalid(format!("{ns} ns are no part of a second"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_survives_conversion_to_timespec_and_back() {
        for ns in [0, 1, -1, -1_200_000_000, 1_700_000_000_123_456_789, i64::MAX, i64::MIN] {
            let time = timespec(ns);
            assert!((0..NS_PER_SECOND).contains(&time.tv_nsec));
            assert_eq!(time_to_set(time, 0).unwrap(), Some(ns));
        }
    }

    #[test]
    fn utimensat_times_now_and_omit_are_accepted_and_invalid_ones_refused() {
        let time =
            |tv_nsec| time_to_set(libc::timespec { tv_sec: i64::MAX, tv_nsec }, 7).map_err(|failure| failure.errno);
        assert_eq!(time(libc::UTIME_NOW), Ok(Some(7)));
        assert_eq!(time(libc::UTIME_OMIT), Ok(None));
        assert_eq!(time(5), Ok(Some(i64::MAX)));
        assert_eq!(time(-1), Err(libc::EINVAL));
        assert_eq!(time(NS_PER_SECOND), Err(libc::EINVAL));
    }
}
