//! Any directory as a subject, through system calls.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nvfold::{AllocateMode, POLICY_ATTRIBUTE, RenameMode, XattrMode, errno};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::op::{self, Answer, EMPTY_SLOT, Kind, NOT_A_FILE, NodePath, Op, SLOTS, Stat};
use super::{Subject, oracle};
use crate::mount::Mount;

/// A directory, and its mount if it can be remounted.
pub struct Posix {
    name: &'static str,
    root: PathBuf,
    mount: Option<Mount>,
    slots: [Option<File>; SLOTS as usize],
    /// tmpfs has no FALLOC_FL_ZERO_RANGE, so zeros are written instead.
    zero_by_writing: bool,
    /// Which reads and writes go past the page cache (O_DIRECT).
    is_direct: fn(&Op) -> bool,
}

impl Posix {
    /// Makes a subject of a mount, which [`Op::Remount`] remounts.
    pub fn mounted(mount: Mount) -> Posix {
        let zero_by_writing = !mount.is_real();
        let root = mount.path().to_owned();
        Posix {
            name: "the mount",
            root,
            mount: Some(mount),
            slots: Default::default(),
            zero_by_writing,
            is_direct: |_| false,
        }
    }

    /// Makes a subject of a directory on tmpfs.
    pub fn tmpfs(root: &Path) -> Posix {
        let root = root.to_owned();
        Posix {
            name: "tmpfs",
            root,
            mount: None,
            slots: Default::default(),
            zero_by_writing: true,
            is_direct: |_| false,
        }
    }

    /// Makes those reads and writes of files by name go past the page cache.
    pub fn direct(self, is_direct: fn(&Op) -> bool) -> Posix {
        Posix { is_direct, ..self }
    }

    fn path(&self, path: &NodePath) -> PathBuf {
        path.iter().fold(self.root.clone(), |dir, &index| dir.join(OsStr::from_bytes(&op::name(index))))
    }

    /// Opens a regular file; anything else is the agreed error.
    fn open(&self, path: &NodePath) -> io::Result<File> {
        let path = self.path(path);
        if !path.symlink_metadata()?.is_file() {
            return Err(io::Error::from_raw_os_error(NOT_A_FILE));
        }
        File::options().read(true).write(true).open(path)
    }

    /// Opens a regular file for an operation, which may want to go past the page cache.
    fn open_for(&self, path: &NodePath, op: &Op) -> io::Result<File> {
        let file = self.open(path)?;
        if !(self.is_direct)(op) {
            return Ok(file);
        }
        let flags = OFlags::DIRECT.bits() as i32;
        File::options().read(true).write(true).custom_flags(flags).open(self.path(path))
    }

    fn slot(&self, slot: u8) -> io::Result<&File> {
        self.slots[slot as usize].as_ref().ok_or(io::Error::from_raw_os_error(EMPTY_SLOT))
    }

