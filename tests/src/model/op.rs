//! The language: operations, answers, and a generator that lets them meet.

use std::sync::OnceLock;

use nvfold::{AllocateMode, Compression, DedupMode, Policy, RenameMode, Victims, WeakFunction, XattrMode, errno};

/// A path as indices into [`name`]; empty is the root.
pub type NodePath = Vec<u8>;

/// Number of names: few, so that operations meet.
const NAMES: u8 = 7;
/// Slots for open files.
pub const SLOTS: u8 = 3;
/// Largest offset that is used.
const OFFSET_MAX: u64 = 192 << 10;
/// Largest piece of data.
const LEN_MAX: u64 = 40 << 10;

/// Returns the bytes of a name: a short one, the longest possible, or one that is not UTF-8.
pub fn name(index: u8) -> Vec<u8> {
    match index {
        5 => vec![b'n'; 255],
        6 => vec![0xff, 0xfe, b'?', 0x80],
        short => vec![b'a' + short],
    }
}

/// Returns the bytes that a write with this seed writes: pieces that repeat, so that sharing happens. Seeds from
/// [`IN_CHAINS`] on give blocks that are all different and are in few chains of the pm index; from [`TEXT`] on, data
/// that can be compressed; from [`MOVED`] on, parts of the same data at other places; from [`ZEROS`] on, data with runs
/// of zeros.
pub fn data(seed: u64, len: u64) -> Vec<u8> {
    if let Some(number) = seed.checked_sub(ZEROS) {
        return zeros(number, len);
    }
    if let Some(number) = seed.checked_sub(MOVED) {
        return moved(number, len);
    }
    if let Some(number) = seed.checked_sub(TEXT) {
        return text(number, len);
    }
    if let Some(number) = seed.checked_sub(IN_CHAINS) {
        return in_chains(number, len);
    }
    let mut bytes = vec![0; len as usize];
    crate::random::fill(&mut fastrand::Rng::with_seed(seed), &mut bytes);
    bytes
}

/// Returns the answer to [`Op::GetLimits`]: the limits of inodes and bytes, and the number of inodes.
pub fn limits(of: Option<(Option<u64>, Option<u64>, u64)>) -> Answer {
    Answer::Bytes(format!("{of:?}").into_bytes())
}

/// Returns what a [`Op::Copy`] writes: these bytes with so many of them changed.
pub fn with_changes(mut bytes: Vec<u8>, changed: u8) -> Vec<u8> {
    let (count, len) = (usize::from(changed), bytes.len());
    (1..=count).filter(|_| len > 0).for_each(|at| bytes[len * at / (count + 1)] ^= 0x55);
    bytes
}

/// The first seed of data that can be compressed.
pub const TEXT: u64 = 1 << 41;

/// Returns lines that differ in few bytes.
fn text(number: u64, len: u64) -> Vec<u8> {
    let lines = (0u64..).flat_map(|line| format!("line {} of text {number}\n", line * line % 977).into_bytes());
    lines.take(len as usize).collect()
}

/// The first seed of data that repeats at other places.
pub const MOVED: u64 = 1 << 42;
/// Number of seeds from there on that begin at different places.
pub const MOVED_COUNT: u64 = 2 * POOL_BYTES / MOVED_STEP;
/// Length of the noise, and of the text, that moved data is part of.
const POOL_BYTES: u64 = 1 << 20;
/// Distance between the beginnings of two seeds: no multiple of a unit that anything is cut by.
const MOVED_STEP: u64 = 1789;

/// Returns a part of a long noise (even numbers) or of a long text (odd numbers) that begins where the number says.
fn moved(number: u64, len: u64) -> Vec<u8> {
    static POOLS: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let pools = POOLS.get_or_init(|| {
        let mut noise = vec![0; POOL_BYTES as usize];
        let mut random = fastrand::Rng::with_seed(MOVED);
        random.fill(&mut noise);
        let lines = std::iter::repeat_with(|| format!("{} is one of many lines\n", random.u32(..)).into_bytes());
        [noise, lines.flatten().take(POOL_BYTES as usize).collect()]
    });
    let start = number / 2 * MOVED_STEP % POOL_BYTES;
    pools[number as usize % 2].iter().cycle().skip(start as usize).take(len as usize).copied().collect()
}

