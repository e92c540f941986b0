//! The words of the API: numbers that get mixed up are types, and each says its unit.

use crate::dedup::Dedup;
use crate::fingerprint::{StrongFunction, WeakFunction};
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
    /// Blocks free to writers.
    pub blocks_available: u64,
    /// Inodes there are or could be.
    pub inodes: u64,
    /// Inodes that could still be made.
    pub inodes_free: u64,
    /// Longest name.
    pub name_bytes_max: u32,
}

/// Which dedup system places data (docs/papers.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Store everything.
    Off,
    /// Share equal 4 KiB blocks as they are written: weak fingerprint, index, byte compare.
    #[default]
    Inline,
    /// Fingerprint as much as pays: the method follows from measured costs and the workload's duplicate ratio.
    NvDedup,
    /// Store now, share later: writes are queued, and a daemon shares what they stored ([`crate::Daemon`]).
    DeNova,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 4] = [Policy::Off, Policy::Inline, Policy::NvDedup, Policy::DeNova];

    /// Its name, in attributes, in options and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Off => "off",
            Policy::Inline => "inline",
            Policy::NvDedup => "nv-dedup",
            Policy::DeNova => "denova",
        }
    }

    /// The policy of this name.
    pub fn named(name: &[u8]) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.name().as_bytes() == name)
    }

    /// The names of all in one line, for messages.
    pub fn names() -> String {
        Policy::ALL.map(Policy::name).join(", ")
    }
}

/// Extended attribute with which a file or directory has a policy of its own for new data: its value is the name of
/// a [`Policy`]. What is made in a directory that has it gets a copy. A value that is no policy's name (of a newer
/// version) counts as none.
pub const POLICY_ATTRIBUTE: &[u8] = b"user.nvfold.dedup";

/// The policy for new data of a file, or of what is made in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyOf {
    /// Its own, from its attribute ([`POLICY_ATTRIBUTE`]).
    Own(Policy),
    /// It has none: that of the mount.
    Mount(Policy),
}

impl PolicyOf {
    /// Which one it is.
    pub fn policy(self) -> Policy {
        match self {
            PolicyOf::Own(policy) | PolicyOf::Mount(policy) => policy,
        }
    }
}

/// How policy `nv-dedup` treats a piece (NV-Dedup 4.4). All but the last are the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Method {
    /// Non_Fin: store it without a fingerprint; the background filler may add one.
    NonFin = 0,
    /// w_s_Fin: a weak fingerprint finds candidates, strong ones decide.
    WSFin = 1,
    /// Str_Fin: both fingerprints are made before anything is looked for.
    StrFin = 2,
    /// w_b_Fin, ours: a weak fingerprint finds candidates, the bytes decide, nothing else is hashed.
    WBFin = 3,
}

impl Method {
    /// All of them, by number.
    pub const ALL: [Method; 4] = [Method::NonFin, Method::WSFin, Method::StrFin, Method::WBFin];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Method::NonFin => "non",
            Method::WSFin => "ws",
            Method::StrFin => "str",
            Method::WBFin => "wb",
        }
    }
}

/// Who chooses the method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MethodChoice {
    /// The cost model, among all four. What Non_Fin stores is watched by its content, one content of 32.
    #[default]
    Auto,
    /// The paper's thresholds, among its three. Periods of Non_Fin and of w_s_Fin alternate.
    Paper,
    /// The user.
    Fixed(Method),
}

impl MethodChoice {
    /// All of them.
    pub const ALL: [MethodChoice; 6] = [
        MethodChoice::Auto,
        MethodChoice::Paper,
        MethodChoice::Fixed(Method::NonFin),
        MethodChoice::Fixed(Method::WSFin),
        MethodChoice::Fixed(Method::StrFin),
        MethodChoice::Fixed(Method::WBFin),
    ];

    /// Its name on the command line: `auto`, `paper`, or that of the method.
    pub fn name(self) -> &'static str {
        match self {
            MethodChoice::Auto => "auto",
            MethodChoice::Paper => "paper",
            MethodChoice::Fixed(method) => method.name(),
        }
    }

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<MethodChoice> {
        MethodChoice::ALL.into_iter().find(|choice| choice.name() == name)
    }
}

