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
//!
//! This file has what is known of the segments; `append.rs` appends chunks and drops them, `reclaim.rs` chooses what to
//! empty, and `spare.rs` keeps a segment for that.

use crate::media::packed::{HEADER_BYTES, HEADERS_MAX, PackedHeader, header_offset};
use crate::media::{PACKED_BYTES_MAX, SEGMENT_BYTES};
use nvfold_sync::Padded;
use nvfold_sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use nvfold_sync::{Mutex, MutexGuard, thread_number, zeroed};
use pmem::Region;
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
}

/// The number of pools.
pub(crate) const POOLS: usize = 4;
const ALL_POOLS: [Pool; POOLS] = [Pool::ContentDefined, Pool::Fixed, Pool::UpdatedContentDefined, Pool::UpdatedFixed];
/// On a device with fewer segments, updated data has no separate pools: their open segments would take too much of
/// it.
const SEGMENTS_FOR_UPDATED: u64 = 64;
/// Segments per set of pools. There is one set per core, or fewer if the device has fewer segments for each.
const SEGMENTS_PER_SET: u64 = 32;

/// A segment to which chunks are appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
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
    pub(crate) fn new(segment: u64, front: u64, headers: u64) -> Open {
        Open { segment, front, headers, given_back: 0 }
    }

    /// Returns whether the values are plausible.
    pub(crate) fn is_sound(&self) -> bool {
        self.headers < SEGMENT_BYTES / HEADER_BYTES && self.front <= SEGMENT_BYTES && self.has_room(0, 0)
    }

    pub(super) fn has_room(&self, length: u64, headers: u64) -> bool {
        self.front + length <= SEGMENT_BYTES - (self.headers + headers) * HEADER_BYTES
    }
}

pub(super) type Set = [Option<Open>; POOLS];

/// State of a segment: without packed chunks, closed, closed and not to be chosen again, being emptied, or open
/// (`OPEN` plus the number of its set).
const NONE: u8 = 0;
pub(super) const CLOSED: u8 = 1;
pub(super) const STUCK: u8 = 2;
const MOVING: u8 = 3;
const OPEN: u8 = 4;
/// Value of `lists` for a segment whose list is unknown, because it was closed before the mount.
const UNLISTED: u8 = 0;

/// The segments of packed chunks of a device.
pub(crate) struct PackedSpace {
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
    pub(super) sets: Vec<Padded<Mutex<Set>>>,
    /// True while only the mover may append to its own set: from the choice of a victim until there is a spare again.
    pub(super) is_emptying: AtomicBool,
    /// The number of pools on this device.
    pub(super) pools: usize,
    live_bytes: Padded<AtomicU64>,
    segments: AtomicU64,
}

