//! Names and files: the operations of the file system.
//!
//! Each operation is a method of [`Core`], the state of one mount, which has a [`Store`] below it and `jobs` above.
//! `api` calls these methods; when one needs space or recovery first, `api` waits and retries.
//!
//! | file | contents |
//! |---|---|
//! | `cache` | the inodes that are in DRAM |
//! | `names`, `rename`, `birth`, `free` | inodes and the names that lead to them |
//! | `remove`, `doomed` | removing a tree; its files that are about to be freed |
//! | `link_tree` | the name of a tree that was made without one |
//! | `charge`, `charge_below` | the limited tree that an inode is charged to; charging all below a directory |
//! | `attributes`, `xattr`, `policy`, `owner` | attributes; what they say of new data; changing the owner |
//! | `repair` | what fsck changes |
//! | `read`, `range`, `extents` | reading; size, reserved space, clones; listing extents |
//! | `write` | writing, by three plans |
//! | `streams` | ending streams of pieces |
//! | `usage` | what every stored byte is for |
//! | `growth` | how much more is stored than files map |
//!
//! The lock order is in [`crate::store`].

mod attributes;
mod birth;
mod cache;
mod charge;
mod charge_below;
mod doomed;
mod extents;
mod free;
mod growth;
mod link_tree;
mod names;
mod owner;
mod policy;
mod range;
mod read;
mod remove;
mod rename;
mod repair;
mod streams;
mod usage;
mod write;
mod xattr;

pub(crate) use birth::next_generation;
pub(crate) use names::check_name;
pub(crate) use remove::{Below, TREE_STEP};
pub(crate) use write::{InodeOrigin, Ladder};
pub(crate) use xattr::StoredValue;

use crate::store::Store;
use cache::{Cache, DamagedInodes};
use doomed::Doomed;
use growth::StoreGrowth;
use nvfold_sync::Mutex;
use std::ops::Deref;
use write::OriginTally;

/// The names and files of a mount, over its [`Store`].
pub struct Core {
    store: Store,
    /// Held by operations that involve two directories.
    tree: Mutex<()>,
    pub(crate) cache: Cache,
    pub(crate) damaged: DamagedInodes,
    pub(crate) doomed: Doomed,
    origin_tally: OriginTally,
    growth: StoreGrowth,
}

impl Core {
    pub(crate) fn new(store: Store) -> Core {
        Core {
            store,
            tree: Mutex::new(()),
            cache: Cache::new(),
            damaged: DamagedInodes::default(),
            doomed: Doomed::default(),
            origin_tally: OriginTally::default(),
            growth: StoreGrowth::default(),
        }
    }
}

/// What stands below is at hand; what stands above is not.
impl Deref for Core {
    type Target = Store;

    #[inline]
    fn deref(&self) -> &Store {
        &self.store
    }
}
