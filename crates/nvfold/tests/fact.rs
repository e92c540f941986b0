//! The pm index under the whole file system: the same as the dram index for everybody who uses it, on the device.

use nvfold::check::{CheckOptions, check};
use nvfold::fingerprint::{WeakFunction, weak};
use nvfold::media::direct::prefix_bits;
use nvfold::media::superblock::Geometry;
use nvfold::{
    FileKind, FileSystem, IndexKind, InodeNumber, MkfsOptions, MountOptions, NewInode, Policy, ReorderOptions, Stats,
    convert_index,
};
use pmem::{DeviceSpec, OpenOptions, Region};

const BLOCK: usize = 4096;
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };

fn device(bytes: u64, index: IndexKind) -> Region {
    let region = Region::create(&DeviceSpec::Memory, bytes, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
    region
}

fn mount(region: &Region, policy: Policy) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap()
}

fn assert_consistent(region: &Region) {
    let report = check(region, &CheckOptions::default()).unwrap();
    assert!(report.is_consistent() && report.findings.is_empty(), "{:?}", report.findings);
}

fn block(number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(BLOCK);
    while bytes.len() < BLOCK {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

fn told(stats: &Stats) -> (u64, u64, u64, u64, u64) {
    (stats.logical_bytes, stats.stored_bytes, stats.saved_bytes, stats.chunks, stats.index.entries)
}

/// Writes, overwrites, clones and removes by a seed; the same calls whatever the device.
fn work(fs: &FileSystem, seed: u64, steps: u64) {
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let open = |number: u64| {
        let name = format!("file{number}");
        let ino = match fs.lookup(InodeNumber::ROOT, name.as_bytes()) {
            Ok(attr) => attr.ino,
            Err(_) => fs.create(InodeNumber::ROOT, name.as_bytes(), &NEW).unwrap().ino,
        };
        fs.open(ino).unwrap()
    };
    for _ in 0..steps {
        let file = open(random(8));
        match random(10) {
            0..=5 => {
                let data: Vec<u8> = (0..=random(4)).flat_map(|_| block(random(200))).collect();
                file.write_at(random(64) * BLOCK as u64, &data).unwrap();
            }
            6 => drop(file.clone_from(&open(random(8)), random(32) * 4096, (64 + random(32)) * 4096, 8 * 4096)),
            7 => file.set_len(random(64) * 4096).unwrap(),
            8 => drop(file.dedup_range(0, u64::MAX).unwrap()),
            _ => fs.unlink(InodeNumber::ROOT, format!("file{}", random(8)).as_bytes()).unwrap_or_default(),
        }
    }
}

#[test]
fn it_saves_what_the_dram_index_saves() {
    for policy in [Policy::Inline, Policy::NvDedup, Policy::Off] {
        for seed in 0..4 {
            let devices = IndexKind::ALL.map(|kind| device(32 << 20, kind));
            for round in 0..3 {
                let systems = [mount(&devices[0], policy), mount(&devices[1], policy)];
                for fs in &systems {
                    work(fs, seed * 10 + round, 300);
                    while !fs.dedup_step().unwrap() {}
                }
                assert_eq!(told(&systems[0].stats()), told(&systems[1].stats()), "{policy:?}, seed {seed}");
                assert_eq!(systems[1].index_kind(), IndexKind::Pm);
                for (fs, region) in systems.into_iter().zip(&devices) {
                    // The last round ends with a crash.
                    if round < 2 {
                        fs.unmount().unwrap();
                    } else {
                        drop(fs);
                    }
                    assert_consistent(region);
                }
            }
            let after = devices.map(|region| {
                let fs = mount(&region, policy);
                fs.reconcile().unwrap();
                let stats = told(&fs.stats());
                fs.unmount().unwrap();
                assert_consistent(&region);
                stats
            });
            assert_eq!(after[0], after[1], "{policy:?}, seed {seed}, after the crash");
        }
    }
}

#[test]
fn it_takes_no_dram_for_what_is_stored() {
    let region = device(64 << 20, IndexKind::Pm);
    let fs = mount(&region, Policy::Inline);
    let before = fs.stats().index;
    let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &NEW).unwrap().ino).unwrap();
    (0..5000).for_each(|at| file.write_at(at * 4096, &block(at)).unwrap());
    let after = fs.stats().index;
    assert_eq!((after.entries, after.dram_bytes), (5000, before.dram_bytes));
    assert_eq!(after.media_bytes, 2 << 20);
}

