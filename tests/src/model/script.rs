//! Operation sequences read from plain bytes, run on the library and on the oracle.
//!
//! A fuzzer changes bytes and a property test shrinks them, so a small change of the bytes must be a small change of
//! the sequence. Every operation is a record of eight bytes, and a zero byte stands for the simplest value. Dropping
//! eight bytes drops one operation.
//!
//! ```text
//! | policy | room | kind path other offset other_offset length seed extra | kind path ...
//! ```
//!
//! A script begins with two files and two directories, and uses few names, so that most operations find something.
//! `room` can first fill the smallest device except for a few blocks: then ENOSPC is an answer too. The oracle does
//! not know ENOSPC, so this module judges it: a refused operation must have changed nothing, must have had a reason,
//! and must not be one that frees space.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use nvfold::{
    AllocateMode, BLOCK_BYTES, DEVICE_BYTES_MIN, IndexKind, MountOptions, Policy, RenameMode, XattrMode, errno,
};
use pmem::Region;

use super::library::Library;
use super::op::{self, Answer, Op, SLOTS};
use super::{NodePath, Subject, oracle::Oracle};
use crate::device::{self, POLICIES};
use crate::slate::{Content, Slate};

/// Bytes before the first record.
pub const HEAD_BYTES: usize = 2;
/// Bytes of one operation.
pub const RECORD_BYTES: usize = 8;
/// Operations of a script that are run; more are ignored.
pub const OPS_MAX: usize = 100;
/// Number of kinds of operations that the first byte of a record selects.
pub const KINDS: u8 = 38;

/// From this `room` on the device is filled first.
const FILLED_FROM: u8 = 128;
/// Blocks that an operation may need beyond its data: patched first and last blocks, log pages, a compacted log.
const OVERHEAD_BLOCKS: u64 = 24;

const LENGTHS: [u64; 12] = [1, 0, 63, 100, 1024, 4095, 4096, 4097, 8192, 12_289, 20_000, 40_960];
const XATTR_LENGTHS: [u64; 8] = [0, 1, 100, 1000, 1024, 1025, 5000, 65_536];
const TARGET_LENGTHS: [u64; 4] = [1, 30, 1500, 4095];
const MODES: [u32; 4] = [0o644, 0o600, 0o755, 0o400];
/// Far from the other offsets, so that the filler does not disturb them.
const FILLER_OFFSET: u64 = 1 << 32;

/// A sequence of operations, and the device that it runs on.
#[derive(Clone, Debug)]
pub struct Script {
    /// The policy of the mount.
    pub policy: Policy,
    /// The index at the start.
    pub index: IndexKind,
    /// About how many blocks writers may still take when the first operation begins; `None`: all of the smallest
    /// device.
    pub blocks_left: Option<u64>,
    /// The operations.
    pub ops: Vec<Op>,
}

impl Script {
    /// Reads a script; any bytes are valid.
    pub fn read(bytes: &[u8]) -> Script {
        let (head, records) = bytes.split_at(HEAD_BYTES.min(bytes.len()));
        let first = usize::from(head.first().copied().unwrap_or(0));
        let (policy, index) = (POLICIES[first % POLICIES.len()], IndexKind::ALL[first / POLICIES.len() % 2]);
        let room = head.get(1).copied().unwrap_or(0);
        let ops = records.as_chunks::<RECORD_BYTES>().0.iter().take(OPS_MAX).map(op).collect();
        Script { policy, index, blocks_left: room.checked_sub(FILLED_FROM).map(u64::from), ops }
    }

    /// Runs the script on a fresh device and returns the first difference to the oracle. Then it reads everything,
    /// mounts the device again in order and as after a crash, and reads everything again.
    pub fn run(&self) -> Result<(), String> {
        let mut library = Library::on(
            device(self.blocks_left, self.index),
            MountOptions { policy: self.policy, ..device::options() },
        );
        let mut oracle = Oracle::new();
        let filler = self.blocks_left.map(|_| create_filler());
        for op in furniture().iter().chain(&filler) {
            oracle.apply(op);
        }
        let mut step = |number: usize, op: &Op, oracle: &mut Oracle| {
            step(op, oracle, &mut library).map_err(|why| format!("operation {number}, {op:?}: {why}"))
        };
        for (number, op) in self.ops.iter().enumerate() {
            step(number, op, &mut oracle)?;
        }
        for again in [None, Some(Op::Crash), Some(Op::Remount)] {
            again.map_or(Ok(()), |again| step(self.ops.len(), &again, &mut oracle))?;
            oracle.questions().iter().try_for_each(|question| step(self.ops.len(), question, &mut oracle))?;
        }
        Ok(())
    }
}

