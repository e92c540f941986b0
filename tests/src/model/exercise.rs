//! Random work on the content of a few files, with a step of every background job between the operations.
//!
//! The problem: what a background job does to a file depends on how the file came to be as it is. A seam is cut in one
//! way in a file that was written from its beginning, and in another in one that begins with a part of a chunk of
//! another file. The sequences of [`super::op::generate`] spread over names, attributes and directories, so such a
//! meeting is rare in them.
//!
//! The idea: few names, much content. Writes of data that repeats at other places, clones and copies of odd ranges
//! within files and between them, holes and reserved space, files that are removed and made anew as a file or as a
//! directory. Between any two operations one of the jobs may do a step, and time may pass. The byte model of
//! [`super::oracle`] says what each file must contain, and nothing that a job does may change it. Each round mounts
//! with other options ([`Setup::of`]).

use nvfold::{
    AllocateMode, AutoOptions, BLOCK_BYTES, Classes, Compression, DeExtOptions, IndexKind, MkfsOptions, MountOptions,
    Pack, Policy, Prefer, RenameMode, Stats, Victims, errno,
};
use pmem::{DeviceSpec, OpenOptions, Region};

use super::Subject;
use super::library::Library;
use super::op::{self, Answer, NodePath, Op, SLOTS};
use super::oracle::Oracle;
use crate::device::{self, Time};

/// Size of the device: so small that segments are used again and again.
const DEVICE_MIB: u64 = 64;
/// Size of a device that is nearly full.
const SMALL_DEVICE_MIB: u64 = 20;
/// The file that takes the rest of it.
const FILLER: u8 = 16;
/// Number of names. Each is a file at the beginning.
pub const NAMES: u8 = 5;
/// Largest offset that is used.
const OFFSET_MAX: u64 = 320 << 10;
/// Longest piece of data, but for [`LONG_MAX`].
const LEN_MAX: u64 = 24 << 10;
/// Longest piece of data, which few operations have.
const LONG_MAX: u64 = 200 << 10;
/// One operation in so many is a remount or a crash.
const REMOUNT_EVERY: usize = 300;
/// A sampling period of `auto`, in blocks, that ends many times in a run.
const AUTO_PERIOD: u64 = 32;

/// How the file system of a run is made and mounted.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Policy of the mount.
    pub policy: Policy,
    /// The index.
    pub index: IndexKind,
    /// Which ends of files are packed.
    pub pack: Pack,
    /// Compression of packed chunks.
    pub compression: Compression,
    /// How policy `deext` cuts.
    pub cut: Classes,
    /// What policy `auto` prefers.
    pub prefer: Prefer,
    /// How many blocks writers may take, if the device is small and nearly full.
    pub free_blocks: Option<u64>,
    /// Whether costs are measured and streams rest, by a clock of the test's own. Without one, every step ends a
    /// stream.
    pub has_stopwatch: bool,
}

impl Setup {
    /// Returns the options of a round; neighbouring rounds have different ones.
    pub fn of(policy: Policy, round: u64) -> Setup {
        let pick = |count: usize| round as usize % count;
        let other = if device::index_of(policy) == IndexKind::Pm { IndexKind::Dram } else { IndexKind::Pm };
        Setup {
            policy,
            index: [device::index_of(policy), other][pick(6) / 3],
            pack: Pack::ALL[pick(3)],
            compression: [Compression::Off, Compression::ZSTD, Compression::Off, Compression::Lz4][pick(4)],
            cut: [Classes::Dual, Classes::Dual, Classes::ContentOnly][pick(3)],
            prefer: Prefer::ALL[pick(4)],
            free_blocks: [None, None, Some(150), None, Some(400)][pick(5)],
            has_stopwatch: pick(2) == 0,
        }
    }

    fn library(&self) -> Library {
        let time = Time::default();
        let mib = if self.free_blocks.is_some() { SMALL_DEVICE_MIB } else { DEVICE_MIB };
        let region = Region::create(&DeviceSpec::Memory, mib << 20, &OpenOptions::default());
        let region = region.expect("a memory device");
        let format = MkfsOptions { index: self.index, ..MkfsOptions::default() };
        nvfold::FileSystem::mkfs(&region, &format).expect("mkfs");
        let Setup { policy, pack, compression, cut, prefer, .. } = *self;
        let options = MountOptions {
            policy,
            pack,
            compression,
            deext: DeExtOptions { classes: cut, ..DeExtOptions::default() },
            auto: AutoOptions { prefer, period: AUTO_PERIOD },
            clock: time.clock(),
            stopwatch: self.has_stopwatch.then(|| time.stopwatch()),
            ..device::options()
        };
        Library::with_time(region, options, time)
    }
}

