//! The log entries of a change of extents: as few lines as possible.

use super::remap::{Remap, Stamp, covers, within};
use crate::inode::extents::Extent;
use crate::inode::{Inode, State};
use crate::media::inode::AttributeLine;
use crate::media::location_word::LocationWord;
use crate::media::log_entry::{ExtentEntry, LogEntry, dedupe};
use crate::media::vector_entry::{Named, RECORDS_MAX, VectorEntry, lines_of};
use crate::words::TimeNs;
use smallvec::{SmallVec, smallvec};

/// The number of extents from which a change is logged as vector entries.
const VECTOR_EXTENTS_MIN: usize = 4;

/// Encodes each entry into its log lines.
pub(super) fn encode_each(inode: &Inode, entries: &[LogEntry]) -> SmallVec<[Vec<u8>; 2]> {
    let lines = |entry: &LogEntry| {
        let mut lines = Vec::new();
        entry.encode(inode.ino, &mut lines);
        lines
    };
    entries.iter().map(lines).collect()
}

/// Returns the log entries of a change (write, unmap and vector entries). The second value is the attributes to write
/// behind them, if those must stay as they are.
pub(crate) fn entries_of(
    inode: &Inode,
    state: &State,
    remap: &Remap<'_>,
    flag: u8,
) -> (SmallVec<[LogEntry; 2]>, Option<AttributeLine>) {
    // A log entry also sets the inode's ctime. An attribute line behind it restores what must not change.
    let after = remap.stamp.attributes(&state.attributes);
    let (time, size) = (after.mtime, after.size);
    let kept = (!matches!(remap.stamp, Stamp::Changed(..) | Stamp::Moved(..))).then_some(after);
    if remap.mapped.len() >= VECTOR_EXTENTS_MIN {
        let named = named_of(remap);
        let runs = named.chunk_by(|named, next| named.file_offset + named.length == next.file_offset);
        let entry = |named: &[Named]| entries_for(named, flag, time, size, inode.ino);
        return (runs.flat_map(|run| run.chunks(RECORDS_MAX)).flat_map(entry).collect(), kept);
    }
    let holes = remap.ranges.iter().filter(|range| remap.has_holes && !covers(within(remap.mapped, range), range));
    let unmaps = holes.map(|range| ExtentEntry::unmap(range.start, range.end - range.start, time, size));
    let writes = remap.mapped.iter().map(|(offset, extent)| {
        // Packed chunks are deduplicated while they are written, so they are never queued.
        let flag = if extent.unwritten || extent.packed().is_some() { dedupe::NONE } else { flag };
        ExtentEntry::write(*offset, extent.length, extent.location, extent.unwritten, time, size).flagged(flag)
    });
    (unmaps.chain(writes).map(|entry| LogEntry::Extent(entry.sealed(inode.ino))).collect(), kept)
}

/// Returns what each range of the change maps, in pieces that fit a record of a vector entry. Holes are included if
/// the change makes any.
fn named_of(remap: &Remap<'_>) -> Vec<Named> {
    let mut named = Vec::with_capacity(remap.mapped.len());
    let word = |extent: &Extent| LocationWord::new(extent.location, extent.unwritten);
    let mut name = |file_offset: u64, length: u64, word| {
        if length > 0 {
            named.extend(Named { file_offset, length, word }.in_pieces());
        }
    };
    if !remap.has_holes {
        remap.mapped.iter().for_each(|(offset, extent)| name(*offset, extent.length, word(extent)));
        return named;
    }
    for range in remap.ranges {
        let mut at = range.start;
        for (offset, extent) in within(remap.mapped, range) {
            name(at, offset - at, LocationWord::HOLE);
            name(*offset, extent.length, word(extent));
            at = offset + extent.length;
        }
        name(at, range.end - at, LocationWord::HOLE);
    }
    named
}

/// Returns log entries for consecutive ranges: one vector entry if that takes fewer lines, or else one entry for each
/// range.
pub(super) fn entries_for(named: &[Named], flag: u8, time: TimeNs, size: u64, ino: u64) -> SmallVec<[LogEntry; 2]> {
    let is_data = |named: &Named| named.word.location().is_some_and(|(_, unwritten)| !unwritten);
    let flag_of = |named: &Named| if is_data(named) { flag } else { dedupe::NONE };
    if lines_of(named.len()) < named.len() as u64 {
        let flag = if named.iter().any(is_data) { flag } else { dedupe::NONE };
        return smallvec![LogEntry::Vector(VectorEntry::new(named, time, size).flagged(flag).sealed(ino))];
    }
    let entry = |named: &Named| {
        let entry = match named.word.location() {
            None => ExtentEntry::unmap(named.file_offset, named.length, time, size),
            Some((location, unwritten)) => {
                ExtentEntry::write(named.file_offset, named.length, location, unwritten, time, size)
            }
        };
        LogEntry::Extent(entry.flagged(flag_of(named)).sealed(ino))
    };
    named.iter().map(entry).collect()
}
