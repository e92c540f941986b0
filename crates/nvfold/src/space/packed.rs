//! Segments of packed chunks: bytes are appended, and a segment is free again when no byte of it lives.
//!
//! The problem: chunks of any length from 1 byte to 64 KiB must lie without gaps, be written once and in order (DeEXT
//! III-C: "sequential-write operations only"), and be found again after a crash.
//!
//! The idea: a pool has one open segment, taken whole from the allocator of blocks. Chunks are appended at its front,
//! their headers from its end. Nothing is kept of a segment in DRAM but how many of its bytes live: which, the entries
//! say. A crash closes open segments; a clean unmount saves where they were.
//!
//! ```text
//! | live | dead | live | live |front ->        <- headers |      dead at the front goes back at once
//! ```
//!
//! What was appended last can grow, and is given back at once when it is dropped: nobody names it any more, durably. But no
//! more than a segment's worth while one is open, for these bytes are written again: so the count of openings tells of wear.

use super::Space;
use super::wear::Heat;
use crate::error::Result;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::packed::{HEADER_BYTES, HEADERS_MAX, PackedBytes, PackedHeader, header_offset};
use crate::media::segment::KIND_PACKED;
use crate::media::{PackedNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::padded::Padded;
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, thread_number, zeroed};
use pmem::{Flight, Region};
use std::ops::Range;

/// Which pool a chunk goes to (DeEXT III-C, Fig. 6): chunks of one length do not lie among those of all lengths, and data
/// that is updated does not lie among data that stays, for what is updated together is dead together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// New pieces that were cut by their content, and short ones.
    ContentDefined = 0,
    /// New pieces of a fixed length.
    Fixed = 1,
    /// As `ContentDefined`, of data that is updated.
    UpdatedContentDefined = 2,
    /// As `Fixed`, of data that is updated.
    UpdatedFixed = 3,
}

impl Pool {
    /// The pool for updated data of the same kind.
    pub fn updated(self) -> Pool {
        match self {
            Pool::ContentDefined | Pool::UpdatedContentDefined => Pool::UpdatedContentDefined,
            Pool::Fixed | Pool::UpdatedFixed => Pool::UpdatedFixed,
        }
    }

    fn heat(self) -> Heat {
        match self {
            Pool::ContentDefined | Pool::Fixed => Heat::Cold,
            Pool::UpdatedContentDefined | Pool::UpdatedFixed => Heat::Hot,
        }
    }
}

/// How many pools there are.
pub const POOLS: usize = 4;
const ALL_POOLS: [Pool; POOLS] = [Pool::ContentDefined, Pool::Fixed, Pool::UpdatedContentDefined, Pool::UpdatedFixed];
/// On a device with fewer segments updated data has no pools of its own: an open segment for each would be too much of it.
const SEGMENTS_FOR_UPDATED: u64 = 64;
/// Sets of pools, one for each core; fewer on a device with fewer segments for each.
const SEGMENTS_PER_SET: u64 = 32;

/// Chunks that a segment holds, for what is promised: of 8 KiB, the mean of content-defined ones. Fixed ones are fewer.
const CHUNKS_PER_SEGMENT: u64 = SEGMENT_BYTES / (8 << 10);
/// Blocks of a segment that are not content: headers and the end that no chunk fits in take 4 at most, and a block of logs
/// names the chunks.
const BESIDE_BLOCKS: u64 = 5;

/// A segment to which chunks are appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Its number.
    pub segment: u64,
    /// Where the next chunk begins, bytes from its start.
    pub front: u64,
    /// Headers in it.
    pub headers: u64,
    /// Bytes that were given back since it was opened or the device mounted.
    pub given_back: u64,
}

impl Open {
    /// Goes on at `front`, behind so many headers.
    pub fn new(segment: u64, front: u64, headers: u64) -> Open {
        Open { segment, front, headers, given_back: 0 }
    }

    /// Whether it can be one.
    pub fn is_sound(&self) -> bool {
        self.headers < SEGMENT_BYTES / HEADER_BYTES && self.front <= SEGMENT_BYTES && self.has_room(0, 0)
    }

    fn has_room(&self, length: u64, headers: u64) -> bool {
        self.front + length <= SEGMENT_BYTES - (self.headers + headers) * HEADER_BYTES
    }
}

