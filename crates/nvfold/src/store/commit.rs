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

use super::Store;
use crate::chunk::transaction::Transaction;
use crate::error::{Error, Result};
use crate::inode::log::{Addition, Log, areas_of, check_attributes, refused};
use crate::inode::{Inode, State};
use crate::media::chunk_entry::check_place;
use crate::media::inode::{ATTRIBUTE_LINES, AttributeLine, COMMIT_WORD, INODE_BYTES};
use crate::media::journal::{JOURNAL_SLOTS, JournalSlot, WordStore};
use crate::media::log_entry::{LINE, LogEntry};
use crate::media::superblock::LOG_AREAS;
use crate::space::Purpose;
use crate::words::FileKind;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use nvfold_sync::{Mutex, MutexGuard};
use pmem::{Clean, Flight, InFlight, Landed, Pm, Region};
use smallvec::SmallVec;

const SLOT_BYTES: u64 = size_of::<JournalSlot>() as u64;

/// The number of log lines that fit in an inode slot.
pub(crate) const INLINE_LINES: u64 = 5;

/// What a commit word points at: the newest log entry and the current attribute line, if they are new.
pub(super) type CommitHandles<'a, S> = (Option<Pm<'a, [u8], S>>, Option<Pm<'a, AttributeLine, S>>);

/// A change of one inode that is on the media but cannot be reached yet.
pub(crate) struct Staged<'a> {
    addition: Addition<'a>,
    pub(super) attributes: Option<AttributeLine>,
    selector: u64,
    named: CommitHandles<'a, InFlight>,
}

impl<'a> Staged<'a> {
    /// Takes the handles that the commit word will point at, to be fenced together with the flight.
    pub(super) fn take_named(&mut self) -> CommitHandles<'a, InFlight> {
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
    pub(crate) fn new() -> Journal {
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

impl Store {
    /// Makes an addition of about `bytes` to a log. If it does not fit in the last part it may need log areas, a
    /// feature that the superblock must announce.
    pub(crate) fn addition(
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

    /// Checks the words that are about to be stored by way of the journal.
    pub(super) fn check_words(&self, stores: &[WordStore]) -> Result<()> {
        let refused = |why| Error::Refused { what: format!("a change of inodes was refused ({why})") };
        stores.iter().try_for_each(WordStore::check).map_err(|why| self.refusals.count(refused(why)))
    }

    /// Returns the error of a transaction that has an entry which could not be read back.
    ///
    /// # Errors
    /// [`Error::Refused`].
    #[inline]
    pub(crate) fn check_entries(&self, tx: &Transaction<'_>) -> Result<()> {
        match tx.refused() {
            None => Ok(()),
            Some(why) => self.check_entry(|| Err(why)),
        }
    }

    /// The same for an entry that is not made yet.
    #[inline]
    pub(crate) fn check_entry(&self, check: impl FnOnce() -> std::result::Result<(), &'static str>) -> Result<()> {
        check().map_err(|why| self.refuse_entry(why))
    }

    /// Checks the place of a chunk as [`Store::check_entry`] does.
    #[inline]
    pub(crate) fn check_place(&self, address: u64, stored_bytes: u64) -> Result<()> {
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
}

/// Returns the commit word of a slot. New parts are read from handles that a fence made clean. The other parts come
/// from `log` and `selector`, which were committed before.
pub(super) fn commit_word(slot: u64, log: &Log, selector: u64, (newest, line): CommitHandles<'_, Clean>) -> WordStore {
    let tail = newest.map_or(log.tail, |newest| newest.end().offset());
    let selector = line.map_or(selector, |line| u64::from(line.ptr().offset() == slot + ATTRIBUTE_LINES[1]));
    WordStore { offset: slot + COMMIT_WORD, value: tail | selector }
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
