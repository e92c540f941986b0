//! Space: promises kept to the block, a full device that stays usable, and memory given back.

use std::fs::File as OsFile;
use std::os::unix::fs::{FileExt, MetadataExt};

use nvfold::{
    AllocateMode, File, FileKind, FileSystem, InodeNumber, MkfsOptions, Policy, RenameMode, SetAttr, XattrMode, errno,
};
use nvfold_tests::device::{self, Device, POLICIES};
use nvfold_tests::mount::{self, Mount};
use nvfold_tests::random::Seed;
use nvfold_tests::requires;

const ROOT: InodeNumber = InodeNumber::ROOT;
const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// Returns bytes that cannot be shared.
fn unique(random: &mut fastrand::Rng, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    random.fill(&mut bytes);
    bytes
}

fn create(fs: &FileSystem, name: &str) -> nvfold::Result<File> {
    let ino = fs.create(ROOT, name.as_bytes(), &device::regular())?.ino;
    fs.open(ino)
}

/// Writes to new files in ever smaller pieces until nothing fits; returns the bytes written.
fn fill(fs: &FileSystem, random: &mut fastrand::Rng) -> u64 {
    let mut written = 0;
    for (number, piece) in [MIB, 64 << 10, BLOCK].into_iter().enumerate() {
        let Ok(file) = create(fs, &format!("filler{number}")) else { break };
        for at in 0.. {
            match file.write_at(at * piece, &unique(random, piece)) {
                Ok(()) => written += piece,
                Err(error) => {
                    assert_eq!(error.errno(), errno::ENOSPC, "{error}");
                    break;
                }
            }
        }
    }
    written
}

#[test]
fn a_device_stores_as_much_as_statfs_promised() {
    for policy in POLICIES {
        let seed = Seed::new("filling a device");
        let device = Device::of(256, policy);
        let fs = device.mount(policy);
        let promised = fs.statfs();
        let written = fill(&fs, &mut seed.generator());
        let (available, free) = (promised.blocks_available * BLOCK, promised.blocks_free * BLOCK);
        println!("{policy:?}: promised {available} bytes ({free} with the reserve), took {written}");
        assert!(written <= free, "more was written than was free");
        // Space of the files' own logs: one line of 64 bytes per write, and a fixed part.
        let logs = written / MIB * 64 + 2000 * 64 + 64 * BLOCK;
        assert!(written + logs >= available, "statfs promised {available}, and {written} bytes fitted");
        let full = fs.statfs();
        assert!(full.blocks_available * BLOCK <= 64 * BLOCK, "{} blocks are left", full.blocks_available);
        for number in 0..3 {
            fs.unlink(ROOT, format!("filler{number}").as_bytes()).expect("delete on a full device");
        }
        let empty = fs.statfs();
        assert!(empty.blocks_available + 16 >= promised.blocks_available, "{empty:?}, at first {promised:?}");
        fs.unmount().expect("unmount");
        device.check();
    }
}

