//! The FUSE front end: translates requests of the kernel into calls of the library.
//!
//! The problem: each request is a round trip. The idea: all changes of a file system go through its one mount, so the
//! kernel may cache everything it has seen: attributes, names, missing names, symlink targets, listings, pages. A
//! notice reports each change that the kernel did not make itself (`notices`). Opening and closing a file then need
//! no request, since reads and writes only need the inode number; creating a file is one `mknod`.
//!
//! ```text
//! kernel -> answers (counted, measured) -> translation (one row a request)
//!                                            +-> names        making and removing; ACLs that new files inherit
//!                                            +-> removal      removing trees
//!                                            +-> trees        clones of trees
//!                                            +-> snapshots    making, deleting and restoring snapshots
//!                                            +-> places       what keeps snapshots as they are
//!                                            +-> limits       limits of trees
//!                                            +-> growth       a longer device
//!                                            +-> attributes   modes, owners, and privileges that a change takes away
//!                                            +-> xattrs       extended attributes, those that are requests among them
//!                                            +-> listing      directories, piece by piece
//!                                            +-> content      reads, writes, space, clones
//!                                            +-> causality    writes of what was copied from files
//!                                            +-> writeback    what the kernel has not yet handed down
//!                                            +-> unstored     what the kernel took and could not hand down
//!                                            +-> backup       copies of the whole device
//!                                            +-> times        who sets mtime and ctime
//! ```
//!
//! Three tasks that the library leaves to front ends are done here: the lifetimes of nameless files (`lookups`), ACLs
//! (`acl`), and clearing set-user-id bits when the owner or content of a file changes.

mod answers;
mod attributes;
mod backup;
mod causality;
mod content;
mod growth;
mod limits;
mod listing;
mod names;
mod places;
mod removal;
mod snapshots;
mod times;
mod translation;
mod trees;
mod unstored;
mod writeback;
mod xattrs;

use crate::access::Access;
use crate::convert;
use crate::counters::Counters;
use crate::handshake::Agreed;
use crate::hints::Hints;
use crate::lookups::Lookups;
use crate::moves::Moves;
use crate::notices::Notices;
use crate::options::{Cache, Options};
use crate::pages::Pages;
use crate::reports::Reports;
use crate::shortages::Shortages;
use crate::syncs::Syncs;
use crate::turns::Turns;
use backup::Backups;
use listing::Listings;
use nvfold::{Attr, Clock, FileSystem, InodeNumber, errno};
use nvfold_causality::anchors::Anchors;
use nvfold_fuse::protocol::open;
use nvfold_fuse::{Entry, Errno};
use places::SnapshotPlaces;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trees::Clones;
use unstored::FailedWritebacks;

/// How long the kernel may cache names and attributes. Only the mount changes them, so this can be long.
const BELIEVE: Duration = Duration::from_secs(24 * 3600);

/// The result of an operation, with an errno for the kernel.
type Answer<T> = Result<T, Errno>;

/// The front end of one mounted file system; see the module.
pub(crate) struct Front {
    fs: FileSystem,
    clock: Clock,
    lookups: Arc<Lookups>,
    unstored: FailedWritebacks,
    hints: Hints,
    anchors: Anchors,
    reports: Option<Arc<dyn Reports>>,
    counters: Arc<Counters>,
    shortages: Arc<Shortages>,
    access: Access,
    /// The pages that the kernel holds, if their number is bounded.
    pages: Option<Pages>,
    /// True if the kernel caches pages of files that are not mapped.
    keeps_pages: bool,
    /// True if an fsync must do more than the kernel does.
    sync_needed: bool,
    /// True if the kernel opens files without a request.
    no_open: bool,
    /// True if processes are told when files were made.
    tells_birth: bool,
    /// True if written data may wait in the kernel's cache. The kernel then keeps the times of regular files (`times`).
    has_writeback: bool,
    notices: Arc<Notices>,
    listings: Listings,
    syncs: Syncs,
    writebacks: Syncs,
    turns: Turns,
    moves: Moves,
    clones: Clones,
    snapshots: SnapshotPlaces,
    backups: Backups,
}