type Set = [Option<Open>; POOLS];

/// What a segment is to packed chunks: not theirs, closed, closed and not to be emptied again, being emptied, or open in a set
/// (and this much more).
const NONE: u8 = 0;
pub(super) const CLOSED: u8 = 1;
pub(super) const STUCK: u8 = 2;
pub(super) const MOVING: u8 = 3;
const OPEN: u8 = 4;
/// In `lists`: which list a segment belongs to is not known, for it was closed before the mount.
const UNLISTED: u8 = 0;

/// Packed chunks of a device.
pub struct PackedSpace {
    /// Bytes of live chunks in each segment, and one more while it is open or being emptied: the thread that takes the last of them
    /// away frees it.
    live: Box<[AtomicU32]>,
    state: Box<[AtomicU8]>,
    /// The pool that each segment was opened for, plus 1.
    lists: Box<[AtomicU8]>,
    /// A free segment that is kept for reclamation.
    pub(super) spare: Mutex<Option<u64>>,
    /// Bytes of live chunks in each segment when the last round of reclamation in the background was over.
    live_before: Box<[AtomicU32]>,
    /// Bytes of data that each segment got until it was closed, the rest being headers; 0: not known, for it was closed before
    /// the mount.
    data: Box<[AtomicU32]>,
    /// The segments among which a victim was looked for last; the next search goes on behind them.
    pub(super) compared: Mutex<Range<u64>>,
    sets: Vec<Padded<Mutex<Set>>>,
    /// How many there are on this device.
    pools: usize,
    live_bytes: Padded<AtomicU64>,
    segments: AtomicU64,
}

impl PackedSpace {
    /// Makes one with no segment.
    pub(super) fn new(segments: u64, cores: usize) -> PackedSpace {
        let sets = (segments / SEGMENTS_PER_SET).clamp(1, cores.clamp(1, 64) as u64);
        PackedSpace {
            live: zeroed(segments),
            state: zeroed(segments),
            lists: zeroed(segments),
            live_before: zeroed(segments),
            data: zeroed(segments),
            spare: Mutex::default(),
            compared: Mutex::new(0..0),
            sets: (0..sets).map(|_| Padded::default()).collect(),
            pools: if segments < SEGMENTS_FOR_UPDATED { POOLS / 2 } else { POOLS },
            live_bytes: Padded::default(),
            segments: AtomicU64::new(0),
        }
    }

    /// Bytes of live chunks.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Segments of packed chunks.
    pub fn segments(&self) -> u64 {
        self.segments.load(Ordering::Relaxed)
    }

    /// Bytes that nothing lives in and nothing can be appended to.
    pub fn dead_bytes(&self) -> u64 {
        let room = |open: &Open| SEGMENT_BYTES - open.front - open.headers * HEADER_BYTES;
        let of_set = |set: &Padded<Mutex<Set>>| set.lock().iter().flatten().map(room).sum::<u64>();
        let room: u64 = self.sets.iter().map(of_set).sum();
        (self.segments() * SEGMENT_BYTES).saturating_sub(self.live_bytes()).saturating_sub(room)
    }

    /// Whether a segment holds packed chunks.
    pub fn is_packed(&self, segment: u64) -> bool {
        self.state[segment as usize].load(Ordering::Relaxed) != NONE
    }

    pub(super) fn state_of(&self, segment: u64) -> u8 {
        self.state[segment as usize].load(Ordering::SeqCst)
    }

    /// The list that a segment belongs to, if that is known: what lives in it goes to the tail of the same (DeEXT III-D).
    pub fn list_of(&self, segment: u64) -> Option<Pool> {
        match self.lists[segment as usize].load(Ordering::Relaxed) {
            UNLISTED => None,
            list => Some(ALL_POOLS[usize::from(list - 1)]),
        }
    }

    /// Bytes of live chunks in a segment.
    pub fn live_in(&self, segment: u64) -> u64 {
        let is_kept = self.state_of(segment) >= MOVING;
        u64::from(self.live[segment as usize].load(Ordering::Relaxed)).saturating_sub(u64::from(is_kept))
    }

