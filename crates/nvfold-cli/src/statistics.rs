//! The facts about a file system that `info`, `df`, `stats` and `dedup-stats` print.
//!
//! They come from the server of a mount, which returns them as JSON in a virtual extended attribute, or from an
//! unmounted device, which is opened read-only.

use crate::bounded::{self, ANSWERS_WITHIN};
use crate::device::{self, DeviceOptions};
use crate::failure::{Doing, Failure, Outcome, eprint_line};
use crate::mounts::{self, Mounted};
use crate::report;
use crate::size;
use crate::traffic::{SegmentWear, Traffic};
use nvfold::{
    AutoStats, DeNovaStats, FileSystem, IndexKind, NvDedupStats, OriginStats, Policy, Stats, Superblock, Usage, errno,
};
use nvfold_mount::requests::IN_SNAPSHOTS;
use nvfold_mount::{Counters, REPORT_ATTRIBUTE, Requests, USAGE_ATTRIBUTE};
use pmem::Region;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Everything known about a file system: what a mount reports as JSON, by [`REPORT_ATTRIBUTE`].
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Statistics {
    /// Path of the device, or `mem:`.
    pub device: String,
    /// The mount point; absent if it is not mounted.
    pub mount_point: Option<String>,
    /// The bytes of its path in hexadecimal, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_point_hex: Option<String>,
    /// The server's process.
    pub pid: Option<u32>,
    /// `dax`, `memory` or `file`.
    pub persistence: String,
    /// Syncs of a device in a plain file that failed since it was mounted; absent if none did.
    #[serde(default)]
    pub sync_errors: Option<SyncErrors>,
    /// The tightest memory limit of the server, if the device is in memory; absent if there is none.
    #[serde(default)]
    pub memory_limit: Option<MemoryLimit>,
    pub read_only: bool,
    /// True if figures are left out, because the user who asks may not see them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_in_part: bool,
    /// Policy for new data; only if mounted.
    pub policy: Option<String>,
    /// Compression of packed data; only if mounted.
    #[serde(default)]
    pub compress: Option<String>,
    /// Whose data is shared with whose, `all` or `owner`; only if mounted.
    #[serde(default)]
    pub share: Option<String>,
    pub superblock: SuperblockFacts,
    /// Bytes of the device after the file system, which `nvfold resize` adds to it.
    #[serde(default)]
    pub unused_bytes: u64,
    /// Absent if the device must be recovered first.
    pub space: Option<Stats>,
    /// What every stored byte is for; only where it was asked for, by a user who may, and if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The snapshots; only where it was asked for, by a user who may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<InSnapshots>,
    /// The index; absent if the device must be recovered first.
    pub index: Option<Index>,
    /// Recovery by the mount; only if mounted.
    pub recovery: Option<Recovery>,
    /// State of policy nv-dedup; only if mounted with it.
    pub nv_dedup: Option<NvDedupStats>,
    /// The choices of policy auto, and the reasons.
    #[serde(default)]
    pub auto: Option<AutoStats>,
    /// State of policy denova, if it is used or its queue has entries.
    pub denova: Option<DeNovaStats>,
    /// Writes with known origins; only if mounted.
    #[serde(default)]
    pub origins: Option<OriginStats>,
    /// Requests that the mount has served.
    pub requests: Option<Requests>,
    /// The transport of requests: `ring` (io_uring) or `device` (/dev/fuse).
    #[serde(default)]
    pub transport: Option<String>,
    /// The kernel's requests since mount, by their FUSE names; a forget counts once for each inode.
    #[serde(default)]
    pub requests_by_kind: BTreeMap<String, u64>,
    pub process: Option<Process>,
    pub traffic: Option<Traffic>,
    /// Wear of the segments; absent if the device must be recovered first.
    #[serde(default)]
    pub wear: Option<SegmentWear>,
}

/// The snapshots, and what only they hold.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct InSnapshots {
    pub count: u64,
    /// Stored bytes that no other file references: deleting all snapshots would free them.
    pub only_bytes: u64,
}

