//! The shared vocabulary: what the rooms and the callers of the library say to one another.
//!
//! Numbers that get mixed up are types, and each says its unit. What only one room knows is defined there.

use std::sync::Arc;

/// Number of an inode; the root directory is [`InodeNumber::ROOT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The root directory.
    pub const ROOT: InodeNumber = InodeNumber(1);
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// Regular file.
    Regular = 1,
    /// Directory.
    Directory = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Named pipe.
    Fifo = 4,
    /// Socket.
    Socket = 5,
    /// Character device.
    CharDevice = 6,
    /// Block device.
    BlockDevice = 7,
}

/// Nanoseconds since 1970-01-01 UTC; negative before.
pub type TimeNs = i64;

/// Everything `stat` tells about an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: InodeNumber,
    /// Tells this inode from earlier users of the same number.
    pub generation: u32,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, 0o7777 at most (no type bits).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links (directories: 2 + subdirectories).
    pub nlink: u32,
    /// Device number of a device node, else 0.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// 512-byte units the extents of this file name (shared ones count in each file, as `du` expects).
    pub blocks: u64,
    /// Last access.
    pub atime: TimeNs,
    /// Last change of content.
    pub mtime: TimeNs,
    /// Last change of inode or content.
    pub ctime: TimeNs,
    /// Birth.
    pub btime: TimeNs,
}

/// Which attributes to change; `None` leaves one as it is. `ctime` is set to now unless given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// New size: truncates or extends (regular files only).
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<TimeNs>,
    /// Last change of content.
    pub mtime: Option<TimeNs>,
    /// Last change of inode (writeback caches hand it down); `None`: now.
    pub ctime: Option<TimeNs>,
}

/// Who creates an inode, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode {
    /// Regular, fifo, socket or device for `create`.
    pub kind: FileKind,
    /// Permission bits after umask.
    pub mode: u32,
    /// Owner. The group is the parent's when the parent has the setgid bit, else `gid`.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for device nodes.
    pub rdev: u32,
}

/// Requests that came with origins ([`crate::Origin`]) since mount, to files whose policy follows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginStats {
    /// Requests that had any.
    pub requests: u64,
    /// Bytes that origins were told for, and those of short gaps before them.
    pub offered_bytes: u64,
    /// Bytes of them that are shared: they were still equal, in runs of 64 bytes or more.
    pub shared_bytes: u64,
    /// Extents that name what is shared.
    pub shared_extents: u64,
    /// How often a source changed between the compare and the commit, so that the request was compared again.
    pub changed: u64,
}

/// A change of one extended attribute that is part of another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrChange<'a> {
    /// Its name: any bytes without NUL, 255 at most.
    pub name: &'a [u8],
    /// Its new value, 65536 bytes at most; `None` takes the attribute away, if it is there.
    pub value: Option<&'a [u8]>,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Inode it names.
    pub ino: InodeNumber,
    /// What that inode is.
    pub kind: FileKind,
    /// Pass this to `readdir` to go on after this entry; never 0, stable as long as the entry lives.
    pub cookie: u64,
    /// The name: any bytes but `/` and NUL, 1 to 255 of them.
    pub name: Vec<u8>,
}

/// How `rename` treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it (POSIX).
    Replace,
    /// Fail with EEXIST (RENAME_NOREPLACE).
    NoReplace,
    /// Swap the two names (RENAME_EXCHANGE).
    Exchange,
}

/// Whether `set_xattr` may create or replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Either.
    Set,
    /// EEXIST when there (XATTR_CREATE).
    Create,
    /// ENODATA when absent (XATTR_REPLACE).
    Replace,
}

/// What `fallocate` does to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Reserve space so that later writes cannot fail for want of it; grow the size if the range ends past it.
    Reserve,
    /// Reserve, size unchanged.
    ReserveKeepSize,
    /// Deallocate: reads give zeros. Size unchanged.
    PunchHole,
    /// Zeros, reserved; the size grows when the range ends past it.
    ZeroRange,
    /// Zeros, reserved, size unchanged.
    ZeroRangeKeepSize,
}

/// What `seek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// SEEK_DATA.
    Data,
    /// SEEK_HOLE.
    Hole,
}

/// Physical space, for statfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes in one block (4096).
    pub block_bytes: u32,
    /// Blocks that data and inodes can use.
    pub blocks: u64,
    /// Blocks free, with the reserve that keeps deletion possible on a full device.
    pub blocks_free: u64,
    /// Blocks free to writers. Of a mount that packs all content, those that content can fill.
    pub blocks_available: u64,
    /// Inodes there are or could be.
    pub inodes: u64,
    /// Inodes that could still be made.
    pub inodes_free: u64,
    /// Longest name.
    pub name_bytes_max: u32,
}

