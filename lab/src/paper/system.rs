//! The systems of the papers' figures: file systems on devices in memory that differ in their dedup policy.
//!
//! Each system has its own device with the same profile, so that a figure can run them in turn, pass by pass, and drift
//! of the machine affects all equally. The host allocates the devices' memory before any clock starts, a piece of each
//! in turn ([`populate`]).

use super::spent::{Spent, in_groups};
use super::workload::{BLOCK, Batch};
use crate::rivals::{self, Rival};
use crate::{Doing, LabError, Result};
use nvfold::custom_policy::{ChunkRef, Chunks, Dedup, Fingerprint, NewChunk, Piece, Place, Released, Transaction};
use nvfold::{
    File, FileKind, FileSystem, Generators, InodeNumber, MethodChoice, MkfsOptions, MountOptions, NewInode,
    NvDedupOptions, Pack, Policy, StrongFunction, Verify, WeakFunction,
};
use nvfold_bench::device::{Device, populate, remount};
use pmem::{Profile, Region};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const LINE: u64 = 64;

/// The policy that decides whether a block is shared or stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// None: everything is stored.
    NoDedup,
    /// A copy-on-write B-tree of blocks, buffered in DRAM.
    DedupBlock,
    /// A fine-grained copy-on-write B-tree on the media.
    DedupFineGrained,
    /// NV-Dedup as in its paper.
    AsInPaper,
    /// NV-Dedup with nvfold's changes.
    Ours,
}

impl Kind {
    /// All systems, in the order of the figures.
    pub(super) const ALL: [Kind; 5] =
        [Kind::NoDedup, Kind::DedupBlock, Kind::DedupFineGrained, Kind::AsInPaper, Kind::Ours];

    /// Returns the paper's name for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::NoDedup => "No_dedup",
            Kind::DedupBlock => "Dedup_block",
            Kind::DedupFineGrained => "Dedup_fine_grained",
            Kind::AsInPaper => "NV-Dedup (as in the paper)",
            Kind::Ours => "NV-Dedup (ours)",
        }
    }
}

/// One system of a figure.
#[derive(Clone, Debug)]
pub(super) struct System {
    /// Name of its line in the figures.
    pub name: String,
    /// The policy that decides whether a block is shared or stored.
    pub kind: Kind,
    /// The strong fingerprint function. `None`: bytes are compared instead (NV-Dedup only).
    pub strong: Option<StrongFunction>,
    /// The source of TX_IDs.
    pub generators: Generators,
}

impl System {
    /// Returns the paper's setting: MD5, and one TX_ID generator except for ours.
    pub(super) fn of(kind: Kind) -> System {
        let ours = kind == Kind::Ours;
        System {
            name: kind.name().into(),
            kind,
            strong: if ours { Some(StrongFunction::default()) } else { Some(StrongFunction::Md5) },
            generators: if ours { Generators::PerCore } else { Generators::Global },
        }
    }

    /// Returns its options of policy `nv-dedup`.
    fn nv_dedup(&self, period: u64) -> NvDedupOptions {
        match self.kind {
            Kind::AsInPaper => NvDedupOptions {
                weak: WeakFunction::Crc32,
                strong: self.strong,
                verify: Verify::Strong,
                period,
                method: MethodChoice::Paper,
                costs: None,
            },
            _ => NvDedupOptions { strong: self.strong, period, ..NvDedupOptions::default() },
        }
    }
}

/// The common settings of all systems of a run.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    /// Emulated device.
    pub profile: Profile,
    /// Size of the device.
    pub device_bytes: u64,
    /// Threads that write at once.
    pub threads: usize,
    /// Chunks of a sampling period.
    pub period: u64,
    /// Whether writes are counted block by block, so that metadata and data can be distinguished.
    pub counts_metadata: bool,
}

impl Setup {
    /// Makes settings for files of `blocks` blocks in total, each of which may exist twice while it is overwritten.
    pub(super) fn new(profile: &Profile, blocks: u64, threads: usize) -> Setup {
        // Each thread fills its own segments of 2 MiB.
        let device_bytes = (2 * blocks * BLOCK as u64 + ((16 + 8 * threads as u64) << 20)).next_multiple_of(2 << 20);
        Setup { profile: profile.clone(), device_bytes, threads, period: 50_000, counts_metadata: false }
    }
}

