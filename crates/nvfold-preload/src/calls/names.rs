//! Creating, renaming and removing names.

use super::serve::{Side, between, host, on_path, on_paths};
use nvfold::FileKind;
use nvfold_c::caller::{CText, OutBytes};
use nvfold_c::failure::{Failure, Outcome};
use nvfold_c::names::check_rename_flags;
use nvfold_c::paths::LastLink;
use std::ffi::{c_char, c_int, c_uint};

const HERE: c_int = libc::AT_FDCWD;

/// mkdirat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mkdirat(dirfd: c_int, path: *const c_char, mode: libc::mode_t) -> c_int {
    let from_host = |dirfd, path| host!(libc::mkdirat(dirfd, path, mode));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { on_path("mkdir", (dirfd, path, LastLink::Name), from_host, |path| path.name().mkdir(mode).map(|()| 0)) }
}

/// mkdir(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mkdir(path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_mkdirat(HERE, path, mode) }
}

fn kind_of(mode: libc::mode_t) -> Outcome<FileKind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Ok(FileKind::Regular),
        libc::S_IFIFO => Ok(FileKind::Fifo),
        libc::S_IFSOCK => Ok(FileKind::Socket),
        libc::S_IFCHR => Ok(FileKind::CharDevice),
        libc::S_IFBLK => Ok(FileKind::BlockDevice),
        kind => Err(Failure::invalid(format!("{kind:o} is nothing that mknod makes"))),
    }
}

/// mknodat(2): creates the name; a pipe or a node cannot be opened, because that needs a kernel.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mknodat(
    dirfd: c_int,
    path: *const c_char,
    mode: libc::mode_t,
    rdev: libc::dev_t,
) -> c_int {
    let from_host = |dirfd, path| host!(libc::mknodat(dirfd, path, mode, rdev));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        on_path("mknod", (dirfd, path, LastLink::Name), from_host, |path| {
            path.name().mknod(kind_of(mode)?, mode, rdev as u32).map(|()| 0)
        })
    }
}

/// mknod(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mknod(
    path: *const c_char,
    mode: libc::mode_t,
    rdev: libc::dev_t,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_mknodat(HERE, path, mode, rdev) }
}

/// mkfifoat(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mkfifoat(
    dirfd: c_int,
    path: *const c_char,
    mode: libc::mode_t,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_mknodat(dirfd, path, mode & !libc::S_IFMT | libc::S_IFIFO, 0) }
}

/// mkfifo(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mkfifo(path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_mkfifoat(HERE, path, mode) }
}

/// unlinkat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
    let from_host = |dirfd, path| host!(libc::unlinkat(dirfd, path, flags));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        on_path("unlink", (dirfd, path, LastLink::Name), from_host, |path| match flags {
            0 => path.name().unlink().map(|()| 0),
            libc::AT_REMOVEDIR => path.name().rmdir().map(|()| 0),
            _ => Err(Failure::invalid(format!("unknown flags {flags:#x}"))),
        })
    }
}

/// unlink(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_unlink(path: *const c_char) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_unlinkat(HERE, path, 0) }
}

/// rmdir(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_rmdir(path: *const c_char) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_unlinkat(HERE, path, libc::AT_REMOVEDIR) }
}

/// remove(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_remove(path: *const c_char) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        on_path(
            "remove",
            (HERE, path, LastLink::Name),
            |_, path| host!(libc::remove(path)),
            |path| {
                let removed = match path.name().unlink() {
                    Err(failure) if failure.errno == libc::EISDIR => path.name().rmdir(),
                    removed => removed,
                };
                removed.map(|()| 0)
            },
        )
    }
}

/// renameat2(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_renameat2(
    dirfd: c_int,
    path: *const c_char,
    new_dirfd: c_int,
    new_path: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        on_paths(
            "rename",
            ((dirfd, path, LastLink::Name), (new_dirfd, new_path, LastLink::Name)),
            |(dirfd, path), (new_dirfd, new_path)| match flags {
                0 => host!(libc::renameat(dirfd, path, new_dirfd, new_path)),
                flags => host!(libc::renameat2(dirfd, path, new_dirfd, new_path, flags)),
            },
            |path, new| match (path.is_root(), new.is_root()) {
                (false, false) => path.name().rename(&new.name(), flags).map(|()| 0),
                (true, true) if flags & libc::RENAME_NOREPLACE == 0 => check_rename_flags(flags).map(|()| 0),
                // The name of the prefix is one of the host.
                _ => Err(rename_across(&Side::Device(path), &Side::Device(new), flags)),
            },
            |path, new| rename_across(path, new, flags),
        )
    }
}

/// Says why there is no rename between the device and the host, in Linux's order. The root of the device is a name of the
/// host, and a mount point.
fn rename_across(path: &Side<'_>, new: &Side<'_>, flags: c_uint) -> Failure {
    let checked = || {
        check_rename_flags(flags)?;
        let kinds = (path.kind()?, new.kind()?);
        let is_on_host = |side: &Side<'_>| side.is_root() || matches!(side, Side::Host(..));
        if is_on_host(path) && is_on_host(new) {
            rename_mount_point((path, kinds.0), (new, kinds.1), flags)
        } else {
            Ok(())
        }
    };
    checked().err().unwrap_or_else(between)
}

type Kind = Option<libc::mode_t>;

