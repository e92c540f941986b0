//! From a path to a name in a directory, and to the inode behind it.
//!
//! Paths are relative to the root of the device, with or without a `/` in front, or to an open directory. Symbolic links are
//! followed on the way, 40 at most (ELOOP); whether the last one is, the call says. A `/` at the end means that the path
//! must lead to a directory. Permissions are not looked at: the program has the whole device.
#![forbid(unsafe_code)]

use crate::failure::{Failure, Outcome};
use nvfold::{Attr, FileKind, FileSystem, InodeNumber};
use std::collections::VecDeque;

const LINKS_MAX: u32 = 40;

/// Where a path begins.
#[derive(Clone, Copy, Debug)]
pub struct Start<'p> {
    /// The directory that a relative path is relative to.
    pub directory: InodeNumber,
    /// Where the program believes the root of the device to be: what the absolute target of a symbolic link begins with
    /// when it leads to this device. Empty: every absolute target does.
    pub prefix: &'p [u8],
}

impl From<InodeNumber> for Start<'_> {
    fn from(directory: InodeNumber) -> Self {
        Start { directory, prefix: b"" }
    }
}

/// What of an absolute path is below a prefix; `None`: it is elsewhere.
pub fn below<'p>(prefix: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    path.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Whether a link at the end of a path is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    Follow,
    Keep,
}

/// Where a path leads: a name in a directory, and what it names now.
#[derive(Debug)]
pub struct Place {
    pub directory: InodeNumber,
    /// `.` when the path is `/`, or ends so.
    pub name: Vec<u8>,
    /// What the name leads to; `None`: nothing has it yet.
    pub attr: Option<Attr>,
    /// The path ends in `/`.
    pub must_be_directory: bool,
}

impl Place {
    /// Whether the name is one that a directory can have an entry of.
    pub fn has_own_name(&self) -> bool {
        self.name != b"." && self.name != b".."
    }

    /// What is there. ENOENT.
    pub fn existing(&self) -> Outcome<Attr> {
        self.attr.ok_or_else(|| Failure::new(libc::ENOENT, "no such file or directory"))
    }
}

/// Finds a place, whether something is there or not; the directories on the way must be. ENOENT, ENOTDIR, ELOOP,
/// ENAMETOOLONG; EXDEV when a link leads out of the prefix.
pub fn locate<'p>(fs: &FileSystem, start: impl Into<Start<'p>>, path: &[u8], last_link: LastLink) -> Outcome<Place> {
    let Start { directory: start, prefix } = start.into();
    if path.is_empty() {
        return Err(Failure::new(libc::ENOENT, "the path is empty"));
    }
    let mut links_left = LINKS_MAX;
    let mut at = if path[0] == b'/' { InodeNumber::ROOT } else { start };
    let mut must_be_directory = path.ends_with(b"/");
    let names = |path: &[u8]| -> Vec<Vec<u8>> {
        path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
    };
    let mut pending: VecDeque<Vec<u8>> = names(path).into();
    loop {
        // A path of nothing but slashes leads to the directory itself.
        let name = pending.pop_front().unwrap_or_else(|| b".".to_vec());
        let is_last = pending.is_empty();
        let attr = match fs.lookup(at, &name) {
            Ok(attr) => attr,
            Err(error) if is_last && error.errno() == libc::ENOENT => {
                return Ok(Place { directory: at, name, attr: None, must_be_directory });
            }
            Err(error) => return Err(error.into()),
        };
        let follows = !is_last || last_link == LastLink::Follow || must_be_directory;
        if attr.kind == FileKind::Symlink && follows {
            links_left = links_left
                .checked_sub(1)
                .ok_or_else(|| Failure::new(libc::ELOOP, format!("more than {LINKS_MAX} symbolic links on the way")))?;
            let target = fs.readlink(attr.ino)?;
            let mut rest = target.as_slice();
            if target.first() == Some(&b'/') {
                rest = below(prefix, &target).ok_or_else(|| error_for_foreign_link(&target))?;
                at = InodeNumber::ROOT;
            }
            must_be_directory |= is_last && target.ends_with(b"/");
            for name in names(rest).into_iter().rev() {
                pending.push_front(name);
            }
        } else if is_last {
            if must_be_directory && attr.kind != FileKind::Directory {
                return Err(Failure::new(libc::ENOTDIR, "it ends in / and is no directory"));
            }
            return Ok(Place { directory: at, name, attr: Some(attr), must_be_directory });
        } else if attr.kind != FileKind::Directory {
            return Err(Failure::new(libc::ENOTDIR, format!("{} is no directory", String::from_utf8_lossy(&name))));
        } else {
            at = attr.ino;
        }
    }
}

