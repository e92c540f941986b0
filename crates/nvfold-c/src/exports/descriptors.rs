//! Descriptors: opening, reading, writing, and all else that is asked of an open file.

use super::DeviceHandle;
use super::changes::changes_of;
use crate::caller::{self, CIovecs, CText, InBytes, InTimes, OutBytes, OutStat};
use crate::failure::{Failure, Outcome, answer, call};
use crate::files::{self, Open, Target, offset};
use crate::status::{self, MODE_BITS};
use crate::table;
use crate::transfers::{self, Source};
use nvfold::{FileKind, InodeNumber, SetAttr};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Does something with an open file that answers 0.
fn on(function: &'static str, fd: c_int, operation: impl FnOnce(&Open) -> Outcome<()>) -> c_int {
    call(function, || operation(&*table::get(fd)?).map(|()| 0))
}

/// Opens a file, as open(2). A directory can be opened with O_RDONLY, for nvfold_openat, nvfold_fstat and the like.
///
/// `flags`: O_RDONLY, O_WRONLY or O_RDWR, and of O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_DIRECTORY, O_NOFOLLOW, O_SYNC and
/// O_DSYNC any; others mean nothing here, but O_PATH and O_TMPFILE, which are EOPNOTSUPP. With O_CREAT `mode` is that of a
/// new file, less the umask (nvfold_umask); without it anything.
///
/// Returns a descriptor, which is none of the kernel's (2^30 or above), or -1: ENOENT, EEXIST, EISDIR, ENOTDIR, ELOOP,
/// EROFS, ENOSPC, EINVAL, EMFILE, EOPNOTSUPP for what is neither a file nor a directory.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_open(device: DeviceHandle, path: CText<'_>, flags: c_int, mode: libc::mode_t) -> c_int {
    call("nvfold_open", || {
        let (device, path) = (device.device()?, path.bytes()?);
        let open = files::open(&device, InodeNumber::ROOT, path, flags, mode).map_err(|failure| failure.at(path))?;
        table::insert(Arc::new(open))
    })
}

/// As nvfold_open; a path that does not begin with a / is relative to the open directory `directory`.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_openat(directory: c_int, path: CText<'_>, flags: c_int, mode: libc::mode_t) -> c_int {
    call("nvfold_openat", || {
        let (directory, path) = (table::get(directory)?, path.bytes()?);
        if directory.kind != FileKind::Directory {
            return Err(Failure::new(libc::ENOTDIR, "the descriptor is of no directory"));
        }
        let (device, start) = (&directory.device, directory.file.ino());
        let open = files::open(device, start, path, flags, mode).map_err(|failure| failure.at(path))?;
        table::insert(Arc::new(open))
    })
}

/// Closes a descriptor. The number is EBADF from then on; it comes back after more than 1000 others only. What is known of
/// copies from the file is forgotten with its last descriptor.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_close(fd: c_int) -> c_int {
    call("nvfold_close", || close(fd).map(|()| 0))
}

pub(super) fn close(fd: c_int) -> Outcome<()> {
    // What ends with the last user may change the device: a file without a name is freed.
    let open = table::remove(fd)?;
    let device = open.device.clone();
    device.run(|_| {
        drop(open);
        Ok(())
    })
}

/// Another descriptor of the same open file: position and flags are shared.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_dup(fd: c_int) -> c_int {
    call("nvfold_dup", || table::insert(table::get(fd)?))
}

/// Reads `length` bytes at the position, which moves behind them. Returns the bytes read: fewer only at the end of the
/// file, and 2147479552 at most. A read sees a write of another thread completely or not at all.
/// -1: EBADF, EISDIR, EFAULT, EINVAL (more than SSIZE_MAX), EIO.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_read(fd: c_int, mut buffer: OutBytes<'_>, length: usize) -> libc::ssize_t {
    call("nvfold_read", || transfers::read(&*table::get(fd)?, Source::Position, &mut buffer, length))
}

