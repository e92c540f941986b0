//! Making space in the background: emptying segments, then collecting byte ranges; the end of both at unmount.

use super::Jobs;
use super::effort::Worked;
use crate::error::Result;
use crate::media::SEGMENT_BYTES;
use crate::space::reclaim::Victims;
use crate::words::{ReclaimStats, Usage};
use nvfold_sync::atomic::{AtomicU64, Ordering};

impl Jobs<'_> {
    /// Does one step of emptying segments, of at most a millisecond. If no segment is worth emptying, it does a step
    /// of collecting byte ranges. A collection that has begun is finished first: it leaves dead chunks in every segment,
    /// and emptying them meanwhile would move the same data again and again. Nothing moves before counts are exact.
    ///
    /// # Errors
    /// EROFS; those of the device.
    pub(crate) fn reclaim_step(&self, victims: Victims) -> Result<Worked> {
        self.change_in_background("reclaim space", || {
            let first = if self.is_collecting() { self.collect_some()? } else { Worked::Nothing };
            if first == Worked::GoesOn {
                return Ok(first);
            }
            let worked = match self.reclaim_some(victims) {
                Worked::Nothing if self.may_collect(victims) => self.collect_some()?,
                worked => worked,
            };
            if worked == Worked::Nothing && victims == Victims::Worthwhile {
                self.space.end_round();
            }
            Ok(worked)
        })
    }

    /// Does one step of collecting byte ranges and of nothing else, for tests that do something between its steps.
    ///
    /// # Errors
    /// EROFS; those of the device.
    pub(crate) fn collect_step(&self) -> Result<Worked> {
        self.change_in_background("reclaim space", || self.collect_any())
    }

    /// Returns what every stored byte is for: see [`Core::usage`](crate::fs::Core::usage).
    ///
    /// # Errors
    /// EIO if a log cannot be read.
    pub(crate) fn usage(&self) -> Result<Option<Usage>> {
        let held = || [self.under_way.collector.held(), self.under_way.evacuation.held()].concat();
        self.core.usage(held)
    }

    pub(crate) fn reclaim_stats(&self) -> ReclaimStats {
        let figure = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let (collected_chunks, collected_bytes) = self.under_way.collector.done();
        let (segments, moved_bytes) =
            (figure(&self.under_way.reclaimed.segments), figure(&self.under_way.reclaimed.moved_bytes));
        ReclaimStats {
            segments,
            moved_chunks: figure(&self.under_way.reclaimed.moved_chunks),
            moved_bytes,
            freed_bytes: (segments * SEGMENT_BYTES).saturating_sub(moved_bytes),
            dead_bytes: self.space.packed.dead_bytes(),
            collected_chunks,
            collected_bytes,
            kept_bytes: if self.space.has_spare() { SEGMENT_BYTES } else { 0 },
        }
    }

    /// Ends reclamation at unmount, when there are no readers left. Chunks that have not moved stay where they are,
    /// and no segment is reserved for reclamation any more.
    pub(crate) fn end_reclaiming(&self) {
        self.end_collecting();
        self.end_evacuating();
        if let Some(victim) = self.under_way.victim.lock().take() {
            self.space.give_up_victim(victim.segment);
        }
        self.give_up_empty_packed();
        self.space.give_up_spare();
    }
}
