//! A FUSE request as a value: the operation, its caller and its arguments.
//!
//! A request has up to three parts: a header, an argument of fixed size, and the rest (names, data). On /dev/fuse
//! they follow one another; with io_uring the kernel puts each part into its own buffer. [`argument_bytes`] gives the
//! length of the second part.

use crate::protocol::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use zerocopy::{FromBytes, Immutable, KnownLayout};

const NS_PER_SECOND: i64 = 1_000_000_000;
/// The bits of the flags of open(2) that say whether to read or to write; 0: to read (O_ACCMODE).
const ACCESS_MODE: u32 = 3;

/// The process that sent a request. The ids are those used for file system permissions (fsuid, fsgid).
pub struct Caller<'q> {
    /// User id, or [`UNKNOWN_ID`]: no user is unknown, so a comparison with it grants nothing.
    pub uid: u32,
    /// Group id, or [`UNKNOWN_ID`].
    pub gid: u32,
    /// Process id; 0 if the request comes from the kernel.
    pub pid: u32,
    /// The queue that delivered the request.
    pub(crate) queue: &'q dyn Queue,
}

/// The id of a caller of whom the kernel does not tell, and that of a user whom a mapping does not contain
/// (FUSE_INVALID_UIDGID). After a handshake with [`ALLOW_IDMAP`](feature::ALLOW_IDMAP), only requests that make an inode
/// tell ids: those that its owner gets.
pub const UNKNOWN_ID: u32 = u32::MAX;

impl Caller<'_> {
    /// Returns whether the kernel has told who it is.
    pub fn is_known(&self) -> bool {
        self.uid != UNKNOWN_ID && self.gid != UNKNOWN_ID
    }

    /// Returns the caller as root, for what the kernel lets only root ask.
    pub fn as_root(&self) -> Caller<'_> {
        Caller { uid: 0, gid: 0, pid: self.pid, queue: self.queue }
    }

    /// Runs `wait`, which may end only after the kernel has got answers to other requests. `file` is the inode of
    /// this request; it must be a regular file.
    pub fn while_waiting<R>(&self, file: u64, wait: impl FnOnce() -> R) -> R {
        self.queue.before_wait(file);
        let result = wait();
        self.queue.after_wait(file);
        result
    }
}

/// A queue of requests, which must know about threads that wait for the kernel.
pub trait Queue: Sync {
    /// A thread is about to wait for the kernel; `file` is the inode of its request.
    fn before_wait(&self, file: u64);

    /// The thread no longer waits.
    fn after_wait(&self, file: u64);
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// The time at which the request is processed.
    Now,
    /// A given time, in nanoseconds since 1970.
    At(i64),
}

/// Attributes to change; `None` leaves an attribute as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Change {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    /// Nanoseconds since 1970.
    pub ctime: Option<i64>,
}