impl InSnapshots {
    /// Decodes the answer of a server.
    fn answered(answer: &[u8]) -> Option<InSnapshots> {
        let (count, only_bytes) = std::str::from_utf8(answer).ok()?.split_once(' ')?;
        Some(InSnapshots { count: count.parse().ok()?, only_bytes: only_bytes.parse().ok()? })
    }

    fn of(fs: &FileSystem) -> nvfold::Result<InSnapshots> {
        Ok(InSnapshots { count: fs.snapshots()?.len() as u64, only_bytes: fs.only_in_snapshots()? })
    }
}

/// Syncs that failed; see `pmem::SyncErrors`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct SyncErrors {
    pub count: u64,
    /// Why the last one failed.
    pub last_error: String,
    /// True if no sync has succeeded since. What was written since the last good one is then in memory only.
    pub is_failing: bool,
}

impl SyncErrors {
    /// Returns those of a device; `None` if no sync has failed.
    pub(crate) fn of(region: &Region) -> Option<SyncErrors> {
        let pmem::SyncErrors { count, last_errno, is_failing } = region.sync_errors();
        let last_error = std::io::Error::from_raw_os_error(last_errno).to_string();
        (count > 0).then_some(SyncErrors { count, last_error, is_failing })
    }

    /// Describes them in few words, for a screen.
    pub(crate) fn in_brief(&self) -> String {
        let state = if self.is_failing { "they fail" } else { "a later one succeeded" };
        format!("{state}; {} failed, the last with: {}", self.count, self.last_error)
    }

    /// Describes them in a line.
    pub(crate) fn describe(&self) -> String {
        let state = match self.is_failing {
            true => "what was written since the last good one is in memory only; the next one tries again",
            false => "a later one succeeded: all is durable",
        };
        format!("{} failed, the last with: {}; {state}", self.count, self.last_error)
    }
}

/// The place of this process in the list of what the kernel kills when memory is short.
pub(crate) const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";

/// Returns the place of this process in the list of what the kernel kills when memory is short: it kills a process with
/// a larger value first.
pub(crate) fn oom_score_adj() -> Option<i32> {
    std::fs::read_to_string(OOM_SCORE_ADJ).ok()?.trim().parse().ok()
}

/// A limit on the memory of the server; see `pmem::MemoryLimit`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct MemoryLimit {
    /// The directory of the control group.
    pub cgroup: String,
    pub limit_bytes: u64,
    /// What is in use, page cache included.
    pub used_bytes: u64,
    /// The part of it that the kernel can drop at once.
    pub cache_bytes: u64,
    /// What the device may still take.
    pub room_bytes: u64,
    /// How often the limit was reached, and how many processes were killed because of a limit.
    pub reached: u64,
    pub killed: u64,
    /// The oom_score_adj of the server: the kernel kills processes with a larger one first.
    #[serde(default)]
    pub oom_score_adj: Option<i32>,
}

impl MemoryLimit {
    /// Returns the limit of this process.
    fn of_this_process() -> Option<MemoryLimit> {
        let limit = pmem::MemoryLimit::of_this_process()?;
        let room_bytes = limit.room_bytes();
        let pmem::MemoryLimit { cgroup, limit_bytes, used_bytes, cache_bytes, reached, killed, .. } = limit;
        let cgroup = cgroup.display().to_string();
        let oom_score_adj = oom_score_adj();
        Some(MemoryLimit { cgroup, limit_bytes, used_bytes, cache_bytes, room_bytes, reached, killed, oom_score_adj })
    }

    /// Describes it in a line.
    pub(crate) fn describe(&self) -> String {
        let [limit, used, cache, room] =
            [self.limit_bytes, self.used_bytes, self.cache_bytes, self.room_bytes].map(size::show);
        let killed = match self.killed {
            0 => "no process was killed".into(),
            count => format!("{count} processes were killed"),
        };
        let score = self.oom_score_adj.map_or(String::new(), |score| format!("; oom_score_adj {score}"));
        format!(
            "{limit} ({}): {used} in use with {cache} of clean page cache, room for {room}; reached {} times, \
             {killed}{score}",
            self.cgroup, self.reached
        )
    }
}