/// Runs the operations, then mounts again in order and as after a crash, then does all background work to its end.
/// Everything is compared at each of these ends, and after each operation that `asks` names. Returns what was
/// counted.
///
/// # Errors
/// The first difference to the byte model, or what fsck finds at the end.
pub fn run(setup: &Setup, ops: &[Op], asks: &dyn Fn(&Op) -> bool) -> Result<Worked, String> {
    let is_full = setup.free_blocks.is_some();
    let mut run = Run { library: setup.library(), oracle: Oracle::new(), is_full, refused: 0 };
    let filler = setup.free_blocks.map(|left| run.filler(left));
    for (number, op) in beginning().iter().chain(filler.iter().flatten()).chain(ops).enumerate() {
        run.step(op).map_err(|why| format!("operation {number}: {why}"))?;
        if asks(op) {
            run.look().map_err(|why| format!("after operation {number}, {op:?}: {why}"))?;
        }
    }
    let worked = Worked { stats: run.library.fs().stats(), refused: run.refused };
    for end in [Op::Remount, Op::Crash, Op::Reconcile, Op::Drain, Op::Fill, Op::Reclaim, Op::Trim] {
        run.step(&end).and_then(|()| run.look()).map_err(|why| format!("at the end, {end:?}: {why}"))?;
    }
    let findings = device::findings_in_data(&run.library.unmount()).map_err(|error| format!("fsck: {error}"))?;
    if findings.is_empty() { Ok(worked) } else { Err(format!("fsck finds:\n{}", findings.join("\n"))) }
}

/// What a run that went well has counted.
pub struct Worked {
    /// Of the library, since the last mount among the operations.
    pub stats: Stats,
    /// Operations that found too little space.
    pub refused: u64,
}

struct Run {
    library: Library,
    oracle: Oracle,
    /// Whether an operation may find too little space. It must have changed nothing then.
    is_full: bool,
    refused: u64,
}

impl Run {
    fn step(&mut self, op: &Op) -> Result<(), String> {
        let got = self.library.apply(op);
        if self.is_full && got == Answer::Errno(errno::ENOSPC) {
            self.refused += 1;
            return Ok(());
        }
        let expected = self.oracle.apply(op);
        let why = || format!("{op:?} answers {got:?}, expected {expected:?}");
        if got.agrees_with(&expected) { Ok(()) } else { Err(why()) }
    }

    /// Reads everything.
    fn look(&mut self) -> Result<(), String> {
        self.oracle.questions().iter().try_for_each(|question| self.step(question))
    }

    /// Returns the operations that take all blocks but so many.
    fn filler(&self, left: u64) -> [Op; 2] {
        let (path, len) = (vec![FILLER], (self.library.blocks_available() - left) * BLOCK_BYTES);
        let mode = AllocateMode::ReserveKeepSize;
        [Op::Create { path: path.clone(), mode: 0o644 }, Op::Allocate { path, offset: 0, len, mode }]
    }
}

/// Returns whether an operation is work on what is stored, which may change nothing that can be read.
pub fn is_job(op: &Op) -> bool {
    is_request(op)
        || matches!(
            op,
            Op::FillStep
                | Op::ReclaimStep { .. }
                | Op::CollectSteps { .. }
                | Op::EmptySegments
                | Op::DrainStep
                | Op::ReorderStep
                | Op::TrimStep
                | Op::Remount
                | Op::Crash
        )
}

/// Returns whether an operation is such work that a user asks for, or all of it that there is.
pub fn is_request(op: &Op) -> bool {
    matches!(
        op,
        Op::Dedup { .. } | Op::Compress { .. } | Op::Undedup { .. } | Op::Fill | Op::Drain | Op::Reclaim | Op::Trim
    )
}

fn beginning() -> Vec<Op> {
    (0..NAMES).map(|name| Op::Create { path: vec![name], mode: 0o644 }).collect()
}

