//! The allocator of blocks: which blocks are free, and giving the memory of free blocks back to the host.
//!
//! The problem: a write wants adjacent blocks, threads must not wait for each other, ENOSPC must be exact, and a
//! device in memory must take no more memory than its data.
//!
//! The idea: one bit per block and one free count per segment, only in DRAM (a clean unmount saves them, recovery
//! rebuilds them). Every core has two cursors, one for data and one for logs, and each walks a different segment.
//! Space is first *reserved* from an exact count ([`free`]) and then searched, so a caller that holds a reservation
//! cannot fail. The last blocks are kept for operations that free space, so a full device can be emptied.
//!
//! ```text
//! segment  0 .. | tables | 512 bits | 512 bits | ...     bit set: block in use
//! free_in  per segment: free blocks       walkers: cursors in it       marked: its entry in the segment table says
//! wear     per segment: its count, and a class                         that blocks of it may be in use
//! ```
//!
//! A segment that is handed over as a whole, to the host or to the inode table, must have no cursor in it. Cursors
//! share a segment only if no other one has free blocks. A cursor marks a segment durably before it takes the first
//! block there. Only `trim` clears the mark, after the segment is free again and the host has its memory back. So an
//! unmarked segment holds nothing, on the media and in the host's memory, even after a crash.
//!
//! | file | contents |
//! |---|---|
//! | `free` | the count of free blocks, and reservations |
//! | `reserve` | reserving free blocks, and backing further segments for that |
//! | `backing` | which free blocks have disk or memory of the host |
//! | `holes` | giving back the memory of free blocks in segments in use |
//! | `packed` | segments of packed chunks, by pools |
//! | `append` | appending packed chunks to open segments, and dropping them |
//! | `reclaim` | which segment of packed chunks is emptied next |
//! | `spare` | the segment that is kept free for reclamation |
//! | `evacuate` | which segments of blocks are emptied to make free segments |
//! | `wear` | which free segment is used next |
//! | `quarantine` | blocks in bad memory |
//!
//! **When space is short**, an operation first drains what is queued for release or for sharing. Then it empties
//! segments of packed chunks, empties segments of blocks, and collects byte ranges, for a bounded number of steps
//! (about 50 ms). The next operation goes on where it stopped; work that gained nothing is not begun again before
//! something was freed. `statfs` promises as many inodes as free blocks can become segments of the inode table, less
//! what their names take in logs.

mod append;
mod backing;
pub(crate) mod evacuate;
pub(crate) mod free;
mod holes;
pub(crate) mod packed;
mod quarantine;
pub(crate) mod reclaim;
mod reserve;
mod spare;
mod wear;

pub use wear::SegmentWear;

use crate::error::{Error, Result};
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::layout::Layout;
use crate::media::segment::{KIND_BLOCKS, KIND_FREE, KIND_INODES, SegmentEntry};
use crate::media::superblock::Geometry;
use crate::media::{BLOCK_BYTES, BlockNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use backing::Backing;
use free::FreeBlocks;
use holes::Round;
use nvfold_sync::Padded;
use nvfold_sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use nvfold_sync::{Mutex, MutexGuard, spin_loop, thread_number, zeroed};
use packed::PackedSpace;
use pmem::Region;
use smallvec::SmallVec;

/// A run of adjacent blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRun {
    /// The first block.
    pub start: BlockNumber,
    /// The number of blocks.
    pub count: u64,
}

impl BlockRun {
    /// Returns the number of the first block after the run.
    pub fn blocks_end(self) -> u64 {
        self.start.0 + self.count
    }

    /// Returns whether a block is in the run.
    pub fn contains(self, block: BlockNumber) -> bool {
        (self.start.0..self.blocks_end()).contains(&block.0)
    }

    /// Iterates over the blocks.
    pub fn blocks(self) -> impl Iterator<Item = BlockNumber> {
        (self.start.0..self.start.0 + self.count).map(BlockNumber)
    }
}

/// A few runs.
pub(crate) type Runs = SmallVec<[BlockRun; 2]>;

/// Adds a run. It is one with the last run if it goes on there.
#[inline]
pub(crate) fn add_run(runs: &mut Runs, run: BlockRun) {
    match runs.last_mut() {
        Some(last) if last.blocks_end() == run.start.0 => last.count += run.count,
        _ => runs.push(run),
    }
}