/// The index, which finds entries by fingerprint, and its cost; see `nvfold::IndexStats`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Index {
    /// `dram` or `pm`.
    pub kind: String,
    /// The function for weak fingerprints. A pm index has a fixed one; for a dram index the mount chooses it, so it
    /// is absent if not mounted.
    pub weak: Option<String>,
    pub entries: u64,
    pub dram_bytes: u64,
    /// Space on the device, without the chunk table.
    pub media_bytes: u64,
    /// Searches of a pm index since mount, entries read by them, and chains reordered.
    pub lookups: u64,
    pub reads: u64,
    pub reordered: u64,
}

impl Index {
    /// Describes the index of a file system that this process has mounted.
    fn of(fs: &FileSystem, stats: &Stats) -> Index {
        let index = &stats.index;
        Index {
            kind: index.kind.name().to_owned(),
            weak: Some(fs.weak_function().name().to_owned()),
            entries: index.entries,
            dram_bytes: index.dram_bytes,
            media_bytes: index.media_bytes,
            lookups: index.lookups,
            reads: index.reads,
            reordered: index.reordered,
        }
    }

    /// Describes the index in one line; `device_bytes` is the size of the device.
    pub(crate) fn describe(&self, device_bytes: u64) -> String {
        let Index { kind, media_bytes, dram_bytes, .. } = self;
        let weak = self.weak.as_deref().unwrap_or_default();
        let share = report::percent(*media_bytes, device_bytes);
        let (media, dram) = (size::show(*media_bytes), size::show(*dram_bytes));
        match kind.as_str() {
            "pm" => format!("pm, by {weak}: {media} ({share}) beside the chunk table, {dram} of DRAM"),
            _ => format!("{kind}: {dram} of DRAM"),
        }
    }

    /// Returns the mean number of entries that a search reads.
    pub(crate) fn reads_per_lookup(&self) -> Option<f64> {
        (self.lookups > 0).then(|| self.reads as f64 / self.lookups as f64)
    }
}

/// The content of the superblock.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct SuperblockFacts {
    pub format_version: u32,
    pub uuid: String,
    pub label: String,
    /// True after a clean unmount.
    pub clean: bool,
    pub incompatible_features: u64,
    pub read_only_compatible_features: u64,
    pub compatible_features: u64,
    pub device_bytes: u64,
    pub journal_offset: u64,
    pub segment_table_offset: u64,
    pub chunk_table_offset: u64,
    pub data_offset: u64,
    pub block_bytes: u32,
    pub segment_bytes: u32,
    /// The kind of the index, and for a pm index its fingerprint function.
    pub index: Option<String>,
    pub index_weak: Option<String>,
    pub read_write_mounts: u64,
    /// In nanoseconds since 1970.
    pub created_ns: i64,
    pub mounted_ns: i64,
}

/// How a mount learned what the device holds, and how far recovery has come.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Recovery {
    #[serde(flatten)]
    pub found: nvfold::Recovery,
    /// Progress of reconciling, in percent.
    pub percent: u64,
    /// Progress of the search for missing fingerprints, in percent of the files; absent if there is no search.
    #[serde(default)]
    pub fill_percent: Option<u64>,
}

/// Describes in one line what every stored byte is for.
pub(crate) fn usage_words(usage: &Usage) -> String {
    let [stored, saved, compressed] =
        [usage.stored_bytes, usage.saved_bytes, usage.compressed_away_bytes].map(size::show);
    let [logical, dead, padding] = [usage.logical_bytes, usage.dead_bytes, usage.padding_bytes].map(size::show);
    format!(
        "stored {stored} + saved {saved} + compressed away {compressed} = logical {logical} + dead {dead} + \
         padding {padding}"
    )
}