/// What must be equal before a piece is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verify {
    /// The bytes, whatever else is equal.
    #[default]
    Bytes,
    /// A strong fingerprint is trusted, as in the paper; methods without one compare bytes.
    Strong,
}

/// What one 4 KiB chunk costs on this device, nanoseconds each: the inputs of the cost model (NV-Dedup, Table 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Writing it, durably.
    pub c: u64,
    /// Its weak fingerprint.
    pub w: u64,
    /// Its strong fingerprint.
    pub s: u64,
    /// Searching the index and writing the entry.
    pub lambda: u64,
    /// Comparing it with a stored one.
    pub v: u64,
}

impl Costs {
    /// Those of the paper (5.2), which has no compare: MD5 and CRC-32 on a CPU of 2014, a write at 1/8 of DRAM speed.
    pub const PAPER: Costs = Costs { c: 9_700, w: 800, s: 6_200, lambda: 100, v: 400 };
}

/// Duplicate ratios from which a method takes less time than storing everything; `None`: at no ratio.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Thresholds {
    /// w_s_Fin: equation 6, (w + lambda) / (c - s).
    pub w_s: Option<f64>,
    /// Str_Fin: equation 4, (s + lambda) / c.
    pub strong: Option<f64>,
    /// w_b_Fin: (w + lambda) / (c - v).
    pub w_b: Option<f64>,
}

/// How policy `nv-dedup` works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvDedupOptions {
    /// Weak fingerprints, those of policy `inline` too. What another function made counts as missing. On a device
    /// with a pm index they are what that is made of, whatever this says.
    pub weak: WeakFunction,
    /// Strong fingerprints; `None`: bytes are compared instead, so w_s_Fin and Str_Fin are w_b_Fin.
    pub strong: Option<StrongFunction>,
    /// What must be equal before a piece is shared.
    pub verify: Verify,
    /// Chunks in a sampling period, 1 at least.
    pub period: u64,
    /// Who chooses the method.
    pub method: MethodChoice,
    /// Costs to go by instead of measured ones. Without a stopwatch nothing is measured, and `None` means
    /// [`Costs::PAPER`].
    pub costs: Option<Costs>,
}

impl Default for NvDedupOptions {
    fn default() -> Self {
        NvDedupOptions {
            weak: WeakFunction::default(),
            strong: Some(StrongFunction::default()),
            verify: Verify::default(),
            period: 50_000,
            method: MethodChoice::default(),
            costs: None,
        }
    }
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
    /// First byte on the device.
    pub address: u64,
    /// Reserved: reads as zeros.
    pub unwritten: bool,
    /// Extents of all files that touch each of its blocks, this one included.
    pub references: u32,
}

/// What policy `nv-dedup` does, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct NvDedupStats {
    /// Who chooses the method.
    pub choice: MethodChoice,
    /// The method of this sampling period.
    pub method: Method,
    /// Duplicate ratio of the last period in which pieces were looked for.
    pub ratio: Option<f64>,
    /// What the model calculates with.
    pub costs: Costs,
    /// They were measured on this device, not given.
    pub measured: bool,
    /// What follows from the costs.
    pub thresholds: Thresholds,
    /// Sampling periods that ended since mount.
    pub periods: u64,
    /// Changes of the method since mount.
    pub switches: u64,
    /// Pieces of each method since mount, by number of the method.
    pub pieces: [u64; Method::ALL.len()],
}

/// Source of monotonic time, nanoseconds since any moment.
pub type Stopwatch = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Where dedup transactions get their TX_IDs (NV-Dedup 4.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Generators {
    /// From a generator of the core's own: transactions on different cores never wait for one another.
    #[default]
    PerCore,
    /// From one for all, as in the paper: one transaction at a time.
    Global,
}

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

/// When policy `denova` shares (DeNOVA V-A).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DedupMode {
    /// As it is written, in the way of the writer.
    Inline,
    /// The daemon works whenever anything is queued.
    #[default]
    Immediate,
    /// The daemon works every `interval_ms`, on `entries` entries of the queue at most: the paper's (n, m).
    Delayed {
        /// Milliseconds from one time to the next, 1 at least.
        interval_ms: u64,
        /// Entries of the queue, 1 at least.
        entries: u64,
    },
}