/// An operation. Offsets, lengths and sizes are in bytes; inodes are numbers that the server returned earlier.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Operation<'r> {
    Lookup {
        parent: u64,
        name: &'r OsStr,
    },
    /// Gets no reply.
    Forget {
        ino: u64,
        times: u64,
    },
    /// Several `Forget` in one request. Gets no reply.
    BatchForget {
        all: &'r [ForgetOne],
    },
    /// `has_handle`: the request is about an open file, and the kernel sends it on its own behalf.
    GetAttr {
        ino: u64,
        has_handle: bool,
    },
    /// As `GetAttr`, for a process that asks for the time of birth too. After ENOSYS the kernel sends no more of these.
    StatX {
        ino: u64,
    },
    SetAttr {
        ino: u64,
        change: Change,
    },
    ReadLink {
        ino: u64,
    },
    SymLink {
        parent: u64,
        name: &'r OsStr,
        target: &'r OsStr,
    },
    MkNod {
        parent: u64,
        name: &'r OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
    },
    MkDir {
        parent: u64,
        name: &'r OsStr,
        mode: u32,
        umask: u32,
    },
    Unlink {
        parent: u64,
        name: &'r OsStr,
    },
    RmDir {
        parent: u64,
        name: &'r OsStr,
    },
    Rename {
        parent: u64,
        name: &'r OsStr,
        new_parent: u64,
        new_name: &'r OsStr,
        flags: u32,
    },
    Link {
        ino: u64,
        parent: u64,
        name: &'r OsStr,
    },
    /// `for_writing`: not for reading alone.
    Open {
        ino: u64,
        for_writing: bool,
    },
    Create {
        parent: u64,
        name: &'r OsStr,
        mode: u32,
        umask: u32,
    },
    /// Makes a file without a name in a directory, and opens it (O_TMPFILE).
    TmpFile {
        parent: u64,
        mode: u32,
        umask: u32,
    },
    /// `is_direct`: the read bypasses the kernel's page cache.
    Read {
        ino: u64,
        offset: u64,
        size: u32,
        is_direct: bool,
    },
    Write {
        ino: u64,
        offset: u64,
        data: &'r [u8],
        is_direct: bool,
        from_cache: bool,
        kill_privileges: bool,
    },
    StatFs {
        ino: u64,
    },
    Release,
    FSync,
    Flush,
    SetXattr {
        ino: u64,
        name: &'r OsStr,
        value: &'r [u8],
        flags: u32,
    },
    /// `size` is the room for the value; 0 asks for the length of the value.
    GetXattr {
        ino: u64,
        name: &'r OsStr,
        size: u32,
    },
    ListXattr {
        ino: u64,
        size: u32,
    },
    RemoveXattr {
        ino: u64,
        name: &'r OsStr,
    },
    OpenDir {
        ino: u64,
    },
    ReadDir {
        ino: u64,
        handle: u64,
        offset: u64,
        size: u32,
    },
    ReadDirPlus {
        ino: u64,
        handle: u64,
        offset: u64,
        size: u32,
    },
    ReleaseDir {
        handle: u64,
    },
    FSyncDir,
    Ioctl {
        ino: u64,
        number: u32,
        passed: &'r [u8],
    },
    FAllocate {
        ino: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    LSeek {
        ino: u64,
        offset: i64,
        whence: u32,
    },
    CopyFileRange {
        source: u64,
        source_offset: u64,
        target: u64,
        target_offset: u64,
        length: u64,
    },
    /// The session ends. The server never sees this.
    Destroy,
    /// The reply to a [`NotifyRetrieveOut`]. The server never sees this.
    NotifyReply,
    /// A request that this crate does not know; answered with ENOSYS.
    Unknown,
}

/// Returns the number of bytes of a request's fixed-size argument.
pub fn argument_bytes(opcode: u32) -> usize {
    match opcode {
        opcode::FORGET => size_of::<ForgetIn>(),
        opcode::GETATTR => size_of::<GetAttrIn>(),
        opcode::STATX => size_of::<StatXIn>(),
        opcode::SETATTR => size_of::<SetAttrIn>(),
        opcode::MKNOD => size_of::<MkNodIn>(),
        opcode::MKDIR => size_of::<MkDirIn>(),
        opcode::RENAME => size_of::<RenameIn>(),
        opcode::RENAME2 => size_of::<Rename2In>(),
        opcode::LINK => size_of::<LinkIn>(),
        opcode::OPEN | opcode::OPENDIR => size_of::<OpenIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<ReadIn>(),
        opcode::WRITE => size_of::<WriteIn>(),
        opcode::RELEASE | opcode::RELEASEDIR => size_of::<ReleaseIn>(),
        opcode::FLUSH => size_of::<FlushIn>(),
        opcode::FSYNC | opcode::FSYNCDIR => size_of::<FSyncIn>(),
        opcode::SETXATTR => size_of::<SetXattrIn>(),
        opcode::GETXATTR | opcode::LISTXATTR => size_of::<GetXattrIn>(),
        opcode::CREATE | opcode::TMPFILE => size_of::<CreateIn>(),
        opcode::IOCTL => size_of::<IoctlIn>(),
        opcode::BATCH_FORGET => size_of::<BatchForgetIn>(),
        opcode::FALLOCATE => size_of::<FAllocateIn>(),
        opcode::LSEEK => size_of::<LSeekIn>(),
        opcode::COPY_FILE_RANGE => size_of::<CopyFileRangeIn>(),
        _ => 0,
    }
}

