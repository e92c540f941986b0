//! Requests of a command to the server: work on one file, or on the queue of a mount.
//!
//! The problem: no system call means "share what is stored". An ioctl needs unsafe code here. Setting an attribute
//! needs write permission, which even the owner may lack (git's objects).
//!
//! The idea: a command reads a virtual attribute whose *name* is the request, with its range. The value is the
//! answer, a few numbers in text. The attribute is not listed, and asking for its size alone does nothing. Ranges are
//! small, so that a command can show progress and can be stopped: a longer one is cut to [`RANGE_BYTES_MAX`]. Of the
//! requests that change a file, a user may have a few at once (`turns`); one more gets EAGAIN. The owner of the file
//! and root may ask; only root and the user who mounted the file system may ask what is shared,
//! what only snapshots hold, to drain or to reclaim.
//!
//! ```text
//! user.nvfold.dedup-range.OFFSET.LENGTH     -> bytes looked at, bytes changed
//! user.nvfold.compress-range.CODEC.OFFSET.LENGTH -> bytes looked at, bytes changed
//! user.nvfold.undedup-range.OFFSET.LENGTH   -> bytes looked at, bytes changed
//! user.nvfold.extents.OFFSET                -> a line each: offset, length, address, unwritten (0, 1), references,
//!                                              class, stored bytes
//! user.nvfold.drain                         -> nothing left (0, 1), entries left, bytes left, after WORK_FOR
//! user.nvfold.reclaim                       -> nothing left (0, 1), dead bytes, after WORK_FOR
//! user.nvfold.snapshots                     -> the number of snapshots, bytes that only they hold
//! user.nvfold.remove                        -> the directory is gone, with all below it
//! user.nvfold.write-back                    -> the persistence level, when all that was written before is stored
//! user.nvfold.sync                          -> the persistence level, when all that was written before is durable
//! ```

use nvfold::{Compression, File, FileSystem, MappedExtent, Reshared, Victims};
use std::fmt::{self, Display, Write};
use std::time::{Duration, Instant};

/// The largest number of extents in an answer: these fit into an attribute whatever their numbers are.
pub const EXTENTS_MAX: usize = 550;
/// The largest answer in bytes (XATTR_SIZE_MAX).
pub const ANSWER_MAX: usize = 64 << 10;
const _: () = assert!(EXTENTS_MAX * (5 * 20 + 2 + 6) < ANSWER_MAX);

const DEDUP: &str = "user.nvfold.dedup-range.";
const COMPRESS: &str = "user.nvfold.compress-range.";
const UNDEDUP: &str = "user.nvfold.undedup-range.";
const EXTENTS: &str = "user.nvfold.extents.";

/// The attribute that asks to share a part of the queue.
pub const DRAIN: &str = "user.nvfold.drain";
/// The attribute that asks to free a part of the dead space.
pub const RECLAIM: &str = "user.nvfold.reclaim";
/// The attribute that asks what only snapshots hold, which takes a look at all files.
pub const IN_SNAPSHOTS: &str = "user.nvfold.snapshots";
/// The attribute of a directory that asks to remove it with all that is below. Whoever may do that by `rm -r` may ask.
pub const REMOVE: &str = "user.nvfold.remove";
/// The attribute that asks to store what programs have written, which may be in the kernel's cache. Every user may ask.
pub const WRITE_BACK: &str = "user.nvfold.write-back";
/// The attribute that asks to make durable what programs have written. Every user may ask, as sync(2) allows.
pub const SYNC: &str = "user.nvfold.sync";
/// The longest time that a request to drain or reclaim takes. Its thread answers no other request meanwhile.
const WORK_FOR: Duration = Duration::from_millis(50);

/// The longest range of a request that changes a file. Its thread answers no other request meanwhile.
pub const RANGE_BYTES_MAX: u64 = 4 << 20;
/// What is left in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// True if the queue was seen empty.
    pub is_done: bool,
    /// Entries of the queue.
    pub entries: u64,
    /// Bytes of files that the entries cover.
    pub bytes: u64,
}

/// What is left of the dead space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimLeft {
    /// True if no segment is worth emptying.
    pub is_done: bool,
    /// Dead bytes in packed segments.
    pub dead_bytes: u64,
}

/// One request. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request {
    /// Share blocks with equal blocks.
    Dedup { offset: u64, length: u64 },
    /// Share blocks with equal blocks, and compress packed chunks.
    Compress { compression: Compression, offset: u64, length: u64 },
    /// Give each block its own copy.
    Undedup { offset: u64, length: u64 },
    /// List the extents from an offset on.
    Extents { offset: u64 },
}

impl Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Dedup { offset, length } => write!(f, "{DEDUP}{offset}.{length}"),
            Request::Compress { compression, offset, length } => {
                write!(f, "{COMPRESS}{compression}.{offset}.{length}")
            }
            Request::Undedup { offset, length } => write!(f, "{UNDEDUP}{offset}.{length}"),
            Request::Extents { offset } => write!(f, "{EXTENTS}{offset}"),
        }
    }
}

