//! What operations keep of the inodes that they change while a copy of a tree is being made.
//!
//! The problem: a copy shows the tree at one instant, across all its files, and nobody waits while it is made. So an inode
//! that changes after the instant, before the copy has come to it, must be known as it was. Whether it belongs to the tree
//! cannot be found by walking up from it, because it may have been moved or removed since.
//!
//! The idea: while a copy is pending, every operation keeps what it is about to change of any inode, in DRAM, before its
//! commit: attributes and extended attributes at the first change; of a file the extents of the ranges that change, with a
//! reference on each chunk; of a directory the names that go, for names are only added behind a known cookie or removed. The
//! copy takes the rest from the live inode.
//!
//! ```text
//! instant    announced, with the freeze lock closed: every operation is before it or after it
//! write      keeps the extents that it replaces         the copy: kept ranges, and the live extents between them
//! unlink     keeps all extents when it frees the inode  the copy: kept ranges
//! rename     keeps the names that go                    the copy: live names with cookies of before, and kept ones
//! end        what was kept is released, whoever needed it
//! ```
//!
//! An inode needs no keeping if the copy has taken it (it is *settled*) or if it was made after the instant. What is kept
//! needs not survive a crash, for the copy does not. Only the references do: they are durable before the commit of the
//! operation, with its own transaction, so a block is never free while the copy may still take it.
//!
//! Keeping never makes an operation fail. If it cannot keep something, the copy fails.

use super::Store;
use super::remap::Remap;
use crate::chunk::transaction::Transaction;
use crate::error::{Error, Result, errno};
use crate::inode::extents::{Dropped, Extents};
use crate::inode::{Body, Inode, State};
use crate::media::inode::AttributeLine;
use crate::media::log_entry::LogEntry;
use crate::words::FileKind;
use hashbrown::HashMap;
use nvfold_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use nvfold_sync::{Mutex, MutexGuard};
use pmem::Region;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// The largest number of extents and names that are kept for a copy: some 100 MiB.
const KEPT_MAX: usize = 1 << 20;

/// What is kept for the copy that is being made: see the module.
#[derive(Default)]
pub(crate) struct Pending {
    /// True while a copy is being made. Set while the freeze lock is closed.
    is_any: AtomicBool,
    kept: Mutex<Option<Box<KeptInodes>>>,
    /// Held by the copy that is being made: there is one at a time.
    copying: Mutex<()>,
    /// True if copies are to end at their next step: the device is being unmounted.
    is_ending: AtomicBool,
    /// For tests: the work of a turn of a copy; 0: the usual.
    turn: AtomicUsize,
}

/// All inodes of which something is kept, by their numbers at the instant.
struct KeptInodes {
    inodes: HashMap<u64, KeptInode>,
    /// One bit for each inode number at the instant: nothing more needs to be kept of the inode.
    settled: Vec<u64>,
    /// The references on what is kept.
    held: Dropped,
    /// The number of extents and names that are kept.
    count: usize,
    /// Why something could not be kept.
    failure: Option<Error>,
}

/// What an inode was at the instant, apart from its extents or names.
#[derive(Clone)]
pub(crate) struct Then {
    pub(crate) kind: FileKind,
    pub(crate) attributes: AttributeLine,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Files: the range that waits to be shared.
    pub(crate) waiting: Range<u64>,
}

impl Then {
    /// Returns what a locked inode is.
    pub(crate) fn of(kind: FileKind, state: &State, region: &Region) -> Then {
        let (attributes, xattrs) = (state.attributes, state.read_xattrs(region));
        Then { kind, attributes, xattrs, waiting: state.waiting_range() }
    }
}

/// An inode as it was at the instant, except for what has not changed since.
pub(crate) struct KeptInode {
    /// Distinguishes it from later users of its number.
    pub(crate) generation: u32,
    pub(crate) then: Then,
    /// Files: the ranges that changed since, in order, and what they mapped.
    pub(crate) ranges: Vec<Range<u64>>,
    pub(crate) extents: Extents,
    /// Directories: names with this cookie or a larger one are newer than the instant.
    pub(crate) cookies_end: u64,
    /// Directories: names that were removed since, by their cookies.
    pub(crate) removed: BTreeMap<u64, KeptName>,
}

/// A name of a directory.
#[derive(Clone, Debug)]
pub(crate) struct KeptName {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: u64,
    pub(crate) kind: FileKind,
}

impl KeptInodes {
    fn is_settled(&self, ino: u64) -> bool {
        // Numbers that the table did not have at the instant belong to newer inodes.
        self.settled.get((ino / 64) as usize).is_none_or(|word| word & 1 << (ino % 64) != 0)
    }

    fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// Counts what is about to be kept. Returns false if that is too much.
    fn has_room_for(&mut self, more: usize) -> bool {
        self.count += more;
        if self.count > KEPT_MAX {
            self.fail(Error::Posix {
                doing: "copy a tree",
                why: "too much changed while it was copied; try again when less is written",
                errno: errno::ENOMEM,
            });
        }
        self.count <= KEPT_MAX
    }
}