/// How long the background thread rests while it has nothing to do: as long as the daemon of a mount in use.
const REST: Duration = Duration::from_millis(10);

/// A system at work.
pub(super) struct Mounted {
    /// The system.
    pub system: System,
    /// Its file system.
    pub fs: FileSystem,
    /// Range of the tables on the device: from the journal to the first data.
    tables: (u64, u64),
    /// A competitor, and the device of its metadata.
    rival: Option<(Arc<Watched>, Region)>,
}

/// A competitor, with a count of the blocks it shared.
struct Watched {
    rival: Rival,
    shared: AtomicU64,
}

impl Dedup for Watched {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        self.rival.fingerprint(piece)
    }

    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        self.rival.place(pieces, tx);
        let shared = pieces.iter().filter(|piece| piece.place != Place::Store).count();
        self.shared.fetch_add(shared as u64, Ordering::Relaxed);
    }

    fn published(&self, new: &[NewChunk], known: &[ChunkRef], chunks: &Chunks) -> Vec<ChunkRef> {
        self.rival.published(new, known, chunks)
    }

    fn released(&self, chunk: ChunkRef, left: Released) {
        self.rival.released(chunk, left);
    }
}

impl Mounted {
    /// Formats a device for each system and mounts it.
    pub(super) fn all(systems: &[System], setup: &Setup) -> Result<Vec<Mounted>> {
        let counts_writes = setup.counts_metadata;
        let device = Device { counts_writes, ..Device::new(&setup.profile, setup.device_bytes) };
        let prepare = |system: &System| -> Result<Prepared> {
            let region = device.create()?;
            FileSystem::mkfs(&region, &MkfsOptions::default()).doing("format")?;
            Ok(Prepared { region, rival: rival_of(system, &device)? })
        };
        let prepared = systems.iter().map(prepare).collect::<Result<Vec<Prepared>>>()?;
        let regions = prepared.iter().flat_map(|prepared| {
            std::iter::once(&prepared.region).chain(prepared.rival.as_ref().map(|(_, metadata)| metadata))
        });
        populate(&regions.collect::<Vec<&Region>>());
        systems.iter().zip(prepared).map(|(system, prepared)| Mounted::new(system, setup, prepared)).collect()
    }

    fn new(system: &System, setup: &Setup, prepared: Prepared) -> Result<Mounted> {
        let Prepared { region, rival } = prepared;
        let mount = MountOptions {
            policy: if system.kind == Kind::NoDedup { Policy::Off } else { Policy::NvDedup },
            custom_policy: rival.as_ref().map(|(rival, _)| rival.clone() as Arc<dyn Dedup>),
            nv_dedup: system.nv_dedup(setup.period),
            generators: system.generators,
            cores: setup.threads,
            // The paper stores blocks.
            pack: Pack::Off,
            ..MountOptions::default()
        };
        let fs = remount(region, mount)?;
        let (_, geometry) = nvfold::read_superblock(fs.region()).doing("read the superblock")?;
        let tables = (geometry.journal_offset, geometry.data_offset - geometry.journal_offset);
        Ok(Mounted { system: system.clone(), fs, tables, rival })
    }

    /// Makes an empty file.
    pub(super) fn create(&self, name: &str) -> Result<File> {
        let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
        let ino = self.fs.create(InodeNumber::ROOT, name.as_bytes(), &new).doing("create a file")?.ino;
        self.fs.open(ino).doing("open a file")
    }

    /// Opens a file.
    pub(super) fn open(&self, name: &str) -> Result<File> {
        let ino = self.fs.lookup(InodeNumber::ROOT, name.as_bytes()).doing("look a file up")?.ino;
        self.fs.open(ino).doing("open a file")
    }