/// Reads and runs a script; panics if the library and the oracle differ. The fuzz target and its twin test call it.
#[track_caller]
pub fn run(bytes: &[u8]) {
    let script = Script::read(bytes);
    if let Err(why) = script.run() {
        panic!("{why}\nin {script:#?}");
    }
}

/// Returns a formatted device of the smallest size on which writers can take `blocks_left` more blocks.
fn device(blocks_left: Option<u64>, index: IndexKind) -> Region {
    static CONTENTS: Mutex<BTreeMap<(Option<u64>, u8), Arc<Content>>> = Mutex::new(BTreeMap::new());
    thread_local!(static SLATE: Slate = Slate::new(DEVICE_BYTES_MIN));
    let mut contents = CONTENTS.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || Arc::new(make_content(blocks_left, index));
    let content = contents.entry((blocks_left, index as u8)).or_insert_with(make).clone();
    drop(contents);
    SLATE.with(|slate| slate.with(&content))
}

fn make_content(blocks_left: Option<u64>, index: IndexKind) -> Content {
    let mut library = Library::indexed(DEVICE_BYTES_MIN >> 20, Policy::Off, index);
    for op in furniture() {
        assert_eq!(library.apply(&op), Answer::Done, "{op:?}");
    }
    if let Some(left) = blocks_left {
        assert_eq!(library.apply(&create_filler()), Answer::Done);
        // A fragmented reservation takes log pages too, so most of it is taken first, then what fits.
        let reserve = |library: &mut Library, number: u64, blocks: u64| {
            let (offset, len, mode) = (number * FILLER_OFFSET, blocks * BLOCK_BYTES, AllocateMode::ReserveKeepSize);
            library.apply(&Op::Allocate { path: vec![0], offset, len, mode }) == Answer::Done
        };
        let most = library.blocks_available() - left - 4;
        assert!((0..4).any(|spare| reserve(&mut library, 1, most - spare)), "filling the device");
        for number in 2.. {
            // The last reservation may have no space for its log page.
            let missing = library.blocks_available().saturating_sub(left);
            if !(0..missing).any(|spare| reserve(&mut library, number, missing - spare)) {
                break;
            }
        }
        assert!(library.blocks_available().abs_diff(left) <= 4, "{} left", library.blocks_available());
    }
    Content::of(&library.unmount())
}

/// Returns the operations before every script: files `1`, `3/1` and, with a part in common with the first, `2`;
/// directories `3` and `3/2`.
fn furniture() -> [Op; 9] {
    let create = |path: &[u8]| Op::Create { path: path.to_vec(), mode: 0o644 };
    let write = |path: &[u8], len| Op::Write { path: path.to_vec(), offset: 0, len, seed: 1 };
    [
        create(&[1]),
        write(&[1], 40_960),
        create(&[2]),
        Op::Clone { from: vec![1], from_offset: 4096, to: vec![2], to_offset: 100, len: 20_000 },
        Op::Mkdir { path: vec![3], mode: 0o755 },
        create(&[3, 1]),
        write(&[3, 1], 5000),
        Op::SetXattr { path: vec![1], name: 1, seed: 2, len: 100, mode: XattrMode::Set },
        Op::Mkdir { path: vec![3, 2], mode: 0o700 },
    ]
}

/// Makes the filler: the space is reserved behind the end of this file. The oracle sees only an empty file.
fn create_filler() -> Op {
    Op::Create { path: vec![0], mode: 0o644 }
}

fn step(op: &Op, oracle: &mut Oracle, library: &mut Library) -> Result<(), String> {
    let available = library.blocks_available();
    let got = library.apply(op);
    if got == Answer::Errno(errno::ENOSPC) {
        let expected = oracle.clone().apply(op);
        if expected != Answer::Done {
            return Err(format!("the library has no space, the oracle answers {expected:?}"));
        }
        // The refused operation must have changed nothing: the oracle does not apply it.
        return match blocks_needed(op) {
            Some(needed) if available < needed + OVERHEAD_BLOCKS => Ok(()),
            needed => Err(format!("no space with {available} blocks left and {needed:?} needed")),
        };
    }
    let expected = oracle.apply(op);
    if got.agrees_with(&expected) {
        return Ok(());
    }
    Err(format!("the library answers {got:?}, expected {expected:?}"))
}

