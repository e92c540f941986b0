//! Replacements for libc functions that read directories by calls that no interposition sees: scandir, glob and nftw.

use super::directories::{
    nvfold_preload_closedir as closedir, nvfold_preload_fdopendir as fdopendir, nvfold_preload_opendir as opendir,
    nvfold_preload_readdir as readdir,
};
use super::opening::open_at;
use super::serve::host;
use super::status::{nvfold_preload_lstat as lstat, nvfold_preload_stat as stat};
use crate::device;
use crate::prefix::{Place, look};
use nvfold_c::caller;
use nvfold_c::failure::set_errno;
use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::{ptr, vec};

type Entry = libc::dirent64;
type Filter = Option<unsafe extern "C" fn(*const Entry) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*const c_void, *const c_void) -> c_int>;

/// Returns whether a path leads to the device, or by way of it to the host, where libc would not find it.
///
/// # Safety
///
/// `path` is NULL or a C string.
unsafe fn is_ours(path: *const c_char) -> bool {
    // SAFETY: the caller's contract.
    !matches!(unsafe { look(libc::AT_FDCWD, path) }, Place::Host)
}

/// scandir(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_scandir(
    path: *const c_char,
    list: *mut *mut *mut Entry,
    filter: Filter,
    compare: Compare,
) -> c_int {
    unsafe extern "C" {
        fn scandir(path: *const c_char, list: *mut *mut *mut Entry, filter: Filter, compare: Compare) -> c_int;
    }
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        if !is_ours(path) {
            return host!(scandir(path, list, filter, compare));
        }
        list_of(opendir(path), list, filter, compare)
    }
}

/// scandirat(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_scandirat(
    dirfd: c_int,
    path: *const c_char,
    list: *mut *mut *mut Entry,
    filter: Filter,
    compare: Compare,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        let fd = open_at(dirfd, path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0);
        if fd < 0 {
            return -1;
        }
        let stream = fdopendir(fd);
        if stream.is_null() {
            super::descriptors::close(fd);
        }
        list_of(stream, list, filter, compare)
    }
}

/// Makes the list of scandir from a directory stream, and closes the stream; -1 for NULL.
///
/// # Safety
///
/// The arguments are the program's, under the contract of scandir.
unsafe fn list_of(stream: *mut c_void, list: *mut *mut *mut Entry, filter: Filter, compare: Compare) -> c_int {
    if stream.is_null() {
        return -1;
    }
    // SAFETY: the caller's contract.
    unsafe {
        let mut found = Vec::new();
        loop {
            let entry = readdir(stream);
            if entry.is_null() {
                break;
            }
            if filter.is_none_or(|filter| filter(entry) != 0) {
                // The program frees the copy.
                let copy = libc::malloc(size_of::<Entry>()).cast::<Entry>();
                if copy.is_null() {
                    break;
                }
                copy.write(*entry);
                found.push(copy);
            }
        }
        closedir(stream);
        let array = libc::malloc(size_of::<*mut Entry>() * found.len().max(1)).cast::<*mut Entry>();
        if array.is_null() {
            return -1;
        }
        ptr::copy_nonoverlapping(found.as_ptr(), array, found.len());
        if let Some(compare) = compare {
            libc::qsort(array.cast(), found.len(), size_of::<*mut Entry>(), Some(compare));
        }
        list.write(array);
        found.len() as c_int
    }
}

/// glibc's `glob_t`, with its function pointers for reading directories.
#[repr(C)]
pub(super) struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    closedir: *const c_void,
    readdir: *const c_void,
    opendir: *const c_void,
    lstat: *const c_void,
    stat: *const c_void,
}

type GlobError = Option<extern "C" fn(*const c_char, c_int) -> c_int>;
type GlobFunction = unsafe extern "C" fn(*const c_char, c_int, GlobError, *mut Glob) -> c_int;

