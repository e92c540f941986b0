//! Whether a path is ours, and where it leads: the walk that every call makes over host and device.
//!
//! The problem: the kernel does not know the prefix. It must look to a program as if the device were mounted there, while
//! a plain path of the host costs next to nothing.
//!
//! The idea: a path of the host that names the prefix has the last name of the prefix (`nvfold`) among its own names. So
//! all others go to the kernel as they are. The rest is followed name by name, as path_resolution(7) says: on the host
//! with lstat and readlink, on the device with the walk of nvfold-c, from one to the other wherever the path goes.
//!
//! | path | what is asked | leads to |
//! |---|---|---|
//! | any, without the last name of the prefix, from a directory of the host | its bytes, once | the host, unchanged |
//! | `/nvfold`, `/nvfold/a/b` | each name, on the device | the device |
//! | `/tmp/../nvfold/a`, `nvfold/a` in `/` | each name: lstat on the host | the device |
//! | `a/b`, from a directory of the device | each name, on the device | the device |
//! | `..` from the root of the device, `/nvfold/../etc` | the same | the host: the directory that holds the prefix |
//! | through a link on the device to the host, and back | the same, both sides | where Linux would go, 40 links at most |
//!
//! The prefix is compared as text with the real path that the walk is at. It need not exist on the host, nor need the
//! directories above it; what the host has there is hidden. A link of the host to below the prefix is followed where the
//! walk meets it. A path of the first row that leads through one is the kernel's, which finds what is hidden, or nothing.
//! Links in `/proc` are the kernel's alone: their text is no path.

use crate::answer::inside;
use crate::numbers::{self, File};
use crate::{device, host, process, working};
use nvfold::InodeNumber;
use nvfold_c::device::Device;
use nvfold_c::failure::Failure;
use nvfold_c::names::Name;
use nvfold_c::paths::{self, LINKS_MAX, LastLink, Start, Walked, below, first_name, is_last};
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;

/// A path on the device.
pub(crate) struct DevicePath {
    device: Arc<Device>,
    /// The directory it starts from, kept open; `None`: the root.
    directory: Option<nvfold::File>,
    path: Vec<u8>,
    links_left: u32,
    /// The open file that the program's path was relative to.
    from: Option<Arc<File>>,
    /// The absolute path that the program wrote, or means, as text: a hint.
    written: Vec<u8>,
}

/// Where a path leads.
pub(crate) enum Place {
    /// To the host, by the unchanged path.
    Host,
    /// To the host, by this absolute path.
    HostAt(CString),
    Device(DevicePath),
    /// Nowhere: it has no end (ELOOP), or the device is another process's or closed (EIO).
    Refused(Failure),
}

impl DevicePath {
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn name(&self) -> Name<'_> {
        Name { device: &self.device, start: self.start(), path: &self.path }
    }

    pub(crate) fn start(&self) -> Start<'_> {
        let directory = self.directory.as_ref().map_or(InodeNumber::ROOT, nvfold::File::ino);
        Start { directory, prefix: device::prefix(), links_left: self.links_left }
    }

    /// Returns the path relative to its starting directory.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the open file that an empty path means, with AT_EMPTY_PATH. `None`: the path is not empty.
    pub(crate) fn open_file(&self) -> Option<&Arc<File>> {
        self.from.as_ref().filter(|_| self.path.is_empty())
    }

    /// Whether it is the root of the device, by the name of the prefix.
    pub(crate) fn is_root(&self) -> bool {
        !self.path.is_empty() && is_last(&self.path)
    }

    /// Returns another name in the same directory: the last of `path`.
    pub(crate) fn with_end_of(&self, path: &[u8]) -> DevicePath {
        let name_at = |path: &[u8]| path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let path = [&self.path[..name_at(&self.path)], &path[name_at(path)..]].concat();
        let (directory, from) = (self.directory.clone(), self.from.clone());
        DevicePath { device: self.device.clone(), directory, path, from, written: Vec::new(), ..*self }
    }

    /// Returns the absolute path that the program wrote, without `.`, `..` and `//`: a hint at where a directory is.
    pub(crate) fn written(&self) -> Vec<u8> {
        normalized(&self.written)
    }
}

