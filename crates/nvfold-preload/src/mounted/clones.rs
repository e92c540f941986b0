//! Clones by ioctl on a mount.
//!
//! The problem: FUSE has no request for FICLONE and FICLONERANGE, so the kernel refuses them (EOPNOTSUPP), and `cp
//! --reflink=always` fails on a file system that can clone any range. The idea: copy_file_range, which the server answers
//! with a clone.
//!
//! The kernel is asked first, and checks the descriptors as on any file system: EBADF, EXDEV, EISDIR, EINVAL. What is
//! checked here is what a file system checks before it clones: copy_file_range would do a part of such a request.

use super::look;
use crate::answer::errno;
use std::ffi::c_int;

/// The largest part that is cloned at a time; the kernel's own bound for a request is less than 4 GiB.
const PART_BYTES: u64 = 1 << 30;

/// Clones `length` bytes (0: up to the end of the source) to a file of the mount.
///
/// # Errors
/// An errno. EOPNOTSUPP if the target is not on the mount; EINVAL for a range that ends behind the source, or overlaps its
/// target; those of copy_file_range.
pub(crate) fn clone_range(
    (source, source_at): (c_int, u64),
    (target, target_at): (c_int, u64),
    length: u64,
) -> Result<(), c_int> {
    let (Some(from), Some(to)) = (look(source), look(target)) else { return Err(libc::EOPNOTSUPP) };
    let rest = from.size.checked_sub(source_at).ok_or(libc::EINVAL)?;
    let length = if length == 0 { rest } else { length };
    if length == 0 {
        return Ok(());
    }
    let target_end = target_at.checked_add(length).filter(|end| i64::try_from(*end).is_ok()).ok_or(libc::EINVAL)?;
    let overlaps = from.ino == to.ino && target_at < source_at + length && source_at < target_end;
    if length > rest || overlaps {
        return Err(libc::EINVAL);
    }
    let mut done = 0;
    while done < length {
        done += clone_part((source, source_at + done), (target, target_at + done), length - done)?;
    }
    Ok(())
}

/// Clones the beginning of a range; returns how many bytes.
fn clone_part((source, source_at): (c_int, u64), (target, target_at): (c_int, u64), length: u64) -> Result<u64, c_int> {
    let (mut from, mut to) = (source_at as libc::off64_t, target_at as libc::off64_t);
    let length = length.min(PART_BYTES) as usize;
    // SAFETY: the two offsets are ours.
    match unsafe { libc::copy_file_range(source, &raw mut from, target, &raw mut to, length, 0) } {
        -1 if errno() == libc::EINTR => Ok(0),
        -1 => Err(errno()),
        // The source has become shorter meanwhile.
        0 => Err(libc::EINVAL),
        cloned => Ok(cloned as u64),
    }
}
