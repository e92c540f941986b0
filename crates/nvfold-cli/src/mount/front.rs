//! The FUSE front end: translates requests of the kernel into calls of the library, and nothing more.
//!
//! Everything that changes a file system goes through its one mount, so the kernel may cache all it has seen:
//! attributes, names, names that are not there, symlink targets, directory listings, pages; what changes without
//! its doing it is told (`notices`). Opening a file needs no request then (an inode number is all that reads
//! and writes need), nor does closing; creating is one `mknod`.
//!
//! What the library leaves to a front end is done here: lifetimes of nameless files (`lookups`), ACLs (`acl`), and
//! taking away set-user-id bits when a file changes hands or content.

use super::acl::{self, Acl};
use super::convert;
use super::lookups::Lookups;
use super::notices::Notice;
use super::requests::{self, Request as Asked};
use super::settings::Setting;
use crate::counters::Counters;
use crate::snapshot::REPORT_ATTRIBUTE;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use nvfold::{
    AllocateMode, Attr, Clock, DirEntry, FileKind, FileSystem, InodeNumber, NewInode, RenameMode, SetAttr, Whence,
    XattrMode, errno,
};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime};

/// How long the kernel may believe what it was told: nothing changes behind its back.
const BELIEVE: Duration = Duration::from_secs(24 * 3600);
/// Names read from a directory at a time.
const NAMES_AT_A_TIME: usize = 128;
/// Positions in a listing: `.` is before `FIRST`, `..` before `SECOND`, entries before their cookie + `SECOND`.
const FIRST: u64 = 1;
const SECOND: u64 = 2;
/// Requests the kernel may have under way in the background (read ahead, write back).
const BACKGROUND: u16 = 64;

/// Bytes of one `copy_file_range`: what the reply can count, in whole blocks.
const COPIED_AT_A_TIME: u64 = (1 << 32) - 4096;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
const CAPABILITIES: &[u8] = b"security.capability";

const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;
const KEEP_SIZE: i32 = 0x01;
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

