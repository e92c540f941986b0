//! One file under random operations: every read is compared with a plain buffer.
//!
//! On the mount this is the program `fsx`, for every policy, and loops of system calls on two files that `fsx` cannot
//! do: copies from one file to another, zeroed ranges, requests past the page cache (O_DIRECT). For the library it is
//! an exerciser with the same ideas (random offset, size and operation, sizes up to 64 KiB, the file up to 256 KiB),
//! which also clones and seeks, and whose files are cloned with their directory while it works. `exerciser.rs` runs all
//! policies with all background jobs.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;

use nvfold::{AllocateMode, CloneOptions, File, FileSystem, InodeNumber, Policy, Whence, errno};
use nvfold_tests::device::{self, Device, POLICIES};
use nvfold_tests::model::exercise::{self, FORMS};
use nvfold_tests::model::posix::Posix;
use nvfold_tests::model::{self, Op, shrink};
use nvfold_tests::mount::Mount;
use nvfold_tests::random::{Seed, fill, soak_factor};
use nvfold_tests::{requires, run};

/// A seed with which fsx once drew a `posix_fallocate` of no bytes.
const FSX_SEED: u64 = 6_624_338_297_716_797_245;
/// Operations per policy, in the library.
const OPS: u64 = 200_000;
/// The same on the mount, where an operation costs as much as twenty in the library; `make soak` runs as many as
/// there.
const OPS_MOUNTED: u64 = 8_000;
/// Loops of a form and operations in each (`make soak`), and operations of the one loop in `make test`.
const FORM_LOOPS: u64 = 100;
const FORM_OPS: usize = 3000;
const FORM_OPS_SHORT: usize = 500;
/// Operations between remounts (library).
const OPS_BETWEEN_REMOUNTS: u64 = 20_000;
/// Largest file.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Largest operation.
const OP_BYTES_MAX: u64 = 64 << 10;

// --- over the mount ------------------------------------------------------------------------------

/// The default operations of `fsx`: read, write, truncate, both mapped and not.
const CLASSIC: &str = "
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
truncate = 10
invalidate = 1
";

/// All operations of `fsx`. It draws sizes from 0 on and skips most operations of size 0, but not `posix_fallocate`,
/// which returns EINVAL then; `fsx` would end with the message that the file system does not support it.
const EVERYTHING: &str = "
[opsize]
min = 1
[weights]
close_open = 1
invalidate = 1
read = 10
write = 10
mapread = 3
mapwrite = 3
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 5
punch_hole = 10
sendfile = 3
posix_fadvise = 2
copy_file_range = 10
";

/// Whole blocks, as a database writes them.
const BLOCKS: &str = "
[opsize]
min = 4096
max = 65536
align = 4096
[weights]
close_open = 1
read = 10
write = 10
truncate = 3
fsync = 2
punch_hole = 5
copy_file_range = 5
";

/// Makes two tests for each policy: the program, and the forms.
macro_rules! over_the_mount {
    ($($policy:literal: $program:ident, $forms:ident;)+) => {
        $(#[test]
        fn $program() {
            requires!(root, fuse, tool("fsx"));
            exercise_mounted($policy);
        }

        #[test]
        fn $forms() {
            requires!(root, fuse);
            exercise_with_forms($policy);
        })+

        #[test]
        fn fsx_has_a_test_over_the_mount_for_every_policy() {
            assert_eq!([$($policy),+], Policy::ALL.map(Policy::name));
        }
    };
}