/// Where the walk is.
enum At {
    /// In a directory of the device; `None`: its root.
    Device(Option<Arc<File>>),
    /// In a directory of the host: its real path; empty for `/`.
    Host(Vec<u8>),
}

/// Returns whether a path has a name among its names.
fn has_name(path: &[u8], name: &[u8]) -> bool {
    let mut rest = path;
    while let Some(at) = rest.iter().position(|byte| *byte == b'/') {
        if &rest[..at] == name {
            return true;
        }
        rest = &rest[at + 1..];
    }
    rest == name
}

/// Returns where a path leads that starts from a descriptor or, with AT_FDCWD, from the working directory, for a call
/// that follows a link at its end.
///
/// # Safety
///
/// `path` is NULL or a C string.
pub(crate) unsafe fn look(dirfd: c_int, path: *const c_char) -> Place {
    // SAFETY: the caller's contract.
    unsafe { look_for((dirfd, path, LastLink::Follow)) }
}

/// Returns where a path leads, for a call that does this with a link at its end.
///
/// # Safety
///
/// `path` is NULL or a C string.
pub(crate) unsafe fn look_for((dirfd, path, last_link): (c_int, *const c_char, LastLink)) -> Place {
    if !device::has_prefix() || path.is_null() {
        return Place::Host;
    }
    // SAFETY: the caller guarantees a C string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let is_absolute = path.first() == Some(&b'/');
    let starts_from_ours = !is_absolute && (numbers::is_ours(dirfd) || (dirfd == libc::AT_FDCWD && working::is_ours()));
    if !starts_from_ours && (path.len() >= libc::PATH_MAX as usize || !has_name(path, device::last_name())) {
        return Place::Host;
    }
    // A child of fork must not take a lock.
    if starts_from_ours && process::is_not_owner() {
        return Place::Refused(device::no_device());
    }
    let at = match starts_from_ours {
        _ if is_absolute => Some(At::Host(Vec::new())),
        true if dirfd == libc::AT_FDCWD => working::working_directory().map(|file| At::Device(Some(file))),
        true => numbers::get(dirfd).ok().map(|file| At::Device(Some(file))),
        false => match host::real_path(dirfd) {
            Some(directory) => Some(At::Host(directory)),
            None => return Place::Host,
        },
    };
    match at {
        None => Place::Refused(device::no_device()),
        Some(at) => inside(|| walk(at, path, last_link)),
    }
}

/// Follows a path over both sides to its end.
fn walk(mut at: At, path: &[u8], last_link: LastLink) -> Place {
    let mut written = match &at {
        At::Device(from) => from.as_ref().map_or_else(Vec::new, |from| [&from.path, b"/".as_slice(), path].concat()),
        At::Host(directory) => [directory, b"/".as_slice(), path].concat(),
    };
    let (mut path, mut links_left, mut was_on_device) = (path.to_vec(), LINKS_MAX, false);
    if let (At::Host(_), Some(inside)) = (&at, below(device::prefix(), &path)) {
        path = [b"/", inside].concat();
        at = At::Device(None);
    }
    loop {
        match at {
            At::Host(directory) => match walk_host(directory, path, last_link, links_left) {
                OnHost::To(_) if !was_on_device => return Place::Host,
                OnHost::To(path) => return CString::new(path).map_or(Place::Host, Place::HostAt),
                // The kernel counts its links itself.
                OnHost::Endless(_) if !was_on_device => return Place::Host,
                OnHost::Endless(failure) => return Place::Refused(failure),
                OnHost::Below { rest, left } => {
                    (path, links_left, at) = (rest, left, At::Device(None));
                    written = [device::prefix(), b"/", &path].concat();
                }
            },
            At::Device(from) => {
                was_on_device = true;
                let Some(device) = device::device() else { return Place::Refused(device::no_device()) };
                let directory = from.as_ref().map(|from| from.open.file.clone());
                let path_there =
                    DevicePath { device, directory, path, links_left, from, written: std::mem::take(&mut written) };
                match settle(path_there, last_link) {
                    Settled::To(place) => return Place::Device(place),
                    Settled::Out { path: outside, left } => {
                        (path, links_left, at) = (outside, left, At::Host(Vec::new()));
                    }
                }
            }
        }
    }
}

enum Settled {
    To(DevicePath),
    Out { path: Vec<u8>, left: u32 },
}

