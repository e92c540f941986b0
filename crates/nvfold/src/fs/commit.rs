//! Commits: how a change to one inode, or to several at once, becomes durable and atomic.
//!
//! ```text
//! stage:    log entries beyond the tail, the spare attribute line      (flushed, unreachable)
//! publish:  fence                                                      everything staged is durable
//!           one inode:  store the commit word, flush, fence            8 bytes: it happened
//!           several:    journal slot, fence                            it happened
//!                       store all words, fence; clear the slot, fence
//! install:  the DRAM state follows                                     (one extent: while its data is on its way)
//! ```

use super::Core;
use super::cache::file_id;
use crate::chunk::transaction::Transaction;
use crate::error::{Error, Result};
use crate::inode::log::{Addition, Log, areas_of, check_attributes, refused};
use crate::inode::{Body, Changing, Inode, State};
use crate::media::BLOCK_BYTES;
use crate::media::chunk_entry::check_place;
use crate::media::inode::{ATTRIBUTE_LINES, AttributeLine, COMMIT_WORD, INODE_BYTES};
use crate::media::journal::{JOURNAL_SLOTS, JournalSlot, WordStore};
use crate::media::log_entry::{LINE, LogEntry};
use crate::media::superblock::LOG_AREAS;
use crate::panics::{Job, Moment};
use crate::space::Purpose;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::words::FileKind;
use pmem::{Clean, Flight, InFlight, Landed, Pm, Region};
use smallvec::SmallVec;

const SLOT_BYTES: u64 = size_of::<JournalSlot>() as u64;
/// The number of log lines that fit in an inode slot.
pub(super) const INLINE_LINES: u64 = 5;

/// What a commit word points at: the newest log entry and the current attribute line, if they are new.
pub(super) type Named<'a, S> = (Option<Pm<'a, [u8], S>>, Option<Pm<'a, AttributeLine, S>>);

/// Returns the commit word of a slot. New parts are read from handles that a fence made clean. The other parts come
/// from `log` and `selector`, which were committed before.
pub(super) fn commit_word(slot: u64, log: &Log, selector: u64, (newest, line): Named<'_, Clean>) -> WordStore {
    let tail = newest.map_or(log.tail, |newest| newest.end().offset());
    let selector = line.map_or(selector, |line| u64::from(line.ptr().offset() == slot + ATTRIBUTE_LINES[1]));
    WordStore { offset: slot + COMMIT_WORD, value: tail | selector }
}

/// A change of one inode that is on the media but cannot be reached yet.
pub(super) struct Staged<'a> {
    addition: Addition<'a>,
    attributes: Option<AttributeLine>,
    selector: u64,
    named: Named<'a, InFlight>,
}

impl<'a> Staged<'a> {
    /// Takes the handles that the commit word will point at, to be fenced together with the flight.
    pub(super) fn take_named(&mut self) -> Named<'a, InFlight> {
        std::mem::take(&mut self.named)
    }

    /// Takes over log and attributes after the commit. The caller applies the entries.
    pub(super) fn install(self, state: &mut State) {
        self.addition.keep(&mut state.log);
        state.selector = self.selector;
        if let Some(attributes) = self.attributes {
            state.attributes = attributes;
        }
    }
}

/// The journal slots. An operation on several inodes holds one while it commits. Slots are used in turn, which
/// spreads the wear.
pub(super) struct Journal {
    slots: Vec<Mutex<()>>,
    /// The slot at which the next search begins. It is no harm if two threads read the same number: they only try the
    /// same slot first.
    next: AtomicU64,
}

impl Journal {
    pub(super) fn new() -> Journal {
        Journal { slots: (0..JOURNAL_SLOTS).map(|_| Mutex::new(())).collect(), next: AtomicU64::new(0) }
    }

    /// Locks a free slot in sound memory. If there is none, it waits for the next slot in turn.
    fn lock_any(&self, is_sound: impl Fn(u64) -> bool) -> (u64, MutexGuard<'_, ()>) {
        let first = self.next.load(Ordering::Relaxed);
        self.next.store((first + 1) % JOURNAL_SLOTS, Ordering::Relaxed);
        let mut slots = (first..first + JOURNAL_SLOTS).map(|at| at % JOURNAL_SLOTS).filter(|at| is_sound(*at));
        let free = slots.find_map(|at| Some((at, self.slots[at as usize].try_lock()?)));
        free.unwrap_or_else(|| (first, self.slots[first as usize].lock()))
    }
}

