//! Making the inodes of a copy, many at a time.
//!
//! The problem: an inode that is made by itself takes two fences, and its name one more commit.
//!
//! The idea: nothing of a copy can be reached before it is whole. So the inodes are made in turns. In a turn the slots are
//! written, with their logs and with all references, but they still look free; one fence makes that durable, and then one
//! word of each slot makes the inode live. No crash can leave an inode whose log is not whole, or that uses a chunk which
//! does not count it. A directory begins with an empty log, although its names are written behind it; they become
//! reachable when all inodes of the copy are durable ([`Births::show_names`]). So no name ever leads to nothing.
//!
//! ```text
//! turn    slots, logs, entries of shared chunks   flushed      fence (end of the dedup transaction)
//!         the words that make the slots live      flushed      fence
//! end     the commit words of all directories     flushed      fence
//! ```

use crate::chunk::transaction::Transaction;
use crate::error::{Error, Result};
use crate::fs::{Core, StoredValue, next_generation};
use crate::inode::extents::{Dropped, Extent, Extents};
use crate::inode::log::{Addition, Log, LogPart};
use crate::inode::{Body, State, table};
use crate::media::BLOCK_BYTES;
use crate::media::inode::{
    ATTRIBUTE_LINES, AttributeLine, COMMIT_WORD, INLINE_LOG, InodeHead, OVERFLOW_WORD, USE_WORD,
};
use crate::media::log_entry::LogEntry;
use crate::media::superblock::{LOG_AREAS, VECTOR_ENTRIES};
use crate::space::{Purpose, Runs};
use crate::store::limits::Charge;
use crate::words::{FileKind, TimeNs};
use nvfold_sync::RwLockReadGuard;
use pmem::Flight;
use std::ops::Range;

const DOING: &str = "clone a tree";

/// The work of a turn, about that of as many log lines: well below a millisecond.
const TURN: usize = 1024;

/// The directories that get their names at a time.
const SHOWN_STEP: usize = 256;

/// A new inode: what it is, and where it stands.
pub(super) struct Born<'b> {
    pub(super) number: u64,
    pub(super) kind: FileKind,
    /// Directories: the parent. Others: the directory in which it is made.
    pub(super) parent: u64,
    pub(super) attributes: AttributeLine,
    pub(super) xattrs: &'b [(Vec<u8>, Vec<u8>)],
    /// Flags of its head.
    pub(super) flags: u16,
}

/// A directory of a copy: its names are written behind the end of its log, until all are shown.
pub(super) struct NewDirectory<'c> {
    pub(super) number: u64,
    slot: u64,
    attributes: AttributeLine,
    /// `None` once its names are complete.
    addition: Option<Addition<'c>>,
    last_cookie: u64,
    /// The commit word that shows its names, and the parts of the log that belong to it from then on.
    commit: u64,
    parts: Vec<LogPart>,
    /// The values of its extended attributes, likewise.
    values: Vec<StoredValue<'c>>,
}

/// The inodes that a copy makes: see the module.
pub(super) struct Births<'c> {
    core: &'c Core,
    /// Held during a turn.
    inside: Option<RwLockReadGuard<'c, ()>>,
    tx: Transaction<'c>,
    /// The slots that still look free, with the words that make them live.
    hidden: Vec<(u64, u64)>,
    work: usize,
    /// All inodes that were made.
    numbers: Vec<u64>,
    /// Files of which something is still to be shared.
    waiting: Vec<u64>,
    time: TimeNs,
    /// Room for an entry on its way to a log.
    lines: Vec<u8>,
}

