//! Sharing later saves as much as sharing at once, on either index; and the pm index takes no DRAM, whatever the
//! fingerprints are.

use std::path::{Path, PathBuf};

use nvfold::{
    DedupMode, FileSystem, IndexKind, InodeNumber, Method, MethodChoice, MountOptions, NvDedupOptions, Pack, Policy,
    ReorderOptions, StrongFunction, Verify, WeakFunction,
};
use nvfold_tests::device::{self, Device};
use nvfold_tests::model::op;
use nvfold_tests::shared::Named;

const ROOT: InodeNumber = InodeNumber::ROOT;
const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Bytes taken from a real tree.
const TREE_BYTES_MAX: u64 = 24 * MIB;
/// Directories that most machines have; the last two belong to this project.
const TREES: [&str; 5] = [
    "/usr/share/doc",
    "/usr/share/locale",
    "/usr/share/perl",
    concat!(env!("CARGO_MANIFEST_DIR"), "/../crates"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"),
];

/// Returns the files of the first two trees that exist, up to the limit of bytes.
fn real_files() -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for tree in TREES.iter().map(Path::new).filter(|tree| tree.is_dir()).take(2) {
        let (mut bytes, mut paths) = (0, vec![tree.to_owned()]);
        while let Some(path) = paths.pop().filter(|_| bytes < TREE_BYTES_MAX) {
            let Ok(meta) = path.symlink_metadata() else { continue };
            if meta.is_dir() {
                let mut entries: Vec<_> =
                    path.read_dir().into_iter().flatten().flatten().map(|one| one.path()).collect();
                entries.sort();
                paths.extend(entries);
            } else if meta.is_file()
                && let Ok(content) = std::fs::read(&path)
            {
                bytes += content.len() as u64;
                files.push((path, content));
            }
        }
    }
    files
}

/// Stores the files twice; the second copy is as after an upgrade: one file in eight has changed in the middle.
fn store(fs: &FileSystem, files: &[(PathBuf, Vec<u8>)]) {
    for copy in 0..2 {
        let directory = fs.mkdir(ROOT, format!("copy {copy}").as_bytes(), &device::directory()).expect("mkdir").ino;
        for (number, (_, content)) in files.iter().enumerate() {
            let mut content = content.clone();
            let middle = content.len() / 2;
            if copy == 1 && number % 8 == 0 && middle > 0 {
                content[middle] ^= 1;
            }
            let ino = fs.create(directory, number.to_string().as_bytes(), &device::regular()).expect("create").ino;
            let file = fs.open(ino).expect("open");
            for (index, piece) in content.chunks(128 << 10).enumerate() {
                file.write_at(index as u64 * (128 << 10), piece).expect("write");
            }
        }
    }
}

fn drain(fs: &FileSystem) {
    while !fs.drain_step().expect("drain") {}
    assert_eq!(fs.stats().denova.map_or(0, |denova| denova.queue_entries), 0);
}

