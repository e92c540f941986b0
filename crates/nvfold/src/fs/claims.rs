//! What an operation has taken and nobody can reach yet.
//!
//! The problem: an operation allocates blocks and takes references before it knows whether it succeeds, and whatever is
//! forgotten on one of its ways out is lost until the next crash.
//!
//! The idea: all of it goes into [`Claims`], which alone turn a reference into the block that an extent may name. Dropped
//! before [`Claims::published`], they give everything back.

use super::Core;
use crate::chunk::Unshareable;
use crate::chunk::recount::Recount;
use crate::chunk::reference::{Hold, Reference};
use crate::chunk::transaction::Transaction;
use crate::dedup::Dedup;
use crate::error::{Error, Result, errno};
use crate::fingerprint::Fingerprint;
use crate::media::BlockNumber;
use crate::media::log_entry::dedupe;
use crate::space::{BlockRun, Runs};
use pmem::Flight;
use smallvec::SmallVec;

/// See the module.
pub(super) struct Claims<'a> {
    core: &'a Core,
    /// Decides on new data.
    pub(super) policy: &'a dyn Dedup,
    /// Reserved blocks of the file that now get their content.
    pub(super) reserved: SmallVec<[BlockNumber; 1]>,
    /// New blocks.
    pub(super) fresh: Runs,
    shared: SmallVec<[BlockNumber; 1]>,
    held: SmallVec<[Hold; 1]>,
    /// Blocks with new chunk entries: block, count, fingerprint.
    entered: SmallVec<[(BlockNumber, u32, Fingerprint); 1]>,
    /// The dedup transaction, with everything that was flushed meanwhile.
    pub(super) tx: Transaction<'a>,
    /// Whether something was stored without a fingerprint.
    pub(super) lacks_fingerprints: bool,
    /// Dedupe-flag of the log entries that publish it.
    pub(super) dedupe: u8,
}

/// New blocks, with their fingerprints, that another writer may have stored and published at the same time.
pub(super) type Concurrent = SmallVec<[(BlockNumber, Fingerprint); 0]>;

pub(super) fn runs_of(blocks: &[BlockNumber]) -> Runs {
    blocks.iter().map(|start| BlockRun { start: *start, count: 1 }).collect()
}

impl<'a> Claims<'a> {
    /// Of an operation that stores no data of its own.
    pub(super) fn new(core: &'a Core) -> Claims<'a> {
        Claims::with_policy(core, core.policies.of(None))
    }

    #[inline]
    pub(super) fn with_policy(core: &'a Core, policy: &'a dyn Dedup) -> Claims<'a> {
        Claims::all(core, policy, core.chunks.begin())
    }

    /// Of an operation that has begun its transaction already.
    pub(super) fn with_transaction(core: &'a Core, tx: Transaction<'a>) -> Claims<'a> {
        Claims::all(core, core.policies.of(None), tx)
    }

    #[inline]
    fn all(core: &'a Core, policy: &'a dyn Dedup, tx: Transaction<'a>) -> Claims<'a> {
        Claims {
            core,
            policy,
            reserved: SmallVec::new(),
            fresh: Runs::new(),
            shared: SmallVec::new(),
            held: SmallVec::new(),
            entered: SmallVec::new(),
            tx,
            lacks_fingerprints: false,
            dedupe: dedupe::NONE,
        }
    }

    /// Takes a reference over; the block that an extent may name for it.
    #[inline]
    pub(super) fn keep(&mut self, reference: Reference) -> BlockNumber {
        let block = reference.take();
        self.shared.push(block);
        block
    }

    /// Takes a hold over; the block that an extent may name for it.
    pub(super) fn keep_held(&mut self, hold: Hold) -> BlockNumber {
        let block = hold.block();
        self.held.push(hold);
        block
    }

    /// Takes one more reference on a block that an inode names which is locked.
    pub(super) fn share(&mut self, block: BlockNumber) -> Result<()> {
        let refused = |refused| match refused {
            Unshareable::Saturated => Error::Posix {
                doing: "share a block",
                why: "it has as many references as can be counted",
                errno: errno::EMLINK,
            },
            Unshareable::Bad(error) => Error::Device(error),
        };
        let reference = self.tx.share(block).map_err(refused)?;
        self.keep(reference);
        Ok(())
    }

    pub(super) fn share_run(&mut self, run: BlockRun) -> Result<()> {
        run.blocks().try_for_each(|block| self.share(block))
    }

    /// Writes the chunk entry of a new block.
    pub(super) fn enter(&mut self, block: BlockNumber, count: u32, fingerprint: &Fingerprint) {
        self.tx.add(block, count, fingerprint);
        self.entered.push((block, count, *fingerprint));
    }

    /// Whether nothing is stored anew.
    pub(super) fn stores_nothing(&self) -> bool {
        self.fresh.is_empty()
    }

    /// The log names what was held, durably: it is counted now.
    pub(super) fn count_holds(&mut self, flight: &mut Flight) {
        for hold in self.held.drain(..) {
            self.core.chunks.count_hold(hold, flight);
        }
    }

    /// Everything is reachable: others may find the new blocks, and `old` lost the references it had. Returns the new
    /// blocks that another writer may have stored first.
    pub(super) fn published(&mut self, ino: u64, old: &[BlockRun]) -> Concurrent {
        debug_assert!(self.held.is_empty(), "what was held is counted before");
        let core = self.core;
        if core.is_walked(ino) {
            core.chunks.with_recount(|recount| self.recount(recount, old));
        }
        let policy = self.policy;
        let entered = self.entered.iter().map(|(block, _, fingerprint)| (*block, *fingerprint));
        let known = self.tx.given_back();
        let is_second = |(block, of): &(BlockNumber, Fingerprint)| !policy.published(*block, of, known, &core.chunks);
        let concurrent = entered.filter(is_second).collect();
        let fresh: u64 = self.fresh.iter().map(|run| run.count).sum();
        self.reserved.sort_unstable();
        core.release(old, &self.reserved, fresh);
        self.entered.clear();
        self.shared.clear();
        self.fresh.clear();
        concurrent
    }

    /// The extents of a walked inode name what was claimed, and no longer `old`.
    fn recount(&self, recount: &Recount, old: &[BlockRun]) {
        let fresh = self.fresh.iter().flat_map(|run| run.blocks());
        fresh.chain(self.shared.iter().copied()).for_each(|block| recount.count(block, false));
        for block in &self.reserved {
            recount.count(*block, false);
            recount.written(*block);
        }
        for (block, count, _) in &self.entered {
            (1..*count).for_each(|_| recount.count(*block, false));
        }
        old.iter().flat_map(|run| run.blocks()).for_each(|block| recount.uncount(block));
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        if !self.tx.given_back().is_empty() {
            self.core.release(&runs_of(self.tx.given_back()), &[], 0);
        }
        if !self.held.is_empty() {
            self.core.give_back(self.held.drain(..));
        }
        if self.shared.is_empty() && self.entered.is_empty() && self.fresh.is_empty() {
            return;
        }
        // Not published. What was shared may have lost all its other references meanwhile.
        self.core.release(&runs_of(&self.shared), &[], 0);
        let mut flight = Flight::new();
        for (block, count, _) in &self.entered {
            for _ in 0..*count {
                self.core.chunks.release(*block, &mut flight);
            }
        }
        let _ = self.core.region.fence(flight);
        self.fresh.iter().for_each(|run| self.core.free(*run));
    }
}