/// The process that serves the mount.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Process {
    /// The process's own memory: heap and stacks, without the mapped device.
    pub anonymous_bytes: u64,
    /// All resident memory, including mapped pages of the device.
    pub resident_bytes: u64,
}

impl Statistics {
    /// Describes a file system that this process has mounted.
    pub(crate) fn of_mounted(
        fs: &FileSystem,
        device: &str,
        dir: &Path,
        served: &Counters,
    ) -> nvfold::Result<Statistics> {
        Statistics::with(fs.stats(), fs, device, dir, served)
    }

    /// The same, at a cost that does not grow with what is stored: without the DRAM of the cached inodes, and without the
    /// directories of policy auto.
    pub(crate) fn in_figures(
        fs: &FileSystem,
        device: &str,
        dir: &Path,
        served: &Counters,
    ) -> nvfold::Result<Statistics> {
        let mut statistics = Statistics::with(fs.figures(), fs, device, dir, served)?;
        statistics.auto.iter_mut().for_each(|auto| auto.directories.clear());
        Ok(statistics)
    }

    fn with(stats: Stats, fs: &FileSystem, device: &str, dir: &Path, served: &Counters) -> nvfold::Result<Statistics> {
        let region = fs.region();
        let (superblock, _) = nvfold::read_superblock(region)?;
        Ok(Statistics {
            is_in_part: false,
            memory_limit: (region.level() == pmem::PersistenceLevel::Memory)
                .then(MemoryLimit::of_this_process)
                .flatten(),
            index: Some(Index::of(fs, &stats)),
            recovery: Some(recovery(&stats)),
            nv_dedup: stats.nv_dedup.clone(),
            auto: stats.auto.clone(),
            denova: stats.denova.clone(),
            origins: Some(stats.origins),
            requests: Some(served.now()),
            requests_by_kind: served.by_kind(),
            process: Process::this(),
            traffic: Some(Traffic::of(fs)),
            wear: Some(wear(stats.wear, region, &superblock)),
            space: Some(stats),
            ..Statistics::for_everybody(fs, &superblock, device, dir, served)
        })
    }

    /// The part of it that every user of the mount may see, and that is made at once. What is left out changes with each
    /// write of other users, to the byte, and so could tell what they store.
    pub(crate) fn for_others(
        fs: &FileSystem,
        device: &str,
        dir: &Path,
        served: &Counters,
    ) -> nvfold::Result<Statistics> {
        let (superblock, _) = nvfold::read_superblock(fs.region())?;
        Ok(Statistics::for_everybody(fs, &superblock, device, dir, served))
    }

    fn for_everybody(
        fs: &FileSystem,
        superblock: &Superblock,
        device: &str,
        dir: &Path,
        served: &Counters,
    ) -> Statistics {
        Statistics {
            mount_point: Some(mounts::show(dir)),
            mount_point_hex: mounts::hex(dir),
            pid: Some(std::process::id()),
            read_only: fs.is_read_only(),
            is_in_part: true,
            policy: Some(fs.policy().name().to_owned()),
            compress: Some(fs.compression().to_string()),
            share: Some(share_of(fs)),
            transport: Some(served.transport().to_owned()),
            ..Statistics::of_superblock(fs.region(), superblock, device)
        }
    }

    /// Returns what [`Statistics::for_others`] has of it. Whatever is not named here is left out.
    pub(crate) fn left_for_others(self) -> Statistics {
        Statistics {
            mount_point: self.mount_point,
            mount_point_hex: self.mount_point_hex,
            pid: self.pid,
            sync_errors: self.sync_errors,
            read_only: self.read_only,
            is_in_part: true,
            policy: self.policy,
            compress: self.compress,
            share: self.share,
            unused_bytes: self.unused_bytes,
            transport: self.transport,
            ..Statistics::bare(self.device, self.persistence, self.superblock)
        }
    }

