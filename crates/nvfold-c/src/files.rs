//! Open files: what `open` makes, and reading, writing and positions.
//!
//! A position is locked while a call that uses it lasts, so two threads that read or write by it do not get the same bytes,
//! as POSIX asks. Calls with an offset of their own lock nothing here.
#![forbid(unsafe_code)]

use crate::causality::{self, Followed};
use crate::device::Device;
use crate::failure::{Failure, Outcome};
use crate::paths::{self, LastLink, Start};
use crate::shared;
use crate::status::MODE_BITS;
use crate::written::{note_open, note_write};
use nvfold::{AllocateMode, Attr, File, FileKind, FileSystem, NewInode, Origin, Whence};
use parking_lot::Mutex;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often `open` with O_CREAT looks again when a name comes and goes meanwhile.
const TRIES_MAX: usize = 100;

/// What an open file may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    reads: bool,
    writes: bool,
    /// O_SYNC, O_DSYNC: each write is durable when it returns.
    syncs: bool,
}

/// An open file description: what the descriptors that `dup` makes share.
pub struct Open {
    pub device: Arc<Device>,
    pub file: File,
    pub kind: FileKind,
    /// Says of its bytes in memory that they are its.
    pub followed: Option<Arc<Followed>>,
    access: Access,
    /// O_APPEND: every write goes to the end.
    appends: AtomicBool,
    position: Mutex<u64>,
}

/// Where a write goes.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// To the position, which moves behind it; with O_APPEND to the end.
    Position,
    /// To this offset.
    Offset(u64),
    /// To the end; the position stays.
    End,
    /// As `Position`, but appended or not as this says, whatever O_APPEND says.
    PositionAppending(bool),
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(followed) = self.followed.take() {
            causality::closed(followed);
        }
    }
}

/// Does what `open` does.
pub fn open<'p>(
    device: &Arc<Device>,
    start: impl Into<Start<'p>>,
    path: &[u8],
    flags: c_int,
    mode: u32,
) -> Outcome<Open> {
    let start = start.into();
    let access = check_flags(flags)?;
    device.run(|fs| {
        let attr = find(device, fs, start, path, flags, mode)?;
        check_kind(&attr, &access, flags)?;
        if access.writes && fs.is_read_only() {
            return Err(Failure::new(libc::EROFS, "the device is open for reading alone"));
        }
        let file = fs.open(attr.ino)?;
        // What is reserved behind the end of an empty file goes too.
        if flags & libc::O_TRUNC != 0 && (attr.size > 0 || attr.blocks > 0) {
            shared::change(device, attr.ino, || Ok((file.set_len(0)?, 0..0)))?;
        }
        let mut followed = None;
        if attr.kind == FileKind::Regular {
            note_open(attr.ino, path);
            followed = Followed::new(device.follows_origins, &file);
        }
        let appends = AtomicBool::new(flags & libc::O_APPEND != 0);
        Ok(Open { device: device.clone(), file, kind: attr.kind, followed, access, appends, position: Mutex::new(0) })
    })
}

fn check_flags(flags: c_int) -> Outcome<Access> {
    let (reads, writes) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return Err(Failure::invalid("the flags have neither O_RDONLY nor O_WRONLY nor O_RDWR")),
    };
    let has = |flag: c_int| flags & flag == flag;
    if has(libc::O_TMPFILE) || has(libc::O_PATH) {
        return Err(Failure::new(libc::EOPNOTSUPP, "there is neither O_TMPFILE nor O_PATH here"));
    }
    if has(libc::O_CREAT) && has(libc::O_DIRECTORY) {
        return Err(Failure::invalid("O_CREAT makes no directories; use nvfold_mkdir"));
    }
    if has(libc::O_TRUNC) && !writes {
        return Err(Failure::invalid("O_TRUNC needs O_WRONLY or O_RDWR"));
    }
    Ok(Access { reads, writes, syncs: flags & (libc::O_SYNC | libc::O_DSYNC) != 0 })
}

