//! From a device to a mounted file system, after a clean unmount or any crash.
//!
//! The problem: what a clean unmount knew must be there at once; after a crash the media holds three kinds of
//! truth - the journal, the inode logs, the directory names - and everything else follows from them, but reading
//! them takes time that grows with the data.
//!
//! The idea: do at mount what no operation can do without, and the rest while the file system is in use.
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
//! An inode's own state is read when it is first used, crash or not. All of it is idempotent: a crash in recovery is
//! recovered by doing it again.
//!
//! | file | what |
//! |---|---|
//! | `mkfs`, `superblock`, `tables`, `index`, `journal` | what a device has before anything is mounted |
//! | `open`, `options` | mounting |
//! | `scan`, [`reconcile`] | what a crash left open, at once and later |
//! | [`saved`] | what a clean unmount leaves |
//! | `convert` | changing the index |

mod convert;
mod index;
mod journal;
mod mkfs;
mod open;
mod options;
pub mod reconcile;
pub mod saved;
mod scan;
mod superblock;
mod tables;

use crate::error::Result;
use crate::fs::Core;
use crate::sync::Mutex;
use reconcile::Reconcile;

pub use convert::convert_index;
pub(crate) use index::index_segments_in;
pub(crate) use journal::{clear_journal, journal_stores, replay_journal};
pub use mkfs::MkfsOptions;
pub(crate) use mkfs::{format, write_root};
pub(crate) use open::{open, open_for_repair};
pub use options::MountOptions;
pub use superblock::read_superblock;
pub(crate) use superblock::require_known_features;
pub(crate) use tables::Tables;

/// A mounted device: its file system, and what a crash left to find out.
pub(crate) struct Mounted {
    pub(crate) core: Core,
    reconcile: Mutex<Reconcile>,
    /// What the mount had to do.
    recovery: Mutex<Recovery>,
    /// fsck mounts it: inodes without a name are kept, for it to decide about.
    for_repair: bool,
    /// Inodes without a name that reconcile has kept.
    nameless: Mutex<Vec<u64>>,
}

impl Mounted {
    fn new(core: Core, for_repair: bool) -> Mounted {
        let (reconcile, recovery, nameless) = (Mutex::new(Reconcile::Done), Mutex::default(), Mutex::default());
        Mounted { core, reconcile, recovery, for_repair, nameless }
    }

    /// Inodes without a name that reconcile has kept.
    pub(crate) fn take_nameless(&self) -> Vec<u64> {
        std::mem::take(&mut self.nameless.lock())
    }

    /// Saves what is known and marks the device clean. Nothing comes in any more.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn leave_clean(&self) -> Result<()> {
        self.core.answer(saved::leave_clean(&self.core))
    }
}

/// What the mount found, and how far it is with the rest (ARCHITECTURE.md, Recovery).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// A clean unmount had saved the DRAM state, and it was loaded. Otherwise the tables were scanned.
    pub loaded: bool,
    /// Chunk entries that the mount looked at.
    pub entries_scanned: u64,
    /// Inode slots that the mount looked at.
    pub inodes_scanned: u64,
    /// Counts and free space are exact: nothing is left to find out.
    pub reconciled: bool,
    /// A block is used for two things, so they never will be; run fsck.
    pub stalled: bool,
    /// Inodes that were found to be damaged so far: they give EIO, and what they may name is kept until fsck has
    /// decided.
    pub unreadable: u64,
    /// Steps of reconcile that are done, for a progress report.
    pub steps_done: u64,
    /// Steps in all.
    pub steps_total: u64,
}
