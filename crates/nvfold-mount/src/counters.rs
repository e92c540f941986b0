//! Counts the requests that a mount has answered, by kind, and how long they took. `nvfold top` computes its rates from
//! these counts, and `nvfold metrics` shows them.

use crate::latencies::{Latencies, Latency};
use nvfold_fuse::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The kinds of requests, with their names in the FUSE protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Lookup,
    Forget,
    GetAttr,
    SetAttr,
    ReadLink,
    MkNod,
    MkDir,
    Unlink,
    RmDir,
    SymLink,
    Rename,
    Link,
    Open,
    Create,
    Read,
    Write,
    Flush,
    Release,
    FSync,
    OpenDir,
    ReadDir,
    ReadDirPlus,
    ReleaseDir,
    FSyncDir,
    StatFs,
    SetXattr,
    GetXattr,
    ListXattr,
    RemoveXattr,
    FAllocate,
    LSeek,
    IoCtl,
    CopyFileRange,
    StatX,
}

impl Kind {
    /// Returns its name in the FUSE protocol.
    pub(crate) fn name(self) -> &'static str {
        Kind::NAMES[self as usize]
    }

    const NAMES: [&'static str; 34] = [
        "lookup",
        "forget",
        "getattr",
        "setattr",
        "readlink",
        "mknod",
        "mkdir",
        "unlink",
        "rmdir",
        "symlink",
        "rename",
        "link",
        "open",
        "create",
        "read",
        "write",
        "flush",
        "release",
        "fsync",
        "opendir",
        "readdir",
        "readdirplus",
        "releasedir",
        "fsyncdir",
        "statfs",
        "setxattr",
        "getxattr",
        "listxattr",
        "removexattr",
        "fallocate",
        "lseek",
        "ioctl",
        "copy_file_range",
        "statx",
    ];
}

/// The errors that are counted each by itself; all others together.
const ERRORS: [(Errno, &str); 10] = [
    (Errno::EIO, "EIO"),
    (Errno::ENOSPC, "ENOSPC"),
    (Errno::EDQUOT, "EDQUOT"),
    (Errno::EROFS, "EROFS"),
    (Errno::EACCES, "EACCES"),
    (Errno::EPERM, "EPERM"),
    (Errno::ENOENT, "ENOENT"),
    (Errno::EEXIST, "EEXIST"),
    (Errno::ENODATA, "ENODATA"),
    (Errno::ENOSYS, "ENOSYS"),
];
/// Stands for all other errors.
const OTHER: &str = "other";

/// The counters of a mount.
#[derive(Default)]
pub struct Counters {
    by_ring: AtomicBool,
    by_kind: ByKind,
    latencies: Latencies<{ Kind::NAMES.len() }>,
    errors: [AtomicU64; ERRORS.len() + 1],
    reads: AtomicU64,
    bytes_read: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
    changes: AtomicU64,
}

struct ByKind([AtomicU64; Kind::NAMES.len()]);

impl Default for ByKind {
    fn default() -> ByKind {
        ByKind(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Requests of the kernel since mount. Reads and writes that its page cache answers are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[allow(missing_docs)]
pub struct Requests {
    pub reads: u64,
    pub bytes_read: u64,
    pub writes: u64,
    pub bytes_written: u64,
    /// Names created, changed and removed, and attributes changed.
    pub changes: u64,
}

impl Counters {
    /// Counts a request of this kind; a forget counts once for each inode.
    pub(crate) fn request(&self, kind: Kind) {
        self.by_kind.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the answer to a request of this kind, and the time from its arrival in this process to the answer.
    #[inline]
    pub(crate) fn answered(&self, kind: Kind, time: Duration, error: Option<Errno>) {
        self.latencies.add(kind as usize, time, error.is_some());
        if let Some(error) = error {
            let place = ERRORS.iter().position(|(known, _)| *known == error).unwrap_or(ERRORS.len());
            self.errors[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how long the requests of each kind took, without kinds that did not occur. A forget has no answer.
    pub fn latencies(&self) -> BTreeMap<String, Latency> {
        let all = Kind::NAMES.iter().enumerate().map(|(kind, name)| ((*name).to_owned(), self.latencies.of(kind)));
        all.filter(|(_, latency)| latency.requests() > 0).collect()
    }

    /// Returns how often requests failed, by the name of the error: some errors by name, the rest as `other`. All names are
    /// there, also those of errors that did not occur.
    pub fn errors(&self) -> BTreeMap<String, u64> {
        let names = ERRORS.iter().map(|(_, name)| *name).chain([OTHER]);
        names.zip(&self.errors).map(|(name, count)| (name.to_owned(), count.load(Ordering::Relaxed))).collect()
    }

    /// Records whether requests come by io_uring or by /dev/fuse.
    pub(crate) fn requests_come_by_ring(&self, by_ring: bool) {
        self.by_ring.store(by_ring, Ordering::Relaxed);
    }

    /// Returns the transport of requests: `ring` or `device`.
    pub fn transport(&self) -> &'static str {
        if self.by_ring.load(Ordering::Relaxed) { "ring" } else { "device" }
    }

    /// Returns the number of requests by kind, without kinds that did not occur.
    pub fn by_kind(&self) -> BTreeMap<String, u64> {
        let counts = self.by_kind.0.iter().map(|count| count.load(Ordering::Relaxed));
        let asked = Kind::NAMES.iter().zip(counts).filter(|(_, count)| *count > 0);
        asked.map(|(name, count)| ((*name).to_owned(), count)).collect()
    }

    /// Counts a read of so many bytes.
    pub(crate) fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a write of so many bytes.
    pub(crate) fn write(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a change of names or attributes.
    pub(crate) fn change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the present values.
    pub fn now(&self) -> Requests {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Requests {
            reads: get(&self.reads),
            bytes_read: get(&self.bytes_read),
            writes: get(&self.writes),
            bytes_written: get(&self.bytes_written),
            changes: get(&self.changes),
        }
    }
}