/// The first seed of data with runs of zeros.
pub const ZEROS: u64 = 1 << 43;
/// Number of seeds from there on that differ.
pub const ZEROS_COUNT: u64 = 12;

/// Returns zeros alone (number 0), or runs of zeros and runs of noise that begin and end anywhere. Runs of some numbers
/// are whole blocks if the data begins at one.
fn zeros(number: u64, len: u64) -> Vec<u8> {
    const RUN_MAX: usize = 12 << 10;
    let mut bytes = vec![0; len as usize];
    let mut random = fastrand::Rng::with_seed(number);
    let unit = if number.is_multiple_of(2) { 4096 } else { 1 };
    let (mut at, mut is_zero) = (0, number.is_multiple_of(3));
    while number > 0 && at < bytes.len() {
        let end = (at + random.usize(1..RUN_MAX).next_multiple_of(unit)).min(bytes.len());
        if !is_zero {
            random.fill(&mut bytes[at..end]);
        }
        (at, is_zero) = (end, !is_zero);
    }
    bytes
}

/// The first seed of data whose blocks are in few chains.
pub const IN_CHAINS: u64 = 1 << 40;
/// Number of seeds from there on whose blocks all differ.
pub const IN_CHAINS_COUNT: u64 = 24;
/// Number of blocks of such a seed before the blocks of the next begin.
const IN_CHAINS_BLOCKS: usize = 4;

/// Returns blocks whose fingerprints begin alike; four neighbouring seeds have four neighbouring prefixes. So the
/// chains are long, and the direct nodes at which they begin share a line.
fn in_chains(number: u64, len: u64) -> Vec<u8> {
    const CHAINS: usize = 4;
    /// Devices up to 16 MiB have direct areas for prefixes of at most so many bits.
    const PREFIX_BITS: u32 = 12;
    const EACH: usize = IN_CHAINS_COUNT as usize / CHAINS * IN_CHAINS_BLOCKS;
    static FOUND: OnceLock<[Vec<Vec<u8>>; CHAINS]> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let mut found: [Vec<Vec<u8>>; CHAINS] = Default::default();
        let mut block = vec![0xC5; 4096];
        for counter in 0u64.. {
            block[..8].copy_from_slice(&counter.to_le_bytes());
            let prefix = WeakFunction::Xxh3.of(&block) >> (32 - PREFIX_BITS);
            match found.get_mut(prefix as usize) {
                Some(chain) if chain.len() < EACH => chain.push(block.clone()),
                _ => continue,
            }
            if found.iter().all(|chain| chain.len() == EACH) {
                break;
            }
        }
        found
    });
    let (chain, first) = (number as usize % CHAINS, number as usize / CHAINS * IN_CHAINS_BLOCKS);
    let blocks = (first..first + len.div_ceil(4096) as usize).flat_map(|at| &found[chain][at % EACH]);
    blocks.copied().take(len as usize).collect()
}

