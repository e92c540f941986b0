//! System calls by their numbers (`raw`): those that are about our files are served by the functions that stand for libc's.

use super::serve::{host, next};
use super::{
    attributes, children, descriptors, directories, folders, memory, names, opening, signals, status, times, transfers,
    xattrs,
};
use crate::answer::{as_the_kernel, is_inside};
use crate::prefix::{Place, look};
use crate::{device, mappings, numbers};
use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::ptr;

const HERE: c_int = libc::AT_FDCWD;

/// Arguments of a system call.
pub(crate) type Arguments = [usize; 6];

/// Arguments of openat2.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// Returns whether a call makes a child that shares the memory of this process, or begins on a stack of its own.
pub(crate) fn shares_memory(number: c_long, arguments: &Arguments) -> bool {
    match number {
        libc::SYS_vfork => true,
        libc::SYS_clone => arguments[0] & libc::CLONE_VM as usize != 0 || arguments[1] != 0,
        libc::SYS_clone3 => {
            let words: *const [u64; 6] = ptr::with_exposed_provenance(arguments[0]);
            // SAFETY: the program passes a structure of at least eight words.
            let [flags, .., stack] = unsafe { words.read_unaligned() };
            flags & libc::CLONE_VM as u64 != 0 || stack != 0
        }
        _ => false,
    }
}

fn text(argument: usize) -> *const c_char {
    ptr::with_exposed_provenance(argument)
}

fn room<T>(argument: usize) -> *mut T {
    ptr::with_exposed_provenance_mut(argument)
}

/// Serves a call whose answer is a number; returns what the kernel would, here and below.
fn long(call: impl FnOnce() -> isize) -> Option<isize> {
    Some(as_the_kernel(call))
}

fn int(call: impl FnOnce() -> c_int) -> Option<isize> {
    long(|| call() as isize)
}

/// Serves a call whose answer is an address.
fn mapped(call: impl FnOnce() -> *mut c_void) -> Option<isize> {
    long(|| call().addr() as isize)
}

/// Serves a system call that is about our files, or that they must know of; `None`: it is the kernel's.
pub(crate) fn serve(number: c_long, arguments: &Arguments) -> Option<isize> {
    // What runs within one of our calls, a program's allocator, has no files there.
    if !device::has_prefix() || is_inside() {
        return None;
    }
    by_path(number, arguments).or_else(|| by_descriptor(number, arguments)).or_else(|| of_process(number, arguments))
}

