//! Log compaction: a log keeps growing with every change of its inode; when most of it is dead it is
//! written anew, one entry for everything that lives, and head and tail are switched together.
//!
//! The extents are written as they are, so the new log replays to the same map and the same counts. Where entries wait
//! to be shared (dedupe_needed), the new ones do, as far as they name blocks without a fingerprint: tokens
//! of the old ones are void, and the new ones are told to the policy.

use super::Core;
use super::commit::commit_word;
use crate::error::Result;
use crate::inode::directory::Directory;
use crate::inode::extents::Extent;
use crate::inode::log::{Addition, Log};
use crate::inode::{Body, Inode, State};
use crate::media::BlockNumber;
use crate::media::inode::{ATTRIBUTE_LINES, AttributeLine, HEAD_WORD, INLINE_LOG, INODE_BYTES};
use crate::media::journal::WordStore;
use crate::media::log_entry::{ExtentEntry, LogEntry, dedupe};
use crate::space::BlockRun;
use crate::sync::atomic::Ordering;
use pmem::Flight;

/// Inline lines of a slot.
const INLINE_LINES: u64 = 5;

impl Core {
    pub(super) fn compact(&self, inode: &Inode, state: &mut State) -> Result<()> {
        self.region.check_writable(inode.slot, INODE_BYTES)?;
        let inline_is_unused = state.log.head != inode.slot + INLINE_LOG;
        let inline = inline_is_unused && state.live_lines() <= INLINE_LINES;
        let mut flight = Flight::new();
        let (region, space) = (&self.region, &self.space);
        let mut addition = Addition::new_chain(region, space, inode.slot, inode.ino, inline, &mut flight)?;
        let head = addition.tail;
        let entries = live_entries(self, state);
        self.region.check()?;
        let mut positions = Vec::with_capacity(entries.len());
        let mut line = Vec::new();
        for entry in &entries {
            line.clear();
            entry.encode(inode.ino, &mut line);
            positions.push(addition.push(&line, &mut flight)?);
        }
        let selector = state.selector ^ 1;
        let attributes = AttributeLine { as_of: addition.tail, ..state.attributes }.sealed(inode.ino);
        let line = region.write(inode.slot + ATTRIBUTE_LINES[selector as usize], &attributes).flush();
        let (landed, named) = region.fence((flight, (addition.take_newest(), Some(line))));
        let mut log = Log { head, tail: head, ..Log::default() };
        let word = commit_word(inode.slot, &log, selector, named);
        self.store_commit_words(&[word, WordStore { offset: inode.slot + HEAD_WORD, value: head }], landed);
        addition.keep(&mut log);
        let old = std::mem::replace(&mut state.log, log);
        self.queue_compacted(inode, state, &entries, &positions);
        (state.selector, state.attributes) = (selector, attributes);
        if let Body::Directory(directory) = &mut state.body {
            *directory = Directory::default();
            for (entry, position) in entries.iter().zip(positions) {
                if let LogEntry::Name { name, ino, kind, cookie, .. } = entry {
                    directory.add(name, *ino, *kind, *cookie, position);
                }
            }
        }
        for page in old.pages {
            self.free(BlockRun { start: BlockNumber::containing(page), count: 1 });
        }
        Ok(())
    }
}

impl Core {
    /// The log was written anew: what waits in it has other places now.
    fn queue_compacted(&self, inode: &Inode, state: &State, entries: &[LogEntry], positions: &[u64]) {
        let mut needed = 0;
        for (entry, position) in entries.iter().zip(positions) {
            if let LogEntry::Extent(entry) = entry
                && entry.dedupe == dedupe::NEEDED
            {
                needed += 1;
                self.queue_entry(inode, *position, entry);
            }
        }
        state.needed.store(needed, Ordering::Relaxed);
    }
}

fn live_entries(core: &Core, state: &State) -> Vec<LogEntry> {
    let attributes = &state.attributes;
    let is_waiting = state.needed.load(Ordering::Relaxed) > 0;
    let flag = |extent: &Extent| match is_waiting && !extent.unwritten && core.lacks_fingerprints(extent) {
        true => dedupe::NEEDED,
        false => dedupe::NONE,
    };
    let mut entries = Vec::new();
    match &state.body {
        Body::File(extents) => entries.extend(extents.iter().map(|(offset, extent)| {
            let (length, address) = (extent.length, extent.address);
            let (time, size) = (attributes.mtime, attributes.size);
            let entry = ExtentEntry::write(offset, length, address, extent.unwritten, time, size);
            LogEntry::Extent(entry.flagged(flag(&extent)))
        })),
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
    let xattrs = state.xattrs.iter();
    entries.extend(xattrs.map(|(name, value)| LogEntry::XattrSet { name: name.clone(), value: value.clone(), time }));
    entries
}