/// One operation. Data operations need a regular file and answer EINVAL on anything else.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Op {
    Create {
        path: NodePath,
        mode: u32,
    },
    Mkdir {
        path: NodePath,
        mode: u32,
    },
    Fifo {
        path: NodePath,
    },
    Symlink {
        path: NodePath,
        target_len: u64,
    },
    Link {
        from: NodePath,
        to: NodePath,
    },
    Unlink {
        path: NodePath,
    },
    Rmdir {
        path: NodePath,
    },
    /// Removes a directory with all that is below it, and frees it.
    RemoveTree {
        path: NodePath,
    },
    Rename {
        from: NodePath,
        to: NodePath,
        mode: RenameMode,
    },
    Readdir {
        path: NodePath,
    },
    Readlink {
        path: NodePath,
    },
    Stat {
        path: NodePath,
    },
    Chmod {
        path: NodePath,
        mode: u32,
    },
    Chown {
        path: NodePath,
        uid: u32,
        gid: u32,
    },
    SetTimes {
        path: NodePath,
        atime: i64,
        mtime: i64,
    },
    SetXattr {
        path: NodePath,
        name: u8,
        seed: u64,
        len: u64,
        mode: XattrMode,
    },
    GetXattr {
        path: NodePath,
        name: u8,
    },
    ListXattr {
        path: NodePath,
    },
    RemoveXattr {
        path: NodePath,
        name: u8,
    },
    /// Makes a regular file or a directory with extended attributes: name, seed and length of each. One call of the
    /// library; a mount needs several.
    CreateWith {
        path: NodePath,
        kind: Kind,
        mode: u32,
        xattrs: Vec<(u8, u64, u64)>,
    },
    /// Changes several attributes of a regular file together; an extended one is set by seed and length, or removed
    /// if it exists. One call of the library; a mount needs several.
    SetTogether {
        path: NodePath,
        mode: Option<u32>,
        size: Option<u64>,
        mtime: Option<i64>,
        xattr: Option<(u8, Option<(u64, u64)>)>,
    },
    Write {
        path: NodePath,
        offset: u64,
        len: u64,
        seed: u64,
    },
    Append {
        path: NodePath,
        len: u64,
        seed: u64,
    },
    Read {
        path: NodePath,
        offset: u64,
        len: u64,
    },
    Truncate {
        path: NodePath,
        size: u64,
    },
    Allocate {
        path: NodePath,
        offset: u64,
        len: u64,
        mode: AllocateMode,
    },
    Clone {
        from: NodePath,
        from_offset: u64,
        to: NodePath,
        to_offset: u64,
        len: u64,
    },
    /// Writes the content of another file, with some bytes changed, and tells the library where it comes from.
    Copy {
        from: NodePath,
        from_offset: u64,
        to: NodePath,
        to_offset: u64,
        len: u64,
        /// How many bytes are changed.
        changed: u8,
    },
    /// Clones a directory with all that is below it. The other operations, none of which remounts, are done between the
    /// steps of the clone, after its instant; those that are left, after it.
    CloneTree {
        from: NodePath,
        to: NodePath,
        meanwhile: Vec<Op>,
    },
    /// Makes a snapshot of a directory. No other operation sees it.
    Snapshot {
        from: NodePath,
        name: u8,
    },
    /// Deletes it.
    DeleteSnapshot {
        name: u8,
    },
    /// Sets the limits of a tree; without any, they are removed.
    SetLimits {
        path: NodePath,
        inodes: Option<u64>,
        logical_bytes: Option<u64>,
    },
    /// Asks for the limits of the tree that an inode is charged to, and how many inodes it has.
    GetLimits {
        path: NodePath,
    },
    Sync {
        path: NodePath,
    },
    /// Shares blocks of the file with equal ones. Nothing that can be read changes.
    Dedup {
        path: NodePath,
        offset: u64,
        len: u64,
    },
    /// The same, and compresses packed chunks. Nothing that can be read changes.
    Compress {
        path: NodePath,
        offset: u64,
        len: u64,
        compression: Compression,
    },
    /// Gives blocks of the file their own copies. Nothing that can be read changes.
    Undedup {
        path: NodePath,
        offset: u64,
        len: u64,
    },
    /// Does the policy's background work to its end. Nothing that can be read changes.
    Fill,
    /// Does one step of this work. Nothing that can be read changes.
    FillStep,
    /// Empties segments of packed chunks as long as that frees space. Nothing that can be read changes.
    Reclaim,
    /// Does one step of that: moves chunks, or collects the parts of one that are in use. Nothing that can be read
    /// changes.
    ReclaimStep {
        victims: Victims,
    },
    /// Does so many steps of a collection, which begins if none is under way, and may end before. Nothing that can be
    /// read changes.
    CollectSteps {
        steps: u8,
    },
    /// Empties segments of blocks, as an operation does that needs a whole segment. Nothing that can be read changes.
    EmptySegments,
    /// Grows the inode table up to a part, to which new inodes go then. Nothing that can be read changes.
    GrowTable {
        part: u8,
    },
    /// Does one step of sharing the queue of policy denova. Nothing that can be read changes.
    DrainStep,
    /// Does all of these steps, until the queue is empty.
    Drain,
    /// Does one step of reordering a chain of the pm index, if a search asked for it. Nothing that can be read
    /// changes.
    ReorderStep,
    /// Sets when policy denova shares from now on. Nothing that can be read changes.
    SetMode {
        mode: DedupMode,
    },
    /// Closes all slots, unmounts, converts the device to the other index and mounts it again.
    Convert,
    /// Closes all slots, unmounts, makes the file system as long as its device and mounts it again.
    Grow,
    /// Makes the file system as long as its device while it is mounted. Nothing that can be read changes.
    GrowMounted,
    /// Gives a file or directory its own policy, or removes it. EINVAL on anything else.
    SetPolicy {
        path: NodePath,
        policy: Option<Policy>,
    },
    GetPolicy {
        path: NodePath,
    },
    /// Keeps the file open in a slot, also past its unlinking.
    Open {
        path: NodePath,
        slot: u8,
    },
    SlotWrite {
        slot: u8,
        offset: u64,
        len: u64,
        seed: u64,
    },
    SlotRead {
        slot: u8,
        offset: u64,
        len: u64,
    },
    SlotStat {
        slot: u8,
    },
    Close {
        slot: u8,
    },
    /// Makes a file without a name, open in a slot.
    Tmpfile {
        slot: u8,
        mode: u32,
    },
    /// Gives the file of a slot a name.
    SlotLink {
        slot: u8,
        to: NodePath,
    },
    /// Completes everything that a mount after a crash left for the background.
    Reconcile,
    /// Gives the memory of free segments back to the host. Nothing that can be read changes.
    Trim,
    /// Does one step of that. Nothing that can be read changes.
    TrimStep,
    /// Lets time pass for the background, where the subject has a clock of its own.
    Rest {
        ms: u64,
    },
    /// Closes all slots, unmounts, checks and mounts again.
    Remount,
    /// Closes all slots and crashes: the process ends without unmounting. Everything that was acknowledged (over the
    /// mount: and synced) must be there after the next mount.
    Crash,
}

