//! Many threads on few files with few different blocks: counts must come out exact.

use nvfold::check::{CheckOptions, check};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn worker(fs: &FileSystem, seed: u64, steps: usize) {
    let mut state = seed;
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    for _ in 0..steps {
        let name = format!("file{}", random(&mut state) % 6);
        let other = format!("file{}", random(&mut state) % 6);
        let (name, other) = (name.as_bytes(), other.as_bytes());
        let offset = random(&mut state) % 64 * 1000;
        let open = |name| fs.lookup(InodeNumber::ROOT, name).and_then(|attr| fs.open(attr.ino));
        let file = match open(name) {
            Ok(file) => file,
            Err(error) => {
                assert_eq!(error.errno(), errno::ENOENT);
                let _ = fs.create(InodeNumber::ROOT, name, &new);
                continue;
            }
        };
        let result = match random(&mut state) % 12 {
            0..=5 => {
                let block = [(random(&mut state) % 4) as u8; 4096];
                let data = block.repeat(1 + (random(&mut state) % 4) as usize);
                file.write_at(if random(&mut state).is_multiple_of(2) { offset / 4096 * 4096 } else { offset }, &data)
            }
            6 | 7 => open(other)
                .and_then(|source| file.clone_from(&source, random(&mut state) % 60_000, offset, 10_000).map(drop)),
            8 => file.set_len(offset),
            9 => fs.unlink(InodeNumber::ROOT, name),
            10 => fs.rename(InodeNumber::ROOT, name, InodeNumber::ROOT, other, RenameMode::Replace),
            _ => file.read_at(offset, &mut [0; 9000]).map(drop),
        };
        if let Err(error) = result {
            let expected = [errno::ENOENT, errno::EINVAL, errno::ESTALE];
            assert!(expected.contains(&error.errno()), "{error}");
        }
    }
}

#[test]
fn counts_are_exact_after_many_threads() {
    for round in 1..=6 {
        let region = Region::create(&DeviceSpec::Memory, 32 << 20, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let fs = FileSystem::mount(region.clone(), MountOptions::default()).unwrap();
        std::thread::scope(|scope| {
            for thread in 1..=4 {
                let fs = &fs;
                scope.spawn(move || worker(fs, round * 1_000_003 + thread * 77, 4000));
            }
        });
        let sizes = |fs: &FileSystem| {
            let stats = fs.stats();
            (stats.logical_bytes, stats.stored_bytes, stats.saved_bytes, stats.inodes, stats.free_bytes)
        };
        let before = sizes(&fs);
        drop(fs);
        let fs = FileSystem::mount(region.clone(), MountOptions::default()).unwrap();
        fs.reconcile().unwrap();
        assert_eq!(sizes(&fs), before, "round {round}");
        drop(fs);
        // Once more, with threads at work while counts are found anew.
        let fs = FileSystem::mount(region.clone(), MountOptions::default()).unwrap();
        std::thread::scope(|scope| {
            for thread in 1..=3 {
                let fs = &fs;
                scope.spawn(move || worker(fs, round * 7_000_003 + thread * 77, 500));
            }
            scope.spawn(|| while !fs.reconcile_step().unwrap() {});
        });
        assert!(fs.stats().recovery.reconciled);
        let before = sizes(&fs);
        fs.unmount().unwrap();
        let found = check(&region, &CheckOptions::default()).unwrap();
        assert!(found.clean && found.findings.is_empty(), "round {round}: {found:?}");
        let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
        // Memory that was given back is free in both.
        assert_eq!(sizes(&fs), before, "round {round}");
        let mut names = Vec::new();
        fs.readdir(InodeNumber::ROOT, 0, &mut |entry| {
            names.push(entry.name);
            true
        })
        .unwrap();
        names.iter().for_each(|name| fs.unlink(InodeNumber::ROOT, name).unwrap());
        let stats = fs.stats();
        assert_eq!((stats.stored_bytes, stats.saved_bytes, stats.chunks, stats.index.entries), (0, 0, 0, 0));
    }
}
