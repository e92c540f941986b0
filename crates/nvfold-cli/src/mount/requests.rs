//! What a command asks the process that serves a mount to do with one file, or with what is queued.
//!
//! The problem: there is no call for "share what is stored". An ioctl needs unsafe code here, and setting an
//! attribute needs permission to write, which the owner of a file may not have given himself (git's objects).
//!
//! The idea: reading a virtual attribute whose *name* is the request, with its range. The answer, a few numbers in
//! text, is the value. It is not listed, and asking for its size alone does nothing. Ranges are small, so that a
//! command can show how far it is and be stopped. Who may ask: the owner of the file, and root; to drain, whoever
//! mounted it, and root.
//!
//! ```text
//! user.nvfold.dedup-range.OFFSET.LENGTH     -> bytes looked at, bytes changed
//! user.nvfold.compress-range.CODEC.OFFSET.LENGTH -> bytes looked at, bytes changed
//! user.nvfold.undedup-range.OFFSET.LENGTH   -> bytes looked at, bytes changed
//! user.nvfold.extents.OFFSET                -> a line each: offset, length, address, unwritten (0, 1), references, class,
//!                                              stored bytes
//! user.nvfold.drain                         -> nothing left (0, 1), entries left, bytes left, after WORK_FOR
//! user.nvfold.reclaim                       -> nothing left (0, 1), dead bytes, after WORK_FOR
//! ```

use crate::snapshot::REPORT_ATTRIBUTE;
use nvfold::{Compression, File, FileSystem, MappedExtent, Reshared, Victims, errno};
use std::fmt::{self, Display, Write};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Extents of one answer: as many as fit into an attribute, whatever their numbers are.
pub const EXTENTS_MAX: usize = 550;
/// Most bytes of one answer (XATTR_SIZE_MAX).
const ANSWER_MAX: usize = 64 << 10;
const _: () = assert!(EXTENTS_MAX * (5 * 20 + 2 + 6) < ANSWER_MAX);

const DEDUP: &str = "user.nvfold.dedup-range.";
const COMPRESS: &str = "user.nvfold.compress-range.";
const UNDEDUP: &str = "user.nvfold.undedup-range.";
const EXTENTS: &str = "user.nvfold.extents.";

/// Asks for a part of what is queued to be shared.
pub const DRAIN: &str = "user.nvfold.drain";
/// Asks for a part of what is dead to be made free.
pub const RECLAIM: &str = "user.nvfold.reclaim";
/// How long these take at most: a thread that answers requests does nothing else meanwhile.
const WORK_FOR: Duration = Duration::from_millis(50);

/// What is queued still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The queue was seen empty.
    pub is_done: bool,
    pub entries: u64,
    /// Bytes of files that these stand for.
    pub bytes: u64,
}

/// What is dead still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimLeft {
    /// No segment is worth emptying.
    pub is_done: bool,
    /// Bytes in segments of packed chunks that nothing lives in.
    pub dead_bytes: u64,
}