/// glob(3), with our directory functions, which also serve the host's directories.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_glob(
    pattern: *const c_char,
    flags: c_int,
    error: GlobError,
    found: *mut Glob,
    next: GlobFunction,
) -> c_int {
    const ALTDIRFUNC: c_int = 1 << 9;
    let asks_us = device::has_prefix() && flags & ALTDIRFUNC == 0 && !found.is_null();
    // SAFETY: the arguments are the program's; the functions have the types that glob requires.
    unsafe {
        if asks_us {
            (*found).closedir = closedir as *const c_void;
            (*found).readdir = readdir as *const c_void;
            (*found).opendir = opendir as *const c_void;
            (*found).lstat = lstat as *const c_void;
            (*found).stat = stat as *const c_void;
        }
        next(pattern, flags | if asks_us { ALTDIRFUNC } else { 0 }, error, found)
    }
}

/// glibc's `struct FTW`.
#[repr(C)]
pub(super) struct FtwPlace {
    base: c_int,
    level: c_int,
}

type Visit = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int, *mut FtwPlace) -> c_int;
type SimpleVisit = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int) -> c_int;

const FTW_F: c_int = 0;
const FTW_D: c_int = 1;
const FTW_DNR: c_int = 2;
const FTW_NS: c_int = 3;
const FTW_SL: c_int = 4;
const FTW_DP: c_int = 5;
const FTW_PHYS: c_int = 1;
const FTW_CHDIR: c_int = 4;
const FTW_DEPTH: c_int = 8;
const FTW_ACTIONRETVAL: c_int = 16;
const FTW_SKIP_SUBTREE: c_int = 2;
const FTW_SKIP_SIBLINGS: c_int = 3;

/// A walk through a tree of ours. It keeps the directories on its way in a list: the names on a device are input, and may
/// be nested deeper than the program's stack.
struct Walk<V> {
    visit: V,
    flags: c_int,
    levels: Vec<Level>,
    /// The directories that were met, by their devices and numbers. Damaged names may lead from one to itself.
    met: HashSet<(libc::dev_t, libc::ino_t)>,
}

/// A directory on the way, with the names that have not been visited.
struct Level {
    path: CString,
    found: libc::stat,
    names: vec::IntoIter<Vec<u8>>,
}

impl<V: FnMut(*const c_char, *const libc::stat, c_int, *mut FtwPlace) -> c_int> Walk<V> {
    /// Visits a path and the paths below it; a result other than 0 ends the walk.
    ///
    /// # Safety
    ///
    /// `visit` calls a function of the program.
    unsafe fn go(&mut self, path: &CStr) -> c_int {
        // SAFETY: the caller's contract.
        let mut answer = unsafe { self.enter(path) };
        loop {
            let leaves_siblings = answer == FTW_SKIP_SIBLINGS && self.flags & FTW_ACTIONRETVAL != 0;
            let Some(level) = self.levels.last_mut().filter(|_| answer == 0 || leaves_siblings) else { return answer };
            let name = if leaves_siblings { None } else { level.names.next() };
            // SAFETY: the caller's contract.
            answer = unsafe {
                match name {
                    Some(name) => {
                        let bytes = level.path.to_bytes();
                        let below = [bytes.strip_suffix(b"/").unwrap_or(bytes), b"/", &name].concat();
                        CString::new(below).map_or(0, |below| self.enter(&below))
                    }
                    None => self.leave(),
                }
            };
        }
    }