/// Calls on paths. Which arguments are a directory and a path, and whether a path is ours, is asked first.
fn by_path(number: c_long, &[a, b, c, d, e, _]: &Arguments) -> Option<isize> {
    // SAFETY: the program passes NULL or strings, as for these system calls.
    let ours = |dirfd: c_int, path: usize| !matches!(unsafe { look(dirfd, text(path)) }, Place::Host);
    let (here, at, at_c) = (|| ours(HERE, a), || ours(a as c_int, b), || ours(c as c_int, d));
    let (dirfd, path, path_at) = (a as c_int, text(a), text(b));
    // SAFETY: the arguments are the program's, under the contracts of the system calls, which the functions share.
    unsafe {
        match number {
            libc::SYS_open if here() => int(|| opening::nvfold_preload_open(path, b as c_int, c as libc::mode_t)),
            libc::SYS_creat if here() => int(|| opening::nvfold_preload_creat(path, b as libc::mode_t)),
            libc::SYS_openat if at() => {
                int(|| opening::nvfold_preload_openat(dirfd, path_at, c as c_int, d as libc::mode_t))
            }
            libc::SYS_openat2 if at() => {
                let how: *const OpenHow = ptr::with_exposed_provenance(c);
                match how.as_ref() {
                    None => Some(-(libc::EFAULT as isize)),
                    // Whoever restricts the path knows what to do where the kernel cannot.
                    Some(how) if how.resolve != 0 => Some(-(libc::ENOSYS as isize)),
                    Some(how) => int(|| {
                        opening::nvfold_preload_openat(dirfd, path_at, how.flags as c_int, how.mode as libc::mode_t)
                    }),
                }
            }
            libc::SYS_stat if here() => int(|| status::nvfold_preload_stat(path, room(b))),
            libc::SYS_lstat if here() => int(|| status::nvfold_preload_lstat(path, room(b))),
            libc::SYS_newfstatat if at() => int(|| status::nvfold_preload_fstatat(dirfd, path_at, room(c), d as c_int)),
            libc::SYS_statx if at() => {
                int(|| status::nvfold_preload_statx(dirfd, path_at, c as c_int, d as c_uint, room(e)))
            }
            libc::SYS_access if here() => int(|| status::nvfold_preload_access(path, b as c_int)),
            libc::SYS_faccessat if at() => int(|| status::nvfold_preload_faccessat(dirfd, path_at, c as c_int, 0)),
            libc::SYS_faccessat2 if at() => {
                int(|| status::nvfold_preload_faccessat(dirfd, path_at, c as c_int, d as c_int))
            }
            libc::SYS_statfs if here() => int(|| status::nvfold_preload_statfs(path, room(b))),
            libc::SYS_mkdir if here() => int(|| names::nvfold_preload_mkdir(path, b as libc::mode_t)),
            libc::SYS_mkdirat if at() => int(|| names::nvfold_preload_mkdirat(dirfd, path_at, c as libc::mode_t)),
            libc::SYS_mknod if here() => int(|| names::nvfold_preload_mknod(path, b as libc::mode_t, c as libc::dev_t)),
            libc::SYS_mknodat if at() => {
                int(|| names::nvfold_preload_mknodat(dirfd, path_at, c as libc::mode_t, d as libc::dev_t))
            }
            libc::SYS_rmdir if here() => int(|| names::nvfold_preload_rmdir(path)),
            libc::SYS_unlink if here() => int(|| names::nvfold_preload_unlink(path)),
            libc::SYS_unlinkat if at() => int(|| names::nvfold_preload_unlinkat(dirfd, path_at, c as c_int)),
            libc::SYS_rename if here() || ours(HERE, b) => int(|| names::nvfold_preload_rename(path, path_at)),
            libc::SYS_renameat if at() || at_c() => {
                int(|| names::nvfold_preload_renameat(dirfd, path_at, c as c_int, text(d)))
            }
            libc::SYS_renameat2 if at() || at_c() => {
                int(|| names::nvfold_preload_renameat2(dirfd, path_at, c as c_int, text(d), e as c_uint))
            }
            libc::SYS_link if here() || ours(HERE, b) => int(|| names::nvfold_preload_link(path, path_at)),
            libc::SYS_linkat if at() || at_c() => {
                int(|| names::nvfold_preload_linkat(dirfd, path_at, c as c_int, text(d), e as c_int))
            }
            libc::SYS_symlink if ours(HERE, b) => int(|| names::nvfold_preload_symlink(path, path_at)),
            libc::SYS_symlinkat if ours(b as c_int, c) => {
                int(|| names::nvfold_preload_symlinkat(path, b as c_int, text(c)))
            }
            libc::SYS_readlink if here() => long(|| names::nvfold_preload_readlink(path, room(b), c)),
            libc::SYS_readlinkat if at() => long(|| names::nvfold_preload_readlinkat(dirfd, path_at, room(c), d)),
            libc::SYS_chmod if here() => int(|| attributes::nvfold_preload_chmod(path, b as libc::mode_t)),
            libc::SYS_fchmodat if at() => {
                int(|| attributes::nvfold_preload_fchmodat(dirfd, path_at, c as libc::mode_t, 0))
            }
            libc::SYS_fchmodat2 if at() => {
                int(|| attributes::nvfold_preload_fchmodat(dirfd, path_at, c as libc::mode_t, d as c_int))
            }
            libc::SYS_chown if here() => {
                int(|| attributes::nvfold_preload_chown(path, b as libc::uid_t, c as libc::gid_t))
            }
            libc::SYS_lchown if here() => {
                int(|| attributes::nvfold_preload_lchown(path, b as libc::uid_t, c as libc::gid_t))
            }
            libc::SYS_fchownat if at() => int(|| {
                attributes::nvfold_preload_fchownat(dirfd, path_at, c as libc::uid_t, d as libc::gid_t, e as c_int)
            }),
            libc::SYS_truncate if here() => int(|| attributes::nvfold_preload_truncate(path, b as libc::off_t)),
            libc::SYS_utimensat if b != 0 && at() => {
                int(|| times::nvfold_preload_utimensat(dirfd, path_at, room(c), d as c_int))
            }
            libc::SYS_utimes if here() => int(|| times::nvfold_preload_utimes(path, room(b))),
            libc::SYS_utime if here() => int(|| times::nvfold_preload_utime(path, room(b))),
            libc::SYS_chdir if here() || crate::working::is_ours() => int(|| folders::nvfold_preload_chdir(path)),
            libc::SYS_getxattr if here() => long(|| xattrs::nvfold_preload_getxattr(path, path_at, room(c), d)),
            libc::SYS_lgetxattr if here() => long(|| xattrs::nvfold_preload_lgetxattr(path, path_at, room(c), d)),
            libc::SYS_setxattr if here() => {
                int(|| xattrs::nvfold_preload_setxattr(path, path_at, room::<c_void>(c), d, e as c_int))
            }
            libc::SYS_lsetxattr if here() => {
                int(|| xattrs::nvfold_preload_lsetxattr(path, path_at, room::<c_void>(c), d, e as c_int))
            }
            libc::SYS_listxattr if here() => long(|| xattrs::nvfold_preload_listxattr(path, room(b), c)),
            libc::SYS_llistxattr if here() => long(|| xattrs::nvfold_preload_llistxattr(path, room(b), c)),
            libc::SYS_removexattr if here() => int(|| xattrs::nvfold_preload_removexattr(path, path_at)),
            libc::SYS_lremovexattr if here() => int(|| xattrs::nvfold_preload_lremovexattr(path, path_at)),
            _ => None,
        }
    }
}