impl Core {
    /// Makes an addition of about `bytes` to a log. If it does not fit in the last part it may need log areas, a
    /// feature that the superblock must announce.
    pub(super) fn addition(
        &self,
        slot: u64,
        ino: u64,
        kind: FileKind,
        log: &Log,
        bytes: u64,
        purpose: Purpose,
    ) -> Result<Addition<'_>> {
        let areas = areas_of(kind);
        if areas > 0 && log.room(slot) < bytes {
            self.require_feature(LOG_AREAS)?;
        }
        Ok(Addition::new(self.log_ground(), slot, ino, log, areas, purpose))
    }

    /// Stages entries, with their encoded lines, and, if given, attributes (their `as_of` is filled in here). Returns
    /// the device offset of each entry.
    ///
    /// # Errors
    /// ENOSPC; EIO for bad memory, and if what is staged could not be read back.
    pub(super) fn stage_lines<'a>(
        &'a self,
        inode: &Inode,
        state: &State,
        entries: &[(&LogEntry, &[u8])],
        attributes: Option<AttributeLine>,
        purpose: Purpose,
        flight: &mut Flight,
    ) -> Result<(Staged<'a>, SmallVec<[u64; 4]>)> {
        self.check_writable(inode, state)?;
        let bytes: usize = entries.iter().map(|(_, lines)| lines.len()).sum();
        let mut addition = self.addition(inode.slot, inode.ino, inode.kind, &state.log, bytes as u64, purpose)?;
        let mut positions = SmallVec::new();
        for (entry, lines) in entries {
            state.check_fits(entry).map_err(|why| self.refusals.count(refused(inode.ino, why)))?;
            positions.push(addition.push(entry, lines, flight).map_err(|error| self.refusals.count(error))?);
        }
        let mut staged = Staged { attributes: None, selector: state.selector, named: (None, None), addition };
        if let Some(attributes) = attributes {
            check_attributes(&attributes).map_err(|why| self.refusals.count(refused(inode.ino, why)))?;
            let line = AttributeLine { as_of: staged.addition.tail, ..attributes }.sealed(inode.ino);
            staged.selector ^= 1;
            let offset = inode.slot + ATTRIBUTE_LINES[staged.selector as usize];
            staged.named.1 = Some(self.region.write(offset, &line).flush());
            staged.attributes = Some(line);
        }
        staged.named.0 = staged.addition.take_newest();
        Ok((staged, positions))
    }

    /// Changes one inode: entries, attributes or both, in one commit.
    pub(super) fn change(
        &self,
        inode: &Inode,
        state: &mut State,
        entries: &[LogEntry],
        attributes: Option<AttributeLine>,
        purpose: Purpose,
        flight: Flight,
    ) -> Result<()> {
        self.change_all(&mut [Change { inode, state, entries, attributes, purpose }], &[], flight)
    }

    /// Changes several inodes (and stores `words`, such as the parent of a moved directory) in one commit.
    pub(super) fn change_all<'i>(
        &self,
        changes: &mut [Change<'i, '_>],
        words: &[WordStore],
        mut flight: Flight,
    ) -> Result<()> {
        let mut staged: SmallVec<[(Staged<'_>, SmallVec<[u64; 4]>); 4]> = SmallVec::new();
        for change in changes.iter() {
            let mut lines = Vec::new();
            let mut lengths: SmallVec<[usize; 4]> = SmallVec::new();
            change.entries.iter().for_each(|entry| lengths.push(entry.encode(change.inode.ino, &mut lines)));
            let mut rest = &lines[..];
            let split = |(entry, length): (&'i LogEntry, &usize)| {
                let (lines, left) = rest.split_at(*length);
                rest = left;
                (entry, lines)
            };
            let encoded: SmallVec<[(&LogEntry, &[u8]); 4]> = change.entries.iter().zip(&lengths).map(split).collect();
            let Change { inode, state, attributes, purpose, .. } = change;
            staged.push(self.stage_lines(inode, state, &encoded, *attributes, *purpose, &mut flight)?);
        }
        // The change may be based on names that could not be read.
        self.region.check()?;
        assert!(changes.len() <= CHANGES_MAX, "no operation changes more inodes");
        let mut named: [Named<'_, InFlight>; CHANGES_MAX] = Default::default();
        named.iter_mut().zip(&mut staged).for_each(|(named, (staged, _))| *named = staged.take_named());
        let (landed, named) = self.region.fence((flight, named));
        let word = |(change, named): (&Change<'_, '_>, Named<'_, Clean>)| {
            commit_word(change.inode.slot, &change.state.log, change.state.selector, named)
        };
        let mut stores: SmallVec<[WordStore; 7]> = changes.iter().zip(named).map(word).collect();
        stores.extend_from_slice(words);
        if stores.len() > 1 {
            self.check_words(&stores)?;
        }
        self.panics.may_panic(Moment::Staged);
        // Work beside the calls changes one inode at a time.
        let changing = match changes {
            [only] => Some(Changing::begin(only.inode, &self.panics)),
            _ => None,
        };
        self.store_commit_words(&stores, landed);
        self.panics.may_panic(Moment::Committed);
        for (change, (staged, positions)) in changes.iter_mut().zip(staged) {
            let before = change.state.mapped_bytes();
            let newer = staged.attributes.is_none();
            staged.install(change.state);
            for (entry, position) in change.entries.iter().zip(positions) {
                change.state.apply(position, entry, newer).expect("an entry that this operation made fits its inode");
            }
            self.account_mapped(change.inode.ino, before, change.state.mapped_bytes());
        }
        if let Some(changing) = changing {
            changing.done();
        }
        for change in changes {
            self.compact_if_worth_it(change.inode, change.state);
        }
        Ok(())
    }

    /// Checks the words that are about to be stored by way of the journal.
    fn check_words(&self, stores: &[WordStore]) -> Result<()> {
        let refused = |why| Error::Refused { what: format!("a change of inodes was refused ({why})") };
        stores.iter().try_for_each(WordStore::check).map_err(|why| self.refusals.count(refused(why)))
    }

    /// Returns the error of a transaction that has an entry which could not be read back.
    ///
    /// # Errors
    /// [`Error::Refused`].
    #[inline]
    pub(super) fn check_entries(&self, tx: &Transaction<'_>) -> Result<()> {
        match tx.refused() {
            None => Ok(()),
            Some(why) => self.check_entry(|| Err(why)),
        }
    }

    /// The same for an entry that is not made yet.
    #[inline]
    pub(super) fn check_entry(&self, check: impl FnOnce() -> std::result::Result<(), &'static str>) -> Result<()> {
        check().map_err(|why| self.refuse_entry(why))
    }

    /// Checks the place of a chunk as [`Core::check_entry`] does.
    #[inline]
    pub(super) fn check_place(&self, address: u64, stored_bytes: u64) -> Result<()> {
        self.check_entry(|| check_place(|at, bytes| self.geometry.holds_data(at, bytes), address, stored_bytes))
    }

    #[cold]
    fn refuse_entry(&self, why: &str) -> Error {
        let what = format!("a chunk entry was refused, because it could not be read back ({why})");
        self.refusals.count(Error::Refused { what })
    }

    /// True if one line fits in the log without a new page.
    pub(super) fn has_room_for_one_entry(&self, inode: &Inode, state: &State) -> bool {
        state.log.room(inode.slot) >= LINE && self.check_writable(inode, state).is_ok()
    }

    /// Returns EIO if the inode's slot or the end of its log is in bad memory, because such an inode cannot change
    /// any more.
    fn check_writable(&self, inode: &Inode, state: &State) -> Result<()> {
        let what = || format!("inode {}", inode.ino);
        self.region.check_writable(inode.slot, INODE_BYTES).map_err(Error::of(what))?;
        let Some(part) = state.log.parts.last() else { return Ok(()) };
        let (start, bytes) = part.extent();
        self.region.check_writable(start, bytes).map_err(Error::of(what))
    }

    /// Commits the one line that was written at the tail. One fence covers the commit word, `with_it` and what
    /// `meanwhile` flushes, which runs while the other two are being written back.
    pub(super) fn commit_line<T>(
        &self,
        inode: &Inode,
        state: &mut State,
        line: Pm<'_, T, Clean>,
        _durable: Landed,
        with_it: Flight,
        meanwhile: impl FnOnce() -> Flight,
    ) {
        let word = self.region.store_ptr(inode.slot + COMMIT_WORD, line.end(), state.selector).flush();
        let and_this = meanwhile();
        let _ = self.region.fence((with_it, and_this, word));
        state.log.tail = line.end().offset();
        state.log.lines += 1;
    }

    /// Stores the word that makes a staged change reachable; `with_it` and `meanwhile` as for `commit_line`.
    pub(super) fn store_commit_word(
        &self,
        store: WordStore,
        _durable: Landed,
        with_it: Flight,
        meanwhile: impl FnOnce() -> Flight,
    ) {
        let word = self.region.store_u64(store.offset, store.value).flush();
        let and_this = meanwhile();
        let _ = self.region.fence((with_it, and_this, word));
    }

    /// Stores the words that make staged changes reachable: a single word directly, several through the journal.
    /// Everything that the changes point at is durable.
    pub(super) fn store_commit_words(&self, stores: &[WordStore], _durable: Landed) {
        if let [single] = stores {
            store_words(&self.region, &[*single]);
            return;
        }
        let offset_of = |slot| self.geometry.journal_slot_offset(slot);
        let is_sound = |slot| self.region.check_writable(offset_of(slot), SLOT_BYTES).is_ok();
        let (slot, _held) = self.journal.lock_any(is_sound);
        let offset = offset_of(slot);
        let written = self.region.write(offset, &JournalSlot::new(stores)).flush();
        let _ = self.region.fence(written);
        store_words(&self.region, stores);
        let cleared = self.region.store_u64(offset, 0).flush();
        let _ = self.region.fence(cleared);
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
            if self.contain(Job::Compact, Some(file_id(inode)), || self.compact(inode, state)).is_err() {
                return;
            }
        }
    }
}

/// The largest number of inodes that one commit changes: a rename has two directories, the moved inode, and the
/// replaced one.
const CHANGES_MAX: usize = 4;

/// One inode's part of a commit.
pub(super) struct Change<'i, 's> {
    pub(super) inode: &'i Inode,
    pub(super) state: &'s mut State,
    pub(super) entries: &'i [LogEntry],
    pub(super) attributes: Option<AttributeLine>,
    pub(super) purpose: Purpose,
}

/// Stores all the words, then fences once.
#[track_caller]
pub(crate) fn store_words(region: &Region, stores: &[WordStore]) {
    let mut flight = Flight::new();
    for store in stores {
        flight.add(region.store_u64(store.offset, store.value).flush());
    }
    let _ = region.fence(flight);
}