#[test]
fn sharing_later_saves_as_much_as_sharing_at_once() {
    let files = real_files();
    let bytes: usize = files.iter().map(|(_, content)| content.len()).sum();
    let inline = Device::fresh(256);
    // Packed ends are shared at once, or not at all.
    let blocks = MountOptions { pack: Pack::Off, ..device::options() };
    let fs = inline.try_mount(MountOptions { policy: Policy::Inline, ..blocks.clone() }).expect("mount");
    store(&fs, &files);
    let expected = fs.stats();
    assert!(bytes > 0 && expected.saved_bytes > expected.logical_bytes / 3, "nothing repeats: {expected:?}");
    fs.unmount().expect("unmount");
    let ours = NvDedupOptions::default();
    let paper =
        NvDedupOptions { weak: WeakFunction::Sha1, strong: Some(StrongFunction::Sha1), verify: Verify::Strong, ..ours };
    for (index, nv_dedup) in [(IndexKind::Dram, ours), (IndexKind::Pm, ours), (IndexKind::Pm, paper)] {
        let device = Device::indexed(256, index, nv_dedup.weak);
        let options = MountOptions { policy: Policy::DeNova, nv_dedup, ..blocks.clone() };
        let fs = device.try_mount(options.clone()).expect("mount");
        assert_eq!((fs.index_kind(), fs.weak_function()), (index, nv_dedup.weak));
        store(&fs, &files);
        let queued = fs.stats();
        assert_eq!((queued.saved_bytes, queued.logical_bytes), (0, expected.logical_bytes), "a writer shares nothing");
        // Half of the queue is shared after an unmount, which saves the queue.
        for _ in 0..files.len() / 2 {
            fs.drain_step().expect("drain");
        }
        fs.unmount().expect("unmount");
        device.check();
        let fs = device.try_mount(options).expect("mount");
        drain(&fs);
        let stats = fs.stats();
        assert_eq!((stats.saved_bytes, stats.stored_bytes), (expected.saved_bytes, expected.stored_bytes), "{index:?}");
        assert_eq!(Named::of(&fs).expect("read").stored_twice(&fs), 0);
        for (number, (path, content)) in files.iter().enumerate().step_by(7) {
            let attr = fs.resolve(format!("copy 0/{number}").as_bytes()).expect("look up");
            let mut read = vec![0; content.len()];
            fs.open(attr.ino).expect("open").read_at(0, &mut read).expect("read");
            assert!(&read == content, "{} reads otherwise than it was written", path.display());
        }
        fs.unmount().expect("unmount");
        device.check();
    }
    println!("{} files of {bytes} bytes, twice: {} bytes saved", files.len(), expected.saved_bytes);
}

/// Returns blocks whose weak fingerprints are in one chain of the pm index of a device of 16 MiB.
fn one_prefix(count: usize) -> Vec<Vec<u8>> {
    let block = |counter: u64| {
        let mut block = vec![0x3A; BLOCK as usize];
        block[..8].copy_from_slice(&counter.to_le_bytes());
        block
    };
    let is_first = |block: &Vec<u8>| WeakFunction::Xxh3.of(block) >> 20 == 0xABC;
    (0..).map(block).filter(is_first).take(count).collect()
}

/// Returns blocks with the same Fletcher-32: words of zeros and words of ones are equal to it.
fn one_fingerprint(count: usize) -> Vec<Vec<u8>> {
    let block = |number: usize| {
        let word = |at: usize| if number >> (at % 16) & 1 == 1 { [0xff; 2] } else { [0; 2] };
        (0..BLOCK as usize / 2).flat_map(word).collect()
    };
    (1..=count).map(block).collect()
}