/// Contents whose fingerprints begin with the same bits.
fn of_one_chain(bits: u32, count: usize) -> Vec<Vec<u8>> {
    let mut content = vec![0; BLOCK];
    let mut found = Vec::new();
    for number in 0u64.. {
        content[..8].copy_from_slice(&number.to_le_bytes());
        if weak(&content) >> (32 - bits) == 7 {
            found.push(content.clone());
        }
        if found.len() == count {
            break;
        }
    }
    found
}

#[test]
fn all_in_one_chain_is_slow_and_right() {
    let region = device(16 << 20, IndexKind::Pm);
    let bits = prefix_bits(Geometry::of(16 << 20).unwrap().blocks());
    let contents = of_one_chain(bits, 40);
    let fs = mount(&region, Policy::Inline);
    let files: Vec<_> = (0..3)
        .map(|number| {
            fs.open(fs.create(InodeNumber::ROOT, format!("f{number}").as_bytes(), &NEW).unwrap().ino).unwrap()
        })
        .collect();
    for file in &files {
        contents.iter().zip(0..).for_each(|(content, at)| file.write_at(at * 4096, content).unwrap());
    }
    assert_eq!((fs.stats().data_blocks, fs.stats().index.entries), (40, 40));
    // Out of the middle, from the front, and again.
    for at in [20, 0, 39, 1, 21] {
        files.iter().for_each(|file| file.write_at(at * 4096, &block(at)).unwrap());
        files[0].write_at((100 + at) * 4096, &contents[at as usize]).unwrap();
        files[1].write_at((100 + at) * 4096, &contents[at as usize]).unwrap();
    }
    assert_eq!(fs.stats().data_blocks, 45);
    drop(files);
    fs.unmount().unwrap();
    assert_consistent(&region);
    let fs = mount(&region, Policy::Inline);
    let again = fs.open(fs.create(InodeNumber::ROOT, b"again", &NEW).unwrap().ino).unwrap();
    contents.iter().zip(0..).for_each(|(content, at)| again.write_at(at * 4096, content).unwrap());
    assert_eq!(fs.stats().data_blocks, 45, "a mount finds what was there");
}

#[test]
fn a_search_reads_one_and_a_half_entries_at_full_load() {
    let bytes = 48 << 20;
    let region = device(bytes, IndexKind::Pm);
    let fs = mount(&region, Policy::Inline);
    let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &NEW).unwrap().ino).unwrap();
    let mut stored = 0;
    while fs.statfs().blocks_available > 256 {
        file.write_at(stored * 4096, &block(stored)).unwrap();
        stored += 1;
    }
    let before = fs.stats().index;
    for at in 0..stored {
        file.write_at(at * 4096, &block(at)).unwrap();
    }
    let after = fs.stats().index;
    let reads = (after.reads - before.reads) as f64 / (after.lookups - before.lookups) as f64;
    assert!(stored * 4096 > bytes * 4 / 5, "{stored} blocks fit");
    assert!((1.2..=1.5).contains(&reads), "{reads} entries a search");
}