/// The purpose of an allocation: it selects the cursor, and whether the kept blocks may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// File content.
    Data,
    /// Log pages and xattr values.
    Log,
    /// Log pages of an operation that frees space or that was promised it: may use the kept blocks.
    Promised,
}

/// Blocks kept for [`Purpose::Promised`]: one log page for each of 64 operations at once.
pub(crate) const KEPT_BLOCKS: u64 = 64;
/// Value of `walkers` for a segment that is taken as a whole: no cursor may enter it.
const WHOLE: u8 = u8::MAX;
/// The number of words of used bits per segment.
pub(crate) const WORDS_PER_SEGMENT: usize = (SEGMENT_BLOCKS / 64) as usize;
/// Host memory is populated in windows of this many blocks (256 KiB), instead of by page faults.
const POPULATE_BLOCKS: u64 = 64;

#[derive(Default)]
struct Cursor {
    segment: Option<u64>,
    next: u64,
    populated: u64,
}

#[derive(Default)]
struct Cursors {
    data: Cursor,
    log: Cursor,
}

impl Cursors {
    fn of(&mut self, purpose: Purpose) -> &mut Cursor {
        if purpose == Purpose::Data { &mut self.data } else { &mut self.log }
    }
}

// A segment's part of the chunk table can be punched without touching entries of another segment.
const _: () = assert!((SEGMENT_BLOCKS * ENTRY_BYTES).is_multiple_of(BLOCK_BYTES));

/// Fills a segment with zeros, durably; a hole stays a hole.
pub(crate) fn clear_segment(region: &Region, segment: u64) -> Result<()> {
    if region.is_hole(segment * SEGMENT_BYTES, SEGMENT_BYTES) {
        // Without this, a power failure could bring the old content back.
        return Ok(region.settle_holes()?);
    }
    let zeros = region.stream_zeros(segment * SEGMENT_BYTES, SEGMENT_BYTES);
    let _ = region.fence(zeros);
    Ok(())
}

/// The allocator.
pub(crate) struct Space {
    region: Region,
    geometry: Layout,
    discard: bool,
    used: Box<[AtomicU64]>,
    free_in: Box<[AtomicU16]>,
    /// The number of cursors in each segment, or [`WHOLE`].
    walkers: Box<[AtomicU8]>,
    marked: Box<[AtomicU8]>,
    /// The wear of each segment, as in the segment table. Kept in DRAM because a change of use stores the whole entry
    /// without reading it.
    wear: Box<[AtomicU32]>,
    wear_class: Box<[AtomicU8]>,
    /// Whether free segments are chosen by wear: always, except in benchmarks that measure the gain.
    levels_wear: bool,
    free_blocks: FreeBlocks,
    backing: Backing,
    total_blocks: AtomicU64,
    /// For each core, the segment where its next search begins. They start far apart, because the counters of
    /// neighbouring segments share a cache line. While this lock is held, no cursor enters a segment.
    search_from: Mutex<Vec<u64>>,
    /// The number of pages with bad memory that were already taken out of use.
    quarantined: AtomicU64,
    /// For tests: the number of the upcoming reservation that fails, from 1; 0: none.
    fails_in: AtomicU64,
    cursors: Vec<Padded<Mutex<Cursors>>>,
    /// Segments of packed chunks.
    pub packed: PackedSpace,
    /// For each segment: a digest of its used bits at the last round of [`Space::give_back_step`], and what was given
    /// back.
    noted: Box<[AtomicU32]>,
    round: Mutex<Round>,
    /// For each segment: the number of blocks that could not be moved out of it; see [`evacuate`].
    stayed: Box<[AtomicU16]>,
}

impl Space {
    /// Returns the offsets of the device's tables and of its data.
    #[inline]
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Creates an allocator in which every block outside the tables is free.
    pub(crate) fn new(region: Region, geometry: impl Into<Layout>, cores: usize, discard: bool) -> Space {
        let geometry = geometry.into();
        let (segments, segments_max) = (geometry.segments(), geometry.segments_max());
        let total_blocks = geometry.data_blocks();
        let cores = cores.clamp(1, 64);
        let first_segment = geometry.first_segment() as usize;
        let apart = (segments as usize - first_segment) / cores;
        let backing = Backing::new(&region, segments_max, total_blocks);
        let space = Space {
            region,
            geometry,
            backing,
            discard,
            used: zeroed(segments_max * WORDS_PER_SEGMENT as u64),
            free_in: zeroed(segments_max),
            walkers: zeroed(segments_max),
            marked: zeroed(segments_max),
            wear: zeroed(segments_max),
            wear_class: zeroed(segments_max),
            levels_wear: true,
            free_blocks: FreeBlocks::new(total_blocks, KEPT_BLOCKS, cores),
            total_blocks: AtomicU64::new(total_blocks),
            search_from: Mutex::new((0..cores).map(|core| (first_segment + core * apart) as u64).collect()),
            quarantined: AtomicU64::new(0),
            fails_in: AtomicU64::new(0),
            cursors: (0..cores).map(|_| Padded::default()).collect(),
            packed: PackedSpace::new(segments, segments_max, cores),
            noted: zeroed(segments_max),
            round: Mutex::default(),
            stayed: zeroed(segments_max),
        };
        if space.backing.is_needed() {
            space.free_blocks.take(total_blocks, 0);
        }
        (space.geometry.first_segment()..segments).for_each(|segment| space.add_segment(segment));
        space
    }