impl std::fmt::Display for DedupMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DedupMode::Inline => f.write_str("inline"),
            DedupMode::Immediate => f.write_str("immediate"),
            DedupMode::Delayed { interval_ms, entries } => write!(f, "delayed:{interval_ms}:{entries}"),
        }
    }
}

impl DedupMode {
    /// The one that is written `inline`, `immediate` or `delayed:MS:ENTRIES`.
    pub fn parse(text: &str) -> Option<DedupMode> {
        match text {
            "inline" => Some(DedupMode::Inline),
            "immediate" => Some(DedupMode::Immediate),
            _ => {
                let (interval_ms, entries) = text.strip_prefix("delayed:")?.split_once(':')?;
                let positive = |text: &str| text.parse().ok().filter(|number| *number > 0);
                Some(DedupMode::Delayed { interval_ms: positive(interval_ms)?, entries: positive(entries)? })
            }
        }
    }
}

/// How policy `denova` works. Fingerprints and what must be equal are those of [`NvDedupOptions`]; as in the paper
/// they are `weak=sha1`, `strong=sha1`, `verify=strong`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeNovaOptions {
    /// When it shares.
    pub mode: DedupMode,
    /// Percent of one processor that the daemon takes at most, 1 to 100.
    pub cpu_percent: u32,
    /// Below this percentage of free space the daemon heeds no limit.
    pub guard_percent: u32,
    /// When the pm index brings a chain into order.
    pub reorder: ReorderOptions,
}

impl Default for DeNovaOptions {
    fn default() -> Self {
        DeNovaOptions {
            mode: DedupMode::default(),
            cpu_percent: 100,
            guard_percent: 5,
            reorder: ReorderOptions::default(),
        }
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

/// What policy `denova` does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeNovaStats {
    /// When it shares.
    pub mode: DedupMode,
    /// The daemon was told to stop for now.
    pub paused: bool,
    /// Entries in the work queue.
    pub queue_entries: u64,
    /// Bytes of files that they stand for.
    pub queue_bytes: u64,
    /// DRAM of the queue, bytes.
    pub queue_dram_bytes: u64,
    /// How long its oldest entry has waited, ns. 0 without a stopwatch.
    pub lag_ns: u64,
    /// Entries the daemon has dealt with since mount.
    pub dequeued: u64,
    /// Bytes it has looked at since mount.
    pub looked_at_bytes: u64,
    /// Bytes it has shared since mount.
    pub shared_bytes: u64,
    /// Time it has worked since mount, ns. 0 without a stopwatch.
    pub busy_ns: u64,
    /// How long entries had waited in the queue when they were dealt with: upper bound of a class, ns, and how many
    /// of them; ascending, empty classes left out. Empty without a stopwatch.
    pub lingered: Vec<(u64, u64)>,
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

/// How to format a device.
#[derive(Clone, Debug, Default)]
pub struct MkfsOptions {
    /// Identity of the file system (16 random bytes).
    pub uuid: [u8; 16],
    /// Name of the file system, 32 bytes at most.
    pub label: String,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// Format also when the device holds an nvfold file system.
    pub force: bool,
    /// How entries are found.
    pub index: IndexKind,
    /// pm index: which weak fingerprints it is made of.
    pub weak: WeakFunction,
    /// Now.
    pub now: TimeNs,
}

/// Source of time for mtime and ctime.
pub type Clock = Arc<dyn Fn() -> TimeNs + Send + Sync>;

/// How to mount.
#[derive(Clone)]
pub struct MountOptions {
    /// Policy for new data.
    pub policy: Policy,
    /// How policy `nv-dedup` works.
    pub nv_dedup: NvDedupOptions,
    /// How policy `denova` works.
    pub denova: DeNovaOptions,
    /// What costs are measured with; without one they are not, for the core has no clock of its own.
    pub stopwatch: Option<Stopwatch>,
    /// Change nothing.
    pub read_only: bool,
    /// Threads that write at once: this many allocation cursors are kept.
    pub cores: usize,
    /// Source of time.
    pub clock: Clock,
    /// Give freed segments back to the host. `None`: on for memory devices.
    pub discard: Option<bool>,
    /// Where TX_IDs come from.
    pub generators: Generators,
    /// A policy of the caller's own, in place of `policy`.
    pub foreign: Option<Arc<dyn Dedup>>,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            policy: Policy::default(),
            nv_dedup: NvDedupOptions::default(),
            denova: DeNovaOptions::default(),
            stopwatch: None,
            read_only: false,
            cores: 2,
            clock: Arc::new(|| 0),
            discard: None,
            generators: Generators::default(),
            foreign: None,
        }
    }
}