    /// Fails if figures are left out.
    pub(crate) fn check_is_whole(&self) -> Outcome<()> {
        match (self.is_in_part, &self.mount_point) {
            (true, Some(dir)) => Err(Failure::new(dir, "only root and the user who mounted it may see its figures")
                .hint("df(1) shows its size and free space")),
            _ => Ok(()),
        }
    }

    fn of_superblock(region: &Region, superblock: &Superblock, device: &str) -> Statistics {
        Statistics {
            sync_errors: SyncErrors::of(region),
            unused_bytes: region.len_bytes().saturating_sub(superblock.device_bytes),
            ..Statistics::bare(device.to_owned(), region.level().to_string(), superblock_facts(superblock))
        }
    }

    /// Without all that may be absent.
    fn bare(device: String, persistence: String, superblock: SuperblockFacts) -> Statistics {
        Statistics {
            device,
            mount_point: None,
            mount_point_hex: None,
            pid: None,
            persistence,
            sync_errors: None,
            memory_limit: None,
            read_only: true,
            is_in_part: false,
            policy: None,
            compress: None,
            share: None,
            superblock,
            unused_bytes: 0,
            space: None,
            usage: None,
            snapshots: None,
            index: None,
            recovery: None,
            nv_dedup: None,
            auto: None,
            denova: None,
            origins: None,
            requests: None,
            transport: None,
            requests_by_kind: BTreeMap::new(),
            process: None,
            traffic: None,
            wear: None,
        }
    }

    /// Describes the file system at a mount point, at any path below one, on a mounted device, or on an unmounted
    /// device.
    pub(crate) fn of(target: &Path, options: &DeviceOptions) -> Outcome<Statistics> {
        Statistics::find(target, options, false)
    }

    /// The same, and what the snapshots hold, which takes a look at all files.
    pub(crate) fn with_snapshots(target: &Path, options: &DeviceOptions) -> Outcome<Statistics> {
        Statistics::find(target, options, true)?.and_snapshots()
    }

    /// The same, and what every stored byte is for.
    pub(crate) fn with_usage(target: &Path, options: &DeviceOptions) -> Outcome<Statistics> {
        let mut statistics = Statistics::find(target, options, true)?.and_snapshots()?;
        if let Some(dir) = &statistics.mount_point {
            statistics.usage = match bounded::get(Path::new(dir), USAGE_ATTRIBUTE, ANSWERS_WITHIN) {
                // Another user may not ask, and an older server does not know.
                Err(error) if [Some(errno::EPERM), Some(errno::ENODATA)].contains(&error.raw_os_error()) => None,
                usage => serde_json::from_slice(&usage.doing(dir)?).doing(format!("read the usage of {dir}"))?,
            };
        }
        Ok(statistics)
    }

    fn and_snapshots(mut self) -> Outcome<Statistics> {
        if let Some(dir) = &self.mount_point {
            self.snapshots = match bounded::get(Path::new(dir), IN_SNAPSHOTS, ANSWERS_WITHIN) {
                // Another user may not ask, and an older server does not know.
                Err(error) if [Some(errno::EPERM), Some(errno::ENODATA)].contains(&error.raw_os_error()) => None,
                answer => InSnapshots::answered(&answer.doing(dir)?),
            };
        }
        Ok(self)
    }

    fn find(target: &Path, options: &DeviceOptions, with_usage: bool) -> Outcome<Statistics> {
        if let Some(mounted) = mounts::at(target) {
            return ask(&mounted.dir);
        }
        check_answers(target)?;
        if target == Path::new("mem:") {
            return read_device(target, options, with_usage);
        }
        let metadata = std::fs::metadata(target).doing(mounts::show(target))?;
        if metadata.is_dir() {
            return ask(target);
        }
        match mounts::of_device(target) {
            Some(mounted) => ask(&mounted.dir),
            None => read_device(target, options, with_usage).map_err(|failure| match mounts::above(target) {
                Some(mounted) => {
                    let dir = mounts::show(&mounted.dir);
                    failure.hint(format!("it is a file on the mount {dir}: for the file system itself, give {dir}"))
                }
                None => failure,
            }),
        }
    }

