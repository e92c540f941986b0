//! Dispatch of a call: to libc, with the program's arguments, or to our code, with the path or the open file.

use crate::answer::{answer, checked};
use crate::numbers;
use crate::prefix::{DevicePath, Place, look_for};
use nvfold::FileKind;
use nvfold_c::caller;
use nvfold_c::failure::{Answer, Failure, Outcome};
use nvfold_c::paths::{LastLink, NAME_BYTES_MAX};
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;

/// The next library's function of this name, as a pointer of the type that is expected: libc's, or that of another
/// library which is preloaded behind this one.
macro_rules! next {
    ($name:expr) => {{
        #[cfg(not(test))]
        unsafe extern "C" {
            // scripts/preload-library.sh makes it.
            #[link_name = concat!("nvfold_next_", $name)]
            fn next();
        }
        // A test of this crate is not linked by the script.
        #[cfg(test)]
        unsafe extern "C" fn next() {}
        // SAFETY: a function of libc's name has the type that libc's has, which the caller says.
        #[allow(unused_unsafe, clippy::missing_transmute_annotations, clippy::useless_transmute)]
        unsafe {
            std::mem::transmute(next as unsafe extern "C" fn())
        }
    }};
}
pub(crate) use next;

/// Calls the next library's function: `host!(libc::chmod(path, mode))`. The type is that of libc's.
macro_rules! host {
    (libc::fcntl($($argument:expr),*)) => {
        $crate::calls::host!(@variadic "fcntl", (c_int, c_int), c_int, $($argument),*)
    };
    (libc::ioctl($($argument:expr),*)) => {
        $crate::calls::host!(@variadic "ioctl", (c_int, std::ffi::c_ulong), c_int, $($argument),*)
    };
    (libc::openat($($argument:expr),*)) => {
        $crate::calls::host!(@variadic "openat", (c_int, *const c_char, c_int), c_int, $($argument),*)
    };
    (libc::mremap($($argument:expr),*)) => {
        $crate::calls::host!(@variadic "mremap", (*mut c_void, usize, usize, c_int), *mut c_void, $($argument),*)
    };
    (libc::syscall($($argument:expr),*)) => {
        $crate::calls::host!(@variadic "syscall", (c_long), c_long, $($argument),*)
    };
    (@variadic $name:expr, ($($type:ty),*), $answer:ty, $($argument:expr),*) => {{
        let call: unsafe extern "C" fn($($type,)* ...) -> $answer = $crate::calls::next!($name);
        // SAFETY: as below.
        #[allow(unused_unsafe)]
        let answer = unsafe { call($($argument),*) };
        answer
    }};
    // A function that the stub has passed.
    (=> $next:ident($($argument:expr),*)) => {{
        // SAFETY: as below.
        #[allow(unused_unsafe)]
        let answer = unsafe { $next($($argument),*) };
        answer
    }};
    (libc::$name:ident($($argument:expr),* $(,)?)) => {
        $crate::calls::host!(@call stringify!($name), libc::$name, $($argument),*)
    };
    ($name:ident($($argument:expr),* $(,)?)) => {
        $crate::calls::host!(@call stringify!($name), $name, $($argument),*)
    };
    (@call $name:expr, $type:expr, $($argument:expr),*) => {{
        #[allow(unused_assignments)]
        let call = {
            // It says which type the function has, and is not called.
            let mut call: unsafe extern "C" fn($($crate::calls::host!(@any $argument)),*) -> _ = $type;
            call = $crate::calls::next!($name);
            call
        };
        // SAFETY: the next library gets the program's arguments, or a string of ours in place of its path, for the
        // function that was called.
        #[allow(unused_unsafe)]
        let answer = unsafe { call($($argument),*) };
        answer
    }};
    (@any $argument:expr) => { _ };
}
pub(crate) use host;

/// A path as a program passes it: the directory where it starts, the path, and what is done with a link at its end.
pub(super) type Path = (c_int, *const c_char, LastLink);

/// Serves a call on one path. `host` gets the directory where the path starts, and the path.
///
/// # Safety
///
/// The path is NULL or a C string.
pub(super) unsafe fn on_path<T: Answer>(
    function: &'static str,
    path: Path,
    host: impl FnOnce(c_int, *const c_char) -> T,
    ours: impl FnOnce(&DevicePath) -> Outcome<T>,
) -> T {
    // SAFETY: the caller guarantees a C string.
    match unsafe { look_for(path) } {
        Place::Host => host(path.0, path.1),
        Place::HostAt(path) => host(libc::AT_FDCWD, path.as_ptr()),
        Place::Refused(failure) => answer(function, || Err(failure)),
        Place::Device(path) => answer(function, || ours(&path)),
    }
}