over_the_mount! {
    "off": fsx_finds_nothing_over_the_mount_with_policy_off, loops_of_system_calls_find_nothing_with_policy_off;
    "inline": fsx_finds_nothing_over_the_mount_with_policy_inline, loops_of_system_calls_find_nothing_with_policy_inline;
    "nv-dedup": fsx_finds_nothing_over_the_mount_with_policy_nv_dedup, loops_of_system_calls_find_nothing_with_policy_nv_dedup;
    "denova": fsx_finds_nothing_over_the_mount_with_policy_denova, loops_of_system_calls_find_nothing_with_policy_denova;
    "deext": fsx_finds_nothing_over_the_mount_with_policy_deext, loops_of_system_calls_find_nothing_with_policy_deext;
    "icid": fsx_finds_nothing_over_the_mount_with_policy_icid, loops_of_system_calls_find_nothing_with_policy_icid;
    "icid+inline": fsx_finds_nothing_over_the_mount_with_policy_icid_inline, loops_of_system_calls_find_nothing_with_policy_icid_inline;
    "icid+deext": fsx_finds_nothing_over_the_mount_with_policy_icid_deext, loops_of_system_calls_find_nothing_with_policy_icid_deext;
    "auto": fsx_finds_nothing_over_the_mount_with_policy_auto, loops_of_system_calls_find_nothing_with_policy_auto;
}

fn exercise_mounted(policy: &str) {
    let mut mount = Mount::fresh(256, policy);
    // Each mapped page costs a fault, which takes most of the time, so the classic mix gets the fewest operations.
    for (name, config, percent) in [("classic", CLASSIC, 20), ("everything", EVERYTHING, 50), ("blocks", BLOCKS, 30)] {
        let seed = Seed::known("fsx over the mount", FSX_SEED);
        let ops = if soak_factor() > 1 { OPS * soak_factor() } else { OPS_MOUNTED };
        exercise_mount(&mount, name, config, ops * percent / 100, seed.value());
    }
    mount.check();
}

/// Runs the forms: in `make test` a short loop of each, in `make soak` as many loops as long as xfstests has them.
fn exercise_with_forms(policy: &str) {
    let (loops, ops) = if soak_factor() > 1 { (FORM_LOOPS, FORM_OPS) } else { (1, FORM_OPS_SHORT) };
    let seed = Seed::new("loops of system calls");
    for (form, number) in FORMS.iter().flat_map(|form| (0..loops).map(move |number| (form, number))) {
        let seed = seed.value().wrapping_add(number);
        let ops = exercise::of_form(&mut fastrand::Rng::with_seed(seed), form, ops);
        shrink::assert_holds(ops, |ops| {
            let mut mount = Posix::mounted(Mount::fresh(64, policy)).direct(form.is_direct);
            let ops = [ops, &[Op::Drain, Op::Reclaim, Op::Remount]].concat();
            let compared = model::compare(&ops, &mut [&mut mount]);
            compared.map_err(|why| format!("policy {policy}, {}, seed {seed}: {why}", form.name))
        });
    }
}

fn exercise_mount(mount: &Mount, name: &str, config: &str, ops: u64, seed: u64) {
    let config_path = mount.scratch().join(format!("{name}.toml"));
    std::fs::write(&config_path, config).expect("write the configuration");
    let fsx = run::run(
        Command::new(nvfold_tests::requires::tool("fsx"))
            .args(["-N", &ops.to_string(), "-S", &seed.to_string(), "-P"])
            .arg(mount.scratch())
            .arg("-f")
            .arg(&config_path)
            .arg(mount.join(name)),
    );
    assert!(fsx.status.success(), "{name}, seed {seed}: {}", fsx.report());
}

// --- against the library -------------------------------------------------------------------------

#[test]
fn the_fsx_exerciser_finds_no_error_in_the_library_with_policy_denova() {
    exercise_library(Policy::DeNova);
}

#[test]
fn the_fsx_exerciser_finds_no_error_in_the_library_with_policy_inline() {
    exercise_library(Policy::Inline);
}

fn exercise_library(policy: Policy) {
    assert!(POLICIES.contains(&policy));
    let seed = Seed::new("the exerciser");
    let mut random = seed.generator();
    let mut exerciser = Exerciser::fresh(policy);
    for step in 0..OPS * soak_factor() {
        if step % OPS_BETWEEN_REMOUNTS == OPS_BETWEEN_REMOUNTS - 1 {
            exerciser.remount();
        }
        exerciser.step(step, &mut random);
    }
    exerciser.remount();
}

