//! Between the words of FUSE and those of the library.

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, TimeOrNow};
use nvfold::{Attr, Error, FileKind, InodeNumber, TimeNs};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NS_PER_SECOND: i64 = 1_000_000_000;

/// The errno of an error.
pub fn errno(error: Error) -> Errno {
    Errno::from_i32(error.errno())
}

/// An inode number of the library.
pub fn ino(ino: INodeNo) -> InodeNumber {
    InodeNumber(ino.0)
}

/// What `stat` tells.
pub fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        crtime: time(attr.btime),
        kind: kind(attr.kind),
        perm: attr.mode as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: 4096,
        flags: 0,
    }
}

/// What tells two inodes of one number from each other. The root has no predecessor, and the kernel wants 0 for it.
pub fn generation(attr: &Attr) -> Generation {
    Generation(if attr.ino == InodeNumber::ROOT { 0 } else { u64::from(attr.generation) })
}

/// The answer "there is no such name" that the kernel may remember: inode number 0.
pub fn no_such_name() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// All that is known of an inode that cannot be read.
pub fn unreadable(ino: InodeNumber, of: FileKind) -> FileAttr {
    FileAttr { ino: INodeNo(ino.0), kind: kind(of), nlink: 1, ..no_such_name() }
}

/// Kind of an inode.
pub fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// Kind that the type bits of a mode name; `mknod` makes no others.
pub fn kind_of_mode(mode: u32) -> Option<FileKind> {
    match mode & 0o170000 {
        0 | 0o100000 => Some(FileKind::Regular),
        0o010000 => Some(FileKind::Fifo),
        0o140000 => Some(FileKind::Socket),
        0o020000 => Some(FileKind::CharDevice),
        0o060000 => Some(FileKind::BlockDevice),
        _ => None,
    }
}

fn time(ns: TimeNs) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
}

/// A time from a `setattr` request.
pub fn time_ns(time: SystemTime) -> TimeNs {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => seconds_and_ns(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
        // fuser 0.18 reads seconds < 0 and nanoseconds as 1970 - |seconds| - nanoseconds, where + is meant.
        Err(before) => {
            let distance = before.duration();
            seconds_and_ns(-i64::try_from(distance.as_secs()).unwrap_or(i64::MAX), distance.subsec_nanos())
        }
    }
}

fn seconds_and_ns(seconds: i64, ns: u32) -> TimeNs {
    seconds.saturating_mul(NS_PER_SECOND).saturating_add(i64::from(ns))
}

/// As `time_ns`; `now` for UTIME_NOW.
pub fn time_or_now(time: TimeOrNow, now: impl Fn() -> TimeNs) -> TimeNs {
    match time {
        TimeOrNow::SpecificTime(time) => time_ns(time),
        TimeOrNow::Now => now(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_after_1970_come_back_as_they_went() {
        for ns in [0, 1, 1_700_000_000_123_456_789, i64::MAX] {
            assert_eq!(time_ns(time(ns)), ns);
        }
    }

    #[test]
    fn a_time_before_1970_is_read_as_the_kernel_meant_it() {
        // The kernel says -2 s and 800,000,000 ns: 1.2 s before 1970. fuser turns it into this:
        let decoded = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(time_ns(decoded), -1_200_000_000);
    }

    #[test]
    fn a_mode_names_the_kinds_mknod_makes() {
        assert_eq!(kind_of_mode(0o100644), Some(FileKind::Regular));
        assert_eq!(kind_of_mode(0o644), Some(FileKind::Regular));
        assert_eq!(kind_of_mode(0o010600), Some(FileKind::Fifo));
        assert_eq!(kind_of_mode(0o040755), None);
        assert_eq!(kind_of_mode(0o120777), None);
    }
}
