//! Labels: one byte per block, which says whether the dram index may find the block.
//!
//! The problem: a block that is not shared has no chunk entry, so the media do not hold its fingerprint, and the
//! thread that frees it cannot remove it from the index. Meanwhile another writer may be about to share it.
//!
//! The idea: the index only suggests a block, and the block's label decides. The label holds seven bits of the
//! fingerprint while the block can be found, and is 0 otherwise. A slot whose block has another label or none is a
//! leftover: searches skip it, and it is dropped when its shard needs room.
//!
//! ```text
//! nothing --put------> label      its content is durable and named (a write is published, a stored block is filled in)
//! label   --take off-> nothing    who drops the only reference, before that; put back if it was not the only one
//! ```
//!
//! **Why a block that is found is never freed meanwhile.** Taking a reference on a found block and taking off its
//! label exclude each other by the lock of the block's entry. If the reference comes first, it is counted before the
//! label is taken off. The thread that drops the other reference reads the count after that: the block stays, and
//! gets its label back. If the label is taken off first, no reference is taken. A new user of the block labels it
//! only after its content is published. Seven bits may match by chance: then the block is compared like any other
//! candidate, and differs.

use crate::media::{BlockNumber, SEGMENT_BLOCKS};
use crate::space::BlockRun;
use nvfold_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use nvfold_sync::zeroed;

/// The number of labels in a word.
const PER_WORD: u64 = 8;
const NOTHING: u8 = 0;

/// The labels of all blocks of a device.
pub(crate) struct Labels {
    words: Box<[AtomicU64]>,
    /// One bit for each segment with a block that has had a label. Other segments are not read, because reading them
    /// would take memory.
    in_use: Box<[AtomicU64]>,
    /// Where owners have domains: the whole fingerprint by which each block may be found, valid while the block has
    /// a label. A leftover slot of an earlier content would fit one label in 128, and lead the earlier owner to it.
    whole: Option<Box<[AtomicU32]>>,
}

/// A label that was taken off a block.
#[must_use = "a block that stays in use gets its label back"]
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenOff(u8);

impl TakenOff {
    /// No label was taken off: the block was not in the index, or is a packed chunk, or the device has a pm index.
    pub(crate) const NOTHING: TakenOff = TakenOff(NOTHING);
}

/// Returns the label for this fingerprint, which is never 0.
fn label_of(weak: u32) -> u8 {
    weak as u8 | 1 << 7
}

/// Returns the word of a block's label, and the label's bit offset in it.
fn place(block: BlockNumber) -> (usize, u64) {
    ((block.0 / PER_WORD) as usize, block.0 % PER_WORD * 8)
}

impl Labels {
    /// Creates labels for this many blocks, all empty.
    pub(crate) fn new(blocks: u64) -> Labels {
        let (words, in_use) = (zeroed(blocks.div_ceil(PER_WORD)), zeroed(blocks.div_ceil(64 * SEGMENT_BLOCKS)));
        Labels { words, in_use, whole: None }
    }

    /// Creates labels that are compared with whole fingerprints.
    pub(crate) fn whole(blocks: u64) -> Labels {
        Labels { whole: Some(zeroed(blocks)), ..Labels::new(blocks) }
    }

    /// Returns how many blocks have a label.
    pub(crate) fn count(&self) -> u64 {
        let segments = self.words.chunks((SEGMENT_BLOCKS / PER_WORD) as usize).zip(0..);
        let words = segments.filter(|(_, segment)| self.is_in_use(*segment)).flat_map(|(words, _)| words);
        let in_word =
            |word: &AtomicU64| word.load(Ordering::Relaxed).to_le_bytes().iter().filter(|l| **l != NOTHING).count();
        words.map(in_word).sum::<usize>() as u64
    }

