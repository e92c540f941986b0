//! The table of requests: for each, the call that it becomes and the form of its reply.
//!
//! Only decisions that FUSE itself asks for are made here: how long replies stay valid, and ENOSYS for requests that
//! the kernel need not send again.

use super::listing::SECOND;
use super::names::Wanted;
use super::{Answer, BELIEVE, Front, entry};
use crate::convert;
use crate::counters::Kind;
use nvfold::{DirEntry, FileKind, InodeNumber, SetAttr};
use nvfold_fuse::protocol::{self, StatFsOut, open};
use nvfold_fuse::{Caller, Change, Entry, Errno, Operation, Reply};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

impl Front {
    /// Does an operation and puts its result into `reply`.
    pub(super) fn carry_out_request(
        &self,
        who: &Caller<'_>,
        operation: Operation<'_>,
        reply: &mut Reply<'_>,
    ) -> Answer<()> {
        self.check_place(&operation)?;
        match operation {
            Operation::Forget { ino, times } => self.forget(InodeNumber(ino), times),
            Operation::BatchForget { all } => {
                all.iter().for_each(|one| self.forget(InodeNumber(one.nodeid), one.times))
            }

            Operation::Lookup { parent, name } => reply.entry(&self.look_up(InodeNumber(parent), name)?),
            Operation::MkNod { parent, name, mode, umask, rdev } => {
                let kind = convert::kind_of_mode(mode).ok_or(Errno::EINVAL)?;
                reply.entry(&self.made(who, parent, name, &Wanted { kind, mode, umask, rdev })?);
            }
            Operation::MkDir { parent, name, mode, umask } => {
                reply.entry(&self.made(
                    who,
                    parent,
                    name,
                    &Wanted { kind: FileKind::Directory, mode, umask, rdev: 0 },
                )?);
            }
            Operation::SymLink { parent, name, target } => {
                let parent = InodeNumber(parent);
                reply.entry(&self.tell(parent, &self.make_symlink(who, parent, name, target)?));
            }
            Operation::Link { ino, parent, name } => {
                let _moving = self.before_move(who, || vec![InodeNumber(ino)]);
                let parent = InodeNumber(parent);
                reply.entry(&self.tell(parent, &self.make_link(InodeNumber(ino), parent, name)?));
            }
            Operation::Unlink { parent, name } => {
                let parent = InodeNumber(parent);
                self.removing(parent, name, || self.fs.unlink(parent, name.as_bytes()))?;
            }
            Operation::RmDir { parent, name } => {
                let parent = InodeNumber(parent);
                self.removing(parent, name, || self.fs.rmdir(parent, name.as_bytes()))?;
            }
            Operation::Rename { parent, name, new_parent, new_name, flags } => {
                let names = [(InodeNumber(parent), name), (InodeNumber(new_parent), new_name)];
                let _moving = self.before_move(who, || self.inodes_of(&names));
                self.move_name(who, (InodeNumber(parent), name), (InodeNumber(new_parent), new_name), flags)?;
            }
            Operation::ReadLink { ino } => reply.bytes(&self.fs.readlink(InodeNumber(ino)).map_err(convert::errno)?),

            // With a handle the kernel asks on its own behalf, before it accepts written data into its cache.
            Operation::GetAttr { ino, has_handle } => {
                let ino = InodeNumber(ino);
                if has_handle {
                    self.check_may_write(ino, u64::MAX)?;
                }
                reply.attr(&convert::attr(&self.fs.getattr(ino).map_err(convert::errno)?), BELIEVE);
            }
            Operation::StatX { .. } if !self.tells_birth => return Err(Errno::ENOSYS),
            Operation::StatX { ino } => {
                reply.statx(&convert::statx(&self.fs.getattr(InodeNumber(ino)).map_err(convert::errno)?), BELIEVE);
            }
            Operation::SetAttr { ino, change } => {
                let (ino, change) = (InodeNumber(ino), self.set_attr(&change));
                self.write_back_before(who, ino, &change);
                let changed = self.set_attributes(who, ino, change)?;
                reply.attr(&convert::attr(&changed), BELIEVE);
            }
            Operation::SetXattr { ino, name, value, flags } => {
                self.set_attribute(who, InodeNumber(ino), name.as_bytes(), value, flags)?;
            }
            Operation::GetXattr { ino, name, size } => {
                answer_value(self.attribute(who, InodeNumber(ino), name.as_bytes(), size)?, size, reply)?;
            }
            Operation::ListXattr { ino, size } => {
                answer_value(self.attribute_names(who, InodeNumber(ino))?, size, reply)?;
            }
            Operation::RemoveXattr { ino, name } => self.remove_attribute(InodeNumber(ino), name.as_bytes())?,

            // After ENOSYS the kernel opens files without a request, and keeps their pages. If it must keep no pages
            // it has to ask, because the reply to each open says so; and if there are files that nobody may write.
            Operation::Open { .. } | Operation::Create { .. } if self.no_open => return Err(Errno::ENOSYS),
            Operation::Open { ino, for_writing } => {
                if for_writing {
                    self.check_not_in_snapshot(InodeNumber(ino))?;
                }
                reply.opened(0, self.open_flags());
            }
            Operation::Create { parent, name, mode, umask } => {
                let wanted = Wanted { kind: FileKind::Regular, mode, umask, rdev: 0 };
                reply.created(&self.made(who, parent, name, &wanted)?, 0, self.open_flags());
            }
            Operation::TmpFile { parent, mode, umask } => {
                let made = self.make_nameless(who, InodeNumber(parent), mode, umask)?;
                reply.created(&entry(&made), 0, self.open_flags());
            }
            Operation::Read { ino, offset, size, is_direct } => {
                let ino = InodeNumber(ino);
                if !is_direct {
                    self.pages_come(ino, offset, size as usize);
                }
                self.read_into(ino, offset, size, reply)?;
            }
            Operation::Write { ino, offset, data, is_direct, from_cache, kill_privileges } => {
                let ino = InodeNumber(ino);
                if kill_privileges {
                    self.take_privileges(who, ino)?;
                }
                self.written(who, ino, offset, data, is_direct, from_cache)?;
                reply.written(data.len() as u32);
            }
            Operation::Release => {}
            // After ENOSYS the kernel still writes pages back on close, and sends no more flushes.
            Operation::Flush => return Err(Errno::ENOSYS),
            Operation::FSync | Operation::FSyncDir => self.sync()?,
            Operation::FAllocate { ino, offset, length, mode } => {
                let ino = InodeNumber(ino);
                self.take_privileges_from(who, ino)?;
                self.allocate(ino, offset, length, mode)?;
            }
            Operation::LSeek { ino, offset, whence } => {
                reply.offset(self.seek(who, InodeNumber(ino), offset, whence)?)
            }
            // A clone: only metadata changes.
            Operation::CopyFileRange { source, source_offset, target, target_offset, length } => {
                let (from, to) = ((InodeNumber(source), source_offset), (InodeNumber(target), target_offset));
                reply.written(self.clone_range(who, from, to, length)?);
            }
            Operation::Ioctl { ino, number: nvfold_fuse::ASK, passed } => {
                let ino = InodeNumber(ino);
                let about_limits = || self.asked_about_limits(who, passed);
                let growth = || self.asked_to_grow(who, passed);
                let asked = self.asked_about_snapshots(who, ino, passed).or_else(about_limits).or_else(growth);
                let answer = match asked {
                    Some(answer) => answer,
                    None => self.asked_about_clone(who, ino, passed)?,
                };
                reply.ioctl(0);
                reply.bytes(&answer);
            }
            // All other ioctls are hints: what a process will write, and from where it copied the data.
            Operation::Ioctl { ino, number, passed } => {
                self.take_hint(who, InodeNumber(ino), number, passed)?;
                reply.ioctl(0);
            }

            Operation::OpenDir { ino } => {
                reply.opened(self.begin_listing(InodeNumber(ino))?, open::KEEP_CACHE | open::CACHE_DIR);
            }
            Operation::ReadDir { ino, handle, offset, size } => {
                let add = |next, entry: &DirEntry| {
                    !reply.dirent(size, entry.ino.0, next, convert::mode_bits(entry.kind), &entry.name)
                };
                self.list(InodeNumber(ino), handle, offset, add)?;
            }
            Operation::ReadDirPlus { ino, handle, offset, size } => {
                let dir = InodeNumber(ino);
                self.list(dir, handle, offset, |next, entry| self.add_with_attributes(dir, next, entry, size, reply))?;
            }
            Operation::ReleaseDir { handle } => self.end_listing(handle),
            Operation::StatFs { ino } => reply.statfs(&self.space_at(InodeNumber(ino))),
            // The session handles these.
            Operation::Destroy | Operation::NotifyReply | Operation::Unknown => {}
        }
        Ok(())
    }
}