/// One of two paths of a call.
pub(super) enum Side<'s> {
    Host(c_int, *const c_char),
    Device(&'s DevicePath),
    Refused(&'s Failure),
}

/// Serves a call on two paths, which are both the host's, or both ours, or fail (`across`).
///
/// # Safety
///
/// Each path is NULL or a C string.
pub(super) unsafe fn on_paths(
    function: &'static str,
    (path, new_path): (Path, Path),
    host: impl FnOnce((c_int, *const c_char), (c_int, *const c_char)) -> c_int,
    ours: impl FnOnce(&DevicePath, &DevicePath) -> Outcome<c_int>,
    across: impl FnOnce(&Side<'_>, &Side<'_>) -> Failure,
) -> c_int {
    // SAFETY: the caller guarantees C strings.
    let (from, to) = unsafe { (look_for(path), look_for(new_path)) };
    match (Side::of(&from, path), Side::of(&to, new_path)) {
        (Side::Host(dirfd, path), Side::Host(new_dirfd, new)) => host((dirfd, path), (new_dirfd, new)),
        (Side::Device(path), Side::Device(new)) => answer(function, || ours(path, new)),
        (from, to) => answer(function, || Err(across(&from, &to))),
    }
}

/// Returns the failure of a call between the device and the host that could do all else.
pub(super) fn between() -> Failure {
    Failure::new(libc::EXDEV, "one of the paths is on the device, and the other is not")
}

impl<'s> Side<'s> {
    fn of(place: &'s Place, (dirfd, path, _): Path) -> Side<'s> {
        match place {
            Place::Host => Side::Host(dirfd, path),
            Place::HostAt(path) => Side::Host(libc::AT_FDCWD, path.as_ptr()),
            Place::Device(path) => Side::Device(path),
            Place::Refused(failure) => Side::Refused(failure),
        }
    }

    /// Returns what has the name, as the mode of its type; `None`: nothing. Fails if the directories on the way are not
    /// there.
    pub(super) fn kind(&self) -> Outcome<Option<libc::mode_t>> {
        match self {
            Side::Refused(failure) => Err(Failure::new(failure.errno, failure.message.clone())),
            Side::Device(path) => path.name().on_place(LastLink::Name, |_, place| {
                Ok(place.attr.map(|attr| if attr.kind == FileKind::Directory { libc::S_IFDIR } else { libc::S_IFREG }))
            }),
            Side::Host(dirfd, _) => {
                let path = self.checked_text()?;
                let end = path.iter().rposition(|byte| *byte != b'/').map_or(path.len(), |at| at + 1);
                match kind_on_host(*dirfd, &path[..end], libc::AT_SYMLINK_NOFOLLOW) {
                    Err(failure) if matches!(failure.errno, libc::ENOENT | libc::ENAMETOOLONG) => {
                        let name_at = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
                        kind_on_host(*dirfd, &[&path[..name_at], b"."].concat(), 0).map(|_| None)
                    }
                    other => other.map(Some),
                }
            }
        }
    }

    /// Fails if the path leads to nothing, by the flags of linkat.
    pub(super) fn check_exists(&self, flags: c_int) -> Outcome<()> {
        let follows = flags & libc::AT_SYMLINK_FOLLOW != 0;
        let takes_empty = flags & libc::AT_EMPTY_PATH;
        match self {
            Side::Refused(_) => self.kind().map(drop),
            Side::Device(path) if takes_empty != 0 && path.open_file().is_some() => Ok(()),
            Side::Device(path) => path.name().attr(if follows { LastLink::Follow } else { LastLink::Keep }).map(drop),
            Side::Host(dirfd, _) => {
                let path = if takes_empty != 0 { self.text() } else { self.checked_text()? };
                let no_follow = if follows { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
                kind_on_host(*dirfd, path, takes_empty | no_follow).map(drop)
            }
        }
    }

    /// Returns the path as text.
    pub(super) fn text(&self) -> &[u8] {
        match self {
            Side::Refused(_) => b"",
            Side::Device(path) => path.path(),
            // SAFETY: the program's string, or one of ours, which outlives this value.
            Side::Host(_, path) => unsafe { CStr::from_ptr(*path) }.to_bytes(),
        }
    }

    /// The same, if it is a path. ENOENT, ENAMETOOLONG.
    fn checked_text(&self) -> Outcome<&[u8]> {
        match self.text() {
            b"" => Err(Failure::new(libc::ENOENT, "the path is empty")),
            text if text.len() >= libc::PATH_MAX as usize => {
                Err(Failure::new(libc::ENAMETOOLONG, "the path is longer than PATH_MAX"))
            }
            text => Ok(text),
        }
    }

    /// Returns the last name of the path.
    pub(super) fn last_name(&self) -> &[u8] {
        self.text().rsplit(|byte| *byte == b'/').find(|name| !name.is_empty()).unwrap_or_default()
    }

    /// Fails if no directory can have the last name of the path. ENAMETOOLONG.
    pub(super) fn check_last_name(&self) -> Outcome<()> {
        match self.last_name().len() > NAME_BYTES_MAX {
            true => Err(Failure::new(libc::ENAMETOOLONG, "the name is too long")),
            false => Ok(()),
        }
    }

    /// Whether it is the root of the device.
    pub(super) fn is_root(&self) -> bool {
        matches!(self, Side::Device(path) if path.is_root())
    }

    /// Whether the path ends in `/`, behind a name.
    pub(super) fn ends_in_slash(&self) -> bool {
        if self.is_root() { self.text().len() > 1 } else { self.text().ends_with(b"/") }
    }
}

/// Returns the mode of what fstatat finds, or its failure.
fn kind_on_host(dirfd: c_int, path: &[u8], flags: c_int) -> Outcome<libc::mode_t> {
    let path = CString::new(path).map_err(|_| Failure::invalid("the path has a NUL"))?;
    let mut found = caller::empty_stat();
    // SAFETY: a C string, and a structure of ours.
    checked("stat", unsafe { libc::fstatat(dirfd, path.as_ptr(), &raw mut found, flags) })?;
    Ok(found.st_mode & libc::S_IFMT)
}

/// Serves a call on one descriptor.
pub(super) fn on_number<T: Answer>(
    function: &'static str,
    fd: c_int,
    host: impl FnOnce() -> T,
    ours: impl FnOnce(&Arc<numbers::File>) -> Outcome<T>,
) -> T {
    if numbers::is_ours(fd) { answer(function, || ours(&numbers::get(fd)?)) } else { host() }
}
