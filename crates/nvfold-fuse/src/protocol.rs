//! The bytes of FUSE requests and replies: the kernel's `struct fuse_*` (include/uapi/linux/fuse.h), in its byte order.
//!
//! The layouts are those of protocol version 7.9 and later. Extensions of requests that must be negotiated
//! (FUSE_SETXATTR_EXT, FUSE_SECURITY_CTX, FUSE_CREATE_SUPP_GROUP) are left out, because no server of this crate asks for
//! them. docs/semantics.md lists the whole protocol, with the reason for each part that is left out.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Defines structures of the protocol. All of them are plain numbers without padding.
macro_rules! wire {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty),+ $(,)? })+) => { $(
        $(#[$meta])*
        #[allow(missing_docs)]
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
        pub struct $name { $(pub $field: $type),+ }
    )+ };
}

wire! {
    /// Precedes each request.
    InHeader { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, extensions: u16, padding: u16 }
    /// Precedes each reply. `error` is 0 or a negative errno.
    OutHeader { len: u32, error: i32, unique: u64 }

    /// The attributes that `stat` returns. `size` is in bytes, `blocks` in units of 512 bytes.
    Attr {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64,
        atime_ns: u32, mtime_ns: u32, ctime_ns: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_ns: u32, attr_valid_ns: u32,
        attr: Attr,
    }
    AttrOut { attr_valid: u64, attr_valid_ns: u32, unused: u32, attr: Attr }
    /// As `Attr`, with the time of birth; `mask` says what is valid ([`statx`]).
    StatX {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: StatXTime, btime: StatXTime, ctime: StatXTime, mtime: StatXTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatXTime { seconds: i64, ns: u32, reserved: i32 }
    StatXOut { attr_valid: u64, attr_valid_ns: u32, flags: u32, spare: [u64; 2], stat: StatX }
    OpenOut { fh: u64, open_flags: u32, backing: i32 }
    WriteOut { size: u32, unused: u32 }
    StatFsOut {
        blocks: u64, blocks_free: u64, blocks_available: u64, files: u64, files_free: u64,
        block_bytes: u32, name_bytes_max: u32, fragment_bytes: u32, unused: u32, spare: [u32; 6],
    }
    XattrSizeOut { size: u32, unused: u32 }
    LSeekOut { offset: u64 }
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    Dirent { ino: u64, next: u64, name_bytes: u32, kind: u32 }

    ForgetIn { times: u64 }
    BatchForgetIn { count: u32, unused: u32 }
    ForgetOne { nodeid: u64, times: u64 }
    GetAttrIn { flags: u32, unused: u32, fh: u64 }
    SetAttrIn {
        valid: u32, unused: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atime_ns: u32, mtime_ns: u32, ctime_ns: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    StatXIn { flags: u32, reserved: u32, fh: u64, statx_flags: u32, mask: u32 }
    MkNodIn { mode: u32, rdev: u32, umask: u32, unused: u32 }
    MkDirIn { mode: u32, umask: u32 }
    RenameIn { new_parent: u64 }
    Rename2In { new_parent: u64, flags: u32, unused: u32 }
    LinkIn { nodeid: u64 }
    OpenIn { flags: u32, open_flags: u32 }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, unused: u32 }
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, unused: u32 }
    FSyncIn { fh: u64, flags: u32, unused: u32 }
    SetXattrIn { size: u32, flags: u32 }
    GetXattrIn { size: u32, unused: u32 }
    IoctlIn { fh: u64, flags: u32, number: u32, argument: u64, in_bytes: u32, out_bytes: u32 }
    FAllocateIn { fh: u64, offset: u64, length: u64, mode: u32, unused: u32 }
    LSeekIn { fh: u64, offset: i64, whence: u32, unused: u32 }
    CopyFileRangeIn {
        source_fh: u64, source_offset: u64, target: u64, target_fh: u64, target_offset: u64, length: u64, flags: u64,
    }

    /// The kernel's offer in the handshake. A kernel before Linux 5.17 sends the first four fields alone.
    InitIn { major: u32, minor: u32, read_ahead_bytes: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    /// The answer to it. `flags2` are the upper 32 bits of the features.
    InitOut {
        major: u32, minor: u32, read_ahead_bytes: u32, flags: u32, background: u16, congested: u16,
        max_write_bytes: u32, time_granularity_ns: u32, pages_max: u16, map_alignment: u16, flags2: u32,
        stack_depth: u32, request_timeout: u16, unused: [u16; 11],
    }

    /// A notice: attributes of an inode are old, and pages in the range, unless `offset` is negative.
    NotifyInodeOut { nodeid: u64, offset: i64, length: i64 }
    /// A notice: a name is old. The name follows, with a NUL.
    NotifyEntryOut { parent: u64, name_bytes: u32, flags: u32 }
    /// Asks for cached pages of an inode; the kernel sends them as a request [`opcode::NOTIFY_REPLY`].
    NotifyRetrieveOut { unique: u64, nodeid: u64, offset: u64, size: u32, unused: u32 }

    /// Identifies the request in a ring entry (`commit_id`), and gives the length of its payload.
    RingEntryInOut { flags: u64, commit_id: u64, payload_bytes: u32, unused: u32, reserved: u64 }
    /// The argument of a command on the ring.
    RingCommand { flags: u64, commit_id: u64, queue: u16, unused: [u8; 6] }
}

/// The numbers of notices, which are sent in `OutHeader::error`.
pub const NOTIFY_INODE: i32 = 2;
#[allow(missing_docs)]
pub const NOTIFY_ENTRY: i32 = 3;
#[allow(missing_docs)]
pub const NOTIFY_RETRIEVE: i32 = 5;
/// The ring command that registers an entry.
pub const RING_REGISTER: u32 = 1;
/// The ring command that hands over an answer and takes the next request.
pub const RING_COMMIT_AND_FETCH: u32 = 2;

/// The numbers of the operations.
#[allow(missing_docs)]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
}