/// Puts a value into the reply, or its length if `size` is 0. ERANGE if the value is longer than `size`.
fn answer_value(value: Vec<u8>, size: u32, reply: &mut Reply<'_>) -> Answer<()> {
    if size == 0 {
        reply.xattr_size(value.len() as u32);
    } else if value.len() > size as usize {
        return Err(Errno::ERANGE);
    } else {
        reply.bytes(&value);
    }
    Ok(())
}

impl Front {
    /// Looks up a name. `.` and `..` are looked up for file handles (`open_by_handle_at`, NFS): `.` asks whether the
    /// inode still exists. ESTALE for an inode without a name, which only processes that have it open may use.
    fn look_up(&self, parent: InodeNumber, name: &OsStr) -> Answer<Entry> {
        match self.fs.lookup(parent, name.as_bytes()) {
            Ok(attr) if name == "." && attr.nlink == 0 => Err(Errno::ESTALE),
            Err(nvfold::Error::NotFound { .. }) if name == "." || name == ".." => Err(Errno::ESTALE),
            // Inode number 0 lets the kernel cache that there is no such name.
            Err(nvfold::Error::NotFound { .. }) => {
                Ok(Entry { attr: protocol::Attr::default(), generation: 0, valid: BELIEVE })
            }
            Err(error) if error.errno() == nvfold::errno::EIO => self.tell_unreadable(parent, name, error),
            found => {
                let attr = found.map_err(convert::errno)?;
                self.drop_cached_name(attr.ino, parent, name);
                Ok(self.tell(parent, &attr))
            }
        }
    }

