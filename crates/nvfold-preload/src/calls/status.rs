//! The status of files and of the device: stat, access, statfs.

use super::serve::{host, on_number, on_path};
use crate::prefix::DevicePath;
use nvfold::{Attr, FileKind, InodeNumber};
use nvfold_c::caller;
use nvfold_c::device::Device;
use nvfold_c::failure::{Failure, Outcome};
use nvfold_c::paths::LastLink;
use nvfold_c::status;
use std::ffi::{c_char, c_int, c_uint, c_ulong};

/// `f_type`: the first letters of the magic number of the format.
const FILE_SYSTEM: i64 = 0x6e76_666f;
const ANY_EXECUTES: u32 = 0o111;

/// Checks a structure of the program that is to be filled. EFAULT.
fn check<T>(into: *mut T) -> Outcome<()> {
    if into.is_null() || !into.is_aligned() {
        return Err(Failure::new(libc::EFAULT, "the structure to be filled is a bad address"));
    }
    Ok(())
}

/// # Safety
///
/// The program passed `into` to be filled.
unsafe fn tell(into: *mut libc::stat, attr: &Attr, device: &Device) -> Outcome<c_int> {
    check(into)?;
    let mut found = caller::empty_stat();
    status::fill(&mut found, attr, device.handle);
    // SAFETY: the caller's contract; it is aligned.
    unsafe { into.write(found) };
    Ok(0)
}

pub(super) fn last_link(flags: c_int) -> LastLink {
    if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { LastLink::Keep } else { LastLink::Follow }
}

/// Returns the attributes of the file that a path leads to; with AT_EMPTY_PATH and no path, of the descriptor's file.
fn attr_at(path: &DevicePath, flags: c_int) -> Outcome<Attr> {
    match path.open_file().filter(|_| flags & libc::AT_EMPTY_PATH != 0) {
        Some(file) => file.open.attr(),
        None => path.name().attr(last_link(flags)),
    }
}

/// # Safety
///
/// The arguments are the program's.
unsafe fn stat_at(dirfd: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int {
    let from_host = |dirfd, path| host!(libc::fstatat(dirfd, path, into, flags));
    // SAFETY: the caller's contract.
    unsafe {
        on_path("stat", (dirfd, path, last_link(flags)), from_host, |path| {
            tell(into, &attr_at(path, flags)?, path.device())
        })
    }
}

/// stat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_stat(path: *const c_char, into: *mut libc::stat) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { stat_at(libc::AT_FDCWD, path, into, 0) }
}

/// lstat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_lstat(path: *const c_char, into: *mut libc::stat) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { stat_at(libc::AT_FDCWD, path, into, libc::AT_SYMLINK_NOFOLLOW) }
}

/// fstatat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fstatat(
    dirfd: c_int,
    path: *const c_char,
    into: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { stat_at(dirfd, path, into, flags) }
}

/// fstat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fstat(fd: c_int, into: *mut libc::stat) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    on_number(
        "fstat",
        fd,
        || host!(libc::fstat(fd, into)),
        |file| unsafe { tell(into, &file.open.attr()?, &file.open.device) },
    )
}

/// `stat` as programs built for older versions of libc call it.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_xstat(
    _version: c_int,
    path: *const c_char,
    into: *mut libc::stat,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { stat_at(libc::AT_FDCWD, path, into, 0) }
}

/// `lstat` as programs built for older versions of libc call it.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_lxstat(
    _version: c_int,
    path: *const c_char,
    into: *mut libc::stat,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { stat_at(libc::AT_FDCWD, path, into, libc::AT_SYMLINK_NOFOLLOW) }
}

/// `fstat` as programs built for older versions of libc call it.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fxstat(_version: c_int, fd: c_int, into: *mut libc::stat) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_fstat(fd, into) }
}

/// `fstatat` as programs built for older versions of libc call it.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fxstatat(
    _version: c_int,
    dirfd: c_int,
    path: *const c_char,
    into: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { stat_at(dirfd, path, into, flags) }
}

/// statx(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_statx(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    into: *mut libc::statx,
) -> c_int {
    let from_host = |dirfd, path| host!(libc::statx(dirfd, path, flags, mask, into));
    let ours = |path: &DevicePath| {
        check(into)?;
        let mut found = caller::empty_stat();
        status::fill(&mut found, &attr_at(path, flags)?, path.device().handle);
        // SAFETY: the program passed it to be filled; it is aligned.
        unsafe { into.write(extended(&found)) };
        Ok(0)
    };
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { on_path("statx", (dirfd, path, last_link(flags)), from_host, ours) }
}

fn extended(stat: &libc::stat) -> libc::statx {
    // SAFETY: a structure of integers: all zeros are a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    found.stx_mask = libc::STATX_BASIC_STATS;
    found.stx_blksize = stat.st_blksize as u32;
    found.stx_nlink = stat.st_nlink as u32;
    found.stx_uid = stat.st_uid;
    found.stx_gid = stat.st_gid;
    found.stx_mode = stat.st_mode as u16;
    found.stx_ino = stat.st_ino;
    found.stx_size = stat.st_size as u64;
    found.stx_blocks = stat.st_blocks as u64;
    (found.stx_atime.tv_sec, found.stx_atime.tv_nsec) = (stat.st_atime, stat.st_atime_nsec as u32);
    (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec) = (stat.st_mtime, stat.st_mtime_nsec as u32);
    (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec) = (stat.st_ctime, stat.st_ctime_nsec as u32);
    (found.stx_dev_major, found.stx_dev_minor) = (libc::major(stat.st_dev), libc::minor(stat.st_dev));
    (found.stx_rdev_major, found.stx_rdev_minor) = (libc::major(stat.st_rdev), libc::minor(stat.st_rdev));
    found
}

