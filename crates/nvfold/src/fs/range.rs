//! Ranges of files: size, reserved space, clones.

use super::Core;
use crate::dedup::work::Unfingerprinted;
use crate::error::{Error, Offset, Result, errno};
use crate::inode::extents::Extent;
use crate::inode::{Inode, State};
use crate::media::BLOCK_BYTES;
use crate::media::inode::AttributeLine;
use crate::media::log_entry::{LogEntry, dedupe};
use crate::space::Purpose;
use crate::store::blocks::{range_end, whole_blocks};
use crate::store::claims::Claims;
use crate::store::remap::{Mapped, Remap, Stamp};
use crate::words::{AllocateMode, TimeNs, Times};
use pmem::Flight;
use std::ops::Range;

impl Core {
    /// Sets the size of a file. Shrinking unmaps everything past it; growing leaves a hole.
    pub(crate) fn resize(&self, inode: &Inode, state: &mut State, size: u64, time: TimeNs) -> Result<()> {
        inode.check_changeable("truncate")?;
        self.check_size(state, size)?;
        let attributes = AttributeLine { size, mtime: time, ctime: time, ..state.attributes };
        self.set_attributes(inode, state, &attributes, Some(size), &[], Flight::new())
    }

    /// Checks that an inode may have this size.
    ///
    /// # Errors
    /// EFBIG if it is too large, EISDIR or EINVAL if the inode is not a regular file.
    pub(super) fn check_size(&self, state: &State, size: u64) -> Result<()> {
        range_end("truncate", size, 0)?;
        self.file_extents(state, "truncate").map(drop)
    }

    /// Sets the attributes of an inode, and changes extended ones, in one commit. `resized`: the size, if it is set; what
    /// is reserved behind the end then goes too, unless the file grows. `flight` holds the values of long extended
    /// attributes.
    pub(super) fn set_attributes(
        &self,
        inode: &Inode,
        state: &mut State,
        attributes: &AttributeLine,
        resized: Option<u64>,
        xattrs: &[LogEntry],
        flight: Flight,
    ) -> Result<()> {
        let (size, time, before) = (attributes.size, attributes.mtime, state.attributes.size);
        if size < before {
            state.truncated = Some(self.now());
            state.growth.grows = false;
        }
        // A file that keeps its size keeps its last block.
        let cut_at = resized.filter(|size| *size <= before).map(|size| match size == before {
            true => size.next_multiple_of(BLOCK_BYTES),
            false => size,
        });
        let is_named = |cut_at: &u64| state.extents().is_some_and(|all| all.within(*cut_at, u64::MAX).next().is_some());
        if let Some(cut_at) = cut_at.filter(is_named) {
            let range = cut_at..u64::MAX;
            let truncated = AttributeLine { size, mtime: time, ctime: time, ..state.attributes };
            let stamp = match xattrs.is_empty() && *attributes == truncated {
                true => Stamp::Changed(time, size),
                false => Stamp::Given(attributes, xattrs),
            };
            let mut claims = Claims::new(self);
            claims.flight().extend(flight);
            return self.publish(inode, state, &Remap::with_holes(&range, &[], stamp), None, &mut claims);
        }
        let stores = xattrs.iter().any(|entry| matches!(entry, LogEntry::XattrSet { .. }));
        let purpose = if stores { Purpose::Log } else { Purpose::Promised };
        self.change(inode, state, xattrs, Some(*attributes), purpose, flight)
    }

    /// Reserves, zeroes or punches a range of a file, as `mode` says (fallocate).
    ///
    /// # Errors
    /// EFBIG past the largest file size, EINVAL for a length of 0, EISDIR, ENOSPC.
    pub(crate) fn allocate(
        &self,
        inode: &Inode,
        offset: u64,
        length: u64,
        mode: AllocateMode,
        times: Times,
    ) -> Result<()> {
        use AllocateMode::*;
        inode.check_changeable("fallocate")?;
        let end = range_end("fallocate", offset, length)?;
        if length == 0 {
            return Err(invalid("fallocate", "the length is zero"));
        }
        let mut state = inode.write()?;
        let state = &mut *state;
        self.file_extents(state, "fallocate")?;
        let size = match mode {
            Reserve | ZeroRange => state.attributes.size.max(end),
            ReserveKeepSize | ZeroRangeKeepSize | PunchHole => state.attributes.size,
        };
        let clear = matches!(mode, PunchHole | ZeroRange | ZeroRangeKeepSize);
        let reserve = mode != PunchHole;
        let mut claims = Claims::new(self);
        let mut mapped = Mapped::new();
        if reserve {
            self.reserve_holes(state, offset, end, clear, &mut mapped, &mut claims)?;
        }
        let stamp = self.stamp(state, size, times);
        if clear {
            let range = offset..end;
            let remap = Remap::with_holes(&range, &mapped, stamp);
            return self.publish(inode, state, &remap, None, &mut claims);
        }
        if mapped.is_empty() {
            let attributes = stamp.attributes(&state.attributes);
            return self.change(inode, state, &[], Some(attributes), Purpose::Promised, Flight::new());
        }
        // The new extents only fill holes, so nothing is replaced or released.
        let nothing = 0..0;
        let remap = Remap::new(&nothing, &mapped, stamp);
        self.publish(inode, state, &remap, None, &mut claims)
    }