    /// Removes a file.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        self.fs.unlink(InodeNumber::ROOT, name.as_bytes()).doing("remove a file")
    }

    /// Returns the number of requests that were shared since the mount.
    pub(super) fn shared(&self) -> u64 {
        match &self.rival {
            Some((watched, _)) => watched.shared.load(Ordering::Relaxed),
            None => self.fs.stats().pieces_shared,
        }
    }

    /// Returns the bytes of deduplication metadata flushed since the mount: lines of the chunk table and the
    /// transaction numbers, or those of the competitor's own structures. `None` unless the setup counts them.
    pub(super) fn metadata_bytes(&self) -> Option<u64> {
        if let Some((_, metadata)) = &self.rival {
            return Some(metadata.counters().lines_written() * LINE);
        }
        Some(self.fs.region().lines_written_in(self.tables.0, self.tables.1)? * LINE)
    }

    /// Runs `work` while the background thread of this system runs. Also returns that thread's cost, which counts as the
    /// system's on whichever processor it runs.
    pub(super) fn with_background<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
        if self.system.kind == Kind::NoDedup || self.rival.is_some() {
            return Ok((work()?, 0.0));
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let filler = scope.spawn(|| {
                let fill = || {
                    while !over.load(Ordering::Relaxed) {
                        if self.fs.fill_step().doing("fill in fingerprints")? {
                            std::thread::park_timeout(REST);
                        }
                    }
                    Ok(())
                };
                Spent::on(fill)
            });
            let done = work();
            over.store(true, Ordering::Relaxed);
            filler.thread().unpark();
            let ((), spent) = filler.join().expect("the filler does not panic")?;
            Ok((done?, spent.cost_ns))
        })
    }

    /// Unmounts it in order.
    pub(super) fn close(self) -> Result<()> {
        self.fs.unmount().doing("unmount")?;
        self.rival.map_or(Ok(()), |(watched, _)| Ok(watched.rival.close()?))
    }

    /// Writes a batch, request by request. Returns the duration of the writes, including the background thread's
    /// cost.
    pub(super) fn write(&self, file: &File, batch: &Batch) -> Result<Spent> {
        let (spent, background_ns) = self.with_background(|| write_all(file, batch))?;
        Ok(Spent { cost_ns: spent.cost_ns + background_ns, ..spent })
    }

    /// Reads a part of a batch back and compares it.
    pub(super) fn verify(&self, file: &File, batch: &Batch) -> Result<()> {
        if let Some((watched, _)) = &self.rival {
            watched.rival.check()?;
        }
        let mut buffer = vec![0; BLOCK];
        let mut seen = HashSet::new();
        // From the end, because a later request may have overwritten an earlier one.
        for (at, content) in batch.at.iter().zip(batch.data.chunks(BLOCK)).rev().take(512) {
            if seen.insert(*at) {
                file.read_at(at * BLOCK as u64, &mut buffer).doing("read back")?;
                if buffer != content {
                    return Err(LabError::wrong(self.system.name.clone()));
                }
            }
        }
        Ok(())
    }
}

/// Writes every request of a batch to its place in a file.
pub(super) fn write_all(file: &File, batch: &Batch) -> Result<Spent> {
    let requests = batch.at.iter().zip(batch.data.chunks(BLOCK));
    in_groups(requests, |at, content| file.write_at(at * BLOCK as u64, content).doing("write"), |_| ())
}

/// A system before it is mounted: its device, and a competitor with the device of its metadata.
struct Prepared {
    region: Region,
    rival: Option<(Arc<Watched>, Region)>,
}

/// Returns the competitor of the system, if it is one, and the device of its metadata.
fn rival_of(system: &System, device: &Device) -> Result<Option<(Arc<Watched>, Region)>> {
    let kind = match system.kind {
        Kind::DedupBlock => rivals::Kind::Block,
        Kind::DedupFineGrained => rivals::Kind::FineGrained,
        Kind::NoDedup | Kind::AsInPaper | Kind::Ours => return Ok(None),
    };
    let bytes = kind.region_bytes(device.bytes / BLOCK as u64);
    let metadata = Device { bytes, ..device.clone() }.create()?;
    let rival = Rival::open(kind, system.strong.unwrap_or(StrongFunction::Md5), metadata.clone())?;
    Ok(Some((Arc::new(Watched { rival, shared: AtomicU64::new(0) }), metadata)))
}