/// Fails to rename the root of the device, or something to it.
fn rename_mount_point(
    (path, kind): (&Side<'_>, Kind),
    (new, new_kind): (&Side<'_>, Kind),
    flags: c_uint,
) -> Outcome<()> {
    let fails = |errno| Err(Failure::new(errno, "the root of the device cannot be renamed"));
    let is_directory = |kind: Kind| kind == Some(libc::S_IFDIR);
    let exchanges = flags & libc::RENAME_EXCHANGE != 0;
    let slash = new.ends_in_slash();
    let is_dots = |side: &Side<'_>| matches!(side.last_name(), b"." | b"..");
    if is_dots(path) || is_dots(new) {
        let is_there = !is_dots(path) && flags & libc::RENAME_NOREPLACE != 0;
        return fails(if is_there { libc::EEXIST } else { libc::EBUSY });
    }
    path.check_last_name()?;
    new.check_last_name()?;
    match (is_directory(kind), is_directory(new_kind)) {
        _ if kind.is_none() || exchanges && new_kind.is_none() => fails(libc::ENOENT),
        _ if new_kind.is_some() && flags & libc::RENAME_NOREPLACE != 0 => fails(libc::EEXIST),
        (_, false) if exchanges && slash => fails(libc::ENOTDIR),
        (false, _) if path.ends_in_slash() || slash && !exchanges => fails(libc::ENOTDIR),
        (true, false) if new_kind.is_some() && !exchanges => fails(libc::ENOTDIR),
        (false, true) if !exchanges => fails(libc::EISDIR),
        _ => fails(libc::EBUSY),
    }
}

/// renameat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_renameat(
    dirfd: c_int,
    path: *const c_char,
    new_dirfd: c_int,
    new_path: *const c_char,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_renameat2(dirfd, path, new_dirfd, new_path, 0) }
}

/// rename(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_rename(path: *const c_char, new_path: *const c_char) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_renameat2(HERE, path, HERE, new_path, 0) }
}

/// linkat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_linkat(
    dirfd: c_int,
    path: *const c_char,
    new_dirfd: c_int,
    new_path: *const c_char,
    flags: c_int,
) -> c_int {
    let last_link = if flags & libc::AT_SYMLINK_FOLLOW != 0 { LastLink::Follow } else { LastLink::Keep };
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        on_paths(
            "link",
            ((dirfd, path, last_link), (new_dirfd, new_path, LastLink::Name)),
            |(dirfd, path), (new_dirfd, new_path)| host!(libc::linkat(dirfd, path, new_dirfd, new_path, flags)),
            |path, new| {
                check_link_flags(flags)?;
                match path.open_file().filter(|_| flags & libc::AT_EMPTY_PATH != 0) {
                    Some(file) => new.name().link_to(file.open.file.ino()).map(|()| 0),
                    None => path.name().link(last_link, &new.name()).map(|()| 0),
                }
            },
            |path, new| {
                let checked = check_link_flags(flags).and_then(|()| link_across(path, flags, new));
                checked.err().unwrap_or_else(between)
            },
        )
    }
}

fn check_link_flags(flags: c_int) -> Outcome<()> {
    match flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) {
        0 => Ok(()),
        unknown => Err(Failure::invalid(format!("unknown flags {unknown:#x}"))),
    }
}

/// Fails as a link between the device and the host does before it finds that they are two.
fn link_across(path: &Side<'_>, flags: c_int, new: &Side<'_>) -> Outcome<()> {
    path.check_exists(flags)?;
    match new.kind()? {
        Some(_) => Err(Failure::new(libc::EEXIST, "it exists")),
        None => {
            new.check_last_name()?;
            if new.ends_in_slash() {
                return Err(Failure::new(libc::ENOENT, "it ends in / and is no directory"));
            }
            Ok(())
        }
    }
}

/// link(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_link(path: *const c_char, new_path: *const c_char) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_linkat(HERE, path, HERE, new_path, 0) }
}

/// symlinkat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_symlinkat(
    target: *const c_char,
    dirfd: c_int,
    path: *const c_char,
) -> c_int {
    let from_host = |dirfd, path| host!(libc::symlinkat(target, dirfd, path));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        on_path("symlink", (dirfd, path, LastLink::Name), from_host, |path| {
            path.name().symlink(CText::of(target).bytes()?).map(|()| 0)
        })
    }
}

/// symlink(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_symlink(target: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_symlinkat(target, HERE, path) }
}

/// readlinkat(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_readlinkat(
    dirfd: c_int,
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> isize {
    let from_host = |dirfd, path| host!(libc::readlinkat(dirfd, path, buffer, size));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        on_path("readlink", (dirfd, path, LastLink::Keep), from_host, |path| {
            let mut buffer = OutBytes::of(buffer.cast());
            let room = buffer.slice(size)?;
            if room.is_empty() {
                return Err(Failure::invalid("there is no room for the target"));
            }
            let target = path.name().readlink()?;
            let length = target.len().min(room.len());
            room[..length].copy_from_slice(&target[..length]);
            Ok(length as isize)
        })
    }
}

/// readlink(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_readlink(
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> isize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_readlinkat(HERE, path, buffer, size) }
}

/// Replaces `readlink` of programs compiled with checks; writes at most the size of the buffer.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_readlink_chk(
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
    room: usize,
) -> isize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_readlinkat(HERE, path, buffer, size.min(room)) }
}

/// Replaces `readlinkat` of programs compiled with checks; writes at most the size of the buffer.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_readlinkat_chk(
    dirfd: c_int,
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
    room: usize,
) -> isize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_readlinkat(dirfd, path, buffer, size.min(room)) }
}

/// `mknod` as programs built for older versions of libc call it.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_xmknod(
    version: c_int,
    path: *const c_char,
    mode: libc::mode_t,
    rdev: *const libc::dev_t,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_xmknodat(version, HERE, path, mode, rdev) }
}

/// `mknodat` as programs built for older versions of libc call it.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_xmknodat(
    _version: c_int,
    dirfd: c_int,
    path: *const c_char,
    mode: libc::mode_t,
    rdev: *const libc::dev_t,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_mknodat(dirfd, path, mode, rdev.as_ref().copied().unwrap_or(0)) }
}