/// Checks access. The program owns the whole device, so it can read and write every file. A file without any execute
/// bit cannot be executed.
fn may(attr: &Attr, mode: c_int) -> Outcome<c_int> {
    let executes = attr.kind == FileKind::Directory || attr.mode & ANY_EXECUTES != 0;
    match mode & libc::X_OK != 0 && !executes {
        true => Err(Failure::new(libc::EACCES, "nobody may execute it")),
        false => Ok(0),
    }
}

/// faccessat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_faccessat(
    dirfd: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    let from_host = |dirfd, path| host!(libc::faccessat(dirfd, path, mode, flags));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { on_path("access", (dirfd, path, last_link(flags)), from_host, |path| may(&attr_at(path, flags)?, mode)) }
}

/// access(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_faccessat(libc::AT_FDCWD, path, mode, 0) }
}

/// euidaccess(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_euidaccess(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_faccessat(libc::AT_FDCWD, path, mode, libc::AT_EACCESS) }
}

/// Returns the space for files at or below an inode: that of its limited tree, or of the device.
fn space(device: &Device, at: InodeNumber) -> Outcome<libc::statvfs> {
    let mut found = caller::empty_statvfs();
    device.run(|fs| {
        status::fill_space(&mut found, &fs.statfs_at(at)?, fs.is_read_only(), device.handle);
        Ok(())
    })?;
    Ok(found)
}

/// # Safety
///
/// The program passed `into` to be filled.
unsafe fn fill_statvfs(into: *mut libc::statvfs, (device, at): (&Device, InodeNumber)) -> Outcome<c_int> {
    check(into)?;
    // SAFETY: as the caller says; it is aligned.
    unsafe { into.write(space(device, at)?) };
    Ok(0)
}

/// # Safety
///
/// The program passed `into` to be filled.
unsafe fn fill_statfs(into: *mut libc::statfs, (device, at): (&Device, InodeNumber)) -> Outcome<c_int> {
    check(into)?;
    let space = space(device, at)?;
    // SAFETY: a structure of integers: all zeros are a value.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    found.f_type = FILE_SYSTEM;
    found.f_bsize = space.f_bsize as i64;
    found.f_frsize = space.f_frsize as i64;
    found.f_blocks = space.f_blocks;
    found.f_bfree = space.f_bfree;
    found.f_bavail = space.f_bavail;
    found.f_files = space.f_files;
    found.f_ffree = space.f_ffree;
    found.f_namelen = space.f_namemax as i64;
    // SAFETY: as the caller says; it is aligned.
    unsafe { into.write(found) };
    Ok(0)
}

/// Returns the device of an existing path, and the inode there. ENOENT.
fn place_of(path: &DevicePath) -> Outcome<(&Device, InodeNumber)> {
    let attr = path.name().attr(LastLink::Follow)?;
    Ok((path.device(), attr.ino))
}

/// statvfs(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_statvfs(path: *const c_char, into: *mut libc::statvfs) -> c_int {
    let from_host = |_, path| host!(libc::statvfs(path, into));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        on_path("statvfs", (libc::AT_FDCWD, path, LastLink::Follow), from_host, |path| {
            fill_statvfs(into, place_of(path)?)
        })
    }
}

/// fstatvfs(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fstatvfs(fd: c_int, into: *mut libc::statvfs) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    on_number(
        "fstatvfs",
        fd,
        || host!(libc::fstatvfs(fd, into)),
        |file| unsafe { fill_statvfs(into, (&file.open.device, file.open.file.ino())) },
    )
}

/// statfs(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_statfs(path: *const c_char, into: *mut libc::statfs) -> c_int {
    let from_host = |_, path| host!(libc::statfs(path, into));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        on_path("statfs", (libc::AT_FDCWD, path, LastLink::Follow), from_host, |path| {
            fill_statfs(into, place_of(path)?)
        })
    }
}

/// fstatfs(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fstatfs(fd: c_int, into: *mut libc::statfs) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    on_number(
        "fstatfs",
        fd,
        || host!(libc::fstatfs(fd, into)),
        |file| unsafe { fill_statfs(into, (&file.open.device, file.open.file.ino())) },
    )
}

/// pathconf(3): returns the limits of the host's root.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_pathconf(path: *const c_char, name: c_int) -> std::ffi::c_long {
    let from_host = |_, path| host!(libc::pathconf(path, name));
    // SAFETY: the arguments are the program's; the root is a string.
    unsafe {
        on_path("pathconf", (libc::AT_FDCWD, path, LastLink::Follow), from_host, |path| {
            place_of(path).map(|_| libc::pathconf(c"/".as_ptr(), name))
        })
    }
}

/// fpathconf(3): as pathconf.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_preload_fpathconf(fd: c_int, name: c_int) -> std::ffi::c_long {
    // SAFETY: the root is a string.
    let limit = |_: &_| Ok(unsafe { libc::pathconf(c"/".as_ptr(), name) });
    on_number("fpathconf", fd, || host!(libc::fpathconf(fd, name)), limit)
}

/// ftok(3): a key of the file's number, of the device's, and of `project`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_ftok(path: *const c_char, project: c_int) -> libc::key_t {
    let mut found = caller::empty_stat();
    // SAFETY: the path is the program's, and the structure ours.
    match unsafe { nvfold_preload_stat(path, &raw mut found) } {
        0 => (found.st_ino & 0xffff) as c_int | ((found.st_dev & 0xff) as c_int) << 16 | (project & 0xff) << 24,
        _ => -1,
    }
}

const _: () = assert!(size_of::<c_ulong>() == 8, "stat and stat64 are one");