/// The kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Kind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    /// A character device 0:0.
    Whiteout,
}

/// The part of `stat` that a file system may not choose.
#[derive(Clone, Debug, PartialEq)]
pub struct Stat {
    /// Its kind.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u32,
    /// Bytes, of a regular file or symlink.
    pub size: Option<u64>,
    /// Modification time; the oracle knows it only as long as the last change set it.
    pub mtime: Option<i64>,
}

/// The result of an operation.
#[derive(Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Answer {
    Done,
    Errno(i32),
    Bytes(Vec<u8>),
    /// Sorted.
    Entries(Vec<(Vec<u8>, Kind)>),
    /// Sorted.
    Names(Vec<Vec<u8>>),
    Stat(Stat),
}

impl Answer {
    /// Returns whether the answer equals the oracle's, in everything that the oracle knows.
    pub fn agrees_with(&self, expected: &Answer) -> bool {
        match (self, expected) {
            (Answer::Stat(got), Answer::Stat(want)) if want.mtime.is_none() => {
                Stat { mtime: None, ..got.clone() } == *want
            }
            _ => self == expected,
        }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Answer::Done => write!(f, "done"),
            Answer::Errno(number) => {
                write!(f, "{}", std::io::Error::from_raw_os_error(*number))
            }
            Answer::Bytes(bytes) => {
                write!(f, "{} bytes with CRC {:08x}", bytes.len(), crc32c::crc32c(bytes))
            }
            Answer::Entries(entries) => {
                let shown: Vec<_> =
                    entries.iter().map(|(name, kind)| (name.escape_ascii().to_string(), kind)).collect();
                write!(f, "{shown:?}")
            }
            Answer::Names(names) => {
                let shown: Vec<_> = names.iter().map(|name| name.escape_ascii().to_string()).collect();
                write!(f, "{shown:?}")
            }
            Answer::Stat(stat) => write!(f, "{stat:?}"),
        }
    }
}

impl From<Result<Answer, i32>> for Answer {
    fn from(result: Result<Answer, i32>) -> Answer {
        result.unwrap_or_else(Answer::Errno)
    }
}

/// EINVAL, the agreed answer of a data operation on anything but a regular file.
pub const NOT_A_FILE: i32 = errno::EINVAL;
/// EBADF, the agreed answer on an empty slot.
pub const EMPTY_SLOT: i32 = 9;

/// Returns a random sequence; one operation in `remount_every` is a remount or a crash (0: none).
pub fn generate(random: &mut fastrand::Rng, count: usize, remount_every: usize) -> Vec<Op> {
    (0..count)
        .map(|_| {
            if remount_every > 0 && random.usize(0..remount_every) == 0 {
                if random.bool() { Op::Remount } else { Op::Crash }
            } else {
                one(random)
            }
        })
        .collect()
}

