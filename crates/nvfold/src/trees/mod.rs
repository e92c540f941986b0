//! Trees: operations on a directory with all that is below it.
//!
//! A tree may have any number of entries, so this work is done in steps, each under one entry of the freeze lock. What is
//! under way is in DRAM; after a crash, recovery finds what has to be freed by one rule. **The rule:** a directory that
//! no name leads to and whose link count is 0 is the top of a tree that is being made or removed. It belongs to such a
//! tree, and so does every directory without a name from which the parents lead up to such a top. Recovery frees them
//! with all that they name.
//!
//! | file | contents |
//! |---|---|
//! | `clone` | copying a tree as it was at one instant |
//! | `instant` | an inode as it was at the instant of a copy |
//! | `births` | making the inodes of a copy, many at a time |
//! | `snapshot` | clones that nothing can change |
//! | `limits` | limits of a tree: setting them, charging what is below, removing what has expired |
//! | `diff` | what differs between two trees |
//! | `remove` | freeing trees that were taken out of the name space |

mod births;
mod clone;
mod diff;
mod instant;
mod limits;
mod remove;
mod snapshot;

pub use clone::{CloneCaller, CloneOptions, CloneProgress, Cloned};
pub use diff::Difference;
pub(crate) use limits::Charging;
pub(crate) use remove::Removal;
pub use snapshot::{Snapshot, SnapshotUsage};

use crate::fs::Core;
use std::ops::Deref;

/// The trees of one mount: its files, and what is under way.
#[derive(Clone, Copy)]
pub(crate) struct Trees<'c> {
    core: &'c Core,
    under_way: &'c TreesState,
}

/// The work on trees that a mount has under way.
#[derive(Default)]
pub(crate) struct TreesState {
    pub(crate) removal: Removal,
    pub(crate) charging: Charging,
}

impl<'c> Trees<'c> {
    pub(crate) fn new(core: &'c Core, under_way: &'c TreesState) -> Trees<'c> {
        Trees { core, under_way }
    }
}

/// What stands below is at hand; what stands above is not.
impl Deref for Trees<'_> {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        self.core
    }
}