thread_local! {
    /// What a read puts its bytes into, one a thread.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// An inode to make.
struct Wanted {
    kind: FileKind,
    mode: u32,
    umask: u32,
    rdev: u32,
}

/// Result of an operation, in the words of the kernel.
type Answer<T> = Result<T, Errno>;

/// The report that a process gets by reading [`REPORT_ATTRIBUTE`] of anything in the mount.
pub type Reporter = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

/// One mounted file system. See the module.
pub struct Front {
    fs: FileSystem,
    clock: Clock,
    lookups: Lookups,
    report: Reporter,
    counters: Arc<Counters>,
    max_write_bytes: u32,
    /// Whether an fsync has anything to do beyond what the kernel does.
    sync_needed: bool,
    no_open: bool,
    notices: Sender<Notice>,
    /// Open directories: the youngest cookie when the listing began. A listing stops past it, or it would not end
    /// for a program that renames what it finds.
    listings: Mutex<HashMap<u64, u64>>,
    next_listing: AtomicU64,
}

impl Front {
    /// Serves `fs`; `max_write_bytes` is the largest write request asked for.
    pub fn new(
        fs: FileSystem,
        clock: Clock,
        report: Reporter,
        notices: Sender<Notice>,
        counters: Arc<Counters>,
        max_write_bytes: u32,
    ) -> Front {
        Front {
            sync_needed: fs.region().level() == pmem::PersistenceLevel::File,
            fs,
            clock,
            lookups: Lookups::new(),
            report,
            counters,
            max_write_bytes,
            no_open: false,
            notices,
            listings: Mutex::default(),
            next_listing: AtomicU64::new(1),
        }
    }

    /// Attributes for the kernel, which counts this telling.
    fn tell(&self, attr: &Attr) -> (fuser::FileAttr, Generation) {
        self.lookups.told(attr.ino);
        (convert::attr(attr), Generation(u64::from(attr.generation)))
    }

    /// Runs an operation, again if it finds too little space and a file that has lost its name gives some back.
    fn with_room<T>(&self, operation: impl Fn() -> nvfold::Result<T>) -> nvfold::Result<T> {
        loop {
            let freed = self.lookups.freed();
            match operation() {
                Err(nvfold::Error::NoSpace { .. }) if self.lookups.wait_for_a_freed(freed) => {}
                result => return result,
            }
        }
    }

    fn answer_entry(&self, answer: Answer<Attr>, reply: ReplyEntry) {
        match answer {
            Ok(attr) => {
                let (attr, generation) = self.tell(&attr);
                reply.entry(&BELIEVE, &attr, generation);
            }
            Err(errno) => reply.error(errno),
        }
    }

    /// Makes an inode as the process, the umask and the directory's default ACL say.
    fn make(&self, who: &Request, parent: INodeNo, name: &OsStr, wanted: &Wanted) -> Answer<Attr> {
        let Wanted { kind, mode, umask, rdev } = *wanted;
        let parent = convert::ino(parent);
        let default = self.fs.get_xattr(parent, acl::DEFAULT).ok();
        let default = default.as_deref().and_then(Acl::decode);
        let (mode, access) = match &default {
            Some(default) => default.inherited(mode & 0o7777),
            None => (mode & 0o7777 & !umask, None),
        };
        let new = NewInode { kind, mode, uid: who.uid(), gid: who.gid(), rdev };
        let made = self.with_room(|| match kind {
            FileKind::Directory => self.fs.mkdir(parent, name.as_bytes(), &new),
            _ => self.fs.create(parent, name.as_bytes(), &new),
        });
        let attr = made.map_err(convert::errno)?;
        self.counters.change();
        let set =
            |name, acl: &Acl| self.fs.set_xattr(attr.ino, name, &acl.encode(), XattrMode::Set).map_err(convert::errno);
        if let Some(access) = &access {
            set(acl::ACCESS, access)?;
        }
        if let Some(default) = default.filter(|_| kind == FileKind::Directory) {
            set(acl::DEFAULT, &default)?;
        }
        Ok(attr)
    }

    /// Runs `remove`, which takes a name away, and keeps the file behind it alive while the kernel knows it.
    fn removing(&self, parent: INodeNo, name: &OsStr, remove: impl FnOnce() -> nvfold::Result<()>) -> Answer<()> {
        let victim = self.fs.lookup(convert::ino(parent), name.as_bytes()).and_then(|attr| self.fs.open(attr.ino));
        remove().map_err(convert::errno)?;
        self.counters.change();
        if let Ok(victim) = victim {
            self.lookups.name_removed(victim);
        }
        Ok(())
    }

    fn set_attributes(&self, who: &Request, ino: InodeNumber, change: SetAttr) -> Answer<Attr> {
        // chown(-1, -1) takes privileges away too; it comes as a change of nothing but perhaps the time of change.
        let changes_hands =
            change.uid.is_some() || change.gid.is_some() || SetAttr { ctime: None, ..change } == SetAttr::default();
        let loses_privileges = changes_hands || (change.size.is_some() && who.uid() != 0);
        let mut change = change;
        if loses_privileges && change.mode.is_none() {
            change.mode = self.unprivileged_mode(ino)?;
        }
        let attr = self.with_room(|| self.fs.setattr(ino, &change)).map_err(convert::errno)?;
        self.counters.change();
        if let (Some(mode), Ok(access)) = (change.mode, self.fs.get_xattr(ino, acl::ACCESS)) {
            let access = Acl::decode(&access).ok_or(Errno::EIO)?.with_mode(mode);
            self.fs.set_xattr(ino, acl::ACCESS, &access.encode(), XattrMode::Set).map_err(convert::errno)?;
        }
        Ok(attr)
    }

    /// The mode without set-user-id and set-group-id, if it has them; file capabilities go too.
    ///
    /// The kernel leaves this to us (FUSE_HANDLE_KILLPRIV_V2): otherwise it would ask for the capabilities of a file
    /// before each write to it.
    fn unprivileged_mode(&self, ino: InodeNumber) -> Answer<Option<u32>> {
        let attr = self.fs.getattr(ino).map_err(convert::errno)?;
        if attr.kind == FileKind::Directory {
            return Ok(None);
        }
        if self.fs.get_xattr(ino, CAPABILITIES).is_ok() {
            self.fs.remove_xattr(ino, CAPABILITIES).map_err(convert::errno)?;
        }
        // Without group execution the bit means mandatory locking, not a privilege.
        let set_group_id = if attr.mode & GROUP_EXECUTE != 0 { SET_GROUP_ID } else { 0 };
        let taken = attr.mode & (SET_USER_ID | set_group_id);
        Ok((taken != 0).then_some(attr.mode & !taken))
    }

    fn take_privileges(&self, ino: InodeNumber) -> Answer<()> {
        if let Some(mode) = self.unprivileged_mode(ino)? {
            let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
            self.fs.setattr(ino, &change).map_err(convert::errno)?;
        }
        Ok(())
    }

    /// Stores an ACL; the mode follows it. An ACL that a mode says all of is not stored.
    fn set_access_acl(&self, who: &Request, ino: InodeNumber, value: &[u8]) -> Answer<()> {
        let access = Acl::decode(value).ok_or(Errno::EINVAL)?;
        let attr = self.fs.getattr(ino).map_err(convert::errno)?;
        let mut mode = access.mode(attr.mode);
        if who.uid() != 0 && !in_group(who, attr.gid) {
            mode &= !SET_GROUP_ID;
        }
        if access.is_a_mode() {
            let _ = self.fs.remove_xattr(ino, acl::ACCESS);
        } else {
            self.fs.set_xattr(ino, acl::ACCESS, value, XattrMode::Set).map_err(convert::errno)?;
        }
        if mode != attr.mode {
            let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
            self.fs.setattr(ino, &change).map_err(convert::errno)?;
        }
        Ok(())
    }

    fn set_attribute(&self, who: &Request, ino: InodeNumber, name: &[u8], value: &[u8], flags: i32) -> Answer<()> {
        check_attribute_name(name)?;
        let mode = match flags & (XATTR_CREATE | XATTR_REPLACE) {
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => XattrMode::Set,
        };
        match name {
            name if name == acl::ACCESS => self.set_access_acl(who, ino, value),
            name if name == REPORT_ATTRIBUTE.as_bytes() => Err(Errno::EPERM),
            name => match Setting::named(name) {
                Some(setting) => {
                    check_may_manage(who)?;
                    setting.set(&self.fs, value).ok_or(Errno::EINVAL)
                }
                None => self.with_room(|| self.fs.set_xattr(ino, name, value, mode)).map_err(convert::errno),
            },
        }
    }

    fn attribute(&self, ino: InodeNumber, name: &[u8]) -> Answer<Vec<u8>> {
        check_attribute_name(name)?;
        if name == REPORT_ATTRIBUTE.as_bytes() {
            return Ok((self.report)());
        }
        if let Some(setting) = Setting::named(name) {
            return Ok(setting.get(&self.fs).into_bytes());
        }
        self.fs.get_xattr(ino, name).map_err(convert::errno)
    }

    /// Does what a command asks to be done with a file of its user.
    fn carry_out(&self, who: &Request, ino: InodeNumber, asked: Asked) -> Answer<Vec<u8>> {
        let file = self.fs.open(ino).map_err(convert::errno)?;
        let before = file.attr();
        if who.uid() != 0 && who.uid() != before.uid {
            return Err(Errno::EPERM);
        }
        let answer = asked.carry_out(&file).map_err(convert::errno);
        if file.attr().blocks != before.blocks {
            let _ = self.notices.send(Notice::OtherBlocks(INodeNo(ino.0)));
        }
        answer
    }

    /// Shares a part of what is queued.
    fn drain(&self, who: &Request, size: u32) -> Answer<Vec<u8>> {
        check_may_manage(who)?;
        if size == 0 { Err(Errno::EINVAL) } else { requests::drain(&self.fs).map_err(convert::errno) }
    }

    /// Calls `add` for each entry of a directory from position `offset` until it says that the reply is full.
    fn list(
        &self,
        dir: InodeNumber,
        listing: FileHandle,
        offset: u64,
        mut add: impl FnMut(u64, &DirEntry) -> bool,
    ) -> Answer<()> {
        let last_cookie = self.last_cookie_of(dir, listing, offset)?;
        let own = |ino, name: &[u8]| DirEntry { ino, kind: FileKind::Directory, cookie: 0, name: name.to_vec() };
        if offset < FIRST && add(FIRST, &own(dir, b".")) {
            return Ok(());
        }
        if offset < SECOND && add(SECOND, &own(self.fs.parent(dir).map_err(convert::errno)?, b"..")) {
            return Ok(());
        }
        let mut cookie = offset.saturating_sub(SECOND);
        while cookie < last_cookie {
            // Gathered first: the directory is locked while it is read, and its entries need locks of their own.
            let mut names = Vec::with_capacity(NAMES_AT_A_TIME);
            let mut gather = |entry| {
                names.push(entry);
                names.len() < NAMES_AT_A_TIME
            };
            self.fs.readdir(dir, cookie, &mut gather).map_err(convert::errno)?;
            for entry in names.iter().filter(|entry| entry.cookie <= last_cookie) {
                if add(entry.cookie + SECOND, entry) {
                    return Ok(());
                }
            }
            match names.last() {
                Some(last) if names.len() == NAMES_AT_A_TIME => cookie = last.cookie,
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// Where a listing ends. It begins anew at offset 0.
    fn last_cookie_of(&self, dir: InodeNumber, listing: FileHandle, offset: u64) -> Answer<u64> {
        if offset == 0 {
            let last = self.fs.last_cookie(dir).map_err(convert::errno)?;
            self.listings.lock().insert(listing.0, last);
        }
        Ok(self.listings.lock().get(&listing.0).copied().unwrap_or(u64::MAX))
    }

    /// Writes, and has the kernel told when that changed the number of blocks.
    fn write_to(&self, ino: InodeNumber, offset: u64, data: &[u8]) -> nvfold::Result<()> {
        let file = self.fs.open(ino)?;
        let before = file.attr().blocks;
        self.with_room(|| file.write_at(offset, data))?;
        self.counters.write(data.len());
        let ino = INodeNo(ino.0);
        let notice = match before {
            before if before == file.attr().blocks => return Ok(()),
            0 => Notice::FirstBlocks(ino),
            _ => Notice::OtherBlocks(ino),
        };
        // Fails when the mount is ending: nobody will ask then.
        let _ = self.notices.send(notice);
        Ok(())
    }

    fn read_into<R>(&self, ino: InodeNumber, offset: u64, size: u32, send: impl FnOnce(Answer<&[u8]>) -> R) -> R {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let read = self.fs.open(ino).and_then(|file| file.read_at(offset, &mut buffer[..size]));
            if let Ok(length) = read {
                self.counters.read(length);
            }
            send(read.map(|length| &buffer[..length]).map_err(convert::errno))
        })
    }

    fn allocate(&self, ino: InodeNumber, offset: u64, length: u64, mode: i32) -> Answer<()> {
        let mode = match mode {
            0 => AllocateMode::Reserve,
            KEEP_SIZE => AllocateMode::ReserveKeepSize,
            flags if flags == PUNCH_HOLE | KEEP_SIZE => AllocateMode::PunchHole,
            ZERO_RANGE => AllocateMode::ZeroRange,
            flags if flags == ZERO_RANGE | KEEP_SIZE => AllocateMode::ZeroRangeKeepSize,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let reserve = |file: nvfold::File| self.with_room(|| file.allocate(offset, length, mode));
        self.fs.open(ino).and_then(reserve).map_err(convert::errno)
    }

    /// An fsync. At levels where a fence is all there is, ENOSYS makes the kernel stop asking (it counts as success).
    fn sync(&self) -> Answer<()> {
        if self.sync_needed { self.fs.sync().map_err(convert::errno) } else { Err(Errno::ENOSYS) }
    }
}

/// Names of extended attributes there may be.
fn check_attribute_name(name: &[u8]) -> Answer<()> {
    let free = [&b"user."[..], b"trusted.", b"security."]
        .iter()
        .any(|prefix| name.starts_with(prefix) && name.len() > prefix.len());
    if free || name == acl::ACCESS || name == acl::DEFAULT { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

/// Who may change how a mount works: root, and whoever mounted it.
fn check_may_manage(who: &Request) -> Answer<()> {
    let may = [0, rustix::process::geteuid().as_raw()].contains(&who.uid());
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// Whether the process is in a group, by its group or by those /proc says it has.
fn in_group(who: &Request, gid: u32) -> bool {
    let status = || std::fs::read_to_string(format!("/proc/{}/status", who.pid())).unwrap_or_default();
    let listed = |status: String| {
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:").map(str::to_owned));
        groups.unwrap_or_default().split_whitespace().any(|group| group.parse() == Ok(gid))
    };
    who.gid() == gid || listed(status())
}

fn answer_empty(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
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

impl Filesystem for Front {
    fn init(&mut self, _who: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each is used where the kernel has it.
        let wanted = [
            InitFlags::FUSE_WRITEBACK_CACHE,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_SPLICE_READ,
            InitFlags::FUSE_SPLICE_WRITE,
            InitFlags::FUSE_SPLICE_MOVE,
        ];
        for flag in wanted {
            let _ = config.add_capabilities(flag);
        }
        self.no_open = config.add_capabilities(InitFlags::FUSE_NO_OPEN_SUPPORT).is_ok();
        let _ = config.set_max_write(self.max_write_bytes);
        // More than the kernel offers is refused with what it offers.
        if let Err(most) = config.set_max_readahead(self.max_write_bytes) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(BACKGROUND);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        Ok(())
    }

    fn lookup(&self, _who: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.fs.lookup(convert::ino(parent), name.as_bytes()) {
            Err(nvfold::Error::NotFound { .. }) => reply.entry(&BELIEVE, &convert::no_such_name(), Generation(0)),
            found => self.answer_entry(found.map_err(convert::errno), reply),
        }
    }

    fn forget(&self, _who: &Request, ino: INodeNo, times: u64) {
        self.lookups.forget(convert::ino(ino), times);
    }

    fn getattr(&self, _who: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.fs.getattr(convert::ino(ino)) {
            Ok(attr) => reply.attr(&BELIEVE, &convert::attr(&attr)),
            Err(error) => reply.error(convert::errno(error)),
        }
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
        let at = |time| convert::time_or_now(time, || (self.clock)());
        let (atime, mtime, ctime) = (atime.map(at), mtime.map(at), ctime.map(convert::time_ns));
        let change = SetAttr { mode: mode.map(|mode| mode & 0o7777), uid, gid, size, atime, mtime, ctime };
        match self.set_attributes(who, convert::ino(ino), change) {
            Ok(attr) => reply.attr(&BELIEVE, &convert::attr(&attr)),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _who: &Request, ino: INodeNo, reply: ReplyData) {
        match self.fs.readlink(convert::ino(ino)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(convert::errno(error)),
        }
    }

    fn mknod(&self, who: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let made = convert::kind_of_mode(mode).ok_or(Errno::EINVAL);
        let made = made.and_then(|kind| self.make(who, parent, name, &Wanted { kind, mode, umask, rdev }));
        self.answer_entry(made, reply);
    }

    fn mkdir(&self, who: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.answer_entry(
            self.make(who, parent, name, &Wanted { kind: FileKind::Directory, mode, umask, rdev: 0 }),
            reply,
        );
    }

    fn unlink(&self, _who: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = || self.fs.unlink(convert::ino(parent), name.as_bytes());
        answer_empty(self.removing(parent, name, remove), reply);
    }

    fn rmdir(&self, _who: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = || self.fs.rmdir(convert::ino(parent), name.as_bytes());
        answer_empty(self.removing(parent, name, remove), reply);
    }

    fn symlink(&self, who: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let new = NewInode { kind: FileKind::Symlink, mode: 0o777, uid: who.uid(), gid: who.gid(), rdev: 0 };
        let (parent, target) = (convert::ino(parent), target.as_os_str().as_bytes());
        let made = self.with_room(|| self.fs.symlink(parent, name.as_bytes(), target, &new));
        self.counters.change();
        self.answer_entry(made.map_err(convert::errno), reply);
    }

    fn rename(
        &self,
        _who: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let (from, to) = (convert::ino(parent), convert::ino(new_parent));
        let rename = || self.with_room(|| self.fs.rename(from, name.as_bytes(), to, new_name.as_bytes(), mode));
        answer_empty(self.removing(new_parent, new_name, rename), reply);
    }

    fn link(&self, _who: &Request, ino: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        let (ino, parent) = (convert::ino(ino), convert::ino(new_parent));
        let linked = self.with_room(|| self.fs.link(ino, parent, new_name.as_bytes()));
        self.counters.change();
        self.answer_entry(linked.map_err(convert::errno), reply);
    }

    /// ENOSYS: the kernel opens files without asking from now on, and keeps their pages.
    fn open(&self, _who: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.no_open {
            reply.error(Errno::ENOSYS)
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE)
        }
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
        if self.no_open {
            return reply.error(Errno::ENOSYS);
        }
        match self.make(who, parent, name, &Wanted { kind: FileKind::Regular, mode, umask, rdev: 0 }) {
            Ok(attr) => {
                let (attr, generation) = self.tell(&attr);
                reply.created(&BELIEVE, &attr, generation, FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _who: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.read_into(convert::ino(ino), offset, size, |read| match read {
            Ok(bytes) => reply.data(bytes),
            Err(errno) => reply.error(errno),
        });
    }

    fn write(
        &self,
        _who: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let ino = convert::ino(ino);
        let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let written = if kill { self.take_privileges(ino) } else { Ok(()) };
        let write = || self.write_to(ino, offset, data).map_err(convert::errno);
        match written.and_then(|()| write()) {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    /// ENOSYS: the kernel writes pages back on close and need not ask for more.
    fn flush(&self, _who: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _who: &Request, _ino: INodeNo, _fh: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        answer_empty(self.sync(), reply);
    }

    fn opendir(&self, _who: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.fs.last_cookie(convert::ino(ino)) {
            Ok(last) => {
                let listing = self.next_listing.fetch_add(1, Ordering::Relaxed);
                self.listings.lock().insert(listing, last);
                reply.opened(FileHandle(listing), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
            }
            Err(error) => reply.error(convert::errno(error)),
        }
    }

    fn releasedir(&self, _who: &Request, _ino: INodeNo, listing: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.listings.lock().remove(&listing.0);
        reply.ok();
    }

    fn readdir(&self, _who: &Request, ino: INodeNo, listing: FileHandle, offset: u64, mut reply: ReplyDirectory) {
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
        _who: &Request,
        ino: INodeNo,
        listing: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let add = |next, entry: &DirEntry| {
            // Removed meanwhile: no longer an entry.
            let Ok(attr) = self.fs.getattr(entry.ino) else { return false };
            let generation = Generation(u64::from(attr.generation));
            let name = OsStr::from_bytes(&entry.name);
            let full = reply.add(INodeNo(entry.ino.0), next, name, &BELIEVE, &convert::attr(&attr), generation);
            // The kernel counts tellings of entries, not of the directory and its parent.
            if !full && next > SECOND {
                self.lookups.told(entry.ino);
            }
            full
        };
        match self.list(convert::ino(ino), listing, offset, add) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsyncdir(&self, _who: &Request, _ino: INodeNo, _fh: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        answer_empty(self.sync(), reply);
    }

    fn statfs(&self, _who: &Request, _ino: INodeNo, reply: ReplyStatfs) {
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
        answer_empty(self.set_attribute(who, convert::ino(ino), name.as_bytes(), value, flags), reply);
    }

    fn getxattr(&self, who: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (ino, name) = (convert::ino(ino), name.as_bytes());
        let value = match Asked::named(name) {
            // Whoever asks for the size alone wants nothing done.
            Some(_) if size == 0 => Err(Errno::EINVAL),
            Some(asked) => self.carry_out(who, ino, asked),
            None if name == requests::DRAIN.as_bytes() => self.drain(who, size),
            None => self.attribute(ino, name),
        };
        answer_value(value, size, reply);
    }

    fn listxattr(&self, who: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.fs.list_xattr(convert::ino(ino)).map_err(convert::errno);
        // As other file systems do: trusted attributes are for the administrator.
        let shown = |name: &Vec<u8>| who.uid() == 0 || !name.starts_with(b"trusted.");
        let joined =
            |names: Vec<Vec<u8>>| names.into_iter().filter(shown).flat_map(|name| [name, vec![0]].concat()).collect();
        answer_value(names.map(joined), size, reply);
    }

    fn removexattr(&self, _who: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (ino, name) = (convert::ino(ino), name.as_bytes());
        let is_virtual = name == REPORT_ATTRIBUTE.as_bytes() || Setting::named(name).is_some();
        let removed = match name {
            _ if is_virtual => Err(Errno::EPERM),
            _ => check_attribute_name(name).and_then(|()| self.fs.remove_xattr(ino, name).map_err(convert::errno)),
        };
        // Taking away an ACL that is not there succeeds everywhere.
        let is_acl = name == acl::ACCESS || name == acl::DEFAULT;
        let removed =
            removed.or_else(|errno| if is_acl && errno.code() == errno::ENODATA { Ok(()) } else { Err(errno) });
        answer_empty(removed, reply);
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
        let ino = convert::ino(ino);
        let may = if who.uid() != 0 { self.take_privileges(ino) } else { Ok(()) };
        answer_empty(may.and_then(|()| self.allocate(ino, offset, length, mode)), reply);
    }

    fn lseek(&self, _who: &Request, ino: INodeNo, _fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let whence = match whence {
            SEEK_DATA => Whence::Data,
            SEEK_HOLE => Whence::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        let (fs, target) = (self.fs.clone(), convert::ino(ino));
        let seek = move || match fs.open(target).and_then(|file| file.seek(offset, whence)) {
            Ok(found) => reply.offset(found as i64),
            Err(error) => reply.error(convert::errno(error)),
        };
        if self.fs.is_read_only() {
            return seek();
        }
        // If the mount is ending the reply is dropped, which answers EIO.
        let _ = self.notices.send(Notice::WriteBackThen(ino, Box::new(seek)));
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
        let target = convert::ino(target);
        let may = if who.uid() != 0 { self.take_privileges(target) } else { Ok(()) };
        let clone = || {
            let (source, target) = (self.fs.open(convert::ino(source))?, self.fs.open(target)?);
            // The reply counts in 32 bits; whoever copies goes on where it stopped.
            let length = length.min(COPIED_AT_A_TIME);
            self.with_room(|| target.clone_from(&source, source_offset, target_offset, length))
        };
        match may.and_then(|()| clone().map_err(convert::errno)) {
            Ok(cloned) => reply.written(cloned as u32),
            Err(errno) => reply.error(errno),
        }
    }
}