/// Follows a path on the device. What is found is a name in a directory, so that the call itself has nothing left to
/// follow. A path that cannot be followed stays as it is: the call finds out why, in its turn.
fn settle(path: DevicePath, last_link: LastLink) -> Settled {
    let walked = path.device.run(|fs| match paths::walk(fs, path.start(), &path.path, last_link)? {
        Walked::To(place) => {
            let held = if place.directory == InodeNumber::ROOT { None } else { Some(fs.open(place.directory)?) };
            Ok((Walked::To(place), held))
        }
        out => Ok((out, None)),
    });
    match walked {
        Err(_) => Settled::To(path),
        Ok((Walked::Out { path, links_left }, _)) => Settled::Out { path, left: links_left },
        Ok((Walked::To(place), directory)) => {
            let here = match place.name.as_slice() {
                // A second slash says that there is one behind the prefix.
                b"/" => path.path[..path.path.len().min(2)].to_vec(),
                name if place.ends_in_slash => [name, b"/"].concat(),
                name => name.to_vec(),
            };
            Settled::To(DevicePath { directory, path: here, from: None, ..path })
        }
    }
}

/// Where a path on the host leads.
enum OnHost {
    /// To this absolute path, which the kernel takes as it is, or fails with.
    To(Vec<u8>),
    /// Below the prefix: the rest of the path from there, and the links that are left.
    Below { rest: Vec<u8>, left: u32 },
    /// Through too many links.
    Endless(Failure),
}

/// Follows a path from a directory of the host, given by its real path.
fn walk_host(mut at: Vec<u8>, mut path: Vec<u8>, last_link: LastLink, mut left: u32) -> OnHost {
    if path.first() == Some(&b'/') {
        at.clear();
    }
    loop {
        let (name, rest) = first_name(&path);
        let whole = [&at, b"/".as_slice(), name].concat();
        let to_kernel = || OnHost::To([&whole, rest].concat());
        match name {
            b"" => return to_kernel(),
            b"." | b".." if is_last(rest) && last_link == LastLink::Name => return to_kernel(),
            b"." | b".." => {
                if name == b".." {
                    at.truncate(at.iter().rposition(|byte| *byte == b'/').unwrap_or(0));
                }
                if is_last(rest) {
                    return OnHost::To([&at, b"/".as_slice()].concat());
                }
                path = rest.to_vec();
                continue;
            }
            _ if whole == device::prefix() => {
                return OnHost::Below { rest: [b"/", rest].concat(), left };
            }
            _ => {}
        }
        match host::kind_of(&whole) {
            Some(libc::S_IFLNK) if paths::follows(rest, last_link) && !whole.starts_with(b"/proc/") => {
                left = match paths::count_link(left) {
                    Ok(left) => left,
                    Err(failure) => return OnHost::Endless(failure),
                };
                let Some(target) = host::target_of(&whole) else { return to_kernel() };
                if target.first() == Some(&b'/') {
                    at.clear();
                }
                path = [&target, rest].concat();
            }
            Some(libc::S_IFDIR) if !is_last(rest) => (at, path) = (whole, rest.to_vec()),
            // The directories above the prefix need not exist.
            None if !is_last(rest) && below(&whole, device::prefix()).is_some() => (at, path) = (whole, rest.to_vec()),
            _ => return to_kernel(),
        }
    }
}

/// Removes `.`, `..` and `//` as text.
fn normalized(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.iter().flat_map(|name| [b"/".as_slice(), name].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_dot_components_are_removed_from_a_path() {
        for (path, expected) in
            [("/a/b", "/a/b"), ("//a//b/", "/a/b"), ("/a/./b/../c", "/a/c"), ("/../..", ""), ("/a/b/../../..", "")]
        {
            assert_eq!(normalized(path.as_bytes()), expected.as_bytes(), "{path}");
        }
    }

    #[test]
    fn a_path_component_is_found_only_as_a_whole_name() {
        for path in ["x", "/x", "x/", "/a/x", "a//x/b", "../x"] {
            assert!(has_name(path.as_bytes(), b"x"), "{path}");
        }
        for path in ["", "/", "xx", "/xx", "a/xy", "a/.x", "yx/a"] {
            assert!(!has_name(path.as_bytes(), b"x"), "{path}");
        }
    }
}