impl Front {
    /// Makes a front end for `fs`. `agreed`: the result of the handshake.
    pub(crate) fn new(
        fs: FileSystem,
        options: &Options,
        notices: Arc<Notices>,
        (counters, shortages): (Arc<Counters>, Arc<Shortages>),
        access: Access,
        agreed: Agreed,
    ) -> Front {
        let cache = options.cache;
        let is_memory = fs.region().level() != pmem::PersistenceLevel::File;
        let lookups = Arc::new(Lookups::new());
        removal::keep_what_is_known(&fs, &lookups, &notices);
        let snapshots = SnapshotPlaces::of(&fs);
        let has_snapshots = fs.snapshots().is_ok_and(|all| !all.is_empty());
        Front {
            sync_needed: !is_memory,
            fs,
            clock: options.clock.clone(),
            lookups,
            unstored: FailedWritebacks::default(),
            hints: Hints::new(Instant::now()),
            anchors: Anchors::default(),
            reports: options.reports.clone(),
            counters,
            shortages,
            access,
            pages: (cache == Cache::Auto && is_memory).then(Pages::bounded),
            keeps_pages: cache != Cache::None,
            no_open: agreed.no_open && !has_snapshots,
            tells_birth: options.btime,
            has_writeback: agreed.writeback,
            notices,
            listings: Listings::new(),
            syncs: Syncs::default(),
            writebacks: Syncs::default(),
            turns: Turns::default(),
            moves: Moves::default(),
            clones: Clones::new(),
            snapshots,
            backups: Backups::default(),
        }
    }

    /// Records that the kernel has, or is about to have, pages of these bytes. If it then holds too many, it drops
    /// older ones.
    fn pages_come(&self, ino: InodeNumber, offset: u64, length: usize) {
        self.lookups.pages_kept(ino);
        let old = self.pages.as_ref().map(|pages| pages.came(ino, offset, length)).unwrap_or_default();
        for (ino, range) in old {
            self.notices.drop_pages((ino, range));
        }
    }

    /// Records that the kernel no longer knows an inode.
    fn forgotten(&self, ino: InodeNumber) {
        self.unstored.forgotten(ino);
        if let Some(pages) = &self.pages {
            pages.forgotten(ino);
        }
    }

    /// Returns EROFS on a read-only mount, for requests that the kernel lets pass: to it they read an attribute, or ask.
    fn check_not_read_only(&self) -> Answer<()> {
        if self.access.is_read_only() { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Returns the flags with which the kernel opens a file.
    fn open_flags(&self) -> u32 {
        if self.keeps_pages { open::KEEP_CACHE } else { open::DIRECT_IO }
    }

    /// Returns the reply about an inode under a name in `parent`, and counts it as the kernel does.
    fn tell(&self, parent: InodeNumber, attr: &Attr) -> Entry {
        self.lookups.count_lookup(attr.ino, parent);
        entry(attr)
    }

    /// Runs an operation, and repeats it if it finds too little space, on the device or in its limited tree, and a nameless
    /// file is freed meanwhile.
    fn with_room<T>(&self, operation: impl Fn() -> nvfold::Result<T>) -> nvfold::Result<T> {
        loop {
            let freed = self.lookups.freed();
            match operation() {
                Err(error) if lacks_room(&error) && self.lookups.wait_for_a_freed(freed) => {}
                result => return result,
            }
        }
    }
}

/// Returns true if there was too little space, on the device or in a limited tree.
fn lacks_room(error: &nvfold::Error) -> bool {
    [errno::ENOSPC, errno::EDQUOT].contains(&error.errno())
}

/// Returns the reply about an inode.
fn entry(attr: &Attr) -> Entry {
    Entry { attr: convert::attr(attr), generation: convert::generation(attr), valid: BELIEVE }
}