    /// Returns the space, or why it is unknown. Prints a note on stderr while the figures are not exact.
    pub(crate) fn known_space(&self) -> Outcome<&Stats> {
        self.check_is_whole()?;
        if let Some(recovery) = self.recovery.as_ref().filter(|recovery| !recovery.found.reconciled) {
            eprint_line(&format!("nvfold: {}: {}; the figures are not exact yet", self.device, recovery.describe()));
        }
        let unknown = || {
            Failure::new(&self.device, "it was not unmounted cleanly, so its space is not known yet")
                .hint("mount it, which recovers it; `nvfold fsck` shows its space without that")
        };
        self.space.as_ref().ok_or_else(unknown)
    }
}

/// Asks the server of a mount.
pub(crate) fn ask(dir: &Path) -> Outcome<Statistics> {
    ask_within(dir, ANSWERS_WITHIN)
}

/// Asks the server of a mount, which must answer within a time.
pub(crate) fn ask_within(dir: &Path, within: Duration) -> Outcome<Statistics> {
    let value = bounded::get(dir, REPORT_ATTRIBUTE, within).map_err(|error| match error.kind() {
        ErrorKind::TimedOut => Failure::new(mounts::show(dir), error),
        _ => Failure::new(mounts::show(dir), format!("no nvfold is mounted there{}", reason(&error)))
            .hint("give a mount point of nvfold or a device"),
    })?;
    serde_json::from_slice(&value).doing(format!("read the report of {}", dir.display()))
}

/// Describes an error of a mount that does not answer. Another file system has no such attribute.
fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(errno::ENODATA | errno::EOPNOTSUPP) => String::new(),
        _ => format!(" ({error})"),
    }
}

fn read_device(path: &Path, options: &DeviceOptions, with_usage: bool) -> Outcome<Statistics> {
    let region = device::open(path, options, true)?;
    let (superblock, _) = nvfold::read_superblock(&region).doing(mounts::show(path))?;
    let mut statistics = Statistics::of_superblock(&region, &superblock, &mounts::show(path));
    if statistics.superblock.clean {
        let mount = nvfold::MountOptions { policy: Policy::Off, read_only: true, ..Default::default() };
        let fs = FileSystem::mount(region, mount).doing(mounts::show(path))?;
        let stats = fs.stats();
        if with_usage {
            statistics.usage = fs.usage().doing(mounts::show(path))?;
            statistics.snapshots = Some(InSnapshots::of(&fs).doing(mounts::show(path))?);
        }
        statistics.wear = Some(wear(stats.wear, fs.region(), &superblock));
        statistics.denova = stats.denova.clone();
        let index = Index::of(&fs, &stats);
        statistics.index = Some(Index { weak: index.weak.filter(|_| fs.index_kind() == IndexKind::Pm), ..index });
        statistics.space = Some(stats);
    }
    Ok(statistics)
}

fn share_of(fs: &FileSystem) -> String {
    if fs.shares_by_owner() { "owner" } else { "all" }.to_owned()
}

fn wear(wear: nvfold::SegmentWear, region: &Region, superblock: &Superblock) -> SegmentWear {
    let age_ns = pmem::clock::precise_now_ns().saturating_sub(superblock.created);
    SegmentWear::new(&wear, region.profile(), age_ns)
}

