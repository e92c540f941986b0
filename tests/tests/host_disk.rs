//! A device of level `file` that is larger than the disk below it: what was accepted is stored, and a full disk is
//! ENOSPC for the writer, as a full device is.

use nvfold::{FileSystem, InodeNumber, MkfsOptions, MountOptions, Policy, errno};
use nvfold_tests::device;
use nvfold_tests::random::{self, Seed};
use nvfold_tests::scratch::Scratch;
use pmem::{DeviceSpec, OpenOptions, Region, SyncErrors};

const MIB: u64 = 1 << 20;
const DEVICE_BYTES: u64 = 256 * MIB;
const DISK_BYTES: u64 = 48 * MIB;
const ROOT: InodeNumber = InodeNumber::ROOT;

/// A file system on a device whose disk is a model of one: it has room for so many pages of the file.
struct Small {
    region: Region,
    fs: FileSystem,
    policy: Policy,
    /// The accepted files: the seed of their bytes, and their length.
    files: Vec<(u64, usize)>,
}

impl Small {
    fn new(policy: Policy, scratch: &Scratch) -> Small {
        let options = OpenOptions { as_file: true, record_host: true, ..OpenOptions::default() };
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
fn what_is_accepted_on_a_full_disk_is_stored_with_every_policy() {
    let seed = Seed::new("host_disk");
    let scratch = Scratch::new();
    for policy in Policy::ALL {
        let mut random = seed.generator();
        let mut small = Small::new(policy, &scratch);
        let statfs = small.fs.statfs();
        assert!(statfs.blocks_free * 4096 <= DISK_BYTES, "{policy:?}: {statfs:?}");
        let accepted = small.fill(&mut random);
        assert!(accepted >= DISK_BYTES / 2, "{policy:?}: {accepted} bytes");
        for _ in 0..3 {
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
