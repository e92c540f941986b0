//! Instructions of the eleven operations that a user's load runs most, each held to a committed bound.
//!
//! The problem: a hot path that gets a few percent slower shows in no timing of a shared machine, and a dozen such
//! changes are a slow file system. The idea: valgrind counts the instructions of a fixed number of calls, which come out
//! the same in every run; a run fails when a count is 2 % above the one in `instructions.txt`. `make instructions` runs
//! it; docs/benchmarks.md says what the counts depend on.
//!
//! | benchmark | why it is hot |
//! |---|---|
//! | `lookup` | each component of each path that a program opens or stats |
//! | `create`, `unlink_128k` | begin and end of every file; the end gives 32 blocks back |
//! | `read_4k` | the smallest read that the page cache makes |
//! | `append_100` | a line of a log: the end of the file grows in its block, which is looked up when it is full |
//! | `overwrite_4k` | a database page, without deduplication: a new block, a log entry, a commit, an old block released |
//! | `write_128k` | a copied file, by the default policy: a fingerprint and a look-up for each of 32 blocks |
//! | `nv_dedup_new_4k`, `nv_dedup_duplicate_4k` | a block that is stored, and one that is compared and shared |
//! | `denova_new_4k`, `denova_daemon` | a block that is stored and queued, and the daemon's work that shares it later |

use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use nvfold::{BLOCK_BYTES, DedupMode, FileKind, IndexKind, InodeNumber, Method, NewInode, Policy};
use nvfold_lab::cost::{Calls, Operation, Stage, System, WARM_UP, run_measured_calls};
use pmem::OpenOptions;
use std::hint::black_box;
use std::ops::Range;

/// Calls that are counted: enough for the pages of a log to be filled, so that their share of each call shows. Hash
/// tables of names and inodes grow within them, and do not between this number and [`SLOW_CALLS`].
const CALLS: usize = 200;
/// With this in the environment 210 calls are made in place of 200: a slowdown by 5 %, which has to be found.
const SLOWDOWN: &str = "NVFOLD_SEEDED_SLOWDOWN";
const SLOW_CALLS: usize = CALLS + CALLS / 20;

const OFF: System = on(Policy::Off, IndexKind::Dram);
const INLINE: System = on(Policy::Inline, IndexKind::Dram);
const NV_DEDUP: System = on(Policy::NvDedup, IndexKind::Dram);
const DENOVA: System = on(Policy::DeNova, IndexKind::Pm);

const fn on(policy: Policy, index: IndexKind) -> System {
    System { policy, index, method: Method::WBFin, mode: DedupMode::Immediate }
}

/// Calls that are about to be counted.
struct Prepared {
    stage: Stage,
    calls: Calls,
    numbers: Range<usize>,
    saved_bytes: u64,
}

/// Prepares calls of an operation of `nvfold-lab cost`, on memory that charges nothing.
fn prepare(operation: &str, system: System) -> Prepared {
    let stage = Stage::new(system, &OpenOptions::default()).unwrap();
    have_log_areas(&stage);
    let operation = Operation::named(operation).unwrap_or_else(|| panic!("no operation is named {operation}"));
    let calls = operation.prepare(&stage, WARM_UP + SLOW_CALLS).unwrap();
    warm_up(stage, calls)
}

/// Makes a directory outgrow its slot: the first log that does writes the superblock, once in the life of a device.
fn have_log_areas(stage: &Stage) {
    let new = |kind| NewInode { kind, mode: 0o700, uid: 0, gid: 0, rdev: 0 };
    let directory = stage.fs.mkdir(InodeNumber::ROOT, b"outgrown", &new(FileKind::Directory)).unwrap();
    for name in [b"1", b"2", b"3", b"4", b"5", b"6"] {
        stage.fs.create(directory.ino, name, &new(FileKind::Regular)).unwrap();
    }
}

/// Prepares look-ups of names that exist; `nvfold-lab cost` has none, for they write nothing.
fn prepare_lookups() -> Prepared {
    let stage = Stage::new(OFF, &OpenOptions::default()).unwrap();
    let names: Vec<String> = (0..WARM_UP + SLOW_CALLS).map(|number| format!("name-{number:04}")).collect();
    let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
    for name in &names {
        stage.fs.create(InodeNumber::ROOT, name.as_bytes(), &new).unwrap();
    }
    let fs = stage.fs.clone();
    let look_up = move |number: usize| {
        black_box(fs.lookup(InodeNumber::ROOT, names[number].as_bytes())?);
        Ok(())
    };
    warm_up(stage, Calls { call: Box::new(look_up), units: 1, blocks_saved: 0 })
}

