//! The shared vocabulary: types that the rooms and the callers of the library exchange.
//!
//! Numbers that could be confused have types, and each says its unit. Types that only one room uses are defined
//! there.

use std::sync::Arc;

/// Number of an inode; the root directory is [`InodeNumber::ROOT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The root directory.
    pub const ROOT: InodeNumber = InodeNumber(1);
}

/// The type of an inode.
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

/// The attributes of an inode, as `stat` returns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: InodeNumber,
    /// Distinguishes this inode from earlier users of the same number.
    pub generation: u32,
    /// Type of the inode.
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
    /// Units of 512 bytes that the extents of this file cover (shared ones count in each file, as `du` expects).
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

/// What a change does to mtime and ctime where it does not give them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// They become the time of the change.
    #[default]
    Stamped,
    /// They stay: whoever changes the file sets them, as a kernel does that caches writes.
    Kept,
}

/// Which attributes to change; `None` leaves one as it is. For times that are not given see `times`.
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
    /// Last change of inode (passed down by writeback caches).
    pub ctime: Option<TimeNs>,
    /// What becomes of ctime, and with a size of mtime, if it is not given.
    pub times: Times,
}

/// The names that lead from the root to the directory of the snapshots. The first one is not listed.
pub const SNAPSHOTS: [&[u8]; 2] = [b".nvfold", b"snapshots"];

/// Type, owner and mode of an inode to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode {
    /// Regular file, fifo, socket or device for `create`.
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

/// What every stored byte is for: `stored + saved + compressed away = logical + dead + padding`. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Usage {
    /// Bytes that the extents of all files map, each counted once per extent.
    pub logical_bytes: u64,
    /// Bytes of data blocks and packed chunks in use.
    pub stored_bytes: u64,
    /// Bytes that are mapped and not stored once more, because another extent maps the same bytes.
    pub saved_bytes: u64,
    /// Bytes saved by compression; each packed chunk counts once.
    pub compressed_away_bytes: u64,
    /// Bytes of chunks in use that no extent maps, and that are not padding.
    pub dead_bytes: u64,
    /// Bytes of blocks in use after the last byte that an extent maps.
    pub padding_bytes: u64,
}

impl Usage {
    /// Returns whether the two sides are equal.
    pub fn adds_up(&self) -> bool {
        let Usage { logical_bytes, stored_bytes, saved_bytes, compressed_away_bytes, dead_bytes, padding_bytes } =
            *self;
        let sum = |parts: [u64; 3]| parts.map(u128::from).iter().sum::<u128>();
        sum([stored_bytes, saved_bytes, compressed_away_bytes]) == sum([logical_bytes, dead_bytes, padding_bytes])
    }
}

/// Requests with origins ([`crate::Origin`]) since mount, to files whose policy follows origins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(default))]
pub struct OriginStats {
    /// Requests that had at least one origin.
    #[cfg_attr(feature = "serde", serde(rename = "writes"))]
    pub requests: u64,
    /// Bytes for which an origin was given, plus those of short gaps before them.
    pub offered_bytes: u64,
    /// Bytes of them that are shared, because they were still equal, in runs of 64 bytes or more.
    pub shared_bytes: u64,
    /// Extents that reference the shared bytes.
    pub shared_extents: u64,
    /// How often a source changed between the compare and the commit, so that the request was compared again.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub changed: u64,
}

/// A change of one extended attribute that is part of another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrChange<'a> {
    /// Its name: any bytes without NUL, 255 at most.
    pub name: &'a [u8],
    /// Its new value, 65536 bytes at most; `None` removes the attribute, if it is there.
    pub value: Option<&'a [u8]>,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The inode that it refers to.
    pub ino: InodeNumber,
    /// The type of that inode.
    pub kind: FileKind,
    /// Pass this to `readdir` to continue after this entry; never 0, stable as long as the entry exists.
    pub cookie: u64,
    /// The name: any bytes but `/` and NUL, 1 to 255 of them.
    pub name: Vec<u8>,
}

/// How `rename` treats an existing target, and what the old name refers to afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it (POSIX).
    Replace,
    /// Fail with EEXIST (RENAME_NOREPLACE).
    NoReplace,
    /// Swap the two names (RENAME_EXCHANGE).
    Exchange,
    /// Leave a whiteout at the old name, in the same commit (RENAME_WHITEOUT): a character device 0:0 without permission
    /// bits, by which an overlay hides a name of its lower layer.
    Whiteout {
        /// Owner of the whiteout.
        uid: u32,
        /// Group of the whiteout, unless the directory has the set-group-ID bit.
        gid: u32,
        /// Replace an existing target; otherwise fail with EEXIST (together with RENAME_NOREPLACE).
        replaces: bool,
    },
}

