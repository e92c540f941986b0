//! The interface for policies, shown by two more policies: each is one file outside of the crate and one line in the mount
//! options, also the one that works in the background. No other code knows them, and they cannot lose data, leak a block or
//! miscount.

mod night;
mod zeros;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use nvfold::{File, FileSystem, InodeNumber, MountOptions, Policy};
use nvfold_tests::device::{self, Device};
use nvfold_tests::random::Seed;

const ROOT: InodeNumber = InodeNumber::ROOT;
const BLOCK: u64 = 4096;
const REQUEST: usize = 128 << 10;
const DEVICE_MIB: u64 = 64;

/// Mounts with the policy: this is the one line.
fn mount(device: &Device) -> FileSystem {
    let options = MountOptions { custom_policy: Some(Arc::new(zeros::Zeros::default())), ..device::options() };
    device.try_mount(MountOptions { policy: Policy::Off, ..options }).expect("mount")
}

fn create(fs: &FileSystem, name: &str) -> File {
    fs.open(fs.create(ROOT, name.as_bytes(), &device::regular()).expect("create").ino).expect("open")
}

fn content(fs: &FileSystem, name: &str) -> Vec<u8> {
    let file = fs.open(fs.lookup(ROOT, name.as_bytes()).expect("lookup").ino).expect("open");
    let mut bytes = vec![0; file.attr().size as usize];
    assert_eq!(file.read_at(0, &mut bytes).expect("read"), bytes.len());
    bytes
}

/// Returns blocks that are all different and not zeros.
fn distinct(random: &mut fastrand::Rng, blocks: u64) -> Vec<u8> {
    let mut bytes = vec![0; (blocks * BLOCK) as usize];
    random.fill(&mut bytes);
    bytes
}

fn stored_blocks(fs: &FileSystem) -> u64 {
    fs.stats().stored_bytes / BLOCK
}

#[test]
fn the_toy_policy_stores_zeros_once_and_other_data_unshared() {
    let seed = Seed::new("a policy for zeros");
    let mut random = seed.generator();
    let device = Device::fresh(DEVICE_MIB);
    let fs = mount(&device);
    let (one, many) = (create(&fs, "one"), create(&fs, "many"));
    one.write_at(0, &[0; BLOCK as usize]).expect("write");
    assert_eq!(stored_blocks(&fs), 1);
    one.write_at(BLOCK, &[0; BLOCK as usize]).expect("write");
    many.write_at(0, &vec![0; REQUEST]).expect("write");
    assert_eq!(stored_blocks(&fs), 1, "single blocks and a request of 32 share the first one");
    // Data other than zeros is stored every time it is written, alone or in a request with zeros.
    let data = distinct(&mut random, 3);
    let mixed = [&data[..], &[0; 2 * BLOCK as usize], &data, &[0; 3 * BLOCK as usize]].concat();
    many.write_at(REQUEST as u64, &mixed).expect("write");
    assert_eq!(stored_blocks(&fs), 1 + 6);
    // A block of almost zeros is not shared; a block that becomes zeros by a partial write is.
    let mut almost = [0; BLOCK as usize];
    almost[BLOCK as usize - 1] = 1;
    one.write_at(2 * BLOCK, &almost).expect("write");
    assert_eq!(stored_blocks(&fs), 1 + 6 + 1);
    one.write_at(3 * BLOCK - 1, &[0]).expect("write");
    assert_eq!(stored_blocks(&fs), 1 + 6);
    let (expected_one, expected_many) = (vec![0; 3 * BLOCK as usize], [&vec![0; REQUEST][..], &mixed].concat());
    assert_eq!((content(&fs, "one"), content(&fs, "many")), (expected_one.clone(), expected_many.clone()));
    drop((one, many));
    fs.unmount().expect("unmount");
    device.check();
    let fs = mount(&device);
    assert_eq!((content(&fs, "one"), content(&fs, "many")), (expected_one, expected_many));
    assert_eq!(stored_blocks(&fs), 1 + 6);
}

#[test]
fn the_first_request_of_zeros_stores_one_block() {
    let device = Device::fresh(DEVICE_MIB);
    let fs = mount(&device);
    create(&fs, "file").write_at(0, &vec![0; REQUEST]).expect("write");
    assert_eq!(stored_blocks(&fs), 1);
    fs.unmount().expect("unmount");
    device.check();
}