/// Clones of files that are worked on meanwhile, and the operations that each of them waits for.
const CLONES: u64 = 40;
const OPS_IN_A_CLONE: usize = 20;
/// Other files in the tree.
const OTHERS: u32 = 30;

/// What the content of the files was after each operation that may have changed it.
#[derive(Default)]
struct States {
    all: Mutex<Vec<u64>>,
    one_more: Condvar,
}

impl States {
    /// Waits until there are more than this many; returns how many there are.
    fn wait_for_more(&self, than: usize) -> usize {
        let mut all = self.all.lock().expect("the exerciser has not failed");
        while all.len() <= than {
            let (next, waited) = self.one_more.wait_timeout(all, run::limit()).expect("the exerciser has not failed");
            assert!(!waited.timed_out(), "the exerciser is stuck");
            all = next;
        }
        all.len()
    }

    fn add(&self, state: u64) {
        self.all.lock().expect("nobody has failed").push(state);
        self.one_more.notify_all();
    }
}

/// Two files are worked on by one thread, and cloned with their directory by another: a clone has both as they were after
/// one of the operations that ran during the call.
#[test]
fn clones_of_files_that_the_fsx_exerciser_works_on_are_one_of_their_states_each() {
    let seed = Seed::new("the exerciser beside clones");
    for policy in POLICIES {
        let mut exerciser = Exerciser::fresh(policy);
        let fs = exerciser.fs.clone().expect("mounted");
        // Each step of a clone is as short as can be.
        fs.set_clone_turn(1);
        let work = fs.lookup(InodeNumber::ROOT, WORK).expect("look up").ino;
        for number in 0..OTHERS {
            let name = format!("other {number}");
            fs.create(work, name.as_bytes(), &device::regular()).expect("create");
        }
        let (states, is_over) = (States::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = seed.generator();
                states.add(hash_of(&exerciser.expected));
                for step in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    exerciser.step(step, &mut random);
                    states.add(hash_of(&exerciser.expected));
                }
            });
            let _over = Over(&is_over);
            for number in 0..CLONES * soak_factor() {
                let begun = states.wait_for_more(0);
                let in_it = Cell::new(begun);
                let progress = |_| {
                    if in_it.get() < begun + OPS_IN_A_CLONE {
                        in_it.set(states.wait_for_more(in_it.get()));
                    }
                    ControlFlow::Continue(())
                };
                let options = CloneOptions { caller: None, progress: Some(&progress) };
                let copy = fs.clone_tree(work, InodeNumber::ROOT, b"copy", &options).expect("clone").attr;
                assert!(in_it.get() > begun, "nothing changed while it was cloned");
                // The operation that was under way when the clone ended may be in it.
                let ended = states.wait_for_more(states.wait_for_more(0));
                let content = hash_of(&open_in(&fs, copy.ino).map(|file| content_of(&file)));
                let possible = states.all.lock().expect("the exerciser has not failed")[begun - 1..ended].to_vec();
                let is_one = possible.contains(&content);
                assert!(is_one, "{}, clone {number} is none of {} states", policy.name(), possible.len());
                fs.remove_tree(InodeNumber::ROOT, b"copy").expect("remove the clone");
                while !fs.remove_step().expect("free it") {}
            }
        });
        drop(fs);
        exerciser.remount();
    }
}

/// Ends the exerciser when this is dropped, also by a panic.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn hash_of(contents: &[Vec<u8>; 2]) -> u64 {
    let mut hasher = DefaultHasher::new();
    contents.hash(&mut hasher);
    hasher.finish()
}

fn content_of(file: &File) -> Vec<u8> {
    let mut content = vec![0; file.attr().size as usize];
    assert_eq!(file.read_at(0, &mut content).expect("read"), content.len());
    content
}