#[test]
fn a_full_device_refuses_or_serves_every_operation_and_loses_nothing() {
    for policy in POLICIES {
        let seed = Seed::new("a full device");
        let mut random = seed.generator();
        let device = Device::of(32, policy);
        let fs = device.mount(policy);
        let dir = fs.mkdir(ROOT, b"dir", &device::directory()).expect("mkdir").ino;
        let kept = unique(&mut random, 300_000);
        let file = create(&fs, "kept").expect("create");
        file.write_at(0, &kept).expect("write");
        for number in 0..500 {
            fs.create(dir, format!("old{number}").as_bytes(), &device::regular()).expect("create");
        }
        fill(&fs, &mut random);
        let names = exhaust_names(&fs, dir);
        println!("{policy:?}: {names} names still fitted when data did not");

        let link = device::new_inode(FileKind::Symlink, 0o777);
        let other = create_or_full(&fs, "other");
        let full_or = |what: &str, result: nvfold::Result<()>| {
            if let Err(error) = result {
                assert_eq!(error.errno(), errno::ENOSPC, "{what}: {error}");
            }
        };
        full_or("mkdir", fs.mkdir(dir, b"new dir", &device::directory()).map(drop));
        full_or("symlink", fs.symlink(dir, b"new link", &[b'l'; 4000], &link).map(drop));
        full_or("link", fs.link(file.ino(), dir, b"new name").map(drop));
        full_or("xattr", fs.set_xattr(file.ino(), b"user.large", &unique(&mut random, 60_000), XattrMode::Set));
        full_or("rename", fs.rename(dir, b"old0", dir, &[b'r'; 255], RenameMode::Replace));
        full_or("exchange", fs.rename(dir, b"old1", dir, b"old2", RenameMode::Exchange));
        full_or("mode", fs.setattr(file.ino(), &SetAttr { mode: Some(0o600), ..SetAttr::default() }).map(drop));
        full_or("reserve", file.allocate(MIB, MIB, AllocateMode::Reserve));
        full_or("tmpfile", fs.tmpfile(&device::regular()).map(drop));
        full_or("append", file.append(&unique(&mut random, 100_000)).map(drop));
        full_or("overwrite", file.write_at(0, &kept[..200_000]));
        full_or("grow", file.set_len(400_000));
        full_or("punch", file.allocate(350_000, 10_000, AllocateMode::PunchHole));
        if let Some(other) = &other {
            full_or("clone", other.clone_from(&file, 0, 100, 200_000).map(drop));
        }
        full_or("sync", fs.sync());

        let mut content = vec![0; kept.len()];
        assert_eq!(file.read_at(0, &mut content).expect("read"), kept.len());
        assert!(content == kept, "what was there is whole");

        // Freeing space must not fail, whatever else does.
        fs.unlink(ROOT, b"filler2").ok();
        fs.unlink(ROOT, b"filler1").ok();
        for number in 3..500 {
            fs.unlink(dir, format!("old{number}").as_bytes()).expect("unlink on a full device");
        }
        create_or_full(&fs, "filler0").expect("open").set_len(0).expect("truncate on a full device");
        fs.unlink(ROOT, b"filler0").expect("unlink");
        file.write_at(0, &unique(&mut random, 300_000)).expect("there is space again");
        drop((file, other));
        fs.unmount().expect("unmount");
        device.check();
    }
}

/// Creates names until none fits; returns how many fitted.
fn exhaust_names(fs: &FileSystem, dir: InodeNumber) -> u64 {
    for number in 0.. {
        let name = format!("{number} {}", "x".repeat(200));
        if let Err(error) = fs.create(dir, name.as_bytes(), &device::regular()) {
            assert_eq!(error.errno(), errno::ENOSPC, "{error}");
            return number;
        }
    }
    unreachable!("a device of finite size")
}

fn create_or_full(fs: &FileSystem, name: &str) -> Option<File> {
    match fs.lookup(ROOT, name.as_bytes()) {
        Ok(attr) => Some(fs.open(attr.ino).expect("open")),
        Err(_) => create(fs, name).ok(),
    }
}

#[test]
fn reserved_space_can_be_written_on_a_full_device() {
    for policy in POLICIES {
        let seed = Seed::new("reserved space");
        let mut random = seed.generator();
        let device = Device::of(64, policy);
        let fs = device.mount(policy);
        let file = create(&fs, "reserved").expect("create");
        file.allocate(0, 8 * MIB, AllocateMode::ReserveKeepSize).expect("reserve");
        assert_eq!(file.attr().size, 0);
        fill(&fs, &mut random);
        let data = unique(&mut random, 8 * MIB);
        for (index, piece) in data.chunks(MIB as usize).enumerate() {
            file.write_at(index as u64 * MIB, piece).expect("write to reserved space");
        }
        let mut content = vec![0; data.len()];
        file.read_at(0, &mut content).expect("read");
        assert!(content == data);
        drop(file);
        fs.unmount().expect("unmount");
        device.check();
    }
}

#[test]
fn a_write_that_does_not_fit_changes_nothing() {
    for policy in POLICIES {
        let seed = Seed::new("a write that does not fit");
        let mut random = seed.generator();
        let device = Device::of(32, policy);
        let fs = device.mount(policy);
        let file = create(&fs, "file").expect("create");
        let old = unique(&mut random, 2 * MIB);
        file.write_at(0, &old).expect("write");
        fill(&fs, &mut random);
        let error = file.write_at(MIB, &unique(&mut random, 3 * MIB)).expect_err("no space for this");
        assert_eq!(error.errno(), errno::ENOSPC);
        assert_eq!(file.attr().size, 2 * MIB);
        let mut content = vec![0; old.len()];
        file.read_at(0, &mut content).expect("read");
        assert!(content == old, "all or nothing");
    }
}

