//! What the survey has learned about packed chunks: how extents reference them, and where they live.

use super::range_map::Taken;
use crate::chunk::entries::Entries;
use crate::inode::extents::Extent;
use crate::media::{Location, PackedNumber, SEGMENT_BYTES};
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};

/// A packed chunk, as extents reference it.
#[derive(Clone, Copy, Default)]
pub(super) struct PackedUse {
    pub(super) references: u32,
    /// Least length of the content that the extents need, in bytes.
    pub(super) bytes: u64,
}

/// What the survey has learned about packed chunks.
pub(super) struct PackedSurvey {
    pub(super) entries: Entries,
    pub(super) named: HashMap<PackedNumber, PackedUse>,
    /// Packed segments, with how often each was opened.
    pub(super) segments: BTreeMap<u64, u32>,
    /// Live bytes by segment, to compare with the saved state.
    pub(super) live: BTreeMap<u64, u64>,
    pub(super) used_words: Vec<u64>,
    pub(super) saved_bytes: u64,
    /// Number of bytes that compression saves.
    pub(super) compressed_away_bytes: u64,
    pub(super) taken: Taken,
    pub(super) lost: Vec<(PackedNumber, PackedUse)>,
    /// Chunks with conflicting claims, or that cannot be rebuilt: the files that reference them are given up.
    pub(super) contested: BTreeSet<PackedNumber>,
    /// Chunks whose content may be damaged.
    pub(super) doubtful: BTreeSet<PackedNumber>,
}

impl PackedSurvey {
    pub(super) fn new(entries: Entries) -> PackedSurvey {
        PackedSurvey {
            entries,
            named: HashMap::new(),
            segments: BTreeMap::new(),
            live: BTreeMap::new(),
            used_words: Vec::new(),
            saved_bytes: 0,
            compressed_away_bytes: 0,
            taken: Taken::default(),
            lost: Vec::new(),
            contested: BTreeSet::new(),
            doubtful: BTreeSet::new(),
        }
    }

    /// Returns true if there is a live chunk at or after an address in its segment.
    pub(super) fn lives_behind(&self, address: u64) -> bool {
        let end = (address / SEGMENT_BYTES + 1) * SEGMENT_BYTES;
        address < end && self.taken.overlaps(address..end)
    }

    /// Records an extent that references a part of a packed chunk.
    pub(super) fn names(&mut self, extent: &Extent) {
        let Location::Packed(chunk, offset) = extent.location else { return };
        let named = self.named.entry(chunk).or_default();
        named.references = named.references.saturating_add(1);
        named.bytes = named.bytes.max(u64::from(offset) + extent.length);
    }
}