/// Features that kernel and server agree on in the handshake (FUSE_ASYNC_READ and so on in the kernel's header). The
/// upper 32 bits are `flags2`.
#[allow(missing_docs)]
pub mod feature {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const SPLICE_WRITE: u64 = 1 << 7;
    pub const SPLICE_MOVE: u64 = 1 << 8;
    pub const SPLICE_READ: u64 = 1 << 9;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// Features have 64 bits.
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// The server accepts idmapped mounts (Linux 6.12). Most requests then do not tell who sent them
    /// ([`Caller::is_known`](crate::Caller::is_known)).
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    /// Requests come by io_uring (Linux 6.14): [`Transport::Ring`](crate::Transport::Ring).
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Flags that say which fields of a [`SetAttrIn`] are valid.
#[allow(missing_docs)]
pub mod set_attr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
}

/// `GetAttrIn::flags`: the request has a file handle.
pub const GETATTR_HAS_HANDLE: u32 = 1 << 0;
/// `ReadIn::read_flags`: the request has a lock owner.
pub const READ_HAS_LOCK_OWNER: u32 = 1 << 1;
/// `WriteIn::write_flags`: the request has a lock owner.
pub const WRITE_HAS_LOCK_OWNER: u32 = 1 << 1;
/// `WriteIn::write_flags`: the kernel writes back pages from its cache.
pub const WRITE_FROM_CACHE: u32 = 1 << 0;
/// `WriteIn::write_flags`: the server must clear set-user-id, set-group-id and file capabilities.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// Flags that say which fields of a [`StatX`] are valid.
pub mod statx {
    /// Everything that `stat` returns.
    pub const BASIC: u32 = 0x7ff;
    /// The time of birth.
    pub const BTIME: u32 = 0x800;
}

/// Flags that say how the kernel treats a file that it opens.
#[allow(missing_docs)]
pub mod open {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of include/uapi/linux/fuse.h.
    #[test]
    fn protocol_structures_have_the_sizes_that_the_kernel_uses() {
        assert_eq!([size_of::<InHeader>(), size_of::<OutHeader>()], [40, 16]);
        assert_eq!([size_of::<Attr>(), size_of::<EntryOut>(), size_of::<AttrOut>()], [88, 128, 104]);
        assert_eq!([size_of::<StatXIn>(), size_of::<StatX>(), size_of::<StatXOut>()], [24, 256, 288]);
        assert_eq!([size_of::<SetAttrIn>(), size_of::<ReadIn>(), size_of::<WriteIn>()], [88, 40, 40]);
        assert_eq!([size_of::<StatFsOut>(), size_of::<CopyFileRangeIn>(), size_of::<IoctlIn>()], [80, 56, 32]);
        assert_eq!(
            [size_of::<RingEntryInOut>(), size_of::<RingCommand>(), size_of::<NotifyRetrieveOut>()],
            [32, 24, 32]
        );
        assert_eq!([size_of::<InitIn>(), size_of::<InitOut>()], [64, 64]);
        assert_eq!([size_of::<NotifyInodeOut>(), size_of::<NotifyEntryOut>()], [24, 16]);
        assert_eq!([size_of::<Dirent>(), size_of::<ReleaseIn>(), size_of::<FAllocateIn>()], [24, 24, 32]);
    }
}