#[test]
fn the_zero_block_is_freed_with_its_last_reference_and_stored_again_later() {
    let seed = Seed::new("zeros that go");
    let mut random = seed.generator();
    let device = Device::fresh(DEVICE_MIB);
    let fs = mount(&device);
    for round in 0..3 {
        let [a, b] = ["a", "b"].map(|name| create(&fs, name));
        a.write_at(0, &vec![0; REQUEST]).expect("write");
        b.write_at(0, &[0; BLOCK as usize]).expect("write");
        assert_eq!(stored_blocks(&fs), 1, "round {round}");
        let data = distinct(&mut random, REQUEST as u64 / BLOCK);
        a.write_at(0, &data).expect("overwrite");
        assert_eq!(stored_blocks(&fs), 1 + REQUEST as u64 / BLOCK);
        assert_eq!(content(&fs, "a"), data);
        drop((a, b));
        fs.unlink(ROOT, b"b").expect("unlink");
        assert_eq!(stored_blocks(&fs), REQUEST as u64 / BLOCK, "nobody names the zeros any more");
        fs.trim().expect("trim");
        // Its block gets another content, and must no longer be taken for zeros.
        create(&fs, "c").write_at(0, &distinct(&mut random, 64)).expect("write");
        let d = create(&fs, "d");
        d.write_at(0, &[0; 3 * BLOCK as usize]).expect("write");
        assert_eq!(content(&fs, "d"), vec![0; 3 * BLOCK as usize]);
        drop(d);
        ["a", "c", "d"].into_iter().for_each(|name| fs.unlink(ROOT, name.as_bytes()).expect("unlink"));
        assert_eq!(stored_blocks(&fs), 0, "round {round}");
    }
    fs.unmount().expect("unmount");
    device.check();
}

/// A crash loses only what the policy knows, not the counts of the blocks that it shared.
#[test]
fn a_crash_under_the_toy_policy_loses_no_data_and_no_count() {
    let seed = Seed::new("a policy for zeros, and crashes");
    let mut random = seed.generator();
    let device = Device::fresh(DEVICE_MIB);
    let mut expected: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..4u64 {
        let fs = mount(&device);
        for (name, bytes) in &expected {
            assert_eq!(content(&fs, name), *bytes, "{name} after {round} crashes");
        }
        // Zeros from before the crash and from now, in either order with reconcile.
        let (name, data) = (format!("file {round}"), distinct(&mut random, 5));
        let bytes = [&vec![0; REQUEST][..], &data, &[0; BLOCK as usize]].concat();
        let file = create(&fs, &name);
        file.write_at(0, &bytes).expect("write");
        if round % 2 == 1 {
            fs.reconcile().expect("reconcile");
            // Each mount knows only its own block of zeros, and each earlier mount has overwritten some of them.
            assert_eq!(stored_blocks(&fs), round * (1 + 5 + 5) + (1 + 5));
        }
        file.write_at(0, &data).expect("overwrite");
        expected.push((name, [&data, &bytes[data.len()..]].concat()));
    }
    let fs = mount(&device);
    fs.reconcile().expect("reconcile");
    fs.unmount().expect("unmount");
    device.check();
    let fs = mount(&device);
    for (name, bytes) in &expected {
        assert_eq!(content(&fs, name), *bytes);
        fs.unlink(ROOT, name.as_bytes()).expect("unlink");
    }
    assert_eq!(stored_blocks(&fs), 0, "no block is kept by a count that is too high");
    fs.unmount().expect("unmount");
    device.check();
}

