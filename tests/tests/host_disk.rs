//! A device of level `file` that is larger than the disk below it: what was accepted is stored, and a full disk is
//! ENOSPC for the writer, as a full device is. And a device in memory that is larger than the memory of its process may be.
//!
//! The first tests run on a model of a disk and of a memory limit (`cgroup.rs` has real ones). The others run on a real
//! disk: a loop device with ext4 in a mount namespace of their own, which is gone with the last process in it.

use nvfold::{FileSystem, InodeNumber, MkfsOptions, MountOptions, Policy, errno};
use nvfold_tests::device;
use nvfold_tests::mount::{Mount, in_own_namespace, nvfold};
use nvfold_tests::random::{self, Seed};
use nvfold_tests::requires::tool;
use nvfold_tests::scratch::Scratch;
use nvfold_tests::{requires, run};
use pmem::{DeviceSpec, OpenOptions, Region, SyncErrors};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
const DEVICE_BYTES: u64 = 256 * MIB;
const DISK_BYTES: u64 = 48 * MIB;
/// What a device may take that is not reserved: a journal at level `file`, pages of tables that are read.
const HELD_BESIDE: u64 = MIB;
const ROOT: InodeNumber = InodeNumber::ROOT;

/// A file system on a device whose disk or memory is a model of one: it has room for so many pages of the file.
struct Small {
    region: Region,
    fs: FileSystem,
    policy: Policy,
    /// The accepted files: the seed of their bytes, and their length.
    files: Vec<(u64, usize)>,
}

impl Small {
    fn new(policy: Policy, scratch: &Scratch, as_file: bool) -> Small {
        let options = OpenOptions { as_file, record_host: true, ..OpenOptions::default() };
        let spec = DeviceSpec::Path(scratch.join(&format!("device {policy:?}")));
        let region = Region::create(&spec, DEVICE_BYTES, &options).expect("create");
        let mkfs = MkfsOptions { index: device::index_of(policy), ..MkfsOptions::default() };
        FileSystem::mkfs(&region, &mkfs).expect("mkfs");
        region.limit_host(DISK_BYTES);
        let fs = Small::mount(&region, policy);
        Small { region, fs, policy, files: Vec::new() }
    }

    fn mount(region: &Region, policy: Policy) -> FileSystem {
        FileSystem::mount(region.clone(), MountOptions { policy, ..device::options() }).expect("mount")
    }

    /// Writes files until there is no space; the one that finds none is removed. Returns the bytes of the others.
    fn fill(&mut self, random: &mut fastrand::Rng) -> u64 {
        let mut accepted = 0;
        loop {
            let length = if random.u8(0..4) == 0 { random.usize(1..2 << 20) } else { random.usize(1..60_000) };
            let seed = random.u64(1..);
            let name = seed.to_string();
            let written = self.fs.create(ROOT, name.as_bytes(), &device::regular()).and_then(|attr| {
                let file = self.fs.open(attr.ino)?;
                let requests = bytes(seed, length);
                requests.chunks(128 << 10).enumerate().try_for_each(|(at, part)| file.write_at((at as u64) << 17, part))
            });
            // The record of the disk, which nobody looks at.
            self.region.take_host_events();
            match written {
                Ok(()) => self.files.push((seed, length)),
                Err(error) => {
                    assert_eq!(error.errno(), errno::ENOSPC, "{:?}: {error}", self.policy);
                    if self.fs.lookup(ROOT, name.as_bytes()).is_ok() {
                        self.fs.unlink(ROOT, name.as_bytes()).expect("unlink when the disk is full");
                    }
                    return accepted;
                }
            }
            accepted += length as u64;
        }
    }

    /// Removes about one file of `one_of`.
    fn thin_out(&mut self, random: &mut fastrand::Rng, one_of: usize) {
        let fs = &self.fs;
        self.files.retain(|(seed, _)| {
            let stays = random.usize(0..one_of) > 0;
            if !stays {
                fs.unlink(ROOT, seed.to_string().as_bytes()).expect("unlink");
            }
            stays
        });
    }

