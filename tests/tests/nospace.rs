//! Every allocation of blocks in an operation fails once: the result is ENOSPC, and nothing has changed.
//!
//! Each operation runs with its first allocation failing, then its second, and so on until it succeeds without
//! reaching the failing one. After each ENOSPC everything that can be read is as before, the totals are equal to the
//! block, and fsck finds nothing. Sometimes the same is checked after an unmount and after a crash.

use nvfold::check::{CheckOptions, check};
use nvfold::internals::media::log_area::AREAS_MAX;
use nvfold::{AllocateMode, BLOCK_BYTES, FileKind, FileSystem, InodeNumber, Policy, RenameMode, XattrMode, errno};
use nvfold_tests::device::{self, Device};
use nvfold_tests::model::library::Library;
use nvfold_tests::model::op::{self, Answer, Kind, SLOTS};
use nvfold_tests::model::oracle::Oracle;
use nvfold_tests::model::{Op, Subject};
use nvfold_tests::random::{Seed, soak_factor};
use std::collections::BTreeMap;

const DEVICE_MIB: u64 = 32;
/// Not denova: an operation that finds no space there shares the queue and tries again (`tests/denova.rs`).
const POLICIES: [Policy; 3] = [Policy::Off, Policy::Inline, Policy::NvDedup];
/// Rounds of the directed operations: the logs outgrow their lines in the slot and their pages.
const ROUNDS: u64 = 30;
/// Rounds of an operation and its opposite: each of them sometimes needs a new page for a log.
const TURNS: u64 = 200;
/// Random operations.
const RANDOM_OPS: usize = 5000;
/// After so many failures the file system is unmounted, or crashes, and is checked again.
const REMOUNT_EVERY: u64 = 40;

/// Totals that a failed operation must leave unchanged, to the block. The segment kept for reclamation counts as
/// free: the next mount keeps one when it needs it.
#[derive(Debug, PartialEq)]
struct Totals {
    blocks_free: u64,
    inodes: u64,
    logical_bytes: u64,
    stored_bytes: u64,
    saved_bytes: u64,
    /// Metadata, and what is reserved for it: a failed operation may leave a chunk entry with a count of 1.
    metadata_bytes: u64,
}

impl Totals {
    fn of(fs: &FileSystem) -> Totals {
        let stats = fs.stats();
        let kept_bytes = stats.reclaim.kept_bytes;
        Totals {
            blocks_free: fs.statfs().blocks_free + kept_bytes / BLOCK_BYTES,
            inodes: stats.inodes,
            logical_bytes: stats.logical_bytes,
            stored_bytes: stats.stored_bytes,
            saved_bytes: stats.saved_bytes,
            metadata_bytes: stats.metadata_bytes + stats.reserved_bytes - kept_bytes,
        }
    }
}

/// The library and the model that it is compared with.
struct Trial {
    library: Library,
    oracle: Oracle,
    /// Failures by the kind of operation.
    failed: BTreeMap<String, u64>,
    failures: u64,
}

impl Trial {
    fn new(policy: Policy) -> Trial {
        let library = Library::fresh(DEVICE_MIB, policy);
        Trial { library, oracle: Oracle::new(), failed: BTreeMap::new(), failures: 0 }
    }

    /// Fails each allocation of the operation in turn, then lets the operation succeed.
    fn attempt(&mut self, op: &Op) {
        // An open file without a name has to be recovered, until it is closed.
        let recoverable = self.fsck("before");
        for nth in 1.. {
            let before = Totals::of(self.library.fs());
            self.library.fs().fail_allocation(nth);
            let answer = self.library.apply(op);
            let has_failed = self.library.fs().fail_allocation(0) == 0;
            if !has_failed || answer != Answer::Errno(errno::ENOSPC) {
                // The failed allocation may not be part of the operation: a compaction of a log that was given up.
                let expected = self.oracle.apply(op);
                assert!(answer.agrees_with(&expected), "{op:?}: {answer:?}, expected {expected:?}");
                return;
            }
            assert!(nth < 50, "{op:?} asks for blocks without end");
            let name = format!("{op:?}");
            *self.failed.entry(name.split([' ', '{']).next().unwrap_or_default().to_owned()).or_default() += 1;
            self.failures += 1;
            assert_eq!(Totals::of(self.library.fs()), before, "{op:?}, allocation {nth} failed");
            let after = format!("{op:?}, allocation {nth} failed");
            self.assert_unchanged(&after);
            assert_eq!(self.fsck(&after), recoverable, "{after}: nothing else is left to recover");
            if self.failures.is_multiple_of(REMOUNT_EVERY) {
                return self.mount_again(&after);
            }
        }
    }

