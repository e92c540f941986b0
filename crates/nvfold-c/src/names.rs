//! Names: everything that is asked of a path, from wherever it begins.
#![forbid(unsafe_code)]

use crate::causality;
use crate::device::Device;
use crate::failure::{Failure, Outcome};
use crate::files::new_inode;
use crate::paths::{self, LastLink, Place, Start};
use crate::shared;
use nvfold::{Attr, CloneOptions, File, FileKind, FileSystem, InodeNumber, LimitedTree, Limits, NewInode};
use nvfold::{RenameMode, SetAttr};
use std::ffi::c_uint;
use std::sync::Arc;

/// Permission bits of symbolic links, as Linux has them.
const LINK_MODE: u32 = 0o777;

/// A path on a device.
#[derive(Clone, Copy)]
pub struct Name<'n> {
    pub device: &'n Arc<Device>,
    pub start: Start<'n>,
    pub path: &'n [u8],
}

/// A place that something new is to have.
fn check_is_free(place: &Place) -> Outcome<()> {
    match place.attr {
        Some(_) => Err(Failure::new(libc::EEXIST, "it exists")),
        None => place.check_name(),
    }
}

/// The same, for what is no directory.
fn check_takes_a_file(place: &Place) -> Outcome<()> {
    check_is_free(place)?;
    if place.ends_in_slash {
        return Err(Failure::new(libc::ENOENT, "it ends in / and is no directory"));
    }
    Ok(())
}

/// Whether a directory is another one, or above it.
fn holds(fs: &FileSystem, above: InodeNumber, mut directory: InodeNumber) -> bool {
    // No path has more names; damaged ones may lead in a circle.
    for _ in 0..libc::PATH_MAX {
        if directory == above || directory == InodeNumber::ROOT {
            break;
        }
        match fs.parent(directory) {
            Ok(parent) => directory = parent,
            Err(_) => return false,
        }
    }
    directory == above
}

/// Returns what the flags of renameat2 ask for; a whiteout gets this user and group. EINVAL.
fn rename_mode(flags: c_uint, (uid, gid): (u32, u32)) -> Outcome<RenameMode> {
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ if flags & !libc::RENAME_NOREPLACE == libc::RENAME_WHITEOUT => {
            Ok(RenameMode::Whiteout { uid, gid, replaces: flags & libc::RENAME_NOREPLACE == 0 })
        }
        _ => Err(Failure::invalid(format!("there is no rename with flags {flags:#x}"))),
    }
}

/// Refuses flags of renameat2 that Linux refuses. EINVAL.
pub fn check_rename_flags(flags: c_uint) -> Outcome<()> {
    rename_mode(flags, (0, 0)).map(drop)
}

/// Refuses what a rename cannot do by the look of its two places, in Linux's order.
fn check_rename(from: &Place, to: &Place, mode: RenameMode) -> Outcome<()> {
    if !from.has_own_name() {
        return Err(Failure::new(libc::EBUSY, "neither the root nor . nor .. can be renamed"));
    }
    if !to.has_own_name() {
        let errno = if mode.refuses_target() { libc::EEXIST } else { libc::EBUSY };
        return Err(Failure::new(errno, "the new name is the root, . or .."));
    }
    let what = from.named()?;
    to.check_name()?;
    match mode {
        mode if mode.refuses_target() => check_is_free(to)?,
        RenameMode::Exchange => drop(to.existing()?),
        _ => {}
    }
    let has_slash = from.ends_in_slash || (to.ends_in_slash && mode != RenameMode::Exchange);
    if has_slash && what.kind != FileKind::Directory {
        return Err(Failure::new(libc::ENOTDIR, "a path ends in / and the old one leads to no directory"));
    }
    Ok(())
}