impl RenameMode {
    /// Returns true if an existing target is an error (EEXIST).
    pub fn refuses_target(self) -> bool {
        matches!(self, RenameMode::NoReplace | RenameMode::Whiteout { replaces: false, .. })
    }
}

/// Whether `set_xattr` may create or replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Creates or replaces the attribute.
    Set,
    /// Fails with EEXIST if it exists (XATTR_CREATE).
    Create,
    /// Fails with ENODATA if it does not exist (XATTR_REPLACE).
    Replace,
}

/// What `fallocate` does to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Reserve space, so that later writes do not fail for lack of it; grow the size if the range ends past it.
    Reserve,
    /// Reserve space; the size stays.
    ReserveKeepSize,
    /// Deallocate: the range reads as zeros; the size stays.
    PunchHole,
    /// Fill with zeros and reserve space; grow the size if the range ends past it.
    ZeroRange,
    /// Fill with zeros and reserve space; the size stays.
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
    /// Free blocks, including the reserve that keeps deletion possible on a full device.
    pub blocks_free: u64,
    /// Blocks that writers can use. On a mount that packs all content, those that content can fill.
    pub blocks_available: u64,
    /// Inodes that exist or could be created.
    pub inodes: u64,
    /// Inodes that could still be created.
    pub inodes_free: u64,
    /// Length of the longest name in bytes.
    pub name_bytes_max: u32,
}

/// The limits of a tree: of a directory with all that is below it, down to directories with limits of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes that its files may hold, reserved ones included; holes and blocks of zeros do not count.
    pub logical_bytes: Option<u64>,
    /// The most inodes that it may have; the directory itself is one of them.
    pub inodes: Option<u64>,
    /// When the tree is to be removed ([`crate::FileSystem::remove_expired`]).
    pub expires: Option<TimeNs>,
}

/// A tree with limits, and what is used of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitedTree {
    /// The directory that has the limits.
    pub top: InodeNumber,
    /// Its limits.
    pub limits: Limits,
    /// Bytes that its files hold.
    pub logical_bytes: u64,
    /// Number of its inodes.
    pub inodes: u64,
    /// True while the inodes below are still being charged, after the limits were set or removed.
    pub is_being_charged: bool,
}

/// A tree that was removed because its time had come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredTree {
    /// Its path from the root.
    pub path: Vec<u8>,
    /// The directory that it was in.
    pub parent: InodeNumber,
    /// What it was: its top, its limits, what it held.
    pub tree: LimitedTree,
}

/// Result of [`crate::File::dedup_range`] or [`crate::File::undedup_range`], in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reshared {
    /// Bytes that were examined.
    pub looked_at_bytes: u64,
    /// Bytes of them that are now in a shared block or in a hole (dedup), or in a block of this file only (undedup).
    pub changed_bytes: u64,
}

impl std::ops::AddAssign for Reshared {
    fn add_assign(&mut self, other: Reshared) {
        self.looked_at_bytes += other.looked_at_bytes;
        self.changed_bytes += other.changed_bytes;
    }
}

/// A part of a file that is contiguous on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedExtent {
    /// Offset of its first byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Device offset of its first byte; for a compressed packed chunk, that of the whole chunk.
    pub address: u64,
    /// Bytes that it takes on the device: fewer if it is compressed.
    pub stored_bytes: u64,
    /// True if space is reserved and nothing was written: it reads as zeros.
    pub unwritten: bool,
    /// Extents of all files that touch each of its blocks, or that reference its packed chunk, including this one.
    pub references: u32,
    /// Class of its packed chunk, which says how the chunk was cut
    /// ([`CLASS_END`](crate::media::chunk_entry::CLASS_END) is the end of a file). 0: it is in blocks.
    pub class: u8,
}

/// What background work has skipped since mount because of bad memory or damage. Every encounter counts, even with
/// the same place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(default))]
pub struct Skipped {
    /// Skipped files, log entries and blocks.
    #[cfg_attr(feature = "serde", serde(rename = "background_skipped"))]
    pub count: u64,
    /// Why the last one was skipped.
    #[cfg_attr(feature = "serde", serde(rename = "background_last_error"))]
    pub last_error: Option<String>,
}

/// Changes that were refused since mount because of a mistake in nvfold itself
/// ([`Error::Refused`](crate::Error::Refused)). Always 0, unless there is such a mistake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(default))]
pub struct Refused {
    /// Refused changes.
    #[cfg_attr(feature = "serde", serde(rename = "refused"))]
    pub count: u64,
    /// Why the last one was refused.
    #[cfg_attr(feature = "serde", serde(rename = "refused_last_error"))]
    pub last_error: Option<String>,
}

/// Panics since mount in work beside the calls ([`Error::Panicked`](crate::Error::Panicked)). Always 0, unless there is a
/// mistake in nvfold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(default))]
pub struct Panicked {
    /// Panics that were caught. Each has stopped its job for its inode, until the next mount.
    #[cfg_attr(feature = "serde", serde(rename = "panicked"))]
    pub count: u64,
    /// The job, the inode and the message of the last one.
    #[cfg_attr(feature = "serde", serde(rename = "panicked_last"))]
    pub last: Option<String>,
}