/// Returns `count` random operations, and those that belong to them.
pub fn generate(random: &mut fastrand::Rng, count: usize) -> Vec<Op> {
    let mut ops = Vec::new();
    while ops.len() < count {
        match random.usize(0..REMOUNT_EVERY) {
            0 => ops.push(if random.bool() { Op::Remount } else { Op::Crash }),
            1 => ops.push(Op::Convert),
            _ => operation(random, &mut ops),
        }
        while random.u8(0..5) < 2 {
            ops.push(job(random));
        }
    }
    ops
}

fn operation(random: &mut fastrand::Rng, ops: &mut Vec<Op>) {
    let (path, slot) = (name(random), random.u8(0..SLOTS));
    let (offset, len, seed) = (offset(random), len(random), seed(random));
    let op = match random.u8(0..100) {
        0..17 => Op::Write { path, offset, len, seed },
        17..27 => Op::Append { path, len, seed },
        27..32 => Op::SlotWrite { slot, offset, len, seed },
        32..37 => Op::Open { path, slot },
        37..39 => Op::Close { slot },
        39..43 => Op::Truncate { path, size: offset },
        43..52 => Op::Allocate { path, offset, len: len.max(1), mode: op::allocate_mode(random) },
        52..70 => Op::Clone { from: path, from_offset: offset, to: name(random), to_offset: self::offset(random), len },
        70..80 => {
            let (to, to_offset, changed) = (name(random), self::offset(random), random.u8(0..4));
            Op::Copy { from: path, from_offset: offset, to, to_offset, len, changed }
        }
        80..89 => Op::Read { path, offset, len },
        89 => Op::SlotRead { slot, offset, len },
        90 => Op::Rename { from: path, to: name(random), mode: RenameMode::Replace },
        91 => Op::Rename { from: path, to: name(random), mode: RenameMode::Exchange },
        92 => Op::Link { from: path, to: name(random) },
        93 => Op::SetPolicy { path, policy: Policy::ALL.get(random.usize(0..=Policy::ALL.len())).copied() },
        94 => Op::SetMode { mode: op::dedup_mode(random) },
        95..98 => return replace(random, path, ops),
        98 => Op::Tmpfile { slot, mode: 0o600 },
        _ => Op::SlotLink { slot, to: path },
    };
    ops.push(op);
}

/// Removes a name, often with work in the background still to be done for its file, and makes it anew. The new inode
/// may have the number of the old one.
fn replace(random: &mut fastrand::Rng, path: NodePath, ops: &mut Vec<Op>) {
    ops.push(Op::Unlink { path: path.clone() });
    if random.u8(0..3) == 0 {
        ops.push(Op::Mkdir { path: path.clone(), mode: 0o755 });
        ops.extend((0..random.u8(0..4)).map(|_| job(random)));
        ops.push(Op::Rmdir { path: path.clone() });
    }
    ops.push(Op::Create { path, mode: 0o644 });
}

/// Returns a step of a background job, or a request for such work.
fn job(random: &mut fastrand::Rng) -> Op {
    let (path, offset, len) = (name(random), offset(random) / 2, 4 * len(random));
    let compression = [Compression::Lz4, Compression::ZSTD][random.usize(0..2)];
    match random.u8(0..64) {
        0..20 => Op::FillStep,
        20..29 => Op::ReclaimStep { victims: Victims::All },
        29..32 => Op::ReclaimStep { victims: Victims::Worthwhile },
        32..41 => Op::DrainStep,
        41..43 => Op::ReorderStep,
        43..46 => Op::TrimStep,
        46..50 => Op::Dedup { path, offset, len },
        50..53 => Op::Compress { path, offset, len, compression },
        53..56 => Op::Undedup { path, offset, len },
        56 => Op::Fill,
        57 => Op::Drain,
        58 => Op::Reclaim,
        59 => Op::Trim,
        60 => Op::Reconcile,
        61 => Op::Rest { ms: 100_000 },
        62 => Op::EmptySegments,
        _ => Op::Rest { ms: random.u64(0..3000) },
    }
}

fn name(random: &mut fastrand::Rng) -> NodePath {
    vec![random.u8(0..NAMES)]
}

/// Returns an offset: the beginning, any byte, a block boundary or next to one, and the beginning of a file.
fn offset(random: &mut fastrand::Rng) -> u64 {
    let any = random.u64(0..OFFSET_MAX);
    match random.u8(0..8) {
        0 | 1 => 0,
        2 => random.u64(0..LEN_MAX),
        3 => any / 4096 * 4096,
        4 => (any / 4096 * 4096 + 4096).saturating_sub(random.u64(0..3)),
        _ => any,
    }
}

