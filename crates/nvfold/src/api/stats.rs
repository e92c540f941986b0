//! Statistics of a mounted file system.

use super::FileSystem;
use crate::dedup::auto::options::AutoStats;
use crate::dedup::denova::options::DeNovaStats;
use crate::dedup::nv_dedup::options::NvDedupStats;
use crate::dedup::policy::{Policy, PolicyStats};
use crate::error::Result;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::{BLOCK_BYTES, SEGMENT_BYTES};
use crate::mount::Recovery;
use crate::space::SegmentWear;
use crate::words::{IndexStats, OriginStats, Panicked, ReclaimStats, Refused, Removing, Skipped, Usage};

/// Statistics of the device, its space and its policies. Sizes are in bytes.
///
/// With feature `serde`, the sizes and counts are serialized. The parts that describe a policy, the index, recovery and wear
/// are serialized each by itself.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(default))]
pub struct Stats {
    /// Size of the device.
    pub device_bytes: u64,
    /// Bytes that the extents of all files reference. Without sharing, this many bytes would be stored. Holes do not
    /// count, nor do zeros that became holes.
    pub logical_bytes: u64,
    /// Bytes of data blocks and packed chunks in use.
    pub stored_bytes: u64,
    /// Bytes saved by sharing, less what is stored and mapped by no file: `logical - stored - compressed away`, and 0
    /// if that is negative. [`FileSystem::usage`] tells the two apart.
    pub saved_bytes: u64,
    /// Bytes saved by compression; each packed chunk counts once.
    pub compressed_away_bytes: u64,
    /// Bytes of logs, xattr blocks, segments of tables, and chunk entries in use.
    pub metadata_bytes: u64,
    /// Bytes set aside when the device was formatted, and not in use: superblocks, journal, segment table, free chunk
    /// entries, a rest at the end that is too short for a block.
    pub reserved_bytes: u64,
    /// Bytes of packed segments that are not part of a live chunk: dead bytes, headers, room for the next chunks.
    pub packed_rest_bytes: u64,
    /// Free bytes. With the four figures above and `stored_bytes` they are the whole device, unless the host lacks the
    /// memory or the disk for a part of it.
    pub free_bytes: u64,
    /// Free bytes that writers can use: less than `free_bytes` by what keeps deletion possible on a full device.
    pub available_bytes: u64,
    /// Bytes of host memory or disk that the device takes now (allocated ranges of the backing file).
    pub device_allocated_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inodes that could still be created.
    pub inodes_free: u64,
    /// Log areas in use: slots of the inode table that hold logs instead of inodes.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub log_areas: u64,
    /// Data blocks in use.
    pub data_blocks: u64,
    /// Chunk entries in use. With a dram index an unshared block has none.
    pub chunks: u64,
    /// The index.
    #[cfg_attr(feature = "serde", serde(flatten, with = "index_sizes"))]
    pub index: IndexStats,
    /// DRAM of the allocator, bytes.
    pub space_dram_bytes: u64,
    /// DRAM of the used bits of the inode table, of packed chunks, and of chunk entries, bytes.
    pub tables_dram_bytes: u64,
    /// DRAM of open streams of policy `deext`, bytes.
    pub streams_dram_bytes: u64,
    /// DRAM of cached inodes (extents, directories), bytes, estimated from capacities.
    pub inode_dram_bytes: u64,
    /// Inodes cached.
    pub inodes_cached: u64,
    /// Pieces offered to the policy since mount.
    pub pieces_offered: u64,
    /// Pieces shared since mount.
    pub pieces_shared: u64,
    /// Pieces whose weak fingerprint matched and whose bytes did not.
    pub weak_collisions: u64,
    /// Chunks whose missing fingerprint was computed in the background since mount.
    pub chunks_filled: u64,
    /// Progress of the pass that computes missing fingerprints, in percent; `None` when it does not run.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub fill_percent: Option<u64>,
    /// Items that background work has skipped since mount because they could not be read.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub skipped: Skipped,
    /// Changes refused since mount because of a mistake in nvfold.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub refused: Refused,
    /// Panics since mount in work beside the calls.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub panicked: Panicked,
    /// Reclamation of segments of packed chunks.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub reclaim: ReclaimStats,
    /// Removed trees that are not freed yet.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub removing: Removing,
    /// Dedup transactions that began since the device was formatted.
    pub transactions: u64,
    /// The counts of pieces, for each policy that looks for equal blocks while data is written.
    #[cfg_attr(feature = "serde", serde(with = "crate::dedup::serial::by_policy"))]
    pub by_policy: Vec<PolicyStats>,
    /// How often segments were opened for packed chunks since the device was formatted.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub wear: SegmentWear,
    /// Sharing through origins: bytes shared with the file they were copied from.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub origins: OriginStats,
    /// Policy `nv-dedup`, if new data goes there.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub nv_dedup: Option<NvDedupStats>,
    /// Policy `auto`, if new data goes there.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub auto: Option<AutoStats>,
    /// Policy `denova`, if new data goes there or anything is queued.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub denova: Option<DeNovaStats>,
    /// Recovery at mount. Until it is `reconciled`, the figures above leave out blocks whose use is not known yet.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub recovery: Recovery,
}