impl<'c> Births<'c> {
    pub(super) fn new(core: &'c Core) -> Births<'c> {
        Births {
            core,
            inside: None,
            tx: core.chunks.begin(),
            hidden: Vec::new(),
            work: 0,
            numbers: Vec::new(),
            waiting: Vec::new(),
            time: core.now(),
            lines: Vec::new(),
        }
    }

    /// Begins a turn, if none is under way.
    ///
    /// # Errors
    /// EROFS, EIO for a lost device.
    pub(super) fn enter(&mut self) -> Result<()> {
        if self.inside.is_none() {
            self.inside = Some(self.core.enter_for_copy()?);
        }
        Ok(())
    }

    /// True if the turn has done its work, so that it is time to end it.
    pub(super) fn is_long(&self) -> bool {
        self.work >= self.core.pending.turn().unwrap_or(TURN)
    }

    /// Ends the turn: what it made is durable and live.
    pub(super) fn end_turn(&mut self) {
        self.make_live();
        self.inside = None;
        self.work = 0;
    }

    /// Makes the inodes of this turn live. From here on the thread may wait for the lock of an inode: it holds no
    /// generator of transaction numbers.
    pub(super) fn make_live(&mut self) {
        let _ = self.tx.end(());
        let mut flight = Flight::new();
        for (slot, word) in self.hidden.drain(..) {
            flight.add(self.core.region.store_u64(slot + USE_WORD, word).flush());
        }
        let _ = self.core.region.fence(flight);
    }

    /// Takes a reference on all that an extent of a locked inode maps.
    ///
    /// # Errors
    /// EMLINK, EIO.
    pub(super) fn refer(&mut self, extent: &Extent, taken: &mut Dropped) -> Result<()> {
        self.work += extent.blocks().count as usize / 4;
        self.core.refer(extent, &mut self.tx, taken)
    }

    /// Reserves blocks for a range that is reserved in the original.
    ///
    /// # Errors
    /// ENOSPC.
    pub(super) fn reserve(
        &mut self,
        offset: u64,
        extent: &Extent,
        into: &mut Extents,
        taken: &mut Dropped,
    ) -> Result<()> {
        let mut runs = Runs::new();
        self.core.space.allocate(DOING, extent.blocks().count, Purpose::Data, &mut runs)?;
        let blocks: u64 = runs.iter().map(|run| run.count).sum();
        self.core.data_blocks.add(blocks);
        // A write into the middle may have cut the range anywhere. The rest of a block stays at its place in the block.
        let (mut at, mut skipped) = (offset, extent.media_address().unwrap_or(0) % BLOCK_BYTES);
        for run in &runs {
            let length = (run.count * BLOCK_BYTES - skipped).min(offset + extent.length - at);
            into.insert(at, Extent::media(length, run.start.address() + skipped, true));
            at += length;
            skipped = 0;
        }
        taken.blocks.extend(runs);
        Ok(())
    }

    /// Makes an inode with these extents, whose references are taken.
    ///
    /// # Errors
    /// ENOSPC, EDQUOT, EIO. The caller has the references then.
    pub(super) fn make(&mut self, born: &Born<'_>, extents: Extents, waiting: Range<u64>) -> Result<()> {
        let (mapped, waits) = (extents.bytes(), !waiting.is_empty());
        let charge = self.core.charge(DOING, born.attributes.tree, mapped, 1)?;
        let mut state = State::new(born.kind, born.attributes, Log::default());
        if born.kind == FileKind::Regular {
            state.body = Body::File(extents);
            if waits {
                state.add_waiting(waiting.start, waiting.end - waiting.start);
            }
        }
        let entries = self.core.live_entries(born.number, &state);
        if entries.iter().any(|entry| matches!(entry, LogEntry::Vector(_))) {
            self.core.require_feature(VECTOR_ENTRIES)?;
        }
        let (slot, mut head) = self.slot_of(born);
        let (mut addition, values) = self.begin_log(slot, born)?;
        self.push_all(born.number, &entries, &mut addition)?;
        head.commit = addition.tail;
        self.finish_slot(slot, head, born, addition);
        values.into_iter().for_each(|value| drop(value.keep()));
        let charged = charge.as_ref().map_or(0, Charge::bytes);
        charge.into_iter().for_each(Charge::keep);
        self.core.account_mapped(born.number, born.attributes.tree, (0, mapped), charged);
        if waits {
            self.waiting.push(born.number);
        }
        Ok(())
    }

    /// Makes a directory, still without names.
    ///
    /// # Errors
    /// ENOSPC, EDQUOT, EIO.
    pub(super) fn make_directory(&mut self, born: &Born<'_>) -> Result<NewDirectory<'c>> {
        let charge = self.core.charge(DOING, born.attributes.tree, 0, 1);
        let charge = charge.inspect_err(|_| self.core.table.free(born.number))?;
        let (slot, head) = self.slot_of(born);
        self.core.require_feature(LOG_AREAS)?;
        self.write_slot(slot, head, 0, born);
        self.numbers.push(born.number);
        // From here on the inode has it.
        charge.into_iter().for_each(Charge::keep);
        let (addition, values) = self.begin_log(slot, born)?;
        Ok(NewDirectory {
            number: born.number,
            slot,
            attributes: born.attributes,
            addition: Some(addition),
            last_cookie: 0,
            commit: 0,
            parts: Vec::new(),
            values,
        })
    }

    /// Writes a name of a new directory behind the end of its log.
    ///
    /// # Errors
    /// ENOSPC, EIO.
    pub(super) fn add_name(
        &mut self,
        directory: &mut NewDirectory<'c>,
        name: Vec<u8>,
        ino: u64,
        kind: FileKind,
    ) -> Result<()> {
        directory.last_cookie += 1;
        let entry = LogEntry::Name { name, ino, kind, cookie: directory.last_cookie, time: directory.attributes.mtime };
        let addition = directory.addition.as_mut().expect("names come before the end of the names");
        push(self.core, directory.number, &entry, addition, &mut self.tx.flight, &mut self.lines)?;
        self.work += 2;
        Ok(())
    }

    /// Ends the names of a new directory. They are not shown yet.
    pub(super) fn end_names(&mut self, directory: &mut NewDirectory<'c>) {
        let Some(mut addition) = directory.addition.take() else { return };
        addition.take_newest().into_iter().for_each(|newest| self.tx.flight.add(newest));
        let attributes = AttributeLine { as_of: addition.tail, ..directory.attributes }.sealed(directory.number);
        self.tx.flight.add(self.core.region.write(directory.slot + ATTRIBUTE_LINES[1], &attributes).flush());
        directory.commit = addition.tail | 1;
        let mut log = Log::default();
        addition.keep(&mut log);
        directory.parts = log.parts;
    }

    /// Shows the names of all directories, whose inodes and those of all that they name are durable. This cannot fail, and
    /// from here on the copy is undone by removing it.
    pub(super) fn show_names(&mut self, directories: &mut [NewDirectory<'c>]) {
        self.end_turn();
        for some in directories.chunks_mut(SHOWN_STEP) {
            let _inside = self.core.freeze_lock.enter_background();
            let mut flight = Flight::new();
            for directory in some {
                flight.add(self.core.region.store_u64(directory.slot + COMMIT_WORD, directory.commit).flush());
                // Work that looks at all inodes may have read it without names.
                self.core.cache.remove(directory.number);
                directory.parts.clear();
                directory.values.drain(..).for_each(|value| drop(value.keep()));
            }
            let _ = self.core.region.fence(flight);
        }
    }

    /// Ends the making of the copy. Returns the files of which something is still to be shared.
    pub(super) fn end(mut self) -> Vec<u64> {
        self.end_turn();
        std::mem::take(&mut self.waiting)
    }

    /// Frees all that was made. No names are shown yet.
    pub(super) fn undo(mut self, directories: Vec<NewDirectory<'c>>) {
        self.end_turn();
        let core = self.core;
        let mut numbers = std::mem::take(&mut self.numbers);
        drop(self);
        for directory in directories {
            let _inside = core.freeze_lock.enter_background();
            let NewDirectory { addition, parts, values, .. } = directory;
            drop((addition, values));
            core.free_log(parts);
        }
        while !numbers.is_empty() {
            let _inside = core.freeze_lock.enter_background();
            for number in numbers.drain(numbers.len().saturating_sub(64)..) {
                core.free_unlinked(number);
            }
        }
    }

    fn slot_of(&self, born: &Born<'_>) -> (u64, InodeHead) {
        let slot = self.core.table.slot(born.number).expect("an allocated inode has a slot");
        let old: InodeHead = self.core.region.read(slot);
        table::empty_old_log(&self.core.region, slot, &old);
        let generation = next_generation(old.generation, self.time);
        let head = InodeHead::new(slot, born.number, born.kind, generation, born.parent, self.time);
        (slot, head.with_flags(born.flags))
    }

    /// Begins the log of a new inode with its extended attributes. Returns their values, which the log owns once it is
    /// reachable.
    fn begin_log(&mut self, slot: u64, born: &Born<'_>) -> Result<(Addition<'c>, Vec<StoredValue<'c>>)> {
        let start = slot + INLINE_LOG;
        let log = Log { head: start, tail: start, ..Log::default() };
        let mut addition = self.core.addition(slot, born.number, born.kind, &log, 0, Purpose::Log)?;
        let mut values = Vec::new();
        for (name, value) in born.xattrs {
            let stored = self.core.store_value(value, &mut self.tx.flight)?;
            let (name, value, time) = (name.clone(), stored.value().clone(), born.attributes.ctime);
            let entry = LogEntry::XattrSet { name, value, time };
            push(self.core, born.number, &entry, &mut addition, &mut self.tx.flight, &mut self.lines)?;
            values.push(stored);
            self.work += 4;
        }
        Ok((addition, values))
    }

    /// Writes the entries of a new inode to its log. Very long ones take several turns.
    fn push_all(&mut self, number: u64, entries: &[LogEntry], addition: &mut Addition<'c>) -> Result<()> {
        for entry in entries {
            push(self.core, number, entry, addition, &mut self.tx.flight, &mut self.lines)?;
            self.work += 2;
            if self.is_long() {
                self.end_turn();
                self.enter()?;
            }
        }
        addition.take_newest().into_iter().for_each(|newest| self.tx.flight.add(newest));
        Ok(())
    }

    fn finish_slot(&mut self, slot: u64, mut head: InodeHead, born: &Born<'_>, addition: Addition<'c>) {
        if addition.has_parts() {
            // The overflow word was stored by the addition; the head is written after it and must agree.
            head.overflow = self.core.region.load_u64(slot + OVERFLOW_WORD);
        }
        addition.keep(&mut Log::default());
        self.write_slot(slot, head, 0, born);
        self.numbers.push(born.number);
    }

    /// Writes head and attributes of a slot that still looks free.
    fn write_slot(&mut self, slot: u64, head: InodeHead, line: usize, born: &Born<'_>) {
        let attributes = AttributeLine { as_of: head.commit, ..born.attributes }.sealed(born.number);
        let flight = &mut self.tx.flight;
        flight.add(self.core.region.write(slot, &head.hidden()).flush());
        flight.add(self.core.region.write(slot + ATTRIBUTE_LINES[line], &attributes).flush());
        self.hidden.push((slot, head.use_word()));
        self.work += 4;
    }
}

/// Writes one entry behind the end of a log, by way of `lines`.
fn push(
    core: &Core,
    number: u64,
    entry: &LogEntry,
    addition: &mut Addition<'_>,
    flight: &mut Flight,
    lines: &mut Vec<u8>,
) -> Result<()> {
    lines.clear();
    entry.encode(number, lines);
    addition.push(entry, lines, flight).map(drop).map_err(|error: Error| core.refusals.count(error))
}
