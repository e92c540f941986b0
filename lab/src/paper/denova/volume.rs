//! The systems of DeNOVA's figures, each on its own emulated device. The dedup daemon runs in its own thread
//! during the writes, as in a mount.

use crate::{Doing, Result};
use nvfold::{
    Daemon, DeNovaOptions, DeNovaStats, DedupMode, FileKind, FileSystem, IndexKind, InodeNumber, MkfsOptions,
    MountOptions, NewInode, NvDedupOptions, Pack, Policy, ReorderOptions, StrongFunction, Verify, WeakFunction,
};
use nvfold_bench::device::{Device, remount};
use pmem::{Profile, Region};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;
/// Attributes of the benchmark's directories and files.
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o700, uid: 0, gid: 0, rdev: 0 };

/// How equal blocks are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    /// SHA-1, trusted.
    AsInPaper,
    /// XXH3 finds candidates, the bytes decide.
    Ours,
}

impl Hash {
    /// Both ways.
    pub(super) const ALL: [Hash; 2] = [Hash::AsInPaper, Hash::Ours];

    /// Returns the suffix of a system's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Hash::AsInPaper => "as in the paper",
            Hash::Ours => "ours",
        }
    }

    /// Returns the weak function, which the index of the device is made of.
    pub(super) fn weak(self) -> WeakFunction {
        match self {
            Hash::AsInPaper => WeakFunction::Sha1,
            Hash::Ours => WeakFunction::Xxh3,
        }
    }

    /// Returns the options for fingerprints and verification.
    pub(super) fn options(self) -> NvDedupOptions {
        let (strong, verify) = match self {
            Hash::AsInPaper => (Some(StrongFunction::Sha1), Verify::Strong),
            Hash::Ours => (None, Verify::Bytes),
        };
        NvDedupOptions { weak: self.weak(), strong, verify, ..NvDedupOptions::default() }
    }
}

/// When a system shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Never: the baseline.
    Never,
    /// The baseline a second time: a result that is no larger than its difference from itself is noise.
    NeverAgain,
    /// In its dedup mode.
    Mode(DedupMode),
}

/// The paper's delayed(750, 20000).
pub(super) const DELAYED: (u64, u64) = (750, 20_000);

/// One system of a figure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct System {
    /// Name of its line in the figures.
    pub name: String,
    /// When it shares.
    pub when: When,
    /// How it recognises equal blocks.
    pub hash: Hash,
    /// Options for ordering the chains of its table.
    pub reorder: ReorderOptions,
}

impl System {
    /// Returns the baseline.
    pub(super) fn off() -> System {
        System::new("off", When::Never, Hash::Ours)
    }

    /// Returns the second copy of the baseline.
    pub(super) fn off_again() -> System {
        System::new("off, again", When::NeverAgain, Hash::Ours)
    }

    /// Returns policy `denova` in a mode, with a hash.
    pub(super) fn denova(mode: DedupMode, hash: Hash) -> System {
        let mode_name = match mode {
            DedupMode::Inline => "inline",
            DedupMode::Immediate => "immediate",
            DedupMode::Delayed { .. } => "delayed",
        };
        System::new(&format!("{mode_name}, {}", hash.name()), When::Mode(mode), hash)
    }

    fn new(name: &str, when: When, hash: Hash) -> System {
        System { name: name.into(), when, hash, reorder: ReorderOptions::default() }
    }

    /// Returns whether a daemon shares its data.
    pub(super) fn is_offline(&self) -> bool {
        matches!(self.when, When::Mode(mode) if mode != DedupMode::Inline)
    }

    /// Returns the options of its mkfs.
    pub(super) fn mkfs(&self) -> MkfsOptions {
        let index = if matches!(self.when, When::Mode(_)) { IndexKind::Pm } else { IndexKind::Dram };
        MkfsOptions { index, weak: self.hash.weak(), ..MkfsOptions::default() }
    }

    fn mount_options(&self) -> MountOptions {
        let (policy, mode) = match self.when {
            When::Never | When::NeverAgain => (Policy::Off, DedupMode::Immediate),
            When::Mode(mode) => (Policy::DeNova, mode),
        };
        let denova = DeNovaOptions { mode, reorder: self.reorder, ..DeNovaOptions::default() };
        // The paper stores blocks, and its figures count them.
        let pack = Pack::Off;
        MountOptions { policy, nv_dedup: self.hash.options(), denova, pack, ..MountOptions::default() }
    }
}

/// A system at work.
pub(super) struct Volume {
    /// The system.
    pub system: System,
    /// Its file system.
    pub fs: FileSystem,
}

