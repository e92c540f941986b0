//! Which free segment becomes the next pool: the choice by wear (DeEXT III-C, Fig. 5).
//!
//! The problem: cells of NVRAM endure a limited number of writes. Frequent updates would wear a few segments out,
//! while those under data that stays are hardly worn.
//!
//! The idea: free segments in the order of their wear form four regions. Data that is updated goes to the young ones,
//! because it is soon free again; data that stays goes to the old ones, which then rest under it.
//!
//! ```text
//! least worn                                        most worn
//! |  youngest  |   young    |    old     |   oldest   |
//!  ^ hot: the first of all                    ^ cold: the most worn that is near enough to the least worn
//! ```
//!
//! Cold data alone would wear the oldest segments out: pools that are written once and removed as a whole, over and
//! over, stay cold. So a segment far above the least worn one ([`spread`]) rests until the others have caught up. The
//! paper has no such bound.

use super::{Space, WHOLE};
use crate::error::Result;
use crate::media::SEGMENT_BLOCKS;
use nvfold_sync::atomic::Ordering;

/// How soon data is expected to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heat {
    /// Later than most data.
    Cold,
    /// Soon.
    Hot,
}

/// Free segments whose wear is compared when one is chosen: all of them up to 8 GiB. On a larger device each search
/// continues where the last one ended, so that every segment gets its turn.
const COMPARED: usize = 4096;

/// Returns how far above the least worn free segment another one may be and still be used: an eighth, plus 2.
pub(super) fn spread(least: u32) -> u32 {
    2 + least / 8
}

/// Returns the order in which to try free segments, which are given as `(wear, number)`, sorted.
fn by_preference(free: &[(u32, u64)], heat: Heat) -> impl Iterator<Item = u64> {
    let (front, back) = match heat {
        Heat::Hot => (&free[..0], free),
        Heat::Cold => {
            let limit = free.first().map_or(0, |(least, _)| least.saturating_add(spread(*least)));
            free.split_at(free.partition_point(|(wear, _)| *wear <= limit))
        }
    };
    front.iter().rev().chain(back).map(|(_, segment)| *segment)
}

/// How often the segments of a device were opened for packed chunks. Each opening writes all of a segment once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentWear {
    /// The number of segments that may hold data.
    pub segments: u64,
    /// How often they were opened in all. Survives unmounts and the freeing of a segment.
    pub opened: u64,
    /// How often the most worn segment was opened; saturates at `u32::MAX`.
    pub opened_max: u32,
}

impl SegmentWear {
    /// Returns how often a segment was opened on average; 0 on a device without segments.
    pub fn opened_mean(&self) -> f64 {
        self.opened as f64 / self.segments.max(1) as f64
    }
}

impl Space {
    /// Does the same as [`Space::allocate_segment`], but takes the segment whose wear suits the data.
    pub(super) fn allocate_worn_segment(&self, doing: &'static str, heat: Heat) -> Result<u64> {
        if !self.levels_wear {
            return self.allocate_segment_by(doing, |_| {
                let mut from = self.geometry.first_segment();
                self.find_segment(&mut from, WHOLE, |free, _| free == SEGMENT_BLOCKS)
            });
        }
        self.allocate_segment_by(doing, |from| {
            let free = self.free_by_wear(*from);
            let segment = by_preference(&free, heat).find(|segment| self.own(*segment, WHOLE))?;
            if free.len() == COMPARED {
                *from = segment;
            }
            Some(segment)
        })
    }

    /// Returns up to [`COMPARED`] free segments from `from` on, with their wear, sorted by wear.
    fn free_by_wear(&self, from: u64) -> Vec<(u32, u64)> {
        let is_free = |segment: &u64| self.is_whole_free(*segment);
        let with_wear = |segment: u64| (self.wear_of(segment), segment);
        let order = (from..self.geometry.segments()).chain(self.geometry.first_segment()..from);
        let mut free: Vec<_> = order.filter(is_free).take(COMPARED).map(with_wear).collect();
        free.sort_unstable();
        free
    }

    /// Returns whether a segment is completely free and no cursor is in it.
    pub(super) fn is_whole_free(&self, segment: u64) -> bool {
        let at = segment as usize;
        self.takeable_in(segment) == SEGMENT_BLOCKS && self.walkers[at].load(Ordering::Relaxed) == 0
    }

    /// Returns how often a segment was opened.
    pub(crate) fn wear_of(&self, segment: u64) -> u32 {
        self.wear[segment as usize].load(Ordering::Relaxed)
    }

    /// Turns wear levelling on or off; for benchmarks. Without it, the first free segment becomes the next pool.
    pub(crate) fn with_wear_levelling(self, levels_wear: bool) -> Space {
        Space { levels_wear, ..self }
    }

    /// Returns how often segments were opened.
    pub(crate) fn segment_wear(&self) -> SegmentWear {
        let mut wear = SegmentWear::default();
        for segment in self.geometry.data_ranges().flatten() {
            let count = self.wear_of(segment);
            wear.segments += 1;
            wear.opened += u64::from(count);
            wear.opened_max = wear.opened_max.max(count);
        }
        wear
    }

    /// Counts one more opening of a segment.
    pub(super) fn note_opened(&self, segment: u64) {
        let wear = &self.wear[segment as usize];
        wear.store(wear.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(free: &[(u32, u64)], heat: Heat) -> Vec<u64> {
        by_preference(free, heat).collect()
    }

    #[test]
    fn hot_data_goes_to_the_least_worn_segment_and_cold_data_to_the_most_worn() {
        let free = [(10, 1), (10, 2), (11, 3), (13, 4)];
        assert_eq!(order(&free, Heat::Hot), [1, 2, 3, 4]);
        assert_eq!(order(&free, Heat::Cold), [4, 3, 2, 1]);
        assert_eq!(order(&[], Heat::Cold), [0; 0]);
    }

    #[test]
    fn a_far_more_worn_segment_rests_until_no_other_is_free() {
        let free = [(0, 1), (2, 2), (3, 3), (u32::MAX, 4)];
        assert_eq!(order(&free, Heat::Cold), [2, 1, 3, 4]);
        assert_eq!(order(&[(u32::MAX, 7)], Heat::Cold), [7], "the count is at its end, and not over it");
    }

    /// Writes and removes a pool ten thousand times.
    #[test]
    fn pools_that_are_written_and_removed_wear_all_free_segments_alike() {
        for heat in [Heat::Cold, Heat::Hot] {
            let mut wear = [0u32; 64];
            for _ in 0..10_000 {
                let mut free: Vec<_> = wear.iter().copied().zip(0..).collect();
                free.sort_unstable();
                wear[by_preference(&free, heat).next().unwrap() as usize] += 1;
            }
            let (most, mean) = (wear.iter().max().unwrap(), 10_000 / 64);
            assert!(f64::from(*most) <= 1.3 * f64::from(mean), "{heat:?}: {most} of {mean}");
        }
    }
}