impl Pending {
    /// True while a copy is being made.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    /// Waits until no other copy is being made.
    pub(crate) fn begin(&self) -> MutexGuard<'_, ()> {
        self.copying.lock()
    }

    /// Makes copies end at their next step, and waits until none is being made; none begins any more.
    pub(crate) fn end_all(&self) -> MutexGuard<'_, ()> {
        self.is_ending.store(true, Ordering::Relaxed);
        self.copying.lock()
    }

    /// True if copies are to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// For tests: makes the turns of copies this long; 0: as long as usual.
    pub(crate) fn set_turn(&self, work: usize) {
        self.turn.store(work, Ordering::Relaxed);
    }

    /// Returns how long the turns of copies are, if tests have set it.
    pub(crate) fn turn(&self) -> Option<usize> {
        Some(self.turn.load(Ordering::Relaxed)).filter(|work| *work > 0)
    }

    /// Begins to keep: this is the instant. The freeze lock is closed; the inode table ends at `inodes_end`.
    pub(crate) fn announce(&self, inodes_end: u64) {
        *self.kept.lock() = Some(Box::new(KeptInodes {
            inodes: HashMap::new(),
            settled: vec![0; inodes_end.div_ceil(64) as usize],
            held: Dropped::default(),
            count: 0,
            failure: None,
        }));
        self.is_any.store(true, Ordering::Relaxed);
    }

    /// Ends keeping. Returns the references on what was kept, for the caller to release.
    pub(crate) fn withdraw(&self) -> Dropped {
        self.is_any.store(false, Ordering::Relaxed);
        self.kept.lock().take().map(|kept| kept.held).unwrap_or_default()
    }

    /// Notes that nothing more needs to be kept of the inode with this number.
    pub(crate) fn settle(&self, ino: u64) {
        if let Some(kept) = &mut *self.kept.lock()
            && let Some(word) = kept.settled.get_mut((ino / 64) as usize)
        {
            *word |= 1 << (ino % 64);
        }
    }

    /// Returns why something could not be kept.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.kept.lock().as_mut()?.failure.take()
    }

    /// Reads what is kept of an inode; `None` if it has not changed since the instant. The caller holds the lock of the
    /// inode, if that still exists.
    pub(crate) fn at_instant<T>(&self, ino: u64, read: impl FnOnce(Option<&KeptInode>) -> T) -> T {
        let kept = self.kept.lock();
        read(kept.as_ref().and_then(|kept| kept.inodes.get(&ino)))
    }
}

impl Store {
    /// Keeps what a change of extents is about to replace, with references of the transaction that ends before it is
    /// committed. From here to the end of the transaction nothing may fail.
    #[inline]
    pub(super) fn keep_replaced(&self, inode: &Inode, state: &State, remap: &Remap<'_>, tx: &mut Transaction<'_>) {
        if self.pending.is_any() && !remap.stamp.keeps_content() {
            self.keep_ranges(inode, state, &changed_ranges(remap), tx);
        }
    }

    /// Keeps what a change of entries and attributes is about to replace.
    #[inline]
    pub(super) fn keep_changed(&self, inode: &Inode, state: &State, entries: &[LogEntry]) {
        if self.pending.is_any() {
            self.keep_names(inode, state, entries);
        }
    }

    /// Keeps all of an inode that is about to be freed.
    #[inline]
    pub(crate) fn keep_freed(&self, inode: &Inode, state: &State) {
        if self.pending.is_any() {
            self.keep_whole(inode, state);
        }
    }

    /// Notes that an inode is made, of which nothing needs to be kept.
    #[inline]
    pub(crate) fn keep_nothing_of(&self, ino: u64) {
        if self.pending.is_any() {
            self.pending.settle(ino);
        }
    }

    #[cold]
    fn keep_whole(&self, inode: &Inode, state: &State) {
        let mut tx = self.chunks.begin();
        let all = 0..u64::MAX;
        self.keep_ranges(inode, state, std::slice::from_ref(&all), &mut tx);
        let _ = tx.end(());
    }

    #[cold]
    fn keep_ranges(&self, inode: &Inode, state: &State, ranges: &[Range<u64>], tx: &mut Transaction<'_>) {
        let missing = {
            let mut kept = self.pending.kept.lock();
            let Some(kept) = &mut *kept else { return };
            match self.keep_first(kept, inode, state) {
                Some(inode) => ranges.iter().flat_map(|range| without(range, &inode.ranges)).collect::<Vec<_>>(),
                None => return,
            }
        };
        let Some(extents) = state.extents() else { return };
        let mut held = Dropped::default();
        let mut pieces = Vec::new();
        let mut keep = || -> Result<()> {
            for range in &missing {
                for (offset, extent) in extents.within(range.start, range.end) {
                    // Reserved space has no content to refer to.
                    if !extent.unwritten {
                        self.refer(&extent, tx, &mut held)?;
                    }
                    pieces.push((offset, extent));
                }
            }
            Ok(())
        };
        let done = keep();
        let mut kept = self.pending.kept.lock();
        let Some(kept) = kept.as_mut() else {
            // The copy has ended meanwhile.
            return self.release(&held, &[], 0);
        };
        kept.held.blocks.extend(held.blocks);
        kept.held.packed.extend(held.packed);
        if let Err(error) = done {
            return kept.fail(error);
        }
        if !kept.has_room_for(pieces.len() + missing.len()) {
            return;
        }
        let Some(inode) = kept.inodes.get_mut(&inode.ino) else { return };
        pieces.into_iter().for_each(|(offset, extent)| inode.extents.insert(offset, extent));
        missing.into_iter().for_each(|range| add(&mut inode.ranges, range));
    }