    /// Whether no chunk of a closed segment has died since [`PackedSpace::remember_live`].
    pub(super) fn rests(&self, segment: u64) -> bool {
        u64::from(self.live_before[segment as usize].load(Ordering::Relaxed)) == self.live_in(segment)
    }

    /// Remembers what lives in a segment, for [`PackedSpace::rests`].
    pub(super) fn remember_live(&self, segment: u64) {
        self.live_before[segment as usize].store(self.live_in(segment) as u32, Ordering::Relaxed);
    }

    /// Bytes that could live in a closed segment if nothing of it were dead; all of it, where that is not known.
    pub(super) fn data_in(&self, segment: u64) -> u64 {
        match self.data[segment as usize].load(Ordering::Relaxed) {
            0 => SEGMENT_BYTES,
            data => u64::from(data),
        }
    }

    /// It is closed, or stuck, from now on. What kept it is still to be taken away.
    pub(super) fn end_moving(&self, segment: u64, state: u8) {
        self.state[segment as usize].store(state, Ordering::SeqCst);
    }

    /// Mount: an entry cannot be read, so what lives is not known: no segment that is there is freed.
    pub fn keep_all(&self) {
        let kept = self.live.iter().zip(&self.state).filter(|(_, state)| state.load(Ordering::Relaxed) != NONE);
        kept.for_each(|(live, _)| _ = live.fetch_add(1, Ordering::Relaxed));
    }

    /// Open segments.
    pub fn open(&self) -> Vec<(usize, Open)> {
        let pools = |set: &Padded<Mutex<Set>>| set.lock().iter().copied().enumerate().collect::<Vec<_>>();
        let pools = self.sets.iter().flat_map(pools);
        pools.filter_map(|(pool, open)| Some((pool, open?))).collect()
    }

    /// Mount: a live chunk of so many bytes lies in a segment.
    pub fn adopt_chunk(&self, segment: u64, bytes: u64) {
        self.live[segment as usize].fetch_add(bytes as u32, Ordering::Relaxed);
        self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Mount: takes an open segment over; the first one of a pool stays open.
    pub fn adopt_open(&self, pool: usize, open: Open) {
        let pool = pool % self.pools;
        for (at, set) in self.sets.iter().enumerate() {
            let mut set = set.lock();
            if set[pool].is_none() {
                set[pool] = Some(open);
                self.note_open(open.segment, at as u8);
                return;
            }
        }
    }

    fn note_open(&self, segment: u64, set: u8) {
        self.live[segment as usize].fetch_add(1, Ordering::SeqCst);
        self.state[segment as usize].store(OPEN + set, Ordering::SeqCst);
    }

    /// This thread's set, or any free one.
    fn lock_set(&self) -> (usize, MutexGuard<'_, Set>) {
        let own = thread_number() % self.sets.len();
        let order = (0..self.sets.len()).map(|step| (own + step) % self.sets.len());
        let free = order.into_iter().find_map(|at| Some((at, self.sets[at].try_lock()?)));
        free.unwrap_or_else(|| (own, self.sets[own].lock()))
    }
}

impl Space {
    /// Room for the stored bytes of a packed chunk, whose header is written: the media address. They are the caller's to
    /// write; until [`Space::drop_packed`] nobody else does.
    ///
    /// # Errors
    /// ENOSPC when no wholly free segment is left, and no open one has room.
    pub fn append(&self, pool: Pool, number: PackedNumber, bytes: PackedBytes, flight: &mut Flight) -> Result<u64> {
        self.append_in(pool, number, bytes, flight, |set| self.open_packed(set, pool))
    }

    /// As [`Space::append`], for what makes a segment free by that: it may use the spare one.
    pub fn append_moved(
        &self,
        pool: Pool,
        number: PackedNumber,
        bytes: PackedBytes,
        flight: &mut Flight,
    ) -> Result<u64> {
        let open = |set| self.open_packed(set, pool).or_else(|error| self.open_spare(set, pool).ok_or(error));
        self.append_in(pool, number, bytes, flight, open)
    }