#[test]
fn duplicates_take_no_space_with_sharing_and_full_space_without() {
    for policy in POLICIES {
        let seed = Seed::new("duplicates");
        let device = Device::of(256, policy);
        let fs = device.mount(policy);
        let data = unique(&mut seed.generator(), 32 * MIB);
        let mut stored = Vec::new();
        for name in ["one", "two", "three"] {
            let file = create(&fs, name).expect("create");
            for (index, piece) in data.chunks(128 << 10).enumerate() {
                file.write_at(index as u64 * (128 << 10), piece).expect("write");
            }
            stored.push(fs.stats().stored_bytes);
        }
        let stats = fs.stats();
        assert!(stored[0] >= 32 * MIB);
        match policy.without_origins() {
            // Nothing has processed the queue yet.
            Policy::Off | Policy::DeNova => assert_eq!(stats.stored_bytes, 3 * stored[0]),
            Policy::Inline | Policy::DeExt => assert_eq!(stats.stored_bytes, stored[0]),
            // When nothing repeats the policy stops searching, and starts again some periods later.
            _ => assert!((stored[0]..2 * stored[0]).contains(&stats.stored_bytes), "{stats:?}"),
        }
        assert_eq!(stats.logical_bytes, 96 * MIB);
        assert_eq!(stats.saved_bytes, 96 * MIB - stats.stored_bytes);
        for name in ["one", "three"] {
            fs.unlink(ROOT, name.as_bytes()).expect("unlink");
        }
        assert_eq!(fs.stats().stored_bytes, stored[0], "the last copy keeps its blocks");
        let mut content = vec![0; data.len()];
        let two = fs.lookup(ROOT, b"two").expect("look up").ino;
        fs.open(two).expect("open").read_at(0, &mut content).expect("read");
        assert!(content == data);
        fs.unmount().expect("unmount");
        device.check();
    }
}

#[test]
fn a_clone_takes_no_space_and_keeps_its_content_when_the_source_changes() {
    let seed = Seed::new("clones");
    let mut random = seed.generator();
    let device = Device::fresh(128);
    let fs = device.mount(Policy::Off);
    let data = unique(&mut random, 16 * MIB + 777);
    let source = create(&fs, "source").expect("create");
    source.write_at(0, &data).expect("write");
    let before = fs.stats().stored_bytes;
    let clone = create(&fs, "clone").expect("create");
    assert_eq!(clone.clone_from(&source, 5, 0, u64::MAX >> 2).expect("clone"), data.len() as u64 - 5);
    assert_eq!(fs.stats().stored_bytes, before, "a clone is metadata only");
    source.write_at(0, &unique(&mut random, 4 * MIB)).expect("write");
    source.set_len(1000).expect("truncate");
    let mut content = vec![0; data.len()];
    let count = clone.read_at(0, &mut content).expect("read");
    assert!(content[..count] == data[5..]);
    drop((source, clone));
    fs.unmount().expect("unmount");
    device.check();
}

#[test]
fn a_fresh_device_of_a_tebibyte_takes_next_to_no_memory() {
    let device = Device::blank(1 << 40);
    let region = device.region().expect("map");
    FileSystem::mkfs(&region, &MkfsOptions { now: device::now(), ..MkfsOptions::default() }).expect("mkfs");
    let fresh = region.allocated_bytes();
    drop(region);
    assert!(fresh <= 4 * MIB, "a fresh device takes {fresh} bytes");
    let fs = device.mount(Policy::Inline);
    let file = create(&fs, "file").expect("create");
    file.write_at(1 << 42, b"far out").expect("write");
    let statfs = fs.statfs();
    assert!(statfs.blocks_available * BLOCK > (1 << 40) / 100 * 97, "{statfs:?}");
    drop(file);
    fs.unmount().expect("unmount");
    let used = device.path().metadata().expect("stat").blocks() * 512;
    assert!(used <= 16 * MIB, "with one small file it takes {used} bytes");
    device.check();
}