/// Calls on a descriptor of ours.
fn by_descriptor(number: c_long, &[a, b, c, d, e, f]: &Arguments) -> Option<isize> {
    let fd = a as c_int;
    let (one, other) = (numbers::is_ours(fd), |argument: usize| numbers::is_ours(argument as c_int));
    let (offset, argument) = (b as libc::off_t, c as c_int);
    // SAFETY: the arguments are the program's, under the contracts of the system calls, which the functions share.
    unsafe {
        match number {
            libc::SYS_read if one => long(|| transfers::read(fd, room(b), c)),
            libc::SYS_pread64 if one => long(|| transfers::read_at(fd, room(b), c, d as libc::off_t)),
            libc::SYS_readv if one => long(|| transfers::nvfold_preload_readv(fd, room(b), argument)),
            libc::SYS_preadv if one => {
                long(|| transfers::nvfold_preload_preadv(fd, room(b), argument, d as libc::off_t, next!("preadv")))
            }
            libc::SYS_preadv2 if one => long(|| {
                transfers::nvfold_preload_preadv2(fd, room(b), argument, d as libc::off_t, f as c_int, next!("preadv2"))
            }),
            libc::SYS_write if one => long(|| transfers::write(fd, room(b), c)),
            libc::SYS_pwrite64 if one => long(|| transfers::write_at(fd, room(b), c, d as libc::off_t)),
            libc::SYS_writev if one => long(|| transfers::nvfold_preload_writev(fd, room(b), argument)),
            libc::SYS_pwritev if one => {
                long(|| transfers::nvfold_preload_pwritev(fd, room(b), argument, d as libc::off_t, next!("pwritev")))
            }
            libc::SYS_pwritev2 if one => long(|| {
                transfers::nvfold_preload_pwritev2(
                    fd,
                    room(b),
                    argument,
                    d as libc::off_t,
                    f as c_int,
                    next!("pwritev2"),
                )
            }),
            libc::SYS_sendfile if one || other(b) => {
                long(|| transfers::nvfold_preload_sendfile(fd, b as c_int, room(c), d))
            }
            libc::SYS_copy_file_range if one || other(c) => {
                long(|| transfers::nvfold_preload_copy_file_range(fd, room(b), c as c_int, room(d), e, f as c_uint))
            }
            libc::SYS_splice if one || other(c) => {
                long(|| transfers::nvfold_preload_splice(fd, room(b), c as c_int, room(d), e, f as c_uint))
            }
            libc::SYS_fstat if one => int(|| status::nvfold_preload_fstat(fd, room(b))),
            libc::SYS_fstatfs if one => int(|| status::nvfold_preload_fstatfs(fd, room(b))),
            libc::SYS_close if one || numbers::is_reserved(fd) => int(|| descriptors::nvfold_preload_close(fd)),
            libc::SYS_close_range => {
                int(|| descriptors::nvfold_preload_close_range(fd as c_uint, b as c_uint, argument))
            }
            libc::SYS_dup if one || numbers::is_reserved(fd) => int(|| descriptors::nvfold_preload_dup(fd)),
            libc::SYS_dup2 | libc::SYS_dup3
                if one || other(b) || [a, b].iter().any(|n| numbers::is_reserved(*n as c_int)) =>
            {
                int(|| match number {
                    libc::SYS_dup2 => descriptors::duplicate(fd, b as c_int, || host!(libc::dup2(fd, b as c_int))),
                    _ => descriptors::duplicate(fd, b as c_int, || host!(libc::dup3(fd, b as c_int, argument))),
                })
            }
            libc::SYS_fcntl if one || numbers::is_reserved(fd) => {
                int(|| descriptors::nvfold_preload_fcntl(fd, b as c_int, c as c_long))
            }
            libc::SYS_ioctl if one => int(|| descriptors::nvfold_preload_ioctl(fd, b as c_ulong, room(c))),
            libc::SYS_lseek if one => long(|| descriptors::nvfold_preload_lseek(fd, offset, argument) as isize),
            libc::SYS_ftruncate if one => int(|| descriptors::nvfold_preload_ftruncate(fd, offset)),
            libc::SYS_fallocate if one => {
                int(|| descriptors::nvfold_preload_fallocate(fd, b as c_int, c as libc::off_t, d as libc::off_t))
            }
            libc::SYS_fadvise64 | libc::SYS_readahead if one => Some(0),
            libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_syncfs | libc::SYS_sync_file_range if one => {
                int(|| descriptors::nvfold_preload_fsync(fd))
            }
            libc::SYS_flock if one => int(|| descriptors::nvfold_preload_flock(fd, b as c_int)),
            libc::SYS_fchmod if one => int(|| attributes::nvfold_preload_fchmod(fd, b as libc::mode_t)),
            libc::SYS_fchown if one => {
                int(|| attributes::nvfold_preload_fchown(fd, b as libc::uid_t, c as libc::gid_t))
            }
            libc::SYS_utimensat if one && b == 0 => int(|| times::nvfold_preload_futimens(fd, room(c))),
            libc::SYS_fchdir if one || crate::working::is_ours() => int(|| folders::nvfold_preload_fchdir(fd)),
            libc::SYS_getdents64 if one => long(|| directories::nvfold_preload_getdents64(fd, room(b), c)),
            libc::SYS_fgetxattr if one => long(|| xattrs::nvfold_preload_fgetxattr(fd, text(b), room(c), d)),
            libc::SYS_fsetxattr if one => {
                int(|| xattrs::nvfold_preload_fsetxattr(fd, text(b), room::<c_void>(c), d, e as c_int))
            }
            libc::SYS_flistxattr if one => long(|| xattrs::nvfold_preload_flistxattr(fd, room(b), c)),
            libc::SYS_fremovexattr if one => int(|| xattrs::nvfold_preload_fremovexattr(fd, text(b))),
            _ => None,
        }
    }
}

