//! What the papers' figures compare: file systems on devices in memory that differ in what answers "share or store?".
//!
//! Each system has a device of its own with the same profile, so that a figure can run them in turn, pass by pass,
//! and drift of the machine hits all alike. Flush instructions are issued as on a DAX device, and the device's memory
//! is there before any clock starts.

use super::workload::Batch;
use crate::{BenchError, Doing, Result};
use nvfold::{File, FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions, NewInode, Policy};
use pmem::{DeviceSpec, FlushMode, OpenOptions, Profile, Region};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a request.
pub const BLOCK: usize = 4096;
const LINE: u64 = 64;

/// Who answers "share or store?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nobody: everything is stored.
    NoDedup,
    /// NV-Dedup as in its paper.
    AsInPaper,
    /// NV-Dedup as nvfold has it.
    Ours,
}

impl Kind {
    /// All of them, as the figures list them.
    pub const ALL: [Kind; 3] = [Kind::NoDedup, Kind::AsInPaper, Kind::Ours];
}

/// One system of a figure.
#[derive(Clone, Debug)]
pub struct System {
    /// Name of its line.
    pub name: String,
    /// Who answers.
    pub kind: Kind,
}

impl System {
    /// Under the name that the paper gives it.
    pub fn of(kind: Kind) -> System {
        let name = match kind {
            Kind::NoDedup => "No_dedup",
            Kind::AsInPaper => "NV-Dedup (as in the paper)",
            Kind::Ours => "NV-Dedup (ours)",
        };
        System { name: name.into(), kind }
    }
}

/// What all systems of a run have in common.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Emulated device.
    pub profile: Profile,
    /// Size of the device.
    pub device_bytes: u64,
    /// Threads that write at once.
    pub threads: usize,
    /// Chunks of a sampling period.
    pub period: u64,
    /// Whether writes are counted block by block: the metadata's are told from the data's then.
    pub counts_metadata: bool,
}

impl Setup {
    /// For files of so many blocks in all, of which each may be there twice while it is overwritten.
    pub fn new(profile: &Profile, blocks: u64) -> Setup {
        let device_bytes = (3 * blocks * BLOCK as u64 + (64 << 20)).next_multiple_of(2 << 20);
        Setup { profile: profile.clone(), device_bytes, threads: 2, period: 50_000, counts_metadata: false }
    }
}

/// A system at work.
pub struct Mounted {
    /// Which.
    pub system: System,
    /// Its file system.
    pub fs: FileSystem,
    /// Where the tables lie on the device: from the journal to the first data.
    tables: (u64, u64),
    /// Metadata that a competitor keeps on a device of its own.
    metadata: Option<Region>,
}

impl Mounted {
    /// Formats a device for the system and mounts it.
    pub fn new(system: &System, setup: &Setup) -> Result<Mounted> {
        let options = OpenOptions {
            profile: setup.profile.clone(),
            flush: FlushMode::Always,
            track_wear: setup.counts_metadata,
            ..OpenOptions::default()
        };
        let region = Region::create(&DeviceSpec::Memory, setup.device_bytes, &options);
        let region = region.map_err(nvfold::Error::from).doing("make a memory device")?;
        region.populate(0, setup.device_bytes);
        FileSystem::mkfs(&region, &MkfsOptions::default()).doing("format")?;
        let (_, geometry) = nvfold::read_superblock(&region).doing("read the superblock")?;
        let tables = (geometry.journal_offset, geometry.data_offset - geometry.journal_offset);
        let (options, metadata) = options_of(system, setup)?;
        let fs = FileSystem::mount(region, options).doing("mount")?;
        Ok(Mounted { system: system.clone(), fs, tables, metadata })
    }

    /// Makes an empty file.
    pub fn create(&self, name: &str) -> Result<File> {
        let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
        let ino = self.fs.create(InodeNumber::ROOT, name.as_bytes(), &new).doing("create a file")?.ino;
        self.fs.open(ino).doing("open a file")
    }

    /// Opens a file.
    pub fn open(&self, name: &str) -> Result<File> {
        let ino = self.fs.lookup(InodeNumber::ROOT, name.as_bytes()).doing("look a file up")?.ino;
        self.fs.open(ino).doing("open a file")
    }

    /// Removes a file.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.fs.unlink(InodeNumber::ROOT, name.as_bytes()).doing("remove a file")
    }

    /// Requests that were shared since the mount.
    pub fn shared(&self) -> u64 {
        self.fs.stats().pieces_shared
    }

    /// Bytes of deduplication metadata flushed since the mount: lines of the chunk table and the transaction numbers,
    /// or those of the competitor's own structures. `None` unless the setup counts them.
    pub fn metadata_bytes(&self) -> Option<u64> {
        if let Some(metadata) = &self.metadata {
            return Some(metadata.counters().lines_written() * LINE);
        }
        Some(self.fs.region().lines_written_in(self.tables.0, self.tables.1)? * LINE)
    }

    /// Writes a batch, request by request. Returns the seconds it took.
    pub fn write(&self, file: &File, batch: &Batch) -> Result<f64> {
        let clock = Instant::now();
        write_all(file, batch)?;
        Ok(clock.elapsed().as_secs_f64())
    }

    /// Reads a part of a batch back: what is measured must be right.
    pub fn verify(&self, file: &File, batch: &Batch) -> Result<()> {
        let mut buffer = vec![0; BLOCK];
        let mut seen = std::collections::HashSet::new();
        // From the end: a later request may have overwritten an earlier one.
        for (at, content) in batch.at.iter().zip(batch.data.chunks(BLOCK)).rev().take(512) {
            if seen.insert(*at) {
                file.read_at(at * BLOCK as u64, &mut buffer).doing("read back")?;
                if buffer != content {
                    return Err(BenchError::Wrong(self.system.name.clone()));
                }
            }
        }
        Ok(())
    }
}

/// Writes every request of a batch to its place in a file.
pub fn write_all(file: &File, batch: &Batch) -> Result<()> {
    for (at, content) in batch.at.iter().zip(batch.data.chunks(BLOCK)) {
        file.write_at(at * BLOCK as u64, content).doing("write")?;
    }
    Ok(())
}

/// How the system is mounted, and the device of its own metadata if it has one.
fn options_of(system: &System, setup: &Setup) -> Result<(MountOptions, Option<Region>)> {
    let clock = Arc::new(pmem::clock::coarse_now_ns);
    let common = MountOptions { clock, cores: setup.threads, discard: Some(false), ..MountOptions::default() };
    Ok(match system.kind {
        Kind::NoDedup => (MountOptions { policy: Policy::Off, ..common }, None),
        Kind::AsInPaper => (MountOptions { policy: Policy::Inline, ..common }, None),
        Kind::Ours => (MountOptions { policy: Policy::Inline, ..common }, None),
    })
}