#[test]
fn what_is_often_found_comes_first() {
    let region = device(16 << 20, IndexKind::Pm);
    let bits = prefix_bits(Geometry::of(16 << 20).unwrap().blocks());
    let contents = of_one_chain(bits, 12);
    let reads = |fs: &FileSystem| fs.stats().index.reads;
    let reorder = ReorderOptions { references: 4, reads: 2 };
    let denova = nvfold::DeNovaOptions { reorder, ..Default::default() };
    let options = MountOptions { policy: Policy::Inline, denova, ..MountOptions::default() };
    let fs = FileSystem::mount(region.clone(), options.clone()).unwrap();
    let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &NEW).unwrap().ino).unwrap();
    contents.iter().zip(0..).for_each(|(content, at)| file.write_at(at * 4096, content).unwrap());
    for at in 0..8 {
        file.write_at((100 + at) * 4096, &contents[11]).unwrap();
    }
    let look = |at: u64| {
        let before = reads(&fs);
        file.write_at(at * 4096, &contents[11]).unwrap();
        reads(&fs) - before
    };
    assert_eq!(look(120), 12, "the last of a chain");
    // Between any two steps everything is found.
    for round in 0..4 {
        assert!(!fs.reorder_step().unwrap());
        for (content, at) in contents.iter().zip(200..) {
            file.write_at((at + 20 * round) * 4096, content).unwrap();
        }
        assert_eq!(fs.stats().data_blocks, 12);
    }
    assert_eq!((look(121), fs.stats().index.reordered), (1, 1), "now the first");
    drop(file);
    fs.unmount().unwrap();
    assert_consistent(&region);
}

#[test]
fn a_device_gets_another_index_and_keeps_everything() {
    for policy in [Policy::Inline, Policy::NvDedup] {
        let region = device(32 << 20, IndexKind::Dram);
        let fs = mount(&region, policy);
        work(&fs, 5, 400);
        let before = told(&fs.stats());
        fs.unmount().unwrap();
        let mut steps = Vec::new();
        for (to, weak) in [
            (IndexKind::Pm, WeakFunction::Xxh3),
            (IndexKind::Pm, WeakFunction::Xxh3),
            (IndexKind::Dram, WeakFunction::Xxh3),
            (IndexKind::Pm, WeakFunction::Crc32),
            (IndexKind::Pm, WeakFunction::Xxh3),
            (IndexKind::Dram, WeakFunction::Xxh3),
        ] {
            convert_index(&region, to, weak, &mut |done, total| steps.push((done, total))).unwrap();
            assert_consistent(&region);
            let fs = mount(&region, Policy::Off);
            assert_eq!((fs.index_kind(), fs.stats().recovery.loaded), (to, true));
            let after = told(&fs.stats());
            assert_eq!((after.0, after.1, after.2, after.3), (before.0, before.1, before.2, before.3));
            if weak == WeakFunction::Xxh3 {
                assert_eq!(after.4, before.4);
            }
            fs.unmount().unwrap();
            assert_consistent(&region);
        }
        assert!(steps.iter().all(|(done, total)| done <= total) && steps.iter().any(|(done, _)| *done > 0));
        let fs = mount(&region, policy);
        let entries = fs.stats().index.entries;
        work(&fs, 6, 200);
        assert!(entries > 0 && fs.stats().index.entries > 0);
        fs.unmount().unwrap();
        assert_consistent(&region);
    }
}

#[test]
fn a_full_device_keeps_its_index() {
    let region = device(16 << 20, IndexKind::Dram);
    let fs = mount(&region, Policy::Inline);
    let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &NEW).unwrap().ino).unwrap();
    let mut stored = 0;
    while file.write_at(stored * 4096, &block(stored)).is_ok() {
        stored += 1;
    }
    drop(file);
    let before = told(&fs.stats());
    fs.unmount().unwrap();
    let refused = convert_index(&region, IndexKind::Pm, WeakFunction::Xxh3, &mut |_, _| {}).unwrap_err();
    assert_eq!(refused.errno(), nvfold::errno::ENOSPC, "{refused}");
    assert_consistent(&region);
    let fs = mount(&region, Policy::Inline);
    assert_eq!((fs.index_kind(), told(&fs.stats())), (IndexKind::Dram, before));
}