impl Volume {
    /// Makes a device with space for `data_bytes` bytes in `files` files, twice: an overwritten file exists in both
    /// versions until the old one is released.
    pub(super) fn device(profile: &Profile, data_bytes: u64, files: u64, threads: usize) -> Device {
        // A file takes a slot of 512 bytes and a name in a log; each thread fills its own segments.
        let bytes = 2 * data_bytes + data_bytes / 4 + 1024 * files + ((32 + 8 * threads as u64) << 20);
        Device::new(profile, bytes)
    }

    /// Mounts the system on an empty device of that size.
    pub(super) fn new(
        system: &System,
        profile: &Profile,
        data_bytes: u64,
        files: u64,
        threads: usize,
    ) -> Result<Volume> {
        Volume::on(system, &Volume::device(profile, data_bytes, files, threads), threads)
    }

    /// Mounts the system on this device, empty.
    pub(super) fn on(system: &System, device: &Device, threads: usize) -> Result<Volume> {
        Volume::mount(system, device.format(&system.mkfs())?, threads)
    }

    /// Mounts the system on a formatted device.
    pub(super) fn mount(system: &System, region: Region, threads: usize) -> Result<Volume> {
        let mount = MountOptions { cores: threads + 1, ..system.mount_options() };
        Ok(Volume { system: system.clone(), fs: remount(region, mount)? })
    }

    /// Returns a directory in the root, and makes it if it does not exist.
    pub(super) fn directory(&self, name: &str) -> Result<InodeNumber> {
        match self.fs.lookup(InodeNumber::ROOT, name.as_bytes()) {
            Ok(found) => Ok(found.ino),
            Err(_) => Ok(self.fs.mkdir(InodeNumber::ROOT, name.as_bytes(), &NEW).doing("make a directory")?.ino),
        }
    }

    /// Makes a file and writes it.
    pub(super) fn write_new(&self, directory: InodeNumber, name: &[u8], content: &[u8]) -> Result<()> {
        let ino = self.fs.create(directory, name, &NEW).doing("create a file")?.ino;
        self.fs.open(ino).doing("open a file")?.write_at(0, content).doing("write a file")
    }

    /// Overwrites an existing file.
    pub(super) fn overwrite(&self, directory: InodeNumber, name: &[u8], content: &[u8]) -> Result<()> {
        self.open(directory, name)?.write_at(0, content).doing("write a file")
    }

    /// Opens a file.
    pub(super) fn open(&self, directory: InodeNumber, name: &[u8]) -> Result<nvfold::File> {
        let ino = self.fs.lookup(directory, name).doing("look a file up")?.ino;
        self.fs.open(ino).doing("open a file")
    }

    /// Makes an empty file in the root.
    pub(super) fn create(&self, name: &str) -> Result<nvfold::File> {
        let ino = self.fs.create(InodeNumber::ROOT, name.as_bytes(), &NEW).doing("create a file")?.ino;
        self.fs.open(ino).doing("open a file")
    }

    /// Removes a file.
    pub(super) fn remove(&self, directory: InodeNumber, name: &[u8]) -> Result<()> {
        self.fs.unlink(directory, name).doing("remove a file")
    }

    /// Does the work while the daemon runs.
    pub(super) fn with_daemon<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.system.is_offline() {
            return work();
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let daemon = scope.spawn(|| -> Result<()> {
                let mut daemon = Daemon::new(self.fs.clone());
                while !over.load(Ordering::Relaxed) {
                    std::thread::park_timeout(daemon.turn().doing("share what is queued")?);
                }
                Ok(())
            });
            let done = work();
            over.store(true, Ordering::Relaxed);
            daemon.thread().unpark();
            daemon.join().expect("the daemon does not panic")?;
            done
        })
    }

    /// Waits until the daemon has nothing left to do.
    pub(super) fn wait_for_daemon(&self) {
        while self.denova().queue_entries > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Shares everything that is queued.
    pub(super) fn drain(&self) -> Result<()> {
        while !self.fs.drain_step().doing("drain the queue")? {}
        Ok(())
    }

    /// Returns the statistics of the policy.
    pub(super) fn denova(&self) -> DeNovaStats {
        self.fs.stats().denova.unwrap_or_default()
    }

    /// Returns the bytes saved by sharing.
    pub(super) fn saved_bytes(&self) -> u64 {
        self.fs.stats().saved_bytes
    }

    /// Unmounts it in order.
    pub(super) fn close(self) -> Result<()> {
        self.fs.unmount().doing("unmount")
    }
}