    fn carry_out(&mut self, op: &Op) -> io::Result<Answer> {
        match op {
            Op::Create { path, mode } => {
                done(File::options().write(true).create_new(true).mode(*mode).open(self.path(path)))
            }
            Op::Mkdir { path, mode } => done(rustix::fs::mkdir(self.path(path), Mode::from_raw_mode(*mode))),
            Op::Fifo { path } => {
                let mode = Mode::from_raw_mode(0o644);
                done(rustix::fs::mknodat(CWD, self.path(path), FileType::Fifo, mode, 0))
            }
            Op::Symlink { path, target_len } => {
                let target = oracle::symlink_target(*target_len);
                done(std::os::unix::fs::symlink(OsStr::from_bytes(&target), self.path(path)))
            }
            Op::Link { from, to } => done(std::fs::hard_link(self.path(from), self.path(to))),
            Op::Unlink { path } => done(rustix::fs::unlink(self.path(path))),
            Op::Rmdir { path } => done(rustix::fs::rmdir(self.path(path))),
            Op::RemoveTree { path } => match std::fs::symlink_metadata(self.path(path))?.is_dir() {
                true => done(std::fs::remove_dir_all(self.path(path))),
                false => Err(rustix::io::Errno::NOTDIR.into()),
            },
            Op::Rename { from, to, mode } => {
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                    RenameMode::Whiteout { replaces: true, .. } => RenameFlags::WHITEOUT,
                    RenameMode::Whiteout { .. } => RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
                };
                done(rustix::fs::renameat_with(CWD, self.path(from), CWD, self.path(to), flags))
            }
            Op::Readdir { path } => readdir(&self.path(path)),
            Op::Readlink { path } => {
                let target = std::fs::read_link(self.path(path))?;
                Ok(Answer::Bytes(target.into_os_string().into_vec()))
            }
            Op::Stat { path } => Ok(Answer::Stat(stat(&self.path(path).symlink_metadata()?))),
            Op::Chmod { path, mode } => {
                let path = self.path(path);
                if path.symlink_metadata()?.is_symlink() {
                    return Err(io::Error::from_raw_os_error(NOT_A_FILE));
                }
                done(std::fs::set_permissions(path, std::fs::Permissions::from_mode(*mode)))
            }
            Op::Chown { path, uid, gid } => done(std::os::unix::fs::lchown(self.path(path), Some(*uid), Some(*gid))),
            Op::SetTimes { path, atime, mtime } => {
                let times = Timestamps { last_access: timespec(*atime), last_modification: timespec(*mtime) };
                done(rustix::fs::utimensat(CWD, self.path(path), &times, AtFlags::SYMLINK_NOFOLLOW))
            }
            Op::SetXattr { path, name, seed, len, mode } => {
                let flags = match mode {
                    XattrMode::Set => XattrFlags::empty(),
                    XattrMode::Create => XattrFlags::CREATE,
                    XattrMode::Replace => XattrFlags::REPLACE,
                };
                let name = oracle::xattr_name(*name);
                done(rustix::fs::lsetxattr(self.path(path), &name[..], &op::data(*seed, *len), flags))
            }
            Op::GetXattr { path, name } => {
                let mut value = vec![0; 65536];
                let name = oracle::xattr_name(*name);
                let len = rustix::fs::lgetxattr(self.path(path), &name[..], &mut value[..])?;
                value.truncate(len);
                Ok(Answer::Bytes(value))
            }
            Op::ListXattr { path } => list_xattr(&self.path(path)),
            Op::RemoveXattr { path, name } => {
                done(rustix::fs::lremovexattr(self.path(path), &oracle::xattr_name(*name)[..]))
            }
            Op::CreateWith { path, kind, mode, xattrs } => {
                self.carry_out(&match kind {
                    Kind::Directory => Op::Mkdir { path: path.clone(), mode: *mode },
                    _ => Op::Create { path: path.clone(), mode: *mode },
                })?;
                for (name, seed, len) in xattrs {
                    let (path, mode) = (path.clone(), XattrMode::Set);
                    self.carry_out(&Op::SetXattr { path, name: *name, seed: *seed, len: *len, mode })?;
                }
                Ok(Answer::Done)
            }
            Op::SetTogether { path, mode, size, mtime, xattr } => {
                let file = self.open(path)?;
                let path = path.clone();
                if let Some(size) = size {
                    file.set_len(*size)?;
                }
                if let Some(mode) = mode {
                    self.carry_out(&Op::Chmod { path: path.clone(), mode: *mode })?;
                }
                match *xattr {
                    Some((name, Some((seed, len)))) => {
                        let (path, mode) = (path.clone(), XattrMode::Set);
                        self.carry_out(&Op::SetXattr { path, name, seed, len, mode })?;
                    }
                    // The attribute may be absent.
                    Some((name, None)) => drop(self.carry_out(&Op::RemoveXattr { path: path.clone(), name })),
                    None => {}
                }
                match *mtime {
                    Some(mtime) => self.carry_out(&Op::SetTimes { path, atime: mtime, mtime }),
                    None => Ok(Answer::Done),
                }
            }
            Op::Write { path, offset, len, seed } => {
                let data = Aligned::of(&op::data(*seed, *len));
                done(self.open_for(path, op)?.write_all_at(data.bytes(), *offset))
            }
            Op::Append { path, len, seed } => {
                self.open(path)?;
                let mut file = File::options().append(true).open(self.path(path))?;
                done(file.write_all(&op::data(*seed, *len)))
            }
            Op::Read { path, offset, len } => read(&self.open_for(path, op)?, *offset, *len),
            Op::Truncate { path, size } => done(self.open(path)?.set_len(*size)),
            Op::Allocate { path, offset, len, mode } => self.allocate(&self.open(path)?, *offset, *len, *mode),
            Op::Clone { from, from_offset, to, to_offset, len } => {
                copy_range(&self.open(from)?, *from_offset, &self.open(to)?, *to_offset, *len)
            }
            Op::Copy { from, from_offset, to, to_offset, len, changed } => {
                let (from, to) = (self.open(from)?, self.open(to)?);
                let mut bytes = vec![0; *len as usize];
                let read = from.read_at(&mut bytes, *from_offset)?;
                bytes.truncate(read);
                done(to.write_all_at(&op::with_changes(bytes, *changed), *to_offset))
            }
            Op::Sync { path } => done(self.open(path)?.sync_all()),
            Op::Dedup { path, offset, len } => self.ask_of(path, &format!("dedup-range.{offset}.{len}")),
            Op::Compress { path, offset, len, compression } => {
                self.ask_of(path, &format!("compress-range.{compression}.{offset}.{len}"))
            }
            Op::Undedup { path, offset, len } => self.ask_of(path, &format!("undedup-range.{offset}.{len}")),
            Op::Reclaim => self.ask(&self.root, "reclaim"),
            Op::Drain => self.ask(&self.root, "drain"),
            Op::CloneTree { .. }
            | Op::Snapshot { .. }
            | Op::DeleteSnapshot { .. }
            | Op::SetLimits { .. }
            | Op::GetLimits { .. } => {
                unreachable!("sequences for a mount are generated without them")
            }
            // A mount does these by itself.
            Op::Fill
            | Op::FillStep
            | Op::ReclaimStep { .. }
            | Op::CollectSteps { .. }
            | Op::EmptySegments
            | Op::GrowTable { .. }
            | Op::GrowMounted
            | Op::DrainStep
            | Op::ReorderStep => Ok(Answer::Done),
            Op::SetMode { .. } => Ok(Answer::Done),
            Op::SetPolicy { path, policy } => {
                let path = self.path(path);
                let kind = path.symlink_metadata()?;
                match policy {
                    _ if !kind.is_file() && !kind.is_dir() => Err(io::Error::from_raw_os_error(NOT_A_FILE)),
                    None => done(rustix::fs::lremovexattr(path, POLICY_ATTRIBUTE)),
                    Some(policy) => {
                        let value = policy.name().as_bytes();
                        done(rustix::fs::lsetxattr(path, POLICY_ATTRIBUTE, value, XattrFlags::empty()))
                    }
                }
            }
            Op::GetPolicy { path } => {
                let path = self.path(path);
                let kind = path.symlink_metadata()?;
                if !kind.is_file() && !kind.is_dir() {
                    return Err(io::Error::from_raw_os_error(errno::ENODATA));
                }
                let mut value = vec![0; 100];
                let len = rustix::fs::lgetxattr(path, POLICY_ATTRIBUTE, &mut value[..])?;
                value.truncate(len);
                Ok(Answer::Bytes(value))
            }
            Op::Open { path, slot } => {
                let file = self.open(path)?;
                self.slots[*slot as usize] = Some(file);
                Ok(Answer::Done)
            }
            Op::SlotWrite { slot, offset, len, seed } => {
                done(self.slot(*slot)?.write_all_at(&op::data(*seed, *len), *offset))
            }
            Op::SlotRead { slot, offset, len } => read(self.slot(*slot)?, *offset, *len),
            Op::SlotStat { slot } => Ok(Answer::Stat(stat(&self.slot(*slot)?.metadata()?))),
            Op::Close { slot } => {
                self.slots[*slot as usize] = None;
                Ok(Answer::Done)
            }
            Op::Tmpfile { slot, mode } => {
                let flags = OFlags::TMPFILE | OFlags::RDWR;
                let file = rustix::fs::open(&self.root, flags, Mode::from_raw_mode(*mode))?;
                self.slots[*slot as usize] = Some(file.into());
                Ok(Answer::Done)
            }
            Op::SlotLink { slot, to } => {
                let held = format!("/proc/self/fd/{}", self.slot(*slot)?.as_raw_fd());
                done(rustix::fs::linkat(CWD, held, CWD, self.path(to), AtFlags::SYMLINK_FOLLOW))
            }
            // A mount does it by itself.
            Op::Reconcile | Op::Trim | Op::TrimStep | Op::Rest { .. } => Ok(Answer::Done),
            Op::Remount | Op::Convert | Op::Grow => {
                self.slots = Default::default();
                if let Some(mount) = &mut self.mount {
                    mount.remount();
                }
                Ok(Answer::Done)
            }
            Op::Crash => {
                self.slots = Default::default();
                if let Some(mount) = self.mount.as_mut().filter(|mount| mount.is_real()) {
                    rustix::fs::syncfs(File::open(&self.root)?)?;
                    mount.kill();
                    mount.mount();
                }
                Ok(Answer::Done)
            }
        }
    }

    /// Asks the server of a mount to do something with one of its files.
    fn ask_of(&self, path: &NodePath, request: &str) -> io::Result<Answer> {
        self.open(path)?;
        self.ask(&self.path(path), request)
    }

    /// Asks the server of a mount to do something.
    fn ask(&self, path: &Path, request: &str) -> io::Result<Answer> {
        if self.mount.as_ref().is_some_and(Mount::is_real) {
            let mut answer = [0; 100];
            rustix::fs::getxattr(path, format!("user.nvfold.{request}"), &mut answer[..])?;
        }
        Ok(Answer::Done)
    }

    fn allocate(&self, file: &File, offset: u64, len: u64, mode: AllocateMode) -> io::Result<Answer> {
        let flags = match mode {
            AllocateMode::Reserve => FallocateFlags::empty(),
            AllocateMode::ReserveKeepSize => FallocateFlags::KEEP_SIZE,
            AllocateMode::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            AllocateMode::ZeroRange if self.zero_by_writing => {
                return done(file.write_all_at(&vec![0; len as usize], offset));
            }
            AllocateMode::ZeroRangeKeepSize if self.zero_by_writing => {
                let len = len.min(file.metadata()?.len().saturating_sub(offset));
                return done(file.write_all_at(&vec![0; len as usize], offset));
            }
            AllocateMode::ZeroRange => FallocateFlags::ZERO_RANGE,
            AllocateMode::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        done(rustix::fs::fallocate(file, flags, offset, len))
    }
}

