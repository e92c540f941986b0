//! From a path to a name in a directory, and to its inode: the walk that every call makes.
//!
//! Paths are relative to the root of the device, with or without a `/` in front, or to an open directory. They are
//! followed name by name, as path_resolution(7) says: `..` after a link to a directory is the parent of the link's
//! target. Symbolic links are followed on the way, 40 at most (ELOOP); whether the last one is, the call says.
//! Permissions are not looked at: the program has the whole device.
//!
//! Where the program sees the device below a prefix, a path may lead out of it, by `..` from the root or by a link to an
//! absolute path. Then the walk ends with the rest of the path, as one of the host.
//!
//! | what ends the path | Follow | Keep | Name |
//! |---|---|---|---|
//! | a link | what it leads to | the link | the link |
//! | a link and `/` | what it leads to | what it leads to | the link |
//! | `..` | the parent | the parent | the name `..` |
#![forbid(unsafe_code)]

use crate::failure::{Failure, Outcome};
use nvfold::{Attr, FileKind, FileSystem, InodeNumber};
use std::borrow::Cow;

/// Links that one path may lead through.
pub const LINKS_MAX: u32 = 40;
/// Bytes of the longest name.
pub const NAME_BYTES_MAX: usize = 255;

/// Where a path begins.
#[derive(Clone, Copy, Debug)]
pub struct Start<'p> {
    /// The directory that a relative path is relative to.
    pub directory: InodeNumber,
    /// Where the program believes the root of the device to be. Empty: the device is all there is, so its root is its
    /// own parent, and absolute targets of links begin there.
    pub prefix: &'p [u8],
    /// Links that the path may still lead through.
    pub links_left: u32,
}

impl From<InodeNumber> for Start<'_> {
    fn from(directory: InodeNumber) -> Self {
        Start { directory, prefix: b"", links_left: LINKS_MAX }
    }
}

/// What of an absolute path is below a prefix; `None`: it is elsewhere.
pub fn below<'p>(prefix: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    path.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest[0] == b'/')
}

/// What happens to a link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastLink {
    Follow,
    /// The link itself is meant, unless a `/` behind it says that it must lead to a directory.
    Keep,
    /// The name itself is meant, whatever is behind it: by calls that make, move and remove names.
    Name,
}

/// Where a path leads: a name in a directory, and what it names now.
#[derive(Debug)]
pub struct Place {
    pub directory: InodeNumber,
    /// `/` for a path of nothing but slashes.
    pub name: Vec<u8>,
    /// What the name leads to; `None`: nothing has it yet.
    pub attr: Option<Attr>,
    /// The path ends in `/`.
    pub ends_in_slash: bool,
}

impl Place {
    /// Whether the name is one that a directory can have an entry of.
    pub fn has_own_name(&self) -> bool {
        !matches!(self.name.as_slice(), b"." | b".." | b"/")
    }

    /// What has the name. ENOENT, ENAMETOOLONG.
    pub fn named(&self) -> Outcome<Attr> {
        self.check_name()?;
        self.attr.ok_or_else(|| Failure::new(libc::ENOENT, "no such file or directory"))
    }

    /// ENAMETOOLONG for a name that no directory can have.
    pub fn check_name(&self) -> Outcome<()> {
        match self.name.len() > NAME_BYTES_MAX {
            true => Err(Failure::new(libc::ENAMETOOLONG, format!("the name is longer than {NAME_BYTES_MAX} bytes"))),
            false => Ok(()),
        }
    }

    /// The same; a path that ends in `/` must lead to a directory (ENOTDIR).
    pub fn existing(&self) -> Outcome<Attr> {
        let attr = self.named()?;
        if self.ends_in_slash && attr.kind != FileKind::Directory {
            return Err(Failure::new(libc::ENOTDIR, "it ends in / and is no directory"));
        }
        Ok(attr)
    }
}

/// The end of a walk.
#[derive(Debug)]
pub enum Walked {
    To(Place),
    /// Out of the prefix, to this absolute path, which may lead through so many links.
    Out {
        path: Vec<u8>,
        links_left: u32,
    },
}

/// Splits a path behind its first name; slashes in front are dropped. The rest is empty or begins with `/`.
pub fn first_name(path: &[u8]) -> (&[u8], &[u8]) {
    let begin = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    let path = &path[begin..];
    path.split_at(path.iter().position(|byte| *byte == b'/').unwrap_or(path.len()))
}