    fn made(&self, who: &Caller, parent: u64, name: &OsStr, wanted: &Wanted) -> Answer<Entry> {
        let parent = InodeNumber(parent);
        Ok(self.tell(parent, &self.make(who, parent, name, wanted)?))
    }

    /// Returns the inodes to which names lead.
    fn inodes_of(&self, names: &[(InodeNumber, &OsStr)]) -> Vec<InodeNumber> {
        let entry = |(parent, name): &(InodeNumber, &OsStr)| self.fs.entry(*parent, name.as_bytes()).ok();
        names.iter().filter_map(entry).map(|entry| entry.ino).collect()
    }

    fn forget(&self, ino: InodeNumber, times: u64) {
        if self.lookups.forget(ino, times) {
            self.forgotten(ino);
        }
    }

    fn set_attr(&self, change: &Change) -> SetAttr {
        let Change { mode, uid, gid, size, atime, mtime, ctime } = *change;
        let at = |time| convert::time(time, || (self.clock)());
        let mode = mode.map(|mode| mode & 0o7777);
        SetAttr { mode, uid, gid, size, atime: atime.map(at), mtime: mtime.map(at), ctime, ..SetAttr::default() }
    }

    /// Writes. After a direct write, the kernel's pages of its range are dropped when this returns.
    fn written(
        &self,
        who: &Caller,
        ino: InodeNumber,
        offset: u64,
        data: &[u8],
        is_direct: bool,
        from_cache: bool,
    ) -> Answer<()> {
        if !is_direct {
            self.pages_come(ino, offset, data.len());
        }
        self.write_to(ino, offset, data, from_cache)?;
        if is_direct && self.lookups.may_have_pages(ino) {
            let range = (offset, data.len() as u64);
            who.while_waiting(ino.0, || self.notices.drop_pages_now((ino, range)));
        }
        Ok(())
    }