/// Writes `length` bytes (2147479552 at most) at the position, which moves behind them; of a file that is open with
/// O_APPEND at its end. All of it happens, or nothing; two appends never mix.
/// -1: EBADF, EFAULT, EINVAL, EFBIG, ENOSPC, EROFS, EIO.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_write(fd: c_int, buffer: InBytes<'_>, length: usize) -> libc::ssize_t {
    call("nvfold_write", || transfers::write(&*table::get(fd)?, Target::Position, &buffer, length))
}

/// As nvfold_read, at an offset; the position stays.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_pread(
    fd: c_int,
    mut buffer: OutBytes<'_>,
    length: usize,
    at: libc::off_t,
) -> libc::ssize_t {
    call("nvfold_pread", || transfers::read(&*table::get(fd)?, Source::Offset(offset(at)?), &mut buffer, length))
}

/// As nvfold_write, at an offset; the position stays. With O_APPEND too it writes at the offset, as POSIX says (and Linux
/// does not).
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_pwrite(
    fd: c_int,
    buffer: InBytes<'_>,
    length: usize,
    at: libc::off_t,
) -> libc::ssize_t {
    call("nvfold_pwrite", || transfers::write(&*table::get(fd)?, Target::Offset(offset(at)?), &buffer, length))
}

/// As nvfold_read, into `count` buffers (1024 at most), one after the other. It is one read.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_readv(fd: c_int, buffers: CIovecs<'_>, count: c_int) -> libc::ssize_t {
    call("nvfold_readv", || transfers::read_vector(&*table::get(fd)?, Source::Position, &buffers, count))
}

/// As nvfold_write, from `count` buffers (1024 at most), one after the other. It is one write, atomic as a whole.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_writev(fd: c_int, buffers: CIovecs<'_>, count: c_int) -> libc::ssize_t {
    call("nvfold_writev", || transfers::write_vector(&*table::get(fd)?, Target::Position, &buffers, count))
}

/// As nvfold_readv, at an offset; the position stays.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preadv(
    fd: c_int,
    buffers: CIovecs<'_>,
    count: c_int,
    at: libc::off_t,
) -> libc::ssize_t {
    call("nvfold_preadv", || transfers::read_vector(&*table::get(fd)?, Source::Offset(offset(at)?), &buffers, count))
}

/// As nvfold_writev, at an offset; the position stays.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_pwritev(
    fd: c_int,
    buffers: CIovecs<'_>,
    count: c_int,
    at: libc::off_t,
) -> libc::ssize_t {
    call("nvfold_pwritev", || transfers::write_vector(&*table::get(fd)?, Target::Offset(offset(at)?), &buffers, count))
}

/// Moves the position, as lseek(2): SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE. Returns it.
/// -1: EINVAL, EOVERFLOW, ENXIO (no data, or no file, behind the offset), EISDIR.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_lseek(fd: c_int, at: libc::off_t, whence: c_int) -> libc::off_t {
    call("nvfold_lseek", || table::get(fd)?.seek(at, whence))
}

/// What is known of an open file. st_dev tells the open devices of this process apart, st_blksize is 4096, and st_blocks
/// counts what is shared in every file that names it.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_fstat(fd: c_int, mut stat: OutStat<'_>) -> c_int {
    on("nvfold_fstat", fd, |open| {
        let mut found = caller::empty_stat();
        status::fill(&mut found, &open.attr()?, open.device.handle);
        stat.put(found)
    })
}

/// Sets the size; growing leaves a hole. EINVAL when it is not open for writing.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_ftruncate(fd: c_int, length: libc::off_t) -> c_int {
    on("nvfold_ftruncate", fd, |open| open.truncate(length))
}

/// Reserves, zeroes or frees a range, as fallocate(2): `mode` is 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE with it,
/// or FALLOC_FL_ZERO_RANGE with it or without. EOPNOTSUPP for others.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_fallocate(fd: c_int, mode: c_int, at: libc::off_t, length: libc::off_t) -> c_int {
    on("nvfold_fallocate", fd, |open| open.allocate(mode, at, length))
}

/// Makes all that was written durable (of the whole device, all or nothing).
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_fsync(fd: c_int) -> c_int {
    on("nvfold_fsync", fd, Open::sync)
}