#[test]
fn a_chain_with_all_fingerprints_works() {
    // The daemon gives up on a batch of blocks with equal fingerprints; writers do not.
    let one_prefix = (Policy::DeNova, WeakFunction::Xxh3, one_prefix(200));
    let one_fingerprint = (Policy::Inline, WeakFunction::Fletcher32, one_fingerprint(400));
    for (policy, weak, blocks) in [one_prefix, one_fingerprint] {
        for index in IndexKind::ALL {
            let device = Device::indexed(16, index, weak);
            let nv_dedup = NvDedupOptions { weak, ..NvDedupOptions::default() };
            let mut options = MountOptions { policy, nv_dedup, ..device::options() };
            options.denova.reorder = ReorderOptions { references: 3, reads: 10 };
            let fs = device.try_mount(options.clone()).expect("mount");
            let data = blocks.concat();
            let write = |fs: &FileSystem, name: &[u8], data: &[u8]| {
                let file = fs.open(fs.create(ROOT, name, &device::regular()).expect("create").ino).expect("open");
                file.write_at(0, data).expect("write");
            };
            write(&fs, b"first", &data);
            drain(&fs);
            let stats = fs.stats();
            assert_eq!((stats.stored_bytes, stats.index.entries), (data.len() as u64, blocks.len() as u64), "{weak:?}");
            if index == IndexKind::Pm {
                let (reads, lookups) = (stats.index.reads, stats.index.lookups);
                assert!(reads > lookups * blocks.len() as u64 / 4, "one chain: {reads} reads in {lookups} searches");
            }
            write(&fs, b"second", &data);
            // The first blocks are behind all others in their chain. They are searched for again and again, so they move
            // to the front.
            let first = &data[..8 * BLOCK as usize];
            for name in [b"third", b"fifth", b"sixth"] {
                write(&fs, name, first);
                drain(&fs);
                while !fs.reorder_step().expect("reorder") {}
            }
            let saved = (blocks.len() + 3 * 8) as u64 * BLOCK;
            assert_eq!((fs.stats().stored_bytes, fs.stats().saved_bytes), (data.len() as u64, saved), "{weak:?}");
            assert!(index == IndexKind::Dram || fs.stats().index.reordered > 0, "{:?}", fs.stats().index);
            // Make holes in the chain, at its end and in its middle, then add new blocks.
            for name in [b"first", b"third"] {
                fs.unlink(ROOT, name).expect("unlink");
            }
            let second = fs.open(fs.lookup(ROOT, b"second").expect("look up").ino).expect("open");
            for block in (0..blocks.len() as u64).step_by(3) {
                second.allocate(block * BLOCK, BLOCK, nvfold::AllocateMode::PunchHole).expect("punch");
            }
            drop(second);
            fs.unmount().expect("unmount");
            device.check();
            let fs = device.try_mount(options.clone()).expect("mount");
            write(&fs, b"again", &data);
            drain(&fs);
            assert_eq!(
                (fs.stats().stored_bytes, Named::of(&fs).expect("read").stored_twice(&fs)),
                (data.len() as u64, 0)
            );
            let mut read = vec![0; data.len()];
            let again = fs.lookup(ROOT, b"again").expect("look up").ino;
            fs.open(again).expect("open").read_at(0, &mut read).expect("read");
            assert!(read == data);
            fs.unmount().expect("unmount");
            device.check();
        }
    }
}

#[test]
fn the_pm_index_takes_no_dram_at_any_fill() {
    for policy in [Policy::Inline, Policy::NvDedup, Policy::DeNova] {
        let device = Device::indexed(128, IndexKind::Pm, WeakFunction::Xxh3);
        // A fingerprint for every block, whether it pays or not.
        let method = MethodChoice::Fixed(Method::WBFin);
        let nv_dedup = NvDedupOptions { method, ..NvDedupOptions::default() };
        let fs = device.try_mount(MountOptions { policy, nv_dedup, ..device::options() }).expect("mount");
        let empty = fs.stats().index;
        let mut random = fastrand::Rng::with_seed(7);
        let mut entries = 0;
        for round in 0..4 {
            let file = fs.create(ROOT, format!("{round}").as_bytes(), &device::regular()).expect("create").ino;
            let mut data = vec![0; 16 << 20];
            random.fill(&mut data);
            fs.open(file).expect("open").write_at(0, &data).expect("write");
            while !fs.drain_step().expect("drain") {}
            let index = fs.stats().index;
            assert!(index.entries >= entries + 4096, "{policy:?}: {index:?}");
            assert_eq!((index.dram_bytes, index.media_bytes), (empty.dram_bytes, empty.media_bytes), "{policy:?}");
            entries = index.entries;
        }
        // The index takes 16 bytes of the device per block, in whole segments.
        assert!((1..=4 * MIB).contains(&empty.media_bytes), "{empty:?}");
        fs.unmount().expect("unmount");
        device.check();
    }
}

