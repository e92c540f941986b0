//! The number of free blocks, counted exactly and without a cache line that every core writes.
//!
//! The problem: ENOSPC must be exact, so every allocation and every release changes one number. A single counter
//! would move from core to core with every write.
//!
//! The idea: a thread takes blocks from the *share* of its core, and gives blocks back to it. Shares are filled from
//! the *common* count, and spill into it, one batch at a time, but only while the common count has plenty. On a
//! device that is nearly full all cores use the common count, and a thread that finds too few there first collects
//! all shares.
//!
//! ```text
//! free blocks = common + share 0 + share 1 + ...
//!
//! take   from the own share, else from the common count (with a batch for the share, if there is plenty), else gather
//! give   to the own share; what it has beyond two batches goes to the common count
//! gather all shares into the common count, then decide: enough, or ENOSPC
//! ```
//!
//! Blocks move between counts under the lock `moving`, so a thread that gathers finds all blocks that are not taken.

use nvfold_sync::Padded;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use nvfold_sync::{Mutex, thread_number};

/// The most blocks that move to a share at once: 2 MiB.
const BATCH_MAX: u64 = 512;

/// The counts of free blocks; see the module.
pub(crate) struct FreeBlocks {
    common: Padded<AtomicU64>,
    shares: Vec<Padded<AtomicU64>>,
    moving: Mutex<()>,
    batch: u64,
    /// Shares are used while the common count is at least this.
    plenty: u64,
}

impl FreeBlocks {
    /// Creates the counts of a device with `blocks` free blocks, of which `kept` are for operations that free space.
    /// Panics if `cores` is 0.
    pub(crate) fn new(blocks: u64, kept: u64, cores: usize) -> FreeBlocks {
        let cores = cores as u64;
        // All shares together have at most an eighth of the device.
        let batch = (blocks / (16 * cores)).min(BATCH_MAX);
        FreeBlocks {
            common: Padded(AtomicU64::new(blocks)),
            shares: (0..cores).map(|_| Padded::default()).collect(),
            moving: Mutex::new(()),
            batch,
            plenty: kept + blocks / 8,
        }
    }

    /// Returns how many blocks are free; exact if no thread takes or gives blocks meanwhile.
    pub(crate) fn count(&self) -> u64 {
        let shares = self.shares.iter().map(|share| share.load(Ordering::Relaxed));
        self.common.load(Ordering::Relaxed) + shares.sum::<u64>()
    }

    /// Returns whether at least `blocks` blocks are free. While there is plenty, it reads no share.
    pub(crate) fn is_at_least(&self, blocks: u64) -> bool {
        self.common.load(Ordering::Relaxed) >= blocks || self.count() >= blocks
    }

    /// Takes `count` blocks if at least `kept` are left.
    pub(crate) fn take(&self, count: u64, kept: u64) -> bool {
        // Without plenty, shares are only emptied: once they are empty, the common count alone is exact.
        self.has_plenty() && take_from(self.own(), count, 0) || self.take_common(count, kept)
    }

    fn take_common(&self, count: u64, kept: u64) -> bool {
        if self.has_plenty() {
            let _moving = self.moving.lock();
            if take_from(&self.common, count + self.batch, kept) {
                self.own().fetch_add(self.batch, Ordering::Relaxed);
                return true;
            }
        }
        take_from(&self.common, count, kept) || self.gather(count, kept)
    }

    #[cold]
    fn gather(&self, count: u64, kept: u64) -> bool {
        let _moving = self.moving.lock();
        loop {
            for share in self.shares.iter().filter(|share| share.load(Ordering::Relaxed) > 0) {
                self.common.fetch_add(share.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
            if take_from(&self.common, count, kept) {
                return true;
            }
            // Blocks that reached a share meanwhile count too.
            if self.count() < count + kept {
                return false;
            }
        }
    }

    /// Gives `count` blocks back.
    pub(crate) fn give(&self, count: u64) {
        if !self.has_plenty() {
            self.common.fetch_add(count, Ordering::Relaxed);
            return;
        }
        let share = self.own();
        if share.fetch_add(count, Ordering::Relaxed) + count > 2 * self.batch {
            self.spill(share);
        }
    }

    #[cold]
    fn spill(&self, share: &AtomicU64) {
        let _moving = self.moving.lock();
        let keep = |has: u64| (has > self.batch).then_some(self.batch);
        if let Ok(had) = share.fetch_update(Ordering::Relaxed, Ordering::Relaxed, keep) {
            self.common.fetch_add(had - self.batch, Ordering::Relaxed);
        }
    }

    fn has_plenty(&self) -> bool {
        self.common.load(Ordering::Relaxed) >= self.plenty
    }

    fn own(&self) -> &AtomicU64 {
        &self.shares[thread_number() % self.shares.len()]
    }
}

/// Takes `count` blocks from one counter if at least `kept` are left there.
fn take_from(blocks: &AtomicU64, count: u64, kept: u64) -> bool {
    let left = |has: u64| has.checked_sub(count).filter(|left| *left >= kept);
    blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// Runs `work` on threads that have different shares, one after another.
    fn on_other_cores(blocks: &FreeBlocks, work: impl Fn(&FreeBlocks) + Sync) {
        let work = &work;
        (0..8).for_each(|_| std::thread::scope(|scope| drop(scope.spawn(move || work(blocks)))));
    }

    #[test]
    fn every_free_block_can_be_reserved_by_any_core() {
        let blocks = FreeBlocks::new(1 << 20, 64, 8);
        on_other_cores(&blocks, |blocks| assert!(blocks.take(1, 64)));
        assert_eq!(blocks.count(), (1 << 20) - 8);
        assert!(blocks.shares.iter().any(|share| share.load(Ordering::Relaxed) > 0), "nobody has a share");
        assert!(blocks.is_at_least((1 << 20) - 8) && !blocks.is_at_least((1 << 20) - 7));
        assert!(!blocks.take((1 << 20) - 8 - 63, 64), "the kept ones are kept");
        assert!(blocks.take((1 << 20) - 8 - 64, 64));
        assert!(!blocks.take(1, 64) && blocks.take(64, 0) && !blocks.take(1, 0));
        on_other_cores(&blocks, |blocks| blocks.give(1));
        assert!(blocks.take(8, 0) && !blocks.take(1, 0));
    }

    #[test]
    fn a_core_takes_free_blocks_from_the_common_count_in_batches() {
        let blocks = FreeBlocks::new(1 << 20, 64, 2);
        let common = || blocks.common.load(Ordering::Relaxed);
        assert!(blocks.take(1, 64));
        let filled = common();
        for _ in 0..BATCH_MAX {
            assert!(blocks.take(1, 64));
        }
        assert_eq!(common(), filled);
        assert!(blocks.take(1, 64));
        assert_eq!(common(), filled - BATCH_MAX - 1);
        blocks.give(1 << 10);
        assert!(blocks.own().load(Ordering::Relaxed) == BATCH_MAX && blocks.count() == (1 << 20) - BATCH_MAX + 1022);
    }
}