/// One request. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Share blocks with equal ones.
    Dedup { offset: u64, length: u64 },
    /// The same, and compress packed chunks.
    Compress { compression: Compression, offset: u64, length: u64 },
    /// Give blocks copies of their own.
    Undedup { offset: u64, length: u64 },
    /// Tell the extents from an offset on.
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
    /// The request that the name of an attribute is; `None` when it is none.
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

    /// Whether it changes where data lies.
    pub fn is_a_change(self) -> bool {
        !matches!(self, Request::Extents { .. })
    }

    /// Does it: the serving side.
    pub fn carry_out(self, file: &File) -> nvfold::Result<Vec<u8>> {
        let answer = |done: Reshared| format!("{} {}", done.looked_at_bytes, done.changed_bytes).into_bytes();
        match self {
            Request::Dedup { offset, length } => file.dedup_range(offset, length).map(answer),
            Request::Compress { compression, offset, length } => {
                file.compress_range(offset, length, compression).map(answer)
            }
            Request::Undedup { offset, length } => file.undedup_range(offset, length).map(answer),
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

/// Whether a path lies on a mount of nvfold.
pub fn answers(path: &Path) -> bool {
    rustix::fs::getxattr(path, REPORT_ATTRIBUTE, &mut [0u8; 0]).is_ok()
}

/// Asks for a change: the command's side.
pub fn ask(path: &Path, request: &Request) -> io::Result<Reshared> {
    let answer = read(path, &request.to_string())?;
    match numbers(&answer)[..] {
        [looked_at_bytes, changed_bytes] => Ok(Reshared { looked_at_bytes, changed_bytes }),
        _ => Err(not_understood()),
    }
}

/// Shares a part of what is queued; what is left. For a file system that this process has mounted.
pub fn drain_some(fs: &FileSystem) -> nvfold::Result<Left> {
    let started = Instant::now();
    let mut is_done = false;
    while !is_done && started.elapsed() < WORK_FOR {
        is_done = fs.drain_step()?;
    }
    Ok(queued(fs, is_done))
}

/// What is queued.
pub fn queued(fs: &FileSystem, is_done: bool) -> Left {
    let denova = fs.stats().denova.unwrap_or_default();
    Left { is_done, entries: denova.queue_entries, bytes: denova.queue_bytes }
}

/// The same as an answer: the serving side.
pub fn drain(fs: &FileSystem) -> nvfold::Result<Vec<u8>> {
    let Left { is_done, entries, bytes } = drain_some(fs)?;
    Ok(format!("{} {entries} {bytes}", u8::from(is_done)).into_bytes())
}

/// The same, asked for: the command's side.
pub fn ask_to_drain(path: &Path) -> io::Result<Left> {
    match numbers(&read(path, DRAIN)?)[..] {
        [is_done, entries, bytes] => Ok(Left { is_done: is_done != 0, entries, bytes }),
        _ => Err(not_understood()),
    }
}

/// Makes a part of what is dead free; what is left. For a file system that this process has mounted.
pub fn reclaim_some(fs: &FileSystem) -> nvfold::Result<ReclaimLeft> {
    let started = Instant::now();
    let mut is_done = false;
    while !is_done && started.elapsed() < WORK_FOR {
        is_done = fs.reclaim_step(Victims::All)?;
    }
    Ok(ReclaimLeft { is_done, dead_bytes: fs.stats().reclaim.dead_bytes })
}

/// The same as an answer: the serving side.
pub fn reclaim(fs: &FileSystem) -> nvfold::Result<Vec<u8>> {
    let ReclaimLeft { is_done, dead_bytes } = reclaim_some(fs)?;
    Ok(format!("{} {dead_bytes}", u8::from(is_done)).into_bytes())
}

/// The same, asked for: the command's side.
pub fn ask_to_reclaim(path: &Path) -> io::Result<ReclaimLeft> {
    match numbers(&read(path, RECLAIM)?)[..] {
        [is_done, dead_bytes] => Ok(ReclaimLeft { is_done: is_done != 0, dead_bytes }),
        _ => Err(not_understood()),
    }
}

/// Extents of a file from a byte on, [`EXTENTS_MAX`] at most.
pub fn extents(path: &Path, offset: u64) -> io::Result<Vec<MappedExtent>> {
    let answer = read(path, &Request::Extents { offset }.to_string())?;
    let extent = |line: &str| match numbers(line)[..] {
        [offset, length, address, unwritten, references, class, stored_bytes] => Ok(MappedExtent {
            offset,
            length,
            address,
            stored_bytes,
            unwritten: unwritten != 0,
            references: references as u32,
            class: class as u8,
        }),
        _ => Err(not_understood()),
    };
    answer.lines().map(extent).collect()
}

fn read(path: &Path, name: &str) -> io::Result<String> {
    let mut value = vec![0; ANSWER_MAX];
    let length = rustix::fs::getxattr(path, name, &mut value)?;
    value.truncate(length);
    String::from_utf8(value).map_err(|_| not_understood())
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map_while(|number| number.parse().ok()).collect()
}

/// The serving process is of another version.
fn not_understood() -> io::Error {
    io::Error::from_raw_os_error(errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_being_a_name() {
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