    fn assert_unchanged(&mut self, after: &str) {
        for question in self.oracle.questions() {
            let (answer, expected) = (self.library.apply(&question), self.oracle.apply(&question));
            assert!(answer.agrees_with(&expected), "{after}: {question:?} says {answer:?}, expected {expected:?}");
        }
    }

    /// Checks that fsck finds nothing; returns how much the next mount would have to recover.
    fn fsck(&self, after: &str) -> u64 {
        let report = check(self.library.fs().region(), &CheckOptions::default()).expect("fsck");
        assert_eq!(report.findings, [], "{after}");
        report.recoverable
    }

    /// Mounts again, and checks that the media agrees with the totals in DRAM.
    fn mount_again(&mut self, after: &str) {
        for slot in 0..SLOTS {
            self.library.apply(&Op::Close { slot });
        }
        let before = Totals::of(self.library.fs());
        let op = if self.failures.is_multiple_of(2 * REMOUNT_EVERY) { Op::Remount } else { Op::Crash };
        self.library.apply(&op);
        self.oracle.apply(&op);
        self.library.fs().reconcile().expect("reconcile");
        assert_eq!(Totals::of(self.library.fs()), before, "{after}, then {op:?}");
        let after = format!("{after}, then {op:?}");
        self.assert_unchanged(&after);
        assert_eq!(self.fsck(&after), 0, "{after}");
    }
}

/// Returns one operation of each kind, on files and directories that stay, so that their logs grow.
fn directed(round: u64) -> Vec<Op> {
    let (seed, at) = (round % 7, round * 4096 % (160 << 10));
    let (file, other, dir, in_dir, long) = (vec![0], vec![1], vec![2], vec![2, 3], vec![5]);
    let set = |path: &Vec<u8>, name, len| Op::SetXattr { path: path.clone(), name, seed, len, mode: XattrMode::Set };
    let allocate = |mode| Op::Allocate { path: file.clone(), offset: at + 100, len: 30_000, mode };
    let rename = |from: &Vec<u8>, to: &Vec<u8>, mode| Op::Rename { from: from.clone(), to: to.clone(), mode };
    vec![
        Op::Create { path: file.clone(), mode: 0o644 },
        Op::Create { path: other.clone(), mode: 0o644 },
        Op::Mkdir { path: dir.clone(), mode: 0o755 },
        Op::Create { path: in_dir.clone(), mode: 0o600 },
        Op::Write { path: file.clone(), offset: at, len: 40_000, seed },
        Op::Write { path: file.clone(), offset: at + 5, len: 4000, seed: round },
        Op::Write { path: file.clone(), offset: at, len: 4096, seed: 1000 + round },
        Op::Append { path: other.clone(), len: 5000, seed },
        Op::Clone { from: file.clone(), from_offset: 77, to: other.clone(), to_offset: at + 3, len: 20_000 },
        Op::Write { path: other.clone(), offset: at, len: 9000, seed: seed + 1 },
        allocate(AllocateMode::PunchHole),
        allocate(AllocateMode::Reserve),
        Op::Write { path: file.clone(), offset: at + 4096, len: 8192, seed },
        allocate(AllocateMode::ZeroRange),
        Op::Truncate { path: other.clone(), size: at },
        set(&file, 0, 20_000),
        set(&file, 1, 900),
        set(&dir, 2, 60_000),
        Op::RemoveXattr { path: file.clone(), name: 1 },
        Op::SetTogether {
            path: other.clone(),
            mode: Some(0o640 + round as u32 % 8),
            size: Some(at / 2),
            mtime: None,
            xattr: Some((0, Some((seed, 9000)))),
        },
        Op::CreateWith {
            path: vec![2, 5],
            kind: Kind::Directory,
            mode: 0o700,
            xattrs: vec![(0, seed, 900), (1, seed, 9000)],
        },
        Op::Rmdir { path: vec![2, 5] },
        Op::SetPolicy { path: dir.clone(), policy: [Some(Policy::Off), Some(Policy::Inline)][round as usize % 2] },
        Op::Create { path: vec![2, 6], mode: 0o644 },
        Op::Unlink { path: vec![2, 6] },
        Op::Symlink { path: long.clone(), target_len: 4095 },
        rename(&long, &vec![2, 5], RenameMode::Replace),
        Op::Link { from: in_dir.clone(), to: vec![4] },
        rename(&vec![4], &vec![2, 4], RenameMode::NoReplace),
        rename(&vec![2, 4], &other, RenameMode::Exchange),
        Op::Open { path: vec![2, 4], slot: 0 },
        Op::Unlink { path: vec![2, 4] },
        Op::SlotWrite { slot: 0, offset: at, len: 12_000, seed },
        Op::Close { slot: 0 },
        Op::Chmod { path: file.clone(), mode: 0o600 + round as u32 % 8 },
        Op::SetTimes { path: other.clone(), atime: 1, mtime: round as i64 + 1 },
        Op::Unlink { path: vec![2, 5] },
        Op::Unlink { path: in_dir },
        Op::Rmdir { path: dir },
        Op::Unlink { path: other },
    ]
}