impl<'r> Operation<'r> {
    /// Decodes a request; `None` if it is too short, which a kernel never sends.
    pub fn decode(header: &InHeader, argument: &[u8], rest: &'r [u8]) -> Option<Operation<'r>> {
        let ino = header.nodeid;
        let parent = ino;
        let mut rest = Rest(rest);
        Some(match header.opcode {
            opcode::LOOKUP => Operation::Lookup { parent, name: rest.name()? },
            opcode::FORGET => Operation::Forget { ino, times: read::<ForgetIn>(argument)?.times },
            opcode::BATCH_FORGET => Operation::BatchForget { all: rest.forgets(read(argument)?)? },
            opcode::GETATTR => {
                let flags = read::<GetAttrIn>(argument)?.flags;
                Operation::GetAttr { ino, has_handle: flags & GETATTR_HAS_HANDLE != 0 }
            }
            opcode::STATX => Operation::StatX { ino },
            opcode::SETATTR => Operation::SetAttr { ino, change: change(&read(argument)?) },
            opcode::READLINK => Operation::ReadLink { ino },
            opcode::SYMLINK => Operation::SymLink { parent, name: rest.name()?, target: rest.name()? },
            opcode::MKNOD => {
                let MkNodIn { mode, rdev, umask, .. } = read(argument)?;
                Operation::MkNod { parent, name: rest.name()?, mode, umask, rdev }
            }
            opcode::MKDIR => {
                let MkDirIn { mode, umask } = read(argument)?;
                Operation::MkDir { parent, name: rest.name()?, mode, umask }
            }
            opcode::UNLINK => Operation::Unlink { parent, name: rest.name()? },
            opcode::RMDIR => Operation::RmDir { parent, name: rest.name()? },
            opcode::RENAME => {
                let RenameIn { new_parent } = read(argument)?;
                Operation::Rename { parent, name: rest.name()?, new_parent, new_name: rest.name()?, flags: 0 }
            }
            opcode::RENAME2 => {
                let Rename2In { new_parent, flags, .. } = read(argument)?;
                Operation::Rename { parent, name: rest.name()?, new_parent, new_name: rest.name()?, flags }
            }
            opcode::LINK => {
                let LinkIn { nodeid } = read(argument)?;
                Operation::Link { ino: nodeid, parent, name: rest.name()? }
            }
            opcode::OPEN => {
                let OpenIn { flags, .. } = read(argument)?;
                Operation::Open { ino, for_writing: flags & ACCESS_MODE != 0 }
            }
            opcode::CREATE => {
                let CreateIn { mode, umask, .. } = read(argument)?;
                Operation::Create { parent, name: rest.name()?, mode, umask }
            }
            opcode::TMPFILE => {
                let CreateIn { mode, umask, .. } = read(argument)?;
                Operation::TmpFile { parent, mode, umask }
            }
            opcode::READ => {
                let ReadIn { offset, size, read_flags, .. } = read(argument)?;
                Operation::Read { ino, offset, size, is_direct: read_flags & READ_HAS_LOCK_OWNER != 0 }
            }
            opcode::WRITE => {
                let WriteIn { offset, size, write_flags, .. } = read(argument)?;
                Operation::Write {
                    ino,
                    offset,
                    data: rest.0.get(..size as usize)?,
                    is_direct: write_flags & WRITE_HAS_LOCK_OWNER != 0,
                    from_cache: write_flags & WRITE_FROM_CACHE != 0,
                    kill_privileges: write_flags & WRITE_KILL_SUIDGID != 0,
                }
            }
            opcode::STATFS => Operation::StatFs { ino },
            opcode::RELEASE => Operation::Release,
            opcode::FSYNC => Operation::FSync,
            opcode::FLUSH => Operation::Flush,
            opcode::SETXATTR => {
                let SetXattrIn { size, flags } = read(argument)?;
                Operation::SetXattr { ino, name: rest.name()?, value: rest.0.get(..size as usize)?, flags }
            }
            opcode::GETXATTR => {
                Operation::GetXattr { ino, name: rest.name()?, size: read::<GetXattrIn>(argument)?.size }
            }
            opcode::LISTXATTR => Operation::ListXattr { ino, size: read::<GetXattrIn>(argument)?.size },
            opcode::REMOVEXATTR => Operation::RemoveXattr { ino, name: rest.name()? },
            opcode::OPENDIR => Operation::OpenDir { ino },
            opcode::READDIR => {
                let ReadIn { fh, offset, size, .. } = read(argument)?;
                Operation::ReadDir { ino, handle: fh, offset, size }
            }
            opcode::READDIRPLUS => {
                let ReadIn { fh, offset, size, .. } = read(argument)?;
                Operation::ReadDirPlus { ino, handle: fh, offset, size }
            }
            opcode::RELEASEDIR => Operation::ReleaseDir { handle: read::<ReleaseIn>(argument)?.fh },
            opcode::FSYNCDIR => Operation::FSyncDir,
            opcode::IOCTL => {
                let IoctlIn { number, in_bytes, .. } = read(argument)?;
                Operation::Ioctl { ino, number, passed: rest.0.get(..in_bytes as usize)? }
            }
            opcode::FALLOCATE => {
                let FAllocateIn { offset, length, mode, .. } = read(argument)?;
                Operation::FAllocate { ino, offset, length, mode }
            }
            opcode::LSEEK => {
                let LSeekIn { offset, whence, .. } = read(argument)?;
                Operation::LSeek { ino, offset, whence }
            }
            opcode::COPY_FILE_RANGE => {
                let CopyFileRangeIn { source_offset, target, target_offset, length, .. } = read(argument)?;
                Operation::CopyFileRange { source: ino, source_offset, target, target_offset, length }
            }
            opcode::DESTROY => Operation::Destroy,
            opcode::NOTIFY_REPLY => Operation::NotifyReply,
            _ => Operation::Unknown,
        })
    }

    /// Returns true if other requests should not wait for this one: it moves many bytes, or reaches a disk.
    pub fn takes_long(&self) -> bool {
        match self {
            Operation::Read { size, .. } => *size as usize > SHORT_BYTES,
            Operation::Write { data, .. } => data.len() > SHORT_BYTES,
            Operation::FSync | Operation::FSyncDir | Operation::FAllocate { .. } | Operation::CopyFileRange { .. } => {
                true
            }
            Operation::Ioctl { number, .. } => *number == crate::ASK,
            _ => false,
        }
    }
}

/// Reads and writes of more bytes than this take long.
const SHORT_BYTES: usize = 32 << 10;

fn read<T: FromBytes + Immutable + KnownLayout>(argument: &[u8]) -> Option<T> {
    T::read_from_prefix(argument).ok().map(|(value, _)| value)
}

fn change(asked: &SetAttrIn) -> Change {
    let has = |flag| asked.valid & flag != 0;
    let at = |seconds: i64, ns: u32| seconds.saturating_mul(NS_PER_SECOND).saturating_add(i64::from(ns));
    let time = |set, now, seconds, ns| match () {
        () if has(now) => Some(Time::Now),
        () if has(set) => Some(Time::At(at(seconds, ns))),
        () => None,
    };
    Change {
        mode: has(set_attr::MODE).then_some(asked.mode),
        uid: has(set_attr::UID).then_some(asked.uid),
        gid: has(set_attr::GID).then_some(asked.gid),
        size: has(set_attr::SIZE).then_some(asked.size),
        atime: time(set_attr::ATIME, set_attr::ATIME_NOW, asked.atime, asked.atime_ns),
        mtime: time(set_attr::MTIME, set_attr::MTIME_NOW, asked.mtime, asked.mtime_ns),
        ctime: has(set_attr::CTIME).then(|| at(asked.ctime, asked.ctime_ns)),
    }
}

/// The rest of a request, after its argument.
struct Rest<'r>(&'r [u8]);

