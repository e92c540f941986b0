//! Log compaction: a log grows with every change of its inode. When most of it is dead, it is rewritten with one
//! entry for everything that is live, and head and tail are switched together.
//!
//! The extents are written as they are, so the new log replays to the same map and the same counts. Consecutive
//! extents go in vector entries where that takes fewer lines.
//!
//! If old entries are dedupe_needed, so are the new ones; tokens of the old entries become invalid, and the policy
//! gets new ones. An extent grows as a file is appended to, and most of it may have been shared already. So only the
//! part that is still to be shared gets a dedupe_needed entry: it begins at the first block without a fingerprint,
//! within the range of the old entries. Otherwise the policy would look at the whole extent again after each
//! compaction.

use super::Core;
use super::commit::{INLINE_LINES, commit_word};
use super::publish::entries_for;
use crate::error::{Error, Result};
use crate::inode::directory::Directory;
use crate::inode::extents::Extent;
use crate::inode::log::{Addition, Log, LogPart, areas_of};
use crate::inode::{Body, Changing, HeldValue, Inode, State};
use crate::media::inode::{ATTRIBUTE_LINES, AttributeLine, HEAD_WORD, INLINE_LOG, INODE_BYTES};
use crate::media::journal::WordStore;
use crate::media::location_word::LocationWord;
use crate::media::log_entry::{LINE, LogEntry, dedupe};
use crate::media::superblock::{LOG_AREAS, VECTOR_ENTRIES};
use crate::media::vector_entry::{Named, RECORDS_MAX};
use crate::media::{BLOCK_BYTES, BlockNumber, Location};
use crate::panics::Moment;
use crate::space::BlockRun;
use crate::sync::atomic::Ordering;
use pmem::Flight;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

impl Core {
    /// Rewrites a log.
    ///
    /// # Errors
    /// ENOSPC; EIO for a directory that holds names that are damage, which are kept as they are.
    pub(super) fn compact(&self, inode: &Inode, state: &mut State) -> Result<()> {
        if matches!(&state.body, Body::Directory(names) if names.damaged_names() > 0) {
            let what = format!("directory {}: some of its names are damaged, and its log stays as it is", inode.ino);
            return Err(Error::Corrupt { what, at: inode.slot });
        }
        self.region.check_writable(inode.slot, INODE_BYTES)?;
        let inline_is_unused = state.log.head != inode.slot + INLINE_LOG;
        let inline = inline_is_unused && state.live_lines() <= INLINE_LINES;
        let mut flight = Flight::new();
        let region = &self.region;
        let areas = areas_of(inode.kind);
        if areas > 0 {
            self.require_feature(LOG_AREAS)?;
        }
        let (ground, slot, ino) = (self.log_ground(), inode.slot, inode.ino);
        let mut addition = Addition::new_chain(ground, slot, ino, areas, inline, &mut flight)?;
        let head = addition.tail;
        let entries = live_entries(self, inode.ino, state);
        if entries.iter().any(|entry| matches!(entry, LogEntry::Vector(_))) {
            self.require_feature(VECTOR_ENTRIES)?;
        }
        self.region.check()?;
        let mut positions = Vec::with_capacity(entries.len());
        let (mut line, mut lines) = (Vec::new(), 0);
        for entry in &entries {
            line.clear();
            entry.encode(inode.ino, &mut line);
            lines += line.len() as u64 / LINE;
            positions.push(addition.push(entry, &line, &mut flight).map_err(|error| self.refusals.count(error))?);
        }
        debug_assert!(is_length_foreseen(state, lines));
        self.check_compacted(inode, state, head, addition.tail)?;
        let selector = state.selector ^ 1;
        let attributes = AttributeLine { as_of: addition.tail, ..state.attributes }.sealed(inode.ino);
        let line = region.write(inode.slot + ATTRIBUTE_LINES[selector as usize], &attributes).flush();
        let (landed, named) = region.fence((flight, (addition.take_newest(), Some(line))));
        let mut log = Log { head, tail: head, ..Log::default() };
        let word = commit_word(inode.slot, &log, selector, named);
        self.panics.may_panic(Moment::Staged);
        let changing = Changing::begin(inode, &self.panics);
        self.store_commit_words(&[word, WordStore { offset: inode.slot + HEAD_WORD, value: head }], landed);
        self.panics.may_panic(Moment::Committed);
        addition.keep(&mut log);
        let old = std::mem::replace(&mut state.log, log);
        self.queue_compacted(inode, state, &entries, &positions);
        (state.selector, state.attributes) = (selector, attributes);
        if let Body::Directory(directory) = &mut state.body {
            *directory = Directory::default();
        }
        for (entry, position) in entries.iter().zip(positions) {
            match (entry, &mut state.body) {
                (LogEntry::Name { name, ino, kind, cookie, .. }, Body::Directory(directory)) => {
                    directory.add(name, *ino, *kind, *cookie, position);
                }
                (LogEntry::XattrSet { name, value, .. }, _) => {
                    state.xattrs.insert(name.clone(), HeldValue::of(name, value, position));
                }
                _ => {}
            }
        }
        changing.done();
        self.free_log(old.parts);
        Ok(())
    }