/// Whether a name is the last one of a path, of which `rest` follows it.
pub fn is_last(rest: &[u8]) -> bool {
    rest.iter().all(|byte| *byte == b'/')
}

/// Whether a link is followed that has `rest` of the path behind it.
pub fn follows(rest: &[u8], last_link: LastLink) -> bool {
    match last_link {
        _ if !is_last(rest) => true,
        LastLink::Follow => true,
        LastLink::Keep => !rest.is_empty(),
        LastLink::Name => false,
    }
}

/// Counts a link that is followed. ELOOP.
pub fn count_link(links_left: u32) -> Outcome<u32> {
    let why = || Failure::new(libc::ELOOP, format!("more than {LINKS_MAX} symbolic links on the way"));
    links_left.checked_sub(1).ok_or_else(why)
}

/// The directory that holds the prefix, as text.
fn parent_of(prefix: &[u8]) -> &[u8] {
    match prefix.iter().rposition(|byte| *byte == b'/') {
        None | Some(0) => b"/",
        Some(at) => &prefix[..at],
    }
}

/// Follows a path to its place, whether something is there or not; the directories on the way must be. ENOENT, ENOTDIR,
/// ELOOP, ENAMETOOLONG.
pub fn walk<'p>(fs: &FileSystem, start: impl Into<Start<'p>>, path: &[u8], last_link: LastLink) -> Outcome<Walked> {
    let Start { directory: start, prefix, mut links_left } = start.into();
    if path.is_empty() {
        return Err(Failure::new(libc::ENOENT, "the path is empty"));
    }
    if path.len() >= libc::PATH_MAX as usize {
        return Err(Failure::new(libc::ENAMETOOLONG, "the path is longer than PATH_MAX"));
    }
    let mut at = if path[0] == b'/' { InodeNumber::ROOT } else { start };
    let mut pending = Cow::Borrowed(path);
    loop {
        let (name, rest) = first_name(&pending);
        let is_last = is_last(rest);
        if name.is_empty() {
            let attr = Some(fs.getattr(at)?);
            return Ok(Walked::To(Place { directory: at, name: b"/".to_vec(), attr, ends_in_slash: true }));
        }
        let is_parent = name == b"..";
        if is_parent && at == InodeNumber::ROOT && !prefix.is_empty() && !(is_last && last_link == LastLink::Name) {
            return Ok(Walked::Out { path: [parent_of(prefix), rest].concat(), links_left });
        }
        if matches!(name, b"." | b"..") && fs.getattr(at)?.kind != FileKind::Directory {
            return Err(Failure::new(libc::ENOTDIR, "the path starts from what is no directory"));
        }
        let place = |attr| Place { directory: at, name: name.to_vec(), attr, ends_in_slash: !rest.is_empty() };
        let attr = match fs.lookup(at, name) {
            Ok(attr) => attr,
            // What is no directory has no names, also when it was removed.
            Err(_) if fs.getattr(at).is_ok_and(|attr| attr.kind != FileKind::Directory) => {
                return Err(Failure::new(libc::ENOTDIR, "the path starts from what is no directory"));
            }
            // A name that is too long is refused when the other path of a call has been followed.
            Err(error) if is_last && matches!(error.errno(), libc::ENOENT | libc::ENAMETOOLONG) => {
                return Ok(Walked::To(place(None)));
            }
            Err(error) => return Err(error.into()),
        };
        if attr.kind == FileKind::Symlink && follows(rest, last_link) {
            links_left = count_link(links_left)?;
            let target = fs.readlink(attr.ino)?;
            let mut onwards = target.as_slice();
            if target.first() == Some(&b'/') {
                match below(prefix, &target) {
                    // The prefix itself is a `/` of the device.
                    Some(inside) => onwards = if inside.is_empty() { b"/" } else { inside },
                    None => return Ok(Walked::Out { path: [&target, rest].concat(), links_left }),
                }
                at = InodeNumber::ROOT;
            }
            pending = Cow::Owned([onwards, rest].concat());
        } else if is_last {
            return Ok(Walked::To(place(Some(attr))));
        } else if attr.kind != FileKind::Directory {
            return Err(Failure::new(libc::ENOTDIR, format!("{} is no directory", String::from_utf8_lossy(name))));
        } else {
            at = attr.ino;
            let behind = pending.len() - rest.len();
            match &mut pending {
                Cow::Borrowed(path) => *path = &path[behind..],
                Cow::Owned(path) => drop(path.drain(..behind)),
            }
        }
    }
}

