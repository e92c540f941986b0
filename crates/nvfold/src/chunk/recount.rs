//! Recounting references while the file system is in use: the counts that reconcile has found so far.
//!
//! The problem: after a crash a count may be too high, and a block may be marked as used although no extent
//! references it. Only all inode logs together tell the true counts, and no operation should wait until they are
//! read.
//!
//! The idea: reconcile walks the inodes in the order of their numbers and counts, apart from the chunk table, the
//! extents that touch each block. An operation on a walked inode keeps these counts up to date; an operation on an
//! inode that is not walked yet need not. After the last inode, reconcile compares the two tables.
//!
//! ```text
//! inodes     | walked: their operations count here too | to be walked |
//! a page     count of each block of a segment, and two bits: its use is not known yet; it is a log page or the like
//! ```
//!
//! A block of unknown use is never allocated. A block that no walked inode references is never offered for sharing:
//! its content may belong to a write that the crash cut off.

use super::Chunks;
use super::entries::{ENTRIES_PER_SEGMENT, PARTS_MAX};
use crate::media::{BlockNumber, ChunkRef, PackedNumber, SEGMENT_BLOCKS};
use crate::space::{BlockRun, WORDS_PER_SEGMENT};
use nvfold_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

/// The bit of a count that says: an extent only reserves the block, so its bytes mean nothing.
const UNWRITTEN: u32 = 1 << 31;

struct Page {
    counts: [AtomicU32; SEGMENT_BLOCKS as usize],
    unknown: [AtomicU64; WORDS_PER_SEGMENT],
    metadata: [AtomicU64; WORDS_PER_SEGMENT],
}

/// The counts of one reconcile.
pub struct Recount {
    pages: Box<[OnceLock<Box<Page>>]>,
    /// Pages for packed chunks, grouped by part of the table of packed entries.
    packed: Box<[OnceLock<PartPages>]>,
}

/// Pages of one part of the table of packed entries.
type PartPages = Box<[OnceLock<Box<Page>>; PAGES_PER_PART]>;
const PAGES_PER_PART: usize = ENTRIES_PER_SEGMENT as usize / SEGMENT_BLOCKS as usize;