    /// Returns the DRAM that the labels take, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let segments: u32 = self.in_use.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum();
        let bytes_a_block = if self.whole.is_some() { 1 + size_of::<u32>() as u64 } else { 1 };
        u64::from(segments) * SEGMENT_BLOCKS * bytes_a_block
    }

    #[inline]
    fn is_in_use(&self, segment: u64) -> bool {
        self.in_use[(segment / 64) as usize].load(Ordering::Relaxed) & 1 << (segment % 64) != 0
    }

    /// Returns the label of a block. A damaged index may hold a block that does not exist, which has no label.
    #[inline]
    fn label(&self, block: BlockNumber) -> u8 {
        let (word, shift) = place(block);
        self.words.get(word).map_or(NOTHING, |word| (word.load(Ordering::Acquire) >> shift) as u8)
    }

    /// Returns whether the block can be found.
    #[inline]
    pub(crate) fn has(&self, block: BlockNumber) -> bool {
        self.label(block) != NOTHING
    }

    /// Returns true if no block of the run can be found, nor any other block whose label shares a word with the run.
    #[inline]
    pub(crate) fn has_none(&self, run: BlockRun) -> bool {
        let words = run.start.0 / PER_WORD..run.blocks_end().div_ceil(PER_WORD);
        self.words[words.start as usize..words.end as usize].iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// Returns whether the block may be found by this fingerprint.
    #[inline]
    pub(crate) fn fits(&self, block: BlockNumber, weak: u32) -> bool {
        self.label(block) == label_of(weak) && self.whole_fits(block, weak)
    }

    #[inline]
    fn whole_fits(&self, block: BlockNumber, weak: u32) -> bool {
        self.whole.as_ref().is_none_or(|whole| whole[block.0 as usize].load(Ordering::Acquire) == weak)
    }

    /// Labels a block. The caller has locked an inode that references it, so the block is not freed.
    #[inline]
    pub(crate) fn put(&self, block: BlockNumber, weak: u32) {
        let segment = block.0 / SEGMENT_BLOCKS;
        if !self.is_in_use(segment) {
            self.in_use[(segment / 64) as usize].fetch_or(1 << (segment % 64), Ordering::Relaxed);
        }
        match self.label(block) {
            before if before == label_of(weak) && self.whole_fits(block, weak) => {}
            before => {
                if before != NOTHING {
                    let TakenOff(_) = self.take_off(block);
                }
                if let Some(whole) = &self.whole {
                    whole[block.0 as usize].store(weak, Ordering::Release);
                }
                self.put_back(block, TakenOff(label_of(weak)));
            }
        }
    }

    /// Takes off the label: no search finds the block from now on. The caller is about to drop the block's only
    /// reference and holds the lock of its entry.
    #[inline]
    pub(crate) fn take_off(&self, block: BlockNumber) -> TakenOff {
        let (word, shift) = place(block);
        let before = self.words[word].fetch_and(!(0xff << shift), Ordering::AcqRel);
        TakenOff((before >> shift) as u8)
    }

    /// Takes off the labels of a run of blocks. The caller is about to drop the only reference of each, and holds the
    /// locks of their entries.
    pub(crate) fn take_off_all(&self, run: BlockRun) {
        let words = run.start.0 / PER_WORD..run.blocks_end().div_ceil(PER_WORD);
        for word in words {
            let first = run.start.0.max(word * PER_WORD) - word * PER_WORD;
            let end = run.blocks_end().min((word + 1) * PER_WORD) - word * PER_WORD;
            let of_run = u64::MAX >> (64 - 8 * (end - first)) << (8 * first);
            let labels = &self.words[word as usize];
            if labels.load(Ordering::Acquire) & of_run != 0 {
                labels.fetch_and(!of_run, Ordering::AcqRel);
            }
        }
    }

    /// Puts a label back on a block that stays in use. The caller has held a reference on it all the time.
    #[inline]
    pub(crate) fn put_back(&self, block: BlockNumber, TakenOff(label): TakenOff) {
        if label != NOTHING {
            let (word, shift) = place(block);
            self.words[word].fetch_or(u64::from(label) << shift, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_off_the_labels_of_a_run_keeps_those_of_its_neighbours() {
        let labels = Labels::new(100);
        for (start, count) in [(8, 1), (8, 8), (7, 10), (15, 2), (16, 40), (0, 100), (99, 1)] {
            (0..100).for_each(|block| labels.put(BlockNumber(block), block as u32));
            let run = BlockRun { start: BlockNumber(start), count };
            labels.take_off_all(run);
            let wrong = (0..100).map(BlockNumber).find(|block| labels.has(*block) == run.contains(*block));
            assert_eq!((wrong, labels.count()), (None, 100 - count), "{run:?}");
        }
    }

    #[test]
    fn a_block_is_found_only_by_the_fingerprint_of_its_label() {
        let labels = Labels::new(1000);
        assert_eq!(labels.bytes(), 0);
        let block = BlockNumber(703);
        for weak in [0, 1, 127, 128, 0xabcd_ef80, u32::MAX] {
            labels.put(block, weak);
            labels.put(block, weak);
            assert!(labels.has(block) && labels.fits(block, weak) && !labels.fits(block, weak ^ 2));
            assert_eq!((labels.count(), labels.bytes()), (1, SEGMENT_BLOCKS));
            assert!(!labels.has(BlockNumber(702)) && !labels.has(BlockNumber(704)));
            let off = labels.take_off(block);
            assert!(!labels.has(block) && !labels.fits(block, weak));
            labels.put_back(block, off);
            assert!(labels.fits(block, weak));
            let _gone = labels.take_off(block);
            assert_eq!(labels.count(), 0);
        }
        labels.put_back(block, TakenOff::NOTHING);
        assert!(!labels.has(block) && !labels.fits(BlockNumber(1000), 1), "a block that is not there");
    }
}