fn len(random: &mut fastrand::Rng) -> u64 {
    match random.u8(0..16) {
        0 => random.u64(0..LONG_MAX),
        1..4 => random.u64(0..200),
        4..7 => random.u64(0..=LEN_MAX) / 4096 * 4096,
        _ => random.u64(0..=LEN_MAX),
    }
}

/// Returns a seed of data: new noise, pieces that repeat, parts of the same data, text, runs of zeros, blocks in few
/// chains.
fn seed(random: &mut fastrand::Rng) -> u64 {
    match random.u8(0..9) {
        0..2 => random.u64(0..1 << 20),
        2 => random.u64(0..40),
        3..6 => op::MOVED + random.u64(0..op::MOVED_COUNT),
        6 => op::TEXT + random.u64(0..4),
        7 => op::ZEROS + random.u64(0..op::ZEROS_COUNT),
        _ => op::IN_CHAINS + random.u64(0..op::IN_CHAINS_COUNT),
    }
}

/// A mix of operations on two files through system calls, as the loops of `fsx` in xfstests have them: with or without
/// the page cache, with short or long requests, at odd places or at those that a disk would want.
#[derive(Clone, Copy)]
pub struct Form {
    /// Its name in messages.
    pub name: &'static str,
    /// Which reads and writes go past the page cache.
    pub is_direct: fn(&Op) -> bool,
    /// Longest request.
    len_max: u64,
    /// Requests begin and end at multiples of this.
    unit: u64,
}

/// Largest file of a form.
const FORM_FILE_BYTES: u64 = 500_000;

/// The forms. The first two are as xfstests' generic/263, the others as generic/521 and 522.
pub const FORMS: [Form; 4] = [
    Form { name: "short requests, half of them direct", is_direct: is_every_other, len_max: 8192, unit: 512 },
    Form { name: "long requests, half of them direct", is_direct: is_every_other, len_max: 128_000, unit: 512 },
    Form { name: "long direct requests", is_direct: |_| true, len_max: 128_000, unit: 512 },
    Form { name: "long requests through the page cache", is_direct: |_| false, len_max: 128_000, unit: 1 },
];

fn is_every_other(op: &Op) -> bool {
    match op {
        Op::Read { offset, len, .. } | Op::Write { offset, len, .. } => ((offset + len) / 512).is_multiple_of(2),
        _ => false,
    }
}

/// Returns `count` random operations of a form, after those that make its files.
pub fn of_form(random: &mut fastrand::Rng, form: &Form, count: usize) -> Vec<Op> {
    let files = (0..2).map(|name| Op::Create { path: vec![name], mode: 0o644 });
    files.chain((0..count).map(|_| one_of_form(random, form))).collect()
}

fn one_of_form(random: &mut fastrand::Rng, form: &Form) -> Op {
    let path = vec![random.u8(0..2)];
    let whole = |bytes: u64| bytes / form.unit * form.unit;
    let len = whole(random.u64(0..=form.len_max)).max(form.unit);
    let place = |random: &mut fastrand::Rng| match random.u8(0..6) {
        0 => 0,
        1 => whole(random.u64(0..form.len_max.min(FORM_FILE_BYTES - len))),
        _ => whole(random.u64(0..=FORM_FILE_BYTES - len)),
    };
    let (offset, seed) = (place(random), seed(random));
    match random.u16(0..1000) {
        0..250 => Op::Read { path, offset, len },
        250..500 => Op::Write { path, offset, len, seed },
        500..600 => Op::Truncate { path, size: offset },
        600..760 => Op::Allocate { path, offset, len, mode: op::allocate_mode(random) },
        760..940 => {
            let (to, to_offset) = (vec![random.u8(0..2)], place(random));
            Op::Clone { from: path, from_offset: offset, to, to_offset, len }
        }
        940..960 => Op::Sync { path },
        960..970 => Op::Dedup { path, offset, len },
        970..980 => Op::Compress { path, offset, len, compression: Compression::ZSTD },
        980..990 => Op::Undedup { path, offset, len },
        990..994 => Op::Drain,
        994..998 => Op::Reclaim,
        998 => Op::Remount,
        _ => Op::Crash,
    }
}