impl<'r> Rest<'r> {
    /// Takes the next name, which ends with a NUL.
    fn name(&mut self) -> Option<&'r OsStr> {
        let length = self.0.iter().position(|byte| *byte == 0)?;
        let name = &self.0[..length];
        self.0 = &self.0[length + 1..];
        Some(OsStr::from_bytes(name))
    }

    fn forgets(&self, batch: BatchForgetIn) -> Option<&'r [ForgetOne]> {
        <[ForgetOne]>::ref_from_prefix_with_elems(self.0, batch.count as usize).ok().map(|(all, _)| all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn header(opcode: u32) -> InHeader {
        InHeader { opcode, nodeid: 7, ..InHeader::default() }
    }

    #[test]
    fn names_in_requests_must_end_with_nul() {
        let argument = RenameIn { new_parent: 9 };
        let decoded = Operation::decode(&header(opcode::RENAME), argument.as_bytes(), b"old\0new\0");
        let Some(Operation::Rename { parent: 7, name, new_parent: 9, new_name, flags: 0 }) = decoded else {
            panic!("{decoded:?}");
        };
        assert_eq!((name, new_name), (OsStr::new("old"), OsStr::new("new")));
        assert!(Operation::decode(&header(opcode::LOOKUP), &[], b"without an end").is_none());
    }

    #[test]
    fn an_open_for_writing_is_known_by_its_flags() {
        for (flags, expected) in [(0, false), (1, true), (2, true), (0o2000, false), (0o1002, true)] {
            let argument = OpenIn { flags, open_flags: 0 };
            let decoded = Operation::decode(&header(opcode::OPEN), argument.as_bytes(), &[]);
            assert!(
                matches!(decoded, Some(Operation::Open { for_writing, .. }) if for_writing == expected),
                "{flags:o}"
            );
        }
    }

    #[test]
    fn a_truncated_request_is_rejected() {
        let argument = WriteIn { size: 4, ..WriteIn::default() };
        assert!(Operation::decode(&header(opcode::WRITE), argument.as_bytes(), b"123").is_none());
        assert!(Operation::decode(&header(opcode::WRITE), &argument.as_bytes()[..39], b"1234").is_none());
        let batch = BatchForgetIn { count: 2, unused: 0 };
        assert!(Operation::decode(&header(opcode::BATCH_FORGET), batch.as_bytes(), &[0; 31]).is_none());
    }

    #[test]
    fn times_before_1970_are_decoded_as_negative() {
        let asked = SetAttrIn { valid: set_attr::MTIME, mtime: -2, mtime_ns: 800_000_000, ..SetAttrIn::default() };
        assert_eq!(change(&asked).mtime, Some(Time::At(-1_200_000_000)));
        let asked = SetAttrIn { valid: set_attr::ATIME | set_attr::ATIME_NOW, ..SetAttrIn::default() };
        assert_eq!(change(&asked), Change { atime: Some(Time::Now), ..Change::default() });
    }

    #[test]
    fn the_arguments_of_a_request_have_the_size_of_their_structure() {
        // Every request that has an argument is refused without it.
        for opcode in (0..64).filter(|opcode| argument_bytes(*opcode) > 0) {
            let is_read = !matches!(opcode, opcode::OPENDIR | opcode::RELEASE | opcode::STATX)
                && !matches!(opcode, opcode::FLUSH | opcode::FSYNC | opcode::FSYNCDIR);
            // Aligned, as the kernel's requests are.
            let names = [u64::from_ne_bytes(*b"a\0b\0c\0d\0")];
            let argument = vec![0; argument_bytes(opcode)];
            assert!(Operation::decode(&header(opcode), &argument, names.as_bytes()).is_some(), "{opcode}");
            let short = Operation::decode(&header(opcode), &argument[1..], names.as_bytes());
            assert_eq!(short.is_none(), is_read, "{opcode}");
        }
    }
}