    fn verify(&self) {
        for (seed, length) in &self.files {
            let file =
                self.fs.open(self.fs.lookup(ROOT, seed.to_string().as_bytes()).expect("lookup").ino).expect("open");
            let mut read = vec![0; *length];
            assert_eq!(file.read_at(0, &mut read).expect("read"), *length);
            assert!(read == bytes(*seed, *length), "{:?}: file {seed}, {length} bytes", self.policy);
        }
        // A host with the limit of the model would have killed the process.
        let held = self.region.allocated_bytes();
        assert!(held <= DISK_BYTES + HELD_BESIDE, "{:?}: {held} bytes are held", self.policy);
        assert_eq!(self.region.sync_errors(), SyncErrors::default(), "{:?}: no sync failed", self.policy);
    }

    fn remount(self) -> Small {
        self.fs.unmount().expect("unmount");
        let findings = device::findings_in_data(&self.region).expect("fsck");
        assert!(findings.is_empty(), "{:?}: {}", self.policy, findings.join("\n"));
        let fs = Small::mount(&self.region, self.policy);
        Small { fs, ..self }
    }
}

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random::fill(&mut fastrand::Rng::with_seed(seed), &mut bytes);
    bytes
}

#[test]
fn accepted_data_is_stored_on_a_full_disk_with_every_policy() {
    fill_with_every_policy(true, 3);
}

#[test]
fn accepted_data_is_stored_within_a_memory_limit_with_every_policy() {
    fill_with_every_policy(false, 1);
}

/// Fills a device, and again `rounds` times after some files were removed.
fn fill_with_every_policy(as_file: bool, rounds: usize) {
    let seed = Seed::new("host_disk");
    let scratch = Scratch::new();
    for policy in Policy::ALL {
        let mut random = seed.generator();
        let mut small = Small::new(policy, &scratch, as_file);
        let statfs = small.fs.statfs();
        assert!(statfs.blocks_free * 4096 <= DISK_BYTES, "{policy:?}: {statfs:?}");
        let accepted = small.fill(&mut random);
        assert!(accepted >= DISK_BYTES / 2, "{policy:?}: {accepted} bytes");
        for _ in 0..rounds {
            small.verify();
            small = small.remount();
            small.verify();
            small.thin_out(&mut random, 3);
            small.fill(&mut random);
        }
        small.thin_out(&mut random, 1);
        small.region.sync().expect("sync");
        small.verify();
        small.remount().fs.unmount().expect("unmount");
    }
}

/// What a removal frees is of use at once, also where the host has taken the free blocks beside it back.
#[test]
fn freed_blocks_next_to_holes_are_reused_at_once() {
    const PART: usize = 256 << 10;
    const PARTS: u64 = 64;
    let scratch = Scratch::new();
    let small = Small::new(Policy::Off, &scratch, false);
    let create = |name: &[u8]| small.fs.open(small.fs.create(ROOT, name, &device::regular()).expect("create").ino);
    let write = |file: &nvfold::File, part: u64| {
        small.region.take_host_events();
        file.write_at(part * PART as u64, &bytes(part + 1, PART))
    };
    // Both files are in all these segments.
    let [one, two] = [b"one", b"two"].map(|name| create(name).expect("open"));
    (0..PARTS).for_each(|part| [&one, &two].iter().for_each(|file| write(file, part).expect("there is disk")));
    drop(two);
    small.fs.unlink(ROOT, b"two").expect("unlink");
    assert!(small.fs.trim().expect("trim") >= PARTS * PART as u64 / 2, "it leaves holes");
    let rest = create(b"rest").expect("open");
    let error = (0..).find_map(|part| write(&rest, part).err()).expect("the disk is full at some time");
    assert_eq!(error.errno(), errno::ENOSPC, "{error}");
    drop(one);
    small.fs.unlink(ROOT, b"one").expect("unlink");
    let promised = small.fs.statfs().blocks_free * 4096;
    let freed = PARTS * PART as u64;
    assert!(promised >= freed / 8 * 7, "{promised} of {freed}");
    let again = create(b"again").expect("open");
    (0..PARTS / 8 * 7).for_each(|part| write(&again, part).expect("what was freed is used again"));
    small.verify();
    // A mount needs some room for the part of the tables that was never written.
    drop(rest);
    small.fs.unlink(ROOT, b"rest").expect("unlink");
    small.fs.trim().expect("trim");
    small.remount().fs.unmount().expect("unmount");
}