    /// Allocates reserved blocks for the holes of all blocks that `start..end` touches. If the range is `cleared`, it
    /// allocates them for all whole blocks inside the range instead.
    fn reserve_holes(
        &self,
        state: &State,
        start: u64,
        end: u64,
        cleared: bool,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let extents = self.file_extents(state, "fallocate")?;
        let mut holes: Vec<(u64, u64)> = Vec::new();
        if cleared {
            let (first, last) = whole_blocks(start, end - start);
            holes.push((first, last));
        } else {
            let mut at = start / BLOCK_BYTES * BLOCK_BYTES;
            let last = end.next_multiple_of(BLOCK_BYTES);
            for (offset, extent) in extents.within(at, last) {
                holes.push((at, offset / BLOCK_BYTES * BLOCK_BYTES));
                at = (offset + extent.length).next_multiple_of(BLOCK_BYTES);
            }
            holes.push((at, last));
        }
        for (from, to) in holes.into_iter().filter(|(from, to)| from < to) {
            let mut at = from;
            for run in claims.allocate("fallocate", (to - from) / BLOCK_BYTES)? {
                let length = run.count * BLOCK_BYTES;
                mapped.push((at, Extent::media(length, run.start.address(), true)));
                at += length;
            }
        }
        Ok(())
    }

    /// Checks the ranges of a clone.
    ///
    /// # Errors
    /// EINVAL if the ranges overlap in one file, EFBIG past the largest file size.
    pub(crate) fn check_clone(
        &self,
        (source, source_offset): (&Inode, u64),
        (target, offset): (&Inode, u64),
        length: u64,
    ) -> Result<()> {
        let source_end = range_end("clone", source_offset, length)?;
        let end = range_end("clone", offset, length)?;
        if source.ino == target.ino && offset < source_end && source_offset < end {
            return Err(invalid("clone", "the ranges overlap"));
        }
        Ok(())
    }

    /// Clones a range: makes `offset..` of `target` map the bytes that `source` maps at `source_offset`. Returns the
    /// number of bytes, which is smaller than `length` if the source ends before.
    ///
    /// # Errors
    /// EINVAL if the ranges overlap in one file, EFBIG past the largest file size, EMLINK, ENOSPC, EIO.
    pub(crate) fn clone_range(
        &self,
        source: &Inode,
        source_offset: u64,
        target: &Inode,
        offset: u64,
        length: u64,
        times: Times,
    ) -> Result<u64> {
        target.check_changeable("clone")?;
        self.check_clone((source, source_offset), (target, offset), length)?;
        if source.ino == target.ino {
            let mut state = target.write()?;
            let (mapped, length) = self.cloned_extents(&state, source_offset, offset, length)?;
            return self.clone_into(target, &mut state, offset..offset + length, &mapped, times);
        }
        // Lock the inodes in the order of their numbers.
        let early = (source.ino < target.ino).then(|| source.read()).transpose()?;
        let mut state = target.write()?;
        let source_state = early.map_or_else(|| source.read(), Ok)?;
        let (mapped, length) = self.cloned_extents(&source_state, source_offset, offset, length)?;
        self.clone_into(target, &mut state, offset..offset + length, &mapped, times)
    }

    fn cloned_extents(&self, source: &State, source_offset: u64, offset: u64, length: u64) -> Result<(Mapped, u64)> {
        let extents = self.file_extents(source, "clone")?;
        let length = source.attributes.size.saturating_sub(source_offset).min(length);
        let within = extents.within(source_offset, source_offset + length).filter(|(_, extent)| !extent.unwritten);
        let cloned = |(at, extent): (u64, Extent)| Ok((at.since(source_offset)?.after(offset)?, extent));
        Ok((within.map(cloned).collect::<Result<Mapped>>()?, length))
    }

    fn clone_into(
        &self,
        target: &Inode,
        state: &mut State,
        range: Range<u64>,
        mapped: &[(u64, Extent)],
        times: Times,
    ) -> Result<u64> {
        self.file_extents(state, "clone")?;
        if range.is_empty() {
            return Ok(0);
        }
        let mut claims = Claims::new(self);
        for (_, extent) in mapped {
            claims.share_extent(extent)?;
        }
        if self.policy_for(target).unfingerprinted() == Unfingerprinted::Queued
            && mapped.iter().any(|(_, extent)| self.lacks_fingerprints(extent))
        {
            // The data is still to be shared, so the entry of the clone is queued as well as that of the source.
            claims.set_dedupe(dedupe::NEEDED);
        }
        let stamp = self.stamp(state, state.attributes.size.max(range.end), times);
        self.publish(target, state, &Remap::with_holes(&range, mapped, stamp), None, &mut claims)?;
        Ok(range.end - range.start)
    }
}

fn invalid(doing: &'static str, why: &'static str) -> Error {
    Error::Posix { doing, why, errno: errno::EINVAL }
}
