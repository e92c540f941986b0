//! The spare segment: kept free, so that a device without a free segment can still be reclaimed ([`super::reclaim`]).

use super::Space;
use super::wear::Heat;
use crate::error::Result;

/// A device with fewer segments (32 MiB) keeps none for reclamation: it would be too large a part of the device.
const SEGMENTS_FOR_SPARE: u64 = 16;

impl Space {
    /// Takes a segment as the spare, if there is none and the device is large enough.
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

    /// Takes a segment as the spare if there are segments of packed chunks: for a mount, before logs and blocks take
    /// the last free one.
    pub(crate) fn keep_spare_for_packed(&self) {
        if self.packed.segments() > 0 {
            // Without a free segment, the first victim that is emptied becomes the spare.
            let _ = self.keep_spare();
        }
    }

    /// Keeps a free segment as the spare, if there is none and other segments need one. Returns whether it did.
    pub(super) fn keep_as_spare(&self, segment: u64) -> bool {
        let mut spare = self.packed.spare.lock();
        let is_needed = self.geometry.segments() >= SEGMENTS_FOR_SPARE && self.packed.segments() > 0 && spare.is_none();
        // Chunks will be appended to it.
        let is_kept = is_needed && self.back(segment).unwrap_or(false);
        if is_kept {
            *spare = Some(segment);
        }
        is_kept
    }

    /// Returns whether a spare segment is kept for reclamation.
    pub(crate) fn has_spare(&self) -> bool {
        self.packed.spare.lock().is_some()
    }

    /// Returns whether the next segment of packed chunks also needs a spare one to be taken.
    pub(super) fn needs_spare_segment(&self) -> bool {
        self.geometry.segments() >= SEGMENTS_FOR_SPARE && !self.has_spare()
    }

    /// Frees the spare segment if there is no other segment of packed chunks. Returns whether it did.
    pub(super) fn give_up_idle_spare(&self) -> bool {
        self.packed.segments() == 0 && self.give_up_spare()
    }

    /// Frees the spare segment. Returns whether there was one.
    pub(crate) fn give_up_spare(&self) -> bool {
        let spare = self.packed.spare.lock().take();
        spare.inspect(|segment| self.free_segment(*segment)).is_some()
    }
}