    /// Frees the parts of a log that is no longer reachable.
    pub(super) fn free_log(&self, parts: Vec<LogPart>) {
        for start in parts.iter().filter_map(|part| part.page()) {
            self.free(BlockRun { start, count: 1 });
        }
        self.table.free_areas(parts.iter().filter_map(|part| part.area()));
    }
}

impl Core {
    /// Queues the entries that are still to be shared under their new positions, after the log was rewritten.
    fn queue_compacted(&self, inode: &Inode, state: &mut State, entries: &[LogEntry], positions: &[u64]) {
        state.needed.store(0, Ordering::Relaxed);
        for (entry, position) in entries.iter().zip(positions) {
            if let Some(entry) = entry.written().filter(|entry| entry.dedupe == dedupe::NEEDED) {
                state.add_waiting(entry.file_offset, entry.length);
                self.queue_entry(inode, *position, &entry);
            }
        }
    }
}

/// True if a compacted log has as many lines as were counted.
fn is_length_foreseen(state: &State, lines: u64) -> bool {
    let live = state.live_lines();
    match state.body {
        Body::File(_) => lines <= if state.is_waiting() { 2 * live + 1 } else { live },
        _ => lines == live,
    }
}

fn live_entries(core: &Core, ino: u64, state: &State) -> Vec<LogEntry> {
    let attributes = &state.attributes;
    let waiting = if state.is_waiting() { state.waiting.clone() } else { 0..0 };
    let mut entries = Vec::new();
    match &state.body {
        Body::File(extents) => {
            let named: Vec<(Named, u8)> =
                extents.iter().flat_map(|(offset, extent)| named_parts(core, offset, &extent, &waiting)).collect();
            // Parts that are still to be shared get entries of their own.
            let is_one = |(named, flag): &(Named, u8), (next, next_flag): &(Named, u8)| {
                named.file_offset + named.length == next.file_offset && flag == next_flag
            };
            for run in named.chunk_by(is_one).flat_map(|run| run.chunks(RECORDS_MAX)) {
                let (of_run, flag): (Vec<Named>, u8) = (run.iter().map(|(named, _)| *named).collect(), run[0].1);
                entries.extend(entries_for(&of_run, flag, attributes.mtime, attributes.size, ino));
            }
        }
        Body::Directory(directory) => entries.extend(directory.after(0).map(|slot| LogEntry::Name {
            name: slot.name(&core.region),
            ino: slot.ino,
            kind: slot.kind(),
            cookie: slot.cookie,
            time: attributes.mtime,
        })),
        Body::Other => {}
    }
    let time = attributes.ctime;
    let xattrs = state.xattrs.iter().map(|(name, value)| (name.clone(), value.in_entry(&core.region)));
    entries.extend(xattrs.map(|(name, value)| LogEntry::XattrSet { name, value, time }));
    entries
}

/// Returns the log records of an extent at this offset, with the dedupe-flag of each: the part that is still to be
/// shared, and the parts before and after it.
fn named_parts(core: &Core, offset: u64, extent: &Extent, waiting: &Range<u64>) -> SmallVec<[(Named, u8); 3]> {
    let part = |range: Range<u64>, location, flag| {
        let word = LocationWord::new(location, extent.unwritten);
        (Named { file_offset: offset + range.start, length: range.end - range.start, word }, flag)
    };
    let Some((address, waits)) = waiting_part(core, offset, extent, waiting) else {
        return smallvec![part(0..extent.length, extent.location, dedupe::NONE)];
    };
    [(0..waits.start, dedupe::NONE), (waits.clone(), dedupe::NEEDED), (waits.end..extent.length, dedupe::NONE)]
        .into_iter()
        .filter(|(range, _)| !range.is_empty())
        .map(|(range, flag)| part(range.clone(), Location::Media(address + range.start), flag))
        .collect()
}

/// Returns the media address of an extent and the range of its bytes that is still to be shared, if there is one. The
/// range is cut at block boundaries only, so that each block is referenced by one part.
fn waiting_part(core: &Core, offset: u64, extent: &Extent, waiting: &Range<u64>) -> Option<(u64, Range<u64>)> {
    let address = extent.media_address().filter(|_| !extent.unwritten)?;
    let (start, end) = (waiting.start.max(offset), waiting.end.min(offset + extent.length));
    if start >= end {
        return None;
    }
    let media = |file_offset: u64| address + (file_offset - offset);
    let mut blocks = media(start) / BLOCK_BYTES..media(end).div_ceil(BLOCK_BYTES);
    // A policy processes an entry from its beginning, so the finished blocks come first.
    while !blocks.is_empty() && core.chunks.can_be_found(BlockNumber(blocks.start)) {
        blocks.start += 1;
    }
    let part = |block: u64| (block * BLOCK_BYTES).clamp(address, address + extent.length) - address;
    (!blocks.is_empty()).then(|| (address, part(blocks.start)..part(blocks.end)))
}