/// What `open` does with a link at the end of a path. O_EXCL does not follow it, and finds it there. With O_CREAT a `/` at
/// the end is refused, whatever the name leads to.
pub fn last_link(path: &[u8], flags: c_int) -> LastLink {
    match flags & libc::O_CREAT != 0 {
        true if flags & libc::O_EXCL != 0 || path.ends_with(b"/") => LastLink::Name,
        _ if flags & libc::O_NOFOLLOW != 0 => LastLink::Keep,
        _ => LastLink::Follow,
    }
}

/// Finds what is to be opened, or makes it.
fn find(device: &Device, fs: &FileSystem, start: Start<'_>, path: &[u8], flags: c_int, mode: u32) -> Outcome<Attr> {
    let creates = flags & libc::O_CREAT != 0;
    let is_exclusive = creates && flags & libc::O_EXCL != 0;
    let last_link = last_link(path, flags);
    for _ in 0..TRIES_MAX {
        let place = paths::locate(fs, start, path, last_link)?;
        if creates && place.ends_in_slash && place.has_own_name() {
            return Err(Failure::new(libc::EISDIR, "it ends in /"));
        }
        match place.attr {
            Some(_) if is_exclusive => return Err(Failure::new(libc::EEXIST, "it exists")),
            Some(attr) if creates && attr.kind == FileKind::Directory => {
                return Err(Failure::new(libc::EISDIR, "it is a directory"));
            }
            Some(_) => return place.existing(),
            None if !creates => return place.existing(),
            None => match fs.create(place.directory, &place.name, &new_inode(device, FileKind::Regular, mode)) {
                // Somebody else has made it since: that one is opened.
                Err(error) if error.errno() == libc::EEXIST && !is_exclusive => {}
                made => return Ok(made?),
            },
        }
    }
    Err(Failure::new(libc::EAGAIN, "others make and remove it all the time"))
}

fn check_kind(attr: &Attr, access: &Access, flags: c_int) -> Outcome<()> {
    match attr.kind {
        FileKind::Directory if access.writes => Err(Failure::new(libc::EISDIR, "it is a directory")),
        FileKind::Directory => Ok(()),
        _ if flags & libc::O_DIRECTORY != 0 => Err(Failure::new(libc::ENOTDIR, "it is no directory")),
        FileKind::Regular => Ok(()),
        FileKind::Symlink => Err(Failure::new(libc::ELOOP, "it is a symbolic link, and O_NOFOLLOW is set")),
        _ => Err(Failure::new(libc::EOPNOTSUPP, "pipes, sockets and device nodes need a kernel to open them")),
    }
}

/// What something new is, and whose.
pub fn new_inode(device: &Device, kind: FileKind, mode: u32) -> NewInode {
    let mode = mode & MODE_BITS & !device.umask.load(Ordering::Relaxed);
    NewInode { kind, mode, uid: device.uid, gid: device.gid, rdev: 0 }
}

/// An offset that C passes. EINVAL below 0.
pub fn offset(offset: libc::off_t) -> Outcome<u64> {
    u64::try_from(offset).map_err(|_| Failure::invalid(format!("offset {offset} is below 0")))
}

impl Open {
    pub fn run<T>(&self, operation: impl FnOnce(&FileSystem) -> Outcome<T>) -> Outcome<T> {
        self.device.run(operation)
    }

    /// EBADF when it is not open for reading; EISDIR.
    pub fn check_reads(&self) -> Outcome<()> {
        self.check(self.access.reads, "reading")
    }

    /// EBADF when it is not open for writing; EISDIR.
    pub fn check_writes(&self) -> Outcome<()> {
        self.check(self.access.writes, "writing")
    }

    /// Writes go to the end from now on, or to the position: `fcntl` with O_APPEND.
    pub fn set_appends(&self, appends: bool) {
        self.appends.store(appends, Ordering::Relaxed);
    }

    /// Whether writes go to the end.
    pub fn appends(&self) -> bool {
        self.appends.load(Ordering::Relaxed)
    }