/// The directory where a child has its disk.
const DISK: &str = "NVFOLD_TEST_DISK";
/// Bytes of a real disk, and of the device on it.
const REAL_DISK_MIB: u64 = 64;
const REAL_DEVICE_MIB: u64 = 1024;

/// Runs a test of this module that is otherwise ignored, with a small disk at `$NVFOLD_TEST_DISK`.
fn with_a_disk(test: &str) {
    let scratch = Scratch::on_disk();
    let (image, dir) = (scratch.join("image"), scratch.join("disk"));
    fs::create_dir(&dir).expect("make the mount point");
    File::create(&image).and_then(|file| file.set_len(REAL_DISK_MIB << 20)).expect("make the disk");
    run::ok(Command::new(tool("mkfs.ext4")).args(["-q", "-m", "0", "-O", "^has_journal"]).arg(&image));
    let script = r#"mount -o loop image disk && cd / && exec "$TESTS" "$CHILD" --exact --ignored --nocapture"#;
    let mut child = in_own_namespace(scratch.path(), script);
    child.env("TESTS", std::env::current_exe().expect("own path")).env("CHILD", format!("tests::host_disk::{test}"));
    // `Mount::on_disk` has its device there.
    let outcome = run::ok(child.env(DISK, &dir).env("TMPDIR", &dir));
    assert!(outcome.stdout.contains("1 passed"), "{}", outcome.report());
}

fn disk() -> PathBuf {
    std::env::var_os(DISK).expect("started by `with_a_disk`").into()
}

/// Copies a file of random bytes with a program that looks at the result of close(2); false if there is no space.
fn copy(source: &Path, target: &Path) -> bool {
    let copied = run::run(Command::new("cp").arg("--sparse=never").arg(source).arg(target).env("LC_ALL", "C"));
    assert!(copied.status.success() || copied.stderr.contains("No space left"), "{}", copied.report());
    copied.status.success()
}

/// Copies files to the mount until there is no space, without fsync. Returns the seeds of those that were accepted.
fn copy_until_full(mount: &Mount, seeds: impl Iterator<Item = u64>) -> Vec<u64> {
    let source = mount.scratch().join("source");
    let accepted = seeds.take_while(|seed| {
        fs::write(&source, bytes(*seed, length_of(*seed))).expect("write the source");
        copy(&source, &mount.join(seed.to_string()))
    });
    accepted.collect()
}

fn length_of(seed: u64) -> usize {
    100_000 + (seed % 7) as usize * 123_456
}

fn verify(mount: &Mount, seeds: &[u64]) {
    for seed in seeds {
        let read = fs::read(mount.join(seed.to_string())).expect("read");
        assert!(read == bytes(*seed, length_of(*seed)), "file {seed}");
    }
}

#[test]
fn accepted_copies_are_there_after_an_unmount() {
    requires!(root, fuse, tool("unshare"), tool("mkfs.ext4"));
    with_a_disk("child_copies_until_the_disk_is_full");
}

#[test]
#[ignore = "started by another test as its child"]
fn child_copies_until_the_disk_is_full() {
    for policy in Policy::ALL {
        let mut mount = Mount::on_disk(REAL_DEVICE_MIB, policy.name());
        let mut accepted = copy_until_full(&mount, 1..);
        let total: usize = accepted.iter().map(|seed| length_of(*seed)).sum();
        assert!(total as u64 > REAL_DISK_MIB / 2 * MIB, "{}: {total} bytes", policy.name());
        verify(&mount, &accepted);
        let failed = accepted.len() as u64 + 1;
        let synced = File::open(mount.join(failed.to_string())).and_then(|file| file.sync_all());
        assert!(synced.is_ok() || synced.is_err_and(|error| error.raw_os_error() == Some(errno::ENOSPC)));
        fs::remove_file(mount.join(failed.to_string())).expect("remove on a full disk");
        mount.remount();
        verify(&mount, &accepted);
        accepted.drain(..10).for_each(|seed| fs::remove_file(mount.join(seed.to_string())).expect("remove"));
        accepted.extend(copy_until_full(&mount, 1000..1005));
        assert!(accepted.contains(&1001), "{}: room of removed files is used again", policy.name());
        mount.remount();
        verify(&mount, &accepted);
        mount.check();
    }
}

#[test]
fn a_disk_filled_by_others_loses_no_accepted_file() {
    requires!(root, fuse, tool("unshare"), tool("mkfs.ext4"));
    with_a_disk("child_shares_the_disk");
}

