//! How a file system is mounted.

use crate::events::{Event, Events};
use crate::reports::Reports;
use nvfold::Clock;
use nvfold_fuse::SPIN;
use rustix::mount::MountFlags;
use std::sync::Arc;
use std::time::Duration;

/// Whether the kernel caches pages of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// Without limit if the device is on a disk; a bounded number if the device is memory.
    #[default]
    Auto,
    /// Without limit.
    Full,
    /// Only pages of mapped files: each read, write, open and close is a request.
    None,
}

/// The wanted transport of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WantedTransport {
    /// io_uring if it works, else /dev/fuse.
    #[default]
    Auto,
    /// io_uring.
    Ring,
    /// /dev/fuse.
    Device,
}

/// The options of a mount. The defaults are those for a private mount: its user alone can use it.
#[derive(Clone)]
pub struct Options {
    /// The name of the device in the mount table.
    pub source: String,
    /// The flags of mount(2); NOSUID and NODEV by default. RDONLY is added if the file system is read-only.
    pub flags: MountFlags,
    /// Serve users other than the one who mounts. The kernel checks permissions in any case. Without root,
    /// /etc/fuse.conf must allow it.
    pub allow_other: bool,
    /// Allow idmapped mounts of this one (Linux 6.12).
    pub idmap: bool,
    /// Tell processes when files were made (STATX_BTIME, Linux 6.6). The first look at a file by a program that asks for it
    /// is then a request; those in Rust and in Node always ask.
    pub btime: bool,
    /// The number of threads that answer requests at the start. More are started when all are busy.
    pub threads: usize,
    /// The largest write request, in bytes: 4096 to 1 MiB, a multiple of 4096.
    pub max_write_bytes: u32,
    /// Written data waits in the kernel's page cache, if there is one ([`Cache::None`]).
    pub writeback: bool,
    /// Whether the kernel caches pages of files.
    pub cache: Cache,
    /// How requests come.
    pub transport: WantedTransport,
    /// How long a thread spins for the next request before it sleeps; `None`: not at all. On a single processor none
    /// spins.
    pub spin: Option<Duration>,
    /// The time for UTIME_NOW: the clock with which the file system is mounted (`nvfold::MountOptions::clock`).
    pub clock: Clock,
    /// What processes read as reports; `None`: there are no such attributes, and `nvfold stats` fails on this mount.
    pub reports: Option<Arc<dyn Reports>>,
    /// Called for what happens beside the requests, on a thread that does other work too. It must return soon, and must
    /// not drop the mount.
    pub events: Events,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            source: "nvfold".into(),
            flags: MountFlags::NOSUID | MountFlags::NODEV,
            allow_other: false,
            idmap: false,
            btime: false,
            threads: processors().clamp(2, 16),
            max_write_bytes: nvfold_fuse::DATA_BYTES_MAX as u32,
            writeback: true,
            cache: Cache::default(),
            transport: WantedTransport::default(),
            spin: Some(SPIN),
            clock: Arc::new(pmem::clock::coarse_now_ns),
            reports: None,
            events: Arc::new(|_: Event| {}),
        }
    }
}

impl Options {
    /// Returns whether written data may wait in the kernel's page cache.
    pub(crate) fn has_writeback(&self) -> bool {
        self.writeback && self.cache != Cache::None
    }

    /// Returns how long to spin. On a single core, spinning would keep the client from running.
    pub(crate) fn spins_for(&self) -> Option<Duration> {
        self.spin.filter(|_| processors() > 1)
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}