/// Returns pairs of an operation and its opposite, on logs that grow by a line at a time.
fn turns() -> Vec<[Op; 2]> {
    let (one, two) = (vec![0], vec![1]);
    let unlink = || Op::Unlink { path: two.clone() };
    let rename = |from: &Vec<u8>, to: &Vec<u8>, mode| Op::Rename { from: from.clone(), to: to.clone(), mode };
    let xattr = Op::SetXattr { path: one.clone(), name: 3, seed: 1, len: 9, mode: XattrMode::Set };
    vec![
        [Op::Create { path: two.clone(), mode: 0o644 }, unlink()],
        [Op::Fifo { path: two.clone() }, unlink()],
        [Op::Mkdir { path: two.clone(), mode: 0o755 }, Op::Rmdir { path: two.clone() }],
        [Op::Symlink { path: two.clone(), target_len: 30 }, unlink()],
        [Op::Link { from: one.clone(), to: two.clone() }, unlink()],
        [rename(&one, &two, RenameMode::NoReplace), rename(&two, &one, RenameMode::Replace)],
        [xattr, Op::RemoveXattr { path: one.clone(), name: 3 }],
        [Op::Write { path: one.clone(), offset: 0, len: 4096, seed: 1 }, Op::Truncate { path: one.clone(), size: 0 }],
        [
            Op::Write { path: one.clone(), offset: 0, len: 4096, seed: 1 },
            Op::Clone { from: one.clone(), from_offset: 0, to: one.clone(), to_offset: 8192, len: 4096 },
        ],
        [rename(&one, &two, op::WHITEOUT), rename(&two, &one, RenameMode::Replace)],
    ]
}

#[test]
fn an_operation_that_fails_with_enospc_changes_nothing() {
    for policy in POLICIES {
        let mut trial = Trial::new(policy);
        for round in 0..ROUNDS {
            directed(round).iter().for_each(|op| trial.attempt(op));
        }
        for [one, other] in turns() {
            (0..TURNS).for_each(|_| [&one, &other].into_iter().for_each(|op| trial.attempt(op)));
        }
        println!("{policy:?}: {} allocations failed: {:?}", trial.failures, trial.failed);
        let kinds = ["Create", "Mkdir", "Symlink", "Link", "Rename", "Unlink", "Rmdir", "Write", "Append", "Clone"];
        for kind in kinds.iter().chain(&[
            "Allocate",
            "Truncate",
            "SetXattr",
            "RemoveXattr",
            "SetTogether",
            "CreateWith",
            "SlotWrite",
        ]) {
            assert!(trial.failed.contains_key(*kind), "{policy:?}: no {kind} asked for blocks");
        }
        trial.failures = 0;
        trial.mount_again("the end");
    }
}