fn superblock_facts(superblock: &Superblock) -> SuperblockFacts {
    let index = superblock.index();
    let label = superblock.label.split(|byte| *byte == 0).next().unwrap_or_default();
    SuperblockFacts {
        format_version: superblock.version,
        uuid: show_uuid(&superblock.uuid),
        label: String::from_utf8_lossy(label).into_owned(),
        clean: superblock.is_clean(),
        incompatible_features: superblock.incompatible,
        read_only_compatible_features: superblock.read_only_compatible,
        compatible_features: superblock.compatible,
        device_bytes: superblock.device_bytes,
        journal_offset: superblock.journal_offset,
        segment_table_offset: superblock.segment_table_offset,
        chunk_table_offset: superblock.chunk_table_offset,
        data_offset: superblock.data_offset,
        block_bytes: superblock.block_bytes,
        segment_bytes: superblock.segment_bytes,
        index: index.map(|(kind, _)| kind.name().to_owned()),
        index_weak: index.filter(|(kind, _)| *kind == IndexKind::Pm).map(|(_, weak)| weak.name().to_owned()),
        read_write_mounts: superblock.mount_epoch,
        created_ns: superblock.created,
        mounted_ns: superblock.mounted,
    }
}

fn recovery(stats: &Stats) -> Recovery {
    let found = stats.recovery.clone();
    Recovery { percent: found.percent(), found, fill_percent: stats.fill_percent }
}

impl Recovery {
    /// Describes it in one line.
    pub(crate) fn describe(&self) -> String {
        let nvfold::Recovery { loaded, entries_scanned, inodes_scanned, reconciled, stalled, unreadable, .. } =
            self.found;
        let found = match loaded {
            true => "loaded what the last unmount saved".to_owned(),
            false => format!("scanned {entries_scanned} chunk entries and {inodes_scanned} inode slots"),
        };
        if stalled {
            format!("{found}; cannot be reconciled: unmount it, and run `nvfold fsck`")
        } else if unreadable > 0 {
            format!("{found}; {unreadable} inodes cannot be read, and their space is kept until `nvfold fsck --repair`")
        } else if !reconciled {
            format!("{found}; {} % reconciled", self.percent)
        } else {
            let filled = self.fill_percent.map(|percent| format!("; {percent} % of the files have their fingerprints"));
            format!("{found}; counts are exact{}", filled.unwrap_or_default())
        }
    }
}

impl Process {
    /// Describes this process, from /proc/self/status.
    pub(crate) fn this() -> Option<Process> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
        };
        Some(Process { anonymous_bytes: field("RssAnon")?, resident_bytes: field("VmRSS")? })
    }
}

/// Formats a UUID: `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
pub(crate) fn show_uuid(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Parses a UUID, with or without dashes.
pub(crate) fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let wrong = || "not a UUID of 32 hexadecimal digits".to_owned();
    if digits.len() != 32 || !digits.is_ascii() {
        return Err(wrong());
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    Ok(uuid)
}

/// If a path is on a mount, asks its server before anything looks at the path: a server that does not answer must not
/// be waited for.
pub(crate) fn check_answers(path: &Path) -> Outcome<()> {
    mounts::above(path).map_or(Ok(()), |mounted| ask(&mounted.dir).map(drop))
}

/// Returns the mount of a target, which is a mount point or a mounted device.
pub(crate) fn mount_of(target: &Path) -> Outcome<Mounted> {
    if let Some(mounted) = mounts::at(target) {
        return Ok(mounted);
    }
    check_answers(target)?;
    if let Some(mounted) = mounts::of_device(target) {
        return Ok(mounted);
    }
    std::fs::symlink_metadata(target).doing(mounts::show(target))?;
    Err(Failure::new(mounts::show(target), "no nvfold is mounted there").hint("`nvfold df` lists the mounts"))
}

/// Returns the mount point of a target, for commands that need one.
pub(crate) fn mount_point_of(target: &Path) -> Outcome<PathBuf> {
    mount_of(target).map(|mounted| mounted.dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_survives_printing_and_parsing() {
        let uuid = pmem::random_bytes::<16>();
        assert_eq!(parse_uuid(&show_uuid(&uuid)), Ok(uuid));
        assert!(parse_uuid("00000000-0000-0000-0000-00000000000").is_err());
        assert!(parse_uuid("0000000000000000000000000000000g").is_err());
    }
}