    /// EBADF for what is open to append.
    pub fn check_not_appends(&self) -> Outcome<()> {
        if self.appends() { Err(Failure::new(libc::EBADF, "it is open with O_APPEND")) } else { Ok(()) }
    }

    fn check(&self, may: bool, what: &str) -> Outcome<()> {
        match self.kind {
            _ if !may => Err(Failure::new(libc::EBADF, format!("it is not open for {what}"))),
            FileKind::Directory => Err(Failure::new(libc::EISDIR, "it is a directory")),
            _ => Ok(()),
        }
    }

    /// What is known of it, stores to its shared mappings included.
    pub fn attr(&self) -> Outcome<Attr> {
        // Whether they can be written back, `sync` says.
        let _ = shared::write_back(&self.device, self.file.ino());
        self.run(|_| Ok(self.file.attr()))
    }

    fn size(&self) -> Outcome<u64> {
        self.run(|_| Ok(self.file.attr().size))
    }

    /// Makes it durable, stores to its shared mappings included.
    pub fn sync(&self) -> Outcome<()> {
        shared::write_back(&self.device, self.file.ino())?;
        self.run(|_| Ok(self.file.sync()?))
    }

    /// Makes a range of it the same as one of another file; returns how many bytes.
    pub fn clone_range(&self, source: &Open, source_at: u64, at: u64, length: u64) -> Outcome<u64> {
        shared::write_back(&source.device, source.file.ino())?;
        shared::change(&self.device, self.file.ino(), || {
            let cloned = self.run(|_| Ok(self.file.clone_from(&source.file, source_at, at, length)?))?;
            Ok((cloned, at..at + cloned))
        })
    }

    /// Bytes that a read of `length` from an offset can give at most, as the file is now. So no more of the caller's
    /// buffer is touched than there is to put there.
    pub fn readable(&self, offset: u64, length: usize) -> Outcome<usize> {
        let left = self.size()?.saturating_sub(offset);
        Ok(usize::try_from(left).unwrap_or(usize::MAX).min(length))
    }