#[test]
fn random_operations_that_fail_with_enospc_change_nothing() {
    for policy in POLICIES {
        let seed = Seed::new("allocations that fail");
        for round in 0..soak_factor() {
            let mut random = fastrand::Rng::with_seed(seed.value().wrapping_add(round));
            let mut trial = Trial::new(policy);
            // Operations in steps keep the completed steps, so they are left out.
            let in_steps = |op: &&Op| matches!(op, Op::Dedup { .. } | Op::Undedup { .. } | Op::Drain | Op::DrainStep);
            let ops = op::generate(&mut random, RANDOM_OPS, 0);
            ops.iter().filter(|op| !in_steps(op)).for_each(|op| trial.attempt(op));
            println!("{policy:?}: {} allocations failed: {:?}", trial.failures, trial.failed);
            assert!(trial.failures > 100, "{policy:?}: only {} allocations", trial.failures);
        }
    }
}

#[test]
fn an_inode_table_that_cannot_grow_changes_nothing() {
    const ROOT: InodeNumber = InodeNumber::ROOT;
    for policy in POLICIES {
        let device = Device::of(DEVICE_MIB, policy);
        let fs = device.mount(policy);
        // Inode 0 is never used and 1 is the root, whose log has as many areas as possible.
        for number in 2..4096 - AREAS_MAX as u32 {
            fs.create(ROOT, number.to_string().as_bytes(), &device::regular()).expect("create");
        }
        let fifo = device::new_inode(FileKind::Fifo, 0o644);
        let link = device::new_inode(FileKind::Symlink, 0o777);
        let kinds: [(&str, &dyn Fn() -> nvfold::Result<()>); 7] = [
            ("create", &|| fs.create(ROOT, b"new", &device::regular()).map(drop)),
            ("fifo", &|| fs.create(ROOT, b"new", &fifo).map(drop)),
            ("mkdir", &|| fs.mkdir(ROOT, b"new", &device::directory()).map(drop)),
            ("short link", &|| fs.symlink(ROOT, b"new", b"target", &link).map(drop)),
            ("long link", &|| fs.symlink(ROOT, b"new", &[b't'; 4095], &link).map(drop)),
            ("tmpfile", &|| fs.tmpfile(&device::regular()).map(drop)),
            ("whiteout", &|| fs.rename(ROOT, b"2", ROOT, b"new", op::WHITEOUT)),
        ];
        for (kind, make) in kinds {
            let mut failures = 0;
            for nth in 1.. {
                // An inode table that has grown keeps its new segment until it is trimmed.
                fs.trim().expect("trim");
                let before = Totals::of(&fs);
                fs.fail_allocation(nth);
                let made = make();
                let has_failed = fs.fail_allocation(0) == 0;
                if made.is_ok() && !has_failed {
                    break;
                }
                assert_eq!(made.expect_err("an allocation failed").errno(), errno::ENOSPC, "{kind}");
                failures += 1;
                fs.trim().expect("trim");
                assert_eq!(Totals::of(&fs), before, "{kind}, allocation {nth} failed");
                assert!(fs.lookup(ROOT, b"new").is_err(), "{kind}");
                let report = check(fs.region(), &CheckOptions::default()).expect("fsck");
                assert_eq!((&report.findings[..], report.recoverable), (&[][..], 0), "{kind}, allocation {nth} failed");
                assert_eq!((report.inodes, report.log_areas), (4095 - AREAS_MAX as u64, AREAS_MAX as u64));
            }
            assert!(failures > 0, "{kind} needs a segment for its inode");
            if let Ok(made) = fs.lookup(ROOT, b"new") {
                let directory = made.kind == FileKind::Directory;
                if directory { fs.rmdir(ROOT, b"new") } else { fs.unlink(ROOT, b"new") }.expect("remove");
            }
        }
        fs.unmount().expect("unmount");
        device.check();
    }
}