    /// `open`: a new segment for a set.
    fn append_in(
        &self,
        pool: Pool,
        number: PackedNumber,
        bytes: PackedBytes,
        flight: &mut Flight,
        open: impl Fn(u8) -> Result<Open>,
    ) -> Result<u64> {
        debug_assert!(bytes.is_sound());
        let (at, mut set) = self.packed.lock_set();
        let place = pool as usize % self.packed.pools;
        if !set[place].is_some_and(|open| self.fits_in_open_segment(&open, bytes.stored)) {
            let next = match open(at as u8) {
                Ok(next) => next,
                Err(error) => {
                    drop(set);
                    return self.append_anywhere(number, bytes, flight).ok_or(error);
                }
            };
            if let Some(full) = set[place].replace(next) {
                self.close_packed(&full);
            }
        }
        let open = set[place].as_mut().expect("one with room");
        Ok(self.append_to(open, number, bytes, flight))
    }

    /// The last room there is: in whatever segment is open, its pool and its set aside.
    fn append_anywhere(&self, number: PackedNumber, bytes: PackedBytes, flight: &mut Flight) -> Option<u64> {
        self.packed.sets.iter().find_map(|set| {
            let mut set = set.lock();
            let open = set.iter_mut().flatten().find(|open| self.fits_in_open_segment(open, bytes.stored))?;
            Some(self.append_to(open, number, bytes, flight))
        })
    }

    /// True if a chunk of `length` bytes can be appended to an open segment.
    fn fits_in_open_segment(&self, open: &Open, length: u64) -> bool {
        open.has_room(length, 1) && self.is_writable(open, length, open.headers)
    }

    fn append_to(&self, open: &mut Open, number: PackedNumber, bytes: PackedBytes, flight: &mut Flight) -> u64 {
        let length = bytes.stored;
        let opened = self.wear[open.segment as usize].load(Ordering::Relaxed);
        let header = PackedHeader::new(number, open.front, bytes, open.segment, opened);
        let base = open.segment * SEGMENT_BYTES;
        flight.add(self.region.write(base + header_offset(open.headers), &header).flush());
        self.populate_packed(base, open.front, length);
        let address = base + open.front;
        *open = Open { front: open.front + length, headers: open.headers + 1, ..*open };
        self.packed.adopt_chunk(open.segment, length);
        address
    }

    /// Of so many free blocks, those that packed chunks do not fill with content, where all of it becomes packed
    /// chunks: the segment that is kept for reclamation from then on, parts of the table of entries, of which
    /// `entries_free` are free, headers, what is left at the end of a segment, and the logs that name the chunks.
    pub fn beside_packed(&self, free_blocks: u64, entries_free: u64) -> u64 {
        let kept = if self.needs_spare_segment() { SEGMENT_BLOCKS.min(free_blocks) } else { 0 };
        let segments = (free_blocks - kept) / SEGMENT_BLOCKS;
        let entries = (segments * CHUNKS_PER_SEGMENT).saturating_sub(entries_free);
        let parts = entries.div_ceil(SEGMENT_BYTES / ENTRY_BYTES).min(segments);
        kept + parts * SEGMENT_BLOCKS + (segments - parts) * BESIDE_BLOCKS
    }

    /// Makes the chunk that was appended last, and is not compressed, longer, in its place, from `length` bytes to
    /// `longer`. False when another was appended since, or the segment is full.
    pub fn grow_packed(
        &self,
        number: PackedNumber,
        address: u64,
        length: u64,
        longer: u64,
        flight: &mut Flight,
    ) -> bool {
        let (segment, offset) = (address / SEGMENT_BYTES, address % SEGMENT_BYTES);
        let Some(mut set) = self.set_of(segment) else { return false };
        let open = set.iter_mut().flatten().find(|open| open.segment == segment).expect("it is open in this set");
        let is_last = open.front == offset + length && open.has_room(longer - length, 0);
        if !is_last || !self.is_writable(open, longer - length, open.headers - 1) {
            return false;
        }
        let opened = self.wear[segment as usize].load(Ordering::Relaxed);
        let header = PackedHeader::new(number, offset, PackedBytes::plain(longer), segment, opened);
        flight.add(self.region.write(segment * SEGMENT_BYTES + header_offset(open.headers - 1), &header).flush());
        self.populate_packed(segment * SEGMENT_BYTES, open.front, longer - length);
        open.front = offset + longer;
        self.packed.adopt_chunk(segment, longer - length);
        true
    }

