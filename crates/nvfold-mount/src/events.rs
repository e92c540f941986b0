//! What happens to a mount beside the requests, for the program that mounted.

use nvfold::{Chosen, InodeNumber, LimitedTree, Method, Policy, Recovery};
use std::sync::Arc;
use std::time::Duration;

/// The room that files have on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes for files, used or not.
    pub bytes: u64,
    /// Bytes that writers can still use.
    pub available_bytes: u64,
    /// Inodes, used or not.
    pub inodes: u64,
    /// Inodes that could still be created.
    pub inodes_free: u64,
}

/// Something that the program that mounted should know. Where requests are concerned, processes have seen errors too.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A part of the device lies in bad memory. Reported once for each part.
    BadMemory {
        /// Offset on the device, in bytes.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// Syncs of the device begin to fail, or succeed again ([`pmem::SyncErrors::is_failing`]).
    Syncs(pmem::SyncErrors),
    /// More inodes than before cannot be read. They give EIO, and what they may name is kept until a repair.
    Unreadable {
        /// How many by now.
        inodes: u64,
    },
    /// The device is lost: truncated, or its host has no memory for it. The mount was detached from the tree, and
    /// every request gives EIO.
    DeviceLost {
        /// What a sync of the device says.
        error: Option<nvfold::Error>,
    },
    /// The time of a limited tree has come: it was removed.
    Expired(nvfold::ExpiredTree),
    /// 90 % of the space for files is in use. Told again after it was below 85 %.
    NearlyFull(Room),
    /// Less than 85 % is in use, after [`Event::NearlyFull`].
    NotNearlyFull(Room),
    /// A request found no space (ENOSPC). Told again after space was freed.
    NoSpace(Room),
    /// Space was freed after [`Event::NoSpace`].
    SpaceAgain(Room),
    /// A request would have exceeded a limit of a tree (EDQUOT). Told again after something of the tree was freed.
    LimitReached {
        /// The tree.
        tree: LimitedTree,
        /// Its path from the root, if it can be found.
        path: Option<Vec<u8>>,
    },
    /// A tree has room again after [`Event::LimitReached`].
    BelowLimit {
        /// The tree.
        tree: LimitedTree,
        /// Its path from the root, if it can be found.
        path: Option<Vec<u8>>,
    },
    /// Data that the kernel had taken from programs could not be stored, for lack of space or because of a limit. The
    /// programs learn of it by fsync or close. Told again after there was room again.
    NotStored {
        /// The file; there may be others.
        inode: InodeNumber,
    },
    /// The mount was made read-only or writable by mount(8).
    Remounted {
        /// What it is now.
        read_only: bool,
    },
    /// Counts and free space are exact again, at a mount that did not find what an unmount saved.
    Recovered {
        /// What it found.
        found: Recovery,
        /// How long it took beside the requests, without what mounting itself took.
        time: Duration,
    },
    /// Policy `auto` has chosen another policy for new data, of the whole device or of a directory.
    PolicySwitched {
        /// The directory; `None`: the whole device.
        directory: Option<InodeNumber>,
        /// The policy before, if it is known.
        from: Option<Policy>,
        /// The policy now, and why.
        chosen: Box<Chosen>,
    },
    /// Policy `nv-dedup` has chosen another method for new data.
    MethodSwitched {
        /// The method before.
        from: Method,
        /// The method now.
        to: Method,
    },
    /// Work in the background has left something out. Only the first time; [`nvfold::FileSystem::skipped`] counts.
    LeftOut {
        /// Why.
        error: String,
    },
    /// A change was refused because of a mistake in nvfold. Only the first time; [`nvfold::FileSystem::refused`] counts.
    Refused {
        /// Why.
        error: String,
    },
    /// Work in the background was ended by a panic. It is not tried again before the next mount; all else goes on.
    Panicked {
        /// The job, the inode and the message.
        what: String,
    },
    /// Counts and free space could not be reconciled after a crash. What the device held before is kept.
    NotReconciled {
        /// Why.
        error: nvfold::Error,
    },
    /// The thread that shares what is queued has ended.
    DaemonEnded {
        /// Why.
        error: nvfold::Error,
    },
}

/// Receives events.
pub(crate) type Events = Arc<dyn Fn(Event) + Send + Sync>;