/// Follows a path that must not lead out of the prefix: EXDEV, and the errors of `walk`.
pub fn locate<'p>(fs: &FileSystem, start: impl Into<Start<'p>>, path: &[u8], last_link: LastLink) -> Outcome<Place> {
    match walk(fs, start, path, last_link)? {
        Walked::To(place) => Ok(place),
        Walked::Out { path, .. } => {
            let why = format!("it leads to {}, which is not on the device", String::from_utf8_lossy(&path));
            Err(Failure::new(libc::EXDEV, why))
        }
    }
}

/// Finds what is there. ENOENT and the errors of `locate`.
pub fn resolve<'p>(fs: &FileSystem, start: impl Into<Start<'p>>, path: &[u8], last_link: LastLink) -> Outcome<Attr> {
    locate(fs, start, path, last_link)?.existing()
}

/// Returns the path of a directory from the root, `/a/b`; empty for the root itself. `known` is where it was once, and
/// spares reading the directories above if it is there still. ENOENT for a directory that was removed.
pub fn path_of(fs: &FileSystem, directory: InodeNumber, known: &[u8]) -> Outcome<Vec<u8>> {
    if leads_straight_to(fs, directory, known) {
        return Ok(known.to_vec());
    }
    let (mut at, mut path) = (directory, Vec::new());
    let removed = || Failure::new(libc::ENOENT, "the directory was removed");
    while at != InodeNumber::ROOT {
        if fs.getattr(at)?.nlink == 0 {
            return Err(removed());
        }
        let parent = fs.parent(at)?;
        let mut name = None;
        fs.readdir(parent, 0, &mut |entry| {
            if entry.ino == at {
                name = Some(entry.name);
            }
            name.is_none()
        })?;
        path.splice(0..0, [b"/".as_slice(), &name.ok_or_else(removed)?].concat());
        if path.len() >= libc::PATH_MAX as usize {
            return Err(Failure::new(libc::ENAMETOOLONG, "the path is longer than PATH_MAX"));
        }
        at = parent;
    }
    Ok(path)
}

