//! The index of a device: which kind it has, and the segments of a pm index.

use super::options::MountOptions;
use crate::chunk::dram::DramIndex;
use crate::chunk::entries::Entries;
use crate::chunk::fact::Fact;
use crate::chunk::index::Index;
use crate::error::{Error, Result};
use crate::fs::Core;
use crate::media::direct::index_segments;
use crate::media::layout::Layout;
use crate::media::segment::{KIND_FREE, SegmentUse};
use crate::media::superblock::{Geometry, Superblock};
use crate::media::{BlockNumber, SEGMENT_BLOCKS};
use crate::space::BlockRun;
use crate::words::IndexKind;
use pmem::Region;
use std::sync::Arc;

/// Returns the index that the superblock specifies, and the mount options with its fingerprint function.
pub(super) fn index_of(
    region: &Region,
    geometry: &Layout,
    superblock: &Superblock,
    options: &MountOptions,
    uses: &[(u64, SegmentUse)],
) -> Result<(MountOptions, (Arc<Entries>, Index))> {
    let mut options = options.clone();
    let entries = Arc::new(Entries::new(geometry.clone()));
    let dram_index = || match superblock.secret() {
        Some(_) => DramIndex::for_owners(entries.clone()),
        None => DramIndex::new(entries.clone()),
    };
    let index = match superblock.index().expect("a superblock that was verified") {
        (IndexKind::Dram, _) => Index::Dram(Box::new(dram_index())),
        // A read-only mount looks nothing up, so an empty dram index stands in for a damaged pm index.
        (IndexKind::Pm, function) if options.read_only && index_segments_in(geometry, uses).is_err() => {
            options.nv_dedup.weak = function;
            Index::Dram(Box::new(dram_index()))
        }
        (IndexKind::Pm, function) => {
            options.nv_dedup.weak = function;
            let segments = index_segments_in(geometry, uses)?;
            let reorder = options.denova.reorder;
            Index::Pm(Box::new(Fact::new(region.clone(), geometry, entries.clone(), function, segments, reorder)))
        }
    };
    Ok((options, (entries, index)))
}

/// Returns the segments of the pm index, in the order of their ordinals, or an error if they are not complete.
pub(crate) fn index_segments_in(geometry: &Geometry, uses: &[(u64, SegmentUse)]) -> Result<Vec<u64>> {
    let part = |(segment, usage): &(u64, SegmentUse)| match usage {
        SegmentUse::Index(ordinal) => Some((*ordinal, *segment)),
        _ => None,
    };
    let mut found: Vec<(u32, u64)> = uses.iter().filter_map(part).collect();
    found.sort_unstable();
    let is_whole =
        (0..index_segments(geometry.index_blocks())).eq(found.iter().map(|(ordinal, _)| u64::from(*ordinal)));
    if !is_whole || found.iter().any(|(_, segment)| geometry.blocks_in_segment(*segment) != SEGMENT_BLOCKS) {
        return Err(Error::PmIndexDamaged { at: geometry.segment_table_offset });
    }
    Ok(found.into_iter().map(|(_, segment)| segment).collect())
}

/// Frees segments of a pm index that is not in use: an interrupted conversion leaves them.
pub(super) fn free_index_segments(core: &Core, uses: &[(u64, SegmentUse)]) -> Result<()> {
    for (segment, _) in uses.iter().filter(|(_, usage)| matches!(usage, SegmentUse::Index(_))) {
        core.space.write_use(*segment, KIND_FREE, 0);
        core.space.discard_run(BlockRun { start: BlockNumber(segment * SEGMENT_BLOCKS), count: SEGMENT_BLOCKS })?;
    }
    Ok(())
}
