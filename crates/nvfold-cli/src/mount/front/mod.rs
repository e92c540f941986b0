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

use crate::counters::{Counters, Kind};
use crate::mount::access::Access;
use crate::mount::convert;
use crate::mount::hints::Hints;
use crate::mount::lookups::Lookups;
use crate::mount::notices::Notice;
use crate::mount::pages::{Cache, Pages};
use crate::mount::turns::{Turn, Turns};
use fuser::{Errno, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, Request};
use listing::Listings;
use nvfold::dedup::icid::anchors::Anchors;
use nvfold::{Attr, Clock, FileSystem, InodeNumber};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use unstored::Unstored;

/// Requests the kernel may have under way in the background (read ahead, write back).
const BACKGROUND: u16 = 64;

/// What the kernel is asked for. Each is used where the kernel has it. Listings come with attributes always, not when the
/// kernel thinks that they are wanted: most programs that list a directory look at what is in it, and each file that they
/// look at would be a round trip (FUSE_READDIRPLUS_AUTO).
const WANTED: [InitFlags; 12] = [
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_SPLICE_READ,
    InitFlags::FUSE_SPLICE_WRITE,
    InitFlags::FUSE_SPLICE_MOVE,
];

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
    turns: Arc<Turns>,
    access: Access,
    max_write_bytes: u32,
    /// Whether the kernel keeps what is written and hands it down later.
    writeback: bool,
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
    /// Serves `fs`; `max_write_bytes` is the largest write request asked for, `writeback` whether what is written may
    /// wait in the kernel, `cache` whether it keeps pages.
    pub fn new(
        fs: FileSystem,
        clock: Clock,
        report: Reporter,
        notices: Sender<Notice>,
        counters: Arc<Counters>,
        turns: Arc<Turns>,
        access: Access,
        max_write_bytes: u32,
        writeback: bool,
        cache: Cache,
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
            turns,
            access,
            max_write_bytes,
            writeback,
            pages: (cache == Cache::Auto && is_memory).then(Pages::bounded),
            keeps_pages: cache != Cache::None,
            no_open: false,
            notices,
            listings: Listings::new(),
        }
    }

    /// Agrees with the kernel on what each side can do.
    fn agree(&mut self, config: &mut KernelConfig) {
        for flag in WANTED {
            let _ = config.add_capabilities(flag);
        }
        self.writeback = self.writeback && config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).is_ok();
        if self.keeps_pages {
            self.no_open = config.add_capabilities(InitFlags::FUSE_NO_OPEN_SUPPORT).is_ok();
        } else {
            // An older kernel maps files without their own pages for reading alone.
            let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        }
        let _ = config.set_max_write(self.max_write_bytes);
        // More than the kernel offers is refused with what it offers.
        if let Err(most) = config.set_max_readahead(self.max_write_bytes) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(BACKGROUND);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
    }

    /// The kernel has, or is about to have, pages of these bytes; where it may hold only so many, it drops older ones.
    fn pages_come(&self, ino: InodeNumber, offset: u64, length: usize) {
        self.lookups.pages_kept(ino);
        let old = self.pages.as_ref().map(|pages| pages.came(ino, offset, length)).unwrap_or_default();
        for (ino, (offset, length)) in old {
            let range = (offset as i64, length as i64);
            // Fails when the mount is ending: its pages go with it.
            let _ = self.notices.send(Notice::DropPagesThen(INodeNo(ino.0), range, Box::new(|| ())));
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
    fn open_flags(&self) -> FopenFlags {
        if self.keeps_pages { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::FOPEN_DIRECT_IO }
    }

    /// Counts a request. To be held until it is answered: then this thread waits for the next one.
    fn turn(&self, who: &Request, kind: Kind) -> Turn<'_> {
        self.turn_of(who, kind, false)
    }

    /// As `turn`; `takes_long`: other requests should not wait for this one.
    fn turn_of(&self, who: &Request, kind: Kind, takes_long: bool) -> Turn<'_> {
        self.counters.request(kind);
        self.turns.begin(who.unique().0, takes_long)
    }

    /// What the kernel is told of an inode by a name in `parent`; it counts this telling.
    fn tell(&self, parent: InodeNumber, attr: &Attr) -> (fuser::FileAttr, Generation) {
        self.lookups.told(attr.ino, parent);
        (convert::attr(attr), convert::generation(attr))
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