/// Returns a random sequence in which one operation in eight clones a tree, or uses a snapshot or limits. For subjects that are
/// the library.
pub fn generate_with_trees(random: &mut fastrand::Rng, count: usize, remount_every: usize) -> Vec<Op> {
    let mut ops = Vec::new();
    for op in generate(random, count, remount_every) {
        match random.u8(0..60) {
            0..3 => {
                // A name that no other operation uses: when a clone gets its name, among the others, is not known.
                let to = vec![NAMES];
                // What a removed tree holds is charged until it is freed, and it is freed after the clone.
                let meanwhile = (0..random.usize(0..12)).map(|_| one(random));
                let meanwhile = meanwhile.filter(|op| !matches!(op, Op::RemoveTree { .. })).collect();
                ops.push(Op::CloneTree { from: path(random), to: to.clone(), meanwhile });
                ops.push(Op::Rename { from: to.clone(), to: path(random), mode: rename_mode(random) });
                // It may not be allowed to move into a limited tree.
                ops.push(Op::RemoveTree { path: to });
            }
            3 => ops.push(Op::Snapshot { from: path(random), name: random.u8(0..3) }),
            4 => ops.push(Op::DeleteSnapshot { name: random.u8(0..3) }),
            5..7 => ops.push(set_limits(random)),
            7 => ops.push(Op::GetLimits { path: path(random) }),
            _ => ops.push(op),
        }
    }
    ops
}

/// Half of the limits are so low that they are met.
fn set_limits(random: &mut fastrand::Rng) -> Op {
    let inodes = [None, Some(random.u64(0..12)), Some(random.u64(5..40)), Some(1 << 20)][random.usize(0..4)];
    let logical_bytes = random.bool().then_some(1 << 40);
    Op::SetLimits { path: path(random), inodes, logical_bytes }
}

fn one(random: &mut fastrand::Rng) -> Op {
    let path = path(random);
    let seed = match random.u8(0..8) {
        0..2 => IN_CHAINS + random.u64(0..IN_CHAINS_COUNT),
        2 => ZEROS + random.u64(0..ZEROS_COUNT),
        _ => random.u64(0..40),
    };
    let slot = random.u8(0..SLOTS);
    let offset = offset(random);
    let len = random.u64(0..=LEN_MAX);
    let xattr = random.u8(0..4);
    match random.u8(0..114) {
        0..9 => Op::Create { path, mode: mode(random) },
        9..14 => Op::Mkdir { path, mode: mode(random) | 0o700 },
        14 => Op::Fifo { path },
        15..17 => Op::Symlink { path, target_len: [1, 30, 200, 4095][random.usize(0..4)] },
        17..21 => Op::Link { from: path, to: self::path(random) },
        21..26 => Op::Unlink { path },
        27 if seed % 4 == 0 => Op::RemoveTree { path },
        26..28 => Op::Rmdir { path },
        28..36 => Op::Rename { from: path, to: self::path(random), mode: rename_mode(random) },
        36..39 => Op::Readdir { path: prefix(random, path) },
        39 => Op::Readlink { path },
        40..43 => Op::Stat { path: prefix(random, path) },
        43..45 => Op::Chmod { path, mode: mode(random) },
        45 => Op::Chown { path, uid: random.u32(0..3), gid: random.u32(0..3) },
        46..48 => Op::SetTimes { path, atime: time(random), mtime: time(random) },
        48..51 => {
            let len = xattr_len(random);
            let mode = [XattrMode::Set, XattrMode::Create, XattrMode::Replace][random.usize(0..3)];
            Op::SetXattr { path, name: xattr, seed, len, mode }
        }
        51 => Op::GetXattr { path, name: xattr },
        52 => Op::ListXattr { path },
        53 => Op::RemoveXattr { path, name: xattr },
        54..64 => Op::Write { path, offset, len, seed },
        64..66 => Op::Append { path, len, seed },
        66..71 => Op::Read { path, offset, len },
        71..75 => Op::Truncate { path, size: offset },
        75..80 => Op::Allocate { path, offset, len: len.max(1), mode: allocate_mode(random) },
        80..83 => {
            let (to, to_offset, changed) = (self::path(random), self::offset(random), random.u8(0..4));
            Op::Copy { from: path, from_offset: offset, to, to_offset, len, changed }
        }
        83..86 => {
            Op::Clone { from: path, from_offset: offset, to: self::path(random), to_offset: self::offset(random), len }
        }
        86 => Op::Sync { path },
        87..90 => Op::Open { path, slot },
        90..93 => Op::SlotWrite { slot, offset, len, seed },
        93..96 => Op::SlotRead { slot, offset, len },
        96..98 => Op::SlotStat { slot },
        98..100 => Op::Close { slot },
        100..102 => Op::Dedup { path, offset: offset / 2, len: 4 * len },
        102..104 => Op::Undedup { path, offset: offset / 2, len: 4 * len },
        104 => Op::SetPolicy { path, policy: Policy::ALL.get(random.usize(0..=Policy::ALL.len())).copied() },
        105 => Op::Fill,
        106..109 => Op::DrainStep,
        109 => {
            let mode = dedup_mode(random);
            [Op::Drain, Op::ReorderStep, Op::SetMode { mode }, Op::Reclaim][random.usize(0..4)].clone()
        }
        110 => Op::GetPolicy { path },
        111 => {
            let kind = [Kind::Regular, Kind::Directory][random.usize(0..2)];
            let xattrs = (0..random.u8(1..4)).map(|name| (name, seed, xattr_len(random))).collect();
            Op::CreateWith { path, kind, mode: mode(random) | 0o700, xattrs }
        }
        _ => {
            let mut maybe = || random.bool();
            let (has_mode, has_size, has_time, has_xattr, is_set) = (maybe(), maybe(), maybe(), maybe(), maybe());
            let value = is_set.then(|| (seed, xattr_len(random)));
            Op::SetTogether {
                path,
                mode: has_mode.then(|| mode(random)),
                size: has_size.then_some(offset),
                mtime: has_time.then(|| time(random)),
                xattr: has_xattr.then_some((xattr, value)),
            }
        }
    }
}