impl<'n> Name<'n> {
    /// Returns a path from the root of a device.
    pub fn of_root(device: &'n Arc<Device>, path: &'n [u8]) -> Name<'n> {
        Name { device, start: InodeNumber::ROOT.into(), path }
    }

    /// Does something with the place that the path leads to.
    pub fn on_place<T>(
        &self,
        last_link: LastLink,
        operation: impl FnOnce(&FileSystem, Place) -> Outcome<T>,
    ) -> Outcome<T> {
        let found = self.device.run(|fs| operation(fs, paths::locate(fs, self.start, self.path, last_link)?));
        found.map_err(|failure| failure.at(self.path))
    }

    /// Does something with what is there. ENOENT.
    pub fn on<T>(&self, last_link: LastLink, operation: impl FnOnce(&FileSystem, &Attr) -> Outcome<T>) -> Outcome<T> {
        self.on_place(last_link, |fs, place| operation(fs, &place.existing()?))
    }

    /// What is known of it.
    pub fn attr(&self, last_link: LastLink) -> Outcome<Attr> {
        self.on(last_link, |fs, attr| match shared::write_back(self.device, attr.ino) {
            Ok(false) => Ok(*attr),
            // Stores to its shared mappings may have changed it just now.
            _ => Ok(fs.getattr(attr.ino)?),
        })
    }

    /// Changes attributes.
    pub fn change(&self, last_link: LastLink, change: &SetAttr) -> Outcome<()> {
        self.on(last_link, |fs, attr| {
            // A later write back would change the times again.
            let _ = shared::write_back(self.device, attr.ino);
            shared::change(self.device, attr.ino, || Ok((fs.setattr(attr.ino, change).map(drop)?, 0..0)))
        })
    }

    /// Returns the directory, held. ENOTDIR.
    pub fn directory(&self) -> Outcome<File> {
        self.on(LastLink::Follow, |fs, attr| match attr.kind {
            FileKind::Directory => Ok(fs.open(attr.ino)?),
            _ => Err(Failure::new(libc::ENOTDIR, "it is no directory")),
        })
    }

    pub fn mkdir(&self, mode: u32) -> Outcome<()> {
        self.on_place(LastLink::Name, |fs, place| {
            check_is_free(&place)?;
            let new = new_inode(self.device, FileKind::Directory, mode);
            Ok(fs.mkdir(place.directory, &place.name, &new).map(drop)?)
        })
    }

    /// Makes a file, a pipe, a socket or a device node. EEXIST.
    pub fn mknod(&self, kind: FileKind, mode: u32, rdev: u32) -> Outcome<()> {
        self.on_place(LastLink::Name, |fs, place| {
            check_takes_a_file(&place)?;
            let new = NewInode { rdev, ..new_inode(self.device, kind, mode) };
            Ok(fs.create(place.directory, &place.name, &new).map(drop)?)
        })
    }

    /// Clones the directory with all that is below it.
    pub fn clone_tree(&self, new: &Name<'_>) -> Outcome<()> {
        let source = self.on(LastLink::Follow, |_, attr| Ok(attr.ino))?;
        // What was stored to shared mappings before belongs to the copy.
        shared::write_back_all()?;
        new.on_place(LastLink::Name, |fs, place| {
            check_is_free(&place)?;
            Ok(fs.clone_tree(source, place.directory, &place.name, &CloneOptions::default()).map(drop)?)
        })
    }

    /// Sets the limits of the tree below a directory. For each, 0 is no limit.
    pub fn set_limits(&self, bytes: u64, inodes: u64, expires_ns: i64) -> Outcome<()> {
        if expires_ns < 0 {
            return Err(Failure::invalid("a tree cannot have expired before 1970"));
        }
        // What was stored to shared mappings before is counted.
        shared::write_back_all()?;
        let some = |limit: u64| (limit != 0).then_some(limit);
        let expires = (expires_ns != 0).then_some(expires_ns);
        let limits = Limits { logical_bytes: some(bytes), inodes: some(inodes), expires };
        self.on(LastLink::Follow, |fs, attr| Ok(fs.change_limits(attr.ino, |of_tree| *of_tree = limits)?))
    }

    /// Returns the limited tree that this is charged to.
    pub fn limited_tree(&self) -> Outcome<Option<LimitedTree>> {
        self.on(LastLink::Follow, |fs, attr| Ok(fs.limited_tree(attr.ino)?))
    }

    pub fn rmdir(&self) -> Outcome<()> {
        self.on_place(LastLink::Name, |fs, place| match place.name.as_slice() {
            b"/" => Err(Failure::new(libc::EBUSY, "it is the root of the device")),
            name => Ok(fs.rmdir(place.directory, name)?),
        })
    }

    pub fn unlink(&self) -> Outcome<()> {
        self.on_place(LastLink::Name, |fs, place| {
            if !place.has_own_name() || place.named()?.kind == FileKind::Directory {
                return Err(Failure::new(libc::EISDIR, "it is a directory; use nvfold_rmdir"));
            }
            place.existing()?;
            Ok(fs.unlink(place.directory, &place.name)?)
        })?;
        causality::name_removed();
        Ok(())
    }

    /// Gives what is here another name.
    pub fn link(&self, last_link: LastLink, new: &Name<'_>) -> Outcome<()> {
        new.link_to(self.attr(last_link)?.ino)
    }

    /// Makes this a name of an inode.
    pub fn link_to(&self, ino: InodeNumber) -> Outcome<()> {
        self.on_place(LastLink::Name, |fs, place| {
            check_takes_a_file(&place)?;
            Ok(fs.link(ino, place.directory, &place.name).map(drop)?)
        })
    }

    /// Makes a symbolic link here.
    pub fn symlink(&self, target: &[u8]) -> Outcome<()> {
        self.on_place(LastLink::Name, |fs, place| {
            check_takes_a_file(&place)?;
            // No umask applies to links, and nobody looks at their bits.
            let new = NewInode { mode: LINK_MODE, ..new_inode(self.device, FileKind::Symlink, 0) };
            Ok(fs.symlink(place.directory, &place.name, target, &new).map(drop)?)
        })
    }

    /// Returns the target of a symbolic link. EINVAL.
    pub fn readlink(&self) -> Outcome<Vec<u8>> {
        self.on(LastLink::Keep, |fs, attr| Ok(fs.readlink(attr.ino)?))
    }

    /// Renames, with the flags of renameat2.
    pub fn rename(&self, new: &Name<'_>, flags: c_uint) -> Outcome<()> {
        let mode = rename_mode(flags, (self.device.uid, self.device.gid))?;
        let place = |name: &Name<'_>| name.on_place(LastLink::Name, |_, place| Ok(place));
        let (from, to) = (place(self)?, place(new)?);
        check_rename(&from, &to, mode).map_err(|failure| failure.at(self.path))?;
        let renamed = self.device.run(|fs| match fs.rename(from.directory, &from.name, to.directory, &to.name, mode) {
            Err(error)
                if error.errno() == libc::EISDIR && to.attr.is_some_and(|to| holds(fs, to.ino, from.directory)) =>
            {
                Err(Failure::new(libc::ENOTEMPTY, "the new name is a directory above the old one"))
            }
            renamed => Ok(renamed?),
        });
        renamed.map_err(|failure| failure.at(self.path))?;
        causality::name_removed();
        Ok(())
    }
}