/// A file and the buffer with its expected content, and a second file to clone to and from.
struct Exerciser {
    device: Device,
    policy: Policy,
    fs: Option<FileSystem>,
    files: Vec<File>,
    expected: [Vec<u8>; 2],
}

/// The directory of the files. One is in a directory below, so that a clone comes to them in steps of their own.
const WORK: &[u8] = b"work";
const NAMES: [&str; 2] = ["one", "below/two"];

impl Exerciser {
    fn fresh(policy: Policy) -> Exerciser {
        let device = Device::of(64, policy);
        let fs = device.mount(policy);
        let mkdir = |dir, name: &[u8]| fs.mkdir(dir, name, &device::directory()).expect("make a directory").ino;
        let work = mkdir(InodeNumber::ROOT, WORK);
        fs.create(work, b"one", &device::regular()).expect("create");
        fs.create(mkdir(work, b"below"), b"two", &device::regular()).expect("create");
        let files = open(&fs);
        Exerciser { device, policy, fs: Some(fs), files, expected: Default::default() }
    }

    fn remount(&mut self) {
        self.files.clear();
        self.fs.take().expect("mounted").unmount().expect("unmount");
        self.device.check();
        let fs = self.device.mount(self.policy);
        self.files = open(&fs);
        self.fs = Some(fs);
        for which in 0..2 {
            self.read(0, which, 0, FILE_BYTES_MAX);
        }
    }

    fn step(&mut self, step: u64, random: &mut fastrand::Rng) {
        let which = random.usize(0..2);
        let align = [1, 1, 64, 512, 4096][random.usize(0..5)];
        let offset = random.u64(0..FILE_BYTES_MAX) / align * align;
        let len = random.u64(0..=OP_BYTES_MAX.min(FILE_BYTES_MAX - offset)) / align * align;
        match random.u8(0..100) {
            0..30 => self.read(step, which, offset, len),
            30..60 => self.write(which, offset, len, random),
            60..68 => self.set_len(which, offset),
            68..72 => self.allocate(which, offset, len, AllocateMode::Reserve),
            72..74 => self.allocate(which, offset, len, AllocateMode::ReserveKeepSize),
            74..80 => self.allocate(which, offset, len, AllocateMode::PunchHole),
            80..83 => self.allocate(which, offset, len, AllocateMode::ZeroRange),
            83..85 => self.allocate(which, offset, len, AllocateMode::ZeroRangeKeepSize),
            85..95 => self.clone(which, offset, len, random),
            95..97 => self.append(which, len, random),
            97 => _ = self.fs.as_ref().expect("mounted").drain_step().expect("drain"),
            _ => self.seek(step, which, offset),
        }
        let size = self.files[which].attr().size;
        assert_eq!(size, self.expected[which].len() as u64, "step {step}: size");
    }

    fn read(&self, step: u64, which: usize, offset: u64, len: u64) {
        let mut buffer = vec![0xEE; len as usize];
        let count = self.files[which].read_at(offset, &mut buffer).expect("read");
        let expected = &self.expected[which];
        let start = expected.len().min(offset as usize);
        let end = expected.len().min((offset + len) as usize);
        assert_eq!(count, end - start, "step {step}: bytes read at {offset}+{len}");
        if let Some(at) = (0..count).find(|&at| buffer[at] != expected[start + at]) {
            panic!(
                "step {step}: byte {:#x} of file {which} is {:#04x}, not {:#04x} (read of {offset:#x}+{len:#x})",
                start + at,
                buffer[at],
                expected[start + at]
            );
        }
    }

    fn write(&mut self, which: usize, offset: u64, len: u64, random: &mut fastrand::Rng) {
        let mut data = vec![0; len as usize];
        fill(random, &mut data);
        self.files[which].write_at(offset, &data).expect("write");
        self.put(which, offset, &data);
    }

    fn append(&mut self, which: usize, len: u64, random: &mut fastrand::Rng) {
        let end = self.expected[which].len() as u64;
        let mut data = vec![0; len.min(FILE_BYTES_MAX - end) as usize];
        fill(random, &mut data);
        assert_eq!(self.files[which].append(&data).expect("append"), end, "where it was appended");
        self.put(which, end, &data);
    }