/// The block comes and goes while threads use it.
#[test]
fn threads_share_overwrite_and_remove_the_zero_block() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 300;
    const BLOCKS: u64 = REQUEST as u64 / BLOCK;
    let seed = Seed::new("threads and a policy for zeros");
    let device = Device::fresh(DEVICE_MIB);
    let fs = mount(&device);
    let works = |thread: u64| {
        let mut random = fastrand::Rng::with_seed(seed.value().wrapping_add(thread));
        let name = format!("file {thread}");
        let mut file = create(&fs, &name);
        let mut expected = vec![0; REQUEST];
        file.write_at(0, &expected).expect("write");
        for _ in 0..ROUNDS {
            let count = if random.bool() { 1 } else { random.u64(1..=BLOCKS) };
            let at = random.u64(0..=BLOCKS - count);
            let mut data = distinct(&mut random, count);
            data.chunks_mut(BLOCK as usize).filter(|_| random.bool()).for_each(|block| block.fill(0));
            file.write_at(at * BLOCK, &data).expect("write");
            expected[(at * BLOCK) as usize..][..data.len()].copy_from_slice(&data);
            if random.u8(0..16) == 0 {
                assert_eq!(content(&fs, &name), expected, "{name}");
                drop(file);
                fs.unlink(ROOT, name.as_bytes()).expect("unlink");
                fs.trim().expect("trim");
                file = create(&fs, &name);
                expected.fill(0);
                file.write_at(0, &expected).expect("write");
            }
        }
        expected
    };
    let expected: Vec<Vec<u8>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || works(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    let is_zero = |block: &&[u8]| block.iter().all(|byte| *byte == 0);
    let blocks = || expected.iter().flat_map(|bytes| bytes.chunks(BLOCK as usize));
    let others = blocks().count() - blocks().filter(is_zero).count();
    let zeros = stored_blocks(&fs) - others as u64;
    // Two threads that meet may each keep their block, if the first one disappears in between.
    assert!((1..=THREADS).contains(&zeros), "{zeros} blocks of zeros");
    fs.unmount().expect("unmount");
    device.check();
    let fs = mount(&device);
    (0..).zip(&expected).for_each(|(thread, bytes)| assert_eq!(content(&fs, &format!("file {thread}")), *bytes));
}

#[test]
fn the_toy_policy_is_mentioned_in_one_file_and_one_line() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the workspace");
    let mut pending: Vec<_> = ["crates", "tests", "fuzz"].map(|directory| root.join(directory)).to_vec();
    // Assembled, so that this line does not match.
    let name = ["Zer", "os::default"].concat();
    let mut found = Vec::new();
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).expect("a directory of the workspace") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source");
                found.extend(text.lines().filter(|line| line.contains(&name)).map(|_| path.clone()));
            }
        }
    }
    assert_eq!(found, [root.join("tests/tests/toy_policy.rs")], "the mount above, and nobody else");
}

/// What was stored by day is found by night, once the policy's work in the background has looked through it; also after a
/// crash in between, for then the file system looks for files that lack fingerprints.
#[test]
fn a_policy_with_a_background_job_shares_earlier_data() {
    let seed = Seed::new("a policy that works by night");
    let mut random = seed.generator();
    let data = distinct(&mut random, 500);
    let blocks = data.len() as u64 / BLOCK;
    let device = Device::fresh(DEVICE_MIB);
    let night = Arc::new(night::Night::default());
    let options = || MountOptions { custom_policy: Some(night.clone()), policy: Policy::Off, ..device::options() };
    let fs = device.try_mount(options()).expect("mount");
    ["a", "b"].into_iter().for_each(|name| create(&fs, name).write_at(0, &data).expect("write"));
    assert_eq!(stored_blocks(&fs), 2 * blocks, "by day all is stored");
    night.is_night.store(true, Ordering::Relaxed);
    create(&fs, "c").write_at(0, &data).expect("write");
    assert_eq!(stored_blocks(&fs), 3 * blocks, "nothing was looked through yet");
    let steps = (0..).take_while(|_| !fs.fill_step().expect("fill")).count() as u64;
    let filled = night.filled.load(Ordering::Relaxed);
    assert!(steps >= 2 * blocks / 128 && filled > 0, "{steps} bounded steps, {filled} blocks in those of the policy");
    create(&fs, "d").write_at(0, &data).expect("write");
    assert_eq!(stored_blocks(&fs), 3 * blocks, "all is shared");
    drop(fs);
    let fs = device.try_mount(options()).expect("mount after a crash");
    fs.reconcile().expect("reconcile");
    ["a", "b", "c", "d"].into_iter().for_each(|name| assert_eq!(content(&fs, name), data, "{name}"));
    assert_eq!(stored_blocks(&fs), 3 * blocks);
    fs.unmount().expect("unmount");
    device.check();
}