/// Returns the blocks that an operation may take; `None`: it frees space, or takes none, and must always succeed.
fn blocks_needed(op: &Op) -> Option<u64> {
    match op {
        Op::Write { len, .. }
        | Op::Append { len, .. }
        | Op::SlotWrite { len, .. }
        | Op::SetXattr { len, .. }
        | Op::SetTogether { xattr: Some((_, Some((_, len)))), .. }
        | Op::Copy { len, .. }
        | Op::Undedup { len, .. }
        | Op::Symlink { target_len: len, .. } => Some(len / 4096 + 2),
        Op::Allocate { mode: AllocateMode::PunchHole, .. } => None,
        Op::Allocate { len, .. } => Some(len / 4096 + 2),
        Op::CreateWith { xattrs, .. } => Some(xattrs.iter().map(|(_, _, len)| len / 4096 + 1).sum::<u64>() + 2),
        // A log for each directory, and what is reserved.
        Op::CloneTree { .. } | Op::Snapshot { .. } => Some(64),
        Op::SetLimits { .. } => Some(2),
        // Metadata: a log page.
        Op::Create { .. }
        | Op::Mkdir { .. }
        | Op::Fifo { .. }
        | Op::Link { .. }
        | Op::Rename { .. }
        | Op::Clone { .. }
        | Op::Chmod { .. }
        | Op::Chown { .. }
        | Op::SetTimes { .. }
        | Op::SetPolicy { .. }
        | Op::RemoveXattr { .. }
        | Op::SetTogether { .. }
        | Op::Truncate { .. } => Some(1),
        _ => None,
    }
}

fn op(record: &[u8; RECORD_BYTES]) -> Op {
    let [kind, path, other, offset, other_offset, length, seed, extra] = *record;
    let (path, other) = (node_path(path), node_path(other));
    let (offset, other_offset) = (self::offset(offset), self::offset(other_offset));
    let len = pick(&LENGTHS, length);
    // The upper half is data in few chains of a pm index.
    let seed = if seed < 128 { u64::from(seed) } else { op::IN_CHAINS + u64::from(seed) % op::IN_CHAINS_COUNT };
    let slot = length % SLOTS;
    let xattr = offset as u8 % 4;
    match kind % KINDS {
        0 => Op::Create { path, mode: pick(&MODES, extra) },
        1 | 2 => Op::Write { path, offset, len, seed },
        3 => Op::Mkdir { path, mode: pick(&MODES, extra) | 0o700 },
        4 => Op::Append { path, len, seed },
        5 => Op::Read { path, offset, len },
        6 => Op::Truncate { path, size: offset },
        7 => Op::Clone { from: path, from_offset: offset, to: other, to_offset: other_offset, len },
        8 => {
            let changed = extra % 4;
            Op::Copy { from: path, from_offset: offset, to: other, to_offset: other_offset, len, changed }
        }
        9 => Op::Link { from: path, to: other },
        10 => Op::Unlink { path },
        11 => Op::Rename { from: path, to: other, mode: pick(&RENAMES, extra) },
        12 if extra % 4 == 3 => Op::RemoveTree { path },
        12 => Op::Rmdir { path },
        13 => Op::Allocate { path, offset, len: len.max(1), mode: pick(&ALLOCATIONS, extra) },
        14 => Op::Allocate { path, offset, len: len.max(1), mode: AllocateMode::PunchHole },
        15 => Op::SetXattr { path, name: xattr, seed, len: pick(&XATTR_LENGTHS, length), mode: pick(&XATTRS, extra) },
        16 => Op::GetXattr { path, name: xattr },
        17 => Op::RemoveXattr { path, name: xattr },
        18 => Op::ListXattr { path },
        19 => Op::Symlink { path, target_len: pick(&TARGET_LENGTHS, length) },
        20 => Op::Readlink { path },
        21 => Op::Readdir { path: parent_if_odd(path, extra) },
        22 => Op::Stat { path: parent_if_odd(path, extra) },
        23 => Op::Chmod { path, mode: pick(&MODES, extra) },
        24 => Op::Chown { path, uid: u32::from(extra), gid: u32::from(length) },
        25 => Op::SetTimes { path, atime: i64::from(extra), mtime: i64::from(length) << 32 },
        26 => Op::Open { path, slot },
        27 => Op::SlotWrite { slot: extra % SLOTS, offset, len, seed },
        28 => Op::SlotRead { slot: extra % SLOTS, offset, len },
        29 => match extra % 4 {
            0 => Op::SlotStat { slot },
            1 => Op::Sync { path },
            2 => Op::Fifo { path },
            _ => Op::Close { slot },
        },
        30 => Op::Remount,
        31 => Op::Crash,
        32 => Op::Dedup { path, offset, len: 4 * len },
        33 => Op::Undedup { path, offset, len: 4 * len },
        34 => Op::Drain,
        35 => [Op::DrainStep, Op::ReorderStep, Op::Reclaim][usize::from(extra % 3)].clone(),
        36 => Op::Convert,
        _ => Op::SetPolicy { path, policy: Policy::ALL.get(usize::from(extra) % (Policy::ALL.len() + 1)).copied() },
    }
}