/// What [`crate::File::dedup_range`] or [`crate::File::undedup_range`] did, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reshared {
    /// Looked at.
    pub looked_at_bytes: u64,
    /// Of it: now in a block that something else names too, or in one of its own.
    pub changed_bytes: u64,
}

impl std::ops::AddAssign for Reshared {
    fn add_assign(&mut self, other: Reshared) {
        self.looked_at_bytes += other.looked_at_bytes;
        self.changed_bytes += other.changed_bytes;
    }
}

/// A part of a file that lies together on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedExtent {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// First byte on the device; of a compressed packed chunk that of the whole chunk.
    pub address: u64,
    /// Bytes that it takes there: fewer where it is compressed.
    pub stored_bytes: u64,
    /// Reserved: reads as zeros.
    pub unwritten: bool,
    /// Extents of all files that touch each of its blocks, or name its packed chunk, this one included.
    pub references: u32,
    /// Class of the packed chunk that it lies in, which says how that was cut
    /// ([`CLASS_END`](crate::media::chunk_entry::CLASS_END) is the end of a file). 0: it lies in blocks.
    pub class: u8,
}

/// What work in the background left out since mount, because it could not be read or changed: bad memory, damage. Each
/// time that it comes to such a place counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Files, log entries and blocks.
    pub count: u64,
    /// Why the last one was left out.
    pub last_error: Option<String>,
}

/// Emptying segments of packed chunks, since mount (DeEXT III-D).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimStats {
    /// Segments that were emptied.
    pub segments: u64,
    /// Chunks that moved.
    pub moved_chunks: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Bytes that became free by it: those of the segments less what was moved.
    pub freed_bytes: u64,
    /// Bytes in segments of packed chunks that nothing lives in and nothing can be appended to, now.
    pub dead_bytes: u64,
    /// Blocks and packed chunks that gave way to smaller ones, for only a few of their bytes lived.
    pub collected_chunks: u64,
    /// Bytes that this saved.
    pub collected_bytes: u64,
    /// Bytes of the segment that is kept for it, now: 0 or 2 MiB.
    pub kept_bytes: u64,
}

/// Source of monotonic time, nanoseconds since any moment.
pub type Stopwatch = Arc<dyn Fn() -> u64 + Send + Sync>;

/// How a chunk entry is found from a fingerprint. Chosen when the device is formatted; [`crate::convert_index`]
/// changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum IndexKind {
    /// A compact table in DRAM, eight to eleven bytes a chunk.
    #[default]
    Dram = 0,
    /// FACT (DeNOVA IV-C): on the device, no DRAM.
    Pm = 1,
}

impl IndexKind {
    /// All of them, by number.
    pub const ALL: [IndexKind; 2] = [IndexKind::Dram, IndexKind::Pm];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            IndexKind::Dram => "dram",
            IndexKind::Pm => "pm",
        }
    }

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<IndexKind> {
        IndexKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// When the daemon orders a chain of the pm index by reference counts (DeNOVA IV-E): a lookup found an entry with at
/// least `references`, and had read at least `reads` entries by then. `reads` 0: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReorderOptions {
    /// Reference count of the entry that was found.
    pub references: u32,
    /// Entries read until it was found.
    pub reads: u32,
}

impl Default for ReorderOptions {
    fn default() -> Self {
        ReorderOptions { references: 4, reads: 2 }
    }
}

/// What the index costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Which one it is.
    pub kind: IndexKind,
    /// Fingerprints in it.
    pub entries: u64,
    /// DRAM it takes, bytes; that of locks is counted, it does not grow.
    pub dram_bytes: u64,
    /// Space it takes on the device beside the chunk table, bytes.
    pub media_bytes: u64,
    /// pm: searches since mount.
    pub lookups: u64,
    /// pm: entries that these read.
    pub reads: u64,
    /// pm: chains that were brought into order since mount.
    pub reordered: u64,
}

/// Source of time for mtime and ctime.
pub type Clock = Arc<dyn Fn() -> TimeNs + Send + Sync>;

impl FileKind {
    /// From its byte on the media or in a request; `None` when no kind has it.
    pub fn from_byte(byte: u8) -> Option<FileKind> {
        use FileKind::*;
        [Regular, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}
