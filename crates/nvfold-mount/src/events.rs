//! What happens to a mount beside the requests, for the program that mounted.

use std::sync::Arc;

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