impl Request {
    /// Parses the name of an attribute; `None` if it is not a request.
    pub fn named(name: &[u8]) -> Option<Request> {
        let name = std::str::from_utf8(name).ok()?;
        let range = |text: &str| {
            let (offset, length) = text.split_once('.')?;
            Some((offset.parse().ok()?, length.parse().ok()?))
        };
        if let Some(text) = name.strip_prefix(DEDUP) {
            return range(text).map(|(offset, length)| Request::Dedup { offset, length });
        }
        if let Some(text) = name.strip_prefix(COMPRESS) {
            let (codec, text) = text.split_once('.')?;
            let compression = Compression::named(codec.as_bytes())?;
            return range(text).map(|(offset, length)| Request::Compress { compression, offset, length });
        }
        if let Some(text) = name.strip_prefix(UNDEDUP) {
            return range(text).map(|(offset, length)| Request::Undedup { offset, length });
        }
        let offset = name.strip_prefix(EXTENTS)?.parse().ok()?;
        Some(Request::Extents { offset })
    }

    /// Returns true if the request may move data. Any other one asks with whom a file shares its bytes, and where they
    /// lie.
    pub(crate) fn is_a_change(self) -> bool {
        !matches!(self, Request::Extents { .. })
    }

    /// Carries out the request, in the server, and returns the answer.
    pub(crate) fn carry_out(self, file: &File) -> nvfold::Result<Vec<u8>> {
        let answer = |done: Reshared| format!("{} {}", done.looked_at_bytes, done.changed_bytes).into_bytes();
        match self {
            Request::Dedup { offset, length } => file.dedup_range(offset, length.min(RANGE_BYTES_MAX)).map(answer),
            Request::Compress { compression, offset, length } => {
                file.compress_range(offset, length.min(RANGE_BYTES_MAX), compression).map(answer)
            }
            Request::Undedup { offset, length } => file.undedup_range(offset, length.min(RANGE_BYTES_MAX)).map(answer),
            Request::Extents { offset } => {
                let mut text = String::new();
                for extent in file.extents(offset, EXTENTS_MAX)? {
                    let MappedExtent { offset, length, address, stored_bytes, unwritten, references, class } = extent;
                    let unwritten = u8::from(unwritten);
                    writeln!(text, "{offset} {length} {address} {unwritten} {references} {class} {stored_bytes}")
                        .expect("a string grows");
                }
                Ok(text.into_bytes())
            }
        }
    }
}

/// Shares a part of the queue, for at most `WORK_FOR`, and returns what is left. The file system is mounted by this
/// process.
pub fn drain_some(fs: &FileSystem) -> nvfold::Result<Left> {
    let started = Instant::now();
    let mut is_done = false;
    while !is_done && started.elapsed() < WORK_FOR {
        is_done = fs.drain_step()?;
    }
    Ok(queued(fs, is_done))
}

/// Returns the length of the queue.
pub fn queued(fs: &FileSystem, is_done: bool) -> Left {
    let denova = fs.stats().denova.unwrap_or_default();
    Left { is_done, entries: denova.queue_entries, bytes: denova.queue_bytes }
}

/// Carries out a drain request, in the server.
pub(crate) fn drain(fs: &FileSystem) -> nvfold::Result<Vec<u8>> {
    let Left { is_done, entries, bytes } = drain_some(fs)?;
    Ok(format!("{} {entries} {bytes}", u8::from(is_done)).into_bytes())
}

/// Frees a part of the dead space, for at most `WORK_FOR`, and returns what is left. At the end it gives free memory back
/// to the host. The file system is mounted by this process.
pub fn reclaim_some(fs: &FileSystem) -> nvfold::Result<ReclaimLeft> {
    let started = Instant::now();
    let mut is_done = false;
    while !is_done && started.elapsed() < WORK_FOR {
        is_done = fs.reclaim_step(Victims::All)?;
    }
    if is_done {
        fs.trim()?;
    }
    Ok(ReclaimLeft { is_done, dead_bytes: fs.stats().reclaim.dead_bytes })
}

/// Carries out a reclaim request, in the server.
pub(crate) fn reclaim(fs: &FileSystem) -> nvfold::Result<Vec<u8>> {
    let ReclaimLeft { is_done, dead_bytes } = reclaim_some(fs)?;
    Ok(format!("{} {dead_bytes}", u8::from(is_done)).into_bytes())
}

/// Returns what only snapshots hold, in the server.
pub(crate) fn in_snapshots(fs: &FileSystem) -> nvfold::Result<Vec<u8>> {
    Ok(format!("{} {}", fs.snapshots()?.len(), fs.only_in_snapshots()?).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_encoding_as_an_attribute_name() {
        let requests = [
            Request::Dedup { offset: 0, length: u64::MAX },
            Request::Undedup { offset: 4096, length: 1 },
            Request::Compress { compression: Compression::Zstd(7), offset: 4096, length: 1 },
            Request::Extents { offset: 1 << 62 },
        ];
        for request in requests {
            assert_eq!(Request::named(request.to_string().as_bytes()), Some(request));
        }
        for name in ["user.nvfold.dedup", "user.nvfold.dedup-range.1", "user.nvfold.extents.-1", "user.x"] {
            assert_eq!(Request::named(name.as_bytes()), None, "{name}");
        }
    }
}
