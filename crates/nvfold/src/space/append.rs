//! Appending packed chunks to open segments, growing and dropping them, and freeing segments in which nothing lives.
//! What a segment holds is in [`super::packed`].

use super::Space;
use super::packed::{Open, Pool, Set};
use super::wear::Heat;
use crate::error::Result;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::packed::{HEADER_BYTES, PackedBytes, PackedHeader, header_offset};
use crate::media::segment::KIND_PACKED;
use crate::media::{PackedNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use nvfold_sync::Mutex;
use nvfold_sync::Padded;
use nvfold_sync::atomic::Ordering;
use pmem::Flight;

/// The number of chunks assumed per segment in estimates: chunks of 8 KiB, the mean of content-defined ones. Fixed
/// ones are fewer.
const CHUNKS_PER_SEGMENT: u64 = SEGMENT_BYTES / (8 << 10);
/// Blocks per segment that hold no content: headers and the unusable end take 4 at most, and the logs that reference
/// the chunks take one.
const OVERHEAD_BLOCKS_PER_SEGMENT: u64 = 5;

impl Pool {
    fn heat(self) -> Heat {
        match self {
            Pool::ContentDefined | Pool::Fixed => Heat::Cold,
            Pool::UpdatedContentDefined | Pool::UpdatedFixed => Heat::Hot,
        }
    }
}

impl Space {
    /// Reserves room for the stored bytes of a packed chunk and writes its header. Returns the media address. The
    /// caller writes the bytes; the range stays the chunk's until [`Space::drop_packed`].
    ///
    /// # Errors
    /// `ENOSPC` when no completely free segment is left, and no open one has room.
    pub(crate) fn append(
        &self,
        pool: Pool,
        number: PackedNumber,
        bytes: PackedBytes,
        flight: &mut Flight,
    ) -> Result<u64> {
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
    pub(crate) fn append_moved(
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
    pub(crate) fn packed_overhead_blocks(&self, free_blocks: u64, entries_free: u64) -> u64 {
        let kept = if self.needs_spare_segment() { SEGMENT_BLOCKS.min(free_blocks) } else { 0 };
        let segments = (free_blocks - kept) / SEGMENT_BLOCKS;
        let entries = (segments * CHUNKS_PER_SEGMENT).saturating_sub(entries_free);
        let parts = entries.div_ceil(SEGMENT_BYTES / ENTRY_BYTES).min(segments);
        kept + parts * SEGMENT_BLOCKS + (segments - parts) * OVERHEAD_BLOCKS_PER_SEGMENT
    }

    /// Extends the chunk that was appended last, if it is not compressed, in place from `length` to `longer` bytes.
    /// Returns false if another chunk was appended since, or if the segment is full.
    pub(crate) fn grow_packed(
        &self,
        number: PackedNumber,
        address: u64,
        length: u64,
        longer: u64,
        flight: &mut Flight,
    ) -> bool {
        let (segment, offset) = (address / SEGMENT_BYTES, address % SEGMENT_BYTES);
        let Some(mut set) = self.packed.set_of(segment) else { return false };
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
    pub(crate) fn shrink_packed(&self, address: u64, longer: u64, length: u64) {
        let (segment, offset) = (address / SEGMENT_BYTES, address % SEGMENT_BYTES);
        self.packed.shrink(segment, longer - length);
        if let Some(mut set) = self.packed.set_of(segment) {
            let open = set.iter_mut().flatten().find(|open| open.segment == segment).expect("it is open in this set");
            if open.front == offset + longer {
                open.front = offset + length;
            }
        }
    }

    /// Keeps a closed segment with live bytes from being freed and from being chosen by other threads. Returns false
    /// if it is no longer closed.
    pub(super) fn begin_moving(&self, segment: u64) -> bool {
        if !self.packed.keep_live(segment) {
            return false;
        }
        let begun = self.packed.begin_moving(segment);
        if !begun {
            self.take_live(segment, 1);
        }
        begun
    }

    /// Subtracts the old bytes of a chunk that moved out of a segment that is being emptied.
    pub(crate) fn leave_behind(&self, address: u64, length: u64) {
        if self.take_live(address / SEGMENT_BYTES, length) {
            self.packed.subtract_bytes(length);
        }
    }

    /// Returns the `nth` header of a segment, if it was written since the segment was opened.
    pub(crate) fn header(&self, segment: u64, nth: u64) -> Option<PackedHeader> {
        let header: PackedHeader = self.region.read(segment * SEGMENT_BYTES + header_offset(nth));
        header.is_whole(segment, self.wear_of(segment)).then_some(header)
    }

    /// Drops the bytes of a chunk that is durably unreferenced. They count as live until their place in an open
    /// segment was given back, so that the segment is not freed and reused before that.
    pub(crate) fn drop_packed(&self, address: u64, length: u64) {
        let (segment, offset) = (address / SEGMENT_BYTES, address % SEGMENT_BYTES);
        if let Some(mut set) = self.packed.set_of(segment) {
            let open = set.iter_mut().flatten().find(|open| open.segment == segment).expect("it is open in this set");
            if open.front == offset + length && open.given_back + length <= SEGMENT_BYTES {
                open.front = offset;
                open.headers -= 1;
                open.given_back += length;
            }
        }
        if self.take_live(segment, length) {
            self.packed.subtract_bytes(length);
        }
    }

    /// Returns how many segments have no live bytes and are not free: [`Space::close_empty_packed`] frees them.
    pub(crate) fn empty_packed(&self) -> u64 {
        let is_empty = |open: &&Open| self.packed.live_in(open.segment) == 0;
        let open = |set: &Padded<Mutex<Set>>| set.lock().iter().flatten().filter(is_empty).count() as u64;
        let empty: u64 = self.packed.sets.iter().map(open).sum();
        // If no other segment is left, the spare one has no use.
        empty + u64::from(empty == self.packed.segments() && self.packed.spare.lock().is_some())
    }

    /// Closes and frees open segments without live bytes, and the spare one if no other is left. Returns how many it
    /// freed.
    pub(crate) fn close_empty_packed(&self) -> usize {
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
    pub(crate) fn adopt_packed_segment(&self, segment: u64) {
        self.adopt_table_segment(segment);
        self.packed.adopt_segment(segment);
    }

    /// Frees closed segments without live bytes; for reconcile.
    pub(crate) fn free_empty_packed(&self) {
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
        self.packed.add_open(segment, set, pool);
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
        self.packed.close(open);
        self.take_live(open.segment, 1);
    }

    /// Subtracts from the live bytes of a segment, and frees it if none are left. Returns false if it has fewer live
    /// bytes: a damaged entry points to bytes of other chunks, and dropping it must not affect those.
    pub(super) fn take_live(&self, segment: u64, bytes: u64) -> bool {
        let before = self.packed.subtract_live(segment, bytes);
        if before == Some(bytes) {
            self.free_packed(segment);
        }
        before.is_some()
    }

    /// Frees a closed segment without live bytes. A damaged entry may lead to a segment without packed chunks, which
    /// stays.
    fn free_packed(&self, segment: u64) {
        if self.packed.give_up_segment(segment) && !self.keep_as_spare(segment) {
            self.free_segment(segment);
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