    #[cold]
    fn keep_names(&self, inode: &Inode, state: &State, entries: &[LogEntry]) {
        let mut kept = self.pending.kept.lock();
        let Some(kept) = &mut *kept else { return };
        let Some(found) = self.keep_first(kept, inode, state) else { return };
        let Body::Directory(names) = &state.body else { return };
        let mut more = 0;
        for entry in entries {
            let LogEntry::Unname { cookie, .. } = entry else { continue };
            let slot = names.after(cookie.saturating_sub(1)).next().filter(|slot| slot.cookie == *cookie);
            if let Some(slot) = slot.filter(|slot| slot.cookie < found.cookies_end) {
                let name = KeptName { name: slot.name(&self.region), ino: slot.ino, kind: slot.kind() };
                found.removed.insert(*cookie, name);
                more += 1;
            }
        }
        let _ = kept.has_room_for(more);
    }

    /// Returns what is kept of an inode: from now on at least its attributes. `None` if nothing needs to be kept.
    fn keep_first<'k>(&self, kept: &'k mut KeptInodes, inode: &Inode, state: &State) -> Option<&'k mut KeptInode> {
        if kept.is_settled(inode.ino) || kept.failure.is_some() {
            return None;
        }
        if !kept.inodes.contains_key(&inode.ino) {
            if !kept.has_room_for(1) {
                return None;
            }
            kept.inodes.insert(inode.ino, self.kept_of(inode, state));
        }
        kept.inodes.get_mut(&inode.ino).filter(|found| found.generation == inode.generation)
    }

    fn kept_of(&self, inode: &Inode, state: &State) -> KeptInode {
        KeptInode {
            generation: inode.generation,
            then: Then::of(inode.kind, state, &self.region),
            ranges: Vec::new(),
            extents: Extents::default(),
            cookies_end: match &state.body {
                Body::Directory(names) => names.next_cookie(),
                Body::File(_) | Body::Other => 0,
            },
            removed: BTreeMap::new(),
        }
    }
}

/// Returns the ranges of a file that a change replaces. A change that only fills holes names no other ranges.
fn changed_ranges(remap: &Remap<'_>) -> SmallVec<[Range<u64>; 1]> {
    match remap.ranges.iter().all(Range::is_empty) {
        true => remap.mapped.iter().map(|(offset, extent)| *offset..*offset + extent.length).collect(),
        false => remap.ranges.iter().cloned().collect(),
    }
}

/// Returns the parts of a range that are in none of `others`, which are in order and do not meet.
fn without(range: &Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let first = others.partition_point(|other| other.end <= range.start);
    let (mut at, mut parts) = (range.start, Vec::new());
    for other in others[first..].iter().take_while(|other| other.start < range.end) {
        if at < other.start {
            parts.push(at..other.start);
        }
        at = other.end;
    }
    if at < range.end {
        parts.push(at..range.end);
    }
    parts
}

/// Adds a range to ranges in order, none of which it meets in more than an end.
fn add(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    let mut at = ranges.partition_point(|other| other.end < range.start);
    match ranges.get_mut(at) {
        Some(before) if before.end == range.start => before.end = range.end,
        _ => ranges.insert(at, range),
    }
    if let Some(after) = ranges.get(at + 1).cloned()
        && after.start == ranges[at].end
    {
        ranges[at].end = after.end;
        at += 1;
        ranges.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::{add, without};

    /// Whatever the order in which ranges are added, what is missing and what is there make up the whole.
    #[test]
    fn ranges_that_are_added_are_missing_no_more_and_meet_without_seams() {
        let mut ranges = Vec::new();
        assert_eq!(without(&(3..9), &ranges).first(), Some(&(3..9)));
        for range in [10..20, 30..40, 50..60] {
            add(&mut ranges, range);
        }
        assert_eq!(without(&(0..55), &ranges), [0..10, 20..30, 40..50]);
        assert_eq!(without(&(12..18), &ranges), []);
        add(&mut ranges, 20..30);
        assert_eq!(ranges, [10..40, 50..60]);
        add(&mut ranges, 45..50);
        add(&mut ranges, 0..5);
        assert_eq!(ranges, [0..5, 10..40, 45..60]);
        assert_eq!(without(&(0..u64::MAX), &ranges), [5..10, 40..45, 60..u64::MAX]);
    }
}