    /// Adds a directory entry together with the reply to a lookup of it; returns true if it does not fit.
    fn add_with_attributes(
        &self,
        dir: InodeNumber,
        next: u64,
        of: &DirEntry,
        size: u32,
        reply: &mut Reply<'_>,
    ) -> bool {
        // By its name, which may be damaged: the inode alone would not tell. One that is gone was renamed meanwhile, or
        // removed.
        let by_name = if next > SECOND { self.fs.lookup(dir, &of.name) } else { self.fs.getattr(of.ino) };
        let found = match by_name {
            Err(nvfold::Error::NotFound { .. }) => self.fs.getattr(of.ino),
            found => found,
        };
        let Ok(attr) = found else { return false };
        let is_full = !reply.dirent_plus(size, &entry(&attr), next, &of.name);
        // The kernel counts a lookup for each entry, except for `.` and `..`.
        if !is_full && next > SECOND {
            self.lookups.count_lookup(attr.ino, dir);
            self.drop_cached_name(attr.ino, dir, OsStr::from_bytes(&of.name));
        }
        is_full
    }

    /// Returns the space for files at or below an inode: that of its limited tree, or of the device.
    fn space_at(&self, ino: InodeNumber) -> StatFsOut {
        let space = self.fs.statfs_at(ino).unwrap_or_else(|_| self.fs.statfs());
        StatFsOut {
            blocks: space.blocks,
            blocks_free: space.blocks_free,
            blocks_available: space.blocks_available,
            files: space.inodes,
            files_free: space.inodes_free,
            block_bytes: space.block_bytes,
            name_bytes_max: space.name_bytes_max,
            fragment_bytes: space.block_bytes,
            ..StatFsOut::default()
        }
    }

    /// Counts a request, and returns its kind if it gets an answer.
    pub(super) fn count(&self, operation: &Operation<'_>) -> Option<Kind> {
        let kind = match operation {
            Operation::BatchForget { all } => {
                all.iter().for_each(|_| self.counters.request(Kind::Forget));
                return None;
            }
            Operation::Forget { .. } => {
                self.counters.request(Kind::Forget);
                return None;
            }
            Operation::Lookup { .. } => Kind::Lookup,
            Operation::GetAttr { .. } => Kind::GetAttr,
            Operation::StatX { .. } => Kind::StatX,
            Operation::SetAttr { .. } => Kind::SetAttr,
            Operation::ReadLink { .. } => Kind::ReadLink,
            Operation::SymLink { .. } => Kind::SymLink,
            Operation::MkNod { .. } => Kind::MkNod,
            Operation::MkDir { .. } => Kind::MkDir,
            Operation::Unlink { .. } => Kind::Unlink,
            Operation::RmDir { .. } => Kind::RmDir,
            Operation::Rename { .. } => Kind::Rename,
            Operation::Link { .. } => Kind::Link,
            Operation::Open { .. } => Kind::Open,
            Operation::Create { .. } | Operation::TmpFile { .. } => Kind::Create,
            Operation::Read { .. } => Kind::Read,
            Operation::Write { .. } => Kind::Write,
            Operation::StatFs { .. } => Kind::StatFs,
            Operation::Release => Kind::Release,
            Operation::FSync => Kind::FSync,
            Operation::Flush => Kind::Flush,
            Operation::SetXattr { .. } => Kind::SetXattr,
            Operation::GetXattr { .. } => Kind::GetXattr,
            Operation::ListXattr { .. } => Kind::ListXattr,
            Operation::RemoveXattr { .. } => Kind::RemoveXattr,
            Operation::OpenDir { .. } => Kind::OpenDir,
            Operation::ReadDir { .. } => Kind::ReadDir,
            Operation::ReadDirPlus { .. } => Kind::ReadDirPlus,
            Operation::ReleaseDir { .. } => Kind::ReleaseDir,
            Operation::FSyncDir => Kind::FSyncDir,
            Operation::Ioctl { .. } => Kind::IoCtl,
            Operation::FAllocate { .. } => Kind::FAllocate,
            Operation::LSeek { .. } => Kind::LSeek,
            Operation::CopyFileRange { .. } => Kind::CopyFileRange,
            Operation::Destroy | Operation::NotifyReply | Operation::Unknown => return None,
        };
        self.counters.request(kind);
        Some(kind)
    }
}