impl PackedSpace {
    /// Creates the state of a device without packed segments, which has `segments` now, and `segments_max` later.
    pub(super) fn new(segments: u64, segments_max: u64, cores: usize) -> PackedSpace {
        let sets = (segments / SEGMENTS_PER_SET).clamp(1, cores.clamp(1, 64) as u64);
        PackedSpace {
            live: zeroed(segments_max),
            state: zeroed(segments_max),
            lists: zeroed(segments_max),
            live_before: zeroed(segments_max),
            data: zeroed(segments_max),
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
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of segments of packed chunks.
    pub(crate) fn segments(&self) -> u64 {
        self.segments.load(Ordering::Relaxed)
    }

    /// Returns how many bytes hold no live chunk and cannot be appended to.
    pub(crate) fn dead_bytes(&self) -> u64 {
        let room = |open: &Open| SEGMENT_BYTES - open.front - open.headers * HEADER_BYTES;
        let of_set = |set: &Padded<Mutex<Set>>| set.lock().iter().flatten().map(room).sum::<u64>();
        let room: u64 = self.sets.iter().map(of_set).sum();
        (self.segments() * SEGMENT_BYTES).saturating_sub(self.live_bytes()).saturating_sub(room)
    }

    /// Returns whether a segment holds packed chunks.
    pub(crate) fn is_packed(&self, segment: u64) -> bool {
        self.state[segment as usize].load(Ordering::Relaxed) != NONE
    }

    pub(super) fn state_of(&self, segment: u64) -> u8 {
        self.state[segment as usize].load(Ordering::SeqCst)
    }

    /// Returns the list that a segment belongs to, if known: its live chunks move to the tail of the same list (DeEXT
    /// III-D).
    pub(crate) fn list_of(&self, segment: u64) -> Option<Pool> {
        match self.lists[segment as usize].load(Ordering::Relaxed) {
            UNLISTED => None,
            list => Some(ALL_POOLS[usize::from(list - 1)]),
        }
    }

    /// Returns the bytes of live chunks in a segment.
    pub(crate) fn live_in(&self, segment: u64) -> u64 {
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
    pub(crate) fn keep_all(&self) {
        let kept = self.live.iter().zip(&self.state).filter(|(_, state)| state.load(Ordering::Relaxed) != NONE);
        kept.for_each(|(live, _)| _ = live.fetch_add(1, Ordering::Relaxed));
    }

    /// Returns the open segments with their pools.
    pub(crate) fn open(&self) -> Vec<(usize, Open)> {
        let pools = |set: &Padded<Mutex<Set>>| set.lock().iter().copied().enumerate().collect::<Vec<_>>();
        let pools = self.sets.iter().flat_map(pools);
        pools.filter_map(|(pool, open)| Some((pool, open?))).collect()
    }

    /// Adds a live chunk of `bytes` bytes to a segment; for the mount.
    pub(crate) fn adopt_chunk(&self, segment: u64, bytes: u64) {
        self.live[segment as usize].fetch_add(bytes as u32, Ordering::Relaxed);
        self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Restores an open segment; for the mount. It stays closed if its pool has an open segment in every set.
    pub(crate) fn adopt_open(&self, pool: usize, open: Open) {
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
    pub(super) fn movers(&self) -> usize {
        self.sets.len() - 1
    }

    /// Locks the set of this thread's core, or any that is not locked.
    pub(super) fn lock_set(&self) -> (usize, MutexGuard<'_, Set>) {
        let sets = self.of_cores();
        let own = thread_number() % sets.len();
        let order = (0..sets.len()).map(|step| (own + step) % sets.len());
        let free = order.into_iter().find_map(|at| Some((at, sets[at].try_lock()?)));
        free.unwrap_or_else(|| (own, sets[own].lock()))
    }

    /// Adds a segment that is open in a set, for chunks of this pool.
    pub(super) fn add_open(&self, segment: u64, set: u8, pool: Pool) {
        self.note_open(segment, set);
        self.lists[segment as usize].store(pool as u8 + 1, Ordering::Relaxed);
        self.segments.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a closed segment; for the mount.
    pub(super) fn adopt_segment(&self, segment: u64) {
        self.state[segment as usize].store(CLOSED, Ordering::Relaxed);
        self.segments.fetch_add(1, Ordering::Relaxed);
    }

    /// Closes an open segment. The caller still has to subtract the 1 that keeps it from being freed.
    pub(super) fn close(&self, open: &Open) {
        // Room for the longest chunk that was not used counts as dead.
        let data = (SEGMENT_BYTES - open.headers * HEADER_BYTES).saturating_sub(PACKED_BYTES_MAX).max(open.front);
        self.data[open.segment as usize].store(data as u32, Ordering::Relaxed);
        self.state[open.segment as usize].store(CLOSED, Ordering::SeqCst);
    }

    /// Adds 1 to the live bytes of a segment that has some, so that it is not freed. Returns false if it has none.
    pub(super) fn keep_live(&self, segment: u64) -> bool {
        let one_more = |live: u32| (live > 0).then(|| live + 1);
        self.live[segment as usize].fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok()
    }

    /// Makes a closed segment one that is being emptied. Returns false if it is not closed.
    pub(super) fn begin_moving(&self, segment: u64) -> bool {
        self.state[segment as usize].compare_exchange(CLOSED, MOVING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Subtracts from the live bytes of a segment. Returns how many there were; `None` if that is fewer than `bytes`.
    pub(super) fn subtract_live(&self, segment: u64, bytes: u64) -> Option<u64> {
        let taken = |live: u32| live.checked_sub(bytes as u32);
        let before = self.live[segment as usize].fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken);
        before.ok().map(u64::from)
    }

    /// Subtracts from the bytes of live chunks of the device.
    pub(super) fn subtract_bytes(&self, bytes: u64) {
        self.live_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes by which the last chunk of a segment had grown.
    pub(super) fn shrink(&self, segment: u64, bytes: u64) {
        self.live[segment as usize].fetch_sub(bytes as u32, Ordering::SeqCst);
        self.subtract_bytes(bytes);
    }

    /// Makes a closed segment without live bytes one without packed chunks. Returns false if it is not closed.
    pub(super) fn give_up_segment(&self, segment: u64) -> bool {
        let freed = |state| matches!(state, CLOSED | STUCK).then_some(NONE);
        let state = &self.state[segment as usize];
        let is_given_up = state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, freed).is_ok();
        if is_given_up {
            self.segments.fetch_sub(1, Ordering::Relaxed);
            self.lists[segment as usize].store(UNLISTED, Ordering::Relaxed);
        }
        is_given_up
    }

    /// Locks and returns the set in which a segment is open; `None` if it is not open.
    pub(super) fn set_of(&self, segment: u64) -> Option<MutexGuard<'_, Set>> {
        let state = &self.state[segment as usize];
        loop {
            let seen = state.load(Ordering::SeqCst);
            let set = self.sets[usize::from(seen.checked_sub(OPEN)?)].lock();
            if state.load(Ordering::SeqCst) == seen {
                return Some(set);
            }
        }
    }
}

/// Iterates over the headers of a segment that were written since it was opened, with their numbers. Damaged ones are
/// left out.
pub(crate) fn headers(region: &Region, segment: u64, opened: u32) -> impl Iterator<Item = (u64, PackedHeader)> {
    let header = move |nth| (nth, region.read::<PackedHeader>(segment * SEGMENT_BYTES + header_offset(nth)));
    (0..HEADERS_MAX).map(header).filter(move |(_, header)| header.is_whole(segment, opened))
}