fn xattr_len(random: &mut fastrand::Rng) -> u64 {
    [0, 1, 100, 3000, 20_000][random.usize(0..5)]
}

fn path(random: &mut fastrand::Rng) -> NodePath {
    let depth = [1, 1, 1, 2, 2, 3][random.usize(0..6)];
    (0..depth).map(|_| random.u8(0..NAMES)).collect()
}

/// Returns the path or its parent, so that the root is used too.
fn prefix(random: &mut fastrand::Rng, mut path: NodePath) -> NodePath {
    if random.bool() {
        path.pop();
    }
    path
}

/// Returns an offset; half of them are at block boundaries or next to one.
fn offset(random: &mut fastrand::Rng) -> u64 {
    let any = random.u64(0..OFFSET_MAX);
    match random.u8(0..4) {
        0 => any / 4096 * 4096,
        1 => (any / 4096 * 4096 + 4096).saturating_sub(random.u64(0..3)),
        _ => any,
    }
}

fn mode(random: &mut fastrand::Rng) -> u32 {
    [0o644, 0o600, 0o755, 0o400, 0o700, 0o444][random.usize(0..6)]
}

fn time(random: &mut fastrand::Rng) -> i64 {
    random.i64(1..4_000_000_000_000_000_000)
}

/// Draws a mode of policy denova.
pub(super) fn dedup_mode(random: &mut fastrand::Rng) -> DedupMode {
    let delayed = DedupMode::Delayed { interval_ms: 1, entries: 2 };
    [DedupMode::Inline, DedupMode::Immediate, delayed][random.usize(0..3)]
}

/// A rename that leaves a whiteout, as root makes it.
pub const WHITEOUT: RenameMode = RenameMode::Whiteout { uid: 0, gid: 0, replaces: true };

fn rename_mode(random: &mut fastrand::Rng) -> RenameMode {
    match random.u8(0..5) {
        0 => RenameMode::NoReplace,
        1 => RenameMode::Exchange,
        2 => WHITEOUT,
        _ => RenameMode::Replace,
    }
}

/// Draws what to do with a range of a file.
pub(super) fn allocate_mode(random: &mut fastrand::Rng) -> AllocateMode {
    [
        AllocateMode::Reserve,
        AllocateMode::ReserveKeepSize,
        AllocateMode::PunchHole,
        AllocateMode::PunchHole,
        AllocateMode::ZeroRange,
        AllocateMode::ZeroRangeKeepSize,
    ][random.usize(0..6)]
}
