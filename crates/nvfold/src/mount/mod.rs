//! Mounting: from a device to a mounted file system, after a clean unmount or any crash.
//!
//! The problem: after a clean unmount, the saved state must be usable at once. After a crash, the media holds three
//! sources of truth: the journal, the inode logs and the directory names. Everything else follows from them, but
//! reading them takes time that grows with the data.
//!
//! The idea: do at mount only what operations cannot do without, and the rest while the file system is in use.
//!
//! ```text
//! mount   superblock      which of the two copies is whole
//!         journal         operations over several inodes that had happened are stored again
//!         clean           `saved`: the DRAM state is read back. Done
//!         after a crash   `scan`: inode table (which inodes there are), chunk table (index, counts that may be too
//!                         high), segment table: what lies in a marked segment is in use until the contrary is known
//! later   `reconcile`     every inode is walked: exact counts, blocks and inodes that nobody names are freed
//! ```
//!
//! An inode's own state is read when the inode is first used, crash or not. Every step of recovery is idempotent:
//! after a crash during recovery, the next mount just repeats it.
//!
//! | file | content |
//! |---|---|
//! | `mkfs`, `superblock`, `tables`, `index`, `journal` | the structures of a device that a mount needs first |
//! | `open`, `options` | mounting |
//! | `scan`, [`reconcile`] | recovery after a crash, at once and later |
//! | [`saved`] | the state that a clean unmount saves |
//! | `convert` | changing the index |
//! | `grow` | making the file system longer |

mod convert;
mod grow;
mod index;
mod journal;
mod mkfs;
mod open;
mod options;
pub(crate) mod reconcile;
pub(crate) mod saved;
mod scan;
mod superblock;
mod tables;

use crate::error::Result;
use crate::fs::Core;
use crate::jobs::{Jobs, JobsState};
use crate::trees::{Trees, TreesState};
use nvfold_sync::Mutex;
use reconcile::Reconcile;

pub use convert::convert_index;
pub use grow::{Resized, grow, resize};
pub(crate) use index::index_segments_in;
pub(crate) use journal::{clear_journal, journal_stores, replay_journal};
pub use mkfs::MkfsOptions;
pub(crate) use mkfs::{format, write_root};
pub(crate) use open::{open, open_for_repair};
pub use options::{MountOptions, Share};
pub use superblock::read_superblock;
pub(crate) use superblock::require_known_features;
pub(crate) use tables::Tables;

/// A mounted device: its file system, and the recovery work that is still to do.
pub(crate) struct Mounted {
    pub(crate) core: Core,
    under_way: JobsState,
    trees: TreesState,
    reconcile: Mutex<Reconcile>,
    /// What the mount found and did.
    recovery: Mutex<Recovery>,
    /// True if fsck mounted the device: inodes without a name are kept, so that fsck can decide about them.
    for_repair: bool,
    /// Inodes without a name that reconcile has kept.
    nameless: Mutex<Vec<u64>>,
    /// Held while the device is being made longer.
    growing: Mutex<()>,
}

impl Mounted {
    fn new(core: Core, for_repair: bool) -> Mounted {
        let (reconcile, recovery, nameless) = (Mutex::new(Reconcile::Done), Mutex::default(), Mutex::default());
        Mounted {
            core,
            under_way: JobsState::default(),
            trees: TreesState::default(),
            reconcile,
            recovery,
            for_repair,
            nameless,
            growing: Mutex::new(()),
        }
    }

    /// Returns the work beside the calls.
    #[inline]
    pub(crate) fn jobs(&self) -> Jobs<'_> {
        Jobs::new(&self.core, &self.under_way)
    }

    /// Returns the operations on trees.
    pub(crate) fn trees(&self) -> Trees<'_> {
        Trees::new(&self.core, &self.trees)
    }

    /// Returns the inodes without a name that reconcile has kept, and empties the list.
    pub(crate) fn take_nameless(&self) -> Vec<u64> {
        std::mem::take(&mut self.nameless.lock())
    }

    /// Saves the DRAM state and marks the device clean. No operation may run any longer.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn leave_clean(&self) -> Result<()> {
        self.core.answer(saved::leave_clean(self.jobs()))
    }
}

/// Reports what the mount found, and how far recovery has come (ARCHITECTURE.md, Recovery).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(default))]
pub struct Recovery {
    /// True if the mount loaded the DRAM state that a clean unmount had saved. Otherwise it scanned the tables.
    pub loaded: bool,
    /// Number of chunk entries that the mount scanned.
    pub entries_scanned: u64,
    /// Number of inode slots that the mount scanned.
    pub inodes_scanned: u64,
    /// True if counts and free space are exact: recovery is complete.
    pub reconciled: bool,
    /// True if a block is used for two purposes, so that recovery cannot complete; run fsck.
    pub stalled: bool,
    /// Number of inodes found damaged so far: they give EIO, and blocks that they may reference are kept until fsck
    /// has decided.
    pub unreadable: u64,
    /// Number of completed steps of reconcile, for a progress report.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub steps_done: u64,
    /// Number of all steps of reconcile.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub steps_total: u64,
}

impl Recovery {
    /// Returns the progress of reconcile in percent.
    pub fn percent(&self) -> u64 {
        if self.reconciled { 100 } else { self.steps_done * 100 / self.steps_total.max(1) }
    }
}
