//! Steps of sharing, cutting and unsharing on request: each holds the lock of its inode for a bounded part of it.

use crate::words::Reshared;

/// Blocks that are hashed, compared or copied under one lock of the inode.
pub(super) const STEP_BLOCKS: usize = 64;

/// The result of a step: what it did, and where to continue.
pub(crate) struct ReshareStep {
    /// The file offset to continue at.
    pub(crate) next: u64,
    pub(crate) done: Reshared,
}