    fn put(&mut self, which: usize, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let expected = &mut self.expected[which];
        let end = offset as usize + data.len();
        if expected.len() < end {
            expected.resize(end, 0);
        }
        expected[offset as usize..end].copy_from_slice(data);
    }

    fn set_len(&mut self, which: usize, size: u64) {
        self.files[which].set_len(size).expect("set the length");
        self.expected[which].resize(size as usize, 0);
    }

    fn allocate(&mut self, which: usize, offset: u64, len: u64, mode: AllocateMode) {
        use AllocateMode::*;
        let len = len.max(1);
        self.files[which].allocate(offset, len, mode).expect("allocate");
        let expected = &mut self.expected[which];
        let end = (offset + len) as usize;
        if matches!(mode, Reserve | ZeroRange) && expected.len() < end {
            expected.resize(end, 0);
        }
        if matches!(mode, PunchHole | ZeroRange | ZeroRangeKeepSize) {
            let end = expected.len().min(end);
            expected[end.min(offset as usize)..end].fill(0);
        }
    }

    fn clone(&mut self, from: usize, from_offset: u64, len: u64, random: &mut fastrand::Rng) {
        let to = random.usize(0..2);
        let to_offset = random.u64(0..=FILE_BYTES_MAX - len);
        let overlaps = from_offset < to_offset + len && to_offset < from_offset + len;
        if from == to && overlaps {
            return;
        }
        let cloned = self.files[to].clone_from(&self.files[from], from_offset, to_offset, len);
        let cloned = cloned.expect("clone");
        let start = self.expected[from].len().min(from_offset as usize);
        let end = self.expected[from].len().min((from_offset + len) as usize);
        assert_eq!(cloned, (end - start) as u64, "bytes cloned");
        let data = self.expected[from][start..end].to_vec();
        self.put(to, to_offset, &data);
    }

    /// Checks seeks. The file system chooses where data and holes are. But a hole must read as zeros, data and holes
    /// must alternate, and there must be a hole at the end.
    fn seek(&self, step: u64, which: usize, offset: u64) {
        let (file, expected) = (&self.files[which], &self.expected[which]);
        let end = expected.len() as u64;
        let data = file.seek(offset, Whence::Data);
        let hole = file.seek(offset, Whence::Hole);
        if offset >= end {
            for sought in [data, hole] {
                let error = sought.expect_err("a seek past the end");
                assert_eq!(error.errno(), errno::ENXIO, "step {step}: seek past the end");
            }
            return;
        }
        let hole = hole.expect("there is always a hole at the end");
        assert!(offset <= hole && hole <= end, "step {step}: hole at {hole} from {offset} of {end}");
        let data = match data {
            Ok(data) => {
                assert!(offset <= data && data < end, "step {step}: data at {data} from {offset} of {end}");
                data
            }
            Err(error) => {
                assert_eq!(error.errno(), errno::ENXIO, "step {step}: no data");
                end
            }
        };
        assert!(data == offset || hole == offset, "step {step}: {offset} is in data or in a hole");
        assert!(data != hole, "step {step}: {data} is not both");
        let zeros = &expected[offset as usize..data as usize];
        assert!(zeros.iter().all(|&byte| byte == 0), "step {step}: bytes in a hole at {offset}..{data}");
    }
}

fn open(fs: &FileSystem) -> Vec<File> {
    let work = fs.lookup(InodeNumber::ROOT, WORK).expect("look up");
    open_in(fs, work.ino).into()
}

fn open_in(fs: &FileSystem, dir: InodeNumber) -> [File; 2] {
    NAMES.map(|name| {
        let found = name.split('/').fold(dir, |dir, name| fs.lookup(dir, name.as_bytes()).expect("look up").ino);
        fs.open(found).expect("open")
    })
}