/// Identifies a file; only `fs` can read it. Work that is deferred records it, and `fs` drops the work if another file
/// has the number by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// Number of the file.
    pub(crate) number: u64,
    /// Distinguishes the files that have had this number.
    pub(crate) generation: u32,
}

/// What is still to be freed of trees that were removed, as far as it is known: the work finds a tree's directories and
/// files on its way through it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(default))]
pub struct Removing {
    /// Directories.
    #[cfg_attr(feature = "serde", serde(rename = "removing_directories"))]
    pub directories: u64,
    /// Files whose directory is freed already.
    #[cfg_attr(feature = "serde", serde(rename = "removing_files"))]
    pub files: u64,
}

/// What happens to a file or directory of a removed tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed<'n> {
    /// It is about to be freed. Whoever opens it now keeps it until it is closed.
    Freed,
    /// A name of it is gone with its directory; a file may have others.
    Name {
        /// The directory.
        directory: InodeNumber,
        /// The name.
        name: &'n [u8],
    },
}

/// Reclamation of segments of packed chunks, since mount (DeEXT III-D).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(default))]
pub struct ReclaimStats {
    /// Bytes in segments of packed chunks that hold no live chunk and cannot be appended to, now.
    #[cfg_attr(feature = "serde", serde(rename = "packed_dead_bytes"))]
    pub dead_bytes: u64,
    /// Segments that were emptied.
    #[cfg_attr(feature = "serde", serde(rename = "reclaimed_segments"))]
    pub segments: u64,
    /// Chunks that moved.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub moved_chunks: u64,
    /// Their bytes.
    #[cfg_attr(feature = "serde", serde(rename = "reclaim_moved_bytes"))]
    pub moved_bytes: u64,
    /// Bytes that became free: those of the segments less those that moved.
    #[cfg_attr(feature = "serde", serde(rename = "reclaim_freed_bytes"))]
    pub freed_bytes: u64,
    /// Blocks and packed chunks that were replaced by smaller ones, because only a few of their bytes were in use.
    pub collected_chunks: u64,
    /// Bytes that this saved.
    pub collected_bytes: u64,
    /// Bytes of the segment that is kept for reclamation, now: 0 or 2 MiB.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub kept_bytes: u64,
}

/// Source of monotonic time, in nanoseconds since an arbitrary moment.
pub type Stopwatch = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The kind of index that finds a chunk entry from a fingerprint. Chosen when the device is formatted;
/// [`crate::convert_index`] changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum IndexKind {
    /// A compact table in DRAM, eight to eleven bytes per chunk.
    #[default]
    Dram = 0,
    /// FACT (DeNOVA IV-C): on the device, no DRAM.
    Pm = 1,
}

impl IndexKind {
    /// All kinds, by number.
    pub const ALL: [IndexKind; 2] = [IndexKind::Dram, IndexKind::Pm];

    /// Returns its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            IndexKind::Dram => "dram",
            IndexKind::Pm => "pm",
        }
    }

    /// Returns the kind with this name.
    pub fn from_name(name: &str) -> Option<IndexKind> {
        IndexKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

#[cfg(feature = "serde")]
crate::serial::by_name! { IndexKind, IndexKind::from_name; }

/// When the daemon reorders a chain of the pm index by reference counts (DeNOVA IV-E): after a lookup found an entry
/// with at least `references` references and read at least `reads` entries until then. `reads` 0: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReorderOptions {
    /// Least reference count of the found entry.
    pub references: u32,
    /// Least number of entries read until it was found.
    pub reads: u32,
}

impl Default for ReorderOptions {
    fn default() -> Self {
        ReorderOptions { references: 4, reads: 2 }
    }
}

/// The memory and the work of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(default))]
pub struct IndexStats {
    /// The kind of index.
    pub kind: IndexKind,
    /// Fingerprints in it.
    pub entries: u64,
    /// DRAM that it takes, in bytes; includes its locks, whose number is constant.
    pub dram_bytes: u64,
    /// Space that it takes on the device in addition to the chunk table, in bytes.
    pub media_bytes: u64,
    /// pm: searches since mount.
    pub lookups: u64,
    /// pm: entries that these searches read.
    pub reads: u64,
    /// pm: chains that were reordered since mount.
    pub reordered: u64,
}

/// Source of time for mtime and ctime.
pub type Clock = Arc<dyn Fn() -> TimeNs + Send + Sync>;

impl FileKind {
    /// Returns the kind with this byte on the media or in a request; `None` if there is none.
    pub fn from_byte(byte: u8) -> Option<FileKind> {
        use FileKind::*;
        [Regular, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}