/// Calls about memory, children, and the end of the program.
fn of_process(number: c_long, &[a, b, c, d, e, f]: &Arguments) -> Option<isize> {
    let flags = d as c_int;
    let maps_ours = flags & libc::MAP_ANONYMOUS == 0 && numbers::is_ours(e as c_int);
    // SAFETY: the arguments are the program's, under the contracts of the system calls, which the functions share.
    unsafe {
        match number {
            libc::SYS_mmap if maps_ours || mappings::is_used() => {
                mapped(|| memory::nvfold_preload_mmap(room(a), b, c as c_int, flags, e as c_int, f as libc::off_t))
            }
            libc::SYS_munmap => int(|| memory::nvfold_preload_munmap(room(a), b)),
            libc::SYS_mremap if mappings::is_used() => {
                mapped(|| memory::nvfold_preload_mremap(room(a), b, c, flags, room(e)))
            }
            libc::SYS_mprotect if mappings::is_used() => {
                int(|| memory::nvfold_preload_mprotect(room(a), b, c as c_int))
            }
            libc::SYS_msync if mappings::is_used() => int(|| memory::nvfold_preload_msync(room(a), b, c as c_int)),
            libc::SYS_getcwd if crate::working::is_ours() => long(|| {
                let path = folders::nvfold_preload_getcwd(room(a), b);
                if path.is_null() { -1 } else { libc::strlen(path) as isize + 1 }
            }),
            libc::SYS_umask => Some(attributes::nvfold_preload_umask(a as libc::mode_t) as isize),
            libc::SYS_sync => {
                descriptors::nvfold_preload_sync();
                Some(0)
            }
            libc::SYS_rt_sigaction => Some(signals::set_action(&[a, b, c, d, e, f])),
            libc::SYS_rt_sigprocmask => Some(signals::set_mask(&[a, b, c, d, e, f])),
            libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 if !shares_memory(number, &[a, b, c, d, e, f]) => {
                let child = as_the_kernel(|| libc::syscall(number, a, b, c, d, e, f) as isize);
                if child == 0 {
                    children::in_child_without_handlers();
                }
                Some(child)
            }
            libc::SYS_execve | libc::SYS_execveat | libc::SYS_exit_group => {
                children::nvfold_preload_leaving();
                None
            }
            _ => None,
        }
    }
}