    /// Takes [`Space::grow_packed`] back, if nothing was appended since; else the bytes are lost until the segment is free.
    pub fn shrink_packed(&self, address: u64, longer: u64, length: u64) {
        let (segment, offset) = (address / SEGMENT_BYTES, address % SEGMENT_BYTES);
        self.packed.live[segment as usize].fetch_sub((longer - length) as u32, Ordering::SeqCst);
        self.packed.live_bytes.fetch_sub(longer - length, Ordering::Relaxed);
        if let Some(mut set) = self.set_of(segment) {
            let open = set.iter_mut().flatten().find(|open| open.segment == segment).expect("it is open in this set");
            if open.front == offset + longer {
                open.front = offset + length;
            }
        }
    }

    /// Keeps a closed segment in which something lives from being freed, and from being chosen by others. False when it is not
    /// closed any more.
    pub(super) fn begin_moving(&self, segment: u64) -> bool {
        let (live, state) = (&self.packed.live[segment as usize], &self.packed.state[segment as usize]);
        let one_more = |live: u32| (live > 0).then(|| live + 1);
        if live.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_err() {
            return false;
        }
        let begun = state.compare_exchange(CLOSED, MOVING, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !begun {
            self.take_live(segment, 1);
        }
        begun
    }

    /// The bytes of a chunk that moved, in a segment that is being emptied: they count no longer.
    pub fn leave_behind(&self, address: u64, length: u64) {
        if self.take_live(address / SEGMENT_BYTES, length) {
            self.packed.live_bytes.fetch_sub(length, Ordering::Relaxed);
        }
    }

    /// The nth header of a segment, if it was written since the segment was opened.
    pub fn header(&self, segment: u64, nth: u64) -> Option<PackedHeader> {
        let header: PackedHeader = self.region.read(segment * SEGMENT_BYTES + header_offset(nth));
        header.is_whole(segment, self.wear_of(segment)).then_some(header)
    }

    /// Nothing names the bytes of this chunk any more, durably. They live until its place in an open segment is given back:
    /// so that is still the segment that the chunk lies in.
    pub fn drop_packed(&self, address: u64, length: u64) {
        let (segment, offset) = (address / SEGMENT_BYTES, address % SEGMENT_BYTES);
        if let Some(mut set) = self.set_of(segment) {
            let open = set.iter_mut().flatten().find(|open| open.segment == segment).expect("it is open in this set");
            if open.front == offset + length && open.given_back + length <= SEGMENT_BYTES {
                open.front = offset;
                open.headers -= 1;
                open.given_back += length;
            }
        }
        if self.take_live(segment, length) {
            self.packed.live_bytes.fetch_sub(length, Ordering::Relaxed);
        }
    }

    /// Segments in which nothing lives and that are not free: [`Space::close_empty_packed`] frees them.
    pub fn empty_packed(&self) -> u64 {
        let is_empty = |open: &&Open| self.packed.live_in(open.segment) == 0;
        let open = |set: &Padded<Mutex<Set>>| set.lock().iter().flatten().filter(is_empty).count() as u64;
        let empty: u64 = self.packed.sets.iter().map(open).sum();
        // Without the others the spare one serves nothing.
        empty + u64::from(empty == self.packed.segments() && self.packed.spare.lock().is_some())
    }

    /// Closes open segments in which nothing lives: they are free, and so is the spare one if no other is left. How many.
    pub fn close_empty_packed(&self) -> usize {
        let mut closed = 0;
        for set in &self.packed.sets {
            for open in set.lock().iter_mut() {
                if let Some(empty) = open.take_if(|open| self.packed.live_in(open.segment) == 0) {
                    self.close_packed(&empty);
                    closed += 1;
                }
            }
        }
        closed + usize::from(self.give_up_idle_spare())
    }

    /// Mount: a segment holds packed chunks. Which of its bytes live is told by [`PackedSpace::adopt_chunk`].
    pub fn adopt_packed_segment(&self, segment: u64) {
        self.adopt_table_segment(segment);
        self.packed.state[segment as usize].store(CLOSED, Ordering::Relaxed);
        self.packed.segments.fetch_add(1, Ordering::Relaxed);
    }

    /// Reconcile: closed segments in which nothing lives are free.
    pub fn free_empty_packed(&self) {
        let segments = self.geometry.first_segment()..self.geometry.segments();
        segments.filter(|segment| self.packed.live_in(*segment) == 0).for_each(|segment| self.free_packed(segment));
    }

    /// Takes a free segment for packed chunks, as long as another one is left for reclamation.
    fn open_packed(&self, set: u8, pool: Pool) -> Result<Open> {
        self.keep_spare()?;
        let segment = self.allocate_worn_segment("pack", pool.heat())?;
        Ok(self.open_segment(segment, set, pool))
    }

    /// Marks a free segment as one of packed chunks, durably. Its wear counts how often that was done.
    pub(super) fn open_segment(&self, segment: u64, set: u8, pool: Pool) -> Open {
        self.note_opened(segment);
        self.write_use(segment, KIND_PACKED, 0);
        self.packed.note_open(segment, set);
        self.packed.lists[segment as usize].store(pool as u8 + 1, Ordering::Relaxed);
        self.packed.segments.fetch_add(1, Ordering::Relaxed);
        Open::new(segment, 0, 0)
    }

    /// Whether the next bytes of an open segment, and its n-th header, do not lie in bad memory.
    fn is_writable(&self, open: &Open, length: u64, header: u64) -> bool {
        let base = open.segment * SEGMENT_BYTES;
        let can_write = |offset, length| self.region.check_writable(base + offset, length).is_ok();
        can_write(open.front, length) && can_write(header_offset(header), HEADER_BYTES)
    }

    fn close_packed(&self, open: &Open) {
        self.packed.data[open.segment as usize].store(open.front as u32, Ordering::Relaxed);
        self.packed.state[open.segment as usize].store(CLOSED, Ordering::SeqCst);
        self.take_live(open.segment, 1);
    }

    /// Takes away some of what keeps a segment, and frees it if that was the last. False where less keeps it: a damaged
    /// entry names bytes of others, and who drops it leaves theirs alone.
    pub(super) fn take_live(&self, segment: u64, bytes: u64) -> bool {
        let taken = |live: u32| live.checked_sub(bytes as u32);
        let before = self.packed.live[segment as usize].fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken);
        if before == Ok(bytes as u32) {
            self.free_packed(segment);
        }
        before.is_ok()
    }

