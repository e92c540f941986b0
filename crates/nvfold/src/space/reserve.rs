//! Reserving free blocks: from the count of those that are backed, and by backing further segments ([`super::backing`]).

use super::{KEPT_BLOCKS, Purpose, Space, WHOLE};
use crate::error::{Error, Result};
use crate::media::{BLOCK_BYTES, SEGMENT_BLOCKS, SEGMENT_BYTES};
use nvfold_sync::atomic::Ordering;

/// On a full disk, the most segments that are partly in use that one allocation tries to back: 20 us each.
const TRIED_AT_ONCE: usize = 256;
impl Space {
    /// Backs a segment that has free blocks, a whole free one if there is one. Returns false if there is none, or if the
    /// host has no disk for it.
    ///
    /// # Errors
    /// Those of the host, except that it is full.
    pub(super) fn back_another(&self) -> Result<bool> {
        if !self.backing.is_needed() || self.backing.unbacked() == 0 {
            return Ok(false);
        }
        if self.back_whole()? || self.back_loose()? {
            return Ok(true);
        }
        // Another program may be faster than this one.
        while self.give_back_loose()? {
            if self.back_whole()? {
                return Ok(true);
            }
        }
        // Their blocks may have their disk already, from before the mount.
        self.back_one_of(|_, free| free > 0)
    }

    fn back_loose(&self) -> Result<bool> {
        Ok(self.backing.has_loose() && self.back_one_of(|segment, _| self.backing.is_loose(segment))?)
    }

    /// Backs one of the segments that are not backed and that fit: number, free blocks. It tries a bounded number.
    fn back_one_of(&self, fits: impl Fn(u64, u64) -> bool) -> Result<bool> {
        let mut first = None;
        for _ in 0..TRIED_AT_ONCE {
            let found = self.next_unbacked(|segment, free, _| fits(segment, free));
            let Some(segment) = found.filter(|found| first != Some(*found)) else { break };
            if self.back(segment)? {
                return Ok(true);
            }
            first.get_or_insert(segment);
        }
        Ok(false)
    }

    /// Gives the disk of loose blocks back, of a segment at least. Returns false if there is nothing to give back, or if
    /// the device keeps what it has.
    fn give_back_loose(&self) -> Result<bool> {
        if !self.gives_back() {
            return Ok(false);
        }
        let mut bytes = 0;
        while bytes < SEGMENT_BYTES && self.backing.has_loose() {
            let Some(segment) = self.next_unbacked(|segment, _, _| self.backing.is_loose(segment)) else { break };
            bytes += self.give_back_in(segment)?;
        }
        Ok(bytes > 0)
    }

    /// Backs segments until `blocks` blocks can be taken, or as many as can be had.
    pub(super) fn back_blocks(&self, blocks: u64) {
        // An error means that there are fewer; the caller looks.
        while self.free_blocks.count() < blocks && self.back_another().unwrap_or(false) {}
    }

    /// Reserves the disk of what is written outside of free blocks, and backs the segments of tables; for a mount that
    /// writes, once it knows them. It also backs a first segment, so that files can be removed when the disk is full.
    ///
    /// # Errors
    /// Those of the host: ENOSPC if it has no disk for the tables.
    pub(crate) fn back_tables(&self) -> Result<()> {
        if !self.backing.is_needed() {
            return Ok(());
        }
        self.region.reserve(0, self.geometry.segment_table_offset)?;
        self.region.reserve(self.geometry.device_bytes - BLOCK_BYTES, BLOCK_BYTES)?;
        for segment in self.geometry.first_segment()..self.geometry.segments() {
            let is_table = self.walkers[segment as usize].load(Ordering::Relaxed) == WHOLE;
            if is_table && !self.packed.is_packed(segment) && !self.back(segment)? {
                return Err(self.no_space("reserve disk for the tables of the device", SEGMENT_BLOCKS));
            }
        }
        self.back_another().map(drop)
    }

    /// Takes `count` blocks from the count of free ones, and backs segments for them.
    pub(super) fn reserve(&self, doing: &'static str, count: u64, purpose: Purpose) -> Result<()> {
        if self.fails_in.load(Ordering::Relaxed) != 0 && self.fails_in.fetch_sub(1, Ordering::Relaxed) == 1 {
            return Err(self.no_space(doing, count));
        }
        let kept = if purpose == Purpose::Promised { 0 } else { KEPT_BLOCKS };
        while !self.free_blocks.take(count, kept) {
            if !self.back_another()? {
                return Err(self.no_space(doing, count));
            }
        }
        Ok(())
    }

    pub(super) fn no_space(&self, doing: &'static str, blocks_needed: u64) -> Error {
        Error::NoSpace { doing, blocks_needed, blocks_free: self.free_blocks().saturating_sub(KEPT_BLOCKS) }
    }
}