#[test]
#[ignore = "started by another test as its child"]
fn child_shares_the_disk() {
    for policy in ["off", "deext"] {
        let mut mount = Mount::on_disk(REAL_DEVICE_MIB, policy);
        let mut accepted = copy_until_full(&mount, 1..20);
        let mut other = File::create(disk().join("other")).expect("create");
        while other.write_all(&[7; 4096]).is_ok() {}
        accepted.extend(copy_until_full(&mount, 20..));
        let failed = mount.join((accepted.len() + 1).to_string());
        fs::remove_file(failed).expect("remove on a full disk");
        verify(&mount, &accepted);
        let left = accepted.split_off(5);
        accepted.iter().for_each(|seed| fs::remove_file(mount.join(seed.to_string())).expect("remove"));
        mount.remount();
        verify(&mount, &left);
        mount.check();
        assert_eq!(nvfold(&["info"], &[mount.device()]).code(), 0);
        fs::remove_file(disk().join("other")).expect("remove");
    }
}

#[test]
fn failing_syncs_are_reported_until_the_unmount_fails() {
    requires!(root, fuse, tool("unshare"), tool("mkfs.ext4"), tool("fallocate"));
    with_a_disk("child_whose_syncs_fail");
}

#[test]
#[ignore = "started by another test as its child"]
fn child_whose_syncs_fail() {
    let mut mount = Mount::on_disk(REAL_DEVICE_MIB, "off");
    fs::write(mount.join("before"), bytes(1, 50_000)).expect("write");
    nvfold(&["sync"], &[mount.path()]).success();
    let other = take_the_disk_of_the_journal(&mount);
    fs::write(mount.join("after"), bytes(2, 50_000)).expect("write");
    let sync = nvfold(&["sync"], &[mount.path()]);
    assert!(sync.code() == 1 && sync.stderr.contains("No space left on device"), "{}", sync.report());
    let fsync = File::open(mount.join("before")).and_then(|file| file.sync_all());
    assert!(fsync.is_err(), "nothing of the device is synced");
    for command in [&["info"][..], &["stats"], &["top", "--once", "--interval", "0.1"]] {
        let told = nvfold(command, &[mount.path()]).success();
        assert!(told.stdout.contains(" failed, the last with: "), "{}", told.report());
    }
    assert!(fs::read(mount.join("after")).expect("read") == bytes(2, 50_000));
    let umount = nvfold(&["umount"], &[mount.path()]);
    assert!(umount.code() == 1 && umount.stderr.contains("could not leave the device clean"), "{}", umount.report());
    assert!(!mount.wait_until_ended().success());
    fs::remove_file(other).expect("remove");
    mount.mount();
    assert!(fs::read(mount.join("before")).expect("read") == bytes(1, 50_000));
    mount.check();
}

/// Gives a range of the device, or of the journal behind it, to another program.
fn take_disk(mount: &Mount, offset: u64, length: u64) {
    let [offset, length] = [offset, length].map(|bytes| bytes.to_string());
    run::ok(Command::new(tool("fallocate")).args(["-p", "-o", &offset, "-l", &length]).arg(mount.device()));
}

/// More bytes than a sync of a small change takes in the journal.
const USED_BYTES_MAX: u64 = 64 << 10;

/// Fills the disk with a file, whose path it returns.
fn fill_the_disk() -> PathBuf {
    let path = disk().join("other");
    let mut other = File::create(&path).expect("create");
    while other.write_all(&[7; 1024]).is_ok() {}
    path
}

fn take_the_disk_of_the_journal(mount: &Mount) -> PathBuf {
    take_disk(mount, REAL_DEVICE_MIB << 20, 1 << 30);
    fill_the_disk()
}

#[test]
fn a_failed_sync_loses_nothing_if_a_later_one_succeeds() {
    requires!(root, fuse, tool("unshare"), tool("mkfs.ext4"), tool("fallocate"));
    with_a_disk("child_whose_syncs_fail_for_a_while");
}

