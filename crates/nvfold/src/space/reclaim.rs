//! Which segment of packed chunks is emptied next (DeEXT III-D), and the segment that is kept for it.
//!
//! The problem: chunks are appended and die one by one, so segments fill with dead bytes. A segment is free again
//! when its live chunks have moved. That costs as much as there are live bytes, and needs room when there is none.
//!
//! The idea: the segment with the fewest live bytes is emptied first. In the background this is done only if it frees
//! more than it moves, and not while chunks of the segment still die, because it will soon cost less. If space is
//! short, fuller segments are emptied too. One spare segment is kept, so that a device without a free one can still
//! be reclaimed: the victim's live chunks move to the spare, and the victim becomes the new spare. Until then nothing
//! else is appended to it. Otherwise it could be full before the victim is empty, and no segment could be emptied any
//! more.
//!
//! ```text
//! live bytes     emptied in the background
//! up to 1/4      at once: three times more becomes free than moves
//! up to 1/2      when it rests: no chunk of it has died since the round before
//! up to 3/4      when the device is nearly full
//! more           never
//! ```
//!
//! This bounds the dead bytes: 3/4 of a segment that is being overwritten, half of one that rests. With a fixed
//! threshold of 1/2, random overwrites would move a byte for each byte written; with 1/4 they move a third of a byte.
//!
//! ```text
//! closed --choose_victim--> moving --what lives goes to the tail of its list--> nothing lives --> free, or the spare
//!                                  \--something could not be moved---------------------------> stuck, until it is free
//! ```
//!
//! Data that stays keeps its segment from being worn while others are (static wear levelling). So a closed segment
//! whose wear is far below that of the free ones is emptied too, and its place goes to data that is updated. The
//! paper levels wear only among the segments that are written, and has no such rule.

use super::packed::{CLOSED, STUCK};
use super::wear::spread;
use super::{SEGMENT_BYTES, Space};
use crate::media::PACKED_BYTES_MAX;
use nvfold_sync::atomic::Ordering;
use std::ops::Range;

/// Which segments are worth emptying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    /// Segments that free more than they cost, unless they will soon cost less; fuller ones too when the device is
    /// nearly full; and segments that lag far behind in wear.
    Worthwhile,
    /// All segments that would free room for a chunk of middling length (32 KiB).
    All,
}

/// Segments compared when a victim is chosen: all of them up to 128 GiB. On a larger device the next search continues
/// where this one ended.
const COMPARED: u64 = 65_536;

impl Space {
    /// Chooses the segment to empty next, and keeps it from being freed until [`Space::put_back`].
    pub(crate) fn choose_victim(&self, victims: Victims) -> Option<u64> {
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

    /// Takes the best of the next [`COMPARED`] segments, if it qualifies.
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
        let begun = self.begin_moving(chosen);
        if begun {
            self.packed.is_emptying.store(true, Ordering::SeqCst);
        }
        begun.then_some(chosen)
    }

    fn closed_in(&self, window: Range<u64>) -> impl Iterator<Item = u64> + Clone + '_ {
        window.filter(|segment| self.packed.state_of(*segment) == CLOSED)
    }

    /// Ends a background round: in the next one, a segment rests if its live bytes are still the same.
    pub(crate) fn end_round(&self) {
        let window = self.packed.compared.lock().clone();
        self.closed_in(window).for_each(|segment| self.packed.remember_live(segment));
    }

    /// Returns how many live bytes this segment may have to become a victim.
    fn live_of_victim(&self, segment: u64, victims: Victims) -> u64 {
        match victims {
            // With short chunks, headers take a good part of a segment. Measured by its size, a segment without dead
            // chunks would be emptied again and again.
            Victims::All => self.packed.data_in(segment).saturating_sub(PACKED_BYTES_MAX / 2),
            Victims::Worthwhile if self.is_nearly_full() => SEGMENT_BYTES / 4 * 3,
            Victims::Worthwhile if self.packed.rests(segment) => SEGMENT_BYTES / 2,
            Victims::Worthwhile => SEGMENT_BYTES / 4,
        }
    }

    /// Returns whether so little is free that segments are emptied before a write has to wait for one.
    fn is_nearly_full(&self) -> bool {
        !self.has_free(self.total_blocks() / 32)
    }

    /// Returns whether a segment was opened far less often than the most worn free one of a range: then its
    /// long-lived data should move, so that updates wear it.
    fn lags_in_wear(&self, segment: u64, others: Range<u64>) -> bool {
        if !self.levels_wear {
            return false;
        }
        let least = self.wear_of(segment);
        let most = others.filter(|other| self.is_whole_free(*other)).map(|other| self.wear_of(other)).max();
        most.is_some_and(|most| most > least.saturating_add(2 * spread(least)))
    }

    /// Ends the emptying of a victim, after all chunks that could move have moved and no reader uses the old places.
    /// It is freed if nothing in it is live; otherwise it is not chosen again. Returns whether it is free.
    pub(crate) fn put_back(&self, segment: u64) -> bool {
        let stays = self.packed.live_in(segment) > 0;
        self.end_emptying(segment, if stays { STUCK } else { CLOSED });
        !stays
    }

    /// Gives up a victim so that it can be chosen again.
    pub(crate) fn give_up_victim(&self, segment: u64) {
        self.end_emptying(segment, CLOSED);
    }

    /// Lets go of a victim. What is left of the segment that was the spare is for all from now on, if there is a spare
    /// again; otherwise the next victim needs it.
    fn end_emptying(&self, segment: u64, state: u8) {
        self.packed.end_moving(segment, state);
        self.take_live(segment, 1);
        self.packed.is_emptying.store(!self.has_spare(), Ordering::SeqCst);
    }
}
