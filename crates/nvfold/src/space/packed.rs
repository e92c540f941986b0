//! Segments of packed chunks: chunks are appended, and a segment is free again when no byte in it is live.
//!
//! The problem: chunks of 1 byte to 64 KiB must be stored without gaps, written once and sequentially (DeEXT III-C:
//! "sequential-write operations only"), and found again after a crash.
//!
//! The idea: each pool has one open segment, taken whole from the block allocator. Chunks are appended at its front,
//! their headers from its end. DRAM keeps only the number of live bytes of a segment; the chunk entries say which
//! bytes are live. A crash closes open segments; a clean unmount saves their positions.
//!
//! ```text
//! | live | dead | live | live |front ->        <- headers |      dead at the front goes back at once
//! ```
//!
//! The last chunk can grow. When it is dropped, durably unreferenced, its place is given back at once. While a
//! segment is open, at most one segment's worth of bytes is given back this way, because these bytes are written
//! again: so the count of openings still measures wear.

use super::Space;
use super::wear::Heat;
use crate::error::Result;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::packed::{HEADER_BYTES, HEADERS_MAX, PackedBytes, PackedHeader, header_offset};
use crate::media::segment::KIND_PACKED;
use crate::media::{PACKED_BYTES_MAX, PackedNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::padded::Padded;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, thread_number, zeroed};
use pmem::{Flight, Region};
use std::ops::Range;

/// The pool of a chunk (DeEXT III-C, Fig. 6). Fixed-length chunks are kept apart from chunks of other lengths. Data
/// that is updated is kept apart from data that stays, because chunks that are updated together die together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// New pieces that were cut by content, and short ones.
    ContentDefined = 0,
    /// New pieces of a fixed length.
    Fixed = 1,
    /// The same as `ContentDefined`, for data that is updated.
    UpdatedContentDefined = 2,
    /// The same as `Fixed`, for data that is updated.
    UpdatedFixed = 3,
}

impl Pool {
    /// Returns the pool for updated data of the same kind.
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

/// The number of pools.
pub const POOLS: usize = 4;
const ALL_POOLS: [Pool; POOLS] = [Pool::ContentDefined, Pool::Fixed, Pool::UpdatedContentDefined, Pool::UpdatedFixed];
/// On a device with fewer segments, updated data has no separate pools: their open segments would take too much of
/// it.
const SEGMENTS_FOR_UPDATED: u64 = 64;
/// Segments per set of pools. There is one set per core, or fewer if the device has fewer segments for each.
const SEGMENTS_PER_SET: u64 = 32;

/// The number of chunks assumed per segment in estimates: chunks of 8 KiB, the mean of content-defined ones. Fixed
/// ones are fewer.
const CHUNKS_PER_SEGMENT: u64 = SEGMENT_BYTES / (8 << 10);
/// Blocks per segment that hold no content: headers and the unusable end take 4 at most, and the logs that reference
/// the chunks take one.
const OVERHEAD_BLOCKS_PER_SEGMENT: u64 = 5;

/// A segment to which chunks are appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Its number.
    pub segment: u64,
    /// Offset in the segment where the next chunk begins, bytes.
    pub front: u64,
    /// The number of headers in it.
    pub headers: u64,
    /// Bytes given back since the segment was opened or the device was mounted.
    pub given_back: u64,
}

impl Open {
    /// Creates the state of a segment that continues at `front`, with this many headers.
    pub fn new(segment: u64, front: u64, headers: u64) -> Open {
        Open { segment, front, headers, given_back: 0 }
    }

    /// Returns whether the values are plausible.
    pub fn is_sound(&self) -> bool {
        self.headers < SEGMENT_BYTES / HEADER_BYTES && self.front <= SEGMENT_BYTES && self.has_room(0, 0)
    }

    fn has_room(&self, length: u64, headers: u64) -> bool {
        self.front + length <= SEGMENT_BYTES - (self.headers + headers) * HEADER_BYTES
    }
}

type Set = [Option<Open>; POOLS];