    /// Frees a closed segment in which nothing lives. Where a damaged entry leads there may be none.
    fn free_packed(&self, segment: u64) {
        let state = &self.packed.state[segment as usize];
        let freed = |state| matches!(state, CLOSED | STUCK).then_some(NONE);
        if state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, freed).is_ok() {
            self.packed.segments.fetch_sub(1, Ordering::Relaxed);
            self.packed.lists[segment as usize].store(UNLISTED, Ordering::Relaxed);
            if !self.keep_as_spare(segment) {
                self.free_segment(segment);
            }
        }
    }

    /// The set in which a segment is open, locked.
    fn set_of(&self, segment: u64) -> Option<MutexGuard<'_, Set>> {
        let state = &self.packed.state[segment as usize];
        loop {
            let seen = state.load(Ordering::SeqCst);
            let set = self.packed.sets[usize::from(seen.checked_sub(OPEN)?)].lock();
            if state.load(Ordering::SeqCst) == seen {
                return Some(set);
            }
        }
    }

    /// Host memory is asked for in windows, not page fault by page fault.
    fn populate_packed(&self, base: u64, front: u64, length: u64) {
        const WINDOW: u64 = 256 << 10;
        let first = front.next_multiple_of(WINDOW);
        for window in (first..front + length).step_by(WINDOW as usize) {
            self.region.populate(base + window, WINDOW);
        }
    }
}

/// Headers of a segment that were written since it was opened, with their numbers; one that is damaged is left out.
pub fn headers(region: &Region, segment: u64, opened: u32) -> impl Iterator<Item = (u64, PackedHeader)> {
    let header = move |nth| (nth, region.read::<PackedHeader>(segment * SEGMENT_BYTES + header_offset(nth)));
    (0..HEADERS_MAX).map(header).filter(move |(_, header)| header.is_whole(segment, opened))
}
