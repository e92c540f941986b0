//! What DeNOVA's figures compare, each on an emulated device of its own, with its daemon on a thread while there is
//! work, as a mount has it.

use crate::device::{Device, remount};
use crate::{Doing, Result};
use nvfold::fingerprint::{StrongFunction, WeakFunction};
use nvfold::{Daemon, DeNovaOptions, DedupMode, FileKind, FileSystem, IndexKind, InodeNumber, NewInode};
use nvfold::{DeNovaStats, MkfsOptions, MountOptions, NvDedupOptions, Pack, Policy, ReorderOptions, Verify};
use pmem::{Profile, Region};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// A directory and a file of the benchmark.
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o700, uid: 0, gid: 0, rdev: 0 };

/// How equal blocks are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-1, trusted.
    AsInPaper,
    /// XXH3 finds, the bytes decide.
    Ours,
}

impl Hash {
    /// Both.
    pub const ALL: [Hash; 2] = [Hash::AsInPaper, Hash::Ours];

    /// As it stands behind a system's name.
    pub fn name(self) -> &'static str {
        match self {
            Hash::AsInPaper => "as in the paper",
            Hash::Ours => "ours",
        }
    }

    /// What makes weak fingerprints, which are what the index of the device is made of.
    pub fn weak(self) -> WeakFunction {
        match self {
            Hash::AsInPaper => WeakFunction::Sha1,
            Hash::Ours => WeakFunction::Xxh3,
        }
    }

    /// How fingerprints are made, and what must be equal.
    pub fn options(self) -> NvDedupOptions {
        let (strong, verify) = match self {
            Hash::AsInPaper => (Some(StrongFunction::Sha1), Verify::Strong),
            Hash::Ours => (None, Verify::Bytes),
        };
        NvDedupOptions { weak: self.weak(), strong, verify, ..NvDedupOptions::default() }
    }
}

/// When a system shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Never: the baseline.
    Never,
    /// The baseline once more: how far it is from itself tells what a difference is worth.
    NeverAgain,
    /// As its mode says.
    Mode(DedupMode),
}

/// The paper's delayed(750, 20000).
pub const DELAYED: (u64, u64) = (750, 20_000);

/// One system of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct System {
    /// Name of its line.
    pub name: String,
    /// When it shares.
    pub when: When,
    /// How it tells equal blocks.
    pub hash: Hash,
    /// How chains of its table are ordered.
    pub reorder: ReorderOptions,
}

impl System {
    /// Returns the baseline.
    pub fn off() -> System {
        System::new("off", When::Never, Hash::Ours)
    }

    /// Returns the baseline once more.
    pub fn off_again() -> System {
        System::new("off, again", When::NeverAgain, Hash::Ours)
    }

    /// Returns policy `denova` in a mode, with a hash.
    pub fn denova(mode: DedupMode, hash: Hash) -> System {
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

    /// Whether a daemon shares what it stores.
    pub fn is_offline(&self) -> bool {
        matches!(self.when, When::Mode(mode) if mode != DedupMode::Inline)
    }

    /// How its device is formatted.
    pub fn mkfs(&self) -> MkfsOptions {
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
pub struct Volume {
    /// Which.
    pub system: System,
    /// Its file system.
    pub fs: FileSystem,
}

impl Volume {
    /// A device with room for so many bytes in so many files, twice: an overwritten file is there in both versions until
    /// the old one is given up.
    pub fn device(profile: &Profile, data_bytes: u64, files: u64, threads: usize) -> Device {
        // A file takes a slot of 512 bytes and a name in a log; each thread fills segments of its own.
        let bytes = 2 * data_bytes + data_bytes / 4 + 1024 * files + ((32 + 8 * threads as u64) << 20);
        Device::new(profile, bytes)
    }

    /// Runs on an empty device of that size.
    pub fn new(system: &System, profile: &Profile, data_bytes: u64, files: u64, threads: usize) -> Result<Volume> {
        Volume::on(system, &Volume::device(profile, data_bytes, files, threads), threads)
    }

    /// On this device, empty.
    pub fn on(system: &System, device: &Device, threads: usize) -> Result<Volume> {
        Volume::mount(system, device.format(&system.mkfs())?, threads)
    }

    /// On a device that is formatted.
    pub fn mount(system: &System, region: Region, threads: usize) -> Result<Volume> {
        let mount = MountOptions { cores: threads + 1, ..system.mount_options() };
        Ok(Volume { system: system.clone(), fs: remount(region, mount)? })
    }

    /// A directory in the root, made if it is not there.
    pub fn directory(&self, name: &str) -> Result<InodeNumber> {
        match self.fs.lookup(InodeNumber::ROOT, name.as_bytes()) {
            Ok(found) => Ok(found.ino),
            Err(_) => Ok(self.fs.mkdir(InodeNumber::ROOT, name.as_bytes(), &NEW).doing("make a directory")?.ino),
        }
    }

    /// Makes a file and writes it.
    pub fn write_new(&self, directory: InodeNumber, name: &[u8], content: &[u8]) -> Result<()> {
        let ino = self.fs.create(directory, name, &NEW).doing("create a file")?.ino;
        self.fs.open(ino).doing("open a file")?.write_at(0, content).doing("write a file")
    }

    /// Writes a file that is there over.
    pub fn overwrite(&self, directory: InodeNumber, name: &[u8], content: &[u8]) -> Result<()> {
        self.open(directory, name)?.write_at(0, content).doing("write a file")
    }

    /// Opens a file.
    pub fn open(&self, directory: InodeNumber, name: &[u8]) -> Result<nvfold::File> {
        let ino = self.fs.lookup(directory, name).doing("look a file up")?.ino;
        self.fs.open(ino).doing("open a file")
    }

    /// Makes an empty file in the root.
    pub fn create(&self, name: &str) -> Result<nvfold::File> {
        let ino = self.fs.create(InodeNumber::ROOT, name.as_bytes(), &NEW).doing("create a file")?.ino;
        self.fs.open(ino).doing("open a file")
    }

    /// Removes a file.
    pub fn remove(&self, directory: InodeNumber, name: &[u8]) -> Result<()> {
        self.fs.unlink(directory, name).doing("remove a file")
    }

    /// Does the work with the daemon beside it.
    pub fn with_daemon<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
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

    /// Waits until the daemon beside it has nothing left to do.
    pub fn wait_for_daemon(&self) {
        while self.denova().queue_entries > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Shares everything that is queued.
    pub fn drain(&self) -> Result<()> {
        while !self.fs.drain_step().doing("drain the queue")? {}
        Ok(())
    }

    /// What the policy says of itself.
    pub fn denova(&self) -> DeNovaStats {
        self.fs.stats().denova.unwrap_or_default()
    }

    /// Bytes saved by sharing.
    pub fn saved_bytes(&self) -> u64 {
        self.fs.stats().saved_bytes
    }

    /// Ends it in order.
    pub fn close(self) -> Result<()> {
        self.fs.unmount().doing("unmount")
    }
}