/// The same as nvfold_fsync.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_fdatasync(fd: c_int) -> c_int {
    on("nvfold_fdatasync", fd, Open::sync)
}

/// Changes attributes of an open file.
fn change(open: &Open, change: &SetAttr) -> Outcome<()> {
    open.run(|fs| Ok(fs.setattr(open.file.ino(), change).map(drop)?))
}

/// Sets the permission bits.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_fchmod(fd: c_int, mode: libc::mode_t) -> c_int {
    on("nvfold_fchmod", fd, |open| change(open, &SetAttr { mode: Some(mode & MODE_BITS), ..SetAttr::default() }))
}

/// Sets owner and group; (uid_t)-1 and (gid_t)-1 leave them.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_fchown(fd: c_int, owner: libc::uid_t, group: libc::gid_t) -> c_int {
    on("nvfold_fchown", fd, |open| change(open, &super::changes::owners(owner, group)))
}

/// Sets the times of access and modification, as futimens(3): NULL for now, UTIME_NOW, UTIME_OMIT.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_futimens(fd: c_int, times: InTimes<'_>) -> c_int {
    on("nvfold_futimens", fd, |open| change(open, &changes_of(&times)?))
}

/// Makes a range of one file name the bytes of another (or of the same one, where they do not overlap): an instant copy, of any
/// bytes, that takes no space until one of the two is written. Whatever the policy. Returns the bytes cloned: fewer than
/// asked for only where the source ends.
/// -1: EBADF (also for a target that is open with O_APPEND), EXDEV when the two are on different devices, EINVAL, EISDIR,
/// EFBIG, ENOSPC.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_clone_range(
    source: c_int,
    source_at: libc::off_t,
    target: c_int,
    target_at: libc::off_t,
    length: usize,
) -> libc::ssize_t {
    call("nvfold_clone_range", || {
        let (source, target) = (table::get(source)?, table::get(target)?);
        source.check_reads()?;
        target.check_writes()?;
        target.check_not_appends()?;
        if !Arc::ptr_eq(&source.device, &target.device) {
            return Err(Failure::new(libc::EXDEV, "the two files are on different devices"));
        }
        let (source_at, target_at) = (offset(source_at)?, offset(target_at)?);
        let length = u64::try_from(isize::try_from(length).map_err(|_| Failure::invalid("more than SSIZE_MAX bytes"))?);
        let length = length.expect("it is not below 0");
        Ok(target.clone_range(&source, source_at, target_at, length)? as isize)
    })
}

/// Memory with what the file holds from `at` on: a snapshot, made now. What is written to the file later does not show, and
/// what the program stores there (with PROT_WRITE and MAP_PRIVATE) does not reach the file. What lies behind the end of the
/// file is zeros. `address` is a hint that is not followed; `at` is a multiple of 4096.
///
/// The memory is the process's own: it counts as such, and stays when the descriptor or the device is closed, until it is
/// unmapped.
///
/// Returns the memory, or MAP_FAILED: EACCES (not open for reading, PROT_EXEC), ENODEV (MAP_SHARED with PROT_WRITE), EINVAL,
/// EOPNOTSUPP (MAP_FIXED), ENOMEM, EBADF.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_mmap(
    address: OutBytes<'_>,
    length: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    at: libc::off_t,
) -> *mut c_void {
    map("nvfold_mmap", &address, (length, prot, flags), fd, at)
}

pub(super) fn map(
    function: &'static str,
    _hint: &OutBytes<'_>,
    (length, prot, flags): (usize, c_int, c_int),
    fd: c_int,
    at: libc::off_t,
) -> *mut c_void {
    answer(function, libc::MAP_FAILED, || transfers::map(&*table::get(fd)?, length, prot, flags, at))
}

/// Gives back memory of nvfold_mmap, or whole pages of it. EINVAL for any other memory.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_munmap(address: OutBytes<'_>, length: usize) -> c_int {
    call("nvfold_munmap", || transfers::unmap(address.pointer(), length).map(|()| 0))
}
