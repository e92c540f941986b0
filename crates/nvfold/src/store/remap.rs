//! A change of a file's extents: which ranges are replaced, by what, and what that does to size and times.

use super::Store;
use crate::inode::State;
use crate::inode::extents::Extent;
use crate::media::inode::AttributeLine;
use crate::media::log_entry::LogEntry;
use crate::media::{BLOCK_BYTES, BlockNumber, Location};
use crate::words::{TimeNs, Times};
use smallvec::SmallVec;
use std::ops::Range;

/// Extents, in order of their file offset.
pub(crate) type Mapped = SmallVec<[(u64, Extent); 1]>;

/// How a change of extents affects the inode's times and size.
#[derive(Clone, Copy)]
pub(crate) enum Stamp<'c> {
    /// The content changed: the time of the change, and the file size after it.
    Changed(TimeNs, u64),
    /// The attributes are replaced by these; the log entries change extended attributes in the same commit.
    Given(&'c AttributeLine, &'c [LogEntry]),
    /// The content changed, and the file has this size; its times stay as they are.
    Untimed(u64),
    /// Only the location of the content changed, so times and size stay as they are.
    Kept,
    /// The same for content that this operation has just published, with these mtime, ctime and size.
    Moved(TimeNs, u64),
}

impl Stamp<'_> {
    /// Returns the attributes after the change of an inode that had these.
    #[inline]
    pub(crate) fn attributes(&self, before: &AttributeLine) -> AttributeLine {
        match *self {
            Stamp::Changed(time, size) | Stamp::Moved(time, size) => {
                AttributeLine { size, mtime: time, ctime: time, ..*before }
            }
            Stamp::Given(attributes, _) => *attributes,
            Stamp::Untimed(size) => AttributeLine { size, ..*before },
            Stamp::Kept => *before,
        }
    }

    /// Returns the stamp of a change that only moves what this file holds. One log entry sets mtime and ctime to the same
    /// time.
    pub(super) fn moved(state: &State) -> Stamp<'static> {
        let AttributeLine { mtime, ctime, size, .. } = state.attributes;
        if mtime == ctime { Stamp::Moved(mtime, size) } else { Stamp::Kept }
    }

    /// True if the change only moves the content of the file.
    #[inline]
    pub(super) fn keeps_content(&self) -> bool {
        matches!(self, Stamp::Kept | Stamp::Moved(..))
    }
}

/// A change of a file's extents: after it, `ranges` contain exactly the extents in `mapped`.
pub(crate) struct Remap<'c> {
    /// The file ranges that are replaced. No two of them touch the same block.
    pub(crate) ranges: &'c [Range<u64>],
    pub(crate) mapped: &'c [(u64, Extent)],
    /// True if `mapped` leaves holes. No two ranges of such a change meet.
    pub(crate) has_holes: bool,
    pub(crate) stamp: Stamp<'c>,
}

impl<'c> Remap<'c> {
    /// Describes a change of one range that `mapped` fills completely.
    #[inline]
    pub(crate) fn new(range: &'c Range<u64>, mapped: &'c [(u64, Extent)], stamp: Stamp<'c>) -> Remap<'c> {
        Remap { ranges: std::slice::from_ref(range), mapped, has_holes: false, stamp }
    }

    /// Describes a change of one range; what `mapped` does not cover becomes a hole.
    #[inline]
    pub(crate) fn with_holes(range: &'c Range<u64>, mapped: &'c [(u64, Extent)], stamp: Stamp<'c>) -> Remap<'c> {
        Remap { has_holes: true, ..Remap::new(range, mapped, stamp) }
    }

    /// Returns the log entries that change extended attributes in the same commit.
    pub(super) fn xattrs(&self) -> &'c [LogEntry] {
        match self.stamp {
            Stamp::Given(_, xattrs) => xattrs,
            Stamp::Changed(..) | Stamp::Untimed(_) | Stamp::Kept | Stamp::Moved(..) => &[],
        }
    }
}

impl Store {
    /// Returns the stamp of a change of content after which the file has this size.
    #[inline]
    pub(crate) fn stamp(&self, state: &State, size: u64, times: Times) -> Stamp<'static> {
        let AttributeLine { mtime, ctime, .. } = state.attributes;
        match times {
            Times::Stamped => Stamp::Changed(self.now(), size),
            // One log entry sets both, and there is no need of a line of attributes.
            Times::Kept if mtime == ctime => Stamp::Changed(mtime, size),
            Times::Kept => Stamp::Untimed(size),
        }
    }
}

/// Adds an extent to `mapped`. An extent that continues the last one, both in the file and on the media, is merged
/// into it. Extents of packed chunks are not merged here, because each holds its own reference;
/// [`Extents::plan`](crate::inode::extents::Extents::plan) drops the surplus references.
#[inline]
pub(crate) fn push_mapped(mapped: &mut Mapped, offset: u64, extent: Extent) {
    if let Some((start, last)) = mapped.last_mut()
        && *start + last.length == offset
        && let (Location::Media(before), Location::Media(address)) = (last.location, extent.location)
        && before + last.length == address
    {
        last.length += extent.length;
        return;
    }
    mapped.push((offset, extent));
}

/// Returns the extent of one whole block.
#[inline]
pub(crate) fn block_extent(block: BlockNumber) -> Extent {
    Extent::media(BLOCK_BYTES, block.address(), false)
}

/// True if the extents cover the range without a gap.
#[inline]
pub(crate) fn covers(mapped: &[(u64, Extent)], range: &Range<u64>) -> bool {
    let mut at = range.start;
    for (offset, extent) in mapped {
        if *offset != at {
            return false;
        }
        at += extent.length;
    }
    at == range.end
}

/// Returns the extents that begin in the range.
#[inline]
pub(crate) fn within<'m>(mapped: &'m [(u64, Extent)], range: &Range<u64>) -> &'m [(u64, Extent)] {
    let first = mapped.partition_point(|(offset, _)| *offset < range.start);
    let end = mapped.partition_point(|(offset, _)| *offset < range.end);
    &mapped[first..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: u64 = BLOCK_BYTES;

    fn data(block: u64, blocks: u64) -> Extent {
        Extent::media(blocks * B, block * B, false)
    }

    #[test]
    fn a_range_counts_as_covered_only_if_its_extents_leave_no_gap() {
        let mapped: Mapped = [(B, data(1, 2)), (3 * B, data(9, 1))].into_iter().collect();
        assert!(covers(&mapped, &(B..4 * B)) && covers(&[], &(B..B)));
        assert!(!covers(&mapped, &(B..5 * B)) && !covers(&mapped, &(0..4 * B)) && !covers(&[], &(B..2 * B)));
        assert!(!covers(&[mapped[0], (4 * B, data(9, 1))], &(B..5 * B)));
        assert_eq!(within(&mapped, &(2 * B..9 * B)), &mapped[1..]);
        assert_eq!(within(&mapped, &(0..3 * B)), &mapped[..1]);
    }
}