/// What the mount found, and how far it is with the rest (ARCHITECTURE.md, Recovery).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// An orderly unmount had saved the DRAM state, and it was loaded. Otherwise the tables were scanned.
    pub loaded: bool,
    /// Chunk entries that the mount looked at.
    pub entries_scanned: u64,
    /// Inode slots that the mount looked at.
    pub inodes_scanned: u64,
    /// Counts and free space are exact: nothing is left to find out.
    pub reconciled: bool,
    /// An inode cannot be read, so they never will be; run fsck.
    pub stalled: bool,
    /// Steps of reconcile that are done, for a progress report.
    pub steps_done: u64,
    /// Steps in all.
    pub steps_total: u64,
}

/// What one policy saw since mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Which one.
    pub policy: Policy,
    /// Pieces offered to it.
    pub offered: u64,
    /// Pieces shared.
    pub shared: u64,
    /// Pieces whose weak fingerprint matched and whose bytes did not.
    pub collisions: u64,
}

/// The device and its space, told honestly.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Size of the device.
    pub device_bytes: u64,
    /// Bytes that all extents of all files name: what would be stored without sharing.
    pub logical_bytes: u64,
    /// Bytes of data blocks in use.
    pub stored_bytes: u64,
    /// Bytes saved by sharing (blocks named more than once).
    pub saved_bytes: u64,
    /// Bytes of inode tables, logs, xattr blocks and tables in use.
    pub metadata_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Host memory or disk the device takes now, bytes (allocated ranges of the backing file).
    pub device_allocated_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Data blocks in use.
    pub data_blocks: u64,
    /// Chunk entries in use (blocks with a fingerprint or a count).
    pub chunks: u64,
    /// The index.
    pub index: IndexStats,
    /// DRAM of the allocator, bytes.
    pub space_dram_bytes: u64,
    /// DRAM of cached inodes (extents, directories), bytes, estimated from capacities.
    pub inode_dram_bytes: u64,
    /// Inodes cached.
    pub inodes_cached: u64,
    /// Dedup transactions that began since the device was formatted.
    pub transactions: u64,
    /// Pieces offered to the policy since mount.
    pub pieces_offered: u64,
    /// Pieces shared since mount.
    pub pieces_shared: u64,
    /// Pieces whose weak fingerprint matched and whose bytes did not.
    pub weak_collisions: u64,
    /// The same of each policy that looks for equal blocks while data is written.
    pub by_policy: Vec<PolicyStats>,
    /// Policy `nv-dedup`, if new data goes there.
    pub nv_dedup: Option<NvDedupStats>,
    /// Policy `denova`, if new data goes there or anything is queued.
    pub denova: Option<DeNovaStats>,
    /// Chunks that got the fingerprint they lacked in the background since mount.
    pub chunks_filled: u64,
    /// Recovery at mount. Until it is `reconciled`, the figures above leave out what is not known yet.
    pub recovery: Recovery,
}

impl FileKind {
    /// From its byte on the media or in a request; `None` when no kind has it.
    pub fn from_byte(byte: u8) -> Option<FileKind> {
        use FileKind::*;
        [Regular, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}