/// State of a segment: without packed chunks, closed, closed and not to be chosen again, being emptied, or open
/// (`OPEN` plus the number of its set).
const NONE: u8 = 0;
pub(super) const CLOSED: u8 = 1;
pub(super) const STUCK: u8 = 2;
pub(super) const MOVING: u8 = 3;
const OPEN: u8 = 4;
/// Value of `lists` for a segment whose list is unknown, because it was closed before the mount.
const UNLISTED: u8 = 0;

/// The segments of packed chunks of a device.
pub struct PackedSpace {
    /// Bytes of live chunks in each segment, plus 1 while it is open or being emptied. The thread that subtracts the
    /// last of them frees the segment.
    live: Box<[AtomicU32]>,
    state: Box<[AtomicU8]>,
    /// The pool that each segment was opened for, plus 1.
    lists: Box<[AtomicU8]>,
    /// A free segment, kept for reclamation.
    pub(super) spare: Mutex<Option<u64>>,
    /// Bytes of live chunks in each segment at the end of the last round of background reclamation.
    live_before: Box<[AtomicU32]>,
    /// Bytes of chunks appended to each segment until it was closed, without headers, and room that was left for more
    /// than the longest chunk; 0: unknown, because it was closed before the mount.
    data: Box<[AtomicU32]>,
    /// The segments that the last search for a victim compared; the next search begins after them.
    pub(super) compared: Mutex<Range<u64>>,
    /// The sets of the cores, and behind them the mover's: its first segment is the one that was the spare.
    sets: Vec<Padded<Mutex<Set>>>,
    /// True while only the mover may append to its own set: from the choice of a victim until there is a spare again.
    pub(super) is_emptying: AtomicBool,
    /// The number of pools on this device.
    pools: usize,
    live_bytes: Padded<AtomicU64>,
    segments: AtomicU64,
}

