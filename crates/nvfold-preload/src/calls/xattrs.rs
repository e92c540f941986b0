//! Extended attributes: of the file that a path leads to, of a link itself, of a descriptor.

use super::serve::{host, on_number, on_path};
use nvfold::{FileSystem, InodeNumber, XattrMode};
use nvfold_c::caller::{CText, InBytes, OutBytes};
use nvfold_c::failure::{Answer, Failure, Outcome};
use nvfold_c::paths::LastLink;
use std::ffi::{c_char, c_int, c_void};

/// The object of a call.
#[derive(Clone, Copy)]
enum About {
    Path(*const c_char, LastLink),
    Number(c_int),
}

impl About {
    /// `host` gets the path, which is NULL for a number.
    ///
    /// # Safety
    ///
    /// A path is an argument of the program.
    unsafe fn serve<T: Answer>(
        self,
        function: &'static str,
        host: impl FnOnce(*const c_char) -> T,
        ours: impl FnOnce(&FileSystem, InodeNumber) -> Outcome<T>,
    ) -> T {
        match self {
            About::Number(fd) => on_number(
                function,
                fd,
                || host(std::ptr::null()),
                |file| file.open.run(|fs| ours(fs, file.open.file.ino())),
            ),
            // SAFETY: the caller's contract.
            About::Path(path, last_link) => unsafe {
                on_path(
                    function,
                    (libc::AT_FDCWD, path, last_link),
                    |_, path| host(path),
                    |path| path.name().on(last_link, |fs, attr| ours(fs, attr.ino)),
                )
            },
        }
    }
}

/// Copies a value to the buffer; with a buffer of size 0 returns the size that is needed. ERANGE.
///
/// # Safety
///
/// The program passed `buffer` with `size` bytes.
unsafe fn give(value: &[u8], buffer: *mut c_void, size: usize) -> Outcome<isize> {
    if size == 0 {
        return Ok(value.len() as isize);
    }
    // SAFETY: the caller's contract.
    let mut buffer = unsafe { OutBytes::of(buffer) };
    let room = buffer.slice(size)?.get_mut(..value.len());
    room.ok_or_else(|| Failure::new(libc::ERANGE, "there is not enough room"))?.copy_from_slice(value);
    Ok(value.len() as isize)
}

/// Returns a name that the program passed. EOPNOTSUPP for the kernel's own names (`system.posix_acl_access`), whose
/// meaning is not kept here; programs such as cp then set the mode instead.
fn checked<'n>(name: &'n CText<'_>) -> Outcome<&'n [u8]> {
    let name = name.bytes()?;
    if name.starts_with(b"system.") {
        return Err(Failure::new(libc::EOPNOTSUPP, "attributes of the system are not kept here"));
    }
    Ok(name)
}

/// # Safety
///
/// The arguments are the program's.
unsafe fn get(
    about: About,
    name: *const c_char,
    (buffer, size): (*mut c_void, usize),
    host: impl FnOnce(*const c_char) -> isize,
) -> isize {
    // SAFETY: the caller's contract.
    unsafe {
        about.serve("getxattr", host, |fs, ino| give(&fs.get_xattr(ino, checked(&CText::of(name))?)?, buffer, size))
    }
}

/// # Safety
///
/// The arguments are the program's.
unsafe fn set(
    about: About,
    name: *const c_char,
    (value, size): (*const c_void, usize),
    flags: c_int,
    host: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        about.serve("setxattr", host, |fs, ino| {
            let mode = match flags {
                0 => XattrMode::Set,
                libc::XATTR_CREATE => XattrMode::Create,
                libc::XATTR_REPLACE => XattrMode::Replace,
                _ => return Err(Failure::invalid(format!("unknown flags {flags:#x}"))),
            };
            fs.set_xattr(ino, checked(&CText::of(name))?, InBytes::of(value).slice(size)?, mode)?;
            Ok(0)
        })
    }
}

/// # Safety
///
/// The arguments are the program's.
unsafe fn list(about: About, (buffer, size): (*mut c_char, usize), host: impl FnOnce(*const c_char) -> isize) -> isize {
    // SAFETY: the caller's contract.
    unsafe {
        about.serve("listxattr", host, |fs, ino| {
            let names = fs.list_xattr(ino)?.into_iter().flat_map(|name| [name, vec![0]].concat());
            give(&names.collect::<Vec<u8>>(), buffer.cast(), size)
        })
    }
}

/// # Safety
///
/// The arguments are the program's.
unsafe fn remove(about: About, name: *const c_char, host: impl FnOnce(*const c_char) -> c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        about.serve("removexattr", host, |fs, ino| {
            fs.remove_xattr(ino, checked(&CText::of(name))?)?;
            Ok(0)
        })
    }
}

/// Defines the three functions of a kind: for the file that a path leads to, for a link itself, for a descriptor.
macro_rules! three {
    ($common:ident: $by_path:ident $of_link:ident $by_number:ident
     ($($argument:ident: $type:ty),*) -> $answer:ty, ($($passed:expr),*),
     $host_path:ident $host_link:ident $host_number:ident) => {
        #[doc = concat!(stringify!($host_path), "(2)")]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $by_path(path: *const c_char, $($argument: $type),*) -> $answer {
            let from_host = |path| host!(libc::$host_path(path, $($argument),*));
            // SAFETY: the arguments are the program's, under the contract of the libc function.
            unsafe { $common(About::Path(path, LastLink::Follow), $($passed,)* from_host) }
        }

        #[doc = concat!(stringify!($host_link), "(2)")]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $of_link(path: *const c_char, $($argument: $type),*) -> $answer {
            let from_host = |path| host!(libc::$host_link(path, $($argument),*));
            // SAFETY: the arguments are the program's, under the contract of the libc function.
            unsafe { $common(About::Path(path, LastLink::Keep), $($passed,)* from_host) }
        }

        #[doc = concat!(stringify!($host_number), "(2)")]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $by_number(fd: c_int, $($argument: $type),*) -> $answer {
            let from_host = |_| host!(libc::$host_number(fd, $($argument),*));
            // SAFETY: the arguments are the program's, under the contract of the libc function.
            unsafe { $common(About::Number(fd), $($passed,)* from_host) }
        }
    };
}

three!(get: nvfold_preload_getxattr nvfold_preload_lgetxattr nvfold_preload_fgetxattr
       (name: *const c_char, value: *mut c_void, size: usize) -> isize, (name, (value, size)),
       getxattr lgetxattr fgetxattr);
three!(set: nvfold_preload_setxattr nvfold_preload_lsetxattr nvfold_preload_fsetxattr
       (name: *const c_char, value: *const c_void, size: usize, flags: c_int) -> c_int, (name, (value, size), flags),
       setxattr lsetxattr fsetxattr);
three!(list: nvfold_preload_listxattr nvfold_preload_llistxattr nvfold_preload_flistxattr
       (names: *mut c_char, size: usize) -> isize, ((names, size)),
       listxattr llistxattr flistxattr);
three!(remove: nvfold_preload_removexattr nvfold_preload_lremovexattr nvfold_preload_fremovexattr
       (name: *const c_char) -> c_int, (name),
       removexattr lremovexattr fremovexattr);