#[test]
#[ignore = "started by another test as its child"]
fn child_whose_syncs_fail_for_a_while() {
    let mut mount = Mount::on_disk(REAL_DEVICE_MIB, "off");
    let file = File::create(mount.join("file")).expect("create");
    file.sync_all().expect("sync");
    file.set_permissions(fs::Permissions::from_mode(0o600)).expect("a small change");
    file.sync_all().expect("sync");
    // Somebody takes the disk of the journal that the last sync has not used.
    let (device, behind) =
        (REAL_DEVICE_MIB << 20, fs::metadata(mount.device()).expect("the device is there").len() - 1);
    for slot in [device, (device + behind) / 2] {
        take_disk(&mount, slot + USED_BYTES_MAX, (behind - device) / 2 - USED_BYTES_MAX);
    }
    let other = fill_the_disk();
    fs::write(mount.join("file"), bytes(1, 1 << 20)).expect("write");
    // Whichever file is asked for and however often: all that was stored is synced together, or nothing.
    let later = File::open(mount.join("file")).expect("open");
    let fails = |file: &File| file.sync_all().is_err();
    assert_eq!([&file, &later, &file, &later].map(fails), [true; 4]);
    fs::remove_file(other).expect("remove");
    assert_eq!([&later, &file].map(fails), [false; 2], "there is nothing that anybody must be told");
    let told = nvfold(&["info"], &[mount.path()]).success();
    assert!(told.stdout.contains("a later one succeeded: all is durable"), "{}", told.report());
    mount.kill();
    mount.mount();
    assert!(fs::read(mount.join("file")).expect("read") == bytes(1, 1 << 20));
    mount.check();
}

#[test]
fn a_device_whose_journal_cannot_be_replayed_can_be_read() {
    requires!(root, fuse, tool("unshare"), tool("mkfs.ext4"), tool("fallocate"));
    with_a_disk("child_whose_journal_cannot_be_replayed");
}

/// Returns the places of a file on the device: offset and length.
fn places(path: &Path) -> Vec<(u64, u64)> {
    let mut answer = vec![0; 64 << 10];
    let length = rustix::fs::getxattr(path, "user.nvfold.extents.0", &mut answer[..]).expect("ask for the extents");
    let text = std::str::from_utf8(&answer[..length]).expect("text");
    let place = |line: &str| {
        let numbers: Vec<u64> = line.split(' ').map_while(|number| number.parse().ok()).collect();
        (numbers[2], numbers[1])
    };
    text.lines().map(place).collect()
}

#[test]
#[ignore = "started by another test as its child"]
fn child_whose_journal_cannot_be_replayed() {
    let mut mount = Mount::on_disk(REAL_DEVICE_MIB, "off");
    fs::write(mount.join("file"), bytes(1, 1 << 20)).expect("write");
    nvfold(&["sync"], &[mount.path()]).success();
    let places = places(&mount.join("file"));
    mount.kill();
    // A copy of the device with holes, on a full disk: what the last sync wrote has no disk in its places.
    places.iter().for_each(|(offset, length)| take_disk(&mount, *offset, *length));
    let other = fill_the_disk();
    let dir = mount.scratch().join("read-only");
    fs::create_dir(&dir).expect("make the mount point");
    for (command, paths) in [(&["mount"][..], &[mount.device(), &dir][..]), (&["fsck", "--repair"], &[mount.device()])]
    {
        let refused = nvfold(command, paths);
        let says = |words| refused.stderr.contains(words);
        assert_ne!(refused.code(), 0, "{}", refused.report());
        assert!(says("cannot replay the journal of") && says("No space left on device"), "{}", refused.report());
        assert!(says("`nvfold mount -o ro`") && says("`nvfold export`"), "{}", refused.report());
    }
    nvfold(&["mount", "-o", "ro"], &[mount.device(), &dir]).success();
    assert!(fs::read(dir.join("file")).expect("read") == bytes(1, 1 << 20));
    assert_eq!(fs::write(dir.join("new"), b"x").expect_err("read-only").raw_os_error(), Some(errno::EROFS));
    nvfold(&["umount"], &[&dir]).success();
    let exported = mount.scratch().join("exported");
    nvfold(&["export"], &[mount.device(), &exported]).success();
    assert!(fs::read(exported.join("file")).expect("read") == bytes(1, 1 << 20));
    fs::remove_file(other).expect("remove");
    mount.mount();
    assert!(fs::read(mount.join("file")).expect("read") == bytes(1, 1 << 20), "nothing was lost meanwhile");
    mount.check();
}
