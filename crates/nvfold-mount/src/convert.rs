//! Converts between the types of FUSE and those of the library.

use nvfold::{Attr, Error, FileKind, InodeNumber, TimeNs};
use nvfold_fuse::{Errno, Time, protocol};

const NS_PER_SECOND: i64 = 1_000_000_000;
const BLOCK_BYTES: u32 = 4096;

/// Returns the errno of an error.
pub(crate) fn errno(error: Error) -> Errno {
    Errno(error.errno())
}

/// Converts the attributes of an inode.
pub(crate) fn attr(attr: &Attr) -> protocol::Attr {
    let (atime, atime_ns) = seconds_and_ns(attr.atime);
    let (mtime, mtime_ns) = seconds_and_ns(attr.mtime);
    let (ctime, ctime_ns) = seconds_and_ns(attr.ctime);
    protocol::Attr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime,
        mtime,
        ctime,
        atime_ns,
        mtime_ns,
        ctime_ns,
        mode: mode_bits(attr.kind) | attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// Converts the attributes of an inode with its time of birth.
pub(crate) fn statx(attr: &Attr) -> protocol::StatX {
    let time = |time| {
        let (seconds, ns) = seconds_and_ns(time);
        protocol::StatXTime { seconds, ns, reserved: 0 }
    };
    let (rdev_major, rdev_minor) = major_and_minor(attr.rdev);
    protocol::StatX {
        mask: protocol::statx::BASIC | protocol::statx::BTIME,
        blksize: BLOCK_BYTES,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: (mode_bits(attr.kind) | attr.mode) as u16,
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(attr.btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major,
        rdev_minor,
        ..protocol::StatX::default()
    }
}

/// Splits a device number as the kernel encodes it (`new_encode_dev`).
fn major_and_minor(rdev: u32) -> (u32, u32) {
    ((rdev & 0xf_ff00) >> 8, rdev & 0xff | (rdev >> 12) & 0xf_ff00)
}

/// Returns the generation, which tells apart inodes that had the same number. The root has no predecessor, and the
/// kernel wants 0 for it.
pub(crate) fn generation(attr: &Attr) -> u64 {
    if attr.ino == InodeNumber::ROOT { 0 } else { u64::from(attr.generation) }
}

/// Returns the attributes of an inode that cannot be read: its number and its kind.
pub(crate) fn unreadable(ino: InodeNumber, kind: FileKind) -> protocol::Attr {
    protocol::Attr { ino: ino.0, mode: mode_bits(kind), nlink: 1, blksize: BLOCK_BYTES, ..protocol::Attr::default() }
}

/// Returns the type bits of a mode.
pub(crate) fn mode_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => 0o100000,
        FileKind::Directory => 0o040000,
        FileKind::Symlink => 0o120000,
        FileKind::Fifo => 0o010000,
        FileKind::Socket => 0o140000,
        FileKind::CharDevice => 0o020000,
        FileKind::BlockDevice => 0o060000,
    }
}

/// Returns the kind for the type bits of a mode; `None` for kinds that `mknod` does not make.
pub(crate) fn kind_of_mode(mode: u32) -> Option<FileKind> {
    match mode & 0o170000 {
        0 | 0o100000 => Some(FileKind::Regular),
        0o010000 => Some(FileKind::Fifo),
        0o140000 => Some(FileKind::Socket),
        0o020000 => Some(FileKind::CharDevice),
        0o060000 => Some(FileKind::BlockDevice),
        _ => None,
    }
}

fn seconds_and_ns(time: TimeNs) -> (i64, u32) {
    (time.div_euclid(NS_PER_SECOND), time.rem_euclid(NS_PER_SECOND) as u32)
}

/// Returns the time to set; `now` gives it for UTIME_NOW.
pub(crate) fn time(time: Time, now: impl Fn() -> TimeNs) -> TimeNs {
    match time {
        Time::At(time) => time,
        Time::Now => now(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_split_into_seconds_and_nanoseconds() {
        assert_eq!(seconds_and_ns(1_700_000_000_123_456_789), (1_700_000_000, 123_456_789));
        assert_eq!(seconds_and_ns(-1_200_000_000), (-2, 800_000_000));
    }

    #[test]
    fn a_mode_gives_exactly_the_file_kinds_that_mknod_can_make() {
        assert_eq!(kind_of_mode(0o100644), Some(FileKind::Regular));
        assert_eq!(kind_of_mode(0o644), Some(FileKind::Regular));
        assert_eq!(kind_of_mode(0o010600), Some(FileKind::Fifo));
        assert_eq!(kind_of_mode(0o040755), None);
        assert_eq!(kind_of_mode(0o120777), None);
    }
}