#[test]
fn removing_all_files_returns_their_memory_to_the_host() {
    for policy in POLICIES {
        let seed = Seed::new("memory given back");
        let mut random = seed.generator();
        let device = Device::of(512, policy);
        let fs = device.mount(policy);
        let fresh = fs.region().allocated_bytes();
        for round in 0..3 {
            for dir in 0..20 {
                let dir = fs.mkdir(ROOT, format!("dir{dir}").as_bytes(), &device::directory()).expect("mkdir").ino;
                for number in 0..100 {
                    let ino = fs.create(dir, format!("{number}").as_bytes(), &device::regular()).expect("create").ino;
                    let len = random.u64(0..150_000);
                    fs.open(ino).expect("open").write_at(0, &unique(&mut random, len)).expect("write");
                }
            }
            let full = fs.region().allocated_bytes();
            assert!(full > fresh + 120 * MIB, "{full} bytes hold some 150 MB");
            for dir in 0..20 {
                let name = format!("dir{dir}").into_bytes();
                let ino = fs.lookup(ROOT, &name).expect("look up").ino;
                for number in 0..100 {
                    fs.unlink(ino, format!("{number}").as_bytes()).expect("unlink");
                }
                fs.rmdir(ROOT, &name).expect("rmdir");
            }
            fs.trim().expect("trim");
            let empty = fs.region().allocated_bytes();
            println!("{policy:?}, round {round}: {fresh} bytes when fresh, {full} full, {empty} when empty again");
            // Tables stay allocated: 64 bytes for each block that was used, and the inode table's segments.
            let tables = full / 64 + 4 * MIB;
            assert!(empty <= fresh + tables, "{empty} bytes are held for nothing (fresh: {fresh})");
        }
        fs.unmount().expect("unmount");
        device.check();
    }
}

#[test]
fn a_full_mount_gives_enospc_and_recovers_after_a_removal() {
    requires!(root, fuse);
    for policy in mount::POLICIES {
        let mut mount = Mount::fresh(64, policy);
        if !mount.is_real() {
            return;
        }
        let seed = Seed::new("a full mount");
        let kept = unique(&mut seed.generator(), 400_000);
        std::fs::write(mount.join("kept"), &kept).expect("write");
        let file = OsFile::create(mount.join("filler")).expect("create");
        let mut written = 0;
        let error = loop {
            let piece = unique(&mut fastrand::Rng::with_seed(written), MIB);
            match file.write_all_at(&piece, written).and_then(|()| file.sync_data()) {
                Ok(()) => written += MIB,
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(errno::ENOSPC));
        assert!(written > 32 * MIB, "{written} bytes fitted");
        drop(file);
        assert!(std::fs::read(mount.join("kept")).expect("read") == kept);
        std::fs::remove_file(mount.join("filler")).expect("delete on a full device");
        // At once: the kernel may not have released the file yet. If its writeback failed, no program would get the
        // error.
        std::fs::write(mount.join("new"), &kept).expect("there is space again");
        OsFile::open(mount.join("new")).and_then(|new| new.sync_all()).expect("what was written is there");
        mount.remount();
        assert!(std::fs::read(mount.join("kept")).expect("read") == kept);
        assert!(std::fs::read(mount.join("new")).expect("read") == kept);
        mount.check();
    }
}

#[test]
fn removing_all_files_of_a_mount_returns_their_memory_to_the_host() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(512, "inline");
    if !mount.is_real() {
        return;
    }
    let taken = |mount: &Mount| mount.device().metadata().expect("stat").blocks() * 512;
    let fresh = taken(&mount);
    let seed = Seed::new("memory given back by the mount");
    let mut random = seed.generator();
    for number in 0..200 {
        std::fs::write(mount.join(format!("{number}")), unique(&mut random, MIB / 2)).expect("write");
    }
    rustix::fs::syncfs(OsFile::open(mount.path()).expect("open")).expect("syncfs");
    let full = taken(&mount);
    assert!(full > 100 * MIB, "{full} bytes hold 100 MiB");
    for number in 0..200 {
        std::fs::remove_file(mount.join(format!("{number}"))).expect("remove");
    }
    mount.unmount();
    let empty = taken(&mount);
    println!("{fresh} bytes when fresh, {full} full, {empty} when empty again");
    assert!(empty <= fresh + full / 64 + 4 * MIB, "{empty} bytes are held for nothing (fresh: {fresh})");
    mount.check();
}