const RENAMES: [RenameMode; 4] = [RenameMode::Replace, RenameMode::Exchange, RenameMode::NoReplace, op::WHITEOUT];
const XATTRS: [XattrMode; 4] = [XattrMode::Set, XattrMode::Create, XattrMode::Replace, XattrMode::Set];
const ALLOCATIONS: [AllocateMode; 4] =
    [AllocateMode::Reserve, AllocateMode::ReserveKeepSize, AllocateMode::ZeroRange, AllocateMode::ZeroRangeKeepSize];

fn pick<T: Copy, const N: usize>(choices: &[T; N], byte: u8) -> T {
    choices[usize::from(byte) % N]
}

/// Returns a path: for half of the bytes a name in the root, else one or two directories further down.
fn node_path(byte: u8) -> NodePath {
    let name = |byte: u8| pick(&[1, 2, 3, 0, 1, 2, 5, 6], byte);
    let directory = |byte: u8| pick(&[3, 3, 2, 1], byte);
    match byte {
        0..128 => vec![name(byte)],
        128..224 => vec![directory(byte / 8), name(byte)],
        _ => vec![3, directory(byte / 8 + 1), name(byte)],
    }
}

fn parent_if_odd(mut path: NodePath, byte: u8) -> NodePath {
    if byte % 2 == 1 {
        path.pop();
    }
    path
}

/// Returns an offset: the boundaries of the first 32 blocks and places next to them.
fn offset(byte: u8) -> u64 {
    let boundary = u64::from(byte % 32) * 4096;
    match byte / 32 {
        0..3 => boundary,
        3 => boundary + 1,
        4 => boundary + 4095,
        5 => boundary + 64,
        6 => boundary + 2048,
        _ => boundary.saturating_sub(100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_decode_to_a_script_and_every_kind_of_operation_occurs() {
        assert!(Script::read(&[]).ops.is_empty());
        assert!(Script::read(&[1, 2, 3]).ops.is_empty());
        let records: Vec<u8> = (0..KINDS).flat_map(|kind| [kind, 0, 1, 2, 3, 4, 5, 6]).collect();
        let script = Script::read(&[&[1, 200], &records[..]].concat());
        assert_eq!((script.policy, script.blocks_left, script.ops.len()), (POLICIES[1], Some(72), usize::from(KINDS)));
        let kinds: std::collections::HashSet<_> = script.ops.iter().map(std::mem::discriminant).collect();
        assert_eq!(kinds.len(), 36, "{:?}", script.ops);
    }

    #[test]
    fn a_script_on_a_full_device_gets_refusals_and_keeps_its_files() {
        let write = Op::Write { path: vec![1], offset: 0, len: 40_960, seed: 7 };
        let ops = vec![Op::Create { path: vec![1], mode: 0o600 }, write.clone(), write];
        for (policy, left) in POLICIES.into_iter().flat_map(|policy| [(policy, 0), (policy, 10), (policy, 20)]) {
            let index = device::index_of(policy);
            Script { policy, index, blocks_left: Some(left), ops: ops.clone() }.run().expect("as the oracle says");
        }
    }
}