impl Subject for Posix {
    fn name(&self) -> &'static str {
        self.name
    }

    fn apply(&mut self, op: &Op) -> Answer {
        self.carry_out(op).map_err(|error| error.raw_os_error().unwrap_or(errno::EIO)).into()
    }
}

fn readdir(path: &Path) -> io::Result<Answer> {
    if !path.symlink_metadata()?.is_dir() {
        return Err(io::Error::from_raw_os_error(errno::ENOTDIR));
    }
    let mut entries = std::fs::read_dir(path)?
        .map(|entry| {
            let entry = entry?;
            Ok((entry.file_name().into_vec(), kind(entry.file_type()?)))
        })
        .collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    Ok(Answer::Entries(entries))
}

fn read(file: &File, offset: u64, len: u64) -> io::Result<Answer> {
    let mut buffer = Aligned::of(&vec![0xEE; len as usize]);
    let mut count = 0;
    while count < len as usize {
        match file.read_at(&mut buffer.bytes_mut()[count..], offset + count as u64)? {
            0 => break,
            more => count += more,
        }
    }
    Ok(Answer::Bytes(buffer.bytes()[..count].to_vec()))
}

/// Bytes that begin at a page of memory, as O_DIRECT wants them on some file systems.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    const PAGE_BYTES: usize = 4096;

    fn of(content: &[u8]) -> Aligned {
        let mut bytes = vec![0; Aligned::PAGE_BYTES + content.len()];
        let start = bytes.as_ptr().addr().wrapping_neg() % Aligned::PAGE_BYTES;
        bytes.truncate(start + content.len());
        bytes[start..].copy_from_slice(content);
        Aligned { bytes, start }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

fn copy_range(from: &File, from_offset: u64, to: &File, to_offset: u64, len: u64) -> io::Result<Answer> {
    // Once, before the copy: a copy within one file may move the end of the file.
    let len = len.min(from.metadata()?.len().saturating_sub(from_offset));
    let mut copied = 0;
    while copied < len {
        let (mut source, mut target) = (from_offset + copied, to_offset + copied);
        let rest = (len - copied) as usize;
        let count = rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), rest)?;
        if count == 0 {
            break;
        }
        copied += count as u64;
    }
    Ok(Answer::Done)
}