/// Prepares appends of 100 bytes to one file, by the default policy.
fn prepare_appends() -> Prepared {
    let stage = Stage::new(INLINE, &OpenOptions::default()).unwrap();
    let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
    let file = stage.fs.open(stage.fs.create(InodeNumber::ROOT, b"log", &new).unwrap().ino).unwrap();
    let append = move |number: usize| {
        let mut line = [b'.'; 100];
        line[..8].copy_from_slice(&number.to_le_bytes());
        file.append(&line).map(drop)
    };
    warm_up(stage, Calls { call: Box::new(append), units: 1, blocks_saved: 0 })
}

fn warm_up(stage: Stage, mut calls: Calls) -> Prepared {
    let count = if std::env::var_os(SLOWDOWN).is_some() { SLOW_CALLS } else { CALLS };
    stage.forget_lines();
    calls.run_warm_up(WARM_UP).unwrap();
    let saved_bytes = stage.fs.stats().saved_bytes;
    Prepared { stage, calls, numbers: WARM_UP..WARM_UP + count, saved_bytes }
}

/// The calls did what they are named for: sharing saves the bytes that they were to save.
fn prove(done: Prepared) {
    let blocks = done.calls.blocks_saved * done.numbers.len() as i64;
    let gained = done.stage.fs.stats().saved_bytes as i64 - done.saved_bytes as i64;
    assert_eq!(gained, blocks * BLOCK_BYTES as i64, "bytes that sharing saves");
}

/// Fails at 2 % more instructions than are committed under this name.
fn held_to(name: &str) -> LibraryBenchmarkConfig {
    let line = include_str!("instructions.txt").lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let committed: u64 = line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name} has no number"));
    let callgrind =
        Callgrind::with_args(["--cache-sim=no"]).hard_limits([(EventKind::Ir, committed * 102 / 100)]).clone();
    LibraryBenchmarkConfig::default().tool(callgrind).pass_through_env(SLOWDOWN).clone()
}

#[library_benchmark(teardown = prove)]
#[bench::lookup(args = (), setup = prepare_lookups, config = held_to("lookup"))]
#[bench::create(args = ("create", OFF), setup = prepare, config = held_to("create"))]
#[bench::unlink_128k(
    args = ("unlink, 128 KiB of private data", OFF), setup = prepare, config = held_to("unlink_128k")
)]
#[bench::read_4k(args = ("read 4 KiB", OFF), setup = prepare, config = held_to("read_4k"))]
#[bench::append_100(args = (), setup = prepare_appends, config = held_to("append_100"))]
#[bench::overwrite_4k(
    args = ("write 4 KiB, new data, over private data", OFF), setup = prepare, config = held_to("overwrite_4k")
)]
#[bench::write_128k(
    args = ("write 128 KiB, new data, at the end of a file", INLINE), setup = prepare, config = held_to("write_128k")
)]
#[bench::nv_dedup_new_4k(
    args = ("write 4 KiB, new data, at the end of a file", NV_DEDUP),
    setup = prepare,
    config = held_to("nv_dedup_new_4k")
)]
#[bench::nv_dedup_duplicate_4k(
    args = ("write 4 KiB, duplicate data, at the end of a file", NV_DEDUP),
    setup = prepare,
    config = held_to("nv_dedup_duplicate_4k")
)]
#[bench::denova_new_4k(
    args = ("write 4 KiB, new data, at the end of a file", DENOVA), setup = prepare, config = held_to("denova_new_4k")
)]
#[bench::denova_daemon(
    args = ("dedup daemon, duplicate data in writes of 4 KiB", DENOVA),
    setup = prepare,
    config = held_to("denova_daemon")
)]
fn calls(mut prepared: Prepared) -> Prepared {
    run_measured_calls(&mut *prepared.calls.call, prepared.numbers.clone()).unwrap();
    prepared
}

library_benchmark_group!(name = hot, benchmarks = calls);
main!(library_benchmark_groups = hot);
