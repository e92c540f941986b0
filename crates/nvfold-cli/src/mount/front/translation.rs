//! The table: each request of the kernel, the call it becomes, and how the result is said.
//!
//! Nothing is decided here but what FUSE itself asks for: lifetimes of what was told, and ENOSYS where the kernel need
//! not ask again.

use super::listing::SECOND;
use super::names::Wanted;
use super::{Answer, Front};
use crate::counters::Kind;
use crate::mount::convert;
use crate::mount::notices::Notice;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use nvfold::{Attr, DirEntry, FileKind, SetAttr};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How long the kernel may believe what it was told: nothing changes behind its back.
const BELIEVE: Duration = Duration::from_secs(24 * 3600);

/// Reads and writes of more bytes are worth a thread of their own.
const SHORT_BYTES: usize = 32 << 10;

/// Whether a read or write goes past the kernel's pages. The kernel says who does it then, and for pages it does not.
fn is_direct(lock_owner: Option<LockOwner>) -> bool {
    lock_owner.is_some()
}

fn answer_empty(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn answer_attr(answer: Answer<Attr>, reply: ReplyAttr) {
    match answer {
        Ok(attr) => reply.attr(&BELIEVE, &convert::attr(&attr)),
        Err(errno) => reply.error(errno),
    }
}

/// A value, or its size when the process asks how much room it takes.
fn answer_value(value: Answer<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}

impl Front {
    /// `parent`: the directory of the name.
    fn answer_entry(&self, parent: INodeNo, answer: Answer<Attr>, reply: ReplyEntry) {
        match answer {
            Ok(attr) => {
                let (attr, generation) = self.tell(convert::ino(parent), &attr);
                reply.entry(&BELIEVE, &attr, generation);
            }
            Err(errno) => reply.error(errno),
        }
    }
}

impl Filesystem for Front {
    fn init(&mut self, _who: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.agree(config);
        Ok(())
    }

    /// The names `.` and `..` come for file handles (`open_by_handle_at`, NFS): `.` asks whether there still is an inode
    /// of this number. One that no name leads to is gone for whoever does not have it open.
    fn lookup(&self, who: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _turn = self.turn(who, Kind::Lookup);
        match self.fs.lookup(convert::ino(parent), name.as_bytes()) {
            Ok(attr) if name == "." && attr.nlink == 0 => reply.error(Errno::ESTALE),
            Err(nvfold::Error::NotFound { .. }) if name == "." || name == ".." => reply.error(Errno::ESTALE),
            Err(nvfold::Error::NotFound { .. }) => reply.entry(&BELIEVE, &convert::no_such_name(), Generation(0)),
            Err(error) if error.errno() == nvfold::errno::EIO => self.answer_unreadable(parent, name, error, reply),
            found => {
                let found = found.map_err(convert::errno);
                if let Ok(attr) = &found {
                    self.keep_no_name_of_unstored(attr.ino, parent, name);
                }
                self.answer_entry(parent, found, reply);
            }
        }
    }

    fn forget(&self, who: &Request, ino: INodeNo, times: u64) {
        let _turn = self.turn(who, Kind::Forget);
        let ino = convert::ino(ino);
        if self.lookups.forget(ino, times) {
            self.forgotten(ino);
        }
    }

    /// With a handle it is the kernel itself that asks, before it takes what a process writes into its cache.
    fn getattr(&self, who: &Request, ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let _turn = self.turn(who, Kind::GetAttr);
        let ino = convert::ino(ino);
        let may = if handle.is_some() { self.check_may_write(ino, u64::MAX) } else { Ok(()) };
        answer_attr(may.and_then(|()| self.fs.getattr(ino).map_err(convert::errno)), reply);
    }

    fn setattr(
        &self,
        who: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _turn = self.turn(who, Kind::SetAttr);
        let at = |time| convert::time_or_now(time, || (self.clock)());
        let (atime, mtime, ctime) = (atime.map(at), mtime.map(at), ctime.map(convert::time_ns));
        let change = SetAttr { mode: mode.map(|mode| mode & 0o7777), uid, gid, size, atime, mtime, ctime };
        answer_attr(self.set_attributes(who, convert::ino(ino), change), reply);
    }

    fn readlink(&self, who: &Request, ino: INodeNo, reply: ReplyData) {
        let _turn = self.turn(who, Kind::ReadLink);
        match self.fs.readlink(convert::ino(ino)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(convert::errno(error)),
        }
    }

    fn mknod(&self, who: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let _turn = self.turn(who, Kind::MkNod);
        let made = convert::kind_of_mode(mode).ok_or(Errno::EINVAL);
        let made = made.and_then(|kind| self.make(who, parent, name, &Wanted { kind, mode, umask, rdev }));
        self.answer_entry(parent, made, reply);
    }

    fn mkdir(&self, who: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let _turn = self.turn(who, Kind::MkDir);
        let made = self.make(who, parent, name, &Wanted { kind: FileKind::Directory, mode, umask, rdev: 0 });
        self.answer_entry(parent, made, reply);
    }

    fn unlink(&self, who: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.turn(who, Kind::Unlink);
        let remove = || self.fs.unlink(convert::ino(parent), name.as_bytes());
        answer_empty(self.removing(parent, name, remove), reply);
    }

    fn rmdir(&self, who: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.turn(who, Kind::RmDir);
        let remove = || self.fs.rmdir(convert::ino(parent), name.as_bytes());
        answer_empty(self.removing(parent, name, remove), reply);
    }

    fn symlink(&self, who: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _turn = self.turn(who, Kind::SymLink);
        self.answer_entry(parent, self.make_symlink(who, parent, name, target), reply);
    }

    fn rename(
        &self,
        who: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn(who, Kind::Rename);
        answer_empty(self.move_name((parent, name), (new_parent, new_name), flags), reply);
    }

    fn link(&self, who: &Request, ino: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        let _turn = self.turn(who, Kind::Link);
        self.answer_entry(new_parent, self.make_link(ino, new_parent, new_name), reply);
    }

    /// ENOSYS: the kernel opens files without asking from now on, and keeps their pages. Only where it is to keep none it
    /// asks, for it is told so of each file that is opened.
    fn open(&self, who: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.turn(who, Kind::Open);
        if self.no_open { reply.error(Errno::ENOSYS) } else { reply.opened(FileHandle(0), self.open_flags()) }
    }

    /// ENOSYS: the kernel creates files by `mknod` and opens them without asking.
    fn create(
        &self,
        who: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let _turn = self.turn(who, Kind::Create);
        if self.no_open {
            return reply.error(Errno::ENOSYS);
        }
        match self.make(who, parent, name, &Wanted { kind: FileKind::Regular, mode, umask, rdev: 0 }) {
            Ok(attr) => {
                let (attr, generation) = self.tell(convert::ino(parent), &attr);
                reply.created(&BELIEVE, &attr, generation, FileHandle(0), self.open_flags());
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        who: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _turn = self.turn_of(who, Kind::Read, size as usize > SHORT_BYTES);
        let ino = convert::ino(ino);
        if !is_direct(lock_owner) {
            self.pages_come(ino, offset, size as usize);
        }
        self.read_into(ino, offset, size, |read| match read {
            Ok(bytes) => reply.data(bytes),
            Err(errno) => reply.error(errno),
        });
    }

    fn write(
        &self,
        who: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _turn = self.turn_of(who, Kind::Write, data.len() > SHORT_BYTES);
        let node = ino;
        let ino = convert::ino(ino);
        if !is_direct(lock_owner) {
            self.pages_come(ino, offset, data.len());
        }
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let may = if kill { self.take_privileges(ino) } else { Ok(()) };
        match may.and_then(|()| self.write_to(ino, offset, data, from_cache)) {
            Ok(()) if is_direct(lock_owner) && self.lookups.may_have_pages(ino) => {
                let range = (offset as i64, data.len() as i64);
                let answer = move || reply.written(range.1 as u32);
                // If the mount is ending the reply is dropped, which answers EIO.
                let _ = self.notices.send(Notice::DropPagesThen(node, range, Box::new(answer)));
            }
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn release(
        &self,
        who: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn(who, Kind::Release);
        reply.ok();
    }

    /// ENOSYS: the kernel writes pages back on close and need not ask for more.
    fn flush(&self, who: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        let _turn = self.turn(who, Kind::Flush);
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, who: &Request, _ino: INodeNo, _fh: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        let _turn = self.turn_of(who, Kind::FSync, true);
        answer_empty(self.sync(), reply);
    }

    fn opendir(&self, who: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.turn(who, Kind::OpenDir);
        let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR;
        match self.begin_listing(convert::ino(ino)) {
            Ok(listing) => reply.opened(listing, flags),
            Err(errno) => reply.error(errno),
        }
    }

    fn releasedir(&self, who: &Request, _ino: INodeNo, listing: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        let _turn = self.turn(who, Kind::ReleaseDir);
        self.end_listing(listing);
        reply.ok();
    }

    fn readdir(&self, who: &Request, ino: INodeNo, listing: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let _turn = self.turn(who, Kind::ReadDir);
        let add = |next, entry: &DirEntry| {
            reply.add(INodeNo(entry.ino.0), next, convert::kind(entry.kind), OsStr::from_bytes(&entry.name))
        };
        match self.list(convert::ino(ino), listing, offset, add) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        who: &Request,
        ino: INodeNo,
        listing: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _turn = self.turn(who, Kind::ReadDirPlus);
        let add = |next, entry: &DirEntry| {
            // Removed meanwhile: no longer an entry.
            let Ok(attr) = self.fs.getattr(entry.ino) else { return false };
            let name = OsStr::from_bytes(&entry.name);
            let (attr, generation) = (convert::attr(&attr), convert::generation(&attr));
            let full = reply.add(INodeNo(entry.ino.0), next, name, &BELIEVE, &attr, generation);
            // The kernel counts tellings of entries, not of the directory and its parent.
            if !full && next > SECOND {
                self.lookups.told(entry.ino, convert::ino(ino));
                self.keep_no_name_of_unstored(entry.ino, ino, name);
            }
            full
        };
        match self.list(convert::ino(ino), listing, offset, add) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsyncdir(&self, who: &Request, _ino: INodeNo, _fh: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        let _turn = self.turn_of(who, Kind::FSyncDir, true);
        answer_empty(self.sync(), reply);
    }

    fn statfs(&self, who: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let _turn = self.turn(who, Kind::StatFs);
        let space = self.fs.statfs();
        let block = space.block_bytes;
        reply.statfs(
            space.blocks,
            space.blocks_free,
            space.blocks_available,
            space.inodes,
            space.inodes_free,
            block,
            space.name_bytes_max,
            block,
        );
    }

    fn setxattr(
        &self,
        who: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn(who, Kind::SetXattr);
        answer_empty(self.set_attribute(who, convert::ino(ino), name.as_bytes(), value, flags), reply);
    }

    fn getxattr(&self, who: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _turn = self.turn(who, Kind::GetXattr);
        answer_value(self.attribute(who, convert::ino(ino), name.as_bytes(), size), size, reply);
    }

    fn listxattr(&self, who: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _turn = self.turn(who, Kind::ListXattr);
        answer_value(self.attribute_names(who, convert::ino(ino)), size, reply);
    }

    fn removexattr(&self, who: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.turn(who, Kind::RemoveXattr);
        answer_empty(self.remove_attribute(convert::ino(ino), name.as_bytes()), reply);
    }

    fn fallocate(
        &self,
        who: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn_of(who, Kind::FAllocate, true);
        let ino = convert::ino(ino);
        let may = self.take_privileges_from(who, ino);
        answer_empty(may.and_then(|()| self.allocate(ino, offset, length, mode)), reply);
    }

    fn lseek(&self, who: &Request, ino: INodeNo, _fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let _turn = self.turn(who, Kind::LSeek);
        self.seek(ino, offset, whence, |found| match found {
            Ok(found) => reply.offset(found as i64),
            Err(errno) => reply.error(errno),
        });
    }

    /// Hints alone: what a process will write, and where it copied it from.
    fn ioctl(
        &self,
        who: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        number: u32,
        passed: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let _turn = self.turn(who, Kind::IoCtl);
        match self.take_hint(convert::ino(ino), number, passed) {
            Ok(()) => reply.ioctl(0, &[]),
            Err(errno) => reply.error(errno),
        }
    }

    /// A clone: metadata only.
    fn copy_file_range(
        &self,
        who: &Request,
        source: INodeNo,
        _source_fh: FileHandle,
        source_offset: u64,
        target: INodeNo,
        _target_fh: FileHandle,
        target_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let _turn = self.turn_of(who, Kind::CopyFileRange, true);
        let from = (convert::ino(source), source_offset);
        match self.clone_range(who, from, (convert::ino(target), target_offset), length) {
            Ok(cloned) => reply.written(cloned),
            Err(errno) => reply.error(errno),
        }
    }
}
