//! Whether a path is ours, and where it leads.
//!
//! The problem: the kernel does not know the prefix, so the path itself must tell: an absolute path by its beginning,
//! a relative one by its starting directory, which is the working directory or an open one.
//!
//! | path | leads to |
//! |---|---|
//! | `/nvfold`, `/nvfold/a/b` | the device |
//! | `/tmp/../nvfold/a` | the device: `.`, `..` and `//` are first removed as text |
//! | `/nvfold/../etc` | the host, for the same reason |
//! | `a/b`, with a working directory or a descriptor below the prefix | the device, from that very directory |
//! | `../../etc` from there | the host, if it goes above the prefix |
//! | `nvfold/a`, with `/` as the working directory | the device |
//!
//! Removing `..` as text is wrong where the directory before it is a symbolic link. So the text only decides whether
//! the path leaves the prefix; a path that stays within is followed on the device as it was written. A symbolic link
//! on the host that leads below the prefix is not followed.

use crate::numbers::{self, File};
use crate::{device, process, working};
use nvfold::InodeNumber;
use nvfold_c::device::Device;
use nvfold_c::names::Name;
use nvfold_c::paths::{Start, below};
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;

/// A path on the device.
pub struct DevicePath {
    device: Arc<Device>,
    /// The directory it starts from, kept open; `None`: the root.
    from: Option<Arc<File>>,
    path: Vec<u8>,
}

/// Where a path leads.
pub enum Place {
    /// To the host, by the unchanged path.
    Host,
    /// To the host, by this absolute path.
    HostAt(CString),
    Device(DevicePath),
    /// Below the prefix, but there is no device.
    Nowhere,
}

impl DevicePath {
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub fn name(&self) -> Name<'_> {
        Name { device: &self.device, start: self.start(), path: &self.path }
    }

    pub fn start(&self) -> Start<'_> {
        let directory = self.from.as_ref().map_or(InodeNumber::ROOT, |from| from.open.file.ino());
        Start { directory, prefix: device::prefix() }
    }

    /// Returns the path relative to its starting directory.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns another name in the same directory: the end of `path`, as long as this path.
    pub fn with_end_of(&self, path: &[u8]) -> DevicePath {
        let path = path[path.len().saturating_sub(self.path.len())..].to_vec();
        DevicePath { device: self.device.clone(), from: self.from.clone(), path }
    }

    /// Returns the whole path as the program sees it, without `.`, `..` and `//`.
    pub fn absolute(&self) -> Vec<u8> {
        match &self.from {
            Some(from) if self.path.first() != Some(&b'/') => {
                normalized(&[&from.path, b"/".as_slice(), &self.path].concat())
            }
            _ => normalized(&[device::prefix(), b"/", &self.path].concat()),
        }
    }
}

/// Removes `.`, `..` and `//` as text.
pub fn normalized(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    let mut whole: Vec<u8> = names.iter().flat_map(|name| [b"/".as_slice(), name].concat()).collect();
    if whole.is_empty() {
        whole.push(b'/');
    }
    whole
}

/// Returns whether `normalized` would remove nothing except a `/` at the end.
fn is_plain(path: &[u8]) -> bool {
    let has = |what: &[u8]| path.windows(what.len()).any(|window| window == what);
    !has(b"//") && !has(b"/./") && !has(b"/../") && !path.ends_with(b"/..") && !path.ends_with(b"/.")
}

fn has_parents(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name == b"..")
}

/// Returns where a path leads that starts from a descriptor or, with AT_FDCWD, from the working directory.
///
/// # Safety
///
/// `path` is NULL or a C string.
pub unsafe fn look(dirfd: c_int, path: *const c_char) -> Place {
    if !device::has_prefix() || path.is_null() {
        return Place::Host;
    }
    // SAFETY: the caller guarantees a C string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path.len() >= libc::PATH_MAX as usize {
        // The host answers with ENAMETOOLONG.
        return Place::Host;
    }
    if path.first() == Some(&b'/') {
        return absolute(path);
    }
    let starts_from_ours = numbers::is_ours(dirfd) || (dirfd == libc::AT_FDCWD && working::is_ours());
    // A child of fork must not take a lock.
    if starts_from_ours && process::is_not_owner() {
        return Place::Nowhere;
    }
    match numbers::is_ours(dirfd) {
        true => match numbers::get(dirfd) {
            Ok(from) => relative(from, path),
            Err(_) => Place::Nowhere,
        },
        false if dirfd == libc::AT_FDCWD => from_working_directory(path),
        false => Place::Host,
    }
}

fn on_device(from: Option<Arc<File>>, path: &[u8]) -> Place {
    match device::device() {
        Some(device) => Place::Device(DevicePath { device, from, path: path.to_vec() }),
        None => Place::Nowhere,
    }
}

fn on_host(path: &[u8]) -> Place {
    CString::new(path).map_or(Place::Host, Place::HostAt)
}

fn absolute(path: &[u8]) -> Place {
    let prefix = device::prefix();
    match below(prefix, path) {
        Some(rest) if !has_parents(rest) => on_device(None, if rest.is_empty() { b"/" } else { rest }),
        // The path stays within the prefix, or leaves it.
        Some(rest) => match below(prefix, &normalized(path)) {
            Some(_) => on_device(None, rest),
            None => on_host(&normalized(path)),
        },
        None if is_plain(path) => Place::Host,
        None => match below(prefix, &normalized(path)) {
            Some(b"") => on_device(None, b"/"),
            Some(rest) if path.ends_with(b"/") => on_device(None, &[rest, b"/"].concat()),
            Some(rest) => on_device(None, rest),
            None => Place::Host,
        },
    }
}

fn relative(from: Arc<File>, path: &[u8]) -> Place {
    if has_parents(path) {
        let whole = normalized(&[&from.path, b"/".as_slice(), path].concat());
        if below(device::prefix(), &whole).is_none() {
            return on_host(&whole);
        }
    }
    on_device(Some(from), path)
}

fn from_working_directory(path: &[u8]) -> Place {
    if path.is_empty() {
        return Place::Host;
    }
    match working::working_directory() {
        Some(directory) => relative(directory, path),
        None if !working::may_lead_below(path) => Place::Host,
        None => match working::host_working_directory() {
            Some(directory) => match absolute(&[&directory, b"/".as_slice(), path].concat()) {
                // The host gets the path as it was written.
                Place::HostAt(_) => Place::Host,
                place => place,
            },
            None => Place::Host,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_what_they_take_back() {
        for (path, expected) in
            [("/a/b", "/a/b"), ("//a//b/", "/a/b"), ("/a/./b/../c", "/a/c"), ("/../..", "/"), ("/a/b/../../..", "/")]
        {
            assert_eq!(normalized(path.as_bytes()), expected.as_bytes(), "{path}");
        }
        assert!(is_plain(b"/a/b/") && is_plain(b"/a/..b") && !is_plain(b"/a/..") && !is_plain(b"/a/../b"));
        assert!(has_parents(b"..") && has_parents(b"a/..") && !has_parents(b"a/..b"));
    }
}
