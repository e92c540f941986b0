//! Which segments of blocks are emptied to make whole free ones.
//!
//! The problem: blocks are freed one by one, so the free ones are scattered, and what needs a whole segment finds none.
//!
//! The idea: the emptiest segments are emptied, as many as the free blocks of all others have room for, and at most
//! [`EMPTIED_MAX`] in one pass. Meanwhile each has a cursor that never moves, so other cursors do not enter it unless no
//! other segment has a free block. Their free blocks stay in the count of free ones: a reservation is served from
//! there at worst, and the segment is not emptied then.

use super::{KEPT_BLOCKS, Space};
use crate::media::SEGMENT_BLOCKS;
use nvfold_sync::atomic::Ordering;
use smallvec::SmallVec;

/// The most segments that one pass over the inodes empties.
const EMPTIED_MAX: usize = 8;
/// Blocks beside the kept ones that are left free, for the logs of what moves.
const MARGIN_BLOCKS: u64 = 64;

/// The numbers of segments that are being emptied, sorted.
pub(crate) type Emptied = SmallVec<[u64; EMPTIED_MAX]>;

impl Space {
    /// Returns whether a segment is free.
    pub(crate) fn has_whole_segment(&self) -> bool {
        let mut all = self.geometry.first_segment()..self.geometry.segments();
        all.any(|segment| self.is_whole_free(segment))
    }

    /// Chooses the segments of blocks to empty, and keeps cursors from entering them until [`Space::end_evacuating`].
    /// `None` if no segment can be emptied.
    pub(crate) fn begin_evacuating(&self) -> Option<Emptied> {
        self.leave_cursors();
        let can_move = |used: u64| (1..SEGMENT_BLOCKS).contains(&used);
        let fill = |segment: u64| (self.used_blocks_in(segment), segment);
        let mut by_fill: Vec<(u64, u64)> = self
            .marked_segments()
            .filter(|segment| self.geometry.blocks_in_segment(*segment) == SEGMENT_BLOCKS)
            .map(fill)
            .filter(|(used, segment)| can_move(*used) && self.stayed_in(*segment) != *used)
            .collect();
        by_fill.sort_unstable();
        let movable = self.free_blocks.count().saturating_sub(KEPT_BLOCKS + MARGIN_BLOCKS) / SEGMENT_BLOCKS;
        let most = (movable as usize).min(EMPTIED_MAX);
        let segments = by_fill.into_iter().map(|(_, segment)| segment);
        let mut emptied: Emptied = segments.filter(|segment| self.own(*segment, 1)).take(most).collect();
        emptied.sort_unstable();
        (!emptied.is_empty()).then_some(emptied)
    }

    /// Lets cursors enter a segment again. Returns true if it is free; otherwise it is not chosen again before more of it
    /// is free.
    pub(crate) fn end_evacuating(&self, segment: u64) -> bool {
        let stayed = self.used_blocks_in(segment);
        self.stayed[segment as usize].store(stayed as u16, Ordering::Relaxed);
        self.leave(segment);
        stayed == 0
    }

    fn used_blocks_in(&self, segment: u64) -> u64 {
        SEGMENT_BLOCKS - u64::from(self.free_in[segment as usize].load(Ordering::Relaxed))
    }

    fn stayed_in(&self, segment: u64) -> u64 {
        u64::from(self.stayed[segment as usize].load(Ordering::Relaxed))
    }

    /// Takes all cursors out of their segments, so that these can be chosen.
    fn leave_cursors(&self) {
        for cursors in &self.cursors {
            let mut cursors = cursors.lock();
            let cursors = &mut *cursors;
            for cursor in [&mut cursors.data, &mut cursors.log] {
                if let Some(segment) = std::mem::take(cursor).segment {
                    self.leave(segment);
                }
            }
        }
    }
}
