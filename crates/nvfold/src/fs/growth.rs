//! Growth: how much more is stored than files map, because of blocks that are kept for a few of their bytes.
//!
//! The problem: a file that shares a run of a block with the file that it was copied from keeps all of the block. Once the
//! other file is gone, the rest is dead. A program that copies and deletes much, as the compaction of an LSM tree does,
//! would store more under a policy that shares with origins than under `off`.
//!
//! The idea: what is stored and what files map are counted anyway, so growth is known at any time. Two limits keep it
//! small:
//!
//! ```text
//! growth beyond
//! mapped / 32    of a run that was copied, only whole blocks are shared. Blocks of which a part is dead become free while the
//!                program goes on, because the files that use the rest of them are replaced too, or at rest by a collection
//! mapped / 8     a collection begins, although operations run (jobs::collect)
//! ```
//!
//! With a given [`origin_bytes_min`](crate::MountOptions::origin_bytes_min) there are no limits, as in the paper.
//!
//! The ends of files have padding, which no collection takes back, and which `off` stores as well. So growth is at most
//! what may have died since the last collection, and begins at what that one has left.

use super::Core;
use nvfold_sync::atomic::{AtomicU64, Ordering};

/// Growth below these values counts as none, bytes.
const LIMITED_FROM: u64 = 4 << 20;
const COLLECTED_FROM: u64 = 8 << 20;

/// The bytes beyond those that files map which the last collection has left.
#[derive(Default)]
pub(super) struct StoreGrowth {
    left: AtomicU64,
}

impl Core {
    /// True if so much has grown that a collection is worth it although operations run.
    pub(crate) fn has_grown_much(&self) -> bool {
        self.grown_bytes() > (self.mapped_bytes.get() / 8).max(COLLECTED_FROM)
    }

    /// True if so much has grown that no parts of blocks are to be shared for now.
    pub(super) fn has_grown(&self) -> bool {
        self.grown_bytes() > (self.mapped_bytes.get() / 32).max(LIMITED_FROM)
    }

    /// Growth begins anew after a collection.
    pub(crate) fn end_collection(&self) {
        self.growth.left.store(self.bytes_beyond_mapped(), Ordering::Relaxed);
        self.may_be_dead.end_collection();
    }

    fn grown_bytes(&self) -> u64 {
        if self.is_reconciling() || self.policies.origin_bytes_min.is_given() {
            // While recovery counts, the totals are not complete.
            return 0;
        }
        let (beyond, left) = (self.bytes_beyond_mapped(), self.growth.left.load(Ordering::Relaxed));
        if beyond < left {
            self.growth.left.store(beyond, Ordering::Relaxed);
        }
        beyond.saturating_sub(left).min(self.may_be_dead.bytes_in_all())
    }

    fn bytes_beyond_mapped(&self) -> u64 {
        self.stored_bytes_total().saturating_sub(self.mapped_bytes.get())
    }
}
