//! Which segment of packed chunks is emptied next (DeEXT III-D), and the segment that is kept for it.
//!
//! The problem: chunks are appended and die one by one, so segments fill with dead bytes. They are free again when what
//! lives in them has moved, which costs as much as there is of it, and needs room when there is none.
//!
//! The idea: the segment with the fewest live bytes goes first. In the background only one that gives more than it costs,
//! and not while its chunks still die, for then it will soon cost less; where space is short, one that gives less, too. A
//! spare segment is kept, so that a device without a free one can still be reclaimed: what lives in the victim goes there,
//! and the victim becomes the spare.
//!
//! ```text
//! live bytes     emptied in the background
//! up to 1/4      at once: three times more becomes free than moves
//! up to 1/2      when it rests: no chunk of it has died since the round before
//! up to 3/4      when the device is nearly full
//! more           never
//! ```
//!
//! Dead bytes are bounded by that: 3/4 of a segment while it is written over, half of one that rests. Emptied at 1/2 all the
//! time, segments under random overwrites would move a byte for each byte written; at 1/4 they move a third.
//!
//! ```text
//! closed --choose_victim--> moving --what lives goes to the tail of its list--> nothing lives --> free, or the spare
//!                                  \--something could not be moved----------------------------> stuck, until it is free
//! ```
//!
//! Data that stays keeps its segment from being worn while others are (static wear levelling): a closed segment that lies
//! far behind the free ones is emptied too, and its place goes to data that is updated. The paper wears those alike that
//! are written, and has no such rule.

use super::packed::{CLOSED, Open, Pool, STUCK};
use super::wear::{Heat, spread};
use super::{SEGMENT_BYTES, Space};
use crate::error::Result;
use crate::media::PACKED_BYTES_MAX;
use std::ops::Range;

/// Which segments are worth emptying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    /// Those that give more than they cost, unless they will soon cost less; somewhat fuller ones when the device is nearly
    /// full; and those that lag far behind in wear.
    Worthwhile,
    /// All that give room for a chunk.
    All,
}

/// Segments that are compared when a victim is chosen: all of a device of 128 GiB. On a larger one the next search goes on
/// where this one ended.
const COMPARED: u64 = 65_536;
/// On a device with fewer segments (32 MiB) none is kept for reclamation: it would be too much of it.
const SEGMENTS_FOR_SPARE: u64 = 16;

impl Space {
    /// Takes the segment that is to be emptied next, and keeps it from being freed until [`Space::put_back`].
    pub fn choose_victim(&self, victims: Victims) -> Option<u64> {
        if self.packed.segments() == 0 {
            return None;
        }
        let segments = self.geometry.segments();
        let windows = match victims {
            Victims::Worthwhile => 1,
            Victims::All => segments.div_ceil(COMPARED),
        };
        (0..windows).find_map(|_| self.victim_of_window(victims))
    }

    /// The best of the next [`COMPARED`] segments, if it is good enough.
    fn victim_of_window(&self, victims: Victims) -> Option<u64> {
        let (first, segments) = (self.geometry.first_segment(), self.geometry.segments());
        let mut window = self.packed.compared.lock();
        let start = if window.end < segments { window.end.max(first) } else { first };
        *window = start..(start + COMPARED).min(segments);
        let closed = self.closed_in(window.clone());
        let live = |segment: &u64| self.packed.live_in(*segment);
        let is_worth_it = |segment: &u64| live(segment) <= self.live_of_victim(*segment, victims);
        let emptiest = closed.clone().filter(is_worth_it).min_by_key(live);
        let lagging = || {
            let least = closed.min_by_key(|segment| self.wear_of(*segment));
            least.filter(|least| self.lags_in_wear(*least, window.clone()))
        };
        let chosen = emptiest.or_else(|| (victims == Victims::Worthwhile).then(lagging).flatten())?;
        self.begin_moving(chosen).then_some(chosen)
    }

