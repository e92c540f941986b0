//! Host memory follows the stored data: after each of five histories a device holds at most 1.05 times the stored
//! bytes plus 8 MiB, once its background rounds have run.
//!
//! `cargo test -p nvfold-tests host_memory -- --nocapture` prints the held and the stored bytes.
//! `scripts/host-memory.sh` does the same on mounts, five seconds after the last operation.

use nvfold::{File, FileSystem, InodeNumber, Policy, errno};
use nvfold_tests::device::{self, Device};
use nvfold_tests::random::{self, Seed};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Bytes that a history stores, approximately.
const STORED_MIB: u64 = 128;

/// Files with the sizes of real trees: many small ones, with most bytes in large ones.
struct Tree {
    files: Vec<(u64, u64)>,
}

impl Tree {
    fn new(random: &mut fastrand::Rng) -> Tree {
        let mut left = STORED_MIB * MIB;
        let mut files = Vec::new();
        while left > 0 {
            let most = if random.u8(0..8) == 0 { 8 * MIB } else { 256 << 10 };
            let length = random.u64(1..most).min(left);
            files.push((random.u64(1..1 << 50), length));
            left -= length;
        }
        Tree { files }
    }

    /// Copies the tree into a directory, in requests as a mount makes them.
    fn copy(&self, fs: &FileSystem, name: &str) {
        let dir = fs.mkdir(InodeNumber::ROOT, name.as_bytes(), &device::directory()).expect("mkdir").ino;
        let mut bytes = Vec::new();
        for (number, (seed, length)) in self.files.iter().enumerate() {
            let ino = fs.create(dir, number.to_string().as_bytes(), &device::regular()).expect("create").ino;
            let file = fs.open(ino).expect("open");
            bytes.resize(*length as usize, 0);
            random::fill(&mut fastrand::Rng::with_seed(*seed), &mut bytes);
            for (at, request) in bytes.chunks(128 << 10).enumerate() {
                file.write_at((at as u64) << 17, request).expect("write");
            }
        }
    }

    fn file(&self, fs: &FileSystem, name: &str, number: usize) -> File {
        fs.open(fs.resolve(format!("{name}/{number}").as_bytes()).expect("resolve").ino).expect("open")
    }

    fn each_file(&self, fs: &FileSystem, name: &str, mut each: impl FnMut(&File)) {
        (0..self.files.len()).for_each(|number| each(&self.file(fs, name, number)));
    }
}

/// Runs the background rounds of three seconds.
fn settle(fs: &FileSystem) {
    for _ in 0..3 {
        while !fs.trim_step().expect("a step") {}
    }
}

#[track_caller]
fn assert_held(history: &str, fs: &FileSystem) {
    let before = fs.stats().device_allocated_bytes;
    settle(fs);
    let stats = fs.stats();
    let (held, stored) = (stats.device_allocated_bytes, stats.stored_bytes);
    let in_mib = |bytes: u64| bytes as f64 / MIB as f64;
    let (held_mib, stored_mib, before_mib) = (in_mib(held), in_mib(stored), in_mib(before));
    println!("{history:<40} stored {stored_mib:7.1} MiB   held {held_mib:7.1} MiB   at once {before_mib:7.1} MiB");
    assert!(held <= stored + stored / 20 + 8 * MIB, "{history}: {held} bytes are held for {stored}");
}

/// Runs a history on a fresh device; checks the device afterwards.
fn history(name: &'static str, policy: Policy, run: impl FnOnce(&FileSystem, &Tree, &mut fastrand::Rng)) {
    let mut random = Seed::new(name).generator();
    let tree = Tree::new(&mut random);
    let device = Device::of(5 * STORED_MIB, policy);
    let fs = device.mount(policy);
    run(&fs, &tree, &mut random);
    assert_held(name, &fs);
    let again = fs.stats().device_allocated_bytes;
    settle(&fs);
    assert_eq!(fs.stats().device_allocated_bytes, again, "{name}: what was given back stays given back");
    fs.unmount().expect("unmount");
    device.check();
}

#[test]
fn a_copied_tree_holds_host_memory_only_for_its_stored_data() {
    history("copy", Policy::Inline, |fs, tree, _| tree.copy(fs, "one"));
}

#[test]
fn two_concurrent_copies_hold_host_memory_for_one_after_dedup() {
    history("two concurrent copies, dedup", Policy::Off, |fs, tree, _| {
        std::thread::scope(|scope| {
            let copies = ["one", "two"].map(|name| scope.spawn(move || tree.copy(fs, name)));
            copies.into_iter().for_each(|copy| copy.join().expect("it copies"));
        });
        for name in ["one", "two"] {
            tree.each_file(fs, name, |file| assert!(file.dedup_range(0, u64::MAX).is_ok()));
        }
    });
}

#[test]
fn blocks_freed_by_the_daemon_return_to_the_host() {
    history("denova: two concurrent copies, drain", Policy::DeNova, |fs, tree, _| {
        std::thread::scope(|scope| {
            let copies = ["one", "two"].map(|name| scope.spawn(move || tree.copy(fs, name)));
            copies.into_iter().for_each(|copy| copy.join().expect("it copies"));
        });
        while !fs.drain_step().expect("drain") {}
    });
}

#[test]
fn removing_half_of_the_files_frees_half_of_the_host_memory() {
    history("half of the files deleted", Policy::Inline, |fs, tree, _| {
        tree.copy(fs, "one");
        let dir = fs.resolve(b"one").expect("resolve").ino;
        for number in (0..tree.files.len()).step_by(2) {
            fs.unlink(dir, number.to_string().as_bytes()).expect("unlink");
        }
    });
}

#[test]
fn random_overwrites_hold_host_memory_for_one_copy_only() {
    history("random overwrites", Policy::Inline, |fs, tree, random| {
        tree.copy(fs, "one");
        let mut block = vec![0; BLOCK as usize];
        for _ in 0..STORED_MIB * MIB / BLOCK {
            let number = random.usize(0..tree.files.len());
            let file = tree.file(fs, "one", number);
            random::fill(random, &mut block);
            file.write_at(random.u64(0..tree.files[number].1.div_ceil(BLOCK)) * BLOCK, &block).expect("write");
        }
    });
}

/// Blocks that are freed and reused between two rounds are not given back: no round finds them free twice.
#[test]
fn blocks_that_are_reused_at_once_are_not_punched() {
    let device = Device::of(64, Policy::Off);
    let fs = device.mount(Policy::Off);
    let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &device::regular()).expect("create").ino).expect("open");
    let mut random = Seed::new("what is used again").generator();
    let mut bytes = vec![0; 4 * MIB as usize];
    for round in 0..6 {
        random::fill(&mut random, &mut bytes);
        file.write_at(0, &bytes).expect("write");
        let held = fs.stats().device_allocated_bytes;
        while !fs.trim_step().expect("a step") {}
        let left = fs.stats().device_allocated_bytes;
        assert!(left + 2 * MIB >= held, "round {round}: {held} bytes were held, and {left} are after one round");
    }
    settle(&fs);
    assert!(fs.stats().device_allocated_bytes <= 4 * MIB + 4 * MIB / 20 + 8 * MIB);
    // Giving memory back must not hide free blocks: all of them can be written.
    let rest = fs.statfs().blocks_available * BLOCK;
    file.write_at(4 * MIB, &vec![1; (rest - 8 * BLOCK) as usize]).expect("all that is free serves");
    assert_eq!(file.write_at(0, &bytes).expect_err("nothing is left").errno(), errno::ENOSPC);
}