impl PackedSpace {
    /// Creates the state of a device without packed segments.
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
            sets: (0..=sets).map(|_| Padded::default()).collect(),
            is_emptying: AtomicBool::new(false),
            pools: if segments < SEGMENTS_FOR_UPDATED { POOLS / 2 } else { POOLS },
            live_bytes: Padded::default(),
            segments: AtomicU64::new(0),
        }
    }

    /// Returns the number of bytes of live chunks.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of segments of packed chunks.
    pub fn segments(&self) -> u64 {
        self.segments.load(Ordering::Relaxed)
    }

    /// Returns how many bytes hold no live chunk and cannot be appended to.
    pub fn dead_bytes(&self) -> u64 {
        let room = |open: &Open| SEGMENT_BYTES - open.front - open.headers * HEADER_BYTES;
        let of_set = |set: &Padded<Mutex<Set>>| set.lock().iter().flatten().map(room).sum::<u64>();
        let room: u64 = self.sets.iter().map(of_set).sum();
        (self.segments() * SEGMENT_BYTES).saturating_sub(self.live_bytes()).saturating_sub(room)
    }

    /// Returns whether a segment holds packed chunks.
    pub fn is_packed(&self, segment: u64) -> bool {
        self.state[segment as usize].load(Ordering::Relaxed) != NONE
    }

    pub(super) fn state_of(&self, segment: u64) -> u8 {
        self.state[segment as usize].load(Ordering::SeqCst)
    }

    /// Returns the list that a segment belongs to, if known: its live chunks move to the tail of the same list (DeEXT
    /// III-D).
    pub fn list_of(&self, segment: u64) -> Option<Pool> {
        match self.lists[segment as usize].load(Ordering::Relaxed) {
            UNLISTED => None,
            list => Some(ALL_POOLS[usize::from(list - 1)]),
        }
    }

    /// Returns the bytes of live chunks in a segment.
    pub fn live_in(&self, segment: u64) -> u64 {
        let is_kept = self.state_of(segment) >= MOVING;
        u64::from(self.live[segment as usize].load(Ordering::Relaxed)).saturating_sub(u64::from(is_kept))
    }

    /// Returns whether no chunk of a closed segment has died since [`PackedSpace::remember_live`].
    pub(super) fn rests(&self, segment: u64) -> bool {
        u64::from(self.live_before[segment as usize].load(Ordering::Relaxed)) == self.live_in(segment)
    }

    /// Records the live bytes of a segment for [`PackedSpace::rests`].
    pub(super) fn remember_live(&self, segment: u64) {
        self.live_before[segment as usize].store(self.live_in(segment) as u32, Ordering::Relaxed);
    }

    /// Returns how many bytes of chunks were appended to a closed segment; the size of a segment if that is unknown.
    pub(super) fn data_in(&self, segment: u64) -> u64 {
        match self.data[segment as usize].load(Ordering::Relaxed) {
            0 => SEGMENT_BYTES,
            data => u64::from(data),
        }
    }

    /// Sets the state of a segment to closed or stuck. The caller still has to subtract the 1 that keeps it from
    /// being freed.
    pub(super) fn end_moving(&self, segment: u64, state: u8) {
        self.state[segment as usize].store(state, Ordering::SeqCst);
    }

    /// Keeps every packed segment from being freed; for a mount that cannot read an entry, so that the live bytes are
    /// unknown.
    pub fn keep_all(&self) {
        let kept = self.live.iter().zip(&self.state).filter(|(_, state)| state.load(Ordering::Relaxed) != NONE);
        kept.for_each(|(live, _)| _ = live.fetch_add(1, Ordering::Relaxed));
    }

    /// Returns the open segments with their pools.
    pub fn open(&self) -> Vec<(usize, Open)> {
        let pools = |set: &Padded<Mutex<Set>>| set.lock().iter().copied().enumerate().collect::<Vec<_>>();
        let pools = self.sets.iter().flat_map(pools);
        pools.filter_map(|(pool, open)| Some((pool, open?))).collect()
    }

    /// Adds a live chunk of `bytes` bytes to a segment; for the mount.
    pub fn adopt_chunk(&self, segment: u64, bytes: u64) {
        self.live[segment as usize].fetch_add(bytes as u32, Ordering::Relaxed);
        self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Restores an open segment; for the mount. It stays closed if its pool has an open segment in every set.
    pub fn adopt_open(&self, pool: usize, open: Open) {
        let pool = pool % self.pools;
        for (at, set) in self.of_cores().iter().enumerate() {
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

    fn of_cores(&self) -> &[Padded<Mutex<Set>>] {
        &self.sets[..self.movers()]
    }

    /// Returns the number of the mover's set.
    fn movers(&self) -> usize {
        self.sets.len() - 1
    }

    /// Locks the set of this thread's core, or any that is not locked.
    fn lock_set(&self) -> (usize, MutexGuard<'_, Set>) {
        let sets = self.of_cores();
        let own = thread_number() % sets.len();
        let order = (0..sets.len()).map(|step| (own + step) % sets.len());
        let free = order.into_iter().find_map(|at| Some((at, sets[at].try_lock()?)));
        free.unwrap_or_else(|| (own, sets[own].lock()))
    }
}

impl Space {
    /// Reserves room for the stored bytes of a packed chunk and writes its header. Returns the media address. The
    /// caller writes the bytes; the range stays the chunk's until [`Space::drop_packed`].
    ///
    /// # Errors
    /// `ENOSPC` when no completely free segment is left, and no open one has room.
    pub fn append(&self, pool: Pool, number: PackedNumber, bytes: PackedBytes, flight: &mut Flight) -> Result<u64> {
        let (at, mut set) = self.packed.lock_set();
        let place = pool as usize % self.packed.pools;
        if !set[place].is_some_and(|open| self.fits_in_open_segment(&open, bytes.stored)) {
            let next = match self.open_packed(at as u8, pool) {
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

    /// Appends a chunk to any open segment with room, regardless of pool and set: the last resort.
    fn append_anywhere(&self, number: PackedNumber, bytes: PackedBytes, flight: &mut Flight) -> Option<u64> {
        self.packed.sets.iter().enumerate().find_map(|(at, set)| {
            let mut set = set.lock();
            // Read under the lock: the mover opens the spare under it, after it has begun.
            let is_kept = at == self.packed.movers() && self.packed.is_emptying.load(Ordering::SeqCst);
            let mut segments = set.iter_mut().flatten().filter(|_| !is_kept);
            let open = segments.find(|open| self.fits_in_open_segment(open, bytes.stored))?;
            Some(self.append_to(open, number, bytes, flight))
        })
    }

    /// Does the same as [`Space::append`] for a chunk that moves out of a victim, which will be free by this: it may
    /// use the spare segment, to which nothing else is appended meanwhile. All that lives in a victim fits in it.
    pub fn append_moved(
        &self,
        pool: Pool,
        number: PackedNumber,
        bytes: PackedBytes,
        flight: &mut Flight,
    ) -> Result<u64> {
        let appended = self.append(pool, number, bytes, flight);
        appended.or_else(|error| self.append_to_spare(pool, number, bytes, flight).ok_or(error))
    }

    fn append_to_spare(
        &self,
        pool: Pool,
        number: PackedNumber,
        bytes: PackedBytes,
        flight: &mut Flight,
    ) -> Option<u64> {
        let at = self.packed.movers();
        let [open, ..] = &mut *self.packed.sets[at].lock();
        if !open.is_some_and(|open| self.fits_in_open_segment(&open, bytes.stored)) {
            let spare = self.packed.spare.lock().take()?;
            if let Some(full) = open.replace(self.open_segment(spare, at as u8, pool)) {
                self.close_packed(&full);
            }
        }
        let open = open.as_mut().filter(|open| self.fits_in_open_segment(open, bytes.stored))?;
        Some(self.append_to(open, number, bytes, flight))
    }

    /// Returns whether a chunk of `length` bytes can be appended to an open segment.
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

    /// Returns how many of `free_blocks` hold no content if all of them are filled with packed chunks. These are the
    /// segment kept for reclamation, parts of the table of entries (`entries_free` entries are free now), headers,
    /// the unusable ends of segments, and the logs that reference the chunks.
    pub fn packed_overhead_blocks(&self, free_blocks: u64, entries_free: u64) -> u64 {
        let kept = if self.needs_spare_segment() { SEGMENT_BLOCKS.min(free_blocks) } else { 0 };
        let segments = (free_blocks - kept) / SEGMENT_BLOCKS;
        let entries = (segments * CHUNKS_PER_SEGMENT).saturating_sub(entries_free);
        let parts = entries.div_ceil(SEGMENT_BYTES / ENTRY_BYTES).min(segments);
        kept + parts * SEGMENT_BLOCKS + (segments - parts) * OVERHEAD_BLOCKS_PER_SEGMENT
    }

    /// Extends the chunk that was appended last, if it is not compressed, in place from `length` to `longer` bytes.
    /// Returns false if another chunk was appended since, or if the segment is full.
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

    /// Reverts [`Space::grow_packed`], if nothing was appended since; otherwise the bytes are lost until the segment
    /// is free.
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

    /// Keeps a closed segment with live bytes from being freed and from being chosen by other threads. Returns false
    /// if it is no longer closed.
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

    /// Subtracts the old bytes of a chunk that moved out of a segment that is being emptied.
    pub fn leave_behind(&self, address: u64, length: u64) {
        if self.take_live(address / SEGMENT_BYTES, length) {
            self.packed.live_bytes.fetch_sub(length, Ordering::Relaxed);
        }
    }

    /// Returns the `nth` header of a segment, if it was written since the segment was opened.
    pub fn header(&self, segment: u64, nth: u64) -> Option<PackedHeader> {
        let header: PackedHeader = self.region.read(segment * SEGMENT_BYTES + header_offset(nth));
        header.is_whole(segment, self.wear_of(segment)).then_some(header)
    }

    /// Drops the bytes of a chunk that is durably unreferenced. They count as live until their place in an open
    /// segment was given back, so that the segment is not freed and reused before that.
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

    /// Returns how many segments have no live bytes and are not free: [`Space::close_empty_packed`] frees them.
    pub fn empty_packed(&self) -> u64 {
        let is_empty = |open: &&Open| self.packed.live_in(open.segment) == 0;
        let open = |set: &Padded<Mutex<Set>>| set.lock().iter().flatten().filter(is_empty).count() as u64;
        let empty: u64 = self.packed.sets.iter().map(open).sum();
        // If no other segment is left, the spare one has no use.
        empty + u64::from(empty == self.packed.segments() && self.packed.spare.lock().is_some())
    }

    /// Closes and frees open segments without live bytes, and the spare one if no other is left. Returns how many it
    /// freed.
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

    /// Adds a segment of packed chunks; for the mount. [`PackedSpace::adopt_chunk`] adds its live bytes.
    pub fn adopt_packed_segment(&self, segment: u64) {
        self.adopt_table_segment(segment);
        self.packed.state[segment as usize].store(CLOSED, Ordering::Relaxed);
        self.packed.segments.fetch_add(1, Ordering::Relaxed);
    }

    /// Frees closed segments without live bytes; for reconcile.
    pub fn free_empty_packed(&self) {
        let segments = self.geometry.first_segment()..self.geometry.segments();
        segments.filter(|segment| self.packed.live_in(*segment) == 0).for_each(|segment| self.free_packed(segment));
    }

    /// Opens a free segment for packed chunks, as long as another one is left for reclamation.
    fn open_packed(&self, set: u8, pool: Pool) -> Result<Open> {
        self.keep_spare()?;
        let segment = self.allocate_worn_segment("pack", pool.heat())?;
        Ok(self.open_segment(segment, set, pool))
    }

    /// Marks a free segment as one of packed chunks, durably. Its wear counts these openings.
    fn open_segment(&self, segment: u64, set: u8, pool: Pool) -> Open {
        self.note_opened(segment);
        self.write_use(segment, KIND_PACKED, 0);
        self.packed.note_open(segment, set);
        self.packed.lists[segment as usize].store(pool as u8 + 1, Ordering::Relaxed);
        self.packed.segments.fetch_add(1, Ordering::Relaxed);
        Open::new(segment, 0, 0)
    }

    /// Returns whether the next `length` bytes of an open segment, and the place of its header `header`, are not in
    /// bad memory.
    fn is_writable(&self, open: &Open, length: u64, header: u64) -> bool {
        let base = open.segment * SEGMENT_BYTES;
        let can_write = |offset, length| self.region.check_writable(base + offset, length).is_ok();
        can_write(open.front, length) && can_write(header_offset(header), HEADER_BYTES)
    }

    fn close_packed(&self, open: &Open) {
        // Room for the longest chunk that was not used counts as dead.
        let data = (SEGMENT_BYTES - open.headers * HEADER_BYTES).saturating_sub(PACKED_BYTES_MAX).max(open.front);
        self.packed.data[open.segment as usize].store(data as u32, Ordering::Relaxed);
        self.packed.state[open.segment as usize].store(CLOSED, Ordering::SeqCst);
        self.take_live(open.segment, 1);
    }

    /// Subtracts from the live bytes of a segment, and frees it if none are left. Returns false if it has fewer live
    /// bytes: a damaged entry points to bytes of other chunks, and dropping it must not affect those.
    pub(super) fn take_live(&self, segment: u64, bytes: u64) -> bool {
        let taken = |live: u32| live.checked_sub(bytes as u32);
        let before = self.packed.live[segment as usize].fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken);
        if before == Ok(bytes as u32) {
            self.free_packed(segment);
        }
        before.is_ok()
    }

    /// Frees a closed segment without live bytes. A damaged entry may lead to a segment without packed chunks, which
    /// stays.
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

    /// Locks and returns the set in which a segment is open; `None` if it is not open.
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

    /// Populates host memory in windows, instead of by page faults.
    fn populate_packed(&self, base: u64, front: u64, length: u64) {
        const WINDOW: u64 = 256 << 10;
        let first = front.next_multiple_of(WINDOW);
        for window in (first..front + length).step_by(WINDOW as usize) {
            self.region.populate(base + window, WINDOW);
        }
    }
}

/// Iterates over the headers of a segment that were written since it was opened, with their numbers. Damaged ones are
/// left out.
pub fn headers(region: &Region, segment: u64, opened: u32) -> impl Iterator<Item = (u64, PackedHeader)> {
    let header = move |nth| (nth, region.read::<PackedHeader>(segment * SEGMENT_BYTES + header_offset(nth)));
    (0..HEADERS_MAX).map(header).filter(move |(_, header)| header.is_whole(segment, opened))
}