#[test]
fn changing_the_denova_mode_affects_writers_and_keeps_the_queue() {
    for index in IndexKind::ALL {
        let device = Device::indexed(32, index, WeakFunction::Xxh3);
        let fs = device.mount(Policy::DeNova);
        let data = op::data(op::IN_CHAINS, 4 * BLOCK);
        let write = |name: &str| {
            let ino = fs.create(ROOT, name.as_bytes(), &device::regular()).expect("create").ino;
            fs.open(ino).expect("open").write_at(0, &data).expect("write");
        };
        let queued = || fs.stats().denova.expect("under denova").queue_entries;
        let delayed = DedupMode::Delayed { interval_ms: 1, entries: 1 };
        for (mode, waits) in [(DedupMode::Immediate, 1), (delayed, 2), (DedupMode::Inline, 2), (delayed, 3)] {
            fs.set_dedup_mode(mode);
            assert_eq!(fs.dedup_mode(), mode);
            write(&mode.to_string().replace(':', "-").replace("delayed", &format!("delayed{waits}")));
            assert_eq!(queued(), waits, "{index:?}, {mode}");
        }
        drain(&fs);
        assert_eq!((fs.stats().stored_bytes, fs.stats().logical_bytes), (4 * BLOCK, 16 * BLOCK));
        fs.unmount().expect("unmount");
        device.check();
    }
}

/// A compaction of the log writes its entries again while the daemon is far behind. It must still process each block
/// once.
#[test]
fn the_daemon_reads_each_block_of_a_growing_file_once() {
    const APPENDS: u64 = 20_000;
    for (appends_a_step, copies) in [(3, 1), (40, 1), (200, 1), (40, 4)] {
        let device = Device::fresh(256);
        let fs = device.mount(Policy::DeNova);
        let file = fs.open(fs.create(ROOT, b"log", &device::regular()).expect("create").ino).expect("open");
        let mut block = vec![7; BLOCK as usize];
        for number in 0..APPENDS {
            // So many consecutive blocks are equal.
            block[..8].copy_from_slice(&(number / copies).to_le_bytes());
            file.write_at(number * BLOCK, &block).expect("append");
            if number % appends_a_step == 0 {
                fs.drain_step().expect("a step of the daemon");
            }
        }
        drain(&fs);
        let stats = fs.stats();
        let denova = stats.denova.expect("statistics of the daemon");
        let looked_at = denova.looked_at_bytes / BLOCK;
        let what = format!("a step each {appends_a_step} appends, {copies} equal");
        assert_eq!(denova.queue_entries, 0, "{what}");
        assert!((APPENDS..=APPENDS * 6 / 5).contains(&looked_at), "{what}: {looked_at} of {APPENDS}");
        assert_eq!(stats.stored_bytes, APPENDS / copies * BLOCK, "{what}");
        drop(file);
        fs.unmount().expect("unmount");
        device.check();
    }
}

/// When the log is written again, the queued part of each extent gets its own entry: more entries than fit the inode.
#[test]
fn a_compacted_log_may_have_several_entries_for_one_extent() {
    for steps in [0, 1, 2, 7, 20] {
        let device = Device::fresh(64);
        let fs = device.mount(Policy::DeNova);
        let file = fs.open(fs.create(ROOT, b"parts", &device::regular()).expect("create").ino).expect("open");
        let content = |number: u64| [&number.to_le_bytes()[..], &[3; BLOCK as usize - 8]].concat();
        let mut written = Vec::new();
        for part in 0..5 {
            for number in 0..130 {
                let block = part * 1000 + number;
                file.write_at(block * BLOCK, &content(block)).expect("write");
                written.push(block);
                if (20..20 + steps).contains(&number) {
                    fs.drain_step().expect("a step of the daemon");
                }
            }
        }
        let check = |fs: &FileSystem| {
            let file = fs.open(fs.resolve(b"parts").expect("look up").ino).expect("open");
            for block in &written {
                let mut read = vec![0; BLOCK as usize];
                file.read_at(block * BLOCK, &mut read).expect("read");
                assert!(read == content(*block), "block {block}, {steps} steps a part");
            }
        };
        check(&fs);
        drop(file);
        fs.unmount().expect("unmount");
        device.check();
        let fs = device.mount(Policy::DeNova);
        check(&fs);
        drain(&fs);
        let looked_at = fs.stats().denova.expect("statistics of the daemon").looked_at_bytes / BLOCK;
        assert!(looked_at <= written.len() as u64, "{looked_at} of {} blocks, {steps} steps a part", written.len());
        check(&fs);
        fs.unmount().expect("unmount");
        device.check();
    }
}