/// The two figures of the index that stand among the sizes.
#[cfg(feature = "serde")]
mod index_sizes {
    use crate::words::IndexStats;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Default, Deserialize, Serialize)]
    #[serde(default)]
    struct Sizes {
        index_entries: u64,
        index_dram_bytes: u64,
    }

    pub(super) fn serialize<S: Serializer>(index: &IndexStats, out: S) -> Result<S::Ok, S::Error> {
        Sizes { index_entries: index.entries, index_dram_bytes: index.dram_bytes }.serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<IndexStats, D::Error> {
        let Sizes { index_entries: entries, index_dram_bytes: dram_bytes } = Sizes::deserialize(from)?;
        Ok(IndexStats { entries, dram_bytes, ..IndexStats::default() })
    }
}

impl FileSystem {
    /// Returns what every stored byte is for: what sharing saves, and what is stored although no file maps it. It walks
    /// the logs of all inodes, and operations that change something wait for it. `None` while recovery is under way,
    /// or if an inode is damaged.
    ///
    /// # Errors
    /// EIO if a log cannot be read.
    pub fn usage(&self) -> Result<Option<Usage>> {
        self.jobs().usage()
    }

    /// Returns what the mount found, and how far recovery is, without the figures of [`FileSystem::stats`].
    pub fn recovery(&self) -> Recovery {
        self.mounted.recovery()
    }

    /// Returns the current sizes, savings and DRAM use. It looks at every inode in the cache.
    pub fn stats(&self) -> Stats {
        let mut stats = self.figures();
        for inodes in self.core().cache.inodes() {
            stats.inode_dram_bytes += inodes.iter().map(|inode| inode.peek().dram_bytes()).sum::<u64>();
        }
        stats
    }

    /// Returns what [`FileSystem::stats`] does but for the DRAM of the cached inodes, which is 0: the cost does not grow
    /// with what is stored.
    pub fn figures(&self) -> Stats {
        let core = self.core();
        core.release_waiting();
        let by_policy = core.policies.stats();
        let of_all = |figure: fn(&PolicyStats) -> u64| by_policy.iter().map(figure).sum();
        let data_blocks = core.data_blocks.get();
        let (logical_bytes, stored_bytes) = (core.mapped_bytes.get(), core.stored_bytes_total());
        let compressed_away_bytes = core.chunks.packed.compressed_away_bytes();
        let packed_bytes = core.space.packed.segments() * SEGMENT_BYTES;
        let packed_rest_bytes = packed_bytes.saturating_sub(core.space.packed.live_bytes());
        let block_entries_bytes = core.chunks.tracked() * ENTRY_BYTES;
        // A block that is being freed may count as free and as stored at once; hence the saturating arithmetic.
        let in_segments = core.space.used_blocks() * BLOCK_BYTES;
        let of_tables =
            in_segments.saturating_sub(data_blocks.saturating_mul(BLOCK_BYTES)).saturating_sub(packed_bytes);
        // In this order: a device that grows meanwhile has its length first.
        let total_blocks = core.space.total_blocks();
        let set_aside = core.geometry.device_bytes - total_blocks * BLOCK_BYTES;
        let statfs = self.statfs();
        Stats {
            inodes_cached: core.cache.count(),
            available_bytes: statfs.blocks_available * u64::from(statfs.block_bytes),
            inodes_free: statfs.inodes_free,
            device_bytes: core.geometry.device_bytes,
            logical_bytes,
            stored_bytes,
            saved_bytes: logical_bytes.saturating_sub(stored_bytes).saturating_sub(compressed_away_bytes),
            compressed_away_bytes,
            metadata_bytes: of_tables + block_entries_bytes,
            reserved_bytes: set_aside.saturating_sub(block_entries_bytes),
            packed_rest_bytes,
            free_bytes: core.space.free_blocks() * BLOCK_BYTES,
            device_allocated_bytes: core.region.allocated_bytes(),
            inodes: core.table.in_use(),
            log_areas: core.table.areas(),
            data_blocks,
            chunks: core.chunks.tracked() + core.chunks.packed.count(),
            index: core.chunks.index.stats(),
            space_dram_bytes: core.space.dram_bytes(),
            tables_dram_bytes: core.table.dram_bytes() + core.chunks.dram_bytes(),
            streams_dram_bytes: core.policies.streams_dram_bytes(),
            wear: core.space.segment_wear(),
            transactions: core.chunks.transactions(),
            pieces_offered: of_all(|policy| policy.offered),
            pieces_shared: of_all(|policy| policy.shared),
            weak_collisions: of_all(|policy| policy.collisions),
            by_policy,
            origins: core.origin_stats(),
            nv_dedup: core.policies.nv_dedup_stats(),
            auto: core.policies.auto_stats(),
            denova: core.policies.denova.stats(core.policies.is_default(Policy::DeNova)),
            chunks_filled: core.policies.filler.filled(),
            fill_percent: core.policies.filler.sweeps_at().map(|file| file * 100 / core.table.end().max(file)),
            reclaim: self.jobs().reclaim_stats(),
            removing: self.mounted.trees().removing(),
            skipped: core.skipped(),
            refused: core.refused(),
            panicked: core.panicked(),
            recovery: self.recovery(),
            ..Stats::default()
        }
    }
}
