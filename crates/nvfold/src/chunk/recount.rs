//! Counting references anew while the file system is in use: what reconcile has seen so far.
//!
//! The problem: after a crash a count may be too high and a block may be in use that nobody names, and only all
//! inode logs together tell. Nobody should wait for them to be read.
//!
//! The idea: reconcile walks the inodes in the order of their numbers and counts, beside the chunk table, the
//! extents that touch each block. An operation on an inode that was walked keeps these counts up to date; one on
//! an inode that was not need not. When all were walked, the two tables are held against each other.
//!
//! ```text
//! inodes     | walked: their operations count here too | to be walked |
//! a page     count of each block of a segment, and two bits: its use is not known yet; it is a log page or the like
//! ```
//!
//! A block whose use is not known is never allocated. One that no walked extent names is never offered for
//! sharing: its content may belong to a write that the crash cut off.

use crate::media::{BlockNumber, SEGMENT_BLOCKS};
use crate::space::{BlockRun, WORDS_PER_SEGMENT};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

/// Bit of a count: an extent reserves the block, so its bytes mean nothing.
const UNWRITTEN: u32 = 1 << 31;

struct Page {
    counts: [AtomicU32; SEGMENT_BLOCKS as usize],
    unknown: [AtomicU64; WORDS_PER_SEGMENT],
    metadata: [AtomicU64; WORDS_PER_SEGMENT],
}

/// The counts of one reconcile.
pub struct Recount {
    pages: Box<[OnceLock<Box<Page>>]>,
}

impl Recount {
    /// Nothing counted, everything known.
    pub fn new(segments: u64) -> Recount {
        Recount { pages: (0..segments).map(|_| OnceLock::new()).collect() }
    }

    /// Notes blocks of a segment whose use is not known.
    pub fn set_unknown(&self, segment: u64, blocks: &[u64; WORDS_PER_SEGMENT]) {
        for (word, blocks) in self.page(segment).unknown.iter().zip(blocks) {
            word.store(*blocks, Ordering::Relaxed);
        }
    }

    /// Whether the use of a block is not known yet.
    pub fn is_unknown(&self, block: BlockNumber) -> bool {
        let (word, bit) = place(block);
        let page = self.pages[segment_of(block)].get();
        page.is_some_and(|page| page.unknown[word].load(Ordering::Relaxed) & bit != 0)
    }

    /// The use of a block is known from now on; whether it was not before.
    pub fn know(&self, block: BlockNumber) -> bool {
        let (word, bit) = place(block);
        let page = self.pages[segment_of(block)].get();
        page.is_some_and(|page| page.unknown[word].fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    /// A walked inode keeps its log or an attribute here, so the use is known; false when another one does too.
    pub fn claim_metadata(&self, block: BlockNumber) -> bool {
        let (word, bit) = place(block);
        self.know(block);
        self.page(segment_of(block) as u64).metadata[word].fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// The segment is part of the inode table.
    pub fn claim_segment(&self, segment: u64) {
        self.page(segment).metadata.iter().for_each(|word| word.store(!0, Ordering::Relaxed));
    }

    /// Whether a walked inode keeps its log or an attribute here.
    pub fn is_metadata(&self, block: BlockNumber) -> bool {
        let (word, bit) = place(block);
        let page = self.pages[segment_of(block)].get();
        page.is_some_and(|page| page.metadata[word].load(Ordering::Relaxed) & bit != 0)
    }

    /// An extent of a walked inode touches the block. `unwritten`: it only reserves it.
    pub fn count(&self, block: BlockNumber, unwritten: bool) {
        let count = self.count_of(block);
        if unwritten {
            count.fetch_or(UNWRITTEN, Ordering::Relaxed);
        }
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// A reserved block got its content.
    pub fn written(&self, block: BlockNumber) {
        self.count_of(block).fetch_and(!UNWRITTEN, Ordering::Relaxed);
    }

    /// An extent of a walked inode does not touch the block any more.
    pub fn uncount(&self, block: BlockNumber) {
        let before = self.count_of(block).fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before & !UNWRITTEN > 0, "block {}: more extents let go of it than were counted", block.0);
    }

    /// Blocks are free: known, and named by nobody. Returns how many of them were known before.
    pub fn freed(&self, run: BlockRun) -> u64 {
        let mut known = 0;
        for block in run.blocks() {
            known += u64::from(!self.know(block));
            if let Some(page) = self.pages[segment_of(block)].get() {
                let (word, bit) = place(block);
                page.counts[(block.0 % SEGMENT_BLOCKS) as usize].store(0, Ordering::Relaxed);
                page.metadata[word].fetch_and(!bit, Ordering::Relaxed);
            }
        }
        known
    }

    /// How many extents of walked inodes touch the block, and whether one of them only reserves it.
    pub fn counted(&self, block: BlockNumber) -> (u32, bool) {
        let page = self.pages[segment_of(block)].get();
        let count = page.map_or(0, |page| page.counts[(block.0 % SEGMENT_BLOCKS) as usize].load(Ordering::Relaxed));
        (count & !UNWRITTEN, count & UNWRITTEN != 0)
    }

    /// Whether a walked inode vouches for the content of the block.
    pub fn is_vouched(&self, block: BlockNumber) -> bool {
        let (count, unwritten) = self.counted(block);
        count > 0 && !unwritten
    }

    fn count_of(&self, block: BlockNumber) -> &AtomicU32 {
        let page = self.page(segment_of(block) as u64);
        &page.counts[(block.0 % SEGMENT_BLOCKS) as usize]
    }

    fn page(&self, segment: u64) -> &Page {
        self.pages[segment as usize].get_or_init(|| {
            let counts = [const { AtomicU32::new(0) }; SEGMENT_BLOCKS as usize];
            let bits = || [const { AtomicU64::new(0) }; WORDS_PER_SEGMENT];
            Box::new(Page { counts, unknown: bits(), metadata: bits() })
        })
    }
}

fn segment_of(block: BlockNumber) -> usize {
    (block.0 / SEGMENT_BLOCKS) as usize
}

fn place(block: BlockNumber) -> (usize, u64) {
    ((block.0 % SEGMENT_BLOCKS / 64) as usize, 1 << (block.0 % 64))
}