    /// Adds a segment in which all blocks are free that may hold data.
    fn add_segment(&self, segment: u64) {
        let blocks = self.geometry.blocks_in_segment(segment);
        self.free_in[segment as usize].store(blocks as u16, Ordering::Relaxed);
        for missing in blocks..SEGMENT_BLOCKS {
            self.set_bit(BlockNumber(segment * SEGMENT_BLOCKS + missing));
        }
    }

    /// Makes use of what was added to the device behind these segments, after the layout was lengthened. No operation is
    /// under way.
    pub(crate) fn lengthen(&self, segments_before: u64) {
        (segments_before..self.geometry.segments()).for_each(|segment| self.add_segment(segment));
        let total = self.geometry.data_blocks();
        let added = total - self.total_blocks.swap(total, Ordering::AcqRel);
        if self.backing.is_needed() {
            self.backing.add_unbacked(added);
            self.look_at_host();
        } else {
            self.free_blocks.give(added);
        }
    }

    /// Returns the number of blocks outside the tables.
    pub(crate) fn total_blocks(&self) -> u64 {
        self.total_blocks.load(Ordering::Acquire)
    }

    /// Returns the number of free blocks, including the kept ones: of those without disk, as many as the host has disk
    /// for.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.free_blocks.count() + self.backable_blocks()
    }

    /// Returns the number of blocks outside the tables that are in use.
    pub(crate) fn used_blocks(&self) -> u64 {
        let total = self.total_blocks();
        total - (self.free_blocks.count() + self.backing.unbacked()).min(total)
    }

    /// Returns whether at least `blocks` blocks are free; cheaper than counting them.
    pub(crate) fn has_free(&self, blocks: u64) -> bool {
        self.free_blocks.is_at_least(blocks) || (self.backing.is_needed() && self.free_blocks() >= blocks)
    }

    /// For tests: makes the `nth` reservation from now on fail, whatever is free; 0: none fails. Returns how many
    /// reservations were left before the previously set failure.
    pub(crate) fn fail_reservation(&self, nth: u64) -> u64 {
        self.fails_in.swap(nth, Ordering::Relaxed)
    }

    /// Returns the DRAM that the allocator takes, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let bytes_per_segment = WORDS_PER_SEGMENT * 8 + 2 + 1 + 1 + 4 + 1 + 4 + 4 + 1 + 1 + 2;
        self.geometry.segments() * bytes_per_segment as u64
    }

    /// Marks a block as used; for recovery. Returns false if it was marked already.
    pub(crate) fn mark_used(&self, block: BlockNumber) -> bool {
        if !self.set_bit(block) {
            return false;
        }
        let segment = block.0 / SEGMENT_BLOCKS;
        self.count_used(segment, || {
            self.free_in[segment as usize].fetch_sub(1, Ordering::Relaxed);
            1
        });
        true
    }

    /// Allocates exactly `count` blocks and appends them to `runs`, in few runs.
    ///
    /// # Errors
    /// `ENOSPC` if fewer blocks are available; nothing is added then.
    pub(crate) fn allocate(&self, doing: &'static str, count: u64, purpose: Purpose, runs: &mut Runs) -> Result<()> {
        self.quarantine_bad_memory();
        self.reserve(doing, count, purpose)?;
        let mut missing = count;
        let mut cursors = self.lock_cursors();
        let cursor = cursors.of(purpose);
        while missing > 0 {
            let run = self.take(cursor, missing, purpose == Purpose::Data);
            missing -= run.count;
            runs.push(run);
        }
        Ok(())
    }

    /// Checks that this many blocks are free for content.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn check_free(&self, doing: &'static str, blocks: u64) -> Result<()> {
        if self.has_free(blocks + KEPT_BLOCKS) { Ok(()) } else { Err(self.no_space(doing, blocks)) }
    }

    /// Allocates one block.
    ///
    /// # Errors
    /// `ENOSPC` if none is available.
    pub(crate) fn allocate_one(&self, doing: &'static str, purpose: Purpose) -> Result<BlockNumber> {
        self.quarantine_bad_memory();
        self.reserve(doing, 1, purpose)?;
        let mut cursors = self.lock_cursors();
        Ok(self.take(cursors.of(purpose), 1, purpose == Purpose::Data).start)
    }

    /// Frees blocks. The references to them must be gone from the media already (invariant 1). A damaged log may
    /// reference a block twice, or a block of the inode table: a free block stays free, and a block of a table stays
    /// in use.
    pub(crate) fn free(&self, run: BlockRun) {
        match self.has_bad_memory() {
            true => self.free_sound(run),
            false => self.free_run(run),
        }
    }

    /// Frees one block, as [`Space::free`] does.
    pub(crate) fn free_one(&self, block: BlockNumber) {
        let segment = block.0 / SEGMENT_BLOCKS;
        if self.has_bad_memory() || self.marked[segment as usize].load(Ordering::Relaxed) == 0 {
            return self.free(BlockRun { start: block, count: 1 });
        }
        self.count_freed(segment, || {
            let was_used = self.clear_bit(block);
            self.free_in[segment as usize].fetch_add(u16::from(was_used), Ordering::Relaxed);
            u64::from(was_used)
        });
    }

    fn free_run(&self, run: BlockRun) {
        let mut start = run.start.0;
        let end = start + run.count;
        while start < end {
            let in_segment = (SEGMENT_BLOCKS - start % SEGMENT_BLOCKS).min(end - start);
            if self.marked[(start / SEGMENT_BLOCKS) as usize].load(Ordering::Relaxed) != 0 {
                self.free_in_one_segment(start, in_segment);
            }
            start += in_segment;
        }
    }

    /// Returns the error of an operation that finds no segment for a table.
    pub(crate) fn no_space_for_segment(&self, doing: &'static str) -> Error {
        self.no_space(doing, SEGMENT_BLOCKS)
    }

    /// Takes a whole free segment for a table, the pm index or packed chunks. Until [`Space::free_segment`] no cursor
    /// enters it, and it is not trimmed.
    ///
    /// # Errors
    /// `ENOSPC` if no segment is completely free.
    pub(crate) fn allocate_segment(&self, doing: &'static str) -> Result<u64> {
        self.allocate_segment_by(doing, |from| self.find_segment(from, WHOLE, |free, _| free == SEGMENT_BLOCKS))
    }

    /// Takes a segment that `find` returns: free, entered as a [`WHOLE`], searched from where the last search ended.
    fn allocate_segment_by(&self, doing: &'static str, find: impl Fn(&mut u64) -> Option<u64>) -> Result<u64> {
        self.quarantine_bad_memory();
        self.reserve(doing, SEGMENT_BLOCKS, Purpose::Log)?;
        let mut attempt = 0;
        loop {
            let mut search_from = self.search_from.lock();
            let found = find(self.own_of(&mut search_from));
            drop(search_from);
            if let Some(segment) = found {
                let words = segment as usize * WORDS_PER_SEGMENT;
                self.used[words..words + WORDS_PER_SEGMENT].iter().for_each(|word| word.store(!0, Ordering::Relaxed));
                self.free_in[segment as usize].store(0, Ordering::Relaxed);
                self.marked[segment as usize].store(0, Ordering::Relaxed);
                return Ok(segment);
            }
            attempt += 1;
            if attempt == 1 {
                self.abandon_empty_cursors();
            } else if !self.back_whole().unwrap_or(false) {
                break;
            }
        }
        self.free_blocks.give(SEGMENT_BLOCKS);
        Err(self.no_space(doing, SEGMENT_BLOCKS))
    }

    /// Frees a segment that a table used or was about to use. Marks it on the media first, because its blocks may be
    /// in use from now on.
    pub(crate) fn free_segment(&self, segment: u64) {
        debug_assert_eq!(self.walkers[segment as usize].load(Ordering::Relaxed), WHOLE, "it was taken as a whole");
        self.write_use(segment, KIND_BLOCKS, 0);
        self.marked[segment as usize].store(1, Ordering::Relaxed);
        self.walkers[segment as usize].store(0, Ordering::Release);
        self.free(BlockRun { start: BlockNumber(segment * SEGMENT_BLOCKS), count: SEGMENT_BLOCKS });
    }

    /// Assigns a segment to the inode table; for the mount.
    pub(crate) fn adopt_table_segment(&self, segment: u64) {
        self.adopt_segment(segment, &[!0; WORDS_PER_SEGMENT]);
        self.marked[segment as usize].store(0, Ordering::Relaxed);
        self.walkers[segment as usize].store(WHOLE, Ordering::Relaxed);
    }

    /// Adds a marked segment with these used blocks; for the mount.
    pub(crate) fn adopt_segment(&self, segment: u64, used: &[u64; WORDS_PER_SEGMENT]) {
        self.marked[segment as usize].store(1, Ordering::Relaxed);
        self.count_used(segment, || {
            let mut taken = 0;
            let first = segment as usize * WORDS_PER_SEGMENT;
            for (word, used) in self.used[first..first + WORDS_PER_SEGMENT].iter().zip(used) {
                taken += (used & !word.fetch_or(*used, Ordering::Relaxed)).count_ones();
            }
            self.free_in[segment as usize].fetch_sub(taken as u16, Ordering::Relaxed);
            u64::from(taken)
        });
    }

    /// Returns which blocks of a segment are in use, one bit each.
    pub(crate) fn used_in(&self, segment: u64) -> [u64; WORDS_PER_SEGMENT] {
        std::array::from_fn(|at| self.used[segment as usize * WORDS_PER_SEGMENT + at].load(Ordering::Relaxed))
    }

    /// Iterates over the marked segments, in order.
    pub(crate) fn marked_segments(&self) -> impl Iterator<Item = u64> + '_ {
        let segments = self.geometry.segments() as usize;
        let marked =
            self.marked[..segments].iter().enumerate().filter(|(_, marked)| marked.load(Ordering::Relaxed) != 0);
        marked.map(|(segment, _)| segment as u64)
    }

    /// Returns free blocks for the saved state of an unmount, the longest runs first: at least `blocks` blocks in at
    /// most `runs_max` runs, or `None`. They stay free, because nothing is allocated any longer.
    pub(crate) fn runs_to_save_in(&self, blocks: u64, runs_max: usize) -> Option<Vec<BlockRun>> {
        self.back_blocks(blocks);
        let mut runs: Vec<BlockRun> = Vec::new();
        for segment in self.geometry.first_segment()..self.geometry.segments() {
            let base = segment * SEGMENT_BLOCKS;
            if self.takeable_in(segment) == 0 {
                continue;
            }
            let mut at = 0;
            while let Some(start) = self.next_free(base, at) {
                let is_free = |block: &u64| !self.is_used(BlockNumber(base + block));
                at = start + (start..SEGMENT_BLOCKS).take_while(is_free).count() as u64;
                runs.push(BlockRun { start: BlockNumber(base + start), count: at - start });
            }
        }
        runs.sort_by_key(|run| std::cmp::Reverse(run.count));
        let mut found = 0;
        let needed = runs.iter().position(|run| {
            found += run.count;
            found >= blocks
        })?;
        runs.truncate(needed + 1);
        (runs.len() <= runs_max).then_some(runs)
    }

    /// Clears the marks of free segments. If `discard` is on, it gives their memory, and that of their part of the
    /// chunk table, back to the host. Returns how many bytes it gave back.
    pub(crate) fn trim(&self) -> Result<u64> {
        self.abandon_empty_cursors();
        let mut bytes = 0;
        for segment in self.geometry.first_segment()..self.geometry.segments() {
            bytes += self.trim_segment(segment)?;
        }
        Ok(bytes)
    }

    /// Trims one segment, unless it belongs to a table: such segments are unmarked, and their owner holds them as a
    /// [`WHOLE`].
    fn trim_segment(&self, segment: u64) -> Result<u64> {
        if self.marked[segment as usize].load(Ordering::Relaxed) == 0 || !self.is_empty(segment) {
            return Ok(0);
        }
        // No cursor may enter while the memory is given back.
        let _search = self.search_from.lock();
        if !self.own(segment, WHOLE) {
            return Ok(0);
        }
        let trimmed = if self.is_empty(segment) { self.trim_whole(segment) } else { Ok(0) };
        // Needed even if the host refused: a segment that no cursor may enter could leave a reservation unserved.
        self.walkers[segment as usize].store(0, Ordering::Release);
        trimmed
    }

    fn is_empty(&self, segment: u64) -> bool {
        let free = u64::from(self.free_in[segment as usize].load(Ordering::Relaxed));
        free > 0 && free == self.geometry.blocks_in_segment(segment)
    }

    /// Trims a segment that the caller holds as a whole.
    fn trim_whole(&self, segment: u64) -> Result<u64> {
        let blocks = self.geometry.blocks_in_segment(segment);
        let discards = self.discard && self.region.can_punch() && self.end_backing(segment);
        if discards {
            self.backing.forget_loose(segment);
            self.punch(segment, blocks)?;
        }
        self.write_use(segment, KIND_FREE, 0);
        self.marked[segment as usize].store(0, Ordering::Relaxed);
        Ok(if discards { blocks * BLOCK_BYTES } else { 0 })
    }

    /// Gives back the memory of a segment's free blocks and of their chunk entries. None of these entries counts: an
    /// entry is emptied durably and leaves the index before its block is freed, and no block gets an entry before a
    /// cursor gave it out. Whole pages of the table belong to one segment; for a shorter last segment, the page in
    /// which it ends is kept.
    fn punch(&self, segment: u64, blocks: u64) -> Result<()> {
        self.region.punch(segment * SEGMENT_BYTES, blocks * BLOCK_BYTES)?;
        let entries = self.geometry.chunk_entry_offset(BlockNumber(segment * SEGMENT_BLOCKS));
        let entries_end = self.geometry.chunk_entry_offset(BlockNumber(segment * SEGMENT_BLOCKS + blocks));
        let (first, last) = (entries.next_multiple_of(BLOCK_BYTES), entries_end / BLOCK_BYTES * BLOCK_BYTES);
        if last > first {
            self.region.punch(first, last - first)?;
        }
        Ok(())
    }

    /// Gives the memory of free blocks in unmarked segments back to the host, if `discard` is on.
    pub(crate) fn discard_run(&self, run: BlockRun) -> Result<()> {
        let is_backed = self.backing.is_needed() && self.is_backed(run.start.0 / SEGMENT_BLOCKS);
        if self.discard && !is_backed {
            self.region.punch(run.start.address(), run.count * BLOCK_BYTES)?;
        }
        Ok(())
    }

    /// Changes the use of a segment, durably, with one store of its entry. Wear and wear class stay. The caller has
    /// the segment as a whole, or is about to enter it as the first.
    pub(crate) fn write_use(&self, segment: u64, kind: u8, ordinal: u32) {
        self.write_entry(segment, |worn| worn.used_for(segment, kind, ordinal));
    }

    /// Does the same for a part of the inode table; so many parts directly before it are absent.
    pub(crate) fn write_table_part(&self, segment: u64, ordinal: u32, absent_before: u16) {
        let part = |worn: SegmentEntry| worn.used_for(segment, KIND_INODES, ordinal).with_absent_before(absent_before);
        self.write_entry(segment, part);
    }

    /// Stores what `change` makes of an entry with the wear and the wear class of a segment.
    fn write_entry(&self, segment: u64, change: impl FnOnce(SegmentEntry) -> SegmentEntry) {
        let wear = self.wear[segment as usize].load(Ordering::Relaxed);
        let wear_class = self.wear_class[segment as usize].load(Ordering::Relaxed);
        let entry = change(SegmentEntry { wear_class, wear, ..SegmentEntry::default() });
        let written = self.region.write(self.geometry.segment_entry_offset(segment), &entry).flush();
        let _ = self.region.fence(written);
    }

    /// Loads the wear and the wear class of a segment, whatever its use; for the mount.
    pub(crate) fn adopt_wear(&self, segment: u64, entry: &SegmentEntry) {
        // Skips segments without wear, so that their counters take no memory.
        if (entry.wear_class, entry.wear) != (0, 0) {
            self.wear[segment as usize].store(entry.wear, Ordering::Relaxed);
            self.wear_class[segment as usize].store(entry.wear_class, Ordering::Relaxed);
        }
    }

    /// Returns the calling thread's element of a list with one element per core.
    fn own_of<'o, T>(&self, of_cores: &'o mut [T]) -> &'o mut T {
        &mut of_cores[thread_number() % self.cursors.len()]
    }

    /// Locks the cursors of this thread's core, or any that are not locked.
    fn lock_cursors(&self) -> MutexGuard<'_, Cursors> {
        let own = thread_number() % self.cursors.len();
        if let Some(cursors) = self.cursors[own].try_lock() {
            return cursors;
        }
        for step in 1..self.cursors.len() {
            if let Some(cursors) = self.cursors[(own + step) % self.cursors.len()].try_lock() {
                return cursors;
            }
        }
        self.cursors[own].lock()
    }

    /// Takes up to `wanted` blocks at the cursor. The caller holds a reservation, so there is at least one.
    fn take(&self, cursor: &mut Cursor, wanted: u64, is_data: bool) -> BlockRun {
        loop {
            if let Some(segment) = cursor.segment {
                // Log pages come and go one by one: one that was freed just now is taken first, because the host holds
                // memory for it. Data is stored side by side.
                let from = if is_data { cursor.next } else { 0 };
                if let Some(run) = self.take_in_segment(segment, from, wanted) {
                    cursor.next = run.start.0 % SEGMENT_BLOCKS + run.count;
                    if is_data {
                        self.populate(segment, cursor);
                    }
                    return run;
                }
                self.leave(segment);
            }
            *cursor = self.choose_segment();
        }
    }

    fn populate(&self, segment: u64, cursor: &mut Cursor) {
        while cursor.populated < cursor.next {
            let window = POPULATE_BLOCKS.min(self.geometry.blocks_in_segment(segment) - cursor.populated);
            self.region.populate(segment * SEGMENT_BYTES + cursor.populated * BLOCK_BYTES, window * BLOCK_BYTES);
            cursor.populated += window;
        }
    }

    /// Chooses a segment and returns a cursor at its start. First choice is an empty marked segment, for which the
    /// host already holds memory; while the host holds too much, then one that is at most half full; then an empty one;
    /// then one that is at most three quarters full; then any that no cursor is in. If there is none, the cursor shares a
    /// segment. Marks the segment.
    fn choose_segment(&self) -> Cursor {
        let mut search_from = self.search_from.lock();
        let from = self.own_of(&mut search_from);
        let chosen = self
            .find_segment(from, 1, |free, marked| free == SEGMENT_BLOCKS && marked)
            .or_else(|| {
                let is_half_free = |free, marked| free >= SEGMENT_BLOCKS / 2 && marked;
                if self.holds_too_much() { self.find_segment(from, 1, is_half_free) } else { None }
            })
            .or_else(|| self.find_whole(from))
            // Another segment, for long runs; without disk for it, what is there will do.
            .or_else(|| self.back_whole().unwrap_or(false).then(|| self.find_whole(from)).flatten())
            .or_else(|| self.find_segment(from, 1, |free, _| free >= SEGMENT_BLOCKS / 4))
            .or_else(|| self.find_segment(from, 1, |free, _| free > 0));
        let segment = match chosen {
            Some(segment) => Some(segment),
            None => {
                // A segment whose last blocks were just taken may still have a count above 0: let that thread go on.
                spin_loop();
                (self.geometry.first_segment()..self.geometry.segments())
                    .find(|segment| self.takeable_in(*segment) > 0 && self.join(*segment))
            }
        };
        let populated = match segment {
            Some(segment) if self.marked[segment as usize].load(Ordering::Relaxed) == 0 => {
                self.write_use(segment, KIND_BLOCKS, 0);
                self.marked[segment as usize].store(1, Ordering::Relaxed);
                0
            }
            _ => SEGMENT_BLOCKS,
        };
        Cursor { segment, next: 0, populated }
    }

    fn find_whole(&self, from: &mut u64) -> Option<u64> {
        self.find_segment(from, 1, |free, _| free == SEGMENT_BLOCKS)
    }

    /// Finds the first segment at or after `from` that no cursor is in and that fits (free blocks, marked); enters
    /// it.
    fn find_segment(&self, from: &mut u64, walkers: u8, fits: impl Fn(u64, bool) -> bool) -> Option<u64> {
        let first = self.geometry.first_segment();
        let segments = self.geometry.segments();
        let order = (*from..segments).chain(first..*from);
        for segment in order {
            let free = self.takeable_in(segment);
            let marked = self.marked[segment as usize].load(Ordering::Relaxed) != 0;
            if fits(free, marked) && self.own(segment, walkers) {
                *from = segment;
                return Some(segment);
            }
        }
        None
    }

    /// Enters a segment that no cursor is in: with one cursor, or as a [`WHOLE`].
    fn own(&self, segment: u64, walkers: u8) -> bool {
        let entered = self.walkers[segment as usize].compare_exchange(0, walkers, Ordering::Acquire, Ordering::Relaxed);
        entered.is_ok()
    }

    /// Adds a cursor to a segment, unless a thread holds it as a [`WHOLE`].
    fn join(&self, segment: u64) -> bool {
        let walkers = &self.walkers[segment as usize];
        let one_more = |walkers: u8| if walkers == WHOLE { None } else { Some(walkers + 1) };
        walkers.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more).is_ok()
    }

    /// Removes a cursor from a segment.
    fn leave(&self, segment: u64) {
        self.walkers[segment as usize].fetch_sub(1, Ordering::Release);
    }

    fn abandon_empty_cursors(&self) {
        for cursors in &self.cursors {
            let mut cursors = cursors.lock();
            let Cursors { data, log } = &mut *cursors;
            for cursor in [data, log] {
                let Some(segment) = cursor.segment else { continue };
                let free = u64::from(self.free_in[segment as usize].load(Ordering::Relaxed));
                if free == self.geometry.blocks_in_segment(segment) {
                    self.leave(segment);
                    *cursor = Cursor::default();
                }
            }
        }
    }

    /// Takes the first free run at or after block `from` of the segment, at most `wanted` blocks long.
    fn take_in_segment(&self, segment: u64, from: u64, wanted: u64) -> Option<BlockRun> {
        let base = segment * SEGMENT_BLOCKS;
        let mut at = from;
        loop {
            at = self.next_free(base, at)?;
            let mut count = 0;
            while count < wanted && at + count < SEGMENT_BLOCKS {
                let room = (64 - (at + count) % 64).min(wanted - count);
                let taken = self.take_in_word(base + at + count, room);
                count += taken;
                if taken < room {
                    break;
                }
            }
            if count > 0 {
                self.free_in[segment as usize].fetch_sub(count as u16, Ordering::Relaxed);
                return Some(BlockRun { start: BlockNumber(base + at), count });
            }
        }
    }

    /// Returns the first clear bit of the segment at or after `from`.
    fn next_free(&self, base: u64, from: u64) -> Option<u64> {
        let mut at = from;
        while at < SEGMENT_BLOCKS {
            let free = !self.used[((base + at) / 64) as usize].load(Ordering::Relaxed) >> (at % 64);
            if free != 0 {
                return Some(at + u64::from(free.trailing_zeros()));
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Sets the clear bits from `block` on, up to `room` bits and within one word; returns how many.
    fn take_in_word(&self, block: u64, room: u64) -> u64 {
        let word = &self.used[(block / 64) as usize];
        let shift = block % 64;
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let free = u64::from((seen >> shift).trailing_zeros()).min(room).min(64 - shift);
            if free == 0 {
                return 0;
            }
            let mask = (!0 >> (64 - free)) << shift;
            match word.compare_exchange_weak(seen, seen | mask, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return free,
                Err(now) => seen = now,
            }
        }
    }

    /// Returns whether a block is in use or may be.
    pub(crate) fn is_used(&self, block: BlockNumber) -> bool {
        self.used[(block.0 / 64) as usize].load(Ordering::Relaxed) & (1 << (block.0 % 64)) != 0
    }

    fn set_bit(&self, block: BlockNumber) -> bool {
        let mask = 1 << (block.0 % 64);
        self.used[(block.0 / 64) as usize].fetch_or(mask, Ordering::Relaxed) & mask == 0
    }

    fn clear_bit(&self, block: BlockNumber) -> bool {
        let mask = 1 << (block.0 % 64);
        self.used[(block.0 / 64) as usize].fetch_and(!mask, Ordering::AcqRel) & mask != 0
    }

    fn free_in_one_segment(&self, start: u64, count: u64) {
        let segment = start / SEGMENT_BLOCKS;
        self.count_freed(segment, || {
            let mut at = start;
            let end = start + count;
            let mut freed = 0;
            while at < end {
                let bits = (64 - at % 64).min(end - at);
                let mask = (!0 >> (64 - bits)) << (at % 64);
                let before = self.used[(at / 64) as usize].fetch_and(!mask, Ordering::AcqRel);
                freed += (before & mask).count_ones();
                at += bits;
            }
            self.free_in[segment as usize].fetch_add(freed as u16, Ordering::Relaxed);
            u64::from(freed)
        });
    }
}
