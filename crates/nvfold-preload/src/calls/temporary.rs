//! Temporary files and directories with unused names: mkstemp and related functions.
//!
//! libc's versions open the file by a call that no interposition sees, so they are implemented here again.

use super::opening::open_path;
use super::serve::{host, on_path};
use crate::prefix::DevicePath;
use nvfold_c::failure::{Failure, Outcome};
use nvfold_c::names::Name;
use nvfold_c::paths::LastLink;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const TRIES_MAX: usize = 1000;
/// The end of a template.
const PLACE_HOLDER: &[u8] = b"XXXXXX";

/// Returns the range of a template that is replaced. EINVAL.
fn place_of(template: &[u8], suffix: c_int) -> Outcome<std::ops::Range<usize>> {
    let end = usize::try_from(suffix).ok().and_then(|suffix| template.len().checked_sub(suffix));
    let start = end.and_then(|end| end.checked_sub(PLACE_HOLDER.len()));
    match (start, end) {
        (Some(start), Some(end)) if template[start..end] == *PLACE_HOLDER => Ok(start..end),
        _ => Err(Failure::invalid("the template does not end in XXXXXX")),
    }
}

/// Tries names until `make` finds an unused one, and puts the name into the template.
///
/// # Safety
///
/// `template` is a C string that may be written to.
unsafe fn name_of<T>(template: *mut c_char, suffix: c_int, mut make: impl FnMut(&[u8]) -> Outcome<T>) -> Outcome<T> {
    // SAFETY: the caller guarantees a C string.
    let mut name = unsafe { CStr::from_ptr(template) }.to_bytes().to_vec();
    let place = place_of(&name, suffix)?;
    for _ in 0..TRIES_MAX {
        let letters = pmem::random_bytes::<6>().map(|byte| LETTERS[byte as usize % LETTERS.len()]);
        name[place.clone()].copy_from_slice(&letters);
        match make(&name) {
            Err(failure) if failure.errno == libc::EEXIST => {}
            Err(failure) => return Err(failure),
            Ok(made) => {
                // SAFETY: within the string, which may be written to.
                unsafe { ptr::copy_nonoverlapping(letters.as_ptr(), template.add(place.start).cast(), letters.len()) };
                return Ok(made);
            }
        }
    }
    Err(Failure::new(libc::EEXIST, "all names that were tried are there"))
}

/// Has libc make a file or directory by a path of the host, and puts the end of its name into the template.
///
/// # Safety
///
/// Both are C strings, the template may be written to, and both end in the same name.
unsafe fn on_host(path: *const c_char, template: *mut c_char, make: impl FnOnce(*mut c_char) -> c_int) -> c_int {
    if ptr::eq(path, template) {
        return make(template);
    }
    // SAFETY: the caller guarantees C strings; what is copied is at most as long as both.
    unsafe {
        let mut path = CStr::from_ptr(path).to_bytes_with_nul().to_vec();
        let made = make(path.as_mut_ptr().cast());
        let whole = CStr::from_ptr(template).to_bytes_with_nul();
        let name_at = whole.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let name_bytes = (whole.len() - name_at).min(path.len());
        let (from, to) = (path.len() - name_bytes, whole.len() - name_bytes);
        ptr::copy_nonoverlapping(path[from..].as_ptr(), template.add(to).cast(), name_bytes);
        made
    }
}

/// mkostemps(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    // SAFETY: the program passes a string that may be written to. Only the last bytes of the template change, so each
    // name is in the directory of the template.
    unsafe {
        on_path(
            "mkstemp",
            (libc::AT_FDCWD, template, LastLink::Name),
            |_, path| on_host(path, template, |path| host!(libc::mkostemps(path, suffix, flags))),
            |path| name_of(template, suffix, |name| open_path(&path.with_end_of(name), flags, 0o600)),
        )
    }
}

/// mkstemp(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mkstemp(template: *mut c_char) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_mkostemps(template, 0, 0) }
}

/// mkostemp(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mkostemp(template: *mut c_char, flags: c_int) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_mkostemps(template, 0, flags) }
}

/// mkstemps(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mkstemps(template: *mut c_char, suffix: c_int) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe { nvfold_preload_mkostemps(template, suffix, 0) }
}

unsafe extern "C" {
    fn mktemp(template: *mut c_char) -> *mut c_char;
}

/// mktemp(3): an unused name; the template becomes empty if there is none.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mktemp(template: *mut c_char) -> *mut c_char {
    let is_free = |path: &DevicePath, name: &[u8]| match (Name { path: path.with_end_of(name).path(), ..path.name() })
        .attr(LastLink::Keep)
    {
        Ok(_) => Err(Failure::new(libc::EEXIST, "it exists")),
        Err(failure) if failure.errno == libc::ENOENT => Ok(()),
        Err(failure) => Err(failure),
    };
    // SAFETY: the program passes a string that may be written to.
    unsafe {
        let found = on_path(
            "mktemp",
            (libc::AT_FDCWD, template, LastLink::Name),
            |_, path| match on_host(path, template, |path| if *host!(mktemp(path)) == 0 { -1 } else { 0 }) {
                0 => template.cast::<c_void>(),
                _ => ptr::null_mut(),
            },
            |path| name_of(template, 0, |name| is_free(path, name)).map(|()| template.cast()),
        );
        if found.is_null() {
            template.write(0);
        }
    }
    template
}

/// mkdtemp(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mkdtemp(template: *mut c_char) -> *mut c_char {
    // SAFETY: the program passes a string that may be written to.
    let made = unsafe {
        on_path(
            "mkdtemp",
            (libc::AT_FDCWD, template, LastLink::Name),
            |_, path| on_host(path, template, |path| if host!(libc::mkdtemp(path)).is_null() { -1 } else { 0 }),
            |path| {
                let make = |name: &[u8]| Name { path: path.with_end_of(name).path(), ..path.name() }.mkdir(0o700);
                name_of(template, 0, make).map(|()| 0)
            },
        )
    };
    if made == 0 { template } else { ptr::null_mut() }
}