/// Returns the names that a test set; a security module may have added others.
fn list_xattr(path: &Path) -> io::Result<Answer> {
    let mut list = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut list[..])?;
    let names =
        list[..len].split(|&byte| byte == 0).filter(|name| name.starts_with(b"trusted.") || *name == POLICY_ATTRIBUTE);
    let mut names: Vec<_> = names.map(<[u8]>::to_vec).collect();
    names.sort();
    Ok(Answer::Names(names))
}

fn stat(meta: &std::fs::Metadata) -> Stat {
    let kind = kind(meta.file_type());
    let size = matches!(kind, Kind::Regular | Kind::Symlink).then_some(meta.len());
    Stat {
        kind,
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        nlink: meta.nlink() as u32,
        size,
        mtime: Some(meta.mtime() * 1_000_000_000 + meta.mtime_nsec()),
    }
}

fn kind(file_type: std::fs::FileType) -> Kind {
    if file_type.is_dir() {
        Kind::Directory
    } else if file_type.is_symlink() {
        Kind::Symlink
    } else if file_type.is_fifo() {
        Kind::Fifo
    } else if file_type.is_char_device() {
        Kind::Whiteout
    } else {
        Kind::Regular
    }
}

fn timespec(ns: i64) -> Timespec {
    Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) as _ }
}

fn done<T, E: Into<Failure>>(result: Result<T, E>) -> io::Result<Answer> {
    result.map(|_| Answer::Done).map_err(|error| error.into().0)
}

/// Either of the two error types of system calls.
struct Failure(io::Error);

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure(error)
    }
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Failure {
        Failure(error.into())
    }
}
