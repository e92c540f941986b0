//! The FUSE front end: translates requests of the kernel into calls of the library, and nothing more.
//!
//! Everything that changes a file system goes through its one mount, so the kernel may cache all it has seen:
//! attributes, names, names that are not there, symlink targets, directory listings, pages; what changes without
//! its doing it is told (`notices`). Opening a file needs no request then (an inode number is all that reads
//! and writes need), nor does closing; creating is one `mknod`.
//!
//! ```text
//! kernel -> translation (one row a request) -+-> names        making and removing; ACLs that new files inherit
//!                                            +-> attributes   modes, owners, and privileges that a change takes away
//!                                            +-> xattrs       extended attributes, those that are requests among them
//!                                            +-> listing      directories, piece by piece
//!                                            +-> content      reads, writes, space, clones
//!                                            +-> causality    writes of what was copied from files
//!                                            +-> unstored     what the kernel took and could not hand down
//! ```
//!
//! What the library leaves to a front end is done here: lifetimes of nameless files (`lookups`), ACLs (`acl`), and
//! taking away set-user-id bits when a file changes hands or content.

mod attributes;
mod causality;
mod content;
mod listing;
mod names;
mod translation;
mod unstored;
mod xattrs;

use crate::counters::Counters;
use crate::mount::access::Access;
use crate::mount::convert;
use crate::mount::handshake::Agreed;
use crate::mount::hints::Hints;
use crate::mount::lookups::Lookups;
use crate::mount::notices::Notice;
use crate::mount::pages::{Cache, Pages};
use listing::Listings;
use nvfold::dedup::icid::anchors::Anchors;
use nvfold::{Attr, Clock, FileSystem, InodeNumber};
use nvfold_fuse::protocol::open;
use nvfold_fuse::{Caller, Entry, Errno};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;
use unstored::Unstored;

/// How long the kernel may believe what it was told: nothing changes behind its back.
const BELIEVE: Duration = Duration::from_secs(24 * 3600);

/// Result of an operation, in the words of the kernel.
type Answer<T> = Result<T, Errno>;

/// The report that a process gets by reading [`REPORT_ATTRIBUTE`](crate::snapshot::REPORT_ATTRIBUTE) of anything in
/// the mount.
pub type Reporter = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

/// One mounted file system. See the module.
pub struct Front {
    fs: FileSystem,
    clock: Clock,
    lookups: Lookups,
    unstored: Unstored,
    hints: Hints,
    anchors: Anchors,
    report: Reporter,
    counters: Arc<Counters>,
    access: Access,
    /// What the kernel holds, where that is bounded.
    pages: Option<Pages>,
    /// Whether the kernel keeps pages of files that are not mapped.
    keeps_pages: bool,
    /// Whether an fsync has anything to do beyond what the kernel does.
    sync_needed: bool,
    /// The kernel opens files without asking.
    no_open: bool,
    notices: Sender<Notice>,
    listings: Listings,
}

impl Front {
    /// Serves `fs`; `cache`: whether the kernel keeps pages, `agreed`: what the handshake came to.
    pub fn new(
        fs: FileSystem,
        clock: Clock,
        report: Reporter,
        notices: Sender<Notice>,
        counters: Arc<Counters>,
        access: Access,
        cache: Cache,
        agreed: Agreed,
    ) -> Front {
        let is_memory = fs.region().level() != pmem::PersistenceLevel::File;
        Front {
            sync_needed: !is_memory,
            fs,
            clock,
            lookups: Lookups::new(),
            unstored: Unstored::default(),
            hints: Hints::default(),
            anchors: Anchors::default(),
            report,
            counters,
            access,
            pages: (cache == Cache::Auto && is_memory).then(Pages::bounded),
            keeps_pages: cache != Cache::None,
            no_open: agreed.no_open,
            notices,
            listings: Listings::new(),
        }
    }

    /// The kernel has, or is about to have, pages of these bytes; where it may hold only so many, it drops older ones.
    fn pages_come(&self, ino: InodeNumber, offset: u64, length: usize) {
        self.lookups.pages_kept(ino);
        let old = self.pages.as_ref().map(|pages| pages.came(ino, offset, length)).unwrap_or_default();
        for (ino, range) in old {
            // Fails when the mount is ending: its pages go with it.
            let _ = self.notices.send(Notice::DropPages(ino, range, None));
        }
    }

    /// The kernel knows nothing of an inode any more.
    fn forgotten(&self, ino: InodeNumber) {
        self.unstored.forgotten(ino);
        if let Some(pages) = &self.pages {
            pages.forgotten(ino);
        }
    }

    /// How the kernel is to treat a file that it opens.
    fn open_flags(&self) -> u32 {
        if self.keeps_pages { open::KEEP_CACHE } else { open::DIRECT_IO }
    }

    /// What the kernel is told of an inode by a name in `parent`; it counts this telling.
    fn tell(&self, parent: InodeNumber, attr: &Attr) -> Entry {
        self.lookups.told(attr.ino, parent);
        entry(attr)
    }

    /// Waits until the kernel has done what a notice about a file asks for; EIO when the mount ends before that.
    fn when_told(&self, who: &Caller, file: InodeNumber, notice: impl FnOnce(Sender<()>) -> Notice) -> Answer<()> {
        let (done, is_done) = mpsc::channel();
        self.notices.send(notice(done)).map_err(|_| Errno::EIO)?;
        who.while_waiting(file.0, || is_done.recv()).map_err(|_| Errno::EIO)
    }

    /// Runs an operation, again if it finds too little space and a file that has lost its name gives some back.
    fn with_room<T>(&self, operation: impl Fn() -> nvfold::Result<T>) -> nvfold::Result<T> {
        loop {
            let freed = self.lookups.freed();
            match operation() {
                Err(nvfold::Error::NoSpace { .. }) if self.lookups.wait_for_a_freed(freed) => {}
                result => return result,
            }
        }
    }
}

/// What the kernel is told of an inode.
fn entry(attr: &Attr) -> Entry {
    Entry { attr: convert::attr(attr), generation: convert::generation(attr), valid: BELIEVE }
}