    /// Visits a path. What is below a directory comes next.
    ///
    /// # Safety
    ///
    /// That of `go`.
    unsafe fn enter(&mut self, path: &CStr) -> c_int {
        let mut found = caller::empty_stat();
        // SAFETY: a C string and a structure of ours.
        let known = unsafe {
            match self.flags & FTW_PHYS {
                0 => stat(path.as_ptr(), &raw mut found),
                _ => lstat(path.as_ptr(), &raw mut found),
            }
        };
        if known != 0 {
            return self.tell(path, &found, FTW_NS);
        }
        match found.st_mode & libc::S_IFMT {
            libc::S_IFDIR => {}
            libc::S_IFLNK => return self.tell(path, &found, FTW_SL),
            _ => return self.tell(path, &found, FTW_F),
        }
        let is_new = self.met.insert((found.st_dev, found.st_ino));
        if !is_new && self.flags & FTW_PHYS == 0 {
            // Symbolic links lead to one directory by several paths; it is visited once.
            return 0;
        }
        // SAFETY: a C string of ours.
        let names = if is_new { unsafe { names_in(path) } } else { None };
        let Some(names) = names else { return self.tell(path, &found, FTW_DNR) };
        if self.flags & FTW_DEPTH == 0 {
            match self.tell(path, &found, FTW_D) {
                0 => {}
                FTW_SKIP_SUBTREE if self.flags & FTW_ACTIONRETVAL != 0 => return 0,
                answer => return answer,
            }
        }
        self.levels.push(Level { path: path.to_owned(), found, names: names.into_iter() });
        0
    }

    /// Ends the innermost directory.
    ///
    /// # Safety
    ///
    /// That of `go`.
    unsafe fn leave(&mut self) -> c_int {
        let Some(Level { path, found, .. }) = self.levels.pop() else { return 0 };
        if self.flags & FTW_DEPTH != 0 { self.tell(&path, &found, FTW_DP) } else { 0 }
    }

    /// Calls the program's function.
    fn tell(&mut self, path: &CStr, found: &libc::stat, kind: c_int) -> c_int {
        let base = path.to_bytes().iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let mut place = FtwPlace { base: base as c_int, level: self.levels.len() as c_int };
        (self.visit)(path.as_ptr(), &raw const *found, kind, &raw mut place)
    }
}

/// Returns the names in a directory; `None` if it cannot be read.
///
/// # Safety
///
/// No condition: `path` is a C string.
unsafe fn names_in(path: &CStr) -> Option<Vec<Vec<u8>>> {
    // SAFETY: a C string of ours, and the stream that our opendir returned.
    unsafe {
        let stream = opendir(path.as_ptr());
        if stream.is_null() {
            return None;
        }
        let mut names = Vec::new();
        loop {
            let entry = readdir(stream);
            if entry.is_null() {
                break;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr()).to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        closedir(stream);
        Some(names)
    }
}

/// # Safety
///
/// The arguments are the program's; `path` is ours.
unsafe fn walk(
    path: *const c_char,
    flags: c_int,
    visit: impl FnMut(*const c_char, *const libc::stat, c_int, *mut FtwPlace) -> c_int,
) -> c_int {
    if flags & FTW_CHDIR != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    let mut walk = Walk { visit, flags, levels: Vec::new(), met: HashSet::new() };
    let mut found = caller::empty_stat();
    // SAFETY: the caller's contract.
    unsafe {
        if lstat(path, &raw mut found) != 0 {
            return -1;
        }
        let path = CStr::from_ptr(path).to_bytes();
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(1, |at| at + 1);
        CString::new(&path[..end]).map_or(-1, |path| walk.go(&path))
    }
}

/// nftw(3), without FTW_CHDIR (EINVAL).
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_nftw(
    path: *const c_char,
    visit: Visit,
    most: c_int,
    flags: c_int,
) -> c_int {
    unsafe extern "C" {
        fn nftw(path: *const c_char, visit: Visit, most: c_int, flags: c_int) -> c_int;
    }
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        match is_ours(path) {
            true => walk(path, flags, |path, stat, kind, place| visit(path, stat, kind, place)),
            false => host!(nftw(path, visit, most, flags)),
        }
    }
}

/// ftw(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_ftw(path: *const c_char, visit: SimpleVisit, most: c_int) -> c_int {
    unsafe extern "C" {
        fn ftw(path: *const c_char, visit: SimpleVisit, most: c_int) -> c_int;
    }
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        match is_ours(path) {
            true => walk(path, 0, |path, stat, kind, _| visit(path, stat, kind)),
            false => host!(ftw(path, visit, most)),
        }
    }
}
