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

use super::Store;
use super::commit::{INLINE_LINES, commit_word};
use super::entries::entries_for;
use crate::error::{Error, Result};
use crate::inode::directory::Directory;
use crate::inode::extents::Extent;
use crate::inode::log::{Addition, Log, areas_of};
use crate::inode::{Body, Changing, HeldValue, Inode, State};
use crate::media::inode::{ATTRIBUTE_LINES, AttributeLine, HEAD_WORD, INLINE_LOG, INODE_BYTES};
use crate::media::journal::WordStore;
use crate::media::location_word::LocationWord;
use crate::media::log_entry::{LINE, LogEntry, dedupe};
use crate::media::superblock::{LOG_AREAS, VECTOR_ENTRIES};
use crate::media::vector_entry::Named;
use crate::media::vector_entry::RECORDS_MAX;
use crate::media::{BLOCK_BYTES, BlockNumber, Location};
use crate::panics::{Job, Moment};
use crate::words::FileKind;
use nvfold_sync::atomic::Ordering;
use pmem::Flight;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

impl Store {
    /// Rewrites a log.
    ///
    /// # Errors
    /// ENOSPC; EIO for a directory that holds names that are damage, which are kept as they are.
    pub(crate) fn compact(&self, inode: &Inode, state: &mut State) -> Result<()> {
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

    /// True if a log is long and consists mostly of dead entries. When space is short, the limits are lower: a file's
    /// log with a page is rewritten if its live entries fit in the inode, and others if they are much longer than
    /// needed. A file that is still to be shared waits for that, because its extents take more lines meanwhile.
    pub(super) fn is_worth_compacting(&self, inode: &Inode, state: &State) -> bool {
        // A log in the inode takes nothing beside it. Names that are damage stay where they are until fsck has decided.
        let is_damaged = || matches!(&state.body, Body::Directory(names) if names.damaged_names() > 0);
        !state.log.parts.is_empty() && inode.is_usable() && self.is_mostly_dead(inode, state) && !is_damaged()
    }

    fn is_mostly_dead(&self, inode: &Inode, state: &State) -> bool {
        let (lines, live) = (state.log.lines, state.live_lines());
        // Names come and go in larger numbers than extents, and each one that stays is written again.
        let times = if inode.kind == FileKind::Directory { 8 } else { 4 };
        if lines > 2 * 63 && lines > times * (live + 8) {
            return true;
        }
        let fits_inode = live <= INLINE_LINES
            && matches!(state.body, Body::File(_))
            && state.log.parts.iter().any(|part| part.page().is_some());
        let is_too_long = lines > 63 && 2 * lines > 3 * (live + 8);
        (fits_inode || is_too_long) && !state.is_waiting() && self.is_nearly_full()
    }

    /// True if less than an eighth of the device is free or dead.
    fn is_nearly_full(&self) -> bool {
        let limit = self.space.total_blocks() / 8;
        !self.space.has_free(limit) && self.space.free_blocks() + self.space.packed.dead_bytes() / BLOCK_BYTES < limit
    }

    /// Rewrites a log that consists mostly of dead entries. If the device is full, the long log stays.
    pub(super) fn compact_if_worth_it(&self, inode: &Inode, state: &mut State) {
        // A log that began in the inode gets back there in two steps, by way of a page: both copies must exist until
        // the switch.
        for _ in 0..2 {
            if !self.is_worth_compacting(inode, state) {
                return;
            }
            // A failed compaction loses nothing; the next change tries again.
            if self.panics.contain(Job::Compact, Some(inode.file_id()), || self.compact(inode, state)).is_err() {
                return;
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

impl Store {
    /// Returns the log entries that make an inode with this number what `state` is.
    pub(crate) fn live_entries(&self, ino: u64, state: &State) -> Vec<LogEntry> {
        live_entries(self, ino, state)
    }
}

fn live_entries(core: &Store, ino: u64, state: &State) -> Vec<LogEntry> {
    let attributes = &state.attributes;
    let waiting = state.waiting_range();
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
fn named_parts(core: &Store, offset: u64, extent: &Extent, waiting: &Range<u64>) -> SmallVec<[(Named, u8); 3]> {
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
fn waiting_part(core: &Store, offset: u64, extent: &Extent, waiting: &Range<u64>) -> Option<(u64, Range<u64>)> {
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