/// Whether a path leads to a directory by its real names: neither through a link nor by `.` or `..`.
fn leads_straight_to(fs: &FileSystem, directory: InodeNumber, path: &[u8]) -> bool {
    let (mut at, mut rest) = (InodeNumber::ROOT, path);
    while !rest.is_empty() {
        let (name, behind) = first_name(rest);
        match fs.lookup(at, name) {
            Ok(attr) if attr.kind == FileKind::Directory && !matches!(name, b"" | b"." | b"..") => at = attr.ino,
            _ => return false,
        }
        rest = behind;
    }
    at == directory
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold::{MkfsOptions, MountOptions, NewInode};
    use pmem::{DeviceSpec, OpenOptions, Region};

    const ROOT: InodeNumber = InodeNumber::ROOT;

    /// /d/f, /d/deep, /to-d -> d, /to-deep -> d/deep, /to-f -> /d/f, /away -> d/none, /slash -> d/f/, /a <-> /b,
    /// /chain0 -> ... -> /chain40 -> d.
    fn tree() -> FileSystem {
        let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
        let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
        let directory = fs.mkdir(ROOT, b"d", &new).unwrap().ino;
        fs.create(directory, b"f", &new).unwrap();
        fs.mkdir(directory, b"deep", &new).unwrap();
        let link = |name: &str, target: &str| fs.symlink(ROOT, name.as_bytes(), target.as_bytes(), &new).unwrap();
        for (name, target) in [
            ("to-d", "d"),
            ("to-deep", "d/deep"),
            ("to-f", "/d/f"),
            ("away", "d/none"),
            ("slash", "d/f/"),
            ("a", "b"),
            ("b", "a"),
        ] {
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
        if place.attr.is_some() && last_link != LastLink::Name {
            place.existing().map_err(|failure| failure.errno)?;
        }
        Ok((String::from_utf8(place.name).unwrap(), place.attr.map(|attr| attr.kind)))
    }

    #[test]
    fn paths_are_resolved_as_posix_requires() {
        use FileKind::{Directory, Regular, Symlink};
        let fs = tree();
        let follow = |path: &str| found(&fs, path, LastLink::Follow);
        let keep = |path: &str| found(&fs, path, LastLink::Keep);
        let name = |name: &str, kind| Ok((name.to_owned(), kind));
        assert_eq!(follow("/"), name("/", Some(Directory)));
        assert_eq!(follow("//d//"), name("d", Some(Directory)));
        assert_eq!(follow("d/./../d/f"), name("f", Some(Regular)));
        assert_eq!(follow("../../d"), name("d", Some(Directory)), "the root is its own parent");
        assert_eq!(follow("to-d/f"), name("f", Some(Regular)));
        assert_eq!(follow("to-f"), name("f", Some(Regular)));
        assert_eq!(keep("to-f"), name("to-f", Some(Symlink)));
        assert_eq!(keep("to-d/"), name("d", Some(Directory)), "a slash follows");
        let named = |path: &str| found(&fs, path, LastLink::Name);
        assert_eq!(named("to-d/"), name("to-d", Some(Symlink)), "the name itself");
        assert_eq!(named("d/.."), name("..", Some(Directory)));
        assert_eq!(follow("to-deep/.."), name("..", Some(Directory)), "the parent of what the link leads to");
        assert_eq!(follow("to-deep/../f"), name("f", Some(Regular)));
        assert_eq!(follow("f"), name("f", None));
        let file = resolve(&fs, ROOT, b"d/f", LastLink::Follow).unwrap().ino;
        for path in [".", "..", "x"] {
            assert_eq!(
                locate(&fs, file, path.as_bytes(), LastLink::Follow).unwrap_err().errno,
                libc::ENOTDIR,
                "{path}"
            );
        }
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
        let long = locate(&fs, ROOT, "x".repeat(256).as_bytes(), LastLink::Follow).unwrap();
        assert_eq!(long.existing().map_err(|failure| failure.errno).err(), Some(libc::ENAMETOOLONG));
        assert_eq!(follow(&format!("{}/f", "x".repeat(256))), Err(libc::ENAMETOOLONG));
        let below = |prefix: &str| {
            let start = Start { prefix: prefix.as_bytes(), ..ROOT.into() };
            locate(&fs, start, b"to-f", LastLink::Follow).map(|place| place.name).map_err(|failure| failure.errno)
        };
        assert_eq!(below("/d"), Ok(b"f".to_vec()), "/d/f is /f of a device that is seen at /d");
        assert_eq!(below("/dd"), Err(libc::EXDEV));
    }

    #[test]
    fn paths_that_lead_out_of_the_prefix_are_recognised() {
        let fs = tree();
        let out = |prefix: &str, path: &str, last_link| {
            let start = Start { prefix: prefix.as_bytes(), ..ROOT.into() };
            match walk(&fs, start, path.as_bytes(), last_link).unwrap() {
                Walked::Out { path, links_left } => Some((String::from_utf8(path).unwrap(), links_left)),
                Walked::To(_) => None,
            }
        };
        let leads = |path: &str, left| Some((path.to_owned(), left));
        assert_eq!(out("/p/nvfold", "..", LastLink::Follow), leads("/p", 40));
        assert_eq!(out("/nvfold", "d/../../x/", LastLink::Keep), leads("//x/", 40));
        assert_eq!(out("/nvfold", "to-d/../..", LastLink::Follow), leads("/", 39));
        assert_eq!(out("/nvfold", "to-f", LastLink::Follow), leads("/d/f", 39));
        assert_eq!(out("/nvfold", "to-f", LastLink::Name), None);
        assert_eq!(out("/nvfold", "d/../..", LastLink::Name), None, "the name .. in the root");
        assert_eq!(out("", "../../x", LastLink::Follow), None, "there is nothing else");
    }

    #[test]
    fn the_path_of_a_directory_follows_renames_and_ends_with_its_removal() {
        let fs = tree();
        let deep = resolve(&fs, ROOT, b"d/deep", LastLink::Follow).unwrap().ino;
        let path = |known: &str| path_of(&fs, deep, known.as_bytes()).map_err(|failure| failure.errno);
        for known in ["/d/deep", "/to-deep", "/d/../d/deep", "/none", ""] {
            assert_eq!(path(known), Ok(b"/d/deep".to_vec()), "{known}");
        }
        assert_eq!(path_of(&fs, ROOT, b"").unwrap(), b"");
        fs.rename(ROOT, b"d", ROOT, b"e", nvfold::RenameMode::Replace).unwrap();
        assert_eq!(path("/d/deep"), Ok(b"/e/deep".to_vec()));
        let _held = fs.open(deep).unwrap();
        fs.rmdir(resolve(&fs, ROOT, b"e", LastLink::Follow).unwrap().ino, b"deep").unwrap();
        assert_eq!(path("/e/deep"), Err(libc::ENOENT));
    }
}