    /// Reads at an offset.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        let read = self.run(|_| Ok(self.file.read_at(offset, buffer)?))?;
        shared::read_over(&self.device, self.file.ino(), offset, &mut buffer[..read])?;
        Ok(read)
    }

    /// Calls `read` with the current position, and moves the position by what it returns.
    pub fn read_at_position(&self, read: impl FnOnce(u64) -> Outcome<usize>) -> Outcome<(u64, usize)> {
        let mut position = self.position.lock();
        let (at, length) = (*position, read(*position)?);
        *position += length as u64;
        Ok((at, length))
    }

    /// Moves the position to the start, of a directory too; returns it.
    pub fn rewind(&self) -> Outcome<libc::off_t> {
        *self.position.lock() = 0;
        Ok(0)
    }

    /// Writes all of `data`, or nothing. Returns where.
    pub fn write(&self, target: Target, data: &[u8], origins: &[Origin<'_>]) -> Outcome<u64> {
        let write = |offset: Option<u64>| {
            self.run(|_| {
                let (at, shared) = match offset {
                    Some(offset) if origins.is_empty() => self.file.write_at(offset, data).map(|()| (offset, 0))?,
                    Some(offset) => (offset, self.file.write_at_from(offset, data, origins)?),
                    None if origins.is_empty() => (self.file.append(data)?, 0),
                    None => self.file.append_from(data, origins)?,
                };
                if self.access.syncs {
                    self.file.sync()?;
                }
                note_write(&self.device, self.file.ino(), at, data, shared);
                Ok(at)
            })
        };
        let put = |offset: Option<u64>| {
            shared::change(&self.device, self.file.ino(), || {
                let at = write(offset)?;
                Ok((at, at..at + data.len() as u64))
            })
        };
        match target {
            Target::Offset(offset) => put(Some(offset)),
            Target::End => put(None),
            Target::Position => self.write_at_position(self.appends(), data.len(), put),
            Target::PositionAppending(appends) => self.write_at_position(appends, data.len(), put),
        }
    }

    /// Lets `put` write to the position, or for `None` to the end, and moves the position behind it.
    fn write_at_position(
        &self,
        appends: bool,
        length: usize,
        put: impl FnOnce(Option<u64>) -> Outcome<u64>,
    ) -> Outcome<u64> {
        let mut position = self.position.lock();
        let at = put((!appends).then_some(*position))?;
        *position = at + length as u64;
        Ok(at)
    }

    /// Does what `lseek` does. EINVAL, EOVERFLOW; ENXIO for SEEK_DATA and SEEK_HOLE.
    pub fn seek(&self, offset: libc::off_t, whence: c_int) -> Outcome<libc::off_t> {
        if self.kind == FileKind::Directory {
            return Err(Failure::new(libc::EISDIR, "it is a directory; use nvfold_seekdir"));
        }
        let mut position = self.position.lock();
        let find = |whence| {
            let from = u64::try_from(offset).map_err(|_| Failure::new(libc::ENXIO, "the offset is below 0"))?;
            self.run(|_| Ok(self.file.seek(from, whence)?))
        };
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => *position,
            libc::SEEK_END => self.size()?,
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                *position = find(if whence == libc::SEEK_DATA { Whence::Data } else { Whence::Hole })?;
                return Ok(*position as libc::off_t);
            }
            _ => return Err(Failure::invalid(format!("{whence} is no way to seek"))),
        };
        let sum = i128::from(base) + i128::from(offset);
        if sum < 0 {
            return Err(Failure::invalid("the position would be below 0"));
        }
        let sum = libc::off_t::try_from(sum);
        let sum = sum.map_err(|_| Failure::new(libc::EOVERFLOW, "the position would be past the largest file size"))?;
        *position = sum as u64;
        Ok(sum)
    }

    /// Does what `ftruncate` does. EINVAL when it is not open for writing.
    pub fn truncate(&self, length: libc::off_t) -> Outcome<()> {
        let length = offset(length)?;
        if !self.access.writes {
            return Err(Failure::invalid("it is not open for writing"));
        }
        shared::change(&self.device, self.file.ino(), || self.run(|_| Ok((self.file.set_len(length)?, 0..0))))
    }

    /// Drops all content, also of a file that is open for reading alone.
    pub fn make_empty(&self) -> Outcome<()> {
        shared::change(&self.device, self.file.ino(), || self.run(|_| Ok((self.file.set_len(0)?, 0..0))))
    }

    /// `fallocate` with its flags. EOPNOTSUPP for those that there are not.
    pub fn allocate(&self, mode: c_int, at: libc::off_t, length: libc::off_t) -> Outcome<()> {
        use libc::{
            FALLOC_FL_KEEP_SIZE as KEEP_SIZE, FALLOC_FL_PUNCH_HOLE as PUNCH_HOLE, FALLOC_FL_ZERO_RANGE as ZERO_RANGE,
        };
        self.check_writes()?;
        let mode = match mode {
            0 => AllocateMode::Reserve,
            KEEP_SIZE => AllocateMode::ReserveKeepSize,
            flags if flags == PUNCH_HOLE | KEEP_SIZE => AllocateMode::PunchHole,
            ZERO_RANGE => AllocateMode::ZeroRange,
            flags if flags == ZERO_RANGE | KEEP_SIZE => AllocateMode::ZeroRangeKeepSize,
            _ => return Err(Failure::new(libc::EOPNOTSUPP, format!("there is no fallocate with mode {mode:#x}"))),
        };
        let (at, length) = (offset(at)?, u64::try_from(length).unwrap_or(0));
        if length == 0 {
            return Err(Failure::invalid("the length must be above 0"));
        }
        let changed = at..at.saturating_add(length);
        shared::change(&self.device, self.file.ino(), || {
            self.run(|_| Ok((self.file.allocate(at, length, mode)?, changed)))
        })
    }
}