    fn closed_in(&self, window: Range<u64>) -> impl Iterator<Item = u64> + Clone + '_ {
        window.filter(|segment| self.packed.state_of(*segment) == CLOSED)
    }

    /// A round in the background is over: in the next one a segment rests if as much lives in it as now.
    pub fn end_round(&self) {
        let window = self.packed.compared.lock().clone();
        self.closed_in(window).for_each(|segment| self.packed.remember_live(segment));
    }

    /// Live bytes that this segment may have to be a victim.
    fn live_of_victim(&self, segment: u64, victims: Victims) -> u64 {
        match victims {
            // Of short chunks headers are a good part: one of which nothing is dead would be emptied again and again.
            Victims::All => self.packed.data_in(segment).saturating_sub(PACKED_BYTES_MAX),
            Victims::Worthwhile if self.is_nearly_full() => SEGMENT_BYTES / 4 * 3,
            Victims::Worthwhile if self.packed.rests(segment) => SEGMENT_BYTES / 2,
            Victims::Worthwhile => SEGMENT_BYTES / 4,
        }
    }

    /// Whether so little is free that segments are emptied before a write has to wait for one.
    fn is_nearly_full(&self) -> bool {
        !self.has_free(self.total_blocks() / 32)
    }

    /// Whether a segment was opened far less often than the most worn free one of a range: then data that stays lies on one
    /// that others should wear.
    fn lags_in_wear(&self, segment: u64, others: Range<u64>) -> bool {
        if !self.levels_wear {
            return false;
        }
        let least = self.wear_of(segment);
        let most = others.filter(|other| self.is_whole_free(*other)).map(|other| self.wear_of(other)).max();
        most.is_some_and(|most| most > least.saturating_add(2 * spread(least)))
    }

    /// What could be moved of a victim has moved, and nobody looks at it any more: it is free if nothing lives in it, else
    /// it is not chosen again. Whether it is free.
    pub fn put_back(&self, segment: u64) -> bool {
        let stays = self.packed.live_in(segment) > 0;
        self.packed.end_moving(segment, if stays { STUCK } else { CLOSED });
        self.take_live(segment, 1);
        !stays
    }

    /// Gives a victim up that is to be chosen again.
    pub fn give_up_victim(&self, segment: u64) {
        self.packed.end_moving(segment, CLOSED);
        self.take_live(segment, 1);
    }

    /// Keeps a segment for reclamation, if there is none and the device is large enough.
    pub(super) fn keep_spare(&self) -> Result<()> {
        if self.geometry.segments() < SEGMENTS_FOR_SPARE {
            return Ok(());
        }
        let mut spare = self.packed.spare.lock();
        if spare.is_none() {
            *spare = Some(self.allocate_worn_segment("keep a segment for reclamation", Heat::Cold)?);
        }
        Ok(())
    }

    /// Opens the spare segment.
    pub(super) fn open_spare(&self, set: u8, pool: Pool) -> Option<Open> {
        let spare = self.packed.spare.lock().take()?;
        Some(self.open_segment(spare, set, pool))
    }

    /// Keeps a free segment as the spare, if there is none and other segments need one.
    pub(super) fn keep_as_spare(&self, segment: u64) -> bool {
        let mut spare = self.packed.spare.lock();
        let is_needed = self.geometry.segments() >= SEGMENTS_FOR_SPARE && self.packed.segments() > 0 && spare.is_none();
        if is_needed {
            *spare = Some(segment);
        }
        is_needed
    }

    /// Whether a segment is kept for reclamation.
    pub fn has_spare(&self) -> bool {
        self.packed.spare.lock().is_some()
    }

    /// Whether the next segment of packed chunks needs another one beside it, to be kept for reclamation.
    pub(super) fn needs_spare_segment(&self) -> bool {
        self.geometry.segments() >= SEGMENTS_FOR_SPARE && !self.has_spare()
    }

    /// Frees the spare segment if there is nothing that it could serve; whether it did.
    pub(super) fn give_up_idle_spare(&self) -> bool {
        self.packed.segments() == 0 && self.give_up_spare()
    }

    /// Frees the spare segment; whether there was one.
    pub fn give_up_spare(&self) -> bool {
        let spare = self.packed.spare.lock().take();
        spare.inspect(|segment| self.free_segment(*segment)).is_some()
    }
}