impl Recount {
    /// Creates a recount in which nothing is counted and every use is known.
    pub fn new(segments: u64) -> Recount {
        let parts = segments.min(u64::from(PARTS_MAX));
        Recount {
            pages: (0..segments).map(|_| OnceLock::new()).collect(),
            packed: (0..parts).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Marks blocks of a segment whose use is unknown.
    pub fn set_unknown(&self, segment: u64, blocks: &[u64; WORDS_PER_SEGMENT]) {
        for (word, blocks) in self.page_of(BlockNumber(segment * SEGMENT_BLOCKS).into()).unknown.iter().zip(blocks) {
            word.store(*blocks, Ordering::Relaxed);
        }
    }

    /// Marks a packed chunk as one of unknown use.
    pub fn set_unknown_packed(&self, packed: PackedNumber) {
        let (word, bit) = place(packed.into());
        self.page_of(packed.into()).unknown[word].fetch_or(bit, Ordering::Relaxed);
    }

    /// Returns whether the use of a chunk is still unknown.
    pub fn is_unknown(&self, chunk: impl Into<ChunkRef>) -> bool {
        let chunk = chunk.into();
        let (word, bit) = place(chunk);
        let page = self.existing_page(chunk);
        page.is_some_and(|page| page.unknown[word].load(Ordering::Relaxed) & bit != 0)
    }

    /// Returns which of the 64 packed chunks from `first` on are of unknown use, one bit each. `first` is a multiple
    /// of 64.
    pub fn unknown_packed(&self, first: PackedNumber) -> u64 {
        let (word, _) = place(first.into());
        self.existing_page(first.into()).map_or(0, |page| page.unknown[word].load(Ordering::Relaxed))
    }

    /// Marks the use of a chunk as known. Returns whether it was unknown before.
    pub fn mark_known(&self, chunk: impl Into<ChunkRef>) -> bool {
        let chunk = chunk.into();
        let (word, bit) = place(chunk);
        let page = self.existing_page(chunk);
        page.is_some_and(|page| page.unknown[word].fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    /// Marks a chunk that holds the log or an attribute of a walked inode, so its use is known. Returns false if
    /// another inode claimed it before.
    pub fn claim_metadata(&self, chunk: impl Into<ChunkRef>) -> bool {
        let chunk = chunk.into();
        let (word, bit) = place(chunk);
        self.mark_known(chunk);
        self.page_of(chunk).metadata[word].fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Marks a segment that is part of the inode table.
    pub fn claim_segment(&self, segment: u64) {
        self.page_of(BlockNumber(segment * SEGMENT_BLOCKS).into())
            .metadata
            .iter()
            .for_each(|word| word.store(!0, Ordering::Relaxed));
    }

    /// Returns whether a walked inode keeps its log or an attribute here.
    pub fn is_metadata(&self, chunk: impl Into<ChunkRef>) -> bool {
        let chunk = chunk.into();
        let (word, bit) = place(chunk);
        let page = self.existing_page(chunk);
        page.is_some_and(|page| page.metadata[word].load(Ordering::Relaxed) & bit != 0)
    }

    /// Counts an extent of a walked inode that touches the block. `unwritten`: the extent only reserves it.
    pub fn count(&self, chunk: impl Into<ChunkRef>, unwritten: bool) {
        let count = self.count_of(chunk.into());
        if unwritten {
            count.fetch_or(UNWRITTEN, Ordering::Relaxed);
        }
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a reserved block got its content.
    pub fn written(&self, chunk: impl Into<ChunkRef>) {
        let chunk = chunk.into();
        self.count_of(chunk).fetch_and(!UNWRITTEN, Ordering::Relaxed);
    }

    /// Subtracts a reference: an extent of a walked inode no longer touches the block.
    pub fn subtract_reference(&self, chunk: impl Into<ChunkRef>) {
        let chunk = chunk.into();
        let before = self.count_of(chunk).fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before & !UNWRITTEN > 0, "{chunk}: more extents let go of it than were counted");
    }

    /// Does the same for several chunks.
    pub fn uncount_all(&self, chunks: impl Iterator<Item = ChunkRef>) {
        chunks.for_each(|chunk| self.subtract_reference(chunk));
    }

    /// Records that blocks are free: known, and without references. Returns how many of them were known before.
    pub fn freed(&self, run: BlockRun) -> u64 {
        let mut known = 0;
        for block in run.blocks() {
            let chunk = ChunkRef::Block(block);
            known += u64::from(!self.mark_known(chunk));
            if let Some(page) = self.existing_page(chunk) {
                let (word, bit) = place(chunk);
                page.counts[at_in_page(chunk)].store(0, Ordering::Relaxed);
                page.metadata[word].fetch_and(!bit, Ordering::Relaxed);
            }
        }
        known
    }

    /// Returns how many extents of walked inodes touch the chunk, and whether one of them only reserves it.
    pub fn counted(&self, chunk: impl Into<ChunkRef>) -> (u32, bool) {
        let chunk = chunk.into();
        let page = self.existing_page(chunk);
        let count = page.map_or(0, |page| page.counts[at_in_page(chunk)].load(Ordering::Relaxed));
        (count & !UNWRITTEN, count & UNWRITTEN != 0)
    }

    /// Returns true if a walked inode references the chunk, so that its content can be trusted.
    pub fn is_content_confirmed(&self, chunk: impl Into<ChunkRef>) -> bool {
        let chunk = chunk.into();
        let (count, unwritten) = self.counted(chunk);
        count > 0 && !unwritten
    }

    fn count_of(&self, chunk: ChunkRef) -> &AtomicU32 {
        &self.page_of(chunk).counts[at_in_page(chunk)]
    }

    fn existing_page(&self, chunk: ChunkRef) -> Option<&Page> {
        let page = match chunk {
            ChunkRef::Block(block) => &self.pages[(block.0 / SEGMENT_BLOCKS) as usize],
            ChunkRef::Packed(packed) => &self.packed.get(part_of(packed))?.get()?[page_in_part(packed)],
        };
        page.get().map(|page| &**page)
    }

    fn page_of(&self, chunk: ChunkRef) -> &Page {
        let page = match chunk {
            ChunkRef::Block(block) => &self.pages[(block.0 / SEGMENT_BLOCKS) as usize],
            ChunkRef::Packed(packed) => {
                let part =
                    self.packed[part_of(packed)].get_or_init(|| Box::new([const { OnceLock::new() }; PAGES_PER_PART]));
                &part[page_in_part(packed)]
            }
        };
        page.get_or_init(|| {
            let counts = [const { AtomicU32::new(0) }; SEGMENT_BLOCKS as usize];
            let bits = || [const { AtomicU64::new(0) }; WORDS_PER_SEGMENT];
            Box::new(Page { counts, unknown: bits(), metadata: bits() })
        })
    }
}

impl Chunks {
    /// Begins a recount, or ends it with `None`.
    pub fn set_recount(&self, recount: Option<Recount>) {
        let mut current = self.recount.write();
        debug_assert_ne!(
            current.is_some(),
            recount.is_some(),
            "a recount begins while one runs, or ends while none does"
        );
        self.recounting.store(recount.is_some(), Ordering::Release);
        *current = recount;
    }

    /// Returns the result of `of` on the recount; `None` if there is no recount.
    #[inline]
    pub fn with_recount<T>(&self, of: impl FnOnce(&Recount) -> T) -> Option<T> {
        if !self.is_recounting() {
            return None;
        }
        self.recount.read().as_ref().map(of)
    }

    /// Returns whether a recount is in progress.
    #[inline]
    pub(super) fn is_recounting(&self) -> bool {
        self.recounting.load(Ordering::Acquire)
    }

    /// Returns true until the chunk's reference count has been reconciled after a crash.
    #[inline]
    pub(super) fn is_unknown(&self, chunk: ChunkRef) -> bool {
        self.with_recount(|recount| recount.is_unknown(chunk)) == Some(true)
    }

    /// Returns true if the content of a chunk can be trusted. After a crash, a walked inode must have referenced it
    /// first.
    #[inline]
    pub(super) fn is_content_confirmed(&self, chunk: ChunkRef) -> bool {
        let unvouched = |recount: &Recount| recount.is_unknown(chunk) && !recount.is_content_confirmed(chunk);
        self.with_recount(unvouched) != Some(true)
    }
}

fn part_of(PackedNumber(number): PackedNumber) -> usize {
    (number / ENTRIES_PER_SEGMENT) as usize
}

fn page_in_part(PackedNumber(number): PackedNumber) -> usize {
    (number % ENTRIES_PER_SEGMENT) as usize / SEGMENT_BLOCKS as usize
}

fn at_in_page(chunk: ChunkRef) -> usize {
    let number = match chunk {
        ChunkRef::Block(block) => block.0,
        ChunkRef::Packed(packed) => u64::from(packed.0),
    };
    (number % SEGMENT_BLOCKS) as usize
}

fn place(chunk: ChunkRef) -> (usize, u64) {
    (at_in_page(chunk) / 64, 1 << (at_in_page(chunk) % 64))
}