fn error_for_foreign_link(target: &[u8]) -> Failure {
    let why = format!("a symbolic link leads to {}, which is not on the device", String::from_utf8_lossy(target));
    Failure::new(libc::EXDEV, why)
}

/// Finds what is there. ENOENT and the errors of `locate`.
pub fn resolve<'p>(fs: &FileSystem, start: impl Into<Start<'p>>, path: &[u8], last_link: LastLink) -> Outcome<Attr> {
    locate(fs, start, path, last_link)?.existing()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold::{MkfsOptions, MountOptions, NewInode};
    use pmem::{DeviceSpec, OpenOptions, Region};

    const ROOT: InodeNumber = InodeNumber::ROOT;

    /// /d/f, /to-d -> d, /to-f -> /d/f, /away -> d/none, /slash -> d/f/, /a <-> /b, /chain0 -> ... -> /chain40 -> d.
    fn tree() -> FileSystem {
        let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
        let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
        let directory = fs.mkdir(ROOT, b"d", &new).unwrap().ino;
        fs.create(directory, b"f", &new).unwrap();
        let link = |name: &str, target: &str| fs.symlink(ROOT, name.as_bytes(), target.as_bytes(), &new).unwrap();
        for (name, target) in
            [("to-d", "d"), ("to-f", "/d/f"), ("away", "d/none"), ("slash", "d/f/"), ("a", "b"), ("b", "a")]
        {
            link(name, target);
        }
        for n in 0..40 {
            link(&format!("chain{n}"), &format!("chain{}", n + 1));
        }
        link("chain40", "d");
        fs
    }

    fn found(fs: &FileSystem, path: &str, last_link: LastLink) -> Result<(String, Option<FileKind>), i32> {
        let place = locate(fs, ROOT, path.as_bytes(), last_link).map_err(|failure| failure.errno)?;
        Ok((String::from_utf8(place.name).unwrap(), place.attr.map(|attr| attr.kind)))
    }

    #[test]
    fn paths_lead_where_posix_says() {
        use FileKind::{Directory, Regular, Symlink};
        let fs = tree();
        let follow = |path: &str| found(&fs, path, LastLink::Follow);
        let keep = |path: &str| found(&fs, path, LastLink::Keep);
        let name = |name: &str, kind| Ok((name.to_owned(), kind));
        assert_eq!(follow("/"), name(".", Some(Directory)));
        assert_eq!(follow("//d//"), name("d", Some(Directory)));
        assert_eq!(follow("d/./../d/f"), name("f", Some(Regular)));
        assert_eq!(follow("../../d"), name("d", Some(Directory)), "the root is its own parent");
        assert_eq!(follow("to-d/f"), name("f", Some(Regular)));
        assert_eq!(follow("to-f"), name("f", Some(Regular)));
        assert_eq!(keep("to-f"), name("to-f", Some(Symlink)));
        assert_eq!(keep("to-d/"), name("d", Some(Directory)), "a slash follows");
        assert_eq!(follow("away"), name("none", None), "where a new file would come to be");
        assert_eq!(follow("d/new"), name("new", None));
        for (path, errno) in [
            ("", libc::ENOENT),
            ("none/f", libc::ENOENT),
            ("away/f", libc::ENOENT),
            ("d/f/", libc::ENOTDIR),
            ("d/f/.", libc::ENOTDIR),
            ("d/f/x", libc::ENOTDIR),
            ("slash", libc::ENOTDIR),
            ("a", libc::ELOOP),
            ("a/x", libc::ELOOP),
            ("chain0", libc::ELOOP),
        ] {
            assert_eq!(follow(path), Err(errno), "{path}");
        }
        assert_eq!(follow("chain1"), name("d", Some(Directory)), "40 links");
        assert_eq!(follow(&"x".repeat(256)), Err(libc::ENAMETOOLONG));
        let below = |prefix: &str| {
            let start = Start { directory: ROOT, prefix: prefix.as_bytes() };
            locate(&fs, start, b"to-f", LastLink::Follow).map(|place| place.name).map_err(|failure| failure.errno)
        };
        assert_eq!(below("/d"), Ok(b"f".to_vec()), "/d/f is /f of a device that is seen at /d");
        assert_eq!(below("/dd"), Err(libc::EXDEV));
    }
}
