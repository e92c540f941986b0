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
#[cfg_attr(miri, ignore = "too long; those below are short")]
fn counts_are_exact_after_operations_of_many_threads() {
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

/// Operations of each thread below: few where a data race is looked for, which needs no luck to be seen.
const STEPS: usize = if cfg!(miri) { 5 } else { 400 };

/// What front ends do beside the operations, a few times over.
fn background(fs: &FileSystem, rounds: usize) {
    let mut daemon = Daemon::new(fs.clone());
    for round in 0..rounds {
        daemon.turn().unwrap();
        fs.fill_step().unwrap();
        fs.reorder_step().unwrap();
        let name = format!("file{}", round % 6);
        if let Ok(attr) = fs.lookup(InodeNumber::ROOT, name.as_bytes())
            && let Ok(file) = fs.open(attr.ino)
        {
            // The file may have been removed since.
            let _ = if round % 2 == 0 { file.dedup_range(0, 1 << 16) } else { file.undedup_range(0, 1 << 16) };
        }
        fs.readdir(InodeNumber::ROOT, 0, &mut |_| true).unwrap();
        std::hint::black_box((fs.stats(), fs.statfs()));
    }
}

/// Metadata and blocks are read, compared, fingerprinted, counted and shared by some threads while others change them:
/// first on a fresh device, then while a mount after a crash finds its counts anew.
fn all_at_once(policy: Policy, index: IndexKind) {
    let region = Region::create(&DeviceSpec::Memory, 16 << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
    for phase in 0..2 {
        let fs = FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap();
        std::thread::scope(|scope| {
            for thread in 1..=2 {
                let fs = &fs;
                scope.spawn(move || worker(fs, phase * 1_000_003 + thread * 77, STEPS));
            }
            scope.spawn(|| background(&fs, STEPS.div_ceil(4)));
            scope.spawn(|| while !fs.reconcile_step().unwrap() {});
        });
        if phase == 1 {
            fs.unmount().unwrap();
        } // else it crashes
    }
    let found = check(&region, &CheckOptions::default()).unwrap();
    assert!(found.clean && found.findings.is_empty(), "{policy:?}, {index:?}: {found:?}");
}

#[test]
fn all_operations_run_concurrently_with_policy_inline() {
    all_at_once(Policy::Inline, IndexKind::Dram);
}

#[test]
fn all_operations_run_concurrently_with_policy_nv_dedup() {
    all_at_once(Policy::NvDedup, IndexKind::Dram);
}

#[test]
fn all_operations_run_concurrently_with_policy_denova() {
    all_at_once(Policy::DeNova, IndexKind::Pm);
}
